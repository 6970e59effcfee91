"""The course in one picture: what it says about the release, and the numbers it draws."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.patches import FancyBboxPatch

from course.roadmap import (
    CHAIN,
    RELATED,
    STEPS,
    WORDS,
    Link,
    chain_picture,
    course_picture,
    memory_error,
    weighted_average_matrix,
)
from tests.ink import boxes, patches, require_readable, require_white_edge, words

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


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


@pytest.mark.parametrize("link", CHAIN, ids=lambda link: link.name)
def test_each_claim_of_the_chain_is_held_by_a_line_of_its_notebook(link: Link) -> None:
    (path,) = NOTEBOOKS.glob(f"{link.notebook:02d}_*.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    printed = "".join("".join(output.get("text", "")) for output in outputs).splitlines()
    for name in link.held:
        assert any(line.startswith(f"✓ {name}: ") for line in printed), name


def test_the_chain_goes_through_every_notebook_in_order() -> None:
    numbers = [link.notebook for link in CHAIN]
    assert numbers == sorted(numbers) and set(numbers) == set(range(1, 12))
    assert len({link.name for link in CHAIN}) == len({link.claim for link in CHAIN}) == len(CHAIN)


def test_the_chain_is_drawn_from_top_to_bottom_beside_its_steps() -> None:
    picture = chain_picture()
    require_readable(picture)
    require_white_edge(picture)
    at = {text: box for text, box in boxes(picture)}
    # A name or a claim once; the number 01 twice.
    assert sorted(words(picture)) == sorted(
        [link.name for link in CHAIN]
        + [f"{link.notebook:02d}" for link in CHAIN]
        + [f"✓  {link.claim}" for link in CHAIN]
        + [step.title for step in STEPS]
    )
    for one, two in pairwise(CHAIN):
        assert at[one.name].y0 > at[two.name].y1
        assert at[f"✓  {one.claim}"].x0 == pytest.approx(at[f"✓  {two.claim}"].x0, abs=3)
    for link in CHAIN:
        middle, claim = at[link.name], at[f"✓  {link.claim}"]
        assert claim.x0 > middle.x1
        assert abs((claim.y0 + claim.y1) - (middle.y0 + middle.y1)) < middle.height
    for step in STEPS:  # each stands beside its own links
        own = [at[link.name] for link in CHAIN if step.first <= link.notebook <= step.last]
        title = at[step.title]
        assert own[-1].y0 - 4 <= (title.y0 + title.y1) / 2 <= own[0].y1 + 4
    assert len(patches(picture, FancyBboxPatch)) == len(CHAIN)


def test_the_chain_says_every_claim_in_its_finding_and_alt_text() -> None:
    picture = chain_picture()
    for link in CHAIN:
        for text in (picture.finding, picture.alt):
            assert f"{link.name} ({link.notebook:02d}): {link.claim}" in text
    assert "12 links lead from average to two blocks compose" in picture.finding
    assert picture.png() == chain_picture().png()
