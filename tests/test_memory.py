"""The gated and the delta rule, in both forms, against explicit products of matrices.

A test that takes ``m`` asks the functions of ``course.memory``; ``tests/mutants/memory.py`` puts
wrong ones in their place, which one of these tests at least must refuse.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize, pad
from torch.utils._python_dispatch import TorchDispatchMode

from course import memory
from course.feature_maps import get_feature_map
from course.linear import linear_attention
from course.memory import (
    delta_attention,
    delta_attention_step,
    draw_keys,
    gated_attention,
    gated_attention_step,
)
from course.state import DeltaState, LinearState
from tests import drawing, oracles
from tests.drawing import B, D, H, NoDouble, close, draw, leaves, some

T, Dv = 21, 5
#: Every way to compute it: in one chunk, in several with a ragged one behind, token by token.
WAYS: dict[str, dict[str, Any]] = {
    "one chunk": {},
    "chunks of 8": {"chunk_size": 8},
    "loop": {"form": "loop"},
}
#: The rules, and the gate with features and denominator or without.
RULES: dict[str, dict[str, Any]] = {
    "delta": {},
    "gated": {"feature_map": "elu"},
    "gated, taylor": {"feature_map": "taylor", "scale": 0.7},
    "gated, bare": {"feature_map": "identity", "normalize": False},
}


@pytest.fixture
def m() -> Any:
    return memory


def inputs(T: int = T, **sizes: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k (of length 1), v, and a number between 0.1 and 0.9 a token."""
    q, k, v = drawing.qkv(T, **{"Dv": Dv, **sizes})
    generator = torch.Generator().manual_seed(9)
    x = 0.1 + 0.8 * torch.rand(*k.shape[:3], generator=generator, dtype=torch.float64)
    return q, normalize(k, dim=-1), v, x.to(k.dtype)


def number(rule: str, x: Tensor) -> dict[str, Tensor]:
    """The rule's own number made of x in (0, 1): β, or the logarithm of a decay from e⁻¹ to 1."""
    return {"beta": x} if rule == "delta" else {"log_decay": -x}


def attend(m: Any, rule: str, q: Tensor, k: Tensor, v: Tensor, x: Tensor, **options: Any) -> Any:
    function = m.delta_attention if rule == "delta" else m.gated_attention
    return function(q, k, v, **number(rule, x), **RULES[rule], **options)


def steps(m: Any, rule: str, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: Any = None) -> Any:
    function = m.delta_attention_step if rule == "delta" else m.gated_attention_step
    outs = []
    for t in range(q.shape[2]):
        token = (y[:, :, t] for y in (q, k, v))
        o, state = function(*token, state, **number(rule, x[:, :, t]), **RULES[rule])
        outs.append(o)
    return torch.stack(outs, 2), state


def expected(
    rule: str, q: Tensor, k: Tensor, v: Tensor, x: Tensor, key_mask: Tensor | None = None
) -> Tensor:
    """The definition in float64."""
    q, k, v, x = (y.double() for y in (q, k, v, x))
    if rule == "delta":
        x = x if key_mask is None else torch.where(key_mask[:, None], x, 0.0)
        changes = (x[..., None, None] * k.unsqueeze(-1)) @ k.unsqueeze(-2)
        return oracles.written(torch.eye(k.shape[-1]) - changes, q, x[..., None] * k, v)[0]
    options = RULES[rule]
    sim = oracles.similarity(options["feature_map"], q, k, scale=options.get("scale", 1.0))
    left = oracles.faded(-x, key_mask)
    normal = options.get("normalize", True)
    return oracles.linear_attention(sim * left, v, normalize=normal, key_mask=key_mask)


def test_every_form_equals_the_definition(m: Any) -> None:
    for rule in RULES:
        for way in WAYS:
            for scale in (1.0, 0.2):  # forgetting much, and little
                q, k, v, x = inputs()
                out = attend(m, rule, q, k, v, scale * x, **WAYS[way])
                close(out, expected(rule, q, k, v, scale * x), (rule, way, scale))


def test_gradients_equal_the_definition(m: Any) -> None:
    dout = draw(B, H, T, Dv, seed=4)
    for rule in RULES:
        tokens = leaves(*inputs())
        wanted = torch.autograd.grad(expected(rule, *tokens), tokens, dout)
        for way in WAYS:
            got = torch.autograd.grad(attend(m, rule, *tokens, **WAYS[way]), tokens, dout)
            for g, w, argument in zip(got, wanted, "qkvx", strict=True):
                close(g, w, (rule, way, argument))


