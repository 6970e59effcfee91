"""The checks of the exercises: right answers pass in every style, and the student is a guest."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import io
import itertools
import json
import os
import random
import re
import signal
import sys
import threading
import time
import tracemalloc
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from course.checks import (
    Exercise,
    call,
    check,
    differs,
    exercises,
    find_exercise,
    run_check,
    sees_future,
)
from tests.right_answers import BY_HAND, printed_solution, restyled

HERE = Path(__file__).parent
NOTEBOOKS = HERE.parent / "notebooks"


# Right answers


def solutions() -> dict[str, tuple[str, str, str]]:
    """Every folded solution of the notebooks: exercise → (function's name, solution, stub)."""
    found = {}
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources = ["".join(cell["source"]) for cell in cells]
        for source, after in itertools.pairwise(sources):
            checked = re.search(r"^check\(\"([^\"]+)\", *(\w+)\)", source, re.MULTILINE)
            fenced = re.search(r"```python\n(.*?)```", after, re.DOTALL)
            if checked and fenced:
                found[checked[1]] = checked[2], fenced[1], source.split("check(")[0]
    return found


SOLUTIONS = solutions()


def right_answers():
    for exercise, (name, text, _) in SOLUTIONS.items():
        for style, function in BY_HAND[exercise].items():
            yield pytest.param(exercise, function, id=f"{exercise}: {style}")
        if "import triton" not in text:
            yield pytest.param(exercise, printed_solution(text, name), id=f"{exercise}: printed")
            for style, function in restyled(exercise, printed_solution(text, name)):
                yield pytest.param(exercise, function, id=f"{exercise}: printed, {style}")


@pytest.mark.parametrize(("exercise", "function"), list(right_answers()))
def test_right_answers_pass_in_every_style(exercise, function):
    result = run_check(exercise, function)
    assert result.passed, str(result)


def test_the_printed_kernel_passes():
    triton = pytest.importorskip("triton")
    if not triton.knobs.runtime.interpret:
        pytest.skip("kernels are compiled in this process, and a printed one has no file")
    name, text, _ = SOLUTIONS["causal_attention"]
    assert run_check("causal_attention", printed_solution(text, name)).passed


@pytest.mark.parametrize("exercise", SOLUTIONS)
def test_a_stub_is_not_written_yet(exercise):
    name, _, stub = SOLUTIONS[exercise]
    result = run_check(exercise, printed_solution(stub, name))
    assert str(result) == f"○ {exercise}: not written yet"


@functools.cache
def wrong_answers():
    return {
        exercise: mutants
        for path in (HERE / "mutants").glob("exercises_*.py")
        for exercise, mutants in importlib.import_module(
            f"tests.mutants.{path.stem}"
        ).MUTANTS.items()
    }


def test_every_exercise_has_a_solution_and_wrong_answers():
    assert sorted(wrong_answers()) == sorted(exercises()) == sorted(SOLUTIONS) == sorted(BY_HAND)


def test_a_kernel_where_there_is_no_triton(monkeypatch):
    def stub(Q, K, V, out, T, scale):
        raise NotImplementedError

    def written(Q, K, V, out, T, scale):
        return None

    monkeypatch.setitem(sys.modules, "triton", None)
    assert run_check("causal_attention", stub).passed is None
    result = run_check("causal_attention", written)
    assert result.passed is False and "no Triton on this system" in result.message


# Of a wrong answer (tests/mutants) the sentence says which bug it is
NAMED = {
    "error text": {
        "got and expected exchanged": "the two values are exchanged",
        "a tolerance": "nothing that makes it milder",
        "repr": "all of it and no more",
    },
    "half for the cat": {"base 2": "base 2", "log of six": "five others together have 5"},
    "neither drowns": {
        "average": "the plain average",
        "growing by one": "only half as fast",
        "halved at each step": "loses the past",
        "a fixed score": "has to grow with n",
        "word + average": "Divide by the sum",
        "the oldest in front": "the other way round",
        "just less than a third": "gets 0.33328, at least 1/3 = 0.33333",
    },
    "look_ahead": {
        "adds a constant": "The same number added to every coordinate",
        "doubles the word": "A word made longer",
        "makes the word zero": "A word of zeros",
        "last word only": "Only the last word",
        "every second word": "Not every word",
        "one coordinate": "in one number only",
        "changes all words": "change one word",
        "counts rows": "how many outputs move",
        "one too far": "one too many",
    },
    "masked_softmax": {
        "mask inverted": "the wrong way round",
        "finite constant, masked again": "no finite number is below all scores",
        "the largest of all taken off": "the largest allowed score",
        "infinity times 0": "0 · ∞ is NaN",
        "logarithms": "logarithms of the weights",
        "all rows together": "each one must",
        "in float16": "ends at 65,504",
    },
    "scores_by_hand": {
        "exchanged": "are exchanged",
        "softmax done": "These are the weights already",
        "1e-9 in the logarithm": "added before a logarithm",
        "powers of whole numbers": "too large for its dtype",
        "a score of 10": "the more words there are",
    },
    "merge": {
        "only the second rescaled": "Only the second part",
        "already divided": "at the very end",
        "one maximum for all rows": "Each query has its own m",
        "copied input": "the first part alone",
    },
    "heads_that_pay": {
        "no divisor": "must divide H",
        "queries forgotten": "All new tokens use a key",
        "nearest": "the divisor nearest",
        "none": "one is still the fastest",
        "group size": "the size of a group",
        "strictly less": "nothing is lost yet",
        "keys only": "both keys and values are read",
    },
    "three_steps": {
        "window": "This is a window",
        "near and far": "room for a third kind",
        "powers of two": "no sum of three",
        "transposed": "here they are exchanged",
        "last digit missing": "The largest digit",
        "no small steps": "The smallest steps",
        "distances": "must be truth values",
    },
    "confuse": {
        "mean of the keys": "only where φ is a straight line",
        "features for keys": "These rows are features",
        "y − 1 everywhere": "below 1 it is ln y",
        "ln y everywhere": "above 1 it is y − 1",
        "sum of the features": "each gets a share",
        "mean of the exponentials": "keeps Σ e^k",
        "one token only": "Only token i",
        "exchanged": "the same text in another order",
        "copied input": "came back as they were",
        "barely moved": "came back as they were",
    },
    "repair": {
        "sums over the batch": "Along which axis",
        "products summed": "all keys so far must meet today's query",
        "padding in z": "still in z",
        "eps": "no small number is small enough",
        "as written": "elu(x) + 1 is 0 there",
        "no mask over time": "looks into the future",
        "NaN before the first": "before the first real one stand zeros",
        "mask the wrong way round": "the wrong way round",
        "padding made zero before the map": "a key made zero still counts",
        "softmax": "This is softmax attention",
        "not divided": "This is not divided",
    },
    "factorise": {
        "a feature a key": "but fewer do",
        "exact zeros": "1e-17 counts as 0",
        "one too few": "this table cannot be had",
        "no singular values": "The singular values are missing",
        "singular values twice": "they count once",
        "exchanged": "K comes before Q",
        "K turned": "a row for each key",
        "logarithm": "no exponential is taken",
        "only Q": "return Q, K",
    },
    "previous_word": {
        "reads itself": "It reads itself",
        "does not grow": "let keys grow faster",
        "grows too slowly": "let keys grow faster",
        "shrinks": "An older word weighs more",
        "one feature for all": "It reads itself",
        "knows the length": "nobody knows yet how long",
        "a negative feature": "No feature may be negative",
        "whole numbers that run over": "whole numbers end at 9.2e18",
        "beyond float32": "too large for its dtype",
        "zeros": "divides 0 by 0",
    },
    "fade_by_chunks": {
        "as printed": "fades by the last token's a alone",
        "state does not fade": "does not fade when it is handed on",
        "reading does not fade": "read as it was at the start of the chunk",
        "writing does not fade": "must fade until the chunk ends",
        "nothing fades inside": "Inside a chunk nothing fades",
        "written, then faded": "The fading comes after the write",
        "powers": "subtract logarithms",
        "always chunks of 8": "is size used?",
    },
    "way_back": {
        "from the beginning": "those behind it have read it",
        "no mask": "The mask is missing",
        "own query missing": "own query is missing",
        "total minus the sum so far": "own query is missing",
        "G not used": "G is not used",
        "order of the answers": "in another order",
        "the table in NumPy": "arrays or lists of more than",
    },
    "three_products": {
        "one factor not rounded": "a factor that is not rounded",
        "one factor not rounded, in NumPy": "a factor that is not rounded",
        "one factor rounded": "b is not rounded",
    },
    "write_by_chunks": {"minus": "The sign", "backwards": "from the last to the first"},
    "first_mistake": {"counted from 0": "counted from 0", "none": "This is 0 for all keys"},
    "order_blind": {
        "bag as a sum": "A sum of tokens is no bag",
        "the rarest answer": "its rarest answer",
        "without the last word": "The last token",
        "misses": "These are the wrong answers",
    },
    "two_looks": {
        "exchanged": "Crosser and crossed are exchanged",
        "first query and key exchanged": "W_q1 and W_k1 are exchanged",
        "second query and key exchanged": "W_q2 and W_k2 are exchanged",
        "scores of 1": "The scores are too small",
        "too weak for a long text": "it must read the note, with a large number",
        "first look too weak": "must ask, with a large number",
        "nobody answers first": "Only W_k1 is wrong",
        "nobody asks first": "Only W_q1 is wrong",
        "looks away from the adjective": "Only W_k1 is wrong",
        "adjective one place on": "Only W_k1 is wrong",
        "no note": "Only W_v1 is wrong",
        "kinds without signs": "Only W_v1 is wrong",
        "nobody asks second": "Only W_q2 is wrong",
        "both keys 1": "Only W_k2 is wrong",
        "one key": "Only W_k2 is wrong",
        "V forgotten": "Only W_k2 is wrong",
        "not a number": "W_v1: NaN in it",
        "infinite scores": "W_q2: infinity in it",
        "fixed places": "taken from the arguments?",
    },
    "carriers": {
        "greedy": "Place by place is not enough",
        "unsorted": "Sort the places",
        "the first places": "Only sets that begin at place 0",
        "the best place": "the best single place",
        "runs exchanged": "The streams are exchanged",
        "the complement": "The streams are exchanged",
        "positive": "The sign",
        "a mask": "This is a mask",
    },
}


@pytest.mark.parametrize(
    ("exercise", "mutant"),
    [(exercise, mutant) for exercise, said in NAMED.items() for mutant in said],
)
def test_the_bug_is_named(exercise, mutant):
    result = run_check(exercise, wrong_answers()[exercise][mutant])
    assert result.passed is False and NAMED[exercise][mutant] in str(result), str(result)


@pytest.mark.parametrize(
    ("exercise", "mutant", "words"),
    [("order_blind", "the average answer", "rarest"), ("carriers", "emptied", "The sign")],
)
def test_another_bug_is_not_named(exercise, mutant, words):
    result = run_check(exercise, wrong_answers()[exercise][mutant])
    assert result.passed is False and words not in str(result), str(result)


@pytest.mark.parametrize("form", [tuple, list, torch.Tensor.numpy, torch.Tensor.tolist])
def test_places_may_come_in_any_form(form):
    """A tuple or list of tensors counts, too, and so does one of numbers."""
    right = BY_HAND["carriers"]["bits"]
    assert run_check("carriers", lambda *a: form(right(*a))).passed


def test_no_two_numbers_in_a_sentence_look_alike():
    """Of every wrong answer: what it got is printed otherwise than what was expected."""
    for exercise, mutants in wrong_answers().items():
        if exercise == "causal_attention":  # in the interpreter: too slow to ask again
            continue
        for mutant, function in mutants.items():
            said = str(run_check(exercise, function))
            for got, expected in re.findall(
                r"got (\S+?)(?: at \[[^]]*\])?, expected ([^\s.]\S*)", said
            ):
                assert got != expected.rstrip("."), f"{exercise}, {mutant}: {said}"


# The engine itself, on an exercise of its own


def _doubles(function):
    x = torch.arange(6.0).reshape(2, 3)
    got = call(function, x, shape=(2, 3))
    wrong = differs(got, 2 * x)
    return wrong and f"not doubled: {wrong}"


DOUBLE = Exercise("double", {"values": _doubles}, 0.5)


def _endless(x):
    while True:
        pass


def _endless_and_deaf(x):
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.01)


