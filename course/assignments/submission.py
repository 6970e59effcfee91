"""What students handed in: found in a folder, read without trust.

A folder holds one file or one folder a student, and its name is the student's:
``FOLDER/ada.ipynb``, ``FOLDER/ada/anything.ipynb``, or nbgrader's ``FOLDER/ada/averaging/….ipynb``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.assignments.source import TEXT_STUB, Source, grade_id_of, text_of

#: A notebook with pictures can be large; what is read of it is not.
LARGEST_FILE = 50 * 2**20
LARGEST_TEXT = 400_000


@dataclass(frozen=True)
class Submission:
    """One student's cells; ``problem`` says why there are none."""

    student: str
    cells: tuple[str, ...] = ()
    written: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""
    assignment: str = ""


def collect(folder: Path, source: Source) -> list[Submission]:
    """All submissions in ``folder``, by name. ``ValueError`` if it is no folder or empty."""
    if not folder.is_dir():
        raise ValueError(f"folder: expected the folder of the submissions, got {folder}")
    found = [
        _of_student(path.stem if path.is_file() else path.name, path, source)
        for path in sorted(folder.iterdir())
        if not path.name.startswith((".", "_")) and (path.is_dir() or path.suffix == ".ipynb")
    ]
    if not found:
        raise ValueError(f"folder: expected submissions (NAME.ipynb or NAME/….ipynb) in {folder}")
    double = [name for name, n in Counter(s.student for s in found).items() if n > 1]
    if double:
        raise ValueError(f"folder: {double[0]} has both a file and a folder in {folder}; keep one")
    return found


def _of_student(student: str, path: Path, source: Source) -> Submission:
    files = [path] if path.is_file() else sorted(_notebooks(path))
    named = [f for f in files if f.stem == source.name]
    if not files:
        return Submission(student, problem="there is no notebook (.ipynb) in the folder")
    if len(files) > 1 and len(named) != 1:
        files = [f for f in files if read(student, f, source).assignment == source.name] or files
    chosen = named if len(named) == 1 else files
    if len(chosen) > 1:
        said = ", ".join(f.name for f in chosen[:4])
        return Submission(student, problem=f"there are several notebooks ({said}): keep one")
    return read(student, chosen[0], source)


def _notebooks(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*.ipynb"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden and not path.is_symlink():
            yield path


def read(student: str, path: Path, source: Source) -> Submission:
    """One student's notebook; never raises for what stands in it."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            return Submission(student, problem=f"the file is larger than {LARGEST_FILE:,} bytes")
        notebook = json.loads(path.read_bytes().decode("utf-8-sig"))
        cells = [c for c in notebook["cells"] if isinstance(c, dict)]
        texts = [(c, text_of(c)) for c in cells]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return Submission(student, problem=f"the file is no notebook ({type(error).__name__})")
    if sum(len(text) for _, text in texts) > LARGEST_TEXT:
        return Submission(student, problem=f"the cells hold more than {LARGEST_TEXT:,} characters")
    return Submission(
        student,
        cells=tuple(text for c, text in texts if c.get("cell_type") == "code"),
        written=tuple(_written(cells, source)),
        notes=tuple(_notes(cells, source)),
        assignment=_assignment(notebook),
    )


def _assignment(notebook: Any) -> str:
    try:
        return str(notebook["metadata"]["course"]["assignment"])
    except (KeyError, TypeError):
        return ""


def _written(cells: list[dict[str, Any]], source: Source) -> Iterator[tuple[str, str]]:
    for question in source.written:
        answers = [text_of(c) for c in cells if grade_id_of(c) == question]
        text = "\n\n".join(answers).replace(TEXT_STUB, "").strip()
        yield question, text


def _notes(cells: list[dict[str, Any]], source: Source) -> Iterator[str]:
    """What a person should know: cells of the assignment that are gone, or there twice."""
    ids = Counter(str(grade_id_of(c)) for c in cells if grade_id_of(c))
    names = [str(grade_id_of(c)) for c in source.cells if grade_id_of(c)]
    gone = [name for name in names if ids[name] == 0]
    if 2 * len(gone) > len(names):
        yield (
            f"{len(gone)} of the {len(names)} marked cells have lost their marks (typed anew, or "
            "saved by a program that drops them): a function is found by its name all the same, "
            "an answer in words only by its mark"
        )
    else:
        yield from (f"the cell {name} is not there (deleted, or typed anew)" for name in gone)
    for name in names:
        if ids[name] > 1:
            yield f"the cell {name} is there {ids[name]} times: what runs last counts"


def assignment_of(folder: Path) -> str:
    """The assignment that most students' notebooks in ``folder`` say they are.

    ``ValueError`` if none says it, or nearly as many say another one.
    """
    said: Counter[str] = Counter()
    for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
        files = [entry] if entry.is_file() else _notebooks(entry)
        said.update({_said(path) for path in files if path.suffix == ".ipynb"} - {""})
    if not said:
        raise ValueError(
            f"assignment: expected notebooks that say which one they are in {folder}, got none; "
            "say it yourself: --assignment NAME"
        )
    (most, count), *others = said.most_common(2)
    if others and others[0][1] * 2 > count:
        raise ValueError(
            f"assignment: expected one in {folder}, got {', '.join(sorted(said))}; say which: "
            "--assignment NAME"
        )
    return most


def _said(path: Path) -> str:
    try:
        return _assignment(json.loads(path.read_bytes().decode("utf-8-sig")))
    except (OSError, ValueError, RecursionError):
        return ""
