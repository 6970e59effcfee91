"""Who looks at whom in the reader's own sentence: scores before the mask, weights after it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

from course.attention import attention_weights
from course.plots import (
    SIGNED,
    WEIGHTS,
    clear_of_ticks,
    colour_map,
    label_tokens,
    number,
    readable_on,
)
from course.widgets.base import Choice, Control, Explorer, Slider, Switch, TextField
from course.widgets.trained import heads_of_block

E, D, HEADS, MAX_WORDS = 32, 16, 4, 40
TRAINED, UNTRAINED = "trained on Shakespeare", "untrained"
ONE_ROLE, TWO_ROLES = "one role: q = k", "two roles: q ≠ k"
CAUSAL, FREE = "itself and before", "everything"
_SIDE = 3.15  # of a heat map, in inches
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


class AttentionExplorer(Explorer):
    """Attention scores and weights in the reader's sentence: of a trained model, or untrained.

    To try with the trained model: which head looks at the previous piece, and does it still with
    the words in another order?

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
    size = (9.0, 4.75)
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
        "block": Slider("Block", 1, low=1, high=2),
        "roles": Choice("Roles", ONE_ROLE, (ONE_ROLE, TWO_ROLES)),
        "look": Choice("May look at", CAUSAL, (CAUSAL, FREE)),
        "equal": Switch("Queries and keys of equal length", False),
    }

    @staticmethod
    def idle(values: Mapping[str, Any]) -> Collection[str]:
        """A trained model has its own roles, mask and lengths; without one there are no blocks."""
        return ("roles", "look", "equal") if values["vectors"] == TRAINED else ("block",)

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
    ) -> dict[str, Any]:
        """``words`` (T words or pieces), ``scores``, ``weights`` float64 and ``visible`` [T, T].

        Scores are ``scale · q·k / √D``. Trained: q and k of ``block`` and ``head``; with scale 1
        the weights are those of ``Transformer.attention_maps``. Untrained: D = 16, and ``equal``
        gives every q and k the length √D.
        """
        if vectors == TRAINED:
            words, all_q, all_k, own = heads_of_block(block, sentence)
            q, k, scale, causal = all_q[head - 1], all_k[head - 1], scale * own, True
        else:
            words = split_words(sentence)
            q, k = untrained_head(words, head, two_roles=roles == TWO_ROLES, equal=equal)
            scale, causal = scale * D**-0.5, look == CAUSAL
        weights = attention_weights(q[None, None], k[None, None], causal=causal, scale=scale)
        return {
            "words": words,
            # In a fixed order of additions, so that q·k and k·q are the same number to the bit.
            "scores": scale * (q[:, None] * k[None]).sum(-1).numpy(),
            "weights": weights[0, 0].numpy(),
            "visible": np.tri(len(words), dtype=bool) | (not causal),
        }

    def build(self, figure: Figure, arrays: dict[str, Any]) -> None:
        """Two heat maps in fixed places (labels change with the sentence), with their scales."""
        figure.set_layout_engine(None)
        self._labelled: list[str] = []
        self._maps = [
            self._build_map(
                figure, 1.12, "Scores, before the mask", SIGNED, Normalize(-_LIMIT, _LIMIT)
            ),
            self._build_map(figure, 5.1, "Weights, after mask and softmax", WEIGHTS, None),
        ]
        self._maps[0][0].set_ylabel("query: the token that looks")
        self._maps[1][0].set_yticks([])

    def _build_map(
        self, figure: Figure, left: float, title: str, cmap: str, norm: Normalize | None
    ) -> tuple[Axes, AxesImage, list[Any]]:
        wide, high = self.size
        side, bottom = _SIDE, 1.2
        axes = figure.add_axes((left / wide, bottom / high, side / wide, side / high))
        image = axes.imshow(
            np.zeros((1, 1)),
            cmap=colour_map(cmap),
            norm=norm or Normalize(0, 1),
            aspect="auto",
            interpolation="nearest",
        )
        axes.set_title(title)
        axes.set_xlabel("key: the token looked at")
        axes.tick_params(length=0)
        for edge in axes.spines.values():
            edge.set_visible(False)
        place = ((left + side + 0.08) / wide, (bottom + 0.1) / high, 0.1 / wide, 2.9 / high)
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
        return axes, image, cells

    def update(self, arrays: dict[str, Any]) -> None:
        """New colours, and new labels when the sentence is new."""
        words = arrays["words"]
        hidden = np.where(arrays["visible"], arrays["weights"], np.nan)
        for (_, image, cells), matrix in zip(self._maps, (arrays["scores"], hidden), strict=True):
            image.set_data(matrix)
            edge = len(words) - 0.5
            if image.get_extent()[1] != edge:  # new limits mean that everything is drawn anew
                image.set_extent((-0.5, edge, edge, -0.5))
            _write_numbers(cells, image, matrix)
        if words != self._labelled:
            self._label(words)

    def _label(self, words: list[str]) -> None:
        """Words beside the rows of the first map and under the columns of both."""
        left, right = (axes for axes, _, _ in self._maps)
        for axes, rows in ((left, words), (right, None)):
            label_tokens(axes, rows=rows, columns=words, upright=len(words) < 6)
            clear_of_ticks(axes)
        self._labelled = words

    def finding(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """Trained: where the head looks. Untrained: symmetry, and which words like themselves."""
        words, weights = arrays["words"], arrays["weights"]
        best = int(weights[-1].argmax())
        target = "itself" if best == len(words) - 1 else f"“{words[best]}”"
        if values["vectors"] == TRAINED:
            away = len(words) - 1 - best
            return (
                f"{_where_it_looks(values, weights)} The last piece “{words[-1]}” gives most "
                f"weight, ≈ {number(weights[-1, best], 2)}, to {target}"
                f"{f', {away} before it' if away else ''}."
            )
        scores = arrays["scores"]
        apart = float(np.abs(scores - scores.T).max())
        selfish = int((scores.diagonal() >= scores.max(1) - 1e-9).sum())
        kind = (
            "The scores are symmetric: score and mirror image differ by 0"
            if apart < 1e-9
            else f"The scores are not symmetric: score and mirror image differ by up to "
            f"{number(apart, 2)}"
        )
        last = f"the last word “{words[-1]}” gives most weight, {number(weights[-1, best], 2)}, to "
        verb = "scores itself" if selfish == 1 else "score themselves"
        pairs = f"{int(arrays['visible'].sum())} of {len(words) ** 2} pairs are visible"
        return f"{kind}; {selfish} of {len(words)} words {verb} highest; {pairs}; {last}{target}."

    def alt(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """The two heat maps in words."""
        trained = values["vectors"] == TRAINED
        mask = (
            "the future is cut off (grey)"
            if trained or values["look"] == CAUSAL
            else "every word is visible"
        )
        tokens = f"{len(arrays['words'])} {'pieces of' if trained else 'words'}"
        return (
            f"Two heat maps, query by key, of the {tokens} “{values['sentence']}”: left the scores "
            "before the mask, blue below 0 and red above; right the weights from 0 to 1, where "
            f"{mask}. {self.finding(values, arrays)}"
        )


def _where_it_looks(values: dict[str, Any], weights: np.ndarray) -> str:
    """How much a head gives to three places, beside what equal weights would give to each.

    Rows 0 and 1 are left out: there the places are not three.
    """
    head = f"Block {values['block']}, head {values['head']}"
    if values["scale"] != 1:
        head += f" at {values['scale']:.4g} times its own scale"
    if len(weights) < 3:
        return f"{head}: too few pieces for a mean."
    shares = weights.diagonal(-1)[1:], weights.diagonal()[2:], weights[2:, 0]
    previous, itself, first = (f"≈ {number(100 * share.mean(), 0)} %" for share in shares)
    equal = float(np.mean([1 / (t + 1) for t in range(2, len(weights))]))
    return (
        f"{head} puts {previous} on the previous piece, {itself} on the piece itself and {first} "
        f"on the first one (means from the third piece on; equal weights would put "
        f"{number(100 * equal, 0)} % on each)."
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
