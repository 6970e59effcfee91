"""Checks of what a caller passed in; each error says what came and what was expected."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# Those of plain values are used with these; a module that must load fast takes them from there.
from course.values import require_choice as require_choice
from course.values import require_number as require_number
from course.values import require_positive as require_positive
from course.values import require_same as require_same


def require_tensor(name: str, x: object, axes: str = "") -> None:
    """Raise ``ValueError`` unless ``x`` is a tensor; ``axes`` are named in the message."""
    if not isinstance(x, Tensor):
        kind = f"a tensor [{axes}]" if axes else "a tensor"
        raise ValueError(f"{name}: expected {kind}, got {type(x).__name__}")


def require_rank(name: str, x: Tensor, axes: str) -> None:
    """Raise ``ValueError`` unless ``x`` is a tensor with one axis per word of ``axes``.

    ``axes`` is written as in the docstrings, e.g. ``"B H T D"``.
    """
    require_tensor(name, x, axes)
    if x.ndim != len(axes.split()):
        raise ValueError(
            f"{name}: expected {len(axes.split())} axes [{axes}], "
            f"got {x.ndim} with shape {list(x.shape)}"
        )


def require_broadcast(name: str, x: Tensor, shape: Sequence[int], axes: str) -> None:
    """Raise ``ValueError`` unless ``x`` broadcasts to ``shape`` without enlarging it."""
    require_tensor(name, x, axes)
    try:
        fits = torch.broadcast_shapes(x.shape, tuple(shape)) == tuple(shape)
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name}: expected a shape that broadcasts to [{axes}] = {list(shape)}, "
            f"got {list(x.shape)}"
        )


def require_bool(name: str, x: Tensor, meaning: str) -> None:
    """Raise ``ValueError`` unless ``x`` is boolean; ``meaning`` says what True stands for."""
    require_tensor(name, x)
    if x.dtype != torch.bool:
        raise ValueError(f"{name}: expected a boolean tensor ({meaning}), got {x.dtype}")


def require_key_mask(key_mask: Tensor, k: Tensor) -> None:
    """Raise ``ValueError`` unless ``key_mask`` is a boolean ``[B, S]`` for ``k [B, H, S, D]``."""
    require_rank("key_mask", key_mask, "B S")
    require_bool("key_mask", key_mask, "True = a real token")
    require_same("B", {"k": k.shape[0], "key_mask": key_mask.shape[0]})
    require_same("S", {"k": k.shape[2], "key_mask": key_mask.shape[1]})


def require_flag(name: str, value: object) -> None:
    """Raise ``ValueError`` unless ``value`` is True or False (NumPy's count as such)."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}: expected True or False, got {value!r}")


def require_floating(name: str, x: Tensor) -> None:
    """Raise ``ValueError`` unless ``x`` holds floating-point numbers."""
    require_tensor(name, x)
    if not x.is_floating_point():
        raise ValueError(f"{name}: expected floating-point numbers, got {x.dtype}")


def require_same_dtype(**tensors: Tensor) -> None:
    """Raise ``ValueError`` unless all named tensors have one dtype."""
    if len({x.dtype for x in tensors.values()}) > 1:
        came = ", ".join(f"{name} has {x.dtype}" for name, x in tensors.items())
        raise ValueError(f"{' and '.join(tensors)}: expected one dtype, got {came}")


def require_same_device(**tensors: Tensor) -> None:
    """Raise ``ValueError`` unless all named tensors lie on one device."""
    if len({x.device for x in tensors.values()}) > 1:
        came = ", ".join(f"{name} on {x.device}" for name, x in tensors.items())
        raise ValueError(f"{' and '.join(tensors)}: expected one device, got {came}")


def autocasts(device: torch.device) -> bool:
    """Whether products on ``device`` are made in half precision now."""
    kind = device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Where sums must stay wide: under autocast, products would be made in half precision."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()
