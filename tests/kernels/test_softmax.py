"""Softmax attention in tiles, as ``course.attention`` calls it: lengths, widths, memory, layers.

The checks of single properties are in ``tests/mutants/kernels_softmax.py``, where they also kill
wrong kernels; ``tests/test_mutants.py`` runs them on the real one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from course.attention import MultiHeadAttention, softmax_attention
from course.kernels import runtime, shared
from course.transformer import Transformer, TransformerConfig
from tests import oracles
from tests.drawing import some
from tests.kernels.watching import names, only_noted, poisoned
from tests.mutants.kernels_softmax import close, draw

if runtime.refusal(torch.zeros(1)):
    pytest.skip("kernels are not interpreted in this process", allow_module_level=True)

# Every length and every width meets causal and not, and each neighbour of a tile's edge.
LENGTHS = (
    (1, 1, 16, 16, True),
    (15, 17, 5, 1, False),
    (16, 16, 1, 20, True),
    (17, 15, 20, 33, True),
    (63, 65, 33, 16, False),
    (64, 64, 8, 3, True),
    (65, 63, 3, 8, False),
    (257, 64, 7, 5, True),
    (1, 257, 48, 6, True),
    (2, 3, 129, 255, False),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
@pytest.mark.parametrize(("T", "S", "D", "Dv", "causal"), LENGTHS)
def test_lengths_and_widths(
    T: int, S: int, D: int, Dv: int, causal: bool, dtype: torch.dtype
) -> None:
    """Output and gradients; scores have a standard deviation of about 2."""
    q, k, v, dout = (
        draw(1, 1, *shape, seed=seed, dtype=dtype)
        for seed, shape in enumerate(((T, D), (S, D), (S, Dv), (T, Dv)))
    )
    wanted = oracles.attention(q, k, v, dout=dout, causal=causal)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    with poisoned():
        out = softmax_attention(*leaves, causal=causal, impl="triton")
        out.backward(dout)
    assert out.dtype == dtype
    # Weights and ds are rounded to the dtype of the inputs before the products that sum them.
    tolerance = 1e-5 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
    close(out, wanted.out, "out", tolerance=tolerance)
    for leaf, name in zip(leaves, ("dq", "dk", "dv"), strict=True):
        close(leaf.grad, getattr(wanted, name), name, tolerance=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_bias_of_another_dtype(dtype: torch.dtype) -> None:
    q, k, v = draw(1, 2, 3, 4, seed=1), draw(1, 2, 7, 4, seed=2), draw(1, 2, 7, 5, seed=3)
    bias = draw(3, 7, seed=5, dtype=dtype).requires_grad_()
    dout = draw(1, 2, 3, 5, seed=6)
    out = softmax_attention(q, k, v, bias=bias, impl="triton")
    out.backward(dout)
    wanted = oracles.attention(q, k, v, bias=bias, dout=dout)
    close(out.detach(), wanted.out, "out")
    assert bias.grad is not None and bias.grad.dtype == dtype
    half = torch.finfo(torch.float16).eps
    close(bias.grad, wanted.dbias.sum((0, 1)), "dbias", tolerance=2 * half)


def test_launches() -> None:
    """One forward and two backward, and not one torch operation that reads or writes data."""
    q, k, v = (draw(1, 2, 5, 4, seed=n).requires_grad_() for n in range(3))
    options = {"mask": some(5, 5), "bias": draw(5, 5, seed=5), "window": 3}
    dout = draw(1, 2, 5, 4, seed=6)
    with only_noted() as (launches, touched):
        out = softmax_attention(q, k, v, impl="triton", **options)
        assert (names(launches), touched) == (["softmax_forward"], [])
        torch.autograd.grad(out, (q, k, v), dout)
    assert names(launches)[1:] == ["softmax_backward_q", "softmax_backward_kv"]
    assert touched == []


def test_nothing_of_size_t_times_s_is_made() -> None:
    """What is allocated and kept; only a bias that wants a gradient is given T·S numbers a head."""
    T, S = 50, 70
    sizes: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            result = func(*args, **(kwargs or {}))
            for x in result if isinstance(result, tuple) else (result,):
                if isinstance(x, Tensor):
                    sizes.append(x.untyped_storage().nbytes())
            return result

    q, k, v = draw(1, 1, T, 4), draw(1, 1, S, 4), draw(1, 1, S, 4)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    mask, bias = some(S), draw(T, 1)
    with Watch():
        softmax_attention(
            *leaves, mask=mask, bias=bias, causal=True, impl="triton"
        ).sum().backward()
    assert 4 * S <= max(sizes) < T * S  # bytes: a boolean of that size would be seen too
    with Watch():
        out = softmax_attention(*leaves, bias=bias.requires_grad_(), impl="triton")
        out.sum().backward()
    assert max(sizes) == 4 * T * S


def test_tiles_are_powers_of_two_and_short_rows_are_whole() -> None:
    from course.kernels import softmax

    for dtype in runtime.DTYPES.values():
        for width in range(1, 257):
            for backward in (False, True):
                for masked in (False, True):
                    size = softmax.blocks(dtype, width, backward=backward, masked=masked)
                    for n in (size.held, size.walked, size.chunk):
                        assert n >= 16 and n & (n - 1) == 0 and n <= 128
                    held = shared.block(width) * dtype.itemsize * (size.held + size.walked)
                    assert held <= 64 * 1024, "not even two tiles fit into the smallest chip"
    assert softmax.blocks(torch.float16, 128, backward=False, masked=False)[:3] == (64, 32, 128)


def test_numbers_of_numpy() -> None:
    q, k, v = draw(1, 1, 5, 4, seed=1), draw(1, 1, 5, 4, seed=2), draw(1, 1, 5, 4, seed=3)
    options = {"causal": True, "impl": "triton"}
    got = softmax_attention(q, k, v, window=np.int64(2), scale=np.float32(0.5), **options)
    assert torch.equal(got, softmax_attention(q, k, v, window=2, scale=0.5, **options))


def test_arguments_are_left_as_they_were() -> None:
    q, k, v = draw(1, 1, 3, 4, seed=1), draw(1, 1, 5, 4, seed=2), draw(1, 1, 5, 4, seed=3)
    mask, bias = some(3, 5), draw(3, 5, seed=4).masked_fill(some(3, 5), -math.inf)
    given = (q, k, v, mask, bias)
    before = [x.clone() for x in given]
    softmax_attention(q, k, v, mask=mask, bias=bias, impl="triton")
    assert all(torch.equal(x, y) for x, y in zip(given, before, strict=True))


def test_a_layer_and_its_decoder() -> None:
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(12, 3, D=5, Dv=7), draw(2, 9, 12, seed=1)
    close(layer(x, causal=True, impl="triton"), layer(x, causal=True).detach(), "layer")
    cache, outputs = None, []
    for part in x.split([4, 1, 4], 1):
        out, cache = layer.decode(part, cache, impl="triton")
        outputs.append(out)
    close(torch.cat(outputs, 1).detach(), layer(x, causal=True).detach(), "decode")


@pytest.mark.parametrize(
    ("mixer", "positions"), [("softmax", "none"), ("softmax", "alibi"), ("window", "rope")]
)
def test_mixers(mixer: str, positions: str) -> None:
    """The same model with the same parameters by kernels: outputs, gradients and decoding."""
    models = []
    for impl in ("torch", "triton"):
        torch.manual_seed(0)
        options: dict[str, Any] = {"impl": impl}
        options |= {"window": 3} if mixer == "window" else {}
        models.append(
            Transformer(
                TransformerConfig(
                    11, E=12, H=2, L=1, mixer=mixer, mixer_options=options, positions=positions
                )
            )
        )
    tokens = torch.arange(10).reshape(2, 5) % 11
    ours, theirs = models[1], models[0]
    close(ours(tokens).detach(), theirs(tokens).detach(), mixer)
    for model in models:
        model(tokens).square().sum().backward()
    for (name, got), wanted in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        close(got.grad, wanted.grad, name, tolerance=1e-4)
    state = None
    for t in range(3):
        out, state = ours.decode(tokens[:, t : t + 1], state)
        close(out[:, 0].detach(), theirs(tokens)[:, t].detach(), f"token {t}")
