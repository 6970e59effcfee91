"""What a student's picture shows, as arrays: the curves of an Axes, its labels and its scales.

Below: what is asked of all pictures, as properties (:func:`pictured`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from course.checks import Test, Wrong, differs
from course.checks.answers import answer_of, as_tensor
from course.checks.properties import sentence


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


# What a picture shows, as properties


def pictured(look: Callable[..., str | None], *calls: tuple[Any, ...], **options: object) -> Test:
    """``look(picture, *call, **options)`` finds nothing wrong in the pictures for the ``calls``."""

    def test(function: Callable[..., Any]) -> str | None:
        said = (look(drawn(function, *call), *call, **options) for call in calls)
        return next((one for one in said if one), None)

    return test


def curve_of(picture: Drawn, label: str) -> tuple[Tensor, Tensor]:
    """The points of the curve with this label; :class:`Wrong` if there is none."""
    found = [curve for curve in picture.curves if curve.label.strip().lower() == label]
    if not found:
        labels = ", ".join(curve.label for curve in picture.curves) or "no curve"
        raise Wrong(f"no curve has the label {label!r}; found: {labels}. ax.plot(x, y, label=…)")
    return found[0].x, found[0].y


def labelled(picture: Drawn, *_: object, labels: Sequence[str]) -> str | None:
    """There is a curve with each of the labels, and a legend."""
    for label in labels:
        curve_of(picture, label)
    return None if picture.legend else "there is no legend: ax.legend()"


def scaled(picture: Drawn, *_: object, logarithmic: str = "") -> str | None:
    """Both axes have labels, and those in ``logarithmic`` ("x", "y", "xy") are logarithmic."""
    for axis, label in (("x", picture.xlabel), ("y", picture.ylabel)):
        if not label.strip():
            return f"the {axis} axis has no label: ax.set_{axis}label(…)"
    for axis, scale in (("x", picture.xscale), ("y", picture.yscale)):
        wanted = "log" if axis in logarithmic else "linear"
        if scale != wanted:
            return f"the {axis} axis is {scale}, expected {wanted}: ax.set_{axis}scale({wanted!r})"
    return None


def placed(
    picture: Drawn,
    *arguments: Any,
    labels: Sequence[str],
    places: Callable[..., Tensor],
    hint: str = "",
) -> str | None:
    """Every curve has one point at each of the ``places(*arguments)``, at least two."""
    expected = places(*arguments)
    first, last = int(expected[0]), int(expected[-1])
    for label in labels:
        x, _ = curve_of(picture, label)
        if len(x) != len(expected) or differs(x, expected.double()):
            found = f"has {len(x)} points"
            if len(x):
                found += f" from {float(x[0]):g} to {float(x[-1]):g}"
            wanted = f"expected {len(expected)}: {first}, {first + 1}, …, {last}"
            return sentence(f"the curve {label!r}", f"{found}, {wanted}", hint=hint)
    return None


def valued(
    picture: Drawn,
    *arguments: Any,
    label: str,
    truth: Callable[..., Tensor],
    mistakes: Mapping[str, Callable[..., Tensor]] | None = None,
    hint: str = "",
) -> str | None:
    """The curve has the heights ``truth(*arguments)``; ``mistakes`` as those of ``agrees``."""
    _, y = curve_of(picture, label)
    expected = truth(*arguments).double()
    if len(y) != len(expected):
        return f"the curve {label!r} has {len(y)} points, expected {len(expected)}"
    wrong = differs(y, expected, atol=1e-9, rtol=1e-5)
    if not wrong:
        return None
    known = (
        words
        for words, mistake in (mistakes or {}).items()
        if not differs(y, mistake(*arguments).double(), atol=1e-9, rtol=1e-5)
    )
    return sentence(f"the curve {label!r}", wrong, hint=next(known, hint))
