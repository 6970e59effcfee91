"""Wrong answers to the exercises of notebook 08. Every one must fail its check."""

import torch

try:
    import triton.language as tl
    from triton.knobs import runtime

    RUNS = runtime.interpret
except ImportError:
    RUNS = False


# Rows that break the suspects A, B and C, and rows that do not.

_LOW, _ODD, _LATE = torch.full((16,), -200.0), torch.zeros(13), torch.arange(16.0) // 8 * 100
_NORMAL = torch.randn(64, generator=torch.Generator().manual_seed(0))


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
def kernel(Q, K, V, O, T, scale):
    first = tl.program_id(0) * 16
    t, d = first + tl.arange(0, 16), tl.arange(0, 16)
    rows = t[:, None] * 16 + d[None, :]
    q = tl.load(Q + rows, mask=(t < T)[:, None], other=0.0)
    m = tl.full([16], float("-inf"), tl.float32)
    l = tl.zeros([16], tl.float32)
    o = tl.zeros([16, 16], tl.float32)
    for start in range(0, first + 16, 16):
        i = start + tl.arange(0, 16)
        keys = i[:, None] * 16 + d[None, :]
        k = tl.load(K + keys, mask=(i < T)[:, None], other=0.0)
        v = tl.load(V + keys, mask=(i < T)[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where(t[:, None] >= i[None, :], s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - m_new[:, None])
        rescale = tl.exp(m - m_new)
        l = l * rescale + tl.sum(p, 1)
        o = o * rescale[:, None] + tl.dot(p, v, input_precision="ieee")
        m = m_new
    tl.store(O + rows, o / l[:, None], mask=(t < T)[:, None])
"""


def _kernel(*changes):
    text = _KERNEL
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    space = {"tl": tl}
    exec(text, space)
    return space["kernel"]


_SEEN, _UNTIL = "t[:, None] >= i[None, :]", "range(0, first + 16, 16)"
_ALL = (_UNTIL, "range(0, T, 16)")


def _kernels():
    return {
        "not causal": _kernel(_ALL, (_SEEN, "(t >= 0)[:, None] & (i < T)[None, :]")),
        "itself hidden": _kernel((_SEEN, "t[:, None] > i[None, :]")),
        "one too many": _kernel((_SEEN, "t[:, None] + 1 >= i[None, :]")),
        "mask the other way round": _kernel(_ALL, (_SEEN, "(t[:, None] <= i[None, :]) & (i < T)")),
        "whole tiles only": _kernel((_SEEN, "(t >= 0)[:, None] & (i < T)[None, :]")),
        "own tile only": _kernel((_UNTIL, "range(first, first + 16, 16)")),
        "own tile missing": _kernel((_UNTIL, "range(0, first, 16)")),
        "first tile only": _kernel((_UNTIL, "range(0, 16, 16)")),
        "every tile read": _kernel(_ALL),
        "hidden are 0": _kernel(('s, float("-inf"))', "s, 0.0)")),
        "mask after exp": _kernel(
            ('        s = tl.where(t[:, None] >= i[None, :], s, float("-inf"))\n', ""),
            ("m_new[:, None])", "m_new[:, None]) * (t[:, None] > i[None, :])"),
        ),
        "not divided": _kernel(("o / l[:, None]", "o")),
        "no scale": _kernel((" * scale", "")),
        "output not rescaled": _kernel(("o * rescale[:, None] + ", "o + ")),
        "nothing rescaled": _kernel(("o * rescale[:, None] + ", "o + "), ("l * rescale", "l")),
        "no maximum": _kernel(("tl.maximum(m, tl.max(s, 1))", "tl.zeros([16], tl.float32)")),
        "maximum of the tile": _kernel(
            ("tl.maximum(m, tl.max(s, 1))", "tl.max(s, 1)"), ("tl.exp(m - m_new)", "1.0 + 0 * m")
        ),
        "keys not masked": _kernel(("V + keys, mask=(i < T)[:, None], other=0.0", "V + keys")),
        "store not masked": _kernel(("l[:, None], mask=(t < T)[:, None])", "l[:, None])")),
        "never stored": _kernel(
            ("    tl.store(O + rows, o / l[:, None], mask=(t < T)[:, None])", "")
        ),
        "writes into the queries": _kernel(("tl.store(O +", "tl.store(Q +")),
        "first program only": _kernel(("tl.program_id(0) * 16", "tl.program_id(0) * 0")),
        "programs one apart": _kernel(("tl.program_id(0) * 16", "tl.program_id(0)")),
        "keys transposed": _kernel(("tl.trans(k)", "k")),
    }


MUTANTS = {
    "breaking_rows": {
        "random": lambda: (_NORMAL, _NORMAL, _NORMAL),
        "zeros": lambda: (torch.zeros(16),) * 3,
        "order": lambda: (_LATE, _LOW, _ODD),
        "A not low enough": lambda: (_LOW / 4, _ODD, _LATE),
        "A far above 0": lambda: (-_LOW, _ODD, _LATE),
        "A has one score of 0": lambda: (torch.cat([_LOW, torch.zeros(1)]), _ODD, _LATE),
        "B of whole tiles": lambda: (_LOW, torch.zeros(16), _LATE),
        "B too large": lambda: (_LOW, _ODD + 30, _LATE),
        "C grows too little": lambda: (_LOW, _ODD, _LATE / 2),
        "C largest first": lambda: (_LOW, _ODD, _LATE.flip(0)),
        "infinite scores": lambda: (_LOW * torch.inf, _ODD, _LATE),
        "beyond float32": lambda: (_LOW, _ODD, _LATE.double() * 1e40),
        "not a number": lambda: (_LOW, _ODD * torch.nan, _LATE),
        "empty": lambda: (_LOW, torch.zeros(0), _LATE),
        "two axes": lambda: (_LOW[None], _ODD, _LATE),
        "two rows": lambda: (_LOW, _ODD),
        "words": lambda: ("low", "odd", "late"),
        "too long": lambda: (_LOW, torch.zeros(9_999), _LATE),
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
    "causal_attention": _kernels() if RUNS else {},
}
