"""One row of attention: scores → mask → softmax → weights → summary."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.attention import attention_weights
from course.plots import COLOURS, HIDDEN, INK, QUIET, WEIGHTS, colour_map, number
from course.widgets.base import Choice, Control, Explorer, Slider

WORDS = ("the", "cat", "lay", "on", "the", "mat", "because", "it")
NUMBERED = tuple(f"{place} {word}" for place, word in enumerate(WORDS, 1))
# A vector in the plane for each word, one for both "the". Chosen by hand, to be seen.
_PLANE = {
    "the": (-0.75, -0.70),
    "cat": (-0.45, 0.85),
    "lay": (0.35, 0.55),
    "on": (-0.35, -0.40),
    "mat": (0.80, 0.10),
    "because": (0.15, -0.85),
    "it": (0.75, -0.65),
}
VECTORS = np.array([_PLANE[word] for word in WORDS])
# [words that differ, words]: which words a point of the plane stands for.
_STANDS_FOR = np.array([[word == other for other in WORDS] for word in _PLANE])
PATTERNS = {
    "all equal": [0.0] * 8,
    "recent words higher": [-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5],
    "nouns higher": [-1.0, 1.8, 0.0, -1.0, -1.0, 1.5, -0.5, 0.5],
    "the future higher": [-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.0],
}
LOOKS = ("itself and before", "before only", "everything")
MINUS_INFINITY, FINITE, AFTER = "score becomes −∞", "score becomes −5", "weight becomes 0"
_LIMIT = 6.4


class RowExplorer(Explorer):
    """One query looks at eight words: its scores, the mask, the weights and the summary.

    To try: masking the score with −∞ leaves weights that add up to 1, masking the weight does not,
    and a finite score leaks; a high temperature gives the plain mean, temperature 0 one word.
    """

    title = "One row: score, mask, softmax, summary"
    size = (9.0, 3.5)
    chief = "temperature"
    controls: ClassVar[dict[str, Control]] = {
        "position": Slider("Position t", 6, low=1, high=len(WORDS)),
        "temperature": Slider("Temperature", 1.0, low=0.0, high=10.0, step=0.1),
        "pattern": Choice("Scores", "nouns higher", tuple(PATTERNS)),
        "word": Choice("Change a word", NUMBERED[1], NUMBERED),
        "extra": Slider("Add to its score", 0.0, low=-4.0, high=4.0, step=0.1),
        "look": Choice("May look at", LOOKS[0], LOOKS),
        "mask": Choice("Hidden words", MINUS_INFINITY, (MINUS_INFINITY, FINITE, AFTER)),
    }

    @staticmethod
    def compute(
        *,
        position: int,
        temperature: float,
        pattern: str,
        word: str,
        extra: float,
        look: str,
        mask: str,
    ) -> dict[str, Any]:
        """``scores``, ``visible``, ``masked``, ``weights`` [8], ``summary``, ``mean`` [2].

        ``position`` counts from 1, as the words in the list do; ``query`` and ``chosen`` say which
        words are meant. ``masked`` is what the softmax sees before the division by the temperature;
        ``weights`` at temperature 0 are the limit, shared by the words with the highest score.
        """
        positions = np.arange(1, len(WORDS) + 1)
        chosen = np.array(NUMBERED) == word
        scores = np.array(PATTERNS[pattern]) + extra * chosen
        visible = {
            "itself and before": positions <= position,
            "before only": positions < position,
            "everything": positions > 0,
        }[look]
        finite_or_none = {MINUS_INFINITY: -np.inf, FINITE: -5.0, AFTER: scores}[mask]
        masked = np.where(visible, scores, finite_or_none)
        weights = _softmax(masked, temperature)
        if mask == AFTER:
            weights = np.where(visible, weights, 0.0)
        mean = VECTORS[visible].mean(0) if visible.any() else np.zeros(2)
        return {
            "query": positions == position,
            "chosen": chosen,
            "scores": scores,
            "visible": visible,
            "masked": masked,
            "weights": weights,
            "summary": weights @ VECTORS,
            "mean": mean,
        }

    def build(self, figure: Figure, arrays: dict[str, Any]) -> None:
        """Three bar charts over the words, and the plane of vectors with the summary."""
        grid = figure.subplots(1, 4, width_ratios=[1, 1, 1, 1.75])
        self._bars, self._numbers = [], []
        self._shown: dict[str, np.ndarray] = {}
        titles = ("1  score", "2  after the mask", "3  weight")
        for place, (axes, title) in enumerate(zip(grid, titles, strict=False)):
            axes.set_title(title)
            axes.set_ylim(len(WORDS) - 0.4, -0.6)
            axes.set(xticks=[], yticks=[])
            for side in ("left", "bottom"):
                axes.spines[side].set_visible(False)
            self._bars.append(axes.barh(range(len(WORDS)), np.zeros(len(WORDS)), height=0.7))
            self._numbers.append(
                [axes.text(0, row, "", va="center", fontsize=8.5) for row in range(len(WORDS))]
            )
            if place < 2:
                axes.axvline(0, color=QUIET, linewidth=0.8)
                axes.set_xlim(-_LIMIT, _LIMIT)
            else:
                axes.set_xlim(0, 1.28)
        # Texts, not tick labels: an axis with a changed label means that everything is drawn anew.
        self._words = [
            grid[0].text(
                -0.03,
                row,
                word,
                transform=grid[0].get_yaxis_transform(),
                ha="right",
                va="center",
                fontsize=9,
            )
            for row, word in enumerate(WORDS)
        ]
        grid[0].text(
            0,
            len(WORDS) - 0.2,
            "orange: the word you change",
            color=COLOURS[1],
            ha="center",
            va="top",
            fontsize=8.5,
        )
        self._softmax_axes = grid[2]
        self._build_plane(grid[3])

    def _build_plane(self, axes: Axes) -> None:
        axes.set_title("4  summary = Σ weight · vector")
        axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), xticks=[-1, 0, 1], yticks=[-1, 0, 1])
        axes.set_aspect("equal")
        axes.set_xlabel("first coordinate")
        axes.set_ylabel("second coordinate", labelpad=-4)
        axes.grid(True)
        self._rays = [axes.plot([], [], color=QUIET, zorder=1)[0] for _ in _PLANE]
        self._dots = axes.scatter(
            *zip(*_PLANE.values(), strict=True), zorder=2, edgecolors=QUIET, linewidths=0.8
        )
        self._names = [
            axes.annotate(
                word, place, xytext=(0, 9), textcoords="offset points", ha="center", fontsize=8.5
            )
            for word, place in _PLANE.items()
        ]
        (self._mean,) = axes.plot(
            [], [], "x", color=INK, markersize=8, markeredgewidth=1.8, label="plain mean", zorder=4
        )
        (self._summary,) = axes.plot(
            [],
            [],
            "*",
            color=COLOURS[1],
            markersize=17,
            markeredgecolor="white",
            label="summary",
            zorder=5,
        )
        axes.legend(loc="upper right", handletextpad=0.2, borderpad=0.1, borderaxespad=0.1)

    def update(self, arrays: dict[str, Any]) -> None:
        """Move bars, numbers, dots and the star; leave alone what did not change."""
        weights, visible = arrays["weights"], arrays["visible"]
        query, chosen = arrays["query"], arrays["chosen"]
        for row in self._news("words", np.stack([visible, query])):
            self._words[row].set_color(INK if visible[row] else QUIET)
            self._words[row].set_fontweight("bold" if query[row] else "normal")
        for row in self._news("scores", np.stack([arrays["scores"], chosen])):
            self._set_bar(0, row, arrays["scores"][row], COLOURS[1] if chosen[row] else COLOURS[0])
        for row in self._news("masked", np.stack([arrays["masked"], visible])):
            self._set_bar(1, row, arrays["masked"][row], COLOURS[0] if visible[row] else HIDDEN)
        colours = colour_map(WEIGHTS)(weights)
        for row in self._news("weights", weights):
            self._set_weight(row, weights[row], colours[row])
        self._update_plane(arrays)
        self._softmax_axes.set_title(f"3  weight, sum {number(weights.sum(), 2)}")

    def _update_plane(self, arrays: dict[str, Any]) -> None:
        weights, summary = _STANDS_FOR @ arrays["weights"], arrays["summary"]
        seen = _STANDS_FOR @ arrays["visible"]
        for ray, name, place, weight, ink in zip(
            self._rays, self._names, _PLANE.values(), weights, seen, strict=True
        ):
            ray.set_data(*np.stack([summary, place], 1))
            ray.set_linewidth(0.4 + 6 * weight)
            ray.set_visible(weight > 0.005)
            name.set_color(INK if ink else QUIET)
        self._dots.set_sizes(40 + 260 * weights)
        # No weight at all is pale, not the darkest of the colours.
        fill = np.where(weights[:, None] > 0, colour_map(WEIGHTS)(weights), (0.95, 0.95, 0.96, 1))
        self._dots.set_facecolor([tuple(colour) for colour in fill])
        self._summary.set_data(*summary[:, None])
        self._mean.set_data(*arrays["mean"][:, None])
        self._mean.set_visible(bool(arrays["visible"].any()))

    def _news(self, name: str, now: np.ndarray) -> list[int]:
        """The words (last axis) whose numbers ``now`` are not those of the last call."""
        before = self._shown.get(name)
        self._shown[name] = now.copy()
        if before is None:
            return list(range(now.shape[-1]))
        same = (now == before).reshape(-1, now.shape[-1]).all(0)
        return [int(row) for row in np.flatnonzero(~same)]

    def _set_bar(self, column: int, row: int, value: float, colour: str) -> None:
        bar, text = self._bars[column][row], self._numbers[column][row]
        bar.set_facecolor(colour)
        if np.isneginf(value):
            # −∞ has no bar: a grey band to the edge of the picture.
            bar.set_width(-_LIMIT)
            text.set_text("−∞")
            text.set_x(0.4)
            text.set_ha("left")
            return
        bar.set_width(value)
        text.set_text(number(value, 1))
        text.set_x(value + (0.4 if value >= 0 else -0.4))
        text.set_ha("left" if value >= 0 else "right")

    def _set_weight(self, row: int, weight: float, colour: tuple[float, ...]) -> None:
        bar, text = self._bars[2][row], self._numbers[2][row]
        bar.set_width(weight)
        bar.set_facecolor(colour)
        bar.set_edgecolor(QUIET)
        text.set_text(number(weight, 2))
        text.set_x(weight + 0.04)

    def finding(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """Who gets most, how many words share, and what the mask has or has not done."""
        weights, visible = arrays["weights"], arrays["visible"]
        query = _named(values["position"] - 1)
        if not visible.any() and weights.sum() == 0:
            return (
                f"{query} may look at nothing: all weights are 0, the summary is the zero vector."
            )
        total, hidden = float(weights.sum()), float(weights[~visible].sum())
        best = weights.max()
        winners = [_named(int(i)) for i in np.flatnonzero(weights > best - 1e-9)]
        most = (
            f"{winners[0]} gets most, {number(best, 2)}"
            if len(winners) == 1
            else f"{len(winners)} words get {number(best, 2)} each"
        )
        parts = [
            f"{query} sees {int(visible.sum())} of {len(WORDS)} words; {most}; "
            f"the weights add up to {number(total, 2)}"
        ]
        if hidden > 0:
            parts.append(f"the hidden words get {number(hidden, 3)} of that: −5 is not −∞")
        elif total < 1 - 1e-9:
            parts.append(f"{number(1 - total, 2)} was spent on hidden words and is lost")
        elif best > 0.995:
            parts.append("one word takes it all")
        else:
            parts.append(f"they are as spread out as {number(_effective(weights), 1)} equal ones")
        return "; ".join(parts) + "."

    def alt(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """The four panels in words."""
        pairs = ", ".join(
            f"{word} {number(weight, 2)}"
            for word, weight in zip(WORDS, arrays["weights"], strict=True)
        )
        x, y = (number(c, 2) for c in arrays["summary"])
        return (
            "Bars over eight words: score, score after the mask, weight; beside them the words as "
            f"points in a plane and a star for their weighted average at ({x}, {y}). "
            f"Weights: {pairs}."
        )


def _named(place: int) -> str:
    """A word in quotation marks; one that occurs twice with its number."""
    word = WORDS[place]
    return f"“{word}”" if WORDS.count(word) == 1 else f"“{word}” (word {place + 1})"


def _softmax(scores: np.ndarray, temperature: float) -> np.ndarray:
    """Softmax of ``scores / temperature`` [S]; 0 is the limit, −∞ gets no weight."""
    highest = scores.max()
    if np.isneginf(highest):
        return np.zeros_like(scores)
    with np.errstate(over="ignore"):  # a tiny temperature: all but the highest go to −∞
        below = np.where(scores == highest, 0.0, (scores - highest) / max(temperature, 1e-300))
    bias = torch.from_numpy(below).reshape(1, 1, 1, -1)
    q, k = torch.zeros(1, 1, 1, 1).double(), torch.zeros(1, 1, len(scores), 1).double()
    return attention_weights(q, k, bias=bias).reshape(-1).numpy()


def _effective(weights: np.ndarray) -> float:
    """exp(entropy): how many equal weights would be as spread out as these."""
    positive = weights[weights > 0]
    return float(np.exp(-(positive * np.log(positive)).sum()))
