"""The kernels on a GPU: ``pytest -m gpu``. Where there is none, skipped with a line that says so.

Needs torch, triton, numpy, pytest, hypothesis and the course itself, nothing else. The same checks
run at the end of this file in Triton's interpreter, at small sizes, so that they are known to work
before a GPU sees them. Answers come from the T×S definition in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from course.attention import softmax_attention
from course.kernels import runtime
from course.linear import linear_attention, linear_attention_step
from tests import oracles

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
interpreted = pytest.mark.skipif(HAS_GPU, reason="with a GPU the kernels are compiled")

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
# Largest error relative to the largest number of the same head. Half inputs are read as they are,
# and the result is rounded; a product in plain TF32 would be 1e-3 off, and float32 may not be.
TOLERANCE = {F32: 5e-5, F16: 6e-3, BF16: 4e-2}


class Shape(NamedTuple):
    """Sizes of q ``[B,H,T,D]``, k ``[B,H,S,D]`` and v ``[B,H,S,Dv]``."""

    B: int
    H: int
    T: int
    S: int
    D: int
    Dv: int


class Kernel(NamedTuple):
    """``run(q, k, v)`` with kernels, and the ``definition`` of the same in float64 on the CPU."""

    run: Callable[[Tensor, Tensor, Tensor], Tensor]
    definition: Callable[[Tensor, Tensor, Tensor], Tensor]
    gradients: bool = True


def some(*shape: int) -> Tensor:
    """A mask with about three of four True, and the first True."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(5)) < 0.75
    mask[..., 0] = True
    return mask


