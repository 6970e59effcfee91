"""Linear attention that forgets: before each token a head multiplies its state by a decay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from course.config import TransformerConfig
from course.memory import gated_attention, gated_attention_step
from course.mixers.base import register_mixer, unit_values
from course.mixers.linear import LinearMixer
from course.state import LinearState

#: A fresh gate keeps sigmoid(5) = 0.993 of the state: half of it is left after 103 tokens.
_OPEN = 5.0


@register_mixer("gated")
class GatedMixer(LinearMixer):
    """Causal linear attention whose state fades by ``γ_t = sigmoid(w·x_t + b)``, one γ a head.

    The options, and the state, are those of :class:`LinearMixer` without ``impl``. A fresh gate is
    nearly open (b = 5).
    Source: Yang et al. 2024 (arXiv:2312.06635); one decay a head: Dao and Gu 2024
    (arXiv:2405.21060).
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
    ) -> None:
        super().__init__(
            config,
            feature_map=feature_map,
            map_options=map_options,
            key_width=key_width,
            normalize=normalize,
            bias=bias,
        )
        self.gate = nn.Linear(config.E, config.H)
        nn.init.constant_(self.gate.bias, _OPEN)

    def forward(self, x: Tensor) -> Tensor:
        """``x [B,T,E]`` → ``[B,T,E]`` by chunks."""
        q, k, v = self.attention.heads(x)
        o = gated_attention(q, k, v, log_decay=self._log_decay(x), **self._options())
        return self.attention.merge(o)

    def with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same token by token, and the weights ``[B,H,T,T]`` of the values, decay included."""
        q, k, v = self.attention.heads(x)
        log_decay, unit = self._log_decay(x), unit_values(v)
        weights = gated_attention(q, k, unit, log_decay=log_decay, form="loop", **self._options())
        return self.attention.merge(weights @ v), weights

    def decode(self, x: Tensor, state: LinearState | None) -> tuple[Tensor, LinearState]:
        """Go on from ``state`` with ``x [B,T,E]``; one token costs the same at every position."""
        q, k, v = self.attention.heads(x)
        log_decay, options = self._log_decay(x), self._options()
        self._require_state(state, k, v)
        if x.shape[1] == 1:
            q_t, k_t, v_t, log = (x[:, :, 0] for x in (q, k, v, log_decay))
            o, state = gated_attention_step(q_t, k_t, v_t, state, log_decay=log, **options)
            return self.attention.merge(o.unsqueeze(2)), state
        o, state = gated_attention(
            q, k, v, log_decay=log_decay, initial_state=state, return_state=True, **options
        )
        return self.attention.merge(o), state

    def _log_decay(self, x: Tensor) -> Tensor:
        """ln γ ``[B,H,T]``."""
        return F.logsigmoid(self.gate(x)).transpose(1, 2)
