"""``course bench linear``: linear attention on this machine against its matrix-multiply rate.

The contenders of a group take turns, so that a busy machine slows each of them alike. Speeds are
those of the bare form (no feature map, no denominator) unless a line says something else.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course.bench.goals import Goal, draw, judged, printed, table
from course.feature_maps import get_feature_map
from course.inputs import require_positive
from course.linear import CHUNK_SIZE, LinearState, linear_attention, linear_attention_step
from course.measure import median_seconds, peak_memories

H, D = 4, 64
_BARE: dict[str, Any] = {"causal": True, "feature_map": "identity", "normalize": False}

GOALS: dict[str, Goal] = {
    "forward_to_limit": ("forward, T = 16,384: time relative to the limit", "≤", 1.5),
    "reference_to_forward": ("the reference's chunk form: times slower", "≥", 1.2),
    "sdpa_to_forward": ("causal SDPA, T = 4,096: times slower", "≥", 9.0),
    "both_to_forward": ("forward + backward relative to forward", "≤", 3.2),
    "elu_to_bare": ("elu+1 with denominator relative to bare", "≤", 1.35),
    "memory_forward": ("peak memory, T = 65,536, relative to the output", "≤", 3.0),
    "memory_both": ("the same with backward", "≤", 8.0),
    "naive_to_linear": ("non-causal, T = 6,000: naive softmax, times slower", "≥", 100.0),
    "late_to_early_step": ("a step at position 65,536 relative to one at 64", "≤", 1.1),
}


def limit_operations(T: int) -> int:
    """Operations of the four products of the chunk form, H heads, chunks of 64: the limit."""
    return H * T * (4 * CHUNK_SIZE * D + 4 * D * D)


def naive_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention as the formula says, one sequence at a time: a batch would not fit."""
    return torch.stack(
        [
            torch.softmax(a @ b.mT / math.sqrt(a.shape[-1]), -1) @ c
            for a, b, c in zip(q, k, v, strict=True)
        ]
    )


