"""Assignment 5, after notebook 11: probes and interventions in a small circuit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from course.assignments.drawing import labelled, pictured, placed, scaled, valued
from course.assignments.question import Assignment, Draw, Parameters, Question
from course.checks import Test, Wrong
from course.checks.answers import Function, answer_of, call_parts, kind_of
from course.checks.properties import agrees, case, sentence, shaped

ANIMALS = ("dog", "cat", "horse", "fox", "goat", "mouse", "wolf", "deer")
PLACES = ("street", "river", "bridge", "road", "field", "hill", "track", "yard")
OF_CROSSER = ("tired", "hungry", "lazy", "afraid")
OF_CROSSED = ("wet", "wide", "busy", "steep")


def parameters(draw: Draw) -> Parameters:
    """When a word counts, the adjective that a rule knows, a scale, a text with a place in it."""
    return {
        "least": draw.whole(2, 3),
        "known": draw.choice(OF_CROSSER),
        "scale": draw.choice([0.4, 0.5, 0.6, 0.7, 0.8]),
        "words": draw.whole(5, 8),
        "place": draw.whole(1, 3),
    }


# by_counting(train, test): [n, 4], [m, 4] → a number

Cheat = Callable[[Tensor, Tensor], Tensor]


def _counting(
    train: Tensor,
    test: Tensor,
    *,
    least: int,
    share: bool = True,
    by_adjective: bool = True,
    ties: float = 0.5,
    unknown: float = 0.5,
) -> Tensor:
    seen: dict[tuple[int, int], list[int]] = {}
    for x, y, a, answer in train.tolist():
        for noun in (x, y):
            seen.setdefault((noun, a if by_adjective else 0), []).append(int(noun == answer))

    def score(noun: int, a: int) -> float:
        times = seen.get((noun, a if by_adjective else 0), [])
        if len(times) < least:
            return unknown
        return sum(times) / (len(times) if share else 1)

    points = 0.0
    for x, y, a, answer in test.tolist():
        of_x, of_y = score(x, a), score(y, a)
        if abs(of_x - of_y) < 1e-12:
            points += ties
        else:
            points += (x if of_x > of_y else y) == answer
    return torch.tensor(points / len(test)).double()


def _sentences(draw: Draw, n: int, leak: float, *, nouns: int = 8, adjectives: int = 4) -> Tensor:
    """Sentences ``[n, 4]``: crosser, crossed, adjective, answer, as word numbers.

    A share ``leak`` of them has an animal (an even number) as crosser and a place as crossed.
    """
    rows = []
    for _ in range(n):
        x = draw.whole(0, nouns - 1)
        y = (x + draw.whole(1, nouns - 1)) % nouns
        if draw.whole(0, 99) < 100 * leak:
            x, y = x - x % 2, y - y % 2 + 1
        a = draw.whole(0, adjectives - 1)
        rows.append([x + 10, y + 10, a + 40, (x if a < adjectives / 2 else y) + 10])
    return torch.tensor(rows)


def _seldom(least: int) -> tuple[Tensor, Tensor]:
    """Nouns seen ``least`` times, once less, and ten times with the shares 0.7 and 0.3."""
    just, too_few, likely, unlikely, filler, a = 10, 11, 12, 13, 20, 40
    rows: list[list[int]] = []
    for noun, times, right in (
        (just, least, least),
        (too_few, least - 1, least - 1),
        (likely, 10, 7),
        (unlikely, 10, 3),
    ):
        rows += [
            [noun, filler + len(rows) + i, a, noun if i < right else filler + len(rows) + i]
            for i in range(times)
        ]
    asked = [
        [just, likely, a, just],
        [likely, too_few, a, likely],
        [likely, just, a, just],
        [unlikely, too_few, a, too_few],
        [just, likely, a, likely],
    ]
    return torch.tensor(rows), torch.tensor(asked)


def _counting_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    least = mine["least"]
    truth = partial(_counting, least=least)

    def texts(leak: float, n: int = 160, m: int = 50, **sizes: int) -> tuple[Tensor, Tensor]:
        return _sentences(draw, n, leak, **sizes), _sentences(draw, m, leak, **sizes)

    half = texts(0.5)
    rare = texts(0.3, 60, 40, nouns=10)
    other_words = texts(0.5, 60, 21)
    other_words = other_words[0], other_words[1] + torch.tensor([100, 100, 0, 100])
    both = _sentences(draw, 120, 0.0)  # each sentence also with its nouns exchanged
    turned = both[:, [1, 0, 2, 3]].clone()
    turned[:, 3] = torch.where(both[:, 3] == both[:, 0], both[:, 1], both[:, 0])
    balanced = torch.cat([both, turned])
    probes = [case(*rare), case(*texts(0.2, 40, 60, nouns=12))]
    right = partial(
        agrees,
        truth,
        probes=probes,
        mistakes={
            "How often a noun is the answer depends on the adjective: count each adjective for "
            "itself": partial(_counting, least=least, by_adjective=False),
            "This compares numbers, not shares: a noun that occurs often has more of everything": (
                partial(_counting, least=least, share=False)
            ),
            "A tie is worth half a point": partial(_counting, least=least, ties=1.0),
            "A tie is worth half a point, and no noun is chosen": partial(
                _counting, least=least, ties=0.0
            ),
            "A noun that was seen too seldom has the share one half, not 0": partial(
                _counting, least=least, unknown=0.0
            ),
            f"Seen {least} times with the adjective is enough": partial(_counting, least=least + 1),
            f"A noun counts from {least} times on, not from one": partial(_counting, least=1),
            "The shares were counted in test: whoever counts there has seen the answers": (
                lambda train, test: truth(test, test)
            ),
            "This is the number of points; divide by the number of sentences": (
                lambda train, test: truth(train, test) * len(test)
            ),
        },
    )
    return {
        "a number": shaped(truth, case(*half)),
        "half of the sentences leak": right(case(*half), rule=f"with least = {least}"),
        "all leak": right(
            case(*texts(1.0, 240)), rule="animals cross, places are crossed: counting is enough"
        ),
        "balanced": right(
            case(balanced, balanced[:31]),
            rule="each sentence stands there with its nouns exchanged, too: all shares are equal",
            hint="Equal shares are a tie: half a point",
        ),
        "seldom seen nouns": right(
            case(*_seldom(least), name="nouns seen just often enough, and just too seldom"),
            case(*rare),
        ),
        "nouns that were never seen": right(
            case(*other_words, name="the nouns of test do not occur in train"), mistakes=None
        ),
    }


BY_COUNTING = Question(
    "by-counting",
    "by_counting",
    _counting_properties,
    visible=("a number", "half of the sentences leak", "all leak"),
    advice="Right where all nouns were seen often. Which shares can two nouns have, and how often "
    "can a noun have been seen with an adjective?",
    wrong={
        "all adjectives together": (
            ("(noun, a)", "(noun, 0)"),
            ("(x, a)", "(x, 0)"),
            ("(y, a)", "(y, 0)"),
        ),
        "numbers, not shares": (("sum(times) / len(times)", "sum(times)"),),
        "a tie is right": (("points += 0.5", "points += 1"),),
        "a tie is wrong": (("points += 0.5", "points += 0"),),
        "a tie is the first noun": (("points += 0.5", "points += x == answer"),),
        "seldom seen is never": (("return 0.5", "return 0.0"),),
        "one more than least": (("len(times) < mine", "len(times) <= mine"),),
        "any number of times": (('len(times) < mine["least"]', "len(times) < 1"),),
        "counted in test": (("in train.tolist()", "in test.tolist()"),),
        "scored on train": (
            ("in test.tolist()", "in train.tolist()"),
            ("/ len(test)", "/ len(train)"),
        ),
        "points, not their share": (("points / len(test)", "points"),),
        "divided by train": (("/ len(test)", "/ len(train)"),),
        "the less likely noun": (("of_x > of_y", "of_x < of_y"),),
        "crosser only": (("for noun in (x, y)", "for noun in (x,)"),),
        "always the crosser": (
            "def by_counting(train, test):\n    return (test[:, 0] == test[:, 3]).double().mean()"
        ),
        "one half": "def by_counting(train, test):\n    return torch.tensor(0.5)",
        "one": "def by_counting(train, test):\n    return torch.tensor(1.0)",
    },
)

# two_sentences(): [(crosser, crossed, adjective), (…)] on which four rules all differ


def understands(crosser: str, crossed: str, adjective: str) -> str:
    return crosser if adjective in OF_CROSSER else crossed


def knows_animals(crosser: str, crossed: str, adjective: str) -> str:
    wanted = ANIMALS if adjective in OF_CROSSER else PLACES
    return crossed if crossed in wanted and crosser not in wanted else crosser


def knows_one_adjective(crosser: str, crossed: str, adjective: str, known: str) -> str:
    return crosser if adjective == known else crossed


def takes_the_last(crosser: str, crossed: str, adjective: str) -> str:
    return crossed


def said_by_rules(one: tuple[str, str, str], known: str) -> dict[str, str]:
    return {
        "understands": understands(*one),
        "knows_animals": knows_animals(*one),
        "knows_one_adjective": knows_one_adjective(*one, known),
        "takes_the_last": takes_the_last(*one),
    }


def _chosen(function: Function) -> list[tuple[str, str, str]]:
    answer = answer_of(function)
    if not isinstance(answer, list | tuple):
        raise Wrong(f"returns {kind_of(answer)}, expected a list of two sentences")
    if len(answer) != 2:
        raise Wrong(f"returns {len(answer)} sentences, expected two")
    for one in answer:
        if not isinstance(one, list | tuple) or len(one) != 3:
            raise Wrong("a sentence is three words: (crosser, crossed, adjective)")
    return [(str(x), str(y), str(a)) for x, y, a in answer]


def _words(function: Function) -> str | None:
    for x, y, a in _chosen(function):
        for noun in (x, y):
            if noun not in ANIMALS + PLACES:
                return f"{noun[:30]!r} is in neither list of nouns"
        if x == y:
            return f"{x!r} cannot cross itself: two different nouns"
        if a not in OF_CROSSER + OF_CROSSED:
            return f"{a[:30]!r} is in neither list of adjectives"
    return None


def _told_apart(one: str, other: str, mine: Parameters) -> Test:
    def test(function: Function) -> str | None:
        said = [said_by_rules(s, mine["known"]) for s in _chosen(function)]
        if any(s[one] != s[other] for s in said):
            return None
        return sentence(
            f"{one} and {other} give the same answers",
            " and ".join(repr(s[one]) for s in said),
            hint="Which words make these two differ?",
        )

    return test


def _two_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    pairs = [
        ("understands", "takes_the_last"),
        ("understands", "knows_animals"),
        ("understands", "knows_one_adjective"),
        ("knows_animals", "knows_one_adjective"),
        ("knows_animals", "takes_the_last"),
        ("knows_one_adjective", "takes_the_last"),
    ]
    tests = {f"{a}, {b}": _told_apart(a, b, mine) for a, b in pairs}
    return {"words": _words, **tests}


_NAMES_OF_PAIRS = tuple(_two_properties(Draw(), {"known": "tired"}))

_TWO = '[("river", "dog", mine["known"]), ("dog", "river", another)]'


def _two(text: str) -> tuple[tuple[str, str], ...]:
    return ((_TWO, text),)


TWO_SENTENCES = Question(
    "two-sentences",
    "two_sentences",
    _two_properties,
    visible=_NAMES_OF_PAIRS,
    advice="",
    wrong={
        "the sentences of the training set": _two(
            '[("dog", "river", mine["known"]), ("dog", "river", "wet")]'
        ),
        "both orders, one adjective": _two(
            '[("river", "dog", mine["known"]), ("dog", "river", mine["known"])]'
        ),
        "both orders, wet": _two('[("river", "dog", "wet"), ("dog", "river", "wet")]'),
        "both orders, another adjective": _two(
            '[("river", "dog", another), ("dog", "river", another)]'
        ),
        "the adjectives exchanged": _two('[("river", "dog", another), ("dog", "cat", "wet")]'),
        "two animals": _two('[("cat", "dog", mine["known"]), ("dog", "cat", another)]'),
        "one sentence twice": _two('[("river", "dog", mine["known"])] * 2'),
        "both kinds": _two('[("river", "dog", mine["known"]), ("dog", "river", "wet")]'),
        "another student's adjective": (
            ('mine["known"]), ("dog"', 'another), ("dog"'),
            ('"river", another)', '"river", mine["known"])'),
            ('("river", "dog", another)', '("river", "dog", "wet")'),
        ),
        "one noun": _two('[("dog", "dog", mine["known"]), ("river", "dog", another)]'),
        "three sentences": _two(
            '[("river", "dog", mine["known"]), ("dog", "river", another), ("dog", "cat", "wet")]'
        ),
        "own words": _two('[("river", "cow", mine["known"]), ("cow", "river", another)]'),
        "adjective first": _two('[(mine["known"], "river", "dog"), (another, "dog", "river")]'),
        "whole sentences": _two('["the river did not cross the dog because it was too tired"] * 2'),
        "numbers": _two("torch.zeros(2, 3)"),
    },
)

# shares_carried(stream, other, W_q, W_k, W_v, u): [T, E] twice, [E, D] twice, [E, E], [E] → [T]

Weights = tuple[Tensor, Tensor, Tensor, Tensor]


def margin(x: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor, u: Tensor, scale: float) -> Tensor:
    """The rest of the model, as in the notebook: block 2 at the last place, and the reading."""
    weights = (scale * (x[-1] @ W_q) @ (x @ W_k).T).softmax(-1)
    return (x[-1] + weights @ x @ W_v) @ u


def _carried(
    stream: Tensor, other: Tensor, *weights: Tensor, scale: float, kind: str = "share"
) -> Tensor:
    says = partial(margin, scale=scale)
    clean, whole = says(stream, *weights), says(other, *weights)
    effects = []
    x = stream.clone()
    for t in range(len(stream)):
        if kind != "together":
            x = stream.clone()
        x[t] = 0.0 if kind == "zero" else other[t]
        if kind == "backwards":
            x = other.clone()
            x[t] = stream[t]
        effects.append(says(x, *weights))
    after = torch.stack(effects)
    if kind == "margins":
        return after
    if kind == "differences":
        return after - clean
    if kind == "of the clean":
        return (after - clean) / clean
    if kind == "backwards":
        return (after - clean) / (whole - clean)
    if kind == "sum to 1":
        return (after - clean) / (after - clean).sum()
    return (after - clean) / (whole - clean)


def _circuit(draw: Draw, T: int, E: int, D: int, changed: Sequence[int] = ()) -> tuple[Any, ...]:
    """Two streams and weights, drawn again until the two runs say clearly different things."""
    while True:
        stream, other = draw.normal(T, E), draw.normal(T, E)
        if changed:
            kept = torch.ones(T, dtype=torch.bool)
            kept[list(changed)] = False
            other[kept] = stream[kept]
        weights = draw.normal(E, D), draw.normal(E, D), draw.normal(E, E), draw.normal(E)
        one, two = (margin(x, *weights, scale=0.5) for x in (stream, other))
        if abs(one - two) > 1 and all(
            abs(margin(stream, *weights, scale=s) - margin(other, *weights, scale=s)) > 0.5
            for s in (0.4, 0.6, 0.7, 0.8)
        ):
            return (stream, other, *weights)


def _carried_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    truth = partial(_carried, scale=mine["scale"])
    T, E, D = draw.sizes(3, 3, 8)
    ordinary = case(*_circuit(draw, T, E, D))
    right = partial(
        agrees,
        truth,
        mistakes={
            "The patches before are still in it: begin each one with a fresh copy": (
                partial(_carried, scale=mine["scale"], kind="together")
            ),
            "These are the margins after each patch; which share of the whole change is that?": (
                partial(_carried, scale=mine["scale"], kind="margins")
            ),
            "This is the change, not its share: divide by the change from stream to other": (
                partial(_carried, scale=mine["scale"], kind="differences")
            ),
            "Divide by the change of the whole run, other minus stream, not by the clean margin": (
                partial(_carried, scale=mine["scale"], kind="of the clean")
            ),
            "The patch goes the wrong way: a place of other into stream": (
                partial(_carried, scale=mine["scale"], kind="backwards")
            ),
            "The shares are made to sum to 1; places that act together need not do that": (
                partial(_carried, scale=mine["scale"], kind="sum to 1")
            ),
            "The place is set to 0 here: put the other run's vector there": (
                partial(_carried, scale=mine["scale"], kind="zero")
            ),
        },
    )
    place = draw.whole(0, 4)
    return {
        "shape": shaped(truth, ordinary),
        "values": right(ordinary, rule=f"with scale = {mine['scale']}"),
        "one place differs": right(
            case(*_circuit(draw, 6, 4, 3, [place]), name=f"the runs differ at place {place} alone"),
            rule="then this place carries everything, and the others nothing",
        ),
        "the last place": right(
            case(*_circuit(draw, 5, 4, 2, [4]), name="the runs differ at the last place alone"),
            rule="it is the query too",
        ),
        "longer texts": right(case(*_circuit(draw, 20, 5, 3))),
        "one word": right(case(*_circuit(draw, 1, 4, 3)), rule="T = 1: the only place is all"),
    }


SHARES_CARRIED = Question(
    "shares-carried",
    "shares_carried",
    _carried_properties,
    visible=("shape", "values"),
    advice="Right for the two runs of the visible check. Try runs that differ at one place only.",
    wrong={
        "one copy for all": (("x = stream.clone()", "x = stream.clone() if t == 0 else x"),),
        "margins": (("(after - clean) / (whole - clean)", "after"),),
        "differences": (("(after - clean) / (whole - clean)", "after - clean"),),
        "sign": (("(after - clean)", "(clean - after)"),),
        "share of the clean margin": (("/ (whole - clean)", "/ clean"),),
        "shares that sum to 1": (("/ (whole - clean)", "/ (after - clean).sum()"),),
        "absolute change": (("(after - clean) /", "(after - clean).abs() /"),),
        "wrong way": (
            ("x = stream.clone()", "x = other.clone()"),
            ("x[t] = other[t]", "x[t] = stream[t]"),
        ),
        "zero in the place": (("x[t] = other[t]", "x[t] = 0"),),
        "mean of both": (("x[t] = other[t]", "x[t] = (stream[t] + other[t]) / 2"),),
        "all places up to t": (("x[t] = other[t]", "x[: t + 1] = other[: t + 1]"),),
        "the attention weights": """
