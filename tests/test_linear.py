"""Linear attention: every form and the engine against the definition, and their properties.

A test that takes ``m`` asks the functions of ``course.linear`` and ``course.feature_maps``;
``tests/mutants/linear.py`` puts wrong ones in their place, which one of these tests at least must
refuse.
"""

from __future__ import annotations

import gc
import inspect
import itertools
import math
import types
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course.feature_maps import get_feature_map
from course.linear import (
    FORMS,
    LinearState,
    linear_attention,
    linear_attention_step,
    one_state,
    quadratic,
)
from course.linear import (
    chunk as chunks_by_formula,
)
from tests import drawing, oracles
from tests.drawing import B, D, H, close, draw, some

T, Dv = 21, 5
#: Every way to compute it: the engine, and the forms of the reference.
WAYS: dict[str, dict[str, Any]] = {
    "torch": {},
    **{form: {"impl": "reference", "form": form} for form in FORMS},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "elu": {},
    "relu": {},
    "taylor": {},
    "favor": {"features": 7},
    "cosformer": {"max_length": 600},
    "dpfp": {"nu": 2},
    "identity": {},
}


@pytest.fixture
def m() -> Any:
    return types.SimpleNamespace(
        linear_attention=linear_attention,
        linear_attention_step=linear_attention_step,
        get_feature_map=get_feature_map,
    )


def qkv(T: int = T, S: int | None = None, **sizes: int) -> tuple[Tensor, Tensor, Tensor]:
    return drawing.qkv(T, S, **{"Dv": Dv, **sizes})


def expected(name: str, q: Tensor, k: Tensor, v: Tensor, *, scale: float = 1.0, **options: Any):
    """The oracle for the maps of ``OPTIONS``; the queries are the last tokens of the keys."""
    places = torch.arange(k.shape[2]).expand(len(k), -1)
    if options.get("key_mask") is not None:
        places = (options["key_mask"].cumsum(-1) - 1).clamp(min=0)
    weights = get_feature_map("favor", features=7).weights(q.shape[-1]) if name == "favor" else None
    sim = oracles.similarity(
        name,
        q,
        k,
        q_places=places[:, places.shape[1] - q.shape[2] :],
        k_places=places,
        weights=weights,
        max_length=600,
        nu=2,
        scale=scale,
    )
    return oracles.linear_attention(sim, v, normalize=name != "identity", **options)


