"""An assignment's source notebook: read, asked whether it is whole, and turned into the student's.

The source follows nbgrader's conventions (metadata of schema 3, ``### BEGIN SOLUTION`` … ``### END
SOLUTION``), so that ``nbgrader generate_assignment`` accepts it as it is; nothing here needs
nbgrader. The student's notebook, the solution and the marking guide all come from it.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course import __version__
from course.assignments.question import Assignment
from course.values import require_choice

Cell = dict[str, Any]
FOLDER = Path(__file__).parents[2] / "notebooks" / "assignments"
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
CODE_STUB = "# your code here\nraise NotImplementedError"
TEXT_STUB = "*Your answer here.*"
SCHEME = "**Mark scheme**"
#: What the text before a written question must have.
_PARTS = {
    "difficulty and minutes": r"\*(Easy|Medium|Hard), \d+ minutes",
    "a first hint": r"<details><summary>Hint 1</summary>",
    "a second hint": r"<details><summary>Hint 2</summary>",
}
#: What the text before a question with a function must have.
_PARTS_OF_FUNCTION = _PARTS | {
    "help for an error": r"<details><summary>If you read .+</summary>",
}


@dataclass(frozen=True)
class Source:
    """A source notebook: ``notebook`` is its JSON, as it lies in the file."""

    name: str
    notebook: dict[str, Any]

    @property
    def cells(self) -> list[Cell]:
        return self.notebook["cells"]

    def cell(self, grade_id: str) -> Cell:
        """The cell with this ``grade_id``; ``KeyError`` if there is none."""
        return next((c for c in self.cells if grade_id_of(c) == grade_id), None) or _no(grade_id)

    def points(self, question: str) -> float:
        """What a question is worth: the points of its check cell, or of its written answer."""
        ids = {grade_id_of(c): c for c in self.cells}
        cell = ids.get(f"{question}-check") or ids[question]
        return float(cell["metadata"]["nbgrader"]["points"])

    @property
    def written(self) -> list[str]:
        """The questions that a person marks."""
        return [
            str(grade_id_of(c))
            for c in self.cells
            if c["cell_type"] == "markdown" and nbgrader_of(c).get("grade")
        ]

    def prose(self, question: str) -> str:
        """The text above a question's answer: all since the question before it."""
        at = [grade_id_of(c) for c in self.cells].index(question)
        told: list[str] = []
        for cell in self.cells[at - 1 :: -1]:
            own = nbgrader_of(cell)
            if own.get("solution") or own.get("grade"):
                break
            if cell["cell_type"] == "markdown":
                told.insert(0, text_of(cell))
        return "\n\n".join(told)

    def code(self) -> list[str]:
        """All code cells of the solution, in order."""
        return [solved(text_of(c)) for c in self.cells if c["cell_type"] == "code"]


def _no(grade_id: str) -> Cell:
    raise KeyError(f"no cell has the grade_id {grade_id!r}")


def text_of(cell: Cell) -> str:
    """A cell's text, which the file may keep as a list of lines."""
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(map(str, source))


def nbgrader_of(cell: Cell) -> dict[str, Any]:
    """A cell's nbgrader metadata, empty if it has none."""
    found = cell.get("metadata", {})
    found = found.get("nbgrader", {}) if isinstance(found, dict) else {}
    return found if isinstance(found, dict) else {}


def grade_id_of(cell: Cell) -> str | None:
    return nbgrader_of(cell).get("grade_id")


def names() -> list[str]:
    """The assignments whose source lies here, in the order of the course."""
    from course.assignments.catalogue import assignments

    return [name for name in assignments() if (FOLDER / f"{name}.ipynb").is_file()]