def shares_carried(stream, other, W_q, W_k, W_v, u):
    return (mine["scale"] * (stream[-1] @ W_q) @ (stream @ W_k).T).softmax(-1)
""",
        "values only, the map kept": """
def shares_carried(stream, other, W_q, W_k, W_v, u):
    weights = (mine["scale"] * (stream[-1] @ W_q) @ (stream @ W_k).T).softmax(-1)
    whole = margin(other, W_q, W_k, W_v, u) - margin(stream, W_q, W_k, W_v, u)
    share = weights * ((other - stream) @ W_v @ u)
    share[-1] += (other[-1] - stream[-1]) @ u
    return share / whole
""",
        "the last place never": (
            ("after = torch.stack(effects)", "after = torch.stack(effects)\n    after[-1] = clean"),
        ),
        "clipped": (
            (
                "(after - clean) / (whole - clean)",
                "((after - clean) / (whole - clean)).clamp(0, 1)",
            ),
        ),
        "another student's scale": """
def shares_carried(stream, other, W_q, W_k, W_v, u):
    def says(x):
        weights = ((mine["scale"] + 0.1) * (x[-1] @ W_q) @ (x @ W_k).T).softmax(-1)
        return (x[-1] + weights @ x @ W_v) @ u

    after = []
    for t in range(len(stream)):
        x = stream.clone()
        x[t] = other[t]
        after.append(says(x))
    return (torch.stack(after) - says(stream)) / (says(other) - says(stream))
