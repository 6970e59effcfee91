"""Assignment 3, after notebooks 05 to 07: linear attention, its kernels, its forms, its state."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course.assignments.drawing import labelled, pictured, placed, scaled, valued
from course.assignments.question import Assignment, Draw, Parameters, Question
from course.checks import Test, Wrong, call, differs
from course.checks.answers import Function
from course.checks.properties import Case, agrees, case, counts, sentence, shaped


def parameters(draw: Draw) -> Parameters:
    """A polynomial, two prices, a chunk and how the state fades, a window."""
    return {
        "kernel": [draw.whole(2, 5), draw.whole(6, 9) / 4, draw.whole(2, 6) / 8],
        "exp": draw.whole(5, 15),
        "feature": draw.whole(3, 8),
        "chunk": draw.whole(3, 6),
        "keep": draw.whole(60, 75) / 100,
        "window": draw.whole(9, 30),
    }


# features(x): [..., D] → [..., C] with φ(q)·φ(k) = a + b·u + c·u³, u = q·k


def _similarity(u: Tensor, kernel: list[float]) -> Tensor:
    a, b, c = kernel
    return a + b * u + c * u**3


def _width(D: int) -> int:
    return 1 + D + D**3


def _features_of(function: Function, x: Tensor) -> Tensor:
    """The student's features, one row for each vector of ``x`` and not too many."""
    made, D = call(function, x), x.shape[-1]
    if made.shape[:-1] != x.shape[:-1]:
        before = f"for x {list(x.shape)}, returns shape {list(made.shape)}"
        raise Wrong(f"{before}, expected {[*x.shape[:-1], 'C']}: only the last axis changes")
    if made.shape[-1] > _width(D):
        raise Wrong(f"{made.shape[-1]} features for D = {D}, expected at most {_width(D)}")
    return made if made.is_floating_point() else made.double()


def _similar(q: Tensor, k: Tensor, kernel: list[float], name: str = "") -> Test:
    a, b, c = kernel
    mistakes: dict[str, Callable[[Tensor], Tensor]] = {
        "Each coefficient is squared: it stands in φ(q) and in φ(k)": (
            lambda u: a**2 + b**2 * u + c**2 * u**3
        ),
        "The coefficients are missing": lambda u: 1 + u + u**3,
        "The constant is missing: one feature is the same for all vectors": (
            lambda u: b * u + c * u**3
        ),
        "The third power is missing": lambda u: a + b * u,
        "This has the square of q·k in place of its third power": lambda u: a + b * u + c * u**2,
        "The linear part is missing": lambda u: a + c * u**3,
        "Coefficients b and c are exchanged": lambda u: a + c * u + b * u**3,
    }

    def test(function: Function) -> str | None:
        Q, K = _features_of(function, q), _features_of(function, k)
        if Q.shape[-1] != K.shape[-1]:
            return sentence(name, f"φ(q) has {Q.shape[-1]} features and φ(k) {K.shape[-1]}")
        got, u = (Q[..., None, :] * K).sum(-1), (q[..., None, :] * k).sum(-1)
        wrong = differs(got, _similarity(u, kernel), rtol=1e-6)
        if not wrong:
            return None
        known = (said for said, f in mistakes.items() if not differs(got, f(u), rtol=1e-6))
        hint = next(known, "")
        for said, cubic in (
            ("(q·k)³ is more than the sum of the cubes: it has mixed products, as q₁q₁q₂", _cubes),
            ("In (q·k)³ a mixed product, as q₁q₁q₂, occurs several times", _each_once),
        ):
            if not hint and not differs(got, a + b * u + c * cubic(q, k), rtol=1e-6):
                hint = said
        return sentence(name, f"φ(q)·φ(k): {wrong}", hint=hint)

    return test


def _cubes(q: Tensor, k: Tensor) -> Tensor:
    return (q[..., None, :] ** 3 * k**3).sum(-1)


