"""Checks for the exercises of notebook 06: the log of a map, features, the register."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course.checks import Exercise, Wrong, call, differs

Function = Callable[..., Any]


def _draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# log_elu_plus_one(x) → the same shape and dtype


def _truth(x: Tensor) -> Tensor:
    x = x.double()
    return x.clamp(max=0).exp() + x.clamp(min=0)


def _log_truth(x: Tensor) -> Tensor:
    x = x.double()
    return x.clamp(max=0) + x.clamp(min=0).log1p()


def _log_values(function: Function) -> str | None:
    x = torch.cat([2 * _draw(3, 5, seed=1).flatten(), torch.zeros(1)]).reshape(4, 4)
    wrong = differs(call(function, x, shape=(4, 4)), _log_truth(x), atol=1e-12)
    return wrong and f"ordinary numbers in float64: {wrong}. Below 0 it is x, above it ln(1 + x)"


def _log_dtype(function: Function) -> str | None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        got = call(function, torch.tensor([-1.0, 2.0], dtype=dtype), shape=(2,))
        if got.dtype != dtype:
            return f"{dtype} came, {got.dtype} went back"
    return None


def _log_far(function: Function) -> str | None:
    for dtype, places, allowed in (
        (torch.float32, (-20.0, -120.0, -1_000.0, 200.0, 10_000.0), 1e-5),
        (torch.bfloat16, (-8.0, -30.0, -500.0, 200.0), 0.01),
        (torch.float16, (-8.0, -30.0, -1_000.0, 200.0), 0.002),
    ):
        wrong = _relative(function, dtype, places, allowed)
        if wrong:
            return f"{wrong}. Take no exponential: ln e^x is x"
    return None


def _log_near(function: Function) -> str | None:
    wrong = _relative(function, torch.float32, (1e-6, 1e-4, -1e-6), 1e-5)
    return wrong and f"{wrong}. 1 + x is rounded before the logarithm; torch.log1p(x) does not"


def _relative(
    function: Function, dtype: torch.dtype, places: tuple[float, ...], allowed: float
) -> str | None:
    """The first of ``places`` where the answer is off by more than ``allowed`` of the truth."""
    x = torch.tensor(places, dtype=dtype)
    got = call(function, x, shape=x.shape, finite=False).double()
    wrong = ~((got / _log_truth(x) - 1).abs() <= allowed)
    if not bool(wrong.any()):
        return None
    place = int(wrong.nonzero()[0])
    return (
        f"{str(dtype).removeprefix('torch.')}, x = {places[place]:g}: got "
        f"{got[place].item():.4g}, expected {_log_truth(x)[place].item():.4g}"
    )


def _log_gradient(function: Function) -> str | None:
    x = torch.tensor([-1_000.0, -20.0, -1.0, -0.5, 0.5, 2.0, 200.0, 5_000.0])
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        answer = function(leaf)
        if not isinstance(answer, Tensor) or not answer.requires_grad:
            return "the answer has no gradient; was it detached, or made of Python numbers?"
        (gradient,) = torch.autograd.grad(answer.sum(), leaf)
    true = 1 / (1 + x.clamp(min=0))
    wrong = ~((gradient / true - 1).abs() <= 1e-4)
    if not bool(wrong.any()):
        return None
    place = int(wrong.nonzero()[0])
    hint = (
        "a logarithm of 0 or less is computed somewhere, even if it is not used"
        if bool(gradient[place].isnan())
        else "below 0 it is 1, above 0 it is 1/(1 + x)"
    )
    return (
        f"gradient at x = {x[place].item():g}: got {gradient[place].item():.4g}, expected "
        f"{true[place].item():.4g}; {hint}"
    )


# square_features(x [..., D]) → [..., C]


def _square_shape(function: Function) -> str | None:
    for D in (1, 4):
        got = call(function, _draw(2, 3, D, seed=2))
        if got.ndim != 3 or got.shape[:2] != (2, 3):
            return f"x [2, 3, {D}] gives {list(got.shape)}, expected [2, 3, C]"
        if got.shape[2] > 1 + D + D * D:
            return f"D = {D}: {got.shape[2]} features, at most 1 + D + D² = {1 + D + D * D}"
    return None


def _square_similarity(function: Function) -> str | None:
    for D, seed in ((1, 3), (3, 4), (6, 5)):
        q, k = _draw(5, D, seed=seed), _draw(7, D, seed=seed + 10)
        got = call(function, q) @ call(function, k).mT
        s = q @ k.mT
        # A float32 √2 is good enough.
        wrong = differs(got, (1 + s) ** 2, atol=1e-5)
        if wrong:
            return f"φ(q)·φ(k) for D = {D}: {wrong}{_which_term(got, s)}"
    return None


def _which_term(got: Tensor, s: Tensor) -> str:
    """Which of the three terms explains the difference."""
    terms = torch.stack([torch.ones_like(s), s, s * s], dim=-1).reshape(-1, 3)
    factors = torch.linalg.lstsq(terms, got.reshape(-1, 1)).solution.flatten()
    if not torch.allclose(terms @ factors, got.flatten(), atol=1e-5):
        return ". It is no sum of 1, s and s²"
    a, b, c = (round(float(x), 3) + 0.0 for x in factors)
    return f". You have {a:g} + {b:g}s + {c:g}s², wanted is 1 + 2s + s²"


def _square_token(function: Function) -> str | None:
    x = _draw(6, 4, seed=6)
    alone = torch.stack([call(function, row[None])[0] for row in x])
    wrong = differs(call(function, x), alone, atol=1e-12)
    return wrong and f"the features of a token depend on the other tokens: {wrong}"


# read_register(q [T, D], k [S, D], v [S, Dv], real [S]) → [T, Dv]


def _case(T: int, S: int, D: int, Dv: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    return _draw(T, D, seed=seed), _draw(S, D, seed=seed + 1), _draw(S, Dv, seed=seed + 2)


def _by_table(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    table = _truth(q) @ _truth(k).mT
    return table @ v / table.sum(-1, keepdim=True)


def _register_values(function: Function) -> str | None:
    for sizes in ((5, 7, 3, 2), (7, 4, 2, 6), (1, 1, 4, 1)):
        q, k, v = _case(*sizes, seed=20)
        real = torch.ones(sizes[1], dtype=torch.bool)
        got = call(function, q, k, v, real, shape=(sizes[0], sizes[3]))
        wrong = differs(got, _by_table(q, k, v), atol=1e-10)
        if wrong:
            return f"T, S, D, Dv = {sizes}, all real: {wrong}"
    return None


def _register_average(function: Function) -> str | None:
    q, k, _ = _case(6, 5, 3, 1, seed=30)
    got = call(function, q, k, torch.ones(5, 2, dtype=torch.float64), torch.ones(5).bool())
    wrong = differs(got, torch.ones(6, 2), atol=1e-10)
    return wrong and f"all values 1: every average is 1, {wrong}. Divide by φ(q)·z"


_HIDDEN = torch.tensor([True, False, True, True, False, False, True])


def _register_padding(function: Function) -> str | None:
    q, k, v = _case(5, 7, 3, 2, seed=40)
    expected = _by_table(q, k[_HIDDEN], v[_HIDDEN])
    empty = torch.zeros_like
    for what, keys, values in (
        ("numbers", k, v),
        ("zeros", torch.where(_HIDDEN[:, None], k, empty(k)), torch.where(_HIDDEN[:, None], v, 0)),
    ):
        wrong = differs(call(function, q, keys, values, _HIDDEN), expected, atol=1e-10)
        if wrong:
            return f"padded places that hold {what}: {wrong}. They must leave z as well"
    return None


def _register_nan(function: Function) -> str | None:
    q, k, v = _case(5, 7, 3, 2, seed=50)
    expected = _by_table(q, k[_HIDDEN], v[_HIDDEN])
    k, v = (x.masked_fill(~_HIDDEN[:, None], torch.nan) for x in (k, v))
    try:
        got = call(function, q, k, v, _HIDDEN)
    except Wrong as error:
        return f"padded places that hold NaN: {error}. 0 · NaN is NaN: leave the rows out"
    wrong = differs(got, expected, atol=1e-10)
    return wrong and f"padded places that hold NaN: {wrong}"


def _register_nothing(function: Function) -> str | None:
    q, k, v = _case(4, 3, 2, 5, seed=60)
    try:
        got = call(function, q, k, v, torch.zeros(3, dtype=torch.bool), shape=(4, 5))
    except Wrong as error:
        return f"nothing is real: {error}. Zeros are expected"
    return differs(got, torch.zeros(4, 5), atol=0)


class _Largest(TorchDispatchMode):
    """Remembers the largest tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                self.entries = max(self.entries, leaf.numel())
        return made


def _register_table(function: Function) -> str | None:
    T, S = 300, 400
    q, k, v = _case(T, S, 4, 3, seed=70)
    with _Largest() as largest:
        call(function, q, k, v, torch.ones(S, dtype=torch.bool), shape=(T, 3))
    if largest.entries < T * S:
        return None
    return (
        f"T = {T}, S = {S}: a tensor with {largest.entries:,} entries appears. "
        "Set the brackets so that keys meet values first"
    )


EXERCISES = (
    Exercise(
        "log_elu_plus_one",
        (
            ("values", _log_values),
            ("dtype", _log_dtype),
            ("far from zero", _log_far),
            ("near zero", _log_near),
            ("gradient", _log_gradient),
        ),
    ),
    Exercise(
        "square_features",
        (
            ("shape", _square_shape),
            ("similarity", _square_similarity),
            ("one token at a time", _square_token),
        ),
    ),
    Exercise(
        "read_register",
        (
            ("values", _register_values),
            ("an average", _register_average),
            ("padding", _register_padding),
            ("NaN in padding", _register_nan),
            ("nothing real", _register_nothing),
            ("no table", _register_table),
        ),
    ),
)
