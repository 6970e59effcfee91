"""Induction: a text repeats itself, and whoever has seen [A][B] answers [A] with [B].

    d b e a c | d b e a c | d b …        period 5: after the second d comes b again

The period is drawn anew for each row. With one period for all rows the answer stands always
equally far back, and a single layer that knows positions finds it there; with a random period one
has to look for the token before the answer, which takes two steps: tell each position what stands
before it, then match.

Source: Olsson et al., "In-context Learning and Induction Heads" (2022).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course.inputs import require_positive, require_rank, require_same

#: Where there is no target (what PyTorch's cross-entropy leaves out).
NO_TARGET = -100


class Repeats(NamedTuple):
    """``inputs [n,T]``; ``targets [n,T]``: the next token where it was told, else −100;
    ``period [n]``: after how many tokens each row repeats itself. All int64.
    """

    inputs: Tensor
    targets: Tensor
    period: Tensor


def make_repeats(
    n: int, *, seq_len: int, vocab_size: int, shortest: int, longest: int, seed: int
) -> Repeats:
    """``n`` rows of distinct tokens in random order, repeated with a period of their own.

    Periods are drawn from ``shortest`` … ``longest``. The first target of a row stands where its
    first token comes back. The same ``seed`` gives the same rows, whatever else was seeded. Raises
    ``ValueError`` unless 2 ≤ shortest ≤ longest ≤ vocab_size and longest < seq_len.
    """
    require_positive("n", n, minimum=0)
    require_positive("seed", seed, minimum=0)
    _require_room(seq_len, vocab_size, shortest, longest)
    return _draw(
        torch.Generator().manual_seed(int(seed)), n, seq_len, vocab_size, shortest, longest
    )


def repeat_batches(
    batch: int, *, seq_len: int, vocab_size: int, shortest: int, longest: int
) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """A sampler for :func:`course.training.train`: new rows at every step, ``[batch, T]``.

    Raises the same errors as :func:`make_repeats`.
    """
    require_positive("batch", batch)
    _require_room(seq_len, vocab_size, shortest, longest)
    return _Batches(int(batch), int(seq_len), int(vocab_size), int(shortest), int(longest))


@dataclass(frozen=True)
class _Batches:
    batch: int
    seq_len: int
    vocab_size: int
    shortest: int
    longest: int

    def __call__(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return _draw(generator, *asdict(self).values())[:2]

    def identity(self) -> dict[str, Any]:
        """What a checkpoint remembers of the data: all sizes."""
        return asdict(self)


def solve(inputs: Tensor) -> Tensor:
    """The rule: what followed this token before → ``[n,T]``, −100 where the token is new."""
    require_rank("inputs", inputs, "n T")
    followers = _followers(inputs)
    last = followers * torch.arange(1, inputs.shape[1] + 1)
    told = inputs.gather(1, (last.amax(-1) - 1).clamp(min=0))
    return told.masked_fill(~followers.any(-1), NO_TARGET)


def accuracy(logits: Tensor, targets: Tensor) -> float:
    """The share of targets ``[n,T]`` that ``logits [n,T,V]`` predict; −100 is left out.

    Raises ``ValueError`` for shapes that do not fit, and for NaN where there is a target.
    """
    require_rank("logits", logits, "n T V")
    require_rank("targets", targets, "n T")
    require_same("n", {"logits": logits.shape[0], "targets": targets.shape[0]})
    require_same("T", {"logits": logits.shape[1], "targets": targets.shape[1]})
    scored = targets != NO_TARGET
    if logits[scored].isnan().any():
        raise ValueError("logits: expected numbers where there is a target, got NaN")
    return (logits.argmax(-1) == targets)[scored].double().mean().item()


def previous_token_score(weights: Tensor) -> Tensor:
    """How much weight each head of a map ``[B,H,T,T]`` puts on the previous token: ``[H]``."""
    require_rank("weights", weights, "B H T T")
    return weights.diagonal(-1, 2, 3).mean((0, 2))


def induction_score(weights: Tensor, inputs: Tensor) -> Tensor:
    """How much weight each head puts on what followed the present token before: ``[H]``.

    ``weights [B,H,T,T]``, ``inputs [B,T]``; a mean over the positions whose token is not new.
    """
    require_rank("weights", weights, "B H T T")
    require_rank("inputs", inputs, "B T")
    require_same("B", {"weights": weights.shape[0], "inputs": inputs.shape[0]})
    require_same("T", {"weights": weights.shape[2], "inputs": inputs.shape[1]})
    followers = _followers(inputs)
    told = followers.any(-1)
    given = (weights * followers[:, None]).sum(-1)
    return (given * told[:, None]).sum((0, 2)) / told.sum()


def _followers(inputs: Tensor) -> Tensor:
    """Boolean ``[n,T,T]``: before t, the token of place i − 1 was that of place t."""
    T = inputs.shape[1]
    same = inputs[:, :, None] == inputs[:, None, :]
    after = torch.zeros_like(same)
    after[:, :, 1:] = same[:, :, :-1]
    return after & torch.ones(T, T, dtype=torch.bool).tril()


def _draw(
    generator: torch.Generator, n: int, seq_len: int, vocab_size: int, shortest: int, longest: int
) -> Repeats:
    period = torch.randint(shortest, longest + 1, (n,), generator=generator)
    order = torch.rand(n, vocab_size, generator=generator).argsort(1)
    place = torch.arange(seq_len + 1) % period[:, None]
    tokens = order.gather(1, place)
    told = torch.arange(seq_len) >= period[:, None]
    targets = tokens[:, 1:].masked_fill(~told, NO_TARGET)
    return Repeats(tokens[:, :-1], targets, period)


def _require_room(seq_len: int, vocab_size: int, shortest: int, longest: int) -> None:
    require_positive("seq_len", seq_len)
    require_positive("vocab_size", vocab_size)
    require_positive("shortest", shortest, minimum=2)
    require_positive("longest", longest)
    if not shortest <= longest <= vocab_size:
        raise ValueError(
            f"longest: expected shortest = {shortest} ≤ longest ≤ vocab_size = {vocab_size} "
            f"(a period has distinct tokens), got {longest}"
        )
    if longest >= seq_len:
        raise ValueError(
            f"seq_len: expected more than longest = {longest} positions, got {seq_len}"
        )
