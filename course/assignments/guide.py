"""The marking guide of an assignment: solutions, properties, and which wrong answers they kill."""

from __future__ import annotations

import re

from course.assignments.catalogue import find_assignment, parameters_of
from course.assignments.question import Draw, Question
from course.assignments.solved import kill_table
from course.assignments.source import Source, mark_scheme, region, text_of

#: Whose parameters the guide shows; any other student's are printed by the notebook itself.
EXAMPLE = "Ada Lovelace"


def guide(source: Source) -> str:
    """The guide as Markdown."""
    assignment = find_assignment(source.name)
    mine = parameters_of(assignment, EXAMPLE)
    worth = sum(source.points(n) for n in [q.name for q in assignment.questions] + source.written)
    parts = [
        f"# {assignment.title}: marking guide",
        f"{worth:g} points. Parameters differ from student to student; of {EXAMPLE}: "
        + ", ".join(f"`{name}` = {value}" for name, value in mine.items())
        + ".",
        "The visible properties stand in the student's notebook and are worth half of a question's "
        "points; all inputs are drawn anew when a submission is graded.",
    ]
    parts += [_question(source, question) for question in assignment.questions]
    parts += [_written(source, name) for name in source.written]
    return "\n\n".join(parts) + "\n"


def _question(source: Source, question: Question) -> str:
    mine = parameters_of(find_assignment(source.name), EXAMPLE)
    properties = question.properties(Draw("guide"), mine)
    listed = "\n".join(
        f"{i}. {name} ({'visible' if name in question.visible else 'hidden'})"
        for i, name in enumerate(properties, 1)
    )
    kills = "\n".join(
        f"| {label} | {mark.share:.0%} | {mark.broken or 'SURVIVED'} | {_cell(mark.message)} |"
        for label, mark in kill_table(source, question, EXAMPLE)
    )
    return "\n\n".join(
        (
            f"## {_heading(source, question.name)} ({source.points(question.name):g} points)",
            f"```python\n{region(text_of(source.cell(question.name)))}\n```",
            f"Properties, in the order in which they are tried:\n\n{listed}",
            f"Wrong answers, and the property that each one breaks:\n\n"
            "| wrong answer | share | property | what the student reads |\n|---|---|---|---|\n"
            f"{kills}",
        )
    )


def _heading(source: Source, question: str) -> str:
    found = re.search(r"^#+ (.+)$", source.prose(question), re.MULTILINE)
    return found[1] if found else question


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _written(source: Source, name: str) -> str:
    scheme = "\n".join(f"- {points:g}: {words}" for points, words in mark_scheme(source, name))
    answer = region(text_of(source.cell(name))).partition("**Mark scheme**")[0].strip()
    return (
        f"## {_heading(source, name)} ({source.points(name):g} points, marked by a person)\n\n"
        f"{answer}\n\nMark scheme:\n\n{scheme}"
    )
