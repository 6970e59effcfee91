"""Assignment 4, after notebooks 09 and 10: what a memory of fixed size can recall."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from course.assignments.drawing import labelled, pictured, placed, scaled, valued
from course.assignments.question import Assignment, Draw, Parameters, Question
from course.checks import Test, differs
from course.checks.answers import Function, call_parts
from course.checks.properties import agrees, case, counts, sentence, shaped


def parameters(draw: Draw) -> Parameters:
    """A gate, how similar two keys are, the size of a phone book, and a number of words."""
    return {
        "decay": draw.whole(70, 82) / 100,
        "cosine": draw.whole(3, 9) / 100,
        "writes": draw.whole(7, 9),
        "width": draw.whole(3, 5),
        "vocabulary": draw.whole(6, 12),
    }


# split_reading(K, V, i): [N, D], [N, Dv], int → [Dv], [Dv]

_PARTS = ("signal", "crosstalk")


def _split(K: Tensor, V: Tensor, i: int, *, decay: float, late: int = 1) -> tuple[Tensor, Tensor]:
    age = len(K) - late - torch.arange(len(K)).double()
    parts = (decay**age * (K.double() @ K[i].double()))[:, None] * V.double()
    others = torch.arange(len(K)) != i
    return parts[i], parts[others].sum(0)


def _split_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    decay = mine["decay"]
    D, Dv, N = draw.sizes(3, 4, 9)
    truth = partial(_split, decay=decay)
    unit = partial(normalize, dim=-1)
    middle = draw.whole(1, N - 3)
    ordinary = case(unit(draw.normal(N, D)), draw.normal(N, Dv), middle)
    long = case(draw.normal(N, D), draw.normal(N, Dv), middle)
    twice = unit(draw.normal(N, D))
    twice[-1] = twice[middle]

    def signal_of_length_1(K: Tensor, V: Tensor, i: int) -> tuple[Tensor, Tensor]:
        return decay ** (len(K) - 1 - i) * V[i], truth(K, V, i)[1]

    right = partial(
        agrees,
        truth,
        names=_PARTS,
        probes=[long],
        mistakes={
            "The gate is missing: what was written earlier has faded": partial(_split, decay=1.0),
            "All has faded once too often: before the first write there is nothing to fade, and "
            "nothing fades after the last": partial(_split, decay=decay, late=0),
            "The oldest pair keeps most: the powers run the wrong way": (
                lambda K, V, i: _split(K, V, i, decay=1 / decay, late=len(K))
            ),
            "The crosstalk still holds the value that was asked for": (
                lambda K, V, i: (truth(K, V, i)[0], sum(truth(K, V, i)))
            ),
            "The crosstalk here is the whole error: reading minus value. What has faded of the "
            "own value is no crosstalk": (
                lambda K, V, i: (truth(K, V, i)[0], sum(truth(K, V, i)) - V[i])
            ),
            "The signal is what the state gives back of the value, not the value": (
                lambda K, V, i: (V[i], truth(K, V, i)[1])
            ),
            "The keys are made to length 1 here; they are to stay as they come": (
                lambda K, V, i: truth(unit(K), V, i)
            ),
            "The own key has not always length 1: what is its product with itself?": (
                signal_of_length_1
            ),
        },
    )
    return {
        "shape": shaped(truth, ordinary, names=_PARTS),
        "sum is the reading": right(
            ordinary, joint=torch.add, rule="signal + crosstalk is what the state answers"
        ),
        "signal": right(ordinary, rule=f"with decay = {decay}"),
        "keys of any length": right(long),
        "newest and oldest pair": right(
            case(unit(draw.normal(N, D)), draw.normal(N, Dv), N - 1, name="the newest"),
            case(unit(draw.normal(N, D)), draw.normal(N, Dv), 0, name="the oldest"),
        ),
        "one pair": right(
            case(draw.normal(1, D), draw.normal(1, Dv), 0, name="one pair"),
            rule="there is no other pair, so the crosstalk is 0",
        ),
        "a key that came twice": right(
            case(twice, draw.normal(N, Dv), middle, name="a later pair has the same key"),
            hint="The later pair is another pair: its value is crosstalk for the earlier one",
        ),
    }


SPLIT_READING = Question(
    "split-reading",
    "split_reading",
    _split_properties,
    visible=("shape", "sum is the reading", "signal"),
    advice="Right for different keys of length 1 and a pair in the middle. Which other phone "
    "books does the question allow?",
    wrong={
        "no gate": (('mine["decay"] ** age * ', ""),),
        "one write too many": (("len(K) - 1 -", "len(K) -"),),
        "the oldest keeps most": (("len(K) - 1 - torch.arange", "torch.arange"),),
        "length 1 assumed": (("return parts[i],", 'return mine["decay"] ** age[i] * V[i],'),),
        "the value itself": (("return parts[i],", "return V[i],"),),
        "own value in the crosstalk": (("parts.sum(0) - parts[i]", "parts.sum(0)"),),
        "error, not crosstalk": (("parts.sum(0) - parts[i]", "parts.sum(0) - V[i]"),),
        "parts exchanged": (
            (
                "return parts[i], parts.sum(0) - parts[i]",
                "return parts.sum(0) - parts[i], parts[i]",
            ),
        ),
        "absolute products": (("(K @ K[i])", "(K @ K[i]).abs()"),),
        "keys made to length 1": (
            ("(K @ K[i])", "torch.nn.functional.cosine_similarity(K, K[i : i + 1], dim=-1)"),
        ),
        "another student's number": (('mine["decay"]', '(mine["decay"] - 0.02)'),),
        "the gate twice": (("** age", "** (2 * age)"),),
        "equal keys are one pair": """
