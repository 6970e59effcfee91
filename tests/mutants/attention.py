"""The fast checks of ``course.attention``, and wrong attentions which they must kill.

A check gets the module (or a broken copy of it) and raises ``AssertionError`` or whatever the
module itself raises. Sizes are pairwise distinct, so that a mistaken axis cannot fit by luck.
"""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests import oracles
from tests.mutants import Check, Suite, fresh_module

B, H, T, S, D, Dv = 2, 3, 5, 7, 4, 6
E = 12
IMPLS = ("reference", "torch")
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__.replace("_", " ")] = function
    return function


def draw(
    *shape: int, seed: int = 0, std: float = 1.5, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Gaussian entries; two of std 1.5 make scores with a std of about 2."""
    generator = torch.Generator().manual_seed(seed)
    return (std * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


def qkv(T: int = T, S: int = S, B: int = B, H: int = H, **options: Any) -> tuple[Tensor, ...]:
    return (
        draw(B, H, T, D, seed=1, **options),
        draw(B, H, S, D, seed=2, **options),
        draw(B, H, S, Dv, seed=3, **options),
    )


def some(*shape: int, seed: int = 4) -> Tensor:
    """A boolean tensor, True about two times in three."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.67


def close(got: Tensor, expected: Any, what: str, atol: float = 1e-12) -> None:
    expected = torch.as_tensor(expected)
    assert got.shape == expected.shape, (what, got.shape, expected.shape)
    gap = (got.detach().double() - expected.double()).abs()
    assert bool((gap <= atol * (1 + expected.double().abs())).all()), (what, gap.max())


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
        close(out, wanted.out, f"{impl} output", atol)
        out.backward(dout)
        for leaf, name in zip(leaves, ("dq", "dk", "dv"), strict=True):
            # A gradient is a sum of differences times an input, and as exact as that allows.
            size = max([1.0, *(x.abs().max().item() for x in (q, k) if x.numel())])
            close(gradient(leaf, out), getattr(wanted, name), f"{impl} {name}", atol * size)
        if bias is not None:
            expected = torch.as_tensor(wanted.dbias).sum_to_size(bias.shape)
            close(gradient(options["bias"], out), expected, f"{impl} dbias", atol)
    close(m.attention_weights(q, k, **options), wanted.weights, "weights", atol)


# What the functions must do -------------------------------------------------------------------


@check
def plain(m: Any) -> None:
    agrees(m, *qkv())
    agrees(m, *qkv(T=5, S=5))


@check
def scale_given(m: Any) -> None:
    agrees(m, *qkv(), scale=0.3)
    agrees(m, *qkv(T=5, S=5), scale=0.3)
    agrees(m, *qkv(), scale=0.0)
    agrees(m, *qkv(T=5, S=5), scale=0.0)
    agrees(m, *qkv(), scale=-1.0)


@check
def causal(m: Any) -> None:
    agrees(m, *qkv(T=5, S=5), causal=True)
    agrees(m, *qkv(T=1, S=1), causal=True)


@check
def causal_last_with_last(m: Any) -> None:
    agrees(m, *qkv(T=3, S=7), causal=True)
    agrees(m, *qkv(T=1, S=7), causal=True)
    agrees(m, *qkv(T=7, S=3), causal=True)


@check
def window(m: Any) -> None:
    for sizes in ((5, 5), (3, 6), (6, 3)):
        for w in (1, 2, 50):
            agrees(m, *qkv(*sizes), causal=True, window=w)
            agrees(m, *qkv(*sizes), window=w)


@check
def mask_of_every_shape(m: Any) -> None:
    shapes = ([], [S], [T, 1], [T, S], [H, 1, S], [B, 1, 1, S], [B, 1, T, S], [1, H, T, S])
    for shape in (*shapes, [B, H, 1, 1], [B, H, T, S]):
        agrees(m, *qkv(), mask=some(*shape))
    agrees(m, *qkv(), mask=some(B, 1, T, S), causal=True, window=3)
    agrees(m, *qkv(T=5, S=5), mask=some(B, H, 5, 5))


@check
def bias_of_every_shape(m: Any) -> None:
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
            close(out, wanted, f"{impl}: bias of {other}", 10 * torch.finfo(dtype).eps)


@check
def bias_of_minus_infinity_hides(m: Any) -> None:
    bias = draw(B, 1, T, S, seed=5).masked_fill(~some(B, 1, T, S), -torch.inf)
    bias[1, 0, 2] = -torch.inf
    agrees(m, *qkv(), bias=bias)
    agrees(m, *qkv(), bias=bias, mask=some(H, T, S, seed=6))


@check
def empty_row_gives_zero_and_zero_gradient(m: Any) -> None:
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


@check
def nan_hidden_from_all_does_not_leak(m: Any) -> None:
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
                close(out, clean.out, f"{impl} output beside {poison}")
                out.backward(dout)
                for leaf, name in zip(leaves, ("dq", "dk", "dv"), strict=True):
                    close(leaf.grad, getattr(clean, name), f"{impl} {name} beside {poison}")
            poisoned = m.attention_weights(leaves[0], leaves[1], **options)
            close(poisoned, clean.weights, f"weights beside {poison}")
    # Without any query, and with causal T > S, whole inputs are out of sight.
    nothing = m.softmax_attention(torch.full_like(q, torch.nan), k[:, :, :0], v[:, :, :0])
    assert nothing.shape == (B, H, T, Dv) and nothing.abs().max() == 0


@check
def scores_of_any_size(m: Any) -> None:
    q, k, v = qkv()
    mask = some(B, H, T, S) | (torch.arange(S) == 1)
    for size in (1e5, -1e5, 1e12, -1e12):
        # Key 0 is hidden; all others score ±size and a little.
        bias = size + draw(T, S, seed=5)
        bias[:, 0], mask[..., 0] = 0.0, False
        for impl in IMPLS:
            out = m.softmax_attention(q, k, v, mask=mask, bias=bias, impl=impl)
            wanted = oracles.attention(q, k, v, mask=mask, bias=bias).out
            close(out, wanted, f"{impl}, scores of {size}", atol=1e-10 * max(1.0, abs(size) / 1e6))
    steep = 1e5 * torch.sign(k)
    agrees(m, torch.sign(q), steep, v, scale=1.0)
    agrees(m, torch.sign(q), steep, v, scale=1.0, mask=mask)


@check
def half_precision(m: Any) -> None:
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


@check
def no_queries_or_no_keys(m: Any) -> None:
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


@check
def any_strides(m: Any) -> None:
    q, k, v = qkv()
    mask, bias = some(B, H, T, S), draw(B, H, T, S, seed=5)
    wanted = oracles.attention(q, k, v, mask=mask, bias=bias, dout=torch.ones(B, H, T, Dv))
    for impl in IMPLS:
        leaves = [oracles.cut_from_nan(x).requires_grad_() for x in (q, k, v)]
        strided = mask.transpose(0, 3).contiguous().transpose(0, 3)
        out = m.softmax_attention(*leaves, mask=strided, bias=oracles.cut_from_nan(bias), impl=impl)
        close(out, wanted.out, f"{impl} output")
        out.sum().backward()  # a gradient whose strides are all 0
        for leaf, name in zip(leaves, ("dq", "dk", "dv"), strict=True):
            close(leaf.grad, getattr(wanted, name), f"{impl} {name}")
        # Axes of size 1 may have any stride.
        odd = [x[:1, :1].as_strided((1, 1, *x.shape[2:]), (1, 3, x.shape[3], 1)) for x in (q, k, v)]
        out = m.softmax_attention(*odd, impl=impl)
        close(out, oracles.attention(*odd).out, f"{impl}, odd strides")


@check
def arguments_are_not_changed(m: Any) -> None:
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


@check
def the_future_does_not_matter(m: Any) -> None:
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


@check
def the_causal_mask(m: Any) -> None:
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


@check
def other_devices(m: Any) -> None:
    on_meta = [x.to("meta") for x in qkv()]
    for impl in IMPLS:
        for options in ({"causal": True}, {"window": 2}):
            assert m.softmax_attention(*on_meta, impl=impl, **options).device.type == "meta"


@check
def the_kernel_gets_no_mask_that_it_does_not_need(m: Any) -> None:
    calls: list[dict[str, Any]] = []
    real = m.F

    def spy(*arguments: Tensor, **options: Any) -> Tensor:
        calls.append(options)
        return real.scaled_dot_product_attention(*arguments, **options)

    m.F = types.SimpleNamespace(scaled_dot_product_attention=spy)
    try:
        for T, causal in ((5, False), (5, True), (1, True), (1, False), (3, False)):
            m.softmax_attention(*qkv(T=T, S=5), impl="torch", causal=causal)
            assert len(calls) == 1 and calls.pop().get("attn_mask") is None
        m.softmax_attention(*qkv(T=3, S=5), impl="torch", causal=True)
        assert len(calls) == 1 and calls.pop()["attn_mask"].dtype == torch.bool
        m.softmax_attention(*qkv(T=5, S=5), impl="reference")
        assert not calls, "the reference must be another computation"
    finally:
        m.F = real


@check
def the_kernels_get_what_was_given(m: Any) -> None:
    asked: list[tuple[str, Any, Any]] = []

    def stand_in(name: str) -> Any:
        def note(*arguments: Any, **options: Any) -> str:
            asked.append((name, arguments, options))
            return "what the kernel gave"

        return types.SimpleNamespace(require_runnable=note, softmax_attention=note)

    m.importlib = types.SimpleNamespace(import_module=stand_in)
    q, k, v = qkv(dtype=torch.float16)
    mask, bias = some(B, H, T, S), draw(T, S, dtype=torch.float16)
    options: dict[str, Any] = {"mask": mask, "causal": True, "window": 3}
    for given, wide in ((bias, bias.float()), (None, None)):
        for scale, used in ((None, D**-0.5), (0.3, 0.3)):
            asked.clear()
            out = m.softmax_attention(q, k, v, bias=given, scale=scale, impl="triton", **options)
            assert out == "what the kernel gave"
            (_, seen, _), (_, tensors, told) = asked
            assert [name for name, _, _ in asked] == [
                "course.kernels.runtime",
                "course.kernels.softmax",
            ]
            # May they run? All that they will read is asked about.
            assert [x is y for x, y in zip(seen, (q, k, v, mask), strict=False)] == [True] * 4
            assert [x is y for x, y in zip(tensors, (q, k, v), strict=True)] == [True] * 3
            for x in (seen[4], told.pop("bias")):
                assert (x is None) == (wide is None)
                assert wide is None or (x.dtype == torch.float32 and torch.equal(x, wide))
            assert told == {**options, "scale": used}
    asked.clear()
    wide = draw(B, H, T, 257)
    for argument, given, window in (
        ("q", (wide, wide, wide[..., :D]), None),
        ("v", (q, q, wide.half()), None),
        ("window", (q, k, v), 0),
    ):
        try:
            m.softmax_attention(*given, window=window, impl="triton")
        except ValueError as error:
            assert str(error).startswith(f"{argument}: expected")
        else:
            raise AssertionError(f"no error for {argument}")
    assert not asked
    narrow = wide[..., :256]
    m.softmax_attention(narrow, narrow, narrow, impl="triton")


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


@check
def weights_from_and_to_torch(m: Any) -> None:
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
                close(ours(x, impl=impl), plain, "self-attention", 1e-13)
                masked = other(x, x, x, attn_mask=future, need_weights=False)[0]
                close(ours(x, causal=True, impl=impl), masked, "causal", 1e-13)
                crossed = other(x, context, context, need_weights=False)[0]
                close(ours(x, context, impl=impl), crossed, "cross-attention", 1e-13)
        with torch.no_grad():  # neither is a view of the other
            theirs.in_proj_weight.zero_()
        assert all(p.abs().max() > 0 for p in (*ours.parameters(), *back.parameters()))
        single = m.MultiHeadAttention.from_torch(torch_layer(bias, torch.float32))
        twin = torch_layer(bias, torch.float32)
        gap = single(x.float()) - twin(x.float(), x.float(), x.float(), need_weights=False)[0]
        assert gap.abs().max() <= 5e-6, gap.abs().max()


@check
def a_layer_of_its_own_widths(m: Any) -> None:
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
                close(ours(x, form=form, impl=impl), wanted, f"{form}, {impl}")
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


@check
def the_layer_passes_its_options_on(m: Any) -> None:
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
            close(got, by_hand(ours, x, context, **options), str(list(options)))
    with_spy = {"softmax_attention": m.softmax_attention}
    seen: list[str] = []

    def spy(*arguments: Tensor, impl: str, **options: Any) -> Tensor:
        seen.append(impl)
        return with_spy["softmax_attention"](*arguments, impl=impl, **options)

    m.softmax_attention = spy
    try:
        ours(x)
        ours(x, impl="reference")
        ours.decode(x)
        ours.decode(x, impl="reference")
    finally:
        m.softmax_attention = with_spy["softmax_attention"]
    assert seen == ["torch", "reference"] * 2, seen


@check
def decoding_is_the_full_pass(m: Any) -> None:
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
            close(torch.cat(outputs, 1), full, f"{impl} in {portions}")
            _, k, v = ours.heads(x)
            close(cache.k, k, "cached keys")
            close(cache.v, v, "cached values")


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
        f"{_name}: q of rank 3", _with(q=draw(H, T, D)), "q:", "4 axes", "B H T D", "3", "[3, 5, 4]"
    )
    refuses(f"{_name}: k of rank 3", _with(k=draw(H, S, D)), "k:", "4 axes", "B H S D", "[3, 7, 4]")
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
        f"{_name}: mask of numbers", _with(mask=torch.ones(T, S)), "mask:", "boolean", "float32"
    )
    refuses(f"{_name}: mask a list", _with(mask=[[True]]), "mask:", "tensor", "list")
    refuses(
        f"{_name}: bias shape", _with(bias=draw(H, T, S + 1)), "bias:", "[2, 3, 5, 7]", "[3, 5, 8]"
    )
    refuses(f"{_name}: bias boolean", _with(bias=some(T, S)), "bias:", "float", "bool")
    refuses(f"{_name}: bias a number", _with(bias=0.5), "bias:", "tensor", "float")
    for _w in (0, -1, 1.5, True, "3"):
        refuses(
            f"{_name}: window {_w!r}", _with(window=_w), "window:", "whole number", "1", repr(_w)
        )

