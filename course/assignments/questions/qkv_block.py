"""Assignment 2, after notebooks 02 to 04: query, key and value; scale and position; the block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from course.assignments.drawing import labelled, pictured, placed, scaled, valued
from course.assignments.question import Assignment, Draw, Parameters, Question
from course.checks import Test, Wrong, call, differs
from course.checks.answers import Function, call_parts
from course.checks.properties import agrees, case, sentence, shaped


def parameters(draw: Draw) -> Parameters:
    """A length, a base of the angles, a pattern to look at, the order of the bugs, a gain."""
    look = [draw.whole(0, t) for t in range(8)]
    look[4] = draw.choice([1, 2])  # neither the first position, nor the one before, nor itself
    look[6] = draw.choice([2, 3, 4])
    return {
        "length": draw.choice([2.0, 2.5, 3.0, 3.5, 4.0]),
        "base": draw.whole(11, 49) * 100,
        "look": look,
        "order": draw.permutation(4).tolist(),
        "words": draw.whole(4, 7),
        "gain": draw.whole(35, 75) / 100,
    }


# same_scores(W_q, W_k): [D, E], [D, E] → two [D, E], the rows of the first at right angles


def _same_scores(W_q: Tensor, W_k: Tensor, length: float) -> tuple[Tensor, Tensor]:
    directions, sizes = torch.linalg.qr(W_q.double().mT)
    return length * directions.mT, sizes @ W_k.double() / length


def _bilinear(W_q: Tensor, W_k: Tensor) -> Tensor:
    """The matrix between two words, all that the scores know of the two maps."""
    return W_q.double().mT @ W_k.double()


def _angles_of_rows(W_q: Tensor, W_k: Tensor) -> Tensor:
    return (W_q.double() @ W_q.double().mT).round(decimals=12)


def _same_scores_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    length = mine["length"]
    truth = partial(_same_scores, length=length)
    D, E, wider = draw.sizes(3, 3, 8)
    D, E = sorted((D, E))
    maps = draw.normal(D, E), draw.normal(D, E)
    few = draw.normal(D, 2) @ draw.normal(2, E), draw.normal(D, E)

    def mended(change_q: float, change_k: float) -> Function:
        def maps_of(W_q: Tensor, W_k: Tensor) -> tuple[Tensor, Tensor]:
            W_q, W_k = truth(W_q, W_k)
            return change_q * W_q, change_k * W_k

        return maps_of

    def turned_back(W_q: Tensor, W_k: Tensor) -> tuple[Tensor, Tensor]:
        directions, sizes = torch.linalg.qr(W_q.mT)
        return length * directions.mT, sizes.mT @ W_k / length

    scores = partial(
        agrees,
        truth,
        names=("W_q", "W_k"),
        joint=_bilinear,
        probes=[case(*maps)],
        mistakes={
            "W_k is as it was: what you do to W_q has to be undone in W_k": (
                lambda W_q, W_k: (truth(W_q, W_k)[0], W_k)
            ),
            f"Rows of W_q are {length} times as long; who divides by it?": mended(1, length),
            f"W_k is divided by {length} twice": mended(1, 1 / length),
            "This is the transpose of the scores: who asks, and who is asked?": (
                lambda W_q, W_k: truth(W_k, W_q)
            ),
            "The matrix that goes to W_k is transposed": turned_back,
        },
    )
    rows = partial(
        agrees,
        truth,
        names=("W_q", "W_k"),
        joint=_angles_of_rows,
        probes=[case(*maps)],
        mistakes={
            "The rows of W_q have the length 1": mended(1 / length, length),
            f"The square of each row's length is {length}": mended(length**-0.5, length**0.5),
            "W_q is as it was": lambda W_q, W_k: (W_q, W_k),
            "Each row has the right length, but they are not at right angles": (
                lambda W_q, W_k: (length * W_q / W_q.norm(dim=-1, keepdim=True), W_k)
            ),
        },
    )
    rule = "W_q W_qᵀ, the products of rows"
    square = draw.normal(wider, wider), draw.normal(wider, wider)
    single = draw.normal(1, E), draw.normal(1, E)
    return {
        "shape": shaped(truth, case(*maps), names=("W_q", "W_k")),
        "scores": scores(case(*maps), rule="W_qᵀ W_k, the matrix between two words"),
        "rows": rows(case(*maps), rule=rule),
        "one row": rows(case(*single, name="D = 1"), rule=rule, mistakes=None),
        "square": scores(case(*square, name="D = E"), rule="W_qᵀ W_k"),
        "dependent rows": rows(
            case(*few, name="W_q of rank 2"),
            rule=rule,
            hint="Is a matrix inverted that has no inverse, or a vector of length 0 made longer?",
            mistakes=None,
        ),
        "scores of dependent rows": scores(
            case(*few, name="W_q of rank 2"), rule="W_qᵀ W_k", mistakes=None
        ),
    }


SAME_SCORES = Question(
    "same-scores",
    "same_scores",
    _same_scores_properties,
    visible=("shape", "scores", "rows"),
    advice="Right for a W_q whose rows point in D different directions. What if one row is a sum "
    "of others? What if D = E, or D = 1?",
    wrong={
        "nothing done": "def same_scores(W_q, W_k):\n    return W_q, W_k",
        "W_k as it was": (('sizes @ W_k / mine["length"]', "W_k"),),
        "length 1": (
            ('mine["length"] * directions', "directions"),
            (' / mine["length"]', ""),
        ),
        "length not undone": ((' / mine["length"]', ""),),
        "length undone twice": ((' / mine["length"]', ' / mine["length"] ** 2'),),
        "square of the length": (('mine["length"]', 'mine["length"] ** 0.5'),),
        "another student's length": (('mine["length"]', '(mine["length"] + 0.5)'),),
        "sizes transposed": (("sizes @", "sizes.mT @"),),
        "directions not transposed": (("directions.mT,", "directions,"),),
        "rows made long one by one": """
