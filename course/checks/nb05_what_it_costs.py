"""Checks for the exercises of notebook 05: merged parts, shared keys, a pattern of three steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from course.checks import Exercise
from course.checks.answers import Function, Wrong, answer_of, as_tensor
from course.checks.properties import agrees, case, counts, normal, sentence

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

# heads_that_pay(H, queries, ridge) → whole number


def _divisors(H: int) -> list[int]:
    return [heads for heads in range(1, H + 1) if H % heads == 0]


def _pay(H: int, queries: float, ridge: float) -> int:
    """The most heads of keys whose reading takes no longer than the arithmetic, at least 1."""
    return max((n for n in _divisors(H) if n * ridge <= H * queries), default=1)


_paying = partial(
    counts,
    _pay,
    probes=[
        case(12, 1, 4.0),
        case(12, 3, 5.0),
        case(12, 1, 2.3),
        case(12, 2, 100.0),
        case(12, 50, 10.0),
        case(32, 64, 295.0),
        case(30, 1, 4.1),
    ],
    mistakes={
        "kv_heads must divide H": lambda H, q, r: max(1, min(H, int(H * q / r))),
        "All new tokens use a key that was read: queries times as many operations": (
            lambda H, q, r: _pay(H, 1, r)
        ),
        "All the query heads of a group use a key that was read": lambda H, q, r: max(
            (n for n in _divisors(H) if n * r <= q), default=1
        ),
        "This is the first that takes longer to read than to compute with": (
            lambda H, q, r: min((n for n in _divisors(H) if n * r > H * q), default=H)
        ),
        "This is the divisor nearest to H · queries / ridge; the reading may not take longer": (
            lambda H, q, r: min(_divisors(H), key=lambda n: abs(n - H * q / r))
        ),
        "This is the fewest possible, always; more may take the same time": lambda H, q, r: 1,
        "Here sharing never saves time": lambda H, q, r: H,
        "Where even one head takes longer to read, one is still the fastest": (
            lambda H, q, r: max((n for n in _divisors(H) if n * r <= H * q), default=0)
        ),
        "This is the size of a group, not the number of groups": (
            lambda H, q, r: H // _pay(H, q, r)
        ),
        "At exactly the same time for reading and arithmetic nothing is lost yet": (
            lambda H, q, r: max((n for n in _divisors(H) if n * r < H * q), default=1)
        ),
        "Half as many operations per byte: a score and a sum take 2D operations each, and a number "
        "has two bytes": lambda H, q, r: _pay(H, q, 2 * r),
        "Twice as many operations per byte: both keys and values are read": (
            lambda H, q, r: _pay(H, 2 * q, r)
        ),
        "H need not be a power of two, nor its divisors": lambda H, q, r: max(
            (n for n in _divisors(H) if n * r <= H * q and n & (n - 1) == 0), default=1
        ),
        "ridge is operations per byte, not bytes per operation": (
            lambda H, q, r: max((n for n in _divisors(H) if n <= H * q * r), default=1)
        ),
    },
)

HEADS_THAT_PAY = Exercise(
    "heads_that_pay",
    {
        "by hand": _paying(
            case(12, 1, 4.0, name="H = 12, one new token, 4 operations in the time of a byte"),
            case(12, 1, 2.3, name="H = 12, one new token, 2.3 operations in the time of a byte"),
        ),
        "several new tokens": _paying(
            case(12, 3, 5.0, name="H = 12, three new tokens, 5 operations in the time of a byte"),
            case(32, 64, 295.0, name="H = 32, 64 new tokens, an H100"),
        ),
        "ends": _paying(
            case(12, 2, 100.0, name="H = 12, two new tokens, 100 operations in the time of a byte"),
            case(12, 50, 10.0, name="H = 12, 50 new tokens, 10 operations in the time of a byte"),
        ),
        "any number of heads": _paying(
            case(30, 1, 4.1, name="H = 30, one new token, 4.1 operations in the time of a byte"),
            case(64, 8, 153.0, name="H = 64, eight new tokens, an A100"),
            case(7, 3, 6.0, name="H = 7, three new tokens, 6 operations in the time of a byte"),
        ),
    },
)

# three_steps(T) → boolean [T, T], T = n³

_CUBES = (8, 27, 64)


def _distances(T: int) -> Tensor:
    return torch.arange(T)[:, None] - torch.arange(T)


def _among(T: int, distances: list[int]) -> Tensor:
    return torch.isin(_distances(T), torch.tensor(distances))


def _root(T: int) -> int:
    return round(T ** (1 / 3))


def _digits(T: int, scales: tuple[int, ...] = (0, 1, 2), last: int | None = None) -> Tensor:
    """The distances d · n^j, d = 0 … n − 1 (or ``last``), for each j of ``scales``."""
    n = _root(T)
    top = n - 1 if last is None else last
    return _among(T, [d * n**j for j in scales for d in range(top + 1)])


_PATTERNS: Mapping[str, Function] = {
    "This is a window; three of them reach 3 · (keys − 1) back, and no farther": (
        lambda T: _among(T, list(range(3 * _root(T) - 2)))
    ),
    "This is the whole past": lambda T: _distances(T) >= 0,
    "These are two kinds of steps, near and far, as in § 6.4; with three layers there is room for "
    "a third kind": lambda T: _among(T, [*range(math.isqrt(T)), *range(0, T, math.isqrt(T))]),
    "These distances are powers of two: most distances are no sum of three of them": (
        lambda T: _among(T, [0, *(2**j for j in range(T.bit_length()) if 2**j < T)])
    ),
    "The smallest steps, below n, are missing": lambda T: _digits(T, (1, 2)),
    "The largest steps, multiples of n², are missing": lambda T: _digits(T, (0, 1)),
    "The steps of middle size, multiples of n, are missing": lambda T: _digits(T, (0, 2)),
    "The largest digit, n − 1, is missing": lambda T: _digits(T, last=_root(T) - 2),
    "Of each size one step is enough only for n = 2: a digit goes up to n − 1": (
        lambda T: _among(T, [0, 1, _root(T), _root(T) ** 2])
    ),
    "True means: may look. Here it is the other way round": lambda T: ~_digits(T),
    "Rows are queries, columns are keys: here they are exchanged": lambda T: _digits(T).mT,
    "These are certain keys, the same for all queries; choose distances": lambda T: (
        (_distances(T) >= 0) & ((torch.arange(T) % _root(T) == 0) | (_distances(T) < _root(T)))
    ),
}


def _sees(function: Function, T: int) -> Tensor:
    """The student's pattern as booleans, each query with itself."""
    answer = as_tensor(answer_of(function, T), shape=(T, T))
    if not bool(((answer == 0) | (answer == 1)).all()):
        raise Wrong("the entries must be truth values: True where a query may look at a key")
    return answer.bool() | torch.eye(T, dtype=torch.bool)


