"""Pictures of notebook 06: what they say is what they draw, and every word can be read."""

from __future__ import annotations

import numpy as np
import pytest

from course import plots
from tests.pictures import *  # noqa: F403

X = np.array([0.1, 1.0, -2.0, 10.0])

DRAW = {
    "brackets": plots.brackets,
    "long brackets": lambda: plots.brackets(T=24, C=5, Dv=2),
    "brackets of one": lambda: plots.brackets(T=3, C=2, Dv=2),
}


def words(picture: plots.Picture) -> list[str]:
    axes = picture.figure.axes[0]
    return [text.get_text() for text in (*axes.texts, *axes.artists) if hasattr(text, "get_text")]


def test_the_two_ways_count_what_stands_in_the_middle(pictures) -> None:
    said = words(pictures["brackets"])
    assert "256 numbers" in said and "12 numbers" in said
    assert pictures["brackets"].finding == (
        "16 tokens, 3 features, values of width 4: with the brackets on the left a table of 256 "
        "numbers stands in the middle, on the right a register of 12. Both end in the same 16 × 4 "
        "output."
    )
    assert "576 numbers" in words(pictures["long brackets"])
    assert "makes a register [5, 2]" in pictures["long brackets"].alt


def test_each_row_multiplies_three_matrices_and_then_two(pictures) -> None:
    said = words(pictures["brackets"])
    assert said.count("×") == 2 * 2 + 2 and said.count("=") == 2 * 2
    assert said.count("first") == 2 and said.count("[T, T]") == 1
    assert said.count("[T, C]") == 3 and said.count("[C, Dv]") == 1


@pytest.mark.parametrize("logx", [False, True])
def test_a_cloud_leaves_out_what_a_logarithm_cannot_show(logx: bool) -> None:
    picture = plots.clouds(
        {"a": (X, X + 1), "b": (X, X)},
        ("law", [1, 2], [1, 2]),
        xlabel="x",
        ylabel="y",
        finding="f",
        logx=logx,
    )
    drawn = [axes.lines[0].get_xdata().tolist() for axes in picture.figure.axes]
    assert drawn == [[0.1, 1.0, 10.0], [0.1, 1.0, 10.0]]
    assert {axes.get_xscale() for axes in picture.figure.axes} == {"log" if logx else "linear"}


def test_a_horizontal_logarithm_leaves_out_points_that_the_vertical_one_keeps() -> None:
    options = {"xlabel": "x", "ylabel": "y", "finding": "f"}
    cloud, law = {"a": (X, X + 5)}, ("law", [1, 2], [1, 2])
    linear = plots.clouds(cloud, law, **options).figure.axes[0].lines[0]
    both = plots.clouds(cloud, law, logx=True, **options).figure.axes[0].lines[0]
    assert linear.get_xdata().tolist() == X.tolist()
    assert both.get_xdata().tolist() == [0.1, 1.0, 10.0]


@pytest.mark.parametrize("sizes", [{"T": 0}, {"C": 0}, {"Dv": -1}])
def test_brackets_without_a_size_are_refused(sizes) -> None:
    with pytest.raises(ValueError, match="expected a whole number from 1 on"):
        plots.brackets(**sizes)