def test_the_state_equals_the_definition(m: Any) -> None:
    """Asked by queries that are unit vectors, after the last token and before the first."""
    q, k, v, x = inputs()
    unit = torch.eye(D, dtype=torch.float64).expand(B, H, D, D)
    for rule in ("delta", "gated, bare"):
        change = (x[..., None, None] * k.unsqueeze(-1)) @ k.unsqueeze(-2)
        matrices, writes = torch.eye(D) - change, x[..., None] * k
        if rule != "delta":
            matrices, writes = torch.exp(-x)[..., None, None] * torch.eye(D), k
        _, S = oracles.written(matrices, q, writes, v)
        again, S_again = oracles.written(matrices, q, writes, v, start=S)
        for way in WAYS:
            _, state = attend(m, rule, q, k, v, x, **WAYS[way], return_state=True)
            close(unit @ state.S, S, (rule, way))
            out, state = attend(
                m, rule, q, k, v, x, **WAYS[way], initial_state=state, return_state=True
            )
            close(out, again, (rule, way))
            close(state.S, S_again, (rule, way))
            assert torch.equal(state.t, torch.full((B,), 2 * T))


def test_the_step_equals_the_full_pass(m: Any) -> None:
    tokens = inputs()
    for rule in RULES:
        out, state = steps(m, rule, *tokens)
        close(out, expected(rule, *tokens), rule)
        whole = attend(m, rule, *tokens, return_state=True)[1]
        for got, wanted in zip(state, whole, strict=True):
            close(got, wanted, rule)


def test_a_state_that_was_given_is_left_alone(m: Any) -> None:
    tokens = inputs()
    for rule in RULES:
        _, state = attend(m, rule, *tokens, return_state=True)
        before = [x.clone() for x in state]
        steps(m, rule, *(x[:, :, :3] for x in tokens), state)
        attend(m, rule, *tokens, initial_state=state)
        assert all(torch.equal(a, b) for a, b in zip(before, state, strict=True)), rule


def test_a_sequence_may_be_split(m: Any) -> None:
    tokens = inputs()
    for rule in RULES:
        whole = attend(m, rule, *tokens)
        for way in WAYS:
            for cut in (1, 8, 13):
                one, state = attend(
                    m, rule, *(x[:, :, :cut] for x in tokens), **WAYS[way], return_state=True
                )
                two = attend(
                    m, rule, *(x[:, :, cut:] for x in tokens), **WAYS[way], initial_state=state
                )
                close(torch.cat([one, two], 2), whole, (rule, way, cut))


def test_the_future_changes_nothing(m: Any) -> None:
    for rule in RULES:
        tokens = [x.float() for x in inputs(35)]
        for way in WAYS:
            before = attend(m, rule, *tokens, **WAYS[way])
            for t in (1, 7, 8, 20, 34):
                changed = [x.clone() for x in tokens]
                for x in changed:
                    x[:, :, t:] *= 0.3
                after = attend(m, rule, *changed, **WAYS[way])
                assert torch.equal(before[:, :, :t], after[:, :, :t]), (rule, way, t)
            # Large future values must not cost the past its digits either.
            huge = tokens[2].clone()
            huge[:, :, 20:] *= 1e8
            after = attend(m, rule, *tokens[:2], huge, tokens[3], **WAYS[way])
            assert torch.equal(before[:, :, :20], after[:, :, :20]), (rule, way, "large future")


def test_padding_changes_nothing(m: Any) -> None:
    """Whatever it holds, NaN in the rule's own number included: it neither writes nor fades."""
    dout = draw(B, H, T, Dv, seed=4)
    for rule in RULES:
        tokens = leaves(*inputs())
        plain, state = attend(m, rule, *tokens, return_state=True)
        wanted = torch.autograd.grad(plain, tokens, dout)
        for left, right in ((6, 0), (0, 6), (2, 3)):
            mask = torch.zeros(B, left + T + right, dtype=torch.bool)
            mask[:, left : left + T] = True
            for filler in (0.7, math.nan):
                longer = [pad(x.detach(), (0, 0, left, right), value=0.7) for x in tokens[:3]]
                longer.append(pad(tokens[3].detach(), (left, right), value=0.7))
                for x in longer[1:]:
                    x[:, :, ~mask[0]] = filler
                longer = leaves(*longer)
                for way in WAYS:
                    out, after = attend(
                        m, rule, *longer, **WAYS[way], key_mask=mask, return_state=True
                    )
                    real = out[:, :, left : left + T]
                    close(real, plain, (rule, way, left))
                    assert not out.isnan().any(), (rule, way, "NaN leaks")
                    for a, b in zip(after, state, strict=True):
                        close(a, b, (rule, way, left))
                    for g, w in zip(torch.autograd.grad(real, longer, dout), wanted, strict=True):
                        close(g[:, :, left : left + T], w, (rule, way, left))
                        assert not g[:, :, ~mask[0]].any(), (rule, way, "padding has a gradient")


