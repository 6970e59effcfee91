"""``show_source`` prints the code that ran, and nothing else."""

from __future__ import annotations

import functools

import pytest

from course.averaging import prefix_mean
from course.source import show_source


def documented(x):
    """Twice.

    A second paragraph.
    """

    # Why: a comment stays.
    text = """no docstring"""
    return len(text) * x


class Box:
    """A box."""

    @property
    def content(self):
        """What is inside."""
        return 1

    def empty(self):
        """Only a docstring."""


@functools.wraps(documented)
def wrapper(x):
    return documented(x)


def printed(capsys, what):
    show_source(what)
    return capsys.readouterr().out


def test_a_function_without_its_docstring(capsys):
    expected = (
        "def documented(x):\n    # Why: a comment stays.\n"
        '    text = """no docstring"""\n    return len(text) * x\n'
    )
    assert printed(capsys, documented) == expected
    assert printed(capsys, wrapper) == expected


def test_a_class(capsys):
    assert printed(capsys, Box) == (
        "class Box:\n    @property\n    def content(self):\n        return 1\n\n"
        '    def empty(self):\n        """Only a docstring."""\n'
    )
    assert printed(capsys, Box.empty) == 'def empty(self):\n    """Only a docstring."""\n'


def test_a_function_of_the_package(capsys):
    text = printed(capsys, prefix_mean)
    assert text.startswith("def prefix_mean(") and '"""' not in text


@pytest.mark.parametrize("what", [len, 3, "text"])
def test_what_has_no_source(what):
    with pytest.raises(ValueError, match="what: expected a function or class in Python"):
        show_source(what)
