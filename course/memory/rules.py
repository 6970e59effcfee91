"""Other rules by which tokens are written into a state: a gate that fades, a rule that corrects.

    additive   S_t = S_{t−1} + k_t v_tᵀ                        (course.linear.recurrent, .chunk)
    gated      S_t = γ_t S_{t−1} + k_t v_tᵀ                    γ_t in (0, 1], one a head and token
    delta      S_t = S_{t−1} + β_t k_t (v_t − S_{t−1}ᵀ k_t)ᵀ     β_t in [0, 1]

All three read o_t = S_tᵀ q_t. Each rule stands here as a loop over tokens and by chunks, on rows,
as the forms of :mod:`course.linear` do: Q, K ``[…, T, C]``, V ``[…, T, Dv]``, S ``[…, C, Dv]``, the
rule's own number in a column ``[…, T, 1]``; each returns the pair (values read, new S). The chunk
form needs no engine: at the sizes at which models train, all chunks at once is no faster.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor, nn
from torch.linalg import solve_triangular

from course.engine.problem import (
    Method,
    pose,
    require_inputs,
    require_map,
    require_state,
    require_token,
    root_of,
    start_of,
    tokens_of,
    without_padding,
)
from course.feature_maps import width
from course.inputs import (
    require_choice,
    require_flag,
    require_floating,
    require_positive,
    require_rank,
    require_same,
    require_same_device,
    without_autocast,
)
from course.linear import CHUNK_SIZE, by_formula, chunk, linear_attention_step
from course.state import DeltaState, LinearState

FORMS = ("loop", "chunk")


def gated_loop(
    Q: Tensor, K: Tensor, V: Tensor, S: Tensor, log_decay: Tensor
) -> tuple[Tensor, Tensor]:
    """``S_t = γ_t S_{t−1} + k_t v_tᵀ``, then ``q_t S_t``, token after token; γ = e^log_decay."""
    out, rows = [], (x.split(1, -2) for x in (Q, K, V, log_decay))
    for q, k, v, log in zip(*rows, strict=True):
        S = log.exp() * S + k.mT @ v
        out.append(q @ S)
    return torch.cat(out, -2), S


def gated_chunk(
    Q: Tensor, K: Tensor, V: Tensor, S: Tensor, log_decay: Tensor, size: int = CHUNK_SIZE
) -> tuple[Tensor, Tensor]:
    """The chunk form, each similarity q_t·k_i times what is left of token i: γ_{i+1} … γ_t.

    A product of decays is e to a sum of logarithms. They are summed from i + 1 on: the difference
    of two sums from the beginning would lose its digits where much was forgotten before i.
    """
    out, rows = [], (x.split(size, -2) for x in (Q, K, V, log_decay))
    for q, k, v, log in zip(*rows, strict=True):
        A = q @ k.mT
        left = log.expand_as(A).tril(-1).cumsum(-2).exp()  # [t, i]: of token i, at token t
        left_of_S = log.cumsum(-2).exp()
        out.append(left_of_S * (q @ S) + (left * A).tril() @ v)
        S = left_of_S[..., -1:, :] * S + (left[..., -1:, :].mT * k).mT @ v
    return torch.cat(out, -2), S


def delta_loop(Q: Tensor, K: Tensor, V: Tensor, S: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """``S_t = S_{t−1} + β_t k_t (v_t − k_t S_{t−1})``, then ``q_t S_t``, token after token."""
    out, rows = [], (x.split(1, -2) for x in (Q, K, V, beta))
    for q, k, v, b in zip(*rows, strict=True):
        S = S + k.mT @ (b * (v - k @ S))
        out.append(q @ S)
    return torch.cat(out, -2), S


def delta_chunk(
    Q: Tensor, K: Tensor, V: Tensor, S: Tensor, beta: Tensor, size: int = CHUNK_SIZE
) -> tuple[Tensor, Tensor]:
    """The chunk form with V′ in the place of V: what the loop would have added in this chunk.

    Its row i is β_i (v_i − k_i S − Σ_{j<i} (k_i·k_j) V′_j): a triangular system. Solved,
    V′ = M (V − K S) with M = (I + L)⁻¹ diag(β) and L = tril(diag(β) K Kᵀ, −1); the literature's WY
    form has U = M V, W = M K and V′ = U − W S.
    """
    out, rows = [], (x.split(size, -2) for x in (Q, K, V, beta))
    for q, k, v, b in zip(*rows, strict=True):
        before = (b * (k @ k.mT)).tril(-1)  # the system is I + before
        new = solve_triangular(before, b * (v - k @ S), upper=False, unitriangular=True)
        out.append(q @ S + (q @ k.mT).tril() @ new)
        S = S + k.mT @ new
    return torch.cat(out, -2), S


class _Common(TypedDict, total=False):
    key_mask: Tensor | None
    form: str
    chunk_size: int | None


class _Gated(_Common, total=False):
    feature_map: str | nn.Module
    normalize: bool
    scale: float | None
    initial_state: LinearState | None


class _Delta(_Common, total=False):
    initial_state: DeltaState | None


@overload
def gated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor,
    return_state: Literal[False] = False,
    **options: Unpack[_Gated],
) -> Tensor: ...
@overload
def gated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor,
    return_state: Literal[True],
    **options: Unpack[_Gated],
) -> tuple[Tensor, LinearState]: ...
def gated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor,
    feature_map: str | nn.Module = "elu",
    normalize: bool = True,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    initial_state: LinearState | None = None,
    return_state: bool = False,
    form: str = "chunk",
    chunk_size: int | None = None,
) -> Tensor | tuple[Tensor, LinearState]:
    """Causal linear attention whose sums S and z fade: both are multiplied by γ before each token.

    ``q, k [B,H,T,D]``, ``v [B,H,T,Dv]``, ``log_decay [B,H,T]`` = ln γ ≤ 0 → ``[B,H,T,Dv]`` in the
    dtype of ``q``, and with ``return_state`` the pair (output, :class:`LinearState`). With
    ``log_decay`` 0 it is :func:`course.linear.linear_attention`, whose ``feature_map``,
    ``normalize``, ``scale``, ``key_mask`` and precision it has; a padded token does not fade the
    state either. Above 0 (γ in place of ln γ, say) the state grows, soon without limit: the numbers
    are not looked at, which would make a GPU wait. ``form``: ``chunk`` (chunks of ``chunk_size``,
    None = 64) or ``loop``, the same result, slowly.

    Raises ``ValueError`` naming the argument, as there.
    Source: Yang et al. 2024 (arXiv:2312.06635), section 4, with one decay a head: Dao and Gu 2024
    (arXiv:2405.21060), section 6.
    """
    size = _size(form, chunk_size)
    require_flag("return_state", return_state)
    fm, root = require_map(feature_map, normalize), root_of(scale)
    require_inputs(q, k, v, True, key_mask)
    _require_number_a_token("log_decay", log_decay, q, "B H T")
    B, H, T, D = k.shape
    require_state(initial_state, LinearState, B, H, width(fm, D), v.shape[-1])
    with without_autocast(q.device):
        problem, t = pose(q, k, v, fm, key_mask, initial_state)
        rule = gated_loop if form == "loop" else partial(gated_chunk, size=size)
        fading = partial(rule, log_decay=_column(log_decay, problem.q, key_mask))
        solve = partial(by_formula, fading if T else chunk)  # without a token nothing fades
        out, S, z = solve(problem, Method(fm, root, bool(normalize), True, size, solve))
        out = out.to(q.dtype)
        return (out, LinearState(S, z, t)) if return_state else out


def gated_attention_step(
    q_t: Tensor,
    k_t: Tensor,
    v_t: Tensor,
    state: LinearState | None = None,
    *,
    log_decay: Tensor,
    feature_map: str | nn.Module = "elu",
    normalize: bool = True,
    scale: float | None = None,
) -> tuple[Tensor, LinearState]:
    """One token: ``q_t, k_t [B,H,D]``, ``v_t [B,H,Dv]``, ``log_decay [B,H]`` → (o_t, new state).

    ``state=None`` starts from nothing. The given state is left as it was. Options, precision and
    errors as in :func:`gated_attention`.
    """
    require_token(q_t, k_t, v_t)
    _require_number_a_token("log_decay", log_decay, q_t, "B H")
    if state is not None:
        fm = require_map(feature_map, normalize)
        (B, H, D), Dv = k_t.shape, v_t.shape[-1]
        require_state(state, LinearState, B, H, width(fm, D), Dv)
        wide = torch.promote_types(q_t.dtype, torch.float32)
        past = start_of(state, LinearState, B, H, width(fm, D), Dv, wide, q_t.device)
        decay = log_decay.to(wide).exp()[..., None]
        state = LinearState(decay[..., None] * past.S, decay * past.z, past.t)
    return linear_attention_step(
        q_t, k_t, v_t, state, feature_map=feature_map, normalize=normalize, scale=scale
    )


@overload
def delta_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    beta: Tensor,
    return_state: Literal[False] = False,
    **options: Unpack[_Delta],
) -> Tensor: ...
@overload
def delta_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    beta: Tensor,
    return_state: Literal[True],
    **options: Unpack[_Delta],
) -> tuple[Tensor, DeltaState]: ...
def delta_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    beta: Tensor,
    key_mask: Tensor | None = None,
    initial_state: DeltaState | None = None,
    return_state: bool = False,
    form: str = "chunk",
    chunk_size: int | None = None,
) -> Tensor | tuple[Tensor, DeltaState]:
    """Causal linear attention that corrects: each token moves what its key reads towards its value.

    ``q, k [B,H,T,D]``, ``v [B,H,T,Dv]``, ``beta [B,H,T]`` → ``[B,H,T,Dv]`` in the dtype of ``q``,
    and with ``return_state`` the pair (output, :class:`DeltaState`). Keys are taken as they come:
    β|k|² = 1 stores the newest value exactly, and above 2 the state can grow without limit, so give
    keys of length 1 and β in [0, 1]. The state is kept in float32 (float64 for float64 inputs).
    ``key_mask [B,T]``: boolean, True = a real token; padding leaves the state as it is. ``form``:
    ``chunk`` (chunks of ``chunk_size``, None = 64) or ``loop``, the same result, slowly.

    Raises ``ValueError`` naming the argument, as :func:`course.linear.linear_attention` does.
    Source: Schlag et al. 2021 (arXiv:2102.11174), equation 24; chunks: Yang et al. 2024
    (arXiv:2406.06484), equations 6–11.
    """
    size = _size(form, chunk_size)
    require_flag("return_state", return_state)
    require_inputs(q, k, v, True, key_mask)
    _require_number_a_token("beta", beta, q, "B H T")
    B, H, T, D = k.shape
    require_state(initial_state, DeltaState, B, H, D, v.shape[-1])
    with without_autocast(q.device):
        wide = torch.promote_types(q.dtype, torch.float32)
        past = start_of(initial_state, DeltaState, B, H, D, v.shape[-1], wide, q.device)
        q_wide = q.to(wide)
        k_wide, v_wide = (without_padding(x.to(wide), key_mask) for x in (k, v))
        rule = delta_loop if form == "loop" else partial(delta_chunk, size=size)
        out, S = rule(q_wide, k_wide, v_wide, past.S, _column(beta, q_wide, key_mask))
        out = out.to(q.dtype)
        t = past.t + tokens_of(key_mask, T)
        return (out, DeltaState(S, t)) if return_state else out


def delta_attention_step(
    q_t: Tensor, k_t: Tensor, v_t: Tensor, state: DeltaState | None = None, *, beta: Tensor
) -> tuple[Tensor, DeltaState]:
    """One token: ``q_t, k_t [B,H,D]``, ``v_t [B,H,Dv]``, ``beta [B,H]`` → (o_t, new state).

    ``state=None`` starts from nothing. The given state is left as it was. Precision and errors as
    in :func:`delta_attention`.
    """
    require_token(q_t, k_t, v_t)
    _require_number_a_token("beta", beta, q_t, "B H")
    B, H, D = k_t.shape
    require_state(state, DeltaState, B, H, D, v_t.shape[-1])
    with without_autocast(q_t.device):
        wide = torch.promote_types(q_t.dtype, torch.float32)
        past = start_of(state, DeltaState, B, H, D, v_t.shape[-1], wide, q_t.device)
        q, k, v, b = (x.to(wide).unsqueeze(2) for x in (q_t, k_t, v_t, beta.unsqueeze(-1)))
        out, S = delta_loop(q, k, v, past.S, b)
        return out.squeeze(2).to(q_t.dtype), DeltaState(S, past.t + 1)


# What was passed in


def _size(form: str, chunk_size: int | None) -> int:
    require_choice("form", form, FORMS)
    if chunk_size is None:
        return CHUNK_SIZE
    require_positive("chunk_size", chunk_size)
    return int(chunk_size)


def _require_number_a_token(name: str, x: Tensor, q: Tensor, axes: str) -> None:
    require_rank(name, x, axes)
    require_floating(name, x)
    for index, axis in enumerate(axes.split()):
        require_same(axis, {"q": q.shape[index], name: x.shape[index]})
    require_same_device(**{"q": q, name: x})


def _column(x: Tensor, like: Tensor, key_mask: Tensor | None) -> Tensor:
    """The number of each token as a column ``[B,H,T,1]``, 0 for padding: it changes nothing."""
    return without_padding(x.to(like.dtype).unsqueeze(-1), key_mask)
