"""What is read back from a state: leaks against products of matrices, errors against their laws.

A test that takes ``m`` asks the functions of ``course.memory``; ``tests/mutants/memory.py`` puts
wrong ones in their place, which one of these tests at least must refuse.
"""

from __future__ import annotations

import functools
import math
import statistics
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from course import memory
from course.feature_maps import get_feature_map
from course.memory import draw_keys, leak_matrix, recall_error
from tests import oracles
from tests.drawing import close


@pytest.fixture
def m() -> Any:
    return memory


def test_leaks_are_what_the_rule_leaves_of_unit_values(m: Any) -> None:
    """Write the pairs into a state by products of matrices, with unit vectors as values."""
    N, C = 7, 4
    K = draw_keys(N, C, trials=6, seed=1).view(2, 3, N, C)
    unit, one = (torch.eye(n, dtype=torch.float64).expand(2, 3, n, n) for n in (N, C))
    for decay in (1.0, 0.8):
        A = (decay * one).unsqueeze(2).expand(2, 3, N, C, C)
        _, S = oracles.written(A, K, K, unit)
        close(m.leak_matrix(K, rule="add", decay=decay), K @ S, ("add", decay))
        f = get_feature_map("elu")(K)
        _, S = oracles.written(A, f, f, torch.cat([unit, torch.ones(2, 3, N, 1)], -1))
        sums = f @ S
        wanted = sums[..., :-1] / sums[..., -1:]
        close(m.leak_matrix(f, rule="divide", decay=decay), wanted, ("divide", decay))
    for length, beta, passes in ((1.0, 1.0, 1), (1.0, 0.6, 3), (0.7, 1.3, 2)):
        k = length * K
        S = torch.zeros(2, 3, C, N, dtype=torch.float64)
        for _ in range(passes):
            A = one.unsqueeze(2) - beta * k.unsqueeze(-1) @ k.unsqueeze(-2)
            _, S = oracles.written(A, k, beta * k, unit, start=S)
        got = m.leak_matrix(k, rule="delta", beta=beta, passes=passes)
        close(got, k @ S, ("delta", beta, passes))
    for beta in (0.4, 9.0):
        wanted = oracles.attention(K, K, unit, scale=beta).weights
        close(m.leak_matrix(K, rule="softmax", beta=beta), wanted, ("softmax", beta))
    L = m.leak_matrix(K, rule="least_squares")
    for b in range(2):
        best = np.linalg.lstsq(K[b, 0].numpy(), np.eye(N), rcond=None)[0]
        close(L[b, 0], K[b, 0].numpy() @ best, "least squares")


def test_features_may_have_nothing_in_common(m: Any) -> None:
    """Products of 0 are no negative ones; a row without any feature reads nothing."""
    k = torch.tensor([[1.0, 0.0], [0.0, 0.5], [0.1, 0.1], [0.0, 0.0]])
    L = m.leak_matrix(k, rule="divide")
    wanted = [[1 / 1.1, 0, 0.1 / 1.1, 0], [0, 0.25 / 0.3, 0.05 / 0.3, 0]]
    close(L[:2], torch.tensor(wanted), "rows", 1e-6)
    assert not L[3].any()


def test_leaks_of_orthonormal_keys(m: Any) -> None:
    """Exact up to N = d. One pair more has no state that is exact: its readings have rank d."""
    k = draw_keys(6, 6, keys="orthonormal", seed=2)[0]
    for rule in ("add", "delta", "least_squares"):
        close(m.leak_matrix(k, rule=rule), torch.eye(6), rule)
    k = draw_keys(7, 6, seed=2)[0]
    best = m.leak_matrix(k, rule="least_squares")
    assert torch.linalg.matrix_rank(best) == 6
    # tr (I − L) = N − d is the least that any state leaves of Σ|reading − v|² with unit values.
    close((torch.eye(7) - best).square().sum(), 1.0, "the best state")
    for rule in ("add", "delta"):
        L = m.leak_matrix(k, rule=rule)
        assert torch.linalg.matrix_rank(L) == 6
        assert (torch.eye(7) - L).square().sum() > 1, rule


