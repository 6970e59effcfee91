"""One printed line a claim: ``verify`` holds a value to what was expected, ``show`` reports one.

What was measured follows the sign ≈, to three digits: it may differ a little on another machine.
All the rest of a line is the same everywhere, and is compared with the stored line. ``show`` rounds
to digits that a small drift cannot change.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import torch

from course.console import say


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


@dataclass(frozen=True, eq=False)
class Bound:
    """A relation to ``value``: made by :func:`above`, :func:`below`, ``at_least``, ``at_most``."""

    sign: str
    value: Any

    def __str__(self) -> str:
        return f"{self.sign} {self.value}"


def above(value: object) -> Bound:
    """``verify(name, a, above(b))`` holds if a > b."""
    return Bound(">", value)


def below(value: object) -> Bound:
    """``verify(name, a, below(b))`` holds if a < b."""
    return Bound("<", value)


def at_least(value: object) -> Bound:
    """``verify(name, a, at_least(b))`` holds if a ≥ b."""
    return Bound("≥", value)


def at_most(value: object) -> Bound:
    """``verify(name, a, at_most(b))`` holds if a ≤ b."""
    return Bound("≤", value)


_RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    "<": operator.lt,
    "≥": operator.ge,
    "≤": operator.le,
}


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

    ``got`` is a tensor, array, number or boolean. What follows the name depends on ``expected``::

        5                       exactly 5
        True                    exactly True                   (an array: exactly True, each of 8)
        [3, 1]                  exactly [3, 1]                 (a long one: all 100 entries equal)
        Interval(1.1, 1.7)      ≈ 1.34, in [1.1, 1.7]          (an array: ≈ 1.12 … 1.61, in …)
        above(0.3), as typed    ≈ 0.320 > 0.3                  (an array: ≈ 0.320 … 0.500 > 0.3)
        above(b), b measured    ≈ 0.320 > ≈ 0.305              (arrays: …, the closest of 8 pairs)
        1, with atol=1e-6       ≈ 1.00, |Δ| ≈ 6.0e-08 ≤ 1e-06  (arrays: max |Δ| ≈ 3.1e-08 ≤ 1e-06)
        1, with rtol=0.01       ≈ 1.00, |Δ|/|expected| ≈ 0.0043 ≤ 0.01

    Behind ≈ stands what was measured: three digits (of a difference two), or as many as it takes to
    see that the claim holds; of an array the smallest … the largest entry. Nothing else on the line
    may change. In a relation a Python number of at most six digits is a bound and printed as it is;
    all else counts as measured.

    ``got`` and ``expected`` have one shape, or one of them is a single number (``got`` only in a
    relation). With ``atol`` or ``rtol`` the comparison is ``|got − expected| <= atol +
    rtol·|expected|``, both rounded to the three digits that are printed; without them it is exact.
    Equal infinities are equal, but lie in no interval and in no relation; NaN agrees with nothing,
    a boolean only with a boolean, and no claim holds for an empty ``got``. ``hint`` replaces the
    guessed cause.

    Raises ``ValueError`` for what is no number (complex numbers too), for a tolerance that is
    negative or not finite, for a tolerance beside an interval or a relation, and for ≈ in a name.
    """
    _require_name(name)
    actual = as_numbers("got", got)
    atol, rtol = _printed("atol", atol), _printed("rtol", rtol)
    if isinstance(expected, Interval | Bound) and not (atol is rtol is None):
        raise ValueError("atol, rtol: expected none beside an Interval or a relation")
    wanted: Wanted
    if isinstance(expected, Interval):
        wanted = expected
    elif isinstance(expected, Bound):
        wanted = Bound(expected.sign, as_numbers("expected", expected.value))
        if actual.ndim == 0:
            actual = np.broadcast_to(actual, wanted.value.shape)
    else:
        wanted = as_numbers("expected", expected)
    target = wanted.value if isinstance(wanted, Bound) else wanted
    if isinstance(target, np.ndarray) and target.ndim and target.shape != actual.shape:
        raise VerificationError(
            f"{name}: shapes differ: got {list(actual.shape)}, expected {list(target.shape)}\n"
            f"usual cause: {hint or 'a transposed axis, or a mean or sum without keepdim'}"
        )
    holds = _holds(actual, wanted, atol or 0.0, rtol or 0.0)
    if actual.size == 0 or not holds.all():
        raise VerificationError(_report(name, actual, wanted, ~holds, hint))
    if isinstance(wanted, Interval):
        finding = _in_interval(actual, wanted)
    elif isinstance(wanted, Bound):
        typed = isinstance(expected, Bound) and _is_typed(expected.value)
        finding = _in_relation(actual, wanted, typed=typed)
    elif atol is None and rtol is None:
        finding = _exactly(actual, wanted)
    else:
        finding = _within(actual, wanted, atol, rtol)
        if wanted.ndim == 0 and not (_is_typed(expected) and expected == 0):
            finding = f"{_measured(actual)}, {finding}"
    say(f"✓ {name}: {finding}")


