"""The tests are tested: every wrong implementation in ``tests/mutants`` must be killed."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest

import tests.mutants
from course.checks import run_check
from tests.kill_table import record_kill
from tests.mutants import Suite, killer

MODULES = [
    importlib.import_module(f"tests.mutants.{info.name}")
    for info in pkgutil.iter_modules(tests.mutants.__path__)
]
SUITES: list[Suite] = [
    suite
    for module in MODULES
    for suite in (*getattr(module, "SUITES", ()), *filter(None, [getattr(module, "SUITE", None)]))
]
EXERCISES: dict[str, dict[str, Any]] = {
    name: mutants
    for module in MODULES
    for name, mutants in getattr(module, "MUTANTS", {}).items()
    if module.__name__.rpartition(".")[2].startswith("exercises_")
}
Record = Callable[[str, object], None]


@pytest.mark.parametrize(
    ("suite", "check"),
    [pytest.param(s, c, id=f"{s.name}: {c}") for s in SUITES for c in s.checks],
)
def test_real_passes(suite: Suite, check: str) -> None:
    suite.checks[check](suite.real())


@pytest.mark.parametrize(
    ("suite", "mutant"),
    [pytest.param(s, m, id=f"{s.name}: {m}") for s in SUITES for m in s.mutants],
)
def test_mutant_is_killed(suite: Suite, mutant: str, record_property: Record) -> None:
    check = killer(suite.mutants[mutant](), suite.checks)
    record_kill(record_property, suite.name, mutant, check)
    assert check is not None, f"{mutant} passes all {len(suite.checks)} checks of {suite.name}"


@pytest.mark.parametrize(
    ("exercise", "mutant"),
    [pytest.param(e, m, id=f"{e}: {m}") for e, ms in EXERCISES.items() for m in ms],
)
def test_wrong_answer_is_rejected(exercise: str, mutant: str, record_property: Record) -> None:
    result = run_check(exercise, EXERCISES[exercise][mutant])
    killed = result.passed is False and result.broken not in ("name", "type", "time")
    record_kill(record_property, f"exercise {exercise}", mutant, result.broken if killed else None)
    assert killed, f"{mutant} is not rejected: {result}"
    assert "the check itself" not in result.message, str(result)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_every_exercise_has_four_wrong_answers(exercise: str) -> None:
    assert len(EXERCISES[exercise]) >= 4


def test_the_suites_are_there() -> None:
    """An empty list of suites must not pass by silence."""
    attention = next(suite for suite in SUITES if suite.name == "attention")
    assert len(attention.mutants) >= 10 and len(attention.checks) >= 10
