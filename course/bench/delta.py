"""``course bench delta``: the delta rule by chunks against the loop, and against longer texts.

The contenders of a group take turns, so that a busy machine slows each of them alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from course.bench.goals import Goal, draw, judged, printed, table
from course.inputs import require_positive
from course.linear import linear_attention
from course.measure import median_seconds
from course.memory import delta_attention

D, T = 64, 4_096
LENGTHS = (1_024, 4_096, 16_384)
#: Other sizes (B, H, T, D), at which models are trained.
SIZES = ((1, 4, 1_024, 64), (4, 4, 256, 32), (32, 2, 256, 16))

GOALS: dict[str, Goal] = {
    "loop_to_chunks": ("one head, T = 4,096, both passes: the loop, times slower", "≥", 10.0),
    "late_to_early_token": ("a token at T = 16,384 relative to one at 1,024", "≤", 1.2),
}


def contenders(B: int, H: int, T: int, D: int) -> dict[str, Callable[[], Any]]:
    """The same passes by chunks and as a loop, and linear attention without a map or a division.

    The names that end in "backward" compute the gradients of q, k, v (and β) as well.
    """
    q, k, v, grad = draw(4, B, H, T, D)
    k = normalize(k, dim=-1)
    beta = torch.sigmoid(draw(1, B, H, T)[0])

    def by(form: str) -> Callable[..., Tensor]:
        return lambda q, k, v, beta: delta_attention(q, k, v, beta=beta, form=form)

    def additive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return linear_attention(q, k, v, causal=True, feature_map="identity", normalize=False)

    def both(function: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], Any]:
        leaves = [x.clone().requires_grad_() for x in inputs]
        return lambda: torch.autograd.grad(function(*leaves), leaves, grad)

    return {
        "chunks, forward": lambda: by("chunk")(q, k, v, beta),
        "loop, forward": lambda: by("loop")(q, k, v, beta),
        "chunks, forward and backward": both(by("chunk"), q, k, v, beta),
        "loop, forward and backward": both(by("loop"), q, k, v, beta),
        "additive, forward and backward": both(additive, q, k, v),
    }


def bench_delta(*, repeats: int = 5, shrink: int = 1) -> dict[str, Any]:
    """All measurements: plain JSON types, times in seconds, one value for each of ``GOALS``.

    ``shrink`` divides every length: a quick run, whose values are not those that the goals speak
    of. Raises ``ValueError`` for ``repeats`` or ``shrink`` below 1.
    """
    require_positive("repeats", repeats)
    require_positive("shrink", shrink)
    seconds = {
        f"B, H, T, D = {B}, {H}, {length // shrink:,}, {D}": median_seconds(
            contenders(B, H, length // shrink, D), repeats
        )
        for B, H, length, D in ((1, 1, T, D), *SIZES)
    }
    head = next(iter(seconds.values()))
    chunks = "chunks, forward and backward"
    lengths = [length // shrink for length in LENGTHS]
    runs = {f"T = {length:,}": contenders(1, 1, length, D)[chunks] for length in lengths}
    whole = median_seconds(runs, 3 * repeats)
    tokens = {name: whole[name] / length for name, length in zip(runs, lengths, strict=True)}
    first, *_, last = tokens.values()
    values = {
        "loop_to_chunks": head["loop, forward and backward"] / head[chunks],
        "late_to_early_token": last / first,
    }
    return {
        "threads": torch.get_num_threads(),
        "repeats": repeats,
        "seconds": seconds | {"one token by chunks, forward and backward": tokens},
        "goals": judged(values, GOALS),
    }


def report(found: dict[str, Any]) -> str:
    """What :func:`bench_delta` found, as a table."""
    first = f"{found['threads']} thread(s); medians of {found['repeats']}"
    return "\n".join([first, "", *table(found, GOALS)])


def command(arguments: argparse.Namespace) -> int:
    """Run ``course bench delta``; returns the exit status."""
    return printed(arguments, bench_delta, report)