refuses(
    "v of rank 3", lambda m: attend(m, v=draw(H, S, Dv)), "v:", "4 axes", "B H S Dv", "[3, 7, 6]"
)
refuses("v batches", lambda m: attend(m, v=draw(5, H, S, Dv)), "k and v", "axis B", "2", "5")
refuses("v heads", lambda m: attend(m, v=draw(B, 1, S, Dv)), "k and v", "axis H", "3", "1")
refuses("v length", lambda m: attend(m, v=draw(B, H, 9, Dv)), "k and v", "axis S", "7", "9")
refuses("v dtype", lambda m: attend(m, v=draw(B, H, S, Dv).half()), "v", "float16", "float64")
refuses("impl", lambda m: attend(m, impl="fast"), "impl:", "reference, torch", "'fast'")
refuses("impl None", lambda m: attend(m, impl=None), "impl:", "reference, torch", "None")
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
refuses("o heads", lambda m: layer(m).merge(draw(B, 4, T, 4), "sum"), "o", "axis H", "4", "3")
refuses("o width", lambda m: layer(m).merge(draw(B, H, T, 5)), "o", "axis Dv", "5", "4")
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


@check
def bad_input_gets_a_sentence(m: Any) -> None:
    for name, (call, words) in ERRORS.items():
        try:
            call(m)
        except ValueError as error:
            missing = [word for word in words if word not in str(error)]
            assert not missing, (name, str(error), missing)
        else:
            raise AssertionError(f"{name}: accepted")


