"""Softmax attention in tiles, forward and backward: the T×S weights are never stored.

A program holds a tile of queries on the chip, walks over the keys tile by tile, and keeps for each
query the largest score m, the sum l = Σ exp(s − m) and the unfinished output Σ exp(s − m) v. When
a later tile has a larger score, what was summed is multiplied by exp(m_old − m_new). What goes to
memory is the output and one number a query, L = m + log l; from it the backward pass makes the
weights exp(s − L) again instead of reading them.

Scores are kept in units of log₂ e, because a GPU has an instruction for 2ˣ and none for eˣ.
Source: Dao et al. 2022 (arXiv:2205.14135), algorithms 1 and 4; Dao 2023 (arXiv:2307.08691).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from course.kernels import runtime
from course.kernels.aot import Case

LOG2_E = tl.constexpr(math.log2(math.e))


# Triton functions. Offsets into memory are int64: a tensor may have more than 2³¹ elements.


@triton.jit
def _load(X, rows, columns, stride_row, stride_column, real, width):
    """The tile ``X[rows, columns]``; 0 in rows that are not ``real`` and beyond ``width``."""
    place = rows.to(tl.int64)[:, None] * stride_row + columns.to(tl.int64)[None, :] * stride_column
    return tl.load(X + place, mask=real[:, None] & (columns < width)[None, :], other=0.0)


@triton.jit
def _store(X, tile, rows, columns, stride_row, stride_column, real, width):
    """Write ``tile`` to ``X[rows, columns]``, in ``real`` rows up to ``width``."""
    place = rows.to(tl.int64)[:, None] * stride_row + columns.to(tl.int64)[None, :] * stride_column
    inside = real[:, None] & (columns < width)[None, :]
    tl.store(X + place, tile.to(X.dtype.element_ty), mask=inside)


@triton.jit
def _products(
    X, x_rows, x_real, x_row, x_column, Y, y_rows, y_real, y_row, y_column, width,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """x·y for each row of a tile of X and each of a tile of Y, ``CHUNK`` columns at a time.

    Whole rows of both in float32 are more numbers than a program has registers.
    """
    if CHUNK >= BLOCK:
        c = tl.arange(0, BLOCK)
        x = _load(X, x_rows, c, x_row, x_column, x_real, width)
        y = _load(Y, y_rows, c, y_row, y_column, y_real, width)
        xy = tl.dot(x, tl.trans(y), input_precision=DOT)
    else:
        xy = tl.zeros([x_rows.shape[0], y_rows.shape[0]], tl.float32)
        for start in range(0, width, CHUNK):
            c = start + tl.arange(0, CHUNK)
            x = _load(X, x_rows, c, x_row, x_column, x_real, width)
            y = _load(Y, y_rows, c, y_row, y_column, y_real, width)
            xy = tl.dot(x, tl.trans(y), xy, input_precision=DOT)
    return xy


@triton.jit
def _masked(
    s, t, i, T, S, window, MASK, mask_t, mask_s, BIAS, bias_t, bias_s,
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
        place = t.to(tl.int64) * mask_t + i.to(tl.int64) * mask_s
        visible = visible & (tl.load(MASK + place, mask=inside, other=0) != 0)
    if BIASED:
        place = t.to(tl.int64) * bias_t + i.to(tl.int64) * bias_s
        bias = tl.load(BIAS + place, mask=inside, other=0.0).to(tl.float32)
        visible = visible & (bias != float("-inf"))
        s = s + bias * LOG2_E
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


@triton.jit(do_not_specialize=["T", "S", "window"])
def softmax_forward(
    Q, K, V, O, L, MASK, BIAS, scale, H, T, S, D, Dv, window,
    q_b, q_h, q_t, q_d, k_b, k_h, k_s, k_d, v_b, v_h, v_s, v_d, o_b, o_h, o_t, o_d,
    mask_b, mask_h, mask_t, mask_s, bias_b, bias_h, bias_t, bias_s,
    BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr,
    CHUNK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head: its output, and L of each query (+inf: it saw nothing)."""
    # Heads and tiles lie on the one axis of the grid that may be longer than 65,535.
    tiles = tl.cdiv(T, BLOCK_T)
    n, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    b, h = (n // H).to(tl.int64), (n % H).to(tl.int64)
    Q += b * q_b + h * q_h
    K += b * k_b + h * k_h
    V += b * v_b + h * v_h
    O += b * o_b + h * o_h
    MASK += b * mask_b + h * mask_h
    BIAS += b * bias_b + h * bias_h

    t = tile * BLOCK_T + tl.arange(0, BLOCK_T)
    dv = tl.arange(0, BLOCK_DV)
    m = tl.full([BLOCK_T], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_T], tl.float32)
    o = tl.zeros([BLOCK_T, BLOCK_DV], tl.float32)
    first, last = _keys_in_reach(
        tile * BLOCK_T, tile * BLOCK_T + BLOCK_T - 1, T, S, window, BLOCK_S, CAUSAL, WINDOWED
    )
    for start in range(first, last, BLOCK_S):
        i = start + tl.arange(0, BLOCK_S)
        s = _products(Q, t, t < T, q_t, q_d, K, i, i < S, k_s, k_d, D, BLOCK_D, CHUNK, DOT)
        s, visible = _masked(
            s * (scale * LOG2_E), t[:, None], i[None, :], T, S, window,
            MASK, mask_t, mask_s, BIAS, bias_t, bias_s, CAUSAL, WINDOWED, MASKED, BIASED,
        )  # fmt: skip
        m_new = tl.maximum(m, tl.max(s, 1))
        # A query that has seen nothing yet has m = −inf, and −inf − (−inf) would be NaN.
        base = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(s - base[:, None])
        rescale = tl.exp2(m - base)
        l = l * rescale + tl.sum(p, 1)
        # A value that nothing here looks at must not matter, and 0 · NaN would be NaN.
        v = _load(V, i, dv, v_s, v_d, i < S, Dv)
        v = tl.where((tl.max(visible.to(tl.int32), 0) > 0)[:, None], v, 0.0)
        o = o * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision=DOT)
        m = m_new

    saw_nothing = l == 0
    l = tl.where(saw_nothing, 1.0, l)
    _store(O, o / l[:, None], t, dv, o_t, o_d, t < T, Dv)
    L += n.to(tl.int64) * T
    tl.store(L + t.to(tl.int64), tl.where(saw_nothing, float("inf"), m + tl.log2(l)), mask=t < T)


