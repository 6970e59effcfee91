"""The stored results: in the package what was recorded for the course, elsewhere a user's own."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course.experiments.configs import EXPERIMENTS, configs
from course.experiments.runner import Record, read_record, result_path
from course.values import require_choice

RESULTS = Path(__file__).parent / "results"

#: Characters in a line of a table; a wider table is printed in parts, one below the other.
PAGE = 120


def load(name: str, folder: Path | None = None, *, seed: int | None = None) -> list[Record]:
    """The stored runs of experiment ``name``, of one ``seed`` or of all, in their declared order.

    ``folder=None`` is the package's own. Each record has ``config``, ``curve`` (lists, one entry a
    measured step), ``result``, ``date``, ``seconds``, ``machine``, and in newer ones ``sample``, a
    text that the trained model wrote. Runs that are not stored are left out; raises ``ValueError``
    for an unknown name.
    """
    require_choice("name", name, EXPERIMENTS)
    folder = RESULTS if folder is None else folder
    records = (
        read_record(result_path(folder, config), config) for config in configs(name, seed=seed)
    )
    return [record for record in records if record is not None]


def table(records: Sequence[Record]) -> str:
    """The results as text: a line a label, each number the mean over its seeds (± their spread)."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["config"]["label"], []).append(record["result"])
    if not groups:
        return "nothing is stored"
    columns = list(dict.fromkeys(name for rows in groups.values() for name in rows[0]))
    lines = [["", *columns, "seeds"]]
    for label, rows in groups.items():
        cells = [_cell([row[name] for row in rows if name in row]) for name in columns]
        lines.append([label, *cells, str(len(rows))])
    dates = sorted({record["date"] for record in records})
    text = [line for block in _blocks(lines) for line in _aligned(block)]
    return "\n".join([*text, f"recorded {dates[0]}" + (f" to {dates[-1]}" if dates[1:] else "")])


def _blocks(lines: list[list[str]]) -> list[list[list[str]]]:
    """The lines cut at a column where they would be wider than a page; each part has the labels."""
    width = [max(len(line[i]) for line in lines) + 2 for i in range(len(lines[0]))]
    parts: list[list[int]] = [[]]
    for column in range(1, len(width)):
        if parts[-1] and width[0] + sum(width[i] for i in [*parts[-1], column]) > PAGE:
            parts.append([])
        parts[-1].append(column)
    return [[[line[0], *(line[i] for i in part)] for line in lines] for part in parts]


def _aligned(lines: list[list[str]]) -> list[str]:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def _cell(values: list[Any]) -> str:
    if not values:
        return "–"
    if any(value is None for value in values):
        return "diverged"
    if all(isinstance(value, int) for value in values) and len(set(values)) == 1:
        return f"{values[0]:,}"
    text = f"{statistics.fmean(values):,.4g}"
    return text if len(values) == 1 else f"{text} ± {_two_digits(statistics.stdev(values))}"


def _two_digits(x: float) -> str:
    """As ``.2g``, but 120 instead of 1.2e+02."""
    return f"{float(f'{x:.2g}'):,g}"
