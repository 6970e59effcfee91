"""Pictures of notebook 02: the numbers drawn are those of the mechanism, every word can be read."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from course import plots
from course.plots import HIDDEN, Picture
from tests import ink
from tests.pictures import *  # noqa: F403

WORDS = ("the", "cat", "lay", "on")
KEYS = np.array([[0, 1], [2, 0], [1, -1], [0, 3.0]])
VALUES = np.array([[4, 0, 1], [8, 2, 0], [0, 6, 1], [9, 9, 9.0]])
QUERY = np.array([1.5, 0.5])
TABLE = np.array([[1, 2, 6.0], [4, 4, 1]])
GRID = np.linspace(-2, 2, 4)

DRAW = {
    "one reading": lambda: plots.one_reading(
        WORDS, query=QUERY, keys=KEYS, values=VALUES, reader=2
    ),
    "the first word": lambda: plots.one_reading(
        WORDS, query=[2], keys=KEYS[:, :1], values=VALUES[:, :1], reader=0, offered="noun?"
    ),
    "unit": lambda: plots.unit(),
    "unit of the second word": lambda: plots.unit(("$a", "extraordinary", "b"), reader=1),
    "unit of the last word": lambda: plots.unit(reader=5),
    "anova": lambda: plots.anova({"a + b": GRID[:, None] + GRID, "table": TABLE}),
    "conflict": lambda: plots.conflict({"a + b": lambda a, b: a + b, "a · b": lambda a, b: a * b}),
    "the left word for all": lambda: plots.conflict({"−b": lambda a, b: 0 * a - b}),
    "two factors": lambda: plots.two_factors(),
    "two large factors": lambda: plots.two_factors(E=16, D=4),
    "cache": lambda: plots.cache_step(),
    "first step": lambda: plots.cache_step(WORDS, D=2, Dv=5, t=0),
}


def printed(array: object) -> list[str]:
    return [f"{x:.2f}".rstrip("0").rstrip(".").replace("-", "−") for x in np.ravel(array)]


def has_run(picture: Picture, numbers: list[str]) -> bool:
    said = ink.words(picture)
    return any(said[i : i + len(numbers)] == numbers for i in range(len(said)))


def test_a_reading_is_the_softmax_of_query_times_keys_over_the_words_so_far(pictures) -> None:
    scores = KEYS @ QUERY
    powers = np.exp(scores[:3])
    weights = np.append(powers / powers.sum(), 0)
    for row in (*KEYS.T, scores, weights, *VALUES.T, QUERY):
        assert has_run(pictures["one reading"], printed(row))
    reading = weights @ VALUES
    assert has_run(pictures["one reading"], printed(reading))
    assert pictures["one reading"].finding == (
        f"“lay” sees 3 words; “cat” has the largest score, 3, and the weight {weights[1]:.2f}; "
        f"what is read is {', '.join(printed(reading))}."
    )


def test_the_future_is_grey(pictures) -> None:
    grey = tuple(int(HIDDEN[i : i + 2], 16) / 255 for i in (1, 3, 5))
    cells = [
        patch
        for axes in pictures["one reading"].figure.axes
        for patch in axes.patches
        if type(patch) is Rectangle and np.allclose(patch.get_facecolor()[:3], grey)
    ]
    assert len(cells) == 2 + 1 + 1 + 3  # one word: its keys, score, weight and values


def test_the_first_word_reads_itself(pictures) -> None:
    assert pictures["the first word"].finding == (
        "“the” sees 1 word; “the” has the largest score, 0, and the weight 1.00; what is read is 4."
    )


def test_a_unit_names_its_sources_and_what_each_part_is_for(pictures) -> None:
    said = ink.words(pictures["unit"])
    for part in ("query", "key", "value", "skip", "needed", "hence required"):
        assert part in said
    assert pictures["unit"].finding.startswith("The unit of “lay” reads 2 other streams")
    assert pictures["unit of the second word"].finding.startswith(
        "The unit of “extraordinary” reads 1 other stream and"
    )


def test_the_parts_of_a_table_add_up_and_have_mean_zero(pictures) -> None:
    axes = pictures["anova"].figure.axes
    parts = [one.findobj(AxesImage)[0].get_array() for one in axes[5:]]
    np.testing.assert_allclose(sum(parts[1:]), parts[0], atol=1e-12)
    np.testing.assert_array_equal(parts[0], TABLE)
    np.testing.assert_allclose(parts[1], 3)
    for part in parts[2:]:
        assert abs(part.mean()) < 1e-12
    np.testing.assert_allclose(parts[4].mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(parts[4].mean(1), 0, atol=1e-12)
    limits = {one.findobj(AxesImage)[0].norm.vmax for one in axes[5:]}
    assert limits == {6.0}  # one scale for all parts


def test_a_part_that_is_zero_everywhere_is_one_large_zero(pictures) -> None:
    said = [[text.get_text() for text in one.texts] for one in pictures["anova"].figure.axes[:5]]
    assert said[1] == said[4] == ["0"]  # mean and interaction of a + b
    assert [len(texts) for texts in said] == [16, 1, 16, 16, 1]


def test_the_share_of_interaction_is_that_of_the_variance(pictures) -> None:
    rest = TABLE - TABLE.mean(1, keepdims=True) - TABLE.mean(0) + TABLE.mean()
    share = 100 * rest.var() / TABLE.var()
    assert pictures["anova"].finding == (
        f"Share of the variance that is interaction: a + b 0 %, table {share:.0f} %."
    )


def test_only_a_product_serves_both_readers(pictures) -> None:
    assert pictures["conflict"].finding == (
        "Readers that score the word they want higher than the other one: "
        "a + b: 1 of 2; a · b: 2 of 2."
    )
    assert pictures["the left word for all"].finding.endswith("−b: 1 of 2.")
    said = ink.words(pictures["conflict"])
    assert [word for word in said if word.startswith("reader")] == [
        "reader 1: gets it",
        "reader 2: does not get it",
        "reader 1: gets it",
        "reader 2: gets it",
    ]


def test_a_step_appends_a_row_and_reads_all(pictures) -> None:
    said = ink.words(pictures["cache"])
    assert said.count("append") == 2 and "weighted sum" in said
    assert "the rows of the cat lay on are kept" in pictures["cache"].alt
    assert "kept from before" not in pictures["first step"].alt


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("two factors", "8 × 8 = 64 numbers; its two factors have 8 × 2 + 2 × 8 = 32."),
        ("two large factors", "16 × 16 = 256 numbers; its two factors have 16 × 4 + 4 × 16 = 128."),
        ("cache", "one key of 3 and one value of 2; kept are 5 × (3 + 2) = 25 numbers a head."),
        ("first step", "Step 1: “the” adds one key of 2 and one value of 5; kept are 1 × (2 + 5)"),
    ],
)
def test_counts(pictures, name: str, said: str) -> None:
    assert said in pictures[name].finding


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.one_reading(WORDS, query=[1], keys=KEYS, values=VALUES), "keys: expected"),
        (
            lambda: plots.one_reading(WORDS, query=QUERY, keys=KEYS, values=VALUES[:3]),
            "4 values, got",
        ),
        (
            lambda: plots.one_reading(WORDS, query=QUERY, keys=KEYS, values=VALUES, reader=4),
            "reader: expected a word's number from 0 to 3, got 4",
        ),
        (lambda: plots.unit(reader=0), "reader: expected a number from 1 to 5, got 0"),
        (lambda: plots.anova({}), "tables: expected at least one entry"),
        (lambda: plots.anova({"one": np.ones((2, 2))}), "not all equal"),
        (lambda: plots.anova({"big": np.eye(6)}), "big: expected at most 5 × 5"),
        (lambda: plots.conflict({}), "functions: expected at least one entry"),
        (lambda: plots.cache_step(t=6), "t: expected a word's number from 0 to 5, got 6"),
        (lambda: plots.two_factors(D=0), "D: expected a whole number from 1 on"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_its_reason(draw, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw()
