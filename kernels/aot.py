"""Ahead-of-time compilation of every kernel, for GPUs that this machine need not have.

Triton carries its own compilers and disassembler, so that what a kernel will need on a chip can be
read from the code made for it: registers, shared memory, tensor-core instructions, the width of
its offsets. Compiling and interpreting exclude each other in one process, so compiling is always
done in child processes: ``python -m course.kernels.aot`` is one, and answers a line of JSON for
each line of JSON it reads.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

MODULES = ("softmax", "linear", "step", "taylor")
DTYPES = ("fp16", "bf16", "fp32")
WIDTHS = (16, 64, 128, 256)
#: Up to this width a spill is a fault; beyond it, at most this many bytes a thread are accepted.
NO_SPILL_WIDTH, SPILL_BOUND = 128, 1024
#: Chips that are only reported are compiled for up to this width: without tensor cores the code is
#: long, and so is the wait for it.
REPORT_WIDTH = 64
#: A kernel that compiles for longer is given up.
SECONDS_A_KERNEL = 300.0


class Case(NamedTuple):
    """One kernel as a launcher would compile it: what ``cases(dtype, width)`` of a module lists.

    ``signature`` names each run-time argument in order with its type (``"*fp16"`` a pointer,
    ``"i32"``, ``"i64"``, ``"fp32"``), ``constexprs`` the compile-time ones. ``values`` gives
    integer arguments as contiguous tensors would make them, since Triton compiles a 1 into the
    kernel and uses that a number divides by 16: ``{"stride_qd": 1, "stride_qt": width}``. Pointers
    count as aligned to 16 bytes, as PyTorch's allocator gives them. ``tensor_cores=False`` declares
    a kernel without a matrix product. ``maxnreg``: registers a thread may have (NVIDIA): where
    it is given, ptxas spills only beyond it, not to get more programs on a processor.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    num_warps: int
    num_stages: int
    tensor_cores: bool = True
    values: Mapping[str, int] = MappingProxyType({})
    maxnreg: int | None = None


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


class Row(NamedTuple):
    """What the code of one kernel for one chip needs.

    ``spills`` and ``shared`` in bytes, a thread and a program; ``instructions``: how often each
    kind of tensor-core instruction stands in the assembly; ``slow_products``: products that became
    ordinary arithmetic unasked; ``offsets``: how many pointer offsets of each width;
    ``narrow_products``: products of two 32-bit variables widened only afterwards; ``precisions``
    of float32 products; ``tf32_stated``: TF32 stands among the case's constants. ``error``: why
    there is no code; the numbers then mean nothing.
    """

    module: str
    name: str
    dtype: str
    width: int
    arch: str
    hints: bool
    tensor_cores: bool = True
    registers: int = 0
    spills: int = 0
    shared: int = 0
    tensor_memory: int = 0
    instructions: Mapping[str, int] = MappingProxyType({})
    slow_products: int = 0
    offsets: Mapping[str, int] = MappingProxyType({})
    narrow_products: int = 0
    precisions: tuple[str, ...] = ()
    tf32_stated: bool = False
    seconds: float = 0.0
    error: str | None = None


# ------------------------------------------------------------------- reading what was compiled


def nvidia_resources(text: str) -> tuple[int, int]:
    """Registers and stack bytes a thread, from ``cuobjdump -res-usage``; the stack holds spills.

    Raises ``ValueError`` if they are not there.
    """
    found = re.search(r"\bREG:(\d+)\s+STACK:(\d+)", text)
    if not found:
        raise ValueError(f"cuobjdump: expected REG and STACK, got {text[:200]!r}")
    return int(found[1]), int(found[2])


def amd_resources(assembly: str) -> tuple[int, int]:
    """Vector registers and spilled bytes a thread, from the notes at the assembly's end.

    Raises ``ValueError`` if they are not there.
    """
    count = re.search(r"^\s*\.vgpr_count:\s*(\d+)", assembly, re.M)
    spills = re.search(r"^\s*\.vgpr_spill_count:\s*(\d+)", assembly, re.M)
    if not count or not spills:
        raise ValueError("amdgcn: expected .vgpr_count and .vgpr_spill_count, found none")
    return int(count[1]), 4 * int(spills[1])


