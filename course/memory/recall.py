"""What is read back from a state: which values leak into a reading, and how wrong the reading is.

N pairs (k_j, v_j) are written, and each is read with its own key. Every rule here is linear in the
values, so that all readings together are L V: row i of the leak matrix L ``[N, N]`` says how much
of each value stands in reading i. A perfect memory has L = I.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import solve_triangular
from torch.nn.functional import normalize, one_hot

from course.feature_maps import get_feature_map
from course.inputs import (
    require_choice,
    require_floating,
    require_number,
    require_positive,
    without_autocast,
)
from course.linear import divide

RULES = ("add", "divide", "delta", "softmax", "least_squares")
KEYS = ("gaussian", "orthonormal", "correlated")
VALUES = ("gaussian", "onehot")
_AT_ONCE = 2**18  # entries of the largest tensor in a batch of trials: 2 MiB stay in the caches


class RecallError(NamedTuple):
    """How wrong readings are, relative to the values: 0 is perfect, 1 as if nothing was read.

    ``mean``: of |reading − v| / |v|, with its 95 % interval from ``low`` to ``high``. ``rms``:
    √(E|reading − v|² / E|v|²). ``law``: what theory says of ``rms``, None where none is derived.
    """

    mean: float
    low: float
    high: float
    rms: float
    law: float | None


def leak_matrix(
    k: Tensor, *, rule: str, decay: float = 1.0, beta: float = 1.0, passes: int = 1
) -> Tensor:
    """``L […, N, N]``, readings = L V: what value j leaves in the reading of pair i.

    ``k [..., N, C]``: keys, or their features, in the order in which they were written; L has their
    dtype and is computed in float32 at least. ``rule``:

    * ``add``: L = K Kᵀ. ``decay`` γ in (0, 1]: pair j has faded by γ^(N−1−j).
    * ``divide``: the same, each row divided by its sum, as linear attention divides by z.
    * ``delta``: ``passes`` times over all pairs with step size ``beta``.
    * ``softmax``: softmax attention with the scores ``beta`` · K Kᵀ.
    * ``least_squares``: L = K K⁺, of all states the one whose readings err least.

    Raises ``ValueError`` naming the argument: an unknown rule, a number that the rule does not
    have, products below 0 with ``divide``.
    """
    _require_rule(rule, decay, beta, passes)
    require_floating("k", k)
    if k.ndim < 2:
        raise ValueError(f"k: expected at least 2 axes [..., N, C], got shape {list(k.shape)}")
    wide = torch.promote_types(k.dtype, torch.float32)
    with without_autocast(k.device):
        return _leaks(k.to(wide), rule, float(decay), float(beta), int(passes)).to(k.dtype)


def _leaks(k: Tensor, rule: str, decay: float, beta: float, passes: int) -> Tensor:
    N, G = k.shape[-2], k @ k.mT
    if rule == "softmax":
        return torch.softmax(beta * G, -1)
    if rule == "least_squares":
        try:
            return k @ torch.linalg.pinv(k)
        except torch.linalg.LinAlgError:
            raise ValueError(
                "k: expected finite numbers with rule='least_squares', got inf or NaN"
            ) from None
    if rule == "delta":
        # S = Kᵀ A: course.memory.delta_chunk with the values I, once a pass, as one chunk.
        A, one = torch.zeros_like(G), torch.ones_like(G[..., 0]).diag_embed()
        L = (beta * G).tril(-1)
        for _ in range(passes):
            A = A + solve_triangular(L, beta * (one - G @ A), upper=False, unitriangular=True)
        return G @ A
    faded = G * decay ** torch.arange(N - 1, -1, -1, device=G.device).to(G)
    if rule == "add":
        return faded
    if (G < 0).any():
        raise ValueError(
            "k: expected features whose products are never negative with rule='divide', "
            f"got {G.min().item():.3g}"
        )
    return divide(torch.cat([faded, faded.sum(-1, keepdim=True)], -1))


def draw_keys(
    n_pairs: int,
    d: int,
    *,
    trials: int = 1,
    seed: int = 0,
    keys: str = "gaussian",
    cosine: float | None = None,
) -> Tensor:
    """Keys of length 1, ``[trials, n_pairs, d]`` in float64; the same for the same arguments.

    ``keys``: ``gaussian`` (directions of Gaussian vectors), ``orthonormal`` (n_pairs ≤ d), or
    ``correlated``: two keys have ``cosine``, above 0 and below 1, on average.
    Raises ``ValueError`` naming the argument.
    """
    require_positive("trials", trials)
    _require_keys(n_pairs, d, seed, keys, cosine)
    generator = torch.Generator("cpu").manual_seed(int(seed))
    return _keys(int(trials), int(n_pairs), int(d), keys, cosine, generator)


def recall_error(
    n_pairs: int,
    d: int,
    *,
    Dv: int = 32,
    trials: int = 2000,
    seed: int = 0,
    keys: str = "gaussian",
    cosine: float | None = None,
    values: str = "gaussian",
    rule: str = "add",
    feature_map: str | Callable[[Tensor], Tensor] = "identity",
    decay: float = 1.0,
    beta: float = 1.0,
    passes: int = 1,
    age: int | None = None,
) -> RecallError:
    """How wrong readings are, over ``trials`` draws of ``n_pairs`` pairs: a :class:`RecallError`.

    Keys are drawn as by :func:`draw_keys`. ``values [n_pairs, Dv]``: ``gaussian`` or ``onehot``
    (labels). ``rule`` with ``decay``, ``beta``, ``passes``: see :func:`leak_matrix`.
    ``feature_map``: a name, or a function from keys to features ``[..., n_pairs, C]``; features are
    scaled to length 1 except with ``divide``. ``age``: only the pair that so many others were
    written after (None: all of them).

    The same arguments give the same numbers; no other random state is read or moved. Raises
    ``ValueError`` naming the argument.
    """
    require_positive("trials", trials, minimum=2)
    require_positive("Dv", Dv)
    _require_keys(n_pairs, d, seed, keys, cosine)
    require_choice("values", values, VALUES)
    _require_rule(rule, decay, beta, passes)
    fm = get_feature_map(feature_map) if isinstance(feature_map, str) else feature_map
    if not callable(fm):
        raise ValueError(f"feature_map: expected a name or a function, got {type(fm).__name__}")
    if age is not None:
        require_positive("age", age, minimum=0)
        if age >= n_pairs:
            raise ValueError(f"age: expected at most n_pairs − 1 = {n_pairs - 1}, got {age}")
    # NumPy's small integers would overflow in the sizes, its small floats round the laws.
    n_pairs, d, Dv, trials, passes = (int(x) for x in (n_pairs, d, Dv, trials, passes))
    decay, beta, cosine = float(decay), float(beta), None if cosine is None else float(cosine)
    age = None if age is None else int(age)
    read = slice(None) if age is None else slice(n_pairs - 1 - age, n_pairs - age)
    generator = torch.Generator().manual_seed(int(seed))
    at_once = max(1, _AT_ONCE // (n_pairs * max(n_pairs, d, Dv)))
    errors, lengths = [], []
    for first in range(0, trials, at_once):
        count = min(at_once, trials - first)
        K = _features(fm, _keys(count, n_pairs, d, keys, cosine, generator), rule)
        V = _values(count, n_pairs, Dv, values, generator)
        L = leak_matrix(K, rule=rule, decay=decay, beta=beta, passes=passes)[:, read]
        errors.append((L @ V - V[:, read]).norm(dim=-1))
        lengths.append(V[:, read].norm(dim=-1))
    error, length = torch.cat(errors), torch.cat(lengths)
    each = (error / length).mean(-1)  # the pairs of one draw are not independent; draws are
    mean, half = each.mean().item(), 1.96 * each.std().item() / math.sqrt(trials)
    rms = (error.square().mean() / length.square().mean()).sqrt().item()
    alike = 0.0 if values == "gaussian" else 1 / Dv
    law = None
    if feature_map == "identity":
        law = _law(n_pairs, d, keys, cosine, alike, rule, decay, beta, passes, age)
    return RecallError(mean, mean - half, mean + half, rms, law)


def _keys(
    trials: int, n: int, d: int, keys: str, cosine: float | None, generator: torch.Generator
) -> Tensor:
    def draw(n: int) -> Tensor:
        return torch.randn(trials, n, d, generator=generator, dtype=torch.float64, device="cpu")

    if keys == "orthonormal":
        Q, R = torch.linalg.qr(draw(n).mT)
        return (Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)).mT
    if cosine is None:
        return normalize(draw(n), dim=-1)
    shared, own = normalize(draw(1), dim=-1), draw(n)
    own = normalize(own - own @ shared.mT @ shared, dim=-1)
    return math.sqrt(cosine) * shared + math.sqrt(1 - cosine) * own


def _values(trials: int, n: int, Dv: int, values: str, generator: torch.Generator) -> Tensor:
    if values == "onehot":
        labels = torch.randint(Dv, (trials, n), generator=generator, device="cpu")
        return one_hot(labels, Dv).double()
    return torch.randn(trials, n, Dv, generator=generator, dtype=torch.float64, device="cpu")


def _features(fm: Callable[[Tensor], Tensor], k: Tensor, rule: str) -> Tensor:
    with torch.no_grad():
        K = fm(k)
    if not isinstance(K, Tensor) or K.shape[:-1] != k.shape[:-1]:
        came = list(K.shape) if isinstance(K, Tensor) else type(K).__name__
        raise ValueError(f"feature_map: expected features {[*k.shape[:-1], 'C']}, got {came}")
    require_floating("feature_map", K)
    return K.double() if rule == "divide" else normalize(K.double(), dim=-1)


def _law(
    n: int,
    d: int,
    keys: str,
    cosine: float | None,
    alike: float,
    rule: str,
    decay: float,
    beta: float,
    passes: int,
    age: int | None,
) -> float | None:
    """√(E|reading − v|² / E|v|²) where it is known; ``alike``: the mean cosine of two values."""
    if rule == "delta" and keys == "orthonormal":
        try:
            return abs(1 - beta) ** passes
        except OverflowError:
            return math.inf
    if rule == "delta" and beta == 1 and age == 0:
        return 0.0
    if rule == "delta" and beta == passes == 1 and keys == "gaussian":
        ages = range(n) if age is None else [age]
        return math.sqrt(sum(_delta_law(n, d, a) for a in ages) / len(ages))
    # Correlated keys in a plane are only two, and a draw of one alone has rank 1.
    if rule == "least_squares" and (keys != "correlated" or (alike == 0 and d > 2)):
        return math.sqrt(max(0.0, 1 - d / n))  # n − d directions of the values cannot be held
    if rule != "add":
        return None
    # Value j stands in the reading with γ^j times the cosine of the two keys, j its age.
    first, second = _cosines(d, keys, cosine)
    left = [decay**j for j in range(n)]
    weights, powers = sum(left), sum(x * x for x in left)
    squares = []
    for own in left if age is None else [left[age]]:
        lost, others = 1 - own, powers - own**2
        # Where values are alike, the mean weights add up before they are squared.
        total = (first * (weights - own) - lost) ** 2 - first**2 * others - lost**2
        squares.append(lost**2 + second * others + alike * total)
    return math.sqrt(sum(squares) / len(squares))


def _delta_law(n: int, d: int, age: int) -> float:
    """E|reading − v|² / E|v|² of one pass with β = 1 over random keys, whatever the values.

    A later write takes 1/d of what a reading has of its own value, so that ``own`` is left of it.
    E|S|² / E|v|² grows towards d, and with it the mean square of a reading towards 1; ``fourth``
    comes from the fourth moments of a random direction. Notebook 09 derives it.
    """
    kept, fourth = 1 - 1 / d, 1 - 2 * (d + 1) / (d * (d + 2))
    own = kept**age
    return 2 * (1 - own) - kept ** (n - age) * (own - fourth**age)


def _cosines(d: int, keys: str, cosine: float | None) -> tuple[float, float]:
    """The mean of the cosine of two keys, and that of its square."""
    if keys == "orthonormal":
        return 0.0, 0.0
    if cosine is None:
        return 0.0, 1 / d
    return cosine, cosine**2 + (1 - cosine) ** 2 / (d - 1)


# What was passed in


def _require_rule(rule: str, decay: float, beta: float, passes: int) -> None:
    require_choice("rule", rule, RULES)
    require_number("decay", decay, above=0)
    require_number("beta", beta, above=0)
    require_positive("passes", passes)
    if decay > 1:
        raise ValueError(f"decay: expected at most 1, got {decay!r}")
    for name, value, rules in (
        ("decay", decay, ("add", "divide")),
        ("beta", beta, ("delta", "softmax")),
        ("passes", passes, ("delta",)),
    ):
        if value != 1 and rule not in rules:
            raise ValueError(f"{name}: expected 1 with rule={rule!r}, got {value!r}")


def _require_keys(n: int, d: int, seed: int, keys: str, cosine: float | None) -> None:
    require_positive("n_pairs", n)
    require_positive("d", d)
    require_positive("seed", seed, minimum=0)
    if seed >= 2**64:
        raise ValueError(f"seed: expected below 2^64, got {seed}")
    require_choice("keys", keys, KEYS)
    if keys == "orthonormal" and n > d:
        raise ValueError(f"n_pairs: expected at most d = {d} orthonormal keys, got {n}")
    if keys == "correlated":
        require_positive("d", d, minimum=2)
        require_number("cosine", cosine, above=0)
        if cosine is not None and cosine >= 1:
            raise ValueError(f"cosine: expected below 1, got {cosine!r}")
    elif cosine is not None:
        raise ValueError(f"cosine: expected None with keys={keys!r}, got {cosine!r}")
