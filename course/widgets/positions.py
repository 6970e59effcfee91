"""Four schemes of position: what the distance does to the score, and what lies beyond training."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from course.attention import attention_weights
from course.plots import COLOURS, HIDDEN, INK, MARKERS, QUIET, SIGNED, colour_map, number
from course.positions import alibi_bias, apply_rope
from course.widgets.attention import fixed_normal
from course.widgets.base import Choice, Control, Explorer, Slider

T, TRAINED, D, HEADS = 128, 64, 32, 4
REFERENCE = TRAINED // 2 - 1  # the query to compare with: in the middle of what was trained
LEARNED, SINUSOIDAL, ROPE, ALIBI = "learned", "sinusoidal", "RoPE", "ALiBi"
SCHEMES = (LEARNED, SINUSOIDAL, ROPE, ALIBI)
PLAIN, MIXED = "none: q and k are the stream", "random W_q and W_k"
_LIMIT = 8.0
_TICKS = (0, 32, 64, 96, 127)


class PositionExplorer(Explorer):
    """The same word at 128 places: its scores by distance, for a query at a place of your choice.

    To try: RoPE and ALiBi give one curve wherever the query stands, the tables do not once maps
    stand between; a table's rows from 64 on were never trained; dividing the places brings far
    ones back into the trained range.
    """

    title = "What does the distance do to the score?"
    note = (
        "The same word stands at all 128 places, so only positions differ. Nothing is trained "
        "here; grey marks what a model trained on windows of 64 has never met."
    )
    size = (9.2, 4.1)
    chief = "place"
    controls: ClassVar[dict[str, Control]] = {
        "scheme": Choice("Scheme", ROPE, SCHEMES),
        "place": Slider("Query stands at", T - 1, low=0, high=T - 1),
        "head": Slider("Head", 1, low=1, high=HEADS),
        "maps": Choice("Maps", MIXED, (PLAIN, MIXED)),
        "stretch": Slider("Divide places by", 1.0, low=1.0, high=4.0, step=0.5),
    }

    @staticmethod
    def compute(*, scheme: str, place: int, head: int, maps: str, stretch: float) -> dict[str, Any]:
        """``scores`` and causal ``weights`` [T, T] of one head; ``far``, ``near`` by distance.

        ``far[d]`` is the score of the query at ``place`` with the key d places before it,
        ``near[d]`` of the query at place 31. ``beyond`` counts the distances of ``far`` that,
        after the division of the places, exceed the 63 of a trained window.
        """
        places = torch.arange(T, dtype=torch.float64) / stretch
        x = fixed_normal(f"the word of head {head}", D).expand(T, D)
        if scheme in (LEARNED, SINUSOIDAL):
            x = x + (_table(places) if scheme == LEARNED else _waves(places))
        q, k = (_map(x, name, head, maps)[None, None] for name in ("W_q", "W_k"))
        bias = None
        if scheme == ROPE:
            q, k = apply_rope(q, positions=places), apply_rope(k, positions=places)
        elif scheme == ALIBI:
            bias = alibi_bias(HEADS, T)[None, head - 1 : head].double() / stretch
        scores = (q @ k.mT)[0, 0] / D**0.5 + (0 if bias is None else bias[0, 0])
        weights = attention_weights(q, k, causal=True, bias=bias)[0, 0]
        return {
            "place": place,
            "scores": scores.numpy(),
            "weights": weights.numpy(),
            "far": scores[place, : place + 1].flip(0).numpy(),
            "near": scores[REFERENCE, : REFERENCE + 1].flip(0).numpy(),
            "beyond": sum(d / stretch > TRAINED - 1 for d in range(place + 1)),
            "edge": min((TRAINED - 1) * stretch, T),
        }

    def build(self, figure: Figure, arrays: dict[str, Any]) -> None:
        """The score matrix; beside it score and weight against the distance."""
        grid = figure.add_gridspec(2, 2, width_ratios=[1, 1.35])
        self._build_map(figure.add_subplot(grid[:, 0]))
        upper, lower = figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[1, 1])
        self._bands, self._lines, self._dots = [], [], []
        for axes, name, ticks in (
            (upper, "score", (-_LIMIT, 0.0, _LIMIT)),
            (lower, "weight", (0.0, 0.25, 0.5)),
        ):
            axes.set(xlim=(0, T), ylim=(ticks[0], ticks[-1]), ylabel=name, yticks=ticks)
            axes.set_xticks(_TICKS, [""] * 5 if axes is upper else None)
            axes.grid(True)
            self._bands.append(axes.axvspan(TRAINED, T, color=HIDDEN, alpha=0.6, zorder=0))
            (line,) = axes.plot([], [], color=COLOURS[0])
            (dots,) = axes.plot(
                [],
                [],
                MARKERS[0],
                color=COLOURS[1],
                markersize=4,
                linestyle="none",
            )
            self._lines.append(line)
            self._dots.append(dots)
        # In the title, not in a legend: a legend costs an eighth of each redraw.
        upper.set_title(f"Line: chosen query, points: query at {REFERENCE}")
        lower.set_xlabel("distance from query to key")

    def _build_map(self, axes: Axes) -> None:
        self._image = axes.imshow(
            np.zeros((T, T)),
            cmap=colour_map(SIGNED),
            norm=Normalize(-_LIMIT, _LIMIT),
            interpolation="nearest",
        )
        axes.set_title("Scores")
        axes.set(xlabel="place of the key", ylabel="place of the query")
        axes.set(xticks=_TICKS, yticks=_TICKS)
        for draw in (axes.axhline, axes.axvline):
            draw(TRAINED - 0.5, color=QUIET, linewidth=1.0, linestyle=(0, (4, 3)))
        (self._row,) = axes.plot([], [], color=INK, linewidth=1.2)

    def update(self, arrays: dict[str, Any]) -> None:
        """Move colours, curves and the grey band."""
        scores, weights, place = arrays["scores"], arrays["weights"], arrays["place"]
        self._image.set_data(np.where(np.tri(T, dtype=bool), scores, np.nan))
        self._row.set_data([-0.5, place], [place, place])
        curves = (
            (arrays["far"], arrays["near"]),
            (weights[place, place::-1], weights[REFERENCE, REFERENCE::-1]),
        )
        for line, dots, band, (far, near) in zip(
            self._lines, self._dots, self._bands, curves, strict=True
        ):
            line.set_data(np.arange(len(far)), far)
            dots.set_data(np.arange(len(near)), near)
            band.set_x(arrays["edge"])
            band.set_width(T - arrays["edge"])

    def finding(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """Whether the distance alone decides, how much is new, and how wide the query looks."""
        far, near = arrays["far"], arrays["near"]
        both = min(len(far), len(near))
        apart = float(np.abs(far[:both] - near[:both]).max())
        how = (
            "its scores are the same at the same distances"
            if apart < 1e-9
            else f"its scores at the same distances change by up to {number(apart, 2)}"
        )
        row = arrays["weights"][values["place"]]
        positive = row[row > 0]
        spread = float(np.exp(-(positive * np.log(positive)).sum()))
        return (
            f"{values['scheme']}, head {values['head']}: moved from place {REFERENCE} to "
            f"{values['place']}, {how}; {arrays['beyond']} of {len(far)} distances lie beyond "
            f"training; the nearest key scores {number(far[0], 2)}, the farthest "
            f"{number(far[-1], 2)}; the weights are as spread out as {number(spread, 1)} equal "
            "ones."
        )

    def alt(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """The three panels in words."""
        return (
            "Left a heat map of scores for 128 places, query by key, blue below 0 and red above; "
            "right score and weight against the distance, a line for the chosen query and points "
            f"for the query at place {REFERENCE}. {self.finding(values, arrays)}"
        )


def _map(x: Tensor, name: str, head: int, maps: str) -> Tensor:
    """Queries or keys [T, D] of the stream ``x``: the stream itself, or a random map of it."""
    return x if maps == PLAIN else x @ fixed_normal(f"{name} of head {head}", D, D).T / D**0.5


def _table(places: Tensor) -> Tensor:
    """Rows [T, D] of a random table; between two rows the mean of both by distance."""
    table = fixed_normal("a position table", T + 1, D)
    below = places.floor().long()
    return table[below].lerp(table[below + 1], (places - below)[:, None])


def _waves(places: Tensor) -> Tensor:
    """Sinusoids [T, D] at places between whole numbers: one vector, turned as RoPE turns it."""
    start = torch.zeros(1, 1, T, D, dtype=torch.float64)
    start[..., 0::2] = 1.0
    cosines_first = apply_rope(start, positions=places)[0, 0]
    return cosines_first.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
