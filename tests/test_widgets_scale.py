"""The explorer of key width and scale: its laws, its extremes, and its sentence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from course.widgets import ScaleExplorer
from course.widgets.scale import DRAWS, KEYS, effective_law, spread_law
from tests.exploring import any_values, compute_of

ANY, compute = any_values(ScaleExplorer), compute_of(ScaleExplorer)


@given(ANY)
@settings(max_examples=60)
def test_weights_entropy_and_jacobian_by_an_independent_softmax(values) -> None:
    arrays = compute(**values)
    raw = np.exp(arrays["scores"] - arrays["scores"].max())
    w = raw / raw.sum()
    assert np.allclose(arrays["weights"], w, atol=1e-12)
    for i in range(12):
        for j in range(12):
            assert arrays["jacobian"][i, j] == pytest.approx(w[i] * ((i == j) - w[j]), abs=1e-12)
    one = values["draw"] - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(np.where(w > 0, w * np.log(w), 0.0))
    assert arrays["effective"][one] == pytest.approx(np.exp(entropy), rel=1e-9)
    assert arrays["trace"][one] == pytest.approx(1 - (w**2).sum(), abs=1e-12)
    assert arrays["effective"].min() >= 1 - 1e-9 and arrays["effective"].max() <= KEYS + 1e-9


@pytest.mark.parametrize("D", [4, 64, 1024])
@pytest.mark.parametrize(("power", "size"), [(0.0, 1.0), (0.5, 0.6), (1.0, 2.0)])
def test_the_spread_follows_its_law(D: int, power: float, size: float) -> None:
    law = size * size * D**0.5 / D**power
    assert spread_law(D, power=power, size=size) == pytest.approx(law)
    # 1,280 scores that share 20 queries: a few per cent, more where a query is short.
    assert compute(D=D, power=power, size=size)["spread"] == pytest.approx(
        law, rel=0.6 / D**0.5 + 0.05
    )


def test_only_the_power_one_half_is_blind_to_the_width() -> None:
    means = {
        power: [compute(D=D, power=power)["effective"].mean() for D in (16, 256, 1024)]
        for power in (0.0, 0.5, 1.0)
    }
    assert max(means[0.5]) - min(means[0.5]) < 4 and 36 < np.mean(means[0.5]) < 45
    assert means[0.0][0] > 3 and means[0.0][2] < 1.5
    assert means[1.0][2] > 0.99 * KEYS
    assert effective_law(1.0) == pytest.approx(64 / np.sqrt(np.e))
    assert effective_law(100.0) < 1e-300  # less than one token: there it does not hold


def test_the_law_is_solid_where_it_holds_and_every_draw_differs() -> None:
    arrays = compute(power=0.0)
    assert np.isnan(arrays["law"]).all()  # σ = √D is 2 and more
    assert arrays["beyond"][0] == pytest.approx(64 * np.exp(-2.0))
    half = compute(power=0.5)
    assert half["law"] == pytest.approx(64 / np.sqrt(np.e)) and np.isnan(half["beyond"]).all()
    both = compute(power=0.0, size=0.5)  # σ = √D / 4 is 1 at D = 16
    assert (np.isnan(both["law"]) == ~np.isnan(both["beyond"])).all()
    assert np.isnan(both["beyond"]).sum() == (np.geomspace(4, 1024, 60) <= 16).sum()
    assert len({compute(draw=i)["weights"][0] for i in range(1, DRAWS + 1)}) == DRAWS


def test_the_sentence_names_the_state() -> None:
    explorer = ScaleExplorer()
    assert "draw 1 is a mix" in explorer.status and "law 1.00" in explorer.status
    explorer.set_values(D=16, power=0.0)
    assert "draw 1 is mostly one key: largest weight 0.762" in explorer.status
    explorer.set_values(D=1024, power=0.0)
    assert "draw 1 is frozen" in explorer.status and "law 32.00" in explorer.status
    explorer.set_values(power=1.0)
    assert "close to the plain mean" in explorer.status
    assert f"{explorer.arrays['trace'][0]:.3f}; over 20 draws" in explorer.status
