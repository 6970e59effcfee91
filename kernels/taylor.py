"""Linear attention with the Taylor map in Triton, its features built inside the kernel.

    φ(q)·φ(k) = 1 + s + s²/2        s = q·k        φ(x) = [1, x, x⊗x/√2], packed: each pair once

A key of 16 numbers has C = 153 features, so they never touch main memory. A program holds X, a tile
of B tokens times D ≤ 16 numbers, and makes the features in blocks of 16 columns:

    block i < D:  x_i·x_j for j ≥ i, the diagonal times √½      block D:  x_j      block D+1:  1

one column times the whole tile, which needs no gather. Which row of the packed state a feature
belongs to is arithmetic (``_rows``), in the order of ``course.feature_maps``.

Queries and keys play the same part. A token of either is a triple (x, y, w):

    key: (k, v, 1)        query, backward: (q, dN, δ)    with dN = dout/den and δ = −Σ dN·out

and one program sums φ(x) yᵀ and φ(x) w over the tokens of a chunk: S and z over the keys before it,
dS and dz over the queries after it. Then all chunks are done at once. With A = tril(1 + s + s²/2):

    out = (A V + φ(Q) S) / (A 1 + φ(Q) z)        dV = Aᵀ dN + φ(K) dS              (``_read``)
    dQ = (dA ∘ (1 + s)) K + ∂φ(Q)ᵀ[dN Sᵀ + δ zᵀ]        dA = tril(dN Vᵀ + δ 1ᵀ)    (``_pull``)
    dK = (dA ∘ (1 + s))ᵀ Q + ∂φ(K)ᵀ[V dSᵀ + 1 dzᵀ]

Inside a chunk a pair of tokens costs a product of width 16 and one of width Dv; through the state a
token costs C products of width Dv. So chunks are long here, 256 tokens, and walked in tiles. The
sums before each chunk, packed, are kept for the backward pass: 4·C·Dv/256 bytes a token, about as
much as an output in float16. Launches: two forward, three backward (two without ``normalize``).

Precision: as in :mod:`course.kernels.linear`. Features, S, z and all sums are float32 for float16
inputs as well, because s²/2 leaves the range of float16 at |s| = 362.
Source of the map: Arora et al. 2024 (arXiv:2402.18668), section 4.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from course.kernels import runtime
from course.kernels.shared import (
    ALL_REGISTERS,
    WIDEST_TAYLOR,
    block,
    count,
    first_order,
    pointer,
    precision,
    product,
    real,
    split,
    store,
    strides,
    taylor_width,
    tile,
)
from course.state import LinearState

CHUNK = 256  # tokens between two states that are written down

_BD = tl.constexpr(WIDEST_TAYLOR)
_ROOT_HALF = tl.constexpr(math.sqrt(0.5))
_ROOT_TWO = tl.constexpr(math.sqrt(2.0))


# Parts of the kernels. ``disable_licm``: what a loop computes anew each time needs no registers
# between times.


@triton.jit
def _tokens(
    x, y, den, delta, mask,
    stride_xt, stride_xd, stride_yt, stride_yd, stride_ms,
    t, cols, T, Dv,
    D: tl.constexpr, QUERY: tl.constexpr, NORMALIZE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """(x, y, w) of the tokens ``t``, some columns of y: (k, v, 1), or (q, dout/den, δ) if QUERY."""
    seen = real(mask, 0, stride_ms, 0, t, T, MASKED)
    raw = tile(x, stride_xt, stride_xd, t, tl.arange(0, _BD), seen, D)
    Y = tile(y, stride_yt, stride_yd, t, cols, seen, Dv).to(tl.float32)
    w = seen.to(tl.float32)
    if QUERY:
        if NORMALIZE:
            Y = Y / tl.load(den + t, mask=seen, other=1.0)[:, None]
            w = tl.load(delta + t, mask=seen, other=0.0)
        else:
            w = w * 0.0  # nothing was divided, so nothing flows into a denominator
    return raw, Y, w


@triton.jit
def _features(X, i, D: tl.constexpr):
    """Block ``i`` of φ(X), packed: a column times the whole tile."""
    d = tl.arange(0, _BD)
    x_i = tl.sum(tl.where((d == i)[None, :], X, 0.0), axis=1)
    pairs = tl.where(d > i, 1.0, tl.where(d == i, _ROOT_HALF, 0.0))[None, :] * X * x_i[:, None]
    constant = tl.where(d == 0, 1.0, 0.0)[None, :]
    return tl.where(i < D, pairs, tl.where(i == D, X, constant))


@triton.jit
def _rows(i, d, D: tl.constexpr):
    """Where the packed state keeps block ``i``, whose column ``d`` is x_i·x_d, x_d or 1."""
    low, high = tl.minimum(i, d), tl.maximum(i, d)
    pair = 1 + D + low * D - low * (low - 1) // 2 + high - low
    return tl.where(i < D, pair, tl.where(i == D, 1 + d, 0)).to(tl.int64)


@triton.jit
def _read(
    raw, t, cols, low, high, S, z, x, y, den, delta, mask,
    stride_xt, stride_xd, stride_yt, stride_yd, stride_ms,
    T, Dv, root,
    D: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr, CAUSAL: tl.constexpr,
    NORMALIZE: tl.constexpr, MASKED: tl.constexpr, QUERY: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Σ φ(x)·φ(x′) y′ and Σ φ(x)·φ(x′) w′ over the state and over the tokens ``low`` to ``high``.

    ``raw`` is the tile of x before its scale. What has a dash is the other side: queries if QUERY.
    """
    d = tl.arange(0, _BD)
    X = raw.to(tl.float32) * root
    num = tl.zeros([BT, BV], tl.float32)
    total = tl.zeros([BT], tl.float32)
    for i in tl.range(D + 2, disable_licm=True):
        here = tl.where(i > D, d == 0, (d < D) & ((d >= i) | (i == D)))
        row = _rows(i, d, D)
        F = _features(X, i, D)
        block = here[:, None] & (cols < Dv)[None, :]
        S_i = tl.load(S + row[:, None] * Dv + cols[None, :], mask=block, other=0.0)
        num = product(F, S_i, num, DOT)
        total += tl.sum(F * tl.load(z + row, mask=here, other=0.0)[None, :], axis=1)
    if CAUSAL:
        for start in tl.range(low, high, BT, disable_licm=True):
            u = start + tl.arange(0, BT).to(tl.int64)
            raw_u, Y, w = _tokens(
                x, y, den, delta, mask,
                stride_xt, stride_xd, stride_yt, stride_yd, stride_ms,
                u, cols, T, Dv, D, QUERY, NORMALIZE, MASKED,
            )  # fmt: skip
            s = product(raw, tl.trans(raw_u), None, DOT) * (root * root)
            past = (t[:, None] <= u[None, :]) if QUERY else (t[:, None] >= u[None, :])
            A = tl.where(past, 1.0 + s + 0.5 * s * s, 0.0)
            num = product(A, Y, num, DOT)
            total += tl.sum(A * w[None, :], axis=1)
    return num, total


