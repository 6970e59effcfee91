"""A cell that says it is the package's code is compared with it."""

from __future__ import annotations

import inspect

import pytest

from course import averaging
from tests.notebooks.sameness import complaints

TARGET = "course.averaging.mean_matrix"
SAME = """
def triangle(T, dtype=None, device=None):
    require_positive("T", T, minimum=0)  # a comment

    ones = torch.ones(T, T, dtype=dtype, device=device).tril()
    return ones / torch.arange(1, T + 1,
                               dtype=dtype, device=device)[:, None]
"""
LINES = SAME.split("\n\n")[1].replace("    ", "").split("return")[0]


def told(source: str, *tags: str) -> list[str]:
    cell = {"cell_type": "code", "source": source, "outputs": [], "metadata": {"tags": [*tags]}}
    return complaints({"cells": [cell]})


def test_the_reference_as_it_stands() -> None:
    for name in ("mean_matrix", "prefix_mean"):
        source = inspect.getsource(getattr(averaging, name))
        assert told(source, "training", f"same-as:course.averaging.{name}") == []
    assert told("1 / 0", "training") == []


@pytest.mark.parametrize(
    ("source", "renamed"),
    [
        (SAME, ""),
        (f"import torch\n{SAME}\ntriangle(3)", ""),  # one function among other lines
        (SAME.replace("    require", '    """The mean."""\n    require', 1), ""),
        (SAME.replace("ones", "A").replace("torch.A", "torch.ones"), ";A=ones"),
        (SAME.replace("T", "n").replace('"n"', '"T"'), ";n=T"),
        (LINES, ""),  # a part, outside a function
        (LINES.replace("ones =", "A ="), ";A=ones"),
    ],
)
def test_the_same_lines(source: str, renamed: str) -> None:
    assert told(source, f"same-as:{TARGET}{renamed}") == []


@pytest.mark.parametrize(
    ("source", "tag", "complaint"),
    [
        (
            SAME.replace("T + 1", "T"),
            TARGET,
            "is 'return ones / torch.arange(1, T + 1, dtype=dtype",
        ),
        (SAME.replace("ones", "A").replace("torch.A", "torch.ones"), TARGET, "'A = torch.ones("),
        (SAME + "    return 1\n", TARGET, "'return 1' is 'nothing more'"),
        (SAME.split("    return")[0], TARGET, "'nothing more' is 'return ones"),
        (LINES.replace("tril", "triu"), TARGET, "has no 'ones = torch.ones"),
        (LINES + "x = 1", TARGET, "'x = 1' is 'return ones"),
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
