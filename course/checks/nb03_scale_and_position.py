"""Checks for the exercises of notebook 03: a number of tokens, a rotary trap, three words back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from course.attention import attention_weights
from course.checks import Exercise
from course.checks.answers import Function, Wrong, answer_of, as_tensor, call_parts
from course.checks.properties import agrees, case, normal, sentence, shaped
from course.positions import apply_rope, sinusoids

# sharpen(scores, tokens): scores [S] times one factor, so that so many effective tokens are left

Count = Callable[[Tensor], Tensor]  # weights [S] → how many they are worth


def _effective(w: Tensor) -> Tensor:
    return torch.special.entr(w).sum().exp()


def _factor(scores: Tensor, tokens: float, count: Count = _effective) -> float:
    """By bisection of its logarithm: a larger factor leaves fewer tokens."""
    low, high = -30.0, 30.0
    for _ in range(80):
        middle = (low + high) / 2
        w = (math.exp(middle) * scores.double()).softmax(0)
        low, high = (middle, high) if count(w) > tokens else (low, middle)
    return math.exp(low)


def _sharpen(scores: Tensor, tokens: float, *, count: Count = _effective, sign: int = 1) -> Tensor:
    return sign * _factor(sign * scores, tokens, count) * scores


def _by_the_law(scores: Tensor, tokens: float) -> Tensor:
    return math.sqrt(2 * math.log(len(scores) / tokens)) / scores.std() * scores


def _centred(scores: Tensor, *_: object) -> Tensor:
    return scores - scores.mean()


_three = case(normal(10, seed=1), 3.0, name="3 tokens among 10")
_half = case(normal(64, seed=2), 12.5, name="12.5 tokens among 64")
_all = case(normal(6, seed=6), 5.9, name="5.9 tokens among 6")
_sharper = partial(
    agrees,
    _sharpen,
    part=_centred,  # a number added to all scores changes no weight
    atol=3e-3,
    probes=[_three, _half],
    mistakes={
        "Tokens are counted as 1/Σw² here; wanted is exp of the entropy": (
            partial(_sharpen, count=lambda w: 1 / w.square().sum())
        ),
        "This makes the entropy as large as tokens; wanted is its exp": (
            partial(_sharpen, count=lambda w: _effective(w).log())
        ),
        "This is 2 to the entropy in nats; wanted is exp of it": (
            partial(_sharpen, count=lambda w: _effective(w) ** math.log(2))
        ),
        "The largest weight is 1/tokens here; wanted is exp of the entropy": (
            partial(_sharpen, count=lambda w: 1 / w.max())
        ),
        "The logarithm is to base 2, and exp is to base e": (
            partial(_sharpen, count=lambda w: _effective(w) ** (1 / math.log(2)))
        ),
        "The factor is negative: the order of the scores is turned round": (
            partial(_sharpen, sign=-1)
        ),
        "This is the factor of the law S·exp(−σ²/2), which holds for many keys and small σ only": (
            _by_the_law
        ),
        "This is the factor's inverse: a factor above 1 leaves fewer tokens": (
            lambda scores, tokens: scores / _factor(scores, tokens)
        ),
        "These are the weights; wanted are the scores, the softmax comes after": (
            lambda scores, tokens: _sharpen(scores, tokens).softmax(0)
        ),
        "The scores came back as they were": lambda scores, tokens: scores.clone(),
    },
)


def _one_factor(function: Function) -> str | None:
    """The answer is the scores times one factor, and perhaps a number added to all of them."""
    for one in (_three, _half):
        scores = one.arguments[0]
        answer = as_tensor(answer_of(function, *one.arguments), shape=scores.shape).double()
        kept, given = _centred(answer), _centred(scores)
        factor = (kept @ given) / (given @ given)
        if bool((kept - factor * given).abs().max() <= 3e-3):
            continue
        if float(answer.isinf().sum() + (answer < scores.min() - 50).sum()):
            hint = (
                "Nobody is to be hidden: three equal scores would be three tokens, but other ones"
            )
        else:
            hint = "Every score must be multiplied by the same number"
        return sentence(one.name, "the answer is not the scores times one factor", hint=hint)
    return None


SHARPEN = Exercise(
    "sharpen",
    {
        "shape": shaped(_sharpen, _three, case(normal(4, seed=3), 2.0)),
        "one factor": _one_factor,
        "three of ten": _sharper(_three, rule="the scores are not those with 3 effective tokens"),
        "any number": _sharper(
            _half,
            _all,
            case(normal(5, seed=4), 1.2, name="1.2 tokens among 5"),
            rule="not the scores with so many effective tokens",
            hint="More than the factor 10, or less than 1/10, may be needed",
        ),
        "any size": _sharper(
            case(1e4 * normal(10, seed=5), 3.0, name="scores of ±10,000"),
            case(1e-4 * normal(10, seed=5), 3.0, name="scores of ±0.0001"),
            rule="not the scores with 3 effective tokens",
            hint="Where the factor is looked for must depend on the spread of the scores",
        ),
        "shifted": _sharper(
            case(normal(10, seed=7) + 50, 3.0, name="scores around 50"),
            rule="not the scores with 3 effective tokens",
            hint="A number added to all scores changes no weight",
        ),
    },
)

# shift_error(rope): the largest change of a score when query and key move by the same number

Turn = Callable[[Tensor, Tensor], Tensor]  # x [T, D], places [T] → [T, D]


def _rope(x: Tensor, places: Tensor) -> Tensor:
    return apply_rope(x[None, None], positions=places)[0, 0]


def _halves(x: Tensor, places: Tensor) -> Tensor:
    """RoPE with other pairs: feature j with feature j + D/2."""
    pairs = x.unflatten(1, (2, -1)).mT.flatten(1)
    return _rope(pairs, places).unflatten(1, (-1, 2)).mT.flatten(1)


def _angles(x: Tensor, places: Tensor) -> Tensor:
    D = x.shape[1]
    return places.to(x.dtype)[:, None] * 10_000.0 ** (-torch.arange(0, D, 2, dtype=x.dtype) / D)


def _mixed(x: Tensor, places: Tensor) -> Tensor:
    """The pairs are neighbours, but the table of angles is laid out for halves."""
    angles = _angles(x, places).repeat(1, 2)
    beside = torch.stack([-x[:, 1::2], x[:, 0::2]], -1).flatten(1)
    return x * angles.cos() + beside * angles.sin()


def _rounded(x: Tensor, places: Tensor) -> Tensor:
    """Places in bfloat16, which has not every whole number above 256."""
    return _rope(x, places.bfloat16().to(torch.float64))


def _growing(x: Tensor, places: Tensor) -> Tensor:
    return _rope(x, places) * 1.01 ** places.to(x.dtype)[:, None].clamp(max=2_000)


def _one_pair(x: Tensor, places: Tensor) -> Tensor:
    """Only the last pair is wrong: what should turn is mirrored."""
    turned = _rope(x, places)
    angle = _angles(x, 300 * places)[:, -1]
    a, b = x[:, -2], x[:, -1]
    last = torch.stack([a * angle.cos() + b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
    return torch.cat([turned[:, :-2], last], 1)


def _added(x: Tensor, places: Tensor) -> Tensor:
    angles = _angles(x, places)
    return x + torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


#: Four programs for notebook 03: each says that it is RoPE.
SUSPECTS: Mapping[str, Turn] = {"A": _rope, "B": _mixed, "C": _rounded, "D": _halves}

_LIE, _HONEST = 0.01, 1e-3


def _says(name: str, turn: Turn, *, lies: bool, hint: str) -> Callable[[Function], str | None]:
    def test(function: Function) -> str | None:
        answer = as_tensor(answer_of(function, turn), shape=())
        error = float(answer)
        if error != error:
            raise Wrong("returns NaN, expected a number")
        if lies and not error >= _LIE:
            what = f"returns {error:.2g}, but its scores change when both move"
        elif not lies and not abs(error) <= _HONEST:
            what = f"returns {error:.2g}, but its scores depend on the distance alone: expected 0"
        else:
            return None
        return sentence(name, what, hint=hint)

    return test


SHIFT_ERROR = Exercise(
    "shift_error",
    {
        "RoPE": _says(
            "RoPE as in the text",
            _rope,
            lies=False,
            hint="Query and key must move by the same number; compare scores, not vectors",
        ),
        "other pairs": _says(
            "RoPE with the pairs (j, j + D/2)",
            _halves,
            lies=False,
            hint="Other pairs are no fault: do not compare with a RoPE of your own",
        ),
        "added": _says(
            "sinusoids, added",
            _added,
            lies=True,
            hint="Compare one score at two places, with both moved by the same number",
        ),
        "lengths": _says(
            "vectors that grow with the place",
            _growing,
            lies=True,
            hint="Compare the numbers: a cosine does not see the lengths",
        ),
        "angles": _says(
            "two features of a pair with two angles",
            _mixed,
            lies=True,
            hint="Take query and key at different places, and more than two features",
        ),
        "every pair": _says(
            "one wrong pair, the last",
            _one_pair,
            lies=True,
            hint="Take vectors without zeros, so that every pair is asked",
        ),
        "far away": _says(
            "places rounded to 8 bits (bfloat16)",
            _rounded,
            lies=True,
            hint="It is right up to place 256: move further than that, with query and key apart",
        ),
    },
)

# three_back(E): W_q and W_k [E, E] for a stream of sinusoids [T, E]; the head copies three back

_BACK = 3


def _clock_map(E: int, steps: int) -> Tensor:
    """R with R p_t = p_{t + steps}, for rows (sin, cos, sin, cos, …)."""
    angles = steps * 10_000.0 ** (-torch.arange(0, E, 2, dtype=torch.float64) / E)
    pairs = zip(angles.cos().tolist(), angles.sin().tolist(), strict=True)
    return torch.block_diag(
        *[torch.tensor([[c, s], [-s, c]], dtype=torch.float64) for c, s in pairs]
    )


def _three_back(E: int) -> tuple[Tensor, Tensor]:
    return 100.0 * torch.eye(E, dtype=torch.float64), _clock_map(E, _BACK)


def _copied(function: Function, E: int, T: int) -> Tensor:
    """The weights [T, T] of the head."""
    P = sinusoids(T, E).double()
    shapes = {"W_q": (E, E), "W_k": (E, E)}
    maps = [W.double() for W in call_parts(function, E, shapes=shapes)]
    for name, W in zip(shapes, maps, strict=True):
        if not bool(W.isfinite().all()):
            raise Wrong(f"{name}: holds NaN or infinity")
    q, k = ((P @ W.T)[None, None] for W in maps)
    return attention_weights(q, k, causal=True)[0, 0]


_REASONS = {
    0: "It copies its own token: nothing is turned, or both, or the wrong way round",
    -1: "The largest weight is at no fixed distance: R p_t must be p_{t+3} in every pair",
}


def _copies(E: int, T: int, *, name: str = "") -> Callable[[Function], str | None]:
    def test(function: Function) -> str | None:
        w = _copied(function, E, T)
        rows = torch.arange(T // 2 if T > 100 else _BACK, T)
        right = w[rows, rows - _BACK]
        if bool((right >= 0.99).all()):
            return None
        row = int(rows[int(right.argmin())])
        back = rows - w[rows].argmax(-1)
        usual = int(back.mode().values)
        share = float((back == usual).double().mean())
        if usual == _BACK and share > 0.9:
            hint = "The largest weight is in the right column. Larger scores sharpen it"
            if bool((back != _BACK).any()):
                wrong = int(back[back != _BACK][0])
                hint = f"It also copies {wrong} back: the fastest hand alone looks alike there"
        elif share < 0.6:
            hint = _REASONS[-1]
        else:
            hint = _REASONS.get(usual, f"It looks {usual} back, not {_BACK}")
        least = float(right.min())
        return sentence(
            name or f"E = {E}, {T} places",
            f"at place {row} the token three back gets {least:.3g}, expected 0.99 or more",
            hint=hint,
        )

    return test


THREE_BACK = Exercise(
    "three_back",
    {
        "shapes": shaped(_three_back, case(16), case(2), names=("W_q", "W_k")),
        "three back": _copies(32, 24),
        "another width": _copies(16, 40),
        "far": _copies(32, 512, name="places up to 511"),
    },
)

EXERCISES = (SHARPEN, SHIFT_ERROR, THREE_BACK)
