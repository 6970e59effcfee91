"""The exercises' checks: named properties of a student's function, one printed line each.

``check("name", function)`` never raises and always prints one line. The function runs in a
thread of its own with a time limit, its prints and warnings are swallowed, its random numbers do
not disturb the notebook's. A teacher's programs call :func:`run_check` and read the result.
"""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import importlib
import io
import pkgutil
import re
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Test = Callable[[Callable[..., Any]], "str | None"]


@dataclass(frozen=True)
class Exercise:
    """An exercise and the properties that a right answer has, in the order they are tried.

    ``properties`` are pairs (name of the property, test). A test calls the student's function and
    returns ``None``, or one sentence that says what is wrong and which bug does that.
    """

    name: str
    properties: tuple[tuple[str, Test], ...]
    seconds: float = 10.0


@dataclass(frozen=True)
class Result:
    """What a check found. ``passed`` is ``None`` while the exercise is not written yet."""

    name: str
    passed: bool | None
    broken: str = ""
    message: str = ""
    properties: int = 0

    def __str__(self) -> str:
        if self.passed:
            noun = "property holds" if self.properties == 1 else "properties hold"
            return f"✓ {self.name}: {self.properties} {noun}"
        if self.passed is None:
            return f"○ {self.name}: {self.message}"
        return f"✗ {self.name}, {self.broken}: {self.message}"


class Wrong(Exception):
    """Raised by the helpers below inside a test: the sentence that the student reads."""


class _OutOfTime(BaseException):
    """Sent into the student's thread. ``except Exception`` does not catch it."""


def check(name: str, function: Callable[..., Any]) -> None:
    """Run the exercise's properties on ``function`` and print one line. Never raises."""
    line = str(run_check(name, function))
    try:
        print(line)
    except UnicodeEncodeError:  # a console without ✓
        encoding = getattr(sys.stdout, "encoding", None) or "ascii"
        plain = line.replace("✓", "ok").replace("✗", "not ok").replace("○", "to do")
        print(plain.encode(encoding, "replace").decode(encoding))


