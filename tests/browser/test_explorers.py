"""The explorers in a real JupyterLab: seen without a kernel, moved by keyboard, saved, wrong input.

Screenshots go to ``COURSE_SCREENSHOTS`` if that names a folder, else to pytest's temporary one.
"""

from __future__ import annotations

import base64
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from course.widgets import (
    AttentionExplorer,
    BlockExplorer,
    ChunkExplorer,
    CostExplorer,
    CrosstalkExplorer,
    Explorer,
    FeatureMapExplorer,
    PositionExplorer,
    ProbeExplorer,
    RegisterExplorer,
    RooflineExplorer,
    RowExplorer,
    ScaleExplorer,
    Slider,
)
from tests.browser.lab import PATIENCE, browse, find_browser, output, run, serve

pytestmark = pytest.mark.browser

if find_browser() is None:
    pytest.skip(
        "no Chromium here (set COURSE_BROWSER to one): explorers not tried in a browser",
        allow_module_level=True,
    )
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

EXPLORERS: tuple[type[Explorer], ...] = (
    RowExplorer,
    AttentionExplorer,
    RegisterExplorer,
    ChunkExplorer,
    FeatureMapExplorer,
    RooflineExplorer,
    CrosstalkExplorer,
    ProbeExplorer,
    BlockExplorer,
    CostExplorer,
    PositionExplorer,
    ScaleExplorer,
)


def stored_notebook() -> nbformat.NotebookNode:
    """A notebook as the course stores it: executed, with pictures and sentences, no live view."""
    notebook = nbformat.v4.new_notebook()
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    for count, explorer in enumerate(EXPLORERS, 1):
        data, metadata = explorer()._repr_mimebundle_()
        data["image/png"] = base64.b64encode(data["image/png"]).decode()
        cell = nbformat.v4.new_code_cell(
            f"from course.widgets import {explorer.__name__}\n{explorer.__name__}()",
            execution_count=count,
        )
        cell.outputs = [
            nbformat.v4.new_output("execute_result", data, metadata=metadata, execution_count=count)
        ]
        notebook.cells.append(cell)
    return notebook


class Lab:
    """One page on one notebook, with everything the console complained about."""

    def __init__(self, page: object, shots: Path) -> None:
        self.page: playwright.Page = page
        self.shots = shots
        self.live = False
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._note)

    def _note(self, message: object) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def output(self, index: int) -> playwright.Locator:
        return output(self.page, index)

    def shoot(self, name: str) -> None:
        self.page.screenshot(path=self.shots / f"{name}.png")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder, private = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("jupyter")
    nbformat.write(stored_notebook(), folder / "explorers.ipynb")
    shots = Path(os.environ.get("COURSE_SCREENSHOTS") or tmp_path_factory.mktemp("shots"))
    with serve(folder, private) as address, browse(address, "explorers.ipynb") as page:
        yield Lab(page, shots)


@pytest.fixture
def live(lab: Lab) -> Lab:
    """The page with every cell run, in whichever process a test lands."""
    if not lab.live:
        for index in range(len(EXPLORERS)):
            run(lab.page, index)
        lab.live = True
    return lab


def test_a_stored_explorer_is_a_picture_before_anything_runs(lab: Lab) -> None:
    for index in range(len(EXPLORERS)):
        lab.output(index).locator("img.course-picture, .jp-RenderedImage img").first.wait_for()
    lab.shoot("1-stored")


def test_running_the_cell_shows_a_live_explorer(live: Lab) -> None:
    for index, explorer in enumerate(EXPLORERS):
        status = live.output(index).locator("[role=status]")
        said = explorer().status
        if explorer is ChunkExplorer:  # what was measured differs from process to process
            said = re.compile(re.escape(said.split(" Measured here")[0]))
        playwright.expect(status).to_have_text(said, timeout=PATIENCE)
    live.shoot("2-live")


def test_arrow_keys_move_a_slider_and_picture_and_sentence_follow(live: Lab) -> None:
    output = live.output(0)
    status, image = output.locator("[role=status]"), output.locator("img.course-picture")
    sentence, picture, alt = (
        status.inner_text(),
        image.get_attribute("src"),
        image.get_attribute("alt"),
    )
    handle = output.locator(".widget-slider", has_text="Temperature").locator(".noUi-handle")
    handle.focus()
    start = time.perf_counter()
    for _ in range(3):
        live.page.keyboard.press("ArrowRight")
    field = output.get_by_role("textbox", name="Temperature")
    playwright.expect(field).to_have_value("1.3", timeout=PATIENCE)
    moved = RowExplorer(temperature=1.3).status
    assert moved != sentence
    playwright.expect(status).to_have_text(moved, timeout=PATIENCE)
    print(f"three arrow keys to the last picture: {time.perf_counter() - start:.2f} s")
    assert image.get_attribute("src") != picture
    assert image.get_attribute("alt") != alt
    live.shoot("3-moved")


def test_the_number_field_moves_the_slider(live: Lab) -> None:
    output = live.output(0)
    field = output.get_by_role("textbox", name="Temperature")
    field.fill("0")
    field.press("Enter")
    playwright.expect(output.locator("[role=status]")).to_have_text(
        RowExplorer(temperature=0).status, timeout=PATIENCE
    )
    handle = output.locator(".widget-slider", has_text="Temperature").locator(".noUi-handle")
    assert float(handle.get_attribute("aria-valuenow")) == 0
    field.fill("1.25")  # between two steps
    field.press("Enter")
    status = output.locator("[role=status]")
    playwright.expect(status).to_have_text(RowExplorer(temperature=1.25).status, timeout=PATIENCE)
    live.page.wait_for_timeout(1_000)  # for an answer of the slider that puts another number
    playwright.expect(field).to_have_value("1.25", timeout=PATIENCE)


