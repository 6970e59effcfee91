"""Ahead-of-time compilation of every kernel, for GPUs that this machine need not have.

Triton carries its own compilers and disassembler, so that what a kernel will need on a chip can be
read from the code made for it: registers, shared memory, tensor-core instructions, the width of
its offsets. Compiling and interpreting exclude each other in one process, so compiling is always
done in child processes: ``python -m course.kernels.aot`` is one.

``cases`` what · ``compiling`` one case · ``assembly`` reading the result · ``rules`` what is wrong
with it · ``processes`` all cases. For which chips: :mod:`course.kernels.chips`.
"""

from course.kernels.aot.cases import Case, cases, source
from course.kernels.aot.compiling import compile_case
from course.kernels.aot.processes import Wanted, available, child_environment, compile_all
from course.kernels.aot.rules import Row, complaints, failures
from course.kernels.chips import CHIPS, DTYPES, MODULES, SPILL_BOUND, WIDTHS, Chip

__all__ = [
    "CHIPS",
    "DTYPES",
    "MODULES",
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
