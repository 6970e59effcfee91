"""Softmax attention through PyTorch's fused kernels: ``impl="torch"``.

``torch.nn.functional.scaled_dot_product_attention`` computes the formula of
:mod:`course.attention` in tiles, without the table of scores. What lies around the call here is
what it does not promise: rows that may look at nothing, NaN that nobody looks at, a scale that is
not above 0, causal order where T and S differ. Where a mask is needed the queries go in blocks,
each with the keys that it can reach: a window costs neither the memory nor the time of the whole
T×S table.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from course.sight import block, near, visible

_ROWS = 1024  # queries in a block; fewer where a window is narrow


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    window: int | None,
    scale: float,
) -> Tensor:
    """``q [B,H,T,D]``, ``k [B,H,S,D]``, ``v [B,H,S,Dv]`` → ``[B,H,T,Dv]``; checked before."""
    T, S = q.shape[2], k.shape[2]
    if scale <= 0:
        # The causal kernel multiplies its −inf by the scale: +inf, or NaN. A sign is exact.
        q, scale = (q.neg(), -scale) if scale < 0 else (q * 0, 1.0)
    everything = T == S or (S > 0 and (not causal or T == 1))  # the last query sees every key
    if mask is None and bias is None and window is None and everything:
        # Every query sees something and every key is seen: the kernel needs no mask from us.
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal and T == S, scale=scale)
    lead = S - T  # query t stands at key t + lead
    size = _ROWS if window is None else min(_ROWS, max(256, window))
    parts = []
    for start in range(0, max(T, 1), size):
        stop = min(T, start + size)
        low = 0 if window is None else max(0, start + lead - window + 1)
        high = S
        if causal:
            high = stop + lead
        elif window is not None:
            high = stop + lead + window - 1
        rows, keys = slice(start, stop), slice(low, max(low, min(S, high)))
        n, lead_here = keys.stop - low, start + lead - low
        see = near(stop - start, n, lead_here, causal=causal, window=window, device=q.device)
        parts.append(
            _masked(
                q[:, :, rows],
                k[:, :, keys],
                v[:, :, keys],
                visible(block(mask, rows, keys), block(bias, rows, keys), see),
                block(bias, rows, keys),
                scale,
            )
        )
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def _masked(
    q: Tensor, k: Tensor, v: Tensor, see: Tensor, bias: Tensor | None, scale: float
) -> Tensor:
    empty = ~see.any(-1, keepdim=True)
    unseen = ~see.any(-2).unsqueeze(-1)
    # 0 · NaN is NaN: what sees nothing, and what nothing sees, is cleared first.
    q, k, v = q.masked_fill(empty, 0), k.masked_fill(unseen, 0), v.masked_fill(unseen, 0)
    allowed = see | empty
    if bias is not None:
        allowed = bias.masked_fill(~allowed, -torch.inf).masked_fill(empty, 0)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale)
    return out.masked_fill(empty, 0)
