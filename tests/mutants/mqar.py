"""Wrong recall tasks, which ``tests/test_mqar.py`` must refuse.

Each mutant has the public functions of ``course.tasks.mqar``; one of them makes, solves or scores
examples in a way that a benchmark of recall has been spoiled by, or might be.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course.tasks import mqar
from tests import test_mqar
from tests.mutants import Suite

CHECKS = {
    name.removeprefix("test_").replace("_", " "): test
    for name, test in vars(test_mqar).items()
    if name.startswith("test_") and list(inspect.signature(test).parameters) == ["m"]
}


def task(**changes: Any) -> Callable[[], Any]:
    """The module with other functions in the place of some."""
    public = {name: value for name, value in vars(mqar).items() if not name.startswith("_")}
    return lambda: types.SimpleNamespace(**(public | changes))


def made(change: Callable[..., tuple[Tensor, Tensor]]) -> Callable[[], Any]:
    """``make_mqar`` whose examples ``change(inputs, targets, options)`` spoils."""

    def make_mqar(n: int, **options: Any) -> tuple[Tensor, Tensor]:
        return change(*mqar.make_mqar(n, **options), options)

    return task(make_mqar=make_mqar)


def labels_late(inputs: Tensor, targets: Tensor, options: Any) -> tuple[Tensor, Tensor]:
    return inputs, targets.roll(1, 1)


def answer_hidden(inputs: Tensor, targets: Tensor, options: Any) -> tuple[Tensor, Tensor]:
    """As in Zoology: a filler stands where the value would, so the text contradicts its pair."""
    filler = mqar.vocabulary(options["vocab_size"]).fillers[0]
    return torch.where((targets != -100).roll(1, 1), filler, inputs), targets


def fillers_collide(inputs: Tensor, targets: Tensor, options: Any) -> tuple[Tensor, Tensor]:
    """Fillers are drawn from all tokens, so that a key returns with another successor."""
    generator = torch.Generator().manual_seed(int(options["seed"]) % 2**62)
    any_token = torch.randint(0, options["vocab_size"], inputs.shape, generator=generator)
    fillers = mqar.vocabulary(options["vocab_size"]).fillers
    return torch.where(inputs >= fillers.start, any_token, inputs), targets


def two_generators(inputs: Tensor, targets: Tensor, options: Any) -> tuple[Tensor, Tensor]:
    """Fillers come from a generator that nobody seeds."""
    fillers = mqar.vocabulary(options["vocab_size"]).fillers
    other = torch.randint(fillers.start, fillers.stop, inputs.shape)
    return torch.where(inputs >= fillers.start, other, inputs), targets


def seed_ignored(n: int, *, seed: int, **options: Any) -> tuple[Tensor, Tensor]:
    return mqar.make_mqar(n, seed=0, **options)


def keys_as_they_come(inputs: Tensor, targets: Tensor, options: Any) -> tuple[Tensor, Tensor]:
    """The keys are the first ones of the vocabulary, in order: nobody needs to read them."""
    drawn = inputs[:, 0 : 2 * options["n_pairs"] : 2]
    keys = len(mqar.vocabulary(options["vocab_size"]).keys)
    order = torch.zeros(len(inputs), keys, dtype=torch.int64)
    order.scatter_(1, drawn, torch.arange(options["n_pairs"]).expand_as(drawn))
    return torch.where(inputs < keys, order.gather(1, inputs.clamp(max=keys - 1)), inputs), targets


def one_filler(inputs: Tensor, targets: Tensor, options: Any) -> tuple[Tensor, Tensor]:
    return inputs.clamp(max=mqar.vocabulary(options["vocab_size"]).fillers[0]), targets


def values_all_different(n: int, **options: Any) -> tuple[Tensor, Tensor]:
    """Who has seen some answers can exclude them: better than chance without any pair."""
    inputs, targets = mqar.make_mqar(n, **options)
    words, rng = mqar.vocabulary(options["vocab_size"]), np.random.default_rng(options["seed"])
    keys = len(words.keys)
    of_key = torch.from_numpy(rng.permuted(np.tile(np.array(words.values), (n, 1)), axis=1))
    before = inputs.roll(1, 1)
    inputs = torch.where(before < keys, of_key.gather(1, before.clamp(max=keys - 1)), inputs)
    targets = targets.clone()
    asked = targets != -100
    targets[asked] = inputs.roll(-1, 1)[asked]
    return inputs, targets


def gaps(alpha: float | None = None, **more: Any) -> Callable[[], Any]:
    def make_mqar(n: int, **options: Any) -> tuple[Tensor, Tensor]:
        chosen = 1 + options.get("alpha", 0.01) if alpha is None else alpha
        return mqar.make_mqar(n, **(options | {"alpha": chosen}))

    return task(make_mqar=make_mqar, **more)


def in_order(inputs: Tensor, targets: Tensor, options: Any) -> tuple[Tensor, Tensor]:
    """Pairs are asked in the order in which they stood."""
    asked = targets != -100
    N, rows = options["n_pairs"], inputs.shape[0]
    inputs, targets = inputs.clone(), targets.clone()
    inputs[asked] = inputs[:, 0 : 2 * N : 2].flatten()
    inputs[asked.roll(1, 1)] = inputs[:, 1 : 2 * N : 2].flatten()
    targets[asked] = inputs[:, 1 : 2 * N : 2].reshape(rows * N)
    return inputs, targets


def first_place(inputs: Tensor) -> Tensor:
    """Of several earlier places the first counts."""
    T = inputs.shape[1]
    same = (inputs[:, :, None] == inputs[:, None, :]) & torch.ones(T, T).tril(-1).bool()
    place = same.int().argmax(-1)
    told = inputs.gather(1, (place + 1).clamp(max=T - 1))
    return told.masked_fill(~same.any(-1), -100)


def reads_the_answer(inputs: Tensor) -> Tensor:
    return inputs.roll(-1, 1)


def counts_no_targets(predicted: Tensor, targets: Tensor, among: Any = None) -> float:
    """−100 counts as a target that was missed."""
    right = predicted == targets
    return (right if among is None else right[among]).double().mean().item()


def told_by_token(inputs: Tensor, targets: Tensor) -> Tensor:
    """Asks whether the target stood before, behind whatever token."""
    T = inputs.shape[1]
    before = torch.ones(T, T).tril(0).bool()
    return ((targets[:, :, None] == inputs[:, None, :]) & before).any(-1) & (targets != -100)


MUTANTS = {
    "labels one place late": made(labels_late),
    "a filler instead of the answer": made(answer_hidden),
    "fillers repeat keys": made(fillers_collide),
    "two generators, one seeded": made(two_generators),
    "the seed is ignored": task(make_mqar=seed_ignored),
    "keys as they come": made(keys_as_they_come),
    "one filler": made(one_filler),
    "values never repeat": task(make_mqar=values_all_different),
    "gaps are uniform": gaps(1.0),
    "long gaps are likely": gaps(),
    "asked in the order of the text": made(in_order),
    "the rule follows the first place": task(solve=first_place),
    "the rule reads the answer": task(solve=reads_the_answer),
    "places without target count": task(accuracy=counts_no_targets),
    "told if the target stood anywhere": task(told_by_context=told_by_token),
}

SUITE = Suite("MQAR", task(), MUTANTS, CHECKS)
