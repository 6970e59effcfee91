"""Softmax attention: who may look at whom, the weights, the summary, and several heads of it.

    o_t = Σ_i w_ti v_i      w_t = softmax(scale · q_t·k_i + bias_ti) over the keys i that t may see

Three implementations of one function: ``reference`` is :func:`formula`, the one to read (notebook
02 derives the same lines); ``torch`` hands the same problem to PyTorch's fused kernels
(:mod:`course.engine.softmax`) and is the one to use; ``triton`` is the course's own GPU kernel,
which is there to be read as well.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from course.cache import KeyValueCache
from course.engine import kernels
from course.engine import softmax as engine
from course.inputs import (
    require_bool,
    require_broadcast,
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
from course.sight import near, visible, with_padding

IMPLS = ("torch", "reference", "triton")


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
    if window is not None:
        require_positive("window", window)
    return near(T, S, S - T, causal=True, window=window, device=device)


def formula(
    q: Tensor, k: Tensor, v: Tensor, see: Tensor, bias: Tensor | float = 0.0, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The weights ``[B,H,T,S]`` and the average of the values ``[B,H,T,Dv]``.

    ``see``: boolean, broadcasts to ``[B,H,T,S]``; every query sees at least one key.
    """
    scores = q @ k.mT * scale + bias
    scores = scores.masked_fill(~see, -torch.inf)  # no score is below −∞
    weights = scores.softmax(-1)
    return weights, weights @ v


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """The weights ``softmax(scale · q kᵀ + bias)`` over the keys that each query may look at.

    ``q [B,H,T,D]``, ``k [B,H,S,D]`` → ``[B,H,T,S]`` in the dtype of ``q``; options as in
    :func:`softmax_attention`. Every row sums to 1; a row that may look at nothing is all zeros.
    """
    options = _checked(q, k, k, mask, key_mask, causal, window, bias, scale)
    return _by_formula(q, k, k[..., :0], **options)[0]  # no values: no average


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    impl: str = "torch",
) -> Tensor:
    """A weighted average of the values, the weights being a softmax of query–key scores.

    ``q [B,H,T,D]``, ``k [B,H,S,D]``, ``v [B,H,S,Dv]`` → ``[B,H,T,Dv]`` in the dtype of ``q``; sums
    are kept in float32 (float64 for float64 inputs), under autocast too.

    ``mask``: boolean, broadcasts to ``[B,H,T,S]``, True = may look. ``key_mask [B,S]``: boolean,
    True = a real token; nobody looks at padding. ``causal``: the last query is aligned with the
    last key (see :func:`causal_mask`). ``window=w``: the last ``w`` keys with ``causal``, else the
    keys at a distance below ``w`` (same alignment). ``bias``: added to the scores, broadcasts to
    ``[B,H,T,S]``; −inf there means "may not look". ``scale``: factor of the scores q·k; None is
    ``D**-0.5`` here, and 1 in :func:`course.linear.linear_attention`, where a feature map stands
    between. ``impl``: ``torch``, ``reference`` or ``triton`` (D and Dv up to 256).

    A query that may look at nothing gets zeros, and gives zero gradient. A key that no query may
    look at has no influence, whatever it holds (NaN too). A NaN that some query may look at can
    reach the other queries of its head, because a weight of 0 times NaN is NaN. Second derivatives
    and forward mode (``torch.func.jvp``) need ``impl="reference"``: PyTorch's fused kernels refuse
    them (``RuntimeError``, ``NotImplementedError``), and so do ours.

    Raises ``ValueError`` naming the argument for a wrong rank, unequal sizes, a mask or bias of
    the wrong shape, a mask that is not boolean, a scale that is no finite number, or an unknown
    ``impl``; ``RuntimeError`` with the reason where ``triton`` cannot run.
    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1.
    """
    require_choice("impl", impl, IMPLS)
    options = _checked(q, k, v, mask, key_mask, causal, window, bias, scale)
    if impl == "triton":
        return kernels.softmax(q, k, v, **options)
    if impl == "reference":
        return _by_formula(q, k, v, **options)[1]
    with without_autocast(q.device):
        return engine.attend(q, k, v, **options)


def _checked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    key_mask: Tensor | None,
    causal: bool,
    window: int | None,
    bias: Tensor | None,
    scale: float | None,
) -> dict[str, Any]:
    """The options as every implementation gets them; ``ValueError`` unless all fits together."""
    for name, x, axes in (("q", q, "B H T D"), ("k", k, "B H S D"), ("v", v, "B H S Dv")):
        require_rank(name, x, axes)
        require_floating(name, x)
    for axis, index in (("B", 0), ("H", 1), ("D", 3)):
        require_same(axis, {"q": q.shape[index], "k": k.shape[index]})
    for axis, index in (("B", 0), ("H", 1), ("S", 2)):
        require_same(axis, {"k": k.shape[index], "v": v.shape[index]})
    require_same_dtype(q=q, k=k)
    require_same_dtype(q=q, v=v)
    require_positive("D", q.shape[3])
    require_flag("causal", causal)
    if window is not None:
        require_positive("window", window)
    if scale is not None:
        require_number("scale", scale)
    shape = (*q.shape[:3], k.shape[2])
    if mask is not None:
        require_bool("mask", mask, "True = may look")
        require_broadcast("mask", mask, shape, "B H T S")
    if key_mask is not None:
        require_key_mask(key_mask, k)
    if bias is not None:
        require_floating("bias", bias)
        require_broadcast("bias", bias, shape, "B H T S")
        bias = _within_range(bias, torch.promote_types(q.dtype, torch.float32))
    return {
        "mask": with_padding(mask, key_mask),
        "bias": bias,
        "causal": bool(causal),
        "window": None if window is None else int(window),
        "scale": q.shape[3] ** -0.5 if scale is None else float(scale),
    }