def _each_once(q: Tensor, k: Tensor) -> Tensor:
    """Each product of three numbers once, in whatever order they stand."""
    which = torch.combinations(torch.arange(q.shape[-1]), 3, with_replacement=True)
    return (q[..., which].prod(-1)[..., None, :] * k[..., which].prod(-1)).sum(-1)


def _width_kept(x: Tensor) -> Test:
    def test(function: Function) -> str | None:
        _features_of(function, x)
        return None

    return test


def _features_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    kernel, D = mine["kernel"], draw.whole(2, 4)
    similar = partial(_similar, kernel=kernel)
    return {
        "width": _width_kept(draw.normal(3, D)),
        "similarities": similar(draw.normal(6, D), draw.normal(5, D)),
        "one number": similar(draw.normal(4, 1), draw.normal(3, 1), name="D = 1"),
        "wider": similar(draw.normal(4, 7), draw.normal(3, 7), name="D = 7"),
        "heads": similar(draw.normal(2, 3, D), draw.normal(3, D), name="x [2, 3, D]"),
        "one vector": similar(draw.normal(D), draw.normal(3, D), name="x [D]"),
        "large": similar(30 * draw.normal(4, D), 30 * draw.normal(3, D), name="long vectors"),
    }


FEATURES = Question(
    "polynomial-features",
    "features",
    _features_properties,
    visible=("width", "similarities"),
    advice="Right for a table [T, D]. The question says [..., D]: try one vector, and two tables "
    "at once; try D = 1 too, and long vectors.",
    wrong={
        "copies the input": "def features(x):\n    return x",
        "no constant": (("a**0.5 * one, ", ""),),
        "no linear part": (("b**0.5 * x, ", ""),),
        "no third power": ((", c**0.5 * triples]", "]"),),
        "coefficients squared": (("**0.5", ""),),
        "no coefficients": (('mine["kernel"]', "1, 1, 1"),),
        "b and c exchanged": (("a, b, c =", "a, c, b ="),),
        "another student's polynomial": (
            ('= mine["kernel"]', '= [1 + n for n in mine["kernel"]]'),
        ),
        "square for third power": (("c**0.5 * triples", "c**0.5 * pairs"),),
        "cubes only": (("c**0.5 * triples", "c**0.5 * x**3"),),
        "each product once": """
def features(x):
    a, b, c = mine["kernel"]
    which = torch.combinations(torch.arange(x.shape[-1]), 3, with_replacement=True)
    triples = x[..., which].prod(-1)
    return torch.cat([a**0.5 * torch.ones_like(x[..., :1]), b**0.5 * x, c**0.5 * triples], -1)
""",
        "the square too": (("c**0.5 * triples]", "pairs, c**0.5 * triples]"),),
        "tables only": (
            (
                "(pairs[..., :, None] * x[..., None, :]).flatten(-2)",
                'torch.einsum("ti,tj->tij", pairs, x).flatten(1)',
            ),
        ),
        "axes of heads joined": (("flatten(-2)", "flatten(1)"),),
        "normed first": (("one = ", "x = x / x.norm(dim=-1, keepdim=True)\n    one = "),),
        "zeros": "def features(x):\n    return torch.zeros_like(x)",
    },
)

# first_length(D, Dv, C): the smallest T at which linear attention needs fewer operations


