"""The explorer of costs: its arithmetic, its crossing, what the sliders leave alone, its words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from course.cost import block_parameters
from course.transformer import Transformer, TransformerConfig
from course.widgets import CostExplorer
from course.widgets.cost import ITEMSIZES, LENGTHS, NOTHING, SAME_WIDTH, TAYLOR, size
from tests.exploring import any_values, compute_of

ANY, compute = any_values(CostExplorer), compute_of(CostExplorer)


@given(ANY)
@settings(max_examples=60)
def test_every_amount_by_the_formulas_of_the_notebook(values) -> None:
    T, E, H, L = (values[name] for name in "TEHL")
    itemsize = int(values["dtype"].split("(")[1][0])
    arrays = compute(**values)
    assert arrays["rest"] == 24 * T * E * E * L
    assert arrays["pairs"] == 4 * T * T * E * L
    assert arrays["weights"] == L * (12 * E * E + 13 * E) * itemsize
    assert arrays["token"] == 2 * L * E * itemsize
    assert arrays["cache"] == T * arrays["token"]
    assert arrays["scores"] == H * T * T * itemsize
    half = compute(**values | {"T": arrays["crossing"]})
    assert half["rest"] == half["pairs"]


def test_the_curves_are_the_same_formulas_everywhere() -> None:
    arrays = compute(E=512, H=8)
    names = ("rest", "pairs", "weights", "cache", "scores")
    at = {name: arrays[f"{name} over T"] for name in names}
    assert LENGTHS[0] == 128 and LENGTHS[-1] == 131_072 and (np.diff(LENGTHS) > 0).all()
    for name, power in (("rest", 1), ("pairs", 2), ("weights", 0), ("cache", 1), ("scores", 2)):
        assert np.allclose(at[name], at[name][0] * (LENGTHS / LENGTHS[0]) ** power), name
    # One of the drawn lengths is 4,096: the drawing and the number below the slider agree.
    place = int(np.flatnonzero(LENGTHS == 4_096)[0])
    there = compute(E=512, H=8, T=4_096)
    assert all(at[name][place] == there[name] for name in at)


def test_the_amounts_are_those_of_a_model() -> None:
    with torch.device("meta"):
        blocks = Transformer(TransformerConfig(vocab_size=2, E=24, L=3, H=4)).blocks
    counted = sum(p.numel() for p in blocks.parameters())
    arrays = compute(E=24, H=4, L=3, dtype="float32 (4 bytes)")
    assert arrays["weights"] == 4 * counted == 4 * 3 * block_parameters(24)["total"]


def test_heads_change_the_scores_and_nothing_else() -> None:
    few, many = compute(H=12), compute(H=24)
    assert many["scores"] == 2 * few["scores"]
    for name in ("rest", "pairs", "weights", "cache", "token", "crossing"):
        assert few[name] == many[name]


@given(ANY)
@settings(max_examples=40)
def test_a_rival_crosses_where_both_cost_the_same(values) -> None:
    E, H, L = (values[name] for name in "EHL")
    itemsize, D = int(values["dtype"].split("(")[1][0]), E // H
    arrays = compute(**values)
    if values["rival"] == NOTHING:
        assert all(arrays[name] is None for name in ("register", "state", "fewer", "lighter"))
        return
    C = D if values["rival"] == SAME_WIDTH else 1 + D + D * (D + 1) // 2
    assert arrays["register"] == pytest.approx(4 * C * D * H * L)
    assert arrays["state"] == pytest.approx(4 * (C * D + C) * H * L)
    n = arrays["fewer"]
    assert arrays["register"] * n == pytest.approx(4 * n * n * D * H * L)
    assert arrays["lighter"] * 2 * D * H * L * itemsize == pytest.approx(arrays["state"])


def test_a_rival_leaves_the_bill_as_it_was() -> None:
    plain, other = compute(), compute(rival=TAYLOR)
    for name in ("rest", "pairs", "weights", "cache", "scores", "token", "crossing"):
        assert plain[name] == other[name]


def test_the_sentence_about_the_rival() -> None:
    explorer = CostExplorer(T=1_024, E=768, H=12, L=12, rival=SAME_WIDTH)
    assert "fewer operations from 65 tokens on; a state of 2.3 MiB" in explorer.status
    # 2 bytes against 4
    assert "lighter than the cache (here 36.0 MiB) from 66 on" in explorer.status
    assert explorer.status.endswith("operations of the whole pass by 1.21 (at most by 1.22).")
    explorer.set_values(rival=TAYLOR, dtype="float32 (4 bytes)")
    assert "fewer operations from 2,146 tokens on" in explorer.status
    assert "lighter than the cache (here 72.0 MiB) from 1,090 on" in explorer.status
    explorer.set_values(rival=NOTHING)
    assert "Linear" not in explorer.status and explorer.status.endswith("weigh most.")


def test_the_widest_rival_overflows_nowhere() -> None:
    explorer = CostExplorer(T=131_072, E=8_192, H=1, L=96, rival=TAYLOR)
    line = explorer._rivals["register"].get_ydata()
    assert (np.diff(line) > 0).all() and line[0] > 0


def test_the_sentence_carries_the_numbers() -> None:
    explorer = CostExplorer(T=1_024, E=768, H=12, L=12, dtype="float32 (4 bytes)")
    total = 12 * (24 * 1_024 * 768**2 + 4 * 1_024**2 * 768)
    assert f"{total / 1e9:.1f} GFLOP, 18.2 % of it" in explorer.status
    assert "half from 4,608 tokens on" in explorer.status
    assert (
        f"Weights of the blocks {12 * 7_087_872 * 4 / 2**20:.1f} MiB, cache 72.0 MiB"
        in explorer.status
    )
    assert "(72.0 KiB per token), scores of one layer 48.0 MiB" in explorer.status
    assert explorer.status.endswith("the weights weigh most.")
    explorer.set_values(T=131_072, H=1, dtype="bfloat16 (2 bytes)")
    assert explorer.status.endswith("the scores weigh most.")
    explorer.set_values(T=4_096, L=96, E=64)
    assert explorer.status.endswith("the cache weighs most.")


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (1_023, "1,023 bytes"),
        (1_024, "1.0 KiB"),
        (3 * 2**20, "3.0 MiB"),
        (5 * 2**30, "5.0 GiB"),
        (3 * 2**41, "6.0 TiB"),
    ],
)
def test_sizes_in_words(nbytes: int, words: str) -> None:
    assert size(nbytes) == words


def test_every_option_of_the_number_has_its_bytes() -> None:
    assert [ITEMSIZES[option] for option in CostExplorer.controls["dtype"].grid()] == [4, 2, 1]


def test_the_axes_end_with_the_data_and_hold_every_amount() -> None:
    explorer = CostExplorer()
    left, right = explorer.figure.axes
    lengths = CostExplorer.controls["T"].grid()
    assert left.get_xlim() == right.get_xlim() == (lengths[0], lengths[-1])
    ends = {name: (c.grid()[0], c.grid()[-1]) for name, c in CostExplorer.controls.items()}
    for E in ends["E"]:
        for H, L in zip(ends["H"], ends["L"], strict=True):
            for dtype in ends["dtype"]:
                arrays = compute(E=E, H=H, L=L, dtype=dtype)
                for axes, names in ((left, ("rest", "pairs")), (right, ("weights", "cache"))):
                    low, high = axes.get_ylim()
                    for name in names:
                        curve = arrays[f"{name} over T"]
                        assert low <= curve.min() and curve.max() <= high, (name, E, H, L)
    words = [text.get_text() for text in right.get_legend().get_texts()]
    assert "weights: 12E² + 13E a block" in words  # what is counted
    assert block_parameters(10)["total"] == 12 * 10**2 + 13 * 10
