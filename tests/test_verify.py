"""``verify`` must not print ✓ for anything false, ``show`` must print the same line everywhere.

What ``verify`` prints behind ≈ is what was measured; the rest of its line is the same everywhere.
"""

from __future__ import annotations

import contextlib
import io
import math
import operator
import re
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course.verify import (
    Interval,
    VerificationError,
    above,
    at_least,
    at_most,
    below,
    show,
    verify,
)

inf, nan = math.inf, math.nan


def line(capsys, call, *arguments, **options) -> str:
    call("it", *arguments, **options)
    out, err = capsys.readouterr()
    assert err == ""
    return out.rstrip("\n")


TRUE = [
    (3, 3, {}, "✓ it: exactly 3"),
    (True, True, {}, "✓ it: exactly True"),
    (np.bool_(False), False, {}, "✓ it: exactly False"),
    (torch.tensor(True), True, {}, "✓ it: exactly True"),
    (124_439_808, 124_439_808, {}, "✓ it: exactly 124,439,808"),
    (torch.tensor(124_439_808), 124_439_808, {}, "✓ it: exactly 124,439,808"),
    (2.0, 2, {}, "✓ it: exactly 2"),
    (0.1, 0.1, {}, "✓ it: exactly 0.1"),
    (1 / 3, 1 / 3, {}, "✓ it: exactly 0.3333333333333333"),
    (-0.0, 0.0, {}, "✓ it: exactly 0"),
    (0, -0.0, {}, "✓ it: exactly 0"),
    (inf, inf, {}, "✓ it: exactly inf"),
    (1e300, 1e300, {}, "✓ it: exactly 1e+300"),
    (2**63 - 1, 2**63 - 1, {}, "✓ it: exactly 9,223,372,036,854,775,807"),
    (2**64 - 1, 2**64 - 1, {}, "✓ it: exactly 18,446,744,073,709,551,615"),
    # exact arrays: printed if they are short
    ([7, 7, 7], 7, {}, "✓ it: exactly 7, each of 3"),
    ([1, 2], [1, 2], {}, "✓ it: exactly [1, 2]"),
    ([1, 2], (1.0, 2.0), {}, "✓ it: exactly [1, 2]"),
    (torch.eye(2), torch.eye(2), {}, "✓ it: exactly [[1, 0], [0, 1]]"),
    ([0.25, -0.0], [0.25, 0], {}, "✓ it: exactly [0.25, 0]"),
    ([-inf, 12_345], [-inf, 12_345], {}, "✓ it: exactly [-inf, 12,345]"),
    (torch.ones(2, dtype=torch.bfloat16), torch.ones(2), {}, "✓ it: exactly [1, 1]"),
    (torch.ones(2, dtype=torch.half), [1, 1], {}, "✓ it: exactly [1, 1]"),
    (torch.ones(2, requires_grad=True), [1, 1], {}, "✓ it: exactly [1, 1]"),
    (torch.ones(1, dtype=torch.float8_e5m2), [1], {}, "✓ it: exactly [1]"),
    ([torch.ones(2, requires_grad=True).bfloat16()], [[1, 1]], {}, "✓ it: exactly [[1, 1]]"),
    ((np.float16(1), torch.tensor(2)), [1, 2], {}, "✓ it: exactly [1, 2]"),
    (torch.eye(2).to_sparse(), torch.eye(2), {}, "✓ it: exactly [[1, 0], [0, 1]]"),
    ([1 / 3, 2], [1 / 3, 2], {}, "✓ it: all 2 entries equal"),
    (torch.ones(13), np.ones(13), {}, "✓ it: all 13 entries equal"),
    (np.arange(2000), np.arange(2000), {}, "✓ it: all 2,000 entries equal"),
    ([True] * 16, [True] * 16, {}, "✓ it: exactly True, each of 16"),
    ([[False], [False]], False, {}, "✓ it: exactly False, each of 2"),
    ([True, False], torch.tensor([True, False]), {}, "✓ it: exactly [True, False]"),
    (np.arange(13) > 5, np.arange(13) > 5, {}, "✓ it: all 13 truth values as expected"),
    # a tolerance, in its own unit; a single number, or one number expected, is printed too
    (1 + 1e-7, 1.0, {"atol": 1e-6}, "✓ it: ≈ 1.00, |Δ| ≈ 1.0e-07 ≤ 1e-06"),
    (1e-7, 0, {"atol": 1e-6}, "✓ it: |Δ| ≈ 1.0e-07 ≤ 1e-06"),
    (1e-7, torch.tensor(0), {"atol": 1e-6}, "✓ it: ≈ 1.00e-07, |Δ| ≈ 1.0e-07 ≤ 1e-06"),
    ([0.4, 0.6], 0.5, {"atol": 0.2}, "✓ it: ≈ 0.400 … 0.600, max |Δ| ≈ 0.10 ≤ 0.2"),
    ([0.4, 0.6], [0.5, 0.5], {"atol": 0.2}, "✓ it: max |Δ| ≈ 0.10 ≤ 0.2"),
    (torch.full((2, 2), 0.5), 0.5, {"atol": 0}, "✓ it: ≈ 0.500 … 0.500, max |Δ| ≈ 0 ≤ 0"),
    (np.uint8([3]), np.uint8([5]), {"atol": 2}, "✓ it: |Δ| ≈ 2.0 ≤ 2"),
    (4e6, 0, {"atol": 5e6}, "✓ it: |Δ| ≈ 4,000,000 ≤ 5,000,000"),
    (100.8, 100, {"rtol": 0.01}, "✓ it: ≈ 101, |Δ|/|expected| ≈ 0.0080 ≤ 0.01"),
    ([50.1, 0], [50, 0], {"rtol": 0.01}, "✓ it: max |Δ|/|expected| ≈ 0.0020 ≤ 0.01"),
    (
        [101, 100],
        [100, 100],
        {"rtol": 0.01, "atol": 1},
        "✓ it: max |Δ|/(1 + 0.01·|expected|) ≈ 0.50 ≤ 1",
    ),
    (0, 0, {"rtol": 0.0, "atol": 0.0}, "✓ it: |Δ|/(0 + 0·|expected|) ≈ 0 ≤ 1"),
    (0.0996, 0, {"atol": 0.0998}, "✓ it: |Δ| ≈ 0.0996 ≤ 0.0998"),
    (-inf, -inf, {"atol": 1.0}, "✓ it: ≈ -inf, |Δ| ≈ 0 ≤ 1"),
    ([inf, 2], [inf, 1], {"rtol": 1}, "✓ it: max |Δ|/|expected| ≈ 1.0 ≤ 1"),
    # a band: three digits, or as many as it takes to see that the number lies inside
    (1.3366, Interval(1.1, 1.7), {}, "✓ it: ≈ 1.34, in [1.1, 1.7]"),
    ([1.119, 1.614, 1.3], Interval(1.1, 1.7), {}, "✓ it: ≈ 1.12 … 1.61, in [1.1, 1.7]"),
    ([[0.25]], Interval(0, 1), {}, "✓ it: ≈ 0.250, in [0, 1]"),
    ([0.25, 0.25], Interval(0, 1), {}, "✓ it: ≈ 0.250 … 0.250, in [0, 1]"),
    (0.957504, Interval(0.9574, 0.9576), {}, "✓ it: ≈ 0.9575, in [0.9574, 0.9576]"),
    (1.99999999, Interval(1, 1.99999999), {}, "✓ it: ≈ 1.99999999, in [1, 1.99999999]"),
    (10_012, Interval(10_000, 10_020), {}, "✓ it: ≈ 10,012, in [10,000, 10,020]"),
    (10_012.4, Interval(10_000, 10_020), {}, "✓ it: ≈ 10,000, in [10,000, 10,020]"),
    (1234, Interval(1000, 2000.5), {}, "✓ it: ≈ 1,234, in [1,000, 2,000.5]"),
    (3, Interval(-0.0, inf), {}, "✓ it: ≈ 3, in [0, inf]"),
    (-0.0, Interval(-1, 1), {}, "✓ it: ≈ 0, in [-1, 1]"),
    (-0.00012345, Interval(-1, 1), {}, "✓ it: ≈ -0.000123, in [-1, 1]"),
    (1234567.0, Interval(0, 1e9), {}, "✓ it: ≈ 1,230,000, in [0, 1,000,000,000]"),
    (1.234e15, Interval(0, 1e16), {}, "✓ it: ≈ 1.23e+15, in [0, 1e+16]"),
    # a relation: a typed number is a bound and strict, all else is measured
    (torch.tensor(0.32), above(0.3), {}, "✓ it: ≈ 0.320 > 0.3"),
    (0.32, above(torch.tensor(0.3046)), {}, "✓ it: ≈ 0.320 > ≈ 0.305"),
    (2.0, above(1 / 3), {}, "✓ it: ≈ 2.00 > ≈ 0.333"),
    (100_489, above(100_000), {}, "✓ it: ≈ 100,489 > 100,000"),
    (0.3, below(0.32), {}, "✓ it: ≈ 0.300 < 0.32"),
    (5, at_least(5), {}, "✓ it: ≈ 5 ≥ 5"),
    (np.int64(5), at_most(np.int64(5)), {}, "✓ it: ≈ 5 ≤ ≈ 5"),
    (1.00001, above(1), {}, "✓ it: ≈ 1.00001 > 1"),
    (0.32039, above(torch.tensor(0.32011)), {}, "✓ it: ≈ 0.3204 > ≈ 0.3201"),
    (0.12345, at_most(0.123451), {}, "✓ it: ≈ 0.123 ≤ 0.123451"),
    ([0.5, 0.4, 0.9], above(0.3), {}, "✓ it: ≈ 0.400 … 0.900 > 0.3"),
    ([0.5, 0.4, 0.9], above(torch.tensor(0.3)), {}, "✓ it: ≈ 0.400 … 0.900 > ≈ 0.300"),
    ([5.0, 0.7], above([0.3, 0.6]), {}, "✓ it: ≈ 0.700 > ≈ 0.600, the closest of 2 pairs"),
    (0.2, below([0.3, 0.6]), {}, "✓ it: ≈ 0.200 < ≈ 0.300, the closest of 2 pairs"),
    ([0.2], below([0.3]), {}, "✓ it: ≈ 0.200 < ≈ 0.300"),
    (2**53 + 1, above(2**53), {}, "✓ it: ≈ 9,007,199,254,740,993 > 9,007,199,254,740,992"),
]


