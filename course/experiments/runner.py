"""Runs declared configs, each exactly once, into one small JSON a run.

A run's file is named by the hash of its config and written whole or not at all, so a sweep that was
interrupted goes on where it stopped. While a run is computed its process holds an operating-system
lock, which dies with the process: two sweeps on one folder share the work, and a killed one leaves
nothing that has to be cleaned up.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from course.values import require_choice, require_positive

Config = Mapping[str, Any]
Record = dict[str, Any]

ENGINES = ("local", "dask")
_WORK = ".work"  # locks, progress and checkpoints of unfinished runs, beside the results


class RunFailed(RuntimeError):
    """Runs of a sweep ended with an error; all others are stored. The message names each."""


@dataclass(frozen=True)
class Progress:
    """What a running experiment is given: where its steps, its checkpoint and its model go."""

    report: Callable[[int], None] = lambda step: None
    checkpoint: Path | None = None
    #: Called with the trained model, by experiments that train one.
    keep: Callable[[Any], None] = lambda model: None


def canonical(config: Config) -> str:
    """The one JSON text of a config; raises ``ValueError`` if it holds anything but plain JSON."""
    try:
        text = json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"config: expected plain JSON values, got {error}") from None
    if json.loads(text) != config:
        raise ValueError("config: expected text keys and lists, got keys or tuples JSON changes")
    return text


def config_hash(config: Config) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of :func:`canonical`; names the run's file."""
    return hashlib.sha256(canonical(config).encode()).hexdigest()[:12]


def result_path(folder: Path, config: Config) -> Path:
    """Where the run of ``config`` is stored under ``folder``."""
    return folder / str(config["experiment"]) / f"{config_hash(config)}.json"


def read_record(path: Path, config: Config | None = None) -> Record | None:
    """The stored record, or None if it is absent, half-written, changed, or of another config."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        checksum = record.pop("checksum")
        whole = checksum == _checksum(record) and config_hash(record["config"]) == path.stem
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not whole or (config is not None and record["config"] != config):
        return None
    return record


def write_record(path: Path, record: Record) -> None:
    """Store ``record`` under ``path``, whole or not at all."""
    # As it will be read: numbers as keys become text, and are then sorted in another order.
    record = json.loads(json.dumps(record, allow_nan=False))
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record | {"checksum": _checksum(record)}, indent=None, allow_nan=False)
    # One line a top-level key: small, and a change is readable in a diff.
    text = text.replace(', "', ',\n "') if len(text) < 4_000 else text
    handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(part, 0o644)  # mkstemp makes it private; results are shared
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def _checksum(record: Record) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]


def execute(config: Config, progress: Progress) -> dict[str, Any]:
    """Call the function that ``config["run"]`` names as ``"module:function"``.

    It gets ``(config, progress)`` and returns ``{"curve": …, "result": …}`` of plain JSON values.
    Raises ``ValueError`` when there is no such function.
    """
    module, _, name = str(config["run"]).partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"run: expected 'module:function', got {config['run']!r} ({error})"
        ) from None
    return function(config, progress)


def machine() -> dict[str, Any]:
    """What may change a number: processor, threads, versions. No host name, user or path."""
    import numpy
    import torch

    import course

    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "course": course.__version__,
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()} ({platform.machine()})"
    return platform.processor() or platform.machine()


# ------------------------------------------------------------------------------------- one run


def run_one(config: Config, folder: Path, *, threads: int | None = None) -> Record | None:
    """Compute and store the run of ``config``; a stored run is returned as it is.

    Returns None when another process is computing it at this moment. ``threads`` sets PyTorch's
    threads for the run; None leaves them.
    """

    from filelock import FileLock, Timeout  # a twentieth of what importing torch costs

    path = result_path(folder, config)
    record = read_record(path, config)
    if record is not None:
        return record
    work = path.parent / _WORK
    work.mkdir(parents=True, exist_ok=True)
    try:
        # The empty file stays: whoever removed it could take it away from one who waits for it.
        held = FileLock(work / f"{path.stem}.lock").acquire(timeout=0)
    except Timeout:
        return None
    with held:
        record = read_record(path, config)  # it may have been finished between look and lock
        return _compute(config, path, work, threads) if record is None else record


def record_of(config: Config, progress: Progress) -> Record:
    """Compute the run of ``config``: what is stored of it, and where, when and how long it ran."""
    start = time.perf_counter()
    outcome = execute(config, progress)
    return {
        "config": dict(config),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "seconds": round(time.perf_counter() - start, 1),
        "machine": machine(),
        **outcome,
    }


def _compute(config: Config, path: Path, work: Path, threads: int | None) -> Record:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    reporter = _Reporter(work / f"{path.stem}.progress")
    checkpoint = work / f"{path.stem}.checkpoint"
    record = record_of(config, Progress(reporter, checkpoint))
    write_record(path, record)
    for leftover in (checkpoint, reporter.path):
        leftover.unlink(missing_ok=True)
    return record


class _Reporter:
    """Writes the step reached to a small file, at most once a second; the sweep's bar reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = 0.0

    def __call__(self, step: int) -> None:
        now = time.monotonic()
        if now - self._last >= 1:
            self._last = now
            with contextlib.suppress(OSError):
                self.path.write_text(str(step))


# -------------------------------------------------------------------------------------- sweeps


