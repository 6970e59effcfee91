"""The checks of ``course.kernels.softmax`` in Triton's interpreter, and what they must kill.

A check gets something with the public ``softmax_attention``: the module, or the tiled algorithm in
plain PyTorch with one fault. For short rows of float32, tiles are 64 by 32, and 32 by 32 in the
backward pass, so lengths a little above these have a full tile and a ragged one. Sizes are pairwise
distinct.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course.kernels import runtime
from tests import drawing, oracles
from tests.drawing import some
from tests.kernels.watching import poisoned
from tests.mutants import Check, Suite
from tests.mutants.kernels_linear import pulled

CHECKS: dict[str, Check] = {}
#: Gaussian entries; two of std 1.5 make scores with a std of about 2.
draw = partial(drawing.draw, std=1.5, dtype=torch.float32)
close = partial(drawing.close, tolerance=1e-5)


def check(function: Check) -> Check:
    CHECKS[function.__name__.replace("_", " ")] = function
    return function


def run(
    m: Any, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, **options: Any
) -> dict[str, Tensor | None]:
    """The output and the gradients, by the names of the oracle."""
    options = {"scale": q.shape[-1] ** -0.5} | options
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    if options.get("bias") is not None:
        options["bias"] = options["bias"].detach().requires_grad_()
    with poisoned():
        out = m.softmax_attention(*leaves, **options)
        out.backward(dout)
    bias = options.get("bias")
    grads = dict(zip(("dq", "dk", "dv"), (x.grad for x in leaves), strict=True))
    return {"out": out.detach(), **grads, "dbias": None if bias is None else bias.grad}


def agrees(m: Any, B: int, H: int, T: int, S: int, D: int, Dv: int, **options: Any) -> None:
    """Output and gradients equal the oracle's."""
    q, k, v = draw(B, H, T, D, seed=1), draw(B, H, S, D, seed=2), draw(B, H, S, Dv, seed=3)
    dout = draw(B, H, T, Dv, seed=9)
    wanted = oracles.attention(q, k, v, dout=dout, **options)
    got = run(m, q, k, v, dout, **options)
    for name in ("out", "dq", "dk", "dv"):
        close(got[name], getattr(wanted, name), (name, (B, H, T, S, D, Dv), options))
    if options.get("bias") is not None:
        expected = torch.as_tensor(wanted.dbias).sum_to_size(options["bias"].shape)
        close(got["dbias"], expected, ("dbias", options["bias"].shape))


# What the kernels must do ----------------------------------------------------------------------


@check
def causal_square(m: Any) -> None:
    agrees(m, 1, 1, 70, 70, 5, 7, causal=True)


@check
def plain(m: Any) -> None:
    agrees(m, 2, 3, 17, 35, 6, 5, scale=0.7)


@check
def causal_last_with_last(m: Any) -> None:
    agrees(m, 1, 1, 34, 45, 5, 7, causal=True)
    agrees(m, 1, 1, 45, 34, 5, 7, causal=True)


@check
def long_rows(m: Any) -> None:
    """Longer than what a product takes at once, by a little."""
    agrees(m, 1, 1, 9, 17, 72, 3, causal=True)
    agrees(m, 1, 1, 17, 9, 3, 72)
    agrees(m, 1, 1, 5, 17, 256, 200)


@check
def blind_queries_and_hidden_keys_do_no_harm(m: Any) -> None:
    """Zeros and zero gradients; whatever they hold, NaN too, reaches nobody."""
    T, S = 9, 37
    mask = some(T, S)
    mask[[0, 7]] = mask[:, [1, 36]] = False
    q, k, v, dout = (draw(1, 1, n, d, seed=n + d) for n, d in ((T, 5), (S, 5), (S, 7), (T, 7)))
    wanted = oracles.attention(q, k, v, mask=mask, dout=dout)
    bias = torch.zeros(T, S).masked_fill(~mask, -math.inf)
    for poison in (math.nan, math.inf):
        q[:, :, [0, 7]] = k[:, :, [1, 36]] = v[:, :, [1, 36]] = poison
        for options in ({"mask": mask}, {"bias": bias}):
            with np.errstate(invalid="ignore"):  # ∞ · 0, of which nothing may remain
                got = run(m, q, k, v, dout, **options)
            for name in ("out", "dq", "dk", "dv"):
                close(got[name], getattr(wanted, name), (name, poison, list(options)))
            assert not got["out"][:, :, [0, 7]].any() and not got["dq"][:, :, [0, 7]].any()


