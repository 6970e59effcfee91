"""What is compiled: launches of the kernels, recorded from the functions that make them.

The functions run forward and backward on tensors without memory (PyTorch's device ``meta``), and
:func:`course.kernels.runtime.recording` notes what they would launch. So what is compiled ahead of
time is what a GPU would be asked to compile, with the strides of contiguous tensors.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course.kernels import runtime
from course.kernels.chips import Chip
from course.state import LinearState


class Case(NamedTuple):
    """One kernel as it was launched: its arguments and compile-time arguments by name.

    ``options`` are the compiler's: ``num_warps``, ``num_stages``, and ``maxnreg``, the registers a
    thread may have (NVIDIA): where it is given, ptxas spills only beyond it, not to get more
    programs on a processor.
    """

    name: str
    kernel: Any
    arguments: Mapping[str, Any]
    constants: Mapping[str, Any]
    options: Mapping[str, int]
    grid: tuple[int, ...]

    @property
    def tensor_cores(self) -> bool:
        """Whether it multiplies tiles: such a kernel is told how."""
        return "DOT" in self.constants


Example = tuple[str, Callable[[], Any]]
B, H, T = 2, 4, 1_024
MANY = 32  # sequences that keep a GPU busy with whole blocks of S


def _numbers(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


def _state(b: int, C: int, width: int, *, grad: bool = True) -> LinearState:
    t = torch.empty(b, dtype=torch.int64, device="meta")
    return LinearState(_numbers(b, H, C, width, grad=grad), _numbers(b, H, C, grad=grad), t)


def _all(b: int, C: int, width: int) -> dict[str, Any]:
    real = torch.empty(b, T, dtype=torch.bool, device="meta")
    return dict(key_mask=real, initial_state=_state(b, C, width), return_state=True)


def _both(attend: Callable[[], Any]) -> None:
    # Forward, and backward from all outputs.
    result = attend()
    outputs = (result[0], *result[1][:2]) if isinstance(result, tuple) else (result,)
    torch.autograd.backward(outputs, [torch.empty_like(x) for x in outputs])


def _softmax(m: Any, dtype: torch.dtype, width: int) -> Iterator[Example]:
    q, k, v = (_numbers(B, H, T, width, dtype=dtype) for _ in range(3))
    bias = _numbers(B, H, T, T)
    full = {"mask": torch.empty_like(bias, dtype=torch.bool), "bias": bias, "window": 64}
    for label, options in ((", causal", {"causal": True}), (" with mask, bias and window", full)):
        with_all = partial(m.softmax_attention, q, k, v, scale=1.0, **options)
        yield label, partial(_both, with_all)


def _linear(m: Any, dtype: torch.dtype, width: int) -> Iterator[Example]:
    for label, b in (("", MANY), (", few heads", 1)):
        q, k, v = (_numbers(b, H, T, width, dtype=dtype) for _ in range(3))
        yield label, partial(_both, partial(m.linear_attention, q, k, v, **_all(b, width, width)))


def _step(m: Any, dtype: torch.dtype, width: int) -> Iterator[Example]:
    q, k, v = (_numbers(B, H, width, dtype=dtype, grad=False) for _ in range(3))
    for name, C in (("elu", width), *([("taylor", 153)] if width == 16 else [])):
        state = _state(B, C, width, grad=False)
        yield f", {name}", partial(m.linear_attention_step, q, k, v, state, feature_map=name)


def _taylor(m: Any, dtype: torch.dtype, width: int) -> Iterator[Example]:
    q, k = (_numbers(B, H, T, 16, dtype=dtype) for _ in range(2))
    v = _numbers(B, H, T, width, dtype=dtype)
    yield "", partial(_both, partial(m.linear_attention, q, k, v, **_all(B, 153, width)))


# Causal, normalised, masked and with a past: every other choice leaves parts out.
EXAMPLES = {"softmax": _softmax, "linear": _linear, "step": _step, "taylor": _taylor}


def examples(module: str, dtype: str, width: int) -> Iterator[Example]:
    """Names and calls: of a module of this package, or ``examples(dtype, width)`` of any other."""
    if "." in module:
        return importlib.import_module(module).examples(dtype, width)
    # Only now: they import Triton, which need not be here.
    from course.kernels import linear, softmax, step, taylor

    kernels = {"softmax": softmax, "linear": linear, "step": step, "taylor": taylor}
    return EXAMPLES[module](kernels[module], runtime.DTYPES[dtype], width)


def cases(module: str, dtype: str, width: int) -> list[Case]:
    """The kernels of ``module`` as launched for q, k, v in ``dtype``: ``fp16``, ``bf16``, ``fp32``.

    A launch that differs from an earlier one by parts left out is not listed.
    """
    found: list[Case] = []
    for label, call in examples(module, dtype, width):
        with runtime.recording() as launches:
            call()
        for launch in launches:
            case = _case(launch, label)
            if any(_contains(other, case) for other in found):
                continue
            if any(other.name == case.name for other in found):
                case = case._replace(name=f"{launch.kernel.__name__} backwards{label}")
            found.append(case)
    return found


def _case(launch: runtime.Launch, label: str) -> Case:
    kernel, names = launch.kernel, list(launch.kernel.arg_names)
    constants = {name: value for name, value in launch.meta.items() if name in names}
    options = {name: value for name, value in launch.meta.items() if name not in names}
    arguments = dict(zip(names, launch.args, strict=False))
    return Case(kernel.__name__ + label, kernel, arguments, constants, options, launch.grid)


def _contains(other: Case, case: Case) -> bool:
    # Whether ``case`` is ``other`` with some flags off.
    def sizes(x: Case) -> dict[str, Any]:
        return {name: v for name, v in x.constants.items() if not isinstance(v, bool)}

    def flags(x: Case) -> set[str]:
        return {name for name, v in x.constants.items() if v is True}

    return (
        (other.kernel, sizes(other), other.options) == (case.kernel, sizes(case), case.options)
    ) and flags(other) >= flags(case)


_TYPES = {
    **{dtype: f"*{name}" for name, dtype in runtime.DTYPES.items()},
    torch.bool: "*i1",
    torch.int64: "*i64",
}


def _type(value: Any) -> str:
    if isinstance(value, Tensor):
        return _TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def source(case: Case, chip: Chip, *, hints: bool) -> tuple[dict, dict, dict]:
    """Signature, constants and attributes of ``case`` as Triton's launcher would make them.

    With ``hints``: pointers aligned, as PyTorch's allocator gives them, an integer 1 compiled in,
    one that divides by 16 known to; on AMD also that a tensor is smaller than 2 GiB. Raises
    ``ValueError`` for arguments that are not the kernel's.
    """
    names = list(case.kernel.arg_names)
    given = [*case.arguments, *case.constants]
    if sorted(names) != sorted(given):
        odd = sorted(set(names) ^ set(given)) or "one twice"
        raise ValueError(f"{case.name}: expected the kernel's arguments, got others: {odd}")
    constants = {name: _on(chip, value) for name, value in case.constants.items()}
    signature, attributes = {}, {}
    for index, name in enumerate(names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        value, parameter = case.arguments[name], case.kernel.params[index]
        signature[name] = _type(value)
        if not hints or parameter.do_not_specialize:
            continue
        aligned = not parameter.do_not_specialize_on_alignment
        known = [["tt.divisibility", 16]] if aligned else []
        if isinstance(value, Tensor):
            attributes[(index,)] = known + [["tt.pointer_range", 32]] * (chip.backend == "hip")
        elif isinstance(value, int) and value == 1:
            signature[name], constants[name] = "constexpr", 1
        elif isinstance(value, int) and value % 16 == 0 and aligned:
            attributes[(index,)] = known
    return signature, constants, attributes


def _on(chip: Chip, value: Any) -> Any:
    # As the launchers do on such a chip: AMD has no tf32x3, and neither it nor a T4 has TF32.
    without = {"hip": ("tf32", "tf32x3"), "cuda": ("tf32",) if chip.number == 75 else ()}
    return "ieee" if value in without[chip.backend] else value
