"""Wrong attentions, which the tests of ``tests/test_attention.py`` must refuse.

``Plain`` is attention as one writes it down, in steps; each mutant gets one step wrong. A subject
has the public functions of ``course.attention`` with their signatures.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from course import attention
from tests import test_attention
from tests.drawing import H
from tests.mutants import Suite

CHECKS = {
    name.removeprefix("test_").replace("_", " "): test
    for name, test in vars(test_attention).items()
    if name.startswith("test_") and list(inspect.signature(test).parameters) == ["m"]
}


class Plain:
    """The public face of ``course.attention``; nothing of it is wrong."""

    KeyValueCache = attention.KeyValueCache
    MultiHeadAttention = attention.MultiHeadAttention

    def scale(self, q: Tensor, scale: float | None) -> float:
        return q.shape[-1] ** -0.5 if scale is None else scale

    def lag(self, T: int, S: int, device: Any) -> Tensor:
        """How many places key i lies before query t, the last query standing at the last key."""
        return torch.arange(S - T, S, device=device)[:, None] - torch.arange(S, device=device)

    def near(self, lag: Tensor, causal: bool, window: int | None) -> Tensor:
        near = lag >= 0 if causal else torch.ones_like(lag, dtype=torch.bool)
        return near if window is None else near & (lag.abs() < window)

    def mask(self, mask: Tensor, causal: bool) -> Tensor:
        return mask

    def padding(self, key_mask: Tensor) -> Tensor:
        return key_mask[:, None, None, :]

    def bias(self, bias: Tensor, scale: float) -> Tensor:
        return bias

    def query(self, q: Tensor, see: Tensor) -> Tensor:
        return q.masked_fill(~see.any(-1).unsqueeze(-1), 0)

    def key(self, k: Tensor, see: Tensor) -> Tensor:
        return k.masked_fill(~see.any(-2).unsqueeze(-1), 0)

    def value(self, v: Tensor, see: Tensor) -> Tensor:
        return self.key(v, see)

    def weights(self, scores: Tensor, see: Tensor) -> Tensor:
        seen = see.any(-1, keepdim=True)
        scores = scores.masked_fill(~see, -torch.inf).masked_fill(~seen, 0)
        return scores.softmax(-1).masked_fill(~seen, 0)

    def compute(
        self, q: Any, k: Any, v: Any, mask: Any, key_mask: Any, causal: Any, window: Any, bias: Any,
        scale: Any,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
        scale = self.scale(q, scale)
        see = self.near(self.lag(q.shape[2], k.shape[2], q.device), causal, window)
        if mask is not None:
            see = see & self.mask(mask, causal)
        if key_mask is not None:
            see = see & self.padding(key_mask)
        if bias is not None:
            see = see & (bias != -torch.inf)
        q, k, v = self.query(q.to(wide), see), self.key(k.to(wide), see), v.to(wide)
        scores = q @ k.mT * scale
        if bias is not None:
            most = torch.finfo(wide).max  # a finite number that is too large for ``wide``
            bias = self.bias(bias, scale).to(wide)
            scores = scores + bias.nan_to_num(nan=torch.nan, posinf=most, neginf=-most)
        weights = self.weights(scores, see)
        return weights.to(dtype), (weights @ self.value(v, see)).to(dtype)

    def attention_weights(
        self, q: Any, k: Any, *, mask: Any = None, key_mask: Any = None, causal: bool = False,
        window: Any = None, bias: Any = None, scale: Any = None,
    ) -> Tensor:  # fmt: skip
        return self.compute(q, k, k, mask, key_mask, causal, window, bias, scale)[0]

    def softmax_attention(
        self, q: Any, k: Any, v: Any, *, mask: Any = None, key_mask: Any = None,
        causal: bool = False, window: Any = None, bias: Any = None, scale: Any = None,
        impl: str = "torch",
    ) -> Tensor:  # fmt: skip
        return self.compute(q, k, v, mask, key_mask, causal, window, bias, scale)[1]

    def causal_mask(
        self, T: int, S: int | None = None, window: int | None = None, *, device: Any = None
    ) -> Tensor:
        return self.near(self.lag(T, T if S is None else S, device), True, window)


MUTANTS: dict[str, type[Plain]] = {}


def wrong(**steps: Any) -> type[Plain]:
    return type("Wrong", (Plain,), steps)


def mutant(subject: type) -> type:
    """Register a wrong subject; its first line of documentation is its name."""
    MUTANTS[(subject.__doc__ or "").rstrip(".")] = subject
    return subject


# One step wrong ---


def _weights(rule: Any) -> type[Plain]:
    return wrong(weights=lambda self, scores, see: rule(scores, see))


def _hidden(scores: Tensor, see: Tensor, constant: float = -torch.inf) -> Tensor:
    return scores.masked_fill(~see, constant)


def _repaired(scores: Tensor, see: Tensor) -> Tensor:
    weights = _hidden(scores, see).softmax(-1)
    return torch.where(see.any(-1, keepdim=True), weights, torch.zeros_like(weights))


def _unshifted(scores: Tensor, see: Tensor) -> Tensor:
    weights = scores.exp() * see
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)


def _finite(constant: float) -> type[Plain]:
    return _weights(
        lambda scores, see: (
            _hidden(scores, see, constant).softmax(-1).masked_fill(~see.any(-1, keepdim=True), 0)
        )
    )


def _near(rule: Any) -> type[Plain]:
    """Who is near, in causal order only."""
    right = Plain.near

    def near(self: Plain, lag: Tensor, causal: bool, window: int | None) -> Tensor:
        return (
            right(self, lag, causal, window) & rule(lag)
            if causal
            else right(self, lag, causal, window)
        )

    return wrong(near=near)


MUTANTS |= {
    "NaN in an empty row": _weights(lambda s, see: _hidden(s, see).softmax(-1)),
    "NaN repaired in the output only": _weights(_repaired),
    "mask constant of a hundred thousand": _finite(-1e5),
    "mask constant of a milliard": _finite(-1e9),
    "empty row looks everywhere": _weights(
        lambda s, see: _hidden(s, see | ~see.any(-1, keepdim=True)).softmax(-1)
    ),
    "mask after softmax without renormalising": _weights(
        lambda s, see: s.nan_to_num(neginf=-1e4).softmax(-1) * see
    ),
    "mask multiplied into the scores": _weights(lambda s, see: (s * see).softmax(-1)),
    "softmax over the queries": _weights(lambda s, see: _hidden(s, see).softmax(-2).nan_to_num(0)),
    "softmax over the heads": _weights(lambda s, see: _hidden(s, see).softmax(1).nan_to_num(0)),
    "softmax without the maximum taken off": _weights(_unshifted),
    "weights detached": wrong(weights=lambda self, s, see: Plain.weights(self, s, see).detach()),
    "scale by the model width": wrong(
        scale=lambda self, q, scale: (H * q.shape[-1]) ** -0.5 if scale is None else scale
    ),
    "scale by the root of the length": wrong(
        scale=lambda self, q, scale: max(1, q.shape[-2]) ** -0.5 if scale is None else scale
    ),
    "scale by the width without root": wrong(
        scale=lambda self, q, scale: 1 / q.shape[-1] if scale is None else scale
    ),
    "scale applied twice": wrong(
        scale=lambda self, q, scale: q.shape[-1] ** -0.5 * (1.0 if scale is None else scale)
    ),
    "scale forgotten": wrong(scale=lambda self, q, scale: 1.0 if scale is None else scale),
    "scale of zero taken for none": wrong(
        scale=lambda self, q, scale: scale or q.shape[-1] ** -0.5
    ),
    "diagonal hidden": _near(lambda lag: lag > 0),
    "first query with first key": wrong(
        lag=lambda self, T, S, device: (
            torch.arange(T, device=device)[:, None] - torch.arange(S, device=device)
        )
    ),
    "one look ahead": wrong(
        near=lambda self, lag, causal, window: (
            Plain.near(self, lag + causal, causal, None) & Plain.near(self, lag, False, window)
        )
    ),
    "window one too wide": wrong(
        near=lambda self, lag, causal, window: Plain.near(
            self, lag, causal, None if window is None else window + 1
        )
    ),
    "window that looks ahead is cut": wrong(
        near=lambda self, lag, causal, window: Plain.near(
            self, lag, causal or window is not None, window
        )
    ),
    "mask inverted": wrong(mask=lambda self, mask, causal: ~mask),
    "mask of the first head for all": wrong(
        mask=lambda self, mask, causal: mask[..., :1, :, :] if mask.ndim > 2 else mask
    ),
    "mask of the first sequence for all": wrong(
        mask=lambda self, mask, causal: mask[:1] if mask.ndim > 3 else mask
    ),
    "mask of the last query for all": wrong(
        mask=lambda self, mask, causal: mask[..., -1:, :] if mask.ndim > 1 else mask
    ),
    "mask ignored when causal": wrong(
        mask=lambda self, mask, causal: torch.ones_like(mask) if causal else mask
    ),
    "key mask inverted": wrong(padding=lambda self, key_mask: ~key_mask[:, None, None, :]),
    "key mask of the first sequence for all": wrong(
        padding=lambda self, key_mask: key_mask[:1, None, None, :]
    ),
    "bias scaled with the scores": wrong(bias=lambda self, bias, scale: bias * scale),
    "bias taken off": wrong(bias=lambda self, bias, scale: -bias),
    "bias without a gradient": wrong(bias=lambda self, bias, scale: bias.detach()),
    "NaN in a hidden key leaks": wrong(
        key=lambda self, k, see: k, value=lambda self, v, see: Plain.key(self, v, see)
    ),
    "NaN in a hidden value leaks": wrong(value=lambda self, v, see: v),
    "NaN in a blind query leaks": wrong(query=lambda self, q, see: q),
}


@mutant
class _Scaled(Plain):
    """Queries scaled in place"""

    def softmax_attention(self, q: Any, k: Any, v: Any, **options: Any) -> Tensor:
        with torch.no_grad():
            q.mul_(1.0 + 1e-3)
        return super().softmax_attention(q, k, v, **options)


@mutant
class _Half(Plain):
    """Weights kept in half precision"""

    def softmax_attention(self, q: Any, k: Any, v: Any, impl: str = "torch", **o: Any) -> Tensor:
        right = super().softmax_attention(q, k, v, **o)
        # Only where it can be seen: float64 has no narrower weights in this function.
        return right if q.dtype == torch.float64 else self.attention_weights(q, k, **o) @ v


@mutant
class _Corner(Plain):
    """The fused kernel aligns the first corner"""

    def softmax_attention(self, q: Any, k: Any, v: Any, impl: str = "torch", **o: Any) -> Tensor:
        if impl == "torch" and set(o) == {"causal"}:
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=o["causal"])
        return super().softmax_attention(q, k, v, **o)


@mutant
class _Fused(Plain):
    """The fused kernel averages in an empty row"""

    def softmax_attention(self, q: Any, k: Any, v: Any, impl: str = "torch", **o: Any) -> Tensor:
        out = super().softmax_attention(q, k, v, **o)
        if impl != "torch" or k.shape[2] == 0:
            return out
        empty = self.attention_weights(q, k, **o).sum(-1, keepdim=True) == 0
        return torch.where(empty, v.nan_to_num().mean(2, keepdim=True), out)


# A layer with one method wrong ---

Layer = attention.MultiHeadAttention


def layer(**methods: Any) -> type[Plain]:
    return wrong(MultiHeadAttention=type("MultiHeadAttention", (Layer,), methods))


def _decode(causal: Any) -> type[Plain]:
    def decode(self: Any, x: Tensor, cache: Any = None, *, impl: str = "torch") -> Any:
        q, k, v = self.heads(x)
        if cache is not None:
            k, v = torch.cat([cache.k, k], dim=2), torch.cat([cache.v, v], dim=2)
        out = attention.softmax_attention(q, k, v, causal=causal(cache is None), impl=impl)
        return self.merge(out), attention.KeyValueCache(k, v)

    return layer(decode=decode)


def _cache(rule: Any) -> type[Plain]:
    def decode(self: Any, x: Tensor, cache: Any = None, **options: Any) -> Any:
        out, new = Layer.decode(self, x, cache, **options)
        return out, attention.KeyValueCache(rule(new.k, x), rule(new.v, x))

    return layer(decode=decode)


def _concat(rule: Any) -> type[Plain]:
    def merge(self: Any, o: Tensor, form: str = "concat") -> Tensor:
        return self.W_o(rule(o)) if form == "concat" else Layer.merge(self, o, form)

    return layer(merge=merge)


def _biased(self: Any, o: Tensor, form: str = "concat") -> Tensor:
    out = Layer.merge(self, o, form)
    if form == "sum" and self.W_o.bias is not None:
        return out + (self.H - 1) * self.W_o.bias
    return out


def _exchanged(cls: Any, source: nn.MultiheadAttention) -> Any:
    made = Layer.from_torch(source)
    made.W_k, made.W_v = made.W_v, made.W_k
    return made


MUTANTS |= {
    "causal mask skipped in the prefill": _decode(lambda first: not first),
    "causal mask skipped in later portions": _decode(lambda first: first),
    "cache in reverse order": _cache(lambda past, x: past.flip(2)),
    "cache forgets all but the last portion": _cache(lambda past, x: past[:, :, -x.shape[1] :]),
    "heads concatenated feature first": _concat(lambda o: o.permute(0, 2, 3, 1).flatten(2)),
    "heads concatenated without the transpose": _concat(
        lambda o: o.reshape(o.shape[0], o.shape[2], -1)
    ),
    "output bias added by every head": layer(merge=_biased),
    "keys and values exchanged when loaded": layer(from_torch=classmethod(_exchanged)),
    "context ignored": layer(heads=lambda self, x, context=None: Layer.heads(self, x)),
    "queries from the context": layer(
        heads=lambda self, x, context=None: Layer.heads(self, x if context is None else context)
    ),
}

SUITE = Suite("attention", Plain, MUTANTS, CHECKS)
