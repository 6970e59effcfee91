"""Are a notebook's cell and the package's reference the same lines?

A code cell with the tag ``same-as:course.linear.chunk`` derives again what that function of the
package does. If the cell defines one function, the two bodies must be equal; else the cell's
statements must stand, one behind the other, in the body of the reference. Docstrings, comments and
layout do not count. A name that the cell spells differently is declared, the cell's own name first:
``same-as:course.linear.chunk;Q=q;K=k``.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Mapping
from itertools import zip_longest

from tests.notebooks.gate import Cell, Notebook, source_of

TAG = re.compile(r"same-as:(?P<target>course(?:\.\w+)+)(?P<renamed>(?:;\w+=\w+)*)")


def complaints(notebook: Notebook) -> list[str]:
    """Cells that claim to be the package's code and are not."""
    return [
        f"cell {place} ({cell['cell_type']}): {what}"
        for place, cell in enumerate(notebook["cells"], 1)
        for tag in cell.get("metadata", {}).get("tags", [])
        if tag.startswith("same-as")
        for what in [difference(cell, tag)]
        if what
    ]


def difference(cell: Cell, tag: str) -> str | None:
    """How the cell differs from the function that the tag names; None if it does not."""
    declared = TAG.fullmatch(tag)
    if declared is None:
        return f"the tag {tag!r} is not of the form same-as:course.module.function;mine=theirs"
    target = declared["target"]
    try:
        reference = _function(target)
        tree = ast.parse(source_of(cell))
    except (LookupError, SyntaxError) as error:
        return f"{tag}: {error}"
    renamed = dict(pair.split("=") for pair in declared["renamed"].split(";")[1:])
    theirs = _lines(reference.body, {})
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if len(functions) == 1:
        return _first_difference(_lines(functions[0].body, renamed), theirs, target)
    mine = _lines(tree.body, renamed)
    runs = [theirs[start : start + len(mine)] for start in range(len(theirs)) if mine]
    if mine in runs:
        return None
    starting_alike = [run for run in runs if run[0] == mine[0]]
    if not starting_alike:
        return f"{target} has no {mine[0]!r}" if mine else "empty"
    return _first_difference(mine, starting_alike[0], target)


def _first_difference(mine: list[str], theirs: list[str], target: str) -> str | None:
    for a, b in zip_longest(mine, theirs, fillvalue="nothing more"):
        if a != b:
            return f"{a!r} is {b!r} in {target}"
    return None


def _function(target: str) -> ast.FunctionDef:
    """The syntax tree of a function of the package."""
    try:
        found = pkgutil.resolve_name(target)
    except (ImportError, AttributeError):
        found = None
    if not inspect.isfunction(found):
        raise LookupError("the package has no such function")
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(found)))).body
    if not isinstance(node, ast.FunctionDef):
        raise LookupError(f"{target} is not defined with def")
    return node


def _lines(body: list[ast.stmt], renamed: Mapping[str, str]) -> list[str]:
    """The statements as text in one form, with names exchanged, without the docstring."""
    module = _Renaming(renamed).visit(ast.Module(body=list(body), type_ignores=[]))
    if module.body and isinstance(module.body[0], ast.Expr):
        value = module.body[0].value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            del module.body[0]
    return [ast.unparse(statement) for statement in module.body]


class _Renaming(ast.NodeTransformer):
    def __init__(self, renamed: Mapping[str, str]) -> None:
        self.renamed = renamed

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self.renamed.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = self.renamed.get(node.arg, node.arg)
        return node
