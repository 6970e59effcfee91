"""A feature map's attention matrix beside softmax's, and how far apart they lie."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from course.attention import attention_weights
from course.feature_maps import get_feature_map, total_variation
from course.linear import linear_attention
from course.plots import COLOURS, INK, MARKERS, QUIET, WEIGHTS, colour_map, number
from course.widgets.attention import fixed_normal
from course.widgets.base import Choice, Control, Explorer, Slider

TOKENS, D, DRAWS = 64, 16, 12
SIZES = np.round(np.arange(0.2, 2.51, 0.1), 1)
_SEEN = np.tri(TOKENS, dtype=bool)

#: Option → (name, options, scale). Maps that imitate exp(q·k/√D) see scores divided by √D; the
#: others see q and k as they are, as their papers have it.
MAPS: dict[str, tuple[str, dict[str, Any], float]] = {
    "elu + 1": ("elu", {}, 1.0),
    "elu + 1 of scaled q, k": ("elu", {}, D**-0.5),
    "relu": ("relu", {}, 1.0),
    "Taylor-2": ("taylor", {}, D**-0.5),
    "FAVOR+, 256 features": ("favor", {}, D**-0.5),
    "cosFormer": ("cosformer", {"max_length": TOKENS}, 1.0),
    "DPFP": ("dpfp", {}, 1.0),
}


def uniform_law(spread: float | np.ndarray) -> Any:
    """Distance of softmax from the plain average for many Gaussian scores: ``2Φ(spread/2) − 1``."""
    return np.vectorize(math.erf)(np.asarray(spread) / math.sqrt(8))


class FeatureMapExplorer(Explorer):
    """Map, length of q and k, draw → its attention matrix, softmax's, and their distance.

    To try: elu + 1 is as good as the average at every length, and looks like it; Taylor-2 is
    nearly softmax below length 1, and nothing like it at 2; relu is the same at every length.
    """

    title = "Which map comes near to softmax?"
    note = (
        "64 tokens, causal; q and k have 16 independent random entries, as before training, times "
        "the length factor. Distance: the share of a row's weight that must be moved, on average "
        "over the rows. The colours show the square root, so that small weights can be seen."
    )
    size = (9.4, 3.5)
    chief = "map"
    controls: ClassVar[dict[str, Control]] = {
        "map": Choice("Feature map", "elu + 1", tuple(MAPS)),
        "length": Slider("Length of q, k", 1.0, low=0.2, high=2.5, step=0.1),
        "draw": Slider("Draw", 1, low=1, high=DRAWS),
    }

    @staticmethod
    def compute(*, map: str, length: float, draw: int) -> dict[str, Any]:
        """``softmax`` and ``mapped`` weights [64, 64]; distances over the rows, and over SIZES.

        ``distance``: map to softmax; ``plain``: uniform average to softmax; ``between``: map to
        the uniform average. ``… over sizes`` [24] the same for this draw; ``empty``: rows
        without any weight.
        """
        curves = _distances(map, draw)
        softmax, mapped, uniform = _weights(map, draw, length)
        distance, plain, between = _apart(softmax, mapped, uniform)
        return {
            "length": length,
            "softmax": softmax.numpy(),
            "mapped": mapped.numpy(),
            "distance": distance,
            "plain": plain,
            "between": between,
            "empty": int((mapped.sum(-1) < 0.5).sum()),
            "distance over sizes": curves[0],
            "plain over sizes": curves[1],
        }

    def build(self, figure: Figure, arrays: dict[str, Any]) -> None:
        """Two heat maps and the distances over the length factor."""
        left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1, 1.35])
        self._images = []
        for axes, title in ((left, "softmax"), (middle, "this map")):
            image = axes.imshow(
                np.zeros((TOKENS, TOKENS)), cmap=colour_map(WEIGHTS), norm=PowerNorm(0.5, 0, 1)
            )
            axes.set(xticks=[0, TOKENS - 1], yticks=[0, TOKENS - 1], title=title, xlabel="key")
            axes.set_xticklabels(["1", str(TOKENS)])
            axes.set_yticklabels(["1", str(TOKENS)])
            self._images.append(image)
        left.set_ylabel("query")
        bar = figure.colorbar(self._images[1], ax=middle, shrink=0.75, pad=0.03)
        bar.outline.set_visible(False)
        bar.set_ticks([0, 0.1, 0.5, 1])
        bar.ax.tick_params(labelsize=8, length=2)
        right.set(xlim=(0.1, 2.6), ylim=(0, 1.02), xlabel="length factor f of q and k")
        right.set_title("distance from softmax")
        right.grid(True)
        fine = np.linspace(0.1, 2.6, 60)
        right.plot(fine, uniform_law(fine**2), color=QUIET, label="average: law, many keys")
        (self._plain,) = right.plot(
            SIZES, SIZES, MARKERS[1], color=COLOURS[5], label="average: measured", markersize=4
        )
        (self._mapped,) = right.plot(
            SIZES, SIZES, MARKERS[0], color=COLOURS[0], label="this map", markersize=4
        )
        (self._here,) = right.plot([], [], MARKERS[3], color=COLOURS[1], markeredgecolor=INK)
        right.legend(loc="lower right", handletextpad=0.4, borderpad=0.2)

    def update(self, arrays: dict[str, Any]) -> None:
        """Recolour both matrices and move the points."""
        for image, name in zip(self._images, ("softmax", "mapped"), strict=True):
            image.set_data(np.where(_SEEN, arrays[name], np.nan))
        self._plain.set_ydata(arrays["plain over sizes"])
        self._mapped.set_ydata(arrays["distance over sizes"])
        self._here.set_data([arrays["length"]], [arrays["distance"]])

    def finding(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """The three distances, and to whom the map is nearer."""
        nearer = "the average" if arrays["between"] < arrays["distance"] else "softmax"
        rows = "1 row is" if arrays["empty"] == 1 else f"{arrays['empty']} rows are"
        empty = f" {rows} empty." if arrays["empty"] else ""
        return (
            f"{values['map']}, length {number(values['length'], 1)}, draw {values['draw']}: "
            f"{number(arrays['distance'], 3)} from softmax, "
            f"{number(arrays['between'], 3)} from the uniform average, so nearer to {nearer}. "
            f"The average itself is {number(arrays['plain'], 3)} from softmax (law for many keys: "
            f"{number(uniform_law(values['length'] ** 2), 3)}).{empty}"
        )

    def alt(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """The three panels in words."""
        return (
            "Two heat maps of causal attention weights over 64 tokens, softmax's and the feature "
            "map's; the distance of the map and of the plain average from softmax over the length "
            f"of q and k, with a law. {self.finding(values, arrays)}"
        )


def _weights(option: str, draw: int, length: float) -> tuple[Tensor, Tensor, Tensor]:
    """Weights [64, 64] of softmax, of the map and of the uniform average."""
    name, options, scale = MAPS[option]
    q, k = (length * x for x in _draw(draw))
    softmax = attention_weights(q, k, causal=True)
    # Values that are unit vectors make the output the row of weights.
    unit = torch.eye(TOKENS, dtype=torch.float64)[None, None]
    fm = get_feature_map(name, **options)
    mapped = linear_attention(
        q, k, unit, causal=True, feature_map=fm, form="parallel", impl="reference", scale=scale
    )
    rows = torch.arange(1, TOKENS + 1, dtype=torch.float64)
    uniform = torch.ones(TOKENS, TOKENS, dtype=torch.float64).tril() / rows[:, None]
    return softmax[0, 0], mapped[0, 0], uniform


def _apart(softmax: Tensor, mapped: Tensor, uniform: Tensor) -> tuple[float, float, float]:
    pairs = (mapped, softmax), (uniform, softmax), (mapped, uniform)
    distance, plain, between = (float(total_variation(a, b).mean()) for a, b in pairs)
    return distance, plain, between


@lru_cache(maxsize=len(MAPS) * DRAWS)
def _distances(option: str, draw: int) -> tuple[np.ndarray, np.ndarray]:
    """Map to softmax, and average to softmax, over ``SIZES``."""
    found = [_apart(*_weights(option, draw, float(size)))[:2] for size in SIZES]
    mapped, plain = np.array(found).T
    return mapped, plain


@lru_cache(maxsize=DRAWS)
def _draw(draw: int) -> tuple[Tensor, Tensor]:
    """Queries and keys [1, 1, 64, 16], the same on every machine."""
    q, k = (fixed_normal(f"{name} of draw {draw}", TOKENS, D) for name in ("queries", "keys"))
    return q[None, None], k[None, None]
