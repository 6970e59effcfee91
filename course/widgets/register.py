"""The register of linear attention: filled token by token, read by one query, beside the cache."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course.feature_maps import get_feature_map
from course.plots import COLOURS, INK, QUIET, SIGNED, colour_map, number, readable_on
from course.widgets.attention import fixed_normal
from course.widgets.base import Choice, Control, Explorer, Slider
from course.widgets.paint import change

WORDS = ("my", "cat", "lay", "on", "the", "mat", "because", "it")
WIDTH = 4  # of a key and of a value; these maps make as many features
PERPENDICULAR, RANDOM = "perpendicular, from word 5 again", "random directions"
#: Map by the option's name: (name of the feature map, whether it is divided by z).
MAPS = {
    "identity, not divided": ("identity", False),
    "elu+1, divided by z": ("elu", True),
    "relu, divided by z": ("relu", True),
}


class RegisterExplorer(Explorer):
    """Eight words written into one 4×4 matrix; one of them is asked for by its own key.

    To try: with perpendicular keys four words are read back exactly and the fifth falls onto the
    first; relu and z make an average of the two; random keys blur from the second word on; elu+1
    reads nearly the average of everything. The register never grows, the cache always does.
    """

    title = "One register for all words: what is written, what is read back?"
    note = (
        "Each word adds φ(key)·valueᵀ to S and φ(key) to z. The query is the key of the word asked "
        "for. Keys and values are fixed numbers, nothing is trained."
    )
    size = (9.4, 3.7)
    chief = "t"
    controls: ClassVar[dict[str, Control]] = {
        "t": Slider("Words read", 3, low=1, high=len(WORDS)),
        "word": Choice("Ask for", WORDS[0], WORDS),
        "keys": Choice("Keys", PERPENDICULAR, (PERPENDICULAR, RANDOM)),
        "map": Choice("Feature map", "identity, not divided", tuple(MAPS)),
    }

    @staticmethod
    def compute(*, t: int, word: str, keys: str, map: str) -> dict[str, Any]:
        """``S`` [4, 4], ``z`` [4], ``scores`` φ(q)·φ(k) and ``weights`` [8], ``reading`` [4].

        ``stored`` [4] is the value of the word asked for; ``error`` the distance of the reading
        relative to its length; ``cache`` and ``register`` count numbers kept. Words not yet read
        have score and weight 0.
        """
        k, values = _numbers()[keys]
        name, divided = MAPS[map]
        features = get_feature_map(name)(torch.from_numpy(k)).numpy()
        asked = WORDS.index(word)
        here = features[:t]
        S, z = here.T @ values[:t], here.sum(0)
        scores = np.zeros(len(WORDS))
        scores[:t] = here @ features[asked]
        total = float(features[asked] @ z) if divided else 1.0
        weights = scores / total if total else scores
        return {
            "t": t,
            "asked": asked,
            "features": features,
            "values": values,
            "S": S,
            "z": z,
            "scores": scores,
            "weights": weights,
            "reading": weights @ values,
            "stored": values[asked],
            "error": float(
                np.linalg.norm(weights @ values - values[asked]) / np.linalg.norm(values[asked])
            ),
            "cache": t * 2 * WIDTH,
            "register": S.size + (z.size if divided else 0),
            "divided": divided,
        }

    def build(self, figure: Figure, arrays: dict[str, Any]) -> None:
        """The cache, the register with z, a weight for each word, and what is read."""
        cache, register, weights, read = figure.subplots(1, 4, width_ratios=[1.5, 1.1, 0.9, 1.25])
        self._build_cache(cache)
        self._build_register(register)
        self._build_weights(weights)
        self._build_reading(read)

    def _build_cache(self, axes: Axes) -> None:
        shape = (len(WORDS), 2 * WIDTH + 1)
        self._cache = axes.imshow(
            np.zeros(shape), cmap=colour_map(SIGNED), norm=Normalize(-1.5, 1.5), aspect="auto"
        )
        _bare(axes, "cache: a row per word")
        axes.set_xticks([1.5, 6.5], ["φ(key)", "value"])
        # Texts, not tick labels: an axis with a changed label means that everything is drawn anew.
        self._words = [
            axes.text(-0.8, row, word, ha="right", va="center", fontsize=9)
            for row, word in enumerate(WORDS)
        ]
        self._newest = Rectangle((-0.5, 0), 9, 1, fill=False, edgecolor=INK, linewidth=1.6)
        axes.add_patch(self._newest)

    def _build_register(self, axes: Axes) -> None:
        self._register = axes.imshow(
            np.zeros((WIDTH, WIDTH + 2)), cmap=colour_map(SIGNED), norm=Normalize(-1, 1)
        )
        _bare(axes, "register")
        axes.set_xticks([1.5, 5], ["S: 4 × 4", "z"])
        self._cells = {
            (row, column): axes.text(column, row, "", ha="center", va="center", fontsize=8)
            for row in range(WIDTH)
            for column in (0, 1, 2, 3, 5)
        }

    def _build_weights(self, axes: Axes) -> None:
        axes.set_title("weight of a word")
        axes.set(xlim=(-1.6, 2.3), ylim=(len(WORDS) - 0.5, -0.5), xticks=[], yticks=[])
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        axes.axvline(0, color=QUIET, linewidth=0.8)
        self._bars = axes.barh(range(len(WORDS)), np.zeros(len(WORDS)), height=0.7)
        self._numbers = [axes.text(0, row, "", va="center", fontsize=8.5) for row in range(8)]

    def _build_reading(self, axes: Axes) -> None:
        place = np.arange(WIDTH)
        axes.set_title("stored and read")
        axes.set(ylim=(-2.5, 2.5), xticks=[], xlabel="coordinate of the value")
        axes.axhline(0, color=QUIET, linewidth=0.8)
        zeros = np.zeros(WIDTH)
        self._stored = axes.bar(place - 0.2, zeros, 0.38, color=COLOURS[0], label="stored")
        self._read = axes.bar(place + 0.2, zeros, 0.38, color=COLOURS[1], label="read")
        axes.legend(loc="upper right", ncols=2, borderaxespad=0, handlelength=1.2)

    def update(self, arrays: dict[str, Any]) -> None:
        """Fill rows and cells, move bars."""
        t, S, z = arrays["t"], arrays["S"], arrays["z"]
        rows = np.full((len(WORDS), 2 * WIDTH + 1), np.nan)
        rows[:t, :WIDTH], rows[:t, WIDTH + 1 :] = arrays["features"][:t], arrays["values"][:t]
        self._cache.set_data(rows)
        self._newest.set_y(t - 1.5)
        for row, word in enumerate(self._words):
            change(word, color=COLOURS[1] if row == arrays["asked"] else INK if row < t else QUIET)
        cells = np.full((WIDTH, WIDTH + 2), np.nan)
        cells[:, :WIDTH] = S
        if arrays["divided"]:
            cells[:, -1] = z
        norm = Normalize(-(limit := max(1.0, np.nanmax(np.abs(cells)))), limit)
        self._register.set_data(cells)
        self._register.set_clim(-limit, limit)
        colours = self._register.get_cmap()(norm(cells))
        for place, text in self._cells.items():
            value = cells[place]
            change(text, text="" if np.isnan(value) else number(value, 1))
            change(text, color=readable_on(colours[place]))
        for row, weight in enumerate(arrays["weights"]):
            self._bars[row].set_width(weight)
            self._bars[row].set_facecolor(COLOURS[1] if row == arrays["asked"] else COLOURS[0])
            change(self._numbers[row], text=number(weight, 2) if row < t else "")
            self._numbers[row].set_x(max(weight, 0) + 0.12)
        for bars, name in ((self._stored, "stored"), (self._read, "reading")):
            for bar, height in zip(bars, arrays[name], strict=True):
                bar.set_height(height)

    def finding(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """Numbers kept, who answers, and how far the reading is from what was stored."""
        t, asked, weights = arrays["t"], arrays["asked"], arrays["weights"]
        kept = (
            f"After {t} word{'s' if t > 1 else ''} the register keeps {arrays['register']} "
            f"numbers, the cache {arrays['cache']}"
        )
        question = f"asked for “{WORDS[asked]}”"
        if asked >= t:
            return f"{kept}; {question}, which was not read yet, it answers all the same."
        if not arrays["scores"].any():
            return f"{kept}; {question} it answers 0: the key has no feature."
        others = np.abs(np.delete(weights[:t], asked)).sum()
        return (
            f"{kept}; {question} it weighs that word with {number(weights[asked], 2)} and all "
            f"others together with {number(others, 2)}: the reading is off by "
            f"{number(100 * arrays['error'], 0)} %."
        )

    def alt(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """The four panels in words."""
        read = ", ".join(number(x, 2) for x in arrays["reading"])
        stored = ", ".join(number(x, 2) for x in arrays["stored"])
        return (
            "Heat map of the cache, one row for each word read; heat map of the 4 by 4 register "
            "with z beside it; bars of the weight of each word; paired bars of the value stored "
            f"({stored}) and the value read ({read}). {self.finding(values, arrays)}"
        )


def _bare(axes: Axes, title: str) -> None:
    axes.set_title(title)
    axes.set_yticks([])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


@lru_cache(maxsize=1)
def _numbers() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Keys [8, 4] and values [8, 4] by the keys' option; the same on every machine."""
    values = torch.tanh(fixed_normal("values in the register", len(WORDS), WIDTH)).numpy()
    random = fixed_normal("keys of the register", len(WORDS), WIDTH)
    random = (random / random.norm(dim=1, keepdim=True)).numpy()
    return {
        PERPENDICULAR: (np.tile(np.eye(WIDTH), (2, 1)), values),
        RANDOM: (random, values),
    }
