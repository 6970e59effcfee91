"""What the launchers ask Triton to compile, seen without a GPU: a child process of test_aot.

``python -m tests.kernels.launches`` calls the public functions on CPU tensors, in a process that
does not interpret, with Triton's launch replaced by a note of what it would compile. Prints JSON:
``launches``, each with its program in words and how it differs from the closest listed case.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from course.attention import softmax_attention
from course.kernels import aot, runtime
from course.linear import LinearState, linear_attention, linear_attention_step

TARGET = GPUTarget("cuda", 80, 32)
BACKEND = make_backend(TARGET)
B, H, D = 2, 4, 64
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
NOTED: list[dict[str, str]] = []


def in_words(
    kernel: Any, signature: Any, constants: Any, attributes: Any, warps: int, stages: int
) -> dict[str, str]:
    """One program, argument by argument: equal for two that Triton would compile to one code."""
    index = {name: place for place, name in enumerate(kernel.arg_names)}
    constants = {k if isinstance(k, tuple) else (index[k],): v for k, v in constants.items()}
    words = {"kernel": kernel.__name__, "warps": str(warps), "stages": str(stages)}
    for place, name in enumerate(kernel.arg_names):
        kind = signature[name].replace("*i1", "*u1")  # one bit, with or without sign
        value = f" = {constants[(place,)]!r}" if (place,) in constants else ""
        known = [f" {key} {number}" for key, number in attributes.get((place,), [])]
        words[name] = kind + value + "".join(known)
    return words


def note(kernel: Any, *args: Any, grid: Any, warmup: bool, **meta: Any) -> None:
    bind = create_function_from_signature(kernel.signature, kernel.params, BACKEND)
    meta = {"debug": False, "instrumentation_mode": "", **meta}
    bound, special, options = bind(*args, **meta)
    made, signature, constants, attributes = kernel._pack_args(
        BACKEND, meta, bound, special, options
    )
    NOTED.append(
        in_words(kernel, signature, constants, attributes, made.num_warps, made.num_stages)
    )


def listed(modules: list[str], dtype: str) -> list[dict[str, str]]:
    return [
        in_words(
            case.kernel, *aot.source(case, "cuda", hints=True), case.num_warps, case.num_stages
        )
        for module in modules
        for case in aot.cases(module, dtype, D)
    ]


def differences(program: dict[str, str], known: list[dict[str, str]]) -> dict[str, list[str]]:
    """Argument → what is listed, what is launched, against the listed program that is closest."""
    found = [
        {name: [case[name], text] for name, text in program.items() if case[name] != text}
        for case in known
        if case.keys() == program.keys() and case["kernel"] == program["kernel"]
    ]
    return min(found, key=len) if found else {"kernel": ["none", program["kernel"]]}


def draw(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape).to(dtype).requires_grad_()


def calls(dtype: torch.dtype, T: int) -> dict[str, Callable[[], Any]]:
    """Forward and backward of each kernel module, with everything that it can take."""
    q, k, v = (draw(B, H, T, D, dtype=dtype) for _ in range(3))
    narrow = [draw(B, H, T, 16, dtype=dtype) for _ in range(2)]
    real = torch.ones(B, T, dtype=torch.bool)

    def past(C: int, gradient: bool = True) -> LinearState:
        S, z = draw(B, H, C, D, dtype=torch.float32), draw(B, H, C, dtype=torch.float32)
        for x in (S, z):
            x.requires_grad_(gradient)
        return LinearState(S, z, torch.ones(B, dtype=torch.int64))

    def both(result: Any) -> None:
        out, state = result if isinstance(result, tuple) else (result, None)
        outputs = (out,) if state is None else (out, state.S, state.z)
        torch.autograd.backward(outputs, tuple(map(torch.randn_like, outputs)))

    everything: dict[str, Any] = {
        "causal": True,
        "key_mask": real,
        "return_state": True,
        "impl": "triton",
    }
    return {
        "softmax": lambda: both(softmax_attention(q, k, v, causal=True, impl="triton")),
        "linear": lambda: both(linear_attention(q, k, v, initial_state=past(D), **everything)),
        "taylor": lambda: both(
            linear_attention(
                *narrow, v, feature_map="taylor", initial_state=past(153), **everything
            )
        ),
        "step": lambda: linear_attention_step(
            *(draw(B, H, D, dtype=dtype).detach() for _ in range(3)),
            past(D, gradient=False),
            impl="triton",
        ),
    }


def main() -> None:
    runtime._refusal_to_compile = lambda tensors: None
    JITFunction.run = note
    request = json.loads(sys.argv[1])
    launches = []
    for dtype in request["dtypes"]:
        known = listed(request["modules"], dtype)
        for T in request["lengths"]:
            made = calls(TYPES[dtype], T)
            for module in request["modules"]:
                NOTED.clear()
                made[module]()
                launches += [
                    {
                        "module": module,
                        "dtype": dtype,
                        "T": T,
                        "program": program,
                        "differences": differences(program, known),
                    }
                    for program in NOTED
                ]
    print(json.dumps({"triton": triton.__version__, "launches": launches}))


if __name__ == "__main__":
    main()
