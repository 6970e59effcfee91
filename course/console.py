"""One line on any console: a sign that it does not have must not turn a result into an error."""

from __future__ import annotations

import sys

#: What stands for a sign on a console that has it not (Windows' older ones, a log in Latin-1).
PLAIN = {"✓": "ok", "✗": "not ok", "○": "to do", "Δ": "d", "≈": "~", "≤": "<=", "≥": ">="}
PLAIN |= {"·": "*", "−": "-", "×": "x", "…": "..."}


def say(line: str) -> None:
    """Print ``line`` to stdout, in plain signs where the console's encoding lacks the others."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        line.encode(encoding)
    except UnicodeEncodeError:
        for sign, plain in PLAIN.items():
            line = line.replace(sign, plain)
        line = line.encode(encoding, "replace").decode(encoding)
    print(line)
