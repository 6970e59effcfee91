"""The exercises' checks: named properties of a student's function, one printed line each.

``check("name", function)`` never raises and always prints one line, with what the function itself
printed (its first lines) below. The function is a guest: it has a time limit, and the notebook's
random numbers, warnings, default dtype and folder are afterwards as before. A teacher's programs
call :func:`run_check` and read the result.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from course.checks.answers import Wrong, call, differs, is_of, is_stub, kind_of, stops_with
from course.checks.guest import Stop, receive
from course.checks.properties import Test, sees_future
from course.console import say

__all__ = [
    "Exercise",
    "Result",
    "Test",
    "Wrong",
    "call",
    "check",
    "differs",
    "exercises",
    "find_exercise",
    "run_check",
    "sees_future",
]


@dataclass(frozen=True)
class Exercise:
    """An exercise and the properties that a right answer has, in the order they are tried.

    ``properties`` maps a property's name to its test (pairs of the two will do as well). A test
    calls the student's function and returns ``None``, or one sentence that says what is wrong and
    which bug does that.
    """

    name: str
    properties: Mapping[str, Test] | Iterable[tuple[str, Test]]
    seconds: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "properties", MappingProxyType(dict(self.properties)))


@dataclass(frozen=True)
class Result:
    """What a check found. ``passed`` is ``None`` while the exercise is not written yet.

    ``printed`` is what the function printed: the first lines, and how many more there were.
    """

    name: str
    passed: bool | None
    broken: str = ""
    message: str = ""
    properties: int = 0
    printed: str = ""

    def __str__(self) -> str:
        if self.passed:
            noun = "property holds" if self.properties == 1 else "properties hold"
            return f"✓ {self.name}: {self.properties} {noun}"
        if self.passed is None:
            return f"○ {self.name}: {self.message}"
        return f"✗ {self.name}, {self.broken}: {self.message}"


def check(exercise: str | Exercise, function: Callable[..., Any]) -> None:
    """Run the exercise's properties on ``function`` and print one line. Never raises.

    What the function printed follows, a few lines of it.
    """
    result = run_check(exercise, function)
    text = str(result)
    if result.printed:
        text += "\n  It printed:" + "".join(f"\n  | {x}" for x in result.printed.splitlines())
    say(text)


def run_check(exercise: str | Exercise, function: Callable[..., Any]) -> Result:
    """The result of an exercise's check, given its name or itself.

    Never raises; an unknown name is a failed check.
    """
    found = exercise if isinstance(exercise, Exercise) else find_exercise(exercise)
    if found is None:
        close = difflib.get_close_matches(str(exercise), sorted(exercises()), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return Result(str(exercise), False, "name", f"there is no exercise of this name{hint}")
    if not callable(function):
        return Result(found.name, False, "type", f"expected a function, got {kind_of(function)}")
    visit = receive(lambda: _try_all(found, function), found.seconds)
    if visit.value is not None:
        return replace(visit.value, printed=visit.printed)
    if visit.ended == "interrupted":
        message = "interrupted"
    else:
        message = f"no answer after {found.seconds:g} seconds: a loop that does not end?"
    return Result(found.name, False, "time", message, printed=visit.printed)


def find_exercise(name: str) -> Exercise | None:
    """The exercise called ``name``, or ``None``."""
    return exercises().get(name) if isinstance(name, str) else None


@cache
def exercises() -> Mapping[str, Exercise]:
    """All exercises by name, from the modules ``nb*`` beside this file, in the notebooks' order."""
    found: dict[str, Exercise] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        if module.startswith("nb"):
            for exercise in importlib.import_module(f"{__name__}.{module}").EXERCISES:
                found[exercise.name] = exercise
    return MappingProxyType(found)


def _try_all(exercise: Exercise, function: Callable[..., Any]) -> Result:
    for broken, test in dict(exercise.properties).items():
        try:
            message = test(function)
        except Stop:
            raise
        except Wrong as wrong:
            message = str(wrong)
        except BaseException as error:  # nothing of the student's may reach the notebook
            if is_stub(error):
                return Result(exercise.name, None, broken, "not written yet")
            message = stops_with(error, function, {})
            if not is_of(error, function):
                message = f"the check itself {message}; please report it"
        if message is not None:
            return Result(exercise.name, False, broken, message)
    return Result(exercise.name, True, properties=len(dict(exercise.properties)))
