"""Non-causal linear attention, tile by tile: ``impl="torch"``.

The mathematics is ``course.linear.one_state``. Features live for one tile of some two thousand
tokens, which stay in the caches, instead of for a whole batch at once. The identity makes no
features: there all is one tile.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from course.engine import maps
from course.engine.problem import Answer, Method, Problem
from course.engine.tiles import TILE
from course.feature_maps import features


def attend(problem: Problem, how: Method) -> Answer:
    """One state of all keys, then every query reads it."""
    B, H, T, _ = problem.q.shape
    S_len, Dv = problem.v.shape[2:]
    q, k, v, S, z = (x.flatten(0, 1) for x in problem[:5])
    keep, of_q, of_k = (
        None if x is None else x.reshape(B, x.shape[-1]).repeat_interleave(H, 0)
        for x in problem[5:]
    )
    longest = max(T, S_len, 1)
    size = longest * B * H if isinstance(how.fm, maps.IDENTITY) else TILE
    at_once = max(1, size // longest)
    out, sums, zs = [], [], []
    for start in range(0, max(1, B * H), at_once):
        heads = slice(start, start + at_once)
        S_here, z_here = S[heads], z[heads]
        for tokens in _cuts(S_len, size):
            tile = heads, tokens
            K = features(how.fm, how.root, k[tile], _cut(of_k, tile), _cut(keep, tile))
            S_here = S_here + K.mT @ v[tile]
            if how.want_z:
                z_here = z_here + K.sum(1)
        sums.append(S_here)
        zs.append(z_here)
        for tokens in _cuts(T, size):
            tile = heads, tokens
            Q = features(how.fm, how.root, q[tile], _cut(of_q, tile), None)
            num = Q @ S_here
            if how.normalize:
                den = (Q * z_here.unsqueeze(1)).sum(-1, keepdim=True)
                num = num / den.masked_fill(den == 0, math.inf)
            out.append(num.flatten(0, 1))
    S, z = _joined(sums), _joined(zs)
    return _joined(out).view(B, H, T, Dv), S.unflatten(0, (B, H)), z.unflatten(0, (B, H))


def _cuts(n: int, size: int) -> list[slice]:
    return [slice(start, min(n, start + size)) for start in range(0, max(1, n), max(1, size))]


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _cut(x: Tensor | None, tile: tuple[slice, slice]) -> Tensor | None:
    return None if x is None else x[tile]