@pytest.mark.parametrize(("got", "expected", "options", "text"), TRUE)
def test_a_true_claim_prints_one_stable_line(capsys, got, expected, options, text):
    assert line(capsys, verify, got, expected, **options) == text


FALSE = [
    (1, 2, {}),
    (1, 1 + 1e-15, {}),
    # NaN and infinity
    (nan, nan, {}),
    (nan, 0, {"atol": 1e9}),
    (np.ma.array([1, 2], mask=[False, True]), [1, 2], {}),  # what is masked is no number
    (0, nan, {"atol": 1e9}),
    ([0, nan], Interval(-inf, inf), {}),
    (inf, Interval(0, inf), {}),
    ([-inf, 0], Interval(-inf, 0), {}),
    (nan, above(0), {}),
    (inf, above(0), {}),
    (0, below(np.float64(inf)), {}),
    (-inf, at_most(0), {}),
    (0, above(nan), {}),
    # relations
    (1, above(1), {}),
    (1, below(1), {}),
    (1, at_least(1.0000001), {}),
    (1, at_most(0.9999999), {}),
    ([2, 1], above(1), {}),
    ([2, 1], above([1, 1]), {}),
    (1, above([0, 1]), {}),
    (2**53 + 1, at_most(2**53), {}),
    ([1, 2, 3], above([0, 0]), {}),
    (True, above(0), {}),
    (1, above(False), {}),
    ([], above(0), {}),
    (1, above([]), {}),
    (inf, 0, {"atol": 1e300}),
    (0, inf, {"rtol": 1e-3}),  # rtol · ∞ allows everything
    (0, -inf, {"rtol": 1e-3}),
    (-inf, inf, {"rtol": 2.0}),
    (inf, -inf, {"atol": 1.0}),
    # shapes
    (1, [1, 1, 1], {}),
    ([1], [1, 1, 1], {}),
    ([1, 1, 1], [1], {}),
    (np.ones((2, 3)), np.ones((3, 2)), {}),
    (np.ones((2, 3)), np.ones(3), {}),
    (np.ones((2, 1)), np.ones((2, 3)), {}),
    (np.ones((1, 2)), np.ones(2), {}),
    # nothing at all
    ([], 5, {}),
    ([], [], {}),
    ([], Interval(0, 1), {}),
    (torch.ones(0, 3), torch.ones(0, 3), {"atol": 1}),
    (torch.ones(0, 3), torch.ones(3, 0), {}),
    # integers that wrap around or do not fit a float
    (np.int8(100), np.int8(-100), {"atol": 60}),
    (np.array([100], np.int8), np.array([-100], np.int8), {"atol": 60}),
    (np.array([-(2**63)]), np.array([2**63 - 1]), {"atol": 10}),
    (np.array([0], np.uint8), np.array([255], np.uint8), {"atol": 1}),
    (np.array([0], np.uint64), np.array([1], np.uint64), {}),
    (2**53 + 1, 2**53, {}),
    (2**53 + 1, float(2**53), {}),
    (float(2**53), 2**53 + 1, {}),
    (torch.tensor([2**53 + 1]), torch.tensor([2.0**53], dtype=torch.float64), {}),
    (2**64 - 1, -1, {}),
    (2**64 - 1, 2**64 - 2, {}),
    (2**53 + 1, Interval(0, 2.0**53), {}),
    # float32 is not float64
    (np.float32(0.1), 0.1, {}),
    (torch.tensor(0.1), 0.1, {}),
    (torch.tensor([0.1]), Interval(0, 0.1), {}),
    (np.array([3e38], np.float32), np.array([-3e38], np.float32), {"atol": 1e38}),
    (torch.tensor([1.0 + 2**-7], dtype=torch.bfloat16), 1.0, {}),
    (np.array([60000], np.float16), np.array([-60000], np.float16), {"atol": 100}),
    # truth values are not numbers
    (1, True, {}),
    (True, 1, {}),
    (1.0, True, {"atol": 1}),
    (True, Interval(0, 1), {}),
    ([True, False], [True, True], {}),
    (True, False, {"atol": 0.5}),
    # just outside
    (1.0 + 2e-6, 1.0, {"atol": 1e-6}),
    (1.02, 1, {"rtol": 0.01}),
    (1.0000001, Interval(0, 1), {}),
    (-1e-300, Interval(0, 1), {}),
    # the bound that is printed is the bound that is held
    (1.2345, 0.0, {"atol": 1.2345}),
]


