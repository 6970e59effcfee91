"""Softmax attention: the oracle over the whole grid of options, PyTorch's own, and properties.

A test that takes ``m`` asks the module ``course.attention``; ``tests/mutants/attention.py`` puts
wrong attentions in its place, which one of these tests at least must refuse.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from course import attention
from course.attention import MultiHeadAttention, attention_weights, causal_mask, softmax_attention
from course.measure import peak_memories
from tests import drawing, oracles
from tests.drawing import B, D, Dv, H, S, T, close_each, some

E = 12
IMPLS = ("reference", "torch")
impls = pytest.mark.parametrize("impl", IMPLS)
few = settings(max_examples=30)
# Two of std 1.5 make scores with a std of about 2.
draw = functools.partial(drawing.draw, std=1.5)


def qkv(T: int = T, S: int = S, B: int = B, H: int = H, **options: Any) -> tuple[Tensor, ...]:
    return drawing.qkv(T, S, B=B, H=H, std=1.5, **options)


@pytest.fixture
def m() -> Any:
    return attention


def gradient(leaf: Tensor, out: Tensor) -> Tensor:
    """The gradient of ``leaf``; none at all is as good as zeros where nothing was looked at."""
    if leaf.grad is None and (out.numel() == 0 or bool((out == 0).all())):
        return torch.zeros_like(leaf)
    return leaf.grad


def agrees(m: Any, q: Tensor, k: Tensor, v: Tensor, *, atol: float = 1e-12, **options: Any) -> None:
    """Output, gradients and weights equal the oracle's, in both implementations."""
    bias = options.get("bias")
    dout = draw(*q.shape[:3], v.shape[3], seed=9)
    wanted = oracles.attention(q, k, v, dout=dout, **options)
    for impl in IMPLS:
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        if bias is not None:
            options["bias"] = bias.clone().requires_grad_()
        out = m.softmax_attention(*leaves, impl=impl, **options)
        assert out.dtype == q.dtype, out.dtype
        close_each(out, wanted.out, f"{impl} output", atol)
        out.backward(dout)
        for leaf, name in zip(leaves, ("dq", "dk", "dv"), strict=True):
            # A gradient is a sum of differences times an input, and as exact as that allows.
            size = max([1.0, *(x.abs().max().item() for x in (q, k) if x.numel())])
            close_each(gradient(leaf, out), getattr(wanted, name), f"{impl} {name}", atol * size)
        if bias is not None:
            expected = torch.as_tensor(wanted.dbias).sum_to_size(bias.shape)
            close_each(gradient(options["bias"], out), expected, f"{impl} dbias", atol)
    close_each(m.attention_weights(q, k, **options), wanted.weights, "weights", atol)


# What the functions must do -------------------------------------------------------------------


def test_plain(m: Any) -> None:
    agrees(m, *qkv())
    agrees(m, *qkv(T=5, S=5))


def test_scale_given(m: Any) -> None:
    agrees(m, *qkv(), scale=0.3)
    agrees(m, *qkv(T=5, S=5), scale=0.3)
    agrees(m, *qkv(), scale=0.0)
    agrees(m, *qkv(T=5, S=5), scale=0.0)
    agrees(m, *qkv(), scale=-1.0)


def test_causal(m: Any) -> None:
    agrees(m, *qkv(T=5, S=5), causal=True)
    agrees(m, *qkv(T=1, S=1), causal=True)


def test_causal_last_with_last(m: Any) -> None:
    agrees(m, *qkv(T=3, S=7), causal=True)
    agrees(m, *qkv(T=1, S=7), causal=True)
    agrees(m, *qkv(T=7, S=3), causal=True)


def test_window(m: Any) -> None:
    for sizes in ((5, 5), (3, 6), (6, 3)):
        for w in (1, 2, 50):
            agrees(m, *qkv(*sizes), causal=True, window=w)
            agrees(m, *qkv(*sizes), window=w)


def test_mask_of_every_shape(m: Any) -> None:
    shapes = ([], [S], [T, 1], [T, S], [H, 1, S], [B, 1, 1, S], [B, 1, T, S], [1, H, T, S])
    for shape in (*shapes, [B, H, 1, 1], [B, H, T, S]):
        agrees(m, *qkv(), mask=some(*shape))
    agrees(m, *qkv(), mask=some(B, 1, T, S), causal=True, window=3)
    agrees(m, *qkv(T=5, S=5), mask=some(B, H, 5, 5))


def test_padding_is_not_looked_at(m: Any) -> None:
    """A key mask is the mask ``[B,1,1,S]``; a sequence of padding alone gives zeros."""
    real = some(B, S)
    real[1] = False
    shaped = real[:, None, None, :]
    q, k, v = qkv()
    for options in ({}, {"causal": True}, {"mask": some(B, H, T, S)}, {"window": 3}):
        mask = options.get("mask", torch.tensor(True)) & shaped
        wanted = oracles.attention(q, k, v, **{**options, "mask": mask})
        for impl in IMPLS:
            out = m.softmax_attention(q, k, v, key_mask=real, impl=impl, **options)
            close_each(out, wanted.out, f"{impl} {list(options)}")
        weights = m.attention_weights(q, k, key_mask=real, **options)
        close_each(weights, wanted.weights, str(list(options)))


def test_bias_of_every_shape(m: Any) -> None:
    for shape in ([], [S], [T, S], [H, 1, 1], [B, 1, 1, S], [B, H, T, S]):
        agrees(m, *qkv(), bias=draw(*shape, seed=5))
    agrees(m, *qkv(T=5, S=5), bias=draw(5, 5, seed=5), causal=True)
    for dtype, other in ((torch.float32, torch.float64), (torch.float64, torch.float16)):
        q, k, v = qkv(dtype=dtype)
        bias = draw(T, S, seed=5, dtype=other)
        wanted = oracles.attention(q, k, v, bias=bias).out
        for impl in IMPLS:
            out = m.softmax_attention(q, k, v, bias=bias, impl=impl)
            assert out.dtype == dtype
            close_each(out, wanted, f"{impl}: bias of {other}", 10 * torch.finfo(dtype).eps)


def test_bias_of_minus_infinity_hides(m: Any) -> None:
    bias = draw(B, 1, T, S, seed=5).masked_fill(~some(B, 1, T, S), -torch.inf)
    bias[1, 0, 2] = -torch.inf
    agrees(m, *qkv(), bias=bias)
    agrees(m, *qkv(), bias=bias, mask=some(H, T, S, seed=6))


