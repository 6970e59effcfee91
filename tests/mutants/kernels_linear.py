"""The fast checks of the linear-attention kernels, and what they must kill.

Subjects have the public functions of ``course.kernels.linear`` and ``course.kernels.step``: the
modules, or the algorithm in plain PyTorch with one fault. All memory that a kernel is given to fill
holds NaN (−1 where whole numbers go), and inputs lie in the midst of NaN. Sizes are pairwise
distinct. float32 tiles are 32×32: 35 tokens are two chunks.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from course.kernels import runtime
from course.state import LinearState
from tests import drawing, oracles
from tests.drawing import some
from tests.kernels.watching import poisoned
from tests.mutants import Check, Suite

B, H, T, D, Dv = 2, 3, 35, 5, 7
CHECKS: dict[str, Check] = {}
STEP_CHECKS: dict[str, Check] = {}
FLOAT32 = 4e-6  # of the largest entry: a few roundings
draw = partial(drawing.draw, dtype=torch.float32)
close = partial(drawing.close, tolerance=FLOAT32)


def check(function: Check) -> Check:
    CHECKS[function.__name__.replace("_", " ")] = function
    return function


def step_check(function: Check) -> Check:
    STEP_CHECKS[function.__name__.replace("_", " ")] = function
    return function


def qkv(T: int = T, S: int | None = None, **sizes: int) -> tuple[Tensor, ...]:
    sizes = {"B": B, "H": H, "D": D, "Dv": Dv} | sizes
    return drawing.qkv(T, S, dtype=torch.float32, **sizes)


def past_of(C: int, Dv: int, **sizes: int) -> LinearState:
    b, h = sizes.get("B", B), sizes.get("H", H)
    return LinearState(
        draw(b, h, C, Dv, seed=4),
        draw(b, h, C, seed=5).abs() + 0.5,
        torch.arange(3, 3 + b),
    )


def amid_nan(x: Tensor) -> Tensor:
    """The same numbers in a buffer that is NaN for 64 places on every side and in between."""
    buffer = x.new_full([x.shape[0], x.shape[1], *(2 * n + 128 for n in x.shape[2:])], math.nan)
    view = buffer[(slice(None), slice(None), *(slice(64, 64 + 2 * n, 2) for n in x.shape[2:]))]
    view.copy_(x)
    return view


def features(name: str, x: Tensor) -> Tensor:
    """φ by its definition, float64."""
    if name == "elu":
        return torch.where(x > 0, x + 1, x.clamp(max=0).exp())
    return x * (x > 0) if name == "relu" else x


def definition(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    past: LinearState | None,
    *,
    feature_map: str = "elu",
    causal: bool = True,
    normalize: bool = True,
    scale: float = 1.0,
    key_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, S and z in float64 by the T×S similarities; differentiable."""
    q, k, v = q.double(), k.double(), v.double()
    hidden = (
        torch.zeros(k.shape[0], k.shape[2], dtype=torch.bool) if key_mask is None else ~key_mask
    )
    hidden = hidden[:, None, :, None]
    k, v = k.masked_fill(hidden, 0), v.masked_fill(hidden, 0)
    similarity = oracles.similarity(feature_map, q, k, scale=scale).masked_fill(hidden.mT, 0)
    if causal:
        similarity = similarity.tril()
    fq, fk = (features(feature_map, x * scale**0.5) for x in (q, k))
    fk = fk.masked_fill(hidden, 0)
    num, den = similarity @ v, similarity.sum(-1)
    S, z = torch.einsum("bhsc,bhsd->bhcd", fk, v), fk.sum(2)
    if past is not None:
        num = num + torch.einsum("bhtc,bhcd->bhtd", fq, past.S.double())
        den = den + torch.einsum("bhtc,bhc->bht", fq, past.z.double())
        S, z = S + past.S.double(), z + past.z.double()
    if normalize:
        num = torch.where(den == 0, 0.0, 1 / torch.where(den == 0, 1.0, den)).unsqueeze(-1) * num
    return num, S, z


