"""What the checks of the exercises are written in: inputs, and the properties that answers have.

A property is a test of the student's function: it returns ``None``, or the sentence the student
reads. The makers below turn data (inputs, the true function, a rule in words) into tests. What
they have in common: ``part`` is the part of the answer that is looked at, ``rule`` says what must
hold, ``hint`` what to look for; and ``mistakes`` are wrong functions, each under the sentence that
is said in place of the hint where the answers to the ``probes`` are exactly theirs. (Probes are
inputs on which no two mistakes agree; many a property is tested on too simple ones for that.)
"""

from __future__ import annotations

import contextlib
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course.checks.answers import Function, Wrong, call, call_parts, differs, whole_number

Test = Callable[[Function], "str | None"]
Part = Callable[..., Tensor]  # of the answer and the arguments
Mistakes = Mapping[str, Function]


# Inputs


@dataclass(frozen=True)
class Case:
    """The arguments of one call, and how a sentence names them."""

    arguments: tuple[Any, ...]
    name: str = ""


def case(*arguments: Any, name: str = "") -> Case:
    return Case(arguments, name)


def normal(*shape: int, seed: int) -> Tensor:
    """Normal numbers in float64; the random state of nobody else is touched."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def eighths(*shape: int, seed: int) -> Tensor:
    """Multiples of 1/8: float32 holds them, their sums and their products exactly."""
    return (normal(*shape, seed=seed) * 8).round() / 8


def positive(*shape: int, seed: int) -> Tensor:
    """Positive numbers of unequal size, as a feature map makes them."""
    return normal(*shape, seed=seed).exp()


# Properties


def shaped(truth: Function, *cases: Case, names: Sequence[str] = ()) -> Test:
    """The answers have the shapes that the true function's have."""

    def test(function: Function) -> str | None:
        for one in cases:
            _answers(function, one, _parts(truth(*one.arguments)), names)
        return None

    return test


def agrees(
    truth: Function,
    *cases: Case,
    part: Part | None = None,
    rule: str = "",
    hint: str = "",
    atol: float = 1e-5,
    rtol: float = 0.0,
    dtype: bool = False,
    mistakes: Mistakes | None = None,
    probes: Sequence[Case] = (),
    names: Sequence[str] = (),
    joint: Function | None = None,
) -> Test:
    """The answers are those of ``truth``.

    ``dtype``: in the dtype of the truth. ``names``: the answer has several tensors, so called;
    they are compared one by one, or through ``joint``, what is made of them (of several
    right answers, perhaps). Then ``part`` gets all of them.
    """

    def compare(
        got: tuple[Tensor, ...], expected: tuple[Tensor, ...], one: Case, whole: bool, atol: float
    ) -> str | None:
        if joint:
            got, expected = (joint(*got),), (joint(*expected),)
        if part and not whole:
            views = [x if names else x[0] for x in (got, expected)]
            got, expected = ((part(view, *one.arguments),) for view in views)
        for i, (mine, true) in enumerate(zip(got, expected, strict=True)):
            wrong = differs(mine, true, atol=atol, rtol=rtol)
            if wrong:
                return f"{names[i]}: {wrong}" if len(got) > 1 else wrong
        return None

    def is_(mistake: Function, function: Function) -> bool:
        """Whether the function makes this mistake, wherever one can see it."""
        for one in probes or cases:
            like = _parts(truth(*one.arguments))
            theirs = tuple(x.nan_to_num(7.0) for x in _parts(mistake(*one.arguments)))
            mine = tuple(x.nan_to_num(7.0) for x in _answers(function, one, like, names))
            if [x.shape for x in theirs] != [x.shape for x in mine]:
                return False
            if compare(mine, theirs, one, True, atol or 1e-5):
                return False
        return True

    def test(function: Function) -> str | None:
        for one in cases:
            expected = _parts(truth(*one.arguments))
            got = _answers(function, one, expected, names)
            wrong = compare(got, expected, one, False, atol)
            if wrong:
                cause = _first_known(mistakes, lambda mistake: is_(mistake, function))
                if not cause and atol:
                    cause = _rounding(partial(compare, got, expected, one, False))
                return sentence(
                    one.name, rule, wrong, hint=cause or _narrow(got) or hint or _of_nan(wrong)
                )
            if dtype and got[0].dtype != expected[0].dtype:
                return sentence(one.name, _other_dtype(got[0].dtype, expected[0].dtype))
        return None

    return test


def _rounding(compare: Callable[[float], str | None]) -> str:
    """The sentence for an answer that is right up to the rounding of a narrower dtype."""
    if not compare(3e-6):  # what float32 makes of numbers of ordinary size
        return (
            "The difference is rounding: something on the way is float32, or a small number added"
        )
    return ""


def _narrow(got: Sequence[Tensor]) -> str:
    """The sentence for an answer in half precision, which is nearly always the reason."""
    if any(x.dtype == torch.float16 for x in got):
        return "The answer is float16, which has three digits and ends at 65,504"
    if any(x.dtype == torch.bfloat16 for x in got):
        return "The answer is bfloat16, which has two to three digits"
    return ""


def _of_nan(wrong: str) -> str:
    """Where NaN comes from, if nothing more is known."""
    return "0/0, ∞ − ∞ and the logarithm of a number below 0 are NaN" if "got nan" in wrong else ""


