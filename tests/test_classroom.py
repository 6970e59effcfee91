"""nbgrader's own commands accept the sources: generate_assignment, autograde, export.

Runs where nbgrader is: in ``.venv-classroom`` (``make classroom``), in this environment, or in the
one whose Python ``COURSE_CLASSROOM_PYTHON`` names.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from course.assignments.source import grade_id_of, names, nbgrader_of, read_source, solved, text_of

ROOT = Path(__file__).parent.parent


def _python() -> str | None:
    """A Python that has both nbgrader and the course."""
    named = os.environ.get("COURSE_CLASSROOM_PYTHON")
    for path in filter(None, (named, str(ROOT / ".venv-classroom/bin/python"), sys.executable)):
        looked = [path, "-c", "import nbgrader, course.assignments"]
        if Path(path).exists() and subprocess.run(looked, capture_output=True).returncode == 0:
            return path
    return None


PYTHON = _python()
needs_nbgrader = pytest.mark.skipif(
    PYTHON is None, reason="nbgrader is not installed (make classroom): nothing was handed to it"
)


def nbgrader(folder: Path, *words: str) -> str:
    assert PYTHON is not None
    environment = dict(os.environ) | {"HOME": str(folder), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(PYTHON).parent}{os.pathsep}{environment['PATH']}"
    environment.pop("JUPYTER_PATH", None)
    done = subprocess.run(
        [PYTHON, "-m", "nbgrader", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_nbgrader
@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_nbgrader_accepts_a_source_and_grades_it(name, tmp_path):
    source = read_source(name)
    (tmp_path / "nbgrader_config.py").write_text(
        "c = get_config()\nc.CourseDirectory.course_id = 'attention'\n"
        "c.ExecutePreprocessor.timeout = 900  # by default 30 seconds, also on a busy machine\n"
    )
    place = tmp_path / "source" / name
    place.mkdir(parents=True)
    (place / f"{name}.ipynb").write_text(json.dumps(source.notebook), encoding="utf-8")
    nbgrader(tmp_path, "generate_assignment", name)
    released = json.loads((tmp_path / "release" / name / f"{name}.ipynb").read_text("utf-8"))
    assert not any("SOLUTION" in text_of(cell) for cell in released["cells"])

    _hand_in(tmp_path, "empty", name, released)
    for cell in released["cells"]:
        if nbgrader_of(cell).get("solution"):
            cell["source"] = solved(text_of(source.cell(str(grade_id_of(cell)))))
    _hand_in(tmp_path, "perfect", name, released)
    nbgrader(tmp_path, "autograde", name)
    nbgrader(tmp_path, "export")

    with (tmp_path / "grades.csv").open(newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    by_hand = sum(map(source.points, source.written))
    total = sum(
        nbgrader_of(cell)["points"] for cell in source.cells if nbgrader_of(cell).get("grade")
    )
    assert {row["max_score"] for row in rows.values()} == {str(float(total))}
    assert float(rows["empty"]["raw_score"]) == 0
    assert float(rows["perfect"]["raw_score"]) == total - by_hand


def _hand_in(folder: Path, student: str, name: str, notebook: dict) -> None:
    path = folder / "submitted" / student / name / f"{name}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(notebook), encoding="utf-8")
