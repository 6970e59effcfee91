"""Pictures of mechanism: what they say is what they draw, and every word of them can be read."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Circle, PathPatch, Polygon, Rectangle

from course import plots
from course.plots import HIDDEN, Picture
from course.plots.sheet import ROLES
from tests import ink
from tests.pictures import *  # noqa: F403

WORDS = ("the", "cat", "lay", "on", "the", "mat")
SCORES = np.array([0.2, 1.9, 0.6, 1.3, 2.4, 0.3])
VECTORS = np.array([[2, 0], [4, 2], [0, 4], [2, 2.0], [1, 0], [0, 1]])


def weights(T: int) -> np.ndarray:
    powers = np.tril(np.exp(np.outer(np.arange(T), np.cos(np.arange(T)))))
    return powers / powers.sum(1, keepdims=True)


def looks(T: int) -> np.ndarray:
    return np.stack([weights(T), np.eye(T)])


DRAW = {
    "graphs": lambda: plots.who_reaches_whom(weights(6)),
    "graphs of 3": lambda: plots.who_reaches_whom(weights(3), ("a", "b", "$c$")),
    "graphs of 7": lambda: plots.who_reaches_whom(weights(7), "abcdefg"),
    "query, key, value": plots.query_key_value,
    "long": lambda: plots.query_key_value(T=7, E=4, D=2, Dv=5, row=6),
    "everything seen": lambda: plots.query_key_value(T=4, E=5, D=4, Dv=2, row=0, causal=False),
    "heads": plots.heads_into_stream,
    "two heads": lambda: plots.heads_into_stream(H=2, T=4, E=9, Dv=3, row=0),
    "heads that look": lambda: plots.heads_into_stream(
        H=2, T=6, E=5, Dv=3, row=5, looks=looks(6), words=WORDS
    ),
    "one head of odd words": lambda: plots.heads_into_stream(
        H=1, T=3, E=3, Dv=3, row=1, looks=looks(3)[:1], words=("$a", "extraordinary", "b")
    ),
    "softmax": lambda: plots.softmax_steps(SCORES, hidden=[0, 0, 0, 0, 1, 1]),
    "softmax of all": lambda: plots.softmax_steps([-9, 9.0, 0], ("a", "rather long", "$c$")),
    "mean": lambda: plots.mean_as_matrix(VECTORS),
    "mean of 2": lambda: plots.mean_as_matrix([[-10.25, 0, 1 / 3], [0, 1, 9]], ("a", "b"), row=1),
    "language model": plots.language_model,
    "language model of 2": lambda: plots.language_model(("$a$", "b"), E=7, V=3, row=0),
    "learned weights": lambda: plots.language_model(
        ("w3", "w1", "w0", "w2"), weights="learned", E=3, V=6, row=2
    ),
    "drowning": plots.drowning,
    "drowning fast": lambda: plots.drowning((3, 100)),
    "targets": plots.targets_and_mask,
    "targets of 3": lambda: plots.targets_and_mask(("my", "dog", "barks"), position=0),
    "stream": plots.residual_stream,
    "stream of means": lambda: plots.residual_stream("mean", feed_forward=False, norm="none"),
    "stream, two blocks": lambda: plots.residual_stream(blocks=2),
    "stream, post": lambda: plots.residual_stream(norm="post", words=("a", "b", "c", "d")),
}


def test_the_bytes_depend_on_nothing_but_what_is_drawn(pictures) -> None:
    for name in ("graphs", "query, key, value", "mean", "stream"):
        assert DRAW[name]().png() == pictures[name].png()
    code = "from course import plots; import sys; sys.stdout.buffer.write(plots.drowning().png())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert other.stdout == pictures["drowning"].png()


def test_labels_have_the_form_in_which_the_maps_multiply(pictures) -> None:
    said = ink.words(pictures["query, key, value"])
    assert [word for word in said if "W_" in word] == [f"$W_{n}^{{\\top}}$" for n in "qkv"]
    said = ink.words(pictures["heads"])
    blocks = [f"$(W_o^{head})^{{\\top}}$" for head in (1, 2, 3)]
    assert [word for word in said if "W_" in word] == [*blocks, "$W_o^{\\top}$"]
    assert {"[Dv, E]", "[H·Dv, E]", "[T, H·Dv]"} <= set(said)


def test_heads_write_and_their_sum_is_one_product(pictures) -> None:
    assert pictures["two heads"].finding == (
        "2 heads of 3 numbers: each writes to all 9 coordinates of the stream, and their sum is "
        "one product with the transposed W_o, which has 2 × 3 = 6 rows."
    )
    assert ink.words(pictures["heads"]).count("+") == 2  # between three writings


def test_heads_are_said_to_look_where_their_weights_are(pictures) -> None:
    last = weights(6)[-1]
    best = int(last.argmax())
    assert pictures["heads that look"].finding.endswith(
        f"“mat” looks with head 1 most at “{WORDS[best]}” ({last[best]:.2f}), head 2 most at "
        "“mat” (1.00)."
    )
    assert ink.words(pictures["heads that look"]).count("lay") == 2  # beside the values of each
    assert "lay" not in ink.words(pictures["heads"])


def arrows(picture: Picture, role: str) -> int:
    heads = ink.patches(picture, Polygon)
    return sum(to_hex(head.get_facecolor()) == ROLES[role].lower() for head in heads)


def test_the_way_from_the_first_word_to_the_last_dot_is_counted_alike(pictures) -> None:
    picture = pictures["graphs"]
    assert picture.finding == (
        "Arrows from word 1, “the”, to the dot of word 6, “mat”: mean 1, attention 1, recurrent "
        "network 6."
    )
    said = [text for text in ink.words(picture) if text.startswith("word 1 to")]
    ways = ("1 arrow", "1 arrow", "6 arrows")
    assert said == [f"word 1 to the dot of word 6: {way}" for way in ways]
    assert arrows(picture, "focus") == 1 + 1 + 6
    assert arrows(picture, "plain") == 3 * 5  # the five other words, in each panel
    assert len(ink.patches(picture, Circle)) == 3 * 6
    assert "recurrent network 3." in pictures["graphs of 3"].finding


def test_the_larger_a_weight_the_thicker_its_arrow() -> None:
    uneven = np.tri(3) / np.arange(1, 4)[:, None]
    uneven[2] = 0.1, 0.1, 0.8
    picture = plots.who_reaches_whom(uneven, ("a", "b", "c"))
    # Each panel draws words 2 and 3 first, then the way from word 1.
    widths = [line.get_linewidth() for line in ink.patches(picture, PathPatch)[:6]]
    assert widths[0] == widths[1] == widths[2]  # the mean
    assert widths[3] == widths[5] < widths[4]


def cells(picture: Picture, colour: str) -> int:
    faces = [to_hex(patch.get_facecolor()) for patch in ink.patches(picture, Rectangle)]
    return faces.count(colour.lower())


@pytest.mark.parametrize("name", ["query, key, value", "long"])
def test_the_word_that_is_followed_uses_the_keys_and_values_so_far(pictures, name: str) -> None:
    T, E, D, Dv, row = (5, 6, 3, 4, 2) if name != "long" else (7, 4, 2, 5, 6)
    picture = pictures[name]
    assert cells(picture, ROLES["stream"]) == E
    assert cells(picture, ROLES["query"]) == D
    assert cells(picture, ROLES["key"]) == (row + 1) * D
    assert cells(picture, ROLES["value"]) == (row + 1) * Dv + Dv
    assert cells(picture, HIDDEN) == 2 * T * (T - 1) // 2
    assert f"word {row + 1} sums up {row + 1} values to {Dv} numbers" in picture.finding
    assert f"{T} words of {E} numbers" in picture.finding


def test_without_a_mask_nothing_is_hidden_and_all_values_are_used(pictures) -> None:
    picture = pictures["everything seen"]
    assert cells(picture, HIDDEN) == 0
    assert cells(picture, ROLES["value"]) == 4 * 2 + 2
    assert "word 1 sums up 4 values" in picture.finding and "grey" not in picture.alt


def test_the_numbers_of_a_softmax_are_those_of_its_scores(pictures) -> None:
    powers = np.where(np.arange(6) < 4, np.exp(SCORES), 0)
    rows = [[f"{x:.2f}" for x in SCORES], [f"{x:.2f}" for x in SCORES[:4]] + ["−∞", "−∞"]]
    rows += [[f"{x:.2f}" for x in row] for row in (powers, powers / powers.sum())]
    printed = ink.words(pictures["softmax"])
    for row in rows:
        assert any(printed[i : i + 6] == row for i in range(len(printed)))
    assert printed.count("sum = 13.40") == printed.count("÷ 13.40") == 1
    assert pictures["softmax"].finding == (
        "“cat” has the highest score that is not hidden, 1.90; its exponential is 6.69 of 13.40, "
        "so its weight is 0.50. Hidden: “the” (score 2.40), “mat” (score 0.30); there the score "
        "becomes −∞ and the weight 0."
    )
    assert cells(pictures["softmax"], HIDDEN) == 4 * 2
    assert arrows(pictures["softmax"], "focus") == 2  # what becomes −∞
    assert plots.softmax_steps([0] * 6).finding.startswith("6 words share the highest score, 0.00;")
    assert "masked" not in ink.words(pictures["softmax of all"])


def test_a_language_model_sums_up_the_words_so_far(pictures) -> None:
    picture = pictures["language model"]
    assert picture.finding == (
        "6 words become 6 vectors of 4 numbers, then 6 means, then 6 × 8 scores: row 4 scores the "
        "word after “on”, from the mean of 4 words."
    )
    full = ROLES["stream"]
    assert cells(picture, full) == 4 * 4 + 1 * 4  # the words that are read, and their mean
    assert cells(picture, HIDDEN) == 15
    learned = pictures["learned weights"]
    assert learned.finding.endswith(
        "4 summaries, then 4 × 6 scores: row 3 scores the word after “w0”, from a learned "
        "weighted sum of 3 words."
    )
    assert cells(learned, HIDDEN) == 6 and "learned" in learned.alt


def test_a_row_of_the_mean_is_the_mean_so_far(pictures) -> None:
    printed = ink.words(pictures["mean"])
    assert pictures["mean"].finding.endswith("it gives their mean so far, (2, 2).")
    for t in range(2, 7):
        assert printed.count(f"1/{t}") == t
    assert printed.count("0") == 15 + (VECTORS == 0).sum() + 1  # the first mean has a 0 too
    assert "1.8" in printed and "1.6" in printed  # the fifth mean
    assert cells(pictures["mean"], HIDDEN) == 15
    assert cells(pictures["mean"], ROLES["stream"]) == (4 + 1) * 2


def test_the_newest_word_has_the_dark_part_of_each_bar(pictures) -> None:
    picture = pictures["drowning"]
    pixels = [cell.get_width() for cell in ink.patches(picture, Rectangle)]
    dark = [
        width
        for width, cell in zip(pixels, ink.patches(picture, Rectangle), strict=True)
        if to_hex(cell.get_facecolor()) == ROLES["stream"].lower()
    ]
    one = dark[0]
    for line, t in enumerate((1, 2, 4, 8, 16)):
        assert dark[3 * line : 3 * line + 3] == pytest.approx([one / t, one, one / t])
        if t > 1:
            assert {f"1/{t}", f"1 + 1/{t}"} <= set(ink.words(picture))
    assert "1/16 = 0.0625" in picture.finding and "1 + 1/16" in picture.finding


def test_without_a_mask_the_answer_is_read(pictures) -> None:
    picture = pictures["targets"]
    assert picture.finding == (
        "The target at word 3 is the input at word 4, “on”. Positions of 5 that can read their own "
        "answer: without a mask 4, with it 0."
    )
    assert arrows(picture, "stream") == 5 + 2  # each word's target, and one in each other panel
    assert arrows(picture, "focus") == 1  # the leak, in one panel alone
    assert arrows(picture, "plain") == (5 - 1) + 3
    printed = ink.words(picture)
    assert printed.count("the answer is read") == printed.count("the answer is hidden") == 1


@pytest.mark.parametrize(
    ("name", "parts", "norms", "updates"),
    [
        ("stream", ["attention", "feed-forward"], 3, 2),
        ("stream of means", ["mean"], 0, 1),
        ("stream, two blocks", ["attention", "feed-forward"] * 2, 5, 4),
        ("stream, post", ["attention", "feed-forward"], 2, 2),
    ],
)
def test_a_part_reads_the_stream_and_adds_to_it(pictures, name, parts, norms, updates) -> None:
    printed = ink.words(pictures[name])
    assert [word for word in printed if word in ("attention", "mean", "feed-forward")] == parts
    assert printed.count("norm") == norms
    assert printed.count("+") == updates
    assert f"{updates} update{'s' * (updates > 1)};" in pictures[name].finding
    assert f"only the {parts[0]} reads" in pictures[name].finding


@pytest.mark.parametrize(("name", "said"), [("stream", "the cat lay"), ("stream, post", "a b c d")])
def test_the_streams_stand_in_the_order_of_the_words(pictures, name: str, said: str) -> None:
    heights = {text.get_text(): -text.get_position()[1] for text in ink.texts(pictures[name])}
    words = said.split()
    assert sorted(words, key=heights.__getitem__, reverse=True) == words
    assert ink.words(pictures[name]).count("…") == len(words) - 1


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.who_reaches_whom(weights(2), "ab"), "words: expected at least 3, got 2"),
        (lambda: plots.who_reaches_whom(weights(5)), r"weights: expected shape \[6, 6\], got"),
        (lambda: plots.who_reaches_whom(np.eye(6)), "weights: expected causal rows"),
        (lambda: plots.who_reaches_whom(np.full((6, 6), 1 / 6)), "weights: expected causal rows"),
        (lambda: plots.who_reaches_whom(2 * weights(6)), "weights: expected causal rows"),
        (lambda: plots.query_key_value(row=5), "row: expected a word's number from 0 to 4, got 5"),
        (lambda: plots.heads_into_stream(row=6), "row: expected a word's number from 0 to 5, got"),
        (lambda: plots.heads_into_stream(Dv=0), "Dv: expected a whole number from 1 on, got 0"),
        (
            lambda: plots.heads_into_stream(H=3, looks=looks(6)),
            r"looks: expected shape \[3, 6, 6\] and 6 words",
        ),
        (
            lambda: plots.heads_into_stream(H=2, T=4, looks=looks(4)),
            r"looks: expected shape \[2, 4, 4\] and 4 words",
        ),
        (
            lambda: plots.heads_into_stream(H=2, looks=looks(6).transpose(0, 2, 1)),
            "looks: expected causal rows",
        ),
        (lambda: plots.heads_into_stream(H=2, looks=2 * looks(6)), "rows that sum to 1"),
        (lambda: plots.query_key_value(D=0), "D: expected a whole number from 1 on, got 0"),
        (lambda: plots.softmax_steps([1, 2.0]), "scores: expected one for each of 6 words"),
        (lambda: plots.softmax_steps(SCORES, hidden=[1] * 6), "at least one word to look at"),
        (lambda: plots.softmax_steps(10 * SCORES), "scores: expected numbers from −9 to 9"),
        (lambda: plots.softmax_steps(SCORES * np.nan), "scores: expected numbers from −9 to 9"),
        (lambda: plots.mean_as_matrix(VECTORS[:3]), "words: expected 3, one for each vector"),
        (lambda: plots.mean_as_matrix(VECTORS, row=-1), "row: expected a word's number"),
        (lambda: plots.softmax_steps([9, 9.5], "ab", hidden=[0, 1]), "scores: expected numbers"),
        (lambda: plots.language_model(row=6), "row: expected a word's number from 0 to 5"),
        (lambda: plots.language_model(weights="fixed"), "weights: expected mean or learned, got"),
        (lambda: plots.drowning((4, 2)), "counts: expected two or more rising"),
        (lambda: plots.drowning((0, 2)), "counts: expected two or more rising"),
        (lambda: plots.targets_and_mask("ab"), "words: expected at least 3, got 2"),
        (lambda: plots.targets_and_mask(position=4), "position: expected a number from 0 to 3"),
        (lambda: plots.residual_stream(blocks=3), "blocks: expected 1 or 2, got 3"),
        (lambda: plots.residual_stream(blocks=2, norm="post"), "blocks: expected 1, more has"),
        (lambda: plots.residual_stream(norm="rms"), "norm: expected pre, post or none, got 'rms'"),
        (lambda: plots.residual_stream(words=["a"]), "words: expected at least 2, got 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_its_reason(draw, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw()
