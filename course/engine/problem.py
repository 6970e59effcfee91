"""Linear attention as it reaches whoever computes it: checked, in the dtype of the sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn


class Problem(NamedTuple):
    """``q [B,H,T,D]``, ``k [B,H,S,D]``, ``v [B,H,S,Dv]``; the past ``S [B,H,C,Dv]``, ``z [B,H,C]``.

    ``key_mask [B,S]``: True = a real token (the others' k and v are 0 already). ``of_queries``,
    ``of_keys``: positions ``[B,1,T or S]``, for maps that want them.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    S: Tensor
    z: Tensor
    key_mask: Tensor | None
    of_queries: Tensor | None
    of_keys: Tensor | None


Answer = tuple[Tensor, Tensor, Tensor]  # output [B,H,T,Dv], new S and z


class Options(NamedTuple):
    """φ(``root``·x) by ``fm``; whether to divide by z, and whether z is wanted at all.

    ``formula``: the same by a reference form, where autograd must be able to follow.
    """

    fm: nn.Module
    root: float
    normalize: bool
    want_z: bool
    chunk: int
    formula: Callable[[Problem, Options], Answer]
