"""Checks for the exercises of notebook 03: effective tokens, RoPE, the bias of ALiBi."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from course.checks import Exercise
from course.checks.answers import Function, call
from course.checks.properties import agrees, all_of, case, normal, shaped
from course.positions import alibi_bias, apply_rope

# effective_tokens(scores): scores [T, S], −inf = hidden → [T]


def _entropy(scores: Tensor, axis: int = -1) -> Tensor:
    return torch.special.entr(scores.softmax(axis)).sum(axis)


def _effective(scores: Tensor) -> Tensor:
    return _entropy(scores).exp()


def _some_hidden() -> Tensor:
    scores = torch.zeros(3, 4, dtype=torch.float64)
    scores[0, 1:] = scores[1, 2:] = -torch.inf
    return scores


_tokens = partial(
    agrees,
    _effective,
    probes=[case(normal(6, 6, seed=2))],
    mistakes={
        "This is the entropy; exp of it is the number of tokens": _entropy,
        "The sign is wrong: the entropy is −Σ w log w": lambda scores: (-_entropy(scores)).exp(),
        "The logarithm is to base 2, and exp is to base e": (
            lambda scores: (_entropy(scores) / math.log(2)).exp()
        ),
        "This is the mean over the tokens; the entropy is the sum": (
            lambda scores: (_entropy(scores) / scores.shape[-1]).exp()
        ),
        "The sum runs over the queries; it belongs on the last axis": (
            lambda scores: _entropy(scores, axis=0).exp()
        ),
        "This is 1 / Σ w², another count; wanted is exp of the entropy": (
            lambda scores: 1 / scores.softmax(-1).square().sum(-1)
        ),
    },
)

EFFECTIVE_TOKENS = Exercise(
    "effective_tokens",
    {
        "shape": shaped(
            _effective, *(case(normal(T, S, seed=1)) for T, S in ((4, 7), (1, 3), (5, 5)))
        ),
        "equal scores": _tokens(
            *(
                case(torch.full((2, S), 3.0, dtype=torch.float64), name=f"{S} equal scores")
                for S in (5, 32)
            ),
            rule="they are worth as many tokens",
            hint="exp of the entropy, with natural logarithms, summed over the last axis",
        ),
        "hidden tokens": _tokens(
            case(_some_hidden()),
            rule="rows that see 1, 2 and 4 tokens with equal scores",
            hint="A weight of 0 has the term 0·log 0, which must count as 0 (torch.special.entr)",
        ),
        "values": _tokens(
            *(
                case(size * normal(6, 9, seed=seed), name=f"scores of deviation {size:g}")
                for seed, size in ((2, 1.0), (3, 4.0))
            )
        ),
        "large scores": _tokens(
            case(5_000 * normal(3, 6, seed=4)),
            rule="of scores of ±5,000 one token is left",
            hint="Leave exp to softmax",
        ),
    },
)

# rope(x, places): x [T, D], places [T] → [T, D]; pairs (0, 1), (2, 3), …; base 10,000


def _rope(x: Tensor, places: Tensor) -> Tensor:
    return apply_rope(x[None, None], positions=places)[0, 0]


def _rope_of_halves(x: Tensor, places: Tensor) -> Tensor:
    pairs = x.unflatten(1, (2, -1)).mT.flatten(1)
    return _rope(pairs, places).unflatten(1, (-1, 2)).mT.flatten(1)


def _one_frequency(x: Tensor, places: Tensor) -> Tensor:
    return torch.cat([_rope(x[:, j : j + 2], places) for j in range(0, x.shape[1], 2)], 1)


_turns = partial(
    agrees,
    _rope,
    probes=[case(normal(6, 8, seed=16), torch.arange(6) * 3 + 1)],
    mistakes={
        "The pairs turn the other way; counter-clockwise (1, 0) becomes (cos, sin)": (
            lambda x, places: _rope(x, -places)
        ),
        "The pairs are neighbours, (0, 1), (2, 3), …, not halves": _rope_of_halves,
        "Row t is turned by t; its place is places[t]": (
            lambda x, places: _rope(x, torch.arange(len(x)))
        ),
        "All pairs turn alike; pair j turns by place · 10000^(−2j/D)": _one_frequency,
        "The places are off by one": lambda x, places: _rope(x, places + 1),
    },
)


def _distance_alone(function: Function) -> str | None:
    q, k = normal(1, 8, seed=14), normal(1, 8, seed=15)

    def score(t: int, i: int) -> Tensor:
        turned = (call(function, x, torch.tensor([p]), shape=(1, 8)) for x, p in ((q, t), (k, i)))
        return (next(turned).double() * next(turned).double()).sum()

    near, far = score(9, 4), score(109, 104)
    if abs(float(near - far)) <= 1e-5:
        return None
    return (
        f"the score at places 109 and 104 is {far:.6g}, that at 9 and 4 {near:.6g}: it must be one"
    )


def _turning(D: int) -> Tensor:
    return torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(3, D // 2)


ROPE = Exercise(
    "rope",
    {
        "shape": shaped(
            _rope,
            *(case(normal(T, D, seed=10), torch.arange(T)) for T, D in ((5, 8), (1, 2), (4, 4))),
        ),
        "place 0": _turns(
            case(normal(3, 6, seed=11), torch.zeros(3, dtype=torch.int64)),
            rule="at place 0 nothing turns",
        ),
        "length": _turns(
            case(normal(6, 8, seed=12), torch.arange(6)),
            part=lambda turned, *_: turned.norm(dim=-1),
            rule="a rotation keeps the length of every row",
            hint="One of the four signs is a minus, that of b·sin",
        ),
        "places": _turns(
            case(normal(3, 2, seed=13), torch.tensor([7, 0, 2])),
            rule="one pair at the places 7, 0, 2",
        ),
        "one pair": _turns(
            case(_turning(2), torch.arange(3)),
            rule="D = 2: (1, 0) at places 0, 1, 2 becomes (cos p, sin p)",
            hint="The first pair turns by 1 radian a place",
        ),
        "distance": _distance_alone,
        "values": _turns(
            *(
                case(normal(T, D, seed=16), torch.arange(T) * 3 + 1, name=f"T = {T}, D = {D}")
                for T, D in ((6, 8), (4, 4))
            ),
            hint="Pairs are neighbours, (0, 1), (2, 3) …; pair j turns by place · 10000^(−2j/D)",
        ),
    },
)

# alibi(H, T): H a power of two → [H, T, T], −inf where the future is


def _alibi(H: int, T: int) -> Tensor:
    return alibi_bias(H, T).double().masked_fill(_future(T), -torch.inf)


def _future(T: int) -> Tensor:
    return torch.ones(T, T, dtype=torch.bool).triu(1)


def _bias(distance: Tensor, slopes: Tensor, future: Tensor) -> Tensor:
    return (-slopes[:, None, None] * distance).masked_fill(future, -torch.inf)


def _parts_of_alibi(H: int, T: int) -> tuple[Tensor, Tensor, Tensor]:
    place = torch.arange(T, dtype=torch.float64)
    h = torch.arange(1, H + 1, dtype=torch.float64)
    return place[:, None] - place, 2.0 ** (-8 * h / H), _future(T)


def _bent_alibi(*, sign: int = 1, power: int = 1, slopes: str = "") -> Function:
    def bias(H: int, T: int) -> Tensor:
        distance, m, future = _parts_of_alibi(H, T)
        if slopes == "from h = 0":
            m = m * 2 ** (8 / H)
        elif slopes == "of 8 heads":
            m = 0.5 ** torch.arange(1, H + 1, dtype=torch.float64)
        return _bias(sign * distance**power, m, future)

    return bias


_biases = partial(
    agrees,
    _alibi,
    probes=[case(4, 7)],
    mistakes={
        "The farther key must get the lower score: the bias is −slope · distance": (
            _bent_alibi(sign=-1)
        ),
        "The penalty grows with the square of the distance; it is proportional to it": (
            _bent_alibi(power=2)
        ),
        "The slopes begin at h = 0; h goes from 1 to H": _bent_alibi(slopes="from h = 0"),
        "These are the slopes of 8 heads; with H heads they are 2^(−8h/H)": (
            _bent_alibi(slopes="of 8 heads")
        ),
        "Row and column are exchanged: the future is the column greater than the row": (
            lambda H, T: _alibi(H, T).mT
        ),
    },
)

ALIBI = Exercise(
    "alibi",
    {
        "shape": shaped(_alibi, case(4, 6), case(1, 3), case(8, 1)),
        "future": all_of(
            _biases(
                case(2, 5),
                part=lambda bias, H, T: bias.masked_fill(~_future(T), 0.0),
                rule="the future (column greater than row) must be −inf in every head",
            ),
            _biases(
                case(2, 5),
                part=lambda bias, H, T: (bias.tril() == -torch.inf).double(),
                rule="−inf where a look is allowed (1 = −inf)",
                hint="A token sees itself and what came before",
            ),
        ),
        "itself": _biases(
            case(4, 5),
            part=lambda bias, H, T: bias.diagonal(dim1=1, dim2=2),
            rule="at distance 0 there is no penalty",
        ),
        "sign": _biases(
            case(2, 4),
            part=lambda bias, H, T: (bias[:, 3, 0] < bias[:, 3, 2]).double(),
            rule="the farther key must get the lower score (1 = lower)",
        ),
        "slopes": _biases(
            *(case(H, 3, name=f"H = {H}") for H in (8, 4, 1)),
            part=lambda bias, H, T: -bias[:, 1, 0],
            rule="the slopes, which are the penalties at distance 1, must be 2^(−8h/H)",
            hint="h = 1 … H",
        ),
        "values": _biases(
            *(case(H, T, name=f"H = {H}, T = {T}") for H, T in ((4, 7), (2, 4), (16, 5))),
            hint="The penalty grows in proportion to the distance",
        ),
    },
)

EXERCISES = (EFFECTIVE_TOKENS, ROPE, ALIBI)
