"""Probes: every intervention against a pass written out by hand, and a model left as it was."""

from __future__ import annotations

import copy
import io
import itertools
import math
import pickle
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from torch import nn

from course import probes
from course.experiments.winograd import order_gap
from course.tasks.winograd import Winograd
from course.transformer import Transformer, TransformerConfig
from tests.drawing import close

B, T, E, H, D, Dv, HIDDEN, L, V = 2, 7, 12, 3, 5, 6, 10, 3, 11
TOKENS = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(1))
OTHERS = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(2))
MANY = torch.randint(V, (9, T), generator=torch.Generator().manual_seed(3))
MIXERS = {
    "softmax": {},
    "window": {"window": 3},
    "linear": {"key_width": 4},
    "gated": {"key_width": 4},
    "delta": {"key_width": 4},
    "hybrid": {"window": 3, "key_width": 2},
    "mean": {},
    "conv": {"width": 2},
    "none": {},
}
WITH_HEADS = [name for name in MIXERS if name not in ("mean", "conv", "none")]
WEIGHING = [*WITH_HEADS, "mean"]


@pytest.fixture(scope="module")
def m():
    """What is tested; ``tests/mutants/probes.py`` puts wrong ones in its place."""
    return probes


def make(mixer: str = "softmax", **changes) -> Transformer:
    sizes = dict(vocab_size=V, E=E, L=L, H=H, D=D, Dv=Dv, hidden=HIDDEN, max_length=T)
    options = {"mixer": mixer, "mixer_options": MIXERS[mixer], "positions": "learned"}
    model = Transformer(TransformerConfig(**(sizes | options | changes)), seed=4).double()
    with torch.no_grad():  # scores with spread
        for name, p in model.named_parameters():
            if name.endswith(("W_q.weight", "W_k.weight")):
                p *= 4
    return model


def by_hand(model, tokens, *, stream=None, heads=None, weights=None):
    """A pre-norm softmax model, position by position and head by head: logits, streams, maps.

    ``stream(after, x)``, ``heads(block, o)`` with ``o [B,H,T,Dv]`` and ``weights(block, w)`` return
    what takes the place of what they are given.
    """
    change = {
        "stream": stream or (lambda _, x: x),
        "heads": heads or (lambda _, o: o),
        "weights": weights or (lambda _, w: w),
    }

    def norm(layer, x):
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + layer.eps).sqrt()
        return centred / scale * layer.weight + layer.bias

    def affine(layer, x):
        return torch.einsum("...i,oi->...o", x, layer.weight) + layer.bias

    x = model.tokens.weight[tokens] + model.positions.weight[: tokens.shape[1]]
    x = change["stream"](0, x)
    streams, maps = [x], []
    for number, block in enumerate(model.blocks):
        layer, n = block.mixer.attention, norm(block.mixer_norm, x)
        q, k, v = (affine(w, n) for w in (layer.W_q, layer.W_k, layer.W_v))
        w = torch.zeros(len(tokens), H, tokens.shape[1], tokens.shape[1], dtype=x.dtype)
        for h in range(H):
            for t in range(tokens.shape[1]):
                here = slice(h * D, (h + 1) * D)
                scores = (q[:, None, t, here] * k[:, : t + 1, here]).sum(-1) / math.sqrt(D)
                e = (scores - scores.max()).exp()
                w[:, h, t, : t + 1] = e / e.sum(-1, keepdim=True)
        w = change["weights"](number, w)
        values = v.unflatten(-1, (H, Dv)).transpose(1, 2)
        o = change["heads"](number, (w[..., None] * values[:, :, None]).sum(3))
        x = x + affine(layer.W_o, o.transpose(1, 2).flatten(2))
        inner = affine(block.feed_forward.W_1, norm(block.feed_forward_norm, x))
        inner = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
        x = change["stream"](number + 1, x + affine(block.feed_forward.W_2, inner))
        streams.append(x)
        maps.append(w)
    return affine(model.output, norm(model.last_norm, x)), streams, maps