def test_a_bias_of_float64_keeps_its_meaning_where_scores_are_float32(m: Any) -> None:
    """What float32 cannot hold is the largest number there is; only −∞ itself hides."""
    q, k, v = qkv(dtype=torch.float32)
    bias = draw(T, S, seed=5)
    bias[1, 2], bias[2] = 1e300, -1e300
    bias[3, :3], bias[4] = -torch.inf, -torch.inf
    wanted = oracles.attention(q, k, v, bias=bias)
    for impl in IMPLS:
        out = m.softmax_attention(q, k, v, bias=bias, impl=impl)
        close_each(out, wanted.out, impl, 1e-5)
    close_each(m.attention_weights(q, k, bias=bias), wanted.weights, "weights", 1e-5)


def test_empty_row_gives_zero_and_zero_gradient(m: Any) -> None:
    mask = some(B, 1, T, S)
    mask[0, 0, 1] = mask[1, 0, 4] = False
    empty = ~mask.any(-1).expand(B, H, T)
    q, k, v = qkv()
    agrees(m, q, k, v, mask=mask)
    for impl in IMPLS:
        for options in ({"mask": mask}, {"bias": torch.zeros(()).where(mask, -torch.inf)}):
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            # Anomaly mode finds a NaN in the middle of the backward pass too.
            with (
                warnings.catch_warnings(action="ignore"),
                torch.autograd.set_detect_anomaly(True, check_nan=True),
            ):
                out = m.softmax_attention(*leaves, impl=impl, **options)
                out.sum().backward()
            assert out[empty].abs().max() == 0, f"{impl}: an empty row's output"
            assert leaves[0].grad[empty].abs().max() == 0, f"{impl}: an empty row's gradient"
            assert all(x.grad.isfinite().all() for x in leaves), f"{impl}: a gradient"
    assert m.attention_weights(q, k, mask=mask)[empty].abs().max() == 0


def test_nan_hidden_from_all_does_not_leak(m: Any) -> None:
    q, k, v = qkv()
    hidden_key, blind_query = 2, 3
    mask = torch.ones(T, S, dtype=torch.bool)
    mask[:, hidden_key] = mask[blind_query] = False
    bias = torch.zeros(T, S, dtype=torch.float64).masked_fill(~mask, -torch.inf)
    dout = draw(B, H, T, Dv, seed=9)
    clean = oracles.attention(q, k, v, mask=mask, dout=dout)
    for poison in (torch.nan, torch.inf, -torch.inf):
        for options in ({"mask": mask}, {"bias": bias}):
            for impl in IMPLS:
                leaves = [x.clone() for x in (q, k, v)]
                leaves[0][:, :, blind_query] = poison
                leaves[1][:, :, hidden_key] = leaves[2][:, :, hidden_key] = poison
                for leaf in leaves:
                    leaf.requires_grad_()
                out = m.softmax_attention(*leaves, impl=impl, **options)
                close_each(out, clean.out, f"{impl} output beside {poison}")
                out.backward(dout)
                for leaf, name in zip(leaves, ("dq", "dk", "dv"), strict=True):
                    close_each(leaf.grad, getattr(clean, name), f"{impl} {name} beside {poison}")
            poisoned = m.attention_weights(leaves[0], leaves[1], **options)
            close_each(poisoned, clean.weights, f"weights beside {poison}")
    # Without any query, and with causal T > S, whole inputs are out of sight.
    nothing = m.softmax_attention(torch.full_like(q, torch.nan), k[:, :, :0], v[:, :, :0])
    assert nothing.shape == (B, H, T, Dv) and nothing.abs().max() == 0


def test_scores_of_any_size(m: Any) -> None:
    q, k, v = qkv()
    mask = some(B, H, T, S) | (torch.arange(S) == 1)
    for size in (1e5, -1e5, 1e12, -1e12):
        # Key 0 is hidden; all others score ±size and a little.
        bias = size + draw(T, S, seed=5)
        bias[:, 0], mask[..., 0] = 0.0, False
        for impl in IMPLS:
            out = m.softmax_attention(q, k, v, mask=mask, bias=bias, impl=impl)
            wanted = oracles.attention(q, k, v, mask=mask, bias=bias).out
            close_each(out, wanted, f"{impl}, scores of {size}", 1e-10 * max(1.0, abs(size) / 1e6))
    steep = 1e5 * torch.sign(k)
    agrees(m, torch.sign(q), steep, v, scale=1.0)
    agrees(m, torch.sign(q), steep, v, scale=1.0, mask=mask)


def test_half_precision(m: Any) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        eps = torch.finfo(dtype).eps
        for options in ({}, {"causal": True}, {"mask": some(B, 1, 5, 17)}):
            q, k, v = qkv(T=5, S=17, dtype=dtype)
            wanted = oracles.attention(q, k, v, **options)
            visible = torch.as_tensor(wanted.weights) > 0
            scores = (q @ k.transpose(-2, -1)) * D**-0.5
            plainly = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v
            truth = torch.as_tensor(wanted.out)
            size = truth.abs().amax(-1)
            usual = (plainly.double() - truth).abs().amax(-1)
            for impl in IMPLS:
                out = m.softmax_attention(q, k, v, impl=impl, **options)
                assert out.dtype == dtype, out.dtype
                error = (out.double() - truth).abs().amax(-1)
                assert bool((error <= 2 * usual + eps * size).all()), (impl, dtype)
                if impl == "reference":  # computed in float32, rounded once
                    assert bool((error <= 0.51 * eps * size + 1e-5).all()), dtype
            weights = m.attention_weights(q, k, **options)
            assert weights.dtype == dtype, weights.dtype
            error = (weights.double() - torch.as_tensor(wanted.weights)).abs()
            assert bool((error <= 0.51 * eps * torch.as_tensor(wanted.weights) + 1e-6).all())
        # A bias that float16 cannot hold.
        q, k, v = qkv(dtype=dtype)
        far = torch.zeros(T, S).index_fill(1, torch.tensor([0, 2]), -1e5) - 1e5
        for impl in IMPLS:
            out = m.softmax_attention(q, k, v, bias=far, impl=impl)
            near = m.softmax_attention(q, k, v, mask=far == -1e5, impl=impl)
            assert bool(((out - near).abs() <= 0.1).all()), (impl, dtype)


