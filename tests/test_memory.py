"""The gated and the delta rule, in both forms, against products of matrices; and what is read back.

A test that takes ``m`` asks the functions of ``course.memory``; ``tests/mutants/memory.py`` puts
wrong ones in their place, which one of these tests at least must refuse.
"""

from __future__ import annotations

import math
import types
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize, pad

from course import memory
from course.feature_maps import get_feature_map
from course.linear import linear_attention
from course.memory import (
    delta_attention,
    delta_attention_step,
    draw_keys,
    gated_attention,
    gated_attention_step,
    leak_matrix,
    recall_error,
)
from course.state import DeltaState, LinearState
from tests import drawing, oracles
from tests.drawing import B, D, H, close, draw, leaves, some

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
    return types.SimpleNamespace(**{name: getattr(memory, name) for name in memory.__all__})


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


# Leaks


def test_leaks_are_what_the_rule_leaves_of_unit_values(m: Any) -> None:
    """Write the pairs into a state by products of matrices, with unit vectors as values."""
    N, C = 7, 4
    K = draw_keys(N, C, trials=6, seed=1).view(2, 3, N, C)
    unit, one = (torch.eye(n, dtype=torch.float64).expand(2, 3, n, n) for n in (N, C))
    for decay in (1.0, 0.8):
        A = (decay * one).unsqueeze(2).expand(2, 3, N, C, C)
        _, S = oracles.written(A, K, K, unit)
        close(m.leak_matrix(K, rule="add", decay=decay), K @ S, ("add", decay))
        f = get_feature_map("elu")(K)
        _, S = oracles.written(A, f, f, torch.cat([unit, torch.ones(2, 3, N, 1)], -1))
        sums = f @ S
        wanted = sums[..., :-1] / sums[..., -1:]
        close(m.leak_matrix(f, rule="divide", decay=decay), wanted, ("divide", decay))
    for length, beta, passes in ((1.0, 1.0, 1), (1.0, 0.6, 3), (0.7, 1.3, 2)):
        k = length * K
        S = torch.zeros(2, 3, C, N, dtype=torch.float64)
        for _ in range(passes):
            A = one.unsqueeze(2) - beta * k.unsqueeze(-1) @ k.unsqueeze(-2)
            _, S = oracles.written(A, k, beta * k, unit, start=S)
        got = m.leak_matrix(k, rule="delta", beta=beta, passes=passes)
        close(got, k @ S, ("delta", beta, passes))
    for beta in (0.4, 9.0):
        wanted = oracles.attention(K, K, unit, scale=beta).weights
        close(m.leak_matrix(K, rule="softmax", beta=beta), wanted, ("softmax", beta))
    L = m.leak_matrix(K, rule="least_squares")
    for b in range(2):
        best = np.linalg.lstsq(K[b, 0].numpy(), np.eye(N), rcond=None)[0]
        close(L[b, 0], K[b, 0].numpy() @ best, "least squares")


def test_leaks_of_orthonormal_keys(m: Any) -> None:
    """Exact up to N = d. One pair more has no state that is exact: its readings have rank d."""
    k = draw_keys(6, 6, keys="orthonormal", seed=2)[0]
    for rule in ("add", "delta", "least_squares"):
        close(m.leak_matrix(k, rule=rule), torch.eye(6), rule)
    k = draw_keys(7, 6, seed=2)[0]
    best = m.leak_matrix(k, rule="least_squares")
    assert torch.linalg.matrix_rank(best) == 6
    # tr (I − L) = N − d is the least that any state leaves of Σ|reading − v|² with unit values.
    close((torch.eye(7) - best).square().sum(), 1.0, "the best state")
    for rule in ("add", "delta"):
        L = m.leak_matrix(k, rule=rule)
        assert torch.linalg.matrix_rank(L) == 6
        assert (torch.eye(7) - L).square().sum() > 1, rule


