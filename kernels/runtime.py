"""Whether kernels can run here, and how: the refusals, and the only places that launch or allocate.

Triton decides once, when it is imported, whether kernels are compiled for a GPU or interpreted in
NumPy (``TRITON_INTERPRET=1``). One process does one of the two. Importing this module loads no
Triton, so that it can say why there is none.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

#: How float32 tiles are multiplied. Triton's default on NVIDIA is TF32, which keeps 10 of 23 bits;
#: three TF32 products give nearly all bits and still use the tensor cores. AMD has float32 ones.
DOT = "ieee" if torch.version.hip else "tf32x3"

#: What compiled kernels compute in, by Triton's names.
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}

START_INTERPRETER = (
    "start Python with the environment variable TRITON_INTERPRET=1, set before anything imports "
    "triton (building a torch optimiser imports it)"
)


def refusal(*tensors: Tensor | None) -> str | None:
    """Why kernels cannot run on these tensors, or None if they can; None arguments are left out.

    The first that holds of: no Triton for this system · Triton half interpreted · interpreting,
    but a tensor is not on the CPU, or not float32 or float16 · not interpreting, and a tensor is
    not on the GPU, or float64 · a tensor is inside a transform of ``torch.func``. Boolean and
    whole-number tensors only need the right device. Nothing is refused while :func:`recording`.
    """
    if _RECORDS:
        return None
    given = [x for x in tensors if x is not None]
    if torch.compiler.is_compiling():
        # Its tracer follows neither an import nor the environment, but a launch on a GPU.
        if all(x.is_cuda for x in given):
            return None
        return "torch.compile takes kernels on a GPU into its graph, and cannot interpret any"
    try:
        import triton
    except ImportError as error:
        return f"Triton cannot be imported on this system ({sys.platform}): {error}"
    own, new = is_interpreted(triton.language.sum), triton.knobs.runtime.interpret
    if own != new:
        return (
            f"TRITON_INTERPRET was {'removed' if own else 'set'} after Triton was imported, so "
            f"that kernels would be {_manner(new)} and Triton's own functions {_manner(own)}; "
            f"to interpret, {START_INTERPRETER}; to compile, start without it"
        )
    if new:
        reason = _refusal_of_version(triton) or _refusal_to_interpret(given)
    else:
        reason = _refusal_to_compile(given)
    return reason or _refusal_of_transforms(given)


def require_runnable(*tensors: Tensor | None) -> None:
    """Raise ``RuntimeError`` with the :func:`refusal`, if there is one."""
    reason = refusal(*tensors)
    if reason:
        raise RuntimeError(f'impl="triton" cannot run here: {reason}')


def is_interpreted(kernel: Any) -> bool:
    """Whether this Triton function is interpreted, which was decided when it was defined."""
    import triton

    return not isinstance(kernel, triton.JITFunction)


def _manner(interpreted: bool) -> str:
    return "interpreted" if interpreted else "compiled"


def _refusal_of_version(triton: Any) -> str | None:
    import numpy

    version, of_numpy = (
        tuple(int(part) for part in module.__version__.split(".")[:2]) for module in (triton, numpy)
    )
    if version < (3, 7) and of_numpy >= (2, 4):
        return (
            f"Triton {triton.__version__} cannot interpret with NumPy {numpy.__version__}; "
            "it needs Triton 3.7, or NumPy below 2.4"
        )
    return None


def _refusal_to_interpret(tensors: Sequence[Tensor]) -> str | None:
    for x in tensors:
        if x.device.type != "cpu":
            return f"Triton's interpreter takes CPU tensors, got one on {x.device}"
        if x.dtype == torch.bfloat16:
            return (
                "Triton's interpreter computes wrong numbers in bfloat16 without saying so; "
                "use float32 or float16"
            )
        if x.is_floating_point() and x.dtype not in (torch.float32, torch.float16):
            return f"the kernels interpret float32 and float16, got {x.dtype}"
    return None


def _refusal_to_compile(tensors: Sequence[Tensor]) -> str | None:
    devices = {x.device for x in tensors}
    if any(device.type != "cuda" for device in devices):
        found = " and ".join(sorted(str(device) for device in devices))
        return f"compiled kernels need tensors on a GPU, got {found}; without one, " + (
            START_INTERPRETER
        )
    if len(devices) > 1:
        return f"expected tensors on one GPU, got {' and '.join(sorted(map(str, devices)))}"
    for x in tensors:
        if x.is_floating_point() and x.dtype not in DTYPES.values():
            return f"the kernels compute in float32, float16 or bfloat16, got {x.dtype}"
    return None


def _refusal_of_transforms(tensors: Sequence[Tensor]) -> str | None:
    for x in tensors:
        try:
            x.data_ptr()
        except RuntimeError:
            return (
                "a kernel reads memory, and inside a transform of torch.func (grad, vmap, jvp, …) "
                'a tensor has none; use impl="reference"'
            )
        if forward_ad.unpack_dual(x).tangent is not None:
            return 'the kernels have no forward-mode derivatives; use impl="reference"'
    return None


class Launch(NamedTuple):
    """One launch as a launcher asked for it: what it would run, on how much, with what."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    meta: Mapping[str, Any]


_COUNTS: list[list[str]] = []
_RECORDS: list[list[Launch]] = []


@contextlib.contextmanager
def counting() -> Iterator[list[str]]:
    """A list to which every launch inside the ``with`` block adds the name of its kernel."""
    names: list[str] = []
    _COUNTS.append(names)
    try:
        yield names
    finally:
        _COUNTS.pop(next(i for i, kept in enumerate(_COUNTS) if kept is names))


@contextlib.contextmanager
def recording() -> Iterator[list[Launch]]:
    """A list to which every launch inside the ``with`` block is added instead of being made.

    So nothing is computed and what is allocated stays as it was; tensors may have any device and
    dtype, ``meta`` too. Shows what would run where it cannot.
    """
    launches: list[Launch] = []
    _RECORDS.append(launches)
    try:
        yield launches
    finally:
        _RECORDS.pop(next(i for i, kept in enumerate(_RECORDS) if kept is launches))


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any) -> None:
    """Run ``kernel`` once for each point of ``grid``; an empty grid is no launch.

    Tensors may lie on any one GPU. Raises ``RuntimeError`` if the kernel was defined when the
    other of interpreting and compiling was in force.
    """
    if math.prod(grid) == 0:
        return
    if _RECORDS:
        _RECORDS[-1].append(Launch(kernel, grid, args, meta))
        return
    if torch.compiler.is_compiling():
        kernel[grid](*args, **meta)  # becomes a part of the graph, which knows its device
        return
    import triton

    own = is_interpreted(triton.language.sum)
    if is_interpreted(kernel) != own:
        raise RuntimeError(
            f"{kernel.__name__} is {_manner(not own)}, but Triton's own functions are "
            f"{_manner(own)}: TRITON_INTERPRET changed between the imports of the two"
        )
    for names in _COUNTS:
        names.append(kernel.__name__)
    # Triton launches on the current device, which need not be the tensors'.
    first = next(x for x in args if isinstance(x, Tensor))
    with torch.cuda.device(first.device) if first.is_cuda else contextlib.nullcontext():
        kernel[grid](*args, **meta)


def empty(shape: Sequence[int], *, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for a kernel to fill, on the device of ``like`` (and of its dtype by default)."""
    return torch.empty(tuple(shape), dtype=dtype or like.dtype, device=like.device)
