"""Checks for the exercises of notebook 05: a block's numbers, users on a machine, merged parts."""

from __future__ import annotations

import math
import re
from functools import partial

import torch
from torch import Tensor, nn

from course.checks import Exercise
from course.checks.answers import Function, whole_number
from course.checks.properties import agrees, case, counts, normal
from course.cost import cache_bytes_per_token

# count_block(E, H, kv_heads, hidden) → number of parameters


def _count(E: int, H: int, kv_heads: int, hidden: int, *, without: str = "nothing") -> int:
    """Counted in PyTorch's own modules. ``without``: a pattern of the names that are left out."""
    narrow = kv_heads * (E // H)
    with torch.device("meta"):
        block = nn.ModuleDict(
            {
                "W_q": nn.Linear(E, E),
                "W_k": nn.Linear(E, narrow),
                "W_v": nn.Linear(E, narrow),
                "W_o": nn.Linear(E, E),
                "up": nn.Linear(E, hidden),
                "down": nn.Linear(hidden, E),
                "norm_1": nn.LayerNorm(E),
                "norm_2": nn.LayerNorm(E),
            }
        )
    return sum(p.numel() for name, p in block.named_parameters() if not re.match(without, name))


def _one_hidden_unit(function: Function) -> str | None:
    """The difference of two counts, whatever else is wrong with them."""
    fewer, more = (whole_number(function, 12, 3, 3, hidden) for hidden in (20, 21))
    if more - fewer == 25:
        return None
    return (
        "with E = 12 one hidden unit more adds a row, a bias and a column, 2E + 1 = 25 numbers; "
        f"here it adds {more - fewer}"
    )


def _numbers_without(pattern: str) -> Function:
    return partial(_count, without=pattern)


_numbers = partial(
    counts,
    _count,
    probes=[case(24, 6, 2, 40), case(768, 12, 4, 1_000)],
    mistakes={
        "The keys have kv_heads · E/H rows, and so have the values": (
            lambda E, H, kv_heads, hidden: _count(E, H, H, hidden)
        ),
        "The feed-forward width is hidden, not 4E": (
            lambda E, H, kv_heads, hidden: _count(E, H, kv_heads, 4 * E)
        ),
        "The biases of keys and values are as many as their rows": (
            lambda E, H, kv_heads, hidden: (
                _count(E, H, kv_heads, hidden) + 2 * (E - kv_heads * (E // H))
            )
        ),
        "A head has the width E/H, so W_k and W_v have kv_heads · E/H rows": (
            lambda E, H, kv_heads, hidden: _count(E, H, kv_heads * H, hidden)
        ),
        "All biases are missing": _numbers_without(r"(?!norm).*bias"),
        "All biases are missing, and those of the norms as well": _numbers_without(".*bias"),
        "The biases and the norms are missing": _numbers_without("norm|.*bias"),
        "E numbers are missing: the bias of W_q, that of W_o, or the last one of the feed-forward "
        "part": _numbers_without("W_q.bias"),
        "W_q and W_o are narrow, too; only keys and values are shared": (
            lambda E, H, kv_heads, hidden: (
                _count(E, H, kv_heads, hidden)
                - 2 * (E + 1) * (E - kv_heads * (E // H))
                + (E - kv_heads * (E // H))
            )
        ),
        "The narrow width is kv_heads heads of width E/H, not E divided by kv_heads": (
            lambda E, H, kv_heads, hidden: _count(E, H, 0, hidden) + 2 * (E // kv_heads) * (E + 1)
        ),
        "The matrices of the feed-forward part are two: E to hidden, and hidden to E": (
            _numbers_without("down.weight")
        ),
        "There is a norm too many": (
            lambda E, H, kv_heads, hidden: _count(E, H, kv_heads, hidden) + 2 * E
        ),
        "The feed-forward part has two matrices": _numbers_without("up.weight|down.bias"),
        "Attention is missing": _numbers_without("W_"),
        "The feed-forward part is missing": _numbers_without("up|down"),
        "The biases of W_k and W_v are missing": _numbers_without("W_[kv].bias"),
        "2E numbers are missing: a norm, the biases of both norms, or the biases of W_q and W_o": (
            _numbers_without("W_[qo].bias")
        ),
        "The bias of the hidden units is missing": _numbers_without("up.bias"),
        "The norms are missing": _numbers_without("norm"),
        "W_k or W_v is missing": _numbers_without("W_v"),
        "W_q or W_o is missing": _numbers_without("W_o"),
    },
)

COUNT_BLOCK = Exercise(
    "count_block",
    {
        "as many keys as queries": _numbers(
            case(12, 3, 3, 48, name="E = 12"),
            case(768, 12, 12, 3_072, name="E = 768"),
            rule="with kv_heads = H and hidden = 4E it must be 12E² + 13E",
        ),
        "hidden width": _one_hidden_unit,
        "shared keys": _numbers(
            *(
                case(*a, name="E = {}, H = {}, kv_heads = {}, hidden = {}".format(*a))
                for a in ((24, 6, 2, 40), (24, 6, 1, 7), (768, 12, 4, 3_072))
            ),
            hint="W_k and W_v have kv_heads · E/H rows, and as many biases",
        ),
    },
)

# users_that_fit(memory, parameters, length, L, kv_heads, D, itemsize) → whole number


def _users(
    memory: int, parameters: int, length: int, L: int, kv_heads: int, D: int, itemsize: int
) -> int:
    a_user = length * cache_bytes_per_token(L=L, kv_heads=kv_heads, D=D, itemsize=itemsize)
    return max(0, (memory - parameters * itemsize) // a_user)


def _small(memory: int, itemsize: int = 1, *, name: str) -> tuple[tuple[int, ...], str]:
    """A model of 100 numbers, 2 layers, 2 heads of width 3: 24 numbers of cache a user."""
    return (memory, 100, 1, 2, 2, 3, itemsize), name


def _cases(*small: tuple[tuple[int, ...], str]) -> tuple:
    return tuple(case(*arguments, name=name) for arguments, name in small)


_REAL = tuple(
    case(
        *(80 * 2**30, 8_030_000_000, length, 32, 8, 128, 2),
        name="8.03 billion parameters, 32 layers, 8 heads of 128, 16 bits, 80 GiB, texts of "
        f"{length:,} tokens",
    )
    for length in (1_000, 128_000)
)

_fit = partial(
    counts,
    _users,
    probes=[
        *_REAL,
        case(99, 100, 1, 2, 2, 3, 1),
        case(340, 100, 1, 2, 2, 3, 1),
        case(351, 100, 1, 2, 2, 3, 1),
    ],
    mistakes={
        "Both keys and values are kept: twice as many numbers": (
            lambda m, p, T, L, h, D, b: max(0, (m - p * b) // (T * L * h * D * b))
        ),
        "The model sits in the memory, too": (
            lambda m, p, T, L, h, D, b: _users(m, 0, T, L, h, D, b)
        ),
        "A parameter has itemsize bytes, too": (
            lambda m, p, T, L, h, D, b: max(0, (m - p) // (2 * T * L * h * D * b))
        ),
        "A number of the cache has itemsize bytes": (
            lambda m, p, T, L, h, D, b: max(0, (m - p * b) // (2 * T * L * h * D))
        ),
        "Every layer has a cache": lambda m, p, T, L, h, D, b: _users(m, p, T, 1, h, D, b),
        "Every head of keys and values has a cache": (
            lambda m, p, T, L, h, D, b: _users(m, p, T, L, 1, D, b)
        ),
        "Every token of the text is in the cache": (
            lambda m, p, T, L, h, D, b: _users(m, p, 1, L, h, D, b)
        ),
        "Nobody fits where not even the model does: no number below 0": (
            lambda m, p, T, L, h, D, b: (m - p * b) // (2 * T * L * h * D * b)
        ),
        "This is rounded to the nearest; a user fits whole or not at all": (
            lambda m, p, T, L, h, D, b: max(0, round((m - p * b) / (2 * T * L * h * D * b)))
        ),
        "This is rounded up; a user fits whole or not at all": (
            lambda m, p, T, L, h, D, b: max(0, -((p * b - m) // (2 * T * L * h * D * b)))
        ),
        "The model is there once, not once for each user": (
            lambda m, p, T, L, h, D, b: m // (p * b + 2 * T * L * h * D * b)
        ),
        "Keys and values have D numbers for each head, layer and token": (
            lambda m, p, T, L, h, D, b: max(0, (m - p * b) // (2 * T * L * h * b))
        ),
        "This is one user fewer than fit": lambda *a: max(0, _users(*a) - 1),
        "This is one user more than fit": (
            lambda m, p, T, L, h, D, b: max(0, (m - p * b) // (2 * T * L * h * D * b) + 1)
        ),
        "One user fewer is said than fits: exactly full still fits": (
            lambda m, p, T, L, h, D, b: max(0, (m - p * b - 1) // (2 * T * L * h * D * b))
        ),
    },
)

USERS_THAT_FIT = Exercise(
    "users_that_fit",
    {
        "by hand": _fit(
            *_cases(
                _small(340, name="340 bytes, a model of 100, 2 · 2 · 2 · 3 = 24 a user"),
                _small(364, name="364 bytes, a model of 100, 2 · 2 · 2 · 3 = 24 a user"),
            )
        ),
        "whole users": _fit(*_cases(_small(339, name="one byte too few for the tenth user"))),
        "bytes": _fit(
            *_cases(
                _small(680, 2, name="with 2 bytes a number, model and caches are twice as large")
            )
        ),
        "nobody": _fit(
            *_cases(*(_small(m, name=f"{m} bytes and a model of 100") for m in (99, 0, 100)))
        ),
        "a real model": _fit(*_REAL),
    },
)

# merge(m1, l1, o1, m2, l2, o2) → (m, l, o);  m, l [T], o [T, Dv]

_Parts = tuple[Tensor, Tensor, Tensor]


def _summary(s: Tensor, v: Tensor) -> _Parts:
    """Of scores ``s [T, n]`` and values ``v [n, Dv]``; a row of −inf alone is (−inf, 0, 0)."""
    m = s.amax(1)
    p = (s - m.masked_fill(m == -torch.inf, 0)[:, None]).exp()
    return m, p.sum(1), p @ v


def _merge(m1: Tensor, l1: Tensor, o1: Tensor, m2: Tensor, l2: Tensor, o2: Tensor) -> _Parts:
    m = torch.maximum(m1, m2)
    base = m.masked_fill(m == -torch.inf, 0)
    a, b = (m1 - base).exp(), (m2 - base).exp()
    return m, a * l1 + b * l2, a[:, None] * o1 + b[:, None] * o2


def _finished(*parts: Tensor) -> _Parts:
    """Divided, as the output is only at the very end."""
    m, l, o = _merge(*parts)  # noqa: E741
    return m, l, o / l[:, None]


def _rebased(m: Tensor, parts: _Parts) -> _Parts:
    """The same sums, referred to another maximum."""
    factor = (parts[0] - m).exp()
    return m, factor * parts[1], factor[:, None] * parts[2]


def _two_parts(
    seed: int, *, cut: int = 4, higher: slice | None = None, hidden: slice | None = None
) -> tuple[Tensor, ...]:
    """Two summaries of 9 keys: one may be higher by 2,000, or unread by queries 1 and 3."""
    s, v = 3 * normal(5, 9, seed=seed), normal(9, 3, seed=seed + 50)
    if higher:
        s[:, higher] += 2_000.0
    if hidden:
        s[[1, 3], hidden] = -torch.inf
    return *_summary(s[:, :cut], v[:cut]), *_summary(s[:, cut:], v[cut:])


_FIRST, _SECOND, _BOTH = slice(0, 4), slice(4, 9), slice(0, 9)

_merges = partial(
    agrees,
    _merge,
    names=("m", "l", "o"),
    atol=1e-9,
    rtol=1e-9,
    probes=[case(*_two_parts(1))],
    mistakes={
        "The parts are added as they are; both must first refer to the common maximum": (
            lambda m1, l1, o1, m2, l2, o2: (torch.maximum(m1, m2), l1 + l2, o1 + o2)
        ),
        "o must be rescaled as l is": (
            lambda m1, l1, o1, m2, l2, o2: (*_merge(m1, l1, o1, m2, l2, o2)[:2], o1 + o2)
        ),
        "o stays unfinished: it is divided by l at the very end": (_finished),
        "The factors are the wrong way round: exp(m1 − m), at most 1": (
            lambda m1, l1, o1, m2, l2, o2: (
                torch.maximum(m1, m2),
                (torch.maximum(m1, m2) - m1).exp() * l1 + (torch.maximum(m1, m2) - m2).exp() * l2,
                (torch.maximum(m1, m2) - m1).exp()[:, None] * o1
                + (torch.maximum(m1, m2) - m2).exp()[:, None] * o2,
            )
        ),
        "o1 and o2 are sums that nobody has divided: do not multiply them by l1 and l2": (
            lambda m1, l1, o1, m2, l2, o2: _merge(
                m1, l1, l1[:, None] * o1, m2, l2, l2[:, None] * o2
            )
        ),
        "o1 and o2 are sums that nobody has divided: do not multiply them by l1 and l2, nor divide "
        "at the end": (
            lambda m1, l1, o1, m2, l2, o2: _finished(
                m1, l1, l1[:, None] * o1, m2, l2, l2[:, None] * o2
            )
        ),
        "The factors are exchanged: each part is multiplied by its own": (
            lambda m1, l1, o1, m2, l2, o2: (
                torch.maximum(m1, m2),
                *_merge(m2, l1, o1, m1, l2, o2)[1:],
            )
        ),
        "m is the largest score; this is the logarithm of the sum of all exponentials": (
            lambda *a: (_merge(*a)[0] + _merge(*a)[1].log(), *_merge(*a)[1:])
        ),
        "Both sums are referred to 0, not to the common m": (
            lambda m1, l1, o1, m2, l2, o2: (
                torch.maximum(m1, m2),
                m1.exp() * l1 + m2.exp() * l2,
                m1.exp()[:, None] * o1 + m2.exp()[:, None] * o2,
            )
        ),
        "These are powers of 2; the sums hold powers of e": (
            lambda m1, l1, o1, m2, l2, o2: (
                torch.maximum(m1, m2),
                *_merge(m1 * math.log(2), l1, o1, m2 * math.log(2), l2, o2)[1:],
            )
        ),
        "l must be rescaled as o is": (
            lambda m1, l1, o1, m2, l2, o2: (
                torch.maximum(m1, m2),
                l1 + l2,
                _merge(m1, l1, o1, m2, l2, o2)[2],
            )
        ),
        "Only the second part is rescaled": (
            lambda m1, l1, o1, m2, l2, o2: (
                torch.maximum(m1, m2),
                l1 + (m2 - torch.maximum(m1, m2)).exp() * l2,
                o1 + (m2 - torch.maximum(m1, m2)).exp()[:, None] * o2,
            )
        ),
        "Only the first part is rescaled": (
            lambda m1, l1, o1, m2, l2, o2: (
                torch.maximum(m1, m2),
                (m1 - torch.maximum(m1, m2)).exp() * l1 + l2,
                (m1 - torch.maximum(m1, m2)).exp()[:, None] * o1 + o2,
            )
        ),
        "Each query has its own m; here all have the largest": (
            lambda m1, l1, o1, m2, l2, o2: _rebased(
                torch.maximum(m1, m2).max().expand_as(m1), _merge(m1, l1, o1, m2, l2, o2)
            )
        ),
        "These are the numbers of the first part alone": lambda m1, l1, o1, *_: (m1, l1, o1),
        "These are means of the two parts; they are sums, and add": (
            lambda m1, l1, o1, m2, l2, o2: (torch.maximum(m1, m2), (l1 + l2) / 2, (o1 + o2) / 2)
        ),
        "The common m is the larger of the two, not their sum": (
            lambda m1, l1, o1, m2, l2, o2: (m1 + m2, *_merge(m1, l1, o1, m2, l2, o2)[1:])
        ),
        "The common m is the larger of the two": (
            lambda m1, l1, o1, m2, l2, o2: (
                torch.minimum(m1, m2),
                *_merge(m1, l1, o1, m2, l2, o2)[1:],
            )
        ),
    },
)

MERGE = Exercise(
    "merge",
    {
        "values": _merges(
            case(*_two_parts(1)),
            case(*_two_parts(2, cut=7)),
            rule="not the summary of all keys",
            hint="Both sums must refer to the common m",
        ),
        "order": _merges(
            case(*_two_parts(3)[3:], *_two_parts(3)[:3]),
            rule="the order of the two parts must not matter",
        ),
        "far apart": _merges(
            case(*_two_parts(4, higher=_SECOND)),
            case(*_two_parts(4, higher=_FIRST)),
            rule="scores of one part larger by 2,000",
            hint="Exponentials of differences to the common maximum only: they are at most 1",
        ),
        "nothing to read": _merges(
            *(
                case(*_two_parts(5, hidden=hidden), name=f"{who} had nothing to read")
                for who, hidden in (
                    ("the first part", _FIRST),
                    ("the second part", _SECOND),
                    ("both parts", _BOTH),
                )
            ),
            rule="m = −inf, l = 0, o = 0 there",
            hint="−inf − (−inf) is NaN, and where both had nothing, m stays −inf",
        ),
    },
)

EXERCISES = (COUNT_BLOCK, USERS_THAT_FIT, MERGE)