def split_reading(K, V, i):
    age = len(K) - 1 - torch.arange(len(K)).to(K.dtype)
    parts = (mine["decay"] ** age * (K @ K[i]))[:, None] * V
    same = (K == K[i]).all(1)
    return parts[same].sum(0), parts[~same].sum(0)
""",
        "only later pairs": (("parts.sum(0) - parts[i]", "parts[i + 1 :].sum(0)"),),
        "root mean square": (("parts.sum(0) - parts[i]", "(parts**2).sum(0).sqrt() - parts[i]"),),
        "value and nothing": "def split_reading(K, V, i):\n    return V[i], torch.zeros_like(V[i])",
    },
)

# width_needed(N, error): whole numbers


def _width(
    N: int, error: float, *, cosine: float, others: int = 1, shared: int = 1, whole=math.ceil
) -> int:
    pairs = N - others
    room = error**2 - pairs * cosine**2
    if N == 1:
        return 2
    return 0 if room <= 0 else max(2, shared + whole(pairs * (1 - cosine) ** 2 / room))


def _error(N: int, D: float, cosine: float) -> float:
    """The law of notebook 09, section 3."""
    return math.sqrt((N - 1) * (cosine**2 + (1 - cosine) ** 2 / (D - 1)))


def _width_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    cosine = mine["cosine"]
    truth = partial(_width, cosine=cosine)

    def needs(N: int, D: int) -> float:
        """An error that D is just wide enough for; no rounding makes it another width."""
        return _error(N, D - 0.5, cosine)

    def asked(N: int, D: int, name: str = ""):
        return case(N, needs(N, D), name=name or f"N = {N}, error {needs(N, D):.4f}")

    pairs = [draw.whole(5, 12), draw.whole(13, 30)]
    ordinary = [asked(N, draw.whole(20, 70)) for N in pairs]
    limit = [math.sqrt(N - 1) * cosine for N in pairs]
    right = partial(
        counts,
        truth,
        probes=ordinary,
        mistakes={
            "This is the law for keys that have nothing in common: yours share a direction": (
                lambda N, error: math.ceil((N - 1) / error**2)
            ),
            "One too narrow: the part that the keys do not share has D − 1 directions": (
                partial(_width, cosine=cosine, shared=0)
            ),
            "One too narrow: at this width the error is still too large. Round up": (
                partial(_width, cosine=cosine, whole=math.floor)
            ),
            "N − 1 other pairs leak into a reading, not N": partial(
                _width, cosine=cosine, others=0
            ),
            "The own part of a key has the weight 1 − ρ in the cosine, and is squared": (
                lambda N, error: (
                    1 + math.ceil((N - 1) * (1 - cosine) / (error**2 - (N - 1) * cosine**2))
                )
            ),
            "The law is squared on one side only": (
                lambda N, error: (
                    1 + math.ceil((N - 1) * (1 - cosine) ** 2 / abs(error - (N - 1) * cosine**2))
                )
            ),
        },
    )
    return {
        "ordinary sizes": right(*ordinary, rule=f"with cosine = {cosine}"),
        "no width is enough": right(
            *(
                case(N, 0.9 * least, name=f"N = {N}, error {0.9 * least:.4f}")
                for N, least in zip(pairs, limit, strict=True)
            ),
            hint="What is left of the error if D grows without end? Then return 0",
            mistakes=None,
        ),
        "just above the limit": right(
            *(asked(N, draw.whole(200_000, 900_000)) for N in pairs),
            hint="A very large width is a width",
        ),
        "an error above 1": right(
            asked(draw.whole(60, 90), draw.whole(4, 9)),
            hint="The plain error may be above 1: it is an error that somebody allows",
        ),
        "the smallest width": right(
            case(3, 5.0, name="N = 3, error 5"), rule="two keys need at least D = 2", mistakes=None
        ),
        "one pair": right(
            case(1, 0.01, name="N = 1"),
            rule="nothing leaks, so the smallest width is enough",
            mistakes=None,
        ),
    }


WIDTH_NEEDED = Question(
    "width-needed",
    "width_needed",
    _width_properties,
    visible=("ordinary sizes", "no width is enough"),
    advice="Right for ordinary numbers. Try one pair, an error above 1, and an error just above "
    "the one that no width goes below.",
    wrong={
        "independent keys": """
