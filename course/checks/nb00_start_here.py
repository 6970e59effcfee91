"""Checks for the exercises of notebook 00: read an error, move a widget, softmax of zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from course.checks import Exercise, Wrong, call, differs

Function = Callable[..., Any]

# name, got, expected: true and false claims for the student's function to report on.
TRUE_CLAIM = ("two halves", 0.5 + 0.5, 1.0)
FALSE_CLAIM = ("two thirds", 0.5 + 0.5, 0.75)
FALSE_ROW = ("a row", [1.0, 2.0, 5.0, 4.0], [1.0, 2.0, 3.0, 4.0])


# error_text(name, got, expected): the text of the error that verify raises, "" if there is none


def _text(function: Function, claim: tuple[str, Any, Any]) -> str:
    answer = function(*claim)
    if not isinstance(answer, str):
        raise Wrong(f"returns a {type(answer).__name__}, expected text; str(error) gives it")
    return answer


def _true_is_silent(function: Function) -> str | None:
    answer = _text(function, TRUE_CLAIM)
    return None if answer == "" else f"1 = 1 raises nothing, so the text is empty; got {answer!r}"


def _names_claim(function: Function) -> str | None:
    for claim in (FALSE_CLAIM, FALSE_ROW):
        if claim[0] not in _text(function, claim):
            return f"the text does not contain the claim's name {claim[0]!r}"
    return None


def _says_both_values(function: Function) -> str | None:
    text = _text(function, FALSE_CLAIM)
    if "1.0" not in text or "0.75" not in text:
        return "the text must hold both values, 1.0 and 0.75: return the whole str(error)"
    return None


def _says_where(function: Function) -> str | None:
    if "index [2]" not in _text(function, FALSE_ROW):
        return "for a row of four numbers the text must say where they differ first, index [2]"
    return None


# added_to_cat(): six equal scores; what to add to that of "cat" so that it gets half of the weight


def _weight_of_cat(extra: float) -> float:
    from course.widgets.row import WORDS, RowExplorer  # a grader checks without any widget

    start: dict[str, Any] = {name: c.value for name, c in RowExplorer.controls.items()}
    moved = start | {"pattern": "all equal", "position": 5, "word": "cat", "extra": extra}
    return float(RowExplorer.compute(**moved)["weights"][WORDS.index("cat")])


def _in_range(function: Function) -> str | None:
    extra = call(function, shape=()).item()
    if not -4 <= extra <= 4:
        return f"the slider goes from −4 to 4, got {extra:g}"
    return None


def _half(function: Function) -> str | None:
    extra = call(function, shape=()).item()
    weight = _weight_of_cat(extra)
    if abs(weight - 0.5) > 0.02:
        side = "more" if weight < 0.5 else "less"
        return f"with {extra:g} added “cat” gets {weight:.2f} of the weight: add {side}"
    return None


# softmax_of_zeros(n): the n weights that softmax makes of n equal scores


def _weights_shape(function: Function) -> str | None:
    for n in (1, 3, 8):
        call(function, n, shape=(n,))
    return None


def _weights_sum(function: Function) -> str | None:
    for n in (1, 3, 8):
        wrong = differs(call(function, n, shape=(n,)).sum(), torch.tensor(1.0))
        if wrong:
            return f"the {n} weights must add up to 1: {wrong}"
    return None


def _weights_equal(function: Function) -> str | None:
    for n in (2, 5, 64):
        wrong = differs(call(function, n, shape=(n,)), torch.full((n,), 1 / n))
        if wrong:
            return f"equal scores must get equal weights, here 1/{n}: {wrong}"
    return None


EXERCISES = (
    Exercise(
        "error text",
        (
            ("a true claim", _true_is_silent),
            ("the claim's name", _names_claim),
            ("both values", _says_both_values),
            ("the place", _says_where),
        ),
    ),
    Exercise(
        "half for the cat",
        (("the slider's range", _in_range), ("half", _half)),
        seconds=30.0,  # the first answer imports the explorers, slow on a busy machine
    ),
    Exercise(
        "softmax of zeros",
        (("shape", _weights_shape), ("sum", _weights_sum), ("equal", _weights_equal)),
    ),
)
