"""``tools/``: the set-up recognises what is done, repairs what is not; offline means offline."""

from __future__ import annotations

import ast
import errno
import http.client
import io
import os
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from tools import environment, offline

ROOT = Path(__file__).resolve().parents[1]
NOWHERE = ("192.0.2.1", 80)  # a documentation address: no machine has it


def test_lab_needs_less_than_test() -> None:
    lab, test = environment.requirements("lab"), environment.requirements("test")
    assert set(lab) < set(test)
    assert "torch>=2.11" in lab and any(line.startswith("triton") for line in lab)
    assert any(line.startswith("pytest>") for line in test)
    assert any(line.startswith("distributed") for line in test)  # an extra inside an extra
    assert not any(line.startswith("attention-derived") for line in test)
    assert len(set(test)) == len(test)


@pytest.mark.parametrize(
    ("system", "machine", "version", "says"),
    [
        ("Linux", "x86_64", (3, 11), None),
        ("Darwin", "arm64", (3, 14), None),
        ("Windows", "AMD64", (3, 12), None),
        ("Linux", "x86_64", (3, 10), "make lab PYTHON="),
        ("Linux", "x86_64", (3, 15), "This is Python 3.15"),
        ("Darwin", "x86_64", (3, 12), "Intel"),
    ],
)
def test_refusals(system: str, machine: str, version: tuple[int, int], says: str | None) -> None:
    reason = environment.refusal(system, machine, version)
    assert (reason is None) if says is None else (reason is not None and says in reason)


SOURCE = (ROOT / "tools" / "environment.py").read_text(encoding="utf-8")


def test_every_python_3_can_read_the_set_up() -> None:
    tree = ast.parse(SOURCE, feature_version=(3, 7))
    first = tree.body[: next(n for n, part in enumerate(tree.body) if isinstance(part, ast.If))]
    imported = [part for part in first if isinstance(part, ast.Import | ast.ImportFrom)]
    assert {part.names[0].name for part in imported} == {"os", "platform", "sys"}


