"""``course bench``: what this machine reaches, measured against its own matrix-multiply rate.

All contenders of a bench are measured in one run, in turns, so that a busy machine slows each of
them alike; the medians are compared. A bench is loaded when it is run: it imports PyTorch, and the
help answers at once.
"""

from __future__ import annotations

import argparse
import importlib
from typing import NamedTuple


class Bench(NamedTuple):
    """The module whose ``command`` runs a bench, and what its parser says.

    ``repeats``: how often by default, of what; ``threads``: whether their number can be chosen.
    """

    module: str
    help: str
    description: str
    repeats: tuple[int, str]
    threads: bool = True


BENCHES = {
    "train": Bench(
        "course.bench.train",
        "one training step of the one-block Shakespeare model",
        "Time one training step (forward, backward, AdamW) of the one-block Shakespeare model "
        "three ways: by the course's loop, written out plainly, and with PyTorch's encoder layer. "
        "The goal is a share of the machine's matrix-multiply rate.",
        (7, "steps of each"),
        threads=False,
    ),
    "linear": Bench(
        "course.bench.linear",
        "linear attention against the limit that the matrix-multiply rate sets",
        "Time and memory of linear attention, of the alternatives, and of one step.",
        (15, "runs of each"),
    ),
    "delta": Bench(
        "course.bench.delta",
        "the delta rule by chunks against the loop over tokens",
        "Time of the delta rule, forward and backward: by chunks, as a loop, and beside additive "
        "writing; time per token as texts get longer.",
        (5, "runs of each"),
    ),
    "widgets": Bench(
        "course.bench.widgets",
        "what a move of an explorer's slider costs, here and in a browser",
        "Processor time of one move of each explorer (compute, draw, encode) and the bytes it "
        "sends; with playwright and a Chromium, JupyterLab is started and each slider dragged: "
        "pictures a second, and how late the last one is.",
        (5, "moves of each"),
    ),
    "kernels": Bench(
        "course.kernels.bench",
        "the GPU kernels against SDPA and flash-linear-attention (needs a GPU)",
        "Time, bandwidth and share of the roofline of the course's GPU kernels, of PyTorch's SDPA, "
        "of the same linear attention in PyTorch, and of flash-linear-attention where it is "
        "installed, in float16. Without a GPU it says so, with exit status 2.",
        (15, "measurements"),
        threads=False,
    ),
}


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add ``course bench``."""
    parser = subparsers.add_parser(
        "bench", help="measure this machine against the limits that the notebooks state"
    )
    benches = parser.add_subparsers(dest="bench", required=True, metavar=f"{{{','.join(BENCHES)}}}")
    for name, bench in BENCHES.items():
        one = benches.add_parser(name, help=bench.help, description=bench.description)
        times, what = bench.repeats
        one.add_argument("--repeats", type=int, default=times, help=f"{what} (default {times})")
        if bench.threads:
            one.add_argument("--threads", type=int, help="threads to use (default: PyTorch's own)")
        one.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    return importlib.import_module(BENCHES[arguments.bench].module).command(arguments)
