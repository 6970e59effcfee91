"""Of a stored line only the measured number may change; all else, altered, is caught."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tests.notebooks.sanitize import sanitized
from tests.notebooks.test_execute import PICTURE, PNG, compare

BAND = "✓ a mean of one word: ≈ 1.34, in [1.1, 1.7]"
ARRAY = "✓ means: ≈ 1.12 … 1.61, in [1.1, 1.7]"
CLOSE = "✓ third: ≈ 0.333, |Δ| ≈ 3.1e-08 ≤ 1e-06"
RELATION = "✓ a > b: ≈ 0.320 > ≈ 0.305, the closest of 8 pairs"
TYPED = "✓ enough: ≈ 0.320 > 0.3"

SAME = [
    (BAND, "✓ a mean of one word: ≈ 1.4, in [1.1, 1.7]"),
    (BAND, "✓ a mean of one word: ≈ -12,345.6e-07, in [1.1, 1.7]"),
    (ARRAY, "✓ means: ≈ 1.2 … 1.6123, in [1.1, 1.7]"),
    (CLOSE, "✓ third: ≈ 0.334, |Δ| ≈ 0 ≤ 1e-06"),
    (RELATION, "✓ a > b: ≈ 5 > ≈ −0.305, the closest of 8 pairs"),
    (TYPED, "✓ enough: ≈ 1,234 > 0.3"),
    ("the mean is ≈ 12 words.", "the mean is ≈ 13.5 words."),
]

OTHER = {
    "the name": (BAND, BAND.replace("one word", "two words")),
    "a number in the name": (RELATION, RELATION.replace("a > b", "2 > 1")),
    "the lower end": (BAND, BAND.replace("1.1,", "1.2,")),
    "the upper end": (BAND, BAND.replace("1.7]", "1.8]")),
    "the bound": (CLOSE, CLOSE.replace("1e-06", "1e-05")),
    "the order": (f"{BAND}\n{ARRAY}", f"{ARRAY}\n{BAND}"),
    "the sign of the relation": (RELATION, RELATION.replace("0.320 >", "0.320 ≥")),
    "the typed bound": (TYPED, TYPED.replace("0.3", "0.2").replace("≈ 0.220", "≈ 0.320")),
    "what is measured": (RELATION, RELATION.replace("> ≈ 0.305", "> 0.305")),
    "the number of pairs": (RELATION, RELATION.replace("8 pairs", "9 pairs")),
    "a missing ≈": (BAND, BAND.replace("≈ ", "")),
    "a missing number": (BAND, BAND.replace("≈ 1.34", "≈")),
    "a range for a number": (BAND, BAND.replace("1.34", "1.34 … 1.5")),
    "a number for a range": (ARRAY, ARRAY.replace(" … 1.61", "")),
    "infinity": (BAND, BAND.replace("1.34", "inf")),
    "NaN": (BAND, BAND.replace("1.34", "nan")),
    "an exact number": ("✓ five: exactly 5", "✓ five: exactly 6"),
    "a boolean": ("✓ so: exactly True", "✓ so: exactly False"),
    "the unit": ("it takes ≈ 12 s", "it takes ≈ 12 ms"),
}


@pytest.mark.parametrize(("stored", "new"), SAME)
def test_another_measured_number_is_the_same_line(stored: str, new: str) -> None:
    assert sanitized(stored) == sanitized(new) != stored


@pytest.mark.parametrize(("stored", "new"), OTHER.values(), ids=OTHER)
def test_all_else_is_compared(stored: str, new: str) -> None:
    assert stored != new
    assert sanitized(stored) != sanitized(new)


def test_a_line_without_a_measurement_stays_as_it_is() -> None:
    for text in ("✓ five: exactly 5", "one third: 0.333", "", "a ≈ b", "≈1.3", "≈  1.3"):
        assert sanitized(text) == text


def test_nbval_compares_so(tmp_path: Path) -> None:
    """Each pair in a cell of one notebook: its stored output, and what the cell now prints."""
    pairs = [*SAME, *OTHER.values()]
    cells = [new_code_cell(PNG + PICTURE, execution_count=1)]
    for stored, new in pairs:
        output = new_output("stream", name="stdout", text=f"{stored}\n")
        cells.append(new_code_cell(f"print({new!r})", execution_count=1, outputs=[output]))
    pictures = [  # what is stored of one that now says "a dot at ≈ 1", with the alt text "≈ 2 dots"
        ("a dot at ≈ 1.5", "≈ 3 dots", True),
        ("a dot near ≈ 1", "≈ 2 dots", False),
        ("a dot at ≈ 1", "≈ 2 spots", False),
    ]
    for finding, alt, _ in pictures:
        data, metadata = {"image/png": "aGk=", "text/plain": finding}, {"image/png": {"alt": alt}}
        output = new_output("display_data", data=data, metadata=metadata)
        source = (
            "class P(Picture):\n"
            "    def _repr_mimebundle_(self, **_):\n"
            "        data = {'image/png': PNG, 'text/plain': 'a dot at ≈ 1'}\n"
            "        return data, {'image/png': {'alt': '≈ 2 dots'}}\n"
            "display(P())"
        )
        cells.append(new_code_cell(source, execution_count=1, outputs=[output]))
    nbformat.write(new_notebook(cells=cells), tmp_path / "01_lines.ipynb")

    failed = {int(number) for number in re.findall(r"FAILED \S+::Cell (\d+)", compare(tmp_path))}

    passes = [True] * (1 + len(SAME)) + [False] * len(OTHER) + [good for _, _, good in pictures]
    assert failed == {place for place, good in enumerate(passes) if not good}
