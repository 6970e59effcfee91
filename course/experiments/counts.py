"""Shakespeare without a network: what counting tokens, or pairs of tokens, already predicts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from course.experiments.runner import Config, Progress
from course.tasks.text import Corpus, bigram_perplexity, load_shakespeare, unigram_perplexity

#: By label: the perplexity, and how many numbers are counted per token of the vocabulary.
_COUNTED: dict[str, tuple[Callable[[Corpus], float], int]] = {
    "unigrams": (unigram_perplexity, 0),
    "bigrams": (bigram_perplexity, 1),
}


def execute(config: Config, progress: Progress) -> dict[str, Any]:
    """Count as ``config["label"]`` says (``unigrams`` or ``bigrams``): ``{"curve", "result"}``.

    The curve has one entry, ``first``: the held-out loss in nats a token.
    """
    corpus = load_shakespeare()
    measure, power = _COUNTED[config["label"]]
    perplexity = measure(corpus)
    return {
        "curve": {"first": [round(math.log(perplexity), 5)]},
        "result": {
            "parameters": corpus.vocab_size ** (power + 1),
            "held_out": round(perplexity, 3),
        },
    }


def first_losses(config: Config, steps: int) -> list[float]:
    """The loss again, computed from the text."""
    measure, _ = _COUNTED[config["label"]]
    return [round(math.log(measure(load_shakespeare())), 5)][:steps]
