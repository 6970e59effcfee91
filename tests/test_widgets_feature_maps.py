"""The explorer of feature maps: its matrices, its distances, its law, and its sentence."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from course.widgets import FeatureMapExplorer
from course.widgets.attention import fixed_normal
from course.widgets.feature_maps import DRAWS, MAPS, SIZES, TOKENS, D, uniform_law
from tests.exploring import any_values, compute_of

ANY, compute = any_values(FeatureMapExplorer), compute_of(FeatureMapExplorer)
HOMOGENEOUS = ("relu", "cosFormer", "DPFP")


def far(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).sum(1).mean() / 2)


PLAIN = np.tril(np.ones((TOKENS, TOKENS))) / np.arange(1, TOKENS + 1)[:, None]


@given(ANY)
@settings(max_examples=40, deadline=None)
def test_matrices_and_distances(values) -> None:
    arrays = compute(**values)
    softmax, mapped = arrays["softmax"], arrays["mapped"]
    for weights in (softmax, mapped):
        assert weights.min() >= 0 and (np.triu(weights, 1) == 0).all()
    assert np.allclose(softmax.sum(1), 1)
    full = mapped.sum(1) > 0.5
    assert np.allclose(mapped.sum(1), full) and arrays["empty"] == (~full).sum()
    assert arrays["distance"] == pytest.approx(far(mapped, softmax), abs=1e-12)
    assert arrays["plain"] == pytest.approx(far(PLAIN, softmax), abs=1e-12)
    assert arrays["between"] == pytest.approx(far(mapped, PLAIN), abs=1e-12)
    place = int(np.flatnonzero(round(values["length"], 1) == SIZES)[0])
    assert arrays["distance over sizes"][place] == pytest.approx(arrays["distance"])
    assert arrays["plain over sizes"][place] == pytest.approx(arrays["plain"])


def test_softmax_and_two_maps_by_hand() -> None:
    q, k = (fixed_normal(f"{name} of draw 2", TOKENS, D).numpy() for name in ("queries", "keys"))
    scores = 1.44 * q @ k.T / math.sqrt(D)

    def rows(similarity: np.ndarray) -> np.ndarray:
        similarity = np.tril(similarity)
        return similarity / similarity.sum(1, keepdims=True)

    def elu(x: np.ndarray) -> np.ndarray:
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))

    near = compute(map="Taylor-2", length=1.2, draw=2)
    assert np.allclose(near["softmax"], rows(np.exp(scores)))
    assert np.allclose(near["mapped"], rows(1 + scores + scores**2 / 2))
    raw = compute(map="elu + 1", length=1.2, draw=2)["mapped"]
    assert np.allclose(raw, rows(elu(1.2 * q) @ elu(1.2 * k).T))
    scaled = compute(map="elu + 1 of scaled q, k", length=1.2, draw=2)["mapped"]
    assert np.allclose(scaled, rows(elu(0.6 * q) @ elu(0.6 * k).T))


def test_what_the_notebook_says_of_every_draw() -> None:
    for draw in range(1, DRAWS + 1):
        for option in ("elu + 1", "elu + 1 of scaled q, k"):
            elu = compute(map=option, draw=draw)
            assert elu["between"] < 0.1 < 0.25 < elu["distance"] < elu["plain"]
        assert compute(map="Taylor-2", draw=draw)["distance"] < 0.13
        assert compute(map="Taylor-2", length=0.5, draw=draw)["distance"] < 0.01
        assert compute(map="Taylor-2", length=2.0, draw=draw)["distance"] > 0.4


@pytest.mark.parametrize("option", HOMOGENEOUS)
def test_a_factor_of_q_and_k_cancels_where_the_map_is_homogeneous(option: str) -> None:
    one, two = compute(map=option, length=0.5), compute(map=option, length=2.0)
    assert np.allclose(one["mapped"], two["mapped"])


def test_the_law_is_that_of_many_keys() -> None:
    for spread in (0.25, 1.0, 2.0):
        phi = 0.5 * (1 + math.erf(spread / 2 / math.sqrt(2)))
        assert uniform_law(spread) == pytest.approx(2 * phi - 1)
        scores = spread * torch.randn(400_000, generator=torch.Generator().manual_seed(1)).double()
        weights = scores.softmax(0)
        measured = float((weights - 1 / len(weights)).abs().sum() / 2)
        assert measured == pytest.approx(float(uniform_law(spread)), abs=0.005)


def test_the_sentence_names_the_neighbour_and_the_empty_rows() -> None:
    explorer = FeatureMapExplorer()
    assert explorer.status.startswith("elu + 1, length 1.0, draw 1: ")
    assert "so nearer to the average" in explorer.status and "keys: 0.383)." in explorer.status
    explorer.set_values(map="Taylor-2")
    assert "so nearer to softmax" in explorer.status and "empty" not in explorer.status
    found = {compute(map="relu", draw=draw)["empty"]: draw for draw in range(1, DRAWS + 1)}
    assert max(found) <= 2  # only the first rows have so few keys
    for count, draw in found.items():
        explorer.set_values(map="relu", draw=draw)
        words = {0: "", 1: " 1 row is empty."}.get(count, f" {count} rows are empty.")
        assert explorer.status.endswith(f"keys: 0.383).{words}")


def test_every_option_is_a_map() -> None:
    assert tuple(MAPS) == tuple(FeatureMapExplorer.controls["map"].grid())
    assert len({compute(map=option)["distance"] for option in MAPS}) == len(MAPS)


def test_what_is_drawn_are_the_arrays() -> None:
    explorer = FeatureMapExplorer()
    for values in ({}, {"map": "relu", "draw": 3}, {"map": "Taylor-2", "length": 2.0}):
        explorer.reset()
        explorer.set_values(**values)
        arrays = explorer.arrays
        softmax, mapped, distance = explorer.figure.axes[:3]
        seen = np.tri(TOKENS, dtype=bool)
        for axes, name in ((softmax, "softmax"), (mapped, "mapped")):
            drawn = axes.images[0].get_array()
            assert np.array_equal(drawn.mask, ~seen) and (drawn[seen] == arrays[name][seen]).all()
        lines = {line.get_label(): line for line in distance.lines}
        assert np.array_equal(lines["this map"].get_ydata(), arrays["distance over sizes"])
        assert np.array_equal(lines["average: measured"].get_ydata(), arrays["plain over sizes"])
        here = distance.lines[-1].get_xydata().tolist()
        assert here == [[explorer.values["length"], arrays["distance"]]]
