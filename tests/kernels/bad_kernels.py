"""Kernels with one fault each, which ``course kernels compile`` must not let through.

What the compiling child processes record: ``examples(dtype, width)``, launches by the name of their
fault; ``good`` and ``stated`` have none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

from course.kernels import runtime


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
def product(X, Y, Z, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, DOT: tl.constexpr):
    m, k, n = (
        tl.arange(0, M).to(tl.int64),
        tl.arange(0, K).to(tl.int64),
        tl.arange(0, N).to(tl.int64),
    )
    x = tl.load(X + m[:, None] * K + k[None, :])
    y = tl.load(Y + k[:, None] * N + n[None, :])
    z = tl.dot(x, y, input_precision=None if DOT == "default" else DOT)
    tl.store(Z + m[:, None] * N + n[None, :], z)


@triton.jit
def product_of_features(X, Y, Z, N: tl.constexpr, DOT: tl.constexpr):
    n = tl.arange(0, N).to(tl.int64)
    place = n[:, None] * N + n[None, :]
    x, y = tl.load(X + place).to(tl.float32), tl.load(Y + place).to(tl.float32)
    tl.store(Z + place, tl.dot(tl.exp(x), y, input_precision=DOT))


@triton.jit
def product_by_sums(X, Y, Z, M: tl.constexpr, N: tl.constexpr, DOT: tl.constexpr):
    m, n = tl.arange(0, M).to(tl.int64), tl.arange(0, N).to(tl.int64)
    x, y = tl.load(X + m[:, None] * N + n[None, :]), tl.load(Y + n)
    tl.store(Z + m, tl.sum(x.to(tl.float32) * y.to(tl.float32)[None, :], 1))


@triton.jit
def refused(X, Y, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK < 16, "a block of less than 16")
    tl.store(Y, tl.load(X))


class Deadly:
    """Looks like a kernel until somebody compiles it; then its process ends."""

    __name__, arg_names = "deadly", ()

    @property
    def params(self) -> Any:
        os._exit(3)

    def __getattr__(self, name: str) -> Any:
        return self.params


class Endless(Deadly):
    """The same, but it never comes back."""

    @property
    def params(self) -> Any:
        time.sleep(600)


def numbers(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(4096, dtype=dtype, device="meta")


def examples(dtype: str, width: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    x, f = numbers(runtime.DTYPES[dtype]), numbers(torch.float32)
    small = dict(M=16, K=16, N=16)

    def launch(fault: str, kernel: Any, *args: Any, warps: int = 4, **constants: Any) -> Any:
        options = {"num_warps": warps, "num_stages": 1}
        return f", {fault}", partial(runtime.launch, kernel, (1,), *args, **constants, **options)

    yield launch("good", copy, x, x, 1000, BLOCK=128)
    yield launch("narrow", narrow_offset, x, x, 1000, BLOCK=128)
    yield launch("late", widened_too_late, x, x, 1000, 7, BLOCK=128)
    yield launch("spill", too_many_registers, f, f, BLOCK=16_384, warps=1)
    yield launch("memory", product, x, x, f, M=128, K=512, N=128, DOT="ieee", warps=8)
    yield launch("tf32", product, f, f, f, **small, DOT="default")
    yield launch("stated", product, f, f, f, **small, DOT="tf32x3")
    yield launch("cut", product_of_features, x, x, f, N=16, DOT="tf32")
    yield launch("sums", product_by_sums, x, x, f, M=16, N=16, DOT="ieee")
    yield launch("undeclared", copy, x, BLOCK=64)
    yield launch("refused", refused, x, x, 1000, BLOCK=128)
    yield launch("deadly", Deadly())