@check
def windows(m: Any) -> None:
    for T, S, causal in ((70, 71, True), (71, 70, False), (35, 70, False), (70, 35, True)):
        agrees(m, 1, 1, T, S, 5, 7, causal=causal, window=9)
    agrees(m, 1, 1, 17, 15, 5, 7, causal=True, window=1)
    agrees(m, 1, 1, 17, 15, 5, 7, window=10**12)


@check
def masks_and_biases(m: Any) -> None:
    B, H, T, S = 2, 3, 9, 35
    agrees(m, 1, H, T, S, 5, 7, mask=some(H, T, 1))
    for shape in ([], [B, 1, T, S]):
        agrees(m, B, 1, T, S, 5, 7, bias=draw(*shape, seed=5))
    agrees(m, B, H, 2, S, 5, 7, bias=draw(H, 1, S, seed=5))
    hidden = draw(T, S, seed=5).masked_fill(~some(T, S), -math.inf)
    agrees(m, B, 1, T, S, 5, 7, bias=hidden, mask=some(B, 1, 1, S), causal=True, window=20)


@check
def buffers_of_nan_and_odd_strides(m: Any) -> None:
    """Inputs cut out of NaN, an output gradient of stride 0, one laid out with tokens first."""
    q, k, v = draw(2, 1, 9, 5, seed=1), draw(2, 1, 35, 5, seed=2), draw(2, 1, 35, 7, seed=3)
    bias = draw(2, 1, 9, 35, seed=5)
    inputs = [oracles.cut_from_nan(x) for x in (q, k, v)]
    across = draw(9, 7, 2, 1, seed=6).permute(2, 3, 0, 1)
    for dout in (torch.ones(()).expand(2, 1, 9, 7), across):
        wanted = oracles.attention(q, k, v, dout=dout, bias=bias, causal=True)
        got = run(m, *inputs, dout, bias=oracles.cut_from_nan(bias), causal=True)
        for name, array in got.items():
            close(array, getattr(wanted, name), (name, "in NaN"))


@check
def no_key_at_all(m: Any) -> None:
    for T, S in ((3, 0), (0, 3), (0, 0)):
        agrees(m, 1, 2, T, S, 5, 7, causal=True)


@check
def keys_outside_every_window_do_no_harm(m: Any) -> None:
    q, k, v, dout = (draw(1, 1, n, d, seed=n + d) for n, d in ((5, 6), (40, 6), (40, 7), (5, 7)))
    wanted = oracles.attention(q, k, v, dout=dout, causal=True, window=2)
    k[:, :, :30] = v[:, :, :30] = math.nan
    got = run(m, q, k, v, dout, causal=True, window=2)
    for name in ("out", "dq", "dk", "dv"):
        close(got[name], getattr(wanted, name), name)


@check
def the_past_is_bit_equal_when_the_future_changes(m: Any) -> None:
    q, k, v, dout = (draw(1, 1, 40, d, seed=d) for d in (5, 6, 7, 8))
    q, dout = draw(1, 1, 40, 6, seed=1), dout[..., :7].contiguous()
    before = run(m, q, k, v, dout, causal=True)["out"]
    for x in (q, k, v):
        x[:, :, 20:] *= -3.0
    after = run(m, q, k, v, dout, causal=True)["out"]
    assert before is not None and after is not None
    assert torch.equal(before[:, :, :20], after[:, :, :20])
    assert not torch.equal(before[:, :, 20:], after[:, :, 20:])


@check
def huge_scores(m: Any) -> None:
    """Scores of ±1e5: no mask constant is below them, and only differences reach exp."""
    q, k, v = (draw(1, 1, n, d, seed=n + d) for n, d in ((9, 4), (35, 4), (35, 7)))
    dout = draw(1, 1, 9, 7, seed=9)
    for size in (1e5, -1e5):
        options = {"scale": 1.0, "causal": True}
        wanted = oracles.attention(q.sign(), size * k.sign(), v, dout=dout, **options)
        got = run(m, q.sign(), size * k.sign(), v, dout, **options)
        close(got["out"], wanted.out, ("out", size))
        close(got["dv"], wanted.dv, ("dv", size))


