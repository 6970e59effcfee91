"""The whole loop: collected notebooks → box → referee → table, pages, report.

Everything that starts a box needs bubblewrap, and is skipped with one line elsewhere.
"""

from __future__ import annotations

import contextlib
import csv
import html
import json
import re
import shutil
import socket
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from course.assignments import sandbox, wire
from course.assignments.grade import grade
from course.assignments.limits import Limits
from course.assignments.pages import common, feedback, read_marks, report, write_all
from course.assignments.question import Mark
from course.assignments.sandbox import Box, BoxEnded, NoSandbox, require_sandbox
from course.assignments.source import read_source
from course.assignments.submission import assignment_of, collect, read
from course.cli import main
from tests import submissions
from tests.submissions import FULL, QUESTIONS, Made, made_up, perfect

SOURCE = read_source("averaging")
# Processor time is short, the clock long: the tests' machine may be busy.
LIMITS = Limits(cell_seconds=6, call_seconds=4, patience=80, memory=900 * 2**20, processes=12)

try:
    require_sandbox()
    REASON = ""
except NoSandbox as refused:
    REASON = str(refused).partition(". ")[0]
boxed = pytest.mark.skipif(bool(REASON), reason=f"no box was started: {REASON}")


# The pipe


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        -(2**70),
        0.1,
        float("inf"),
        "ü\ud800",
        [1, [2.5, ("x", None)]],
        {"a": {"b": 1}},
        torch.arange(6).reshape(2, 3),
        torch.tensor(2.5, dtype=torch.float64),
        torch.tensor([True, False]),
        torch.zeros(0, 3, dtype=torch.float16),
        torch.arange(12.0).reshape(3, 4).T,
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        (torch.ones(2), torch.zeros(1)),
    ],
    ids=lambda value: re.sub(r"\W+", " ", repr(value))[:30],
)
def test_what_is_sent_arrives(value):
    back = _through(wire.pack(value))
    assert type(back) is type(value)
    if isinstance(value, torch.Tensor):
        assert back.dtype == value.dtype and torch.equal(back, value)
    elif isinstance(value, tuple):
        assert str(back) == str(value)
    else:
        assert back == value


def test_arrays_arrive_as_tensors():
    assert _through(wire.pack(np.arange(3, dtype=np.int32))).tolist() == [0, 1, 2]
    assert _through(wire.pack(np.float32(2.5))).item() == 2.5
    assert _through(wire.pack(np.float64(2.5))) == 2.5  # Python takes it for a float of its own


@pytest.mark.parametrize(
    "value", [object(), lambda: 0, {1, 2}, np.array(["a"]), torch.ones(1).to(torch.complex64)]
)
def test_of_anything_else_only_the_type_arrives(value):
    assert type(_through(wire.pack(value))).__name__ == type(value).__name__


def _through(data):
    at = 0

    def take(count):
        nonlocal at
        at += count
        if at > len(data):
            raise EOFError
        return data[at - count : at]

    return wire.receive(take)


def _message(header, body=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">QQ", len(text), len(body)) + text + body


@pytest.mark.parametrize(
    "data",
    [
        _message(b"no json"),
        _message({"array": "float64", "shape": [3]}, b"short"),
        _message({"array": "float64", "shape": [2**40]}),
        _message({"array": "float64", "shape": [-1]}),
        _message({"array": "float64", "shape": [2**30] * 16}),
        _message({"array": "float64", "shape": [1] * 99}, bytes(8)),
        _message({"array": "object", "shape": [1]}, bytes(8)),
        _message({"array": "float64"}),
        _message({"pickle": "x"}),
        _message({"int": "0xzz"}),
        _message(b"[" * 100_000),
        struct.pack(">QQ", 2**63, 2**63),
        struct.pack(">QQ", 2**40, 0),
    ],
)
def test_a_message_that_is_none_is_refused(data):
    with pytest.raises(wire.BadMessage):
        _through(data)


def test_too_much_is_not_sent():
    with pytest.raises(ValueError, match="at most 67,108,864 bytes"):
        wire.pack(torch.ones(1).expand(10**10))
    with pytest.raises(ValueError, match="at most 67,108,864 bytes"):
        wire.pack("x" * (wire.LIMIT + 1))


