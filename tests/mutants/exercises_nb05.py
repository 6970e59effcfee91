"""Wrong answers to the exercises of notebook 05. Every one must fail its check."""

import torch


def _count(
    E, H, kv_heads, hidden, *, query_bias=1, key_bias=1, up_bias=1, down_bias=1, norms=2, keys=2
):
    narrow = kv_heads * (E // H)
    attention = 2 * (E * E + query_bias * E) + keys * (E * narrow + key_bias * narrow)
    feed_forward = 2 * E * hidden + up_bias * hidden + down_bias * E
    return attention + feed_forward + norms * 2 * E


def _users(
    memory, parameters, length, L, kv_heads, D, itemsize, *, keep=2, model=None, least=0, plus=0
):
    weights = parameters * itemsize if model is None else model
    return max(least, (memory - weights) // (length * L * kv_heads * keep * D * itemsize) + plus)


def _not_floored(memory, parameters, length, L, kv_heads, D, itemsize):
    return max(0, (memory - parameters * itemsize) / (length * L * kv_heads * 2 * D * itemsize))


def _rounded(*arguments):
    return round(_not_floored(*arguments))


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


MUTANTS = {
    "count_block": {
        "constant": lambda E, H, kv_heads, hidden: 7_087_872,
        "copied input": lambda E, H, kv_heads, hidden: E,
        "not shared": lambda E, H, kv_heads, hidden: _count(E, H, H, hidden),
        "hidden is 4E": lambda E, H, kv_heads, hidden: _count(E, H, kv_heads, 4 * E),
        "leading term": lambda E, H, kv_heads, hidden: 12 * E**2,
        "no biases of keys": lambda *a: _count(*a, key_bias=0),
        "no biases of queries": lambda *a: _count(*a, query_bias=0),
        "no bias above": lambda *a: _count(*a, up_bias=0),
        "no bias below": lambda *a: _count(*a, down_bias=0),
        "one norm": lambda *a: _count(*a, norms=1),
        "keys without values": lambda *a: _count(*a, keys=1),
        "width D = E": lambda E, H, kv_heads, hidden: _count(E, H, kv_heads * H, hidden),
        "off by one": lambda *a: _count(*a) + 1,
        "biases of keys as wide as E": lambda E, H, kv_heads, hidden: (
            _count(E, H, kv_heads, hidden) + 2 * (E - kv_heads * (E // H))
        ),
    },
    "users_that_fit": {
        "constant": lambda *a: 10,
        "copied input": lambda memory, *a: memory,
        "keys only": lambda *a: _users(*a, keep=1),
        "model forgotten": lambda *a: _users(*a, model=0),
        "model in numbers": lambda memory, parameters, *a: _users(
            memory, parameters, *a, model=parameters
        ),
        "below zero": lambda *a: _users(*a, least=-(10**9)),
        "off by one": lambda *a: _users(*a, plus=1),
        "not whole": _not_floored,
        "rounded": _rounded,
        "one layer": lambda memory, parameters, length, L, *a: _users(
            memory, parameters, length, 1, *a
        ),
        "one head": lambda memory, parameters, length, L, kv_heads, *a: _users(
            memory, parameters, length, L, 1, *a
        ),
        "one token": lambda memory, parameters, length, *a: _users(memory, parameters, 1, *a),
        "cache in numbers": lambda memory, parameters, length, L, kv_heads, D, itemsize: max(
            0, (memory - parameters * itemsize) // (length * L * kv_heads * 2 * D)
        ),
    },
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
}
