"""``course bench``: what this machine reaches, measured against its own matrix-multiply rate.

All contenders of a bench are measured in one run, in turns, so that a busy machine slows each of
them alike; the medians are compared.
"""

from __future__ import annotations

import argparse

from course.bench import delta, linear, train
from course.kernels import bench as kernels


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add ``course bench``."""
    parser = subparsers.add_parser(
        "bench", help="measure this machine against the limits that the notebooks state"
    )
    benches = parser.add_subparsers(
        dest="bench", required=True, metavar="{train,linear,delta,kernels}"
    )
    for part in (train, linear, delta, kernels):
        part.add_parser(benches)
