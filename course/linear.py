"""Linear attention: similarities φ(q)·φ(k) re-associated, in four forms, and one step of its RNN.

    S_t = S_{t−1} + φ(k_t) v_tᵀ      z_t = z_{t−1} + φ(k_t)      o_t = S_tᵀ φ(q_t) / φ(q_t)·z_t

``parallel`` builds the T×S similarities, ``scan`` stores every S_t, ``recurrent`` goes token by
token, ``chunk`` does whole chunks with matrix products and carries S between them: the form to use.

The limit of the chunk form. One token of one head needs, with chunks of B tokens, C features and
values of width Dv, the products Q Kᵀ (2·B·C operations), A V (2·B·Dv), Q S (2·C·Dv) and Kᵀ V
(2·C·Dv). For C = Dv = D and B = 64 that is 4·64·D + 4·D², and no program that makes these products
whole runs faster than the machine's matrix multiplication. What remains above the limit, in order:
64×64 products reach about four fifths of the rate of large ones; q, k, v and the output pass
through main memory once; the chunks' sums are added up (log₂ G calls a tile of G chunks); half of
A is cleared; about twelve calls a tile. elu+1 adds five passes over q and k, of which exp2 costs
as much as the other four together, and the denominator five passes over the tile: about 30 % and
13 % of the products. Chunks of 32 make a quarter fewer operations, and as much time: their
products are slower and twice as many sums are stored. ``course bench linear`` measures all of it.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from course.feature_maps import FeatureMap, get_feature_map
from course.inputs import (
    require_bool,
    require_choice,
    require_flag,
    require_floating,
    require_number,
    require_positive,
    require_rank,
    require_same,
    require_same_dtype,
)
from course.state import LinearState

FORMS = ("parallel", "scan", "recurrent", "chunk")
IMPLS = ("torch", "triton")
CHUNK_SIZE = 64  # operations are fewest at 1, but products of 64×64 are the first to run fast
_TILE = 2048  # tokens handled at once: enough to keep calls few, little enough for the caches


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    feature_map: str | nn.Module = "elu",
    form: str = "chunk",
    causal: bool = True,
    normalize: bool = True,
    scale: float = 1.0,
    key_mask: Tensor | None = None,
    initial_state: LinearState | None = None,
    return_state: bool = False,
    chunk_size: int | None = None,
    impl: str = "torch",
) -> Any:
    """An average of the values with weights proportional to φ(q)·φ(k), in time linear in T.

    ``q [B,H,T,D]``, ``k [B,H,S,D]``, ``v [B,H,S,Dv]`` → ``[B,H,T,Dv]`` in the dtype of ``q``, and
    with ``return_state`` the pair (output, :class:`LinearState`). Sums are kept in float32, or in
    float64 when the inputs are.

    ``feature_map``: a name, or a module with ``.width(D)`` (see :mod:`course.feature_maps`).
    ``form``: ``parallel``, ``scan``, ``recurrent`` or ``chunk``; the same result. ``causal`` needs
    T = S, the past comes as ``initial_state``; without it ``parallel`` is the quadratic form and
    all others sum one state first. ``normalize``: divide by φ(q)·z. ``scale``: factor of the
    scores q·k that the map sees; q and k each get its root. ``key_mask [B,S]``: boolean, True = a
    real token; padding leaves S, z and t. ``chunk_size`` (None = 64) matters to ``chunk`` only.
    ``impl``: ``torch``, or ``triton``: the form ``chunk`` by GPU kernels, which choose the size of
    their chunks, for the maps elu, relu, identity and taylor (D ≤ 16 there).

    A query that sees no key, or none with a feature in common, gets zeros and gives zero gradient.
    What a padded key or value holds has no influence (NaN too). Positions for maps that want them
    count real tokens and go on from ``initial_state.t``; a non-causal query has the position of
    its key when T = S, else its own index. All forms but ``chunk`` can be differentiated twice.

    Raises ``ValueError`` naming the argument for a wrong rank, unequal sizes or dtypes, causal
    with T ≠ S, a mask that does not fit, an unknown name, a signed map with ``normalize``, or what
    ``triton`` does not have; ``RuntimeError`` with the reason where ``triton`` cannot run.
    Source: Katharopoulos et al. 2020 (arXiv:2006.16236), equations 8–12; chunks: Hua et al. 2022
    (arXiv:2202.10447), section 3.2.
    """
    require_choice("impl", impl, IMPLS)
    require_choice("form", form, FORMS)
    chunk = CHUNK_SIZE if chunk_size is None else chunk_size
    require_positive("chunk_size", chunk)
    require_flag("causal", causal)
    require_flag("return_state", return_state)
    fm = _feature_map(feature_map, normalize)
    root = _root(scale)
    _check_inputs(q, k, v, causal, key_mask)
    B, H, S_len, D = k.shape
    _check_state(initial_state, B, H, _width(fm, D), v.shape[-1])
    if impl == "triton":
        for name, value, only in (("form", form, "chunk"), ("chunk_size", chunk_size, None)):
            if value != only:
                raise ValueError(f'{name}: expected {only!r} with impl="triton", got {value!r}')
        name = _kernel_map(fm, D, stateful=return_state or initial_state is not None)
        past_or_none = _ready_for_kernels(initial_state, q, k, v, key_mask)
        # Taylor features are built inside the kernel: another program, and a file of its own.
        module, options = ("taylor", {}) if name == "taylor" else ("linear", {"feature_map": name})
        kernels: Any = importlib.import_module(f"course.kernels.{module}")
        return kernels.linear_attention(
            q,
            k,
            v,
            causal=causal,
            normalize=normalize,
            scale=scale,
            key_mask=key_mask,
            initial_state=past_or_none,
            return_state=return_state,
            **options,
        )
    # Under autocast the products would be made in bfloat16, and the sums with them.
    with torch.autocast(q.device.type, enabled=False):
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        past = _start(initial_state, B, H, _width(fm, D), v.shape[-1], dtype, q.device)
        seen = S_len if key_mask is None else key_mask.sum(-1)
        work_q, work_k, work_v = q.to(dtype), k.to(dtype), v.to(dtype)
        if key_mask is not None:
            # Before the map: 0 · NaN is NaN, in the gradient of the map too.
            hidden = ~key_mask[:, None, :, None]
            work_k, work_v = work_k.masked_fill(hidden, 0), work_v.masked_fill(hidden, 0)
        places = _positions(fm, past.t, key_mask, q.shape[2], S_len)
        if causal and form == "chunk":
            if not isinstance(fm, FeatureMap) or next(fm.parameters(), None) is not None:
                # A foreign map, or one that learns, is left to autograd: once, before the loop.
                work_q = _features(fm, _scaled(work_q, root), places[0], None)
                work_k = _features(fm, _scaled(work_k, root), places[1], key_mask)
                fm, root, key_mask = _IDENTITY, 1.0, None
            mode = _Mode(fm, root, normalize, normalize or return_state, int(chunk))
            out, S, z = _chunk(work_q, work_k, work_v, past, key_mask, places[1], mode)
        else:
            fq = _features(fm, _scaled(work_q, root), places[0], None)
            fk = _features(fm, _scaled(work_k, root), places[1], key_mask)
            num, den, S, z = (_CAUSAL if causal else _WHOLE)[form](fq, fk, work_v, past)
            out = _divide(num, den()) if normalize else num
        out = out.to(q.dtype)
        return (out, LinearState(S, z, past.t + seen)) if return_state else out


def linear_attention_step(
    q_t: Tensor,
    k_t: Tensor,
    v_t: Tensor,
    state: LinearState | None = None,
    *,
    feature_map: str | nn.Module = "elu",
    normalize: bool = True,
    scale: float = 1.0,
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
    C, Dv = _width(fm, D), v_t.shape[-1]
    _check_state(state, B, H, C, Dv)
    if impl == "triton":
        name = _kernel_map(fm, D, stateful=True)
        past_or_none = _ready_for_kernels(state, q_t, k_t, v_t)
        kernels: Any = importlib.import_module("course.kernels.step")
        return kernels.linear_attention_step(
            q_t, k_t, v_t, past_or_none, feature_map=name, normalize=normalize, scale=scale
        )
    with torch.autocast(q_t.device.type, enabled=False):
        dtype = torch.float64 if q_t.dtype == torch.float64 else torch.float32
        past = _start(state, B, H, C, Dv, dtype, q_t.device)
        place = past.t[:, None, None] if _positional(fm) else None
        fq = _features(fm, _scaled(q_t.to(dtype), root).unsqueeze(2), place, None)
        fk = _features(fm, _scaled(k_t.to(dtype), root).unsqueeze(2), place, None)
        S = torch.addcmul(past.S, fk.mT, v_t.to(dtype).unsqueeze(2))
        z = past.z + fk.squeeze(2)
        num = (fq @ S).squeeze(2)
        out = _divide(num, (fq.squeeze(2) * z).sum(-1)) if normalize else num
        return out.to(q_t.dtype), LinearState(S, z, past.t + 1)


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


def _root(scale: float) -> float:
    require_number("scale", scale, above=0)
    return math.sqrt(scale)


def _width(fm: nn.Module, D: int) -> int:
    require_positive("D", D)
    C: int = fm.width(D)  # type: ignore[operator]
    require_positive("feature_map.width(D)", C)
    return int(C)


def _positional(fm: nn.Module) -> bool:
    return bool(getattr(fm, "positional", False))


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
        require_rank("key_mask", key_mask, "B S")
        require_bool("key_mask", key_mask, "True = a real token")
        require_same("B", {"k": k.shape[0], "key_mask": key_mask.shape[0]})
        require_same("S", {"k": k.shape[2], "key_mask": key_mask.shape[1]})


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
    fm: nn.Module, t: Tensor, key_mask: Tensor | None, T: int, S_len: int
) -> tuple[Tensor | None, Tensor | None]:
    """Positions of queries and keys ``[B,1,T or S]``, for the maps that want them."""
    if not _positional(fm):
        return None, None
    if key_mask is None:
        steps = torch.arange(S_len, device=t.device).expand(len(t), -1)
    else:
        steps = (key_mask.cumsum(-1) - 1).clamp(min=0)
    keys = (t[:, None] + steps)[:, None]
    if S_len == T:
        return keys, keys
    return torch.arange(T, device=t.device).expand(len(t), 1, -1), keys


# What the kernels have and have not

_KERNEL_MAPS: dict[type[nn.Module], str] = {
    type(get_feature_map(name)): name for name in ("elu", "relu", "identity", "taylor")
}
_TAYLOR_WIDEST = 16  # a 16×16 product needs no gather of pairs, and its state fits on the chip


def _kernel_map(fm: nn.Module, D: int, *, stateful: bool) -> str:
    """The name by which the kernels know this map; ``ValueError`` if they do not."""
    name = _KERNEL_MAPS.get(type(fm))
    if name is None:
        raise ValueError(
            f'feature_map: expected one of {", ".join(_KERNEL_MAPS.values())} with impl="triton", '
            f"got {type(fm).__name__}"
        )
    if name == "taylor":
        if D > _TAYLOR_WIDEST:
            raise ValueError(
                f"feature_map: expected taylor of keys with D of at most {_TAYLOR_WIDEST} with "
                f'impl="triton", got D = {D}'
            )
        if stateful and not fm.packed:
            # Without a state both give the same: packing changes the features, not their products.
            raise ValueError(
                "feature_map: expected taylor with packed=True where a state goes in or out with "
                'impl="triton", got packed=False'
            )
    return name


def _ready_for_kernels(state: LinearState | None, *tensors: Tensor | None) -> LinearState | None:
    """The state in float32, once it is clear that kernels can run; ``RuntimeError`` if not."""
    runtime: Any = importlib.import_module("course.kernels.runtime")
    if state is not None:
        state = LinearState(state.S.float(), state.z.float(), state.t)
    runtime.require_runnable(*tensors, *(() if state is None else state))
    return state


# The readable forms, in plain autograd. Each gives (numerator, how to get the denominator, S, z).


def _scaled(x: Tensor, root: float) -> Tensor:
    return x if root == 1 else x * root


def _features(
    fm: nn.Module, x: Tensor, positions: Tensor | None, key_mask: Tensor | None
) -> Tensor:
    f = fm(x) if positions is None else fm(x, positions)
    expected = [*x.shape[:-1], _width(fm, x.shape[-1])]
    if not isinstance(f, Tensor) or list(f.shape) != expected or f.dtype != x.dtype:
        came = f"{list(f.shape)} in {f.dtype}" if isinstance(f, Tensor) else type(f).__name__
        raise ValueError(f"feature_map: expected features {expected} in {x.dtype}, got {came}")
    # φ(0) need not be 0: padding must leave z as well as S.
    return f if key_mask is None else f.masked_fill(~key_mask[:, None, :, None], 0)


def _divide(num: Tensor, den: Tensor) -> Tensor:
    # x/∞ is 0 with gradient 0. No epsilon: one that float16 can hold would change small outputs.
    return num / den.masked_fill(den == 0, math.inf).unsqueeze(-1)


_Result = tuple[Tensor, Callable[[], Tensor], Tensor, Tensor]


def _one_state(fq: Tensor, fk: Tensor, v: Tensor, past: LinearState) -> _Result:
    """No order of time: every query reads the same sums."""
    S, z = past.S + fk.mT @ v, past.z + fk.sum(2)
    return fq @ S, lambda: (fq @ z.unsqueeze(-1)).squeeze(-1), S, z


def _quadratic(
    fq: Tensor, fk: Tensor, v: Tensor, past: LinearState, *, causal: bool = False
) -> _Result:
    """By the T×S similarities."""
    A = fq @ fk.mT
    if causal:
        A = A.tril()
    num = A @ v + fq @ past.S
    S, z = past.S + fk.mT @ v, past.z + fk.sum(2)
    return num, lambda: A.sum(-1) + (fq @ past.z.unsqueeze(-1)).squeeze(-1), S, z


def _parallel(fq: Tensor, fk: Tensor, v: Tensor, past: LinearState) -> _Result:
    return _quadratic(fq, fk, v, past, causal=True)


def _scan(fq: Tensor, fk: Tensor, v: Tensor, past: LinearState) -> _Result:
    """Every state is stored: ``[B,H,T,C,Dv]``."""
    S = past.S.unsqueeze(2) + (fk.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(2)
    z = past.z.unsqueeze(2) + fk.cumsum(2)
    num = (fq.unsqueeze(-2) @ S).squeeze(-2)
    last = (past.S, past.z) if fq.shape[2] == 0 else (S[:, :, -1], z[:, :, -1])
    return num, lambda: (fq * z).sum(-1), *last


def _recurrent(fq: Tensor, fk: Tensor, v: Tensor, past: LinearState) -> _Result:
    """Token by token."""
    S, z = past.S, past.z
    num, den = [fq[:, :, :0] @ S], [fq[:, :, :0].sum(-1)]
    for q_t, k_t, v_t in zip(fq.unbind(2), fk.unbind(2), v.unbind(2), strict=True):
        S = S + k_t.unsqueeze(-1) * v_t.unsqueeze(-2)
        z = z + k_t
        num.append(q_t.unsqueeze(-2) @ S)
        den.append((q_t * z).sum(-1, keepdim=True))
    return torch.cat(num, 2), lambda: torch.cat(den, 2), S, z


_CAUSAL = {"parallel": _parallel, "scan": _scan, "recurrent": _recurrent}
_WHOLE = {"parallel": _quadratic, "scan": _one_state, "recurrent": _one_state, "chunk": _one_state}


# The chunk form. Heads lie on one axis N = B·H, and the loop goes over tiles of some thousand
# tokens: one head and many chunks, or, for short sequences, several heads at once.


class _Mode(NamedTuple):
    """How the loop runs; ``track`` says that z is needed."""

    fm: FeatureMap
    root: float
    normalize: bool
    track: bool
    chunk: int

    @property
    def plain(self) -> bool:
        """Whether the map leaves everything as it is."""
        return self.root == 1 and self.fm.__class__ is _IDENTITY.__class__


class _Tile(NamedTuple):
    """``G`` chunks of each of ``heads`` heads, from head ``h0`` and chunk ``first`` on."""

    h0: int
    heads: int
    first: int
    G: int

    def slots(self, x: Tensor) -> Tensor:
        """The chunks of this tile in ``x [N, chunks, …]``, as ``[heads·G, …]``."""
        rows = x[self.h0 : self.h0 + self.heads]
        return rows[:, self.first : self.first + self.G].flatten(0, 1)


class _Plan:
    """How N sequences of T tokens fall into tiles: in the order of time, heads after heads."""

    def __init__(self, N: int, T: int, chunk: int) -> None:
        self.chunk = max(1, min(chunk, T))
        self.whole, self.rest = divmod(T, self.chunk)
        self.slots = self.whole + (self.rest > 0)
        at_once = max(1, _TILE // self.chunk)
        # Chunks of several heads form one batch only where nothing lies between them in memory.
        if self.whole >= at_once:
            self.heads, self.G = 1, at_once
        elif self.rest == 0:
            self.heads, self.G = max(1, at_once // max(1, self.whole)), self.whole
        else:
            self.heads, self.G = at_once, 1
        self.tiles = []
        for h0 in range(0, N, self.heads):
            heads = min(self.heads, N - h0)
            for first in range(0, self.whole, max(1, self.G)):
                self.tiles.append(_Tile(h0, heads, first, min(self.G, self.whole - first)))
            if self.rest:
                self.tiles.append(_Tile(h0, heads, self.whole, 1))

    def rows(self, x: Tensor) -> list[Tensor]:
        """The heads of each tile in carried sums ``x [N,…]``."""
        groups = x.split(self.heads)
        return [groups[tile.h0 // self.heads] for tile in self.tiles]

    def cut(self, x: Tensor | None) -> list[Any]:
        """Views ``[heads·G, c, …]`` of ``x [N,T,…]``, one a tile; split is faster than slices."""
        if x is None or not self.tiles:
            return [None] * len(self.tiles)
        if self.rest == 0 and self.whole == self.G:
            return list(x.view(-1, self.chunk, *x.shape[2:]).split(self.heads * self.G))
        pieces: list[Tensor] = []
        for group in x.split(self.heads):
            if self.heads > 1 or self.G == 1:
                pieces += group.split(self.chunk, 1)
                continue
            long = self.whole * self.chunk
            pieces += group[0, :long].view(-1, self.chunk, *x.shape[2:]).split(self.G)
            if self.rest:
                pieces.append(group[:, long:])
        return pieces


class _Scratch:
    """Buffers that are allocated once and handed out tile after tile."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.flat: dict[str, Tensor] = {}

    def get(self, name: str, *shape: int) -> Tensor:
        size = math.prod(shape)
        flat = self.flat.get(name)
        if flat is None or flat.numel() < size:
            flat = self.flat[name] = self.like.new_empty(size)
        return flat[:size].view(shape)


