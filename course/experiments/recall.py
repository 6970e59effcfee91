"""One run on MQAR: train a Transformer, follow its accuracy, measure it by distance, in bytes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from course.checkpoints import begun_again
from course.experiments.language_model import curve_of, reuse_freed_memory
from course.experiments.runner import Config, Progress
from course.tasks.mqar import accuracy, distances, make_mqar, mqar_batches, predictions
from course.training import History, train
from course.transformer import Transformer, TransformerConfig

#: Seed and number of the examples that accuracies are measured on: the first of them along the
#: run, all at its end.
HELD_OUT_SEED = 2**63 - 1  # the sampler draws seeds below 2**62
FOLLOWED, MEASURED = 64, 512
#: A run whose accuracy along the way is at least this is ended: it has solved the task.
SOLVED = 0.99
#: Accuracy is stored for the distances in (0, 16], (16, 32], … up to the length.
FIRST_EDGE = 16


def execute(config: Config, progress: Progress) -> dict[str, Any]:
    """Train as ``config`` says and return ``{"curve", "result"}``.

    ``config``: ``task`` (sizes for :func:`make_mqar`), ``model`` (fields of
    :class:`TransformerConfig` but ``vocab_size`` and ``max_length``), ``training`` (``steps batch
    halvings lr warmup``), ``seed``, ``evaluate_every``, and for windows ``reach``: how far back the
    farthest token lies that can have an influence.

    Curve: ``first`` (the loss of each of the first 50 steps), then lists with one entry an
    evaluation: ``step``, ``train`` (mean batch loss since the one before), ``accuracy`` (share of
    held-out queries). Result: ``state_bytes`` of one text of the task's length, ``steps`` done,
    ``accuracy``, ``up to d`` for queries whose key stood up to d tokens back (and more than d/2),
    ``beyond reach`` for those whose value lies farther back than ``reach``, and ``N pairs``, the
    accuracy on texts halved as in training. A run whose loss is no longer finite ends there; its
    result has ``diverged_at`` in place of accuracies.
    """
    reuse_freed_memory()
    model = build(config)
    inputs, targets = held_out(config)
    history = History()

    def watch(current: History) -> bool:
        nonlocal history  # kept here, because a run that diverges returns nothing
        history = current
        progress.report(current.steps)
        return current.evaluations[-1][1] >= SOLVED

    def evaluate(model: Any) -> float:
        return accuracy(predictions(model, inputs[:FOLLOWED]), targets[:FOLLOWED])

    options: dict[str, Any] = {"evaluate": evaluate, "stop": watch}
    options["checkpoint"] = progress.checkpoint
    result: dict[str, Any] = {
        "parameters": model.parameter_counts()["total"],
        "state_bytes": sum(model.state_bytes(inputs.shape[1])),
    }
    try:
        history = begun_again(lambda: fit(model, config, **options), progress.checkpoint)
    except FloatingPointError:
        return {
            "curve": curve_of(history, "accuracy"),
            "result": result | {"diverged_at": history.steps},
        }
    progress.keep(model)
    result |= {"steps": history.steps} | final(model, config)
    return {"curve": curve_of(history, "accuracy"), "result": result}


def build(config: Config) -> Transformer:
    """The untrained model of a config, its weights fixed by the config's seed."""
    task = config["task"]
    sizes = {"vocab_size": task["vocab_size"], "max_length": task["seq_len"]}
    return Transformer(TransformerConfig.from_dict(sizes | config["model"]), seed=config["seed"])


def held_out(config: Config, halvings: int = 0) -> tuple[Tensor, Tensor]:
    """The examples that a run is measured on, ``[512, T]``; texts and pairs halved so often."""
    task = dict(config["task"])
    for name in ("seq_len", "n_pairs"):
        task[name] //= 2**halvings
    return make_mqar(MEASURED, **task, seed=HELD_OUT_SEED)


def fit(model: Transformer, config: Config, *, steps: int | None = None, **options: Any) -> History:
    """Train ``model`` in place as ``config`` says (or only ``steps``); returns the History.

    ``options`` go to :func:`course.training.train`.
    """
    training = config["training"]
    return train(
        model,
        mqar_batches(training["batch"], **config["task"], halvings=training["halvings"]),
        steps=training["steps"] if steps is None else steps,
        lr=training["lr"],
        warmup=training["warmup"],
        seed=config["seed"],
        evaluate_every=config["evaluate_every"],
        checkpoint_every=config["evaluate_every"],
        progress=False,
        **options,
    )


def first_losses(config: Config, steps: int) -> list[float]:
    """The loss of each of the first ``steps`` steps of a run, computed again from its config."""
    return [round(loss, 5) for loss in fit(build(config), config, steps=steps).losses]


def final(model: Transformer, config: Config) -> dict[str, float]:
    """Accuracies over all queries, by distance, beyond a window's reach, and with fewer pairs."""
    inputs, targets = held_out(config)
    predicted, gap = predictions(model, inputs), distances(inputs, targets)
    found = {"accuracy": accuracy(predicted, targets)}
    low, high = 0, FIRST_EDGE
    while low < inputs.shape[1]:
        found[f"up to {high}"] = accuracy(predicted, targets, (gap > low) & (gap <= high))
        low, high = high, 2 * high
    if "reach" in config:  # the value stands one token nearer than its key
        found["beyond reach"] = accuracy(predicted, targets, gap - 1 > config["reach"])
    for halvings in range(1, config["training"]["halvings"] + 1):
        inputs, targets = held_out(config, halvings)
        name = f"{config['task']['n_pairs'] // 2**halvings} pairs"
        found[name] = accuracy(predictions(model, inputs), targets)
    return {name: round(value, 4) for name, value in found.items()}
