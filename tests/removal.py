"""Take one piece after another out of a module's source, to see whether the checks notice.

A piece is a statement, one term of a sum or product, one operand of ``and``/``&``, one method of
a chain such as ``.masked_fill(…)``, one wrapping call, one keyword argument, one branch of
``a if c else b``. Docstrings, annotations, defaults, imports and the wording of errors stay.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

KEEP = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Pass)


class Removal(NamedTuple):
    """One mutilation: where, what went, and the module's tree without it."""

    number: int
    line: str
    removed: str
    tree: ast.Module

    def __str__(self) -> str:
        return f"line {self.number}: {self.line}   without   {self.removed}"

    def load(self, name: str) -> types.ModuleType:
        """The mutilated module, known to nobody else."""
        module = types.ModuleType(name)
        exec(compile(self.tree, f"<{name} without {self.removed}>", "exec"), module.__dict__)
        return module


def source(name: str) -> str:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None, name
    return Path(spec.origin).read_text(encoding="utf-8")


def removals(text: str) -> Iterator[Removal]:
    """Every piece of ``text`` (a module's source), each removed alone."""
    tree, lines = ast.parse(text), text.splitlines()
    for path, node in _walk(tree, ()):
        for removed, replacement in _without(node):
            mutilated = copy.deepcopy(tree)
            _put(mutilated, path, replacement)
            ast.fix_missing_locations(mutilated)
            number = getattr(node, "lineno", 1)
            yield Removal(number, lines[number - 1].strip(), removed, mutilated)


Path_ = tuple[tuple[str, int | None], ...]


def _walk(node: ast.AST, path: Path_) -> Iterator[tuple[Path_, ast.AST]]:
    """All nodes that are code, with the way to each from the root."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "args") and not isinstance(
            node, ast.Call
        ):
            continue
        children = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, child in children:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr):
                continue
            way = (*path, (field, index))
            yield way, child
            yield from _walk(child, way)


def _put(tree: ast.AST, path: Path_, replacement: ast.AST) -> None:
    for field, index in path[:-1]:
        value = getattr(tree, field)
        tree = value if index is None else value[index]
    field, index = path[-1]
    if index is None:
        setattr(tree, field, replacement)
    else:
        getattr(tree, field)[index] = replacement


def _without(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What can be taken out at this node, and what stands there then."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return  # a docstring
        case ast.AnnAssign(value=None):
            return  # a field of a named tuple
        case ast.stmt() if not isinstance(node, KEEP):
            yield _short(node), ast.Pass()
        case ast.BinOp(left=left, right=right):
            yield f"{_sign(node.op)} {_short(right)}", left
            yield f"{_short(left)} {_sign(node.op)}", right
        case ast.BoolOp(values=values):
            for value in values:
                rest = [other for other in values if other is not value]
                short = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
                yield f"{_sign(node.op)} {_short(value)}", short
        case ast.UnaryOp(operand=operand):
            yield f"the sign before {_short(operand)}", operand
        case ast.IfExp(body=body, orelse=orelse):
            yield f"the case {_short(body)}", orelse
            yield f"the case {_short(orelse)}", body
        case ast.Call(func=ast.Attribute(value=owner)) if not _is_module(owner):
            yield f".{_short(node)[len(_short(owner)) + 1 :]}", owner
        case ast.Compare(left=left, ops=[_, _, *_], comparators=comparators):
            yield _short(left), ast.Compare(comparators[0], node.ops[1:], comparators[1:])
            yield _short(comparators[-1]), ast.Compare(left, node.ops[:-1], comparators[:-1])
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            rest = [other for other in node.keywords if other is not keyword]
            yield _short(keyword), ast.Call(node.func, node.args, rest)


def _is_module(node: ast.AST) -> bool:
    """``torch``, ``F``, ``nn.functional``, ``super()``: what a method cannot be dropped from."""
    root = node
    while isinstance(root, ast.Attribute):
        root = root.value
    if isinstance(root, ast.Call):
        return isinstance(root.func, ast.Name) and root.func.id == "super"
    return isinstance(root, ast.Name) and root.id in {"torch", "F", "nn", "self", "np", "math"}


def _sign(op: ast.AST) -> str:
    return {
        "Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "Mod": "%", "MatMult": "@", "Pow": "**",
        "FloorDiv": "//", "BitAnd": "&", "BitOr": "|", "And": "and", "Or": "or",
    }.get(type(op).__name__, type(op).__name__)  # fmt: skip


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 70 else text[:69] + "…"


if __name__ == "__main__":  # a list for the curious: python -m tests.removal course.attention
    for removal in removals(source(sys.argv[1])):
        print(removal)