def test_leaks_in_the_limits(m: Any) -> None:
    k = draw_keys(9, 4, seed=3)[0]
    small = m.leak_matrix(k, rule="delta", beta=0.001, passes=20_000)
    close(small, m.leak_matrix(k, rule="least_squares"), "β → 0", 2e-3)
    independent = draw_keys(6, 10, seed=3)[0]
    many = m.leak_matrix(independent, rule="delta", passes=200)
    close(many, torch.eye(6), "independent keys", 1e-9)
    close(m.leak_matrix(k, rule="softmax", beta=1e-9), torch.full((9, 9), 1 / 9), "mean", 1e-8)
    close(m.leak_matrix(k, rule="softmax", beta=1e4), torch.eye(9), "sharp")
    assert m.leak_matrix(2 * k, rule="delta", passes=12).abs().max() > 1e20


# The error of recall


def test_known_errors(m: Any) -> None:
    """To the two digits with which they are printed: 0.46, 0.68 and 0.99 at d = 32."""
    for n, value in ((8, 0.46), (16, 0.68), (32, 0.99)):
        found = m.recall_error(n, 32)
        assert round(found.low, 2) <= value <= round(found.high, 2), (n, found)
        assert found.low < found.mean < found.high < found.mean + 0.005
        close(found.law, math.sqrt((n - 1) / 32), n)
    close(m.recall_error(8, 32, rule="softmax", beta=32**-0.5).mean, 0.915, "softmax", 2e-3)
    sharp = m.recall_error(1024, 32, rule="softmax", beta=16.0, trials=4)
    close(sharp.rms, 0.005, "sharp softmax", 3e-4)


LAWS: list[dict[str, Any]] = [
    {},
    {"values": "onehot", "Dv": 7},
    {"keys": "correlated", "cosine": 0.4},
    {"keys": "correlated", "cosine": 0.4, "values": "onehot", "Dv": 3},
    {"keys": "correlated", "cosine": 0.3, "values": "onehot", "Dv": 5, "decay": 0.8, "age": 3},
    {"keys": "correlated", "cosine": 0.3, "values": "onehot", "Dv": 5, "decay": 0.8},
    {"decay": 0.9},
    {"decay": 0.9, "age": 0},
    {"decay": 0.9, "age": 4},
    {"keys": "orthonormal"},
    {"keys": "orthonormal", "decay": 0.9, "age": 4},
    {"keys": "orthonormal", "rule": "delta", "beta": 0.5, "passes": 2},
    {"keys": "orthonormal", "rule": "least_squares"},
    {"rule": "delta", "age": 0},
    {"rule": "least_squares"},
    {"rule": "least_squares", "values": "onehot", "Dv": 3},
    {"keys": "correlated", "cosine": 0.4, "rule": "least_squares"},
]


def test_the_laws_hold(m: Any) -> None:
    for n, d in ((6, 9), (12, 12), (10, 5)):
        for options in LAWS:
            if options.get("keys") == "orthonormal" and n > d:
                continue
            found = m.recall_error(n, d, **{"Dv": 8, "trials": 3000, **options})
            tolerance = 0.025 * max(found.law, 0.001)
            assert abs(found.rms - found.law) <= tolerance, (n, d, options, found)


def test_where_nothing_is_derived_there_is_no_law(m: Any) -> None:
    for options in (
        {"feature_map": "elu"},
        {"feature_map": "elu", "rule": "divide"},
        {"rule": "delta"},
        {"rule": "delta", "beta": 0.5, "age": 0},
        {"rule": "softmax"},
        {"rule": "least_squares", "keys": "correlated", "cosine": 0.4, "values": "onehot"},
        {"feature_map": torch.nn.Identity()},
    ):
        assert m.recall_error(5, 4, trials=2, **options).law is None, options


def test_the_law_of_the_gate(m: Any) -> None:
    """error² = (1 − γ^a)² + (Σγ^2j − γ^2a)/D for age a, and its mean over the ages."""
    n, d, decay = 12, 9, 0.9
    squares = [
        (1 - decay**a) ** 2 + (sum(decay ** (2 * j) for j in range(n)) - decay ** (2 * a)) / d
        for a in range(n)
    ]
    for age, square in enumerate(squares):
        law = m.recall_error(n, d, trials=2, decay=decay, age=age).law
        close(law, math.sqrt(square), age)
    law = m.recall_error(n, d, trials=2, decay=decay).law
    close(law, math.sqrt(sum(squares) / n), "all ages")


