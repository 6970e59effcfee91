"""Whether kernels run here, each refusal with its reason, and what holds for every kernel file."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import course.kernels
from course.attention import softmax_attention
from course.feature_maps import get_feature_map
from course.kernels import runtime
from course.linear import LinearState, linear_attention, linear_attention_step
from course.transformer import Transformer, TransformerConfig

FOLDER = Path(course.kernels.__path__[0])
FILES = sorted(FOLDER.rglob("*.py"))
x = torch.zeros(1, 1, 2, 4)

triton = pytest.importorskip("triton")
interpreting = pytest.mark.skipif(
    runtime.refusal(x) is not None, reason="kernels are compiled in this process"
)


def child(code: str, **variables: str) -> str:
    """What ``code`` prints in a process that interprets only if told to."""
    clean = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    head = "import os, torch\nfrom course.kernels import runtime\nx = torch.zeros(1, 1, 2, 4)\n"
    done = subprocess.run(
        [sys.executable, "-c", head + code],
        capture_output=True,
        text=True,
        env=clean | {"OMP_NUM_THREADS": "1"} | variables,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ---------------------------------------------------------------------- in the order of refusal


def test_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert "Triton cannot be imported on this system" in str(runtime.refusal(x))
    with pytest.raises(RuntimeError, match=r'^impl="triton" cannot run here: Triton cannot'):
        softmax_attention(x, x, x, impl="triton")


@interpreting
def test_no_longer_interpreting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    reason = str(runtime.refusal(x))
    assert "TRITON_INTERPRET was removed after Triton was imported" in reason
    assert "kernels would be compiled and Triton's own functions interpreted" in reason


def test_interpreting_too_late_and_with_no_gpu() -> None:
    """One process: first no interpreter, then the variable set after an optimiser was built."""
    first, second = child(
        "print(runtime.refusal(x))\n"
        "torch.optim.AdamW([torch.zeros(2, requires_grad=True)])\n"
        "os.environ['TRITON_INTERPRET'] = '1'\n"
        "print(runtime.refusal(x))"
    ).splitlines()
    assert first.startswith("compiled kernels need tensors on a GPU, got cpu; without one, start")
    assert "TRITON_INTERPRET=1, set before anything imports triton" in first
    assert "TRITON_INTERPRET was set after Triton was imported" in second
    assert "kernels would be interpreted and Triton's own functions compiled" in second


@interpreting
@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (x.to(torch.bfloat16), "wrong numbers in bfloat16 without saying so"),
        (x.double(), "interpret float32 and float16, got torch.float64"),
        (x.to("meta"), "takes CPU tensors, got one on meta"),
    ],
)
def test_what_the_interpreter_refuses(tensor: Tensor, says: str) -> None:
    assert says in str(runtime.refusal(x, tensor))
    with pytest.raises(RuntimeError, match=says):
        softmax_attention(tensor, tensor, tensor, impl="triton")


@interpreting
def test_an_old_triton_cannot_interpret_with_a_new_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    monkeypatch.setattr("numpy.__version__", "2.4.6")
    assert "Triton 3.6.0 cannot interpret with NumPy 2.4.6" in str(runtime.refusal(x))
    monkeypatch.setattr("numpy.__version__", "2.3.5")
    assert runtime.refusal(x) is None


@interpreting
def test_what_the_interpreter_takes() -> None:
    runtime.require_runnable(x, x.half(), x > 0, torch.zeros(2, dtype=torch.int64), None)


def test_compiled_kernels_want_one_gpu_and_no_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins, since this machine need not have a GPU."""

    class Pretended:
        def __init__(self, device: str, dtype: torch.dtype = torch.float32) -> None:
            self.device, self.dtype = torch.device(device), dtype

        def data_ptr(self) -> int:
            return 1

        def is_floating_point(self) -> bool:
            return self.dtype.is_floating_point

    monkeypatch.setattr(runtime, "is_interpreted", lambda kernel: False)
    monkeypatch.setenv("TRITON_INTERPRET", "0")

    def refusal(*tensors: Any) -> str | None:
        return runtime.refusal(*tensors)

    first = Pretended("cuda:0")
    assert refusal(first, Pretended("cuda:0", torch.bfloat16), None) is None
    assert refusal(first, Pretended("cuda:0", torch.bool)) is None
    assert "got cpu and cuda:0" in str(refusal(first, Pretended("cpu")))
    assert "got mps" in str(refusal(Pretended("mps")))
    assert "on one GPU, got cuda:0 and cuda:1" in str(refusal(first, Pretended("cuda:1")))
    assert "got torch.float64" in str(refusal(Pretended("cuda:0", torch.float64)))