def compare(
    m: Any,
    inputs: tuple[Tensor, ...],
    past: LinearState | None,
    *,
    tolerance: float = FLOAT32,
    change: Callable[[Tensor], Tensor] = lambda x: x,
    **options: Any,
) -> None:
    """Output, states and all gradients against the definition; ``change`` makes odd strides."""
    given = [*inputs, *(() if past is None else past[:2])]
    mine = [change(x).requires_grad_() for x in given]
    exact = [x.detach().double().requires_grad_() for x in given]
    seen = torch.full((len(inputs[1]),), inputs[1].shape[2])
    if options.get("key_mask") is not None:
        seen = options["key_mask"].sum(-1)

    def state(leaves: list[Tensor]) -> LinearState | None:
        return None if past is None else LinearState(leaves[3], leaves[4], past.t)

    with poisoned():
        out, after = m.linear_attention(
            *mine[:3], initial_state=state(mine), return_state=True, **options
        )
        assert out.dtype == inputs[0].dtype
        got = [out, after.S, after.z]
        wanted = definition(*exact[:3], state(exact), **options)
        dout = [change(draw(*x.shape, seed=7 + i).to(x.dtype)) for i, x in enumerate(got)]
        grads = torch.autograd.grad(got, mine, dout)
    exact_grads = torch.autograd.grad(
        wanted, exact, [g.double() for g in dout], materialize_grads=True
    )
    assert (after.S.dtype, after.z.dtype, after.t.dtype) == (torch.float32,) * 2 + (torch.int64,)
    assert torch.equal(after.t, seen + (0 if past is None else past.t)), after.t
    names = ("out", "S", "z", "dq", "dk", "dv", "dS", "dz")
    for name, x, y in zip(names, [*got, *grads], [*wanted, *exact_grads], strict=False):
        # What is summed in float32 has that precision, however short the inputs are.
        low = name in ("out", "dq", "dk", "dv")
        close(x, y, name, tolerance=tolerance if low else max(FLOAT32, tolerance / 8))


@check
def nothing_in_common_gives_zeros(m: Any) -> None:
    """relu features that are all 0 on one side: 0/0."""
    q, k, v = qkv(3, B=1, H=1)
    leaves = [x.requires_grad_() for x in (-q.abs(), k, v)]
    out = m.linear_attention(*leaves, feature_map="relu")
    assert not out.any()
    assert not any(g.any() for g in torch.autograd.grad(out.sum(), leaves))


@check
def nan_reaches_its_future_only(m: Any) -> None:
    for name in ("elu", "relu"):
        q, k, v = qkv(20, B=1, H=1)
        k[0, 0, 12, 2] = math.nan
        out = m.linear_attention(q, k, v, feature_map=name)
        assert out[0, 0, 12:].isnan().all(), "a visible NaN was hidden"
        assert not out[0, 0, :12].isnan().any(), "the future reached the past"


@check
def far_negative_inputs_still_average(m: Any) -> None:
    """elu(x) + 1 written as exp(x) − 1 + 1 is 0 from −17 on."""
    q, k, v = qkv(9, B=1, H=1)
    mine = [(q - 20).requires_grad_(), (k - 20).requires_grad_(), v.requires_grad_()]
    exact = [x.detach().double().requires_grad_() for x in mine]
    out, wanted = m.linear_attention(*mine), definition(*exact, None)[0]
    close(out, wanted, "output", tolerance=1e-5)
    grads = torch.autograd.grad(out.sum(), mine), torch.autograd.grad(wanted.sum(), exact)
    for x, y in zip(*grads, strict=True):
        close(x, y, "gradient", tolerance=1e-5)


@check
def half_inputs_keep_float32_sums(m: Any) -> None:
    """The numerator is beyond float16; z counts on where float16 stops, at 2,048."""
    q, k, v = (torch.ones(1, 1, 70, d, dtype=torch.float16) for d in (2, 2, 3))
    past = LinearState(
        torch.full((1, 1, 2, 3), 2.0**20), torch.full((1, 1, 2), 2.0**20), torch.tensor([0])
    )
    out, after = m.linear_attention(
        q, k, v, feature_map="relu", initial_state=past, return_state=True
    )
    assert out.dtype == torch.float16 and (out == 1).all(), out
    assert (after.z == 2**20 + 70).all() and (after.S == 2**20 + 70).all(), after


