"""Pictures of notebook 04: what they say is what they draw, and every word of them can be read."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.patches import Circle

from course import plots
from tests import ink
from tests.pictures import *  # noqa: F403

TOKEN = [1, 0, -1, 2]
KEYS = [[1, 0, 0, 1], [0, 1, 1, 0], [0, 0, -2, 1], [-1, 1, 0, 0]]
BIAS = [-2, -1, -1, 0]
VALUES = [[1, 0, 0, 0], [0, 2, 0, 1], [0, 1, -1, 0], [3, 0, 1, 0]]
VECTORS = {"x": [2.0, 0, 1], "other": [0.0, 1, 3], "3x + 7": [13.0, 7, 10]}


DRAW = {
    "circle": lambda: plots.norm_on_a_circle(VECTORS),
    "one far out": lambda: plots.norm_on_a_circle({"far": [-100.0, 3, 0]}),
    "store": lambda: plots.feed_forward_store(TOKEN, KEYS, BIAS, VALUES),
    "silent store": lambda: plots.feed_forward_store([1, 0], [[1, 0]], [-5], [[1, 2, 3]]),
    "pre and post": plots.pre_and_post,
}


def test_vectors_end_where_a_norm_puts_them(pictures) -> None:
    picture = pictures["circle"]
    (circle,) = ink.patches(picture, Circle)
    assert circle.radius == pytest.approx(3**0.5)
    plane = np.array([[1, -1, 0], [1, 1, -2]]) / np.sqrt([[2], [6]])
    arrows = [a for a in picture.figure.axes[0].texts if hasattr(a, "xyann")]
    assert len(arrows) == len(VECTORS)
    for arrow, vector in zip(arrows, VECTORS.values(), strict=True):
        centred = np.array(vector) - np.mean(vector)
        normed = centred / np.std(vector)
        assert np.allclose(arrow.xyann, plane @ centred)
        assert np.allclose(arrow.xy, plane @ normed)
    assert picture.finding.startswith("On the circle x and 3x + 7 end at (1.73, 0")


def test_the_store_adds_up_what_matches(pictures) -> None:
    match = np.maximum(np.array(KEYS) @ TOKEN + BIAS, 0)
    total = match @ np.array(VALUES)
    assert match.tolist() == [1, 0, 3, 0] and total.tolist() == [1, 3, -3, 0]
    assert pictures["store"].finding == (
        "Of 4 units 2 answer: unit 1 with 1 and unit 3 with 3; the sum of their values is "
        "(1, 3, −3, 0)."
    )
    assert pictures["silent store"].finding == (
        "Of 1 units 0 answer; the sum of their values is (0, 0, 0)."
    )
    said = ink.words(pictures["store"])
    numbers = [str(int(n)).replace("-", "−") for n in match]
    assert any(said[i : i + 4] == numbers for i in range(len(said)))


def test_norms_stand_beside_the_stream_or_on_it(pictures) -> None:
    assert ink.words(pictures["pre and post"]).count("norm") == 5
    assert pictures["pre and post"].finding.startswith(
        "Pre-norm has 0 norms on the way of the stream itself, post-norm 2:"
    )


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.norm_on_a_circle({"x": [1.0, 1, 1]}), "x: expected three numbers"),
        (lambda: plots.norm_on_a_circle({"x": [1.0, 2]}), "x: expected three numbers"),
        (lambda: plots.feed_forward_store([1, 2], KEYS, BIAS, VALUES), "keys, bias, values"),
        (lambda: plots.feed_forward_store(TOKEN, KEYS, BIAS[:3], VALUES), "keys, bias, values"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw()
