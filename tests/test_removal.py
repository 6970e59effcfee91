"""Nothing in the mathematics is there for nothing: without any one piece, some check fails."""

from __future__ import annotations

import pytest

from tests.mutants import killer
from tests.mutants.attention import CHECKS
from tests.removal import Removal, removals, source

#: Pieces that change nothing which a test on this machine can see, and why they stay:
#: (how the line starts, what is removed) → reason.
IDLE: dict[tuple[str, str], str] = {
    ("", "the sign before 2"): "the same axis of four, counted from the other end",
    ("", "strict=True"): "the lists have one length; it guards against a later edit",
    ("allowed = visible", "| empty"): "PyTorch's CPU kernels already give zeros for a row with "
    "nothing to look at; other devices promise nothing",
    ("allowed = bias", ".masked_fill(empty, 0)"): "the same",
    ("everything = ", "and S > 0"): "the same: zeros where there is no key",
}


def idle(removal: Removal) -> bool:
    return any(
        removal.line.startswith(line) and removal.removed == removed for line, removed in IDLE
    )


@pytest.mark.filterwarnings("ignore")
def test_attention_needs_every_piece() -> None:
    checks = dict(CHECKS)
    survivors, tried = [], 0
    for removal in removals(source("course.attention")):
        tried += 1
        if idle(removal):
            continue
        try:
            module = removal.load("course.attention")
        except Exception:
            continue  # does not even load
        found = killer(module, checks)
        if found is not None:  # what killed this one will likely kill its neighbour: try it first
            checks = {found: checks[found]} | checks
        else:
            survivors.append(str(removal))
    assert not survivors, "no check fails without\n" + "\n".join(survivors)
    assert tried > 100
