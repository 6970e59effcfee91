"""The checks of ``course.kernels.softmax`` in Triton's interpreter, and kernels they must kill.

A check gets the module, or a copy with some of its text replaced. For short rows of float32,
tiles are 64 by 32, and 32 by 32 in the backward pass, so lengths a little above these have a full
tile and a ragged one. Sizes are pairwise distinct.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from course.kernels import runtime
from tests import oracles
from tests.mutants import Check, Suite

CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__.replace("_", " ")] = function
    return function


def draw(
    *shape: int, seed: int = 0, std: float = 1.5, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Gaussian entries; two of std 1.5 make scores with a std of about 2."""
    generator = torch.Generator().manual_seed(seed)
    return (std * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


def some(*shape: int, seed: int = 4) -> Tensor:
    """A boolean tensor, True about two times in three."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.67


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """Whatever a kernel is given to fill is NaN before: what it leaves out is seen."""

    def empty(shape: Any, *, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return torch.full(tuple(shape), math.nan, dtype=dtype or like.dtype, device=like.device)

    with mock.patch.object(runtime, "empty", empty):
        yield


def run(
    m: Any, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, **options: Any
) -> dict[str, Tensor | None]:
    """The output and the gradients, by the names of the oracle."""
    options = {"scale": q.shape[-1] ** -0.5} | options
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    if options.get("bias") is not None:
        options["bias"] = options["bias"].detach().requires_grad_()
    with poisoned_memory():
        out = m.softmax_attention(*leaves, **options)
        out.backward(dout)
    bias = options.get("bias")
    grads = dict(zip(("dq", "dk", "dv"), (x.grad for x in leaves), strict=True))
    return {"out": out.detach(), **grads, "dbias": None if bias is None else bias.grad}


def close(got: Tensor | None, expected: Any, what: object, tolerance: float = 1e-5) -> None:
    """Equal up to ``tolerance`` times the largest expected entry (or 1)."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    assert got is not None and got.shape == expected.shape, (what, expected.shape)
    if got.numel():
        gap = (got.double() - expected).abs().max().item()
        size = max(1.0, expected.abs().max().item())
        assert gap <= tolerance * size, (what, gap, size)


def agrees(m: Any, B: int, H: int, T: int, S: int, D: int, Dv: int, **options: Any) -> None:
    """Output and gradients equal the oracle's."""
    q, k, v = draw(B, H, T, D, seed=1), draw(B, H, S, D, seed=2), draw(B, H, S, Dv, seed=3)
    dout = draw(B, H, T, Dv, seed=9)
    wanted = oracles.attention(q, k, v, dout=dout, **options)
    got = run(m, q, k, v, dout, **options)
    names = ["out", "dq", "dk", "dv"]
    for name in names:
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
        # The backward pass has exp(s − L), and a float32 near 4e5·log₂ e counts in steps of 0.03.
        close(got["dv"], wanted.dv, ("dv", size), tolerance=0.03)


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


# Wrong ones: the module's text with one line changed ---------------------------------------------

_FOLDER = tempfile.TemporaryDirectory(prefix="mutants")
_NUMBER = itertools.count()
MUTANTS: dict[str, Callable[[], Any]] = {}


def real() -> Any:
    return importlib.import_module("course.kernels.softmax")


def _edited(changes: tuple[tuple[str, str], ...]) -> Any:
    # Triton reads the text of a kernel from its file, so the copy needs a file of its own.
    source = Path(real().__file__).read_text(encoding="utf-8")
    for old, new in changes:
        assert source.count(old) >= 1, old
        source = source.replace(old, new)
    path = Path(_FOLDER.name) / f"softmax_{next(_NUMBER)}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mutant(name: str, *changes: tuple[str, str]) -> None:
    MUTANTS[name] = lambda: _edited(changes)


mutant("the current token is hidden", ("lag >= 0", "lag > 0"))
mutant("the first query stands at the first key", ("lag = t + (S - T) - i", "lag = t - i"))
mutant("the output is not rescaled", ("o = o * rescale[:, None] +", "o = o +"))
mutant("the sum is not rescaled", ("l = l * rescale +", "l = l +"))
mutant(
    "the ragged tile of keys is dropped",
    ("range(first, last, BLOCK_S)", "range(first, last // BLOCK_S * BLOCK_S, BLOCK_S)"),
)
mutant(
    "the ragged tile of queries is dropped",
    ("range(first, last, BLOCK_T)", "range(first, last // BLOCK_T * BLOCK_T, BLOCK_T)"),
)
mutant("dq without the scale", ("dq * scale", "dq"))
mutant("dk with the scale twice", ("dk_tile * scale", "dk_tile * scale * scale"))
mutant("the scale acts twice", ("s * (scale * LOG2_E)", "s * (scale * scale * LOG2_E)"))
mutant("eˣ where scores are in units of log₂ e", ("p = tl.exp2(", "p = tl.exp("))
mutant("the bias is not in those units", ("s = s + bias * LOG2_E", "s = s + bias"))
mutant(
    "what lies beyond a row is read",
    ("mask=real[:, None] & (columns < width)[None, :], other=0.0", "mask=real[:, None], other=0.0"),
)
mutant("values by the strides of the keys", ("V, i, dv, v_s, v_d", "V, i, dv, k_s, k_d"))
mutant("the output's strides for its gradient", ("(q, k, v, o, do, dq)", "(q, k, v, o, o, dq)"))
mutant("values as wide as keys", ("BLOCK_DV=runtime.block(Dv)", "BLOCK_DV=runtime.block(D)"))
mutant("δ is forgotten", ("(dp - delta[:, None])", "dp"))
mutant("δ is forgotten for the keys", ("(dp - delta[None, :])", "dp"))
mutant("a window one key too wide", ("visible & (lag < window)", "visible & (lag <= window)"))
mutant(
    "the window ends with the query", ("S, last_t + (S - T) + window", "S, last_t + (S - T) + 1")
)
mutant(
    "queries before the first tile are dropped",
    ("first = tl.maximum(0, first_i - (S - T)) //", "first = tl.maximum(0, first_i) //"),
)
mutant(
    "the last piece of a row is dropped",
    ("(0, width, CHUNK)", "(0, width // CHUNK * CHUNK, CHUNK)"),
)
mutant("pieces of a row are not added", ("tl.dot(x, tl.trans(y), xy,", "tl.dot(x, tl.trans(y),"))
mutant("batch and head are exchanged", ("b, h = (n // H)", "h, b = (n // H)"))
mutant(
    "−∞ − (−∞) for a query that saw nothing",
    ('tl.where(m_new == float("-inf"), 0.0, m_new)', "m_new"),
)
mutant(
    "0 · NaN for a hidden value",
    ("v = tl.where((tl.max(visible.to(tl.int32), 0) > 0)[:, None], v, 0.0)", "v = v"),
)
mutant(
    "0 · NaN for a hidden key",
    ("k = tl.where((tl.max(visible.to(tl.int32), 0) > 0)[:, None], k, 0.0)", "k = k"),
)
mutant("0 · NaN for a blind query", ('saw = log_l != float("inf")', "saw = t < T"))
mutant("the bias's gradient in rows of T", ("[:, None] * S + i", "[:, None] * T + i"))
mutant(
    "a hidden score of −1e4", ('tl.where(visible, s, float("-inf"))', "tl.where(visible, s, -1e4)")
)
mutant(
    "sums in float16",
    (
        "l = l * rescale + tl.sum(p, 1)",
        "l = (l * rescale + tl.sum(p, 1)).to(tl.float16).to(tl.float32)",
    ),
)

INTERPRETED = runtime.refusal(torch.zeros(1)) is None
SUITES = [Suite("kernels.softmax", real, MUTANTS, CHECKS)] if INTERPRETED else []
