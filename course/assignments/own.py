"""A student's own look before handing in: the notebook from top to bottom, and its checks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

_PROGRAM = """
import json, sys
from course.assignments.shell import plain_shell
shell = plain_shell()
for number, cell in enumerate(json.load(open(sys.argv[1], encoding="utf-8")), 1):
    if not shell.run_cell(cell, silent=True).success:
        print(f"(code cell {number} stopped)")
"""
_STUDENT = re.compile(r"^STUDENT = .*$", re.MULTILINE)


def check_file(path: Path, student: str | None = None) -> int:
    """Run the notebook at ``path`` and print what its cells print; the exit status is Python's.

    ``ValueError`` if the file is no notebook.
    """
    try:
        notebook = json.loads(path.read_bytes().decode("utf-8-sig"))
        cells = [
            "".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"file: expected a notebook, got {path} ({error})") from None
    if student is not None:
        cells = [_STUDENT.sub(lambda _: f"STUDENT = {student!r}", cell) for cell in cells]
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "cells.json"
        given.write_text(json.dumps(cells), encoding="utf-8")
        environment = dict(os.environ) | {"MPLBACKEND": "Agg", "PYTHONIOENCODING": "utf-8:replace"}
        return subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(given)],
            env=environment,
            cwd=path.resolve().parent,
        ).returncode
