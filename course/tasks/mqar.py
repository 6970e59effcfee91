"""Multi-query associative recall (MQAR): pairs of a key and a value, then each key is asked once.

    k₁ v₁ k₂ v₂ … k_N v_N  · · k₂ v₂ · k₁ v₁ · · ·        (· = a filler)

At each asked key the model must predict the value that followed it before; everything else is
unpredictable and is not scored. Two layers can do it: one puts the previous token beside each
value, the next looks for the value whose neighbour is the asked key.

After Arora et al. 2023, "Zoology" (arXiv:2312.04927). As in their code, the pairs come first and
the gap of a query follows a power law. Unlike there: fillers have tokens of their own, so none
can be taken for a key or a value; the answer stands behind its key, so nothing in the text
contradicts a pair; values are drawn independently, so that N pairs hold N·log₂(values) bits and
whoever cannot see the pair is right once in ``values`` times; and one generator draws everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from course.inputs import require_bool, require_number, require_positive, require_rank, require_same

#: Where there is no target (what PyTorch's cross-entropy leaves out).
NO_TARGET = -100
_ROWS_AT_ONCE = 64


class Vocabulary(NamedTuple):
    """The token numbers of the three parts, which do not overlap."""

    keys: range
    values: range
    fillers: range


def vocabulary(vocab_size: int) -> Vocabulary:
    """Three eighths of the tokens are keys, as many are values, the rest fillers: 32 = 12+12+8."""
    require_positive("vocab_size", vocab_size, minimum=6)
    part = 3 * int(vocab_size) // 8
    return Vocabulary(range(part), range(part, 2 * part), range(2 * part, int(vocab_size)))


def make_mqar(
    n: int, *, seq_len: int, n_pairs: int, vocab_size: int, alpha: float = 0.01, seed: int
) -> tuple[Tensor, Tensor]:
    """``n`` examples: inputs and targets ``[n, seq_len]``, int64; −100 = no target.

    The target of an asked key is its value, at the position of that key. Behind the pairs lie
    slots of two places; slot g = 1, 2, … is asked in with a chance ∝ g^(``alpha`` − 1), without
    replacement, so most queries come soon and a few late (``alpha=1``: uniformly).
    The same ``seed`` gives the same bytes, whatever else was seeded.

    Raises ``ValueError`` with the inequality that fails if there are too many pairs for the length
    (4·n_pairs ≤ seq_len) or for the vocabulary (n_pairs ≤ number of keys).
    """
    require_positive("n", n, minimum=0)
    require_positive("seed", seed, minimum=0)
    words = _require_room(seq_len, n_pairs, vocab_size, alpha)
    n, seq_len, n_pairs = int(n), int(seq_len), int(n_pairs)  # NumPy's small integers overflow
    rng = np.random.default_rng(int(seed))
    pairs_end, slots = 2 * n_pairs, (seq_len - 2 * n_pairs) // 2

    inputs = rng.integers(words.fillers.start, words.fillers.stop, (n, seq_len), dtype=np.int64)
    keys = rng.permuted(np.tile(np.array(words.keys), (n, 1)), axis=1)[:, :n_pairs]
    values = rng.integers(words.values.start, words.values.stop, (n, n_pairs), dtype=np.int64)
    inputs[:, 0:pairs_end:2], inputs[:, 1:pairs_end:2] = keys, values

    # The n_pairs largest of log p + Gumbel noise are a draw without replacement from p.
    log_chance = (alpha - 1) * np.log(np.arange(1, slots + 1))
    order = np.argsort(-(log_chance + rng.gumbel(size=(n, slots))), axis=1)[:, :n_pairs]
    # The likely slots come first in that order: shuffled, no pair is asked sooner than another.
    query = pairs_end + 2 * rng.permuted(order, axis=1)
    targets = np.full_like(inputs, NO_TARGET)
    np.put_along_axis(inputs, query, keys, axis=1)
    np.put_along_axis(inputs, query + 1, values, axis=1)
    np.put_along_axis(targets, query, values, axis=1)
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def _require_room(seq_len: int, n_pairs: int, vocab_size: int, alpha: float) -> Vocabulary:
    require_positive("seq_len", seq_len)
    require_positive("n_pairs", n_pairs)
    require_number("alpha", alpha, above=0)
    words = vocabulary(vocab_size)
    if 4 * int(n_pairs) > seq_len:
        raise ValueError(
            "n_pairs: expected 4·n_pairs ≤ seq_len (a pair takes two places, and so does its "
            f"query with the answer), got 4·{n_pairs} = {4 * int(n_pairs)} > {seq_len}"
        )
    if n_pairs > len(words.keys):
        raise ValueError(
            f"n_pairs: expected n_pairs ≤ {len(words.keys)} keys (3/8 of vocab_size = "
            f"{vocab_size}), got {n_pairs} > {len(words.keys)}"
        )
    return words


@dataclass(frozen=True)
class _Batches:
    batch: int
    seq_len: int
    n_pairs: int
    vocab_size: int
    alpha: float
    halvings: int

    def __call__(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        def draw(below: int) -> int:
            return int(torch.randint(below, (), generator=generator, device=generator.device))

        half = 2 ** draw(self.halvings + 1)
        return make_mqar(
            self.batch * half,
            seq_len=self.seq_len // half,
            n_pairs=self.n_pairs // half,
            vocab_size=self.vocab_size,
            alpha=self.alpha,
            seed=draw(2**62),
        )

    def identity(self) -> dict[str, Any]:
        """What a checkpoint remembers of the data: all sizes."""
        return asdict(self)


def mqar_batches(
    batch: int,
    *,
    seq_len: int,
    n_pairs: int,
    vocab_size: int,
    alpha: float = 0.01,
    halvings: int = 0,
) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """A sampler for :func:`course.training.train`: new examples at every step, ``[batch, T]``.

    The seed given to ``train`` fixes them all. ``halvings=h``: each step draws one of h + 1 sizes:
    length and number of pairs as given, or both halved once, twice, …, and then twice, four times,
    … as many examples. What is learned on short texts goes on to long ones, which alone may teach
    nothing for thousands of steps; Arora et al. mix lengths too.

    Raises the errors of :func:`make_mqar`, and ``ValueError`` if a size cannot be halved so often.
    """
    require_positive("batch", batch)
    require_positive("halvings", halvings, minimum=0)
    _require_room(seq_len, n_pairs, vocab_size, alpha)
    for name, size in (("seq_len", seq_len), ("n_pairs", n_pairs)):
        if int(size) % 2 ** int(halvings):
            raise ValueError(
                f"{name}: expected a multiple of 2^halvings = {2 ** int(halvings)}, got {size}"
            )
    return _Batches(
        batch=int(batch),
        seq_len=int(seq_len),
        n_pairs=int(n_pairs),
        vocab_size=int(vocab_size),
        alpha=float(alpha),
        halvings=int(halvings),
    )


def solve(inputs: Tensor) -> Tensor:
    """The rule, without training: what followed this token before → ``[n,T]``, −100 for new ones.

    Of several earlier places the last one counts.
    """
    require_rank("inputs", inputs, "n T")
    earlier = _last_earlier(inputs)
    told = inputs.gather(1, (earlier + 1).clamp(max=inputs.shape[1] - 1))
    return told.masked_fill(earlier < 0, NO_TARGET)


def distances(inputs: Tensor, targets: Tensor) -> Tensor:
    """How many tokens before each query its key stood: ``[n,T]``, 0 where there is no target."""
    _require_alike(inputs=inputs, targets=targets)
    gap = torch.arange(inputs.shape[1], device=inputs.device) - _last_earlier(inputs)
    return gap.masked_fill(targets == NO_TARGET, 0)


def _last_earlier(inputs: Tensor) -> Tensor:
    """The last place before t where the token of place t stood, ``[n,T]``; −1 if nowhere."""
    # A stable sort puts equal tokens side by side, in the order of their places.
    tokens, places = inputs.sort(dim=1, stable=True)
    same = tokens[:, 1:] == tokens[:, :-1]
    before = F.pad(torch.where(same, places[:, :-1], -1), (1, 0), value=-1)
    return torch.empty_like(places).scatter(1, places, before)


def _require_alike(**texts: Tensor) -> None:
    for name, x in texts.items():
        require_rank(name, x, "n T")
    for index, axis in enumerate("nT"):
        require_same(axis, {name: x.shape[index] for name, x in texts.items()})


@torch.no_grad()
def predictions(model: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """The likeliest next token at every place, ``[n,T]``; ``model(inputs)`` are logits [n,T,V]."""
    return torch.cat([model(rows).argmax(-1) for rows in inputs.split(_ROWS_AT_ONCE)])


def accuracy(predicted: Tensor, targets: Tensor, among: Tensor | None = None) -> float:
    """The share of targets ``[n,T]`` that were predicted; −100 is left out.

    ``among [n,T]``: a boolean mask of the targets that count, for example
    ``distances(inputs, targets) > 16``. NaN if none does.
    """
    _require_alike(predicted=predicted, targets=targets)
    asked = targets != NO_TARGET
    if among is not None:
        _require_alike(among=among, targets=targets)
        require_bool("among", among, "True = counts")
        asked = asked & among
    return (predicted == targets)[asked].double().mean().item()


def told_by_context(inputs: Tensor, targets: Tensor) -> Tensor:
    """Which targets of any text the context could have told: boolean ``[n,T]``.

    Those whose pair (input, target) stood in the text before, so that whoever recalls what followed
    this token the last time has seen the answer. In MQAR that is every target. What the weights
    know anyway (a frequent pair) is told too: leave such pairs out of the mask to ask for recall
    alone. Source: the "AR hits" of Arora et al. 2023 (arXiv:2312.04927).
    """
    _require_alike(inputs=inputs, targets=targets)
    inputs, targets = inputs.long(), targets.long()  # room for the number of a pair
    asked = targets != NO_TARGET
    after = torch.where(asked, targets, inputs.roll(-1, 1))
    size = int(after.max()) + 1 if after.numel() else 1
    return asked & (_last_earlier(inputs * size + after) >= 0)


class SplitLoss(NamedTuple):
    """Mean loss in nats of the targets that are told and of the rest; the share that is told."""

    told: float
    rest: float
    share: float


@torch.no_grad()
def split_loss(
    model: Callable[[Tensor], Tensor], inputs: Tensor, targets: Tensor, told: Tensor
) -> SplitLoss:
    """The cross-entropy of ``model(inputs)`` in two parts: where ``told [n,T]``, and elsewhere.

    The mean over all targets is ``share·told + (1 − share)·rest``. A part without targets is NaN.
    """
    _require_alike(inputs=inputs, targets=targets)
    _require_alike(told=told, targets=targets)
    require_bool("told", told, "True = the context has told it")
    losses = torch.cat(
        [
            F.cross_entropy(model(rows).mT.double(), wanted, reduction="none")
            for rows, wanted in zip(
                inputs.split(_ROWS_AT_ONCE), targets.split(_ROWS_AT_ONCE), strict=True
            )
        ]
    )
    asked = targets != NO_TARGET
    return SplitLoss(
        told=losses[asked & told].mean().item(),
        rest=losses[asked & ~told].mean().item(),
        share=told[asked].double().mean().item(),
    )