@pytest.mark.parametrize(("got", "expected", "options"), FALSE)
def test_a_false_claim_raises_and_prints_nothing(capsys, got, expected, options):
    with pytest.raises(VerificationError, match="it"):
        verify("it", got, expected, **options)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("got", "expected", "options", "words"),
    [
        (1j, 1, {}, "got: .*complex"),
        (torch.ones(2, dtype=torch.complex64), 1, {}, "got: .*complex64"),
        (torch.ones(2, device="meta"), 1, {}, "got: expected numbers in a regular shape"),
        ([torch.ones(1), torch.ones(2)], 1, {}, "got: expected numbers in a regular shape"),
        (1, np.array([1j]), {}, "expected: .*complex"),
        ("1", 1, {}, "got: .*got str"),
        (None, 1, {}, "got: .*got NoneType"),
        (1, None, {}, "expected: .*got NoneType"),
        (Interval(0, 1), 1, {}, "got: .*got Interval"),
        (2**70, 2**70, {}, "got: .*64 bits.*int"),
        ([[1, 2], [3]], 1, {}, "got: expected numbers in a regular shape"),
        (1, 1, {"atol": -1e-9}, "atol: .*finite.*-1e-09"),
        (1, 1, {"atol": nan}, "atol: .*finite.*nan"),
        (1, 1, {"atol": inf}, "atol: .*finite.*inf"),
        (1, 1, {"rtol": -1}, "rtol: .*finite.*-1"),
        (1, 1, {"rtol": inf}, "rtol: .*finite.*inf"),
        (0, Interval(0, 1), {"atol": 1}, "atol, rtol: expected none beside"),
        (1, above(0), {"rtol": 1}, "atol, rtol: expected none beside"),
        (1, above("0"), {}, "expected: .*got str"),
        (1, above(Interval(0, 1)), {}, "expected: .*got Interval"),
    ],
)
def test_what_cannot_be_compared_is_refused(capsys, got, expected, options, words):
    with pytest.raises(ValueError, match=words):
        verify("it", got, expected, **options)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("call", [verify, show])
