"""The meters against known amounts, the readings against known laws."""

from __future__ import annotations

import math
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course import measure
from course.cost import MIB, score_bytes

no_peak = pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell the peak")


def test_slope_finds_the_exponent_of_numbers_of_any_kind() -> None:
    x = np.array([1_024, 2_048, 4_096])
    assert measure.slope(x, 3e-7 * x**1.7) == pytest.approx(1.7)
    assert measure.slope(torch.tensor([1, 2, 4]), torch.tensor([1, 4, 16]).bfloat16()) == 2
    assert measure.slope([1, 2], [5, 5]) == pytest.approx(0)


@pytest.fixture
def works(monkeypatch):
    """Calls that take the given times by all clocks, and the order in which they came."""
    now, order = [0.0], []
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(time, "thread_time", lambda: now[0])
    monkeypatch.setattr("torch.utils.benchmark.timer", lambda: now[0])

    def make(name: str, *times: float):
        left = iter(times)

        def call() -> None:
            order.append(name)
            now[0] += next(left)

        return call

    return make, order


def test_calls_take_turns_and_the_first_round_does_not_count(works) -> None:
    make, order = works
    calls = [make("a", 100.0, 3.0, 1.0, 2.0), make("b", 0.5, 9.0, 8.0, 7.0)]
    times = measure.processor_times(calls, repeats=3)
    assert times.tolist() == [[3.0, 1.0, 2.0], [9.0, 8.0, 7.0]]
    assert "".join(order) == "abababab"


def test_processor_seconds_is_the_least_and_median_seconds_the_median(works) -> None:
    make, _ = works
    times = (100.0, 3.0, 1.0, 2.5)
    assert measure.processor_seconds([make("a", *times)], repeats=3) == [1.0]
    assert measure.median_seconds({"a": make("a", *times), "b": make("b", *4 * [7.0])}, 3) == {
        "a": 2.5,
        "b": 7.0,
    }


@pytest.mark.skipif(sys.platform == "win32", reason="Windows' threads have no fine clock")
def test_waiting_is_no_processor_time() -> None:
    assert measure.processor_seconds([lambda: time.sleep(0.05)], repeats=1)[0] < 0.04


@no_peak
def test_peak_memory_of_known_allocations_one_after_another() -> None:
    sizes = [24, 2, 96]
    jobs = [f"a = torch.ones({mib * MIB // 4}); del a; b = torch.ones(10)" for mib in sizes]
    peaks = measure.peak_memories(jobs, setup=f"import torch; kept = torch.ones({50 * MIB // 4})")
    for peak, mib in zip(peaks, sizes, strict=True):
        assert peak == pytest.approx(mib * MIB, rel=0.1, abs=MIB / 2)


@no_peak
def test_peak_memory_of_attention_is_a_few_score_matrices() -> None:
    T, H = 1_024, 4
    setup = f"""
import torch
from torch.nn.functional import scaled_dot_product_attention
from course.attention import softmax_attention
q = k = v = torch.randn(1, {H}, {T}, 16)
"""
    written_out, fused = measure.peak_memories(
        [
            'softmax_attention(q, k, v, causal=True, impl="reference")',
            "scaled_dot_product_attention(q, k, v, is_causal=True)",
        ],
        setup=setup,
    )
    assert 1.9 < written_out / score_bytes(T, H=H) < 6
    assert fused < 0.25 * written_out


def test_a_failing_child_says_why() -> None:
    with pytest.raises(RuntimeError, match="name 'nonsense' is not defined"):
        measure.peak_memory("nonsense")


@given(st.floats(1.2, 900.0), st.floats(0.3, 3.0))
def test_a_power_law_crosses_where_it_is_one(at: float, power: float) -> None:
    x = [1.0, 5.0, 30.0, 200.0, 1_000.0]
    ratio = [(one / at) ** power for one in x]
    assert measure.crossing(x, ratio) == pytest.approx(at, rel=1e-9)


def test_the_last_crossing_counts() -> None:
    assert measure.crossing([1, 2, 4, 8], [2, 0.5, 0.5, 2]) == pytest.approx(32**0.5)
    assert measure.crossing([3, 4], [1.5, 0.9]) == math.inf
    assert measure.crossing([3, 4], [1.5, 2]) == 3
    halves = torch.tensor([0.5, 2.0], dtype=torch.bfloat16, requires_grad=True)
    assert measure.crossing(torch.tensor([1.0, 4.0]), halves) == pytest.approx(2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: measure.crossing([1, 2], [0.5, float("nan")]), "finite positive numbers"),
        (lambda: measure.slope([1, 2], [1, float("inf")]), "finite positive numbers"),
        (lambda: measure.crossing([1], [2]), "at least 2"),
        (lambda: measure.crossing([2, 1], [2, 3]), "rising order"),
        (lambda: measure.crossing([1, 2], [2, 0]), "positive numbers"),
        (lambda: measure.slope([1, 1], [2, 3]), "two different x"),
        (lambda: measure.slope([1, 2], [2, 0]), "positive numbers"),
        (lambda: measure.median_seconds({}, 0), "repeats: expected"),
        (lambda: measure.processor_seconds([], repeats=0), "repeats: expected"),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
