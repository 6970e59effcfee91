"""Pictures of notebook 11: what they say is what they draw, and every word can be read."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Circle, FancyBboxPatch, PathPatch

from course import plots
from course.plots import Picture
from course.plots.sheet import ROLES
from course.tasks.winograd import REPAIRED
from tests import ink
from tests.pictures import *  # noqa: F403

WORDS = REPAIRED.sentence("dog", "river", "wet").split()[:15]
GENERATOR = np.random.default_rng(0)
EFFECTS = GENERATOR.random((3, 15)) * np.linspace(0, 1, 15)
SEEDS = {
    "with": {"mean": [0.3, 0.4, 0.41], "two blocks": [1.0, 1.0, 1.0], "one": [0.5]},
    "without": {"a": [0.25, 0.75]},
}
OWN, LAST = [1.0, 0.0, 0.0, 0.02], [0.0, 0.0, 0.0, 1.0]
LOOKS = {
    "block 1": ([0.1, 0.85, 0.95], [1.0, 1.0, 0.996]),
    "block 2": ([0.79, 0.8, 0.9], [1.0, 1.0, 0.1]),
}
ROADS = {
    "seed 1, tired": ("X", OWN, LAST),
    "seed 5, wet": ("Y", [0, 0.05, 0.88, 0], [0, 0, 1, 0]),
    "seed 0, wet": ("Y", [0, 0.12, 0, 0.9], LAST),
    "seed 4, tired": ("X", [0.19, 0, 0, 0.62], [0, 0, 0.85, 0.05]),
}

DRAW = {
    "who": lambda: plots.who_is_it(WORDS, (1, 6), 11, answer=6),
    "who, the first": lambda: plots.who_is_it(WORDS, (1, 6), 11, answer=1),
    "who, few words": lambda: plots.who_is_it(
        ["$a$", "sees", "b", "too", "wet", "so", "the"], (0, 2), 4, answer=0
    ),
    "seeds": lambda: plots.every_seed(
        SEEDS,
        xlabel="sentences right",
        lines={"½": 0.5},
        finding="Two blocks ≈ 1.00 in each seed, with positions.",
    ),
    "one panel": lambda: plots.every_seed(
        {"all": SEEDS["with"]}, xlabel="right", finding="Two blocks ≈ 1.00 in each seed, of three."
    ),
    "by word": lambda: plots.by_word(
        {"nouns": EFFECTS, "adjective": EFFECTS, "third": EFFECTS},
        WORDS,
        ["0", "1", "2"],
        ylabel="seed",
        finding="Most answers change at the last word of the prompt.",
    ),
    "one map": lambda: plots.by_word(
        {"nouns": EFFECTS},
        WORDS,
        ["0", "1", "2"],
        finding="Most answers change at the last word of all.",
    ),
    "looks": lambda: plots.weight_and_effect(
        LOOKS, heavy=0.8, finding="Two of the heavy looks can go without any loss."
    ),
    "circuits": lambda: plots.circuits(ROADS),
    "one circuit": lambda: plots.circuits({"$seed$ 1": ROADS["seed 1, tired"]}),
}


def arrows(picture: Picture, role: str) -> list[np.ndarray]:
    """The chains of points of all arrows of one colour."""
    return [
        patch.get_path().vertices
        for patch in ink.patches(picture, PathPatch)
        if to_hex(patch.get_edgecolor()) == ROLES[role].lower()
    ]


def middles(picture: Picture) -> list[float]:
    boxes = ink.patches(picture, FancyBboxPatch)
    return [box.get_x() + box.get_width() / 2 for box in boxes]


@pytest.mark.parametrize(("name", "answer", "other"), [("who", 6, 1), ("who, the first", 1, 6)])
def test_the_noun_that_is_meant_reaches_the_last_place(pictures, name, answer, other) -> None:
    picture = pictures[name]
    x = middles(picture)
    (adjective,) = arrows(picture, "key")
    chosen, said = arrows(picture, "value")
    (passed,) = arrows(picture, "hidden")
    assert adjective[0, 0] == pytest.approx(x[11])
    assert chosen[0, 0] == pytest.approx(x[answer]) and passed[0, 0] == pytest.approx(x[other])
    for chain in (adjective, chosen, passed):
        assert abs(chain[-1, 0] - x[14]) < 1.5
    assert said[-1, 0] > x[14]
    assert picture.finding == (
        f"After “so the” comes “{WORDS[answer]}”: the last place must learn of “wet” before it can "
        "choose between “dog” and “river”."
    )


def test_each_seed_is_a_point_and_the_bar_is_their_mean(pictures) -> None:
    for axes, models in zip(pictures["seeds"].figure.axes, SEEDS.values(), strict=True):
        assert [label.get_text() for label in axes.get_yticklabels()] == list(models)
        for points, values in zip(axes.collections, models.values(), strict=True):
            np.testing.assert_allclose(points.get_offsets()[:, 0], values)
        bars = [line for line in axes.lines if line.get_linewidth() == pytest.approx(2.2)]
        means = [np.mean(values) for values in models.values()]
        np.testing.assert_allclose([bar.get_xdata()[0] for bar in bars], means)
        ranges = [line for line in axes.lines if line.get_linewidth() == pytest.approx(1.2)]
        for line, values in zip(ranges, models.values(), strict=True):
            np.testing.assert_allclose(line.get_xdata(), plots.interval(values))


def test_points_on_one_place_stand_side_by_side(pictures) -> None:
    places = pictures["seeds"].figure.axes[0].collections[1].get_offsets()
    assert len({tuple(place) for place in np.round(places, 6).tolist()}) == 3


def test_an_interval_is_that_of_students_t() -> None:
    values = [0.4, 0.5, 0.6, 0.55, 0.45]
    half = 2.776 * np.std(values, ddof=1) / np.sqrt(5)
    np.testing.assert_allclose(plots.interval(values), [0.5 - half, 0.5 + half], atol=2e-4)
    many = np.linspace(0.2, 0.8, 400)
    half = 1.96 * np.std(many, ddof=1) / 20
    np.testing.assert_allclose(plots.interval(many), [0.5 - half, 0.5 + half])
    assert plots.interval([0.0, 1.0]) == (0, 1) and plots.interval([0.7]) == (0.7, 0.7)


def test_numbers_stand_on_the_cells_that_are_large_enough(pictures) -> None:
    axes = pictures["one map"].figure.axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), EFFECTS)
    written = {text.get_position(): text.get_text() for text in axes.texts}
    large = {
        (column, row): f"{value:.2f}"[1:]
        for (row, column), value in np.ndenumerate(EFFECTS)
        if value >= 0.05
    }
    assert written == large
    one = plots.by_word({"a": [[1.0, 0.0]]}, ["x", "y"], ["r"], finding="x")
    assert [text.get_text() for text in one.figure.axes[0].texts] == ["1"]
    assert len(pictures["by word"].figure.axes) == 5  # the fifth: the scale


def test_a_ring_stands_round_each_heavy_look_that_nothing_is_lost_with(pictures) -> None:
    *points, rings = pictures["looks"].figure.axes[0].collections
    for drawn, pair in zip(points, LOOKS.values(), strict=True):
        np.testing.assert_allclose(drawn.get_offsets(), np.stack(pair, 1))
    np.testing.assert_allclose(rings.get_offsets(), [[0.85, 1], [0.8, 1]])


def test_a_circuit_draws_the_ways_of_its_shares(pictures) -> None:
    picture = pictures["one circuit"]
    X, _, A, the = middles(picture)[:4]
    noun, adjective = arrows(picture, "value"), arrows(picture, "key")
    assert len(noun) == len(adjective) == 2  # block 1, block 2
    for chain, start, end in zip(
        (*noun, *adjective), (X, X, A, the), (X, the, the, the), strict=True
    ):
        assert abs(chain[0, 0] - start) < 0.5 and abs(chain[-1, 0] - end) < 1
    assert len(arrows(pictures["circuits"], "value")) == 2 * (1 + 1 + 2 + 2)
    assert len(arrows(pictures["circuits"], "key")) == 2 * 4
    grey = [
        dot
        for dot in ink.patches(picture, Circle)
        if to_hex(dot.get_facecolor()) == ROLES["hidden"].lower()
    ]
    assert len(grey) == 2
    assert pictures["circuits"].finding == (
        "Where the answer is carried after block 1. seed 1, tired: X at X ≈ 1.00; A at the ≈ 1.00. "
        "seed 5, wet: Y at A ≈ 0.88; A at A ≈ 1.00. seed 0, wet: Y at Y ≈ 0.12, at the ≈ 0.90; "
        "A at the ≈ 1.00. seed 4, tired: X at X ≈ 0.19, at the ≈ 0.62; A at A ≈ 0.85."
    )


def test_a_way_is_as_thick_as_its_share(pictures) -> None:
    widths = {
        round(patch.get_linewidth(), 6)
        for patch in ink.patches(pictures["circuits"], PathPatch)
        if to_hex(patch.get_edgecolor()) == ROLES["value"].lower()
    }
    assert widths == {round(0.8 + 2.4 * share, 6) for share in (1, 0.88, 0.12, 0.9, 0.19, 0.62)}


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.who_is_it(WORDS, (1, 14), 11, answer=1), "nouns: expected places from 0"),
        (lambda: plots.who_is_it(WORDS, (1, 6), -1, answer=1), "adjective: expected places from"),
        (lambda: plots.who_is_it(WORDS, (1, 6), 11, answer=2), "answer: expected one of the nouns"),
        (lambda: plots.every_seed({}, xlabel="x", finding="y"), "groups: expected at least one"),
        (lambda: plots.every_seed({"a": {}}, xlabel="x", finding="y"), "a: expected at least one"),
        (
            lambda: plots.every_seed({"a": {"m": [0.5, 1.2]}}, xlabel="x", finding="y"),
            "m: expected shares from 0 to 1",
        ),
        (
            lambda: plots.every_seed({"a": {"m": []}}, xlabel="x", finding="y"),
            "m: expected shares from 0 to 1",
        ),
        (lambda: plots.by_word({}, ["x"], ["y"], finding="z"), "maps: expected at least one"),
        (
            lambda: plots.by_word({"a": [[0.5]]}, ["x", "y"], ["r"], finding="z"),
            "a has 1, words has 2",
        ),
        (
            lambda: plots.by_word({"a": [[0.5]]}, ["x"], ["r", "s"], finding="z"),
            "a has 1, rows has 2",
        ),
        (
            lambda: plots.by_word({"a": [[1.5]]}, ["x"], ["r"], finding="z"),
            "a: expected numbers from 0 to 1",
        ),
        (
            lambda: plots.weight_and_effect({}, heavy=0.8, finding="z"),
            "looks: expected at least one",
        ),
        (
            lambda: plots.weight_and_effect({"a": ([0.5], [1.5])}, heavy=0.8, finding="z"),
            "a: expected numbers from 0 to 1",
        ),
        (
            lambda: plots.weight_and_effect({"a": ([0.5], [1, 1])}, heavy=0.8, finding="z"),
            "weights has 1, shares has 2",
        ),
        (lambda: plots.circuits({}), "panels: expected at least one entry"),
        (lambda: plots.circuits({"a": ("Z", OWN, LAST)}), "a: expected X or Y"),
        (lambda: plots.circuits({"a": ("X", OWN[:3], LAST)}), "a: expected 4 shares from 0 to 1"),
        (lambda: plots.circuits({"a": ("X", OWN, [2, 0, 0, 0])}), "a: expected 4 shares"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_its_reason(draw, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw()
