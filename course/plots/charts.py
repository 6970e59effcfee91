"""General charts: pure functions from numbers to a picture.

    curves({"measured": (t, y)}, xlabel="distance", ylabel="gradient",
           finding="At distance 20 the gradient is 3e-05 of its start.")

Numbers are tensors of any dtype, arrays, lists or scalars.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogFormatterMathtext, LogLocator, MaxNLocator, NullLocator

from course.plots.parts import (
    as_array,
    as_line,
    as_mask,
    as_number,
    colours_of,
    draw_matrix,
    finish,
    label_tokens,
    name_ticks,
    number,
    require_some,
)
from course.plots.style import COLOURS, INK, MARKERS, Picture, new_figure, styled


@styled
def heatmap(
    matrix: object,
    tokens: Sequence[str] | None = None,
    *,
    finding: str,
    alt: str | None = None,
    columns: Sequence[str] | None = None,
    hidden: object = None,
    signed: bool = False,
    digits: int | None = None,
    title: str = "",
    xlabel: str = "key: the word looked at",
    ylabel: str = "query: the word that looks",
    size: float = 4.6,
    mark: int | None = None,
) -> Picture:
    """A matrix [T, S] as a heat map with tokens on rows and columns.

    ``tokens`` names the rows, ``columns`` the columns (default: the same as the rows when T = S).
    ``hidden`` [T, S] boolean, True = grey, for what a mask cuts. ``signed``: diverging map centred
    on 0; else cividis on 0…1. ``digits`` None prints numbers up to 10×10 with two decimals.
    ``size``: inches of the longer side. ``mark``: the column that is framed.
    Raises ``ValueError`` on a wrong rank, number of tokens or column, or a weight outside 0…1.
    """
    array = _matrix("matrix", matrix, hidden, signed)
    if columns is None and array.shape[0] == array.shape[1]:
        columns = tokens
    _require_words("tokens", tokens, array.shape[0])
    _require_words("columns", columns, array.shape[1])
    if digits is None and max(array.shape) <= 10:
        digits = 2
    rows, cols = array.shape
    if mark is not None and not 0 <= mark < cols:
        raise ValueError(f"mark: expected a column from 0 to {cols - 1}, got {mark}")
    scale = size / max(rows, cols)
    figure = new_figure(max(cols * scale, 2.0) + 1.5, max(rows * scale, 1.2) + 1.0)
    axes = figure.subplots()
    image, _ = draw_matrix(axes, array, signed=signed, digits=digits, larger=size / 4.6)
    label_tokens(axes, rows=tokens, columns=columns)
    if mark is not None:
        frame = Rectangle((mark - 0.5, -0.5), 1, rows, fill=False, edgecolor=COLOURS[1])
        frame.set(linewidth=2.4, clip_on=False, zorder=3)
        axes.add_patch(frame)
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=24, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_locator(MaxNLocator(5))
    if alt is None:
        kind = "signed values" if signed else "weights from 0 to 1"
        named = f" for the words {' '.join(tokens)}" if tokens is not None else ""
        framed = f"; column {mark + 1} is framed" if mark is not None else ""
        alt = f"Heat map of {kind}, {rows} rows by {cols} columns{named}{framed}."
    return Picture(figure, alt=alt, finding=finding)


@styled
def heatmaps(
    matrices: Mapping[str, object],
    tokens: Sequence[str] | None = None,
    *,
    finding: str,
    alt: str | None = None,
    hidden: object = None,
    signed: bool | Sequence[bool] = False,
    digits: int | None = None,
    first: int = 0,
    xlabel: str = "",
    ylabel: str = "",
    size: float = 2.9,
) -> Picture:
    """Several matrices [T, S] side by side, each under its title; options as in :func:`heatmap`.

    ``signed`` may be one value or one for each matrix; the unsigned ones share the scale 0…1.
    ``first`` is the number of the first row and column where ``tokens`` do not name them.
    """
    require_some("matrices", matrices)
    kinds = [signed] * len(matrices) if isinstance(signed, bool) else list(signed)
    if len(kinds) != len(matrices):
        raise ValueError(f"signed: expected {len(matrices)} of them, got {len(kinds)}")
    arrays = [
        _matrix(title, matrix, hidden, kind)
        for (title, matrix), kind in zip(matrices.items(), kinds, strict=True)
    ]
    for array in arrays:
        for count in array.shape:
            _require_words("tokens", tokens, count)
    figure = new_figure(len(arrays) * (size + 0.3) + 0.6, size + 1.0)
    grid = figure.subplots(1, len(arrays), squeeze=False)[0]
    for place, (axes, title, array, kind) in enumerate(
        zip(grid, matrices, arrays, kinds, strict=True)
    ):
        shown = 2 if digits is None and max(array.shape) <= 7 else digits
        draw_matrix(axes, array, signed=kind, digits=shown, first=0 if tokens else first)
        label_tokens(axes, rows=tokens if place == 0 else None, columns=tokens)
        if place and tokens is not None:
            axes.set_yticks([])
        axes.set(title=title, xlabel=xlabel, ylabel=ylabel if place == 0 else "")
    if alt is None:
        alt = f"{len(arrays)} heat maps side by side: {', '.join(matrices)}."
    return Picture(figure, alt=alt, finding=finding)


def _matrix(argument: str, values: object, hidden: object, signed: bool) -> np.ndarray:
    """A matrix with NaN where it is hidden, or ``ValueError``: unsigned ones are weights in 0…1."""
    array = as_array(argument, values, ndim=2)
    if array.size == 0:
        raise ValueError(f"{argument}: expected at least one entry, got shape {list(array.shape)}")
    if hidden is not None:
        mask = as_mask("hidden", hidden)
        if mask.shape != array.shape:
            raise ValueError(f"hidden: expected shape {list(array.shape)}, got {list(mask.shape)}")
        array = np.where(mask, np.nan, array)
    there = array[~np.isnan(array)]
    if not signed and there.size and (there.min() < -1e-6 or there.max() > 1 + 1e-6):
        raise ValueError(
            f"{argument}: expected weights in 0…1, or signed=True; "
            f"got values from {there.min():.3g} to {there.max():.3g}"
        )
    return array


def _require_words(name: str, words: Sequence[str] | None, count: int) -> None:
    if words is not None and len(words) != count:
        raise ValueError(f"{name}: expected {count} words, got {len(words)}")


@styled
def law_and_points(
    law: Mapping[str, tuple[object, object]],
    points: Mapping[str, Sequence[object]],
    *,
    xlabel: str,
    ylabel: str,
    finding: str,
    alt: str | None = None,
    title: str = "",
    names: tuple[str, str] = ("law", "measured"),
    logx: bool = False,
    logy: bool = False,
    ticks: Sequence[float] | None = None,
    size: tuple[float, float] = (6.6, 3.8),
) -> Picture:
    """The law as a line, the measurement as points: label → (x, y).

    A point series (x, y, low, high) has intervals. A label that occurs in both gets one colour.
    ``names`` is what the legend calls the lines and the points.
    ``ticks`` are the places named on the horizontal axis.
    """
    figure = new_figure(*size)
    axes = figure.subplots()
    colours = colours_of([*law, *points])
    xs = []
    for label, (x, y) in law.items():
        x, y = as_line(label, x, y)
        axes.plot(x, y, color=colours[label], label=f"{names[0]}: {label}", zorder=2)
        xs.append(x)
    for place, (label, (x, y, *interval)) in enumerate(points.items()):
        ends = [as_line(label, x, end)[1] for end in interval]
        x, y = as_line(label, x, y)
        errors = np.stack([y - ends[0], ends[1] - y]) if ends else None
        xs.append(x)
        axes.errorbar(
            x,
            y,
            yerr=errors,
            fmt=MARKERS[place % len(MARKERS)],
            color=colours[label],
            markeredgecolor="white",
            elinewidth=1.4,
            capsize=3,
            label=f"{names[1]}: {label}",
            zorder=3,
        )
    finish(axes, xs, xlabel=xlabel, ylabel=ylabel, title=title, logx=logx, logy=logy, ticks=ticks)
    if alt is None:
        alt = (
            f"{ylabel} against {xlabel}: the law as a line ({', '.join(law)}), "
            f"the measurement as points ({', '.join(points)})."
            if names == ("law", "measured")
            else f"{ylabel} against {xlabel}: lines {names[0]} ({', '.join(law)}), "
            f"points {names[1]} ({', '.join(points)})."
        )
    return Picture(figure, alt=alt, finding=finding)


@styled
def curves(
    lines: Mapping[str, tuple[object, object]],
    *,
    xlabel: str,
    ylabel: str,
    finding: str,
    alt: str | None = None,
    title: str = "",
    floor: tuple[str, float] | None = None,
    logx: bool = False,
    logy: bool = False,
    ticks: Sequence[float] | None = None,
    size: tuple[float, float] = (6.6, 3.8),
) -> Picture:
    """Lines label → (x, y); ``floor`` (label, value) is a dashed line across.

    ``ticks`` are the places named on the horizontal axis.
    """
    figure = new_figure(*size)
    axes = figure.subplots()
    colours = colours_of(list(lines))
    arrays = {label: as_line(label, x, y) for label, (x, y) in lines.items()}
    for label, (x, y) in arrays.items():
        axes.plot(x, y, color=colours[label], label=label)
    if floor is not None:
        height = as_number("floor", floor[1])
        axes.axhline(height, color=INK, linestyle=(0, (5, 3)), linewidth=1.4, label=floor[0])
    xs = [x for x, _ in arrays.values()]
    finish(axes, xs, xlabel=xlabel, ylabel=ylabel, title=title, logx=logx, logy=logy, ticks=ticks)
    if alt is None:
        alt = f"{ylabel} against {xlabel}, one line each for {', '.join(lines)}."
    return Picture(figure, alt=alt, finding=finding)


@styled
def bars(
    values: Mapping[str, float],
    *,
    xlabel: str,
    finding: str,
    alt: str | None = None,
    title: str = "",
    floor: tuple[str, float] | None = None,
    digits: int = 2,
    logx: bool = False,
    intervals: Mapping[str, tuple[float, float]] | None = None,
    width: float = 6.6,
) -> Picture:
    """Horizontal bars label → value, the number at each end; ``floor`` (label, value) is a line.

    ``intervals`` label → (low, high) draws an error bar. Bars run top to bottom in the given order.
    """
    require_some("values", values)
    names = list(values)
    heights = as_array("values", list(values.values()), ndim=1)
    ranges = {name: as_array(name, ends, ndim=1) for name, ends in (intervals or {}).items()}
    figure = new_figure(width, 0.42 * len(names) + 1.1)
    axes = figure.subplots()
    axes.barh(names, heights, color=COLOURS[0], height=0.62)
    for name, (low, high) in ranges.items():
        axes.plot([low, high], [name, name], color=INK, linewidth=1.6, marker="|")
    tops = [ranges[name][1] if name in ranges else 0.0 for name in names]
    ends = np.maximum(tops, heights)
    for place, (end, value) in enumerate(zip(ends, heights, strict=True)):
        axes.annotate(
            number(value, digits),
            (end, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},  # over the floor's line
        )
    if floor is not None:
        least = as_number("floor", floor[1])
        axes.axvline(least, color=COLOURS[1], linestyle=(0, (5, 3)), linewidth=1.6)
        axes.annotate(
            f"{floor[0]}: {number(least, digits)}",
            (least, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4),
            textcoords="offset points",
            color=COLOURS[1],
            fontsize=9,
            ha="center",
        )
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    if logx:
        axes.set_xscale("log")
        # Bars start at a power of ten that is named, with room for the number at the end.
        start = min([float(heights.min()), *(low for low, _ in ranges.values())])
        axes.set_xlim(10.0 ** math.floor(math.log10(start)), 1.8 * float(ends.max()))
    else:
        axes.margins(x=0.12)
        axes.set_xlim(left=min(0.0, float(heights.min())))
    axes.set(xlabel=xlabel)
    axes.set_title(title, pad=20 if floor is not None else None)
    axes.grid(axis="x")
    if alt is None:
        alt = f"Bars of {xlabel}, top to bottom: {', '.join(names)}."
    return Picture(figure, alt=alt, finding=finding)


@styled
def panels(
    groups: Mapping[str, Mapping[str, tuple[object, object]]],
    *,
    xlabel: str,
    finding: str,
    ylabel: str | Sequence[str] = "",
    alt: str | None = None,
    dashed: Sequence[str] = (),
    points: bool = False,
    logx: bool = False,
    logy: Sequence[str] = (),
    ticks: Sequence[float] | None = None,
    size: tuple[float, float] = (9.2, 3.3),
) -> Picture:
    """Small charts side by side, title → label → (x, y); one label has one colour in all of them.

    A label in ``dashed`` is dashed and has the colour of its place among the dashed ones, so that
    pairs of lines match. ``points`` marks every entry (a measurement). ``logy`` names the titles
    with a logarithmic axis; ``ticks`` are the places named on the horizontal axis. One ``ylabel``
    stands at the first chart only; several are one for each. One legend stands below.
    """
    require_some("groups", groups)
    sides = [ylabel] + [""] * (len(groups) - 1) if isinstance(ylabel, str) else list(ylabel)
    if len(sides) != len(groups):
        raise ValueError(f"ylabel: expected one or {len(groups)} of them, got {len(sides)}")
    figure = new_figure(*size)
    labels = list(dict.fromkeys(label for lines in groups.values() for label in lines))
    colours = colours_of([label for label in labels if label not in dashed])
    colours |= colours_of([label for label in labels if label in dashed])
    for axes, side, (title, lines) in zip(
        figure.subplots(1, len(groups), squeeze=False)[0], sides, groups.items(), strict=True
    ):
        require_some(title, lines)
        arrays = {label: as_line(label, x, y) for label, (x, y) in lines.items()}
        for label, (x, y) in arrays.items():
            axes.plot(
                x,
                y,
                color=colours[label],
                linestyle=(0, (4, 2)) if label in dashed else "-",
                marker=MARKERS[labels.index(label) % len(MARKERS)] if points else None,
                label=label,
            )
        if logx:
            axes.set_xscale("log")
        if title in logy:
            axes.set_yscale("log")
            heights = np.concatenate([y for _, y in arrays.values()])
            span = heights.max() / heights.min()
            subs = (1, 1.5, 2, 3, 5, 7) if span < 20 else (1, 3) if span < 1_000 else (1,)
            axes.yaxis.set_major_locator(LogLocator(subs=subs))
            axes.yaxis.set_major_formatter("{x:g}" if span < 1_000 else LogFormatterMathtext())
            axes.yaxis.set_minor_locator(NullLocator())
        name_ticks(axes, ticks)
        axes.grid(True)
        axes.set(xlabel=xlabel, ylabel=side, title=title)
    known = {
        name: handle
        for axes in figure.axes
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    handles, names = list(known.values()), list(known)
    rows = math.ceil(len(names) * (5 + max(map(len, names))) / (13 * size[0]))
    columns = math.ceil(len(names) / rows)
    figure.legend(handles, names, loc="outside lower center", ncols=columns)
    if alt is None:
        alt = (
            f"{len(groups)} charts against {xlabel}: {', '.join(groups)}; in each a line for "
            f"{', '.join(labels)}."
        )
    return Picture(figure, alt=alt, finding=finding)
