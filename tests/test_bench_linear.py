"""``course bench linear``: its contenders compute the same thing, and memory stays linear in T."""

from __future__ import annotations

import json

import pytest
import torch

from course.bench import linear as bench
from course.bench.goals import threads
from tests import oracles
from tests.drawing import close, draw


def test_the_naive_contender_is_softmax_attention():
    q, k, v = (draw(2, 3, 32, 5, seed=s) for s in (1, 2, 3))
    wanted = torch.as_tensor(oracles.attention(q, k, v).out)
    close(bench.naive_softmax(q, k, v), wanted, "naive")


def test_the_limit_counts_four_products():
    T, B, H, D = 16_384, bench.CHUNK_SIZE, bench.H, bench.D
    inside, states = 2 * (2 * B * D), 2 * (2 * D * D)
    assert bench.limit_operations(T) == H * T * (inside + states) == 2_147_483_648


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no peak memory on this system")
def test_peak_memory_at_65536_tokens():
    forward, both = bench.peaks(65_536)
    assert 1 <= forward <= 3, forward
    assert 5 <= both <= 8, both


def test_every_goal_has_its_value_and_its_line():
    found = bench.bench_linear(repeats=1, memory=False, shrink=128)
    assert found == json.loads(json.dumps(found))
    assert set(found["goals"]) == set(bench.GOALS) - {"memory_forward", "memory_both"}
    text = bench.report(found)
    for name, goal in found["goals"].items():
        label, sign, bound = bench.GOALS[name]
        reached = goal["value"] <= bound if sign == "≤" else goal["value"] >= bound
        assert goal["reached"] == reached
        (line,) = [line for line in text.splitlines() if line.startswith(label)]
        assert line.endswith("reached" if reached else "missed")
    assert ("A missed goal" in text) == ("missed" in text)


@pytest.mark.parametrize("argument", ["repeats", "shrink"])
def test_sizes_below_one_are_refused(argument):
    with pytest.raises(ValueError, match=f"{argument}: expected a whole number"):
        bench.bench_linear(**{argument: 0})


def test_threads_are_as_before_after_a_bench():
    before = torch.get_num_threads()
    with threads(1):
        assert torch.get_num_threads() == 1
    with pytest.raises(RuntimeError), threads(None):
        raise RuntimeError
    assert torch.get_num_threads() == before
