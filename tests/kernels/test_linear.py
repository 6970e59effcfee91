"""``course.kernels.linear`` in the interpreter: the fast checks are in ``tests/mutants``."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from course.kernels import runtime
from course.kernels.linear import MAPS, sizes
from course.linear import LinearState, linear_attention
from tests.drawing import some
from tests.kernels.watching import names, only_noted, poisoned
from tests.mutants.kernels_linear import (
    B,
    D,
    Dv,
    H,
    close,
    compare,
    definition,
    draw,
    past_of,
    qkv,
)

pytestmark = pytest.mark.skipif(
    runtime.refusal(torch.zeros(1)) is not None, reason=str(runtime.refusal(torch.zeros(1)))
)

F32, F16 = torch.float32, torch.float16


def triton(q, k, v, **options):
    """Through the door that users take, with all memory poisoned."""
    with poisoned():
        return linear_attention(q, k, v, impl="triton", **{"causal": True, **options})


class Module:
    """What ``compare`` calls."""

    linear_attention = staticmethod(triton)


# Each pair of settings that matter together occurs: length, width of keys and values, map,
# denominator, order, padding, a past, the scale, dtype, sequences and heads.
CASES = [
    # T, S, D, Dv, map, normalize, causal, masked, past, scale, dtype, B, H
    (0, 0, 5, 7, "elu", True, True, True, True, 1.0, F32, 2, 3),
    (0, 4, 5, 7, "elu", True, False, False, True, 0.6, F32, 1, 2),
    (3, 0, 5, 7, "relu", True, False, False, False, 1.0, F16, 1, 2),
    (1, 1, 16, 1, "relu", True, True, False, True, 0.6, F32, 3, 2),
    (1, 1, 1, 16, "identity", False, True, True, False, 1.0, F16, 2, 1),
    (15, 15, 33, 5, "identity", False, True, False, True, 0.6, F32, 1, 2),
    (16, 16, 1, 17, "elu", True, True, True, False, 0.6, F16, 2, 1),
    (17, 17, 17, 33, "relu", False, True, True, True, 1.0, F32, 1, 2),
    (63, 63, 6, 3, "elu", False, True, False, False, 0.6, F32, 1, 1),
    (64, 64, 3, 6, "relu", True, True, True, False, 1.0, F32, 1, 1),
    (65, 65, 65, 2, "elu", True, True, True, True, 0.6, F16, 1, 1),
    (65, 65, 2, 66, "identity", False, True, False, True, 1.0, F16, 1, 1),
    (257, 257, 4, 5, "elu", True, True, True, True, 0.6, F16, 1, 1),
    (17, 65, 3, 34, "relu", True, False, True, True, 0.6, F32, 1, 1),
    (65, 16, 34, 3, "elu", True, False, True, False, 1.0, F16, 1, 1),
    (33, 31, 5, 7, "identity", False, False, True, True, 0.6, F32, 1, 1),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)).replace("torch.", ""))
def test_values_states_and_gradients(case):
    """Against the T×S definition in float64; float16 has the error of rounding its results."""
    T, S, D, Dv, name, normalize, causal, masked, past, scale, dtype, b, h = case
    inputs = [x.to(dtype) for x in qkv(T, S, B=b, H=h, D=D, Dv=Dv)]
    compare(
        Module,
        inputs,
        past_of(D, Dv, B=b, H=h) if past else None,
        tolerance=4e-6 if dtype == F32 else 2e-3,
        feature_map=name,
        normalize=normalize,
        causal=causal,
        key_mask=some(b, S) if masked else None,
        scale=scale,
    )


def test_every_map_and_option_is_among_the_cases():
    columns = list(zip(*CASES, strict=True))
    assert set(columns[4]) == set(MAPS)
    for index in (5, 6, 7, 8):
        assert set(columns[index]) == {True, False}
    for first, second in ((6, 7), (6, 8), (7, 8), (6, 10), (7, 10), (8, 10)):
        assert len(set(zip(columns[first], columns[second], strict=True))) == 4


@pytest.mark.parametrize("cut", [0, 1, 32, 33])
def test_split_and_resume(cut):
    """Two passes with the state handed over equal one; the gradients go through the state."""
    q, k, v = qkv(34, B=1, H=2)
    mask = some(1, 34)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    dout = draw(1, 2, 34, Dv, seed=9)
    a, state = triton(*(x[:, :, :cut] for x in leaves), key_mask=mask[:, :cut], return_state=True)
    b = triton(*(x[:, :, cut:] for x in leaves), key_mask=mask[:, cut:], initial_state=state)
    out, wanted = torch.cat([a, b], 2), definition(*exact, None, key_mask=mask)[0]
    close(out, wanted, "output")
    grads = (
        torch.autograd.grad(out, leaves, dout),
        torch.autograd.grad(wanted, exact, dout.double()),
    )
    for got, right, name in zip(*grads, "qkv", strict=True):
        close(got, right, name)


def test_any_dtype_and_layout_of_a_state():
    """A state in float64, or repeated over heads without memory of its own."""
    q, k, v = qkv(3, B=1, H=2)
    past = past_of(D, Dv, B=1, H=1)
    wide = LinearState(past.S.expand(1, 2, D, Dv), past.z.expand(1, 2, D), past.t)
    wanted = definition(q, k, v, wide)[0]
    close(triton(q, k, v, initial_state=wide), wanted, "repeated")
    double = LinearState(wide.S.double(), wide.z.double(), wide.t)
    close(triton(q, k, v, initial_state=double), wanted, "float64")


@pytest.mark.parametrize("part", ["S", "z", "out"])
def test_a_gradient_from_one_part_alone(part):
    """Autograd hands on nothing for the parts that the loss does not use."""
    mine = [x.requires_grad_() for x in qkv(5, B=1, H=1)]
    exact = [x.detach().double().requires_grad_() for x in mine]
    out, state = triton(*mine, return_state=True)
    wanted = dict(zip(("out", "S", "z"), definition(*exact, None), strict=True))
    got = {"out": out, "S": state.S, "z": state.z}[part]
    dout = draw(*got.shape, seed=8)
    grads = (
        torch.autograd.grad(got, mine, dout),
        torch.autograd.grad(wanted[part], exact, dout.double(), materialize_grads=True),
    )
    for x, y, name in zip(*grads, "qkv", strict=True):
        close(x, y, name)


@pytest.mark.parametrize("causal", [True, False])
def test_launches(causal):
    """Two forward and three backward, and not one torch operation that reads or writes data."""
    leaves = [x.requires_grad_() for x in qkv(5, B=1, H=2)]
    options = {
        "key_mask": some(1, 5),
        "initial_state": past_of(D, Dv, B=1, H=2),
        "causal": causal,
        "return_state": True,
        "scale": 0.5,
    }
    with only_noted() as (launches, touched):
        out, state = linear_attention(*leaves, impl="triton", **options)
    assert names(launches) == ["linear_states", "linear_outputs"]
    assert touched == []
    douts = [draw(*x.shape, seed=7) for x in (out, state.S, state.z)]
    with only_noted() as (launches, touched):
        torch.autograd.grad([out, state.S, state.z], leaves, douts)
    again = ["linear_states"] if causal else []
    assert names(launches) == [*again, "linear_state_gradients", "linear_input_gradients"]
    assert touched == []


def test_the_counter_counts():
    with only_noted() as (_, touched):
        x = torch.ones(3)
        y = (x + 1).view(3, 1).expand(3, 2).contiguous()
        torch.empty_like(y)
    assert touched == ["ones", "add", "clone"]


def test_what_is_kept_for_the_backward_pass():
    """q, k, v, the output and 4 bytes a token; no state, and nothing of size T×T."""
    kept = {}
    leaves = [x.requires_grad_() for x in qkv(70, B=1, H=2)]
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.setdefault(x.data_ptr(), x), lambda x: x
    ):
        out = triton(*leaves)
    assert sum(x.numel() for x in kept.values()) == 70 * 2 * (2 * D + 2 * Dv + 1)
    assert out.grad_fn is not None


def test_no_graph_without_gradients():
    q, k, v = qkv(5, B=1, H=1)
    assert not triton(q, k, v).requires_grad
    k.requires_grad_()
    with torch.no_grad():
        assert not triton(q, k, v).requires_grad
    only = torch.autograd.grad(triton(q, k, v).sum(), k)
    assert only[0].shape == k.shape


def test_the_backward_pass_may_run_twice_and_differs_not_by_a_bit():
    leaves = [x.requires_grad_() for x in qkv(35, B=1, H=1)]
    out = triton(*leaves)
    one = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
    two = torch.autograd.grad(out.sum(), leaves)
    assert all(torch.equal(x, y) for x, y in zip(one, two, strict=True))


def test_the_future_changes_nothing():
    """Bit for bit, within a chunk and across; large numbers too."""
    q, k, v = qkv(35, B=1, H=1)
    before = triton(q, k, v)
    for t in (1, 31, 32):
        changed = [x.clone() for x in (q, k, v)]
        for x in changed:
            x[:, :, t:] *= -30
        changed[2][:, :, t:] *= 1e8
        assert torch.equal(triton(*changed)[:, :, :t], before[:, :, :t]), t


def test_arguments_are_left_alone():
    q, k, v = qkv(9)
    past, mask = past_of(D, Dv), some(B, 9)
    before = [x.clone() for x in (q, k, v, mask, *past)]
    leaves = [x.requires_grad_() for x in (q, k, v)]
    triton(*leaves, key_mask=mask, initial_state=past).sum().backward()
    assert all(torch.equal(x, y) for x, y in zip(before, (q, k, v, mask, *past), strict=True))


@pytest.mark.parametrize("shape", [{"B": 0}, {"H": 0}])
def test_empty_axes(shape):
    q, k, v = (x.requires_grad_() for x in qkv(5, **shape))
    out, state = triton(q, k, v, return_state=True)
    assert out.shape == (*q.shape[:3], Dv) and state.S.shape == (*q.shape[:2], D, Dv)
    assert torch.autograd.grad(out.sum(), q)[0].shape == q.shape
    assert state.t.tolist() == [5] * q.shape[0]


def test_float16_is_no_worse_than_plain():
    """Error at most twice that of the same computation done wholly in float16."""
    q, k, v = (x.half() for x in qkv(65, B=1, H=2))
    exact = definition(q, k, v, None)[0]
    fq, fk = (torch.exp(x.clamp(max=0)) + torch.relu(x) for x in (q, k))
    A = (fq @ fk.mT).tril()
    plain = A @ v / A.sum(-1, keepdim=True)
    out = triton(q, k, v)
    error = (out.double() - exact).abs().amax((-1, -2))
    allowed = 2 * (plain.double() - exact).abs().amax((-1, -2))
    assert (error <= allowed + torch.finfo(F16).eps * v.abs().max()).all()


def test_tiles_are_powers_of_two_no_larger_than_they_must_be():
    for kernel in ("linear_states", "linear_outputs", "linear_input_gradients"):
        for dtype, side in ((F16, 64), (torch.bfloat16, 64), (F32, 32)):
            for C, columns, heads in ((256, 5, 128), (65, 33, 1), (16, 1, 7), (1, 256, 2)):
                found = sizes(kernel, dtype, C, columns, heads)
                assert found["BT"] == side
                for block, width in ((found["BC"], C), (found["BV"], columns)):
                    assert 16 <= block <= side and block & (block - 1) == 0
                    assert block == 16 or block < 2 * width


def test_heads_are_not_mixed():
    """Each head alone gives what it gives among others."""
    inputs = qkv(5)
    out = triton(*inputs)
    for b in range(B):
        for h in range(H):
            alone = [x[b : b + 1, h : h + 1] for x in inputs]
            assert torch.equal(triton(*alone)[0, 0], out[b, h])
