"""The chunk size of linear attention: operations, numbers and products counted, time measured."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure

from course.cost import linear_flops, softmax_flops
from course.linear import linear_attention
from course.measure import processor_seconds
from course.plots import COLOURS, INK, MARKERS, number
from course.widgets.base import Control, Explorer, Slider

SIZES = 2 ** np.arange(13)  # 1 … 4,096: where the lines are drawn
CLOCKED = 1_024  # tokens of a run that is timed; so it is the largest chunk as well
PRODUCTS = 4  # of a chunk: Q Kᵀ, A V, Q S, Kᵀ V
# The chunk form as it is derived; the engine joins small chunks, and its clock would be of others.
_FORM: dict[str, Any] = {"impl": "reference", "form": "chunk"}
_PANELS: dict[str, tuple[tuple[str, str], ...]] = {
    "operations per token": (
        ("inside", "inside chunks"),
        ("between", "through S"),
        ("all", "both"),
    ),
    "numbers stored per token": (("scores", "scores A"), ("states", "states S"), ("kept", "both")),
    "matrix products": (("calls", "how many"), ("work", "FLOP in one")),
    "µs per token": (("time", "measured here"),),
}


class ChunkExplorer(Explorer):
    """Chunk size, length and width → operations, numbers stored, products, and a clock.

    To try: only B = 1 has the fewest operations and only B = √(C·Dv) the fewest numbers; the
    length moves the number of products and nothing else; a wide head wants larger chunks.
    """

    title = "How long should a chunk be?"
    note = (
        "Three charts count: one head, as many features as values are wide (C = Dv = D), the "
        "square inside a chunk computed whole; scores and states as they are if all are stored. "
        f"The fourth is a clock: this machine, {CLOCKED:,} tokens, processor time of the "
        "quickest of three runs, taken when a width is first shown."
    )
    size = (9.6, 3.7)
    chief = "B"
    controls: ClassVar[dict[str, Control]] = {
        "B": Slider("Chunk size B", 64, low=1, high=1_024, log=True),
        "T": Slider("Tokens T", 4_096, low=1_024, high=65_536, log=True),
        "D": Slider("Width D", 64, low=16, high=256, log=True),
    }

    @staticmethod
    def compute(*, B: int, T: int, D: int) -> dict[str, Any]:
        """Operations and numbers a token, ``calls`` and the operations (``work``) of a call.

        ``inside``, ``between`` and their sum ``all``; ``scores``, ``states`` and their sum
        ``kept``; ``… over B`` is the same over ``SIZES``. The last chunk may be short.
        ``time over B`` are measured microseconds per token over the sizes up to 1,024; ``timed`` is
        the one of them that is nearest to B, ``time`` what it takes.
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
        clock, nearest = _clock(D), int(np.abs(np.log2(SIZES / B)).argmin())
        measured = {"time over B": clock, "time": clock[nearest], "timed": int(SIZES[nearest])}
        counted = at(B) | curves | {"chunks": -(-T // B), "step by step": at(1)["all"]}
        return counted | measured | {"B": B}

    def build(self, figure: Figure, arrays: dict[str, Any]) -> None:
        """Four charts over the chunk size, with points where the sliders stand."""
        self._lines: dict[str, Any] = {}
        self._points: dict[str, Any] = {}
        self._rulers = []
        limits = ((3e1, 5e6), (5e-2, 1e5), (1, 1e11), (0.03, 1e3))
        for axes, (title, series), limit in zip(
            figure.subplots(1, 4), _PANELS.items(), limits, strict=True
        ):
            for place, (name, label) in enumerate(series):
                colour = INK if label == "both" else COLOURS[place]
                curve = arrays[f"{name} over B"]
                (self._lines[name],) = axes.plot(
                    SIZES[: len(curve)],
                    curve,
                    marker="." if name == "time" else "",
                    color=colour,
                    label=label,
                    zorder=2 + place,
                )
                (self._points[name],) = axes.plot(
                    [], [], MARKERS[place], color=colour, markeredgecolor="white", zorder=5
                )
            self._rulers.append(axes.axvline(arrays["B"], color=INK, linewidth=0.8, alpha=0.5))
            axes.set(xscale="log", yscale="log", xlim=(0.9, 4_600), ylim=limit)
            axes.set_title(title, pad=40, fontsize=10)
            axes.set_xticks([1, 16, 256, 4_096], ["1", "16", "256", "4,096"])
            axes.set_xlabel("chunk size B")
            axes.minorticks_off()
            axes.grid(True)
            # Above the axes: wherever the lines go, it covers none.
            look: dict[str, Any] = {"handlelength": 1.2, "columnspacing": 1, "borderaxespad": 0.2}
            legend = axes.legend(
                loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderpad=0, **look
            )
            legend.set_zorder(-1)  # nothing moves there, so it is drawn once

    def update(self, arrays: dict[str, Any]) -> None:
        """Move the lines and the points."""
        for name, line in self._lines.items():
            line.set_ydata(arrays[f"{name} over B"])
            there = "timed" if name == "time" else "B"
            self._points[name].set_data([arrays[there]], [arrays[name]])
        for ruler in self._rulers:
            ruler.set_xdata([arrays["B"], arrays["B"]])

    def finding(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """Operations against those of single steps, numbers stored, and the clock."""
        more = arrays["all"] / arrays["step by step"]
        return (
            f"{arrays['chunks']:,} chunks of {values['B']}: {arrays['all']:,.0f} operations per "
            f"token, {number(more, 2)} times those of B = 1, in {arrays['calls']:,} products of "
            f"{_short(arrays['work'])}; {arrays['kept']:,.0f} numbers stored per token (fewest at "
            f"B = {values['D']}). Measured here at B = {arrays['timed']}: ≈ "
            f"{arrays['time']:.2g} µs per token, least at B ≈ "
            f"{SIZES[arrays['time over B'].argmin()]}."
        )

    def alt(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """The three panels in words."""
        return (
            "Four charts with logarithmic axes over the chunk size. Operations: those inside "
            "chunks rise, those through the state are level. Numbers stored: scores rise, states "
            "fall, their sum has a valley. Products: their number falls, the work in one rises. "
            f"Time per token, measured: {_ends(arrays['time over B'])}. "
            f"{self.finding(values, arrays)}"
        )


def _short(count: float) -> str:
    for unit, scale in (("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if count >= scale:
            return f"{number(count / scale, 1)} {unit}"
    return f"{number(count, 0)} FLOP"


def _ends(clock: np.ndarray) -> str:
    return f"≈ {clock[0]:.2g} µs at B = 1, ≈ {clock[-1]:.2g} µs at B = {SIZES[len(clock) - 1]}"


@lru_cache(maxsize=32)
def _clock(D: int) -> np.ndarray:
    """Measured microseconds per token [11] of the course's chunk form, sizes from 1 to 1,024.

    One head of width D, no feature map, not divided: what the counts are of.
    """
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, CLOCKED, D, generator=generator, dtype=torch.float32)
    run = partial(linear_attention, q, k, v, causal=True, feature_map="identity", normalize=False)
    sizes = [int(size) for size in SIZES if size <= CLOCKED]
    runs = [partial(run, chunk_size=size, **_FORM) for size in sizes]
    with torch.no_grad():
        clock = 1e6 * np.array(processor_seconds(runs, repeats=3)) / CLOCKED
    clock.setflags(write=False)
    return clock