_TENSOR_CORES = re.compile(r"\b(?:(wgmma)\.mma_async|(tcgen05)\.mma|(mma)\.sync|v_(mfma)_)")


def tensor_core_instructions(assembly: str) -> dict[str, int]:
    """How often ``mma``, ``wgmma``, ``tcgen05`` or ``mfma`` instructions stand in PTX or amdgcn."""
    return dict(Counter(next(filter(None, m)) for m in _TENSOR_CORES.findall(assembly)))


_DEFINITION = re.compile(r"^\s*(%[\w#]+)(?::\d+)? = ([\w.]+)(.*)$")
_INTEGER = re.compile(r"(?:^|[x ])(i\d+)>?$")


def _definitions(ttir: str) -> dict[str, tuple[str, list[str], str]]:
    # name → operation, operands, type of the result; the regions of loops are not followed.
    found = {}
    for line in ttir.splitlines():
        line = re.sub(r"\s+loc\(.*$", "", line)
        if match := _DEFINITION.match(line):
            name, operation, rest = match.groups()
            operands, _, types = rest.partition(" : ")
            found[name] = (
                operation,
                re.findall(r"%[\w#]+", operands),
                re.split(r"->| to ", types)[-1],
            )
    return found


def offset_widths(ttir: str) -> dict[str, int]:
    """How many ``tt.addptr`` have an offset of each integer type: ``{"i64": 12}`` is wanted.

    Raises ``ValueError`` for an offset that cannot be read.
    """
    widths: Counter[str] = Counter()
    for line in ttir.splitlines():
        line = re.sub(r"\s+loc\(.*$", "", line)
        if " tt.addptr " not in line:
            continue
        found = _INTEGER.search(line.rstrip())
        if not found:
            raise ValueError(f"tt.addptr: expected an integer offset, got {line.strip()!r}")
        widths[found[1]] += 1
    return dict(widths)


_CARRIES = {
    "arith.addi",
    "arith.subi",
    "arith.muli",
    "arith.extsi",
    "arith.extui",
    "tt.splat",
    "tt.broadcast",
    "tt.expand_dims",
    "tt.reshape",
    "tt.trans",
}


def narrow_products(ttir: str) -> int:
    """Products of two 32-bit variables that reach a pointer offset.

    The offset may be 64 bits wide and wrong nevertheless: ``(row * stride).to(tl.int64)`` has
    overflowed before it is widened. A product with a constant (a block's number times its size)
    counts as bounded by the length of an axis.
    """
    defined, seen = _definitions(ttir), set()
    found = 0
    waiting = [ops[1] for op, ops, _ in defined.values() if op == "tt.addptr" and len(ops) == 2]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in defined:
            continue
        seen.add(name)
        operation, operands, kind = defined[name]
        if operation not in _CARRIES:
            continue
        integer = _INTEGER.search(kind.strip())
        if operation == "arith.muli" and integer and integer[1] == "i32":
            found += not any(_is_constant(defined, x) for x in operands)
        waiting += operands
    return found


def _is_constant(defined: Mapping[str, tuple[str, list[str], str]], name: str) -> bool:
    while name in defined:
        operation, operands, _ = defined[name]
        if operation == "arith.constant":
            return True
        if operation not in ("tt.splat", "tt.broadcast", "tt.expand_dims", "arith.extsi"):
            return False
        name = operands[0]
    return False


def _products(ir: str) -> Iterator[tuple[str, str, str]]:
    # Type of the operands, precision ("ieee" is not printed) and line of each product of tiles.
    for line in ir.splitlines():
        if " tt.dot " in line and (operand := re.search(r" : tensor<[\dx]+x(\w+)", line)):
            precision = re.search(r"inputPrecision = (\w+)", line)
            yield operand[1], precision[1] if precision else "ieee", line


def dot_precisions(ttir: str) -> tuple[str, ...]:
    """The precisions of the float32 products, sorted."""
    return tuple(sorted({how for operand, how, _ in _products(ttir) if operand == "f32"}))


