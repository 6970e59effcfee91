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

    ``got`` and ``expected`` are tensors, arrays, numbers or booleans of one shape (a whole array
    may be compared with a single number). ``expected`` may be an :class:`Interval`. With ``atol``
    or ``rtol`` the comparison is ``|got − expected| <= atol + rtol·|expected|``, both rounded to
    the three digits that are printed; without them it is exact. Equal infinities agree, NaN agrees
    with nothing, a boolean only with a boolean, and no claim holds for an empty ``got``. ``hint``
    replaces the guessed cause.

    Raises ``ValueError`` for what is no number (complex numbers too) and for a tolerance that is
    negative or not finite.
    """
    actual = as_numbers("got", got)
    wanted = expected if isinstance(expected, Interval) else as_numbers("expected", expected)
    atol, rtol = _printed("atol", atol), _printed("rtol", rtol)
    if isinstance(wanted, np.ndarray) and wanted.ndim and wanted.shape != actual.shape:
        raise VerificationError(
            f"{name}: shapes differ: got {list(actual.shape)}, expected {list(wanted.shape)}\n"
            f"usual cause: {hint or 'a transposed axis, or a mean or sum without keepdim'}"
        )
    holds = _holds(actual, wanted, atol or 0.0, rtol or 0.0)
    if actual.size == 0 or not holds.all():
        raise VerificationError(_report(name, actual, wanted, ~holds, hint))
    _line(f"✓ {name}: {_bound(wanted, atol, rtol)}")


def show(name: str, value: object, *, digits: int = 3, unit: str = "", drift: float = 1e-4) -> None:
    """Print ``name: value`` with ``digits`` significant digits; small arrays are printed whole.

    The printed digits must survive a relative change of ``±drift`` in every entry, so that another
    machine prints the same line. This is demanded while notebooks are authored (environment
    variable ``COURSE_AUTHORING=1``, set by ``make notebooks``) and raises ``ValueError`` there.
    Whole numbers and booleans are printed exactly.
    """
    array = as_numbers("value", value)
    if array.size > 400:
        raise ValueError(f"show({name!r}): expected at most 400 numbers, got {array.size}")
    if os.environ.get("COURSE_AUTHORING") == "1" and array.dtype.kind == "f":
        for entry in array.ravel().tolist():
            if _rounded(entry * (1 - drift), digits) != _rounded(entry * (1 + drift), digits):
                raise ValueError(
                    f"show({name!r}): {entry} lies too near a rounding boundary for {digits} "
                    f"digits: a drift of {drift:g} changes what is printed. Choose other digits."
                )
    suffix = f" {unit}" if unit else ""
    if array.ndim == 0:
        return _line(f"{name}: {_rounded(array.item(), digits)}{suffix}")
    if array.size == 0:
        return _line(f"{name}: no values, shape {list(array.shape)}")
    _line(f"{name}:{suffix}")
    rows = array.reshape(-1, array.shape[-1]).tolist()
    text = [[_rounded(entry, digits) for entry in row] for row in rows]
    width = max(len(cell) for row in text for cell in row)
    for row in text:
        _line("  " + "  ".join(cell.rjust(width) for cell in row))


def as_numbers(argument: str, value: object) -> np.ndarray:
    """A tensor of any dtype, an array, a number, or a list of these, as NumPy: floats in float64.

    Raises ``ValueError`` for what has no real numbers (complex, text, the meta device, ragged).
    """
    try:
        array = np.asarray(_on_host(value))
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{argument}: expected numbers in a regular shape, {error}") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{argument}: expected a tensor, array, number or boolean (real; whole numbers of at "
            f"most 64 bits), got {type(value).__name__} of {array.dtype}"
        )
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _on_host(value: object) -> object:
    """``value`` with every tensor in it made an array."""
    if isinstance(value, list | tuple):
        return [_on_host(entry) for entry in value]
    if isinstance(value, np.ma.MaskedArray):  # what is masked is no number
        return np.ma.filled(value.astype(np.float64), np.nan)
    if not isinstance(value, torch.Tensor):
        return value
    tensor = value.detach().to_dense() if value.layout != torch.strided else value.detach()
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    if tensor.is_floating_point():
        tensor = tensor.double()  # NumPy knows no bfloat16; every float is exact in float64
    return tensor.numpy()


def _exact(array: np.ndarray) -> np.ndarray:
    """Whole numbers as Python's own, which neither wrap around nor round; float64 unchanged."""
    return array if array.dtype.kind == "f" else array.astype(object)


def _printed(argument: str, tolerance: float | None) -> float | None:
    """The tolerance as the line prints it, so that the line claims no more than was checked."""
    if tolerance is None:
        return None
    if not 0 <= tolerance < np.inf:
        raise ValueError(f"{argument}: expected a finite number ≥ 0 or None, got {tolerance!r}")
    return float(f"{tolerance:.3g}")