# Wrong attentions -----------------------------------------------------------------------------

MUTANTS: dict[str, Callable[[], types.ModuleType]] = {}


def mutant(breaks: Callable[[Any], None]) -> Callable[[Any], None]:
    """Register a function that breaks a fresh copy of the module."""

    def make() -> types.ModuleType:
        module = fresh_module("course.attention")
        breaks(module)
        return module

    MUTANTS[breaks.__name__.replace("_", " ")] = make
    return breaks


def _scores(m: Any, q: Tensor, k: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    scores = (q @ k.transpose(-2, -1)) * m._scale(q, scale)
    return scores if bias is None else scores + bias


@mutant
def nan_in_an_empty_row(m: Any) -> None:
    def weights(q: Tensor, k: Tensor, visible: Tensor, bias: Any, scale: Any) -> Tensor:
        q, k = m._without_unused(q, k, visible)
        return _scores(m, q, k, bias, scale).masked_fill(~visible, -torch.inf).softmax(-1)

    m._weights = weights


@mutant
def nan_repaired_in_the_output_only(m: Any) -> None:
    def weights(q: Tensor, k: Tensor, visible: Tensor, bias: Any, scale: Any) -> Tensor:
        q, k = m._without_unused(q, k, visible)
        weights = _scores(m, q, k, bias, scale).masked_fill(~visible, -torch.inf).softmax(-1)
        seen = visible.any(-1, keepdim=True)
        return torch.where(seen, weights, torch.zeros_like(weights))

    m._weights = weights


def _finite(m: Any, constant: float) -> None:
    def weights(q: Tensor, k: Tensor, visible: Tensor, bias: Any, scale: Any) -> Tensor:
        q, k = m._without_unused(q, k, visible)
        weights = _scores(m, q, k, bias, scale).masked_fill(~visible, constant).softmax(-1)
        return weights.masked_fill(~visible.any(-1, keepdim=True), 0)

    m._weights = weights


@mutant
def mask_constant_of_a_hundred_thousand(m: Any) -> None:
    _finite(m, -1e5)


@mutant
def mask_constant_of_a_milliard(m: Any) -> None:
    _finite(m, -1e9)


@mutant
def empty_row_looks_everywhere(m: Any) -> None:
    def weights(q: Tensor, k: Tensor, visible: Tensor, bias: Any, scale: Any) -> Tensor:
        seen = visible.any(-1, keepdim=True)
        return real(q, k, visible | ~seen, bias, scale)

    real, m._weights = m._weights, weights


@mutant
def mask_after_softmax_without_renormalising(m: Any) -> None:
    def weights(q: Tensor, k: Tensor, visible: Tensor, bias: Any, scale: Any) -> Tensor:
        q, k = m._without_unused(q, k, visible)
        bias = None if bias is None else bias.clamp(min=-1e4)
        return _scores(m, q, k, bias, scale).softmax(-1) * visible

    m._weights = weights


@mutant
def mask_multiplied_into_the_scores(m: Any) -> None:
    def weights(q: Tensor, k: Tensor, visible: Tensor, bias: Any, scale: Any) -> Tensor:
        q, k = m._without_unused(q, k, visible)
        return (_scores(m, q, k, bias, scale) * visible).softmax(-1)

    m._weights = weights


def _normalised_over(m: Any, axis: int) -> None:
    def weights(q: Tensor, k: Tensor, visible: Tensor, bias: Any, scale: Any) -> Tensor:
        scores = _scores(m, q, k, bias, scale).masked_fill(~visible, -torch.inf)
        return scores.softmax(axis).nan_to_num(0.0)

    m._weights = weights


@mutant
def softmax_over_the_queries(m: Any) -> None:
    _normalised_over(m, -2)


@mutant
def softmax_over_the_heads(m: Any) -> None:
    _normalised_over(m, 1)


@mutant
def softmax_without_the_maximum_taken_off(m: Any) -> None:
    def weights(q: Tensor, k: Tensor, visible: Tensor, bias: Any, scale: Any) -> Tensor:
        q, k = m._without_unused(q, k, visible)
        weights = _scores(m, q, k, bias, scale).exp() * visible
        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)

    m._weights = weights