def slow_products(ttgir: str, ttir: str) -> int:
    """Products that became ordinary arithmetic though nobody asked for it.

    In the program laid out for a chip (``ttgir``) a product on tensor cores has their layout, any
    other a blocked one. Float32 products in precision ``ieee`` are asked for: NVIDIA's tensor cores
    have none.
    """
    slow = sum("parent = #blocked" in line for _, _, line in _products(ttgir))
    asked = sum(operand == "f32" and how == "ieee" for operand, how, _ in _products(ttir))
    return max(0, slow - asked)


def complaints(row: Row) -> list[str]:
    """What is wrong with this kernel on this chip, one sentence each; empty when nothing is."""
    chip = CHIPS[row.arch]
    which = f"{row.module}, {row.name}, {row.dtype}, width {row.width}, {row.arch}" + (
        "" if row.hints else ", nothing known of alignment"
    )
    if row.error is not None:
        return [f"{which}: not compiled: {row.error}"]
    found = []
    if row.shared > chip.shared:
        found.append(
            f"needs {row.shared:,} bytes of shared memory, a program may have {chip.shared:,}"
        )
    if row.tensor_memory > TENSOR_MEMORY:
        found.append(
            f"needs {row.tensor_memory} columns of tensor memory, there are {TENSOR_MEMORY}"
        )
    narrow = {kind: n for kind, n in row.offsets.items() if kind != "i64"}
    if narrow:
        listed = ", ".join(f"{n} of {kind}" for kind, n in sorted(narrow.items()))
        found.append(f"has pointer offsets narrower than 64 bits ({listed})")
    if row.narrow_products:
        found.append(
            f"multiplies {row.narrow_products} offset(s) in 32 bits and widens them afterwards"
        )
    # For half-precision inputs TF32 may be chosen: it has the ten bits of float16, and a range that
    # sums need. It must be chosen, and never for float32 inputs.
    if "tf32" in row.precisions and (row.dtype == "fp32" or not row.tf32_stated):
        found.append("multiplies float32 in TF32: state input_precision")
    allowed = 0 if row.width <= NO_SPILL_WIDTH else SPILL_BOUND
    if row.spills > allowed:
        found.append(
            f"spills {row.spills:,} bytes a thread to memory, at most {allowed:,} are accepted"
        )
    if row.tensor_cores and row.dtype in ("fp16", "bf16"):
        if not row.instructions:
            found.append("has no tensor-core instruction")
        elif row.slow_products:
            found.append(f"computes {row.slow_products} product(s) without tensor cores")
    return [f"{which}: {text}" for text in found]


# ------------------------------------------------------------------------- compiling (children)


def source(case: Case, backend: str, *, hints: bool) -> tuple[dict, dict, dict]:
    """Signature, constants and attributes of ``case`` as Triton's launcher would make them.

    With ``hints``, for contiguous tensors: pointers aligned, an integer 1 compiled in, one that
    divides by 16 known to. On AMD also that a tensor is smaller than 2 GiB. Raises ``ValueError``
    for arguments that are not the kernel's.
    """
    names = list(case.kernel.arg_names)
    given = [*case.signature, *case.constexprs]
    if sorted(names) != sorted(given):
        odd = sorted(set(names) ^ set(given)) or "one twice"
        raise ValueError(f"{case.name}: expected the kernel's arguments, got others: {odd}")
    constants = {name: _on(backend, value) for name, value in case.constexprs.items()}
    signature, attributes = {}, {}
    for index, name in enumerate(names):
        kind = case.signature.get(name, "constexpr")
        signature[name] = kind
        parameter = case.kernel.params[index]
        if kind == "constexpr" or not hints or parameter.do_not_specialize:
            continue
        aligned = not parameter.do_not_specialize_on_alignment
        value = case.values.get(name)
        known = [["tt.divisibility", 16]] if aligned else []
        if kind.startswith("*"):
            if backend == "hip":
                known = [*known, ["tt.pointer_range", 32]]
            attributes[(index,)] = known
        elif value == 1:
            signature[name], constants[name] = "constexpr", 1
        elif value is not None and value % 16 == 0 and aligned:
            attributes[(index,)] = known
    return signature, constants, attributes


def _on(backend: str, value: Any) -> Any:
    # As runtime.DOT does where PyTorch was built for AMD: its compiler has no tf32x3.
    return "ieee" if backend == "hip" and value in ("tf32x3", "tf32") else value