def show(name: str, value: object, *, digits: int = 3, unit: str = "", drift: float = 1e-4) -> None:
    """Print ``name: value`` with ``digits`` significant digits; small arrays are printed whole.

    The printed digits must survive a relative change of ``±drift`` in every entry, so that another
    machine prints the same line. This is demanded while notebooks are authored (environment
    variable ``COURSE_AUTHORING=1``, set by ``make notebooks``) and raises ``ValueError`` there.
    Whole numbers and booleans are printed exactly.
    """
    _require_name(name)
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
        return say(f"{name}: {_rounded(array.item(), digits)}{suffix}")
    if array.size == 0:
        return say(f"{name}: no values, shape {list(array.shape)}")
    say(f"{name}:{suffix}")
    rows = array.reshape(-1, array.shape[-1]).tolist()
    text = [[_rounded(entry, digits) for entry in row] for row in rows]
    width = max(len(cell) for row in text for cell in row)
    for row in text:
        say("  " + "  ".join(cell.rjust(width) for cell in row))


Wanted = np.ndarray | Interval | Bound


def _require_name(name: str) -> None:
    if "≈" in name:
        raise ValueError(f"name: expected none with ≈, which announces a measurement, got {name!r}")


def _is_typed(value: object) -> bool:
    """Is it a number as one types it into a claim, not one that was computed?"""
    short = type(value) is float and float(f"{value:.6g}") == value
    return short or type(value) in (int, bool)


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


def _holds(actual: np.ndarray, wanted: Wanted, atol: float, rtol: float) -> np.ndarray:
    """Entry by entry: is it as it should be?"""
    number = _exact(actual)
    if isinstance(wanted, Interval):
        inside = (number >= wanted.low) & (number <= wanted.high)
        return np.asarray(inside, dtype=bool) & np.isfinite(actual) & (actual.dtype.kind != "b")
    if isinstance(wanted, Bound):
        with np.errstate(invalid="ignore"):  # NaN is neither above nor below
            holds = np.asarray(_RELATIONS[wanted.sign](number, _exact(wanted.value)), dtype=bool)
        finite = np.isfinite(actual) & np.isfinite(wanted.value)
        return holds & finite & ("b" not in (actual.dtype.kind, wanted.value.dtype.kind))
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


def _digits(value: float, digits: int) -> str:
    """A measured number, plainly: 12,300, 1.10, 0.000123; only far from 1 with a power of ten."""
    if isinstance(value, int) or value == 0:
        return f"{int(value):,}"
    text = f"{value:#.{digits}g}"
    return f"{Decimal(text):,f}" if 1e-4 <= abs(value) < 1e12 else text


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _visible(values: list[float], holds: Callable[..., Any], digits: int = 3) -> list[str]:
    """The values with so many digits, or as many as it takes for ``holds`` to be true in print."""
    for precision in range(digits, 18):
        texts = [_digits(value, precision) for value in values]
        if holds(*map(_number, texts)):
            break
    return texts


def _ends(actual: np.ndarray) -> list[float]:
    """The number itself, or the smallest and the largest of several."""
    return [actual.min().item(), actual.max().item()] if actual.size > 1 else [actual.item()]


def _measured(actual: np.ndarray, holds: Callable[[float], Any] = lambda value: True) -> str:
    ends = _visible(_ends(actual), lambda *shown: all(map(holds, shown)))
    return "≈ " + " … ".join(ends)


def _in_interval(actual: np.ndarray, wanted: Interval) -> str:
    return f"{_measured(actual, lambda value: wanted.low <= value <= wanted.high)}, in {wanted}"


