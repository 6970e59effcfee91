"""``course kernels compile``: what it reads and refuses, and that it compiles what is launched.

Compiling needs a process that does not interpret, so everything here happens in child processes.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from course.cli import main
from course.kernels import aot
from course.kernels import cli as kernels_cli
from course.kernels.aot import Row, Wanted, assembly

ROOT = Path(__file__).parents[2]
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)
BAD, SLOW = "tests.kernels.bad_kernels", "tests.kernels.slow_kernels"


# ------------------------------------------------------------------------------------- reading

TTIR = """
  tt.func public @f(%X: !tt.ptr<f32>, %n: i32 loc("tt.addptr")) {
    %cst = arith.constant dense<64> : tensor<16xi32> loc(#loc)
    %c64_i32 = arith.constant 64 : i32 loc(#loc)
    %pid = tt.get_program_id x : i32 loc(#loc1)
    %0 = arith.muli %pid, %c64_i32 : i32 loc(#loc2)
    %1 = tt.splat %0 : i32 -> tensor<16xi32> loc(#loc2)
    %2 = tt.make_range {end = 16 : i32, start = 0 : i32} : tensor<16xi32> loc(#loc3)
    %3 = arith.addi %1, %2 : tensor<16xi32> loc(#loc3)
    %4 = arith.extsi %3 : tensor<16xi32> to tensor<16xi64> loc(#loc4)
    %5 = tt.splat %X : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>> loc(#loc5)
    %6 = tt.addptr %5, %4 : tensor<16x!tt.ptr<f32>>, tensor<16xi64> loc(#loc5)
    %7 = tt.addptr %X, %9 : !tt.ptr<f32>, i64 loc(#loc6)
    %a = tt.dot %x, %y, %z, inputPrecision = tf32x3 : tensor<16x16xf32> * tensor<16x8xf32> -> tensor<16x8xf32> loc(#loc7)
    %b = tt.dot %x, %y, %z, inputPrecision = tf32 : tensor<16x16xf16> * tensor<16x8xf16> -> tensor<16x8xf32> loc(#loc7)
    %c = tt.dot %x, %y, %z : tensor<16x16xf32> * tensor<16x8xf32> -> tensor<16x8xf32> loc(#loc7)
"""  # noqa: E501


def test_offsets_are_read_for_tensors_and_scalars():
    assert assembly.offset_widths(TTIR) == {"i64": 2}
    assert assembly.offset_widths(TTIR.replace("!tt.ptr<f32>, i64", "!tt.ptr<f32>, i32")) == {
        "i64": 1,
        "i32": 1,
    }
    narrow = TTIR.replace("<16x!tt.ptr<f32>>, tensor<16xi64>", "<16x!tt.ptr<f32>>, tensor<16xi32>")
    assert assembly.offset_widths(narrow) == {"i32": 1, "i64": 1}
    with pytest.raises(ValueError, match="tt.addptr: expected an integer offset"):
        assembly.offset_widths(TTIR.replace("!tt.ptr<f32>, i64", "!tt.ptr<f32>, index"))


def test_a_product_of_two_32_bit_variables_in_an_offset_is_found():
    assert assembly.narrow_products(TTIR) == 0  # a block's number times its size
    scalar = TTIR.replace("muli %pid, %c64_i32", "muli %pid, %n")
    assert assembly.narrow_products(scalar) == 1
    assert (
        assembly.narrow_products(scalar.replace("muli %pid, %n : i32", "muli %pid, %n : i64")) == 0
    )
    tensor = TTIR.replace("arith.addi %1, %2", "arith.muli %1, %2")
    assert assembly.narrow_products(tensor) == 1
    assert assembly.narrow_products(TTIR.replace("arith.addi %1, %2", "arith.muli %1, %cst")) == 0
    # One that only feeds a comparison is no offset.
    aside = TTIR.replace(
        "%3 = arith.addi", "%8 = arith.muli %1, %2 : tensor<16xi32>\n %3 = arith.addi"
    )
    assert assembly.narrow_products(aside) == 0


def test_precisions_of_float32_products_only():
    assert assembly.dot_precisions(TTIR) == ("ieee", "tf32x3")
    assert assembly.dot_precisions(TTIR.replace("= tf32x3", "= tf32")) == ("ieee", "tf32")
    assert assembly.dot_precisions("") == ()


def test_a_name_of_one_region_is_not_that_of_another():
    """Both branches of an if may call a number %3: each offset is made of its own."""
    both = TTIR + TTIR.replace("arith.addi %1, %2", "arith.muli %1, %2")
    assert assembly.narrow_products(both) == 1
    assert assembly.narrow_products(both.replace("arith.muli %1, %2", "arith.muli %1, %cst")) == 0


ROUNDED = """
    %x = tt.load %p : tensor<16x16x!tt.ptr<f16>> loc(#loc)
    %0 = arith.extf %x : tensor<16x16xf16> to tensor<16x16xf32> loc(#loc)
    %1 = math.exp %0 : tensor<16x16xf32> loc(#loc)
    %2 = tt.elementwise_inline_asm "cvt.rna.tf32.f32 $0, $1;" {constraints = "=r,r", packed_element = 1 : i32, pure = true} %1 : tensor<16x16xf32> -> tensor<16x16xf32> loc(#loc)
    %3 = tt.trans %0 {order = array<i32: 1, 0>} : tensor<16x16xf32> -> tensor<16x16xf32> loc(#loc)
    %4 = tt.dot %2, %3, %z, inputPrecision = tf32 : tensor<16x16xf32> * tensor<16x16xf32> -> tensor<16x16xf32> loc(#loc)
    %5 = tt.dot %x, %x, %z, inputPrecision = tf32 : tensor<16x16xf16> * tensor<16x16xf16> -> tensor<16x16xf32> loc(#loc)
"""  # noqa: E501


def test_operands_of_tf32_products_are_rounded_or_were_short():
    assert assembly.unrounded_operands(ROUNDED) == 0
    assert assembly.unrounded_operands(ROUNDED.replace("tt.dot %2,", "tt.dot %1,")) == 1
    assert assembly.unrounded_operands(ROUNDED.replace("tt.trans %0", "tt.trans %1")) == 1
    both = ROUNDED.replace("tt.dot %2, %3", "tt.dot %1, %1")
    assert assembly.unrounded_operands(both) == 2
    assert assembly.unrounded_operands(both.replace("= tf32 ", "= tf32x3 ")) == 0


def test_products_without_tensor_cores():
    line = (
        "%a = tt.dot %x, %y, %z : tensor<16x16xf16, #ttg.dot_op<{opIdx = 0, parent = #blocked1}>> "
        "* tensor<16x8xf16, #ttg.dot_op<{opIdx = 1, parent = #blocked1}>> -> tensor<16x8xf32>"
    )
    half = "  %a = tt.dot %x, %y, %z : tensor<16x16xf16> * tensor<16x8xf16> -> tensor<16x8xf32>"
    assert assembly.slow_products(f"  {line}", half) == 1
    assert assembly.slow_products(f"  {line}".replace("#blocked1", "#mma"), half) == 0
    # Asked for in full precision, a float32 product cannot use them.
    assert assembly.slow_products(f"  {line}", half.replace("xf16", "xf32")) == 0
    assert assembly.slow_products(f"  {line}\n  {line}", half.replace("xf16", "xf32")) == 1


def test_tensor_core_instructions_by_kind():
    text = """
      mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r1}, {%r2};
      mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r1}, {%r2};
      wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%r3};
      wgmma.fence.sync.aligned;
      @%p tcgen05.mma.cta_group::1.kind::f16 [%r5];
      tcgen05.alloc.cta_group::1;
      v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], 0
      v_fma_f32 v0, v1, v2, v3
    """
    assert assembly.tensor_core_instructions(text) == {
        "mma": 2,
        "wgmma": 1,
        "tcgen05": 1,
        "mfma": 1,
    }
    assert (
        assembly.tensor_core_instructions(text.replace("mma", "add").replace("mfma", "fma")) == {}
    )


def test_resources_of_both_makers():
    usage = " Function f:\n  REG:168 STACK:16 SHARED:0 LOCAL:0 CONSTANT[0]:448"
    assert assembly.nvidia_resources(usage) == (168, 16)
    with pytest.raises(ValueError, match="REG and STACK"):
        assembly.nvidia_resources("Resource usage:\n")
    notes = "    .sgpr_spill_count: 7\n    .vgpr_count:     176\n    .vgpr_spill_count: 3\n"
    assert assembly.amd_resources(notes) == (176, 12)
    with pytest.raises(ValueError, match="vgpr_spill_count"):
        assembly.amd_resources(notes.replace(".vgpr_spill", ".spill"))


# ------------------------------------------------------------------------------------ the gate

FINE = Row(
    "linear",
    "forward",
    "fp16",
    64,
    "sm_86",
    True,
    registers=128,
    shared=101_376,
    instructions={"mma": 8},
    offsets={"i64": 9},
    precisions=("ieee",),
)


def test_nothing_to_complain_of():
    assert aot.complaints(FINE) == []
    assert aot.complaints(FINE._replace(dtype="fp32", precisions=("tf32x3",))) == []
    assert aot.complaints(FINE._replace(instructions={}, tensor_cores=False)) == []
    assert aot.complaints(FINE._replace(instructions={}, dtype="fp32")) == []
    assert aot.complaints(FINE._replace(width=256, spills=aot.SPILL_BOUND)) == []
    assert aot.complaints(FINE._replace(precisions=("tf32",), tf32_stated=True)) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"shared": 101_377}, "needs 101,377 bytes of shared memory, a program may have 101,376"),
        ({"arch": "gfx942", "shared": 65_537}, "a program may have 65,536"),
        ({"tensor_memory": 513}, "needs 513 columns of tensor memory, there are 512"),
        ({"offsets": {"i32": 2, "i64": 7}}, "offsets narrower than 64 bits (2 of i32)"),
        ({"narrow_products": 1}, "multiplies 1 offset(s) in 32 bits"),
        ({"precisions": ("tf32",)}, "multiplies float32 in TF32"),
        ({"precisions": ("tf32",), "dtype": "fp32", "tf32_stated": True}, "in TF32"),
        ({"unrounded": 2}, "hands 2 operand(s) to TF32 products that were not rounded"),
        ({"spills": 8}, "spills 8 bytes a thread to memory, at most 0 are accepted"),
        ({"spills": 8, "width": 128}, "spills 8 bytes"),
        ({"spills": aot.SPILL_BOUND + 8, "width": 256}, "at most 1,024 are accepted"),
        ({"instructions": {}}, "has no tensor-core instruction"),
        ({"instructions": {}, "dtype": "bf16"}, "has no tensor-core instruction"),
        ({"slow_products": 2}, "computes 2 product(s) without tensor cores"),
        ({"error": "no space"}, "not compiled: no space"),
        ({"spills": 8, "hints": False}, "sm_86, nothing known of alignment: spills 8"),
    ],
)
def test_each_fault_is_one_sentence(change, sentence):
    row = FINE._replace(**change)
    (found,) = aot.complaints(row)
    assert sentence in found
    assert found.startswith(f"linear, forward, {row.dtype}, width {row.width}, {row.arch}")
    assert aot.failures([FINE, row]) == [found]


def test_the_t4_is_only_reported():
    row = FINE._replace(arch="sm_75", shared=65_537, instructions={})
    assert len(aot.complaints(row)) == 2 and aot.failures([row]) == []


def test_the_child_gets_none_of_tritons_settings(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("TRITON_OVERRIDE_ARCH", "sm75")
    monkeypatch.setenv("DISABLE_PTXAS_OPT", "1")
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/opt/ptxas")
    child = aot.child_environment("folder")
    assert {name for name in child if name.startswith("TRITON_")} == {
        "TRITON_CACHE_DIR",
        "TRITON_PTXAS_PATH",
    }
    assert child["TRITON_CACHE_DIR"] == "folder" and "DISABLE_PTXAS_OPT" not in child
    assert child["PATH"] == os.environ["PATH"]


# ------------------------------------------------------------------------- compiling for real


@pytest.fixture(scope="module")
def bad_rows():
    before = os.getcwd()
    os.chdir(ROOT)  # the children import tests.kernels.bad_kernels
    try:
        wanted = Wanted([BAD], ["fp16"], [64], ["sm_80"], without_hints=False)
        return {row.name.partition(", ")[2]: row for row in aot.compile_all(wanted)}
    finally:
        os.chdir(before)


@needs_triton
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("narrow", "narrower than 64 bits (2 of i32)"),
        ("late", "multiplies 1 offset(s) in 32 bits"),
        ("spill", "bytes a thread to memory"),
        ("memory", "bytes of shared memory, a program may have 166,912"),
        ("tf32", "in TF32"),
        ("cut", "hands 1 operand(s) to TF32 products that were not rounded"),
        ("sums", "no tensor-core instruction"),
        ("undeclared", "expected the kernel's arguments, got others: ['Y', 'n']"),
        ("refused", "a block of less than 16"),
        ("deadly", "the compiler ended with status 3"),
    ],
)
def test_a_bad_kernel_does_not_pass(bad_rows, name, sentence):
    (found,) = aot.complaints(bad_rows[name])
    assert sentence in found


@needs_triton
def test_good_kernels_pass(bad_rows):
    assert aot.complaints(bad_rows["good"]) == []
    assert aot.complaints(bad_rows["stated"]) == []
    assert bad_rows["good"].registers > 0
    assert bad_rows["stated"].precisions == ("tf32x3",)
    assert bad_rows["stated"].instructions["mma"] >= 3 * bad_rows["tf32"].instructions["mma"]


@needs_triton
def test_a_compiler_without_end_is_stopped(monkeypatch):
    monkeypatch.chdir(ROOT)
    seen = []
    wanted = Wanted([SLOW], ["fp16", "bf16"], [64], ["sm_80"], without_hints=False)
    rows = aot.compile_all(wanted, progress=lambda *a: seen.append(a), limit=2)
    assert [row.error for row in rows] == [
        "the compiler was stopped after 2 s",
        "ValueError: width: no kernels for bf16",
    ]
    assert seen == [(1, 1, f"{SLOW}, deadly, endless")]


def in_a_child(code: str, *arguments: str) -> str:
    """What ``code`` prints in a process that compiles."""
    made = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=aot.child_environment("unused"),
    )
    assert made.returncode == 0, made.stderr
    return made.stdout


@needs_triton
def test_what_a_launcher_knows_reaches_the_compiler():
    """Alignment, numbers that divide by 16, an integer 1; a length is never known."""
    in_a_child(
        "from course.kernels import aot\n"
        "case = aot.cases('linear', 'fp16', 64)[0]\n"
        "hip, t4 = aot.CHIPS['gfx942'], aot.CHIPS['sm_75']\n"
        "signature, constants, attributes = aot.source(case, hip, hints=True)\n"
        "without = aot.source(case, hip, hints=False)\n"
        "place = {name: i for i, name in enumerate(case.kernel.arg_names)}\n"
        "assert without[2] == {} and without[1] == {**case.constants, 'DOT': 'ieee'}\n"
        "assert attributes[(place['k'],)] == [['tt.divisibility', 16], ['tt.pointer_range', 32]]\n"
        "assert attributes[(place['stride_kt'],)] == [['tt.divisibility', 16]]\n"
        "assert constants['stride_kd'] == 1 and signature['stride_kd'] == 'constexpr'\n"
        "assert (place['S_len'],) not in attributes and signature['S_len'] == 'i32'\n"
        "assert signature['k'] == '*fp16' and signature['S_0'] == '*fp32'\n"
        "assert signature['t_0'] == '*i64' and signature['mask'] == '*i1'\n"
        "assert aot.source(case, t4, hints=True)[1]['DOT'] == 'ieee'\n"
        "case = aot.cases('linear', 'fp32', 64)[0]\n"
        "assert aot.source(case, hip, hints=True)[1]['DOT'] == 'ieee'\n"
        "assert aot.source(case, t4, hints=True)[1]['DOT'] == 'tf32x3'\n"
    )


@needs_triton
def test_every_kernel_is_among_the_cases_with_all_its_parts():
    """A kernel that nobody records, or a part that is always left out, would not be compiled."""
    cases = [(module, case) for module in aot.MODULES for case in aot.cases(module, "fp16", 16)]
    for module in aot.MODULES:
        kernels = importlib.import_module(f"course.kernels.{module}")
        launched = {case.kernel for of, case in cases if of == module}
        assert launched == {
            kernel
            for name, kernel in vars(kernels).items()
            if name.startswith((module, "linear_")) and hasattr(kernel, "arg_names")
        }
        for kernel in launched:
            flags: dict[str, set] = defaultdict(set)
            for _, case in cases:
                if case.kernel is kernel:
                    for name, value in case.constants.items():
                        flags[name].add(value)
            assert not [n for n, values in flags.items() if values == {False}], kernel.__name__
    names = [(module, case.name) for module, case in cases]
    assert len(set(names)) == len(names)


@needs_triton
def test_a_new_length_needs_no_new_program():
    """Triton tells 1, multiples of 16 and other numbers apart: three programs for all lengths."""
    counts = json.loads(
        in_a_child(
            "import json\n"
            "from course.kernels import aot\n"
            "from course.kernels.aot import cases\n"
            "chip, programs = aot.CHIPS['sm_80'], {}\n"
            "for cases.T in (1, 2, 16, 17, 64, 65, 257, 1000, 1024):\n"
            "    for module in aot.MODULES:\n"
            "        for case in aot.cases(module, 'fp16', 64):\n"
            "            key = f'{module}, {case.name}'\n"
            "            made = (aot.source(case, chip, hints=True), dict(case.options))\n"
            "            programs.setdefault(key, set()).add(repr(made))\n"
            "print(json.dumps({key: len(found) for key, found in programs.items()}))"
        )
    )
    assert len(counts) > 15 and max(counts.values()) <= 3, counts


# --------------------------------------------------------------------------------- the command


def test_bad_arguments_are_answered_with_a_sentence(capsys, monkeypatch):
    monkeypatch.setattr(aot, "available", lambda: None)
    monkeypatch.setattr(aot, "compile_all", lambda *a, **b: pytest.fail("compiled"))
    for arguments, sentence in (
        (["--arch", "sm_70"], "arch: expected one of sm_75, sm_80, sm_86, sm_90, sm_100, gfx942"),
        (["--kernel", "conv"], "kernel: expected one of softmax, linear, step, taylor"),
        (["--dtype", "fp8"], "dtype: expected one of fp16, bf16, fp32, got 'fp8'"),
        (["--width", "32"], "width: expected one of 16, 64, 128, 256, got '32'"),
        (["--jobs", "0"], "jobs: expected a whole number of at least 1, got 0"),
    ):
        assert main(["kernels", "compile", *arguments]) == 2
        assert sentence in capsys.readouterr().out


def test_without_triton_it_says_so(capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["kernels", "compile"]) == 2
    assert "Triton is not installed, so no kernel can be compiled" in capsys.readouterr().out


def test_the_command_prints_a_table_and_names_what_failed(capsys, monkeypatch):
    asked = []

    def compile_all(wanted, *, processes, progress):
        asked.append((wanted, processes))
        return [
            FINE._replace(arch="sm_75", instructions={}),
            FINE._replace(width=16, registers=40),
            FINE._replace(precisions=()),
            FINE._replace(width=128, spills=8),
            FINE._replace(name="step", tensor_cores=False, instructions={}),
            FINE._replace(name="states", precisions=("tf32",), tf32_stated=True),
        ]

    monkeypatch.setattr(aot, "available", lambda: None)
    monkeypatch.setattr(aot, "compile_all", compile_all)
    monkeypatch.setattr(kernels_cli.importlib.metadata, "version", lambda name: "3.7.1")
    command = [
        "kernels",
        "compile",
        "--kernel",
        "linear",
        "--arch",
        "sm_86",
        "sm_75",
        "--jobs",
        "3",
    ]
    assert main(command) == 1
    printed = capsys.readouterr().out
    assert asked[0][0] == Wanted(["linear"], aot.DTYPES, aot.WIDTHS, ("sm_86", "sm_75"))._replace(
        modules=("linear",)
    )
    assert asked[0][1] == 3
    line = next(text for text in printed.splitlines() if text.startswith("  sm_86   fp16"))
    assert line.split()[2:5] == ["16/64/128", "40/128/128", "0/0/8"]
    assert "99 of 99" in line and "mma 8" in line and "i64" in line
    assert "no product to compute" in printed
    assert "sm_75 (T4" in printed and 'impl="torch"' in printed
    assert "linear, forward, fp16, width 128, sm_86: spills 8 bytes a thread" in printed
    assert "tf32 (stated)" in printed
    assert "6 kernels compiled" in printed and "1 complaint(s)" in printed

    assert main([*command, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["triton"] == "3.7.1" and len(found["rows"]) == 6 and len(found["failures"]) == 1
    assert found["rows"][1]["instructions"] == {"mma": 8}


def test_progress_is_a_line_a_tenth_where_nobody_looks(capsys):
    for done in range(1, 41):
        kernels_cli.progress(done, 40, "linear, forward")
    assert capsys.readouterr().err.splitlines() == [f"compiled {n} of 40" for n in range(4, 41, 4)]


# ------------------------------------------------------------------------------- the real thing


@needs_triton
def test_every_kernel_passes_on_some_chip():
    """A sample of the matrix: every kernel once, for both makers, in half precision and float32."""
    rows = []
    for module, dtype, arch in (
        ("softmax", "bf16", "sm_90"),
        ("linear", "fp16", "gfx942"),
        ("taylor", "fp32", "sm_86"),
        ("step", "fp16", "sm_80"),
    ):
        rows += aot.compile_all(Wanted((module,), (dtype,), (64,), (arch,), without_hints=False))
    assert {row.module for row in rows} == set(aot.MODULES)
    assert aot.failures(rows) == []


@needs_triton
@pytest.mark.slow
def test_every_kernel_passes_on_every_chip(capsys):
    assert main(["kernels", "compile", "--json"]) == 0, capsys.readouterr().out[-4000:]
    found = json.loads(capsys.readouterr().out)
    assert {row["arch"] for row in found["rows"]} == set(aot.CHIPS)
    assert found["seconds"] < 1500  # ten minutes on a quiet machine with two cores
