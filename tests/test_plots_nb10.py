"""Pictures of notebook 10: what they say is what they draw, and every word can be read."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Circle, FancyBboxPatch, PathPatch, Rectangle

from course import plots
from course.plots import Picture
from course.plots.sheet import ROLES
from tests import ink
from tests.pictures import *  # noqa: F403

TOLD = ["anna", "milk", "felix", "corn", "david", "rice"]
CHAT = [*TOLD, "um", "david", "rice", "so", "anna", "milk", "felix", "corn"]
GROUPS = {
    "one panel": {
        "elu": [(2_600, 0.28, 0.28, 0.28), (17_000, 0.76, 0.7, 0.8), (8_800, 0.56, 0.56, 0.56)],
        "softmax": [(98_000, 0.99, 0.98, 1.0)],
    },
    "another": {"window": [(3_200, 0.03, 0.03, 0.03)], "softmax": [(196_000, 0.95, 0.9, 1.0)]},
}
MIXERS = [
    "softmax",
    "hybrid",
    "taylor",
    "window",
    "delta",
    "elu",
    "gated",
    "favor",
    "cosformer",
    "plain",
]
TEN = {"all": {name: [(10.0 ** (2 + n / 2), n / 10, 0, 1)] for n, name in enumerate(MIXERS)}}

DRAW = {
    "task": lambda: plots.recall_task(CHAT, asked=[7, 10, 12]),
    "one question": lambda: plots.recall_task(["$a$", "b", "c", "$a$", "b"], asked=[3]),
    "lookup": plots.two_layer_lookup,
    "lookup of 4": lambda: plots.two_layer_lookup(("$x$", "answer", "y", "$x$")),
    "carried": plots.what_is_carried,
    "carried, small": lambda: plots.what_is_carried((3, 30), D=4, Dv=8, C=20),
    "reach": plots.reach,
    "reach of one": lambda: plots.reach((5,), T=6),
    "reach of three": lambda: plots.reach((2, 3, 2), T=7),
    "frontier": lambda: plots.frontier(
        GROUPS,
        sizes={"least": [22, 22], "N = C": [8_800, 17_000]},
        levels={"1 in 48": 1 / 48, "b": 0.096},
    ),
    "ten mixers": lambda: plots.frontier(TEN, size=(6.6, 4.0)),
}


def arrows(picture: Picture, role: str) -> list[np.ndarray]:
    """The chains of points of all arrows of one colour."""
    return [
        patch.get_path().vertices
        for patch in ink.patches(picture, PathPatch)
        if to_hex(patch.get_edgecolor()) == ROLES[role].lower()
    ]


def test_each_question_is_answered_by_what_followed_the_word_before(pictures) -> None:
    assert pictures["task"].finding == (
        "3 questions in 14 words: david → rice, anna → milk, felix → corn. Each answer was told "
        "3 to 10 words before."
    )
    boxes = ink.patches(pictures["task"], FancyBboxPatch)
    middle = [box.get_x() + box.get_width() / 2 for box in boxes]
    for chain, (told, answer) in zip(
        arrows(pictures["task"], "value"), [(5, 8), (3, 13), (1, 11)], strict=True
    ):
        assert chain[0, 0] == pytest.approx(middle[told])
        assert chain[-1, 0] == pytest.approx(middle[answer])


def test_told_and_asked_words_have_the_colours_of_key_and_query(pictures) -> None:
    edges = [to_hex(box.get_edgecolor()) for box in ink.patches(pictures["task"], FancyBboxPatch)]
    for role, places in {"key": [0, 2, 4], "query": [7, 10, 12], "plain": [6, 9]}.items():
        assert {edges[place] for place in places} == {ROLES[role].lower()}
        assert edges.count(ROLES[role].lower()) == len(places)


def test_the_match_is_where_the_word_before_is_the_asked_one(pictures) -> None:
    assert pictures["lookup"].finding == (
        "Layer one puts “bruno” beside “milk”; in layer two “bruno” looks for itself among the "
        "words before, finds place 4 of 6, and takes the word there: “milk”."
    )
    (query,), (value,), (shift,) = (
        arrows(pictures["lookup"], role) for role in ("query", "value", "focus")
    )
    words = [box.get_x() for box in ink.patches(pictures["lookup"], FancyBboxPatch)][::3]
    step = words[1] - words[0]
    middle = np.arange(7) * step  # of six words and the answer
    assert query[0, 0] == pytest.approx(middle[5]) and abs(query[-1, 0] - middle[3]) < step / 2
    assert abs(value[0, 0] - middle[3]) < step / 2 and value[-1, 0] == pytest.approx(middle[6])
    assert abs(shift[0, 0] - middle[2]) < step / 2 and abs(shift[-1, 0] - middle[3]) < step / 2
    assert len(arrows(pictures["lookup"], "stream")) == 6 + 4  # straight down, and aside


def test_what_is_carried_is_to_scale_in_bytes(pictures) -> None:
    picture = pictures["carried"]
    frames = [box for box in ink.patches(picture, Rectangle) if box.get_facecolor()[3] == 0]
    areas = [frame.get_width() * frame.get_height() for frame in frames]
    one = areas[0] / (40 * 16)  # a number
    sizes = [40 * 16, 40 * 64, 64 * 64, 160 * 16, 160 * 64, 64 * 64]
    np.testing.assert_allclose(np.delete(areas, [3, 7]), one * np.array(sizes), rtol=1e-6)
    assert picture.finding == (
        "To scale, 4 bytes a number: after 40 tokens the cache 12,800 bytes, the state 16,640; "
        "after 160 tokens the cache 51,200 bytes, the state 16,640."
    )
    assert "after 3 tokens the cache 144 bytes, the state 720" in pictures["carried, small"].finding


def test_a_reach_is_the_sum_of_what_lies_before_in_each_layer(pictures) -> None:
    assert pictures["reach"].finding == (
        "Windows of 3 and 4 reach 2 + 3 = 5 places back; 3 of 9 places are out of sight."
    )
    dots = [dot for dot in ink.patches(pictures["reach"], Circle)]
    seen = [to_hex(dot.get_facecolor()) == ROLES["stream"].lower() for dot in dots]
    assert [sum(seen[row : row + 9]) for row in (0, 9, 18)] == [6, 4, 1]
    far = arrows(pictures["reach"], "focus")
    assert len(far) == 2
    assert "reach 1 + 2 + 1 = 4 places back; 2 of 7" in pictures["reach of three"].finding


def test_the_frontier_draws_its_points_and_names_the_smallest_state_that_is_enough(
    pictures,
) -> None:
    picture = pictures["frontier"]
    assert picture.finding == (
        "The smallest state that answers 0.9 of the questions. one panel: softmax, ≈ 98,000 bytes "
        "(≈ 0.99); another: softmax, ≈ 196,000 bytes (≈ 0.95)."
    )
    for axes, panel in zip(picture.figure.axes, GROUPS.values(), strict=True):
        drawn = [line for line in axes.lines if line.get_marker() not in (None, "None", "")]
        for line, rows in zip(drawn, panel.values(), strict=True):
            rows = sorted(rows)
            np.testing.assert_allclose(line.get_xdata(), [row[0] for row in rows])
            np.testing.assert_allclose(line.get_ydata(), [row[1] for row in rows])
        assert axes.get_xscale() == "log"
    ranges = picture.figure.axes[0].collections[0].get_segments()
    np.testing.assert_allclose(ranges, [[[17_000, 0.7], [17_000, 0.8]]])
    none = plots.frontier({"p": {"elu": GROUPS["one panel"]["elu"]}}, size=(6, 4))
    assert none.finding.endswith("p: none of 3 reaches 0.9.")


def test_a_mixer_has_one_mark_and_colour_in_all_panels_and_no_two_share_one(pictures) -> None:
    looks: dict[str, set] = {}
    for axes, panel in zip(pictures["frontier"].figure.axes, GROUPS.values(), strict=True):
        drawn = [line for line in axes.lines if line.get_marker() not in (None, "None", "")]
        for line, mixer in zip(drawn, panel, strict=True):
            looks.setdefault(mixer, set()).add((line.get_marker(), line.get_color()))
    assert all(len(look) == 1 for look in looks.values())
    ten = [line for line in pictures["ten mixers"].figure.axes[0].lines]
    assert len({line.get_marker() for line in ten}) == 10
    assert len({line.get_color() for line in ten}) == 10


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.recall_task(CHAT, asked=[]), "asked: expected at least one place"),
        (lambda: plots.recall_task(CHAT, asked=[4]), "asked: expected words that stood before"),
        (
            lambda: plots.recall_task(CHAT, asked=[13]),
            "asked: expected places from 0 to 12",
        ),
        (
            lambda: plots.two_layer_lookup(("a", "b", "c")),
            "asked: expected words that stood before",
        ),
        (lambda: plots.what_is_carried(()), "lengths: expected"),
        (lambda: plots.what_is_carried(D=0), "D: expected"),
        (lambda: plots.reach(()), "windows: expected a reach below T = 9"),
        (lambda: plots.reach((5, 6), T=9), "windows: expected a reach below T = 9, got"),
        (lambda: plots.reach((0, 3)), "windows: expected"),
        (lambda: plots.frontier({}), "groups: expected at least one entry, got none"),
        (lambda: plots.frontier({"p": {}}), "p: expected at least one entry, got none"),
        (lambda: plots.frontier({"p": {"elu": [(1, 2, 0, 1)]}}), "elu: expected rows of bytes"),
        (lambda: plots.frontier({"p": {"elu": [(1, 0.5)]}}), "elu: expected rows of bytes"),
        (lambda: plots.frontier(GROUPS, sizes={"x": [1]}), "x: expected 2 sizes, got shape"),
        (
            lambda: plots.frontier({"p": {name: [(1, 0, 0, 0)] for name in "abcdefghijk"}}),
            "groups: expected at most 10 mixers, got 11",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_its_reason(draw, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw()