def width_needed(N, error):
    return math.ceil((N - 1) / error**2) if error > (N - 1) ** 0.5 * mine["cosine"] else 0
""",
        "one too narrow": (("1 + math.ceil", "math.ceil"),),
        "rounded down": (("math.ceil", "math.floor"),),
        "rounded to the nearest, one added": (("1 + math.ceil", "2 + round"),),
        "N pairs": (("pairs = N - 1", "pairs = N"),),
        "own part not squared": (('(1 - mine["cosine"]) ** 2', '(1 - mine["cosine"])'),),
        "shared part not squared": (('mine["cosine"] ** 2', 'mine["cosine"]'),),
        "error not squared": (("error**2", "error"),),
        "negative width": (("if room <= 0:", "if False:"),),
        "another student's number": (('mine["cosine"]', '(mine["cosine"] + 0.01)'),),
        "one pair needs nothing": (("return 2", "return 0"),),
        "at most 100,000": """
def width_needed(N, error):
    for D in range(2, 100_000):
        law = (N - 1) * (mine["cosine"] ** 2 + (1 - mine["cosine"]) ** 2 / (D - 1))
        if law**0.5 <= error:
            return D
    return 0
""",
        "below the error of an empty state": """
def width_needed(N, error):
    error = min(error, 1.0)
    for D in range(2, 10_000_000):
        law = (N - 1) * (mine["cosine"] ** 2 + (1 - mine["cosine"]) ** 2 / (D - 1))
        if (N - 1) * mine["cosine"] ** 2 >= error**2:
            return 0
        if law**0.5 <= error:
            return D
""",
        "the best factor": (("error**2 - ", "error**2 / abs(1 - error**2) - "),),
        "as many as pairs": "def width_needed(N, error):\n    return N",
        "none": "def width_needed(N, error):\n    return 0",
    },
)

# fools(rule): keys [writes, width] and words [writes] on which one rule alone is wrong

RULES = ("add", "gate", "delta")
WORDS = 4
LEAD = 0.01


def state_after(rule: str, K: Tensor, words: Tensor, decay: float) -> Tensor:
    """The state ``[D, 4]`` after all writes, as the notebook's cell computes it."""
    S = torch.zeros(K.shape[1], WORDS, dtype=K.dtype)
    for k, v in zip(K, one_hot(words, WORDS).to(K), strict=True):
        if rule == "gate":
            S = decay * S
        S = S + torch.outer(k, v - k @ S if rule == "delta" else v)
    return S


def lead_of_right(rule: str, K: Tensor, words: Tensor, decay: float) -> Tensor:
    """By how much the newest word of each name leads in its reading; below 0: a wrong answer."""
    same = K @ K.T > 1 - 1e-6
    last = (same * torch.arange(1, len(K) + 1)).argmax(1)  # the last write of each name
    expected = words[last]
    read = K @ state_after(rule, K, words, decay)
    right = read.gather(1, expected[:, None])[:, 0]
    others = read.scatter(1, expected[:, None], -torch.inf).amax(1)
    return right - others


def _book(function: Function, rule: str, mine: Parameters) -> tuple[Tensor, Tensor]:
    N, D = mine["writes"], mine["width"]
    K, words = call_parts(function, rule, shapes={"K": (N, D), "words": (N,)})
    return K.double(), words


