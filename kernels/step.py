"""One token of linear attention for a batch of sequences, in Triton: state and output, one launch.

    S' = S + φ(k) vᵀ      z' = z + φ(k)      out = S'ᵀ φ(q) / φ(q)·z'

There is no product of tiles: 4·C·Dv operations stand against 8·C·Dv bytes, S read and S' written.
So the time is that of moving the state, and what can be saved is the rest: the torch form makes
more than ten calls a token, and one of them reads S' again.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from course.kernels import linear, runtime, taylor
from course.kernels.shared import block, count, feature_map, pointer, split, strides, taylor_width
from course.state import LinearState


@triton.jit
def _vector(X, stride_d, d, here):
    return tl.load(X + d * stride_d, here, 0.0).to(tl.float32)


@triton.jit
def _features(X, stride_d, c, D: tl.constexpr, C: tl.constexpr, root, MAP: tl.constexpr):
    """The features ``c`` of one query or key; zeros beyond the last."""
    if MAP == "taylor":
        # 1, then x_i, then for each i the products x_i·x_j with j ≥ i: row i begins at
        # i·D − i(i−1)/2. Which row a product belongs to is counted, so there is no table to load.
        pair = c - 1 - D
        row = tl.arange(0, 16).to(tl.int64)
        begun = (pair[:, None] >= (row * D - row * (row - 1) // 2)[None, :]) & (row < D)[None, :]
        i = tl.sum(begun.to(tl.int64), 1) - 1
        j = pair - (i * D - i * (i - 1) // 2) + i
        linear = (c > 0) & (c <= D)
        square = (c > D) & (c < C)
        x_i = _vector(X, stride_d, tl.where(linear, c - 1, i), linear | square) * root
        x_j = _vector(X, stride_d, j, square) * root
        f = tl.where(linear, x_i, tl.where(i == j, 0.7071067811865476, 1.0) * x_i * x_j)
        f = tl.where(c == 0, 1.0, f)
    else:
        f = feature_map(_vector(X, stride_d, c, c < C) * root, MAP)
    return tl.where(c < C, f, 0.0)


@triton.jit
def linear_step(
    q, k, v, S_old, z_old, t_old, S_new, z_new, t_new, out,
    stride_qb, stride_qh, stride_qd, stride_kb, stride_kh, stride_kd,
    stride_vb, stride_vh, stride_vd, stride_Sb, stride_Sh, stride_Sc, stride_Sd,
    stride_zb, stride_zh, stride_zc, stride_tb,
    H, root,
    D: tl.constexpr, C: tl.constexpr, Dv: tl.constexpr, MAP: tl.constexpr,
    NORMALIZE: tl.constexpr, PAST: tl.constexpr,
    BC: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One head and one block of columns of S: goes down the rows, block after block."""
    b, h, i_v = split(tl.program_id(0), H, tl.cdiv(Dv, BV))
    n = b * H + h
    q += b * stride_qb + h * stride_qh
    k += b * stride_kb + h * stride_kh
    S_old += b * stride_Sb + h * stride_Sh
    z_old += b * stride_zb + h * stride_zh
    d = i_v * BV + tl.arange(0, BV)
    v_t = _vector(v + b * stride_vb + h * stride_vh, stride_vd, d, d < Dv)
    num = tl.zeros([BV], tl.float32)
    den = tl.zeros([BC], tl.float32)
    for c_0 in range(0, C, BC):
        c = (c_0 + tl.arange(0, BC)).to(tl.int64)
        phi_q = _features(q, stride_qd, c, D, C, root, MAP)
        phi_k = _features(k, stride_kd, c, D, C, root, MAP)
        block = (c < C)[:, None] & (d < Dv)[None, :]
        S = phi_k[:, None] * v_t[None, :]
        z = phi_k
        if PAST:
            S += tl.load(S_old + c[:, None] * stride_Sc + d[None, :] * stride_Sd, block, 0.0)
            z += tl.load(z_old + c * stride_zc, c < C, 0.0)
        tl.store(S_new + n * C * Dv + c[:, None] * Dv + d[None, :], S, block)
        if i_v == 0:
            tl.store(z_new + n * C + c, z, c < C)
        num += tl.sum(phi_q[:, None] * S, 0)
        den += phi_q * z
    if NORMALIZE:
        total = tl.sum(den, 0)
        num = tl.where(total == 0, 0.0, num / tl.where(total == 0, 1.0, total))
    tl.store(out + n * Dv + d, num, d < Dv)
    if (i_v == 0) & (h == 0):
        t = 1
        if PAST:
            t += tl.load(t_old + b * stride_tb)
        tl.store(t_new + b, t)


