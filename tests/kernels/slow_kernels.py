"""A module that cannot list its cases, and one case that never ends: see bad_kernels."""

from __future__ import annotations

from course.kernels.aot import Case
from tests.kernels.bad_kernels import Endless


def cases(dtype: str, width: int) -> list[Case]:
    if dtype == "bf16":
        raise ValueError("width: no kernels for bf16")
    return [Case("endless", Endless(), {}, {}, 4, 1)]