def _in_place(x):
    return x.mul_(2)


def _exits(x):
    raise SystemExit(3)


def _interrupts(x):
    raise KeyboardInterrupt


def _recursive(x):
    return _recursive(x)


def _unspeakable(x):
    class Silent(Exception):
        def __str__(self):
            raise ValueError

    raise Silent


def _path(x):
    raise OSError("no file /home/someone/data/x.txt at 0x7f00aa")


def _two_lines(x):
    y = x.T
    return x @ y[:, :1] @ y


class _Layer(torch.nn.Module):
    def forward(self, x):
        return _two_lines(x)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: 3 * x, "not doubled: got 3 at [0, 1], expected 2"),
        (lambda x: None, "returns nothing; is the return line missing?"),
        (lambda x: "2x", "returns a str, expected a tensor"),
        (lambda x: ..., "returns an ellipsis, expected a tensor"),
        (lambda x: [row for row in x], "not doubled: got 1 at [0, 1], expected 2"),
        (lambda x: [x[0], x[:, :1]], "a list of tensors of shapes [3] and [2, 1], expected one"),
        (lambda x: [x, "2x"], "returns a list with a str in it, expected a tensor"),
        (lambda x: (2 * x,), "returns a tuple with the tensor in it; is there a comma behind it?"),
        (lambda x: [], "returns shape [0], expected [2, 3]"),
        (lambda x: 2j * x, "returns complex numbers, expected real ones"),
        (lambda x: np.array(["2x"]), "returns a ndarray of <U2"),
        (lambda x: 2 * x.T, "returns shape [3, 2], expected [2, 3]; two axes are exchanged"),
        (lambda x: x.sum(0), "returns shape [3], expected [2, 3]; a sum or mean took an axis away"),
        (lambda x: x / 0, "NaN in the answer for ordinary finite input"),
        (lambda x: 1 / x, "infinity in the answer for ordinary finite input"),
        (lambda: 1, "stops with TypeError: "),
        (_in_place, "changes x in place"),
        (lambda *a: a[0].mul_(2), "changes argument 1 in place"),
        (lambda x: x @ x, "cannot be multiplied"),
        (_two_lines, ": return x @ y[:, :1] @ y; given x [2, 3]"),
        (functools.partial(_two_lines), ": return x @ y[:, :1] @ y; given x [2, 3]"),
        (torch.no_grad()(_two_lines), ": return x @ y[:, :1] @ y; given x [2, 3]"),
        (_Layer(), ": return x @ y[:, :1] @ y; given"),
        (lambda x: x.long().softmax(-1), "stops with NotImplementedError: "),
        (_exits, "stops with SystemExit: 3"),
        (_interrupts, "stops with KeyboardInterrupt"),
        (_recursive, "calls itself without end (RecursionError)"),
        (_unspeakable, "stops with Silent"),
        (_path, "stops with OSError: no file x.txt at 0x…"),
        (_endless, "no answer after 0.5 seconds: a loop that does not end?"),
        (_endless_and_deaf, "no answer after 0.5 seconds"),
        (17, "expected a function, got an int"),
    ],
)
def test_bad_answers_get_one_sentence(capsys, function, words):
    check(DOUBLE, function)
    printed = capsys.readouterr()
    assert printed.out.startswith("✗ double, ") and words in printed.out
    assert printed.out.count("\n") == 1 and printed.err == ""


