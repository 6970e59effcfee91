"""A real JupyterLab and a headless Chromium, for benches that measure what a hand feels."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
TOKEN = "bench"
PATIENCE = 120_000  # milliseconds until something must have appeared
STARTUP = 300  # seconds until the server must have answered
STEPS, PAUSE = 120, 16  # movements of the mouse, and milliseconds between two of them
_LAST = 600  # milliseconds without a new picture that make the last one the last

_WATCH = """area => { window.seen = []; new MutationObserver(changes => { for (const c of changes)
  for (const node of c.addedNodes) if (node.matches && node.matches('img.course-picture'))
    node.decode().then(() => window.seen.push(performance.now())); })
  .observe(area, {subtree: true, childList: true}); }"""


def find_browser() -> str | None:
    """A Chromium on this machine: ``COURSE_BROWSER``, else the usual names on the path."""
    named = os.environ.get("COURSE_BROWSER")
    return named or next(filter(None, map(shutil.which, PROGRAMS)), None)


def missing() -> str | None:
    """What a bench in a browser lacks here, in a line; None if nothing."""
    for name in ("playwright", "jupyterlab"):
        if find_spec(name) is None:
            return f"{name} is not installed"
    return None if find_browser() else "no Chromium found (COURSE_BROWSER can name one)"


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """JupyterLab on ``folder``, with settings of its own; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR", "JUPYTERLAB_WORKSPACES_DIR")
    own = {name: str(folder / "private" / name) for name in names}
    options = [f"--ServerApp.port={port}", f"--ServerApp.root_dir={folder}", "--no-browser"]
    options += [f"--IdentityProvider.token={TOKEN}", "--LabApp.news_url=None"]
    options += ["--ServerApp.port_retries=0", "--ServerApp.allow_root=True"]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *options],
        env=os.environ | own,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(server, f"{address}/api")
        yield address
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait(server: subprocess.Popen[bytes], address: str) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    until = time.monotonic() + STARTUP
    while time.monotonic() < until and server.poll() is None:
        try:
            direct.open(address, timeout=5).close()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)
    raise RuntimeError("JupyterLab did not answer")


def _notebook(sources: Sequence[str]) -> dict[str, Any]:
    cells: list[dict[str, Any]] = [
        {
            "cell_type": "code",
            "id": f"cell-{place}",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": source,
        }
        for place, source in enumerate(sources)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def drag(sliders: Mapping[str, tuple[str, int]]) -> dict[str, dict[str, float]]:
    """Drag one slider of each explorer for some seconds; ``sliders``: its label and how
    many places it has, by class name. The mouse goes from place to place and back.

    Returns by class name ``rate``, pictures a second while the mouse moves, and ``delay``, the
    seconds from its release to the last picture (0 where that was there already).
    """
    playwright = importlib.import_module("playwright.sync_api")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        sources = [f"from course.widgets import {kind}\n{kind}()" for kind in sliders]
        (folder / "bench.ipynb").write_text(json.dumps(_notebook(sources)), encoding="utf-8")
        with _served(folder) as address, playwright.sync_playwright() as driver:
            quiet = ("--no-sandbox", "--disable-gpu", "--no-proxy-server")
            browser = driver.chromium.launch(executable_path=find_browser(), args=[*quiet])
            page = browser.new_page(viewport={"width": 1300, "height": 1250})
            page.set_default_timeout(PATIENCE)
            page.goto(f"{address}/lab/tree/bench.ipynb?token={TOKEN}")
            page.get_by_text("| Idle").first.wait_for()
            found = {
                kind: _dragged(page, cell, *slider)
                for cell, (kind, slider) in enumerate(sliders.items())
            }
            browser.close()
    return found


def _dragged(page: Any, number: int, label: str, places: int) -> dict[str, float]:
    cell = page.locator(".jp-Notebook .jp-CodeCell").nth(number)
    cell.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    area = cell.locator(".jp-OutputArea")
    area.locator("img.course-picture").wait_for()
    slider = area.locator(".widget-slider", has_text=label).first
    slider.scroll_into_view_if_needed()
    box = slider.locator(".noUi-base").bounding_box()
    handle = slider.locator(".noUi-handle").bounding_box()
    area.evaluate(_WATCH)
    y = handle["y"] + handle["height"] / 2
    page.mouse.move(handle["x"] + handle["width"] / 2, y)
    page.mouse.down()
    start = page.evaluate("performance.now()")
    for step in range(STEPS):
        there = (places - 1) - abs(places - 1 - step % (2 * (places - 1)))  # 0, 1, 2 … 2, 1, 0
        page.mouse.move(box["x"] + there / (places - 1) * box["width"], y)
        page.wait_for_timeout(PAUSE)
    end = page.evaluate("performance.now()")
    page.mouse.up()
    count = -1
    while count != (count := page.evaluate("window.seen.length")):
        page.wait_for_timeout(_LAST)
    seen = page.evaluate("window.seen")
    during = sum(start <= moment <= end for moment in seen)
    late = max([moment - end for moment in seen if moment > end], default=0.0)
    return {"rate": 1e3 * during / (end - start), "delay": late / 1e3}
