"""Checks for the exercises of notebook 08: three suspects, three products, a causal kernel."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from course.checks import Exercise
from course.checks.answers import (
    Function,
    Wrong,
    answer_of,
    as_tensor,
    call,
    differs,
    is_stub,
    kind_of,
    stops_with,
)
from course.checks.properties import WATCHED, agrees, all_of, case, normal, sentence, shaped

# breaking_rows() → three rows of scores, on which the suspects A, B and C are wrong

_LANES = 8  # scores of a tile of the suspects
_LONGEST = 4_096


def _in_tiles(row: Tensor, *, start: float, padding: float, growing: bool) -> Tensor:
    """Softmax weights of a row [S] in float32, its sum taken tile by tile.

    ``start``: the first maximum; ``padding``: what fills the last tile; ``growing``: later tiles
    may raise the maximum. Right with −∞, −∞ and True.
    """
    row = row.float()
    m, total = torch.tensor(start), torch.tensor(0.0)
    for place in range(0, len(row), _LANES):
        lanes = torch.full((_LANES,), padding)
        part = row[place : place + _LANES]
        lanes[: len(part)] = part
        new = torch.maximum(m, lanes.max()) if growing or place == 0 else m
        total = total * (m - new).exp() + (lanes - new).exp().sum()
        m = new
    return (row - m).exp() / total


Softmax = Callable[[Tensor], Tensor]
_honest = partial(_in_tiles, start=-torch.inf, padding=-torch.inf, growing=True)

#: Three programs for notebook 08: each says that it is the softmax of a row, in tiles of 8.
SUSPECTS: Mapping[str, Softmax] = {
    "A": partial(_in_tiles, start=0.0, padding=-torch.inf, growing=True),
    "B": partial(_in_tiles, start=-torch.inf, padding=0.0, growing=True),
    "C": partial(_in_tiles, start=-torch.inf, padding=-torch.inf, growing=False),
}


def _gap(suspect: Softmax, row: Tensor) -> float:
    """The errors of all weights together; infinite if one is not a number."""
    gap = (suspect(row).double() - row.float().double().softmax(0)).abs().sum().item()
    return gap if gap == gap else torch.inf


def _rows(function: Function) -> dict[str, Tensor]:
    answer = answer_of(function)
    if isinstance(answer, dict):
        answer = [answer.get(name) for name in SUSPECTS]
    if isinstance(answer, Tensor | np.ndarray) and answer.ndim == 2:
        answer = list(answer)
    if not isinstance(answer, tuple | list) or len(answer) != len(SUSPECTS):
        raise Wrong(f"returns {kind_of(answer)}, expected three rows: return a, b, c")
    return {name: _row(name, row) for name, row in zip(SUSPECTS, answer, strict=True)}


def _row(name: str, row: Any) -> Tensor:
    if isinstance(row, list | tuple):
        try:
            row = torch.tensor([float(x) for x in row], dtype=torch.float64)
        except (TypeError, ValueError):
            raise Wrong(f"the row for {name}: expected numbers, one behind the other") from None
    row = as_tensor(row, name=f"the row for {name}").double()
    if row.ndim != 1 or not 1 <= len(row) <= _LONGEST:
        raise Wrong(
            f"the row for {name}: expected one axis of 1 to {_LONGEST:,} scores, "
            f"got shape {list(row.shape)}"
        )
    if not bool(torch.isfinite(row.float()).all()):
        raise Wrong(
            f"the row for {name} has a score that is not finite in float32: there softmax itself "
            "is 0/0, and that is no fault of a suspect"
        )
    return row


def _well_formed(function: Function) -> str | None:
    for name, row in _rows(function).items():
        if _gap(_honest, row) > 1e-3:
            return f"the row for {name} breaks an honest softmax in float32, too"
    return None


def _breaks(name: str, hint: Callable[[Tensor], str]) -> Callable[[Function], str | None]:
    def test(function: Function) -> str | None:
        row = _rows(function)[name]
        gap = _gap(SUSPECTS[name], row)
        if gap > 1e-3:
            return None
        others = [other for other in SUSPECTS if _gap(SUSPECTS[other], row) > 1e-3]
        said = f" ({' and '.join(others)} would be wrong on it: are the rows in order?)"
        return f"{name} is right on its row, to {gap:.0e}{said if others else ''}. {hint(row)}"

    return test


def _hint_start(row: Tensor) -> str:
    if float(row.max()) >= 0:
        return "Its largest score is not below 0. Which first value of m would that hide?"
    return (
        f"Its largest score is {float(row.max()):.4g}. If m began with 0, what would be e^(s − m), "
        "and from where on is that 0 in float32?"
    )


def _hint_padding(row: Tensor) -> str:
    if len(row) % _LANES == 0:
        return f"It has {len(row)} scores, whole tiles of {_LANES}. Which tile is never padded?"
    return "Its last tile is padded, but what stands there weighs too little: are the scores large?"


def _hint_growing(row: Tensor) -> str:
    first, later = row[:_LANES].max().item(), row[_LANES:].max().item() if len(row) > 8 else -1e9
    if later <= first:
        return "Its largest score lies in the first tile. What must a later tile be able to do?"
    return (
        f"A later score exceeds the first tile's by {later - first:.3g}. If m stayed what it was, "
        "how large may e^(s − m) be in float32?"
    )


BREAKING_ROWS = Exercise(
    "breaking_rows",
    {
        "three rows": _well_formed,
        "A": _breaks("A", _hint_start),
        "B": _breaks("B", _hint_padding),
        "C": _breaks("C", _hint_growing),
    },
)

# three_products(a, b, to_tf32) → a b, from products of rounded matrices

_Rounding = Callable[[Tensor], Tensor]


def _coarse(bits: int) -> _Rounding:
    """Rounding to ``bits`` bits after the leading one: with few of them every slip shows."""

    def rounded(x: Tensor) -> Tensor:
        x = torch.as_tensor(x)
        fraction, exponent = torch.frexp(x)
        return torch.ldexp(torch.round(fraction * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent)

    return rounded


def _split(a: Tensor, r: _Rounding) -> tuple[Tensor, Tensor]:
    """The large part and the rounded rest."""
    return r(a), r(a - r(a))


def _three(
    a: Tensor,
    b: Tensor,
    r: _Rounding,
    large: int = 1,
    right: int = 1,
    left: int = 1,
    small: int = 0,
) -> Tensor:
    """large·large, and large·rest, rest·large, rest·rest so many times."""
    (A, c), (B, d) = _split(a, r), _split(b, r)
    return large * A @ B + right * A @ d + left * c @ B + small * c @ d


_products = partial(
    agrees,
    _three,
    atol=1e-12,
    probes=[case(normal(6, 7, seed=3), normal(7, 5, seed=13), _coarse(3))],
    mistakes={
        "This is a @ b itself: the tensor core never sees the full numbers": lambda a, b, r: a @ b,
        "This is one product of rounded numbers; the rests are missing": (
            partial(_three, right=0, left=0)
        ),
        "The rest of a is missing": partial(_three, left=0),
        "The rest of b is missing": partial(_three, right=0),
        "The product of the two rests is one too many: it costs a third more and adds nothing": (
            partial(_three, small=1)
        ),
        "The rests must be rounded, too, before they are multiplied": (
            lambda a, b, r: r(a) @ r(b) + r(a) @ (b - r(b)) + (a - r(a)) @ r(b)
        ),
        "A rest is multiplied with the full matrix; round that as well": (
            lambda a, b, r: r(a) @ r(b) + a @ r(b - r(b)) + r(a - r(a)) @ b
        ),
        "The product of the rests takes the place of the two mixed ones": (
            partial(_three, right=0, left=0, small=1)
        ),
        "The rests are subtracted: small = a − to_tf32(a), and it is added": (
            partial(_three, right=-1, left=-1)
        ),
        "The sum is rounded at the end; only the factors are": lambda a, b, r: r(_three(a, b, r)),
        "b is not rounded: both factors of a product are": lambda a, b, r: r(a) @ b,
        "a is not rounded: both factors of a product are": lambda a, b, r: a @ r(b),
        "The rest of b is not rounded": (
            lambda a, b, r: r(a) @ r(b) + r(a) @ (b - r(b)) + r(a - r(a)) @ r(b)
        ),
        "The rest of a is not rounded": (
            lambda a, b, r: r(a) @ r(b) + r(a) @ r(b - r(b)) + (a - r(a)) @ r(b)
        ),
        "Large times large is missing": partial(_three, large=0),
        "This is a product of the rounded product": lambda a, b, r: r(r(a) @ r(b)),
        "Large times large comes twice or more": partial(_three, large=2),
        "The rests are rests of the rest: small = to_tf32(a − to_tf32(a)), once": (
            lambda a, b, r: (
                r(a) @ r(b) + r(a) @ r(b - r(b) - r(b - r(b))) + r(a - r(a) - r(a - r(a))) @ r(b)
            )
        ),
    },
)


class _Seen(Tensor):
    """A rounded matrix that stays under watch when it becomes an array."""

    factors: _Factors

    def numpy(self, *, force: bool = False) -> np.ndarray:
        array = np.asarray(self.as_subclass(Tensor)).view(_SeenArray)
        array.factors = getattr(self, "factors", None)  # what is computed from one has none
        return array


class _SeenArray(np.ndarray):
    factors: _Factors | None = None

    def __array_finalize__(self, made_from: Any) -> None:
        self.factors = getattr(made_from, "factors", None)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        plain = [np.asarray(x) for x in inputs]
        if self.factors and ufunc in (np.matmul, np.multiply) and all(x.ndim for x in plain):
            self.factors.note(*plain)
        made = np.asarray(getattr(ufunc, method)(*plain, **options)).view(_SeenArray)
        made.factors = self.factors
        return made


class _Factors(TorchDispatchMode):
    """Notes whether a product has a factor that is not rounded."""

    PRODUCTS = ("mm", "bmm", "mv", "dot", "addmm", "baddbmm", "mul")

    def __init__(self, rounded: _Rounding) -> None:
        super().__init__()
        self.rounded = rounded
        self.full = False
        self.watching = True

    def unwatched(self, x: Tensor) -> Tensor:
        """The rounding itself, which multiplies too."""
        self.watching = False
        try:
            rounded = self.rounded(x).as_subclass(_Seen)
            rounded.factors = self
            return rounded
        finally:
            self.watching = True

    def note(self, *factors: Any) -> None:
        self.full |= any(not torch.equal(self.rounded(x), torch.as_tensor(x)) for x in factors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.watching and func.overloadpacket.__name__ in self.PRODUCTS:
            factors = [x for x in args[-2:] if isinstance(x, Tensor) and x.is_floating_point()]
            if len(factors) == 2:
                self.note(*factors)
        return func(*args, **(kwargs or {}))


def _rounded_factors(function: Function) -> str | None:
    """``(A + c) @ B`` is A B + c B in value, with a factor that no tensor core takes."""
    factors = _Factors(_coarse(3))
    with factors:
        call(function, normal(6, 7, seed=3), normal(7, 5, seed=13), factors.unwatched)
    if factors.full:
        return "a product has a factor that is not rounded: the sum of two rounded ones, perhaps"
    return None


def _three_better(function: Function) -> str | None:
    a, b, r = normal(8, 64, seed=5), normal(64, 8, seed=6), _coarse(10)
    exact = a @ b
    one = (r(a) @ r(b) - exact).abs().max().item()
    three = (call(function, a, b, r, shape=(8, 8), finite=False) - exact).abs().max().item()
    if not three * 100 <= one:
        return (
            f"the error must fall by more than a hundred times against one product; "
            f"here from {one:.1e} to {three:.1e}"
        )
    return None


THREE_PRODUCTS = Exercise(
    "three_products",
    {
        "shape": shaped(_three, case(normal(3, 5, seed=1), normal(5, 4, seed=2), _coarse(10))),
        "three products": all_of(
            _products(
                *(
                    case(
                        *(normal(6, 7, seed=seed), normal(7, 5, seed=seed + 10)),
                        _coarse(bits),
                        name=f"numbers rounded to {bits} bits",
                    )
                    for seed, bits in ((3, 3), (4, 10))
                )
            ),
            _rounded_factors,
        ),
        "precision": _three_better,
    },
    seconds=WATCHED,
)

# causal_attention(Q, K, V, O, T, scale): a Triton kernel, one program for 16 queries of width 16

_TILE = 16
_MARGIN = 20_000  # numbers around every buffer: a wrong address must hit something of ours
_UNTOUCHED = 7_777.0


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    *,
    ahead: int = 0,
    tiles: str = "",
    ended: bool = False,
    hidden: float = -torch.inf,
    divided: bool = True,
) -> Tensor:
    """Causal attention [T, 16], or one of its usual mistakes.

    Query t sees the keys up to t + ``ahead``; with ``tiles`` of these only its "own" tile, or the
    "whole" tiles up to its own, those "before" it, the "first", or from t on, the "future".
    ``ended``: the loop ends behind the query's own tile. What is hidden has the score ``hidden``.
    """
    t, i = torch.arange(len(q))[:, None], torch.arange(len(k))[None, :]
    seen = i <= t + ahead
    if tiles == "own":
        seen &= i >= t // _TILE * _TILE
    if tiles == "whole":
        seen = i // _TILE <= t // _TILE
    if tiles == "before":
        seen = i < t // _TILE * _TILE
    if tiles == "first":
        seen &= i < _TILE
    if tiles == "future":
        seen = i >= t
    s = (q @ k.T * scale).masked_fill(~seen, hidden)
    if ended:
        s = s.masked_fill(i // _TILE > t // _TILE, -torch.inf)
    p = (s - s.amax(1, keepdim=True)).exp()
    return p @ v / (p.sum(1, keepdim=True) if divided else 1)


def _not_rescaled(q: Tensor, k: Tensor, v: Tensor, scale: float, *, both: bool) -> Tensor:
    """The unfinished output is not multiplied when the maximum grows; with ``both`` the sum too."""
    T = len(q)
    m = q.new_full((T, 1), -torch.inf)
    total, o = q.new_zeros(T, 1), q.new_zeros(T, v.shape[1])
    for start in range(0, T, _TILE):
        keys = slice(start, start + _TILE)
        seen = torch.arange(T)[keys][None, :] <= torch.arange(T)[:, None]
        s = (q @ k[keys].T * scale).masked_fill(~seen, -torch.inf)
        new = torch.maximum(m, s.amax(1, keepdim=True))
        p = (s - new).exp()
        old = torch.where(seen.any(1, keepdim=True), (m - new).exp(), 1.0)
        total = total * (1.0 if both else old) + p.sum(1, keepdim=True)
        o, m = o + p @ v[keys], new
    return o / total


_ONE_TOO_MANY = "One key too many is seen: t ≥ i, not t + 1 ≥ i"
_REVERSED = "The mask is the other way round: a query sees its own key and the later ones"
_ZEROS = "Hidden scores are 0, and e^0 = 1; they must be −∞ before the maximum"
_MISTAKES: Sequence[tuple[str, Callable[..., Tensor]]] = (
    ("No mask: every query sees every key", partial(_attend, ahead=10**6)),
    ("A query may see itself: t ≥ i, not t > i", partial(_attend, ahead=-1)),
    (_ONE_TOO_MANY, partial(_attend, ahead=1)),
    (_ONE_TOO_MANY, partial(_attend, ahead=1, ended=True)),
    (_REVERSED, partial(_attend, tiles="future")),
    (_REVERSED, partial(_attend, tiles="future", ended=True)),
    (
        "Only whole tiles are left out; inside a query's own tile the future is seen",
        partial(_attend, tiles="whole"),
    ),
    (
        "Only a query's own tile of keys is in it: the loop must begin at key 0",
        partial(_attend, tiles="own"),
    ),
    (
        "Only the first tile of keys is in it: the loop must go on to the query's own tile",
        partial(_attend, tiles="first"),
    ),
    (
        "A query's own tile of keys is missing: the loop must go on to its end",
        partial(_attend, tiles="before"),
    ),
    (_ZEROS, partial(_attend, hidden=0.0)),
    (_ZEROS, partial(_attend, hidden=0.0, ended=True)),
    (
        "The sum ℓ is there, but the output is not divided by it",
        partial(_attend, divided=False),
    ),
    ("The scores are not multiplied by scale", lambda q, k, v, scale: _attend(q, k, v, 1.0)),
    (
        "The product takes a tile of keys as it lies; tl.dot(q, tl.trans(k)) pairs rows with rows",
        lambda q, k, v, scale: _attend(q, torch.cat([x.T for x in k.split(_TILE)]), v, scale),
    ),
    (
        "When m grows, the unfinished output must be multiplied by e^(m − m_new), too",
        partial(_not_rescaled, both=False),
    ),
    (
        "When m grows, ℓ and the output must be multiplied by e^(m − m_new)",
        partial(_not_rescaled, both=True),
    ),
)


def _guarded(x: Tensor, fill: float) -> tuple[Tensor, Tensor]:
    """A copy of ``x`` in the middle of a larger buffer, and that buffer."""
    buffer = torch.full((x.numel() + 2 * _MARGIN,), fill)
    inner = buffer[_MARGIN : _MARGIN + x.numel()].view(x.shape)
    inner.copy_(x)
    return inner, buffer


def _launch(function: Function, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Run the kernel on ``[T, 16]`` → the output; around the inputs lies NaN, which must stay."""
    inputs = [_guarded(x.float(), torch.nan) for x in (q, k, v)]
    kept = [buffer.clone() for _, buffer in inputs]
    out, around = _guarded(torch.full(q.shape, torch.nan), _UNTOUCHED)
    grid = (-(-len(q) // _TILE),)
    _run_kernel(function, grid, *(x for x, _ in inputs), out, len(q), scale)
    for name, before, (_, after) in zip("QKV", kept, inputs, strict=True):
        if not torch.equal(before.nan_to_num(_UNTOUCHED), after.nan_to_num(_UNTOUCHED)):
            raise Wrong(f"writes into {name}")
    ends = torch.cat([around[:_MARGIN], around[_MARGIN + out.numel() :]])
    if bool((ends != _UNTOUCHED).any()):
        raise Wrong(f"T = {len(q)}: writes outside O. The store needs a mask: there is no row T")
    return out.double()


def _run_kernel(function: Function, grid: tuple[int, ...], *arguments: Any) -> None:
    try:
        triton: Any = importlib.import_module("triton")
    except ImportError:
        function(*arguments)  # a stub says that it is one
        raise Wrong("no Triton on this system: a kernel can be read here, but not run") from None
    if not triton.knobs.runtime.interpret:
        raise Wrong("needs the interpreter: restart the kernel and begin with the first cell")
    kernel: Any = function if hasattr(function, "fn") else triton.jit(function)
    try:
        kernel[grid](*arguments)
    except AssertionError as error:
        if "triton.language" not in str(error):
            raise
        function(*arguments)  # a stub says that it is one
        raise Wrong("begin the cell with import triton.language as tl") from None
    except triton.runtime.errors.InterpreterError as error:
        cause = error.__cause__ or error  # the interpreter wraps what the kernel's code raised
        if is_stub(cause):
            raise cause from None
        given = dict(zip(("Q", "K", "V", "O", "T", "scale"), arguments, strict=True))
        raise Wrong(stops_with(cause, getattr(kernel, "fn", function), given)) from None


def _inputs(T: int, seed: int, *, size: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (normal(T, 16, seed=seed + place) for place in range(3))
    return size * q, k, v


def _values(T: int, seed: int, *, size: float = 1.0) -> Callable[[Function], str | None]:
    def test(function: Function) -> str | None:
        tensors = _inputs(T, seed, size=size)
        got = _launch(function, *tensors, 0.25)
        wrong = differs(got, _attend(*tensors, 0.25), atol=1e-4)
        return wrong and sentence(f"T = {T}", wrong, hint=_why(function, got))

    return test


def _why(function: Function, got: Tensor) -> str:
    """Which known mistake the kernel makes, asked where no two of them agree."""
    probe = _inputs(48, seed=11, size=3.0)
    mine = _launch(function, *probe, 0.25).nan_to_num(7.0)
    for words, mistake in _MISTAKES:
        if differs(mine, mistake(*probe, 0.25).nan_to_num(7.0), atol=1e-3) is None:
            return words
    lost = got.isnan().any(1).nonzero()
    if len(lost):
        return (
            f"Row {int(lost[0])} is not a number. Three causes: the program never stored it; a "
            "load takes in rows that are not there (NaN here): mask it, with other=0.0; or e^s "
            "overflows, because no maximum is subtracted"
        )
    return ""


def _future_unread(function: Function) -> str | None:
    q, k, v = _inputs(48, seed=7)
    expected = _attend(q, k, v, 0.25)[:32]
    k[32:], v[32:] = torch.nan, torch.nan
    got = _launch(function, q, k, v, 0.25)[:32]
    wrong = differs(got, expected, atol=1e-4)
    return wrong and (
        f"keys and values from 32 on are NaN, and rows before 32 notice it: {wrong}. End the loop "
        "behind the program's own tile: a hidden weight is 0, but 0 · NaN is NaN, and half of the "
        "work is saved"
    )


CAUSAL_ATTENTION = Exercise(
    "causal_attention",
    {
        "one tile": _values(16, seed=1),
        "several tiles": _values(48, seed=2),
        "ragged length": all_of(_values(37, seed=3), _values(5, seed=4)),
        "large scores": _values(48, seed=5, size=40.0),
        "future tiles are not read": _future_unread,
    },
    seconds=30.0,
)

EXERCISES = (BREAKING_ROWS, THREE_PRODUCTS, CAUSAL_ATTENTION)
