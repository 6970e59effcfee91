"""The box: one submission's processes, cut off by bubblewrap, watched from outside.

Inside there are no network but a loopback of its own, the system read-only, the packages that
Python needs, the part of the course that a student uses (no question, no expected answer, no other
submission), and a small scratch folder in memory. Outside, whoever waits for an answer looks at the
box's processes ten times a second: how many, how much memory, how much processor time.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import course
from course.assignments import wire
from course.assignments.limits import Limits
from course.assignments.student import BOX

_PACKAGE = Path(course.__file__).parent
#: What a submission may import of this folder, and of the checks' folder.
_OWN = {"__init__.py", "student.py", "worker.py", "wire.py", "drawing.py", "shell.py"}
_CHECKS = {"__init__.py", "answers.py", "guest.py", "properties.py"}
_SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/etc/ld.so.cache")
_FONTS = ("/etc/fonts", "/etc/ssl/openssl.cnf", "/etc/localtime")
_HOME = "/home/student"
_LOOK = 0.1  # seconds


class NoSandbox(RuntimeError):
    """This system cannot cut a submission off; the message says what is missing."""


class BoxEnded(Exception):
    """The box is gone. ``reason``: "time", "memory", "processes", "died" or "babble"."""

    def __init__(self, reason: str, said: str) -> None:
        super().__init__(said)
        self.reason = reason


def require_sandbox() -> None:
    """Raise :class:`NoSandbox`, with the way out, unless bubblewrap works here."""
    reason = _refusal()
    if reason:
        raise NoSandbox(
            f"{reason}. Submissions are programs of other people: without a sandbox they can read "
            "and change your files, the other submissions and the grades, and use the network. "
            "On Debian and Ubuntu: sudo apt install bubblewrap. On another system grade in a "
            "Linux machine or virtual machine, or say --unsafe on one that holds nothing else"
        )


@cache
def _refusal() -> str:
    if not sys.platform.startswith("linux"):
        return "a sandbox needs Linux"
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap (bwrap) is not installed"
    tried = subprocess.run(
        [program, *_walls(), *_system(), "/bin/true"], capture_output=True, text=True
    )
    said = (tried.stderr or "").strip().splitlines()
    return f"bubblewrap does not work here ({(said or ['no reason'])[-1]})" * (
        tried.returncode != 0
    )


def _walls() -> list[str]:
    """No network, no other processes, no privileges, no terminal; dies with its parent."""
    return [
        *("--unshare-all", "--die-with-parent", "--new-session", "--clearenv"),
        *("--cap-drop", "ALL", "--hostname", "box"),
        *("--proc", "/proc", "--dev", "/dev"),
    ]


def _system() -> list[str]:
    """The system's programs and libraries, read-only."""
    words = []
    for name in (*_SYSTEM, *_FONTS):
        path = Path(name)
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), name]
        elif path.exists():
            words += ["--ro-bind", name, name]
    return words


def _python() -> tuple[list[str], list[str]]:
    """The words that show Python and its packages to the box, and Python's search path there.

    Of the search path only what is Python's own: a folder of the teacher's that is on it stays out.
    """
    path = [Path(p) for p in sys.path if p and _is_pythons(Path(p)) and Path(p).exists()]
    words = []
    for place in sorted({Path(sys.base_prefix), *path}):  # a folder before what lies in it
        words += ["--ro-bind", str(place), str(place)]
        if _PACKAGE.is_relative_to(place):  # an installed course: its part comes below
            words += ["--tmpfs", str(place / "course")]
    return words, list(map(str, path))


def _is_pythons(path: Path) -> bool:
    own = path.is_relative_to(sys.base_prefix)
    return own or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def _course() -> list[str]:
    """The course in a folder of its own, without what only the referee and the exercises need."""
    kernels = Path(__file__).parents[2] / "kernels"
    words = []
    for path in sorted(_PACKAGE.iterdir()):
        if path.name == "assignments":
            words += [w for name in sorted(_OWN) for w in _shown(path / name)]
        elif path.name == "checks":
            words += [w for name in sorted(_CHECKS) for w in _shown(path / name)]
        elif path.name != "__pycache__":
            words += _shown(path)
    if kernels.is_dir() and not (_PACKAGE / "kernels").exists():
        words += ["--ro-bind", str(kernels), "/box/course/kernels"]
    return words