def run_sweep(
    configs: Sequence[Config],
    folder: Path,
    *,
    jobs: int = 1,
    engine: str = "local",
    scheduler: str | None = None,
    quiet: bool = False,
) -> list[Record]:
    """Run every config that is not stored yet; returns all records in the order of ``configs``.

    ``engine``: ``"local"`` (joblib, ``jobs`` processes) or ``"dask"`` (the cluster at
    ``scheduler``, or ``jobs`` local workers). Runs held by another process are waited for. A run
    that raises does not stop the others; :class:`RunFailed` names it at the end.
    """
    require_choice("engine", engine, ENGINES)
    require_positive("jobs", jobs)
    todo = [config for config in configs if read_record(result_path(folder, config)) is None]
    failed: dict[str, str] = {}
    with _bar(configs, folder, quiet):
        while todo:
            run = _run_dask if engine == "dask" else _run_local
            for config, error in run(todo, folder, jobs, scheduler):
                if error is not None:
                    failed[config_hash(config)] = f"{config['label']}: {error}"
            todo = [
                config
                for config in todo
                if config_hash(config) not in failed
                and read_record(result_path(folder, config), config) is None
            ]
            if todo:  # what is left is held by another process: look again, take over if it died
                time.sleep(0.5)
    if failed:
        raise RunFailed(
            f"{len(failed)} of {len(configs)} runs failed; what ended well is stored, and the same "
            "command tries the rest again:\n" + "\n".join(failed.values())
        )
    records = [read_record(result_path(folder, config), config) for config in configs]
    return [record for record in records if record is not None]


Outcome = tuple[Config, str | None]


def _attempt(config: Config, folder: Path, threads: int | None) -> tuple[Record | None, str | None]:
    try:
        return run_one(config, folder, threads=threads), None
    except Exception as error:  # one failing run must not take the sweep with it
        return None, f"{type(error).__name__}: {error}"


def _run_local(
    todo: Sequence[Config], folder: Path, jobs: int, scheduler: str | None
) -> Iterator[Outcome]:
    if jobs == 1:
        for config in todo:
            yield config, _attempt(config, folder, None)[1]
        return
    from joblib import Parallel, delayed

    threads = max(1, (os.cpu_count() or 1) // jobs)
    outcomes = Parallel(n_jobs=jobs, return_as="generator")(
        delayed(_attempt)(config, folder, threads) for config in todo
    )
    for config, (_, error) in zip(todo, outcomes, strict=True):
        yield config, error


def _run_dask(
    todo: Sequence[Config], folder: Path, jobs: int, scheduler: str | None
) -> Iterator[Outcome]:
    try:
        from distributed import Client, LocalCluster, as_completed
    except ImportError:
        raise RuntimeError(
            'engine="dask" needs Dask: pip install "attention-derived[cluster]"'
        ) from None
    with contextlib.ExitStack() as stack:
        if scheduler is None:
            cluster = stack.enter_context(
                LocalCluster(
                    n_workers=jobs, threads_per_worker=1, dashboard_address=None, processes=True
                )
            )
            client = stack.enter_context(Client(cluster))
        else:
            try:
                client = stack.enter_context(Client(scheduler, timeout=10))
            except (ValueError, OSError) as refused:
                raise RuntimeError(
                    "scheduler: expected the address of a running Dask scheduler, as "
                    f"tcp://HOST:8786, got {scheduler!r}: {refused}"
                ) from None
        futures = {
            # pure=False: a run lost with its worker is computed again, never looked up.
            client.submit(_attempt, config, folder, 1, pure=False): config
            for config in todo
        }
        for future in as_completed(futures):
            config = futures[future]
            if future.status == "error":  # its workers died again and again
                yield config, f"{future.exception()}"
                continue
            record, error = future.result()
            path = result_path(folder, config)
            if record is not None and read_record(path, config) is None:
                write_record(path, record)  # the worker has another disk than we have
            yield config, error


# ---------------------------------------------------------------------------------- the bar


@contextlib.contextmanager
def _bar(configs: Sequence[Config], folder: Path, quiet: bool) -> Iterator[None]:
    """A progress bar over the steps of all runs with the time left, fed from the progress files."""
    if quiet or not configs:
        yield
        return
    from tqdm import tqdm

    weights = [(config, _weight(config)) for config in configs]
    done = threading.Event()

    def reached() -> int:
        return int(sum(weight * _share_done(config, folder) for config, weight in weights))

    start = reached()
    with tqdm(
        total=sum(weight for _, weight in weights),
        initial=start,
        bar_format="{l_bar}{bar}| {elapsed} so far, {remaining} left{postfix}",
    ) as bar:

        def follow() -> None:
            while not done.wait(2):
                bar.update(max(0, reached() - bar.n))

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        try:
            yield
        finally:
            done.set()
            follower.join()
            bar.update(max(0, reached() - bar.n))


def _share_done(config: Config, folder: Path) -> float:
    path = result_path(folder, config)
    try:
        if path.is_file():
            return 1.0
        step = int((path.parent / _WORK / f"{path.stem}.progress").read_text())
    except (OSError, ValueError):
        return 0.0
    return min(1.0, step / max(1, _steps(config)))


def _steps(config: Config) -> int:
    return int(config.get("training", {}).get("steps", 1))


def _weight(config: Config) -> int:
    """Relative cost of a run: the tokens it trains on. Only the bar's time left depends on it."""
    training = config.get("training", {})
    return _steps(config) * training.get("batch", 1) * training.get("window", 1)
