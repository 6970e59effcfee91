"""The answers that implementations are held to: the definition, in float64 NumPy, row by row.

Nothing here imports the course. Slow and plain on purpose: one query at a time, and only the keys
which that query may look at are ever touched.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Attention(NamedTuple):
    """Softmax attention and, for an output gradient, the gradients of what went in."""

    out: np.ndarray
    weights: np.ndarray
    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    dbias: np.ndarray


def array(x: object) -> np.ndarray:
    """``x`` (a tensor, an array) as float64, or as boolean if it is."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        x = x.double() if x.is_floating_point() else x
    x = np.asarray(x)
    return x if x.dtype == bool else x.astype(np.float64)


def may_look(
    t: int, i: int, T: int, S: int, *, causal: bool = False, window: int | None = None
) -> bool:
    """Whether query ``t`` of ``T`` is near enough to key ``i`` of ``S``; the last ones align."""
    distance = (t + S - T) - i
    if causal and distance < 0:
        return False
    return window is None or abs(distance) < window


def attention(
    q, k, v, *, mask=None, causal=False, window=None, bias=None, scale=None, dout=None
) -> Attention:
    """``softmax(scale·q·k + bias) v`` over the keys in sight; an empty sight gives zeros.

    The same question is answered once: mutants are all asked what the real module is asked.
    """
    q, k, v = array(q), array(k), array(v)
    given = [None if x is None else array(x) for x in (mask, bias, dout)]
    key = (
        causal,
        window,
        scale,
        *((x is not None and (x.shape, x.tobytes())) for x in (q, k, v, *given)),
    )
    if key not in _ANSWERS:
        _ANSWERS[key] = _attention(q, k, v, *given, causal, window, scale)
    return _ANSWERS[key]


_ANSWERS: dict[tuple, Attention] = {}


def _attention(q, k, v, mask, bias, dout, causal, window, scale) -> Attention:
    (B, H, T, D), S = q.shape, k.shape[2]
    mask = np.broadcast_to(True if mask is None else mask, (B, H, T, S))
    bias = np.broadcast_to(0.0 if bias is None else bias, (B, H, T, S))
    dout = np.zeros((*q.shape[:3], v.shape[3])) if dout is None else dout
    scale = 1 / np.sqrt(D) if scale is None else scale

    out, weights = np.zeros((B, H, T, v.shape[3])), np.zeros((B, H, T, S))
    dq, dk, dv, dbias = (np.zeros(shape) for shape in (q.shape, k.shape, v.shape, bias.shape))
    for b, h, t in np.ndindex(B, H, T):
        sight = [
            i
            for i in range(S)
            if may_look(t, i, T, S, causal=causal, window=window)
            and mask[b, h, t, i]
            and bias[b, h, t, i] != -np.inf
        ]
        if not sight:
            continue
        scores = np.array([scale * (q[b, h, t] @ k[b, h, i]) + bias[b, h, t, i] for i in sight])
        w = np.exp(scores - scores.max())
        w = w / w.sum()
        weights[b, h, t, sight] = w
        out[b, h, t] = sum(w_i * v[b, h, i] for w_i, i in zip(w, sight, strict=True))
        dw = np.array([dout[b, h, t] @ v[b, h, i] for i in sight])
        dscores = w * (dw - w @ dw)
        dbias[b, h, t, sight] = dscores
        for w_i, ds_i, i in zip(w, dscores, sight, strict=True):
            dq[b, h, t] += scale * ds_i * k[b, h, i]
            dk[b, h, i] += scale * ds_i * q[b, h, t]
            dv[b, h, i] += w_i * dout[b, h, t]
    return Attention(out, weights, dq, dk, dv, dbias)


def cut_from_nan(x):
    """The same tensor as a view of a larger one that is NaN everywhere else; no axis contiguous."""
    shape = [2 * size + 1 for size in x.shape]
    buffer = x.new_full(shape, float("nan"))
    view = buffer[tuple(slice(1, None, 2) for _ in shape)].detach()
    view.copy_(x)
    return view