def test_no_queries_or_no_keys(m: Any) -> None:
    for sizes in ((0, S), (T, 0), (0, 0), (0, 0, 0), (T, S, 0), (T, S, B, 0)):
        for options in ({}, {"causal": True}, {"window": 2}, {"mask": torch.tensor(True)}):
            for impl in IMPLS:
                leaves = [x.requires_grad_() for x in qkv(*sizes)]
                out = m.softmax_attention(*leaves, impl=impl, **options)
                assert out.shape == (*leaves[0].shape[:3], Dv), out.shape
                assert out.numel() == 0 or sizes[:2] != (T, 0) or out.abs().max() == 0
                out.sum().backward()
                assert all(x.grad is None or not x.grad.isnan().any() for x in leaves)
            weights = m.attention_weights(*leaves[:2], **options)
            assert weights.shape == (*leaves[0].shape[:3], leaves[1].shape[2])


def test_any_strides(m: Any) -> None:
    q, k, v = qkv()
    mask, bias = some(B, H, T, S), draw(B, H, T, S, seed=5)
    wanted = oracles.attention(q, k, v, mask=mask, bias=bias, dout=torch.ones(B, H, T, Dv))
    for impl in IMPLS:
        leaves = [oracles.cut_from_nan(x).requires_grad_() for x in (q, k, v)]
        strided = mask.transpose(0, 3).contiguous().transpose(0, 3)
        out = m.softmax_attention(*leaves, mask=strided, bias=oracles.cut_from_nan(bias), impl=impl)
        close_each(out, wanted.out, f"{impl} output")
        out.sum().backward()  # a gradient whose strides are all 0
        for leaf, name in zip(leaves, ("dq", "dk", "dv"), strict=True):
            close_each(leaf.grad, getattr(wanted, name), f"{impl} {name}")
        # Axes of size 1 may have any stride.
        odd = [x[:1, :1].as_strided((1, 1, *x.shape[2:]), (1, 3, x.shape[3], 1)) for x in (q, k, v)]
        out = m.softmax_attention(*odd, impl=impl)
        close_each(out, oracles.attention(*odd).out, f"{impl}, odd strides")


def test_arguments_are_not_changed(m: Any) -> None:
    q, k, v = qkv()
    given = {"mask": some(B, 1, T, S), "bias": draw(T, S, seed=5), "q": q, "k": k, "v": v}
    given["bias"][0] = -torch.inf
    k[0, 0, 0] = torch.nan
    kept = {name: x.clone() for name, x in given.items()}
    for impl in IMPLS:
        m.softmax_attention(**given, impl=impl)
        m.attention_weights(q, k, mask=given["mask"], bias=given["bias"])
        for name, x in given.items():
            assert torch.equal(x.nan_to_num(7.0), kept[name].nan_to_num(7.0)), name


def test_the_future_does_not_matter(m: Any) -> None:
    q, k, v = qkv(T=6, S=8)
    for impl in IMPLS:
        for options in ({"causal": True}, {"causal": True, "window": 3}):
            before = m.softmax_attention(q, k, v, impl=impl, **options)
            for t in range(1, 6):
                changed = [x.clone() for x in (q, k, v)]
                changed[0][:, :, t:] += 3.0
                changed[1][:, :, t + 2 :] -= 5.0
                changed[2][:, :, t + 2 :] *= 1e3
                after = m.softmax_attention(*changed, impl=impl, **options)
                assert torch.equal(before[:, :, :t], after[:, :, :t]), (impl, t)
                assert not torch.equal(before[:, :, t:], after[:, :, t:]), (impl, t)


def test_the_formula_alone_has_scores_of_scale_1() -> None:
    q, k, v = qkv()
    weights, out = attention.formula(q, k, v, torch.tensor(True))
    wanted = oracles.attention(q, k, v, scale=1.0)
    close_each(weights, wanted.weights, "weights")
    close_each(out, wanted.out, "output")


def test_the_causal_mask(m: Any) -> None:
    for t, s in ((1, 1), (4, 4), (2, 5), (5, 2), (0, 3), (3, 0)):
        for w in (None, 1, 3):
            mask = m.causal_mask(t, s, window=w)
            wanted = [
                [oracles.may_look(i, j, t, s, causal=True, window=w) for j in range(s)]
                for i in range(t)
            ]
            assert mask.dtype == torch.bool and mask.shape == (t, s)
            assert mask.tolist() == wanted, (t, s, w)
    assert torch.equal(m.causal_mask(4, window=2), m.causal_mask(4, 4, 2))
    assert m.causal_mask(2, 3, device=torch.device("meta")).device.type == "meta"


def test_other_devices(m: Any) -> None:
    on_meta = [x.to("meta") for x in qkv()]
    for impl in IMPLS:
        for options in ({"causal": True}, {"window": 2}):
            assert m.softmax_attention(*on_meta, impl=impl, **options).device.type == "meta"


# Several heads --------------------------------------------------------------------------------


