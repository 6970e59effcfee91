"""Which assignments there are, and what a student's name decides in them."""

from __future__ import annotations

import importlib
import pkgutil
import unicodedata
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from course.assignments.question import Assignment, Draw, Function, Parameters
from course.checks import Exercise, Result, run_check
from course.values import require_choice


@cache
def assignments() -> Mapping[str, Assignment]:
    """All assignments by name, in the order of the course."""
    from course.assignments import questions

    modules = (
        importlib.import_module(f"course.assignments.questions.{info.name}")
        for info in pkgutil.iter_modules(questions.__path__)
    )
    ordered = sorted((module.ASSIGNMENT for module in modules), key=lambda one: one.number)
    return MappingProxyType({one.name: one for one in ordered})


def find_assignment(name: str) -> Assignment:
    """The assignment called ``name``; ``ValueError`` if there is none."""
    require_choice("assignment", name, list(assignments()))
    return assignments()[name]


def parameters_of(assignment: Assignment, student: str) -> Parameters:
    """The parameters of a student: always the same for one name, however it is typed."""
    if not isinstance(student, str) or not student.strip():
        raise ValueError(f"student: expected a name, got {student!r}")
    known = unicodedata.normalize("NFKC", student).casefold().split()
    return assignment.parameters(Draw("parameters", assignment.name, *known))


def visible_result(name: str, student: str, question: str, function: Function) -> Result:
    """What the visible properties say of a student's function. Never raises for the function."""
    assignment = find_assignment(name)
    draw = Draw("visible", name, question)
    asked = assignment.question(question)
    visible, _ = asked.stages(draw, parameters_of(assignment, student))
    return run_check(Exercise(visible.name, visible.properties, seconds=20), function)
