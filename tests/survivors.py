"""What mutation testing found: which mutants survive, and why those may.

``make mutants`` changes one operator, number, name or argument of the mathematics after another and
runs the tests on each change. A change that no test notices must have its reason in
``tests/survivors.toml``; one without is printed here, and the command fails.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

REASONS = Path(__file__).with_name("survivors.toml")


def mutmut(*arguments: str) -> str:
    command = [sys.executable, "-m", "mutmut", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def change(name: str) -> tuple[str, str]:
    """The line before and after the mutation."""
    lines = [
        x[1:].strip() for x in mutmut("show", name).splitlines() if re.match("[-+](?![-+])", x)
    ]
    return lines[0], lines[-1]


def reason(name: str, before: str, after: str, known: list[dict[str, str]]) -> str | None:
    """Why this one may live: the first entry whose patterns fit its name and its two lines."""
    for entry in known:
        fits = re.search(entry.get("where", ""), name) and re.search(entry.get("line", ""), before)
        if fits and re.search(entry.get("becomes", ""), after):
            return entry["why"]
    return None


def main() -> int:
    known = tomllib.loads(REASONS.read_text(encoding="utf-8"))["survivor"]
    results = mutmut("results", "--all", "true").splitlines()
    fates = [line.strip().split(": ") for line in results if ": " in line]
    killed = sum(fate in ("killed", "timeout") for _, fate in fates)
    open_questions = 0
    for name, fate in fates:
        if fate in ("killed", "timeout"):
            continue
        before, after = change(name)
        if fate == "survived" and reason(name, before, after, known):
            continue
        open_questions += 1
        print(f"{name}: {fate}\n  - {before}\n  + {after}")
    reasoned = len(fates) - killed - open_questions
    print(f"{len(fates)} mutants: {killed} killed, {reasoned} live for a reason", end=", ")
    print(f"{open_questions} without one")
    return min(1, open_questions)


if __name__ == "__main__":
    sys.exit(main())
