"""The bill of a model: operations of a pass, bytes of weights, cache and scores, and a rival."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.cost import (
    block_flops,
    block_parameters,
    cache_bytes_per_token,
    crossing_lengths,
    linear_flops,
    score_bytes,
    state_bytes,
)
from course.feature_maps import get_feature_map
from course.plots import COLOURS, INK, MARKERS, number
from course.widgets.base import Choice, Control, Explorer, Slider

NOTHING, SAME_WIDTH, TAYLOR = "nothing", "linear, features as wide as a key", "linear, Taylor-2"

#: Bytes of one number by the option's name.
ITEMSIZES = {"float32 (4 bytes)": 4, "bfloat16 (2 bytes)": 2, "int8 (1 byte)": 1}
SHORTEST, LONGEST = 128, 131_072
LENGTHS = np.round(np.geomspace(SHORTEST, LONGEST, 41)).astype(int)
_PARTS = ("weights", "cache", "scores")


class CostExplorer(Explorer):
    """Length, width, heads, layers and the size of a number → FLOPs, weights, cache, scores.

    To try: only E moves the crossing of the two lines of operations (T = 6E); heads change nothing
    but the scores; the cache grows with T and L, the scores with T² and not with L. Compared with
    linear attention: heads move its crossings (the width of a head), E alone does not.
    """

    title = "What does a model of this shape cost?"
    note = (
        "L blocks with a feed-forward part of 4E, one sequence, the full square of pairs computed; "
        "token table and output matrix are left out. "
        "Heads share the width: H·D = E. Scores: of one layer, if they are stored. "
        "Linear attention keeps its state in 4 bytes a number; where E/H is not whole, D is "
        "rounded down."
    )
    size = (9.2, 3.7)
    chief = "T"
    controls: ClassVar[dict[str, Control]] = {
        "T": Slider("Tokens T", 1_024, low=SHORTEST, high=LONGEST, log=True),
        "E": Slider("Model width E", 768, low=64, high=8_192, log=True),
        "H": Slider("Heads H", 12, low=1, high=64),
        "L": Slider("Layers L", 12, low=1, high=96),
        "dtype": Choice("Numbers", "bfloat16 (2 bytes)", tuple(ITEMSIZES)),
        "rival": Choice("Compare with", NOTHING, (NOTHING, SAME_WIDTH, TAYLOR)),
    }

    @staticmethod
    def compute(
        *, T: int, E: int, H: int, L: int, dtype: str, rival: str = NOTHING
    ) -> dict[str, Any]:
        """FLOPs ``rest`` and ``pairs`` of all blocks, bytes ``weights``, ``cache``, ``scores``.

        ``… over T`` is the same over ``LENGTHS``; ``crossing`` is the length from which on
        the pairs cost more than the rest; ``token`` is the cache of one token. The keys of all
        heads together are as wide as the stream (H·D = E), so H is needed for the scores only,
        and for a ``rival``: with one, ``register`` and ``state`` are its operations instead of
        the pairs and its bytes instead of the cache, and ``fewer`` and ``lighter`` the lengths
        from which on each is less. Without, they are NaN.
        """
        itemsize = ITEMSIZES[dtype]
        token = cache_bytes_per_token(L=L, kv_heads=1, D=E, itemsize=itemsize)
        weights = L * block_parameters(E)["total"] * itemsize

        def at(length: int) -> dict[str, int]:
            flops = block_flops(length, E=E)
            return {
                "rest": L * (flops["total"] - flops["attention"]),
                "pairs": L * flops["attention"],
                "weights": weights,
                "cache": length * token,
                "scores": score_bytes(length, H=H, itemsize=itemsize),
            }

        everywhere = [at(int(length)) for length in LENGTHS]
        curves = {
            f"{name} over T": np.array([float(one[name]) for one in everywhere])
            for name in everywhere[0]
        }
        amounts = at(T) | curves | {"T": T, "token": token, "crossing": 6 * E, "rival": rival}
        return amounts | _rival(rival, D=max(1, E // H), H=H, L=L, itemsize=itemsize)

    def build(self, figure: Figure, arrays: dict[str, Any]) -> None:
        """Operations and bytes against the length, with a point where the sliders stand."""
        left, right = figure.subplots(1, 2)
        self._lines: dict[str, Any] = {}
        self._points: dict[str, Any] = {}
        self._rulers = []
        labels = {
            "rest": "projections, feed-forward",
            "pairs": "pairs",
            "weights": "weights: 12E² + 13E a block",
            "cache": "cache: keys, values",
            "scores": "scores of a layer",
        }
        for axes, names in ((left, ("rest", "pairs")), (right, _PARTS)):
            for place, name in enumerate(names):
                colour = COLOURS[place if axes is left else place + 2]
                (self._lines[name],) = axes.plot(
                    LENGTHS, arrays[f"{name} over T"], color=colour, label=labels[name]
                )
                (self._points[name],) = axes.plot(
                    [], [], MARKERS[place], color=colour, markeredgecolor=INK
                )
            self._rulers.append(axes.axvline(arrays["T"], color=INK, linewidth=0.8, alpha=0.5))
            self._finish(axes)
        self._rivals = {
            name: axes.plot([], [], color=INK, linestyle=(0, (4, 2)), linewidth=1.6)[0]
            for axes, name in ((left, "register"), (right, "state"))
        }
        self._crossings = {
            name: axes.plot([], [], "X", color=INK, markersize=8, zorder=4)[0]
            for axes, name in ((left, "fewer"), (right, "lighter"))
        }
        self._words = [
            axes.annotate("", (1, 0.03), xycoords="axes fraction", ha="right", fontsize=9)
            for axes in (left, right)
        ]
        left.set(ylim=(3e6, 1e17))
        right.set(ylim=(1e4, 1e13))
        left.set_title("FLOPs of one pass", pad=38)
        right.set_title("bytes", pad=38)

    def _finish(self, axes: Axes) -> None:
        axes.set(xscale="log", yscale="log", xlim=(LENGTHS[0], LENGTHS[-1]), xlabel="tokens T")
        axes.set_xticks([128, 1_024, 8_192, 65_536], ["128", "1,024", "8,192", "65,536"])
        axes.minorticks_off()
        axes.grid(True)
        # Above the axes: wherever the lines go, it covers none.
        look: dict[str, Any] = {"handlelength": 1.4, "columnspacing": 1.2, "borderaxespad": 0.2}
        legend = axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderpad=0, **look)
        legend.set_zorder(-1)  # nothing moves there, so it is drawn once

    def update(self, arrays: dict[str, Any]) -> None:
        """Move the lines and the points."""
        for name, line in self._lines.items():
            line.set_ydata(arrays[f"{name} over T"])
            self._points[name].set_data([arrays["T"]], [arrays[name]])
        for ruler in self._rulers:
            ruler.set_xdata([arrays["T"], arrays["T"]])
        there = arrays["rival"] != NOTHING
        lengths = LENGTHS if there else LENGTHS[:0]
        state, register = arrays["state"] or 0.0, arrays["register"] or 0.0
        fewer, lighter = arrays["fewer"] or 0.0, arrays["lighter"] or 0.0
        self._rivals["register"].set_data(lengths, lengths * register)
        self._rivals["state"].set_data(lengths, np.full(len(lengths), state))
        self._crossings["fewer"].set_data([fewer], [fewer * register])
        self._crossings["lighter"].set_data([lighter], [state])
        for line in (*self._rivals.values(), *self._crossings.values()):
            line.set_visible(there)
        for words, text in zip(self._words, ("linear attention", "its state"), strict=True):
            words.set_text(f"dashed: {text}; ✖ crossing" if there else "")

    def finding(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """FLOPs, the share of the pairs, and the three amounts of bytes; which is the largest."""
        total = arrays["rest"] + arrays["pairs"]
        if values["rival"] != NOTHING:
            return _compared(values, arrays)
        heaviest = max(_PARTS, key=lambda name: arrays[name])
        return (
            f"One pass over {values['T']:,} tokens: {_flops(total)}, "
            f"{number(100 * arrays['pairs'] / total, 1)} % of it for pairs (half from "
            f"{arrays['crossing']:,} tokens on). Weights of the blocks "
            f"{size(arrays['weights'])}, cache "
            f"{size(arrays['cache'])} ({size(arrays['token'])} per token), scores of one layer "
            f"{size(arrays['scores'])}: the {heaviest} weigh{'s' if heaviest == 'cache' else ''} "
            "most."
        )

    def alt(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """Both panels in words."""
        rival = (
            " Dashed, linear attention's operations and its state, with crosses at the crossings."
            if arrays["rival"] != NOTHING
            else ""
        )
        return (
            "Two charts with logarithmic axes over the number of tokens. Left, operations: a line "
            "of slope 1 and one of slope 2 that cross. Right, bytes: weights flat, cache of slope "
            f"1, scores of slope 2.{rival} {self.finding(values, arrays)}"
        )


def _rival(rival: str, *, D: int, H: int, L: int, itemsize: int) -> dict[str, Any]:
    """Linear attention's operations a token, its state, and the lengths where it becomes less."""
    if rival == NOTHING:
        return dict.fromkeys(("register", "state", "fewer", "lighter"))
    C = get_feature_map("taylor").width(D) if rival == TAYLOR else D
    crossings = crossing_lengths(D=D, C=C, cache_itemsize=itemsize)
    return {
        "register": float(L * H * linear_flops(1, C=C, Dv=D)),
        "state": float(state_bytes(L=L, H=H, C=C, Dv=D)),
        "fewer": crossings["full square"],
        "lighter": crossings["memory"],
    }


