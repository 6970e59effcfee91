"""The sheet under a drawing: colours with a meaning, text that is measured, nothing on top of it.

:class:`course.plots.drawing.Canvas` adds the primitives.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.text import Text

from course.plots.places import Place, Point, Rect, Spot, crosses, inside, overlap, rect
from course.plots.style import (
    COLOURS,
    CSS_PIXELS_PER_INCH,
    HIDDEN,
    INK,
    Picture,
    new_figure,
    style,
)

ROLES = {
    "query": COLOURS[0],
    "key": COLOURS[1],
    "value": COLOURS[2],
    "state": COLOURS[3],
    "stream": COLOURS[5],
    "focus": "#882255",
    "learned": INK,
    "plain": "#8b929e",
    "hidden": "#b6bcc4",
}
WHITE = ("learned", "plain")  # roles whose boxes and cells are white inside
RULE = "#c9ced6"  # lines between white cells
SMALLEST = 8.0  # points at 100 %
WIDEST = 9.5  # CSS inches: what JupyterLab shows beside its file list on a laptop
MARGIN = 0.12  # inches of white around everything
POINTS = 72
LINE = 1.25  # from line to line, in letter sizes

At = Point | Spot


def colour(role: str) -> str:
    if role not in ROLES:
        raise ValueError(f"role: expected one of {', '.join(ROLES)}, got {role!r}")
    return ROLES[role]


def mix(colour: str, other: str, share: float) -> str:
    one, two = (np.array(to_rgb(name)) for name in (colour, other))
    red, green, blue = share * one + (1 - share) * two
    return to_hex((red, green, blue))


def tint(role: str, share: float = 0.22) -> str:
    """The pale colour inside a box of this role."""
    if role in WHITE:
        return "#ffffff"
    return HIDDEN if role == "hidden" else mix(colour(role), "#ffffff", share)


def readable(role: str | None) -> str:
    """The role's colour, darkened until it reads well as text on white."""
    if role is None or role in WHITE:
        return INK
    return "#6b7280" if role == "hidden" else mix(colour(role), "#000000", 0.66)


def readable_in(role: str) -> str:
    return "#555c66" if role == "hidden" else INK


