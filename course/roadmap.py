"""The course in one picture, at its start and at its end.

At the start six steps, each drawn small, from a plain average to a circuit. At the end the same
road link by link, each with a claim that its notebook verified.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from matplotlib.axes import Axes

from course.attention import attention_weights
from course.averaging import mean_matrix
from course.inputs import require_positive
from course.plots import (
    COLOURS,
    INK,
    QUIET,
    Canvas,
    Picture,
    draw_matrix,
    new_figure,
    number,
    style,
)
from course.plots.diagrams import arrow, blank, box
from course.plots.places import Spot

LAST_NOTEBOOK = 11
WORDS = ("the", "cat", "lay", "on", "the", "mat")
# Which earlier words help a word: drawn by hand, so that the second panel has something to show.
RELATED = ((1, 0), (2, 1), (3, 2), (4, 3), (5, 1), (5, 3))
MEMORY_WIDTH = 32
BLUE, RED = COLOURS[0], COLOURS[1]


@dataclass(frozen=True)
class Step:
    """One panel: its title, the notebooks that tell it, a caption and what draws it."""

    title: str
    first: int
    last: int
    caption: str
    draw: Callable[[Axes], None]

    def where(self, released: int) -> str:
        """Which notebooks tell this step, and which of them are still to come."""
        name = f"notebook {self.first:02d}"
        if self.last > self.first:
            name = f"notebooks {self.first:02d}–{self.last:02d}"
        if released < self.first:
            return f"{name} (later)"
        return name if released >= self.last else f"{name} (after {released:02d}: later)"


@dataclass(frozen=True)
class Link:
    """One link of the chain: its name, the notebook that makes it, and a claim verified there.

    ``held``: the names of the ``verify`` lines that hold the claim. ``role``: its colour.
    """

    name: str
    notebook: int
    claim: str
    held: tuple[str, ...]
    role: str = "plain"


def course_picture(*, last: int) -> Picture:
    """The six steps of the course; notebooks after number ``last`` are marked as still to come.

    ``ValueError`` unless ``last`` is a notebook's number, 1 to 11.
    """
    require_positive("last", last)
    if last > LAST_NOTEBOOK:
        raise ValueError(f"last: expected a notebook's number up to {LAST_NOTEBOOK}, got {last}")
    with style():
        figure = new_figure(10.0, 6.6)
        for number_, (axes, step) in enumerate(zip(figure.subplots(2, 3).flat, STEPS, strict=True)):
            told = last >= step.first
            axes.set_title(
                f"{number_ + 1}  {step.title}", fontsize=12, color=INK if told else QUIET, pad=22
            )
            axes.text(
                0,
                1.035,
                step.where(last),
                transform=axes.transAxes,
                fontsize=9,
                color=BLUE if told else QUIET,
            )
            step.draw(axes)
            axes.set_xlabel(step.caption, fontsize=9, color=INK, labelpad=8)
    return Picture(figure, alt=_alt(), finding=_finding(last))


def chain_picture() -> Picture:
    """The whole chain, link by link, each with its notebook and a claim verified there."""
    canvas, down = Canvas(unit=0.22), 2.15
    boxes = [
        canvas.box(link.name, Spot(16, down * row), role=link.role, size=(9.4, 1.35), bold=True)
        for row, link in enumerate(CHAIN)
    ]
    for above, below in pairwise(boxes):
        canvas.arrow(above, below)
    for row, link in enumerate(CHAIN):
        canvas.text(f"{link.notebook:02d}", Spot(10.4, down * row, 1), points=10, role="learned")
        canvas.text(f"✓  {link.claim}", Spot(21.6, down * row, 0), points=9.5)
    for step in STEPS:
        rows = [i for i, link in enumerate(CHAIN) if step.first <= link.notebook <= step.last]
        middle = down * (rows[0] + rows[-1]) / 2
        canvas.text(step.title, Spot(7.6, middle, 1), points=10, bold=True)
        ends = (8.3, down * rows[0] - 0.65), (8.3, down * rows[-1] + 0.65)
        canvas.arrow(*ends, head=False, width=2.2)
    told = "; ".join(f"{link.name} ({link.notebook:02d}): {link.claim}" for link in CHAIN)
    first, last = CHAIN[0].name, CHAIN[-1].name
    return canvas.picture(
        finding=(
            f"{len(CHAIN)} links lead from {first} to {last}; notebooks {CHAIN[0].notebook:02d} to "
            f"{CHAIN[-1].notebook:02d} verified each: {told}."
        ),
        alt=(
            f"A chain of {len(CHAIN)} boxes from top to bottom, grouped by the six steps of the "
            f"course, each with its notebook and a claim: {told}."
        ),
    )


def weighted_average_matrix() -> np.ndarray:
    """[6, 6] causal softmax weights: a word that helps scores 2, the word itself 1, others 0."""
    scores = torch.eye(len(WORDS), dtype=torch.float64)
    for query, key in RELATED:
        scores[query, key] = 2.0
    nothing = torch.zeros(1, 1, len(WORDS), 1, dtype=torch.float64)
    weights = attention_weights(nothing, nothing, bias=scores, causal=True)
    return weights.reshape(len(WORDS), len(WORDS)).numpy()


def memory_error(n_pairs: int, width: int = MEMORY_WIDTH) -> float:
    """The law √((N−1)/D): relative error of one reading after N random pairs in a D-wide state."""
    return float(np.sqrt((n_pairs - 1) / width))


def _finding(released: int) -> str:
    even, chosen = mean_matrix(len(WORDS))[-1, -1].item(), weighted_average_matrix()[-1].max()
    to_come = "" if released == LAST_NOTEBOOK else f"; notebooks {released + 1:02d}–11 come later"
    return (
        f"Six steps: the plain average gives the last of {len(WORDS)} words {number(even, 2)} of "
        f"everything; chosen weights give up to {number(float(chosen), 2)}; weights that factorise "
        f"make a state you carry; it forgets (error {number(memory_error(MEMORY_WIDTH), 2)} after "
        f"{MEMORY_WIDTH} pairs at width {MEMORY_WIDTH}); two layers find what one cannot{to_come}."
    )


def _alt() -> str:
    return "Six panels in reading order. " + " ".join(
        f"{place}: {step.title}. {step.caption.replace(chr(10), ' ')}"
        for place, step in enumerate(STEPS, 1)
    )


# --- the panels ---------------------------------------------------------------------------------


def _triangle(axes: Axes, matrix: np.ndarray) -> None:
    future = np.triu(np.ones_like(matrix, dtype=bool), 1)
    draw_matrix(axes, np.where(future, np.nan, matrix), signed=False, digits=2)
    axes.set_xticks(range(len(WORDS)), WORDS, fontsize=8)
    axes.set_yticks(range(len(WORDS)), WORDS, fontsize=8)


def _draw_average(axes: Axes) -> None:
    _triangle(axes, mean_matrix(len(WORDS)).numpy())


def _draw_weights(axes: Axes) -> None:
    _triangle(axes, weighted_average_matrix())


def _draw_factors(axes: Axes) -> None:
    """A 6×6 matrix of weights as the product of a 6×2 and a 2×6 one, all three drawn."""
    angle = np.linspace(0.1, 1.45, 6)
    queries = np.stack([np.cos(angle), np.sin(angle)], 1)
    keys = np.stack([np.sin(2 * angle), np.cos(angle)], 0) * 0.9
    blank(axes, width=17.0, height=7.4)
    for values, x, label in (
        (queries @ keys, 0.2, "weight"),
        (queries, 7.6, "φ(query)"),
        (keys, 10.8, "φ(key)ᵀ"),
    ):
        high, wide = values.shape
        axes.imshow(
            values,
            cmap="cividis",
            vmin=0,
            vmax=1,
            extent=(x, x + wide, 3.6 - high / 2, 3.6 + high / 2),
            interpolation="nearest",
            aspect="auto",
        )
        axes.text(x + wide / 2, 3.6 + high / 2 + 0.25, label, ha="center", va="bottom", fontsize=9)
    axes.text(6.9, 3.6, "=", ha="center", va="center", fontsize=15)
    axes.text(10.2, 3.6, "·", ha="center", va="center", fontsize=18)
    axes.set(xlim=(0, 17.0), ylim=(0, 7.4))


def _draw_state(axes: Axes) -> None:
    """Three states in a row: each takes in one pair and answers one query."""
    blank(axes, width=12, height=8)
    for step, x in enumerate((2.0, 6.0, 10.0), 1):
        box(axes, (x, 4), (1.9, 1.9), f"$S_{step}$", BLUE)
        arrow(axes, (x, 1.35), (x, 2.95), QUIET)
        axes.text(x, 0.75, f"$k_{step}, v_{step}$", ha="center", va="center", fontsize=10)
        arrow(axes, (x, 5.05), (x, 6.65), RED)
        axes.text(x, 7.2, f"$o_{step}$", ha="center", va="center", fontsize=10)
    for left in (-1.0, 3.0, 7.0):
        arrow(axes, (max(left, -0.4), 4), (left + 1.95, 4), BLUE)
    axes.set_xlim(-0.6, 12)


def _draw_forgetting(axes: Axes) -> None:
    pairs = np.arange(1, 65)
    axes.plot(pairs, [memory_error(int(n)) for n in pairs], color=BLUE)
    axes.plot([MEMORY_WIDTH], [memory_error(MEMORY_WIDTH)], "o", color=RED)
    axes.annotate(
        f"32 pairs: {number(memory_error(MEMORY_WIDTH), 2)}",
        (MEMORY_WIDTH, memory_error(MEMORY_WIDTH)),
        xytext=(8, -14),
        textcoords="offset points",
        fontsize=9,
    )
    axes.set(xlim=(0, 64), ylim=(0, 1.5), xticks=[1, 16, 32, 48, 64], yticks=[0, 0.5, 1])
    axes.set_ylabel("error of a reading", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(True)


def _draw_layers(axes: Axes) -> None:
    """The induction circuit on "cat sat … cat": layer one looks one back, layer two matches."""
    blank(axes, width=12, height=8)
    words = ("cat", "sat", "…", "cat", "?")
    places = (1.2, 3.6, 6.0, 8.4, 10.8)
    for row, label in ((4.0, "layer 1"), (7.1, "layer 2")):
        axes.text(-0.1, row - 1.75, label, ha="left", va="center", fontsize=8, color=QUIET)
    for word, x in zip(words, places, strict=True):
        axes.text(x, 0.6, word, ha="center", va="center", fontsize=10)
    for x in places[:4]:
        for y in (1.5, 4.0, 6.6):
            axes.plot([x], [y], "o", color=QUIET, markersize=5, zorder=3)
        axes.plot([x, x], [1.5, 6.6], color="#d4d8dd", linewidth=1.5, zorder=1)
    arrow(axes, (places[0], 1.5), (places[1], 4.0), BLUE, width=2.2)
    arrow(axes, (places[1], 4.0), (places[3], 6.6), RED, width=2.2)
    arrow(axes, (places[3] + 0.2, 6.6), (places[4] - 0.6, 6.6), INK)
    axes.text(places[4], 6.6, "sat", ha="center", va="center", fontsize=10, color=RED)
    axes.text(places[1] + 0.25, 3.45, "“I follow cat”", fontsize=8, color=BLUE)
    axes.text(places[1] + 2.6, 4.55, "who follows cat?", fontsize=8, color=RED)
    axes.set_xlim(-0.3, 12)


STEPS = (
    Step(
        "A plain average",
        1,
        1,
        "Row t: the mean of the words so far.\nEvery word counts the same.",
        _draw_average,
    ),
    Step(
        "A weighted average",
        2,
        5,
        "Each word asks, earlier words answer:\nthe weights come from the content.",
        _draw_weights,
    ),
    Step(
        "Weights that factorise",
        6,
        6,
        "If a weight is a product of two features,\nthe big table need not be built.",
        _draw_factors,
    ),
    Step(
        "A state you carry",
        7,
        8,
        "Sum the pairs once, word by word:\nattention becomes a recurrence.",
        _draw_state,
    ),
    Step(
        "What it forgets",
        9,
        10,
        "Pairs written into a state of width 32.\nThe law √((N−1)/D): nothing is free.",
        _draw_forgetting,
    ),
    Step(
        "What two layers add",
        11,
        11,
        "One layer marks, the next one looks\nfor the mark: a circuit.",
        _draw_layers,
    ),
)

CHAIN = (
    Link(
        "average",
        1,
        "a mean of the past is softmax of equal scores",
        ("softmax of zeros is the same matrix",),
    ),
    Link(
        "weights",
        1,
        "learned weights beat the best table of word pairs",
        ("learned weights ÷ best bigram",),
    ),
    Link(
        "query, key, value",
        2,
        "“lay” asks for “cat”, “cat” does not ask for “lay”",
        ("lay asks", "cat asks"),
        "query",
    ),
    Link(
        "scale, position",
        3,
        "divided by √D, scores vary alike at every width",
        ("spread of q·k / √D, from D = 4 to 1024",),
        "query",
    ),
    Link(
        "block",
        4,
        "built from its parts, it equals PyTorch's layer",
        ("Block = PyTorch's layer",),
        "stream",
    ),
    Link(
        "cost",
        5,
        "table of scores: 128 times the length, 128² times the bytes",
        ("128 times the length, 128² times the bytes",),
    ),
    Link(
        "kernel factorisation",
        6,
        "weights 1 + s + s²/2 are products of features",
        ("Taylor-2 = 1 + s + s²/2",),
        "state",
    ),
    Link(
        "state",
        7,
        "table, scan, recurrence and chunks: one result",
        ("four forms, one result",),
        "state",
    ),
    Link(
        "kernels",
        8,
        "the chunk kernel equals the whole table",
        ("chunk kernel = quadratic form, elu",),
        "state",
    ),
    Link(
        "recall",
        9,
        "N random pairs at width D: error √((N−1)/D)",
        ("24 pairs (N, D): rms ÷ law",),
        "state",
    ),
    Link(
        "frontier",
        10,
        "of one kind, a larger state recalls more",
        tuple(
            f"{kind}: each size above the one before"
            for kind in ("elu", "gated", "delta", "plain", "taylor")
        ),
        "state",
    ),
    Link(
        "two blocks compose",
        11,
        "no positions: two softmax blocks hear the order, one does not",
        ("no positions: mean, softmax, linear", "two blocks of softmax, no positions"),
        "focus",
    ),
)
