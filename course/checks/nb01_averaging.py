"""Checks for the exercises of notebook 01: a mean without a loop, masked rows, perplexity."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from course.averaging import prefix_mean
from course.checks import Exercise
from course.checks.properties import agrees, alike, case, eighths, no_future, normal, shaped

# running_mean(x): x [T, E] → [T, E], row t the mean of rows 0 … t, in the dtype of x


def _running_mean(x: Tensor) -> Tensor:
    return prefix_mean(x, form="loop")


def _counts(n: int) -> Tensor:
    return torch.arange(1, n + 1, dtype=torch.float64)


_means = partial(
    agrees,
    _running_mean,
    probes=[case(normal(8, 5, seed=8))],
    mistakes={
        "This runs along the features; the rows, axis 0, are the tokens": (
            lambda x: x.cumsum(1) / _counts(x.shape[1])
        ),
        "This is the sum: row t has t + 1 rows to divide by": lambda x: x.cumsum(0),
        "Every row is divided by T; row t has t + 1 rows to divide by": (
            lambda x: x.cumsum(0) / len(x)
        ),
        "Row t does not count in its own mean": (
            lambda x: (x.cumsum(0) - x) / (_counts(len(x)) - 1).clamp(min=1)[:, None]
        ),
    },
)

RUNNING_MEAN = Exercise(
    "running_mean",
    {
        "shape": shaped(
            _running_mean, *(case(normal(T, E, seed=1)) for T, E in ((7, 3), (1, 5), (4, 4)))
        ),
        "causality": no_future(normal(9, 4, seed=2), at=5),
        "first row": _means(
            case(normal(6, 3, seed=3)),
            part=lambda mean, x: mean[0],
            rule="row 0 must be x[0], the mean of one row",
            hint="Does row t count in its own mean?",
        ),
        "average": _means(
            case(torch.ones(8, 2, dtype=torch.float64)),
            rule="the mean of ones is one",
            hint="Row t has t + 1 rows to divide by",
        ),
        "values": _means(
            case(normal(8, 5, seed=8)),
            case(normal(33, 2, seed=33)),
            rule="not the mean of the rows so far",
            atol=1e-12,
            dtype=True,
        ),
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
    for shift, spread in ((2.0**17, 1), (2.0**40, 0), (2.0**100, 0))
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
        "hidden places": _weights(
            _ORDINARY,
            *_FAR,
            part=lambda weights, scores, mask: weights.masked_fill(mask, 0.0),
            atol=0.0,
            rule="a forbidden place must get exactly 0",
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

# perplexity(logits, targets): logits [N, V], targets [N] → a number


def _perplexity(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets).exp()


def _one_miss(N: int) -> tuple[Tensor, Tensor]:
    """N predictions, one of which gives its word a probability of e^−2000."""
    logits, targets = eighths(N, 5, seed=13), torch.arange(N) % 5
    logits[3, targets[3]] -= 2_000.0
    return logits, targets


_TEXT = 2 * normal(7, 4, seed=11), torch.arange(7) % 4
_CERTAIN = torch.tensor([2, 0, 3, 3])
_perplexities = partial(
    agrees,
    _perplexity,
    atol=1e-4,
    rtol=1e-4,
    probes=[case(2 * normal(9, 5, seed=12), torch.arange(9) % 5)],
    mistakes={
        "exp comes after the mean, not before it": (
            lambda logits, targets: F.cross_entropy(logits, targets, reduction="none").exp().mean()
        ),
        "This is exp of the sum; take the mean over the words": (
            lambda logits, targets: F.cross_entropy(logits, targets, reduction="sum").exp()
        ),
        "This is the mean surprise; exp of it is the perplexity": F.cross_entropy,
        "The minus is missing": lambda logits, targets: 1 / _perplexity(logits, targets),
        "Natural logarithms need exp, not 2^": (
            lambda logits, targets: 2 ** F.cross_entropy(logits, targets)
        ),
        "These are logits: they need a log-softmax first": (
            lambda logits, targets: (-logits[torch.arange(len(targets)), targets]).mean().exp()
        ),
    },
)

PERPLEXITY = Exercise(
    "perplexity",
    {
        "uniform": _perplexities(
            *(
                case(
                    torch.full((6, 11), level, dtype=torch.float64),
                    torch.arange(6) % 5,
                    name=f"every logit is {level:g}",
                )
                for level in (0.0, 3.0)
            ),
            rule="11 equally likely words must give 11",
        ),
        "certain": _perplexities(
            case(60.0 * F.one_hot(_CERTAIN, 5).double(), _CERTAIN),
            rule="a certain and right answer must give 1",
        ),
        "shift": alike(
            case(*_TEXT),
            case(_TEXT[0] + 100, _TEXT[1]),
            atol=1e-4,
            rule="adding 100 to every logit changes the answer",
            hint="Logits need a log-softmax first",
        ),
        "length": alike(
            case(*_TEXT),
            case(_TEXT[0].repeat(3, 1), _TEXT[1].repeat(3)),
            atol=1e-4,
            rule="the same text three times has another perplexity",
            hint="The mean is over words, not a sum",
        ),
        "values": _perplexities(
            case(2 * normal(9, 5, seed=12), torch.arange(9) % 5),
            case(*_one_miss(40), name="one word of 40 had the probability e^−2000"),
            hint="log_softmax never takes the logarithm of a rounded probability; "
            "the mean comes first, then exp, with natural logarithms",
        ),
    },
)

EXERCISES = (RUNNING_MEAN, MASKED_SOFTMAX, PERPLEXITY)
