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
from course.checks.properties import agrees, all_of, case, counts, eighths, normal, shaped

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
    of: Callable[[list[int]], int] = max,
) -> int:
    before, furthest = model(x), 0
    for j in range(len(x))[words]:
        changed = x.clone()
        changed[j] = change(x[j])
        moved = ~((model(changed) - before).abs().amax(-1) <= visible)
        furthest = max(furthest, of([0, *(j - moved[:j].nonzero()[:, 0]).tolist()]))
    return furthest


def _text(T: int, seed: int) -> Tensor:
    return 2 * normal(T, 5, seed=seed)


_hole = case(_with_a_hole, _text(9, 3), name="a mask with one hole")
_normed = case(
    lambda x: _shifted(_norm(x), by=2), _text(8, 4), name="each word normalised, then a leak"
)
_faint = case(partial(_with_a_hole, weight=1e-3), _text(7, 5), name="a leak of a thousandth")
_far = case(_centred, _text(8, 6), name="the mean of the whole text is taken off")
_longer = case(
    lambda x: _shifted(F.normalize(x, dim=-1), by=2), _text(8, 11), name="each word made length 1"
)
_less = case(
    lambda x: _shifted(x - x.mean(-1, keepdim=True), by=2),
    _text(8, 12),
    name="each word's own mean taken off",
)
_narrow = case(
    lambda x: torch.cat([prefix_mean(x[:, :-1]), _shifted(x[:, -1:], by=2)], 1),
    _text(8, 13),
    name="a leak in the last coordinate alone",
)
_clean = case(prefix_mean, _text(6, 2), name="the plain mean")
_clean_norm = case(lambda x: prefix_mean(_norm(x)), _text(6, 7), name="each word normalised")
_distances = partial(
    counts,
    _look_ahead,
    probes=[_hole, _normed, _longer, _less, _narrow, _faint, _far, _clean, _clean_norm],
    mistakes={
        "This is 0 for every model: is the changed text really another one when it goes in?": (
            lambda model, x: 0
        ),
        "The same number added to every coordinate is invisible to a model that normalises each "
        "word: change the word at random": partial(_look_ahead, change=lambda word: word + 1),
        "A word made longer is the same word for a model that normalises each word: change it at "
        "random": partial(_look_ahead, change=lambda word: 2 * word),
        "A word of zeros has no direction, so that a model that normalises it makes NaN: change it "
        "at random": partial(_look_ahead, change=torch.zeros_like),
        "That is T − 1 for every model. Outputs behind a changed word move, as they should: only "
        "those before it count, and only one word may be another. And 0 times NaN is NaN: change "
        "the word to a finite one": lambda model, x: len(x) - 1,
        "Either all words are changed at once, or this is t − j, how far behind it outputs move: "
        "change one word, and look at the outputs before it": (
            lambda model, x: int(
                ((model(x + normal(*x.shape, seed=1)) - model(x)).abs().amax(-1) > 1e-6).sum() - 1
            )
        ),
        "Only the last word was changed": partial(_look_ahead, words=slice(-1, None)),
        "Not every word was changed": partial(_look_ahead, words=slice(0, None, 2)),
        "This is how many outputs move, not how far they look": (
            partial(_look_ahead, of=lambda far: len(far) - 1)
        ),
        "This is whether it looks ahead, not how far": (
            lambda model, x: int(_look_ahead(model, x) > 0)
        ),
        "This is one too many: j − t, from the output that moves to the changed word": (
            lambda model, x: _look_ahead(model, x) + 1
        ),
        "Of all distances the largest is wanted; this is the smallest, or the first one seen": (
            partial(_look_ahead, of=lambda far: min(far[1:], default=0))
        ),
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
        "any change": _distances(
            _normed,
            _longer,
            _less,
            _narrow,
            rule="every output looks two ahead",
            hint="Which change of a word could this model fail to see, or show in one number only?",
        ),
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
    for shift, spread in ((110_000.0, 1), (2.0**40, 0), (2.0**100, 0), (2.0**127, 0))
)
_FILLED = "Put −∞ in the place of the score: masked_fill. (0 · ∞ is NaN)"
_ENDLESS = "What is hidden needs −∞: no finite number is below all scores"
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
        "e⁰ is 1: what is hidden still counts in the sum": (
            lambda scores, mask: mask * (scores * mask).softmax(-1)
        ),
        "The weights are divided by the largest, not by their sum": (
            lambda scores, mask: (
                _masked_softmax(scores, mask) / _masked_softmax(scores, mask).amax(-1, keepdim=True)
            )
        ),
        "These are logarithms of the weights": lambda *a: _masked_softmax(*a).log(),
        "All rows together sum to 1; each one must": (
            lambda scores, mask: (
                (hidden := scores.masked_fill(~mask, -torch.inf))
                .flatten()
                .softmax(0)
                .view(*hidden.shape)
            )
        ),
        "The exponential is missing": (
            lambda scores, mask: (scores * mask) / (scores * mask).sum(-1, keepdim=True)
        ),
        "These rows see something, though not everything: any, not all": (
            lambda scores, mask: _masked_softmax(scores, mask) * mask.all(-1, keepdim=True)
        ),
        "exp is there, and the division by the sum is missing": (
            lambda scores, mask: scores.exp() * mask
        ),
        "The scores are not used: all allowed positions get the same": (
            lambda scores, mask: mask / mask.sum(-1, keepdim=True).double()
        ),
        "What is forbidden is hidden by a number that is too small: it must be −∞": (
            lambda scores, mask: scores.masked_fill(~mask, -5.0).softmax(-1)
        ),
    },
)

