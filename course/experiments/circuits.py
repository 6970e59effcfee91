"""How one trained model solves a Winograd probe: its maps, and what each intervention changes.

Every number is a mean over all held-out sentences. An effect is a share of sentences: of those
whose answer becomes the other noun after a patch, of those still answered right after an ablation.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from course import probes
from course.experiments import winograd
from course.experiments.runner import Config, Progress
from course.tasks.winograd import (
    ADJECTIVE,
    CROSSED,
    CROSSER,
    DECIDING,
    Sentences,
    Winograd,
    score,
)
from course.transformer import Transformer

#: Groups of positions that are patched together after block 1.
GROUPS: dict[str, tuple[int, ...]] = {
    "nouns": (CROSSER, CROSSED),
    "adjective": (ADJECTIVE,),
    "between": tuple(p for p in range(CROSSED + 1, DECIDING) if p != ADJECTIVE),
    "deciding": (DECIDING,),
}


def execute(config: Config, progress: Progress) -> dict[str, Any]:
    """Train the model of one seed as :mod:`course.experiments.winograd` does, and take it apart.

    Returns ``{"curve", "result", "circuit"}``; circuit: see :func:`circuit`.
    """
    trained = winograd.train_one(config, config["seed"], progress.report)
    progress.keep(trained.model)
    first = [round(loss, 5) for loss in trained.history.losses[: winograd.FIRST_STEPS]]
    return {
        "curve": {"first": first, **trained.curve},
        "result": {"parameters": winograd.parameters(config), **winograd.final(trained)},
        "circuit": circuit(trained.model, trained.task, trained.split.held_out),
    }


def first_losses(config: Config, steps: int) -> list[float]:
    """The loss of each of the first ``steps`` steps, computed again."""
    return winograd.first_losses(config, steps)


@torch.no_grad()
def circuit(model: Transformer, task: Winograd, sentences: Sentences) -> dict[str, Any]:
    """The measurements of one model; L blocks, H heads, T positions up to "so the".

    * ``weights``, ``spread``: mean and standard deviation, over the sentences, of the weights from
      the deciding position, ``[2,L,H,T]``: first with an adjective of the crosser, then with one of
      the crossed.
    * ``patched``: for the runs with exchanged ``nouns`` and with the other ``adjective``, the share
      of answers that become the other noun when one position is patched, ``[L,T]``: after each
      block. After the last it is a control: there only the deciding position is read.
    * ``together``: the same for each of :data:`GROUPS`, after block 1.
    * ``without head``: the share still right without one head, ``[L,H]``: ``zero`` and ``mean``.
    * ``without look``: the share still right when the deciding position no longer looks at a
      position, ``[L,H,T]`` in one head, ``[L,T]`` in all (the others share its weight).
    """
    prompts, L, H = sentences.prompts, model.config.L, model.config.H
    maps = probes.run(model, prompts).maps
    rows = torch.stack([weights[:, :, DECIDING] for weights in maps], 1)  # [n,L,H,T]
    kinds = task.of_the_crosser(sentences)
    sources = {
        "nouns": probes.run(model, task.swap_nouns(sentences).prompts).streams,
        "adjective": probes.run(model, task.swap_adjective(sentences).prompts).streams,
    }

    def other(logits: Tensor) -> Tensor:
        return torch.tensor(score(logits, sentences).other)

    def right(change: AbstractContextManager[None]) -> float:
        with change:
            return score(model(prompts), sentences).right

    def flipped(stream: Tensor, positions: tuple[int, ...]) -> float:
        with probes.patch(model, stream, after=1, position=positions):
            return other(model(prompts)).item()

    return _rounded(
        {
            "weights": [rows[kind].mean(0).tolist() for kind in (kinds, ~kinds)],
            "spread": [rows[kind].std(0).tolist() for kind in (kinds, ~kinds)],
            "patched": {
                name: [
                    probes.patch_each(model, prompts, streams[after], other, after=after).tolist()
                    for after in range(1, L + 1)
                ]
                for name, streams in sources.items()
            },
            "together": {
                name: {group: flipped(streams[1], places) for group, places in GROUPS.items()}
                for name, streams in sources.items()
            },
            "without head": {
                "zero": _table(L, H, lambda b, h: right(probes.ablate_head(model, b, h))),
                "mean": _table(
                    L, H, lambda b, h: right(probes.ablate_head(model, b, h, mean_over=prompts))
                ),
            },
            "without look": [
                _table(
                    H,
                    DECIDING + 1,
                    lambda h, key, b=b: right(probes.ablate_look(model, b, DECIDING, key, head=h)),
                )
                for b in range(L)
            ],
            "without look in all": _table(
                L,
                DECIDING + 1,
                lambda b, key: right(probes.ablate_look(model, b, DECIDING, key)),
            ),
        }
    )


def _table(rows: int, columns: int, measure: Callable[..., float]) -> list[list[float]]:
    return [[measure(row, column) for column in range(columns)] for row in range(rows)]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, 3)
