"""What the command ``course`` starts: it says so when another module stands in the course's place.

A module of its own, since ``import course`` may find something that has nothing to do with this
project: a ``course.py`` or a folder on ``PYTHONPATH``, another package of that name.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def stranger() -> str | None:
    """Where ``import course`` leads if not to this project, else None."""
    spec = importlib.util.find_spec("course")
    if spec is None:
        return "nothing"
    if spec.origin and Path(spec.origin).with_name("doctor.py").is_file():
        return None
    return spec.origin or ", ".join(spec.submodule_search_locations or ())


def main() -> int:
    """Run the command line of the course; returns the exit status."""
    place = stranger()
    if place is not None:
        print(
            f"`import course` leads to {place}, not to the course. Rename that file or folder, or "
            "uninstall that package; then run `make lab` again.",
            file=sys.stderr,
        )
        return 1
    from course.cli import main as run

    return run()
