"""Wrong repeated texts and scores of heads, which ``tests/test_induction.py`` must refuse."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course.tasks import induction
from course.tasks.induction import Repeats
from tests import test_induction
from tests.mutants import Suite

CHECKS = {
    name.removeprefix("test_").replace("_", " "): test
    for name, test in vars(test_induction).items()
    if name.startswith("test_") and list(inspect.signature(test).parameters) == ["m"]
}


def task(**changes: Any) -> Callable[[], Any]:
    """The module with other functions in the place of some."""
    public = {name: value for name, value in vars(induction).items() if not name.startswith("_")}
    return lambda: types.SimpleNamespace(**(public | changes))


def made(change: Callable[[Repeats], Repeats]) -> Callable[[], Any]:
    """``make_repeats`` whose rows ``change`` spoils."""
    return task(make_repeats=lambda n, **options: change(induction.make_repeats(n, **options)))


def one_period(n: int, *, shortest: int, longest: int, **options: Any) -> Repeats:
    """The same period for all rows: one layer that knows positions can do it."""
    return induction.make_repeats(n, shortest=shortest, longest=shortest, **options)


def seed_ignored(n: int, *, seed: int, **options: Any) -> Repeats:
    return induction.make_repeats(n, seed=0, **options)


def everything_asked(rows: Repeats) -> Repeats:
    """New tokens are targets as well."""
    following = rows.inputs.roll(-1, 1)
    return rows._replace(targets=torch.where(rows.targets == -100, following, rows.targets))


def asked_late(rows: Repeats) -> Repeats:
    """The first target stands one place after the first token that comes back."""
    targets = rows.targets.clone()
    targets[torch.arange(len(targets)), rows.period.clamp(max=targets.shape[1] - 1)] = -100
    return rows._replace(targets=targets)


def present_token(rows: Repeats) -> Repeats:
    """The target is the token itself."""
    return rows._replace(targets=torch.where(rows.targets == -100, -100, rows.inputs))


def first_place(inputs: Tensor) -> Tensor:
    """Of several earlier places the first counts."""
    T = inputs.shape[1]
    same = (inputs[:, :, None] == inputs[:, None, :]) & torch.ones(T, T).tril(-1).bool()
    told = inputs.gather(1, (same.int().argmax(-1) + 1).clamp(max=T - 1))
    return told.masked_fill(~same.any(-1), -100)


def counts_no_targets(logits: Tensor, targets: Tensor) -> float:
    return (logits.argmax(-1) == targets).double().mean().item()


def present_position(weights: Tensor) -> Tensor:
    return weights.diagonal(0, 2, 3).mean((0, 2))


def with_the_first(weights: Tensor) -> Tensor:
    """The first position has no previous token, but is counted as a miss."""
    return weights.diagonal(-1, 2, 3).sum(2).mean(0) / weights.shape[2]


def matches_the_token(weights: Tensor, inputs: Tensor) -> Tensor:
    """What looks at the same token itself, not at what followed it."""
    T = inputs.shape[1]
    same = (inputs[:, :, None] == inputs[:, None, :]) & torch.ones(T, T).tril(-1).bool()
    told = same.any(-1)
    return ((weights * same[:, None]).sum(-1) * told[:, None]).sum((0, 2)) / told.sum()


def over_all_positions(weights: Tensor, inputs: Tensor) -> Tensor:
    """Positions whose token is new count as misses."""
    told = (induction.solve(inputs) != -100).double().mean()
    return induction.induction_score(weights, inputs) * told


MUTANTS = {
    "one period for all rows": task(make_repeats=one_period),
    "the seed is ignored": task(make_repeats=seed_ignored),
    "new tokens are targets": made(everything_asked),
    "the first target is left out": made(asked_late),
    "the target is the token itself": made(present_token),
    "the rule follows the first place": task(solve=first_place),
    "places without target count": task(accuracy=counts_no_targets),
    "previous is the present position": task(previous_token_score=present_position),
    "previous counts the first position": task(previous_token_score=with_the_first),
    "matching looks at the token itself": task(induction_score=matches_the_token),
    "matching counts new tokens": task(induction_score=over_all_positions),
}

SUITE = Suite("induction", task(), MUTANTS, CHECKS)
