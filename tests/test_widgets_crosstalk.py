"""The explorer of crosstalk: its leak matrix and error by other ways, its law, its sentence."""

from __future__ import annotations

import math

import ipywidgets as ipw
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings

from course.memory import draw_keys, recall_error
from course.widgets import CrosstalkExplorer
from course.widgets.crosstalk import (
    ADD,
    BEST,
    DELTA,
    KEYS,
    LEAST_WRONG,
    MAPS,
    MIDDLE,
    MOST_WRONG,
    NEWEST,
    NO_MAP,
    OLDEST,
    READINGS,
    SIZES,
    SOFTMAX,
    TAYLOR,
)
from tests.exploring import any_values, compute_of, handle, part, picture, spoken

ANY, compute = any_values(CrosstalkExplorer), compute_of(CrosstalkExplorer)
RANDOM, PERPENDICULAR, SIMILAR, VERY_SIMILAR = KEYS
ELU = next(option for option, name in MAPS.items() if name == "elu")
CONTROLS = CrosstalkExplorer.controls


def possible(values: dict) -> bool:
    """Whether these values go together: the other refusals are not."""
    crowded = values["keys"] == PERPENDICULAR and values["N"] > values["D"]
    huge = values["map"] == TAYLOR and values["D"] > 64 and values["rule"] != SOFTMAX
    return not crowded and not huge


def features(values: dict) -> np.ndarray:
    """Keys of the first draw through the map, by its formula."""
    kind, cosine = KEYS[values["keys"]]
    shape = values["N"], values["D"]
    # The number of draws does not show in the first of them where N is drawn in one go.
    draws = compute(**values)["draws"]
    k = draw_keys(*shape, trials=draws, keys=kind, cosine=cosine)[0].numpy()
    if values["rule"] == SOFTMAX or values["map"] == NO_MAP:
        return k
    if values["map"] == ELU:
        made = np.where(k > 0, k + 1, np.exp(np.minimum(k, 0)))
    else:
        squares = (k[:, :, None] * k[:, None, :]).reshape(len(k), -1) / math.sqrt(2)
        made = np.concatenate([np.ones((len(k), 1)), k, squares], 1)
    divided = values["divide"] and values["rule"] == ADD
    return made if divided else made / np.linalg.norm(made, axis=1, keepdims=True)


def written(values: dict) -> np.ndarray:
    """The leak matrix by hand: pair after pair into a state, whose values are unit vectors."""
    K = features(values)
    N = len(K)
    if values["rule"] == SOFTMAX:
        e = np.exp(values["sharpness"] * (K @ K.T - 1))
        return e / e.sum(1, keepdims=True)
    if values["rule"] == BEST:
        U, s, _ = np.linalg.svd(K, full_matrices=False)
        U = U[:, s > 1e-10 * s[0]]
        return U @ U.T
    if values["rule"] == DELTA:
        S = np.zeros((K.shape[1], N))
        for key, value in zip(K, np.eye(N), strict=True):
            S += values["beta"] * np.outer(key, value - key @ S)
        return K @ S
    S, z = np.zeros((K.shape[1], N)), np.zeros(K.shape[1])
    for t, key in enumerate(K):
        S, z = values["decay"] * S, values["decay"] * z + key
        S[:, t] += key
    if values["divide"] and values["map"] != NO_MAP:
        return K @ S / (K @ z)[:, None]
    return K @ S


@given(ANY)
@settings(max_examples=60, deadline=None)
def test_the_leak_matrix_is_what_pairs_written_one_by_one_leave(values) -> None:
    assume(possible(values))
    arrays = compute(**values)
    assert np.allclose(arrays["weights"], written(values), atol=1e-9)


