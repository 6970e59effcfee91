"""Softmax attention as a mixer: over all of the past, or over a window of it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from course.attention import MultiHeadAttention, attention_weights, softmax_attention
from course.cache import KeyValueCache
from course.config import TransformerConfig
from course.inputs import require_choice, require_positive, require_same
from course.mixers.base import IMPLS, Mixer, register_mixer, require_state
from course.positions import alibi_bias, apply_rope


@register_mixer("softmax")
class SoftmaxMixer(Mixer):
    """Causal multi-head softmax attention; ``window=w`` looks at the last ``w`` positions only.

    ``mix_heads=False`` leaves out the output matrix W_o (then ``H·Dv`` must be ``E``);
    ``bias=False`` leaves out all biases. ``impl``: who attends, as in
    :func:`course.attention.softmax_attention`; ``triton`` has no dropout of weights.
    """

    relative_positions = ("rope", "alibi")

    def __init__(
        self,
        config: TransformerConfig,
        *,
        window: int | None = None,
        mix_heads: bool = True,
        bias: bool = True,
        impl: str = "torch",
    ) -> None:
        super().__init__()
        require_choice("impl", impl, IMPLS)
        if impl == "triton" and config.dropout:
            raise ValueError(
                f'dropout: expected 0 with impl="triton", which has no dropout of weights, '
                f"got {config.dropout}"
            )
        if window is not None:
            require_positive("window", window)
        self.positions, self.scale, self.dropout = config.positions, config.scale, config.dropout
        self.window, self.impl = window, impl
        self.attention = MultiHeadAttention(
            config.E, config.H, D=config.key_width, Dv=config.value_width, bias=bias
        )
        if not mix_heads:
            width = config.H * config.value_width
            require_same("E", {"H·Dv (needed for mix_heads=False)": width, "E": config.E})
            self.attention.W_o = nn.Identity()  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        """``x [B,T,E]`` → ``[B,T,E]``.

        In training a share ``dropout`` of the weights is 0. Only the formula has weights that one
        can drop, so a training pass with dropout builds the table of weights whatever ``impl``.
        """
        q, k, v = self._heads(x, first=0)
        if self.training and self.dropout:
            weights = attention_weights(q, k, **self._options(q, k))
            o = F.dropout(weights, self.dropout) @ v
        else:
            o = softmax_attention(q, k, v, **self._options(q, k), impl=self.impl)
        return self.attention.merge(o)

    def with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same, without dropout, by the readable reference, and its weights ``[B,H,T,T]``."""
        q, k, v = self._heads(x, first=0)
        options = self._options(q, k)
        o = softmax_attention(q, k, v, **options, impl="reference")
        return self.attention.merge(o), attention_weights(q, k, **options)

    def decode(self, x: Tensor, state: KeyValueCache | None) -> tuple[Tensor, KeyValueCache]:
        """Attend from ``x [B,T,E]`` to the keys in ``state`` and to the new ones."""
        if state is not None:
            require_state(state, KeyValueCache, x)
        q, k, v = self._heads(x, first=0 if state is None else state.seen)
        # The next token sees itself and w − 1 older ones; what left the window is dropped.
        keep = None if self.window is None else self.window - 1
        k, v, cache = KeyValueCache.before(k, v, state).extend(k, v, keep=keep)
        o = softmax_attention(q.to(k.dtype), k, v, **self._options(q, k), impl=self.impl)
        return self.attention.merge(o), cache

    def _heads(self, x: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of tokens that stand at positions ``first``, ``first`` + 1, …"""
        q, k, v = self.attention.heads(x)
        if self.positions == "rope":
            q, k = apply_rope(q, offset=first), apply_rope(k, offset=first)
        return q, k, v

    def _options(self, q: Tensor, k: Tensor) -> dict[str, Any]:
        """Who looks at whom, and how scores become weights: the same in all three ways."""
        bias = None
        if self.positions == "alibi":  # in float32: a penalty in half precision is off by percents
            bias = alibi_bias(q.shape[1], q.shape[2], k.shape[2]).to(q.device)
        return {"causal": True, "window": self.window, "bias": bias, "scale": self.scale}


@register_mixer("window")
def window_mixer(
    config: TransformerConfig,
    *,
    window: int = 64,
    mix_heads: bool = True,
    bias: bool = True,
    impl: str = "torch",
) -> SoftmaxMixer:
    """Softmax attention over the last ``window`` positions, the current one included."""
    return SoftmaxMixer(config, window=window, mix_heads=mix_heads, bias=bias, impl=impl)
