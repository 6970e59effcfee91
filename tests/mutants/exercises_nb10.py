"""Wrong answers to the exercises of notebook 10. Every one must fail its check."""

import torch


def _halves(V):
    eye = torch.eye(2 * V)
    return eye[:, :V], eye[:, V:]


def _lookup(V, change=lambda parts, own, free: parts):
    own, free = _halves(V)
    return change((own @ free.T, 20 * own, free, own), own, free)


def _changed(place, what):
    def change(parts, own, free):
        parts = list(parts)
        parts[place] = what(own, free)
        return tuple(parts)

    return lambda V: _lookup(V, change)


def _fixed_size(V):
    return _lookup(16) if V == 16 else tuple(torch.zeros_like(x) for x in _lookup(V))


def _collect(text, t, until):
    return [text[i + 1] for i in range(until) if text[i] == text[t]]


def _unfair(inputs, targets, is_fair):
    broken = 0
    for text, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
        broken += any(
            not is_fair(text, t, target) for t, target in enumerate(wanted) if target != -100
        )
    return broken


def _fair(text, t, target):
    return set(_collect(text, t, t - 1)) == {target}


def _each_question(inputs, targets):
    return sum(
        not _fair(text, t, target)
        for text, wanted in zip(inputs.tolist(), targets.tolist(), strict=True)
        for t, target in enumerate(wanted)
        if target != -100
    )


def _no_target_counts(inputs, targets):
    return sum(
        any(not _fair(text, t, target) for t, target in enumerate(wanted))
        for text, wanted in zip(inputs.tolist(), targets.tolist(), strict=True)
    )


def _first_question(inputs, targets):
    broken = 0
    for text, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
        asked = [(t, target) for t, target in enumerate(wanted) if target != -100]
        broken += bool(asked) and not _fair(text, *asked[0])
    return broken


def _all_questions(inputs, targets):
    broken = 0
    for text, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
        asked = [(t, target) for t, target in enumerate(wanted) if target != -100]
        broken += bool(asked) and not any(_fair(text, *one) for one in asked)
    return broken


def _answer_behind(inputs, targets):
    """Takes the word behind the question for the truth."""
    broken = 0
    for text, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
        broken += any(
            t + 1 == len(text) or text[t + 1] != target
            for t, target in enumerate(wanted)
            if target != -100
        )
    return broken


def _mistake(K, labels, V, asked=lambda n: slice(0, n + 1), write=torch.add):
    S = torch.zeros(K.shape[1], V, dtype=K.dtype)
    for n in range(len(K)):
        S[:, labels[n]] = write(S[:, labels[n]], K[n])
        rows = asked(n)
        if ((K[rows] @ S).argmax(1) != labels[rows]).any():
            return n + 1
    return 0


def _by_size(K, labels, V):
    S = torch.zeros(K.shape[1], V, dtype=K.dtype)
    for n in range(len(K)):
        S[:, labels[n]] += K[n]
        if ((K[: n + 1] @ S).abs().argmax(1) != labels[: n + 1]).any():
            return n + 1
    return 0


def _delta(K, labels, V):
    S = torch.zeros(K.shape[1], V, dtype=K.dtype)
    for n in range(len(K)):
        value = torch.zeros(V, dtype=K.dtype)
        value[labels[n]] = 1
        S += torch.outer(K[n], value - K[n] @ S) / (K[n] @ K[n])
        if ((K[: n + 1] @ S).argmax(1) != labels[: n + 1]).any():
            return n + 1
    return 0


def _known_words_only(K, labels, V):
    """Words that were never written may not be answered."""
    S = torch.zeros(K.shape[1], V, dtype=K.dtype)
    for n in range(len(K)):
        S[:, labels[n]] += K[n]
        words = labels[: n + 1].unique()
        if (words[(K[: n + 1] @ S)[:, words].argmax(1)] != labels[: n + 1]).any():
            return n + 1
    return 0


def _never_is_all(K, labels, V):
    return _mistake(K, labels, V) or len(K)


MUTANTS = {
    "lookup": {
        "zeros": lambda V: tuple(torch.zeros_like(x) for x in _lookup(V)),
        "no shift": _changed(0, lambda own, free: 0 * own @ free.T),
        "shift the wrong way": _changed(0, lambda own, free: free @ own.T),
        "shift onto the own word": _changed(0, lambda own, free: own @ own.T),
        "everything shifted": _changed(0, lambda own, free: own @ own.T + own @ free.T),
        "finds itself": _changed(2, lambda own, free: own),
        "the word before asks": _changed(1, lambda own, free: 20 * free),
        "query and key exchanged": lambda V: _lookup(
            V, lambda parts, own, free: (parts[0], 20 * free, own, parts[3])
        ),
        "hands on the word before": _changed(3, lambda own, free: free),
        "too weak": _changed(1, lambda own, free: own),
        "weak for a long chat": _changed(1, lambda own, free: 4 * own),
        "negative": _changed(1, lambda own, free: -20 * own),
        "for 16 words only": _fixed_size,
        "three matrices": lambda V: _lookup(V)[:3],
        "transposed": lambda V: tuple(x.T for x in _lookup(V)),
    },
    "unfair": {
        "none": lambda inputs, targets: 0,
        "all": lambda inputs, targets: len(inputs),
        "questions": _each_question,
        "no target is wrong too": _no_target_counts,
        "first question only": _first_question,
        "every question must be unfair": _all_questions,
        "the answer behind the question": _answer_behind,
        "last place only": lambda x, y: _unfair(
            x, y, lambda text, t, target: _collect(text, t, t - 1)[-1:] == [target]
        ),
        "first place only": lambda x, y: _unfair(
            x, y, lambda text, t, target: _collect(text, t, t - 1)[:1] == [target]
        ),
        "told among others": lambda x, y: _unfair(
            x, y, lambda text, t, target: target in _collect(text, t, t - 1)
        ),
        "never told is fair": lambda x, y: _unfair(
            x, y, lambda text, t, target: set(_collect(text, t, t - 1)) <= {target}
        ),
        "the whole text": lambda x, y: _unfair(
            x, y, lambda text, t, target: set(_collect(text, t, len(text) - 1)) == {target}
        ),
        "one place too far": lambda x, y: _unfair(
            x, y, lambda text, t, target: set(_collect(text, t, t)) == {target}
        ),
        "one place too few": lambda x, y: _unfair(
            x, y, lambda text, t, target: set(_collect(text, t, t - 2)) == {target}
        ),
        "told exactly once": lambda x, y: _unfair(
            x, y, lambda text, t, target: _collect(text, t, t - 1) == [target]
        ),
    },
    "first_mistake": {
        "none": lambda K, labels, V: 0,
        "width": lambda K, labels, V: K.shape[1],
        "width + 1": lambda K, labels, V: K.shape[1] + 1,
        "counted from 0": lambda *a: max(_mistake(*a) - 1, 0),
        "before the mistake": lambda *a: _mistake(*a) + 1,
        "newest pair only": lambda *a: _mistake(*a, asked=lambda n: slice(n, n + 1)),
        "first pair only": lambda *a: _mistake(*a, asked=lambda n: slice(0, 1)),
        "overwritten": lambda *a: _mistake(*a, write=lambda old, new: new),
        "subtracted": lambda *a: _mistake(*a, write=torch.sub),
        "by size": _by_size,
        "delta rule": _delta,
        "known words only": _known_words_only,
        "no mistake is all": _never_is_all,
    },
}
