"""Checks for the exercises of notebook 02: one head, low-rank scores, the effective matrix."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from course.attention import softmax_attention
from course.checks import Exercise
from course.checks.answers import Function, call_parts
from course.checks.properties import Case, agrees, alike, case, eighths, no_future, normal, shaped

# attend(x, W_q, W_k, W_v): x [T, E], W [D or Dv, E] → [T, Dv]; causal, no scale


def _attend(x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor, scale: float = 1.0) -> Tensor:
    q, k, v = ((x @ W.T)[None, None] for W in (W_q, W_k, W_v))
    return softmax_attention(q, k, v, causal=True, scale=scale)[0, 0]


def _scores(x: Tensor, W_q: Tensor, W_k: Tensor) -> Tensor:
    return (x @ W_q.T) @ (x @ W_k.T).T


def _lower(x: Tensor, diagonal: int = 0) -> Tensor:
    return torch.ones(len(x), len(x), dtype=torch.bool).tril(diagonal)


def _four(T: int, E: int, D: int, Dv: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        normal(T, E, seed=seed),
        normal(D, E, seed=seed + 1),
        normal(D, E, seed=seed + 2),
        normal(Dv, E, seed=seed + 3),
    )


def _equal_values() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, W_q, W_k, W_v = _four(8, 5, 3, 2, seed=13)
    x[:, 0] = 1.0
    W_v = torch.zeros_like(W_v)
    W_v[:, 0] = torch.tensor([3.0, -2.0])
    return x, W_q, W_k, W_v


def _asks_and_offers() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Token 2 asks for token 0, which alone offers; with the roles exchanged it finds nothing."""
    x = torch.eye(3, dtype=torch.float64)
    return x, 9 * x[2:], x[:1], x


def _large() -> Case:
    x, W_q, W_k, W_v = (eighths(*w.shape, seed=21 + i) for i, w in enumerate(_four(6, 5, 3, 2, 0)))
    return case(x, 40 * W_q, 40 * W_k, W_v, name="scores of ±10,000")


def _low(size: float) -> Case:
    """Every score is −``size``: below a finite constant that stands for −∞."""
    x, _, _, W_v = (eighths(*w.shape, seed=31 + i) for i, w in enumerate(_four(6, 5, 3, 2, 0)))
    x[:, 0] = 1.0
    one = torch.eye(1, 5, dtype=torch.float64)
    return case(x, -size * one, one, W_v, name=f"every score is −{size:.2g}")


_attends = partial(
    agrees,
    _attend,
    probes=[case(*_four(7, 6, 4, 3, seed=7))],
    mistakes={
        "There is no mask: a token sees what comes after it": (
            lambda x, q, k, v: _scores(x, q, k).softmax(-1) @ (x @ v.T)
        ),
        "The diagonal is hidden: a token may look at itself": (
            lambda x, q, k, v: (
                _scores(x, q, k).masked_fill(~_lower(x, -1), -torch.inf).softmax(-1) @ (x @ v.T)
            )
        ),
        "The softmax runs over the queries; it belongs on the last axis": (
            lambda x, q, k, v: (
                _scores(x, q, k).masked_fill(~_lower(x), -torch.inf).softmax(0) @ (x @ v.T)
            )
        ),
        "The mask comes after the softmax, so the weights of a row do not sum to 1": (
            lambda x, q, k, v: (_scores(x, q, k).softmax(-1) * _lower(x)) @ (x @ v.T)
        ),
        "A hidden score of 0 still gets e⁰ = 1; it must be −∞": (
            lambda x, q, k, v: _scores(x, q, k).tril().softmax(-1) @ (x @ v.T)
        ),
        "Queries and keys are exchanged: row t belongs to the query of t": (
            lambda x, q, k, v: _attend(x, k, q, v)
        ),
        "The scores are divided by √D; here they are taken as they are": (
            lambda x, q, k, v: _attend(x, q, k, v, scale=len(q) ** -0.5)
        ),
        "These are the scores times the values; the softmax is missing": (
            lambda x, q, k, v: _scores(x, q, k).tril() @ (x @ v.T)
        ),
    },
)

