"""A JupyterLab on a free port and a headless Chromium in front of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from course.bench.browser import find_browser
from tools.lab import lab_arguments

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page
sync_playwright = pytest.importorskip("playwright.sync_api", reason="no playwright").sync_playwright

TOKEN = "explorers"
PATIENCE = 60_000  # milliseconds; a shared machine may be slow, a failure is still a failure
# Ours alone, not the course's: where the server looks, what it opens.
_REPLACED = ("--ServerApp.root_dir", "--LabApp.default_url", "--no-browser")


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


@contextmanager
def browse(address: str, notebook: str) -> Iterator[Page]:
    """A headless Chromium on ``notebook`` at ``address``, once its cells are there."""
    with sync_playwright() as driver:
        quiet = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
        browser = driver.chromium.launch(
            executable_path=find_browser(), args=[*quiet, "--no-proxy-server"]
        )
        page = browser.new_page(viewport={"width": 1300, "height": 1250})
        page.set_default_timeout(PATIENCE)
        page.goto(f"{address}/lab/tree/{notebook}?token={TOKEN}")
        page.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
        try:
            yield page
        finally:
            browser.close()


def output(page: Page, index: int) -> Locator:
    """What the code cell number ``index`` shows."""
    return page.locator(".jp-Notebook .jp-CodeCell").nth(index).locator(".jp-OutputArea")


def run(page: Page, index: int) -> None:
    """Run an explorer's cell and wait until it says its sentence."""
    page.get_by_text("| Idle").first.wait_for()  # the kernel takes cells
    page.locator(".jp-Notebook .jp-CodeCell").nth(index).locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    output(page, index).locator("[role=status]").wait_for()


def choose(page: Page, menu: str, command: str) -> None:
    """Choose an entry of a menu by the name of its command."""
    page.locator(".lm-MenuBar-itemLabel", has_text=menu).first.click()
    page.locator(f'.lm-Menu-item[data-command="{command}"]').click()


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