def test_a_mask_in_the_middle_equals_leaving_out(m: Any) -> None:
    tokens, mask = inputs(), some(B, T)
    for rule in RULES:
        for way in WAYS:
            out = attend(m, rule, *tokens, key_mask=mask, **WAYS[way])
            close(out, expected(rule, *tokens, key_mask=mask), (rule, way))


def test_without_decay_it_is_linear_attention(m: Any) -> None:
    q, k, v, x = inputs()
    for rule in RULES:
        if rule == "delta":
            continue
        for way in WAYS:
            out, state = m.gated_attention(
                q, k, v, log_decay=0 * x, **RULES[rule], **WAYS[way], return_state=True
            )
            plain, S = linear_attention(q, k, v, causal=True, **RULES[rule], return_state=True)
            for got, wanted in zip((out, *state), (plain, *S), strict=True):
                close(got, wanted, (rule, way))
    out = m.gated_attention(q, k, v, log_decay=0 * x)
    close(out, linear_attention(q, k, v, causal=True), "the same defaults")
    for t, o in enumerate(steps(m, "gated", q, k, v, x)[0].unbind(2)):
        close(o, m.gated_attention(q, k, v, log_decay=-x)[:, :, t], "the step's defaults")


def test_a_strong_decay_costs_no_digits(m: Any) -> None:
    """Forget 10,000 times ln e early on, or a little at each of many tokens: float32 holds."""
    q, k, v, x = (y.float() for y in inputs(130, B=1, H=2))
    for name, log in {
        "once": torch.where(torch.arange(130) % 50 == 3, -1e4 * x, -0.01 * x),
        "steadily": -5 * x,
        "hardly": -1e-3 * x,
    }.items():
        wanted = oracles.linear_attention(
            oracles.similarity("identity", q, k) * oracles.faded(log), v, normalize=False
        )
        for way in WAYS:
            out = m.gated_attention(
                q, k, v, log_decay=log, feature_map="identity", normalize=False, **WAYS[way]
            )
            close(out, wanted, (name, way), 1e-5)
    nothing_left = torch.full_like(x, -math.inf)
    for way in WAYS:
        out = m.gated_attention(q, k, v, log_decay=nothing_left, **WAYS[way])
        close(out, v, ("only the present", way), 1e-6)


def test_equal_keys_cost_no_digits(m: Any) -> None:
    """The powers of a system full of ones grow like 2^n before they cancel; its solution does not.

    Keys with a cosine of 1, or nearly, and β = 1: every token takes the last one's place.
    """
    q, k, v, x = inputs(64, B=1, H=2)
    near = normalize(k[:, :, :1] + 0.03 * k, dim=-1)
    for keys in (k[:, :, :1].expand_as(k), near):
        tokens = [y.float() for y in (q, keys, v, torch.ones_like(x))]
        for way in WAYS:
            out = attend(m, "delta", *tokens, **WAYS[way])
            close(out, expected("delta", *tokens), way, 1e-5)


def test_sums_are_kept_in_float32(m: Any) -> None:
    """A sum of ones stops at 256 in bfloat16; a correction of 2⁻¹⁰ of the rest stops at once."""
    n = 1200
    for dtype in (torch.bfloat16, torch.float16):
        one = torch.ones(1, 1, n, 1, dtype=dtype)
        small = torch.full((1, 1, n), 2.0**-10, dtype=dtype)
        for way in WAYS:
            state = m.gated_attention(
                one, one, one, log_decay=0 * small, **RULES["gated, bare"], **WAYS[way],
                return_state=True,
            )[1]  # fmt: skip
            assert state.S.dtype == state.z.dtype == torch.float32
            assert state.S.item() == state.z.item() == n, (dtype, way, state)
            out, state = m.delta_attention(
                one, one, one, beta=small, **WAYS[way], return_state=True
            )
            assert out.dtype == dtype and state.S.dtype == torch.float32
            close(state.S.item(), 1 - (1 - 2.0**-10) ** n, (dtype, way), 1e-5)
        before = state.S.item()
        _, state = m.delta_attention_step(
            one[:, :, 0], one[:, :, 0], one[:, :, 0], state, beta=small[:, :, 0]
        )
        close(state.S.item() - before, 2.0**-10 * (1 - before), dtype, 1e-6)


# What the delta rule is for


def test_the_newest_pair_is_read_exactly(m: Any) -> None:
    _, k, v, x = inputs()
    for way in WAYS:
        out = m.delta_attention(k, k, v, beta=torch.ones_like(x), **WAYS[way])
        close(out, v, way)
    longer = 0.5 * k  # β|k|² = 1 is what counts
    close(m.delta_attention(longer, longer, v, beta=4 * torch.ones_like(x)), v, "β = 1/|k|²")


