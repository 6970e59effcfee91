"""The book is built from the stored notebooks and read in a browser, from a folder, offline."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.browser.lab import find_browser

pytestmark = pytest.mark.browser

if find_browser() is None:
    pytest.skip("no Chromium here: the book not read in a browser", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("sphinx", reason="what builds the book is not installed")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("[0-9]*.ipynb"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from book.__main__ import main

    folder = tmp_path_factory.mktemp("book")
    assert main([str(folder)]) == 0
    return folder / "site"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=find_browser(),
            args=["--no-sandbox", "--disable-gpu", "--no-proxy-server"],
        )
        yield started
        started.close()


@pytest.fixture
def page(browser):
    """A page that notes what is missing, what goes wrong and what leaves the folder."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.faults = []
    opened.on("requestfailed", lambda request: opened.faults.append(f"missing {request.url}"))
    opened.on(
        "request",
        lambda request: (
            request.url.startswith(("file:", "data:"))
            or opened.faults.append(f"asked for {request.url}")
        ),
    )
    opened.on(
        "console",
        lambda said: said.type == "error" and opened.faults.append(f"console: {said.text}"),
    )
    opened.on("pageerror", lambda error: opened.faults.append(f"script: {error}"))
    yield opened
    opened.close()


def notebook(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_page_holds_its_notebook(site: Path, page, path: Path) -> None:
    page.goto((site / f"{path.stem}.html").as_uri())
    cells = notebook(path)
    title = next(line for line in "".join(cells[0]["source"]).splitlines() if line[:2] == "# ")
    assert title[2:] in page.title()
    stored = [
        output["metadata"]["image/png"]["alt"]
        for cell in cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("metadata", {})
    ]
    images = page.locator("article img").evaluate_all(
        "all => all.map(i => [i.alt, i.complete && i.naturalWidth > 0])"
    )
    assert len(images) == len(stored) and all(seen for _, seen in images)
    assert all(alt.strip() and not alt.endswith(".png") for alt, _ in images)
    explorers = page.locator("figure.explorer")
    plain = [alt for alt, _ in images]
    for i in range(explorers.count()):
        plain.remove(explorers.nth(i).locator("img").get_attribute("alt"))
    assert set(plain) <= set(stored)
    # Formulas: as many as were drawn, and none that stayed source.
    text = page.locator("article").inner_text()
    assert not re.search(r"\\(?:frac|sum|mathbf|operatorname|begin)\b", text)
    for formula in page.locator("article > section > p math, article div.math math").all()[:5]:
        assert formula.bounding_box()["width"] > 2 or not formula.is_visible()
    detours = [c for c in cells if "detour" in c["metadata"].get("tags", [])]
    folds = page.locator("details.detour")
    assert folds.count() == len(detours)
    for i in range(len(detours)):
        assert not folds.nth(i).locator("> :not(summary)").first.is_visible()
        folds.nth(i).locator("> summary").click()
        assert folds.nth(i).locator("> :not(summary)").first.is_visible()
    overflow = "document.documentElement.scrollWidth - innerWidth"
    assert page.evaluate(overflow) <= 0
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate(overflow) <= 0
    assert page.faults == []
    size = sum(f.stat().st_size for f in (site / "_explorers").glob(f"{path.stem[:2]}-*/*.png"))
    assert size <= 3e6


def test_every_slider_moves_its_picture_and_its_words(site: Path, page) -> None:
    tried = 0
    for path in NOTEBOOKS:
        page.goto((site / f"{path.stem}.html").as_uri())
        page.evaluate(
            "document.querySelectorAll('details').forEach((fold) => { fold.open = true })"
        )
        for figure in page.locator("figure.explorer").all():
            slider, picture = figure.locator("input"), figure.locator("img")
            count = int(slider.get_attribute("max")) + 1
            assert 1 < count <= 24
            seen = set()
            slider.focus()
            page.keyboard.press("Home")
            for _ in range(count):
                shown = "i => i.complete ? i.naturalWidth : i.decode().then(() => i.naturalWidth)"
                assert picture.evaluate(shown) > 0
                seen.add(
                    (
                        picture.get_attribute("src"),
                        figure.locator("output").inner_text(),
                        figure.locator("figcaption").inner_text(),
                        picture.get_attribute("alt"),
                    )
                )
                page.keyboard.press("ArrowRight")
            assert len(seen) == count
            assert len({words for _, _, words, _ in seen}) > 1
            assert len({alt for _, _, _, alt in seen}) > 1
            tried += 1
    assert tried >= 12 and page.faults == []
    assert max(f.stat().st_size for f in (site / "_explorers").rglob("*.png")) <= 25_000


def test_links_inside_the_site_are_good(site: Path, page) -> None:
    page.goto((site / "index.html").as_uri())
    for path in NOTEBOOKS:
        assert page.locator(f'article a[href="{path.stem}.html"]').count() >= 1
    assert page.locator("img.course").evaluate("i => i.naturalWidth") > 0
    broken = []
    for html in site.glob("*.html"):
        page.goto(html.as_uri())
        for link in page.locator("a[href]").evaluate_all("all => all.map(a => a.href)"):
            address, _, anchor = link.partition("#")
            if not address.startswith("file:"):
                continue
            target = Path(address.removeprefix("file://"))
            if not target.is_file():
                broken.append(link)
            elif anchor and target.suffix == ".html":
                text = target.read_text(encoding="utf-8")
                if f'id="{anchor}"' not in text:
                    broken.append(link)
    assert broken == [] and page.faults == []


def test_search_works_from_a_folder(site: Path, page) -> None:
    page.goto((site / "search.html").as_uri() + "?q=softmax")
    page.locator("#search-results li a").first.wait_for()
    assert page.locator("#search-results li").count() >= 3 and page.faults == []
