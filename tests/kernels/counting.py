"""What PyTorch itself does beside the kernels: every operation that reads or writes data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from course.kernels import runtime

# Memory is only handed out; a pointer is moved.
FREE = {"empty", "empty_like", "new_empty", "empty_strided", "set_"}


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
def data_operations() -> Iterator[list[str]]:
    """A list of the torch operations inside the ``with`` block that touch data.

    The interpreter's own copies, inside a launch, are not counted.
    """
    honest = runtime.launch

    def uncounted(*args: Any, **options: Any) -> None:
        with _disable_current_modes():
            honest(*args, **options)

    counter = _Counter()
    with mock.patch.object(runtime, "launch", uncounted), counter:
        yield counter.names
