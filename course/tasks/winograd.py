"""Winograd probes: which of two nouns does "it" mean?

    the X did not cross the Y because it was too A , so the R waited .

With *tired* "it" is who crosses, so R is X; with *wet* it is what is crossed, so R is Y. A model
that predicts the next word must decide after "so the". There are two versions of the task. In
:data:`LEAKY` X is an animal and Y a place: the words of a sentence give the answer away, in
whatever order they stand. In :data:`REPAIRED` both nouns come from one pool and any noun may stand
in either slot; some pairs are held out in one order and trained in the other, so whoever remembers
which nouns there were, but not which came first, answers the held-out ones backwards.

Source: Levesque, Davis and Morgenstern, "The Winograd Schema Challenge" (2012). The sentence about
the animal and the street is the one on which attention maps were first shown (Uszkoreit,
"Transformer: A Novel Neural Network Architecture for Language Understanding", 2017).
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from course.inputs import require_positive, require_rank

_TEXT = "the X did not cross the Y because it was too A , so the R waited ."
#: The sentence; X, Y, A and R are its slots.
TEMPLATE = tuple(_TEXT.split())
#: Positions of the two nouns, of the adjective and of the answer.
CROSSER, CROSSED, ADJECTIVE, ANSWER = (TEMPLATE.index(slot) for slot in "XYAR")
#: The position whose next word is scored: the last "the".
DECIDING = ANSWER - 1
_FRAME = tuple(dict.fromkeys(word for word in TEMPLATE if word not in "XYAR"))

# fmt: off
ANIMALS = (
    "animal", "dog", "cat", "horse", "fox", "goat", "mouse", "child",
    "cow", "sheep", "duck", "bear", "wolf", "deer", "hen", "pony",
)
PLACES = (
    "street", "river", "bridge", "road", "field", "hill", "track", "yard",
    "lake", "lawn", "path", "canal", "park", "beach", "square", "ditch",
)
# fmt: on


def _words(name: str, given: Any, least: int, taken: dict[str, str]) -> tuple[str, ...]:
    """The words as a tuple; ``taken`` (word: where it stands already) grows by them."""
    # A set has another order in every process, and the order fixes the token numbers.
    if isinstance(given, str | Set) or not isinstance(given, Iterable):
        raise ValueError(f"{name}: expected a list of words, got {given!r}")
    words = []
    for came in given:
        if not _is_word(came):
            raise ValueError(f"{name}: expected single words in lower case, got {came!r}")
        word = _plain(came)
        if word in taken:
            raise ValueError(f"{name}: expected new words, got {word!r}, which is in {taken[word]}")
        taken[word] = name
        words.append(word)
    if len(words) < least:
        raise ValueError(f"{name}: expected at least {least} words, got {len(words)}")
    return tuple(words)


def _is_word(word: Any) -> bool:
    """One word in lower case, every character of which can be seen."""
    if not isinstance(word, str) or not word.isprintable():
        return False
    return word == word.lower() and re.fullmatch(r"[^\s,.]+", word) is not None


def _plain(text: str) -> str:
    """In lower case, with each letter and its accent as one character, however it was typed."""
    if not isinstance(text, str):
        raise ValueError(f"sentence: expected words, got {type(text).__name__}")
    return unicodedata.normalize("NFC", text.lower())


def _or(words: Sequence[str]) -> str:
    """The words as a choice; a long list is cut."""
    if not words:
        return f"no more than {len(TEMPLATE)} words"
    shown = [repr(word) for word in words]
    if len(shown) > 9:
        return f"one of {', '.join(shown[:6])}, … ({len(shown)} words)"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"


@dataclass(frozen=True, eq=False)
class Sentences:
    """Whole sentences as token numbers ``[n, 18]``, int64."""

    tokens: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: slice | Tensor | int) -> Sentences:
        """Some of the sentences; ``rows``: a slice, a boolean mask, numbers, or one number."""
        return Sentences(self.tokens[rows].reshape(-1, len(TEMPLATE)))

    @property
    def prompts(self) -> Tensor:
        """Up to the deciding position, that included: ``[n, 15]``."""
        return self.tokens[:, :ANSWER]

    @property
    def crosser(self) -> Tensor:
        """The noun X of each, ``[n]``."""
        return self.tokens[:, CROSSER]

    @property
    def crossed(self) -> Tensor:
        """The noun Y of each, ``[n]``."""
        return self.tokens[:, CROSSED]

    @property
    def adjective(self) -> Tensor:
        """The adjective of each, ``[n]``."""
        return self.tokens[:, ADJECTIVE]

    @property
    def answer(self) -> Tensor:
        """The noun that "it" means, ``[n]``."""
        return self.tokens[:, ANSWER]

    @property
    def other(self) -> Tensor:
        """The noun that "it" does not mean, ``[n]``."""
        return self.crosser + self.crossed - self.answer

    @property
    def pair(self) -> Tensor:
        """One number for each ordered pair of nouns, ``[n]``."""
        return self.crosser * 2**32 + self.crossed


class Split(NamedTuple):
    """``reverses`` is a part of ``train``: the held-out pairs in the other order.

    It is empty where a pair has only one order.
    """

    train: Sentences
    held_out: Sentences
    reverses: Sentences


@dataclass(frozen=True)
class Winograd:
    """A set of sentences, fixed by its words; your own nouns and adjectives are one line.

    ``nouns``: who may cross. ``places``: what may be crossed (None = the same nouns, so that each
    may stand in either slot). ``of_crosser``, ``of_crossed``: adjectives that make "it" the first
    or the second noun, as many of each. Raises ``ValueError`` for a word that is used twice or is
    not one word in lower case, for a set of words, and for fewer than three nouns or two places.
    """

    nouns: Sequence[str] = ANIMALS[:8] + PLACES[:8]
    places: Sequence[str] | None = None
    of_crosser: Sequence[str] = ("tired", "scared", "slow", "weak")
    of_crossed: Sequence[str] = ("wet", "wide", "busy", "steep")

    def __post_init__(self) -> None:
        least = {"nouns": 3 if self.places is None else 2, "places": 2}
        taken = {word: "the rest of the sentence" for word in _FRAME}
        for name in ("nouns", "places", "of_crosser", "of_crossed"):
            given = getattr(self, name)
            if given is not None or name != "places":
                words = _words(name, given, least.get(name, 1), taken)
                object.__setattr__(self, name, words)
        if len(self.of_crosser) != len(self.of_crossed):
            raise ValueError(
                f"of_crossed: expected as many adjectives as of_crosser, {len(self.of_crosser)}, "
                f"got {len(self.of_crossed)}"
            )

    def __len__(self) -> int:
        """The number of words."""
        return len(self.vocabulary)

    @property
    def adjectives(self) -> tuple[str, ...]:
        """All adjectives, those of the crosser first."""
        return (*self.of_crosser, *self.of_crossed)

    @property
    def crossables(self) -> tuple[str, ...]:
        """The nouns that may be crossed."""
        return tuple(self.nouns if self.places is None else self.places)

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """Every word once; its place is its token number."""
        return (*_FRAME, *self.nouns, *(self.places or ()), *self.adjectives)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.vocabulary)}

    @cached_property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """All ordered pairs (crosser, crossed)."""
        return tuple((x, y) for x, y in itertools.product(self.nouns, self.crossables) if x != y)

    @cached_property
    def _known(self) -> frozenset[tuple[str, ...]]:
        return frozenset(self.pairs)

    # ------------------------------------------------------------------------- words and numbers

    def sentence(self, crosser: str, crossed: str, adjective: str) -> str:
        """The sentence in words, with its answer; upper case does not matter.

        Raises ``ValueError`` as :meth:`encode` does.
        """
        crosser, crossed, adjective = (_plain(word) for word in (crosser, crossed, adjective))
        answer = crosser if adjective in self.of_crosser else crossed
        words = {"X": crosser, "Y": crossed, "A": adjective, "R": answer}
        text = " ".join(words.get(word, word) for word in TEMPLATE)
        self.encode(text)  # raises for a word that does not belong there
        return text

    def encode(self, text: str) -> Tensor:
        """Token numbers ``[T]`` of a sentence or of its beginning; upper case does not matter.

        Raises ``ValueError`` that names the first word which cannot stand where it stands, the
        place, and what was expected there.
        """
        words = re.findall(r"[^\s,.]+|[,.]", _plain(text))
        for position, word in enumerate(words):
            allowed = self._allowed(words[:position])
            if word not in allowed:
                unknown = "" if word in self._index else ", which is not in the vocabulary"
                place = f"after “{' '.join(words[:position])}”" if position else "at the beginning"
                raise ValueError(
                    f"sentence: expected {_or(allowed)} as word {position + 1}, {place}, "
                    f"got {word!r}{unknown}"
                )
        if not words:
            raise ValueError(f"sentence: expected 1 to {len(TEMPLATE)} words, got none")
        return torch.tensor([self._index[word] for word in words])

    def decode(self, tokens: Tensor | Sequence[int] | int) -> str:
        """The words of token numbers ``[T]``, one space between; the word of a single number.

        Raises ``ValueError`` for whatever is no token number.
        """
        given = tokens.tolist() if isinstance(tokens, Tensor) else tokens
        numbers = list(given) if isinstance(given, Iterable) else [given]
        for number in numbers:
            whole = isinstance(number, Integral) and not isinstance(number, bool)
            if not whole or not 0 <= number < len(self):
                raise ValueError(
                    f"tokens: expected numbers in 0 … {len(self) - 1}, one axis, got {number!r}"
                )
        return " ".join(self.vocabulary[number] for number in numbers)

    def _allowed(self, before: Sequence[str]) -> tuple[str, ...]:
        """What may stand after these words, which are right."""
        if len(before) >= len(TEMPLATE):
            return ()
        slot = TEMPLATE[len(before)]
        if slot == "R":
            return (before[CROSSER], before[CROSSED])
        if slot == "Y":
            return tuple(word for word in self.crossables if word != before[CROSSER])
        return {"X": tuple(self.nouns), "A": self.adjectives}.get(slot, (slot,))

    # --------------------------------------------------------------------------------- sentences

    def sentences(self, pairs: Iterable[tuple[str, str]] | None = None) -> Sentences:
        """Each pair (crosser, crossed) (None = all) with each adjective, pair by pair."""
        chosen = self.pairs if pairs is None else [self._pair(pair) for pair in pairs]
        rows = [
            [self._index[word] for word in (*pair, adjective)]
            for pair in chosen
            for adjective in self.adjectives
        ]
        slots = torch.tensor(rows, dtype=torch.int64).reshape(-1, 3)
        return self._fill(*slots.unbind(1))

    def _pair(self, given: Any) -> tuple[str, ...]:
        """The pair as it stands in ``pairs``; raises ``ValueError`` if it does not."""
        words = given if isinstance(given, tuple | list) else ()
        pair = tuple(_plain(word) for word in words if isinstance(word, str))
        if len(pair) != len(words) or pair not in self._known:
            raise ValueError(
                f"pairs: expected two different nouns of this task, crosser first, got {given!r}"
            )
        return pair

    def of_the_crosser(self, sentences: Sentences) -> Tensor:
        """Boolean ``[n]``: the adjective makes "it" the crosser."""
        first = self._index[self.of_crosser[0]]
        number = sentences.adjective - first
        return (number >= 0) & (number < len(self.of_crosser))

    def swap_nouns(self, sentences: Sentences) -> Sentences:
        """The same sentences with crosser and crossed exchanged, and so with the other answer.

        Raises ``ValueError`` where a noun may stand in one slot only.
        """
        if self.places is not None:
            raise ValueError("swap_nouns: expected one pool of nouns, got nouns and places")
        return self._fill(sentences.crossed, sentences.crosser, sentences.adjective)

    def swap_adjective(self, sentences: Sentences) -> Sentences:
        """The same nouns with an adjective of the other kind, and so with the other answer.

        The first adjective of one kind takes the place of the first of the other, and so on.
        """
        step = torch.where(self.of_the_crosser(sentences), 1, -1) * len(self.of_crosser)
        return self._fill(sentences.crosser, sentences.crossed, sentences.adjective + step)

    def split(self, held_out: int = 4, *, seed: int = 0) -> Split:
        """Train on some pairs, hold out others; each noun is held out equally often in each slot.

        The nouns stand in a circle, in an order fixed by ``seed``. Held out is each pair whose
        second noun stands one of ``held_out`` distances after the first; the reverse is trained,
        and so are both orders of all other pairs. With ``places`` there are two circles, and a
        pair has no reverse. Raises ``ValueError`` if there are not that many distances.
        """
        require_positive("seed", seed, minimum=0)
        generator = torch.Generator().manual_seed(int(seed))
        first = [self.nouns[i] for i in torch.randperm(len(self.nouns), generator=generator)]
        second = first
        if self.places is not None:
            order = torch.randperm(len(self.places), generator=generator)
            second = [self.places[i] for i in order]
        round_ = max(len(first), len(second))
        # A distance of half the circle is its own reverse.
        distances = (round_ - 1) // 2 if self.places is None else round_ - 1
        require_positive("held_out", held_out)
        if held_out > distances:
            raise ValueError(
                f"held_out: expected at most {distances} with {round_} nouns in a circle, "
                f"got {held_out}"
            )
        chosen = {int(d) + 1 for d in torch.randperm(distances, generator=generator)[:held_out]}
        apart = {
            (x, y): (j - i) % round_
            for (i, x), (j, y) in itertools.product(enumerate(first), enumerate(second))
        }
        kept_out = [pair for pair in self.pairs if apart[pair] in chosen]
        train = [pair for pair in self.pairs if apart[pair] not in chosen]
        reverses = [(y, x) for x, y in kept_out if self.places is None]
        return Split(self.sentences(train), self.sentences(kept_out), self.sentences(reverses))

    def _fill(self, crosser: Tensor, crossed: Tensor, adjective: Tensor) -> Sentences:
        """The template with these words ``[n]``."""
        frame = [self._index.get(word, 0) for word in TEMPLATE]
        tokens = torch.tensor(frame).repeat(len(crosser), 1)
        tokens[:, CROSSER], tokens[:, CROSSED], tokens[:, ADJECTIVE] = crosser, crossed, adjective
        is_crosser = self.of_the_crosser(Sentences(tokens))
        tokens[:, ANSWER] = torch.where(is_crosser, crosser, crossed)
        return Sentences(tokens)


#: An animal and a place: with *tired* the answer is the animal, in whatever order they stand.
LEAKY = Winograd(nouns=ANIMALS, places=PLACES)
#: Both nouns from one pool of 16: only their order tells who crosses.
REPAIRED = Winograd()


# ----------------------------------------------------------------------------- training and score


def batches(sentences: Sentences, batch: int) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """A sampler for :func:`course.training.train`: whole sentences, every next word a target.

    Inputs and targets ``[batch, 17]``; sentences are drawn with replacement.
    """
    _require_some("sentences", sentences)
    require_positive("batch", batch)
    return _Batches(sentences, int(batch))


@dataclass(frozen=True)
class _Batches:
    sentences: Sentences
    batch: int

    def __call__(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(self.sentences), (self.batch,), generator=generator)
        tokens = self.sentences.tokens[rows]
        return tokens[:, :-1], tokens[:, 1:]

    def identity(self) -> dict[str, Any]:
        """What a checkpoint remembers of the data: a digest of the sentences, and the batch."""
        digest = hashlib.sha256(self.sentences.tokens.cpu().numpy().tobytes()).hexdigest()[:16]
        return {"sentences": digest, "batch": self.batch}


def margin(logits: Tensor, sentences: Sentences) -> Tensor:
    """How far the logit of the answer lies above that of the other noun after "so the": ``[n]``.

    ``logits [n,T,V]`` as in :func:`score`.
    """
    row = _deciding(logits, sentences)
    answer, other = (
        row.gather(1, x[:, None]).squeeze(1) for x in (sentences.answer, sentences.other)
    )
    return answer - other


class Score(NamedTuple):
    """Shares of sentences: ``right``, ``other`` (the other noun); the rest is no noun of the two.

    ``low``, ``high``: 95 % interval of ``right`` over ordered pairs of nouns, since the sentences
    of one pair are not independent. NaN where there is only one pair: it has no spread.
    """

    right: float
    other: float
    low: float
    high: float


def score(logits: Tensor, sentences: Sentences) -> Score:
    """What the likeliest next word is after "so the".

    ``logits [n,T,V]`` of the prompts or of longer beginnings of ``sentences``. Raises
    ``ValueError`` for other shapes, for NaN, and if there is no sentence.
    """
    _require_some("sentences", sentences)
    said = _deciding(logits, sentences).argmax(-1)
    right = (said == sentences.answer).double()
    other = (said == sentences.other).double()
    _, group = sentences.pair.unique(return_inverse=True)
    counts = torch.bincount(group)
    shares = torch.bincount(group, right) / counts
    mean = right.mean().item()
    # Pairs have equally many sentences, unless the caller picked some.
    low = high = math.nan
    if len(shares) > 1:
        half = 1.96 * shares.std().item() / math.sqrt(len(shares))
        low, high = max(0.0, mean - half), min(1.0, mean + half)
    return Score(mean, other.mean().item(), low, high)


def _deciding(logits: Tensor, sentences: Sentences) -> Tensor:
    """The logits at the deciding position, ``[n,V]``."""
    require_rank("logits", logits, "n T V")
    if logits.shape[0] != len(sentences) or logits.shape[1] <= DECIDING:
        raise ValueError(
            f"logits: expected {len(sentences)} rows of at least {DECIDING + 1} positions, "
            f"got {list(logits.shape)}"
        )
    if len(sentences) and logits.shape[2] <= sentences.tokens.max():
        raise ValueError(
            f"logits: expected more than {int(sentences.tokens.max())} words on axis V, "
            f"got {logits.shape[2]}"
        )
    row = logits[:, DECIDING]
    if row.isnan().any():
        raise ValueError(f"logits: expected numbers at position {DECIDING}, got NaN")
    return row


def _require_some(name: str, sentences: Any) -> None:
    """Raise ``ValueError`` unless these are sentences, and there is at least one."""
    if not isinstance(sentences, Sentences):
        raise ValueError(f"{name}: expected Sentences, got {type(sentences).__name__}")
    if not len(sentences):
        raise ValueError(f"{name}: expected at least one sentence, got none")


# ----------------------------------------------------------------------------------------- audits


def shared_pairs(one: Sentences, two: Sentences) -> set[tuple[int, int]]:
    """The ordered pairs of nouns that stand in both; a sound split has none."""
    first, second = (
        {(int(x), int(y)) for x, y in zip(s.crosser, s.crossed, strict=True)} for s in (one, two)
    )
    return first & second


def role_counts(sentences: Sentences) -> np.ndarray:
    """How often each adjective meets each noun in each role: ``[adjectives, nouns, 4]``.

    Roles: crosser and meant by "it", crosser and not meant, crossed and meant, crossed and not
    meant. In a balanced set the row of every adjective is constant over the nouns, apart from roles
    that the adjective excludes. Only adjectives and nouns that occur have a row.
    """
    nouns = torch.cat([sentences.crosser, sentences.crossed])
    meant = torch.cat([sentences.answer, sentences.answer]) == nouns
    role = torch.arange(2).repeat_interleave(len(sentences)) * 2 + (~meant).long()
    adjectives, row = sentences.adjective.unique(return_inverse=True)
    names, column = nouns.unique(return_inverse=True)
    counts = np.zeros((len(adjectives), len(names), 4), dtype=np.int64)
    np.add.at(counts, (row.repeat(2).numpy(), column.numpy(), role.numpy()), 1)
    return counts


def word_presence_accuracy(train: Sentences, test: Sentences) -> float:
    """How well the bag of words of a prompt tells which of its two nouns is the answer.

    A linear least-squares fit of the answer on which words are present, made on ``train``. The
    answer is the noun of the two that it scores higher; where it cannot tell them apart, half.
    Raises ``ValueError`` if there are no sentences.
    """
    _require_some("train", train)
    _require_some("test", test)
    size = 1 + int(max(train.tokens.max(), test.tokens.max()))
    bags = [torch.zeros(len(s), size).double().scatter_(1, s.prompts, 1.0) for s in (train, test)]
    target = torch.nn.functional.one_hot(train.answer, size).double()
    # The pseudo-inverse: the least solution, though words that always occur are equal columns.
    found = bags[1] @ (torch.linalg.pinv(bags[0]) @ target)
    ahead = (found.gather(1, test.answer[:, None]) - found.gather(1, test.other[:, None])).squeeze()
    ahead = torch.where(ahead.abs() < 1e-8, 0.0, ahead)
    return ((ahead.sign() + 1) / 2).mean().item()


def same_words_accuracy(train: Sentences, test: Sentences) -> float:
    """How well one answers by the trained sentence that has the same words, in whatever order.

    NaN if no sentence of ``test`` has such a twin.
    """
    answers: dict[tuple[int, ...], list[int]] = {}
    for bag, answer in zip(train.prompts.sort(1).values.tolist(), train.answer, strict=True):
        answers.setdefault(tuple(bag), []).append(int(answer))
    shares = [
        np.mean([answer == seen for seen in answers[tuple(bag)]])
        for bag, answer in zip(
            test.prompts.sort(1).values.tolist(), test.answer.tolist(), strict=True
        )
        if tuple(bag) in answers
    ]
    return float(np.mean(shares)) if shares else math.nan
