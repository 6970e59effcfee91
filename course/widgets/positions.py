"""Schemes of position: what the distance does to the score, and what lies beyond training."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from course.attention import attention_weights
from course.plots import COLOURS, INK, MARKERS, SIGNED, colour_map, number
from course.positions import alibi_bias, apply_rope
from course.widgets.attention import fixed_normal
from course.widgets.base import Choice, Control, Explorer, Slider
from course.widgets.trained import heads_of_repeated

T, TRAINED, D, HEADS = 128, 64, 32, 4
_WORD = " the"  # a single piece of the stored model's
REFERENCE = TRAINED // 2 - 1  # the query to compare with: in the middle of what was trained
LEARNED, SINUSOIDAL, ROPE, ALIBI = "learned, before training", "sinusoidal", "RoPE", "ALiBi"
STORED = "learned, the stored model's"
SCHEMES = (LEARNED, SINUSOIDAL, ROPE, ALIBI, STORED)
TABLES = (LEARNED, SINUSOIDAL)  # they say where a word stands, not how far another is
PLAIN, MIXED = "none: q and k are the stream", "random W_q and W_k"
_LIMITS = (8.0, 0.5)  # of scores and weights
_WIDE_LIMITS = (24.0, 1.0)  # of the stored model
_NEVER_MET = "#f8e6b8"  # not the grey of what the mask hides
_TICKS = (0, 32, 64, 96, 127)


class PositionExplorer(Explorer):
    """The same word at 128 positions: its scores by distance, for a query wherever you put it.

    To try: RoPE and ALiBi give one curve wherever the query stands, the tables do not once maps
    stand between; a table's rows from 64 on were never trained; dividing the positions brings far
    ones back into the trained range. The stored Shakespeare model has a table that was trained to
    its last row: one of its heads looks one back.
    """

    title = "What does the distance do to the score?"
    note = (
        "The same word stands at all 128 positions, so only positions differ. Nothing is trained "
        "but the stored model (its first block, windows of 128); yellow, and what lies beyond the "
        "dashed lines, is what a model trained on windows of 64 has never met."
    )
    size = (9.2, 4.1)
    chief = "position"
    controls: ClassVar[dict[str, Control]] = {
        "scheme": Choice("Scheme", ROPE, SCHEMES),
        "position": Slider("Query stands at", T - 1, low=0, high=T - 1),
        "head": Slider("Head", 1, low=1, high=HEADS),
        "maps": Choice("Maps", MIXED, (PLAIN, MIXED)),
        "stretch": Slider("Divide positions by", 1.0, low=1.0, high=4.0, step=0.5),
    }

    @staticmethod
    def idle(values: Mapping[str, Any]) -> Collection[str]:
        """The stored model has its own maps and its own positions."""
        return ("maps", "stretch") if values["scheme"] == STORED else ()

    @staticmethod
    def compute(
        *, scheme: str, position: int, head: int, maps: str, stretch: float
    ) -> dict[str, Any]:
        """``scores`` and causal ``weights`` [T, T] of one head; ``far``, ``near`` by distance.

        ``far[d]`` is the score of the query at ``position`` with the key d positions before it,
        ``near[d]`` of the query at position 31. ``last`` is the last position (of a table) or
        distance that a window of 64 trains, after the division of the positions; ``beyond`` counts
        the entries of ``far`` that need a later one, and ``edge`` is the distance where they begin.
        """
        q, k, bias = _heads(scheme, head, maps, stretch)
        scores = (q @ k.mT)[0, 0] / D**0.5 + (0 if bias is None else bias[0, 0])
        weights = attention_weights(q, k, causal=True, bias=bias)[0, 0]
        last = T - 1 if scheme == STORED else min(T - 1, math.floor((TRAINED - 1) * stretch))
        edge = last + 1
        if scheme in (*TABLES, STORED):  # the query's own row decides
            edge = 0 if position > last else T
        return {
            "scheme": scheme,
            "position": position,
            "scores": scores.numpy(),
            "weights": weights.numpy(),
            "far": scores[position, : position + 1].flip(0).numpy(),
            "near": scores[REFERENCE, : REFERENCE + 1].flip(0).numpy(),
            "last": last,
            "beyond": max(0, position + 1 - edge),
            "edge": edge,
        }

    def build(self, figure: Figure, arrays: dict[str, Any]) -> None:
        """The score matrix; beside it score and weight against the distance."""
        grid = figure.add_gridspec(2, 2, width_ratios=[1, 1.35])
        self._build_map(figure.add_subplot(grid[:, 0]))
        upper, lower = figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[1, 1])
        self._bands, self._lines, self._dots = [], [], []
        for axes, name, ticks in (
            (upper, "score", (-1, 0, 1)),
            (lower, "weight", (0, 0.5, 1)),
        ):
            axes.set(xlim=(0, T), ylim=(ticks[0], ticks[-1]), ylabel=name, yticks=ticks)
            axes.set_xticks(_TICKS, [""] * 5 if axes is upper else None)
            axes.grid(True)
            self._bands.append(axes.axvspan(TRAINED, T, color=_NEVER_MET, zorder=0))
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
            norm=Normalize(-_LIMITS[0], _LIMITS[0]),
            interpolation="nearest",
        )
        axes.set_title("Scores")
        axes.set(xlabel="position of the key", ylabel="position of the query")
        axes.set(xticks=_TICKS, yticks=_TICKS)
        axes.set(xlim=(-0.5, T - 0.5), ylim=(T - 0.5, -0.5))
        (self._trained,) = axes.plot([], [], color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
        (self._row,) = axes.plot([], [], color=INK, linewidth=1.2)

    def update(self, arrays: dict[str, Any]) -> None:
        """Move colours, curves, the dashed lines and the yellow band."""
        scores, weights, position = arrays["scores"], arrays["weights"], arrays["position"]
        self._image.set_data(np.where(np.tri(T, dtype=bool), scores, np.nan))
        self._set_limits(_WIDE_LIMITS if arrays["scheme"] == STORED else _LIMITS)
        self._trained.set_data(*_border(arrays["scheme"], arrays["last"] + 0.5))
        self._row.set_data([-0.5, position], [position, position])
        curves = (
            (arrays["far"], arrays["near"]),
            (weights[position, position::-1], weights[REFERENCE, REFERENCE::-1]),
        )
        for line, dots, band, (far, near) in zip(
            self._lines, self._dots, self._bands, curves, strict=True
        ):
            line.set_data(np.arange(len(far)), far)
            dots.set_data(np.arange(len(near)), near)
            band.set_x(arrays["edge"])
            band.set_width(T - arrays["edge"])

    def _set_limits(self, limits: tuple[float, float]) -> None:
        score, weight = limits
        self._image.set_clim(-score, score)
        for line, ticks in zip(
            self._lines, ((-score, 0, score), (0, weight / 2, weight)), strict=True
        ):
            axes = line.axes
            if axes is not None and axes.get_ylim()[1] != ticks[-1]:
                axes.set(ylim=(ticks[0], ticks[-1]), yticks=ticks)

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
        row = arrays["weights"][values["position"]]
        positive = row[row > 0]
        spread = float(np.exp(-(positive * np.log(positive)).sum()))
        best = int(row.argmax())
        what = "positions" if values["scheme"] in (*TABLES, STORED) else "distances"
        return (
            f"{values['scheme']}, head {values['head']}: from position {REFERENCE} to "
            f"{values['position']} {how}; {arrays['beyond']} of {len(far)} scores need {what} "
            f"beyond training; nearest key {number(far[0], 2)}, farthest {number(far[-1], 2)}; "
            f"weights as spread out as {number(spread, 1)} equal ones, the largest "
            f"{number(row[best], 2)}, {values['position'] - best} back."
        )

    def alt(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """The three panels in words."""
        return (
            "Left a heat map of scores for 128 positions, query by key, blue below 0 and red "
            "above; right score and weight against the distance, a line for the chosen query and "
            f"points for the query at position {REFERENCE}. {self.finding(values, arrays)}"
        )


def _heads(
    scheme: str, head: int, maps: str, stretch: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Queries and keys [1, 1, T, D] of the word at every position, and what is added to scores."""
    if scheme == STORED:
        heads = heads_of_repeated(1, _WORD, T)
        return heads.q[None, head - 1 : head], heads.k[None, head - 1 : head], None
    positions = torch.arange(T, dtype=torch.float64) / stretch
    x = fixed_normal(f"the word of head {head}", D).expand(T, D)
    if scheme in TABLES:
        x = x + (_table(positions) if scheme == LEARNED else _waves(positions))
    q, k = (_map(x, name, head, maps)[None, None] for name in ("W_q", "W_k"))
    if scheme == ROPE:
        q, k = apply_rope(q, positions=positions), apply_rope(k, positions=positions)
    if scheme == ALIBI:
        return q, k, alibi_bias(HEADS, T)[None, head - 1 : head].double() / stretch
    return q, k, None


