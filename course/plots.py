"""Pictures that state their finding: pure functions from arrays to a :class:`Picture`.

A picture is a PNG with alt text and, as plain text, one sentence with the numbers drawn. A reader
without a kernel, a screen reader and the notebook comparison all get that sentence.

    curves({"measured": (t, y)}, xlabel="distance", ylabel="gradient",
           finding="At distance 20 the gradient is 3e-05 of its start.")

Write your own with ``with style(): figure = new_figure(width, height)``, draw on
``figure.subplots()``, and return ``Picture(figure, alt=..., finding=...)``. No pyplot: a figure
belongs to whoever holds it, and nothing stays open.
"""

from __future__ import annotations

import io
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
from matplotlib import colormaps, rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.ticker import (
    LogFormatter,
    LogFormatterMathtext,
    LogLocator,
    MaxNLocator,
    NullLocator,
)
from PIL import Image

if TYPE_CHECKING:
    from course.cost import Machine

WEIGHTS = "cividis"  # 0…1: readable in grey and with any colour vision
SIGNED = "RdBu_r"  # centred on 0: blue below, red above
INK, QUIET, HIDDEN = "#22262b", "#6b7280", "#dfe2e6"
# Okabe and Ito (2008), without yellow: distinct for every kind of colour vision, dark first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P")

CSS_PIXELS_PER_INCH = 96
_DPI = 144  # one and a half image pixels per CSS pixel: sharp on most screens, still small

_STYLE: Any = {  # Any: matplotlib types each key as a Literal
    "font.family": ["DejaVu Sans"],  # ships with matplotlib: the same on every machine
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.titley": 1.0,  # a fixed height: searching for it costs a sixth of each redraw
    "axes.labelsize": 10,
    "axes.labelcolor": INK,
    "axes.edgecolor": QUIET,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.facecolor": "white",
    "text.color": INK,
    "text.usetex": False,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "grid.color": "#e5e7eb",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 2.0,
    "lines.markersize": 6.5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.transparent": False,
    "hatch.color": "#b6bcc4",
    "hatch.linewidth": 0.8,
    "path.simplify": True,
}

# Jupyter answers widgets in threads of their own, and matplotlib's settings are the process's.
_DRAWING = threading.RLock()
_NO_GLYPH = ".*missing from font.*"

_P = ParamSpec("_P")


@contextmanager
def style() -> Iterator[None]:
    """The course's matplotlib settings; artists made inside keep them.

    A letter that the font lacks (a reader's own word may have some) is drawn as a box, quietly.
    """
    with _DRAWING, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_NO_GLYPH, category=UserWarning)
        # Only our own keys: rc_context copies all three hundred, a tenth of an explorer's redraw.
        saved = {key: rcParams[key] for key in _STYLE}
        rcParams.update(_STYLE)
        try:
            yield
        finally:
            rcParams.update(saved)