def test_the_interval_holds_in_95_of_100_draws(m: Any) -> None:
    mean = m.recall_error(6, 4, trials=20_000, seed=1000).mean
    found = [m.recall_error(6, 4, trials=100, seed=seed) for seed in range(200)]
    held = sum(one.low <= mean <= one.high for one in found)
    assert 182 <= held <= 198, held


def test_maps_and_their_price(m: Any) -> None:
    """Additive writing of 32 pairs at d = 32: elu+1 5.4, Taylor 2.3, squares minus their trace."""
    options = {"trials": 400}
    elu = m.recall_error(32, 32, feature_map="elu", **options)
    taylor = m.recall_error(32, 32, feature_map="taylor", **options)

    def traceless(k: Tensor) -> Tensor:
        i, j = torch.triu_indices(32, 32)
        squares = get_feature_map("taylor")(k)[..., 33:] * math.sqrt(2)
        return squares - (i == j) / 32

    squares = m.recall_error(32, 32, feature_map=traceless, **options)
    assert torch.linalg.matrix_rank(traceless(draw_keys(600, 32)[0])) == 527
    close(elu.rms, 5.43, "elu", 0.03)
    close(taylor.rms, 2.30, "taylor", 0.03)
    close(squares.rms, math.sqrt(31 / 527), "squares", 0.003)
    # Divided by their sum, positive features read little but the average of all values.
    divided = m.recall_error(32, 32, feature_map="elu", rule="divide", **options)
    assert abs(divided.mean - math.sqrt(1 - 1 / 32)) < 0.005


def test_the_same_seed_gives_the_same_numbers(m: Any) -> None:
    stream = torch.get_rng_state()
    one = m.recall_error(9, 4, trials=3000, Dv=3)
    assert torch.equal(torch.get_rng_state(), stream), "the global stream was moved"
    torch.manual_seed(12345)
    assert m.recall_error(9, 4, trials=3000, Dv=3) == one, "depends on the global stream"
    assert m.recall_error(9, 4, trials=3000, Dv=3, seed=1).mean != one.mean
    assert torch.equal(m.draw_keys(3, 4, seed=5), m.draw_keys(3, 4, seed=5))
    assert not torch.equal(m.draw_keys(3, 4, seed=5), m.draw_keys(3, 4, seed=6))


def test_the_geometry_of_keys(m: Any) -> None:
    n, d = 5, 7
    for options in ({}, {"keys": "orthonormal"}, {"keys": "correlated", "cosine": 0.6}):
        k = m.draw_keys(n, d, trials=4000, seed=2, **options)
        assert k.shape == (4000, n, d) and k.dtype == torch.float64
        close(k.norm(dim=-1), torch.ones(4000, n), options)
        off = ~torch.eye(n, dtype=torch.bool)
        cosines = (k @ k.mT)[:, off]
        close(cosines.mean(), options.get("cosine", 0.0), options, 0.01)
        if options.get("keys") == "orthonormal":
            close(cosines, torch.zeros_like(cosines), options)
        close(k.mean((0, 1)), torch.zeros(d), options, 0.02)
        close((k.mT @ k).mean(0), n / d * torch.eye(d), options, 0.05)


# Forms, lengths, cuts


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
        after = steps(memory, rule, *(x[:, :, :1] for x in tokens), state)
        assert after[0].dtype == dtype and all(x.dtype == wide for x in after[1][:-1])
        if dtype == torch.float32:
            with torch.autocast("cpu", torch.bfloat16):
                again = attend(memory, rule, *tokens, **WAYS[way])
                stepped = steps(memory, rule, *(x[:, :, :1] for x in tokens), state)[0]
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