@given(ANY)
@settings(max_examples=60, deadline=None)
def test_what_is_said_of_a_reading_is_its_row(values) -> None:
    assume(possible(values))
    arrays = compute(**values)
    L, N, read = arrays["weights"], values["N"], arrays["read"]
    wrong = np.sqrt(((L - np.eye(N)) ** 2).sum(1))
    asked = {OLDEST: 0, MIDDLE: N // 2, NEWEST: N - 1}
    asked |= {LEAST_WRONG: wrong.argmin(), MOST_WRONG: wrong.argmax()}
    assert read == asked[values["reading"]]
    assert arrays["own"] == L[read, read] and arrays["off"] == pytest.approx(wrong[read])
    others = [L[read, j] for j in range(N) if j != read]
    assert arrays["share"] == pytest.approx(sum(x * x for x in others) / sum(L[read] ** 2))
    assert abs(L[read, arrays["most"]]) == max(map(abs, others)) and arrays["most"] != read


@given(ANY)
@settings(max_examples=30, deadline=None)
def test_nothing_reaches_beyond_its_axes(values) -> None:
    assume(possible(values))
    arrays = compute(**values)
    assert np.abs(arrays["weights"]).max() < 1 + 1e-9
    for error in (*arrays["errors"], *arrays["laws"], arrays["high"], arrays["off"]):
        assert 0 <= error < 12, error
    assert arrays["low"] <= arrays["error"] <= arrays["high"]


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ({"N": 8}, {}),
        ({"N": 32, "D": 16, "decay": 0.9}, {"decay": 0.9}),
        ({"N": 8, "D": 4, "keys": SIMILAR}, {"keys": "correlated", "cosine": 0.3}),
        ({"N": 16, "rule": DELTA}, {"rule": "delta"}),
        ({"N": 16, "D": 8, "rule": DELTA, "beta": 0.5}, {"rule": "delta", "beta": 0.5}),
        ({"N": 32, "D": 16, "rule": BEST}, {"rule": "least_squares"}),
        ({"rule": SOFTMAX, "sharpness": 4.0}, {"rule": "softmax", "beta": 4.0}),
        ({"map": ELU, "divide": True}, {"rule": "divide", "feature_map": "elu"}),
        ({"N": 8, "map": TAYLOR}, {"feature_map": "taylor"}),
    ],
)
def test_the_error_is_that_of_drawn_values(values, options) -> None:
    """`recall_error` draws other keys, and values; here values are averaged away."""
    arrays = compute(**values)
    wanted = recall_error(
        values.get("N", 16), values.get("D", 32), trials=600, seed=5, **options
    ).rms
    assert arrays["error"] == pytest.approx(wanted, rel=0.06)
    assert arrays["low"] - 0.03 * wanted < wanted < arrays["high"] + 0.03 * wanted


def test_the_interval_holds_the_law_and_narrows_with_what_is_averaged() -> None:
    kept = 0
    for D in CONTROLS["D"].grid():
        for N in CONTROLS["N"].grid():
            arrays = compute(N=N, D=D)
            law = math.sqrt((N - 1) / D)
            assert arrays["law"] == pytest.approx(law)
            width = arrays["high"] - arrays["low"]
            assert 0 < width < 0.25 * law
            kept += arrays["low"] <= law <= arrays["high"]
    assert kept >= 0.85 * 42  # 95 % of 42 are 40


def test_laws_of_the_notebook() -> None:
    """Written out again: the gate, the delta rule, similar keys, the best state."""
    gate = compute(decay=0.9, N=64)
    ages = 0.9 ** np.arange(64)
    squares = [(1 - own) ** 2 + ((ages**2).sum() - own**2) / 32 for own in ages]
    assert gate["law"] == pytest.approx(np.sqrt(np.mean(squares)))
    delta = compute(rule=DELTA, N=64)
    kept, fourth = 31 / 32, 1 - 2 * 33 / (32 * 34)
    squares = [
        2 * (1 - kept**age) - kept ** (64 - age) * (kept**age - fourth**age) for age in range(64)
    ]
    assert delta["law"] == pytest.approx(np.sqrt(np.mean(squares)))
    assert compute(rule=DELTA, beta=0.5)["law"] is None
    similar = compute(keys=VERY_SIMILAR, D=256)
    assert similar["law"] == pytest.approx(math.sqrt(15 * (0.8**2 + 0.2**2 / 255)))
    assert compute(rule=BEST, N=64)["law"] == pytest.approx(math.sqrt(0.5))
    for arrays in (gate, delta, similar):
        assert arrays["error"] == pytest.approx(arrays["law"], rel=0.05)


def test_the_line_and_the_points_are_the_same_at_other_sizes() -> None:
    arrays = compute(N=20, D=16)
    assert arrays["sizes"].tolist() == list(SIZES) and 20 in arrays["fine"]
    for n, error in zip(arrays["sizes"], arrays["errors"], strict=True):
        assert error == compute(N=int(n), D=16)["error"]
    assert np.allclose(arrays["laws"], np.sqrt((arrays["fine"] - 1) / 16))
    assert (np.diff(arrays["fine"]) > 0).all()
    perpendicular = compute(N=8, D=16, keys=PERPENDICULAR)
    assert perpendicular["sizes"].tolist() == [2, 4, 8, 16] and perpendicular["fine"].max() == 16
    for option in (ELU, TAYLOR):  # nothing is derived for features
        none = compute(map=option)
        assert none["law"] is None and len(none["laws"]) == len(none["fine"]) == 0


