"""The ``course`` command: what it says, its exit status, and what it loads."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import course
from course import cli


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"course {course.__version__}\n"


def test_help_lists_each_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    for name, (_, summary) in cli.COMMANDS.items():
        assert re.search(rf"^    {name}\s+{summary.split()[0]}", printed, re.MULTILINE)


def test_no_command_prints_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage: course" in capsys.readouterr().out


def test_unknown_command_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["doktor"])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert "doktor" in error and "doctor" in error


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_has_help_and_something_to_run(name: str) -> None:
    parser = cli.build_parser(name)
    with pytest.raises(SystemExit) as stop:
        parser.parse_args([name, "--help"])
    assert stop.value.code == 0


def fake_command(monkeypatch: pytest.MonkeyPatch, run: object) -> None:
    def add_parser(subparsers: argparse._SubParsersAction) -> None:
        subparsers.add_parser("fake").set_defaults(run=run)

    module = types.ModuleType("course.fake")
    module.add_parser = add_parser  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "course.fake", module)
    monkeypatch.setitem(cli.COMMANDS, "fake", ("course.fake", "a command for the tests"))


@pytest.mark.parametrize(("returned", "status"), [(None, 0), (0, 0), (1, 1), (3, 3)])
def test_exit_status_is_what_the_command_returns(
    monkeypatch: pytest.MonkeyPatch, returned: int | None, status: int
) -> None:
    fake_command(monkeypatch, lambda arguments: returned)
    assert cli.main(["fake"]) == status


def test_interrupt_ends_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(arguments: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    fake_command(monkeypatch, interrupted)
    assert cli.main(["fake"]) == 130
    assert capsys.readouterr().err == "\nstopped\n"


def test_a_reader_that_goes_away_gets_no_traceback() -> None:
    command = [sys.executable, "-m", "course.cli", "experiments", "table", "ladder"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 1


@pytest.mark.parametrize(
    "command",
    [
        *["", "doctor", "data", "data fetch", "experiments", "experiments run"],
        *["bench", "bench linear", "kernels", "kernels compile"],
    ],
)
def test_help_loads_no_heavy_package(command: str) -> None:
    code = (
        "import sys; from course import cli\n"
        f"try: cli.main([*{command.split()!r}, '--help'])\n"
        "except SystemExit: pass\n"
        "print('LOADED', *sorted({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED"


@pytest.mark.parametrize(
    "error", [PermissionError(13, "no", "/x"), ImportError("x.dll"), ValueError("n: expected 1")]
)
def test_what_the_reader_can_mend_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def refused(arguments: argparse.Namespace) -> int:
        raise error

    fake_command(monkeypatch, refused)
    assert cli.main(["fake"]) == 1
    assert capsys.readouterr().err == f"course fake: {error}\n"


def test_an_address_without_a_scheduler_is_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("distributed")
    options = ["--engine", "dask", "--scheduler", "nonsense", "--out", str(tmp_path)]
    assert cli.main(["experiments", "run", "counts", *options]) == 1
    said = capsys.readouterr().err
    assert "scheduler: expected the address of a running Dask scheduler" in said
    assert "'nonsense'" in said


@pytest.mark.parametrize("stranger", ["course.py", "course/notes.txt"])
def test_another_course_in_its_place_is_one_sentence(tmp_path: Path, stranger: str) -> None:
    (tmp_path / stranger).parent.mkdir(exist_ok=True)
    (tmp_path / stranger).touch()
    done = subprocess.run(
        [sys.executable, "-c", "import sys, attention_derived; sys.exit(attention_derived.main())"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"`import course` leads to {tmp_path}/course")
    assert "Traceback" not in done.stderr
