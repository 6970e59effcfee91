"""The model against PyTorch's own layers, against itself in portions, and against the future."""

from __future__ import annotations

import itertools
import json
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from course.attention import MultiHeadAttention
from course.config import GPT2_SMALL, NORMS, POSITIONS
from course.transformer import Block, Transformer, TransformerConfig

MIXERS = {"none": {}, "mean": {}, "softmax": {}, "window": {"window": 3}, "conv": {}}
SCORED = ("softmax", "window")
# Every mixer has its own tests in test_mixers.py; here each goes into every kind of block.
GRID = [
    *[("softmax", positions, norm) for positions, norm in itertools.product(POSITIONS, NORMS)],
    *[(m, "learned", norm) for m, norm in itertools.product(MIXERS, NORMS) if m != "softmax"],
]
everywhere = pytest.mark.parametrize(("mixer", "positions", "norm"), GRID)

V, B, T = 11, 2, 7


def small(mixer="softmax", positions="learned", norm="pre", **changes) -> TransformerConfig:
    defaults = dict(vocab_size=V, E=12, L=2, H=3, hidden=20, max_length=9)
    defaults["mixer_options"] = MIXERS.get(mixer, {}) if isinstance(mixer, str) else {}
    return TransformerConfig(mixer=mixer, positions=positions, norm=norm, **(defaults | changes))


def some_tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    shape = shape or (B, T)
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(seed))


def model(*args, double: bool = False, **changes) -> Transformer:
    """A model whose scores spread, so that attention is far from uniform."""
    built = Transformer(small(*args, **changes), seed=1)
    with torch.no_grad():
        for block in built.blocks:
            for layer in block.mixer.modules():
                if isinstance(layer, MultiHeadAttention):
                    layer.W_q.weight *= 3
                    layer.W_k.weight *= 3
    return (built.double() if double else built).eval()


# --- sizes ---------------------------------------------------------------------------------------


def test_gpt2_small_to_the_unit() -> None:
    with torch.device("meta"):
        gpt2 = Transformer(GPT2_SMALL)
    assert next(gpt2.parameters()).is_meta
    assert gpt2.parameter_counts() == {
        "token table": 38_597_376,
        "positions": 786_432,
        "blocks": 85_054_464,
        "last norm": 1_536,
        "output": 0,
        "total": 124_439_808,
    }
    assert sum(p.numel() for p in gpt2.blocks[0].parameters()) == 7_087_872
    key_biases = sum(block.mixer.attention.W_k.bias.numel() for block in gpt2.blocks)
    assert key_biases == 9_216


def test_the_rungs_of_the_ladder_differ_by_the_parameters_of_one_idea() -> None:
    E, V, T = 128, 1_024, 128

    def count(**changes) -> int:
        plain = dict(vocab_size=V, norm="none", hidden=0, residual=False, positions="learned")
        return Transformer(TransformerConfig(**(plain | changes))).parameter_counts()["total"]

    none = count(mixer="none", positions="none")
    assert none == V * E + (E * V + V)  # the token table and a linear output with bias
    assert count(mixer="mean", positions="none") == none
    assert count(mixer="mean") == count(mixer="mean", residual=True) == none + T * E
    one_head = count(H=1, mixer_options={"mix_heads": False})
    assert one_head == none + T * E + 3 * (E * E + E)
    four_heads = count(H=4, residual=True)
    assert four_heads - one_head == 16_512
    with_feed_forward = count(residual=True, hidden=512)
    assert with_feed_forward - four_heads == 8 * E * E + 5 * E
    with_norm = count(residual=True, hidden=512, norm="pre")
    assert with_norm - with_feed_forward == 768
    assert count(residual=True, hidden=512, norm="pre", L=2) - with_norm == 12 * E * E + 13 * E


# --- equality with PyTorch's layer ---------------------------------------------------------------


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", [F.gelu, F.relu])
def test_a_block_with_the_weights_of_pytorchs_layer_is_that_layer(norm_first, activation) -> None:
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(
        12,
        3,
        20,
        dropout=0.1,
        activation=activation,
        batch_first=True,
        norm_first=norm_first,
        layer_norm_eps=1e-3,
    )
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.5)
    theirs.eval()
    ours = Block.from_torch(theirs)
    x = torch.randn(B, T, 12)
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    expected = theirs(x, src_mask=hidden)
    assert (ours(x) - expected).abs().max() <= 1e-6 * max(1.0, expected.abs().max().item())
    assert not ours.training


