"""What the tests of explorers share: all of them, their parts, and what a reader sees and hears."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import ipywidgets as ipw
import numpy as np
from hypothesis import strategies as st
from PIL import Image

import course.widgets
from course.widgets import AttentionExplorer, Explorer, Slider
from course.widgets.attention import UNTRAINED


class UntrainedAttentionExplorer(AttentionExplorer):
    """The other half of its controls: those that are idle with the trained model."""

    controls = AttentionExplorer.controls | {
        "vectors": replace(AttentionExplorer.controls["vectors"], value=UNTRAINED)
    }


EXPLORERS: tuple[type[Explorer], ...] = (
    *(
        getattr(course.widgets, name)
        for name in course.widgets.__all__
        if name.endswith("Explorer") and name != "Explorer"
    ),
    UntrainedAttentionExplorer,
)


def walk(widget: ipw.Widget) -> Iterator[ipw.Widget]:
    yield widget
    for child in getattr(widget, "children", ()):
        yield from walk(child)


def part(explorer: Explorer, kind: type, label: str) -> ipw.Widget:
    """The one widget of this kind whose description starts with ``label``."""
    found = [w for w in walk(explorer) if type(w) is kind and w.description.startswith(label)]
    assert len(found) == 1, (kind, label, found)
    return found[0]


def handle(explorer: Explorer, control: Slider) -> ipw.Widget:
    """The slider itself of a control, without its field."""
    if control.log:
        return part(explorer, ipw.FloatLogSlider, control.label)
    whole = isinstance(control.value, int)
    return part(explorer, ipw.IntSlider if whole else ipw.FloatSlider, control.label)


def page(explorer: Explorer) -> str:
    return "".join(w.value for w in walk(explorer) if isinstance(w, ipw.HTML))


def button(explorer: Explorer, words: str) -> ipw.Widget:
    """The button, or the switch like one, with these words on it."""
    kinds = (ipw.Button, ipw.ToggleButton)
    (found,) = [w for w in walk(explorer) if isinstance(w, kinds) and w.description == words]
    return found


def spoken(explorer: Explorer, role: str) -> str | None:
    match = re.search(rf'role="{role}"[^>]*>(.*?)</p>', page(explorer))
    return unescape(match[1]) if match else None


def any_values(explorer: type[Explorer]) -> st.SearchStrategy[dict]:
    """Every combination of places at which its controls can stand."""
    return st.fixed_dictionaries(
        {name: st.sampled_from(control.grid()) for name, control in explorer.controls.items()}
    )


def compute_of(explorer: type[Explorer]) -> Callable[..., dict]:
    """Its ``compute``, with the first values of all controls that are not given."""
    first = {name: control.value for name, control in explorer.controls.items()}
    return lambda **values: explorer.compute(**first | values)


def picture(explorer: Explorer) -> np.ndarray:
    """What the reader sees, decoded from the page."""
    code = re.search(r'alt="[^"]+" src="data:image/png;base64,([^"]+)"', page(explorer))[1]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(code))))


class Marks(HTMLParser):
    """The tags of a page with their attributes, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.seen.append((tag, dict(attrs)))
