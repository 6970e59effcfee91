"""A module that has no examples in one format, and a case that never ends: see bad_kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from course.kernels import runtime
from tests.kernels.bad_kernels import Endless


def examples(dtype: str, width: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    if dtype == "bf16":
        raise ValueError("width: no kernels for bf16")
    yield ", endless", lambda: runtime.launch(Endless(), (1,))
