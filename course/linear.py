"""Linear attention: similarities φ(q)·φ(k) re-associated, in four forms, and one step of its RNN.

    S_t = S_{t−1} + φ(k_t) v_tᵀ      z_t = z_{t−1} + φ(k_t)      o_t = S_tᵀ φ(q_t) / φ(q_t)·z_t

The four forms below go through that recurrence in four ways. They get features Q = φ(q), K = φ(k)
``[…, T, C]`` and values V that carry a 1 in their last column: what is summed there is z, so that
one matrix ``S […, C, Dv + 1]`` holds both sums, and the division comes last. Each returns the pair
(sums read, new S). Notebook 07 derives them in the same lines. Here S is the state, as in the
formula; the number of keys is written ``S_len``. Tokens lie on rows, so S_tᵀ φ(q_t) is ``q @ S``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor, nn

from course.engine import kernels, linear_chunk, linear_whole
from course.engine.problem import (
    Answer,
    Method,
    Problem,
    pose,
    require_inputs,
    require_map,
    require_state,
    require_token,
    root_of,
    start_of,
)
from course.feature_maps import features, width
from course.inputs import require_choice, require_flag, require_positive, without_autocast
from course.state import LinearState

IMPLS = ("torch", "reference", "triton")
CHUNK_SIZE = 64  # operations are fewest at 1, but products of 64×64 are the first to run fast


def parallel(Q: Tensor, K: Tensor, V: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """``Q S + tril(Q Kᵀ) V``: all similarities at once, the future cut off: a table of T×T."""
    out = Q @ S + (Q @ K.mT).tril() @ V
    return out, S + K.mT @ V


def scan(Q: Tensor, K: Tensor, V: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """``S_t = S_0 + k_1 v_1ᵀ + … + k_t v_tᵀ`` for all t: T + 1 matrices by running sums."""
    states = torch.cat([S[..., None, :, :], K[..., :, None] * V[..., None, :]], -3).cumsum(-3)
    out = (Q[..., None, :] @ states[..., 1:, :, :])[..., 0, :]
    return out, states[..., -1, :, :]


def recurrent(Q: Tensor, K: Tensor, V: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """``S_t = S_{t−1} + k_t v_tᵀ``, then ``q_t S_t``: one state, token after token."""
    out = []
    for q, k, v in zip(Q.split(1, -2), K.split(1, -2), V.split(1, -2), strict=True):
        S = S + k.mT @ v
        out.append(q @ S)
    return torch.cat(out, -2), S


def chunk(
    Q: Tensor, K: Tensor, V: Tensor, S: Tensor, size: int = CHUNK_SIZE
) -> tuple[Tensor, Tensor]:
    """``q S + tril(q kᵀ) v`` a chunk, then ``S + kᵀ v``: a small table inside, S between."""
    out = []
    for q, k, v in zip(Q.split(size, -2), K.split(size, -2), V.split(size, -2), strict=True):
        out.append(q @ S + (q @ k.mT).tril() @ v)
        S = S + k.mT @ v
    return torch.cat(out, -2), S


def quadratic(Q: Tensor, K: Tensor, V: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Non-causal, ``Q S + (Q Kᵀ) V``: the table of T×S."""
    return Q @ S + (Q @ K.mT) @ V, S + K.mT @ V