def layer(m: Any, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    made = m.MultiHeadAttention(E, H, **options).double()
    for parameter in made.parameters():  # the default start has scores near zero
        nn.init.normal_(parameter, std=0.5)
    return made


def torch_layer(bias: bool, dtype: torch.dtype = torch.float64) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    made = nn.MultiheadAttention(E, H, bias=bias, batch_first=True, dtype=dtype)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made


def test_weights_from_and_to_torch(m: Any) -> None:
    x, context = draw(B, T, E, seed=1), draw(B, S, E, seed=2)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    for bias in (True, False):
        theirs = torch_layer(bias)
        ours = m.MultiHeadAttention.from_torch(theirs)
        back = ours.to_torch()
        assert back.in_proj_weight.dtype == torch.float64 and back.batch_first
        assert not any(p.grad_fn for p in (*ours.parameters(), *back.parameters()))
        for impl in IMPLS:
            for other in (theirs, back):
                plain = other(x, x, x, need_weights=False)[0]
                close_each(ours(x, impl=impl), plain, "self-attention", 1e-13)
                masked = other(x, x, x, attn_mask=future, need_weights=False)[0]
                close_each(ours(x, causal=True, impl=impl), masked, "causal", 1e-13)
                crossed = other(x, context, context, need_weights=False)[0]
                close_each(ours(x, context, impl=impl), crossed, "cross-attention", 1e-13)
        with torch.no_grad():  # neither is a view of the other
            theirs.in_proj_weight.zero_()
        assert all(p.abs().max() > 0 for p in (*ours.parameters(), *back.parameters()))
        single = m.MultiHeadAttention.from_torch(torch_layer(bias, torch.float32))
        twin = torch_layer(bias, torch.float32)
        gap = single(x.float()) - twin(x.float(), x.float(), x.float(), need_weights=False)[0]
        assert gap.abs().max() <= 5e-6, gap.abs().max()


def test_frozen_stays_frozen_and_what_cannot_be_kept_is_said() -> None:
    theirs = torch_layer(True).eval()
    theirs.in_proj_weight.requires_grad_(False)
    theirs.out_proj.bias.requires_grad_(False)
    ours = MultiHeadAttention.from_torch(theirs)
    frozen = {name for name, p in ours.named_parameters() if not p.requires_grad}
    assert frozen == {"W_q.weight", "W_k.weight", "W_v.weight", "W_o.bias"} and not ours.training
    back = ours.to_torch()
    assert not back.training
    flags = [{n: p.requires_grad for n, p in x.named_parameters()} for x in (theirs, back)]
    assert flags[0] == flags[1]
    ours.W_q.weight.requires_grad_(True)
    with pytest.raises(ValueError, match="W_q, W_k and W_v all frozen or all free"):
        ours.to_torch()
    with pytest.raises(ValueError, match=r"source: expected dropout = 0.* got 0\.25"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(E, H, dropout=0.25))
    with pytest.raises(ValueError, match="source: expected nn.MultiheadAttention, got Linear"):
        MultiHeadAttention.from_torch(nn.Linear(2, 2))


def test_a_layer_of_its_own_widths(m: Any) -> None:
    x = draw(B, T, E, seed=1)
    for bias in (True, False):
        ours = layer(m, D=D, Dv=5, bias=bias)
        shapes = {name: tuple(p.shape) for name, p in ours.named_parameters() if "weight" in name}
        assert shapes == {
            "W_q.weight": (H * D, E),
            "W_k.weight": (H * D, E),
            "W_v.weight": (H * 5, E),
            "W_o.weight": (E, H * 5),
        }
        assert len(list(ours.parameters())) == (8 if bias else 4)
        wanted = by_hand(ours, x)
        for form in ("concat", "sum"):
            for impl in IMPLS:
                close_each(ours(x, form=form, impl=impl), wanted, f"{form}, {impl}")
        # Two forms, two computations: only one of them goes through the layer W_o.
        calls: list[int] = []
        hook = ours.W_o.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        ours(x, form="sum")
        assert not calls
        ours(x, form="concat")
        assert len(calls) == 1
        hook.remove()
    assert m.MultiHeadAttention(E, H).D == m.MultiHeadAttention(E, H).Dv == E // H
    assert m.MultiHeadAttention(E, H, D=5).Dv == 5
    assert m.MultiHeadAttention(E, 5, D=2).D == 2
    assert len(list(m.MultiHeadAttention(E, H).parameters())) == 8, "with biases"


def of_head(option: Any, h: int) -> Any:
    """The part of a mask or bias that head ``h`` gets; other options are the same for all."""
    many = isinstance(option, Tensor) and option.ndim >= 3 and option.shape[-3] > 1
    return option[..., h : h + 1, :, :] if many else option


def by_hand(ours: Any, x: Tensor, context: Tensor | None = None, **options: Any) -> Tensor:
    """The layer, one head at a time, each with its rows of W_q, W_k, W_v and columns of W_o."""
    context = x if context is None else context
    total = torch.zeros(*x.shape[:2], ours.E, dtype=torch.float64)
    for h in range(ours.H):

        def part(linear: nn.Linear, stream: Tensor, width: int, h: int = h) -> Tensor:
            rows = slice(h * width, (h + 1) * width)
            made = stream @ linear.weight[rows].T
            return (made if linear.bias is None else made + linear.bias[rows]).unsqueeze(1)

        head = oracles.attention(
            part(ours.W_q, x, ours.D),
            part(ours.W_k, context, ours.D),
            part(ours.W_v, context, ours.Dv),
            **{name: of_head(option, h) for name, option in options.items()},
        ).out[:, 0]
        columns = slice(h * ours.Dv, (h + 1) * ours.Dv)
        total += torch.as_tensor(head) @ ours.W_o.weight[:, columns].T.detach()
    return total if ours.W_o.bias is None else total + ours.W_o.bias.detach()


def test_the_layer_passes_its_options_on(m: Any) -> None:
    ours, x, context = layer(m, D=D, Dv=5), draw(B, T, E, seed=1), draw(B, S, E, seed=2)
    for options in (
        {"mask": some(B, H, T, S)},
        {"causal": True},
        {"window": 2},
        {"bias": draw(H, 1, S, seed=5)},
        {"scale": 2.0},
    ):
        for impl in IMPLS:
            got = ours(x, context, impl=impl, **options)
            close_each(got, by_hand(ours, x, context, **options), str(list(options)))
    real = some(B, S)
    got = ours(x, context, key_mask=real)
    close_each(got, by_hand(ours, x, context, mask=real[:, None, None, :]), "key_mask")


def test_decoding_is_the_full_pass(m: Any) -> None:
    ours, x = layer(m, D=D, Dv=5), draw(B, 7, E, seed=1)
    full = torch.as_tensor(by_hand(ours, x, causal=True))
    for impl in IMPLS:
        for portions in ((7,), (1,) * 7, (4, 3), (3, 0, 2, 2), (6, 1)):
            cache, outputs = None, []
            for part in x.split(portions, 1):
                old = cache
                kept = None if old is None else (old.k.clone(), old.v.clone())
                out, cache = ours.decode(part, cache, impl=impl)
                outputs.append(out)
                if old is not None:
                    assert torch.equal(old.k, kept[0]) and torch.equal(old.v, kept[1])
            close_each(torch.cat(outputs, 1), full, f"{impl} in {portions}")
            _, k, v = ours.heads(x)
            close_each(cache.k, k, "cached keys")
            close_each(cache.v, v, "cached values")


def test_decoding_goes_on_under_autocast_from_a_wider_cache() -> None:
    """The new keys are made in bfloat16, and the past keeps its digits: queries must follow."""
    ours, x = layer(attention).float(), draw(B, 5, E, seed=1).float()
    _, cache = ours.decode(x[:, :3])
    with torch.autocast("cpu", torch.bfloat16):
        out, cache = ours.decode(x[:, 3:], cache)
    assert cache.k.dtype == torch.float32 and out.shape == (B, 2, E)
    full = ours(x, causal=True)[:, 3:]
    assert (out - full).abs().max() <= 0.05 * full.abs().max()


# What the functions must refuse ---------------------------------------------------------------

ERRORS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {}


def refuses(name: str, call: Callable[[Any], Any], *words: str) -> None:
    ERRORS[name] = (call, words)


def attend(m: Any, q: Any = None, k: Any = None, v: Any = None, **options: Any) -> Any:
    given = [a if b is None else b for a, b in zip(qkv(), (q, k, v), strict=True)]
    for impl in IMPLS:
        try:
            m.softmax_attention(*given, **{"impl": impl, **options})
        except ValueError as error:
            last = error
        else:
            raise AssertionError(f"{impl} accepts it")
    raise last


def weigh(m: Any, q: Any = None, k: Any = None, **options: Any) -> Any:
    given = [a if b is None else b for a, b in zip(qkv()[:2], (q, k), strict=True)]
    return m.attention_weights(*given, **options)


for _name, _call in (("attention", attend), ("weights", weigh)):

    def _with(call: Callable[..., Any] = _call, **options: Any) -> Callable[[Any], Any]:
        return lambda m: call(m, **options)

    _r = functools.partial
    refuses(
        f"{_name}: q of rank 3", _with(q=draw(H, T, D)), "q:", "4 axes [B H T D]", "3", "[3, 5, 4]"
    )
    refuses(f"{_name}: k of rank 3", _with(k=draw(H, S, D)), "k:", "4 axes [B H S D]", "[3, 7, 4]")
    refuses(
        f"{_name}: D of 0", _with(q=draw(B, H, T, 0), k=draw(B, H, S, 0)), "D:", "at least 1", "0"
    )
    for _scale in ("big", True, torch.nan, torch.inf, torch.tensor(0.5)):
        refuses(f"{_name}: scale {_scale}", _with(scale=_scale), "scale:", "a finite number")
    for _causal in (None, "no", 1):
        refuses(f"{_name}: causal {_causal}", _with(causal=_causal), "causal:", "True or False")
    refuses(f"{_name}: q a list", _with(q=[1.0]), "q:", "tensor", "list")
    refuses(f"{_name}: q whole numbers", _with(q=draw(B, H, T, D).long()), "q:", "int64", "float")
    refuses(f"{_name}: k float32", _with(k=draw(B, H, S, D).float()), "k", "float32", "float64")
    refuses(f"{_name}: batches", _with(k=draw(5, H, S, D)), "q and k", "axis B", "2", "5")
    refuses(f"{_name}: heads", _with(k=draw(B, 1, S, D)), "q and k", "axis H", "3", "1")
    refuses(f"{_name}: widths", _with(k=draw(B, H, S, 9)), "q and k", "axis D", "4", "9")
    refuses(
        f"{_name}: mask shape",
        _with(mask=some(T, S + 1)),
        *("mask:", "[B H T S] = [2, 3, 5, 7]", "[5, 8]"),
    )
    refuses(f"{_name}: mask too large", _with(mask=some(4, B, H, T, S)), "mask:", "[4, 2, 3, 5, 7]")
    refuses(
        f"{_name}: mask of numbers",
        _with(mask=torch.ones(T, S)),
        *("mask:", "boolean tensor (True = may look)", "float32"),
    )
    refuses(f"{_name}: mask a list", _with(mask=[[True]]), "mask:", "tensor", "list")
    refuses(
        f"{_name}: bias shape",
        _with(bias=draw(H, T, S + 1)),
        *("bias:", "[B H T S] = [2, 3, 5, 7]", "[3, 5, 8]"),
    )
    refuses(f"{_name}: bias boolean", _with(bias=some(T, S)), "bias:", "float", "bool")
    refuses(f"{_name}: bias a number", _with(bias=0.5), "bias:", "tensor", "float")
    refuses(f"{_name}: key_mask rank", _with(key_mask=some(S)), "key_mask:", "2 axes [B S]", "[7]")
    refuses(f"{_name}: key_mask B", _with(key_mask=some(4, S)), "k and key_mask", "B", "2", "4")
    refuses(f"{_name}: key_mask S", _with(key_mask=some(B, 9)), "k and key_mask", "S", "7", "9")
    refuses(f"{_name}: key_mask of numbers", _with(key_mask=draw(B, S)), "key_mask:", "boolean")
    for _w in (0, -1, 1.5, True, "3"):
        refuses(
            f"{_name}: window {_w!r}", _with(window=_w), "window:", "whole number", "1", repr(_w)
        )

refuses(
    "v of rank 3", lambda m: attend(m, v=draw(H, S, Dv)), "v:", "4 axes [B H S Dv]", "[3, 7, 6]"
)
refuses("v batches", lambda m: attend(m, v=draw(5, H, S, Dv)), "k and v", "axis B", "2", "5")
refuses("v heads", lambda m: attend(m, v=draw(B, 1, S, Dv)), "k and v", "axis H", "3", "1")
refuses("v length", lambda m: attend(m, v=draw(B, H, 9, Dv)), "k and v", "axis S", "7", "9")
refuses("v dtype", lambda m: attend(m, v=draw(B, H, S, Dv).half()), "v", "float16", "float64")
refuses("impl", lambda m: attend(m, impl="fast"), "impl:", "torch, reference", "'fast'")
refuses("impl None", lambda m: attend(m, impl=None), "impl:", "torch, reference", "None")
refuses("mask T", lambda m: m.causal_mask(-1), "T:", "whole number", "0", "-1")
refuses("mask S", lambda m: m.causal_mask(2, 2.5), "S:", "whole number", "2.5")
refuses("mask window", lambda m: m.causal_mask(2, 2, 0), "window:", "whole number", "0")
refuses("H ∤ E", lambda m: m.MultiHeadAttention(12, 5), "H:", "divisor of E = 12", "5")
refuses("no E", lambda m: m.MultiHeadAttention(0, 1), "E:", "at least 1", "0")
refuses("no H", lambda m: m.MultiHeadAttention(12, 0), "H:", "at least 1", "0")
refuses("no D", lambda m: m.MultiHeadAttention(12, 3, D=0), "D:", "at least 1", "0")
refuses("no Dv", lambda m: m.MultiHeadAttention(12, 3, Dv=0), "Dv:", "at least 1", "0")
refuses("x rank", lambda m: layer(m)(draw(T, E)), "x:", "3 axes", "B T E", "[5, 12]")
refuses("x width", lambda m: layer(m)(draw(B, T, 9)), "x", "axis E", "9", "12")
refuses("context rank", lambda m: layer(m)(draw(B, T, E), draw(E)), "context:", "3 axes", "[12]")
refuses("context width", lambda m: layer(m)(draw(B, T, E), draw(B, S, 9)), "context", "E", "9")
refuses(
    "context B", lambda m: layer(m)(draw(B, T, E), draw(4, S, E)), "x and context", "B", "2", "4"
)
refuses("o rank", lambda m: layer(m).merge(draw(H, T, 4)), "o:", "4 axes", "B H T Dv", "[3, 5, 4]")
refuses(
    "o heads",
    lambda m: layer(m).merge(draw(B, 4, T, 4), "sum"),
    "o and the layer",
    "axis H",
    "4",
    "3",
)
refuses(
    "o width", lambda m: layer(m).merge(draw(B, H, T, 5)), "o and the layer", "axis Dv", "5", "4"
)
refuses("form", lambda m: layer(m)(draw(B, T, E), form="x"), "form:", "concat, sum", "'x'")
refuses(
    "cache k",
    lambda m: layer(m).decode(draw(B, 1, E), m.KeyValueCache(draw(4, H, S, 4), draw(B, H, S, 4))),
    *("cache.k", "axis B", "4", "2"),
)
refuses(
    "cache v",
    lambda m: layer(m).decode(draw(B, 1, E), m.KeyValueCache(draw(B, H, S, 4), draw(B, H, S, 5))),
    *("cache.v", "5", "4"),
)
refuses(
    "cache rank",
    lambda m: layer(m).decode(draw(B, 1, E), m.KeyValueCache(draw(S, 4), draw(B, H, S, 4))),
    *("cache.k", "4 axes", "[7, 4]"),
)
refuses("to_torch D", lambda m: layer(m, D=5, Dv=4).to_torch(), "H·D = 15", "E = 12")
refuses("to_torch both", lambda m: layer(m, D=5).to_torch(), "H·Dv = 15", "E = 12")
refuses("to_torch Dv", lambda m: layer(m, Dv=5).to_torch(), "H·Dv = 15", "E = 12")
for _option in ({"kdim": 5}, {"vdim": 5}, {"add_bias_kv": True}, {"add_zero_attn": True}):
    refuses(
        f"from_torch {_option}",
        lambda m, _option=_option: m.MultiHeadAttention.from_torch(
            nn.MultiheadAttention(E, H, **_option)
        ),
        *("source:", "kdim", "add_zero_attn"),
    )


# How it is computed ---


class Asked(TorchFunctionMode):
    """Notes the options of each call of PyTorch's fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[dict[str, Any]] = []
        self.tables: list[tuple[int, int]] = []  # queries and keys of each

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is F.scaled_dot_product_attention:
            self.calls.append(kwargs or {})
            self.tables.append((args[0].shape[-2], args[1].shape[-2]))
        return function(*args, **(kwargs or {}))


def asked(call: Callable[[], Any]) -> list[dict[str, Any]]:
    with Asked() as mode:
        call()
    return mode.calls


def test_the_fused_kernel_gets_no_mask_that_it_does_not_need() -> None:
    for T_, causal in ((5, False), (5, True), (1, True), (1, False), (3, False)):
        (call,) = asked(lambda T_=T_, c=causal: softmax_attention(*qkv(T=T_, S=5), causal=c))
        assert call.get("attn_mask") is None
    (call,) = asked(lambda: softmax_attention(*qkv(T=3, S=5), causal=True))
    assert call["attn_mask"].dtype == torch.bool
    assert not asked(lambda: softmax_attention(*qkv(), impl="reference")), "another computation"


def test_the_layer_passes_the_implementation_on() -> None:
    ours, x = layer(attention), draw(B, T, E, seed=1)
    for call in (ours, ours.decode):
        assert len(asked(lambda call=call: call(x))) == 1
        assert not asked(lambda call=call: call(x, impl="reference"))


@pytest.mark.parametrize(
    "options", [{"causal": True}, {"causal": True, "window": 64}, {"window": 9}]
)
@pytest.mark.parametrize(
    ("T_", "S_"), [(1100, 1100), (1500, 1100), (30, 1100), (1100, 30), (1100, 2)]
)
def test_blocks_of_queries_are_the_whole(T_: int, S_: int, options: dict[str, Any]) -> None:
    """Longer than a block of queries, where each block gets only the keys that it can reach."""
    inputs = qkv(T_, S_, B=1, H=2)
    mask, bias = some(T_, S_), draw(2, 1, S_, seed=5)
    for more in ({}, {"mask": mask}, {"bias": bias}, {"mask": mask[:1], "bias": bias[..., :1]}):
        results = []
        for impl in IMPLS:
            leaves = drawing.leaves(*inputs)
            out = softmax_attention(*leaves, impl=impl, **options, **more)
            grads = torch.autograd.grad(out, leaves, draw(*out.shape, seed=6))
            results.append((out, *grads))
        for a, b in zip(*results, strict=True):
            drawing.close(a, b, (options, list(more)))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("causal", [True, False])
def test_a_scale_of_0_is_the_average_of_what_is_seen(impl: str, causal: bool) -> None:
    q, k, v = (x.float() for x in qkv(S, S))
    v = v[..., : q.shape[-1]].contiguous()  # of one width, as the fused kernel wants it
    out = softmax_attention(q, k, v, causal=causal, scale=0.0, impl=impl)
    seen = torch.ones(S, S, dtype=v.dtype).tril() if causal else torch.ones(S, S, dtype=v.dtype)
    drawing.close(out, seen / seen.sum(-1, keepdim=True) @ v, impl, 1e-6)


@pytest.mark.parametrize(
    ("window", "rows"), [(9, 256), (256, 256), (300, 300), (2000, 1024), (None, 1024)]
)
@pytest.mark.parametrize("causal", [True, False])
def test_a_block_of_queries_gets_the_keys_in_its_reach(window, rows, causal) -> None:
    T_, S_ = 1100, 1300
    q, k, v = qkv(T_, S_, B=1, H=1)
    bias = None if window else torch.zeros(T_, S_, dtype=q.dtype)  # so that it needs a mask at all
    with Asked() as mode:
        softmax_attention(q, k, v, causal=causal, window=window, bias=bias)
    expected = []
    for first in range(0, T_, rows):
        last = min(first + rows, T_) - 1
        reach = window or S_ + 1
        low = max(0, first + S_ - T_ - reach + 1)
        high = last + S_ - T_ + (0 if causal else reach - 1)
        expected.append((last - first + 1, min(high, S_ - 1) - low + 1))
    assert mode.tables == expected


def test_windows_and_causal_masks_cost_what_they_show() -> None:
    """A window of 64 in 8,192 tokens must not build the table; the mask is one byte a pair."""
    n = 8192
    setup = (
        "import torch; from course.attention import causal_mask, softmax_attention\n"
        f"q, k, v = torch.randn(3, 1, 1, {n}, 16)"
    )
    calls = [
        "softmax_attention(q, k, v, causal=True, window=64)",
        "softmax_attention(q, k, v, window=64)",
        "softmax_attention(q[:, :, 1:], k, v, causal=True)",
        f"causal_mask({n})",
        f"causal_mask({n}, window=64)",
    ]
    window, both_sides, uneven, mask, near = peak_memories(calls, setup=setup)
    assert max(window, both_sides) < n * n / 4
    assert uneven < 1.5 * n * n  # blocks of queries with all their keys
    assert max(mask, near) < 1.2 * n * n


# Drawn at random ---


@st.composite
def problems(draw_: Any, least: int = 0) -> tuple[list[Tensor], dict[str, Any]]:
    """Queries, keys and values of any lengths, with any mixture of the options."""
    T, S, seed = (
        draw_(st.integers(least, 7)),
        draw_(st.integers(least, 7)),
        draw_(st.integers(0, 99)),
    )
    sizes = [(B, 1), (H, 1), (T, 1), (S, 1)]

    def shape() -> list[int]:
        return [draw_(st.sampled_from(size)) for size in sizes[draw_(st.integers(0, 4)) :]]

    options: dict[str, Any] = {}
    if draw_(st.booleans()):
        options["mask"] = torch.rand(shape(), generator=torch.manual_seed(seed)) < 0.6
    if draw_(st.booleans()):
        bias = draw(*shape(), seed=seed + 1)
        hidden = torch.rand(bias.shape, generator=torch.manual_seed(seed + 2)) < 0.2
        options["bias"] = bias.masked_fill(hidden, -torch.inf)
    options["causal"] = draw_(st.booleans())
    options["window"] = draw_(st.sampled_from([None, 1, 2, 3, 99]))
    options["scale"] = draw_(st.sampled_from([None, 0.3, 1.0]))
    inputs = [
        draw(B, H, T, D, seed=seed + 3),
        draw(B, H, S, D, seed=seed + 4),
        draw(B, H, S, Dv, seed=seed + 5),
    ]
    return inputs, options


@settings(max_examples=80)
@given(problems())
def test_agrees_with_the_oracle(problem: Any) -> None:
    """Output, weights and all gradients, to 1e-12, for both implementations."""
    inputs, options = problem
    agrees(attention, *inputs, **options)


@few
@given(problems(), st.sampled_from([1e5, -1e5]))
def test_agrees_where_scores_are_huge(problem: Any, size: float) -> None:
    (q, k, v), options = problem
    # Signs times 1e5: exact scores, some equal, some 1e5 and more apart.
    options["scale"] = 1.0
    agrees(attention, torch.sign(q), size * torch.sign(k), v, **options)


@few
@given(problems())
def test_agrees_in_buffers_of_nan_and_with_a_stride_0_gradient(problem: Any) -> None:
    inputs, options = problem
    (T, S), ones = (inputs[0].shape[2], inputs[1].shape[2]), torch.ones(())
    dout = ones.expand(B, H, T, Dv)
    wanted = oracles.attention(*inputs, dout=dout, **options)
    cut = {
        name: oracles.cut_from_nan(x) if name == "bias" else x.expand(B, H, T, S)
        for name, x in options.items()
        if isinstance(x, Tensor)
    }
    for impl in ("reference", "torch"):
        leaves = [oracles.cut_from_nan(x).requires_grad_() for x in inputs]
        out = softmax_attention(*leaves, impl=impl, **{**options, **cut})
        close_each(out, wanted.out, f"{impl} output")
        out.sum().backward()
        for leaf, name in zip(leaves, ("dq", "dk", "dv"), strict=True):
            grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            close_each(grad, getattr(wanted, name), f"{impl} {name}")


@few
@given(problems())
def test_rows_sum_to_one_or_to_nothing(problem: Any) -> None:
    (q, k, _), options = problem
    weights = attention_weights(q, k, **options)
    assert bool((weights >= 0).all())
    sums = weights.sum(-1)
    assert bool(((sums - 1).abs() <= 1e-12).logical_or(sums == 0).all())


@few
@given(problems(least=1), st.integers(0, 6), st.sampled_from(["reference", "torch"]))
def test_the_past_is_bit_equal_when_the_future_changes(problem: Any, cut: int, impl: str) -> None:
    (q, k, v), options = problem
    T, S = q.shape[2], k.shape[2]
    options["causal"] = True
    t = cut % T  # queries from t on, and the keys that only they may look at
    before = softmax_attention(q, k, v, impl=impl, **options)
    first = max(0, t + S - T)
    changed = [q.clone(), k.clone(), v.clone()]
    changed[0][:, :, t:] += 7.0
    changed[1][:, :, first:] *= -3.0
    changed[2][:, :, first:] += 1e6
    after = softmax_attention(*changed, impl=impl, **options)
    assert torch.equal(before[:, :, :t], after[:, :, :t])


@few
@given(problems(least=1), st.integers(0, 99))
def test_order_of_keys_and_queries_does_not_matter(problem: Any, seed: int) -> None:
    """Shuffled queries give shuffled rows, shuffled keys change nothing."""
    (q, k, v), options = problem
    given_ = {name: options[name] for name in ("scale",)}
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(q.shape[2], generator=generator)
    keys = torch.randperm(k.shape[2], generator=generator)
    for impl in ("reference", "torch"):
        straight = softmax_attention(q, k, v, impl=impl, **given_)
        shuffled = softmax_attention(
            q[:, :, rows], k[:, :, keys], v[:, :, keys], impl=impl, **given_
        )
        close_each(shuffled, straight[:, :, rows], impl)


@few
@given(problems(least=1))
def test_agrees_with_sdpa_where_sdpa_is_defined(problem: Any) -> None:
    """PyTorch's function with an explicit mask, on the rows that may look at something."""
    (q, k, v), options = problem
    T, S = q.shape[2], k.shape[2]
    allowed = torch.ones(B, H, T, S, dtype=torch.bool) & options.get("mask", torch.tensor(True))
    for t in range(T):
        for i in range(S):
            near = oracles.may_look(t, i, T, S, causal=options["causal"], window=options["window"])
            allowed[:, :, t, i] &= near
    bias = options.get("bias", torch.zeros((), dtype=torch.float64))
    bias = bias.expand(B, H, T, S).masked_fill(~allowed, -torch.inf)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=options["scale"])
    seen = (bias != -torch.inf).any(-1)
    ours = softmax_attention(q, k, v, **options)
    close_each(ours[seen], theirs[seen], "SDPA")


