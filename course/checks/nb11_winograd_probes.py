"""Checks for the exercises of notebook 11: blind to the order, two looks by hand, carriers."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations

import torch
from torch import Tensor
from torch.nn import functional as F

from course.checks import Exercise
from course.checks.answers import Function, Wrong, call, call_parts
from course.checks.properties import Case, case, counts, normal, sentence, shaped

# order_blind(prompts, answers) → how many answers one gets right who sees only bags of words


def _letters(*rows: str) -> Tensor:
    """Letters as tokens: one row a prompt."""
    return torch.tensor([[ord(letter) - ord("a") for letter in row] for row in rows])


def _sentences(name: str, *rows: str) -> Case:
    """Prompts and, behind the arrow, their answers: ``"abc>a"``."""
    prompts, answers = zip(*(row.split(">") for row in rows), strict=True)
    return case(_letters(*prompts), _letters(*answers)[:, 0], name=name)


def _blind(
    prompts: Tensor,
    answers: Tensor,
    bag: Callable[[list[int]], object] = lambda prompt: tuple(sorted(prompt)),
    best: Callable[[list[int]], int] = lambda given: max(Counter(given).values()),
) -> int:
    bags: dict[object, list[int]] = {}
    for prompt, answer in zip(prompts.tolist(), answers.tolist(), strict=True):
        bags.setdefault(bag(prompt), []).append(answer)
    return sum(best(given) for given in bags.values())


_BOTH_ORDERS = _sentences("each bag in both orders", "xaby>a", "xbay>b", "xcay>c", "xacy>a")
_ONE_ORDER = _sentences("bags in one order", "xaby>a", "xbcy>b", "xcay>a")
_TWICE = _sentences("how often a word stands there counts", "aabx>a", "abbx>b", "baax>a", "bbax>b")
_OTHER_WORDS = _sentences("other words, other bags", "adxy>a", "bcxy>b", "cbyx>c")
_UNEVEN = _sentences(
    "one answer more often than the other", "abx>b", "bax>a", "xab>a", "xba>a", "axb>b", "cdx>d"
)
_SAME = _sentences("the same sentence four times, two answers", "abx>a", "abx>b", "abx>a", "abx>a")

_known_to_the_blind = partial(
    counts,
    _blind,
    probes=[_BOTH_ORDERS, _ONE_ORDER, _TWICE, _OTHER_WORDS, _UNEVEN, _SAME],
    mistakes={
        "This sees the order: prompts with the same words must count as one bag": partial(
            _blind, bag=tuple
        ),
        "How often a word stands in a prompt counts too: a set forgets it": partial(
            _blind, bag=lambda prompt: frozenset(prompt)
        ),
        "The first answer of a bag is not the one that is right most often": partial(
            _blind, best=lambda given: given.count(given[0])
        ),
        "A bag with two answers is not lost: one of them is right sometimes": partial(
            _blind, best=lambda given: len(given) if len(set(given)) == 1 else 0
        ),
        "This counts bags; each sentence of a bag counts": partial(_blind, best=lambda given: 1),
        "One answer for all sentences is too few: choose one for each bag": partial(
            _blind, bag=lambda prompt: None
        ),
        "A sum of tokens is no bag: other words can have the same sum": partial(_blind, bag=sum),
        "The last token of a prompt belongs to its bag, too": partial(
            _blind, bag=lambda prompt: tuple(sorted(prompt[:-1]))
        ),
        "This counts for each bag its rarest answer; choose the most frequent one": partial(
            _blind, best=lambda given: min(Counter(given).values())
        ),
        "These are the wrong answers; the right ones are counted": lambda prompts, answers: (
            len(answers) - _blind(prompts, answers)
        ),
    },
)

ORDER_BLIND = Exercise(
    "order_blind",
    {
        "both orders": _known_to_the_blind(_BOTH_ORDERS, hint="Sort the tokens of a prompt"),
        "one order": _known_to_the_blind(_ONE_ORDER),
        "bags, not sets": _known_to_the_blind(_TWICE, _OTHER_WORDS),
        "the most frequent answer": _known_to_the_blind(_UNEVEN, _SAME),
    },
)

# two_looks(T, crosser, crossed, adjective, kinds) → W_q1, W_k1, W_v1, W_q2, W_k2

_PARTS = ("W_q1", "W_k1", "W_v1", "W_q2", "W_k2")
Weights = tuple[Tensor, ...]


def _two_looks(T: int, crosser: int, crossed: int, adjective: int, kinds: Tensor) -> Weights:
    V = len(kinds)
    E = V + T + 1
    W_q1, W_k1, W_q2, W_k2 = (torch.zeros(E, 1, dtype=torch.float64) for _ in range(4))
    W_v1 = torch.zeros(E, E, dtype=torch.float64)
    W_q1[V : V + T] = 30
    W_k1[V + adjective] = 1
    W_v1[:V, -1] = kinds.double()
    W_q2[-1] = 30
    W_k2[V + crosser], W_k2[V + crossed] = 1, -1
    return W_q1, W_k1, W_v1, W_q2, W_k2


def _attend(q: Tensor, k: Tensor) -> Tensor:
    scores = q @ k.mT
    future = torch.ones_like(scores).triu(1).bool()
    return scores.masked_fill(future, -torch.inf).softmax(-1)


def _spoken(weights: Weights, texts: Tensor, V: int) -> list[int]:
    """The model of the exercise: its answers to texts [n, T]."""
    W_q1, W_k1, W_v1, W_q2, W_k2 = (part.double() for part in weights)
    answers = []
    for tokens in texts:
        words = F.one_hot(tokens, V).double()
        places = torch.eye(len(tokens), dtype=torch.float64)
        x = torch.cat([words, places, torch.zeros_like(words[:, :1])], 1)
        x = x + _attend(x @ W_q1, x @ W_k1) @ (x @ W_v1)
        answers.append(int((_attend(x @ W_q2, x @ W_k2)[-1] @ words).argmax()))
    return answers


def _design(T: int, crosser: int, crossed: int, adjective: int, V: int = 12) -> Case:
    """The places, and the kinds of V words, of which two are of each kind."""
    kinds = torch.zeros(V, dtype=torch.float64)
    kinds[[1, V - 2]], kinds[[3, V - 1]] = 1.0, -1.0
    where = f"T = {T}, crosser at {crosser}, crossed at {crossed}, adjective at {adjective}"
    return case(T, crosser, crossed, adjective, kinds, name=where)


def _texts(T: int, crosser: int, crossed: int, adjective: int, kinds: Tensor) -> Tensor:
    """Twelve texts of words without a kind, and one of a kind at the adjective's place."""
    plain, of_a_kind = (kinds == 0).nonzero()[:, 0], (kinds != 0).nonzero()[:, 0]
    rows = []
    for number in range(12):
        drawn = normal(T, seed=number).mul(1000).long().remainder(len(plain))
        row = plain[drawn]
        pair = normal(len(plain), seed=100 + number).argsort()[:2]
        row[crosser], row[crossed] = plain[pair]
        row[adjective] = of_a_kind[number % len(of_a_kind)]
        rows.append(row)
    return torch.stack(rows)


