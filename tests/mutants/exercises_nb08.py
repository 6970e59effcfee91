"""Wrong answers to the exercises of notebook 08. Every one must fail its check."""

import torch

try:
    import triton.language as tl
    from triton.knobs import runtime

    RUNS = runtime.interpret
except ImportError:
    RUNS = False


def _tile(D, Dv, itemsize, stages, shared, *, queries=1, keys=1, values=1, least=16, most=128):
    row = itemsize * (queries * D + stages * (keys * D + values * Dv))
    n = most
    while n > least and n * row > shared:
        n //= 2
    return n if n * row <= shared else 0


def _tile_not_a_power(D, Dv, itemsize, stages, shared):
    rows = shared // (itemsize * (D + stages * (D + Dv)))
    return min(rows, 128) if rows >= 16 else 0


def _tile_strict(D, Dv, itemsize, stages, shared):
    return _tile(D, Dv, itemsize, stages, shared - 1)


def _three(a, b, r, *, left=True, right=True, both=False, round_rest=True, full=False, sign=1):
    A, B = r(a), r(b)
    rest = r if round_rest else (lambda x: x)
    c, d = rest(a - A), rest(b - B)
    answer = A @ B
    answer = answer + sign * (c @ (b if full else B)) if left else answer
    answer = answer + sign * ((a if full else A) @ d) if right else answer
    return answer + c @ d if both else answer


def _one_full_in_numpy(a, b, r):
    A, B, c, d = (x.numpy() for x in (r(a), r(b), r(a - r(a)), r(b - r(b))))
    return (A + c) @ B + A @ d


def _three_in_place(a, b, r):
    answer = _three(a, b, r)
    a -= r(a)
    return answer


# A kernel is one text, and each mutant the same text with one place changed.

_KERNEL = """
def kernel(K, z, T, D, stride_t, stride_d):
    d = tl.program_id(0) * 16 + tl.arange(0, 16)
    total = tl.zeros([16], tl.float32)
    for start in range(0, T, 16):
        t = start + tl.arange(0, 16)
        there = (t < T)[:, None] & (d < D)[None, :]
        x = tl.load(K + t[:, None] * stride_t + d[None, :] * stride_d, mask=there, other=0.0)
        x = x.to(tl.float32)
        f = tl.where(x > 0, x + 1, tl.exp(tl.minimum(x, 0.0)))
        total += tl.sum(tl.where(there, f, 0.0), axis=0)
    tl.store(z + d, total, mask=d < D)
"""


def _kernel(*changes):
    text = _KERNEL
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    space = {"tl": tl}
    exec(text, space)
    return space["kernel"]


_AFTER = ("tl.where(there, f, 0.0)", "f")
_ROWS = (
    "there = (t < T)[:, None] & (d < D)[None, :]",
    "there = (d < D)[None, :] & (t >= 0)[:, None]",
)
_BODIES = {
    "never stored": "tl.load(K + d * stride_d, mask=d < D, other=0.0)",
    "constant": "tl.store(z + d, tl.zeros([16], tl.float32), mask=d < D)",
    "writes into the keys": "tl.store(K + d * stride_d, d * 0.0, mask=d < D)",
}


