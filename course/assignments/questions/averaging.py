"""Assignment 1, after notebook 01: from an average to attention."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from course.assignments.question import Assignment, Draw, Parameters, Question
from course.checks import Test
from course.checks.properties import agrees, case, no_future, shaped


def parameters(draw: Draw) -> Parameters:
    """How much of a word's weight is left one word later, and the window of question 3."""
    return {
        "keep": draw.whole(55, 75) / 100,
        "window": draw.whole(3, 6),
        "boost": draw.choice([2.5, 3.0, 3.5, 4.5, 5.0]),
    }


# fading_mean(x): [T, E] → [T, E]


def _fading_mean(x: Tensor, keep: float) -> Tensor:
    age = torch.arange(len(x))[:, None] - torch.arange(len(x))
    weights = torch.where(age >= 0, keep ** age.double(), 0.0)
    return weights / weights.sum(-1, keepdim=True) @ x.double()


def _fading_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    keep = mine["keep"]
    T, E, longer = draw.sizes(3, 4, 11)
    truth = partial(_fading_mean, keep=keep)
    right = partial(
        agrees,
        truth,
        probes=[case(draw.normal(T, E))],
        mistakes={
            "This is the plain mean: the older a word, the less it counts": (
                lambda x: _fading_mean(x, 1.0)
            ),
            "The oldest word counts most: the powers run the wrong way": (
                lambda x: _fading_mean(x, 1 / keep)
            ),
            "The weights do not sum to 1: divide by their own sum, not by the number of words": (
                lambda x: _fading_mean(x, keep) * ((1 - keep ** _place(x)) / (1 - keep) / _place(x))
            ),
            "The weighted sum is not divided by the sum of the weights": (
                lambda x: _fading_mean(x, keep) * (1 - keep ** _place(x)) / (1 - keep)
            ),
            "new = keep · old + (1 − keep) · word begins from zero, so the first rows are too small": (
                lambda x: _fading_mean(x, keep) * (1 - keep ** _place(x))
            ),
            "Of each row the present word is missing": (
                lambda x: torch.cat([torch.zeros(1, x.shape[1]).double(), truth(x)[:-1]])
            ),
        },
    )
    return {
        "shape": shaped(truth, case(draw.normal(T, E))),
        "first word": right(
            case(draw.normal(1, E), name="one word"), rule="the mean of one word is the word"
        ),
        "values": right(case(draw.normal(T, E)), rule=f"with keep = {keep}"),
        "no future": no_future(draw.normal(T, E), at=T // 2),
        "weights sum to 1": right(
            case(torch.ones(longer, 2).double(), name="equal words"),
            rule="the mean of equal words is that word",
        ),
        "longer texts": right(case(draw.normal(60, 3), name="60 words")),
        "far back": right(
            case(draw.eighths(3000, 2), name="3,000 words"),
            hint="keep to the power of a few thousand is 0 in every dtype: 1/0 is ∞",
        ),
    }


def _place(x: Tensor) -> Tensor:
    return torch.arange(1, len(x) + 1).double()[:, None]


FADING_MEAN = Question(
    "fading-mean",
    "fading_mean",
    _fading_properties,
    visible=("shape", "first word", "values"),
    advice="Right for the short texts of the visible check. Try other lengths, also very long "
    "ones, and words that are all equal; change a later word and look at earlier rows.",
    wrong={
        "plain mean": (('mine["keep"]**age', "1.0**age"),),
        "powers the wrong way": (("**age", "**-age"),),
        "divided by T": (("weights.sum(-1, keepdim=True)", "len(x)"),),
        "not divided": (("weights / weights.sum(-1, keepdim=True)", "weights"),),
        "divided along the wrong axis": (("sum(-1,", "sum(0,"),),
        "future not hidden": (
            ("torch.where(age >= 0, mine", "(mine"),
            ("**age, 0.0)", "**age.abs())"),
        ),
        "present word missing": (("age >= 0", "age > 0"),),
        "recurrence from zero": """
def fading_mean(x):
    keep, mean, rows = mine["keep"], torch.zeros_like(x[0]), []
    for word in x:
        mean = keep * mean + (1 - keep) * word
        rows.append(mean)
    return torch.stack(rows)
""",
        "scaled powers": """
def fading_mean(x):
    powers = (1 / mine["keep"]) ** torch.arange(len(x)).double()[:, None]
    return (powers * x).cumsum(0) / powers.cumsum(0)
""",
        "softmax of the ages": """
def fading_mean(x):
    age = (torch.arange(len(x))[:, None] - torch.arange(len(x))).to(x.dtype)
    scores = (-age * mine["keep"]).masked_fill(age < 0, -torch.inf)
    return scores.softmax(-1) @ x
""",
        "another student's number": (('mine["keep"]', '(mine["keep"] + 0.05)'),),
        "last row only": """
def fading_mean(x):
    weights = mine["keep"] ** torch.arange(len(x) - 1, -1, -1).to(x.dtype)
    return (weights / weights.sum()) @ x
""",
        "changes x in place": """
def fading_mean(x):
    for t in range(1, len(x)):
        x[t] += mine["keep"] * x[t - 1]
    return x
""",
        "copies the input": "def fading_mean(x):\n    return x",
        "zeros of the right shape": "def fading_mean(x):\n    return torch.zeros_like(x)",
    },
)

# scores_for(weights): [T, T] → [T, T], the largest allowed score of a row is 0


def _scores_for(weights: Tensor) -> Tensor:
    past = torch.ones_like(weights).tril().bool()
    scores = weights.double().log().masked_fill(~past, -torch.inf)
    return scores - scores.amax(-1, keepdim=True)


def _weights(draw: Draw, T: int, hidden: float = 0.0) -> Tensor:
    """Row-stochastic, lower triangular; the share ``hidden`` of the earlier words gets 0."""
    scores = 2 * draw.normal(T, T)
    drop = (draw.normal(T, T).sigmoid() < hidden) & ~torch.eye(T, dtype=torch.bool)
    return scores.masked_fill(drop | torch.ones(T, T).triu(1).bool(), -torch.inf).softmax(-1)


def _as_weights(scores: Tensor, *_: Tensor) -> Tensor:
    return scores.double().softmax(-1)


def _scores_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    T, longer = draw.sizes(2, 4, 10)
    right = partial(
        agrees,
        _scores_for,
        probes=[case(_weights(draw, T))],
        mistakes={
            "These are the weights themselves: the softmax will take exp of them": (lambda w: w),
            "These are the logarithms of the weights. Which number can be added to a row without "
            "changing its softmax? The largest score is to be 0": lambda w: w.log(),
            "The largest score is 0 in each column, not in each row": (
                lambda w: w.log() - w.log().amax(0, keepdim=True)
            ),
            "The largest score of the whole matrix is 0, not that of each row": (
                lambda w: w.log() - w.log().max()
            ),
            "The sign is the wrong way round": lambda w: -_scores_for(w),
            "This is divided by the largest weight, and the logarithm is missing": (
                lambda w: w / w.amax(-1, keepdim=True)
            ),
        },
    )
    return {
        "shape": shaped(_scores_for, case(_weights(draw, T))),
        "softmax gives the weights": right(
            case(_weights(draw, T)), part=_as_weights, rule="softmax of the scores"
        ),
        "largest score is 0": right(case(_weights(draw, T)), rule="the largest of each row is 0"),
        "hidden words": right(
            case(_weights(draw, longer, 0.4), name="some earlier words have weight 0"),
            hint="The weight 0 needs the score −∞, and nothing else makes it",
        ),
        "small weights": right(
            case(
                (60 * draw.normal(T, T))
                .tril()
                .masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
                .softmax(-1),
                name="weights down to 1e-80",
            ),
            rtol=1e-9,
            hint="Is a small number added before the logarithm? It hides smaller weights",
        ),
    }


SCORES_FOR = Question(
    "scores-for-weights",
    "scores_for",
    _scores_properties,
    visible=("shape", "softmax gives the weights", "largest score is 0"),
    advice="Right for the weights of the visible check, where every earlier word counts. Which "
    "weights can a row have besides?",
    wrong={
        "the weights": "def scores_for(weights):\n    return weights",
        "logarithms only": (("scores - scores.amax(-1, keepdim=True)", "scores"),),
        "columns": (("amax(-1,", "amax(0,"),),
        "whole matrix": (("scores.amax(-1, keepdim=True)", "scores.max()"),),
        "sign": (("scores - scores.amax", "-scores - (-scores).amax"),),
        "base 2": (("weights.log()", "weights.log2()"),),
        "1e-9 added": (("weights.log()", "(weights + 1e-9).log()"),),
        "1e-30 added": (("weights.log()", "(weights + 1e-30).log()"),),
        "finite constant": """
def scores_for(weights):
    scores = weights.clamp_min(1e-300).log()
    return scores - scores.amax(-1, keepdim=True)
""",
        "no logarithm": "def scores_for(weights):\n    return weights - weights.amax(-1, keepdim=True)",
        "mean taken off": (("scores.amax(-1, keepdim=True)", "scores.mean(-1, keepdim=True)"),),
        "divided by the largest": (
            "def scores_for(weights):\n    return weights / weights.amax(-1, keepdim=True)"
        ),
        "diagonal is 0": (("scores.amax(-1, keepdim=True)", "scores.diagonal()[:, None]"),),
        "zeros": "def scores_for(weights):\n    return torch.zeros_like(weights)",
    },
)

ASSIGNMENT = Assignment(
    "averaging",
    "From an average to attention",
    (FADING_MEAN, SCORES_FOR),
    parameters,
)
