"""Linear attention as it reaches whoever computes it: checked, in the dtype of the sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from course.feature_maps import FeatureMap, get_feature_map, width
from course.inputs import (
    require_flag,
    require_floating,
    require_key_mask,
    require_number,
    require_positive,
    require_rank,
    require_same,
    require_same_device,
    require_same_dtype,
)
from course.state import DeltaState, LinearState

State = TypeVar("State", LinearState, DeltaState)


class Problem(NamedTuple):
    """``q [B,H,T,D]``, ``k [B,H,S,D]``, ``v [B,H,S,Dv]``; the past ``S [B,H,C,Dv]``, ``z [B,H,C]``.

    ``key_mask [B,S]``: True = a real token (the others' k and v are 0 already). ``of_queries``,
    ``of_keys``: positions ``[B,1,T or S]``, for maps that want them.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    S: Tensor
    z: Tensor
    key_mask: Tensor | None
    of_queries: Tensor | None
    of_keys: Tensor | None


Answer = tuple[Tensor, Tensor, Tensor]  # output [B,H,T,Dv], new S and z


class Method(NamedTuple):
    """How it is solved: φ(``root``·x) by ``fm``; whether to divide by z, and whether z is wanted.

    ``reference``: the same by a reference form, where autograd must be able to follow.
    """

    fm: nn.Module
    root: float
    normalize: bool
    want_z: bool
    chunk: int
    reference: Callable[[Problem, Method], Answer]


def pose(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    fm: nn.Module,
    key_mask: Tensor | None,
    initial_state: LinearState | None,
) -> tuple[Problem, Tensor]:
    """The problem in the dtype of the sums, and how many real tokens have been seen at its end."""
    wide = torch.promote_types(q.dtype, torch.float32)
    B, H, S_len, D = k.shape
    past = start_of(initial_state, LinearState, B, H, width(fm, D), v.shape[-1], wide, q.device)
    places = positions_of(fm, initial_state, past.t, key_mask, q.shape[2], S_len)
    # Before the map: 0 · NaN is NaN, in the gradient of the map too.
    k, v = (without_padding(x.to(wide), key_mask) for x in (k, v))
    t = past.t + tokens_of(key_mask, S_len)
    return Problem(q.to(wide), k, v, past.S, past.z, key_mask, *places), t


def without_padding(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """``x [B,H,S,·]`` with zeros where ``key_mask [B,S]`` is False."""
    return x if key_mask is None else x.masked_fill(~key_mask[:, None, :, None], 0)


def tokens_of(key_mask: Tensor | None, S_len: int) -> Tensor | int:
    """How many real tokens each text has."""
    return S_len if key_mask is None else key_mask.sum(-1)


def require_map(feature_map: str | nn.Module, normalize: bool) -> nn.Module:
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


def root_of(scale: float | None) -> float:
    """Queries and keys get one root of the scale each."""
    if scale is None:
        return 1.0
    require_number("scale", scale, above=0)
    return math.sqrt(scale)


def require_inputs(q: Tensor, k: Tensor, v: Tensor, causal: bool, key_mask: Tensor | None) -> None:
    for name, x, axes in (("q", q, "B H T D"), ("k", k, "B H S D"), ("v", v, "B H S Dv")):
        require_rank(name, x, axes)
        require_floating(name, x)
    for axis, index in (("B", 0), ("H", 1), ("D", 3)):
        require_same(axis, {"q": q.shape[index], "k": k.shape[index]})
    for axis, index in (("B", 0), ("H", 1), ("S", 2)):
        require_same(axis, {"k": k.shape[index], "v": v.shape[index]})
    require_same_dtype(q=q, k=k, v=v)
    require_same_device(q=q, k=k, v=v)
    require_positive("Dv", v.shape[3])
    if causal and q.shape[2] != k.shape[2]:
        raise ValueError(
            f"q and k: expected T = S when causal, got T = {q.shape[2]} and S = {k.shape[2]}; "
            "pass the past as initial_state"
        )
    if key_mask is not None:
        require_key_mask(key_mask, k)
        require_same_device(k=k, key_mask=key_mask)


def require_token(q_t: Tensor, k_t: Tensor, v_t: Tensor) -> None:
    for name, x, axes in (("q_t", q_t, "B H D"), ("k_t", k_t, "B H D"), ("v_t", v_t, "B H Dv")):
        require_rank(name, x, axes)
        require_floating(name, x)
    for index, axis in enumerate("BHD"):
        require_same(axis, {"q_t": q_t.shape[index], "k_t": k_t.shape[index]})
    for index, axis in enumerate("BH"):
        require_same(axis, {"k_t": k_t.shape[index], "v_t": v_t.shape[index]})
    require_same_dtype(q_t=q_t, k_t=k_t, v_t=v_t)
    require_same_device(q_t=q_t, k_t=k_t, v_t=v_t)
    require_positive("Dv", v_t.shape[2])


def require_state(state: State | None, kind: type[State], B: int, H: int, C: int, Dv: int) -> None:
    if state is None:
        return
    if not isinstance(state, kind):
        raise ValueError(f"initial_state: expected a {kind.__name__}, got {type(state).__name__}")
    axes = {"S": "B H C Dv", "z": "B H C", "t": "B"}
    sizes = {"B": B, "H": H, "C": C, "Dv": Dv}
    for name, x in zip(state._fields, state, strict=True):
        require_rank(f"initial_state.{name}", x, axes[name])
        shape = [sizes[axis] for axis in axes[name].split()]
        if list(x.shape) != shape:
            raise ValueError(
                f"initial_state.{name}: expected [{axes[name]}] = {shape}, got {list(x.shape)}"
            )
        if name != "t":
            require_floating(f"initial_state.{name}", x)
    if state.t.is_floating_point() or state.t.is_complex() or state.t.dtype == torch.bool:
        raise ValueError(f"initial_state.t: expected whole numbers, got {state.t.dtype}")


def start_of(
    state: State | None,
    kind: type[State],
    B: int,
    H: int,
    C: int,
    Dv: int,
    dtype: torch.dtype,
    device: torch.device,
) -> State:
    """What there is before the first token: ``state`` in the dtype of the sums, or zeros.

    Raises ``ValueError`` for a state on another device.
    """
    if state is not None:
        for name, x in zip(state._fields, state, strict=True):
            if x.device != device:
                raise ValueError(f"initial_state.{name}: expected device {device}, got {x.device}")
        wide = {name: getattr(state, name).to(dtype) for name in state._fields if name != "t"}
        return state._replace(**wide)
    shapes = {"S": (B, H, C, Dv), "z": (B, H, C)}
    zeros = {
        name: torch.zeros(shapes[name], dtype=dtype, device=device)
        for name in kind._fields
        if name != "t"
    }
    return kind(t=torch.zeros(B, dtype=torch.int64, device=device), **zeros)


def positions_of(
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