_HERE, _THERE = _design(8, 1, 3, 5), _design(9, 4, 0, 2)
_SMALL, _LONG = _design(5, 0, 1, 3, V=9), _design(120, 17, 60, 90, V=30)

# Where the answers are right after one change of the student's weights (first argument; second: the
# right ones), that change names the bug. Answers alone do not: an empty note and a query that
# reads nothing give the same ones.
_REPAIRS: Mapping[str, Callable[[Weights, Weights], Weights]] = {
    "W_q1 and W_k1 are exchanged: every place asks, the adjective's place answers": (
        lambda mine, _: (mine[1], mine[0], *mine[2:])
    ),
    "W_q2 and W_k2 are exchanged: the note asks, the places of the two nouns answer": (
        lambda mine, _: (*mine[:3], mine[4], mine[3])
    ),
    "Crosser and crossed are exchanged: for +1 the second look must go to the crosser": (
        lambda mine, _: (*mine[:4], -mine[4])
    ),
    "Only W_q1 is wrong: at least the last place must ask, with a large number": (
        lambda mine, true: (true[0], *mine[1:])
    ),
    "Only W_k1 is wrong: the channel of the adjective's place is V + adjective": (
        lambda mine, true: (mine[0], true[1], *mine[2:])
    ),
    "Only W_v1 is wrong: it must write kinds, with their signs, into the last channel": (
        lambda mine, true: (*mine[:2], true[2], *mine[3:])
    ),
    "Only W_q2 is wrong: it must read the note, with a large number": (
        lambda mine, true: (*mine[:3], true[3], mine[4])
    ),
    "Only W_k2 is wrong: V + crosser and V + crossed need keys of different signs": (
        lambda mine, true: (*mine[:4], true[4])
    ),
    "The scores are too small: all other places together have more weight than the right one": (
        lambda mine, _: (1000 * mine[0], *mine[1:3], 1000 * mine[3], mine[4])
    ),
}


