"""The main road of a notebook and its detours.

A detour is a markdown cell with the tag ``detour``. It holds a heading "### Detour: …" and one line
that says what the detour gives; the cells behind it, up to the next heading of its level or a
higher one, are the detour. JupyterLab folds them away where the cell's metadata have
``gate.FOLDED``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.notebooks.gate import FOLDED, Cell, Notebook, source_of
from tests.notebooks.prose import running_text

WORDS_A_MINUTE = 200
SECONDS_A_CELL = 20

DETOUR = re.compile(r"#{2,6} Detour: \S")
HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$", re.MULTILINE)
EXERCISE = re.compile(r"Exercises?\b")
FENCE = re.compile(r"^ {0,3}(```|~~~)")
SOLUTION = re.compile(r"<details>.*?</details>", re.DOTALL)


def tags(cell: Cell) -> list[str]:
    return cell.get("metadata", {}).get("tags", [])


def headings(cell: Cell) -> list[tuple[int, str]]:
    """(level, title) of each heading in a markdown cell."""
    if cell["cell_type"] != "markdown":
        return []
    found, in_code = [], False
    for line in source_of(cell).splitlines():
        in_code ^= FENCE.match(line) is not None
        heading = HEADING.match(line)
        if heading and not in_code:
            found.append((len(heading[1]), heading[2]))
    return found


def main_road(notebook: Notebook) -> list[Cell]:
    """The cells that everybody reads: no detours, no exercises (they are homework)."""
    road: list[Cell] = []
    left_at: int | None = None  # the level of the heading at which the road was left
    for cell in notebook["cells"]:
        found = headings(cell)
        # As in JupyterLab, a cell counts as its highest heading.
        if left_at is not None and found and min(level for level, _ in found) <= left_at:
            left_at = None
        leaves = [
            level for level, title in found if EXERCISE.match(title) or "detour" in tags(cell)
        ]
        if left_at is None and not (leaves and HEADING.match(source_of(cell).lstrip())):
            road.append(cell)
        if left_at is None and leaves:
            left_at = leaves[0]
    return road


def minutes(notebook: Notebook) -> float:
    """What the main road takes: 200 words of text a minute, 20 seconds a code cell.

    Code, formulas and folded solutions count no words.
    """
    words, cells = 0, 0
    for cell in main_road(notebook):
        if cell["cell_type"] == "code":
            cells += bool(source_of(cell).strip())
        elif cell["cell_type"] == "markdown":
            text = running_text(SOLUTION.sub(" ", source_of(cell)))
            words += sum(any(sign.isalnum() for sign in word) for word in text.split())
    return words / WORDS_A_MINUTE + cells * SECONDS_A_CELL / 60


def complaints(notebook: Notebook) -> list[str]:
    """What is wrong with the detours of a notebook."""
    cells = notebook["cells"]
    return [
        f"cell {place} ({cell['cell_type']}): {what}"
        for place, cell in enumerate(cells, 1)
        for what in _about(cell, cells[place] if place < len(cells) else None)
    ]


def _about(cell: Cell, follows: Cell | None) -> Iterator[str]:
    lines = [line for line in source_of(cell).splitlines() if line.strip()]
    if "detour" not in tags(cell):
        if any(re.match(r"detour\b", title, re.IGNORECASE) for _, title in headings(cell)):
            yield "the heading says Detour, but the cell has no tag “detour”"
        return
    if cell["cell_type"] != "markdown" or not lines or not DETOUR.match(lines[0]):
        yield "has the tag “detour”, but does not begin with a heading “### Detour: …”"
        return
    if len(lines) == 1:
        yield "no line under the heading says what the detour gives"
    if len(lines) > 2:
        yield "holds more than its heading and one line: only the cells behind it are folded"
    if cell["metadata"].get(FOLDED) is not True:
        yield f"the detour is not folded: store it with `make notebooks`, which sets {FOLDED}"
    level = len(lines[0]) - len(lines[0].lstrip("#"))
    if follows is None or any(other <= level for other, _ in headings(follows)):
        yield "an empty detour"