def _within_range(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """In the dtype of the scores, whose range a finite bias does not leave (−inf has a meaning)."""
    if bias.dtype == torch.float64 != dtype:
        limit = torch.finfo(dtype).max
        bias = torch.where(bias == -torch.inf, bias, bias.clamp(-limit, limit))
    return bias.to(dtype)


def _by_formula(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    window: int | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """:func:`formula`, with queries that see nothing and keys that nobody sees cleared."""
    T, S = q.shape[2], k.shape[2]
    see = visible(mask, bias, near(T, S, S - T, causal=causal, window=window, device=q.device))
    looks, seen = see.any(-1).unsqueeze(-1), see.any(-2).unsqueeze(-1)
    wide = torch.promote_types(q.dtype, torch.float32)
    # 0 · NaN is NaN. And a row of nothing but −∞ would be 0/0: such a row sees everything, with
    # equal scores, and loses its weights afterwards: zero output, zero gradient.
    q_seen, k_seen, v_seen = (
        x.to(wide).masked_fill(~keep, 0) for x, keep in ((q, looks), (k, seen), (v, seen))
    )
    see = see | ~looks
    added = 0.0 if bias is None else bias.masked_fill(~looks, 0)
    with without_autocast(q.device):
        weights, out = formula(q_seen, k_seen, v_seen, see, added, scale)
    return weights.masked_fill(~looks, 0).to(q.dtype), out.masked_fill(~looks, 0).to(q.dtype)


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
        key_mask: Tensor | None = None,
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
            q,
            k,
            v,
            mask=mask,
            key_mask=key_mask,
            causal=causal,
            window=window,
            bias=bias,
            scale=scale,
            impl=impl,
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
        k, v, cache = KeyValueCache.before(k, v, cache).extend(k, v)
        o = softmax_attention(q.to(k.dtype), k, v, causal=True, impl=impl)
        return self.merge(o), cache

    @classmethod
    def from_torch(
        cls, source: nn.MultiheadAttention, *, without_dropout: bool = False
    ) -> MultiHeadAttention:
        """A layer with the weights of ``nn.MultiheadAttention`` (one width for q, k and v).

        Frozen parameters stay frozen, and the mode (training or not) is kept. ``ValueError`` for
        what this layer does not have: kdim, vdim, add_bias_kv, add_zero_attn, and dropout unless
        the caller does ``without_dropout``.
        """
        if not isinstance(source, nn.MultiheadAttention):
            raise ValueError(f"source: expected nn.MultiheadAttention, got {type(source).__name__}")
        if source.in_proj_weight is None or source.bias_k is not None or source.add_zero_attn:
            raise ValueError(
                "source: expected nn.MultiheadAttention without kdim, vdim, add_bias_kv and "
                "add_zero_attn, got one that uses them"
            )
        if source.dropout and not without_dropout:
            raise ValueError(
                f"source: expected dropout = 0, since this layer has none, got {source.dropout}; "
                "from_torch(source, without_dropout=True) leaves it out"
            )
        layer = cls(source.embed_dim, source.num_heads, bias=source.in_proj_bias is not None)
        layer.to(source.in_proj_weight).train(source.training)
        with torch.no_grad():
            for ours, theirs, owner in layer._pairs(source):
                ours.copy_(theirs)
                ours.requires_grad_(owner.requires_grad)
        return layer

    def to_torch(self) -> nn.MultiheadAttention:
        """An ``nn.MultiheadAttention`` (batch first) with these weights.

        Raises ``ValueError`` unless ``H·D = H·Dv = E``, the only widths it knows, and where W_q,
        W_k and W_v, which are one parameter there, are neither all frozen nor all free.
        """
        if not self.H * self.D == self.H * self.Dv == self.E:
            raise ValueError(
                f"to_torch: expected H·D = H·Dv = E = {self.E}, "
                f"got H·D = {self.H * self.D}, H·Dv = {self.H * self.Dv}"
            )
        has_bias = self.W_q.bias is not None
        target = nn.MultiheadAttention(self.E, self.H, bias=has_bias, batch_first=True)
        target.to(self.W_q.weight).train(self.training)
        flags: dict[Tensor, set[bool]] = {}
        with torch.no_grad():
            for ours, theirs, owner in self._pairs(target):
                theirs.copy_(ours)
                flags.setdefault(owner, set()).add(ours.requires_grad)
        for owner, found in flags.items():
            if len(found) > 1:
                raise ValueError(
                    "to_torch: expected W_q, W_k and W_v all frozen or all free, got some of each"
                )
            owner.requires_grad_(found.pop())
        return target

    def _pairs(self, other: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Each parameter of this layer, the same numbers in ``other``, and whose they are there."""
        inputs = (self.W_q, self.W_k, self.W_v)
        weights, biases = other.in_proj_weight, other.in_proj_bias
        pairs: list[tuple[Tensor, Tensor, Tensor]] = [
            (m.weight, x, weights) for m, x in zip(inputs, weights.chunk(3), strict=True)
        ]
        pairs.append((self.W_o.weight, other.out_proj.weight, other.out_proj.weight))
        if self.W_o.bias is not None:
            pairs += [(m.bias, x, biases) for m, x in zip(inputs, biases.chunk(3), strict=True)]
            pairs.append((self.W_o.bias, other.out_proj.bias, other.out_proj.bias))
        return pairs