def _compared(values: dict[str, Any], arrays: dict[str, Any]) -> str:
    """The sentence about the rival: both crossings, and what a whole pass can gain."""
    register = arrays["register"] * values["T"]
    gain = (arrays["rest"] + arrays["pairs"]) / (arrays["rest"] + register)
    return (
        f"Linear attention: fewer operations from {_from(arrays['fewer'])} tokens on; a state of "
        f"{size(arrays['state'])}, lighter than the cache (here {size(arrays['cache'])}) from "
        f"{_from(arrays['lighter'])} on; it divides the operations of the whole pass by "
        f"{number(gain, 2)} (at most by {number(1 + arrays['pairs'] / arrays['rest'], 2)})."
    )


def _from(length: float) -> str:
    """The first whole length above a crossing."""
    return f"{int(np.floor(length)) + 1:,}"


def size(nbytes: float) -> str:
    """Bytes in words, in the largest unit of which there is one."""
    for unit, power in (("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if nbytes >= 1_024**power:
            return f"{number(nbytes / 1_024**power, 1)} {unit}"
    return f"{nbytes:,.0f} bytes"


def _flops(count: float) -> str:
    for unit, scale in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9)):
        if count >= scale:
            return f"{number(count / scale, 1)} {unit}"
    return f"{number(count / 1e6, 1)} MFLOP"
