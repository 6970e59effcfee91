"""What a kernel is given to fill, and what PyTorch itself does beside the kernels."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from course.kernels import runtime

# Memory is only handed out; a pointer is moved; dtypes are compared.
FREE = {"empty", "empty_like", "new_empty", "empty_strided", "set_", "promote_types"}


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Whatever a kernel is given to fill is NaN before (−1 where whole numbers go)."""
    honest = runtime.empty

    def poison(*args: Any, **options: Any) -> Tensor:
        x = honest(*args, **options)
        return x.fill_(math.nan if x.is_floating_point() else -1)

    with mock.patch.object(runtime, "empty", poison):
        yield


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if not func.is_view and name not in FREE:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def only_noted() -> Iterator[tuple[list[runtime.Launch], list[str]]]:
    """Launches that would be made, and the torch operations beside them that touch data."""
    with runtime.recording() as launches, _Counter() as counter:
        yield launches, counter.names


def names(launches: list[runtime.Launch]) -> list[str]:
    """Of the kernels, in their order."""
    return [launch.kernel.__name__ for launch in launches]