def test_a_key_without_a_feature_in_common_reads_nothing(m: Any) -> None:
    k = torch.tensor([[1.0, 0, 0], [0, 0, 0], [0, 2, 0], [0, 1, 1]]).double()
    L = m.leak_matrix(k, rule="divide")
    wanted = [[6, 0, 0, 0], [0, 0, 0, 0], [0, 0, 4, 2], [0, 0, 3, 3]]
    close(L, torch.tensor(wanted).double() / 6, "divide")


def test_leaks_in_the_limits(m: Any) -> None:
    k = draw_keys(9, 4, seed=3)[0]
    small = m.leak_matrix(k, rule="delta", beta=0.001, passes=20_000)
    close(small, m.leak_matrix(k, rule="least_squares"), "β → 0", 2e-3)
    independent = draw_keys(6, 10, seed=3)[0]
    many = m.leak_matrix(independent, rule="delta", passes=200)
    close(many, torch.eye(6), "independent keys", 1e-9)
    close(m.leak_matrix(k, rule="softmax", beta=1e-9), torch.full((9, 9), 1 / 9), "mean", 1e-8)
    close(m.leak_matrix(k, rule="softmax", beta=1e4), torch.eye(9), "sharp")
    assert m.leak_matrix(2 * k, rule="delta", passes=12).abs().max() > 1e20


@pytest.mark.parametrize("rule", ["add", "divide", "delta", "softmax", "least_squares"])
def test_leaks_in_half_precision(rule: str) -> None:
    """The dtype of the keys, and the rounding of the result alone; autocast changes nothing."""
    k = draw_keys(9, 14, seed=4)[0].abs()
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        got = leak_matrix(k.to(dtype), rule=rule)
        assert got.dtype == dtype
        wanted = leak_matrix(k.to(dtype).double(), rule=rule)
        close(got, wanted, (rule, dtype), 16 * torch.finfo(dtype).eps)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(leak_matrix(k.float(), rule=rule), got)


# The error of recall


def test_the_geometry_of_keys(m: Any) -> None:
    n, d = 5, 7
    for options in ({}, {"keys": "orthonormal"}, {"keys": "correlated", "cosine": 0.6}):
        k = m.draw_keys(n, d, trials=4000, seed=2, **options)
        assert k.shape == (4000, n, d) and k.dtype == torch.float64
        close(k.norm(dim=-1), torch.ones(4000, n), options)
        off = ~torch.eye(n, dtype=torch.bool)
        cosines = (k @ k.mT)[:, off]
        close(cosines.mean(), options.get("cosine", 0.0), options, 0.01)
        if options.get("keys") == "orthonormal":
            close(cosines, torch.zeros_like(cosines), options)
        close(k.mean((0, 1)), torch.zeros(d), options, 0.02)
        close((k.mT @ k).mean(0), n / d * torch.eye(d), options, 0.05)


def test_the_same_seed_gives_the_same_numbers(m: Any) -> None:
    stream = torch.get_rng_state()
    for options in ({}, {"values": "onehot"}, {"keys": "correlated", "cosine": 0.5}):
        ask = functools.partial(m.recall_error, 9, 4, trials=3000, Dv=3, **options)
        one = ask()
        assert torch.equal(torch.get_rng_state(), stream), "the global stream was moved"
        torch.manual_seed(12345)
        assert ask() == one, "depends on the global stream"
        torch.set_rng_state(stream)
        assert ask(seed=0) == one and ask(seed=1).mean != one.mean
        with torch.device("meta"):  # another default device would draw other numbers, here none
            assert ask() == one
    assert torch.equal(m.draw_keys(3, 4), m.draw_keys(3, 4, seed=0))
    assert torch.equal(m.draw_keys(3, 4, seed=5), m.draw_keys(3, 4, seed=5))
    assert not torch.equal(m.draw_keys(3, 4, seed=5), m.draw_keys(3, 4, seed=6))
    with torch.device("meta"):
        assert not m.draw_keys(3, 4).is_meta