def run(m: Any, name: str, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    fm = m.get_feature_map(name, **OPTIONS[name])
    options = {"causal": True, "normalize": name != "identity", **options}
    return m.linear_attention(q, k, v, feature_map=fm, **options)


def steps(m: Any, name: str, q: Tensor, k: Tensor, v: Tensor, state: Any = None, **options: Any):
    fm = m.get_feature_map(name, **OPTIONS[name])
    outs = []
    for t in range(q.shape[2]):
        o, state = m.linear_attention_step(
            q[:, :, t],
            k[:, :, t],
            v[:, :, t],
            state,
            feature_map=fm,
            normalize=name != "identity",
            **options,
        )
        outs.append(o)
    return torch.stack(outs, 2), state


def test_every_form_equals_the_definition(m: Any) -> None:
    q, k, v = qkv()
    for name in OPTIONS:
        for form in WAYS:
            for causal in (True, False):
                out = run(m, name, q, k, v, **WAYS[form], causal=causal, chunk_size=8)
                close(out, expected(name, q, k, v, causal=causal), (name, form, causal))


def test_elu_is_stable(m: Any) -> None:
    for dtype, xs in (
        (torch.bfloat16, (-6.5, -12.0, -40.0, -80.0)),
        (torch.float16, (-8.5, -9.5)),
        (torch.float32, (-17.5, -40.0, -86.0)),
    ):
        for n in (1, 31, 32, 200):
            for x in xs:
                leaf = torch.full((n, 1), x, dtype=dtype, requires_grad=True)
                f = m.get_feature_map("elu")(leaf)
                f.sum().backward()
                exact = math.exp(leaf[0].item())
                tolerance = 2 * torch.finfo(dtype).eps
                if dtype == torch.float16:
                    tolerance += 2.0**-24 / exact  # below 2⁻¹⁴ float16 counts in steps of 2⁻²⁴
                for got in (f, leaf.grad):
                    assert (got.double() / exact - 1).abs().max() <= tolerance, (dtype, x, n)


def test_an_all_negative_input_has_features(m: Any) -> None:
    x = -draw(3, 5, seed=1).abs()
    for name in ("elu", "dpfp", "taylor", "favor"):
        assert m.get_feature_map(name)(x).any(-1).all(), name


def test_favor_stays_finite(m: Any) -> None:
    """Keys along a direction of W, of any length, and beside them ordinary ones."""
    for width in (4, 64):
        fm = m.get_feature_map("favor", features=40, seed=3)
        w = fm.weights(width).float()
        for length in (0.5, 1.0, 3.0):
            x = (length * w)[None, None]
            f = fm(x)
            assert f.isfinite().all() and (f >= 0).all(), (width, length)
            out = m.linear_attention(x, x, x, feature_map=fm, causal=True)
            assert out.isfinite().all(), (width, length)


def test_a_signed_map_has_no_denominator(m: Any) -> None:
    q, k, v = qkv()
    for form in WAYS:
        try:
            m.linear_attention(q, k, v, feature_map="identity", **WAYS[form], causal=True)
        except ValueError as error:
            assert "feature_map" in str(error) and "normalize" in str(error)
        else:
            raise AssertionError(f"{form}: a signed map was divided by its sum")


def test_every_form_has_the_same_defaults(m: Any) -> None:
    full = inspect.signature(m.linear_attention).parameters
    step = inspect.signature(m.linear_attention_step).parameters
    for name in ("feature_map", "normalize", "scale"):
        assert full[name].default == step[name].default, name
    q, k, v = qkv()
    for form in WAYS:
        out = m.linear_attention(q, k, v, **WAYS[form], causal=True)
        assert isinstance(out, Tensor), (form, "a state nobody asked for")
        close(out, expected("elu", q, k, v), form)


def test_the_step_equals_the_full_pass(m: Any) -> None:
    q, k, v = qkv()
    for name in OPTIONS:
        out, state = steps(m, name, q, k, v, scale=0.7)
        close(out, expected(name, q, k, v, scale=0.7), name)
        whole = run(m, name, q, k, v, scale=0.7, return_state=True)[1]
        for got, wanted, field in zip(state, whole, "Szt", strict=True):
            close(got, wanted, (name, field))


def test_the_step_leaves_its_state_alone(m: Any) -> None:
    q, k, v = qkv(T=3)
    _, state = steps(m, "elu", q, k, v)
    before = [x.clone() for x in state]
    steps(m, "elu", q, k, v, state)
    m.linear_attention(q, k, v, initial_state=state, causal=True)
    assert all(torch.equal(a, b) for a, b in zip(before, state, strict=True)), "state was changed"


def test_the_scale_acts_once(m: Any) -> None:
    q, k, v = qkv()
    for name in ("taylor", "favor", "elu", "identity"):
        for form in WAYS:
            out = run(m, name, q, k, v, **WAYS[form], scale=0.3)
            close(out, expected(name, q, k, v, scale=0.3), (name, form))
    fm = m.get_feature_map("taylor")
    s = q @ k.mT
    close(fm(q) @ fm(k).mT, 1 + s + s * s / 2, "Taylor contains a scale of its own")


def test_gradients_do_not_cancel(m: Any) -> None:
    """A suffix sum as total − prefix loses 1 beside 32 × 1e8."""
    T = 96
    v = torch.ones(1, 1, T, 1)
    k = torch.ones(1, 1, T, 1, requires_grad=True)
    q = torch.ones(1, 1, T, 1)
    dout = torch.ones(1, 1, T, 1)
    dout[:, :, :32] = 1e8
    for form in WAYS:
        out = m.linear_attention(
            q,
            k,
            v,
            feature_map="identity",
            normalize=False,
            **WAYS[form],
            chunk_size=16,
            causal=True,
        )
        (grad,) = torch.autograd.grad(out, k, dout)
        close(grad[0, 0, -1, 0], torch.tensor(1.0), form, 1e-6)
        close(grad[0, 0, 40, 0], torch.tensor(56.0), form, 1e-6)


def test_the_backward_pass_may_run_twice(m: Any) -> None:
    for chunk in (2, 8):  # fewer and more tokens than features
        leaves = [x.requires_grad_() for x in qkv()]
        out = run(m, "elu", *leaves, chunk_size=chunk)
        one = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
        two = torch.autograd.grad(out.sum(), leaves)
        for a, b in zip(one, two, strict=True):
            close(a, b, chunk)


def test_small_denominators_survive(m: Any) -> None:
    """An epsilon in the denominator pulls the average of small similarities to 0."""
    v = torch.full((1, 1, 9, Dv), 3.0)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.full((1, 1, 9, D), 2.0**-13, dtype=dtype)
        for form in WAYS:
            out = m.linear_attention(
                x, x, v.to(dtype), feature_map="relu", **WAYS[form], causal=True
            )
            close(out, v, (dtype, form), 1e-3)


def test_large_numerators_survive_float16(m: Any) -> None:
    q = torch.full((1, 1, 70, D), 20.0, dtype=torch.float16)
    v = torch.full((1, 1, 70, Dv), 3.0, dtype=torch.float16)
    for form in WAYS:
        out = m.linear_attention(q, q, v, feature_map="taylor", **WAYS[form], causal=True)
        assert (out == 3).all(), (form, out.flatten()[0])
    out, _ = m.linear_attention_step(q[:, :, 0], q[:, :, 0], v[:, :, 0], feature_map="taylor")
    assert (out == 3).all(), "step"


def test_far_negative_inputs_still_average(m: Any) -> None:
    q, k, v = (x.float() for x in qkv())
    for form in WAYS:
        leaves = [(q - 18).requires_grad_(), (k - 18).requires_grad_(), v.requires_grad_()]
        out = m.linear_attention(*leaves, **WAYS[form], causal=True)
        close(out, expected("elu", *leaves), form, 1e-4)
        out.sum().backward()
        for x in leaves:
            assert x.grad is not None and x.grad.isfinite().all(), form


def test_a_sequence_may_be_split(m: Any) -> None:
    q, k, v = qkv()
    for name in OPTIONS:
        whole = run(m, name, q, k, v)
        for form in WAYS:
            one, state = run(
                m, name, *(x[:, :, :9] for x in (q, k, v)), **WAYS[form], return_state=True
            )
            two = run(m, name, *(x[:, :, 9:] for x in (q, k, v)), **WAYS[form], initial_state=state)
            close(torch.cat([one, two], 2), whole, (name, form))


def test_a_prefix_does_not_depend_on_the_length(m: Any) -> None:
    q, k, v = qkv(T=35)
    for name in OPTIONS:
        for form in WAYS:
            whole = run(m, name, q, k, v, **WAYS[form])
            part = run(m, name, *(x[:, :, :13] for x in (q, k, v)), **WAYS[form])
            close(part, whole[:, :, :13], (name, form))


def test_a_row_that_sees_nothing_is_zero(m: Any) -> None:
    for normalize in (True, False):
        for form in WAYS:
            for causal in (True, False):
                leaves = [x.requires_grad_() for x in qkv()]
                mask = torch.ones(B, T, dtype=torch.bool)
                mask[0, :5] = False
                mask[1] = False
                out = m.linear_attention(
                    *leaves,
                    **WAYS[form],
                    causal=causal,
                    normalize=normalize,
                    key_mask=mask,
                    chunk_size=8,
                )
                dead = out[:, :, :5] if causal else out[1:]
                assert not dead.any(), (form, causal, "not zero")
                grads = torch.autograd.grad(dead, leaves, torch.ones_like(dead))
                assert not any(g.any() for g in grads), (form, causal, "a gradient")


def test_the_future_changes_nothing(m: Any) -> None:
    for name in OPTIONS:
        q, k, v = (x.float() for x in qkv(T=35))
        for form in WAYS:
            before = run(m, name, q, k, v, **WAYS[form], chunk_size=8)
            for t in (1, 7, 8, 20, 34):
                changed = [x.clone() for x in (q, k, v)]
                for x in changed:
                    x[:, :, t:] *= -3
                after = run(m, name, *changed, **WAYS[form], chunk_size=8)
                assert torch.equal(before[:, :, :t], after[:, :, :t]), (name, form, t)
            # Large future values must not cost the past its digits either.
            huge = v.clone()
            huge[:, :, 20:] *= 1e8
            after = run(m, name, q, k, huge, **WAYS[form], chunk_size=8)
            assert torch.equal(before[:, :, :20], after[:, :, :20]), (name, form, "large future")


def test_sums_are_kept_in_float32(m: Any) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        n = 3000
        q, k, v = (torch.ones(1, 1, n, d, dtype=dtype) for d in (2, 2, 3))
        for form in WAYS:
            out, state = m.linear_attention(
                q, k, v, feature_map="relu", **WAYS[form], return_state=True, causal=True
            )
            assert out.dtype == dtype and state.S.dtype == state.z.dtype == torch.float32
            assert (state.z == n).all() and state.S.eq(n).all(), (form, dtype, state.z)
            assert (out == 1).all(), (form, dtype)
        _, state = m.linear_attention_step(
            q[:, :, 0], k[:, :, 0], v[:, :, 0], state, feature_map="relu"
        )
        assert (state.z == n + 1).all(), dtype


def test_padding_changes_nothing(m: Any) -> None:
    dout = draw(B, H, T, Dv, seed=4)
    for name in OPTIONS:
        leaves = [x.requires_grad_() for x in qkv()]
        plain, state = run(m, name, *leaves, return_state=True)
        wanted = torch.autograd.grad(plain, leaves, dout)
        for left, right in ((6, 0), (0, 6), (2, 3)):
            mask = torch.zeros(B, left + T + right, dtype=torch.bool)
            mask[:, left : left + T] = True
            pad = (0, 0, left, right)
            for form in WAYS:
                longer = [torch.nn.functional.pad(x.detach(), pad, value=0.7) for x in leaves]
                for x in longer[1:]:
                    x[:, :, ~mask[0]] = math.nan
                longer = [x.requires_grad_() for x in longer]
                out, after = run(
                    m, name, *longer, **WAYS[form], key_mask=mask, chunk_size=8, return_state=True
                )
                close(out[:, :, left : left + T], plain, (name, form, left))
                for a, b, field in zip(after, state, "Szt", strict=True):
                    close(a, b, (name, form, left, field))
                out[:, :, left : left + T].backward(dout)
                for x, w, argument in zip(longer, wanted, "qkv", strict=True):
                    assert x.grad is not None
                    close(x.grad[:, :, left : left + T], w, (name, form, left, argument))
                    assert not x.grad[:, :, ~mask[0]].any(), (name, form, "padding has a gradient")


def test_gradients_equal_the_definition(m: Any) -> None:
    dout = draw(B, H, T, Dv, seed=4)
    for name in OPTIONS:
        leaves = [x.requires_grad_() for x in qkv()]
        wanted = torch.autograd.grad(expected(name, *leaves), leaves, dout)
        for form in WAYS:
            got = torch.autograd.grad(
                run(m, name, *leaves, **WAYS[form], chunk_size=8), leaves, dout
            )
            for g, w, argument in zip(got, wanted, "qkv", strict=True):
                close(g, w, (name, form, argument))


def test_the_form_asked_for_is_the_one_that_runs() -> None:
    """The forms give one result but for rounding; bit by bit each is its own."""
    q, k, v = (x.float() for x in qkv(150))
    map_, zero = get_feature_map("elu"), torch.zeros(B, H, D, Dv)
    Q, K = map_(q), map_(k)
    alone = {name: form(Q, K, v, zero)[0] for name, form in FORMS.items()}
    alone["chunks of 16"] = chunks_by_formula(Q, K, v, zero, 16)[0]
    asked = {name: {"form": name} for name in FORMS} | {"chunks of 16": {"chunk_size": 16}}
    asked |= {"chunk": {}}
    for name, way in asked.items():
        out = attend("elu", q, k, v, impl="reference", normalize=False, **way)
        assert [other for other, x in alone.items() if torch.equal(x, out)] == [name]
    both = {"form": "chunk", "chunk_size": 16}
    out = attend("elu", q, k, v, impl="reference", normalize=False, **both)
    assert torch.equal(out, alone["chunks of 16"])
    for form, function in (("parallel", quadratic), ("scan", one_state), (None, one_state)):
        out = attend("elu", q, k, v, impl="reference", normalize=False, causal=False, form=form)
        assert torch.equal(out, function(Q, K, v, zero)[0])
    assert not torch.equal(quadratic(Q, K, v, zero)[0], one_state(Q, K, v, zero)[0])


LENGTHS = [0, 1, 2, 15, 16, 17, 63, 64, 65, 100, 257]


def attend(name, q, k, v, **options):
    options = {"causal": True, "normalize": name != "identity", **options}
    fm = get_feature_map(name, **OPTIONS[name])
    return linear_attention(q, k, v, feature_map=fm, **options)


# What changes from case to case, drawn so that every pair of settings meets somewhere.
CAUSAL, MASKED, PAST, SCALE, CHUNK = (True, False), (False, True), (0, 5), (1.0, 0.6), (None, 7, 16)
SETTINGS = list(itertools.product(CAUSAL, MASKED, PAST, SCALE, CHUNK))


@pytest.mark.parametrize("T", LENGTHS)
@pytest.mark.parametrize("name", OPTIONS)
def test_all_forms_equal_the_definition(name, T):
    """Output, final state and gradients, plain and in two of the other settings."""
    index = list(OPTIONS).index(name) * len(LENGTHS) + LENGTHS.index(T)
    for case in {0, (7 * index) % len(SETTINGS), (11 * index + 5) % len(SETTINGS)}:
        causal, masked, past, scale, chunk = SETTINGS[case]
        q, k, v = qkv(T, T + past)
        mask = some(B, T + past) if masked else None
        leaves = [x.requires_grad_() for x in (q, k, v)]
        wanted = expected(name, *leaves, causal=causal, key_mask=mask, scale=scale)
        dout = draw(B, H, T, Dv, seed=5)
        grads = torch.autograd.grad(wanted, leaves, dout, materialize_grads=True)
        for form in WAYS:
            state = None
            if past:
                old = (q[:, :, :0], k[:, :, :past], v[:, :, :past])
                old_mask = None if mask is None else mask[:, :past]
                state = attend(
                    name,
                    *old,
                    causal=False,
                    **WAYS[form],
                    key_mask=old_mask,
                    scale=scale,
                    return_state=True,
                )[1]
            out, after = attend(
                name,
                q,
                k[:, :, past:],
                v[:, :, past:],
                causal=causal,
                **WAYS[form],
                key_mask=None if mask is None else mask[:, past:],
                initial_state=state,
                scale=scale,
                chunk_size=chunk,
                return_state=True,
            )
            close(out, wanted, (form, case))
            seen = torch.full((B,), T + past) if mask is None else mask.sum(-1)
            assert torch.equal(after.t, seen)
            got = torch.autograd.grad(out, leaves, dout, materialize_grads=True)
            for g, w, argument in zip(got, grads, "qkv", strict=True):
                close(g, w, (form, case, argument))


@pytest.mark.parametrize("form", WAYS)
@pytest.mark.parametrize("name", OPTIONS)
def test_gradcheck(name, form):
    """All inputs and both parts of the state, through output and state."""
    T = 5
    q, k, v = qkv(T, B=1, H=2, D=2)
    v = v[..., :3].clone()
    fm = get_feature_map(name, **OPTIONS[name])
    past = attend(name, q[:, :, :0], k + 0.3, v, causal=False, return_state=True)[1]
    leaves = [x.detach().requires_grad_() for x in (q, k, v, past.S, past.z)]

    def function(q, k, v, S, z):
        out, state = linear_attention(
            q,
            k,
            v,
            feature_map=fm,
            **WAYS[form],
            normalize=name != "identity",
            key_mask=torch.tensor([[True, False, True, True, True]]),
            initial_state=LinearState(S, z, torch.tensor([5])),
            return_state=True,
            chunk_size=2,
            scale=0.8,
            causal=True,
        )
        return out, state.S, state.z

    assert torch.autograd.gradcheck(function, leaves, fast_mode=form != "chunk")


@pytest.mark.parametrize("form", WAYS)
def test_gradcheck_of_one_state_and_without_the_denominator(form):
    q, k, v = (x[..., :2].clone().requires_grad_() for x in qkv(3, 5, B=1, H=2, D=2))
    for normalize in (True, False):
        assert torch.autograd.gradcheck(
            lambda *x, n=normalize: linear_attention(*x, **WAYS[form], causal=False, normalize=n),
            (q, k, v),
        )
    assert torch.autograd.gradcheck(
        lambda *x: linear_attention(*x, **WAYS[form], normalize=False, chunk_size=2, causal=True),
        (q, k[:, :, :3], v[:, :, :3]),
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_gradcheck_of_the_step(name):
    q, k, v = (x[:1, :2, 0].clone().requires_grad_() for x in qkv(1))
    fm = get_feature_map(name, **OPTIONS[name])
    C = fm.width(D)
    S, z = draw(1, 2, C, Dv, seed=6), draw(1, 2, C, seed=7).abs() + 3
    if name == "taylor":  # a z that no keys could give may make the denominator vanish
        z = fm(draw(1, 2, 4, D, seed=8)).sum(2)

    def function(q, k, v, S, z):
        out, state = linear_attention_step(
            q,
            k,
            v,
            LinearState(S, z, torch.tensor([3])),
            feature_map=fm,
            normalize=name != "identity",
        )
        return out, state.S, state.z

    assert torch.autograd.gradcheck(function, (q, k, v, S.requires_grad_(), z.requires_grad_()))


@given(st.data())
def test_any_cut_any_form_any_chunk(data):
    """Two passes with the state handed over equal one, gradients through the state included."""
    name = data.draw(st.sampled_from(list(OPTIONS)))
    T = data.draw(st.integers(0, 70))
    cut = data.draw(st.integers(0, T))
    one, two = data.draw(st.sampled_from(list(WAYS))), data.draw(st.sampled_from(list(WAYS)))
    sizes = data.draw(st.tuples(st.integers(1, 80), st.integers(1, 80)))
    mask = some(B, T, seed=data.draw(st.integers(0, 9))) if data.draw(st.booleans()) else None
    leaves = [x.requires_grad_() for x in qkv(T)]
    dout = draw(B, H, T, Dv, seed=5)

    def masks(part):
        return None if mask is None else mask[:, part]

    whole = attend(name, *leaves, key_mask=mask)
    first, second = slice(0, cut), slice(cut, T)
    a, state = attend(
        name,
        *(x[:, :, first] for x in leaves),
        key_mask=masks(first),
        **WAYS[one],
        chunk_size=sizes[0],
        return_state=True,
    )
    b = attend(
        name,
        *(x[:, :, second] for x in leaves),
        key_mask=masks(second),
        **WAYS[two],
        chunk_size=sizes[1],
        initial_state=state,
    )
    parts = torch.cat([a, b], 2)
    close(parts, whole, "output")
    for g, w in zip(
        torch.autograd.grad(parts, leaves, dout),
        torch.autograd.grad(whole, leaves, dout),
        strict=True,
    ):
        close(g, w, "gradient")


@pytest.mark.parametrize("chunk", [1, 2, 3, 16, 64, 100, 1024, 5000])
def test_chunk_size_does_not_matter(chunk):
    leaves = [x.requires_grad_() for x in qkv(1100, B=1, H=2)]
    dout = draw(1, 2, 1100, Dv, seed=5)
    for name in ("elu", "identity"):
        results = []
        for way in ({"impl": "reference", "form": "parallel"}, {"chunk_size": chunk}):
            out = attend(name, *leaves, **way)
            results.append([out, *torch.autograd.grad(out, leaves, dout)])
        for got, wanted in zip(*results, strict=True):
            close(got, wanted, (name, chunk))


@pytest.mark.parametrize(("b", "h"), [(1, 1), (5, 7)])
@pytest.mark.parametrize("T", [8, 9, 40, 1040, 1041])
def test_every_way_to_cut_tiles(b, h, T):
    """Several heads at once, one head in several tiles, a rest behind; C above the chunk."""
    if b * h > 1 and T > 1000:
        b, h = 1, 2
    leaves = [x.requires_grad_() for x in qkv(T, B=b, H=h)]
    dout = draw(b, h, T, Dv, seed=5)
    mask = some(b, T)
    for name, chunk in (("taylor", 8), ("elu", 8), ("elu", 64)):
        results = []
        for form in ("parallel", "chunk"):
            out, state = attend(
                name, *leaves, **WAYS[form], chunk_size=chunk, key_mask=mask, return_state=True
            )
            total = (out * dout).sum() + state.S.sum() + 3 * state.z.sum()
            results.append([out, *torch.autograd.grad(total, leaves)])
        for got, wanted in zip(*results, strict=True):
            close(got, wanted, (name, chunk))


class Counted(torch.nn.Module):
    """The features of elu, and how many tokens of all heads were asked for at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = get_feature_map("elu")
        self.tokens: list[int] = []

    def width(self, D: int) -> int:
        return self.inner.width(D)

    def forward(self, x: Tensor) -> Tensor:
        self.tokens.append(x.numel() // x.shape[-1])
        return self.inner(x)


@pytest.mark.parametrize(
    ("b", "h", "T", "S", "calls"),
    [
        (1, 1, 5000, 3000, 3 + 2),  # one head in tiles of 2,048 tokens
        (1, 3, 3000, 5000, 3 * (2 + 3)),  # a head at a time, each in tiles
        (2, 3, 700, 900, 3 * 2),  # two heads at once
        (2, 3, 900, 700, 3 * 2),
        (2, 3, 1, 1, 2),  # all at once
    ],
)
def test_without_order_heads_and_tokens_go_in_tiles(b, h, T, S, calls):
    q, k, v = qkv(T, S, B=b, H=h)
    mask = some(b, S)
    counted, results = Counted(), []
    for fm, way in ((counted, {}), ("elu", {"impl": "reference", "form": "parallel"})):
        out, state = linear_attention(
            q, k, v, causal=False, feature_map=fm, key_mask=mask, return_state=True, **way
        )
        results.append((out, state.S, state.z))
    for got, wanted in zip(*results, strict=True):
        close(got, wanted, (b, h, T, S))
    assert len(counted.tokens) == calls
    assert max(counted.tokens) <= 2048


@pytest.mark.parametrize("form", WAYS)
@pytest.mark.parametrize("sizes", [{"B": 1}, {"D": 1}, {"B": 0}, {"H": 1, "D": 2}])
def test_small_axes(form, sizes):
    for T in (0, 1, 3):
        q, k, v = qkv(T, **sizes)
        for name in OPTIONS:
            close(attend(name, q, k, v, **WAYS[form]), expected(name, q, k, v), (name, T))


@pytest.mark.parametrize("form", WAYS)
def test_without_order_the_order_of_keys_does_not_matter(form):
    q, k, v = qkv(6, 11)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    for name in ("elu", "taylor", "dpfp", "favor"):
        one = attend(name, q, k, v, causal=False, **WAYS[form])
        close(
            attend(name, q, k[:, :, order], v[:, :, order], causal=False, **WAYS[form]), one, name
        )


@pytest.mark.parametrize("form", WAYS)
def test_positions_of_queries_without_order(form):
    """T = S: a query stands where its key does; else it counts from 0."""
    q, k, v = qkv(6, 6)
    mask = torch.tensor([[False, True, True, False, True, True], [True] * 6])
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    sim = oracles.similarity("cosformer", q, k, q_places=places, k_places=places, max_length=600)
    wanted = oracles.linear_attention(sim, v, causal=False, key_mask=mask)
    close(attend("cosformer", q, k, v, causal=False, **WAYS[form], key_mask=mask), wanted, form)
    q = q[:, :, :4]
    own = torch.arange(4).expand(B, -1)
    sim = oracles.similarity("cosformer", q, k, q_places=own, k_places=places, max_length=600)
    wanted = oracles.linear_attention(sim, v, causal=False, key_mask=mask)
    close(attend("cosformer", q, k, v, causal=False, **WAYS[form], key_mask=mask), wanted, form)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", WAYS)
def test_low_precision_is_no_worse_than_plain(form, dtype):
    """Per row, error at most twice that of the same computation done wholly in ``dtype``."""
    for name, T in (("elu", 65), ("taylor", 30), ("relu", 100)):
        q, k, v = (x.to(dtype) for x in qkv(T))
        exact = expected(name, q.double(), k.double(), v.double())
        fm = get_feature_map(name)
        fq, fk = fm(q), fm(k)
        A = (fq @ fk.mT).tril()
        total = A.sum(-1, keepdim=True)
        plain = torch.where(total == 0, 0, A @ v / torch.where(total == 0, 1, total))
        out = attend(name, q, k, v, **WAYS[form])
        assert out.dtype == dtype
        error = (out.double() - exact).abs().amax((-1, -2))
        allowed = 2 * (plain.double() - exact).abs().amax((-1, -2))
        assert (error <= allowed + torch.finfo(dtype).eps * v.abs().max()).all(), (name, error)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", WAYS)
def test_low_precision_gradients(form, dtype):
    leaves = [x.to(dtype).requires_grad_() for x in qkv(65)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    dout = draw(B, H, 65, Dv, seed=5).to(dtype)
    wanted = torch.autograd.grad(expected("elu", *exact), exact, dout.double())
    got = torch.autograd.grad(attend("elu", *leaves, **WAYS[form]), leaves, dout)
    for g, w in zip(got, wanted, strict=True):
        assert g.dtype == dtype
        close(g, w, form, 4 * torch.finfo(dtype).eps)


def test_the_state_stays_wide():
    for dtype, wide in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        q, k, v = (x.to(dtype) for x in qkv(5))
        for form in WAYS:
            state = linear_attention(q, k, v, **WAYS[form], return_state=True, causal=True)[1]
            assert state.S.dtype == state.z.dtype == wide and state.t.dtype == torch.int64
            for past in (None, state):
                out, after = linear_attention_step(q[:, :, 0], k[:, :, 0], v[:, :, 0], past)
                assert out.dtype == dtype and after.S.dtype == after.z.dtype == wide


@pytest.mark.parametrize("form", WAYS)
def test_autocast_does_not_reach_the_sums(form):
    q, k, v = (x.float() for x in qkv(40))
    plain = linear_attention(q, k, v, **WAYS[form], causal=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(linear_attention(q, k, v, **WAYS[form], causal=True), plain)


@pytest.mark.parametrize("form", WAYS)
@pytest.mark.parametrize("name", ["elu", "identity", "taylor"])
def test_strides_do_not_matter(name, form):
    """Inputs cut out of NaN, heads behind tokens, and gradients that are one number repeated."""
    plain = [x.requires_grad_() for x in qkv(33)]
    out = attend(name, *plain, **WAYS[form], chunk_size=8)
    wanted = torch.autograd.grad(out.sum(), plain)
    dense = torch.autograd.grad(
        attend(name, *plain, **WAYS[form], chunk_size=8), plain, torch.ones_like(out)
    )
    for w, d in zip(wanted, dense, strict=True):
        close(w, d, "stride 0")
    shapes = {
        "cut from NaN": oracles.cut_from_nan,
        "heads last": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        "width first": lambda x: x.mT.contiguous().mT,
    }
    for what, change in shapes.items():
        leaves = [change(x.detach()).requires_grad_() for x in plain]
        other = attend(name, *leaves, **WAYS[form], chunk_size=8)
        close(other, out, what)
        for g, w in zip(torch.autograd.grad(other.sum(), leaves), wanted, strict=True):
            close(g, w, what)


@pytest.mark.parametrize("form", WAYS)
def test_arguments_are_left_alone(form):
    q, k, v = qkv(20)
    mask = some(B, 20)
    state = linear_attention(q, k, v, return_state=True, causal=True)[1]
    before = [x.clone() for x in (q, k, v, mask, *state)]
    leaves = [x.requires_grad_() for x in (q, k, v)]
    for name in ("elu", "identity"):
        out = attend(name, *leaves, **WAYS[form], key_mask=mask, initial_state=state, scale=0.5)
        out.sum().backward()
    for x, y in zip((q, k, v, mask, *state), before, strict=True):
        assert torch.equal(x, y)


def test_chunk_form_gives_only_the_gradients_asked_for():
    q, k, v = qkv(20)
    v.requires_grad_()
    (only,) = torch.autograd.grad(linear_attention(q, k, v, causal=True).sum(), v)
    every = [x.detach().requires_grad_() for x in (q, k, v)]
    close(
        only, torch.autograd.grad(linear_attention(*every, causal=True).sum(), every)[2], "v alone"
    )
    with torch.no_grad():
        assert not linear_attention(*every, causal=True).requires_grad


@pytest.mark.parametrize("form", WAYS)
def test_a_map_that_learns_gets_its_gradient(form):
    class Learned(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(draw(6, D, seed=8))

        def width(self, D):
            return 6

        def forward(self, x):
            return torch.nn.functional.softplus(x @ self.w.T)

    fm = Learned()
    leaves = [x.requires_grad_() for x in qkv(20)]
    mask = some(B, 20)
    grads = []
    for f in ("parallel", form):
        options = {"key_mask": mask, "scale": 0.5, "causal": True, **WAYS[f]}
        out = linear_attention(*leaves, feature_map=fm, **options)
        grads.append(torch.autograd.grad(out.sum(), [fm.w, *leaves]))
    for g, w in zip(*grads, strict=True):
        close(g, w, form)


@pytest.mark.parametrize("form", WAYS)
def test_nan_goes_where_its_token_is_seen_and_nowhere_else(form):
    q, k, v = qkv(20)
    k = k.clone()
    k[0, 1, 12] = math.nan
    out = linear_attention(q, k, v, **WAYS[form], chunk_size=8, causal=True)
    assert out[0, 1, 12:].isnan().all(), "a visible NaN was hidden"
    assert not out[1].isnan().any() and not out[0, [0, 2]].isnan().any()
    assert not out[0, 1, :12].isnan().any(), "the future reached the past"


def test_scan_stores_every_state_and_chunk_none():
    """Of the tensors that autograd keeps, the largest is T·D·(Dv + 1) or T·Dv."""
    sizes = {}
    for form in ("scan", "torch"):
        kept = []

        def pack(x, kept=kept):
            kept.append(x.numel())
            return x

        leaves = [x.requires_grad_() for x in qkv(128)]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            linear_attention(*leaves, **WAYS[form], causal=True)
        sizes[form] = max(kept)
    assert sizes == {"scan": B * H * 128 * D * (Dv + 1), "torch": B * H * 128 * Dv}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": torch.ones(2, 3, 4)}, r"q: expected 4 axes \[B H T D\], got 3"),
        ({"k": torch.ones(2, 1, 21, 4)}, "q and k: expected equal sizes on axis H"),
        ({"q": torch.ones(2, 3, 21, 7)}, "q and k: expected equal sizes on axis D"),
        ({"v": torch.ones(2, 3, 20, 5)}, "k and v: expected equal sizes on axis S"),
        ({"v": torch.ones(2, 3, 21, 5).double()}, "expected one dtype"),
        ({"q": torch.ones(2, 3, 21, 4).long()}, "q: expected floating-point numbers"),
        ({"k": torch.ones(3, 21, 4)}, r"^k: expected 4 axes \[B H S D\]"),
        ({"v": torch.ones(3, 21, 5)}, r"^v: expected 4 axes \[B H S Dv\]"),
        ({"q": torch.ones(1, 3, 21, 4)}, "^q and k: expected equal sizes on axis B"),
        ({"v": torch.ones(1, 3, 21, 5)}, "^k and v: expected equal sizes on axis B"),
        ({"v": torch.ones(2, 2, 21, 5)}, "^k and v: expected equal sizes on axis H"),
        ({"q": torch.ones(2, 3, 21, 4).double()}, "^q and k and v: expected one dtype"),
        ({"k": torch.ones(2, 3, 21, 4).double()}, "^q and k and v: expected one dtype"),
        ({"q": torch.ones(2, 3, 20, 4)}, "expected T = S when causal, got T = 20 and S = 21"),
        ({"key_mask": torch.ones(2, 20).bool()}, "k and key_mask: expected equal sizes on axis S"),
        ({"key_mask": torch.ones(2, 21)}, "key_mask: expected a boolean tensor"),
        ({"key_mask": torch.ones(2, 3, 21).bool()}, r"key_mask: expected 2 axes \[B S\]"),
        ({"feature_map": "identity"}, "feature_map: expected .*normalize=True, got .*identity"),
        ({"feature_map": "cosine"}, "feature_map: expected one of"),
        ({"feature_map": torch.nn.ReLU()}, r"feature_map: expected .*\.width"),
        ({"feature_map": torch.relu}, "feature_map: expected a name or a module"),
        ({"form": "fast"}, "form: expected one of parallel, scan, recurrent, chunk, got 'fast'"),
        ({"form": "chunk"}, "form: expected None unless impl=\"reference\", got 'chunk'"),
        ({"impl": "fast"}, "impl: expected one of torch, reference, triton, got 'fast'"),
        ({"chunk_size": 0}, "chunk_size: expected a whole number of at least 1, got 0"),
        (
            {"chunk_size": 5, "impl": "triton"},
            'chunk_size: expected None with impl="triton", got 5',
        ),
        ({"scale": -1.0}, "scale: expected a finite number above 0, got -1.0"),
        ({"scale": "1"}, "scale: expected a finite number above 0, got '1'"),
        ({"scale": 10**400}, "scale: expected a finite number above 0, got 1000"),
        ({"causal": "no"}, "causal: expected True or False, got 'no'"),
        ({"normalize": 1}, "normalize: expected True or False, got 1"),
        ({"return_state": "no"}, "return_state: expected True or False, got 'no'"),
        ({"q": torch.ones(2, 3, 21, 0), "k": torch.ones(2, 3, 21, 0)}, "D: expected .* got 0"),
        ({"v": torch.ones(2, 3, 21, 0)}, "Dv: expected a whole number of at least 1, got 0"),
        ({"initial_state": torch.ones(2, 3, 4, 5)}, "initial_state: expected a LinearState"),
        (
            {
                "initial_state": LinearState(
                    torch.ones(2, 3, 5, 4), torch.ones(2, 3, 4), torch.ones(2)
                )
            },
            r"initial_state.S: expected \[B H C Dv\] = \[2, 3, 4, 5\], got \[2, 3, 5, 4\]",
        ),
        (
            {
                "initial_state": LinearState(
                    torch.ones(2, 3, 4, 5), torch.ones(2, 3, 4), torch.ones(3)
                )
            },
            r"initial_state.t: expected \[B\] = \[2\], got \[3\]",
        ),
    ],
)
def test_errors_name_the_argument(change, words):
    q, k, v = (x.float() for x in qkv(21))
    arguments = {"q": q, "k": k, "v": v} | change
    with pytest.raises(ValueError, match=words):
        linear_attention(**{"causal": True, **arguments})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q_t": torch.ones(2, 3, 1, 4)}, r"^q_t: expected 3 axes \[B H D\], got 4"),
        ({"k_t": torch.ones(2, 3)}, r"^k_t: expected 3 axes \[B H D\], got 2"),
        ({"v_t": torch.ones(2, 3)}, r"^v_t: expected 3 axes \[B H Dv\], got 2"),
        ({"k_t": torch.ones(2, 3, 4).long()}, "^k_t: expected floating-point"),
        ({"q_t": torch.ones(2, 3, 4).half()}, "^q_t and k_t and v_t: expected one dtype"),
        ({"k_t": torch.ones(2, 3, 4).half()}, "^q_t and k_t and v_t: expected one dtype"),
        ({"v_t": torch.ones(2, 3, 0)}, "^Dv: expected a whole number of at least 1, got 0"),
        ({"impl": "fast"}, "^impl: expected one of torch, reference, triton, got 'fast'"),
        ({"k_t": torch.ones(2, 3, 5)}, "q_t and k_t: expected equal sizes on axis D"),
        ({"v_t": torch.ones(2, 2, 5)}, "k_t and v_t: expected equal sizes on axis H"),
        ({"v_t": torch.ones(2, 3, 5).half()}, "expected one dtype"),
        ({"feature_map": "identity"}, "feature_map: expected .*normalize=True"),
        ({"state": (1, 2, 3)}, "initial_state: expected a LinearState"),
    ],
)
def test_errors_of_the_step(change, words):
    arguments = {
        "q_t": torch.ones(2, 3, 4),
        "k_t": torch.ones(2, 3, 4),
        "v_t": torch.ones(2, 3, 5),
    } | change
    with pytest.raises(ValueError, match=words):
        linear_attention_step(**arguments)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"S": torch.ones(2, 3, 4, 5).long()}, "initial_state.S: expected floating-point"),
        ({"z": torch.ones(2, 3, 4, dtype=torch.complex64)}, "initial_state.z: expected floating"),
        ({"t": torch.ones(2)}, "initial_state.t: expected whole numbers, got torch.float32"),
        ({"t": torch.ones(2).bool()}, "initial_state.t: expected whole numbers, got torch.bool"),
        ({"t": None}, r"initial_state.t: expected a tensor \[B\], got NoneType"),
    ],
)
def test_errors_of_the_state(change, words):
    state = LinearState(torch.ones(2, 3, 4, 5), torch.ones(2, 3, 4), torch.ones(2).long())
    q, k, v = (x.float() for x in qkv(21))
    with pytest.raises(ValueError, match=words):
        linear_attention(q, k, v, initial_state=state._replace(**change), causal=True)
    with pytest.raises(ValueError, match=words):
        linear_attention_step(q[:, :, 0], k[:, :, 0], v[:, :, 0], state._replace(**change))


@pytest.mark.parametrize("form", WAYS)
def test_a_foreign_map_gets_scale_and_positions_once(form):
    class Turned(torch.nn.Module):
        positional = True

        def width(self, D):
            return D

        def forward(self, x, positions):
            return torch.exp(x * (1 + 0.1 * positions.unsqueeze(-1)))

    q, k, v = qkv(20)
    options = {"key_mask": some(B, 20), "scale": 0.5, "normalize": False, "causal": True}
    options |= {"feature_map": Turned(), "return_state": True}
    first, (S, z, _) = linear_attention(q, k, v, **options, **WAYS["parallel"])
    out, state = linear_attention(q, k, v, **options, **WAYS[form])
    for got, wanted in ((out, first), (state.S, S), (state.z, z)):
        close(got, wanted, form)


@pytest.mark.parametrize("name", ["elu", "cosformer"])
def test_a_second_derivative_knows_padding_and_positions(name):
    leaves, mask = [x.requires_grad_() for x in qkv(12)], some(B, 12)
    dout, again = draw(B, H, 12, Dv, seed=5), [draw(*x.shape, seed=6) for x in leaves]
    results = []
    for way in ("torch", "parallel"):
        out = attend(name, *leaves, key_mask=mask, **WAYS[way])
        grads = torch.autograd.grad(out, leaves, dout, create_graph=True)
        results.append(torch.autograd.grad(grads, leaves, again))
    for got, wanted in zip(*results, strict=True):
        close(got, wanted, name)


@pytest.mark.parametrize("form", WAYS)
def test_the_longest_text_that_a_map_allows(form):
    fm = get_feature_map("cosformer", max_length=12)
    q, k, v = qkv(12)
    assert linear_attention(q, k, v, causal=True, feature_map=fm, **WAYS[form]).isfinite().all()
    q, k, v = qkv(13)
    with pytest.raises(ValueError, match="position"):
        linear_attention(q, k, v, causal=True, feature_map=fm, **WAYS[form])


@pytest.mark.parametrize("form", WAYS)
def test_a_map_of_another_width_or_dtype_than_it_says_is_named(form):
    class Odd(torch.nn.Module):
        def __init__(self, forward, width=D):
            super().__init__()
            self.forward, self.width = forward, lambda D: width

    q, k, v = (x.float() for x in qkv(5))
    for odd, words in (
        (Odd(lambda x: x[..., :3].exp()), r"expected features \[2, 3, 5, 4\].*got \[2, 3, 5, 3\]"),
        (Odd(lambda x: x.exp().half()), "in torch.float32, got .* in torch.float16"),
        (Odd(lambda x: [x]), "got list"),
        (Odd(torch.exp, width="4"), r"feature_map.width\(D\): expected a whole number"),
    ):
        with pytest.raises(ValueError, match=words):
            linear_attention(q, k, v, feature_map=odd, **WAYS[form], causal=True)
        with pytest.raises(ValueError, match="feature"):
            linear_attention_step(q[:, :, 0], k[:, :, 0], v[:, :, 0], feature_map=odd)


@pytest.mark.parametrize("form", WAYS)
def test_a_second_derivative_is_right(form):
    """A gradient penalty: d_out is a constant, so a lost second derivative would pass as 0."""
    leaves = [x.requires_grad_() for x in qkv(5)]
    (first,) = torch.autograd.grad(expected("elu", *leaves).sum(), leaves[0], create_graph=True)
    wanted = torch.autograd.grad(first.square().sum(), leaves)
    out = linear_attention(*leaves, **WAYS[form], causal=True).sum()
    (first,) = torch.autograd.grad(out, leaves[0], create_graph=True)
    for got, want in zip(torch.autograd.grad(first.square().sum(), leaves), wanted, strict=True):
        close(got, want, form)


def test_a_plain_backward_pass_goes_through_vmap():
    q, k, v = qkv(9)
    two = torch.stack([q, 2 * q]).requires_grad_()
    dout = draw(2, B, H, 9, Dv, seed=5)

    def one(q: Tensor) -> Tensor:
        return linear_attention(q, k, v, causal=True)

    results = [
        torch.autograd.grad(out, two, dout)[0]
        for out in (torch.func.vmap(one)(two), torch.stack([one(x) for x in two]))
    ]
    close(*results, "gradient")


def test_causal_must_be_given():
    """A default would leak the future, or hide the past, in silence."""
    with pytest.raises(TypeError, match="causal"):
        linear_attention(*qkv())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("form", WAYS)
@pytest.mark.parametrize("T", [0, 1, 130])
def test_a_state_owns_its_memory_and_no_more(form, causal, T):
    q, k, v = qkv(T)
    for past in (
        None,
        LinearState(*(x.clone() for x in attend("elu", q, k, v, return_state=True)[1])),
    ):
        state = attend(
            "elu", q, k, v, causal=causal, initial_state=past, return_state=True, **WAYS[form]
        )[1]
        assert drawing.held_bytes(*state) == sum(x.nbytes for x in state)


class Made(TorchDispatchMode):
    """Remembers every tensor that an operation inside makes, and knows which are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[weakref.ref[Tensor]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        self.made += [weakref.ref(x) for x in tree_leaves(out) if isinstance(x, Tensor)]
        return out

    def alive(self) -> list[Tensor]:
        gc.collect()
        return [x for made in self.made if (x := made()) is not None]


@pytest.mark.parametrize("chunk", [2, 64])
def test_hooks_see_all_that_is_kept_and_nothing_stays(chunk):
    """Offloaded, nothing of the engine's is left in memory; the gradients are the same."""
    leaves = [x.requires_grad_() for x in qkv(200)]
    wanted = torch.autograd.grad(attend("elu", *leaves, chunk_size=chunk).sum(), leaves)
    shelf = []

    def offload(x):
        shelf.append(x.clone())
        return len(shelf) - 1

    def memory(tensors):
        return {x.untyped_storage().data_ptr() for x in tensors}

    with Made() as made:
        with torch.autograd.graph.saved_tensors_hooks(offload, lambda i: shelf[i]):
            out = attend("elu", *leaves, chunk_size=chunk)
        assert memory(made.alive()) <= memory([out, *shelf]), "kept where no hook sees it"
        # The states at the chunks' beginnings, or one a tile, are among what the hooks saw.
        assert any(x.shape[-2:] == (D, Dv) and x.ndim == 4 for x in shelf)
        got = torch.autograd.grad(out.sum(), leaves)
        shelf.clear()
        assert memory(made.alive()) <= memory([out, *got]), "held after the backward pass"
    for g, w in zip(got, wanted, strict=True):
        close(g, w, chunk)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("b", "h"), [(0, 2), (2, 0)])
def test_no_texts_or_no_heads_with_a_mask_give_nothing(way: str, causal: bool, b: int, h: int):
    q = k = v = torch.ones(b, h, 5, 4)
    mask = torch.ones(b, 5, dtype=torch.bool)
    out = linear_attention(q, k, v, causal=causal, key_mask=mask, **WAYS[way])
    assert out.shape == (b, h, 5, 4)


@pytest.mark.parametrize("way", WAYS)
def test_a_state_that_comes_takes_the_dtype_of_the_sums(way: str) -> None:
    q, k, v = qkv(9)
    _, state = linear_attention(q, k, v, causal=True, return_state=True, **WAYS[way])
    assert state.S.dtype == torch.float64
    narrow = [x.float() for x in (q, k, v)]
    options = {"causal": True, "initial_state": state, "return_state": True}
    out, after = linear_attention(*narrow, **options, **WAYS[way])
    assert (out.dtype, after.S.dtype, after.z.dtype) == (torch.float32,) * 3