@check
def equal_scores_far_from_zero(m: Any) -> None:
    """The weights are 1/8, however large what all scores of a row have in common."""
    q, k, v = torch.ones(1, 1, 3, 2), torch.ones(1, 1, 8, 2), draw(1, 1, 8, 5, seed=3)
    for scale, offset in ((-0.5e9, 0.0), (0.0, 1e4), (0.0, -1e4), (0.5e4, 1e4)):
        bias = torch.full((3, 8), offset)
        got = run(m, q, k, v, torch.ones(1, 1, 3, 5), scale=scale, bias=bias)
        mean = v.mean(2, keepdim=True).expand(1, 1, 3, 5)
        close(got["out"], mean, (scale, offset), tolerance=1e-6)
        close(got["dv"], torch.full((1, 1, 8, 5), 3 / 8), (scale, offset), tolerance=1e-6)


@check
def finite_biases_hide_nothing(m: Any) -> None:
    """The ends of the number range, as a padded query or a hidden key is written elsewhere."""
    T, S = 6, 9
    q, k, v, dout = (draw(1, 1, n, d, seed=n + d) for n, d in ((T, 5), (S, 5), (S, 7), (T, 7)))
    bias, most = draw(T, S, seed=5), torch.finfo(torch.float32).max
    bias[0] = -most
    bias[1] = most
    bias[2, :4] = -most
    bias[3, 2] = most
    bias[4] = -0.9 * most
    bias[4, 5:] = -0.8 * most
    bias[5, :3], bias[5, 3:] = -math.inf, -most
    mask = torch.ones(T, S, dtype=torch.bool)
    mask[0, 6:] = mask[1, :2] = False
    for options in ({"bias": bias}, {"bias": bias, "mask": mask}):
        wanted = oracles.attention(q, k, v, dout=dout, **options)
        got = run(m, q, k, v, dout, **options)
        for name, array in got.items():
            expected = getattr(wanted, name)
            close(array, expected[0, 0] if name == "dbias" else expected, (name, list(options)))


@check
def any_scale(m: Any) -> None:
    for scale in (0.0, -1.0):
        agrees(m, 1, 1, 34, 34, 5, 7, causal=True, scale=scale)


@check
def a_visible_nan_is_seen_by_those_that_look(m: Any) -> None:
    """As in PyTorch: a row whose scores have a NaN is NaN, output and gradient."""
    for name, place in (("q", 2), ("k", 3)):
        q, k, v, dout = (draw(1, 1, n, d, seed=n + d) for n, d in ((5, 4), (7, 4), (7, 3), (5, 3)))
        {"q": q, "k": k}[name][0, 0, place, 1] = math.nan
        mask = torch.ones(5, 7, dtype=torch.bool)
        mask[[0, 4], 3] = False
        with np.errstate(invalid="ignore"):
            got = run(m, q, k, v, dout, mask=mask)
        rows = [2] if name == "q" else [1, 2, 3]
        lost = got["out"].isnan().all(-1)[0, 0]
        assert lost.nonzero().flatten().tolist() == rows, (name, lost)
        assert got["out"].isnan().any(-1)[0, 0].sum() == len(rows)
        assert got["dq"][0, 0, rows].isnan().any(-1).all(), name


