"""Who may look at whom: masks are boolean, True = may look, and broadcast to ``[B,H,T,S]``."""

from __future__ import annotations

import torch
from torch import Tensor


def near(
    T: int,
    S: int,
    lead: int,
    *,
    causal: bool,
    window: int | None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Who is near enough, ``[T, S]``, if query t stands at key ``t + lead``.

    By the order of time, by the distance (below ``window``), or by both. Nothing larger than the
    result is built.
    """
    see = torch.ones(T, S, dtype=torch.bool, device=device)
    if causal:
        see = see.tril_(lead)
    elif window is not None:
        see = see.tril_(lead + window - 1)
    return see if window is None else see.triu_(lead - window + 1)


def with_padding(mask: Tensor | None, key_mask: Tensor | None) -> Tensor | None:
    """``mask`` without the keys that are padding (``key_mask [B,S]``, True = a real token)."""
    if key_mask is None:
        return mask
    real = key_mask[:, None, None, :]
    return real if mask is None else mask & real


def visible(mask: Tensor | None, bias: Tensor | None, see: Tensor) -> Tensor:
    """Everything that forbids a look, as one mask; a bias of −inf means "may not look"."""
    if mask is not None:
        see = see & mask
    return see if bias is None else see & (bias != -torch.inf)


def block(x: Tensor | None, rows: slice, keys: slice) -> Tensor | None:
    """These queries and keys of a mask or bias that broadcasts to ``[B,H,T,S]``."""
    if x is not None and x.ndim > 0 and x.shape[-1] > 1:
        x = x[..., keys]
    if x is not None and x.ndim > 1 and x.shape[-2] > 1:
        x = x[..., rows, :]
    return x
