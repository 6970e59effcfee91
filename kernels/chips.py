"""What is compiled ahead of time for which chips, and within which bounds. Loads nothing heavy."""

from __future__ import annotations

from typing import NamedTuple

MODULES = ("softmax", "linear", "step", "taylor")
DTYPES = ("fp16", "bf16", "fp32")
WIDTHS = (16, 64, 128, 256)
#: Up to this width a spill is a fault; beyond it, at most this many bytes a thread are accepted.
NO_SPILL_WIDTH, SPILL_BOUND = 128, 1024
#: Chips that are only reported are compiled for up to this width: without tensor cores the code is
#: long, and so is the wait for it.
REPORT_WIDTH = 64


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
