"""Run notebooks and store their outputs (``make notebooks``).

    python -m tests.notebooks.execute [PART OF A NAME …]

A notebook is written whole, and only when all its cells ran inside their time budgets. What the
gate then finds wrong is printed, and the exit status is 1.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from tests.notebooks import gate, standards
from tests.notebooks.clean import clean

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
HARD_LIMIT = 4  # a cell is interrupted after this many budgets


def time_factor() -> float:
    """How much slower than planned this machine may be (``COURSE_TIME_FACTOR``, default 1)."""
    return float(os.environ.get("COURSE_TIME_FACTOR", "1"))


@contextmanager
def own_ipython() -> Iterator[None]:
    """Kernels started inside read none of this person's IPython settings, and log only errors."""
    before = os.environ.get("IPYTHONDIR")
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile_default"
        profile.mkdir()
        (profile / "ipython_kernel_config.py").write_text(
            "get_config().IPKernelApp.log_level = 40\n"
        )
        os.environ["IPYTHONDIR"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["IPYTHONDIR"]
            else:
                os.environ["IPYTHONDIR"] = before


class Recorder(NotebookClient):
    """Runs a notebook and notes the seconds each cell took."""

    def __init__(self, notebook: NotebookNode, folder: Path) -> None:
        super().__init__(
            notebook,
            kernel_name="python3",
            timeout_func=lambda cell: gate.seconds_allowed(cell) * HARD_LIMIT * time_factor(),
            resources={"metadata": {"path": str(folder)}},
        )
        self.seconds: list[tuple[float, int]] = []
        self.on_cell_execute = self._start
        self.on_cell_executed = self._stop

    def _start(self, cell: NotebookNode, cell_index: int) -> None:
        self._started = time.perf_counter()

    def _stop(self, cell: NotebookNode, cell_index: int, **_: object) -> None:
        self.seconds.append((time.perf_counter() - self._started, cell_index))


def over_budget(notebook: NotebookNode, seconds: list[tuple[float, int]]) -> list[str]:
    """Complaints about cells, and the whole, that took longer than they may."""
    found = []
    for taken, index in seconds:
        allowed = gate.seconds_allowed(notebook.cells[index]) * time_factor()
        if taken > allowed:
            found.append(f"cell {index + 1} took {taken:.0f} s, allowed are {allowed:.0f} s")
    total = sum(taken for taken, _ in seconds)
    if total > gate.NOTEBOOK_SECONDS * time_factor():
        allowed = gate.NOTEBOOK_SECONDS * time_factor()
        found.append(f"the notebook took {total:.0f} s, allowed are {allowed:.0f} s")
    return found


def run(notebook: NotebookNode, folder: Path) -> list[tuple[float, int]]:
    """Execute in place, from nothing; the seconds of each cell."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = Recorder(notebook, folder)
    client.execute()
    return client.seconds


def write_whole(notebook: NotebookNode, path: Path) -> None:
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    os.replace(draft, path)


def refresh(path: Path) -> bool:
    """Execute, clean and store one notebook; True if nothing is wrong with it."""
    print(f"{path.name}: running", flush=True)
    notebook = nbformat.read(path, as_version=4)
    try:
        seconds = run(notebook, path.parent)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        print(f"{path.name}: NOT stored, a cell failed\n{error}")
        return False
    slow = over_budget(notebook, seconds)
    if slow:
        print(f"{path.name}: NOT stored: " + "; ".join(slow))
        return False
    write_whole(clean(notebook), path)
    compared, showing = gate.coverage(notebook)
    longest, index = max(seconds, default=(0.0, 0))
    total = sum(taken for taken, _ in seconds)
    print(
        f"{path.name}: stored; {compared} of {showing} cells compared, "
        f"{gate.verify_lines(notebook)} verify lines, {total:.0f} s"
        f" (longest: cell {index + 1}, {longest:.1f} s)"
    )
    wrong = [*gate.complaints(notebook), *standards.review(notebook).complaints]
    for complaint in wrong:
        print(f"{path.name}: {complaint}")
    return not wrong


def main(arguments: Sequence[str]) -> int:
    paths = sorted(
        path
        for path in NOTEBOOKS.glob("*.ipynb")
        if not arguments or any(part in path.name for part in arguments)
    )
    if not paths:
        print(f"no notebook has {' or '.join(arguments)} in its name", file=sys.stderr)
        return 2
    with own_ipython():
        good = [refresh(path) for path in paths]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
