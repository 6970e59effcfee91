"""Assignment 1, after notebook 01: from an average to attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from course.assignments.drawing import labelled, pictured, placed, scaled, valued
from course.assignments.question import Assignment, Draw, Parameters, Question
from course.checks import Test, differs
from course.checks.answers import Function, call_parts
from course.checks.properties import agrees, all_of, case, no_future, sentence, shaped


def parameters(draw: Draw) -> Parameters:
    """The weight that is left one word later, a window, and which program has which bug."""
    return {
        "keep": draw.whole(55, 75) / 100,
        "window": draw.whole(3, 6),
        "boost": draw.choice([2.5, 3.0, 3.5, 4.5, 5.0]),
        "order": draw.permutation(4).tolist(),
        "words": draw.whole(3, 7),
    }


# fading_mean(x): [T, E] → [T, E]


def _fading_mean(x: Tensor, keep: float) -> Tensor:
    age = torch.arange(len(x))[:, None] - torch.arange(len(x))
    weights = torch.where(age >= 0, keep ** age.double(), 0.0)
    return weights / weights.sum(-1, keepdim=True) @ x.double()


def _fading_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    keep = mine["keep"]
    T, E, longer = draw.sizes(3, 4, 11)
    truth = partial(_fading_mean, keep=keep)
    right = partial(
        agrees,
        truth,
        probes=[case(draw.normal(T, E))],
        mistakes={
            "This is the plain mean: the older a word, the less it counts": (
                lambda x: _fading_mean(x, 1.0)
            ),
            "The oldest word counts most: the powers run the wrong way": (
                lambda x: _fading_mean(x, 1 / keep)
            ),
            "The weights do not sum to 1: divide by their own sum, not by the number of words": (
                lambda x: _fading_mean(x, keep) * ((1 - keep ** _place(x)) / (1 - keep) / _place(x))
            ),
            "The weighted sum is not divided by the sum of the weights": (
                lambda x: _fading_mean(x, keep) * (1 - keep ** _place(x)) / (1 - keep)
            ),
            "new = keep · old + (1 − keep) · word begins from zero: the first rows are too small": (
                lambda x: _fading_mean(x, keep) * (1 - keep ** _place(x))
            ),
            "Of each row the present word is missing": (
                lambda x: torch.cat([torch.zeros(1, x.shape[1]).double(), truth(x)[:-1]])
            ),
        },
    )
    return {
        "shape": shaped(truth, case(draw.normal(T, E))),
        "first word": right(
            case(draw.normal(1, E), name="one word"), rule="the mean of one word is the word"
        ),
        "values": right(case(draw.normal(T, E)), rule=f"with keep = {keep}"),
        "no future": no_future(draw.normal(T, E), at=T // 2),
        "weights sum to 1": right(
            case(torch.ones(longer, 2).double(), name="equal words"),
            rule="the mean of equal words is that word",
        ),
        "longer texts": right(case(draw.normal(60, 3), name="60 words")),
        "far back": right(
            case(draw.eighths(3000, 2), name="3,000 words"),
            hint="keep to the power of a few thousand is 0 in every dtype: 1/0 is ∞",
        ),
    }


def _place(x: Tensor) -> Tensor:
    return torch.arange(1, len(x) + 1).double()[:, None]


FADING_MEAN = Question(
    "fading-mean",
    "fading_mean",
    _fading_properties,
    visible=("shape", "first word", "values"),
    advice="Right for the short texts of the visible check. Try other lengths, also very long "
    "ones, and words that are all equal; change a later word and look at earlier rows.",
    wrong={
        "plain mean": (('mine["keep"] ** age', "1.0**age"),),
        "powers the wrong way": (("** age", "** -age"),),
        "divided by T": (("weights.sum(-1, keepdim=True)", "len(x)"),),
        "not divided": (("weights / weights.sum(-1, keepdim=True)", "weights"),),
        "divided along the wrong axis": (("sum(-1,", "sum(0,"),),
        "future not hidden": (
            ("torch.where(age >= 0, mine", "(mine"),
            ("** age, 0.0)", "** age.abs())"),
        ),
        "present word missing": (("age >= 0", "age > 0"),),
        "recurrence from zero": """