def test_a_name_does_not_announce_a_measurement(capsys, call):
    with pytest.raises(ValueError, match="name: expected none with ≈.*e ≈ 2.7"):
        call("e ≈ 2.7", 1, 1) if call is verify else call("e ≈ 2.7", 1)
    assert capsys.readouterr().out == ""


@settings(max_examples=60)
@given(st.lists(st.floats(1e-5, 1e6), min_size=1, max_size=4), st.sampled_from("><≥≤"))
def test_what_is_printed_is_true_as_it_stands(values, sign):
    """The numbers on the line, read again, satisfy the relation on the line."""
    relation, call = {
        ">": (operator.gt, above),
        "<": (operator.lt, below),
        "≥": (operator.ge, at_least),
        "≤": (operator.le, at_most),
    }[sign]
    first, *others = (np.float64(v) for v in values)
    for other in others:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            try:
                verify("it", first, call(other))
            except VerificationError:
                assert not relation(first, other)
                continue
        left, right = re.findall(r"≈ (\S+)", out.getvalue())
        assert relation(float(left.replace(",", "")), float(right.replace(",", "")))


def test_an_interval_must_not_be_empty():
    for low, high in ((1, 0), (nan, 1), (0, nan)):
        with pytest.raises(ValueError, match="low <= high"):
            Interval(low, high)
    assert str(Interval(-0.0, 1 / 3)) == "[0, 0.3333333333333333]"


x = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("got", "expected", "options", "words"),
    [
        (1.5, 2, {}, ["1 of 1 values differ", "got 1.5, expected 2", "max |Δ| = 0.5"]),
        (True, False, {}, ["got True, expected False"]),
        (x + (x > 6), x, {}, ["5 of 12", "at index [1, 3]: got 8.0, expected 7.0", "|Δ| = 1"]),
        (
            2.0,
            Interval(0, 1),
            {},
            ["1 of 1 values lie outside", "got 2.0, expected [0, 1]", "seed"],
        ),
        (0.3, above(0.5), {}, ["1 of 1 values break the relation", "got 0.3, expected > 0.5"]),
        ([2, 1], at_most([3, 0]), {}, ["1 of 2", "them at index [1]: got 1, expected ≤ 0", "seed"]),
        ([1, 2, 3], above([0, 0]), {}, ["shapes differ: got [3], expected [2]"]),
        (x, x.T, {}, ["shapes differ: got [3, 4], expected [4, 3]", "transposed"]),
        (1, [1, 2], {}, ["shapes differ: got [], expected [2]"]),
        ([], 5, {}, ["no value at all (shape [0])", "nothing was compared"]),
        ([0.0, nan], 0, {}, ["at index [1]: got nan, expected 0", "look at nothing"]),
        (x[:3, :3], x[:3, :3].T, {}, ["the last two axes are exchanged"]),
        (x.flip(0), x, {}, ["another order"]),
        (x * 8**-0.5, x, {}, ["a constant factor of 0.3536", "scale"]),
        (x + 1e-4 * x, x, {"atol": 1e-6}, ["rounding"]),
        (x**2, x, {}, ["compute different things"]),
        (x[:3, :3], 1.0, {}, ["8 of 9", "[0, 0]", "compute different things"]),
        (inf, 1.0, {}, ["got inf, expected 1"]),
        ([1e300, 1e-300], [1e-300, 1e300], {}, ["2 of 2"]),
        (
            torch.zeros(3),
            torch.tensor([0, 0, 5e-324], dtype=torch.float64),
            {},
            ["1 of 3", "index [2]"],
        ),
        (1, True, {}, ["got 1, expected True", "a truth value compared with a number"]),
        (np.uint8([3]), np.uint8([5]), {}, ["got 3, expected 5", "max |Δ| = 2"]),
        (2**64 - 1, 0, {}, ["got 18446744073709551615, expected 0"]),
        (1, 2, {"hint": "is epsilon inside the root?"}, ["usual cause: is epsilon inside"]),
        (x, x.T, {"hint": "mind the axes"}, ["usual cause: mind the axes"]),
    ],
)
def test_a_failure_says_what_where_and_why(got, expected, options, words):
    with pytest.raises(VerificationError) as failure:
        verify("it", got, expected, **options)
    text = str(failure.value)
    assert isinstance(failure.value, AssertionError)
    assert text.startswith("it: ")
    missing = [word for word in words if word not in text]
    assert not missing, text


