"""Checks for the exercises of notebook 02: one head, low-rank scores, the effective matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course.attention import softmax_attention
from course.checks import Exercise, Wrong, call, differs, sees_future

Function = Callable[..., Any]


def _normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# attend(x, W_q, W_k, W_v): x [T, E], W [D or Dv, E] → [T, Dv]; causal, no scale


def _four(T: int, E: int, D: int, Dv: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        _normal(T, E, seed=seed),
        _normal(D, E, seed=seed + 1),
        _normal(D, E, seed=seed + 2),
        _normal(Dv, E, seed=seed + 3),
    )


def _head(x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor, scale: float = 1.0) -> Tensor:
    q, k, v = ((x @ W.T)[None, None] for W in (W_q, W_k, W_v))
    return softmax_attention(q, k, v, causal=True, scale=scale)[0, 0]


def _attend_shape(function: Function) -> str | None:
    for T, E, D, Dv in ((6, 5, 3, 2), (1, 4, 2, 3), (5, 5, 5, 5)):
        call(function, *_four(T, E, D, Dv, seed=1), shape=(T, Dv))
    return None


def _attend_first(function: Function) -> str | None:
    x, W_q, W_k, W_v = _four(6, 5, 3, 2, seed=5)
    wrong = differs(call(function, x, W_q, W_k, W_v)[0], W_v @ x[0])
    return wrong and (
        f"token 0 may look at itself alone, so row 0 is its own value W_v x[0]: {wrong}. "
        "Is the mask there, with the diagonal allowed?"
    )


def _attend_causal(function: Function) -> str | None:
    x, *maps = _four(9, 5, 3, 2, seed=9)
    return sees_future(lambda stream: function(stream, *maps), x, at=5)


def _attend_average(function: Function) -> str | None:
    x, W_q, W_k, W_v = _four(8, 5, 3, 2, seed=13)
    x[:, 0], W_v = 1.0, torch.zeros_like(W_v)
    W_v[:, 0] = torch.tensor([3.0, -2.0])
    wrong = differs(call(function, x, W_q, W_k, W_v), W_v[:, 0].expand(8, 2))
    return wrong and (
        f"all values are equal, so their average must be that value: {wrong}. "
        "Do the weights of a row sum to 1 (softmax over the last axis, after the mask)?"
    )


def _attend_roles(function: Function) -> str | None:
    # Token 2 asks for token 0, which alone offers; with the roles exchanged it would not find it.
    x = torch.eye(3, dtype=torch.float64)
    W_q, W_k = 9 * x[2:], x[:1]
    wrong = differs(call(function, x, W_q, W_k, x), _head(x, W_q, W_k, x))
    return wrong and (
        f"a token that asks must find the token that offers: {wrong}. "
        "Row t belongs to the query of t, column i to the key of i"
    )


def _attend_scale(function: Function) -> str | None:
    arguments = _four(7, 6, 4, 3, seed=17)
    got = call(function, *arguments)
    if differs(got, _head(*arguments)) and not differs(got, _head(*arguments, scale=0.5)):
        return "the scores are divided by √D; here they are taken as they are"
    return None


def _attend_values(function: Function) -> str | None:
    for T, E, D, Dv in ((7, 6, 4, 3), (12, 5, 5, 5)):
        arguments = _four(T, E, D, Dv, seed=T)
        wrong = differs(call(function, *arguments), _head(*arguments))
        if wrong:
            return f"not the weighted average of the values: {wrong}"
    return None


def _attend_large(function: Function) -> str | None:
    x, W_q, W_k, W_v = _four(6, 5, 3, 2, seed=21)
    arguments = x, 40 * W_q, 40 * W_k, W_v
    wrong = differs(call(function, *arguments), _head(*arguments))
    return wrong and f"for scores of ±10,000: {wrong}. Leave the exponentials to softmax"


# low_rank_score(A, r): A [E, E] → W_q [r, E], W_k [r, E] with W_qᵀ W_k the best of rank r


def _product(function: Function, A: Tensor, r: int) -> Tensor:
    """``W_qᵀ W_k`` of the student's answer; says what is wrong if it is not two matrices."""

    def multiplied(A: Tensor, r: int) -> Tensor | None:
        answer = function(A, r)
        if answer is None:
            return None
        if not isinstance(answer, tuple | list) or len(answer) != 2:
            raise Wrong("expected two tensors: return W_q, W_k")
        for name, factor in zip(("W_q", "W_k"), answer, strict=True):
            if not isinstance(factor, Tensor):
                raise Wrong(f"{name}: expected a tensor, got {type(factor).__name__}")
            if tuple(factor.shape) != (r, A.shape[1]):
                raise Wrong(
                    f"{name} has shape {list(factor.shape)}, expected [r, E] = [{r}, {A.shape[1]}]"
                )
        return answer[0].double().T @ answer[1].double()

    return call(multiplied, A, r, shape=tuple(A.shape))