def alike(
    one: Case,
    other: Case,
    *,
    part: Part = lambda answer, *_: answer,
    rule: str,
    hint: str = "",
    atol: float = 1e-5,
) -> Test:
    """The part that is looked at is the same for both inputs."""

    def test(function: Function) -> str | None:
        first, second = (
            part(call(function, *c.arguments, finite=False), *c.arguments) for c in (one, other)
        )
        if first.shape != second.shape:
            raise Wrong(f"returns shapes {list(first.shape)} and {list(second.shape)}")
        return sentence(rule, hint=hint) if differs(second, first, atol=atol) else None

    return test


def counts(
    truth: Function,
    *cases: Case,
    rule: str = "",
    hint: str = "",
    mistakes: Mistakes | None = None,
    probes: Sequence[Case] = (),
) -> Test:
    """The answers are whole numbers, those of ``truth``."""

    def is_(mistake: Function, function: Function) -> bool:
        return all(
            mistake(*c.arguments) == whole_number(function, *c.arguments) for c in probes or cases
        )

    def test(function: Function) -> str | None:
        for one in cases:
            got, expected = whole_number(function, *one.arguments), truth(*one.arguments)
            if got != expected:
                cause = _first_known(mistakes, lambda mistake: is_(mistake, function))
                return sentence(
                    one.name, rule, f"got {got:,}, expected {expected:,}", hint=cause or hint
                )
        return None

    return test


def no_future(x: Tensor, *rest: Any, at: int) -> Test:
    """Row t of the answer depends on rows 0 … t of ``x`` alone."""
    return lambda function: sees_future(function, x, *rest, at=at)


def sees_future(function: Function, x: Tensor, *rest: Any, at: int, axis: int = -2) -> str | None:
    """Whether changing ``x`` at place ``at`` of ``axis`` changes the answer at an earlier place.

    ``rest`` are the function's other arguments, which stay. The answer must have the same axis.
    Returns the sentence for the student, or ``None``.
    """
    changed = x.clone()
    changed.select(axis, at).add_(3.0)
    before, after = (call(function, y, *rest, finite=False) for y in (x, changed))
    if before.shape != after.shape or before.shape[axis] != x.shape[axis]:
        raise Wrong(f"returns shape {list(before.shape)} for x {list(x.shape)}: a row is missing")
    early = (before.narrow(axis, 0, at) - after.narrow(axis, 0, at)).abs()
    early = early.movedim(axis, 0).reshape(at, -1).amax(1)
    if not bool((early > 1e-6).any()):  # NaN is for the values to say
        return None
    row = int((early > 1e-6).nonzero()[0])
    return f"looks into the future: changing x[{at}] changes row {row}"


def all_of(*tests: Test) -> Test:
    """Several tests under one name; the first sentence counts."""

    def test(function: Function) -> str | None:
        return next((said for said in (one(function) for one in tests) if said), None)

    return test


# Sentences


def sentence(*parts: str, hint: str = "") -> str:
    """``parts`` joined by colons, and a hint behind."""
    said = ": ".join(part for part in parts if part)
    return f"{said}. {hint}" if hint else said


def _parts(answer: Any) -> tuple[Tensor, ...]:
    return tuple(answer) if isinstance(answer, tuple) else (answer,)


def _answers(
    function: Function, one: Case, like: tuple[Tensor, ...], names: Sequence[str]
) -> tuple[Tensor, ...]:
    """The student's tensors, in the shapes of the true ones."""
    if names:
        shapes = {name: tuple(x.shape) for name, x in zip(names, like, strict=True)}
        return call_parts(function, *one.arguments, shapes=shapes)
    return (call(function, *one.arguments, shape=like[0].shape, finite=False),)


def _first_known(mistakes: Mistakes | None, is_: Callable[[Function], bool]) -> str:
    for words, mistake in (mistakes or {}).items():
        with contextlib.suppress(Wrong):
            if is_(mistake):
                return words
    return ""


def _other_dtype(got: torch.dtype, expected: torch.dtype) -> str:
    mine, true = (str(dtype).removeprefix("torch.") for dtype in (got, expected))
    return f"returns {mine} for {true}, expected the dtype that came"


# What a call makes on its way

WATCHED = 30.0  # seconds: the first operation that is watched makes PyTorch import 900 modules


@dataclass
class Work:
    """What was seen of a call: its largest tensor, its memory outside PyTorch, its lines."""

    entries: int = 0  # of the largest tensor that an operation gave back
    bytes: int = 0  # at the peak, of NumPy's arrays and Python's lists
    lines: int = 0  # of Python that ran


def work_of(function: Function, *arguments: Any, lines: bool = False) -> Work:
    """Call the function, and watch: anew for each, so that none of them counts the others.

    The ``lines`` are counted if one asks for them: it is slow.
    """
    work = Work()
    with _Largest(work):
        call(function, *arguments, finite=False)
    with _memory(work):
        call(function, *arguments, finite=False)
    if lines:
        with _lines(work):
            call(function, *arguments, finite=False)
    return work


class _Largest(TorchDispatchMode):
    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                self.work.entries = max(self.work.entries, leaf.numel())
        return made


@contextlib.contextmanager
def _memory(work: Work) -> Iterator[None]:
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        yield
        work.bytes = tracemalloc.get_traced_memory()[1] - before
    finally:
        if not tracing:
            tracemalloc.stop()


@contextlib.contextmanager
def _lines(work: Work) -> Iterator[None]:
    def count(frame: FrameType, event: str, _: Any) -> Any:
        work.lines += event == "line"
        return count

    tracer = sys.gettrace()  # of this thread: a debugger's, perhaps
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(tracer)
