"""The course in one picture: what it says about the release, and the numbers it draws."""

from __future__ import annotations

import numpy as np
import pytest

from course.roadmap import (
    RELATED,
    STEPS,
    WORDS,
    course_picture,
    memory_error,
    weighted_average_matrix,
)


def test_the_steps_cover_notebooks_1_to_11_once_in_order() -> None:
    told = [n for step in STEPS for n in range(step.first, step.last + 1)]
    assert told == list(range(1, 12))


def test_the_finding_holds_the_numbers_drawn_and_what_is_missing() -> None:
    text = repr(course_picture(last=8))
    assert "0.17 of everything" in text  # 1/6
    assert "up to 0.36" in text  # e² / (2e² + e + 3)
    assert "error 0.98 after 32 pairs at width 32" in text  # √(31/32)
    assert "notebooks 09–11 come later" in text
    assert "later" not in repr(course_picture(last=11))


def test_panels_of_later_notebooks_are_marked() -> None:
    figure = course_picture(last=8).figure
    texts = [[t.get_text() for t in axes.texts] for axes in figure.axes]
    assert ["later" in " ".join(panel) for panel in texts] == [False] * 4 + [True] * 2
    half_told = course_picture(last=2).figure.axes[1]
    assert "notebooks 02–05 (after 02: later)" in [t.get_text() for t in half_told.texts]


def test_the_weighted_average_is_softmax_of_the_stated_scores() -> None:
    scores = np.eye(len(WORDS))
    for query, key in RELATED:
        scores[query, key] = 2.0
    raised = np.tril(np.exp(scores))
    np.testing.assert_allclose(
        weighted_average_matrix(), raised / raised.sum(1, keepdims=True), rtol=1e-12, atol=0
    )


def test_the_law_of_panel_5() -> None:
    assert memory_error(1) == 0.0
    assert memory_error(33, 32) == 1.0
    assert memory_error(9, 32) == 0.5


@pytest.mark.parametrize("last", [0, 12, 2.0, "5"])
def test_a_number_that_no_notebook_has(last: object) -> None:
    with pytest.raises(ValueError, match="last: expected"):
        course_picture(last=last)  # type: ignore[arg-type]


def test_the_picture_is_the_same_bytes_every_time() -> None:
    assert course_picture(last=8).png() == course_picture(last=8).png()