def fading_mean(x):
    keep, mean, rows = mine["keep"], torch.zeros_like(x[0]), []
    for word in x:
        mean = keep * mean + (1 - keep) * word
        rows.append(mean)
    return torch.stack(rows)
""",
        "scaled powers": """
def fading_mean(x):
    powers = (1 / mine["keep"]) ** torch.arange(len(x)).double()[:, None]
    return (powers * x).cumsum(0) / powers.cumsum(0)
""",
        "softmax of the ages": """
def fading_mean(x):
    age = (torch.arange(len(x))[:, None] - torch.arange(len(x))).to(x.dtype)
    scores = (-age * mine["keep"]).masked_fill(age < 0, -torch.inf)
    return scores.softmax(-1) @ x
""",
        "another student's number": (('mine["keep"]', '(mine["keep"] + 0.05)'),),
        "last row only": """
def fading_mean(x):
    weights = mine["keep"] ** torch.arange(len(x) - 1, -1, -1).to(x.dtype)
    return (weights / weights.sum()) @ x
""",
        "changes x in place": """
def fading_mean(x):
    for t in range(1, len(x)):
        x[t] += mine["keep"] * x[t - 1]
    return x
""",
        "copies the input": "def fading_mean(x):\n    return x",
        "zeros of the right shape": "def fading_mean(x):\n    return torch.zeros_like(x)",
    },
)

# scores_for(weights): [T, T] → [T, T], the largest allowed score of a row is 0


def _scores_for(weights: Tensor) -> Tensor:
    past = torch.ones_like(weights).tril().bool()
    scores = weights.double().log().masked_fill(~past, -torch.inf)
    return scores - scores.amax(-1, keepdim=True)


def _weights(draw: Draw, T: int, hidden: float = 0.0) -> Tensor:
    """Row-stochastic, lower triangular; the share ``hidden`` of the earlier words gets 0."""
    scores = 2 * draw.normal(T, T)
    drop = (draw.normal(T, T).sigmoid() < hidden) & ~torch.eye(T, dtype=torch.bool)
    return scores.masked_fill(drop | torch.ones(T, T).triu(1).bool(), -torch.inf).softmax(-1)


def _as_weights(scores: Tensor, *_: Tensor) -> Tensor:
    return scores.double().softmax(-1)


def _scores_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    T, longer = draw.sizes(2, 4, 10)
    right = partial(
        agrees,
        _scores_for,
        probes=[case(_weights(draw, T))],
        mistakes={
            "These are the weights themselves: the softmax will take exp of them": (lambda w: w),
            "These are the logarithms of the weights. Which number can be added to a row without "
            "changing its softmax? The largest score is to be 0": lambda w: w.log(),
            "The largest score is 0 in each column, not in each row": (
                lambda w: w.log() - w.log().amax(0, keepdim=True)
            ),
            "The largest score of the whole matrix is 0, not that of each row": (
                lambda w: w.log() - w.log().max()
            ),
            "The sign is the wrong way round": lambda w: -_scores_for(w),
            "This is divided by the largest weight, and the logarithm is missing": (
                lambda w: w / w.amax(-1, keepdim=True)
            ),
        },
    )
    return {
        "shape": shaped(_scores_for, case(_weights(draw, T))),
        "softmax gives the weights": right(
            case(_weights(draw, T)), part=_as_weights, rule="softmax of the scores"
        ),
        "largest score is 0": right(case(_weights(draw, T)), rule="the largest of each row is 0"),
        "hidden words": right(
            case(_weights(draw, longer, 0.4), name="some earlier words have weight 0"),
            hint="The weight 0 needs the score −∞, and nothing else makes it",
        ),
        "small weights": right(
            case(
                (60 * draw.normal(T, T))
                .tril()
                .masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
                .softmax(-1),
                name="weights down to 1e-80",
            ),
            rtol=1e-9,
            hint="Is a small number added before the logarithm? It hides smaller weights",
        ),
    }


SCORES_FOR = Question(
    "scores-for-weights",
    "scores_for",
    _scores_properties,
    visible=("shape", "softmax gives the weights", "largest score is 0"),
    advice="Right for the weights of the visible check, where every earlier word counts. Which "
    "weights can a row have besides?",
    wrong={
        "the weights": "def scores_for(weights):\n    return weights",
        "logarithms only": (("scores - scores.amax(-1, keepdim=True)", "scores"),),
        "columns": (("amax(-1,", "amax(0,"),),
        "whole matrix": (("scores.amax(-1, keepdim=True)", "scores.max()"),),
        "sign": (("scores - scores.amax", "-scores - (-scores).amax"),),
        "base 2": (("weights.log()", "weights.log2()"),),
        "1e-9 added": (("weights.log()", "(weights + 1e-9).log()"),),
        "1e-30 added": (("weights.log()", "(weights + 1e-30).log()"),),
        "finite constant": """
