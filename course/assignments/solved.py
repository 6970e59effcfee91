"""The solutions of an assignment as functions, and the wrong answers made from them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from course.assignments.catalogue import find_assignment, parameters_of
from course.assignments.question import Draw, Mark, Question, WrongAnswer, marked
from course.assignments.source import Source, grade_id_of, solved, text_of

_STUDENT = re.compile(r"^STUDENT = .*$", re.MULTILINE)


def namespace(source: Source, student: str) -> dict[str, Any]:
    """The names that the solution's code cells define for ``student``; its checks are left out."""
    names: dict[str, Any] = {"__name__": "solution"}
    for cell in source.cells:
        if cell["cell_type"] == "code" and not str(grade_id_of(cell)).endswith("-check"):
            text = _STUDENT.sub(lambda _: f"STUDENT = {student!r}", solved(text_of(cell)))
            exec(compile(text, f"<{grade_id_of(cell)}>", "exec"), names)
    return names


def wrong_function(question: Question, wrong: WrongAnswer, source: Source, names: dict) -> Any:
    """The wrong answer as a function; ``ValueError`` if what it changes is not in the solution."""
    text = solved(text_of(source.cell(question.name)))
    if isinstance(wrong, str):
        text = wrong
    else:
        for old, new in wrong:
            if old not in text:
                raise ValueError(f"wrong: expected {old!r} in the solution of {question.name}")
            text = text.replace(old, new)
    own = dict(names)
    exec(compile(text, f"<{question.name}>", "exec"), own)
    return own[question.function]


def kill_table(source: Source, question: Question, student: str) -> Iterator[tuple[str, Mark]]:
    """What became of each wrong answer to a question."""
    names = namespace(source, student)
    mine = parameters_of(find_assignment(source.name), student)
    for label, wrong in question.wrong.items():
        function = wrong_function(question, wrong, source, names)
        yield label, marked(question, function, Draw("kill", question.name), mine)


def solution_marks(source: Source, student: str) -> dict[str, Mark]:
    """What the solutions get with this student's parameters."""
    assignment = find_assignment(source.name)
    names = namespace(source, student)
    mine = parameters_of(assignment, student)
    return {
        q.name: marked(q, names[q.function], Draw("solution", student, q.name), mine)
        for q in assignment.questions
    }