def _kernels():
    body = _KERNEL.partition(":\n")[2]
    return {
        "no mask on the rows": _kernel(_ROWS),
        "no mask on the load": _kernel((", mask=there, other=0.0", ""), _AFTER),
        "no mask on the store": _kernel((", mask=d < D)", ")")),
        "padding counted": _kernel(_AFTER),
        "padding as ones": _kernel(_AFTER, ("other=0.0", "other=1.0")),
        "strides exchanged": _kernel(
            (
                "t[:, None] * stride_t + d[None, :] * stride_d",
                "t[:, None] * stride_d + d[None, :] * stride_t",
            )
        ),
        "contiguous": _kernel((" * stride_d", "")),
        "stride is the width": _kernel((" * stride_t", " * D")),
        "first program only": _kernel(("tl.program_id(0) * 16 + ", "")),
        "programs one apart": _kernel(("tl.program_id(0) * 16", "tl.program_id(0)")),
        "dropped tail": _kernel(("range(0, T, 16)", "range(0, T // 16 * 16, 16)")),
        "only the last tile": _kernel(("total += ", "total = ")),
        "only the first tile": _kernel(("range(0, T, 16)", "range(0, 16, 16)")),
        "first tile skipped": _kernel(("range(0, T, 16)", "range(16, T, 16)")),
        "added in half": _kernel(
            ("tl.zeros([16], tl.float32)", "tl.zeros([16], K.dtype.element_ty)"),
            (", axis=0)", ", axis=0).to(K.dtype.element_ty)"),
        ),
        "relu": _kernel(
            ("tl.where(x > 0, x + 1, tl.exp(tl.minimum(x, 0.0)))", "tl.maximum(x, 0.0)")
        ),
        "no map": _kernel(("tl.where(x > 0, x + 1, tl.exp(tl.minimum(x, 0.0)))", "x")),
        "mean": _kernel(("total, mask", "total / T, mask")),
        **{
            name: _kernel((body, f"    d = tl.arange(0, 16)\n    {x}"))
            for name, x in _BODIES.items()
        },
    }


MUTANTS = {
    "largest_tile": {
        "constant": lambda *a: 64,
        "copied input": lambda D, *a: D,
        "not a power of two": _tile_not_a_power,
        "strictly less": _tile_strict,
        "queries forgotten": lambda *a: _tile(*a, queries=0),
        "values forgotten": lambda *a: _tile(*a, values=0),
        "keys forgotten": lambda *a: _tile(*a, keys=0),
        "values as wide as keys": lambda D, Dv, *a: _tile(D, D, *a),
        "keys as wide as values": lambda D, Dv, *a: _tile(Dv, Dv, *a),
        "one stage": lambda D, Dv, itemsize, stages, shared: _tile(D, Dv, itemsize, 1, shared),
        "queries in every stage": lambda D, Dv, itemsize, stages, shared: _tile(
            D, Dv, itemsize * stages, 1, shared
        ),
        "numbers, not bytes": lambda D, Dv, itemsize, stages, shared: _tile(
            D, Dv, 1, stages, shared
        ),
        "no upper limit": lambda *a: _tile(*a, most=2**20),
        "no lower limit": lambda *a: _tile(*a, least=1),
        "at least 16": lambda *a: max(16, _tile(*a)),
        "numbers of the queries as bytes": lambda D, Dv, itemsize, stages, shared: max(
            (n for n in (16, 32, 64, 128) if n * (D + itemsize * stages * (D + Dv)) <= shared),
            default=0,
        ),
        "up to 64": lambda *a: _tile(*a, most=64),
    },
    "three_products": {
        "constant": lambda a, b, r: torch.zeros(len(a), b.shape[1], dtype=a.dtype),
        "copied input": lambda a, b, r: a,
        "shape only": lambda a, b, r: torch.randn(len(a), b.shape[1], dtype=a.dtype),
        "one product": lambda a, b, r: r(a) @ r(b),
        "exact": lambda a, b, r: a @ b,
        "rest of a missing": lambda a, b, r: _three(a, b, r, left=False),
        "rest of b missing": lambda a, b, r: _three(a, b, r, right=False),
        "four products": lambda a, b, r: _three(a, b, r, both=True),
        "rests not rounded": lambda a, b, r: _three(a, b, r, round_rest=False),
        "full matrices": lambda a, b, r: _three(a, b, r, full=True),
        "rests subtracted": lambda a, b, r: _three(a, b, r, sign=-1),
        "mixed ones missing": lambda a, b, r: _three(a, b, r, left=False, right=False, both=True),
        "one factor not rounded": lambda a, b, r: (r(a) + r(a - r(a))) @ r(b) + r(a) @ r(b - r(b)),
        "one factor not rounded, in NumPy": _one_full_in_numpy,
        "rounded at the end": lambda a, b, r: r(_three(a, b, r)),
        "one factor rounded": lambda a, b, r: r(a) @ b,
        "transposed": lambda a, b, r: _three(a, b, r).T,
        "in place": _three_in_place,
    },
    "sum_features": _kernels() if RUNS else {},
}
