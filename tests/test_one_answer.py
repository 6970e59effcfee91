"""One answer from every ``impl``: the same value, dtype and refusal, or a refusal in a sentence.

Each *kind* of question that real users asked is put to every function and every implementation.
``triton`` runs in Triton's interpreter here, so it is asked in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from course.attention import attention_weights, softmax_attention
from course.feature_maps import get_feature_map
from course.linear import FORMS, linear_attention, linear_attention_step
from tests.drawing import NoDouble, close, draw, qkv, some

Attend = Callable[..., Tensor]
FINFO = torch.finfo(torch.float32)


def step(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """One token after three others, so that there is a state."""
    impl = options.pop("impl", "torch")
    past = linear_attention(k, k, v, causal=True, return_state=True)[1]
    tokens = (x[:, :, 0] for x in (q, k, v))
    return linear_attention_step(*tokens, past, impl=impl, **options)[0]


FUNCTIONS: dict[str, Attend] = {
    "softmax": softmax_attention,
    "softmax, causal": functools.partial(softmax_attention, causal=True),
    "softmax, window": functools.partial(softmax_attention, causal=True, window=2),
    "linear": functools.partial(linear_attention, causal=True),
    "linear, non-causal": functools.partial(linear_attention, causal=False),
    "linear, taylor": functools.partial(linear_attention, causal=True, feature_map="taylor"),
    "step": step,
}
IMPLS = ("torch", "reference", "triton")
every = pytest.mark.parametrize(
    ("name", "impl"),
    [pytest.param(name, impl, id=f"{name}: {impl}") for name in FUNCTIONS for impl in IMPLS],
)
softmaxes = pytest.mark.parametrize("name", [name for name in FUNCTIONS if "softmax" in name])
impls = pytest.mark.parametrize("impl", IMPLS)


def inputs(T: int = 5, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    return qkv(T, B=1, H=2, dtype=torch.float32, **options)


def same(got: Tensor, wanted: Tensor, what: object = "", tolerance: float = 1e-5) -> None:
    """Equal, NaN where NaN is wanted included, and of one dtype."""
    assert got.dtype == wanted.dtype, (what, got.dtype, wanted.dtype)
    assert torch.equal(got.isnan(), wanted.isnan()), (what, got, wanted)
    close(got.nan_to_num(), wanted.nan_to_num(), what, tolerance)


def gradients(attend: Attend, *tensors: Tensor, **options: Any) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    out = attend(*leaves, **options)
    return [out, *torch.autograd.grad(out, leaves, draw(*out.shape, seed=9).to(out))]


def agree(name: str, impl: str, *tensors: Tensor, **options: Any) -> None:
    """Output and gradients are those of the reference."""
    attend = FUNCTIONS[name]
    wanted = gradients(attend, *tensors, **{**options, "impl": "reference"})
    for got, want in zip(
        gradients(attend, *tensors, **{**options, "impl": impl}), wanted, strict=True
    ):
        same(got, want, (name, impl, list(options)))


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ValueError) as error:
        call()
    return str(error.value)


@every
def test_scales(name: str, impl: str) -> None:
    """Any finite scale of scores; a map gets its root, so there it must be above 0."""
    for scale in (None, 0.3, np.float64(0.3), np.float32(2), 2):
        agree(name, impl, *inputs(), scale=scale)
    attend = FUNCTIONS[name]
    bad: tuple[Any, ...] = (np.nan, np.inf, "1", True)
    for scale in (0, 0.0, -1.0, np.float64(-0.5)):
        if "softmax" in name:
            agree(name, impl, *inputs(), scale=scale)
        else:
            bad += (scale,)
    for scale in bad:
        said = {
            refusal(lambda i=i, s=scale: attend(*inputs(), scale=s, impl=i))
            for i in (impl, "torch")
        }
        assert len(said) == 1 and "scale: expected a finite number" in said.pop()


@softmaxes
@impls
@pytest.mark.parametrize("size", [FINFO.max, FINFO.min, -1e9, 1e4, -1e4])
def test_biases_at_the_end_of_the_range(name: str, impl: str, size: float) -> None:
    """A row of one huge number averages what it sees, as a padded query is written."""
    for where in (2, slice(None)):
        bias = torch.zeros(5, 5)
        bias[where] = size
        agree(name, impl, *inputs(), bias=bias)
    column = torch.zeros(5, 5)
    column[:, 1] = size
    agree(name, impl, *inputs(), bias=column)


@softmaxes
@impls
def test_biases_that_float32_cannot_hold_and_those_that_hide(name: str, impl: str) -> None:
    for wide in (1e300, -1e300):
        bias = torch.zeros(5, 5, dtype=torch.float64)
        bias[2], bias[3, 1] = wide, wide
        agree(name, impl, *inputs(), bias=bias)
    hidden = draw(5, 5, seed=5).float().masked_fill(~some(5, 5), -torch.inf)
    hidden[2] = -torch.inf
    agree(name, impl, *inputs(), bias=hidden)
    agree(name, impl, *inputs(), bias=hidden.half())


@every
def test_autocast(name: str, impl: str) -> None:
    """Same dtype, same sums: autocast reaches neither."""
    plain = FUNCTIONS[name](*inputs(), impl=impl)
    with torch.autocast("cpu", torch.bfloat16):
        same(FUNCTIONS[name](*inputs(), impl=impl), plain, tolerance=0)


@every
def test_a_query_of_nan_is_nan_alone(name: str, impl: str) -> None:
    q, k, v = inputs()
    q[0, 1, 0] = torch.nan
    out = FUNCTIONS[name](q, k, v, impl=impl)
    same(out, FUNCTIONS[name](q, k, v, impl="reference"))
    assert out.isnan().flatten(2).any(-1).tolist() == [[False, True]]


@every
def test_a_second_derivative_is_right_or_refused(name: str, impl: str) -> None:
    """Also where the incoming gradient is a constant: it must not pass as 0 in silence."""
    attend = FUNCTIONS[name]

    def penalty(impl: str) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in inputs()]
        (slope,) = torch.autograd.grad(
            attend(*leaves, impl=impl).sum(), leaves[0], create_graph=True
        )
        return list(torch.autograd.grad(slope.square().sum(), leaves, materialize_grads=True))

    try:
        got = penalty(impl)
    except RuntimeError as error:
        assert impl == "triton" or (impl == "torch" and "softmax" in name), error
        return
    for g, w in zip(got, penalty("reference"), strict=True):
        same(g, w, tolerance=1e-4)


@every
def test_function_transforms(name: str, impl: str) -> None:
    """``torch.func``: gradients, batches and per-sample gradients are right or refused."""
    q, k, v = inputs()
    attend = functools.partial(FUNCTIONS[name], impl=impl)

    def loss(q: Tensor, k: Tensor = k) -> Tensor:
        return attend(q, k, v).square().sum()

    leaf = q.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(loss(leaf), leaf)
    two, keys = torch.stack([q, 2 * q]), torch.stack([k, k.flip(2)])
    asked: dict[str, tuple[Callable[[], Tensor], Tensor]] = {
        "grad": (lambda: torch.func.grad(loss)(q), wanted),
        "vmap": (
            lambda: torch.func.vmap(lambda q, k: attend(q, k, v))(two, keys),
            torch.stack([attend(x, y, v) for x, y in zip(two, keys, strict=True)]),
        ),
        "per sample": (
            lambda: torch.func.vmap(torch.func.grad(loss), in_dims=(0, None))(two, k)[0], wanted
        ),
    }  # fmt: skip
    for what, (call, right) in asked.items():
        try:
            got = call()
        except RuntimeError as error:
            assert impl == "triton" and 'impl="reference"' in str(error), (what, error)
            continue
        same(got, right, (name, impl, what))


@every
def test_forward_mode_is_right_or_refused(name: str, impl: str) -> None:
    q, k, v = inputs()

    def along(impl: str) -> Tensor:
        attend = functools.partial(FUNCTIONS[name], impl=impl)
        return torch.func.jvp(lambda q: attend(q, k, v), (q,), (torch.ones_like(q),))[1]

    try:
        got = along(impl)
    except RuntimeError as error:
        assert impl == "triton" or "forward" in str(error), error
        assert impl != "reference", error
        return
    same(got, along("reference"), tolerance=1e-4)


@every
def test_where_there_is_no_float64(name: str, impl: str) -> None:
    """The meta device plays it; a kernel refuses tensors that are not there."""
    tensors = [x.to("meta") for x in inputs()]
    with NoDouble():
        if impl == "triton":
            with pytest.raises(RuntimeError, match="meta|CPU|GPU"):
                FUNCTIONS[name](*tensors, impl=impl)
        else:
            out = FUNCTIONS[name](*tensors, impl=impl)
            assert out.is_meta and out.shape == FUNCTIONS[name](*inputs()).shape


@impls
def test_numpy_scalars_are_numbers(impl: str) -> None:
    q, k, v = inputs(9)
    softmax = functools.partial(softmax_attention, q, k, v, impl=impl)
    same(
        softmax(causal=np.bool_(True), window=np.int64(2), scale=np.float32(0.5)),
        softmax(causal=True, window=2, scale=0.5),
    )
    weights = functools.partial(attention_weights, q, k)
    same(
        weights(causal=np.bool_(True), window=np.int64(2), scale=np.float64(0.5)),
        weights(causal=True, window=2, scale=0.5),
    )
    linear = functools.partial(linear_attention, q, k, v, impl=impl)
    size = {} if impl == "triton" else {"chunk_size": np.int64(4)}
    same(
        linear(causal=np.bool_(True), normalize=np.bool_(True), scale=np.float32(0.5), **size),
        linear(causal=True, scale=0.5),
    )
    for name, options in (("favor", {"features": 8, "seed": 3}), ("cosformer", {"max_length": 20})):
        numpy = {key: np.int64(value) for key, value in options.items()}
        assert torch.equal(
            get_feature_map(name, **numpy)(q), get_feature_map(name, **options)(q)
        ), name


@pytest.mark.parametrize("way", ["softmax", "window", "torch", *FORMS, "non-causal", "step"])
def test_a_compiler_follows_to_the_end(way: str) -> None:
    """``fullgraph=True``: no import, no check and no number of ours stops it."""
    calls: dict[str, Attend] = {
        "softmax": functools.partial(softmax_attention, causal=True),
        "window": functools.partial(softmax_attention, window=2, bias=draw(5, 5).float()),
        "torch": functools.partial(linear_attention, causal=True, scale=0.5),
        "non-causal": functools.partial(linear_attention, causal=False),
        "step": step,
    }
    calls |= {
        form: functools.partial(linear_attention, causal=True, impl="reference", form=form)
        for form in FORMS
    }
    torch.compiler.reset()
    compiled = torch.compile(
        lambda q, k, v: calls[way](q, k, v), fullgraph=True, backend="aot_eager"
    )
    for got, want in zip(
        gradients(compiled, *inputs()), gradients(calls[way], *inputs()), strict=True
    ):
        same(got, want, way)
