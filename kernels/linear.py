"""Chunked linear attention in Triton: two kernels forward, three backward, the map φ inside.

    S_g = S before chunk g      A = tril(φ(Q) φ(K)ᵀ)      z_g = Σ of φ(k) before chunk g
    num = A V + φ(Q) S_g        den = A 1 + φ(Q) z_g      out = num / den

``linear_states`` goes over the chunks in their order, adds φ(K)ᵀ V to a block of S that never
leaves the registers, and writes down what S was before each chunk. Then every chunk has what it
needs, and ``linear_outputs`` does all of them at once. Backward, with dN = dout/den and
δ = −Σ dN·out, the gradient of den:

    dS_g = Σ of φ(Q)ᵀ dN after chunk g      dA = tril(dN Vᵀ + δ 1ᵀ)      dz_g = Σ of δ φ(q) after it
    dφ(Q) = dA φ(K) + dN S_gᵀ + δ z_gᵀ      dφ(K) = dAᵀ φ(Q) + V dS_gᵀ + 1 dz_gᵀ
    dV    = Aᵀ dN + φ(K) dS_g

``linear_state_gradients`` is ``linear_states`` with time reversed, and ``linear_input_gradients``
does all chunks at once. A later chunk's sum is never a total minus a prefix: that would cancel.
Without ``causal`` there is one state, of all keys, and no A.

What is kept for the backward pass: q, k, v, the output and den, 4 bytes a token. The states, 4·C·Dv
bytes a chunk of each head, are computed again, because kept for every layer they would be the
largest tensors of a model: as many bytes as q, k, v and the output in float16 for C = Dv = 128.

Precision. φ and all sums are float32, for float16 inputs as well: φ(−18) = 1.5e-8 is zero in
float16, and S of a long text does not fit. Products of half inputs are therefore made in TF32, with
the ten bits of float16 and the range of float32, and those of float32 inputs in ``runtime.DOT``.
TF32 runs at half the rate of float16, which costs little here: a chunk of 64 tokens of width 64
makes about 25 operations for a byte it moves, and an A100 has time for 76, an H100 for 147.
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
    block,
    count,
    feature_gradient,
    feature_map,
    first_order,
    pointer,
    precision,
    product,
    real,
    split,
    store,
    strides,
    tile,
)
from course.state import LinearState

MAPS = ("elu", "relu", "identity")


# In Triton. A program works with tiles: Q [BT, BC] is BT tokens of one chunk times BC features,
# V [BT, BV] the same tokens times BV columns of the values.


@triton.jit
def _tile(X, stride_t, stride_d, t, d, seen, width):
    """A tile as float32."""
    return tile(X, stride_t, stride_d, t, d, seen, width).to(tl.float32)


@triton.jit
def _features(X, stride_t, stride_d, t, d, seen, width, root, MAP: tl.constexpr):
    """φ of a tile: zeros for all that is not there, though φ(0) need not be zero."""
    f = feature_map(_tile(X, stride_t, stride_d, t, d, seen, width) * root, MAP)
    return tl.where(seen[:, None] & (d < width)[None, :], f, 0.0)


@triton.jit
def _inverse(den, n, t, T, NORMALIZE: tl.constexpr):
    """1/den of the queries ``t``; 0 where the denominator is 0, so that no gradient passes."""
    if NORMALIZE:
        x = tl.load(den + n * T + t, t < T, 0.0)
        return tl.where(x == 0, 0.0, 1 / tl.where(x == 0, 1.0, x))
    else:
        return tl.where(t < T, 1.0, 0.0)


@triton.jit(do_not_specialize=["S_len"])
def linear_states(
    k, v, mask, S_0, z_0, t_0, S_all, z_all, S_end, z_end, t_end,
    stride_kb, stride_kh, stride_kt, stride_kd,
    stride_vb, stride_vh, stride_vt, stride_vd,
    stride_mb, stride_ms, stride_Sb, stride_Sh, stride_Sc, stride_Sd,
    stride_zb, stride_zh, stride_zc, stride_t0,
    H, S_len, root,
    C: tl.constexpr, Dv: tl.constexpr, MAP: tl.constexpr, MASKED: tl.constexpr,
    PAST: tl.constexpr, EACH: tl.constexpr, END: tl.constexpr,
    BT: tl.constexpr, BC: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """S and z before each chunk (``EACH``) and after all (``END``): one block of S a program."""
    n, i_c, i_v = split(tl.program_id(0), tl.cdiv(C, BC), tl.cdiv(Dv, BV))
    b, h = n // H, n % H
    c = i_c * BC + tl.arange(0, BC)
    d = i_v * BV + tl.arange(0, BV)
    block = (c < C)[:, None] & (d < Dv)[None, :]
    place = c[:, None] * Dv + d[None, :]
    S = tl.zeros([BC, BV], tl.float32)
    z = tl.zeros([BC], tl.float32)
    count = tl.zeros([BT], tl.int64)
    if PAST:
        S_0 += b * stride_Sb + h * stride_Sh
        S += tl.load(S_0 + c[:, None] * stride_Sc + d[None, :] * stride_Sd, block, 0.0)
        z += tl.load(z_0 + b * stride_zb + h * stride_zh + c * stride_zc, c < C, 0.0)
    k += b * stride_kb + h * stride_kh
    v += b * stride_vb + h * stride_vh
    G = tl.cdiv(S_len, BT)
    for g in range(G):
        if EACH:
            slot = n * G + g
            tl.store(S_all + slot * C * Dv + place, S, block)
            if i_v == 0:
                tl.store(z_all + slot * C + c, z, c < C)
        s = (g * BT + tl.arange(0, BT)).to(tl.int64)
        seen = real(mask, stride_mb, stride_ms, b, s, S_len, MASKED)
        K = _features(k, stride_kt, stride_kd, s, c, seen, C, root, MAP)
        V = _tile(v, stride_vt, stride_vd, s, d, seen, Dv)
        S = product(tl.trans(K), V, S, DOT)
        z += tl.sum(K, 0)
        count += seen.to(tl.int64)
    if END:
        tl.store(S_end + n * C * Dv + place, S, block)
        if i_v == 0:
            tl.store(z_end + n * C + c, z, c < C)
            if (i_c == 0) & (h == 0):
                t = tl.sum(count, 0)
                if PAST:
                    t += tl.load(t_0 + b * stride_t0).to(tl.int64)
                tl.store(t_end + b, t)


@triton.jit(do_not_specialize=["T"])
def linear_outputs(
    q, k, v, mask, S_all, z_all, out, den_all,
    stride_qb, stride_qh, stride_qt, stride_qd,
    stride_kb, stride_kh, stride_kt, stride_kd,
    stride_vb, stride_vh, stride_vt, stride_vd,
    stride_mb, stride_ms,
    H, T, root,
    C: tl.constexpr, Dv: tl.constexpr, MAP: tl.constexpr, MASKED: tl.constexpr,
    CAUSAL: tl.constexpr, NORMALIZE: tl.constexpr,
    BT: tl.constexpr, BC: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One chunk of the output, and its denominators: one block of columns a program."""
    G = tl.cdiv(T, BT)
    n, g, i_v = split(tl.program_id(0), G, tl.cdiv(Dv, BV))
    b, h = n // H, n % H
    q += b * stride_qb + h * stride_qh
    k += b * stride_kb + h * stride_kh
    v += b * stride_vb + h * stride_vh
    slot = n * G + g if CAUSAL else n
    S_all += slot * C * Dv
    z_all += slot * C
    t = g * BT + tl.arange(0, BT)
    d = i_v * BV + tl.arange(0, BV)
    here = t < T
    seen = real(mask, stride_mb, stride_ms, b, t, T, MASKED) if CAUSAL else here
    A = tl.zeros([BT, BT], tl.float32)
    num = tl.zeros([BT, BV], tl.float32)
    den = tl.zeros([BT], tl.float32)
    for c_0 in range(0, C, BC):
        c = (c_0 + tl.arange(0, BC)).to(tl.int64)
        Q = _features(q, stride_qt, stride_qd, t, c, here, C, root, MAP)
        S = _tile(S_all, Dv, 1, c, d, c < C, Dv)
        num = product(Q, S, num, DOT)
        if NORMALIZE:
            z = tl.load(z_all + c, c < C, 0.0)
            den += tl.sum(Q * z[None, :], 1)
        if CAUSAL:
            K = _features(k, stride_kt, stride_kd, t, c, seen, C, root, MAP)
            A = product(Q, tl.trans(K), A, DOT)
    if CAUSAL:
        # A choice, not a product with a mask: 0 · NaN would let the future reach the past.
        A = tl.where(t[:, None] >= t[None, :], A, 0.0)
        V = _tile(v, stride_vt, stride_vd, t, d, seen, Dv)
        num = product(A, V, num, DOT)
        den += tl.sum(A, 1)
    if NORMALIZE:
        if i_v == 0:
            tl.store(den_all + n * T + t, den, here)
        # Divided while still float32: in float16 the numerator might be infinite.
        none = den == 0
        num = tl.where(none[:, None], 0.0, num / tl.where(none, 1.0, den)[:, None])
    store(out + n * T * Dv, num, t, d, here, Dv)


