"""Both at once: softmax attention for what is near, linear attention for what is far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from course.cache import KeyValueCache
from course.config import TransformerConfig
from course.mixers.base import Mixer, register_mixer, require_state
from course.mixers.linear import LinearMixer
from course.mixers.softmax import SoftmaxMixer
from course.state import LinearState


class HybridState(NamedTuple):
    """The window's keys and values, and the linear half's sums."""

    near: KeyValueCache
    far: LinearState


@register_mixer("hybrid")
class HybridMixer(Mixer):
    """Softmax attention over a window for what is near, plus linear attention for what is far.

    Two mixers with matrices of their own, outputs added. ``window`` positions, the current one
    included; the linear half maps keys of ``key_width`` entries by ``feature_map``. ``impl`` is
    that of both halves.
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
        if state is not None:
            require_state(state, HybridState, x)
        near, first = self.near.decode(x, None if state is None else state.near)
        far, second = self.far.decode(x, None if state is None else state.far)
        return near + far, HybridState(first, second)
