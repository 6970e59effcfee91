"""Checks for the exercises of notebook 06: the log of a map, features, the register."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from course.checks import Exercise
from course.checks.answers import Function, answer_of, call, differs, two_numbers
from course.checks.properties import WATCHED, agrees, all_of, case, normal, sentence, work_of

# log_elu_plus_one(x) → the same shape and dtype


def _phi(x: Tensor) -> Tensor:
    x = x.double()
    return x.clamp(max=0).exp() + x.clamp(min=0)


def _log_phi(x: Tensor) -> Tensor:
    x = x.double()
    return x.clamp(max=0) + x.clamp(min=0).log1p()


_SOME = torch.cat([2 * normal(3, 5, seed=1).flatten(), torch.zeros(1)]).reshape(4, 4)

_logs = partial(
    agrees,
    _log_phi,
    probes=[case(_SOME)],
    mistakes={
        "This is φ(x) itself": _phi,
        "This is x itself": lambda x: x,
        "This is the logarithm of softplus; φ is elu + 1": lambda x: x.exp().log1p().log(),
        "This is softplus, ln(1 + e^x)": lambda x: x.exp().log1p(),
        "Above 0 it is ln(1 + x); here something is added twice": (
            lambda x: x.clamp(max=0) + (x.clamp(min=0) + 1).log1p()
        ),
        "This is ln(1 + |x|): below 0 it is x": lambda x: x.abs().log1p(),
        "Below 0 it is x, not φ(x) = e^x": (
            lambda x: torch.where(x > 0, x.clamp(min=0).log1p(), x.clamp(max=0).exp())
        ),
        "The sign below 0 is wrong": lambda x: x.clamp(min=0).log1p() - x.clamp(max=0),
        "Below 0 it is x": lambda x: x.clamp(min=0).log1p(),
        "Above 0 it is ln(1 + x)": lambda x: x.clamp(max=0),
        "These are logarithms to base 2": lambda x: _log_phi(x) / _log_phi(torch.ones(1)),
        "These are logarithms to base 10": lambda x: _log_phi(x) / _log_phi(9 * torch.ones(1)),
    },
)


def _log_dtype(function: Function) -> str | None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        got = call(function, torch.tensor([-1.0, 2.0], dtype=dtype), shape=(2,), finite=False)
        if got.dtype != dtype:
            came, went = (str(x).removeprefix("torch.") for x in (dtype, got.dtype))
            return f"{came} came, {went} went back: it must have the dtype of x"
    return None


def _near(allowed: float, dtype: torch.dtype, *places: float, hint: str) -> Function:
    """At these places the answer is off by no more than the share ``allowed`` of the truth."""
    names = str(dtype).removeprefix("torch.")
    return all_of(
        *(
            _logs(
                case(torch.tensor([x], dtype=dtype), name=f"{names}, x = {x:g}"),
                atol=0.0,
                rtol=allowed,
                mistakes=None,
                hint=hint,
            )
            for x in places
        )
    )


_FAR = "Take no exponential: ln e^x is x"


def _log_gradient(function: Function) -> str | None:
    x = torch.tensor([-1_000.0, -20.0, -1.0, -0.5, 0.0, 0.5, 2.0, 200.0, 5_000.0])
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        answer = answer_of(function, leaf)
        if not isinstance(answer, Tensor) or not answer.requires_grad:
            return "the answer has no gradient; was it detached, or made of Python numbers?"
        (gradient,) = torch.autograd.grad(answer.sum(), leaf)
    true = 1 / (1 + x.clamp(min=0))
    wrong = ~((gradient / true - 1).abs() <= 1e-4)
    if not bool(wrong.any()):
        return None
    place = int(wrong.nonzero()[0])
    mine, right = two_numbers(gradient[place].item(), true[place].item())
    if bool(gradient[place].isnan()):
        hint = "A logarithm of 0 or less is computed somewhere, even if it is not used"
    elif x[place] == 0:
        hint = "Exactly at 0 both branches meet, and one alone may pass its gradient on"
    else:
        hint = "Below 0 it is 1, above 0 it is 1/(1 + x)"
    return sentence(
        f"gradient at x = {x[place].item():g}", f"got {mine}, expected {right}", hint=hint
    )


LOG_ELU_PLUS_ONE = Exercise(
    "log_elu_plus_one",
    {
        "values": _logs(case(_SOME), atol=1e-12, rule="ordinary numbers in float64"),
        "dtype": _log_dtype,
        "far from zero": all_of(
            _near(1e-5, torch.float32, -20, -120, -1_000, 200, 10_000, hint=_FAR),
            _near(0.01, torch.bfloat16, -8, -30, -500, 200, hint=_FAR),
            _near(0.002, torch.float16, -8, -30, -1_000, 200, hint=_FAR),
        ),
        "near zero": _near(
            *(1e-5, torch.float32, 1e-6, 1e-4, -1e-6),
            hint="1 + x is rounded before the logarithm; torch.log1p(x) does not",
        ),
        "gradient": _log_gradient,
    },
)

# square_features(x [..., D]) → [..., C]


def _square_shape(function: Function) -> str | None:
    for D in (1, 4):
        got = call(function, normal(2, 3, D, seed=2), finite=False)
        if got.ndim != 3 or got.shape[:2] != (2, 3):
            return f"x [2, 3, {D}] gives {list(got.shape)}, expected [2, 3, C]"
        if got.shape[2] > 1 + D + D * D:
            return f"D = {D}: {got.shape[2]} features, at most 1 + D + D² = {1 + D + D * D}"
    return None


def _square_similarity(function: Function) -> str | None:
    for D, seed in ((1, 3), (3, 4), (6, 5)):
        q, k = normal(5, D, seed=seed), normal(7, D, seed=seed + 10)
        phi_q = call(function, q, finite=False)
        if phi_q.ndim != 2 or len(phi_q) != 5:
            return f"x {list(q.shape)} gives {list(phi_q.shape)}, expected [5, C]"
        phi_k = call(function, k, shape=(7, phi_q.shape[1]), finite=False)
        got = phi_q.double() @ phi_k.double().mT
        wrong = differs(got, (1 + q @ k.mT) ** 2)  # a float32 √2 is good enough
        if wrong:
            return sentence(f"φ(q)·φ(k) for D = {D}", wrong, hint=_which_term(got, q, k))
    return None


def _which_term(got: Tensor, q: Tensor, k: Tensor) -> str:
    """Which of the three terms explains the difference, or a wrong share of its mixed products."""
    if not bool(got.isfinite().all()):
        return "0/0, a root or a logarithm of a number below 0, or a number too large"
    s, squares = q @ k.mT, q**2 @ k.mT**2  # the share of s² in which both factors have one place
    if (found := _factors(got, torch.ones_like(s), s, s * s)) is not None:
        a, b, c = found
        return f"You have {a:g} + {b:g}s + {c:g}s², wanted is 1 + 2s + s²"
    if (found := _factors(got, torch.ones_like(s), s, s * s, squares)) is None:
        return "It is no sum of 1, s and s²"
    c = found[2]
    if c == 0:
        return "In s² the products of two different coordinates are missing"
    return (
        "In s² a product of two different coordinates has another weight than it should: either "
        "both x_i x_j and x_j x_i, or one of them times √2"
    )


def _factors(got: Tensor, *terms: Tensor) -> list[float] | None:
    """``got`` as a sum of the terms, or ``None`` if it is none."""
    columns = torch.stack([term.flatten() for term in terms], -1)
    factors = torch.linalg.lstsq(columns, got.reshape(-1, 1)).solution.flatten()
    if not torch.allclose(columns @ factors, got.flatten(), atol=1e-5):
        return None
    return [round(float(x), 3) + 0.0 for x in factors]


def _square_token(function: Function) -> str | None:
    x = normal(6, 4, seed=6)
    alone = torch.cat([call(function, row[None], finite=False) for row in x])
    wrong = differs(call(function, x, shape=alone.shape, finite=False), alone, atol=1e-12)
    return wrong and f"the features of a token depend on the other tokens: {wrong}"


SQUARE_FEATURES = Exercise(
    "square_features",
    {
        "shape": _square_shape,
        "similarity": _square_similarity,
        "one token at a time": _square_token,
    },
)

# read_register(q [T, D], k [S, D], v [S, Dv], real [S]) → [T, Dv]


def _register(q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Tensor:
    """By the table, which the student must not make."""
    if not real.any():
        return q.new_zeros(len(q), v.shape[1])
    table = _phi(q) @ _phi(k[real]).mT
    return table @ v[real] / table.sum(-1, keepdim=True)


def _with_maps(of_q: Function, of_k: Function) -> Function:
    """The register with other maps."""

    def read(q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Tensor:
        q, k = of_q(q), of_k(k[real])
        return q @ (k.mT @ v[real]) / (q @ k.sum(0))[:, None]

    return read


def _zeroed(x: Tensor, real: Tensor) -> Tensor:
    return x.masked_fill(~real[:, None], 0.0)


def _drawn(T: int, S: int, D: int, Dv: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    return normal(T, D, seed=seed), normal(S, D, seed=seed + 1), normal(S, Dv, seed=seed + 2)


def _all_real(n: int) -> Tensor:
    return torch.ones(n, dtype=torch.bool)


_REAL = torch.tensor([True, False, True, True, False, False, True])


def _padded_with(number: float | None, seed: int) -> tuple[Tensor, ...]:
    q, k, v = _drawn(5, 7, 3, 2, seed)
    if number is not None:
        k, v = (x.masked_fill(~_REAL[:, None], number) for x in (k, v))
    return q, k, v, _REAL


_registers = partial(
    agrees,
    _register,
    atol=1e-10,
    probes=[case(*_padded_with(None, seed=40))],
    mistakes={
        "This is not divided: φ(q)·z is missing": (
            lambda q, k, v, real: _phi(q) @ (_phi(k[real]).mT @ v[real])
        ),
        "The mask is not used: padded places must leave the sums": (
            lambda q, k, v, real: _register(q, k, v, torch.ones_like(real))
        ),
        "The mask is the wrong way round: True = a real token": (
            lambda q, k, v, real: _register(q, k, v, ~real)
        ),
        "Padding has left the values and is still in z": (
            lambda q, k, v, real: _register(q, k, _zeroed(v, real), torch.ones_like(real))
        ),
        "φ(0) is 1: a key made zero still counts in z": (
            lambda q, k, v, real: _register(
                q, _zeroed(k, real), _zeroed(v, real), torch.ones_like(real)
            )
        ),
        "This is softmax attention; the map is elu + 1": (
            lambda q, k, v, real: (q @ k[real].mT).softmax(-1) @ v[real]
        ),
        "This is the mean of the real values: q and k are not used": (
            lambda q, k, v, real: v[real].mean(0).expand(len(q), -1)
        ),
        "Divided by the number of tokens; φ(q)·z is wanted": (
            lambda q, k, v, real: _phi(q) @ (_phi(k[real]).mT @ v[real]) / real.sum()
        ),
        "Each query has a denominator of its own; here all have one": (
            lambda q, k, v, real: (
                _phi(q) @ (_phi(k[real]).mT @ v[real]) / (_phi(q) @ _phi(k[real]).sum(0)).sum()
            )
        ),
        "The map is used for the queries only": _with_maps(_phi, lambda x: x),
        "The map is used for the keys only": _with_maps(lambda x: x, _phi),
        "The map is not used": _with_maps(lambda x: x, lambda x: x),
        "The map is elu + 1; this is elu": _with_maps(functional.elu, functional.elu),
        "The map is elu + 1; this is relu": _with_maps(torch.relu, torch.relu),
        "The map is elu + 1; this is exp": _with_maps(torch.exp, torch.exp),
        "The map is elu + 1; this is softplus": _with_maps(
            functional.softplus, functional.softplus
        ),
        "There is no scale here: q and k go into the map as they are": (
            lambda q, k, v, real: _register(q / q.shape[1] ** 0.5, k / q.shape[1] ** 0.5, v, real)
        ),
        "The denominator is φ(q)·z, feature by feature; here both are summed first": (
            lambda q, k, v, real: (
                _phi(q)
                @ (_phi(k[real]).mT @ v[real])
                / (_phi(q).sum(1, keepdim=True) * _phi(k[real]).sum())
            )
        ),
        "The map is used twice": _with_maps(lambda x: _phi(_phi(x)), lambda x: _phi(_phi(x))),
    },
)


def _no_table(function: Function) -> str | None:
    T, S = 200, 250
    work = work_of(function, *_drawn(T, S, 4, 3, seed=70), _all_real(S))
    hint = "Set the brackets so that keys meet values first"
    if work.entries >= T * S:
        return sentence(
            f"T = {T}, S = {S}: a tensor with {work.entries:,} entries appears", hint=hint
        )
    if work.bytes >= 3 * T * S:
        return sentence(
            f"T = {T}, S = {S}: arrays or lists take over {3 * T * S:,} bytes, as a table does",
            hint=hint,
        )
    return None


READ_REGISTER = Exercise(
    "read_register",
    {
        "values": _registers(
            *(
                case(
                    *_drawn(*sizes, seed=20),
                    _all_real(sizes[1]),
                    name=f"T, S, D, Dv = {sizes}, all real",
                )
                for sizes in ((5, 7, 3, 2), (7, 4, 2, 6), (1, 1, 4, 1))
            )
        ),
        "small sums": _registers(
            case(
                *(x - 6 * (i < 2) for i, x in enumerate(_drawn(4, 3, 2, 5, seed=80))),
                _all_real(3),
                name="φ(q)·z is about 0.00001",
            ),
            hint="Nothing may be added to the denominator, and no least value set for it",
        ),
        "an average": _registers(
            case(
                *_drawn(6, 5, 3, 1, seed=30)[:2],
                torch.ones(5, 2, dtype=torch.float64),
                _all_real(5),
            ),
            rule="all values 1: every average is 1",
            hint="Divide by φ(q)·z",
        ),
        "padding": _registers(
            case(*_padded_with(None, seed=40), name="padded places that hold numbers"),
            case(*_padded_with(0.0, seed=40), name="padded places that hold zeros"),
            hint="They must leave z as well",
        ),
        "NaN in padding": _registers(
            case(*_padded_with(torch.nan, seed=50), name="padded places that hold NaN"),
            hint="0 · NaN is NaN: leave the rows out",
        ),
        "nothing real": _registers(
            case(*_drawn(4, 3, 2, 5, seed=60), ~_all_real(3)),
            atol=0.0,
            rule="where nothing is real, zeros are expected",
            hint="Without a key z is 0, and 0/0 is NaN",
        ),
        "no table": _no_table,
    },
    seconds=WATCHED,
)

EXERCISES = (LOG_ELU_PLUS_ONE, SQUARE_FEATURES, READ_REGISTER)
