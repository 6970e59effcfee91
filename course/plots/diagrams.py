"""Diagrams: boxes and arrows on a blank plane, for drawing a mechanism."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

Point = tuple[float, float]


def bare(axes: Axes) -> None:
    """Take the frame away."""
    for side in axes.spines.values():
        side.set_visible(False)


def blank(axes: Axes, *, width: float, height: float) -> None:
    """Make ``axes`` an empty plane of this size: no frame, no ticks."""
    axes.set(xlim=(0, width), ylim=(0, height), xticks=[], yticks=[])
    bare(axes)


def box(axes: Axes, centre: Point, size: Point, text: str, colour: str) -> None:
    """A rounded box with a word in it."""
    (x, y), (width, height) = centre, size
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            boxstyle="round,pad=0.05,rounding_size=0.2",
            facecolor="#eaf2f9",
            edgecolor=colour,
            linewidth=1.5,
        )
    )
    axes.text(x, y, text, ha="center", va="center", fontsize=12)


def arrow(axes: Axes, start: Point, end: Point, colour: str, *, width: float = 1.6) -> None:
    """An arrow that stops a little before both of its ends."""
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=12,
            color=colour,
            linewidth=width,
            shrinkA=3,
            shrinkB=3,
            zorder=4,
        )
    )
