"""The toy languages: what they promise about their probabilities, against independent counts."""

import itertools
import math

import numpy as np
import pytest
import torch

from course.tasks.toy import MarkovChain, ToyLanguage

LANGUAGE = ToyLanguage()


def by_enumeration(language, context):
    """exp H(next | last words), from the probability of every text of context + 1 words."""
    joint = {}
    words = range(len(language))
    for text in itertools.product(words, repeat=context):
        try:
            p = math.prod(
                language.next_word_probabilities(text[:t])[text[t]].item() for t in range(context)
            )
        except ValueError:  # a text that cannot be
            continue
        if p > 0:
            joint[text] = p
    assert math.isclose(sum(joint.values()), 1, abs_tol=1e-12)
    entropy = 0.0
    for text, p in joint.items():
        q = language.next_word_probabilities(text)
        entropy -= p * sum(a * math.log(a) for a in q.tolist() if a > 0)
    return math.exp(entropy)


def grammar_says(prefix):
    """The rules written a second time, by hand, for a prefix that starts with a sentence."""
    names = list(LANGUAGE.vocabulary[2:12])
    verbs = list(LANGUAGE.vocabulary[-10:])
    homes = {"near": "forest garden", "beside": "river road", "under": "tree roof"}
    homes["behind"] = "wall church"
    adjectives = ["old", "small", "dark", "quiet", "red", "tall"]
    words = prefix.split()
    sentence = words[len(words) - words[::-1].index(".") :] if "." in words else words
    if not sentence:
        return dict.fromkeys(names, 0.1)
    last, subject = sentence[-1], sentence[0]
    preposition = next((word for word in reversed(sentence) if word in homes), None)
    if len(sentence) == 1:
        return dict.fromkeys(homes, 0.25)
    if last in homes:
        return {"the": 0.75, **dict.fromkeys(names, 0.025)}
    if last in verbs:
        return {".": 1.0}
    if last == "the" or last in adjectives:
        share = 0.5 if last == "the" else 1.0
        result = {
            place: share * (0.47 if home == preposition else 0.01)
            for home, pair in homes.items()
            for place in pair.split()
        }
        return result | (dict.fromkeys(adjectives, 0.5 / 6) if last == "the" else {})
    verb = {
        verb: 0.3 * (0.94 if name == subject else 0.06 / 9)
        for name, verb in zip(names, verbs, strict=True)
    }
    return dict.fromkeys(homes, 0.7 / 4) | verb


@pytest.mark.parametrize(
    "prefix",
    [
        "anna sleeps .",
        ". emma",
        ". emma near",
        ". emma near the",
        ". emma near the old",
        ". emma near the old garden",
        ". emma near the old garden behind felix",
        ". emma near the old garden behind felix under the",
        ". emma near the old garden behind felix under the roof plays",
        ". emma near the forest plays . david under emma",
    ],
)
def test_next_word_is_what_the_rules_say(prefix):
    text = prefix if prefix.startswith(".") else "."
    got = LANGUAGE.next_word_probabilities(text)
    expected = torch.zeros(len(LANGUAGE), dtype=torch.float64)
    for word, p in grammar_says(text).items():
        expected[LANGUAGE.vocabulary.index(word)] = p
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)


def test_unknown_past_is_averaged_over():
    # After "forest" alone the subject is unknown: every verb is equally likely.
    p = LANGUAGE.next_word_probabilities("forest")
    verbs = p[LANGUAGE.encode("sleeps barks sings runs plays prays writes hunts laughs waits")]
    torch.testing.assert_close(verbs, torch.full_like(verbs, 0.03), atol=1e-12, rtol=0)


@pytest.mark.parametrize("context", [0, 1, 2])
def test_floor_equals_enumeration(context):
    assert math.isclose(
        LANGUAGE.optimal_perplexity(context), by_enumeration(LANGUAGE, context), rel_tol=1e-10
    )


@pytest.mark.parametrize("context", [0, 1, 2, 3])
def test_floor_of_a_chain_equals_enumeration(context):
    chain = MarkovChain(5, decay=0.6, seed=3)
    assert math.isclose(
        chain.optimal_perplexity(context), by_enumeration(chain, context), rel_tol=1e-10
    )


def test_floor_equals_the_log_loss_of_the_truth_on_samples():
    windows = LANGUAGE.sample(150, length=25, seed=5)
    losses = torch.tensor(
        [
            [-LANGUAGE.next_word_probabilities(w[:t])[w[t]].log().item() for t in range(1, 25)]
            for w in windows
        ]
    ).mean(1)
    error = 4 * losses.std().item() / math.sqrt(len(losses))
    assert abs(losses.mean().item() - math.log(LANGUAGE.window_perplexity(24))) < error


