"""What an assignment consists of: questions, their properties, and the inputs they are asked with.

The checks are those of the exercises (:mod:`course.checks`): named properties, sentences that name
the likely bug. What is new here is that inputs are drawn: from a fixed seed in the student's
notebook, from the teacher's when a submission is graded.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from course.checks import Exercise, Test, run_check
from course.values import require_choice

T = TypeVar("T")
Parameters = Mapping[str, Any]
Function = Callable[..., Any]
#: The cell of a wrong answer, or pairs (what stands in the solution, what stands here instead).
WrongAnswer = str | tuple[tuple[str, str], ...]


class Draw:
    """Random inputs that depend on ``seed`` alone: text and numbers, of any machine and version."""

    def __init__(self, *seed: object) -> None:
        digest = hashlib.sha256("\0".join(map(str, seed)).encode()).digest()
        self._plain = random.Random(digest)
        self._tensors = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))

    def whole(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return self._plain.randint(low, high)

    def choice(self, values: Sequence[T]) -> T:
        return self._plain.choice(values)

    def sizes(self, count: int, low: int, high: int) -> list[int]:
        """``count`` different whole numbers, so that no two axes can be taken for each other."""
        return self._plain.sample(range(low, high + 1), count)

    def normal(self, *shape: int) -> Tensor:
        """Normal numbers in float64."""
        return torch.randn(*shape, generator=self._tensors, dtype=torch.float64)

    def eighths(self, *shape: int) -> Tensor:
        """Multiples of 1/8: float32 holds them, their sums and their products exactly."""
        return (self.normal(*shape) * 8).round() / 8

    def permutation(self, n: int) -> Tensor:
        """The numbers 0 … n − 1 in another order."""
        return torch.tensor(self._plain.sample(range(n), n))


@dataclass(frozen=True)
class Question:
    """A question whose answer is a function of the student's.

    ``name`` is the ``grade_id`` of its solution cell (its check cell is ``name-check``).
    ``properties(draw, parameters)`` gives the named tests in the order in which they are tried;
    those in ``visible`` are in the student's notebook and worth half of the points, the others
    are tried at grading only. ``advice`` is what the student's page says when only those fail.
    """

    name: str
    function: str
    properties: Callable[[Draw, Parameters], Mapping[str, Test]]
    visible: tuple[str, ...]
    advice: str
    wrong: Mapping[str, WrongAnswer] = field(default_factory=dict)

    def stages(self, draw: Draw, parameters: Parameters) -> tuple[Exercise, Exercise]:
        """The visible part and the hidden part."""
        tests = self.properties(draw, parameters)
        if missing := [name for name in self.visible if name not in tests]:
            raise ValueError(f"visible: expected properties of {self.name}, got {missing}")
        shown = {name: tests[name] for name in self.visible}
        rest = {name: test for name, test in tests.items() if name not in shown}
        # The time limit is the box's: processor time, and not this clock.
        return Exercise(self.name, shown, seconds=600), Exercise(self.name, rest, seconds=600)


@dataclass(frozen=True)
class Assignment:
    """An assignment: its questions, and the parameters that differ from student to student.

    ``number`` is its place in the course, as the first line of its notebook says it.
    """

    number: int
    name: str
    title: str
    questions: tuple[Question, ...]
    parameters: Callable[[Draw], Parameters] = lambda draw: {}

    def question(self, name: str) -> Question:
        require_choice("question", name, [q.name for q in self.questions])
        return next(q for q in self.questions if q.name == name)


@dataclass(frozen=True)
class Mark:
    """What the properties say of one answer: the share of the points, and why not all of them.

    ``stage``: "full", "hidden" (only hidden properties are broken), "visible", "empty".
    """

    share: float
    stage: str
    broken: str = ""
    message: str = ""


def marked(question: Question, function: Function, draw: Draw, parameters: Parameters) -> Mark:
    """The mark of ``function``, with inputs from ``draw``."""
    visible, hidden = question.stages(draw, parameters)
    result = run_check(visible, function)
    if result.passed is None:
        return Mark(0.0, "empty", message="not written yet")
    if not result.passed:
        return Mark(0.0, "visible", result.broken, result.message)
    result = run_check(hidden, function)
    if result.passed:
        return Mark(1.0, "full")
    return Mark(0.5, "hidden", result.broken, result.message)
