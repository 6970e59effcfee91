"""``make lab``: the reader's own copies are never lost, the server is quiet and answers."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from jupyter_client import BlockingKernelClient

from tests.browser.lab import TOKEN, free_port, serve
from tools import lab

NAME = "03_scale_and_position.ipynb"
BESIDE = "03_scale_and_position (new edition).ipynb"


def notebook(*cells: str, output: str = "") -> bytes:
    made = [{"cell_type": "code", "source": [text], "outputs": [output]} for text in cells]
    return json.dumps({"cells": made}).encode()


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The course's notebooks (one of them, first edition) and the copies made from it."""
    course, own = tmp_path / "notebooks", tmp_path / "my notebooks ä"
    course.mkdir()
    (course / NAME).write_bytes(notebook("a", "b"))
    assert lab.renew_copies(course, own) == []
    return course, own


def test_copies_are_made_once_and_again_when_deleted(folders: tuple[Path, Path]) -> None:
    course, own = folders
    assert (own / NAME).read_bytes() == (course / NAME).read_bytes()
    assert lab.renew_copies(course, own) == []
    (own / NAME).unlink()
    assert lab.renew_copies(course, own) == []
    assert (own / NAME).read_bytes() == notebook("a", "b")
    assert not list(own.glob(".*.new"))


@pytest.mark.parametrize(
    "used",
    [notebook("a", "b"), notebook("a", "b", output="run"), notebook("a", "b", "  ")],
    ids=["untouched", "run", "run to an empty cell"],
)
def test_a_copy_in_which_nobody_wrote_follows_the_course(
    folders: tuple[Path, Path], used: bytes
) -> None:
    course, own = folders
    (own / NAME).write_bytes(used)
    (course / NAME).write_bytes(notebook("a", "c"))
    assert lab.renew_copies(course, own) == [f"{NAME}: renewed"]
    assert (own / NAME).read_bytes() == notebook("a", "c")
    assert not (own / BESIDE).exists()


def test_new_outputs_reach_an_untouched_copy_only(folders: tuple[Path, Path]) -> None:
    course, own = folders
    (course / NAME).write_bytes(notebook("a", "b", output="new"))
    assert lab.renew_copies(course, own) == [f"{NAME}: renewed"]
    (own / NAME).write_bytes(notebook("a", "b", output="the reader's run"))
    (course / NAME).write_bytes(notebook("a", "b", output="newer"))
    assert lab.renew_copies(course, own) == []
    assert (own / NAME).read_bytes() == notebook("a", "b", output="the reader's run")


def test_what_a_reader_wrote_stays_and_the_new_edition_lies_beside_it(
    folders: tuple[Path, Path],
) -> None:
    course, own = folders
    (own / NAME).write_bytes(notebook("a", "my answer"))
    assert lab.renew_copies(course, own) == []  # nothing new: nothing to put beside it
    (course / NAME).write_bytes(notebook("a", "c"))
    (said,) = lab.renew_copies(course, own)
    assert said == f"{NAME}: you changed it, so it stays; the new one is {BESIDE}"
    assert (own / NAME).read_bytes() == notebook("a", "my answer")
    assert (own / BESIDE).read_bytes() == notebook("a", "c")
    assert lab.renew_copies(course, own) == []  # once

    (course / NAME).write_bytes(notebook("a", "d"))
    lab.renew_copies(course, own)
    assert (own / BESIDE).read_bytes() == notebook("a", "d")
    (own / BESIDE).write_bytes(notebook("a", "d", "second answer"))
    (course / NAME).write_bytes(notebook("a", "e"))
    lab.renew_copies(course, own)
    texts = {path.read_bytes() for path in own.glob("*.ipynb")}
    assert texts == {
        notebook("a", "my answer"),
        notebook("a", "d", "second answer"),
        notebook("a", "e"),
    }


@pytest.mark.parametrize("record", ["", "{", "[]", '{"x": 3}', None])
@pytest.mark.parametrize("copy", [notebook("a", "my answer"), b"half a note"])
def test_without_a_record_nothing_is_overwritten(
    folders: tuple[Path, Path], record: str | None, copy: bytes
) -> None:
    course, own = folders
    (own / NAME).write_bytes(copy)
    if record is None:
        (own / lab.EDITIONS).unlink()
    else:
        (own / lab.EDITIONS).write_text(record)
    lab.renew_copies(course, own)
    assert (own / NAME).read_bytes() == copy
    assert (own / BESIDE).read_bytes() == notebook("a", "b")