def _scaled(m: Any, rule: Callable[[Tensor, float | None], float]) -> None:
    m._scale = rule


@mutant
def scale_by_the_model_width(m: Any) -> None:
    _scaled(m, lambda q, scale: (H * q.shape[-1]) ** -0.5 if scale is None else scale)


@mutant
def scale_by_the_root_of_the_length(m: Any) -> None:
    _scaled(m, lambda q, scale: max(1, q.shape[-2]) ** -0.5 if scale is None else scale)


@mutant
def scale_by_the_width_without_root(m: Any) -> None:
    _scaled(m, lambda q, scale: 1 / q.shape[-1] if scale is None else scale)


@mutant
def scale_applied_twice(m: Any) -> None:
    _scaled(m, lambda q, scale: q.shape[-1] ** -0.5 * (1.0 if scale is None else scale))


@mutant
def scale_forgotten(m: Any) -> None:
    _scaled(m, lambda q, scale: 1.0 if scale is None else scale)


@mutant
def scale_of_zero_taken_for_none(m: Any) -> None:
    _scaled(m, lambda q, scale: scale or q.shape[-1] ** -0.5)


def _near(m: Any, rule: Callable[[Tensor, int, int], Tensor]) -> None:
    """Replace who is near; the rule gets key place minus query place, from the first corner."""

    def within(T: int, S: int, causal: bool, window: int | None, device: Any) -> Tensor:
        near = real(T, S, causal, window, device)
        lead = torch.arange(S) - torch.arange(T).unsqueeze(1)
        return near & rule(lead, T, S) if causal else near

    real, m._within = m._within, within


