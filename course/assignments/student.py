"""The student's side: own parameters, and the visible checks. Nothing here knows a hidden input."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: Set inside the box in which the teacher's program runs a submission: what it decided (JSON).
BOX = "COURSE_ASSIGNMENT_BOX"


@dataclass(frozen=True)
class Sheet:
    """One student's copy of an assignment: ``parameters`` differ from student to student."""

    assignment: str
    student: str
    parameters: Mapping[str, Any]

    def check(self, question: str, function: Callable[..., Any]) -> None:
        """Try the question's visible properties on ``function`` and print one line.

        Never raises, except under nbgrader (which takes a cell without an error for full points):
        there a property that does not hold is an ``AssertionError``. When the teacher's program
        runs the notebook, nothing happens here: it asks for answers from outside.
        """
        if BOX in os.environ:
            return
        from course.assignments.catalogue import visible_result
        from course.console import say

        result = visible_result(self.assignment, self.student, question, function)
        if "NBGRADER_EXECUTION" in os.environ and not result.passed:
            raise AssertionError(str(result))
        say(str(result))
        for line in result.printed.splitlines():
            say(f"  it printed: {line}")


def assignment(name: str, student: str) -> Sheet:
    """The sheet of ``student`` (a name, as the teacher has it) for the assignment ``name``.

    When a submission is graded the name of its folder counts, whatever ``student`` says.
    ``ValueError`` for an unknown assignment or an empty name.
    """
    decided = os.environ.get(BOX)
    if decided is not None:
        told = json.loads(decided)
        return Sheet(told["assignment"], told["student"], told["parameters"])
    from course.assignments.catalogue import find_assignment, parameters_of

    return Sheet(name, student, parameters_of(find_assignment(name), student))