@settings(max_examples=60)
@given(
    st.floats(allow_nan=False, width=32),
    st.floats(allow_nan=False, width=32),
    st.floats(0, 1e30),
    st.floats(0, 1e3),
)
def test_verify_agrees_with_exact_arithmetic(a, b, atol, rtol):
    if math.isinf(a) or math.isinf(b):
        holds = a == b
    else:
        allowed = Fraction(float(f"{atol:.3g}")) + Fraction(float(f"{rtol:.3g}")) * abs(Fraction(b))
        gap = abs(Fraction(a) - Fraction(b))
        if gap and abs(gap / allowed - 1 if allowed else 1) < 1e-12:
            return  # on the very edge float64 may decide either way
        holds = gap <= allowed
    try:
        verify("it", torch.tensor(a), b, atol=atol, rtol=rtol)
    except VerificationError:
        assert not holds
    else:
        assert holds


@pytest.mark.parametrize(
    ("value", "options", "text"),
    [
        (0.123456, {}, "it: 0.123"),
        (0.123456, {"digits": 5, "drift": 1e-6}, "it: 0.12346"),
        (0.5, {}, "it: 0.5"),
        (12345.0, {}, "it: 12,300"),
        (999.9, {}, "it: 1,000"),
        (99999.9, {}, "it: 100,000"),
        (1234567.0, {}, "it: 1.23e+06"),
        (1234567.0, {"digits": 7, "drift": 1e-9}, "it: 1,234,567"),
        (1234.5, {"digits": 5, "drift": 1e-6}, "it: 1,234.5"),
        (0.00001234, {}, "it: 1.23e-05"),
        (124_439_808, {}, "it: 124,439,808"),
        (-1234, {}, "it: -1,234"),
        (-0.0, {}, "it: 0"),
        (torch.tensor(-0.0), {}, "it: 0"),
        (True, {}, "it: True"),
        (inf, {}, "it: inf"),
        (-inf, {}, "it: -inf"),
        (nan, {}, "it: nan"),
        (3.2, {"unit": "MB"}, "it: 3.2 MB"),
        (torch.tensor(0.1, dtype=torch.bfloat16), {}, "it: 0.1"),
        ([1.0, 0.25], {}, "it:\n     1  0.25"),
        ([[-0.0, 0.5], [10, 2]], {"unit": "s"}, "it: s\n    0  0.5\n   10    2"),
        ([[[1, 2]], [[3, 40]]], {}, "it:\n   1   2\n   3  40"),
        ([True, False], {}, "it:\n   True  False"),
        (torch.ones(0, 3), {}, "it: no values, shape [0, 3]"),
        (torch.ones(3, 0), {}, "it: no values, shape [3, 0]"),
    ],
)
def test_show_prints_rounded_values(capsys, monkeypatch, value, options, text):
    for authoring in ("0", "1"):
        monkeypatch.setenv("COURSE_AUTHORING", authoring)
        assert line(capsys, show, value, **options) == text


