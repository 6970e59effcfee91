"""Which numbers of a text need a source, and what counts as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.notebooks.prose import claimed, has_source, numbers_in, without_source
from tests.notebooks.test_gate import code, picture, stream


@pytest.mark.parametrize(
    ("markdown", "numbers"),
    [
        ("It is 1.84, or 0.5.", ["1.84", "0.5"]),
        ("About 12 %, 7% or 3 per cent; 1,234.5 words.", ["12 %", "7%", "3 per cent", "1,234.5"]),
        ("It is 3 times as long, 1,000 times.", ["3 times", "1,000 times"]),
        ("(0.3) **0.4** −0.5 ≈0.6 “0.7” 2.5×", ["0.3", "0.4", "0.5", "0.6", "0.7", "2.5"]),
        ("| 0.25 | 0.75 |", ["0.25", "0.75"]),
        ("<details><summary>Hint</summary>It is 0.9.</details>", ["0.9"]),
        # whole numbers need none, nor do names of things
        ("In 2017 there were 12 heads in 3 layers and 1,024 tokens.", []),
        ("*Easy, 10 minutes.* 20 more times 3 words", ["20 more times"][:0]),
        ("$0.5^{20}$ and $$x = 0.25$$ and \\(0.1\\)", []),
        ("`0.5` and ``0.25`` and <code>0.125</code>", []),
        ("```python\nx = 0.5\n```\n\n~~~\n0.25\n~~~\ntext", []),
        ("[0.5](https://example.org/0.25) https://example.org/0.125 <b title='0.1'>b</b>", []),
        ("## 2.1 · Why 0.5\n\ntext", []),
        ("arXiv:1706.03762v5, arXiv 2006.16236, doi:10.1000/182.5", []),
        ("PyTorch 2.13, Python 3.11, version 0.1, 1.5.0 and v2.1", []),
        ("24.12.2025, 2025-12-24", []),
        ("Exercise 1.1, section 2.3, § 2.1, sections 2.1 and 2.3, Table 4.2, row 4.5.", []),
        ("Exercise 1.1 takes 1.5 hours", ["1.5"]),
    ],
)
def test_what_needs_a_source(markdown: str, numbers: list[str]) -> None:
    assert claimed(markdown) == numbers


@pytest.mark.parametrize(
    ("claim", "number", "found"),
    [
        ("1.84", 1.8449, True),
        ("1.84", 1.8451, False),
        ("1.84", -1.84, True),
        ("1.8", 1.84, True),
        ("1.80", 1.84, False),
        ("1,234.5", 1234.46, True),
        ("12 %", 0.1249, True),
        ("12 %", 12.3, True),
        ("12 %", 0.13, False),
        ("12.5 per cent", 0.125, True),
        ("0.5", 50.0, False),
        ("3 times", 3.4, True),
        ("3 times", 3.6, False),
        ("1,000 times", 1000.2, True),
    ],
)
def test_rounded_to_the_digits_that_are_written(claim: str, number: float, found: bool) -> None:
    assert has_source(claim, [number]) is found


def test_the_numbers_in_an_output() -> None:
    text = "✓ x2: ≈ 1.34 … 1,234.5, in [-1e-06, 5_000] at .5; −3"
    assert list(numbers_in(text)) == [1.34, 1234.5, -1e-06, 5000, 0.5, -3]


def notebook(markdown: str, *cells: dict[str, Any]) -> dict[str, Any]:
    return {"cells": [{"cell_type": "markdown", "source": markdown}, *cells]}


def test_a_source_is_an_output_the_code_or_a_loaded_record(tmp_path: Path) -> None:
    record = {
        "config": {"lr": 0.031},
        "result": {"held_out": 58.137, "curve": [9.91], "norms": {"end": 0.77}},
        "curve": {"first": [4.0628]},
    }
    folder = tmp_path / "counts"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps(record))
    cells = [
        code("verify('x', y, 2.25)", stream("✓ x: ≈ 1.347, in [1.1, 1.7]\n")),
        code("picture", picture("the weights fall from 0.62 to 0.1")),
    ]
    text = "1.35, 2.25, 1.1, 0.62: here. 58.1, 0.031, 0.77: recorded. 9.91, 4.06: curves. 7.5: no."
    missing = [(1, claim) for claim in ("9.91", "4.06", "7.5")]
    loading = code("load('counts')")
    assert without_source(notebook(text, *cells, loading), tmp_path) == missing
    recorded = [(1, claim) for claim in ("58.1", "0.031", "0.77")]
    assert without_source(notebook(text, *cells), tmp_path) == recorded + missing