# Collecting


def test_students_are_called_as_their_folder_or_file(tmp_path):
    submissions.write(tmp_path, {"in a folder": Made(file="x/y.ipynb"), ".hidden": Made()})
    shutil.copy(tmp_path / "in a folder/x/y.ipynb", tmp_path / "Zoë.ipynb")
    (tmp_path / "notes.txt").write_text("no submission")
    found = collect(tmp_path, SOURCE)
    assert [s.student for s in found] == ["Zoë", "in a folder"]
    assert all(s.cells and not s.problem for s in found)
    assert assignment_of(tmp_path) == "averaging"


def test_copies_that_jupyter_keeps_are_not_taken(tmp_path):
    submissions.write(tmp_path, {"ada": Made()})
    copy = tmp_path / "ada/.ipynb_checkpoints/averaging-checkpoint.ipynb"
    copy.parent.mkdir()
    copy.write_text("{}")
    (one,) = collect(tmp_path, SOURCE)
    assert one.cells


def test_of_several_notebooks_the_assignments_own_counts(tmp_path):
    submissions.write(tmp_path, {"ada": Made(), "bob": Made(file="a.ipynb")})
    (tmp_path / "ada/other.ipynb").write_text(json.dumps({"cells": []}))
    (tmp_path / "bob/other.ipynb").write_text(json.dumps({"cells": [], "metadata": {}}))
    assert [bool(s.cells) for s in collect(tmp_path, SOURCE)] == [True, True]
    shutil.copy(tmp_path / "bob/a.ipynb", tmp_path / "bob/b.ipynb")
    assert "several notebooks (a.ipynb, b.ipynb)" in collect(tmp_path, SOURCE)[1].problem


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"null",
        b'{"cells": 3}',
        b'{"cells": [{"source": 3}]}',
        b"\xff\xfe",
        b"[" * 50_000,
        b'{"cells": [{"cell_type": "code", "source": "' + b"x" * 500_000 + b'"}]}',
    ],
)
def test_a_broken_file_is_a_problem_of_its_own_student(tmp_path, content):
    path = tmp_path / "ada.ipynb"
    path.write_bytes(content)
    found = read("ada", path, SOURCE)
    assert found.problem and not found.cells


@pytest.mark.parametrize("metadata", [None, 3, {"nbgrader": 3}, {"nbgrader": {"grade_id": [1]}}])
def test_broken_metadata_cost_nothing(tmp_path, metadata):
    notebook = perfect()
    notebook["cells"].append(submissions.own_cell("1") | {"metadata": metadata})
    path = tmp_path / "ada.ipynb"
    path.write_text(json.dumps(notebook))
    assert not read("ada", path, SOURCE).problem


def test_a_notebook_without_any_marks_gets_one_note(tmp_path):
    notebook = perfect()
    for cell in notebook["cells"]:
        cell["metadata"] = {}
    path = tmp_path / "ada.ipynb"
    path.write_text(json.dumps(notebook))
    (note,) = read("ada", path, SOURCE).notes
    assert note.startswith("13 of the 13 marked cells have lost their marks")


def test_a_folder_without_submissions(tmp_path):
    with pytest.raises(ValueError, match="expected the folder of the submissions"):
        collect(tmp_path / "none", SOURCE)
    with pytest.raises(ValueError, match="expected submissions"):
        collect(tmp_path, SOURCE)
    with pytest.raises(ValueError, match="say it yourself: --assignment NAME"):
        assignment_of(tmp_path)


def test_one_student_cannot_vote_for_another_assignment(tmp_path):
    submissions.write(tmp_path, {"ada": Made(), "bob": Made(), "eve": Made()})
    for i in range(9):
        other = {"cells": [], "metadata": {"course": {"assignment": "winograd"}}}
        (tmp_path / f"eve/{i}.ipynb").write_text(json.dumps(other))
    assert assignment_of(tmp_path) == "averaging"


# The box


