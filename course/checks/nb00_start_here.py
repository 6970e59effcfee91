"""Checks for the exercises of notebook 00: read an error, move a widget, softmax of zeros."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from course.checks import Exercise
from course.checks.answers import Function, Wrong, answer_of, call, kind_of
from course.checks.properties import agrees, case, shaped

# error_text(name, got, expected): the text of the error that verify raises, "" if there is none

TRUE_CLAIM = ("two halves", 0.5 + 0.5, 1.0)
FALSE_CLAIM = ("two thirds", 0.5 + 0.5, 0.75)
FALSE_ROW = ("a row", [1.0, 2.0, 5.0, 4.0], [1.0, 2.0, 3.0, 4.0])


def _text(function: Function, claim: tuple[str, Any, Any]) -> str:
    answer = answer_of(function, *claim)
    if not isinstance(answer, str):
        raise Wrong(f"returns {kind_of(answer)}, expected text; str(error) gives it")
    return answer


def _true_is_silent(function: Function) -> str | None:
    answer = _text(function, TRUE_CLAIM)
    return f"1 = 1 raises nothing, so the text is empty; got {answer!r}" if answer else None


def _names_claim(function: Function) -> str | None:
    for claim in (FALSE_CLAIM, FALSE_ROW):
        if claim[0] not in _text(function, claim):
            return f"the text does not contain the claim's name {claim[0]!r}"
    return None


def _says_both_values(function: Function) -> str | None:
    text = _text(function, FALSE_CLAIM)
    if "1.0" not in text or "0.75" not in text:
        return "the text must hold both values, 1.0 and 0.75: return the whole str(error)"
    if text.index("0.75") < text.index("1.0"):
        return "the text says that 0.75 came and 1.0 was expected: the two are exchanged in verify"
    return None


def _says_where(function: Function) -> str | None:
    if "index [2]" not in _text(function, FALSE_ROW):
        return "for a row of four numbers the text must say where they differ first, index [2]"
    return None


ERROR_TEXT = Exercise(
    "error text",
    {
        "a true claim": _true_is_silent,
        "the claim's name": _names_claim,
        "both values": _says_both_values,
        "the place": _says_where,
    },
)

# added_to_cat(): six equal scores; what to add to that of "cat" so that it gets half of the weight


def _weight_of_cat(extra: float) -> float:
    from course.widgets.row import RowExplorer  # a grader checks without any widget

    start: dict[str, Any] = {name: c.value for name, c in RowExplorer.controls.items()}
    moved = start | {"pattern": "all equal", "position": 6, "word": "2 cat", "extra": extra}
    arrays = RowExplorer.compute(**moved)
    return float(arrays["weights"][arrays["chosen"]].item())


def _in_range(function: Function) -> str | None:
    extra = call(function, shape=()).item()
    return None if -4 <= extra <= 4 else f"the slider goes from −4 to 4, got {extra:g}"


def _half(function: Function) -> str | None:
    extra = call(function, shape=()).item()
    weight = _weight_of_cat(extra)
    if abs(weight - 0.5) <= 0.02:
        return None
    side = "more" if weight < 0.5 else "less"
    return f"with {extra:g} added “cat” gets {weight:.2f} of the weight: add {side}"


HALF_FOR_THE_CAT = Exercise(
    "half for the cat", {"the slider's range": _in_range, "half": _half}, seconds=30.0
)

# softmax_of_zeros(n): the n weights that softmax makes of n equal scores


def _equal_weights(n: int) -> torch.Tensor:
    return torch.full((n,), 1 / n)


_few = (case(1), case(3), case(8))
_weights = partial(agrees, _equal_weights)

SOFTMAX_OF_ZEROS = Exercise(
    "softmax of zeros",
    {
        "shape": shaped(_equal_weights, *_few),
        "sum": _weights(*_few, part=lambda w, n: w.sum(), rule="the weights must add up to 1"),
        "equal": _weights(case(2), case(5), case(64), rule="equal scores must get equal weights"),
    },
)

EXERCISES = (ERROR_TEXT, HALF_FOR_THE_CAT, SOFTMAX_OF_ZEROS)