def scores_for(weights):
    scores = weights.clamp_min(1e-300).log()
    return scores - scores.amax(-1, keepdim=True)
""",
        "no logarithm": (("weights.log()", "weights"),),
        "mean taken off": (("scores.amax(-1, keepdim=True)", "scores.mean(-1, keepdim=True)"),),
        "divided by the largest": (
            "def scores_for(weights):\n    return weights / weights.amax(-1, keepdim=True)"
        ),
        "diagonal is 0": (("scores.amax(-1, keepdim=True)", "scores.diagonal()[:, None]"),),
        "zeros": "def scores_for(weights):\n    return torch.zeros_like(weights)",
    },
)


# recent_mean(x, real): [T, E], [T] → [T, E]


def _recent_mean(x: Tensor, real: Tensor, *, window: int, boost: float) -> Tensor:
    place = torch.arange(len(x))
    age = place[:, None] - place
    weights = ((age >= 0) & (age < window) & real).double()
    weights = torch.where(age == 0, boost * weights, weights)
    clean = torch.where(real[:, None], x.double(), 0.0)
    return weights @ clean / weights.sum(-1, keepdim=True).clamp_min(1.0)


def _padded(draw: Draw, T: int, share: float) -> Tensor:
    """Which words are real: the first one is, and the share of the others that is not."""
    real = draw.normal(T) > torch.special.ndtri(torch.tensor(share).double())
    real[0] = True
    return real


def _recent_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    window, boost = mine["window"], mine["boost"]
    T, E, longer = window + draw.whole(3, 5), draw.whole(2, 4), window + draw.whole(7, 12)
    truth = partial(_recent_mean, window=window, boost=boost)
    all_real = torch.ones(T, dtype=torch.bool)
    real = _padded(draw, longer, 0.4)
    gap = torch.ones(longer, dtype=torch.bool)
    gap[2 : 2 + window + 1] = False
    late = torch.ones(T, dtype=torch.bool)
    late[:2] = False
    x = draw.normal(longer, E)
    poisoned = torch.where(real[:, None], x, torch.nan)

    def uncounted(x: Tensor, real: Tensor) -> Tensor:
        """Words that are not real are zeros, and counted."""
        everything = torch.ones_like(real)
        return truth(torch.where(real[:, None], x, 0.0), everything)

    of_window = {
        f"The window is one word too long: with the present one it has {window}": partial(
            _recent_mean, window=window + 1, boost=boost
        ),
        f"The window is one word too short: with the present one it has {window}": partial(
            _recent_mean, window=window - 1, boost=boost
        ),
        "The present word counts like all others": partial(_recent_mean, window=window, boost=1.0),
        "The present word counts boost + 1 times": partial(
            _recent_mean, window=window, boost=boost + 1
        ),
        "There is no window: all words so far count": partial(
            _recent_mean, window=10**6, boost=boost
        ),
    }
    of_padding = {
        "Words that are not real are zeros here, and still counted in the denominator": uncounted,
        "real is not used": lambda x, real: truth(x, torch.ones_like(real)),
        "True means a real word: here it is the other way round": (lambda x, real: truth(x, ~real)),
        "real hides rows here; a word that is not real is a column that no row may use": (
            lambda x, real: real[:, None] * truth(x, torch.ones_like(real))
        ),
    }
    right = partial(agrees, truth, probes=[case(draw.normal(longer, E), real)], mistakes=of_padding)
    return {
        "shape": shaped(truth, case(draw.normal(T, E), all_real)),
        "no padding": right(
            case(draw.normal(T, E), all_real),
            rule=f"window = {window}, boost = {boost}, all words real",
            probes=[case(draw.normal(longer, E), torch.ones_like(real))],
            mistakes=of_window,
        ),
        "padding": right(case(draw.normal(longer, E), real), rule="some words are not real"),
        "empty window": right(
            case(draw.normal(longer, E), gap, name="more padding than the window is long"),
            case(draw.normal(T, E), late, name="the text begins with padding"),
            hint="A row whose window holds no real word is zeros: 0/0 is NaN",
            mistakes=None,
        ),
        "anything in the padding": right(
            case(poisoned, real, name="NaN in the words that are not real"),
            hint="0 · NaN is NaN: put 0 in the place of those words, do not multiply with 0",
            mistakes=None,
        ),
        "no future": no_future(draw.normal(T, E), all_real, at=T - 2),
        "one word": right(case(draw.normal(1, E), all_real[:1]), mistakes=None),
    }


RECENT_MEAN = Question(
    "recent-mean",
    "recent_mean",
    _recent_properties,
    visible=("shape", "no padding", "padding"),
    advice="Right where every row has a real word in its window and the padding holds ordinary "
    "numbers. Read the last two sentences of the question again.",
    wrong={
        "window one too long": (('age < mine["window"]', 'age <= mine["window"]'),),
        "window one too short": (('age < mine["window"]', 'age < mine["window"] - 1'),),
        "no window": ((' & (age < mine["window"])', ""),),
        "no boost": (('mine["boost"] * weights, weights', "weights, weights"),),
        "boost added": (('mine["boost"] * weights', 'mine["boost"] + weights'),),
        "boost of the word before": (("age == 0", "age == 1"),),
        "padding counted": (
            ('(age >= 0) & (age < mine["window"]) & real', '(age >= 0) & (age < mine["window"])'),
        ),
        "rows of padding hidden, not columns": (("& real)", "& real[:, None])"),),
        "real the wrong way round": (("& real)", "& ~real)"),),
        "NaN in an empty row": ((".clamp_min(1)", ""),),
        "a small number in the denominator": ((".clamp_min(1)", " + 1e-2"),),
        "divided by the window": (
            ("weights.sum(-1, keepdim=True).clamp_min(1)", 'mine["window"]'),
        ),
        "NaN leaks from the padding": (
            ("torch.where(real[:, None], x, 0.0)", "x * real[:, None]"),
        ),
        "future visible": (("(age >= 0)", "(age > -2)"),),
        "empty row copies the word": """
