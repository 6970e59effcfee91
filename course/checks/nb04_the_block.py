"""Checks for the exercises of notebook 04: twins of a norm, bugs by behaviour, a fact by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from course.checks import Exercise
from course.checks.answers import Wrong, answer_of, kind_of
from course.checks.properties import Test, agrees, alike, case, normal, sentence, shaped

# twin(x, mean, spread): x [T, E] → another table that LayerNorm reads as x


def _norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=0.0)


def _twin(x: Tensor, mean: float, spread: float) -> Tensor:
    return mean + spread * _norm(x)


def _table(T: int, E: int, seed: int) -> Tensor:
    return 3 * normal(T, E, seed=seed) + normal(T, 1, seed=seed + 1)


def _one_changed(x: Tensor) -> Tensor:
    changed = x.clone()
    changed[2] += normal(x.shape[-1], seed=5)
    return changed


_twins = partial(
    agrees,
    _twin,
    probes=[case(_table(6, 5, seed=2), 2.0, 3.0)],
    mistakes={
        "The spread divides by E, not by E − 1: torch.std does the other unless one asks": (
            lambda x, mean, spread: (
                mean + spread * (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)
            )
        ),
        "This is the mirror image of x: a negative factor turns every direction round": (
            lambda x, mean, spread: mean - spread * _norm(x)
        ),
        "The mean of x itself is still in it: take it off before the new one is added": (
            lambda x, mean, spread: mean + spread * x / x.std(-1, keepdim=True, correction=0)
        ),
        "spread is a standard deviation; its root was taken": (
            lambda x, mean, spread: mean + spread**0.5 * _norm(x)
        ),
        "spread is a standard deviation as it stands; this squares it": (
            lambda x, mean, spread: mean + spread**2 * _norm(x)
        ),
        "The new mean was multiplied by the spread too: scale first, shift after": (
            lambda x, mean, spread: spread * (_norm(x) + mean)
        ),
        "The mean is right, and the spread is still that of x": (
            lambda x, mean, spread: x - x.mean(-1, keepdim=True) + mean
        ),
        "This is x multiplied; its own spread was not divided out": (
            lambda x, mean, spread: mean + spread * (x - x.mean(-1, keepdim=True))
        ),
    },
)

TWIN = Exercise(
    "twin",
    {
        "shape": shaped(_twin, case(_table(5, 4, seed=1), 1.0, 2.0)),
        "each token alone": alike(
            case(_table(4, 5, seed=4), 1.0, 2.0),
            case(_one_changed(_table(4, 5, seed=4)), 1.0, 2.0),
            part=lambda y, *_: torch.cat([y[:2], y[3:]]),
            atol=1e-9,
            rule="changing one token changes another",
            hint="Mean and spread are over the last axis alone",
        ),
        "mean": _twins(
            case(_table(6, 5, seed=2), 7.0, 3.0),
            part=lambda y, *_: y.mean(-1),
            rule="every token must have the mean that was asked for",
        ),
        "spread": _twins(
            case(_table(6, 5, seed=3), -2.0, 0.5),
            part=lambda y, *_: y.std(-1, correction=0),
            rule="every token must have the spread that was asked for",
        ),
        "the norm cannot tell": _twins(
            case(_table(6, 5, seed=6), 4.0, 2.0),
            case(_table(3, 8, seed=7), 0.0, 10.0),
            part=lambda y, *_: _norm(y),
            rule="LayerNorm must read y as it reads x",
        ),
        "values": _twins(
            case(_table(6, 5, seed=8), -3.0, 5.0), case(_table(2, 3, seed=9), 0.0, 1.0)
        ),
    },
)

# diagnose(block, x): the name of what is wrong with a block, from its behaviour alone

HEALTHY, NO_MASK, NO_RESIDUAL, POST_NORM, NO_NORM = NAMES = (
    "healthy",
    "no mask",
    "no residual",
    "post-norm",
    "no norm",
)
Block = Callable[[Tensor], Tensor]  # [T, E] → [T, E]


def _block(kind: str, E: int, seed: int) -> Block:
    """A block of width E with one head and a feed-forward part, and the bug ``kind`` in it."""
    W = [normal(E, E, seed=seed + i) / E**0.5 for i in range(4)]
    W_1, W_2 = normal(4 * E, E, seed=seed + 4), normal(E, 4 * E, seed=seed + 5) / (4 * E)

    def attend(x: Tensor) -> Tensor:
        q, k, v = (x @ m.to(x.dtype).T for m in W[:3])
        scores = q @ k.T / E**0.5
        if kind != NO_MASK:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        return scores.softmax(-1) @ v @ W[3].to(x.dtype).T

    def think(x: Tensor) -> Tensor:
        return torch.relu(x @ W_1.to(x.dtype).T) @ W_2.to(x.dtype).T

    def block(x: Tensor) -> Tensor:
        for part in (attend, think):
            if kind == POST_NORM:
                x = _norm(x + part(x))
            else:
                made = part(x if kind == NO_NORM else _norm(x))
                x = made if kind == NO_RESIDUAL else x + made
        return x

    return block


#: Five blocks for notebook 04. One is healthy, each other has another bug.
PATIENTS: Mapping[str, Block] = {
    name: _block(kind, 8, seed)
    for name, kind, seed in (
        ("A", POST_NORM, 10),
        ("B", HEALTHY, 20),
        ("C", NO_NORM, 30),
        ("D", NO_MASK, 40),
        ("E", NO_RESIDUAL, 50),
    )
}

_HINTS = {
    NO_MASK: "Change the last token at random: does an earlier row move? (The same number added "
    "to all coordinates is invisible to a norm)",
    NO_RESIDUAL: "Make x a million times larger. Where the stream goes on, so does its size",
    POST_NORM: "What mean and which spread have the rows that come out?",
    NO_NORM: "At a million times x, what a part adds is small beside x if it reads through a norm, "
    "and as large as x if not",
    HEALTHY: "It looks at no later token, and at a million times x it gives a million times x, "
    "nearly",
}


def _finds(*kinds: str) -> Test:
    """Blocks of these kinds, of several sizes, get their names."""

    def test(function: Callable[..., Any]) -> str | None:
        for kind in kinds:
            for T, E, seed in ((6, 8, 60), (3, 5, 70), (9, 12, 80)):
                said = answer_of(function, _block(kind, E, seed), 2 * normal(T, E, seed=seed + 9))
                if not isinstance(said, str):
                    raise Wrong(f"returns {kind_of(said)}, expected a name, such as “{kind}”")
                if said not in NAMES:
                    raise Wrong(f"returns “{said[:40]}”, expected one of {', '.join(NAMES)}")
                if said != kind:
                    rule = f"a block that is “{kind}” is called “{said}”"
                    return sentence(rule, hint=_HINTS[kind])
        return None

    return test


DIAGNOSE = Exercise("diagnose", {kind: _finds(kind) for kind in (*NAMES[1:], HEALTHY)})

# write_fact(W_1, b_1, W_2, name, fact, cosine): a feed-forward part with one unit more


def _write_fact(
    W_1: Tensor, b_1: Tensor, W_2: Tensor, name: Tensor, fact: Tensor, cosine: float
) -> tuple[Tensor, Tensor, Tensor]:
    key = name / (name @ name) / (1 - cosine)
    bias = torch.full_like(b_1[:1], -cosine / (1 - cosine))
    return torch.cat([W_1, key[None]]), torch.cat([b_1, bias]), torch.cat([W_2, fact[:, None]], 1)


def _wrong_fact(
    scale: Callable[[Tensor, float], Any],
    threshold: Callable[[float], float] = lambda c: -c / (1 - c),
) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """As above, with another factor of the name or another bias."""

    def write(W_1, b_1, W_2, name, fact, cosine):
        key, bias = name * scale(name, cosine), torch.full_like(b_1[:1], threshold(cosine))
        return (
            torch.cat([W_1, key[None]]),
            torch.cat([b_1, bias]),
            torch.cat([W_2, fact[:, None]], 1),
        )

    return write


def _part(N: int, E: int, F_: int, cosine: float, seed: int) -> tuple[Any, ...]:
    """A part of N units, and a name as long as a norm makes it."""
    name = _norm(normal(E, seed=seed))
    return (
        normal(N, E, seed=seed + 1),
        normal(N, seed=seed + 2),
        normal(F_, N, seed=seed + 3),
        name,
        2 * normal(F_, seed=seed + 4),
        cosine,
    )


def _at_cosine(name: Tensor, cosines: Tensor, seed: int) -> Tensor:
    """Vectors as long as ``name`` at these cosines to it."""
    others = normal(len(cosines), len(name), seed=seed)
    unit = name / name.norm()
    others = others - (others @ unit)[:, None] * unit
    others = others / others.norm(dim=-1, keepdim=True)
    return name.norm() * (cosines[:, None] * unit + (1 - cosines**2).sqrt()[:, None] * others)


def _more(W_1: Tensor, b_1: Tensor, W_2: Tensor, *old: Tensor, at: str) -> Tensor:
    """What the new part says more than the old one, at one kind of inputs."""
    old_1, old_b, old_2, name, _, cosine = old
    cosines = {
        "name": torch.ones(1, dtype=torch.float64),
        "near": torch.tensor([float(cosine), 0.98 * float(cosine)], dtype=torch.float64),
        "far": torch.linspace(-1, 0.7 * float(cosine), 7, dtype=torch.float64),
    }[at]
    x = _at_cosine(name.double(), cosines, seed=99)

    def part(W_1: Tensor, b_1: Tensor, W_2: Tensor) -> Tensor:
        return torch.relu(x @ W_1.double().T + b_1.double()) @ W_2.double().T

    return part(W_1, b_1, W_2) - part(old_1, old_b, old_2)


def _says(at: str, *cases: Any, rule: str, hint: str = "") -> Test:
    """What is added, at one kind of inputs, is that of the right answer."""

    def test(function: Callable[..., Any]) -> str | None:
        for one in cases:
            broken = agrees(
                _write_fact,
                one,
                names=("W_1", "b_1", "W_2"),
                joint=lambda *made, given=one.arguments: _more(*made, *given, at=at),
                rule=rule,
                hint=hint,
                mistakes=_FACT_MISTAKES,
                atol=1e-5,
            )(function)
            if broken:
                return broken
        return None

    return test


_FACT_MISTAKES: Mapping[str, Callable[..., Any]] = {
    "The name is not of length 1: what is name · name? Divide the key by it": _wrong_fact(
        lambda name, c: 1 / (1 - c)
    ),
    "The key was divided by the length of the name, and it takes the square of that": _wrong_fact(
        lambda name, c: 1 / name.norm() / (1 - c)
    ),
    "There is no threshold: whatever is a little like the name gets a part of the fact": (
        _wrong_fact(lambda name, c: 1 / (name @ name), lambda c: 0.0)
    ),
    "The threshold has the wrong sign": _wrong_fact(
        lambda name, c: 1 / (name @ name) / (1 - c), lambda c: c / (1 - c)
    ),
    "The own match is not 1: after the threshold is taken off, 1 − cosine is left": _wrong_fact(
        lambda name, c: 1 / (name @ name), lambda c: -c
    ),
    "The threshold stands at ½, and the argument cosine asks for another": _wrong_fact(
        lambda name, c: 2 / (name @ name), lambda c: -1.0
    ),
}
_FACTS = (
    case(*_part(5, 16, 4, 0.5, seed=11)),
    case(*_part(3, 24, 7, 0.8, seed=21), name="cosine = 0.8"),
    case(*_part(6, 12, 3, 0.3, seed=31), name="cosine = 0.3"),
)

WRITE_FACT = Exercise(
    "write_fact",
    {
        "one unit more": shaped(_write_fact, *_FACTS, names=("W_1", "b_1", "W_2")),
        "old units": agrees(
            _write_fact,
            *_FACTS,
            names=("W_1", "b_1", "W_2"),
            joint=lambda W_1, b_1, W_2: torch.cat([W_1[:-1].T, b_1[None, :-1], W_2[:, :-1]]),
            atol=1e-9,
            rule="the old units must stay as they are",
            hint="The new unit is the last row of W_1, entry of b_1 and column of W_2",
        ),
        "the name": _says("name", *_FACTS, rule="at the name, what is added must be the fact"),
        "strangers": _says(
            "far",
            *_FACTS,
            rule="far from the name nothing may be added",
            hint="What does relu(key · x + b) give at cosine 0 and below?",
        ),
        "near": _says(
            "near",
            *_FACTS,
            rule="up to the given cosine nothing may be added",
            hint="The match must be 0 at that cosine, and 1 at cosine 1: a straight line",
        ),
    },
)

EXERCISES = (TWIN, DIAGNOSE, WRITE_FACT)
