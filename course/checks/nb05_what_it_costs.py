"""Checks for the exercises of notebook 05: a block's numbers, users on a machine, merged parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from course.checks import Exercise, Wrong, call, differs
from course.cost import block_parameters, cache_bytes_per_token

Function = Callable[..., Any]


def _whole(function: Function, *arguments: int) -> int:
    """The student's answer, which must be one whole number."""
    answer = call(function, *arguments, shape=())
    if answer.is_floating_point() and answer.item() != round(answer.item()):
        raise Wrong(f"returns {answer.item():g}: expected a whole number")
    return int(answer.item())


# count_block(E, H, kv_heads, hidden) → number of parameters


def _modules(E: int, H: int, kv_heads: int, hidden: int) -> dict[str, int]:
    """The same counted in PyTorch's own modules, by part."""
    D = E // H
    with torch.device("meta"):
        parts: dict[str, list[nn.Module]] = {
            "W_q and W_o": [nn.Linear(E, E), nn.Linear(E, E)],
            "W_k and W_v": [nn.Linear(E, kv_heads * D), nn.Linear(E, kv_heads * D)],
            "the feed-forward part": [nn.Linear(E, hidden), nn.Linear(hidden, E)],
            "the norms": [nn.LayerNorm(E), nn.LayerNorm(E)],
        }
    return {
        name: sum(p.numel() for module in modules for p in module.parameters())
        for name, modules in parts.items()
    }


def _count_ordinary(function: Function) -> str | None:
    for E, H in ((12, 3), (768, 12)):
        got, expected = _whole(function, E, H, H, 4 * E), block_parameters(E)["total"]
        if got != expected:
            return (
                f"with kv_heads = H = {H} and hidden = 4E it must be 12E² + 13E = {expected:,}, "
                f"got {got:,}{_missing(expected - got, E, H, H, 4 * E)}"
            )
    return None


def _missing(gap: int, E: int, H: int, kv_heads: int, hidden: int) -> str:
    """Which part explains ``gap``, the true number minus the student's."""
    for name, size in _modules(E, H, kv_heads, hidden).items():
        if gap == size:
            return f": {name} are missing" if "and" in name else f": {name} is missing"
    biases = {"one bias of width E": E, "the feed-forward biases": hidden + E, "a norm": 2 * E}
    for name, size in biases.items():
        if abs(gap) == size:
            return f": off by {name}"
    return ""


def _count_hidden(function: Function) -> str | None:
    one, two = (_whole(function, 12, 3, 3, hidden) for hidden in (20, 21))
    if two - one != 2 * 12 + 1:
        return (
            f"one hidden unit more adds a row, a bias and a column, 2E + 1 = 25 numbers; "
            f"here it adds {two - one}"
        )
    return None


def _count_shared(function: Function) -> str | None:
    for E, H, kv_heads, hidden in ((24, 6, 2, 40), (24, 6, 1, 7), (768, 12, 4, 3_072)):
        got = _whole(function, E, H, kv_heads, hidden)
        expected = sum(_modules(E, H, kv_heads, hidden).values())
        if got != expected:
            return (
                f"E = {E}, H = {H}, kv_heads = {kv_heads}, hidden = {hidden}: got {got:,}, "
                f"expected {expected:,}. W_k and W_v have kv_heads · E/H rows, and as many biases"
            )
    return None


# users_that_fit(memory, parameters, length, L, kv_heads, D, itemsize) → whole number


def _users_simple(function: Function) -> str | None:
    # A model of 100 bytes, 24 bytes of cache a user and token.
    for memory, expected in ((100 + 10 * 24, 10), (100 + 11 * 24, 11)):
        got = _whole(function, memory, 100, 1, 2, 2, 3, 1)
        if got != expected:
            return (
                f"{memory} bytes, a model of 100, and 2 layers · 2 heads · 2 · 3 = 24 bytes a "
                f"user: {expected} fit, got {got}. Keys and values, in every layer?"
            )
    return None


def _users_whole(function: Function) -> str | None:
    got = _whole(function, 100 + 10 * 24 - 1, 100, 1, 2, 2, 3, 1)
    return None if got == 9 else f"one byte too few for the tenth user: 9 fit, got {got}"


def _users_bytes(function: Function) -> str | None:
    got = _whole(function, 200 + 10 * 48, 100, 1, 2, 2, 3, 2)
    return (
        None
        if got == 10
        else (
            f"with 2 bytes a number model and caches are twice as large: 10 fit, got {got}. "
            "Do the parameters have itemsize bytes, too?"
        )
    )


def _users_none(function: Function) -> str | None:
    for memory in (99, 0, 100):
        got = _whole(function, memory, 100, 1, 2, 2, 3, 1)
        if got != 0:
            return f"{memory} bytes and a model of 100: nobody fits, got {got}"
    return None


def _users_real(function: Function) -> str | None:
    for length in (1_000, 128_000):
        expected = (80 * 2**30 - 2 * 8_030_000_000) // (
            length * cache_bytes_per_token(L=32, kv_heads=8, D=128)
        )
        got = _whole(function, 80 * 2**30, 8_030_000_000, length, 32, 8, 128, 2)
        if got != expected:
            return (
                f"8.03 billion parameters, 32 layers, 8 heads of 128, 16 bits, 80 GiB, texts of "
                f"{length:,} tokens: {expected} fit, got {got}"
            )
    return None


