"""Every registered mixer: three ways to run and one result, no future in it, and honest states."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from course.cache import KeyValueCache
from course.config import TransformerConfig
from course.mixers import MIXERS, Mixer, build_mixer, register_mixer
from course.state import LinearState
from course.transformer import Cache, Transformer
from tests.drawing import B, close, draw, held_bytes

E, H, T = 12, 3, 7
VARIANTS = [
    ("none", "none", {}),
    ("mean", "none", {}),
    *[("softmax", positions, {}) for positions in ("none", "rope", "alibi")],
    *[("window", positions, {"window": 3}) for positions in ("none", "rope", "alibi")],
    ("window", "none", {"window": 1}),
    ("linear", "none", {}),
    ("linear", "none", {"feature_map": "taylor", "key_width": 3}),
    ("linear", "none", {"feature_map": "identity", "normalize": False}),
    ("linear", "none", {"feature_map": "cosformer", "map_options": {"max_length": 400}}),
    ("linear", "none", {"feature_map": "favor", "map_options": {"features": 9}}),
    ("linear", "none", {"feature_map": "dpfp", "bias": False}),
    ("conv", "none", {}),
    ("conv", "none", {"width": 1}),
    ("conv", "none", {"width": 5}),
    ("gated", "none", {}),
    ("gated", "none", {"feature_map": "taylor", "key_width": 3, "bias": False}),
    ("gated", "none", {"feature_map": "identity", "normalize": False}),
    ("gated", "none", {"feature_map": "cosformer", "map_options": {"max_length": 400}}),
    ("delta", "none", {}),
    ("delta", "none", {"key_width": 3, "bias": False}),
    *[
        ("hybrid", positions, {"window": 3, "key_width": 2})
        for positions in ("none", "rope", "alibi")
    ],
    ("hybrid", "none", {"window": 3, "feature_map": "elu"}),
]
every = pytest.mark.parametrize(("name", "positions", "options"), VARIANTS)


def config(name: str, positions: str = "none", options: dict | None = None, **changes):
    sizes = dict(vocab_size=11, E=E, H=H, mixer=name, positions=positions)
    return TransformerConfig(**(sizes | changes), mixer_options=options or {})


def mixer(name: str, positions: str = "none", options: dict | None = None, **changes) -> Mixer:
    torch.manual_seed(1)
    built = build_mixer(config(name, positions, options, **changes), 0).double().eval()
    with torch.no_grad():  # scores with spread
        for parameter_name, p in built.named_parameters():
            if parameter_name.endswith(("W_q.weight", "W_k.weight")):
                p *= 3
    return built


def tensors(state: object) -> list[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return [state]
    if isinstance(state, tuple):
        return [x for item in state for x in tensors(item)]
    return [state.k, state.v] if isinstance(state, KeyValueCache) else []


def on_meta(state):
    if isinstance(state, torch.Tensor):
        return state.to("meta")
    if isinstance(state, KeyValueCache):
        return KeyValueCache(state.k.to("meta"), state.v.to("meta"))
    if hasattr(state, "_fields"):
        return type(state)(*map(on_meta, state))
    return tuple(map(on_meta, state)) if isinstance(state, tuple) else state


def test_every_registered_mixer_is_tested_here() -> None:
    assert {name for name, *_ in VARIANTS} == set(MIXERS)


@every
def test_the_future_never_changes_the_past(name, positions, options) -> None:
    built, x = mixer(name, positions, options).float(), draw(B, T, E, dtype=torch.float32)
    before = built(x)
    for t in (1, 3, T - 1):
        changed = x.clone()
        changed[:, t] += 1
        after = built(changed)
        assert torch.equal(after[:, :t], before[:, :t])
        assert not torch.equal(after[:, t], before[:, t])


@every
def test_whole_weighted_and_in_portions_agree(name, positions, options) -> None:
    built, x = mixer(name, positions, options), draw(B, T, E)
    whole = built(x)
    weighted, weights = built.with_weights(x)
    close(weighted, whole)
    heads = {"none": 1, "mean": 1, "conv": E}.get(name, H)
    assert weights.shape == (B, heads, T, T)
    assert not weights.triu(1).any()
    averages = name not in ("conv", "delta") and options.get("normalize", True)
    if averages and options.get("feature_map") not in ("cosformer", "dpfp"):
        close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    if name == "window":
        assert not weights.tril(-options["window"]).any()
    for portions in ((1,) * T, (3, 1, 3), (2, 0, 5), (T,)):
        for no_grad in (True, False):
            state, outs = None, []
            with torch.set_grad_enabled(not no_grad):
                for part in x.split(portions, 1):
                    out, state = built.decode(part, state)
                    outs.append(out)
            close(torch.cat(outs, 1), whole, portions)


@every
def test_a_state_owns_its_memory_and_is_never_changed(name, positions, options) -> None:
    built, x, y = mixer(name, positions, options), draw(1, 300, E), draw(1, 2, E, seed=1)
    for no_grad in (True, False):
        with torch.set_grad_enabled(not no_grad):
            _, state = built.decode(x, None)
            once, later = built.decode(y, state)
            again, _ = built.decode(y, state)
            assert torch.equal(once, again)
            for _ in range(4):
                _, later = built.decode(y, later)
        for held in (state, later):
            size = sum(t.numel() * t.element_size() for t in tensors(held))
            assert sum(t.untyped_storage().nbytes() for t in tensors(held)) <= 2 * size
            file = io.BytesIO()
            torch.save(held, file)
            assert file.tell() < size + 8_000


@every
def test_every_parameter_learns(name, positions, options) -> None:
    built = mixer(name, positions, options).train()
    if not list(built.parameters()):
        return
    (built(draw(B, T, E)) * draw(B, T, E, seed=1)).sum().backward()
    for parameter_name, p in built.named_parameters():
        # The same number added to a whole row of scores changes no softmax.
        scores = name in ("softmax", "window") or "near" in parameter_name
        if scores and parameter_name.endswith("W_k.bias") and positions != "rope":
            assert p.grad.abs().max() < 1e-12
        elif options.get("window") == 1 and parameter_name.startswith(
            ("attention.W_q", "attention.W_k")
        ):
            assert p.grad.abs().max() < 1e-12  # a single key has weight 1
        else:
            assert p.grad.abs().max() > 1e-9, parameter_name


@pytest.mark.parametrize(
    ("name", "positions", "options"),
    [variant for variant in VARIANTS if variant[0] not in ("linear", "hybrid")],
)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_gradient_for_each_sample(name, positions, options) -> None:
    built, x = mixer(name, positions, options), draw(B, T, E)
    parameters = dict(built.named_parameters())
    if not parameters:
        return

    def loss(parameters, x):
        return functional_call(built, parameters, (x[None],)).square().sum()

    each = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    for b in range(B):
        for parameter_name, expected in grad(loss)(parameters, x[b]).items():
            close(each[parameter_name][b], expected, parameter_name)


@pytest.mark.parametrize("name", sorted(MIXERS))
def test_empty_and_single_sequences(name) -> None:
    for shape in ((1, 1, E), (3, 0, E), (0, 4, E)):
        built, x = mixer(name), draw(*shape)
        assert built(x).shape == built.decode(x, None)[0].shape == shape


@pytest.mark.parametrize("name", sorted(MIXERS))
def test_a_cache_of_another_batch_or_mixer_is_named(name) -> None:
    model = Transformer(config(name))
    tokens = torch.zeros(2, 1, dtype=torch.int64)
    others = [Transformer(config(other)) for other in sorted({*MIXERS} - {name})]
    for family in ({"softmax", "window"}, {"linear", "gated"}):  # either goes on from the other
        if name in family:
            others = [other for other in others if other.config.mixer not in family]
    for other in others:
        _, cache = other.decode(tokens)
        if cache.states != (None,):  # what "none" leaves is what every mixer starts from
            with pytest.raises(ValueError, match="cache"):
                model.decode(tokens, cache)
    _, cache = model.decode(tokens[:1])
    if cache.states != (None,):
        with pytest.raises(ValueError, match="cache"):
            model.decode(tokens, cache)
        _, cache = model.decode(tokens)
        with pytest.raises(ValueError, match="cache"):
            model.decode(tokens, Cache(1, on_meta(cache.states)))
        if hasattr(cache.states[0], "_fields"):
            broken = Cache(1, (type(cache.states[0])(*("x" for _ in cache.states[0])),))
            with pytest.raises(ValueError, match="^cache"):
                model.decode(tokens, broken)
    with pytest.raises(ValueError, match="cache: expected a Cache of L = 1 states, got tuple"):
        model.decode(tokens, (1, 2))


@pytest.mark.parametrize("name", sorted(MIXERS))
def test_a_text_begun_without_autocast_goes_on_with_it(name) -> None:
    built, x = mixer(name).float(), draw(B, T, E, dtype=torch.float32)
    whole = built(x)
    _, state = built.decode(x[:, :3], None)
    with torch.autocast("cpu", torch.bfloat16):
        for part in x[:, 3:].split((1, 3), 1):
            out, state = built.decode(part, state)
    assert (out - whole[:, -3:]).abs().max() < 0.05 * whole.abs().max()
    if name in ("softmax", "window", "hybrid"):  # narrow keys would lose what came before
        with torch.autocast("cpu", torch.bfloat16):
            _, state = built.decode(x, None)
        with pytest.raises(ValueError, match="cache.k and the new k: expected one dtype"):
            built.decode(x, state)


# --- one mixer ----------------------------------------------------------------------------------


def test_the_mean_holds_the_present_and_the_past() -> None:
    x = draw(B, T, E)
    means = mixer("mean")(x)
    for t in range(T):
        close(means[:, t], x[:, : t + 1].mean(1))


def test_the_mean_sums_in_float32() -> None:
    built, one, state = mixer("mean"), torch.ones(1, 1, 1, dtype=torch.bfloat16), None
    for _ in range(3_000):
        out, state = built.decode(one, state)
    assert out.dtype == torch.bfloat16 and out.item() == 1
    assert torch.equal(built(one.expand(1, 3_000, 1)), torch.ones(1, 3_000, 1))


def test_penalties_keep_their_digits_in_half_precision() -> None:
    built, x = mixer("softmax", "alibi"), draw(1, 600, E)
    expected = built(x)
    got = built.bfloat16()(x.bfloat16())
    # One penalty of 300 rounded to 8 bits is off by 1: weights by a factor of e.
    assert (got.double() - expected).abs().max() < 0.05 * expected.abs().max()


@pytest.mark.parametrize("name", ["softmax", "window"])
def test_dropout_reaches_the_attention_weights(name) -> None:
    built = mixer(name, dropout=0.5).float().train()
    x = draw(1, T, E, dtype=torch.float32).expand(4_000, -1, -1)
    y = built(x)
    assert (y - y[:1]).abs().max() > 0.01
    assert (y.mean(0) - built.eval()(x[:1])).abs().max() < 0.05
    # Token 0 has one weight a head: without it the head's whole output is gone, not some entries.
    built.train().attention.W_o = nn.Identity()
    gone = built(x)[:, 0].unflatten(-1, (H, -1)) == 0
    assert torch.equal(gone.any(-1), gone.all(-1)) and 0.4 < gone.double().mean() < 0.6


@pytest.mark.parametrize("name", ["softmax", "window"])
@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_any_scale_of_scores_is_one_function_in_every_way(name, scale) -> None:
    built, x = mixer(name, scale=scale), draw(B, T, E)
    whole = built(x)
    assert whole.isfinite().all()
    close(built.with_weights(x)[0], whole)
    close(built.decode(x, None)[0], whole)
    for impl in ("reference", "torch"):
        close(mixer(name, options={"impl": impl}, scale=scale)(x), whole)


def test_a_linear_state_does_not_grow() -> None:
    built, state, sizes = mixer("linear"), None, set()
    for token in draw(B, 9, E).split(1, 1):
        _, state = built.decode(token, state)
        sizes.add(held_bytes(*state))
    assert len(sizes) == 1 and isinstance(state, LinearState) and (state.t == 9).all()


def test_the_scale_of_the_configuration_reaches_the_map() -> None:
    options, x = {"feature_map": "taylor"}, draw(B, T, E)
    default = mixer("linear", options=options)
    assert torch.equal(default(x), mixer("linear", options=options, scale=0.5)(x))  # D = 4
    assert not torch.allclose(default(x), mixer("linear", options=options, scale=1.0)(x))


def test_the_convolution_is_pytorchs() -> None:
    built, x = mixer("conv", options={"width": 4}), draw(B, T, E)
    theirs = nn.Conv1d(E, E, 4, groups=E, padding=3).double()
    with torch.no_grad():
        theirs.weight.copy_(built.weight.T.flip(1)[:, None])  # PyTorch counts from the oldest
        theirs.bias.copy_(built.bias)
    close(built(x), theirs(x.mT)[..., :T].mT)


@pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning")  # what the flag below says
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_convolution_sums_as_precisely_as_pytorchs_in_half_precision(dtype) -> None:
    built, x = mixer("conv", options={"width": 40}).to(dtype), draw(B, 90, E, dtype=dtype)
    theirs = nn.Conv1d(E, E, 40, groups=E, padding=39).to(dtype)
    with torch.no_grad():
        theirs.weight.copy_(built.weight.T.flip(1)[:, None])
        theirs.bias.copy_(built.bias)
    exact = nn.functional.conv1d(
        x.mT.double(), theirs.weight.double(), theirs.bias.double(), padding=39, groups=E
    )[..., :90].mT
    y = built(x)
    assert y.dtype == dtype
    # Without oneDNN: on a CPU with AVX512-FP16 its float16 convolution takes minutes.
    with torch.backends.mkldnn.flags(enabled=False):
        plain = theirs(x.mT)[..., :90].mT
    error, least = ((out.double() - exact).abs().max() for out in (y, plain))
    assert error <= 2 * least


def test_the_convolution_goes_on_in_the_dtype_of_its_cache() -> None:
    built, x = mixer("conv").float(), draw(B, T, E, dtype=torch.float32)
    _, state = built.decode(x, None)
    for dtype in (torch.float16, torch.float64):
        with pytest.raises(ValueError, match="^cache.past and the new x: expected one dtype, got"):
            built.to(dtype).decode(x.to(dtype), state)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.ones(T, E), r"^x: expected 3 axes \[B T E\], got 2"),
        (torch.ones(B, T, E + 1), "^x and the layer: expected equal sizes on axis E, got x has 13"),
        (torch.ones(B, T, E).long(), "^x: expected floating-point numbers"),
        ([1.0], "^x: expected a tensor"),
    ],
)
def test_what_a_convolution_cannot_read_is_named(x, words) -> None:
    built = mixer("conv")
    for call in (built, built.with_weights, lambda x: built.decode(x, None)):
        with pytest.raises(ValueError, match=words):
            call(x)


def test_the_convolution_shifts_exactly_and_reaches_no_further() -> None:
    built, x = mixer("conv", options={"width": 3}), draw(1, T, E)
    with torch.no_grad():
        built.weight.zero_()[2] = 1
        built.bias.zero_()
    assert torch.equal(built(x)[:, 2:], x[:, :-2]) and not built(x)[:, :2].any()
    _, state = built.decode(x, None)
    assert torch.equal(state.past, x[:, -2:])
    slope = torch.autograd.functional.jacobian(lambda x: mixer("conv")(x).sum((0, 2)), x)
    assert (slope[:, 0].abs().sum(-1) > 0).int().tolist() == [
        [int(0 <= t - i < 3) for i in range(T)] for t in range(T)
    ]


def test_the_gate_fades_what_linear_attention_adds() -> None:
    built, x = mixer("gated"), draw(B, T, E)
    with torch.no_grad():
        built.gate.weight *= 4
        built.gate.bias -= 5  # decays with spread
    q, k, v = built.attention.heads(x)
    maps = [nn.functional.elu(y / 2**0.5) + 1 for y in (q, k)]  # D = 4: each gets 4^(−1/4)
    gamma = built.gate(x).sigmoid().transpose(1, 2)
    weights = maps[0] @ maps[1].mT
    for t in range(T):
        for i in range(T):
            weights[:, :, t, i] *= gamma[:, :, i + 1 : t + 1].prod(-1) if i <= t else 0
    weights = weights / weights.sum(-1, keepdim=True)
    close(built.with_weights(x)[1], weights)
    close(built(x), built.attention.merge(weights @ v))
    with torch.no_grad():
        built.gate.weight.zero_()
        built.gate.bias.fill_(40)  # nothing fades
    linear = mixer("linear")
    linear.attention = built.attention
    close(built(x), linear(x))


def test_a_fresh_gate_is_nearly_open() -> None:
    decays = mixer("gated").gate(draw(50, T, E)).sigmoid()
    assert decays.min() > 0.9 and decays.max() < 1
    assert decays.std((0, 1)).min() > 1e-3  # and listens to its input already


def test_a_closed_gate_keeps_nothing_and_has_a_gradient() -> None:
    """sigmoid(−200) is 0 in float32, its logarithm is −200."""
    built, x = mixer("gated").float(), draw(B, T, E, dtype=torch.float32)
    with torch.no_grad():
        built.gate.bias.fill_(-200)
    out = built(x)
    close(out, built.attention.merge(built.attention.heads(x)[2]), "the present alone", 1e-5)
    grads = torch.autograd.grad(out.square().sum(), list(built.parameters()))
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_key_of_zeros_writes_nothing_and_poisons_nothing(dtype) -> None:
    """1e-12 is 0 in float16, and 0/0 there; elsewhere its inverse would be a gradient."""
    built, x = mixer("delta", options={"bias": False}), draw(B, T, E)
    x[:, 3] = 0
    others = torch.arange(T) != 3
    exact = built(x[:, others])  # nothing was written: as if the token were not there
    built, x = built.to(dtype), x.to(dtype).requires_grad_()
    out = built(x)
    close(out[:, others], exact, dtype, 8 * torch.finfo(dtype).eps)
    grads = torch.autograd.grad(out.sum(), [x, *built.parameters()])
    assert all(g.abs().max() < 1e3 for g in grads)
    with torch.autocast("cpu", torch.float16):
        assert built.float()(x.float()).isfinite().all()


def test_the_delta_rule_corrects_with_keys_of_length_one() -> None:
    built, x = mixer("delta"), draw(B, T, E)
    q, k, v = built.attention.heads(x)
    q, k = (y / y.norm(dim=-1, keepdim=True) for y in (q, k))
    beta = built.strength(x).sigmoid().transpose(1, 2)
    S, out = torch.zeros(B, H, 4, 4, dtype=torch.float64), []
    for t in range(T):
        read = torch.einsum("bhd,bhde->bhe", k[:, :, t], S)
        step = beta[:, :, t, None] * (v[:, :, t] - read)
        S = S + torch.einsum("bhd,bhe->bhde", k[:, :, t], step)
        out.append(torch.einsum("bhd,bhde->bhe", q[:, :, t], S))
    close(built(x), built.attention.merge(torch.stack(out, 2)))
    close(built.decode(x, None)[1].S, S)
    before = built(x)
    with torch.no_grad():  # only directions count
        for layer in (built.attention.W_q, built.attention.W_k):
            layer.weight *= 7
            layer.bias *= 7
    close(built(x), before)
    assert beta.std() > 0.02


# --- the registry -------------------------------------------------------------------------------


def test_another_module_can_add_a_mixer(request) -> None:
    request.addfinalizer(lambda: MIXERS.pop("shift"))

    @register_mixer("shift")
    class Shift(Mixer):
        def __init__(self, config: TransformerConfig, *, by: int = 1) -> None:
            super().__init__()
            self.by = by

        def forward(self, x):
            return nn.functional.pad(x, (0, 0, self.by, 0))[:, : x.shape[1]]

    plain = dict(norm="none", residual=False, hidden=0)
    built = Transformer(config("shift", options={"by": 2}, **plain))
    tokens = torch.arange(2 * T).view(2, T) % 11
    assert torch.equal(built(tokens)[:, 2:], built.output(built.tokens(tokens))[:, :-2])
    with pytest.raises(NotImplementedError, match="Shift has no weights to show"):
        built.attention_maps(tokens)
    with pytest.raises(NotImplementedError, match="Shift cannot decode"):
        built.decode(tokens)
    with pytest.raises(ValueError, match="mixer: expected a new name, got 'shift'"):
        register_mixer("shift")(Mixer)


@pytest.mark.parametrize(
    ("name", "options", "changes", "message"),
    [
        ("linear", {"feature_map": "identity"}, {}, "normalize=False with the signed map 'ident"),
        ("linear", {"feature_map": "sine"}, {}, "feature_map: expected one of"),
        ("linear", {"key_width": 0}, {}, "key_width: expected a whole number"),
        ("linear", {"width": 3}, {}, "mixer_options: mixer 'linear' expected options among"),
        ("linear", {}, {"scale": 0.0}, "scale .*: expected a finite number above 0, got 0.0"),
        ("hybrid", {"window": 0}, {}, "window: expected a whole number"),
        ("conv", {"width": 0}, {}, "width: expected a whole number of at least 1, got 0"),
        ("gated", {"feature_map": "identity"}, {}, "normalize=False with the signed map"),
        ("gated", {"impl": "triton"}, {}, "mixer_options: mixer 'gated' expected options among"),
        ("delta", {"key_width": 0}, {}, "key_width: expected a whole number"),
        ("window", {"window": 0}, {}, "window: expected a whole number"),
        ("mean", {"window": 2}, {}, "mixer_options: mixer 'mean' expected options among"),
        ("convolution", {}, {}, "mixer: expected one of conv, delta, gated"),
        ("softmax", {"impl": "fast"}, {}, "impl: expected one of torch, reference, triton"),
        ("softmax", {"impl": "triton"}, {"dropout": 0.1}, "dropout: expected 0 with impl"),
        ("softmax", {"mix_heads": False}, {"Dv": 3}, "equal sizes on axis E"),
    ],
)
def test_errors_name_the_option(name, options, changes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_mixer(config(name, options=options, **changes), 0)
