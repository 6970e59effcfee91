"""Softmax attention: who may look at whom, the weights, the summary, and several heads of it.

Three implementations of one function: ``reference`` follows the formula term by term and is the
one to read; ``torch`` hands the same problem to PyTorch's fused kernel and is the one to train
with; ``triton`` is the course's own GPU kernel, which is there to be read as well.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course.cache import KeyValueCache
from course.inputs import (
    require_bool,
    require_broadcast,
    require_choice,
    require_flag,
    require_floating,
    require_number,
    require_positive,
    require_rank,
    require_same,
    require_same_dtype,
)


def causal_mask(
    T: int, S: int | None = None, window: int | None = None, *, device: torch.device | None = None
) -> Tensor:
    """The boolean mask ``[T, S]`` (True = may look) of a causal layer.

    The LAST query is aligned with the LAST key, so query ``t`` looks at keys up to ``t + S − T``;
    with ``T > S`` the first ``T − S`` queries see nothing. ``window=w`` keeps the last ``w`` of
    those keys, the current one included. ``S=None`` means ``S = T``.
    """
    S = T if S is None else S
    require_positive("T", T, minimum=0)
    require_positive("S", S, minimum=0)
    return _within(T, S, causal=True, window=window, device=device)


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """The weights ``softmax(scale · q kᵀ + bias)`` over the keys that each query may look at.

    ``q [B,H,T,D]``, ``k [B,H,S,D]`` → ``[B,H,T,S]`` in the dtype of ``q``; options as in
    :func:`softmax_attention`. Every row sums to 1; a row that may look at nothing is all zeros.
    """
    _check(q, k, mask, causal, bias, scale)
    visible = _visible(q, k, mask, causal, window, bias)
    return _weights(q, k, visible, bias, scale).to(q.dtype)


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    impl: str = "reference",
) -> Tensor:
    """A weighted average of the values, the weights being a softmax of query–key scores.

    ``q [B,H,T,D]``, ``k [B,H,S,D]``, ``v [B,H,S,Dv]`` → ``[B,H,T,Dv]`` in the dtype of ``q``;
    float16 and bfloat16 are computed in float32.

    ``mask``: boolean, broadcasts to ``[B,H,T,S]``, True = may look. ``causal``: the last query is
    aligned with the last key (see :func:`causal_mask`). ``window=w``: the last ``w`` keys with
    ``causal``, else the keys at a distance below ``w`` (same alignment). ``bias``: added to the
    scores, broadcasts to ``[B,H,T,S]``; −inf there means "may not look". ``scale=None`` is
    ``D**-0.5``. ``impl``: ``reference``, ``torch`` or ``triton`` (D and Dv up to 256).

    A query that may look at nothing gets zeros, and gives zero gradient. A key that no query may
    look at has no influence, whatever it holds (NaN too). A NaN that some query may look at can
    reach the other queries of its head, because a weight of 0 times NaN is NaN.

    Raises ``ValueError`` naming the argument for a wrong rank, unequal sizes, a mask or bias of
    the wrong shape, a mask that is not boolean, a scale that is no finite number, or an unknown
    ``impl``; ``RuntimeError`` with the reason where ``triton`` cannot run.
    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1.
    """
    require_choice("impl", impl, ("reference", "torch", "triton"))
    _check(q, k, mask, causal, bias, scale)
    require_rank("v", v, "B H S Dv")
    for axis, index in (("B", 0), ("H", 1), ("S", 2)):
        require_same(axis, {"k": k.shape[index], "v": v.shape[index]})
    require_same_dtype(q=q, v=v)
    if impl == "triton":
        return _tiled(q, k, v, mask, causal, window, bias, scale)
    T, S = q.shape[2], k.shape[2]
    everything = T == S or (S > 0 and (not causal or T == 1))  # the last query sees every key
    if impl == "torch" and everything and mask is None and bias is None and window is None:
        # Every query sees something and every key is seen: the kernel needs no mask from us.
        causal = causal and T == S
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
    visible = _visible(q, k, mask, causal, window, bias)
    v = v.masked_fill(~visible.any(-2).unsqueeze(-1), 0)
    if impl == "torch":
        return _fused(q, k, v, visible, bias, scale)
    weights = _weights(q, k, visible, bias, scale)
    return (weights @ v.to(weights.dtype)).to(q.dtype)


def _check(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    causal: bool,
    bias: Tensor | None,
    scale: float | None,
) -> None:
    """Raise ``ValueError`` unless queries, keys and options are right and fit together."""
    require_rank("q", q, "B H T D")
    require_rank("k", k, "B H S D")
    require_floating("q", q)
    for axis, index in (("B", 0), ("H", 1), ("D", 3)):
        require_same(axis, {"q": q.shape[index], "k": k.shape[index]})
    require_same_dtype(q=q, k=k)
    require_positive("D", q.shape[3])
    require_flag("causal", causal)
    if scale is not None:
        require_number("scale", scale)
    shape = (*q.shape[:3], k.shape[2])
    if mask is not None:
        require_bool("mask", mask, "True = may look")
        require_broadcast("mask", mask, shape, "B H T S")
    if bias is not None:
        require_floating("bias", bias)
        require_broadcast("bias", bias, shape, "B H T S")


def _within(
    T: int, S: int, causal: bool, window: int | None, device: torch.device | None
) -> Tensor:
    """Who is near enough, ``[T, S]``: by the order of time, by the distance, or by both."""
    # How many places key i lies before query t, the last query standing at the last key.
    lag = torch.arange(S - T, S, device=device).unsqueeze(1) - torch.arange(S, device=device)
    near = lag >= 0 if causal else torch.ones_like(lag, dtype=torch.bool)
    if window is not None:
        require_positive("window", window)
        near = near & (lag.abs() < window)
    return near


def _visible(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    causal: bool,
    window: int | None,
    bias: Tensor | None,
) -> Tensor:
    """Everything that forbids a look, as one boolean mask that broadcasts to ``[B,H,T,S]``."""
    visible = _within(q.shape[2], k.shape[2], causal, window, q.device)
    if mask is not None:
        visible = visible & mask
    if bias is not None:
        visible = visible & (bias != -torch.inf)
    return visible


def _weights(
    q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, scale: float | None
) -> Tensor:
    """The weights in the accumulation dtype: float64 for float64 queries, else float32."""
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k = _without_unused(q, k, visible)
    scores = (q.to(wide) @ k.to(wide).transpose(-2, -1)) * _scale(q, scale)
    if bias is not None:
        scores = scores + bias
    seen = visible.any(-1, keepdim=True)
    # −inf is beaten by no score. A row of nothing but −inf would be 0/0, so such a row gets equal
    # scores instead and loses its weights afterwards: zero output, zero gradient.
    scores = scores.masked_fill(~visible, -torch.inf).masked_fill(~seen, 0)
    return scores.softmax(-1).masked_fill(~seen, 0)


def _fused(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, bias: Tensor | None, scale: float | None
) -> Tensor:
    """The same through ``torch.nn.functional.scaled_dot_product_attention``."""
    q, k = _without_unused(q, k, visible)
    empty = ~visible.any(-1, keepdim=True)
    allowed = visible | empty
    if bias is not None:
        # In float32 even for half precision, whose range a bias of −1e5 would leave.
        bias = bias.to(torch.promote_types(q.dtype, torch.float32))
        allowed = bias.masked_fill(~allowed, -torch.inf).masked_fill(empty, 0)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=_scale(q, scale))
    return out.masked_fill(empty, 0)


def _tiled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    window: int | None,
    bias: Tensor | None,
    scale: float | None,
) -> Tensor:
    """The same by the kernels of ``course.kernels.softmax``, or a refusal with its reason."""
    if window is not None:
        require_positive("window", window)
    for name, x, axis in (("q", q, "D"), ("v", v, "Dv")):
        if x.shape[-1] > _WIDEST:
            raise ValueError(
                f'{name}: expected {axis} of at most {_WIDEST} with impl="triton", '
                f"got {x.shape[-1]}"
            )
    bias = None if bias is None else bias.float()
    runtime: Any = importlib.import_module("course.kernels.runtime")
    runtime.require_runnable(q, k, v, mask, bias)
    kernels: Any = importlib.import_module("course.kernels.softmax")
    return kernels.softmax_attention(
        q, k, v, mask=mask, causal=causal, window=window, bias=bias, scale=_scale(q, scale)
    )


def _without_unused(q: Tensor, k: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Zero the queries that see nothing and the keys that nothing sees: 0 · NaN would be NaN."""
    return (
        q.masked_fill(~visible.any(-1).unsqueeze(-1), 0),
        k.masked_fill(~visible.any(-2).unsqueeze(-1), 0),
    )