def both_paths(m, model, tokens):
    """Logits by the fast and by the readable path; they must agree also inside an intervention."""
    run = m.run(model, tokens)
    with torch.no_grad():
        logits = model(tokens)
        weighted, maps = model.forward_with_maps(tokens)
    close(run.logits, logits)
    close(weighted, logits)
    for one, two in zip(run.maps, maps, strict=True):
        close(one, two)
    return run


# ----------------------------------------------------------------------------------------- looking


def test_a_run_is_the_pass_written_out(m):
    model = make()
    run = both_paths(m, model, TOKENS)
    logits, streams, maps = by_hand(model, TOKENS)
    close(run.logits, logits)
    assert len(run.streams) == L + 1 and len(run.maps) == L
    for got, expected in zip((*run.streams, *run.maps), (*streams, *maps), strict=True):
        close(got, expected)
        assert not got.requires_grad


def test_a_run_is_without_dropout_and_leaves_the_mode(m):
    model = make(dropout=0.5).train()
    model.blocks[1].eval()
    run = m.run(model, TOKENS)
    assert model.training and not model.blocks[1].training
    close(run.logits, by_hand(model, TOKENS)[0])


def test_the_lens_reads_every_stream_as_the_last(m):
    model = make()
    run = m.run(model, TOKENS)
    lens = m.logit_lens(model, run.streams)
    assert lens.shape == (L + 1, B, T, V)
    close(lens[-1], run.logits)
    for depth in range(L):  # as many blocks as there are before: the rest taken away
        shorter = make(L=depth)
        shorter.load_state_dict(model.state_dict(), strict=False)
        close(lens[depth], shorter(TOKENS))


# -------------------------------------------------------------------------------------- the stream


@pytest.mark.parametrize("after", range(L + 1))
@pytest.mark.parametrize("position", [0, T - 1, [1, 4], None, np.int64(2)])
def test_a_patch_is_the_pass_with_that_piece_exchanged(m, after, position):
    model = make()
    source = by_hand(model, OTHERS)[1][after]
    where = slice(None) if position is None else position

    def exchange(place, x):
        if place != after:
            return x
        x = x.clone()
        x[:, where] = source[:, where]
        return x

    expected, streams, maps = by_hand(model, TOKENS, stream=exchange)
    with m.patch(model, source, after=after, position=position):
        run = both_paths(m, model, TOKENS)
    close(run.logits, expected)
    for got, wanted in zip((*run.streams, *run.maps), (*streams, *maps), strict=True):
        close(got, wanted)


@pytest.mark.parametrize("position", [torch.tensor([1, 4]), np.array([1, 4]), torch.tensor(4)])
def test_positions_may_stand_in_a_tensor(m, position):
    model = make()
    plain = position.tolist()
    stream = m.run(model, OTHERS).streams[1]
    for enter in (
        lambda where: m.patch(model, stream, after=1, position=where),
        lambda where: m.ablate_position(model, where, after=1),
        lambda where: m.ablate_head(model, 1, 0, position=where),
        lambda where: m.ablate_look(model, 1, where, where),
    ):
        with enter(plain):
            expected = m.run(model, TOKENS).logits
        with enter(position):
            assert torch.equal(m.run(model, TOKENS).logits, expected)


def test_a_stream_of_another_precision_becomes_the_models(m):
    wide, model = make(), make().float()
    stream = m.run(wide, OTHERS).streams[1]
    with m.patch(model, stream.float(), after=1, position=2):
        expected = m.run(model, TOKENS).logits
    with m.patch(model, stream, after=1, position=2):
        got = m.run(model, TOKENS).logits
    assert got.dtype == torch.float32 and torch.equal(got, expected)


def test_a_whole_stream_makes_the_other_run(m):
    model = make()
    other = m.run(model, OTHERS)
    for after in range(L + 1):
        with m.patch(model, other.streams[after], after=after):
            close(m.run(model, TOKENS).logits, other.logits)
        with m.patch(model, m.run(model, TOKENS).streams[after], after=after, position=3):
            close(m.run(model, TOKENS).logits, by_hand(model, TOKENS)[0])


