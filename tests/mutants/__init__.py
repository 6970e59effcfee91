"""Wrong implementations which the tests must kill, and what kills them.

A module of this package offers ``SUITE`` (or ``SUITES``), checks with the mutants that they must
kill; a module ``exercises_*`` offers ``MUTANTS = {exercise: {name: function}}``, wrong answers to
the exercises of ``course.checks``.
``tests/test_mutants.py`` finds every module, runs it and prints the kill table.
"""

from __future__ import annotations

import importlib.util
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Check = Callable[[Any], None]


@dataclass(frozen=True)
class Suite:
    """Checks that hold for ``real`` and, one at least, for none of the ``mutants``.

    A check gets the subject (a module, a function, whatever the suite is about) and raises if
    something is wrong with it. ``real`` and each mutant are made anew by calling them.
    """

    name: str
    real: Callable[[], Any]
    mutants: Mapping[str, Callable[[], Any]]
    checks: Mapping[str, Check]


def killer(subject: Any, checks: Mapping[str, Check]) -> str | None:
    """The name of the first check that ``subject`` fails, ``None`` if it passes them all."""
    for name, check in checks.items():
        try:
            check(subject)
        except Exception:
            return name
    return None


def fresh_module(name: str) -> types.ModuleType:
    """A second copy of an installed module, which may be broken without harm to the first."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None, name
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