MASKED_SOFTMAX = Exercise(
    "masked_softmax",
    {
        "shape": shaped(_masked_softmax, case(normal(5, 7, seed=4), _MASK)),
        "hidden positions": all_of(
            *(
                _weights(
                    *cases,
                    part=lambda weights, scores, mask: weights.masked_fill(mask, 0.0),
                    atol=0.0,
                    rule="a forbidden position must get exactly 0",
                    hint=hint,
                )
                for cases, hint in (([_ORDINARY], _FILLED), (_FAR, _ENDLESS))
            )
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
            probes=[case(normal(5, 7, seed=7), _BLIND)],
            mistakes={
                "A finite constant makes the scores of this row equal, and softmax spreads it": (
                    lambda scores, mask: scores.masked_fill(~mask, -1e9).softmax(-1)
                ),
                "A constant that is added leaves the differences: this row is as without a mask": (
                    lambda scores, mask: (scores - 1e6 * ~mask).softmax(-1)
                ),
                "The exponential is missing": (
                    lambda scores, mask: (scores * mask) / (scores * mask).sum(-1, keepdim=True)
                ),
            },
        ),
        "large scores": all_of(
            _weights(
                case(1e4 * eighths(5, 7, seed=8), _MASK, name="scores around 10,000"),
                hint="softmax takes the row's maximum off before exp: the largest allowed score",
            ),
            _weights(*_FAR, hint=_ENDLESS),
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
_LONG = case(100, name="100 words")
_fades = partial(
    agrees,
    _scores_by_hand,
    names=_both,
    joint=lambda fading, previous: _weights_of(fading),
    mistakes={
        "These are the weights themselves. The softmax takes exp of a score, so a score is the "
        "logarithm of a weight": lambda T: (_fading(T, of=lambda i: 2**i), _previous(T)),
        "These are the weights already. The check takes the softmax; wanted are the scores, the "
        "logarithms of the weights": lambda T: (_weights_of(_fading(T)), _previous(T)),
        "The two are exchanged: fading first, then previous": (
            lambda T: (_previous(T), _fading(T))
        ),
        "The words before get a score for being near, and the word itself has none": (
            lambda T: (_fading(T).tril(-1), _previous(T))
        ),
        "Each word is e times as heavy as the one before it, not twice: e to which power is 2?": (
            lambda T: (_fading(T, of=lambda i: i), _previous(T))
        ),
        "The older word gets more: the other way round": (
            lambda T: (_fading(T, of=lambda i: -i * math.log(2)), _previous(T))
        ),
        "All scores of a row are equal: this is the mean. (Are rows and columns exchanged?)": (
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
        "The two are exchanged: fading first, then previous": (
            lambda T: (_previous(T), _fading(T))
        ),
    },
)
_ENOUGH = (
    "The other scores must lie far below that of the word before, and the further, the more "
    "words there are"
)


def _shares(fading: Tensor, previous: Tensor) -> Tensor:
    """Of the last row: the weight of each word as a share of that of the word after it."""
    logarithms = fading[-1].double().log_softmax(-1)
    return (logarithms[:-1] - logarithms[1:]).exp()


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
            hint=_ENOUGH,
        ),
        "long texts": all_of(
            _fades(
                _LONG,
                joint=_shares,
                rule="far back, too, each word must get half the weight of the word after it",
                hint="Is something added before a logarithm, or too large for its dtype?",
                mistakes=None,
            ),
            _copies(
                _LONG,
                joint=lambda fading, previous: _weights_of(previous)[-1],
                rule="the last row must give the word before it at least 0.999",
                hint=_ENOUGH,
                mistakes=None,
            ),
        ),
    },
)

EXERCISES = (LOOK_AHEAD, MASKED_SOFTMAX, SCORES_BY_HAND)
