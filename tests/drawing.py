"""Inputs for tests, drawn from a seed, and comparisons. Every test file takes them from here.

Sizes are pairwise distinct, so that a mistaken axis cannot fit by luck, and entries are wide enough
that scores have spread.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

B, H, T, S, D, Dv = 2, 3, 5, 7, 4, 6


def draw(
    *shape: int,
    seed: int = 0,
    std: float = 1.2,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Gaussian entries; the same numbers, rounded, in every dtype and on every device."""
    generator = torch.Generator().manual_seed(seed)
    drawn = std * torch.randn(shape, generator=generator, dtype=torch.float64)
    return drawn.to(dtype).to(device)


def qkv(
    T: int = T,
    S: int | None = None,
    *,
    B: int = B,
    H: int = H,
    D: int = D,
    Dv: int = Dv,
    seed: int = 0,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """``q [B,H,T,D]``, ``k [B,H,S,D]`` and ``v [B,H,S,Dv]``; ``S=None`` means ``S = T``."""
    S = T if S is None else S
    shapes = ((B, H, T, D), (B, H, S, D), (B, H, S, Dv))
    q, k, v = (draw(*shape, seed=seed + n, **options) for n, shape in enumerate(shapes, 1))
    return q, k, v


def some(*shape: int, seed: int = 4) -> Tensor:
    """A boolean tensor, True about two times in three."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.67


def leaves(*tensors: Tensor, **to: Any) -> list[Tensor]:
    """Fresh copies that want a gradient; ``to``: another dtype or device."""
    return [x.detach().clone().to(**to).requires_grad_() for x in tensors]


def close(got: Any, expected: Any, what: object = "", tolerance: float = 1e-12) -> None:
    """Equal up to ``tolerance`` times the largest expected entry (or 1), and of one shape."""
    _near(got, expected, what, tolerance, each=False)


def close_each(got: Any, expected: Any, what: object = "", tolerance: float = 1e-12) -> None:
    """Each entry is equal up to ``tolerance`` times (1 + its own expected size)."""
    _near(got, expected, what, tolerance, each=True)


def _near(got: Any, expected: Any, what: object, tolerance: float, *, each: bool) -> None:
    got, expected = (torch.as_tensor(x).detach().cpu() for x in (got, expected))
    assert got.shape == expected.shape, (what, got.shape, expected.shape)
    if got.numel():
        size = expected.double().abs()
        size = 1 + size if each else size.max().clamp(min=1)
        gap = (got.double() - expected.double()).abs()
        assert bool((gap <= tolerance * size).all()), (what, gap.max().item(), size.max().item())


def held_bytes(*tensors: Tensor) -> int:
    """The memory that these tensors keep alive: whole storages, each counted once."""
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
    return sum(storages.values())


class NoDouble(TorchDispatchMode):
    """The meta device as Apple's GPU: no operation there may yield float64."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and x.is_meta and x.dtype == torch.float64:
                raise TypeError(f"{function}: this device has no float64")
        return out
