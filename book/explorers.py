"""Explorers in the book: the states of one control, drawn beforehand, moved by plain HTML.

The pictures come from the explorer itself, as a notebook shows it; a page holds each state's
picture, alt text and status sentence, and a slider that changes them (``explorer.js``).
"""

from __future__ import annotations

import ast
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image

from course import widgets
from course.widgets.base import Explorer, Slider

#: A page keeps at most so many states of an explorer: 24 of 25 KB are 600 KB.
STATES = 24
BYTES = 25_000


@dataclass(frozen=True)
class State:
    """One place of the control: what stands beside the slider, the picture and its two texts."""

    value: str
    picture: bytes
    alt: str
    status: str


def explorer_call(source: str, names: Mapping[str, Any]) -> Explorer | None:
    """The explorer that a cell's last line shows, or None; ``names``: what earlier cells defined.

    Understood are ``SomeExplorer(option=…)`` and a name that the same cell gave to it.
    """
    body = ast.parse(source).body
    shown = body[-1].value if body and isinstance(body[-1], ast.Expr) else None
    if isinstance(shown, ast.Name):
        given = [
            line.value
            for line in body
            if isinstance(line, ast.Assign)
            and [name.id for name in line.targets if isinstance(name, ast.Name)] == [shown.id]
        ]
        shown = given[-1] if given else None
    if not (isinstance(shown, ast.Call) and isinstance(shown.func, ast.Name)):
        return None
    kind = getattr(widgets, shown.func.id, None)
    if not (isinstance(kind, type) and issubclass(kind, Explorer) and kind is not Explorer):
        return None
    options = {str(word.arg): _value(word.value, names) for word in shown.keywords}
    return kind(**options)


def constants(source: str) -> dict[str, Any]:
    """The names that a cell gives to numbers, texts and lists of them."""
    found = {}
    for line in ast.parse(source).body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            try:
                found[line.targets[0].id] = ast.literal_eval(line.value)
            except ValueError:
                continue  # computed by the cell: no explorer on a page may need it
    return found


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    return names[node.id] if isinstance(node, ast.Name) else ast.literal_eval(node)


def places(control: Any, first: Any) -> list[Any]:
    """At most ``STATES`` places of ``control``, both ends among them, and ``first``."""
    grid = control.grid()
    if len(grid) > STATES:
        ratio = (len(grid) - 1) / (STATES - 2)
        grid = [grid[round(i * ratio)] for i in range(STATES - 1)]  # and room for ``first``
    if first in grid:
        return grid
    return sorted([*grid, first]) if isinstance(control, Slider) else [*grid, first]


def states(explorer: Explorer) -> Iterator[State]:
    """What the explorer shows at each place of its chief control, the others as they stand."""
    name = explorer.chief
    control = explorer.controls[name]
    for value in places(control, explorer.values[name]):
        explorer.set_values(**{name: value})
        yield State(
            value=f"{value:,.6g}" if isinstance(value, float | int) else str(value),
            picture=_small(explorer.png()),
            alt=explorer.alt(explorer.values, explorer.arrays),
            status=explorer.status,
        )


def _small(png: bytes) -> bytes:
    """The same picture with as many colours of its own as ``BYTES`` allow."""
    with Image.open(io.BytesIO(png)) as image:
        flat = image.convert("RGB")
    for colours in (64, 48, 32, 24, 16):
        out = io.BytesIO()
        flat.quantize(colours, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
        if out.tell() <= BYTES:
            break
    return out.getvalue()


def render(explorer: Explorer, folder: Path, address: str) -> str:
    """The HTML of ``explorer``; its pictures go to ``folder``, which the page calls ``address``."""
    control = explorer.controls[explorer.chief]
    first = explorer.values[explorer.chief]
    at = places(control, first).index(first)
    folder.mkdir(parents=True, exist_ok=True)
    shown = []
    for i, state in enumerate(states(explorer)):
        (folder / f"{i}.png").write_bytes(state.picture)
        shown.append(
            {
                "value": state.value,
                "src": f"{address}/{i}.png",
                "alt": state.alt,
                "status": state.status,
            }
        )
    start = shown[at]
    data = json.dumps(shown, ensure_ascii=False).replace("</", "<\\/")  # no end of the script in it
    width = round(explorer.figure.get_size_inches()[0] * 96)
    return f"""<figure class="explorer">
<p class="explorer-title">{escape(explorer.title)}</p>
<label>{escape(control.label)}
<input type="range" min="0" max="{len(shown) - 1}" step="1" value="{at}"
 aria-valuetext="{escape(start["value"])}"><output>{escape(start["value"])}</output></label>
<img src="{start["src"]}" alt="{escape(start["alt"])}" width="{width}">
<figcaption role="status">{escape(start["status"])}</figcaption>
<script type="application/json">{data}</script>
</figure>"""