@triton.jit(do_not_specialize=["T", "S", "window"])
def softmax_backward_q(
    Q, K, V, O, L, DO, DELTA, DQ, DBIAS, MASK, BIAS, scale, H, T, S, D, Dv, window,
    q_b, q_h, q_t, q_d, k_b, k_h, k_s, k_d, v_b, v_h, v_s, v_d, o_b, o_h, o_t, o_d,
    do_b, do_h, do_t, do_d, dq_b, dq_h, dq_t, dq_d,
    mask_b, mask_h, mask_t, mask_s, bias_b, bias_h, bias_t, bias_s,
    BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr,
    KEEP_DS: tl.constexpr, CHUNK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One tile of queries: dq, and δ = Σ do·o, which stands for Σ p·dp in the softmax's gradient.

    dp = do vᵀ      ds = p (dp − δ)      dq = scale · ds k      dbias = ds
    """
    tiles = tl.cdiv(T, BLOCK_T)
    n, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    b, h = (n // H).to(tl.int64), (n % H).to(tl.int64)
    Q += b * q_b + h * q_h
    K += b * k_b + h * k_h
    V += b * v_b + h * v_h
    O += b * o_b + h * o_h
    DO += b * do_b + h * do_h
    DQ += b * dq_b + h * dq_h
    MASK += b * mask_b + h * mask_h
    BIAS += b * bias_b + h * bias_h
    L += n.to(tl.int64) * T
    DELTA += n.to(tl.int64) * T

    t = tile * BLOCK_T + tl.arange(0, BLOCK_T)
    d, dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    log_l = tl.load(L + t.to(tl.int64), mask=t < T, other=float("inf"))
    saw = log_l != float("inf")
    o = _load(O, t, dv, o_t, o_d, t < T, Dv)
    do = _load(DO, t, dv, do_t, do_d, saw, Dv)
    delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(DELTA + t.to(tl.int64), delta, mask=t < T)

    dq = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    first, last = _keys_in_reach(
        tile * BLOCK_T, tile * BLOCK_T + BLOCK_T - 1, T, S, window, BLOCK_S, CAUSAL, WINDOWED
    )
    for start in range(first, last, BLOCK_S):
        i = start + tl.arange(0, BLOCK_S)
        s = _products(Q, t, saw, q_t, q_d, K, i, i < S, k_s, k_d, D, BLOCK_D, CHUNK, DOT)
        s, visible = _masked(
            s * (scale * LOG2_E), t[:, None], i[None, :], T, S, window,
            MASK, mask_t, mask_s, BIAS, bias_t, bias_s, CAUSAL, WINDOWED, MASKED, BIASED,
        )  # fmt: skip
        p = tl.exp2(s - log_l[:, None])
        dp = _products(DO, t, saw, do_t, do_d, V, i, i < S, v_s, v_d, Dv, BLOCK_DV, CHUNK, DOT)
        ds = tl.where(visible, p * (dp - delta[:, None]), 0.0)
        if KEEP_DS:
            at = (n.to(tl.int64) * T + t.to(tl.int64))[:, None] * S + i.to(tl.int64)[None, :]
            tl.store(DBIAS + at, ds, mask=(t < T)[:, None] & (i < S)[None, :])
        k = _load(K, i, d, k_s, k_d, i < S, D)
        k = tl.where((tl.max(visible.to(tl.int32), 0) > 0)[:, None], k, 0.0)
        dq += tl.dot(ds.to(k.dtype), k, input_precision=DOT)
    _store(DQ, dq * scale, t, d, dq_t, dq_d, t < T, D)


@triton.jit(do_not_specialize=["T", "S", "window"])
def softmax_backward_kv(
    Q, K, V, L, DO, DELTA, DK, DV, MASK, BIAS, scale, H, T, S, D, Dv, window,
    q_b, q_h, q_t, q_d, k_b, k_h, k_s, k_d, v_b, v_h, v_s, v_d, do_b, do_h, do_t, do_d,
    dk_b, dk_h, dk_s, dk_d, dv_b, dv_h, dv_s, dv_d,
    mask_b, mask_h, mask_t, mask_s, bias_b, bias_h, bias_t, bias_s,
    BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr, BIASED: tl.constexpr,
    CHUNK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One tile of keys: dk = scale · dsᵀ q and dv = pᵀ do, summed over the queries that look.

    Scores are made transposed, keys down and queries across, so that no product needs pᵀ.
    """
    tiles = tl.cdiv(S, BLOCK_S)
    n, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    b, h = (n // H).to(tl.int64), (n % H).to(tl.int64)
    Q += b * q_b + h * q_h
    K += b * k_b + h * k_h
    V += b * v_b + h * v_h
    DO += b * do_b + h * do_h
    DK += b * dk_b + h * dk_h
    DV += b * dv_b + h * dv_h
    MASK += b * mask_b + h * mask_h
    BIAS += b * bias_b + h * bias_h
    L += n.to(tl.int64) * T
    DELTA += n.to(tl.int64) * T

    i = tile * BLOCK_S + tl.arange(0, BLOCK_S)
    d, dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    dk_tile = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
    dv_tile = tl.zeros([BLOCK_S, BLOCK_DV], tl.float32)
    first, last = _queries_in_reach(
        tile * BLOCK_S, tile * BLOCK_S + BLOCK_S - 1, T, S, window, BLOCK_T, CAUSAL, WINDOWED
    )
    for start in range(first, last, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        log_l = tl.load(L + t.to(tl.int64), mask=t < T, other=float("inf"))
        delta = tl.load(DELTA + t.to(tl.int64), mask=t < T, other=0.0)
        saw = log_l != float("inf")
        s = _products(K, i, i < S, k_s, k_d, Q, t, saw, q_t, q_d, D, BLOCK_D, CHUNK, DOT)
        s, visible = _masked(
            s * (scale * LOG2_E), t[None, :], i[:, None], T, S, window,
            MASK, mask_t, mask_s, BIAS, bias_t, bias_s, CAUSAL, WINDOWED, MASKED, BIASED,
        )  # fmt: skip
        p = tl.exp2(s - log_l[None, :])
        do = _load(DO, t, dv, do_t, do_d, saw, Dv)
        dv_tile += tl.dot(p.to(do.dtype), do, input_precision=DOT)
        dp = _products(V, i, i < S, v_s, v_d, DO, t, saw, do_t, do_d, Dv, BLOCK_DV, CHUNK, DOT)
        ds = tl.where(visible, p * (dp - delta[None, :]), 0.0)
        q = _load(Q, t, d, q_t, q_d, saw, D)
        dk_tile += tl.dot(ds.to(q.dtype), q, input_precision=DOT)
    _store(DK, dk_tile * scale, i, d, dk_s, dk_d, i < S, D)
    _store(DV, dv_tile, i, dv, dv_s, dv_d, i < S, Dv)


# Launchers


class Blocks(NamedTuple):
    """Sizes of the tiles and how the compiler works on one: what a launch and a compilation share.

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
    half, wide = dtype.itemsize == 2, runtime.block(width)
    load = wide * (1 if half else 8) * (4 if backward else 1) * (16 if masked else 1)
    short = wide == 16 and not half  # here fewer rows leave no more registers free
    load = min(load, 512) if short else load
    held, walked = (64, 32) if load <= 128 else (32, 32) if load <= 512 else (32, 16)
    chunk = 256 // dtype.itemsize
    if backward:
        chunk = 32 if half and not (masked and wide > 64) else 16
    warps = 4 if half or (short and not masked) else 8
    return Blocks(held, walked, chunk, warps, stages=2 if half else 1)


class _Options(NamedTuple):
    """What stays the same from the forward to the backward pass."""

    causal: bool
    window: int | None
    scale: float


def _common(
    size: Blocks,
    q: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    options: _Options,
) -> tuple[list[Any], list[int], dict[str, Any]]:
    """What every kernel gets: numbers, strides of mask and bias, and compile-time arguments."""
    (_, H, T, D), (S, Dv) = q.shape, v.shape[2:]
    window = T + S if options.window is None else min(options.window, T + S)
    numbers = [options.scale, H, T, S, D, Dv, window]
    strides = [
        stride for x in (mask, bias) for stride in ((0, 0, 0, 0) if x is None else x.stride())
    ]
    constants = _constants(
        size,
        D,
        Dv,
        causal=options.causal,
        windowed=options.window is not None,
        masked=mask is not None,
        biased=bias is not None,
    )
    return numbers, strides, constants | dict(num_warps=size.warps, num_stages=size.stages)


def _constants(
    size: Blocks, D: int, Dv: int, *, causal: bool, windowed: bool, masked: bool, biased: bool
) -> dict[str, Any]:
    """The compile-time arguments that all kernels have, but for the names of the tiles' sizes."""
    return dict(
        BLOCK_D=runtime.block(D),
        BLOCK_DV=runtime.block(Dv),
        CAUSAL=causal,
        WINDOWED=windowed,
        MASKED=masked,
        BIASED=biased,
        CHUNK=size.chunk,
        DOT=runtime.DOT,
    )


def _size(
    q: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, *, backward: bool
) -> Blocks:
    masked = mask is not None or bias is not None
    return blocks(q.dtype, max(q.shape[-1], v.shape[-1]), backward=backward, masked=masked)


def _queries_held(size: Blocks) -> dict[str, int]:
    return dict(BLOCK_T=size.held, BLOCK_S=size.walked)


def _keys_held(size: Blocks) -> dict[str, int]:
    return dict(BLOCK_S=size.held, BLOCK_T=size.walked)


def _programs(heads: int, length: int, rows: int) -> tuple[int]:
    return (heads * -(-length // rows),)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, options: _Options
) -> tuple[Tensor, Tensor]:
    (B, H, T, _), Dv = q.shape, v.shape[-1]
    o = runtime.empty((B, H, T, Dv), like=q)
    L = runtime.empty((B, H, T), like=q, dtype=torch.float32)
    size = _size(q, v, mask, bias, backward=False)
    numbers, strides, meta = _common(size, q, v, mask, bias, options)
    runtime.launch(
        softmax_forward,
        _programs(B * H, T, size.held),
        *(q, k, v, o, L, q if mask is None else mask, q if bias is None else bias),
        *numbers,
        *(stride for x in (q, k, v, o) for stride in x.stride()),
        *strides,
        **_queries_held(size),
        **meta,
    )
    return o, L


def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    L: Tensor,
    do: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    options: _Options,
    *,
    keep_ds: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    (B, H, T, _), S = q.shape, v.shape[2]
    dq, dk, dv = (runtime.empty(x.shape, like=x) for x in (q, k, v))
    delta = runtime.empty(L.shape, like=L)
    # The kernel passes over tiles that nothing in them may look at: zeros, not just any memory.
    ds = torch.zeros(B, H, T, S, dtype=torch.float32, device=q.device) if keep_ds else None
    size = _size(q, v, mask, bias, backward=True)
    numbers, strides, meta = _common(size, q, v, mask, bias, options)
    visibility = (q if mask is None else mask, q if bias is None else bias)
    runtime.launch(
        softmax_backward_q,
        _programs(B * H, T, size.held),
        *(q, k, v, o, L, do, delta, dq, L if ds is None else ds, *visibility),
        *numbers,
        *(stride for x in (q, k, v, o, do, dq) for stride in x.stride()),
        *strides,
        KEEP_DS=keep_ds,
        **_queries_held(size),
        **meta,
    )
    runtime.launch(
        softmax_backward_kv,
        _programs(B * H, S, size.held),
        *(q, k, v, L, do, delta, dk, dv, *visibility),
        *numbers,
        *(stride for x in (q, k, v, do, dk, dv) for stride in x.stride()),
        *strides,
        **_keys_held(size),
        **meta,
    )
    return dq, dk, dv, ds


class _SoftmaxAttention(torch.autograd.Function):
    """What is kept for the backward pass: the inputs, the output, and L."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        options: _Options,
    ) -> Tensor:
        shape = (*q.shape[:3], k.shape[2])
        # Stride 0 where they are broadcast: nothing is copied. A boolean is a byte in memory.
        mask = None if mask is None else mask.expand(shape).view(torch.uint8)
        ctx.bias_shape = None if bias is None else bias.shape
        bias = None if bias is None else bias.expand(shape)
        o, L = _forward(q, k, v, mask, bias, options)
        ctx.save_for_backward(q, k, v, mask, bias, o, L)
        ctx.options = options
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, bias, o, L = ctx.saved_tensors
        keep_ds = ctx.needs_input_grad[4]
        dq, dk, dv, ds = _backward(q, k, v, o, L, do, mask, bias, ctx.options, keep_ds=keep_ds)
        dbias = None if ds is None else ds.sum_to_size(ctx.bias_shape).to(bias.dtype)
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
    return _SoftmaxAttention.apply(q, k, v, mask, bias, _Options(causal, window, float(scale)))


def cases(dtype: str, width: int) -> list[Case]:
    """Each kernel at D = Dv = ``width``: as a causal layer uses it, and with all that it can do."""
    found = []
    for kernel in (softmax_forward, softmax_backward_q, softmax_backward_kv):
        backward = kernel is not softmax_forward
        for full in (False, True):
            size = blocks(runtime.DTYPES[dtype], width, backward=backward, masked=full)
            constants = _constants(
                size, width, width, causal=not full, windowed=full, masked=full, biased=full
            )
            constants |= (_keys_held if kernel is softmax_backward_kv else _queries_held)(size)
            if kernel is softmax_backward_q:
                constants["KEEP_DS"] = full
            pointers = {"L": "*fp32", "DELTA": "*fp32", "DBIAS": "*fp32"}
            if full:
                pointers |= {"MASK": "*u8", "BIAS": "*fp32"}
            signature, values = {}, {"H": 12, "D": width, "Dv": width}
            for name in kernel.arg_names:
                if name in constants:
                    continue
                if name == "scale":
                    signature[name] = "fp32"
                elif name in ("H", "T", "S", "D", "Dv", "window"):
                    signature[name] = "i32"
                elif name.isupper():
                    signature[name] = pointers.get(name, f"*{dtype}")
                else:
                    signature[name] = "i32"
                    values[name] = _stride(name, width, full)
            name = kernel.__name__ + (" with mask, bias and window" if full else ", causal")
            found.append(
                Case(name, kernel, signature, constants, size.warps, size.stages, values=values)
            )
    return found


def _stride(name: str, width: int, full: bool) -> int:
    """The stride ``name`` of contiguous tensors with 1,024 tokens and 12 heads."""
    of, axis = name.split("_")
    if of in ("mask", "bias"):
        row = 1024
        if not full:
            return 0
    else:
        row = width
    return {"b": 12 * 1024 * row, "h": 1024 * row, "t": row, "s": row, "d": 1}[axis]
