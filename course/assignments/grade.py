"""Grades a folder of submissions: each in its box, several at a time, each exactly once.

A submission is a run of :mod:`course.experiments.runner`: its record is stored whole or not at all,
so an interrupted grading goes on where it stopped, and a changed notebook is graded anew.
"""

from __future__ import annotations

import hashlib
import inspect
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from course.assignments import drawing
from course.assignments.catalogue import find_assignment, parameters_of
from course.assignments.limits import Limits
from course.assignments.question import Mark
from course.assignments.referee import referee
from course.assignments.sandbox import require_sandbox
from course.assignments.source import Source
from course.assignments.submission import Submission, collect
from course.experiments.runner import Config, Progress, RunFailed, run_sweep

RUN = "course.assignments.grade:grade_one"


@dataclass(frozen=True)
class Graded:
    """One student's result: marks by question, written answers, notes for the teacher."""

    student: str
    marks: Mapping[str, Mark]
    written: Mapping[str, str]
    notes: Sequence[str]
    problem: str = ""
    seconds: float = 0.0
    by_hand: Mapping[str, float] = field(default_factory=dict)
    failed: bool = False  # the grading, not the student

    def points(self, source: Source, question: str) -> float | None:
        """The points of one question; ``None`` where nobody has marked it yet."""
        if self.failed:
            return None
        if question in source.written:
            return 0.0 if self.problem else self.by_hand.get(question)
        return source.points(question) * self.marks[question].share


def grade_one(config: Config, progress: Progress) -> dict[str, Any]:
    """The run of one submission: its marks, as plain JSON."""
    assignment = find_assignment(config["assignment"])
    marks, notes = referee(
        assignment,
        config["student"],
        tuple(config["cells"]),
        parameters_of(assignment, config["student"]),
        seed=config["seed"],
        limits=Limits(**config["limits"]),
        unsafe=config["unsafe"],
    )
    plain = {name: asdict(mark) for name, mark in marks.items()}
    return {"curve": {}, "result": {"marks": plain, "notes": notes}}


def grade(
    folder: Path,
    source: Source,
    work: Path,
    *,
    limits: Limits | None = None,
    jobs: int = 2,
    engine: str = "local",
    scheduler: str | None = None,
    unsafe: bool = False,
    quiet: bool = False,
    seed: str | None = None,
) -> list[Graded]:
    """Grade every submission in ``folder``; records and the seed of the inputs go to ``work``.

    Raises :class:`course.assignments.sandbox.NoSandbox` where submissions cannot be cut off and
    ``unsafe`` is not set, ``ValueError`` for a folder without submissions.
    """
    if not unsafe:
        require_sandbox()
    submissions = collect(folder, source)
    seed = seed or _seed(work / "seed.txt")
    configs = {
        s.student: _config(s, source, seed, limits or Limits(), unsafe)
        for s in submissions
        if not s.problem
    }
    failed = ""
    try:
        records = run_sweep(
            list(configs.values()), work, jobs=jobs, engine=engine, scheduler=scheduler, quiet=quiet
        )
    except RunFailed as error:
        from course.experiments.runner import read_record, result_path

        failed = str(error)
        found = [read_record(result_path(work, c), c) for c in configs.values()]
        records = [record for record in found if record is not None]
        print(failed, file=sys.stderr)
    stored = {record["config"]["student"]: record for record in records}
    return [_graded(s, stored.get(s.student), source, failed) for s in submissions]


def _seed(path: Path) -> str:
    """The teacher's seed: drawn once for a grading, and kept so that it can go on."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(secrets.token_hex(16) + "\n", encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()


def _config(
    submission: Submission, source: Source, seed: str, limits: Limits, unsafe: bool
) -> Config:
    return {
        "experiment": source.name,
        "label": submission.student,
        "run": RUN,
        "assignment": source.name,
        "student": submission.student,
        "cells": list(submission.cells),
        "seed": seed,
        "limits": asdict(limits),
        "unsafe": unsafe,
        "checks": _fingerprint(source.name),
    }


def _fingerprint(name: str) -> str:
    """Changes with the assignment's questions, so that a mended check grades anew."""
    module = inspect.getmodule(find_assignment(name).questions[0].properties)
    assert module is not None
    text = inspect.getsource(module) + inspect.getsource(drawing)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _graded(
    submission: Submission, record: Mapping[str, Any] | None, source: Source, failed: str
) -> Graded:
    questions = [q.name for q in find_assignment(source.name).questions]
    written = dict(submission.written)
    problem = submission.problem
    if record is None:
        problem = problem or f"not graded, a fault of the grading itself: {failed[:300]}"
        marks = {name: Mark(0.0, "empty", message=problem) for name in questions}
        lost = not submission.problem
        return Graded(submission.student, marks, written, submission.notes, problem, failed=lost)
    marks = {name: Mark(**mark) for name, mark in record["result"]["marks"].items()}
    notes = [*submission.notes, *record["result"]["notes"]]
    return Graded(submission.student, marks, written, notes, seconds=record["seconds"])