ATTEND = Exercise(
    "attend",
    {
        "shape": shaped(
            _attend, *(case(*_four(*s, seed=1)) for s in ((6, 5, 3, 2), (1, 4, 2, 3), (5, 5, 5, 5)))
        ),
        "first row": _attends(
            case(*_four(6, 5, 3, 2, seed=5)),
            part=lambda out, *_: out[0],
            rule="token 0 may look at itself alone, so row 0 is its own value W_v x[0]",
        ),
        "causality": no_future(*_four(9, 5, 3, 2, seed=9), at=5),
        "average": _attends(
            case(*_equal_values()),
            rule="all values are equal, so their average must be that value",
            hint="Do the weights of a row sum to 1?",
        ),
        "roles": _attends(
            case(*_asks_and_offers()),
            rule="a token that asks must find the token that offers",
            hint="Row t belongs to the query of t, column i to the key of i",
        ),
        "scale": _attends(
            case(*_four(7, 6, 4, 3, seed=17)), rule="not the weighted average of the values"
        ),
        "values": _attends(
            case(*_four(7, 6, 4, 3, seed=7)),
            case(*_four(12, 5, 5, 5, seed=12)),
            rule="not the weighted average of the values",
        ),
        "large scores": _attends(
            _large(),
            *(_low(size) for size in (2.0**17, 2.0**40, 2.0**100)),
            hint="Leave the exponentials to softmax, and hide with −∞: no number is below "
            "all scores",
        ),
    },
)

# low_rank_score(A, r): A [E, E] → W_q [r, E], W_k [r, E] with W_qᵀ W_k the best of rank r


def _low_rank(A: Tensor, r: int, power: float = 0.5) -> tuple[Tensor, Tensor]:
    U, s, Vt = torch.linalg.svd(A)
    root = s[:r, None] ** power
    return root * U[:, :r].T, root * Vt[:r]


def _product(W_q: Tensor, W_k: Tensor) -> Tensor:
    return W_q.double().T @ W_k.double()


_factors = partial(
    agrees,
    _low_rank,
    names=("W_q", "W_k"),
    joint=_product,
    probes=[case(normal(5, 5, seed=33), 3)],
    mistakes={
        "W_qᵀ W_k is Aᵀ: queries and keys are exchanged": lambda A, r: _low_rank(A, r)[::-1],
        "The singular values are missing": lambda A, r: _low_rank(A, r, power=0.0),
        "The singular values are in both factors, so they count twice": (
            lambda A, r: _low_rank(A, r, power=1.0)
        ),
        "linalg.svd returns V already transposed: take rows of it": (
            lambda A, r: (
                _low_rank(A, r)[0],
                torch.linalg.svd(A)[1][:r, None].sqrt() * torch.linalg.svd(A)[2].T[:r],
            )
        ),
    },
)


def _smallest_error(function: Function) -> str | None:
    for E, r in ((8, 3), (7, 1)):
        A = normal(E, E, seed=40 + E)
        shapes = {"W_q": (r, E), "W_k": (r, E)}
        error = float((A - _product(*call_parts(function, A, r, shapes=shapes))).norm())
        best = float(torch.linalg.svdvals(A)[r:].square().sum().sqrt())
        if not error <= best + 1e-5:
            return f"the error at r = {r} is {error:.3f}, the smallest possible is {best:.3f}"
    return None


LOW_RANK_SCORE = Exercise(
    "low_rank_score",
    {
        "shapes": shaped(
            _low_rank,
            *(case(normal(E, E, seed=E), r) for E, r in ((6, 2), (5, 1), (4, 4))),
            names=("W_q", "W_k"),
        ),
        "rank one": _factors(
            case(torch.outer(normal(6, seed=31), normal(6, seed=32)), 1),
            rule="a matrix of rank 1 must come back exactly with r = 1",
        ),
        "full rank": _factors(
            case(normal(5, 5, seed=33), 5),
            rule="with r = E nothing may be lost",
            hint="Are the singular values in it, and only once?",
        ),
        "smallest error": _smallest_error,
    },
)

