"""What every mixer can do, and the registry of mixers by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from course.config import TransformerConfig
from course.inputs import require_choice, require_tensor

#: ``impl`` of the mixers that attend: who computes it (see :func:`course.linear.linear_attention`).
IMPLS = ("torch", "reference", "triton")


class Mixer(nn.Module):
    """What moves information between positions, causally: output t depends on inputs 0 … t only.

    A mixer gives the same outputs in three ways: all at once (``forward``), with its weights
    (``with_weights``), and in portions (``decode``).
    """

    #: Position schemes that act inside this mixer (``rope``, ``alibi``).
    relative_positions: tuple[str, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        """``x [B,T,E]`` → ``[B,T,E]``."""
        raise NotImplementedError(f"{type(self).__name__} has no full pass")

    def with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output ``[B,T,E]`` by the readable path, and the weights ``[B,H,T,T]`` used in it.

        A mixer whose weights differ from channel to channel has as many tables as channels.
        """
        raise NotImplementedError(f"{type(self).__name__} has no weights to show")

    def decode(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Outputs of the new tokens ``x [B,T,E]`` after those that ``state`` (None at first) holds.

        Returns a new state and leaves the given one as it was.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot decode step by step")


MixerFactory = Callable[..., Mixer]
Factory = TypeVar("Factory", bound=MixerFactory)

#: Every mixer by the name that ``TransformerConfig.mixer`` may have.
MIXERS: dict[str, MixerFactory] = {}


def register_mixer(name: str) -> Callable[[Factory], Factory]:
    """Make ``factory(config, **options) -> Mixer`` available as ``mixer=name`` (a decorator)."""

    def add(factory: Factory) -> Factory:
        if MIXERS.get(name, factory) is not factory:
            raise ValueError(f"mixer: expected a new name, got {name!r}, which is taken")
        MIXERS[name] = factory
        return factory

    return add


def build_mixer(config: TransformerConfig, index: int) -> Mixer:
    """The mixer of block ``index``; ``ValueError`` for an unknown name or option."""
    name, options = config.layer(index)
    require_choice("mixer", name, sorted(MIXERS))
    factory = MIXERS[name]
    try:
        inspect.signature(factory).bind(config, **options)
    except TypeError as error:
        known = list(inspect.signature(factory).parameters)[1:]
        raise ValueError(
            f"mixer_options: mixer {name!r} expected options among {known}, "
            f"got {sorted(options)} ({error})"
        ) from None
    return factory(config, **options)


def require_state(state: object, kind: type, like: Tensor, **shapes: tuple[int, ...]) -> None:
    """Raise ``ValueError`` unless ``state`` is a ``kind`` whose tensors have these shapes.

    They must lie on the device of ``like``. A state of another batch or of another mixer is the
    usual cause.
    """
    if not isinstance(state, kind):
        raise ValueError(f"cache: expected a {kind.__name__}, got {type(state).__name__}")
    for name, shape in shapes.items():
        tensor: Tensor = getattr(state, name)
        require_tensor(f"cache.{name}", tensor)
        if tuple(tensor.shape) != shape or tensor.device != like.device:
            raise ValueError(
                f"cache.{name}: expected shape {list(shape)} on {like.device}, "
                f"got {list(tensor.shape)} on {tensor.device}"
            )


def unit_values(v: Tensor) -> Tensor:
    """In place of values ``v [B,H,T,Dv]``: unit vectors ``[B,H,T,T]``.

    Attention to them gives its own weights, for any mixer that is linear in its values.
    """
    T = v.shape[2]
    return torch.eye(T, dtype=v.dtype, device=v.device).expand(*v.shape[:2], T, T)
