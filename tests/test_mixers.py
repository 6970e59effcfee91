"""The mixers of ``course.mixers`` inside the model: three ways to run, one result."""

from __future__ import annotations

import pytest
import torch

from course.linear import LinearState
from course.transformer import Transformer, TransformerConfig, mixer_names

MIXERS = [
    ("linear", {}),
    ("linear", {"feature_map": "taylor", "key_width": 3}),
    ("linear", {"feature_map": "identity", "normalize": False}),
    ("linear", {"feature_map": "cosformer", "map_options": {"max_length": 40}}),
    ("linear", {"feature_map": "favor", "map_options": {"features": 9}}),
    ("linear", {"feature_map": "dpfp", "bias": False}),
    ("hybrid", {"window": 3, "key_width": 2}),
    ("hybrid", {"window": 3, "feature_map": "elu"}),
]
every = pytest.mark.parametrize(("name", "options"), MIXERS)
V, B, T = 11, 2, 7


def model(name, options, **changes):
    config = TransformerConfig(
        V, E=12, L=2, H=3, hidden=20, mixer=name, mixer_options=options, **changes
    )
    assert TransformerConfig.from_dict(config.to_dict()) == config
    built = Transformer(config, seed=1).double()
    with torch.no_grad():  # scores with spread
        for parameter_name, p in built.named_parameters():
            if "W_q.weight" in parameter_name or "W_k.weight" in parameter_name:
                p *= 3
    return built.eval()


def tokens(*shape):
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(0))


def test_registered():
    assert {"linear", "window", "hybrid"} <= set(mixer_names())


@every
def test_whole_weighted_and_in_portions_agree(name, options):
    built, text = model(name, options), tokens(B, T)
    whole = built(text)
    weighted, maps = built.forward_with_maps(text)
    assert (weighted - whole).abs().max() <= 1e-12
    for weights in maps:
        assert weights.shape == (B, 3, T, T) and not weights.triu(1).any()
        if options.get("normalize", True):
            assert (weights.sum(-1) - 1).abs().max() <= 1e-12 or options.get("feature_map") in (
                "cosformer",
                "dpfp",
            )
    for portions in ((1,) * T, (3, 4), (T,), (2, 1, 1, 3)):
        cache, outs = None, []
        for part in text.split(portions, 1):
            logits, cache = built.decode(part, cache)
            outs.append(logits)
        assert (torch.cat(outs, 1) - whole).abs().max() <= 1e-12, portions


@every
def test_the_future_changes_nothing(name, options):
    built, text = model(name, options).float(), tokens(B, T)
    changed = text.clone()
    changed[:, 4] = (text[:, 4] + 1) % V
    assert torch.equal(built(text)[:, :4], built(changed)[:, :4])
    assert not torch.equal(built(text)[:, 4:], built(changed)[:, 4:])


@every
def test_every_parameter_learns(name, options):
    built, text = model(name, options), tokens(B, T)
    built.train()
    # The key bias of softmax attention is the one parameter that cannot (ledger 2.10).
    built(text).square().sum().backward()
    for parameter_name, p in built.named_parameters():
        if "near" in parameter_name and parameter_name.endswith("W_k.bias"):
            assert p.grad.abs().max() <= 1e-9
        else:
            assert p.grad is not None and p.grad.any(), parameter_name


def test_the_state_does_not_grow_and_old_caches_stay_valid():
    built = model("linear", {})
    sizes, cache, caches = [], None, []
    text = tokens(B, 12)
    for token in text.split(1, 1):
        logits, cache = built.decode(token, cache)
        caches.append((cache, logits))
        sizes.append(cache.nbytes())
    assert len(set(sizes)) == 1
    assert isinstance(cache.states[0], LinearState) and (cache.states[0].t == 12).all()
    again, _ = built.decode(text[:, 6:7], caches[5][0])
    assert torch.equal(again, caches[6][1])


def test_the_scale_of_the_configuration_is_used():
    text = tokens(B, T)
    default = model("linear", {"feature_map": "taylor"})
    same = model("linear", {"feature_map": "taylor"}, scale=0.5)  # D = 4
    other = model("linear", {"feature_map": "taylor"}, scale=1.0)
    assert torch.equal(default(text), same(text))
    assert not torch.allclose(default(text), other(text))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("linear", {"feature_map": "identity"}, "normalize=False with the signed map 'identity'"),
        ("linear", {"feature_map": "sine"}, "feature_map: expected one of"),
        ("linear", {"key_width": 0}, "key_width: expected a whole number"),
        ("linear", {"width": 3}, "mixer_options: mixer 'linear' expected options among"),
        ("hybrid", {"window": 0}, "window: expected a whole number"),
    ],
)
def test_errors_name_the_option(name, options, words):
    with pytest.raises(ValueError, match=words):
        model(name, options)


def test_relative_positions():
    for scheme in ("rope", "alibi"):
        with pytest.raises(ValueError, match="positions"):
            model("linear", {}, positions=scheme)
        built, text = model("hybrid", {"window": 3}, positions=scheme), tokens(B, T)
        parts, cache = [], None
        for token in text.split(1, 1):
            logits, cache = built.decode(token, cache)
            parts.append(logits)
        assert (torch.cat(parts, 1) - built(text)).abs().max() <= 1e-12