@triton.jit(do_not_specialize=["T"])
def linear_state_gradients(
    q, out, d_out, den_all, dS_end, dz_end, dS_all, dz_all, dS_0, dz_0,
    stride_qb, stride_qh, stride_qt, stride_qd,
    stride_gb, stride_gh, stride_gt, stride_gd,
    stride_Sb, stride_Sh, stride_Sc, stride_Sd,
    stride_zb, stride_zh, stride_zc,
    H, T, root,
    C: tl.constexpr, Dv: tl.constexpr, MAP: tl.constexpr, NORMALIZE: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_dS: tl.constexpr, HAS_dz: tl.constexpr, PAST: tl.constexpr,
    BT: tl.constexpr, BC: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """dS and dz after each chunk, from the last to the first: one block of dS a program."""
    n, i_c, i_v = split(tl.program_id(0), tl.cdiv(C, BC), tl.cdiv(Dv, BV))
    b, h = n // H, n % H
    c = i_c * BC + tl.arange(0, BC)
    d = i_v * BV + tl.arange(0, BV)
    block = (c < C)[:, None] & (d < Dv)[None, :]
    place = c[:, None] * Dv + d[None, :]
    dS = tl.zeros([BC, BV], tl.float32)
    dz = tl.zeros([BC], tl.float32)
    if HAS_dS:
        dS_end += b * stride_Sb + h * stride_Sh
        dS += tl.load(dS_end + c[:, None] * stride_Sc + d[None, :] * stride_Sd, block, 0.0)
    if HAS_dz:
        dz += tl.load(dz_end + b * stride_zb + h * stride_zh + c * stride_zc, c < C, 0.0)
    q += b * stride_qb + h * stride_qh
    out += n * T * Dv
    d_out += b * stride_gb + h * stride_gh
    G = tl.cdiv(T, BT)
    for back in range(G):
        g = G - 1 - back
        if CAUSAL:
            slot = n * G + g
            tl.store(dS_all + slot * C * Dv + place, dS, block)
            if i_v == 0:
                tl.store(dz_all + slot * C + c, dz, c < C)
        t = (g * BT + tl.arange(0, BT)).to(tl.int64)
        here = t < T
        Q = _features(q, stride_qt, stride_qd, t, c, here, C, root, MAP)
        over = _inverse(den_all, n, t, T, NORMALIZE)
        dN = _tile(d_out, stride_gt, stride_gd, t, d, here, Dv) * over[:, None]
        dS = product(tl.trans(Q), dN, dS, DOT)
        if NORMALIZE:
            mine = here & (i_v == 0)  # z has no columns: one program for all of them
            delta = tl.zeros([BT], tl.float32)
            for d_0 in range(0, Dv, BV):
                d_here = (d_0 + tl.arange(0, BV)).to(tl.int64)
                dN = _tile(d_out, stride_gt, stride_gd, t, d_here, mine, Dv) * over[:, None]
                delta -= tl.sum(dN * _tile(out, Dv, 1, t, d_here, mine, Dv), 1)
            dz += tl.sum(Q * delta[:, None], 0)
    if not CAUSAL:  # every query reads the same state
        tl.store(dS_all + n * C * Dv + place, dS, block)
        if i_v == 0:
            tl.store(dz_all + n * C + c, dz, c < C)
    if PAST:
        tl.store(dS_0 + n * C * Dv + place, dS, block)
        if i_v == 0:
            tl.store(dz_0 + n * C + c, dz, c < C)


@triton.jit(do_not_specialize=["T", "S_len"])
def linear_input_gradients(
    q, k, v, mask, out, d_out, den_all, S_all, z_all, dS_all, dz_all, dq, dk, dv,
    stride_qb, stride_qh, stride_qt, stride_qd,
    stride_kb, stride_kh, stride_kt, stride_kd,
    stride_vb, stride_vh, stride_vt, stride_vd,
    stride_mb, stride_ms,
    stride_gb, stride_gh, stride_gt, stride_gd,
    H, T, S_len, root,
    C: tl.constexpr, Dv: tl.constexpr, MAP: tl.constexpr, MASKED: tl.constexpr,
    CAUSAL: tl.constexpr, NORMALIZE: tl.constexpr,
    BT: tl.constexpr, BC: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One chunk of dq, dk and dv: a program makes a block of dq and dk, or a block of dv."""
    blocks_c = tl.cdiv(C, BC)
    G = tl.cdiv(tl.maximum(T, S_len), BT)
    n, g, i = split(tl.program_id(0), G, blocks_c + tl.cdiv(Dv, BV))
    b, h = n // H, n % H
    q += b * stride_qb + h * stride_qh
    k += b * stride_kb + h * stride_kh
    v += b * stride_vb + h * stride_vh
    out += n * T * Dv
    d_out += b * stride_gb + h * stride_gh
    slot = n * G + g if CAUSAL else n
    S_all += slot * C * Dv
    z_all += slot * C
    dS_all += slot * C * Dv
    dz_all += slot * C
    # Rows are queries and keys alike; without order, the one may be more than the other.
    t = g * BT + tl.arange(0, BT)
    here = t < T
    seen = real(mask, stride_mb, stride_ms, b, t, S_len, MASKED)
    past = t[:, None] >= t[None, :]
    over = _inverse(den_all, n, t, T, NORMALIZE)
    if i < blocks_c:
        c = i * BC + tl.arange(0, BC)
        dA = tl.zeros([BT, BT], tl.float32)
        dQ = tl.zeros([BT, BC], tl.float32)
        delta = tl.zeros([BT], tl.float32)
        for d_0 in range(0, Dv, BV):
            d = (d_0 + tl.arange(0, BV)).to(tl.int64)
            dN = _tile(d_out, stride_gt, stride_gd, t, d, here, Dv) * over[:, None]
            if NORMALIZE:
                delta -= tl.sum(dN * _tile(out, Dv, 1, t, d, here, Dv), 1)
            S = _tile(S_all, Dv, 1, c, d, c < C, Dv)
            dQ = product(dN, tl.trans(S), dQ, DOT)
            if CAUSAL:
                V = _tile(v, stride_vt, stride_vd, t, d, seen, Dv)
                dA = product(dN, tl.trans(V), dA, DOT)
        if NORMALIZE:
            dQ += delta[:, None] * tl.load(z_all + c, c < C, 0.0)[None, :]
        K = _features(k, stride_kt, stride_kd, t, c, seen, C, root, MAP)
        if CAUSAL:
            dA = tl.where(past, dA + delta[:, None], 0.0)
            dQ = product(dA, K, dQ, DOT)
        Q = _features(q, stride_qt, stride_qd, t, c, here, C, root, MAP)
        dQ = feature_gradient(Q, dQ, MAP) * root
        store(dq + n * T * C, dQ, t, c, here, C)

        dK = tl.zeros([BT, BC], tl.float32) + tl.load(dz_all + c, c < C, 0.0)[None, :]
        for d_0 in range(0, Dv, BV):
            d = (d_0 + tl.arange(0, BV)).to(tl.int64)
            V = _tile(v, stride_vt, stride_vd, t, d, seen, Dv)
            dS = _tile(dS_all, Dv, 1, c, d, c < C, Dv)
            dK = product(V, tl.trans(dS), dK, DOT)
        if CAUSAL:
            dK = product(tl.trans(dA), Q, dK, DOT)
        dK = tl.where(seen[:, None], feature_gradient(K, dK, MAP) * root, 0.0)
        store(dk + n * S_len * C, dK, t, c, t < S_len, C)
    else:
        d = (i - blocks_c) * BV + tl.arange(0, BV)
        A = tl.zeros([BT, BT], tl.float32)
        dV = tl.zeros([BT, BV], tl.float32)
        for c_0 in range(0, C, BC):
            c = (c_0 + tl.arange(0, BC)).to(tl.int64)
            K = _features(k, stride_kt, stride_kd, t, c, seen, C, root, MAP)
            dS = _tile(dS_all, Dv, 1, c, d, c < C, Dv)
            dV = product(K, dS, dV, DOT)
            if CAUSAL:
                Q = _features(q, stride_qt, stride_qd, t, c, here, C, root, MAP)
                A = product(Q, tl.trans(K), A, DOT)
        if CAUSAL:
            A = tl.where(past, A, 0.0)
            dN = _tile(d_out, stride_gt, stride_gd, t, d, here, Dv) * over[:, None]
            dV = product(tl.trans(A), dN, dV, DOT)
        store(dv + n * S_len * Dv, dV, t, d, t < S_len, Dv)


# Launchers


class Options(NamedTuple):
    """What the kernels are told besides the tensors."""

    feature_map: str
    causal: bool
    normalize: bool
    root: float


#: The largest blocks of features and of columns: smaller where more tiles are held at once.
BLOCKS = {
    "linear_states": (64, 64),
    "linear_outputs": (32, 64),
    "linear_state_gradients": (64, 64),
    "linear_input_gradients": (32, 16),
}
#: Programs that a GPU has room for at least: an A100 has 108 multiprocessors, an H100 132.
PROGRAMS = 128


def sizes(kernel: str, dtype: torch.dtype, C: int, Dv: int, heads: int) -> dict[str, int]:
    """Tokens, features and columns of a tile, and warps: wide heads are split into blocks.

    All tiles are float32 in registers, whatever the inputs are. The three products of
    ``tf32x3`` hold every operand three times, so float32 inputs get tiles of half the side. Only
    heads and blocks of S run side by side where the chunks are walked in order: with few heads
    the blocks are halved until there are :data:`PROGRAMS` of them.
    """
    side = 32 if dtype == torch.float32 else 64
    most_c, most_v = BLOCKS[kernel]
    BC, BV = min(side, most_c, block(C)), min(side, most_v, block(Dv))
    if kernel in ("linear_states", "linear_state_gradients"):
        while max(BC, BV) > 16 and heads * triton.cdiv(C, BC) * triton.cdiv(Dv, BV) < PROGRAMS:
            BC, BV = (BC // 2, BV) if BC > BV else (BC, BV // 2)
    return {"BT": side, "BC": BC, "BV": BV, "num_warps": 4 if BC == BV == 16 else 8}


def _fixed(kernel: str, q: Tensor, v: Tensor, options: Options) -> dict[str, Any]:
    """What the kernel is compiled for, apart from parts that may be left out."""
    (B, H, _, C), Dv = q.shape, v.shape[-1]
    return {
        "C": C,
        "Dv": Dv,
        "MAP": options.feature_map,
        "DOT": precision(q),
        **sizes(kernel, q.dtype, C, Dv, B * H),
        "num_stages": 1,
        **(ALL_REGISTERS if kernel == "linear_states" else {}),
    }


def _blocks_of_S(fixed: dict[str, Any]) -> int:
    return triton.cdiv(fixed["C"], fixed["BC"]) * triton.cdiv(fixed["Dv"], fixed["BV"])


def _states(
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    past: tuple[Tensor | None, ...],
    options: Options,
    *,
    each: bool,
    end: bool,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """S ``[N,G,C,Dv]`` and z ``[N,G,C]`` before each chunk; S, z and t after all; () if not asked.

    ``past``: S, z and t before all, or three None.
    """
    (B, H, S_len, C), Dv = k.shape, v.shape[-1]
    fixed = _fixed("linear_states", k, v, options)
    N, G = B * H, triton.cdiv(S_len, fixed["BT"])

    def numbers(*shape: int) -> Tensor:
        return runtime.empty(shape, like=k, dtype=torch.float32)

    all_ = (numbers(N, G, C, Dv), numbers(N, G, C)) if each else ()
    last: tuple[Tensor, ...] = ()
    if end:
        t = runtime.empty((B,), like=k, dtype=torch.int64)
        last = (numbers(B, H, C, Dv), numbers(B, H, C), t)
        if H == 0:  # no program runs, and t is counted by the first head's
            t.copy_(count(past[2], mask, k))
    runtime.launch(
        linear_states,
        (N * _blocks_of_S(fixed),),
        *(k, v, pointer(mask, k), *(pointer(x, k) for x in past), *(all_ or (k, k))),
        *(last or (k, k, k)),
        *(*k.stride(), *v.stride(), *strides(mask, 2)),
        *(*strides(past[0], 4), *strides(past[1], 3), *strides(past[2], 1)),
        *(H, S_len, options.root),
        MASKED=mask is not None,
        PAST=past[0] is not None,
        EACH=each,
        END=end,
        **fixed,
    )
    return all_, last


class _LinearAttention(torch.autograd.Function):
    """q, k, v, the parts of the past or None, mask or None → out, or (out, S, z, t)."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        S_0: Tensor | None,
        z_0: Tensor | None,
        t_0: Tensor | None,
        mask: Tensor | None,
        options: Options,
        return_state: bool,
    ) -> Tensor | tuple[Tensor, ...]:
        (B, H, T, _), Dv, causal = q.shape, v.shape[-1], options.causal
        past, end = (S_0, z_0, t_0), return_state or not causal
        each, last = _states(k, v, mask, past, options, each=causal, end=end)
        states = each if causal else last[:2]
        out = runtime.empty((B, H, T, Dv), like=q)
        den = runtime.empty((B * H, T), like=q, dtype=torch.float32) if options.normalize else None
        fixed = _fixed("linear_outputs", q, v, options)
        runtime.launch(
            linear_outputs,
            (B * H * triton.cdiv(T, fixed["BT"]) * triton.cdiv(Dv, fixed["BV"]),),
            *(q, k, v, pointer(mask, q), *states, out, pointer(den, q)),
            *(*q.stride(), *k.stride(), *v.stride(), *strides(mask, 2)),
            *(H, T, options.root),
            MASKED=mask is not None,
            CAUSAL=causal,
            NORMALIZE=options.normalize,
            **fixed,
        )
        ctx.set_materialize_grads(False)
        # Without order the one state is the last, and an output; else the states are made again.
        kept = (None, None) if causal else states
        ctx.save_for_backward(q, k, v, S_0, z_0, t_0, mask, out, den, *kept)
        ctx.options = options
        if not return_state:
            return out
        ctx.mark_non_differentiable(last[2])
        return out, *last

    @staticmethod
    @first_order
    def backward(
        ctx: Any,
        d_out: Tensor | None,
        dS: Tensor | None = None,
        dz: Tensor | None = None,
        dt: None = None,
    ) -> tuple[Tensor | None, ...]:
        q, k, v, S_0, z_0, t_0, mask, out, den, *states = ctx.saved_tensors
        options: Options = ctx.options
        (B, H, T, C), (S_len, Dv) = q.shape, v.shape[2:]
        N = B * H
        flags = {"CAUSAL": options.causal, "NORMALIZE": options.normalize}
        if d_out is None:  # only the state has a gradient
            d_out = q.new_zeros(()).expand(B, H, T, Dv)
        if options.causal:
            states, _ = _states(k, v, mask, (S_0, z_0, t_0), options, each=True, end=False)

        fixed = _fixed("linear_state_gradients", q, v, options)
        slots = (N, triton.cdiv(T, fixed["BT"])) if options.causal else (N,)
        dS_all = runtime.empty((*slots, C, Dv), like=q, dtype=torch.float32)
        dz_all = runtime.empty((*slots, C), like=q, dtype=torch.float32)
        dS_0, dz_0 = (None if x is None else runtime.empty(x.shape, like=x) for x in (S_0, z_0))
        runtime.launch(
            linear_state_gradients,
            (N * _blocks_of_S(fixed),),
            *(q, out, d_out, pointer(den, q), pointer(dS, q), pointer(dz, q), dS_all, dz_all),
            *(pointer(dS_0, q), pointer(dz_0, q)),
            *(*q.stride(), *d_out.stride(), *strides(dS, 4), *strides(dz, 3)),
            *(H, T, options.root),
            HAS_dS=dS is not None,
            HAS_dz=dz is not None,
            PAST=S_0 is not None,
            **flags,
            **fixed,
        )

        fixed = _fixed("linear_input_gradients", q, v, options)
        dq, dk, dv = (runtime.empty(x.shape, like=x) for x in (q, k, v))
        blocks = triton.cdiv(C, fixed["BC"]) + triton.cdiv(Dv, fixed["BV"])
        runtime.launch(
            linear_input_gradients,
            (N * triton.cdiv(max(T, S_len), fixed["BT"]) * blocks,),
            *(q, k, v, pointer(mask, q), out, d_out, pointer(den, q), *states, dS_all, dz_all),
            *(dq, dk, dv),
            *(*q.stride(), *k.stride(), *v.stride(), *strides(mask, 2), *d_out.stride()),
            *(H, T, S_len, options.root),
            MASKED=mask is not None,
            **flags,
            **fixed,
        )
        return dq, dk, dv, dS_0, dz_0, None, None, None, None


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    feature_map: str = "elu",
    causal: bool = True,
    normalize: bool = True,
    scale: float = 1.0,
    key_mask: Tensor | None = None,
    initial_state: LinearState | None = None,
    return_state: bool = False,
) -> Any:
    """:func:`course.linear.linear_attention` in two launches, and three for the gradients.

    Shapes, dtypes, options and results are the same; ``feature_map`` is one of :data:`MAPS`.
    The arguments have been checked by the function that calls this one.
    Raises ``RuntimeError`` with the reason where kernels cannot run.
    """
    past = (None, None, None) if initial_state is None else tuple(initial_state)
    runtime.require_runnable(q, k, v, key_mask, *past)
    options = Options(feature_map, causal, normalize, math.sqrt(scale))
    result = _LinearAttention.apply(q, k, v, *past, key_mask, options, return_state)
    return (result[0], LinearState(*result[1:])) if return_state else result
