"""``course bench widgets``: what one move of a slider costs, in the kernel and in the browser.

In the kernel it is processor time, so that a busy machine changes little. In the browser it is the
clock on the wall, as a hand feels it: only a quiet machine shows what is possible.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ipywidgets as ipw
import torch

from course import widgets
from course.bench import browser
from course.bench.goals import Goal, judged, printed, table
from course.inputs import require_positive
from course.plots import style
from course.widgets.base import Explorer, Slider
from course.widgets.paint import quick_png

PARTS = ("compute", "draw", "encode")

GOALS: dict[str, Goal] = {
    "slowest_move": ("slowest explorer: ms of processor time a move", "≤", 80.0),
    "pictures_a_move": ("pictures sent a move, most of all explorers", "≤", 1.0),
    "slowest_rate": ("slowest explorer: pictures a second while dragging", "≥", 12.0),
    "latest": ("latest last picture: ms after the release", "≤", 100.0),
}


def explorers() -> dict[str, type[Explorer]]:
    """Every explorer of the course by its name."""
    found = {name: getattr(widgets, name) for name in widgets.__all__}
    return {
        name: kind
        for name, kind in found.items()
        if isinstance(kind, type) and issubclass(kind, Explorer) and kind is not Explorer
    }


def moved(kind: type[Explorer]) -> str:
    """The slider that is moved: the chief control, or the one with the most places."""
    first = {name: control.value for name, control in kind.controls.items()}
    idle = kind.idle(first)
    sliders = [n for n, c in kind.controls.items() if isinstance(c, Slider) and n not in idle]
    if kind.chief in sliders:
        return kind.chief
    return max(sliders, key=lambda name: len(kind.controls[name].grid()))


@contextmanager
def counted() -> Iterator[list[str]]:
    """What widgets send meanwhile, each message as text."""
    sent: list[str] = []
    usual: Callable[..., Any] = ipw.Widget._send

    def send(self: ipw.Widget, message: Any, buffers: Any = None) -> None:
        sent.append(repr(message))
        usual(self, message, buffers)

    ipw.Widget._send = send
    try:
        yield sent
    finally:
        ipw.Widget._send = usual


def one_explorer(kind: type[Explorer], repeats: int) -> dict[str, float]:
    """Median seconds of each of ``PARTS`` and of their sum; bytes and pictures that a move sends.

    The first round over the places of the slider does not count: what is computed once, is.
    """
    explorer, name = kind(), moved(kind)
    places = kind.controls[name].grid()
    places = places[:: max(1, len(places) // 4)][:4]
    rows = [
        _parts(explorer, {**explorer.values, name: place})
        for _ in range(1 + repeats)
        for place in places
    ][len(places) :]
    with counted() as sent:
        for place in places:
            explorer.set_values(**{name: place})
    explorer.close()
    found = {part: statistics.median(row[i] for row in rows) for i, part in enumerate(PARTS)}
    return found | {
        "move": statistics.median(map(sum, rows)),
        "bytes": sum(map(len, sent)) / len(places),
        "pictures": sum(text.count("data:image/png") for text in sent) / len(places),
    }


def _parts(explorer: Explorer, values: dict[str, Any]) -> tuple[float, ...]:
    """Seconds of processor time to compute, draw and encode these values."""
    clock = time.process_time
    moments = [clock()]
    arrays = explorer.compute(**values)
    moments.append(clock())
    with style():
        explorer.update(arrays)
        canvas = explorer._painter.paint()
        moments.append(clock())
        quick_png(canvas)
    moments.append(clock())
    return tuple(b - a for a, b in itertools.pairwise(moments))


def bench_widgets(*, repeats: int = 5, live: bool = True) -> dict[str, Any]:
    """All measurements: plain JSON types, times in seconds, one value for each of ``GOALS``.

    ``live=False`` leaves the browser out, and with it the goals about pictures a second; so does a
    machine without one, and ``no_browser`` says why. Raises ``ValueError`` for ``repeats`` below 1.
    """
    require_positive("repeats", repeats)
    kernel = {name: one_explorer(kind, repeats) for name, kind in explorers().items()}
    values = {
        "slowest_move": 1e3 * max(one["move"] for one in kernel.values()),
        "pictures_a_move": max(one["pictures"] for one in kernel.values()),
    }
    why = browser.missing() if live else "not asked for"
    dragged: dict[str, dict[str, float]] = {}
    if why is None:
        sliders = {name: kind.controls[moved(kind)] for name, kind in explorers().items()}
        dragged = browser.drag({n: (s.label, len(s.grid())) for n, s in sliders.items()})
        values["slowest_rate"] = min(one["rate"] for one in dragged.values())
        values["latest"] = 1e3 * max(one["delay"] for one in dragged.values())
    return {
        "threads": torch.get_num_threads(),
        "repeats": repeats,
        "seconds": {},
        "kernel": kernel,
        "browser": dragged,
        "no_browser": why,
        "goals": judged(values, GOALS),
    }


def report(found: dict[str, Any]) -> str:
    """What :func:`bench_widgets` found, as a table."""
    lines = [
        f"one move of a slider; medians of {found['repeats']}, ms of processor time",
        f"  {'':20}{'compute':>9}{'draw':>8}{'encode':>8}{'all':>8}{'KB sent':>10}",
    ]
    for name, one in found["kernel"].items():
        times = f"{1e3 * one['compute']:>9.1f}{1e3 * one['draw']:>8.1f}{1e3 * one['encode']:>8.1f}"
        lines.append(f"  {name:20}{times}{1e3 * one['move']:>8.1f}{one['bytes'] / 1e3:>10.0f}")
    lines.append("")
    if found["no_browser"]:
        lines.append(f"not dragged in a browser: {found['no_browser']}")
    else:
        lines.append("dragged in JupyterLab: pictures a second, ms from release to the last one")
        lines += [
            f"  {name:20}{one['rate']:>9.1f}{1e3 * one['delay']:>8.0f}"
            for name, one in found["browser"].items()
        ]
    return "\n".join(lines + table(found, GOALS))


def command(arguments: argparse.Namespace) -> int:
    """Run ``course bench widgets``; returns the exit status."""
    return printed(arguments, bench_widgets, report)
