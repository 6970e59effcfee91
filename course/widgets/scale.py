"""Key width and scale: what they make of 64 scores, their weights and the gradient that is left."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from course.attention import attention_weights
from course.plots import COLOURS, INK, MARKERS, QUIET, SIGNED, colour_map, number
from course.widgets.attention import fixed_normal
from course.widgets.base import Control, Explorer, Slider

KEYS, WIDEST, DRAWS = 64, 1024, 20
_SHOWN = 12  # rows and columns of the Jacobian that are drawn
_WIDTHS = np.geomspace(4, WIDEST, 60)
_HOLDS = 1 + 1e-9  # up to this spread the law is off by less than 5 % (notebook 03, section 2)


def spread_law(D: float | np.ndarray, *, power: float, size: float) -> Any:
    """Standard deviation of ``q·k / D^power`` for independent entries of standard deviation size.

    A sum of D independent products, each of variance ``size⁴``.
    """
    return size**2 * D ** (0.5 - power)


def effective_law(spread: float | np.ndarray) -> Any:
    """Effective tokens of many Gaussian scores: ``64·exp(−spread²/2)``.

    For 64 keys it holds up to a spread of 1; far beyond it says less than one token.
    """
    return KEYS * np.exp(-np.square(spread) / 2)


class ScaleExplorer(Explorer):
    """One query, 64 keys of random entries: scores divided by a power of D, and what follows.

    To try: at power ½ nothing changes with D; at power 0 the weights of a wide key are one token
    and the Jacobian is 0; at power 1 they become the plain mean; entries that are larger undo the
    division.
    """

    title = "How wide is the key, and by what is the score divided?"
    note = (
        "Query and keys have independent random entries, as before training. The score is q·k "
        "divided by D to the power p; dividing by √D is p = 0.5."
    )
    size = (9.2, 3.8)
    chief = "power"
    controls: ClassVar[dict[str, Control]] = {
        "D": Slider("Key width D", 64, low=4, high=WIDEST, step=4),
        "power": Slider("Power p", 0.5, low=0.0, high=1.0, step=0.05),
        "size": Slider("Size of entries", 1.0, low=0.2, high=2.0, step=0.1),
        "draw": Slider("Draw", 1, low=1, high=DRAWS),
    }

    @staticmethod
    def compute(*, D: int, power: float, size: float, draw: int) -> dict[str, Any]:
        """Of one draw ``scores``, ``weights`` [64] (largest first) and ``jacobian`` [12, 12].

        Of all 20 draws ``spread`` (standard deviation of the scores), ``effective`` (exp of the
        entropy, [20]) and ``trace`` [20]. :func:`effective_law` over the widths: ``law`` [60] where
        it holds, ``beyond`` [60] where it does not, each NaN elsewhere.
        """
        q, k = _draws()
        scores = size**2 / D**power * (k[:, :, :D] @ q[:, :D, None]).squeeze(-1)
        weights = _softmax(scores)
        order = np.argsort(-scores[draw - 1])
        w = weights[draw - 1, order]
        top = w[:_SHOWN]
        positive = np.where(weights > 0, weights, 1.0)
        spreads = spread_law(_WIDTHS, power=power, size=size)
        law, holds = effective_law(spreads), spreads <= _HOLDS
        return {
            "D": D,
            "draw": draw,
            "scores": scores[draw - 1, order],
            "weights": w,
            "jacobian": np.diag(top) - np.outer(top, top),
            "spread": float(scores.std()),
            "effective": np.exp(-(weights * np.log(positive)).sum(1)),
            "trace": 1 - np.square(weights).sum(1),
            "law": np.where(holds, law, np.nan),
            "beyond": np.where(holds, np.nan, law),
        }

    def build(self, figure: Figure, arrays: dict[str, Any]) -> None:
        """Weights as bars, a corner of the Jacobian, effective tokens against the width."""
        left, middle, right = figure.subplots(1, 3, width_ratios=[1.25, 1, 1.35])
        self._bars = left.bar(range(1, KEYS + 1), np.zeros(KEYS), width=0.9, color=COLOURS[0])
        left.set(ylim=(0, 1.05), xlim=(0, KEYS + 1), xlabel="key, largest score first")
        left.set_title("64 weights")
        self._image = middle.imshow(
            np.zeros((_SHOWN, _SHOWN)), cmap=colour_map(SIGNED), norm=Normalize(-0.25, 0.25)
        )
        middle.set(xticks=[], yticks=[], xlabel=f"score, the {_SHOWN} largest", ylabel="weight")
        middle.set_title("Jacobian ∂w/∂s")
        bar = figure.colorbar(self._image, ax=middle, shrink=0.75, pad=0.03)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=8, length=2)
        self._build_law(right)

    def _build_law(self, axes: Axes) -> None:
        axes.set_title("effective tokens")
        axes.set(xscale="log", xlim=(3.4, 1250), xlabel="key width D", ylim=(0, 67))
        axes.set_xticks([4, 16, 64, 256, 1024], ["4", "16", "64", "256", "1024"])
        axes.grid(True)
        (self._law,) = axes.plot(_WIDTHS, _WIDTHS, color=QUIET, label="law 64·exp(−σ²/2), σ ≤ 1")
        (self._beyond,) = axes.plot(
            _WIDTHS, _WIDTHS, color=QUIET, linestyle=(0, (2, 2)), label="σ > 1: it does not hold"
        )
        (self._all,) = axes.plot(
            [], [], MARKERS[0], color=COLOURS[0], alpha=0.35, label="20 draws", linestyle="none"
        )
        (self._one,) = axes.plot(
            [], [], MARKERS[3], color=COLOURS[1], markeredgecolor=INK, label="this draw"
        )
        axes.legend(  # below: the draws and the law can be anywhere
            loc="upper center", bbox_to_anchor=(0.42, -0.2), ncols=2, handletextpad=0.4,
            columnspacing=1.2, borderpad=0,
        )  # fmt: skip

    def update(self, arrays: dict[str, Any]) -> None:
        """Move the bars, the colours and the points."""
        for bar, weight in zip(self._bars, arrays["weights"], strict=True):
            bar.set_height(weight)
        self._image.set_data(arrays["jacobian"])
        self._law.set_ydata(arrays["law"])
        self._beyond.set_ydata(arrays["beyond"])
        effective = arrays["effective"]
        self._all.set_data(np.full(DRAWS, arrays["D"]), effective)
        self._one.set_data([arrays["D"]], effective[arrays["draw"] - 1 : arrays["draw"]])

    def finding(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """Spread, largest weight, effective tokens and trace, and what kind of row that is."""
        law = spread_law(values["D"], power=values["power"], size=values["size"])
        one = arrays["draw"] - 1
        largest = arrays["weights"][0]
        state = (
            "frozen"
            if largest > 0.99
            else "close to the plain mean"
            if arrays["effective"][one] > 0.95 * KEYS
            else "mostly one key"
            if largest > 0.5
            else "a mix"
        )
        return (
            f"Scores spread by {number(arrays['spread'], 2)} (law {number(law, 2)}); draw "
            f"{arrays['draw']} is {state}: largest weight {number(largest, 3)}, as spread out as "
            f"{number(arrays['effective'][one], 1)} of 64 equal tokens, Jacobian trace "
            f"{number(arrays['trace'][one], 3)}; over 20 draws "
            f"{number(arrays['effective'].mean(), 1)} tokens on average."
        )

    def alt(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """The three panels in words."""
        return (
            "Bars of 64 attention weights, largest first; a heat map of the Jacobian of softmax "
            "for the 12 largest, positive on its diagonal and negative beside it; effective "
            f"tokens of 20 draws over the key width with their law, dashed where it does not hold. "
            f"{self.finding(values, arrays)}"
        )


@lru_cache(maxsize=1)
def _draws() -> tuple[np.ndarray, np.ndarray]:
    """Queries [20, 1024] and keys [20, 64, 1024], the same on every machine."""
    q = [fixed_normal(f"query of draw {i}", WIDEST) for i in range(1, DRAWS + 1)]
    k = [fixed_normal(f"keys of draw {i}", KEYS, WIDEST) for i in range(1, DRAWS + 1)]
    return torch.stack(q).numpy(), torch.stack(k).numpy()


def _softmax(scores: np.ndarray) -> np.ndarray:
    """Softmax over the last axis [20, 64] by the course's own function: one query of width 64."""
    unit = torch.eye(KEYS, dtype=torch.float64)[None, None]
    q = torch.from_numpy(scores)[None, None]
    return attention_weights(q, unit, scale=1.0)[0, 0].numpy()
