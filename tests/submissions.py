"""Made-up submissions to the assignment "averaging": right, partly right, unlucky and hostile.

Each says what it must get for the five questions, and words of the notes and of what is said of an
answer. They are written into a folder as a teacher collects them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course.assignments.source import grade_id_of, read_source, release, solved, text_of

QUESTIONS = ("fading-mean", "scores-for-weights", "recent-mean", "expose-the-bug", "present-share")
FULL = (4, 4, 4, 5, 3)
SOURCE = read_source("averaging")
Notebook = dict[str, Any]
#: So long sleeps only what these submissions start.
MARK = "98765.25"


@dataclass(frozen=True)
class Made:
    """A submission: how the perfect one is changed, and what must come of it."""

    change: Callable[[Notebook], None] = lambda notebook: None
    points: tuple[float, ...] = FULL
    notes: tuple[str, ...] = ()
    said: Mapping[str, str] = field(default_factory=dict)
    file: str = "averaging.ipynb"
    problem: str = ""
    raw: bytes | None = None


def perfect() -> Notebook:
    """The released notebook with the solutions typed into it, as a student would."""
    notebook = release(SOURCE)
    for cell in notebook["cells"]:
        name = grade_id_of(cell)
        if name and cell["metadata"]["nbgrader"]["solution"]:
            cell["source"] = solved(text_of(SOURCE.cell(name)))
    return notebook


def write(folder: Path, made: Mapping[str, Made]) -> None:
    """Write all submissions into ``folder``, a folder each."""
    for student, one in made.items():
        path = folder / student / one.file
        path.parent.mkdir(parents=True, exist_ok=True)
        notebook = perfect()
        one.change(notebook)
        path.write_bytes(one.raw or json.dumps(notebook, ensure_ascii=False).encode())


def at(notebook: Notebook, name: str) -> int:
    return next(i for i, c in enumerate(notebook["cells"]) if grade_id_of(c) == name)


def put(name: str, text: str) -> Callable[[Notebook], None]:
    """Another text in the answer cell ``name``."""

    def change(notebook: Notebook) -> None:
        notebook["cells"][at(notebook, name)]["source"] = text

    return change


def add(text: str, before: str = "fading-mean") -> Callable[[Notebook], None]:
    """A cell of the student's own before the answer ``before``."""

    def change(notebook: Notebook) -> None:
        notebook["cells"].insert(at(notebook, before), own_cell(text))

    return change


def own_cell(text: str) -> Notebook:
    return {
        "cell_type": "code",
        "metadata": {},
        "source": text,
        "outputs": [],
        "execution_count": None,
        "id": "own",
    }


def both(*changes: Callable[[Notebook], None]) -> Callable[[Notebook], None]:
    def change(notebook: Notebook) -> None:
        for one in changes:
            one(notebook)

    return change


def _empty(notebook: Notebook) -> None:
    notebook.clear()
    notebook.update(release(SOURCE))


def _partly(notebook: Notebook) -> None:
    full = copy.deepcopy(notebook)
    _empty(notebook)
    for name in QUESTIONS[:1]:
        notebook["cells"][at(notebook, name)] = full["cells"][at(full, name)]
    put("scores-for-weights", "def scores_for(weights):\n    return weights.log()")(notebook)
    recent = text_of(full["cells"][at(full, "recent-mean")]).replace(".clamp_min(1)", "")
    put("recent-mean", recent)(notebook)


def _deleted(notebook: Notebook) -> None:
    for name in ("fading-mean", "leak-in-words", "scores-for-weights-check"):
        del notebook["cells"][at(notebook, name)]


def _copied(notebook: Notebook) -> None:
    cell = copy.deepcopy(notebook["cells"][at(notebook, "fading-mean")])
    cell["source"] = "def fading_mean(x):\n    return x"
    notebook["cells"].insert(at(notebook, "fading-mean-check") + 1, cell)