def _holds(
    actual: np.ndarray, wanted: np.ndarray | Interval, atol: float, rtol: float
) -> np.ndarray:
    """Entry by entry: is it as it should be?"""
    number = _exact(actual)
    if isinstance(wanted, Interval):
        inside = (number >= wanted.low) & (number <= wanted.high)
        return np.asarray(inside, dtype=bool) & (actual.dtype.kind != "b")
    if (actual.dtype.kind == "b") != (wanted.dtype.kind == "b"):
        return np.zeros(actual.shape, dtype=bool)
    target = _exact(wanted)
    holds = np.asarray(number == target, dtype=bool)
    if atol or rtol:
        with np.errstate(all="ignore"):
            near = np.abs(number - target) <= atol + rtol * np.abs(target)
            # Infinity is near to nothing, although rtol·∞ allows everything.
            holds |= np.asarray(near & (np.abs(target) < np.inf), dtype=bool)
    return holds


def _plain(value: float) -> str:
    """A number as one types it, exact: no trailing zeros, no −0, thousands apart."""
    if isinstance(value, bool):
        return str(value)
    short = f"{value:,.12g}" if value else "0"
    return short if float(short.replace(",", "")) == value else f"{value:,}"


def _rounded(value: float, digits: int) -> str:
    if isinstance(value, int):
        return _plain(value)
    text = f"{value:,.{digits}g}"
    if "e" in text:
        # 12345.0 to three digits reads 12,300; from a million on the power of ten is clearer.
        return f"{float(text):,.0f}" if 0 <= int(text.split("e")[1]) < 6 else text
    return "0" if text == "-0" else text


def _bound(wanted: np.ndarray | Interval, atol: float | None, rtol: float | None) -> str:
    if isinstance(wanted, Interval):
        return f"in {wanted}"
    if atol is not None or rtol is not None:
        parts = [f"{atol:.3g}"] if atol is not None else []
        parts += [f"{rtol:.3g}·|expected|"] if rtol is not None else []
        return "max |Δ| ≤ " + " + ".join(parts)
    if wanted.ndim == 0:
        return f"exactly {_plain(wanted.item())}"
    return "every entry equal"


def _report(
    name: str,
    actual: np.ndarray,
    wanted: np.ndarray | Interval,
    wrong: np.ndarray,
    hint: str | None,
) -> str:
    if actual.size == 0:
        return f"{name}: got no value at all (shape {list(actual.shape)}), so nothing was compared"
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    place = f" at index {list(index)}" if actual.ndim else ""
    target = str(wanted)
    if isinstance(wanted, np.ndarray):
        target = str(np.broadcast_to(wanted, actual.shape)[index].item())
    lines = [
        f"{name}: {int(wrong.sum())} of {actual.size} values differ",
        f"first difference{place}: got {actual[index].item()}, expected {target}",
    ]
    if isinstance(wanted, np.ndarray) and np.isfinite(actual).all() and np.isfinite(wanted).all():
        difference = np.max(np.abs(_exact(actual) - _exact(wanted)))
        lines.append(f"max |Δ| = {difference:.3g}")
    lines.append(f"usual cause: {hint or _guess(actual, wanted)}")
    return "\n".join(lines)


def _guess(actual: np.ndarray, wanted: np.ndarray | Interval) -> str:
    """The commonest cause of a difference of this shape."""
    if actual.dtype.kind == "f" and np.isnan(actual).any():
        return "0/0 or inf − inf: often a row that may look at nothing"
    if isinstance(wanted, Interval):
        return "another seed, too few samples, or a claim that does not hold"
    if actual.dtype.kind != wanted.dtype.kind and "b" in (actual.dtype.kind, wanted.dtype.kind):
        return "a truth value compared with a number"
    a, w = actual.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(all="ignore"):
        if np.allclose(a, w, rtol=1e-3, atol=0):
            return "rounding: a lower precision than the bound allows"
        if a.shape != w.shape or a.size < 2:
            return "the two sides compute different things"
        if a.ndim > 1 and a.shape[-1] == a.shape[-2] and np.allclose(a, np.swapaxes(w, -1, -2)):
            return "the last two axes are exchanged"
        if np.allclose(np.sort(a.ravel()), np.sort(w.ravel())):
            return "the right numbers in another order: an axis, a shift or a sort"
        ratio = (a / w)[w != 0]
        if ratio.size > 1 and np.isfinite(ratio).all() and np.allclose(ratio, ratio[0]):
            return f"a constant factor of {ratio[0]:.4g}: a scale applied twice or not at all"
    return "the two sides compute different things"


def _line(line: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        line.encode(encoding)
    except UnicodeEncodeError:  # such a console must not turn a true claim into an error
        for sign, plain in {"✓": "ok", "Δ": "d", "≤": "<=", "·": "*", "−": "-", "×": "x"}.items():
            line = line.replace(sign, plain)
        line = line.encode(encoding, "replace").decode(encoding)
    print(line)
