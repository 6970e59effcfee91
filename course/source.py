"""Shows the package's code in a notebook, beside the formula and the cell that derives it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any


def show_source(what: Any) -> None:
    """Print the source of a function or class of the package, without its docstrings.

    What is printed is what ran: the stored output of a notebook no longer agrees with the package
    as soon as the code changes. Raises ``ValueError`` for what has no source in Python.
    """
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(what)))
    except (TypeError, OSError) as error:
        raise ValueError(f"what: expected a function or class in Python, {error}") from None
    lines: list[str | None] = list(source.splitlines())
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = node.body[0]
            if ast.get_docstring(node) is not None and len(node.body) > 1:
                follows = node.body[1]
                end = min([follows.lineno, *(d.lineno for d in _decorators(follows))])
                kept = [
                    i for i in range(first.end_lineno or 0, end - 1) if (lines[i] or "").strip()
                ]
                for i in set(range(first.lineno - 1, end - 1)) - set(kept):  # comments stay
                    lines[i] = None
    print("\n".join(line for line in lines if line is not None))


def _decorators(node: ast.stmt) -> list[ast.expr]:
    return getattr(node, "decorator_list", [])
