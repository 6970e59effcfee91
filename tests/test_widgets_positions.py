"""The explorer of positions: scores by their formula, who is blind to a shift, what is new."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.positions import sinusoids
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
    D,
    T,
)
from tests.exploring import any_values, compute_of

ANY, compute = any_values(PositionExplorer), compute_of(PositionExplorer)


def expected_score(scheme: str, head: int, maps: str, stretch: float, t: int, i: int) -> float:
    """One score, from the formulas of the papers, in numpy."""
    word = fixed_normal(f"the word of head {head}", D).numpy()
    table = fixed_normal("a position table", T + 1, D).numpy()
    frequency = 10_000.0 ** (-np.arange(0, D, 2) / D)

    def stream(place: float) -> np.ndarray:
        if scheme == SINUSOIDAL:
            wave = np.empty(D)
            wave[0::2], wave[1::2] = np.sin(place * frequency), np.cos(place * frequency)
            return word + wave
        if scheme == LEARNED:
            return word + np.array(
                [np.interp(place, np.arange(T + 1), table[:, column]) for column in range(D)]
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


@given(ANY, st.integers(0, T - 1), st.integers(0, T - 1))
@settings(max_examples=60)
def test_scores_and_curves_by_the_formulas(values, t: int, i: int) -> None:
    arrays = compute(**values)
    where = {name: values[name] for name in ("scheme", "head", "maps", "stretch")}
    assert arrays["scores"][t, i] == pytest.approx(expected_score(**where, t=t, i=i), abs=1e-6)
    place = values["place"]
    distance = min(i, place)
    assert arrays["far"][distance] == arrays["scores"][place, place - distance]
    assert len(arrays["far"]) == place + 1 and len(arrays["near"]) == REFERENCE + 1
    row = arrays["scores"][place, : place + 1]
    raw = np.exp(row - row.max())
    assert np.allclose(arrays["weights"][place, : place + 1], raw / raw.sum(), atol=1e-12)
    assert (arrays["weights"][place, place + 1 :] == 0).all()


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
    assert compute(stretch=2.5)["beyond"] == 0 and compute(place=63)["beyond"] == 0
    assert compute(place=64)["beyond"] == 1
    tall, short = compute(stretch=2.0)["scores"], compute()["scores"]
    assert np.allclose(tall[::2, ::2], short[:64, :64], atol=1e-9)


def test_the_sentence_says_whether_distance_alone_decides() -> None:
    explorer = PositionExplorer()
    assert "its scores are the same at the same distances" in explorer.status
    assert "64 of 128 distances lie beyond training" in explorer.status
    explorer.set_values(scheme=LEARNED)
    far, near = explorer.arrays["far"][:32], explorer.arrays["near"]
    assert f"change by up to {np.abs(far - near).max():.2f}" in explorer.status
    explorer.set_values(scheme=ALIBI, place=0)
    assert "0 of 1 distances" in explorer.status and "as 1.0 equal" in explorer.status
