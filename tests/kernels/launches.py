"""What the launchers ask Triton to compile, seen without a GPU: a child process of test_aot.

``python -m tests.kernels.launches`` calls the public functions on CPU tensors, in a process that
does not interpret, with Triton's launch replaced by a note of what it would compile. Prints JSON:
``launches``, each with a key that is equal for equal programs, and whether ``cases`` lists it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
from course.kernels import aot, runtime
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from course.attention import softmax_attention
from course.linear import LinearState, linear_attention, linear_attention_step

TARGET = GPUTarget("cuda", 80, 32)
BACKEND = make_backend(TARGET)
B, H, D = 2, 4, 64
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
NOTED: list[tuple[str, str]] = []


def as_text(kernel: Any, signature: Any, constants: Any, attributes: Any, options: Any) -> str:
    """One program in words: equal for two programs that Triton would compile to the same code."""
    names = kernel.arg_names
    index = {name: place for place, name in enumerate(names)}
    constants = {k if isinstance(k, tuple) else (index[k],): v for k, v in constants.items()}
    parts = []
    for place, name in enumerate(names):
        known = sorted(map(str, attributes.get((place,), [])))
        value = f" = {constants[(place,)]!r}" if (place,) in constants else ""
        parts.append(f"{name}: {signature[name]}{value} {' '.join(known)}".rstrip())
    return f"{kernel.__name__}({', '.join(parts)}) {options}"


def note(kernel: Any, *args: Any, grid: Any, warmup: bool, **meta: Any) -> None:
    bind = create_function_from_signature(kernel.signature, kernel.params, BACKEND)
    meta = {"debug": False, "instrumentation_mode": "", **meta}
    bound, special, options = bind(*args, **meta)
    made, signature, constants, attributes = kernel._pack_args(
        BACKEND, meta, bound, special, options
    )
    how = (made.num_warps, made.num_stages)
    NOTED.append((kernel.__name__, as_text(kernel, signature, constants, attributes, how)))


def listed(dtype: str) -> set[str]:
    found = set()
    for module in aot.MODULES:
        for case in aot.cases(module, dtype, D):
            parts = aot.source(case, "cuda", hints=True)
            found.add(as_text(case.kernel, *parts, (case.num_warps, case.num_stages)))
    return found


def draw(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape).to(dtype).requires_grad_()


def calls(dtype: torch.dtype, T: int) -> dict[str, Callable[[], Any]]:
    """Forward and backward of each kernel module, with everything that it can take."""
    q, k, v = (draw(B, H, T, D, dtype=dtype) for _ in range(3))
    narrow = [draw(B, H, T, 16, dtype=dtype) for _ in range(2)]
    real = torch.ones(B, T, dtype=torch.bool)

    def past(C: int) -> LinearState:
        return LinearState(
            draw(B, H, C, D, dtype=torch.float32),
            draw(B, H, C, dtype=torch.float32),
            torch.ones(B, dtype=torch.int64),
        )

    def both(result: Any) -> None:
        out, state = result if isinstance(result, tuple) else (result, None)
        total = out.float().sum()
        if state is not None:
            total = total + state.S.sum() + state.z.sum()
        total.backward()

    everything: dict[str, Any] = {"key_mask": real, "return_state": True, "impl": "triton"}
    return {
        "softmax": lambda: both(softmax_attention(q, k, v, causal=True, impl="triton")),
        "linear": lambda: both(linear_attention(q, k, v, initial_state=past(D), **everything)),
        "taylor": lambda: both(
            linear_attention(
                *narrow, v, feature_map="taylor", initial_state=past(153), **everything
            )
        ),
        "step": lambda: linear_attention_step(
            q[:, :, 0].detach(), k[:, :, 0].detach(), v[:, :, 0].detach(), impl="triton"
        ),
    }


def main() -> None:
    runtime._refusal_to_compile = lambda tensors: None
    JITFunction.run = note
    request = json.loads(sys.argv[1])
    launches = []
    for dtype in request["dtypes"]:
        known = listed(dtype)
        for T in request["lengths"]:
            for module, call in calls(TYPES[dtype], T).items():
                NOTED.clear()
                call()
                launches += [
                    {
                        "module": module,
                        "dtype": dtype,
                        "T": T,
                        "kernel": kernel,
                        "program": program,
                        "listed": program in known,
                    }
                    for kernel, program in NOTED
                ]
    print(json.dumps({"triton": triton.__version__, "launches": launches}))


if __name__ == "__main__":
    main()
