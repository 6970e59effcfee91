"""One printed line a claim: ``verify`` holds a value to what was expected, ``show`` reports one.

A line is the same on every machine. ``verify`` prints the bound, never the measured difference;
``show`` rounds to digits that a small drift cannot change.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import numpy as np
import torch


class VerificationError(AssertionError):
    """A claim does not hold. The message gives both values and where they differ first."""


@dataclass(frozen=True)
class Interval:
    """The closed band ``[low, high]`` in which every value must lie."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"Interval: expected low <= high, got [{self.low}, {self.high}]")

    def __str__(self) -> str:
        return f"[{_plain(self.low)}, {_plain(self.high)}]"


def verify(
    name: str,
    got: object,
    expected: object,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    hint: str | None = None,
) -> None:
    """Print ``✓ name: …`` if ``got`` is as ``expected``, else raise :class:`VerificationError`.

    ``got`` and ``expected`` are tensors, arrays, numbers or booleans of one shape (a single number
    may be compared with a whole array). ``expected`` may be an :class:`Interval`. With ``atol`` or
    ``rtol`` the comparison is ``|got − expected| <= atol + rtol·|expected|``; without them it is
    exact. Equal infinities agree, NaN agrees with nothing. ``hint`` replaces the guessed cause.
    """
    actual = _as_array("got", got)
    if isinstance(expected, Interval):
        inside = (actual >= expected.low) & (actual <= expected.high)
        if actual.size == 0 or not bool(inside.all()):
            raise VerificationError(_report(name, actual, expected, ~inside, hint))
        return _line(name, f"in {expected}")
    wanted = _as_array("expected", expected)
    if actual.shape != wanted.shape and wanted.ndim > 0:
        raise VerificationError(
            f"{name}: shapes differ: got {list(actual.shape)}, expected {list(wanted.shape)}\n"
            f"usual cause: {hint or 'a transposed axis, or a mean or sum without keepdim'}"
        )
    allowed = (atol or 0.0) + (rtol or 0.0) * np.abs(_number(wanted))
    with np.errstate(invalid="ignore"):
        close = np.abs(_number(actual) - _number(wanted)) <= allowed
    close = close | (actual == wanted)
    if not bool(np.all(close)):
        raise VerificationError(_report(name, actual, wanted, ~close, hint))
    _line(name, _bound(wanted, atol, rtol))


def show(name: str, value: object, *, digits: int = 3, unit: str = "", drift: float = 1e-4) -> None:
    """Print ``name: value`` with ``digits`` significant digits; small arrays are printed whole.

    The printed digits must survive a relative change of ``±drift`` in every entry, so that another
    machine prints the same line. This is demanded while notebooks are authored (environment
    variable ``COURSE_AUTHORING=1``, set by ``make notebooks``) and raises ``ValueError`` there.
    Whole numbers and booleans are printed exactly.
    """
    array = _as_array("value", value)
    if array.size > 400:
        raise ValueError(f"show({name!r}): expected at most 400 numbers, got {array.size}")
    if os.environ.get("COURSE_AUTHORING") == "1" and array.dtype.kind == "f":
        for entry in array.ravel():
            if _rounded(entry * (1 - drift), digits) != _rounded(entry * (1 + drift), digits):
                raise ValueError(
                    f"show({name!r}): {entry!r} lies too near a rounding boundary for {digits} "
                    f"digits: a drift of {drift:g} changes what is printed. Choose other digits."
                )
    suffix = f" {unit}" if unit else ""
    if array.ndim == 0:
        print(f"{name}: {_rounded(array[()], digits)}{suffix}")
        return
    print(f"{name}:{suffix}")
    rows = array.reshape(-1, array.shape[-1])
    text = [[_rounded(entry, digits) for entry in row] for row in rows]
    width = max((len(cell) for row in text for cell in row), default=0)
    for row in text:
        print("  " + "  ".join(cell.rjust(width) for cell in row))


def _as_array(argument: str, value: object) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu()
        if tensor.dtype in (torch.bfloat16, torch.float16):
            tensor = tensor.float()
        return tensor.numpy()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{argument}: expected numbers in a regular shape, {error}") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{argument}: expected a tensor, array, number or boolean, got {type(value).__name__}"
        )
    return array


