"""Winograd probes: what a sentence means, what is held out, and what the words alone can tell."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course.tasks import winograd
from course.tasks.winograd import Sentences
from course.training import train
from course.transformer import Transformer, TransformerConfig

TEXT = re.compile(
    r"the (\w+) did not cross the (\w+) because it was too (\w+) , so the (\w+) waited \."
)
OF_CROSSER = {"tired", "scared", "slow", "weak"}
OF_CROSSED = {"wet", "wide", "busy", "steep"}


@pytest.fixture(scope="module")
def m():
    """What is tested; ``tests/mutants/winograd.py`` puts wrong ones in its place."""
    return winograd


@st.composite
def tasks(draw):
    """Arguments of a task with words of its own, and how much of it to hold out."""
    words = (f"{a}{b}" for a, b in itertools.product("bdfgklmn", "aeiou"))
    pools = draw(st.booleans())
    n = draw(st.integers(3, 9))
    own = {"nouns": tuple(itertools.islice(words, n))}
    if pools:
        own["places"] = tuple(itertools.islice(words, draw(st.integers(2, 8))))
    kinds = draw(st.integers(1, 3))
    own["of_crosser"] = tuple(itertools.islice(words, kinds))
    own["of_crossed"] = tuple(itertools.islice(words, kinds))
    most = max(n, len(own["places"])) - 1 if pools else (n - 1) // 2
    return own, draw(st.integers(1, most)), draw(st.integers(0, 9))


def pairs(task, sentences) -> list[tuple[str, str]]:
    """The nouns of each sentence, in order."""
    return [
        tuple(task.vocabulary[i] for i in two)
        for two in zip(sentences.crosser.tolist(), sentences.crossed.tolist(), strict=True)
    ]


# --------------------------------------------------------------------------------------- sentences


def test_the_two_sentences(m):
    tired, wet = (
        f"the animal did not cross the street because it was too {a} , so the {r} waited ."
        for a, r in (("tired", "animal"), ("wet", "street"))
    )
    for task in (m.REPAIRED, m.LEAKY):
        assert task.sentence("animal", "street", "tired") == tired
        assert task.sentence("animal", "street", "wet") == wet
    words = tired.split()
    assert (m.CROSSER, m.CROSSED, m.ADJECTIVE, m.DECIDING, m.ANSWER) == (1, 6, 11, 14, 15)
    assert words[m.DECIDING] == "the" and words[m.ANSWER] == "animal"


@pytest.mark.parametrize("name", ["REPAIRED", "LEAKY"])
def test_it_is_who_the_adjective_tells_of(m, name):
    task = getattr(m, name)
    everything = task.sentences()
    assert len(everything) == 8 * len(task.pairs)
    seen = set()
    for row in everything.tokens:
        crosser, crossed, adjective, answer = TEXT.fullmatch(task.decode(row)).groups()
        assert (adjective in OF_CROSSER) != (adjective in OF_CROSSED)
        assert answer == (crosser if adjective in OF_CROSSER else crossed)
        seen.add((crosser, crossed, adjective))
    assert len(seen) == len(everything)
    if name == "REPAIRED":
        nouns = {crosser for crosser, _, _ in seen}
        assert len(nouns) == 16 and len(task.pairs) == 16 * 15
        assert {(x, y) for x, y, _ in seen} == set(itertools.permutations(nouns, 2))
    else:
        assert not {x for x, _, _ in seen} & {y for _, y, _ in seen}


@given(tasks())
def test_the_parts_of_a_sentence(m, drawn):
    own, *_ = drawn
    task = m.Winograd(**own)
    s = task.sentences()
    kind = task.of_the_crosser(s)
    assert s.prompts.shape == (len(s), 15) and s.tokens.shape == (len(s), 18)
    for i in range(0, len(s), 7):
        words = task.decode(s.tokens[i]).split()
        assert words[1] == task.vocabulary[s.crosser[i]] != task.vocabulary[s.crossed[i]]
        assert words[6] == task.vocabulary[s.crossed[i]]
        assert words[11] == task.vocabulary[s.adjective[i]]
        assert bool(kind[i]) == (words[11] in own["of_crosser"])
        assert {words[15]} == {task.vocabulary[s.answer[i]]}
        assert {words[1], words[6]} == {words[15], task.vocabulary[s.other[i]]}
        assert torch.equal(task.encode(" ".join(words)), s.tokens[i])
    assert len(s.pair.unique()) == len(task.pairs)
    some = s[s.answer == s.crosser]
    assert torch.equal(some.tokens, s.tokens[kind]) and len(s[2:5]) == 3


@given(tasks())
def test_exchanges_change_the_answer_and_nothing_else(m, drawn):
    own, *_ = drawn
    task = m.Winograd(**own)
    s = task.sentences()
    kept = s.tokens.clone()
    other = task.swap_adjective(s)
    assert torch.equal(other.answer, s.other)
    assert torch.equal(task.of_the_crosser(other), ~task.of_the_crosser(s))
    assert ((other.tokens != s.tokens).sum(1) == 2).all()  # the adjective and the answer
    assert torch.equal(task.swap_adjective(other).tokens, s.tokens)
    if "places" in own:
        with pytest.raises(ValueError, match="swap_nouns: expected one pool"):
            task.swap_nouns(s)
        return
    turned = task.swap_nouns(s)
    assert torch.equal(turned.crosser, s.crossed) and torch.equal(turned.crossed, s.crosser)
    assert torch.equal(turned.adjective, s.adjective) and torch.equal(turned.answer, s.other)
    assert torch.equal(task.swap_nouns(turned).tokens, s.tokens)
    assert torch.equal(s.tokens, kept)


# ------------------------------------------------------------------------------------------ splits


@given(tasks())
def test_what_is_held_out(m, drawn):
    own, held_out, seed = drawn
    task = m.Winograd(**own)
    split = task.split(held_out, seed=seed)
    train_pairs, out = set(pairs(task, split.train)), set(pairs(task, split.held_out))
    assert not m.shared_pairs(split.train, split.held_out) and not train_pairs & out
    assert train_pairs | out == set(task.pairs)
    for part in split:  # each pair with each adjective, once
        assert len(part) == len(set(pairs(task, part))) * len(task.adjectives)
    reverses = {(y, x) for x, y in out}
    if "places" in own:
        assert len(split.reverses) == 0
        smaller = min(len(own["nouns"]), len(own["places"]))
        assert len(out) == held_out * smaller
    else:
        assert set(pairs(task, split.reverses)) == reverses <= train_pairs
        for noun in own["nouns"]:  # as often in either slot
            assert sum(x == noun for x, _ in out) == sum(y == noun for _, y in out) == held_out
    again = task.split(held_out, seed=seed)
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(split, again, strict=True))


def test_another_seed_holds_out_others(m):
    splits = [set(pairs(m.REPAIRED, m.REPAIRED.split(seed=seed).held_out)) for seed in range(5)]
    assert all(a != b for a, b in itertools.combinations(splits, 2))


@pytest.mark.parametrize(
    ("own", "held_out", "words"),
    [
        ({}, 8, "held_out: expected at most 7 with 16 nouns in a circle, got 8"),
        ({}, 0, "held_out: expected a whole number of at least 1, got 0"),
        ({"nouns": ("a", "b", "c")}, 2, "held_out: expected at most 1 with 3 nouns"),
        ({"nouns": ("a", "b"), "places": ("c", "d")}, 2, "held_out: expected at most 1 with 2"),
    ],
)
def test_too_much_held_out_is_named(m, own, held_out, words):
    with pytest.raises(ValueError, match=words):
        m.Winograd(**own).split(held_out)


# ------------------------------------------------------------------------------------------ audits


def test_the_words_tell_the_answer_of_the_leaky_version(m):
    for seed in range(3):
        split = m.LEAKY.split(seed=seed)
        assert m.word_presence_accuracy(split.train, split.held_out) == 1
        assert math.isnan(m.same_words_accuracy(split.train, split.held_out))


def test_the_words_tell_nothing_of_the_repaired_version(m):
    for seed in range(3):
        split = m.REPAIRED.split(seed=seed)
        for part in split:
            assert m.word_presence_accuracy(split.train, part) == 0.5
        # Who remembers the words of each sentence, but not their order, answers backwards.
        assert m.same_words_accuracy(split.train, split.held_out) == 0
        assert m.same_words_accuracy(split.train, split.reverses) == 1


@given(tasks())
def test_every_adjective_meets_every_noun_in_every_role_equally_often(m, drawn):
    own, held_out, seed = drawn
    if "places" in own:
        own = {name: words for name, words in own.items() if name != "places"}
        held_out = 1
    task = m.Winograd(**own)
    n, split = len(own["nouns"]), task.split(held_out, seed=seed)
    for part, partners in zip(split, (n - 1 - held_out, held_out, held_out), strict=True):
        counts = m.role_counts(part)
        assert counts.shape == (len(task.adjectives), n, 4)
        half = len(own["of_crosser"])
        # Columns: crosser and meant, crosser and not, crossed and meant, crossed and not.
        assert (counts[:half] == [partners, 0, 0, partners]).all()
        assert (counts[half:] == [0, partners, partners, 0]).all()
        assert m.word_presence_accuracy(split.train, part) == 0.5


def test_the_audits_see_a_spoiled_split(m):
    task = m.REPAIRED
    everything = task.sentences()
    nouns = everything.crosser, everything.crossed
    # Only one order of each pair is trained, always the same noun first: the words tell all.
    ordered = everything[nouns[0] < nouns[1]]
    assert m.word_presence_accuracy(ordered, ordered) > 0.9
    assert m.word_presence_accuracy(ordered, everything[nouns[0] > nouns[1]]) < 0.1
    assert m.role_counts(ordered).std(1).max() > 1
    split = task.split()
    assert len(m.shared_pairs(split.train, split.reverses)) == 64
    mixed = Sentences(torch.cat([split.held_out.tokens[:1], split.train.tokens]))
    shared = m.shared_pairs(mixed, split.held_out)
    assert shared == {(int(split.held_out.crosser[0]), int(split.held_out.crossed[0]))}
    one_kind = everything[task.of_the_crosser(everything)]
    assert (m.role_counts(one_kind)[:, :, 2] == 0).all()


def test_the_audits_of_the_leaky_version_show_the_leak(m):
    counts = m.role_counts(m.LEAKY.sentences())
    assert counts.shape == (8, 32, 4)
    assert (counts[:, :16, 2:] == 0).all() and (counts[:, 16:, :2] == 0).all()


# ------------------------------------------------------------------------------- words and numbers


def test_upper_case_and_commas_are_forgiven(m):
    text = "The animal did not cross the street because it was too tired, so the animal waited."
    assert m.REPAIRED.decode(m.REPAIRED.encode(text)) == m.REPAIRED.sentence(
        "animal", "street", "tired"
    )
    for n in range(1, 19):  # every beginning is one
        words = m.REPAIRED.sentence("street", "dog", "busy").split()[:n]
        assert m.REPAIRED.decode(m.REPAIRED.encode(" ".join(words))).split() == words


BEGIN = "the dog did not cross the "


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the lorry did", "'animal', 'dog', .*16 words.* as word 2, after “the”, got 'lorry', whi"),
        ("the dog does", "expected 'did' as word 3, after “the dog”, got 'does', which is not in"),
        ("the dog cross", "expected 'did' as word 3, after “the dog”, got 'cross'$"),
        ("dog", "expected 'the' as word 1, at the beginning, got 'dog'$"),
        (BEGIN + "dog", "15 words.* as word 7, after “the dog did not cross the”, got 'dog'$"),
        (BEGIN + "cat because it was too cat", "'tired', .* or 'steep' as word 12, .* got 'cat'$"),
        (
            BEGIN + "cat because it was too wet , so the fox",
            "expected 'dog' or 'cat' as word 16, .*got 'fox'$",
        ),
        (
            BEGIN + "cat because it was too wet , so the cat waited . the",
            "expected no more than 18 words as word 19",
        ),
        ("", "expected 1 to 18 words, got none"),
        (3, "expected words, got int"),
    ],
)
def test_a_word_that_does_not_belong_is_named_with_its_place(m, text, words):
    with pytest.raises(ValueError, match=f"sentence: .*{words}"):
        m.REPAIRED.encode(text)


@pytest.mark.parametrize(
    "pair",
    [("dog", "dog"), ("dog", "lorry"), ("dog",), "dog", None, ([], "dog"), ("dog", "cat", 1)],
)
def test_a_pair_that_is_none_is_named(m, pair):
    two = m.REPAIRED.sentences([("dog", "cat"), ("cat", "dog")])
    assert len(two) == 16 and m.REPAIRED.decode(two.tokens[8]).startswith("the cat did")
    with pytest.raises(ValueError, match="pairs: expected two different nouns of this task"):
        m.REPAIRED.sentences([pair])


@pytest.mark.parametrize("crosser", ["street", "castle"])
def test_the_leaky_version_knows_who_may_cross(m, crosser):
    with pytest.raises(ValueError, match="as word 2"):
        m.LEAKY.sentence(crosser, "street", "tired")


@pytest.mark.parametrize(
    "tokens",
    [[36], [-1], [[0]], torch.zeros(1, 2), [1.5], torch.tensor([40]), None, [True], "dog", 36],
)
def test_numbers_without_a_word_are_named(m, tokens):
    with pytest.raises(ValueError, match="tokens: expected numbers in 0 … 35"):
        m.REPAIRED.decode(tokens)
    for one in (1, np.int64(1), torch.tensor(1), [np.int64(1)], torch.tensor([1])):
        assert m.REPAIRED.decode(one) == "did"


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"nouns": ["bus", "tram"]}, "nouns: expected at least 3 words, got 2"),
        ({"nouns": "bus tram car"}, "nouns: expected a list of words, got 'bus tram car'"),
        ({"nouns": 3}, "nouns: expected a list of words, got 3"),
        ({"nouns": None}, "nouns: expected a list of words, got None"),
        ({"nouns": {"bus", "tram", "car"}}, "nouns: expected a list of words, got {"),
        (
            {"nouns": ["bus", "tram", "b\u200bus"]},
            "nouns: expected single words .* got 'b.u200bus'",
        ),
        ({"nouns": ["bus", "tram", "a\x01"]}, "nouns: expected single words .* got 'a.x01'"),
        ({"nouns": ["bus", "\u00e9", "e\u0301"]}, "nouns: expected new words, got '\u00e9'"),
        ({"nouns": ["bus", "tram", "bus"]}, "nouns: expected new words, got 'bus', which is in no"),
        ({"nouns": ["bus", "tram", "wet"]}, "of_crossed: .* got 'wet', which is in nouns"),
        ({"nouns": ["bus", "tram", "it"]}, "got 'it', which is in the rest of the sentence"),
        (
            {"nouns": ["bus", "tram", "Car"]},
            "nouns: expected single words in lower case, got 'Car'",
        ),
        ({"nouns": ["bus", "tram", "old car"]}, "got 'old car'"),
        ({"nouns": ["bus", "tram", 7]}, "got 7"),
        ({"places": ["mill"]}, "places: expected at least 2 words, got 1"),
        ({"of_crosser": []}, "of_crosser: expected at least 1 words, got 0"),
        ({"of_crosser": ["lazy"]}, "of_crossed: expected as many .* of_crosser, 1, got 4"),
    ],
)
def test_words_that_do_not_serve_are_named(m, own, words):
    with pytest.raises(ValueError, match=words):
        m.Winograd(**own)


def test_upper_case_and_typing_do_not_change_the_answer(m):
    tired = m.REPAIRED.sentence("dog", "cat", "tired")
    assert m.REPAIRED.sentence("Dog", "CAT", "Tired") == tired
    task = m.Winograd(nouns=["v\u00e9lo", "tram", "car"])
    typed = "ve\u0301lo"
    assert task.sentence(typed, "car", "wet") == task.sentence("v\u00e9lo", "car", "wet")
    assert task.decode(task.encode(f"the {typed}")) == "the v\u00e9lo"
    assert task.decode(task.sentences([(typed, "car")]).crosser[:1]) == "v\u00e9lo"
    with pytest.raises(ValueError, match="sentence: expected words, got int"):
        m.REPAIRED.sentence(1, "cat", "tired")


def test_one_sentence_of_several(m):
    s = m.REPAIRED.sentences()
    for one in (s[3], s[torch.tensor(3)]):
        assert len(one) == 1 and torch.equal(one.prompts, s[3:4].prompts)
    assert m.REPAIRED.decode(s[-1].answer) == m.REPAIRED.decode(s.answer[-1:])


def test_no_sentences_are_named(m):
    s = m.REPAIRED.split().held_out
    for act, words in (
        (lambda: m.batches(s[:0], 4), "sentences: expected at least one sentence, got none"),
        (lambda: m.batches("x", 4), "sentences: expected Sentences, got str"),
        (lambda: m.word_presence_accuracy(s, s[:0]), "test: expected at least one sentence"),
        (lambda: m.word_presence_accuracy(s[:0], s), "train: expected at least one sentence"),
        (lambda: m.REPAIRED.split(seed="a"), "seed: expected a whole number of at least 0"),
    ):
        with pytest.raises(ValueError, match=words):
            act()


def test_a_task_is_fixed_by_its_words(m):
    own = {"nouns": ["bus", "tram", "car"], "of_crosser": ["late"], "of_crossed": ["closed"]}
    task = m.Winograd(**own)
    assert task == m.Winograd(**{name: tuple(words) for name, words in own.items()})
    assert hash(task) == hash(m.Winograd(**own)) and task != m.REPAIRED
    assert len(task) == len(set(task.vocabulary)) == 12 + 3 + 2
    own["nouns"].append("ship")
    assert task.nouns == ("bus", "tram", "car")
    with pytest.raises(FrozenInstanceError):
        task.nouns = ("a", "b", "c")


# ------------------------------------------------------------------------------ training and score


def test_batches_are_the_given_sentences_one_word_later(m):
    split = m.REPAIRED.split()
    sampler = m.batches(split.train, 37)
    inputs, targets = sampler(torch.Generator().manual_seed(1))
    assert inputs.shape == targets.shape == (37, 17)
    rows = {tuple(row) for row in split.train.tokens.tolist()}
    whole = torch.cat([inputs, targets[:, -1:]], 1)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert {tuple(row) for row in whole.tolist()} <= rows
    assert torch.equal(inputs, sampler(torch.Generator().manual_seed(1))[0])
    assert not torch.equal(inputs, sampler(torch.Generator().manual_seed(2))[0])
    others = (m.batches(split.train, 36), m.batches(split.reverses, 37))
    assert all(other.identity() != sampler.identity() for other in others)
    with pytest.raises(ValueError, match="batch: expected"):
        m.batches(split.train, 0)


def logits_of(said: torch.Tensor, size: int, T: int = 15) -> torch.Tensor:
    """Logits [n,T,V] that name these words at the deciding position and others elsewhere."""
    logits = torch.zeros(len(said), T, size)
    logits[:, :, 0] = 1
    logits[torch.arange(len(said)), 14, said] = 2
    return logits


def test_a_score_counts_answers_and_the_other_noun(m):
    split = m.REPAIRED.split()
    s, size = split.held_out, len(m.REPAIRED)
    perfect = m.score(logits_of(s.answer, size), s)
    assert perfect == (1, 0, 1, 1)
    said = s.answer.clone()
    said[:8] = s.other[:8]  # one pair all wrong, another half wrong, another with no noun at all
    said[8:12] = s.other[8:12]
    said[16:24] = 3
    found = m.score(logits_of(said, size, T=17), s)
    assert found.right == pytest.approx(1 - 20 / 512) and found.other == pytest.approx(12 / 512)
    shares = [0, 0.5, 0, *[1] * 61]
    mean = sum(shares) / 64
    spread = math.sqrt(sum((x - mean) ** 2 for x in shares) / 63)
    assert found.low == pytest.approx(mean - 1.96 * spread / 8, abs=1e-9)
    assert found.high == pytest.approx(min(1, mean + 1.96 * spread / 8), abs=1e-9)
    # Whose eight sentences are all right or all wrong has no more than 64 independent answers.
    backwards = torch.where(torch.arange(512) // 8 % 2 == 0, s.answer, s.other)
    half = m.score(logits_of(backwards, size), s)
    assert half.right == half.other == 0.5 and half.high - half.low > 0.24


def test_a_margin_is_a_difference_of_logits(m):
    s, size = m.REPAIRED.split().held_out, len(m.REPAIRED)
    logits = torch.randn(len(s), 15, size, generator=torch.Generator().manual_seed(1))
    margin = m.margin(logits, s)
    for i in (0, 5, 400):
        row = logits[i, 14]
        assert margin[i] == row[s.answer[i]] - row[s.other[i]]


@pytest.mark.parametrize("shape", [(3, 15, 36), (512, 14, 36), (512, 36), (512, 15, 3)])
def test_logits_of_something_else_are_named(m, shape):
    s = m.REPAIRED.split().held_out
    for function in (m.score, m.margin):
        with pytest.raises(ValueError, match="logits: expected"):
            function(torch.zeros(shape), s)


def test_nan_is_no_score(m):
    s, size = m.REPAIRED.split().held_out, len(m.REPAIRED)
    logits = logits_of(s.answer, size)
    logits[3, 13] = math.nan  # not asked there
    assert m.score(logits, s).right == 1
    logits[3, 14, 5] = math.nan
    for function in (m.score, m.margin):
        with pytest.raises(ValueError, match="logits: expected numbers at position 14, got NaN"):
            function(logits, s)


def test_one_pair_has_no_interval(m):
    s, size = m.REPAIRED.split().held_out, len(m.REPAIRED)
    one = m.score(logits_of(s[:8].answer, size), s[:8])
    assert one[:2] == (1, 0) and math.isnan(one.low) and math.isnan(one.high)
    assert m.score(logits_of(s[:16].answer, size), s[:16]) == (1, 0, 1, 1)
    with pytest.raises(ValueError, match="sentences: expected at least one sentence, got none"):
        m.score(logits_of(s[:0].answer, size), s[:0])


# ----------------------------------------------------------------------------------- on real models


def trained(task, split, steps=30, **changes):
    sizes = dict(vocab_size=len(task), E=16, H=2, hidden=20, max_length=18, positions="learned")
    model = Transformer(TransformerConfig(**(sizes | changes)), seed=1)
    train(model, winograd.batches(split.train, 16), steps=steps, lr=1e-2, seed=1, progress=False)
    return model.double().eval()


BLIND = [
    {"mixer": "mean", "norm": "none"},
    {"mixer": "mean", "norm": "none", "positions": "learned"},
    {"mixer": "mean", "norm": "pre"},
    {"mixer": "softmax"},
    {"mixer": "linear"},
    {"mixer": "linear", "mixer_options": {"feature_map": "taylor", "key_width": 3}},
]
SEEING = [
    {"mixer": "mean", "norm": "pre", "positions": "learned"},
    {"mixer": "softmax", "positions": "learned"},
    {"mixer": "softmax", "L": 2},
    {"mixer": "window", "mixer_options": {"window": 10}},
    {"mixer": "gated"},
    {"mixer": "delta"},
    {"mixer": "hybrid", "mixer_options": {"window": 10, "key_width": 3}},
    {
        "mixer": "linear",
        "mixer_options": {"feature_map": "cosformer", "map_options": {"max_length": 20}},
    },
    {"mixer": ["conv", "none"], "L": 2, "mixer_options": [{"width": 14}, {}]},
]


@pytest.mark.parametrize("changes", BLIND, ids=str)
def test_one_block_without_positions_does_not_see_the_order(m, changes):
    """Row by row the two orders get one answer, so at most one of them is right."""
    split = m.REPAIRED.split()
    model = trained(m.REPAIRED, split, **({"positions": "none"} | changes))
    here, there = split.held_out, m.REPAIRED.swap_nouns(split.held_out)
    one, two = (model(s.prompts) for s in (here, there))
    assert (one - two)[:, 14].abs().max() < 1e-12
    assert (one - two)[:, 2].abs().max() > 1e-3  # the model itself is no constant
    assert m.score(one, here).right + m.score(two, there).right <= 1


@pytest.mark.parametrize("changes", SEEING, ids=str)
def test_others_see_the_order(m, changes):
    split = m.REPAIRED.split()
    model = trained(m.REPAIRED, split, **({"positions": "none"} | changes))
    one, two = (model(s.prompts) for s in (split.held_out, m.REPAIRED.swap_nouns(split.held_out)))
    assert (one - two)[:, 14].abs().max() > 1e-4


def test_scores_of_the_first_block_off_the_adjective_do_not_know_it(m):
    """Two sentences one word apart: to the bit the same queries and keys but for one key."""
    split = m.REPAIRED.split()
    model = trained(m.REPAIRED, split, L=2)
    one = split.held_out.prompts
    two = m.REPAIRED.swap_adjective(split.held_out).prompts
    scores, weights = [], []
    for prompts in (one, two):
        block = model.blocks[0]
        x = block.mixer_norm(model.embed(prompts))
        q, k, _ = block.mixer.attention.heads(x)
        scores.append((q[:, :, 14:] @ k.mT)[:, :, 0])
        weights.append(block.mixer.with_weights(x)[1][:, :, 14])
    off = torch.arange(15) != m.ADJECTIVE
    assert torch.equal(scores[0][..., off], scores[1][..., off])
    assert (scores[0] != scores[1])[..., m.ADJECTIVE].all()
    ratio = weights[0][..., off] / weights[1][..., off]
    torch.testing.assert_close(ratio, ratio[..., :1].expand_as(ratio), rtol=1e-9, atol=0)
    mean = [w.mean(1) for w in weights]
    apart = mean[0][..., off] / mean[1][..., off]
    assert (apart - apart[..., :1]).abs().max() > 1e-3


def test_the_reader_s_own_words_run_through(m):
    task = m.Winograd(
        nouns=["bus", "tram", "car", "ship", "mill"], of_crosser=["late"], of_crossed=["closed"]
    )
    split = task.split(1)
    model = trained(task, split, steps=300, E=32, H=4, hidden=32, L=2)
    assert m.score(model(split.train.prompts), split.train).right > 0.8
    prompt = task.encode("The bus did not cross the mill because it was too late, so the")
    said = model(prompt[None])[0, -1].argmax().item()
    assert task.decode([said]) in ("bus", "mill")
    assert m.word_presence_accuracy(split.train, split.held_out) == 0.5
