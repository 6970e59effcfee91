"""Checks for the exercises of notebook 08: the tile that fits, three products, a kernel."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course.checks import Exercise, Wrong, call, differs

Function = Callable[..., Any]


def _tensor(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


# largest_tile(D, Dv, itemsize, stages, shared) → rows: 128, 64, 32, 16, or 0


def _held(n: int, D: int, Dv: int, itemsize: int, stages: int) -> int:
    """Bytes: one tile of queries, and ``stages`` tiles of keys and of values."""
    queries = n * D * itemsize
    return queries + stages * (n * D * itemsize + n * Dv * itemsize)


def _expect_tile(function: Function, *case: int, what: str) -> str | None:
    D, Dv, itemsize, stages, shared = case
    fitting = [n for n in (16, 32, 64, 128) if _held(n, D, Dv, itemsize, stages) <= shared]
    expected = max(fitting, default=0)
    got = call(function, *case, shape=()).item()
    if got == expected:
        return None
    said = f"D = {D}, Dv = {Dv}, {itemsize} bytes, {stages} stages, {shared:,} bytes: {what}"
    if got in (16, 32, 64, 128):
        needs = f" ({got:g} rows need {_held(int(got), D, Dv, itemsize, stages):,} bytes)"
    else:
        needs = ""
    return f"{said}: expected {expected}, got {got:g}{needs}"


def _tile_by_hand(function: Function) -> str | None:
    # A row of queries, keys and values: 8 + 8 + 8 numbers of one byte.
    return _expect_tile(function, 8, 8, 1, 1, 24 * 32 + 5, what="32 rows of 3·8 bytes fit")


def _tile_exact(function: Function) -> str | None:
    exact = 24 * 64
    return _expect_tile(
        function, 8, 8, 1, 1, exact, what="64 rows need exactly that much, and fit"
    ) or _expect_tile(function, 8, 8, 1, 1, exact - 1, what="one byte too few for 64 rows")


def _tile_power(function: Function) -> str | None:
    return _expect_tile(
        function, 8, 8, 1, 1, 24 * 127, what="127 rows would fit, the next power of two below is 64"
    )


def _tile_widths(function: Function) -> str | None:
    return _expect_tile(
        function, 8, 24, 2, 1, 2 * (8 + 8 + 24) * 32, what="values have a width of their own"
    ) or _expect_tile(
        function, 24, 8, 2, 1, 2 * (24 + 24 + 8) * 64, what="queries are as wide as keys"
    )


def _tile_stages(function: Function) -> str | None:
    return _expect_tile(
        function,
        *(16, 16, 2, 3, 2 * (16 + 3 * 32) * 32),
        what="every stage holds a tile of keys and one of values; the queries are there once",
    )


def _tile_limits(function: Function) -> str | None:
    return _expect_tile(
        function, 64, 64, 2, 1, 2**20, what="never more than 128 rows"
    ) or _expect_tile(
        function, 256, 256, 4, 4, 2**14, what="not even 16 rows fit, and no product has fewer"
    )


def _tile_chips(function: Function) -> str | None:
    for shared in (64 * 1024, 99 * 1024, 163 * 1024, 227 * 1024):
        for D in (64, 128, 256):
            wrong = _expect_tile(function, D, D, 2, 2, shared, what="a real chip")
            if wrong:
                return wrong
    return None


# three_products(a, b, to_tf32) → a b, from products of rounded matrices


def _coarse(bits: int) -> Callable[[Tensor], Tensor]:
    """Rounding to ``bits`` bits after the leading one: with few of them every slip shows."""

    def rounded(x: Tensor) -> Tensor:
        fraction, exponent = torch.frexp(x)
        return torch.ldexp(torch.round(fraction * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent)

    return rounded


def _split(a: Tensor, b: Tensor, r: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """The four products of the large and the small parts."""
    A, B = r(a), r(b)
    c, d = r(a - A), r(b - B)
    return {"large·large": A @ B, "large·small": A @ d, "small·large": c @ B, "small·small": c @ d}


def _three_shape(function: Function) -> str | None:
    a, b = _tensor(3, 5, seed=1), _tensor(5, 4, seed=2)
    call(function, a, b, _coarse(10), shape=(3, 4))
    return None


def _three_values(function: Function) -> str | None:
    for seed, bits in ((3, 3), (4, 10)):
        a, b, r = _tensor(6, 7, seed=seed), _tensor(7, 5, seed=seed + 10), _coarse(bits)
        parts = _split(a, b, r)
        got = call(function, a, b, r, shape=(6, 5))
        expected = parts["large·large"] + parts["large·small"] + parts["small·large"]
        wrong = differs(got, expected, atol=1e-12)
        if wrong:
            return f"numbers rounded to {bits} bits: {wrong}{_slip(got, a, b, r)}"
    return None


def _slip(got: Tensor, a: Tensor, b: Tensor, r: Callable[[Tensor], Tensor]) -> str:
    """Which known mistake gives exactly this answer."""
    parts = _split(a, b, r)
    one, right, left, last = parts.values()
    rest_a, rest_b = a - r(a), b - r(b)
    known = {
        "this is a @ b itself: the tensor core never sees the full numbers": a @ b,
        "this is one product of rounded numbers; the rests are missing": one,
        "the rest of a is missing": one + right,
        "the rest of b is missing": one + left,
        "the product of the two rests is one too many: it costs a third more and adds nothing": (
            one + right + left + last
        ),
        "the rests must be rounded, too, before they are multiplied": (
            one + r(a) @ rest_b + rest_a @ r(b)
        ),
        "a rest is multiplied with the full matrix; round that as well": (
            one + a @ r(rest_b) + r(rest_a) @ b
        ),
        "the product of the rests takes the place of the two mixed ones": one + last,
        "the rests are subtracted: small = a − to_tf32(a), and it is added": one - right - left,
    }
    for sentence, value in known.items():
        if differs(got, value, atol=1e-12) is None:
            return f". {sentence[0].upper()}{sentence[1:]}"
    return ""


def _three_better(function: Function) -> str | None:
    a, b, r = _tensor(8, 64, seed=5), _tensor(64, 8, seed=6), _coarse(10)
    exact = a @ b
    one = (r(a) @ r(b) - exact).abs().max().item()
    three = (call(function, a, b, r, shape=(8, 8)) - exact).abs().max().item()
    if three * 100 > one:
        return (
            f"the error must fall by more than a hundred times against one product; "
            f"here from {one:.1e} to {three:.1e}"
        )
    return None


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
    except triton.runtime.errors.InterpreterError as error:
        # The interpreter wraps what the kernel's code raised; the student needs that.
        raise (error.__cause__ or error) from None


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
    return ""


def _sum_one_tile(function: Function) -> str | None:
    return _expect_sum(function, _tensor(16, 16, seed=1, dtype=torch.float32))


def _sum_loop(function: Function) -> str | None:
    return _expect_sum(function, _tensor(48, 16, seed=2, dtype=torch.float32))


def _sum_programs(function: Function) -> str | None:
    return _expect_sum(function, _tensor(32, 48, seed=3, dtype=torch.float32))


def _sum_tail(function: Function) -> str | None:
    for T in (37, 5):
        wrong = _expect_sum(function, _tensor(T, 16, seed=4, dtype=torch.float32))
        if wrong:
            return wrong
    return None


def _sum_columns(function: Function) -> str | None:
    for D in (11, 21):
        wrong = _expect_sum(function, _tensor(32, D, seed=5, dtype=torch.float32))
        if wrong:
            return wrong
    return None


def _sum_strides(function: Function) -> str | None:
    k = _tensor(21, 37, seed=6, dtype=torch.float32).T
    wrong = _expect_sum(function, k)
    return wrong and f"the keys lie transposed in memory, {wrong}. Use both strides"


def _sum_half(function: Function) -> str | None:
    k = torch.full((1_600, 16), 0.3, dtype=torch.float16)
    wrong = _expect_sum(function, k, relative=1e-3)
    return wrong and f"float16 keys, {wrong}. Add in float32: in float16 long sums stop"


EXERCISES = (
    Exercise(
        "largest_tile",
        (
            ("by hand", _tile_by_hand),
            ("exact fit", _tile_exact),
            ("power of two", _tile_power),
            ("widths", _tile_widths),
            ("stages", _tile_stages),
            ("limits", _tile_limits),
            ("real chips", _tile_chips),
        ),
    ),
    Exercise(
        "three_products",
        (
            ("shape", _three_shape),
            ("three products", _three_values),
            ("precision", _three_better),
        ),
    ),
    Exercise(
        "sum_features",
        (
            ("one tile", _sum_one_tile),
            ("all tokens", _sum_loop),
            ("all columns", _sum_programs),
            ("ragged length", _sum_tail),
            ("ragged width", _sum_columns),
            ("strides", _sum_strides),
            ("precision", _sum_half),
        ),
        seconds=30.0,
    ),
)
