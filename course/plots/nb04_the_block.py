"""The drawings of notebook 04: heads, a norm as geometry, a store of pairs, places of the norm."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
from matplotlib.patches import Circle
from matplotlib.ticker import MaxNLocator

from course.plots.drawing import Canvas, cell_text
from course.plots.parts import as_array
from course.plots.places import Place, Spot
from course.plots.style import COLOURS, INK, MARKERS, QUIET, Picture, new_figure, styled

# --- LayerNorm ----------------------------------------------------------------------------------


@styled
def norm_on_a_circle(vectors: Mapping[str, object]) -> Picture:
    """LayerNorm of vectors of three numbers, seen in the plane where it happens.

    The mean is taken off (what is left lies in a plane), then the length becomes √3: a circle.
    ``vectors``: name → three numbers. Raises ``ValueError`` for other lengths, and for three equal
    numbers, which have no direction.
    """
    named = {name: as_array(name, vector, ndim=1) for name, vector in vectors.items()}
    for name, vector in named.items():
        if len(vector) != 3 or np.ptp(vector) == 0:
            raise ValueError(
                f"{name}: expected three numbers, not all equal, got {vector.tolist()}"
            )
    plane = np.array([[1, -1, 0], [1, 1, -2]]) / np.sqrt([[2], [6]])
    figure = new_figure(5.6, 5.4)
    axes = figure.subplots()
    radius = math.sqrt(3)
    axes.add_patch(Circle((0, 0), radius, fill=False, edgecolor=INK, linewidth=1.6, zorder=1))
    axes.axhline(0, color=QUIET, linewidth=0.7)
    axes.axvline(0, color=QUIET, linewidth=0.7)
    ends: dict[tuple[float, float], list[str]] = {}
    reach = radius
    for place, (name, vector) in enumerate(named.items()):
        centred = plane @ vector  # the mean lies at a right angle to the plane
        end = radius * centred / np.linalg.norm(centred)
        ends.setdefault((round(end[0], 6), round(end[1], 6)), []).append(name)
        colour = COLOURS[place % len(COLOURS)]
        axes.plot(*centred, MARKERS[place % len(MARKERS)], color=colour, zorder=4,
                  label=name)  # fmt: skip
        axes.annotate(
            "",
            xy=end,
            xytext=centred,
            arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.6, "shrinkA": 4},
            zorder=3,
        )
        reach = max(reach, np.abs(centred).max())
    ticks = np.asarray(MaxNLocator(4).tick_values(-reach, reach))
    axes.set(
        xticks=ticks[np.abs(ticks) <= reach],
        yticks=ticks[np.abs(ticks) <= reach],
        xlim=(-1.15 * reach, 1.15 * reach),
        ylim=(-1.15 * reach, 1.15 * reach),
        aspect="equal",
        title="points: the mean taken off; arrows: then ÷ σ",
        xlabel="along (1, −1, 0)/√2",
        ylabel="along (1, 1, −2)/√6",
    )
    axes.grid(True)
    figure.legend(loc="outside lower center", ncols=2)
    groups = "; ".join(
        f"{' and '.join(names)} end{'s' if len(names) == 1 else ''} at "
        f"({cell_text(x, 2)}, {cell_text(y, 2)})"
        for (x, y), names in ends.items()
    )
    return Picture(
        figure,
        alt=(
            f"The plane of vectors with mean 0, and in it a circle of radius √3. {len(named)} "
            "points and from each an arrow straight towards or away from the centre, to the circle."
        ),
        finding=f"On the circle {groups}.",
    )


# --- the feed-forward part ----------------------------------------------------------------------


def feed_forward_store(x: object, keys: object, bias: object, values: object) -> Picture:
    """A feed-forward part with relu as a store: match x against keys, add up values; in numbers.

    ``x`` [E], ``keys`` [N, E], ``bias`` [N], ``values`` [N, E]. Raises ``ValueError`` for shapes
    that do not fit.
    """
    token, weights = as_array("x", x, ndim=1), as_array("keys", keys, ndim=2)
    shift, stored = as_array("bias", bias, ndim=1), as_array("values", values, ndim=2)
    N, E = weights.shape
    if token.shape != (E,) or shift.shape != (N,) or stored.shape[0] != N:
        raise ValueError(
            f"keys, bias, values: expected [N, {len(token)}], [N] and [N, …], got "
            f"{[*weights.shape]}, {[*shift.shape]} and {[*stored.shape]}"
        )
    match = np.maximum(weights @ token + shift, 0)
    total = match @ stored
    canvas = Canvas(unit=0.2, N=N, E=E, F=stored.shape[1])
    cell = (2.1, 1.6)
    K = canvas.matrix(
        "keys: rows of $W_1$", "N E", at=(0, 0), role="key", values=weights, digits=None, cell=cell,
        rows=[],
    )  # fmt: skip
    read = canvas.matrix(
        "the token, x", "1 E", at=K.above(3.6), role="stream", values=token[None], digits=None,
        cell=cell,
    )  # fmt: skip
    canvas.arrow(
        (read.centre[0], read.bottom[1] + 0.15), (read.centre[0], K.y - 3.0), role="stream"
    )
    b = canvas.matrix(
        "b", "N 1", at=K.beside(1.4), role="learned", values=shift[:, None], digits=None, cell=cell,
    )  # fmt: skip
    m = canvas.matrix(
        "match", "N 1", at=b.beside(6.4), values=match[:, None], digits=None, cell=cell,
        role="plain", rows=np.flatnonzero(match).tolist(),
    )  # fmt: skip
    canvas.arrow(b, m, words="relu(key·x + b)")
    V = canvas.matrix(
        "values: columns of $W_2$", "N F", at=m.beside(4.6), role="value", values=stored,
        digits=None, cell=cell,
    )  # fmt: skip
    canvas.text("times", at=m.beside(2.3, middle=True), points=9.5)
    y = canvas.matrix(
        "added to the stream", "1 F", at=V.below(4.6), role="stream", values=total[None],
        digits=None, cell=cell,
    )  # fmt: skip
    canvas.arrow((V.centre[0], V.bottom[1] + 0.3), (y.centre[0], y.y - 2.9), role="value",
                 words="sum")  # fmt: skip
    for unit in range(N):
        if match[unit]:
            canvas.outline(K.row(unit))
            canvas.outline(V.row(unit))
    awake = np.flatnonzero(match)
    which = " and ".join(f"unit {unit + 1} with {cell_text(match[unit], None)}" for unit in awake)
    answer = ", ".join(cell_text(number_, None) for number_ in total)
    return canvas.picture(
        finding=(
            f"Of {N} units {len(awake)} answer{'s' if len(awake) == 1 else ''}"
            f"{': ' + which if which else ''}; the sum of their values is ({answer})."
        ),
        alt=(
            f"A token of {E} numbers above {N} keys, the rows of W_1; beside them the biases b. A "
            f"column of {N} matches, relu of key times token plus bias. {N} values, the columns of "
            "W_2; each is taken as many times as its key matches, and the sum, below, is added to "
            "the stream. Keys and values of the units that answer are framed."
        ),
    )


# --- where the norm stands ----------------------------------------------------------------------


def pre_and_post() -> Picture:
    """The two places of the norm, one stream above the other."""
    canvas = Canvas(unit=0.2)
    ends = []
    for line, (title, pre) in enumerate((("pre-norm", True), ("post-norm", False))):
        ends.append(_one_stream(canvas, 12.5 * line, title, pre))
    return canvas.picture(
        finding=(
            f"Pre-norm has {ends[0]} norms on the way of the stream itself, post-norm {ends[1]}: "
            "with pre-norm a part reads a normed copy, and the sum is never rescaled before the "
            "end."
        ),
        alt=(
            "Two streams, each a thick line from a word to the next word through attention and "
            "feed-forward. Above, pre-norm: a norm stands on the way into each part, and "
            "one at the end. Below, post-norm: a norm stands on the thick line after each sum."
        ),
    )


def _one_stream(canvas: Canvas, y: float, title: str, pre: bool) -> int:
    """A stream with two parts; returns the norms that lie on it between the word and the end."""
    canvas.text(title, at=Spot(-1.2, y - 8.2, 0, 0.5), points=11, bold=True)
    on_it: list[Place] = [*canvas.words(["mat"], at=(0, y))]
    x, count = on_it[0].right[0] + 3.2, 0
    for part in ("attention", "feed-forward"):
        tap = canvas.dot((x, y), role="stream", radius=0.22)
        below: Place = tap
        if pre:
            below = canvas.box("norm", at=(x, y - 2.7), points=9, role="focus")
            canvas.arrow(tap, below, role="stream")
        box = canvas.box(part, at=Spot(x - 1.6, y - 5.8, 0, 0.5))
        canvas.arrow(below, box, role="stream")
        plus = canvas.dot((box.right[0] + 1.4, y), "+", role="stream")
        canvas.arrow(box, (plus.centre[0], y - 5.8), plus, role="stream")
        on_it.append(plus)
        x = plus.right[0] + 2.0
        if not pre:
            on_it.append(canvas.box("norm", at=plus.beside(1.2), points=9, role="focus"))
            x = on_it[-1].right[0] + 2.2
            count += 1
    if pre:
        on_it.append(canvas.box("norm", at=Spot(x + 2.0, y, 0, 0.5), points=9, role="focus"))
        x = on_it[-1].right[0]
    on_it.append(canvas.box("next\nword", at=Spot(x + 2.0, y, 0, 0.5), role="learned"))
    for one, two in itertools.pairwise(on_it):
        canvas.arrow(one, two, role="stream", width=4.0)
    return count