def _shown(path: Path) -> list[str]:
    return ["--ro-bind", str(path), f"/box/course/{path.relative_to(_PACKAGE)}"]


def command(limits: Limits, decided: Mapping[str, Any]) -> list[str]:
    """The call of bubblewrap that starts a worker."""
    packages, path = _python()
    scratch = str(64 * 2**20)
    environment = {
        "PYTHONPATH": os.pathsep.join(["/box", *path]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONIOENCODING": "utf-8",
        "HOME": _HOME,
        "LANG": "C.UTF-8",
        "PATH": "/usr/bin:/bin",
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
        BOX: json.dumps(decided),
    }
    return [
        str(shutil.which("bwrap")),
        *_walls(),
        *_system(),
        *packages,
        *_course(),
        *("--size", scratch, "--tmpfs", "/tmp", "--size", scratch, "--tmpfs", _HOME),
        *("--size", scratch, "--tmpfs", "/dev/shm", "--remount-ro", "/dev", "--remount-ro", "/"),
        *("--chdir", _HOME),
        *(word for name, value in environment.items() for word in ("--setenv", name, value)),
        *_worker_command(),
    ]


def _worker_command() -> list[str]:
    return [os.path.realpath(sys.executable), "-P", "-s", "-m", "course.assignments.worker"]


def _limited(limits: Limits) -> None:
    """In the child, before bubblewrap starts: what the kernel itself can hold.

    The number of processes is not among it: that limit does nothing for root.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 2**20,) * 2)
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory + 6 * 2**30,) * 2)


@dataclass
class _Seen:
    """The box's processes at one moment."""

    pids: list[int]
    memory: int
    seconds: float


class Box:
    """One running submission. Made in the thread that goes on living: its end is the box's end."""

    def __init__(
        self,
        cells: Sequence[str],
        decided: Mapping[str, Any],
        limits: Limits,
        *,
        skip: Sequence[int] = (),
        used: float = 0.0,
        unsafe: bool = False,
    ) -> None:
        self.limits, self.cells = limits, cells
        self.cell = -1  # the one that runs
        self.errors: dict[int, str] = {}
        self.ended: BoxEnded | None = None
        self.used = used  # processor time, with that of the boxes before
        self._before = used
        self._scratch = tempfile.TemporaryDirectory() if unsafe else None
        # Of bubblewrap; the worker writes nowhere.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        words = _worker_command() if unsafe else command(limits, decided)
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=_unsafe_environment(decided) if unsafe else {},
            cwd=self._scratch.name if self._scratch else "/",
            preexec_fn=lambda: _limited(limits),
            start_new_session=True,
        )
        self._job = {"cells": list(cells), "skip": list(skip)}

    def run(self) -> None:
        """Run all cells; raises :class:`BoxEnded` when the process or its time ended first."""
        try:
            self._send(self._job)
            self._receive(self.limits.start_seconds)
            while True:
                message = self._receive(self.limits.cell_seconds)
                if isinstance(message, dict) and "ready" in message:
                    self.errors = {int(k): str(v) for k, v in dict(message["ready"]).items()}
                    return
                self.cell = int(message["cell"])
        except BoxEnded as ended:
            self.ended = ended
            raise
        except (TypeError, KeyError, ValueError):
            self.ended = BoxEnded("babble", "its process sent something else than answers")
            raise self.ended from None

    def ask(self, function: str, *arguments: Any, draw: bool = False) -> dict[str, Any]:
        """The worker's reply to one call."""
        if self.ended:
            raise self.ended
        try:
            self._send({"function": function, "arguments": list(arguments), "draw": draw})
            reply = self._receive(self.limits.call_seconds)
            if not isinstance(reply, dict):
                raise BoxEnded("babble", "its process sent something else than answers")
            return reply
        except BoxEnded as ended:
            self.ended = ended
            raise

    def close(self) -> None:
        """End every process of the box."""
        for pid in [*_tree(self._process.pid)[::-1], self._process.pid]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._errors.close()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()
        if self._scratch:
            self._scratch.cleanup()

    def __enter__(self) -> Box:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The pipe, with the clock and the watchdog

    def _send(self, message: Any) -> None:
        data = memoryview(wire.pack(message))
        pipe = self._process.stdin
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
        end = time.monotonic() + 60
        while data:
            if time.monotonic() > end:
                raise BoxEnded("time", "its process does not take the question")
            _, ready, _ = select.select([], [pipe], [], _LOOK)
            self._look(0.0, float("inf"))
            if ready:
                try:
                    data = data[os.write(pipe.fileno(), data) :]
                except BrokenPipeError:
                    raise self._death() from None

    def _receive(self, seconds: float) -> Any:
        pipe = self._process.stdout
        assert pipe is not None
        start = self._seen().seconds
        end = time.monotonic() + seconds * self.limits.patience

        def read(count: int) -> bytes:
            parts = bytearray()
            while len(parts) < count:
                ready, _, _ = select.select([pipe], [], [], _LOOK)
                if not ready:
                    self._look(start, seconds)
                elif part := os.read(pipe.fileno(), min(count - len(parts), 2**20)):
                    parts += part
                else:
                    raise self._death()
                if time.monotonic() > end:
                    raise BoxEnded("time", f"no answer after {seconds * self.limits.patience:g} s")
            return bytes(parts)

        try:
            message = wire.receive(read)
        except wire.BadMessage:
            raise BoxEnded("babble", "its process sent something else than answers") from None
        self._look(start, seconds)  # a swarm that answers quickly is a swarm
        return message

    def _look(self, start: float, seconds: float) -> None:
        seen, limits = self._seen(), self.limits
        self.used = self._before + seen.seconds
        if len(seen.pids) > limits.processes:
            raise BoxEnded("processes", f"more than {limits.processes} processes at a time")
        if seen.memory > limits.memory:
            raise BoxEnded("memory", f"more than {limits.memory / 2**30:.2g} GiB of memory")
        if self.used > limits.total_seconds:
            raise BoxEnded("time", f"the notebook took more than {limits.total_seconds:g} seconds")
        if seen.seconds - start > seconds:
            raise BoxEnded(
                "time", f"no answer after {seconds:g} seconds: a loop that does not end?"
            )

    def _seen(self) -> _Seen:
        pids = _tree(self._process.pid)
        memory, seconds = 0, 0.0
        for pid in pids:
            with contextlib.suppress(OSError, ValueError, IndexError):
                status = Path(f"/proc/{pid}/status").read_text()
                memory += sum(
                    int(line.split()[1]) * 1024
                    for line in status.splitlines()
                    if line.startswith(("RssAnon:", "RssShmem:"))
                )
                ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                seconds += sum(map(int, ticks[11:15])) / os.sysconf("SC_CLK_TCK")
        return _Seen(pids, memory, seconds)

    def _death(self) -> BoxEnded:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._errors.seek(0)
        said = self._errors.read(2_000).decode("utf-8", "replace").strip().splitlines()
        why = f" ({said[-1][:200]})" if said and self.cell < 0 else ""
        return BoxEnded("died", f"its process ended{why}")


def _tree(root: int) -> list[int]:
    """All descendants of a process: also of those whose parents are gone, inside a box."""
    found, waiting = [], [root]
    while waiting:
        for pid in _children(waiting.pop()):
            found.append(pid)
            waiting.append(pid)
    return found


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/task/{task}/children").read_text()
                yield from map(int, text.split())


def _unsafe_environment(decided: Mapping[str, Any]) -> dict[str, str]:
    """For ``--unsafe``: the whole environment, and all of the course."""
    path = os.pathsep.join(p for p in sys.path if p)
    return dict(os.environ) | {
        "PYTHONPATH": os.pathsep.join([str(_PACKAGE.parent), path]),
        "MPLBACKEND": "Agg",
        BOX: json.dumps(decided),
    }