@mutant
def diagonal_hidden(m: Any) -> None:
    _near(m, lambda lead, T, S: lead < S - T)


@mutant
def first_query_with_first_key(m: Any) -> None:
    def within(T: int, S: int, causal: bool, window: int | None, device: Any) -> Tensor:
        lag = torch.arange(T, device=device).unsqueeze(1) - torch.arange(S, device=device)
        near = lag >= 0 if causal else torch.ones_like(lag, dtype=torch.bool)
        return near if window is None else near & (lag.abs() < window)

    m._within = within


@mutant
def one_look_ahead(m: Any) -> None:
    def within(T: int, S: int, causal: bool, window: int | None, device: Any) -> Tensor:
        lag = torch.arange(S - T, S, device=device).unsqueeze(1) - torch.arange(S, device=device)
        near = lag >= -1 if causal else torch.ones_like(lag, dtype=torch.bool)
        return near if window is None else near & (lag.abs() < window)

    m._within = within


@mutant
def window_one_too_wide(m: Any) -> None:
    real = m._within
    m._within = lambda T, S, causal, window, device: real(
        T, S, causal, None if window is None else window + 1, device
    )


@mutant
def window_that_looks_ahead_is_cut(m: Any) -> None:
    real = m._within
    m._within = lambda T, S, causal, window, device: real(
        T, S, causal or window is not None, window, device
    )