def test_one_row_serves_the_whole_batch(m):
    model = make()
    stream = m.run(model, OTHERS).streams[1]
    with m.patch(model, stream[1:], after=1, position=2):
        got = m.run(model, TOKENS).logits
    with m.patch(model, stream[1:].expand(B, -1, -1), after=1, position=2):
        close(got, m.run(model, TOKENS).logits)


def test_patch_each_is_a_patch_at_each(m):
    model = make()
    stream = m.run(model, OTHERS).streams[2]
    found = m.patch_each(model, TOKENS, stream, lambda logits: logits[:, -1, :4], after=2)
    assert found.shape == (T, B, 4)
    for t in range(T):
        with m.patch(model, stream, after=2, position=t):
            close(found[t], m.run(model, TOKENS).logits[:, -1, :4])
    assert found[:, 0].unique(dim=0).shape[0] == T  # what is read last hangs on every position


@pytest.mark.parametrize("after", range(L + 1))
@pytest.mark.parametrize("mean_over", [None, MANY])
def test_a_position_without_its_stream(m, after, mean_over):
    model = make()
    mean = 0 if mean_over is None else by_hand(model, mean_over)[1][after].mean(0)[[1, 5]]

    def clear(place, x):
        if place != after:
            return x
        x = x.clone()
        x[:, [1, 5]] = mean
        return x

    with m.ablate_position(model, [1, 5], after=after, mean_over=mean_over):
        close(both_paths(m, model, TOKENS).logits, by_hand(model, TOKENS, stream=clear)[0])


# --------------------------------------------------------------------------------- heads and looks


@pytest.mark.parametrize("position", [None, 4, [2, 6]])
@pytest.mark.parametrize("mean_over", [None, MANY])
@pytest.mark.parametrize("block", range(L))
def test_a_head_without_its_output(m, block, mean_over, position):
    model, outputs = make(), []

    def keep(number, o):
        outputs.append(o)
        return o

    by_hand(model, MANY, heads=keep)
    where = slice(None) if position is None else position

    def silence(number, o):
        if number != block:
            return o
        o = o.clone()
        o[:, 1, where] = 0 if mean_over is None else outputs[block].mean(0)[1, where]
        return o

    with m.ablate_head(model, block, 1, position=position, mean_over=mean_over):
        close(both_paths(m, model, TOKENS).logits, by_hand(model, TOKENS, heads=silence)[0])


@pytest.mark.parametrize("name", WITH_HEADS)
def test_a_head_of_any_mixer_is_a_part_of_the_output_matrix(m, name):
    model = make(name)
    blind = copy.deepcopy(model)
    layers = [p for p in blind.blocks[1].mixer.modules() if hasattr(p, "W_o")]
    assert len(layers) == (2 if name == "hybrid" else 1)
    with torch.no_grad():
        for layer in layers:
            layer.W_o.weight[:, 2 * Dv : 3 * Dv] = 0
    with m.ablate_head(model, 1, 2):
        close(both_paths(m, model, TOKENS).logits, blind(TOKENS))


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("head", [None, 2])
@pytest.mark.parametrize(("query", "key"), [(5, 2), (6, [0, 3]), ([4, 6], 4), (0, 0), (3, None)])
def test_a_look_taken_away(m, query, key, head, renormalize):
    model = make()
    queries = [query] if isinstance(query, int) else query
    keys = range(T) if key is None else [key] if isinstance(key, int) else key
    heads = range(H) if head is None else [head]

    def without(number, w):
        if number != 1:
            return w
        w = w.clone()
        for h in heads:
            for t in queries:
                for i in keys:
                    w[:, h, t, i] = 0
                total = w[:, h, t].sum(-1, keepdim=True)
                if renormalize and total.any():
                    w[:, h, t] = w[:, h, t] / total
        return w

    expected, _, maps = by_hand(model, TOKENS, weights=without)
    with m.ablate_look(model, 1, query, key, head=head, renormalize=renormalize):
        run = both_paths(m, model, TOKENS)
    close(run.logits, expected)
    close(run.maps[1], maps[1])


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("name", WEIGHING)
def test_a_look_of_any_mixer_is_one_of_its_weights(m, name, renormalize):
    """The last block alone, so that only the query's own output can differ."""
    model = make(name, hidden=0, L=1)
    before, t, i = m.run(model, TOKENS), 6, 5
    with m.ablate_look(model, 0, t, i, renormalize=renormalize):
        run = both_paths(m, model, TOKENS)
    close(run.logits[:, :t], before.logits[:, :t])
    block, x = model.blocks[0], before.streams[0]
    normed = block.mixer_norm(x)
    mixers = [block.mixer.near, block.mixer.far] if name == "hybrid" else [block.mixer]
    written = 0
    for mixer in mixers:
        weights = mixer.with_weights(normed)[1][:, :, t].clone()
        total = weights.sum(-1, keepdim=True)
        weights[..., i] = 0
        if renormalize:
            weights = weights * total / weights.sum(-1, keepdim=True)
        if name == "mean":
            written = written + (weights[:, 0, :, None] * normed).sum(1)
            continue
        values = mixer.attention.heads(normed)[2]
        o = (weights[..., None] * values).sum(2).flatten(1)
        written = written + o @ mixer.attention.W_o.weight.T + mixer.attention.W_o.bias
    close(run.streams[1][:, t], x[:, t] + written)