def test_numbers_that_look_equal_are_told_apart():
    one = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert differs(one + 1e-9, one, atol=1e-12) == "got 1.000000001 at [0], expected 1"
    float32 = torch.tensor(0.1)
    assert differs(float32, torch.tensor(0.1, dtype=torch.float64), atol=0) == (
        "got 0.100000001, expected 0.1"
    )
    assert differs(float32, torch.tensor(0.1, dtype=torch.float64), atol=1e-12) is None


def test_a_rounded_answer_is_told_apart_and_called_rounded():
    def rounded(*arguments):
        right = BY_HAND["way_back"]["chunks"](*(x.float() for x in arguments))
        return tuple(x.double() for x in right)

    message = run_check("way_back", rounded).message
    got, expected = re.findall(r"(?:got|expected) ([\d.e+-]+\d)", message)
    assert got != expected and "rounding: something on the way is float32" in message


def test_a_number_that_is_not_whole_is_not_printed_as_a_whole_one():
    assert "returns 23.9999, expected a whole number" in str(
        run_check("heads_that_pay", lambda *a: 23.9999)
    )
    assert "returns 24.000001, " in str(run_check("heads_that_pay", lambda *a: 24.000001))


def test_a_function_that_mixes_float32_and_float64_is_asked_in_float32():
    """Right with what a notebook makes by itself, float32, it is right; else its error is said."""

    def twice(x):
        return x @ (2 * torch.eye(x.shape[1]))

    def thrice(x):
        return x @ (3 * torch.eye(x.shape[1]))

    def asks(function):
        x = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
        return differs(call(function, x, shape=(2, 3)), 2 * x)

    exercise = Exercise("twice", {"values": asks})
    assert run_check(exercise, twice).passed
    assert run_check(exercise, thrice).message == "got 3 at [0, 1], expected 2"
    message = run_check(exercise, lambda x: twice(x.double()).float() @ x).message
    assert "the same dtype" in message and message.endswith("given x [2, 3] float64")


