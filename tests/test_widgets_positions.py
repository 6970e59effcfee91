"""The explorer of positions: scores by their formula, who is blind to a shift, what is new."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.positions import sinusoids
from course.pretrained import load
from course.widgets import PositionExplorer
from course.widgets.attention import fixed_normal
from course.widgets.positions import (
    ALIBI,
    LEARNED,
    MIXED,
    PLAIN,
    REFERENCE,
    ROPE,
    SCHEMES,
    SINUSOIDAL,
    STORED,
    D,
    T,
)
from tests.exploring import any_values, compute_of

ANY, compute = any_values(PositionExplorer), compute_of(PositionExplorer)


def expected_score(scheme: str, head: int, maps: str, stretch: float, t: int, i: int) -> float:
    """One score, from the formulas of the papers, in numpy."""
    if scheme == STORED:
        return stored_score(head, t, i)
    word = fixed_normal(f"the word of head {head}", D).numpy()
    table = fixed_normal("a position table", T + 1, D).numpy()
    frequency = 10_000.0 ** (-np.arange(0, D, 2) / D)

    def stream(position: float) -> np.ndarray:
        if scheme == SINUSOIDAL:
            wave = np.empty(D)
            wave[0::2], wave[1::2] = np.sin(position * frequency), np.cos(position * frequency)
            return word + wave
        if scheme == LEARNED:
            return word + np.array(
                [np.interp(position, np.arange(T + 1), table[:, column]) for column in range(D)]
            )
        return word

    W_q, W_k = (
        np.eye(D) if maps == PLAIN else fixed_normal(f"{n} of head {head}", D, D).numpy() / D**0.5
        for n in ("W_q", "W_k")
    )
    q, k = W_q @ stream(t / stretch), W_k @ stream(i / stretch)
    if scheme == ROPE:
        a, b = q[0::2] + 1j * q[1::2], k[0::2] + 1j * k[1::2]
        turn = np.exp(1j * (t - i) / stretch * frequency)
        return float((a * turn * b.conj()).real.sum() / D**0.5)
    penalty = 4.0**-head * abs(t - i) / stretch if scheme == ALIBI else 0.0
    return float(q @ k / D**0.5 - penalty)


def stored_score(head: int, t: int, i: int) -> float:
    """One score of the stored model's first block on " the" everywhere, from its weights."""
    model, tokenizer, _ = load("shakespeare")
    weights = {name: w.double().numpy() for name, w in model.state_dict().items()}
    (token,) = tokenizer.encode(" the").ids
    block, rows = "blocks.0.", slice(D * (head - 1), D * head)
    made = []
    for name, position in (("W_q", t), ("W_k", i)):
        x = weights["tokens.weight"][token] + weights["positions.weight"][position]
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        x = x * weights[block + "mixer_norm.weight"] + weights[block + "mixer_norm.bias"]
        layer = f"{block}mixer.attention.{name}."
        made.append((weights[layer + "weight"] @ x + weights[layer + "bias"])[rows])
    return float(made[0] @ made[1] / D**0.5)


@given(ANY, st.integers(0, T - 1), st.integers(0, T - 1))
@settings(max_examples=60)
def test_scores_and_curves_by_the_formulas(values, t: int, i: int) -> None:
    arrays = compute(**values)
    where = {name: values[name] for name in ("scheme", "head", "maps", "stretch")}
    assert arrays["scores"][t, i] == pytest.approx(expected_score(**where, t=t, i=i), abs=1e-6)
    position = values["position"]
    distance = min(i, position)
    assert arrays["far"][distance] == arrays["scores"][position, position - distance]
    assert len(arrays["far"]) == position + 1 and len(arrays["near"]) == REFERENCE + 1
    row = arrays["scores"][position, : position + 1]
    raw = np.exp(row - row.max())
    assert np.allclose(arrays["weights"][position, : position + 1], raw / raw.sum(), atol=1e-12)
    assert (arrays["weights"][position, position + 1 :] == 0).all()


@pytest.mark.parametrize("maps", [PLAIN, MIXED])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_who_is_blind_to_a_shift(scheme: str, maps: str) -> None:
    scores = compute(scheme=scheme, maps=maps)["scores"]
    moved = np.abs(scores[:-40, :-40] - scores[40:, 40:]).max()
    assert (moved < 1e-9) == (scheme in (ROPE, ALIBI))
    if scheme == SINUSOIDAL and maps == PLAIN:  # the product of two rows alone is blind
        rows = sinusoids(T, D).double().numpy()
        assert np.abs(rows[:-40] @ rows[:-40].T - rows[40:] @ rows[40:].T).max() < 1e-5


def test_what_lies_beyond_training_and_what_the_division_brings_back() -> None:
    assert [compute(stretch=s)["beyond"] for s in (1.0, 1.5, 2.0)] == [64, 33, 1]
    assert compute(stretch=2.5)["beyond"] == 0 and compute(position=63)["beyond"] == 0
    assert compute(position=64)["beyond"] == 1
    tall, short = compute(stretch=2.0)["scores"], compute()["scores"]
    assert np.allclose(tall[::2, ::2], short[:64, :64], atol=1e-9)


def test_the_sentence_says_whether_distance_alone_decides() -> None:
    explorer = PositionExplorer()
    assert "its scores are the same at the same distances" in explorer.status
    assert "64 of 128 scores need distances beyond training" in explorer.status
    explorer.set_values(scheme=LEARNED)
    far, near = explorer.arrays["far"][:32], explorer.arrays["near"]
    assert f"change by up to {np.abs(far - near).max():.2f}" in explorer.status
    explorer.set_values(scheme=ALIBI, position=0)
    assert "0 of 1 scores" in explorer.status and "as 1.0 equal" in explorer.status
    explorer.set_values(scheme=STORED, head=3, position=127)
    assert "the largest 1.00, 1 back" in explorer.status


def test_a_table_is_new_where_the_query_stands_a_distance_where_the_key_does() -> None:
    for scheme in (LEARNED, SINUSOIDAL):
        assert compute(scheme=scheme, position=63)["beyond"] == 0
        assert compute(scheme=scheme, position=64)["beyond"] == 65
        assert compute(scheme=scheme, position=64, stretch=1.5)["beyond"] == 0
    assert compute(scheme=STORED)["beyond"] == 0


def test_yellow_and_dashed_mark_what_is_new_and_nothing_else() -> None:
    explorer = PositionExplorer()
    band, line = explorer._bands[0], explorer._trained

    def marked() -> tuple[float, list[float], list[float]]:
        return band.get_x(), list(line.get_xdata()), list(line.get_ydata())

    assert marked() == (64, [-0.5, T - 63.5], [63, T])  # a diagonal: distance 63.5
    explorer.set_values(scheme=LEARNED)
    assert marked()[0] == 0 and marked()[1][3] == marked()[2][0] == 63.5
    explorer.set_values(position=40)
    assert marked()[0] == T
    explorer.set_values(scheme=STORED, position=127)
    assert marked() == (T, [], [])


@pytest.mark.parametrize("head", [1, 2, 3, 4])
def test_the_axes_hold_what_the_stored_model_says(head: int) -> None:
    explorer = PositionExplorer(scheme=STORED, head=head)
    for line in (*explorer._lines, *explorer._dots):
        low, high = line.axes.get_ylim()
        assert low <= line.get_ydata().min() and line.get_ydata().max() <= high
    explorer.set_values(scheme=ROPE)
    assert explorer._lines[1].axes.get_ylim() == (0, 0.5)
