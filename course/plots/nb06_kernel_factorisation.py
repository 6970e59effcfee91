"""Pictures of notebook 06: scores against their features, and where two programs cross."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from course.plots.parts import as_array, as_line, as_number, colours_of, finish, require_some
from course.plots.style import COLOURS, INK, MARKERS, Picture, new_figure, styled


@styled
def clouds(
    groups: Mapping[str, tuple[object, object]],
    law: tuple[str, object, object],
    *,
    xlabel: str,
    ylabel: str,
    finding: str,
    alt: str | None = None,
    size: tuple[float, float] = (9.2, 3.0),
) -> Picture:
    """Clouds of points side by side, title → (x, y), each with the same law (label, x, y).

    The vertical axis is shared and logarithmic; points that are not positive are left out.
    """
    require_some("groups", groups)
    figure = new_figure(*size)
    line = as_line(*law)
    grid = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axes, (title, cloud) in zip(grid, groups.items(), strict=True):
        x, y = as_line(title, *cloud)
        axes.plot(x[y > 0], y[y > 0], ".", color=COLOURS[0], alpha=0.35, markersize=3, zorder=2)
        axes.plot(*line, color=COLOURS[1], linewidth=1.8, label=law[0], zorder=3)
        axes.set(yscale="log", xlabel=xlabel, title=title)
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
