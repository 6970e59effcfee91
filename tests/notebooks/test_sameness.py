"""A cell that says it is the package's code is compared with it."""

from __future__ import annotations

import inspect

import pytest

from course import averaging
from tests.notebooks.sameness import complaints

TARGET = "course.averaging.mean_by_matrix"
SAME = """
def average(x):
    T = x.shape[-2]  # a comment

    past = x.new_ones(T, T).tril()
    A = past / past.sum(
        -1, keepdim=True)
    return A @ x
"""
LINES = SAME.split("\n\n")[1].replace("    ", "").split("return")[0]


def told(source: str, *tags: str) -> list[str]:
    cell = {"cell_type": "code", "source": source, "outputs": [], "metadata": {"tags": [*tags]}}
    return complaints({"cells": [cell]})


def test_the_reference_as_it_stands() -> None:
    for name in ("mean_by_matrix", "prefix_mean"):
        source = inspect.getsource(getattr(averaging, name))
        assert told(source, "training", f"same-as:course.averaging.{name}") == []
    assert told("1 / 0", "training") == []


@pytest.mark.parametrize(
    ("source", "renamed"),
    [
        (SAME, ""),
        (f"import torch\n{SAME}\naverage(x)", ""),  # one function among other lines
        (SAME.replace("    T =", '    """The mean."""\n    T =', 1), ""),
        (SAME.replace("past", "before"), ";before=past"),
        (SAME.replace("T =", "n =").replace("T, T", "n, n"), ";n=T"),
        (LINES, ""),  # a part, outside a function
        (LINES.replace("A =", "W ="), ";W=A"),
    ],
)
def test_the_same_lines(source: str, renamed: str) -> None:
    assert told(source, f"same-as:{TARGET}{renamed}") == []


@pytest.mark.parametrize(
    ("source", "tag", "complaint"),
    [
        (SAME.replace("-1", "0"), TARGET, "is 'A = past / past.sum(-1, keepdim=True)"),
        (SAME.replace("past", "before"), TARGET, "'before = x.new_ones("),
        (SAME + "    return 1\n", TARGET, "'return 1' is 'nothing more'"),
        (SAME.split("    return")[0], TARGET, "'nothing more' is 'return A @ x"),
        (LINES.replace("tril", "triu"), TARGET, "has no 'past = x.new_ones(T, T).triu()"),
        (LINES + "y = 1", TARGET, "'y = 1' is 'return A @ x"),
        ("# nothing", TARGET, "empty"),
        ("def f(:", TARGET, "invalid syntax"),
        (SAME, "course.averaging.no_such", "the package has no such function"),
        (SAME, "course.no_such.mean", "the package has no such function"),
        (SAME, "course.averaging.FORMS", "the package has no such function"),
        (SAME, "torch.cumsum", "not of the form"),
        (SAME, f"{TARGET};A", "not of the form"),
    ],
)
def test_each_difference_is_named(source: str, tag: str, complaint: str) -> None:
    (found,) = told(source, f"same-as:{tag}")
    assert found.startswith("cell 1 (code): ") and complaint in found