def _in_relation(actual: np.ndarray, wanted: Bound, *, typed: bool) -> str:
    relation, bound = _RELATIONS[wanted.sign], wanted.value
    if typed:
        limit = bound.item()
        return f"{_measured(actual, lambda v: relation(v, limit))} {wanted.sign} {_plain(limit)}"
    pairs = actual.size
    if bound.ndim:  # of many pairs the one that decides
        gaps = np.asarray(np.abs(_exact(actual) - _exact(bound)), dtype=np.float64)
        closest = np.unravel_index(int(gaps.argmin()), gaps.shape)
        actual, bound = actual[closest], bound[closest]
    sides = [*_ends(actual), bound.item()]
    *shown, limit = _visible(sides, lambda *v: all(relation(value, v[-1]) for value in v[:-1]))
    closest_of = f", the closest of {pairs:,} pairs" if wanted.value.size > 1 else ""
    return f"≈ {' … '.join(shown)} {wanted.sign} ≈ {limit}{closest_of}"


def _exactly(actual: np.ndarray, wanted: np.ndarray) -> str:
    entries = wanted.ravel().tolist()
    if wanted.dtype.kind == "b" and len(set(entries)) == 1:
        entries, wanted = entries[:1], wanted.ravel()[0]
    if wanted.ndim == 0:
        each = f", each of {actual.size:,}" if actual.ndim else ""
        return f"exactly {_plain(entries[0])}{each}"
    if len(entries) <= 12 and all(map(_is_typed, entries)):
        return f"exactly {_listed(wanted.tolist())}"
    what = "truth values as expected" if wanted.dtype.kind == "b" else "entries equal"
    return f"all {actual.size:,} {what}"


def _listed(value: Any) -> str:
    if not isinstance(value, list):
        return _plain(value)
    return f"[{', '.join(map(_listed, value))}]"


def _within(actual: np.ndarray, wanted: np.ndarray, atol: float | None, rtol: float | None) -> str:
    """The largest difference in the unit of the tolerance, and the tolerance."""
    number, target = _exact(actual), _exact(wanted)
    with np.errstate(all="ignore"):
        difference = np.where(number == target, 0, np.abs(number - target)).astype(np.float64)
        size = np.asarray(np.abs(target), dtype=np.float64)
    label, limit = "|Δ|", atol
    if rtol is not None:
        label, limit, unit = "|Δ|/|expected|", rtol, size
        if atol is not None:
            label, limit = f"|Δ|/({_plain(atol)} + {_plain(rtol)}·|expected|)", 1
            unit = atol + rtol * size
        difference = np.divide(difference, unit, out=np.zeros(actual.shape), where=difference > 0)
    assert limit is not None
    largest = "max " if actual.size > 1 else ""
    (shown,) = _visible([difference.max().item()], lambda value: value <= limit, digits=2)
    return f"{largest}{label} ≈ {shown} ≤ {_plain(limit)}"


def _report(
    name: str,
    actual: np.ndarray,
    wanted: Wanted,
    wrong: np.ndarray,
    hint: str | None,
) -> str:
    if actual.size == 0:
        return f"{name}: got no value at all (shape {list(actual.shape)}), so nothing was compared"
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    place = f" at index {list(index)}" if actual.ndim else ""
    target, fault = str(wanted), "lie outside"
    if isinstance(wanted, Bound):
        limit = np.broadcast_to(wanted.value, actual.shape)[index].item()
        target, fault = f"{wanted.sign} {limit}", "break the relation"
    elif isinstance(wanted, np.ndarray):
        target, fault = str(np.broadcast_to(wanted, actual.shape)[index].item()), "differ"
    lines = [
        f"{name}: {int(wrong.sum())} of {actual.size} values {fault}",
        f"first of them{place}: got {actual[index].item()}, expected {target}",
    ]
    if isinstance(wanted, np.ndarray) and np.isfinite(actual).all() and np.isfinite(wanted).all():
        difference = np.max(np.abs(_exact(actual) - _exact(wanted)))
        lines.append(f"max |Δ| = {difference:.3g}")
    lines.append(f"usual cause: {hint or _guess(actual, wanted)}")
    return "\n".join(lines)


def _guess(actual: np.ndarray, wanted: Wanted) -> str:
    """The commonest cause of a difference of this shape."""
    if actual.dtype.kind == "f" and np.isnan(actual).any():
        return "0/0 or inf − inf: often a row that may look at nothing"
    if isinstance(wanted, Interval | Bound):
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