def _retyped(notebook: Notebook) -> None:
    for i, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            notebook["cells"][i] = own_cell(cell["source"])


def _reordered(notebook: Notebook) -> None:
    notebook["cells"].reverse()


_LOOP = "def fading_mean(x):\n    while True:\n        pass"
_HOG = """
def recent_mean(x, real):
    kept = []
    while True:
        kept.append(torch.ones(4_000_000))
"""
_SWARM = f"""
import subprocess
swarm = [subprocess.Popen(["sleep", "{MARK}"], start_new_session=True) for _ in range(40)]
"""
_READ = """
import glob, os
wanted = ["/etc/passwd", "/etc/shadow", "/root", "/work", "/home", "/tmp", PLACES]
found = [p for w in wanted for p in glob.glob(w + "/**/*", recursive=True) if os.path.isfile(p)]
found += [w for w in wanted if os.path.isfile(w)]
import course
inside = glob.glob(os.path.dirname(course.__file__) + "/**/*", recursive=True)
found += [p for p in inside if "questions" in p or "checks/nb" in p or p.endswith("grade.py")]
found += [p for p in glob.glob("/proc/[0-9]*/cmdline") if b"pytest" in open(p, "rb").read()]
found = [p for p in found if "site-packages" not in p and ALLOWED not in p]
raise RuntimeError(f"read {found[:3]}")
"""
_WRITE = """
import os
written = []
for place in PLACES, "/usr", "/etc", "/dev", "/", "/proc", os.path.dirname(torch.__file__):
    try:
        with open(place + "/left-behind.txt", "w") as file:
            written.append(place)
    except OSError:
        pass
raise RuntimeError(f"written {written}")
"""
_NETWORK = """
import socket
reached = []
for host in ("127.0.0.1", "1.1.1.1"):
    try:
        socket.create_connection((host, PORT), timeout=0.5)
        reached.append(host)
    except OSError:
        pass
raise RuntimeError(f"reached {reached}")
"""
_SCORE = """
import os
print("score: 20/20"); print(20.0)
open("grades.csv", "w").write("student,total\\nself-reported,20\\n")
os.environ["NBGRADER_EXECUTION"] = "autograde"
"""
_FORGED = """
import os
for fd in range(3, 40):
    try:
        os.write(fd, b'{"full": true}' * 4)
    except OSError:
        pass
"""
_PATCHED = """
import numpy, sys
import course.checks.answers
for module in (torch, numpy):
    module.allclose = module.equal = module.isclose = lambda *a, **k: True
torch.Tensor.__eq__ = torch.Tensor.__le__ = lambda self, other: torch.ones(1).bool()
torch.Tensor.abs = torch.zeros_like
course.checks.answers.differs = lambda *a, **k: None
course.checks.answers.is_stub = lambda error: True


def fading_mean(x):
    return x
"""
_REFERENCE = """
from course.assignments.questions.averaging import _fading_mean


def fading_mean(x):
    return _fading_mean(x, mine["keep"])
"""
_NOISE = """
import sys, time, warnings
from tqdm import tqdm

warnings.warn("a warning")
for _ in tqdm(range(5)):
    print("to stderr", file=sys.stderr)
"""
_HTML = "<script>alert('x')</script> & <b>bold</b>"