# --------------------------------------------------------------------- alone, together, and after


def interventions(m, model):
    """One of each kind that the mixer allows; means first, which are taken of other texts."""
    stream, name = m.run(model, OTHERS).streams[1], model.config.mixer
    found = [lambda: m.ablate_position(model, 3, after=2, mean_over=MANY)]
    if name in WITH_HEADS:
        found.append(lambda: m.ablate_head(model, 2, 1, mean_over=MANY))
        found.append(lambda: m.ablate_head(model, 1, 0))
    if name in WEIGHING:
        found.append(lambda: m.ablate_look(model, 1, 6, 5))
    found.append(lambda: m.ablate_position(model, 3, after=0))
    return [*found, lambda: m.patch(model, stream, after=1, position=2)]


def attributes(model: nn.Module) -> list[set[str]]:
    return [set(vars(part)) for part in model.modules()]


@pytest.mark.parametrize("name", MIXERS)
def test_the_model_is_as_it_was(m, name):
    model = make(name).float()
    before, had = model(TOKENS), attributes(model)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    for make_one in interventions(m, model):
        with make_one():
            inside = both_paths_float(m, model)
        assert not torch.equal(inside, before)
        assert torch.equal(model(TOKENS), before) and attributes(model) == had
        with pytest.raises(KeyError), make_one():
            raise KeyError
        assert torch.equal(model(TOKENS), before) and attributes(model) == had
    with ExitStack() as stack:
        for make_one in interventions(m, model):
            stack.enter_context(make_one())
        model(TOKENS)
    assert torch.equal(model(TOKENS), before) and attributes(model) == had
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert torch.equal(model.decode(TOKENS)[0], model.decode(TOKENS)[0])


def both_paths_float(m, model):
    run = m.run(model, TOKENS)
    with torch.no_grad():
        logits = model(TOKENS)
    close(run.logits, logits, tolerance=1e-5)
    return logits


def test_several_at_once_are_all_seen(m):
    model = make()
    source = by_hand(model, OTHERS)[1]

    def stream(after, x):
        x = x.clone()
        if after == 1:
            x[:, 2] = source[1][:, 2]
            x[:, 4] = 0
        return x

    def heads(number, o):
        o = o.clone()
        if number == 2:
            o[:, 0] = o[:, 2] = 0
        return o

    def weights(number, w):
        w = w.clone()
        if number == 2:
            w[:, :, 6, 1] = w[:, 1, 6, 3] = 0
        return w

    expected = by_hand(model, TOKENS, stream=stream, heads=heads, weights=weights)[0]
    with (
        m.patch(model, source[1], after=1, position=2),
        m.ablate_position(model, 4, after=1),
        m.ablate_head(model, 2, 0),
        m.ablate_head(model, 2, 2),
        m.ablate_look(model, 2, 6, 1, renormalize=False),
        m.ablate_look(model, 2, 6, 3, head=1, renormalize=False),
    ):
        close(both_paths(m, model, TOKENS).logits, expected)