def test_what_is_frozen_in_pytorchs_layer_stays_frozen_and_dropout_is_kept() -> None:
    theirs = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.25)
    for p in (theirs.linear1.weight, theirs.norm2.bias, theirs.self_attn.in_proj_weight):
        p.requires_grad_(False)
    ours = Block.from_torch(theirs)
    frozen = {name for name, p in ours.named_parameters() if not p.requires_grad}
    attention = {f"mixer.attention.W_{x}.weight" for x in "qkv"}
    assert frozen == {"feed_forward.W_1.weight", "feed_forward_norm.bias"} | attention
    assert ours.mixer.dropout == ours.dropout.p == 0.25
    theirs.dropout1.p = 0.5
    with pytest.raises(ValueError, match=r"source: .* got .* dropouts \[0.25, 0.5\]"):
        Block.from_torch(theirs)


def test_a_layer_that_is_another_function_is_refused() -> None:
    with pytest.raises(ValueError, match=r"source: expected nn.TransformerEncoderLayer, got Lin"):
        Block.from_torch(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"source: expected .* got activation"):
        Block.from_torch(nn.TransformerEncoderLayer(12, 3, 20, activation=F.silu))
    with pytest.raises(ValueError, match="source: expected"):
        Block.from_torch(nn.TransformerEncoderLayer(12, 3, 20, bias=False))


def test_only_a_pre_norm_model_ends_with_a_norm() -> None:
    for norm, count in (("pre", 24), ("post", 0), ("none", 0)):
        assert Transformer(small(norm=norm)).parameter_counts()["last norm"] == count


def test_the_model_is_embedding_blocks_norm_and_output() -> None:
    tokens, built = some_tokens(), model(double=True)
    x = built.tokens(tokens) + built.positions.weight[:T]
    for block in built.blocks:
        mixed = block.mixer.attention(block.mixer_norm(x), causal=True, impl="reference")
        x = x + mixed
        h = block.feed_forward_norm(x) @ block.feed_forward.W_1.weight.T
        h = F.gelu(h + block.feed_forward.W_1.bias)
        x = x + h @ block.feed_forward.W_2.weight.T + block.feed_forward.W_2.bias
    expected = built.last_norm(x) @ built.output.weight.T + built.output.bias
    assert (built(tokens) - expected).abs().max() < 1e-12


# --- what every mixer must keep ------------------------------------------------------------------


@everywhere
def test_the_future_never_changes_the_past(mixer, positions, norm) -> None:
    built = model(mixer, positions, norm)
    tokens = some_tokens()
    before = built(tokens)
    for t in (1, 3, T - 1):
        changed = tokens.clone()
        changed[:, t] = (changed[:, t] + 1) % V
        after = built(changed)
        assert torch.equal(after[:, :t], before[:, :t])
        assert not torch.equal(after[:, t], before[:, t])


@everywhere
def test_the_readable_path_gives_the_logits_of_the_fused_one(mixer, positions, norm) -> None:
    built = model(mixer, positions, norm, double=True)
    logits, maps = built.forward_with_maps(some_tokens())
    assert (logits - built(some_tokens())).abs().max() < 1e-12
    assert len(maps) == 2
    for weights in maps:
        heads = {"conv": 12}.get(mixer, 3 if mixer in SCORED else 1)
        assert weights.shape == (B, heads, T, T)
        if mixer != "conv":  # its weights are no averages
            assert (weights.sum(-1) - 1).abs().max() < 1e-12
        assert weights.triu(1).abs().max() == 0
        if mixer == "window":
            assert weights.tril(-3).abs().max() == 0 < weights.tril(-2).abs().max()


