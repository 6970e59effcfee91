"""Formulas as MathML: every current browser draws it, with no script and no network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def mathml(latex: str, *, display: str) -> str:
    """``latex`` as a MathML element with its source as the annotation that readers can copy."""
    return convert(latex.strip(), display=display)


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(f'<span class="math">{mathml(node.astext(), display="inline")}</span>')
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="math">{mathml(node.astext(), display="block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer the renderer under the name ``mathml``."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
