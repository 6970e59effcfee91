"""Pictures of notebook 08: what they say is what they draw, and every word can be read."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import FancyBboxPatch

from course import plots
from course.cost import Machine
from course.plots import Picture
from course.plots.sheet import ROLES
from tests import ink
from tests.pictures import *  # noqa: F403

SCORES = [1, 2, 0.5, 1.5, 3, 0, 1, 2, 2.5, 2, 1, 0]
LANES = {
    "one": [("", 3, "plain"), ("softmax", 20, "stream")],
    "two": [("", 3, "plain"), ("exp", 9, "key"), ("waits", 8, "hidden")],
}
MACHINES = [Machine("slow", 1e13, 1e11), Machine("fast", 1e14, 1e12)]

SAID = "Two lanes, to scale from time 0: what runs when, and what waits."

DRAW = {
    "memories": plots.memory_levels,
    "small memories": lambda: plots.memory_levels("1 GB", "4 MB", "64 KB", "8 KB"),
    "row": lambda: plots.row_in_tiles(SCORES),
    "row of one tile": lambda: plots.row_in_tiles([-3.0, 0, -1], 3),
    "time": lambda: plots.in_time(LANES, unit="products", ticks=[0, 10, 20], finding=SAID),
}


def words(picture: Picture) -> list[str]:
    return [text.get_text() for text in picture.figure.axes[0].texts] + [
        artist.get_text()
        for artist in picture.figure.axes[0].artists
        if hasattr(artist, "get_text")
    ]


def test_a_row_in_tiles_ends_with_the_softmax_of_the_whole_row(pictures) -> None:
    array = np.array(SCORES)
    total = np.exp(array - array.max()).sum()
    assert pictures["row"].finding == (
        "12 scores in tiles of 4: in 1 of 2 later tiles the maximum grows and the old sum is "
        f"rescaled; at the end m = 3.0 and ℓ = {total:.2f}."
    )
    first, second = np.exp(array[:4] - 2).sum(), np.exp(array[:8] - 3).sum()
    said = words(pictures["row"])
    assert f"ℓ = {first:.2f}" in said and f"ℓ = {second:.2f}" in said
    assert f"old sum × {np.exp(-1):.2f}" in said and "old sum × 1.00" in said


def test_a_row_of_one_tile_rescales_nothing(pictures) -> None:
    assert "in 0 of 0 later tiles" in pictures["row of one tile"].finding
    assert not any("old sum" in word for word in words(pictures["row of one tile"]))


def test_lanes_are_to_scale(pictures) -> None:
    boxes = ink.patches(pictures["time"], FancyBboxPatch)
    wide = {to_hex(box.get_edgecolor()): box.get_width() for box in boxes}
    assert wide[ROLES["stream"].lower()] / wide[ROLES["key"].lower()] == pytest.approx(20 / 9)
    assert wide[ROLES["hidden"].lower()] / wide[ROLES["key"].lower()] == pytest.approx(8 / 9)
    assert pictures["time"].alt.endswith("two: one 3.0, then exp 9.0, then waits 8.0.")


def test_the_way_of_a_tile_passes_every_memory(pictures) -> None:
    said = words(pictures["memories"])
    for name, size in (
        ("main memory", "80 GB"),
        ("second-level cache", "50 MB"),
        ("shared memory", "228 KB"),
        ("registers", "256 KB"),
    ):
        assert name in said and size in said
        assert size in pictures["memories"].finding
    assert "one of 132 multiprocessors" in said


def test_a_roof_is_what_its_machine_attains() -> None:
    axes = plots.roofline(MACHINES, {"a": 1.0, "b": 1_000.0}, finding="f").figure.axes[0]
    roofs = [line for line in axes.lines if len(line.get_xdata()) > 2]
    assert [max(line.get_ydata()) for line in roofs] == [10.0, 100.0]
    points = [line for line in axes.lines if line.get_marker() == "o"]
    heights = [(line.get_xdata()[0], line.get_ydata()[0]) for line in points]
    assert heights == [(1.0, 0.1), (1_000.0, 10.0), (1.0, 1.0), (1_000.0, 100.0)]


def test_a_program_with_two_ends_has_a_hollow_and_a_full_point() -> None:
    picture = plots.roofline(MACHINES, {"a": 1.0, "b": (10.0, 1_000.0)}, finding="f")
    axes = picture.figure.axes[0]
    hollow = [
        line.get_xdata()[0]
        for line in axes.lines
        if line.get_marker() == "o" and to_rgb(line.get_markerfacecolor()) == (1, 1, 1)
    ]
    assert hollow == [10.0, 10.0]
    said = [text.get_text() for text in axes.texts]
    assert "b,\nno cache" in said and "b,\nperfect cache" in said and "a" in said
    assert "for b two, a hollow and a full one" in picture.alt


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.memory_levels(multiprocessors=0), "multiprocessors: expected"),
        (lambda: plots.row_in_tiles([1, 2, 3], 2), "scores: expected whole tiles of 2, got 3"),
        (lambda: plots.row_in_tiles([]), "scores: expected whole tiles of 4, got 0"),
        (lambda: plots.row_in_tiles([1], 0), "tile: expected"),
        (lambda: plots.in_time({}, unit="s", ticks=[0], finding="f"), "lanes: expected"),
        (
            lambda: plots.in_time({"a": [("", 0, "plain")]}, unit="s", ticks=[0], finding="f"),
            "a: expected durations above 0",
        ),
        (lambda: plots.roofline(MACHINES, {"a": (2.0, 1.0)}, finding="f"), "a: expected one"),
        (lambda: plots.roofline(MACHINES, {"a": 0.0}, finding="f"), "a: expected one"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        draw()
