"""Crosstalk: pairs in one memory, which value leaks into which reading, the law of the error."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import FuncNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from torch import Tensor
from torch.nn.functional import normalize

from course.feature_maps import get_feature_map
from course.memory import draw_keys, leak_matrix, recall_error
from course.plots import COLOURS, INK, MARKERS, QUIET, SIGNED, colour_map, number
from course.widgets.base import Choice, Control, Explorer, Slider, Switch

MOST_PAIRS, WIDEST, WIDEST_TAYLOR = 64, 256, 64
OLDEST, MIDDLE, NEWEST = "the oldest", "one in the middle", "the newest"
LEAST_WRONG, MOST_WRONG = "the least wrong", "the most wrong"
READINGS = (OLDEST, MIDDLE, NEWEST, LEAST_WRONG, MOST_WRONG)
ADD, DELTA, SOFTMAX, BEST = (
    "add",
    "correct (delta rule)",
    "keep all pairs (softmax)",
    "best state (least squares)",
)
#: Option → (keys, mean cosine of two keys) of :func:`course.memory.draw_keys`.
KEYS: dict[str, tuple[str, float | None]] = {
    "random directions": ("gaussian", None),
    "perpendicular": ("orthonormal", None),
    "similar, mean cosine 0.3": ("correlated", 0.3),
    "similar, mean cosine 0.8": ("correlated", 0.8),
}
NO_MAP, TAYLOR = "none: the keys themselves", "Taylor-2"
MAPS = {NO_MAP: "identity", "elu + 1": "elu", TAYLOR: "taylor"}
#: Numbers of pairs at which the error is measured, and those between which the law is a line.
SIZES = (2, 4, 8, 16, 32, 64)
FINE = (2, 3, 4, 5, 6, 8, 11, 16, 20, 24, 28, 32, 36, 40, 44, 48, 56, 64)
_ENTRIES = 2**16  # of all leak matrices and features that one number of pairs may take: a few ms
_FEWEST, _MOST = 8, 400  # draws
_NONE = 1e-9  # less than this is rounding
_GAP = 0.01  # between a row and its frame


class _Memory(NamedTuple):
    """All that says how pairs are kept, but not how many; what does nothing has one value."""

    D: int
    keys: str
    map: str
    rule: str
    divide: bool
    decay: float
    beta: float


class CrosstalkExplorer(Explorer):
    """Pairs, width, keys, map and rule → the leak matrix, one reading in full, error and law.

    To try: twice the width holds twice the pairs with the same error; similar keys leak whatever
    the width; elu + 1 makes every leak positive, and divided by z it reads nearly the average of
    all; the delta rule reads the newest pair exactly and has forgotten the oldest; softmax with a
    sharpness of 16 hardly leaks, because it keeps every pair.
    """

    title = "Which values leak into a reading?"
    note = (
        "N pairs of a key (of length 1) and a random value are written one after another, and each "
        "is read with its own key. A reading is a sum of all values, each times its weight. "
        "Shares of a reading are shares of its squared length. The colours show the square root "
        "of the weight, so that small leaks can be seen."
    )
    size = (9.6, 3.8)
    chief = "N"
    controls: ClassVar[dict[str, Control]] = {
        "N": Slider("Pairs N", 16, low=2, high=MOST_PAIRS, log=True),
        "D": Slider("Key width D", 32, low=4, high=WIDEST, log=True),
        "keys": Choice("Keys", "random directions", tuple(KEYS)),
        "reading": Choice("Reading", MIDDLE, READINGS),
        "map": Choice("Feature map", NO_MAP, tuple(MAPS)),
        "divide": Switch("Divide by z", False),
        "rule": Choice("Rule", ADD, (ADD, DELTA, SOFTMAX, BEST)),
        "decay": Slider("Decay γ", 1.0, low=0.5, high=1.0, step=0.01),
        "beta": Slider("Step β", 1.0, low=0.05, high=1.0, step=0.05),
        "sharpness": Slider("Sharpness β", 16.0, low=0.125, high=64.0, log=True),
    }

    @staticmethod
    def compute(
        *,
        N: int,
        D: int,
        keys: str,
        reading: str,
        map: str,
        divide: bool,
        rule: str,
        decay: float,
        beta: float,
        sharpness: float,
    ) -> dict[str, Any]:
        """``weights`` [N, N], the leak matrix of one draw; ``read``, the row that is asked for.

        Of that row ``own``, ``share`` (what comes from other values, of its squared length),
        ``most`` (the value that leaks most) and ``off`` (its error). Of ``draws`` draws and all
        readings ``error`` (root mean square) with its 95 % interval ``low`` … ``high`` and
        ``law``, None where none is derived; ``errors`` and ``laws`` are those of ``sizes`` and
        ``fine`` numbers of pairs.

        Raises ``ValueError`` for more than D perpendicular keys, and where Taylor-2 would make too
        many features.
        """
        idle = CrosstalkExplorer.idle({"map": map, "rule": rule})
        memory = _Memory(
            D=D,
            keys=keys,
            map=NO_MAP if "map" in idle else map,
            rule=rule,
            divide=divide and "divide" not in idle,
            decay=1.0 if "decay" in idle else decay,
            beta=beta if rule == DELTA else sharpness if rule == SOFTMAX else 1.0,
        )
        _require_room(N, memory)
        possible = D if KEYS[keys][0] == "orthonormal" else MOST_PAIRS
        sizes = np.array([n for n in SIZES if n <= possible])
        # Beside D the law of the best state leaves 0.
        fine = np.array([n for n in sorted({*FINE, N, D, D + 1}) if n <= possible])
        here = _measured(N, memory)
        weights = here.weights
        off = np.linalg.norm(weights - np.eye(N), axis=1)
        read = _row(reading, off)
        row = weights[read]
        others = np.delete(row, read)
        square = float(row @ row)
        law = _law(N, memory)
        return {
            "weights": weights,
            "read": read,
            "own": float(row[read]),
            "share": float(others @ others) / square if square else 0.0,
            "most": int(np.argmax(np.abs(np.where(np.arange(N) == read, 0, row)))),
            "off": float(off[read]),
            "draws": here.draws,
            "error": here.error,
            "low": here.low,
            "high": here.high,
            "law": law,
            "sizes": sizes,
            "errors": np.array([_measured(int(n), memory).error for n in sizes]),
            "fine": fine[: 0 if law is None else None],
            "laws": np.array([] if law is None else [_law(int(n), memory) for n in fine]),
        }

    @staticmethod
    def idle(values: Mapping[str, Any]) -> Collection[str]:
        """Softmax has no map; only added features are divided or fade; each β has its rule."""
        unused = {
            ADD: {"beta", "sharpness"},
            DELTA: {"divide", "decay", "sharpness"},
            SOFTMAX: {"map", "divide", "decay", "beta"},
            BEST: {"divide", "decay", "beta", "sharpness"},
        }[values["rule"]]
        return unused | ({"divide"} if values["map"] == NO_MAP else set())

    def build(self, figure: Figure, arrays: dict[str, Any]) -> None:
        """The leak matrix, one of its rows as bars, the error over the number of pairs."""
        left, middle, right = figure.subplots(1, 3, width_ratios=[1.12, 1, 1.25])
        self._build_matrix(left)
        self._build_row(middle)
        self._build_law(right)

    def _build_matrix(self, axes: Axes) -> None:
        # From 0 to 1 whatever N is: the axes stay, and only what lies on them is drawn again.
        self._image = axes.imshow(
            np.zeros((2, 2)),
            cmap=colour_map(SIGNED),
            norm=FuncNorm((_root, _square), -1, 1),
            extent=(0, 1, 1, 0),
            interpolation="nearest",
        )
        axes.set_title("leak matrix L")
        axes.set(xticks=[], yticks=[], xlabel="whose value", ylabel="whose reading")
        axes.xaxis.labelpad, axes.yaxis.labelpad = 14, 22  # numbers are written between
        self._picked = Rectangle((0, 0), 1, 1, fill=False, edgecolor=INK, linewidth=1.6)
        self._picked.set_path_effects([withStroke(linewidth=3.2, foreground="white")])
        self._picked.set_clip_on(False)
        axes.add_patch(self._picked)
        look: dict[str, Any] = {"fontsize": 9, "color": INK}
        axes.text(0, 1.03, "1", ha="left", va="top", **look)
        self._last_column = axes.text(1, 1.03, "", ha="right", va="top", **look)
        self._top_row = axes.text(-0.03, 0, "1", ha="right", va="top", **look)
        self._bottom_row = axes.text(-0.03, 1, "", ha="right", va="bottom", **look)
        self._here = axes.text(-0.03, 0, "", ha="right", va="center", fontweight="bold", **look)
        bar = axes.figure.colorbar(self._image, ax=axes, shrink=0.8, pad=0.03)
        bar.outline.set_visible(False)
        bar.set_ticks([-1, -0.25, 0, 0.25, 1], labels=["−1", "−0.25", "0", "0.25", "1"])
        bar.ax.minorticks_off()
        bar.ax.tick_params(labelsize=8, length=2)

    def _build_row(self, axes: Axes) -> None:
        self._title = axes.set_title("reading in full")
        axes.set(xlim=(-0.02, 1.02), ylim=(-1.08, 1.6), xticks=[], xlabel="whose value")
        axes.set_yticks([-1, -0.5, 0, 0.5, 1], ["−1", "−0.5", "0", "0.5", "1"])
        axes.set_ylabel("weight in the reading", labelpad=1)
        axes.xaxis.labelpad = 14
        axes.axhline(0, color=QUIET, linewidth=0.8)
        self._bars = PolyCollection([], linewidth=0)
        axes.add_collection(self._bars, autolim=False)
        look: dict[str, Any] = {"fontsize": 9, "color": INK}
        axes.text(0, -1.14, "1", ha="left", va="top", **look)
        self._end = axes.text(1, -1.14, "", ha="right", va="top", **look)
        self._own = axes.text(0, 1.4, "", va="bottom", fontsize=9, color=COLOURS[1])
        self._leaks = axes.text(0, 1.18, "", va="bottom", fontsize=9, color=COLOURS[0])

    def _build_law(self, axes: Axes) -> None:
        axes.set_title("relative error")
        axes.set_xscale("log")
        axes.set_yscale("symlog", linthresh=0.01, linscale=0.5)
        axes.set(xlim=(1.7, 76), ylim=(-0.003, 150), xlabel="pairs N")
        axes.set_xticks(SIZES, [str(n) for n in SIZES])
        axes.set_yticks([0, 0.01, 0.1, 1, 10], ["0", "0.01", "0.1", "1", "10"])
        axes.minorticks_off()
        axes.grid(True)
        axes.axhline(1, color=INK, linewidth=0.9, linestyle=(0, (4, 2)), label="empty state")
        self._lawless = axes.text(70, 0.04, "no law derived", ha="right", fontsize=9, color=QUIET)
        (self._line,) = axes.plot([], [], color=QUIET, label="law")
        (self._sweep,) = axes.plot(
            [], [], MARKERS[0], color=COLOURS[0], alpha=0.45, label="measured", markersize=5
        )
        (self._interval,) = axes.plot([], [], "_-", color=INK, linewidth=1.4, markersize=10)
        (self._point,) = axes.plot(
            [], [], MARKERS[0], color=COLOURS[0], markeredgecolor=INK, label="this N, 95 %"
        )
        (self._one,) = axes.plot(
            [], [], MARKERS[3], color=COLOURS[1], fillstyle="none", markersize=9,
            markeredgewidth=2, label="framed reading",
        )  # fmt: skip
        axes.legend(loc="upper left", ncols=2, handletextpad=0.4, columnspacing=1.0, borderpad=0.1)

    def update(self, arrays: dict[str, Any]) -> None:
        """Recolour the matrix, move the frame, the bars, the line and the points."""
        weights, read = arrays["weights"], arrays["read"]
        N = len(weights)
        self._image.set_data(weights)
        self._picked.set_bounds(-_GAP, read / N - _GAP, 1 + 2 * _GAP, 1 / N + 2 * _GAP)
        for words in (self._last_column, self._bottom_row, self._end):
            words.set_text(str(N))
        centre = (read + 0.5) / N
        self._here.set_text(str(read + 1))
        self._here.set_y(centre)
        self._top_row.set_visible(read > 0 and centre > 0.1)
        self._bottom_row.set_visible(read < N - 1 and centre < 0.9)
        left, width = (np.arange(N) + 0.1) / N, 0.8 / N
        self._bars.set_verts(
            [
                [(x, 0), (x + width, 0), (x + width, weight), (x, weight)]
                for x, weight in zip(left, weights[read], strict=True)
            ]
        )
        self._bars.set_facecolor([COLOURS[1] if j == read else COLOURS[0] for j in range(N)])
        self._title.set_text(f"reading {read + 1} in full")
        self._own.set_text(f"own value × {_weight(arrays['own'])}")
        self._leaks.set_text(f"others: {_percent(arrays['share'])} of the reading")
        self._lawless.set_visible(arrays["law"] is None)
        self._line.set_data(arrays["fine"], arrays["laws"])
        self._sweep.set_data(arrays["sizes"], arrays["errors"])
        self._interval.set_data([N, N], [arrays["low"], arrays["high"]])
        self._point.set_data([N], [arrays["error"]])
        self._one.set_data([N], [arrays["off"]])

    def finding(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """What stands in the reading, by whom, and how wrong it and all readings are."""
        N, read, most = len(arrays["weights"]), arrays["read"], arrays["most"]
        whose = ""
        if arrays["share"] >= 0.005:
            whose = f", most from value {most + 1} (× {_weight(arrays['weights'][read, most])})"
        law = "no law is derived here" if arrays["law"] is None else f"law {_text(arrays['law'])}"
        return (
            f"Reading {read + 1} of {N}: {_percent(arrays['share'])} of its squared length comes "
            f"from other values{whose}; its own value × {_weight(arrays['own'])}; error "
            f"{_text(arrays['off'])}. All readings, {arrays['draws']} draws: error "
            f"{_text(arrays['error'])} [{_text(arrays['low'])}, {_text(arrays['high'])}]; {law}."
        )

    def alt(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """The three panels in words."""
        N = len(arrays["weights"])
        line = "no line of a law" if arrays["law"] is None else "the law as a line"
        return (
            f"Heat map of the {N} by {N} leak matrix with one row framed; bars of that row, its "
            "own value and what leaks from the others; the error over the number of pairs on "
            f"logarithmic axes, measured, with {line}. {self.finding(values, arrays)}"
        )


def _root(x: Any) -> Any:
    return np.sign(x) * np.sqrt(np.abs(x))


def _square(x: Any) -> Any:
    return np.sign(x) * np.square(x)


def _text(error: float) -> str:
    if error < _NONE:
        return "0"
    if error < 0.00005:
        return "under 0.0001"
    return number(error, 2 if error > 0.0995 else 3 if error > 0.00995 else 4)


def _weight(weight: float) -> str:
    return number(weight, 2 if abs(weight) > 0.0995 else 3)


def _percent(share: float) -> str:
    return "under 1 %" if _NONE**2 < share < 0.005 else f"{number(100 * share, 0)} %"


def _row(reading: str, off: np.ndarray) -> int:
    """The row of the reading that is asked for; ``off`` [N], the error of each."""
    places = {
        OLDEST: 0,
        MIDDLE: len(off) // 2,
        NEWEST: len(off) - 1,
        LEAST_WRONG: int(off.argmin()),
        MOST_WRONG: int(off.argmax()),
    }
    return places[reading]


def _require_room(N: int, memory: _Memory) -> None:
    D = memory.D
    if KEYS[memory.keys][0] == "orthonormal" and N > D:
        raise ValueError(f"Perpendicular keys: expected at most D = {D} of them, got N = {N}.")
    if memory.map == TAYLOR and D > WIDEST_TAYLOR:
        C = get_feature_map("taylor").width(D)
        raise ValueError(
            f"Taylor-2: expected D up to {WIDEST_TAYLOR} here, got {D}: {C:,} features."
        )


class _Measured(NamedTuple):
    """``weights`` [N, N] of the first draw, and what all draws together say."""

    weights: np.ndarray
    draws: int
    error: float
    low: float
    high: float


def _options(memory: _Memory) -> dict[str, Any]:
    """``rule``, ``decay`` and ``beta`` as :mod:`course.memory` names them."""
    plain = "divide" if memory.divide else "add"
    rule = {ADD: plain, DELTA: "delta", SOFTMAX: "softmax", BEST: "least_squares"}[memory.rule]
    return {"rule": rule, "decay": memory.decay, "beta": memory.beta}


@lru_cache(maxsize=64)
def _measured(N: int, memory: _Memory) -> _Measured:
    """The error over draws of keys. Values need not be drawn: their mean over all is known."""
    fm = get_feature_map(MAPS[memory.map])
    kind, cosine = KEYS[memory.keys]
    entries = N * max(N, fm.width(memory.D)) * (4 if memory.rule == BEST else 1)
    draws = int(np.clip(_ENTRIES // entries, _FEWEST, _MOST))
    k = draw_keys(N, memory.D, trials=draws, keys=kind, cosine=cosine)
    with torch.no_grad():
        features = fm(k) if memory.divide else normalize(fm(k), dim=-1)
    L = leak_matrix(features, **_options(memory))
    # Independent values of one mean square: |(L − I) V|² is on average that of L − I, times it.
    each = (L - torch.eye(N, dtype=L.dtype)).square().sum(-1).mean(-1)
    mean, half = each.mean().item(), 1.96 * each.std().item() / draws**0.5
    low, high = max(0.0, mean - half) ** 0.5, (mean + half) ** 0.5
    return _Measured(_frozen(L[0]), draws, mean**0.5, low, high)


def _frozen(x: Tensor) -> np.ndarray:
    """What is kept for the next time must not change in a reader's hands."""
    array = x.numpy().copy()
    array.setflags(write=False)
    return array


@lru_cache(maxsize=256)
def _law(N: int, memory: _Memory) -> float | None:
    """What theory says, as :func:`course.memory.recall_error` has it; nothing is measured here."""
    if memory.map != NO_MAP:
        return None
    kind, cosine = KEYS[memory.keys]
    options = _options(memory)
    return recall_error(N, memory.D, Dv=1, trials=2, keys=kind, cosine=cosine, **options).law
