"""Start JupyterLab on notebook 00, for this machine only, with no call to the outside."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from course.doctor import has_browser

ROOT = Path(__file__).resolve().parent.parent
FIRST = "notebooks/00_start_here.ipynb"


def lab_arguments(port: int) -> list[str]:
    """The command line of ``jupyter lab``."""
    arguments = [
        f"--ServerApp.root_dir={ROOT}",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        f"--LabApp.default_url=/lab/tree/{FIRST}",
        "--ServerApp.log_level=WARN",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",  # the usual one asks the package index
    ]
    if not has_browser():
        arguments.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--allow-root")
    return arguments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8888)
    command = [sys.executable, "-m", "jupyterlab", *lab_arguments(parser.parse_args().port)]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
