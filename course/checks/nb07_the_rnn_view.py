"""Checks for the exercises of notebook 07: the previous word, fading by chunks, the way back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course.checks import Exercise
from course.checks.answers import Function, call_parts, two_numbers
from course.checks.properties import (
    WATCHED,
    Case,
    agrees,
    case,
    normal,
    sentence,
    work_of,
)

# previous_word(T) → (Q, K), [T, 2] each

_LEAST = 0.9  # of the weight, on the word before
_LONGEST = 30


def _features(function: Function, T: int) -> tuple[Tensor, Tensor]:
    Q, K = call_parts(function, T, shapes={"Q": (T, 2), "K": (T, 2)})
    return Q.double(), K.double()


def _are_features(function: Function) -> str | None:
    for T in (1, 2, 7, _LONGEST):
        for name, x in zip("QK", _features(function, T), strict=True):
            wrong = ~(x.isfinite() & (x >= 0))
            if not bool(wrong.any()):
                continue
            row, column = (int(i) for i in wrong.nonzero()[0])
            value = x[row, column].item()
            if value != value or value == torch.inf:
                hint = "A number is too large for its dtype: a smaller base, or float64"
            elif value < -1e18:
                hint = "PyTorch's whole numbers end at 9.2e18 and then begin below 0: 10.0 ** …"
            else:
                hint = "No feature may be negative"
            return sentence(f"T = {T}", f"{name}[{row}, {column}] is {value:.4g}", hint=hint)
    return None


def _weights(Q: Tensor, K: Tensor) -> Tensor:
    scores = (Q @ K.T).tril()
    return scores / scores.sum(1, keepdim=True)


def _reads_the_previous(function: Function) -> str | None:
    for T in (2, 3, 4, 9, _LONGEST):
        weights = _weights(*_features(function, T))
        on_previous = weights.diagonal(-1)
        wrong = ~(on_previous >= _LEAST - 1e-6)
        if bool(wrong.any()):
            t = int(wrong.nonzero()[0]) + 1
            mine, least = two_numbers(on_previous[t - 1].item(), _LEAST)
            return sentence(
                f"T = {T}",
                f"output {t} gives token {t - 1} the weight {mine}, expected {least} or more",
                hint=_why_another(weights[t], t),
            )
    return None


def _why_another(row: Tensor, t: int) -> str:
    """What stands in the way, for the weights of output ``t``."""
    if not bool(row.isfinite().all()):
        return "It divides 0 by 0: the query finds no key at all"
    if row[t] > 0.5:
        return "It reads itself: one place's query must look at the feature its key does not use"
    if row[t] > 0.05:
        return (
            "It reads itself, too: with one feature for all, the newest key is always in the sum. "
            "What is different about the word before?"
        )
    if t >= 2 and row[: t - 1].max() > row[t - 1]:
        return "An older word weighs more: later keys must be larger, not smaller"
    if t >= 3 and row[t - 3] > 0:
        return "The words 3, 5, 7 … places back have the same feature: let keys grow faster"
    return "Which feature does the word before use, and how large is it beside the older ones?"


def _knows_no_length(function: Function) -> str | None:
    longest = _features(function, _LONGEST)
    for T in (1, 2, 5, 12):
        for name, short, long in zip("QK", _features(function, T), longest, strict=True):
            if not torch.allclose(short, long[:T], rtol=1e-5, atol=1e-12):
                return (
                    f"{name} of {T} words is not the beginning of {name} of {_LONGEST}: a word is "
                    "written when it comes, and nobody knows yet how long the text will be"
                )
    return None


PREVIOUS_WORD = Exercise(
    "previous_word",
    {
        "features": _are_features,
        "weights": _reads_the_previous,
        "word by word": _knows_no_length,
    },
)

# fade_by_chunks(Q, K, V, a, size) → [T, Dv]


def _fade(Q: Tensor, K: Tensor, V: Tensor, a: Tensor, size: int = 0) -> Tensor:
    """The definition, token by token: fade, write, read."""
    S, out = V.new_zeros(K.shape[1], V.shape[1]), []
    for q, k, v, fade in zip(Q, K, V, a, strict=True):
        S = fade * S + torch.outer(k, v)
        out.append(q @ S)
    return torch.stack(out)


def _by_chunks(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    a: Tensor,
    size: int,
    *,
    handed: Callable[[Tensor], Tensor] = lambda fade: fade.prod(),
    read: Callable[[Tensor], Tensor] = lambda fade: fade.cumprod(0),
    written: Callable[[Tensor], Tensor] = lambda fade: fade.flip(0).cumprod(0).flip(0) / fade,
    inside: Callable[[Tensor], Tensor] = lambda fade: _between(fade),
    early: bool = False,
) -> Tensor:
    """As it should be, less what the arguments spoil: how the old state fades when it is handed on,
    when it is read, and how a token has faded when its chunk ends."""
    S, out = V.new_zeros(K.shape[1], V.shape[1]), []
    for q, k, v, fade in zip(*(x.split(size) for x in (Q, K, V, a)), strict=True):
        new = handed(fade) * S + (written(fade)[:, None] * k).T @ v
        own = (q @ k.T * inside(fade)).tril() @ v
        out.append(own + read(fade)[:, None] * (q @ (new if early else S)))
        S = new
    return torch.cat(out)


def _between(fade: Tensor) -> Tensor:
    """[n, n]: how much of token i is left at token t, for t ≥ i."""
    log = fade.log().cumsum(0)
    return (log[:, None] - log).tril().exp()


def _fading(T: int, size: int, seed: int, name: str = "", ends: Any = (0.4, 0.95)) -> Case:
    Q, K, V = (normal(T, n, seed=seed + s) for s, n in enumerate((4, 4, 3)))
    low, high = ends
    a = low + (high - low) * normal(T, seed=seed + 3).sigmoid()
    return case(Q, K, V, a, size, name=name or f"T = {T}, chunks of {size}")


_ones = lambda fade: torch.ones_like(fade)  # noqa: E731
_faded = partial(
    agrees,
    _fade,
    atol=1e-9,
    probes=[_fading(24, 4, seed=5), _fading(25, 6, seed=6)],
    mistakes={
        "The state fades by the last token's a alone when it is handed on: it must fade by all of "
        "the chunk": partial(_by_chunks, handed=lambda fade: fade[-1]),
        "The state does not fade when it is handed on": partial(
            _by_chunks, handed=lambda fade: torch.ones(())
        ),
        "The state fades by the first token's a alone when it is handed on": partial(
            _by_chunks, handed=lambda fade: fade[0]
        ),
        "The state fades by all of the chunk but its last token when it is handed on": partial(
            _by_chunks, handed=lambda fade: fade[:-1].prod()
        ),
        "The state is read as it was at the start of the chunk: it has faded since": partial(
            _by_chunks, read=_ones
        ),
        "The token's own a is missing where the state is read": partial(
            _by_chunks, read=lambda fade: fade.cumprod(0) / fade
        ),
        "What a chunk writes must fade until the chunk ends": partial(_by_chunks, written=_ones),
        "A token fades by its own a, too, before it is handed on; it fades by those behind it": (
            partial(_by_chunks, written=lambda fade: fade.flip(0).cumprod(0).flip(0))
        ),
        "What is handed on has faded from the start of the chunk, not until its end": partial(
            _by_chunks, written=lambda fade: fade.cumprod(0)
        ),
        "Inside a chunk nothing fades": partial(
            _by_chunks, inside=lambda fade: torch.ones(len(fade), len(fade))
        ),
        "The state before a chunk holds the chunk itself: read it first, then write": partial(
            _by_chunks, early=True
        ),
        "Nothing is handed from chunk to chunk": partial(
            _by_chunks, read=lambda fade: torch.zeros_like(fade)
        ),
        "Nothing fades at all": lambda Q, K, V, a, size: _fade(Q, K, V, torch.ones_like(a)),
        "The fading comes after the write: fade the old state, then add": (
            lambda Q, K, V, a, size: a[:, None] * _fade(Q, K, V, torch.cat([a[:1], a[:-1]]))
        ),
        "All decays are the first one": (
            lambda Q, K, V, a, size: _fade(Q, K, V, a[:1].expand(len(a)))
        ),
        "The output is divided; here nothing is": (
            lambda Q, K, V, a, size: _fade(Q, K, V, a) / _fade(Q, K, torch.ones_like(V), a)
        ),
    },
)


def _table_of(function: Function, arguments: tuple[Any, ...], T: int) -> str | None:
    """What of size T×T the function makes, as far as one can see."""
    work = work_of(function, *arguments)
    if work.entries >= T * T // 8:
        made = f"a tensor of {work.entries:,} numbers"
    elif work.bytes >= 3 * T * T:
        made = f"arrays or lists of more than {3 * T * T:,} bytes"
    else:
        return None
    return f"makes {made} for T = {T}: that is of size T×T, and no table is needed"


def _small_and_by_chunks(function: Function) -> str | None:
    T = 512
    table = _table_of(function, _fading(T, 8, seed=13).arguments, T)
    return table or _size_counts(function)


def _size_counts(function: Function) -> str | None:
    """Whether ``size`` changes anything that is done: lines that run, or what is made."""
    T = 64
    one, all_in_one = (
        work_of(function, *_fading(T, n, seed=13).arguments, lines=True) for n in (1, T)
    )
    same = one.lines == all_in_one.lines and one.entries == all_in_one.entries
    if same and all_in_one.bytes < one.bytes + T * T:
        return "does the same for chunks of 1 and of 64 tokens: is size used?"
    return None


FADE_BY_CHUNKS = Exercise(
    "fade_by_chunks",
    {
        "one chunk": _faded(_fading(7, 20, seed=0)),
        "two chunks": _faded(_fading(6, 3, seed=2), _fading(5, 4, seed=3)),
        "more chunks": _faded(
            _fading(5, 2, seed=4), *(_fading(24, size, seed=5) for size in (4, 1, 6))
        ),
        "a short last chunk": _faded(
            *(
                _fading(T, size, 9, f"T = {T}, chunks of {size}, the last one short")
                for T, size in ((25, 4), (23, 6), (7, 3))
            )
        ),
        "strong fading": _faded(
            _fading(400, 200, 20, "400 tokens, chunks of 200, a below 0.02", (1e-4, 0.02)),
            hint="A product of 200 such numbers is 0 in every dtype, and 0/0 is NaN: subtract "
            "logarithms, then exponentiate",
        ),
        "small": _small_and_by_chunks,
    },
    seconds=WATCHED,
)

# way_back(Q, K, V, G) → (dQ, dK, dV)

_Three = tuple[Tensor, Tensor, Tensor]


def _back(Q: Tensor, K: Tensor, V: Tensor, G: Tensor) -> _Three:
    """By the table: scores A = tril(QKᵀ), their gradient tril(GVᵀ); no state anywhere."""
    scores, slopes = (Q @ K.T).tril(), (G @ V.T).tril()
    return slopes @ K, slopes.T @ Q, scores.T @ G


def _spoiled(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    G: Tensor,
    *,
    cut: Callable[[Tensor], Tensor] = torch.tril,
    back: Callable[[Tensor], Tensor] = torch.tril,
    front: Callable[[Tensor], Tensor] = torch.tril,
) -> _Three:
    """``front`` cuts the table for dQ, ``back`` that for dK and dV; ``cut`` comes before both."""
    scores, slopes = cut(Q @ K.T), cut(G @ V.T)
    return front(slopes) @ K, back(slopes).T @ Q, back(scores).T @ G


def _same(table: Tensor) -> Tensor:
    return table


def _before(table: Tensor) -> Tensor:
    return table.tril(-1)


def _future(table: Tensor) -> Tensor:
    return table.triu()


_slopes = partial(
    agrees,
    _back,
    names=("dQ", "dK", "dV"),
    atol=1e-8,
    probes=[
        case(*(normal(9, n, seed=40 + s) for s, n in enumerate((4, 4, 3, 3))), name="9 tokens")
    ],
    mistakes={
        "dK and dV are summed over the queries before a token; those behind it have read it": (
            partial(_spoiled, cut=_same, back=_future)
        ),
        "The mask is missing: every query counts for every key": (
            partial(_spoiled, cut=_same, back=_same, front=_same)
        ),
        "dK and dV count all queries, also those that came before the token": partial(
            _spoiled, cut=_same, back=_same
        ),
        "dQ counts all keys, also those that came after the token": partial(
            _spoiled, cut=_same, front=_same
        ),
        "dQ counts the keys behind a token; a query has read those before it": partial(
            _spoiled, cut=_same, front=_future
        ),
        "The token itself is missing everywhere: it reads itself, too": partial(
            _spoiled, front=_before, back=_before
        ),
        "The token's own query is missing in dK and dV: it reads itself, too": partial(
            _spoiled, back=_before
        ),
        "The token's own key is missing in dQ: it reads itself, too": partial(
            _spoiled, front=_before
        ),
        "G is not used: this is the gradient of the plain sum of the outputs": (
            lambda Q, K, V, G: _back(Q, K, V, torch.ones_like(G))
        ),
        "These gradients have the wrong sign": (
            lambda Q, K, V, G: tuple(-x for x in _back(Q, K, V, G))
        ),
        "Q and K are exchanged: dQ is made of keys, dK of queries": (
            lambda Q, K, V, G: _back(K, Q, V, G)
        ),
        "V and G are exchanged": lambda Q, K, V, G: _back(Q, K, G, V),
        "dV reads only its own query: every later one has read v, too": (
            lambda Q, K, V, G: (
                *_back(Q, K, V, G)[:2],
                (Q * K).sum(1, keepdim=True) * G,
            )
        ),
        "These are means over the tokens; the gradients are sums": (
            lambda Q, K, V, G: tuple(x / len(Q) for x in _back(Q, K, V, G))
        ),
        "These are the gradients of the divided outputs; here nothing is divided": (
            lambda Q, K, V, G: _back(Q, K, V, G / (Q @ K.T).tril().sum(1, keepdim=True))
        ),
    },
)


def _tensors(T: int, seed: int, **options: Any) -> Case:
    tensors = (normal(T, n, seed=seed + s) for s, n in enumerate((4, 4, 3, 3)))
    return case(*tensors, name=f"{T} tokens" if T > 1 else "one token", **options)


def _last_alone(T: int, seed: int) -> Case:
    Q, K, V, G = _tensors(T, seed).arguments
    G[:-1] = 0
    return case(Q, K, V, G, name=f"{T} tokens, only the last output matters")


def _no_table(function: Function) -> str | None:
    T = 512
    shapes = {"dQ": (T, 4), "dK": (T, 4), "dV": (T, 3)}

    def side_by_side(*tensors: Tensor) -> Tensor:
        return torch.cat(call_parts(function, *tensors, shapes=shapes), 1)

    return _table_of(side_by_side, _tensors(T, seed=70).arguments, T)


WAY_BACK = Exercise(
    "way_back",
    {
        "one token": _slopes(
            _tensors(1, seed=50), hint="For o = (q·k) v: dq = (G·v) k, dk = (G·v) q, dv = (q·k) G"
        ),
        "the last output": _slopes(
            _last_alone(6, seed=55),
            hint="The last query reads every token: its gradient reaches all keys and values",
        ),
        "all outputs": _slopes(
            *(_tensors(T, seed=60 + T) for T in (2, 7, 40)),
            hint="Token i was read by the queries i, i + 1, …: a sum that runs from the end",
        ),
        "no table": _no_table,
    },
    seconds=WATCHED,
)

EXERCISES = (PREVIOUS_WORD, FADE_BY_CHUNKS, WAY_BACK)
