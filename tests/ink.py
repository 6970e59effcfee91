"""What a drawn figure really shows: its texts, each with the box that the renderer gives it."""

from __future__ import annotations

import io
from itertools import combinations

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image

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


def require_readable(picture: Picture) -> None:
    """No text meets another or leaves the page, all are large enough; alt and finding say much."""
    assert overlapping(picture) == []
    assert outside(picture) == []
    assert min(text.get_fontsize() for text in texts(picture)) >= 8
    assert picture.figure.get_size_inches()[0] <= 9.5
    assert len(picture.alt) > 60 and len(picture.finding) > 40 and picture.alt != picture.finding


def require_white_edge(picture: Picture) -> None:
    """Opaque, and white all around."""
    image = Image.open(io.BytesIO(picture.png()))
    assert image.mode == "RGB"
    pixels = np.asarray(image)
    for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
        assert (edge == 255).all()