@check
def heads_and_sequences(m: Any) -> None:
    past, options = past_of(D, Dv), {"key_mask": some(B, 9), "scale": 0.6}
    with poisoned():
        out, after = m.linear_attention(*qkv(9), initial_state=past, return_state=True, **options)
    wanted = definition(*qkv(9), past, **options)
    for name, x, y in zip(("out", "S", "z"), (out, after.S, after.z), wanted, strict=True):
        close(x, y, name)
    assert torch.equal(after.t, past.t + options["key_mask"].sum(-1)), after.t


@check
def gradients_do_not_cancel(m: Any) -> None:
    """A suffix sum as total − prefix loses 1 beside 32 × 1e8."""
    q, k, v = (torch.ones(1, 1, 70, 1) for _ in range(3))
    dout = torch.ones(1, 1, 70, 1)
    dout[:, :, :32] = 1e8
    k.requires_grad_()
    out = m.linear_attention(q, k, v, feature_map="identity", normalize=False)
    (grad,) = torch.autograd.grad(out, k, dout)
    assert grad[0, 0, -1, 0] == 1 and grad[0, 0, 40, 0] == 30, grad


@check
def a_past_a_mask_and_a_future(m: Any) -> None:
    """Every gradient, through the state too."""
    one = {"B": 1, "H": 2}
    compare(m, qkv(9, **one), past_of(D, Dv, **one), key_mask=some(1, 9), scale=0.6)


@check
def without_the_denominator(m: Any) -> None:
    one = {"B": 1, "H": 1}
    options = {"feature_map": "identity", "normalize": False, "key_mask": some(1, T)}
    compare(m, qkv(**one), past_of(D, Dv, **one), **options)


@check
def wide_heads_are_split(m: Any) -> None:
    """More features and columns than a tile has."""
    one = {"B": 1, "H": 1, "D": 33, "Dv": 37}
    compare(m, qkv(34, **one), past_of(33, 37, B=1, H=1), feature_map="relu")


@check
def strides_do_not_matter(m: Any) -> None:
    """Inputs, states and gradients amid NaN; an output gradient that is one number repeated."""
    one = {"B": 1, "H": 1}
    compare(m, qkv(**one), past_of(D, Dv, **one), change=amid_nan)
    mine = [x.requires_grad_() for x in qkv(**one)]
    exact = [x.detach().double().requires_grad_() for x in mine]
    got = torch.autograd.grad(m.linear_attention(*mine).sum(), mine)
    wanted = torch.autograd.grad(definition(*exact, None)[0].sum(), exact)
    for name, x, y in zip("qkv", got, wanted, strict=True):
        close(x, y, name)


@check
def without_order(m: Any) -> None:
    one = {"B": 1, "H": 2}
    masked = {"key_mask": some(1, T), "scale": 0.6}
    compare(m, qkv(5, T, **one), past_of(D, Dv, **one), causal=False, **masked)
    compare(m, qkv(T, 4, **one), None, causal=False)


@check
def padding_may_hold_nan(m: Any) -> None:
    """Also a query with nothing in sight: zeros, and zero gradient."""
    mask = torch.ones(1, T, dtype=torch.bool)
    mask[:, :4] = mask[:, 34:] = False
    plain = [x.requires_grad_() for x in qkv(B=1, H=1)]
    held = [x.detach().clone() for x in plain]
    for x in held[1:]:
        x[:, :, ~mask[0]] = math.nan
    held = [x.requires_grad_() for x in held]
    results = []
    for leaves in (plain, held):
        out, state = m.linear_attention(*leaves, key_mask=mask, return_state=True)
        assert not out[:, :, :4].any()
        grads = torch.autograd.grad(out, leaves, torch.ones_like(out))
        assert not grads[0][:, :, :4].any()
        assert not any(g[:, :, ~mask[0]].any() for g in grads[1:])
        results.append([out, *state, *grads])
    for i, (x, y) in enumerate(zip(*results, strict=True)):
        assert torch.equal(x, y), i


