"""``course.kernels.taylor``, interpreted; its fast checks are in ``tests/mutants``."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import pytest
import torch

from course.feature_maps import get_feature_map
from course.linear import LinearState, linear_attention, linear_attention_step
from course.mixers import HybridMixer
from course.transformer import TransformerConfig
from tests.kernels.watching import names, only_noted
from tests.mutants.kernels_taylor import (
    INTERPRETED,
    Example,
    close,
    compare,
    draw,
    small_and_poisoned,
    wanted,
)

pytestmark = pytest.mark.skipif(
    not INTERPRETED, reason="runs in Triton's interpreter, on a machine without a GPU"
)


@pytest.fixture(scope="module")
def taylor() -> Any:
    return importlib.import_module("course.kernels.taylor")


def in_torch(*qkv: torch.Tensor, **options: Any) -> Any:
    return linear_attention(*qkv, **{"causal": True, "feature_map": "taylor", **options})


# Seven yes-or-no settings in eight cases: an orthogonal array, any two settings meet in every way.
SETTINGS = ("causal", "normalize", "masked", "past", "half", "scale", "strided")
LENGTHS = ((16, 2, 17), (17, 3, 5), (1, 5, 3), (15, 2, 16), (33, 2, 4), (20, 4, 1), (18, 1, 7))
SIZES = (*LENGTHS, (2, 3, 18))
ARRAY = [
    (a, b, c, a ^ b, a ^ c, b ^ c, a ^ b ^ c)
    for a, b, c in itertools.product((False, True), repeat=3)
]


def test_any_two_settings_meet():
    for one, other in itertools.combinations(range(len(SETTINGS)), 2):
        assert len({(row[one], row[other]) for row in ARRAY}) == 4


@pytest.mark.parametrize("case", range(len(ARRAY)))
def test_values_states_and_gradients_equal_the_definition(taylor, case):
    yes = dict(zip(SETTINGS, ARRAY[case], strict=True))
    T, D, Dv = SIZES[case]
    e = Example(
        H=2 if T < 4 else 1,
        T=T,
        S=None if yes["causal"] else T + 2,
        D=D,
        Dv=Dv,
        causal=yes["causal"],
        normalize=yes["normalize"],
        masked=yes["masked"],
        past=6 if yes["past"] else 0,
        scale=0.6 if yes["scale"] else 1.0,
        dtype=torch.float16 if yes["half"] else torch.float32,
        strided=yes["strided"],
    )
    compare(taylor, e, in_torch)


def test_sixteen_numbers_of_a_key(taylor):
    compare(taylor, Example(H=1, T=6, D=16, Dv=5, scale=0.25))


def test_tiles_as_on_a_gpu(taylor):
    """The block sizes of float16 and a second chunk: 257 tokens, five tiles."""
    e = Example(H=1, T=257, D=2, Dv=3, dtype=torch.float16)
    with small_and_poisoned(taylor, small=False):
        out = taylor.linear_attention(*e.tensors()[:3])
    close(out, wanted(e)[0], None, 2e-3, e)


def test_tiles_of_gradients_as_on_a_gpu(taylor):
    compare(taylor, Example(H=1, T=33, D=2, Dv=17), small=False)


def test_no_tokens(taylor):
    leaves = [x.requires_grad_() for x in Example(T=0).tensors()[:3]]
    S = draw(1, 2, 6, 3, seed=1).requires_grad_()
    start = LinearState(S, draw(1, 2, 6, seed=2), torch.tensor([4]))
    with small_and_poisoned(taylor):
        out, state = taylor.linear_attention(*leaves, initial_state=start, return_state=True)
        grad = torch.autograd.grad(state.S.sum() + out.sum(), S)[0]
    assert out.shape == (1, 2, 0, 3)
    assert torch.equal(state.S, S) and torch.equal(state.z, start.z) and state.t == 4
    assert torch.equal(grad, torch.ones_like(S))


@pytest.mark.parametrize("cut", [16, 21])
def test_a_pass_goes_on_from_a_state(taylor, cut):
    q, k, v = Example(H=1, T=37).tensors()[:3]
    with small_and_poisoned(taylor):
        whole, end = taylor.linear_attention(q, k, v, return_state=True)
        first, state = taylor.linear_attention(
            *(x[:, :, :cut] for x in (q, k, v)), return_state=True
        )
        rest, last = taylor.linear_attention(
            *(x[:, :, cut:] for x in (q, k, v)), initial_state=state, return_state=True
        )
    torch.testing.assert_close(torch.cat([first, rest], 2), whole, rtol=2e-6, atol=2e-6)
    for a, b in zip(last, end, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-5)


def test_states_are_those_of_torch(taylor):
    """A pass in torch, a pass by kernels, steps in torch: one sequence."""
    q, k, v = Example(T=12, D=3).tensors()[:3]
    whole = in_torch(q, k, v)
    parts = [slice(0, 4), slice(4, 10)]
    outs, state = [], None
    for impl, part in zip(("torch", "triton"), parts, strict=True):
        out, state = in_torch(
            *(x[:, :, part] for x in (q, k, v)), initial_state=state, return_state=True, impl=impl
        )
        outs.append(out)
    for t in (10, 11):
        o, state = linear_attention_step(
            q[:, :, t], k[:, :, t], v[:, :, t], state, feature_map="taylor"
        )
        outs.append(o.unsqueeze(2))
    torch.testing.assert_close(torch.cat(outs, 2), whole, rtol=1e-5, atol=1e-5)


def test_unpacked_features_give_the_same_but_have_no_state(taylor):
    q, k, v = Example(T=5).tensors()[:3]
    full = get_feature_map("taylor", packed=False)
    out = linear_attention(q, k, v, causal=True, feature_map=full, impl="triton")
    assert torch.equal(out, in_torch(q, k, v, impl="triton"))
    with pytest.raises(ValueError, match="packed=True"):
        in_torch(q, k, v, feature_map=full, return_state=True, impl="triton")


def test_the_future_changes_nothing(taylor):
    q, k, v = Example(H=1, T=35, Dv=2).tensors()[:3]
    with small_and_poisoned(taylor):
        before = taylor.linear_attention(q, k, v)
        for t in (5, 32):
            changed = [x.clone() for x in (q, k, v)]
            for x in changed:
                x[:, :, t:] *= -3e3
            after = taylor.linear_attention(*changed)
            assert torch.equal(after[:, :, :t], before[:, :, :t]), t


def test_padding_with_nan_changes_nothing(taylor):
    q, k, v = Example(H=1, T=11).tensors()[:3]
    mask = torch.ones(1, 19, dtype=torch.bool)
    mask[:, :3] = mask[:, 14:] = False
    leaves = [torch.nn.functional.pad(x, (0, 0, 3, 5), value=0.7) for x in (q, k, v)]
    for x in leaves[1:]:
        x[:, :, ~mask[0]] = torch.nan
    plain = [x.requires_grad_() for x in (q, k, v)]
    leaves = [x.requires_grad_() for x in leaves]
    with small_and_poisoned(taylor):
        out, state = taylor.linear_attention(*leaves, key_mask=mask, return_state=True)
        short, end = taylor.linear_attention(*plain, return_state=True)
        grads = torch.autograd.grad(out[:, :, 3:14].square().sum(), leaves)
        wants = torch.autograd.grad(short.square().sum(), plain)
    torch.testing.assert_close(out[:, :, 3:14], short, rtol=1e-5, atol=1e-5)
    for a, b in zip(state, end, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    for g, w in zip(grads, wants, strict=True):
        torch.testing.assert_close(g[:, :, 3:14], w, rtol=1e-4, atol=1e-4)
    for g in grads[1:]:
        assert not g[:, :, ~mask[0]].any()


def test_half_inputs_keep_float32_sums(taylor):
    """Features of 300·300 and scores whose square no float16 holds; the output is an average."""
    q, k, v = (
        x.half()
        for x in (
            draw(1, 1, 20, 2, seed=1),
            draw(1, 1, 20, 2, seed=2) * 250,
            draw(1, 1, 20, 3, seed=3),
        )
    )
    with small_and_poisoned(taylor):
        out, state = taylor.linear_attention(q, k, v, return_state=True)
    plain, same = in_torch(q.double(), k.double(), v.double(), return_state=True)
    torch.testing.assert_close(out.double(), plain, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(state.S.double(), same.S, rtol=1e-5, atol=1e-2)
    assert state.z.max() > 65504


@pytest.mark.parametrize("normalize", [True, False])
def test_launches(normalize):
    """Two forward and three backward, and not one torch operation that reads or writes data."""
    q, k, v = (x.requires_grad_() for x in Example(T=3).tensors()[:3])
    mask = torch.tensor([[True, False, True]])
    with only_noted() as (launches, touched):
        out = in_torch(q, k, v, key_mask=mask, scale=0.5, normalize=normalize, impl="triton")
    assert (names(launches), touched) == (["taylor_sums", "taylor_outputs"], [])
    with only_noted() as (launches, touched):
        torch.autograd.grad(out, (q, k, v), out.detach())
    assert names(launches) == ["taylor_deltas"] * normalize + ["taylor_sums", "taylor_gradients"]
    assert touched == []


def test_the_hybrid_by_kernels_is_the_hybrid_in_torch():
    config = TransformerConfig(vocab_size=5, E=6, H=1, L=1)
    torch.manual_seed(0)
    mixers = [
        HybridMixer(config, window=64, key_width=3, impl=impl) for impl in ("torch", "triton")
    ]
    mixers[1].load_state_dict(mixers[0].state_dict())
    x = draw(1, 70, 6, seed=1)
    results = []
    for mixer in mixers:
        leaf = x.clone().requires_grad_()
        out = mixer(leaf)
        weights = [leaf, *mixer.parameters()]
        results.append([out, *torch.autograd.grad(out.square().sum(), weights)])
    # The gradient at the key's bias is zero by symmetry, so each is measured by the largest.
    size = max(x.detach().abs().max().item() for x in results[0])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6 * size)