@boxed
def test_a_cell_that_sleeps_ends_by_the_clock():
    limits = Limits(start_seconds=10_000, cell_seconds=100, patience=0.03)
    with Box(["import time\ntime.sleep(10_000)"], {}, limits) as box:
        with pytest.raises(BoxEnded, match="no answer after 3 s"):
            box.run()
        assert box.cell == 0


@boxed
def test_what_runs_inside():
    cells = [
        "%matplotlib inline\nimport os, sys, torch, numpy as np\nfrom pathlib import Path",
        "def ids(x):\n    return os.getpid(), int(Path('/proc').is_dir())",
        "def limits(x):\n    np.ones(10**10)",
        "def shapes(x):\n    return x.shape[0] + x.shape[1]",
        "def files(x):\n    return sorted(os.listdir('/home')), os.getcwd(), dict(os.environ)",
        "def fills(x):\n    open('f', 'wb').write(bytes(100 * 2**20))",
        "import course.attention, course.kernels",
        "from course.checks import check\ncheck('no such', 3)",
    ]
    with Box(cells, {"student": "Ada"}, Limits()) as box:
        box.run()
        assert box.errors == {}
        process, _ = box.ask("ids", 1)["answer"]
        assert process < 10  # a world of processes of its own
        assert "MemoryError" in box.ask("limits", 1)["wrong"]
        assert box.ask("shapes", torch.ones(2, 3))["answer"] == 5
        assert "OSError" in box.ask("fills", 1)["wrong"]
        home, folder, environment = box.ask("files", 1)["answer"]
        assert home == ["student"] and folder == "/home/student"
        assert set(environment) & {"COURSE_DATA", "USER", "SSH_AUTH_SOCK"} == set()
    assert not Path(f"/proc/{box._process.pid}").exists()


@boxed
def test_the_message_names_the_students_line():
    cells = ["import torch\n\ndef broken(x):\n    y = x + 1\n    return y @ torch.ones(3)"]
    with Box(cells, {}, Limits()) as box:
        box.run()
        said = box.ask("broken", torch.ones(2, 2))["wrong"]
        assert "line 5: return y @ torch.ones(3)" in said and "given x [2, 2]" in said


def test_without_bubblewrap_nothing_is_graded(tmp_path, monkeypatch, capsys):
    submissions.write(tmp_path / "in", {"ada": Made()})
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    sandbox._refusal.cache_clear()
    try:
        status = main(
            ["assignments", "grade", str(tmp_path / "in"), "--out", str(tmp_path / "g.csv")]
        )
    finally:
        monkeypatch.undo()
        sandbox._refusal.cache_clear()
    said = capsys.readouterr().err
    assert status == 1 and not (tmp_path / "g.csv").exists()
    assert "bwrap" in said or "needs Linux" in said
    assert "apt install bubblewrap" in said and "--unsafe" in said and "network" in said


# The loop


@boxed
@pytest.mark.slow
def test_the_whole_loop(tmp_path):
    """Thirty submissions, one test: they are graded once, whatever is asked afterwards."""
    teacher = tmp_path / "teacher"
    teacher.mkdir()
    (teacher / "gradebook.csv").write_text("secret")
    heard: list = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        made = made_up(str(teacher), listener.getsockname()[1], sys.base_prefix)
        submissions.write(tmp_path / "in", made)
        before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        results = _graded(tmp_path / "in", tmp_path / "out/records", jobs=2)
        with contextlib.suppress(BlockingIOError):
            heard.append(listener.accept())
    places = write_all(tmp_path / "out.csv", results, SOURCE)
    by_student = {g.student: g for g in results}

    assert sorted(by_student) == sorted(made) and len(made) >= 16
    unexpected = {s: said for s in made if (said := _unexpected(made[s], by_student[s]))}
    assert unexpected == {}
    assert heard == [], "a submission reached a server outside its box"
    assert {p: p.read_bytes() for p in before} == before, "a submission changed a file"
    assert not [words for words in _running() if submissions.MARK.encode() in words]
    _look_at_the_table(places["table"], made)
    for student, graded in by_student.items():
        page = (places["feedback"] / f"{student}.html").read_text(encoding="utf-8")
        _look_at_the_page(page, student, graded)
        assert (tmp_path / "out/records/seed.txt").read_text().strip() not in page
    _look_at_the_report(places["report"].read_text(encoding="utf-8"))
    _grade_again(tmp_path)


