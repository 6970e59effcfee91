"""Which claims say little, and the standards that count them."""

from __future__ import annotations

from typing import Any

import pytest

from course.verify import Interval, above, verify
from tests.notebooks import standards
from tests.notebooks.claims import counts, is_boolean, is_wide
from tests.notebooks.test_gate import code, good, stream


@pytest.mark.parametrize(
    ("finding", "wide"),
    [
        ("≈ 3, in [1, 8]", False),
        ("≈ 3, in [1, 8.1]", True),
        ("≈ -3, in [-8.1, -1]", True),
        ("≈ -3, in [-8, -1]", False),
        ("≈ 1,000 … 2,000, in [500, 5,000]", True),
        ("≈ 1,000 … 2,000, in [500, 3,000.5]", False),
        ("≈ 1e-08, in [1e-10, 1e-06]", True),
        ("≈ 3, in [1, inf]", True),
        ("≈ -3, in [-inf, -1]", True),
        # a band with 0: how much of it was used?
        ("≈ 0.2, in [0, 1]", False),
        ("≈ 0.12, in [0, 1]", True),
        ("≈ 0.01 … 0.5, in [0, 1]", False),
        ("≈ −0.5 … 0.01, in [-1, 1]", False),
        ("≈ 0, in [-1, 1]", True),
        ("≈ 2, in [0, inf]", True),
        ("in [0, 1]", True),
        ("in [0.5, 1]", False),
        # no bands
        ("≈ 3, |Δ| ≈ 0 ≤ 1e-06", False),
        ("≈ 3 > 0.1", False),
        ("exactly 5", False),
    ],
)
def test_wide_bands(finding: str, wide: bool) -> None:
    assert is_wide(f"✓ 1 in [1, 100]: {finding}") is wide


@pytest.mark.parametrize(
    ("finding", "boolean"),
    [
        ("exactly True", True),
        ("exactly False", True),
        ("exactly True, each of 1,024", True),
        ("exactly [True, False]", True),
        ("exactly [[True, True], [False, True]]", True),
        ("all 1,024 truth values as expected", True),
        ("exactly 1", False),
        ("exactly [1, 0]", False),
        ("all 16 entries equal", False),
        ("≈ 0.320 > 0.3", False),
    ],
)
def test_booleans(finding: str, boolean: bool) -> None:
    assert is_boolean(f"✓ x: exactly True is it: {finding}") is boolean


def test_what_verify_prints_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    verify("wide", 3e-8, Interval(1e-10, 1e-6))
    verify("wide", [3.0, 40_000], Interval(-1e6, 1e6))
    verify("narrow", [3, 5], Interval(1, 8))
    verify("boolean", [True] * 20, [True] * 20)
    verify("boolean", [True, False], [True, False])
    verify("a relation", 0.3, above(0.2))
    assert counts(capsys.readouterr().out.splitlines()) == (2, 2)
    assert counts(["a picture: in [1, 100]", "it is: exactly True"]) == (0, 0)


def notebook(*texts: str, prose: str = "") -> dict[str, Any]:
    made = good()
    made["cells"][0]["source"] += f"\n\n{prose}"
    made["cells"] += [
        code("verify()", stream(f"{text}\n"), count=place) for place, text in enumerate(texts, 6)
    ]
    return made


def test_what_is_counted_may_not_be() -> None:
    assert standards.review(notebook()).complaints == ()
    wide, boolean = "✓ x: ≈ 3.00, in [1, 100]", "✓ x: exactly True"
    counted = standards.review(notebook(wide, wide, boolean))
    assert (counted.wide, counted.booleans) == (2, 1)
    assert counted.complaints == (
        "2 bands wider than a factor of 8",
        "1 booleans where two numbers could stand",
    )


def test_numbers_without_a_source_and_a_long_road_are_faults() -> None:
    long = standards.review(notebook(prose="word " * 12_000 + "and 3.75 of it"))
    assert long.complaints == (
        "numbers in the text without a source: 3.75 (cell 1)",
        "the main road takes 62 minutes, allowed are 60",
    )
    (line,) = standards.table({"01_long.ipynb": long})[1:]
    assert line.split() == ["01_long.ipynb", "0", "0", "62", "1"]
