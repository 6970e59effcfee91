"""Wrong answers to the exercises of notebook 11. Every one must fail its check."""

from collections import Counter, defaultdict
from itertools import combinations

import torch


def _blind(prompts, answers, bag=lambda x: tuple(sorted(x)), best=lambda c: max(c.values())):
    bags = defaultdict(Counter)
    for prompt, answer in zip(prompts.tolist(), answers.tolist(), strict=True):
        bags[bag(prompt)][answer] += 1
    return sum(best(counter) for counter in bags.values())


def _with_bag(bag):
    return lambda prompts, answers: _blind(prompts, answers, bag=bag)


def _with_best(best):
    return lambda prompts, answers: _blind(prompts, answers, best=best)


def _looks(T, crosser, crossed, adjective, kinds, change=lambda W, V: W):
    V, E = len(kinds), len(kinds) + T + 1
    W = [torch.zeros(E, 1), torch.zeros(E, 1), torch.zeros(E, E)]
    W += [torch.zeros(E, 1), torch.zeros(E, 1)]
    W[0][V : V + T] = 30
    W[1][V + adjective] = 1
    W[2][:V, -1] = kinds.float()
    W[3][-1] = 30
    W[4][V + crosser], W[4][V + crossed] = 1, -1
    return tuple(change(W, V))


def _changed(place, what):
    def change(W, V):
        W[place] = what(W[place], V)
        return W

    return lambda *a: _looks(*a, change=change)


def _with_keys(crosser, crossed):
    """The second look with these two keys."""

    def make(T, at, other, adjective, kinds):
        def change(W, V):
            W[4][V + at], W[4][V + other] = crosser, crossed
            return W

        return _looks(T, at, other, adjective, kinds, change=change)

    return make


def _keys_of_words(T, crosser, crossed, adjective, kinds):
    """Forgets that the places stand behind the V words."""

    def change(W, V):
        return [*W[:4], W[4].roll(-V, 0)]

    return _looks(T, crosser, crossed, adjective, kinds, change=change)


def _exchanged(one, two):
    def change(W, V):
        W[one], W[two] = W[two], W[one]
        return W

    return lambda *a: _looks(*a, change=change)


def _at_fixed_places(T, crosser, crossed, adjective, kinds):
    return _looks(T, 1, 3, 5 if T > 5 else 3, kinds)


def _first_kind_only(T, crosser, crossed, adjective, kinds):
    return _looks(T, crosser, crossed, adjective, kinds.clamp(min=0))


def _names_both_looks_at_once(T, crosser, crossed, adjective, kinds):
    """The second look goes to both nouns and the adjective."""

    def change(W, V):
        W[4][V + crosser] = W[4][V + crossed] = W[4][V + adjective] = 1
        return W

    return _looks(T, crosser, crossed, adjective, kinds, change=change)


def _search(stream, other, sizes, patch, flips):
    for size in sizes:
        for places in combinations(range(len(stream)), size):
            if flips(patch(stream, other, list(places))):
                return torch.tensor(places)
    return torch.tensor([0])


def _patch(stream, other, places):
    x = stream.clone()
    x[list(places)] = other[list(places)]
    return x


def _carriers(stream, other, says, sizes=None, patch=_patch, negative=lambda v: v < 0):
    sizes = sizes or range(1, len(stream) + 1)
    return _search(stream, other, sizes, patch, lambda x: bool(negative(says(x))))


def _emptied(stream, other, places):
    x = stream.clone()
    x[places] = 0
    return x


def _the_others(stream, other, places):
    x = other.clone()
    x[places] = stream[places]
    return x


def _without_clone(stream, other, says):
    x = stream.clone()
    for size in range(1, len(stream) + 1):
        for places in combinations(range(len(stream)), size):
            x[list(places)] = other[list(places)]
            if says(x) < 0:
                return torch.tensor(places)
    return torch.tensor([0])


def _greedy(stream, other, says):
    """Takes the place that lowers the number most, then the next."""
    x, found = stream.clone(), []
    while says(x) >= 0:
        left = [t for t in range(len(stream)) if t not in found]
        found.append(min(left, key=lambda t: float(says(_patch(x, other, [t])))))
        x = _patch(x, other, [found[-1]])
    return torch.tensor(found)


def _first_places(stream, other, says):
    """The first places, as many as are needed."""
    for size in range(1, len(stream) + 1):
        if says(_patch(stream, other, range(size))) < 0:
            return torch.arange(size)


def _best_place(stream, other, says):
    number = [float(says(_patch(stream, other, [t]))) for t in range(len(stream))]
    return torch.tensor([number.index(min(number))])


def _mask(stream, other, says):
    mask = torch.zeros(len(stream))
    mask[_carriers(stream, other, says)] = 1
    return mask