def test_a_place_that_cannot_be_written_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def locked(*_: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", "my-notebooks")

    monkeypatch.setattr(lab, "renew_copies", locked)
    assert lab.main([]) == 1
    assert "Permission denied: my-notebooks" in capsys.readouterr().err


def test_the_home_of_another_user_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "home").touch()  # a place where nobody can write, not even root
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "home" / ".jupyter"))
    monkeypatch.setattr(lab, "renew_copies", lambda *_: [])
    monkeypatch.setattr(lab, "quiet_settings", lambda _: None)
    assert lab.main([]) == 1
    assert "is HOME your own folder?" in capsys.readouterr().err


def test_jupyterlab_asks_nothing_and_calls_nobody(tmp_path: Path) -> None:
    lab.quiet_settings(tmp_path)
    assert not list(tmp_path.iterdir())  # JupyterLab lies elsewhere: no folder in its place
    (tmp_path / "share" / "jupyter" / "lab" / "static").mkdir(parents=True)
    lab.quiet_settings(tmp_path)
    (written,) = tmp_path.rglob("overrides.json")
    settings = json.loads(written.read_text(encoding="utf-8"))
    assert settings["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
    written.write_text("{}")
    lab.quiet_settings(tmp_path)
    assert written.read_text() == "{}"  # a reader's own settings stay
    arguments = lab.lab_arguments(9001)
    assert "--ServerApp.port=9001" in arguments and "--LabApp.news_url=None" in arguments
    assert "--LabApp.extension_manager=readonly" in arguments


@pytest.mark.parametrize("port", ["0", "-1", "65536", "abc", ""])
def test_a_port_that_cannot_be_is_refused(port: str) -> None:
    assert lab.port_number("8889") == 8889
    with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number from 1 to 65535"):
        lab.port_number(port)


def test_another_course_in_its_place_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "course.py").touch()
    done = subprocess.run(
        [sys.executable, str(lab.ROOT / "tools" / "lab.py")],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "something else is in its place" in done.stderr


def test_kernels_take_few_threads_on_any_machine() -> None:
    assert lab.few_threads(2)["OMP_NUM_THREADS"] == "2"
    assert int(lab.few_threads(64)["OMP_NUM_THREADS"]) <= 4


@pytest.mark.slow
def test_make_lab_opens(tmp_path: Path) -> None:
    """The whole command, up to its page, with settings of its own."""
    own = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "IPYTHONDIR": "ipython"}
    done = subprocess.run(
        [sys.executable, str(lab.ROOT / "tools" / "lab.py"), "--check", f"--port={free_port()}"],
        env=os.environ | {name: str(tmp_path / part) for name, part in own.items()},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "[lab] JupyterLab answers" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc")
def test_six_open_notebooks_take_few_threads_and_the_terminal_stays_calm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in lab.few_threads(64).items():
        monkeypatch.setenv(name, value)
    copies, private = tmp_path / "my-notebooks", tmp_path / "private"
    private.mkdir()
    lab.renew_copies(lab.ROOT / "notebooks", copies)
    opened = sorted(copies.glob("*.ipynb"))[:6]
    multiply = "import torch; torch.ones(500, 500) @ torch.ones(500, 500)"
    with serve(copies, private) as address:

        def ask(path: str, asked: object = None) -> None:
            request = urllib.request.Request(
                address + path,
                data=json.dumps(asked).encode() if asked else None,
                headers={"Authorization": f"token {TOKEN}"},
            )
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            opener.open(request, timeout=60).close()  # raises where the server answers 500

        for path in opened:
            session = {"path": path.name, "name": path.name, "type": "notebook"}
            ask("/api/sessions", session | {"kernel": {"name": "python3"}})
            ask(f"/api/contents/{path.name}")
        connections = list((private / "data" / "runtime").glob("kernel-*.json"))
        assert len(connections) == len(opened) == 6
        for connection in connections:
            client = BlockingKernelClient()
            client.load_connection_file(str(connection))
            client.start_channels()
            count = {"threads": "len(__import__('os').listdir('/proc/self/task'))"}
            reply = client.execute(multiply, reply=True, timeout=120, user_expressions=count)
            client.stop_channels()
            threads = int(reply["content"]["user_expressions"]["threads"]["data"]["text/plain"])
            assert threads <= 24  # Jupyter's own are about a dozen
    said = (private / "server.log").read_text(encoding="utf-8", errors="replace")
    assert "WARN" not in said and "[W " not in said and "[E " not in said, said
    assert "encryption" not in said and "not trusted" not in said
