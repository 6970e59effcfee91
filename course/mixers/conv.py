"""A short causal convolution as a mixer: each position and the few before it, fixed weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course.config import TransformerConfig
from course.inputs import (
    autocasts,
    require_floating,
    require_positive,
    require_rank,
    require_same,
    require_same_dtype,
)
from course.mixers.base import Mixer, register_mixer, require_state


class ConvState(NamedTuple):
    """The last ``width − 1`` inputs ``[B, width − 1, E]``, zeros before the first token."""

    past: Tensor


@register_mixer("conv")
class ConvMixer(Mixer):
    """A depthwise causal convolution: ``y_t = Σ_j w_j ⊙ x_{t−j} + b``, j = 0 … ``width`` − 1.

    Every channel has its own ``width`` weights, the same at every position. It shifts exactly,
    which additive linear attention cannot; it looks nowhere else.
    Source: the short convolutions of Arora et al. 2024 (arXiv:2402.18668), without their gates.
    """

    def __init__(self, config: TransformerConfig, *, width: int = 3) -> None:
        super().__init__()
        require_positive("width", width)
        self.width = width
        bound = width**-0.5  # as nn.Conv1d
        self.weight = nn.Parameter(torch.empty(width, config.E).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(config.E).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """``x [B,T,E]`` → ``[B,T,E]``."""
        self._require(x)
        return self._mix(F.pad(x, (0, 0, self.width - 1, 0)), x.shape[1])

    def with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same by matrices, one a channel: ``[B,E,T,T]``, not one a head; the bias is beside.

        Entry (t, t − j) of each is that channel's w_j, so the rows do not sum to 1.
        """
        self._require(x)
        T = x.shape[1]
        lag = torch.arange(T, device=x.device)[:, None] - torch.arange(T, device=x.device)
        reached = (lag >= 0) & (lag < self.width)
        weights = self.weight.T[:, lag.clamp(0, self.width - 1)] * reached
        y = torch.einsum("ets,bse->bte", weights, x) + self.bias
        return y, weights.expand(x.shape[0], -1, -1, -1)

    def decode(self, x: Tensor, state: ConvState | None) -> tuple[Tensor, ConvState]:
        """Go on from the inputs kept in ``state`` with ``x [B,T,E]``."""
        self._require(x)
        B, T, E = x.shape
        if state is None:
            state = ConvState(x.new_zeros(B, self.width - 1, E))
        require_state(state, ConvState, x, past=(B, self.width - 1, E))
        if not autocasts(x.device):  # there the wider dtype goes on
            require_same_dtype(**{"cache.past": state.past, "the new x": x})
        padded = torch.cat([state.past, x], dim=1)
        return self._mix(padded, T), ConvState(padded[:, T:].clone())

    def _mix(self, padded: Tensor, T: int) -> Tensor:
        """``padded [B, width − 1 + T, E]`` → ``[B,T,E]``, summed in float32 at least."""
        narrow = torch.promote_types(padded.dtype, self.weight.dtype)
        wide = torch.promote_types(narrow, torch.float32)
        y = self.bias.to(wide)
        for j in range(self.width):
            start = self.width - 1 - j
            y = y + self.weight[j].to(wide) * padded[:, start : start + T]
        return y.to(narrow)

    def _require(self, x: Tensor) -> None:
        require_rank("x", x, "B T E")
        require_floating("x", x)
        require_same("E", {"x": x.shape[2], "the layer": self.weight.shape[1]})