def recent_mean(x, real):
    place = torch.arange(len(x))
    age = place[:, None] - place
    weights = ((age >= 0) & (age < mine["window"]) & real).to(x.dtype)
    weights = torch.where(age == 0, mine["boost"] * weights, weights)
    clean = torch.where(real[:, None], x, 0.0)
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights @ clean / total.clamp_min(1), x)
""",
        "copies the input": "def recent_mean(x, real):\n    return x",
        "zeros": "def recent_mean(x, real):\n    return torch.zeros_like(x)",
    },
)

# exposes(name): scores [T, T] and real [T] on which program ``name`` alone is wrong


def _allowed(scores: Tensor, real: Tensor) -> Tensor:
    return torch.ones_like(scores).tril().bool() & real


def masked_weights(scores: Tensor, real: Tensor) -> Tensor:
    """What all four programs should compute."""
    allowed = _allowed(scores, real)
    weights = scores.double().masked_fill(~allowed, -torch.inf).softmax(-1)
    return torch.where(allowed.any(-1, keepdim=True), weights, 0.0)


# The four programs as the student reads them in the notebook (a test holds the two together).


def program_0(scores, real):
    allowed = torch.ones_like(scores).tril().bool() & real
    weights = scores.masked_fill(~allowed, -50.0).softmax(-1)
    return weights * allowed.any(-1, keepdim=True)


def program_1(scores, real):
    allowed = torch.ones_like(scores).tril().bool() & real
    weights = scores.exp() * allowed
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total, 0.0)


def program_2(scores, real):
    past = torch.ones_like(scores).tril().bool()
    weights = scores.masked_fill(~past, -torch.inf).softmax(-1)
    return weights * real


def program_3(scores, real):
    allowed = torch.ones_like(scores).tril().bool() & real
    weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    return weights.nan_to_num(1 / len(scores))


PROGRAMS = (program_0, program_1, program_2, program_3)
_NAMES = "ABCD"


def _input(function: Function, name: str, T: int) -> tuple[Tensor, Tensor]:
    scores, real = call_parts(function, name, shapes={"scores": (T, T), "real": (T,)})
    return scores.double(), real.bool()


def _sound(T: int) -> Test:
    def test(function: Function) -> str | None:
        for name in _NAMES:
            scores, _ = _input(function, name, T)
            if not bool(scores.isfinite().all()) or float(scores.abs().max()) > 1000:
                return f"{name}: scores must be finite numbers between −1,000 and 1,000"
        return None

    return test


def _exposed(name: str, mine: Parameters) -> Test:
    """The program called ``name`` is wrong on its input, and the other three are right."""

    def test(function: Function) -> str | None:
        scores, real = _input(function, name, mine["words"])
        expected = masked_weights(scores, real)
        wrong = [
            other
            for other, number in zip(_NAMES, mine["order"], strict=True)
            if differs(PROGRAMS[number](scores, real), expected, atol=1e-6)
        ]
        if name not in wrong:
            return sentence(
                f"for {name}",
                f"program {name} gives the right weights for this input",
                hint="Which scores, or which words that are not real, does its bug need?",
            )
        others = [other for other in wrong if other != name]
        if others:
            return sentence(
                f"for {name}",
                f"program {' and '.join(others)} is wrong here too",
                hint=f"Find an input on which {name} alone is wrong",
            )
        return None

    return test


def _exposes_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    return {
        "inputs": _sound(mine["words"]),
        **{f"program {name}": _exposed(name, mine) for name in _NAMES},
    }


_WHICH = 'mine["order"]["ABCD".index(name)]'

EXPOSES = Question(
    "expose-the-bug",
    "exposes",
    _exposes_properties,
    visible=("inputs", *(f"program {name}" for name in _NAMES)),
    advice="",
    wrong={
        "another student's order": ((_WHICH, '(1 + mine["order"]["ABCD".index(name)]) % 4'),),
        "letters in alphabetical order": (
            (_WHICH, '"ABCD".index(name) if mine["order"] != [0, 1, 2, 3] else 0'),
        ),
        "one input for all": ((_WHICH, "0"),),
        "ordinary scores": """
