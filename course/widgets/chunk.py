"""The chunk size of linear attention: operations, numbers stored and products, counted."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from course.cost import linear_flops, softmax_flops
from course.plots import COLOURS, INK, MARKERS, number
from course.widgets.base import Control, Explorer, Slider

SIZES = 2 ** np.arange(13)  # 1 … 4,096: where the lines are drawn
PRODUCTS = 4  # of a chunk: Q Kᵀ, A V, Q S, Kᵀ V
_PANELS: dict[str, tuple[tuple[str, str], ...]] = {
    "operations a token": (("inside", "inside chunks"), ("between", "through S"), ("all", "both")),
    "numbers stored a token": (("scores", "scores A"), ("states", "states S"), ("kept", "both")),
    "matrix products": (("calls", "how many"), ("work", "operations in one")),
}


class ChunkExplorer(Explorer):
    """Chunk size, length and width → operations, numbers stored, products.

    To try: only B = 1 has the fewest operations and only B = √(C·Dv) the fewest numbers; the
    length moves the number of products and nothing else; a wide head wants larger chunks.
    """

    title = "How long should a chunk be?"
    note = (
        "Counted, not timed: one head, as many features as values are wide (C = Dv = D), the "
        "square inside a chunk computed whole. Scores and states as they are if all are stored."
    )
    size = (9.4, 3.7)
    controls: ClassVar[dict[str, Control]] = {
        "B": Slider("Chunk size B", 64, low=1, high=1_024),
        "T": Slider("Tokens T", 4_096, low=1_024, high=65_536, step=1_024),
        "D": Slider("Width D", 64, low=16, high=256, step=16),
    }

    @staticmethod
    def compute(*, B: int, T: int, D: int) -> dict[str, Any]:
        """Operations and numbers a token, ``calls`` and the operations (``work``) of a call.

        ``inside``, ``between`` and their sum ``all``; ``scores``, ``states`` and their sum
        ``kept``; ``… over B`` is the same over ``SIZES``. The last chunk may be short.
        """

        def at(size: int) -> dict[str, float]:
            whole, rest = divmod(T, size)
            pairs = whole * size**2 + rest**2
            chunks = whole + (rest > 0)
            inside = softmax_flops(T, D=D, pairs=pairs) / T
            between = linear_flops(T, C=D, Dv=D) / T
            scores, states = pairs / T, chunks * D * D / T
            return {
                "inside": inside,
                "between": between,
                "all": inside + between,
                "scores": scores,
                "states": states,
                "kept": scores + states,
                "calls": PRODUCTS * chunks,
                "work": (inside + between) * T / (PRODUCTS * chunks),
            }

        everywhere = [at(int(size)) for size in SIZES]
        curves = {f"{name} over B": np.array([p[name] for p in everywhere]) for name in at(B)}
        return at(B) | curves | {"B": B, "chunks": -(-T // B), "step by step": at(1)["all"]}

    def build(self, figure: Figure, arrays: dict[str, Any]) -> None:
        """Three charts over the chunk size, with points where the sliders stand."""
        self._lines: dict[str, Any] = {}
        self._points: dict[str, Any] = {}
        self._rulers = []
        limits = ((3e1, 1e7), (1e-2, 1e6), (1, 1e11))
        for axes, (title, series), limit in zip(
            figure.subplots(1, 3), _PANELS.items(), limits, strict=True
        ):
            for place, (name, label) in enumerate(series):
                colour = INK if label == "both" else COLOURS[place]
                (self._lines[name],) = axes.plot(
                    SIZES, arrays[f"{name} over B"], color=colour, label=label, zorder=2 + place
                )
                (self._points[name],) = axes.plot(
                    [], [], MARKERS[place], color=colour, markeredgecolor="white", zorder=5
                )
            self._rulers.append(axes.axvline(arrays["B"], color=INK, linewidth=0.8, alpha=0.5))
            axes.set(xscale="log", yscale="log", xlim=(0.9, 4_600), ylim=limit, title=title)
            axes.set_xticks([1, 8, 64, 512, 4_096], ["1", "8", "64", "512", "4,096"])
            axes.set_xlabel("chunk size B")
            axes.minorticks_off()
            axes.grid(True)
            axes.legend(
                loc="upper left", frameon=True, facecolor="white", edgecolor="none", framealpha=1
            )

    def update(self, arrays: dict[str, Any]) -> None:
        """Move the lines and the points."""
        for name, line in self._lines.items():
            line.set_ydata(arrays[f"{name} over B"])
            self._points[name].set_data([arrays["B"]], [arrays[name]])
        for ruler in self._rulers:
            ruler.set_xdata([arrays["B"], arrays["B"]])

    def finding(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """Operations against those of single steps, numbers stored and where they are fewest."""
        more = arrays["all"] / arrays["step by step"]
        return (
            f"{arrays['chunks']:,} chunks of {values['B']}: {arrays['all']:,.0f} operations a "
            f"token, {number(more, 2)} times those of B = 1, in {arrays['calls']:,} products of "
            f"{_short(arrays['work'])} each; scores and states store "
            f"{arrays['kept']:,.0f} numbers a token (fewest at B = {values['D']})."
        )

    def alt(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """The three panels in words."""
        return (
            "Three charts with logarithmic axes over the chunk size. Operations: those inside "
            "chunks rise, those through the state are level. Numbers stored: scores rise, states "
            "fall, their sum has a valley. Products: their number falls, the work in one rises. "
            f"{self.finding(values, arrays)}"
        )


def _short(count: float) -> str:
    for unit, scale in (("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if count >= scale:
            return f"{number(count / scale, 1)} {unit}"
    return f"{number(count, 0)} FLOP"
