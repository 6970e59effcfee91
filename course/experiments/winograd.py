"""Runs on the Winograd probes: one model from several seeds, scored on pairs held out in one order.

A config names the version of the task (or the reader's own words), the model, its training and the
seeds. A seed fixes the split, the weights and the order of the sentences.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from course.experiments.runner import Config, Progress
from course.experiments.seeds import each_seed
from course.inputs import require_choice
from course.tasks.winograd import (
    DECIDING,
    LEAKY,
    REPAIRED,
    Sentences,
    Split,
    Winograd,
    batches,
    score,
)
from course.training import History, train
from course.transformer import Transformer, TransformerConfig

TASKS = {"leaky": LEAKY, "repaired": REPAIRED}
#: Steps whose loss is stored one by one; what ``--check`` repeats.
FIRST_STEPS = 10
#: A seed has solved the task if it answers at least this share of the held-out sentences.
SOLVED = 0.99


class Trained(NamedTuple):
    """A model of one seed, what it was trained and is scored on, and its training.

    ``curve``: ``step``, and after so many steps the shares of right answers on the pairs
    held out (``right``) and on their trained reverses (``reverses``).
    """

    model: Transformer
    task: Winograd
    split: Split
    history: History
    curve: dict[str, list[Any]]


def execute(config: Config, progress: Progress) -> dict[str, Any]:
    """Train ``config["seeds"]`` models, from seed ``config["seed"]`` on.

    ``config``: ``task`` (``"leaky"``, ``"repaired"`` or the fields of a
    :class:`~course.tasks.winograd.Winograd`), ``held_out`` (see its ``split``), ``model`` (fields
    of :class:`TransformerConfig` but ``vocab_size``), ``training`` (``steps batch lr``),
    ``evaluate_every``.

    Returns ``{"curve", "result", "seeds"}``. Curve: ``first`` (the first losses of the first seed),
    ``step``, and for each seed a list ``right`` and ``reverses``. Result: means over the seeds, the
    lowest and highest seed, and how many have ``solved`` the task. Seeds: one entry a seed, as of
    :func:`final`. Where pairs have no reverse, nothing is said of reverses. Seeds that are finished
    are kept in the checkpoint.
    """
    rows = each_seed(config, progress, _one_seed)
    outcome = _summary(rows)
    outcome["result"] = {"parameters": parameters(config), **outcome["result"]}
    return outcome


def _one_seed(config: Config, seed: int, report: Callable[[int], None]) -> dict[str, Any]:
    trained = train_one(config, seed, report)
    first = [round(loss, 5) for loss in trained.history.losses[:FIRST_STEPS]]
    return {"first": first, "curve": trained.curve, "final": final(trained)}


def train_one(
    config: Config, seed: int, report: Callable[[int], None] = lambda step: None
) -> Trained:
    """Train the model of one seed; ``report`` is told the step at each evaluation."""
    task = task_of(config)
    split = task.split(config["held_out"], seed=seed)
    fields = {"vocab_size": len(task), **config["model"]}
    model = Transformer(TransformerConfig.from_dict(fields), seed=seed)
    curve: dict[str, list[Any]] = {"right": [], "reverses": []}

    def evaluate(model: Any) -> float:
        for name, sentences in (("right", split.held_out), ("reverses", split.reverses)):
            if len(sentences):
                curve[name].append(round(score(model(sentences.prompts), sentences).right, 3))
        return 0.0

    def watch(history: History) -> bool:
        report(history.steps)
        return False

    training = config["training"]
    history = train(
        model,
        batches(split.train, training["batch"]),
        steps=training["steps"],
        lr=training["lr"],
        seed=seed,
        evaluate=evaluate,
        evaluate_every=config["evaluate_every"],
        stop=watch,
        progress=False,
    )
    steps = [step for step, _ in history.evaluations]
    rows = {name: values for name, values in curve.items() if values}
    return Trained(model.eval(), task, split, history, {"step": steps, **rows})


def task_of(config: Config) -> Winograd:
    """The task that a config names, or spells out by its words."""
    task = config["task"]
    if not isinstance(task, str):
        return Winograd(**task)
    require_choice("task", task, TASKS)
    return TASKS[task]


@torch.no_grad()
def final(trained: Trained) -> dict[str, float]:
    """What one trained model answers, as shares of sentences.

    ``right``, ``other`` (the other noun), ``low``, ``high`` (interval over pairs) on the pairs held
    out; ``train``; and where pairs have a reverse, ``reverses`` and ``gap`` (:func:`order_gap`).
    """
    model, task, split = trained.model, trained.task, trained.split
    found = score(model(split.held_out.prompts), split.held_out)._asdict()
    found["train"] = score(model(split.train.prompts), split.train).right
    if len(split.reverses):
        found["reverses"] = score(model(split.reverses.prompts), split.reverses).right
    rounded = {name: round(value, 4) for name, value in found.items()}
    if len(split.reverses):
        rounded["gap"] = float(f"{order_gap(model, task, split.held_out):.1e}")
    return rounded


@torch.no_grad()
def order_gap(model: Transformer, task: Winograd, sentences: Sentences) -> float:
    """The largest difference that exchanging the nouns makes to a logit after "so the".

    In float64, so that what should be 0 is below 1e-10; the model itself stays as it is. Raises
    ``RuntimeError`` inside an intervention of :mod:`course.probes`, which a copy would keep.
    """
    wide = copy.deepcopy(model).double().eval()
    logits = [wide(some.prompts)[:, DECIDING] for some in (sentences, task.swap_nouns(sentences))]
    return (logits[0] - logits[1]).abs().max().item()


def first_losses(config: Config, steps: int) -> list[float]:
    """The loss of each of the first ``steps`` steps of the first seed, computed again."""
    short = {**config, "training": {**config["training"], "steps": steps}}
    losses = train_one(short, config["seed"]).history.losses
    return [round(loss, 5) for loss in losses]


def parameters(config: Config) -> int:
    """How many numbers the model of a config learns."""
    fields = {"vocab_size": len(task_of(config)), **config["model"]}
    return Transformer(TransformerConfig.from_dict(fields)).parameter_counts()["total"]


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    finals: list[dict[str, float]] = [row["final"] for row in rows]
    right = [final["right"] for final in finals]
    result: dict[str, float | int] = {
        "right": statistics.fmean(right),
        "lowest": min(right),
        "highest": max(right),
        "other": statistics.fmean(final["other"] for final in finals),
    }
    if "reverses" in finals[0]:
        result["reverses"] = statistics.fmean(final["reverses"] for final in finals)
        # Whoever does not see the order cannot come above 1.
        result["right + reverses"] = max(final["right"] + final["reverses"] for final in finals)
    result = {name: round(value, 4) for name, value in result.items()}
    result["solved"] = sum(value >= SOLVED for value in right)
    first = rows[0]
    curve = {"first": first["first"], "step": first["curve"]["step"]}
    for name in ("right", "reverses"):
        if name in first["curve"]:
            curve[name] = [row["curve"][name] for row in rows]
    return {"curve": curve, "result": result, "seeds": finals}