def test_any_kind_of_number_gives_the_same(m: Any) -> None:
    """NumPy's int8 holds 127 and a product of sizes does not fit; a fraction is a number too."""
    small = np.int8
    one = m.recall_error(100, 90, Dv=3, trials=5, seed=7, rule="delta", beta=0.5, age=3)
    assert one == m.recall_error(
        small(100), small(90), Dv=small(3), trials=small(5), seed=small(7), rule="delta",
        beta=Fraction(1, 2), age=small(3),
    )  # fmt: skip
    options = {"trials": 5, "keys": "correlated"}
    one = m.recall_error(9, 4, cosine=0.5, decay=0.75, **options)
    other = {"cosine": np.float16(0.5), "decay": np.float16(0.75)}
    assert one == m.recall_error(9, 4, **other, **options)
    assert torch.equal(m.draw_keys(3, 4), m.draw_keys(small(3), small(4), trials=small(1)))


def test_what_is_known_of_correlated_keys(m: Any) -> None:
    alike = {"keys": "correlated", "cosine": 0.4, "trials": 3}
    assert m.recall_error(5, 4, rule="delta", age=0, passes=2, **alike).law == 0
    assert m.recall_error(5, 4, rule="delta", age=0, beta=0.5, passes=2, **alike).law is None
    assert m.recall_error(5, 3, rule="least_squares", **alike).law == pytest.approx(0.4**0.5)
    assert m.recall_error(5, 2, rule="least_squares", **alike).law is None
    near, far = (m.recall_error(5, 9, **(alike | {"cosine": c})).law for c in (0.9, 0.1))
    assert near > 2 * far


def test_features_have_length_one_but_with_divide(m: Any) -> None:
    """With independent Gaussian values the error is that of the leaks, √(Σ(L − I)²/N)."""
    n, d, trials = 6, 4, 4000

    def fm(k: Tensor) -> Tensor:
        return torch.exp(4 * k)  # of very different lengths

    f = fm(draw_keys(n, d, trials=trials, seed=3))
    unit = f / f.norm(dim=-1, keepdim=True)
    for rule, features in (("divide", f), ("add", unit), ("delta", unit)):
        off = leak_matrix(features, rule=rule) - torch.eye(n)
        wanted = (off.square().sum() / (trials * n)).sqrt()
        found = m.recall_error(n, d, trials=trials, seed=3, rule=rule, feature_map=fm)
        close(found.rms / wanted, 1.0, rule, 0.01)


def test_features_in_another_dtype_are_read_too(m: Any) -> None:
    for rule in ("add", "divide"):
        one, other = (
            m.recall_error(5, 4, trials=9, rule=rule, feature_map=fm)
            for fm in (torch.exp, lambda k: k.float().exp())
        )
        close(other[:4], one[:4], rule, 1e-6)


def test_the_width_of_the_values_matters(m: Any) -> None:
    """Two pairs: E|g| · E|v| · E(1/|v|) is ½ · 4/π in three dimensions."""
    close(m.recall_error(2, 3, Dv=3, trials=20_000).mean, 2 / math.pi, "mean", 0.02)


def test_features_have_length_1_but_where_they_are_divided(m: Any) -> None:
    def first_is_loud(k: Tensor) -> Tensor:
        loud = torch.tensor([1e6, 1.0, 1.0], dtype=k.dtype)
        return loud[:, None] * get_feature_map("elu")(k)

    def ask(feature_map: Any, **options: Any) -> Any:
        return m.recall_error(3, 4, trials=50, feature_map=feature_map, **options)

    assert ask(first_is_loud, rule="divide", age=2).mean < 1e-3
    assert ask("elu", rule="divide", age=2).mean > 0.5
    close(ask(first_is_loud).mean, ask("elu").mean, "add")


