"""The state as an associative memory: how pairs are written into it, and what is read back."""

from course.memory.rules import (
    delta_attention,
    delta_attention_step,
    delta_chunk,
    delta_loop,
    gated_attention,
    gated_attention_step,
    gated_chunk,
    gated_loop,
)

__all__ = [
    "delta_attention",
    "delta_attention_step",
    "delta_chunk",
    "delta_loop",
    "gated_attention",
    "gated_attention_step",
    "gated_chunk",
    "gated_loop",
]
