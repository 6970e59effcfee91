"""What a student's function gives back: called, turned into tensors, compared, and told apart."""

from __future__ import annotations

import functools
import inspect
import linecache
import math
import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course.checks.guest import Stop

Function = Callable[..., Any]


class Wrong(Exception):
    """Raised inside a property's test: the sentence that the student reads."""


def call(
    function: Function,
    *arguments: Any,
    shape: Sequence[int] | None = None,
    finite: bool = True,
    **options: Any,
) -> Tensor:
    """Call a student's function on copies of the arguments and return its tensor.

    For use inside a property's test. Raises :class:`Wrong` (which the engine prints) if the
    function stops with an error, if an argument was changed in place, if the answer is no tensor
    or has another ``shape``, or, with ``finite``, if it holds NaN or ∞. Python numbers, NumPy
    arrays, and lists and tuples of all these count as tensors.
    """
    answer = as_tensor(answer_of(function, *arguments, **options), shape=shape)
    if finite and not bool(torch.isfinite(answer).all()):
        what = "NaN" if bool(answer.isnan().any()) else "infinity"
        raise Wrong(f"{what} in the answer for ordinary finite input")
    return answer


def call_parts(
    function: Function, *arguments: Any, shapes: Mapping[str, Sequence[int]]
) -> tuple[Tensor, ...]:
    """As :func:`call`, for a function that returns several tensors: their names and shapes."""
    answer = answer_of(function, *arguments)
    if not isinstance(answer, tuple | list) or len(answer) != len(shapes):
        count = f"a {_type(answer)} of {len(answer)}" if isinstance(answer, tuple | list) else ""
        raise Wrong(
            f"returns {count or kind_of(answer)}, expected {len(shapes)} tensors: "
            f"return {', '.join(shapes)}"
        )
    came = [tuple(np.shape(part)) for part in answer if isinstance(part, Tensor | np.ndarray)]
    wanted = [tuple(shape) for shape in shapes.values()]
    if came != wanted and sorted(came) == sorted(wanted):
        raise Wrong(f"returns the right shapes in another order: return {', '.join(shapes)}")
    return tuple(
        as_tensor(part, shape=shape, name=name)
        for part, (name, shape) in zip(answer, shapes.items(), strict=True)
    )


def whole_number(function: Function, *arguments: Any) -> int:
    """As :func:`call`, for a function that returns one whole number, of whatever type."""
    answer = answer_of(function, *arguments)
    if isinstance(answer, int) and not isinstance(answer, bool):
        if answer.bit_length() > 1024:  # Python itself refuses to print what is much larger
            raise Wrong(f"returns a whole number of {answer.bit_length():,} bits, far too large")
        return answer  # exact
    number = as_tensor(answer, shape=()).item()
    if isinstance(number, bool) or number != number or number in (torch.inf, -torch.inf):
        raise Wrong(f"returns {number}, expected a whole number")
    if number != int(number):
        mine, _ = two_numbers(number, round(number))
        raise Wrong(f"returns {mine}, expected a whole number")
    return int(number)