def _rank_shapes(function: Function) -> str | None:
    for E, r in ((6, 2), (5, 1), (4, 4)):
        _product(function, _normal(E, E, seed=E), r)
    return None


def _rank_exact(function: Function) -> str | None:
    A = torch.outer(_normal(6, seed=31), _normal(6, seed=32))
    got = _product(function, A, 1)
    if differs(got, A) and not differs(got, A.T):
        return "W_qᵀ W_k is Aᵀ: queries and keys are exchanged"
    wrong = differs(got, A)
    return wrong and f"a matrix of rank 1 must come back exactly with r = 1: {wrong}"


def _rank_full(function: Function) -> str | None:
    A = _normal(5, 5, seed=33)
    wrong = differs(_product(function, A, 5), A)
    return wrong and (
        f"with r = E nothing may be lost: {wrong}. Are the singular values in it, and only once?"
    )


def _rank_best(function: Function) -> str | None:
    for E, r in ((8, 3), (7, 1)):
        A = _normal(E, E, seed=40 + E)
        error = float((A - _product(function, A, r)).norm())
        best = float(torch.linalg.svdvals(A)[r:].square().sum().sqrt())
        if error > best + 1e-5:
            return f"the error at r = {r} is {error:.3f}, the smallest possible is {best:.3f}"
    return None


# effective_matrix(alpha, W_v, W_o, t, i): alpha [H, T, T], W_v [H·Dv, E], W_o [E, H·Dv] → [E, E]


def _layer(H: int, T: int, E: int, Dv: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    return (
        (2 * _normal(H, T, T, seed=seed)).softmax(-1),
        _normal(H * Dv, E, seed=seed + 1),
        _normal(E, H * Dv, seed=seed + 2),
    )


def _effective(alpha: Tensor, W_v: Tensor, W_o: Tensor, t: int, i: int) -> Tensor:
    H = alpha.shape[0]
    up, down = W_o.unflatten(1, (H, -1)), W_v.unflatten(0, (H, -1))
    return torch.einsum("j,ejd,jdf->ef", alpha[:, t, i], up, down)


def _effective_shape(function: Function) -> str | None:
    for H, T, E, Dv in ((3, 5, 6, 2), (1, 4, 3, 5), (2, 4, 4, 4)):
        call(function, *_layer(H, T, E, Dv, seed=50), 2, 1, shape=(E, E))
    return None


def _effective_one_head(function: Function) -> str | None:
    alpha, W_v, W_o = _layer(1, 4, 5, 3, seed=53)
    wrong = differs(call(function, alpha, W_v, W_o, 2, 1), alpha[0, 2, 1] * W_o @ W_v)
    return wrong and (
        f"with one head the matrix is its weight times W_o W_v: {wrong}. "
        "W_v acts first, so it stands on the right; the weight is alpha[0, t, i]"
    )


def _effective_places(function: Function) -> str | None:
    alpha, W_v, W_o = _layer(3, 5, 6, 2, seed=56)
    got = call(function, alpha, W_v, W_o, 4, 1)
    if not differs(got, _effective(alpha, W_v, W_o, 1, 4)):
        return "t and i are exchanged: alpha[j, t, i] is how much t reads from i"
    return None


def _effective_blocks(function: Function) -> str | None:
    # Only head 1 looks; E = H·Dv, so a wrong cut of W_o has the right shape.
    alpha, W_v, W_o = _layer(3, 4, 6, 2, seed=59)
    alpha[[0, 2]] = 0.0
    wrong = differs(call(function, alpha, W_v, W_o, 3, 0), _effective(alpha, W_v, W_o, 3, 0))
    return wrong and (
        f"only head 1 looks, and it owns rows 2 and 3 of W_v and columns 2 and 3 of W_o: {wrong}"
    )


def _effective_values(function: Function) -> str | None:
    for H, T, E, Dv in ((3, 5, 6, 2), (2, 6, 7, 4)):
        layer = _layer(H, T, E, Dv, seed=60 + H)
        for t, i in ((T - 1, 2), (0, 0)):
            wrong = differs(call(function, *layer, t, i), _effective(*layer, t, i))
            if wrong:
                return f"not the sum over the heads of weight × W_o W_v: {wrong}"
    return None


EXERCISES = (
    Exercise(
        "attend",
        (
            ("shape", _attend_shape),
            ("first row", _attend_first),
            ("causality", _attend_causal),
            ("average", _attend_average),
            ("roles", _attend_roles),
            ("scale", _attend_scale),
            ("values", _attend_values),
            ("large scores", _attend_large),
        ),
    ),
    Exercise(
        "low_rank_score",
        (
            ("shapes", _rank_shapes),
            ("rank one", _rank_exact),
            ("full rank", _rank_full),
            ("smallest error", _rank_best),
        ),
    ),
    Exercise(
        "effective_matrix",
        (
            ("shape", _effective_shape),
            ("who looks", _effective_places),
            ("one head", _effective_one_head),
            ("blocks", _effective_blocks),
            ("values", _effective_values),
        ),
    ),
)
