"""Inside the box: runs the cells of one submission, then answers calls with arrays.

It knows no question and no expected answer. Everything here may be changed by the submission, which
runs in the same process: all that it can change is what it answers.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from course.assignments import wire
from course.assignments.drawing import draw_with
from course.assignments.shell import plain_shell
from course.checks.answers import Wrong, answer_of, is_stub, stops_with

Send = Callable[[Any], None]


def main() -> None:
    """Serve one submission: the first message is the job, the others are calls."""
    requests, replies = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)

    def read(count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = os.read(requests, count - len(parts))
            if not part:
                os._exit(0)  # nobody asks any more
            parts += part
        return bytes(parts)

    def send(message: Any) -> None:
        try:
            data = memoryview(wire.pack(message))
        except Exception as error:  # too large, or an object that breaks while it is read
            data = memoryview(wire.pack({"wrong": f"its answer cannot be sent: {_said(error)}"}))
        while data:
            data = data[os.write(replies, data) :]

    job = wire.receive(read)
    warnings.simplefilter("ignore")
    shell = plain_shell()
    send({"started": True})
    errors = _run_cells(shell, job["cells"], set(job["skip"]), send)
    send({"ready": errors})
    while True:
        request = wire.receive(read)
        send(_answer(shell.user_ns, request))


class Paper(io.TextIOBase):
    """Takes what is printed, however much, and keeps nothing."""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)


def _run_cells(shell: Any, cells: list[str], skip: set[int], send: Send) -> dict[str, str]:
    """Run the cells one by one; returns what went wrong, by the cell's number.

    In a notebook whose cells were moved, what a cell needs may stand below it: a cell that misses
    a name is run again after the others, twice at most.
    """
    errors: dict[str, str] = {}
    todo = [number for number in range(len(cells)) if number not in skip]
    for _ in range(3):
        for number in todo:
            send({"cell": number})
            error = _run(shell, cells[number])
            errors.pop(str(number), None)
            if error is not None and not is_stub(error):
                errors[str(number)] = _said(error)
        todo = [number for number in todo if errors.get(str(number), "").startswith("NameError")]
    return errors


def _run(shell: Any, cell: str) -> BaseException | None:
    """The error of one cell; what it prints goes nowhere."""
    sys.stdout = sys.stderr = Paper()
    try:
        outcome = shell.run_cell(cell, silent=True)
        return outcome.error_before_exec or outcome.error_in_exec
    except BaseException as caught:  # IPython itself may have been broken by a cell
        return caught
    finally:
        sys.stdout = sys.stderr = Paper()


def _said(error: BaseException) -> str:
    try:
        said = " ".join(str(error).split())[:200]
    except BaseException:
        said = ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _answer(names: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """The reply to one call: an answer, the sentence that says why there is none, or a stub."""
    name, arguments = request["function"], request["arguments"]
    function = names.get(name)
    if function is None:
        return {"wrong": f"there is no {name}: was its cell deleted, or the function renamed?"}
    if not callable(function):
        return {"wrong": f"{name} is no function any more: is the name used for something else?"}
    try:
        if request["draw"]:
            return {"answer": draw_with(function, *arguments)}
        return {"answer": answer_of(function, *arguments)}
    except Wrong as wrong:
        return {"wrong": str(wrong)[:600]}
    except BaseException as error:
        if is_stub(error):
            return {"stub": True}
        return {"wrong": stops_with(error, function, {})[:600]}


if __name__ == "__main__":
    main()
