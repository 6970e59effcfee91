"""Who looks at whom in the reader's own sentence: one head in full, one row of it, all heads."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from torch import Tensor

from course.attention import attention_weights
from course.plots import (
    COLOURS,
    INK,
    QUIET,
    SIGNED,
    WEIGHTS,
    clear_of_ticks,
    colour_map,
    label_tokens,
    number,
    readable_on,
    short,
)
from course.widgets.base import Choice, Control, Explorer, Slider, Switch, TextField
from course.widgets.paint import change
from course.widgets.trained import MAX_PIECES, heads_of_block

E, D, HEADS, MAX_WORDS = 32, 16, 4, 40
TRAINED, UNTRAINED = "trained on Shakespeare", "untrained"
ONE_ROLE, TWO_ROLES = "one role: q = k", "two roles: q ≠ k"
CAUSAL, FREE = "itself and before", "everything"
BLOCKS = 2  # of the trained model
_SIDE, _STRIP = 2.55, 0.78  # of a heat map, and of the row above it, in inches
_LIMIT = 6.0  # where the colours of the scores end
_NUMBERED = 6  # up to this many words the cells carry numbers


def split_words(sentence: str) -> list[str]:
    """The words of ``sentence``; ``ValueError`` unless there are 1 to 40."""
    words = sentence.split()
    if not 1 <= len(words) <= MAX_WORDS:
        raise ValueError(f"expected 1 to {MAX_WORDS} words, got {len(words) or 'none'}")
    return words


def fixed_normal(name: str, *shape: int) -> Tensor:
    """Standard normal numbers of the given shape, float64, fixed by ``name`` on every machine."""
    count = int(np.prod(shape))
    bits = np.frombuffer(hashlib.shake_256(name.encode()).digest(4 * count), dtype="<u4")
    uniform = (torch.from_numpy(bits.astype(np.float64)) + 0.5) / 2**32
    return torch.special.ndtri(uniform).reshape(shape)


def embed(words: list[str]) -> Tensor:
    """Untrained vectors [T, E] of ``words``, fixed by their spelling; lengths differ by word."""
    rows = []
    for word in words:
        key = word.casefold().strip(".,;:!?\"'()“”‘’") or word
        length = 0.7 + 0.8 * torch.special.ndtr(fixed_normal(f"length of {key}", 1))
        rows.append(length * fixed_normal(f"word {key}", E))
    return torch.stack(rows)


def untrained_head(
    words: list[str], head: int, *, two_roles: bool, equal: bool
) -> tuple[Tensor, Tensor]:
    """Queries and keys [T, D] of ``words`` by matrices that the number of the ``head`` fixes."""
    x = embed(words)
    q = x @ fixed_normal(f"W_q of head {head}", D, E).T / E**0.5
    k = x @ fixed_normal(f"W_k of head {head}", D, E).T / E**0.5 if two_roles else q
    if equal:
        q, k = (D**0.5 * y / y.norm(dim=-1, keepdim=True) for y in (q, k))
    return q, k


class _Map(NamedTuple):
    """A heat map with its numbers, and above it one of its rows as bars with theirs."""

    axes: Axes
    image: AxesImage
    cells: list[Text]
    chosen: Rectangle
    strip: Axes
    bars: PolyCollection
    numbers: list[Text]


class AttentionExplorer(Explorer):
    """Attention scores and weights in the reader's sentence: of a trained model, or untrained.

    To try with the trained model: which head looks at the previous piece, and does it still with
    the words in another order? Which heads lean on the first piece, and what do they do beside it?

    To try untrained: with one role the scores are symmetric, and with vectors of equal length every
    word likes itself best; a second role breaks both; scale 0 gives the plain mean, a large scale
    one word a row; the mask cuts weights, never scores.
    """

    title = "Who looks at whom"
    note = (
        "Trained: your sentence in a small model that learned to write like Shakespeare, cut into "
        "the pieces it reads; · is the space before a word. Untrained: every word has a fixed "
        "random vector, every head fixed random matrices; that shows how the mechanism works, not "
        "what English means. Scale 1 is 1/√D, which is also the model's own."
    )
    size = (9.4, 4.95)
    chief = "head"
    controls: ClassVar[dict[str, Control]] = {
        "sentence": TextField(
            "Sentence",
            "my cat lay on the mat because it was warm",
            lambda text: " ".join(split_words(text)),
            examples=("one", "the dog saw the dog", "a $b^ <i>c</i> & “d”"),
        ),
        "vectors": Choice("Vectors, matrices", TRAINED, (TRAINED, UNTRAINED)),
        "head": Slider("Head", 1, low=1, high=HEADS),
        "scale": Slider("Scale", 1.0, low=0.0, high=4.0, step=0.2),
        "block": Slider("Block", 1, low=1, high=BLOCKS),
        "roles": Choice("Roles", ONE_ROLE, (ONE_ROLE, TWO_ROLES)),
        "look": Choice("May look at", CAUSAL, (CAUSAL, FREE)),
        "row": Slider("Row in full", MAX_PIECES, low=1, high=MAX_PIECES),
        "hide": Switch("Hide the first one", False),
        "equal": Switch("Queries and keys of equal length", False),
    }

    @staticmethod
    def idle(values: Mapping[str, Any]) -> Collection[str]:
        """A trained model has its own roles, mask and lengths; without one there are no blocks."""
        return ("roles", "look", "equal") if values["vectors"] == TRAINED else ("block",)

    def ends(self, values: Mapping[str, Any], arrays: Mapping[str, Any]) -> Mapping[str, float]:
        """There are as many rows as words."""
        return {"row": len(arrays["words"])}

    @staticmethod
    def compute(
        *,
        sentence: str,
        vectors: str,
        head: int,
        scale: float,
        block: int,
        roles: str,
        look: str,
        equal: bool,
        row: int = MAX_PIECES,
        hide: bool = False,
    ) -> dict[str, Any]:
        """``words`` (T words or pieces), ``scores``, ``weights`` float64 and ``visible`` [T, T].

        Scores are ``scale · q·k / √D``. Trained: q and k of ``block`` and ``head``; with scale 1
        the weights are those of ``Transformer.attention_maps``. Untrained: D = 16, and ``equal``
        gives every q and k the length √D. ``every`` [L, 4, T, T] are the weights of all heads, as
        they are drawn: NaN where nothing may be looked at and, with ``hide``, in the first column;
        the rest of each row then adds up to 1 again. ``shown`` [T, T] is the chosen head of them,
        ``row`` (from 0) the row in full, the last one where the sentence has fewer.
        """
        if vectors == TRAINED:
            found = [heads_of_block(number, sentence) for number in range(1, BLOCKS + 1)]
            words, own, causal = found[0].pieces, found[0].scale, True
            scale, place = scale * own, block - 1
            q, k = (torch.stack([getattr(heads, name) for heads in found]) for name in "qk")
        else:
            words = split_words(sentence)
            pairs = [
                untrained_head(words, number, two_roles=roles == TWO_ROLES, equal=equal)
                for number in range(1, HEADS + 1)
            ]
            q, k = (torch.stack(each)[None] for each in zip(*pairs, strict=True))
            scale, causal, place = scale * D**-0.5, look == CAUSAL, 0
        weights = attention_weights(q, k, causal=causal, scale=scale).numpy()
        visible = np.tri(len(words), dtype=bool) | (not causal)
        every = _without_first(weights, visible) if hide else np.where(visible, weights, np.nan)
        one_q, one_k = q[place, head - 1], k[place, head - 1]
        return {
            "words": words,
            # In a fixed order of additions, so that q·k and k·q are the same number to the bit.
            "scores": scale * (one_q[:, None] * one_k[None]).sum(-1).numpy(),
            "weights": weights[place, head - 1],
            "visible": visible,
            "every": every,
            "shown": every[place, head - 1],
            "row": min(row, len(words)) - 1,
            "place": (place, head - 1),
        }

    def build(self, figure: Figure, arrays: dict[str, Any]) -> None:
        """Two heat maps in fixed places (labels change with the sentence), their row, all heads."""
        figure.set_layout_engine(None)
        self._labelled: list[str] = []
        signed = Normalize(-_LIMIT, _LIMIT)
        self._maps = [
            self._build_map(figure, 1.1, "Scores, before the mask", SIGNED, signed),
            self._build_map(figure, 4.35, "Weights, after the softmax", WEIGHTS, None),
        ]
        self._maps[0].axes.set_ylabel("query: the token that looks")
        self._maps[1].axes.set_yticks([])
        self._build_heads(figure)

    def _build_map(
        self, figure: Figure, left: float, title: str, cmap: str, norm: Normalize | None
    ) -> _Map:
        wide, high = self.size
        side, bottom = _SIDE, 1.18
        axes = figure.add_axes((left / wide, bottom / high, side / wide, side / high))
        image = axes.imshow(
            np.zeros((1, 1)),
            cmap=colour_map(cmap),
            norm=norm or Normalize(0, 1),
            aspect="auto",
            interpolation="nearest",
        )
        axes.set_xlabel("key: the token looked at")
        axes.tick_params(length=0)
        for edge in axes.spines.values():
            edge.set_visible(False)
        place = ((left + side + 0.08) / wide, (bottom + 0.1) / high, 0.1 / wide, 2.35 / high)
        bar = figure.colorbar(
            ScalarMappable(image.norm, image.cmap),
            cax=figure.add_axes(place),
            extend="both" if norm else "neither",
        )
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=8, length=2)
        cells = [
            axes.text(0, 0, "", ha="center", va="center", fontsize=8.5, visible=False)
            for _ in range(_NUMBERED**2)
        ]
        chosen = Rectangle((0, 0), 1, 1, fill=False, edgecolor=INK, linewidth=1.6, clip_on=False)
        chosen.set_path_effects([withStroke(linewidth=3.2, foreground="white")])
        axes.add_patch(chosen)
        above = (bottom + side + 0.1) / high
        strip = figure.add_axes((left / wide, above, side / wide, _STRIP / high))
        strip.set_title(title)
        return _Map(axes, image, cells, chosen, strip, *self._build_strip(strip, norm is not None))

    def _build_strip(self, strip: Axes, signed: bool) -> tuple[PolyCollection, list[Text]]:
        """Bars of one row, each above its column; the numbers stand over them."""
        strip.set(xticks=[], yticks=[], ylim=(-_LIMIT, 2.9 * _LIMIT) if signed else (0, 2.0))
        for edge in strip.spines.values():
            edge.set_visible(False)
        strip.axhline(0, color=QUIET, linewidth=0.8)
        bars = PolyCollection([], linewidth=0, facecolor=COLOURS[0])
        strip.add_collection(bars, autolim=False)
        look: dict[str, Any] = {"ha": "center", "va": "bottom", "rotation": 90, "fontsize": 8}
        numbers = [
            strip.text(0, 1.2 * (_LIMIT if signed else 1), "", visible=False, **look)
            for _ in range(MAX_PIECES)
        ]
        return bars, numbers

    def _build_heads(self, figure: Figure) -> None:
        """All heads at a glance: a column of small maps for each block."""
        wide, high = self.size
        axes = figure.add_axes((7.95 / wide, 1.18 / high, 1.36 / wide, _SIDE / high))
        self._all = axes.imshow(
            np.zeros((1, 1)),
            cmap=colour_map(WEIGHTS),
            norm=Normalize(0, 1),
            aspect="auto",
            interpolation="nearest",
            extent=(0, BLOCKS, HEADS, 0),
        )
        axes.set(xlim=(0, BLOCKS), ylim=(HEADS, 0), xticks=[], yticks=[])
        axes.set_title("All heads")
        for edge in axes.spines.values():
            edge.set_visible(False)
        for line in range(1, HEADS):
            axes.axhline(line, color="white", linewidth=5)
        axes.axvline(1, color="white", linewidth=5)
        small: dict[str, Any] = {"fontsize": 9, "zorder": -1}  # beside the maps, so drawn once
        for head in range(HEADS):
            axes.text(-0.08, head + 0.5, str(head + 1), ha="right", va="center", **small)
        self._blocks = [
            axes.text(
                block + 0.5, HEADS + 0.1, f"block {block + 1}", ha="center", va="top", **small
            )
            for block in range(BLOCKS)
        ]
        self._head = Rectangle((0, 0), 0.97, 0.97, fill=False, edgecolor=COLOURS[1], linewidth=2.4)
        self._head.set(clip_on=False, zorder=5)
        axes.add_patch(self._head)

    def update(self, arrays: dict[str, Any]) -> None:
        """New colours and bars, and new labels when the sentence is new."""
        words, row = arrays["words"], arrays["row"]
        for one, matrix in zip(self._maps, (arrays["scores"], arrays["shown"]), strict=True):
            one.image.set_data(matrix)
            edge = len(words) - 0.5
            if one.image.get_extent()[1] != edge:  # new limits: everything is drawn anew
                one.image.set_extent((-0.5, edge, edge, -0.5))
                one.strip.set_xlim(-0.5, edge)
            _write_numbers(one.cells, one.image, matrix)
            one.chosen.set_bounds(-0.5, row - 0.5, len(words), 1)
            _draw_row(one, matrix[row])
        self._update_heads(arrays["every"], *arrays["place"])
        if words != self._labelled:
            self._label(words)

    def _update_heads(self, every: np.ndarray, block: int, head: int) -> None:
        blocks, heads, T, _ = every.shape
        self._all.set_data(every.transpose(1, 2, 0, 3).reshape(heads * T, blocks * T))
        if self._all.get_extent()[1] != blocks:
            self._all.set_extent((0, blocks, HEADS, 0))
            self._all.axes.set_xlim(0, BLOCKS)  # the same width for a head
        for text in self._blocks:
            change(text, visible=blocks > 1)
        self._head.set_xy((block + 0.015, head + 0.015))

    def _label(self, words: list[str]) -> None:
        """Words beside the rows of the first map and under the columns of both."""
        left, right = (one.axes for one in self._maps)
        for axes, rows in ((left, words), (right, None)):
            label_tokens(axes, rows=rows, columns=words, upright=len(words) < 6)
            clear_of_ticks(axes)
        self._labelled = words

    def finding(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """Trained: where the head looks. Untrained: symmetry, and which words like themselves."""
        if values["vectors"] == TRAINED:
            return f"{_where_it_looks(values, arrays)} {_row_in_words(arrays, about='≈ ')}"
        words, scores = arrays["words"], arrays["scores"]
        apart = float(np.abs(scores - scores.T).max())
        selfish = int((scores.diagonal() >= scores.max(1) - 1e-9).sum())
        kind = (
            "The scores are symmetric: score and mirror image differ by 0"
            if apart < 1e-9
            else f"The scores are not symmetric: score and mirror image differ by up to "
            f"{number(apart, 2)}"
        )
        verb = "scores itself" if selfish == 1 else "score themselves"
        pairs = f"{int(arrays['visible'].sum())} of {len(words) ** 2} pairs are visible"
        if values["hide"]:
            pairs += "; the weights shown leave out the first word"
        said = f"{kind}; {selfish} of {len(words)} words {verb} highest; {pairs}."
        return f"{said} {_row_in_words(arrays)}"

    def alt(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """The maps in words, and the numbers of the row."""
        trained = values["vectors"] == TRAINED
        mask = (
            "the future is cut off (grey)"
            if trained or values["look"] == CAUSAL
            else "every word is visible"
        )
        words, row = arrays["words"], arrays["row"]
        tokens = f"{len(words)} {'pieces of' if trained else 'words'}"
        given = ", ".join(
            f"{word} {number(weight, 2)}"
            for word, weight in zip(words, arrays["shown"][row], strict=True)
            if np.isfinite(weight)
        )
        return (
            f"Two heat maps, query by key, of the {tokens} “{values['sentence']}”: left the scores "
            "before the mask, blue below 0 and red above; right the weights from 0 to 1, where "
            f"{mask}; above each its row {row + 1} as bars; beside them small maps of all heads. "
            f"Weights of row {row + 1}: {given or 'none'}. {self.finding(values, arrays)}"
        )


def _without_first(weights: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Weights [L, H, T, T] without the first column; what is left of a row adds up to 1 again."""
    rest = np.where(visible, weights, np.nan)
    rest[..., 0] = np.nan
    left = np.nansum(rest, -1, keepdims=True)
    return np.divide(rest, left, out=np.full_like(rest, np.nan), where=left > 0)