def _chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    past: LinearState,
    key_mask: Tensor | None,
    positions: Tensor | None,
    mode: _Mode,
) -> tuple[Tensor, Tensor, Tensor]:
    """``[B,H,T,…]`` in, (output, S, z) out."""
    B, H, T, Dv = v.shape
    C = past.z.shape[-1]

    def by_head(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.reshape(B, T).repeat_interleave(H, 0)

    out, S, z = _ChunkLoop.apply(
        q.reshape(B * H, T, q.shape[-1]).contiguous(),
        k.reshape(B * H, T, k.shape[-1]).contiguous(),
        v.reshape(B * H, T, Dv).contiguous(),
        past.S.reshape(B * H, C, Dv),
        past.z.reshape(B * H, C),
        by_head(key_mask),
        by_head(positions),
        mode,
        torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, past.S, past.z)),
    )
    return out.view(B, H, T, Dv), S.view(B, H, C, Dv), z.view(B, H, C)


_IDENTITY = get_feature_map("identity")


class _ChunkLoop(torch.autograd.Function):
    """``q, k [N,T,D]``, ``v [N,T,Dv]``, ``S [N,C,Dv]``, ``z [N,C]`` → (out, S, z), all contiguous.

    φ lives for one tile and is computed again in the backward pass. For that pass the states at
    the chunks' beginnings are kept where they are no larger than the output (C ≤ chunk), else one
    state a tile is; A = tril(φ(q) φ(k)ᵀ) is kept where it is no larger (chunk ≤ Dv).
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        S: Tensor,
        z: Tensor,
        keep: Tensor | None,
        places: Tensor | None,
        mode: _Mode,
        graph: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        N, T, _ = q.shape
        C, Dv = S.shape[1:]
        S, z = S.clone(), z.clone()
        out = v.new_empty(N, T, Dv)
        den = v.new_empty(N, T) if mode.normalize else None
        plan, scratch = _Plan(N, T, mode.chunk), _Scratch(v)
        prefix = _Sums(plan, scratch, C, Dv)
        states = v.new_empty(N, plan.slots, C, Dv) if graph and mode.chunk >= C else None
        kept = v.new_empty(N, T, plan.chunk) if graph and mode.chunk <= Dv else None
        starts = []
        for tile, xq, xk, V, here, total, real, places_here, A_here, S_here, z_here in zip(
            plan.tiles,
            *map(plan.cut, (q, k, v, out, den, keep, places, kept)),
            *map(plan.rows, (S, z)),
            strict=True,
        ):
            if graph:
                S_start = S_here.clone() if states is None else None
                starts.append((S_start, z_here.clone() if mode.track else None))
            _, Q = _mapped(xq, None, places_here, mode, scratch, "q")
            _, K = _mapped(xk, real, places_here, mode, scratch, "k")
            before = prefix(tile, K, V, S_here)
            if states is not None:
                tile.slots(states).copy_(before)
            A = _scores(Q, K, scratch, A_here)
            torch.bmm(A, V, out=here).baddbmm_(Q, before)
            if mode.track:
                z_before = _z_before(tile, K, z_here)
            if total is not None:
                # A matrix–vector product takes four times as long as these two passes.
                along = torch.mul(Q, z_before.unsqueeze(1), out=scratch.get("φ(q) z", *Q.shape))
                torch.sum(A, -1, out=total).add_(along.sum(-1))
                here.div_(total.unsqueeze(-1))
        if den is not None and (dead := den == 0).any():
            # Nothing in common with any key: 0/0 becomes 0, and 1/∞ the factor of its gradient.
            out.masked_fill_(dead.unsqueeze(-1), 0)
            den.masked_fill_(dead, math.inf)
        if graph:
            ctx.save_for_backward(q, k, v, out if mode.normalize else None, den, keep, places)
            ctx.plan, ctx.starts, ctx.mode = plan, starts, mode
            ctx.states, ctx.kept = states, kept
        return out, S, z

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, dS: Tensor, dz: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            # Else the second derivative would be 0 in silence where d_out is a constant.
            raise RuntimeError(
                'form="chunk" has no second derivative (create_graph=True): use form="parallel"'
            )
        q, k, v, out, den, keep, places = ctx.saved_tensors
        plan: _Plan = ctx.plan
        mode: _Mode = ctx.mode
        dS, dz = dS.clone(), dz.clone()
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        scratch = _Scratch(v)
        prefix = _Sums(plan, scratch, *dS.shape[1:])
        suffix = _Sums(plan, scratch, *dS.shape[1:], reverse=True)
        views = [
            *map(plan.cut, (q, k, v, d_out.contiguous(), out, den, keep, places, ctx.kept)),
            *map(plan.cut, (dq, dk, dv)),
            *map(plan.rows, (dS, dz)),
        ]
        for tile, start, *here in reversed(list(zip(plan.tiles, ctx.starts, *views, strict=True))):
            xq, xk, V, dN, o, total, real, places_here, A_here, dxq, dxk, dV, dS_here, dz_here = (
                here
            )
            xq, Q = _mapped(xq, None, places_here, mode, scratch, "q")
            xk, K = _mapped(xk, real, places_here, mode, scratch, "k")
            dA = scratch.get("dA", len(Q), Q.shape[1], Q.shape[1])
            d_total = None
            if total is None:
                torch.bmm(dN, V.mT, out=dA)
            else:
                total = total.unsqueeze(-1)
                dN = torch.div(dN, total, out=scratch.get("dN", *dN.shape))
                d_total = torch.mul(dN, o, out=scratch.get("dN · out", *dN.shape))
                d_total = d_total.sum(-1, keepdim=True).neg_()
                torch.baddbmm(d_total, dN, V.mT, out=dA)
            dA.tril_()

            dQ = dxq if Q.shape[-1] == q.shape[-1] else scratch.get("dQ", *Q.shape)
            dK = dxk if K.shape[-1] == k.shape[-1] else scratch.get("dK", *K.shape)
            if ctx.states is None:
                before = prefix(tile, K, V, start[0].clone())
            else:
                before = tile.slots(ctx.states)
            torch.bmm(dA, K, out=dQ).baddbmm_(dN, before.mT)
            after = suffix(tile, Q, dN, dS_here)
            torch.bmm(dA.mT, Q, out=dK).baddbmm_(V, after.mT)
            A = _scores(Q, K, scratch) if A_here is None else A_here[..., : Q.shape[1]]
            torch.bmm(A.mT, dN, out=dV).baddbmm_(K, after)
            if d_total is not None:
                dQ.addcmul_(d_total, _z_before(tile, K, start[1].clone()).unsqueeze(1))
            if mode.track:
                dK += _dz_after(tile, Q, d_total, dz_here).unsqueeze(1)
            if real is not None:
                dK *= real.unsqueeze(-1)
            _pull(dxq, xq, Q, dQ, places_here, mode)
            _pull(dxk, xk, K, dK, places_here, mode)
        return dq, dk, dv, dS, dz, None, None, None, None


def _mapped(
    x: Tensor,
    real: Tensor | None,
    places: Tensor | None,
    mode: _Mode,
    scratch: _Scratch,
    name: str,
) -> tuple[Tensor, Tensor]:
    """What the map sees of this tile, and φ of it with padding set to 0."""
    if mode.plain and real is None:
        return x, x
    if mode.root != 1:
        x = torch.mul(x, mode.root, out=scratch.get(f"{name} scaled", *x.shape))
    out = scratch.get(f"{name} mapped", *x.shape[:-1], mode.fm.width(x.shape[-1]))
    f = mode.fm.write(x, out, places)
    return x, f if real is None else torch.mul(f, real.unsqueeze(-1), out=out)


def _pull(dx: Tensor, x: Tensor, f: Tensor, df: Tensor, places: Tensor | None, mode: _Mode) -> None:
    """Write the gradient of this tile's inputs, from that of its features, into ``dx``."""
    grad = mode.fm.pullback(x, f, df, places)
    if grad.data_ptr() != dx.data_ptr():
        dx.copy_(grad)
    if mode.root != 1:
        dx *= mode.root


