"""What a kernel may need of a chip, and what is wrong when it needs more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from course.kernels.chips import CHIPS, NO_SPILL_WIDTH, SPILL_BOUND, TENSOR_MEMORY


class Row(NamedTuple):
    """What the code of one kernel for one chip needs.

    ``spills`` and ``shared`` in bytes, a thread and a program; ``instructions``: how often each
    kind of tensor-core instruction stands in the assembly; ``slow_products``: products that became
    ordinary arithmetic unasked; ``offsets``: how many pointer offsets of each width;
    ``narrow_products``: products of two 32-bit variables widened only afterwards; ``precisions``
    of float32 products; ``tf32_stated``: TF32 stands among the case's constants; ``unrounded``
    operands of such products. ``error``: why there is no code; the numbers then mean nothing.
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
    unrounded: int = 0
    seconds: float = 0.0
    error: str | None = None


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
    elif row.unrounded:
        found.append(f"hands {row.unrounded} operand(s) to TF32 products that were not rounded")
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


def failures(rows: Iterable[Row]) -> list[str]:
    """The complaints about chips that are gated: what makes the command fail."""
    return [text for row in rows if CHIPS[row.arch].gated for text in complaints(row)]
