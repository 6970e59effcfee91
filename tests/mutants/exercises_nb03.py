"""Wrong answers to the exercises of notebook 03. Every one must fail its check."""

import math

import torch


def _effective(w):
    return torch.special.entr(w).sum().exp()


def _sharpen(scores, tokens, count=_effective, sign=1, low=-30.0, high=30.0, steps=80):
    """The right answer, less what the arguments spoil."""
    for _ in range(steps):
        middle = (low + high) / 2
        wide = count((math.exp(middle) * sign * scores).softmax(0)) > tokens
        low, high = (middle, high) if wide else (low, middle)
    return sign * math.exp(low) * scores


def _by_the_law(scores, tokens):
    return math.sqrt(2 * math.log(len(scores) / tokens)) / scores.std() * scores


def _best_ones(scores, tokens):
    """Equal weights for the best, none for the others."""
    answer = torch.full_like(scores, -1e9)
    answer[scores.topk(max(1, round(tokens))).indices] = 0.0
    return answer


def _powers(scores, tokens):
    return _sharpen(scores, tokens).sign() * _sharpen(scores, tokens).square()


def _shift_error(shifts=(1, 30, 1001), D=8, q_like_k=False, how="score", first=0, sparse=False):
    """The right answer, less what the arguments spoil."""

    def shift_error(rope):
        g = torch.Generator().manual_seed(1)
        q, k = torch.randn(2, 1, D, generator=g, dtype=torch.float64)
        if sparse:
            q[:, 2:] = k[:, 2:] = 0.0
        if q_like_k:
            k = q

        def score(t, i):
            a, b = (rope(x, torch.tensor([p])) for x, p in ((q, t), (k, i)))
            return (a * b).sum() if how == "score" else torch.cosine_similarity(a, b).sum()

        pairs = [(first + 5, first + 2), (first + 9, first), (first + 4, first + 4)]
        if first:
            pairs = [(first, first)]
        return max(abs(float(score(t + s, i + s) - score(t, i))) for t, i in pairs for s in shifts)

    return shift_error


def _moves_the_query(rope):
    g = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 8, generator=g, dtype=torch.float64)
    turned = rope(k, torch.tensor([2]))
    return max(
        abs(float((rope(q, torch.tensor([t])) * turned).sum() - (q * turned).sum()))
        for t in (1, 300)
    )


def _lengths(rope):
    x = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    places = torch.tensor([0, 3, 30, 300, 1001])
    return (rope(x, places).norm(dim=1) - x.norm(dim=1)).abs().max()


def _against_my_own(rope):
    x = torch.randn(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    places = torch.tensor([0, 3, 30, 1001])
    angles = places.double()[:, None] * 10_000.0 ** (-torch.arange(0, 8, 2) / 8)
    a, b = x[:, 0::2], x[:, 1::2]
    mine = (a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos())
    return (rope(x, places) - torch.stack(mine, -1).flatten(1)).abs().max()


def _vectors(rope):
    x = torch.randn(1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return (rope(x, torch.tensor([12])) - rope(x, torch.tensor([2]))).abs().max()


def _turn(E, steps, one=False, halves=False, fastest=False):
    angles = steps * 10_000.0 ** (-torch.arange(0, E, 2, dtype=torch.float64) / E)
    if one:
        angles = torch.full_like(angles, float(steps))
    c, s = torch.diag(angles.cos()), torch.diag(angles.sin())
    if halves:
        return torch.cat([torch.cat([c, s], 1), torch.cat([-s, c], 1)])
    R = torch.zeros(E, E, dtype=torch.float64)
    R[0::2, 0::2], R[0::2, 1::2], R[1::2, 0::2], R[1::2, 1::2] = c, s, -s, c
    if fastest:
        R[2:] = 0.0
    return R


def _head(steps=3, scale=100.0, both=False, **options):
    """The right answer, less what the arguments spoil."""

    def three_back(E):
        R = _turn(E, steps, **options)
        return scale * (R if both else torch.eye(E, dtype=torch.float64)), R

    return three_back


MUTANTS = {
    "sharpen": {
        "copied input": lambda scores, tokens: scores.clone(),
        "constant": lambda scores, tokens: torch.zeros_like(scores),
        "shape only": lambda scores, tokens: torch.randn_like(scores),
        "one over the sum of squares": lambda s, n: _sharpen(s, n, lambda w: 1 / w.square().sum()),
        "largest weight one over n": lambda s, n: _sharpen(s, n, lambda w: 1 / w.max()),
        "entropy without exp": lambda s, n: _sharpen(s, n, lambda w: _effective(w).log()),
        "two to the entropy": lambda s, n: _sharpen(s, n, lambda w: _effective(w) ** math.log(2)),
        "base two inside, e outside": lambda s, n: _sharpen(
            s, n, lambda w: _effective(w) ** (1 / math.log(2))
        ),
        "order turned round": lambda s, n: _sharpen(s, n, sign=-1),
        "by the law": _by_the_law,
        "divided by the factor": lambda s, n: s.square() / _sharpen(s, n),
        "only factors near 1": lambda s, n: _sharpen(s, n, low=-1.0, high=1.0),
        "five halvings": lambda s, n: _sharpen(s, n, steps=8),
        "equal weights for the best": _best_ones,
        "another power": _powers,
        "weights": lambda s, n: _sharpen(s, n).softmax(0),
        "always three": lambda s, n: _sharpen(s, 3.0),
        "in place": lambda s, n: s.mul_(_sharpen(s, n)[0] / s[0]),
    },
    "shift_error": {
        "constant 0": lambda rope: 0.0,
        "constant 1": lambda rope: 1.0,
        "near places only": _shift_error(shifts=(1, 2, 30)),
        "only the query moves": _moves_the_query,
        "lengths": _lengths,
        "cosines": _shift_error(how="cosine"),
        "against a RoPE of its own": _against_my_own,
        "vectors": _vectors,
        "one pair": _shift_error(D=2),
        "vectors with zeros": _shift_error(sparse=True),
        "does not move": _shift_error(shifts=(0,)),
        "NaN": lambda rope: float("nan"),
        "not the largest": lambda rope: -_shift_error()(rope),
        "far places are never left": _shift_error(shifts=(4,), first=1024),
    },
    "three_back": {
        "copies itself": lambda E: (100.0 * torch.eye(E), torch.eye(E)),
        "the wrong way": _head(steps=-3),
        "two back": _head(steps=2),
        "four back": _head(steps=4),
        "both turned": _head(both=True),
        "too soft": _head(scale=1.0),
        "nearly sharp enough": _head(scale=30.0),
        "all at one speed": _head(one=True),
        "halves": _head(halves=True),
        "fastest hand only": _head(fastest=True, scale=1000.0),
        "mean": lambda E: (torch.zeros(E, E), torch.zeros(E, E)),
        "infinite": lambda E: (torch.full((E, E), torch.inf), torch.eye(E)),
        "one answer": lambda E: _turn(E, 3),
        "the smallest score": lambda E: (-100.0 * torch.eye(E, dtype=torch.float64), _turn(E, 3)),
        "exchanged": lambda E: _head()(E)[::-1],
    },
}
