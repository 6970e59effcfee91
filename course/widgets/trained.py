"""Pieces, queries and keys of the stored Shakespeare model, for any sentence."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from course.mixers.softmax import SoftmaxMixer
from course.pretrained import load
from course.transformer import Transformer

MAX_PIECES = 40


class Heads(NamedTuple):
    """What the heads of one block see: T ``pieces``, ``q`` and ``k`` [H, T, D] float64, ``scale``.

    ``scale`` is the model's own factor of q·k.
    """

    pieces: list[str]
    q: Tensor
    k: Tensor
    scale: float


@cache
def _stored() -> tuple[Transformer, Tokenizer]:
    """Read once, when a sentence first asks; in float64, so that all machines round alike."""
    model, tokenizer, _ = load("shakespeare")
    return model.double(), tokenizer


def split_pieces(sentence: str) -> tuple[list[int], list[str]]:
    """Token numbers of ``sentence`` and each token as a reader can see it.

    ``·`` stands for a space; a token that is only a part of a character is shown as its bytes.
    Raises ``ValueError`` for more than 40.
    """
    encoding = _stored()[1].encode(sentence)
    if len(encoding.ids) > MAX_PIECES:
        raise ValueError(
            f"Sentence: expected at most {MAX_PIECES} pieces for the trained model, "
            f"got {len(encoding.ids)}"
        )
    pieces, rest = [], sentence.encode()
    for token in encoding.tokens:  # in a byte-level vocabulary one sign is one byte
        raw, rest = rest[: len(token)], rest[len(token) :]
        try:
            pieces.append(raw.decode().replace(" ", "·"))
        except UnicodeDecodeError:
            pieces.append(" ".join(f"{byte:02X}" for byte in raw))
    return encoding.ids, pieces


def heads_of_block(block: int, sentence: str) -> Heads:
    """Queries and keys of ``block`` (1, 2, …) as the model computes them on ``sentence``."""
    return _heads(block, *split_pieces(sentence))


def heads_of_repeated(block: int, word: str, times: int) -> Heads:
    """As :func:`heads_of_block`, on one ``word`` that is repeated: only positions differ.

    Raises ``ValueError`` for a word of several pieces.
    """
    ids, pieces = split_pieces(word)
    if len(ids) != 1:
        raise ValueError(f"word: expected one piece of the trained model, got {pieces}")
    return _heads(block, ids * times, pieces * times)


@torch.no_grad()
def _heads(block: int, ids: list[int], pieces: list[str]) -> Heads:
    model, _ = _stored()
    x = model.embed(torch.tensor([ids], device="cpu"))
    for index in range(block - 1):
        x = model.blocks[index](x)
    here = model.blocks[block - 1]
    assert isinstance(here.mixer, SoftmaxMixer)
    q, k, _ = here.mixer.attention.heads(here.mixer_norm(x))
    own = here.mixer.scale
    return Heads(pieces, q[0], k[0], q.shape[-1] ** -0.5 if own is None else own)
