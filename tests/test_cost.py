"""The formulas against models, masks and counted operations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from course import cost
from course.attention import causal_mask
from course.config import GPT2_SMALL, TransformerConfig
from course.transformer import Transformer

# --- parameters ----------------------------------------------------------------------------------


def test_gpt2_small() -> None:
    counts = cost.model_parameters(vocab_size=50_257, E=768, L=12, max_length=1_024)
    assert counts["total"] == 124_439_808
    assert counts["token table"] == 38_597_376 and counts["positions"] == 786_432
    assert cost.block_parameters(768)["total"] == 7_087_872 == 12 * 768**2 + 13 * 768
    assert counts["blocks"] == 85_054_464 and counts["last norm"] == 1_536


@pytest.mark.parametrize(
    "config",
    [
        GPT2_SMALL,
        TransformerConfig(vocab_size=11, E=12, L=2, H=3, max_length=9, positions="learned"),
        TransformerConfig(vocab_size=11, E=12, L=3, H=3, hidden=20, tied=True),
        TransformerConfig(vocab_size=11, E=12, L=1, H=3, hidden=0),
        TransformerConfig(vocab_size=11, E=12, L=0, H=3),
    ],
)
def test_the_formula_counts_what_the_model_has(config: TransformerConfig) -> None:
    with torch.device("meta"):
        model = Transformer(config)
    assert model.parameter_counts() == cost.model_parameters(
        vocab_size=config.vocab_size,
        E=config.E,
        L=config.L,
        max_length=config.max_length if config.positions == "learned" else 0,
        hidden=config.hidden,
        tied=config.tied,
    )


def test_the_feed_forward_share_tends_to_two_thirds() -> None:
    def share(E: int) -> float:
        counts = cost.block_parameters(E)
        return counts["feed-forward"] / counts["total"]

    assert share(16) == pytest.approx(0.649, abs=5e-4)
    assert share(10_000) == pytest.approx(2 / 3, abs=1e-4)


# --- operations ----------------------------------------------------------------------------------


@given(
    st.integers(0, 9), st.integers(0, 9), st.booleans(), st.one_of(st.none(), st.integers(1, 11))
)
def test_pairs_are_the_ones_of_the_mask(T: int, S: int, causal: bool, window: int | None) -> None:
    if causal:
        mask = causal_mask(T, S, window)
    else:
        distance = torch.arange(S - T, S)[:, None] - torch.arange(S)
        mask = distance.abs() < (100 if window is None else window)
    assert cost.visible_pairs(T, S, causal=causal, window=window) == int(mask.sum())


def test_a_window_wider_than_any_text_hides_nothing() -> None:
    assert cost.visible_pairs(4, causal=True, window=10**30) == 10


def counted(call) -> int:
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def test_operations_are_those_that_torch_counts() -> None:
    T, E, V, L = 9, 12, 11, 2
    config = TransformerConfig(vocab_size=V, E=E, L=L, H=3, hidden=20, max_length=T)
    model, tokens = Transformer(config), torch.zeros(1, T, dtype=torch.int64)
    expected = cost.model_flops(T, vocab_size=V, E=E, L=L, hidden=20)
    # The readable path makes the weights twice: once for the output, once to show them.
    extra = L * 2 * T * T * E
    assert counted(lambda: model.forward_with_maps(tokens)) == expected["total"] + extra
    assert expected["output"] == 2 * T * E * V


def test_one_head_costs_what_torch_counts() -> None:
    T, D, Dv, C = 7, 3, 5, 4
    q, k, v, f = torch.randn(T, D), torch.randn(T, D), torch.randn(T, Dv), torch.randn(T, C)
    assert cost.softmax_flops(T, D=D, Dv=Dv) == counted(lambda: (q @ k.T) @ v)
    assert cost.linear_flops(T, C=C, Dv=Dv) == counted(lambda: f @ (f.T @ v))


def test_the_crossings_of_the_ledger() -> None:
    E = 64
    parts = cost.block_flops(6 * E, E=E)
    assert 2 * parts["attention"] == parts["total"]
    assert cost.softmax_flops(64, D=64) == cost.linear_flops(64, C=64, Dv=64)
    C, D, Dv = 1 + 16 + 16 * 16, 16, 64
    T = 2 * C * Dv / (D + Dv)
    assert cost.softmax_flops(round(T * 10), D=D, Dv=Dv) == pytest.approx(
        10 * cost.linear_flops(round(T * 10), C=C, Dv=Dv), rel=1e-3
    )
    assert cost.block_flops(10, E=4, pairs=cost.visible_pairs(10, causal=True))["attention"] == (
        4 * 4 * 55
    )


# --- bytes ---------------------------------------------------------------------------------------


def test_bytes_of_the_ledger() -> None:
    assert cost.score_bytes(128, H=8) == cost.MIB // 2
    assert cost.score_bytes(16_384, H=8) == 8_192 * cost.MIB
    assert cost.score_bytes(3, 5, H=2, itemsize=2) == torch.zeros(2, 3, 5).half().nbytes
    assert 5_000 * cost.cache_bytes_per_token(L=50, kv_heads=20, D=1_000) == 20_000_000_000
    assert cost.state_bytes(L=1, H=1, C=64, Dv=64) == 16_640


def test_the_cache_formula_is_what_a_model_keeps() -> None:
    config = TransformerConfig(vocab_size=11, E=12, L=2, H=3, D=5, Dv=2)
    _, cache = Transformer(config).decode(torch.zeros(1, 7, dtype=torch.int64))
    per_token = cost.cache_bytes_per_token(L=2, kv_heads=3, D=5, Dv=2, itemsize=4)
    assert cache.nbytes() == 7 * per_token


def test_published_shapes() -> None:
    sizes = {shape.name: shape.bytes_per_token() for shape in cost.CACHE_SHAPES}
    assert sizes["GPT-2 small"] == 36_864
    assert sizes["Llama 2 7B"] == 4 * sizes["Llama 3 8B"] == 524_288
    assert sizes["Falcon 7B"] == 8_192
    assert sizes["DeepSeek-V2"] == 69_120


def test_traffic_is_what_a_walk_over_the_tiles_moves() -> None:
    T, D, Dv, tile = 10, 3, 5, 4
    moved = 0
    for start in range(0, T, tile):
        rows = min(tile, T - start)
        moved += rows * D + T * D + T * Dv + rows * Dv
    assert cost.tiled_traffic(T, D=D, Dv=Dv, tile=tile, itemsize=2) == 2 * moved
    scores = T * T
    reads = (T * D + T * D) + scores + (scores + T * Dv)
    writes = scores + scores + T * Dv
    assert cost.naive_traffic(T, D=D, Dv=Dv, itemsize=4) == 4 * (reads + writes)
    for tile in (64, 128):
        gain = cost.naive_traffic(2**17, D=64) / cost.tiled_traffic(2**17, D=64, tile=tile)
        assert gain == pytest.approx(4 * tile / (64 + 64), rel=0.01)


def test_with_a_cache_keys_and_values_come_once() -> None:
    T, D, Dv, tile = 300, 8, 24, 64
    once = T * (D + Dv) + T * (D + Dv)  # q and output, k and v
    assert cost.tiled_traffic(T, D=D, Dv=Dv, tile=tile, itemsize=2, cached=True) == 2 * once
    assert cost.tiled_traffic(T, D=D, Dv=Dv, tile=T) == 2 * once  # one tile reads nothing again
    for tile in (16, 64, 512):
        without = cost.tiled_traffic(T, D=D, Dv=Dv, tile=tile)
        assert cost.tiled_traffic(T, D=D, Dv=Dv, tile=tile, cached=True) <= without
    assert cost.tiled_traffic(0, D=D, cached=True) == 0


def test_the_chunk_form_does_the_operations_that_its_four_products_do() -> None:
    C, Dv, B, G = 6, 10, 8, 3
    Q, K, V = torch.randn(G, B, C), torch.randn(G, B, C), torch.randn(G, B, Dv)
    S = torch.randn(G, C, Dv)
    with FlopCounterMode(display=False) as counter:
        (Q @ K.mT) @ V + Q @ S, K.mT @ V
    for T in (G * B, G * B - B + 1):  # a ragged chunk is computed whole
        assert cost.chunk_flops(T, C=C, Dv=Dv, chunk=B) == counter.get_total_flops()
    assert cost.chunk_flops(0, C=C, Dv=Dv) == 0
    squares = 2 * G * B * B * (C + Dv)
    whole = cost.chunk_flops(G * B, C=C, Dv=Dv, chunk=B)
    assert whole - squares == cost.linear_flops(G * B, C=C, Dv=Dv)


def test_the_chunk_form_moves_what_its_two_launches_name() -> None:
    T, D, Dv, C, B = 21, 3, 5, 7, 8
    moved = 0
    for start in range(0, T, B):
        rows = min(B, T - start)
        moved += 2 * rows * (D + Dv) + 4 * C * (Dv + 1)  # k, v in; S, z out
        moved += 4 * C * (Dv + 1) + 2 * rows * (2 * D + Dv) + 2 * rows * Dv  # all in; output out
    assert cost.chunk_traffic(T, D=D, Dv=Dv, C=C, chunk=B, itemsize=2) == moved
    same = cost.chunk_traffic(T, D=D, Dv=Dv, C=D, chunk=B)
    assert cost.chunk_traffic(T, D=D, Dv=Dv, chunk=B) == same
    assert cost.chunk_traffic(0, D=D, Dv=Dv) == 0


def test_a_step_moves_its_whole_state_twice() -> None:
    D, Dv, C = 3, 5, 7
    state = cost.state_bytes(L=1, H=1, C=C, Dv=Dv)
    tokens = D + D + Dv + Dv  # q, k, v, output
    assert cost.step_traffic(D=D, Dv=Dv, C=C, itemsize=2) == 2 * state + 2 * tokens
    assert cost.step_flops(C=C, Dv=Dv) == cost.linear_flops(1, C=C, Dv=Dv) == 4 * C * Dv
    assert cost.step_flops(C=64, Dv=64) / cost.step_traffic(D=64, Dv=64) < 0.5


def test_a_small_tile_waits_and_a_large_one_works() -> None:
    # One 16×8×16 instruction is 2,048 multiplications, by hand; four steps for a depth of 64.
    assert cost.tile_cycles(16, 16, 64, per_cycle=2_048, latency=33) == 4 * 33
    assert cost.tile_cycles(128, 128, 64, per_cycle=2_048, latency=33) == 4 * 8 * 16
    assert cost.tile_cycles(128, 128, 64, per_cycle=1_024, latency=33) == 4 * 2 * 8 * 16
    assert cost.tile_cycles(17, 9, 17, latency=0) == cost.tile_cycles(32, 16, 32, latency=0) == 8
    flat = [n for n in range(16, 512, 16) if cost.tile_cycles(n, n, 64) == 132]
    assert max(flat) == 64 <= (33 * 2_048 / 16) ** 0.5 < 80


def test_the_roofline_has_a_slope_and_a_flat_part() -> None:
    machine = cost.Machine("toy", flops=100.0, bandwidth=10.0)
    assert machine.ridge == 10
    assert [machine.attainable(i) for i in (1, 10, 50)] == [10, 100, 100]
    assert machine.seconds(flops=200, nbytes=10) == 2
    assert machine.seconds(flops=10, nbytes=200) == 20
    assert all(40 < gpu.ridge < 500 for gpu in cost.GPUS)


# --- crossings -----------------------------------------------------------------------------------


@given(*(st.integers(1, 60) for _ in range(3)))
def test_at_the_crossing_both_cost_the_same(D: int, C: int, Dv: int) -> None:
    at = cost.crossing_lengths(D=D, C=C, Dv=Dv)
    # Scaled so that every length is a whole number.
    n = D + Dv
    linear = cost.linear_flops(1, C=C, Dv=Dv)
    assert at["full square"] * cost.softmax_flops(1, D=D, Dv=Dv) == pytest.approx(linear)
    T = at["half square"]
    assert T * (T + 1) / 2 * 2 * n == pytest.approx(linear * T)
    assert at["memory"] * n == pytest.approx(C * Dv + C)


def test_crossings_that_the_notebook_names() -> None:
    square = cost.crossing_lengths(D=64)
    assert (square["full square"], square["half square"]) == (64, 127)
    assert square["memory"] == 32.5
    assert cost.crossing_lengths(D=16, C=273, Dv=64)["full square"] == pytest.approx(436.8)
    half = cost.crossing_lengths(D=64, cache_itemsize=2)["memory"]
    assert half == 2 * square["memory"] == cost.crossing_lengths(D=64, state_itemsize=8)["memory"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cost.block_parameters(0), "E: expected a whole number"),
        (lambda: cost.block_parameters(4, hidden=-1), "hidden: expected"),
        (lambda: cost.model_parameters(vocab_size=0, E=4, L=1), "vocab_size: expected"),
        (lambda: cost.block_flops(-1, E=4), "T: expected"),
        (lambda: cost.visible_pairs(4, window=0), "window: expected"),
        (lambda: cost.cache_bytes_per_token(L=1, kv_heads=0, D=4), "kv_heads: expected"),
        (lambda: cost.tiled_traffic(4, D=4, tile=0), "tile: expected"),
        (lambda: cost.tiled_traffic(4, D=4, cached=1), "cached: expected"),
        (lambda: cost.linear_flops(4, C=0, Dv=4), "C: expected"),
        (lambda: cost.chunk_flops(4, C=4, Dv=4, chunk=0), "chunk: expected"),
        (lambda: cost.chunk_flops(-1, C=4, Dv=4), "T: expected"),
        (lambda: cost.chunk_traffic(4, D=0, Dv=4), "D: expected"),
        (lambda: cost.step_traffic(D=4, Dv=0), "Dv: expected"),
        (lambda: cost.tile_cycles(0, 4, 4), "rows: expected"),
        (lambda: cost.crossing_lengths(D=0), "D: expected"),
        (lambda: cost.tile_cycles(4, 4, 4, latency=float("nan")), "latency: expected"),
        (lambda: cost.visible_pairs(4, causal="no"), "causal: expected True or False"),
        (lambda: cost.block_flops(4, E=4, pairs=-1), "pairs: expected"),
        (lambda: cost.softmax_flops("4", D=4), "T: expected"),
        (lambda: cost.softmax_flops(4, D=4, pairs=1.5), "pairs: expected"),
        (lambda: cost.linear_flops("4", C=4, Dv=4), "T: expected"),
        (lambda: cost.score_bytes("4"), "T: expected"),
        (lambda: cost.score_bytes(4, H=0), "H: expected"),
        (lambda: cost.score_bytes(4, -1), "S: expected"),
        (lambda: cost.cache_bytes_per_token(L=1, kv_heads=1, D=4, Dv=0), "Dv: expected"),
        (lambda: cost.state_bytes(L=1, H=1, C=4, Dv=4, itemsize="4"), "itemsize: expected"),
        (lambda: cost.naive_traffic(-1, D=4), "T: expected"),
        (lambda: cost.naive_traffic(4, D=4, Dv=0), "Dv: expected"),
        (lambda: cost.tiled_traffic(4, D=4, itemsize=0), "itemsize: expected"),
        (lambda: cost.tiled_traffic(-1, D=4), "T: expected"),
        (lambda: cost.chunk_traffic(4, D=4, Dv=4, itemsize=-1), "itemsize: expected"),
        (lambda: cost.step_traffic(D=4, Dv=4, itemsize=1.5), "itemsize: expected"),
        (lambda: cost.crossing_lengths(D=4, C=0), "C: expected"),
        (lambda: cost.crossing_lengths(D=4, cache_itemsize=0), "cache_itemsize: expected"),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