# The step


def compare_step(m: Any, name: str, *, D: int, Dv: int, past: bool, **options: Any) -> None:
    C = 1 + D + D * (D + 1) // 2 if name == "taylor" else D
    q, k, v = (x[:, :, 0] for x in qkv(1, D=D, Dv=Dv))
    state = past_of(C, Dv) if past else None
    if past:
        state = LinearState(amid_nan(state.S), state.z.mT.contiguous().mT, state.t)
        held = [x.clone() for x in state]
    with poisoned():
        out, after = m.linear_attention_step(
            *(amid_nan(x.unsqueeze(2))[:, :, 0] for x in (q, k, v)),
            state,
            feature_map=name,
            **options,
        )
    scale, normalize = options.get("scale", 1.0), options.get("normalize", True)
    fq, fk = (step_features(name, x.double() * scale**0.5) for x in (q, k))
    S, z = fk.unsqueeze(-1) * v.double().unsqueeze(-2), fk
    if state is not None:
        S, z = S + held[0].double(), z + held[1].double()
    num, den = (fq.unsqueeze(-1) * S).sum(2), (fq * z).sum(-1, keepdim=True)
    wanted = torch.where(den == 0, 0, num / torch.where(den == 0, 1, den)) if normalize else num
    assert out.dtype == q.dtype
    close(out, wanted, (name, "out"))
    close(after.S, S, (name, "S"))
    close(after.z, z, (name, "z"))
    assert torch.equal(after.t, held[2] + 1 if past else torch.ones(B, dtype=torch.int64))
    if past:
        assert all(torch.equal(x, y) for x, y in zip(held, state, strict=True)), "state was changed"


def step_features(name: str, x: Tensor) -> Tensor:
    """As :func:`features`; Taylor's in the order of the packed state."""
    if name != "taylor":
        return features(name, x)
    columns = [torch.ones_like(x[..., 0]), *x.unbind(-1)]
    for i in range(x.shape[-1]):
        for j in range(i, x.shape[-1]):
            columns.append(x[..., i] * x[..., j] * (math.sqrt(0.5) if i == j else 1))
    return torch.stack(columns, -1)


@step_check
def one_token_and_a_past(m: Any) -> None:
    """More rows and columns than one block of S has."""
    compare_step(m, "elu", D=67, Dv=35, past=True, scale=0.6)
    compare_step(m, "relu", D=D, Dv=Dv, past=False)


@step_check
def one_token_without_the_denominator(m: Any) -> None:
    compare_step(m, "identity", D=D, Dv=Dv, past=True, normalize=False)


@step_check
def products_of_pairs(m: Any) -> None:
    compare_step(m, "taylor", D=6, Dv=Dv, past=True, scale=0.6)
    compare_step(m, "taylor", D=16, Dv=Dv, past=True)
    compare_step(m, "taylor", D=1, Dv=Dv, past=False)


@step_check
def a_token_with_nothing_in_common(m: Any) -> None:
    q, k, v = (x[:, :, 0] for x in qkv(1))
    out, _ = m.linear_attention_step(-q.abs(), k, v, feature_map="relu")
    assert not out.any()


@step_check
def a_half_token_keeps_float32_sums(m: Any) -> None:
    q, k, v = (torch.ones(1, 1, d, dtype=torch.float16) for d in (2, 2, 3))
    past = LinearState(
        torch.full((1, 1, 2, 3), 2.0**20), torch.full((1, 1, 2), 2.0**20), torch.tensor([9])
    )
    out, after = m.linear_attention_step(q, k, v, past, feature_map="relu")
    assert out.dtype == torch.float16 and (out == 1).all()
    assert (after.z == 2**20 + 1).all() and (after.S == 2**20 + 1).all() and after.t == 10