def test_an_inner_context_leaves_the_outer_one(m):
    model = make()
    stream = m.run(model, OTHERS).streams[1]
    for outer, inner in (
        (m.patch(model, stream, after=1, position=2), m.ablate_position(model, 3, after=1)),
        (m.ablate_head(model, 1, 0), m.ablate_head(model, 1, 1)),
        (m.ablate_look(model, 1, 6, 5), m.ablate_look(model, 1, 6, 4)),
    ):
        with outer:
            alone = m.run(model, TOKENS).logits
            with inner:
                assert not torch.equal(m.run(model, TOKENS).logits, alone)
            assert torch.equal(m.run(model, TOKENS).logits, alone)
            close(model(TOKENS), alone)


def test_contexts_may_end_in_any_order(m):
    model = make()
    before, had = model(TOKENS), attributes(model)
    kinds = interventions(m, model)[2:]  # a mean would be taken with the first still there
    kinds.append(lambda: m.ablate_head(model, 1, 2))
    for first, second in itertools.permutations(kinds, 2):
        one, two = first(), second()
        one.__enter__()
        two.__enter__()
        one.__exit__(None, None, None)
        left = m.run(model, TOKENS).logits
        assert "decode" in vars(model)  # still refused
        two.__exit__(None, None, None)
        assert torch.equal(model(TOKENS), before) and attributes(model) == had
        with second():
            assert torch.equal(m.run(model, TOKENS).logits, left)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, pickle.dumps, lambda x: torch.save(x, io.BytesIO())]
)
def test_no_copy_is_made_inside(m, copied):
    model = make()
    for make_one in interventions(m, model):
        with make_one(), pytest.raises(RuntimeError, match="copy: expected a model outside of int"):
            copied(model)
    with m.ablate_head(model, 1, 0), pytest.raises(RuntimeError, match="copy: expected"):
        copied(model.blocks[1].mixer.attention)  # the part that is changed
    copied(model)
    assert torch.equal(copy.deepcopy(model)(TOKENS), model(TOKENS))


def test_the_order_gap_is_not_taken_inside(m):
    task = Winograd()
    model = make(vocab_size=len(task), max_length=18)
    sentences = task.sentences(task.pairs[:2])
    gap = order_gap(model, task, sentences)
    with (
        m.ablate_position(model, 3, after=1),
        pytest.raises(RuntimeError, match="copy: expected a model outside"),
    ):
        order_gap(model, task, sentences)
    assert order_gap(model, task, sentences) == gap > 0


def test_what_is_given_is_not_changed(m):
    model, tokens, stream = make(), TOKENS.clone(), m.run(make(), OTHERS).streams[1]
    kept = stream.clone()
    with m.patch(model, stream, after=1, position=2), m.ablate_position(model, 2, after=1):
        model(tokens)
    assert torch.equal(stream, kept) and torch.equal(tokens, TOKENS)


def test_gradients_pass_through(m):
    model = make()
    stream = m.run(model, OTHERS).streams[1].requires_grad_()
    with m.patch(model, stream, after=1, position=[2, 3]):
        model(TOKENS)[:, -1].square().sum().backward()
    assert stream.grad[:, [2, 3]].abs().min() > 0
    assert stream.grad[:, [0, 1, 4, 5, 6]].abs().max() == 0