def _masked(m: Any, rule: Callable[[Tensor], Tensor]) -> None:
    def visible(q: Tensor, k: Tensor, mask: Any, *others: Any) -> Tensor:
        return real(q, k, None if mask is None else rule(mask), *others)

    real, m._visible = m._visible, visible


@mutant
def mask_inverted(m: Any) -> None:
    _masked(m, torch.logical_not)


@mutant
def mask_of_the_first_head_for_all(m: Any) -> None:
    _masked(m, lambda mask: mask[..., :1, :, :] if mask.ndim > 2 else mask)


@mutant
def mask_of_the_first_sequence_for_all(m: Any) -> None:
    _masked(m, lambda mask: mask[:1] if mask.ndim > 3 else mask)


@mutant
def mask_of_the_last_query_for_all(m: Any) -> None:
    _masked(m, lambda mask: mask[..., -1:, :] if mask.ndim > 1 else mask)


@mutant
def mask_ignored_when_causal(m: Any) -> None:
    def visible(q: Tensor, k: Tensor, mask: Any, causal: bool, *others: Any) -> Tensor:
        return real(q, k, None if causal else mask, causal, *others)

    real, m._visible = m._visible, visible


@mutant
def bias_scaled_with_the_scores(m: Any) -> None:
    def weights(q: Tensor, k: Tensor, visible: Tensor, bias: Any, scale: Any) -> Tensor:
        return real(q, k, visible, None if bias is None else bias * m._scale(q, scale), scale)

    real, m._weights = m._weights, weights


