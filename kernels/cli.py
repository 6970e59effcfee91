"""``course kernels compile``: what every kernel needs on every chip, and whether it has it."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from course.kernels.chips import (
    CHIPS,
    DTYPES,
    MODULES,
    NO_SPILL_WIDTH,
    REPORT_WIDTH,
    SPILL_BOUND,
    WIDTHS,
)
from course.values import require_choice, require_positive

if TYPE_CHECKING:
    from course.kernels.aot import Row, Wanted

_T4 = """sm_75 (T4, also on free notebook services) is a report only, for small widths. Triton makes
no tensor-core code for it: products of tiles become ordinary arithmetic, at a fraction of the
chip's rate. On a T4 use impl="torch", or PyTorch's own function for softmax attention."""


_DESCRIPTION = (
    "Compile the kernels for GPUs that need not be here, in child processes, and print for each "
    "its registers, spilled bytes a thread, shared memory, tensor-core instructions, the width of "
    "its pointer offsets and the precision of its float32 products. Exit status 1 if on a chip "
    "other than sm_75 a kernel needs more shared memory than there is, has an offset narrower than "
    f"64 bits, multiplies in TF32 unasked, spills at a width up to {NO_SPILL_WIDTH} (beyond: "
    f"more than {SPILL_BOUND:,} bytes), or computes half-precision products without tensor "
    "cores. sm_75 is reported only, at widths up to "
    f"{REPORT_WIDTH}. Each kernel is also compiled once for each chip with nothing known of "
    "the alignment of its tensors."
)


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add ``course kernels``."""
    parser = subparsers.add_parser(
        "kernels", help="compile the GPU kernels ahead of time, without a GPU"
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="{compile}")
    make = actions.add_parser(
        "compile",
        help="compile every kernel for six chips and check what it needs",
        description=textwrap.fill(_DESCRIPTION, 80),
        epilog="examples:\n"
        "  course kernels compile                                everything, about ten minutes\n"
        "  course kernels compile --arch sm_90 --width 64        one chip, one width\n"
        "  course kernels compile --kernel linear --dtype bf16   one module, one dtype\n"
        "  course kernels compile --json > kernels.json          for another program",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def choose(flag: str, what: str, choices: Iterable[object]) -> None:
        listed = " ".join(map(str, choices))
        make.add_argument(flag, nargs="+", metavar="X", help=f"{what}: {listed} (default all)")

    choose("--arch", "chips", CHIPS)
    choose("--kernel", "modules", MODULES)
    choose("--dtype", "number formats", DTYPES)
    choose("--width", "head widths", WIDTHS)
    make.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    make.add_argument("--json", action="store_true", help="print one JSON object instead")
    make.set_defaults(run=_compile)


def _compile(arguments: argparse.Namespace) -> int:
    from course.kernels import aot  # only now: it loads PyTorch, and --help answers at once

    reason = aot.available()
    if reason:
        print(reason)
        return 2
    try:
        wanted = _wanted(arguments)
        require_positive("jobs", arguments.jobs)
    except ValueError as error:
        print(error)
        return 2
    started = time.perf_counter()
    rows = aot.compile_all(wanted, processes=arguments.jobs, progress=progress)
    seconds, failures = time.perf_counter() - started, aot.failures(rows)
    version = importlib.metadata.version("triton")
    if arguments.json:
        found = {
            "triton": version,
            "seconds": seconds,
            "rows": [row._asdict() for row in rows],
            "failures": failures,
        }
        print(json.dumps(found, default=dict))
        return 1 if failures else 0
    print(table(rows))
    for text in failures:
        print(text)
    print(
        f"Triton {version}: {len(rows)} kernels compiled in {seconds / 60:.1f} min; "
        + (f"{len(failures)} complaint(s)" if failures else "nothing to complain of")
    )
    return 1 if failures else 0


def _wanted(arguments: argparse.Namespace) -> Wanted:
    from course.kernels.aot import Wanted

    # argparse's own message for a wrong choice is a list of quoted Python values.
    chosen = {}
    for flag, choices in (
        ("arch", tuple(CHIPS)),
        ("kernel", MODULES),
        ("dtype", DTYPES),
        ("width", tuple(map(str, WIDTHS))),
    ):
        values = getattr(arguments, flag) or choices
        for value in values:
            require_choice(flag, value, choices)
        chosen[flag] = tuple(dict.fromkeys(values))
    return Wanted(
        modules=chosen["kernel"],
        dtypes=chosen["dtype"],
        widths=tuple(map(int, chosen["width"])),
        archs=chosen["arch"],
    )


def progress(done: int, of: int, name: str) -> None:
    # A bar where somebody looks, a line a tenth where the output is kept.
    if sys.stderr.isatty():
        filled = 30 * done // of
        bar = f"\r[{'#' * filled}{'.' * (30 - filled)}] {done}/{of}  {name:48.48}"
        print(bar, end="\n" if done == of else "", file=sys.stderr, flush=True)
    elif 10 * done // of > 10 * (done - 1) // of:
        print(f"compiled {done} of {of}", file=sys.stderr, flush=True)


_HEADS = ("chip", "dtype", "widths", "registers", "spilled", "shared KiB", "tensor cores")
_FORMAT = "  {:7} {:5} {:14} {:16} {:10} {:22} {:22} {:8} {}"


def table(rows: Sequence[Row]) -> str:
    """One line for each kernel, chip and dtype; the numbers of several widths stand side by side.

    Rows compiled with nothing known of alignment have a line of their own.
    """
    lines = []
    for (module, name), kernel in groupby(
        sorted(
            rows, key=lambda r: (MODULES.index(r.module) if r.module in MODULES else 99, r.name)
        ),
        key=lambda r: (r.module, r.name),
    ):
        lines += ["", f"{module}, {name}", _FORMAT.format(*_HEADS, "offsets", "float32 products")]
        together = sorted(kernel, key=_line)
        lines += [_cells(list(group)) for _, group in groupby(together, key=_line)]
    if any(row.arch == "sm_75" for row in rows):
        lines += ["", _T4]
    return "\n".join([*lines, ""])


def _line(row: Row) -> tuple[int, int, bool]:
    return list(CHIPS).index(row.arch), DTYPES.index(row.dtype), not row.hints


def _cells(rows: Sequence[Row]) -> str:
    first, made = rows[0], [row for row in rows if row.error is None]
    widths = "/".join(str(row.width) for row in rows) + ("" if first.hints else " unaligned")
    if not made:
        return f"  {first.arch:7} {first.dtype:5} {widths:14} not compiled"

    def each(values: Iterable[object]) -> str:
        texts = list(map(str, values))
        return texts[0] if texts and len(set(texts)) == 1 else "/".join(texts)

    kinds = sorted({kind for row in made for kind in row.instructions})
    if not first.tensor_cores:
        cores = "no product to compute"
    else:
        cores = " ".join([*kinds, each(sum(r.instructions.values()) for r in made)])
        if any(row.slow_products for row in made):
            cores += f", {each(row.slow_products for row in made)} without"
    return _FORMAT.format(
        first.arch,
        first.dtype,
        widths,
        each(row.registers for row in made),
        each(row.spills for row in made),
        each(f"{row.shared / 1024:.3g}" for row in made)
        + f" of {CHIPS[first.arch].shared / 1024:.0f}",
        cores,
        each("+".join(sorted(row.offsets)) for row in made),
        each(
            "+".join(row.precisions).replace("tf32", "tf32 (stated)")
            if row.tf32_stated
            else "+".join(row.precisions)
            for row in made
        ),
    ).rstrip() + ("" if len(made) == len(rows) else f"  ({len(rows) - len(made)} not compiled)")
