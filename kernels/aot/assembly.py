"""Reading what was compiled: the compiler's programs and its assembly, as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple


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


class _Operation(NamedTuple):
    name: str
    kind: str
    operands: list[str]
    precision: str  # of products; "ieee" is not printed
    types: str

    @property
    def is_product_of_float32(self) -> bool:
        return self.kind == "tt.dot" and bool(re.match(r"tensor<[\dx]+xf32\b", self.types))


def _operations(ir: str) -> Iterator[_Operation]:
    # In their order: a name is used after it was defined, and another region may define it anew.
    for line in ir.splitlines():
        line = re.sub(r"\s+loc\(.*$", "", line)
        if match := _DEFINITION.match(line):
            name, kind, rest = match.groups()
            text, _, types = rest.partition(" : ")
            precision = re.search(r"inputPrecision = (\w+)", text)
            operands = re.findall(r"%[\w#]+", text)
            yield _Operation(name, kind, operands, precision[1] if precision else "ieee", types)


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


_SPREADS = {"tt.splat", "tt.broadcast", "tt.expand_dims", "arith.extsi"}
_CARRIES = _SPREADS | {
    *("arith.addi", "arith.subi", "arith.muli", "arith.extui", "tt.reshape", "tt.trans"),
}


def narrow_products(ttir: str) -> int:
    """Products of two 32-bit variables that reach a pointer offset.

    The offset may be 64 bits wide and wrong nevertheless: ``(row * stride).to(tl.int64)`` has
    overflowed before it is widened. A product with a constant (a block's number times its size)
    counts as bounded by the length of an axis.
    """
    constant: dict[str, bool] = {}
    inside: dict[str, set[int]] = {}  # of each number: the products that it is made from
    found: set[int] = set()
    for index, (name, kind, operands, _, types) in enumerate(_operations(ttir)):
        if kind == "tt.addptr":
            found |= inside.get(operands[1], set())
        known = [constant.get(x, False) for x in operands]
        constant[name] = kind == "arith.constant" or (kind in _SPREADS and all(known))
        inside[name] = set()
        if kind in _CARRIES:
            inside[name].update(*(inside.get(x, set()) for x in operands))
        integer = _INTEGER.search(types.strip())
        if kind == "arith.muli" and integer and integer[1] == "i32" and not any(known):
            inside[name].add(index)
    return len(found)


def dot_precisions(ttir: str) -> tuple[str, ...]:
    """The precisions of the float32 products, sorted."""
    return tuple(sorted({x.precision for x in _operations(ttir) if x.is_product_of_float32}))


def slow_products(ttgir: str, ttir: str) -> int:
    """Products that became ordinary arithmetic though nobody asked for it.

    In the program laid out for a chip (``ttgir``) a product on tensor cores has their layout, any
    other a blocked one. Float32 products in precision ``ieee`` are asked for: NVIDIA's tensor cores
    have none.
    """
    slow = sum(x.kind == "tt.dot" and "parent = #blocked" in x.types for x in _operations(ttgir))
    asked = sum(x.is_product_of_float32 and x.precision == "ieee" for x in _operations(ttir))
    return max(0, slow - asked)


_ROUNDED = {"arith.extf", "arith.constant", "tt.elementwise_inline_asm"}
_HANDS_ON = {"tt.trans", "tt.reshape", "ttg.convert_layout"}


def unrounded_operands(ttir: str) -> int:
    """Operands of TF32 products that may have more digits than TF32 and were not rounded to it.

    The hardware cuts such digits off, always towards 0, and sums shrink. An operand is fine if it
    was widened from 16 bits, is a constant, or comes from the instruction that rounds.
    """
    fine: dict[str, bool] = {}
    found = 0
    for x in _operations(ttir):
        fine[x.name] = x.kind in _ROUNDED or (
            x.kind in _HANDS_ON and fine.get(x.operands[0], False)
        )
        if x.is_product_of_float32 and x.precision == "tf32":
            found += sum(not fine.get(operand, False) for operand in x.operands[:2])
    return found