def _border(scheme: str, end: float) -> tuple[list[float], list[float]]:
    """The line [x], [y] on the map that parts what training met: positions, or distances."""
    if end >= T - 1:
        return [], []
    if scheme in TABLES:
        return [-0.5, T, np.nan, end, end], [end, end, np.nan, -0.5, T]
    return [-0.5, T - end], [end - 0.5, T]


def _map(x: Tensor, name: str, head: int, maps: str) -> Tensor:
    """Queries or keys [T, D] of the stream ``x``: the stream itself, or a random map of it."""
    return x if maps == PLAIN else x @ fixed_normal(f"{name} of head {head}", D, D).T / D**0.5


def _table(positions: Tensor) -> Tensor:
    """Rows [T, D] of a random table; between two rows the mean of both by distance."""
    table = fixed_normal("a position table", T + 1, D)
    below = positions.floor().long()
    return table[below].lerp(table[below + 1], (positions - below)[:, None])


def _waves(positions: Tensor) -> Tensor:
    """Sinusoids [T, D] at positions between whole numbers: one vector, turned as RoPE turns it."""
    start = torch.zeros(1, 1, T, D, dtype=torch.float64)
    start[..., 0::2] = 1.0
    cosines_first = apply_rope(start, positions=positions)[0, 0]
    return cosines_first.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
