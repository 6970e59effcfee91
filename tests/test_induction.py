"""Induction: texts that repeat themselves, the rule that continues them, and scores of heads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course.tasks import induction
from course.training import train
from course.transformer import Transformer, TransformerConfig

SIZES = {"seq_len": 23, "vocab_size": 13, "shortest": 3, "longest": 9}


@pytest.fixture(scope="module")
def m():
    """What is tested; ``tests/mutants/induction.py`` puts wrong ones in its place."""
    return induction


@st.composite
def sizes(draw):
    shortest = draw(st.integers(2, 7))
    longest = draw(st.integers(shortest, 9))
    return {
        "seq_len": draw(st.integers(longest + 1, 30)),
        "vocab_size": draw(st.integers(longest, 20)),
        "shortest": shortest,
        "longest": longest,
        "seed": draw(st.integers(0, 2**62)),
    }


@given(sizes())
def test_a_row_repeats_itself_and_its_repetition_is_the_target(m, options):
    rows = m.make_repeats(6, **options)
    T = options["seq_len"]
    assert rows.inputs.shape == rows.targets.shape == (6, T) and rows.period.shape == (6,)
    for tokens, targets, period in zip(*(x.tolist() for x in rows), strict=True):
        assert options["shortest"] <= period <= options["longest"]
        assert len(set(tokens[:period])) == period
        assert set(tokens) <= set(range(options["vocab_size"]))
        assert all(tokens[t] == tokens[t - period] for t in range(period, T))
        assert targets[:period] == [-100] * period
        assert targets[period:] == [tokens[(t + 1) % period] for t in range(period, T)]


def test_periods_and_tokens_are_drawn_evenly_and_by_the_seed_alone(m):
    rows = m.make_repeats(4000, seed=1, **SIZES)
    counts = torch.bincount(rows.period, minlength=10)[3:]
    assert len(counts) == 7 and (counts / 4000 - 1 / 7).abs().max() < 0.03
    first = torch.bincount(rows.inputs[:, 0], minlength=13) / 4000
    assert (first - 1 / 13).abs().max() < 0.02
    torch.manual_seed(5)
    again = m.make_repeats(4000, seed=1, **SIZES)
    assert all(torch.equal(a, b) for a, b in zip(rows, again, strict=True))
    assert not torch.equal(rows.inputs, m.make_repeats(4000, seed=2, **SIZES).inputs)
    assert m.make_repeats(0, seed=1, **SIZES).inputs.shape == (0, 23)


@given(sizes())
def test_the_rule_solves_it(m, options):
    rows = m.make_repeats(5, **options)
    assert torch.equal(m.solve(rows.inputs), rows.targets)


def test_the_rule_takes_the_last_place_of_several(m):
    inputs = torch.tensor([[4, 1, 4, 2, 4, 1, 3]])
    assert m.solve(inputs).tolist() == [[-100, -100, 1, -100, 2, 4, -100]]


def test_batches_are_new_rows_that_the_seed_fixes(m):
    sampler = m.repeat_batches(17, **SIZES)
    inputs, targets = sampler(torch.Generator().manual_seed(1))
    assert inputs.shape == targets.shape == (17, 23)
    assert torch.equal(m.solve(inputs), targets)
    assert torch.equal(inputs, sampler(torch.Generator().manual_seed(1))[0])
    assert sampler.identity() == SIZES | {"batch": 17}


def test_accuracy_counts_what_was_told(m):
    rows = m.make_repeats(8, seed=3, **SIZES)
    logits = torch.nn.functional.one_hot(m.solve(rows.inputs).clamp(min=0), 13).double()
    assert m.accuracy(logits, rows.targets) == 1
    told = (rows.targets != -100).sum().item()
    missed = logits.clone()
    missed[0, -1] = 0
    missed[0, -1, (rows.targets[0, -1] + 1) % 13] = 1
    missed[:, 0] = 0  # nothing is asked there
    assert m.accuracy(missed, rows.targets) == pytest.approx(1 - 1 / told)


def test_nan_predicts_nothing(m):
    rows = m.make_repeats(8, seed=3, **SIZES)
    logits = torch.nn.functional.one_hot(m.solve(rows.inputs).clamp(min=0), 13).double()
    logits[:, 0] = torch.nan  # nothing is asked there
    assert m.accuracy(logits, rows.targets) == 1
    logits[2, -1, 4] = torch.nan
    with pytest.raises(ValueError, match="logits: expected numbers .* got NaN"):
        m.accuracy(logits, rows.targets)


def matcher(inputs: torch.Tensor, *, later: int = 1) -> torch.Tensor:
    """Weights [n,T,T] spread over the places ``later`` after each earlier place of the token."""
    n, T = inputs.shape
    weights = torch.zeros(n, T, T, dtype=torch.float64)
    for row, tokens in enumerate(inputs.tolist()):
        for t in range(T):
            places = [i + later for i in range(t) if tokens[i] == tokens[t]]
            for i in places:
                weights[row, t, i] += 1 / len(places)
            if not places:
                weights[row, t, t] = 1
    return weights


def test_scores_of_heads_that_do_one_thing(m):
    inputs = m.make_repeats(5, seed=4, **SIZES).inputs
    T = inputs.shape[1]
    eye = torch.eye(T).double().expand(5, -1, -1)
    before = torch.zeros(T, T).double()
    before[0, 0] = 1
    before[range(1, T), range(T - 1)] = 1
    uniform = torch.ones(T, T).double().tril() / torch.arange(1, T + 1)[:, None]
    heads = [
        eye,
        before.expand_as(eye),
        matcher(inputs),
        matcher(inputs, later=0),
        uniform.expand_as(eye),
    ]
    weights = torch.stack(heads, 1)
    previous, matches = m.previous_token_score(weights), m.induction_score(weights, inputs)
    assert previous.shape == matches.shape == (5,)
    assert previous[:2].tolist() == [0, 1] and matches[:2].tolist() == [0, 0]
    assert matches[2] == pytest.approx(1) and matches[3] == 0
    by_hand = []
    for tokens in inputs.tolist():
        for t in range(T):
            places = [i + 1 for i in range(t) if tokens[i] == tokens[t]]
            if places:
                by_hand.append(len(places) / (t + 1))
    assert matches[4] == pytest.approx(sum(by_hand) / len(by_hand))
    assert previous[4] == pytest.approx(sum(1 / (t + 1) for t in range(1, T)) / (T - 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shortest": 1}, "shortest: expected a whole number of at least 2, got 1"),
        ({"longest": 2}, "longest: expected shortest = 3 ≤ longest ≤ vocab_size = 13 .* got 2"),
        ({"longest": 14}, "longest: .* got 14"),
        ({"seq_len": 9}, "seq_len: expected more than longest = 9 positions, got 9"),
        ({"vocab_size": 0}, "vocab_size: expected"),
    ],
)
def test_sizes_that_do_not_fit_are_named(m, change, words):
    for function in (
        lambda **o: m.make_repeats(2, seed=0, **o),
        lambda **o: m.repeat_batches(2, **o),
    ):
        with pytest.raises(ValueError, match=words):
            function(**(SIZES | change))


def test_a_seed_that_is_none_is_named(m):
    with pytest.raises(ValueError, match="seed: expected a whole number of at least 0, got 'x'"):
        m.make_repeats(2, seed="x", **SIZES)


def test_shapes_that_do_not_fit_are_named(m):
    weights, inputs = torch.zeros(2, 3, 5, 5), torch.zeros(2, 5, dtype=torch.int64)
    for act, words in (
        (lambda: m.previous_token_score(weights[0]), "weights: expected 4 axes"),
        (lambda: m.induction_score(weights[0], inputs), "weights: expected 4 axes"),
        (lambda: m.induction_score(weights, inputs[0]), "inputs: expected 2 axes"),
        (lambda: m.induction_score(weights, inputs[:1]), "weights and inputs: .* axis B"),
        (lambda: m.induction_score(weights, inputs[:, :4]), "weights and inputs: .* axis T"),
        (lambda: m.solve(inputs[0]), "inputs: expected 2 axes"),
        (lambda: m.accuracy(weights[0], inputs), "logits and targets: .* axis n"),
        (lambda: m.accuracy(weights[0, :2, :4], inputs), "logits and targets: .* axis T"),
        (lambda: m.accuracy(weights, inputs), "logits: expected 3 axes"),
        (lambda: m.accuracy(weights[0], inputs[0]), "targets: expected 2 axes"),
    ):
        with pytest.raises(ValueError, match=words):
            act()


def test_with_one_period_for_all_a_single_layer_suffices(m):
    """So a random period is what asks for two steps: the control of the task itself."""
    options = {"seq_len": 16, "vocab_size": 12}
    reached = {}
    for name, periods in (("one", (6, 6)), ("random", (4, 8))):
        sizes = options | dict(zip(("shortest", "longest"), periods, strict=True))
        config = dict(vocab_size=12, E=32, H=2, hidden=0, max_length=16, positions="learned")
        model = Transformer(TransformerConfig(**config), seed=1)
        train(model, m.repeat_batches(32, **sizes), steps=150, lr=5e-3, seed=1, progress=False)
        rows = m.make_repeats(64, seed=9, **sizes)
        with torch.no_grad():
            reached[name] = m.accuracy(model(rows.inputs), rows.targets)
    assert reached["one"] > 0.95 and reached["random"] < 0.6
