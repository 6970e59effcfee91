"""Checks for the exercises of notebook 07: one step, the chunk form, another past."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from course.checks import Exercise, Wrong, call, differs

Function = Callable[..., Any]


def _draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _features(*shape: int, seed: int) -> Tensor:
    """Positive numbers of unequal size, as a feature map makes them."""
    return _draw(*shape, seed=seed).exp()


def _table(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    """The definition: causal weights Q·K, divided by their sum; no state anywhere."""
    weights = (Q @ K.T).tril()
    return weights @ V / weights.sum(1, keepdim=True)


# step(S, z, q, k, v) → (o, S, z)


def _stepped(
    function: Function, *given: Tensor, finite: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """The student's three tensors; says what is wrong if they are not three."""
    S, z, _, _, v = given

    def joined(*arguments: Tensor) -> Tensor | None:
        answer = function(*arguments)
        if answer is None:
            return None
        if not isinstance(answer, tuple | list) or len(answer) != 3:
            raise Wrong("expected three tensors: return o, S, z")
        for name, tensor, like in zip(("o", "S", "z"), answer, (v, S, z), strict=True):
            if not isinstance(tensor, Tensor):
                raise Wrong(f"{name}: expected a tensor, got {type(tensor).__name__}")
            if tensor.shape != like.shape:
                raise Wrong(f"{name} has shape {list(tensor.shape)}, expected {list(like.shape)}")
        return torch.cat([part.flatten().double() for part in answer])

    flat = call(joined, *given, finite=finite)
    o, new, total = flat.split([v.numel(), S.numel(), z.numel()])
    return o, new.reshape(S.shape), total


