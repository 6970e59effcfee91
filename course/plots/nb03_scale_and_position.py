"""Pictures of notebook 03: a row that sharpens, clocks, turning arrows, a penalty on a row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Arc, Circle, Wedge

from course.plots.drawing import Canvas
from course.plots.mechanisms import WORDS
from course.plots.parts import as_array, as_number, number, require_some
from course.plots.places import Place, Spot
from course.plots.sheet import ROLES, readable, tint
from course.plots.style import HIDDEN, INK, QUIET, Picture, new_figure, styled

_TURN = 2 * math.pi


def sharpening(
    scores: object, words: Sequence[str] = WORDS, *, factors: Sequence[float] = (0, 0.5, 1, 2, 10)
) -> Picture:
    """One row of scores multiplied by several factors: the softmax of each, and its tokens.

    ``scores`` [S] of one word about S words. The number of effective tokens, exp of the entropy,
    stands beside each row of weights. Raises ``ValueError`` for another number of words, and for
    no factor.
    """
    row = _one_for_each_word(scores, words)
    if not len(factors):
        raise ValueError("factors: expected at least one, got none")
    rows = np.stack([_softmax(factor * row) for factor in factors])
    counts = [_tokens(w) for w in rows]
    canvas = Canvas(unit=0.22, S=len(row), N=len(factors))
    step = max(3.2, canvas.pitch(words))
    canvas.words(words, at=(0, 0), step=step)
    given = canvas.matrix(
        "scores", "1 S", at=(0, 2.2), values=row[None], digits=None, cell=(step, 1.7), label=False
    )
    canvas.text("scores", at=given.before(0.6), points=10, bold=True)
    weights = canvas.matrix(
        "weights", "N S", at=Spot(0, 6.4, 0.5, 0), values=rows, shade=rows, cell=(step, 1.7),
        label=False,
    )  # fmt: skip
    canvas.text("softmax of", at=Spot(weights.x - 0.6, 5.5, 1, 0.5))
    canvas.text("as spread out as", at=Spot(weights.right[0] + 0.6, 5.5, 0, 0.5))
    canvas.arrow(given, weights, words="softmax")
    for line, (factor, count) in enumerate(zip(factors, counts, strict=True)):
        name = f"{factor:g} · scores"
        canvas.text(name, at=weights.row(line).before(0.6), points=10, bold=True)
        spot = weights.row(line).beside(0.6)
        canvas.text(f"{number(count, 1)} equal words", at=spot, points=10, role="focus")
    told = ", ".join(
        f"{number(count, 1)} at {factor:g}" for factor, count in zip(factors, counts, strict=True)
    )
    return canvas.picture(
        finding=f"The weights are as spread out as so many equal words, by factor: {told}.",
        alt=(
            f"One row of scores for the words {' '.join(words)}, and below it a row of softmax "
            f"weights for each of the factors {', '.join(f'{f:g}' for f in factors)}: the larger "
            "the factor, the more of the weight lies on the best word."
        ),
    )


def penalised_row(
    scores: object, words: Sequence[str] = WORDS, *, slope: float, word: int | None = None
) -> Picture:
    """ALiBi on one row, in numbers: the scores, the penalty by distance, their sum, the weights.

    ``scores`` [S]; ``word``, counted from 0, is the one that looks (default: the last), and what
    stands behind it is hidden. Raises ``ValueError`` for another number of words, a ``word`` that
    is none of them, and a slope below 0.
    """
    row = _one_for_each_word(scores, words)
    at = len(words) - 1 if word is None else word
    if not 0 <= at < len(words):
        raise ValueError(f"word: expected a number from 0 to {len(words) - 1}, got {word}")
    slope = as_number("slope", slope)
    if not slope >= 0:
        raise ValueError(f"slope: expected a number from 0 on, got {slope:g}")
    place = np.arange(len(row))
    hidden = place > at
    penalty = -slope * (at - place)
    total = np.where(hidden, -np.inf, row + penalty)
    before, after = _softmax(np.where(hidden, -np.inf, row)), _softmax(total)
    canvas = Canvas(unit=0.22, S=len(row))
    step = max(3.2, canvas.pitch(words))
    canvas.words(words, at=(0, 0), hidden=np.flatnonzero(hidden).tolist(), step=step)
    lines = (
        ("scores", row, ""),
        ("weights without penalty", before, "weights"),
        (f"penalty: − {slope:g} · distance", penalty, "penalty"),
        ("scores + penalty", total, ""),
        ("weights", after, "weights"),
    )
    drawn: list[Place] = []
    for line, (name, values, kind) in enumerate(lines):
        there = canvas.matrix(
            name, "1 S", at=(0, 2.4 + 2.6 * line), role="focus" if kind == "penalty" else "plain",
            values=np.where(hidden, "", [_short(x, kind) for x in values])[None],
            shade=values[None] if kind == "weights" else None, hidden=hidden[None],
            cell=(step, 1.7), label=False,
        )  # fmt: skip
        canvas.text(name, at=there.before(0.6), points=10, bold=True)
        drawn.append(there)
    canvas.outline(drawn[0].column(at))
    told = f"“{words[0]}”, {at} back, {number(before[0], 2)} before and {number(after[0], 2)} after"
    return canvas.picture(
        finding=(
            f"“{words[at]}” looks, slope {slope:g}: the weight of {told}; its own "
            f"{number(before[at], 2)} and {number(after[at], 2)}."
        ),
        alt=(
            f"Rows of numbers for the words {' '.join(words)}: scores of “{words[at]}” and their "
            "softmax; the penalty, which grows by the slope with each word back; their sum, and "
            "its softmax. What comes later is grey."
        ),
    )


@styled
def clocks(speeds: Sequence[float], words: Sequence[str] = WORDS) -> Picture:
    """Sinusoidal positions as clocks: a row for each hand, a column for each word of the sentence.

    ``speeds`` are angles a position, in radians. A hand starts upright at position 0 and turns
    clockwise, so that its tip is at (sin, cos): the two numbers that the position vector holds.
    Raises ``ValueError`` for no speed and for no word.
    """
    omega = as_array("speeds", list(speeds), ndim=1)
    if not len(omega) or not len(words):
        raise ValueError(
            f"speeds, words: expected at least one of each, got {len(omega)} and {len(words)}"
        )
    rows, columns = len(omega), len(words)
    figure = new_figure(0.85 * columns + 2.3, 0.82 * rows + 0.7)
    axes = figure.subplots()
    _plane(axes, (-2.85, columns - 0.5), (-0.6, rows - 0.25))
    for line, speed in enumerate(omega):
        y = rows - 1 - line
        period = _TURN / speed
        axes.text(
            -0.6, y, f"{speed:.3g} rad a position,\na turn in {period:,.0f} positions", ha="right",
            va="center", fontsize=9,
        )  # fmt: skip
        for place in range(columns):
            axes.add_patch(Circle((place, y), 0.36, facecolor="white", edgecolor=QUIET))
            tip = np.array([place, y]) + 0.33 * np.array(
                [math.sin(speed * place), math.cos(speed * place)]
            )
            _arrow(axes, (place, y), tip, ROLES["stream"])
    for place, word in enumerate(words):
        axes.text(place, rows - 0.45, word, ha="center", va="center", fontsize=10)
        axes.text(place, -0.52, str(place), ha="center", va="center", fontsize=9, color=QUIET)
    axes.text(-0.6, -0.52, "position", ha="right", va="center", fontsize=9, color=QUIET)
    last = columns - 1
    turned = ", ".join(f"{number(speed * last / _TURN, 3)}" for speed in omega)
    return Picture(
        figure,
        finding=f"From position 0 to {last} the hands make {turned} turns.",
        alt=(
            f"A table of clocks: {rows} rows, from the fastest hand to the slowest, and a column "
            f"for each of the words {' '.join(words)}. Along a row the hand turns by the same "
            "angle from word to word."
        ),
    )


@styled
def turning(
    query: object,
    key: object,
    pairs: Sequence[tuple[int, int]],
    *,
    speed: float,
    names: tuple[str, str] = ("query", "key"),
) -> Picture:
    """RoPE on two features: query and key as arrows, turned by their positions, for each pair.

    ``query`` and ``key`` are vectors [2]; ``pairs`` (position of the query, of the key); ``speed``
    the angle a position, in radians. The angle between the two turned arrows is a coloured sector;
    under each panel stand its size and their dot product. Raises ``ValueError`` for vectors of
    another length or without length, and for no pair.
    """
    q, k = as_array("query", query, ndim=1), as_array("key", key, ndim=1)
    for name, vector in (("query", q), ("key", k)):
        if vector.shape != (2,) or not vector.any():
            raise ValueError(f"{name}: expected two numbers, not both 0, got {vector.tolist()}")
    require_some("pairs", {f"{t}, {i}": None for t, i in pairs})
    reach = 1.12 * max(np.hypot(*q), np.hypot(*k))
    figure = new_figure(min(9.3, 2.9 * len(pairs) + 0.2), 3.6)
    scores = []
    for axes, (t, i) in zip(figure.subplots(1, len(pairs), squeeze=False)[0], pairs, strict=True):
        _plane(axes, (-reach, reach), (-1.42 * reach, reach))
        turned = _rotate(q, speed * t), _rotate(k, speed * i)
        scores.append(float(turned[0] @ turned[1]))
        for vector, after, angle, role, arc in (
            (q, turned[0], speed * t, "query", 1.1),
            (k, turned[1], speed * i, "key", 0.8),
        ):
            length, start = np.hypot(*vector), math.degrees(math.atan2(vector[1], vector[0]))
            axes.add_patch(Circle((0, 0), length, facecolor="none", edgecolor=HIDDEN, zorder=0))
            axes.add_patch(
                Arc(
                    (0, 0), arc * length, arc * length, theta1=start,
                    theta2=start + math.degrees(angle), color=ROLES[role], linewidth=1.2,
                )
            )  # fmt: skip
            _arrow(axes, (0, 0), vector, ROLES[role], faint=True)
            _arrow(axes, (0, 0), after, ROLES[role])
        _sector(axes, *turned)
        axes.set_title(f"{names[0]} at {t}, {names[1]} at {i}", fontsize=10)
        below = (
            f"turned by {_degrees(speed * t)} and {_degrees(speed * i)}",
            f"angle between them: {_degrees(_between(*turned))}",
            f"q·k = {number(scores[-1], 2)}",
        )
        axes.text(
            0, -1.08 * reach, "\n".join(below), ha="center", va="top", fontsize=9.5, color=INK
        )
    figure.axes[0].text(
        *_beside(_rotate(q, speed * pairs[0][0]), reach), "q", color=readable("query"), fontsize=11
    )
    figure.axes[0].text(
        *_beside(_rotate(k, speed * pairs[0][1]), reach), "k", color=readable("key"), fontsize=11
    )
    told = "; ".join(
        f"positions {t} and {i}, distance {t - i}: {number(score, 2)}"
        for (t, i), score in zip(pairs, scores, strict=True)
    )
    return Picture(
        figure,
        finding=f"The score q·k of the turned arrows. {told}.",
        alt=(
            f"{len(pairs)} panels. In each a query and a key as faint arrows, and the same two "
            "turned counter-clockwise by their positions; a coloured sector lies between the "
            "turned arrows. Where the distance is the same, so is its angle."
        ),
    )


def _one_for_each_word(scores: object, words: Sequence[str]) -> np.ndarray:
    row = as_array("scores", scores, ndim=1)
    if len(row) != len(words):
        raise ValueError(f"scores: expected one for each of {len(words)} words, got {len(row)}")
    return row


def _softmax(row: np.ndarray) -> np.ndarray:
    powers = np.exp(row - row.max())
    return powers / powers.sum()


def _tokens(w: np.ndarray) -> float:
    there = w[w > 0]
    return float(np.exp(-(there * np.log(there)).sum()))


def _short(value: float, kind: str) -> str:
    if kind == "weights":
        return number(value, 2)
    text = number(value, 2).rstrip("0").rstrip(".")
    return "0" if text in ("−0", "-0") else text


def _plane(axes: Axes, across: tuple[float, float], up: tuple[float, float]) -> None:
    axes.set(xlim=across, ylim=up, aspect="equal")
    axes.axis("off")


def _arrow(
    axes: Axes, start: tuple[float, float], end: np.ndarray, colour: str, *, faint: bool = False
) -> None:
    axes.annotate(
        "", xy=tuple(end), xytext=start, annotation_clip=False,
        arrowprops={
            "arrowstyle": "-|>", "color": colour, "alpha": 0.35 if faint else 1.0,
            "linewidth": 1.4 if faint else 2.2, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 13,
        },
    )  # fmt: skip


def _rotate(vector: np.ndarray, angle: float) -> np.ndarray:
    c, s = math.cos(angle), math.sin(angle)
    return np.array([c * vector[0] - s * vector[1], s * vector[0] + c * vector[1]])


def _between(one: np.ndarray, other: np.ndarray) -> float:
    return math.acos(np.clip(one @ other / np.hypot(*one) / np.hypot(*other), -1, 1))


def _sector(axes: Axes, one: np.ndarray, other: np.ndarray) -> None:
    """Colour the angle between two arrows, the smaller of the two ways round."""
    start, end = (math.degrees(math.atan2(y, x)) for x, y in (one, other))
    if (end - start) % 360 > 180:
        start, end = end, start
    radius = 0.34 * min(np.hypot(*one), np.hypot(*other))
    axes.add_patch(Wedge((0, 0), radius, start, end, color=tint("focus", 0.45), zorder=0.5))


def _beside(tip: np.ndarray, reach: float) -> tuple[float, float]:
    """Where the name of an arrow stands: beside its middle."""
    along = tip / np.hypot(*tip)
    x, y = 0.62 * tip + 0.12 * reach * np.array([along[1], -along[0]])
    return float(x), float(y)


def _degrees(angle: float) -> str:
    return f"{math.degrees(angle):.0f}°"
