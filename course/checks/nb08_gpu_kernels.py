"""Checks for the exercises of notebook 08: the tile that fits, three products, a kernel."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from course.checks import Exercise
from course.checks.answers import Function, Wrong, call, differs, is_stub, stops_with
from course.checks.properties import WATCHED, Case, agrees, all_of, case, counts, normal, shaped

# largest_tile(D, Dv, itemsize, stages, shared) → rows: 128, 64, 32, 16, or 0

_ROWS = (16, 32, 64, 128)


def _largest(row: int, shared: int) -> int:
    return max((n for n in _ROWS if n * row <= shared), default=0)


def _tile(D: int, Dv: int, itemsize: int, stages: int, shared: int) -> int:
    """A row of everything: one of queries, and in every stage one of keys and one of values."""
    return _largest(itemsize * (D + stages * (D + Dv)), shared)


def _halved(D: int, Dv: int, itemsize: int, stages: int, shared: int, *, most: int = 128) -> int:
    row, n = itemsize * (D + stages * (D + Dv)), most
    while n * row > shared and n > 1:
        n //= 2
    return n


def _up_to_128(D: int, Dv: int, itemsize: int, stages: int, shared: int) -> int:
    rows = shared // (itemsize * (D + stages * (D + Dv)))
    return min(rows, 128) if rows >= 16 else 0


_CHIPS = tuple(
    case(D, D, 2, 2, kib * 1024, name=f"D = Dv = {D}, 2 bytes, 2 stages, {kib} KiB")
    for kib in (64, 99, 163, 227)
    for D in (64, 128, 256)
)


def _row(D: int, Dv: int, itemsize: int, stages: int, shared: int, *, what: str) -> Case:
    name = (
        f"D = {D}, Dv = {Dv}, itemsize = {itemsize}, stages = {stages}, shared = {shared:,} bytes"
    )
    return case(D, Dv, itemsize, stages, shared, name=f"{name}: {what}")


_EXACT = _row(8, 8, 1, 1, 24 * 64, what="64 rows need exactly that much, and fit")
_NONE = _row(256, 256, 4, 4, 2**14, what="not even 16 rows fit, and no product has fewer")
_POWER = _row(8, 8, 1, 1, 24 * 127, what="127 rows would fit, the next power of two below is 64")
_WIDE = _row(8, 24, 2, 1, 2 * (8 + 8 + 24) * 32, what="values have a width of their own")
_STAGES = _row(
    *(16, 16, 2, 3, 2 * (16 + 3 * 32) * 32),
    what="every stage holds a tile of keys and one of values; the queries are there once",
)
_BYTES = _row(64, 8, 4, 1, 352 * 64, what="all numbers have 4 bytes, those of the queries too")
_LARGE = _row(64, 64, 2, 1, 2**20, what="never more than 128 rows")

_tiles = partial(
    counts,
    _tile,
    probes=[_EXACT, _NONE, _POWER, _WIDE, _STAGES, _BYTES, _LARGE, *_CHIPS],
    mistakes={
        "What fills the memory exactly still fits": (
            lambda D, Dv, b, stages, shared: _tile(D, Dv, b, stages, shared - 1)
        ),
        "The tile of queries is missing": (
            lambda D, Dv, b, stages, shared: _largest(b * stages * (D + Dv), shared)
        ),
        "The tiles of values are missing": (
            lambda D, Dv, b, stages, shared: _tile(D, 0, b, stages, shared)
        ),
        "The tiles of keys are missing": (
            lambda D, Dv, b, stages, shared: _largest(b * (D + stages * Dv), shared)
        ),
        "Values have the width Dv": lambda D, Dv, *a: _tile(D, D, *a),
        "Keys and queries have the width D": lambda D, Dv, *a: _tile(Dv, Dv, *a),
        "Every stage holds a tile of keys and one of values": (
            lambda D, Dv, b, stages, shared: _tile(D, Dv, b, 1, shared)
        ),
        "The queries are there once, not in every stage": (
            lambda D, Dv, b, stages, shared: _largest(b * stages * (2 * D + Dv), shared)
        ),
        "The numbers of the queries have itemsize bytes, too": (
            lambda D, Dv, b, stages, shared: _largest(D + b * stages * (D + Dv), shared)
        ),
        "A number has itemsize bytes": (
            lambda D, Dv, b, stages, shared: _tile(D, Dv, 1, stages, shared)
        ),
        "A tile has 128 rows at most": partial(_halved, most=2**20),
        "A tile has 16 rows at least; if they do not fit, the answer is 0": _halved,
        "If not even 16 rows fit, the answer is 0": lambda *a: max(16, _tile(*a)),
        "A tile may have 128 rows": lambda *a: min(64, _tile(*a)),
        "This is every number of rows that fits; n is one of 16, 32, 64, 128": (
            lambda D, Dv, b, stages, shared: shared // (b * (D + stages * (D + Dv)))
        ),
        "n is one of 16, 32, 64, 128: the largest of these that fits": _up_to_128,
        "This is the smallest tile that fits": lambda *a: min(16, _tile(*a)),
        "One stage too many is counted: stages tiles, and none beside them": (
            lambda D, Dv, b, stages, shared: _tile(D, Dv, b, stages + 1, shared)
        ),
        "The scores [n, n] are not held in shared memory here": (
            lambda D, Dv, b, stages, shared: max(
                (n for n in _ROWS if b * n * (D + stages * (D + Dv) + n) <= shared), default=0
            )
        ),
        "The output [n, Dv] is not held in shared memory here": (
            lambda D, Dv, b, stages, shared: _largest(b * (D + Dv + stages * (D + Dv)), shared)
        ),
    },
)

LARGEST_TILE = Exercise(
    "largest_tile",
    {
        "by hand": _tiles(_row(8, 8, 1, 1, 24 * 32 + 5, what="32 rows of 3·8 bytes fit")),
        "exact fit": _tiles(
            _EXACT, _row(8, 8, 1, 1, 24 * 64 - 1, what="one byte too few for 64 rows")
        ),
        "power of two": _tiles(_POWER),
        "widths": _tiles(
            _WIDE, _row(24, 8, 2, 1, 2 * (24 + 24 + 8) * 64, what="queries are as wide as keys")
        ),
        "stages": _tiles(_STAGES),
        "bytes": _tiles(_BYTES),
        "limits": _tiles(_LARGE, _NONE),
        "real chips": _tiles(*_CHIPS),
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

# sum_features(K, z, T, D, stride_t, stride_d): a Triton kernel, one program for 16 columns

_TILE = 16
_MARGIN = 20_000  # numbers around every buffer: a wrong address must hit something of ours
_UNTOUCHED = 7_777.0


def _phi(x: Tensor) -> Tensor:
    x = x.double()
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def _launch(function: Function, k: Tensor) -> tuple[Tensor, Tensor]:
    """Run the kernel on ``k [T, D]`` → (z [D], what lies behind it); everything else is poison.

    k is copied, with the order of its axes, into a buffer full of NaN; z starts as NaN and is
    followed by numbers that must stay.
    """
    _, order = zip(*sorted(zip(k.stride(), range(2), strict=True), reverse=True), strict=True)
    buffer = torch.full((k.numel() + 2 * _MARGIN,), torch.nan, dtype=k.dtype)
    inner = buffer[_MARGIN : _MARGIN + k.numel()].view([k.shape[i] for i in order])
    K = inner if order == (0, 1) else inner.T
    K.copy_(k)
    out = torch.full((k.shape[1] + 2 * _MARGIN,), _UNTOUCHED)
    z = out[_MARGIN : _MARGIN + k.shape[1]]
    z.fill_(torch.nan)
    kept = buffer.clone()
    _run_kernel(function, (-(-k.shape[1] // _TILE),), K, z, *k.shape, *K.stride())
    if not torch.equal(kept.nan_to_num(_UNTOUCHED), buffer.nan_to_num(_UNTOUCHED)):
        raise Wrong("writes into the keys")
    around = torch.cat([out[:_MARGIN], out[_MARGIN + k.shape[1] :]])
    return z, around


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
        given = {"K": arguments[0], "z": arguments[1], "T": arguments[2], "D": arguments[3]}
        raise Wrong(stops_with(cause, getattr(kernel, "fn", function), given)) from None


def _expect_sum(function: Function, k: Tensor, *, relative: float = 1e-5) -> str | None:
    T, D = k.shape
    z, around = _launch(function, k)
    where = f"T = {T}, D = {D}"
    if bool((around != _UNTOUCHED).any()):
        return f"{where}: writes outside z. The store needs a mask: columns from D on are not there"
    never = z.isnan()
    expected = _phi(k).sum(0)
    if bool(never.any()):
        if bool(never.all()):
            return (
                f"{where}: z is NaN. Either it is never written, or the load takes in what lies "
                "around the keys (here it is NaN): mask it, with other=0.0"
            )
        first = int(never.nonzero()[0])
        if first >= _TILE and bool(never[_TILE:].all()):
            return f"{where}: z[{first}] is never written. Program i has columns 16·i to 16·i + 15"
        return f"{where}: z[{first}] is NaN: the load of that column takes in what is not there"
    gap = z.double() - expected
    if bool((gap.abs() <= relative * expected.abs().clamp(min=1)).all()):
        return None
    wrong = differs(z, expected, atol=relative * float(expected.abs().max()))
    return f"{where}: {wrong}{_why(z.double(), k, gap)}"


def _why(z: Tensor, k: Tensor, gap: Tensor) -> str:
    """Which known mistake explains the sums."""
    T = len(k)
    whole = T // _TILE * _TILE
    padding = -(-T // _TILE) * _TILE - T

    def near(value: Tensor) -> bool:
        return differs(z, value, atol=1e-3 * float(value.abs().max() + 1)) is None

    if whole < T and near(_phi(k[:whole]).sum(0)):
        return ". The last, ragged tile is dropped: let the loop go up to T"
    if padding and near(z - gap + padding):
        return f". {padding} too many: padding was loaded as 0, and φ(0) = 1. Mask after φ, too"
    if whole and near(_phi(k[whole - _TILE : whole]).sum(0)):
        return ". Only one tile is in it: add to the sum, do not replace it"
    if near(_phi(k[:_TILE]).sum(0)):
        return ". Only the first 16 tokens are in it: a loop over the tiles is missing"
    if near(k.double().sum(0)):
        return ". These are the sums of k, not of φ(k)"
    if near(k.double().clamp(min=0).sum(0)):
        return ". That is relu, not elu + 1"
    if near(torch.nn.functional.elu(k.double()).sum(0)):
        return ". That is elu; elu + 1 is wanted"
    if near(k.double().exp().sum(0)):
        return ". That is exp: above 0 it is x + 1"
    if near(_phi(k).mean(0)):
        return ". These are means, not sums"
    if near(_phi(k)[0]) or near(_phi(k)[-1]):
        return ". Only one token is in it: tl.sum over the rows, axis=0"
    if near(torch.zeros_like(z)):
        return ". Nothing is in it: does the loop begin at 0, and is its sum what is stored?"
    if near(_phi(k[_TILE:]).sum(0)):
        return ". The first tile is missing: the loop begins at 0"
    if k.shape[1] == T and near(_phi(k).sum(1)):
        return ". These are the sums of the rows: the two strides, or the two axes, are exchanged"
    if padding and float(gap.std()) < 1e-3 * float(gap.abs().max()):
        each = gap.mean().item() / padding
        return f". Each of {padding} padded tokens adds {each:.3g}: mask after φ, too"
    return ""


def _sums(T: int, D: int, seed: int) -> Function:
    """The kernel's sums over keys ``[T, D]`` in float32."""
    return lambda function: _expect_sum(function, normal(T, D, seed=seed).float())


def _sum_strides(function: Function) -> str | None:
    wrong = _expect_sum(function, normal(21, 37, seed=6).float().T)
    return wrong and f"the keys lie transposed in memory, {wrong}. Use both strides"


def _sum_half(function: Function) -> str | None:
    k = torch.full((1_600, 16), 0.3, dtype=torch.float16)
    wrong = _expect_sum(function, k, relative=1e-3)
    return wrong and f"float16 keys, {wrong}. Add in float32: in float16 long sums stop"


SUM_FEATURES = Exercise(
    "sum_features",
    {
        "one tile": _sums(16, 16, seed=1),
        "all tokens": _sums(48, 16, seed=2),
        "all columns": _sums(32, 48, seed=3),
        "ragged length": all_of(_sums(37, 16, seed=4), _sums(5, 16, seed=4)),
        "ragged width": all_of(_sums(32, 11, seed=5), _sums(32, 21, seed=5)),
        "strides": _sum_strides,
        "precision": _sum_half,
    },
    seconds=30.0,
)

EXERCISES = (LARGEST_TILE, THREE_PRODUCTS, SUM_FEATURES)
