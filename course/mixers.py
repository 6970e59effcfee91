"""Mixers with a recurrent state, for :class:`course.transformer.Transformer`: linear and hybrid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course.attention import MultiHeadAttention
from course.feature_maps import get_feature_map
from course.inputs import require_choice, require_positive
from course.linear import IMPLS, LinearState, linear_attention, linear_attention_step
from course.transformer import (
    Mixer,
    SoftmaxMixer,
    SoftmaxState,
    TransformerConfig,
    register_mixer,
)


@register_mixer("linear")
class LinearMixer(Mixer):
    """Causal multi-head linear attention; its state does not grow with the text.

    ``feature_map`` and ``map_options``: see :func:`course.feature_maps.get_feature_map`.
    ``key_width``: width of a query and key before the map (None = the configuration's). The scale
    of the configuration (None = key width to the power −½) multiplies the scores that the map
    sees. ``normalize=False`` leaves out the division by z, which signed maps need. ``impl``:
    ``torch`` or ``triton``, as in :func:`course.linear.linear_attention`.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        feature_map: str = "elu",
        map_options: Mapping[str, Any] | None = None,
        key_width: int | None = None,
        normalize: bool = True,
        bias: bool = True,
        impl: str = "torch",
    ) -> None:
        super().__init__()
        require_choice("impl", impl, IMPLS)
        self.impl = impl
        D = config.key_width if key_width is None else key_width
        require_positive("key_width", D)
        self.feature_map = get_feature_map(feature_map, **(map_options or {}))
        if normalize and self.feature_map.signed:
            raise ValueError(
                f"mixer_options: expected normalize=False with the signed map {feature_map!r}, "
                "got normalize=True"
            )
        self.normalize = normalize
        self.scale = D**-0.5 if config.scale is None else float(config.scale)
        self.attention = MultiHeadAttention(
            config.E, config.H, D=D, Dv=config.value_width, bias=bias
        )

    def forward(self, x: Tensor) -> Tensor:
        """``x [B,T,E]`` → ``[B,T,E]`` by chunks."""
        return self.attention.merge(self._attend(*self.attention.heads(x)))

    def with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same by the quadratic form, and its weights ``[B,H,T,T]``.

        Without the division by z the rows of the weights do not sum to 1.
        """
        q, k, v = self.attention.heads(x)
        # Values that are unit vectors make the output the row of weights.
        one_hot = torch.eye(x.shape[1]).to(v).expand(*v.shape[:3], -1)
        weights = self._attend(q, k, one_hot, form="parallel", impl="reference")
        return self.attention.merge(weights @ v), weights

    def decode(self, x: Tensor, state: LinearState | None) -> tuple[Tensor, LinearState]:
        """Go on from ``state`` with ``x [B,T,E]``; one token costs the same at every position."""
        q, k, v = self.attention.heads(x)
        if x.shape[1] == 1:
            o, state = linear_attention_step(
                q[:, :, 0],
                k[:, :, 0],
                v[:, :, 0],
                state,
                feature_map=self.feature_map,
                normalize=self.normalize,
                scale=self.scale,
                impl=self.impl,
            )
            return self.attention.merge(o.unsqueeze(2)), state
        o, state = self._attend(q, k, v, initial_state=state, return_state=True)
        return self.attention.merge(o), state

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        options = {"impl": self.impl} | options
        return linear_attention(
            q,
            k,
            v,
            causal=True,
            feature_map=self.feature_map,
            normalize=self.normalize,
            scale=self.scale,
            **options,
        )


class HybridState(NamedTuple):
    """The window's keys and values, and the linear half's sums."""

    near: SoftmaxState
    far: LinearState


@register_mixer("hybrid")
class HybridMixer(Mixer):
    """Softmax attention over a window for what is near, plus linear attention for what is far.

    Two mixers with matrices of their own, outputs added. ``window`` positions, the current one
    included; the linear half maps keys of ``key_width`` entries by ``feature_map``. ``impl``
    (``torch`` or ``triton``) is that of both halves.
    Source: Arora et al. 2024 (arXiv:2402.18668), who put the two into different layers.
    """

    relative_positions = SoftmaxMixer.relative_positions  # of the window

    def __init__(
        self,
        config: TransformerConfig,
        *,
        window: int = 64,
        feature_map: str = "taylor",
        map_options: Mapping[str, Any] | None = None,
        key_width: int = 16,
        bias: bool = True,
        impl: str = "torch",
    ) -> None:
        super().__init__()
        self.near = SoftmaxMixer(config, window=window, bias=bias, impl=impl)
        self.far = LinearMixer(
            config,
            feature_map=feature_map,
            map_options=map_options,
            key_width=key_width,
            bias=bias,
            impl=impl,
        )

    def forward(self, x: Tensor) -> Tensor:
        """``x [B,T,E]`` → ``[B,T,E]``."""
        return self.near(x) + self.far(x)

    def with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output, and the mean of the two halves' weights ``[B,H,T,T]``.

        Each half has values of its own, so the mean says who is looked at, not what is read.
        """
        near, weights = self.near.with_weights(x)
        far, more = self.far.with_weights(x)
        return near + far, (weights + more) / 2

    def decode(self, x: Tensor, state: HybridState | None) -> tuple[Tensor, HybridState]:
        """Both halves go on from their part of ``state``."""
        near, first = self.near.decode(x, None if state is None else state.near)
        far, second = self.far.decode(x, None if state is None else state.far)
        return near + far, HybridState(first, second)