def _weights(function: Function, one: Case) -> Weights:
    """The student's five matrices."""
    true = _two_looks(*one.arguments)
    shapes = {name: tuple(part.shape) for name, part in zip(_PARTS, true, strict=True)}
    weights = call_parts(function, *one.arguments, shapes=shapes)
    for name, part in zip(_PARTS, weights, strict=True):
        if not bool(part.isfinite().all()):
            raise Wrong(f"{name}: {'NaN' if bool(part.isnan().any()) else 'infinity'} in it")
    return weights


def _answers(weights: Weights, one: Case) -> list[int]:
    return _spoken(weights, _texts(*one.arguments), len(one.arguments[-1]))


def _decided(*cases: Case, hint: str) -> Callable[[Function], str | None]:
    """The answers to the texts of each case are those that the kinds and places ask for."""

    def test(function: Function) -> str | None:
        for one in cases:
            got = _answers(_weights(function, one), one)
            expected = _answers(_two_looks(*one.arguments), one)
            wrong = sum(mine != right for mine, right in zip(got, expected, strict=True))
            if wrong:
                said = f"{wrong} of {len(got)} texts are answered with another word"
                return sentence(one.name, said, hint=_cause(function) or hint)
        return None

    return test


def _cause(function: Function) -> str:
    everything = []
    for one in (_HERE, _THERE, _SMALL, _LONG):
        true = _two_looks(*one.arguments)
        everything.append((one, _weights(function, one), true, _answers(true, one)))
    for words, repair in _REPAIRS.items():
        if all(_answers(repair(mine, true), one) == right for one, mine, true, right in everything):
            return words
    return ""


TWO_LOOKS = Exercise(
    "two_looks",
    {
        "shapes": shaped(_two_looks, _HERE, _SMALL, names=_PARTS),
        "answers": _decided(
            _HERE, hint="What is in the last channel of the last place after block 1?"
        ),
        "any places and words": _decided(
            _THERE, _SMALL, hint="Are places and kinds taken from the arguments?"
        ),
        "a long text": _decided(
            _LONG, hint="118 places of weight e⁰ stand against one: how large must its score be?"
        ),
    },
)

# carriers(stream, other, says) → the smallest set of places whose patch changes the answer

Says = Callable[[Tensor], Tensor]


def _carriers(
    stream: Tensor,
    other: Tensor,
    says: Says,
    *,
    largest: int | None = None,
    zero: bool = False,
    keep: bool = False,
    sign: int = 1,
) -> tuple[int, ...]:
    x = stream.clone()
    for size in range(1, (largest or len(stream)) + 1):
        for places in combinations(range(len(stream)), size):
            x = x if keep else stream.clone()
            x[list(places)] = 0 if zero else other[list(places)]
            if sign * says(x) < 0:
                return places
    return ()


def _patched(stream: Tensor, other: Tensor, places: Sequence[int]) -> Tensor:
    x = stream.clone()
    x[list(places)] = other[list(places)]
    return x


def _single_ones(stream: Tensor, other: Tensor, says: Says) -> tuple[int, ...]:
    """The places whose patch alone lowers the number at all."""
    places = range(len(stream))
    return tuple(at for at in places if says(_patched(stream, other, [at])) < says(stream))


def _best_single(stream: Tensor, other: Tensor, says: Says) -> tuple[int, ...]:
    """The place whose patch lowers the number most."""
    return (min(range(len(stream)), key=lambda at: float(says(_patched(stream, other, [at])))),)


def _greedy(stream: Tensor, other: Tensor, says: Says) -> tuple[int, ...]:
    """Place by place, the one that lowers the number most."""
    found: tuple[int, ...] = ()
    while says(_patched(stream, other, found)) >= 0:
        left = [at for at in range(len(stream)) if at not in found]
        found += (min(left, key=lambda at: float(says(_patched(stream, other, (*found, at))))),)
    return found


def _prefix(stream: Tensor, other: Tensor, says: Says) -> tuple[int, ...]:
    """The first places, as many as are needed."""
    sizes = range(1, len(stream) + 1)
    enough = (n for n in sizes if says(_patched(stream, other, range(n))) < 0)
    return tuple(range(next(enough)))


