"""Checks for the exercises of notebook 01: a mean without a loop, masked rows, perplexity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course.averaging import prefix_mean
from course.checks import Exercise, call, differs, sees_future

Function = Callable[..., Any]


def _normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# running_mean(x): x [T, E] → [T, E], row t the mean of rows 0 … t


def _mean_shape(function: Function) -> str | None:
    for T, E in ((7, 3), (1, 5), (4, 4)):
        call(function, _normal(T, E, seed=1), shape=(T, E))
    return None


def _mean_causal(function: Function) -> str | None:
    return sees_future(function, _normal(9, 4, seed=2), at=5)


def _mean_first_row(function: Function) -> str | None:
    x = _normal(6, 3, seed=3)
    wrong = differs(call(function, x)[0], x[0])
    if wrong is None:
        return None
    return f"row 0 must be x[0], the mean of one row: {wrong}. Does row t count in its own mean?"


def _mean_of_ones(function: Function) -> str | None:
    got = call(function, torch.ones(8, 2, dtype=torch.float64))
    wrong = differs(got, torch.ones(8, 2))
    return wrong and f"the mean of ones is one: {wrong}. Row t has t + 1 rows to divide by"


def _mean_values(function: Function) -> str | None:
    for T, E in ((8, 5), (33, 2)):
        x = _normal(T, E, seed=T)
        wrong = differs(call(function, x), prefix_mean(x, form="loop"))
        if wrong:
            return f"not the mean of the rows so far: {wrong}"
    return None


# masked_softmax(scores, mask): weights [T, S]; a row that may see nothing gives zeros


def _some_mask() -> Tensor:
    mask = torch.ones(5, 7, dtype=torch.bool).tril(2)
    mask[3] = torch.tensor([1, 0, 0, 1, 0, 1, 0], dtype=torch.bool)
    return mask


def _masked_shape(function: Function) -> str | None:
    call(function, _normal(5, 7, seed=4), _some_mask(), shape=(5, 7))
    return None


def _masked_rows(function: Function) -> str | None:
    rows = call(function, 2 * _normal(5, 7, seed=5), _some_mask()).sum(-1)
    wrong = differs(rows, torch.ones(5))
    return wrong and f"every row that may see something must sum to 1: {wrong}"


def _masked_hidden(function: Function) -> str | None:
    mask = _some_mask()
    for shift, what in ((0.0, "ordinary scores"), (-1.1e5, "scores near −1.1e5")):
        weights = call(function, 2 * _normal(5, 7, seed=6) + shift, mask)
        leak = weights.masked_fill(mask, 0.0).abs().amax().item()
        if leak > 0:
            return f"a forbidden place got weight {leak:.3g} with {what}; is the constant −∞?"
    return None


def _masked_empty(function: Function) -> str | None:
    mask = _some_mask()
    mask[1] = False
    row = call(function, _normal(5, 7, seed=7), mask, finite=False)[1]
    if bool(row.isnan().any()):
        return "a row that may see nothing gives NaN (0/0), expected zeros"
    if bool((row != 0).any()):
        return f"a row that may see nothing looks at forbidden places (weight {row.max():.3g})"
    return None


def _masked_large(function: Function) -> str | None:
    scores = 1e4 * _normal(5, 7, seed=8)
    got = call(function, scores, _some_mask())
    wrong = differs(got, _softmax(scores, _some_mask()))
    return wrong and f"wrong for scores around 10,000: {wrong}. Is the row's maximum taken off?"


def _masked_values(function: Function) -> str | None:
    scores = 2 * _normal(5, 7, seed=9)
    got = call(function, scores, _some_mask())
    wrong = differs(got, _softmax(scores, _some_mask()))
    return wrong and f"not the softmax of the allowed scores: {wrong}"


def _softmax(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -torch.inf).softmax(-1)


# perplexity(logits, targets): logits [N, V], targets [N] → a number


def _perplexity_uniform(function: Function) -> str | None:
    targets = torch.arange(6) % 5
    for level in (0.0, 3.0):
        got = call(function, torch.full((6, 11), level, dtype=torch.float64), targets, shape=())
        if abs(got.item() - 11) > 1e-4:
            return (
                f"11 equally likely words must give 11, got {got.item():.4g} when every logit is "
                f"{level:g}"
            )
    return None


def _perplexity_certain(function: Function) -> str | None:
    targets = torch.tensor([2, 0, 3, 3])
    logits = 60.0 * torch.nn.functional.one_hot(targets, 5).double()
    got = call(function, logits, targets, shape=()).item()
    return None if abs(got - 1) < 1e-4 else f"a certain and right answer must give 1, got {got:.4g}"


def _perplexity_shift(function: Function) -> str | None:
    logits, targets = 2 * _normal(7, 4, seed=10), torch.arange(7) % 4
    one, two = call(function, logits, targets), call(function, logits + 100, targets)
    if abs((one - two).item()) < 1e-4:
        return None
    return "adding 100 to every logit changes the answer; logits need a log-softmax first"


def _perplexity_length(function: Function) -> str | None:
    logits, targets = 2 * _normal(7, 4, seed=11), torch.arange(7) % 4
    one = call(function, logits, targets)
    two = call(function, logits.repeat(3, 1), targets.repeat(3))
    if abs((one - two).item()) < 1e-4:
        return None
    return "the same text three times has another perplexity; the mean is over words, not a sum"


def _perplexity_values(function: Function) -> str | None:
    logits, targets = 2 * _normal(9, 5, seed=12), torch.arange(9) % 5
    expected = torch.nn.functional.cross_entropy(logits, targets).exp()
    wrong = differs(call(function, logits, targets, shape=()), expected, atol=1e-4)
    return wrong and f"{wrong}; take the mean first, then exp, and use natural logarithms"


EXERCISES = (
    Exercise(
        "running_mean",
        (
            ("shape", _mean_shape),
            ("causality", _mean_causal),
            ("first row", _mean_first_row),
            ("average", _mean_of_ones),
            ("values", _mean_values),
        ),
    ),
    Exercise(
        "masked_softmax",
        (
            ("shape", _masked_shape),
            ("hidden places", _masked_hidden),
            ("rows sum to 1", _masked_rows),
            ("empty row", _masked_empty),
            ("large scores", _masked_large),
            ("values", _masked_values),
        ),
    ),
    Exercise(
        "perplexity",
        (
            ("uniform", _perplexity_uniform),
            ("certain", _perplexity_certain),
            ("shift", _perplexity_shift),
            ("length", _perplexity_length),
            ("values", _perplexity_values),
        ),
    ),
)