def one_state(Q: Tensor, K: Tensor, V: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Non-causal, ``Q (S + Kᵀ V)``: every query reads the same sums."""
    S = S + K.mT @ V
    return Q @ S, S


def one_token(
    q: Tensor, k: Tensor, v: Tensor, S: Tensor, z: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One step of the RNN, on rows ``[…, 1, ·]``: numerator, denominator, and the new sums."""
    S, z = S + k.mT @ v, z + k
    return q @ S, q @ z.mT, S, z


def divide(sums: Tensor) -> Tensor:
    """The numerator over the denominator, which stands in the last column."""
    num, den = sums[..., :-1], sums[..., -1:]
    # x/∞ is 0 with gradient 0. No epsilon: one that float16 can hold would change small outputs.
    return num / den.masked_fill(den == 0, math.inf)


Form = Callable[..., tuple[Tensor, Tensor]]
FORMS: dict[str, Form] = {
    "parallel": parallel,
    "scan": scan,
    "recurrent": recurrent,
    "chunk": chunk,
}


class _Options(TypedDict, total=False):
    feature_map: str | nn.Module
    normalize: bool
    scale: float | None
    key_mask: Tensor | None
    initial_state: LinearState | None
    form: str | None
    chunk_size: int | None
    impl: str


@overload
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    return_state: Literal[False] = False,
    **options: Unpack[_Options],
) -> Tensor: ...
@overload
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    return_state: Literal[True],
    **options: Unpack[_Options],
) -> tuple[Tensor, LinearState]: ...
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    feature_map: str | nn.Module = "elu",
    normalize: bool = True,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    initial_state: LinearState | None = None,
    return_state: bool = False,
    form: str | None = None,
    chunk_size: int | None = None,
    impl: str = "torch",
) -> Tensor | tuple[Tensor, LinearState]:
    """An average of the values with weights proportional to φ(q)·φ(k), in time linear in T.

    ``q [B,H,T,D]``, ``k [B,H,S,D]``, ``v [B,H,S,Dv]`` → ``[B,H,T,Dv]`` in the dtype of ``q``, and
    with ``return_state`` the pair (output, :class:`LinearState`). Sums are kept in float32 (float64
    for float64 inputs), under autocast too.

    ``causal`` must be given; it needs T = S, the past comes as ``initial_state``. ``feature_map``:
    a name, or a module with ``.width(D)`` (see :mod:`course.feature_maps`). ``normalize``: divide
    by φ(q)·z. ``scale``: factor of the scores q·k that the map sees, above 0 (q and k each get its
    root); None is 1 here, and ``D**-0.5`` in :func:`course.attention.softmax_attention`.
    ``key_mask [B,S]``: boolean, True = a real token; padding leaves S, z and t. ``impl``:
    ``torch`` (the engine, in chunks of ``chunk_size``, None = 64), ``reference``, or ``triton``
    (kernels, which choose their chunks; maps elu, relu, identity and taylor with D ≤ 16).
    ``form``, with ``reference`` only: ``parallel``, ``scan``, ``recurrent`` or ``chunk`` (None);
    the same result. Non-causal, ``parallel`` is the quadratic form, all others sum one state first.

    A query that sees no key, or none with a feature in common, gets zeros and gives zero gradient.
    What a padded key or value holds has no influence (NaN too). Positions for maps that want them
    count real tokens and go on from ``initial_state.t``; a non-causal query has the position of
    its key when T = S, else its own index. Under ``torch.compile``, ``torch`` is the reference's
    chunk form, which the compiler can follow.

    Raises ``ValueError`` naming the argument for a wrong rank, unequal sizes or dtypes, causal
    with T ≠ S, a mask that does not fit, an unknown name, a signed map with ``normalize``, or what
    ``triton`` does not have; ``RuntimeError`` with the reason where ``triton`` cannot run, and for
    forward-mode derivatives of ``torch``.
    Source: Katharopoulos et al. 2020 (arXiv:2006.16236), equations 8–12; chunks: Hua et al. 2022
    (arXiv:2202.10447), section 3.2.
    """
    require_choice("impl", impl, IMPLS)
    _check_way(form, chunk_size, impl)
    require_flag("causal", causal)
    require_flag("return_state", return_state)
    fm = require_map(feature_map, normalize)
    root = root_of(scale)
    require_inputs(q, k, v, causal, key_mask)
    B, H, _, D = k.shape
    require_state(initial_state, LinearState, B, H, width(fm, D), v.shape[-1])
    if impl == "triton":
        return kernels.linear(
            q,
            k,
            v,
            causal=bool(causal),
            feature_map=fm,
            normalize=bool(normalize),
            scale=1.0 if scale is None else float(scale),
            key_mask=key_mask,
            initial_state=initial_state,
            return_state=bool(return_state),
        )
    with without_autocast(q.device):
        problem, t = pose(q, k, v, fm, key_mask, initial_state)
        want_z = bool(normalize or return_state)
        size = CHUNK_SIZE if chunk_size is None else int(chunk_size)
        reference = partial(by_formula, _way(form, causal, size))
        how = Method(fm, root, bool(normalize), want_z, size, reference)
        solve = linear_chunk.attend if causal else linear_whole.attend
        if impl == "reference" or torch.compiler.is_compiling():
            solve = reference
        out, S, z = solve(problem, how)
        out = out.to(q.dtype)
        return (out, LinearState(S, z, t)) if return_state else out