def test_what_the_explorer_is_for() -> None:
    """The moves of its docstring."""
    assert compute(N=32, D=64)["law"] == pytest.approx(compute(N=16, D=32)["law"], rel=0.03)
    narrow, wide = (compute(keys=VERY_SIMILAR, D=D)["error"] for D in (32, 256))
    assert wide > 0.97 * narrow > 3
    assert compute(map=ELU)["weights"].min() > 0.9
    average = compute(map=ELU, divide=True)["weights"]
    assert average.min() > 0.8 / 16 and average.max() < 1.25 / 16
    assert np.allclose(average.sum(1), 1)
    newest, oldest = (compute(rule=DELTA, N=64, reading=r) for r in (NEWEST, OLDEST))
    assert newest["off"] < 1e-12 and newest["own"] == pytest.approx(1)
    assert oldest["off"] > 0.9 and oldest["own"] < 0.5
    assert compute(rule=SOFTMAX, N=64)["error"] < 0.005 < 1.2 < compute(N=64)["error"]
    assert compute(keys=PERPENDICULAR, N=32)["error"] < 1e-12


def idle_of(**values) -> set[str]:
    first = {name: control.value for name, control in CONTROLS.items()}
    return set(CrosstalkExplorer.idle(first | values))


def test_a_control_is_idle_where_it_does_nothing_and_nowhere_else() -> None:
    assert idle_of() == {"divide", "beta", "sharpness"}
    assert idle_of(map=ELU) == {"beta", "sharpness"}
    assert idle_of(rule=DELTA) == {"divide", "decay", "sharpness"}
    assert idle_of(rule=SOFTMAX, map=ELU) == {"map", "divide", "decay", "beta"}
    assert idle_of(rule=BEST, map=ELU) == {"divide", "decay", "beta", "sharpness"}
    for rule in CONTROLS["rule"].grid():
        for option in MAPS:
            start = {"rule": rule, "map": option}
            idle, before = idle_of(**start), compute(**start)
            for name in ("map", "divide", "decay", "beta", "sharpness"):
                ends = CONTROLS[name].grid()[0], CONTROLS[name].grid()[-1]
                moved = {compute(**start | {name: value})["error"] for value in ends}
                assert (moved == {before["error"]}) == (name in idle), (rule, option, name)


