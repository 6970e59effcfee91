"""``course doctor``: each problem is found, has a fix, and decides the exit status."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import course
from course import cli, doctor
from course.doctor import Finding


def test_this_machine_can_run_the_course(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert f"course {course.__version__}" in printed
    assert f"torch {metadata.version('torch')}" in printed
    assert "The course can run here." in printed
    assert "✗" not in printed


def test_a_problem_gives_exit_status_1_and_its_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = Finding("disk", "problem", "is full", "delete something")
    monkeypatch.setattr(doctor, "CHECKS", (lambda: bad, doctor.check_python))
    assert cli.main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "✗ disk         is full\n               fix: delete something" in printed
    assert "cannot run here: 1 problem, marked ✗" in printed


def test_a_note_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (lambda: Finding("browser", "note", "none"),))
    assert cli.main(["doctor"]) == 0


@pytest.mark.parametrize(
    ("version", "system", "machine", "state"),
    [
        ((3, 10), "Linux", "x86_64", "problem"),
        ((3, 11), "Linux", "x86_64", "ok"),
        ((3, 14), "Windows", "AMD64", "ok"),
        ((3, 15), "Linux", "aarch64", "problem"),
        ((3, 12), "Darwin", "arm64", "ok"),
        ((3, 12), "Darwin", "x86_64", "problem"),
    ],
)
def test_supported_machines(
    version: tuple[int, int], system: str, machine: str, state: str
) -> None:
    finding = doctor.check_python(version, system, machine)
    assert finding.state == state
    assert bool(finding.fix) == (state == "problem")


def pretend(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str | None]) -> None:
    """Other versions for some packages; None is a package that is not installed."""
    real = metadata.version

    def version(name: str) -> str:
        found = versions.get(name, "real")
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return real(name) if found == "real" else found

    monkeypatch.setattr(metadata, "version", version)


def test_missing_and_old_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {"tokenizers": None, "numpy": "1.26.4"})
    finding = doctor.check_packages()
    assert finding.state == "problem"
    assert "tokenizers is missing" in finding.detail
    assert "numpy 1.26.4 is not >=2.0" in finding.detail
    assert "make lab" in finding.fix


def test_a_course_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    finding = doctor.check_packages()
    assert finding.state == "problem" and "not installed" in finding.detail


def finding_in_a_new_process(check: str, folder: Path, **variables: str) -> str:
    """What a check prints when the course is started in ``folder`` with these variables."""
    code = f"from course import doctor; print(doctor.{check}())"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.remove('')\n{code}"],
        env=os.environ | variables,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("torch", "says", "fix"),
    [
        ("raise OSError('[WinError 126] The specified module …')", "WinError 126", "Visual C++"),
        ("raise ImportError('libtorch.so: cut off')", "libtorch.so", "make lab"),
        ("import os; os.abort()", "status", "make lab"),
    ],
)
def test_a_torch_that_does_not_start(tmp_path: Path, torch: str, says: str, fix: str) -> None:
    (tmp_path / "torch.py").write_text(torch, encoding="utf-8")
    printed = finding_in_a_new_process("check_torch", tmp_path, PYTHONPATH=str(tmp_path))
    assert "✗ PyTorch" in printed and "does not start" in printed
    assert says in printed.splitlines()[0] and fix in printed.splitlines()[1]


def test_pictures_are_drawn_not_promised(tmp_path: Path) -> None:
    printed = finding_in_a_new_process("check_picture", tmp_path, MPLBACKEND="nonsense")
    assert "✗ pictures" in printed and "fix: unset MPLBACKEND (now 'nonsense')" in printed


def test_a_kernel_that_does_not_answer_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = tmp_path / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    silent = [sys.executable, "-c", "import time; time.sleep(60)"]
    spec.write_text(json.dumps({"argv": silent, "display_name": "silent", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    finding = doctor.check_kernel(patience=0.5)
    assert finding.state == "problem" and "does not start" in finding.detail


@pytest.mark.parametrize(
    "name", ["course.py", "course/notes.txt", "torch.py", "random/__init__.py"]
)
def test_a_file_that_hides_a_module_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "numbers").mkdir()  # no module: Python prefers the real one
    (tmp_path / "essay.py").touch()
    assert doctor.check_names().state == "ok"
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    finding = doctor.check_names()
    assert finding.state == "problem" and finding.fix
    assert str(tmp_path / name.split("/")[0]) in finding.detail


def test_another_package_called_course(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = {"course": ["attention-derived", "golf"]}
    monkeypatch.setattr(metadata, "packages_distributions", lambda: owners)
    finding = doctor.check_names()
    assert finding.state == "problem" and "golf is called course too" in finding.detail


def test_a_check_that_fails_itself_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check_moon() -> Finding:
        raise OSError("too far")

    monkeypatch.setattr(doctor, "CHECKS", (check_moon, doctor.check_python))
    assert cli.main(["doctor"]) == 1
    assert "✗ moon         could not be looked at: OSError('too far')" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("torch", "triton", "numpy", "state", "says"),
    [
        ("2.13.0+cpu", "3.7.1", "2.4.6", "ok", "3.7.1 with torch 2.13.0+cpu"),
        ("2.13.0", "3.6.0", "2.3.0", "note", "this torch goes with triton 3.7"),
        ("2.12.0", "3.6.0", "2.4.6", "note", "cannot interpret"),
        ("2.12.0", "3.6.0", "2.3.0", "ok", "3.6.0 with torch 2.12.0"),
        ("2.13.0", None, "2.4.6", "note", "not installed"),
    ],
)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Triton is for Linux")
def test_triton(
    monkeypatch: pytest.MonkeyPatch,
    torch: str,
    triton: str | None,
    numpy: str,
    state: str,
    says: str,
) -> None:
    pretend(monkeypatch, {"torch": torch, "triton": triton, "numpy": numpy})
    finding = doctor.check_triton()
    assert (finding.state, says in finding.detail) == (state, True), finding


def test_triton_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert doctor.check_triton().state == "note"


def write_notebook(folder: Path, version: str) -> None:
    text = f'{{"cells": [{{"source": ["check_environment(notebooks=\\"{version}\\")"]}}]}}'
    (folder / doctor.FIRST_NOTEBOOK).write_text(text, encoding="utf-8")


def test_package_and_notebooks_of_two_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    write_notebook(tmp_path, "0.0.9")
    finding = doctor.check_versions()
    assert finding.state == "problem"
    assert f"package {course.__version__}, notebooks 0.0.9" in finding.detail
    write_notebook(tmp_path, course.__version__)
    assert doctor.check_versions().state == "ok"


def test_an_old_copy_of_the_reader_is_a_note(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, version in (("notebooks", course.__version__), ("my-notebooks", "0.0.9")):
        (tmp_path / folder).mkdir()
        write_notebook(tmp_path / folder, version)
    finding = doctor.check_versions()
    assert finding.state == "note" and "your copy in my-notebooks is 0.0.9" in finding.detail
    monkeypatch.chdir(tmp_path / "my-notebooks")
    assert doctor.notebooks_folder("my-notebooks") == tmp_path / "my-notebooks"


def test_notebooks_beside_the_reader_or_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    beside_package = Path(course.__file__).resolve().parents[1] / "notebooks"
    assert doctor.notebooks_folder() in (beside_package, None)
    (tmp_path / "notebooks").mkdir()
    write_notebook(tmp_path / "notebooks", "1")
    assert doctor.notebooks_folder() == tmp_path / "notebooks"


def test_no_notebooks_at_all_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "notebooks_folder", lambda *_: None)
    assert doctor.check_versions().state == "note"


def test_writable_places(tmp_path: Path) -> None:
    assert doctor.is_writable(tmp_path)
    assert doctor.is_writable(tmp_path / "not" / "there" / "yet")
    file = tmp_path / "file"
    file.write_text("")
    assert not doctor.is_writable(file)


class Locked(type(Path())):  # type: ignore[misc]
    """A folder inside another user's: even looking is forbidden."""

    def exists(self, **_: object) -> bool:
        raise PermissionError(13, "Permission denied", str(self))


