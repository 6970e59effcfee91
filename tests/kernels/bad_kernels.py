"""Kernels with one fault each, which ``course kernels compile`` must not let through.

A module of this shape (``cases(dtype, width)``) is what the compiling child processes import. Each
case is named after its fault; ``good`` has none.
"""

from __future__ import annotations

import os
import time

import triton
import triton.language as tl

from course.kernels.aot import Case


@triton.jit
def copy(X, Y, n, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + place, tl.load(X + place, mask=place < n, other=0.0), mask=place < n)


@triton.jit
def narrow_offset(X, Y, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + place, tl.load(X + place, mask=place < n, other=0.0), mask=place < n)


@triton.jit
def widened_too_late(X, Y, n, stride, BLOCK: tl.constexpr):
    first = (tl.program_id(0) * stride).to(tl.int64)
    place = first + tl.arange(0, BLOCK)
    tl.store(Y + place, tl.load(X + place, mask=place < n, other=0.0), mask=place < n)


@triton.jit
def too_many_registers(X, Y, BLOCK: tl.constexpr):
    # All of x is needed again once its sum is known.
    place = tl.arange(0, BLOCK).to(tl.int64)
    x = tl.load(X + place)
    tl.store(Y + place, x - tl.sum(x, 0))


@triton.jit
def product(X, Y, Z, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, HOW: tl.constexpr):
    m, k, n = (
        tl.arange(0, M).to(tl.int64),
        tl.arange(0, K).to(tl.int64),
        tl.arange(0, N).to(tl.int64),
    )
    x = tl.load(X + m[:, None] * K + k[None, :])
    y = tl.load(Y + k[:, None] * N + n[None, :])
    z = tl.dot(x, y, input_precision=HOW)
    tl.store(Z + m[:, None] * N + n[None, :], z)


@triton.jit
def default_product(X, Y, Z, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    m, k, n = (
        tl.arange(0, M).to(tl.int64),
        tl.arange(0, K).to(tl.int64),
        tl.arange(0, N).to(tl.int64),
    )
    x = tl.load(X + m[:, None] * K + k[None, :])
    y = tl.load(Y + k[:, None] * N + n[None, :])
    tl.store(Z + m[:, None] * N + n[None, :], tl.dot(x, y))


@triton.jit
def product_by_sums(X, Y, Z, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M).to(tl.int64), tl.arange(0, N).to(tl.int64)
    x, y = tl.load(X + m[:, None] * N + n[None, :]), tl.load(Y + n)
    tl.store(Z + m, tl.sum(x.to(tl.float32) * y.to(tl.float32)[None, :], 1))


@triton.jit
def refused(X, Y, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK < 16, "a block of less than 16")
    tl.store(Y, tl.load(X))


class Deadly:
    """Looks like a kernel until somebody asks for its arguments; then its process ends."""

    @property
    def arg_names(self):
        os._exit(3)


class Endless:
    @property
    def arg_names(self):
        time.sleep(600)


def cases(dtype: str, width: int) -> list[Case]:
    pointer = f"*{dtype}"
    flat = {"X": pointer, "Y": pointer, "n": "i32"}
    tiles = {"X": pointer, "Y": pointer, "Z": "*fp32"}
    small = dict(M=16, K=16, N=16)
    return [
        Case("good", copy, flat, dict(BLOCK=128), 4, 1, tensor_cores=False),
        Case("narrow", narrow_offset, flat, dict(BLOCK=128), 4, 1, tensor_cores=False),
        Case("late", widened_too_late, {**flat, "stride": "i32"}, dict(BLOCK=128), 4, 1, False),
        Case(
            "spill",
            too_many_registers,
            {"X": "*fp32", "Y": "*fp32"},
            dict(BLOCK=16_384),
            1,
            1,
            tensor_cores=False,
        ),
        Case("memory", product, tiles, dict(M=128, K=512, N=128, HOW="ieee"), 8, 1),
        Case("tf32", default_product, {**tiles, "X": "*fp32", "Y": "*fp32"}, small, 4, 1),
        Case(
            "stated",
            product,
            {**tiles, "X": "*fp32", "Y": "*fp32"},
            {**small, "HOW": "tf32x3"},
            4,
            1,
        ),
        Case("sums", product_by_sums, tiles, dict(M=16, N=16), 4, 1),
        Case("undeclared", copy, {"X": pointer}, dict(BLOCK=128), 4, 1),
        Case("refused", refused, flat, dict(BLOCK=128), 4, 1),
        Case("deadly", Deadly(), {}, {}, 4, 1),
    ]