def _first_length(D: int, Dv: int, C: int, *, exp: int, feature: int) -> int:
    pair, token = 2 * (D + Dv) + exp, 4 * C * Dv + 2 * C * feature
    return max(1, 2 * token // pair)


def _length_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    exp, feature = mine["exp"], mine["feature"]
    truth = partial(_first_length, exp=exp, feature=feature)

    def full_square(D: int, Dv: int, C: int) -> int:
        return (4 * C * Dv + 2 * C * feature) // (2 * (D + Dv) + exp) + 1

    def also_equal(D: int, Dv: int, C: int) -> int:
        return max(1, (2 * (4 * C * Dv + 2 * C * feature) - 1) // (2 * (D + Dv) + exp))

    D, Dv, C = draw.sizes(3, 30, 140)
    right = partial(
        counts,
        truth,
        probes=[case(D, Dv, C), case(64, 48, 300), case(7, 5, 2 * (7 + 5) + exp)],
        mistakes={
            "This counts T² pairs; a causal head computes T(T + 1)/2": full_square,
            "The exponential of each pair is not counted": partial(
                _first_length, exp=0, feature=feature
            ),
            "Making the features is not counted": partial(_first_length, exp=exp, feature=0),
            "The features of the query or of the key are not counted": (
                lambda D, Dv, C: max(1, 2 * (4 * C * Dv + C * feature) // (2 * (D + Dv) + exp))
            ),
            "A token writes C·Dv cells and reads C·Dv cells, two operations each: 4·C·Dv": (
                lambda D, Dv, C: max(1, 2 * (2 * C * Dv + 2 * C * feature) // (2 * (D + Dv) + exp))
            ),
            "At this length both cost the same; fewer means fewer": also_equal,
            "One token too many": lambda D, Dv, C: truth(D, Dv, C) + 1,
            "D and Dv are exchanged": lambda D, Dv, C: truth(Dv, D, C),
        },
    )
    tie_D, tie_Dv = draw.sizes(2, 3, 20)
    return {
        "lengths": right(case(D, Dv, C), rule=f"D = {D}, Dv = {Dv}, C = {C}"),
        "many features": right(case(64, 64, 64**2), rule="D = Dv = 64, C = 4,096"),
        "equal cost": right(
            case(tie_D, tie_Dv, 2 * (tie_D + tie_Dv) + exp, name="a length at which both are equal")
        ),
        "at once": right(
            case(200, 1, 1, name="D = 200, Dv = C = 1"), hint="A text has at least one token"
        ),
        "large": right(
            case(4096, 4099, 4096**2 + 1, name="C above 16 million"),
            hint="Whole numbers of Python are exact: // in place of /",
        ),
    }


FIRST_LENGTH = Question(
    "first-length",
    "first_length",
    _length_properties,
    visible=("lengths", "many features"),
    advice="Right for ordinary sizes. What if both cost exactly the same at some length? What if "
    "linear attention is cheaper from the first token on?",
    wrong={
        "all T² pairs": (("2 * token // pair", "token // pair + 1"),),
        "no price of exp": ((' + mine["exp"]', ""),),
        "no price of features": ((' + 2 * C * mine["feature"]', ""),),
        "features of the query only": (("2 * C * mine", "C * mine"),),
        "written, not read": (("4 * C * Dv", "2 * C * Dv"),),
        "another student's prices": (('mine["exp"]', '(mine["exp"] + 3)'),),
        "one too many": (("2 * token // pair)", "2 * token // pair + 1)"),),
        "one too few": (("2 * token // pair)", "2 * token // pair - 1)"),),
        "equal counts as fewer": (("2 * token // pair", "(2 * token - 1) // pair"),),
        "0 tokens": (("max(1, 2 * token // pair)", "2 * token // pair"),),
        "D only": (("(D + Dv)", "(D + D)"),),
        "one operation a pair and number": (("2 * (D + Dv)", "(D + Dv)"),),
        "not a whole number": (("2 * token // pair", "2 * token / pair"),),
        "features times keys": (("4 * C * Dv", "4 * C * D"),),
        "the course's formula": """
def first_length(D, Dv, C):
    from course.cost import crossing_lengths
    return int(crossing_lengths(D=D, Dv=Dv, C=C)["half square"]) + 1
""",
        "a constant": "def first_length(D, Dv, C):\n    return 1",
    },
)

# fading_chunks(Q, K, V): [T, C], [T, C], [T, Dv] → o [T, Dv], states [N, C, Dv]


def _fading_chunks(
    Q: Tensor, K: Tensor, V: Tensor, *, size: int, keep: float, first: int = 1, ahead: int = 0
) -> tuple[Tensor, Tensor]:
    """Token by token, and no chunk form: the truth shares no line with the answer.

    ``first``: 0 if a chunk's first token reads the state before it without fading.
    ``ahead``: 1 for the states after each chunk.
    """
    S = torch.zeros(Q.shape[1], V.shape[1]).double()
    before, out, at_start = [], [], S
    for t in range(len(Q)):
        before.append(S)
        if t % size == 0:
            at_start = S
        S = keep * S + torch.outer(K[t], V[t])
        late = keep ** (t % size) * (1 - keep) * at_start if first == 0 else 0 * S
        out.append(Q[t] @ (S + late))
    before.append(S)
    starts = range(0, len(Q), size)
    return torch.stack(out), torch.stack([before[min(t + ahead * size, len(Q))] for t in starts])


def _chunks_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    size, keep = mine["chunk"], mine["keep"]
    truth = partial(_fading_chunks, size=size, keep=keep)
    C, Dv = draw.sizes(2, 2, 5)

    def text(T: int, name: str = "") -> Case:
        return case(draw.normal(T, C), draw.normal(T, C), draw.normal(T, Dv), name=name)

    def once_a_chunk(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        """The state fades by ``keep`` from chunk to chunk, and inside nothing fades."""
        S, out, states = torch.zeros(Q.shape[1], V.shape[1]).double(), [], []
        for q, k, v in zip(Q.split(size), K.split(size), V.split(size), strict=True):
            states.append(S)
            out.append(q @ S + (q @ k.mT).tril() @ v)
            S = keep * S + k.mT @ v
        return torch.cat(out), torch.stack(states)

    def chunks_alone(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        parts = zip(Q.split(size), K.split(size), V.split(size), strict=True)
        return torch.cat([truth(q, k, v)[0] for q, k, v in parts]), truth(Q, K, V)[1]

    right = partial(
        agrees,
        truth,
        names=("o", "states"),
        probes=[text(3 * size)],
        mistakes={
            "Nothing fades: this is keep = 1": partial(_fading_chunks, size=size, keep=1.0),
            "The state fades once a chunk; it fades with every token": once_a_chunk,
            "Each chunk reads itself only: the state before it is missing in o": chunks_alone,
            "The first token of a chunk reads the state before it without fading: it is one step "
            "older by then": partial(_fading_chunks, size=size, keep=keep, first=0),
            "These are the states after each chunk; asked are those before": partial(
                _fading_chunks, size=size, keep=keep, ahead=1
            ),
            "The token itself is missing in what it reads": (
                lambda Q, K, V: (
                    truth(Q, K, V)[0] - (Q * K).sum(-1, keepdim=True) * V,
                    truth(Q, K, V)[1],
                )
            ),
        },
    )
    rule = f"keep = {keep}, chunks of {size}"
    return {
        "shape": shaped(truth, text(2 * size), names=("o", "states")),
        "outputs": right(text(2 * size), part=lambda parts, *_: parts[0], rule=f"o: {rule}"),
        "states": right(text(3 * size), part=lambda parts, *_: parts[1], rule=f"states: {rule}"),
        "last chunk": right(
            text(2 * size + 1, f"T = {2 * size + 1}"),
            text(3 * size - 1, f"T = {3 * size - 1}"),
            rule="the last chunk is shorter",
        ),
        "short text": right(
            text(size - 1, f"T = {size - 1}"), text(1, "T = 1"), rule="one chunk, not full"
        ),
        "long text": right(
            text(3001, "T = 3,001"),
            hint="keep to the power −3,000 is ∞: let powers begin anew in each chunk",
        ),
    }


FADING_CHUNKS = Question(
    "fading-chunks",
    "fading_chunks",
    _chunks_properties,
    visible=("shape", "outputs", "states"),
    advice="Right where the chunks fill the text. Try texts of other lengths: one token, one "
    "more than two chunks, and a few thousand.",
    wrong={
        "nothing fades": (('mine["keep"]', "1.0"),),
        "another student's keep": (('mine["keep"]', '(mine["keep"] - 0.05)'),),
        "another student's chunk": (('mine["chunk"]', '(mine["chunk"] + 1)'),),
        "first token reads without fading": (
            ("keep ** (place[:, None] + 1)", "keep ** place[:, None]"),
        ),
        "old state read without fading": (("keep ** (place[:, None] + 1) * (q @ S)", "q @ S"),),
        "old state not read": (("keep ** (place[:, None] + 1) * (q @ S) + ", ""),),
        "state fades once a chunk": (("keep**n * S", "keep * S"),),
        "fades inside the wrong way": (("keep ** (n - 1 - place)", "keep**place"),),
        "one step too much inside": (("keep ** (n - 1 - place)", "keep ** (n - place)"),),
        "inside nothing fades": (("near * (q @ k.mT)", "(q @ k.mT).tril()"),),
        "token itself missing": (("age >= 0", "age > 0"),),
        "the future inside a chunk": (("age >= 0", "age > -99"), ("keep**age", "keep**age.abs()")),
        "states after each chunk": (
            ("states.append(S)\n        n", "n"),
            ("@ v\n    return", "@ v\n        states.append(S)\n    return"),
        ),
        "last chunk left out": (
            (
                "        states.append(S)\n",
                "        if len(q) < size:\n            break\n        states.append(S)\n",
            ),
        ),
        "powers of the whole text": """
def fading_chunks(Q, K, V):
    keep, size = mine["keep"], mine["chunk"]
    power = keep ** torch.arange(1.0, len(Q) + 1, dtype=torch.float64)[:, None, None]
    S = (K[:, :, None] * V[:, None, :] / power).cumsum(0) * power
    before = torch.cat([0 * S[:1], S[:-1]])
    return (Q[:, None, :] @ S)[:, 0], before[::size]
""",
        "outputs only": (("return torch.cat(out), torch.stack(states)", "return torch.cat(out)"),),
        "values": "def fading_chunks(Q, K, V):\n    return V, V",
    },
)

# shorten(K, V): [T, C], [T, Dv] → [C, C], [C, Dv]: a text of C tokens with the same S and z


def _shorten(K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    z = K.double().sum(0)
    return z.diag(), K.double().mT @ V.double() / torch.where(z == 0, 1.0, z)[:, None]


def _S(K: Tensor, V: Tensor) -> Tensor:
    return K.double().mT @ V.double()


def _z(K: Tensor, V: Tensor) -> Tensor:
    return K.double().sum(0)


def _signs(K: Tensor, V: Tensor) -> Tensor:
    """What stands below 0 in the features."""
    return K.double().clamp_max(0)


def _shorten_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    C, Dv = draw.sizes(2, 3, 6)
    T = C + draw.whole(5, 12)
    K, V = draw.normal(T, C).exp(), draw.normal(T, Dv)
    unused = draw.normal(T, C).exp()
    unused[:, draw.whole(0, C - 1)] = 0
    names = ("K", "V")
    eye = torch.eye(C).double()
    mistakes = {
        "S is right, but every z is 1: the denominator of all answers has changed": (
            lambda K, V: (eye, _S(K, V))
        ),
        "z is right, and the values have to be divided by it": (
            lambda K, V: (_z(K, V).diag(), _S(K, V))
        ),
        "The values are right; each of the tokens has to weigh as much as those it stands for": (
            lambda K, V: (eye, _S(K, V) / _z(K, V)[:, None])
        ),
        "These are the first C tokens; all later ones are forgotten": (lambda K, V: (K[:C], V[:C])),
        "K is the mean of the keys here: z is T times too small": (
            lambda K, V: ((_z(K, V) / len(K)).diag(), _S(K, V) / _z(K, V)[:, None])
        ),
    }

    def equal(joint: Function, *cases: Case, **options: Any) -> Test:
        return agrees(_shorten, *cases, names=names, joint=joint, rtol=1e-6, **options)

    def both(K: Tensor, V: Tensor) -> Tensor:
        return torch.cat([_S(K, V), _z(K, V)[:, None]], 1)

    def read(rule: str, joint: Function) -> Test:
        """The sentence for a mistake needs both sums: it is looked for with both."""
        known = equal(both, case(K, V), mistakes=mistakes)
        plain = equal(joint, case(K, V), rule=rule)

        def test(function: Function) -> str | None:
            said = plain(function)
            told = (known(function) or "").partition(". ")[2] if said else ""
            return sentence(said, hint=told) if said else None

        return test

    unused_case = case(unused, V, name="a feature that no key has")
    rule = "the sums S and z"
    hint = "0/0 is NaN: what may stand in the row of a token that weighs nothing?"
    return {
        "shape": shaped(_shorten, case(K, V), names=names),
        "S": read("Kᵀ V of the short text", _S),
        "z": read("z, the sum of the short text's keys", _z),
        "features": equal(
            _signs, case(K, V), rule="no feature is below 0", hint="exp, relu and elu + 1 make none"
        ),
        "unused feature": equal(both, unused_case, rule=rule, hint=hint),
        "one token": equal(both, case(K[:1], V[:1], name="a text of one token"), rule=rule),
        "long text": equal(
            both,
            case(draw.normal(2000, C).exp(), draw.normal(2000, Dv), name="2,000 tokens"),
            rule=rule,
        ),
        "features of other texts": equal(
            _signs, unused_case, case(K[:1], V[:1]), rule="no feature is below 0"
        ),
    }


SHORTEN = Question(
    "shorten",
    "shorten",
    _shorten_properties,
    visible=("shape", "S", "z", "features"),
    advice="Right for a long text in which every feature occurs. Try a text of one token, and one "
    "in which a feature is 0 in all keys.",
    wrong={
        "z is all ones": (
            ("torch.diag(z)", "torch.eye(len(z), dtype=K.dtype)"),
            (" / safe[:, None]", ""),
        ),
        "values not divided": ((" / safe[:, None]", ""),),
        "not weighed": (("torch.diag(z)", "torch.eye(len(z), dtype=K.dtype)"),),
        "the first tokens": "def shorten(K, V):\n    return K[: K.shape[1]], V[: K.shape[1]]",
        "the last tokens": "def shorten(K, V):\n    return K[-K.shape[1] :], V[-K.shape[1] :]",
        "means": (("torch.diag(z)", "torch.diag(z / len(K))"),),
        "NaN for an unused feature": (("torch.where(z == 0, 1.0, z)", "z"),),
        "a small number added": (("torch.where(z == 0, 1.0, z)", "z + 1e-3"),),
        "by an inverse": """
def shorten(K, V):
    short = torch.diag(K.sum(0))
    return short, torch.linalg.inv(short) @ K.mT @ V
""",
        "singular vectors": """
def shorten(K, V):
    U, s, Vh = torch.linalg.svd(K.mT @ V, full_matrices=True)
    n = len(s)
    values = torch.zeros(K.shape[1], V.shape[1], dtype=K.dtype)
    values[:n] = s[:, None] * Vh[:n]
    return U.mT, values
""",
        "first tokens by a solver": """
def shorten(K, V):
    C = K.shape[1]
    return K[:C], torch.linalg.lstsq(K[:C].mT, K.mT @ V).solution
""",
        "negative features": """
def shorten(K, V):
    S, z = K.mT @ V, K.sum(0)
    short = torch.eye(len(z), dtype=K.dtype)
    short[0] += z - 1
    short[0] -= 2 * z.sum()
    short[1] += 2 * z.sum()
    return short, torch.linalg.solve(short.mT, S)
""",
        "the sums exchanged": (("K.mT @ V / safe[:, None]", "V[: len(z)]"),),
        "keys only": (("return torch.diag(z), K.mT @ V / safe[:, None]", "return torch.diag(z)"),),
        "one token": """
def shorten(K, V):
    short = torch.zeros(K.shape[1], K.shape[1], dtype=K.dtype)
    short[0] = K.sum(0)
    return short, V.mean(0).expand(K.shape[1], -1)
""",
        "the text itself": "def shorten(K, V):\n    return K, V",
    },
)

# draw_memory(ax, D, T): how many numbers one head keeps


def _places(D: int, T: int) -> Tensor:
    return torch.arange(1, T + 1).double()


def _memory(window: int) -> dict[str, Callable[[int, int], Tensor]]:
    return {
        "cache": lambda D, T: 2 * D * _places(D, T),
        "window": lambda D, T: 2 * D * _places(D, T).clamp_max(window),
        "state": lambda D, T: torch.full((T,), D * (D + 1)),
        "cubic state": lambda D, T: torch.full((T,), _width(D) * (D + 1)),
    }


def _memory_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    window, truth = mine["window"], _memory(mine["window"])
    labels = tuple(truth)
    D, wide = draw.sizes(2, 3, 12)
    one, other = (D, window + draw.whole(8, 30)), (wide, window + draw.whole(40, 90))

    def drawn_right(label: str, **mistakes: Callable[..., Tensor]) -> Test:
        words = {
            "keys": "These are the keys alone; the values are kept too",
            "whole": f"The window ends the growth: no more than {window} tokens are kept",
            "late": f"The window is one token too long or too short: it has {window}",
            "no_z": "z is missing: one more number for each feature",
        }
        told = {words[key]: mistake for key, mistake in mistakes.items()}
        return pictured(valued, one, other, label=label, truth=truth[label], mistakes=told)

    return {
        "curves": pictured(labelled, one, labels=labels),
        "axes": pictured(scaled, one, logarithmic="xy"),
        "places": pictured(placed, one, labels=labels, places=_places),
        "cache": drawn_right("cache", keys=lambda D, T: D * _places(D, T)),
        "window": drawn_right(
            "window",
            keys=lambda D, T: D * _places(D, T).clamp_max(window),
            whole=truth["cache"],
            late=lambda D, T: 2 * D * _places(D, T).clamp_max(window + 1),
        ),
        "state": drawn_right("state", no_z=lambda D, T: torch.full((T,), D * D)),
        "cubic state": drawn_right(
            "cubic state", no_z=lambda D, T: torch.full((T,), _width(D) * D)
        ),
        "short text": pictured(valued, (D, window - 3), label="window", truth=truth["window"]),
    }


DRAW_MEMORY = Question(
    "draw-memory",
    "draw_memory",
    _memory_properties,
    visible=("curves", "axes", "places", "cache"),
    advice="The picture has its four curves, labels and axes, and the cache is right. Look at the "
    "others: what is kept besides S, and how many tokens does the window hold?",
    wrong={
        "keys only": (("2 * D * n,", "D * n,"),),
        "window without end": (('n.clamp_max(mine["window"])', "n"),),
        "window of keys": (("2 * D * n.clamp_max", "D * n.clamp_max"),),
        "window one too long": (('mine["window"]', 'mine["window"] + 1'),),
        "window from the start": (('n.clamp_max(mine["window"])', '(0 * n + mine["window"])'),),
        "no z in the state": (("D * (D + 1)", "D * D"),),
        "no z in the cubic state": (("(1 + D + D**3) * (D + 1)", "(1 + D + D**3) * D"),),
        "a square, not a cube": (("D**3", "D**2"),),
        "no constant feature": (("(1 + D + D**3)", "(D + D**3)"),),
        "state grows": (("0 * n + D * (D + 1)", "n * D * (D + 1)"),),
        "states exchanged": (
            ('"state"', '"x"'),
            ('"cubic state"', '"state"'),
            ('"x"', '"cubic state"'),
        ),
        "linear axes": (("ax.loglog()", ""),),
        "one logarithmic axis": (("ax.loglog()", 'ax.set_yscale("log")'),),
        "counted from 0": (("torch.arange(1, T + 1)", "torch.arange(T)"),),
        "always 100 tokens": (("torch.arange(1, T + 1)", "torch.arange(1, 101)"),),
        "no legend": (("ax.legend()", ""),),
        "no label on x": (('ax.set_xlabel("tokens so far")', ""),),
        "nothing": "def draw_memory(ax, D, T):\n    ax.loglog()",
    },
)

ASSIGNMENT = Assignment(
    3,
    "linear_forms",
    "Linear attention: kernels, forms, the recurrence",
    (FEATURES, FIRST_LENGTH, FADING_CHUNKS, SHORTEN, DRAW_MEMORY),
    parameters,
)