def answer_of(function: Function, *arguments: Any, **options: Any) -> Any:
    """What the function returns for copies of the arguments, which it must not change.

    The checks compute in float64, and a notebook in float32, as PyTorch does by itself. So a
    function that mixes the two is asked again, in float32, before its error counts.
    """
    given = {**_named(function, arguments), **options}
    copies = [_copy(x) for x in arguments]
    named_copies = {name: _copy(x) for name, x in options.items()}
    try:
        answer = function(*copies, **named_copies)
    except Exception as error:
        if isinstance(error, Wrong) or is_stub(error):
            raise
        if _mixes_dtypes(error) and any(map(_is_double, given.values())):
            try:
                narrow = {name: _to_float32(x) for name, x in options.items()}
                return answer_of(function, *map(_to_float32, arguments), **narrow)
            except Wrong:
                pass  # the error that came first is the student's
        raise Wrong(stops_with(error, function, given)) from error
    except (SystemExit, KeyboardInterrupt) as error:
        if isinstance(error, Stop):
            raise
        raise Wrong(stops_with(error, function, given)) from error
    for (name, before), after in zip(given.items(), [*copies, *named_copies.values()], strict=True):
        if isinstance(before, Tensor) and not _same(before, after):
            raise Wrong(f"changes {name} in place; work on a copy, or use operations without _")
    return answer


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _is_double(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float64


def _to_float32(value: Any) -> Any:
    return value.float() if _is_double(value) else value


def _mixes_dtypes(error: Exception) -> bool:
    """Whether PyTorch refused an operation because its tensors have different dtypes."""
    return isinstance(error, RuntimeError) and bool(re.search("dtype|scalar type", str(error)))


def as_tensor(value: Any, *, shape: Sequence[int] | None = None, name: str = "") -> Tensor:
    """A student's value as a tensor on the CPU; :class:`Wrong` if it is none, or of another shape.

    ``name`` is that of one of several values.
    """
    about = f"{name}: " if name else ""
    if value is None:
        raise Wrong(f"{about}returns nothing; is the return line missing?")
    if isinstance(value, list | tuple):
        value = _joined(value, about, shape)
    if isinstance(value, np.ndarray | np.generic):
        try:
            value = torch.as_tensor(np.ascontiguousarray(value).reshape(np.shape(value)))
        except (TypeError, RuntimeError):
            raise Wrong(f"{about}returns {kind_of(value)} of {np.asarray(value).dtype}") from None
    if isinstance(value, Real):
        value = torch.as_tensor(value if isinstance(value, bool | int) else np.float64(value))
    if not isinstance(value, Tensor):
        wanted = "number" if shape == () else "tensor"
        raise Wrong(f"{about}returns {kind_of(value)}, expected a {wanted}")
    if value.is_complex():
        raise Wrong(f"{about}returns complex numbers, expected real ones")
    if value.is_meta or value.is_nested:
        raise Wrong(f"{about}returns a tensor without entries of its own, expected numbers")
    answer = value.detach().cpu()
    if answer.layout != torch.strided:
        answer = answer.to_dense()
    if shape is not None and tuple(answer.shape) != tuple(shape):
        raise Wrong(
            f"{about}returns shape {list(answer.shape)}, expected {list(shape)}"
            f"{_shape_hint(tuple(answer.shape), tuple(shape))}"
        )
    return answer


def _joined(rows: Sequence[Any], about: str, shape: Sequence[int] | None) -> Any:
    """A list or tuple of numbers, arrays or tensors of one shape, as one array or tensor."""
    what = f"{about}returns a {_type(rows)}"
    if not rows:
        return torch.empty(tuple(shape)) if shape and math.prod(shape) == 0 else torch.empty(0)
    if all(isinstance(x, bool | int | float | np.generic) for x in rows):
        return np.asarray(rows)
    parts = []
    for row in rows:
        if not isinstance(row, Tensor | np.ndarray | list | tuple | Real):
            raise Wrong(f"{what} with {kind_of(row)} in it, expected a tensor")
        parts.append(as_tensor(row))
    shapes = [list(part.shape) for part in parts]
    if any(one != shapes[0] for one in shapes):
        several = " and ".join(map(str, shapes[:3])) + (" …" if len(shapes) > 3 else "")
        raise Wrong(f"{what} of tensors of shapes {several}, expected one tensor")
    if (
        len(rows) == 1
        and isinstance(rows, tuple)
        and shape is not None
        and list(shape) == shapes[0]
    ):
        raise Wrong(f"{what} with the tensor in it; is there a comma behind it?")
    dtype = functools.reduce(torch.promote_types, (part.dtype for part in parts))
    return torch.stack([part.to(dtype) for part in parts])


def differs(got: Tensor, expected: Tensor, *, atol: float = 1e-5, rtol: float = 0.0) -> str | None:
    """``None`` if ``got`` is as ``expected``, else where it differs first.

    Equal to ``atol + rtol·|expected|``; infinities must be equal, NaN equals nothing. An answer
    in float32 may be off by what its own rounding explains, unless ``atol`` is 0. (Where zeros
    are expected, it is made from numbers of ordinary size, about 1.)
    """
    if atol and got.dtype == torch.float32 and expected.isfinite().any():
        largest = max(1.0, float(expected[expected.isfinite()].abs().max()))
        atol = max(atol, 64 * torch.finfo(torch.float32).eps * largest)
    g, e = got.double(), expected.double()
    wrong = ~((g == e) | ((g - e).abs() <= atol + rtol * e.abs()) & e.isfinite())
    if not bool(wrong.any()):
        return None
    index = tuple(int(i) for i in wrong.nonzero()[0])
    place = f" at {list(index)}" if index else ""
    mine, true = two_numbers(got[index].item(), expected[index].item())
    return f"got {mine}{place}, expected {true}"


def two_numbers(got: float, expected: float) -> tuple[str, str]:
    """Both in four digits, or in as many as it takes to tell them apart."""
    if abs(got) < 1e-13 < 1e-6 < abs(expected):
        got = 0.0  # what rounding leaves of 0 is another number on each machine
    for digits in range(4, 18):
        mine, true = f"{got + 0.0:.{digits}g}", f"{expected + 0.0:.{digits}g}"
        if mine != true:
            break
    return mine, true


def is_stub(error: BaseException) -> bool:
    """Whether this is the stub's error: PyTorch raises NotImplementedError too, with its reason."""
    return isinstance(error, NotImplementedError) and not error.args


def stops_with(error: BaseException, function: Function, given: dict[str, Any]) -> str:
    """One sentence: the error, the student's own line, and what the function was given."""
    if isinstance(error, RecursionError):
        return "calls itself without end (RecursionError)"
    line = _own_line(error, function)
    shapes = ", ".join(_shown(name, value) for name, value in given.items() if _is_shown(value))
    return "".join(
        (
            f"stops with {type(error).__name__}{_said(error)}",
            f"; {line}" if line else "",
            f"; given {shapes}" if shapes else "",
        )
    )


def is_of(error: BaseException, function: Function) -> bool:
    """Whether code of the student's was running when the error came, as far as one can see."""
    return not _codes(function) or _own_place(error, function)[1] > 0


def _own_line(error: BaseException, function: Function) -> str:
    """Number and text of the line of the student's that was running when the error came."""
    file, number = _own_place(error, function)
    if not number:
        return ""
    text = linecache.getline(file, number).strip()
    return f"line {number}: {_short(text, 80)}" if text else f"line {number}"


def _own_place(error: BaseException, function: Function) -> tuple[str, int]:
    """File and line of the innermost call that the student wrote; the number 0 if there is none."""
    files = {code.co_filename for code in _codes(function)}
    trace, place = error.__traceback__, ("", 0)
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in files:
            place = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return place


def _codes(function: Function) -> list[CodeType]:
    """The code of a function (decorated, or with arguments filled in), or of an object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        return [code]
    methods = [
        vars(kind).get(name)
        for kind in type(function).__mro__
        for name in ("__call__", "forward")
        if not kind.__module__.startswith("torch.")
    ]
    codes = [getattr(method, "__code__", None) for method in methods]
    return [code for code in codes if isinstance(code, CodeType)]


def _named(function: Function, arguments: Sequence[Any]) -> dict[str, Any]:
    """The arguments by the student's own names, as far as those are known."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in plain]
    return {names[i] if i < len(names) else f"argument {i + 1}": x for i, x in enumerate(arguments)}


def _same(before: Tensor, after: Tensor) -> bool:
    return before.shape == after.shape and torch.equal(
        before.nan_to_num(7.0), after.detach().nan_to_num(7.0)
    )


def _is_shown(value: Any) -> bool:
    return isinstance(value, Tensor | int | float | str | list)


def _shown(name: str, value: Any) -> str:
    if isinstance(value, Tensor):
        dtype = "" if value.dtype == torch.float32 else str(value.dtype).replace("torch.", " ")
        return f"{name} {list(value.shape)}{dtype}"
    if isinstance(value, int | float):
        return f"{name} = {value:,}"
    return f"{name} = {_short(repr(value), 40)}"


def _said(error: BaseException) -> str:
    """An error's own words on one line, without what differs from machine to machine."""
    try:
        text = str(error)
    except BaseException:
        return ""
    text = " ".join(text.split())
    text = re.sub(r"0x[0-9a-fA-F]+", "0x…", text)
    text = re.sub(r"(?:[A-Za-z]:)?[\\/](?:[\w.\-]+[\\/])+", "", text)
    return f": {_short(text, 158)}" if text else ""


def _short(text: str, length: int) -> str:
    return f"{text[: length - 1]}…" if len(text) > length else text


def _type(value: object) -> str:
    return type(value).__name__


def kind_of(value: object) -> str:
    """``a str``, ``an int``."""
    return f"{'an' if _type(value)[0].lower() in 'aeiou' else 'a'} {_type(value)}"


def _shape_hint(got: tuple[int, ...], expected: tuple[int, ...]) -> str:
    if sorted(got) == sorted(expected) and got != expected:
        return "; two axes are exchanged"
    if len(got) < len(expected):
        return "; a sum or mean took an axis away"
    if len(got) > len(expected):
        return "; there is an axis too many"
    return ""
