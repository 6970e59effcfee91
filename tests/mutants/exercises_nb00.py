"""Wrong answers to the exercises of notebook 00. Every one must fail its check."""

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
    },
    "softmax of zeros": {
        "zeros": torch.zeros,
        "ones": torch.ones,
        "one number": lambda n: torch.tensor(1 / n),
        "always a third": lambda n: torch.full((n,), 1 / 3),
        "all on the first": lambda n: torch.eye(n)[0],
        "softmax of 0, 1, 2 …": lambda n: torch.arange(float(n)).softmax(0),
        "one weight too few": lambda n: torch.full((n - 1,), 1 / n),
    },
}