def test_writing_again_replaces(m: Any) -> None:
    """The state after (k, v) and then (k, w) is the one after (k, w) alone, whatever was before."""
    tokens, pair = inputs(), draw(B, H, 2, Dv, seed=7)
    k = normalize(draw(B, H, 1, D, seed=8), dim=-1).expand(-1, -1, 2, -1)
    one = torch.ones(B, H, 2, dtype=torch.float64)
    _, past = m.delta_attention(*tokens[:3], beta=tokens[3], return_state=True)
    for way in WAYS:
        options = {"initial_state": past, "return_state": True, **WAYS[way]}
        out, twice = m.delta_attention(k, k, pair, beta=one, **options)
        last = (x[:, :, 1:] for x in (k, k, pair))
        _, once = m.delta_attention(*last, beta=one[:, :, 1:], **options)
        close(twice.S, once.S, way)
        close(out[:, :, 1], pair[:, :, 1], way)


def passed(m: Any, k: Tensor, v: Tensor, beta: float, passes: int, **way: Any) -> Tensor:
    """What each key reads after so many passes over all pairs; ``k [N,D]``, ``v [N,Dv]``."""
    k, v = k[None, None], v[None, None]
    state = None
    for _ in range(passes):
        b = torch.full(k.shape[:3], beta, dtype=k.dtype)
        _, state = m.delta_attention(k, k, v, beta=b, initial_state=state, return_state=True, **way)
    return (k @ state.S)[0, 0]


def test_passes_make_independent_keys_exact(m: Any) -> None:
    k, v = draw_keys(6, 10, seed=3)[0], draw(6, Dv, seed=5)
    for way in WAYS:
        once, often = (passed(m, k, v, 1.0, n, **WAYS[way]) for n in (1, 200))
        assert (once - v).abs().max() > 0.1
        close(often, v, way, 1e-9)


def test_with_more_pairs_than_room_small_steps_end_at_least_squares(m: Any) -> None:
    k, v = draw_keys(9, 4, seed=3)[0], draw(9, Dv, seed=5)
    best = torch.as_tensor(k.numpy() @ np.linalg.lstsq(k.numpy(), v.numpy(), rcond=None)[0])
    off = [
        (passed(m, k, v, beta, passes) - best).abs().max().item()
        for beta, passes in ((1.0, 100), (0.2, 100), (0.02, 1000))
    ]
    assert off[0] > off[1] > 0.1
    assert 8 < off[1] / off[2] < 12.5, off  # ten times smaller steps, ten times nearer


def test_long_keys_diverge(m: Any) -> None:
    q, k, v, x = inputs(120)
    for way in WAYS:
        sizes = [
            m.delta_attention(
                q, length * k, v, beta=torch.ones_like(x), **WAYS[way], return_state=True
            )[1].S.norm().item()
            for length in (1.0, 2.0)
        ]  # fmt: skip
        assert sizes[0] < 1e3 and sizes[1] > 1e12, (way, sizes)


# Forms, lengths, cuts


@pytest.mark.parametrize("rule", RULES)
def test_a_pass_has_as_many_chunks_as_asked_for(rule: str) -> None:
    class Counter(TorchDispatchMode):
        tables = 0

        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.tables += f is torch.ops.aten.tril.default
            return f(*args, **(kwargs or {}))

    tables = []
    for size in (None, 64, 130, 200, 13):
        with Counter() as counter:
            attend(memory, rule, *inputs(130), chunk_size=size)
        tables.append(counter.tables)
    assert tables == [2 * chunks for chunks in (3, 3, 1, 1, 10)]  # two tables a chunk


LENGTHS = [0, 1, 2, 15, 16, 17, 63, 64, 65, 200, 257]


@pytest.mark.parametrize("T", LENGTHS)
@pytest.mark.parametrize("rule", RULES)
def test_chunks_equal_the_loop(rule: str, T: int) -> None:
    """Output, final state and gradients, to 1e-10 of the largest entry: the project's promise."""
    dout, past = draw(B, H, T, 11, seed=5), inputs(6, D=16, Dv=11)
    state = attend(memory, rule, *past, return_state=True)[1]
    tokens = leaves(*inputs(T, D=16, Dv=11))
    for x in (
        tokens[3],
        torch.ones_like(tokens[3]),
    ):  # β = 1 and a decay of e⁻¹ at every token, too
        found = []
        for options in ({"form": "loop"}, *({"chunk_size": c} for c in (1, 3, 16, 64, 1000))):
            q, k, v = tokens[:3]
            out, after = attend(
                memory, rule, q, k, v, x, initial_state=state, return_state=True, **options
            )
            total = (out * dout).sum() + after.S.square().sum()
            grads = torch.autograd.grad(total, tokens[: 3 + x.requires_grad], allow_unused=True)
            found.append([out, after.S, *(g if g is not None else out.sum() for g in grads)])
            assert torch.equal(after.t, torch.full((B,), 6 + T))
        for chunked in found[1:]:
            for got, wanted in zip(chunked, found[0], strict=True):
                size = wanted.abs().max().clamp(min=1e-3) if wanted.numel() else 1.0
                assert got.shape == wanted.shape
                assert ((got - wanted).abs() <= 1e-10 * size).all(), (rule, T)


