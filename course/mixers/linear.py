"""Linear attention as a mixer: a state of fixed size instead of a growing cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from course.attention import MultiHeadAttention
from course.config import TransformerConfig
from course.feature_maps import get_feature_map
from course.inputs import require_choice, require_number, require_positive
from course.linear import linear_attention, linear_attention_step
from course.mixers.base import IMPLS, Mixer, register_mixer, require_state, unit_values
from course.state import LinearState


@register_mixer("linear")
class LinearMixer(Mixer):
    """Causal multi-head linear attention; its state does not grow with the text.

    ``feature_map`` and ``map_options``: see :func:`course.feature_maps.get_feature_map`.
    ``key_width``: width of a query and key before the map (None = the configuration's). The scale
    of the configuration, above 0 (None = key width to the power −½), multiplies the scores that
    the map sees. ``normalize=False`` leaves out the division by z, which signed maps need.
    ``impl``: who attends, as in :func:`course.linear.linear_attention`.
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
        D = config.key_width if key_width is None else key_width
        require_positive("key_width", D)
        self.feature_map = get_feature_map(feature_map, **(map_options or {}))
        if normalize and self.feature_map.signed:
            raise ValueError(
                f"mixer_options: expected normalize=False with the signed map {feature_map!r}, "
                "got normalize=True"
            )
        self.normalize, self.impl = normalize, impl
        self.scale = D**-0.5 if config.scale is None else config.scale
        require_number("scale (each of q and k gets its root)", self.scale, above=0)
        self.attention = MultiHeadAttention(
            config.E, config.H, D=D, Dv=config.value_width, bias=bias
        )

    def forward(self, x: Tensor) -> Tensor:
        """``x [B,T,E]`` → ``[B,T,E]`` by chunks."""
        q, k, v = self.attention.heads(x)
        o = linear_attention(q, k, v, causal=True, impl=self.impl, **self._options())
        return self.attention.merge(o)

    def with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same by the quadratic form, and its weights ``[B,H,T,T]``.

        Without the division by z the rows of the weights do not sum to 1.
        """
        q, k, v = self.attention.heads(x)
        weights = linear_attention(
            q, k, unit_values(v), causal=True, form="parallel", impl="reference", **self._options()
        )
        return self.attention.merge(weights @ v), weights

    def decode(self, x: Tensor, state: LinearState | None) -> tuple[Tensor, LinearState]:
        """Go on from ``state`` with ``x [B,T,E]``; one token costs the same at every position."""
        q, k, v = self.attention.heads(x)
        self._require_state(state, k, v)
        options = self._options() | {"impl": self.impl}
        if x.shape[1] == 1:
            q_t, k_t, v_t = q[:, :, 0], k[:, :, 0], v[:, :, 0]
            o, state = linear_attention_step(q_t, k_t, v_t, state, **options)
            return self.attention.merge(o.unsqueeze(2)), state
        o, state = linear_attention(
            q, k, v, causal=True, initial_state=state, return_state=True, **options
        )
        return self.attention.merge(o), state

    def _require_state(self, state: LinearState | None, k: Tensor, v: Tensor) -> None:
        if state is not None:
            B, H, C = *k.shape[:2], self.feature_map.width(k.shape[3])
            require_state(state, LinearState, k, S=(B, H, C, v.shape[3]), z=(B, H, C), t=(B,))

    def _options(self) -> dict[str, Any]:
        """How scores become weights: the same in all three ways."""
        return {
            "feature_map": self.feature_map,
            "normalize": self.normalize,
            "scale": self.scale,
        }
