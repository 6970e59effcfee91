"""``course.kernels.step`` in the interpreter: the fast checks are in ``tests/mutants``."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from course.feature_maps import get_feature_map
from course.kernels import runtime
from course.linear import LinearState, linear_attention, linear_attention_step
from tests.kernels.watching import names, only_noted, poisoned
from tests.mutants.kernels_linear import (
    B,
    D,
    Dv,
    H,
    close,
    compare_step,
    past_of,
    qkv,
)

pytestmark = pytest.mark.skipif(
    runtime.refusal(torch.zeros(1)) is not None, reason=str(runtime.refusal(torch.zeros(1)))
)


def token(t: int = 0, **sizes: int):
    return tuple(x[:, :, t] for x in qkv(t + 1, **sizes))


class Module:
    """What ``compare_step`` calls: the door that users take."""

    @staticmethod
    def linear_attention_step(*args, **options):
        return linear_attention_step(*args, impl="triton", **options)


@pytest.mark.parametrize(
    ("name", "width", "columns", "past", "normalize", "scale"),
    [
        ("elu", 1, 33, True, True, 1.0),
        ("elu", 65, 1, False, False, 0.6),
        ("relu", 17, 16, True, False, 0.6),
        ("relu", 64, 5, True, True, 1.0),
        ("identity", 16, 32, False, False, 1.0),
        ("identity", 3, 65, True, False, 0.6),
        ("taylor", 2, 17, True, True, 1.0),
        ("taylor", 15, 4, False, False, 0.6),
    ],
)
def test_values_and_states(name, width, columns, past, normalize, scale):
    options = {"normalize": normalize, "scale": scale}
    compare_step(Module, name, D=width, Dv=columns, past=past, **options)


def test_steps_equal_the_whole():
    """Token by token, from the state of a pass of the kernels for sequences."""
    q, k, v = qkv(7, B=1, H=2)
    out, state = linear_attention(
        *(x[:, :, :4] for x in (q, k, v)), causal=True, impl="triton", return_state=True
    )
    outs = [out]
    for t in range(4, 7):
        o, state = linear_attention_step(*(x[:, :, t] for x in (q, k, v)), state, impl="triton")
        outs.append(o.unsqueeze(2))
    wanted, after = linear_attention(q, k, v, causal=True, return_state=True)
    close(torch.cat(outs, 2), wanted, "output")
    for got, right, name in zip(state, after, "Szt", strict=True):
        close(got, right, name)


@pytest.mark.parametrize("name", ["elu", "taylor"])
def test_one_launch(name):
    """And not one torch operation that reads or writes data."""
    C = get_feature_map(name).width(D)
    inputs, past = token(), past_of(C, Dv)
    with only_noted() as (launches, touched):
        linear_attention_step(*inputs, past, feature_map=name, impl="triton")
        linear_attention_step(*inputs, feature_map=name, impl="triton")
    assert names(launches) == ["linear_step"] * 2
    assert touched == []


@pytest.mark.parametrize("name", ["elu", "taylor"])
def test_gradients_go_through_the_kernels_for_sequences(name):
    C = get_feature_map(name).width(D)
    results = []
    for impl in ("torch", "triton"):
        leaves = [x.requires_grad_() for x in token(B=1, H=2)]
        old = past_of(C, Dv, B=1, H=2)
        S, z = old.S.requires_grad_(), old.z.requires_grad_()
        with poisoned(), runtime.counting() as launches:
            out, new = linear_attention_step(
                *leaves, LinearState(S, z, old.t), feature_map=name, scale=0.3, impl=impl
            )
            total = out.square().sum() + new.S.sum() + new.z.square().sum()
            grads = torch.autograd.grad(total, [*leaves, S, z])
        assert bool(launches) == (impl == "triton")
        results.append([out, *new, *grads])
    names = ("out", "S", "z", "t", "dq", "dk", "dv", "dS", "dz")
    for want, got, what in zip(*results, names, strict=True):
        close(got, want, what, tolerance=2e-5)


def test_no_gradient_no_graph():
    leaves = [x.requires_grad_() for x in token()]
    with torch.no_grad(), runtime.counting() as launches:
        out, _ = linear_attention_step(*leaves, impl="triton")
    assert launches == ["linear_step"] and not out.requires_grad


def test_any_dtype_of_a_state_and_empty_axes():
    past = past_of(D, Dv)
    wide = LinearState(past.S.double(), past.z.double(), past.t)
    q, k, v = token()
    for got, want in zip(
        linear_attention_step(q, k, v, wide, impl="triton"),
        linear_attention_step(q, k, v, past, impl="triton"),
        strict=True,
    ):
        pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
        assert all(torch.equal(x, y) for x, y in pairs)
    out, state = linear_attention_step(*token(B=0), impl="triton")
    assert out.shape == (0, H, Dv) and state.S.shape == (0, H, D, Dv)
    _, state = linear_attention_step(*token(H=0), impl="triton")
    _, state = linear_attention_step(*token(H=0), state, impl="triton")
    assert state.t.tolist() == [2] * B


def test_batch_and_heads_are_not_mixed():
    inputs = token()
    out, state = linear_attention_step(*inputs, impl="triton")
    for b in range(B):
        for h in range(H):
            alone = [x[b : b + 1, h : h + 1] for x in inputs]
            o, new = linear_attention_step(*alone, impl="triton")
            assert torch.equal(o[0, 0], out[b, h]) and torch.equal(new.S[0, 0], state.S[b, h])
