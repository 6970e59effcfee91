"""Outside the box: asks a submission with inputs it has not seen, and compares.

The properties are those of the questions; the function that they call is a stand-in which sends the
arguments into the box and brings the answer back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from course.assignments.limits import Limits
from course.assignments.question import Assignment, Draw, Mark, Parameters, Question, marked
from course.assignments.sandbox import Box, BoxEnded
from course.checks import Wrong


class Remote:
    """A student's function, far away: what it says of itself is not believed, only compared."""

    def __init__(self, box: Box, function: str) -> None:
        self._box, self._function = box, function

    def __call__(self, *arguments: Any) -> Any:
        return self._ask(*arguments)

    def draw(self, *arguments: Any) -> Any:
        """What the function draws on an Axes, as plain values."""
        return self._ask(*arguments, draw=True)

    def _ask(self, *arguments: Any, draw: bool = False) -> Any:
        try:
            reply = self._box.ask(self._function, *arguments, draw=draw)
        except BoxEnded as ended:
            raise Wrong(str(ended)) from None
        if "answer" in reply:
            return reply["answer"]
        if reply.get("stub") is True:
            raise NotImplementedError
        raise Wrong(str(reply.get("wrong", "gives no answer"))[:600])


def referee(
    assignment: Assignment,
    student: str,
    cells: tuple[str, ...],
    parameters: Parameters,
    *,
    seed: str,
    limits: Limits,
    unsafe: bool = False,
) -> tuple[dict[str, Mark], list[str]]:
    """The marks of one submission by question, and notes on what happened to its processes."""
    decided = {"assignment": assignment.name, "student": student, "parameters": dict(parameters)}
    room = _Room(cells, decided, limits, unsafe)
    try:
        marks = {
            q.name: room.mark(q, Draw("hidden", seed, student, q.name), parameters)
            for q in assignment.questions
        }
        return marks, room.notes
    finally:
        room.close()


class _Room:
    """A box, and the next one where it ended: without the cell that ended it."""

    def __init__(
        self, cells: tuple[str, ...], decided: Mapping[str, Any], limits: Limits, unsafe: bool
    ) -> None:
        self.cells, self.decided, self.limits, self.unsafe = cells, decided, limits, unsafe
        self.notes: list[str] = []
        self.box: Box | None = None
        self.skip: list[int] = []
        self.starts = 0
        self.used = 0.0
        self.last = ""

    def mark(self, question: Question, draw: Draw, parameters: Parameters) -> Mark:
        if not self._ready():
            return Mark(0.0, "visible", "runs", self.last)
        assert self.box is not None
        mark = marked(question, Remote(self.box, question.function), draw, parameters)
        self.last = str(self.box.ended or "")
        return mark

    def _ready(self) -> bool:
        """Whether a box stands that has run the cells; a new one where the last has ended."""
        while self.box is None or self.box.ended:
            self.close()
            if self.starts > self.limits.restarts or self.used > self.limits.total_seconds:
                return False
            self.starts += 1
            self.box = Box(
                self.cells,
                self.decided,
                self.limits,
                skip=self.skip,
                used=self.used,
                unsafe=self.unsafe,
            )
            try:
                self.box.run()
            except BoxEnded as ended:
                self._ended(ended)
        return True

    def _ended(self, ended: BoxEnded) -> None:
        assert self.box is not None
        cell = self.box.cell
        if cell < 0:  # nothing of the student's has run yet: no reason to give it no points
            raise RuntimeError(f"the box did not start: {ended}")
        self.last = str(ended)
        self.skip.append(cell)
        first = (self.cells[cell].strip().splitlines() or [""])[0][:60]
        self.notes.append(f"code cell {cell + 1} (“{first}”) was left out: {ended}")

    def close(self) -> None:
        if self.box is not None:
            for number, error in sorted(self.box.errors.items()):
                note = f"code cell {number + 1} stopped: {error}"[:300]
                if note not in self.notes:
                    self.notes.append(note)
            self.used = self.box.used
            self.box.close()
            self.box = None
