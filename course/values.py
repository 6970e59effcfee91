"""Checks of plain values that a caller passed in. No tensors: this module loads nothing heavy."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real


def require_same(axis: str, sizes: dict[str, int]) -> None:
    """Raise ``ValueError`` unless all named arguments have the same size on ``axis``."""
    if len(set(sizes.values())) > 1:
        came = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        raise ValueError(f"{' and '.join(sizes)}: expected equal sizes on axis {axis}, got {came}")


def require_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")


def require_positive(name: str, value: int, *, minimum: int = 1) -> None:
    """Raise ``ValueError`` unless ``value`` is a whole number of at least ``minimum``."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{name}: expected a whole number of at least {minimum}, got {value!r}")


def require_number(name: str, value: object, *, above: float = -math.inf) -> None:
    """Raise ``ValueError`` unless ``value`` is a finite number greater than ``above``."""
    try:
        fits = isinstance(value, Real) and above < float(value) < math.inf
    except OverflowError:  # a whole number beyond the largest float
        fits = False
    if not fits or isinstance(value, bool):
        bound = "" if above == -math.inf else f" above {above:g}"
        raise ValueError(f"{name}: expected a finite number{bound}, got {value!r}")
