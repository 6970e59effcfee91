"""What a drawn figure really shows: its texts, each with the box that the renderer gives it."""

from __future__ import annotations

from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from course.plots import Picture


def texts(picture: Picture) -> list[Text]:
    picture.png()  # lays the figure out, once
    return [text for text in picture.figure.findobj(Text) if text.get_text().strip()]


def words(picture: Picture) -> list[str]:
    return [text.get_text() for text in texts(picture)]


def boxes(picture: Picture) -> list[tuple[str, Bbox]]:
    renderer = FigureCanvasAgg(picture.figure).get_renderer()
    return [(text.get_text(), text.get_window_extent(renderer)) for text in texts(picture)]


def overlapping(picture: Picture) -> list[tuple[str, str]]:
    """Pairs of texts that share more than the blank rim around their letters."""
    pairs = []
    for (one, a), (two, b) in combinations(boxes(picture), 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        down = min(a.y1, b.y1) - max(a.y0, b.y0)
        if across > 1 and down > 4:
            pairs.append((one, two))
    return pairs


def outside(picture: Picture) -> list[str]:
    page = picture.figure.bbox
    return [
        text
        for text, box in boxes(picture)
        if box.x0 < page.x0 or box.x1 > page.x1 or box.y0 < page.y0 or box.y1 > page.y1
    ]


def patches(picture: Picture, kind: type[Patch]) -> list[Patch]:
    return [patch for axes in picture.figure.axes for patch in axes.patches if type(patch) is kind]
