"""The fast checks of ``course.kernels.taylor`` when interpreted, and wrong kernels they kill.

A subject is the module; a wrong one is its source with one part replaced. Tiles are small here, so
that few tokens make several tiles, chunks and blocks of columns: 16 tokens, 32, and 16.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import itertools
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from course.feature_maps import get_feature_map
from course.kernels import runtime
from course.linear import LinearState
from tests import oracles
from tests.mutants import Check, Suite

CHECKS: dict[str, Check] = {}
NAMES = ("out", "S", "z", "dq", "dk", "dv", "dk of the past", "dv of the past")


def check(function: Check) -> Check:
    CHECKS[function.__name__.replace("_", " ")] = function
    return function


def draw(*shape: int, seed: int, std: float = 1.2) -> Tensor:
    return std * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@contextlib.contextmanager
def small_and_poisoned(m: Any, *, small: bool = True) -> Iterator[None]:
    """Small tiles, and outputs that are NaN until a kernel writes them."""
    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(m, "_blocks", lambda dtype, Dv, **_: m._Blocks(16, 16, 4, 1))
            patch.setattr(m, "CHUNK", 32)
        empty = runtime.empty
        patch.setattr(runtime, "empty", lambda *a, **o: empty(*a, **o).fill_(math.nan))
        yield


class Example(NamedTuple):
    """What is computed, and in which dtype; ``past`` tokens come as an initial state."""

    B: int = 1
    H: int = 2
    T: int = 33
    S: int | None = None  # None: as many as queries
    D: int = 2
    Dv: int = 3
    causal: bool = True
    normalize: bool = True
    masked: bool = False
    past: int = 0
    scale: float = 1.0
    dtype: torch.dtype = torch.float32
    strided: bool = False
    std: float = 1.2

    def tensors(self) -> list[Tensor]:
        """q, k, v, k and v of the past, in the dtype of the example."""
        S = self.T if self.S is None else self.S
        sizes = ((self.T, self.D), (S, self.D), (S, self.Dv), (self.past, self.D))
        sizes = (*sizes, (self.past, self.Dv))
        return [
            (draw(self.B, self.H, *size, seed=i, std=self.std if i < 2 else 1.2)).to(self.dtype)
            for i, size in enumerate(sizes)
        ]

    def mask(self) -> Tensor | None:
        S = self.T if self.S is None else self.S
        if not self.masked:
            return None
        return draw(self.B, S, seed=9) > -0.5

    def pulls(self) -> list[Tensor]:
        """Gradients of out, S and z."""
        C = 1 + self.D + self.D * (self.D + 1) // 2
        heads = (self.B, self.H)
        shapes = ((*heads, self.T, self.Dv), (*heads, C, self.Dv), (*heads, C))
        return [draw(*shape, seed=20 + i).to(self.dtype).float() for i, shape in enumerate(shapes)]


def features(x: Tensor, scale: float) -> Tensor:
    return get_feature_map("taylor")(x * math.sqrt(scale))


def state_of(k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    f = features(k, scale)
    if mask is not None:
        f = torch.where(mask[:, None, :, None], f, 0.0)
        v = torch.where(mask[:, None, :, None], v, 0.0)
    return f.mT @ v, f.sum(2)


def wanted(e: Example) -> list[Tensor]:
    """``NAMES`` by the definition in float64."""
    leaves = [x.double().requires_grad_() for x in e.tensors()]
    q, k, v, k_past, v_past = leaves
    mask = e.mask()
    keys, values = torch.cat([k_past, k], 2), torch.cat([v_past, v], 2)
    every = None if mask is None else torch.cat([mask.new_ones(e.B, e.past), mask], 1)
    similarities = oracles.similarity("taylor", q, keys, scale=e.scale)
    out = oracles.linear_attention(
        similarities, values, causal=e.causal, normalize=e.normalize, key_mask=every
    )
    results = [out, *state_of(keys, values, every, e.scale)]
    pulls = [x.double() for x in e.pulls()]
    grads = torch.autograd.grad(results, leaves, pulls, materialize_grads=True)
    return [*results, *grads]


def computed(e: Example, attend: Callable[..., Any]) -> list[Tensor]:
    """``NAMES`` by ``attend``, which has the signature of the kernels' ``linear_attention``."""
    leaves = [x.requires_grad_() for x in e.tensors()]
    given = [oracles.cut_from_nan(x).requires_grad_() for x in leaves[:3]] if e.strided else leaves
    start = None
    if e.past:
        S, z = state_of(leaves[3].float(), leaves[4].float(), None, e.scale)
        start = LinearState(S, z, torch.full((e.B,), e.past))
    out, state = attend(
        *given[:3],
        causal=e.causal,
        normalize=e.normalize,
        scale=e.scale,
        key_mask=e.mask(),
        initial_state=start,
        return_state=True,
    )
    assert out.dtype == e.dtype and state.S.dtype == state.z.dtype == torch.float32
    assert torch.equal(state.t, e.past + seen(e)), state.t
    pulls = [p.to(x.dtype) for p, x in zip(e.pulls(), (out, *state[:2]), strict=True)]
    if e.strided:
        pulls = [oracles.cut_from_nan(x) for x in pulls]
    grads = torch.autograd.grad(
        [out, *state[:2]], [*given[:3], *leaves[3:]], pulls, materialize_grads=True
    )
    return [out, *state[:2], *grads]