def _draw_row(one: _Map, row: np.ndarray) -> None:
    """Bars of ``row`` [T]; numbers where there is room for one, the largest first."""
    high = np.clip(np.nan_to_num(row), -_LIMIT, _LIMIT)
    one.bars.set_verts(
        [[(i - 0.4, 0), (i + 0.4, 0), (i + 0.4, y), (i - 0.4, y)] for i, y in enumerate(high)]
    )
    apart = 8.4 / (72 * _SIDE / len(row))  # columns that a number is wide
    kept: list[int] = []
    for place in np.argsort(-np.abs(high), kind="stable"):
        if np.isfinite(row[place]) and all(abs(place - other) >= apart for other in kept):
            kept.append(int(place))
    for place, text in enumerate(one.numbers):
        text.set_visible(place in kept)
        if place in kept:
            text.set_x(place)
            text.set_text(number(row[place], 2 if one.image.norm.vmin == 0 else 1))


def _row_in_words(arrays: dict[str, Any], about: str = "") -> str:
    """To whom the row in full gives most."""
    words, row = arrays["words"], arrays["row"]
    given = arrays["shown"][row]
    start = f"Row {row + 1}, “{short(words[row])}”,"
    if not np.isfinite(given).any():
        return f"{start} has nothing left to look at."
    best = int(np.nanargmax(given))
    away = row - best
    where = f", {abs(away)} {'before' if away > 0 else 'after'} it" if away else ""
    whom = f"“{short(words[best])}”{where}" if away else "itself"
    return f"{start} gives most weight, {about}{number(given[best], 2)}, to {whom}."