# ------------------------------------------------------- what is wrong with the call: ValueError


def linear(**options: Any) -> Any:
    return linear_attention(x, x, x, causal=True, **{"impl": "triton", **options})


def step(**options: Any) -> Any:
    t = torch.zeros(2, 3, options.pop("D", 4))
    return linear_attention_step(t, t, t, **{"impl": "triton", **options})


unpacked = get_feature_map("taylor", packed=False)
wide = torch.zeros(1, 1, 2, 257)
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "impl": (lambda: softmax_attention(x, x, x, impl="cuda"), "^impl: .*triton, got 'cuda'"),
    "D": (lambda: softmax_attention(wide, wide, x, impl="triton"), "^q: .* D of at most 256 .*257"),
    "Dv": (lambda: softmax_attention(x, x, wide, impl="triton"), "^v: .* Dv of at most 256 .*257"),
    "window": (lambda: softmax_attention(x, x, x, window=0, impl="triton"), "^window: "),
    "mask": (lambda: softmax_attention(x, x, x, mask=x, impl="triton"), "^mask: "),
    "impl of linear": (lambda: linear(impl="cuda"), "^impl: expected one of .*triton, got"),
    "form": (
        lambda: linear(form="scan"),
        "^form: expected None unless impl=\"reference\", got 'scan'",
    ),
    "chunk_size": (lambda: linear(chunk_size=32), "^chunk_size: expected None with .*, got 32"),
    "favor": (lambda: linear(feature_map="favor"), "^feature_map: .*elu, relu.*got _Favor"),
    "dpfp": (lambda: step(feature_map="dpfp"), "^feature_map: .*elu, relu.*got _Dpfp"),
    "cosformer": (
        lambda: linear(feature_map=get_feature_map("cosformer", max_length=9)),
        "^feature_map: .*got _CosFormer",
    ),
    "key_mask": (lambda: linear(key_mask=torch.ones(1, 3).bool()), "key_mask: expected"),
    "scale": (lambda: linear(scale=-1.0), "^scale: expected"),
    "initial_state": (lambda: linear(initial_state=LinearState(wide, wide, x)), "^initial_state"),
    "state": (lambda: step(state=LinearState(wide, wide, x)), "state"),
    "signed": (lambda: linear(feature_map="identity"), "^feature_map: .*signed"),
    "wide taylor": (lambda: step(feature_map="taylor", D=17), "taylor .* at most 16 .* D = 17"),
    "unpacked": (lambda: linear(feature_map=unpacked, return_state=True), "packed=True where a"),
    "unpacked step": (lambda: step(feature_map=unpacked), "packed=True where a state"),
    "impl of step": (lambda: step(impl="cuda"), "^impl: expected one of .*triton, got"),
    "impl of a mixer": (
        lambda: Transformer(TransformerConfig(9, E=8, mixer_options={"impl": "cuda"})),
        "^impl: expected one of .*triton, got",
    ),
    "dropout": (
        lambda: Transformer(
            TransformerConfig(9, E=8, dropout=0.1, mixer_options={"impl": "triton"})
        ),
        '^dropout: expected 0 with impl="triton"',
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same message on a machine without Triton: arguments are looked at first."""
    call, says = WRONG[name]
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ValueError, match=says):
        call()


def test_nothing_falls_back_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    model = Transformer(
        TransformerConfig(9, E=8, H=2, mixer="hybrid", mixer_options={"impl": "triton"})
    )
    for call in (
        lambda: softmax_attention(x, x, x, impl="triton"),
        linear,
        lambda: linear(feature_map="taylor"),
        step,
        lambda: model(torch.zeros(1, 3, dtype=torch.int64)),
    ):
        with pytest.raises(RuntimeError, match="Triton cannot be imported"):
            call()


@interpreting
def test_the_state_counts_too() -> None:
    state = LinearState(
        *(t.to("meta") for t in (torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4))), None
    )
    state = state._replace(t=torch.zeros(1, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="got one on meta"):
        linear(initial_state=state)


# ------------------------------------------------------------------------------------ launching


def _twice(X, n):  # type: ignore[no-untyped-def]
    tl = triton.language
    i = tl.program_id(0)
    tl.store(X + i, 2 * tl.load(X + i, mask=i < n, other=0.0), mask=i < n)


@interpreting
def test_launches_are_counted_and_an_empty_grid_is_none() -> None:
    kernel, numbers = triton.jit(_twice), torch.arange(5.0)
    with runtime.counting() as outer:
        with runtime.counting() as inner:
            runtime.launch(kernel, (3,), numbers, 5)
            runtime.launch(kernel, (0,), numbers, 5)
            runtime.launch(kernel, (2, 0), numbers, 5)
        runtime.launch(kernel, (1,), numbers, 5)
    runtime.launch(kernel, (1,), numbers, 5)
    assert (inner, outer) == (["_twice"], ["_twice"] * 2)
    assert numbers.tolist() == [0.0, 2.0, 4.0, 3.0, 4.0]


@interpreting
def test_a_kernel_of_the_other_kind_is_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    compiled = triton.jit(_twice)
    with pytest.raises(RuntimeError, match="_twice is compiled, but Triton's own functions are"):
        runtime.launch(compiled, (1,), torch.zeros(1), 1)


def test_empty_is_on_the_device_and_of_the_dtype_asked_for() -> None:
    made = runtime.empty((2, 3), like=x.half())
    assert made.shape == (2, 3) and made.dtype == torch.float16 and made.device == x.device
    assert runtime.empty((), like=x.to("meta"), dtype=torch.int32).device.type == "meta"


@interpreting
def test_a_recorded_launch_is_not_made() -> None:
    kernel, numbers = triton.jit(_twice), torch.arange(3.0)
    with runtime.counting() as names, runtime.recording() as launches:
        assert runtime.refusal(x.to("meta"), x.double()) is None
        runtime.launch(kernel, (3,), numbers, 3, num_warps=1)
        runtime.launch(kernel, (0,), numbers, 3)
    assert launches == [(kernel, (3,), (numbers, 3), {"num_warps": 1})] and names == []
    assert numbers.tolist() == [0.0, 1.0, 2.0]
    assert runtime.refusal(x.to("meta")) is not None


# -------------------------------------------------------------------------- all kernels' sources


def test_importing_the_kernels_needs_no_driver_and_the_package_no_triton() -> None:
    """Where there is no GPU, whatever asks for the driver raises an error."""
    names = [
        ".".join(("course.kernels", *file.relative_to(FOLDER).with_suffix("").parts))
        for file in FILES
        if file.stem != "__init__"
    ]
    assert {"course.kernels.softmax", "course.kernels.aot.cases"} <= set(names)
    says = child(
        "import importlib, sys\n"
        "import course.kernels, course.attention, course.linear, course.mixers\n"
        "assert 'triton' not in sys.modules\n"
        "from triton.runtime.driver import DriverConfig\n"
        "def active(self): raise AssertionError('a driver was asked for')\n"
        "DriverConfig.active = property(active)\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(len(sys.modules) > 0)"
    )
    assert says == "True"


def jitted(file: Path) -> list[ast.FunctionDef]:
    """The Triton functions of a file."""
    return [
        node
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        and any("triton.jit" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]


def test_no_length_is_compiled_in() -> None:
    """A kernel that has T as a constant is compiled again for each length."""
    functions = [function for file in FILES for function in jitted(file)]
    assert len(functions) > 5
    for function in functions:
        for argument in function.args.args:
            constant = argument.annotation and "constexpr" in ast.unparse(argument.annotation)
            assert not (constant and argument.arg in ("T", "S", "B", "H", "N", "window")), (
                function.name,
                argument.arg,
            )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_nothing_that_triton_removed_or_does_not_promise(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    modules = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (getattr(node, "module", None) or "", *(alias.name for alias in node.names))
    }
    assert not used & {"make_block_ptr", "advance", "libdevice", "autotune", "heuristics"}
    assert not [m for m in modules if "interpreter" in m or "libdevice" in m]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_loads_have_an_other_and_products_a_precision(file: Path) -> None:
    for function in jitted(file):
        for call in ast.walk(function):
            if not isinstance(call, ast.Call):
                continue
            name, given = ast.unparse(call.func), {keyword.arg for keyword in call.keywords}
            if name == "tl.load" and "mask" in given:
                assert "other" in given, (function.name, ast.unparse(call))
            if name == "tl.dot":
                assert "input_precision" in given, (function.name, ast.unparse(call))