def run_check(name: str, function: Callable[..., Any]) -> Result:
    """The result of an exercise's check. Never raises; an unknown name is a failed check."""
    exercise = find_exercise(name)
    if exercise is None:
        close = difflib.get_close_matches(str(name), sorted(_exercises()), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return Result(str(name), False, "name", f"there is no exercise of this name{hint}")
    if not callable(function):
        return Result(name, False, "type", f"expected a function, got {_type(function)}")
    return _within(exercise.seconds, lambda: _try_all(exercise, function), name)


def find_exercise(name: str) -> Exercise | None:
    """The exercise called ``name``, or ``None``."""
    return _exercises().get(name) if isinstance(name, str) else None


def call(
    function: Callable[..., Any],
    *arguments: Any,
    shape: Sequence[int] | None = None,
    finite: bool = True,
    **options: Any,
) -> Tensor:
    """Call a student's function and return its tensor; for use inside a property's test.

    Raises :class:`Wrong` (which the engine prints) if an argument was changed in place, if the
    answer is no tensor or has another ``shape``, or, with ``finite``, if it holds NaN or ∞.
    Python numbers and NumPy arrays count as tensors.
    """
    given = {f"argument {i + 1}": value for i, value in enumerate(arguments)} | options
    before = {key: value.clone() for key, value in given.items() if isinstance(value, Tensor)}
    answer = function(*arguments, **options)
    for key, kept in before.items():
        if kept.shape != given[key].shape or not torch.equal(
            kept.nan_to_num(7.0), given[key].nan_to_num(7.0)
        ):
            raise Wrong(f"changes {key} in place; work on a copy, or use operations without _")
    if answer is None:
        raise Wrong("returns nothing; is the return line missing?")
    if isinstance(answer, bool | int | float | np.ndarray | np.number):
        answer = torch.as_tensor(answer)
    if not isinstance(answer, Tensor):
        raise Wrong(f"returns {_type(answer)}, expected a tensor")
    answer = answer.detach()
    if shape is not None and tuple(answer.shape) != tuple(shape):
        raise Wrong(
            f"returns shape {list(answer.shape)}, expected {list(shape)}"
            f"{_shape_hint(tuple(answer.shape), tuple(shape))}"
        )
    if finite and not bool(torch.isfinite(answer).all()):
        what = "NaN" if bool(answer.isnan().any()) else "infinity"
        raise Wrong(f"{what} in the answer for ordinary finite input")
    return answer


def differs(got: Tensor, expected: Tensor, *, atol: float = 1e-5) -> str | None:
    """``None`` if ``got`` equals ``expected`` to ``atol``, else where it differs first."""
    gap = (got.double() - expected.double()).abs()
    wrong = ~(gap <= atol)
    if not bool(wrong.any()):
        return None
    index = [int(i) for i in wrong.nonzero()[0]]
    place = f" at {index}" if index else ""
    return (
        f"got {got[tuple(index)].item():.4g}{place}, expected {expected[tuple(index)].item():.4g}"
    )


def sees_future(
    function: Callable[[Tensor], Any], x: Tensor, *, at: int, axis: int = -2
) -> str | None:
    """Whether changing ``x`` at place ``at`` of ``axis`` changes the answer at an earlier place.

    The answer must have the same axis. Returns the sentence for the student, or ``None``.
    """
    changed = x.clone()
    changed.select(axis, at).add_(3.0)
    before, after = call(function, x.clone()), call(function, changed)
    early = (before.narrow(axis, 0, at) - after.narrow(axis, 0, at)).abs()
    early = early.movedim(axis, 0).reshape(at, -1).amax(1)
    if not bool((early > 1e-6).any()):
        return None
    row = int((early > 1e-6).nonzero()[0])
    return f"looks into the future: changing x[{at}] changes row {row}"


def _try_all(exercise: Exercise, function: Callable[..., Any]) -> Result:
    for broken, test in exercise.properties:
        try:
            message = test(function)
        except NotImplementedError as error:
            if not error.args:  # the stub's; PyTorch raises it too, with its reason
                return Result(exercise.name, None, broken, "not written yet")
            message = f"stops with {type(error).__name__}{_said(error)}"
        except Wrong as wrong:
            message = str(wrong)
        except _OutOfTime:
            raise
        except RecursionError:
            message = "calls itself without end (RecursionError)"
        except BaseException as error:
            message = f"stops with {type(error).__name__}{_said(error)}"
        if message is not None:
            return Result(exercise.name, False, broken, message)
    return Result(exercise.name, True, properties=len(exercise.properties))


def _within(seconds: float, work: Callable[[], Result], name: str) -> Result:
    """``work()`` in a thread; a result in any case, also when it does not come back.

    A loop in Python is stopped by an exception sent into its thread. What hides from that (a bare
    ``except`` inside a loop, one endless call into C) is left behind in a daemon thread, which
    ends with the process. Only a call into C that never lets another thread run (such as
    ``sum(iter(int, 1))``) stops the notebook too: there the kernel must be restarted.
    """
    box: list[Result] = []

    def run() -> None:
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                box.append(work())
        except _OutOfTime:
            pass
        except BaseException as error:  # nothing of the student's may reach the notebook
            box.append(Result(name, False, "run", f"stops with {type(error).__name__}"))

    thread = threading.Thread(target=run, daemon=True)
    numpy_state = np.random.get_state()  # noqa: NPY002 - a student may still use the global one
    quiet = io.StringIO()
    try:
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            thread.start()
            thread.join(seconds)
            for _ in range(20):  # again and again: one bare "except:" swallows one of them
                if not thread.is_alive():
                    break
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_OutOfTime)
                )
                thread.join(0.05)
    except KeyboardInterrupt:
        return Result(name, False, "time", "interrupted")
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
    if box:
        return box[0]
    return Result(
        name, False, "time", f"no answer after {seconds:g} seconds: a loop that does not end?"
    )


_FOUND: dict[str, Exercise] = {}


def _exercises() -> dict[str, Exercise]:
    """All exercises by name, from the modules ``nb*`` beside this file."""
    if not _FOUND:
        for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
            if module.startswith("nb"):
                for exercise in importlib.import_module(f"{__name__}.{module}").EXERCISES:
                    _FOUND[exercise.name] = exercise
    return _FOUND


def _type(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _said(error: BaseException) -> str:
    """An error's own words on one line, without what differs from machine to machine."""
    try:
        text = str(error)
    except BaseException:
        return ""
    text = " ".join(text.split())
    text = re.sub(r"0x[0-9a-fA-F]+", "0x…", text)
    text = re.sub(r"(?:[A-Za-z]:)?[\\/](?:[\w.\-]+[\\/])+", "", text)
    return f": {text[:157]}…" if len(text) > 158 else f": {text}" if text else ""


def _shape_hint(got: tuple[int, ...], expected: tuple[int, ...]) -> str:
    if sorted(got) == sorted(expected) and got != expected:
        return "; two axes are exchanged"
    if len(got) < len(expected):
        return "; a sum or mean took an axis away"
    if len(got) > len(expected):
        return "; there is an axis too many"
    return ""