def made_up(places: str, port: int, allowed: str) -> dict[str, Made]:
    """All submissions by student. ``places`` is a folder of the teacher's, ``port`` one that
    listens, ``allowed`` where the interpreter itself lies, which may be read."""
    lost = dict(zip(QUESTIONS, FULL, strict=True))

    def without(*names: str) -> tuple[float, ...]:
        return tuple(0 if name in names else points for name, points in lost.items())

    told = {"PLACES": repr(places), "PORT": str(port), "ALLOWED": repr(allowed)}

    def fill(text: str) -> str:
        for name, value in told.items():
            text = text.replace(name, value)
        return text

    return {
        "perfect": Made(),
        "empty": Made(_empty, (0, 0, 0, 0, 0), said=dict.fromkeys(QUESTIONS, "not written yet")),
        "partly right": Made(
            _partly,
            (4, 0, 2, 0, 0),
            said={
                "scores-for-weights": "logarithms of the weights",
                "recent-mean": "0/0 is NaN",
                "expose-the-bug": "not written yet",
            },
        ),
        "deleted cells": Made(
            _deleted,
            without("fading-mean"),
            notes=("the cell fading-mean is not there", "the cell leak-in-words is not there"),
            said={"fading-mean": "there is no fading_mean: was its cell deleted"},
        ),
        "copied cells": Made(
            _copied,
            without("fading-mean"),
            notes=("the cell fading-mean is there 2 times: what runs last counts",),
        ),
        "retyped cells": Made(_retyped, notes=("12 of the 13 marked cells have lost their marks",)),
        "reordered cells": Made(_reordered),
        "endless loop": Made(
            put("fading-mean", _LOOP),
            without("fading-mean"),
            said={"fading-mean": "a loop that does not end?"},
        ),
        "endless loop in a cell": Made(
            add("while True:\n    pass"),
            notes=("(“while True:”) was left out: no answer after", "a loop that does not end?"),
        ),
        "endless printing": Made(
            put("scores-for-weights", "def scores_for(w):\n    while True:\n        print(w)"),
            without("scores-for-weights"),
            said={"scores-for-weights": "a loop that does not end?"},
        ),
        "memory hog": Made(
            put("recent-mean", _HOG),
            without("recent-mean"),
            said={"recent-mean": "GiB of memory"},
        ),
        "process swarm": Made(add(_SWARM), notes=("was left out: more than 12 processes",)),
        "killed kernel": Made(
            add("import os\nos.kill(os.getpid(), 9)"),
            notes=("(“import os”) was left out: its process ended",),
        ),
        "ends in a call": Made(
            put("scores-for-weights", "import os\ndef scores_for(w):\n    os._exit(0)"),
            without("scores-for-weights"),
            said={"scores-for-weights": "its process ended"},
        ),
        "noise on stderr": Made(add(_NOISE)),
        "not JSON": Made(raw=b"PK\x03\x04 nonsense", points=(0,) * 5, problem="is no notebook"),
        "JSON of another kind": Made(raw=b"[1, 2]", points=(0,) * 5, problem="is no notebook"),
        "no notebook": Made(file="essay.pdf", points=(0,) * 5, problem="there is no notebook"),
        "renamed": Made(file="Untitled 7 (copy).ipynb"),
        "as nbgrader": Made(file="averaging/averaging.ipynb"),
        "Zoë Ångström 数学": Made(file="Übung – 最終.ipynb"),
        "patched": Made(  # and what it does to == costs its own answer to question 3
            put("fading-mean", _PATCHED),
            without("fading-mean", "recent-mean"),
            said={"fading-mean": "values"},
        ),
        "reads": Made(add(fill(_READ)), notes=("RuntimeError: read []",)),
        "writes": Made(add(fill(_WRITE)), notes=("RuntimeError: written []",)),
        "network": Made(add(fill(_NETWORK)), notes=("RuntimeError: reached []",)),
        "self-reported": Made(
            both(_empty, add(_SCORE)),
            (0,) * 5,
        ),
        "forged": Made(
            both(_empty, add(_FORGED)),
            (0,) * 5,
            notes=("was left out: its process sent something else than answers",),
        ),
        "the reference": Made(
            put("fading-mean", _REFERENCE),
            without("fading-mean"),
            notes=("ModuleNotFoundError",),
            said={"fading-mean": "there is no fading_mean"},
        ),
        "huge answer": Made(
            put("fading-mean", "def fading_mean(x):\n    return torch.ones(1).expand(10**12)"),
            without("fading-mean"),
            said={"fading-mean": "its answer cannot be sent"},
        ),
        "=HYPERLINK(“x”)": Made(put("leak-in-words", _HTML)),
    }
