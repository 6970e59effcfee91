"""Draw a figure again and again, at the price of what changed since the last time."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.spines import Spine
from matplotlib.text import Text

from course.plots import freeze, style

# What can be drawn alone. All else (an axis with new limits, a legend) means drawing everything.
_SIMPLE = (Text, Line2D, Patch, Collection, AxesImage)


class Painter:
    """Keeps what stands still as a background and draws the artists that change on top of it.

    Matplotlib marks an artist ``stale`` when a setter changes it. What lies above a moving artist
    in its axes is drawn again as well, so that the order stays. Most of a picture's time goes into
    text that nobody changed.
    """

    def __init__(self, figure: Figure) -> None:
        self._figure = figure
        self._canvas = FigureCanvasAgg(figure)
        self._background: Any = None
        self._moving: frozenset[Artist] = frozenset()
        self._labels: list[tuple[object, ...]] = []
        self._last: frozenset[Artist] = frozenset()
        self._front: list[Artist] = []
        self._seen: set[Artist] = set()

    def paint(self) -> FigureCanvasAgg:
        """The canvas with the figure as it is now."""
        with style():
            changed, simple = self._changed()
            if not simple:
                self._background, self._moving = None, frozenset()
                self._draw_all()
            else:
                lately = changed | self._last
                few = len(self._in_front(lately)) < 0.75 * len(self._front)
                if self._background is None or few or not changed <= self._moving:
                    self._keep_still(lately)
                self._canvas.restore_region(self._background)
                renderer = self._canvas.get_renderer()
                for artist in self._front:
                    artist.draw(renderer)
                self._last = changed
        self._seen = {a for axes in self._figure.axes for a in axes.get_children() if _shows(a)}
        return self._canvas

    def _changed(self) -> tuple[frozenset[Artist], bool]:
        """The artists changed since they were drawn, and whether each can be drawn alone."""
        if self._tick_labels() != self._labels:
            return frozenset(), False
        found: set[Artist] = set()
        for axes in self._figure.axes:
            found.update(
                child
                for child in axes.get_children()
                if child.stale and (child in self._seen or _shows(child))
            )
        alone = all(isinstance(a, _SIMPLE) and not isinstance(a, Spine) for a in found)
        return frozenset(found), alone

    def _in_front(self, moving: frozenset[Artist]) -> list[Artist]:
        return [artist for axes in self._figure.axes for artist in _in_front(axes, moving)]

    def _tick_labels(self) -> list[tuple[object, ...]]:
        """What the words beside the axes look like (their ``stale`` says nothing: axes set it)."""
        sides = [side for axes in self._figure.axes for side in (axes.xaxis, axes.yaxis)]
        labels = [tick.label1 for side in sides for tick in side.majorTicks]
        return [
            (a.get_text(), a.get_color(), hash(a.get_fontproperties()), a.get_rotation())
            for a in labels
        ]

    def _draw_all(self) -> None:
        self._canvas.draw()
        self._labels = self._tick_labels()

    def _keep_still(self, moving: frozenset[Artist]) -> None:
        """Draw all but ``moving``, and what lies above it, and keep that as the background."""
        self._front = self._in_front(moving)
        for artist in self._front:
            artist.set_animated(True)
        self._draw_all()
        for artist in self._front:
            artist.set_animated(False)
        self._background = self._canvas.copy_from_bbox(self._figure.bbox)
        self._moving = moving


def change(artist: Artist, **properties: Any) -> None:
    """Set what is not so already: an artist that is set is drawn again."""
    for name, value in properties.items():
        if getattr(artist, f"get_{name}")() != value:
            getattr(artist, f"set_{name}")(value)


def _shows(artist: Artist) -> bool:
    """Whether there is anything to see; what is not drawn (an empty title) stays stale for ever."""
    empty = isinstance(artist, Text) and not artist.get_text()
    return artist.get_visible() and not empty


def _in_front(axes: Axes, moving: frozenset[Artist]) -> list[Artist]:
    """The moving artists of ``axes`` and all above the lowest of them, in drawing order."""
    order = sorted(
        (child for child in axes.get_children() if child is not axes.patch),
        key=lambda child: child.get_zorder(),
    )
    lowest = next((place for place, a in enumerate(order) if a in moving), len(order))
    # Titles, ticks and their words stand outside, where nothing moves; grid lines do not.
    titles = {axes.title, axes._left_title, axes._right_title} - moving  # type: ignore[attr-defined]
    grids = [side for side in (axes.xaxis, axes.yaxis) if side.get_gridlines()[:1]]
    gridded = [side for side in grids if side.get_gridlines()[0].get_visible()]
    inside = [a for a in order[lowest:] if a not in titles]
    return [a for a in inside if not isinstance(a, Axis) or a in gridded]


def quick_png(canvas: FigureCanvasAgg) -> bytes:
    """What ``canvas`` shows as PNG bytes, without its alpha channel, in half of Pillow's time.

    Each row is stored as the difference from the row above (filter 2 of the PNG specification,
    W3C 2003, section 9): charts are mostly zeros then. Pillow tries all five filters on every row.
    """
    rgba = np.asarray(canvas.buffer_rgba())
    height, width, _ = rgba.shape
    rows = np.ascontiguousarray(rgba[..., :3]).reshape(height, 3 * width)
    filtered = np.full((height, 1 + 3 * width), 2, np.uint8)
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.data, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_part(kind, data) for kind, data in parts)


def _part(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def svg(figure: Figure, title: str, alt: str) -> bytes:
    """``figure`` as SVG with its title and description, the same bytes each time."""
    freeze(figure)
    buffer = io.BytesIO()
    metadata: dict[str, str | None] = {
        "Title": title,
        "Description": alt,
        "Date": None,
        "Creator": None,
    }
    settings: Any = {"svg.hashsalt": "course", "svg.fonttype": "path"}
    canvas, dpi = figure.canvas, figure.dpi
    try:
        with style(), rc_context(settings):
            FigureCanvasSVG(figure).print_svg(buffer, metadata=metadata)
    finally:
        figure.set_canvas(canvas)
        figure.dpi = dpi  # an SVG has 72 of them, and leaves that behind
    return buffer.getvalue()
