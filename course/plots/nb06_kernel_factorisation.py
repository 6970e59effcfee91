"""Pictures of notebook 06: two ways to set brackets, weights against weights, two programs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from course.plots.drawing import Canvas
from course.plots.parts import as_array, as_line, as_number, colours_of, finish, require_some
from course.plots.places import Place, Spot
from course.plots.style import COLOURS, INK, MARKERS, Picture, new_figure, styled


def brackets(T: int = 16, C: int = 3, Dv: int = 4) -> Picture:
    """(φ(Q) φ(K)ᵀ) V above φ(Q) (φ(K)ᵀ V), every matrix to scale.

    The two factors that are multiplied first stand in a frame; what they make, the table [T, T] or
    the register [C, Dv], stands behind it with the number of its entries. Raises ``ValueError``
    for sizes below 1.
    """
    canvas = Canvas(unit=min(0.14, 9.0 / (2 * T + 2 * C + 3 * Dv + 27)), T=T, C=C, Dv=Dv)
    gap = 3.4
    for place, left in enumerate((True, False)):
        Q = canvas.matrix("$\\varphi(Q)$", "T C", at=Spot(0, place * (T + 8), 0.5, 0), role="query")
        K = canvas.matrix("$\\varphi(K)^T$", "C T", at=Q.beside(gap), role="key")
        V = canvas.matrix("$V$", "T Dv", at=K.beside(gap), role="value")
        _between(canvas, "×", Q, K, V)
        canvas.frame([Q, K] if left else [K, V], "first", pad=0.8, below=True)
        start = V.beside(2 * gap)
        if left:
            made = canvas.matrix("table", "T T", at=start, role="plain")
            other = canvas.matrix("$V$", "T Dv", at=made.beside(gap), role="value")
            _between(canvas, "×", made, other)
        else:
            other = canvas.matrix("$\\varphi(Q)$", "T C", at=start, role="query")
            made = canvas.matrix("register", "C Dv", at=other.beside(gap), role="state")
            _between(canvas, "×", other, made)
        last = other if left else made
        out = canvas.matrix("output", "T Dv", at=last.beside(gap), role="value")
        canvas.text("=", at=V.beside(gap, middle=True), points=14)
        _between(canvas, "=", last, out)
        entries = made.rows * made.columns
        canvas.text(f"{entries:,} numbers", at=made.below(0.7), points=9.5, role="focus")
        canvas.outline(made)
    return canvas.picture(
        finding=(
            f"{T} tokens, {C} features, values of width {Dv}: with the brackets on the left a "
            f"table of {T * T:,} numbers stands in the middle, on the right a register of "
            f"{C * Dv}. Both end in the same {T} × {Dv} output."
        ),
        alt=(
            f"Two rows of matrices to scale. Above: φ(Q) [{T}, {C}] times φ(K) transposed "
            f"[{C}, {T}] first, which makes a table [{T}, {T}], then times V [{T}, {Dv}]. Below: "
            f"φ(K) transposed times V first, which makes a register [{C}, {Dv}], then φ(Q) times "
            f"it. Both give an output [{T}, {Dv}]."
        ),
    )


def _between(canvas: Canvas, sign: str, *places: Place) -> None:
    """A sign in each gap of a row of matrices."""
    for one, two in itertools.pairwise(places):
        canvas.text(sign, at=((one.right[0] + two.x) / 2, one.right[1]), points=14)


@styled
def clouds(
    groups: Mapping[str, tuple[object, object]],
    law: tuple[str, object, object],
    *,
    xlabel: str,
    ylabel: str,
    finding: str,
    alt: str | None = None,
    logx: bool = False,
    size: tuple[float, float] = (9.2, 3.0),
) -> Picture:
    """Clouds of points side by side, title → (x, y), each with the same law (label, x, y).

    The vertical axis is shared and logarithmic, with ``logx`` the horizontal one too; points that
    are not positive there are left out.
    """
    require_some("groups", groups)
    figure = new_figure(*size)
    line = as_line(*law)
    grid = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axes, (title, cloud) in zip(grid, groups.items(), strict=True):
        x, y = as_line(title, *cloud)
        there = (y > 0) & (x > 0) if logx else y > 0
        axes.plot(x[there], y[there], ".", color=COLOURS[0], alpha=0.35, markersize=3, zorder=2)
        axes.plot(*line, color=COLOURS[1], linewidth=1.8, label=law[0], zorder=3)
        axes.set(yscale="log", xlabel=xlabel, title=title)
        if logx:
            axes.set_xscale("log")
        axes.grid(True)
    grid[0].set(ylabel=ylabel)
    grid[0].legend(loc="upper left")
    if alt is None:
        alt = f"{ylabel} against {xlabel}, a cloud each for {', '.join(groups)}, with {law[0]}."
    return Picture(figure, alt=alt, finding=finding)


@styled
def ratios(
    x: object,
    series: Mapping[str, object],
    crossings: Mapping[str, float],
    *,
    xlabel: str,
    ylabel: str,
    finding: str,
    alt: str | None = None,
    ticks: Sequence[float] | None = None,
    size: tuple[float, float] = (6.8, 4.0),
) -> Picture:
    """Measured ratios over ``x``: label → [points, repeats], drawn as mean, lowest and highest.

    A line at 1 says where both sides are equal, and a mark on it where each label's ``crossings``
    lies. Only the picture has that number, in its legend: it differs from machine to machine, and
    finding and alt text must not.
    """
    figure = new_figure(*size)
    axes = figure.subplots()
    colours = colours_of(list(series))
    x = as_array("x", x, ndim=1)
    axes.axhline(1, color=INK, linewidth=1)
    for place, (label, values) in enumerate(series.items()):
        array = as_array(label, values, ndim=2)
        _, mean = as_line(label, x, array.mean(1))
        at = as_number(label, crossings[label])
        words = f"crosses 1 at {at:,.0f}" if np.isfinite(at) else "does not cross 1 here"
        axes.errorbar(
            x,
            mean,
            yerr=np.stack([mean - array.min(1), array.max(1) - mean]),
            fmt=MARKERS[place] + "-",
            color=colours[label],
            linewidth=1.4,
            capsize=3,
            label=f"{label} {words}",
        )
        if np.isfinite(at):
            axes.plot([at], [1], "X", color=colours[label], markeredgecolor=INK, markersize=10)
    finish(axes, [x], xlabel=xlabel, ylabel=ylabel, logx=True, logy=True, ticks=ticks)
    if alt is None:
        alt = f"{ylabel} against {xlabel}, mean and spread, for {', '.join(series)}."
    return Picture(figure, alt=alt, finding=finding)
