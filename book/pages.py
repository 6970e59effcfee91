"""Notebooks → the pages that Sphinx reads: alt texts and findings kept, an index over all."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from book.explorers import constants, explorer_call, render

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"


def write_pages(folder: Path, notebooks: Path = NOTEBOOKS) -> list[Path]:
    """Write a page for each notebook and ``index.md`` into ``folder``; returns the pages' paths.

    Pictures of explorers go to ``_explorers``, a folder beside them that the site takes over.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pages = []
    for path in sorted(notebooks.glob("[0-9]*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        known: dict[str, Any] = {}
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"] = _outputs(cell, known, folder / "_explorers", path.stem)
        pages.append(folder / path.name)
        pages[-1].write_text(json.dumps(notebook, ensure_ascii=False), encoding="utf-8")
    (folder / "index.md").write_text(_index(notebooks, pages), encoding="utf-8")
    return pages


def _outputs(
    cell: dict[str, Any], known: dict[str, Any], pictures: Path, page: str
) -> list[dict[str, Any]]:
    """A cell's outputs as a page shows them: explorers with a slider, pictures with their finding.

    ``known`` gains the constants that the cell defines.
    """
    source = "".join(cell["source"])
    known |= constants(source)
    shown = []
    for output in cell["outputs"]:
        picture = output.get("metadata", {}).get("image/png")
        if picture is None:
            shown.append(output)
            continue
        explorer = explorer_call(source, known)
        if explorer is not None:
            name = f"{page[:2]}-{cell['id']}"
            html = render(explorer, pictures / name, f"_explorers/{name}")
            explorer.close()
            shown.append(_html(html))
        else:
            cell["metadata"].setdefault("mystnb", {})["image"] = {"alt": picture["alt"]}
            image = {"image/png": output["data"]["image/png"]}
            finding = "".join(output["data"]["text/plain"])
            shown.append({**output, "data": image})
            shown.append(_html(f'<p class="finding">{escape(finding)}</p>'))
    return shown


def _html(text: str) -> dict[str, Any]:
    return {"output_type": "display_data", "metadata": {}, "data": {"text/html": text}}


def _index(notebooks: Path, pages: list[Path]) -> str:
    """The first page: the map of the course, as notebook 00 shows it, and every question."""
    start = json.loads((notebooks / pages[0].name).read_text(encoding="utf-8"))
    drawn = (
        output
        for cell in start["cells"]
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    )
    course = next(drawn)
    image = "".join(course["data"]["image/png"]).replace("\n", "")
    alt = escape(course["metadata"]["image/png"]["alt"])
    names = "\n".join(page.stem for page in pages)
    return f"""# Attention, derived

Notebooks that derive attention from a plain average, turn it into a recurrent network, measure what
that network can recall, and take a small circuit apart. Here they are to be read; with Python you
can run them and move everything in them.

<img class="course" src="data:image/png;base64,{image}" alt="{alt}">

```{{toctree}}
:maxdepth: 1
:caption: The questions

{names}
```
"""
