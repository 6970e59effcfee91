"""Induction over training: when the circuit forms, which heads it is, and what is left without."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course import probes
from course.experiments.runner import Config, Progress
from course.experiments.seeds import each_seed
from course.mixers import SoftmaxMixer
from course.tasks.induction import (
    Repeats,
    accuracy,
    induction_score,
    make_repeats,
    previous_token_score,
    repeat_batches,
)
from course.training import History, train
from course.transformer import Transformer, TransformerConfig

#: The held-out rows: as many, of this seed, which no run draws from.
ROWS, HELD_OUT_SEED = 128, 2**62
FIRST_STEPS = 10
#: The circuit has formed when this share of the repeated tokens is predicted.
FORMED = 0.5


def execute(config: Config, progress: Progress) -> dict[str, Any]:
    """Train ``config["seeds"]`` models on repeated texts and measure them along the way.

    ``config``: ``task`` (sizes for :func:`make_repeats`), ``model`` (fields of
    :class:`TransformerConfig` but ``vocab_size`` and ``max_length``), ``training`` (``steps batch
    lr``), ``seed``, ``seeds``, ``evaluate_every``.

    Returns ``{"curve", "result", "seeds"}``. Curve: ``first``, ``step``, and one list a seed of
    ``accuracy``, ``previous`` and ``induction`` (the largest score of a head in the first and in
    the last block). Result: means over seeds; ``forms``, the mean of the first measured step with
    half of the tokens right, if all seeds come so far. Seeds: ``accuracy``, ``forms`` (or null),
    and for each block (null without attention) a list with one number a head: ``previous``,
    ``induction``, and ``without``, the accuracy when it gives its mean.
    """
    rows = each_seed(config, progress, _one_seed)
    curve: dict[str, Any] = {"first": rows[0]["first"], "step": rows[0]["curve"]["step"]}
    for name in ("accuracy", "previous", "induction"):
        curve[name] = [row["curve"][name] for row in rows]
    finals = [row["final"] for row in rows]
    reached = [final["accuracy"] for final in finals]
    result: dict[str, Any] = {
        "parameters": build(config).parameter_counts()["total"],
        "accuracy": round(statistics.fmean(reached), 4),
        "lowest": min(reached),
        "highest": max(reached),
    }
    forms = [final["forms"] for final in finals]
    if None not in forms:
        result["forms"] = round(statistics.fmean(forms), 1)
    return {"curve": curve, "result": result, "seeds": finals}


def build(config: Config, seed: int | None = None) -> Transformer:
    """The untrained model of one seed (None = the first)."""
    seed = config["seed"] if seed is None else seed
    sizes = {"vocab_size": config["task"]["vocab_size"], "max_length": config["task"]["seq_len"]}
    return Transformer(TransformerConfig.from_dict(sizes | config["model"]), seed=seed)


def held_out(config: Config) -> Repeats:
    """The rows that every accuracy and score is measured on."""
    return make_repeats(ROWS, seed=HELD_OUT_SEED, **config["task"])


def train_one(
    config: Config, seed: int, report: Callable[[int], None] = lambda step: None
) -> tuple[Transformer, History, dict[str, list[Any]]]:
    """Train the model of one seed: the model, its training, and its curve as in a record."""
    model, rows = build(config, seed), held_out(config)
    curve: dict[str, list[Any]] = {"step": [], "accuracy": [], "previous": [], "induction": []}

    def evaluate(model: Any) -> float:
        run = probes.run(model, rows.inputs)
        curve["accuracy"].append(round(accuracy(run.logits, rows.targets), 3))
        first = previous_token_score(run.maps[0]).max() if _has_heads(model, 0) else torch.nan
        curve["previous"].append(_round(first))
        curve["induction"].append(_round(induction_score(run.maps[-1], rows.inputs).max()))
        return 0.0

    def watch(history: History) -> bool:
        curve["step"].append(history.steps)
        report(history.steps)
        return False

    training = config["training"]
    history = train(
        model,
        repeat_batches(training["batch"], **config["task"]),
        steps=training["steps"],
        lr=training["lr"],
        seed=seed,
        evaluate=evaluate,
        evaluate_every=config["evaluate_every"],
        stop=watch,
        progress=False,
    )
    return model.eval(), history, curve


def first_losses(config: Config, steps: int) -> list[float]:
    """The loss of each of the first ``steps`` steps of the first seed, computed again."""
    short = {**config, "training": {**config["training"], "steps": steps}}
    return [round(loss, 5) for loss in train_one(short, config["seed"])[1].losses]


def _one_seed(config: Config, seed: int, report: Callable[[int], None]) -> dict[str, Any]:
    model, history, curve = train_one(config, seed, report)
    reached = (s for s, a in zip(curve["step"], curve["accuracy"], strict=True) if a >= FORMED)
    return {
        "first": [round(loss, 5) for loss in history.losses[:FIRST_STEPS]],
        "curve": curve,
        "final": {
            "accuracy": curve["accuracy"][-1],
            "forms": next(reached, None),
            **heads(model, held_out(config)),
        },
    }


@torch.no_grad()
def heads(model: Transformer, rows: Repeats) -> dict[str, list[Any]]:
    """For each block, a number a head (None for a block without attention).

    ``previous`` and ``induction``: its scores; ``without``: the accuracy when the head gives its
    mean over the rows.
    """
    maps = probes.run(model, rows.inputs).maps
    found: dict[str, list[Any]] = {"previous": [], "induction": [], "without": []}
    for block, weights in enumerate(maps):
        if not _has_heads(model, block):
            for values in found.values():
                values.append(None)
            continue
        found["previous"].append([_round(x) for x in previous_token_score(weights)])
        found["induction"].append([_round(x) for x in induction_score(weights, rows.inputs)])
        accuracies = []
        for head in range(weights.shape[1]):
            with probes.ablate_head(model, block, head, mean_over=rows.inputs):
                accuracies.append(round(accuracy(model(rows.inputs), rows.targets), 3))
        found["without"].append(accuracies)
    return found


def _has_heads(model: Transformer, block: int) -> bool:
    return isinstance(model.blocks[block].mixer, SoftmaxMixer)


def _round(value: Tensor | float) -> float | None:
    number = round(float(value), 3)
    return None if number != number else number
