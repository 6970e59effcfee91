"""``pytest -m gpu`` where there is torch, triton, numpy, pytest and hypothesis, and no more.

Whatever else the course or its tests use is made impossible to import in a child process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
ABSENT = (
    *("matplotlib", "ipywidgets", "jupyterlab", "IPython", "tqdm", "tokenizers", "pooch", "joblib"),
    *("nbval", "nbclient", "nbformat", "pytest_socket", "dask", "distributed", "playwright"),
)
BARE = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def bare_pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "COURSE_NETWORK"}
    return subprocess.run(
        [sys.executable, "-c", BARE, "-p", "no:cacheprovider", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the tests would be run")
def test_gpu_tests_are_found_and_skipped_with_one_line():
    made = bare_pytest("-m", "gpu", "-q")
    assert made.returncode == 0, made.stdout + made.stderr
    last = made.stdout.strip().splitlines()[-1]
    assert "skipped" in last and "error" not in last and "passed" not in last
    told = [line for line in made.stdout.splitlines() if line.startswith("SKIPPED")]
    assert len(told) == 1 and "no GPU here: nothing was run on one" in told[0]


def test_without_the_mark_nothing_is_left_out():
    """The other files are left out of ``-m gpu`` only: a missing package stays an error."""
    made = bare_pytest("--collect-only", "-q", "tests/test_plots.py", "tests/kernels/test_gpu.py")
    assert made.returncode == 2
    assert "No module named 'matplotlib'" in made.stdout