def _all_that_lower(stream, other, says):
    before = says(stream)
    lower = [t for t in range(len(stream)) if says(_patch(stream, other, [t])) < before]
    return torch.tensor(lower or [0])


def _count(*a):
    return torch.tensor([len(_carriers(*a))])


MUTANTS = {
    "order_blind": {
        "all": lambda prompts, answers: len(prompts),
        "a half": lambda prompts, answers: len(prompts) // 2,
        "sees the order": _with_bag(tuple),
        "sets": _with_bag(frozenset),
        "the first words only": _with_bag(lambda x: tuple(sorted(x[:2]))),
        "one answer for all": _with_bag(lambda x: None),
        "bag as a sum": _with_bag(sum),
        "the rarest answer": _with_best(lambda c: min(c.values())),
        "unanimous bags": _with_best(lambda c: sum(c.values()) if len(c) == 1 else 0),
        "bags": _with_best(lambda c: 1),
        "the first answer": _with_best(lambda c: next(iter(c.values()))),
        "different answers": _with_best(len),
        "the average answer": _with_best(lambda c: sum(c.values()) // len(c)),
        "without the last word": _with_bag(lambda x: tuple(sorted(x[:-1]))),
        "misses": lambda prompts, answers: len(answers) - _blind(prompts, answers),
    },
    "two_looks": {
        "zeros": lambda *a: tuple(0 * W for W in _looks(*a)),
        "exchanged": _changed(4, lambda W, V: -W),
        "note with the wrong sign": _changed(2, lambda W, V: -W),
        "always the crosser": _changed(4, lambda W, V: W.clamp(min=0)),
        "always the crossed": _changed(4, lambda W, V: -W.clamp(max=0)),
        "both nouns": _changed(4, lambda W, V: W.abs()),
        "no note": _changed(2, lambda W, V: 0 * W),
        "note in a word's channel": _changed(2, lambda W, V: W.roll(1, 1)),
        "nobody asks first": _changed(0, lambda W, V: 0 * W),
        "nobody answers first": _changed(1, lambda W, V: 0 * W),
        "looks away from the adjective": _changed(1, lambda W, V: -W),
        "nobody asks second": _changed(3, lambda W, V: 0 * W),
        "too weak for a long text": _changed(3, lambda W, V: W / 15),
        "first look too weak": _changed(0, lambda W, V: W / 15),
        "both keys 1": _with_keys(1, 1),
        "one key": _with_keys(1, 0),
        "V forgotten": _keys_of_words,
        "scores of 1": lambda *a: _looks(
            *a, change=lambda W, V: [W[0] / 30, *W[1:3], W[3] / 30, W[4]]
        ),
        "kinds without signs": _changed(2, lambda W, V: W.abs()),
        "adjective one place on": _changed(1, lambda W, V: W.roll(1, 0)),
        "first query and key exchanged": _exchanged(0, 1),
        "second query and key exchanged": _exchanged(3, 4),
        "not a number": _changed(2, lambda W, V: W * torch.nan),
        "infinite scores": _changed(3, lambda W, V: W + torch.inf),
        "fixed places": _at_fixed_places,
        "one kind": _first_kind_only,
        "three keys": _names_both_looks_at_once,
        "four matrices": lambda *a: _looks(*a)[:4],
        "transposed": lambda *a: tuple(W.T for W in _looks(*a)),
    },
    "carriers": {
        "one at most": lambda *a: _carriers(*a, sizes=[1]),
        "two at most": lambda *a: _carriers(*a, sizes=[1, 2]),
        "emptied": lambda *a: _carriers(*a, patch=_emptied),
        "the complement": lambda *a: _carriers(*a, patch=_the_others),
        "without clone": _without_clone,
        "greedy and unsorted": lambda *a: (
            _greedy(*a).flip(0) if len(_greedy(*a)) > 1 else _greedy(*a)
        ),
        "greedy": lambda *a: _greedy(*a).sort().values,
        "unsorted": lambda *a: _carriers(*a).flip(0),
        "the first places": _first_places,
        "the best place": _best_place,
        "runs exchanged": lambda stream, other, says: _carriers(other, stream, says),
        "a mask": _mask,
        "all that lower": _all_that_lower,
        "counted from 1": lambda *a: _carriers(*a) + 1,
        "how many": _count,
        "largest first": lambda *a: _carriers(*a, sizes=range(len(a[0]), 0, -1)),
        "positive": lambda *a: _carriers(*a, negative=lambda v: v > 0),
        "below one": lambda *a: _carriers(*a, negative=lambda v: v < 1),
        "all": lambda stream, other, says: torch.arange(len(stream)),
        "the last": lambda stream, other, says: torch.tensor([len(stream) - 1]),
    },
}
