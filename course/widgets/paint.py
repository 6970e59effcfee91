"""Draw a figure again and again, at the price of what changed since the last time."""

from __future__ import annotations

from typing import Any

from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.spines import Spine
from matplotlib.text import Text

from course.plots import style

# What can be drawn alone. All else (an axis with new limits, a legend) means drawing everything.
_SIMPLE = (Text, Line2D, Patch, Collection, AxesImage)


class Painter:
    """Keeps what stands still as a background and draws the artists that change on top of it.

    Matplotlib marks an artist ``stale`` when a setter changes it. Moving artists are drawn in
    their z-order, but above those that stand still. Artists must not be added after the first
    drawing. Most of a picture's time goes into text that nobody changed.
    """

    def __init__(self, figure: Figure) -> None:
        self._figure = figure
        self._canvas = FigureCanvasAgg(figure)
        self._background: Any = None
        self._moving: frozenset[Artist] = frozenset()
        self._unused: frozenset[Artist] = frozenset()
        self._last: frozenset[Artist] = frozenset()

    def paint(self) -> FigureCanvasAgg:
        """The canvas with the figure as it is now."""
        with style():
            changed, simple = self._changed()
            if not simple:
                self._background, self._moving = None, frozenset()
                self._draw_all()
            else:
                if self._background is None or not changed <= self._moving:
                    self._keep_still(changed | self._last)
                self._canvas.restore_region(self._background)
                renderer = self._canvas.get_renderer()
                for artist in sorted(self._moving, key=lambda a: a.get_zorder()):
                    artist.draw(renderer)
                self._last = changed
        return self._canvas

    def _changed(self) -> tuple[frozenset[Artist], bool]:
        """The artists changed since they were drawn, and whether each can be drawn alone."""
        if not self._stale_labels() <= self._unused:
            return frozenset(), False
        found: set[Artist] = set()
        for axes in self._figure.axes:
            found.update(child for child in axes.get_children() if child.stale)
        alone = all(isinstance(a, _SIMPLE) and not isinstance(a, Spine) for a in found)
        return frozenset(found), alone

    def _stale_labels(self) -> frozenset[Artist]:
        sides = [side for axes in self._figure.axes for side in (axes.xaxis, axes.yaxis)]
        labels = [tick.label1 for side in sides for tick in side.majorTicks]
        return frozenset(label for label in labels if label.stale)

    def _draw_all(self) -> None:
        self._canvas.draw()
        # An axis holds more ticks than it draws; the others stay stale and mean nothing.
        self._unused = self._stale_labels()

    def _keep_still(self, moving: frozenset[Artist]) -> None:
        """Draw all but ``moving`` and keep that as the background."""
        for artist in moving:
            artist.set_animated(True)
        self._draw_all()
        for artist in moving:
            artist.set_animated(False)
        self._background = self._canvas.copy_from_bbox(self._figure.bbox)
        self._moving = moving