# ------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("mixer", "enter", "words"),
    [
        (
            "softmax",
            lambda m, x: m.ablate_head(x, 3, 0),
            "block: expected a number in 0 … 2, got 3",
        ),
        ("softmax", lambda m, x: m.ablate_head(x, 0, 3), "head: expected a number in 0 … 2, got 3"),
        ("softmax", lambda m, x: m.ablate_head(x, 0, True), "head: expected a number"),
        ("softmax", lambda m, x: m.ablate_look(x, -1, 0, 0), "block: expected a number in 0 … 2"),
        ("softmax", lambda m, x: m.ablate_position(x, 0, after=4), "after: .* 0 … 3, got 4"),
        (
            "softmax",
            lambda m, x: m.ablate_position(x, 0, after=4, mean_over=MANY),
            "after: .* 0 … 3, got 4",
        ),
        ("mean", lambda m, x: m.ablate_head(x, 0, 0), "block: .*with heads, got MeanMixer"),
        ("conv", lambda m, x: m.ablate_look(x, 0, 1, 0), "block: .*times values, got ConvMixer"),
        ("none", lambda m, x: m.ablate_look(x, 0, 1, 0), "block: .*times values, got NoMixer"),
    ],
)
def test_what_is_not_there_is_named_at_once(m, mixer, enter, words):
    model = make(mixer)
    had = attributes(model)
    with pytest.raises(ValueError, match=words), enter(m, model):
        pass
    assert attributes(model) == had


@pytest.mark.parametrize(
    ("enter", "words"),
    [
        (lambda m, x: m.ablate_position(x, 7, after=1), "position: .* 0 … 6, got 7"),
        (lambda m, x: m.ablate_head(x, 0, 0, position=[1, 7]), "position: .* 0 … 6, got 7"),
        (lambda m, x: m.ablate_look(x, 0, 7, 0), "query: .* 0 … 6, got 7"),
        (lambda m, x: m.ablate_look(x, 0, 0, -1), "key: .* 0 … 6, got -1"),
        (lambda m, x: m.ablate_look(x, 0, 0, 0, head=3), "head: .* 0 … 2, got 3"),
        (
            lambda m, x: m.ablate_head(x, 0, 0, mean_over=MANY[:, :5]),
            "mean_over: expected texts of the same length, T = 7, got T = 5",
        ),
        (
            lambda m, x: m.ablate_position(x, 0, after=1, mean_over=MANY[:, :5]),
            "stream: expected a run of the same length, T = 7, got one of T = 5",
        ),
        (
            lambda m, x: m.patch(x, m.run(x, TOKENS[:, :5]).streams[1], after=1),
            "stream: expected a run of the same length, T = 7, got one of T = 5",
        ),
        (
            lambda m, x: m.patch(x, m.run(x, MANY).streams[1], after=1),
            "tokens and stream: expected equal sizes on axis B, got tokens has 2, stream has 9",
        ),
        (
            lambda m, x: m.patch(x, torch.zeros(1, T, E, device="meta"), after=1),
            "stream: expected numbers, got a meta tensor, which has none",
        ),
        (
            lambda m, x: m.patch(x, torch.zeros(1, T, E + 1), after=1),
            "the model and stream: expected equal sizes on axis E",
        ),
    ],
)
def test_what_does_not_fit_is_named_in_the_pass(m, enter, words):
    model = make()
    before, had = model(TOKENS), attributes(model)
    for act in (lambda: model(TOKENS), lambda: m.run(model, TOKENS)):
        with enter(m, model), pytest.raises(ValueError, match=words):
            act()
    assert attributes(model) == had and torch.equal(model(TOKENS), before)