def _way(form: str | None, causal: bool, size: int) -> Form:
    if not causal:
        return quadratic if form == "parallel" else one_state
    return partial(chunk, size=size) if form in (None, "chunk") else FORMS[form]


def by_formula(form: Form, problem: Problem, how: Method) -> Answer:
    """Features, a 1 behind each value and z behind S; one of the forms; the division."""
    q, k, v, S, z, key_mask, of_queries, of_keys = problem
    Q = features(how.fm, how.root, q, of_queries, None)
    K = features(how.fm, how.root, k, of_keys, key_mask)
    V = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    sums, both = form(Q, K, V, torch.cat([S, z.unsqueeze(-1)], -1))
    out = divide(sums) if how.normalize else sums[..., :-1].clone()
    return out, both[..., :-1].clone(), both[..., -1].clone()


def linear_attention_step(
    q_t: Tensor,
    k_t: Tensor,
    v_t: Tensor,
    state: LinearState | None = None,
    *,
    feature_map: str | nn.Module = "elu",
    normalize: bool = True,
    scale: float | None = None,
    impl: str = "torch",
) -> tuple[Tensor, LinearState]:
    """One token of the RNN: ``q_t, k_t [B,H,D]``, ``v_t [B,H,Dv]`` → (``[B,H,Dv]``, new state).

    ``state=None`` starts from nothing. The given state is left as it was. Options, precision and
    errors as in :func:`linear_attention`.
    Source: Katharopoulos et al. 2020 (arXiv:2006.16236), equations 16–20.
    """
    require_choice("impl", impl, IMPLS)
    fm = require_map(feature_map, normalize)
    root = root_of(scale)
    require_token(q_t, k_t, v_t)
    B, H, D = k_t.shape
    C, Dv = width(fm, D), v_t.shape[-1]
    require_state(state, LinearState, B, H, C, Dv)
    if impl == "triton":
        return kernels.step(
            q_t,
            k_t,
            v_t,
            state,
            feature_map=fm,
            normalize=bool(normalize),
            scale=1.0 if scale is None else float(scale),
        )
    with without_autocast(q_t.device):
        wide = torch.promote_types(q_t.dtype, torch.float32)
        past = start_of(state, LinearState, B, H, C, Dv, wide, q_t.device)
        place = past.t[:, None, None] if getattr(fm, "positional", False) else None
        Q = features(fm, root, q_t.to(wide).unsqueeze(2), place, None)
        K = features(fm, root, k_t.to(wide).unsqueeze(2), place, None)
        V = v_t.to(wide).unsqueeze(2)
        num, den, S, z = one_token(Q, K, V, past.S, past.z.unsqueeze(2))
        out = divide(torch.cat([num, den], -1)) if normalize else num
        return out.squeeze(2).to(q_t.dtype), LinearState(S, z.squeeze(2), past.t + 1)


def _check_way(form: str | None, chunk_size: int | None, impl: str) -> None:
    if chunk_size is not None:
        require_positive("chunk_size", chunk_size)
    if form is not None:
        require_choice("form", form, FORMS)
    if form is not None and impl != "reference":
        raise ValueError(f'form: expected None unless impl="reference", got {form!r}')
    if chunk_size is not None and impl == "triton":
        raise ValueError(f'chunk_size: expected None with impl="triton", got {chunk_size!r}')
