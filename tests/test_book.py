"""What makes a page of the book out of a notebook; the site itself is read in tests/browser."""

from __future__ import annotations

import inspect
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("sphinx", reason="what builds the book is not installed")

from docutils import nodes

from book import explorers, folds, formulas, pages, shots
from course import widgets
from course.widgets.base import Choice, Explorer, Slider


def test_every_explorer_has_a_chief_control() -> None:
    public = [getattr(widgets, name) for name in widgets.__all__]
    kinds = [c for c in public if inspect.isclass(c) and issubclass(c, Explorer)]
    kinds.remove(Explorer)
    assert len(kinds) > 10
    for kind in kinds:
        assert kind.chief in kind.controls


@pytest.mark.parametrize(
    ("source", "kind", "values"),
    [
        ("RowExplorer()", "RowExplorer", {}),
        ("from course.widgets import RowExplorer\n\nRowExplorer(position=4)", "RowExplorer", None),
        ("e = ChunkExplorer(B=32)\ne", "ChunkExplorer", {"B": 32}),
        ("ChunkExplorer(B=size)", "ChunkExplorer", {"B": 8}),
    ],
)
def test_the_explorer_that_a_cell_shows(source: str, kind: str, values: dict | None) -> None:
    found = explorers.explorer_call(source, {"size": 8})
    assert type(found).__name__ == kind
    for name, value in (values or {}).items():
        assert found.values[name] == value
    found.close()


@pytest.mark.parametrize(
    "source",
    ["", "x = 1", "plots.curves(a)", "RowExplorer().arrays", "e = RowExplorer()", "e", "f(1)"],
)
def test_other_cells_show_none(source: str) -> None:
    assert explorers.explorer_call(source, {}) is None


def test_constants_are_what_a_cell_writes_down() -> None:
    source = 'words = ["a", "b"]\nn, m = 1, 2\nT = 6\nx = torch.zeros(T)\nsaid = "the cat"'
    assert explorers.constants(source) == {"words": ["a", "b"], "T": 6, "said": "the cat"}


@pytest.mark.parametrize("first", [1, 7, 500, 1000])
def test_places_keep_both_ends_and_the_first_value(first: int) -> None:
    found = explorers.places(Slider("n", 1, low=1, high=1000), first)
    assert found == sorted(set(found)) and len(found) <= 24
    assert {1, 1000, first} <= set(found)


def test_places_of_few_values_are_all_of_them() -> None:
    assert explorers.places(Slider("n", 2, low=1, high=4), 2) == [1, 2, 3, 4]
    assert explorers.places(Choice("c", "b", ("b", "a")), "b") == ["b", "a"]


def test_states_are_what_the_explorer_shows() -> None:
    explorer = widgets.RegisterExplorer(t=2)
    shown = list(explorers.states(explorer))
    assert len(shown) == 8 == len({s.status for s in shown}) == len({s.picture for s in shown})
    other = widgets.RegisterExplorer(t=5)
    state = shown[4]
    assert (state.value, state.status) == ("5", other.status)
    assert state.alt == other.alt(other.values, other.arrays)
    with Image.open(io.BytesIO(state.picture)) as drawn, Image.open(io.BytesIO(other.png())) as own:
        assert drawn.size == own.size
        grey = zip(drawn.convert("L").tobytes(), own.convert("L").tobytes(), strict=True)
        assert sum(abs(a - b) for a, b in grey) / (own.width * own.height) < 2


def test_formulas_become_mathml_and_errors_are_seen() -> None:
    assert "<mfrac>" in formulas.mathml(r"\frac{a}{b}", display="block")
    assert 'display="inline"' in formulas.mathml("x", display="inline")


def test_a_detour_is_folded_and_nothing_else() -> None:
    document = nodes.section()
    document += nodes.title("", "The road")
    detour = nodes.section("", nodes.title("", "Detour: why"), nodes.paragraph("", "the way round"))
    document += [nodes.paragraph("", "on"), detour]
    folds.fold_detours(None, document)
    assert [type(child).__name__ for child in detour.children] == ["title", "fold"]
    assert detour.children[1].astext() == "the way round"
    assert [type(c).__name__ for c in document.children] == ["title", "paragraph", "section"]


def test_pages_keep_alt_texts_and_findings(tmp_path: Path) -> None:
    picture = {
        "output_type": "display_data",
        "data": {"image/png": "iVBORw0KGgo=", "text/plain": "It <rises>."},
        "metadata": {"image/png": {"alt": "A line."}},
    }
    said = {"output_type": "stream", "name": "stdout", "text": "✓ a: 1"}
    cells = [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# 00 · What?"},
        {
            "cell_type": "code",
            "id": "b",
            "metadata": {},
            "source": "draw()",
            "execution_count": 1,
            "outputs": [said, picture],
        },
    ]
    (tmp_path / "in").mkdir()
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "in" / "00_start.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    (page,) = pages.write_pages(tmp_path / "out", tmp_path / "in")
    cell = json.loads(page.read_text(encoding="utf-8"))["cells"][1]
    assert cell["metadata"]["mystnb"]["image"] == {"alt": "A line."}
    assert cell["outputs"][0] == said
    assert cell["outputs"][1]["data"] == {"image/png": "iVBORw0KGgo="}
    assert "It &lt;rises&gt;." in cell["outputs"][2]["data"]["text/html"]
    index = (tmp_path / "out" / "index.md").read_text(encoding="utf-8")
    assert "00_start" in index and 'alt="A line."' in index


def test_the_readmes_pictures_are_those_that_the_explorers_draw() -> None:
    readme = (shots.ROOT / "README.md").read_text(encoding="utf-8")
    for name, explorer in shots.shown().items():
        stored = shots.ROOT / shots.FOLDER / f"{name}.png"
        assert stored.stat().st_size <= 150_000
        assert shots.markdown(name, explorer) in readme
        with Image.open(stored) as old, Image.open(io.BytesIO(explorer.png())) as new:
            assert old.size == new.size
            differ = np.abs(np.asarray(old.convert("RGB"), int) - np.asarray(new.convert("RGB")))
            assert differ.mean() < 2  # of 255: letters of another machine
