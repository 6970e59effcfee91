"""Checks for the exercises of notebook 06: two texts for one state, five faults, a table's rank."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from course.checks import Exercise
from course.checks.answers import Function, Wrong, answer_of, as_tensor, call, differs
from course.checks.properties import (
    agrees,
    case,
    normal,
    sees_future,
    sentence,
    shaped,
)


def _phi(x: Tensor) -> Tensor:
    return x.clamp(max=0).exp() + x.clamp(min=0)


def _back(y: Tensor) -> Tensor:
    """The number that elu + 1 turns into ``y`` > 0."""
    return torch.where(y >= 1, y - 1, y.log())


# confuse(K [S, D], V [S, Dv], i, j) → other keys [S, D] with the same register and the same z


def _set(K: Tensor, i: int, j: int, at_i: Tensor, at_j: Tensor) -> Tensor:
    K = K.clone()
    K[i], K[j] = at_i, at_j
    return K


def _confuse(K: Tensor, V: Tensor, i: int, j: int) -> Tensor:
    middle = _back((_phi(K[i]) + _phi(K[j])) / 2)
    return _set(K, i, j, middle, middle)


def _middle(of: Function) -> Function:
    """Both keys become what ``of`` makes of the two."""

    def confuse(K: Tensor, V: Tensor, i: int, j: int) -> Tensor:
        both = of(K[i], K[j])
        return _set(K, i, j, both, both)

    return confuse


def _state(answer: Tensor, K: Tensor, V: Tensor, i: int, j: int) -> Tensor:
    """Register and z of a table of keys, z in a last column."""
    ones = torch.ones_like(V[:, :1])
    state = _phi(answer.double()).mT @ torch.cat([V, ones], 1)
    return state.to(answer.dtype) if answer.is_floating_point() else state


_KEYS = normal(5, 3, seed=11)
_BELOW = normal(4, 2, seed=12) - 2.5
_ABOVE = normal(4, 3, seed=13).abs() + 0.2
_VALUES = torch.tensor([[2.0, -1.0], [0.5, 3.0], [2.0, -1.0], [-4.0, 0.0], [1.0, 1.0]]).double()

_TEXTS = (
    case(_KEYS, _VALUES, 0, 2, name="keys of both signs"),
    case(_ABOVE, _VALUES[:4], 0, 2, name="all keys above 0"),
    case(_BELOW, _VALUES[[1, 0, 3, 0]], 3, 1, name="keys below 0"),
)

_same_state = partial(
    agrees,
    _confuse,
    part=_state,
    probes=[case(_KEYS, _VALUES, 0, 2)],
    hint="Σ φ(k) over the two tokens must stay as it was, feature by feature",
    mistakes={
        "This is the mean of the two keys. It does only where φ is a straight line, above 0": (
            _middle(lambda a, b: (a + b) / 2)
        ),
        "These rows are features; a key is what φ turns into them": (
            _middle(lambda a, b: (_phi(a) + _phi(b)) / 2)
        ),
        "φ is turned back as y − 1 everywhere; below 1 it is ln y": (
            _middle(lambda a, b: (_phi(a) + _phi(b)) / 2 - 1)
        ),
        "φ is turned back as ln y everywhere; above 1 it is y − 1": (
            _middle(lambda a, b: ((_phi(a) + _phi(b)) / 2).log())
        ),
        "Both tokens got the sum of the two features: each gets a share of it": (
            _middle(lambda a, b: _back(_phi(a) + _phi(b)))
        ),
        "This keeps Σ e^k; the map is elu + 1": (
            _middle(lambda a, b: ((a.exp() + b.exp()) / 2).log())
        ),
        "This keeps Σ relu(k); the map is elu + 1": (
            _middle(lambda a, b: (a.clamp(min=0) + b.clamp(min=0)) / 2)
        ),
        "This keeps the product of the features; the register holds their sum": (
            _middle(lambda a, b: _back((_phi(a) * _phi(b)).sqrt()))
        ),
        "Only token i was changed: what it lost, token j must get": (
            lambda K, V, i, j: _set(K, i, j, _back((_phi(K[i]) + _phi(K[j])) / 2), K[j])
        ),
        "Only token j was changed: what it lost, token i must get": (
            lambda K, V, i, j: _set(K, i, j, K[i], _back((_phi(K[i]) + _phi(K[j])) / 2))
        ),
        "Token j was given the key of token i": lambda K, V, i, j: _set(K, i, j, K[i], K[i]),
        "Token i was given the key of token j": lambda K, V, i, j: _set(K, i, j, K[j], K[j]),
    },
)


def _softmax(q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    return (q @ K.mT).softmax(-1) @ V


def _another_text(function: Function) -> str | None:
    for one in _TEXTS:
        K, V, i, j = one.arguments
        got = call(function, K, V, i, j, shape=K.shape, finite=False).double()
        if not differs(got, K, atol=1e-3):
            return sentence(one.name, "the keys came back as they were")
        if not differs(got, _set(K, i, j, K[j], K[i]), atol=1e-3):
            return sentence(
                one.name,
                "the two keys were exchanged. Both tokens have one value, so this is the same "
                "text in another order, and softmax gives the same answers, too",
            )
    return None


def _told_apart(function: Function) -> str | None:
    for one in _TEXTS:
        K, V, i, j = one.arguments
        L = call(function, K, V, i, j, shape=K.shape).double()
        q = 2 * normal(40, K.shape[1], seed=14)
        gap = (_softmax(q, K, V) - _softmax(q, L, V)).abs().max().item()
        if gap < 1e-3:
            return sentence(
                one.name,
                f"softmax answers 40 queries as before, to {gap:.0e}",
                hint="Move the two keys further",
            )
    return None


CONFUSE = Exercise(
    "confuse",
    {
        "shape": shaped(_confuse, *_TEXTS),
        "same register, same z": _same_state(*_TEXTS),
        "another text": _another_text,
        "softmax tells them apart": _told_apart,
    },
)

# repair(q, k [N, T, D], v [N, T, Dv], real [N, T]) → [N, T, Dv], causal


def _causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    real: Tensor,
    *,
    phi: Function = _phi,
    scores: Function | None = None,
    strict: bool = False,
    mask: bool = True,
    in_z: bool = False,
    inverted: bool = False,
    divided: bool = True,
    own: bool = False,
    everywhere: bool = False,
    counted: bool = False,
) -> Tensor:
    """By the table; each option is one of the usual mistakes."""
    fq, fk = phi(q), phi(k)
    T = q.shape[1]
    seen = torch.ones(T, T, dtype=torch.bool).tril(-1 if strict else 0)
    if everywhere:
        seen = torch.ones_like(seen)
    table = scores(q @ k.mT) if scores else fq @ fk.mT
    table = table.masked_fill(~seen, 0.0)
    there = (~real if inverted else real)[:, None, :] if mask else torch.ones_like(real)[:, None, :]
    upper = table * there
    lower = table if in_z else upper
    z = lower.sum(-1, keepdim=True)
    if own:  # old keys meet their own queries
        products = (fq * fk).sum(-1)
        z = (products if in_z else products * there[:, 0]).cumsum(1)[..., None]
    if counted:
        z = (seen & there).sum(-1, keepdim=True).to(q.dtype)
    sums = upper @ v
    if not divided:
        return sums
    return torch.where(z != 0, sums / z, torch.zeros_like(sums))


def _drawn(N: int, T: int, D: int, Dv: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    shape = (N, T)
    return (
        normal(*shape, D, seed=seed),
        normal(*shape, D, seed=seed + 1),
        normal(*shape, Dv, seed=seed + 2),
    )


def _all_real(N: int, T: int) -> Tensor:
    return torch.ones(N, T, dtype=torch.bool)


_REAL = torch.tensor([[True, True, False, True, False], [False, False, True, True, True]])
_PADDED = case(*_drawn(2, 5, 3, 4, seed=21), _REAL, name="padded tokens in both sequences")
_WHOLE = tuple(
    case(*_drawn(*sizes, seed=24), _all_real(*sizes[:2]), name=f"N, T, D, Dv = {sizes}, all real")
    for sizes in ((2, 5, 3, 4), (3, 3, 2, 2), (1, 4, 4, 1))
)

_repaired = partial(
    agrees,
    _causal,
    probes=[_PADDED],
    hint="Set all values to 1: then every output must be 1",
    mistakes={
        "Padding has left the values and is still in z: φ(0) is 1": partial(_causal, in_z=True),
        "The mask is not used": partial(_causal, mask=False),
        "The mask is the wrong way round: True = a real token": partial(_causal, inverted=True),
        "z sums the products of each token with itself: all keys so far must meet today's query": (
            partial(_causal, own=True)
        ),
        "z sums the products of each token with itself, and padding is still in it": (
            partial(_causal, own=True, in_z=True)
        ),
        "A token must see itself as well": partial(_causal, strict=True),
        "Every token sees the whole sequence: the sums stop at t": (
            partial(_causal, everywhere=True)
        ),
        "This is not divided": partial(_causal, divided=False),
        "Divided by the number of tokens; φ(q)·z is wanted": partial(_causal, counted=True),
        "φ(0) is 1: a key made zero still counts in z": (
            lambda q, k, v, real: _causal(
                q, k * real[..., None], v * real[..., None], torch.ones_like(real)
            )
        ),
        "This is softmax attention; the map is elu + 1": (
            lambda q, k, v, real: _causal(q, k, v, real, scores=torch.exp)
        ),
        "The map is elu + 1; this is relu": partial(_causal, phi=torch.relu),
        "The map is elu + 1; this is softplus": partial(_causal, phi=functional.softplus),
        "The map is elu + 1; this is elu": partial(_causal, phi=functional.elu),
        "The map is elu + 1; this is exp": partial(_causal, phi=torch.exp),
    },
)


def _alone(function: Function) -> str | None:
    q, k, v, real = (*_drawn(3, 4, 2, 5, seed=27), _all_real(3, 4))
    other = [x.clone() for x in (q, k, v)]
    for x in other:
        x[0] += 1.0
    before = call(function, q, k, v, real, shape=(3, 4, 5), finite=False)
    after = call(function, *other, real, shape=(3, 4, 5), finite=False)
    if differs(after[1:], before[1:], atol=1e-9):
        return "changing sequence 0 changes sequence 1. Along which axis are the sums taken?"
    return None


def _past(function: Function) -> str | None:
    q, k, v = _drawn(2, 6, 3, 4, seed=33)
    real = _all_real(2, 6)
    return sees_future(lambda x: _of_keys(function, q, x, v, real), k, at=3) or sees_future(
        lambda x: _of_keys(function, q, k, x, real), v, at=3
    )


def _of_keys(function: Function, q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Tensor:
    return call(function, q, k, v, real, shape=v.shape, finite=False)


def _far_below(function: Function) -> str | None:
    q, k, v = _drawn(2, 4, 3, 2, seed=36)
    k = (k - 25).float()
    real = _all_real(2, 4)
    got = call(function, q.float(), k, v.float(), real, shape=(2, 4, 2), finite=False)
    wrong = differs(got.float(), _causal(q.float().double(), k.double(), v, real), atol=1e-4)
    if not wrong:
        return None
    if bool(got.isnan().any()):
        hint = "elu(x) + 1 is 0 there, and 0/0 is NaN: which form of the map does not subtract?"
    elif not bool(got.any()):
        hint = "All zeros: elu(x) + 1 is 0 there. Which form of the map does not subtract?"
    else:
        hint = "Which form of the map keeps its digits below 0?"
    return sentence("keys about −25, in float32", wrong, hint=hint)


REPAIR = Exercise(
    "repair",
    {
        "shape": shaped(_causal, *_WHOLE),
        "each sequence alone": _alone,
        "no future": _past,
        "values": _repaired(*_WHOLE),
        "padding": _repaired(
            _PADDED,
            hint="Padded tokens leave the register and z; before the first real one stand zeros",
        ),
        "small sums": _repaired(
            case(
                *(x - 7 * (place < 2) for place, x in enumerate(_drawn(2, 4, 3, 2, seed=39))),
                _all_real(2, 4),
                name="queries and keys about −7",
            ),
            hint="Nothing may be added below the line: no small number is small enough",
        ),
        "far below zero": _far_below,
    },
)

# factorise(A [T, S]) → Q [T, C], K [S, C]: Q Kᵀ, each row over its sum, is A, with the least C


def _mixtures(T: int, S: int, count: int, seed: int) -> Tensor:
    """Weights [T, S] whose rows are mixtures of ``count`` distributions, unequal ones."""
    shares, kinds = normal(T, count, seed=seed).exp(), normal(count, S, seed=seed + 1).exp()
    A = shares @ kinds
    return A / A.sum(-1, keepdim=True)


_TABLES = (
    case(_mixtures(7, 5, 3, seed=71), name="7 rows, mixtures of 3"),
    case(_mixtures(4, 6, 2, seed=73), name="4 rows, mixtures of 2"),
    case(torch.full((6, 4), 0.25).double(), name="a plain average"),
    case(normal(6, 6, seed=75).softmax(-1), name="softmax of random scores"),
)


def _factors(function: Function, A: Tensor) -> tuple[Tensor, Tensor]:
    answer = answer_of(function, A)
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise Wrong("expected two tensors: return Q, K")
    Q, K = (as_tensor(x, name=name).double() for x, name in zip(answer, "QK", strict=True))
    T, S = A.shape
    fits = Q.ndim == K.ndim == 2 and Q.shape[1] == K.shape[1] > 0
    if not fits or Q.shape[0] != T or K.shape[0] != S:
        came = f"Q {list(Q.shape)} and K {list(K.shape)}"
        exchanged = fits and Q.shape[0] == S and K.shape[0] == T
        turned = Q.ndim == K.ndim == 2 and K.shape[1] == S and Q.shape[1] == K.shape[0]
        hint = "K comes before Q" if exchanged else "K is turned: a row for each key" * turned
        wrong = f"A is [{T}, {S}]: expected Q [{T}, C] and K [{S}, C], got {came}"
        raise Wrong(sentence(wrong, hint=hint) or wrong)
    return Q, K


def _weights_of(products: Tensor) -> Tensor:
    return products / products.sum(-1, keepdim=True)


def _by_svd(A: Tensor, power: int) -> Tensor:
    """The weights of U s^power Vᵀ, as one gets them who forgets s or takes it twice."""
    U, s, V = torch.linalg.svd(A, full_matrices=False)
    C = int(torch.linalg.matrix_rank(A))
    return _weights_of(U[:, :C] * s[:C] ** power @ V[:C])


def _has_shapes(function: Function) -> None:
    for one in _TABLES:
        _factors(function, *one.arguments)


def _has_weights(function: Function) -> str | None:
    for one in _TABLES:
        (A,) = one.arguments
        Q, K = _factors(function, A)
        products = Q @ K.mT
        wrong = differs(_weights_of(products), A)
        if not wrong:
            continue
        hint = ""
        if not differs(products, A.log(), atol=1e-4):
            hint = "Q Kᵀ is the logarithm of A; here no exponential is taken of a product"
        elif not differs(_weights_of(products), _by_svd(A, 0), atol=1e-4):
            hint = "The singular values are missing: A = U diag(s) Vᵀ"
        elif not differs(_weights_of(products), _by_svd(A, 2), atol=1e-4):
            hint = "The singular values are in both factors: they count once"
        elif Q.shape[1] < int(torch.linalg.matrix_rank(A)):
            hint = f"With C = {Q.shape[1]} this table cannot be had"
        return sentence(one.name, "Q Kᵀ, each row over its sum", wrong, hint=hint)
    return None


def _has_few(function: Function) -> str | None:
    for one in _TABLES:
        (A,) = one.arguments
        C = _factors(function, A)[0].shape[1]
        if int(torch.linalg.matrix_rank(A)) < C:
            return sentence(
                one.name,
                f"C = {C} features give the table, but fewer do",
                hint="How many rows of A are independent? A number such as 1e-17 counts as 0",
            )
    return None


FACTORISE = Exercise(
    "factorise",
    {"shape": _has_shapes, "weights": _has_weights, "as few as possible": _has_few},
)

EXERCISES = (CONFUSE, REPAIR, FACTORISE)