@pytest.mark.parametrize("scale", [None, 0.3])
def test_agrees_with_sdpa_causal_square(scale: float | None) -> None:
    q, k, v = draw(B, H, 5, D, seed=1), draw(B, H, 5, D, seed=2), draw(B, H, 5, Dv, seed=3)
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    close_each(softmax_attention(q, k, v, causal=True, scale=scale), theirs, "SDPA")


@impls
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"causal": True, "window": 2},
        {"window": 2},
        {"mask": torch.arange(15).reshape(3, 5) % 3 > 0},
        {"mask": torch.tensor([[True] * 5, [False] * 5, [True] * 5])},
    ],
    ids=["plain", "causal", "causal window", "window", "mask", "empty row"],
)
def test_gradcheck(impl: str, options: dict[str, Any]) -> None:
    inputs = [
        draw(1, 2, 3, D, seed=1, std=1.0).requires_grad_(),
        draw(1, 2, 5, D, seed=2, std=1.0).requires_grad_(),
        draw(1, 2, 5, Dv, seed=3, std=1.0).requires_grad_(),
        draw(2, 1, 5, seed=4, std=1.0).requires_grad_(),
    ]
    assert torch.autograd.gradcheck(
        lambda q, k, v, bias: softmax_attention(q, k, v, bias=bias, impl=impl, **options), inputs
    )


