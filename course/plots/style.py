"""The course's look: colours, settings, figures, and the :class:`Picture` they end in.

Write your own with ``with style(): figure = new_figure(width, height)``, draw on
``figure.subplots()``, and return ``Picture(figure, alt=..., finding=...)``. No pyplot: a figure
belongs to whoever holds it, and nothing stays open.
"""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec

import numpy as np
from matplotlib import rcParams, rcParamsDefault
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

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
    "hatch.color": "#b6bcc4",
    "hatch.linewidth": 0.8,
    "path.simplify": True,
}

# Settings that bear on a drawing: a reader's own must not show in ours.
_DRAWN = (
    *("agg", "axes", "boxplot", "contour", "errorbar", "figure", "font", "grid", "hatch", "hist"),
    *("image", "legend", "lines", "markers", "mathtext", "patch", "path", "scatter", "text"),
    *("xaxis", "xtick", "yaxis", "ytick"),
)


def _settings() -> dict[str, Any]:
    """Matplotlib's own defaults of every such setting, and over them the course's."""
    settings = rcParamsDefault.copy()
    settings.update(_STYLE)  # checks and normalises the values
    return {key: value for key, value in dict.items(settings) if key.split(".")[0] in _DRAWN}


_SETTINGS = _settings()

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
        # As a plain dictionary: rc_context checks every value, a tenth of an explorer's redraw.
        settings: Any = rcParams
        saved = {key: dict.__getitem__(settings, key) for key in _SETTINGS}
        dict.update(settings, _SETTINGS)
        try:
            yield
        finally:
            dict.update(settings, saved)


def new_figure(width: float = 7.0, height: float = 3.4) -> Figure:
    """A white figure of ``width`` × ``height`` CSS inches (96 pixels) that lays itself out."""
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    with style():
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


def styled(draw: Callable[_P, Picture]) -> Callable[_P, Picture]:
    """Draw inside the course's :func:`style`."""

    @wraps(draw)
    def inside(*args: _P.args, **kwargs: _P.kwargs) -> Picture:
        with style():
            return draw(*args, **kwargs)

    return inside
