"""The plainest mixers: none at all, and the mean of everything so far."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course.averaging import mean_matrix, prefix_mean
from course.config import TransformerConfig
from course.mixers.base import Mixer, register_mixer, require_state


@register_mixer("none")
class NoMixer(Mixer):
    """No context: the block has no mixing part, every position stays alone."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """``x [B,T,E]``, unchanged."""
        return x

    def with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x`` and the identity ``[B,1,T,T]``: each position looks at itself."""
        return x, torch.eye(x.shape[1]).to(x).expand(x.shape[0], 1, -1, -1)

    def decode(self, x: Tensor, state: None) -> tuple[Tensor, None]:
        """``x``, unchanged; there is no state."""
        if state is not None:
            raise ValueError(f"cache: expected None, got {type(state).__name__}")
        return x, None


class MeanState(NamedTuple):
    """What the prefix mean carries: the sum ``[B,E]`` of all inputs so far, and how many.

    The sum is kept in float32, or in float64 when the inputs are.
    """

    total: Tensor
    seen: int


@register_mixer("mean")
class MeanMixer(Mixer):
    """The mean of all positions so far, the current one included; no parameters."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """``x [B,T,E]`` → the prefix means ``[B,T,E]``, by a running sum: T·E additions."""
        return self.decode(x, None)[0]

    def with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same by its matrix: row t of ``[B,1,T,T]`` holds ``1/(t+1)`` up to column t."""
        weights = mean_matrix(x.shape[1], dtype=x.dtype, device=x.device)
        return prefix_mean(x, form="matrix"), weights.expand(x.shape[0], 1, -1, -1)

    def decode(self, x: Tensor, state: MeanState | None) -> tuple[Tensor, MeanState]:
        """Continue the running sum of ``state`` with ``x [B,T,E]``."""
        B, T, E = x.shape
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if state is None:
            state = MeanState(wide.new_zeros(B, E), 0)
        require_state(state, MeanState, x, total=(B, E))
        totals = torch.cat([state.total.unsqueeze(1), wide], dim=1).cumsum(1)
        counts = torch.arange(state.seen + 1, state.seen + T + 1, device=x.device).unsqueeze(-1)
        means = (totals[:, 1:] / counts).to(x.dtype)
        return means, MeanState(totals[:, -1].clone(), state.seen + T)