def sizes(C: int, Dv: int) -> dict[str, int]:
    """Rows and columns of the block of S that is under way: at most 8 KiB, so that many are."""
    return {"BC": min(64, block(C)), "BV": min(32, block(Dv)), "num_warps": 4, "num_stages": 1}


def linear_attention_step(
    q_t: Tensor,
    k_t: Tensor,
    v_t: Tensor,
    state: LinearState | None = None,
    *,
    feature_map: str = "elu",
    normalize: bool = True,
    scale: float = 1.0,
) -> tuple[Tensor, LinearState]:
    """:func:`course.linear.linear_attention_step` in one launch; the given state stays as it was.

    Shapes, dtypes, options and results are the same; ``feature_map``: ``elu``, ``relu``,
    ``identity``, or ``taylor`` (packed) for keys of width 16 at most. Where a gradient is wanted,
    the token goes through the kernels for whole sequences, which have one.
    The arguments have been checked by the function that calls this one.
    Raises ``RuntimeError`` with the reason where kernels cannot run.
    """
    S, z, t = (None, None, None) if state is None else tuple(state)
    given = (q_t, k_t, v_t, S, z, t)
    runtime.require_runnable(*given)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given):
        return _as_sequence(q_t, k_t, v_t, state, feature_map, normalize, scale)
    (B, H, D), Dv = k_t.shape, v_t.shape[-1]
    C = taylor_width(D) if feature_map == "taylor" else D
    out = runtime.empty((B, H, Dv), like=q_t)
    new = LinearState(
        runtime.empty((B, H, C, Dv), like=q_t, dtype=torch.float32),
        runtime.empty((B, H, C), like=q_t, dtype=torch.float32),
        runtime.empty((B,), like=q_t, dtype=torch.int64),
    )
    if H == 0:  # no program runs, and t is counted by the first head's
        new.t.copy_(count(t, None, k_t.unsqueeze(2)))
    fixed = sizes(C, Dv)
    runtime.launch(
        linear_step,
        (B * H * triton.cdiv(Dv, fixed["BV"]),),
        *(q_t, k_t, v_t, *(pointer(x, q_t) for x in (S, z, t)), *new, out),
        *(*q_t.stride(), *k_t.stride(), *v_t.stride()),
        *(*strides(S, 4), *strides(z, 3), *strides(t, 1)),
        *(H, math.sqrt(scale)),
        D=D,
        C=C,
        Dv=Dv,
        MAP=feature_map,
        NORMALIZE=normalize,
        PAST=state is not None,
        **fixed,
    )
    return out, new


def _as_sequence(
    q_t: Tensor,
    k_t: Tensor,
    v_t: Tensor,
    state: LinearState | None,
    feature_map: str,
    normalize: bool,
    scale: float,
) -> tuple[Tensor, LinearState]:
    q, k, v = (x.unsqueeze(2) for x in (q_t, k_t, v_t))
    options = dict(normalize=normalize, scale=scale, initial_state=state, return_state=True)
    if feature_map == "taylor":
        out, new = taylor.linear_attention(q, k, v, causal=True, **options)
    else:
        out, new = linear.linear_attention(q, k, v, causal=True, feature_map=feature_map, **options)
    return out.squeeze(2), new