def _where_it_looks(values: dict[str, Any], arrays: dict[str, Any]) -> str:
    """How much a head gives to three places, beside what equal weights would give to each.

    Rows 0 and 1 are left out: there the places are not three. With the first column hidden there
    are two, and the rows are shared among one piece less.
    """
    weights = arrays["shown"]
    head = f"Block {values['block']}, head {values['head']}"
    if values["scale"] != 1:
        head += f" at {values['scale']:.4g} times its own scale"
    if len(weights) < 3:
        return f"{head}: too few pieces for a mean."
    hidden = bool(values["hide"])
    shares = weights.diagonal(-1)[1:], weights.diagonal()[2:]
    previous, itself = (f"≈ {number(100 * share.mean(), 0)} %" for share in shares)
    first = f"≈ {number(100 * arrays['weights'][2:, 0].mean(), 0)} %"
    equal = np.mean([1 / (t + 1 - hidden) for t in range(2, len(weights))])
    even = f"means from the third piece on; equal weights: {number(100 * float(equal), 0)} %"
    if hidden:
        return (
            f"{head}: without the first piece, which gets {first}, {previous} go to the previous "
            f"piece and {itself} to the piece itself ({even})."
        )
    return (
        f"{head} puts {previous} on the previous piece, {itself} on the piece itself and {first} "
        f"on the first one ({even})."
    )


def _write_numbers(cells: list[Any], image: AxesImage, matrix: np.ndarray) -> None:
    """A number in each cell of a small map; a cell that the mask hides has none."""
    size = len(matrix) if len(matrix) <= _NUMBERED else 0
    for place, cell in enumerate(cells):
        row, column = divmod(place, size) if size else (1, 0)
        shown = row < size and np.isfinite(matrix[row, column])
        cell.set_visible(bool(shown))
        if shown:
            value = matrix[row, column]
            cell.set_position((column, row))
            cell.set_text(number(value, 2))
            cell.set_color(readable_on(tuple(image.cmap(image.norm(value)))))
