"""Probe: reach into a trained model on a Winograd sentence, and see whether its answer changes."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple

import ipywidgets as ipw
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from course import probes
from course.plots import (
    COLOURS,
    INK,
    SIGNED,
    WEIGHTS,
    clear_of_ticks,
    colour_map,
    label_tokens,
    number,
    readable_on,
    short,
)
from course.pretrained import load
from course.tasks.winograd import (
    ADJECTIVE,
    ANSWER,
    CROSSED,
    CROSSER,
    DECIDING,
    REPAIRED,
    TEMPLATE,
    Sentences,
    Winograd,
)
from course.transformer import Transformer
from course.widgets.base import Choice, Control, Explorer, Receive, Slider, TextField

NOTHING = "nothing"
NOUNS, OTHER_KIND = "swap the nouns", "swap the adjective"
HEAD = "ablate this head"
LOOK, LOOK_ALL = "ablate a look of this head", "ablate a look of all heads"
PATCH_NOUNS = "patch from: nouns swapped"
PATCH_OTHER_KIND = "patch from: adjective swapped"
CHANGES = (NOTHING, NOUNS, OTHER_KIND, HEAD, LOOK, LOOK_ALL, PATCH_NOUNS, PATCH_OTHER_KIND)
LOOKS, PATCHES = (LOOK, LOOK_ALL), (PATCH_NOUNS, PATCH_OTHER_KIND)

_SLOTS = {CROSSER: "first noun", CROSSED: "second noun", ADJECTIVE: "adjective"}
_LAST = {DECIDING: " (decides)"}
#: The positions up to the deciding one, by number and word.
PLACES = tuple(
    f"{i} {_SLOTS.get(i, word)}{_LAST.get(i, '')}" for i, word in enumerate(TEMPLATE[:ANSWER])
)
_SIDE = 2.9  # of the map, in inches
_BEFORE, _AFTER = "#8b929e", COLOURS[1]
# All explorers of the stored model share it, and Jupyter may compute in several threads: what one
# changes inside the model, another must not see.
_TURN = threading.Lock()


class Probed(NamedTuple):
    """A model in float64, so that all machines round alike, and the task it was trained on."""

    model: Transformer
    task: Winograd


@cache
def _stored() -> Probed:
    """Read once, when a sentence first asks."""
    model, task, _ = load("winograd")
    return Probed(model.double(), task)


def _probed(model: Transformer, task: Winograd) -> Probed:
    """A copy of the reader's model; ``ValueError`` unless the two belong together."""
    if not isinstance(model, Transformer) or not isinstance(task, Winograd):
        raise ValueError(
            "model, task: expected a Transformer and the Winograd task it was trained on, "
            f"got {type(model).__name__} and {type(task).__name__}"
        )
    if model.config.vocab_size != len(task):
        raise ValueError(
            f"task: expected one of {model.config.vocab_size} words, as the model has, "
            f"got {len(task)}"
        )
    return Probed(copy.deepcopy(model).to("cpu", torch.float64).eval(), task)


# --------------------------------------------------------------------------------- the sentence


def read_prompt(task: Winograd, text: str) -> str:
    """A sentence of ``task`` up to "so the"; ``ValueError`` says which word is wrong, and where."""
    try:
        tokens = task.encode(text)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("sentence: ")) from None
    if len(tokens) < ANSWER:
        raise ValueError(
            f"expected {ANSWER} words, up to “so the” (a comma is a word), got {len(tokens)}"
        )
    return _prompt(task.decode(tokens).split())


def _prompt(words: Sequence[str]) -> str:
    return " ".join(words[:ANSWER]).replace(" ,", ",")


