"""Softmax attention over the whole grid of options, drawn at random: oracle, SDPA, properties.

Single examples with a name, errors and the layer of several heads are in
``tests/mutants/attention.py``, where the same checks kill wrong implementations.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from course import attention as module
from course.attention import MultiHeadAttention, attention_weights, causal_mask, softmax_attention
from tests import oracles
from tests.mutants.attention import CHECKS, ERRORS, agrees, close, draw, layer

B, H, D, Dv = 2, 3, 4, 6
impls = pytest.mark.parametrize("impl", ["reference", "torch"])
few = settings(max_examples=30)


@st.composite
def problems(draw_: Any, least: int = 0) -> tuple[list[Tensor], dict[str, Any]]:
    """Queries, keys and values of any lengths, with any mixture of the options."""
    T, S, seed = (
        draw_(st.integers(least, 7)),
        draw_(st.integers(least, 7)),
        draw_(st.integers(0, 99)),
    )
    sizes = [(B, 1), (H, 1), (T, 1), (S, 1)]

    def shape() -> list[int]:
        return [draw_(st.sampled_from(size)) for size in sizes[draw_(st.integers(0, 4)) :]]

    options: dict[str, Any] = {}
    if draw_(st.booleans()):
        options["mask"] = torch.rand(shape(), generator=torch.manual_seed(seed)) < 0.6
    if draw_(st.booleans()):
        bias = draw(*shape(), seed=seed + 1)
        hidden = torch.rand(bias.shape, generator=torch.manual_seed(seed + 2)) < 0.2
        options["bias"] = bias.masked_fill(hidden, -torch.inf)
    options["causal"] = draw_(st.booleans())
    options["window"] = draw_(st.sampled_from([None, 1, 2, 3, 99]))
    options["scale"] = draw_(st.sampled_from([None, 0.3, 1.0]))
    inputs = [
        draw(B, H, T, D, seed=seed + 3),
        draw(B, H, S, D, seed=seed + 4),
        draw(B, H, S, Dv, seed=seed + 5),
    ]
    return inputs, options


@settings(max_examples=80)
@given(problems())
def test_agrees_with_the_oracle(problem: Any) -> None:
    """Output, weights and all gradients, to 1e-12, for both implementations."""
    inputs, options = problem
    agrees(module, *inputs, **options)


@few
@given(problems(), st.sampled_from([1e5, -1e5]))
def test_agrees_where_scores_are_huge(problem: Any, size: float) -> None:
    (q, k, v), options = problem
    # Signs times 1e5: exact scores, some equal, some 1e5 and more apart.
    options["scale"] = 1.0
    agrees(module, torch.sign(q), size * torch.sign(k), v, **options)


@few
@given(problems())
def test_agrees_in_buffers_of_nan_and_with_a_stride_0_gradient(problem: Any) -> None:
    inputs, options = problem
    (T, S), ones = (inputs[0].shape[2], inputs[1].shape[2]), torch.ones(())
    dout = ones.expand(B, H, T, Dv)
    wanted = oracles.attention(*inputs, dout=dout, **options)
    cut = {
        name: oracles.cut_from_nan(x) if name == "bias" else x.expand(B, H, T, S)
        for name, x in options.items()
        if isinstance(x, Tensor)
    }
    for impl in ("reference", "torch"):
        leaves = [oracles.cut_from_nan(x).requires_grad_() for x in inputs]
        out = softmax_attention(*leaves, impl=impl, **{**options, **cut})
        close(out, wanted.out, f"{impl} output")
        out.sum().backward()
        for leaf, name in zip(leaves, ("dq", "dk", "dv"), strict=True):
            grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            close(grad, getattr(wanted, name), f"{impl} {name}")


@few
@given(problems())
def test_rows_sum_to_one_or_to_nothing(problem: Any) -> None:
    (q, k, _), options = problem
    weights = attention_weights(q, k, **options)
    assert bool((weights >= 0).all())
    sums = weights.sum(-1)
    assert bool(((sums - 1).abs() <= 1e-12).logical_or(sums == 0).all())


@few
@given(problems(least=1), st.integers(0, 6), st.sampled_from(["reference", "torch"]))
def test_the_past_is_bit_equal_when_the_future_changes(problem: Any, cut: int, impl: str) -> None:
    (q, k, v), options = problem
    T, S = q.shape[2], k.shape[2]
    options["causal"] = True
    t = cut % T  # queries from t on, and the keys that only they may look at
    before = softmax_attention(q, k, v, impl=impl, **options)
    first = max(0, t + S - T)
    changed = [q.clone(), k.clone(), v.clone()]
    changed[0][:, :, t:] += 7.0
    changed[1][:, :, first:] *= -3.0
    changed[2][:, :, first:] += 1e6
    after = softmax_attention(*changed, impl=impl, **options)
    assert torch.equal(before[:, :, :t], after[:, :, :t])


@few
@given(problems(least=1), st.integers(0, 99))
def test_order_of_keys_and_queries_does_not_matter(problem: Any, seed: int) -> None:
    """Shuffled queries give shuffled rows, shuffled keys change nothing."""
    (q, k, v), options = problem
    given_ = {name: options[name] for name in ("scale",)}
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(q.shape[2], generator=generator)
    keys = torch.randperm(k.shape[2], generator=generator)
    for impl in ("reference", "torch"):
        straight = softmax_attention(q, k, v, impl=impl, **given_)
        shuffled = softmax_attention(
            q[:, :, rows], k[:, :, keys], v[:, :, keys], impl=impl, **given_
        )
        close(shuffled, straight[:, :, rows], impl)


@few
@given(problems(least=1))
def test_agrees_with_sdpa_where_sdpa_is_defined(problem: Any) -> None:
    """PyTorch's function with an explicit mask, on the rows that may look at something."""
    (q, k, v), options = problem
    T, S = q.shape[2], k.shape[2]
    allowed = torch.ones(B, H, T, S, dtype=torch.bool) & options.get("mask", torch.tensor(True))
    for t in range(T):
        for i in range(S):
            near = oracles.may_look(t, i, T, S, causal=options["causal"], window=options["window"])
            allowed[:, :, t, i] &= near
    bias = options.get("bias", torch.zeros((), dtype=torch.float64))
    bias = bias.expand(B, H, T, S).masked_fill(~allowed, -torch.inf)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=options["scale"])
    seen = (bias != -torch.inf).any(-1)
    ours = softmax_attention(q, k, v, **options)
    close(ours[seen], theirs[seen], "SDPA")