# effective_matrix(alpha, W_v, W_o, t, i): alpha [H, T, T], W_v [H·Dv, E], W_o [E, H·Dv] → [E, E]


def _effective(alpha: Tensor, W_v: Tensor, W_o: Tensor, t: int, i: int) -> Tensor:
    H = alpha.shape[0]
    up, down = W_o.unflatten(1, (H, -1)), W_v.unflatten(0, (H, -1))
    return torch.einsum("j,ejd,jdf->ef", alpha[:, t, i], up, down)


def _layer(H: int, T: int, E: int, Dv: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    return (
        (2 * normal(H, T, T, seed=seed)).softmax(-1),
        normal(H * Dv, E, seed=seed + 1),
        normal(E, H * Dv, seed=seed + 2),
    )


def _only_head_1(E: int) -> tuple[Tensor, Tensor, Tensor]:
    alpha, W_v, W_o = _layer(3, 4, E, 2, seed=59)
    alpha[[0, 2]] = 0.0
    return alpha, W_v, W_o


def _other_weights(
    alpha: Tensor, W_v: Tensor, W_o: Tensor, t: int, i: int
) -> tuple[Tensor, Tensor, Tensor]:
    other = alpha.flip(-1) + 0.1
    other[:, t, i] = alpha[:, t, i]
    return other, W_v, W_o


_matrices = partial(
    agrees,
    _effective,
    probes=[case(*_layer(3, 5, 6, 2, seed=63), 4, 2)],
    mistakes={
        "t and i are exchanged: alpha[j, t, i] is how much t reads from i": (
            lambda alpha, v, o, t, i: _effective(alpha, v, o, i, t)
        ),
        "This is transposed: W_v acts first, so it stands on the right": (
            lambda *a: _effective(*a).T
        ),
        "The weights of the heads are missing": (
            lambda alpha, *a: _effective(torch.ones_like(alpha), *a)
        ),
        "All heads have one weight here; each has its own, alpha[j, t, i]": (
            lambda alpha, *a: _effective(alpha.mean(0, keepdim=True).expand_as(alpha), *a)
        ),
        "This is the mean over the heads; their updates are added": (
            lambda alpha, *a: _effective(alpha, *a) / len(alpha)
        ),
    },
)

EFFECTIVE_MATRIX = Exercise(
    "effective_matrix",
    {
        "shape": shaped(
            _effective,
            *(case(*_layer(*s, seed=50), 2, 1) for s in ((3, 5, 6, 2), (1, 4, 3, 5), (2, 4, 4, 4))),
        ),
        "who looks": alike(
            case(*_layer(3, 5, 6, 2, seed=56), 4, 1),
            case(*_other_weights(*_layer(3, 5, 6, 2, seed=56), 4, 1), 4, 1),
            rule="the matrix of t = 4 and i = 1 changes with other weights than those",
            hint="alpha[j, t, i] is how much t reads from i",
        ),
        "one head": _matrices(
            case(*_layer(1, 4, 5, 3, seed=53), 2, 1),
            rule="with one head the matrix is its weight times W_o W_v",
            hint="W_v acts first, so it stands on the right; the weight is alpha[0, t, i]",
        ),
        "blocks": _matrices(
            case(*_only_head_1(6), 3, 0),
            rule="only head 1 looks, and it owns rows 2 and 3 of W_v and columns 2 and 3 of W_o",
        ),
        "values": _matrices(
            *(
                case(*_layer(H, T, E, Dv, seed=60 + H), t, i)
                for H, T, E, Dv in ((3, 5, 6, 2), (2, 6, 7, 4))
                for t, i in ((T - 1, 2), (0, 0))
            ),
            rule="not the sum over the heads of weight × W_o W_v",
        ),
    },
)

EXERCISES = (ATTEND, LOW_RANK_SCORE, EFFECTIVE_MATRIX)
