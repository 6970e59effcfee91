"""The verdict lines of a stored notebook: how many claims say little?

A claim says little if its band is wide, or if it is only a boolean where two numbers could stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.notebooks.sanitize import NUMBER

WIDE = 8.0
BAND = re.compile(
    rf"(?:≈ (?P<smallest>{NUMBER})(?: … (?P<largest>{NUMBER}))?, )?"
    rf"in \[(?P<low>{NUMBER}|-inf), (?P<high>{NUMBER}|inf)\]$"
)
BOOLEAN = re.compile(
    r": (exactly (\[|\]|, |True|False)*(True|False)\]*(, each of [\d,]+)?"
    r"|all [\d,]+ truth values as expected)$"
)


def is_wide(line: str) -> bool:
    """Does the band leave more than a factor of eight?

    A band on one side of 0 is wide if its ends are more than a factor of 8 apart. A band that
    contains 0 is wide if it reaches more than 8 times as far from 0 as anything that was measured:
    a smaller one would have done. (Without a measured number it counts as wide.)
    """
    band = BAND.search(line)
    if band is None:
        return False
    low, high = sorted((_number(band["low"]), _number(band["high"])), key=abs)
    if low * high > 0:
        return high / low > WIDE
    measured = [_number(end) for end in (band["smallest"], band["largest"]) if end]
    return abs(high) > WIDE * max(map(abs, measured), default=0.0)


def is_boolean(line: str) -> bool:
    return BOOLEAN.search(line) is not None


def counts(lines: Iterable[str]) -> tuple[int, int]:
    """(wide bands, booleans) among the verdict lines."""
    verdicts = [line for line in lines if line.startswith("✓ ")]
    return sum(map(is_wide, verdicts)), sum(map(is_boolean, verdicts))


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))