@pytest.mark.parametrize("form", ["gated_loop", "gated_chunk", "delta_loop", "delta_chunk"])
def test_forms_are_functions_of_rows(form: str) -> None:
    """With any axes before the rows, none included: as a notebook calls them."""
    q, k, v, x = inputs(100)
    x = (x if "delta" in form else -x).unsqueeze(-1)
    S = draw(B, H, D, Dv, seed=6)
    out, after = getattr(memory, form)(q, k, v, S, x)
    assert out.shape == v.shape and after.shape == S.shape
    for place in ((), (0,), (1, 2)):
        part = getattr(memory, form)(*(y[place] for y in (q, k, v, S, x)))
        close(part[0], out[place], (form, place))
        close(part[1], after[place], (form, place))
    two = getattr(memory, form)(*(torch.cat([y, y]) for y in (q, k, v, S, x)))
    close(two[0], torch.cat([out, out]), form)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", RULES)
def test_gradcheck(rule: str, way: str) -> None:
    """All inputs and the parts of the state, through output and state; padding in the middle."""
    q, k, v, x = inputs(10 if way == "chunks of 8" else 5, B=1, H=2, D=2, Dv=3)
    mask = torch.ones(1, q.shape[2], dtype=torch.bool)
    mask[0, 2] = False
    _, past = attend(memory, rule, q, k, v, x, return_state=True)
    *sums, t = past

    def function(q: Tensor, k: Tensor, v: Tensor, x: Tensor, *sums: Tensor) -> tuple[Tensor, ...]:
        state = type(past)(*sums, t)
        options = {"key_mask": mask, "initial_state": state, "return_state": True, **WAYS[way]}
        out, (*after, _) = attend(memory, rule, q, k, v, x, **options)
        return out, *after

    assert torch.autograd.gradcheck(function, leaves(q, k, v, x, *sums), fast_mode=True)


@pytest.mark.parametrize("rule", RULES)
def test_gradcheck_of_the_step(rule: str) -> None:
    q, k, v, x = inputs(2, B=1, H=2, D=2, Dv=3)
    _, past = attend(memory, rule, q, k, v, x, return_state=True)
    *sums, t = past

    def function(q: Tensor, k: Tensor, v: Tensor, x: Tensor, *sums: Tensor) -> tuple[Tensor, ...]:
        out, (*after, _) = steps(memory, rule, q, k, v, x, type(past)(*sums, t))
        return out, *after

    assert torch.autograd.gradcheck(function, leaves(q, k, v, x, *sums))


@given(st.data())
def test_any_cut_any_form_any_chunk(data: st.DataObject) -> None:
    """Two passes with the state handed over equal one, gradients through the state included."""
    rule = data.draw(st.sampled_from(list(RULES)))
    T = data.draw(st.integers(0, 40))
    cut = data.draw(st.integers(0, T))
    ways = [{"form": "loop"}, *({"chunk_size": c} for c in (1, 5, 16, 50))]
    one, two = data.draw(st.sampled_from(ways)), data.draw(st.sampled_from(ways))
    mask = some(B, T, seed=data.draw(st.integers(0, 9)))
    masked = data.draw(st.booleans())
    inside, dout = leaves(*inputs(T)), draw(B, H, T, Dv, seed=5)

    def part(where: slice, **options: Any) -> Any:
        key_mask = mask[:, where] if masked else None
        cut_out = (x[:, :, where] for x in inside)
        return attend(memory, rule, *cut_out, key_mask=key_mask, **options)

    a, state = part(slice(0, cut), return_state=True, **one)
    parts = torch.cat([a, part(slice(cut, T), initial_state=state, **two)], 2)
    whole = part(slice(0, T))
    close(parts, whole, "output")
    for got, wanted in zip(
        torch.autograd.grad(parts, inside, dout, materialize_grads=True),
        torch.autograd.grad(whole, inside, dout, materialize_grads=True),
        strict=True,
    ):
        close(got, wanted, "gradient")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", RULES)
def test_a_second_derivative_is_right(rule: str, way: str) -> None:
    tokens = leaves(*inputs(10, B=1))
    seconds = []
    for out in (expected(rule, *tokens), attend(memory, rule, *tokens, **WAYS[way])):
        (first,) = torch.autograd.grad(out.sum(), tokens[1], create_graph=True)
        seconds.append(torch.autograd.grad(first.square().sum(), tokens, materialize_grads=True))
    for wanted, got in zip(*seconds, strict=True):
        close(got, wanted, (rule, way), 1e-11)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("sizes", [{"B": 1}, {"D": 1}, {"B": 0}, {"H": 0}, {"H": 1, "D": 2}])
