"""pytest plugin beside nbval: time budgets, pictures, the gate's complaints and a table.

Loaded by ``make test`` with ``-p tests.notebooks.plugin`` for the run over ``notebooks/``. With
several workers (``--dist loadfile``: a notebook stays on one) each kernel gets its share of the
cores, one thread a core. A budget is wall-clock time all the same: a cell that keeps it on one core
keeps it on the two that the course asks for.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from nbval.plugin import IPyNbCell

from tests.notebooks import gate, sanitize, standards
from tests.notebooks.execute import HARD_LIMIT, own_ipython, time_factor


class GateError(Exception):
    """A notebook breaks a rule of the gate."""


class GateItem(pytest.Item):
    """The rules about what is stored, and about the whole notebook's time, checked last."""

    def runtest(self) -> None:
        notebook = json.loads(self.path.read_text(encoding="utf-8"))
        wrong = [
            *gate.complaints(notebook),
            *standards.review(notebook).complaints,
        ]
        if self.path.stat().st_size > gate.MAX_BYTES:
            wrong.append(f"larger than {gate.MAX_BYTES // 1_000_000} MB")
        taken = sum(_seconds(self.config)[self.path])
        if taken > gate.NOTEBOOK_SECONDS * time_factor():
            allowed = gate.NOTEBOOK_SECONDS * time_factor()
            wrong.append(f"took {taken:.0f} s, allowed are {allowed:.0f} s")
        if wrong:
            raise GateError("\n".join(wrong))

    def repr_failure(self, excinfo: Any) -> str:  # type: ignore[override]
        return str(excinfo.value)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.name}: gate"


def _seconds(config: pytest.Config) -> dict[Path, list[float]]:
    return config.stash[_SECONDS]


_SECONDS = pytest.StashKey[dict[Path, list[float]]]()


def pytest_configure(config: pytest.Config) -> None:
    seconds: dict[Path, list[float]] = defaultdict(list)
    config.stash[_SECONDS] = seconds
    stack = ExitStack()
    stack.enter_context(own_ipython())
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
    config.add_cleanup(stack.close)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add one gate item behind each notebook's cells."""
    last = {item.parent: place for place, item in enumerate(items) if isinstance(item, IPyNbCell)}
    for notebook, place in reversed(last.items()):
        notebook.sanitize_patterns.update(sanitize.PATTERNS)
        items.insert(place + 1, GateItem.from_parent(notebook, name="gate"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    if not isinstance(item, IPyNbCell):
        return (yield)
    allowed = gate.seconds_allowed(item.cell) * time_factor()
    item.config.option.nbval_cell_timeout = allowed * HARD_LIMIT
    start = time.perf_counter()
    yield
    taken = time.perf_counter() - start
    _seconds(item.config)[item.path].append(taken)
    item.user_properties.append(("seconds", taken))  # reports go to the process that prints
    if taken > allowed:
        item.raise_cell_error(f"The cell took {taken:.0f} s, allowed are {allowed:.0f} s")
    if _pictures(item.test_outputs) != _pictures(item.cell.outputs):
        item.raise_cell_error("Stale pictures: their number or alt text differs from the stored")


def _pictures(outputs: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Kind and alt text of each picture; nbval itself compares neither."""
    return [
        (kind, sanitize.sanitized(output.get("metadata", {}).get(kind, {}).get("alt", "")))
        for output in outputs
        for kind in gate.PICTURES
        if kind in output.get("data", {})
    ]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    timed: dict[Path, list[float]] = defaultdict(list)
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if getattr(report, "when", None) == "call":
            path = config.rootpath / report.nodeid.split("::")[0]
            timed[path] += [value for name, value in report.user_properties if name == "seconds"]
    rows, reviews = [], {}
    for path, seconds in sorted((path, seconds) for path, seconds in timed.items() if seconds):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        reviews[path.name] = standards.review(notebook)
        compared, showing = gate.coverage(notebook)
        share = f"{compared}/{showing} ({100 * compared / max(showing, 1):.0f} %)"
        rows.append((path.name, share, gate.verify_lines(notebook), sum(seconds), max(seconds)))
    if not rows:
        return
    terminalreporter.section("notebooks")
    head = ("notebook", "compared/showing", "verify lines", "seconds", "longest cell")
    terminalreporter.line("{:34}{:>18}{:>14}{:>9}{:>14}".format(*head))
    for row in rows:
        terminalreporter.line("{:34}{:>18}{:>14}{:>9.1f}{:>14.1f}".format(*row))
    total = sum(row[3] for row in rows)
    terminalreporter.line(f"{len(rows)} notebooks, {total:.0f} s in all")
    for line in standards.table(reviews):
        terminalreporter.line(line)