def _scale(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


_WIDEST = 256  # a kernel holds whole rows of q, k and v in the fast memory of a GPU


class MultiHeadAttention(nn.Module):
    """``H`` attentions side by side, each on its own projection of the stream, then mixed.

    ``W_q``, ``W_k``, ``W_v``, ``W_o`` are ``nn.Linear`` layers of width ``H·D``, ``H·D``, ``H·Dv``
    and ``E``; ``D`` and ``Dv`` default to ``E // H``. Raises ``ValueError`` if no ``D`` is given
    and ``H`` does not divide ``E``. Source: Vaswani et al. 2017, section 3.2.2.
    """

    def __init__(
        self, E: int, H: int, *, D: int | None = None, Dv: int | None = None, bias: bool = True
    ) -> None:
        super().__init__()
        require_positive("E", E)
        require_positive("H", H)
        if D is None and E % H:
            raise ValueError(f"H: expected a divisor of E = {E} when D is not given, got {H}")
        D = E // H if D is None else D
        Dv = D if Dv is None else Dv
        require_positive("D", D)
        require_positive("Dv", Dv)
        self.E, self.H, self.D, self.Dv = E, H, D, Dv
        self.W_q = nn.Linear(E, H * D, bias=bias)
        self.W_k = nn.Linear(E, H * D, bias=bias)
        self.W_v = nn.Linear(E, H * Dv, bias=bias)
        self.W_o = nn.Linear(H * Dv, E, bias=bias)

    def heads(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries ``[B,H,T,D]`` of ``x [B,T,E]``; keys and values ``[B,H,S,·]`` of ``context``.

        ``context=None`` is self-attention: ``S = T``.
        """
        context = x if context is None else context
        for name, stream in (("x", x), ("context", context)):
            require_rank(name, stream, "B T E")
            require_same("E", {name: stream.shape[-1], "the layer": self.E})
        require_same("B", {"x": x.shape[0], "context": context.shape[0]})
        return (
            self.W_q(x).unflatten(-1, (self.H, self.D)).transpose(1, 2),
            self.W_k(context).unflatten(-1, (self.H, self.D)).transpose(1, 2),
            self.W_v(context).unflatten(-1, (self.H, self.Dv)).transpose(1, 2),
        )

    def merge(self, o: Tensor, form: str = "concat") -> Tensor:
        """Mix the heads' outputs ``o [B,H,T,Dv]`` into the stream ``[B,T,E]``.

        ``concat`` multiplies the concatenated heads by ``W_o``; ``sum`` adds what each head writes
        through its own block of ``W_o``. The results are equal.
        """
        require_rank("o", o, "B H T Dv")
        require_same("H", {"o": o.shape[1], "the layer": self.H})
        require_same("Dv", {"o": o.shape[3], "the layer": self.Dv})
        require_choice("form", form, ("concat", "sum"))
        if form == "concat":
            return self.W_o(o.transpose(1, 2).flatten(2))
        blocks = self.W_o.weight.unflatten(1, (self.H, self.Dv))
        mixed = sum(o[:, h] @ blocks[:, h].T for h in range(self.H))
        return mixed if self.W_o.bias is None else mixed + self.W_o.bias

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        window: int | None = None,
        bias: Tensor | None = None,
        scale: float | None = None,
        form: str = "concat",
        impl: str = "torch",
    ) -> Tensor:
        """``x [B,T,E]``, ``context [B,S,E]`` (None = ``x``) → ``[B,T,E]``.

        The other options are those of :func:`softmax_attention` and :meth:`merge`.
        """
        q, k, v = self.heads(x, context)
        o = softmax_attention(
            q, k, v, mask=mask, causal=causal, window=window, bias=bias, scale=scale, impl=impl
        )
        return self.merge(o, form)

    def decode(
        self, x: Tensor, cache: KeyValueCache | None = None, *, impl: str = "torch"
    ) -> tuple[Tensor, KeyValueCache]:
        """Continue a causal sequence: new tokens ``x [B,T,E]`` after those in ``cache``.

        Returns the output ``[B,T,E]`` of the new tokens and a new cache; the old one is untouched.
        Fed in any portions, the outputs are those of one full causal pass.
        """
        q, k, v = self.heads(x)
        cache = KeyValueCache.empty(k, v) if cache is None else cache
        k, v, cache = cache.extend(k, v)
        return self.merge(softmax_attention(q, k, v, causal=True, impl=impl)), cache

    @classmethod
    def from_torch(cls, source: nn.MultiheadAttention) -> MultiHeadAttention:
        """A layer with the weights of ``nn.MultiheadAttention`` (one width for q, k and v)."""
        if source.in_proj_weight is None or source.bias_k is not None or source.add_zero_attn:
            raise ValueError(
                "source: expected nn.MultiheadAttention without kdim, vdim, add_bias_kv and "
                "add_zero_attn, got one that uses them"
            )
        layer = cls(source.embed_dim, source.num_heads, bias=source.in_proj_bias is not None)
        layer.to(source.in_proj_weight)
        with torch.no_grad():
            for ours, theirs in layer._pairs(source):
                ours.copy_(theirs)
        return layer

    def to_torch(self) -> nn.MultiheadAttention:
        """An ``nn.MultiheadAttention`` (batch first) with these weights.

        Raises ``ValueError`` unless ``H·D = H·Dv = E``, the only widths it knows.
        """
        if not self.H * self.D == self.H * self.Dv == self.E:
            raise ValueError(
                f"to_torch: expected H·D = H·Dv = E = {self.E}, "
                f"got H·D = {self.H * self.D}, H·Dv = {self.H * self.Dv}"
            )
        has_bias = self.W_q.bias is not None
        target = nn.MultiheadAttention(self.E, self.H, bias=has_bias, batch_first=True)
        target.to(self.W_q.weight)
        with torch.no_grad():
            for ours, theirs in self._pairs(target):
                theirs.copy_(ours)
        return target

    def _pairs(self, other: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor]]:
        """Every parameter of this layer beside the same one (or a view of it) in ``other``."""
        inputs = (self.W_q, self.W_k, self.W_v)
        pairs = list(zip((m.weight for m in inputs), other.in_proj_weight.chunk(3), strict=True))
        pairs.append((self.W_o.weight, other.out_proj.weight))
        if self.W_o.bias is not None:
            pairs += zip((m.bias for m in inputs), other.in_proj_bias.chunk(3), strict=True)
            pairs.append((self.W_o.bias, other.out_proj.bias))
        return pairs