def test_more_context_never_hurts_and_tends_to_the_entropy_rate():
    floors = [LANGUAGE.optimal_perplexity(n) for n in (0, 1, 2, 4, 8, 16, 40)]
    assert all(a > b for a, b in itertools.pairwise(floors))
    rate = LANGUAGE.optimal_perplexity()
    assert rate < floors[-1] < 1.005 * rate
    window = LANGUAGE.window_perplexity(8)
    by_hand = math.exp(sum(math.log(LANGUAGE.optimal_perplexity(n)) for n in range(1, 9)) / 8)
    assert math.isclose(window, by_hand, rel_tol=1e-12)


def test_subject_and_verb_stand_far_apart():
    text = LANGUAGE.decode(LANGUAGE.sample(1, length=30_000, seed=1)[0]).split(" . ")[1:-1]
    distances = np.array([len(sentence.split()) - 1 for sentence in text])
    assert 10.5 < distances.mean() < 12.5
    agree = {"anna": "sleeps", "jonas": "waits"}
    share = np.mean([s.split()[-1] == agree[s.split()[0]] for s in text if s.split()[0] in agree])
    assert 0.9 < share < 0.98


def test_samples_have_the_stated_frequencies():
    windows = LANGUAGE.sample(4000, length=12, seed=2)
    for place in (0, 11):  # stationary: the first word is distributed like any other
        seen = torch.bincount(windows[:, place], minlength=len(LANGUAGE)) / len(windows)
        assert (seen - LANGUAGE.next_word_probabilities()).abs().max() < 0.02


def test_a_seed_fixes_the_sample():
    a, b = (LANGUAGE.sample(3, length=9, seed=7) for _ in range(2))
    assert torch.equal(a, b) and a.shape == (3, 9) and a.dtype == torch.int64
    assert not torch.equal(a, LANGUAGE.sample(3, length=9, seed=8))


def test_words_and_numbers_are_inverse():
    text = "clara under the old tree sings ."
    assert LANGUAGE.decode(LANGUAGE.encode(text)) == text
    assert LANGUAGE.decode(LANGUAGE.encode(text).numpy()) == text
    assert LANGUAGE.decode([np.int64(0), torch.tensor(1)]) == LANGUAGE.decode([0, 1])
    assert LANGUAGE.decode([]) == LANGUAGE.decode(LANGUAGE.encode("")) == ""
    assert len(set(LANGUAGE.vocabulary)) == len(LANGUAGE) == 40


def test_markov_chain_has_one_floor_after_every_word():
    chain = MarkovChain()
    chances = 0.526 ** np.arange(24)
    chances /= chances.sum()
    expected = math.exp(-(chances * np.log(chances)).sum())
    assert math.isclose(chain.optimal_perplexity(), expected, rel_tol=1e-9)
    assert math.isclose(chain.optimal_perplexity(1), expected, rel_tol=1e-9)
    for word in range(24):
        p = chain.next_word_probabilities([3, word])
        torch.testing.assert_close(p.sort(descending=True)[0], torch.from_numpy(chances))


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: LANGUAGE.encode("anna near the castle"), "text: .*castle"),
        (lambda: LANGUAGE.next_word_probabilities("the the"), "prefix: .*'the' as word 1"),
        (lambda: LANGUAGE.next_word_probabilities([40]), "tokens: .*0 to 39, got 40"),
        (lambda: LANGUAGE.decode([[1]]), "tokens: .*got"),
        (lambda: LANGUAGE.decode(3), "tokens: .*got 3"),
        (lambda: LANGUAGE.decode([1.0]), "tokens: .*got"),
        (lambda: LANGUAGE.encode(3), "text: expected words, got int"),
        (lambda: MarkovChain(3, decay="fast"), "decay: expected a finite number"),
        (lambda: MarkovChain(3, decay=1.5), "decay: expected"),
        (lambda: LANGUAGE.sample(0, length=3, seed=0), "n: expected"),
        (lambda: LANGUAGE.sample(3, length=0, seed=0), "length: expected"),
        (lambda: LANGUAGE.optimal_perplexity(-1), "context: expected"),
        (lambda: LANGUAGE.window_perplexity(0), "length: expected"),
        (lambda: MarkovChain(1), "n_words: expected"),
        (lambda: MarkovChain(3, decay=0.0), "decay: expected"),
    ],
)
def test_bad_input_is_named(act, words):
    with pytest.raises(ValueError, match=words):
        act()
