"""``course.feature_maps``: each map against its formula, and the fast paths of the chunk loop."""

from __future__ import annotations

import math

import pytest
import torch

from course.engine import maps
from course.feature_maps import NAMES, FeatureMap, features, get_feature_map, total_variation
from tests import oracles
from tests.drawing import NoDouble, close, draw
from tests.test_linear import OPTIONS

MAPS = [(name, options) for name, options in OPTIONS.items()] + [
    ("taylor", {"packed": False}),
    ("dpfp", {}),
    ("favor", {"features": 3, "seed": 5}),
]
every_map = pytest.mark.parametrize(("name", "options"), MAPS)


def test_every_name_is_tested():
    assert set(NAMES) == set(OPTIONS)


@every_map
@pytest.mark.parametrize("D", [1, 2, 5])
def test_width_and_similarity(name, options, D):
    fm = get_feature_map(name, **options)
    q, k = draw(2, 3, 4, D, seed=1), draw(2, 3, 6, D, seed=2)
    fq, fk = fm(q), fm(k)
    assert fq.shape == (2, 3, 4, fm.width(D)) and fq.dtype == torch.float64
    wanted = oracles.similarity(
        name,
        q,
        k,
        q_places=torch.arange(4).expand(2, -1),
        k_places=torch.arange(6).expand(2, -1),
        weights=fm.weights(D) if name == "favor" else None,
        max_length=600,
        nu=options.get("nu", 1),
    )
    close(fq @ fk.mT, wanted, name, 1e-13)
    if not fm.signed:
        assert (fq @ fk.mT >= 0).all()


@every_map
def test_the_loop_s_fast_paths_are_the_map(name, options):
    fm = get_feature_map(name, **options)
    x = draw(3, 7, 4, seed=1, std=3).requires_grad_()
    places = torch.tensor([[0, 1, 2, 3, 4, 5, 6]]).expand(3, -1) + 11
    f = fm(x, places) if fm.positional else fm(x)
    df = draw(*f.shape, seed=2)
    (dx,) = torch.autograd.grad(f, x, df)
    with torch.no_grad():
        out = torch.full_like(f, math.nan)
        written = maps.write(fm, x.detach(), out, places)
        close(written, f, "write", 1e-14)
        close(maps.pullback(fm, x.detach(), written, df.clone(), places), dx, "pullback", 1e-14)


@every_map
def test_gradcheck(name, options):
    fm = get_feature_map(name, **options)
    assert torch.autograd.gradcheck(fm, draw(2, 3, 4, seed=1).requires_grad_())


@every_map
def test_tokens_are_mapped_alone(name, options):
    """Neither the other tokens nor their number matter, NaN among them included."""
    fm = get_feature_map(name, **options)
    x = draw(2, 9, 4, seed=1).float()
    y = x.clone()
    y[:, 5:] = math.nan
    assert torch.equal(fm(x)[:, :5], fm(y)[:, :5])
    close(fm(x[:, :5]), fm(x)[:, :5], name, 1e-6)


@every_map
def test_empty_and_single(name, options):
    fm = get_feature_map(name, **options)
    for T in (0, 1):
        assert fm(torch.ones(2, T, 4)).shape == (2, T, fm.width(4))


@every_map
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_in_low_precision_out(name, options, dtype):
    fm = get_feature_map(name, **options)
    x = draw(3, 5, 4, seed=1).to(dtype)
    f = fm(x)
    assert f.dtype == dtype
    close(f, fm(x.double()), name, 8 * torch.finfo(dtype).eps)


def test_elu_gradient_at_zero_and_in_the_tails():
    x = torch.tensor([-103.0, -50.0, -17.4, 0.0, 1e-30, 88.0, 1e30], requires_grad=True)
    f = get_feature_map("elu")(x)
    f.sum().backward()
    assert (f > 0).all() and f.isfinite().all()
    assert (x.grad > 0).all() and (x.grad[3:] == 1).all()


def test_elu_of_the_loop_holds_as_far_as_exp():
    x = torch.linspace(-100, 5, 1000).reshape(10, 10, 10)
    f = maps.write(get_feature_map("elu"), x, torch.empty_like(x), None)
    exact = torch.where(x > 0, x.double() + 1, x.double().exp())
    normal = exact > torch.finfo(torch.float32).tiny
    assert (f > 0).all()
    assert ((f / exact - 1).abs() <= 1.2e-7 * (1 + x.abs()))[normal].all()


def test_taylor_is_never_below_one_half_and_not_monotone():
    s = torch.linspace(-8, 8, 1601, dtype=torch.float64).unsqueeze(-1)
    sim = get_feature_map("taylor")(s) @ get_feature_map("taylor")(s.new_ones(1, 1)).T
    assert sim.min().item() == pytest.approx(0.5, abs=1e-12)
    assert s[sim.argmin()].item() == pytest.approx(-1, abs=1e-9)
    wide = get_feature_map("taylor", packed=False)
    assert wide.width(16) == 273 and get_feature_map("taylor").width(16) == 153