def softmax(*, causal: bool = False, window: int | None = None, extra: bool = False) -> Kernel:
    """Softmax attention; ``extra``: with a bias for each head, and a mask for each sequence."""

    def parts(q: Tensor, k: Tensor) -> tuple[Tensor | None, Tensor | None]:
        H, T, S = q.shape[1], q.shape[2], k.shape[2]
        if not extra:
            return None, None
        lag = torch.arange(T)[:, None] + (S - T) - torch.arange(S)
        slopes = torch.tensor([2.0 ** -(h + 1) for h in range(H)])
        return some(q.shape[0], 1, 1, S), -slopes[:, None, None] * lag.abs()

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask, bias = (None if x is None else x.to(q.device) for x in parts(q, k))
        bias = bias if bias is None else bias.to(q.dtype)
        return softmax_attention(
            q, k, v, causal=causal, window=window, mask=mask, bias=bias, impl="triton"
        )

    def definition(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        T, S = q.shape[2], k.shape[2]
        mask, bias = parts(q, k)
        lag = torch.arange(T)[:, None] + (S - T) - torch.arange(S)
        sight = torch.ones(T, S, dtype=torch.bool)
        if causal:
            sight &= lag >= 0
        if window is not None:
            sight &= lag.abs() < window
        seen = sight if mask is None else sight & mask
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        scores = scores if bias is None else scores + bias
        # No −inf − (−inf): a row that sees nothing becomes zeros by its weights.
        weights = torch.where(seen, (scores - scores.amax(-1, keepdim=True).detach()).exp(), 0.0)
        total = weights.sum(-1, keepdim=True)
        return weights / torch.where(total == 0, 1.0, total) @ v

    return Kernel(run, definition)


def linear(
    name: str, *, causal: bool = True, normalize: bool = True, masked: bool = False
) -> Kernel:
    """Linear attention; a causal one in two parts, so that a state and its gradient go between."""
    scale = 0.25

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = some(k.shape[0], k.shape[2]).to(k.device) if masked else None
        options: dict[str, Any] = dict(
            feature_map=name, causal=causal, normalize=normalize, scale=scale, impl="triton"
        )
        if not causal:
            return linear_attention(q, k, v, key_mask=mask, **options)
        cut = q.shape[2] // 3
        first, rest = slice(None, cut), slice(cut, None)
        a, state = linear_attention(
            *(x[:, :, first] for x in (q, k, v)),
            key_mask=None if mask is None else mask[:, first],
            return_state=True,
            **options,
        )
        b = linear_attention(
            *(x[:, :, rest] for x in (q, k, v)),
            key_mask=None if mask is None else mask[:, rest],
            initial_state=state,
            **options,
        )
        return torch.cat([a, b], 2)

    def definition(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = some(k.shape[0], k.shape[2]) if masked else None
        pairs = oracles.similarity(name, q, k, scale=scale)
        return oracles.linear_attention(pairs, v, causal=causal, normalize=normalize, key_mask=mask)

    return Kernel(run, definition)


def step(name: str) -> Kernel:
    """The decode step, once a token."""
    whole = linear(name)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        state, outputs = None, []
        for t in range(q.shape[2]):
            out, state = linear_attention_step(
                *(x[:, :, t] for x in (q, k, v)),
                state,
                feature_map=name,
                scale=0.25,
                impl="triton",
            )
            outputs.append(out)
        return torch.stack(outputs, 2)

    return Kernel(run, whole.definition, gradients=False)


KERNELS = {
    "softmax": softmax(),
    "softmax, causal": softmax(causal=True),
    "softmax, causal, window, bias, mask": softmax(causal=True, window=65, extra=True),
    "linear, elu": linear("elu"),
    "linear, elu, mask": linear("elu", masked=True),
    "linear, relu, all keys": linear("relu", causal=False, masked=True),
    "linear, identity, bare": linear("identity", normalize=False),
    "step, elu": step("elu"),
    "step, taylor": step("taylor"),
    "taylor": linear("taylor"),
    "taylor, mask, all keys": linear("taylor", causal=False, masked=True),
}


def draw(*shape: int, dtype: torch.dtype, device: str, seed: int) -> Tensor:
    """Normal numbers rounded to ``dtype``, drawn on the CPU: the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).to(device)


def inputs_of(shape: Shape, *, dtype: torch.dtype, device: str) -> list[Tensor]:
    B, H, T, S, D, Dv = shape
    sizes = ((B, H, T, D), (B, H, S, D), (B, H, S, Dv))
    return [draw(*x, dtype=dtype, device=device, seed=n) for n, x in enumerate(sizes)]


def error(got: Tensor, right: Tensor) -> float:
    """The largest difference, relative to the largest number of the head it lies in."""
    got, right = got.detach().cpu().double(), right.detach()
    assert got.shape == right.shape and torch.isfinite(got).all()
    scale = right.abs().amax((-2, -1), keepdim=True).clamp_min(1e-3)
    return ((got - right).abs() / scale).max().item() if right.numel() else 0.0


def check_values_and_gradients(
    kernel: Kernel, shape: Shape, *, dtype: torch.dtype, device: str
) -> None:
    """The output, and the gradients of q, k and v, against the definition."""
    inputs = inputs_of(shape, dtype=dtype, device=device)
    exact = [x.cpu().double().requires_grad_() for x in inputs]
    wanted = kernel.definition(*exact)
    if not kernel.gradients:
        assert error(kernel.run(*inputs), wanted) <= TOLERANCE[dtype]
        return
    leaves = [x.requires_grad_() for x in inputs]
    out = kernel.run(*leaves)
    assert out.dtype == dtype
    assert error(out, wanted) <= TOLERANCE[dtype]
    dout = draw(*out.shape, dtype=dtype, device=device, seed=9)
    got = torch.autograd.grad(out, leaves, dout)
    right = torch.autograd.grad(wanted, exact, dout.cpu().double())
    for name, a, b in zip("qkv", got, right, strict=True):
        # A gradient is a sum over rows that were rounded themselves.
        assert error(a, b) <= 2 * TOLERANCE[dtype], name


def check_repeats(
    kernel: Kernel, shape: Shape, *, dtype: torch.dtype, device: str, repeats: int
) -> None:
    """Bit-equal outputs and gradients every time: programs that race would differ now and then."""
    inputs = inputs_of(shape, dtype=dtype, device=device)
    leaves = [x.requires_grad_(kernel.gradients) for x in inputs]

    def once() -> list[Tensor]:
        out = kernel.run(*leaves)
        if not kernel.gradients:
            return [out]
        return [out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out))]

    first = once()
    for _ in range(repeats - 1):
        for a, b in zip(first, once(), strict=True):
            assert torch.equal(a, b)


def far_apart(x: Tensor, axis: int, buffer: Tensor) -> Tensor:
    """A copy of ``x`` in ``buffer`` whose last index on ``axis`` lies at element 2³¹ or beyond."""
    strides = [1] * x.ndim
    for place in range(x.ndim - 2, -1, -1):
        strides[place] = strides[place + 1] * x.shape[place + 1]
    strides[axis] = max(strides[axis], -(-(2**31) // (x.shape[axis] - 1)))
    view = buffer.as_strided(x.shape, strides)
    view.copy_(x)
    return view


def check_far_elements(
    kernel: Kernel, shape: Shape, *, axis: int, dtype: torch.dtype, device: str
) -> None:
    """Inputs whose elements lie 2³¹ apart give what the same numbers give when dense."""
    inputs = inputs_of(shape, dtype=dtype, device=device)
    wanted = kernel.run(*inputs)
    for place in range(3):  # one at a time: each takes four gigabytes
        moved = list(inputs)
        size = 2**31 + inputs[place].numel() + 2**31 // (inputs[place].shape[axis] - 1)
        buffer = torch.empty(size, dtype=dtype, device=device)
        moved[place] = far_apart(inputs[place], axis, buffer)
        assert torch.equal(kernel.run(*moved), wanted), "qkv"[place]
        del buffer, moved


def need_memory(gigabytes: float) -> None:
    free = torch.cuda.mem_get_info()[0] / 2**30
    if free < gigabytes:
        pytest.skip(f"needs {gigabytes:.0f} GiB of GPU memory, {free:.0f} are free")


# --------------------------------------------------------------------------------- on a GPU

# Every kernel meets every dtype; lengths and widths go round, so that each pair of them occurs.
LENGTHS = ((1, 1), (64, 64), (65, 65), (257, 257), (1000, 1000))
WIDTHS = {F16: ((64, 64), (33, 48)), BF16: ((64, 64), (128, 128)), F32: ((64, 64), (40, 256))}


def shapes(name: str, dtype: torch.dtype) -> list[Shape]:
    found = []
    for n, (T, S) in enumerate(LENGTHS):
        D, Dv = WIDTHS[dtype][n % 2]
        if name == "softmax" and n % 2:
            S += 37
        if "step" in name:
            T = S = min(T, 20)
        if "taylor" in name:
            D = (16, 13)[n % 2]
        found.append(Shape(2, 3, T, S, D, Dv))
    return found


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("name", KERNELS)
class TestOnAGPU:
    """Every kernel in every dtype."""

    pytestmark = pytest.mark.gpu

    def test_values_and_gradients(self, name: str, dtype: torch.dtype) -> None:
        for shape in shapes(name, dtype):
            check_values_and_gradients(KERNELS[name], shape, dtype=dtype, device="cuda")

    def test_fifty_repeats_are_bit_equal(self, name: str, dtype: torch.dtype) -> None:
        D = 16 if "taylor" in name else 64
        T = 20 if "step" in name else 400
        shape = Shape(4, 8, T, T, D, 64)
        check_repeats(KERNELS[name], shape, dtype=dtype, device="cuda", repeats=50)


FAR = ["softmax, causal", "linear, elu", "step, elu", "taylor"]


class TestFarElementsOnAGPU:
    """Offsets beyond 2³¹ elements, and more heads than one axis of a grid may have programs."""

    pytestmark = pytest.mark.gpu

    @pytest.mark.parametrize("axis", [1, 2])
    @pytest.mark.parametrize("name", FAR)
    def test_inputs(self, name: str, axis: int) -> None:
        need_memory(8)
        shape = Shape(1, 2, 33, 33, 16, 16)
        check_far_elements(KERNELS[name], shape, axis=axis, dtype=F16, device="cuda")

    @pytest.mark.parametrize("name", ["softmax, causal", "linear, elu"])
    def test_outputs(self, name: str) -> None:
        """70,000 equal heads: the output has more than 2³¹ elements, and each head is the first."""
        heads, T, D = 70_000, 512, 64
        need_memory(30)
        one = inputs_of(Shape(1, 1, T, T, D, D), dtype=F16, device="cuda")
        with torch.no_grad():
            out = KERNELS[name].run(*(x.expand(1, heads, T, D) for x in one))
            assert out.numel() > 2**31
            first = KERNELS[name].run(*one)
            for part in out.split(5_000, 1):
                assert torch.equal(part, first.expand_as(part))

    @pytest.mark.parametrize("name", ["softmax", "linear, elu", "taylor", "step, elu"])
    def test_more_than_65535_heads(self, name: str) -> None:
        shape = Shape(257, 257, 3, 3, 16, 16)
        inputs = inputs_of(shape, dtype=F32, device="cuda")
        out = KERNELS[name].run(*inputs)
        for b, h in ((0, 0), (256, 256), (255, 1)):
            one = [x[b : b + 1, h : h + 1] for x in inputs]
            wanted = KERNELS[name].definition(*(x.cpu().double() for x in one))
            assert error(out[b : b + 1, h : h + 1], wanted) <= TOLERANCE[F32]


class TestRefusalsOnAGPU:
    pytestmark = pytest.mark.gpu

    def test_cpu_tensors_are_refused(self) -> None:
        q, k, v = inputs_of(Shape(1, 1, 4, 4, 8, 8), dtype=F32, device="cpu")
        with pytest.raises(RuntimeError, match="compiled kernels need tensors on a GPU"):
            softmax_attention(q, k, v, impl="triton")

    def test_float64_is_refused(self) -> None:
        inputs = inputs_of(Shape(1, 1, 4, 4, 8, 8), dtype=torch.float64, device="cuda")
        with pytest.raises(RuntimeError, match="float32, float16 or bfloat16"):
            linear_attention(*inputs, causal=True, impl="triton")


# ------------------------------------------------------------- the same checks, interpreted

runnable = runtime.refusal(torch.zeros(1))


@interpreted
@pytest.mark.skipif(runnable is not None and not HAS_GPU, reason=str(runnable))
class TestTheseChecksInTheInterpreter:
    @pytest.mark.parametrize(
        ("name", "dtype"), [(name, (F16, F32)[n % 2]) for n, name in enumerate(KERNELS)], ids=str
    )
    def test_values_and_gradients(self, name: str, dtype: torch.dtype) -> None:
        T = 3 if "step" in name else 5 if "taylor" in name else 17
        D, Dv = (3, 4) if "taylor" in name else (5, 7)
        shape = Shape(1, 2, T, 24 if name == "softmax" else T, D, Dv)
        check_values_and_gradients(KERNELS[name], shape, dtype=dtype, device="cpu")

    def test_repeats(self) -> None:
        shape = Shape(1, 1, 3, 3, 5, 7)
        check_repeats(KERNELS["linear, elu"], shape, dtype=F32, device="cpu", repeats=2)

    @pytest.mark.parametrize("name", [name for name in FAR if name != "taylor"])
    def test_far_elements(self, name: str) -> None:
        """Memory that is never touched costs nothing, so this needs no gigabytes."""
        try:
            torch.empty(2**31 + 2**26, dtype=F16)
        except RuntimeError:
            pytest.skip("this system does not lend memory that may never be used")
        shape = Shape(1, 2, 3, 3, 5, 7)
        check_far_elements(KERNELS[name], shape, axis=1, dtype=F16, device="cpu")

    def test_a_wrong_answer_is_seen(self) -> None:
        """The checks can fail: for a forgotten mask, for noise, for a far element that is lost."""
        shape = Shape(1, 2, 9, 9, 5, 7)
        forgetful = KERNELS["softmax, causal"]._replace(run=KERNELS["softmax"].run)
        with pytest.raises(AssertionError):
            check_values_and_gradients(forgetful, shape, dtype=F32, device="cpu")
        drifting = Kernel(lambda q, k, v: q + torch.rand_like(q), forgetful.definition, False)
        with pytest.raises(AssertionError):
            check_repeats(drifting, shape, dtype=F32, device="cpu", repeats=2)

        def near(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return q.contiguous() if q.is_contiguous() else torch.zeros_like(q)

        with pytest.raises(AssertionError, match="q"):
            check_far_elements(
                Kernel(near, near, False), shape._replace(D=7), axis=1, dtype=F16, device="cpu"
            )

    def test_every_dtype_meets_every_kernel_at_every_length(self) -> None:
        for name in KERNELS:
            for dtype in TOLERANCE:
                found = shapes(name, dtype)
                assert len({(s.T, s.D) for s in found}) >= 3
                assert {s.Dv for s in found} == {Dv for _, Dv in WIDTHS[dtype]}