def _graded(folder, records, **options):
    return grade(folder, SOURCE, records, limits=LIMITS, quiet=True, **options)


def _unexpected(made, graded):
    """What differs from what this submission must get."""
    points = tuple(graded.points(SOURCE, question) for question in QUESTIONS)
    told = [] if points == made.points else [f"points {points}"]
    notes = "\n".join(graded.notes)
    told += [f"no note {note!r}" for note in made.notes if note not in notes]
    if made.problem not in graded.problem or bool(made.problem) != bool(graded.problem):
        told.append(f"problem {graded.problem!r}")
    for question, said in made.said.items():
        mark = graded.marks[question]
        if said not in f"{mark.broken}: {mark.message}":
            told.append(f"of {question}: {mark}")
    return [*told, graded.marks, graded.notes] if told else []


def _running():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes()


def _look_at_the_table(path, made):
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert len(rows) == len(made)
    for student, one in made.items():
        row = rows[student if student[0] != "=" else f"'{student}"]
        assert [float(row[question]) for question in QUESTIONS] == list(one.points)
        assert float(row["total"]) == sum(one.points) and row["of"] == "24"
        assert row["leak-in-words"] == ("0" if one.problem else "")


def _look_at_the_page(page, student, graded):
    """All that a student wrote is text, and nothing of the hidden checks is there."""
    assert html.escape(student) in page
    assert "<script" not in page and "<b>" not in page
    for mark in graded.marks.values():
        if mark.stage == "hidden":
            assert mark.broken not in page and html.escape(mark.message) not in page


def _look_at_the_report(text):
    shares = [int(share) for share in re.findall(r"<h2>[\w-]+: (\d+)% of the points", text)]
    assert shares == sorted(shares) and len(shares) == len(QUESTIONS)
    assert "1 × largest score is 0: the largest of each row is 0: got" not in text
    assert "logarithms of the weights" in text and "a loop that does not end?" in text
    assert "<script" not in text


def _grade_again(folder):
    """A second call on the same records grades only what has changed."""
    records = folder / "out/records/averaging"
    before = {p.name: p.stat().st_mtime_ns for p in records.glob("*.json")}
    submissions.write(folder / "again", {"perfect": Made(), "empty": Made()})
    results = _graded(folder / "again", folder / "out/records", jobs=1)
    after = {p.name: p.stat().st_mtime_ns for p in records.glob("*.json")}
    assert len(after.items() - before.items()) == 1 and before.items() <= after.items()
    assert [sum(g.points(SOURCE, q) for q in QUESTIONS) for g in results] == [20, 20]


@boxed
@pytest.mark.slow
def test_a_box_that_does_not_start_is_nobodys_fault(tmp_path, monkeypatch, capsys):
    """No points are taken for it, nothing is stored, and the same command tries again."""
    submissions.write(tmp_path / "in", {"ada": Made()})
    with monkeypatch.context() as broken:
        broken.setattr(sandbox, "_OWN", {"__init__.py"})
        (graded,) = _graded(tmp_path / "in", tmp_path / "records", jobs=1)
    assert graded.problem.startswith("not graded, a fault of the grading itself")
    assert (
        "the box did not start" in graded.problem
        and "ModuleNotFoundError" in capsys.readouterr().err
    )
    write_all(tmp_path / "g.csv", [graded], SOURCE)  # no 0: nobody has looked at it
    assert '\r\nada,,24,,,,,,,"not graded' in (tmp_path / "g.csv").read_bytes().decode("utf-8-sig")
    (graded,) = _graded(tmp_path / "in", tmp_path / "records", jobs=1)
    assert tuple(graded.points(SOURCE, question) for question in QUESTIONS) == FULL


