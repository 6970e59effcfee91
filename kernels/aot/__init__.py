"""Ahead-of-time compilation of every kernel, for GPUs that this machine need not have.

Triton carries its own compilers and disassembler, so that what a kernel will need on a chip can be
read from the code made for it: registers, shared memory, tensor-core instructions, the width of
its offsets. Compiling and interpreting exclude each other in one process, so compiling is always
done in child processes: ``python -m course.kernels.aot`` is one.

``chips`` what for · ``cases`` what · ``compiling`` one case · ``assembly`` reading the result ·
``rules`` what is wrong with it · ``processes`` all cases.
"""

from course.kernels.aot.cases import MODULES, Case, cases, source
from course.kernels.aot.chips import CHIPS, DTYPES, WIDTHS, Chip
from course.kernels.aot.compiling import compile_case
from course.kernels.aot.processes import (
    REPORT_WIDTH,
    Wanted,
    available,
    child_environment,
    compile_all,
)
from course.kernels.aot.rules import NO_SPILL_WIDTH, SPILL_BOUND, Row, complaints, failures

__all__ = [
    "CHIPS",
    "DTYPES",
    "MODULES",
    "NO_SPILL_WIDTH",
    "REPORT_WIDTH",
    "SPILL_BOUND",
    "WIDTHS",
    "Case",
    "Chip",
    "Row",
    "Wanted",
    "available",
    "cases",
    "child_environment",
    "compile_all",
    "compile_case",
    "complaints",
    "failures",
    "source",
]