@pytest.mark.parametrize(
    ("stream", "position", "words"),
    [
        (torch.zeros(T, E), 0, "stream: expected 3 axes"),
        (torch.zeros(1, T, E).long(), 0, "stream: expected floating-point numbers, got torch.int"),
        (torch.zeros(1, T, E) + 1j, 0, "stream: expected floating-point numbers, got torch.comp"),
        ("run", 0, "stream: expected a tensor"),
        (torch.zeros(1, T, E), T, "position: expected a number in 0 … 6, got 7"),
        (torch.zeros(1, T, E), "last", "position: expected a number in 0 … 6, got 'last'"),
        (torch.zeros(1, T, E), 1.0, "position: expected a number in 0 … 6, got 1.0"),
        (torch.zeros(1, T, E), torch.tensor(1.0), "position: expected a number in 0 … 6, got 1.0"),
        (torch.zeros(1, T, E), torch.tensor([1, 7]), "position: .* in 0 … 6, got 7"),
        (torch.zeros(1, T, E), torch.tensor([[1, 2]]), r"position: .* 0 … 6, got \[1, 2\]"),
        (torch.zeros(1, T, E), torch.ones(T) > 0, "position: .* 0 … 6, got True"),
    ],
)
def test_a_stream_that_is_none_is_named(m, stream, position, words):
    with (
        pytest.raises(ValueError, match=words),
        m.patch(make(), stream, after=1, position=position),
    ):
        pass


@pytest.mark.parametrize(
    ("enter", "words"),
    [
        (lambda m, x, texts: m.ablate_head(x, 0, 0, mean_over=texts), "head"),
        (lambda m, x, texts: m.ablate_position(x, 0, after=1, mean_over=texts), "position"),
    ],
)
def test_a_mean_needs_texts(m, enter, words):
    for texts, says in (
        (MANY[:0], "mean_over: N: expected a whole number of at least 1, got 0"),
        (MANY[0], "mean_over: expected 2 axes"),
        ("texts", "mean_over: expected a tensor"),
    ):
        with pytest.raises(ValueError, match=says), enter(m, make(), texts):
            pass


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda m, x: m.logit_lens(x, []), "streams: expected at least one, got none"),
        (
            lambda m, x: m.logit_lens(x, [torch.zeros(B, T, E + 1)]),
            "the model and streams: expected equal sizes on axis E, got the model has 12, streams",
        ),
        (lambda m, x: m.logit_lens(x, torch.zeros(B, T, E)), "streams: expected 3 axes"),
        (
            lambda m, x: m.patch_each(x, TOKENS[:, :0], torch.zeros(1, T, E), torch.sum, after=1),
            "tokens: T: expected a whole number of at least 1, got 0",
        ),
        (
            lambda m, x: m.patch_each(x, TOKENS[0], torch.zeros(1, T, E), torch.sum, after=1),
            "tokens: expected 2 axes",
        ),
        (
            lambda m, x: m.patch_each(x, TOKENS, torch.zeros(1, T, E), lambda _: 0.5, after=1),
            "measure: expected a tensor, got float",
        ),
    ],
)
def test_what_cannot_be_read_or_measured_is_named(m, act, words):
    with pytest.raises(ValueError, match=words):
        act(m, make())


@pytest.mark.parametrize(
    "act",
    [
        lambda m, x: m.run(x, TOKENS),
        lambda m, x: m.logit_lens(x, [torch.zeros(B, T, E)]),
        lambda m, x: m.patch(x, torch.zeros(1, T, E), after=1).__enter__(),
        lambda m, x: m.ablate_position(x, 0, after=1).__enter__(),
        lambda m, x: m.ablate_position(x, 0, after=1, mean_over=MANY).__enter__(),
        lambda m, x: m.ablate_head(x, 0, 0).__enter__(),
        lambda m, x: m.ablate_look(x, 0, 0, 0).__enter__(),
    ],
)
def test_what_is_no_model_is_named(m, act):
    with pytest.raises(ValueError, match="model: expected a Transformer, got str"):
        act(m, "m")


def test_no_text_is_written_inside(m):
    model = make(max_length=T + 3)
    for make_one in interventions(m, model):
        with make_one(), pytest.raises(RuntimeError, match="decode: expected a full pass"):
            model.generate(TOKENS, 2)
        assert model.generate(TOKENS, 2).shape == (B, T + 2)


def test_a_mixer_without_weights_says_so(m):
    class Silent(nn.Module):
        def with_weights(self, x):
            raise NotImplementedError("Silent has no weights to show")

    model = make()
    model.blocks[1].mixer = Silent()
    with pytest.raises(NotImplementedError, match="Silent has no weights"):
        m.run(model, TOKENS)
