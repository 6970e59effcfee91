"""The explorer of the roofline: its counts, its bounds, and its sentence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from course import cost
from course.widgets import RooflineExplorer
from course.widgets.roofline import INTENSITIES, MACHINES, PROGRAMS
from tests.exploring import any_values, compute_of

ANY, compute = any_values(RooflineExplorer), compute_of(RooflineExplorer)


@given(ANY)
@settings(max_examples=60)
def test_by_hand(values) -> None:
    T, D, B = values["T"], values["D"], values["rows"]
    chunks = -(-T // B)
    flops = np.array(
        [4 * T * D * D, chunks * B * (4 * B * D + 4 * D * D), 4 * T * T * D, 4 * T * T * D]
    )
    readings = np.array([1, chunks] if values["cached"] else [chunks, 1])
    tiled = 2 * T * D + 2 * readings * T * D
    numbers = np.array([4 * T * D, 6 * T * D, 4 * T * D + 4 * T * T, tiled[0]])
    states = np.array([T, chunks, 0, 0]) * 2 * D * (D + 1)
    nbytes = 2 * numbers + 4 * states
    arrays, machine = compute(**values), MACHINES[values["gpu"]]
    assert arrays["intensities"] == pytest.approx(flops / nbytes)
    seconds = np.maximum(flops / machine.flops, nbytes / machine.bandwidth)
    assert arrays["seconds"] == pytest.approx(seconds)
    assert arrays["share"] == pytest.approx(flops / seconds / machine.flops)
    assert arrays["share"].max() <= 1
    assert arrays["other"] == pytest.approx(4 * T * T * D / (2 * tiled[1]))


def test_the_roof_is_the_machine_s() -> None:
    for name, machine in MACHINES.items():
        roof = compute(gpu=name)["roof"]
        assert roof.max() == machine.flops
        slope = machine.ridge > INTENSITIES
        assert np.allclose(roof[slope], INTENSITIES[slope] * machine.bandwidth)


def test_its_hints_hold() -> None:
    names = dict(zip(PROGRAMS, range(4), strict=True))
    for rows in (16, 128):
        for cached in (False, True):
            one, two = (compute(rows=n, cached=cached)["intensities"] for n in (rows, 64))
            assert (one != two).tolist() == [False, True, False, not cached]
    short, long = (compute(T=T, cached=True)["intensities"] for T in (1_024, 4_096))
    assert long[names["tiled"]] == pytest.approx(4 * short[names["tiled"]])
    for gpu in MACHINES:
        for D in (16, 64, 256):
            arrays = compute(gpu=gpu, D=D, rows=64)
            assert (arrays["share"][[names["steps"], names["chunks"]]] < 1).all()
    naive = [compute(D=D)["intensities"][names["naive"]] for D in (16, 64, 256)]
    assert naive == sorted(naive)
    slow, fast = compute(gpu="L4")["seconds"], compute(gpu="A100 80GB SXM")["seconds"]
    assert slow / fast == pytest.approx(2_039 / 300, rel=1e-6)


def test_its_sentence_names_who_waits() -> None:
    first = RooflineExplorer().status
    assert first.startswith(
        "With no cache: all four wait for memory, since the H100 SXM needs 295 "
    )
    tiled = RooflineExplorer(gpu="A100 80GB SXM", rows=256, T=65_536)
    assert tiled.status.startswith("With no cache: steps, chunks and naive wait for memory")
    assert "tiled 100 %" in tiled.status
    cached = RooflineExplorer(cached=True).status
    assert cached.startswith("With a perfect cache: steps, chunks and naive wait for memory")
    assert "tiled 100 %" in cached
    assert cost.GPUS[0].name in RooflineExplorer.controls["gpu"].options


def test_the_hollow_point_is_the_filled_one_of_the_other_switch() -> None:
    for gpu in MACHINES:
        on, off = (compute(gpu=gpu, cached=cached) for cached in (True, False))
        assert on["other"] == off["intensities"][3] and off["other"] == on["intensities"][3]


def test_what_is_drawn_are_the_arrays() -> None:
    explorer = RooflineExplorer()
    for values in ({}, {"gpu": "L4", "cached": True}, {"T": 65_536, "D": 256, "rows": 16}):
        explorer.reset()
        explorer.set_values(**values)
        arrays = explorer.arrays
        roofline, busy = explorer.figure.axes
        peak = arrays["roof"].max() / 1e12
        assert np.array_equal(roofline.lines[0].get_ydata(), arrays["roof"] / 1e12)
        points = {line.get_label(): line.get_xydata()[-1] for line in roofline.lines}
        for place, name in enumerate(PROGRAMS):
            x, y = points[name]
            assert x == arrays["intensities"][place]
            assert y == pytest.approx(arrays["share"][place] * peak)
        assert points["tiled, other cache"][0] == pytest.approx(arrays["other"])
        widths = [bar.get_width() for bar in busy.patches]
        assert widths == pytest.approx(list(100 * arrays["share"]))
        for text, seconds in zip(busy.texts, arrays["seconds"], strict=True):
            number, unit = text.get_text().replace(",", "").split()
            assert float(number) * {"µs": 1e-6, "ms": 1e-3}[unit] == pytest.approx(
                seconds, rel=6e-3
            )