def test_show_refuses_what_it_cannot_print():
    with pytest.raises(ValueError, match="at most 400 numbers, got 401"):
        show("it", torch.ones(401))
    for value in ("text", None, 1j, torch.ones(2, dtype=torch.complex64)):
        with pytest.raises(ValueError, match="value: expected a tensor"):
            show("it", value)


@pytest.mark.parametrize("value", [0.12349999, 0.1235, [1.0, 0.12350001], torch.tensor(0.1235)])
def test_show_demands_a_guard_band_of_authors_only(capsys, monkeypatch, value):
    monkeypatch.delenv("COURSE_AUTHORING", raising=False)
    show("it", value)
    monkeypatch.setenv("COURSE_AUTHORING", "1")
    with pytest.raises(ValueError, match="rounding boundary for 3 digits"):
        show("it", value)
    show("it", value, digits=2)
    show("it", 0.1236)
    with pytest.raises(ValueError, match="rounding boundary"):
        show("it", 0.1236, drift=1e-2)
    show("it", 12_345_678, digits=1)  # whole numbers are exact


@settings(max_examples=60)
@given(st.floats(1e-6, 1e7), st.integers(1, 6))
def test_what_show_lets_pass_survives_the_drift(value, digits):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_AUTHORING", "1")
        out = io.StringIO()
        patch.setattr(sys, "stdout", out)
        try:
            show("it", value, digits=digits)
        except ValueError:
            return
        patch.delenv("COURSE_AUTHORING")
        printed = out.getvalue()
        for drift in (-0.99e-4, -3e-5, 3e-5, 0.99e-4):
            out.seek(0)
            out.truncate()
            show("it", value * (1 + drift), digits=digits)
            assert out.getvalue() == printed
        text = printed.split(": ")[1].replace(",", "")
        assert abs(float(text) - value) <= 0.5000001 * 10 ** (1 - digits) * 10 ** math.floor(
            math.log10(value) + 1e-12
        )


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "cp437"])
def test_a_console_that_is_not_utf8(monkeypatch, encoding):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    verify("Σ of φ(k)·z − 1", 1.0, 1, atol=1e-6, rtol=1e-3)
    verify("all", [0.5, 2], at_least(0.5))
    show("width × height — 文", 2.5)
    sys.stdout.flush()
    lines = raw.getvalue().decode(encoding).splitlines()
    assert lines[0].startswith("ok ")
    assert lines[0].endswith(": ~ 1.00, |d|/(1e-06 + 0.001*|expected|) ~ 0 <= 1")
    assert lines[1].endswith(": ~ 0.500 ... 2.00 >= 0.5")
    assert lines[2].endswith(": 2.5")


def test_a_stream_without_an_encoding(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    verify("it", 1, 1)
    assert out.getvalue() == "✓ it: exactly 1\n"


def test_nothing_is_changed():
    value = torch.tensor([1.0, -0.0], requires_grad=True)
    verify("it", value, [1.0, 0.0])
    show("it", value)
    assert value.requires_grad and math.copysign(1, value[1].item()) == -1
