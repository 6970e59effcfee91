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
from course.engine.problem import Answer, Options, Problem
from course.feature_maps import FeatureMap, features, get_feature_map, width
from course.inputs import (
    require_choice,
    require_flag,
    require_floating,
    require_key_mask,
    require_number,
    require_positive,
    require_rank,
    require_same,
    require_same_dtype,
    without_autocast,
)
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
    fm = _feature_map(feature_map, normalize)
    root = _root(scale)
    _check_inputs(q, k, v, causal, key_mask)
    B, H, S_len, D = k.shape
    _check_state(initial_state, B, H, width(fm, D), v.shape[-1])
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
        wide = torch.promote_types(q.dtype, torch.float32)
        past = _start(initial_state, B, H, width(fm, D), v.shape[-1], wide, q.device)
        q_wide, k_wide, v_wide = q.to(wide), k.to(wide), v.to(wide)
        if key_mask is not None:
            # Before the map: 0 · NaN is NaN, in the gradient of the map too.
            hidden = ~key_mask[:, None, :, None]
            k_wide, v_wide = k_wide.masked_fill(hidden, 0), v_wide.masked_fill(hidden, 0)
        places = _positions(fm, initial_state, past.t, key_mask, q.shape[2], S_len)
        problem = Problem(q_wide, k_wide, v_wide, past.S, past.z, key_mask, *places)
        want_z = bool(normalize or return_state)
        size = CHUNK_SIZE if chunk_size is None else int(chunk_size)
        formula = partial(_by_formula, _way(form, causal, size))
        how = Options(fm, root, bool(normalize), want_z, size, formula)
        solve = linear_chunk.attend if causal else linear_whole.attend
        if impl == "reference" or torch.compiler.is_compiling():
            solve = formula
        out, S, z = solve(problem, how)
        seen = S_len if key_mask is None else key_mask.sum(-1)
        out = out.to(q.dtype)
        return (out, LinearState(S, z, past.t + seen)) if return_state else out


def _way(form: str | None, causal: bool, size: int) -> Form:
    if not causal:
        return quadratic if form == "parallel" else one_state
    return partial(chunk, size=size) if form in (None, "chunk") else FORMS[form]


def _by_formula(form: Form, problem: Problem, how: Options) -> Answer:
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
    fm = _feature_map(feature_map, normalize)
    root = _root(scale)
    for name, x, axes in (("q_t", q_t, "B H D"), ("k_t", k_t, "B H D"), ("v_t", v_t, "B H Dv")):
        require_rank(name, x, axes)
        require_floating(name, x)
    for index, axis in enumerate("BHD"):
        require_same(axis, {"q_t": q_t.shape[index], "k_t": k_t.shape[index]})
    for index, axis in enumerate("BH"):
        require_same(axis, {"k_t": k_t.shape[index], "v_t": v_t.shape[index]})
    require_same_dtype(q_t=q_t, k_t=k_t, v_t=v_t)
    require_positive("Dv", v_t.shape[2])
    B, H, D = k_t.shape
    C, Dv = width(fm, D), v_t.shape[-1]
    _check_state(state, B, H, C, Dv)
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
        past = _start(state, B, H, C, Dv, wide, q_t.device)
        place = past.t[:, None, None] if getattr(fm, "positional", False) else None
        Q = features(fm, root, q_t.to(wide).unsqueeze(2), place, None)
        K = features(fm, root, k_t.to(wide).unsqueeze(2), place, None)
        V = v_t.to(wide).unsqueeze(2)
        num, den, S, z = one_token(Q, K, V, past.S, past.z.unsqueeze(2))
        out = divide(torch.cat([num, den], -1)) if normalize else num
        return out.squeeze(2).to(q_t.dtype), LinearState(S, z.squeeze(2), past.t + 1)


# What was passed in


def _feature_map(feature_map: str | nn.Module, normalize: bool) -> nn.Module:
    require_flag("normalize", normalize)
    fm = get_feature_map(feature_map) if isinstance(feature_map, str) else feature_map
    if not isinstance(fm, nn.Module) or not callable(getattr(fm, "width", None)):
        raise ValueError(
            f"feature_map: expected a name or a module with .width(D), got {type(fm).__name__}"
        )
    if normalize and getattr(fm, "signed", False):
        raise ValueError(
            f"feature_map: expected a map whose φ(q)·φ(k) is never negative with normalize=True, "
            f"got the signed map {feature_map if isinstance(feature_map, str) else fm}; "
            f"use normalize=False"
        )
    return fm