@dataclass(frozen=True)
class SentenceField(TextField):
    """A line of text with three drop-down lists for its nouns and its adjective, all linked."""

    slots: tuple[tuple[str, int, tuple[str, ...]], ...] = ()  # label, position, words

    @classmethod
    def of(cls, task: Winograd, first: str | None = None) -> SentenceField:
        """For the words of ``task``, with the sentence ``first`` (None: of its first two nouns)."""
        words = (tuple(task.nouns), task.crossables, task.adjectives)
        labels = ("First noun", "Second noun", "Adjective")
        places = (CROSSER, CROSSED, ADJECTIVE)
        pairs = (task.pairs[0], task.pairs[0], task.pairs[len(task.pairs) // 2], task.pairs[-1])
        kinds = (task.of_crosser[0], task.of_crossed[0], task.of_crosser[-1], task.of_crossed[-1])
        plain, *examples = (
            _prompt(task.sentence(*pair, kind).split())
            for pair, kind in zip(pairs, kinds, strict=True)
        )
        return cls(
            "Sentence",
            plain if first is None else read_prompt(task, first),
            partial(read_prompt, task),
            tuple(examples),
            slots=tuple(zip(labels, places, words, strict=True)),
        )

    def widgets(self, receive: Receive) -> tuple[ipw.Widget, ...]:
        (field,) = super().widgets(receive)
        boxes: list[ipw.Dropdown] = []
        for label, position, words in self.slots:
            box = ipw.Dropdown(
                options=words,
                value=_split(self.value)[position],
                description=label,
                style={"description_width": "9.2em"},
                layout=ipw.Layout(width="18em"),
            )
            box.observe(lambda _: receive(self._chosen(boxes)), names="value")
            boxes.append(box)
        return (field, *boxes)

    def _chosen(self, boxes: Sequence[ipw.Widget]) -> str:
        words = list(TEMPLATE)
        for (_, position, _), box in zip(self.slots, boxes, strict=True):
            words[position] = box.value
        return _prompt(words)

    def show(self, widgets: Sequence[ipw.Widget], value: Any) -> None:
        super().show(widgets[:1], value)
        for (_, position, _), box in zip(self.slots, widgets[1:], strict=True):
            box.value = _split(value)[position]


def _split(prompt: str) -> list[str]:
    return prompt.replace(",", " ,").split()


def _possible(probed: Probed) -> tuple[str, ...]:
    """The changes that the task allows, and the mixer of one block at least."""
    model, task = probed

    def in_some_block(enter: Callable[[int], AbstractContextManager[None]]) -> bool:
        for block in range(len(model.blocks)):
            with suppress(ValueError), enter(block):
                return True
        return False

    left_out: set[str] = set()
    if task.places is not None:
        left_out |= {NOUNS, PATCH_NOUNS}
    if not in_some_block(lambda block: probes.ablate_head(model, block, 0)):
        left_out |= {HEAD}
    if not in_some_block(lambda block: probes.ablate_look(model, block, 0, 0)):
        left_out |= set(LOOKS)
    return tuple(change for change in CHANGES if change not in left_out)


def controls_of(
    task: Winograd,
    *,
    blocks: int,
    heads: int,
    head: int = 1,
    first: str | None = None,
    changes: tuple[str, ...] = CHANGES,
) -> dict[str, Control]:
    """The controls for a task's words and a model of so many blocks, with so many heads each."""
    return {
        "sentence": SentenceField.of(task, first),
        "block": Slider("Block", blocks, low=1, high=blocks),
        "head": Slider("Head", head, low=1, high=heads),
        "change": Choice("Change", NOTHING, changes),
        "position": Choice("Position", PLACES[DECIDING], PLACES),
        "source": Choice("Looked at", PLACES[CROSSER], PLACES),
        "after": Slider("Patch after block", min(1, blocks), low=0, high=blocks),
    }


# ------------------------------------------------------------------------------ state → numbers


@torch.no_grad()
def probe(
    probed: Probed,
    *,
    sentence: str,
    block: int,
    head: int,
    change: str,
    position: str,
    source: str,
    after: int,
) -> dict[str, Any]:
    """What the model says before and after the change.

    ``weights`` [T, T]: the map of ``block`` and ``head`` (from 1) in the changed pass, over
    ``words``. ``before`` and ``after`` [3]: the probabilities of the first noun, of the second, and
    of all other words together. ``answer`` and ``right`` hold two words each, before and after.
    ``given``: the weight of the look before the change. ``signed``: whether the map has weights
    below 0. Raises ``ValueError`` for a change that this model or task does not allow, and for a
    model whose logits are not finite.
    """
    model, task = probed
    row, column = PLACES.index(position), PLACES.index(source)
    tokens = task.encode(f"{sentence} {_split(sentence)[CROSSER]}")[None]
    mine = _solved(task, tokens)
    other = mine
    if change in (NOUNS, PATCH_NOUNS):
        other = task.swap_nouns(mine)
    elif change in (OTHER_KIND, PATCH_OTHER_KIND):
        other = task.swap_adjective(mine)
    read = other if change in (NOUNS, OTHER_KIND) else mine
    with _TURN, ExitStack() as stack:
        plain = probes.run(model, mine.prompts)
        if change == HEAD:
            stack.enter_context(probes.ablate_head(model, block - 1, head - 1))
        elif change in LOOKS:
            one = head - 1 if change == LOOK else None
            stack.enter_context(probes.ablate_look(model, block - 1, row, column, head=one))
        elif change in PATCHES:
            stream = probes.run(model, other.prompts).streams[after]
            stack.enter_context(probes.patch(model, stream, after=after, position=row))
        changed = plain if change == NOTHING else probes.run(model, read.prompts)
    if not (plain.logits.isfinite().all() and changed.logits.isfinite().all()):
        raise ValueError("model: expected finite logits, got nan or inf")
    nouns = [int(mine.crosser), int(mine.crossed)]
    new = ", after the change" if change != NOTHING else ""
    weights = changed.maps[block - 1][0, head - 1].numpy()
    return {
        "words": task.decode(read.prompts[0]).split(),
        "weights": weights,
        "signed": bool(weights.min() < 0),
        "nouns": [task.vocabulary[noun] for noun in nouns],
        "before": _probabilities(plain.logits, nouns),
        "after": _probabilities(changed.logits, nouns),
        "answer": [task.vocabulary[int(x.logits[0, -1].argmax())] for x in (plain, changed)],
        "sure": [float(x.logits[0, -1].softmax(-1).max()) for x in (plain, changed)],
        "right": [task.vocabulary[int(x.answer)] for x in (mine, read)],
        "given": float(plain.maps[block - 1][0, head - 1, row, column]),
        "donor": task.decode(other.prompts[0]).split()[row],
        "title": f"Block {block}, head {head}{new}",
        "changed": change != NOTHING,
        "frame": _frame(change, row, column),
    }


def _frame(change: str, row: int, column: int) -> tuple[float, float, float, float] | None:
    """Which part of the map was touched, as left, top, width and height; None for no part."""
    T, rim = len(PLACES), 0.1  # beyond the black frame, which may be the same row
    if change == HEAD:
        return -0.5, -0.5, T, T
    if change in LOOKS:
        return column - 0.5, row - 0.5, 1, 1
    if change in PATCHES:
        return -0.5 - rim, row - 0.5 - rim, T + 2 * rim, 1 + 2 * rim
    return None


def _solved(task: Winograd, tokens: Tensor) -> Sentences:
    """The whole sentence that begins with these words ``[1,T]``, with its right answer."""
    crosser, crossed, adjective = (
        task.vocabulary[int(tokens[0, i])] for i in (CROSSER, CROSSED, ADJECTIVE)
    )
    return Sentences(task.encode(task.sentence(crosser, crossed, adjective))[None])


def _probabilities(logits: Tensor, nouns: list[int]) -> np.ndarray:
    p = logits[0, -1].softmax(-1)[nouns].numpy()
    return np.array([*p, max(0.0, 1 - p.sum())])


class ProbeExplorer(Explorer):
    """Sentence, block, head and one change inside the model → map and answer, before and after.

    ``ProbeExplorer()`` has the stored model; ``ProbeExplorer(model, task)`` a copy of the reader's
    own, for the words of that task, with the changes that both allow. Raises ``ValueError`` if the
    two do not belong together or the logits are not finite, ``RuntimeError`` for a model that is
    inside an intervention.

    To try: which head looks at the answer, and does the answer change without that look? Patch
    the deciding position after block 1, then after block 2, then after block 0: from where on is
    the answer decided there? Does the same patch work with other nouns?
    """

    title = "Which part of the model decides what “it” means?"
    note = (
        "The model predicts the word after “so the”: it must say who waits, so what “it” means. "
        "Rows look, columns are looked at; the row framed in black decides. Positions count from "
        "0; numbers in the map are per cent. After a change the map is that of the changed pass, "
        "and orange shows what was changed."
    )
    size = (8.4, 4.48)
    chief = "change"
    # Head 4 of the last block looks at the noun that the model answers with.
    controls: ClassVar[Mapping[str, Control]] = controls_of(
        REPAIRED, blocks=2, heads=4, head=4, first=REPAIRED.sentence("dog", "river", "tired")
    )

    def __init__(
        self, model: Transformer | None = None, task: Winograd | None = None, **values: object
    ) -> None:
        if model is not None or task is not None:
            probed = _probed(model, task)  # type: ignore[arg-type]
            first = SentenceField.of(probed.task).value
            maps = probes.run(probed.model, probed.task.encode(first)[None]).maps
            controls = controls_of(
                probed.task,
                blocks=len(maps),
                heads=min(x.shape[1] for x in maps),
                changes=_possible(probed),
            )
            # This explorer's own, in place of those of the class.
            self.__dict__.update(compute=partial(probe, probed), controls=controls)
        super().__init__(**values)

    def close(self) -> None:
        """Free the explorer whole, and the copy of the model with it."""
        super().close()
        for name in ("compute", "controls"):
            self.__dict__.pop(name, None)

    @staticmethod
    def compute(**values: Any) -> dict[str, Any]:
        """:func:`probe` on the stored model."""
        return probe(_stored(), **values)

    @staticmethod
    def idle(values: Mapping[str, Any]) -> Collection[str]:
        """Only a look has a source; only a patch has a place in the stream."""
        if values["change"] in LOOKS:
            return ("after",)
        return ("source",) if values["change"] in PATCHES else ("position", "source", "after")

    def build(self, figure: Figure, arrays: dict[str, Any]) -> None:
        """The map and the bars, in fixed places: labels change with the sentence."""
        figure.set_layout_engine(None)
        wide, high = self.size
        self._labelled: list[str] = []
        self._signed: bool | None = None
        self._build_map(
            figure.add_axes((1.4 / wide, 1.2 / high, _SIDE / wide, _SIDE / high)),
            figure.add_axes((4.38 / wide, 1.3 / high, 0.1 / wide, (_SIDE - 0.2) / high)),
        )
        self._build_bars(figure.add_axes((6.05 / wide, 1.2 / high, 1.55 / wide, _SIDE / high)))

    def _build_map(self, axes: Axes, scale: Axes) -> None:
        T = len(PLACES)
        self._map = axes
        self._image = axes.imshow(
            np.zeros((T, T)),
            cmap=colour_map(WEIGHTS),
            norm=Normalize(0, 1),
            aspect="auto",
            interpolation="nearest",
        )
        axes.set_xlabel("the token looked at")
        axes.set_ylabel("the token that looks")
        axes.tick_params(length=0)
        for edge in axes.spines.values():
            edge.set_visible(False)
        axes.add_patch(
            Rectangle((-0.5, DECIDING - 0.5), T, 1, fill=False, edgecolor=INK, linewidth=1.6)
        ).set_clip_on(False)
        self._touched = Rectangle((0, 0), 1, 1, fill=False, edgecolor=_AFTER, linewidth=2.4)
        self._touched.set(zorder=4, clip_on=False)
        axes.add_patch(self._touched)
        self._cells = [
            axes.text(i, DECIDING, "", ha="center", va="center", fontsize=8) for i in range(T)
        ]
        bar = axes.figure.colorbar(self._image, cax=scale)
        bar.outline.set_visible(False)
        scale.tick_params(labelsize=8, length=2)
        scale.set_title("weight", fontsize=8, fontweight="normal", pad=9)

    def _build_bars(self, axes: Axes) -> None:
        self._answers = axes
        axes.set(xlim=(0, 1), ylim=(2.5, -0.5), xlabel="probability  (✓ right)")
        axes.set_title("Next word after “so the”", x=-0.55)
        axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        axes.tick_params(axis="y", length=0)
        places = np.arange(3)
        self._bars = [
            axes.barh(places + shift, np.zeros(3), 0.3, color=colour, label=label)
            for shift, colour, label in ((-0.17, _BEFORE, "before"), (0.17, _AFTER, "after"))
        ]
        self._said = [
            [axes.text(0, y, "", va="center", fontsize=9) for y in places + shift]
            for shift in (-0.17, 0.17)
        ]
        self._key = [
            axes.text(x, -0.21, word, transform=axes.transAxes, color=colour, fontsize=9,
                      fontweight="bold", va="top")
            for x, word, colour in ((-0.25, "before", "#5b626e"), (0.3, "after the change", _AFTER))
        ]  # fmt: skip

    def update(self, arrays: dict[str, Any]) -> None:
        """New colours and bars, and new labels when the words are new."""
        weights = arrays["weights"]
        if arrays["signed"] != self._signed:
            self._signed = arrays["signed"]
            self._image.set_cmap(colour_map(SIGNED if self._signed else WEIGHTS))
            self._image.set_clim(-1 if self._signed else 0, 1)
        self._image.set_data(np.where(np.tri(len(weights), dtype=bool), weights, np.nan))
        for cell, weight in zip(self._cells, weights[DECIDING], strict=True):
            percent = number(100 * weight, 0)
            cell.set_text("" if percent == "0" else percent)
            cell.set_color(readable_on(tuple(self._image.cmap(self._image.norm(weight)))))
        self._map.set_title(arrays["title"])
        frame = arrays["frame"]
        self._touched.set_visible(frame is not None)
        if frame is not None:
            self._touched.set_bounds(*frame)
        labels = [*arrays["words"], *arrays["nouns"]]
        if labels != self._labelled:
            self._labelled = labels
            words = arrays["words"]
            columns = [short(word, 7) for word in words]
            rows = [f"{word} {place}" for place, word in enumerate(columns)]
            label_tokens(self._map, rows=rows, columns=columns, upright=False)
            clear_of_ticks(self._map, both=True)
            self._answers.set_yticks(
                range(3), [*(short(noun) for noun in arrays["nouns"]), "any other"]
            )
            for label in self._answers.get_yticklabels():
                label.set_parse_math(False)
        self._update_bars(arrays)

    def _update_bars(self, arrays: dict[str, Any]) -> None:
        shown = (True, arrays["changed"])
        named = [*arrays["nouns"], None]
        apart = 0.17 if arrays["changed"] else 0.0  # one bar alone stands at its label
        for turn, part in enumerate(("before", "after")):
            shift = (-apart, apart)[turn]
            for place, (bar, said, p, noun) in enumerate(
                zip(self._bars[turn], self._said[turn], arrays[part], named, strict=True)
            ):
                bar.set_y(place + shift - bar.get_height() / 2)
                said.set_y(place + shift)
                bar.set_width(p)
                bar.set_visible(shown[turn])
                said.set_visible(shown[turn])
                said.set_x(p + 0.04)
                said.set_text(
                    _percent(p, over=">", under="<")
                    + (" ✓" if noun == arrays["right"][turn] else "")
                )
            self._key[turn].set_visible(arrays["changed"])

    def finding(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """Where the head looks from the deciding position; the answer, before and after."""
        row, words = arrays["weights"][DECIDING], arrays["words"]
        most = int(np.abs(row).argmax())
        first, last = arrays["answer"]
        right = [
            "right" if a == r else "wrong"
            for a, r in zip(arrays["answer"], arrays["right"], strict=True)
        ]
        said = (
            f"Block {values['block']}, head {values['head']} puts {_percent(row[most])} of the "
            f"deciding row on “{words[most]}” ({most}). The answer is “{first}” "
            f"({_percent(arrays['sure'][0])}, {right[0]})"
        )
        if not arrays["changed"]:
            return f"{said}."
        moves = f"stays “{last}”" if first == last else f"changes from “{first}” to “{last}”"
        return (
            f"{said}; {_with_what(values, arrays)} it {moves} ({_percent(arrays['sure'][1])}"
            f"{f', {right[1]}' if values['change'] in (NOUNS, OTHER_KIND) else ''})."
        )

    def alt(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """The map and the bars in words."""
        x, y = arrays["nouns"]
        before, after = (
            f"{_percent(p[0])}, {_percent(p[1])} and {_percent(p[2])}"
            for p in (arrays["before"], arrays["after"])
        )
        then = f", after the change {after}" if arrays["changed"] else ""
        return (
            f"Heat map of who looks at whom in “{_prompt(arrays['words'])}”, the future grey, the "
            "deciding row framed, its weights written in per cent; beside it bars of the "
            f"probabilities of “{x}”, “{y}” and any other word: {before}{then}. "
            f"{self.finding(values, arrays)}"
        )


def _with_what(values: dict[str, Any], arrays: dict[str, Any]) -> str:
    """The change in words."""
    change, row = values["change"], PLACES.index(values["position"])
    if change == NOUNS:
        return "with the nouns swapped"
    if change == OTHER_KIND:
        return f"with “{arrays['words'][ADJECTIVE]}” as the adjective"
    if change == HEAD:
        return "without this head"
    if change in LOOKS:
        column = PLACES.index(values["source"])
        heads = "in this head" if change == LOOK else "in all heads of the block"
        return (
            f"without the look from {row} to {column} {heads} "
            f"({_percent(arrays['given'])} of row {row} here)"
        )
    donor = "nouns" if change == PATCH_NOUNS else "adjective"
    return (
        f"with the patch at {row} after block {values['after']} from the sentence with the "
        f"{donor} swapped"
    )


def _percent(share: float, *, over: str = "over ", under: str = "under ") -> str:
    if 0.995 <= share < 1:
        return f"{over}99 %"
    if 0 < share < 0.005:
        return f"{under}1 %"
    return f"{number(100 * share, 0)} %"