class Gone(type(Path())):  # type: ignore[misc]
    """A drive that is not there: neither it nor what should hold it exists."""

    def exists(self, **_: object) -> bool:
        return False


@pytest.mark.parametrize("kind", [Locked, Gone])
def test_places_that_cannot_even_be_looked_at_are_not_writable(kind: type[Path]) -> None:
    assert not doctor.is_writable(kind("/no/such/folder"))


def test_no_temporary_folder_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(doctor.tempfile, "gettempdir", none)
    finding = doctor.check_places()
    assert finding.state == "problem" and "temporary files (no such folder)" in finding.detail


def test_a_locked_place_is_a_problem_that_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    locked = tmp_path / "a file, no folder"
    locked.write_text("")
    monkeypatch.setattr(doctor, "notebooks_folder", lambda *_: locked)
    finding = doctor.check_places()
    assert finding.state == "problem" and str(locked) in finding.detail and finding.fix


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="displays are a Linux matter")
def test_no_display_no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert not doctor.has_browser()
    finding = doctor.check_browser()
    assert finding.state == "note" and "make lab" in finding.fix


def test_check_environment_prints_the_same_lines_everywhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    doctor.check_environment(notebooks=course.__version__)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert all(line.startswith("✓ ") for line in lines)
    versions = [metadata.version(name) for name in ("torch", "numpy", "matplotlib")]
    assert not any(version in line for line in lines for version in versions)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "ascii"])
def test_every_console_gets_the_lines(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    console = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", console)
    doctor.check_environment(notebooks=course.__version__)
    console.flush()
    assert console.buffer.getvalue().count(b"ok ") == 5  # type: ignore[attr-defined]


def test_check_environment_says_what_is_wrong_and_the_fix(
    capsys: pytest.CaptureFixture[str],
) -> None:
    doctor.check_environment(notebooks="99.0")
    printed = capsys.readouterr().out
    assert "✗ versions" in printed and "notebooks 99.0" in printed and "fix: " in printed
    assert printed.count("✓ ") == 4
