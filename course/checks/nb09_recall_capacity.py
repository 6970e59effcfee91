"""Checks for the exercises of notebook 09: erase a pair, outvote a gate, find a planted bug."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from course.checks import Exercise
from course.checks.properties import Case, agrees, case, counts, normal, shaped

# erase(S, K, i) → S without pair i, or S where S and K do not tell what that is


def _erase(S: Tensor, K: Tensor, i: int) -> Tensor:
    own = _own(K, i)
    if own.norm() <= 1e-9 * K[i].norm():
        return S
    return S - torch.outer(K[i], own @ S / (own @ own))


def _others(K: Tensor, i: int) -> Tensor:
    return torch.cat([K[:i], K[i + 1 :]])


def _own(K: Tensor, i: int) -> Tensor:
    """The part of key i that is perpendicular to all other keys."""
    others = _others(K, i)
    return K[i] - torch.linalg.pinv(others) @ (others @ K[i])


def _by_reading(S: Tensor, K: Tensor, i: int) -> Tensor:
    return S - torch.outer(K[i], K[i] @ S / (K[i] @ K[i]))


def _by_reading_undivided(S: Tensor, K: Tensor, i: int) -> Tensor:
    return S - torch.outer(K[i], K[i] @ S)


def _without_own(S: Tensor, K: Tensor, i: int) -> Tensor:
    own = _own(K, i)
    return S - torch.outer(own, own @ S / (own @ own))


def _by_inverse(S: Tensor, K: Tensor, i: int) -> Tensor:
    return S - torch.outer(K[i], torch.linalg.pinv(K)[:, i] @ S)


def _only_if_all_free(S: Tensor, K: Tensor, i: int) -> Tensor:
    return _erase(S, K, i) if int(torch.linalg.matrix_rank(K)) == len(K) else S


def _written(K: Tensor, i: int, *, seed: int, name: str) -> Case:
    return case(K.T @ normal(len(K), 3, seed=seed), K, i, name=name)


_TWINS = normal(5, 7, seed=5)
_TWINS[3] = 2 * _TWINS[1]  # two others are alike, key 0 is free
_BOUND = normal(5, 7, seed=6)
_BOUND[2] = 0.6 * _BOUND[0] - 0.8 * _BOUND[4]
_NOTHING = normal(4, 5, seed=14)
_NOTHING[1] = 0
_APART = torch.diag(torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64))
_FREE = _written(normal(5, 8, seed=1), 2, seed=2, name="5 independent keys of width 8")
_STUCK = _written(_BOUND, 2, seed=8, name="key 2 is a sum of keys 0 and 4")

_erased = partial(
    agrees,
    _erase,
    atol=1e-7,
    probes=[_FREE, _STUCK],
    mistakes={
        "What key i reads holds crosstalk. Ask with a key that the other pairs do not answer": (
            _by_reading
        ),
        "What key i reads holds crosstalk, and is not divided by the key's square": (
            _by_reading_undivided
        ),
        "The value is found; but the pair was written with the whole key, not with its own part": (
            _without_own
        ),
        "Here the value of pair i cannot be told: compare key i with what the others span": (
            _by_inverse
        ),
        "Only key i must be independent of the others; they may depend on each other": (
            _only_if_all_free
        ),
    },
)

ERASE = Exercise(
    "erase",
    {
        "shape": shaped(_erase, _FREE),
        "perpendicular keys": _erased(
            _written(_APART, 1, seed=9, name="4 perpendicular keys, not of length 1"),
            hint="What key i reads, divided by its square, is its value; take key · value off",
        ),
        "crosstalk": _erased(
            _FREE,
            _written(normal(6, 6, seed=3), 5, seed=4, name="6 independent keys of width 6"),
            _written(normal(1, 4, seed=12), 0, seed=13, name="a single pair"),
            rule="not the state that pair i was never written into",
            hint="Which part of key i has nothing in common with the other keys?",
        ),
        "others alike": _erased(
            _written(_TWINS, 0, seed=7, name="keys 1 and 3 have one direction, key 0 is free"),
            probes=[_written(_TWINS, 0, seed=7, name="")],
        ),
        "impossible": _erased(
            _STUCK,
            _written(normal(7, 4, seed=10), 3, seed=11, name="7 keys of width 4"),
            _written(_NOTHING, 1, seed=15, name="key 1 is 0, so that it wrote nothing"),
            rule="several values of pair i leave this state, so return S as it is",
            hint="Is anything left of key i when its part along the others is taken off?",
        ),
    },
)

# old_writes(decay) → how often the old number must have been written to outweigh the new one


def _old_writes(decay: float, first: int = 1, strict: bool = True) -> int:
    weight = 0.0
    for n in range(1, 1_000):
        weight += decay ** (n - 1 + first)
        if weight > 1 or (not strict and weight >= 1):
            return n
    return 0


def _delayed(decay: float) -> int:
    return _old_writes(decay) + 1 if decay > 0.5 else 0


_DECAYS = tuple(case(decay, name=f"decay {decay}") for decay in (0.9, 0.7, 0.6, 0.55, 0.52, 0.505))
_NEVER = tuple(case(decay, name=f"decay {decay}") for decay in (0.5, 0.4, 0.1))
_counted = partial(
    counts,
    _old_writes,
    probes=[*_DECAYS, *_NEVER],
    mistakes={
        "The new number is written last, so it fades the newest old one too: that weighs decay¹": (
            lambda decay: _old_writes(decay, first=0)
        ),
        "The old number that was written last has faded once, not twice": (
            lambda decay: _old_writes(decay, first=2)
        ),
        "As much is not more": lambda decay: _old_writes(decay, strict=False),
        "The new write counts too": _delayed,
    },
)

OLD_WRITES = Exercise(
    "old_writes",
    {
        "no fading": _counted(
            case(1.0, name="decay 1"),
            probes=[case(1.0), case(0.9), case(0.5)],
            rule="two old ones outweigh one new one, and one does not",
        ),
        "fading": _counted(
            *_DECAYS, rule="add up decay¹ + decay² + … until it is more than the weight 1"
        ),
        "never": _counted(
            *_NEVER,
            rule="decay + decay² + … never gets above 1, so return 0",
            hint="What is the sum of all powers of decay?",
        ),
    },
    seconds=3.0,  # a sum without a limit is the likeliest wrong answer
)

# write_by_chunks(K, V, size) → the state after the delta rule with β = 1


def _loop(K: Tensor, V: Tensor, size: int = 1) -> Tensor:
    S = V.new_zeros(K.shape[1], V.shape[1])
    for k, v in zip(K, V, strict=True):
        S = S + torch.outer(k, v - k @ S)
    return S


def _chunks(K: Tensor, V: Tensor, size: int, system: object = None) -> Tensor:
    """By chunks, with another matrix in the place of the triangular system."""
    S = V.new_zeros(K.shape[1], V.shape[1])
    for k, v in zip(K.split(size), V.split(size), strict=True):
        rest = v - k @ S
        S = S + k.T @ (torch.linalg.solve(system(k @ k.T), rest) if callable(system) else rest)
    return S


def _one(G: Tensor) -> Tensor:
    return torch.eye(len(G), dtype=G.dtype)


def _unread(K: Tensor, V: Tensor, size: int) -> Tensor:
    S = V.new_zeros(K.shape[1], V.shape[1])
    for k, v in zip(K.split(size), V.split(size), strict=True):
        G = k @ k.T
        S = S + k.T @ torch.linalg.solve(_one(G) + G.tril(-1), v)
    return S


def _drawn(T: int, D: int, size: int, seed: int, name: str = "") -> Case:
    K = normalize(normal(T, D, seed=seed), dim=-1)
    name = name or f"{T} random keys of length 1, width {D}, chunks of {size}"
    return case(K, normal(T, 3, seed=seed + 1), size, name=name)


def _last_chunk(K: Tensor, V: Tensor, size: int) -> Tensor:
    S = V.new_zeros(K.shape[1], V.shape[1])
    for k, v in zip(K.split(size), V.split(size), strict=True):
        S = _loop(k, v - k @ S)
    return S


_TWICE = torch.eye(4, dtype=torch.float64)[[0, 1, 0]]
_APARTS = torch.eye(6, dtype=torch.float64)[[3, 0, 5, 1]]

_states = partial(
    agrees,
    _loop,
    atol=1e-8,
    probes=[_drawn(9, 5, 4, seed=30)],
    mistakes={
        "This is the planted bug: inside a chunk no row reads what the rows before it wrote": (
            _chunks
        ),
        "A row reads the rows before it, not itself: tril(−1), with ones on the diagonal": (
            lambda K, V, size: _chunks(K, V, size, lambda G: _one(G) + G.tril())
        ),
        "The system sees the rows after it: the triangle is the lower one": (
            lambda K, V, size: _chunks(K, V, size, lambda G: _one(G) + G.triu(1))
        ),
        "All rows of the chunk at once is least squares inside the chunk, not one after another": (
            lambda K, V, size: _chunks(K, V, size, lambda G: G + 1e-12 * _one(G))
        ),
        "The state before the chunk is not read: V − K S": _unread,
        "This adds and never corrects": lambda K, V, size: K.T @ V,
        "The rows of a short last chunk are missing": (
            lambda K, V, size: _loop(K[: len(K) - len(K) % size], V[: len(K) - len(K) % size])
        ),
        "The state is replaced by what the last chunk writes: add to it": _last_chunk,
        "The rows are written from the last to the first": (
            lambda K, V, size: _loop(K.flip(0), V.flip(0))
        ),
        "This is least squares over all rows: the delta rule is not, a row sees those before it": (
            lambda K, V, size: torch.linalg.pinv(K) @ V
        ),
        "The sign in the system is wrong: I + tril(K Kᵀ, −1)": (
            lambda K, V, size: _chunks(K, V, size, lambda G: _one(G) - G.tril(-1))
        ),
        "The system is multiplied; it must be solved": (
            lambda K, V, size: _chunks(K, V, size, lambda G: torch.linalg.inv(_one(G) + G.tril(-1)))
        ),
        "Only the first step of the inverse is taken, I − tril(K Kᵀ, −1)": (
            lambda K, V, size: _chunks(K, V, size, lambda G: torch.linalg.inv(_one(G) - G.tril(-1)))
        ),
    },
)

WRITE_BY_CHUNKS = Exercise(
    "write_by_chunks",
    {
        "shape": shaped(_loop, _drawn(5, 4, 2, seed=20)),
        "perpendicular keys": _states(
            case(_APARTS, normal(4, 3, seed=21), 4, name="4 perpendicular keys in one chunk")
        ),
        "one by one": _states(_drawn(6, 4, 1, seed=22)),
        "one name twice": _states(
            case(_TWICE, normal(3, 3, seed=24), 3, name="rows 0 and 2 have one key, in one chunk"),
            rule="the second value must replace the first",
            hint="What does row 2 read before it writes?",
        ),
        "random keys": _states(_drawn(8, 5, 8, seed=26), _drawn(12, 5, 4, seed=28)),
        "a short last chunk": _states(_drawn(9, 5, 4, seed=30), _drawn(3, 5, 7, seed=32)),
        "no pair": _states(_drawn(0, 4, 3, seed=34, name="no pair at all")),
    },
)

EXERCISES = (ERASE, OLD_WRITES, WRITE_BY_CHUNKS)
