"""A student's function as a guest: it may do what it likes, and all is as before when it has gone.

It runs in a thread of its own, since a function of a notebook cannot be sent to another process.
Whatever is changed for its sake (warning filters, ``sys.stdout``) is changed, and put back, by the
thread that waits for it. A context that is entered in the guest's thread is left when the guest
likes, which may be long after the check has given up.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Visit(Generic[T]):
    """What came of a visit: ``value`` if ``ended`` is "done"; else "time" or "interrupted"."""

    ended: str
    value: T | None
    printed: str


class Stop(SystemExit):
    """Sent into the guest's thread. ``except Exception`` does not catch it, and no thread that
    ends with it says so."""


class _Halt(Stop):
    """Sent to a guest that caught :class:`Stop`, or was in a call into C and has not seen it yet.

    Python makes the exception in the guest's thread before it looks for a handler. It is never
    finished, so that no line of the guest runs any more, not even a ``finally`` which would put
    back what was true when the check began. (Import locks must be given back.)
    """

    def __init__(self) -> None:
        frame = sys._getframe()
        while (caller := frame.f_back) is not None:
            if caller.f_code.co_filename.startswith("<frozen importlib"):
                return
            frame = caller
        threading.Event().wait()


_ONE_AT_A_TIME = threading.RLock()


def receive(work: Callable[[], T], seconds: float) -> Visit[T]:
    """``work()`` in a thread of its own, for at most ``seconds``; what it prints is collected.

    A guest that is out of time, or interrupted (Ctrl-C, the notebook's stop button), is stopped
    by an exception; if it does not go, or sits in a call into C, it is halted for good. Only a
    call into C that never lets another thread run (such as ``sum(iter(int, 1))``) stops the
    notebook too: there the kernel must be restarted.
    """
    box: list[T] = []
    gone = threading.Event()  # after an interrupted join, Python 3.11 takes any thread for ended

    def run() -> None:
        try:
            with contextlib.suppress(Stop):
                box.append(work())
        finally:
            gone.set()

    guest = threading.Thread(target=run, daemon=True)
    paper = _Paper()
    console = io.TextIOWrapper(
        cast(Any, paper), encoding="utf-8", errors="replace", write_through=True
    )
    ended = "time"
    with (
        _ONE_AT_A_TIME,
        _all_as_before(),
        contextlib.redirect_stdout(console),
        contextlib.redirect_stderr(console),
    ):
        try:
            guest.start()
            _wait(gone, seconds)
        except KeyboardInterrupt:
            ended = "interrupted"
        finally:
            _send_away(guest, gone)
    if box:
        return Visit("done", box[0], str(paper))
    return Visit(ended, None, str(paper))


def _wait(gone: threading.Event, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not gone.is_set() and (left := end - time.monotonic()) > 0:
        gone.wait(min(left, 0.1))  # in slices: on Windows, Ctrl-C does not end a wait


def _send_away(guest: threading.Thread, gone: threading.Event) -> None:
    try:
        for _ in range(20):  # again and again: one bare "except:" swallows one of them
            if gone.is_set() or not _raise_in(guest, Stop):
                return
            gone.wait(0.05)
    finally:
        if not gone.is_set() and _raise_in(guest, _Halt):
            gone.wait(0.05)


def _raise_in(guest: threading.Thread, exception: type[Stop]) -> bool:
    """Whether there was such a thread."""
    return bool(
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(guest.ident or 0), ctypes.py_object(exception)
        )
    )


# What a guest prints


class _Paper(io.RawIOBase):
    """Keeps the beginning of what is written to it, and counts the rest."""

    LINES, WIDTH, BYTES = 8, 100, 2_000

    def __init__(self) -> None:
        self.kept = bytearray()
        self.lines = 0
        self.open_line = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        data = bytes(data)
        self.kept += data[: max(0, self.BYTES - len(self.kept))]
        self.lines += data.count(b"\n")
        if data:
            self.open_line = not data.endswith(b"\n")
        return len(data)

    def __str__(self) -> str:
        shown = self.kept.decode("utf-8", "replace").splitlines()[: self.LINES]
        more = self.lines + self.open_line - len(shown)
        lines = [line if len(line) <= self.WIDTH else line[: self.WIDTH] + "…" for line in shown]
        if more > 0:
            lines.append(f"… and {more:,} more {'line' if more == 1 else 'lines'}")
        return "\n".join(lines)


# What a guest may change, and what puts it back


@contextlib.contextmanager
def _all_as_before() -> Iterator[None]:
    """Whatever the process shares is afterwards as it was; warnings are silent meanwhile."""
    ways_back = list(_ways_back())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for module, name in _SEEDS_OF_ACCELERATORS:
                setattr(module, name, lambda seed: None)
            yield
    finally:
        for put_back in ways_back:
            with contextlib.suppress(Exception):  # one that fails must not keep the others away
                put_back()


# torch.manual_seed seeds them too, and a generator that does not run yet has no state to put back.
_SEEDS_OF_ACCELERATORS = (
    (torch.cuda, "manual_seed_all"),
    (torch.xpu, "manual_seed_all"),
    (torch.mps, "manual_seed"),
)


def _ways_back() -> Iterator[Callable[[], Any]]:
    """For everything that the threads of a process share: a call which makes it as it is now.

    (Of their own have threads PyTorch's gradient mode, autocast, default device and dispatch
    modes, and NumPy its error state.)
    """
    for module, name in _SEEDS_OF_ACCELERATORS:
        yield partial(setattr, module, name, getattr(module, name))
    yield partial(random.setstate, random.getstate())
    yield partial(np.random.set_state, np.random.get_state())  # noqa: NPY002 - a student may use it
    yield partial(torch.set_rng_state, torch.get_rng_state())
    if torch.cuda.is_initialized():
        yield partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
    if torch.backends.mps.is_available():
        yield partial(torch.mps.set_rng_state, torch.mps.get_rng_state())
    # Always, since a thread does not see the number that another one has set for those to come.
    yield partial(torch.set_num_threads, torch.get_num_threads())
    for read, write in _SETTINGS:
        yield partial(_set_if_changed, read, write, read())
    for flag in ("deterministic", "benchmark", "enabled"):
        yield partial(setattr, torch.backends.cudnn, flag, getattr(torch.backends.cudnn, flag))
    yield gc.enable if gc.isenabled() else gc.disable
    with contextlib.suppress(OSError):  # a folder that is gone cannot be gone back to
        yield partial(os.chdir, os.getcwd())


def _set_environment(variables: dict[str, str]) -> None:
    for name in [name for name in os.environ if name not in variables]:
        del os.environ[name]
    os.environ.update(variables)


# (what reads it, what sets it); some of the latter are slow, so they are called where needed only
_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch._tensor_str.get_printoptions, lambda options: torch.set_printoptions(**options)),
    (np.get_printoptions, lambda options: np.set_printoptions(**options)),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (lambda: list(sys.path), lambda path: sys.path.__setitem__(slice(None), path)),
    (lambda: dict(os.environ), _set_environment),
)


def _set_if_changed(read: Callable[[], T], write: Callable[[T], Any], value: T) -> None:
    if read() != value:
        write(value)
