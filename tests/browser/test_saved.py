"""Evening and morning: run an explorer, save by the menu, stop the server, open it again."""

from __future__ import annotations

import nbformat
import pytest

from course.widgets import RooflineExplorer
from tests.browser.lab import browse, choose, find_browser, output, run, serve

pytestmark = pytest.mark.browser

if find_browser() is None:
    pytest.skip(
        "no Chromium here (set COURSE_BROWSER to one): a saved notebook not reopened",
        allow_module_level=True,
    )

NAME = "evening.ipynb"


def test_a_saved_notebook_shows_its_pictures_next_morning(tmp_path_factory) -> None:
    folder, private = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("jupyter")
    notebook = nbformat.v4.new_notebook()
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata["kernelspec"] = kernel
    source = "from course.widgets import RooflineExplorer\nRooflineExplorer()"
    notebook.cells.append(nbformat.v4.new_code_cell(source))
    nbformat.write(notebook, folder / NAME)

    with serve(folder, private) as address, browse(address, NAME) as page:
        run(page, 0)
        choose(page, "File", "docmanager:save")
        page.locator(".jp-mod-dirty").wait_for(state="detached")
        live = output(page, 0).locator("[role=status]")
        assert live.inner_text() == RooflineExplorer().status  # saving leaves the open one alive

    (stored,) = nbformat.read(folder / NAME, as_version=4).cells[0].outputs
    assert set(stored.data) == {"image/png", "text/plain"}

    with serve(folder, private) as address, browse(address, NAME) as page:
        page.get_by_text("| Idle").first.wait_for()  # by now JupyterLab knows which widgets live
        picture = output(page, 0).locator("img")
        picture.wait_for()
        page.wait_for_timeout(1_000)
        assert picture.evaluate("it => it.naturalWidth") > 300
        assert page.get_by_text("model not found").count() == 0
        run(page, 0)  # the cell brings it back to life
        assert output(page, 0).locator("[role=status]").inner_text() == RooflineExplorer().status
        assert page.get_by_text("model not found").count() == 0
