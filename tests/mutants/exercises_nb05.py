"""Wrong answers to the exercises of notebook 05. Every one must fail its check."""

import torch


def _merge(m1, l1, o1, m2, l2, o2, *, safe=True, rescale=(True, True), maximum=torch.maximum):
    m = maximum(m1, m2)
    base = torch.where(m == -torch.inf, 0.0, m) if safe else m
    a, b = (m1 - base).exp(), (m2 - base).exp()
    a, b = a if rescale[0] else torch.ones_like(a), b if rescale[1] else torch.ones_like(b)
    return m, a * l1 + b * l2, a[:, None] * o1 + b[:, None] * o2


def _raw_exponentials(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2)
    base = torch.where(m == -torch.inf, 0.0, m)
    a, b = m1.exp() / base.exp(), m2.exp() / base.exp()
    return m, a * l1 + b * l2, a[:, None] * o1 + b[:, None] * o2


def _finished(m1, l1, o1, m2, l2, o2):
    m, total, o = _merge(m1, l1, o1, m2, l2, o2)
    return m, total, o / total.clamp_min(1e-30)[:, None]


def _output_not_rescaled(m1, l1, o1, m2, l2, o2):
    m, total, _ = _merge(m1, l1, o1, m2, l2, o2)
    return m, total, o1 + o2


def _one_maximum_for_all_rows(m1, l1, o1, m2, l2, o2):
    m = torch.maximum(m1, m2).max().expand_as(m1)
    a, b = (m1 - m).exp(), (m2 - m).exp()
    return m, a * l1 + b * l2, a[:, None] * o1 + b[:, None] * o2


def _in_place(m1, l1, o1, m2, l2, o2):
    answer = _merge(m1, l1, o1, m2, l2, o2)
    o1 += 1.0
    return answer


def _nan_to_zero(m1, l1, o1, m2, l2, o2):
    m, total, o = _merge(m1, l1, o1, m2, l2, o2, safe=False)
    return m.nan_to_num(0.0, neginf=0.0), total.nan_to_num(0.0), o.nan_to_num(0.0)


def _divisors(H):
    return [n for n in range(1, H + 1) if H % n == 0]


def _heads(H, queries, ridge, *, even=True, default=1):
    return max(
        (n for n in _divisors(H) if n * ridge < H * queries or (even and n * ridge == H * queries)),
        default=default,
    )


def _apart(T):
    return torch.arange(T)[:, None] - torch.arange(T)


def _steps(T, distances):
    return torch.isin(_apart(T), torch.tensor([int(d) for d in distances]))


def _n(T):
    return round(T ** (1 / 3))


def _base(T, scales=(0, 1, 2), low=0, high=0):
    return _steps(T, [d * _n(T) ** j for j in scales for d in [0, *range(1 + low, _n(T) + high)]])


def _at_random(T):
    order = torch.rand(T, T, generator=torch.Generator().manual_seed(T)).tril()
    return order >= order.topk(min(T, 3 * _n(T) - 2)).values[:, -1:].clamp_min(1e-9)