def test_small_axes(rule: str, way: str, sizes: dict[str, int]) -> None:
    for T in (0, 1, 3):
        q, k, v, x = inputs(T, **sizes)
        mask = torch.ones(len(q), T, dtype=torch.bool)
        for key_mask in (None, mask):
            out = attend(memory, rule, q, k, v, x, key_mask=key_mask, **WAYS[way])
            assert out.shape == v.shape
            if v.numel():
                close(out, expected(rule, q, k, v, x), (rule, T))


@pytest.mark.parametrize("rule", RULES)
def test_heads_and_texts_are_independent(rule: str) -> None:
    """Permuted, so are the outputs; a NaN in one head stays there."""
    tokens = inputs()
    whole = attend(memory, rule, *tokens)
    texts, heads = torch.tensor([1, 0]), torch.tensor([2, 0, 1])
    close(attend(memory, rule, *(x[texts][:, heads] for x in tokens)), whole[texts][:, heads], rule)
    broken = [x.clone() for x in tokens]
    broken[1][0, 1, 12] = math.nan
    for way in WAYS:
        out = attend(memory, rule, *broken, **WAYS[way])
        assert not out[1].isnan().any() and not out[0, [0, 2]].isnan().any(), way
        assert out[0, 1, 12:].isnan().any(-1).all(), "a visible NaN was hidden"
        before = 8 if rule == "delta" else 12  # inside a chunk, 0 times a NaN of V′ is NaN
        if (rule, way) != ("delta", "one chunk"):
            assert not out[0, 1, :before].isnan().any(), "the future reached the past"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", RULES)
