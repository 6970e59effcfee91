"""Where things of a drawing lie: points, places, a time axis, and how arrows and texts meet."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

LANE = 2.2  # from lane to lane of a time axis, in units
Point = tuple[float, float]
Rect = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Spot:
    """A point, and which part of the new thing lies on it: 0 its left or top edge, 1 the other."""

    x: float
    y: float
    across: float = 0.5
    down: float = 0.5


@dataclass(frozen=True)
class Place:
    """Where something was drawn: its top left corner, its size, and its cells if it is a matrix."""

    x: float
    y: float
    width: float = 0.0
    height: float = 0.0
    rows: int = 1
    columns: int = 1
    round: bool = False

    @property
    def left(self) -> Point:
        return self.x, self.y + self.height / 2

    @property
    def right(self) -> Point:
        return self.x + self.width, self.y + self.height / 2

    @property
    def top(self) -> Point:
        return self.x + self.width / 2, self.y

    @property
    def bottom(self) -> Point:
        return self.x + self.width / 2, self.y + self.height

    @property
    def centre(self) -> Point:
        return self.x + self.width / 2, self.y + self.height / 2

    def beside(self, gap: float = 1.0, *, middle: bool = False) -> Spot:
        """To the right; with ``middle`` the new thing is centred there."""
        return Spot(self.right[0] + gap, self.right[1], 0.5 if middle else 0.0, 0.5)

    def before(self, gap: float = 1.0, *, middle: bool = False) -> Spot:
        """To the left."""
        return Spot(self.left[0] - gap, self.left[1], 0.5 if middle else 1.0, 0.5)

    def below(self, gap: float = 1.0, *, middle: bool = False) -> Spot:
        return Spot(self.bottom[0], self.bottom[1] + gap, 0.5, 0.5 if middle else 0.0)

    def above(self, gap: float = 1.0, *, middle: bool = False) -> Spot:
        return Spot(self.top[0], self.top[1] - gap, 0.5, 0.5 if middle else 1.0)

    def cell(self, row: int, column: int) -> Place:
        """One cell of a matrix."""
        wide, high = self.width / self.columns, self.height / self.rows
        return Place(self.x + column * wide, self.y + row * high, wide, high)

    def row(self, row: int) -> Place:
        """One row of a matrix."""
        return Place(self.x, self.cell(row, 0).y, self.width, self.height / self.rows)

    def column(self, column: int) -> Place:
        """One column of a matrix."""
        return Place(self.cell(0, column).x, self.y, self.width / self.columns, self.height)


@dataclass(frozen=True)
class Timeline:
    """A time axis with lanes above it: where a time and a lane lie."""

    place: Place
    until: float
    lanes: tuple[str, ...]

    def x(self, time: float) -> float:
        """The horizontal place of a time."""
        return self.place.x + self.place.width * time / self.until

    def y(self, lane: str) -> float:
        """The vertical middle of a lane; the last one lies next to the axis."""
        if lane not in self.lanes:
            raise ValueError(f"lane: expected one of {', '.join(self.lanes)}, got {lane!r}")
        return self.place.y - LANE * (len(self.lanes) - self.lanes.index(lane) - 0.4)


# --- geometry -----------------------------------------------------------------------------------


def rect(place: Place) -> Rect:
    return place.x, place.y, place.x + place.width, place.y + place.height


def facing(one: Place, other: Place) -> tuple[np.ndarray, np.ndarray]:
    """Points in the two, straight across or down if they face each other, else their centres."""
    a, b = rect(one), rect(other)
    low, high = max(a[0], b[0]), min(a[2], b[2])
    if low <= high:
        x = (low + high) / 2
        return np.array([x, one.centre[1]]), np.array([x, other.centre[1]])
    low, high = max(a[1], b[1]), min(a[3], b[3])
    if low <= high:
        y = (low + high) / 2
        return np.array([one.centre[0], y]), np.array([other.centre[0], y])
    return np.array(one.centre), np.array(other.centre)


def leave(place: Place, start: np.ndarray, toward: np.ndarray, gap: float) -> np.ndarray:
    """Where the line from ``start`` inside ``place`` comes out, and a small gap further."""
    along = toward - start
    length = float(np.hypot(*along))
    if not (place.width or place.height) or length == 0:
        return start
    along = along / length
    if place.round:
        return start + along * (place.width / 2 + gap)
    left, top, right, bottom = rect(place)
    ways = []
    for step, low, high, here in (
        (along[0], left, right, start[0]),
        (along[1], top, bottom, start[1]),
    ):
        if step:
            ways.append(((high if step > 0 else low) - here) / step)
    return start + along * (min(ways) + gap)


def flat(points: list[np.ndarray], *, bend: bool, corner: float) -> np.ndarray:
    """The arrow as a chain of short straight pieces: a curve, or lines with round corners."""
    t = np.linspace(0, 1, 25)[:, None]
    if bend:
        a, b, c = points
        return (1 - t) ** 2 * a + 2 * t * (1 - t) * b + t**2 * c
    pieces = [points[0][None]]
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        into, out = here - before, after - here
        near = min(corner, np.hypot(*into) / 2, np.hypot(*out) / 2)
        a, c = here - near * into / np.hypot(*into), here + near * out / np.hypot(*out)
        s = t[::4]
        pieces.append((1 - s) ** 2 * a + 2 * s * (1 - s) * here + s**2 * c)
    return np.concatenate([*pieces, points[-1][None]])


def shorten(line: np.ndarray, length: float) -> np.ndarray:
    """The chain without its last ``length``, which the head takes."""
    steps = np.hypot(*np.diff(line, axis=0).T)
    left = max(steps.sum() - length, 1e-6)
    kept = int(np.searchsorted(np.cumsum(steps), left))
    done = steps[:kept].sum()
    end = line[kept] + (line[kept + 1] - line[kept]) * (left - done) / steps[kept]
    return np.concatenate([line[: kept + 1], end[None]])


def overlap(a: Rect, b: Rect, slack: float) -> bool:
    across = min(a[2], b[2]) - max(a[0], b[0])
    down = min(a[3], b[3]) - max(a[1], b[1])
    return across > slack and down > slack


def inside(a: Rect, b: Rect, slack: float) -> bool:
    return (
        a[0] >= b[0] - slack
        and a[1] >= b[1] - slack
        and a[2] <= b[2] + slack
        and a[3] <= b[3] + slack
    )


def crosses(line: np.ndarray, rect: Rect, slack: float) -> bool:
    """Does the chain run through the rectangle, made smaller by ``slack``?"""
    low = np.array(rect[:2]) + slack
    high = np.array(rect[2:]) - slack
    for start, end in itertools.pairwise(line):
        enter, leave = 0.0, 1.0
        for here, along, a, b in zip(start, end - start, low, high, strict=True):
            if along == 0:
                if not a < here < b:
                    enter, leave = 1.0, 0.0
                continue
            first, last = sorted(((a - here) / along, (b - here) / along))
            enter, leave = max(enter, first), min(leave, last)
        if enter < leave:
            return True
    return False
