"""The explorer that takes parts out of a model: its numbers by the model's own ways, its words."""

from __future__ import annotations

import math
from contextlib import ExitStack
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from course import probes
from course.pretrained import held_out_text, load
from course.training import perplexity
from course.widgets import BlockExplorer
from course.widgets.block import (
    ALL,
    COMMON,
    HEADS,
    OUT,
    OWN,
    WHOLE,
    Cut,
    logits_of,
    next_logits,
    perplexity_of,
    stored,
    usual_sizes,
)
from tests.drawing import close
from tests.exploring import compute_of

compute = compute_of(BlockExplorer)
CUTS = [
    WHOLE,
    Cut((HEADS[3], ALL), (True, True), OWN),
    Cut((ALL, HEADS[1]), (True, False), OWN),
    Cut((OUT, HEADS[4]), (False, True), COMMON),
    Cut((ALL, OUT), (True, True), OUT),
]


class _Nothing(nn.Module):
    """A part that adds nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)


def by_the_model_itself(cut: Cut, tokens: torch.Tensor) -> torch.Tensor:
    """A fresh copy of the model with its modules exchanged, heads by the probes."""
    model = load("shakespeare").model.double()
    with ExitStack() as stack:
        for index, (block, heads) in enumerate(zip(model.blocks, cut.heads, strict=True)):
            if heads == OUT:
                block.mixer = _Nothing()
            elif heads != ALL:
                stack.enter_context(probes.ablate_head(model, index, HEADS.index(heads) - 1))
            if not cut.thinks[index]:
                block.feed_forward = _Nothing()
            if cut.norms == OUT:
                block.mixer_norm = block.feed_forward_norm = nn.Identity()
        if cut.norms == OUT:
            model.last_norm = nn.Identity()
        with torch.no_grad():
            return model(tokens)


@pytest.mark.parametrize("cut", [cut for cut in CUTS if cut.norms != COMMON])
def test_what_is_left_is_the_model_with_modules_taken_out(cut) -> None:
    model, _, windows = stored()
    got = logits_of(model, windows[:2, :40], cut, usual_sizes())
    close(got, by_the_model_itself(cut, windows[:2, :40]))


def test_one_size_for_all_is_the_norm_where_all_tokens_have_it() -> None:
    model, _, windows = stored()
    cut = WHOLE._replace(norms=COMMON)
    tokens = windows[:1, :1]  # one token: its own size is all there is
    sizes: dict[nn.Module, torch.Tensor] = {}

    def watch(norm, inputs, _):
        sizes[norm] = (inputs[0].var(-1, correction=0) + norm.eps).sqrt().mean()

    hooks = [m.register_forward_hook(watch) for m in model.modules() if isinstance(m, nn.LayerNorm)]
    with torch.no_grad():
        whole = model(tokens)
    for hook in hooks:
        hook.remove()
    close(logits_of(model, tokens, cut, sizes), whole)
    doubled = {norm: 2 * size for norm, size in sizes.items()}
    assert (logits_of(model, tokens, cut, doubled) - whole).abs().max() > 0.1


def test_the_usual_sizes_are_those_of_the_whole_model() -> None:
    model, _, windows = stored()
    sizes = usual_sizes()
    assert len(sizes) == 5 and set(sizes) == {
        module for module in model.modules() if isinstance(module, nn.LayerNorm)
    }
    with torch.no_grad():
        x = model.embed(windows[:, :-1])
    expected = x.var(-1, correction=0).mean().sqrt()
    assert sizes[model.blocks[0].mixer_norm] == pytest.approx(float(expected))


@pytest.mark.parametrize("cut", CUTS)
def test_piece_by_piece_is_one_full_pass(cut) -> None:
    model, _, windows = stored()
    tokens, past = windows[0, :12], {}
    rows = [next_logits(model, int(t), cut, usual_sizes(), past) for t in tokens]
    close(torch.stack(rows), logits_of(model, tokens[None], cut, usual_sizes())[0], tolerance=1e-9)


def test_the_whole_model_is_as_good_as_the_training_loop_says() -> None:
    model, tokenizer, _ = load("shakespeare")
    tokens = torch.tensor(tokenizer.encode(held_out_text()).ids[:513])
    assert perplexity_of(WHOLE) == pytest.approx(perplexity(model, tokens, window=128), rel=1e-4)
    assert perplexity_of(WHOLE) == compute()["whole"] == compute()["perplexity"]


def test_a_sample_is_drawn_from_what_is_left() -> None:
    """The same random numbers, walked along the probabilities of the model itself."""
    tokenizer = stored().tokenizer
    cut = CUTS[2]
    draws = torch.rand(6, generator=torch.Generator().manual_seed(4)).tolist()
    tokens = tokenizer.encode("\n").ids
    for u in draws:
        sums = by_the_model_itself(cut, torch.tensor([tokens]))[0, -1].softmax(-1).cumsum(0)
        tokens.append(int((sums[:-1] < u).sum()))
    with mock.patch("course.widgets.block.WRITTEN", 6):
        from course.widgets.block import text_of

        text = text_of.__wrapped__(cut, 4)
    assert text == tokenizer.decode(tokens[1:])


def test_every_state_is_computed_once() -> None:
    explorer = BlockExplorer(heads_2=HEADS[2])
    before = perplexity_of.cache_info().misses
    explorer.set_values(heads_2=ALL)
    explorer.set_values(heads_2=HEADS[2])
    explorer.set_values(sample=2)
    assert perplexity_of.cache_info().misses <= before + 1


def test_the_sentence_carries_the_numbers() -> None:
    explorer = BlockExplorer()
    whole = explorer.arrays["whole"]
    begins = " ".join(explorer.arrays["text"].split())[:60].strip()
    assert explorer.status == (
        f"Nothing is left out: perplexity ≈ {whole:.1f}. Text 1 begins “{begins}…”."
    )
    explorer.set_values(heads_1=HEADS[3], thinks_2=False)
    worse = explorer.arrays["perplexity"]
    assert worse > 1.5 * whole
    assert explorer.status.startswith(
        f"Left out: head 3 of block 1, feed-forward of block 2: perplexity ≈ {worse:.1f}, "
        f"≈ {worse / whole:.2f} times the ≈ {whole:.1f} of the whole model. Text 1 begins “"
    )
    explorer.set_values(norms=OUT)
    assert "the norms: perplexity ≈ " in explorer.status


def test_what_is_drawn_is_what_is_left() -> None:
    explorer = BlockExplorer()
    values = {"heads_1": HEADS[2], "heads_2": OUT, "thinks_1": False, "norms": COMMON}
    explorer.set_values(**values)
    stream, writing, bar = explorer.figure.axes
    grey = [text.get_text() for text in stream.texts if text.get_color() == "#6b7280"]
    assert sorted(grey) == sorted(
        ["block 1", "block 2", "head 2", *(f"head {n}" for n in (1, 2, 3, 4)), "feed-forward"]
    )
    assert [text.get_text() for text in stream.texts].count("one size") == 5
    assert explorer.arrays["text"].split()[0] in writing.texts[0].get_text()
    (drawn,) = bar.patches
    assert drawn.get_x() + drawn.get_width() == pytest.approx(explorer.arrays["perplexity"])
    assert np.array_equal(explorer.arrays["heads"], [[True, False, True, True], [False] * 4])


def test_long_texts_and_large_numbers_stay_inside() -> None:
    explorer = BlockExplorer()
    for values in ({"norms": OUT}, {"heads_1": OUT, "heads_2": OUT}, {"sample": 5}):
        explorer.reset()
        explorer.set_values(**values)
        explorer.figure.draw_without_rendering()
        whole = explorer.figure.bbox
        for axes in explorer.figure.axes:
            ticks = [*axes.get_xticklabels(), axes.xaxis.label] if axes.axison else []
            for text in (*axes.texts, *ticks):
                if text.get_text() and text.get_visible():
                    assert text.get_fontsize() >= 8
                    box = text.get_window_extent()
                    assert whole.x0 <= box.x0 and box.x1 <= whole.x1, text.get_text()
                    assert whole.y0 <= box.y0 and box.y1 <= whole.y1, text.get_text()
    assert math.isfinite(explorer.arrays["perplexity"])
