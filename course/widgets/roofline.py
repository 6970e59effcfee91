"""What four programs wait for on a GPU, arithmetic or memory, and how long at least."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course import cost
from course.plots import COLOURS, INK, MARKERS, QUIET, number
from course.widgets.base import Choice, Control, Explorer, Slider, Switch

PROGRAMS = ("steps", "chunks", "naive", "tiled")
MACHINES = {gpu.name: gpu for gpu in cost.GPUS}
INTENSITIES = np.geomspace(0.1, 50_000, 240)


class RooflineExplorer(Explorer):
    """GPU, length, width, rows of a tile, cache → operations per byte, least time of one head.

    To try: without a cache only the rows move the tiled program, with a perfect one only the
    length; no setting of the chunks reaches the bend, nor does a step; a wider head helps naive
    attention; on an L4 everything waits longer than on an A100, by their bandwidths.
    """

    title = "What does a program wait for?"
    note = (
        "One head, 16-bit numbers, states in 32 bits, C = Dv = D, nothing masked. Steps: the "
        "recurrence, once for every token. The cache: none, or one that has all keys and values "
        "that a launch reads again; a real one lies between. Data-sheet rates, perfect overlap."
    )
    size = (9.2, 3.7)
    chief = "D"
    controls: ClassVar[dict[str, Control]] = {
        "gpu": Choice("GPU", "H100 SXM", tuple(MACHINES)),
        "T": Slider("Tokens T", 4_096, low=256, high=65_536, step=256),
        "D": Slider("Head width D", 64, low=16, high=256, step=16),
        "rows": Slider("Rows of a tile", 64, low=16, high=256, step=16),
        "cached": Switch("Perfect second-level cache", False),
    }

    @staticmethod
    def compute(*, gpu: str, T: int, D: int, rows: int, cached: bool) -> dict[str, Any]:
        """Of steps, chunks, naive and tiled, four numbers each, in this order.

        ``intensities`` in operations per byte of main memory; ``share`` of the arithmetic that can
        be busy; ``seconds`` at least. ``other``: the intensity of tiled with the cache switched the
        other way. ``roof`` [240] in FLOP/s over ``INTENSITIES``; ``ridge``, its bend.
        """
        machine = MACHINES[gpu]
        work = [
            (T * cost.step_flops(C=D, Dv=D), T * cost.step_traffic(D=D, Dv=D)),
            (
                cost.chunk_flops(T, C=D, Dv=D, chunk=rows),
                cost.chunk_traffic(T, D=D, Dv=D, chunk=rows),
            ),
            (cost.softmax_flops(T, D=D), cost.naive_traffic(T, D=D)),
            (cost.softmax_flops(T, D=D), cost.tiled_traffic(T, D=D, tile=rows, cached=cached)),
        ]
        other = cost.tiled_traffic(T, D=D, tile=rows, cached=not cached)
        intensities = np.array([flops / nbytes for flops, nbytes in work])
        return {
            "intensities": intensities,
            "share": np.array([machine.attainable(x) for x in intensities]) / machine.flops,
            "seconds": np.array([machine.seconds(*one) for one in work]),
            "other": cost.softmax_flops(T, D=D) / other,
            "roof": np.array([machine.attainable(x) for x in INTENSITIES]),
            "ridge": machine.ridge,
        }

    def build(self, figure: Figure, arrays: dict[str, Any]) -> None:
        """The roof with a point for each program, and how busy each keeps the arithmetic."""
        left, right = figure.subplots(1, 2, width_ratios=[1.3, 1])
        (self._roof,) = left.plot(INTENSITIES, arrays["roof"] / 1e12, color=QUIET)
        self._points = [
            left.plot([], [], mark, color=colour, markeredgecolor=INK, label=name)[0]
            for name, mark, colour in zip(PROGRAMS, MARKERS, COLOURS, strict=False)
        ]
        (self._between,) = left.plot([], [], ":", color=COLOURS[3], linewidth=3.5)
        (self._other,) = left.plot(
            [],
            [],
            MARKERS[3],
            color="white",
            markeredgecolor=COLOURS[3],
            label="tiled, other cache",
        )
        left.set(xscale="log", yscale="log", ylim=(0.02, 2_000), xlim=(0.1, 50_000))
        left.set(xlabel="operations per byte of main memory", title="TFLOP/s at best")
        left.grid(True)
        left.legend(loc="lower right")
        self._build_bars(right)

    def _build_bars(self, axes: Axes) -> None:
        self._bars = axes.barh(PROGRAMS, np.zeros(4), color=COLOURS[:4], height=0.6)
        self._words = [axes.annotate("", (0, i), va="center", fontsize=9) for i in range(4)]
        axes.set(xlim=(0, 150), xticks=[0, 25, 50, 75, 100], xlabel="% of the arithmetic busy")
        axes.set_title("busy arithmetic, least time")
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")

    def update(self, arrays: dict[str, Any]) -> None:
        """Move the roof, the points and the bars."""
        self._roof.set_ydata(arrays["roof"] / 1e12)
        peak = arrays["roof"].max()
        slope = peak / arrays["ridge"]
        way = np.geomspace(arrays["intensities"][3], arrays["other"], 50)
        heights = np.minimum(peak, slope * way) / 1e12
        self._between.set_data(way, heights)
        self._other.set_data(way[-1:], heights[-1:])
        for i, point in enumerate(self._points):
            share = arrays["share"][i]
            point.set_data([arrays["intensities"][i]], [share * peak / 1e12])
            self._bars[i].set_width(100 * share)
            self._words[i].xy = (100 * share + 3, i)
            self._words[i].set_position((100 * share + 3, i))
            self._words[i].set_text(_time(arrays["seconds"][i]))

    def finding(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """Who waits for memory, how busy each is, and the least times."""
        busy = [f"{name} {_percent(x)}" for name, x in zip(PROGRAMS, arrays["share"], strict=True)]
        times = [f"{name} {_time(x)}" for name, x in zip(PROGRAMS, arrays["seconds"], strict=True)]
        waiting = [
            name
            for name, x in zip(PROGRAMS, arrays["intensities"], strict=True)
            if x < arrays["ridge"]
        ]
        who = "all four wait" if len(waiting) == 4 else f"{_listed(waiting)} wait"
        cache = "a perfect cache" if values["cached"] else "no cache"
        return (
            f"With {cache}: {who} for memory, since the {values['gpu']} needs "
            f"{number(arrays['ridge'], 0)} operations per byte. Busy at best: {', '.join(busy)}. "
            f"Least time of one head: {', '.join(times)}."
        )

    def alt(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """Both panels in words."""
        return (
            f"The roofline of the {values['gpu']}, a slope and then a flat part, with points for "
            f"steps, chunks, naive and tiled attention; bars of how much of the arithmetic each "
            f"can keep busy; a hollow point shows tiled attention with the cache switched the "
            f"other way. {self.finding(values, arrays)}"
        )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else "100 %"


def _time(seconds: float) -> str:
    micro = 1e6 * seconds
    return f"{micro:.3g} µs" if micro < 1_000 else f"{micro / 1e3:,.3g} ms"


def _listed(names: list[str]) -> str:
    text = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return text
