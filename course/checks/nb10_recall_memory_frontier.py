"""Checks for the exercises of notebook 10: weights by hand, unfair texts, the first mistake."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from course.checks import Exercise
from course.checks.properties import Case, agrees, case, counts, normal, shaped
from course.tasks.mqar import NO_TARGET, make_mqar

# lookup(V) → W_1 [2V,2V], W_q, W_k [2V,V], W_v [2V,V] of two layers that recall

_PARTS = ("W_1", "W_q", "W_k", "W_v")
_OWN, _FREE = 0, 1  # the halves of the stream


def _half(V: int, place: int) -> Tensor:
    """Reads one half of the stream: [2V, V]."""
    return torch.eye(2 * V, dtype=torch.float64)[:, place * V : (place + 1) * V]


def _weights(
    V: int,
    *,
    into: int | None = _FREE,
    asks: int = _OWN,
    answers: int = _FREE,
    scale: float = 20.0,
) -> tuple[Tensor, ...]:
    W_1 = torch.zeros(2 * V, 2 * V, dtype=torch.float64)
    if into is not None:
        W_1 = _half(V, _OWN) @ _half(V, into).T
    return W_1, scale * _half(V, asks), _half(V, answers), _half(V, _OWN)


def _outputs(tokens: Tensor, W_1: Tensor, W_q: Tensor, W_k: Tensor, W_v: Tensor) -> Tensor:
    """The model of the exercise: [T, V]."""
    x = F.one_hot(tokens, W_v.shape[1]).double()
    x = torch.cat([x, torch.zeros_like(x)], 1)
    x = x + F.pad(x, (0, 0, 1, 0))[:-1] @ W_1.double()
    scores = (x @ W_q.double()) @ (x @ W_k.double()).T
    future = torch.ones_like(scores).triu(1).bool()
    return scores.masked_fill(future, -torch.inf).softmax(-1) @ (x @ W_v.double())


def _in_chats(*weights: Tensor) -> Tensor:
    """The words answered at all questions of four texts, as long as the vocabulary allows."""
    V = weights[-1].shape[1]
    n_pairs = 3 * V // 8
    inputs, targets = make_mqar(4, seq_len=8 * n_pairs, n_pairs=n_pairs, vocab_size=V, seed=V)
    said = [_outputs(text, *weights).argmax(1) for text in inputs]
    return torch.stack(said)[targets != NO_TARGET].double()


def _after_a_filler(*weights: Tensor) -> Tensor:
    """The word answered after 250 times the same filler."""
    V = weights[-1].shape[1]
    text = torch.tensor([0, V // 2, 1, V // 2 + 1, *[V - 1] * 250, 0])
    return _outputs(text, *weights)[-1].argmax().double()


_looked_up = partial(
    agrees,
    _weights,
    names=_PARTS,
    joint=_in_chats,
    probes=[case(16)],
    mistakes={
        "Layer one moves nothing: the second half stays empty, and there is nothing to match": (
            lambda V: _weights(V, into=None)
        ),
        "Layer one adds the word before onto the own word; it belongs in the other half": (
            lambda V: _weights(V, into=_OWN)
        ),
        "Query and key are exchanged: the own word asks, the word before is what is compared": (
            lambda V: _weights(V, asks=_FREE, answers=_OWN)
        ),
        "The answer is the asked word itself: either the own word is compared with own words, or "
        "the place is found and its word before is handed on": lambda V: _weights(V, answers=_OWN),
        "The word before is compared with words before": lambda V: _weights(V, asks=_FREE),
        "A match must score above, not below": lambda V: _weights(V, scale=-20.0),
        "A match is worth no more than any other place: W_q or W_k is 0": (
            lambda V: _weights(V, scale=0.0)
        ),
        "The place is found, but too weakly: other places outvote it": (
            lambda V: _weights(V, scale=1.0)
        ),
    },
)

LOOKUP = Exercise(
    "lookup",
    {
        "shape": shaped(_weights, case(6), case(16), names=_PARTS),
        "questions": _looked_up(
            case(16, name="V = 16"),
            rule="an asked word is not answered with what followed it",
            hint="What does the query look for, and in which half of the stream does that stand?",
        ),
        "any vocabulary": _looked_up(
            case(6, name="V = 6"),
            case(48, name="V = 48"),
            hint="Are the sizes taken from V?",
        ),
        "a long chat": _looked_up(
            case(16, name="V = 16, after 250 times the same filler"),
            joint=_after_a_filler,
            mistakes=None,
            hint="250 places of weight e⁰ stand against one: how large must its score be?",
        ),
    },
)

# unfair(inputs, targets) → how many texts have a question without its one answer


def _texts(*rows: str) -> Tensor:
    """Letters as tokens: one row a text."""
    return torch.tensor([[ord(letter) - ord("a") for letter in row] for row in rows])


def _case(name: str, *pairs: tuple[str, str]) -> Case:
    """Texts and, below each, its targets: a letter, or a dot where there is none."""
    inputs = _texts(*(text for text, _ in pairs))
    dots = torch.tensor([[letter == "." for letter in wanted] for _, wanted in pairs])
    targets = _texts(*(wanted for _, wanted in pairs)).masked_fill(dots, NO_TARGET)
    return case(inputs, targets, name=name)


def _told(text: list[int], t: int) -> list[int]:
    return [text[i + 1] for i in range(t - 1) if text[i] == text[t]]


def _unfair(
    inputs: Tensor,
    targets: Tensor,
    is_fair: Callable[[list[int], int, int], bool] = lambda text, t, target: (
        set(_told(text, t)) == {target}
    ),
) -> int:
    return sum(
        any(not is_fair(text, t, target) for t, target in enumerate(wanted) if target != NO_TARGET)
        for text, wanted in zip(inputs.tolist(), targets.tolist(), strict=True)
    )


def _with_rule(is_fair: Callable[[list[int], int, int], bool]) -> Callable[[Tensor, Tensor], int]:
    return lambda inputs, targets: _unfair(inputs, targets, is_fair)


def _questions(inputs: Tensor, targets: Tensor) -> int:
    texts = zip(inputs.tolist(), targets.tolist(), strict=True)
    return sum(
        target != NO_TARGET and set(_told(text, t)) != {target}
        for text, wanted in texts
        for t, target in enumerate(wanted)
    )


_FAIR = _case(
    "fair texts",
    ("avbwxxbwxavx", "......w..v.."),
    ("cvavxcvavxxx", ".....v.v...."),
    ("xxavavxxxxxx", "....v......."),
)
_NEVER_TOLD = _case(
    "1 of 2 texts asks for a word that was not told",
    ("avbwxxbwxcvx", "......w..v.."),
    ("avbwxxbwxavx", "......w..v.."),
)
_OTHER = _case(
    "in 2 of 3 texts the target is not what was told",
    ("avbwxxbwxavx", "......v..v.."),
    ("avbwxxbwxavx", ".......w..v."),
    ("avbwxxbwxavx", "......w..v.."),
)
_TWO_WAYS = _case(
    "in 3 of 4 texts the asked word was followed by two different words",
    ("avbwxaxwxavx", ".........v.."),
    ("avaxxawwxavx", ".........v.."),
    ("axbwxavwxavx", ".........v.."),
    ("avbwxavwxavx", ".........v.."),
)
_LATER = _case(
    "what stands at the question or behind it tells nothing",
    ("avbwxxavxawx", "......v....."),
    ("avbwxxaavxxx", ".......v...."),
    ("xxbwxxavxxxx", "......v....."),
)
_NO_QUESTION = _case("a text without questions is fair", ("avawxxaxxxxx", "............"))
_TWICE = _case(
    "one text, two unfair questions",
    ("avbwxxbvxawx", "......v..w.."),
)

_counted = partial(
    counts,
    _unfair,
    probes=[_FAIR, _NEVER_TOLD, _OTHER, _TWO_WAYS, _LATER, _NO_QUESTION, _TWICE],
    mistakes={
        "This counts questions; a text counts once": _questions,
        "Only the last place where the word was told is looked at": _with_rule(
            lambda text, t, target: _told(text, t)[-1:] == [target]
        ),
        "Only the first place where the word was told is looked at": _with_rule(
            lambda text, t, target: _told(text, t)[:1] == [target]
        ),
        "It is not enough that the target was told once": _with_rule(
            lambda text, t, target: target in _told(text, t)
        ),
        "A word that was never told has no answer either": _with_rule(
            lambda text, t, target: set(_told(text, t)) <= {target}
        ),
        "The places behind the question are counted too": _with_rule(
            lambda text, t, target: (
                {text[i + 1] for i in range(len(text) - 1) if text[i] == text[t]} == {target}
            )
        ),
        "The place right before the question is followed by the question, not by an answer": (
            _with_rule(
                lambda text, t, target: (
                    {text[i + 1] for i in range(t) if text[i] == text[t]} == {target}
                )
            )
        ),
    },
)

UNFAIR = Exercise(
    "unfair",
    {
        "fair texts": _counted(_FAIR, _NO_QUESTION),
        "never told": _counted(_NEVER_TOLD),
        "another target": _counted(_OTHER, hint="Compare what was told with the target"),
        "told in two ways": _counted(_TWO_WAYS, hint="Collect all that followed the asked word"),
        "what comes later": _counted(_LATER, hint="Both words must stand before the question"),
        "a text counts once": _counted(_TWICE, _OTHER),
    },
)

# first_mistake(K, labels, V) → pairs in the state when an answer is wrong for the first time, or 0


def _first_mistake(
    K: Tensor,
    labels: Tensor,
    V: int,
    *,
    newest_only: bool = False,
    oldest_only: bool = False,
    overwrite: bool = False,
    sure: bool = False,
) -> int:
    S = torch.zeros(K.shape[1], V, dtype=torch.float64)
    for n, (k, label) in enumerate(zip(K.double(), labels.tolist(), strict=True)):
        if overwrite:
            S[:, label] = k
        else:
            S[:, label] += k
        asked = slice(n, n + 1) if newest_only else slice(0, 1 if oldest_only else n + 1)
        wrong = (K[asked].double() @ S).argmax(1) != labels[asked]
        if wrong.all() if sure else wrong.any():
            return n + 1
    return 0


def _random(n: int, D: int, V: int, *, seed: int) -> Case:
    labels = normal(n, seed=seed + 100).mul(1000).long().remainder(V)
    name = f"{n} random keys of width {D}, {V} words"
    return case(F.normalize(normal(n, D, seed=seed), dim=-1), labels, V, name=name)


_MANY = tuple(_random(60, D, V, seed=D + V) for D, V in ((5, 7), (9, 30), (16, 12), (3, 4)))
_PERPENDICULAR = case(
    2 * torch.eye(6, dtype=torch.float64),
    torch.tensor([3, 1, 3, 0, 2, 1]),
    4,
    name="6 perpendicular keys",
)
_ONE_LABEL = case(
    torch.tensor([[1.0, 0], [-0.5, 0.2], [0, 1]], dtype=torch.float64),
    torch.tensor([1, 1, 1]),
    3,
    name="one word for three keys, two of them nearly opposite",
)

_mistaken = partial(
    counts,
    _first_mistake,
    probes=[*_MANY, _PERPENDICULAR, _ONE_LABEL],
    mistakes={
        "This is 0 for all keys: is there a return inside the loop, where an answer is wrong?": (
            lambda *a: 0
        ),
        "This is the number of the pair, counted from 0; the pairs in the state are one more": (
            lambda *a: max(0, _first_mistake(*a) - 1)
        ),
        "Only the newest pair is asked; ask all that were written": (
            lambda *a: _first_mistake(*a, newest_only=True)
        ),
        "Only the first pair is asked; ask all that were written": (
            lambda *a: _first_mistake(*a, oldest_only=True)
        ),
        "Writing must add to the state: here a later key replaces an earlier one": (
            lambda *a: _first_mistake(*a, overwrite=True)
        ),
        "One wrong answer is enough": lambda *a: _first_mistake(*a, sure=True),
        "No mistake at all must give 0": lambda K, *a: _first_mistake(K, *a) or len(K),
    },
)

FIRST_MISTAKE = Exercise(
    "first_mistake",
    {
        "perpendicular keys": _mistaken(_PERPENDICULAR, hint="Perpendicular keys never err"),
        "one word": _mistaken(
            _ONE_LABEL, hint="A word that was never written has the number 0, which may be largest"
        ),
        "random keys": _mistaken(*_MANY),
    },
)

EXERCISES = (LOOKUP, UNFAIR, FIRST_MISTAKE)
