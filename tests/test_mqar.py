"""Associative recall: what an example promises, the rule that solves it, and how it is scored."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course.tasks import mqar
from course.training import train
from course.transformer import Transformer, TransformerConfig


@pytest.fixture(scope="module")
def m():
    """What is tested; ``tests/mutants/mqar.py`` puts wrong ones in its place."""
    return mqar


SIZES = {"seq_len": 40, "n_pairs": 8, "vocab_size": 32}


@st.composite
def sizes(draw):
    n_pairs = draw(st.integers(1, 9))
    return {
        "n_pairs": n_pairs,
        "seq_len": draw(st.integers(4 * n_pairs, 4 * n_pairs + 30)),
        "vocab_size": draw(st.integers(-(-8 * n_pairs // 3) + 6, 60)),
        "alpha": draw(st.sampled_from([0.01, 0.5, 1.0, 2.0])),
        "seed": draw(st.integers(0, 2**63)),
    }


@given(sizes())
def test_pairs_first_then_each_key_once_with_its_value(m, options):
    n, N, T = 3, options["n_pairs"], options["seq_len"]
    inputs, targets = m.make_mqar(n, **options)
    words = m.vocabulary(options["vocab_size"])
    assert inputs.shape == targets.shape == (n, T)
    assert inputs.dtype == targets.dtype == torch.int64
    for row, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
        pairs = dict(zip(row[0 : 2 * N : 2], row[1 : 2 * N : 2], strict=True))
        assert len(pairs) == N and set(pairs) <= set(words.keys)
        assert set(pairs.values()) <= set(words.values)
        asked = [t for t in range(2 * N, T) if row[t] in words.keys]
        assert sorted(row[t] for t in asked) == sorted(pairs)
        for t in asked:  # the label stands at the query, and is what comes next
            assert wanted[t] == row[t + 1] == pairs[row[t]]
        assert [t for t in range(T) if wanted[t] != -100] == asked
        others = set(range(2 * N, T)) - {t + i for t in asked for i in (0, 1)}
        assert all(row[t] in words.fillers for t in others)


@given(sizes())
def test_one_seed_fixes_everything(m, options):
    first = m.make_mqar(4, **options)
    random.seed(1)
    np.random.seed(2)  # noqa: NPY002 (the old global generator: it must not matter)
    torch.manual_seed(3)
    again = m.make_mqar(4, **options)
    for a, b in zip(first, again, strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()
    other = m.make_mqar(4, **(options | {"seed": options["seed"] + 1}))
    assert options["n_pairs"] < 3 or not torch.equal(first[0], other[0])


@pytest.mark.parametrize("vocab_size", [6, 7, 31, 32, 96, 97])
def test_no_token_belongs_to_two_parts(m, vocab_size):
    words = m.vocabulary(vocab_size)
    assert [*words.keys, *words.values, *words.fillers] == list(range(vocab_size))
    assert len(words.keys) == len(words.values) == 3 * vocab_size // 8
    assert len(words.fillers) >= 1
    assert [len(part) for part in m.vocabulary(32)] == [12, 12, 8]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"n_pairs": 11},
            "n_pairs: expected 4·n_pairs ≤ seq_len .* got 4·11 = 44 > 40",
        ),
        (
            {"n_pairs": 13, "seq_len": 60},
            r"n_pairs: expected n_pairs ≤ 12 keys \(3/8 of vocab_size = 32\), got 13 > 12",
        ),
        ({"vocab_size": 5}, "vocab_size: expected a whole number of at least 6, got 5"),
        ({"n_pairs": 0}, "n_pairs: expected a whole number of at least 1"),
        ({"seq_len": 40.0}, "seq_len: expected a whole number"),
        ({"alpha": 0}, "alpha: expected a finite number above 0, got 0"),
        ({"seed": -1}, "seed: expected a whole number of at least 0"),
    ],
)
def test_impossible_sizes_are_refused_with_the_inequality(m, changes, message):
    with pytest.raises(ValueError, match=message):
        m.make_mqar(2, **(SIZES | {"seed": 0} | changes))
    if "seed" not in changes:
        with pytest.raises(ValueError, match=message):
            m.mqar_batches(2, **(SIZES | changes))


def test_numpys_small_integers_do_not_overflow():
    small, options = np.int8, {"vocab_size": 120, "n_pairs": 40}
    for make in (mqar.make_mqar, mqar.mqar_batches):
        seed = {"seed": 0} if make is mqar.make_mqar else {}
        with pytest.raises(ValueError, match="got 4·40 = 160 > 120"):
            make(small(2), seq_len=small(120), **(options | {"n_pairs": small(40)} | seed))
    wanted = mqar.make_mqar(2, seq_len=300, vocab_size=190, n_pairs=70, seed=5)
    got = mqar.make_mqar(
        small(2), seq_len=np.int16(300), vocab_size=np.uint8(190), n_pairs=small(70), seed=small(5)
    )
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    with pytest.raises(ValueError, match=r"multiple of 2\^halvings = 1024, got 120"):
        mqar.mqar_batches(
            2, seq_len=small(120), n_pairs=small(30), vocab_size=120, halvings=small(10)
        )


def test_the_default_device_does_not_matter():
    inputs, targets = mqar.make_mqar(2, **SIZES, seed=0)
    gap, batch = mqar.distances(inputs, targets), mqar.mqar_batches(2, **SIZES)(torch.Generator())
    assert mqar.distances(inputs.to("meta"), targets.to("meta")).is_meta
    with torch.device("meta"):
        assert torch.equal(mqar.distances(inputs, targets), gap)
        again = mqar.mqar_batches(2, **SIZES)(torch.Generator("cpu"))
    assert torch.equal(again[0], batch[0])


def test_texts_of_other_shapes_and_masks_that_are_none_are_refused():
    inputs, targets = mqar.make_mqar(3, **SIZES, seed=0)
    whole = torch.ones_like(targets)

    def model(rows):
        return torch.zeros(*rows.shape, 32)

    for call, words in (
        (lambda: mqar.solve(inputs[0]), r"inputs: expected 2 axes \[n T\], got 1"),
        (
            lambda: mqar.distances(inputs, targets[:1]),
            "inputs and targets: .* axis n, got .* has 3",
        ),
        (lambda: mqar.told_by_context(inputs, targets[:, 1:]), "inputs and targets: .* axis T"),
        (lambda: mqar.accuracy(inputs.mT, targets), "predicted and targets: .* axis n, .* has 40"),
        (lambda: mqar.accuracy(inputs, targets, whole), "among: expected a boolean tensor"),
        (lambda: mqar.accuracy(inputs, targets, whole[0] > 0), r"among: expected 2 axes \[n T\]"),
        (lambda: mqar.split_loss(model, inputs, targets, whole), "told: expected a boolean tensor"),
        (
            lambda: mqar.split_loss(model, inputs, targets[:2], whole > 0),
            "inputs and targets: .* n",
        ),
        (lambda: mqar.split_loss(model, inputs, targets, whole[:2] > 0), "told and targets: .* n"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_the_largest_that_fits_is_made(m):
    inputs, targets = m.make_mqar(5, seq_len=48, n_pairs=12, vocab_size=32, seed=0)
    assert (targets != -100).sum() == 5 * 12
    assert (inputs < 24).all()  # no place is left for a filler
    assert m.make_mqar(0, **SIZES, seed=0)[0].shape == (0, 40)


def test_the_rule_solves_every_example(m):
    inputs, targets = m.make_mqar(10_000, **SIZES, seed=1)
    right = torch.cat([m.solve(rows) for rows in inputs.split(1_000)])
    assert m.accuracy(right, targets) == 1.0
    # A label one place off, or one that depends on fillers, would show here.
    assert m.accuracy(right.roll(1, 1), targets) < 0.2
    words = m.vocabulary(32)
    fillers = torch.isin(inputs, torch.tensor(words.fillers))
    other = torch.where(fillers, words.fillers[0], inputs)
    assert m.accuracy(torch.cat([m.solve(rows) for rows in other.split(1_000)]), targets) == 1.0


def test_the_rule_follows_the_last_earlier_place(m):
    text = torch.tensor([[5, 1, 5, 2, 5, 7]])
    assert m.solve(text).tolist() == [[-100, -100, 1, -100, 2, -100]]


def test_every_token_of_a_part_is_as_likely_in_every_place(m):
    n = 12_000
    inputs, targets = m.make_mqar(n, **SIZES, seed=8)
    words, asked = m.vocabulary(32), targets != -100
    behind = (asked | asked.roll(1, 1))[:, 16:]
    for part, places in (
        (words.keys, inputs[:, 0:16:2].T),
        (words.values, inputs[:, 1:16:2].T),
        (words.fillers, [inputs[:, 16:][~behind]]),
    ):
        for tokens in places:
            share = torch.bincount(tokens, minlength=32)[list(part)] / len(tokens)
            chance = 1 / len(part)
            error = (chance * (1 - chance) / len(tokens)) ** 0.5
            assert (share - chance).abs().max() < 5 * error
    # Neighbours too: no order of the keys is preferred.
    ascending = (inputs[:, 0] < inputs[:, 2]).double().mean()
    assert abs(ascending - 0.5) < 5 * 0.5 / n**0.5


def test_what_cannot_be_seen_is_chance(m):
    """Values are independent: without the pair, one guess in `values` is right, whatever it is."""
    inputs, targets = m.make_mqar(20_000, **SIZES, seed=2)
    asked = targets != -100
    error = 4 * (1 / 12 * 11 / 12 / asked.sum().item()) ** 0.5
    words = m.vocabulary(32)
    guesses = {
        "one value": torch.full_like(targets, words.values[3]),
        "by the key": inputs + len(words.keys),
        "the first value": inputs[:, 1:2].expand_as(targets),
    }
    for name, guess in guesses.items():
        # Whoever reads one pair is right there, and by chance elsewhere.
        seen = inputs == inputs[:, :1] if name == "the first value" else torch.zeros_like(asked)
        assert abs(m.accuracy(guess, targets, ~seen) - 1 / 12) < error, name
    # What was already answered excludes nothing.
    answered = torch.where(asked, inputs.roll(-1, 1), 0)
    before = (answered[:, :, None] == targets[:, None, :]) & (answered[:, :, None] > 0)
    order = torch.arange(40)
    earlier = (before & (order[:, None] < order)).sum(1)[asked].double()
    count = ((answered > 0).cumsum(1) - 1)[asked].double()
    assert abs(earlier.sum() / count.sum() - 1 / 12) < error


def test_gaps_follow_the_power_law(m):
    """With one pair there is one draw: slot g has chance g^(α − 1) over their sum."""
    for alpha in (0.01, 0.5, 1.0):
        inputs, targets = m.make_mqar(
            40_000, seq_len=22, n_pairs=1, vocab_size=8, alpha=alpha, seed=3
        )
        gaps = m.distances(inputs, targets)[targets != -100] // 2
        expected = np.arange(1, 11) ** (alpha - 1)
        share = np.bincount(gaps, minlength=11)[1:] / len(gaps)
        assert np.abs(share - expected / expected.sum()).max() < 4 * 0.5 / len(gaps) ** 0.5


def test_no_pair_is_asked_sooner_than_another(m):
    inputs, targets = m.make_mqar(8_000, seq_len=80, n_pairs=6, vocab_size=32, seed=4)
    where = (targets != -100).nonzero()[:, 1].view(-1, 6)  # in the order of the text
    keys = inputs.gather(1, where)
    pair = (keys[:, :, None] == inputs[:, None, 0:12:2]).double().argmax(-1)
    late = torch.zeros(6).double().index_add(0, pair.flatten(), where.flatten().double()) / 8_000
    assert (late - late.mean()).abs().max() < 1


def test_distances_count_from_the_query_back_to_its_key(m):
    inputs, targets = m.make_mqar(50, **SIZES, seed=5)
    gap = m.distances(inputs, targets)
    for row, t in (targets != -100).nonzero().tolist():
        assert inputs[row, t - gap[row, t]] == inputs[row, t]
        assert t - gap[row, t] < 16  # among the pairs
    assert (gap[targets == -100] == 0).all()


def test_accuracy_counts_the_targets_asked_for(m):
    targets = torch.tensor([[-100, 3, 4], [5, -100, -100]])
    predicted = torch.tensor([[-100, 3, 9], [5, 1, 2]])
    assert m.accuracy(predicted, targets) == pytest.approx(2 / 3)
    assert m.accuracy(predicted, targets, torch.tensor([[1, 1, 0], [0, 1, 1]]).bool()) == 1
    assert np.isnan(m.accuracy(predicted, targets, targets == 99))
    with pytest.raises(ValueError, match="predicted"):
        m.accuracy(predicted[:, :2], targets)


def test_what_the_context_could_have_told(m):
    #      a b a b c b a: "ab" stands before the second b, "ba" before the last a
    text = torch.tensor([[0, 1, 0, 1, 2, 1, 0]])
    told = m.told_by_context(text[:, :-1], text[:, 1:])
    assert told.tolist() == [[False, False, True, False, False, True]]
    some = text[:, 1:].masked_fill(torch.tensor([[1, 1, 1, 0, 0, 0]]).bool(), -100)
    assert m.told_by_context(text[:, :-1], some).tolist() == [[False] * 5 + [True]]
    inputs, targets = m.make_mqar(40, **SIZES, seed=6)
    assert torch.equal(m.told_by_context(inputs, targets), targets != -100)
    # As a slow reader finds it, in a text of few words.
    words = torch.randint(0, 5, (6, 31), generator=torch.Generator().manual_seed(0))
    told = m.told_by_context(words[:, :-1], words[:, 1:])
    for row, marks in zip(words.tolist(), told.tolist(), strict=True):
        pairs = list(pairwise(row))
        assert marks == [pair in pairs[:t] for t, pair in enumerate(pairs)]
    assert m.told_by_context(words[:0, :-1], words[:0, 1:]).shape == (0, 30)
    # The number of a pair needs more room than a token.
    letters = 250 + words.to(torch.uint8)
    assert torch.equal(m.told_by_context(letters[:, :-1], letters[:, 1:]), told)


def test_the_split_loss_adds_up_and_sees_who_recalls(m):
    words = torch.randint(0, 7, (90, 21), generator=torch.Generator().manual_seed(1))
    inputs, targets = words[:, :-1], words[:, 1:].clone()
    targets[:, :3] = -100
    told = m.told_by_context(inputs, targets)

    def recalls(rows):
        """Certain, up to e⁻⁴, of what followed this token the last time; else a uniform guess."""
        answer = m.solve(rows)
        return 4.0 * torch.nn.functional.one_hot(answer.clamp(min=0), 7) * (answer >= 0)[..., None]

    split = m.split_loss(recalls, inputs, targets, told)
    whole = torch.nn.functional.cross_entropy(recalls(inputs).mT.double(), targets)
    assert split.share * split.told + (1 - split.share) * split.rest == pytest.approx(whole.item())
    assert split.share == pytest.approx(told.sum().item() / (90 * 17))
    assert split.told < split.rest
    everywhere = m.split_loss(recalls, inputs, targets, told | True)
    assert everywhere.told == pytest.approx(whole.item()) and math.isnan(everywhere.rest)
    uniform = m.split_loss(lambda rows: torch.zeros(*rows.shape, 7), inputs, targets, told)
    assert uniform.told == pytest.approx(math.log(7)) == pytest.approx(uniform.rest)
    assert math.isnan(m.split_loss(recalls, inputs, targets, told & False).told)


def test_the_sampler_draws_new_examples_from_its_generator_alone(m):
    sampler = m.mqar_batches(6, **SIZES)
    generator = torch.Generator().manual_seed(0)
    first, second = sampler(generator), sampler(generator)
    assert first[0].shape == (6, 40) and not torch.equal(first[0], second[0])
    torch.manual_seed(5)
    again = sampler(torch.Generator().manual_seed(0))
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert m.accuracy(m.solve(first[0]), first[1]) == 1


def test_halved_examples_are_more_and_as_long_together(m):
    task = {"seq_len": 48, "n_pairs": 8, "vocab_size": 32}
    sampler, generator = m.mqar_batches(3, **task, halvings=2), torch.Generator().manual_seed(0)
    seen = Counter()
    for _ in range(60):
        inputs, targets = sampler(generator)
        pairs = (targets != -100).sum(1).unique()
        assert inputs.numel() == 3 * 48 and m.accuracy(m.solve(inputs), targets) == 1
        seen[(*inputs.shape, *pairs.tolist())] += 1
    assert set(seen) == {(3, 48, 8), (6, 24, 4), (12, 12, 2)} and min(seen.values()) > 9
    with pytest.raises(ValueError, match=r"seq_len: expected a multiple of 2\^halvings = 32, got"):
        m.mqar_batches(3, **task, halvings=5)
    with pytest.raises(ValueError, match="n_pairs: expected a multiple .* = 16, got 8"):
        m.mqar_batches(3, **task, halvings=4)


def test_a_model_learns_it_by_the_training_loop(m):
    config = TransformerConfig(
        vocab_size=16,
        E=24,
        H=1,
        L=2,
        hidden=0,
        mixer=("conv", "softmax"),
    )
    task = {"seq_len": 12, "n_pairs": 3, "vocab_size": 16}
    model, held_out = Transformer(config), m.make_mqar(200, **task, seed=9)
    before = m.accuracy(m.predictions(model, held_out[0]), held_out[1])
    train(model, m.mqar_batches(32, **task), steps=250, lr=1e-2, progress=False)
    assert before < 0.4 and m.accuracy(m.predictions(model, held_out[0]), held_out[1]) > 0.95
