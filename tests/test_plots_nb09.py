"""Pictures of notebook 09: the numbers drawn are those of the state, and every word can be read."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.patches import FancyBboxPatch

from course import plots
from course.plots import Picture
from tests import ink
from tests.pictures import *  # noqa: F403

NAMES = ("anna", "bruno", "emma")
KEYS = np.array([[1, 0], [0, 1], [0.6, 0.8]])
VALUES = np.array([[4, 1, 3], [2, 7, 0], [5, 0, 9.0]])
STATE = np.array([[4, 1, 8], [2, 7, 5.0]])
LEAKS = np.array([[1, 0.5, -0.25], [0, 1, 0], [0.75, 0, 0.5]])
WRITES = ("anna", "bruno", "anna,\nnew", "$c$")
LEFT = {"add": np.eye(4)[:2], "fade": 0.5 * np.eye(4)[[0, 2]], "correct": np.zeros((2, 4))}

DRAW = {
    "write and read": lambda: plots.write_and_read(KEYS, VALUES, NAMES),
    "ask for another": lambda: plots.write_and_read(KEYS[:, ::-1], VALUES[:, :2], NAMES, ask=2),
    "two pairs": lambda: plots.write_and_read(KEYS[1:], VALUES[1:, :1], ("b", "$c$")),
    "correction": lambda: plots.correction(STATE, [0.6, 0.8], [1, 2, 3], "emma"),
    "half a correction": lambda: plots.correction(STATE[:, :1], [1, 0], [6], "anna", beta=0.5),
    "leaks": lambda: plots.leaks({"one": np.eye(3), "other": LEAKS}, NAMES),
    "leaks of 9": lambda: plots.leaks(dict.fromkeys("abcd", np.eye(9)), "abcdefghi"),
    "what is left": lambda: plots.what_is_left(LEFT, WRITES, ("anna", "bruno")),
    "sheets": lambda: plots.sheets({"pairs": 800, "a state of\ntwo lines": 3200, "much": 80_000}),
}


def printed(array: object) -> list[str]:
    return [f"{x:.2f}".rstrip("0").rstrip(".").replace("-", "−") for x in np.ravel(array)]


def has_run(picture: Picture, numbers: list[str]) -> bool:
    said = ink.words(picture)
    return any(said[i : i + len(numbers)] == numbers for i in range(len(said)))


@pytest.mark.parametrize(
    ("name", "keys", "values", "ask"),
    [("write and read", KEYS, VALUES, 0), ("ask for another", KEYS[:, ::-1], VALUES[:, :2], 2)],
)
def test_the_state_and_the_reading_are_sums_over_pairs(pictures, name, keys, values, ask) -> None:
    state = sum(np.outer(k, v) for k, v in zip(keys, values, strict=True))
    for array in (keys, values, state, keys[ask], keys[ask] @ state):
        assert has_run(pictures[name], printed(array))
    reading = f"Read: ({', '.join(printed(keys[ask] @ state))})"
    assert pictures[name].finding.startswith(f"Stored for {NAMES[ask]}:")
    assert reading in pictures[name].finding


def test_the_finding_names_what_leaks(pictures) -> None:
    assert pictures["write and read"].finding == (
        "Stored for anna: (4, 1, 3). Read: (7, 1, 8.4), which is 1 of it plus 0 of bruno’s, "
        "0.6 of emma’s."
    )


def test_a_correction_writes_the_difference_to_what_was_read(pictures) -> None:
    old = np.array([0.6, 0.8]) @ STATE
    new = STATE + np.outer([0.6, 0.8], [1, 2, 3] - old)
    for array in (STATE, old, [1 - old[0], 2 - old[1], 3 - old[2]], new):
        assert has_run(pictures["correction"], printed(array))
    assert pictures["correction"].finding.endswith("after the write it reads (1, 2, 3).")
    half = pictures["half a correction"]
    assert half.finding.endswith("is (6); after the write it reads (5).")
    assert "3. write 0.5 of it" in " ".join(ink.words(half))


def test_the_error_of_a_leak_matrix_is_the_length_of_its_rows_less_the_identity(pictures) -> None:
    assert pictures["leaks"].finding == (
        "3 names. one: error ≈ 0.00, no leak; other: error ≈ 0.61, largest leak ≈ 0.75, of anna’s "
        "value in emma’s reading."
    )  # √((0.5² + 0.25² + 0.75² + 0.5²) / 3)
    titles = [axes.get_title("left") for axes in pictures["leaks"].figure.axes]
    assert titles == ["one\nerror 0.00", "other\nerror 0.61"]
    for axes, L in zip(pictures["leaks"].figure.axes, (np.eye(3), LEAKS), strict=True):
        (image,) = axes.images
        np.testing.assert_array_equal(image.get_array(), L)
        assert image.norm.vmin == -1 and image.norm.vmax == 1  # one scale for both


def test_numbers_of_a_leak_matrix_can_be_read_on_their_colours() -> None:
    pale, dark = np.full((2, 2), 0.1), np.eye(2)
    axes = plots.leaks({"pale": pale, "dark": dark}, "ab").figure.axes
    assert {text.get_color() for text in axes[0].texts} == {"#16191d"}
    assert {text.get_color() for text in axes[1].texts} == {"white", "#16191d"}


def test_many_names_have_no_numbers_and_stand_in_rows_of_three(pictures) -> None:
    axes = pictures["leaks of 9"].figure.axes
    assert [len(one.texts) for one in axes] == [0] * 6
    assert [one.axison for one in axes] == [True] * 4 + [False] * 2


def test_what_is_left_of_each_write(pictures) -> None:
    for rows in LEFT.values():
        assert has_run(pictures["what is left"], printed(rows))
    assert pictures["what is left"].finding == (
        "Weights of anna, bruno, anna, new, $c$ in what anna reads: add: 1, 0, 0, 0; "
        "fade: 0.5, 0, 0, 0; correct: 0, 0, 0, 0."
    )


def test_areas_are_as_the_bytes_they_stand_for(pictures) -> None:
    picture = pictures["sheets"]
    areas = [box.get_width() * box.get_height() for box in ink.patches(picture, FancyBboxPatch)]
    np.testing.assert_allclose(np.divide(areas, areas[0]), [1, 4, 100], rtol=1e-6)
    assert picture.finding == (
        "What must be kept: pairs 0.8 KB, a state of two lines 3.2 KB, much 80.0 KB."
    )
    assert "\n" not in picture.alt


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.write_and_read(KEYS, VALUES, "ab"), "keys: expected one for each of 3 val"),
        (lambda: plots.write_and_read(KEYS, VALUES[:2], NAMES), "keys: expected one for each of 2"),
        (lambda: plots.write_and_read(KEYS, VALUES, NAMES, ask=3), "ask: expected a pair’s number"),
        (lambda: plots.write_and_read(KEYS[0], VALUES, NAMES), "keys: expected 2 axes, got shape"),
        (lambda: plots.correction(STATE, [1, 0], [1, 2], "a"), r"state: expected shape \[2, 2\]"),
        (lambda: plots.leaks({}, NAMES), "matrices: expected at least one entry, got none"),
        (lambda: plots.leaks({"one": np.eye(2)}, NAMES), r"one: expected shape \[3, 3\], got"),
        (lambda: plots.what_is_left({}, WRITES, NAMES), "weights: expected at least one entry"),
        (lambda: plots.what_is_left(LEFT, WRITES, NAMES), r"add: expected shape \[3, 4\], got"),
        (lambda: plots.sheets({}), "bytes_needed: expected at least one entry, got none"),
        (lambda: plots.sheets({"a": 1, "b": 0}), "amount, per: expected numbers above 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_its_reason(draw, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw()
