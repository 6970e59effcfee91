"""The checks of the exercises: solutions pass, stubs say so, and no wrong answer survives."""

import contextlib
import importlib
import itertools
import json
import os
import re
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from course import checks
from course.checks import Exercise, call, check, differs, find_exercise, run_check, sees_future

HERE = Path(__file__).parent
NOTEBOOKS = HERE.parent / "notebooks"


def mutants():
    """The exercises that tests/mutants has wrong answers to (test_mutants.py runs them)."""
    for path in sorted((HERE / "mutants").glob("exercises_*.py")):
        yield from importlib.import_module(f"tests.mutants.{path.stem}").MUTANTS


def solutions():
    """Every folded solution of the notebooks: (exercise, function, solution, stub)."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources = ["".join(cell["source"]) for cell in cells]
        for source, after in itertools.pairwise(sources):
            checked = re.search(r"^check\(\"([^\"]+)\", *(\w+)\)", source, re.MULTILINE)
            fenced = re.search(r"```python\n(.*?)```", after, re.DOTALL)
            if checked and fenced:
                name, function = checked.groups()
                yield pytest.param(name, function, fenced[1], source, id=name)


@pytest.mark.parametrize(("exercise", "function", "code", "stub"), list(solutions()))
def test_the_printed_solution_passes_and_the_stub_is_open(exercise, function, code, stub):
    if "import triton" in code:
        triton = pytest.importorskip("triton")
        if not triton.knobs.runtime.interpret:
            pytest.skip("kernels are compiled in this process, and a printed one has no file")
    space = {}
    exec("import math\nimport numpy as np\nimport torch\n" + code, space)
    result = run_check(exercise, space[function])
    assert result.passed, str(result)
    exec("import math\nimport numpy as np\nimport torch\n" + stub.split("check(")[0], space)
    assert run_check(exercise, space[function]).message == "not written yet"


def test_every_exercise_has_a_solution_in_a_notebook_and_wrong_answers():
    solved = [case.values[0] for case in solutions()]
    assert sorted(mutants()) == sorted(checks._exercises()) == sorted(solved)


def test_a_kernel_where_there_is_no_triton(monkeypatch):
    def stub(K, z, T, D, stride_t, stride_d):
        raise NotImplementedError

    def written(K, z, T, D, stride_t, stride_d):
        return None

    monkeypatch.setitem(sys.modules, "triton", None)
    assert run_check("sum_features", stub).passed is None
    result = run_check("sum_features", written)
    assert result.passed is False and "no Triton on this system" in result.message


# The engine itself, on an exercise of its own.


def _doubles(function):
    x = torch.arange(6.0).reshape(2, 3)
    got = call(function, x, shape=(2, 3))
    wrong = differs(got, 2 * x)
    return wrong and f"not doubled: {wrong}"


@pytest.fixture
def doubling(monkeypatch):
    checks._exercises()
    monkeypatch.setitem(checks._FOUND, "double", Exercise("double", (("values", _doubles),), 0.5))


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


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: 3 * x, "not doubled: got 3 at [0, 1], expected 2"),
        (lambda x: None, "returns nothing; is the return line missing?"),
        (lambda x: "2x", "returns a str, expected a tensor"),
        (lambda x: ..., "returns an ellipsis, expected a tensor"),
        (lambda x: 2 * x.T, "returns shape [3, 2], expected [2, 3]; two axes are exchanged"),
        (lambda x: x.sum(0), "returns shape [3], expected [2, 3]; a sum or mean took an axis away"),
        (lambda x: x / 0, "NaN in the answer for ordinary finite input"),
        (lambda x: 1 / x, "infinity in the answer for ordinary finite input"),
        (lambda: 1, "stops with TypeError: "),
        (_in_place, "changes argument 1 in place"),
        (lambda x: x @ x, "stops with RuntimeError: "),
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
def test_bad_answers_get_one_sentence(doubling, capsys, function, words):
    check("double", function)
    printed = capsys.readouterr()
    assert printed.out.startswith("✗ double, ") and words in printed.out
    assert printed.out.count("\n") == 1 and printed.err == ""


def test_a_right_answer_and_its_noise(doubling, capsys):
    def noisy(x):
        print("debugging")
        warnings.warn("look", stacklevel=1)
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)
        return (2 * x).numpy()

    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    expected = torch.rand(1), np.random.rand()  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    check("double", noisy)
    assert (torch.rand(1), np.random.rand()) == expected  # noqa: NPY002
    assert capsys.readouterr() == ("✓ double: 1 property holds\n", "")


def test_unwritten_and_unknown(doubling, capsys):
    def stub(x):
        raise NotImplementedError

    check("double", stub)
    check("doubel", stub)
    check(None, stub)
    assert capsys.readouterr().out.splitlines() == [
        "○ double: not written yet",
        "✗ doubel, name: there is no exercise of this name; did you mean 'double'?",
        "✗ None, name: there is no exercise of this name",
    ]
    assert find_exercise("doubel") is None


def test_an_endless_loop_is_really_stopped(doubling):
    turns = []

    def counts(x):
        while True:
            turns.append(1)
            time.sleep(0.01)

    run_check("double", counts)
    seen = len(turns)
    time.sleep(0.2)
    assert len(turns) == seen


def test_looking_into_the_future_is_named():
    x = torch.randn(8, 3)
    assert sees_future(lambda y: y.cumsum(0), x, at=5) is None
    assert (
        sees_future(lambda y: y.roll(-3, 0), x, at=5)
        == "looks into the future: changing x[5] changes row 2"
    )


def test_check_prints_where_the_console_has_no_tick(doubling, monkeypatch, capsys):
    import io

    console = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", console)
    check("double", lambda x: 2 * x)
    console.flush()
    assert (
        console.buffer.getvalue().decode().strip()
        == f"ok double: 1 property holds{os.linesep}".strip()
    )
