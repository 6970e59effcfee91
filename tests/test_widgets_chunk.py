"""The explorer of the chunk size: counted in a chunk form that runs, its valley, its words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.utils.flop_counter import FlopCounterMode

from course.linear import linear_attention
from course.widgets import ChunkExplorer
from course.widgets.chunk import _FORM, SIZES
from tests.exploring import any_values, compute_of

ANY, compute = any_values(ChunkExplorer), compute_of(ChunkExplorer)
NAMES = ("inside", "between", "all", "scores", "states", "kept", "calls", "work")


def really(T: int, D: int, B: int) -> tuple[int, int, int, int]:
    """(operations, products, scores, numbers in states) of a chunk form that runs."""
    Q, K, V = torch.ones(3, T, D)
    S, calls, scores, states = torch.zeros(D, D), 0, 0, 0
    with FlopCounterMode(display=False) as counter:
        for a in range(0, T, B):
            q, k, v = Q[a : a + B], K[a : a + B], V[a : a + B]
            A = q @ k.T
            A.tril() @ v, q @ S
            S = S + k.T @ v
            calls, scores, states = calls + 4, scores + A.numel(), states + S.numel()
    return counter.get_total_flops(), calls, scores, states


@pytest.mark.parametrize("B", [1, 5, 64, 100, 128])
def test_every_count_is_that_of_a_chunk_form_that_runs(B: int) -> None:
    T, D = 128, 16
    arrays = compute(T=T, D=D, B=B)
    flops, calls, scores, states = really(T, D, B)
    assert arrays["all"] * T == pytest.approx(flops)
    assert arrays["calls"] == calls and arrays["chunks"] * 4 == calls
    assert arrays["scores"] * T == scores and arrays["states"] * T == states
    assert arrays["work"] * calls == pytest.approx(flops)


@given(ANY)
@settings(max_examples=60)
def test_by_the_formulas_of_the_notebook(values) -> None:
    B, T, D = (values[name] for name in "BTD")
    arrays = compute(**values)
    assert arrays["between"] == 4 * D * D
    assert arrays["kept"] == arrays["scores"] + arrays["states"]
    assert arrays["all"] == arrays["inside"] + arrays["between"]
    assert arrays["inside"] <= 4 * B * D and arrays["scores"] <= B
    if T % B == 0:
        assert arrays["inside"] == 4 * B * D and arrays["scores"] == B
        assert arrays["states"] == pytest.approx(D * D / B)


@pytest.mark.parametrize("D", [16, 64, 256])
def test_fewest_operations_at_one_fewest_numbers_at_the_width(D: int) -> None:
    arrays = compute(D=D)
    assert SIZES[arrays["all over B"].argmin()] == 1
    assert SIZES[arrays["kept over B"].argmin()] == D
    here = compute(D=D, B=D)
    assert here["scores"] == here["states"] and here["inside"] == here["between"]


def test_the_curves_are_the_same_formulas_everywhere() -> None:
    arrays = compute(T=8_192, D=32)
    for place, B in enumerate(SIZES):
        if B <= 1_024:
            there = compute(T=8_192, D=32, B=int(B))
            assert all(arrays[f"{name} over B"][place] == there[name] for name in NAMES)
    assert SIZES[0] == 1 and SIZES[-1] == 4_096 and (np.diff(np.log2(SIZES)) == 1).all()


def test_twice_the_tokens_twice_the_products_and_nothing_else() -> None:
    one, two = compute(T=4_096), compute(T=8_192)
    assert two["calls"] == 2 * one["calls"]
    assert all(two[name] == one[name] for name in NAMES if name != "calls")


def test_the_sentence_carries_the_numbers() -> None:
    explorer = ChunkExplorer(B=64, T=4_096, D=64)
    clock = explorer.arrays["time over B"]
    measured = (
        f"Measured here at B = 64: ≈ {clock[6]:.2g} µs per token, least at B ≈ "
        f"{2 ** clock.argmin()}."
    )
    ratio = (256 * 64 + 4 * 64 * 64) / (256 + 4 * 64 * 64)
    assert explorer.status == (
        f"64 chunks of 64: 32,768 operations per token, {ratio:.2f} times those of B = 1, in 256 "
        f"products of 524.3 kFLOP; 128 numbers stored per token (fewest at B = 64). {measured}"
    )
    explorer.set_values(B=1, T=65_536, D=256)
    assert "65,536 chunks of 1: 263,168 operations per token, 1.00 times" in explorer.status
    assert "65,537 numbers stored per token (fewest at B = 256)" in explorer.status


def test_what_is_drawn_are_the_arrays() -> None:
    explorer = ChunkExplorer(B=100, T=2_048, D=48)
    for axes, names in zip(
        explorer.figure.axes,
        (("inside", "between", "all"), ("scores", "states", "kept"), ("calls", "work"), ("time",)),
        strict=True,
    ):
        low, high = axes.get_ylim()
        for place, name in enumerate(names):
            line, point = axes.lines[2 * place : 2 * place + 2]
            assert np.array_equal(line.get_ydata(), explorer.arrays[f"{name} over B"])
            assert point.get_xdata() == [128 if name == "time" else 100] and point.get_ydata() == [
                explorer.arrays[name]
            ]
        assert [*axes.lines[-1].get_xdata()] == [100, 100]
    for values in (dict(B=1, T=1_024, D=16), dict(B=1_024, T=65_536, D=256)):
        explorer.set_values(**values)
        for axes in explorer.figure.axes:
            low, high = axes.get_ylim()
            for line in axes.lines[:-1] if axes is not explorer.figure.axes[3] else ():
                assert low <= min(line.get_ydata()) and max(line.get_ydata()) <= high


def test_the_clock_is_measured_once_a_width_and_is_of_the_chunk_form() -> None:
    one, again, other = compute(D=16), compute(D=16, B=1, T=65_536), compute(D=32)
    assert one["time over B"] is again["time over B"] is not other["time over B"]
    assert len(one["time over B"]) == 11 and (one["time over B"] > 0).all()
    assert not one["time over B"].flags.writeable
    # 1,024 small steps of Python against 16 larger ones: no machine turns that round.
    assert one["time over B"][0] > 2 * one["time over B"][6]
    for B, timed in ((1, 1), (100, 128), (90, 64), (1_024, 1_024)):
        found = compute(D=16, B=B)
        assert found["timed"] == timed
        assert found["time"] == one["time over B"][int(np.log2(timed))]


def test_what_is_timed_computes_what_attention_is() -> None:
    q, k, v = torch.randn(3, 1, 1, 64, 8, generator=torch.Generator().manual_seed(1)).double()
    options = {"causal": True, "feature_map": "identity", "normalize": False}
    quadratic = (q @ k.mT).tril() @ v
    for size in (1, 8, 64):
        got = linear_attention(q, k, v, chunk_size=size, **options, **_FORM)
        assert torch.allclose(got, quadratic, atol=1e-12)
