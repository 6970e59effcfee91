"""Measuring: the clock, peak memory, and what a row of measurements says (slope, crossing)."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from course.inputs import require_positive
from course.verify import as_numbers


def median_seconds(
    contenders: Mapping[str, Callable[[], object]], repeats: int
) -> dict[str, float]:
    """The median seconds of each contender, called in turns after one call that does not count.

    PyTorch's own timer: on a machine with a GPU it waits until the GPU has finished.
    """
    from torch.utils import benchmark  # a twentieth of what importing torch costs

    times = _in_turns(list(contenders.values()), repeats, benchmark.timer)
    return dict(zip(contenders, np.median(times, axis=1).tolist(), strict=True))


def processor_seconds(calls: Sequence[Callable[[], object]], *, repeats: int = 5) -> list[float]:
    """The least processor time of each of ``calls`` on the calling thread, in seconds.

    Other programs make a call wait, and waiting is no processor time: with one thread this is what
    a clock on the wall shows on a quiet machine. The least of the repeats, because whatever
    disturbs a run makes it longer; the calls take turns, so that a bad moment is bad for all. One
    round goes before and is not counted. Where threads have no fine clock (Windows) it is the
    least wall time.
    """
    return processor_times(calls, repeats=repeats).min(1).tolist()


def processor_times(calls: Sequence[Callable[[], object]], *, repeats: int = 5) -> np.ndarray:
    """All the times of which :func:`processor_seconds` gives the least: ``[calls, repeats]``."""
    clock = time.perf_counter if sys.platform == "win32" else time.thread_time
    return _in_turns(calls, repeats, clock)


def _in_turns(
    calls: Sequence[Callable[[], object]], repeats: int, clock: Callable[[], float]
) -> np.ndarray:
    """What ``clock`` says of each call ``[calls, repeats]``, after one round that is not counted.

    In turns, so that a busy moment of the machine is bad for all of them.
    """
    require_positive("repeats", repeats)
    times = np.zeros((len(calls), repeats + 1))
    for attempt in range(repeats + 1):
        for place, call in enumerate(calls):
            started = clock()
            call()
            times[place, attempt] = clock() - started
    return times[:, 1:]


def crossing(x: Sequence[float], ratio: Sequence[float]) -> float:
    """Where ``ratio`` over rising ``x`` passes 1 upwards for the last time, both logarithmic.

    Between two measurements the line is straight. ``math.inf`` if it ends at 1 or below, and
    ``x[0]`` if it is above 1 everywhere.
    """
    points, logs = as_numbers("x", x).astype(float), as_numbers("ratio", ratio).astype(float)
    if points.shape != logs.shape or points.ndim != 1 or len(points) < 2:
        raise ValueError(f"x, ratio: expected equally many numbers, at least 2, got {x}, {ratio}")
    positive = np.isfinite([points, logs]).all() and min(points.min(), logs.min()) > 0
    if not positive or (np.diff(points) <= 0).any():
        raise ValueError(
            f"x, ratio: expected finite positive numbers and x in rising order, got {x}, {ratio}"
        )
    points, logs = np.log(points), np.log(logs)
    below = np.flatnonzero(logs <= 0)
    if len(below) == 0:
        return float(x[0])
    last = int(below[-1])
    if last == len(logs) - 1:
        return math.inf
    share = -logs[last] / (logs[last + 1] - logs[last])
    return float(np.exp(points[last] + share * (points[last + 1] - points[last])))


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent p of the power law ``y = c·x^p`` that fits best, both axes logarithmic."""
    places, values = as_numbers("x", x).astype(float), as_numbers("y", y).astype(float)
    usable = places.shape == values.shape and len(np.unique(places)) > 1
    if not usable or not np.isfinite([places, values]).all() or min(*places, *values) <= 0:
        raise ValueError(
            f"x, y: expected equally many finite positive numbers and two different x, got {x} "
            f"and {y}"
        )
    return float(np.polyfit(np.log(places), np.log(values), 1)[0])


def peak_memory(statement: str, *, setup: str = "pass") -> int:
    """Bytes that ``statement`` needs beyond what is in use before it, at its highest point.

    Both are Python source, as in ``timeit``. They run in a child process with one thread, so that
    nothing of the caller counts and nothing of it is freed late; the statement runs twice, and
    the second run counts. The peak is what the operating system saw (``VmHWM``, reset before
    the run, on Linux; ``ru_maxrss`` elsewhere), so the resolution is about 1 MiB.

    Raises ``RuntimeError`` with the child's error, or where a process cannot read its peak
    (Windows).
    """
    return peak_memories([statement], setup=setup)[0]


def peak_memories(statements: Sequence[str], *, setup: str = "pass") -> list[int]:
    """:func:`peak_memory` of several statements after one ``setup``, in as few children as work."""
    if not sys.platform.startswith("linux") and len(statements) > 1:
        # The peak cannot be set back there: a child can measure only once.
        return [peak_memory(statement, setup=setup) for statement in statements]
    job = json.dumps({"setup": setup, "statements": list(statements)})
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, job],
        capture_output=True,
        text=True,
        # A freed block of more than 1 MiB goes back to the system at once (glibc). Else blocks of
        # up to 32 MiB lie about in the heap, and the peak depends on what fits into which hole.
        env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**20)},
    )
    if child.returncode:
        raise RuntimeError(f"peak_memory: the child process failed:\n{child.stderr.strip()}")
    found: list[int] = json.loads(child.stdout.splitlines()[-1])
    return found


_CHILD = """
import gc, json, sys
try:
    import resource
except ImportError:
    sys.exit("this system does not tell a process its peak memory")
import ctypes
job = json.loads(sys.argv[1])
linux = sys.platform == "linux"
def status(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))
def trim():
    gc.collect()
    if linux and hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)
def peak():
    if linux:
        return status("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
names = {}
exec(job["setup"], names)
found = []
for statement in job["statements"]:
    code = compile(statement, "<statement>", "exec")
    if linux:  # elsewhere the peak cannot be reset: the first run would hide the second
        exec(code, dict(names))
        trim()
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    before = status("VmRSS") if linux else peak()
    exec(code, dict(names))
    found.append(peak() - before)
    trim()
print(json.dumps(found))
"""
