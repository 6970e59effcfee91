"""The house: every module of the course imports downwards only, and in no circle.

Imports inside functions count, and so do names given to ``importlib.import_module``: a circle that
is closed late is still one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the bottom to the top. A module may import what stands in its own line or below.
STOREYS = (
    "console values inputs state verify randomness lab_extension source",
    "cost measure averaging feature_maps positions config cache",
    "attention linear memory engine sight kernels",
    "mixers",
    "transformer",
    "checkpoints training tasks probes plots",
    "experiments pretrained widgets roadmap",
    "bench checks doctor",
    "assignments",
    "cli",
)
LEVEL = {name: level for level, names in enumerate(STOREYS) for name in names.split()}
# Reached through impl="triton" only; its own bench and commands measure what lies above.
TOOLS = {"course.kernels.bench": "bench", "course.kernels.cli": "bench"}


def modules() -> dict[str, Path]:
    found = {}
    for folder, package in ((ROOT / "course", "course"), (ROOT / "kernels", "course.kernels")):
        for path in folder.rglob("*.py"):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            found[".".join(part for part in parts if part != "__init__")] = path
    return found


MODULES = modules()


def named(tree: ast.AST) -> Iterator[str]:
    """Every dotted name of the course that is imported somewhere in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func) and node.args:
            given = node.args[0]
            start = given.values[0] if isinstance(given, ast.JoinedStr) else given
            if isinstance(start, ast.Constant):
                yield str(start.value)


def imports(name: str) -> set[str]:
    """The modules of the course that ``name`` imports, at any time."""
    names = {n for n in named(ast.parse(MODULES[name].read_text(encoding="utf-8")))}
    found = {n for n in names if n in MODULES}
    for prefix in (n for n in names if n.startswith("course.") and n.endswith(".")):
        found |= {m for m in MODULES if m.startswith(prefix) and m not in TOOLS}
    # `from course.a import b`, b a module: a itself was not asked for. The root holds no logic.
    packages = {n for n in found if any(o.startswith(f"{n}.") for o in found)}
    return {n for n in found if n not in packages | {name, "course"}}


GRAPH = {name: imports(name) for name in MODULES}


def level(name: str) -> int:
    return LEVEL[TOOLS.get(name, name.split(".")[1])]


def test_no_module_imports_itself_in_a_circle() -> None:
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as circle:
        pytest.fail(" ← ".join(circle.args[1]))


def test_every_module_has_its_storey() -> None:
    homeless = {
        n for n in MODULES if n != "course" and n not in TOOLS and n.split(".")[1] not in LEVEL
    }
    assert not homeless, "give it a place in STOREYS"


def test_imports_go_downwards() -> None:
    upward = [
        f"{name} → {other}"
        for name, others in sorted(GRAPH.items())
        if name != "course"
        for other in sorted(others)
        if level(other) > level(name)
    ]
    assert not upward, upward