def test_the_specific_sentence_comes_before_the_one_about_nan():
    def empty_rows(scores, mask):
        return scores.masked_fill(~mask, -torch.inf).softmax(-1)

    assert run_check("masked_softmax", empty_rows).broken == "empty row"
    nowhere = run_check("way_back", lambda Q, K, V, G: (Q + torch.nan, K, V))
    assert nowhere.broken == "one token" and "got nan" in nowhere.message
    unknown = run_check("write_by_chunks", lambda K, V, size: 0 / (K.T @ V * 0))
    assert unknown.message.endswith("0/0, ∞ − ∞ and the logarithm of a number below 0 are NaN")


def test_infinities_agree_and_nan_agrees_with_nothing():
    x = torch.tensor([torch.inf, -torch.inf, 1.0])
    assert differs(x, x) is None
    assert differs(x, -x) == "got inf at [0], expected -inf"
    assert differs(x.fill_(torch.nan), torch.ones(3)) == "got nan at [0], expected 1"
    assert differs(torch.ones(3), torch.tensor([1.0, torch.inf, 1.0])) is not None


def test_an_error_of_the_check_is_not_the_students():
    broken = Exercise("broken", {"works": lambda function: 1 / 0})
    message = run_check(broken, BY_HAND["carriers"]["bits"]).message
    assert message.startswith("the check itself stops with ZeroDivisionError")


