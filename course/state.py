"""What a linear attention carries from token to token; references and kernels share it."""

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
