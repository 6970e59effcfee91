"""Each scheme against its formula written another way, and the property it was made for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course.attention import softmax_attention
from course.positions import alibi_bias, alibi_slopes, apply_rope, sinusoids
from tests.drawing import NoDouble, draw


@pytest.mark.parametrize("offset", [0, 3, 1000])
def test_sinusoids_follow_the_formula_entry_by_entry(offset: int) -> None:
    T, E = 5, 6
    expected = [
        [
            (math.sin if column % 2 == 0 else math.cos)(
                (offset + t) / 10_000 ** (2 * (column // 2) / E)
            )
            for column in range(E)
        ]
        for t in range(T)
    ]
    got = sinusoids(T, E, offset=offset)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.numpy(), np.array(expected), atol=1e-7)


def test_a_shift_turns_every_sinusoid_by_the_same_angle_wherever_it_starts() -> None:
    table = sinusoids(60, 8).double().unflatten(-1, (4, 2))
    waves = torch.view_as_complex(table)  # sin + 1j·cos
    turns = waves[7:] / waves[:-7]
    assert (turns - turns[:1]).abs().max() < 1e-5


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 9),
    st.integers(1, 5),
    st.integers(0, 50_000),
    st.sampled_from([100.0, 10_000.0]),
)
def test_rope_is_a_product_with_a_complex_number(
    B: int, H: int, T: int, pairs: int, offset: int, base: float
) -> None:
    x = draw(B, H, T, 2 * pairs).numpy()
    place = np.arange(offset, offset + T)[:, None]
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(
        1j * place * base ** (-np.arange(pairs) * 2 / (2 * pairs))
    )
    got = apply_rope(torch.from_numpy(x), offset=offset, base=base).numpy()
    np.testing.assert_allclose(got[..., 0::2], turned.real, atol=1e-9)
    np.testing.assert_allclose(got[..., 1::2], turned.imag, atol=1e-9)


def test_rope_scores_depend_on_the_distance_only() -> None:
    q, k = draw(2, 3, 5, 8), draw(2, 3, 5, 8, seed=1)

    def scores(shift: int) -> torch.Tensor:
        return apply_rope(q, offset=shift) @ apply_rope(k, offset=shift).transpose(-1, -2)

    assert (scores(0) - scores(1_000)).abs().max() < 1e-9
    moved = apply_rope(q, offset=1) @ apply_rope(k).transpose(-1, -2)
    assert (scores(0) - moved).abs().max() > 0.1


def test_rope_takes_positions_one_by_one_and_keeps_lengths_and_dtype() -> None:
    x = draw(2, 3, 4, 6)
    places = torch.tensor([9, 0, 4, 4])
    got = apply_rope(x, positions=places)
    for t, place in enumerate(places.tolist()):
        assert torch.equal(got[:, :, t : t + 1], apply_rope(x[:, :, t : t + 1], offset=place))
    assert (got.norm(dim=-1) - x.norm(dim=-1)).abs().max() < 1e-12
    assert apply_rope(x.bfloat16()).dtype == torch.bfloat16
    assert torch.equal(apply_rope(x)[:, :, 0], x[:, :, 0])


def test_rope_keeps_its_angles_at_far_places() -> None:
    x = draw(1, 1, 1, 4)
    far = apply_rope(x.float(), offset=1_000_000).double()
    assert (far - apply_rope(x, offset=1_000_000)).abs().max() < 1e-6


def test_rope_lets_the_gradient_through() -> None:
    x = draw(1, 2, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: apply_rope(x, offset=2), x)


def test_alibi_slopes_of_the_paper() -> None:
    assert alibi_slopes(8).tolist() == [2.0**-h for h in range(1, 9)]
    assert alibi_slopes(1).tolist() == [2.0**-8]
    # 12 heads: the eight of 8 heads, then every second one of 16 heads.
    expected = [2.0**-h for h in range(1, 9)] + [2 ** (-h / 2) for h in (1, 3, 5, 7)]
    assert alibi_slopes(12).tolist() == pytest.approx(expected)
    assert len(alibi_slopes(3)) == 3


@pytest.mark.parametrize(("T", "S"), [(4, 4), (2, 5), (5, 2), (1, 1), (0, 3)])
def test_alibi_bias_is_minus_slope_times_distance(T: int, S: int) -> None:
    H = 3
    bias = alibi_bias(H, T, S)
    assert bias.shape == (H, T, S)
    for h, t, s in np.ndindex(H, T, S):
        place = S - T + t  # the last query stands at the last key
        assert bias[h, t, s].item() == pytest.approx(-alibi_slopes(H)[h].item() * abs(place - s))


def test_alibi_bias_of_a_square_is_the_corner_of_a_longer_one() -> None:
    assert torch.equal(alibi_bias(4, 6), alibi_bias(4, 9)[:, :6, :6])


def test_positions_work_where_there_is_no_float64() -> None:
    """Angles are made on the CPU, or, from meta tensors, which have no numbers, in float32."""
    x = torch.empty(1, 2, 6, 8, device="meta")
    with NoDouble():
        assert apply_rope(x, offset=3).shape == x.shape
        places = torch.arange(6, device="meta")
        assert apply_rope(x.bfloat16(), positions=places).dtype == torch.bfloat16
        with torch.device("meta"):
            assert sinusoids(6, 8).is_meta and alibi_bias(2, 6).is_meta
    assert sinusoids(6, 8, device="meta").is_meta and alibi_bias(2, 6, device="meta").is_meta


def test_rope_turns_half_precision_in_float32() -> None:
    """Rounded once: the products of a turn are not rounded before they are added."""
    for dtype in (torch.float16, torch.bfloat16):
        x = draw(2, 3, 40, 8).to(dtype)
        exact = apply_rope(x.double())
        error = (apply_rope(x).double() - exact).abs()
        assert (error <= 0.51 * torch.finfo(dtype).eps * exact.abs() + 1e-6).all()


@pytest.mark.parametrize("impl", ["torch", "reference"])
def test_alibi_s_penalties_are_not_rounded_for_half_precision(impl: str) -> None:
    """bfloat16 has no 257: the last keys but one would get the weights of their neighbours."""
    T, D = 400, 4
    q, k = torch.zeros(1, 1, 1, D).bfloat16(), torch.zeros(1, 1, T, D).bfloat16()
    v = torch.eye(T).expand(1, 1, T, T).bfloat16()
    slope = alibi_slopes(1).item()
    out = softmax_attention(q, k, v, bias=alibi_bias(1, 1, T), impl=impl)[0, 0, 0].double()
    wanted = torch.softmax(-slope * torch.arange(T - 1, -1, -1).double(), 0)
    assert (out / wanted - 1).abs().max() <= torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sinusoids(3, 5), "E: expected an even width"),
        (lambda: sinusoids(-1, 4), "T: expected a whole number of at least 0"),
        (lambda: apply_rope(draw(2, 3, 4)), "x: expected 4 axes"),
        (lambda: apply_rope(draw(1, 2, 3, 5)), "D: expected an even width"),
        (lambda: apply_rope(torch.ones(1, 2, 3, 4, dtype=torch.int64)), "x: expected floating"),
        (
            lambda: apply_rope(draw(1, 2, 3, 4), positions=torch.arange(2)),
            r"positions: expected \[T\] = \[3\], got \[2\]",
        ),
        (lambda: apply_rope(draw(1, 2, 3, 4), positions=[0, 1, 2]), "positions: expected a tens"),
        (lambda: apply_rope(draw(1, 2, 3, 4), offset=0.5), "offset: expected a whole number"),
        (lambda: apply_rope(draw(1, 2, 3, 4), base=0), "base: expected a finite number above 0"),
        (lambda: sinusoids(3, 4, base=-2.0), "base: expected a finite number above 0, got -2.0"),
        (lambda: sinusoids(3, 4, offset="1"), "offset: expected a whole number, got '1'"),
        (lambda: alibi_slopes(0), "H: expected a whole number of at least 1"),
        (lambda: alibi_bias(2, 3, -1), "S: expected a whole number of at least 0"),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
