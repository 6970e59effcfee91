"""Checks for the exercises of notebook 02: a black box, a head made by hand, four planted bugs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course.attention import softmax_attention
from course.checks import Exercise
from course.checks.properties import (
    Case,
    Test,
    agrees,
    all_of,
    case,
    eighths,
    normal,
    shaped,
)

Head = Callable[[Any], Tensor]  # x [T, E] → weights [T, T]

# recover(head, E): the matrix A [E, E] of a head that is asked, not opened


def _answers(x: Any, *, A: Tensor) -> Tensor:
    """The weights of a head with the scores x_tᵀ A x_i, without a mask and without a scale."""
    x = torch.as_tensor(x).double()
    if x.ndim != 2 or x.shape[1] != len(A):
        raise ValueError(f"x: expected words [T, {len(A)}], got {list(x.shape)}")
    return (x @ A @ x.T).softmax(-1)


#: The kinds of words that the black box of notebook 02 tells apart, one axis each.
KINDS = ("determiner", "noun", "verb", "preposition", "pronoun")
#: A head for notebook 02: words [T, 5] → weights [T, T].
BLACK_BOX: Head = partial(
    _answers,
    A=torch.tensor(
        [
            [0.0, 0.5, 0.0, 0.0, 0.0],
            [2.0, -1.0, 0.0, 0.0, 0.0],
            [0.0, 3.0, 0.0, 0.0, 1.0],
            [0.0, 0.0, 2.5, 0.0, 0.0],
            [-1.0, 4.0, 0.0, 0.0, -2.0],
        ],
        dtype=torch.float64,
    ),
)


def _recover(head: Head, E: int, length: float = 0.01) -> Tensor:
    """Short unit vectors and one of zeros, whose score is 0 with everybody."""
    x = torch.cat([length * torch.eye(E), torch.zeros(1, E)]).double()
    log = head(x)[:E].log()
    return (log[:, :E] - log[:, E:]) / length**2


def _head(A: Tensor) -> Head:
    return partial(_answers, A=A)


def _one_entry(E: int) -> Tensor:
    A = torch.zeros(E, E, dtype=torch.float64)
    A[2, 1] = 3.0
    return A


def _level_rows(E: int) -> Tensor:
    """Row m is m, everywhere: unit vectors alone give equal weights."""
    return torch.arange(E, dtype=torch.float64)[:, None].expand(E, E).clone()


def _of_units(head: Head, E: int) -> Tensor:
    return head(torch.eye(E, dtype=torch.float64))


_recovers = partial(
    agrees,
    _recover,
    atol=1e-4,
    rtol=1e-6,
    probes=[case(_head(normal(5, 5, seed=2)), 5)],
    mistakes={
        "These are the weights. A score is the logarithm of a weight, up to a number that its row "
        "shares": _of_units,
        "These are logarithms of weights, and each row is off by a number of its own: only "
        "differences in a row count. Which word has a score that you know?": (
            lambda head, E: _of_units(head, E).log()
        ),
        "This is A less its first column: a word of zeros has the score 0, so compare with that": (
            lambda head, E: _recover(head, E) - _recover(head, E)[:, :1]
        ),
        "This is A less the mean of each row: a word of zeros has the score 0, so compare with "
        "that": lambda head, E: _recover(head, E) - _recover(head, E).mean(1, keepdim=True),
        "This is Aᵀ: the row is the word that looks": lambda head, E: _recover(head, E).T,
        "This is −A: which of the two weights stands above?": lambda head, E: -_recover(head, E),
        "Only A + Aᵀ comes out of this: let word m look at word n, and n at m, apart": (
            lambda head, E: (_recover(head, E) + _recover(head, E).T) / 2
        ),
        "This is the ratio of the weights; its logarithm is a difference of scores": (
            lambda head, E: _recover(head, E).exp()
        ),
    },
)

RECOVER = Exercise(
    "recover",
    {
        "shape": shaped(_recover, case(_head(normal(4, 4, seed=1)), 4)),
        "who asks whom": _recovers(
            case(_head(_one_entry(4)), 4, name="A[2, 1] is 3, all else is 0"),
            hint="Row m of A belongs to the word that looks, column n to the word that is read; "
            "and only differences of scores can be seen in weights",
        ),
        "level rows": _recovers(
            case(_head(_level_rows(4)), 4, name="each row of A is one number, 0, 1, 2 or 3"),
            hint="Unit vectors alone give equal weights here. A word of zeros has the score 0 with "
            "everybody: put one among them",
        ),
        "values": _recovers(
            case(_head(normal(5, 5, seed=2)), 5), case(_head(2 * normal(7, 7, seed=3)), 7)
        ),
        "strong head": _recovers(
            case(_head(600 * normal(5, 5, seed=4)), 5, name="scores of ±1,000"),
            mistakes=None,
            hint="A weight of e⁻¹⁰⁰⁰ is 0 in a computer, and its logarithm −∞: ask with shorter "
            "vectors, and undo it afterwards",
        ),
    },
)

# copy_previous(T): W_q [2, 6], W_k [2, 6], W_v [4, 6] for words [4] beside a position on a circle


def _streams(T: int, loud: float = 1.0) -> Tensor:
    angle = 2 * math.pi * torch.arange(T, dtype=torch.float64) / T
    return torch.cat([loud * normal(T, 4, seed=T), angle.cos()[:, None], angle.sin()[:, None]], 1)


def _by_hand(
    T: int, *, back: float = 1.0, factor: float | None = None, columns: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    turn = 2 * math.pi / T
    size = 30 / (1 - math.cos(turn)) if factor is None else factor
    W_q, W_k, W_v = (torch.zeros(n, 6, dtype=torch.float64) for n in (2, 2, 4))
    c, s = math.cos(back * turn), math.sin(back * turn)
    W_q[:, 4:] = size * torch.tensor([[c, s], [-s, c]], dtype=torch.float64)
    W_k[:, 4:] = torch.eye(2, dtype=torch.float64)
    W_v[:, columns : columns + 4] = torch.eye(4, dtype=torch.float64)
    return W_q, W_k, W_v


def _outputs(W_q: Tensor, W_k: Tensor, W_v: Tensor, x: Tensor) -> Tensor:
    q, k, v = ((x @ W.double().T)[None, None] for W in (W_q, W_k, W_v))
    return softmax_attention(q, k, v, causal=True, scale=1.0)[0, 0]


_maps = ("W_q", "W_k", "W_v")
_copies = partial(
    agrees,
    _by_hand,
    names=_maps,
    atol=0.02,
    hint="The score may depend on the positions only, columns 4 and 5",
    mistakes={
        "A turn of one step is 2π/T, which is 1 for no T": (
            lambda T: _by_hand(T, back=T / (2 * math.pi))
        ),
        "Each position reads its own word: turn the query back by one step": (
            lambda T: _by_hand(T, back=0.0)
        ),
        "This turns the query to the position after, which is hidden: the other way round": (
            lambda T: _by_hand(T, back=-1.0)
        ),
        "This looks two positions back": lambda T: _by_hand(T, back=2.0),
        "This looks half a step back, between two positions": lambda T: _by_hand(T, back=0.5),
        "The weights are nearly equal: the scores must be much larger": (
            lambda T: _by_hand(T, factor=1.0)
        ),
    },
)


def _copying(T: int, *, loud: float = 1.0, **options: Any) -> Test:
    """The words before must come out, each in its row."""
    joint = partial(_outputs, x=_streams(T, loud))
    return _copies(case(T, name=f"{T} words"), joint=joint, **options)


COPY_PREVIOUS = Exercise(
    "copy_previous",
    {
        "shapes": shaped(_by_hand, case(5), case(2), names=_maps),
        "value": agrees(
            _by_hand,
            case(6),
            names=_maps,
            joint=lambda W_q, W_k, W_v: W_v,
            atol=1e-3,
            rule="W_v must hand on the word, the first four numbers, and nothing of the position",
            mistakes={
                "These are the last four columns; a word stands in the first four": (
                    lambda T: _by_hand(T, columns=2)
                ),
            },
        ),
        "previous word": all_of(
            *(
                _copying(T, rule="row t must be the word before it, row 1 the first word")
                for T in (6, 3, 2)
            )
        ),
        "loud words": _copying(
            6,
            loud=40.0,
            mistakes=None,
            rule="the words are 40 times as large, and row t must still be the word before it",
            hint="The score may depend on the positions only, columns 4 and 5, and it must be "
            "large: a weight of 0.99 is not enough here",
        ),
        "longer texts": all_of(
            *(
                _copying(
                    T,
                    mistakes=None,
                    rule="row t must be the word before it",
                    hint="In a longer text the positions lie closer together on the circle, so the "
                    "scores must be larger still",
                )
                for T in (12, 30)
            )
        ),
    },
)

# multi_head(x, W_q, W_k, W_v, W_o, H): causal self-attention [T, E] → [T, E]


def _multi_head(
    x: Tensor,
    W_q: Tensor,
    W_k: Tensor,
    W_v: Tensor,
    W_o: Tensor,
    H: int,
    *,
    split: str = "right",
    merge: str = "right",
    axis: int = -1,
    diagonal: int = 0,
    hidden: float = -torch.inf,
    late: bool = False,
    scale: Callable[[int, int], float] = lambda E, D: D**-0.5,
) -> Tensor:
    """The right layer, or with its options a wrong one."""
    T, E = x.shape
    made = [x @ W.T for W in (W_q, W_k, W_v)]
    if split == "right":
        q, k, v = (y.unflatten(1, (H, -1)).transpose(0, 1) for y in made)
    elif split == "reshape":
        q, k, v = (y.reshape(H, T, -1) for y in made)
    else:  # every H-th number
        q, k, v = (y.unflatten(1, (-1, H)).permute(2, 0, 1) for y in made)
    future = torch.ones(T, T).triu(1 + diagonal).bool()
    scores = q @ k.mT * scale(E, q.shape[-1])
    weights = (scores if late else scores.masked_fill(future, hidden)).softmax(axis)
    o = (weights * ~future if late else weights) @ v
    if merge == "mean":
        o = o / H
    return (o.reshape(T, -1) if merge == "reshape" else o.transpose(0, 1).flatten(1)) @ W_o.T


def _layer(T: int, E: int, H: int, D: int, Dv: int, seed: int) -> tuple[Any, ...]:
    shapes = ((T, E), (H * D, E), (H * D, E), (H * Dv, E), (E, H * Dv))
    return *(normal(*shape, seed=seed + i) for i, shape in enumerate(shapes)), H


def _low(size: float) -> Case:
    """Every score of both heads is −``size``: below a finite constant that stands for −∞."""
    x, W_q, W_k, W_v, W_o, H = (
        eighths(*w.shape, seed=31 + i) if isinstance(w, Tensor) else w
        for i, w in enumerate(_layer(6, 5, 2, 4, 3, 0))
    )
    x[:, 0] = 1.0
    W_q, W_k = torch.zeros_like(W_q), torch.zeros_like(W_k)
    W_q[[0, 4], 0], W_k[[0, 4], 0] = -2 * size, 1.0
    return case(x, W_q, W_k, W_v, W_o, H, name=f"every score is −{size:.2g}")


def _wrong(**options: Any) -> Callable[..., Tensor]:
    return partial(_multi_head, **options)


_layers = partial(
    agrees,
    _multi_head,
    atol=1e-5,
    mistakes={
        "The scores are divided by √E; each head has a width of its own, D": (
            _wrong(scale=lambda E, D: E**-0.5)
        ),
        "The scores are not divided by √D": _wrong(scale=lambda E, D: 1.0),
        "The scores are divided by D, not by √D": _wrong(scale=lambda E, D: 1 / D),
        "There is no mask: a word sees what comes after it": _wrong(diagonal=10_000),
        "The mask begins one too late: a word sees the next one": _wrong(diagonal=1),
        "The diagonal is hidden: a word may look at itself": _wrong(diagonal=-1),
        "The softmax runs over the queries; it belongs on the last axis": _wrong(axis=-2),
        "The mask comes after the softmax, so the weights of a row do not sum to 1": (
            _wrong(late=True)
        ),
        "A hidden score of 0 still gets e⁰ = 1; it must be −∞": _wrong(hidden=0.0),
        "The heads are taken apart wrongly, by reshape(H, T, …), and put together wrongly: a head "
        "owns columns of q, k and v, so the axis H comes from the last one": (
            _wrong(split="reshape", merge="reshape")
        ),
        "The heads are taken apart wrongly: a head owns columns of q, k and v. Make [T, H, D] of "
        "[T, H·D] first, then exchange two axes": _wrong(split="reshape"),
        "The heads are put together wrongly: exchange the axes H and T of o before reshape": (
            _wrong(merge="reshape")
        ),
        "Head j takes every H-th column; it owns D columns side by side": _wrong(split="every"),
        "This is the mean over the heads; what they write is added": _wrong(merge="mean"),
    },
)

MULTI_HEAD = Exercise(
    "multi_head",
    {
        "shape": shaped(
            _multi_head,
            *(case(*_layer(*sizes, seed=1)) for sizes in ((6, 5, 2, 4, 3), (1, 4, 3, 2, 5))),
        ),
        "one head": _layers(
            case(*_layer(7, 6, 1, 4, 3, seed=7)),
            rule="with H = 1 this is the attention of one head, times W_oᵀ",
            hint="Are the scores divided by √D? Does the softmax run over the keys?",
        ),
        "several heads": _layers(
            case(*_layer(7, 6, 3, 4, 2, seed=17)),
            case(*_layer(4, 8, 4, 4, 4, seed=19)),
            rule="not what the heads write, added up",
            hint="Head j owns rows jD … jD + D − 1 of W_q and W_k, and columns of W_o",
        ),
        "large scores": _layers(
            *(_low(size) for size in (2.0**9, 2.0**17, 2.0**40, 2.0**100)),
            mistakes=None,
            hint="Hide with −∞: no finite number is below all scores",
        ),
    },
)

EXERCISES = (RECOVER, COPY_PREVIOUS, MULTI_HEAD)