def seen(e: Example) -> Tensor:
    mask = e.mask()
    S = e.T if e.S is None else e.S
    return torch.full((e.B,), S) if mask is None else mask.sum(-1)


def close(got: Tensor, want: Tensor, plain: Tensor | None, eps: float, what: object) -> None:
    """Each row at most twice as wrong as plain PyTorch, plus ``eps`` of the largest in its head."""
    assert got.shape == want.shape, (what, got.shape, want.shape)
    if got.numel() == 0:
        return
    error = (got.detach().double() - want.detach()).abs().amax(-1)
    allowed = eps * want.detach().abs().flatten(2).amax(-1).unsqueeze(-1).clamp(min=1e-3)
    if plain is not None:
        reference = (plain.detach().double() - want.detach()).abs().amax(-1)
        allowed = allowed + 2 * (reference if want.dim() == 4 else reference.unsqueeze(-1))
    if want.dim() == 3:
        error = error.unsqueeze(-1)
    assert (error <= allowed).all(), (what, (error / allowed).max().item())


def compare(m: Any, e: Example, plain: Callable[..., Any] | None = None, **how: bool) -> None:
    with small_and_poisoned(m, **how):
        got = computed(e, m.linear_attention)
    plain_values = [None] * len(NAMES) if plain is None else computed(e, plain)
    eps = torch.finfo(e.dtype).eps * (8 if e.dtype == torch.float32 else 2)
    for name, g, w, p in zip(NAMES, got, wanted(e), plain_values, strict=True):
        close(g, w, p, eps, (name, e))


@check
def outputs_over_several_chunks(m: Any) -> None:
    e = Example(H=1, T=35, D=3, masked=True, scale=0.6)
    with small_and_poisoned(m):
        out = m.linear_attention(*e.tensors()[:3], key_mask=e.mask(), scale=e.scale)
    close(out, wanted(e)[0], None, 1e-6, e)


@check
def half_precision_with_scores_beyond_its_range(m: Any) -> None:
    e = Example(H=1, T=9, D=3, dtype=torch.float16, std=24.0)
    q, k, _ = e.tensors()[:3]
    s = (q.float() @ k.float().mT).abs()
    assert (s * s / 2).max() > 65504
    with small_and_poisoned(m):
        out = m.linear_attention(*e.tensors()[:3])
    close(out, wanted(e)[0], None, 2e-3, e)


@check
def everything_of_two_blocks_of_columns(m: Any) -> None:
    compare(m, Example(H=1, T=17, D=1, Dv=18, masked=True, past=4, scale=0.6, strided=True))


@check
def gradients_over_several_chunks(m: Any) -> None:
    compare(m, Example(H=1, T=35, D=3, masked=True))


