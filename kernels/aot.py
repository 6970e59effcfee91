"""Ahead-of-time compilation of every kernel, for GPUs that this machine need not have."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Case(NamedTuple):
    """One kernel as a launcher would compile it: what ``cases(dtype, width)`` of a module lists.

    ``signature`` names each run-time argument in order with its type (``"*fp16"`` a pointer,
    ``"i32"``, ``"i64"``, ``"fp32"``), ``constexprs`` the compile-time ones. ``values`` gives
    integer arguments as contiguous tensors would make them, since Triton compiles a 1 into the
    kernel and uses that a number divides by 16: ``{"stride_qd": 1, "stride_qt": width}``. Pointers
    count as aligned to 16 bytes, as PyTorch's allocator gives them. ``tensor_cores=False`` declares
    a kernel without a matrix product.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    num_warps: int
    num_stages: int
    tensor_cores: bool = True
    values: Mapping[str, int] = MappingProxyType({})
