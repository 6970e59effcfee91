"""Wrong answers to the exercises of notebook 00. Every one must fail its check."""

import math

import torch

from course.verify import VerificationError, verify


def _caught(name, got, expected):
    try:
        verify(name, got, expected)
    except VerificationError as error:
        return error
    return None


def _first_line(name, got, expected):
    error = _caught(name, got, expected)
    return str(error).splitlines()[0] if error else ""


def _only_last_line(name, got, expected):
    error = _caught(name, got, expected)
    return str(error).splitlines()[-1] if error else ""


def _own_words(name, got, expected):
    return "" if got == expected else f"{name}: got {got}, expected {expected}"


def _even_for_true(name, got, expected):
    return str(_caught(name, got, expected))


def _repr(name, got, expected):
    error = _caught(name, got, expected)
    return repr(error) if error else ""


def _mild(name, got, expected):
    try:
        verify(name, got, expected, atol=10.0)
    except VerificationError as error:
        return str(error)
    return ""


def _half_and_half(n):
    return torch.full((n,), 0.5 / n) + 0.5 * torch.eye(n)[-1]


def _divides_by_zero(n):
    """Half for the newest, the other half for all others: there are none for n = 1."""
    weights = torch.full((n,), 0.5) / torch.tensor(float(n - 1))
    weights[-1] = 0.5
    return weights


def _others_turned(n):
    """As it should be, but the older of the others get more."""
    if n < 3:
        return _half_and_half(n)
    turned = 0.5 / n * torch.linspace(1.2, 0.8, n - 1)
    return torch.cat([turned, 1 - turned.sum(0, keepdim=True)])


MUTANTS = {
    "error text": {
        "a constant": lambda name, got, expected: "two thirds a row 1.0 0.75 index [2]",
        "always empty": lambda name, got, expected: "",
        "the name only": lambda name, got, expected: "" if got == expected else name,
        "the first line only": _first_line,
        "the last line only": _only_last_line,
        "own words, no place": _own_words,
        "None as text": _even_for_true,
        "the error itself": _caught,
        "does not catch": verify,
        "repr": _repr,
        "a tolerance": _mild,
        "own words, exchanged": lambda name, got, expected: (
            "" if got == expected else f"{name}: index [2], expected {got}, got {expected}"
        ),
        "got and expected exchanged": lambda *a: str(_caught(a[0], a[2], a[1]) or ""),
    },
    "half for the cat": {
        "nothing added": lambda: 0.0,
        "wrong sign": lambda: -1.6,
        "log of six": lambda: 1.79,
        "the share, not the score": lambda: 0.5,
        "the end of the slider": lambda: 4.0,
        "outside the slider": lambda: 10.0,
        "a word": lambda: "cat",
        "base 2": lambda: math.log2(5),
        "base 10": lambda: math.log10(5),
        "NaN": lambda: float("nan"),
    },
    "neither drowns": {
        "average": lambda n: torch.full((n,), 1 / n),
        "one number": lambda n: torch.tensor(1 / n),
        "all on the newest": lambda n: torch.eye(n)[-1],
        "growing by one": lambda n: torch.arange(1.0, n + 1) / (n * (n + 1) / 2),
        "halved at each step": lambda n: (torch.arange(n) * math.log(2)).softmax(0),
        "fading slowly": lambda n: (torch.arange(n) * math.log(1.5)).softmax(0),
        "a fixed score": lambda n: torch.tensor([0.0] * (n - 1) + [math.log(5)]).softmax(0),
        "the oldest in front": lambda n: _half_and_half(n).flip(0),
        "a third of a word too few": lambda n: _half_and_half(n + 1)[1:],
        "not divided": lambda n: torch.tensor([1.0] * (n - 1) + [n]),
        "word + average": lambda n: torch.full((n,), 1 / n) + torch.eye(n)[-1],
        "half, and half for the others": _divides_by_zero,
        "the others less and less": _others_turned,
        "logarithms": lambda n: _half_and_half(n).log(),
        "negative": lambda n: torch.tensor([-1 / n] * (n - 1) + [2 - 1 / n]),
        "one weight too few": lambda n: _half_and_half(n)[1:],
        "a matrix": lambda n: torch.diag(_half_and_half(n)),
        "in percent": lambda n: 100 * _half_and_half(n),
        "just less than a third": lambda n: torch.tensor(
            [0.66672 / max(1, n - 1)] * (n - 1) + [0.33328 if n > 1 else 1.0]
        ),
    },
}
