"""What killed each mutant, printed at the end of a run, whichever processes the tests ran in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

_PROPERTY = "killed by"


def record_kill(
    record_property: Callable[[str, object], None], group: str, mutant: str, check: str | None
) -> None:
    """Note in a test's report (fixture ``record_property``) which check killed the mutant."""
    record_property(_PROPERTY, [group, mutant, check])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The table: mutant → the check that killed it."""
    kills: dict[str, list[tuple[str, str | None]]] = defaultdict(list)
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, value in getattr(report, "user_properties", ()):
                if name == _PROPERTY and report.when == "call":
                    group, mutant, check = value
                    kills[group].append((mutant, check))
    if not kills:
        return
    terminalreporter.section("kill table: mutant → the check that killed it")
    for group, mutants in sorted(kills.items()):
        terminalreporter.write_line(group)
        for mutant, check in mutants:
            terminalreporter.write_line(f"  {mutant} → {check or 'SURVIVED'}")
    checks = [check for mutants in kills.values() for _, check in mutants]
    killed = sum(check is not None for check in checks)
    terminalreporter.write_line(f"{killed} of {len(checks)} mutants killed")