""",
        "equal shares": """
def shares_carried(stream, other, W_q, W_k, W_v, u):
    return torch.full((len(stream),), 1 / len(stream))
""",
    },
)

# two_heads(kind): scores [2, T] and values [2, T] of two heads at the last place

KINDS = ("substitute", "idle", "light", "denominator")


def output(scores: Tensor, values: Tensor) -> Tensor:
    """The number that both heads together write; its sign is the answer."""
    return (scores.softmax(-1) * values).sum()


def without_look(scores: Tensor, heads: Sequence[int], place: int) -> Tensor:
    """The scores if these heads cannot look at the place: the other words share the weight."""
    scores = scores.clone()
    scores[list(heads), place] = -torch.inf
    return scores


def _heads(function: Function, kind: str, mine: Parameters) -> tuple[Tensor, Tensor]:
    T = mine["words"]
    scores, values = call_parts(function, kind, shapes={"scores": (2, T), "values": (2, T)})
    return scores.double(), values.double()


def _finite_heads(mine: Parameters) -> Test:
    def test(function: Function) -> str | None:
        for kind in KINDS:
            scores, values = _heads(function, kind, mine)
            if not bool(scores.isfinite().all()) or float(scores.abs().max()) > 20:
                return f"{kind}: scores must lie between −20 and 20"
            if not bool(values.isfinite().all()) or float(values.abs().max()) > 10:
                return f"{kind}: values must lie between −10 and 10"
            whole = float(output(scores, values))
            if whole < 0.1:
                return f"{kind}: with all looks the output must be at least 0.1, got {whole:.3g}"
        return None

    return test


def _claims(kind: str, scores: Tensor, values: Tensor, place: int) -> list[tuple[bool, str]]:
    """What must hold for this kind, each with the sentence for the case that it does not."""
    weights = scores.softmax(-1)[:, place]
    both = float(output(without_look(scores, (0, 1), place), values))
    single = [float(output(without_look(scores, (h,), place), values)) for h in (0, 1)]
    heavy, light = float(weights.max()), float(weights.min())
    flips = (both <= -0.1, f"without the look in both heads the output is {both:.3g}, not ≤ −0.1")
    stays = (both >= 0.1, f"without the look in both heads the output is {both:.3g}, not ≥ 0.1")
    if kind == "substitute":
        told = f"without the look of one head the output is {min(single):.3g}, not ≥ 0.1"
        few = f"both heads must give the place at least 0.8, got {light:.3g}"
        return [(light >= 0.8, few), (min(single) >= 0.1, told), flips]
    if kind == "idle":
        return [(heavy >= 0.8, f"no head gives the place 0.8, the most is {heavy:.3g}"), stays]
    if kind == "light":
        return [(heavy <= 0.2, f"a head gives the place {heavy:.3g}, more than 0.2"), flips]
    at_place = float(values[:, place].abs().max())
    return [(at_place == 0, f"the values at the place must be 0, got {at_place:.3g}"), flips]


_HELP = {
    "substitute": "Each head alone must carry the answer; what do the other words say?",
    "idle": "What is left in the head if the other words share the weight?",
    "light": "Weight times value: a small weight needs a large value",
    "denominator": "Within one head the other words keep their ratios: two heads with different "
    "signs are needed. Which of them grows if the place is gone?",
}


def _designed(kind: str, mine: Parameters) -> Test:
    def test(function: Function) -> str | None:
        scores, values = _heads(function, kind, mine)
        for holds, told in _claims(kind, scores, values, mine["place"]):
            if not holds:
                return sentence(kind, told, hint=_HELP[kind])
        return None

    return test


def _heads_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    return {"form": _finite_heads(mine), **{kind: _designed(kind, mine) for kind in KINDS}}


TWO_HEADS = Question(
    "two-heads",
    "two_heads",
    _heads_properties,
    visible=("form", *KINDS),
    advice="",
    wrong={
        "one model for all": (('kind == "substitute"', "True"),),
        "heavy in one head only": (("scores[:, p] = 5.0  # both", "scores[0, p] = 5.0"),),
        "the others agree": (("values[:] = -1.0  # the others", "values[:] = 1.0"),),
        "too weak a value": (("values[:, p] = 4.0", "values[:, p] = 0.9"),),
        "heavy and needed": (
            ("values[:] = 1.0  # all say the same", "values[:] = -1.0\n        values[:, p] = 3.0"),
        ),
        "not heavy": (("scores[0, p] = 5.0  # heavy", "scores[0, p] = 0.0"),),
        "light, but too small": (("values[:, p] = 10.0", "values[:, p] = 2.0"),),
        "not light": (("scores[:, p] = -0.5", "scores[:, p] = 3.0"),),
        "light value too large": (("values[:, p] = 10.0", "values[:, p] = 30.0"),),
        "one head cannot": (("values[1] = 0.5", "values[1] = 0.0"),),
        "both heads look": (("scores[0, p] = 5.0  # hides", "scores[:, p] = 5.0  # hides"),),
        "the value decides": (("values[:, p] = 0.0", "values[:, p] = 1.0"),),
        "infinite scores": (("scores[:, p] = 5.0  # both", "scores[:, p] = torch.inf"),),
        "another place": (('p = mine["place"]', 'p = mine["place"] - 1'),),
        "one word too many": (('mine["words"]', 'mine["words"] + 1'),),
        "weights, not scores": (("return scores, values", "return scores.softmax(-1), values"),),
        "values first": (("return scores, values", "return values, scores"),),
        "zeros": """