@mutant
def bias_taken_off(m: Any) -> None:
    def weights(q: Tensor, k: Tensor, visible: Tensor, bias: Any, scale: Any) -> Tensor:
        return real(q, k, visible, None if bias is None else -bias, scale)

    real, m._weights = m._weights, weights


@mutant
def bias_without_a_gradient(m: Any) -> None:
    def weights(q: Tensor, k: Tensor, visible: Tensor, bias: Any, scale: Any) -> Tensor:
        return real(q, k, visible, None if bias is None else bias.detach(), scale)

    real, m._weights = m._weights, weights


@mutant
def nan_in_a_hidden_key_leaks(m: Any) -> None:
    m._without_unused = lambda q, k, visible: (
        q.masked_fill(~visible.any(-1).unsqueeze(-1), 0),
        k,
    )


@mutant
def nan_in_a_blind_query_leaks(m: Any) -> None:
    m._without_unused = lambda q, k, visible: (
        q,
        k.masked_fill(~visible.any(-2).unsqueeze(-1), 0),
    )


@mutant
def nan_in_a_hidden_value_leaks(m: Any) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if options.pop("impl", "reference") == "torch":
            return real(q, k, v, impl="torch", **options)
        return m.attention_weights(q, k, **options) @ v

    real, m.softmax_attention = m.softmax_attention, attention


@mutant
def queries_scaled_in_place(m: Any) -> None:
    def weights(q: Tensor, k: Tensor, visible: Tensor, bias: Any, scale: Any) -> Tensor:
        with torch.no_grad():
            q.mul_(1.0 + 1e-3)
        return real(q, k, visible, bias, scale)

    real, m._weights = m._weights, weights


@mutant
def weights_kept_in_half_precision(m: Any) -> None:
    def weights(q: Tensor, k: Tensor, visible: Tensor, bias: Any, scale: Any) -> Tensor:
        return real(q, k, visible, bias, scale).to(q.dtype)

    real, m._weights = m._weights, weights


@mutant
def weights_detached(m: Any) -> None:
    real = m._weights
    m._weights = lambda *arguments: real(*arguments).detach()


@mutant
def kernel_aligns_the_first_corner(m: Any) -> None:
    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, impl: str = "reference", **options: Any
    ) -> Any:
        if impl == "torch" and set(options) == {"causal"}:
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=options["causal"])
        return real(q, k, v, impl=impl, **options)

    real, m.softmax_attention = m.softmax_attention, attention