# Wrong ones: the algorithms in plain PyTorch, with one fault ------------------------------------


def pulled(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """``x``, whose gradient is changed on its way back."""
    if not x.requires_grad:
        return x
    x = x.view_as(x)
    x.register_hook(change)
    return x


def gradient_of(value: Tensor, other: Tensor) -> Tensor:
    """``value``, with the gradient of ``other``."""
    return value.detach() + (other - other.detach())


class CancellingSums(torch.autograd.Function):
    """Sums over all earlier chunks, whose gradient is a total minus a prefix."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(x[:1]), x.cumsum(0)[:-1]])

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> Tensor:
        return dx.sum(0) - dx.cumsum(0)


def read(x: Tensor, wrong: str) -> Tensor:
    """A tensor as a kernel with a fault in its addresses reads it."""
    rows, width = x.stride(-2), x.stride(-1)
    inside = bool(x.storage_offset())  # cut out of a larger buffer
    if wrong == "axes exchanged":
        return x.transpose(0, 1).reshape(x.shape)
    if wrong == "rows taken for dense":
        rows = x.shape[-1]
    if wrong == "columns taken for dense":
        width = 1
    strides = (*x.stride()[:2], rows, width)
    if (rows, width) != x.stride()[2:]:
        x = torch.as_strided(x, x.shape, strides)
    if wrong == "rows beyond the end" and inside:
        last = x.storage_offset() + x.shape[-2] * rows
        x = x + 0 * torch.as_strided(x, (*x.shape[:2], 1, x.shape[-1]), strides, last)
    if wrong == "columns beyond the end" and inside:
        last = x.storage_offset() + x.shape[-1] * width
        x = x + 0 * torch.as_strided(x, (*x.shape[:3], 1), strides, last)
    return x


def phi(x: Tensor, name: str, wrong: str) -> Tensor:
    """The map, with its own faults."""
    if name == "relu":
        return torch.where(x < 0, 0.0, x)
    if name == "identity":
        return x
    below = x.clamp(max=0).exp()
    if wrong == "elu as exp(x) - 1 + 1":
        below = below - 1 + 1
    f = torch.where(x > 0, x + 1, below)
    return gradient_of(f, f * f.detach()) if wrong == "elu's slope below 0" else f


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    feature_map: str = "elu",
    causal: bool = True,
    normalize: bool = True,
    scale: float = 1.0,
    key_mask: Tensor | None = None,
    initial_state: LinearState | None = None,
    return_state: bool = False,
    wrong: str = "",
) -> Any:
    """Chunks of 32 tokens; gradients by autograd. ``wrong`` names its fault."""
    (b, h, T, C), (S_len, Dv), dtype, size = q.shape, v.shape[2:], q.dtype, 32
    q, k, v = (read(x, wrong).float() for x in (q, k, v))
    root = scale if wrong == "scale twice" else scale**0.5
    real = torch.ones(b, S_len, dtype=torch.bool) if key_mask is None else key_mask
    if wrong == "another's mask":
        real = real[:1].expand(b, S_len)
    there = real[:, None, :, None]
    if wrong == "a gradient for padding":
        k = pulled(k, lambda g: g.masked_fill(~there, 1))
    k, v = k.masked_fill(~there, 0), v.masked_fill(~there, 0)
    if wrong == "no scale in dk":
        k = pulled(k, lambda g: g / root)
    if wrong == "keys end with the queries":
        k = pulled(k, lambda g: torch.cat([g[:, :, :T], 0 * g[:, :, T:]], 2))
    fq, fk = (phi(x * root, feature_map, wrong) for x in (q, k))
    if wrong != "padding stays in z":
        fk = fk.masked_fill(~there, 0)
    fz = fk
    fk = fk.masked_fill(~there, 0)
    if wrong == "one block of features":
        fq = torch.cat([fq[..., :32], 0 * fq[..., 32:]], -1)

    S_0, z_0 = torch.zeros(b, h, C, Dv), torch.zeros(b, h, C)
    t = torch.zeros(b, dtype=torch.int64)
    if initial_state is not None:
        S_0, z_0, t = initial_state.S.float(), initial_state.z.float(), initial_state.t
        S_0 = 0 * S_0 if wrong == "S starts from nothing" else S_0
        z_0 = 0 * z_0 if wrong == "z starts from nothing" else z_0
    t = t + (S_len if wrong == "t counts padding" else real.sum(-1))

    keys, queries = (range(0, n, size) for n in (S_len, T))
    added = [fk[:, :, g : g + size].mT @ v[:, :, g : g + size] for g in keys]
    added_z = [fz[:, :, g : g + size].sum(2) for g in keys]
    if wrong == "the last chunk dropped" and S_len % size:
        added[-1], added_z[-1] = 0 * added[-1], 0 * added_z[-1]
    S_end, z_end = S_0 + sum(added), z_0 + sum(added_z)
    if wrong == "z in float16":
        z_end = z_0
        for z in fz.unbind(2):
            z_end = (z_end + z).half().float()
    S_read = gradient_of(S_end, S_0) if wrong == "the last S has no gradient" else S_end
    z_read = gradient_of(z_end, z_0) if wrong == "z has no later gradient" else z_end
    sums = list(added)
    if wrong == "a later sum is a total minus a prefix" and added:
        sums = list(CancellingSums.apply(torch.stack(added)))

    outs = []
    for g, first in enumerate(queries):
        Q = fq[:, :, first : first + size]
        if causal:
            K, V = fk[:, :, first : first + size], v[:, :, first : first + size]
            S = S_0 + (
                sums[g]
                if wrong == "a later sum is a total minus a prefix"
                else sum(added[: g + (wrong == "S with its own chunk")])
            )
            z = z_0 + sum(added_z[:g])
            if wrong == "backward in the order of time":
                S = gradient_of(S, S_0 + sum(added[g + 1 :]))
            if wrong == "z has no later gradient":
                z = gradient_of(z, z_0)
            shift = {"no diagonal": -1, "one of the future": 1}.get(wrong, 0)
            order = torch.ones(Q.shape[2], K.shape[2], dtype=torch.bool).tril(shift)
            A = Q @ K.mT
            A = A * order if wrong == "order by a product" else A.masked_fill(~order, 0)
            if wrong == "no diagonal backward":
                A = gradient_of(A, A.tril(-1))
            num, den = A @ V + Q @ S, A.sum(-1) + (Q @ z.unsqueeze(-1)).squeeze(-1)
        else:
            num, den = Q @ S_read, (Q @ z_read.unsqueeze(-1)).squeeze(-1)
        if wrong == "one block of columns" and Dv > 32:
            num = torch.cat([num[..., :32], num[..., : Dv - 32]], -1)
        if wrong == "den has no gradient":
            den = den.detach()
        if wrong == "an epsilon":
            den = den + 1e-6
        if wrong == "divided in float16":
            num = num.to(dtype).float()
        if normalize:
            none = (den == 0).unsqueeze(-1)
            quotient = num / den.unsqueeze(-1).masked_fill(none, 1)
            num = quotient + 1e-3 if wrong == "0/0" else quotient.masked_fill(none, 0)
        outs.append(num)
    out = (torch.cat(outs, 2) if outs else (fq @ S_end)).to(dtype)
    if not return_state:
        return out
    return out, LinearState(S_read, z_read if causal else z_end, t)


MUTANTS: dict[str, Callable[[], Any]] = {
    name: partial(SimpleNamespace, linear_attention=partial(chunked, wrong=name))
    for name in (
        "no diagonal",
        "one of the future",
        "no diagonal backward",
        "order by a product",
        "the last chunk dropped",
        "rows beyond the end",
        "columns beyond the end",
        "rows taken for dense",
        "columns taken for dense",
        "axes exchanged",
        "another's mask",
        "scale twice",
        "no scale in dk",
        "padding stays in z",
        "z starts from nothing",
        "S starts from nothing",
        "t counts padding",
        "S with its own chunk",
        "one block of columns",
        "one block of features",
        "0/0",
        "an epsilon",
        "divided in float16",
        "z in float16",
        "den has no gradient",
        "z has no later gradient",
        "the last S has no gradient",
        "backward in the order of time",
        "a later sum is a total minus a prefix",
        "elu as exp(x) - 1 + 1",
        "elu's slope below 0",
        "a gradient for padding",
        "keys end with the queries",
    )
}


def one_token(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: LinearState | None = None,
    *,
    feature_map: str = "elu",
    normalize: bool = True,
    scale: float = 1.0,
    wrong: str = "",
) -> tuple[Tensor, LinearState]:
    """The step in plain PyTorch; ``wrong`` names its fault."""
    (b, h, _), Dv, dtype = q.shape, v.shape[-1], q.dtype
    q, k, v = (x.float() for x in (q, k, v))
    roots = (scale**0.5, 1.0 if wrong == "scale in q only" else scale**0.5)
    fq, fk = (
        taylor_features(x * root, wrong)
        if feature_map == "taylor"
        else phi(x * root, feature_map, "")
        for x, root in zip((q, k), roots, strict=True)
    )
    S, z = torch.zeros(b, h, fk.shape[-1], Dv), torch.zeros(b, h, fk.shape[-1])
    t = torch.zeros(b, dtype=torch.int64)
    if state is not None:
        S, z, t = state
        if wrong == "S taken for dense":
            S = torch.as_strided(S, S.shape, torch.empty(S.shape, device="meta").stride())
        if wrong == "z from nothing":
            z = 0 * z
    before, old = S, (S, z, t)
    S, z = S + fk.unsqueeze(-1) * v.unsqueeze(-2), z + fk
    seen = before if wrong == "output before update" else S
    rows = slice(None, 64 if wrong == "one block of rows" else None)
    num = (fq.unsqueeze(-1) * seen)[:, :, rows].sum(2)
    if wrong == "one block of columns" and Dv > 32:
        num = torch.cat([num[..., :32], num[..., : Dv - 32]], -1)
    if normalize:
        den = (fq * z).sum(-1, keepdim=True)
        quotient = num / den.masked_fill(den == 0, 1)
        num = quotient + 1e-3 if wrong == "0/0" else quotient.masked_fill(den == 0, 0)
    if wrong == "in place" and state is not None:
        old[0].copy_(S)
    t = t if wrong == "t stands still" else t + 1
    return num.to(dtype), LinearState(S, z, t)


def taylor_features(x: Tensor, wrong: str) -> Tensor:
    D = x.shape[-1]
    columns = [torch.ones_like(x[..., 0]), *x.unbind(-1)]
    for i in range(D):
        row = range(D - 1, i - 1, -1) if wrong == "pairs backwards" else range(i, D)
        for j in row:
            weight = math.sqrt(0.5) if i == j and wrong != "squares weigh as pairs" else 1.0
            columns.append(weight * x[..., i] * x[..., j])
    return torch.stack(columns, -1)


STEP_MUTANTS: dict[str, Callable[[], Any]] = {
    name: partial(SimpleNamespace, linear_attention_step=partial(one_token, wrong=name))
    for name in (
        "output before update",
        "z from nothing",
        "in place",
        "S taken for dense",
        "one block of rows",
        "one block of columns",
        "0/0",
        "t stands still",
        "scale in q only",
        "squares weigh as pairs",
        "pairs backwards",
    )
}

# Where kernels are compiled, or there is no Triton, nothing here can run.
SUITES: list[Suite] = []
if runtime.refusal(torch.zeros(1)) is None:
    for name, mutants, checks in (
        ("linear", MUTANTS, CHECKS),
        ("step", STEP_MUTANTS, STEP_CHECKS),
    ):
        real = functools.partial(importlib.import_module, f"course.kernels.{name}")
        SUITES.append(Suite(f"kernels.{name}", real, mutants, checks))
