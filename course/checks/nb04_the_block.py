"""Checks for the exercises of notebook 04: LayerNorm, a pre-norm block, a memory by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from course.checks import Exercise
from course.checks.properties import agrees, alike, case, normal, shaped

# layer_norm(x, eps): x [..., E] → the same shape, each vector with mean 0 and variance 1

_EPS = 1e-5


def _layer_norm(x: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=eps)


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def _one_changed(x: Tensor) -> Tensor:
    changed = x.clone()
    changed[1, 2] += normal(x.shape[-1], seed=5)
    return changed


def _others(normed: Tensor, *_: Any) -> Tensor:
    return torch.cat([normed[0], normed[1, :2], normed[1, 3:]])


_norms = partial(
    agrees,
    _layer_norm,
    probes=[case(3 * normal(6, 5, seed=2) + 7, 0.5)],
    mistakes={
        "Divide by E, not by E − 1: the variance is the mean of the squares": (
            lambda x, eps: _centred(x) / (x.var(-1, keepdim=True) + eps).sqrt()
        ),
        "The mean is not taken off": lambda x, eps: F.rms_norm(x, x.shape[-1:], eps=eps),
        "This divides by the variance; its root is missing": (
            lambda x, eps: _centred(x) / (_centred(x).square().mean(-1, keepdim=True) + eps)
        ),
        "This is centred, and not yet divided by the deviation": lambda x, eps: _centred(x),
        "eps belongs under the root, beside the variance": (
            lambda x, eps: _centred(x) / (_centred(x).square().mean(-1, keepdim=True).sqrt() + eps)
        ),
        "eps is not used": lambda x, eps: _layer_norm(x, 0.0),
    },
)

LAYER_NORM = Exercise(
    "layer_norm",
    {
        "shape": shaped(
            _layer_norm,
            *(case(normal(*shape, seed=1), _EPS) for shape in ((7, 4), (2, 3, 5), (6,))),
        ),
        "each token alone": alike(
            case(normal(2, 4, 5, seed=4), _EPS),
            case(_one_changed(normal(2, 4, 5, seed=4)), _EPS),
            part=_others,
            atol=1e-9,
            rule="changing one token changes another",
            hint="Mean and variance are over the last axis alone",
        ),
        "mean": _norms(
            case(3 * normal(6, 5, seed=2) + 7, _EPS),
            part=lambda normed, *_: normed.mean(-1),
            rule="every vector must have mean 0",
        ),
        "variance": _norms(
            case(3 * normal(6, 5, seed=3) + 7, _EPS),
            part=lambda normed, *_: normed.square().mean(-1),
            atol=1e-3,
            rule="the mean of the squares must be 1",
        ),
        "eps": _norms(
            *(case(normal(5, 4, seed=6), eps, name=f"eps = {eps:g}") for eps in (0.5, 2.0)),
            hint="Is eps inside the square root?",
        ),
        "constant vector": _norms(
            case(torch.full((2, 4), 3.0, dtype=torch.float64), _EPS),
            rule="a constant vector must give zeros",
            hint="0/0 is NaN; eps is there to prevent it",
        ),
    },
)

# pre_norm_block(x, attend, think, norm_1, norm_2): x [T, E] → [T, E]

Part = Callable[[Tensor], Tensor]


def _block(x: Tensor, attend: Part, think: Part, norm_1: Part, norm_2: Part) -> Tensor:
    x = x + attend(norm_1(x))
    return x + think(norm_2(x))


def _post_norm(x: Tensor, attend: Part, think: Part, norm_1: Part, norm_2: Part) -> Tensor:
    x = norm_1(x + attend(x))
    return norm_2(x + think(x))


def _norm_on_the_stream(x: Tensor, attend: Part, think: Part, norm_1: Part, norm_2: Part) -> Tensor:
    x = norm_1(x)
    x = norm_2(x + attend(x))
    return x + think(x)


def _parts(T: int, E: int, seed: int) -> tuple[Part, ...]:
    """Four functions of a table that no two orders or wirings confuse."""
    weights = normal(T, T, seed=seed).tril()
    a, b, c = (normal(E, E, seed=seed + i) for i in (1, 2, 3))
    return (
        lambda x: weights.to(x.dtype) @ x @ a.to(x.dtype),
        lambda x: torch.tanh(x @ b.to(x.dtype)) @ c.to(x.dtype),
        lambda x: _layer_norm(x, _EPS),
        lambda x: 0.5 * _layer_norm(x, _EPS) + 0.1,
    )


def _with(
    T: int, E: int, seed: int, *, attend: Part | None = None, think: Part | None = None
) -> tuple[Any, ...]:
    """A stream and four parts, some of which may be replaced."""
    a, t, norm_1, norm_2 = _parts(T, E, seed + 1)
    return 4 * normal(T, E, seed=seed), attend or a, think or t, norm_1, norm_2


_blocks = partial(
    agrees,
    _block,
    probes=[case(*_with(6, 4, seed=15))],
    mistakes={
        "Nothing is added: the stream x must go on beside the parts": (
            lambda x, attend, think, norm_1, norm_2: think(norm_2(attend(norm_1(x))))
        ),
        "The stream itself is normalised; a norm stands before a part only": _norm_on_the_stream,
        "This is the post-norm block; the norms stand before the parts": _post_norm,
        "There are no norms; each part reads through its own": (
            lambda x, attend, think, *_: _block(x, attend, think, torch.clone, torch.clone)
        ),
        "The two norms are exchanged": lambda x, a, t, n1, n2: _block(x, a, t, n2, n1),
        "The second part reads through the first norm": (
            lambda x, a, t, n1, n2: _block(x, a, t, n1, n1)
        ),
        "The two parts are exchanged; attention comes first": (
            lambda x, a, t, n1, n2: _block(x, t, a, n2, n1)
        ),
        "The second part reads the old stream, not what the first has written": (
            lambda x, attend, think, norm_1, norm_2: x + attend(norm_1(x)) + think(norm_2(x))
        ),
        "What the first part wrote is lost: the second adds to the old stream": (
            lambda x, attend, think, norm_1, norm_2: x + think(norm_2(x + attend(norm_1(x))))
        ),
    },
)

PRE_NORM_BLOCK = Exercise(
    "pre_norm_block",
    {
        "shape": shaped(_block, case(*_with(5, 3, seed=7)), case(*_with(1, 4, seed=7))),
        "silent parts": _blocks(
            case(*_with(5, 3, seed=9, attend=torch.zeros_like, think=torch.zeros_like)),
            rule="two parts that say nothing must leave the stream as it is",
        ),
        "attention": _blocks(
            case(*_with(5, 3, seed=11, think=torch.zeros_like)),
            rule="with a silent feed-forward part",
            hint="Expected x + attend(norm_1(x))",
        ),
        "feed-forward": _blocks(
            case(*_with(5, 3, seed=13, attend=torch.zeros_like)),
            rule="with silent attention",
            hint="Expected x + think(norm_2(x))",
        ),
        "values": _blocks(
            case(*_with(6, 4, seed=15)),
            case(*_with(4, 7, seed=15)),
            hint="Does the second part read what the first has written?",
        ),
    },
)

# recall(x, names, facts): x [T, E], names [N, E], facts [N, F] → [T, F]


def _recall(x: Tensor, names: Tensor, facts: Tensor) -> Tensor:
    """For names and what stands at a right angle to them all; any threshold from ½ to 1 does it."""
    return torch.relu(2 * x @ names.T - 1) @ facts


def _memory(N: int, E: int, F: int, seed: int) -> tuple[Tensor, Tensor]:
    """Names of length 1 whose cosines reach down to −0.3 and up to 0.499, and facts."""
    basis = torch.linalg.qr(normal(E, E, seed=seed))[0][:N]
    names = [basis[0], 0.499 * basis[0] + (1 - 0.499**2) ** 0.5 * basis[1]]
    for i in range(2, N):
        tilted = basis[i] + 0.4 * basis[i - 1] * (i > 2) - 0.3 * basis[i - 2]
        names.append(tilted / tilted.norm())
    return torch.stack(names), 2 * normal(N, F, seed=seed + 1)


def _own_names(N: int, E: int, F: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    names, facts = _memory(N, E, F, seed)
    return names.flip(0), names, facts


def _strangers(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    names, facts = _memory(4, 9, 3, seed)
    return torch.linalg.svd(names)[2][4:], names, facts  # at a right angle to every name


def _mixed(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    strangers, names, facts = _strangers(seed)
    return torch.cat([names[2:3], strangers[:2], names[:1]]), names, facts


def _opposite(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    names, facts = _memory(4, 9, 3, seed)
    return -names[:1], names[:1], facts[:1]


_recalls = partial(
    agrees,
    _recall,
    probes=[case(normal(6, 9, seed=22), *_memory(4, 9, 3, seed=22))],
    mistakes={
        "There is no threshold: names that are a little alike answer, too": (
            lambda x, names, facts: torch.relu(x @ names.T) @ facts
        ),
        "The own match must be 1: after ½ is taken off, ½ is left": (
            lambda x, names, facts: torch.relu(x @ names.T - 0.5) @ facts
        ),
        "relu, not the absolute value: the opposite of a name is no name": (
            lambda x, names, facts: torch.relu(2 * (x @ names.T).abs() - 1) @ facts
        ),
        "The threshold has the wrong sign": (
            lambda x, names, facts: torch.relu(2 * x @ names.T + 1) @ facts
        ),
        "relu is missing: what lies below the threshold must count 0": (
            lambda x, names, facts: (2 * x @ names.T - 1) @ facts
        ),
        "Here x finds the nearest name, and a stranger has none": (
            lambda x, names, facts: facts[(x @ names.T).argmax(-1)]
        ),
    },
)

RECALL = Exercise(
    "recall",
    {
        "shape": shaped(_recall, case(normal(5, 9, seed=17), *_memory(4, 9, 3, seed=16))),
        "names": _recalls(
            case(*_own_names(4, 9, 3, seed=18)),
            case(*_own_names(6, 11, 8, seed=18)),
            rule="a name must return its fact",
            hint="Other names have cosines up to ½: is their match cut to 0, and the own "
            "match exactly 1?",
        ),
        "stranger": _recalls(
            case(*_strangers(seed=19)),
            rule="a stranger must get zeros",
            hint="What does the threshold do to cosine 0?",
        ),
        "opposite": _recalls(
            case(*_opposite(seed=20)), rule="the opposite of a name must get zeros"
        ),
        "rows": _recalls(
            case(*_mixed(seed=21)),
            rule="names and strangers together",
            hint="Every row is read alone",
        ),
    },
)

EXERCISES = (LAYER_NORM, PRE_NORM_BLOCK, RECALL)