@pytest.mark.parametrize("scale", [None, 0.3])
def test_agrees_with_sdpa_causal_square(scale: float | None) -> None:
    q, k, v = draw(B, H, 5, D, seed=1), draw(B, H, 5, D, seed=2), draw(B, H, 5, Dv, seed=3)
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    close(softmax_attention(q, k, v, causal=True, scale=scale), theirs, "SDPA")


@impls
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"causal": True, "window": 2},
        {"window": 2},
        {"mask": torch.arange(15).reshape(3, 5) % 3 > 0},
        {"mask": torch.tensor([[True] * 5, [False] * 5, [True] * 5])},
    ],
    ids=["plain", "causal", "causal window", "window", "mask", "empty row"],
)
def test_gradcheck(impl: str, options: dict[str, Any]) -> None:
    inputs = [
        draw(1, 2, 3, D, seed=1, std=1.0).requires_grad_(),
        draw(1, 2, 5, D, seed=2, std=1.0).requires_grad_(),
        draw(1, 2, 5, Dv, seed=3, std=1.0).requires_grad_(),
        draw(2, 1, 5, seed=4, std=1.0).requires_grad_(),
    ]
    assert torch.autograd.gradcheck(
        lambda q, k, v, bias: softmax_attention(q, k, v, bias=bias, impl=impl, **options), inputs
    )


def test_gradcheck_of_the_square_kernel() -> None:
    inputs = [draw(1, 2, 4, D, seed=n, std=1.0).requires_grad_() for n in (1, 2, 3)]
    assert torch.autograd.gradcheck(
        lambda q, k, v: softmax_attention(q, k, v, causal=True, impl="torch"), inputs
    )
    assert torch.autograd.gradgradcheck(
        lambda q, k, v: softmax_attention(q, k, v, causal=True), inputs
    )


