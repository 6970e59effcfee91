"""The language of drawings: boxes, arrows, matrices to scale, on a canvas that measures its text.

A picture in ten lines: a word's vector becomes a query, and the shapes are drawn to scale.

    def query(T: int = 5, E: int = 6, D: int = 3) -> Picture:
        canvas = Canvas(T=T, E=E, D=D)
        x = canvas.matrix("$x$", "T E", at=(0, 0), role="stream", rows=[2])
        W = canvas.matrix("$W_q$", "E D", at=x.beside(3), role="learned")
        q = canvas.matrix("$q$", "T D", at=W.beside(3), role="query", rows=[2])
        canvas.text("×", at=x.beside(1.5, middle=True), points=14)
        canvas.arrow(W, q)
        return canvas.picture(
            finding=f"A query has {D} numbers, made of the {E} of its word.",
            alt=f"x [{T}, {E}] times W [{E}, {D}] gives q [{T}, {D}].",
        )

**Where.** x runs right, y runs down, as in a matrix; one unit is the side of a cell. ``at`` is the
centre of the new thing, or ``thing.beside(gap)``, ``below``, ``before``, ``above``: then its edge
lies there. Every primitive returns its :class:`Place`. The figure grows around what is drawn.

**Colours have fixed meanings** (:data:`course.plots.sheet.ROLES`): query blue, key vermilion, value
green, stream orange, state purple, what is hidden grey, learned numbers white with a dark edge,
and wine ("focus") what the eye shall follow. A name always stands beside a colour.

**What cannot happen.** Text below 8 pt, text that does not fit its box, two texts or two boxes on
one place, an edge or an arrow through a text, an arrow under a box, a matrix whose numbers have
another shape, a picture wider than a notebook: each is a ``ValueError`` that says what lies where.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyBboxPatch, PathPatch, Polygon, Rectangle
from matplotlib.path import Path

from course.plots.parts import number, readable_on, short, signed_norm
from course.plots.places import (
    LANE,
    Place,
    Point,
    Spot,
    Timeline,
    facing,
    flat,
    leave,
    rect,
    shorten,
)
from course.plots.sheet import POINTS, RULE, WHITE, At, Sheet, colour, readable, readable_in, tint
from course.plots.style import HIDDEN, INK, QUIET, SIGNED, WEIGHTS

Stop = Point | Place


class Canvas(Sheet):
    """A white sheet in units of ``unit`` CSS inches; ``sizes`` are the letters of the shapes.

    Draw, then call :meth:`picture` once. Raises ``ValueError`` for a size below 1.
    """

    def __init__(self, unit: float = 0.22, **sizes: int) -> None:
        super().__init__(unit)
        self._labels: dict[Place, list[Place]] = {}  # what is written over a matrix
        for name, size in sizes.items():
            if size != int(size) or size < 1:
                raise ValueError(f"{name}: expected a whole number from 1 on, got {size!r}")
        self.sizes = sizes

    # --- primitives ---------------------------------------------------------------------------

    def text(
        self,
        words: str,
        at: At,
        *,
        points: float = 9.0,
        role: str | None = None,
        bold: bool = False,
        literal: bool = False,
    ) -> Place:
        """Words at a place, in ink or a role's colour; ``literal``: a ``$`` starts no formula."""
        return self._write(words, at, points, readable(role), bold, literal)

    def box(
        self,
        words: str,
        at: At,
        *,
        role: str = "plain",
        size: tuple[float, float] | None = None,
        points: float = 9.5,
        bold: bool = False,
        literal: bool = False,
        dashed: bool = False,
    ) -> Place:
        """A box around its words, or of a given ``size`` (width, height) they must fit into."""
        wide, high = self._measure(words, points, bold, literal)
        pad = self._units(6)
        if size is None:
            size = wide + 2 * pad, high + 1.4 * pad
        if words and (wide > size[0] - pad / 2 or high > size[1]):
            raise ValueError(
                f"size: expected at least {wide + pad / 2:.2f} × {high:.2f} for {words!r}, "
                f"got {size[0]:g} × {size[1]:g}"
            )
        place = self._settle(at, *size)
        self._axes.add_patch(
            FancyBboxPatch(
                (place.x, place.y),
                *size,
                boxstyle=f"round,pad=0,rounding_size={min(self._units(3), *size)}",
                facecolor=tint(role),
                edgecolor=colour(role),
                linewidth=1.3,
                linestyle=(0, (3, 2)) if dashed else "-",
                zorder=3,
            )
        )
        self._edges.append((f"the box {words!r}", rect(place)))
        if words:
            self._write(words, place.centre, points, readable_in(role), bold, literal, covered=True)
        return place

    def dot(
        self,
        at: At,
        words: str = "",
        *,
        role: str = "plain",
        radius: float | None = None,
        pale: bool = False,
    ) -> Place:
        """A circle: a node of a graph, or a sign such as ``+``; empty ones are filled.

        ``pale``: in the role's pale colour, for what stands beside the point.
        """
        if radius is None:
            radius = self._units(7.5 if words else 4.0)
        place = self._settle(at, 2 * radius, 2 * radius, round_=True)
        self._axes.add_patch(
            Circle(
                place.centre,
                radius,
                facecolor=tint(role) if words or pale else colour(role),
                edgecolor=tint(role, 0.5) if pale else colour(role),
                linewidth=1.3,
                zorder=4,
            )
        )
        self._edges.append((f"the circle {words!r}", rect(place)))
        if words:
            self._write(words, place.centre, 10.0, readable_in(role), False, False, covered=True)
        return place

    def words(
        self,
        words: Sequence[str],
        at: At,
        *,
        role: str = "plain",
        hidden: Sequence[int] = (),
        step: float | None = None,
        points: float = 9.5,
    ) -> list[Place]:
        """A row of words in equal boxes, ``step`` from centre to centre; ``hidden`` ones are grey.

        Words are drawn as a reader typed them, long ones cut.
        """
        if not words:
            raise ValueError("words: expected at least one word, got none")
        least = self.pitch(words, points=points)
        step = least if step is None else step
        if step < least - 1e-9:
            raise ValueError(f"step: expected at least {least:.2f} for {list(words)}, got {step:g}")
        wide = min(step, 1.4 * least) - self._units(4)
        high = self._measure("x", points)[1] + self._units(6)
        whole = self._settle(at, step * (len(words) - 1) + wide, high)
        return [
            self.box(
                label,
                (whole.x + wide / 2 + place * step, whole.left[1]),
                role="hidden" if place in hidden else role,
                size=(wide, high),
                points=points,
                literal=True,
            )
            for place, label in enumerate(map(short, words))
        ]

    def pitch(self, words: Sequence[str], *, points: float = 9.5) -> float:
        """The least step from word to word at which each of these has room in a row."""
        widths = [self._measure(short(word), points, False, True)[0] for word in words]
        return max(widths) + self._units(13)

    def matrix(
        self,
        name: str,
        shape: str,
        *,
        at: At,
        role: str = "plain",
        rows: Sequence[int] = (),
        columns: Sequence[int] = (),
        values: object = None,
        shade: object = None,
        signed: bool = False,
        hidden: object = None,
        digits: int | None = 2,
        cell: float | tuple[float, float] = 1.0,
        label: bool = True,
    ) -> Place:
        """A matrix to scale, cell for cell; ``shape`` is two sizes, as ``"T E"`` or ``"1 8"``.

        ``rows`` and ``columns`` have the role's full colour, ``hidden`` (boolean) cells are grey.
        ``values`` are printed, numbers with ``digits`` decimals (None: as few as do, at most two)
        and words as they are; ``shade``
        colours the cells: weights 0…1 by cividis, ``signed`` ones by the map centred on 0. Cells
        too small to be seen are not ruled. A vector has one row or one column.
        """
        counts = self._shape(name, shape)
        wide, high = cell if isinstance(cell, tuple) else (cell, cell)
        place = self._settle(at, counts[1] * wide, counts[0] * high, counts=counts)
        covered = np.zeros(counts, dtype=bool)
        if hidden is not None:
            covered = _of_shape(name, "hidden", np.asarray(hidden, dtype=bool), counts)
        if shade is not None:
            faces = _shaded(
                _of_shape(name, "shade", np.asarray(shade, dtype=float), counts), signed
            )
        else:
            faces = np.tile(to_rgb(tint(role)), (*counts, 1))
            full = to_rgb(QUIET if role in WHITE else colour(role))
            faces[list(rows)] = full
            faces[:, list(columns)] = full
        faces[covered] = to_rgb(HIDDEN)
        self._fill(place, faces, RULE if role in WHITE else "white")
        self._axes.add_patch(
            Rectangle(
                (place.x, place.y),
                place.width,
                place.height,
                facecolor="none",
                edgecolor=colour(role),
                linewidth=1.3,
                zorder=3.5,
            )
        )
        self._edges.append((f"the matrix {name!r}", rect(place)))
        if values is not None:
            values = _of_shape(name, "values", np.asarray(values), counts)
            self._print(name, values, place, faces, covered, digits)
        if label:
            letters = ", ".join(shape.split())
            written = self._write(f"[{letters}]", place.above(0.25), 8.0, QUIET, False, True)
            self._labels[place] = [written]
            if name:
                formula = name.startswith("$")
                size = 11.5 if formula else 10.0
                spot = written.above(0.15 if formula else 0.02)
                written = self._write(name, spot, size, readable(role), not formula, False)
                self._labels[place].append(written)
        return place

    def arrow(
        self,
        *stops: Stop,
        role: str = "plain",
        words: str = "",
        bend: float = 0.0,
        width: float = 1.4,
        dashed: bool = False,
        head: bool = True,
        side: str | None = None,
    ) -> None:
        """An arrow through two or more stops (things or points), with round corners.

        Between two things it runs straight across or straight down if they face each other.
        ``bend``: how far two stops' arrow bulges to its right. ``words`` stand above a horizontal
        arrow and right of a vertical one, or on ``side`` ("above", "below", "left", "right").
        """
        if len(stops) < 2 or (bend and len(stops) > 2):
            least = "two for a bent arrow" if bend else "two or more"
            raise ValueError(f"stops: expected {least}, got {len(stops)}")
        paint, above = colour(role), 2.7 if role == "focus" else 2.5
        points = self._route(stops, bend)
        length, half = (
            self._units(5 + 1.5 * width),
            self._units(2 + 0.9 * width),
        )
        line = flat(points, bend=bool(bend), corner=self._units(4))
        if head:
            tip = line[-1]
            line = shorten(line, length)
            along = (tip - line[-1]) / (np.hypot(*(tip - line[-1])) or 1)
            aside = half * np.array([-along[1], along[0]])
            self._axes.add_patch(
                Polygon(
                    [tip, line[-1] + aside, line[-1] - aside],
                    facecolor=paint,
                    edgecolor="none",
                    linewidth=0,
                    zorder=above + 0.1,
                )
            )
            self._lines.append((np.array([line[-1], tip]), half))
            line = np.concatenate([line, [line[-1] + along * length * 0.1]])
        self._axes.add_patch(
            PathPatch(
                Path(line),
                facecolor="none",
                edgecolor=paint,
                linewidth=width,
                linestyle=(0, (3, 2)) if dashed else "-",
                capstyle="butt",
                joinstyle="round",
                zorder=above,
            )
        )
        self._lines.append((line, self._units(width / 2)))
        self._extent.append((*line.min(0), *line.max(0)))
        if words:
            self._beside_line(words, line, role, side, half)

    def frame(
        self,
        places: Sequence[Place],
        words: str = "",
        *,
        role: str = "plain",
        pad: float = 0.7,
        below: bool = False,
    ) -> Place:
        """A pale area behind things and their labels, its title in its top left corner.

        ``below``: in its bottom left corner, where arrows come from above.
        """
        if not places:
            raise ValueError("places: expected at least one thing to frame, got none")
        rects = [rect(part) for place in places for part in (place, *self._labels.get(place, []))]
        left, top = min(r[0] for r in rects) - pad, min(r[1] for r in rects) - pad
        right, bottom = max(r[2] for r in rects) + pad, max(r[3] for r in rects) + pad
        inner = self._units(5)
        if words:
            wide, high = self._measure(words, 9.0, True, False)
            if below:
                bottom += high + inner / 2
            else:
                top -= high + inner / 2
            right = max(right, left + wide + 2 * inner)
        place = Place(left, top, right - left, bottom - top)
        self._axes.add_patch(
            FancyBboxPatch(
                (left, top),
                place.width,
                place.height,
                boxstyle=f"round,pad=0,rounding_size={self._units(4)}",
                facecolor="#f6f7f9" if role == "plain" else tint(role, 0.08),
                edgecolor="#d9dde3" if role == "plain" else tint(role, 0.5),
                linewidth=1.0,
                zorder=0.5 + 1e-4 * len(self._edges),
            )
        )
        self._edges.append((f"the frame {words!r}", rect(place)))
        self._extent.append(rect(place))
        if words:
            y, down = (bottom - inner, 1) if below else (top + inner, 0)
            self._write(words, Spot(left + inner, y, 0, down), 9.0, readable(role), True, False)
        return place

    def outline(self, place: Place, *, role: str = "focus") -> None:
        """A frame close around a place, such as one row of a matrix."""
        self._axes.add_patch(
            Rectangle(
                (place.x, place.y),
                place.width,
                place.height,
                facecolor="none",
                edgecolor=colour(role),
                linewidth=2.4,
                joinstyle="round",
                zorder=4,
            )
        )

    def area(
        self,
        words: str,
        amount: float,
        at: At,
        *,
        per: float,
        role: str = "plain",
        widest: float = 12.0,
        aspect: float = 1.0,
    ) -> Place:
        """A rectangle as large as an ``amount``: ``per`` of it fill one square unit.

        One that would be wider than ``widest`` is drawn that wide, dashed, and marked
        "not to scale". Words that do not fit inside stand to the right.
        """
        if not (amount > 0 and per > 0):
            raise ValueError(f"amount, per: expected numbers above 0, got {amount!r} and {per!r}")
        wide = math.sqrt(amount / per * aspect)
        scaled = wide <= widest
        wide = min(wide, widest)
        size = wide, wide / aspect
        if not scaled:
            words = f"{words}\n(not to scale)"
        needed = self._measure(words, 9.5, False, False)
        fits = needed[0] + 0.3 <= size[0] and needed[1] + 0.2 <= size[1]
        place = self.box(words if fits else "", at, role=role, size=size, dashed=not scaled)
        if not fits:
            self.text(words, place.beside(0.4), points=9.5)
        return place

    def timeline(
        self,
        until: float,
        at: At,
        *,
        length: float,
        words: str,
        ticks: Sequence[float],
        lanes: Sequence[str] = (),
    ) -> Timeline:
        """A time axis from 0 to ``until``, ``length`` units long, its unit in ``words``.

        ``lanes``, from top to bottom, lie above it: :meth:`span` fills them.
        """
        if not until > 0 or not length > 0:
            raise ValueError(f"until, length: expected above 0, got {until!r} and {length!r}")
        place = self._settle(at, length, 0.0)
        line = Timeline(place, until, tuple(lanes))
        tail = (place.x + length + 0.6, place.y)
        self.arrow((place.x, place.y), tail, role="learned", width=1.0)
        notch = self._units(3)
        for tick in ticks:
            x = line.x(tick)
            self._axes.add_line(
                Line2D([x, x], [place.y, place.y + notch], color=INK, linewidth=1.0, zorder=2)
            )
            self._write(f"{tick:,g}", Spot(x, place.y + 1.5 * notch, 0.5, 0), 8.5, INK, False, True)
        self._write(words, Spot(tail[0] + 0.3, place.y, 0, 0.5), 9.0, INK, False, False)
        for lane in lanes:
            spot = Spot(place.x - 0.8, line.y(lane), 1, 0.5)
            self._write(lane, spot, 9.5, INK, True, False)
        return line

    def span(
        self,
        line: Timeline,
        lane: str,
        words: str,
        start: float,
        end: float,
        *,
        role: str = "plain",
    ) -> Place:
        """What fills a lane of a time axis from ``start`` to ``end``, to scale."""
        if not 0 <= start < end <= line.until:
            raise ValueError(
                f"start, end: expected 0 ≤ start < end ≤ {line.until:g}, got {start:g} and {end:g}"
            )
        size = line.x(end) - line.x(start), 0.7 * LANE
        return self.box(words, Spot(line.x(start), line.y(lane), 0, 0.5), role=role, size=size)

    # --- how it is done -----------------------------------------------------------------------

    def _shape(self, name: str, shape: str) -> tuple[int, int]:
        counts = []
        for letter in shape.split():
            if letter.isdigit() and int(letter):
                counts.append(int(letter))
            elif letter in self.sizes:
                counts.append(self.sizes[letter])
            else:
                known = " ".join(self.sizes) or "none"
                raise ValueError(f"{name}: expected sizes among {known}, got {letter!r}")
        if len(counts) != 2:
            raise ValueError(f'{name}: expected a shape of two sizes, as "T E", got {shape!r}')
        return counts[0], counts[1]

    def _fill(self, place: Place, faces: np.ndarray, rule: str) -> None:
        """The cells of a matrix, each with its colour; tiny ones as an image, without lines."""
        wide, high = place.width / place.columns, place.height / place.rows
        if min(wide, high) * self.unit * POINTS < 4:
            left, top, right, bottom = rect(place)
            self._axes.imshow(
                faces,
                extent=(left, right, bottom, top),
                origin="upper",
                aspect="auto",
                interpolation="nearest",
                zorder=3,
            )
            return
        for row, column in np.ndindex(place.rows, place.columns):
            one = place.cell(row, column)
            self._axes.add_patch(
                Rectangle(
                    (one.x, one.y),
                    wide,
                    high,
                    facecolor=faces[row, column],
                    edgecolor=rule,
                    linewidth=0.9,
                    zorder=3,
                )
            )

    def _print(
        self,
        name: str,
        values: np.ndarray,
        place: Place,
        faces: np.ndarray,
        covered: np.ndarray,
        digits: int | None,
    ) -> None:
        for (row, column), value in np.ndenumerate(values):
            words = value if isinstance(value, str) else cell_text(float(value), digits)
            one = place.cell(row, column)
            wide, high = self._measure(words, 8.5, False, True)
            if wide > one.width or high > one.height * 1.15:
                raise ValueError(
                    f"{name}: expected cells of at least {wide:.1f} × {high:.1f} for {words!r}, "
                    f"got {one.width:g} × {one.height:g}"
                )
            grey = bool(covered[row, column])
            ink = readable_in("hidden") if grey else readable_on(faces[row, column].tolist())
            self._write(words, one.centre, 8.5, ink, False, True, covered=True)

    def _route(self, stops: Sequence[Stop], bend: float) -> list[np.ndarray]:
        places = [stop if isinstance(stop, Place) else Place(*stop) for stop in stops]
        gap = self._units(2.5)
        if bend:
            start, end = (np.array(place.centre) for place in places)
            along = end - start
            aside = np.array([-along[1], along[0]]) / (np.hypot(*along) or 1)
            control = (start + end) / 2 + 2 * bend * aside
            return [
                leave(places[0], start, control, gap),
                control,
                leave(places[1], end, control, gap),
            ]
        points = [np.array(place.centre) for place in places]
        points[0], toward = facing(places[0], places[1])
        first = leave(places[0], points[0], toward, gap)
        if len(places) > 2:
            points[-1], toward = facing(places[-1], places[-2])
        else:
            points[-1], toward = toward, points[0]
        return [first, *points[1:-1], leave(places[-1], points[-1], toward, gap)]

    def _beside_line(
        self, words: str, line: np.ndarray, role: str, side: str | None, half: float
    ) -> None:
        lengths = np.hypot(*np.diff(line, axis=0).T)
        longest = int(lengths.argmax())
        if len(line) > 8 and lengths.max() < lengths.sum() / 4:  # a curve: its middle
            longest = len(lengths) // 2
        x, y = (line[longest] + line[longest + 1]) / 2
        level = abs(line[longest + 1] - line[longest])
        side = side or ("above" if level[0] >= level[1] else "right")
        gap = half + self._units(1.5)
        sides = {
            "above": Spot(x, y - gap, 0.5, 1),
            "below": Spot(x, y + gap, 0.5, 0),
            "right": Spot(x + gap, y, 0, 0.5),
            "left": Spot(x - gap, y, 1, 0.5),
        }
        if side not in sides:
            raise ValueError(f"side: expected one of {', '.join(sides)}, got {side!r}")
        self._write(words, sides[side], 8.5, readable(role), False, False)


def cell_text(value: float, digits: int | None) -> str:
    """A number as a matrix prints it; ``digits`` None: as few decimals as do, at most two."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if digits is None:
        return number(value, 2).rstrip("0").rstrip(".")
    return number(value, digits)


def _shaded(values: np.ndarray, signed: bool) -> np.ndarray:
    """RGB colours of weights 0…1, or of signed numbers around 0."""
    if signed:
        return colormaps[SIGNED](signed_norm(values)(values))[..., :3]
    return colormaps[WEIGHTS](np.clip(values, 0, 1))[..., :3]


def _of_shape(name: str, argument: str, values: np.ndarray, counts: tuple[int, int]) -> np.ndarray:
    if values.shape != counts:
        raise ValueError(
            f"{argument}: expected the shape {list(counts)} of {name or 'the matrix'}, "
            f"got {list(values.shape)}"
        )
    return values