@boxed
@pytest.mark.slow
def test_dask_and_unsafe_give_the_same_marks(tmp_path):
    pytest.importorskip("distributed")
    submissions.write(tmp_path / "in", {"ada": Made()})
    for way in ({"engine": "dask", "jobs": 1}, {"unsafe": True, "jobs": 1}):
        (graded,) = grade(
            tmp_path / "in", SOURCE, tmp_path / next(iter(way)), limits=LIMITS, quiet=True, **way
        )
        assert tuple(graded.points(SOURCE, question) for question in QUESTIONS) == FULL


@boxed
@pytest.mark.slow
def test_the_commands(tmp_path, capsys):
    """release → check → grade → marks by hand, as the help says."""
    assert main(["assignments", "list"]) == 0
    assert "averaging       6 questions, 24 points" in capsys.readouterr().out
    assert main(["assignments", "release", "averaging", "--out", str(tmp_path)]) == 0
    notebook = tmp_path / "averaging.ipynb"
    assert main(["assignments", "check", str(notebook), "--student", "Zoë"]) == 0
    folder, out = tmp_path / "in", tmp_path / "grades.csv"
    folder.mkdir()
    shutil.copy(notebook, folder / "Zoë.ipynb")
    words = ["assignments", "grade", str(folder), "--out", str(out), "--jobs", "1"]
    assert main(words) == 0
    sheet = out.with_suffix("") / "written.csv"
    filled = sheet.read_text(encoding="utf-8-sig").replace(
        "leak-in-words,4,,", "leak-in-words,4,3,"
    )
    sheet.write_text(filled, encoding="utf-8-sig")
    assert main([*words, "--marks", str(sheet)]) == 0
    assert "Zoë,3,24,0,0,0,0,0,3," in out.read_text(encoding="utf-8-sig")


# What comes of it


def test_marks_by_hand_are_checked(tmp_path):
    path = tmp_path / "written.csv"
    head = "student,question,of,points,answer\n"
    path.write_text(head + "ada,leak-in-words,4,2.5,x\nbob,leak-in-words,4,,y\n")
    assert read_marks(path, SOURCE) == {("ada", "leak-in-words"): 2.5}
    for bad in ("ada,leak-in-words,4,5,x\n", "ada,fading-mean,4,1,x\n", "ada,leak-in-words,4,x,\n"):
        path.write_text(head + bad)
        with pytest.raises(ValueError, match="in line 2 of"):
            read_marks(path, SOURCE)


def test_a_message_without_its_numbers():
    one = "rows: got 0.2 at [1, 0], expected -3e-05. Divide by T"
    assert common(one) == "rows: got # at [#, #], expected #. Divide by T"
    assert common("program_2 in float32: 0/0") == "program_2 in float32: 0/0"


def test_a_report_counts_the_same_bug_once():
    from course.assignments.grade import Graded

    def of(student, said):
        marks = {q: Mark(1.0, "full") for q in QUESTIONS}
        marks["recent-mean"] = Mark(0.0, "visible", "padding", said)
        return Graded(student, marks, {}, [])

    results = [of("a", "got 1 at [0, 2], expected 3. B"), of("b", "got 7 at [1, 1], expected 2. B")]
    text = report(results, SOURCE)
    assert "2 × padding: got # at [#, #], expected #. B" in text
    assert "recent-mean: 0% of the points" in text and "fading-mean: 100%" in text
    page = feedback(results[0], SOURCE)
    assert "padding: got 1 at [0, 2], expected 3. B" in page and "16 of 24 points" in page


def test_a_report_names_students_whose_answers_in_words_are_equal():
    from course.assignments.grade import Graded

    marks = {name: Mark(1.0, "full") for name in QUESTIONS}
    said = {"a": "It leaks.", "b": "It  leaks.\n", "c": "It does not leak.", "d": "", "e": ""}
    results = [Graded(s, marks, {"leak-in-words": text}, []) for s, text in said.items()]
    text = report(results, SOURCE)
    assert re.findall(r"The same answer, word for word: ([^<]*)\.<", text) == ["a, b"]
    assert "word for word" not in feedback(results[0], SOURCE)


def test_help_needs_no_torch():
    import subprocess

    code = (
        "import sys\nfrom course.cli import main\n"
        "try:\n    main(['assignments', 'grade', '--help'])\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--engine dask" in done.stdout and "--unsafe" in done.stdout
