"""What linear attention and the delta rule carry from token to token; all forms share it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class LinearState(NamedTuple):
    """What linear attention remembers: float32, or float64 when the inputs are.

    ``S [B,H,C,Dv]``: sum of φ(k) vᵀ. ``z [B,H,C]``: sum of φ(k). ``t [B]``: real tokens seen.
    """

    S: Tensor
    z: Tensor
    t: Tensor


class DeltaState(NamedTuple):
    """What the delta rule remembers: float32, or float64 when the inputs are.

    ``S [B,H,D,Dv]``: what a query reads, o = Sᵀ q. ``t [B]``: real tokens seen.
    """

    S: Tensor
    t: Tensor
