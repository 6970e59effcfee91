"""Take parts out of a trained model, and see what it then writes and how well it predicts."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch import Tensor, nn
from torch.nn import functional as F

from course.attention import MultiHeadAttention, softmax_attention
from course.mixers.softmax import SoftmaxMixer
from course.plots import COLOURS, HIDDEN, INK, QUIET, number
from course.pretrained import held_out_text, load
from course.transformer import Transformer
from course.widgets.base import Choice, Control, Explorer, Slider, Switch
from course.widgets.paint import change

WINDOW, WINDOWS = 128, 4  # tokens of the held-out text that the perplexity is measured on
WRITTEN = 80  # tokens of a sample
START = "\n"
ALL, OUT = "all four heads", "left out"
HEADS = (ALL, *(f"without head {head}" for head in range(1, 5)), OUT)
OWN, COMMON = "each token by its own size", "all tokens by one size"
_LINE, _LINES = 46, 8  # characters a line, lines of the sample that are shown


class Cut(NamedTuple):
    """What is left of the model: for each block its heads and its feed-forward part, the norms."""

    heads: tuple[str, ...]
    thinks: tuple[bool, ...]
    norms: str


class Model(NamedTuple):
    """The stored model in float64 (all machines round alike), and held-out windows [N, 129]."""

    model: Transformer
    tokenizer: Any
    windows: Tensor


@cache
def stored() -> Model:
    """Read once, when an explorer first asks."""
    model, tokenizer, _ = load("shakespeare")
    ids = torch.tensor(tokenizer.encode(held_out_text()).ids[: WINDOWS * WINDOW + 1])
    return Model(model.double(), tokenizer, ids.unfold(0, WINDOW + 1, WINDOW))


@torch.no_grad()
def logits_of(
    model: Transformer, tokens: Tensor, cut: Cut, sizes: Mapping[nn.Module, Tensor]
) -> Tensor:
    """``model(tokens)`` without what is cut, ``[B,T,V]``.

    ``sizes``: what each norm divides by where it is one size for all tokens.
    """

    def attend(layer: MultiHeadAttention, x: Tensor) -> Tensor:
        return softmax_attention(*layer.heads(x), causal=True)

    return _pass(model, model.embed(tokens), cut, sizes, attend)


@torch.no_grad()
def next_logits(
    model: Transformer,
    token: int,
    cut: Cut,
    sizes: Mapping[nn.Module, Tensor],
    past: dict[nn.Module, tuple[Tensor, Tensor]],
) -> Tensor:
    """The last row of :func:`logits_of`, ``[V]``, for one token more.

    ``past`` has the keys and values of the tokens before; those of this one are added to it.
    """
    seen = next(iter(past.values()))[0].shape[2] if past else 0

    def attend(layer: MultiHeadAttention, x: Tensor) -> Tensor:
        q, k, v = layer.heads(x)
        if layer in past:
            k, v = (torch.cat(pair, 2) for pair in zip(past[layer], (k, v), strict=True))
        past[layer] = k, v
        return softmax_attention(q, k, v)

    x = model.embed(torch.tensor([[token]]), offset=seen)
    return _pass(model, x, cut, sizes, attend)[0, -1]


def _pass(
    model: Transformer,
    x: Tensor,
    cut: Cut,
    sizes: Mapping[nn.Module, Tensor],
    attend: Callable[[MultiHeadAttention, Tensor], Tensor],
) -> Tensor:
    def read(norm: nn.Module, x: Tensor) -> Tensor:
        if cut.norms == OUT:
            return x
        if cut.norms == OWN:
            return norm(x)
        assert isinstance(norm, nn.LayerNorm)
        return (x - x.mean(-1, keepdim=True)) / sizes[norm] * norm.weight + norm.bias

    for block, heads, thinks in zip(model.blocks, cut.heads, cut.thinks, strict=True):
        assert isinstance(block.mixer, SoftmaxMixer) and block.feed_forward is not None
        layer = block.mixer.attention
        o = attend(layer, read(block.mixer_norm, x))  # also where it is not heard: past grows
        if heads != OUT:
            if heads != ALL:
                o[:, HEADS.index(heads) - 1] = 0
            x = x + layer.merge(o)
        if thinks:
            x = x + block.feed_forward(read(block.feed_forward_norm, x))
    return model.output(read(model.last_norm, x))


@cache
def usual_sizes() -> Mapping[nn.Module, Tensor]:
    """For each norm of the whole model the root of the mean variance of what it reads."""
    model, _, windows = stored()
    found: dict[nn.Module, Tensor] = {}

    def watch(norm: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        found[norm] = inputs[0].var(-1, correction=0).mean().sqrt()

    hooks = [m.register_forward_hook(watch) for m in model.modules() if isinstance(m, nn.LayerNorm)]
    try:
        with torch.no_grad():
            model(windows[:, :-1])
    finally:
        for hook in hooks:
            hook.remove()
    return found


@cache
def perplexity_of(cut: Cut) -> float:
    """On the held-out windows."""
    model, _, windows = stored()
    scores = logits_of(model, windows[:, :-1], cut, usual_sizes())
    return math.exp(F.cross_entropy(scores.mT, windows[:, 1:]).item())


@cache
def text_of(cut: Cut, sample: int) -> str:
    """What the model writes after a line break; ``sample`` fixes the random numbers."""
    model, tokenizer, _ = stored()
    draws = torch.rand(WRITTEN, generator=torch.Generator().manual_seed(sample))
    tokens = tokenizer.encode(START).ids  # one token
    past: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    for u in draws.tolist():
        chances = next_logits(model, tokens[-1], cut, usual_sizes(), past).softmax(-1)
        tokens.append(int((chances.cumsum(0)[:-1] < u).sum()))
    return tokenizer.decode(tokens[1:])


class BlockExplorer(Explorer):
    """A trained model of two blocks with parts taken out: what it writes, how well it predicts.

    To try: which single head is missed most? Which feed-forward part? What happens without norms,
    and what if all tokens are divided by one size (which keeps the scale and drops the rest)?
    """

    title = "What does a trained model lose without a part?"
    note = (
        "The model of two blocks that learned to write like Shakespeare. What is left out adds "
        "nothing to the stream; nothing is trained again. So the numbers say what this model uses, "
        "not what a model needs."
    )
    size = (9.4, 4.3)
    chief = "heads_1"
    controls: ClassVar[dict[str, Control]] = {
        "heads_1": Choice("Attention, block 1", ALL, HEADS),
        "thinks_1": Switch("Feed-forward part, block 1", True),
        "heads_2": Choice("Attention, block 2", ALL, HEADS),
        "thinks_2": Switch("Feed-forward part, block 2", True),
        "norms": Choice("Norms divide", OWN, (OWN, COMMON, OUT)),
        "sample": Slider("Text number", 1, low=1, high=6),
    }

    @staticmethod
    def compute(
        *, heads_1: str, thinks_1: bool, heads_2: str, thinks_2: bool, norms: str, sample: int
    ) -> dict[str, Any]:
        """``perplexity`` of what is left and ``whole``, that of the whole model, on 512 held-out
        tokens; ``text``, what is left writes.

        What is left: ``heads`` [2, 4] and ``thinks`` [2] are boolean, ``norms`` is the choice.
        """
        cut = Cut((heads_1, heads_2), (thinks_1, thinks_2), norms)
        return {
            "perplexity": perplexity_of(cut),
            "whole": perplexity_of(WHOLE),
            "text": text_of(cut, sample),
            "heads": np.array(
                [[left not in (OUT, one) for one in HEADS[1:5]] for left in cut.heads]
            ),
            "thinks": np.array(cut.thinks),
            "norms": norms,
        }

    def build(self, figure: Figure, arrays: dict[str, Any]) -> None:
        """The stream with its parts, the text, and the perplexity as a bar."""
        figure.set_layout_engine(None)
        self._build_stream(figure)
        self._build_text(figure)
        self._build_bar(figure)

    def _build_stream(self, figure: Figure) -> None:
        axes = figure.add_axes((0.01, 0.02, 0.4, 0.9))
        axes.set(xlim=(0, 10), ylim=(0, 13), xticks=[], yticks=[])
        axes.axis("off")
        axes.set_title("the stream, upwards", loc="left")
        axes.plot([1.2, 1.2], [0.9, 12.2], color=COLOURS[5], linewidth=5, zorder=1)
        axes.text(1.2, 0.5, "pieces", ha="center", va="center", fontsize=9)
        axes.text(1.2, 12.65, "next piece", ha="center", va="center", fontsize=9)
        self._boxes: dict[Any, tuple[FancyBboxPatch, Any]] = {}
        self._there: dict[Any, bool] = {}  # as each box is drawn
        for block in (0, 1):
            y = 2.2 + 4.7 * block
            axes.text(9.9, y + 3.2, f"block {block + 1}", ha="right", fontsize=9, color=QUIET)
            for head in range(4):
                self._box(
                    axes, ("head", block, head), 4.3 + 1.45 * head, y, 1.2, f"head {head + 1}"
                )
            self._box(axes, ("think", block), 4.3, y + 2.1, 5.55, "feed-forward")
            for part in (0.0, 2.1):
                self._box(axes, ("norm", block, part), 2.1, y + part, 1.4, "norm")
                axes.plot([1.2, 2.1], [y + part] * 2, color=COLOURS[5], linewidth=1.4, zorder=1)
                axes.plot([3.5, 4.3], [y + part] * 2, color=COLOURS[5], linewidth=1.4, zorder=1)
        self._box(axes, ("norm", 2, 0.0), 0.5, 11.3, 1.4, "norm")

    def _box(self, axes: Any, key: Any, x: float, y: float, wide: float, words: str) -> None:
        patch = FancyBboxPatch(
            (x, y - 0.5),
            wide,
            1.0,
            boxstyle="round,pad=0,rounding_size=0.2",
            linewidth=1.2,
            zorder=3,
        )
        axes.add_patch(patch)
        label = axes.text(
            x + wide / 2, y - 0.03, words, ha="center", va="center", fontsize=8, zorder=4
        )
        self._boxes[key] = patch, label

    def _build_text(self, figure: Figure) -> None:
        axes = figure.add_axes((0.45, 0.36, 0.54, 0.56))
        axes.axis("off")
        axes.set_title("what it writes", loc="left")
        self._written = axes.text(
            0, 0.97, "", va="top", fontsize=9, family="DejaVu Sans Mono", parse_math=False
        )

    def _build_bar(self, figure: Figure) -> None:
        axes = figure.add_axes((0.49, 0.16, 0.48, 0.13))
        axes.set_xscale("log")
        axes.set(xlim=(10, 3e5), ylim=(-0.6, 0.6), yticks=[])
        axes.set_xticks(
            [10, 100, 1_000, 10_000, 100_000], ["10", "100", "1,000", "10,000", "100,000"]
        )
        axes.minorticks_off()
        axes.set_xlabel("perplexity on 512 held-out pieces")
        axes.spines["left"].set_visible(False)
        whole = perplexity_of(WHOLE)
        axes.axvline(whole, color=INK, linestyle=(0, (4, 2)), linewidth=1.4, zorder=3)
        axes.axvline(stored().model.config.vocab_size, color=QUIET, linewidth=1.2, zorder=3)
        axes.text(whole, 0.68, "whole", ha="center", va="bottom", fontsize=8.5)
        axes.text(
            1024, 0.68, "all 1,024 alike", ha="center", va="bottom", fontsize=8.5, color=QUIET
        )
        (self._bar,) = axes.barh([0], [1], left=10, height=0.7, color=COLOURS[0])
        self._value = axes.text(0, -0.02, "", va="center", fontsize=9.5, fontweight="bold")

    def update(self, arrays: dict[str, Any]) -> None:
        """Grey what is left out; new text, new bar."""
        for key, (patch, label) in self._boxes.items():
            kind, block, *rest = key
            if kind == "head":
                there = bool(arrays["heads"][block, rest[0]])
            elif kind == "think":
                there = bool(arrays["thinks"][block])
            else:
                there = arrays["norms"] != OUT
                change(label, text="one size" if arrays["norms"] == COMMON else "norm")
            if self._there.get(key) == there:
                continue  # a box that is set is drawn again
            patch.set_facecolor("white" if there else HIDDEN)
            patch.set_edgecolor(INK if there else "#b6bcc4")
            patch.set_linestyle("-" if there else (0, (3, 2)))
            label.set_color(INK if there else "#6b7280")
            self._there[key] = there
        self._written.set_text("\n".join(_wrapped(arrays["text"])))
        shown = min(arrays["perplexity"], 2.9e5)
        self._bar.set_width(max(shown - 10, 0.01))
        self._value.set_text(_count(arrays["perplexity"]))
        inside = shown > 2e4
        self._value.set_x(shown * (0.92 if inside else 1.1))
        self._value.set_horizontalalignment("right" if inside else "left")
        self._value.set_color("white" if inside else INK)

    def finding(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """What is missing, what it costs, how the text begins."""
        missing = _missing(values)
        lost = "Nothing is left out" if not missing else f"Left out: {', '.join(missing)}"
        ratio = arrays["perplexity"] / arrays["whole"]
        against = (
            ""
            if not missing
            else (
                f", ≈ {number(ratio, 2) if ratio < 100 else _count(ratio)} times the "
                f"≈ {_count(arrays['whole'])} of the whole model"
            )
        )
        begins = " ".join(arrays["text"].split())[:60].strip()
        return (
            f"{lost}: perplexity ≈ {_count(arrays['perplexity'])}{against}. "
            f"Text {values['sample']} begins “{begins}…”."
        )

    def alt(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """Drawing, text and bar in words."""
        return (
            "A stream that runs upwards through two blocks, each with four heads and a "
            "feed-forward part; what is left out is grey. Beside it the text that is written, and "
            f"a bar of the perplexity. {self.finding(values, arrays)}"
        )


WHOLE = Cut((ALL, ALL), (True, True), OWN)


def _missing(values: Mapping[str, Any]) -> list[str]:
    named = []
    for block in (1, 2):
        heads = values[f"heads_{block}"]
        if heads == OUT:
            named.append(f"attention of block {block}")
        elif heads != ALL:
            named.append(f"head {HEADS.index(heads)} of block {block}")
        if not values[f"thinks_{block}"]:
            named.append(f"feed-forward of block {block}")
    if values["norms"] != OWN:
        named.append("the norms" if values["norms"] == OUT else "each token's own size")
    return named


def _wrapped(text: str) -> list[str]:
    """Its lines as they are shown, long ones broken."""
    lines = [
        piece
        for line in text.replace("\t", " ").split("\n")
        for piece in textwrap.wrap(line, _LINE) or [""]
    ]
    return lines[:_LINES] if len(lines) <= _LINES else [*lines[: _LINES - 1], "…"]


def _count(value: float) -> str:
    return number(value, 1) if value < 100 else f"{value:,.0f}" if value < 1e9 else f"{value:.1e}"
