"""``course.linear`` in full: the fast checks and the mutants are in ``tests/mutants/linear.py``."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course.feature_maps import get_feature_map
from course.linear import LinearState, linear_attention, linear_attention_step
from tests import oracles
from tests.mutants.linear import (
    FORMS,
    OPTIONS,
    B,
    D,
    Dv,
    H,
    close,
    draw,
    expected,
    qkv,
)

LENGTHS = [0, 1, 2, 15, 16, 17, 63, 64, 65, 100, 257]


def attend(name, q, k, v, **options):
    fm = get_feature_map(name, **OPTIONS[name])
    return linear_attention(q, k, v, feature_map=fm, normalize=name != "identity", **options)


def some(*shape, seed=4):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.67


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
        for form in FORMS:
            state = None
            if past:
                old = (q[:, :, :0], k[:, :, :past], v[:, :, :past])
                old_mask = None if mask is None else mask[:, :past]
                state = attend(
                    name,
                    *old,
                    causal=False,
                    form=form,
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
                form=form,
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


@pytest.mark.parametrize("form", FORMS)
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
            form=form,
            normalize=name != "identity",
            key_mask=torch.tensor([[True, False, True, True, True]]),
            initial_state=LinearState(S, z, torch.tensor([5])),
            return_state=True,
            chunk_size=2,
            scale=0.8,
        )
        return out, state.S, state.z

    assert torch.autograd.gradcheck(function, leaves, fast_mode=form != "chunk")


@pytest.mark.parametrize("form", FORMS)
def test_gradcheck_of_one_state_and_without_the_denominator(form):
    q, k, v = (x[..., :2].clone().requires_grad_() for x in qkv(3, 5, B=1, H=2, D=2))
    for normalize in (True, False):
        assert torch.autograd.gradcheck(
            lambda *x, n=normalize: linear_attention(*x, form=form, causal=False, normalize=n),
            (q, k, v),
        )
    assert torch.autograd.gradcheck(
        lambda *x: linear_attention(*x, form=form, normalize=False, chunk_size=2),
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
    one, two = data.draw(st.sampled_from(FORMS)), data.draw(st.sampled_from(FORMS))
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
        form=one,
        chunk_size=sizes[0],
        return_state=True,
    )
    b = attend(
        name,
        *(x[:, :, second] for x in leaves),
        key_mask=masks(second),
        form=two,
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
        for size in (None, chunk):
            out = attend(name, *leaves, chunk_size=size)
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
                name, *leaves, form=form, chunk_size=chunk, key_mask=mask, return_state=True
            )
            total = (out * dout).sum() + state.S.sum() + 3 * state.z.sum()
            results.append([out, *torch.autograd.grad(total, leaves)])
        for got, wanted in zip(*results, strict=True):
            close(got, wanted, (name, chunk))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sizes", [{"B": 1}, {"D": 1}, {"B": 0}, {"H": 1, "D": 2}])
def test_small_axes(form, sizes):
    for T in (0, 1, 3):
        q, k, v = qkv(T, **sizes)
        for name in OPTIONS:
            close(attend(name, q, k, v, form=form), expected(name, q, k, v), (name, T))


@pytest.mark.parametrize("form", FORMS)
def test_without_order_the_order_of_keys_does_not_matter(form):
    q, k, v = qkv(6, 11)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    for name in ("elu", "taylor", "dpfp", "favor"):
        one = attend(name, q, k, v, causal=False, form=form)
        close(attend(name, q, k[:, :, order], v[:, :, order], causal=False, form=form), one, name)


@pytest.mark.parametrize("form", FORMS)
def test_positions_of_queries_without_order(form):
    """T = S: a query stands where its key does; else it counts from 0."""
    q, k, v = qkv(6, 6)
    mask = torch.tensor([[False, True, True, False, True, True], [True] * 6])
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    sim = oracles.similarity("cosformer", q, k, q_places=places, k_places=places, max_length=600)
    wanted = oracles.linear_attention(sim, v, causal=False, key_mask=mask)
    close(attend("cosformer", q, k, v, causal=False, form=form, key_mask=mask), wanted, form)
    q = q[:, :, :4]
    own = torch.arange(4).expand(B, -1)
    sim = oracles.similarity("cosformer", q, k, q_places=own, k_places=places, max_length=600)
    wanted = oracles.linear_attention(sim, v, causal=False, key_mask=mask)
    close(attend("cosformer", q, k, v, causal=False, form=form, key_mask=mask), wanted, form)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS)
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
        out = attend(name, q, k, v, form=form)
        assert out.dtype == dtype
        error = (out.double() - exact).abs().amax((-1, -2))
        allowed = 2 * (plain.double() - exact).abs().amax((-1, -2))
        assert (error <= allowed + torch.finfo(dtype).eps * v.abs().max()).all(), (name, error)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS)
def test_low_precision_gradients(form, dtype):
    leaves = [x.to(dtype).requires_grad_() for x in qkv(65)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    dout = draw(B, H, 65, Dv, seed=5).to(dtype)
    wanted = torch.autograd.grad(expected("elu", *exact), exact, dout.double())
    got = torch.autograd.grad(attend("elu", *leaves, form=form), leaves, dout)
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
        for form in FORMS:
            state = linear_attention(q, k, v, form=form, return_state=True)[1]
            assert state.S.dtype == state.z.dtype == wide and state.t.dtype == torch.int64
            _, state = linear_attention_step(q[:, :, 0], k[:, :, 0], v[:, :, 0], state)
            assert state.S.dtype == state.z.dtype == wide


@pytest.mark.parametrize("form", FORMS)
def test_autocast_does_not_reach_the_sums(form):
    q, k, v = (x.float() for x in qkv(40))
    plain = linear_attention(q, k, v, form=form)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(linear_attention(q, k, v, form=form), plain)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["elu", "identity", "taylor"])
def test_strides_do_not_matter(name, form):
    """Inputs cut out of NaN, heads behind tokens, and gradients that are one number repeated."""
    plain = [x.requires_grad_() for x in qkv(33)]
    out = attend(name, *plain, form=form, chunk_size=8)
    wanted = torch.autograd.grad(out.sum(), plain)
    dense = torch.autograd.grad(
        attend(name, *plain, form=form, chunk_size=8), plain, torch.ones_like(out)
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
        other = attend(name, *leaves, form=form, chunk_size=8)
        close(other, out, what)
        for g, w in zip(torch.autograd.grad(other.sum(), leaves), wanted, strict=True):
            close(g, w, what)


@pytest.mark.parametrize("form", FORMS)
def test_arguments_are_left_alone(form):
    q, k, v = qkv(20)
    mask = some(B, 20)
    state = linear_attention(q, k, v, return_state=True)[1]
    before = [x.clone() for x in (q, k, v, mask, *state)]
    leaves = [x.requires_grad_() for x in (q, k, v)]
    for name in ("elu", "identity"):
        out = attend(name, *leaves, form=form, key_mask=mask, initial_state=state, scale=0.5)
        out.sum().backward()
    for x, y in zip((q, k, v, mask, *state), before, strict=True):
        assert torch.equal(x, y)


def test_chunk_form_gives_only_the_gradients_asked_for():
    q, k, v = qkv(20)
    v.requires_grad_()
    (only,) = torch.autograd.grad(linear_attention(q, k, v).sum(), v)
    every = [x.detach().requires_grad_() for x in (q, k, v)]
    close(only, torch.autograd.grad(linear_attention(*every).sum(), every)[2], "v alone")
    with torch.no_grad():
        assert not linear_attention(*every).requires_grad


@pytest.mark.parametrize("form", FORMS)
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
        out = linear_attention(*leaves, feature_map=fm, form=f, key_mask=mask, scale=0.5)
        grads.append(torch.autograd.grad(out.sum(), [fm.w, *leaves]))
    for g, w in zip(*grads, strict=True):
        close(g, w, form)


@pytest.mark.parametrize("form", FORMS)
def test_nan_goes_where_its_token_is_seen_and_nowhere_else(form):
    q, k, v = qkv(20)
    k = k.clone()
    k[0, 1, 12] = math.nan
    out = linear_attention(q, k, v, form=form, chunk_size=8)
    assert out[0, 1, 12:].isnan().all(), "a visible NaN was hidden"
    assert not out[1].isnan().any() and not out[0, [0, 2]].isnan().any()
    assert not out[0, 1, :12].isnan().any(), "the future reached the past"


def test_scan_stores_every_state_and_chunk_none():
    """Of the tensors that autograd keeps, the largest is T·D·Dv or T·Dv."""
    sizes = {}
    for form in ("scan", "chunk"):
        kept = []

        def pack(x, kept=kept):
            kept.append(x.numel())
            return x

        leaves = [x.requires_grad_() for x in qkv(128)]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            linear_attention(*leaves, form=form)
        sizes[form] = max(kept)
    assert sizes == {"scan": B * H * 128 * D * Dv, "chunk": B * H * 128 * Dv}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": torch.ones(2, 3, 4)}, r"q: expected 4 axes \[B H T D\], got 3"),
        ({"k": torch.ones(2, 1, 21, 4)}, "q and k: expected equal sizes on axis H"),
        ({"q": torch.ones(2, 3, 21, 7)}, "q and k: expected equal sizes on axis D"),
        ({"v": torch.ones(2, 3, 20, 5)}, "k and v: expected equal sizes on axis S"),
        ({"v": torch.ones(2, 3, 21, 5).double()}, "expected one dtype"),
        ({"q": torch.ones(2, 3, 21, 4).long()}, "q: expected floating-point numbers"),
        ({"q": torch.ones(2, 3, 20, 4)}, "expected T = S when causal, got T = 20 and S = 21"),
        ({"key_mask": torch.ones(2, 20).bool()}, "k and key_mask: expected equal sizes on axis S"),
        ({"key_mask": torch.ones(2, 21)}, "key_mask: expected a boolean tensor"),
        ({"key_mask": torch.ones(2, 3, 21).bool()}, r"key_mask: expected 2 axes \[B S\]"),
        ({"feature_map": "identity"}, "feature_map: expected .*normalize=True, got .*identity"),
        ({"feature_map": "cosine"}, "feature_map: expected one of"),
        ({"feature_map": torch.nn.ReLU()}, r"feature_map: expected .*\.width"),
        ({"feature_map": torch.relu}, "feature_map: expected a name or a module"),
        ({"form": "fast"}, "form: expected one of parallel, scan, recurrent, chunk, got 'fast'"),
        ({"chunk_size": 0}, "chunk_size: expected a whole number of at least 1, got 0"),
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
        linear_attention(**arguments)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q_t": torch.ones(2, 3, 1, 4)}, r"q_t: expected 3 axes \[B H D\], got 4"),
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
        linear_attention(q, k, v, initial_state=state._replace(**change))
    with pytest.raises(ValueError, match=words):
        linear_attention_step(q[:, :, 0], k[:, :, 0], v[:, :, 0], state._replace(**change))


@pytest.mark.parametrize("form", FORMS)
def test_a_map_of_another_width_or_dtype_than_it_says_is_named(form):
    class Odd(torch.nn.Module):
        def __init__(self, forward, width=D):
            super().__init__()
            self.forward, self.width = forward, lambda D: width

    q, k, v = (x.float() for x in qkv(5))
    for odd, words in (
        (Odd(lambda x: x[..., :3].exp()), r"expected features \[2, 3, 5, 4\].*got \[2, 3, 5, 3\]"),
        (Odd(lambda x: x.exp().half()), "in torch.float32, got .* in torch.float16"),
        (Odd(lambda x: None), "got NoneType"),
        (Odd(torch.exp, width="4"), r"feature_map.width\(D\): expected a whole number"),
    ):
        with pytest.raises(ValueError, match=words):
            linear_attention(q, k, v, feature_map=odd, form=form)
        with pytest.raises(ValueError, match="feature"):
            linear_attention_step(q[:, :, 0], k[:, :, 0], v[:, :, 0], feature_map=odd)


def test_numpy_s_whole_numbers_are_whole_numbers():
    q, k, v = qkv(21)
    close(linear_attention(q, k, v, chunk_size=np.int64(4)), linear_attention(q, k, v), "int64")


@pytest.mark.parametrize("form", FORMS)
def test_a_second_derivative_is_right_or_refused(form):
    """A gradient penalty: d_out is a constant, so a lost second derivative would pass as 0."""
    leaves = [x.requires_grad_() for x in qkv(5)]
    (first,) = torch.autograd.grad(expected("elu", *leaves).sum(), leaves[0], create_graph=True)
    wanted = torch.autograd.grad(first.square().sum(), leaves)
    out = linear_attention(*leaves, form=form).sum()
    if form == "chunk":
        with pytest.raises(RuntimeError, match='no second derivative.*form="parallel"'):
            torch.autograd.grad(out, leaves[0], create_graph=True)
        return
    (first,) = torch.autograd.grad(out, leaves[0], create_graph=True)
    for got, want in zip(torch.autograd.grad(first.square().sum(), leaves), wanted, strict=True):
        close(got, want, form)