def _step_first(function: Function) -> str | None:
    q, k, v = _features(4, seed=1), _features(4, seed=2), _draw(3, seed=3)
    nothing = torch.zeros(4, 3, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    # Read before it is written, an empty state gives 0/0.
    wrong = differs(_stepped(function, *nothing, q, k, v, finite=False)[0], v)
    return wrong and (
        f"the first token sees itself alone, so its output is its value: {wrong}. "
        "Write first, then read; and divide by q·z"
    )


def _step_state(function: Function) -> str | None:
    S, z = _draw(4, 3, seed=4), _features(4, seed=5)
    q, k, v = _features(4, seed=6), _features(4, seed=7), _draw(3, seed=8)
    _, new, total = _stepped(function, S, z, q, k, v)
    wrong = differs(new, S + k[:, None] * v)
    if wrong:
        return f"S is not the old S plus k vᵀ: {wrong}"
    wrong = differs(total, z + k)
    return wrong and f"z is not the old z plus k: {wrong}"


def _step_sequence(function: Function) -> str | None:
    Q, K, V = _features(9, 4, seed=9), _features(9, 4, seed=10), _draw(9, 3, seed=11)
    S, z = torch.zeros(4, 3, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    outs = []
    for q, k, v in zip(Q, K, V, strict=True):
        o, S, z = _stepped(function, S, z, q, k, v)
        outs.append(o)
    wrong = differs(torch.stack(outs), _table(Q, K, V), atol=1e-9)
    return wrong and f"nine steps are not the causal average of the table: {wrong}"


# chunk_form(Q, K, V, size) → [T, Dv]


class _Largest(TorchDispatchMode):
    """Notes the number of entries of the largest tensor that an operation gives back."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for item in out if isinstance(out, tuple | list) else (out,):
            if isinstance(item, Tensor):
                self.numel = max(self.numel, item.numel())
        return out


def _chunked(function: Function, T: int, size: int, *, seed: int = 0) -> str | None:
    Q, K, V = _features(T, 4, seed=seed), _features(T, 4, seed=seed + 1), _draw(T, 3, seed=seed + 2)
    got = call(function, Q, K, V, size, shape=(T, 3))
    return differs(got, _table(Q, K, V), atol=1e-9)


def _chunk_one(function: Function) -> str | None:
    wrong = _chunked(function, 7, 20)
    return wrong and f"T = 7, one chunk of 20: {wrong}. Inside a chunk: (q @ k.T).tril(), divided"


def _chunk_even(function: Function) -> str | None:
    for size in (4, 1, 6):
        wrong = _chunked(function, 24, size, seed=5)
        if wrong:
            return (
                f"T = 24, chunks of {size}: {wrong}. The state before a chunk holds all earlier "
                "chunks and nothing of this one, in S and in z"
            )
    return None


def _chunk_ragged(function: Function) -> str | None:
    for T, size in ((25, 4), (23, 6), (5, 3)):
        wrong = _chunked(function, T, size, seed=9)
        if wrong:
            return f"T = {T}, chunks of {size}, the last one short: {wrong}"
    return None


def _chunk_none(function: Function) -> str | None:
    wrong = _chunked(function, 0, 4)
    return wrong and f"T = 0: {wrong}"


def _chunk_memory(function: Function) -> str | None:
    T, size = 512, 8
    Q, K, V = _features(T, 4, seed=13), _features(T, 4, seed=14), _draw(T, 3, seed=15)
    with _Largest() as largest:
        function(Q, K, V, size)
    if largest.numel >= T * T // 8:
        return (
            f"makes a tensor of {largest.numel:,} numbers for T = {T}: that is of size T×T, and "
            f"chunks of {size} need none"
        )
    return None


# another_past(K, V) → [T, Dv]


def _other(function: Function, K: Tensor, V: Tensor) -> Tensor:
    return call(function, K, V, shape=tuple(V.shape)).double()


def _past_state(function: Function) -> str | None:
    for T, C, Dv in ((12, 5, 3), (6, 5, 2), (40, 4, 1)):
        K, V = _features(T, C, seed=T), _draw(T, Dv, seed=T + 1)
        wrong = differs(K.T @ _other(function, K, V), K.T @ V, atol=1e-8)
        if wrong:
            return f"T = {T}, C = {C}: KᵀV has changed, {wrong}. Move V along the null space of Kᵀ"
    return None


def _past_other(function: Function) -> str | None:
    for T, C, Dv in ((12, 5, 3), (6, 5, 2), (40, 4, 1)):
        K, V = _features(T, C, seed=T), _draw(T, Dv, seed=T + 1)
        moved = (_other(function, K, V) - V).norm(dim=0)
        if bool((moved < 1 - 1e-9).any()):
            column = int(moved.argmin())
            return (
                f"T = {T}, C = {C}: column {column} moved by {moved[column]:.3g}, "
                "expected 1 or more"
            )
    return None


def _past_equal_keys(function: Function) -> str | None:
    K, V = _features(4, 6, seed=20), _draw(4, 2, seed=21)
    K[2] = K[0]
    other = _other(function, K, V)
    wrong = differs(K.T @ other, K.T @ V, atol=1e-8)
    if wrong:
        return f"4 tokens, 6 features, tokens 0 and 2 with one key: KᵀV has changed, {wrong}"
    if bool(((other - V).norm(dim=0) < 1 - 1e-9).any()):
        return (
            "4 tokens, 6 features, tokens 0 and 2 with one key: their values can be exchanged, so "
            "there is another past. It is the rank of K that counts, not C"
        )
    return None


def _past_none(function: Function) -> str | None:
    for T, C in ((4, 6), (5, 5)):
        K, V = _features(T, C, seed=30 + T), _draw(T, 2, seed=31)
        wrong = differs(_other(function, K, V), V, atol=1e-6)
        if wrong:
            return f"{T} independent keys of {C} features leave no other past, so return V: {wrong}"
    return None


EXERCISES = (
    Exercise(
        "step",
        (
            ("first token", _step_first),
            ("state", _step_state),
            ("nine tokens", _step_sequence),
        ),
    ),
    Exercise(
        "chunk_form",
        (
            ("one chunk", _chunk_one),
            ("whole chunks", _chunk_even),
            ("a short last chunk", _chunk_ragged),
            ("no token", _chunk_none),
            ("no table", _chunk_memory),
        ),
    ),
    Exercise(
        "another_past",
        (
            ("same state", _past_state),
            ("other values", _past_other),
            ("equal keys", _past_equal_keys),
            ("no other past", _past_none),
        ),
    ),
)