@mutant
def kernel_averages_in_an_empty_row(m: Any) -> None:
    real = m._fused
    m._fused = lambda q, k, v, visible, bias, scale: real(
        q, k, v, visible | ~visible.any(-1, keepdim=True), bias, scale
    )


def _decoded(m: Any, causal: Callable[[int, bool], bool]) -> None:
    def decode(self: Any, x: Tensor, cache: Any = None, *, impl: str = "torch") -> Any:
        q, k, v = self.heads(x)
        if cache is not None:
            k, v = torch.cat([cache.k, k], dim=2), torch.cat([cache.v, v], dim=2)
        now = causal(x.shape[1], cache is None)
        out = m.softmax_attention(q, k, v, causal=now, impl=impl)
        return self.merge(out), m.KeyValueCache(k, v)

    m.MultiHeadAttention.decode = decode


@mutant
def causal_mask_skipped_in_the_prefill(m: Any) -> None:
    _decoded(m, lambda length, first: not first)


@mutant
def causal_mask_skipped_in_later_portions(m: Any) -> None:
    _decoded(m, lambda length, first: first)


@mutant
def cache_in_reverse_order(m: Any) -> None:
    def decode(self: Any, x: Tensor, cache: Any = None, **options: Any) -> Any:
        out, new = real(self, x, cache, **options)
        return out, m.KeyValueCache(new.k.flip(2), new.v.flip(2))

    real, m.MultiHeadAttention.decode = m.MultiHeadAttention.decode, decode


@mutant
def cache_forgets_all_but_the_last_portion(m: Any) -> None:
    def decode(self: Any, x: Tensor, cache: Any = None, **options: Any) -> Any:
        out, new = real(self, x, cache, **options)
        return out, m.KeyValueCache(new.k[:, :, -x.shape[1] :], new.v[:, :, -x.shape[1] :])

    real, m.MultiHeadAttention.decode = m.MultiHeadAttention.decode, decode


@mutant
def heads_concatenated_feature_first(m: Any) -> None:
    def merge(self: Any, o: Tensor, form: str = "concat") -> Tensor:
        if form == "concat":
            return self.W_o(o.permute(0, 2, 3, 1).flatten(2))
        return real(self, o, form)

    real, m.MultiHeadAttention.merge = m.MultiHeadAttention.merge, merge


@mutant
def heads_concatenated_without_the_transpose(m: Any) -> None:
    def merge(self: Any, o: Tensor, form: str = "concat") -> Tensor:
        if form == "concat":
            return self.W_o(o.reshape(o.shape[0], o.shape[2], -1))
        return real(self, o, form)

    real, m.MultiHeadAttention.merge = m.MultiHeadAttention.merge, merge


@mutant
def output_bias_added_by_every_head(m: Any) -> None:
    def merge(self: Any, o: Tensor, form: str = "concat") -> Tensor:
        out = real(self, o, form)
        if form == "sum" and self.W_o.bias is not None:
            return out + (self.H - 1) * self.W_o.bias
        return out

    real, m.MultiHeadAttention.merge = m.MultiHeadAttention.merge, merge


@mutant
def keys_and_values_exchanged_when_loaded(m: Any) -> None:
    def from_torch(source: nn.MultiheadAttention) -> Any:
        made = real(source)
        made.W_k, made.W_v = made.W_v, made.W_k
        return made

    real = m.MultiHeadAttention.from_torch
    m.MultiHeadAttention.from_torch = staticmethod(from_torch)


@mutant
def context_ignored(m: Any) -> None:
    real = m.MultiHeadAttention.heads
    m.MultiHeadAttention.heads = lambda self, x, context=None: real(self, x)


@mutant
def queries_from_the_context(m: Any) -> None:
    real = m.MultiHeadAttention.heads
    m.MultiHeadAttention.heads = lambda self, x, context=None: real(
        self, x if context is None else context
    )


SUITE = Suite("attention", lambda: fresh_module("course.attention"), MUTANTS, CHECKS)
