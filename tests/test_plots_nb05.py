"""Pictures of notebook 05: what they say is what they draw, and every word can be read."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch, Rectangle

from course import plots
from course.plots import Picture
from course.plots.sheet import ROLES
from tests import ink
from tests.pictures import *  # noqa: F403

PRICES = {"weights": [237, 237, 237], "cache": [36, 144, 576], "scores": [24, 384, 6_144]}
LENGTHS = [1_024, 4_096, 16_384]
SCORES, VALUES = [1, 2, 0.5, 1.5, 3, 0, 1, 2], [1, 0, -1, 2, 0.5, 1, 1, -2]

DRAW = {
    "prices": lambda: plots.prices(PRICES, LENGTHS),
    "two lines": lambda: plots.prices({"one name\nin two lines": [2.0, 3.0]}, [10, 20]),
    "one price": lambda: plots.prices({"all that must be kept": [7.5]}, [512]),
    "cache": plots.cache_and_state,
    "small cache": lambda: plots.cache_and_state((1, 3), D=2, C=3),
    "heads": plots.shared_heads,
    "eight heads": lambda: plots.shared_heads(8, 4, D=2, latent=7),
    "row": lambda: plots.row_in_tiles(SCORES, values=VALUES),
}


def words(picture: Picture) -> list[str]:
    return [text.get_text() for text in picture.figure.axes[0].texts] + [
        artist.get_text()
        for artist in picture.figure.axes[0].artists
        if hasattr(artist, "get_text")
    ]


def test_squares_are_as_large_as_their_amounts(pictures) -> None:
    boxes = ink.patches(pictures["prices"], FancyBboxPatch)
    areas = [box.get_width() * box.get_height() for box in boxes]
    amounts = [amount for row in PRICES.values() for amount in row]
    assert np.array(areas) / areas[0] == pytest.approx(np.array(amounts) / amounts[0])
    assert pictures["prices"].finding == (
        "At 1,024, 4,096, 16,384 tokens: weights 237 MiB, 237 MiB, 237 MiB; cache 36 MiB, 144 MiB, "
        "576 MiB; scores 24 MiB, 384 MiB, 6 GiB."
    )


def test_a_cache_has_a_row_for_each_token_and_a_state_has_not(pictures) -> None:
    edges = [
        (to_hex(box.get_edgecolor()), box.get_height())
        for box in ink.patches(pictures["cache"], Rectangle)
        if box.get_facecolor()[3] == 0
    ]
    for role, heights in (
        ("key", [2, 4, 8]),
        ("value", [2, 4, 8]),
        ("state", [4, 2, 4, 4, 4, 8]),
    ):
        assert [high for colour, high in edges if colour == ROLES[role].lower()] == heights
    assert pictures["cache"].finding == (
        "After 2, 4, 8 tokens a cache holds 16, 32, 64 numbers, a state of 4 × 4 always 16, "
        "a state with a row for every token 8, 16, 32."
    )
    said = words(pictures["small cache"])
    assert "after 1 token" in said and "after 3 tokens" in said and "12 numbers" in said


def test_what_a_token_leaves_is_drawn_and_counted(pictures) -> None:
    boxes = [
        (to_hex(box.get_edgecolor()), round(box.get_width(), 6))
        for box in ink.patches(pictures["heads"], Rectangle)
        if box.get_facecolor()[3] == 0
    ]
    assert [role for role, _ in boxes].count(ROLES["key"].lower()) == 4 + 2 + 1
    assert [role for role, _ in boxes].count(ROLES["value"].lower()) == 4 + 2 + 1
    assert (ROLES["state"].lower(), 4.0) in boxes
    assert pictures["heads"].finding == (
        "4 query heads. Numbers kept per token: multi-head 24, grouped 12, multi-query 6, latent 5."
    )
    assert "16 numbers per token" in words(pictures["eight heads"])


def test_a_row_with_values_ends_with_the_average_of_the_whole_row(pictures) -> None:
    s, v = np.array(SCORES), np.array(VALUES)
    p = np.exp(s - s.max())
    average = (p @ v / p.sum()).round(2)
    assert f"o/ℓ = {average:.2f}".replace("-", "−") in pictures["row"].finding
    first = np.exp(s[:4] - 2)
    said = "; ".join(words(pictures["row"]))
    assert f"m = 2.0; ℓ = {first.sum():.2f}; o = {first @ v[:4]:.2f}" in said
    assert f"m = 3.0; old sums × {np.exp(-1):.2f}; ℓ = {p.sum():.2f}; o = {p @ v:.2f}" in said


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.prices({}, [1]), "mebibytes: expected"),
        (lambda: plots.prices({"a": [1.0]}, [1, 2]), "a: expected 2 amounts above 0"),
        (lambda: plots.prices({"a": [0.0]}, [1]), "a: expected 1 amounts above 0"),
        (lambda: plots.cache_and_state(()), "tokens: expected at least one"),
        (lambda: plots.cache_and_state((0,)), "tokens: expected"),
        (lambda: plots.cache_and_state(C=0), "C: expected"),
        (lambda: plots.shared_heads(4, 3), "groups: expected a divisor of 4, got 3"),
        (lambda: plots.shared_heads(latent=0), "latent: expected"),
        (lambda: plots.row_in_tiles(SCORES, values=[1.0]), "values: expected one for each of 8"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        draw()
