"""Softmax attention in tiles, forward and backward: the T×S weights are never stored.

A program holds a tile of queries on the chip, walks over the keys tile by tile, and keeps for each
query the largest score m, the sum l = Σ exp(s − m) and the unfinished output Σ exp(s − m) v. When
a later tile has a larger score, what was summed is multiplied by exp(m_old − m_new). What goes to
memory is the output and two numbers a query, m and l; from them the backward pass makes the
weights exp(s − m) / l again instead of reading them. (Their usual sum, m + log l, would lose log l
where all scores of a query are far from 0.)

Source: Dao et al. 2022 (arXiv:2205.14135), algorithms 1 and 4; Dao 2023 (arXiv:2307.08691).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from course.kernels import runtime
from course.kernels.shared import (
    ALL_REGISTERS,
    block,
    first_order,
    pointer,
    product,
    split,
    store,
    strides,
    tile,
)

# Triton functions


@triton.jit
def _products(
    X, stride_xt, stride_xd, t, x_seen, Y, stride_yt, stride_yd, s, y_seen, width,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """x·y for each row of a tile of X and each of a tile of Y, ``CHUNK`` columns at a time.

    Whole rows of both in float32 are more numbers than a program has registers.
    """
    if CHUNK >= BLOCK:
        c = tl.arange(0, BLOCK)
        x = tile(X, stride_xt, stride_xd, t, c, x_seen, width)
        y = tile(Y, stride_yt, stride_yd, s, c, y_seen, width)
        xy = product(x, tl.trans(y), None, DOT)
    else:
        xy = tl.zeros([t.shape[0], s.shape[0]], tl.float32)
        for start in range(0, width, CHUNK):
            c = start + tl.arange(0, CHUNK)
            x = tile(X, stride_xt, stride_xd, t, c, x_seen, width)
            y = tile(Y, stride_yt, stride_yd, s, c, y_seen, width)
            xy = product(x, tl.trans(y), xy, DOT)
    return xy


@triton.jit
def _masked(
    s, t, i, T, S, window, MASK, stride_mt, stride_ms, BIAS, stride_at, stride_as,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """Scores with the bias added and −inf where query t may not look at key i, and who may look.

    ``t`` and ``i`` are indices in the shape of ``s`` up to broadcasting: a column and a row, or
    the reverse.
    """
    inside = (t < T) & (i < S)
    # How many places the key lies before the query; the last query stands at the last key.
    lag = t + (S - T) - i
    visible = inside
    if CAUSAL:
        visible = visible & (lag >= 0)
    if WINDOWED:
        visible = visible & (lag < window)
        if not CAUSAL:
            visible = visible & (-lag < window)
    if MASKED:
        place = t.to(tl.int64) * stride_mt + i.to(tl.int64) * stride_ms
        visible = visible & (tl.load(MASK + place, mask=inside, other=0) != 0)
    if BIASED:
        place = t.to(tl.int64) * stride_at + i.to(tl.int64) * stride_as
        bias = tl.load(BIAS + place, mask=inside, other=0.0).to(tl.float32)
        visible = visible & (bias != float("-inf"))
        s = s + bias
    return tl.where(visible, s, float("-inf")), visible


@triton.jit
def _keys_in_reach(
    first_t, last_t, T, S, window, BLOCK_S: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
):  # fmt: skip
    """Between which keys those lie that the queries ``first_t`` … ``last_t`` may look at."""
    first, last = 0, S
    if CAUSAL:
        last = tl.minimum(S, last_t + (S - T) + 1)
    if WINDOWED:
        first = tl.maximum(0, first_t + (S - T) - window + 1) // BLOCK_S * BLOCK_S
        if not CAUSAL:
            last = tl.minimum(S, last_t + (S - T) + window)
    return first, last


@triton.jit
def _queries_in_reach(
    first_i, last_i, T, S, window, BLOCK_T: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
):  # fmt: skip
    """Between which queries those lie that may look at the keys ``first_i`` … ``last_i``."""
    first, last = 0, T
    if CAUSAL:
        first = tl.maximum(0, first_i - (S - T)) // BLOCK_T * BLOCK_T
    if WINDOWED:
        last = tl.minimum(T, last_i - (S - T) + window)
        if not CAUSAL:
            first = tl.maximum(0, first_i - (S - T) - window + 1) // BLOCK_T * BLOCK_T
    return first, last


@triton.jit
def _largest_and_sum(M, L, t, T):
    """m and 1/l of the queries ``t``, and which of them saw something; the others have m = 0."""
    l = tl.load(L + t.to(tl.int64), mask=t < T, other=0.0)
    saw = l != 0
    m = tl.load(M + t.to(tl.int64), mask=saw, other=0.0)
    return m, 1 / tl.where(saw, l, 1.0), saw


@triton.jit(do_not_specialize=["T", "S", "window"])
def softmax_forward(
    Q, K, V, O, M, L, MASK, BIAS,
    stride_qb, stride_qh, stride_qt, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_mb, stride_mh, stride_mt, stride_ms,
    stride_ab, stride_ah, stride_at, stride_as,
    H, T, S, D, Dv, window, scale,
    BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr,
    CHUNK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head: its output, and m and l of each query (l = 0: blind)."""
    b, h, g = split(tl.program_id(0), H, tl.cdiv(T, BLOCK_T))
    first_t = (g * BLOCK_T).to(tl.int32)
    Q += b * stride_qb + h * stride_qh
    K += b * stride_kb + h * stride_kh
    V += b * stride_vb + h * stride_vh
    MASK += b * stride_mb + h * stride_mh
    BIAS += b * stride_ab + h * stride_ah
    O += (b * H + h) * T * Dv
    M += (b * H + h) * T
    L += (b * H + h) * T

    t = first_t + tl.arange(0, BLOCK_T)
    dv = tl.arange(0, BLOCK_DV)
    m = tl.full([BLOCK_T], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_T], tl.float32)
    o = tl.zeros([BLOCK_T, BLOCK_DV], tl.float32)
    first, last = _keys_in_reach(
        first_t, first_t + BLOCK_T - 1, T, S, window, BLOCK_S, CAUSAL, WINDOWED
    )
    for start in range(first, last, BLOCK_S):
        i = start + tl.arange(0, BLOCK_S)
        s = _products(
            Q, stride_qt, stride_qd, t, t < T, K, stride_ks, stride_kd, i, i < S, D,
            BLOCK_D, CHUNK, DOT,
        )  # fmt: skip
        s, visible = _masked(
            s * scale, t[:, None], i[None, :], T, S, window, MASK, stride_mt, stride_ms,
            BIAS, stride_at, stride_as, CAUSAL, WINDOWED, MASKED, BIASED,
        )  # fmt: skip
        m_new = tl.maximum(m, tl.max(s, 1))
        # A query that has seen nothing yet has m = −inf, and −inf − (−inf) would be NaN.
        base = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp(s - base[:, None])
        rescale = tl.exp(m - base)
        l = l * rescale + tl.sum(p, 1)
        # A value that nothing here looks at must not matter, and 0 · NaN would be NaN.
        v = tile(V, stride_vs, stride_vd, i, dv, i < S, Dv)
        v = tl.where((tl.max(visible.to(tl.int32), 0) > 0)[:, None], v, 0.0)
        o = product(p.to(v.dtype), v, o * rescale[:, None], DOT)
        m = m_new

    store(O, o / tl.where(l == 0, 1.0, l)[:, None], t, dv, t < T, Dv)
    tl.store(M + t.to(tl.int64), m, mask=t < T)
    tl.store(L + t.to(tl.int64), l, mask=t < T)


