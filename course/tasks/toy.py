"""Two sources of text whose best possible perplexity is known exactly.

:class:`ToyLanguage` is a small grammar: word order is local, a preposition chooses its place a few
words later, and the subject of a sentence chooses the verb at its end. :class:`MarkovChain` knows
the present word only. Both are hidden Markov models, so every probability below is computed from
the transition tables by the forward algorithm (Rabiner 1989, "A tutorial on hidden Markov models",
equations 18-21), never estimated from samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import index
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course.inputs import require_number, require_positive

_NAMES = {  # everybody has one verb
    "anna": "sleeps",
    "bruno": "barks",
    "clara": "sings",
    "david": "runs",
    "emma": "plays",
    "felix": "prays",
    "greta": "writes",
    "henry": "hunts",
    "irene": "laughs",
    "jonas": "waits",
}
_PLACES = {  # every preposition has two places
    "near": ("forest", "garden"),
    "beside": ("river", "road"),
    "under": ("tree", "roof"),
    "behind": ("wall", "church"),
}
_ADJECTIVES = ("old", "small", "dark", "quiet", "red", "tall")

_RIGHT_VERB = 0.94  # the subject's own verb; the other nine share the rest
_RIGHT_PLACE = 0.94  # the preposition's own two places; the other six share the rest
_NAME_IN_PHRASE = 0.25  # "behind bruno": a name that is not the subject
_ADJECTIVE = 0.5
_ONE_MORE_PHRASE = 0.7


class _HiddenMarkov:
    """Text written by a machine of states: in state s it says word w and moves on.

    ``move[w][s, s']`` is the probability to say word w and arrive in s'. All floors are exact.
    """

    def __init__(self, vocabulary: Sequence[str], move: np.ndarray) -> None:
        self.vocabulary = tuple(vocabulary)
        self._index = {word: i for i, word in enumerate(self.vocabulary)}
        self._move = move  # [V, S, S]
        self._say = move.sum(-1).T  # [S, V]: next-word probabilities of each state
        self._stationary = _stationary(move.sum(0))
        self._entropies: list[float] = []
        self._entropies_in_turn = self._walk_back()

    def __len__(self) -> int:
        return len(self.vocabulary)

    def encode(self, text: str) -> Tensor:
        """Token numbers [T] int64 of a sentence; ``ValueError`` for a word it does not know."""
        if not isinstance(text, str):
            raise ValueError(f"text: expected words, got {type(text).__name__}")
        words = text.split()
        for word in words:
            if word not in self._index:
                raise ValueError(
                    f"text: expected words of the vocabulary ({', '.join(self.vocabulary[:6])}, "
                    f"…), got {word!r}"
                )
        return torch.tensor([self._index[word] for word in words], dtype=torch.long)

    def decode(self, tokens: Tensor | Sequence[int]) -> str:
        """The words of token numbers [T], one space between."""
        return " ".join(self.vocabulary[i] for i in self._tokens(tokens))

    def sample(self, n: int, *, length: int, seed: int) -> Tensor:
        """``n`` windows [n, length] int64, each cut at a random place out of an endless text."""
        require_positive("n", n)
        require_positive("length", length)
        rng = np.random.default_rng(seed)
        reach, arrivals = self._steps()
        state = rng.choice(len(self._stationary), size=n, p=self._stationary)
        tokens = np.empty((n, length), dtype=np.int64)
        for t in range(length):
            choice = (reach[state] <= rng.random(n)[:, None]).sum(1)
            tokens[:, t], state = np.divmod(arrivals[state, choice], len(reach))
        return torch.from_numpy(tokens)

    def _steps(self) -> tuple[np.ndarray, np.ndarray]:
        """Per state the possible steps, so that one uniform draw decides word and next state.

        ``reach`` holds cumulated probabilities, ``arrivals`` the number word·S + next state.
        """
        size = len(self._say)
        joint = self._move.transpose(1, 0, 2).reshape(size, -1)
        widest = int((joint > 0).sum(1).max())
        reach, arrivals = np.ones((size, widest)), np.zeros((size, widest), dtype=np.int64)
        for state, row in enumerate(joint):
            steps = np.flatnonzero(row)
            arrivals[state, : len(steps)] = steps
            reach[state, : len(steps) - 1] = np.cumsum(row[steps])[:-1]
        return reach, arrivals

    def next_word_probabilities(self, prefix: str | Tensor | Sequence[int] = ()) -> Tensor:
        """The true distribution [V] float64 of the word after ``prefix``.

        ``prefix`` (words or token numbers) is a piece of an endless text: what came before it is
        unknown, and the answer averages over it. Empty: the frequency of every word.
        ``ValueError`` for a prefix that the language cannot produce.
        """
        tokens = self.encode(prefix) if isinstance(prefix, str) else prefix
        belief = self._stationary
        for t, token in enumerate(self._tokens(tokens)):
            belief = belief @ self._move[token]
            if belief.sum() == 0:
                raise ValueError(
                    f"prefix: expected a text of this language, got {self.vocabulary[token]!r} "
                    f"as word {t}, where it cannot stand"
                )
            belief = belief / belief.sum()
        return torch.from_numpy(belief @ self._say)

    def optimal_perplexity(self, context: int | None = None) -> float:
        """The lowest perplexity that any predictor can reach with the last ``context`` words.

        0 is the best guess without looking (word frequencies), 1 the best bigram, ``None`` the
        whole past: exp of the entropy rate.
        """
        if context is None:
            return float(np.exp(self._stationary @ _entropy(self._say)))
        require_positive("context", context, minimum=0)
        return float(np.exp(self._conditional_entropies(context)[-1]))

    def window_perplexity(self, length: int) -> float:
        """The lowest perplexity on windows of ``length`` inputs, each place predicting its next.

        Place t sees t + 1 words only, so this floor lies above ``optimal_perplexity()``.
        """
        require_positive("length", length)
        return float(np.exp(np.mean(self._conditional_entropies(length)[1:])))

    def _conditional_entropies(self, context: int) -> list[float]:
        """H(next word | the last n words) for n = 0 … context, in nats; each computed once."""
        while len(self._entropies) <= context:
            self._entropies.append(next(self._entropies_in_turn))
        return self._entropies[: context + 1]

    def _walk_back(self) -> Iterator[float]:
        """H(next word | the last n words) for n = 0, 1, 2, …

        Many prefixes leave the same belief about the state; those are merged, so that the number
        of beliefs stays small and nothing is approximated.
        """
        beliefs: np.ndarray = self._stationary[None]
        weights: np.ndarray = np.ones(1)
        fingerprints = np.random.default_rng(0).random((beliefs.shape[1], 2))
        while True:
            yield float(weights @ _entropy(beliefs @ self._say))
            mass = (beliefs @ self._say).T  # [V, beliefs]: chance of each word
            word, belief = np.nonzero(mass)
            joint = np.concatenate(
                [beliefs[belief[word == w]] @ self._move[w] for w in range(len(self))]
            )
            after = joint / mass[word, belief][:, None]
            probability = weights[belief] * mass[word, belief]
            # Comparing two random projections is comparing the beliefs, and far quicker.
            keys = (after @ fingerprints).round(10)
            _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
            beliefs, weights = after[first], np.bincount(group.ravel(), probability)

    def _tokens(self, tokens: Tensor | Sequence[int]) -> list[int]:
        expected = f"tokens: expected a sequence of whole numbers from 0 to {len(self) - 1}"
        try:
            given = tokens.tolist() if isinstance(tokens, Tensor) else tokens
            numbers = [index(number) for number in given]
        except TypeError:  # no sequence, or not of whole numbers
            raise ValueError(f"{expected}, got {tokens!r}") from None
        for number in numbers:
            if not 0 <= number < len(self):
                raise ValueError(f"{expected}, got {number}")
        return numbers


class MarkovChain(_HiddenMarkov):
    """Words where the next one depends on the present one and on nothing else.

    Every word has its own random order of successors, taken with chances ∝ ``decay``^rank, so
    the floor is the same after every word: exp of the entropy of those chances.
    """

    def __init__(self, n_words: int = 24, *, decay: float = 0.526, seed: int = 0) -> None:
        require_positive("n_words", n_words, minimum=2)
        require_number("decay", decay, above=0)
        if decay > 1:
            raise ValueError(f"decay: expected a number above 0 and at most 1, got {decay!r}")
        rng = np.random.default_rng(seed)
        chances = decay ** np.arange(n_words)
        chances = chances / chances.sum()
        move = np.zeros((n_words, n_words, n_words))
        for present in range(n_words):
            successors = rng.permutation(n_words)
            move[successors, present, successors] = chances
        super().__init__([f"w{i}" for i in range(n_words)], move)


class _State(NamedTuple):
    """Where the sentence stands: the last word's role, and what later words still depend on."""

    role: str
    subject: str = ""
    preposition: str = ""


class ToyLanguage(_HiddenMarkov):
    """An endless text of sentences such as "anna in the old forest behind bruno sleeps .".

    A sentence is a name (its subject), one or more phrases, a verb and a full stop; a phrase is a
    preposition and then ``the`` [adjective] place, or a name. Three rules need three kinds of
    memory: the present word decides the kind of the next (local order); the preposition decides
    the place, two or three words on; the subject decides the verb, 11 words on average after it,
    although other names may stand between. Only the word before a name tells which role it has.
    """

    def __init__(self) -> None:
        verbs = tuple(_NAMES.values())
        places = tuple(place for pair in _PLACES.values() for place in pair)
        vocabulary = (".", "the", *_NAMES, *_PLACES, *_ADJECTIVES, *places, *verbs)
        start = _State("stop")
        number = {start: 0}
        queue, moves = [start], []
        for state in queue:  # grows while it is walked: every state that can be reached
            for word, probability, after in _continuations(state):
                if after not in number:
                    number[after] = len(number)
                    queue.append(after)
                moves.append((vocabulary.index(word), number[state], number[after], probability))
        move = np.zeros((len(vocabulary), len(number), len(number)))
        for word_index, before, after_index, probability in moves:
            move[word_index, before, after_index] += probability
        super().__init__(vocabulary, move)


def _continuations(state: _State) -> list[tuple[str, float, _State]]:
    """What may follow a state: (word, probability, next state)."""
    role, subject, preposition = state
    if role == "stop":
        return [(name, 1 / len(_NAMES), _State("subject", name)) for name in _NAMES]
    if role == "verb":
        return [(".", 1.0, _State("stop"))]
    if role == "preposition":
        other = _NAME_IN_PHRASE / len(_NAMES)
        names = [(name, other, _State("noun", subject)) for name in _NAMES]
        return [("the", 1 - _NAME_IN_PHRASE, _State("article", subject, preposition)), *names]
    if role == "article":
        after = _State("adjective", subject, preposition)
        described = [(word, _ADJECTIVE / len(_ADJECTIVES), after) for word in _ADJECTIVES]
        return described + _places(subject, preposition, 1 - _ADJECTIVE)
    if role == "adjective":
        return _places(subject, preposition, 1.0)
    more = 1.0 if role == "subject" else _ONE_MORE_PHRASE  # role is "subject" or "noun"
    phrases = [
        (word, more / len(_PLACES), _State("preposition", subject, word)) for word in _PLACES
    ]
    if role == "subject":
        return phrases
    wrong = (1 - _RIGHT_VERB) / (len(_NAMES) - 1)
    return phrases + [
        (verb, (1 - more) * (_RIGHT_VERB if name == subject else wrong), _State("verb"))
        for name, verb in _NAMES.items()
    ]


def _places(subject: str, preposition: str, share: float) -> list[tuple[str, float, _State]]:
    """The places that end a phrase; together they have probability ``share``."""
    right = share * _RIGHT_PLACE / 2
    wrong = share * (1 - _RIGHT_PLACE) / (2 * len(_PLACES) - 2)
    return [
        (place, right if word == preposition else wrong, _State("noun", subject))
        for word, pair in _PLACES.items()
        for place in pair
    ]


def _stationary(transition: np.ndarray) -> np.ndarray:
    """The distribution [S] that one step of ``transition`` [S, S] leaves as it is."""
    size = len(transition)
    system = np.vstack([transition.T - np.eye(size), np.ones(size)])
    solution = np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0]
    return np.clip(solution, 0.0, None) / np.clip(solution, 0.0, None).sum()


def _entropy(p: np.ndarray) -> np.ndarray:
    """Entropy in nats along the last axis, with 0·log 0 = 0."""
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)