def test_gradcheck_of_the_square_kernel() -> None:
    inputs = [draw(1, 2, 4, D, seed=n, std=1.0).requires_grad_() for n in (1, 2, 3)]
    assert torch.autograd.gradcheck(
        lambda q, k, v: softmax_attention(q, k, v, causal=True, impl="torch"), inputs
    )
    assert torch.autograd.gradgradcheck(
        lambda q, k, v: softmax_attention(q, k, v, causal=True, impl="reference"), inputs
    )


@impls
def test_nan_in_sight_is_not_hidden(impl: str) -> None:
    """Who may look at a NaN must get one; who may not is safe from a key, not from a value."""
    q, k, v = draw(1, 1, 5, D, seed=1), draw(1, 1, 5, D, seed=2), draw(1, 1, 5, Dv, seed=3)
    poisoned = [x.index_fill(2, torch.tensor([3]), torch.nan) for x in (q, k, v)]
    with_key = softmax_attention(q, poisoned[1], v, causal=True, impl=impl)
    assert with_key[:, :, 3:].isnan().all()
    with_value = softmax_attention(q, k, poisoned[2], causal=True, impl=impl)
    assert with_value[:, :, 3:].isnan().all()
    with_query = softmax_attention(poisoned[0], k, v, causal=True, impl=impl)
    assert with_query[:, :, 3].isnan().all()
    rest = torch.tensor([0, 1, 2, 4])
    clean = softmax_attention(q, k, v, causal=True, impl=impl)
    close_each(with_query[:, :, rest], clean[:, :, rest], "the other queries")
    if impl == "reference":
        close_each(with_key[:, :, :3], clean[:, :, :3], "the queries before")


