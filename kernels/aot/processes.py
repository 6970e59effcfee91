"""The child processes that compile, their limits, and the plan of what they are asked."""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple

from course.kernels.aot.rules import Row
from course.kernels.chips import CHIPS, DTYPES, MODULES, REPORT_WIDTH, WIDTHS

#: A kernel that compiles for longer is given up.
SECONDS_A_KERNEL = 300.0


def available() -> str | None:
    """Why nothing can be compiled here, or None: Triton must be installed, no GPU is needed."""
    if importlib.util.find_spec("triton") is None:
        return (
            "Triton is not installed, so no kernel can be compiled here. It exists for Linux only: "
            "pip install triton (torch 2.13.0 goes with triton 3.7.1)"
        )
    return None


def child_environment(cache: str) -> dict[str, str]:
    """This process's environment for a child that compiles, with a cache folder of its own.

    Without any of Triton's variables (``TRITON_INTERPRET`` above all) but those that say where a
    tool lies: the results are the compiler's, not the user's settings'.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TRITON_", "AMDGCN_", "MLIR_", "LLVM_")) or name.endswith("_PATH")
    }
    kept.pop("DISABLE_PTXAS_OPT", None)
    return {**kept, "TRITON_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}


class _Child:
    """A child process that compiles; ``ask`` starts it again if it has died."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._errors = os.path.join(folder, f"errors-{id(self)}")
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: Mapping[str, Any], limit: float) -> Any:
        """The answer; raises ``RuntimeError`` if the child dies or takes longer than ``limit``."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None  # both are pipes
        late = threading.Timer(limit, process.kill)
        late.start()
        try:
            process.stdin.write(json.dumps(request, default=dict) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            given_up = not late.is_alive()
            late.cancel()
        if line:
            return json.loads(line)
        status, self._process = process.wait(), None
        if given_up:
            raise RuntimeError(f"the compiler was stopped after {limit:.0f} s")
        with open(self._errors, encoding="utf-8", errors="replace") as file:
            last = [text.strip() for text in file if text.strip()][-1:]
        raise RuntimeError(" ".join([f"the compiler ended with status {status}:", *last]))

    def _start(self) -> subprocess.Popen[str]:
        with open(self._errors, "w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "course.kernels.aot"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                env=child_environment(self._folder),
            )
        assert process.stdout is not None
        process.stdout.readline()  # "ready", or nothing: then the first request fails and says why
        return process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


class Wanted(NamedTuple):
    """What to compile: every combination, and once a kernel and chip without alignment known."""

    modules: Sequence[str] = MODULES
    dtypes: Sequence[str] = DTYPES
    widths: Sequence[int] = WIDTHS
    archs: Sequence[str] = tuple(CHIPS)
    without_hints: bool = True


def compile_all(
    wanted: Wanted,
    *,
    processes: int = 2,
    progress: Callable[[int, int, str], None] = lambda done, of, name: None,
    limit: float = SECONDS_A_KERNEL,
) -> list[Row]:
    """Compile all that is ``wanted`` in ``processes`` child processes: one row each, in its order.

    Chips that are only reported get widths up to ``REPORT_WIDTH``, and no bf16: they have none.
    ``progress`` is called with how many rows are done, of how many, and the last one's name. A
    module that cannot list its cases, a compiler that dies or takes longer than ``limit`` seconds
    give a row with an ``error``.
    """
    with (
        tempfile.TemporaryDirectory(prefix="course-kernels-") as folder,
        ThreadPoolExecutor(processes) as pool,
    ):
        children = [_Child(folder) for _ in range(processes)]
        idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        for child in children:
            idle.put(child)

        def compiled(row: Row) -> Row:
            child = idle.get()
            try:
                return _row(child.ask({"row": row._asdict()}, limit))
            except RuntimeError as error:
                return row._replace(error=str(error))
            finally:
                idle.put(child)

        try:
            rows = list(_plan(wanted, children[0], limit))
            # The widest first: no process is left with a long one at the end.
            order = sorted(
                (i for i, row in enumerate(rows) if row.error is None),
                key=lambda i: (-rows[i].width, rows[i].dtype != "fp32"),
            )
            made = {pool.submit(compiled, rows[i]): i for i in order}
            for done, future in enumerate(as_completed(made), 1):
                rows[made[future]] = row = future.result()
                progress(done, len(order), f"{row.module}, {row.name}")
        finally:  # Ctrl-C reaches this thread: what waits is forgotten, what runs is ended
            pool.shutdown(wait=False, cancel_futures=True)
            for child in children:
                child.close()
    return rows


def _plan(wanted: Wanted, child: _Child, limit: float) -> Iterator[Row]:
    width_once = 64 if 64 in wanted.widths else wanted.widths[0]
    for module in wanted.modules:
        groups = [(module, dtype, width) for dtype in wanted.dtypes for width in wanted.widths]
        try:
            listed = child.ask({"list": groups}, limit)
        except RuntimeError as error:
            listed = [str(error)] * len(groups)
        once: set[tuple[str, str]] = set()
        for (_, dtype, width), found in zip(groups, listed, strict=True):
            for arch in wanted.archs:
                if isinstance(found, str):
                    yield Row(module, "cases", dtype, width, arch, True, error=found)
                    continue
                if not CHIPS[arch].gated and (width > REPORT_WIDTH or dtype == "bf16"):
                    continue
                for name, tensor_cores in found:
                    row = Row(module, name, dtype, width, arch, True, tensor_cores)
                    yield row
                    first = (name, arch) not in once
                    if wanted.without_hints and width == width_once and first:
                        once.add((name, arch))
                        yield row._replace(hints=False)


def _row(answer: Mapping[str, Any]) -> Row:
    row = Row(**answer)
    return row._replace(precisions=tuple(row.precisions))
