"""What comes of a grading: a table, a page for each student, a report for the teacher.

Everything that a student wrote is text here: escaped, never run, never a formula of a spreadsheet.
"""

from __future__ import annotations

import csv
import html
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from course.assignments.catalogue import find_assignment
from course.assignments.grade import Graded
from course.assignments.source import Source, mark_scheme

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem;"
    "color:#222;background:#fff}table{border-collapse:collapse;width:100%}"
    "td,th{border:1px solid #bbb;padding:.4rem .6rem;text-align:left;vertical-align:top}"
    "pre{white-space:pre-wrap;background:#f4f4f4;padding:.6rem}"
)


def questions_of(source: Source) -> list[str]:
    """All questions, the written ones last."""
    return [q.name for q in find_assignment(source.name).questions] + source.written


def total(graded: Graded, source: Source) -> float:
    """The points so far: what nobody has marked yet counts nothing."""
    return sum(graded.points(source, name) or 0.0 for name in questions_of(source))


def write_table(path: Path, results: Sequence[Graded], source: Source) -> None:
    """The table of grades, a row a student; a written answer that waits for a person is empty."""
    names = questions_of(source)
    most = sum(map(source.points, names))
    rows: list[list[str]] = [["student", "total", "of", *names, "notes"]]
    for graded in results:
        points = [graded.points(source, name) for name in names]
        notes = "; ".join(filter(None, [graded.problem, *graded.notes]))
        rows.append(
            [
                _cell(graded.student),
                "" if graded.failed else f"{total(graded, source):g}",
                f"{most:g}",
                *("" if p is None else f"{p:g}" for p in points),
                _cell(notes),
            ]
        )
    _write_rows(path, rows)


def write_sheet(path: Path, results: Sequence[Graded], source: Source) -> None:
    """The sheet for the written answers: fill in ``points`` and give it back with ``--marks``."""
    rows = [["student", "question", "of", "points", "answer"]]
    for graded in results:
        for name in source.written:
            given = graded.by_hand.get(name)
            points = "" if given is None else f"{given:g}"
            answer = _cell(graded.written.get(name, ""))
            rows.append([_cell(graded.student), name, f"{source.points(name):g}", points, answer])
    _write_rows(path, rows)


def read_marks(path: Path, source: Source) -> dict[tuple[str, str], float]:
    """The points that a person gave, by student and question; ``ValueError`` names the line."""
    found = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            text = (row.get("points") or "").strip().replace(",", ".")
            if not text:
                continue
            name = row.get("question") or ""
            try:
                points = float(text)
                if name not in source.written or not 0 <= points <= source.points(name):
                    raise ValueError
            except ValueError:
                raise ValueError(
                    f"marks: expected points for {' or '.join(source.written)} from 0 to what it "
                    f"is worth, got {text!r} for {name!r} in line {number} of {path}"
                ) from None
            found[(row.get("student") or "").removeprefix("'"), name] = points
    return found


def _cell(text: str) -> str:
    """A spreadsheet would take a text that begins so for a formula."""
    return f"'{text}" if text[:1] in tuple("=+-@\t\r") and text else text


def _write_rows(path: Path, rows: Iterable[Sequence[str]]) -> None:
    lines = _Lines()
    csv.writer(lines).writerows(rows)
    # With the mark at the start by which spreadsheets know UTF-8.
    write_whole(path, "\ufeff" + "".join(lines.kept))


class _Lines:
    def __init__(self) -> None:
        self.kept: list[str] = []

    def write(self, text: str) -> None:
        self.kept.append(text)


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(part, 0o600)  # grades are nobody else's business
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


# A student's page


def feedback(graded: Graded, source: Source) -> str:
    """The page of one student: points, and what is said of each answer. Nothing hidden is in it."""
    assignment = find_assignment(source.name)
    rows = [
        (q.name, graded.points(source, q.name), source.points(q.name), _said(graded, q))
        for q in assignment.questions
    ]
    for name in source.written:
        given = graded.points(source, name)
        answer = graded.written.get(name) or "(no answer was found)"
        waits = "" if given is not None else "<p>A person reads this answer.</p>"
        rows.append((name, given, source.points(name), f"{waits}<pre>{html.escape(answer)}</pre>"))
    told = [graded.problem] if graded.problem else list(graded.notes)
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in told)
    return _page(
        f"{assignment.title}: {graded.student}",
        f"<p>{total(graded, source):g} of {sum(map(source.points, questions_of(source))):g} points"
        f"</p>{_table(('question', 'points', 'of', 'what was found'), rows)}"
        + (f"<h2>Notes</h2><ul>{notes}</ul>" if notes else ""),
    )


