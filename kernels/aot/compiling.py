"""Compiling one case for one chip, in a process that does not interpret."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time

from course.kernels.aot import assembly
from course.kernels.aot.cases import Case, source
from course.kernels.aot.rules import Row
from course.kernels.chips import CHIPS


def compile_case(case: Case, row: Row) -> Row:
    """Compile ``case`` for ``row.arch`` and fill in ``row``; what Triton refuses becomes its error.

    Nothing touches a GPU's driver.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    chip, started = CHIPS[row.arch], time.perf_counter()
    cuda = chip.backend == "cuda"
    options = {name: n for name, n in case.options.items() if cuda or name != "maxnreg"}
    try:
        signature, constants, attributes = source(case, chip, hints=row.hints)
        compiled = triton.compile(
            ASTSource(case.kernel, signature, constants, attributes),
            target=GPUTarget(chip.backend, chip.number, chip.warp),
            options=options,
        )
        code = compiled.asm
        ttir, text = code["ttir"], code["ptx" if cuda else "amdgcn"]
        registers, spills = (
            assembly.nvidia_resources(_disassembler_says(code["cubin"]))
            if cuda
            else assembly.amd_resources(text)
        )
        return row._replace(
            registers=registers,
            spills=spills,
            shared=compiled.metadata.shared,
            tensor_memory=getattr(compiled.metadata, "tmem_size", None) or 0,
            instructions=assembly.tensor_core_instructions(text),
            slow_products=assembly.slow_products(code["ttgir"], ttir),
            offsets=assembly.offset_widths(ttir),
            narrow_products=assembly.narrow_products(ttir),
            precisions=assembly.dot_precisions(ttir),
            tf32_stated="tf32" in constants.values(),
            unrounded=assembly.unrounded_operands(ttir),
            seconds=time.perf_counter() - started,
        )
    except Exception as error:  # a compiler's errors have no common class
        text = " ".join(str(error).split()) or "no message"
        return row._replace(error=f"{type(error).__name__}: {text[-400:]}")


def _disassembler_says(cubin: bytes) -> str:
    from triton import knobs

    # A name of its own for a tool that reads files only.
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernel.cubin")
        with open(path, "wb") as file:
            file.write(cubin)
        return subprocess.run(
            [knobs.nvidia.cuobjdump.path, "-res-usage", path],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