def bench_linear(*, repeats: int = 15, memory: bool = True, shrink: int = 1) -> dict[str, Any]:
    """All measurements: plain JSON types, times in seconds, one value for each of ``GOALS``.

    ``memory=False`` leaves out peak memory (a child process). ``shrink`` divides every length: a
    quick run, whose values are not those that the goals speak of. Raises ``ValueError`` for
    ``repeats`` or ``shrink`` below 1.
    """
    require_positive("repeats", repeats)
    require_positive("shrink", shrink)
    long, rate = _long(repeats, 16_384 // shrink)
    short = _against_sdpa(repeats, 4_096 // shrink)
    whole = _non_causal(max(3, repeats // 3), 6_000 // shrink)
    early, late = _steps(repeats, 64, 65_536 // shrink)
    values = {
        "forward_to_limit": long["forward"] * rate / limit_operations(16_384 // shrink),
        "reference_to_forward": long["reference"] / long["forward"],
        "sdpa_to_forward": short["SDPA"] / short["forward"],
        "both_to_forward": long["forward and backward"] / long["forward"],
        "elu_to_bare": long["elu+1 with denominator"] / long["forward"],
        "naive_to_linear": 8 * whole["naive softmax, 4 sequences"] / whole["linear"],
        "late_to_early_step": late / early,
    }
    if memory:
        values["memory_forward"], values["memory_both"] = peaks(65_536 // shrink)
    return {
        "threads": torch.get_num_threads(),
        "matmul_gflops": rate / 1e9,
        "repeats": repeats,
        "seconds": {
            f"T = {16_384 // shrink:,}": long,
            f"T = {4_096 // shrink:,}": short,
            f"T = {6_000 // shrink:,}, batch 32, non-causal": whole,
            "one step": {"at 64": early, f"at {65_536 // shrink:,}": late},
        },
        "goals": judged(values, GOALS),
    }


def _long(repeats: int, T: int) -> tuple[dict[str, float], float]:
    """Seconds of the causal forms, and the operations a second of a matrix product."""
    a, b = draw(2, 1024, 1024)
    q, k, v, grad = draw(4, 1, H, T, D)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    seconds = median_seconds(
        {
            "8 products": lambda: [a @ b for _ in range(8)],
            "forward": lambda: linear_attention(q, k, v, **_BARE),
            "forward and backward": lambda: _both(leaves, grad),
            "elu+1 with denominator": lambda: linear_attention(q, k, v, causal=True),
            "reference": lambda: linear_attention(q, k, v, impl="reference", **_BARE),
        },
        repeats,
    )
    return seconds, 8 * 2 * 1024**3 / seconds["8 products"]


def _against_sdpa(repeats: int, T: int) -> dict[str, float]:
    q, k, v = draw(3, 1, H, T, D)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return median_seconds(
        {
            "forward": lambda: linear_attention(q, k, v, **_BARE),
            "SDPA": lambda: sdpa(q, k, v, is_causal=True),
        },
        repeats,
    )


def _non_causal(repeats: int, T: int) -> dict[str, float]:
    q, k, v = draw(3, 32, 1, T, D)
    return median_seconds(
        {
            "linear": lambda: linear_attention(q, k, v, **_BARE | {"causal": False}),
            "elu+1 with denominator": lambda: linear_attention(q, k, v, causal=False),
            # A few of the 32 sequences: each costs the same.
            "naive softmax, 4 sequences": lambda: naive_softmax(q[:4], k[:4], v[:4]),
        },
        repeats,
    )


def _both(leaves: list[Tensor], grad: Tensor) -> None:
    for x in leaves:
        x.grad = None
    linear_attention(*leaves, **_BARE).backward(grad)


def _steps(repeats: int, early: int, late: int, steps: int = 64) -> tuple[float, float]:
    """Seconds of one step that follows ``early`` tokens, and of one that follows ``late``."""
    q, k, v = draw(3, 1, H, late, D)
    fm = get_feature_map("elu")

    def goes_on(T: int) -> Callable[[], None]:
        past: LinearState = linear_attention(
            q[:, :, :T], k[:, :, :T], v[:, :, :T], causal=True, feature_map=fm, return_state=True
        )[1]

        def run() -> None:
            state = past
            for _ in range(steps):
                _, state = linear_attention_step(
                    q[:, :, 0], k[:, :, 0], v[:, :, 0], state, feature_map=fm
                )

        return run

    seconds = median_seconds({"early": goes_on(early), "late": goes_on(late)}, 4 * repeats)
    return seconds["early"] / steps, seconds["late"] / steps


def peaks(T: int) -> tuple[float, float]:
    """Peak memory above the inputs relative to the output: forward, and forward + backward.

    The gradients of q, k, v and that of the output, which belongs to the caller, count as well.
    """
    setup = (
        "import torch; from course.linear import linear_attention as f\n"
        f"q, k, v = (torch.randn(1, {H}, {T}, {D}) for _ in range(3))\n"
        "a, b, c = (x.clone().requires_grad_() for x in (q, k, v))"
    )
    call = "causal=True, feature_map='identity', normalize=False"
    forward, both = peak_memories(
        [
            f"f(q, k, v, {call})",
            f"out = f(a, b, c, {call})\n"
            "torch.autograd.grad(out, (a, b, c), torch.ones_like(out))\ndel out",
        ],
        setup=setup,
    )
    size = H * T * D * 4
    return forward / size, both / size


def report(found: dict[str, Any]) -> str:
    """What :func:`bench_linear` found, as a table."""
    lines = [
        f"this machine: {found['matmul_gflops']:.0f} GFLOP/s in a float32 product of two "
        f"1,024 × 1,024 matrices, {found['threads']} thread(s); medians of {found['repeats']}",
        f"B, H, D = 1, {H}, {D}; the limit at T = 16,384: "
        f"{limit_operations(16_384) / found['matmul_gflops'] / 1e6:.1f} ms",
        "",
    ]
    return "\n".join(lines + table(found, GOALS))


def command(arguments: argparse.Namespace) -> int:
    """Run ``course bench linear``; returns the exit status."""
    return printed(arguments, bench_linear, report)