def test_as_many_draws_as_asked_for_in_batches_that_stay_small(m: Any) -> None:
    for n, d, Dv, at_once in ((500, 3, 2, 1), (2, 5000, 3, 26), (2, 3, 5000, 26), (2, 3, 4, 32768)):
        sizes: list[int] = []

        def note(k: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(len(k))
            return k

        trials = 2 * at_once + 1
        m.recall_error(n, d, Dv=Dv, trials=trials, feature_map=note)
        assert sum(sizes) == trials and max(sizes) <= at_once, (n, d, Dv, sizes)
    one = m.recall_error(5, 4)
    assert one == m.recall_error(5, 4, Dv=32, trials=2000, seed=0)


def test_known_errors(m: Any) -> None:
    """To the two digits with which they are printed: 0.46, 0.68 and 0.99 at d = 32."""
    for n, value in ((8, 0.46), (16, 0.68), (32, 0.99)):
        found = m.recall_error(n, 32)
        assert round(found.low, 2) <= value <= round(found.high, 2), (n, found)
        assert found.low < found.mean < found.high < found.mean + 0.005
        close(found.law, math.sqrt((n - 1) / 32), n)
    close(m.recall_error(8, 32, rule="softmax", beta=32**-0.5).mean, 0.915, "softmax", 2e-3)
    sharp = m.recall_error(1024, 32, rule="softmax", beta=16.0, trials=4)
    close(sharp.rms, 0.005, "sharp softmax", 3e-4)


def test_where_nothing_is_derived_there_is_no_law(m: Any) -> None:
    for options in (
        {"feature_map": "elu"},
        {"feature_map": "elu", "rule": "divide"},
        {"rule": "delta", "beta": 0.5},
        {"rule": "delta", "beta": 0.5, "age": 0},
        {"rule": "delta", "passes": 2},
        {"rule": "delta", "keys": "correlated", "cosine": 0.4},
        {"rule": "softmax"},
        {"rule": "least_squares", "keys": "correlated", "cosine": 0.4, "values": "onehot"},
        {"feature_map": torch.nn.Identity()},
        # In a plane there are two of these keys, and a draw may hold one of them alone.
        {"d": 2, "rule": "least_squares", "keys": "correlated", "cosine": 0.4},
    ):
        options = {"n_pairs": 5, "d": 4} | options
        assert m.recall_error(trials=2, **options).law is None, options


def test_the_law_of_the_gate(m: Any) -> None:
    """error² = (1 − γ^a)² + (Σγ^2j − γ^2a)/D for age a, and its mean over the ages."""
    n, d, decay = 12, 9, 0.9
    squares = [
        (1 - decay**a) ** 2 + (sum(decay ** (2 * j) for j in range(n)) - decay ** (2 * a)) / d
        for a in range(n)
    ]
    for age, square in enumerate(squares):
        law = m.recall_error(n, d, trials=2, decay=decay, age=age).law
        close(law, math.sqrt(square), age)
    law = m.recall_error(n, d, trials=2, decay=decay).law
    close(law, math.sqrt(sum(squares) / n), "all ages")


def test_the_law_of_the_delta_rule(m: Any) -> None:
    """The three averages, write by write: what is left of the value, |S|² and |qS|²."""
    n, d = 12, 5
    squares = []
    for age in range(n):
        own, reading, state = 1.0, 1.0, 0.0
        for _ in range(n - age):
            state += 1 - state / d
        for _ in range(age):
            taken = (state + 2 * reading) / (d * (d + 2))  # E (q·k)² |kS|²
            own, reading = own - own / d, reading + taken + 1 / d - 2 * reading / d
            state += 1 - state / d
        squares.append(reading - 2 * own + 1)
        close(
            m.recall_error(n, d, trials=2, rule="delta", age=age).law, math.sqrt(squares[-1]), age
        )
    law = m.recall_error(n, d, trials=2, rule="delta").law
    close(law, math.sqrt(sum(squares) / n), "all ages")
    close(m.recall_error(9, 1, trials=2, rule="delta", age=3).law, math.sqrt(2), "one dimension")


LAWS: list[dict[str, Any]] = [
    {},
    {"values": "onehot", "Dv": 7},
    {"keys": "correlated", "cosine": 0.4},
    {"keys": "correlated", "cosine": 0.4, "values": "onehot", "Dv": 3},
    {"keys": "correlated", "cosine": 0.3, "values": "onehot", "Dv": 5, "decay": 0.8, "age": 3},
    {"keys": "correlated", "cosine": 0.3, "values": "onehot", "Dv": 5, "decay": 0.8},
    {"decay": 0.9},
    {"decay": 0.9, "age": 0},
    {"decay": 0.9, "age": 4},
    {"keys": "orthonormal"},
    {"keys": "orthonormal", "decay": 0.9, "age": 4},
    {"keys": "orthonormal", "decay": 0.9, "age": 4, "values": "onehot", "Dv": 3},
    {"keys": "orthonormal", "rule": "delta", "beta": 0.5, "passes": 2},
    {"keys": "orthonormal", "rule": "least_squares"},
    {"rule": "delta", "age": 0},
    {"rule": "delta"},
    {"rule": "delta", "age": 4},
    {"rule": "delta", "age": 2, "values": "onehot", "Dv": 3},
    {"rule": "least_squares"},
    {"rule": "least_squares", "values": "onehot", "Dv": 3},
    {"keys": "correlated", "cosine": 0.4, "rule": "least_squares"},
]


def test_the_laws_hold(m: Any) -> None:
    for n, d in ((6, 9), (12, 12), (10, 5)):
        for options in LAWS:
            if options.get("keys") == "orthonormal" and n > d:
                continue
            found = m.recall_error(n, d, **{"Dv": 8, "trials": 3000, **options})
            tolerance = 0.025 * max(found.law, 0.001)
            assert abs(found.rms - found.law) <= tolerance, (n, d, options, found)


def test_a_law_beyond_the_largest_number_is_infinite(m: Any) -> None:
    options = {"keys": "orthonormal", "rule": "delta", "beta": 3.0, "passes": 2000}
    assert m.recall_error(2, 3, trials=2, **options).law == math.inf


def test_maps_and_their_price(m: Any) -> None:
    """Additive writing of 32 pairs at d = 32: elu+1 5.4, Taylor 2.3, squares minus their trace."""
    options = {"trials": 400}
    elu = m.recall_error(32, 32, feature_map="elu", **options)
    taylor = m.recall_error(32, 32, feature_map="taylor", **options)

    def traceless(k: Tensor) -> Tensor:
        i, j = torch.triu_indices(32, 32)
        squares = get_feature_map("taylor")(k)[..., 33:] * math.sqrt(2)
        return squares - (i == j) / 32

    squares = m.recall_error(32, 32, feature_map=traceless, **options)
    assert torch.linalg.matrix_rank(traceless(draw_keys(600, 32)[0])) == 527
    close(elu.rms, 5.43, "elu", 0.03)
    close(taylor.rms, 2.30, "taylor", 0.03)
    close(squares.rms, math.sqrt(31 / 527), "squares", 0.003)
    # Divided by their sum, positive features read little but the average of all values.
    divided = m.recall_error(32, 32, feature_map="elu", rule="divide", **options)
    assert abs(divided.mean - math.sqrt(1 - 1 / 32)) < 0.005


def test_the_interval_holds_in_95_of_100_draws(m: Any) -> None:
    mean = m.recall_error(6, 4, trials=20_000, seed=1000).mean
    found = [m.recall_error(6, 4, trials=100, seed=seed) for seed in range(200)]
    held = sum(one.low <= mean <= one.high for one in found)
    assert 182 <= held <= 198, held
    # Half of it is 1.96 times the spread of such means; 1.64 would hold in 90 of 100.
    spread = statistics.stdev(one.mean for one in found)
    assert 1.8 < statistics.fmean(one.high - one.mean for one in found) / spread < 2.2


# Errors


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_pairs": 0}, "^n_pairs: expected a whole number of at least 1, got 0"),
        ({"d": 2.0}, "^d: expected a whole number of at least 1, got 2.0"),
        ({"Dv": 0}, "^Dv: expected a whole number of at least 1, got 0"),
        ({"trials": 1}, "^trials: expected a whole number of at least 2, got 1"),
        ({"seed": -1}, "^seed: expected a whole number of at least 0, got -1"),
        ({"seed": 2**64}, r"^seed: expected below 2\^64, got 18446744073709551616"),
        ({"keys": "unit"}, "^keys: expected one of gaussian, orthonormal, correlated, got 'unit'"),
        ({"keys": "orthonormal"}, "^n_pairs: expected at most d = 4 orthonormal keys, got 5"),
        ({"keys": "correlated"}, "^cosine: expected a finite number above 0, got None"),
        ({"keys": "correlated", "cosine": 0.0}, "^cosine: expected a finite number above 0, got 0"),
        ({"keys": "correlated", "cosine": 1.0}, "^cosine: expected below 1, got 1.0"),
        ({"keys": "correlated", "cosine": 0.5, "d": 1}, "^d: expected .* of at least 2, got 1"),
        ({"cosine": 0.5}, "^cosine: expected None with keys='gaussian', got 0.5"),
        ({"values": "labels"}, "^values: expected one of gaussian, onehot, got 'labels'"),
        ({"rule": "hebb"}, "^rule: expected one of add, divide, delta, softmax, least_squares"),
        ({"feature_map": "cosine"}, "^feature_map: expected one of"),
        ({"feature_map": 3}, "^feature_map: expected a name or a function, got int"),
        ({"feature_map": lambda k: k[:, 0]}, r"features \[3, 5, 'C'\], got \[3, 4\]"),
        ({"feature_map": lambda k: None}, r"^feature_map: expected features .*, got NoneType"),
        ({"feature_map": lambda k: "φ"}, r"^feature_map: expected features .*, got str"),
        ({"feature_map": lambda k: k > 0}, "^feature_map: expected floating-point numbers, got"),
        ({"decay": 0.0}, "^decay: expected a finite number above 0, got 0.0"),
        ({"decay": 1.5}, "^decay: expected at most 1, got 1.5"),
        ({"decay": 0.5, "rule": "delta"}, "^decay: expected 1 with rule='delta', got 0.5"),
        ({"beta": -1.0, "rule": "delta"}, "^beta: expected a finite number above 0, got -1.0"),
        ({"beta": 0.5}, "^beta: expected 1 with rule='add', got 0.5"),
        ({"passes": 0, "rule": "delta"}, "^passes: expected a whole number of at least 1, got 0"),
        ({"passes": 2, "rule": "softmax"}, "^passes: expected 1 with rule='softmax', got 2"),
        ({"age": 5}, "^age: expected at most n_pairs − 1 = 4, got 5"),
        ({"age": -1}, "^age: expected a whole number of at least 0, got -1"),
        ({"rule": "divide"}, "^k: expected features whose products are never negative"),
    ],
)
def test_errors_of_recall(change: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"n_pairs": 5, "d": 4, "trials": 3} | change
    n_pairs, d = arguments.pop("n_pairs"), arguments.pop("d")
    with pytest.raises(ValueError, match=words):
        recall_error(n_pairs, d, **arguments)


def test_errors_of_leaks_and_keys() -> None:
    k = draw_keys(5, 4)[0]
    for options, words in (
        ({"rule": "hebb"}, "^rule: expected one of"),
        ({"rule": "add", "passes": 2}, "^passes: expected 1 with rule='add', got 2"),
        ({"rule": "divide"}, "^k: expected features whose products are never negative"),
    ):
        with pytest.raises(ValueError, match=words):
            leak_matrix(k, **options)
    with pytest.raises(ValueError, match=r"^k: expected at least 2 axes \[..., N, C\], got shape"):
        leak_matrix(k[0], rule="add")
    with pytest.raises(ValueError, match="^k: expected floating-point"):
        leak_matrix(k.long(), rule="add")
    with pytest.raises(ValueError, match="^k: expected finite numbers .*, got inf or NaN"):
        leak_matrix(k * math.nan, rule="least_squares")
    with pytest.raises(ValueError, match="^trials: expected a whole number of at least 1, got 0"):
        draw_keys(5, 4, trials=0)
    with pytest.raises(ValueError, match="^n_pairs: expected at most d = 4 orthonormal keys"):
        draw_keys(5, 4, keys="orthonormal")
