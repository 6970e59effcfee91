"""How one trained model solves a Winograd probe: its maps, and what each intervention changes.

An effect is a share of the held-out sentences: after a patch, of those whose answer becomes the
other noun; after an ablation, of those still answered right. Everything is measured apart for the
two kinds of sentences: those with an adjective of the crosser, and those with one of the crossed.
"""

from __future__ import annotations

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
)
from course.transformer import Transformer

#: Groups of positions that are patched together after block 1.
GROUPS: dict[str, tuple[int, ...]] = {
    "nouns": (CROSSER, CROSSED),
    "between": tuple(p for p in range(CROSSED + 1, DECIDING) if p != ADJECTIVE),
    "adjective, deciding": (ADJECTIVE, DECIDING),
    "nouns, deciding": (CROSSER, CROSSED, DECIDING),
    "nouns, adjective": (CROSSER, CROSSED, ADJECTIVE),
    "nouns, adjective, deciding": (CROSSER, CROSSED, ADJECTIVE, DECIDING),
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

    The first axis of every list is the kind: 0 an adjective of the crosser, 1 of the crossed.

    * ``weights``, ``spread``: mean and standard deviation over the sentences of the weights from
      the deciding position, ``[2,L,H,T]``.
    * ``patched``: of the runs with exchanged ``nouns`` and with the other ``adjective``, one
      position after each block: the share that gives the other noun, ``[2,L,T]``. After the last
      block it is a control: there only the deciding position is read.
    * ``together``: the same for each of :data:`GROUPS` after block 1, ``[2]``.
    * ``without head``: the share still right without one head, ``[2,L,H]``: ``zero``, ``mean``.
    * ``without look``: the share still right when the deciding position no longer looks at one
      position: ``one head`` ``[2,L,H,T]``, ``all heads`` ``[2,L,T]``; the others share its weight.
    """
    prompts, heads, places = sentences.prompts, range(model.config.H), range(DECIDING + 1)
    blocks = range(model.config.L)
    kinds = torch.stack([task.of_the_crosser(sentences), ~task.of_the_crosser(sentences)])

    def share(logits: Tensor, wanted: Tensor) -> Tensor:
        """How often the answer is ``wanted [n]``, for each kind: ``[2]``."""
        said = logits[:, DECIDING].argmax(-1) == wanted
        return torch.stack([said[kind].double().mean() for kind in kinds])

    def other(logits: Tensor) -> Tensor:
        return share(logits, sentences.other)

    def right(change: AbstractContextManager[None]) -> Tensor:
        with change:
            return share(model(prompts), sentences.answer)

    def patched(stream: Tensor, positions: tuple[int, ...]) -> Tensor:
        with probes.patch(model, stream, after=1, position=positions):
            return other(model(prompts))

    def headless(**options: Any) -> Tensor:
        rows = [[right(probes.ablate_head(model, b, h, **options)) for h in heads] for b in blocks]
        return _table(rows)

    def blind(block: int, head: int | None) -> list[Tensor]:
        looks = (probes.ablate_look(model, block, DECIDING, key, head=head) for key in places)
        return [right(look) for look in looks]

    rows = torch.stack([w[:, :, DECIDING] for w in probes.run(model, prompts).maps], 1)  # [n,L,H,T]
    sources = {
        "nouns": probes.run(model, task.swap_nouns(sentences).prompts).streams,
        "adjective": probes.run(model, task.swap_adjective(sentences).prompts).streams,
    }
    found = {
        "weights": torch.stack([rows[kind].mean(0) for kind in kinds]),
        "spread": torch.stack([rows[kind].std(0) for kind in kinds]),
        "patched": {
            name: _table(
                [
                    list(probes.patch_each(model, prompts, streams[b + 1], other, after=b + 1))
                    for b in blocks
                ]
            )
            for name, streams in sources.items()
        },
        "together": {
            name: {group: patched(streams[1], where) for group, where in GROUPS.items()}
            for name, streams in sources.items()
        },
        "without head": {"zero": headless(), "mean": headless(mean_over=prompts)},
        "without look": {
            "one head": torch.stack([_table([blind(b, h) for h in heads]) for b in blocks], 1),
            "all heads": _table([blind(b, None) for b in blocks]),
        },
    }
    return _rounded(found)


def _table(rows: list[list[Tensor]]) -> Tensor:
    """Pairs of numbers in rows and columns, the pair as the first axis: ``[2,rows,columns]``."""
    return torch.stack([torch.stack(row) for row in rows]).movedim(-1, 0)


def _rounded(value: Any) -> Any:
    """Tensors as lists of numbers with three digits."""
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return _rounded(value.tolist()) if isinstance(value, Tensor) else round(value, 3)