@pytest.mark.parametrize("version", ["3.6", "3.10", "3.15"])
def test_another_python_gets_the_sentence(version: str) -> None:
    """Played by this Python under another number."""
    code = (
        "import runpy, sys\n"
        f"sys.version_info = ({version.replace('.', ', ')}, 0)\n"
        "sys.argv = ['environment.py', 'lab']\n"
        f"runpy.run_path({str(ROOT / 'tools' / 'environment.py')!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"[setup] This is Python {version}; the course needs 3.11")


def test_progress_says_little_and_enough() -> None:
    log = [f"Collecting package{n}\n" for n in range(1, 31)]
    log += [
        "  Downloading torch-2.13.0-cp311.whl (190.2 MB)\n",
        "  Downloading six-1.17.0-py2.py3-none-any.whl (11 kB)\n",
        "  Downloading attrs-26.1.0.whl (0.1 MB)\n",
        "Requirement already satisfied: numpy\n",
        "Installing collected packages: torch, six, attrs\n",
    ]
    assert list(environment.progress(log)) == [
        "25 packages looked up, the latest is package25",
        "fetching torch (190.2 MB)",
        "unpacking 3 packages",
    ]


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A checkout in an empty folder, where every step only notes that it was taken."""
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(environment, "STAMP", tmp_path / ".venv" / "course-setup.json")

    def step(name: str) -> None:
        with (tmp_path / "steps").open("a") as file:
            file.write(f"{name} ")

    def make_venv() -> None:
        environment.venv_python().parent.mkdir(parents=True, exist_ok=True)
        environment.venv_python().touch()

    monkeypatch.setattr(environment, "make_venv", make_venv)
    monkeypatch.setattr(environment, "install_torch", lambda: step("torch"))
    monkeypatch.setattr(environment, "require_torch", lambda: step("torch?"))
    monkeypatch.setattr(environment, "pip", lambda *a: step("course" if "-e" in a else "pip"))
    return tmp_path


def steps(house: Path) -> str:
    """The steps taken since the last call."""
    file = house / "steps"
    taken = file.read_text() if file.exists() else ""
    file.write_text("")
    return taken


ALL = "pip torch pip course torch? "


def test_the_classroom_has_an_environment_of_its_own(house: Path) -> None:
    """nbgrader's menus must not reach a reader's JupyterLab."""
    environment.set_up("classroom")
    assert steps(house) == ALL
    assert sorted(p.name for p in house.glob(".venv*")) == [".venv-classroom"]
    assert any(line.startswith("nbgrader") for line in environment.requirements("classroom"))
    for tier in ("lab", "test"):
        assert not any("nbgrader" in line for line in environment.requirements(tier))


def test_a_finished_set_up_is_recognised(house: Path) -> None:
    environment.set_up("lab")
    assert steps(house) == ALL
    environment.set_up("lab")
    assert steps(house) == ""


def test_tests_need_more_and_lab_stays_ready(house: Path) -> None:
    environment.set_up("lab")
    environment.set_up("test")
    assert steps(house) == ALL * 2
    environment.set_up("lab")
    environment.set_up("test")
    assert steps(house) == ""


@pytest.mark.parametrize("stamp", ["", "{", "[]", "null", None])
def test_an_unfinished_set_up_is_taken_up_again(house: Path, stamp: str | None) -> None:
    environment.set_up("lab")
    steps(house)
    if stamp is None:
        environment.STAMP.unlink()
    else:
        environment.STAMP.write_text(stamp)
    environment.set_up("lab")
    assert steps(house) == ALL


def test_stopped_half_way_it_is_not_taken_for_finished(
    house: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.set_up("lab")

    def stopped() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(environment, "install_torch", stopped)
        assert environment.main(["test"]) == 130
    steps(house)
    environment.set_up("lab")
    assert steps(house) == ALL


def test_changed_pins_install_packages_and_changed_metadata_only_the_course(house: Path) -> None:
    environment.set_up("lab")
    steps(house)
    pyproject = (house / "pyproject.toml").read_text(encoding="utf-8")
    (house / "pyproject.toml").write_text(
        pyproject.replace("line-length = 100", "line-length = 99")
    )
    environment.set_up("lab")
    assert steps(house) == ""
    (house / "pyproject.toml").write_text(pyproject.replace('version = "', 'version = "9'))
    environment.set_up("lab")
    assert steps(house) == "course torch? "
    with (house / "constraints.txt").open("a") as file:
        file.write("einops==0.8\n")
    environment.set_up("lab")
    assert steps(house) == ALL


def test_an_environment_that_vanished_is_made_again(house: Path) -> None:
    environment.set_up("lab")
    steps(house)
    environment.venv_python().unlink()
    environment.set_up("lab")
    assert steps(house) == ALL


def test_a_failing_pip_says_what_to_do(
    house: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: str) -> None:
        raise environment.SetupError("connect once")

    monkeypatch.setattr(environment, "pip", failing)
    assert environment.main(["lab"]) == 1
    assert "connect once" in capsys.readouterr().err
    assert not environment.STAMP.exists()


def test_a_python_without_venv_names_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(environment.SetupError, match="apt install python3-venv"):
        environment.make_venv()
    assert not (tmp_path / ".venv").exists()


def test_a_link_is_followed_only_to_an_environment_or_an_empty_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(sys, "executable", "false")  # makes nothing
    target = tmp_path / "elsewhere"
    environment.VENV.symlink_to(target)
    with pytest.raises(environment.SetupError, match=r"which is no folder"):
        environment.make_venv()
    target.mkdir()
    (target / "thesis.tex").touch()
    with pytest.raises(environment.SetupError, match=r"where other files lie"):
        environment.make_venv()
    assert (target / "thesis.tex").exists()
    (target / "pyvenv.cfg").touch()
    with pytest.raises(environment.SetupError, match=r"Python could not make"):
        environment.make_venv()
    assert environment.VENV.is_symlink() and not list(target.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="no path on Windows has the sign")
def test_a_folder_that_python_makes_no_environment_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment, "VENV", tmp_path / "a:b" / ".venv")
    with pytest.raises(environment.SetupError, match=r"move the course out of"):
        environment.make_venv()


def test_a_place_that_cannot_be_written_is_a_sentence(
    house: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def locked() -> None:
        raise PermissionError(13, "Permission denied", str(house / ".venv"))

    monkeypatch.setattr(environment, "make_venv", locked)
    assert environment.main(["lab"]) == 1
    said = capsys.readouterr().err
    assert f"Permission denied: {house / '.venv'}" in said and "a folder of your own" in said


def test_a_torch_that_does_not_start_ends_the_set_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    with pytest.raises(environment.SetupError, match="PyTorch does not start"):
        environment.require_torch()


def test_settings_of_the_reader_stay_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setenv("PIP_USER", "1")
    kept = environment.own_environment()
    assert "PYTHONPATH" not in kept and kept["PIP_USER"] == "0"
    assert os.environ["PYTHONPATH"] == "elsewhere"


def test_wrong_usage() -> None:
    assert environment.main([]) == 2
    assert environment.main(["everything"]) == 2


def installed(folder: Path, name: str, content: str, size: int | None) -> Path:
    module = folder / f"{name}.py"
    module.write_text(content)
    record = folder / f"{name}-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text(f"{name}.py,sha256=x,{size}\n{name}-1.0.dist-info/RECORD,,\n")
    return module


def test_damaged_packages_are_found(tmp_path: Path) -> None:
    installed(tmp_path, "whole", "x = 1\n", 6)
    installed(tmp_path, "cut", "x = ", 6)
    installed(tmp_path, "lost", "x = 1\n", 6).unlink()
    installed(tmp_path, "unrecorded", "x = 1\n", 6)
    (tmp_path / "unrecorded-1.0.dist-info" / "RECORD").unlink()
    installed(tmp_path, "garbled", "x = 1\n", 6)
    (tmp_path / "garbled-1.0.dist-info" / "RECORD").write_text("one,field,too,many\n")
    assert environment.damaged(tmp_path) == ["cut", "garbled", "lost", "unrecorded"]


@pytest.mark.parametrize(
    ("system", "driver", "answers", "chosen", "expected"),
    [
        ("Linux", False, True, None, "https://cpu.example.org"),
        ("Linux", False, False, None, None),
        ("Linux", True, True, None, None),
        ("Darwin", False, True, None, None),
        ("Linux", True, False, "https://example.org/whl", "https://example.org/whl"),
    ],
)
def test_where_torch_comes_from(
    monkeypatch: pytest.MonkeyPatch,
    system: str,
    driver: bool,
    answers: bool,
    chosen: str | None,
    expected: str | None,
) -> None:
    monkeypatch.setattr(environment.platform, "system", lambda: system)
    monkeypatch.setattr(environment.shutil, "which", lambda name: "/bin/x" if driver else None)
    monkeypatch.setattr(environment, "answers", lambda address: answers)
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    monkeypatch.setenv("TORCH_CPU_INDEX", "https://cpu.example.org")
    if chosen:
        monkeypatch.setenv("TORCH_INDEX", chosen)
    assert environment.torch_index() == expected


@pytest.mark.parametrize("error", [OSError("no route"), http.client.InvalidURL("a b"), None])
def test_only_an_answer_counts(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    def urlopen(address: str, timeout: float) -> io.BytesIO:
        assert timeout <= 10
        if error:
            raise error
        return io.BytesIO()

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    assert environment.answers("https://cpu.example.org/torch/") == (error is None)


@pytest.mark.parametrize("address", ["nonsense", "", "http://[::1", "http://a b/", "http://x:y/"])
def test_an_address_that_is_none_is_an_index_that_does_not_answer(address: str) -> None:
    assert not environment.answers(address)


def test_an_answer_is_waited_for_no_longer_than_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "INDEX_PATIENCE_SECONDS", 0.05)
    held = threading.Event()
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: held.wait() and io.BytesIO())
    assert not environment.answers("https://cpu.example.org/torch/")
    held.set()


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "ascii", "utf-8"])
def test_every_console_gets_the_message(encoding: str) -> None:
    console = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    environment.say("… ≤ \udcff", console)
    assert console.buffer.getvalue().startswith(b"[setup] ")  # type: ignore[attr-defined]


NAMESPACE = offline.namespace_command()


@pytest.mark.skipif(NAMESPACE is None, reason="no network namespaces for this user")
def test_the_namespace_has_a_loopback_and_nothing_else() -> None:
    code = (
        "import os, socket; server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname(), timeout=5).close()\n"
        f"try: socket.create_connection({NOWHERE!r}, timeout=5)\n"
        "except OSError as error: print(error.errno, os.environ['COURSE_NETWORK'])"
    )
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "offline.py"), sys.executable, "-c", code],
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1:] == [f"{errno.ENETUNREACH} off"], done.stderr


def test_exit_status_of_the_command_is_kept() -> None:
    command = [sys.executable, str(ROOT / "tools" / "offline.py"), sys.executable, "-c"]
    assert subprocess.run([*command, "raise SystemExit(7)"]).returncode == 7
    assert offline.main([]) == 2


def test_the_guard_refuses_what_leaves_the_machine(tmp_path: Path) -> None:
    (tmp_path / "test_guard.py").write_text(
        "import socket, pytest, pytest_socket\n"
        "def test_out():\n"
        "    with pytest.raises(pytest_socket.SocketConnectBlockedError):\n"
        f"        socket.create_connection({NOWHERE!r}, timeout=5)\n"
        "def test_in():\n"
        "    server = socket.create_server(('127.0.0.1', 0))\n"
        "    socket.create_connection(server.getsockname(), timeout=5).close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", str(tmp_path)],
        env=offline.guarded_environment(dict(os.environ)),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_this_run_has_no_network() -> None:
    if os.environ.get("COURSE_NETWORK") != "off":
        pytest.skip("pytest was started without tools/offline.py")
    with pytest.raises(OSError) as refused:
        socket.create_connection(NOWHERE, timeout=5)
    assert refused.value.errno == errno.ENETUNREACH


@pytest.mark.slow
def test_a_broken_venv_is_replaced_by_one_that_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    environment.venv_python().parent.mkdir(parents=True)
    environment.venv_python().write_text("half of a python")
    environment.make_venv()
    assert "making it anew" in capsys.readouterr().out
    assert environment.works("-m", "pip", "--version")
    environment.make_venv()
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
def test_a_python_with_a_space_in_its_name_is_quoted() -> None:
    python = "/opt/My Python/bin/python3"
    for target in ("lab-environment", "test-environment"):
        shown = subprocess.run(
            ["make", "--no-print-directory", "-n", target, f"PYTHON={python}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert f'"{python}" tools/environment.py' in shown.stdout.splitlines()[-1]


@pytest.mark.skipif(not shutil.which("make"), reason="no make here")
def test_a_python_that_is_none_is_a_sentence() -> None:
    shown = subprocess.run(
        ["make", "--no-print-directory", "lab", "PYTHON=/no/such python"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert shown.stdout.splitlines()[0] == "/no/such python is no Python 3 that starts."