class Sheet:
    """A figure in units of ``unit`` CSS inches that remembers what lies where."""

    def __init__(self, unit: float) -> None:
        if not unit > 0:
            raise ValueError(f"unit: expected a size above 0, got {unit!r}")
        self.unit = unit
        with style():
            self._figure = new_figure()
            self._figure.set_layout_engine(None)
            self._axes = self._figure.add_axes((0, 0, 1, 1))
            self._axes.axis("off")
        self._renderer = FigureCanvasAgg(self._figure).get_renderer()  # measures text
        self._extent: list[Rect] = []
        self._texts: list[tuple[str, Rect, bool]] = []  # words, where, on an opaque box?
        self._edges: list[tuple[str, Rect]] = []  # the thing, where
        self._lines: list[tuple[np.ndarray, float]] = []  # chain of points, half its width

    def picture(self, *, finding: str, alt: str) -> Picture:
        """What was drawn, in a figure that is as large as it needs.

        Raises ``ValueError`` if texts overlap one another, an edge or an arrow, if nothing was
        drawn, or if the picture is wider than a notebook shows.
        """
        self._refuse_overlaps()
        if not self._extent:
            raise ValueError("picture: expected something drawn, got an empty canvas")
        left, top, right, bottom = (
            pick(one[side] for one in self._extent)
            for side, pick in enumerate((min, min, max, max))
        )
        margin = MARGIN / self.unit
        left, top, right, bottom = left - margin, top - margin, right + margin, bottom + margin
        # Whole pixels: the figure is never scaled by a hair, which would blur every edge.
        wide, high = (
            math.ceil(span * self.unit * CSS_PIXELS_PER_INCH / 2) * 2 / CSS_PIXELS_PER_INCH
            for span in (right - left, bottom - top)
        )
        if wide > WIDEST:
            raise ValueError(
                f"picture: expected at most {WIDEST} inches of width, got {wide:.1f}; "
                f"a unit of {self.unit * WIDEST / wide:.3f} would do"
            )
        self._figure.set_size_inches(wide, high)
        spare_x, spare_y = wide / self.unit - (right - left), high / self.unit - (bottom - top)
        self._axes.set_xlim(left - spare_x / 2, right + spare_x / 2)
        self._axes.set_ylim(bottom + spare_y / 2, top - spare_y / 2)
        return Picture(self._figure, alt=alt, finding=finding)

    def _units(self, points: float) -> float:
        """A length in points, as units of this canvas."""
        return points / POINTS / self.unit

    def _settle(
        self,
        at: At,
        wide: float,
        high: float,
        *,
        counts: tuple[int, int] = (1, 1),
        round_: bool = False,
    ) -> Place:
        spot = at if isinstance(at, Spot) else Spot(*at)
        x, y = spot.x - spot.across * wide, spot.y - spot.down * high
        place = Place(x, y, wide, high, *counts, round_)
        self._extent.append(rect(place))
        return place

    def _artist(self, words: str, size: float, bold: bool, literal: bool) -> Text:
        if size < SMALLEST:
            raise ValueError(f"size: expected at least {SMALLEST:g} pt, got {size!r} for {words!r}")
        with style():
            return Text(
                0,
                0,
                words,
                fontsize=size,
                fontfamily="DejaVu Sans",
                fontweight="bold" if bold else "normal",
                math_fontfamily="dejavusans",
                parse_math=not literal,
                ha="center",
                va="baseline",
                zorder=6,
            )

    def _measure(
        self, words: str, size: float, bold: bool = False, literal: bool = False
    ) -> tuple[float, float]:
        """Width and height; a line is equally high with and without letters that hang below it."""
        widths, high = [], 1.1 * self._units(size)
        for line in words.split("\n"):
            artist = self._artist(line, size, bold, literal)
            artist.set_figure(self._figure)
            with style():
                box = artist.get_window_extent(self._renderer)
            widths.append(float(box.width) / self._figure.dpi / self.unit)
            if "$" in line and not literal:
                high = max(high, float(box.height) / self._figure.dpi / self.unit)
        return max(widths), high + (len(widths) - 1) * LINE * self._units(size)

    def _write(
        self,
        words: str,
        at: At,
        size: float,
        colour: str,
        bold: bool,
        literal: bool,
        *,
        covered: bool = False,
    ) -> Place:
        """Put text down; ``covered``: it lies on an opaque box, so arrows pass under it."""
        place = self._settle(at, *self._measure(words, size, bold, literal))
        across = at.across if isinstance(at, Spot) else 0.5
        lines = words.split("\n")
        for row, line in enumerate(lines):
            artist = self._artist(line, size, bold, literal)
            # Letters of one size stand on one line, whichever they are: centred on the baseline.
            drop = 0.34 + LINE * (row - (len(lines) - 1) / 2)
            artist.set(
                x=place.x + across * place.width,
                y=place.centre[1] + drop * self._units(size),
                ha="left" if across == 0 else "right" if across == 1 else "center",
                color=colour,
            )
            self._axes.add_artist(artist)
        self._texts.append((words, rect(place), covered))
        return place

    def _refuse_overlaps(self) -> None:
        """No text on a text, an edge or an arrow; no box on a box; no arrow under a box."""
        slack = self._units(0.6)
        for (one, a, _), (two, b, _) in combinations(self._texts, 2):
            if overlap(a, b, slack):
                raise ValueError(f"picture: expected room for every text, {one!r} lies on {two!r}")
        for (one, a), (two, b) in combinations(self._edges, 2):
            if overlap(a, b, 3 * slack) and not (inside(a, b, slack) or inside(b, a, slack)):
                raise ValueError(f"picture: expected {one} and {two} apart or one inside the other")
        for words, here, covered in self._texts:
            for thing, edge in self._edges:
                if overlap(here, edge, slack) and not inside(here, edge, slack):
                    raise ValueError(
                        f"picture: expected room for {words!r}, an edge of {thing} runs through"
                    )
            for line, half in self._lines:
                if not covered and crosses(line, here, slack - half):
                    raise ValueError(f"picture: expected room for {words!r}, an arrow crosses it")
        for thing, edge in self._edges:
            solid = thing.startswith(("the box", "the matrix"))
            if solid and any(crosses(line, edge, 2 * slack) for line, _ in self._lines):
                raise ValueError(f"picture: expected every arrow in sight, one runs under {thing}")