@impls
def test_nan_in_sight_is_not_hidden(impl: str) -> None:
    """Who may look at a NaN must get one; who may not is safe from a key, not from a value."""
    q, k, v = draw(1, 1, 5, D, seed=1), draw(1, 1, 5, D, seed=2), draw(1, 1, 5, Dv, seed=3)
    poisoned = [x.index_fill(2, torch.tensor([3]), torch.nan) for x in (q, k, v)]
    with_key = softmax_attention(q, poisoned[1], v, causal=True, impl=impl)
    assert with_key[:, :, 3:].isnan().all()
    with_value = softmax_attention(q, k, poisoned[2], causal=True, impl=impl)
    assert with_value[:, :, 3:].isnan().all()
    with_query = softmax_attention(poisoned[0], k, v, causal=True, impl=impl)
    assert with_query[:, :, 3].isnan().all()
    rest = torch.tensor([0, 1, 2, 4])
    clean = softmax_attention(q, k, v, causal=True, impl=impl)
    close(with_query[:, :, rest], clean[:, :, rest], "the other queries")
    if impl == "reference":
        close(with_key[:, :, :3], clean[:, :, :3], "the queries before")


@impls
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_over_many_keys(impl: str, dtype: torch.dtype) -> None:
    """Uniform weights over 3,000 keys: a sum in half precision would stop at 256 or 2,048."""
    q, k = torch.zeros(1, 1, 2, D, dtype=dtype), torch.zeros(1, 1, 3000, D, dtype=dtype)
    v = torch.ones(1, 1, 3000, Dv, dtype=dtype)
    out = softmax_attention(q, k, v, impl=impl)
    assert (out.double() - 1).abs().max() <= 2 * torch.finfo(dtype).eps


def test_a_single_everything() -> None:
    """T = S = B = H = D = 1: one key gets all the weight."""
    q, k, v = (torch.tensor([[[[x]]]]) for x in (3.0, -2.0, 7.0))
    for impl in ("reference", "torch"):
        for causal in (True, False):
            assert softmax_attention(q, k, v, causal=causal, impl=impl).item() == 7.0


def test_no_global_state_is_touched() -> None:
    before = torch.get_rng_state()
    q, k, v = draw(B, H, 3, D), draw(B, H, 5, D), draw(B, H, 5, Dv)
    for impl in ("reference", "torch"):
        softmax_attention(q, k, v, causal=True, impl=impl)
    causal_mask(3)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_default_dtype() == torch.float32


@few
@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.sampled_from(["reference", "torch"]))
def test_decoding_in_any_portions_is_the_full_pass(portions: list[int], impl: str) -> None:
    ours, x = layer(module, D=D, Dv=5), draw(B, sum(portions), 12, seed=1)
    cache, outputs = None, []
    for part in x.split(portions, 1):
        out, cache = ours.decode(part, cache, impl=impl)
        outputs.append(out)
    close(torch.cat(outputs, 1), ours(x, causal=True, impl="reference"), str(portions))
    assert cache is not None and cache.k.shape == (B, H, sum(portions), D)


def test_training_reaches_every_parameter_but_the_key_bias() -> None:
    """A bias on the keys shifts all scores of a row alike, so softmax gives it no gradient."""
    ours: MultiHeadAttention = layer(module)
    ours(draw(B, 5, 12, seed=1), causal=True).square().sum().backward()
    for name, parameter in ours.named_parameters():
        size = parameter.grad.abs().max()
        assert size < 1e-9 if name == "W_k.bias" else size > 1e-3, (name, size)


@pytest.mark.parametrize("name", CHECKS)
def test_check(name: str) -> None:
    """The checks that kill the mutants, here on the installed module."""
    CHECKS[name](module)


@pytest.mark.parametrize("name", ERRORS)
def test_error(name: str) -> None:
    call, words = ERRORS[name]
    with pytest.raises(ValueError) as error:
        call(module)
    assert [word for word in words if word not in str(error.value)] == [], str(error.value)
