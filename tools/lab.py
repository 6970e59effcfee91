"""Start JupyterLab on notebook 00, for this machine only, with no call to the outside."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from course.doctor import has_browser

ROOT = Path(__file__).resolve().parent.parent
FIRST = "notebooks/00_start_here.ipynb"
# Without this JupyterLab asks every new reader whether it may fetch its news.
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
    }
}


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
        "--ServerApp.jpserver_extensions=course.lab_extension=True",  # saves pictures
    ]
    if not has_browser():
        arguments.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--allow-root")
    return arguments


def quiet_settings(folder: Path) -> None:
    """Write the course's defaults into an environment's JupyterLab, unless there are others."""
    overrides = folder / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
    if not overrides.exists():
        overrides.parent.mkdir(parents=True, exist_ok=True)
        overrides.write_text(json.dumps(SETTINGS, indent=1) + "\n", encoding="utf-8")


def port_number(text: str) -> int:
    """The port that ``text`` names; JupyterLab would print the address of one that cannot be."""
    if not text.isdecimal() or not 1 <= int(text) <= 65_535:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 1 to 65535, got {text!r} (make lab PORT=8888)"
        )
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=port_number, default=8888)
    quiet_settings(Path(sys.prefix))
    command = [sys.executable, "-m", "jupyterlab", *lab_arguments(parser.parse_args().port)]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
