"""The explorer of the register: against the package and by hand, word by word; its sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from course.linear import linear_attention, linear_attention_step
from course.widgets import RegisterExplorer
from course.widgets.register import MAPS, PERPENDICULAR, RANDOM, WIDTH, WORDS
from tests.exploring import any_values, compute_of

ANY, compute = any_values(RegisterExplorer), compute_of(RegisterExplorer)
IDENTITY, ELU, RELU = MAPS


def keys_of(option: str) -> np.ndarray:
    return compute(keys=option, map=IDENTITY)["features"]  # the identity shows the keys themselves


@given(ANY)
@settings(max_examples=80)
def test_the_reading_is_linear_attention_of_the_words_read(values) -> None:
    arrays = compute(**values)
    name, divided = MAPS[values["map"]]
    t, asked = values["t"], arrays["asked"]
    keys = torch.from_numpy(keys_of(values["keys"]))[None, None]
    v = torch.from_numpy(arrays["values"])[None, None, :t]
    read, state = linear_attention(
        keys[:, :, asked : asked + 1],
        keys[:, :, :t],
        v,
        feature_map=name,
        normalize=divided,
        causal=False,
        return_state=True,
    )
    assert np.allclose(arrays["reading"], read[0, 0, 0], atol=1e-12)
    assert np.allclose(arrays["S"], state.S[0, 0], atol=1e-12)
    assert np.allclose(arrays["z"], state.z[0, 0], atol=1e-12)
    assert WORDS[asked] == values["word"] and (arrays["stored"] == arrays["values"][asked]).all()


@given(ANY)
@settings(max_examples=60)
def test_weights_are_shares_only_where_z_divides(values) -> None:
    arrays = compute(**values)
    assert (arrays["weights"][values["t"] :] == 0).all()
    if MAPS[values["map"]][1] and arrays["scores"].any():
        assert arrays["weights"].sum() == pytest.approx(1)
        assert (arrays["weights"] >= 0).all()
    else:
        assert np.array_equal(arrays["weights"], arrays["scores"])


@pytest.mark.parametrize("keys", [PERPENDICULAR, RANDOM])
def test_each_word_is_one_step_of_the_recurrence(keys: str) -> None:
    k, state = torch.from_numpy(keys_of(keys)), None
    values = torch.from_numpy(compute()["values"])
    for t in range(1, len(WORDS) + 1):
        rows = k[t - 1][None, None], k[t - 1][None, None], values[t - 1][None, None]
        _, state = linear_attention_step(*rows, state, feature_map="elu")
        arrays = compute(t=t, keys=keys, map=ELU)
        assert np.allclose(arrays["S"], state.S[0, 0]) and np.allclose(arrays["z"], state.z[0, 0])


def test_keys_have_length_one_and_the_fifth_is_the_first_again() -> None:
    for keys in (PERPENDICULAR, RANDOM):
        assert np.allclose(np.linalg.norm(keys_of(keys), axis=1), 1)
    perpendicular = keys_of(PERPENDICULAR)
    assert np.array_equal(perpendicular[:4] @ perpendicular[:4].T, np.eye(4))
    assert np.array_equal(perpendicular[4:], perpendicular[:4])
    assert np.linalg.matrix_rank(keys_of(RANDOM)) == WIDTH


def test_the_four_answers_of_the_notebook() -> None:
    for word in WORDS[:4]:
        assert compute(t=4, word=word)["error"] < 1e-14
    assert compute(t=5, word=WORDS[0])["error"] > 1
    assert all(compute(t=5, word=word)["error"] < 1e-14 for word in WORDS[1:4])
    assert compute(t=5, map=RELU)["weights"].tolist() == [0.5, 0, 0, 0, 0.5, 0, 0, 0]
    assert compute(t=1, keys=RANDOM)["error"] < 1e-14 < compute(t=2, keys=RANDOM)["error"]
    mixed = compute(t=8, keys=RANDOM, word="mat", map=ELU)["weights"]
    assert mixed.min() > 0.07 and mixed.max() < 0.17


def test_the_register_does_not_grow_and_the_cache_does() -> None:
    for t in range(1, 9):
        assert compute(t=t)["register"] == 16 and compute(t=t, map=ELU)["register"] == 20
        assert compute(t=t)["cache"] == 8 * t


def test_the_sentence_carries_the_numbers() -> None:
    explorer = RegisterExplorer(t=5)
    start = "After 5 words the register keeps 16 numbers, the cache 40; asked for “my” it "
    error = explorer.arrays["error"]
    assert explorer.status == (
        f"{start}weighs that word with 1.00 and all others together with 1.00: "
        f"the reading is off by {100 * error:.0f} %."
    )
    explorer.set_values(t=1, word="it")
    assert explorer.status.startswith("After 1 word the register keeps 16 numbers, the cache 8; ")
    assert "“it”, which was not read yet" in explorer.status
    explorer.set_values(t=4, word="it", map=RELU)
    assert "which was not read yet" in explorer.status


def test_a_key_without_a_feature_reads_zero() -> None:
    """relu leaves nothing of a key whose entries are all negative: then nothing is divided."""
    for word in WORDS:
        arrays = compute(t=8, keys=RANDOM, word=word, map=RELU)
        assert np.isfinite(arrays["weights"]).all() and np.isfinite(arrays["reading"]).all()
        if (keys_of(RANDOM)[WORDS.index(word)] <= 0).all():
            assert not arrays["reading"].any()


def test_what_is_drawn_are_the_arrays() -> None:
    explorer = RegisterExplorer(t=6, keys=RANDOM, map=ELU)
    arrays = explorer.arrays
    cache, register = (axes.images[0].get_array() for axes in explorer.figure.axes[:2])
    assert np.allclose(cache[:6, 5:], arrays["values"][:6]) and np.isnan(cache[6:].data).all()
    assert np.allclose(cache[:6, :4], arrays["features"][:6])
    assert np.allclose(register[:, :4], arrays["S"]) and np.allclose(register[:, 5], arrays["z"])
    bars = [bar.get_width() for bar in explorer.figure.axes[2].patches]
    assert np.allclose(bars, arrays["weights"])
    heights = [bar.get_height() for bar in explorer.figure.axes[3].patches]
    assert np.allclose(heights, np.concatenate([arrays["stored"], arrays["reading"]]))
    texts = [text.get_text() for text in explorer.figure.axes[1].texts]
    assert f"{arrays['S'][0, 0]:.1f}".replace("-", "−") in texts


def test_nothing_reaches_beyond_its_axes() -> None:
    for keys in (PERPENDICULAR, RANDOM):
        for name in MAPS:
            for word in WORDS:
                arrays = compute(t=8, keys=keys, map=name, word=word)
                assert np.abs(arrays["reading"]).max() < 2.5
                assert arrays["weights"].min() > -1.6 and arrays["weights"].max() < 1.7