def _sound(mine: Parameters) -> Test:
    def test(function: Function) -> str | None:
        for rule in RULES:
            K, words = _book(function, rule, mine)
            if not bool(torch.isfinite(K).all()) or differs(K.norm(dim=1), torch.ones(len(K))):
                return f"{rule}: every key must have length 1"
            whole = words.double() == words.double().round()
            if not bool((whole & (words >= 0) & (words < WORDS)).all()):
                return f"{rule}: words must be whole numbers from 0 to {WORDS - 1}"
            cosines = K @ K.T
            if bool(((cosines > 0.9) & (cosines < 1 - 1e-6)).any()):
                return (
                    f"{rule}: two different keys have a cosine above 0.9; give both the same key "
                    "(one name), or keys farther apart"
                )
        return None

    return test


def _fooled(rule: str, mine: Parameters) -> Test:
    """The memory ``rule`` answers some name wrongly, and the other two answer all rightly."""

    def test(function: Function) -> str | None:
        K, words = _book(function, rule, mine)
        leads = {r: lead_of_right(r, K, words.long(), mine["decay"]) for r in RULES}
        if float(leads[rule].min()) > -LEAD:
            return sentence(
                f"for {rule}",
                f"no answer of this memory is wrong by {LEAD} (smallest lead of a right word: "
                f"{float(leads[rule].min()):.3f})",
                hint=_WEAKNESS[rule],
            )
        wrong = [r for r in RULES if r != rule and float(leads[r].min()) < LEAD]
        if wrong:
            return sentence(
                f"for {rule}",
                f"{' and '.join(wrong)} is not right by {LEAD} here (smallest lead "
                f"{float(leads[wrong[0]].min()):.3f})",
                hint=f"Only {rule} may fail. {_STRENGTH[wrong[0]]}",
            )
        return None

    return test


_WEAKNESS = {
    "add": "Addition never takes anything back. What does it answer if a number changes?",
    "gate": "The gate fades what is right, too. What can still outvote a faded value?",
    "delta": "A correction takes away what the state had in the direction of its key",
}
_STRENGTH = {
    "add": "Addition answers rightly if no name changes its word and no two crosstalks add up",
    "gate": "The gate needs time between the old writes and the new one, and little crosstalk on "
    "old names",
    "delta": "The delta rule reads the newest pair exactly; how much does it take from an older "
    "one whose key has the cosine c with it?",
}


def _fools_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    return {"form": _sound(mine), **{rule: _fooled(rule, mine) for rule in RULES}}


FOOLS = Question(
    "fool-one-memory",
    "fools",
    _fools_properties,
    visible=("form", *RULES),
    advice="",
    wrong={
        "one book for all": (('rule == "add"', "True"),),
        "the rules mixed up": (
            ('rule == "add"', 'rule == "gate"'),
            ('elif rule == "gate"', "elif rule == 'add'"),
        ),
        "old word once": (("K[[0, 1, -1]]", "K[[0, -1]]"), ("words[[0, 1]]", "words[[0]]")),
        "old word just before": (
            ("[[0, 1, -1]]", "[[-3, -2, -1]]"),
            ("words[[0, 1]]", "words[[-3, -2]]"),
        ),
        "the word never changes": (("words[-1] = 1  # another", "words[-1] = 0  # another"),),
        "no time to fade": (("K[0], words[0] = anna, 0", "K[-2], words[-2] = anna, 0"),),
        "too near for delta": (("near(0.5)", "near(0.8)"),),
        "perpendicular keys": (("near(0.5)", "near(0.0)"),),
        "too far for delta to fail": (('near((0.62 + mine["decay"]) / 2)', "near(0.5)"),),
        "too near for the gate": (('near((0.62 + mine["decay"]) / 2)', "near(0.85)"),),
        "nearly the same key": (('near((0.62 + mine["decay"]) / 2)', "near(0.98)"),),
        "keys longer than 1": (("torch.sqrt(1 - c**2)", "1.0"),),
        "five words": (("torch.full((N,), 3)", "torch.full((N,), 4)"),),
        "one write too many": (('N = mine["writes"]', 'N = mine["writes"] + 1'),),
        "keys only": (("return K, words", "return K"),),
        "words first": (("return K, words", "return words, K"),),
        "zeros": """
def fools(rule):
    return torch.zeros(mine["writes"], mine["width"]), torch.zeros(mine["writes"]).long()
""",
        "one name, one word": """
def fools(rule):
    K = torch.zeros(mine["writes"], mine["width"])
    K[:, 0] = 1
    return K, torch.zeros(mine["writes"]).long()
""",
    },
)

# draw_recall(ax, K, words): share of names answered rightly, after each write