def same_scores(W_q, W_k):
    factor = mine["length"] / W_q.norm(dim=-1, keepdim=True)
    return factor * W_q, W_k / factor
""",
        "columns at right angles": """
def same_scores(W_q, W_k):
    directions, sizes = torch.linalg.qr(W_q)
    return mine["length"] * directions @ sizes / sizes.norm(), W_k
""",
        "by an inverse": """
def same_scores(W_q, W_k):
    values, vectors = torch.linalg.eigh(W_q @ W_q.mT)
    turn = vectors / values.sqrt() @ vectors.mT * mine["length"]
    return turn @ W_q, torch.linalg.inv(turn) @ W_k
""",
        "by Cholesky": """
def same_scores(W_q, W_k):
    low = torch.linalg.cholesky(W_q @ W_q.mT)
    c = mine["length"]
    return c * torch.linalg.inv(low) @ W_q, low.mT @ W_k / c
""",
        "Gram and Schmidt by hand": """
def same_scores(W_q, W_k):
    rows = []
    for w in W_q:
        for r in rows:
            w = w - (w @ r) * r
        rows.append(w / w.norm().clamp_min(1e-9))
    Q = torch.stack(rows)
    return mine["length"] * Q, Q @ W_q.mT @ W_k / mine["length"]
""",
        "exchanged": (("W_q.mT)", "W_k.mT)"), ("sizes @ W_k", "sizes @ W_q")),
        "zeros": (
            "def same_scores(W_q, W_k):\n    return torch.zeros_like(W_q), torch.zeros_like(W_k)"
        ),
    },
)

# move_keys(k, by): [S, D] → [S, D], every key as if it stood ``by`` positions later


def _move_keys(k: Tensor, by: int, base: float, share: int = 2, pace: float = 2.0) -> Tensor:
    R = k.shape[-1] // share
    angle = by * base ** (-pace * torch.arange(R // 2).double() / R)
    a, b, rest = k.double().split([R // 2, R // 2, k.shape[-1] - R], -1)
    return torch.cat(
        [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos(), rest], 1
    )


def _neighbours(k: Tensor, by: int, base: float) -> Tensor:
    """Features 0 and 1, 2 and 3, … are the pairs."""
    R = k.shape[-1] // 2
    order = torch.cat([torch.arange(0, R, 2), torch.arange(1, R, 2), torch.arange(R, k.shape[-1])])
    turned = torch.empty_like(k)
    turned[:, order] = _move_keys(k[:, order], by, base)
    return turned


def _move_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    base = mine["base"]
    truth = partial(_move_keys, base=base)
    S, D, by = draw.whole(3, 5), 4 * draw.whole(2, 4), draw.whole(2, 9)
    right = partial(
        agrees,
        truth,
        probes=[case(draw.normal(S, 16), 3)],
        mistakes={
            "The turn goes the wrong way: towards earlier positions": lambda k, by: truth(k, -by),
            "All features are turned; only the first half is": partial(
                _move_keys, base=base, share=1
            ),
            "The pairs are neighbours here; the partner of i is i + R/2": partial(
                _neighbours, base=base
            ),
            f"The base is 10,000 here; yours is {base:,}": partial(_move_keys, base=10_000.0),
            "Angles fall with base^(−i/R) = base^(−2i/D) here; it is base^(−2i/R)": partial(
                _move_keys, base=base, pace=1.0
            ),
            "Each row is turned by its own place; all keys are moved by the same number": (
                lambda k, by: torch.cat([truth(k[t : t + 1], t + by) for t in range(len(k))])
            ),
            "The last half of the features is missing its numbers": (
                lambda k, by: truth(k, by) * (torch.arange(k.shape[-1]) < k.shape[-1] // 2)
            ),
        },
    )
    return {
        "shape": shaped(truth, case(draw.normal(S, D), by)),
        "not moved": right(
            case(draw.normal(S, D), 0), rule="by = 0 changes nothing", mistakes=None
        ),
        "values": right(case(draw.normal(S, D), by), rule=f"base = {base:,}, by = {by}"),
        "back": right(
            case(draw.normal(S, D), -by - 1), rule="by is below 0, towards earlier positions"
        ),
        "one pair": right(case(draw.normal(S, 4), by), rule="D = 4: features 0 and 1 are a pair"),
        "far": right(
            case(draw.normal(S, D), 1_000_003, name="a million positions"),
            atol=1e-6,
            hint="An angle of a million in float32 is wrong by several hundredths: float64 for "
            "the angles",
        ),
    }


MOVE_KEYS = Question(
    "move-keys",
    "move_keys",
    _move_properties,
    visible=("shape", "not moved", "values"),
    advice="Right for a few positions forward and the widths of the visible check. Try other "
    "widths, moves backward, and moves as far as the question says.",
    wrong={
        "nothing done": "def move_keys(k, by):\n    return k",
        "the wrong way": (("angle = by", "angle = -by"),),
        "base 10,000": (('mine["base"]', "10_000.0"),),
        "another student's base": (('mine["base"]', '(mine["base"] + 100)'),),
        "i, not 2i": (("-2 * i / R", "-i / R"),),
        "angles grow": (("-2 * i / R", "2 * i / R"),),
        "counted from 1": (("-2 * i / R", "-2 * (i + 1) / R"),),
        "all features": (("R = k.shape[-1] // 2", "R = k.shape[-1]"),),
        "the last half": (
            ("k[:, :h], k[:, h:R], k[:, R:]", "k[:, R : R + h], k[:, R + h :], k[:, :R]"),
            (
                "[a * cos - b * sin, a * sin + b * cos, rest]",
                "[rest, a * cos - b * sin, a * sin + b * cos]",
            ),
        ),
        "neighbours are pairs": """
