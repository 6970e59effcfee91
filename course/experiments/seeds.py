"""Short runs: one config, several seeds, one record."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from course.experiments.runner import Config, Progress

#: What one seed leaves (plain JSON); it is told the seed and where to report its steps.
OneSeed = Callable[[Config, int, Callable[[int], None]], dict[str, Any]]


def each_seed(config: Config, progress: Progress, one: OneSeed) -> list[dict[str, Any]]:
    """What ``one`` leaves for each of ``config["seeds"]`` seeds, from ``config["seed"]`` on.

    Seeds that are finished are kept in the checkpoint, so an interrupted run goes on with the next.
    """
    first, count = config["seed"], config["seeds"]
    rows = _finished(progress)
    for number, seed in enumerate(range(first, first + count)):
        if str(seed) in rows:
            continue

        def report(step: int, done: int = number * config["training"]["steps"]) -> None:
            progress.report((done + step) // count)

        rows[str(seed)] = one(config, seed, report)
        if progress.checkpoint is not None:
            progress.checkpoint.write_text(json.dumps(rows))
    return [rows[str(seed)] for seed in range(first, first + count)]


def _finished(progress: Progress) -> dict[str, Any]:
    try:
        return json.loads(progress.checkpoint.read_text()) if progress.checkpoint else {}
    except (OSError, ValueError):  # none yet, or half of one
        return {}
