"""What a student's picture shows, as arrays: the curves of an Axes, its labels and its scales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from course.checks.answers import Wrong, answer_of, as_tensor


@dataclass(frozen=True)
class Curve:
    """One line of a picture: its points and what the legend calls it."""

    x: Tensor
    y: Tensor
    label: str


@dataclass(frozen=True)
class Drawn:
    """What stands on an Axes."""

    curves: tuple[Curve, ...]
    xlabel: str
    ylabel: str
    xscale: str
    yscale: str
    legend: bool


def drawn(function: Callable[..., Any], *arguments: Any) -> Drawn:
    """What ``function(ax, *arguments)`` draws on an empty Axes.

    For use inside a property's test; raises :class:`Wrong` as :func:`course.checks.call` does.
    """
    remote = getattr(function, "draw", None)
    told = remote(*arguments) if remote else draw_with(function, *arguments)
    try:
        curves = tuple(
            Curve(as_tensor(c["x"]).double(), as_tensor(c["y"]).double(), str(c["label"])[:200])
            for c in told["curves"]
        )
        words = {key: str(told[key])[:200] for key in ("xlabel", "ylabel", "xscale", "yscale")}
        return Drawn(curves, legend=told["legend"] is True, **words)
    except (TypeError, KeyError):
        raise Wrong("draws nothing that can be read") from None


def draw_with(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """The same as plain values, so that it can be sent."""
    from matplotlib.figure import Figure  # no pyplot: no window, and nothing is left behind

    ax = Figure().subplots()
    answer_of(partial(function, ax), *arguments)
    lines = [line for line in ax.get_lines() if np.size(line.get_xdata())]
    return {
        "curves": [
            {
                "x": as_tensor(line.get_xdata(orig=False)),
                "y": as_tensor(line.get_ydata(orig=False)),
                "label": str(line.get_label()),
            }
            for line in lines
        ],
        "xlabel": ax.get_xlabel(),
        "ylabel": ax.get_ylabel(),
        "xscale": ax.get_xscale(),
        "yscale": ax.get_yscale(),
        "legend": ax.get_legend() is not None,
    }