@triton.jit
def _pull(
    x_own, y_own, x, y, den, delta, mask,
    stride_xt_own, stride_xd_own, stride_yt_own, stride_yd_own, stride_xt, stride_xd, stride_yt,
    stride_yd, stride_ms,
    t, low, high, S, z, T_own, T, Dv, root,
    D: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr, CAUSAL: tl.constexpr,
    NORMALIZE: tl.constexpr, MASKED: tl.constexpr, QUERY: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """The gradient of Σ φ(x)·φ(x′) (y·y′ + w·w′) at a tile of x, over the same as in ``_read``.

    Exactly one of the two sides has queries: the other one if QUERY.
    """
    d = tl.arange(0, _BD)
    dX = tl.zeros([BT, _BD], tl.float32)
    for first in tl.range(0, Dv, BV, disable_licm=True):
        cols = (first + tl.arange(0, BV)).to(tl.int64)
        raw, Y, w = _tokens(
            x_own, y_own, den, delta, mask,
            stride_xt_own, stride_xd_own, stride_yt_own, stride_yd_own, stride_ms,
            t, cols, T_own, Dv, D, not QUERY, NORMALIZE, MASKED and QUERY,
        )  # fmt: skip
        w = tl.where(first == 0, w, 0.0)  # like one more column of y: it takes part once
        for i in tl.range(D + 1, disable_licm=True):
            # ∂(½ Σ x_i x_j S_ij) = Σ_i x_i S_ij with all of S, of which half is packed.
            row = _rows(i, d, D)
            block = (d < D)[:, None] & (cols < Dv)[None, :]
            S_i = tl.load(S + row[:, None] * Dv + cols[None, :], mask=block, other=0.0)
            z_i = tl.load(z + row, mask=d < D, other=0.0)
            dF = product(Y, tl.trans(S_i), None, DOT) + w[:, None] * z_i[None, :]
            x_i = tl.sum(tl.where((d == i)[None, :], raw.to(tl.float32), 0.0), axis=1) * root
            twice = tl.where(d == i, _ROOT_TWO, 1.0)[None, :]
            dX += tl.where(i < D, x_i[:, None] * twice * dF, dF)
        if CAUSAL:
            for start in tl.range(low, high, BT, disable_licm=True):
                u = start + tl.arange(0, BT).to(tl.int64)
                raw_u, Y_u, w_u = _tokens(
                    x, y, den, delta, mask,
                    stride_xt, stride_xd, stride_yt, stride_yd, stride_ms,
                    u, cols, T, Dv, D, QUERY, NORMALIZE, MASKED and not QUERY,
                )  # fmt: skip
                s = product(raw, tl.trans(raw_u), None, DOT) * (root * root)
                dA = product(Y, tl.trans(Y_u), None, DOT) + w[:, None] * w_u[None, :]
                past = (t[:, None] <= u[None, :]) if QUERY else (t[:, None] >= u[None, :])
                ds = tl.where(past, dA * (1.0 + s), 0.0)
                dX = product(ds, raw_u.to(tl.float32) * root, dX, DOT)
    return dX * root


# The kernels


@triton.jit(do_not_specialize=["T", "chunk"])
def taylor_sums(
    x, y, den, delta, mask, S_0, z_0, S_all, z_all, S_end, z_end,
    stride_xb, stride_xh, stride_xt, stride_xd, stride_yb, stride_yh, stride_yt, stride_yd,
    stride_mb, stride_ms, stride_Sb, stride_Sh, stride_Sc, stride_Sd, stride_zb, stride_zh,
    stride_zc,
    H, T, Dv, chunk, root,
    D: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr, QUERY: tl.constexpr,
    NORMALIZE: tl.constexpr, MASKED: tl.constexpr, PAST: tl.constexpr, EACH: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """Σ φ(x) yᵀ and Σ φ(x) w before each chunk (``EACH``) and after the last; one block a program.

    For queries (QUERY) time runs backwards: after each chunk, and before the first.
    """
    n, i, i_v = split(tl.program_id(0), D + 2, tl.cdiv(Dv, BV))
    b, h = n // H, n % H
    x += b * stride_xb + h * stride_xh
    y += b * stride_yb + h * stride_yh
    den += n * T
    delta += n * T
    mask += b * stride_mb
    d = tl.arange(0, _BD)
    cols = i_v * BV + tl.arange(0, BV)
    here = tl.where(i > D, d == 0, (d < D) & ((d >= i) | (i == D)))
    row = _rows(i, d, D)
    block = here[:, None] & (cols < Dv)[None, :]
    place = row[:, None] * Dv + cols[None, :]
    C = 1 + D + D * (D + 1) // 2

    S = tl.zeros([_BD, BV], tl.float32)
    z = tl.zeros([_BD], tl.float32)
    if PAST:
        S_0 += b * stride_Sb + h * stride_Sh + row[:, None] * stride_Sc + cols[None, :] * stride_Sd
        z_0 += b * stride_zb + h * stride_zh + row * stride_zc
        S += tl.load(S_0, mask=block, other=0.0)
        z += tl.load(z_0, mask=here, other=0.0)
    chunks = tl.cdiv(T, chunk)
    for step in range(chunks):
        g = chunks - 1 - step if QUERY else step
        if EACH:
            slot = (n * chunks + g) * C
            tl.store(S_all + slot * Dv + place, S, mask=block)
            if i_v == 0:
                tl.store(z_all + slot + row, z, mask=here)
        for start in range(g * chunk, tl.minimum(T, (g + 1) * chunk), BT):
            raw, Y, w = _tokens(
                x, y, den, delta, mask,
                stride_xt, stride_xd, stride_yt, stride_yd, stride_ms,
                start + tl.arange(0, BT).to(tl.int64), cols, T, Dv, D, QUERY, NORMALIZE, MASKED,
            )  # fmt: skip
            F = _features(raw.to(tl.float32) * root, i, D)
            S = product(tl.trans(F), Y, S, DOT)
            z += tl.sum(F * w[:, None], axis=0)
    tl.store(S_end + n * C * Dv + place, S, mask=block)
    if i_v == 0:
        tl.store(z_end + n * C + row, z, mask=here)


@triton.jit(do_not_specialize=["T", "S_len", "chunk"])
def taylor_outputs(
    q, k, v, mask, S, z, out, den,
    stride_qb, stride_qh, stride_qt, stride_qd, stride_kb, stride_kh, stride_kt, stride_kd,
    stride_vb, stride_vh, stride_vt, stride_vd, stride_mb, stride_ms,
    H, T, S_len, Dv, chunk, root,
    D: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr, CAUSAL: tl.constexpr,
    NORMALIZE: tl.constexpr, MASKED: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """(A V + φ(Q) S) / (A 1 + φ(Q) z) for one tile of queries and one block of value columns."""
    n, i_t, i_v = split(tl.program_id(0), tl.cdiv(T, BT), tl.cdiv(Dv, BV))
    b, h = n // H, n % H
    first = i_t * BT
    t = first + tl.arange(0, BT)
    cols = i_v * BV + tl.arange(0, BV)
    there = t < T
    q += b * stride_qb + h * stride_qh
    raw = tile(q, stride_qt, stride_qd, t, tl.arange(0, _BD), there, D)
    C = 1 + D + D * (D + 1) // 2
    g = first // chunk
    slot = (n * tl.cdiv(T, chunk) + g) * C
    num, total = _read(
        raw, t, cols, g * chunk, first + BT, S + slot * Dv, z + slot,
        k + b * stride_kb + h * stride_kh, v + b * stride_vb + h * stride_vh, den, den,
        mask + b * stride_mb,
        stride_kt, stride_kd, stride_vt, stride_vd, stride_ms,
        S_len, Dv, root, D, BT, BV, CAUSAL, NORMALIZE, MASKED, False, DOT,
    )  # fmt: skip
    if NORMALIZE:
        # x/∞ is 0, with gradient 0: a query that sees nothing. Divided before it becomes half.
        total = tl.where(total == 0, float("inf"), total)
        num = num / total[:, None]
        if i_v == 0:
            tl.store(den + n * T + t, total, mask=there)
    store(out + n * T * Dv, num, t, cols, there, Dv)


@triton.jit(do_not_specialize=["T"])
def taylor_deltas(
    out, dout, den, delta,
    stride_gb, stride_gh, stride_gt, stride_gd,
    H, T, Dv,
    BT: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """δ = −Σ dN·out: the gradient of the denominator of each query."""
    n, i_t, _ = split(tl.program_id(0), tl.cdiv(T, BT), 1)
    b, h = n // H, n % H
    dout += b * stride_gb + h * stride_gh
    t = i_t * BT + tl.arange(0, BT)
    there = t < T
    total = tl.zeros([BT], tl.float32)
    for first in tl.range(0, Dv, BV, disable_licm=True):
        cols = (first + tl.arange(0, BV)).to(tl.int64)
        o = tile(out + n * T * Dv, Dv, 1, t, cols, there, Dv)
        do = tile(dout, stride_gt, stride_gd, t, cols, there, Dv)
        total -= tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    place = n * T + t
    total = total / tl.load(den + place, mask=there, other=1.0)
    tl.store(delta + place, total, mask=there)


@triton.jit(do_not_specialize=["T", "S_len", "chunk"])
def taylor_gradients(
    q, k, v, dout, den, delta, mask, S, z, dS, dz, dq, dk, dv,
    stride_qb, stride_qh, stride_qt, stride_qd, stride_kb, stride_kh, stride_kt, stride_kd,
    stride_vb, stride_vh, stride_vt, stride_vd, stride_gb, stride_gh, stride_gt, stride_gd,
    stride_mb, stride_ms,
    H, T, S_len, Dv, chunk, root,
    D: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr, CAUSAL: tl.constexpr,
    NORMALIZE: tl.constexpr, MASKED: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One tile of dq, or of dk, or of one block of columns of dv: by the last program index."""
    longest = tl.maximum(T, S_len)
    n, i_t, part = split(tl.program_id(0), tl.cdiv(longest, BT), tl.cdiv(Dv, BV) + 2)
    b, h = n // H, n % H
    q += b * stride_qb + h * stride_qh
    k += b * stride_kb + h * stride_kh
    v += b * stride_vb + h * stride_vh
    dout += b * stride_gb + h * stride_gh
    mask += b * stride_mb
    den += n * T
    delta += n * T
    C = 1 + D + D * (D + 1) // 2
    first = i_t * BT
    g = first // chunk
    slot = (n * tl.cdiv(longest, chunk) + g) * C
    begin, end = g * chunk, tl.minimum(longest, (g + 1) * chunk)
    t = first + tl.arange(0, BT)
    d = tl.arange(0, _BD).to(tl.int64)
    if part == 0:
        dX = _pull(
            q, dout, k, v, den, delta, mask,
            stride_qt, stride_qd, stride_gt, stride_gd, stride_kt, stride_kd, stride_vt,
            stride_vd, stride_ms,
            t, begin, first + BT, S + slot * Dv, z + slot, T, S_len, Dv, root, D, BT, BV,
            CAUSAL, NORMALIZE, MASKED, False, DOT,
        )  # fmt: skip
        store(dq + n * T * D, dX, t, d, t < T, D)
    elif part == 1:
        dX = _pull(
            k, v, q, dout, den, delta, mask,
            stride_kt, stride_kd, stride_vt, stride_vd, stride_qt, stride_qd, stride_gt,
            stride_gd, stride_ms,
            t, first, end, dS + slot * Dv, dz + slot, S_len, T, Dv, root, D, BT, BV, CAUSAL,
            NORMALIZE, MASKED, True, DOT,
        )  # fmt: skip
        store(dk + n * S_len * D, dX, t, d, t < S_len, D)
    else:
        cols = (part - 2) * BV + tl.arange(0, BV)
        raw, _, real = _tokens(
            k, v, den, delta, mask,
            stride_kt, stride_kd, stride_vt, stride_vd, stride_ms,
            t, cols, S_len, Dv, D, False, NORMALIZE, MASKED,
        )  # fmt: skip
        dV, _ = _read(
            raw, t, cols, first, end, dS + slot * Dv, dz + slot, q, dout, den, delta, mask,
            stride_qt, stride_qd, stride_gt, stride_gd, stride_ms,
            T, Dv, root, D, BT, BV, CAUSAL, NORMALIZE, False, True, DOT,
        )  # fmt: skip
        # The constant feature of padding is 1 and would pull at its value.
        dV = tl.where(real[:, None] > 0, dV, 0.0)
        store(dv + n * S_len * Dv, dV, t, cols, t < S_len, Dv)


# Launchers


class Options(NamedTuple):
    """What the kernels are told besides the tensors."""

    causal: bool
    normalize: bool
    root: float

    def chunk(self, T: int, S_len: int) -> int:
        """Tokens between two states; without order there is one state, of all."""
        return CHUNK if self.causal else max(1, T, S_len)


def sizes(dtype: torch.dtype, Dv: int, *, gradients: bool = False) -> dict[str, int]:
    """Tiles of 64 tokens, 32 in float32, and half as many value columns; for gradients half of it.

    Found by compiling: what limits these kernels is not shared memory but registers, of which
    float32 products and tensors with odd strides cost the most. One step larger, and they spill.
    """
    size = (32 if dtype == torch.float32 else 64) // (2 if gradients else 1)
    options = {"BT": size, "BV": min(max(16, size // 2), block(Dv)), "num_warps": 4}
    return options | {"num_stages": 1} | ALL_REGISTERS


def _sums(
    x: Tensor,
    y: Tensor,
    den: Tensor | None,
    delta: Tensor | None,
    mask: Tensor | None,
    past: tuple[Tensor | None, Tensor | None],
    options: Options,
    chunk: int,
    *,
    query: bool,
) -> tuple[Tensor, ...]:
    """(S, z) at each chunk's edge, ``[N,G,C,Dv]`` and ``[N,G,C]``, and (S, z) at the end.

    Without order both are the end's.
    """
    (B, H, T, D), Dv, C = x.shape, y.shape[-1], taylor_width(x.shape[-1])

    def numbers(*shape: int) -> Tensor:
        return runtime.empty(shape, like=x, dtype=torch.float32)

    ends = S, z = numbers(B, H, C, Dv), numbers(B, H, C)
    if options.causal:
        G = triton.cdiv(T, chunk)
        S, z = numbers(B * H, G, C, Dv), numbers(B * H, G, C)
    fixed = sizes(x.dtype, Dv)
    runtime.launch(
        taylor_sums,
        (B * H * (D + 2) * triton.cdiv(Dv, fixed["BV"]),),
        *(x, y, pointer(den, x), pointer(delta, x), pointer(mask, x)),
        *(*(pointer(p, x) for p in past), S, z, *ends),
        *(*x.stride(), *y.stride(), *strides(mask, 2), *strides(past[0], 4), *strides(past[1], 3)),
        *(H, T, Dv, chunk, options.root),
        D=D,
        QUERY=query,
        NORMALIZE=den is not None,
        MASKED=mask is not None,
        PAST=past[0] is not None,
        EACH=options.causal,
        DOT=precision(x),
        **fixed,
    )
    return S, z, *ends


class _Taylor(torch.autograd.Function):
    """``q, k [B,H,T,D]``, ``v``, S and z of the past, mask, options → (out, S, z)."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        S_0: Tensor | None,
        z_0: Tensor | None,
        mask: Tensor | None,
        options: Options,
    ) -> tuple[Tensor, Tensor, Tensor]:
        (B, H, T, D), (S_len, Dv) = q.shape, v.shape[2:]
        chunk, fixed = options.chunk(T, S_len), sizes(q.dtype, Dv)
        S, z, *ends = _sums(k, v, None, None, mask, (S_0, z_0), options, chunk, query=False)
        out = runtime.empty((B, H, T, Dv), like=q)
        den = runtime.empty((B, H, T), like=q, dtype=torch.float32) if options.normalize else None
        runtime.launch(
            taylor_outputs,
            (B * H * triton.cdiv(T, fixed["BT"]) * triton.cdiv(Dv, fixed["BV"]),),
            *(q, k, v, pointer(mask, q), S, z, out, pointer(den, out)),
            *(*q.stride(), *k.stride(), *v.stride(), *strides(mask, 2)),
            *(H, T, S_len, Dv, chunk, options.root),
            D=D,
            CAUSAL=options.causal,
            NORMALIZE=options.normalize,
            MASKED=mask is not None,
            DOT=precision(q),
            **fixed,
        )
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, mask, S, z, den, out if options.normalize else None)
        ctx.options, ctx.has_past = options, S_0 is not None
        return out, *ends

    @staticmethod
    @first_order
    def backward(
        ctx: Any, dout: Tensor | None, dS_end: Tensor | None, dz_end: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        q, k, v, mask, S, z, den, out = ctx.saved_tensors
        options: Options = ctx.options
        (B, H, T, D), (S_len, Dv), C = q.shape, v.shape[2:], taylor_width(q.shape[-1])
        chunk, fixed = options.chunk(T, S_len), sizes(q.dtype, Dv)
        if dout is None:  # only the state was used
            dout = q.new_zeros(()).expand(B, H, T, Dv)
        if dS_end is not None or dz_end is not None:
            zero = S.new_zeros(())
            dS_end = zero.expand(B, H, C, Dv) if dS_end is None else dS_end
            dz_end = zero.expand(B, H, C) if dz_end is None else dz_end
        delta = None
        if den is not None:
            delta = runtime.empty((B, H, T), like=q, dtype=torch.float32)
            runtime.launch(
                taylor_deltas,
                (B * H * triton.cdiv(T, fixed["BT"]),),
                *(out, dout, den, delta, *dout.stride(), H, T, Dv),
                **fixed,
            )
        after = (dS_end, dz_end)
        dS, dz, *first = _sums(q, dout, den, delta, None, after, options, chunk, query=True)
        dq, dk, dv = (runtime.empty(x.shape, like=x) for x in (q, k, v))
        fixed = sizes(q.dtype, Dv, gradients=True)
        parts = 2 + triton.cdiv(Dv, fixed["BV"])
        runtime.launch(
            taylor_gradients,
            (B * H * triton.cdiv(max(T, S_len), fixed["BT"]) * parts,),
            *(q, k, v, dout, pointer(den, q), pointer(delta, q), pointer(mask, q)),
            *(S, z, dS, dz, dq, dk, dv),
            *(*q.stride(), *k.stride(), *v.stride(), *dout.stride(), *strides(mask, 2)),
            *(H, T, S_len, Dv, chunk, options.root),
            D=D,
            CAUSAL=options.causal,
            NORMALIZE=options.normalize,
            MASKED=mask is not None,
            DOT=precision(q),
            **fixed,
        )
        return dq, dk, dv, *(first if ctx.has_past else (None, None)), None, None


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    normalize: bool = True,
    scale: float = 1.0,
    key_mask: Tensor | None = None,
    initial_state: LinearState | None = None,
    return_state: bool = False,
) -> Any:
    """:func:`course.linear.linear_attention` with the map ``taylor``, which checks the arguments.

    ``q [B,H,T,D]``, ``k [B,H,S,D]`` with D ≤ 16, ``v [B,H,S,Dv]`` → ``[B,H,T,Dv]`` in the dtype of
    ``q``; with ``return_state`` the pair (output, :class:`LinearState`), whose S ``[B,H,C,Dv]`` and
    z ``[B,H,C]`` are float32 in the packed order, C = 1 + D + D(D+1)/2.
    """
    S_0, z_0, t_0 = (None, None, None) if initial_state is None else tuple(initial_state)
    options = Options(causal, normalize, math.sqrt(scale))
    out, S, z = _Taylor.apply(q, k, v, S_0, z_0, key_mask, options)
    return (out, LinearState(S, z, count(t_0, key_mask, k))) if return_state else out
