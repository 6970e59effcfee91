"""What the kernels share: tiles, products, maps, and how launchers name strides.

A tensor of the caller comes with the strides of all its axes, so that none is ever copied:
``stride_qt`` is how many numbers further the next token t of q lies. Letters of tensors: q, k, v;
m the mask; a the bias, which is added; g the gradient of the output; S, z, t the state. What is
allocated for a kernel lies dense, and needs no strides. Offsets have 64 bits: a tensor may have
more than 2³¹ numbers. A program finds its head n = b·H + h on the one axis of the grid that may be
longer than 65,535.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from course.kernels import runtime

WIDEST_TAYLOR = 16  # numbers of a key: its features are made in blocks of 16 columns


# In Triton


@triton.jit
def split(program, middle, last):
    """The three indices of a program, the last one running fastest; 64 bits, as all offsets."""
    program = program.to(tl.int64)
    return program // last // middle, program // last % middle, program % last


@triton.jit
def tile(X, stride_t, stride_d, t, d, seen, width):
    """Rows ``t`` and columns ``d`` of a matrix, with zeros for all that is not there."""
    place = t.to(tl.int64)[:, None] * stride_t + d.to(tl.int64)[None, :] * stride_d
    return tl.load(X + place, mask=seen[:, None] & (d < width)[None, :], other=0.0)


@triton.jit
def store(X, x, t, d, seen, width):
    """Write the tile ``x`` to rows ``t`` and columns ``d`` of a dense matrix, where they are."""
    place = t.to(tl.int64)[:, None] * width + d.to(tl.int64)[None, :]
    tl.store(X + place, x.to(X.dtype.element_ty), mask=seen[:, None] & (d < width)[None, :])


@triton.jit
def real(mask, stride_mb, stride_ms, b, s, S, MASKED: tl.constexpr):
    """Which of the keys ``s`` are there and are not padding."""
    seen = s < S
    if MASKED:
        seen = seen & (tl.load(mask + b * stride_mb + s * stride_ms, mask=seen, other=0) != 0)
    return seen


@triton.jit
def _to_tf32(x):
    """The nearest number with TF32's ten bits. (The interpreter has no such instruction.)"""
    return tl.inline_asm_elementwise(
        "cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def product(x, y, total, DOT: tl.constexpr):
    """``total`` + x·y. TF32 operands are rounded first: the tensor core would cut digits off."""
    if DOT == "tf32" and x.dtype == tl.float32:
        x, y = _to_tf32(x), _to_tf32(y)
    return tl.dot(x, y, total, input_precision=DOT)


@triton.jit
def feature_map(x, MAP: tl.constexpr):
    """φ(x), float32. Comparisons, not maxima, so that NaN stays NaN."""
    if MAP == "elu":
        # Not exp(x) − 1 + 1, which is 0 far below 0; and no overflow in the branch not taken.
        x = tl.where(x > 0, x + 1, tl.exp(tl.where(x > 0, 0.0, x)))
    elif MAP == "relu":
        x = tl.where(x < 0, 0.0, x)
    return x


@triton.jit
def feature_gradient(f, df, MAP: tl.constexpr):
    """The gradient at x, given f = φ(x) and the gradient at f."""
    if MAP == "elu":
        df = tl.where(f >= 1, 1.0, f) * df  # φ' = exp(x) = φ below 0, and 1 above, where φ ≥ 1
    elif MAP == "relu":
        df = tl.where(f > 0, df, 0.0)
    return df


# For launchers

#: Registers a thread may have, for the compiler: told so, ptxas does not spill to get more programs
#: to run at once. (AMD's has no such option.)
ALL_REGISTERS = {} if torch.version.hip else {"maxnreg": 255}


def block(width: int) -> int:
    """Columns of a tile for rows of ``width`` numbers: a power of two, and 16 at least.

    Triton's tiles have powers of two as sizes, and its products need 16 of everything.
    """
    return max(16, triton.next_power_of_2(width))


def precision(x: Tensor) -> str:
    """How float32 tiles are multiplied that were made from an input ``x``.

    From half inputs in TF32, with the ten bits of float16 and the range of float32: φ(−18) = 1.5e-8
    is zero in float16. The interpreter, AMD and a T4 have no TF32.
    """
    if x.dtype == torch.float32:
        return runtime.DOT
    old = x.is_cuda and torch.cuda.get_device_properties(x.device).major < 8
    # What torch.compile traces is not interpreted, and it cannot ask.
    interpreted = not torch.compiler.is_compiling() and runtime.is_interpreted(tile)
    return "ieee" if runtime.DOT == "ieee" or old or interpreted else "tf32"


def pointer(x: Tensor | None, like: Tensor) -> Tensor:
    """``x``, or a pointer the kernel will not follow, where there is none."""
    return like if x is None else x


def strides(x: Tensor | None, axes: int) -> tuple[int, ...]:
    """The strides of ``x``; zeros where there is none."""
    return (0,) * axes if x is None else x.stride()


def taylor_width(D: int) -> int:
    """Packed features of the Taylor map: 1, D numbers, and each pair once."""
    return 1 + D + D * (D + 1) // 2


def count(t: Tensor | None, key_mask: Tensor | None, k: Tensor) -> Tensor:
    """Real tokens seen, ``[B]``: the ``t`` of the past and those of the keys ``k [B,H,S,D]``."""
    seen = k.shape[2] if key_mask is None else key_mask.sum(-1)
    past = torch.zeros(k.shape[0], dtype=torch.int64, device=k.device) if t is None else t
    return past + seen


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse ``create_graph=True`` in the ``backward`` of an autograd function.

    Autograd's own ``once_differentiable`` lets it pass where the incoming gradient is a constant,
    and the gradient would then be taken for one, too.
    """

    @functools.wraps(backward)
    def refusing(*arguments: Any) -> Any:
        if torch.is_grad_enabled():  # only under create_graph
            raise RuntimeError(
                'impl="triton" has first derivatives only, so create_graph=True is refused; '
                'use impl="reference"'
            )
        return backward(*arguments)

    return refusing