def test_unwritten_and_unknown(capsys):
    def stub(x):
        raise NotImplementedError

    check(DOUBLE, stub)
    check("masked_sofmax", stub)
    check(None, stub)
    assert capsys.readouterr().out.splitlines() == [
        "○ double: not written yet",
        "✗ masked_sofmax, name: there is no exercise of this name; did you mean 'masked_softmax'?",
        "✗ None, name: there is no exercise of this name",
    ]
    assert find_exercise("masked_sofmax") is None


def test_looking_into_the_future_is_named():
    x = torch.randn(8, 3)
    assert sees_future(lambda y: y.cumsum(0), x, at=5) is None
    assert (
        sees_future(lambda y: y.roll(-3, 0), x, at=5)
        == "looks into the future: changing x[5] changes row 2"
    )


def test_check_prints_where_the_console_has_no_tick(monkeypatch):
    console = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", console)
    check(DOUBLE, lambda x: 2 * x)
    console.flush()
    assert console.buffer.getvalue().decode().strip() == "ok double: 1 property holds"


# The guest


def _noisy(x):
    for line in range(20):
        print("line", line)
    print("and to stderr", file=sys.stderr)
    return 2 * x


def test_the_first_lines_that_a_guest_prints_are_shown(capsys):
    check(DOUBLE, _noisy)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "✓ double: 1 property holds",
        "  It printed:",
        *(f"  | line {n}" for n in range(8)),
        "  | … and 13 more lines",
    ]
    assert printed.err == ""
    assert str(run_check(DOUBLE, _noisy)) == "✓ double: 1 property holds"


def test_the_output_of_a_guest_is_bounded():
    def floods(x):
        while True:
            print("x" * 1_000_000)

    tracemalloc.start()
    try:
        result = run_check(DOUBLE, floods)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.passed is False and result.broken == "time"
    assert peak < 20_000_000 and len(result.printed) < 3_000, f"{peak:,} bytes were kept"
    assert result.printed.startswith("xxx") and "more lines" in result.printed


