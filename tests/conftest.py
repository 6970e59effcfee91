"""What holds for every test: fixed examples, one thread a process, no windows, no network.

Tests run in several processes and in any order (``--shuffle SEED`` tries another one): none may
rely on another, or leave anything changed.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

if not torch.cuda.is_available():
    # Before anything imports triton: kernels then run in Triton's interpreter, on the CPU.
    os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.kill_table import pytest_terminal_summary  # noqa: F401 - a hook, in every process

settings.register_profile(
    "course",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("course")
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in another order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """``--shuffle``: another order, but for the browser's files, each the story of one page."""
    if config.option.shuffle is not None:
        stories = [item for item in items if item.get_closest_marker("browser")]
        others = [item for item in items if item not in set(stories)]
        random.Random(config.option.shuffle).shuffle(others)
        items[:] = stories + others


def pytest_configure(config: pytest.Config) -> None:
    """Refuse sockets that leave the machine where the system cannot switch the network off."""
    if os.environ.get("COURSE_NETWORK") == "guard":
        import pytest_socket

        pytest_socket.socket_allow_hosts(["127.0.0.1", "::1", "localhost"], allow_unix_socket=True)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m gpu``, read only the files that have such tests.

    A machine with a GPU may have nothing of what the other files import.
    """
    if config.option.markexpr.strip() != "gpu" or collection_path.suffix != ".py":
        return None
    return True if "mark.gpu" not in collection_path.read_text(encoding="utf-8") else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Each test begins with the same random numbers, whatever ran before it.

    Without a GPU its tests are skipped: all of them here, so that pytest says it in one line.
    """
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the global state, which a test may have moved
    torch.manual_seed(0)
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no GPU here: nothing was run on one")