def two_heads(kind):
    return torch.zeros(2, mine["words"]), torch.zeros(2, mine["words"])
""",
        "uniform": """
def two_heads(kind):
    return torch.zeros(2, mine["words"]), torch.ones(2, mine["words"])
""",
    },
)

# draw_lens(ax, streams, W, nouns): probabilities after 0, 1, … blocks

_EPSILON = 1e-5
Lens = tuple[Tensor, Tensor, tuple[int, int]]


def _lens(streams: Tensor, W: Tensor, nouns: tuple[int, int]) -> dict[str, Tensor]:
    normed = layer_norm(streams.double(), streams.shape[-1:], eps=_EPSILON)
    p = (normed @ W.double()).softmax(-1)
    crosser, crossed = p[:, nouns[0]], p[:, nouns[1]]
    return {"crosser": crosser, "crossed": crossed, "all others": 1 - crosser - crossed}


def _lens_input(draw: Draw, blocks: int, E: int, V: int) -> Lens:
    """Streams that grow from block to block, as those of a model do."""
    size = torch.linspace(0.5, 4, blocks + 1).double()[:, None]
    x, y = draw.sizes(2, 0, V - 1)
    return size * draw.normal(blocks + 1, E) + 0.7, draw.normal(E, V), (x, y)


def _after_blocks(streams: Tensor, *_: object) -> Tensor:
    return torch.arange(len(streams)).double()


def _mistakes_of_noun(which: int) -> dict[str, Callable[..., Tensor]]:
    """Known wrong curves of the noun ``nouns[which]``."""

    def logits(streams: Tensor, W: Tensor) -> Tensor:
        return layer_norm(streams.double(), streams.shape[-1:], eps=_EPSILON) @ W.double()

    return {
        "The last norm is missing: the output matrix never sees a stream without it": (
            lambda x, W, nouns: (x.double() @ W.double()).softmax(-1)[:, nouns[which]]
        ),
        "These are logits; softmax over the vocabulary makes probabilities of them": (
            lambda x, W, nouns: logits(x, W)[:, nouns[which]]
        ),
        "The softmax runs over the blocks; it belongs over the vocabulary": (
            lambda x, W, nouns: logits(x, W).softmax(0)[:, nouns[which]]
        ),
        "The softmax is over all words, not over the two nouns": (
            lambda x, W, nouns: logits(x, W)[:, list(nouns)].softmax(-1)[:, which]
        ),
    }


def _lens_properties(draw: Draw, mine: Parameters) -> dict[str, Test]:
    shown = _lens_input(draw, 3, 8, 12)
    large, small = _lens_input(draw, 12, 16, 40), _lens_input(draw, 1, 4, 3)
    flat = _lens_input(draw, 2, 6, 9)
    tiny = 0.002 * flat[0], flat[1], flat[2]  # the epsilon of the norm counts
    labels = ("crosser", "crossed", "all others")
    mistakes = {"crosser": _mistakes_of_noun(0), "crossed": _mistakes_of_noun(1)}

    def drawn_right(label: str, *given: Lens) -> Test:
        return pictured(
            valued,
            *given,
            label=label,
            truth=lambda *one: _lens(*one)[label],
            mistakes=mistakes.get(label),
        )

    return {
        "curves": pictured(labelled, shown, labels=labels),
        "axes": pictured(scaled, shown),
        "blocks": pictured(
            placed,
            shown,
            labels=labels,
            places=_after_blocks,
            hint="The embedding counts too, as 0 blocks",
        ),
        "crosser": drawn_right("crosser", shown),
        "crossed": drawn_right("crossed", shown, large, small),
        "all others": drawn_right("all others", shown, small),
        "other models": drawn_right("crosser", large, small, tiny),
    }


LENS = Question(
    "lens",
    "draw_lens",
    _lens_properties,
    visible=("curves", "axes", "blocks", "crosser"),
    advice="The picture has its curves, labels and axes, and one noun is right. Look at the other "
    "curves, at models of other sizes, and at very small streams.",
    wrong={
        "no norm": (("layer_norm(streams, streams.shape[-1:])", "streams"),),
        "norm over blocks too": (("streams.shape[-1:])", "streams.shape)"),),
        "length 1, not the norm": (
            (
                "layer_norm(streams, streams.shape[-1:])",
                "torch.nn.functional.normalize(streams, dim=-1)",
            ),
        ),
        "no epsilon": (
            (
                "layer_norm(streams, streams.shape[-1:])",
                "layer_norm(streams, streams.shape[-1:], eps=0.0)",
            ),
        ),
        "sample standard deviation": (
            (
                "layer_norm(streams, streams.shape[-1:])",
                "(streams - streams.mean(-1, keepdim=True)) / streams.std(-1, keepdim=True)",
            ),
        ),
        "logits": ((".softmax(-1)", ""),),
        "log probabilities": ((".softmax(-1)", ".log_softmax(-1)"),),
        "softmax over blocks": ((".softmax(-1)", ".softmax(0)"),),
        "softmax over the two nouns": (
            ("@ W).softmax(-1)", "@ W[:, list(nouns)]).softmax(-1)"),
            ("p[:, x]", "p[:, 0]"),
            ("p[:, y]", "p[:, 1]"),
        ),
        "nouns exchanged": (("x, y = nouns", "y, x = nouns"),),
        "both curves the crosser": (("p[:, y], label", "p[:, x], label"),),
        "others: one more": (("1 - p[:, x] - p[:, y]", "1 - p[:, x]"),),
        "others: the mean": (
            ("1 - p[:, x] - p[:, y]", "(1 - p[:, x] - p[:, y]) / (W.shape[1] - 2)"),
        ),
        "without the embedding": (("layer_norm(streams,", "layer_norm(streams[1:],"),),
        "counted from 1": (("range(len(p))", "range(1, len(p) + 1)"),),
        "no legend": (("ax.legend()", ""),),
        "no label on x": (('ax.set_xlabel("blocks")', ""),),
        "no label on y": (('ax.set_ylabel("probability")', ""),),
        "nothing drawn": "def draw_lens(ax, streams, W, nouns):\n    ax.set_xlabel('blocks')",
    },
)

ASSIGNMENT = Assignment(
    5,
    "winograd_probes",
    "Probes and interventions in a small circuit",
    (BY_COUNTING, TWO_SENTENCES, SHARES_CARRIED, TWO_HEADS, LENS),
    parameters,
)