def test_favor_estimates_exp_without_bias():
    """The mean over seeds comes within four standard errors of exp(q·k), which are small."""
    q, k = draw(1, 4, seed=1, std=0.6), draw(1, 4, seed=2, std=0.6)
    values = []
    for seed in range(400):
        fm = get_feature_map("favor", features=16, seed=seed)
        values.append((fm(q) @ fm(k).T).item())
    values = torch.tensor(values, dtype=torch.float64)
    error = values.std().item() / len(values) ** 0.5
    exact = math.exp((q @ k.T).item())
    assert error < 0.02 * exact
    assert abs(values.mean().item() - exact) <= 4 * error


def test_favor_weights_are_seeded_and_orthogonal():
    fm = get_feature_map("favor", features=10, seed=7)
    state = torch.random.get_rng_state()
    w = fm.weights(4)
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator was used"
    assert torch.equal(w, get_feature_map("favor", features=10, seed=7).weights(4))
    assert not torch.equal(w, get_feature_map("favor", features=10, seed=8).weights(4))
    for block in (w[:4], w[4:8], w[8:]):
        gram = block @ block.T
        close(gram, gram.diagonal().diag(), "orthogonal rows", 1e-12)
    lengths = get_feature_map("favor", features=4000).weights(16).square().sum(-1)
    assert lengths.mean().item() == pytest.approx(16, abs=0.4)  # 4 standard errors: √32/√4000·4
    w.zero_()
    assert fm.weights(4).any(), "the caller got the only copy"
    usual = get_feature_map("favor")
    assert usual.width(4) == 256
    assert torch.equal(usual.weights(4), get_feature_map("favor", seed=0).weights(4))


def test_favor_normalised_does_not_depend_on_the_constant():
    """At width 64 a constant is taken off; ratios of similarities are those of the definition."""
    fm = get_feature_map("favor", features=12)
    q, k = draw(2, 64, seed=1, std=0.4), draw(3, 64, seed=2, std=0.4)
    sim = fm(q) @ fm(k).T
    wanted = oracles.similarity("favor", q[None, None], k[None, None], weights=fm.weights(64))[0, 0]
    assert (sim < wanted * 0.9).all(), "no constant at all"
    close(sim / sim.sum(-1, keepdim=True), wanted / wanted.sum(-1, keepdim=True), "ratios")


def test_favor_s_constant_is_the_one_that_keeps_float32_in_range():
    """φ(0) = exp(−c)/√features shows it: c = |w|²/2 − 38 of the longest w, from 0 to 32."""
    fm, found = get_feature_map("favor", features=12), []
    for D in (16, 64, 256):
        longest = fm.weights(D).square().sum(-1).max().item()
        first = fm(torch.zeros(1, D, dtype=torch.float64))[0, 0].item()
        found.append(-math.log(first * math.sqrt(12)))
        assert found[-1] == pytest.approx(min(max(longest / 2 - 38, 0), 32), abs=1e-12)
    assert found[0] == pytest.approx(0, abs=1e-12) and 1 < found[1] < 31


def test_favor_s_constant_leaves_wide_heads_their_similarities():
    """At width 256 a constant that grew with |w|² would put every product below float32."""
    fm = get_feature_map("favor", features=12)
    q, k = draw(2, 256, seed=1, std=0.06).float(), draw(3, 256, seed=2, std=0.06).float()
    assert (fm(q) @ fm(k).T > torch.finfo(torch.float32).tiny).all()


def test_cosformer_follows_positions_and_refuses_those_beyond():
    fm = get_feature_map("cosformer", max_length=10)
    x = torch.ones(1, 1, 3, 1, dtype=torch.float64)
    far = fm(x, torch.tensor([0, 4, 9])) @ fm(x[:, :, :1], torch.tensor([0])).mT
    wanted = [math.cos(math.pi / 20 * p) for p in (0, 4, 9)]
    assert far.flatten().tolist() == pytest.approx(wanted)
    with pytest.raises(ValueError, match=r"max_length = 10, got position 10"):
        fm(x, torch.tensor([0, 4, 10]))
    with pytest.raises(ValueError, match="got position 11"):
        fm(torch.ones(1, 1, 12, 1))
    with pytest.raises(ValueError, match="from 0 .*got position -1"):
        fm(x, torch.tensor([-1, 0, 1]))


def test_dpfp_has_features_for_every_sign():
    x = -torch.rand(20, 3, generator=torch.Generator().manual_seed(0)) - 0.1
    for nu in (1, 2, 3):
        assert (get_feature_map("dpfp", nu=nu)(x).sum(-1) > 0).all()


def test_only_identity_is_signed():
    signed = [n for n in NAMES if get_feature_map(n, **OPTIONS[n]).signed]
    assert signed == ["identity"]
    x = draw(3, 4, seed=1)
    assert torch.equal(get_feature_map("identity")(x), x)