def test_the_maps_are_the_weights_that_mix_the_values() -> None:
    built = model("softmax", "rope", "none", residual=False, hidden=0, L=1, double=True)
    tokens = some_tokens()
    (weights,) = built.attention_maps(tokens)
    layer = built.blocks[0].mixer.attention
    _, _, v = layer.heads(built.embed(tokens))
    assert (built.read_out(layer.merge(weights @ v)) - built(tokens)).abs().max() < 1e-12
    assert not weights.requires_grad


@everywhere
@pytest.mark.parametrize("cuts", [(1,) * T, (2, 0, 5)])
def test_decoding_in_portions_is_the_full_pass(mixer, positions, norm, cuts) -> None:
    built = model(mixer, positions, norm, double=True)
    tokens, cache, rows = some_tokens(), None, []
    for portion in tokens.split(cuts, dim=1):
        logits, cache = built.decode(portion, cache)
        rows.append(logits)
    assert (torch.cat(rows, 1) - built(tokens)).abs().max() < 1e-12
    assert cache.seen == T


def test_a_cache_weighs_what_its_tensors_weigh() -> None:
    tokens = some_tokens()
    # Two blocks, keys and values of width 4 in 3 heads, 4 bytes.
    assert model().decode(tokens)[1].nbytes() == 2 * 2 * B * 3 * T * 4 * 4
    # A window of 3 keeps two old tokens; the mean keeps one vector of width 12.
    assert model("window").decode(tokens)[1].nbytes() == 2 * 2 * B * 3 * 2 * 4 * 4
    assert model("mean").decode(tokens)[1].nbytes() == 2 * B * 12 * 4
    assert model("none").decode(tokens)[1].nbytes() == 0


def test_without_residual_the_block_replaces_the_stream() -> None:
    x = torch.randn(B, T, 12)
    kept, replaced = (Block(small(norm="none", hidden=0, residual=r)) for r in (True, False))
    replaced.load_state_dict(kept.state_dict())
    assert (kept(x) - replaced(x) - x).abs().max() < 1e-6
    assert torch.equal(Block(small("none", hidden=0, residual=False))(x), x)


def test_scale_reaches_every_path() -> None:
    plain, raw = model(double=True), model(scale=1.0, double=True)
    tokens = some_tokens()
    assert (raw(tokens) - plain(tokens)).abs().max() > 1e-3
    assert (raw(tokens) - raw.forward_with_maps(tokens)[0]).abs().max() < 1e-12
    assert (raw(tokens) - raw.decode(tokens)[0]).abs().max() < 1e-12
    with torch.no_grad():  # √D = 2 on the queries undoes the missing division by 2
        for block in plain.blocks:
            block.mixer.attention.W_q.weight *= 2
            block.mixer.attention.W_q.bias *= 2
    assert (raw(tokens) - plain(tokens)).abs().max() < 1e-12


def test_widths_of_keys_and_values_are_free() -> None:
    built = model(D=5, Dv=2)
    assert built(some_tokens()).shape == (B, T, V)
    assert built.blocks[0].mixer.attention.W_o.weight.shape == (12, 6)


def test_blocks_may_have_different_mixers() -> None:
    config = small(("mean", "window"), positions="rope", mixer_options=({}, {"window": 2}))
    maps = Transformer(config).attention_maps(some_tokens())
    assert [m.shape[1] for m in maps] == [1, 3]
    assert maps[1].tril(-2).abs().max() == 0


def test_order_is_invisible_to_one_block_without_positions() -> None:
    tokens = some_tokens(1, T)
    shuffled = torch.cat([tokens[:, :-1].flip(1), tokens[:, -1:]], 1)

    def moved(positions: str) -> float:
        built = model("softmax", positions, L=1, double=True)
        return (built(tokens)[:, -1] - built(shuffled)[:, -1]).abs().max().item()

    assert moved("none") < 1e-12
    assert all(moved(p) > 1e-3 for p in ("learned", "sinusoidal", "rope", "alibi"))


# --- randomness, modes ---------------------------------------------------------------------------


