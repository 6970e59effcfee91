"""The command ``course assignments list | release | check | grade | guide``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

_EXAMPLES = """examples:
  course assignments list
  course assignments release averaging --out handout     what students get
  course assignments check averaging.ipynb               a student, before handing in
  course assignments grade collected --out grades.csv    30 submissions, FOLDER/NAME.ipynb each
  course assignments guide averaging --out teacher       solution and marking guide
"""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add ``course assignments``."""
    parser = subparsers.add_parser(
        "assignments",
        help="hand out, check and grade the assignments",
        description="Assignments that grade themselves. notebooks/assignments/README.md is the "
        "teacher's hour: set up, hand out, collect, grade, export.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="{list,release,check,grade,guide}"
    )
    actions.add_parser("list", help="the assignments and their points").set_defaults(run=_list)
    _add_release(actions)
    _add_check(actions)
    _add_grade(actions)
    _add_guide(actions)


def _add_release(actions: argparse._SubParsersAction) -> None:
    release = actions.add_parser(
        "release",
        help="write the students' notebook",
        description="Write the students' notebook of an assignment: the source without its "
        "solutions. It needs the course, and no nbgrader.",
    )
    release.add_argument("name", help="as `course assignments list` says")
    release.add_argument("--out", type=Path, required=True, help="folder for NAME.ipynb")
    release.set_defaults(run=_release)


def _add_check(actions: argparse._SubParsersAction) -> None:
    check = actions.add_parser(
        "check",
        help="run a notebook and its visible checks",
        description="For students: run the notebook from top to bottom in a fresh process and "
        "print what the visible checks say. It runs the notebook's code, without a sandbox: check "
        "your own.",
    )
    check.add_argument("file", type=Path)
    check.add_argument("--student", help="instead of the name in the notebook's STUDENT cell")
    check.set_defaults(run=_check)


def _add_grade(actions: argparse._SubParsersAction) -> None:
    grade = actions.add_parser(
        "grade",
        help="grade a folder of submissions",
        description="Grade FOLDER/NAME.ipynb or FOLDER/NAME/….ipynb, each in a sandbox; NAME is "
        "the student. Interrupt it whenever you like: the same command goes on. Beside the table "
        "comes a folder of its name: feedback/NAME.html for each student, report.html (what most "
        "got wrong), written.csv for the written answers.",
        epilog="examples:\n  course assignments grade collected --out grades.csv\n"
        "  course assignments grade collected --out grades.csv --marks grades/written.csv\n"
        "  course assignments grade collected --out grades.csv --engine dask --jobs 8\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    grade.add_argument("folder", type=Path)
    grade.add_argument("--out", type=Path, required=True, help="the table, NAME.csv")
    grade.add_argument("--assignment", help="needed where the notebooks do not say it themselves")
    grade.add_argument("--marks", type=Path, help="a filled-in written.csv")
    grade.add_argument("--jobs", type=int, default=2, help="submissions at a time (default 2)")
    grade.add_argument("--engine", choices=("local", "dask"), default="local")
    grade.add_argument("--scheduler", help="address of a Dask scheduler (default: workers here)")
    grade.add_argument("--seconds", type=float, help="processor time for one cell (default 30)")
    grade.add_argument(
        "--unsafe",
        action="store_true",
        help="without a sandbox: every submission can then read and change whatever you can, the "
        "other submissions and the grades too, and use the network",
    )
    grade.set_defaults(run=_grade)


def _add_guide(actions: argparse._SubParsersAction) -> None:
    guide = actions.add_parser(
        "guide",
        help="write the solution and the marking guide",
        description="Write NAME-solution.ipynb and NAME-guide.md: the solutions, the properties, "
        "the wrong answers and what kills each of them. For teachers.",
    )
    guide.add_argument("name")
    guide.add_argument("--out", type=Path, required=True, help="folder for both")
    guide.set_defaults(run=_guide)


def _list(arguments: argparse.Namespace) -> int:
    from course.assignments.catalogue import assignments
    from course.assignments.source import names, read_source

    for name in names():
        source, assignment = read_source(name), assignments()[name]
        asked = [q.name for q in assignment.questions] + source.written
        points = sum(map(source.points, asked))
        print(f"{name:15} {len(asked)} questions, {points:g} points: {assignment.title}")
    return 0


def _release(arguments: argparse.Namespace) -> int:
    from course.assignments.source import read_source, release

    source = read_source(arguments.name)
    path = _write_notebook(arguments.out / f"{source.name}.ipynb", release(source))
    print(f"wrote {path}")
    return 0


def _guide(arguments: argparse.Namespace) -> int:
    from course.assignments.guide import guide
    from course.assignments.pages import write_whole
    from course.assignments.source import read_source, solution

    source = read_source(arguments.name)
    path = _write_notebook(arguments.out / f"{source.name}-solution.ipynb", solution(source))
    print(f"wrote {path}")
    path = arguments.out / f"{source.name}-guide.md"
    write_whole(path, guide(source))
    print(f"wrote {path}")
    return 0


def _write_notebook(path: Path, notebook: Mapping[str, object]) -> Path:
    import json

    from course.assignments.pages import write_whole

    write_whole(path, json.dumps(notebook, ensure_ascii=False, indent=1) + "\n")
    return path


def _check(arguments: argparse.Namespace) -> int:
    from course.assignments.own import check_file

    return check_file(arguments.file, arguments.student)


def _grade(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from course.assignments.grade import grade
    from course.assignments.limits import Limits
    from course.assignments.pages import read_marks, write_all
    from course.assignments.sandbox import NoSandbox
    from course.assignments.source import read_source
    from course.assignments.submission import assignment_of

    limits = Limits() if arguments.seconds is None else Limits(cell_seconds=arguments.seconds)
    source = read_source(arguments.assignment or assignment_of(arguments.folder))
    given = read_marks(arguments.marks, source) if arguments.marks else {}
    if arguments.unsafe:
        print("without a sandbox: the submissions can do here whatever you can", file=sys.stderr)
    try:
        results = grade(
            arguments.folder,
            source,
            arguments.out.with_suffix("") / "records",
            limits=limits,
            jobs=arguments.jobs,
            engine=arguments.engine,
            scheduler=arguments.scheduler,
            unsafe=arguments.unsafe,
        )
    except NoSandbox as reason:
        print(reason, file=sys.stderr)
        return 1
    results = [
        replace(g, by_hand={q: p for (s, q), p in given.items() if s == g.student}) for g in results
    ]
    places = write_all(arguments.out, results, source)
    for what, place in places.items():
        print(f"{what}: {place}")
    return 1 if any(g.failed for g in results) else 0