@impls
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_over_many_keys(impl: str, dtype: torch.dtype) -> None:
    """Uniform weights over 3,000 keys: a sum in half precision would stop at 256 or 2,048."""
    q, k = torch.zeros(1, 1, 2, D, dtype=dtype), torch.zeros(1, 1, 3000, D, dtype=dtype)
    v = torch.ones(1, 1, 3000, Dv, dtype=dtype)
    out = softmax_attention(q, k, v, impl=impl)
    assert (out.double() - 1).abs().max() <= 2 * torch.finfo(dtype).eps


def test_a_single_everything() -> None:
    """T = S = B = H = D = 1: one key gets all the weight."""
    q, k, v = (torch.tensor([[[[x]]]]) for x in (3.0, -2.0, 7.0))
    for impl in ("reference", "torch"):
        for causal in (True, False):
            assert softmax_attention(q, k, v, causal=causal, impl=impl).item() == 7.0


def test_no_global_state_is_touched() -> None:
    before = torch.get_rng_state()
    q, k, v = draw(B, H, 3, D), draw(B, H, 5, D), draw(B, H, 5, Dv)
    for impl in ("reference", "torch"):
        softmax_attention(q, k, v, causal=True, impl=impl)
    causal_mask(3)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_default_dtype() == torch.float32


