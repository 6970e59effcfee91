"""Running, storing and comparing notebooks, on small ones made for the purpose."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tests.notebooks import execute, gate

ROOT = Path(__file__).resolve().parents[2]
PICTURE = """\
class Picture:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"image/png": PNG, "text/plain": "a dot at 1"}, {"image/png": {"alt": "a dot"}}
"""
# The smallest PNG: one grey pixel.
PNG = """\
import base64
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEA"
    "GGX5tgAAAABJRU5ErkJggg=="
)
"""


def write(folder: Path, name: str, *sources: str) -> Path:
    cells = [new_markdown_cell("# Does it run?"), *map(new_code_cell, sources)]
    path = folder / name
    nbformat.write(new_notebook(cells=cells), path)
    return path


def test_run_store_compare(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One story, since each kernel takes seconds: store, store again, spoil, compare."""
    good = write(tmp_path, "01_good.ipynb", PNG + PICTURE, "print('✓ it is so')", "Picture()")
    failing = write(tmp_path, "02_failing.ipynb", "print(1)", "1 / 0")
    noisy = write(tmp_path, "03_noisy.ipynb", "import sys", "print('!', file=sys.stderr)")
    before = failing.read_bytes()
    monkeypatch.setattr(execute, "NOTEBOOKS", tmp_path)

    assert execute.main([]) == 1
    printed = capsys.readouterr().out
    assert "01_good.ipynb: stored; 2 of 2 cells compared, 1 verify lines" in printed
    assert "02_failing.ipynb: NOT stored" in printed and "ZeroDivisionError" in printed
    assert failing.read_bytes() == before
    assert "03_noisy.ipynb: cell 3 (code): wrote to stderr" in printed
    assert not list(tmp_path.glob(".*"))
    assert gate.complaints(nbformat.read(good, as_version=4)) == []

    stored = good.read_bytes()
    assert execute.main(["good"]) == 0
    assert good.read_bytes() == stored

    notebook = nbformat.read(good, as_version=4)
    notebook.cells[2].outputs[0].text = "✓ it was so\n"
    nbformat.write(notebook, tmp_path / "04_stale.ipynb")
    notebook = nbformat.read(good, as_version=4)
    del notebook.cells[3].outputs[0].data["image/png"]
    nbformat.write(notebook, tmp_path / "05_no_picture.ipynb")
    failing.unlink()
    noisy.unlink()
    outcome = compare(tmp_path)
    assert "04_stale.ipynb::Cell 1" in outcome
    assert "05_no_picture.ipynb::Cell 2" in outcome and "Stale pictures" in outcome
    assert "01_good.ipynb::" not in outcome
    assert "2 failed, 10 passed" in outcome
    row = next(line for line in outcome.splitlines() if line.startswith("01_good.ipynb"))
    assert row.split()[1:5] == ["2/2", "(100", "%)", "1"]


def test_the_gate_and_the_clock_in_the_comparison(tmp_path: Path) -> None:
    path = write(tmp_path, "01_slow.ipynb", "import time\ntime.sleep(0.3)", "print('/tmp/x/y')")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].execution_count, notebook.cells[2].execution_count = 1, 2
    notebook.cells[2].outputs = [nbformat.v4.new_output("stream", text="/tmp/x/y\n")]
    nbformat.write(notebook, path)
    outcome = compare(tmp_path, COURSE_TIME_FACTOR="0.01")
    assert "01_slow.ipynb::Cell 0" in outcome and "allowed are" in outcome
    assert "01_slow.ipynb::gate" in outcome and "absolute path in the output" in outcome


def compare(folder: Path, **variables: str) -> str:
    """The output of the comparing run over the notebooks in a folder."""
    options = ["-p", "tests.notebooks.plugin", "--nbval", "--nbval-current-env", "-q", "-rf"]
    options += ["--numprocesses=2", "--dist=loadfile"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", str(folder), str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTEST_ADDOPTS": "", "COURSE_TIME_FACTOR": "3"} | variables,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def test_over_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COURSE_TIME_FACTOR", raising=False)
    notebook = new_notebook(cells=[new_code_cell("a"), new_code_cell("b")])
    assert execute.over_budget(notebook, [(19.0, 0), (19.0, 1)]) == []
    assert execute.over_budget(notebook, [(21.0, 0), (1.0, 1)]) == [
        "cell 1 took 21 s, allowed are 20 s"
    ]
    notebook.cells[0].metadata["tags"] = ["training"]
    assert execute.over_budget(notebook, [(39.0, 0), (1.0, 1)]) == []
    assert execute.over_budget(notebook, [(39.0, 0)] + [(18.0, 1)] * 3) == [
        "the notebook took 93 s, allowed are 90 s"
    ]
    monkeypatch.setenv("COURSE_TIME_FACTOR", "2")
    assert execute.over_budget(notebook, [(79.0, 0), (40.0, 1), (40.0, 1)]) == []
    assert execute.over_budget(notebook, [(81.0, 0), (41.0, 1), (90.0, 1)]) == [
        "cell 1 took 81 s, allowed are 80 s",
        "cell 2 took 41 s, allowed are 40 s",
        "cell 2 took 90 s, allowed are 40 s",
        "the notebook took 212 s, allowed are 180 s",
    ]


def test_no_such_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute.main(["no_such_name"]) == 2
    assert "no notebook has no_such_name in its name" in capsys.readouterr().err
