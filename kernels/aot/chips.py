"""The chips that kernels are compiled for, and in which number formats and widths."""

from __future__ import annotations

from typing import NamedTuple

DTYPES = ("fp16", "bf16", "fp32")
WIDTHS = (16, 64, 128, 256)


class Chip(NamedTuple):
    """A GPU to compile for: Triton's name of it, and the shared memory that one program may have.

    ``gated``: whether a complaint about it is a failure, or only reported.
    """

    name: str
    backend: str
    number: int | str
    warp: int
    shared: int
    gated: bool = True


# Sources: CUDA C++ programming guide, table "technical specifications per compute capability"
# (shared memory per block, opt-in); AMD CDNA 3 instruction set architecture (LDS of a workgroup).
CHIPS = {
    "sm_75": Chip("T4", "cuda", 75, 32, 64 * 1024, gated=False),
    "sm_80": Chip("A100", "cuda", 80, 32, 163 * 1024),
    "sm_86": Chip("A10, RTX 30", "cuda", 86, 32, 99 * 1024),
    "sm_90": Chip("H100", "cuda", 90, 32, 227 * 1024),
    "sm_100": Chip("B200", "cuda", 100, 32, 227 * 1024),
    "gfx942": Chip("MI300", "hip", "gfx942", 64, 64 * 1024),
}
#: Columns of Blackwell's tensor memory: a chip's whole supply.
TENSOR_MEMORY = 512