MUTANTS = {
    "merge": {
        "constant": lambda m1, l1, o1, *a: (m1 * 0, l1 * 0, o1 * 0),
        "copied input": lambda m1, l1, o1, *a: (m1.clone(), l1.clone(), o1.clone()),
        "shape only": lambda m1, l1, o1, *a: tuple(map(torch.ones_like, (m1, l1, o1))),
        "not rescaled": lambda *a: _merge(*a, rescale=(False, False)),
        "only the second rescaled": lambda *a: _merge(*a, rescale=(False, True)),
        "only the first rescaled": lambda *a: _merge(*a, rescale=(True, False)),
        "output not rescaled": _output_not_rescaled,
        "empty is NaN": lambda *a: _merge(*a, safe=False),
        "NaN made zero": _nan_to_zero,
        "the smaller maximum": lambda *a: _merge(*a, maximum=torch.minimum),
        "sum of the maxima": lambda *a: _merge(*a, maximum=torch.add),
        "overflow": _raw_exponentials,
        "already divided": _finished,
        "one maximum for all rows": _one_maximum_for_all_rows,
        "in place": _in_place,
        "two of three": lambda *a: _merge(*a)[1:],
        "mean of the parts": lambda m1, l1, o1, m2, l2, o2: (
            torch.maximum(m1, m2),
            (l1 + l2) / 2,
            (o1 + o2) / 2,
        ),
    },
    "heads_that_pay": {
        "constant": lambda H, queries, ridge: 3,
        "copied input": lambda H, queries, ridge: H,
        "always one": lambda H, queries, ridge: 1,
        "no divisor": lambda H, queries, ridge: max(1, min(H, int(H * queries / ridge))),
        "not whole": lambda H, queries, ridge: max(1, min(H, H * queries / ridge)),
        "queries forgotten": lambda H, queries, ridge: _heads(H, 1, ridge),
        "heads forgotten": lambda H, queries, ridge: max(
            (n for n in _divisors(H) if n * ridge <= queries), default=1
        ),
        "rounded up": lambda H, queries, ridge: min(
            (n for n in _divisors(H) if n * ridge >= H * queries), default=H
        ),
        "nearest": lambda H, queries, ridge: min(
            _divisors(H), key=lambda n: abs(n - H * queries / ridge)
        ),
        "none": lambda *a: _heads(*a, default=0),
        "group size": lambda H, queries, ridge: H // _heads(H, queries, ridge),
        "strictly less": lambda *a: _heads(*a, even=False),
        "a FLOP too few": lambda H, queries, ridge: _heads(H, queries, 2 * ridge),
        "keys only": lambda H, queries, ridge: _heads(H, 2 * queries, ridge),
        "powers of two": lambda H, queries, ridge: max(
            (n for n in _divisors(H) if n * ridge <= H * queries and n & (n - 1) == 0), default=1
        ),
        "ridge inverted": lambda H, queries, ridge: _heads(H, queries, 1 / ridge),
        "divisors up to H - 1": lambda H, queries, ridge: max(
            (n for n in _divisors(H)[:-1] if n * ridge <= H * queries), default=1
        ),
    },
    "three_steps": {
        "constant": lambda T: torch.ones(T, T, dtype=torch.bool),
        "nothing": lambda T: torch.zeros(T, T, dtype=torch.bool),
        "whole past": lambda T: _apart(T) >= 0,
        "window": lambda T: _steps(T, range(3 * _n(T) - 2)),
        "near and far": lambda T: _steps(T, [*range(int(T**0.5)), *range(0, T, int(T**0.5))]),
        "powers of two": lambda T: _steps(T, [0, *(2**j for j in range(9) if 2**j < T)]),
        "no small steps": lambda T: _base(T, (1, 2)),
        "no middle steps": lambda T: _base(T, (0, 2)),
        "no large steps": lambda T: _base(T, (0, 1)),
        "digit 1 missing": lambda T: _base(T, low=1),
        "last digit missing": lambda T: _base(T, high=-1),
        "one digit too many": lambda T: _steps(
            T, [d * _n(T) ** j for j in range(3) for d in range(2 * _n(T))]
        ),
        "one step of each size": lambda T: _steps(T, [0, 1, _n(T), _n(T) ** 2]),
        "inverted": lambda T: ~_base(T),
        "transposed": lambda T: _base(T).mT,
        "both directions": lambda T: _base(T) | _base(T).mT,
        "fixed keys": lambda T: (
            (_apart(T) >= 0) & ((torch.arange(T) % _n(T) == 0) | (_apart(T) < _n(T)))
        ),
        "always 64": lambda T: _base(64),
        "base 4 always": lambda T: _steps(T, [d * 4**j for j in range(3) for d in range(4)]),
        "at random": _at_random,
        "distances": _apart,
        "a row": lambda T: _base(T)[-1],
        "last row only": lambda T: torch.cat([torch.eye(T)[:-1].bool(), _base(T)[-1:]]),
    },
}