def _state():
    """What a notebook shares with the guest, as far as one can ask for it."""
    new_threads: list[int] = []
    thread = threading.Thread(target=lambda: new_threads.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return {
        "random": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),  # noqa: NPY002
        "torch": torch.get_rng_state().tolist(),
        "filters": list(warnings.filters),
        "dtype": torch.get_default_dtype(),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "threads": (torch.get_num_threads(), new_threads),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.get_deterministic_debug_mode(),
        "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
        "precision": torch.get_float32_matmul_precision(),
        "anomaly": torch.is_anomaly_enabled(),
        "printing": (str(torch.tensor([1 / 3])), str(np.array([1 / 3]))),
        "errors": np.geterr(),
        "path": list(sys.path),
        "recursion": sys.getrecursionlimit(),
        "garbage": gc.isenabled(),
        "streams": (sys.stdout, sys.stderr),
        "device": torch.get_default_device(),
    }


def _unmannerly(x):
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    warnings.simplefilter("error")
    torch.set_default_dtype(torch.float64)
    os.chdir(os.sep)
    os.environ["COURSE_GUEST"] = "was here"
    os.environ.pop("MPLBACKEND", None)
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_grad_enabled(False)
    torch.set_deterministic_debug_mode("warn")
    torch.backends.cudnn.deterministic = True
    torch.set_float32_matmul_precision("medium")
    torch.autograd.set_detect_anomaly(True)
    torch.set_printoptions(precision=2)
    np.set_printoptions(precision=2)
    np.seterr(all="raise")
    torch.set_default_device("meta")
    sys.path.insert(0, "guest")
    sys.setrecursionlimit(5_000)
    gc.disable()
    sys.stdout = sys.stderr = io.StringIO()


def _returns(x):
    _unmannerly(x)
    torch.set_default_device("cpu")
    return (2 * x).numpy()


def _stops(x):
    _unmannerly(x)
    raise ValueError


def _never_ends(x):
    _unmannerly(x)
    while True:
        pass


def _restores_late(x):
    """Sleeps in C beyond its time, and then puts everything back as it was in the check."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        try:
            time.sleep(3)
        finally:
            _unmannerly(x)


@pytest.mark.parametrize(
    ("function", "passed"),
    [(_returns, True), (_stops, False), (_never_ends, False), (_restores_late, False)],
)
def test_a_guest_leaves_everything_as_it_was(function, passed):
    before = _state()
    began = time.monotonic()
    assert run_check(DOUBLE, function).passed is passed
    assert _state() == before
    if function is _restores_late:  # nor does anything change when the call into C comes back
        torch.manual_seed(1)
        torch.rand(1)
        before = _state()
        time.sleep(max(0.0, began + 3.5 - time.monotonic()))
        assert _state() == before


def test_a_guest_does_not_seed_accelerators():
    def seeds(x):
        torch.manual_seed(0)
        return 2 * x

    with (
        mock.patch("torch.cuda.manual_seed_all") as gpus,
        mock.patch("torch.mps.manual_seed") as mac,
    ):
        assert run_check(DOUBLE, seeds).passed
    assert not gpus.called and not mac.called


@pytest.mark.parametrize("patience", ["none", "deaf"])
def test_an_endless_loop_is_really_stopped(patience):
    turns = []

    def counts(x):
        while True:
            with contextlib.suppress(BaseException if patience == "deaf" else ValueError):
                while True:
                    turns.append(1)
                    time.sleep(0.001)

    assert run_check(DOUBLE, counts).passed is False
    seen = len(turns)
    time.sleep(0.2)
    assert len(turns) == seen


@pytest.fixture
def as_in_a_terminal():
    """A job in the background ignores interrupts, and so would Python that was started there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupted_guest_is_stopped_too(as_in_a_terminal):
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("only the main thread is interrupted")
    turns = []

    def interrupted(x):
        signal.raise_signal(signal.SIGINT)
        while True:
            turns.append(1)
            time.sleep(0.001)

    before = _state()
    result = run_check(Exercise("long", dict(DOUBLE.properties), 60.0), interrupted)
    assert (result.passed, result.broken, result.message) == (False, "time", "interrupted")
    assert _state() == before
    seen = len(turns)
    time.sleep(0.2)
    assert len(turns) == seen
