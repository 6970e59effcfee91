"""What of a stored output may differ from a new one: the number, or the range, right behind ≈.

``verify`` prints what it measured there, and a picture's finding or alt text may do the same. Name,
bound, band, order and sign of relation, and the ≈ itself, are compared as they stand.
"""

from __future__ import annotations

import re

NUMBER = r"[-−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?"
# In this order: pattern and replacement, as nbval takes them.
PATTERNS = {
    rf"≈ {NUMBER} … {NUMBER}": "≈ # … #",
    rf"≈ {NUMBER}": "≈ #",
}


def sanitized(text: str) -> str:
    """``text`` without what was measured."""
    for pattern, replacement in PATTERNS.items():
        text = re.sub(pattern, replacement, text)
    return text
