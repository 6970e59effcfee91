"""Parts that charts, diagrams and explorers share: arrays, colours, tokens, one heat map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, Normalize
from matplotlib.image import AxesImage
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter, MaxNLocator, NullLocator

from course.plots.diagrams import bare
from course.plots.style import COLOURS, HIDDEN, SIGNED, WEIGHTS
from course.verify import as_numbers


def as_array(argument: str, values: object, *, ndim: int | None = None) -> np.ndarray:
    """Numbers of any kind (tensor, array, list, scalar) as float64 NumPy.

    Raises ``ValueError`` for what are no real numbers and for a wrong number of axes.
    """
    array = as_numbers(argument, values).astype(np.float64)
    if ndim is not None and array.ndim != ndim:
        raise ValueError(f"{argument}: expected {ndim} axes, got shape {list(array.shape)}")
    return array


def as_number(argument: str, value: object) -> float:
    """One number of any kind as Python's own."""
    return float(as_array(argument, value, ndim=0))


def as_mask(argument: str, values: object) -> np.ndarray:
    """A boolean [T, S] of any kind as NumPy."""
    return as_array(argument, values, ndim=2).astype(bool)


def as_line(label: str, x: object, y: object) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of one length; ``ValueError`` names the label of the line."""
    places, heights = as_array("x", x, ndim=1), as_array(label, y, ndim=1)
    if len(places) != len(heights):
        raise ValueError(f"{label}: expected one y for each of {len(places)} x, got {len(heights)}")
    return places, heights


def require_some(argument: str, values: Mapping[str, object]) -> None:
    """Raise ``ValueError`` unless there is something to draw."""
    if not values:
        raise ValueError(f"{argument}: expected at least one entry, got none")


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


def clear_of_ticks(axes: Axes, *, both: bool = False) -> None:
    """Set the name of the horizontal axis below the tick labels as they are now.

    ``both``: and that of the vertical axis to their left.
    """
    figure = axes.get_figure(root=True)
    renderer = FigureCanvasAgg(figure).get_renderer()
    heights = [label.get_window_extent(renderer).height for label in axes.get_xticklabels()]
    deep = max(heights) + 0.16 * renderer.dpi
    whole = axes.get_window_extent(renderer)
    axes.xaxis.set_label_coords(0.5, -deep / whole.height)
    if both:
        widths = [label.get_window_extent(renderer).width for label in axes.get_yticklabels()]
        wide = max(widths) + 0.12 * renderer.dpi
        axes.yaxis.set_label_coords(-wide / whole.width, 0.5)


def draw_matrix(
    axes: Axes,
    matrix: np.ndarray,
    *,
    signed: bool,
    digits: int | None = None,
    first: int = 0,
    larger: float = 1.0,
) -> tuple[AxesImage, list[Text]]:
    """Draw ``matrix`` [T, S] as a heat map; NaN is hidden. Returns the image and its numbers.

    ``signed``: diverging map centred on 0, else cividis on 0…1. ``digits``: decimals of the number
    printed in each cell; None prints none. ``first``: what rows and columns are counted from.
    ``larger``: how many times larger than usual the cells are, and so their numbers may be.
    """
    norm = signed_norm(matrix) if signed else Normalize(0, 1)
    rows, columns = matrix.shape
    image = axes.imshow(
        matrix,
        cmap=colour_map(SIGNED if signed else WEIGHTS),
        norm=norm,
        aspect="equal",
        interpolation="nearest",
        extent=(first - 0.5, first + columns - 0.5, first + rows - 0.5, first - 0.5),
    )
    bare(axes)
    axes.tick_params(length=0)
    numbers: list[Text] = []
    if digits is not None:
        size = float(np.clip(62 * larger / max(matrix.shape), 5.0, 9.0))
        for (row, column), value in np.ndenumerate(matrix):
            if np.isfinite(value):
                numbers.append(
                    axes.text(
                        first + column,
                        first + row,
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


def colours_of(labels: Sequence[str]) -> dict[str, str]:
    """A colour for each label, in order of appearance."""
    unique = list(dict.fromkeys(labels))
    return {label: COLOURS[place % len(COLOURS)] for place, label in enumerate(unique)}


def name_ticks(axes: Axes, ticks: Sequence[float] | None) -> None:
    """Name just these places on the horizontal axis; None leaves it to matplotlib."""
    if ticks is not None:
        places = as_array("ticks", ticks, ndim=1)
        axes.set_xticks(places, [f"{place:,g}" for place in places])
        axes.xaxis.set_minor_locator(NullLocator())


def finish(
    axes: Axes,
    xs: Sequence[np.ndarray],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    logx: bool = False,
    logy: bool = False,
    ticks: Sequence[float] | None = None,
) -> None:
    """Scales, names, ticks and legend of a chart over the places ``xs``."""
    if logx:
        axes.set_xscale("log")
    if logy:
        axes.set_yscale("log")
    axes.grid(True)
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    name_ticks(axes, ticks)
    if ticks is None and not logx and all((x == np.round(x)).all() for x in xs):
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    low, high = axes.get_ylim()
    if logy and low >= 1 and high <= min(100 * low, 10_000):
        # So few decades name places between them: 200 reads better than 2×10².
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter())
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend()
