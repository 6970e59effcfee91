"""What one submission may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The limits of a box. Time is processor time, so that a busy machine costs nobody points.

    ``patience``: so many times the processor time may pass on the clock (a cell that sleeps).
    """

    cell_seconds: float = 30.0  # processor time of one cell
    call_seconds: float = 10.0  # of one call of a student's function
    total_seconds: float = 300.0  # of the whole submission, its restarts included
    start_seconds: float = 60.0  # of the imports, before the first cell
    patience: float = 8.0
    memory: int = 2 * 2**30  # bytes of all processes together
    processes: int = 24
    restarts: int = 4  # of a box whose process ended
