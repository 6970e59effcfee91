"""JupyterLab folds a stored detour, and opens it again at a click."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tests.browser.lab import TOKEN, find_browser, serve
from tests.notebooks.clean import clean

pytestmark = pytest.mark.browser

if find_browser() is None:
    pytest.skip("no Chromium here: detours not tried in a browser", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

PATIENCE = 60_000  # milliseconds


def test_a_detour_is_folded_and_opens(tmp_path: Path) -> None:
    detour = new_markdown_cell("### Detour: why\n\nGives the law.", metadata={"tags": ["detour"]})
    hidden = [new_markdown_cell("the way round"), new_code_cell("1 + 1")]
    notebook = new_notebook(cells=[detour, *hidden, new_markdown_cell("### the road goes on")])
    work, private = tmp_path / "work", tmp_path / "private"
    work.mkdir()
    private.mkdir()
    nbformat.write(clean(notebook), work / "detour.ipynb")
    with serve(work, private) as address, playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=find_browser(),
            args=["--no-sandbox", "--disable-gpu", "--no-proxy-server"],
        )
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(f"{address}/lab/tree/detour.ipynb?token={TOKEN}")
        text = page.locator(".jp-Notebook .jp-RenderedMarkdown")
        text.filter(has_text="the road goes on").wait_for()
        text.filter(has_text="Gives the law.").wait_for()
        button = page.get_by_role("button", name="2 cells hidden")
        button.wait_for()
        assert not text.filter(has_text="the way round").is_visible()
        button.click()
        text.filter(has_text="the way round").wait_for()
        browser.close()
