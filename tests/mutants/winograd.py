"""Wrong Winograd tasks, scores and audits, which ``tests/test_winograd.py`` must refuse.

Each mutant has the public names of ``course.tasks.winograd``.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course.tasks import winograd
from course.tasks.winograd import Score, Sentences, Split
from tests import test_winograd
from tests.mutants import Suite

CHECKS = {
    name.removeprefix("test_").replace("_", " "): test
    for name, test in vars(test_winograd).items()
    if name.startswith("test_") and list(inspect.signature(test).parameters) == ["m"]
}


def a_word_in_the_wrong_place_is_refused(m: Any) -> None:
    try:
        m.REPAIRED.encode("the dog cross")
    except ValueError:
        return
    raise AssertionError("a word stands where it cannot")


CHECKS["a word in the wrong place is refused"] = a_word_in_the_wrong_place_is_refused


def task(kind: type | None = None, **changes: Any) -> Callable[[], Any]:
    """The module with another class of tasks, or other functions in the place of some."""
    public = {name: value for name, value in vars(winograd).items() if not name.startswith("_")}
    if kind is not None:
        leaky = kind(nouns=winograd.ANIMALS, places=winograd.PLACES)
        changes = {"Winograd": kind, "REPAIRED": kind(), "LEAKY": leaky} | changes
    return lambda: types.SimpleNamespace(**(public | changes))


class Backwards(winograd.Winograd):
    """ "It" is the other noun."""

    def _fill(self, *slots: Tensor) -> Sentences:
        made = super()._fill(*slots)
        tokens = made.tokens.clone()
        tokens[:, winograd.ANSWER] = made.other
        return Sentences(tokens)


class BothOrdersHeldOut(winograd.Winograd):
    """The classical split by pairs: nothing was trained in reverse."""

    def split(self, held_out: int = 4, *, seed: int = 0) -> Split:
        split = super().split(held_out, seed=seed)
        reverses = set(split.reverses.pair.tolist())
        kept = torch.tensor([pair not in reverses for pair in split.train.pair.tolist()])
        both = torch.cat([split.held_out.tokens, split.reverses.tokens])
        return Split(split.train[kept], Sentences(both), split.reverses)


class SharesPairs(winograd.Winograd):
    """Sentences are held out, not pairs: the adjective alone is new."""

    def split(self, held_out: int = 4, *, seed: int = 0) -> Split:
        split = super().split(held_out, seed=seed)
        n = len(self.adjectives)
        train = torch.cat([split.train.tokens, split.held_out.tokens[::n]])
        return split._replace(train=Sentences(train))


class OneOrderDrawn(winograd.Winograd):
    """Which order is held out is drawn pair by pair: some nouns cross more often than others."""

    def split(self, held_out: int = 4, *, seed: int = 0) -> Split:
        split = super().split(held_out, seed=seed)
        if not len(split.reverses):
            return split
        generator = torch.Generator().manual_seed(seed)
        n = len(self.adjectives)
        turn = torch.rand(len(split.held_out) // n, generator=generator) < 0.5
        turn = turn.repeat_interleave(n)[:, None]
        out, back = split.held_out.tokens, split.reverses.tokens
        swapped = set(split.reverses.pair.tolist())
        rest = split.train[torch.tensor([p not in swapped for p in split.train.pair.tolist()])]
        reverses = torch.where(turn, out, back)
        return Split(
            Sentences(torch.cat([rest.tokens, reverses])),
            Sentences(torch.where(turn, back, out)),
            Sentences(reverses),
        )


class SeedIgnored(winograd.Winograd):
    """Every seed holds out the same pairs."""

    def split(self, held_out: int = 4, *, seed: int = 0) -> Split:
        return super().split(held_out, seed=0)


class SwapsInPlace(winograd.Winograd):
    """The sentences it was given are changed."""

    def swap_nouns(self, sentences: Sentences) -> Sentences:
        found = super().swap_nouns(sentences)
        sentences.tokens.copy_(found.tokens)
        return found


class KeepsTheAnswer(winograd.Winograd):
    """After an exchange of the nouns the answer is still the old one."""

    def swap_nouns(self, sentences: Sentences) -> Sentences:
        tokens = super().swap_nouns(sentences).tokens.clone()
        tokens[:, winograd.ANSWER] = sentences.answer
        return Sentences(tokens)


class AnyWordAnywhere(winograd.Winograd):
    """Looks words up without asking where they stand."""

    def encode(self, text: str) -> Tensor:
        words = text.lower().replace(",", " , ").replace(".", " . ").split()
        return torch.tensor([self.vocabulary.index(word) for word in words])


def first_noun_counts(logits: Tensor, sentences: Sentences) -> Score:
    """The two nouns are all that is compared: whoever names another word may still be right."""
    row = logits[:, winograd.DECIDING]
    nouns = torch.stack([sentences.answer, sentences.other], 1)
    best = row.gather(1, nouns).argmax(1)
    right = (best == 0).double().mean().item()
    return Score(right, 1 - right, right, right)


def interval_over_sentences(logits: Tensor, sentences: Sentences) -> Score:
    """As if the sentences of a pair were independent."""
    found = winograd.score(logits, sentences)
    half = 1.96 * (found.right * (1 - found.right) / len(sentences)) ** 0.5
    return found._replace(low=max(0, found.right - half), high=min(1, found.right + half))


def one_place_early(logits: Tensor, sentences: Sentences) -> Score:
    return winograd.score(logits.roll(1, 1), sentences)


def margin_of_the_answer(logits: Tensor, sentences: Sentences) -> Tensor:
    return logits[:, winograd.DECIDING].gather(1, sentences.answer[:, None])[:, 0]


def presence_by_slot(train: Sentences, test: Sentences) -> float:
    """A "bag" that knows in which slot a word stands."""
    size = 60
    bags = [
        torch.cat(
            [torch.nn.functional.one_hot(x, size) for x in (s.crosser, s.crossed)], 1
        ).double()
        for s in (train, test)
    ]
    target = torch.nn.functional.one_hot(train.answer, size).double()
    found = bags[1] @ (torch.linalg.pinv(bags[0]) @ target)
    return (found.argmax(1) == test.answer).double().mean().item()


def presence_with_ties_lost(train: Sentences, test: Sentences) -> float:
    """Where the two nouns cannot be told apart, it is wrong."""
    share = winograd.word_presence_accuracy(train, test)
    return share if share == 1 else max(0.0, 2 * share - 1)


def unordered(one: Sentences, two: Sentences) -> set[tuple[int, int]]:
    """Pairs without their order: a reversed pair counts as shared."""
    turned = torch.stack([two.crossed, two.crosser], 1)
    pairs = {tuple(sorted(p)) for p in zip(one.crosser.tolist(), one.crossed.tolist(), strict=True)}
    return {(int(x), int(y)) for x, y in turned if tuple(sorted((int(x), int(y)))) in pairs}


def never_shared(one: Sentences, two: Sentences) -> set[tuple[int, int]]:
    return set()


def whole_sentence_twins(train: Sentences, test: Sentences) -> float:
    """Compares whole sentences: the answer is among the words that it looks up."""
    seen = {tuple(row) for row in train.tokens.sort(1).values.tolist()}
    rows = test.tokens.sort(1).values.tolist()
    shares = [float(tuple(row) in seen) for row in rows]
    return sum(shares) / len(shares) if any(shares) else float("nan")


def late_targets(sentences: Sentences, batch: int) -> Any:
    """Targets are the inputs themselves."""
    sampler = winograd.batches(sentences, batch)

    class Wrong:
        def __call__(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
            inputs, _ = sampler(generator)
            return inputs, inputs

        def identity(self) -> dict[str, Any]:
            return sampler.identity()  # type: ignore[attr-defined]

    return Wrong()


MUTANTS = {
    "the other noun is the answer": task(Backwards),
    "both orders are held out": task(BothOrdersHeldOut),
    "sentences are held out, not pairs": task(SharesPairs),
    "the order held out is drawn": task(OneOrderDrawn),
    "the split ignores its seed": task(SeedIgnored),
    "an exchange changes what it was given": task(SwapsInPlace),
    "an exchange keeps the answer": task(KeepsTheAnswer),
    "words may stand anywhere": task(AnyWordAnywhere),
    "only the two nouns are compared": task(score=first_noun_counts),
    "the interval is over sentences": task(score=interval_over_sentences),
    "scored one position early": task(score=one_place_early),
    "the margin forgets the other noun": task(margin=margin_of_the_answer),
    "the bag of words knows the slots": task(word_presence_accuracy=presence_by_slot),
    "ties of the bag count as wrong": task(word_presence_accuracy=presence_with_ties_lost),
    "reversed pairs count as shared": task(shared_pairs=unordered),
    "no pair is ever shared": task(shared_pairs=never_shared),
    "twins are looked up with the answer": task(same_words_accuracy=whole_sentence_twins),
    "targets are the inputs": task(batches=late_targets),
}

SUITE = Suite("Winograd", task(), MUTANTS, CHECKS)
