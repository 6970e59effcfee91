"""Pictures of notebook 03: what is drawn is computed, and every word can be read."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib.patches import Circle, Wedge

from course import plots
from course.plots import Picture
from tests import ink
from tests.pictures import *  # noqa: F403

SCORES = [0.5, 2, 1, 0, 0.5, 1.5]
WORDS = ("the", "cat", "lay", "on", "the", "mat")
PAIRS = [(0, 0), (3, 1), (7, 5)]

DRAW = {
    "sharpening": lambda: plots.sharpening(SCORES),
    "two factors": lambda: plots.sharpening([1, -2.25], ("a", "$b$"), factors=(1, 3)),
    "penalty": lambda: plots.penalised_row(SCORES, slope=0.5),
    "penalty of on": lambda: plots.penalised_row(SCORES, slope=0.25, word=3),
    "no penalty": lambda: plots.penalised_row([1, 2], ("a", "b"), slope=0, word=0),
    "clocks": lambda: plots.clocks([1, 0.1, 0.01, 0.001]),
    "one clock": lambda: plots.clocks([math.pi / 2], ("a", "b", "c")),
    "turning": lambda: plots.turning([1, 0.1], [0.6, -0.5], PAIRS, speed=0.45),
    "one panel": lambda: plots.turning([0, 2], [1, 0], [(2, 1)], speed=math.pi / 2),
}


def softmax(row) -> list[float]:
    powers = [math.exp(x) for x in row]
    return [x / sum(powers) for x in powers]


def has_run(picture: Picture, numbers: list[str]) -> bool:
    said = ink.words(picture)
    return any(said[i : i + len(numbers)] == numbers for i in range(len(said)))


def test_each_row_is_the_softmax_of_its_multiple(pictures) -> None:
    counts = []
    for factor in (0, 0.5, 1, 2, 10):
        w = softmax([factor * x for x in SCORES])
        assert has_run(pictures["sharpening"], [f"{x:.2f}" for x in w])
        counts.append(math.exp(-sum(x * math.log(x) for x in w)))
    told = [f"{count:.1f} equal words" for count in counts]
    assert [text for text in ink.words(pictures["sharpening"]) if "equal" in text] == told
    assert pictures["sharpening"].finding.endswith(
        "by factor: 6.0 at 0, 5.7 at 0.5, 4.8 at 1, 3.0 at 2, 1.0 at 10."
    )


def test_a_penalty_is_the_slope_times_the_distance(pictures) -> None:
    picture = pictures["penalty"]
    assert has_run(picture, ["−2.5", "−2", "−1.5", "−1", "−0.5", "0"])
    total = [x - 0.5 * (5 - i) for i, x in enumerate(SCORES)]
    before, after = softmax(SCORES), softmax(total)
    assert has_run(picture, ["−2", "0", "−0.5", "−1", "0", "1.5"])
    for w in (before, after):
        assert has_run(picture, [f"{x:.2f}" for x in w])
    assert picture.finding == (
        f"“mat” looks, slope 0.5: the weight of “the”, 5 back, {before[0]:.2f} before and "
        f"{after[0]:.2f} after; its own {before[5]:.2f} and {after[5]:.2f}."
    )


def test_what_comes_after_the_word_that_looks_is_hidden(pictures) -> None:
    after = softmax([x - 0.25 * (3 - i) for i, x in enumerate(SCORES[:4])])
    said = ink.words(pictures["penalty of on"])
    assert has_run(pictures["penalty of on"], [f"{x:.2f}" for x in after])
    assert said.count("−0.25") == 2  # the penalty of “lay”, and the sum 0.5 − 0.75 of “the”
    assert "“on” looks" in pictures["penalty of on"].finding and said.count("1.5") == 1  # 2 − 0.5
    assert "“a” looks, slope 0" in pictures["no penalty"].finding


def tips(picture: Picture) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Start and end of every arrow, panel by panel."""
    return [
        (tuple(text.xyann), tuple(text.xy))
        for axes in picture.figure.axes
        for text in axes.texts
        if hasattr(text, "arrow_patch") and text.arrow_patch is not None
    ]


def test_a_hand_stands_at_the_sine_and_cosine_of_its_angle(pictures) -> None:
    hands = tips(pictures["clocks"])
    assert len(hands) == 24
    assert len(ink.patches(pictures["clocks"], Circle)) == 24
    for place, (start, end) in enumerate(hands):
        angle = (1, 0.1, 0.01, 0.001)[place // 6] * (place % 6)
        hand = np.subtract(end, start) / np.hypot(*np.subtract(end, start))
        np.testing.assert_allclose(hand, [math.sin(angle), math.cos(angle)], atol=1e-12)
    assert pictures["one clock"].finding == "From position 0 to 2 the hands make 0.500 turns."
    assert "1.57 rad a position,\na turn in 4 positions" in ink.words(pictures["one clock"])


def test_arrows_are_turned_by_their_positions_and_scores_are_their_products(pictures) -> None:
    ends = [complex(*end) for _, end in tips(pictures["turning"])]
    for panel, (t, i) in enumerate(PAIRS):
        q, turned_q, k, turned_k = ends[4 * panel : 4 * panel + 4]
        assert (q, k) == (1 + 0.1j, 0.6 - 0.5j)
        assert turned_q == pytest.approx(q * np.exp(0.45j * t))
        assert turned_k == pytest.approx(k * np.exp(0.45j * i))
        score = (turned_q * turned_k.conjugate()).real
        told = f"{score:.2f}".replace("-", "−")
        assert f"positions {t} and {i}, distance {t - i}: {told}" in pictures["turning"].finding
    sectors = [p for p in ink.patches(pictures["turning"], Wedge)]
    for sector, (t, i) in zip(sectors, PAIRS, strict=True):
        q, k = (1 + 0.1j) * np.exp(0.45j * t), (0.6 - 0.5j) * np.exp(0.45j * i)
        between = abs(np.degrees(np.angle(q / k)))
        assert (sector.theta2 - sector.theta1) % 360 == pytest.approx(between)
    below = [text for text in ink.words(pictures["one panel"]) if "angle" in text]
    assert below == ["turned by 180° and 90°\nangle between them: 180°\nq·k = −2.00"]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.sharpening([1, 2]), "scores: expected one for each of 6 words, got 2"),
        (lambda: plots.sharpening(SCORES, factors=()), "factors: expected at least one, got none"),
        (lambda: plots.penalised_row(SCORES, slope=1, word=6), "word: expected a number from 0"),
        (lambda: plots.penalised_row(SCORES, slope=-1), "slope: expected a number from 0 on"),
        (lambda: plots.penalised_row([1], slope=1), "scores: expected one for each of 6 words"),
        (lambda: plots.clocks([]), "speeds, words: expected at least one of each, got 0 and 6"),
        (lambda: plots.clocks([1], ()), "speeds, words: expected at least one of each"),
        (lambda: plots.turning([1], [1, 0], PAIRS, speed=1), "query: expected two numbers, not"),
        (lambda: plots.turning([1, 1], [0, 0], PAIRS, speed=1), "key: expected two numbers, not"),
        (lambda: plots.turning([1, 1], [1, 0], [], speed=1), "pairs: expected at least one entry"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_its_reason(draw, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw()