@pytest.mark.parametrize("root", [1.0, 2.0, 0.5])
def test_features_are_those_of_the_input_times_the_root(root):
    x = draw(2, 3, 4, seed=1)
    fm = get_feature_map("taylor")
    close(features(fm, root, x, None, None), fm(root * x), f"root {root}")


def test_nothing_to_learn_and_nothing_to_store():
    for name, options in MAPS:
        assert not get_feature_map(name, **options).state_dict(), name


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("softmax", {}, "feature_map: expected one of elu, relu.*got 'softmax'"),
        ("elu", {"alpha": 2}, "feature_map: expected options that 'elu' knows, got alpha"),
        ("cosformer", {}, "max_length: expected the longest sequence.*got None"),
        ("cosformer", {"max_length": 0}, "max_length: expected a whole number.*got 0"),
        ("favor", {"features": 0}, "features: expected a whole number.*got 0"),
        ("favor", {"seed": 1.5}, "seed: expected a whole number.*got 1.5"),
        ("favor", {"seed": [1]}, r"seed: expected a whole number.*got \[1\]"),
        ("dpfp", {"nu": 1.5}, "nu: expected a whole number.*got 1.5"),
        ("taylor", {"packed": "no"}, "packed: expected True or False, got 'no'"),
    ],
)
def test_errors_name_the_argument(name, options, words):
    with pytest.raises(ValueError, match=words):
        get_feature_map(name, **options)


def test_a_map_of_ones_own_needs_forward_and_width():
    class Square(FeatureMap):
        def width(self, D):
            return D

        def forward(self, x):
            return x * x

    x = draw(2, 3, 4, seed=1)
    fm = Square()
    assert torch.equal(maps.write(fm, x, torch.empty_like(x), None), x * x)
    close(maps.pullback(fm, x, x * x, torch.ones_like(x), None), 2 * x, "pullback")


def test_total_variation_is_the_weight_that_must_move() -> None:
    a = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    b = torch.tensor([[0.25, 0.25, 0.5], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]])
    assert torch.allclose(total_variation(a, b), torch.tensor([0.5, 0.0, 1.0]))
    assert torch.equal(total_variation(a, b), total_variation(b, a))
    both = total_variation(torch.stack([a, b]), torch.stack([b, b]))  # the last axis of any number
    assert torch.allclose(both, torch.tensor([[0.5, 0.0, 1.0], [0.0, 0.0, 0.0]]))
    assert total_variation(a.double(), b.double()).dtype == torch.float64
    with pytest.raises(ValueError, match="^a: expected floating-point"):
        total_variation(a.long(), b)
    with pytest.raises(ValueError, match="equal shapes"):
        total_variation(a, b[:1])
    with pytest.raises(ValueError, match="b: expected a tensor, got ndarray"):
        total_variation(a, b.numpy())


def test_maps_are_as_exact_under_autocast() -> None:
    """Where a map multiplies by itself, half precision would cost a factor of the exponent."""
    x = draw(2, 3, 5, 16, seed=1).float()
    for name, options in MAPS:
        fm = get_feature_map(name, **options)
        plain = fm(x)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(fm(x), plain), name


def test_maps_work_where_there_is_no_float64() -> None:
    for name, options in MAPS:
        fm = get_feature_map(name, **options)
        with NoDouble():
            for dtype in (torch.float32, torch.bfloat16):
                f = fm(torch.empty(2, 3, 5, 4, device="meta", dtype=dtype))
                assert f.shape == (2, 3, 5, fm.width(4)) and f.dtype == dtype


def test_cosformer_beyond_its_length_is_nan_where_nobody_can_look() -> None:
    """Under vmap, as on a GPU, no position is read: none outside may pass for one inside."""
    fm = get_feature_map("cosformer", max_length=4)
    x = torch.ones(3, 1, 1, 2)
    places = torch.tensor([[[3]], [[4]], [[-1]]])
    found = torch.func.vmap(fm)(x, places)
    assert found[0].isfinite().all() and found[1:].isnan().all()


def test_favor_s_directions_do_not_hang_on_the_default_device() -> None:
    with torch.device("meta"):
        first = get_feature_map("favor", features=5, seed=91).weights(3)
    assert first.device.type == "cpu" and first.isfinite().all()


def test_total_variation_is_summed_in_float32() -> None:
    a, b = torch.zeros(1, 3000).bfloat16(), torch.full((1, 3000), 1 / 3000).bfloat16()
    wanted = (a.double() - b.double()).abs().sum() / 2
    got = total_variation(a, b)
    assert got.dtype == torch.bfloat16
    assert abs(got.item() / wanted - 1) <= torch.finfo(torch.bfloat16).eps
    x, y = torch.rand(2, 200, 3).half()  # the differences, too: rounded in half they are others
    wanted = ((x.float() - y.float()).abs().sum(-1) / 2).half()
    assert torch.equal(total_variation(x, y), wanted)
