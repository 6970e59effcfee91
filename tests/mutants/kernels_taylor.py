"""The fast checks of ``course.kernels.taylor`` when interpreted, and what they must kill.

A subject is the module, or the algorithm in plain PyTorch with one fault. Tiles are small here, so
that few tokens make several tiles, chunks and blocks of columns: 16 tokens, 32, and 16.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from course.feature_maps import get_feature_map
from course.kernels import runtime
from course.state import LinearState
from tests import drawing, oracles
from tests.kernels.watching import poisoned
from tests.mutants import Check, Suite
from tests.mutants.kernels_linear import gradient_of, pulled, read, taylor_features

CHECKS: dict[str, Check] = {}
NAMES = ("out", "S", "z", "dq", "dk", "dv", "dk of the past", "dv of the past")
draw = partial(drawing.draw, dtype=torch.float32)


def check(function: Check) -> Check:
    CHECKS[function.__name__.replace("_", " ")] = function
    return function


@contextlib.contextmanager
def small_and_poisoned(m: Any, *, small: bool = True) -> Iterator[None]:
    """Small tiles, and outputs that are NaN until a kernel writes them."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(poisoned())
        if small and hasattr(m, "sizes"):
            tiles = {"BT": 16, "BV": 16, "num_warps": 4, "num_stages": 1}
            stack.enter_context(mock.patch.object(m, "sizes", lambda dtype, Dv, **_: tiles))
            stack.enter_context(mock.patch.object(m, "CHUNK", 32))
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


# Wrong ones: the algorithm in plain PyTorch, with one fault -------------------------------------


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    normalize: bool = True,
    scale: float = 1.0,
    key_mask: Tensor | None = None,
    initial_state: LinearState | None = None,
    return_state: bool = False,
    wrong: str = "",
) -> Any:
    """Chunks of 32 tokens; gradients by autograd. ``wrong`` names its fault."""
    (B, H, T, D), (S_len, Dv), dtype, size = q.shape, v.shape[2:], q.dtype, 32
    q, k, v = (read(x, wrong).float() for x in (q, k, v))
    root = scale**0.5
    real = torch.ones(B, S_len, dtype=torch.bool) if key_mask is None else key_mask
    there = real[:, None, :, None] | (wrong == "padding is a token")
    if wrong == "the constant feature of padding pulls":
        v = pulled(v, lambda g: g.masked_fill(~there, 1))
    k, v = k.masked_fill(~there, 0), v.masked_fill(~there, 0)
    fq, fk = (taylor_features(x * root, wrong) for x in (q, k))
    if wrong == "half of the symmetric state is not read":
        i, j = torch.triu_indices(D, D)
        pairs = root**2 * k[..., i] * k[..., j].detach() * torch.where(i == j, 0.5**0.5, 1)
        fk = gradient_of(fk, torch.cat([fk[..., : 1 + D], pairs], -1))
    fk = fk.masked_fill(~there, 0)

    C = fk.shape[-1]
    S_0, z_0, t = torch.zeros(B, H, C, Dv), torch.zeros(B, H, C), torch.zeros(B).long()
    if initial_state is not None:
        S_0, z_0, t = initial_state
    t = t + real.sum(-1)
    keys, queries = (range(0, n, size) for n in (S_len, T))
    added = [fk[:, :, g : g + size].mT @ v[:, :, g : g + size] for g in keys]
    added_z = [fk[:, :, g : g + size].sum(2) for g in keys]
    if wrong == "the last ragged tile is dropped" and S_len % size:
        added[-1], added_z[-1] = 0 * added[-1], 0 * added_z[-1]
    S_end, z_end = S_0 + sum(added), z_0 + sum(added_z)

    outs = []
    for g, first in enumerate(queries):
        here = slice(first, first + size)
        Q, S, z = fq[:, :, here], S_end, z_end
        if causal:
            S, z = S_0 + sum(added[:g]), z_0 + sum(added_z[:g])
        if wrong == "time is not reversed":
            S = gradient_of(S, S_0 + sum(added[g + 1 :]))
        if wrong == "nothing flows through z":
            z = z.detach()
        if wrong == "w takes part in every block of columns":
            z = gradient_of(z, -(-Dv // 16) * z)
        num, den = Q @ S, (Q @ z.unsqueeze(-1)).squeeze(-1)
        if causal:
            scores = q[:, :, here] @ k[:, :, here].mT
            if wrong != "the scale acts on features only":
                scores = scores * scale
            order = torch.ones(scores.shape[-2:], dtype=torch.bool)
            order = order.tril(-1 if wrong == "the current token is hidden" else 0)
            order = order & there.mT[:, :, :, here]
            A = 1 + scores + scores**2 / 2
            if wrong == "the slope of s² is forgotten":
                A = gradient_of(A, scores)
            A, every = A.masked_fill(~order, 0), A
            if wrong == "the future pulls":
                A = gradient_of(A, every)
            num, den = num + A @ v[:, :, here], den + A.sum(-1)
        if wrong == "nothing flows through the denominator":
            den = den.detach()
        if wrong == "the numerator is half before it is divided":
            num = num.to(dtype).float()
        if normalize:
            none = (den == 0).unsqueeze(-1)
            quotient = num / den.unsqueeze(-1).masked_fill(none, 1)
            num = quotient + (wrong == "nothing divided by nothing") * 1e-3
            num = num if wrong == "nothing divided by nothing" else num.masked_fill(none, 0)
        outs.append(num)
    out = (torch.cat(outs, 2) if outs else fq @ S_end).to(dtype)
    return (out, LinearState(S_end, z_end, t)) if return_state else out


MUTANTS: dict[str, Callable[[], Any]] = {
    name: partial(SimpleNamespace, linear_attention=partial(chunked, wrong=name))
    for name in (
        "the current token is hidden",
        "the future pulls",
        "the slope of s² is forgotten",
        "the last ragged tile is dropped",
        "time is not reversed",
        "squares weigh as pairs",
        "half of the symmetric state is not read",
        "nothing flows through z",
        "nothing flows through the denominator",
        "w takes part in every block of columns",
        "padding is a token",
        "the constant feature of padding pulls",
        "the scale acts on features only",
        "columns taken for dense",
        "columns beyond the end",
        "the numerator is half before it is divided",
        "nothing divided by nothing",
    )
}


def _real() -> Any:
    return importlib.import_module("course.kernels.taylor")


INTERPRETED = runtime.refusal(torch.zeros(1)) is None
SUITES = [Suite("kernels.taylor", _real, MUTANTS, CHECKS)] if INTERPRETED else []
