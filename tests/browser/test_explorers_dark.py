"""Explorers in a dark theme, a narrow page and at 200 %; what a refusal and a lost kernel show.

Screenshots go to ``COURSE_SCREENSHOTS`` if that names a folder, else to pytest's temporary one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from course.widgets import AttentionExplorer, ProbeExplorer
from tests.browser.lab import PATIENCE, browse, choose, find_browser, output, run, serve

pytestmark = pytest.mark.browser

if find_browser() is None:
    pytest.skip(
        "no Chromium here (set COURSE_BROWSER to one): explorers not tried in a dark page",
        allow_module_level=True,
    )
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

EXPLORERS = (AttentionExplorer, ProbeExplorer)
WIDTH, HEIGHT = 1300, 1250


def dark_settings(private: Path) -> None:
    """What JupyterLab keeps when a reader chooses its dark theme."""
    folder = private / "settings" / "@jupyterlab" / "apputils-extension"
    folder.mkdir(parents=True)
    chosen = json.dumps({"theme": "JupyterLab Dark"})
    (folder / "themes.jupyterlab-settings").write_text(chosen, encoding="utf-8")


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(os.environ.get("COURSE_SCREENSHOTS") or tmp_path_factory.mktemp("shots"))


@pytest.fixture(scope="module")
def dark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[playwright.Page]:
    folder, private = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("jupyter")
    dark_settings(private)
    notebook = nbformat.v4.new_notebook()
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata["kernelspec"] = kernel
    for kind in EXPLORERS:
        source = f"from course.widgets import {kind.__name__}\n{kind.__name__}()"
        notebook.cells.append(nbformat.v4.new_code_cell(source))
    nbformat.write(notebook, folder / "dark.ipynb")
    with serve(folder, private) as address, browse(address, "dark.ipynb") as page:
        for index in range(len(EXPLORERS)):
            run(page, index)
        yield page


@pytest.fixture
def page(dark: playwright.Page) -> playwright.Page:
    """With its full size again, whatever the test before left."""
    dark.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    return dark


def test_a_dark_page_frames_the_picture_and_can_turn_it_dark(page, shots: Path) -> None:
    assert page.locator("body").get_attribute("data-jp-theme-light") == "false"
    area = output(page, 0)
    picture = area.locator("img.course-picture")
    look = "(it, name) => getComputedStyle(it)[name]"
    assert picture.evaluate(look, "borderTopWidth") == "6px"
    picture.scroll_into_view_if_needed()
    page.screenshot(path=shots / "7-dark.png")
    source = picture.get_attribute("src")
    area.get_by_role("button", name="Dark picture").click()
    playwright.expect(area.locator(".course-dark")).to_have_count(1, timeout=PATIENCE)
    assert "invert" in picture.evaluate(look, "filter")
    assert picture.get_attribute("src") == source
    page.screenshot(path=shots / "8-dark-picture.png")
    area.get_by_role("button", name="Dark picture").click()


@pytest.mark.parametrize(("width", "name"), [(800, "9-800-pixels"), (WIDTH // 2, "10-200-percent")])
def test_letters_keep_their_size_in_a_narrow_page(page, shots: Path, width: int, name: str) -> None:
    """A zoom of 200 % leaves half of the CSS pixels, each twice as large."""
    page.set_viewport_size({"width": width, "height": HEIGHT})
    for index in range(len(EXPLORERS)):
        picture = output(page, index).locator("img.course-picture")
        picture.scroll_into_view_if_needed()
        drawn = picture.evaluate("it => it.getBoundingClientRect().width")
        assert drawn >= 0.9 * float(picture.get_attribute("width"))
        # What does not fit is scrolled in a box of its own: the controls stay where they are.
        box = picture.evaluate(
            "it => { const box = it.closest('.widget-html');"
            " return [box.clientWidth, box.scrollWidth, getComputedStyle(box).overflowX]; }"
        )
        assert box[1] <= box[0] + 1 or box[2] == "auto"
        for field in output(page, index).locator("input[type=text]").all():
            assert field.bounding_box()["x"] + field.bounding_box()["width"] <= width
    page.screenshot(path=shots / f"{name}.png")


def test_every_handle_of_a_slider_has_its_name(page) -> None:
    for index, kind in enumerate(EXPLORERS):
        area = output(page, index)
        for control in kind.controls.values():
            if type(control).__name__ == "Slider":
                handle = area.get_by_role("slider", name=control.label, exact=True)
                playwright.expect(handle).to_have_count(1, timeout=PATIENCE)


def test_a_refused_sentence_stays_and_the_picture_with_it(page) -> None:
    area = output(page, 1)
    field = area.get_by_role("textbox", name="Sentence")
    place = "it => it.querySelector('img.course-picture').getBoundingClientRect().top"
    place = f"it => ({place})(it) - it.getBoundingClientRect().top"
    before = area.evaluate(place)
    field.fill("the unicorn did not cross the river")
    field.press("Enter")
    alert = area.locator("[role=alert]")
    playwright.expect(alert).to_contain_text("got 'unicorn'", timeout=PATIENCE)
    whole = ProbeExplorer.controls["sentence"].value
    playwright.expect(alert).to_contain_text(f"The picture stays at “{whole}”.", timeout=PATIENCE)
    playwright.expect(field).to_have_value("the unicorn did not cross the river", timeout=PATIENCE)
    assert area.evaluate(place) == before
    assert area.locator(".course-refused").count() == 1
    area.get_by_role("button", name="Reset").click()
    playwright.expect(alert).to_have_count(0, timeout=PATIENCE)


def test_without_its_kernel_an_explorer_says_so_and_shows_no_broken_links(page, shots) -> None:
    """The last test: nothing lives after it."""
    choose(page, "Kernel", "kernelmenu:restart")
    page.locator(".jp-Dialog .jp-mod-accept").click()
    gone = output(page, 0).locator(".course-explorer.jupyter-widgets-disconnected")
    gone.wait_for()
    content = "it => getComputedStyle(it, '::before').content"
    assert "run this cell again" in gone.evaluate(content)
    parts = gone.locator(".jupyter-widgets-disconnected").all()
    assert parts and {part.evaluate(content) for part in parts} == {"none"}
    page.screenshot(path=shots / "11-restarted.png")
