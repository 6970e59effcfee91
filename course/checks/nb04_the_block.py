"""Checks for the exercises of notebook 04: LayerNorm, a pre-norm block, a memory by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course.checks import Exercise, call, differs

Function = Callable[..., Any]
_EPS = 1e-5


def _normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# layer_norm(x, eps): x [..., E] → the same shape, each vector with mean 0 and variance 1


def _norm_shape(function: Function) -> str | None:
    for shape in ((7, 4), (2, 3, 5), (6,)):
        call(function, _normal(*shape, seed=1), _EPS, shape=shape)
    return None


def _norm_mean(function: Function) -> str | None:
    wrong = differs(call(function, 3 * _normal(6, 5, seed=2) + 7, _EPS).mean(-1), torch.zeros(6))
    return wrong and f"every vector must have mean 0: {wrong}"


def _norm_variance(function: Function) -> str | None:
    size = call(function, 3 * _normal(6, 5, seed=3) + 7, _EPS).square().mean(-1)
    wrong = differs(size, torch.ones(6), atol=1e-3)
    return wrong and f"the mean of the squares must be 1: {wrong}. Divide by E, not by E − 1"


def _norm_alone(function: Function) -> str | None:
    x = _normal(2, 4, 5, seed=4)
    changed = x.clone()
    changed[1, 2] += _normal(5, seed=5)
    before, after = call(function, x, _EPS), call(function, changed, _EPS)
    moved = (before - after).abs().amax(-1) > 1e-9
    moved[1, 2] = False
    if not bool(moved.any()):
        return None
    return "changing one token changes another; mean and variance are over the last axis alone"


def _norm_eps(function: Function) -> str | None:
    x = _normal(5, 4, seed=6)
    for eps in (0.5, 2.0):
        wrong = differs(call(function, x, eps), _layer_norm(x, eps))
        if wrong:
            return f"wrong for eps = {eps:g}: {wrong}. Is eps inside the square root?"
    return None


def _norm_constant(function: Function) -> str | None:
    got = call(function, torch.full((2, 4), 3.0, dtype=torch.float64), _EPS, finite=False)
    if bool(got.isnan().any()):
        return "a constant vector gives NaN (0/0); eps is there to prevent it"
    wrong = differs(got, torch.zeros(2, 4))
    return wrong and f"a constant vector must give zeros: {wrong}"


def _layer_norm(x: Tensor, eps: float) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=eps)


# pre_norm_block(x, attend, think, norm_1, norm_2): x [T, E] → [T, E]


def _matrices(T: int, E: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        _normal(T, T, seed=seed).tril(),
        _normal(E, E, seed=seed + 1),
        _normal(E, E, seed=seed + 2),
        _normal(E, E, seed=seed + 3),
    )


def _parts(T: int, E: int, seed: int) -> tuple[Callable[[Tensor], Tensor], ...]:
    """Four functions of a table that no two orders or wirings confuse."""
    weights, a, b, c = _matrices(T, E, seed)
    return (
        lambda x: weights @ x @ a,
        lambda x: torch.tanh(x @ b) @ c,
        lambda x: _layer_norm(x, _EPS),
        lambda x: 0.5 * _layer_norm(x, _EPS) + 0.1,
    )


def _silent(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


def _block_shape(function: Function) -> str | None:
    for T, E in ((5, 3), (1, 4)):
        call(function, _normal(T, E, seed=7), *_parts(T, E, seed=8), shape=(T, E))
    return None


def _block_silent(function: Function) -> str | None:
    x = 4 * _normal(5, 3, seed=9)
    _, _, norm_1, norm_2 = _parts(5, 3, seed=10)
    wrong = differs(call(function, x, _silent, _silent, norm_1, norm_2), x)
    if wrong is None:
        return None
    return f"two parts that say nothing must leave the stream as it is: {wrong}; norm on the stream"


def _block_attend(function: Function) -> str | None:
    x = 4 * _normal(5, 3, seed=11)
    attend, _, norm_1, norm_2 = _parts(5, 3, seed=12)
    wrong = differs(call(function, x, attend, _silent, norm_1, norm_2), x + attend(norm_1(x)))
    return wrong and f"with a silent feed-forward part: {wrong}. Expected x + attend(norm_1(x))"


def _block_think(function: Function) -> str | None:
    x = 4 * _normal(5, 3, seed=13)
    _, think, norm_1, norm_2 = _parts(5, 3, seed=14)
    wrong = differs(call(function, x, _silent, think, norm_1, norm_2), x + think(norm_2(x)))
    return wrong and f"with silent attention: {wrong}. Expected x + think(norm_2(x))"


def _block_values(function: Function) -> str | None:
    for T, E in ((6, 4), (4, 7)):
        x, parts = 4 * _normal(T, E, seed=T), _parts(T, E, seed=15)
        attend, think, norm_1, norm_2 = parts
        middle = x + attend(norm_1(x))
        wrong = differs(call(function, x, *parts), middle + think(norm_2(middle)))
        if wrong:
            return f"{wrong}; does the second part read what the first has written?"
    return None


# recall(x, names, facts): x [T, E], names [N, E], facts [N, F] → [T, F]


def _memory(N: int, E: int, F: int, seed: int) -> tuple[Tensor, Tensor]:
    """Names of length 1 with pairwise cosines from −0.3 to 0.4, and facts."""
    basis = torch.linalg.qr(_normal(E, E, seed=seed))[0][:N]
    tilted = basis.clone()
    tilted[1:] += 0.4 * basis[:-1]
    tilted[2:] -= 0.3 * basis[:-2]
    return torch.nn.functional.normalize(tilted, dim=-1), 2 * _normal(N, F, seed=seed + 1)


def _recall_shape(function: Function) -> str | None:
    names, facts = _memory(4, 9, 3, seed=16)
    call(function, _normal(5, 9, seed=17), names, facts, shape=(5, 3))
    return None


def _recall_names(function: Function) -> str | None:
    for N, E, F in ((4, 9, 3), (6, 11, 8)):
        names, facts = _memory(N, E, F, seed=18)
        order = torch.arange(N).flip(0)
        wrong = differs(call(function, names[order], names, facts), facts[order])
        if wrong:
            return (
                f"a name does not return its fact: {wrong}. Other names have cosines up to ½; is "
                "their match cut to 0, and the own match exactly 1?"
            )
    return None


def _recall_stranger(function: Function) -> str | None:
    names, facts = _memory(4, 9, 3, seed=19)
    stranger = torch.linalg.svd(names)[2][4:]  # at a right angle to every name
    wrong = differs(call(function, stranger, names, facts), torch.zeros(5, 3))
    return wrong and f"a stranger must get zeros: {wrong}. What does the threshold do to cosine 0?"


def _recall_opposite(function: Function) -> str | None:
    names, facts = _memory(4, 9, 3, seed=20)
    wrong = differs(call(function, -names[:1], names[:1], facts[:1]), torch.zeros(1, 3))
    return wrong and f"the opposite of a name must get zeros: {wrong}; relu, not the absolute value"


def _recall_rows(function: Function) -> str | None:
    names, facts = _memory(4, 9, 3, seed=21)
    x = torch.cat([names[2:3], torch.linalg.svd(names)[2][4:6], names[:1]])
    expected = torch.stack([facts[2], 0 * facts[0], 0 * facts[0], facts[0]])
    wrong = differs(call(function, x, names, facts), expected)
    return wrong and f"names and strangers together: {wrong}. Every row is read alone"


EXERCISES = (
    Exercise(
        "layer_norm",
        (
            ("shape", _norm_shape),
            ("each token alone", _norm_alone),
            ("mean", _norm_mean),
            ("variance", _norm_variance),
            ("eps", _norm_eps),
            ("constant vector", _norm_constant),
        ),
    ),
    Exercise(
        "pre_norm_block",
        (
            ("shape", _block_shape),
            ("silent parts", _block_silent),
            ("attention", _block_attend),
            ("feed-forward", _block_think),
            ("values", _block_values),
        ),
    ),
    Exercise(
        "recall",
        (
            ("shape", _recall_shape),
            ("names", _recall_names),
            ("stranger", _recall_stranger),
            ("opposite", _recall_opposite),
            ("rows", _recall_rows),
        ),
    ),
)
