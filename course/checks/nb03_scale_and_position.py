"""Checks for the exercises of notebook 03: effective tokens, RoPE, the bias of ALiBi."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course.checks import Exercise, call, differs
from course.positions import alibi_bias, apply_rope

Function = Callable[..., Any]


def _normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# effective_tokens(scores): scores [T, S], −inf = hidden → [T]


def _effective(scores: Tensor) -> Tensor:
    return torch.special.entr(scores.softmax(-1)).sum(-1).exp()


def _effective_shape(function: Function) -> str | None:
    for T, S in ((4, 7), (1, 3), (5, 5)):
        call(function, _normal(T, S, seed=1), shape=(T,))
    return None


def _effective_equal(function: Function) -> str | None:
    for S in (5, 32):
        got = call(function, torch.full((2, S), 3.0, dtype=torch.float64))
        wrong = differs(got, torch.full((2,), float(S)))
        if wrong:
            return (
                f"{S} equal scores are worth {S} tokens: {wrong}. "
                "Is it exp of the entropy, with natural logarithms, summed over the last axis?"
            )
    return None


def _effective_hidden(function: Function) -> str | None:
    scores = torch.zeros(3, 4, dtype=torch.float64)
    scores[0, 1:] = scores[1, 2:] = -torch.inf
    got = call(function, scores, finite=False)
    if bool(got.isnan().any()):
        return "NaN: a weight of 0 has the term 0·log 0, which must count as 0 (torch.special.entr)"
    wrong = differs(got, torch.tensor([1.0, 2.0, 4.0]))
    return wrong and f"rows that see 1, 2 and 4 tokens with equal scores: {wrong}"


def _effective_values(function: Function) -> str | None:
    for seed, size in ((2, 1.0), (3, 4.0)):
        scores = size * _normal(6, 9, seed=seed)
        wrong = differs(call(function, scores), _effective(scores))
        if wrong:
            return f"scores of standard deviation {size:g}: {wrong}"
    return None


def _effective_large(function: Function) -> str | None:
    wrong = differs(call(function, 5_000 * _normal(3, 6, seed=4)), torch.ones(3))
    return wrong and f"for scores of ±5,000 one token is left: {wrong}. Leave exp to softmax"


# rope(x, places): x [T, D], places [T] → [T, D]; pairs (0, 1), (2, 3), …; base 10,000


def _turned(x: Tensor, places: Tensor) -> Tensor:
    return apply_rope(x[None, None], positions=places)[0, 0]


def _rope_shape(function: Function) -> str | None:
    for T, D in ((5, 8), (1, 2), (4, 4)):
        call(function, _normal(T, D, seed=10), torch.arange(T), shape=(T, D))
    return None


def _rope_start(function: Function) -> str | None:
    x = _normal(3, 6, seed=11)
    wrong = differs(call(function, x, torch.zeros(3, dtype=torch.int64)), x)
    return wrong and f"at place 0 nothing turns: {wrong}"


def _rope_length(function: Function) -> str | None:
    x = _normal(6, 8, seed=12)
    wrong = differs(call(function, x, torch.arange(6)).norm(dim=-1), x.norm(dim=-1))
    return wrong and f"a rotation keeps the length of every row: {wrong}. One sign is minus"


def _rope_places(function: Function) -> str | None:
    x, places = _normal(3, 4, seed=13), torch.tensor([7, 0, 2])
    got = call(function, x, places)
    if not differs(got, _turned(x, torch.arange(3))):
        return "turns row t by t; the place of row t is places[t]"
    return None


def _rope_pair(function: Function) -> str | None:
    x = torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(3, 2)
    expected = torch.tensor([[math.cos(p), math.sin(p)] for p in (0, 1, 2)])
    wrong = differs(call(function, x, torch.arange(3)), expected)
    return wrong and (
        f"D = 2: (1, 0) at places 0, 1, 2 becomes (cos p, sin p): {wrong}. "
        "The first pair turns by 1 radian a place"
    )


def _rope_distance(function: Function) -> str | None:
    q, k = _normal(1, 8, seed=14), _normal(1, 8, seed=15)

    def score(t: int, i: int) -> Tensor:
        return (
            call(function, q, torch.tensor([t])) @ call(function, k, torch.tensor([i])).T
        ).double()

    wrong = differs(score(9, 4), score(109, 104))
    return wrong and f"the score at places 109 and 104 must be the one at 9 and 4: {wrong}"


def _rope_values(function: Function) -> str | None:
    for T, D in ((6, 8), (4, 4)):
        x, places = _normal(T, D, seed=16), torch.arange(T) * 3 + 1
        wrong = differs(call(function, x, places), _turned(x, places))
        if wrong:
            return (
                f"T = {T}, D = {D}: {wrong}. Pairs are neighbours, (0, 1), (2, 3) …; pair j "
                "turns by place · 10000^(−2j/D)"
            )
    return None


# alibi(H, T): H a power of two → [H, T, T], −inf where the future is


def _bias(H: int, T: int) -> Tensor:
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    return alibi_bias(H, T).double().masked_fill(future, -torch.inf)


def _finite_part(function: Function, H: int, T: int) -> Tensor:
    return call(function, H, T, shape=(H, T, T), finite=False).double().clamp(min=-1e30)


def _alibi_shape(function: Function) -> str | None:
    for H, T in ((4, 6), (1, 3), (8, 1)):
        _finite_part(function, H, T)
    return None


def _alibi_future(function: Function) -> str | None:
    got = call(function, 2, 5, finite=False)
    if bool((got.triu(1)[:, :-1].sum(-1) != -torch.inf).any()):
        return "the future (column greater than row) must be −inf in every head"
    if bool((got.tril() == -torch.inf).any()):
        return "−inf where a look is allowed; a token sees itself and what came before"
    return None


def _alibi_itself(function: Function) -> str | None:
    wrong = differs(_finite_part(function, 4, 5).diagonal(dim1=1, dim2=2), torch.zeros(4, 5))
    return wrong and f"at distance 0 there is no penalty: {wrong}"


def _alibi_sign(function: Function) -> str | None:
    got = _finite_part(function, 2, 4)
    if not bool((got[:, 3, 0] < got[:, 3, 2]).all()):
        return "the farther key must get the lower score: the bias is −slope · distance"
    return None


def _alibi_slopes(function: Function) -> str | None:
    for H in (8, 4, 1):
        slopes = -_finite_part(function, H, 3)[:, 1, 0]
        wrong = differs(slopes, torch.tensor([2.0 ** (-8 * h / H) for h in range(1, H + 1)]))
        if wrong:
            return (
                f"slopes of {H} heads, 2^(−8h/H) for h = 1 … H: {wrong}. "
                "They are the bias at distance 1"
            )
    return None


def _alibi_values(function: Function) -> str | None:
    for H, T in ((4, 7), (2, 4), (16, 5)):
        wrong = differs(_finite_part(function, H, T), _bias(H, T).clamp(min=-1e30))
        if wrong:
            return f"H = {H}, T = {T}: {wrong}; the penalty grows in proportion to the distance"
    return None


EXERCISES = (
    Exercise(
        "effective_tokens",
        (
            ("shape", _effective_shape),
            ("equal scores", _effective_equal),
            ("hidden tokens", _effective_hidden),
            ("values", _effective_values),
            ("large scores", _effective_large),
        ),
    ),
    Exercise(
        "rope",
        (
            ("shape", _rope_shape),
            ("place 0", _rope_start),
            ("length", _rope_length),
            ("places", _rope_places),
            ("one pair", _rope_pair),
            ("distance", _rope_distance),
            ("values", _rope_values),
        ),
    ),
    Exercise(
        "alibi",
        (
            ("shape", _alibi_shape),
            ("future", _alibi_future),
            ("itself", _alibi_itself),
            ("sign", _alibi_sign),
            ("slopes", _alibi_slopes),
            ("values", _alibi_values),
        ),
    ),
)