# merge(m1, l1, o1, m2, l2, o2) → (m, l, o);  m, l [T], o [T, Dv]

_Parts = tuple[Tensor, Tensor, Tensor]


def _summary(s: Tensor, v: Tensor) -> _Parts:
    """Of scores ``s [T, n]`` and values ``v [n, Dv]``; a row of −inf alone is (−inf, 0, 0)."""
    m = s.amax(1)
    p = (s - m.masked_fill(m == -torch.inf, 0)[:, None]).exp()
    return m, p.sum(1), p @ v


def _two(seed: int, size: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    s = size * torch.randn(5, 9, generator=generator, dtype=torch.float64)
    return s, torch.randn(9, 3, generator=generator, dtype=torch.float64)


def _merged(function: Function, *parts: Tensor) -> _Parts:
    """The student's three tensors; says what is wrong if they are not three."""

    def joined(*given: Tensor) -> Tensor | None:
        answer = function(*given)
        if answer is None:
            return None
        if not isinstance(answer, tuple | list) or len(answer) != 3:
            raise Wrong("expected three tensors: return m, l, o")
        for name, tensor, like in zip(("m", "l", "o"), answer, given, strict=False):
            if not isinstance(tensor, Tensor):
                raise Wrong(f"{name}: expected a tensor, got {type(tensor).__name__}")
            if tensor.shape != like.shape:
                raise Wrong(f"{name} has shape {list(tensor.shape)}, expected {list(like.shape)}")
            if bool(tensor.isnan().any()):
                raise Wrong(f"NaN in {name}")
        m, l, o = answer  # noqa: E741 - the notebook's name
        return torch.cat([m[:, None], l[:, None], o], dim=1).double()

    joint = call(joined, *parts, finite=False)
    return joint[:, 0], joint[:, 1], joint[:, 2:]


def _compare(got: _Parts, expected: _Parts) -> str | None:
    for name, mine, true in zip(("m", "l", "o"), got, expected, strict=True):
        empty = true == -torch.inf
        if bool((mine[empty] != -torch.inf).any()):
            return f"{name}: expected −inf where both parts are empty"
        wrong = differs(mine[~empty], true[~empty], atol=1e-9 * float(true[~empty].abs().max() + 1))
        if wrong:
            return f"{name}: {wrong}"
    return None


def _merge_values(function: Function) -> str | None:
    for seed, cut in ((1, 4), (2, 7)):
        s, v = _two(seed)
        parts = *_summary(s[:, :cut], v[:cut]), *_summary(s[:, cut:], v[cut:])
        wrong = _compare(_merged(function, *parts), _summary(s, v))
        if wrong:
            return f"not the summary of all keys, {wrong}. Both sums must refer to the common m"
    return None


def _merge_order(function: Function) -> str | None:
    s, v = _two(3)
    left, right = _summary(s[:, :4], v[:4]), _summary(s[:, 4:], v[4:])
    wrong = _compare(_merged(function, *left, *right), _merged(function, *right, *left))
    return wrong and f"the order of the two parts must not matter, {wrong}"


def _merge_far(function: Function) -> str | None:
    s, v = _two(4)
    for low, high in ((slice(0, 4), slice(4, 9)), (slice(4, 9), slice(0, 4))):
        t = s.clone()
        t[:, high] += 2_000.0
        parts = *_summary(t[:, low], v[low]), *_summary(t[:, high], v[high])
        wrong = _compare(_merged(function, *parts), _summary(t, v))
        if wrong:
            return (
                f"scores of one part larger by 2,000, {wrong}. "
                "Exponentials of differences to the common maximum only: they are at most 1"
            )
    return None


def _merge_empty(function: Function) -> str | None:
    s, v = _two(5)
    for place, hidden in enumerate((slice(0, 4), slice(4, 9), slice(0, 9))):
        t = s.clone()
        t[[1, 3], hidden] = -torch.inf
        parts = *_summary(t[:, :4], v[:4]), *_summary(t[:, 4:], v[4:])
        try:
            wrong = _compare(_merged(function, *parts), _summary(t, v))
        except Wrong as error:
            wrong = str(error)
        if wrong:
            who = ("the first part", "the second part", "both parts")[place]
            return f"a query for which {who} had nothing to read (m = −inf, l = 0, o = 0): {wrong}"
    return None


EXERCISES = (
    Exercise(
        "count_block",
        (
            ("as many keys as queries", _count_ordinary),
            ("hidden width", _count_hidden),
            ("shared keys", _count_shared),
        ),
    ),
    Exercise(
        "users_that_fit",
        (
            ("by hand", _users_simple),
            ("whole users", _users_whole),
            ("bytes", _users_bytes),
            ("nobody", _users_none),
            ("a real model", _users_real),
        ),
    ),
    Exercise(
        "merge",
        (
            ("values", _merge_values),
            ("order", _merge_order),
            ("far apart", _merge_far),
            ("nothing to read", _merge_empty),
        ),
    ),
)