def plain_torch(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal attention as one writes it down, every step in the dtype of the inputs."""
    scores = (q @ k.mT) * scale
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


@check
def no_worse_than_plain_torch_in_float16(m: Any) -> None:
    """Row by row: at most twice the error of plain float16, and a rounding of the largest entry."""
    for D in (6, 24):
        shapes = ((67, D), (67, D), (67, 5), (67, 5))
        q, k, v, dout = (
            draw(1, 2, n, d, seed=n + i, dtype=torch.float16) for i, (n, d) in enumerate(shapes)
        )
        wanted = oracles.attention(q, k, v, dout=dout, causal=True)
        got = run(m, q, k, v, dout, causal=True)
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        theirs = plain_torch(*leaves, D**-0.5)
        grads = torch.autograd.grad(theirs, leaves, dout)
        for name, other in zip(("out", "dq", "dk", "dv"), (theirs, *grads), strict=True):
            expected = torch.as_tensor(getattr(wanted, name))
            ours = got[name]
            assert ours is not None and ours.dtype == torch.float16
            error, allowed = (
                (x.double() - expected).abs().amax(-1) for x in (ours, other.detach())
            )
            rounding = torch.finfo(torch.float16).eps * expected.abs().amax((-1, -2))[..., None]
            assert bool((error <= 2 * allowed + rounding).all()), (
                name,
                D,
                (error / rounding).max(),
            )


@check
def three_thousand_equal_weights_in_float16(m: Any) -> None:
    """A sum in half precision would stop at 2,048."""
    q, k = torch.zeros(1, 1, 1, 4).half(), torch.zeros(1, 1, 3000, 4).half()
    out = m.softmax_attention(q, k, torch.ones(1, 1, 3000, 3).half(), scale=1.0)
    assert (out.double() - 1).abs().max() <= 2 * torch.finfo(torch.float16).eps


# Wrong ones: the algorithm in plain PyTorch, with one fault -------------------------------------


def dense(x: Tensor) -> Tensor:
    """What is read of ``x`` by somebody who takes it for contiguous."""
    return torch.as_strided(x, x.shape, torch.empty(x.shape, device="meta").stride())


def tiled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    bias: Tensor | None = None,
    scale: float,
    wrong: str = "",
) -> Tensor:
    """Tiles of 32 keys, an online softmax; gradients by autograd. ``wrong`` names its fault."""
    (B, H, T, D), (S, Dv), out_dtype = q.shape, v.shape[2:], q.dtype
    if wrong == "the strides of q for k":
        k = torch.as_strided(k, k.shape, q.stride())
    if wrong == "values by the strides of the keys":
        v = torch.as_strided(v, v.shape, k.stride())
    if wrong == "keys taken for dense":
        k = dense(k)
    if wrong == "what lies beyond a row is read" and q.storage_offset():  # inside a larger buffer
        beyond = q.storage_offset() + D * q.stride(-1)
        q = q + 0 * torch.as_strided(q, (B, H, T, 1), q.stride(), beyond)
    if wrong == "batch and head are exchanged":
        v = v.transpose(0, 1).reshape(v.shape)
    if wrong == "values as wide as keys":
        v = torch.cat([v[..., :D], torch.zeros_like(v[..., D:])], -1)
    if wrong == "the last piece of a row is dropped" and D > 64:
        q = torch.cat([q[..., :64], torch.zeros_like(q[..., 64:])], -1)
    if wrong == "the last tile of queries gives keys no gradient":
        q_seen = torch.arange(T) < T // 32 * 32
    elif wrong == "queries before the first tile are dropped":
        q_seen = torch.arange(T) >= (S - T) // 32 * 32 if S > T else torch.ones(T).bool()
    else:
        q_seen = torch.ones(T, dtype=torch.bool)
    if wrong == "dq without the scale":
        q = pulled(q, lambda g: g / scale)
    if wrong == "dk with the scale twice":
        k = pulled(k, lambda g: g * scale)
    if wrong == "the scale acts twice":
        scale = scale * scale
    if (
        wrong == "the bias's gradient in rows of T"
        and bias is not None
        and bias.shape[-2:] == (T, S)
    ):
        place = torch.arange(T)[:, None] * T + torch.arange(S)
        bias = pulled(bias, lambda g: torch.zeros_like(g).flatten(-2).index_add(
            -1, place.flatten().clamp(max=T * S - 1), g.flatten(-2)).view_as(g))  # fmt: skip
    t, i = torch.arange(T)[:, None], torch.arange(S)
    lag = t - i if wrong == "the first query stands at the first key" else t + (S - T) - i
    visible = torch.ones(T, S, dtype=torch.bool)
    if causal:
        visible &= lag > 0 if wrong == "the current token is hidden" else lag >= 0
    if window is not None:
        visible &= lag <= window if wrong == "a window one key too wide" else lag < window
        if not causal:
            visible &= -lag < (1 if wrong == "the window ends with the query" else window)
    visible = visible.expand(B, H, T, S) if mask is None else visible & mask
    if bias is not None:
        visible = visible & (bias != -math.inf)
    visible = visible.expand(B, H, T, S)
    q, k, v = q.float(), k.float(), v.float()
    if wrong != "0 · NaN for a blind query":
        q = q.masked_fill(~visible.any(-1)[..., None], 0)
    if wrong != "0 · NaN for a hidden key":
        k = k.masked_fill(~visible.any(-2)[..., None], 0)
    if wrong != "0 · NaN for a hidden value":
        v = v.masked_fill(~visible.any(-2)[..., None], 0)
    s = q @ k.mT * scale
    if not q_seen.all():
        s = torch.where(q_seen[:, None], s, q @ k.detach().mT * scale)
    if wrong == "in units of log₂ e":
        s = s * math.log2(math.e)
    if bias is not None:
        s = s + bias.float() * (math.log2(math.e) if wrong == "in units of log₂ e" else 1)
    if wrong == "scores in float16":
        s = s.half().float()
    s = s.masked_fill(~visible, -1e4 if wrong == "a hidden score of −1e4" else -math.inf)
    exp = torch.exp2 if wrong in ("2ˣ for eˣ", "in units of log₂ e") else torch.exp

    m = torch.full((B, H, T, 1), -math.inf)
    total = torch.zeros(B, H, T, 1)
    o = torch.zeros(B, H, T, Dv) + sum(x[..., :0].sum() for x in (q, k, v))
    v_later = v
    if wrong == "m + log l is saved":
        v = v.detach()
    last = S // 32 * 32 if wrong == "the ragged tile of keys is dropped" else S
    for start in range(0, last, 32):
        part = s[..., start : start + 32]
        m_new = torch.maximum(m, part.detach().amax(-1, keepdim=True))
        base = m_new.masked_fill(m_new == -math.inf, 0)
        if wrong == "−∞ − (−∞) for a query that saw nothing":
            base = m_new
        p, rescale = exp(part - base), exp(m - base)
        added = p.detach() if wrong == "δ is forgotten" else p
        total = (total if wrong == "the sum is not rescaled" else total * rescale) + added.sum(
            -1, keepdim=True
        )
        if wrong == "sums in float16":
            total = total.half().float()
        o = (o if wrong == "the output is not rescaled" else o * rescale) + p @ v[
            :, :, start : start + 32
        ]
        m = m_new
    nothing = total == 0
    if wrong == "a small number in the denominator":
        total = total + 1e-3
    out = (o / total.masked_fill(nothing, 1)).masked_fill(nothing, 0)
    if wrong == "m + log l is saved":
        weights = exp(s.detach() - (m + torch.log(total.detach())).masked_fill(nothing, 0))
        out = out + weights @ (v_later - v)
    if wrong == "its gradient is taken for dense":
        out = pulled(out, dense)
    return out.to(out_dtype)


MUTANTS: dict[str, Callable[[], Any]] = {
    name: partial(SimpleNamespace, softmax_attention=partial(tiled, wrong=name))
    for name in (
        "the current token is hidden",
        "the first query stands at the first key",
        "a window one key too wide",
        "the window ends with the query",
        "the output is not rescaled",
        "the sum is not rescaled",
        "the ragged tile of keys is dropped",
        "the last tile of queries gives keys no gradient",
        "queries before the first tile are dropped",
        "the last piece of a row is dropped",
        "dq without the scale",
        "dk with the scale twice",
        "the scale acts twice",
        "2ˣ for eˣ",
        "in units of log₂ e",
        "what lies beyond a row is read",
        "the strides of q for k",
        "values by the strides of the keys",
        "keys taken for dense",
        "its gradient is taken for dense",
        "values as wide as keys",
        "batch and head are exchanged",
        "δ is forgotten",
        "−∞ − (−∞) for a query that saw nothing",
        "0 · NaN for a hidden value",
        "0 · NaN for a hidden key",
        "0 · NaN for a blind query",
        "the bias's gradient in rows of T",
        "a hidden score of −1e4",
        "a small number in the denominator",
        "m + log l is saved",
        "sums in float16",
        "scores in float16",
    )
}


def real() -> Any:
    return importlib.import_module("course.kernels.softmax")


INTERPRETED = runtime.refusal(torch.zeros(1)) is None
SUITES = [Suite("kernels.softmax", real, MUTANTS, CHECKS)] if INTERPRETED else []
