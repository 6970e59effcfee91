"""Do the numbers in a notebook's text have a source?

A decimal (1.84), a percentage (12 %, 12 per cent) and a multiple (3 times) in the text must be
found, rounded to the digits that are written, among the numbers that the notebook prints, in its
code, or in the result of a recorded run that its code loads. A percentage is also found as a share
(0.12). Left out: formulas, code, links, headings, and numbers that name a thing (``NAMES``).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "course" / "experiments" / "results"

# What is no running text, in the order in which it is taken out.
NOT_TEXT = (
    re.compile(r"^(```|~~~).*?^\1\s*$", re.DOTALL | re.MULTILINE),  # code
    re.compile(r"<code>.*?</code>|`+[^`]*`+", re.DOTALL),
    re.compile(r"\$\$.*?\$\$|\$[^$]+\$|\\\(.*?\\\)|\\\[.*?\\\]", re.DOTALL),  # formulas
    re.compile(r"!?\[[^\]]*\]\([^)]*\)|<?https?://\S+"),  # links
    re.compile(r"<[^>]+>"),
)
HEADING = re.compile(r"^ {0,3}#{1,6} .*$", re.MULTILINE)
# Numbers that name a thing.
NAMES = re.compile(
    r"""
      \barXiv:?\s*\d{4}\.\d{4,5}(v\d+)?  # a paper
    | \bdoi:?\s*\S+ | \b10\.\d{4,}/\S+
    | \b\d+(\.\d+){2,}\b | \bv\d[\d.]*  # a version, 1.5.0 or v1.5; a date, 24.12.2025
    | ( \b(versions?|Python|PyTorch|Triton|NumPy|CUDA|JupyterLab  # a version, behind its program
        |[Ee]xercises?|[Ss]ections?|[Cc]hapters?|[Ff]igures?|[Tt]ables?|[Nn]otebooks?|[Rr]ows?
        |[Rr]ungs?|[Ee]quations?)\b | § )
      \s*\d+\.\d+(\s*(,|and|to|–)\s*\d+\.\d+)*  # Exercise 1.1, sections 2.1 and 2.3
    """,
    re.VERBOSE,
)
DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
CLAIMED = re.compile(
    rf"(?<![\w.,])(?P<number>{DIGITS}(?:\.\d+)?)"
    r"(?:(?P<percent>\s?%|\s+per\s+cent\b|\s+percent\b)|(?P<times>\s+times\b))?"
)
PRINTED = re.compile(
    r"(?<![\w.])[-−]?(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)?(?:\.\d+|(?<=\d))(?:[eE][-+]?\d+)?"
)


def running_text(markdown: str) -> str:
    """The text of a cell without code, formulas, links and markup; headings stay."""
    for pattern in NOT_TEXT:
        markdown = pattern.sub(" ", markdown)
    return markdown


def claimed(markdown: str) -> list[str]:
    """The numbers in a cell's text that need a source, as they are written."""
    text = NAMES.sub(" ", HEADING.sub(" ", running_text(markdown)))
    return [
        " ".join(match[0].split())
        for match in CLAIMED.finditer(text)
        if "." in match["number"] or match["percent"] or match["times"]
    ]


def has_source(claim: str, numbers: Iterable[float]) -> bool:
    """Does one of ``numbers``, rounded to the digits of ``claim``, give it?"""
    match = CLAIMED.match(claim)
    assert match is not None
    digits = match["number"].replace(",", "")
    written = float(digits)
    half = 0.5 * 10.0 ** -len(digits.partition(".")[2]) * (1 + 1e-9)
    units = (1.0, 100.0) if match["percent"] else (1.0,)
    return any(abs(abs(x) * unit - written) <= half for x in numbers for unit in units)


def numbers_in(text: str) -> Iterator[float]:
    """Every number that is written in ``text``."""
    for match in PRINTED.finditer(text):
        yield float(match[0].replace(",", "").replace("_", "").replace("−", "-"))


def without_source(notebook: dict[str, Any], results: Path = RESULTS) -> list[tuple[int, str]]:
    """(place of the cell, number) of each number in the text that has no source."""
    code, printed = [], []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            code.append(_text(cell["source"]))
            for output in cell["outputs"]:
                printed.append(_text(output.get("text", "")))
                printed.append(_text(output.get("data", {}).get("text/plain", "")))
    sources = set(numbers_in("\n".join(code + printed)))
    for experiment in sorted(path.name for path in results.glob("*")):
        if re.search(rf"[\"']{re.escape(experiment)}[\"']", "\n".join(code)):
            sources |= recorded(results / experiment)
    return [
        (place, claim)
        for place, cell in enumerate(notebook["cells"], 1)
        if cell["cell_type"] == "markdown"
        for claim in claimed(_text(cell["source"]))
        if not has_source(claim, sources)
    ]


@functools.cache
def recorded(folder: Path) -> frozenset[float]:
    """The single numbers in the settings and results of an experiment's runs (no curves)."""
    found: set[float] = set()
    for path in folder.glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        found.update(_single([record.get("config"), record.get("result")]))
    return frozenset(found)


def _single(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = [entry for entry in value.values() if not isinstance(entry, list)]
    if isinstance(value, list):
        for entry in value:
            yield from _single(entry)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def _text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)