def test_dtypes_and_autocast(rule: str, way: str) -> None:
    """Outputs in the dtype of q, sums at least in float32; the error is that of the last digit."""
    for dtype, wide in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        tokens = [x.to(dtype) for x in inputs(40)]
        exact = expected(rule, *tokens)
        out, state = attend(memory, rule, *tokens, **WAYS[way], return_state=True)
        assert out.dtype == dtype and state.t.dtype == torch.int64
        assert all(x.dtype == wide for x in state[:-1])
        close(out, exact, (rule, dtype), 4 * torch.finfo(dtype).eps)
        before = attend(memory, rule, *(x[:, :, :39] for x in tokens), return_state=True)[1]
        after = steps(memory, rule, *(x[:, :, 39:] for x in tokens), before)
        assert after[0].dtype == dtype
        close(after[0], out[:, :, 39:], (rule, dtype), 4 * torch.finfo(dtype).eps)
        for got, wanted in zip(after[1], state, strict=True):
            assert got.dtype == wanted.dtype
            close(got, wanted, (rule, dtype), 1e-6)
        if dtype == torch.float32:
            with torch.autocast("cpu", torch.bfloat16):
                again = attend(memory, rule, *tokens, **WAYS[way])
                stepped = steps(memory, rule, *(x[:, :, 39:] for x in tokens), before)[0]
            assert torch.equal(again, out) and torch.equal(stepped, after[0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", RULES)
def test_strides_do_not_matter_and_arguments_are_left_alone(rule: str, way: str) -> None:
    """Inputs cut out of NaN, heads behind tokens, and gradients that are one number repeated."""
    plain = leaves(*inputs(20))
    out = attend(memory, rule, *plain, **WAYS[way])
    wanted = torch.autograd.grad(out.sum(), plain)
    for change in (
        oracles.cut_from_nan,
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x.mT.contiguous().mT,
    ):
        others = [change(x.detach()).requires_grad_() for x in plain]
        before = [x.detach().clone() for x in others]
        other = attend(memory, rule, *others, **WAYS[way])
        close(other, out, (rule, way))
        for g, w in zip(torch.autograd.grad(other.sum(), others), wanted, strict=True):
            close(g, w, (rule, way))
        assert all(torch.equal(a, b) for a, b in zip(before, others, strict=True))


@pytest.mark.parametrize("T", [0, 1, 130])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", RULES)
def test_a_state_owns_its_memory_and_no_more(rule: str, way: str, T: int) -> None:
    past = None
    for _ in range(2):
        _, state = attend(
            memory, rule, *inputs(T), **WAYS[way], initial_state=past, return_state=True
        )
        assert drawing.held_bytes(*state) == sum(x.nbytes for x in state)
        past = type(state)(*(x.clone() for x in state))


def test_features_with_positions_go_on_from_the_state() -> None:
    q, k, v, x = inputs()
    fm = get_feature_map("cosformer", max_length=50)
    whole = gated_attention(q, k, v, log_decay=-x, feature_map=fm)
    places = torch.arange(T).expand(B, -1)
    sim = oracles.similarity("cosformer", q, k, q_places=places, k_places=places, max_length=50)
    close(whole, oracles.linear_attention(sim * oracles.faded(-x), v), "whole")
    one, two = slice(0, 9), slice(9, T)
    _, state = gated_attention(
        *(y[:, :, one] for y in (q, k, v)), log_decay=-x[:, :, one], feature_map=fm,
        return_state=True,
    )  # fmt: skip
    later = (y[:, :, two] for y in (q, k, v))
    out = gated_attention(*later, log_decay=-x[:, :, two], feature_map=fm, initial_state=state)
    close(out, whole[:, :, two], "resumed")


# What else PyTorch asks


@pytest.mark.parametrize("rule", ["delta", "gated"])
def test_transforms_forward_mode_and_a_device_without_float64(rule: str) -> None:
    tokens = [x.float() for x in inputs(20)]

    def attention(q: Tensor, *others: Tensor) -> Tensor:
        return attend(memory, rule, q, *others, chunk_size=8)

    whole = attention(*tokens)
    both = [torch.stack([x, x.flip(2)]) for x in tokens]
    batch = torch.func.vmap(attention)(*both)
    close(batch[0], whole, "vmap", 1e-6)
    q, *others = leaves(*tokens)
    along = torch.func.jvp(lambda q: attention(q, *others), (q,), (whole.new_ones(q.shape),))[1]
    (back,) = torch.autograd.grad(attention(q, *others).sum(), q)
    close(along.sum(), back.sum(), "forward mode", 1e-5)
    with NoDouble():
        on_meta = attend(memory, rule, *(x.to("meta") for x in tokens), return_state=True)
        assert on_meta[0].shape == whole.shape and all(x.is_meta for x in on_meta[1])
        for state in (None, on_meta[1]):
            first = (x[:, :, :1].to("meta") for x in tokens)
            assert all(x.is_meta for x in steps(memory, rule, *first, state)[1])


@pytest.mark.parametrize("rule", ["delta", "gated"])
def test_a_compiler_follows_to_the_end(rule: str) -> None:
    tokens = leaves(*inputs(10), dtype=torch.float32)
    torch.compiler.reset()
    compiled = torch.compile(
        lambda *x: attend(memory, rule, *x, chunk_size=8), fullgraph=True, backend="aot_eager"
    )
    plain = attend(memory, rule, *tokens, chunk_size=8)
    found = compiled(*tokens)
    close(found, plain, rule, 1e-6)
    for got, wanted in zip(
        torch.autograd.grad(found.sum(), tokens),
        torch.autograd.grad(plain.sum(), tokens),
        strict=True,
    ):
        close(got, wanted, rule, 1e-5)


# Errors


meta = functools.partial(torch.ones, device="meta")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": torch.ones(2, 3, 4)}, r"^q: expected 4 axes \[B H T D\], got 3"),
        ({"k": torch.ones(2, 1, 21, 4)}, "^q and k: expected equal sizes on axis H"),
        ({"v": torch.ones(2, 3, 20, 5)}, "^k and v: expected equal sizes on axis S"),
        ({"v": torch.ones(2, 3, 21, 5).double()}, "expected one dtype"),
        ({"q": torch.ones(2, 3, 20, 4)}, "expected T = S when causal, got T = 20 and S = 21"),
        ({"key_mask": torch.ones(2, 21)}, "^key_mask: expected a boolean tensor"),
        ({"form": "scan"}, "^form: expected one of loop, chunk, got 'scan'"),
        ({"chunk_size": 0}, "^chunk_size: expected a whole number of at least 1, got 0"),
        ({"return_state": 1}, "^return_state: expected True or False, got 1"),
        ({"initial_state": torch.ones(2, 3, 4, 5)}, "^initial_state: expected a (Linear|Delta)St"),
        ({"x": torch.ones(2, 3, 21, 1)}, r"^(beta|log_decay): expected 3 axes \[B H T\], got 4"),
        ({"x": torch.ones(2, 3, 20)}, "^q and (beta|log_decay): expected equal sizes on axis T"),
        ({"x": torch.ones(2, 1, 21)}, "^q and (beta|log_decay): expected equal sizes on axis H"),
        ({"x": torch.ones(1, 3, 21)}, "^q and (beta|log_decay): expected equal sizes on axis B"),
        ({"x": torch.ones(2, 3, 21).long()}, "^(beta|log_decay): expected floating-point"),
        ({"x": 0.5}, r"^(beta|log_decay): expected a tensor \[B H T\], got float"),
        ({"x": meta(2, 3, 21)}, "^q and (beta|log_decay): expected one device, got q on cpu"),
        ({"v": meta(2, 3, 21, 5)}, "^q and k and v: expected one device, .* v on meta"),
        (
            {"key_mask": meta(2, 21, dtype=torch.bool)},
            "^k and key_mask: expected one device, got k on cpu, key_mask on meta",
        ),
    ],
)
@pytest.mark.parametrize("rule", ["delta", "gated"])
def test_errors_name_the_argument(rule: str, change: dict[str, Any], words: str) -> None:
    q, k, v, x = (y.float() for y in inputs())
    arguments: dict[str, Any] = {"q": q, "k": k, "v": v} | change
    name = "beta" if rule == "delta" else "log_decay"
    arguments[name] = arguments.pop("x", x)
    function = delta_attention if rule == "delta" else gated_attention
    with pytest.raises(ValueError, match=words):
        function(**arguments)