def test_the_seed_fixes_the_weights_and_nothing_else_moves() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second, other = (Transformer(small(), seed=s) for s in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    tokens = some_tokens()
    assert torch.equal(first(tokens), second(tokens))
    assert not torch.equal(first(tokens), other(tokens))


@pytest.mark.parametrize(
    ("mixer", "tied", "expected"),
    [("softmax", False, 73.45016956070323), ("hybrid", True, 49.07878336159047)],
)
def test_the_weights_of_a_seed_are_those_of_the_recorded_runs(mixer, tied, expected) -> None:
    built = Transformer(small(mixer, mixer_options={}, tied=tied), seed=3)
    total = sum(p.double().sum().item() for p in built.parameters())
    assert total == pytest.approx(expected, abs=1e-5)


def test_building_a_model_on_the_cpu_leaves_accelerators_alone() -> None:
    with (
        mock.patch("torch.cuda.manual_seed_all") as gpus,
        mock.patch("torch.mps.manual_seed") as mac,
        mock.patch("torch.xpu.manual_seed_all") as intel,
    ):
        model()
    assert not gpus.called and not mac.called and not intel.called


# --- transformations -----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("positions", POSITIONS)
def test_gradients_of_each_sample_and_export(positions) -> None:
    built, tokens = model(positions=positions, double=True), some_tokens()
    parameters = {name: p.detach() for name, p in built.named_parameters()}

    def loss(parameters, row):
        logits = functional_call(built, parameters, (row[None, :-1],))[0]
        return F.cross_entropy(logits, row[1:])

    each = vmap(grad(loss), in_dims=(None, 0))(parameters, tokens)
    for b in range(B):
        alone = grad(loss)(parameters, tokens[b])
        assert max((each[name][b] - alone[name]).abs().max() for name in parameters) < 1e-12
    exported = torch.export.export(built, (tokens,)).module()
    assert (exported(tokens) - built(tokens)).abs().max() < 1e-12


def test_the_stream_starts_with_unit_entries_and_a_tied_one_with_small_ones() -> None:
    config = dict(vocab_size=500, E=64, hidden=0, positions="learned")
    untied = Transformer(TransformerConfig(**config))
    tied = Transformer(TransformerConfig(**config, tied=True))
    assert untied.tokens.weight.std().item() == pytest.approx(1, rel=0.02)
    assert tied.tokens.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert tied.positions.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert tied.output.weight is tied.tokens.weight and tied.output.bias is None


@pytest.mark.parametrize("mixer", SCORED)
def test_dropout_acts_in_training_only(mixer) -> None:
    built, tokens = model(mixer, dropout=0.5), some_tokens()
    assert torch.equal(built(tokens), built(tokens))
    built.train()
    torch.manual_seed(0)
    first = built(tokens)
    assert not torch.equal(first, built(tokens))
    torch.manual_seed(0)
    assert torch.equal(first, built(tokens))


@everywhere
def test_every_parameter_but_a_key_bias_gets_a_gradient(mixer, positions, norm) -> None:
    built = model(mixer, positions, norm, double=True)
    targets = some_tokens(seed=2)
    F.cross_entropy(built(some_tokens()).flatten(0, 1), targets.flatten()).backward()
    for name, p in built.named_parameters():
        if name.endswith("W_k.bias") and positions != "rope":
            assert p.grad.abs().max() < 1e-12  # the same number is added to a whole row of scores
        else:
            assert p.grad.abs().max() > 1e-9, name


# --- generation ----------------------------------------------------------------------------------


def test_greedy_generation_is_the_argmax_of_full_passes() -> None:
    built, tokens = model(positions="alibi"), some_tokens(B, 3)
    expected = tokens
    for _ in range(6):
        expected = torch.cat([expected, built(expected)[:, -1].argmax(-1, keepdim=True)], 1)
    assert torch.equal(built.generate(tokens, 6, temperature=0), expected)


def test_a_text_that_grows_too_long_is_refused_before_anything_is_sampled() -> None:
    built, passes = model(), []  # nine learned positions
    built.output.register_forward_hook(lambda *_: passes.append(1))
    assert built.generate(some_tokens(B, 4), 6).shape == (B, 10)  # the last is not read
    passes.clear()
    with pytest.raises(ValueError, match=r"expected at most max_length = 9 positions .* got 10"):
        built.generate(some_tokens(B, 4), 7)
    with pytest.raises(ValueError, match="tokens: expected numbers in 0 … 10, got 11"):
        built.generate(torch.full((1, 2), V), 1)
    assert not passes


def test_generation_is_free_of_dropout_and_keeps_the_mode() -> None:
    built, tokens = model(dropout=0.5).train(), some_tokens(B, 2)
    once = built.generate(tokens, 6, temperature=0)
    assert built.training
    assert torch.equal(once, built.eval().generate(tokens, 6, temperature=0))
    assert not built.training


def test_sampling_follows_the_generator_and_the_temperature() -> None:
    built, tokens = model(), some_tokens(B, 3)

    def sample(seed: int, temperature: float = 1.0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return built.generate(tokens, 5, temperature=temperature, generator=generator)

    assert torch.equal(sample(0), sample(0)) and not torch.equal(sample(0), sample(1))
    for cold in (1e-4, 1e-45):
        assert torch.equal(sample(0, cold), built.generate(tokens, 5, temperature=0))
    assert torch.equal(built.generate(tokens, 0), tokens)


# --- what a model carries, and how far it sees ----------------------------------------------------


def test_state_bytes_are_those_of_the_tensors_carried() -> None:
    sizes = dict(vocab_size=V, E=64, H=1, L=1, Dv=64, max_length=99)

    def carried(T: int, **changes) -> int:
        (n,) = Transformer(TransformerConfig(**(sizes | changes))).state_bytes(T)
        return n

    # Row 10.2 of notebook 10, in float32: 40·(16 + 64) numbers; 64·64 + 64 and a count in 8 bytes.
    assert carried(40, D=16) == 40 * (16 + 64) * 4 == 12_800
    assert carried(40, D=64, mixer="linear") == (64 * 64 + 64) * 4 + 8
    for T in (0, 3, 40):
        seen = min(T, 7)
        window = carried(T, D=16, mixer="window", mixer_options={"window": 8})
        assert window == seen * (16 + 64) * 4
        assert carried(T, mixer="conv", mixer_options={"width": 5}) == 4 * 64 * 4
        for mixer, numbers in (
            ("none", 0),
            ("gated", 9 * 64 + 9 + 2),
            ("delta", 9 * 64 + 2),
            ("linear", 9 * 64 + 9 + 2),
        ):
            options = {"key_width": 9} if numbers else {}
            assert carried(T, mixer=mixer, mixer_options=options) == 4 * numbers
    two = model(("mean", "hybrid"), mixer_options=({}, {"window": 3}), positions="none")
    assert len(two.state_bytes(6)) == 2
    assert sum(two.state_bytes(6)) == two.decode(some_tokens(1, 6))[1].nbytes()
    with pytest.raises(ValueError, match="at most max_length = 99"):
        carried(100, positions="learned")


def test_counting_bytes_moves_no_random_numbers_and_keeps_the_mode() -> None:
    built, stream = model("softmax", dropout=0.5).train(), torch.get_rng_state()
    built.state_bytes(5)
    assert torch.equal(torch.get_rng_state(), stream) and built.training


@pytest.mark.parametrize(
    ("mixers", "options", "reach"),
    [
        (("window", "window"), ({"window": 4}, {"window": 4}), 6),
        (("window", "window"), ({"window": 2}, {"window": 5}), 5),
        (("conv", "window"), ({"width": 3}, {"window": 4}), 5),
    ],
)
def test_beyond_its_reach_a_window_has_no_gradient_at_all(mixers, options, reach: int) -> None:
    built = model(mixers, mixer_options=options, max_length=12, double=True)
    x = built.embed(some_tokens(1, 12)).detach().requires_grad_()
    y = x
    for block in built.blocks:
        y = block(y)
    (slope,) = torch.autograd.grad(y[0, -1].square().sum(), x)
    sizes = slope[0].abs().sum(-1).flip(0)  # by distance from the last place
    assert (sizes[: reach + 1] > 0).all() and not sizes[reach + 1 :].any()


# --- the registry and the configuration ----------------------------------------------------------


def test_a_configuration_survives_json() -> None:
    config = small(("mean", "window"), mixer_options=({}, {"window": 2}), scale=1.0)
    again = TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config and isinstance(again.mixer, tuple)
    assert hash(again) == hash(config)


def test_numpy_numbers_are_numbers() -> None:
    config = small(
        "window",
        vocab_size=np.int64(V),
        E=np.int32(12),
        dropout=np.float32(0.5),
        scale=np.float64(2.0),
        residual=np.bool_(False),
        mixer_options=[{"window": np.int64(2)}, {"window": np.int64(3)}],
    )
    plain = json.loads(json.dumps(config.to_dict()))
    assert TransformerConfig.from_dict(plain) == config and plain["E"] == 12
    assert type(config.E) is int and type(config.mixer_options[1]["window"]) is int


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(vocab_size=0), "vocab_size: expected a whole number of at least 1, got 0"),
        (dict(E=1.5), "E: expected a whole number"),
        (dict(L=-1), "L: expected a whole number of at least 0"),
        (dict(H=5), "H: expected a divisor of E = 12, got 5"),
        (dict(D=0, Dv=1), "D: expected"),
        (dict(hidden=-4), "hidden: expected"),
        (dict(max_length=0), "max_length: expected"),
        (dict(positions="rotary"), "positions: expected one of none, learned"),
        (dict(norm="rms"), "norm: expected one of none, pre, post, got 'rms'"),
        (dict(activation="tanh"), "activation: expected one of gelu, relu"),
        (dict(residual=1), "residual: expected True or False, got 1"),
        (dict(tied="yes"), "tied: expected True or False"),
        (dict(dropout=1.0), r"dropout: expected a number in \[0, 1\), got 1.0"),
        (dict(scale="off"), "scale: expected a finite number, got 'off'"),
        (dict(scale=float("nan")), "scale: expected a finite number, got nan"),
        (dict(mixer=3), "mixer: expected a name or a list"),
        (dict(mixer=("mean",)), "mixer: expected L = 2 entries, got 1"),
        (dict(mixer_options=[{}, 2]), "mixer_options: expected a dict or a list"),
        (dict(mixer="convolution"), "mixer: expected one of conv, delta, gated"),
        (dict(mixer="mean", mixer_options={"window": 2}), "mixer_options: mixer 'mean' expected"),
        (dict(mixer="window", mixer_options={"window": 0}), "window: expected a whole number"),
        (dict(mixer="mean", positions="rope"), "positions: expected 'none', 'learned'"),
        (dict(mixer="none", positions="alibi"), "positions: expected 'none', 'learned'"),
        (dict(Dv=3, mixer_options={"mix_heads": False}), "equal sizes on axis E"),
        (dict(positions="rope", D=5), "D: expected an even width"),
    ],
)
def test_a_bad_configuration_names_the_field(changes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Transformer(small(**changes))(some_tokens())


def test_bad_calls_are_named() -> None:
    built = model()
    with pytest.raises(ValueError, match="TransformerConfig: expected one of vocab_size"):
        TransformerConfig.from_dict({"vocab_size": 3, "width": 4})
    with pytest.raises(ValueError, match="tokens: expected 2 axes"):
        built(some_tokens(T))
    with pytest.raises(ValueError, match=r"tokens: expected at most max_length = 9 .* got 10"):
        built(some_tokens(B, 10))
    for wrong in (V, -1):
        with pytest.raises(ValueError, match=f"tokens: expected numbers in 0 … 10, got {wrong}"):
            built(torch.full((B, T), wrong))
    with pytest.raises(ValueError, match="tokens: expected int64, got torch.float32"):
        built(torch.ones(B, T))
    with pytest.raises(ValueError, match="tokens: T: expected a whole number of at least 1"):
        built.generate(some_tokens(B, 0), 2)
    with pytest.raises(ValueError, match="temperature: expected 0 or more"):
        built.generate(some_tokens(), 1, temperature=-1)
    with pytest.raises(ValueError, match="temperature: expected a finite number, got nan"):
        built.generate(some_tokens(), 1, temperature=float("nan"))
    for steps in (-1, 1.5):
        with pytest.raises(ValueError, match="steps: expected a whole number of at least 0"):
            built.generate(some_tokens(), steps)
    _, cache = model(L=1).decode(some_tokens())
    with pytest.raises(ValueError, match="cache: expected a Cache of L = 2 states, got 1"):
        built.decode(some_tokens(), cache)
