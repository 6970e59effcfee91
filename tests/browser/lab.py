"""A JupyterLab on a free port and a headless Chromium in front of it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.lab import lab_arguments

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
TOKEN = "explorers"
# Ours alone, not the course's: where the server looks, what it opens.
_REPLACED = ("--ServerApp.root_dir", "--LabApp.default_url", "--no-browser")


def find_browser() -> str | None:
    """A Chromium on this machine: ``COURSE_BROWSER``, else the usual names on the path."""
    named = os.environ.get("COURSE_BROWSER")
    return named or next(filter(None, map(shutil.which, PROGRAMS)), None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def serve(folder: Path, private: Path, *, patience: float = 90) -> Iterator[str]:
    """Serve ``folder`` with the settings of ``make lab``; yields the address without a path.

    Settings, workspaces and history of this server lie in ``private``, not in the user's own.
    """
    port = free_port()
    own = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "IPYTHONDIR": "ipython"}
    own |= {"JUPYTERLAB_WORKSPACES_DIR": "workspaces", "JUPYTERLAB_SETTINGS_DIR": "settings"}
    environment = os.environ | {name: str(private / part) for name, part in own.items()}
    options = [a for a in lab_arguments(port) if not a.startswith(_REPLACED)]
    options += [f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={TOKEN}"]
    log = private / "server.log"
    with log.open("wb") as sink:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", *options],
            env=environment,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait(server, f"http://127.0.0.1:{port}/api", log, patience)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _wait(server: subprocess.Popen, address: str, log: Path, patience: float) -> None:
    until = time.monotonic() + patience
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < until:
        if server.poll() is not None:
            break
        try:
            direct.open(address, timeout=5).close()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not answer:\n{log.read_text(errors='replace')[-2000:]}")
