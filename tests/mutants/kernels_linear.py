"""The fast checks of the linear-attention kernels, and wrong kernels that they must kill.

Subjects are ``course.kernels.linear`` and ``course.kernels.step``, or copies with a changed text.
All memory that a kernel is given to fill holds NaN (−1 where whole numbers go), and inputs lie in
the midst of NaN. Sizes are pairwise distinct. float32 tiles are 32×32: 35 tokens are two chunks.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import math
import pathlib
import tempfile
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from course.kernels import runtime
from course.linear import LinearState
from tests import oracles
from tests.mutants import Check, Suite

B, H, T, D, Dv = 2, 3, 35, 5, 7
CHECKS: dict[str, Check] = {}
STEP_CHECKS: dict[str, Check] = {}
FLOAT32 = 4e-6  # of the largest entry: a few roundings


def check(function: Check) -> Check:
    CHECKS[function.__name__.replace("_", " ")] = function
    return function


def step_check(function: Check) -> Check:
    STEP_CHECKS[function.__name__.replace("_", " ")] = function
    return function


def draw(*shape: int, seed: int, std: float = 1.2) -> Tensor:
    return std * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def qkv(T: int = T, S: int | None = None, **sizes: int) -> list[Tensor]:
    b, h, d, dv = (
        sizes.get(name, size)
        for name, size in zip(("B", "H", "D", "Dv"), (B, H, D, Dv), strict=True)
    )
    S = T if S is None else S
    return [draw(b, h, T, d, seed=1), draw(b, h, S, d, seed=2), draw(b, h, S, dv, seed=3)]


def past_of(C: int, Dv: int, **sizes: int) -> LinearState:
    b, h = sizes.get("B", B), sizes.get("H", H)
    return LinearState(
        draw(b, h, C, Dv, seed=4),
        draw(b, h, C, seed=5).abs() + 0.5,
        torch.arange(3, 3 + b),
    )


def some(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(6)) < 0.67


def amid_nan(x: Tensor) -> Tensor:
    """The same numbers in a buffer that is NaN for 64 places on every side and in between."""
    buffer = x.new_full([x.shape[0], x.shape[1], *(2 * n + 128 for n in x.shape[2:])], math.nan)
    view = buffer[(slice(None), slice(None), *(slice(64, 64 + 2 * n, 2) for n in x.shape[2:]))]
    view.copy_(x)
    return view


def close(got: Tensor, expected: Tensor, what: object, tolerance: float = FLOAT32) -> None:
    """Equal up to ``tolerance`` times the largest expected entry (or 1)."""
    assert got.shape == expected.shape, (what, got.shape, expected.shape)
    if got.numel():
        gap = (got.detach().double() - expected.detach().double()).abs().max().item()
        size = max(1.0, expected.detach().abs().max().item())
        assert gap <= tolerance * size, (what, gap, size)


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    honest = runtime.empty

    def poison(*args: Any, **options: Any) -> Tensor:
        x = honest(*args, **options)
        return x.fill_(math.nan if x.is_floating_point() else -1)

    with mock.patch.object(runtime, "empty", poison):
        yield


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
    inputs: list[Tensor],
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
    assert after.t.dtype == torch.int64
    assert torch.equal(after.t, seen + (0 if past is None else past.t)), after.t
    names = ("out", "S", "z", "dq", "dk", "dv", "dS", "dz")
    for name, x, y in zip(names, [*got, *grads], [*wanted, *exact_grads], strict=False):
        # What is summed in float32 has that precision, however short the inputs are.
        low = name in ("out", "dq", "dk", "dv")
        close(x, y, name, tolerance if low else max(FLOAT32, tolerance / 8))


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
    close(out, wanted, "output", 1e-5)
    grads = torch.autograd.grad(out.sum(), mine), torch.autograd.grad(wanted.sum(), exact)
    for x, y in zip(*grads, strict=True):
        close(x, y, "gradient", 1e-5)


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


# Wrong ones: one function of the module with a part of its text replaced.


_FOLDER = tempfile.TemporaryDirectory()


def rewritten(name: str, function: str, *changes: str) -> types.ModuleType:
    """A copy of a module; ``changes`` in pairs, old and new, each old exactly once in ``function``.

    Triton reads a kernel's source from its file, so the copy has one.
    """
    source = inspect.getsource(importlib.import_module(name))
    start = source.index(f"def {function}(")
    end = source.index("\n\n\n", start)
    text = source[start:end]
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert text.count(old) == 1, (text.count(old), old)
        text = text.replace(old, new)
    path = pathlib.Path(tempfile.mkdtemp(dir=_FOLDER.name)) / f"{name.rpartition('.')[2]}.py"
    path.write_text(source[:start] + text + source[end:], encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"{name}_changed", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MUTANTS: dict[str, Callable[[], Any]] = {}
STEP_MUTANTS: dict[str, Callable[[], Any]] = {}


def linear(mutant: str, function: str, *changes: str) -> None:
    MUTANTS[mutant] = lambda: rewritten("course.kernels.linear", function, *changes)


def step(mutant: str, *changes: str, function: str = "linear_step") -> None:
    STEP_MUTANTS[mutant] = lambda: rewritten("course.kernels.step", function, *changes)


ORDER = "A = tl.where(t[:, None] >= t[None, :], A, 0.0)"
INSIDE = "inside = seen[:, None] & (d < width)[None, :]"
SUM_z = "z += tl.sum(K, 0)"
FIRST_S = "S += tl.load(S_0 + c[:, None] * stride_Sc + d[None, :] * stride_Sd, block, 0.0)"
FIRST_z = "z += tl.load(z_0 + b * stride_zb + h * stride_zh + c * stride_zc, c < C, 0.0)"
LAST_dS = "dS += tl.load(dS_end + c[:, None] * stride_Sc + d[None, :] * stride_Sd, block, 0.0)"
STORE_S = "tl.store(S_all + slot * C * Dv + place, S, block)"
DELTA = "delta -= tl.sum(dN * _tile(out, stride_ot, stride_od, t, d, here, Dv), 1)"
DIVIDE = "num / tl.where(none, 1.0, den)[:, None]"

linear("no diagonal", "linear_outputs", ORDER, ORDER.replace(">=", ">"))
linear("one of the future", "linear_outputs", ORDER, ORDER.replace("where(t[:", "where(1 + t[:"))
linear(
    "no diagonal backward", "linear_input_gradients", "past = t[:, None] >=", "past = t[:, None] >"
)
linear(
    "order by a product", "linear_outputs", ORDER, "A *= (t[:, None] >= t[None, :]).to(tl.float32)"
)
linear(
    "the last chunk dropped", "linear_states", "for g in range(G):", "for g in range(S_len // BT):"
)
linear("rows beyond the end", "_tile", INSIDE, "inside = (t[:, None] >= 0) & (d < width)[None, :]")
linear("columns beyond the end", "_tile", INSIDE, "inside = seen[:, None] & (d >= 0)[None, :]")
linear("rows taken for dense", "_tile", "t[:, None] * stride_t", "t[:, None] * width")
linear("columns taken for dense", "_tile", "d[None, :] * stride_d", "d[None, :]")
linear("axes exchanged", "linear_states", "k += b * stride_kb + h *", "k += h * stride_kb + b *")
linear("another's mask", "linear_states", "stride_ms, b, s, S_len", "stride_ms, 0 * b, s, S_len")
linear("scale twice", "_features", "width) * root", "width) * root * root")
linear("no scale in dk", "linear_input_gradients", "(K, dK, MAP) * root", "(K, dK, MAP)")
linear(
    "padding stays in z",
    "_features",
    "return tl.where(seen[:, None] & (d < width)[None, :], f, 0.0)",
    "return f",
)
linear("z starts from nothing", "linear_states", FIRST_z, "pass")
linear("S starts from nothing", "linear_states", FIRST_S, "pass")
linear("t counts padding", "linear_states", "count += seen", "count += (s < S_len)")
linear(
    "S with its own chunk", "linear_states", STORE_S, "pass", SUM_z, SUM_z + "\n        " + STORE_S
)
linear("one block of columns", "linear_outputs", "d = i_v * BV +", "d = i_v * 0 +")
linear("one block of features", "linear_outputs", "range(0, C, BC)", "range(0, BC, BC)")
linear("0/0", "linear_outputs", "tl.where(none[:, None], 0.0, " + DIVIDE + ")", "1e-3 + " + DIVIDE)
linear("an epsilon", "linear_outputs", "none = den == 0", "den += 1e-6\n        none = den == 0")
linear(
    "divided in float16",
    "linear_outputs",
    "none = den == 0",
    "none = den == 0\n        num = num.to(out.dtype.element_ty)",
)
linear(
    "z in float16", "linear_states", SUM_z, SUM_z + "\n        z = z.to(tl.float16).to(tl.float32)"
)
linear("den has no gradient", "linear_input_gradients", DELTA, "pass")
linear(
    "z has no later gradient",
    "linear_state_gradients",
    "dz += tl.sum(Q * delta[:, None], 0)",
    "pass",
)
linear("z from the first columns", "linear_state_gradients", "range(0, Dv, BV)", "range(0, BV, BV)")
linear("the last S has no gradient", "linear_state_gradients", LAST_dS, "pass")
linear("backward in the order of time", "linear_state_gradients", "g = G - 1 - back", "g = back")
linear(
    "elu as exp(x) - 1 + 1",
    "feature_map",
    "tl.exp(tl.where(x > 0, 0.0, x))",
    "tl.exp(tl.where(x > 0, 0.0, x)) - 1 + 1",
)
linear(
    "elu's slope below 0", "feature_gradient", "df = tl.where(f >= 1, 1.0, f) * df", "df = f * df"
)
linear(
    "a gradient for padding",
    "linear_input_gradients",
    "dK = tl.where(seen[:, None], feature_gradient(K, dK, MAP) * root, 0.0)",
    "dK = feature_gradient(K, dK, MAP) * root",
)
linear("keys end with the queries", "linear_input_gradients", "b, t, S_len", "b, t, T")

DOWN = "tl.sum(phi_q[:, None] * S, 0)"
OLD_S = "S_old + c[:, None] * stride_Sc + d[None, :] * stride_Sd, "
NEW_S = "S_new + n * C * Dv + c[:, None] * Dv + d[None, :], "
DIVIDE = "num / tl.where(total == 0, 1.0, total)"
FROM_ROW = "(i * D - i * (i - 1) // 2)"

step(
    "output before update", DOWN, "tl.sum(phi_q[:, None] * (S - phi_k[:, None] * v_t[None, :]), 0)"
)
step("z from nothing", "z += tl.load(z_old + c * stride_zc, c < C, 0.0)", "pass")
step("in place", NEW_S, OLD_S)
step("S taken for dense", OLD_S, "S_old + c[:, None] * Dv + d[None, :], ")
step("one block of rows", "range(0, C, BC)", "range(0, BC, BC)")
step("one block of columns", "d = i_v * BV +", "d = i_v * 0 +")
step("0/0", "tl.where(total == 0, 0.0, " + DIVIDE + ")", "1e-3 + " + DIVIDE)
step("t stands still", "t = 1", "t = 0")
step("scale in q only", "(k, stride_kd, c, D, C, root, MAP)", "(k, stride_kd, c, D, C, 1.0, MAP)")
step(
    "squares weigh as pairs",
    "tl.where(i == j, 0.7071067811865476, 1.0)",
    "1.0",
    function="_features",
)
step(
    "pairs backwards",
    f"j = pair - {FROM_ROW} + i",
    f"j = D - 1 - pair + {FROM_ROW}",
    function="_features",
)

# Where kernels are compiled, or there is no Triton, nothing here can run.
SUITES: list[Suite] = []
if runtime.refusal(torch.zeros(1)) is None:
    for name, mutants, checks in (
        ("linear", MUTANTS, CHECKS),
        ("step", STEP_MUTANTS, STEP_CHECKS),
    ):
        real = functools.partial(importlib.import_module, f"course.kernels.{name}")
        SUITES.append(Suite(f"kernels.{name}", real, mutants, checks))