def _options(case: Case, backend: str) -> dict[str, int]:
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages}
    if case.maxnreg is not None and backend == "cuda":
        options["maxnreg"] = case.maxnreg
    return options


def compile_case(case: Case, row: Row) -> Row:
    """Compile ``case`` for ``row.arch`` and fill in ``row``; what Triton refuses becomes its error.

    Only in a process that does not interpret. Nothing touches a GPU's driver.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    chip, started = CHIPS[row.arch], time.perf_counter()
    try:
        signature, constants, attributes = source(case, chip.backend, hints=row.hints)
        compiled = triton.compile(
            ASTSource(case.kernel, signature, constants, attributes),
            target=GPUTarget(chip.backend, chip.number, chip.warp),
            options=_options(case, chip.backend),
        )
        code = compiled.asm
        if chip.backend == "cuda":
            registers, spills = nvidia_resources(_disassembler_says(code["cubin"]))
        else:
            registers, spills = amd_resources(code["amdgcn"])
        return row._replace(
            registers=registers,
            spills=spills,
            shared=compiled.metadata.shared,
            tensor_memory=getattr(compiled.metadata, "tmem_size", None) or 0,
            instructions=tensor_core_instructions(
                code["ptx" if chip.backend == "cuda" else "amdgcn"]
            ),
            slow_products=slow_products(code["ttgir"], code["ttir"]),
            offsets=offset_widths(code["ttir"]),
            narrow_products=narrow_products(code["ttir"]),
            precisions=dot_precisions(code["ttir"]),
            tf32_stated="tf32" in constants.values(),
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


def cases(module: str, dtype: str, width: int) -> list[Case]:
    """The cases of a kernel module, ``"softmax"`` of this package or a module's full name."""
    name = module if "." in module else f"course.kernels.{module}"
    return list(importlib.import_module(name).cases(dtype, width))


