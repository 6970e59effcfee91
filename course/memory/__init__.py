"""The state as an associative memory: how pairs are written into it, and what is read back."""

from course.memory.recall import RecallError, draw_keys, leak_matrix, recall_error
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
    "RecallError",
    "delta_attention",
    "delta_attention_step",
    "delta_chunk",
    "delta_loop",
    "draw_keys",
    "gated_attention",
    "gated_attention_step",
    "gated_chunk",
    "gated_loop",
    "leak_matrix",
    "recall_error",
]