def move_keys(k, by):
    R = k.shape[-1] // 2
    i = torch.arange(R // 2, dtype=torch.float64)
    angle = by * mine["base"] ** (-2 * i / R)
    cos, sin = angle.cos().to(k.dtype), angle.sin().to(k.dtype)
    a, b, rest = k[:, 0:R:2], k[:, 1:R:2], k[:, R:]
    return torch.cat([torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(1), rest], 1)
""",
        "the course's own RoPE": """
def move_keys(k, by):
    from course.positions import apply_rope
    R = k.shape[-1] // 2
    where = torch.full((len(k),), by)
    turned = apply_rope(k[None, None, :, :R], positions=where, base=mine["base"])[0, 0]
    return torch.cat([turned, k[:, R:]], -1)
""",
        "each row by its place": (("angle = by", "angle = (torch.arange(len(k))[:, None] + by)"),),
        "angles in float32": (("dtype=torch.float64", "dtype=torch.float32"),),
        "only forward": (("angle = by", "angle = abs(by)"),),
        "sin and cos exchanged": (("a * cos - b * sin", "a * sin - b * cos"),),
        "a mirror, no turn": (("a * sin + b * cos", "a * sin - b * cos"),),
        "rest is 0": (("rest], -1", "0 * rest], -1"),),
        "in place": """
def move_keys(k, by):
    R = k.shape[-1] // 2
    h = R // 2
    angle = by * mine["base"] ** (-2 * torch.arange(h).double() / R)
    k[:, :h] = k[:, :h] * angle.cos() - k[:, h:R] * angle.sin()
    k[:, h:R] = k[:, :h] * angle.sin() + k[:, h:R] * angle.cos()
    return k
""",
        "zeros": "def move_keys(k, by):\n    return torch.zeros_like(k)",
    },
)

# head_by_hand(P): [T, E] → W_q, W_k [T, E]; position t looks at look[t]


def _head_weights(W_q: Tensor, W_k: Tensor, x: Tensor) -> Tensor:
    """Causal softmax of q·k/√T, as the question says it."""
    scores = (x @ W_q.double().mT) @ (x @ W_k.double().mT).mT / len(x) ** 0.5
    future = torch.ones(len(x), len(x)).triu(1).bool()
    return scores.masked_fill(future, -torch.inf).softmax(-1)


def _looks(look: Sequence[int], table: Tensor, words: Tensor | None = None, name: str = "") -> Test:
    """Each position has 99 % of its weight where it should."""
    T, place = len(table), torch.arange(len(table))
    x = table if words is None else table + words

    def all_right(W_q: Tensor, W_k: Tensor, where: Tensor, least: float = 0.99) -> bool:
        return bool((_head_weights(W_q, W_k, x)[place, where] >= least).all())

    def test(function: Function) -> str | None:
        shape = tuple(table.shape)
        W_q, W_k = call_parts(function, table, shapes={"W_q": shape, "W_k": shape})
        weights = _head_weights(W_q, W_k, x)
        if not bool(weights.isfinite().all()):
            return sentence(name, "the weights are NaN", hint="Are W_q and W_k finite?")
        found = weights[place, torch.tensor(look)]
        if bool((found >= 0.99).all()):
            return None
        t = int((found < 0.99).nonzero()[0])
        hint = ""
        if all_right(W_k, W_q, torch.tensor(look)):
            hint = "W_q and W_k are exchanged: here the words that are looked at ask"
        elif torch.equal(weights.argmax(-1), torch.tensor(look)):
            hint = "The right place is in front, but not by enough: make the scores larger"
        elif all_right(W_q, W_k, place):
            hint = "Each position looks at itself: where does look come in?"
        elif torch.allclose(weights, torch.ones(T, T).double().tril() / (place[:, None] + 1)):
            hint = "All weights of a row are equal: the scores do not differ"
        elif int(weights[t].argmax()) != look[t]:
            hint = f"It looks most at position {int(weights[t].argmax())}"
        said = f"position {t} gives position {look[t]} the weight {float(found[t]):.3f}"
        return sentence(name, f"{said}, expected at least 0.99", hint=hint)

    return test


def _head_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    look = mine["look"]
    T = len(look)
    E = T + draw.whole(3, 6)
    looks = partial(_looks, look)
    right_angles = torch.linalg.qr(draw.normal(E, T))[0].mT
    learned = draw.normal(T, E)
    outside = draw.normal(T, E)
    outside = outside - outside @ torch.linalg.pinv(learned) @ learned
    shape = case(learned)
    return {
        "shape": shaped(lambda P: (P, P), shape, names=("W_q", "W_k")),
        "rows at right angles": looks(right_angles, name="P with rows at right angles, length 1"),
        "any table": looks(learned, name="P of random numbers"),
        "small table": looks(learned / 500, name="P of small numbers"),
        "square table": looks(draw.normal(T, T), name="E = T"),
        "common part": looks(
            draw.normal(T, E) + 6 * draw.normal(1, E), name="rows of P that are much alike"
        ),
        "words": looks(learned, 3 * outside, name="words added at right angles to all rows of P"),
    }


HEAD_BY_HAND = Question(
    "head-by-hand",
    "head_by_hand",
    _head_properties,
    visible=("shape", "rows at right angles", "any table"),
    advice="Right for a table of ordinary numbers. Try a table that is 500 times smaller, one "
    "whose rows are nearly alike, E = T, and streams with words added as the question says.",
    wrong={
        "exchanged": (("return W_q, W_k", "return W_k, W_q"),),
        "looks at itself": (('place[mine["look"]]', "place"),),
        "looks one back": (('place[mine["look"]]', "place.roll(-1, 1)"),),
        "another student's pattern": (
            ('place[mine["look"]]', 'place[[max(0, t - 1) for t in mine["look"]]]'),
        ),
        "pattern transposed": (('place[mine["look"]]', 'place[:, mine["look"]]'),),
        "not sharp": (("100 *", "3 *"),),
        "the wrong sign": (("100 *", "-100 *"),),
        "no decoding": """
def head_by_hand(P):
    place = torch.eye(len(P), dtype=P.dtype)
    return 100 * place[mine["look"]].mT @ P, P
""",
        "products of rows instead of an inverse": (("torch.linalg.pinv(P).mT", "P"),),
        "sharp for ordinary tables only": """
def head_by_hand(P):
    place = torch.eye(len(P), dtype=P.dtype)
    near = P.mT @ torch.linalg.inv(P @ P.mT + 1e-4 * place)
    return 100 * place[mine["look"]].mT @ near.mT, near.mT
""",
        "a loose pseudo-inverse": (("torch.linalg.pinv(P)", "torch.linalg.pinv(P, atol=0.1)"),),
        "disturbed by words": """
def head_by_hand(P):
    place = torch.eye(len(P), dtype=P.dtype)
    back = torch.linalg.pinv(P).mT
    other = torch.linalg.svd(P)[2][len(P):]  # at right angles to all rows of P
    if len(other):
        back = back + 5 * other[torch.arange(len(P)) % len(other)]
    return 100 * place[mine["look"]].mT @ back, back
""",
        "an inverse of the first columns": """
def head_by_hand(P):
    T = len(P)
    place = torch.eye(T, dtype=P.dtype)
    back = torch.zeros_like(P)
    back[:, :T] = torch.linalg.inv(P[:, :T]).mT
    return 100 * place[mine["look"]].mT @ back, back
""",
        "one matrix": (("return W_q, W_k", "return W_q"),),
        "zeros": "def head_by_hand(P):\n    return torch.zeros_like(P), torch.zeros_like(P)",
        "the table": "def head_by_hand(P):\n    return P, P",
    },
)

# exposes_block(name): x [T, E] on which block ``name`` alone is wrong


def attention_part(n: Tensor, allowed: Tensor, scale: float) -> Tensor:
    scores = n @ n.mT * scale
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ n


def healthy(x: Tensor) -> Tensor:
    """What all four blocks should compute: x + attention(norm(x)), all maps left out."""
    n = (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)
    allowed = torch.ones(len(x), len(x)).tril().bool()
    return x + attention_part(n, allowed, x.shape[-1] ** -0.5)


# The four blocks as the student reads them in the notebook.


def block_0(x):
    spread = x.std(-1, correction=0, keepdim=True).clamp_min(0.1)
    n = (x - x.mean(-1, keepdim=True)) / spread
    allowed = torch.ones(len(x), len(x)).tril().bool()
    return x + attention_part(n, allowed, x.shape[-1] ** -0.5)


def block_1(x):
    n = (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)
    allowed = torch.zeros(len(x), len(x)).bool()
    for t in range(len(x)):
        allowed[t, : t + 1] = allowed[t, t - 1] = True
    return x + attention_part(n, allowed, x.shape[-1] ** -0.5)


def block_2(x):
    n = (x - x.mean()) / x.std(correction=0)
    allowed = torch.ones(len(x), len(x)).tril().bool()
    return x + attention_part(n, allowed, x.shape[-1] ** -0.5)


def block_3(x):
    n = (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)
    allowed = torch.ones(len(x), len(x)).tril().bool()
    return x + attention_part(n, allowed, len(x) ** -0.5)


BLOCKS = (block_0, block_1, block_2, block_3)
_NAMES = "ABCD"


def _text_of(function: Function, name: str, T: int) -> Tensor:
    x = call(function, name).double()
    if x.ndim != 2 or len(x) != T or not 2 <= x.shape[1] <= 64:
        raise Wrong(f"{name}: x has the shape {list(x.shape)}, expected [{T}, E], E from 2 to 64")
    return x


def _usable(T: int) -> Test:
    def test(function: Function) -> str | None:
        for name in _NAMES:
            x = _text_of(function, name, T)
            if float(x.abs().max()) > 1000:
                return f"{name}: the numbers must lie between −1,000 and 1,000"
            if float(x.std(-1, correction=0).min()) < 1e-3:
                return f"{name}: the spread of each word's numbers must be at least 0.001"
        return None

    return test


def _exposed(name: str, mine: Parameters) -> Test:
    """The block called ``name`` is wrong on its text, and the other three are right."""

    def test(function: Function) -> str | None:
        x = _text_of(function, name, mine["words"])
        wrong = [
            other
            for other, number in zip(_NAMES, mine["order"], strict=True)
            if differs(BLOCKS[number](x), healthy(x), atol=1e-6)
        ]
        if name not in wrong:
            return sentence(
                f"for {name}",
                f"block {name} gives the right answer for this text",
                hint="What must a text have so that its bug makes a difference?",
            )
        others = [other for other in wrong if other != name]
        if others:
            return sentence(
                f"for {name}",
                f"{' and '.join(others)} {'is' if len(others) == 1 else 'are'} wrong here too",
                hint=f"Find a text on which {name} alone is wrong",
            )
        return None

    return test


def _exposes_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    return {
        "texts": _usable(mine["words"]),
        **{f"block {name}": _exposed(name, mine) for name in _NAMES},
    }


_WHICH = 'mine["order"]["ABCD".index(name)]'

EXPOSES_BLOCK = Question(
    "expose-the-block",
    "exposes_block",
    _exposes_properties,
    visible=("texts", *(f"block {name}" for name in _NAMES)),
    advice="",
    wrong={
        "another student's order": ((_WHICH, f"(1 + {_WHICH}) % 4"),),
        "one text for all": ((_WHICH, "0"),),
        "an ordinary text": """
def exposes_block(name):
    T = mine["words"]
    return torch.arange(T * T).reshape(T, T).double() ** 1.5
""",
        "numbers without a pattern": """
def exposes_block(name):
    return (torch.arange(5.0 * mine["words"]) ** 2).sin().reshape(-1, 5).double()
""",
        "spread not small enough": (("0.01 * word", "word"),),
        "spread too small": (("0.01 * word", "0.0001 * word"),),
        "square text for the scale": (("turns(T + 1)", "turns(T)"),),
        "no square text for the mask": (("return turns(T)", "return turns(T + 1)"),),
        "last word is not the first": (("x[-1] = x[0]", "pass"),),
        "all words equal": (("return size * word", "return 0 * size + word"),),
        "words of spread below 0.1": (("return size * word", "return 0.01 * size * word"),),
        "one word too many": (('T = mine["words"]', 'T = mine["words"] + 1'),),
        "constant words": """
def exposes_block(name):
    return torch.ones(mine["words"], 4, dtype=torch.float64)
""",
        "too large": (("return size * word", "return 1000 * size * word"),),
        "too wide": (("turns(T + 1)", "turns(65)"),),
        "a vector": (("return turns(T)", "return turns(T)[0]"),),
        "zeros": "def exposes_block(name):\n    return torch.zeros(mine['words'], 3)",
    },
)

# draw_streams(ax, parts): the size of the stream after 0, 1, …, parts parts


def _streams(gain: float) -> dict[str, Callable[[int], Tensor]]:
    def after(parts: int) -> Tensor:
        return torch.arange(parts + 1).double()

    return {
        "post-norm": lambda parts: torch.ones(parts + 1),
        "pre-norm": lambda parts: (1 + gain**2 * after(parts)).sqrt(),
        "no norm": lambda parts: (1 + gain**2) ** (after(parts) / 2),
    }


def _streams_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    gain = mine["gain"]
    truth = _streams(gain)
    few, many = (draw.whole(4, 9),), (draw.whole(20, 60),)

    def n(parts: int) -> Tensor:
        return torch.arange(parts + 1).double()

    squares = "This is the variance; the picture shows the standard deviation, its root"
    sums = "Standard deviations are added here; of sums without correlation the variances add up"
    pre = {
        squares: lambda parts: 1 + gain**2 * n(parts),
        sums: lambda parts: 1 + gain * n(parts),
        "This is what happens without a norm": truth["no norm"],
    }
    none = {
        squares: lambda parts: (1 + gain**2) ** n(parts),
        sums: lambda parts: (1 + gain) ** n(parts),
        "Without a norm a part reads the stream as large as it is, and writes in proportion": (
            truth["pre-norm"]
        ),
    }
    labels = tuple(truth)
    return {
        "curves": pictured(labelled, few, labels=labels),
        "axes": pictured(scaled, few, logarithmic="y"),
        "places": pictured(placed, few, labels=labels, places=n),
        "post-norm": pictured(valued, few, label="post-norm", truth=truth["post-norm"]),
        "pre-norm": pictured(
            valued, few, many, label="pre-norm", truth=truth["pre-norm"], mistakes=pre
        ),
        "no norm": pictured(
            valued, few, many, label="no norm", truth=truth["no norm"], mistakes=none
        ),
    }


DRAW_STREAMS = Question(
    "draw-streams",
    "draw_streams",
    _streams_properties,
    visible=("curves", "axes", "places", "post-norm"),
    advice="The picture has its three curves, labels and axes, and the curve post-norm is right. "
    "For the others: what does a part read, how large is what it writes, and what adds up?",
    wrong={
        "variance, pre-norm": (("(1 + g**2 * n).sqrt()", "1 + g**2 * n"),),
        "variance, no norm": (("(n / 2)", "n"),),
        "deviations added, pre-norm": (("(1 + g**2 * n).sqrt()", "1 + g * n"),),
        "deviations added, no norm": (("(1 + g**2) ** (n / 2)", "(1 + g) ** n"),),
        "gain not squared": (("g**2", "g"),),
        "another student's gain": (('mine["gain"]', 'mine["gain"] + 0.05'),),
        "pre and no norm exchanged": (
            ('"pre-norm"', '"x"'),
            ('"no norm"', '"pre-norm"'),
            ('"x"', '"no norm"'),
        ),
        "counted from 1": (("torch.arange(parts + 1)", "torch.arange(1, parts + 1)"),),
        "one point too few": (("torch.arange(parts + 1)", "torch.arange(parts)"),),
        "always 24 parts": (("parts + 1)", "25)"),),
        "linear axis": (('ax.set_yscale("log")', ""),),
        "both axes logarithmic": (('ax.set_yscale("log")', "ax.loglog()"),),
        "no legend": (("ax.legend()", ""),),
        "no label on y": (('ax.set_ylabel("size of the stream")', ""),),
        "post-norm grows": (("1 + 0 * n", "1 + n"),),
        "nothing": "def draw_streams(ax, parts):\n    pass",
    },
)

ASSIGNMENT = Assignment(
    2,
    "qkv_block",
    "Query, key and value; scale and position; the block",
    (SAME_SCORES, MOVE_KEYS, HEAD_BY_HAND, EXPOSES_BLOCK, DRAW_STREAMS),
    parameters,
)