def _weighed(weights: Sequence[float], above: float = 0.0) -> Says:
    """A sum over the places of their first channel."""
    return lambda x: (x[:, 0] * torch.tensor(weights).to(x)).sum() + above


def _runs(T: int, says: Says, name: str, *, width: int = 3) -> Case:
    """The first channel is 1 in one run and −1 in the other; the rest of both is noise."""
    stream, other = normal(T, width, seed=T), normal(T, width, seed=T + 1)
    stream[:, 0], other[:, 0] = 1.0, -1.0
    return case(stream, other, says, name=name)


_ALONE = _runs(6, _weighed([0.1, 0.1, 3.0, 0.1, 0.1, 0.1]), "one place")
_FIRST = _runs(5, _weighed([3.0, 0.1, 0.1, 0.1, 0.1]), "one place, the first")
_LAST = _runs(5, _weighed([0.0, 0.1, 0.0, 0.2, 2.0]), "one place, the last")
_FIRST_TWO = _runs(4, _weighed([2.0, 2.0, 0.5, 0.5], above=1.5), "two places, the first two")
_SHARED = _runs(6, _weighed([0.1, 2.1, 0.1, 0.1, 2.2, 0.1]), "two places share it")
_THREE = _runs(7, lambda x: x[[1, 3, 6], 0].max(), "three places each hold it")
_NOT_ZERO = _runs(
    5, _weighed([0.1, 1.0, 0.1, 0.1, 0.9], above=0.5), "nothing there is not the other run"
)

_MISSED: Mapping[str, Callable[..., tuple[int, ...]]] = {
    "Only single places are tried; two may be needed": partial(_carriers, largest=1),
    "At most two places are tried": partial(_carriers, largest=2),
    "The place is emptied; it must hold what the other run has there": partial(
        _carriers, zero=True
    ),
    "Earlier patches are still in the stream: begin each with stream.clone()": partial(
        _carriers, keep=True
    ),
    "Every place that lowers the number is named; the smallest set is asked for": _single_ones,
    "This is the best single place; two may be needed": _best_single,
    "Place by place is not enough: try all sets of one size before the next size": _greedy,
    "Only sets that begin at place 0 are tried; try all combinations": _prefix,
    "The streams are exchanged: places of other go into a copy of stream": (
        lambda stream, other, says: _carriers(other, stream, says)
    ),
    "The sign: the answer has changed where says is negative": partial(_carriers, sign=-1),
}


def _places(function: Function, one: Case) -> tuple[int, ...]:
    found = call(function, *one.arguments)
    if found.ndim != 1:
        raise Wrong(f"returns shape {list(found.shape)}, expected one axis of place numbers")
    return tuple(found.tolist())


def _finds(*cases: Case) -> Callable[[Function], str | None]:
    def test(function: Function) -> str | None:
        for one in cases:
            got, expected = _places(function, one), _carriers(*one.arguments)
            if got != expected:
                said = f"got the places {_listed(got)}, expected {_listed(expected)}"
                return sentence(one.name, said, hint=_form(got, expected) or _missed(function))
        return None

    return test


def _listed(places: tuple[int, ...]) -> str:
    return ", ".join(f"{place:g}" for place in places) or "none"


def _missed(function: Function) -> str:
    everything = (_ALONE, _FIRST, _LAST, _FIRST_TWO, _SHARED, _THREE, _NOT_ZERO)
    for words, mistake in _MISSED.items():
        with contextlib.suppress(Wrong):
            if all(
                sorted(_places(function, one)) == sorted(mistake(*one.arguments))
                for one in everything
            ):
                return words
    return ""


def _form(got: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """The sentence for the right places in another form."""
    if sorted(got) == list(expected):
        return "Sort the places"
    if set(got) <= {0, 1} and tuple(at for at, is_in in enumerate(got) if is_in) == expected:
        return "This is a mask; return the numbers of the places"
    return ""


CARRIERS = Exercise(
    "carriers",
    {
        "one place": _finds(_ALONE, _FIRST, _LAST),
        "a patch is no gap": _finds(_NOT_ZERO),
        "two places": _finds(_FIRST_TWO, _SHARED),
        "three places": _finds(_THREE),
    },
)

EXERCISES = (ORDER_BLIND, TWO_LOOKS, CARRIERS)
