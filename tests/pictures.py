"""What every picture must hold. A file of tests with pictures imports these names.

Its ``DRAW`` names them: a text and a function that draws. The tests get ``name``, one after the
other, and ``pictures``, all of them drawn once.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from course.plots import Picture
from tests import ink

__all__ = [
    "pictures",
    "pytest_generate_tests",
    "test_every_text_can_be_read",
    "test_pictures_are_opaque_white_at_the_edge_and_always_the_same",
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Ask the tests below for every picture of the file."""
    if metafunc.function in (
        test_every_text_can_be_read,
        test_pictures_are_opaque_white_at_the_edge_and_always_the_same,
    ):
        draw: dict[str, Callable[[], Picture]] = metafunc.module.DRAW
        metafunc.parametrize("name", draw)


@pytest.fixture(scope="module")
def pictures(request: pytest.FixtureRequest) -> dict[str, Picture]:
    """All pictures of the file."""
    return {name: draw() for name, draw in request.module.DRAW.items()}


def test_every_text_can_be_read(pictures: dict[str, Picture], name: str) -> None:
    ink.require_readable(pictures[name])


def test_pictures_are_opaque_white_at_the_edge_and_always_the_same(
    pictures: dict[str, Picture], name: str, request: pytest.FixtureRequest
) -> None:
    ink.require_white_edge(pictures[name])
    assert request.module.DRAW[name]().png() == pictures[name].png()