def test_errors_of_the_gate() -> None:
    q, k, v, x = inputs()
    with pytest.raises(ValueError, match="feature_map: expected .*normalize=True, got .*identity"):
        gated_attention(q, k, v, log_decay=-x, feature_map="identity")
    with pytest.raises(ValueError, match="^scale: expected a finite number above 0, got -1"):
        gated_attention(q, k, v, log_decay=-x, scale=-1.0)
    with pytest.raises(ValueError, match="^normalize: expected True or False, got 1"):
        gated_attention(q, k, v, log_decay=-x, normalize=1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q_t": torch.ones(2, 3, 1, 4)}, r"^q_t: expected 3 axes \[B H D\], got 4"),
        ({"k_t": torch.ones(2, 3, 5)}, "^q_t and k_t: expected equal sizes on axis D"),
        ({"x": torch.ones(2, 3, 1)}, r"^(beta|log_decay): expected 2 axes \[B H\], got 3"),
        ({"x": torch.ones(2, 2)}, "^q and (beta|log_decay): expected equal sizes on axis H"),
        ({"x": meta(2, 3)}, "^q and (beta|log_decay): expected one device, got q on cpu"),
        ({"k_t": meta(2, 3, 4)}, "^q_t and k_t and v_t: expected one device"),
        ({"state": (1, 2)}, "^initial_state: expected a (Linear|Delta)State, got tuple"),
        (
            {"state": torch.ones(2, 3, 4, 5)},
            "^initial_state: expected a (Linear|Delta)State, got Tensor",
        ),
    ],
)
@pytest.mark.parametrize("rule", ["delta", "gated"])
def test_errors_of_the_step(rule: str, change: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {
        "q_t": torch.ones(2, 3, 4),
        "k_t": torch.ones(2, 3, 4),
        "v_t": torch.ones(2, 3, 5),
    } | change
    name = "beta" if rule == "delta" else "log_decay"
    arguments[name] = arguments.pop("x", torch.ones(2, 3))
    function = delta_attention_step if rule == "delta" else gated_attention_step
    with pytest.raises(ValueError, match=words):
        function(**arguments)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"S": torch.ones(2, 3, 5, 4)}, r"S: expected \[B H C Dv\] = \[2, 3, 4, 5\], got"),
        ({"S": torch.ones(2, 3, 4, 5).long()}, "S: expected floating-point"),
        ({"t": torch.ones(3).long()}, r"t: expected \[B\] = \[2\], got \[3\]"),
        ({"t": torch.ones(2)}, "t: expected whole numbers, got torch.float32"),
        ({"S": meta(2, 3, 4, 5)}, "S: expected device cpu, got meta"),
        ({"t": meta(2, dtype=torch.int64)}, "t: expected device cpu, got meta"),
    ],
)
def test_errors_of_the_state(change: dict[str, Any], words: str) -> None:
    q, k, v, x = inputs()
    good: Any
    for rule, good in (
        ("delta", DeltaState(torch.ones(2, 3, 4, 5), torch.ones(2).long())),
        ("gated", LinearState(torch.ones(2, 3, 4, 5), torch.ones(2, 3, 4), torch.ones(2).long())),
    ):
        bad = good._replace(**change)
        with pytest.raises(ValueError, match=f"^initial_state.{words}"):
            attend(memory, rule, q, k, v, x, initial_state=bad)
        with pytest.raises(ValueError, match=f"^initial_state.{words}"):
            steps(memory, rule, q, k, v, x, bad)


@pytest.mark.parametrize("rule", ["gated", "delta"])
def test_the_form_asked_for_is_the_one_that_runs(rule: str) -> None:
    """The forms give one result but for rounding; bit by bit the loop is not the chunks."""
    q, k, v, x = (y.float() for y in inputs(150))
    outs = {form: attend(memory, rule, q, k, v, x, form=form) for form in ("loop", "chunk")}
    small = attend(memory, rule, q, k, v, x, chunk_size=16)
    close(outs["loop"], outs["chunk"], rule, 1e-4)
    for one, other in itertools.combinations((*outs.values(), small), 2):
        assert not torch.equal(one, other)
    one_chunk = attend(memory, rule, q, k, v, x, chunk_size=1)
    close(one_chunk, outs["loop"], rule, 1e-4)
