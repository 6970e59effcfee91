"""The delta rule as a mixer: a state of fixed size whose pairs are corrected, not only added."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from course.attention import MultiHeadAttention
from course.config import TransformerConfig
from course.inputs import require_positive
from course.memory import delta_attention, delta_attention_step
from course.mixers.base import Mixer, register_mixer, require_state, unit_values
from course.state import DeltaState


@register_mixer("delta")
class DeltaMixer(Mixer):
    """Causal attention by the delta rule; its state does not grow with the text.

    Queries and keys are brought to length 1, so that no step can enlarge what it corrects; how far
    token t moves the reading is ``β_t = sigmoid(w·x_t + b)``, one a head. ``key_width``: width of a
    query and key (None = the configuration's). There is no scale, no map and no division.
    Source: Schlag et al. 2021 (arXiv:2102.11174), with the keys of Yang et al. 2024
    (arXiv:2406.06484).
    """

    def __init__(
        self, config: TransformerConfig, *, key_width: int | None = None, bias: bool = True
    ) -> None:
        super().__init__()
        D = config.key_width if key_width is None else key_width
        require_positive("key_width", D)
        self.attention = MultiHeadAttention(
            config.E, config.H, D=D, Dv=config.value_width, bias=bias
        )
        self.strength = nn.Linear(config.E, config.H)

    def forward(self, x: Tensor) -> Tensor:
        """``x [B,T,E]`` → ``[B,T,E]`` by chunks."""
        q, k, v, beta = self._heads(x)
        return self.attention.merge(delta_attention(q, k, v, beta=beta))

    def with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same token by token, and the weights ``[B,H,T,T]`` with which values are read.

        They say what is left of each value after all corrections: below 0 too, and of any sum.
        """
        q, k, v, beta = self._heads(x)
        weights = delta_attention(q, k, unit_values(v), beta=beta, form="loop")
        return self.attention.merge(weights @ v), weights

    def decode(self, x: Tensor, state: DeltaState | None) -> tuple[Tensor, DeltaState]:
        """Go on from ``state`` with ``x [B,T,E]``; one token costs the same at every position."""
        q, k, v, beta = self._heads(x)
        if state is not None:
            (B, H), D, Dv = k.shape[:2], k.shape[3], v.shape[3]
            require_state(state, DeltaState, x, S=(B, H, D, Dv), t=(B,))
        if x.shape[1] == 1:
            q_t, k_t, v_t, beta_t = (x[:, :, 0] for x in (q, k, v, beta))
            o, state = delta_attention_step(q_t, k_t, v_t, state, beta=beta_t)
            return self.attention.merge(o.unsqueeze(2)), state
        o, state = delta_attention(q, k, v, beta=beta, initial_state=state, return_state=True)
        return self.attention.merge(o), state

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries and keys of length 1, values, and β ``[B,H,T]``."""
        q, k, v = self.attention.heads(x)
        return _unit(q), _unit(k), v, self.strength(x).sigmoid().transpose(1, 2)


def _unit(y: Tensor) -> Tensor:
    """``y [B,H,T,D]`` brought to length 1, computed in float32 at least; 0 where it is 0."""
    wide = y.to(torch.promote_types(y.dtype, torch.float32))
    length = wide.norm(dim=-1, keepdim=True)
    # x/∞ is 0 with gradient 0. An epsilon is 0 itself in float16, and else a gradient of 1/epsilon.
    return (wide / length.masked_fill(length == 0, math.inf)).to(y.dtype)