def test_arrow_keys_double_a_logarithmic_slider(live: Lab) -> None:
    output = live.output(EXPLORERS.index(CrosstalkExplorer))
    handle = output.locator(".widget-slider", has_text="Pairs N").locator(".noUi-handle")
    field = output.get_by_role("textbox", name="Pairs N")
    status = output.locator("[role=status]")
    handle.focus()
    live.page.keyboard.press("ArrowRight")
    playwright.expect(field).to_have_value("32", timeout=PATIENCE)
    playwright.expect(status).to_have_text(CrosstalkExplorer(N=32).status, timeout=PATIENCE)
    output.locator("img.course-picture").scroll_into_view_if_needed()
    live.shoot("6-crosstalk")
    for typed, left in ((20, "8"), (24, "16")):  # between two places, below and above the middle
        field.fill(str(typed))
        field.press("Enter")
        playwright.expect(status).to_have_text(CrosstalkExplorer(N=typed).status, timeout=PATIENCE)
        live.page.wait_for_timeout(1_000)  # for an answer of the slider that puts another number
        playwright.expect(field).to_have_value(str(typed), timeout=PATIENCE)
        handle.focus()
        live.page.keyboard.press("ArrowLeft")
        playwright.expect(field).to_have_value(left, timeout=PATIENCE)


def test_letters_in_a_number_field_get_a_sentence_and_the_value_stays(live: Lab) -> None:
    output = live.output(0)
    field = output.get_by_role("textbox", name="Temperature")
    field.fill("0")
    field.press("Enter")
    playwright.expect(output.locator("[role=status]")).to_have_text(
        RowExplorer(temperature=0).status, timeout=PATIENCE
    )
    field.fill("warm")
    field.press("Enter")
    alert = output.locator("[role=alert]")
    playwright.expect(alert).to_have_text(
        "Temperature: expected a number from 0 to 10, got “warm”. It stays at 0.", timeout=PATIENCE
    )
    playwright.expect(field).to_have_value("0", timeout=PATIENCE)
    live.shoot("4-letters")
    field.fill("2")
    field.press("Enter")
    playwright.expect(alert).to_have_count(0, timeout=PATIENCE)


def test_a_sentence_of_two_hundred_words_gets_a_sentence(live: Lab) -> None:
    output = live.output(1)
    field = output.get_by_role("textbox", name="Sentence")
    field.fill("word " * 200)
    field.press("Enter")
    playwright.expect(output.locator("[role=alert]")).to_contain_text(
        "expected 1 to 40 words, got 200", timeout=PATIENCE
    )
    playwright.expect(field).to_have_value(
        re.compile("^(word ?){200}$"), timeout=PATIENCE
    )  # kept, to be mended


def test_own_sentence_and_two_roles(live: Lab) -> None:
    output = live.output(1)
    field = output.get_by_role("textbox", name="Sentence")
    field.fill("the dog saw the <b>dog</b> & $x$")
    field.press("Enter")
    output.get_by_role("combobox", name="Vectors").select_option("untrained")
    output.get_by_role("combobox", name="Roles").select_option("two roles: q ≠ k")
    wanted = AttentionExplorer(
        sentence="the dog saw the <b>dog</b> & $x$", vectors="untrained", roles="two roles: q ≠ k"
    )
    playwright.expect(output.locator("[role=status]")).to_have_text(wanted.status, timeout=PATIENCE)
    output.locator("[role=status]").scroll_into_view_if_needed()
    live.shoot("5-own-sentence")


def test_every_control_has_a_name_that_a_screen_reader_reads(live: Lab) -> None:
    for index, explorer in enumerate(EXPLORERS):
        output = live.output(index)
        roles = {"Slider": "textbox", "Choice": "combobox", "Switch": "checkbox"}
        for control in explorer.controls.values():
            role = roles.get(type(control).__name__, "textbox")
            name = re.compile(rf"^{re.escape(control.label)}(,|$)")  # "Block" is not "In block"
            assert output.get_by_role(role, name=name).count() == 1, control.label
            if isinstance(control, Slider):
                handle = output.get_by_role("slider", name=control.label, exact=True)
                playwright.expect(handle).to_have_count(1, timeout=PATIENCE)


def test_the_picture_is_saved_as_png_and_svg_and_reset_goes_back(live: Lab) -> None:
    output = live.output(0)
    assert output.get_by_role("link").count() == 0
    output.get_by_role("button", name="Save picture").click()
    for kind, begins in (("PNG", b"\x89PNG"), ("SVG", b"<?xml")):
        with live.page.expect_download() as download:
            output.get_by_role("link", name=kind).click()
        assert download.value.suggested_filename == f"row-explorer.{kind.lower()}"
        assert Path(download.value.path()).read_bytes().startswith(begins)
    output.get_by_role("button", name="Reset").click()
    playwright.expect(output.locator("[role=status]")).to_have_text(
        RowExplorer().status, timeout=PATIENCE
    )


def test_the_console_stayed_clean(live: Lab) -> None:
    assert live.complaints == []