def similarity(
    name, q, k, *, q_places=None, k_places=None, weights=None, max_length=None, nu=1, scale=1.0
):
    """φ(q)·φ(k) for every pair, ``[B,H,T,S]`` in float64 torch, by formula, without features.

    ``weights``: the random directions of ``favor`` (which has no formula but its definition).
    """
    import torch

    q, k = q.double() * scale**0.5, k.double() * scale**0.5
    if name == "elu":
        q, k = (torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in (q, k))
    if name in ("relu", "cosformer"):
        q, k = q * (q > 0), k * (k > 0)
    if name == "favor":
        # Chosen sizes keep |w|² below 76, where the constant is 0.
        q, k = (
            (x @ weights.T - (x * x).sum(-1, keepdim=True) / 2).exp() / len(weights) ** 0.5
            for x in (q, k)
        )
    if name == "dpfp":
        q, k = (_products_of_neighbours(x, nu) for x in (q, k))
    s = torch.einsum("bhtd,bhsd->bhts", q, k)
    if name == "taylor":
        return 1 + s + s * s / 2
    if name == "cosformer":
        lag = q_places.double().unsqueeze(-1) - k_places.double().unsqueeze(-2)
        return s * torch.cos(lag * (np.pi / (2 * max_length))).unsqueeze(1)
    return s


def _products_of_neighbours(x, nu):
    import torch

    D = x.shape[-1]
    r = torch.cat([x * (x > 0), -x * (x < 0)], -1)
    return torch.stack(
        [r[..., j] * r[..., (j - i) % (2 * D)] for i in range(1, nu + 1) for j in range(2 * D)], -1
    )


def linear_attention(similarities, v, *, causal=True, normalize=True, key_mask=None):
    """Σ_i sim(t,i) v_i / Σ_i sim(t,i) over the keys in sight; nothing in sight gives zeros.

    Differentiable. With more keys than queries the last ones align.
    """
    import torch

    T, S = similarities.shape[-2:]
    sight = torch.ones(T, S, dtype=torch.bool)
    sight = sight.tril(S - T) if causal else sight
    sight = sight.expand(similarities.shape)
    if key_mask is not None:
        sight = sight & key_mask[:, None, None, :]
        v = torch.where(key_mask[:, None, :, None], v, 0.0)
    w = torch.where(sight, similarities, 0.0)
    num = torch.einsum("bhts,bhsd->bhtd", w, v.double())
    if not normalize:
        return num
    total = w.sum(-1, keepdim=True)
    return torch.where(total == 0, 0.0, num / torch.where(total == 0, 1.0, total))


def written(transitions, q, k, v, start=None):
    """What ``q_t`` reads of S_t = A_t S_{t−1} + k_t v_tᵀ, and the last S; differentiable, float64.

    By explicit products: token j stands in S_t as A_t … A_{j+1} k_j v_jᵀ. ``transitions`` are the
    matrices A ``[B,H,T,D,D]``; for a rule that writes βk, ``k`` is that.
    """
    import torch

    (B, H, T, D), Dv = k.shape, v.shape[-1]
    start = torch.zeros(B, H, D, Dv, dtype=torch.float64) if start is None else start
    outs = [v.new_zeros(B, H, 0, Dv).double()]
    for t in range(T + 1):  # the last one is no query but the whole state
        row = q[:, :, t : t + 1] if t < T else torch.eye(D, dtype=torch.float64).expand(B, H, D, D)
        out = 0.0
        for j in range(min(t, T - 1), -1, -1):
            out = out + row @ k[:, :, j, :, None] @ v[:, :, j, None, :]
            row = row @ transitions[:, :, j]
        outs.append(out + row @ start)
    return torch.cat(outs[:-1], 2), outs[-1]


def faded(log_decay, key_mask=None):
    """γ_{i+1} … γ_t ``[B,H,T,T]`` by products, factor by factor; padding does not fade."""
    import torch

    gamma = torch.exp(log_decay.double())
    if key_mask is not None:
        gamma = torch.where(key_mask[:, None], gamma, 1.0)
    T = gamma.shape[-1]
    rows = [
        torch.stack([gamma[..., i + 1 : t + 1].prod(-1) for i in range(T)], -1) for t in range(T)
    ]
    return torch.stack(rows, -2) if T else gamma.new_zeros(*gamma.shape, 0)