def _recall_curves(K: Tensor, words: Tensor, vocabulary: int) -> dict[str, Tensor]:
    V = one_hot(words, vocabulary).double()
    shares: dict[str, list[float]] = {"additive": [], "delta rule": []}
    S = {name: torch.zeros(K.shape[1], vocabulary).double() for name in shares}
    for n, (k, v) in enumerate(zip(K.double(), V, strict=True), 1):
        S["additive"] = S["additive"] + torch.outer(k, v)
        S["delta rule"] = S["delta rule"] + torch.outer(k, v - k @ S["delta rule"])
        for name, state in S.items():
            right = (K[:n].double() @ state).argmax(1) == words[:n]
            shares[name].append(float(right.double().mean()))
    found = {name: torch.tensor(share).double() for name, share in shares.items()}
    return found | {"chance": torch.full((len(K),), 1 / vocabulary).double()}


def _pairs(draw: Draw, N: int, D: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    keys = normalize(draw.normal(N, D), dim=-1)
    return keys, torch.tensor([draw.whole(0, vocabulary - 1) for _ in range(N)])


def _writes(K: Tensor, words: Tensor) -> Tensor:
    return torch.arange(1, len(K) + 1).double()


def _recall_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    W = mine["vocabulary"]
    shown = _pairs(draw, 24, 6, W)
    wide, narrow = _pairs(draw, 15, 20, W), _pairs(draw, 40, 3, W)
    few = narrow[0], narrow[1].clamp_max(W - 2)  # the last word never comes
    again = _pairs(draw, 20, 5, W)
    again[0][10:] = again[0][:10]  # ten names, each written twice
    again[1][10:] = again[1][:10]
    labels = ("additive", "delta rule", "chance")
    hints = {
        "additive": "After n writes ask for the n names so far, and divide by n",
        "delta rule": "Each write adds the key times (value − what the key reads before)",
        "chance": 'One of mine["vocabulary"] words',
    }

    def drawn_right(label: str, *given: tuple[Tensor, Tensor]) -> Test:
        def truth(K: Tensor, words: Tensor) -> Tensor:
            return _recall_curves(K, words, W)[label]

        return pictured(valued, *given, label=label, truth=truth, hint=hints[label])

    return {
        "curves": pictured(labelled, shown, labels=labels),
        "axes": pictured(scaled, shown),
        "positions": pictured(placed, shown, labels=labels, places=_writes),
        "additive": drawn_right("additive", shown),
        "delta rule": drawn_right("delta rule", shown, wide, narrow),
        "other sizes": drawn_right("additive", wide, narrow, again),
        "chance": drawn_right("chance", shown, few),
    }


RECALL = Question(
    "recall-against-pairs",
    "draw_recall",
    _recall_properties,
    visible=("curves", "axes", "positions", "additive"),
    advice="The picture has its curves, labels and axes, and addition is right. Look at the other "
    "two curves, and at more pairs than the width.",
    wrong={
        "delta rule without reading": (("v - k @ S", "v"),),
        "delta rule reads after": (("k @ S", "2 * k @ S"),),
        "half a correction": (("(v - k @ S)", "(0.5 * (v - k @ S))"),),
        "newest pair only": (
            (
                "K[:n] @ S).argmax(1) == words[:n]",
                "K[n - 1 : n] @ S).argmax(1) == words[n - 1 : n]",
            ),
        ),
        "all names, also those to come": (
            ("(K[:n] @ S).argmax(1) == words[:n]", "(K @ S).argmax(1) == words"),
        ),
        "number, not share": ((".double().mean()", ".double().sum()"),),
        "errors, not right answers": (("== words[:n]", "!= words[:n]"),),
        "counted from 0": (("range(1, len(K) + 1), shares", "range(len(K)), shares"),),
        "no legend": (("ax.legend()", ""),),
        "no label on x": (('ax.set_xlabel("pairs written")', ""),),
        "no label on y": (('ax.set_ylabel("share answered rightly")', ""),),
        "chance of two": (('1 / mine["vocabulary"]', "1 / 2"),),
        "chance of the words that came": (('1 / mine["vocabulary"]', "1 / len(words.unique())"),),
        "labels exchanged": (
            ('"additive": False, "delta rule": True', '"additive": True, "delta rule": False'),
        ),
        "nearest key": (("(K[:n] @ S).argmax(1)", "(K[:n] @ K[:n].T).argmax(1)"),),
        "nothing drawn": "def draw_recall(ax, K, words):\n    ax.set_xlabel('pairs')",
    },
)

ASSIGNMENT = Assignment(
    4,
    "recall",
    "What a memory of fixed size can recall",
    (SPLIT_READING, WIDTH_NEEDED, FOOLS, RECALL),
    parameters,
)