def read_source(name: str) -> Source:
    """The source of the assignment ``name``; ``ValueError`` if it does not lie here."""
    if not FOLDER.is_dir():
        raise ValueError(
            f"assignment: expected the course's folder notebooks/assignments at {FOLDER}; the "
            "sources come with the repository, not with an installed package"
        )
    require_choice("assignment", name, names())
    return Source(name, json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")))


# Regions of the solution


def without_solution(text: str, stub: str = CODE_STUB) -> str:
    """The text with a stub in place of each region, as far in as the region began."""
    kept: list[str] = []
    inside = False
    for line in text.split("\n"):
        if BEGIN in line:
            inside = True
            indent = line[: len(line) - len(line.lstrip())]
            kept += [indent + part for part in stub.split("\n")]
        elif END in line:
            inside = False
        elif not inside:
            kept.append(line)
    return "\n".join(kept)


def solved(text: str) -> str:
    """The text without the two marks, the solution in its place."""
    return "\n".join(x for x in text.split("\n") if BEGIN not in x and END not in x)


def region(text: str) -> str:
    """What stands between the marks."""
    return "\n".join(re.findall(rf"{BEGIN}\n(.*?)\n\s*{END}", text, re.DOTALL))


# The student's notebook and the solution


def release(source: Source) -> dict[str, Any]:
    """What students get: stubs for solutions, no outputs, the checks locked."""
    return _version(source, lambda cell: without_solution(text_of(cell), _stub(cell)))


def solution(source: Source) -> dict[str, Any]:
    """The same notebook with its solutions."""
    return _version(source, lambda cell: solved(text_of(cell)))


def _stub(cell: Cell) -> str:
    return CODE_STUB if cell["cell_type"] == "code" else TEXT_STUB


def _version(source: Source, text: Any) -> dict[str, Any]:
    notebook = copy.deepcopy(source.notebook)
    notebook["metadata"]["course"] = {"assignment": source.name, "version": __version__}
    for cell in notebook["cells"]:
        cell["source"] = text(cell)
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
        if nbgrader_of(cell).get("locked"):
            cell["metadata"] |= {"editable": False, "deletable": False}
        elif nbgrader_of(cell).get("solution"):
            cell["metadata"]["deletable"] = False
    return notebook


# Is it whole?


def faults(source: Source, assignment: Assignment) -> list[str]:
    """What is missing or wrong in a source, a sentence each; empty if it is whole."""
    found = [*_faults_of_cells(source.cells)]
    ids = [grade_id_of(c) for c in source.cells if grade_id_of(c)]
    found += [
        f"grade_id {i} comes twice" for i in sorted({str(i) for i in ids if ids.count(i) > 1})
    ]
    for question in assignment.questions:
        found += _faults_of_question(source, question.name, question.function, ids)
    checks = {str(i).removesuffix("-check") for i in ids if str(i).endswith("-check")}
    found += [
        f"{name}: no such question" for name in checks - {q.name for q in assignment.questions}
    ]
    if not source.written:
        found.append("no written question (markdown, grade and solution)")
    title = next((text_of(c) for c in source.cells), "")
    if not title.startswith(f"# Assignment {assignment.number} · "):
        found.append(f"the notebook does not begin with '# Assignment {assignment.number} · …'")
    for name in source.written:
        found += _missing(source, name, _PARTS)
        if not mark_scheme(source, name):
            found.append(f"{name}: no {SCHEME} with lines '- (1 point) …' in its solution")
        elif sum(points for points, _ in mark_scheme(source, name)) != source.points(name):
            found.append(f"{name}: the mark scheme's points do not add up to the cell's")
    return found


def _faults_of_cells(cells: Iterable[Cell]) -> Iterable[str]:
    for cell in cells:
        text, own = text_of(cell), nbgrader_of(cell)
        if text.count(BEGIN) != text.count(END):
            yield f"{own.get('grade_id', 'a cell')}: BEGIN and END SOLUTION do not pair"
        if BEGIN in text and not own.get("solution"):
            yield f"{own.get('grade_id', 'a cell')}: a solution in a cell that is no solution cell"
        if own and own.get("schema_version") != 3:
            yield f"{own.get('grade_id')}: expected nbgrader's schema_version 3"
        if own.get("solution") and BEGIN not in text:
            yield f"{own.get('grade_id')}: a solution cell without BEGIN SOLUTION"
        if cell["cell_type"] == "code" and cell.get("outputs"):
            yield f"{own.get('grade_id', 'a cell')}: a source stores no outputs"


def _faults_of_question(
    source: Source, name: str, function: str, ids: list[str | None]
) -> Iterable[str]:
    if name not in ids or f"{name}-check" not in ids:
        yield f"{name}: expected cells with the grade_id {name} and {name}-check"
        return
    check = source.cell(f"{name}-check")
    wanted = {"grade": True, "solution": False, "locked": True}
    if {key: nbgrader_of(check).get(key) for key in wanted} != wanted:
        yield f"{name}-check: expected grade and locked, and no solution"
    if text_of(check).strip() != f'sheet.check("{name}", {function})':
        yield f'{name}-check: expected the line sheet.check("{name}", {function})'
    if f"def {function}(" not in without_solution(text_of(source.cell(name))):
        yield f"{name}: the student does not see 'def {function}('"
    yield from _missing(source, name, _PARTS_OF_FUNCTION)


def _missing(source: Source, name: str, parts: Mapping[str, str]) -> Iterable[str]:
    prose = source.prose(name)
    for part, pattern in parts.items():
        if not re.search(pattern, prose):
            yield f"{name}: {part} is missing in the text before it"


def mark_scheme(source: Source, question: str) -> list[tuple[float, str]]:
    """The lines of a written question's mark scheme: points, and for what."""
    text = region(text_of(source.cell(question))).partition(SCHEME)[2]
    return [
        (float(points), words.strip())
        for points, words in re.findall(r"^- \(([\d.]+) points?\) (.+)$", text, re.MULTILINE)
    ]