def new_figure(width: float = 7.0, height: float = 3.4) -> Figure:
    """A white figure of ``width`` × ``height`` CSS inches (96 pixels) that lays itself out."""
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    figure = Figure(figsize=(width, height), dpi=_DPI, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def freeze(figure: Figure) -> None:
    """Lay the figure out once and keep that layout: later drawing is faster and does not move."""
    if figure.get_layout_engine() is None:
        return
    with style():
        figure.draw_without_rendering()
    figure.set_layout_engine(None)


def png(figure: Figure) -> bytes:
    """The figure as PNG bytes: the same figure gives the same bytes (no date, no software name)."""
    freeze(figure)  # each further pass of the layout would move it a little, and change the bytes
    canvas = FigureCanvasAgg(figure)
    with style():
        canvas.draw()
    return encode(canvas)


def encode(canvas: FigureCanvasAgg, *, compress_level: int = 9) -> bytes:
    """What ``canvas`` shows as PNG bytes; level 1 is quick, 9 is small."""
    pixels = Image.fromarray(np.asarray(canvas.buffer_rgba()))
    buffer = io.BytesIO()
    # Without the alpha channel: a dark page must not shine through.
    pixels.convert("RGB").save(buffer, format="png", compress_level=compress_level)
    return buffer.getvalue()


class Picture:
    """A figure with its alt text and its finding; displays as PNG, compares as text.

    ``alt`` says what is drawn (for a reader who does not see it), ``finding`` says in one sentence
    what it shows, with the numbers drawn. Raises ``ValueError`` if either is empty or not one line.
    """

    def __init__(self, figure: Figure, *, alt: str, finding: str) -> None:
        self.figure = figure
        self.alt = one_line("alt", alt)
        self.finding = one_line("finding", finding)

    def png(self) -> bytes:
        """The picture as deterministic PNG bytes."""
        return png(self.figure)

    def __repr__(self) -> str:
        return self.finding

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        width, height = self.figure.get_size_inches() * CSS_PIXELS_PER_INCH
        shown = {"alt": self.alt, "width": round(width), "height": round(height)}
        return {"image/png": self.png(), "text/plain": self.finding}, {"image/png": shown}


def one_line(argument: str, text: object) -> str:
    """``text`` stripped; raises ``ValueError`` unless it is a line of text that says something."""
    if not isinstance(text, str) or not text.strip() or "\n" in text.strip():
        raise ValueError(f"{argument}: expected one non-empty line of text, got {text!r}")
    return text.strip()


def _styled(draw: Callable[_P, Picture]) -> Callable[_P, Picture]:
    @wraps(draw)
    def inside(*args: _P.args, **kwargs: _P.kwargs) -> Picture:
        with style():
            return draw(*args, **kwargs)

    return inside


# --- parts that several pictures and explorers share ------------------------------------------


def as_array(argument: str, values: object, *, ndim: int | None = None) -> np.ndarray:
    """A tensor or array as float64 NumPy; raises ``ValueError`` on a wrong number of axes."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    array = np.asarray(values, dtype=np.float64)
    if ndim is not None and array.ndim != ndim:
        raise ValueError(f"{argument}: expected {ndim} axes, got shape {list(array.shape)}")
    return array


def cividis(values: object) -> np.ndarray:
    """RGBA colours [..., 4] of weights in 0…1."""
    return colour_map(WEIGHTS)(np.clip(as_array("values", values), 0, 1))


def colour_map(name: str) -> Colormap:
    """The colour map ``name``; entries that are NaN are drawn as hidden (light grey)."""
    return colormaps[name].with_extremes(bad=HIDDEN)


def signed_norm(values: np.ndarray) -> Normalize:
    """Limits ±max|value|, so that 0 has the middle colour of a diverging map."""
    finite = np.abs(values[np.isfinite(values)])
    limit = float(finite.max()) if finite.size and finite.max() > 0 else 1.0
    return Normalize(-limit, limit)


def short(word: str, limit: int = 12) -> str:
    """``word``, cut with an ellipsis if it is longer than ``limit`` characters."""
    return word if len(word) <= limit else word[: limit - 1] + "…"


def label_tokens(
    axes: Axes,
    *,
    rows: Sequence[str] | None,
    columns: Sequence[str] | None,
    upright: bool | None = None,
) -> None:
    """Write tokens beside the rows and under the columns of a heat map; size follows their number.

    ``upright`` None turns the columns' tokens when they would touch. Tokens are drawn as they are:
    a ``$`` in a word starts no formula.
    """
    for axis, words in ((axes.yaxis, rows), (axes.xaxis, columns)):
        if words is not None:
            size = float(np.clip(195 / max(len(words), 1), 5.5, 9.0))
            labels = [short(word) for word in words]
            axis.set_ticks(range(len(words)), labels, fontsize=size, parse_math=False)
    if columns is not None:
        if upright is None:
            upright = max((len(short(w)) for w in columns), default=0) * len(columns) <= 34
        axes.tick_params(axis="x", labelrotation=0 if upright else 90)


def draw_matrix(
    axes: Axes, matrix: np.ndarray, *, signed: bool, digits: int | None = None
) -> tuple[AxesImage, list[Text]]:
    """Draw ``matrix`` [T, S] as a heat map; NaN is hidden. Returns the image and its numbers.

    ``signed``: diverging map centred on 0, else cividis on 0…1. ``digits``: decimals of the number
    printed in each cell; None prints none.
    """
    norm = signed_norm(matrix) if signed else Normalize(0, 1)
    image = axes.imshow(
        matrix,
        cmap=colour_map(SIGNED if signed else WEIGHTS),
        norm=norm,
        aspect="equal",
        interpolation="nearest",
    )
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0)
    numbers: list[Text] = []
    if digits is not None:
        size = float(np.clip(62 / max(matrix.shape), 5.0, 9.0))
        for (row, column), value in np.ndenumerate(matrix):
            if np.isfinite(value):
                numbers.append(
                    axes.text(
                        column,
                        row,
                        number(value, digits),
                        ha="center",
                        va="center",
                        fontsize=size,
                        color=readable_on(image.cmap(norm(value))),
                    )
                )
    return image, numbers


def number(value: float, digits: int) -> str:
    """``value`` with ``digits`` decimals, a true minus sign and no −0."""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


def readable_on(rgba: Sequence[float]) -> str:
    """White or near-black, whichever reads better on the colour ``rgba``."""
    red, green, blue = rgba[:3]
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.52 else "#16191d"


# --- pictures -----------------------------------------------------------------------------------


@_styled
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
) -> Picture:
    """A matrix [T, S] as a heat map with tokens on rows and columns.

    ``tokens`` names the rows, ``columns`` the columns (default: the same as the rows when T = S).
    ``hidden`` [T, S] boolean, True = grey, for what a mask cuts. ``signed``: diverging map centred
    on 0; else cividis on 0…1. ``digits`` None prints numbers up to 10×10 with two decimals.
    Raises ``ValueError`` on a wrong rank or number of tokens, or a weight outside 0…1.
    """
    array = as_array("matrix", matrix, ndim=2)
    if hidden is not None:
        array = np.where(np.asarray(hidden, dtype=bool), np.nan, array)
    if not signed and (np.nanmin(array) < -1e-6 or np.nanmax(array) > 1 + 1e-6):
        raise ValueError(
            "matrix: expected weights in 0…1, or signed=True; "
            f"got values from {np.nanmin(array):.3g} to {np.nanmax(array):.3g}"
        )
    if columns is None and array.shape[0] == array.shape[1]:
        columns = tokens
    for name, words, count in (
        ("tokens", tokens, array.shape[0]),
        ("columns", columns, array.shape[1]),
    ):
        if words is not None and len(words) != count:
            raise ValueError(f"{name}: expected {count} words, got {len(words)}")
    if digits is None and max(array.shape) <= 10:
        digits = 2
    rows, cols = array.shape
    scale = size / max(rows, cols)
    figure = new_figure(max(cols * scale, 2.0) + 1.5, max(rows * scale, 1.2) + 1.0)
    axes = figure.subplots()
    image, _ = draw_matrix(axes, array, signed=signed, digits=digits)
    label_tokens(axes, rows=tokens, columns=columns)
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=24, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_locator(MaxNLocator(5))
    if alt is None:
        kind = "signed values" if signed else "weights from 0 to 1"
        named = f" for the words {' '.join(tokens)}" if tokens is not None else ""
        alt = f"Heat map of {kind}, {rows} rows by {cols} columns{named}."
    return Picture(figure, alt=alt, finding=finding)


@_styled
def heatmaps(
    matrices: Mapping[str, object],
    tokens: Sequence[str] | None = None,
    *,
    finding: str,
    alt: str | None = None,
    hidden: object = None,
    signed: bool | Sequence[bool] = False,
    digits: int | None = None,
    size: float = 2.9,
) -> Picture:
    """Several matrices [T, S] side by side, each under its title; options as in :func:`heatmap`.

    ``signed`` may be one value or one for each matrix; the unsigned ones share the scale 0…1.
    """
    arrays = [as_array(title, matrix, ndim=2) for title, matrix in matrices.items()]
    kinds = [signed] * len(arrays) if isinstance(signed, bool) else list(signed)
    if hidden is not None:
        arrays = [np.where(np.asarray(hidden, dtype=bool), np.nan, array) for array in arrays]
    figure = new_figure(len(arrays) * (size + 0.3) + 0.6, size + 1.0)
    grid = figure.subplots(1, len(arrays), squeeze=False)[0]
    for place, (axes, title, array, kind) in enumerate(
        zip(grid, matrices, arrays, kinds, strict=True)
    ):
        shown = 2 if digits is None and max(array.shape) <= 7 else digits
        draw_matrix(axes, array, signed=kind, digits=shown)
        label_tokens(axes, rows=tokens if place == 0 else None, columns=tokens)
        if place and tokens is not None:
            axes.set_yticks([])
        axes.set_title(title)
    if alt is None:
        alt = f"{len(arrays)} heat maps side by side: {', '.join(matrices)}."
    return Picture(figure, alt=alt, finding=finding)


@_styled
def law_and_points(
    law: Mapping[str, tuple[object, object]],
    points: Mapping[str, Sequence[object]],
    *,
    xlabel: str,
    ylabel: str,
    finding: str,
    alt: str | None = None,
    title: str = "",
    logx: bool = False,
    logy: bool = False,
    ticks: Sequence[float] | None = None,
    size: tuple[float, float] = (6.6, 3.8),
) -> Picture:
    """The law as a line, the measurement as points: label → (x, y).

    A point series (x, y, low, high) has intervals. A label that occurs in both gets one colour.
    ``ticks`` are the places named on the horizontal axis.
    """
    figure = new_figure(*size)
    axes = figure.subplots()
    colours = _colours([*law, *points])
    for label, (x, y) in law.items():
        axes.plot(_x(x), as_array(label, y), color=colours[label], label=f"law: {label}", zorder=2)
    for place, (label, series) in enumerate(points.items()):
        x, y, *interval = series
        y = as_array(label, y)
        errors = None
        if interval:
            low, high = (as_array(label, end) for end in interval)
            errors = np.stack([y - low, high - y])
        axes.errorbar(
            _x(x),
            y,
            yerr=errors,
            fmt=MARKERS[place % len(MARKERS)],
            color=colours[label],
            markeredgecolor="white",
            elinewidth=1.4,
            capsize=3,
            label=f"measured: {label}",
            zorder=3,
        )
    xs = [series[0] for series in (*law.values(), *points.values())]
    _finish(axes, xs, xlabel, ylabel, title, logx, logy, ticks)
    if alt is None:
        alt = (
            f"{ylabel} against {xlabel}: the law as a line ({', '.join(law)}), "
            f"the measurement as points ({', '.join(points)})."
        )
    return Picture(figure, alt=alt, finding=finding)


@_styled
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
    colours = _colours(list(lines))
    for label, (x, y) in lines.items():
        axes.plot(_x(x), as_array(label, y), color=colours[label], label=label)
    if floor is not None:
        axes.axhline(floor[1], color=INK, linestyle=(0, (5, 3)), linewidth=1.4, label=floor[0])
    _finish(axes, [x for x, _ in lines.values()], xlabel, ylabel, title, logx, logy, ticks)
    if alt is None:
        alt = f"{ylabel} against {xlabel}, one line each for {', '.join(lines)}."
    return Picture(figure, alt=alt, finding=finding)


@_styled
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
    names = list(values)
    heights = as_array("values", [values[name] for name in names], ndim=1)
    figure = new_figure(width, 0.42 * len(names) + 1.1)
    axes = figure.subplots()
    axes.barh(names, heights, color=COLOURS[0], height=0.62)
    for name, (low, high) in (intervals or {}).items():
        axes.plot([low, high], [name, name], color=INK, linewidth=1.6, marker="|")
    ends = np.array([max((intervals or {}).get(n, (0, 0))[1], values[n]) for n in names])
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
        axes.axvline(floor[1], color=COLOURS[1], linestyle=(0, (5, 3)), linewidth=1.6)
        axes.annotate(
            f"{floor[0]}: {number(floor[1], digits)}",
            (floor[1], 1),
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
        least = min([float(heights.min()), *(low for low, _ in (intervals or {}).values())])
        axes.set_xlim(10.0 ** math.floor(math.log10(least)), 1.8 * float(ends.max()))
    else:
        axes.margins(x=0.12)
        axes.set_xlim(left=min(0.0, float(heights.min())))
    axes.set(xlabel=xlabel)
    axes.set_title(title, pad=20 if floor is not None else None)
    axes.grid(axis="x")
    if alt is None:
        alt = f"Bars of {xlabel}, top to bottom: {', '.join(names)}."
    return Picture(figure, alt=alt, finding=finding)


def _x(values: object) -> np.ndarray:
    return as_array("x", values, ndim=1)


def _colours(labels: Sequence[str]) -> dict[str, str]:
    unique = list(dict.fromkeys(labels))
    return {label: COLOURS[place % len(COLOURS)] for place, label in enumerate(unique)}


def _finish(
    axes: Axes,
    xs: Sequence[object],
    xlabel: str,
    ylabel: str,
    title: str,
    logx: bool,
    logy: bool,
    ticks: Sequence[float] | None,
) -> None:
    if logx:
        axes.set_xscale("log")
    if logy:
        axes.set_yscale("log")
    axes.grid(True)
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    if ticks is not None:
        axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    elif not logx and all((_x(x) == np.round(_x(x))).all() for x in xs):
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    low, high = axes.get_ylim()
    if logy and low >= 1 and high <= min(100 * low, 10_000):
        # So few decades name places between them: 200 reads better than 2×10².
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter())
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend()


# --- pictures of one notebook -------------------------------------------------------------------


@_styled
def panels(
    groups: Mapping[str, Mapping[str, tuple[object, object]]],
    *,
    xlabel: str,
    finding: str,
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
    with a logarithmic axis; ``ticks`` are the places named on the horizontal axis. One legend
    stands below.
    """
    figure = new_figure(*size)
    labels = list(dict.fromkeys(label for lines in groups.values() for label in lines))
    colours = _colours([label for label in labels if label not in dashed])
    colours |= _colours([label for label in labels if label in dashed])
    for axes, (title, lines) in zip(
        figure.subplots(1, len(groups), squeeze=False)[0], groups.items(), strict=True
    ):
        for label, (x, y) in lines.items():
            axes.plot(
                _x(x),
                as_array(label, y),
                color=colours[label],
                linestyle=(0, (4, 2)) if label in dashed else "-",
                marker=MARKERS[labels.index(label) % len(MARKERS)] if points else None,
                label=label,
            )
        if logx:
            axes.set_xscale("log")
        if title in logy:
            axes.set_yscale("log")
            heights = np.concatenate([as_array("y", y) for _, y in lines.values()])
            span = heights.max() / heights.min()
            subs = (1, 1.5, 2, 3, 5, 7) if span < 20 else (1, 3) if span < 1_000 else (1,)
            axes.yaxis.set_major_locator(LogLocator(subs=subs))
            axes.yaxis.set_major_formatter("{x:g}" if span < 1_000 else LogFormatterMathtext())
            axes.yaxis.set_minor_locator(NullLocator())
        if ticks is not None:
            axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
            axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(True)
        axes.set(xlabel=xlabel, title=title)
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


@_styled
def four_forms(*, finding: str, T: int = 9, chunk: int = 3) -> Picture:
    """What the four forms of linear attention compute and keep, for ``T`` tokens.

    A row is a token. Left in each panel the scores that are computed, right the states S that are
    kept (filled) or were overwritten (outlined).
    """
    figure = new_figure(9.2, 2.7)
    place = np.arange(T)
    same = place[:, None] // chunk == place // chunk
    past = place[:, None] >= place
    ends = (place + 1) % chunk == 0
    forms = {
        "parallel: a book": (past, np.zeros(T), np.zeros(T)),
        "scan: a sheet a word": (np.zeros((T, T)), np.ones(T), np.ones(T)),
        "recurrent: a story": (np.zeros((T, T)), place == T - 1, np.ones(T)),
        "chunk: chapters": (past & same, place == T - 1, ends | (place == T - 1)),
    }
    for axes, (title, (scores, kept, made)) in zip(
        figure.subplots(1, len(forms)), forms.items(), strict=True
    ):
        for row, column in np.argwhere(past):
            colour = COLOURS[0] if scores[row, column] else "#f1f3f5"
            axes.add_patch(Rectangle((column, row), 0.9, 0.9, facecolor=colour))
        for row in np.flatnonzero(made):
            fill = COLOURS[1] if kept[row] else "white"
            axes.add_patch(
                Rectangle(
                    (T + 1.05, row + 0.05), 0.8, 0.8, facecolor=fill, edgecolor=COLOURS[1], lw=1.2
                )
            )
        axes.set(xlim=(-0.4, T + 2.4), ylim=(T + 0.2, -0.4), title=title, yticks=[])
        axes.set_xticks([T / 2, T + 1.45], ["scores", "S"])
        axes.tick_params(length=0)
        axes.set_aspect("equal")
        for side in axes.spines.values():
            side.set_visible(False)
    figure.axes[0].set_ylabel("token")
    alt = (
        f"Four panels for {T} tokens, a row a token. Parallel: every score of the lower triangle, "
        "no state. Scan: no score, a state kept for every token. Recurrent: no score, one state, "
        f"overwritten at every token. Chunk: small triangles of {chunk} tokens on the diagonal, "
        "and one state, overwritten at the end of each."
    )
    return Picture(figure, alt=alt, finding=finding)


@_styled
def roofline(
    machines: Sequence[Machine],
    programs: Mapping[str, float],
    *,
    finding: str,
    alt: str | None = None,
    size: tuple[float, float] = (7.2, 4.2),
) -> Picture:
    """What each machine can do at most, in TFLOP/s, against the operations a program does a byte.

    ``programs``: name → operations a byte, an upright line with a point on every roof.
    """
    figure = new_figure(*size)
    axes = figure.subplots()
    ends = [*programs.values(), *(machine.ridge for machine in machines)]
    line = np.geomspace(min(ends) / 2, max(ends) * 3, 400)
    for machine, colour in zip(machines, COLOURS, strict=False):
        height = [machine.attainable(x) / 1e12 for x in line]
        axes.plot(line, height, color=colour, label=machine.name)
        axes.plot(
            list(programs.values()),
            [machine.attainable(x) / 1e12 for x in programs.values()],
            "o",
            color=colour,
            markeredgecolor="white",
            zorder=3,
        )
    for name, intensity in programs.items():
        axes.axvline(intensity, color=QUIET, linestyle=(0, (2, 2)), linewidth=1, zorder=1)
        axes.annotate(
            name,
            (intensity, 0.02),
            xycoords=("data", "axes fraction"),
            xytext=(-3, 0),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="bottom",
            fontsize=9,
        )
    _finish(
        axes, [line], "operations a byte of main memory", "TFLOP/s at best", "", True, True, None
    )
    axes.set_xlim(line[0], line[-1])
    axes.legend(loc="lower right", reverse=True)  # in the order of the roofs
    if alt is None:
        alt = (
            f"Rooflines of {', '.join(machine.name for machine in machines)}: a slope, then a flat "
            f"part; upright lines for {', '.join(programs)}."
        )
    return Picture(figure, alt=alt, finding=finding)


@_styled
def traffic(
    programs: Mapping[str, Mapping[str, float]],
    *,
    finding: str,
    alt: str | None = None,
    levels: tuple[str, str] = ("main memory", "chip"),
    size: tuple[float, float] | None = None,
) -> Picture:
    """What moves between two levels of memory: a panel a program, an arrow a tensor.

    Values are MiB, positive into the chip and negative out of it. An arrow is as thick as what
    moves, in all panels alike; the thinnest are hairlines.
    """
    most = max(abs(amount) for flows in programs.values() for amount in flows.values())
    rows = max(map(len, programs.values()))
    figure = new_figure(*(size or (min(9.2, 3.4 * len(programs)), 1.0 + 0.46 * rows)))
    for axes, (title, flows) in zip(
        figure.subplots(1, len(programs), squeeze=False)[0], programs.items(), strict=True
    ):
        height = rows * 1.0
        for x, level in zip((0.0, 8.0), levels, strict=True):
            axes.add_patch(Rectangle((x, 0), 2, height, facecolor="#eef1f5", edgecolor=QUIET))
            axes.text(x + 1, height / 2, level, rotation=90, ha="center", va="center", fontsize=9)
        for row, (name, amount) in enumerate(flows.items()):
            thick = max(0.02, 0.42 * abs(amount) / most)
            start, end = (2.2, 7.8) if amount > 0 else (7.8, 2.2)
            axes.arrow(
                start,
                height - row - 0.67,
                end - start,
                0,
                width=thick,
                head_width=thick + 0.22,
                head_length=0.5,
                length_includes_head=True,
                color=COLOURS[0] if amount > 0 else COLOURS[1],
                linewidth=0,
            )
            axes.text(
                5,
                height - row - 0.25,
                f"{name}: {abs(amount):,.3g} MiB",
                ha="center",
                va="center",
                fontsize=9,
            )
        total = sum(map(abs, flows.values()))
        axes.set_title(f"{title}: {total:,.3g} MiB")
        axes.set(xlim=(-0.2, 10.2), ylim=(-0.15, height + 0.15))
        axes.axis("off")
    if alt is None:
        alt = (
            f"Between {levels[0]} and {levels[1]}, for {', '.join(programs)}: an arrow a tensor, "
            "as thick as the bytes that move."
        )
    return Picture(figure, alt=alt, finding=finding)


@_styled
def tiles(
    visible: object,
    tile: int,
    *,
    finding: str,
    alt: str | None = None,
    program: int | None = None,
    size: float = 4.4,
) -> Picture:
    """Which tiles of the scores a kernel computes, from the mask ``visible`` [T, S], True = seen.

    A row of tiles is one program, ``program`` has a frame. Whole tiles are dark, partly hidden
    ones light, skipped ones empty; lanes beyond the last token are hatched.
    """
    seen = np.asarray(visible, dtype=bool)
    (T, S), figure = seen.shape, new_figure(size + 1.9, size)
    axes = figure.subplots()
    down, across = -(-T // tile), -(-S // tile)
    for i in range(down):
        for j in range(across):
            here = seen[i * tile : (i + 1) * tile, j * tile : (j + 1) * tile]
            colour = COLOURS[0] if here.all() else COLOURS[4] if here.any() else "white"
            axes.add_patch(
                Rectangle((j * tile, i * tile), tile, tile, facecolor=colour, edgecolor=QUIET, lw=1)
            )
    for x, y, wide, high in (
        (S, 0, across * tile - S, down * tile),
        (0, T, S, down * tile - T),
    ):
        axes.add_patch(
            Rectangle((x, y), wide, high, facecolor="white", alpha=0.65, edgecolor=QUIET, lw=0)
        )
        axes.add_patch(
            Rectangle((x, y), wide, high, facecolor="none", edgecolor=QUIET, lw=0, hatch="////")
        )
    if program is not None:
        axes.add_patch(
            Rectangle(
                (0, program * tile),
                across * tile,
                tile,
                facecolor="none",
                edgecolor=COLOURS[1],
                lw=2.5,
                label=f"program {program}",
            )
        )
    for label, colour in (
        ("whole", COLOURS[0]),
        ("partly hidden", COLOURS[4]),
        ("skipped", "white"),
    ):
        axes.add_patch(Rectangle((0, 0), 0, 0, facecolor=colour, edgecolor=QUIET, label=label))
    axes.add_patch(
        Rectangle((0, 0), 0, 0, facecolor="white", edgecolor=QUIET, hatch="////", label="no token")
    )
    axes.set(
        xlim=(-0.5, across * tile + 0.5),
        ylim=(down * tile + 0.5, -0.5),
        xlabel="keys",
        ylabel="queries",
        xticks=[j * tile for j in range(across)] + [S],
        yticks=[i * tile for i in range(down)] + [T],
    )
    axes.set_aspect("equal")
    for side in axes.spines.values():
        side.set_visible(False)
    figure.legend(loc="outside right upper")
    if alt is None:
        alt = (
            f"Scores of {T} queries and {S} keys cut into tiles of {tile} by {tile}: computed "
            "whole, computed and partly hidden, or skipped."
        )
    return Picture(figure, alt=alt, finding=finding)


@_styled
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
    figure = new_figure(*size)
    grid = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axes, (title, (x, y)) in zip(grid, groups.items(), strict=True):
        x, y = _x(x), _x(y)
        axes.plot(x[y > 0], y[y > 0], ".", color=COLOURS[0], alpha=0.35, markersize=3, zorder=2)
        axes.plot(_x(law[1]), _x(law[2]), color=COLOURS[1], linewidth=1.8, label=law[0], zorder=3)
        axes.set(yscale="log", xlabel=xlabel, title=title)
        axes.grid(True)
    grid[0].set(ylabel=ylabel)
    grid[0].legend(loc="upper left")
    if alt is None:
        alt = f"{ylabel} against {xlabel}, a cloud each for {', '.join(groups)}, with {law[0]}."
    return Picture(figure, alt=alt, finding=finding)


@_styled
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
    colours = _colours(list(series))
    axes.axhline(1, color=INK, linewidth=1)
    for place, (label, values) in enumerate(series.items()):
        array = as_array(label, values, ndim=2)
        mean = array.mean(1)
        at = crossings[label]
        words = f"crosses 1 at {at:,.0f}" if np.isfinite(at) else "does not cross 1 here"
        axes.errorbar(
            _x(x),
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
    _finish(axes, [x], xlabel, ylabel, "", True, True, ticks)
    if alt is None:
        alt = f"{ylabel} against {xlabel}, mean and spread, for {', '.join(series)}."
    return Picture(figure, alt=alt, finding=finding)


@_styled
def two_pasts(pasts: Mapping[str, tuple[object, object]], *, finding: str) -> Picture:
    """Title → (values [T, Dv], state [C, Dv]): the values as strips, the states as numbers.

    All values share one scale, all states another; both are centred on 0.
    """
    values = [as_array(title, one, ndim=2).T for title, (one, _) in pasts.items()]
    states = [as_array(title, state, ndim=2) for title, (_, state) in pasts.items()]
    figure = new_figure(9.2, 1.7 * len(pasts) + 0.3)
    grid = figure.subplots(len(pasts), 2, width_ratios=[2.6, 1], squeeze=False)
    for axes, title, strip, state in zip(grid, pasts, values, states, strict=True):
        for one, matrix, everything in ((axes[0], strip, values), (axes[1], state, states)):
            digits = None if matrix is strip else 1
            image, _ = draw_matrix(one, matrix, signed=True, digits=digits)
            image.set_norm(signed_norm(np.concatenate(everything)))
            one.set_aspect("auto")
            one.set(xticks=[], yticks=[])
        axes[0].set_title(f"{title}: {strip.shape[1]} values")
        axes[1].set_title("state S")
        axes[0].set(xlabel="token", ylabel="coordinate")
        axes[1].set(xlabel="coordinate", ylabel="feature")
    alt = (
        f"For each of {', '.join(pasts)}: a coloured strip of the values over the tokens, and the "
        "state they leave as a table of numbers."
    )
    return Picture(figure, alt=alt, finding=finding)