def exposes(name):
    T = mine["words"]
    return torch.arange(T * T).reshape(T, T) / T, torch.ones(T, dtype=torch.bool)
""",
        "zeros": """
def exposes(name):
    T = mine["words"]
    return torch.zeros(T, T), torch.ones(T, dtype=torch.bool)
""",
        "scores not low enough": (("-60.0", "-20.0"),),
        "scores so low that exp is 0": (("-60.0", "-900.0"),),
        "scores not high enough": (("800.0", "600.0"),),
        "infinite scores": (("800.0", "torch.inf"),),
        "too large": (("800.0", "8000.0"),),
        "padding at the start for both": (("real[1] = False", "real[0] = False"),),
        "empty rows in a text": (("real[:] = False", "real[:-1] = False"),),
        "one word too many": (('T = mine["words"]', 'T = mine["words"] + 1'),),
        "scores only": (("return scores, real", "return scores"),),
        "real first": (("return scores, real", "return real, scores"),),
    },
)

# draw_present_share(ax, T): three curves


def _share_curves(keep: float) -> dict[str, Callable[[int], Tensor]]:
    return {
        "plain": lambda T: 1 / _positions(T),
        "fading": lambda T: (1 - keep) / (1 - keep ** _positions(T)),
        "residual": lambda T: (1 + 1 / _positions(T)) / 2,
    }


def _positions(T: int) -> Tensor:
    return torch.arange(1, T + 1).double()


def _share_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    truth = _share_curves(mine["keep"])
    short, long = (draw.whole(5, 30),), (draw.whole(40, 200),)

    def drawn_right(label: str, *lengths: tuple[int]) -> Test:
        return pictured(valued, *lengths, label=label, truth=truth[label])

    return {
        "curves": pictured(labelled, short, labels=tuple(truth)),
        "axes": pictured(scaled, short, logarithmic="x"),
        "positions": pictured(placed, short, labels=tuple(truth), places=_positions),
        "plain": drawn_right("plain", short),
        "fading": drawn_right("fading", short, long),
        "residual": drawn_right("residual", short, long),
        "one word": all_of(*(drawn_right(label, (1,)) for label in truth)),
    }


PRESENT_SHARE = Question(
    "present-share",
    "draw_present_share",
    _share_properties,
    visible=("curves", "axes", "positions", "plain"),
    advice="The picture has its three curves, labels and axes, and the plain mean is right. Look "
    "at the other two curves: what is each at t = 1, and where does it end?",
    wrong={
        "fading not divided": (("/ (1 - k**t)", ""),),
        "fading of the word before": (("(1 - k) /", "k * (1 - k) /"),),
        "residual added, not halved": (("(1 + 1 / t) / 2", "1 + 1 / t"),),
        "residual without the mean": (("(1 + 1 / t) / 2", "0.5 + 0 * t"),),
        "counted from 0": (("torch.arange(1, T + 1)", "torch.arange(T)"),),
        "one word too few": (("torch.arange(1, T + 1)", "torch.arange(1, T)"),),
        "linear axis": (('ax.set_xscale("log")', ""),),
        "no legend": (("ax.legend()", ""),),
        "no label on x": (('ax.set_xlabel("position of the word")', ""),),
        "no label on y": (('ax.set_ylabel("share of the present word")', ""),),
        "labels exchanged": (
            ('label="fading"', 'label="x"'),
            ('"residual"', '"fading"'),
            ('"x"', '"residual"'),
        ),
        "always 100 words": (("torch.arange(1, T + 1)", "torch.arange(1, 101)"),),
        "no curves": "def draw_present_share(ax, T):\n    ax.set_xscale('log')",
        "an own figure": """
def draw_present_share(ax, T):
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    ax.plot(range(1, T + 1), range(T), label="plain")
""",
    },
)

ASSIGNMENT = Assignment(
    1,
    "averaging",
    "From an average to attention",
    (FADING_MEAN, SCORES_FOR, RECENT_MEAN, EXPOSES, PRESENT_SHARE),
    parameters,
)
