"""Checks for the exercises of notebook 00: read an error, move a widget, weights by hand."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from course.checks import Exercise
from course.checks.answers import Function, Wrong, answer_of, call, differs, kind_of, two_numbers
from course.checks.properties import case, sentence, shaped
from course.verify import VerificationError, verify

# error_text(name, got, expected): the text of the error that verify raises, "" if there is none

TRUE_CLAIM = ("two halves", 0.5 + 0.5, 1.0)
TRUE_ROW = ("a right row", [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0])
FALSE_CLAIM = ("two thirds", 0.5 + 0.5, 0.75)
FALSE_ROW = ("a row", [1.0, 2.0, 5.0, 4.0], [1.0, 2.0, 3.0, 4.0])


def _text(function: Function, claim: tuple[str, Any, Any]) -> str:
    answer = answer_of(function, *claim)
    if not isinstance(answer, str):
        gives = (
            "str(error) gives it" if answer is not None else "where nothing is wrong it is empty"
        )
        raise Wrong(f"returns {kind_of(answer)}, expected text; {gives}")
    return answer


def _true_text(name: str, got: Any, expected: Any) -> str:
    try:
        verify(name, got, expected)
    except VerificationError as error:
        return str(error)
    return ""


def _true_is_silent(function: Function) -> str | None:
    for claim in (TRUE_CLAIM, TRUE_ROW):
        answer = _text(function, claim)
        if answer:
            return f"{claim[0]} is true and raises nothing, so the text is empty; got {answer!r}"
    return None


def _false_is_not(function: Function) -> str | None:
    for claim in (FALSE_CLAIM, FALSE_ROW):
        answer, (name, got, expected) = _text(function, claim), claim
        if answer == _true_text(name, expected, got):
            return "the two values are exchanged: verify takes the name, what came, what was right"
        if not answer:
            return (
                f"{name} is false, and the text is empty: does verify get the three arguments, "
                "and nothing that makes it milder?"
            )
    return None


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


def _is_whole(function: Function) -> str | None:
    for claim in (FALSE_CLAIM, FALSE_ROW):
        if _true_text(*claim) != _text(function, claim).strip():
            return "that is not the text of the error: return str(error), all of it and no more"
    return None


ERROR_TEXT = Exercise(
    "error text",
    {
        "a true claim": _true_is_silent,
        "a false claim": _false_is_not,
        "the claim's name": _names_claim,
        "both values": _says_both_values,
        "the place": _says_where,
        "the whole text": _is_whole,
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
    extra = call(function, shape=(), finite=False).item()
    if -4 <= extra <= 4:
        return None
    return sentence("the slider goes from −4 to 4", f"got {extra:g}", hint=_not_half(extra))


def _half(function: Function) -> str | None:
    extra = call(function, shape=()).item()
    weight = _weight_of_cat(extra)
    if abs(weight - 0.5) <= 0.02:
        return None
    side = "more" if weight < 0.5 else "less"
    said = f"with {extra:g} added “cat” gets {weight:.2f} of the weight: add {side}"
    return sentence(said, hint=_not_half(extra))


def _not_half(extra: float) -> str:
    return next((words for words, it in _NOT_HALF.items() if abs(extra - it) < 0.003), "")


_NOT_HALF = {
    "That is the share; wanted is the number that is added to a score, before the exponential": 0.5,
    "e^s = 6 gives it six parts of eleven: the five others together have 5": math.log(6),
    "That is e^s itself: s is its logarithm": 5.0,
    "That is the logarithm to base 10; the softmax takes e^s": math.log10(5),
    "That is the logarithm to base 2; the softmax takes e^s": math.log2(5),
    "That makes its share 1/11: the other sign": -math.log(5),
    "That makes it three times as heavy as one other word, not as all five": math.log(3),
}


HALF_FOR_THE_CAT = Exercise(
    "half for the cat", {"the slider's range": _in_range, "half": _half}, seconds=30.0
)

# weights_of(n): n weights, the newest last, in which neither end is drowned


def _half_and_half(n: int) -> Tensor:
    """Half for the newest, half for the mean of all."""
    weights = torch.full((n,), 0.5 / n, dtype=torch.float64)
    weights[-1] += 0.5
    return weights


_LENGTHS = (1, 2, 3, 6, 40, 1_000)
_ROUNDING = 1e-5


def _weights(function: Function, n: int) -> Tensor:
    return call(function, n, shape=(n,), finite=False).double()


def _are_weights(function: Function) -> str | None:
    for n in _LENGTHS:
        weights = _weights(function, n)
        if not weights.isfinite().all():
            return f"n = {n}: there is {weights[~weights.isfinite()][0].item()} among the weights"
        if bool((weights < -_ROUNDING).any()):
            place = int((weights < -_ROUNDING).nonzero()[0])
            return (
                f"n = {n}: no weight may be below 0, got {weights[place].item():.4g} at [{place}]"
            )
        if wrong := differs(weights.sum(), torch.tensor(1.0)):
            hint = "Divide by the sum"
            if n == 1 and weights.sum() < 1:
                hint = "One word alone gets everything"
            return sentence(f"n = {n}", "the weights must sum to 1", wrong, hint=hint)
    return None


def _present(function: Function) -> str | None:
    for n in _LENGTHS:
        newest = _weights(function, n)[-1].item()
        if newest < 1 / 3 - _ROUNDING:
            mine, least = two_numbers(newest, 1 / 3)
            wrong = f"the newest, the last, gets {mine}, at least 1/3 = {least} is wanted"
            return sentence(f"n = {n}", wrong, hint=_why_drowned(function))
    return None


def _why_drowned(function: Function) -> str:
    for words, mistake in _DROWNED.items():
        if all(not differs(_weights(function, n), mistake(n), atol=1e-4) for n in (2, 6, 40)):
            return words
    return "It must not depend on how many others there are"


def _line(n: int) -> Tensor:
    weights = torch.arange(1, n + 1, dtype=torch.float64)
    return weights / weights.sum()


_DROWNED = {
    "This is the plain average": lambda n: torch.full((n,), 1 / n, dtype=torch.float64),
    "Weights that grow by the same step drown it, too, only half as fast as the average": _line,
    "The newest stands last: the other way round": lambda n: _half_and_half(n).flip(0),
    "A fixed number added to its score is worth less, the more others there are: it has to grow "
    "with n": lambda n: torch.tensor([0.0] * (n - 1) + [math.log(5)], dtype=torch.float64).softmax(
        0
    ),
}


def _past(function: Function) -> str | None:
    for n in _LENGTHS:
        weights = _weights(function, n)
        place = int(weights.argmin())
        if weights[place] * 3 * n < 1 - _ROUNDING:
            mine, least = two_numbers(weights[place].item(), 1 / (3 * n))
            wrong = f"the weight at [{place}] is {mine}, at least 1/(3n) = {least} is wanted"
            hint = "All others need a share that is divided among them"
            if weights[0] > 0 and bool((weights[1:] > 1.2 * weights[:-1]).all()):
                hint = "What fades by a factor at each step keeps the present and loses the past"
            return sentence(f"n = {n}", wrong, hint=hint)
    return None


def _in_order(function: Function) -> str | None:
    for n in _LENGTHS:
        weights = _weights(function, n)
        step = weights.diff()
        if bool((step < -_ROUNDING / n).any()):
            place = int((step < -_ROUNDING / n).nonzero()[0])
            older, newer = two_numbers(weights[place].item(), weights[place + 1].item())
            return f"n = {n}: [{place + 1}] is newer than [{place}], and gets {newer} after {older}"
    return None


NEITHER_DROWNS = Exercise(
    "neither drowns",
    {
        "shape": shaped(_half_and_half, *(case(n) for n in _LENGTHS)),
        "weights": _are_weights,
        "the present": _present,
        "the past": _past,
        "newer is never less": _in_order,
    },
)

EXERCISES = (ERROR_TEXT, HALF_FOR_THE_CAT, NEITHER_DROWNS)