def _scores(Q: Tensor, K: Tensor, scratch: _Scratch, kept: Tensor | None = None) -> Tensor:
    c = Q.shape[1]
    A = scratch.get("A", len(Q), c, c) if kept is None else kept[..., :c]
    # Not a product with a mask: 0 · NaN would let a NaN of the future reach the past.
    return torch.bmm(Q, K.mT, out=A).tril_()


class _Sums:
    """Sums of ``leftᵀ right`` over the chunks before each chunk (``reverse``: after each)."""

    def __init__(
        self, plan: _Plan, scratch: _Scratch, C: int, Dv: int, *, reverse: bool = False
    ) -> None:
        self.scratch, self.reverse = scratch, reverse
        G = plan.G
        self.pairs: list[tuple[Tensor, Tensor]] | None = None
        if plan.heads > 1 or G & (G - 1) or G < 2:
            return
        # One head, 2ⁿ chunks: n additions of half the rows each give all sums in place. That is
        # n calls instead of 2ⁿ, and no subtraction. A spare row at the end holds what is carried.
        rows = scratch.like.new_empty(G + 1, C, Dv)
        self.added = rows[:G] if reverse else rows[1:]
        self.others = rows[1:] if reverse else rows[:G]
        self.carried = rows[G:] if reverse else rows[:1]
        self.edge = self.added[-1:] if reverse else self.added[:1]
        self.total = self.added[:1] if reverse else self.added[-1:]
        self.G, self.pairs = G, []
        for d in (2**i for i in range(G.bit_length() - 1)):
            halves = self.added.view(G // (2 * d), 2, d, C, Dv)
            here, there = halves[:, 1], halves[:, 0, -1:]
            if reverse:
                here, there = halves[:, 0], halves[:, 1, :1]
            self.pairs.append((here, there))

    def __call__(self, tile: _Tile, left: Tensor, right: Tensor, carry: Tensor) -> Tensor:
        """``[heads·G, C, Dv]``; ``carry [heads, C, Dv]`` moves to the other side of the tile."""
        if self.pairs is not None and tile.G == self.G:
            torch.bmm(left.mT, right, out=self.added)
            self.carried.copy_(carry)
            self.edge.add_(carry)
            for here, there in self.pairs:
                here.add_(there)
            carry.copy_(self.total)
            return self.others
        shape = (tile.heads, tile.G, left.shape[-1], right.shape[-1])
        added = torch.bmm(left.mT, right, out=self.scratch.get("added", len(left), *shape[2:]))
        sums = self.scratch.get("after" if self.reverse else "before", *shape)
        order = range(tile.G - 1, -1, -1) if self.reverse else range(tile.G)
        for now, new in ((sums[:, j], added.view(shape)[:, j]) for j in order):
            now.copy_(carry)
            carry += new
        return sums.flatten(0, 1)


def _z_before(tile: _Tile, K: Tensor, z: Tensor) -> Tensor:
    """z before each chunk ``[heads·G, C]``; ``z [heads, C]`` moves to after the tile."""
    added = K.sum(1).view(tile.heads, tile.G, -1)
    sums = torch.cat([z.unsqueeze(1), added], 1).cumsum(1)
    z.copy_(sums[:, -1])
    return sums[:, :-1].flatten(0, 1)


def _dz_after(tile: _Tile, Q: Tensor, d_total: Tensor | None, dz: Tensor) -> Tensor:
    """The gradient of z after each chunk; ``dz`` moves to before the tile."""
    if d_total is None:
        return dz.unsqueeze(1).expand(-1, tile.G, -1).flatten(0, 1)
    added = torch.bmm(d_total.mT, Q).view(tile.heads, tile.G, -1).flip(1)
    sums = torch.cat([dz.unsqueeze(1), added], 1).cumsum(1)
    dz.copy_(sums[:, -1])
    return sums[:, :-1].flip(1).flatten(0, 1)
