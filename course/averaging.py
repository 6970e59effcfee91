"""The plainest summary of the past: the mean of everything up to here, in three equal forms."""

from __future__ import annotations

import torch
from torch import Tensor

from course.inputs import require_choice, require_floating, require_positive, without_autocast

FORMS = ("loop", "matrix", "softmax")


def prefix_mean(x: Tensor, *, form: str = "matrix") -> Tensor:
    """Row t of the answer is the mean of rows 0 … t of ``x``.

    ``x`` is [..., T, E], floating point; the answer has its shape and dtype. Sums are kept in
    float32 (float64 for float64 input). ``form`` chooses how, never what:

    * ``"loop"``: one running sum, a word at a time: T·E additions;
    * ``"matrix"``: one product with :func:`mean_matrix`: T²·E;
    * ``"softmax"``: the same matrix as softmax of zeros, −∞ above the diagonal.

    In the two matrix forms a zero weight still multiplies its row, so a NaN or ∞ in a later row
    reaches earlier ones (0·NaN is NaN); in the loop it does not.

    ``ValueError`` for fewer than two axes, whole numbers, or an unknown form.
    """
    require_choice("form", form, FORMS)
    if not isinstance(x, Tensor):
        raise ValueError(f"x: expected a tensor [..., T, E], got {type(x).__name__}")
    if x.ndim < 2:
        raise ValueError(f"x: expected a tensor [..., T, E], got shape {list(x.shape)}")
    require_floating("x", x)
    T = x.shape[-2]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    with without_autocast(x.device):
        if form == "loop":
            return _by_loop(wide).to(x.dtype)
        if form == "matrix":
            weights = mean_matrix(T, dtype=wide.dtype, device=x.device)
        else:
            future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
            scores = torch.zeros(T, T, dtype=wide.dtype, device=x.device)
            weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        return (weights @ wide).to(x.dtype)


def mean_matrix(
    T: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Tensor:
    """The [T, T] lower-triangular matrix whose row t holds 1/(t+1) at 0 … t: each row sums to 1."""
    require_positive("T", T, minimum=0)
    # Counted in float32 at least: bfloat16 has no 257.
    wide = torch.promote_types(dtype, torch.float32)
    count = torch.arange(1, T + 1, dtype=wide, device=device)
    return (torch.ones(T, T, dtype=wide, device=device).tril() / count[:, None]).to(dtype)


def _by_loop(x: Tensor) -> Tensor:
    total = torch.zeros_like(x[..., :1, :].sum(-2))
    means = []
    for t in range(x.shape[-2]):
        total = total + x[..., t, :]
        means.append(total / (t + 1))
    return torch.stack(means, -2) if means else torch.zeros_like(x)