# Errors


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_pairs": 0}, "^n_pairs: expected a whole number of at least 1, got 0"),
        ({"d": 2.0}, "^d: expected a whole number of at least 1, got 2.0"),
        ({"Dv": 0}, "^Dv: expected a whole number of at least 1, got 0"),
        ({"trials": 1}, "^trials: expected a whole number of at least 2, got 1"),
        ({"seed": -1}, "^seed: expected a whole number of at least 0, got -1"),
        ({"keys": "unit"}, "^keys: expected one of gaussian, orthonormal, correlated, got 'unit'"),
        ({"keys": "orthonormal"}, "^n_pairs: expected at most d = 4 orthonormal keys, got 5"),
        ({"keys": "correlated"}, "^cosine: expected a finite number above 0, got None"),
        ({"keys": "correlated", "cosine": 0.0}, "^cosine: expected a finite number above 0, got 0"),
        ({"keys": "correlated", "cosine": 1.0}, "^cosine: expected below 1, got 1.0"),
        ({"keys": "correlated", "cosine": 0.5, "d": 1}, "^d: expected .* of at least 2, got 1"),
        ({"cosine": 0.5}, "^cosine: expected None with keys='gaussian', got 0.5"),
        ({"values": "labels"}, "^values: expected one of gaussian, onehot, got 'labels'"),
        ({"rule": "hebb"}, "^rule: expected one of add, divide, delta, softmax, least_squares"),
        ({"feature_map": "cosine"}, "^feature_map: expected one of"),
        ({"feature_map": 3}, "^feature_map: expected a name or a function, got int"),
        ({"feature_map": lambda k: k[:, 0]}, r"^feature_map: expected features \[3, 5, 'C'\]"),
        ({"feature_map": lambda k: None}, r"^feature_map: expected features .*, got NoneType"),
        ({"decay": 0.0}, "^decay: expected a finite number above 0, got 0.0"),
        ({"decay": 1.5}, "^decay: expected at most 1, got 1.5"),
        ({"decay": 0.5, "rule": "delta"}, "^decay: expected 1 with rule='delta', got 0.5"),
        ({"beta": -1.0, "rule": "delta"}, "^beta: expected a finite number above 0, got -1.0"),
        ({"beta": 0.5}, "^beta: expected 1 with rule='add', got 0.5"),
        ({"passes": 0, "rule": "delta"}, "^passes: expected a whole number of at least 1, got 0"),
        ({"passes": 2, "rule": "softmax"}, "^passes: expected 1 with rule='softmax', got 2"),
        ({"age": 5}, "^age: expected at most n_pairs − 1 = 4, got 5"),
        ({"age": -1}, "^age: expected a whole number of at least 0, got -1"),
        ({"rule": "divide"}, "^k: expected features whose products are never negative"),
    ],
)
def test_errors_of_recall(change: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"n_pairs": 5, "d": 4, "trials": 3} | change
    n_pairs, d = arguments.pop("n_pairs"), arguments.pop("d")
    with pytest.raises(ValueError, match=words):
        recall_error(n_pairs, d, **arguments)


def test_errors_of_leaks_and_keys() -> None:
    k = draw_keys(5, 4)[0]
    for options, words in (
        ({"rule": "hebb"}, "^rule: expected one of"),
        ({"rule": "add", "passes": 2}, "^passes: expected 1 with rule='add', got 2"),
        ({"rule": "divide"}, "^k: expected features whose products are never negative"),
    ):
        with pytest.raises(ValueError, match=words):
            leak_matrix(k, **options)
    with pytest.raises(ValueError, match=r"^k: expected at least 2 axes \[..., N, C\], got shape"):
        leak_matrix(k[0], rule="add")
    with pytest.raises(ValueError, match="^k: expected floating-point"):
        leak_matrix(k.long(), rule="add")
    with pytest.raises(ValueError, match="^trials: expected a whole number of at least 1, got 0"):
        draw_keys(5, 4, trials=0)
    with pytest.raises(ValueError, match="^n_pairs: expected at most d = 4 orthonormal keys"):
        draw_keys(5, 4, keys="orthonormal")