def _said(graded: Graded, question: object) -> str:
    mark = graded.marks[question.name]  # type: ignore[attr-defined]
    if mark.stage == "full":
        return "All properties hold."
    if mark.stage == "hidden":
        return html.escape(question.advice)  # type: ignore[attr-defined]
    return html.escape(f"{mark.broken}: {mark.message}" if mark.broken else mark.message)


# The teacher's report


def report(results: Sequence[Graded], source: Source) -> str:
    """The class in one page: what most got wrong, with the commonest bugs by name."""
    assignment = find_assignment(source.name)
    parts = []
    shares = {
        q.name: sum(g.marks[q.name].share for g in results) / len(results)
        for q in assignment.questions
    }
    for name in sorted(shares, key=lambda n: shares[n]):
        stages = Counter(g.marks[name].stage for g in results)
        bugs = Counter(
            common(f"{g.marks[name].broken}: {g.marks[name].message}")
            for g in results
            if g.marks[name].stage in ("hidden", "visible")
        )
        items = "".join(
            f"<li>{count} × {html.escape(bug)}</li>" for bug, count in bugs.most_common(6)
        )
        parts.append(
            f"<h2>{html.escape(name)}: {shares[name]:.0%} of the points</h2>"
            f"<p>full {stages['full']}, half (a hidden property is broken) {stages['hidden']}, "
            f"wrong {stages['visible']}, not written {stages['empty']}</p><ul>{items}</ul>"
        )
    told = [(g.student, note) for g in results for note in filter(None, [g.problem, *g.notes])]
    if told:
        parts.append(
            "<h2>Notes</h2>" + _table(("student", "note"), [(s, html.escape(n)) for s, n in told])
        )
    for name in source.written:
        parts.append(_written(name, results, source))
    return _page(f"{assignment.title}: {len(results)} submissions", "".join(parts))


def common(message: str) -> str:
    """A message without what differs from student to student: its numbers and places."""
    return re.sub(r"(?<![\w/])[-−]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?(?![\w/])", "#", message)


def _written(name: str, results: Sequence[Graded], source: Source) -> str:
    scheme = "".join(
        f"<li>{points:g}: {html.escape(words)}</li>" for points, words in mark_scheme(source, name)
    )
    answers = [
        (g.student, f"<pre>{html.escape(g.written.get(name) or '(no answer)')}</pre>")
        for g in results
    ]
    same = "".join(
        f"<p>The same answer, word for word: {html.escape(', '.join(students))}.</p>"
        for students in _equal_answers(name, results)
    )
    return (
        f"<h2>{html.escape(name)}: to be marked by a person</h2><ul>{scheme}</ul>{same}"
        + _table(("student", "answer"), answers)
    )


def _equal_answers(name: str, results: Sequence[Graded]) -> list[list[str]]:
    """Students whose written answers have the same words, however they are spaced."""
    groups: dict[str, list[str]] = {}
    for graded in results:
        words = " ".join(graded.written.get(name, "").split())
        if words:
            groups.setdefault(words, []).append(graded.student)
    return [students for students in groups.values() if len(students) > 1]


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; the last cell of a row is HTML already, the others are text."""
    top = "".join(f"<th>{html.escape(h)}</th>" for h in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(x)}</td>" for x in row[:-1]) + f"<td>{row[-1]}</td></tr>"
        for row in rows
    )
    return f"<table><tr>{top}</tr>{body}</table>"


def _text(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else html.escape(str(value))


def _page(title: str, body: str) -> str:
    head = html.escape(title)
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{head}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src '
        f"'unsafe-inline'\"><style>{_STYLE}</style></head><body><h1>{head}</h1>{body}</body></html>\n"
    )


def write_all(out: Path, results: Sequence[Graded], source: Source) -> Mapping[str, Path]:
    """The table at ``out`` and, in a folder of its name beside it, pages, report and sheet."""
    folder = out.with_suffix("")
    write_table(out, results, source)
    for graded in results:
        write_whole(folder / "feedback" / f"{graded.student}.html", feedback(graded, source))
    places = {"report": folder / "report.html", "written": folder / "written.csv"}
    write_whole(places["report"], report(results, source))
    write_sheet(places["written"], results, source)
    return places | {"table": out, "feedback": folder / "feedback"}
