"""The explorer of one row: against an independent softmax, its extremes, its words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from course.widgets import RowExplorer
from course.widgets.row import (
    AFTER,
    FINITE,
    LOOKS,
    MINUS_INFINITY,
    NUMBERED,
    PATTERNS,
    VECTORS,
    WORDS,
)
from tests.exploring import any_values, compute_of

row = compute_of(RowExplorer)


@given(any_values(RowExplorer))
@settings(max_examples=150)
def test_row_by_an_independent_softmax(values) -> None:
    arrays = RowExplorer.compute(**values)
    last = values["position"] - 1
    seen = [
        {LOOKS[0]: i <= last, LOOKS[1]: i < last, LOOKS[2]: True}[values["look"]] for i in range(8)
    ]
    scores = [
        base + values["extra"] * (f"{place} {word}" == values["word"])
        for place, (base, word) in enumerate(
            zip(PATTERNS[values["pattern"]], WORDS, strict=True), 1
        )
    ]
    used = [
        s if v or values["mask"] == AFTER else (-5.0 if values["mask"] == FINITE else None)
        for s, v in zip(scores, seen, strict=True)
    ]
    top = max((u for u in used if u is not None), default=0.0)
    if values["temperature"] == 0:
        raw = [float(u == top) for u in used]
    else:
        t = values["temperature"]
        raw = [0.0 if u is None else float(np.exp((u - top) / t)) for u in used]
    total = sum(raw) or 1.0
    wanted = [r / total * (v or values["mask"] != AFTER) for r, v in zip(raw, seen, strict=True)]
    assert np.allclose(arrays["weights"], wanted, atol=1e-12)
    assert np.array_equal(arrays["visible"], seen)
    assert np.allclose(arrays["scores"], scores)
    summary = sum((w * v for w, v in zip(wanted, VECTORS, strict=True)), np.zeros(2))
    assert np.allclose(arrays["summary"], summary, atol=1e-12)


@given(any_values(RowExplorer))
@settings(max_examples=60)
def test_only_minus_infinity_hides_and_still_adds_up_to_one(values) -> None:
    arrays = RowExplorer.compute(**values | {"mask": MINUS_INFINITY})
    weights, visible = arrays["weights"], arrays["visible"]
    assert (weights[~visible] == 0).all()
    assert weights.sum() == pytest.approx(float(visible.any()))
    assert np.abs(arrays["summary"]).max() <= 1  # inside the hull of the values


def test_a_high_temperature_is_the_plain_mean_and_zero_is_one_word() -> None:
    warm, cold, zero = (row(temperature=t) for t in (10.0, 1e-9, 0))
    assert np.abs(warm["summary"] - warm["mean"]).max() < 0.1
    assert np.abs(row()["summary"] - row()["mean"]).max() > 0.3
    assert np.array_equal(cold["weights"], zero["weights"])
    assert zero["weights"].tolist() == [0, 1, 0, 0, 0, 0, 0, 0]
    assert np.isfinite(row(temperature=1e-300)["weights"]).all()
    shared = row(pattern="all equal", temperature=0, look="everything")["weights"]
    assert np.allclose(shared, 1 / 8)


def test_first_word_and_empty_row() -> None:
    assert row(position=1)["weights"].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    empty = row(position=1, look="before only")
    assert not empty["weights"].any() and not empty["summary"].any()
    assert "may look at nothing" in RowExplorer(position=1, look="before only").status


def test_the_sentence_says_what_the_wrong_masks_do() -> None:
    lost = RowExplorer(mask=AFTER, position=4)
    assert f"add up to {lost.arrays['weights'].sum():.2f}; " in lost.status
    assert "is lost" in lost.status
    leak = RowExplorer(mask=FINITE, pattern="all equal", position=2)
    hidden = leak.arrays["weights"][2:].sum()
    assert hidden == pytest.approx(6 * np.exp(-5) / (2 + 6 * np.exp(-5)))
    assert f"the hidden words get {hidden:.3f} of that" in leak.status


def test_a_word_that_occurs_twice_is_one_point_and_named_with_its_number() -> None:
    assert WORDS.count("the") == 2 and len(set(NUMBERED)) == len(WORDS)
    assert (VECTORS[0] == VECTORS[4]).all()
    twice = RowExplorer(pattern="all equal", word="5 the", extra=4.0)
    assert "“the” (word 5) gets most" in twice.status
    points = twice.figure.axes[3].collections[0]
    sizes = dict(zip(dict.fromkeys(WORDS), points.get_sizes(), strict=True))
    both = twice.arrays["weights"][0] + twice.arrays["weights"][4]
    assert sizes["the"] - sizes["it"] == pytest.approx(260 * both)


def test_what_is_drawn_are_the_arrays() -> None:
    explorer = RowExplorer()
    for values in ({}, {"position": 3, "temperature": 0.4}, {"look": LOOKS[2], "mask": FINITE}):
        explorer.reset()
        explorer.set_values(**values)
        arrays = explorer.arrays
        score, masked, weight, plane = explorer.figure.axes
        assert [bar.get_width() for bar in score.patches] == arrays["scores"].tolist()
        finite = np.isfinite(arrays["masked"])
        drawn = np.array([bar.get_width() for bar in masked.patches])
        assert np.array_equal(drawn[finite], arrays["masked"][finite])
        assert [text.get_text() == "−∞" for text in masked.texts] == (~finite).tolist()
        assert [bar.get_width() for bar in weight.patches] == arrays["weights"].tolist()
        written = [text.get_text() for text in weight.texts]
        assert written == [f"{x:.2f}" for x in arrays["weights"]]
        stars = {line.get_label(): line for line in plane.lines}
        assert np.allclose(stars["summary"].get_xydata()[0], arrays["summary"])
        assert np.allclose(stars["plain mean"].get_xydata()[0], arrays["mean"])
