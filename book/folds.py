"""Detours as folds: a reader of a page opens them as JupyterLab's reader does."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


class fold(nodes.General, nodes.Element):
    """A ``<details>`` element; its first child is the line that is always seen."""


def fold_detours(app: Sphinx, document: nodes.document) -> None:
    """Put what stands under a heading "Detour: …" and its first line into a fold."""
    for section in list(document.findall(nodes.section)):
        title, *rest = section.children
        if isinstance(title, nodes.title) and title.astext().startswith("Detour:") and rest:
            section.children = [title]
            section += fold("", *rest)


def _open(writer: Any, node: fold) -> None:
    writer.body.append('<details class="detour"><summary>Open the detour</summary>\n')


def _close(writer: Any, node: fold) -> None:
    writer.body.append("</details>\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Fold each page after it has been read."""
    app.add_node(fold, html=(_open, _close))
    app.connect("doctree-read", fold_detours)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
