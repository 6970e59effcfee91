"""Minutes of the main road, and the form of a detour."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tests.notebooks import gate, road
from tests.notebooks.clean import clean

Cell = dict[str, Any]
HEAD = "### Detour: why √D\n\nGives the law of the spread, in four lines."


def text(source: str, **metadata: Any) -> Cell:
    return {"cell_type": "markdown", "metadata": metadata, "source": source}


def code(source: str = "x = 1") -> Cell:
    return {"cell_type": "code", "metadata": {}, "source": source, "outputs": []}


def detour(source: str = HEAD) -> Cell:
    return text(source, tags=["detour"], **{gate.FOLDED: True})


def on_the_road(*cells: Cell) -> list[str]:
    return [cell["source"] for cell in road.main_road({"cells": list(cells)})]


def test_a_detour_ends_at_the_next_heading_of_its_level() -> None:
    cells = [text("## 1"), text("a"), detour(), text("b"), code("c"), text("#### deeper\n\nd")]
    assert on_the_road(*cells) == ["## 1", "a"]
    assert on_the_road(*cells, text("### e"), code("f")) == ["## 1", "a", "### e", "f"]
    assert on_the_road(*cells, text("g\n\n## 2")) == ["## 1", "a", "g\n\n## 2"]
    assert on_the_road(*cells, detour("## Detour: x\n\ny"), text("### z"), text("# w")) == [
        "## 1",
        "a",
        "# w",
    ]


def test_exercises_are_homework() -> None:
    cells = [text("a\n\n## Exercises"), text("### Exercise 1.1 — b"), code("c"), text("## Sources")]
    assert on_the_road(*cells) == ["a\n\n## Exercises", "## Sources"]
    assert on_the_road(*cells[1:]) == ["## Sources"]


def test_a_comment_in_code_is_no_heading() -> None:
    assert road.headings(text("```python\n# no\n```\n\n## yes ##\ntext")) == [(2, "yes")]
    assert road.headings(code("# no")) == []


@pytest.mark.parametrize(
    ("cells", "minutes"),
    [
        ([], 0),
        ([code()] * 6, 2),
        ([code("  ")], 0),
        ([text("word " * 300)], 1.5),
        ([text("word, " * 100 + "— + | - " * 50)], 0.5),
        ([text("word " * 100 + "$x + y = z$ $$a b c$$ `code of it`\n\n```\nx = 1\n```\n")], 0.5),
        ([text("word " * 100 + "<details><summary>Hint</summary>more</details>")], 0.5),
        ([detour(), text("word " * 300), code()], 0),
        ([text("## Exercises"), text("word " * 300), code()], 0),
    ],
)
def test_minutes(cells: list[Cell], minutes: float) -> None:
    assert road.minutes({"cells": cells}) == pytest.approx(minutes)


@pytest.mark.parametrize(
    ("cell", "complaint"),
    [
        (text(HEAD), "says Detour, but the cell has no tag"),
        (text("a\n\n## detour: b"), "says Detour, but the cell has no tag"),
        (detour("### Why √D\n\nGives the law."), "does not begin with a heading"),
        (detour("Some text.\n\n### Detour: b"), "does not begin with a heading"),
        (detour("# Detour: the whole notebook\n\nb"), "does not begin with a heading"),
        (detour("### Detour:"), "does not begin with a heading"),
        (code() | {"metadata": {"tags": ["detour"]}}, "does not begin with a heading"),
        (detour("### Detour: why √D"), "no line under the heading"),
        (detour(f"{HEAD}\n\nMore."), "more than its heading and one line"),
        (text(HEAD, tags=["detour"]), "is not folded"),
        (text(HEAD, tags=["detour"], **{gate.FOLDED: False}), "is not folded"),
    ],
)
def test_each_fault_of_a_detour_is_named(cell: Cell, complaint: str) -> None:
    (found,) = road.complaints({"cells": [text("# a"), cell, code()]})
    assert found.startswith(f"cell 2 ({cell['cell_type']}): ") and complaint in found


def test_a_detour_without_a_fault() -> None:
    cells = [text("# a"), detour(), code(), text("## b, a detour of its own kind")]
    assert road.complaints({"cells": cells}) == []
    assert road.complaints({"cells": [detour(), text("### c")]}) == [
        "cell 1 (markdown): an empty detour"
    ]
    assert road.complaints({"cells": [detour()]}) == ["cell 1 (markdown): an empty detour"]


def test_a_detour_is_stored_folded() -> None:
    """Whether or not the author left it open; and the gate allows the key there alone."""
    cells = [new_markdown_cell(HEAD, metadata={"tags": ["detour"]}), new_code_cell("x = 1")]
    cells[1].metadata[gate.FOLDED] = True
    cells.append(new_markdown_cell("## b", metadata={gate.FOLDED: True}))
    notebook = new_notebook(cells=cells)
    assert any(gate.FOLDED in line for line in gate.complaints(notebook))
    clean(notebook)
    assert [cell.metadata for cell in notebook.cells] == [
        {"tags": ["detour"], gate.FOLDED: True},
        {},
        {},
    ]
    nbformat.validate(notebook)
    assert not any("metadata" in line for line in gate.complaints(notebook))
