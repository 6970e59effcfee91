"""What the benches share: inputs, threads, and goals with the table that judges them."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from course.inputs import require_positive

#: What is measured, whether the value must stay below or above the bound, and the bound.
Goal = tuple[str, str, float]


def printed(
    arguments: argparse.Namespace,
    bench: Callable[..., dict[str, Any]],
    report: Callable[[dict[str, Any]], str],
) -> int:
    """Run ``bench`` with these options and print what it found; returns the exit status."""
    started = time.perf_counter()
    try:
        with threads(arguments.threads):
            found = bench(repeats=arguments.repeats)
    except (ValueError, RuntimeError) as error:
        print(error)
        return 2
    if arguments.json:
        print(json.dumps(found))
    else:
        print(f"{report(found)}\n\n{time.perf_counter() - started:.0f} s")
    return 0


def draw(count: int, *shape: int) -> list[Tensor]:
    """So many tensors of Gaussian entries, always the same."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator) for _ in range(count)]


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Let PyTorch use ``count`` threads (None: as many as it does), and put that back afterwards.

    Raises ``ValueError`` unless 1 ≤ ``count`` ≤ the machine's cores: with more than the system can
    give, PyTorch ends the process.
    """
    before, cores = torch.get_num_threads(), os.cpu_count() or 1
    if count is not None:
        require_positive("threads", count)
        if count > cores:
            raise ValueError(f"threads: expected at most {cores}, this machine's, got {count}")
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def judged(values: Mapping[str, float], goals: Mapping[str, Goal]) -> dict[str, dict[str, Any]]:
    """Each goal that has a value: that, its bound, and whether it is reached."""
    return {
        name: {
            "value": values[name],
            "bound": f"{sign} {bound:g}",
            "reached": values[name] <= bound if sign == "≤" else values[name] >= bound,
        }
        for name, (_, sign, bound) in goals.items()
        if name in values
    }


def table(found: Mapping[str, Any], goals: Mapping[str, Goal]) -> list[str]:
    """Lines: the seconds of each group, then each goal with its verdict."""
    lines = []
    for group, rows in found["seconds"].items():
        lines.append(group)
        lines += [f"  {name:32}{1e3 * value:>12,.3f} ms" for name, value in rows.items()]
    lines.append("")
    for name, goal in found["goals"].items():
        mark = "reached" if goal["reached"] else "missed"
        lines.append(f"{goals[name][0]:56}{goal['value']:>9.2f}   {goal['bound']:>6}   {mark}")
    if not all(goal["reached"] for goal in found["goals"].values()):
        lines += [
            "",
            "A missed goal may only mean that other programs were running: try a quiet machine, "
            f"--repeats {max(15, found['repeats'])}.",
        ]
    return lines