@check
def a_query_that_sees_nothing(m: Any) -> None:
    leaves = [x.requires_grad_() for x in Example(T=7).tensors()[:3]]
    mask = torch.arange(7)[None] > 2
    with small_and_poisoned(m):
        out = m.linear_attention(*leaves, key_mask=mask)
        assert not out[:, :, :3].any(), "not zero"
        for g in torch.autograd.grad(out[:, :, :3].sum(), leaves):
            assert not g.any(), "a gradient"


# Wrong ones: the source with a part replaced, loaded from a file of its own, because the
# interpreter reads the source of what it runs.

_FOLDER = tempfile.TemporaryDirectory(prefix="mutants")
_NUMBER = itertools.count()


def _real() -> Any:
    return importlib.import_module("course.kernels.taylor")


def _edited(old: str, new: str, count: int = 1) -> Any:
    source = inspect.getsource(_real())
    assert source.count(old) == count, (old, source.count(old))
    name = f"taylor_{next(_NUMBER)}"
    path = Path(_FOLDER.name) / f"{name}.py"
    path.write_text(source.replace(old, new), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _mutant(old: str, new: str, count: int = 1) -> Callable[[], Any]:
    return lambda: _edited(old, new, count)


_SIGHT = "past = (t[:, None] <= u[None, :]) if QUERY else (t[:, None] >= u[None, :])"

MUTANTS: dict[str, Callable[[], Any]] = {
    "the current token is hidden": _mutant(
        _SIGHT, _SIGHT.replace("<=", "<").replace(">=", ">"), count=2
    ),
    "the future pulls": _mutant("ds = tl.where(past, dA * (1.0 + s), 0.0)", "ds = dA * (1.0 + s)"),
    "the slope of s² is forgotten": _mutant("dA * (1.0 + s)", "dA"),
    "the last ragged tile is dropped": _mutant(
        "tl.minimum(T, (g + 1) * chunk), BT)", "tl.minimum(T // BT * BT, (g + 1) * chunk), BT)"
    ),
    "time is not reversed": _mutant("g = chunks - 1 - step if QUERY else step", "g = step"),
    "squares count like products of two": _mutant("tl.where(d == i, _ROOT_HALF, 0.0)", "(d == i)"),
    "half of the symmetric state is not read": _mutant(
        "low, high = tl.minimum(i, d), tl.maximum(i, d)", "low, high = i, d"
    ),
    "nothing flows through z": _mutant(" + w[:, None] * z_i[None, :]", ""),
    "nothing flows through the denominator": _mutant(" + w[:, None] * w_u[None, :]", ""),
    "w takes part in every block of columns": _mutant("w = tl.where(first == 0, w, 0.0)", "w += 0"),
    "padding is a token": _mutant(
        "seen = seen & (tl.load(mask + t * stride_ms, mask=seen, other=0) != 0)", "seen = seen"
    ),
    "the constant feature of padding pulls": _mutant(
        "dV = tl.where(real[:, None] > 0, dV, 0.0)", "dV = dV"
    ),
    "the scale acts on features only": _mutant(" * (root * root)", "", count=2),
    "a value column is assumed next to the last": _mutant(
        "d.to(tl.int64)[None, :] * stride_d", "d.to(tl.int64)[None, :]"
    ),
    "what lies beside a tile is read": _mutant(
        "mask=seen[:, None] & (d < width)[None, :], other=0.0",
        "mask=seen[:, None] & (d < width + 1)[None, :], other=0.0",
    ),
    "the numerator is half before it is divided": _mutant(
        "num = num / total[:, None]",
        "num = num.to(out.dtype.element_ty).to(tl.float32) / total[:, None]",
    ),
    "nothing divided by nothing": _mutant(
        'total = tl.where(total == 0, float("inf"), total)', "total = total + 0"
    ),
}

# Where there is a GPU, kernels are compiled for it, and these tensors lie on the CPU.
INTERPRETED = importlib.util.find_spec("triton") is not None and not torch.cuda.is_available()
SUITES = [Suite("kernels.taylor", _real, MUTANTS, CHECKS)] if INTERPRETED else []