@few
@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.sampled_from(["reference", "torch"]))
def test_decoding_in_any_portions_is_the_full_pass(portions: list[int], impl: str) -> None:
    ours, x = layer(attention, D=D, Dv=5), draw(B, sum(portions), 12, seed=1)
    cache, outputs = None, []
    for part in x.split(portions, 1):
        out, cache = ours.decode(part, cache, impl=impl)
        outputs.append(out)
    close_each(torch.cat(outputs, 1), ours(x, causal=True, impl="reference"), str(portions))
    assert cache is not None and cache.k.shape == (B, H, sum(portions), D)


def test_training_reaches_every_parameter_but_the_key_bias() -> None:
    """A bias on the keys shifts all scores of a row alike, so softmax gives it no gradient."""
    ours: MultiHeadAttention = layer(attention)
    ours(draw(B, 5, 12, seed=1), causal=True).square().sum().backward()
    for name, parameter in ours.named_parameters():
        size = parameter.grad.abs().max()
        assert size < 1e-9 if name == "W_k.bias" else size > 1e-3, (name, size)


@pytest.mark.parametrize("name", ERRORS)
def test_error(name: str) -> None:
    call, words = ERRORS[name]
    with pytest.raises(ValueError) as error:
        call(attention)
    assert [word for word in words if word not in str(error.value)] == [], str(error.value)