def _check_way(form: str | None, chunk_size: int | None, impl: str) -> None:
    if chunk_size is not None:
        require_positive("chunk_size", chunk_size)
    if form is not None:
        require_choice("form", form, FORMS)
    if form is not None and impl != "reference":
        raise ValueError(f'form: expected None unless impl="reference", got {form!r}')
    if chunk_size is not None and impl == "triton":
        raise ValueError(f'chunk_size: expected None with impl="triton", got {chunk_size!r}')


def _root(scale: float | None) -> float:
    """Queries and keys get one root of the scale each."""
    if scale is None:
        return 1.0
    require_number("scale", scale, above=0)
    return math.sqrt(scale)


def _check_inputs(q: Tensor, k: Tensor, v: Tensor, causal: bool, key_mask: Tensor | None) -> None:
    for name, x, axes in (("q", q, "B H T D"), ("k", k, "B H S D"), ("v", v, "B H S Dv")):
        require_rank(name, x, axes)
        require_floating(name, x)
    for axis, index in (("B", 0), ("H", 1), ("D", 3)):
        require_same(axis, {"q": q.shape[index], "k": k.shape[index]})
    for axis, index in (("B", 0), ("H", 1), ("S", 2)):
        require_same(axis, {"k": k.shape[index], "v": v.shape[index]})
    require_same_dtype(q=q, k=k, v=v)
    require_positive("Dv", v.shape[3])
    if causal and q.shape[2] != k.shape[2]:
        raise ValueError(
            f"q and k: expected T = S when causal, got T = {q.shape[2]} and S = {k.shape[2]}; "
            "pass the past as initial_state"
        )
    if key_mask is not None:
        require_key_mask(key_mask, k)


def _check_state(state: LinearState | None, B: int, H: int, C: int, Dv: int) -> None:
    if state is None:
        return
    if not isinstance(state, LinearState):
        raise ValueError(f"initial_state: expected a LinearState, got {type(state).__name__}")
    for name, x, axes, shape in (
        ("S", state.S, "B H C Dv", (B, H, C, Dv)),
        ("z", state.z, "B H C", (B, H, C)),
        ("t", state.t, "B", (B,)),
    ):
        require_rank(f"initial_state.{name}", x, axes)
        if tuple(x.shape) != shape:
            raise ValueError(
                f"initial_state.{name}: expected [{axes}] = {list(shape)}, got {list(x.shape)}"
            )
    require_floating("initial_state.S", state.S)
    require_floating("initial_state.z", state.z)
    if state.t.is_floating_point() or state.t.is_complex() or state.t.dtype == torch.bool:
        raise ValueError(f"initial_state.t: expected whole numbers, got {state.t.dtype}")


def _start(
    state: LinearState | None,
    B: int,
    H: int,
    C: int,
    Dv: int,
    dtype: torch.dtype,
    device: torch.device,
) -> LinearState:
    if state is not None:
        return LinearState(state.S.to(dtype), state.z.to(dtype), state.t)
    return LinearState(
        torch.zeros(B, H, C, Dv, dtype=dtype, device=device),
        torch.zeros(B, H, C, dtype=dtype, device=device),
        torch.zeros(B, dtype=torch.int64, device=device),
    )


def _positions(
    fm: nn.Module,
    state: LinearState | None,
    t: Tensor,
    key_mask: Tensor | None,
    T: int,
    S_len: int,
) -> tuple[Tensor | None, Tensor | None]:
    """Positions of queries and keys ``[B,1,T or S]``, for the maps that want them."""
    if not getattr(fm, "positional", False):
        return None, None
    if state is None and key_mask is None and isinstance(fm, FeatureMap):
        fm.require_positions(0, S_len - 1)  # known without looking into a tensor
    if key_mask is None:
        keys = t[:, None] + torch.arange(S_len, device=t.device)
    else:
        # Padding has the position of the last real token, on whichever side of a cut it stands.
        keys = (t[:, None] + key_mask.cumsum(-1) - 1).clamp(min=0)
    keys = keys[:, None]
    if S_len == T:
        return keys, keys
    return torch.arange(T, device=t.device).expand(len(t), 1, -1), keys
