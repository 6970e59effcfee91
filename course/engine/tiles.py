"""How the chunks of many heads are cut into tiles, and summed up over the chunks of a tile."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

TILE = 2048  # tokens handled at once: enough to keep calls few, little enough for the caches


class Tile(NamedTuple):
    """``G`` chunks of ``c`` tokens of some heads: G = 1, or one head and G a power of two."""

    heads: slice
    first: int  # chunk
    G: int
    start: int  # token
    c: int
    turn: int  # how many tiles of these heads came before

    def cut(self, x: Tensor) -> Tensor:
        """A view of ``x [N,T,…]``, one chunk a row: ``[heads·G, c, …]``."""
        rows = x[self.heads, self.start : self.start + self.G * self.c]
        return rows.view(len(rows) * self.G, self.c, *x.shape[2:])

    def slots(self, x: Tensor) -> Tensor:
        """A view of ``x [N, chunks, …]``, as ``[heads·G, …]``."""
        return x[self.heads, self.first : self.first + self.G].flatten(0, 1)


def tiles(N: int, T: int, c: int) -> Iterator[Tile]:
    """How N sequences of T tokens fall into tiles: of each head, in the order of time."""
    (whole, rest), at_once = divmod(T, c), max(1, TILE // c)
    alone, turn = 0, 0  # chunks that go one head at a time
    if whole > N:
        for h in range(N):
            alone = turn = 0
            while alone < whole:
                G = 2 ** (min(at_once, whole - alone).bit_length() - 1)
                yield Tile(slice(h, h + 1), alone, G, alone * c, c, turn)
                alone, turn = alone + G, turn + 1
    for h in range(0, N, at_once):
        for n, first in enumerate(range(alone, whole + (rest > 0))):
            size = c if first < whole else rest
            yield Tile(slice(h, min(N, h + at_once)), first, 1, first * c, size, turn + n)


class Scratch:
    """Buffers that are allocated once and handed out tile after tile."""

    def __init__(self, like: Tensor) -> None:
        self.like, self.flat = like, dict[str, Tensor]()

    def __call__(self, name: str, *shape: int) -> Tensor:
        size = math.prod(shape)
        if name not in self.flat or self.flat[name].numel() < size:
            self.flat[name] = self.like.new_empty(size)
        return self.flat[name][:size].view(shape)


class Sums:
    """Sums of ``leftᵀ right`` over the chunks before each chunk of a tile (``back``: after each).

    n additions of half the rows give all 2ⁿ sums in place: n calls instead of 2ⁿ, and no
    subtraction. The views that this needs are made once.
    """

    def __init__(self, new: Scratch, *, back: bool = False) -> None:
        self.new, self.back = new, back
        self.plans: dict[int, tuple[Any, ...]] = {}

    def __call__(self, tile: Tile, left: Tensor, right: Tensor, carry: Tensor) -> Tensor:
        """``[heads·G, C, Dv]``; ``carry [heads, C, Dv]`` moves to the other side of the tile."""
        if tile.G == 1:
            before = self.new(f"sums {self.back}", *carry.shape).copy_(carry)
            carry.baddbmm_(left.mT, right)
            return before
        if tile.G not in self.plans:
            self.plans[tile.G] = self._plan(tile.G, *carry.shape[1:])
        added, before, spare, first, last, pairs = self.plans[tile.G]
        torch.bmm(left.mT, right, out=added)
        spare.copy_(carry)
        first.add_(carry)
        for here, there in pairs:
            here.add_(there)
        carry.copy_(last)
        return before

    def _plan(self, G: int, C: int, Dv: int) -> tuple[Any, ...]:
        rows = self.new.like.new_empty(G + 1, C, Dv)  # one is spare: for what is carried
        added, before = (rows[:-1], rows[1:]) if self.back else (rows[1:], rows[:-1])
        ends = (
            [rows[-1:], added[-1:], added[:1]] if self.back else [rows[:1], added[:1], added[-1:]]
        )
        pairs = []
        for d in (2**n for n in range(G.bit_length() - 1)):
            one, two = added.view(-1, 2, d, C, Dv).unbind(1)
            pairs.append((one, two[:, :1]) if self.back else (two, one[:, -1:]))
        return added, before, *ends, pairs


def sums_of_rows(added: Tensor, carry: Tensor, *, back: bool) -> Tensor:
    """The same of ``added [heads·G, C]``, one row a chunk; ``carry [heads, C]``."""
    added = added.view(len(carry), -1, carry.shape[-1])
    added = torch.cat([carry.unsqueeze(1), added.flip(1) if back else added], 1).cumsum(1)
    carry.copy_(added[:, -1])
    return (added[:, :-1].flip(1) if back else added[:, :-1]).flatten(0, 1)