def main() -> None:
    """Answer requests on stdin: ``{"list": [[module, dtype, width], …]}`` or ``{"row": {…}}``."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a compiler that fails prints the whole program to stdout
    import triton  # noqa: F401 - now, so that no time limit counts it

    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "list" in request:
            answer: Any = [_listed(*wanted) for wanted in request["list"]]
        else:
            row = Row(**request["row"])
            (case,) = [c for c in cases(row.module, row.dtype, row.width) if c.name == row.name]
            answer = compile_case(case, row)._asdict()
        print(json.dumps(answer, default=dict), file=answers, flush=True)


def _listed(module: str, dtype: str, width: int) -> Any:
    # Names and what is declared of each, or the reason why there are none.
    try:
        found = [(case.name, case.tensor_cores) for case in cases(module, dtype, width)]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        return f"ValueError: expected one case of each name, got {sorted(names)}"
    return found


# -------------------------------------------------------------------------- compiling (parent)


class _Child:
    """A child process that compiles; ``ask`` starts it again if it has died."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._errors = os.path.join(folder, f"errors-{id(self)}")
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: Mapping[str, Any], limit: float) -> Any:
        """The answer; raises ``RuntimeError`` if the child dies or takes longer than ``limit``."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None  # both are pipes
        late = threading.Timer(limit, process.kill)
        late.start()
        try:
            process.stdin.write(json.dumps(request, default=dict) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            given_up = not late.is_alive()
            late.cancel()
        if line:
            return json.loads(line)
        status, self._process = process.wait(), None
        if given_up:
            raise RuntimeError(f"the compiler was stopped after {limit:.0f} s")
        with open(self._errors, encoding="utf-8", errors="replace") as file:
            last = [text.strip() for text in file if text.strip()][-1:]
        raise RuntimeError(" ".join([f"the compiler ended with status {status}:", *last]))

    def _start(self) -> subprocess.Popen[str]:
        with open(self._errors, "w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "course.kernels.aot"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                env=child_environment(self._folder),
            )
        assert process.stdout is not None
        process.stdout.readline()  # "ready", or nothing: then the first request fails and says why
        return process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def child_environment(cache: str) -> dict[str, str]:
    """This process's environment for a child that compiles, with a cache folder of its own.

    Without any of Triton's variables (``TRITON_INTERPRET`` above all) but those that say where a
    tool lies: the results are the compiler's, not the user's settings'.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TRITON_", "AMDGCN_", "MLIR_", "LLVM_")) or name.endswith("_PATH")
    }
    kept.pop("DISABLE_PTXAS_OPT", None)
    return {**kept, "TRITON_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}


class Wanted(NamedTuple):
    """What to compile: every combination, and once a kernel and chip without alignment known."""

    modules: Sequence[str] = MODULES
    dtypes: Sequence[str] = DTYPES
    widths: Sequence[int] = WIDTHS
    archs: Sequence[str] = tuple(CHIPS)
    without_hints: bool = True


def compile_all(
    wanted: Wanted,
    *,
    processes: int = 2,
    progress: Callable[[int, int, str], None] = lambda done, of, name: None,
    limit: float = SECONDS_A_KERNEL,
) -> list[Row]:
    """Compile all that is ``wanted`` in ``processes`` child processes: one row each, in its order.

    Chips that are only reported get widths up to ``REPORT_WIDTH``, and no bf16: they have none.
    ``progress`` is called with how many rows are done, of how many, and the last one's name. A
    module that cannot list its cases, a compiler that dies or takes longer than ``limit`` seconds
    give a row with an ``error``.
    """
    with tempfile.TemporaryDirectory(prefix="course-kernels-") as folder:
        child = _Child(folder)
        try:
            rows = list(_plan(wanted, child, limit))
        finally:
            child.close()
        # The widest first: no process is left with a long one at the end.
        order = sorted(
            (i for i, row in enumerate(rows) if row.error is None),
            key=lambda i: (-rows[i].width, rows[i].dtype != "fp32"),
        )
        todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        for i in order:
            todo.put(i)
        done, lock, stop = [0], threading.Lock(), threading.Event()

        def work() -> None:
            child = _Child(folder)
            try:
                while not stop.is_set():
                    try:
                        i = todo.get_nowait()
                    except queue.Empty:
                        return
                    try:
                        rows[i] = _row(child.ask({"row": rows[i]._asdict()}, limit))
                    except RuntimeError as error:
                        rows[i] = rows[i]._replace(error=str(error))
                    with lock:
                        done[0] += 1
                        progress(done[0], len(order), f"{rows[i].module}, {rows[i].name}")
            finally:
                child.close()

        threads = [threading.Thread(target=work) for _ in range(min(processes, len(order)))]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:  # Ctrl-C reaches this thread: the others end with the kernel they are at
            stop.set()
    return rows


def _plan(wanted: Wanted, child: _Child, limit: float) -> Iterator[Row]:
    width_once = 64 if 64 in wanted.widths else wanted.widths[0]
    for module in wanted.modules:
        groups = [(module, dtype, width) for dtype in wanted.dtypes for width in wanted.widths]
        try:
            listed = child.ask({"list": groups}, limit)
        except RuntimeError as error:
            listed = [str(error)] * len(groups)
        once: set[tuple[str, str]] = set()
        for (_, dtype, width), found in zip(groups, listed, strict=True):
            for arch in wanted.archs:
                if isinstance(found, str):
                    yield Row(module, "cases", dtype, width, arch, True, error=found)
                    continue
                if not CHIPS[arch].gated and (width > REPORT_WIDTH or dtype == "bf16"):
                    continue
                for name, tensor_cores in found:
                    row = Row(module, name, dtype, width, arch, True, tensor_cores)
                    yield row
                    first = (name, arch) not in once
                    if wanted.without_hints and width == width_once and first:
                        once.add((name, arch))
                        yield row._replace(hints=False)


def _row(answer: Mapping[str, Any]) -> Row:
    row = Row(**answer)
    return row._replace(precisions=tuple(row.precisions))


def failures(rows: Iterable[Row]) -> list[str]:
    """The complaints about chips that are gated: what makes the command fail."""
    return [text for row in rows if CHIPS[row.arch].gated for text in complaints(row)]


def available() -> str | None:
    """Why nothing can be compiled here, or None: Triton must be installed, no GPU is needed."""
    if importlib.util.find_spec("triton") is None:
        return (
            "Triton is not installed, so no kernel can be compiled here. It exists for Linux only: "
            "pip install triton (torch 2.13.0 goes with triton 3.7.1)"
        )
    return None


if __name__ == "__main__":
    main()
