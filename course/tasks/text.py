"""Tiny Shakespeare as tokens: 1,115,394 characters, a byte-level BPE of 1,024 entries, 90/10.

The text is never in the package. It is looked for in the folder that ``COURSE_DATA`` names, then in
the cache folder, and only then fetched; whatever is found must have the pinned SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from course.inputs import require_number, require_positive

FILE_NAME = "tinyshakespeare.txt"
URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
VOCAB_SIZE = 1024
TRAIN_SHARE = 0.9


class TextUnavailable(RuntimeError):
    """The text is in none of the places it may come from; the message says what to do."""


class WrongText(RuntimeError):
    """A file of the right name holds another text; the message says which file and what to do."""


def cache_folder() -> Path:
    """Where the course keeps what it fetched or computed: ``COURSE_CACHE``, or the system's place.

    The folder need not exist yet.
    """
    named = os.environ.get("COURSE_CACHE")
    if named:
        return _folder("COURSE_CACHE", named)
    import pooch

    return Path(pooch.os_cache("attention-derived"))


def _folder(variable: str, named: str) -> Path:
    try:
        return Path(named).expanduser()
    except RuntimeError as error:  # "~" of a user who has no home
        raise ValueError(f"{variable}: expected a folder, got {named!r} ({error})") from None


def find_text() -> Path | None:
    """The file of the text in ``COURSE_DATA`` or in the cache folder, or None; never downloads.

    Raises :class:`TextUnavailable` when ``COURSE_DATA`` is set but the file is not there, or when
    it may not be read, and :class:`WrongText` when a file is found whose SHA-256 is not the pinned
    one.
    """
    named = os.environ.get("COURSE_DATA")
    path = (_folder("COURSE_DATA", named) if named else cache_folder()) / FILE_NAME
    try:
        if path.is_file():
            _check(path)
            return path
    except OSError as error:
        raise TextUnavailable(
            f"{path} cannot be read ({error.strerror}). Give yourself the right to read it, or set "
            f"{'COURSE_DATA' if named else 'COURSE_CACHE'} to another folder."
        ) from error
    if named:
        raise TextUnavailable(
            f"COURSE_DATA names the folder {named}, but there is no {FILE_NAME} in it. "
            "Put the file there, or unset COURSE_DATA to use the cache."
        )
    return None


def fetch_text() -> Path:
    """The file of the text, downloaded to the cache folder if it is nowhere else (1.1 MB).

    Raises :class:`TextUnavailable` when the download fails, :class:`WrongText` when another text
    came.
    """
    found = find_text()
    if found is not None:
        return found
    import pooch

    pooch.get_logger().setLevel("ERROR")  # it would write to stderr, which a notebook keeps
    name = f"{FILE_NAME}.{os.getpid()}.part"  # two processes may fetch at a time
    try:
        got = pooch.retrieve(URL, known_hash=None, fname=name, path=cache_folder())
    except Exception as error:  # the downloader raises many kinds; the reader needs one sentence
        raise TextUnavailable(
            f"Tiny Shakespeare could not be downloaded ({type(error).__name__}).\n"
            "With a network: run `course data fetch`.\n"
            f"Without one: get {URL}\non another machine, save it as {FILE_NAME}, and set "
            f"COURSE_DATA to its folder or put it in\n{cache_folder()}"
        ) from error
    # pooch would also check the hash, but its error says neither what the file is nor what to do.
    part = Path(got)
    try:
        _check(part)
        path = cache_folder() / FILE_NAME
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _check(path: Path) -> None:
    came = hashlib.sha256(path.read_bytes()).hexdigest()
    if came != SHA256:
        raise WrongText(
            f"{path}: this is not the text the course was measured on: SHA-256 {came[:12]}…, "
            f"expected {SHA256[:12]}…. Remove it and run `course data fetch`."
        )


@dataclass(frozen=True)
class Corpus:
    """The text as tokens: ``train`` and ``held_out``, int64 ``[N]``, in the order of the text."""

    train: Tensor
    held_out: Tensor
    vocab_size: int
    characters: int
    tokenizer_json: str

    def tokenizer(self):
        """The trained ``tokenizers.Tokenizer``: ``encode(text).ids`` and ``decode(ids)``."""
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.tokenizer_json)


def load_shakespeare(vocab_size: int = VOCAB_SIZE) -> Corpus:
    """Tiny Shakespeare as a :class:`Corpus`; fetched and tokenised once, then read from the cache.

    The first 90 % of the characters are the train split, the rest is held out. The BPE merges are
    learned on the train split alone, so that nothing about the held-out text is known in advance.
    Raises :class:`TextUnavailable` or :class:`WrongText`.
    """
    require_positive("vocab_size", vocab_size, minimum=256)
    text = fetch_text().read_text(encoding="utf-8")
    return tokenize(text, vocab_size)


def tokenize(text: str, vocab_size: int = VOCAB_SIZE) -> Corpus:
    """Split ``text`` 90/10 by position and encode both parts with a BPE learned on the first.

    The outcome is kept in the cache folder, in one file that is complete or absent; a damaged file
    is replaced. Without a writable cache the work is simply done again.
    """
    import tokenizers

    require_positive("vocab_size", vocab_size, minimum=256)
    if not isinstance(text, str) or len(text) < 2:
        raise ValueError(f"text: expected at least one character for each part, got {text!r}")
    key = f"{tokenizers.__version__} {vocab_size} {TRAIN_SHARE} {text}"
    name = f"tokens-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    path = cache_folder() / name
    kept = _read_tokens(path)
    if kept is None:
        kept = _encode(text, vocab_size)
        _write_tokens(path, kept)
    return Corpus(
        train=torch.from_numpy(kept["train"].astype(np.int64)),
        held_out=torch.from_numpy(kept["held_out"].astype(np.int64)),
        vocab_size=vocab_size,
        characters=len(text),
        tokenizer_json=bytes(kept["tokenizer"]).decode(),
    )


def _encode(text: str, vocab_size: int) -> dict[str, np.ndarray]:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    cut = int(len(text) * TRAIN_SHARE)
    parts = {"train": text[:cut], "held_out": text[cut:]}
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([parts["train"]], trainer)
    kept = {
        name: np.asarray(tokenizer.encode(part).ids, dtype=np.uint32)
        for name, part in parts.items()
    }
    kept["tokenizer"] = np.frombuffer(tokenizer.to_str().encode(), dtype=np.uint8)
    return kept


def _read_tokens(path: Path) -> dict[str, np.ndarray] | None:
    # A zip member carries its own CRC, so a half-written or changed file raises here.
    try:
        with np.load(path, allow_pickle=False) as stored:
            kept = {name: stored[name] for name in ("train", "held_out", "tokenizer")}
        json.loads(bytes(kept["tokenizer"]))
        return kept
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _write_tokens(path: Path, kept: dict[str, np.ndarray]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(file, allow_pickle=False, **kept)
        os.replace(part, path)
    except OSError:
        Path(part).unlink(missing_ok=True)


def unigram_perplexity(corpus: Corpus) -> float:
    """Held-out perplexity of the token frequencies of the train split (add-one smoothing)."""
    require_positive("corpus.held_out: number of tokens", len(corpus.held_out))
    frequency = _frequencies(corpus)
    return math.exp(-float(frequency[corpus.held_out].log().mean()))


def bigram_perplexity(corpus: Corpus, *, strength: float = 20.0) -> float:
    """Held-out perplexity of P(next | current) from counts on the train split.

    A pair's count is mixed with ``strength`` draws from the unigram frequencies, which gives unseen
    pairs their share: P(b | a) = (n(ab) + strength·P(b)) / (n(a) + strength).
    """
    require_number("strength", strength, above=0)
    require_positive("corpus.held_out: number of tokens", len(corpus.held_out), minimum=2)
    size = corpus.vocab_size
    pairs = torch.bincount(corpus.train[:-1] * size + corpus.train[1:], minlength=size * size)
    table = pairs.reshape(size, size).double()
    current, following = corpus.held_out[:-1], corpus.held_out[1:]
    prior = _frequencies(corpus)[following]
    chance = (table[current, following] + strength * prior) / (table.sum(1)[current] + strength)
    return math.exp(-float(chance.log().mean()))


def _frequencies(corpus: Corpus) -> Tensor:
    counts = torch.bincount(corpus.train, minlength=corpus.vocab_size).double() + 1
    return counts / counts.sum()
