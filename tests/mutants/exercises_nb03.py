"""Wrong answers to the exercises of notebook 03. Every one must fail its check."""

import math

import torch


def _entropy(scores, *, log=torch.log, axis=-1, reduce=torch.sum):
    w = scores.softmax(axis)
    return -reduce(torch.where(w > 0, w * log(w.clamp(min=1e-300)), torch.zeros_like(w)), axis)


def _without_softmax(scores):
    w = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return torch.special.entr(w).sum(-1).exp()


def _participation(scores):
    return 1 / scores.softmax(-1).square().sum(-1)


def _zero_times_log(scores):
    w = scores.softmax(-1)
    return (-(w * w.log()).sum(-1)).exp()


def _epsilon(scores):
    w = scores.softmax(-1)
    return (-(w * (w + 1e-3).log()).sum(-1)).exp()


def _rope(x, places, *, base=10_000.0, sign=1, halves=False, divide=None, both_plus=False):
    D = x.shape[1]
    pairs = torch.arange(0, D, 2, dtype=torch.float64)
    angles = sign * places.double()[:, None] * base ** (-pairs / (divide or D))
    cos, sin = angles.cos(), angles.sin()
    a, b = (x[:, : D // 2], x[:, D // 2 :]) if halves else (x[:, 0::2], x[:, 1::2])
    turned = a * cos - (-1 if both_plus else 1) * b * sin, a * sin + b * cos
    return torch.cat(turned, -1) if halves else torch.stack(turned, -1).flatten(-2)


def _one_frequency(x, places):
    angles = places.double()[:, None]
    a, b = x[:, 0::2], x[:, 1::2]
    return torch.stack(
        (a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1
    ).flatten(-2)


def _added_sinusoids(x, places):
    pairs = torch.arange(0, x.shape[1], 2, dtype=torch.float64)
    angles = places.double()[:, None] * 10_000.0 ** (-pairs / x.shape[1])
    return x + torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)


def _in_place(x, places):
    x.copy_(_rope(x, places))
    return x


def _alibi(H, T, *, sign=-1, slope=lambda h, H: 2.0 ** (-8 * h / H), first=1, diagonal=1, power=1):
    slopes = torch.tensor([slope(h, H) for h in range(first, H + first)], dtype=torch.float64)
    distance = (torch.arange(T)[:, None] - torch.arange(T)[None, :]).double()
    future = torch.ones(T, T, dtype=torch.bool).triu(diagonal)
    bias = sign * slopes[:, None, None] * distance.abs() ** power
    return bias.masked_fill(future, -torch.inf)


def _alibi_shifted(H, T):
    bias = _alibi(H, T)
    slopes = torch.tensor([2.0 ** (-8 * h / H) for h in range(1, H + 1)], dtype=torch.float64)
    return bias - slopes[:, None, None]


MUTANTS = {
    "effective_tokens": {
        "constant": lambda scores: torch.ones(len(scores)),
        "copied input": lambda scores: scores.clone(),
        "shape only": lambda scores: torch.zeros(len(scores)),
        "number of keys": lambda scores: torch.full((len(scores),), float(scores.shape[1])),
        "entropy without exp": lambda scores: _entropy(scores),
        "base two inside, e outside": lambda scores: _entropy(scores, log=torch.log2).exp(),
        "wrong axis": lambda scores: _entropy(scores, axis=0).exp(),
        "mean for sum": lambda scores: _entropy(scores, reduce=torch.mean).exp(),
        "negative entropy": lambda scores: (-_entropy(scores)).exp(),
        "one over the sum of squares": _participation,
        "zero times log zero": _zero_times_log,
        "epsilon in the logarithm": _epsilon,
        "own softmax overflows": _without_softmax,
        "tokens above one hundredth": lambda s: (s.softmax(-1) > 0.01).double().sum(-1),
    },
    "rope": {
        "constant": lambda x, places: torch.ones_like(x),
        "copied input": lambda x, places: x.clone(),
        "shape only": lambda x, places: torch.zeros_like(x),
        "turns the other way": lambda x, places: _rope(x, places, sign=-1),
        "halves instead of neighbours": lambda x, places: _rope(x, places, halves=True),
        "both signs plus": lambda x, places: _rope(x, places, both_plus=True),
        "base 1000": lambda x, places: _rope(x, places, base=1_000.0),
        "divides by half the width": lambda x, p: _rope(x, p, divide=x.shape[1] // 2),
        "one frequency for all pairs": _one_frequency,
        "off by one place": lambda x, places: _rope(x, places + 1),
        "row number for place": lambda x, places: _rope(x, torch.arange(len(x))),
        "degrees": lambda x, places: _rope(x, places * math.pi / 180),
        "sinusoids added": _added_sinusoids,
        "changes the input": _in_place,
    },
    "alibi": {
        "constant": lambda H, T: torch.zeros(H, T, T),
        "shape only": lambda H, T: torch.full((H, T, T), -1.0),
        "rewards distance": lambda H, T: _alibi(H, T, sign=1),
        "no mask": lambda H, T: _alibi(H, T, diagonal=T),
        "hides itself": lambda H, T: _alibi(H, T, diagonal=0),
        "sees the next": lambda H, T: _alibi(H, T, diagonal=2),
        "slopes from h = 0": lambda H, T: _alibi(H, T, first=0),
        "slopes of eight heads for all": lambda H, T: _alibi(H, T, slope=lambda h, H: 2.0**-h),
        "equal slopes": lambda H, T: _alibi(H, T, slope=lambda h, H: 1 / 256),
        "linear slopes": lambda H, T: _alibi(H, T, slope=lambda h, H: h / H),
        "square of the distance": lambda H, T: _alibi(H, T, power=2),
        "distance counted from one": _alibi_shifted,
        "mask transposed": lambda H, T: _alibi(H, T).mT,
    },
}