def _known(function: Function) -> str:
    """The sentence of the pattern that this is, for all lengths."""
    for words, pattern in _PATTERNS.items():
        own = [pattern(T) | torch.eye(T, dtype=torch.bool) for T in _CUBES]
        if all(torch.equal(_sees(function, T), one) for T, one in zip(_CUBES, own, strict=True)):
            return words
    return ""


def _only_the_past(function: Function) -> str | None:
    for T in _CUBES:
        future = _sees(function, T).triu(1).nonzero()
        if len(future):
            t, i = future[0].tolist()
            return sentence(
                f"T = {T}", f"query {t} looks at key {i}, in its future", hint=_known(function)
            )
    return None


def _few_keys(function: Function) -> str | None:
    for T in _CUBES:
        keys, most = _sees(function, T).sum(1), 3 * (_root(T) - 1) + 1
        if int(keys.max()) > most:
            t = int(keys.argmax())
            return sentence(
                f"T = {T}",
                f"query {t} looks at {keys[t]} keys, itself included; {most} are allowed",
                hint=_known(function),
            )
    return None


def _whole_past(function: Function) -> str | None:
    for T in _CUBES:
        one = _sees(function, T).double()
        missing = ((one @ one @ one == 0) & (_distances(T) >= 0)).nonzero()
        if len(missing):
            t, i = missing[0].tolist()
            return sentence(
                f"T = {T}",
                f"after three layers query {t} has nothing of key {i}, {t - i} back",
                hint=_known(function) or "Which three steps lead there?",
            )
    return None


THREE_STEPS = Exercise(
    "three_steps",
    {
        "only the past": _only_the_past,
        "few keys": _few_keys,
        "the whole past in three layers": _whole_past,
    },
)

EXERCISES = (MERGE, HEADS_THAT_PAY, THREE_STEPS)
