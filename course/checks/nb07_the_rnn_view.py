"""Checks for the exercises of notebook 07: one step, the chunk form, another past."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from course.checks import Exercise
from course.checks.answers import Function, call, call_parts, differs, two_numbers
from course.checks.properties import (
    WATCHED,
    Case,
    agrees,
    case,
    normal,
    positive,
    sentence,
    work_of,
)

# step(S, z, q, k, v) → (o, S, z)

_Step = tuple[Tensor, Tensor, Tensor]


def _step(S: Tensor, z: Tensor, q: Tensor, k: Tensor, v: Tensor) -> _Step:
    S, z = S + torch.outer(k, v), z + k
    return (q @ S) / (q @ z), S, z


def _read(S: Tensor, z: Tensor, q: Tensor) -> Tensor:
    return (q @ S) / (q @ z)


_OPEN = case(  # a state with a past
    normal(4, 3, seed=4), positive(4, seed=5), positive(4, seed=6), positive(4, seed=7),
    normal(3, seed=8),
)  # fmt: skip
_EMPTY = case(
    torch.zeros(4, 3, dtype=torch.float64),
    torch.zeros(4, dtype=torch.float64),
    positive(4, seed=1),
    positive(4, seed=2),
    normal(3, seed=3),
)

_steps = partial(
    agrees,
    _step,
    names=("o", "S", "z"),
    probes=[_OPEN],
    mistakes={
        "Write first, then read: the token itself is missing in the output": (
            lambda S, z, q, k, v: (_read(S, z, q), *_step(S, z, q, k, v)[1:])
        ),
        "The output is not divided by q·z": (
            lambda S, z, q, k, v: (q @ _step(S, z, q, k, v)[1], *_step(S, z, q, k, v)[1:])
        ),
        "The output is divided by the old z": (
            lambda S, z, q, k, v: (q @ _step(S, z, q, k, v)[1] / (q @ z), *_step(S, z, q, k, v)[1:])
        ),
        "The new state is computed, and the old one returned": (
            lambda S, z, q, k, v: (_step(S, z, q, k, v)[0], S, z)
        ),
        "S is written and the old z returned": (
            lambda S, z, q, k, v: (*_step(S, z, q, k, v)[:2], z)
        ),
        "z is written and the old S returned": (
            lambda S, z, q, k, v: (_step(S, z, q, k, v)[0], S, _step(S, z, q, k, v)[2])
        ),
        "The value itself is returned: that is right for the first token only": (
            lambda S, z, q, k, v: (v, *_step(S, z, q, k, v)[1:])
        ),
        "The state begins anew with each token: add to the old S and z": (
            lambda S, z, q, k, v: (v, torch.outer(k, v), k)
        ),
        "z grows by k, not by q": (
            lambda S, z, q, k, v: (
                _read(S + torch.outer(k, v), z + q, q),
                S + torch.outer(k, v),
                z + q,
            )
        ),
        "z grows by k, not by 1": (
            lambda S, z, q, k, v: (
                _read(S + torch.outer(k, v), z + 1, q),
                S + torch.outer(k, v),
                z + 1,
            )
        ),
        "S is kept divided, row by row, by z: it stays a sum": (
            lambda S, z, q, k, v: (
                _step(S, z, q, k, v)[0],
                _step(S, z, q, k, v)[1] / (z + k)[:, None],
                z + k,
            )
        ),
        "Divided by the sum of z; q·z is wanted": (
            lambda S, z, q, k, v: (
                q @ _step(S, z, q, k, v)[1] / (z + k).sum(),
                *_step(S, z, q, k, v)[1:],
            )
        ),
        "Divided by the sum of q; q·z is wanted": (
            lambda S, z, q, k, v: (
                q @ _step(S, z, q, k, v)[1] / q.sum(),
                *_step(S, z, q, k, v)[1:],
            )
        ),
        "This corrects what the key reads (the delta rule); here the product is only added": (
            lambda S, z, q, k, v: _step(S, z, q, k, v - k @ S)
        ),
        "What is kept is divided already: S and z stay sums, and only o is divided": (
            lambda S, z, q, k, v: (
                _step(S, z, q, k, v)[0],
                _step(S, z, q, k, v)[1] / (q @ (z + k)),
                z + k,
            )
        ),
        "z is not written: it grows by k": (
            lambda S, z, q, k, v: (_read(S + torch.outer(k, v), z, q), S + torch.outer(k, v), z)
        ),
        "Key and query are exchanged: the key writes, the query reads": (
            lambda S, z, q, k, v: _step(S, z, k, q, v)
        ),
        "Divide by one number, q·z, not entry by entry by z": (
            lambda S, z, q, k, v: (q / (z + k) @ _step(S, z, q, k, v)[1], *_step(S, z, q, k, v)[1:])
        ),
    },
)


def _nine_steps(function: Function) -> str | None:
    Q, K, V = positive(9, 4, seed=9), positive(9, 4, seed=10), normal(9, 3, seed=11)
    S, z, *_ = _EMPTY.arguments
    outs = []
    for q, k, v in zip(Q, K, V, strict=True):
        shapes = {"o": v.shape, "S": S.shape, "z": z.shape}
        o, S, z = call_parts(function, S, z, q, k, v, shapes=shapes)
        S, z = S.to(q.dtype), z.to(q.dtype)
        outs.append(o)
    wrong = differs(torch.stack(outs), _table(Q, K, V), atol=1e-9)
    return wrong and f"nine steps are not the causal average of the table: {wrong}"


STEP = Exercise(
    "step",
    {
        "first token": _steps(
            _EMPTY,
            part=lambda parts, *_: parts[0],
            rule="the first token sees itself alone, so its output is its value",
            hint="Write first, then read; and divide by q·z",
        ),
        "state": _steps(
            _OPEN,
            part=lambda parts, *_: torch.cat([parts[1], parts[2][:, None]], 1),
            rule="not the old S plus k vᵀ (columns 0 to 2) and the old z plus k (column 3)",
        ),
        "nine tokens": _nine_steps,
    },
)

# chunk_form(Q, K, V, size) → [T, Dv]


def _table(Q: Tensor, K: Tensor, V: Tensor, size: int = 0) -> Tensor:
    """The definition: causal weights Q·K, divided by their sum; no state anywhere."""
    weights = (Q @ K.T).tril()
    return weights @ V / weights.sum(1, keepdim=True)


def _early(Q: Tensor, K: Tensor, V: Tensor, size: int) -> Tensor:
    """The state before a chunk holds this chunk already, so its keys count twice."""
    place = torch.arange(len(Q))
    inside = (place[:, None] // size == place // size).double()
    weights = (Q @ K.T) * (torch.ones(len(Q), len(Q)).tril() + inside).clamp(max=2)
    return weights @ V / weights.sum(1, keepdim=True)


def _by_chunks(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    size: int,
    carry_S: bool = True,
    carry_z: bool = True,
    replace: bool = False,
    whole_only: bool = False,
    triangle: Callable[[Tensor], Tensor] = torch.tril,
) -> Tensor:
    """As it should be, less what the arguments spoil."""
    S, z, out = V.new_zeros(K.shape[1], V.shape[1]), V.new_zeros(K.shape[1]), torch.zeros_like(V)
    for a in range(0, len(Q) - len(Q) % size if whole_only else len(Q), size):
        rows = slice(a, a + size)
        weights = triangle(Q[rows] @ K[rows].T)
        out[rows] = (Q[rows] @ S + weights @ V[rows]) / (Q[rows] @ z + weights.sum(1))[:, None]
        S = (0 if replace else S) + carry_S * K[rows].T @ V[rows]
        z = (0 if replace else z) + carry_z * K[rows].sum(0)
    return out


def _only_before(Q: Tensor, K: Tensor, V: Tensor, size: int) -> Tensor:
    place = torch.arange(len(Q)) // size
    weights = (Q @ K.T) * (place[:, None] > place)
    return weights @ V / weights.sum(1, keepdim=True)


def _divided_apart(Q: Tensor, K: Tensor, V: Tensor, size: int) -> Tensor:
    place = torch.arange(len(Q)) // size
    weights, same = (Q @ K.T).tril(), place[:, None] == place
    here, before = (
        (part @ V / part.sum(1, keepdim=True)).nan_to_num(0.0)
        for part in (weights * same, weights * ~same)
    )
    return here + before


def _open_chunks(Q: Tensor, K: Tensor, V: Tensor, size: int) -> Tensor:
    place = torch.arange(len(Q))
    weights = (Q @ K.T) * (place // size <= place[:, None] // size)
    return weights @ V / weights.sum(1, keepdim=True)


def _drawn(T: int, size: int, seed: int, name: str = "") -> Case:
    Q, K, V = positive(T, 4, seed=seed), positive(T, 4, seed=seed + 1), normal(T, 3, seed=seed + 2)
    return case(Q, K, V, size, name=name or f"T = {T}, chunks of {size}")


_chunks = partial(
    agrees,
    _table,
    atol=1e-9,
    probes=[_drawn(24, 4, seed=5), _drawn(25, 6, seed=5)],
    mistakes={
        "This is not divided by Q·z": lambda Q, K, V, size: (Q @ K.T).tril() @ V,
        "Inside a chunk a token sees the tokens after it: (q @ k.T).tril()": _open_chunks,
        "The state before a chunk holds the chunk itself: read it first, then write": _early,
        "z is not carried from chunk to chunk, only S is": partial(_by_chunks, carry_z=False),
        "S is not carried from chunk to chunk, only z is": partial(_by_chunks, carry_S=False),
        "Nothing is carried from chunk to chunk": (
            partial(_by_chunks, carry_z=False, carry_S=False)
        ),
        "The state is replaced by that of the last chunk: add to it": (
            partial(_by_chunks, replace=True)
        ),
        "The tokens of a short last chunk are missing": partial(_by_chunks, whole_only=True),
        "The past and the chunk are each divided, and then added: add first, then divide once": (
            _divided_apart
        ),
        "The tokens of the chunk itself are missing: only the state before it is read": (
            _only_before
        ),
        "The triangle is the wrong one: tril, not triu": (
            lambda Q, K, V, size: _by_chunks(Q, K, V, size, triangle=torch.triu)
        ),
        "Inside a chunk there is a softmax: the weights are Q·K as they are": (
            lambda Q, K, V, size: _by_chunks(Q, K, V, size, triangle=lambda w: w.tril().softmax(-1))
        ),
        "All rows are one too late or too early": lambda Q, K, V, size: _table(Q, K, V).roll(1, 0),
        "This is the mean of the values so far: Q and K are not used": (
            lambda Q, K, V, size: V.cumsum(0) / torch.arange(1, len(V) + 1)[:, None]
        ),
        "The future is not masked at all": (
            lambda Q, K, V, size: Q @ (K.T @ V) / (Q @ K.sum(0))[:, None]
        ),
        "This is softmax attention; the features are there already, and only divided": (
            lambda Q, K, V, size: (
                (Q @ K.T)
                .masked_fill(torch.ones(len(Q), len(Q)).triu(1).bool(), -torch.inf)
                .softmax(1)
                @ V
            )
        ),
        "A token does not see itself": (
            lambda Q, K, V, size: (Q @ K.T).tril(-1) @ V / (Q @ K.T).tril(-1).sum(1, keepdim=True)
        ),
    },
)


def _no_table(function: Function) -> str | None:
    T, size = 512, 8
    work = work_of(function, *_drawn(T, size, seed=13).arguments)
    if work.entries >= T * T // 8:
        made = f"a tensor of {work.entries:,} numbers"
    elif work.bytes >= 3 * T * T:
        made = f"arrays or lists of more than {3 * T * T:,} bytes"
    else:
        return _size_counts(function)
    return f"makes {made} for T = {T}: that is of size T×T, and chunks of {size} need none"


def _size_counts(function: Function) -> str | None:
    """Whether ``size`` changes anything that is done: lines that run, or what is made."""
    T = 64
    one, all_in_one = (
        work_of(function, *_drawn(T, n, seed=13).arguments, lines=True) for n in (1, T)
    )
    same = one.lines == all_in_one.lines and one.entries == all_in_one.entries
    if same and all_in_one.bytes < one.bytes + T * T:
        return "does the same for chunks of 1 and of 64 tokens: is size used?"
    return None


CHUNK_FORM = Exercise(
    "chunk_form",
    {
        "one chunk": _chunks(
            _drawn(7, 20, seed=0), hint="Inside a chunk: (q @ k.T).tril(), divided"
        ),
        "whole chunks": _chunks(
            *(_drawn(24, size, seed=5) for size in (4, 1, 6)),
            hint="The state before a chunk holds all earlier chunks and nothing of this "
            "one, in S and in z",
        ),
        "a short last chunk": _chunks(
            *(
                _drawn(T, size, 9, f"T = {T}, chunks of {size}, the last one short")
                for T, size in ((25, 4), (23, 6), (5, 3))
            )
        ),
        "no token": _chunks(_drawn(0, 4, seed=0)),
        "no table": _no_table,
    },
    seconds=WATCHED,
)

# another_past(K, V) → [T, Dv]


def _other(function: Function, K: Tensor, V: Tensor) -> Tensor:
    return call(function, K, V, shape=V.shape, finite=False)


def _pasts() -> list[tuple[Tensor, Tensor, str]]:
    return [
        (positive(T, C, seed=T), normal(T, Dv, seed=T + 1), f"T = {T}, C = {C}")
        for T, C, Dv in ((12, 5, 3), (6, 5, 2), (40, 4, 1))
    ]


def _same_state(function: Function) -> str | None:
    for K, V, name in _pasts():
        other = _other(function, K, V)
        wrong = _state_differs(K, other, V)
        if wrong:
            return sentence(name, wrong, hint=_why_moved(K, other, V))
    return None


def _why_moved(K: Tensor, other: Tensor, V: Tensor) -> str:
    if not bool(other.isfinite().all()):
        return "0/0: a direction of length 0 was divided by its length"
    change = other.double() - V
    seen = torch.linalg.lstsq(K, change).solution  # the part of the change that K sees
    if not differs(K @ seen, change):
        return "V was moved in the directions that S does see; take the others"
    if bool(other.any()) and not differs(K.T @ change, -(K.T @ V)):
        return "These values alone are what S cannot see; add them to V"
    return "Move V along the null space of Kᵀ"


def _state_differs(K: Tensor, other: Tensor, V: Tensor) -> str | None:
    wrong = differs((K.to(other.dtype).T @ other), K.T @ V, atol=1e-8)
    return wrong and f"KᵀV has changed, {wrong}"


def _too_little(other: Tensor, V: Tensor) -> str | None:
    """The column that has moved by less than 1 (rounding apart), and how far."""
    moved = (other.double() - V).norm(dim=0)
    rounding = 1e-5 if other.dtype == torch.float32 else 1e-9
    if bool((moved >= 1 - rounding).all()):
        return None
    column = int(moved.argmin())
    mine, least = two_numbers(moved[column].item(), 1.0)
    return f"column {column} has moved by {mine}, expected {least} or more"


def _other_values(function: Function) -> str | None:
    for K, V, name in _pasts():
        wrong = _too_little(_other(function, K, V), V)
        if wrong:
            return f"{name}: {wrong}"
    return None


def _equal_keys(function: Function) -> str | None:
    K, V = positive(4, 6, seed=20), normal(4, 2, seed=21)
    K[2] = K[0]
    name = "4 tokens, 6 features, tokens 0 and 2 with one key"
    other = _other(function, K, V)
    wrong = _state_differs(K, other, V)
    if wrong:
        return f"{name}: {wrong}"
    if _too_little(other, V):
        return (
            f"{name}: their values can be exchanged, so there is another past. It is the rank of "
            "K that counts, not C"
        )
    return None


ANOTHER_PAST = Exercise(
    "another_past",
    {
        "same state": _same_state,
        "other values": _other_values,
        "equal keys": _equal_keys,
        "no other past": agrees(
            lambda K, V: V,
            *(
                case(
                    positive(T, C, seed=30 + T),
                    normal(T, 2, seed=31),
                    name=f"{T} independent keys of {C} features",
                )
                for T, C in ((4, 6), (5, 5))
            ),
            atol=1e-6,
            rule="there is no other past, so return V",
        ),
    },
)

EXERCISES = (STEP, CHUNK_FORM, ANOTHER_PAST)
