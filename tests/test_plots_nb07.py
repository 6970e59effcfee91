"""Pictures of notebook 07: the numbers drawn are those of the state, and every word can be read."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from course import plots
from course.plots.sheet import ROLES
from tests import ink
from tests.pictures import *  # noqa: F403

KEYS = np.array([[1, 0], [1, 1], [0, 2.0]])
VALUES = np.array([[2, 1], [4, 1], [8, 1.0]])
SHEET = np.array([[1, 0], [0, 1], [1, 1.0]])
PAST, OTHER_PAST = (np.array(values)[:, None] for values in ([5, 40, 10.0], [7, 42, 8.0]))

DRAW = {
    "cache": plots.cache_and_register,
    "other cache": lambda: plots.cache_and_register("abcd", D=2, Dv=4, moments=(2, 4)),
    "one moment": lambda: plots.cache_and_register(("$a$",), D=1, Dv=1, moments=[1]),
    "sum": lambda: plots.sum_of_products(KEYS, VALUES),
    "sum with z": lambda: plots.sum_of_products(KEYS, VALUES, z=True),
    "two wide products": lambda: plots.sum_of_products(KEYS[:2, [0, 1, 1]], VALUES[1:] / 8 - 0.75),
    "one sheet": lambda: plots.one_sheet(SHEET, PAST, OTHER_PAST),
    "one wide sheet": lambda: plots.one_sheet(SHEET[:, [0, 1, 0]], VALUES, VALUES),
}


def printed(array: object) -> list[str]:
    return [f"{x + 0.0:.2f}".rstrip("0").rstrip(".").replace("-", "−") for x in np.ravel(array)]


def has_run(picture: plots.Picture, numbers: list[str]) -> bool:
    said = ink.words(picture)
    return any(said[i : i + len(numbers)] == numbers for i in range(len(said)))


def sizes(picture: plots.Picture, role: str) -> list[tuple[int, int]]:
    """(height, width) in cells of the tables that a role's edge surrounds."""
    edge = tuple(int(ROLES[role].lstrip("#")[i : i + 2], 16) / 255 for i in (0, 2, 4))
    return [
        (round(box.get_height()), round(box.get_width()))
        for box in ink.patches(picture, Rectangle)
        if np.allclose(box.get_edgecolor()[:3], edge) and box.get_facecolor()[3] == 0
    ]


def test_the_cache_grows_and_the_register_does_not(pictures) -> None:
    assert sizes(pictures["cache"], "key") == [(1, 3), (3, 3), (6, 3)]
    assert sizes(pictures["cache"], "value") == [(1, 2), (3, 2), (6, 2)]
    assert sizes(pictures["cache"], "state") == 3 * [(3, 2), (3, 1)]
    assert pictures["cache"].finding == (
        "After 1, 3 and 6 words the cache keeps 5, 15 and 30 numbers, the register 9 each time."
    )
    assert sizes(pictures["other cache"], "state") == 2 * [(2, 4), (2, 1)]
    assert "keeps 12 and 24 numbers, the register 10" in pictures["other cache"].finding
    assert "After 1 words" not in pictures["one moment"].finding


@pytest.mark.parametrize(
    ("name", "keys", "values"),
    [
        ("sum", KEYS, VALUES),
        ("sum with z", KEYS, VALUES),
        ("two wide products", KEYS[:2, [0, 1, 1]], VALUES[1:] / 8 - 0.75),
    ],
)
def test_the_state_is_the_sum_of_the_products_drawn(pictures, name, keys, values) -> None:
    products = [np.outer(k, v) for k, v in zip(keys, values, strict=True)]
    for array in (*keys, *values, *products, sum(products)):
        assert has_run(pictures[name], printed(array))
    assert "; ".join(", ".join(printed(row)) for row in sum(products)) in pictures[name].finding


def test_z_is_the_last_column(pictures) -> None:
    assert pictures["sum with z"].finding == (
        "3 products k vᵀ, added up, leave one table of 2 × 2 numbers: 6, 2; 20, 3, and its last "
        "column is z = 2, 3."
    )
    assert "$z$" in ink.words(pictures["sum with z"])
    assert "$z$" not in ink.words(pictures["sum"])


def test_two_caches_leave_one_sheet(pictures) -> None:
    for array in (SHEET, PAST, OTHER_PAST, [15, 50]):
        assert has_run(pictures["one sheet"], printed(array))
    assert pictures["one sheet"].finding == (
        "Two caches of 3 keys and values, values apart by up to 2, leave one register: 15; 50."
    )


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.cache_and_register("ab", moments=(1, 3)), "moments: expected rising num"),
        (lambda: plots.cache_and_register("ab", moments=(2, 1)), "moments: expected rising num"),
        (lambda: plots.cache_and_register("ab", moments=()), "moments: expected rising numbers"),
        (lambda: plots.cache_and_register("ab", moments=(0, 1)), "moments: expected rising num"),
        (lambda: plots.cache_and_register("ab", D=0, moments=(1, 2)), "D: expected a whole number"),
        (lambda: plots.one_sheet(SHEET, PAST, PAST + 1), "second: expected the state"),
        (lambda: plots.one_sheet(SHEET, PAST, PAST[:2]), "values: expected shape"),
        (lambda: plots.one_sheet(SHEET, PAST[:2], PAST[:2]), "values: expected shape"),
        (lambda: plots.sum_of_products(KEYS, VALUES[:2]), "keys: expected one for each of 2"),
        (lambda: plots.sum_of_products(KEYS[:0], VALUES[:0]), "keys: expected one for each of 0"),
        (lambda: plots.sum_of_products(KEYS[0], VALUES), "keys: expected 2 axes, got shape"),
        (lambda: plots.sum_of_products(KEYS, VALUES * 2, z=True), "values: expected 1 in the last"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_its_reason(draw, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw()