@triton.jit(do_not_specialize=["T", "S", "window"])
def softmax_backward_q(
    Q, K, V, O, M, L, DO, DELTA, DQ, DBIAS, MASK, BIAS,
    stride_qb, stride_qh, stride_qt, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_mb, stride_mh, stride_mt, stride_ms,
    stride_ab, stride_ah, stride_at, stride_as, stride_gb, stride_gh, stride_gt, stride_gd,
    H, T, S, D, Dv, window, scale,
    BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr,
    KEEP_DS: tl.constexpr, CHUNK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One tile of queries: dq, and δ = Σ do·o, which stands for Σ p·dp in the softmax's gradient.

    dp = do vᵀ      ds = p (dp − δ)      dq = scale · ds k      dbias = ds
    """
    b, h, g = split(tl.program_id(0), H, tl.cdiv(T, BLOCK_T))
    n, first_t = b * H + h, (g * BLOCK_T).to(tl.int32)
    Q += b * stride_qb + h * stride_qh
    K += b * stride_kb + h * stride_kh
    V += b * stride_vb + h * stride_vh
    DO += b * stride_gb + h * stride_gh
    MASK += b * stride_mb + h * stride_mh
    BIAS += b * stride_ab + h * stride_ah

    t = first_t + tl.arange(0, BLOCK_T)
    d, dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    m, over_l, saw = _largest_and_sum(M + n * T, L + n * T, t, T)
    o = tile(O + n * T * Dv, Dv, 1, t, dv, t < T, Dv)
    do = tile(DO, stride_gt, stride_gd, t, dv, saw, Dv)
    delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(DELTA + n * T + t.to(tl.int64), delta, mask=t < T)

    dq = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    first, last = _keys_in_reach(
        first_t, first_t + BLOCK_T - 1, T, S, window, BLOCK_S, CAUSAL, WINDOWED
    )
    for start in range(first, last, BLOCK_S):
        i = start + tl.arange(0, BLOCK_S)
        s = _products(
            Q, stride_qt, stride_qd, t, saw, K, stride_ks, stride_kd, i, i < S, D,
            BLOCK_D, CHUNK, DOT,
        )  # fmt: skip
        s, visible = _masked(
            s * scale, t[:, None], i[None, :], T, S, window, MASK, stride_mt, stride_ms,
            BIAS, stride_at, stride_as, CAUSAL, WINDOWED, MASKED, BIASED,
        )  # fmt: skip
        p = tl.exp(s - m[:, None]) * over_l[:, None]
        dp = _products(
            DO, stride_gt, stride_gd, t, saw, V, stride_vs, stride_vd, i, i < S, Dv,
            BLOCK_DV, CHUNK, DOT,
        )  # fmt: skip
        ds = tl.where(visible, p * (dp - delta[:, None]), 0.0)
        if KEEP_DS:
            store(DBIAS + n * T * S, ds, t, i, t < T, S)
        k = tile(K, stride_ks, stride_kd, i, d, i < S, D)
        k = tl.where((tl.max(visible.to(tl.int32), 0) > 0)[:, None], k, 0.0)
        dq = product(ds.to(k.dtype), k, dq, DOT)
    store(DQ + n * T * D, dq * scale, t, d, t < T, D)


@triton.jit(do_not_specialize=["T", "S", "window"])
def softmax_backward_kv(
    Q, K, V, M, L, DO, DELTA, DK, DV, MASK, BIAS,
    stride_qb, stride_qh, stride_qt, stride_qd, stride_kb, stride_kh, stride_ks, stride_kd,
    stride_vb, stride_vh, stride_vs, stride_vd, stride_mb, stride_mh, stride_mt, stride_ms,
    stride_ab, stride_ah, stride_at, stride_as, stride_gb, stride_gh, stride_gt, stride_gd,
    H, T, S, D, Dv, window, scale,
    BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr,
    CHUNK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One tile of keys: dk = scale · dsᵀ q and dv = pᵀ do, summed over the queries that look.

    Scores are made transposed, keys down and queries across, so that no product needs pᵀ.
    """
    b, h, g = split(tl.program_id(0), H, tl.cdiv(S, BLOCK_S))
    n, first_i = b * H + h, (g * BLOCK_S).to(tl.int32)
    Q += b * stride_qb + h * stride_qh
    K += b * stride_kb + h * stride_kh
    V += b * stride_vb + h * stride_vh
    DO += b * stride_gb + h * stride_gh
    MASK += b * stride_mb + h * stride_mh
    BIAS += b * stride_ab + h * stride_ah

    i = first_i + tl.arange(0, BLOCK_S)
    d, dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    dk_tile = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
    dv_tile = tl.zeros([BLOCK_S, BLOCK_DV], tl.float32)
    first, last = _queries_in_reach(
        first_i, first_i + BLOCK_S - 1, T, S, window, BLOCK_T, CAUSAL, WINDOWED
    )
    for start in range(first, last, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        m, over_l, saw = _largest_and_sum(M + n * T, L + n * T, t, T)
        delta = tl.load(DELTA + n * T + t.to(tl.int64), mask=t < T, other=0.0)
        s = _products(
            K, stride_ks, stride_kd, i, i < S, Q, stride_qt, stride_qd, t, saw, D,
            BLOCK_D, CHUNK, DOT,
        )  # fmt: skip
        s, visible = _masked(
            s * scale, t[None, :], i[:, None], T, S, window, MASK, stride_mt, stride_ms,
            BIAS, stride_at, stride_as, CAUSAL, WINDOWED, MASKED, BIASED,
        )  # fmt: skip
        p = tl.exp(s - m[None, :]) * over_l[None, :]
        do = tile(DO, stride_gt, stride_gd, t, dv, saw, Dv)
        dv_tile = product(p.to(do.dtype), do, dv_tile, DOT)
        dp = _products(
            V, stride_vs, stride_vd, i, i < S, DO, stride_gt, stride_gd, t, saw, Dv,
            BLOCK_DV, CHUNK, DOT,
        )  # fmt: skip
        ds = tl.where(visible, p * (dp - delta[None, :]), 0.0)
        q = tile(Q, stride_qt, stride_qd, t, d, saw, D)
        dk_tile = product(ds.to(q.dtype), q, dk_tile, DOT)
    store(DK + n * S * D, dk_tile * scale, i, d, i < S, D)
    store(DV + n * S * Dv, dv_tile, i, dv, i < S, Dv)


# Launchers


class Options(NamedTuple):
    """What the kernels are told besides the tensors."""

    causal: bool
    window: int | None
    scale: float


class Blocks(NamedTuple):
    """Sizes of the tiles and how the compiler works on one.

    A program holds a tile of ``held`` rows and walks over the others ``walked`` rows at a time
    (queries and keys; for dk and dv, keys and queries). ``chunk``: columns of a product at a time;
    ``warps`` of 32 threads; ``stages`` of loads under way.
    """

    held: int
    walked: int
    chunk: int
    warps: int
    stages: int


def blocks(dtype: torch.dtype, width: int, *, backward: bool, masked: bool) -> Blocks:
    """The tiles for rows of ``width`` numbers, the larger of D and Dv.

    Registers are what there is too little of; the factors are those with which none is spilled. A
    float32 is twice as wide as a half, and tensor cores get it in two parts, each as wide. The
    backward pass has twice as many tiles. A mask or a bias (``masked``) needs an address of 8 bytes
    for each score.
    """
    half, wide = dtype.itemsize == 2, block(width)
    load = wide * (1 if half else 8) * (4 if backward else 1) * (16 if masked else 1)
    # Fewer rows of the shortest kind leave no more registers free, but where there is most to hold.
    short = wide == 16 and not half and not (masked and backward)
    load = min(load, 512) if short else load
    held, walked = (64, 32) if load <= 128 else (32, 32) if load <= 512 else (32, 16)
    chunk = 256 // dtype.itemsize
    if backward:
        chunk = 32 if half and not (masked and wide > 64) else 16
    warps = 4 if half or (short and not masked) else 8
    return Blocks(held, walked, chunk, warps, stages=2 if half else 1)


def _launch(
    kernel: Any,
    tensors: tuple[Tensor, ...],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    options: Options,
    *more_strides: int,
    backward: bool = False,
    keys_held: bool = False,
    **more: Any,
) -> None:
    """Launch ``kernel`` on ``tensors``, mask and bias, with what all three kernels are told."""
    (B, H, T, D), (S, Dv) = q.shape, v.shape[2:]
    window = T + S if options.window is None else min(options.window, T + S)
    size = blocks(
        q.dtype,
        max(D, Dv),
        backward=backward,
        masked=mask is not None or bias is not None,
    )
    runtime.launch(
        kernel,
        (B * H * triton.cdiv(S if keys_held else T, size.held),),
        *(*tensors, pointer(mask, q), pointer(bias, q)),
        *(*q.stride(), *k.stride(), *v.stride(), *strides(mask, 4), *strides(bias, 4)),
        *more_strides,
        *(H, T, S, D, Dv, window, options.scale),
        BLOCK_T=size.walked if keys_held else size.held,
        BLOCK_S=size.held if keys_held else size.walked,
        BLOCK_D=block(D),
        BLOCK_DV=block(Dv),
        CAUSAL=options.causal,
        WINDOWED=options.window is not None,
        MASKED=mask is not None,
        BIASED=bias is not None,
        CHUNK=size.chunk,
        DOT=runtime.DOT,
        num_warps=size.warps,
        num_stages=size.stages,
        **ALL_REGISTERS,
        **more,
    )


class _SoftmaxAttention(torch.autograd.Function):
    """What is kept for the backward pass: the inputs, the output, and m and l."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        options: Options,
    ) -> Tensor:
        (B, H, T, _), (S, Dv) = q.shape, v.shape[2:]
        ctx.options, ctx.bias_shape = options, None if bias is None else bias.shape
        # Stride 0 where they are broadcast: nothing is copied.
        mask = None if mask is None else mask.expand(B, H, T, S)
        bias = None if bias is None else bias.expand(B, H, T, S)
        o = runtime.empty((B, H, T, Dv), like=q)
        m, l = (runtime.empty((B, H, T), like=q, dtype=torch.float32) for _ in range(2))
        _launch(softmax_forward, (q, k, v, o, m, l), q, k, v, mask, bias, options)
        ctx.save_for_backward(q, k, v, mask, bias, o, m, l)
        return o

    @staticmethod
    @first_order
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, bias, o, m, l = ctx.saved_tensors
        dq, dk, dv = (runtime.empty(x.shape, like=x) for x in (q, k, v))
        delta = runtime.empty(l.shape, like=l)
        dbias = ds = None
        if ctx.needs_input_grad[4]:
            # The kernel passes over tiles that nothing in them may look at: zeros, not any memory.
            ds = q.new_zeros((*q.shape[:3], k.shape[2]), dtype=torch.float32)
        given = (q, k, v, mask, bias, ctx.options, *do.stride())
        for_q = (q, k, v, o, m, l, do, delta, dq, pointer(ds, l))
        for_kv = (q, k, v, m, l, do, delta, dk, dv)
        _launch(softmax_backward_q, for_q, *given, backward=True, KEEP_DS=ds is not None)
        _launch(softmax_backward_kv, for_kv, *given, backward=True, keys_held=True)
        if ds is not None:
            dbias = ds.sum_to_size(ctx.bias_shape).to(bias.dtype)
        return dq, dk, dv, None, dbias, None


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    bias: Tensor | None = None,
    scale: float,
) -> Tensor:
    """``course.attention.softmax_attention`` for ``impl="triton"``, which checks what comes in.

    ``q [B,H,T,D]``, ``k [B,H,S,D]``, ``v [B,H,S,Dv]`` → ``[B,H,T,Dv]``; one launch, two in the
    backward pass. Memory grows with T + S, but a ``bias`` that wants a gradient costs T·S float32
    numbers a head in the backward pass, whatever its own shape. First derivatives only.
    """
    options = Options(causal, None if window is None else int(window), float(scale))
    return _SoftmaxAttention.apply(q, k, v, mask, bias, options)
