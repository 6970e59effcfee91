"""Checks for the exercises of notebook 01: a leak, a masked softmax, scores made by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from course.averaging import mean_matrix, prefix_mean
from course.checks import Exercise
from course.checks.properties import agrees, case, counts, eighths, normal, shaped

Model = Callable[[Tensor], Tensor]  # [T, E] → [T, E]

# look_ahead(model, x): how many positions ahead the model looks, 0 if nowhere


def _norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=0.0)


def _centred(x: Tensor) -> Tensor:
    return prefix_mean(x - x.mean(-2, keepdim=True))


def _shifted(x: Tensor, *, by: int) -> Tensor:
    """The mask begins ``by`` positions too late."""
    A = torch.ones(len(x), len(x), dtype=x.dtype).tril(by)
    return A / A.sum(-1, keepdim=True) @ x


def _with_a_hole(x: Tensor, *, weight: float = 0.2) -> Tensor:
    """The mask has one hole: position 3 looks at position 6, both counted from 1."""
    A = mean_matrix(len(x), dtype=x.dtype)
    A[2, 5] = weight
    return A @ x


#: Three programs for notebook 01: each says that it gives means of the words so far.
SUSPECTS: Mapping[str, Model] = {
    "A": lambda x: prefix_mean(_norm(x)),
    "B": _centred,
    "C": partial(_shifted, by=1),
}


def _look_ahead(
    model: Model,
    x: Tensor,
    *,
    change: Callable[[Tensor], Tensor] = lambda word: word + normal(*word.shape, seed=1),
    words: slice = slice(None),
    visible: float = 1e-6,
) -> int:
    before, furthest = model(x), 0
    for j in range(len(x))[words]:
        changed = x.clone()
        changed[j] = change(x[j])
        moved = ~((model(changed) - before).abs().amax(-1) <= visible)
        furthest = max([furthest, *(j - moved[:j].nonzero()[:, 0]).tolist()])
    return furthest


def _text(T: int, seed: int) -> Tensor:
    return 2 * normal(T, 5, seed=seed)


_hole = case(_with_a_hole, _text(9, 3), name="a mask with one hole")
_normed = case(
    lambda x: _shifted(_norm(x), by=2), _text(8, 4), name="each word normalised, then a leak"
)
_faint = case(partial(_with_a_hole, weight=1e-3), _text(7, 5), name="a leak of a thousandth")
_far = case(_centred, _text(7, 6), name="the mean of the whole text is taken off")
_clean = case(prefix_mean, _text(6, 2), name="the plain mean")
_clean_norm = case(lambda x: prefix_mean(_norm(x)), _text(6, 7), name="each word normalised")
_distances = partial(
    counts,
    _look_ahead,
    probes=[_hole, _normed, _faint, _far, _clean, _clean_norm],
    mistakes={
        "The same number added to every coordinate is invisible to a model that normalises each "
        "word: change the word at random": partial(_look_ahead, change=lambda word: word + 1),
        "A word made longer is the same word for a model that normalises each word: change it at "
        "random": partial(_look_ahead, change=lambda word: 2 * word),
        "That is T − 1 for every model. Only outputs before the changed word count. And 0 times "
        "NaN is NaN: change the word to a finite one": lambda model, x: len(x) - 1,
        "Not every word was changed": partial(_look_ahead, words=slice(-1, None)),
        "A small change is a change: compare with rounding, not with the size of the words": (
            partial(_look_ahead, visible=0.01)
        ),
    },
)

LOOK_AHEAD = Exercise(
    "look_ahead",
    {
        "no leak": _distances(
            _clean,
            _clean_norm,
            case(prefix_mean, _text(1, 8), name="one word"),
            rule="it looks at no later word",
        ),
        "one ahead": _distances(
            case(partial(_shifted, by=1), _text(7, 9), name="the mask begins one too late")
        ),
        "how far": _distances(_far, rule="the first output moves with the last word"),
        "every word": _distances(_hole, rule="position 3 looks at position 6"),
        "any change": _distances(_normed, rule="every output looks two ahead"),
        "small leaks": _distances(_faint, rule="position 3 looks at position 6"),
    },
)

# masked_softmax(scores, mask): weights [T, S]; a row that may see nothing gives zeros


def _masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return torch.where(mask.any(-1, keepdim=True), weights, 0.0)


_MASK = torch.ones(5, 7, dtype=torch.bool).tril(2)
_MASK[3] = torch.tensor([1, 0, 0, 1, 0, 1, 0], dtype=torch.bool)
_BLIND = _MASK.clone()
_BLIND[1] = False
# Below any finite constant that could stand for −∞. (float32 holds each of these scores exactly.)
_FAR = tuple(
    case(spread * eighths(5, 7, seed=6) - shift, _MASK, name=f"scores near −{shift:.2g}")
    for shift, spread in ((2.0**17, 1), (2.0**40, 0), (2.0**100, 0), (2.0**127, 0))
)
_ORDINARY = case(2 * normal(5, 7, seed=6), _MASK, name="ordinary scores")

_weights = partial(
    agrees,
    _masked_softmax,
    probes=[case(2 * normal(5, 7, seed=9), _MASK)],
    mistakes={
        "The mask is the wrong way round: True = may look": (
            lambda scores, mask: _masked_softmax(scores, ~mask)
        ),
        "The softmax runs over the queries; it belongs on the last axis": (
            lambda scores, mask: _masked_softmax(scores.T, mask.T).T
        ),
        "The mask comes after the softmax, so what it takes away is missing in the sum": (
            lambda scores, mask: scores.softmax(-1) * mask
        ),
        "A score times 0 is 0, and e⁰ is 1: a hidden score must be −∞": (
            lambda scores, mask: (scores * mask).softmax(-1)
        ),
        "The mask is not used": lambda scores, mask: scores.softmax(-1),
    },
)

MASKED_SOFTMAX = Exercise(
    "masked_softmax",
    {
        "shape": shaped(_masked_softmax, case(normal(5, 7, seed=4), _MASK)),
        "hidden positions": _weights(
            _ORDINARY,
            *_FAR,
            part=lambda weights, scores, mask: weights.masked_fill(mask, 0.0),
            atol=0.0,
            rule="a forbidden position must get exactly 0",
            hint="Is the constant −∞?",
        ),
        "rows sum to 1": _weights(
            case(2 * normal(5, 7, seed=5), _MASK),
            part=lambda weights, *_: weights.sum(-1),
            rule="every row that may see something must sum to 1",
        ),
        "empty row": _weights(
            case(normal(5, 7, seed=7), _BLIND),
            part=lambda weights, *_: weights[1],
            atol=0.0,
            rule="a row that may see nothing must be zeros",
            hint="Softmax makes 0/0, which is NaN, where every score is −∞",
        ),
        "large scores": _weights(
            case(1e4 * eighths(5, 7, seed=8), _MASK, name="scores around 10,000"),
            *_FAR,
            hint="softmax takes the row's maximum off before exp; and what is hidden needs "
            "−∞, for no number is below all scores",
        ),
        "values": _weights(
            case(2 * normal(5, 7, seed=9), _MASK),
            case(2 * normal(5, 7, seed=10), _BLIND),
            rule="not the softmax of the allowed scores",
        ),
    },
)

# scores_by_hand(T): two matrices of scores [T, T]; the check hides the future


def _weights_of(scores: Tensor) -> Tensor:
    future = torch.ones_like(scores).triu(1).bool()
    return scores.double().masked_fill(future, -torch.inf).softmax(-1)


def _fading(T: int, *, of: Callable[[Tensor], Tensor] = lambda i: i * math.log(2)) -> Tensor:
    return of(torch.arange(T, dtype=torch.float64)).expand(T, T)


def _previous(T: int, *, score: float = 50.0, back: int = 1) -> Tensor:
    return score * torch.ones(T, T, dtype=torch.float64).tril(-back).triu(-back)


def _scores_by_hand(T: int) -> tuple[Tensor, Tensor]:
    return _fading(T), _previous(T)


_both = ("fading", "previous")
_sizes = case(7), case(12), case(2)
_fades = partial(
    agrees,
    _scores_by_hand,
    names=_both,
    joint=lambda fading, previous: _weights_of(fading),
    mistakes={
        "These are the weights themselves. The softmax takes exp of a score, so a score is the "
        "logarithm of a weight": lambda T: (_fading(T, of=lambda i: 2**i), _previous(T)),
        "Each word is e times as heavy as the one before it, not twice: e to which power is 2?": (
            lambda T: (_fading(T, of=lambda i: i), _previous(T))
        ),
        "The older word gets more: the other way round": (
            lambda T: (_fading(T, of=lambda i: -i * math.log(2)), _previous(T))
        ),
        "All scores of a row are equal: this is the mean": (
            lambda T: (torch.zeros(T, T), _previous(T))
        ),
    },
)
_copies = partial(
    agrees,
    _scores_by_hand,
    names=_both,
    joint=lambda fading, previous: _weights_of(previous),
    atol=1e-3,
    mistakes={
        "A score of 1 is only e times as heavy as a score of 0: take a much larger one": (
            lambda T: (_fading(T), _previous(T, score=1.0))
        ),
        "Each row copies its own word: one back": (lambda T: (_fading(T), _previous(T, back=0))),
        "That is the word after, and the mask hides it: one back": (
            lambda T: (_fading(T), _previous(T, back=-1))
        ),
        "This looks two words back": lambda T: (_fading(T), _previous(T, back=2)),
    },
)

SCORES_BY_HAND = Exercise(
    "scores_by_hand",
    {
        "shapes": shaped(_scores_by_hand, case(5), case(1), names=_both),
        "fading": _fades(*_sizes, rule="each word must get half the weight of the word after it"),
        "first row": _copies(
            *_sizes,
            joint=lambda fading, previous: _weights_of(previous)[0],
            mistakes=None,
            rule="row 1 of previous has only itself to look at",
            hint="If the one score that it may use is −∞, it is 0/0",
        ),
        "previous": _copies(
            *_sizes,
            rule="each other row must give the word before it at least 0.999",
            hint="The other scores must lie far below that of the word before",
        ),
    },
)

EXERCISES = (LOOK_AHEAD, MASKED_SOFTMAX, SCORES_BY_HAND)
