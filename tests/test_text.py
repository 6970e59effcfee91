"""The text: where it comes from, what happens when it is not there, and its tokens and counts."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import string
import subprocess
import sys
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from course.tasks import text
from course.tasks.text import (
    TextUnavailable,
    WrongText,
    bigram_perplexity,
    find_text,
    load_shakespeare,
    tokenize,
    unigram_perplexity,
)

SAMPLE = "To be, or not to be: that is the question — über alles, ÆØÅ!\n" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample takes the place of Shakespeare: its hash is the pinned one."""
    monkeypatch.setattr(text, "SHA256", hashlib.sha256(SAMPLE.encode()).hexdigest())


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Downloads fail as they do without a network; the calls are counted."""
    calls: list[str] = []

    def refuse(url: str, **options: object) -> str:
        calls.append(url)
        raise ConnectionError("no route")

    import pooch

    monkeypatch.setattr(pooch, "retrieve", refuse)
    return calls


def put(folder: Path, content: str = SAMPLE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / text.FILE_NAME
    path.write_text(content, encoding="utf-8")
    return path


def test_the_named_folder_comes_before_the_cache(cache, pinned, no_network, tmp_path, monkeypatch):
    in_cache = put(cache)
    monkeypatch.delenv("COURSE_DATA", raising=False)
    assert find_text() == in_cache
    named = put(tmp_path / "data")
    monkeypatch.setenv("COURSE_DATA", str(named.parent))
    assert find_text() == named
    assert no_network == []


def test_a_named_folder_without_the_file_is_an_error(cache, pinned, tmp_path, monkeypatch):
    put(cache)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    with pytest.raises(TextUnavailable, match=r"COURSE_DATA names the folder .* no tinyshakes"):
        find_text()


@pytest.mark.parametrize("step", ["is_file", "read_bytes"])
@pytest.mark.parametrize("variable", ["COURSE_DATA", "COURSE_CACHE"])
def test_a_folder_that_may_not_be_read_is_a_sentence(pinned, tmp_path, monkeypatch, variable, step):
    put(tmp_path)
    monkeypatch.delenv("COURSE_DATA", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    with (
        mock.patch.object(Path, step, side_effect=PermissionError(13, "Permission denied")),
        pytest.raises(TextUnavailable, match=rf"cannot be read \(Permission .* set {variable} to"),
    ):
        find_text()


def test_a_tilde_is_the_home_folder(pinned, tmp_path, monkeypatch):
    for home in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(home, str(tmp_path))
    monkeypatch.setenv("COURSE_DATA", "~/data")
    path = put(tmp_path / "data")
    assert find_text() == path


@pytest.mark.parametrize("place", ["named", "cache"])
def test_another_text_is_refused(cache, pinned, no_network, tmp_path, monkeypatch, place):
    if place == "named":
        put(tmp_path / "data", SAMPLE + ".")
        monkeypatch.setenv("COURSE_DATA", str(tmp_path / "data"))
    else:
        put(cache, SAMPLE + ".")
        monkeypatch.delenv("COURSE_DATA", raising=False)
    with pytest.raises(WrongText, match=r"tinyshakespeare\.txt: .*SHA-256 .* expected"):
        load_shakespeare(300)


def test_offline_without_a_copy_says_what_to_do(cache, pinned, no_network, monkeypatch, capfd):
    monkeypatch.delenv("COURSE_DATA", raising=False)
    assert find_text() is None
    with pytest.raises(TextUnavailable, match="(?s)course data fetch.*COURSE_DATA") as caught:
        load_shakespeare(300)
    assert str(cache) in str(caught.value)
    assert no_network == [text.URL]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("content", [SAMPLE, "an error page"])
def test_a_download_is_checked_before_it_is_kept(cache, pinned, monkeypatch, content):
    def deliver(url: str, *, fname: str, path: Path, **options: object) -> str:
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / fname).write_text(content, encoding="utf-8")
        return str(Path(path) / fname)

    import pooch

    monkeypatch.setattr(pooch, "retrieve", deliver)
    monkeypatch.delenv("COURSE_DATA", raising=False)
    if content == SAMPLE:
        assert text.fetch_text() == cache / text.FILE_NAME == find_text()
    else:
        with pytest.raises(WrongText):
            text.fetch_text()
        assert find_text() is None
    assert not list(cache.glob("*.part"))


def test_the_command_ends_with_the_sentence_not_a_traceback(cache, no_network, monkeypatch, capsys):
    from course.cli import main

    monkeypatch.delenv("COURSE_DATA", raising=False)
    assert main(["data", "fetch"]) == 1
    assert "course data fetch" in capsys.readouterr().out


def test_every_byte_survives_the_tokens(cache):
    corpus = tokenize(SAMPLE, 290)
    tokenizer = corpus.tokenizer()
    cut = int(len(SAMPLE) * 0.9)
    assert tokenizer.get_vocab_size() == corpus.vocab_size == 290
    assert tokenizer.decode(corpus.train.tolist()) == SAMPLE[:cut]
    assert tokenizer.decode(corpus.held_out.tolist()) == SAMPLE[cut:]
    for unseen in ("日本語", "\t\x00 mixed\r\n", "🙂"):
        assert tokenizer.decode(tokenizer.encode(unseen).ids) == unseen


def test_the_merges_are_learned_on_the_train_split_alone(cache):
    # On the left "ab" is the commonest pair, in all of the text "cd" would be.
    once = "".join(f"{X}{y}" for X in string.ascii_uppercase for y in string.ascii_lowercase)
    head = once[:880] + "abab" * 5
    same = tokenize(head + "cdcd" * 25, 258).tokenizer_json
    assert json.loads(same)["model"]["merges"] == [["a", "b"], ["ab", "ab"]]


def test_the_same_tokens_in_another_process(cache, tmp_path):
    corpus = tokenize(SAMPLE, 320)
    code = (
        "import sys; from course.tasks.text import tokenize\n"
        f"c = tokenize({SAMPLE!r}, 320)\n"
        "same = c.tokenizer_json == open(sys.argv[1], encoding='utf-8').read()\n"
        "print(same, c.train.sum().item())"
    )
    stored = tmp_path / "tokenizer.json"
    stored.write_text(corpus.tokenizer_json, encoding="utf-8")
    answer = subprocess.run(
        [sys.executable, "-c", code, str(stored)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"COURSE_CACHE": str(tmp_path / "another cache")},
    ).stdout.split()
    assert answer == ["True", str(corpus.train.sum().item())]


@pytest.mark.parametrize("damage", ["half", "flipped", "empty", "other"])
def test_a_damaged_cache_is_made_again(cache, damage):
    corpus = tokenize(SAMPLE, 300)
    (stored,) = cache.glob("tokens-*.npz")
    whole = stored.read_bytes()
    if damage == "other":
        np.savez(stored, train=np.zeros(3))
    else:
        middle = len(whole) // 2
        bad = {"half": whole[:middle], "empty": b""}.get(damage)
        if bad is None:
            bad = whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :]
        stored.write_bytes(bad)
    again = tokenize(SAMPLE, 300)
    assert torch.equal(again.train, corpus.train) and torch.equal(again.held_out, corpus.held_out)
    assert len(stored.read_bytes()) == len(whole)
    assert not list(cache.glob("*.part"))


def test_the_cache_is_used(cache, monkeypatch):
    first = tokenize(SAMPLE, 300)
    monkeypatch.setattr(text, "_encode", lambda *_: pytest.fail("tokenised twice"))
    assert torch.equal(tokenize(SAMPLE, 300).train, first.train)


def test_another_text_or_size_is_another_entry(cache):
    tokenize(SAMPLE, 300)
    tokenize(SAMPLE, 301)
    tokenize(SAMPLE + "x", 300)
    assert len(list(cache.glob("tokens-*.npz"))) == 3


def test_without_a_writable_cache_the_work_is_done_again(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("COURSE_CACHE", str(blocked / "cache"))
    assert len(tokenize(SAMPLE, 300).train) > 0


@pytest.mark.parametrize("short", ["", "a", None])
def test_a_text_without_two_parts_is_refused(cache, short):
    with pytest.raises(ValueError, match="text: expected at least one character for each part"):
        tokenize(short, 300)


def test_a_part_that_is_too_short_to_be_scored_is_named(cache):
    corpus = tokenize("to be or", 256)
    assert len(corpus.held_out) == 1 and unigram_perplexity(corpus) > 1
    with pytest.raises(ValueError, match="held_out: .* at least 2, got 1"):
        bigram_perplexity(corpus)


@pytest.mark.parametrize("size", [0, 255, 300.0, True])
def test_a_vocabulary_smaller_than_the_bytes_is_refused(cache, size):
    with pytest.raises(ValueError, match="vocab_size: expected a whole number of at least 256"):
        tokenize(SAMPLE, size)


def test_counts_agree_with_counting_by_hand(cache):
    corpus = tokenize(" ".join(f"w{n**3 % 91}" for n in range(900)), 300)
    train, held_out = corpus.train.tolist(), corpus.held_out.tolist()
    single, double = Counter(train), Counter(itertools.pairwise(train))
    starts = Counter(train[:-1])
    chance = {w: (single[w] + 1) / (len(train) + 300) for w in range(300)}
    entropy = -sum(math.log(chance[w]) for w in held_out) / len(held_out)
    assert unigram_perplexity(corpus) == pytest.approx(math.exp(entropy), rel=1e-12)
    losses = [
        -math.log((double[a, b] + 3.0 * chance[b]) / (starts[a] + 3.0))
        for a, b in itertools.pairwise(held_out)
    ]
    expected = math.exp(sum(losses) / len(losses))
    assert bigram_perplexity(corpus, strength=3.0) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="strength: expected a finite number above 0"):
        bigram_perplexity(corpus, strength=0)


@pytest.fixture(scope="module")
def shakespeare():
    try:
        if find_text() is None:
            pytest.skip("Tiny Shakespeare is not on this machine: run `course data fetch`")
    except TextUnavailable as missing:
        pytest.skip(str(missing))
    return load_shakespeare()


def test_shakespeare_in_numbers(shakespeare):
    tokens = len(shakespeare.train) + len(shakespeare.held_out)
    assert shakespeare.characters == 1_115_394
    assert (shakespeare.vocab_size, int(shakespeare.train.max())) == (1024, 1023)
    assert abs(tokens - 459_800) < 1_000
    assert abs(shakespeare.characters / tokens - 2.43) < 0.02


def test_what_counts_alone_can_do(shakespeare):
    assert 290 < unigram_perplexity(shakespeare) < 320
    assert 55 < bigram_perplexity(shakespeare) < 65