def _number(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype.kind == "b" else array


def _plain(value: object) -> str:
    """A number as one types it: no trailing zeros, no −0, thousands apart."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, int | np.integer):
        return f"{int(value):,}"
    number = float(value)  # type: ignore[arg-type]
    return f"{number + 0.0:,.12g}" if number else "0"


def _rounded(value: object, digits: int) -> str:
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return _plain(value)
    number = float(value)  # type: ignore[arg-type]
    if not np.isfinite(number):
        return str(number)
    text = f"{number:.{digits}g}"
    if "e" in text:
        exponent = int(text.split("e")[1])
        # 12345.0 to three digits reads 12,300; from a million on the power of ten is clearer.
        return f"{float(text):,.0f}" if 0 <= exponent < 6 else text
    return "0" if float(text) == 0 else text


def _bound(wanted: np.ndarray, atol: float | None, rtol: float | None) -> str:
    if atol is not None or rtol is not None:
        parts = [f"{atol:.3g}"] if atol is not None else []
        parts += [f"{rtol:.3g}·|expected|"] if rtol is not None else []
        return "max |Δ| ≤ " + " + ".join(parts)
    if wanted.ndim == 0:
        return f"exactly {_plain(wanted[()])}"
    return "every entry equal"


def _report(
    name: str,
    actual: np.ndarray,
    wanted: np.ndarray | Interval,
    wrong: np.ndarray,
    hint: str | None,
) -> str:
    if actual.size == 0:
        return f"{name}: got no value at all, expected values in {wanted}"
    wrong = np.broadcast_to(wrong, actual.shape)
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    place = f" at index {list(index)}" if actual.ndim else ""
    target: object = (
        wanted if isinstance(wanted, Interval) else np.broadcast_to(wanted, actual.shape)[index]
    )
    lines = [
        f"{name}: {int(wrong.sum())} of {actual.size} values differ",
        f"first difference{place}: got {actual[index]!r}, expected {target!s}",
    ]
    if isinstance(wanted, np.ndarray) and np.isfinite(_number(actual)).all():
        difference = np.abs(_number(actual) - _number(wanted)).max()
        lines.append(f"max |Δ| = {difference:.3g}")
    lines.append(f"usual cause: {hint or _guess(actual, wanted)}")
    return "\n".join(lines)


def _guess(actual: np.ndarray, wanted: np.ndarray | Interval) -> str:
    """The commonest cause of a difference of this shape."""
    if actual.dtype.kind == "f" and np.isnan(actual).any():
        return "0/0 or inf − inf: often a row that may look at nothing"
    if isinstance(wanted, Interval):
        return "another seed, too few samples, or a claim that does not hold"
    a, w = _number(actual).astype(np.float64), _number(wanted).astype(np.float64)
    if a.ndim >= 2 and a.shape[-1] == a.shape[-2] and np.allclose(a, np.swapaxes(w, -1, -2)):
        return "the last two axes are exchanged"
    if a.shape == w.shape and a.size > 1:
        if np.allclose(np.sort(a.ravel()), np.sort(w.ravel())):
            return "the right numbers in another order: an axis, a shift or a sort"
        ratio = np.divide(a, w, out=np.full_like(a, np.nan), where=w != 0)
        ratio = ratio[np.isfinite(ratio)]
        if ratio.size and np.allclose(ratio, ratio.flat[0]) and not np.allclose(ratio, 1):
            return f"a constant factor of {ratio.flat[0]:.4g}: a scale applied twice or not at all"
    if np.allclose(a, w, rtol=1e-3, atol=1e-3):
        return "rounding: a lower precision than the bound allows"
    return "the two sides compute different things"


def _line(name: str, text: str) -> None:
    line = f"✓ {name}: {text}"
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        line.encode(encoding)
    except (
        UnicodeEncodeError
    ):  # a console that cannot print ✓ must not turn a true claim into an error
        line = line.replace("✓", "ok").replace("Δ", "d").replace("≤", "<=").replace("·", "*")
        line = line.encode(encoding, "replace").decode(encoding)
    print(line)