@pytest.mark.parametrize(
    ("start", "name", "value", "sentence"),
    [
        (
            {"keys": PERPENDICULAR},
            "N",
            64,
            "Perpendicular keys: expected at most D = 32 of them, got N = 64. It stays at 16.",
        ),
        (
            {"keys": PERPENDICULAR},
            "D",
            8,
            "Perpendicular keys: expected at most D = 8 of them, got N = 16. It stays at 32.",
        ),
        (
            {"map": TAYLOR},
            "D",
            256,
            "Taylor-2: expected D up to 64 here, got 256: 33,153 features. It stays at 32.",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(start, name, value, sentence) -> None:
    explorer = CrosstalkExplorer(**start)
    seen, said = picture(explorer), explorer.status
    slider = handle(explorer, CONTROLS[name])
    slider.value = value
    assert spoken(explorer, "alert") == sentence
    assert slider.value == explorer.values[name] == CONTROLS[name].value
    assert (picture(explorer) == seen).all() and explorer.status == said
    slider.value = slider.value * (2 if name == "N" else 0.5)  # 32 pairs, or a width of 16
    assert spoken(explorer, "alert") is None
    assert explorer.values[name] == slider.value != CONTROLS[name].value


def test_where_taylor_is_idle_its_width_is_no_reason_to_refuse() -> None:
    explorer = CrosstalkExplorer(map=TAYLOR, rule=SOFTMAX, D=256)
    part(explorer, ipw.Dropdown, "Rule").value = ADD
    assert spoken(explorer, "alert").endswith("features. It stays at “keep all pairs (softmax)”.")


def test_the_sentence_carries_the_numbers() -> None:
    explorer = CrosstalkExplorer(reading=MOST_WRONG)
    a = explorer.arrays
    leak = f"{a['weights'][a['read'], a['most']]:.2f}".replace("-", "−")
    assert explorer.status == (
        f"Reading {a['read'] + 1} of 16: {100 * a['share']:.0f} % of its squared length comes from "
        f"other values, most from value {a['most'] + 1} (× {leak}); its own value × 1.00; error "
        f"{a['off']:.2f}. All readings, {a['draws']} draws: error 0.68 [{a['low']:.2f}, "
        f"{a['high']:.2f}]; law 0.68."
    )
    # Independent values: what leaks, squared, is the error where the own value stands there whole.
    assert a["share"] == pytest.approx(a["off"] ** 2 / (1 + a["off"] ** 2))
    explorer.set_values(keys=PERPENDICULAR, reading=NEWEST)
    assert explorer.status.startswith(
        "Reading 16 of 16: 0 % of its squared length comes from other values; its own value × "
        "1.00; error 0. All readings, "
    )
    assert explorer.status.endswith(": error 0 [0, 0]; law 0.")
    explorer.set_values(keys=RANDOM, rule=SOFTMAX, N=64)
    assert ": under 1 % of its squared length comes from other values; its" in explorer.status
    a = explorer.arrays
    assert a["error"] < 0.002 and explorer.status.endswith(
        f": error {a['error']:.4f} [{a['low']:.4f}, {a['high']:.4f}]; no law is derived here."
    )
    assert ", with no line of a law." in explorer.alt(explorer.values, explorer.arrays)


@pytest.mark.parametrize(
    "values",
    [
        {"N": 4, "D": 4, "reading": OLDEST},
        {"N": 64, "rule": DELTA, "reading": MOST_WRONG},
        {"map": ELU, "divide": True, "decay": 0.9},
        {"N": 20, "rule": SOFTMAX, "sharpness": 0.125, "reading": LEAST_WRONG},
    ],
)
def test_what_is_drawn_are_the_arrays(values) -> None:
    explorer = CrosstalkExplorer()
    explorer.set_values(**values)
    arrays = explorer.arrays
    matrix, row, law = explorer.figure.axes[:3]
    N, read = len(arrays["weights"]), arrays["read"]
    assert np.array_equal(matrix.images[0].get_array(), arrays["weights"])
    norm = matrix.images[0].norm
    # 0 has the middle colour, and a quarter that of a half: the square root.
    assert [norm(x) for x in (-1, -0.25, 0, 0.25, 1)] == [0, 0.25, 0.5, 0.75, 1]
    (frame,) = matrix.patches
    assert frame.get_y() + frame.get_height() / 2 == pytest.approx((read + 0.5) / N)
    assert str(read + 1) in [t.get_text() for t in matrix.texts if t.get_weight() == "bold"]
    (bars,) = row.collections
    boxes = [path.get_extents() for path in bars.get_paths()]
    assert len(boxes) == N and row.get_title("left") == f"reading {read + 1} in full"
    assert np.allclose([box.y0 + box.y1 for box in boxes], arrays["weights"][read])
    assert np.allclose([(box.x0 + box.x1) / 2 for box in boxes], (np.arange(N) + 0.5) / N)
    colours = bars.get_facecolor()
    alone = (colours == colours[read]).all(1)
    assert alone.sum() == 1
    texts = [t.get_text() for t in row.texts]
    assert any(t.startswith(f"others: {100 * arrays['share']:.0f} %") for t in texts)
    lines = {line.get_label(): line for line in law.lines}
    assert np.array_equal(lines["measured"].get_ydata(), arrays["errors"])
    assert np.array_equal(lines["measured"].get_xdata(), arrays["sizes"])
    assert np.array_equal(lines["law"].get_ydata(), arrays["laws"])
    assert lines["this N, 95 %"].get_xydata().tolist() == [[N, arrays["error"]]]
    assert lines["framed reading"].get_xydata().tolist() == [[N, arrays["off"]]]
    intervals = [line for line in law.lines if line.get_marker() == "_"]
    assert intervals[0].get_ydata() == [arrays["low"], arrays["high"]]
    (note,) = law.texts
    assert note.get_text() == "no law derived" and note.get_visible() == (arrays["law"] is None)


def test_words_in_the_picture_are_large_enough_and_inside_it() -> None:
    explorer = CrosstalkExplorer()
    for values in ({}, {"N": 64, "reading": NEWEST}, {"N": 2, "reading": OLDEST, "rule": SOFTMAX}):
        explorer.set_values(**values)
        explorer.figure.draw_without_rendering()
        whole = explorer.figure.bbox
        for axes in explorer.figure.axes:
            ticks = [t for side in (axes.xaxis, axes.yaxis) for t in side.get_ticklabels()]
            for text in (*axes.texts, *ticks, axes.title, axes.xaxis.label, axes.yaxis.label):
                if text.get_text() and text.get_visible():
                    assert text.get_fontsize() >= 8
                    box = text.get_window_extent()
                    assert whole.x0 <= box.x0 and box.x1 <= whole.x1, text.get_text()


def test_the_state_in_hand_cannot_change_what_is_kept() -> None:
    explorer = CrosstalkExplorer()
    said, values = explorer.status, dict(explorer.values)
    with pytest.raises(ValueError, match="read-only"):
        explorer.arrays["weights"][0] = 0
    for name in ("errors", "laws", "sizes", "fine"):
        explorer.arrays[name][:] = 7
    explorer.arrays["law"] = 3.0
    explorer.set_values(N=8)
    explorer.reset()
    assert explorer.status == said and explorer.values == values
    assert explorer.arrays["errors"].max() < 2 and explorer.arrays["law"] < 1


def test_the_numbers_do_not_hang_on_what_was_drawn_before() -> None:
    first = compute(N=32)
    torch.manual_seed(123)
    state = torch.random.get_rng_state()
    for reading in READINGS:
        compute(N=64, D=16, reading=reading)
    again = compute(N=32)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert np.array_equal(first["weights"], again["weights"]) and first["error"] == again["error"]
