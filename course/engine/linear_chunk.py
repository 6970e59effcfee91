"""Causal linear attention by chunks, with buffers and a hand-written gradient: ``impl="torch"``.

The mathematics is ``course.linear.chunk``; here heads lie on one axis N = B·H, and the loop goes
over tiles of some two thousand tokens: many chunks of one head, or, for short sequences, one chunk
of many heads. φ lives for one tile and is computed again on the way back.

What bounds it: one token of one head needs, with chunks of c tokens, the products Q Kᵀ (2·c·C
operations), A V (2·c·Dv), Q S and Kᵀ V (2·C·Dv each). No program that makes these products whole
runs faster than the machine's matrix multiplication; ``course bench linear`` measures the distance.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from course.engine import maps
from course.engine.problem import Answer, Method, Problem
from course.engine.tiles import Scratch, Sums, Tile, sums_of_rows, tiles
from course.feature_maps import FeatureMap, features


def attend(problem: Problem, how: Method) -> Answer:
    """First derivatives by hand; second (``create_graph``, ``torch.func``) by the reference."""
    B, H, T, _ = problem.q.shape
    q, k, v, S, z, key_mask, of_queries, of_keys = problem
    if not isinstance(how.fm, FeatureMap) or next(how.fm.parameters(), None) is not None:
        # A foreign map, or one that learns, is left to autograd: once, before the loop.
        q = features(how.fm, how.root, q, of_queries, None)
        k = features(how.fm, how.root, k, of_keys, key_mask)
        how, key_mask, of_keys = how._replace(fm=maps.IDENTITY(), root=1.0), None, None
    graph = _gradients_asked(q, k, v, S, z)
    tensors = [x.flatten(0, 1).contiguous() for x in (q, k, v, S, z)]
    given = [
        None if x is None else x.reshape(B, T).repeat_interleave(H, 0) for x in (key_mask, of_keys)
    ]
    out, S, z, *_ = _Loop.apply(*tensors, *given, how, graph)
    return out.unflatten(0, (B, H)), S.unflatten(0, (B, H)), z.unflatten(0, (B, H))


def _mapped(
    tile: Tile, x: Tensor, keep: Tensor | None, places: Tensor | None, how: Method, out: Any
) -> tuple[Tensor, Tensor]:
    """What the map sees of this tile, and φ of it with padding set to 0."""
    x = tile.cut(x) if how.root == 1 else torch.mul(tile.cut(x), how.root)
    shape = *x.shape[:-1], how.fm.width(x.shape[-1])  # type: ignore[operator]
    where = None if places is None else tile.cut(places)
    f = maps.write(how.fm, x, out[0](out[1], *shape), where)
    return x, f if keep is None else f * tile.cut(keep).unsqueeze(-1)


def _scores(Q: Tensor, K: Tensor, out: Tensor) -> Tensor:
    # Not a product with a mask: 0 · NaN would let a NaN of the future reach the past.
    return torch.bmm(Q, K.mT, out=out).tril_()


def _gradients_asked(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


class _Loop(torch.autograd.Function):
    """``q, k [N,T,D]``, ``v [N,T,Dv]``, ``S [N,C,Dv]``, ``z [N,C]`` → (out, S, z) and what is kept.

    For the way back the states at the chunks' beginnings are kept where they are no larger than the
    output (C ≤ chunk), else one state a tile is; A = tril(φ(q) φ(k)ᵀ) where it is no larger
    (chunk ≤ Dv).
    """

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        q, k, v, S, z, keep, places, how, graph = inputs
        (N, T, Dv), C, c = v.shape, S.shape[1], how.chunk
        S, z, out, new = S.clone(), z.clone(), torch.empty_like(v), Scratch(v)
        cuts, before_each = list(tiles(N, T, c)), Sums(new)
        turns = -(-T // c) if c >= C else 1 + max((tile.turn for tile in cuts), default=-1)
        den = v.new_empty(N, T if how.normalize else 0)
        states = v.new_empty(N, turns if graph else 0, C, Dv)
        zs = v.new_empty(N, -(-T // c) if graph and how.normalize else 0, C)
        kept = v.new_empty(N, T, c if graph and c <= Dv else 0)
        for tile in cuts:
            S_here, z_here, V, here = S[tile.heads], z[tile.heads], tile.cut(v), tile.cut(out)
            _, Q = _mapped(tile, q, None, places, how, (new, "φ(q)"))
            _, K = _mapped(tile, k, keep, places, how, (new, "φ(k)"))
            if graph and c < C:
                states[tile.heads, tile.turn].copy_(S_here)
            before = before_each(tile, K, V, S_here)
            if graph and c >= C:
                tile.slots(states).copy_(before)
            A = tile.cut(kept)[..., : tile.c] if kept.numel() else new("A", len(Q), tile.c, tile.c)
            A = _scores(Q, K, A)
            torch.bmm(A, V, out=here).baddbmm_(Q, before)
            if how.want_z:
                z_before = sums_of_rows(K.sum(1), z_here, back=False)
            if how.normalize:
                if graph:
                    tile.slots(zs).copy_(z_before)
                # A matrix–vector product takes four times as long as these two passes.
                along = torch.mul(Q, z_before.unsqueeze(1), out=new("φ(q) z", *Q.shape)).sum(-1)
                total = torch.sum(A, -1, out=tile.cut(den)).add_(along)
                # Nothing in common with any key: 0/∞ is 0, and so is the gradient.
                here.div_(total.masked_fill_(total == 0, math.inf).unsqueeze(-1))
        return out, S, z, den, states, zs, kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.how, graph = inputs
        out, _, _, *kept = output
        ctx.mark_non_differentiable(*kept)
        ctx.set_materialize_grads(False)
        if graph:
            ctx.save_for_backward(*tensors, out if ctx.how.normalize else None, *kept)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, S, z, keep, places, out, den, states, zs, kept = ctx.saved_tensors
        how: Method = ctx.how
        d_out, dS, dz = (
            torch.zeros_like(x) if g is None else g for g, x in zip(grads, (v, S, z), strict=False)
        )
        if torch.is_grad_enabled():
            # This pass will be differentiated itself: autograd must see what it does.
            def reference(*tensors: Tensor) -> tuple[Tensor, ...]:
                q, k, v, S, z = (x.unsqueeze(1) for x in tensors)
                where = None if places is None else places.unsqueeze(1)
                found = how.reference(Problem(q, k, v, S, z, keep, where, where), how)
                return tuple(x.squeeze(1) for x in found)

            return *torch.func.vjp(reference, q, k, v, S, z)[1]((d_out, dS, dz)), *[None] * 4
        d_out, dS, dz = d_out.contiguous(), dS.clone(), dz.clone()
        dq, dk, dv, new = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), Scratch(v)
        before_each, after_each = Sums(new), Sums(new, back=True)
        for tile in reversed(list(tiles(len(v), v.shape[1], how.chunk))):
            dxq, dxk, V, dN = (tile.cut(x) for x in (dq, dk, v, d_out))
            xq, Q = _mapped(tile, q, None, places, how, (new, "φ(q)"))
            xk, K = _mapped(tile, k, keep, places, how, (new, "φ(k)"))
            if S.shape[1] <= how.chunk:
                before = tile.slots(states)
            else:
                start = states[tile.heads, tile.turn].clone()
                before = before_each(tile, K, V, start)
            A = new("A", len(Q), tile.c, tile.c)
            A = tile.cut(kept)[..., : tile.c] if kept.numel() else _scores(Q, K, A)
            dA = new("dA", len(Q), tile.c, tile.c)
            if how.normalize:
                dN = torch.div(dN, tile.cut(den).unsqueeze(-1), out=new("dN", *dN.shape))
                d_total = torch.mul(dN, tile.cut(out), out=new("dN · out", *dN.shape))
                d_total = d_total.sum(-1, keepdim=True).neg_()
                torch.baddbmm(d_total, dN, V.mT, out=dA)
            else:
                torch.bmm(dN, V.mT, out=dA)
            dA.tril_()
            dQ = dxq if Q.shape == dxq.shape else new("dQ", *Q.shape)
            dK = dxk if K.shape == dxk.shape else new("dK", *K.shape)
            torch.bmm(dA, K, out=dQ).baddbmm_(dN, before.mT)
            after = after_each(tile, Q, dN, dS[tile.heads])
            torch.bmm(dA.mT, Q, out=dK).baddbmm_(V, after.mT)
            torch.bmm(A.mT, dN, out=tile.cut(dv)).baddbmm_(K, after)
            if how.want_z:
                added = Q.new_zeros(len(Q), Q.shape[-1])
                if how.normalize:
                    dQ.addcmul_(d_total, tile.slots(zs).unsqueeze(1))
                    added = torch.bmm(d_total.mT, Q).squeeze(1)
                dK += sums_of_rows(added, dz[tile.heads], back=True).unsqueeze(1)
            where = None if places is None else tile.cut(places)
            for dx, x, f, df in ((dxq, xq, Q, dQ), (dxk, xk, K, dK)):
                grad = maps.pullback(how.fm, x, f, df, where)
                if grad.data_ptr() != dx.data_ptr():
                    dx.copy_(grad)
                if how.root != 1:
                    dx *= how.root
        return dq, dk, dv, dS, dz, *[None] * 4

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[tuple[Tensor, ...], Any]:
        """One axis more is so many heads more."""

        def flat(x: Tensor | None, dim: int | None) -> Tensor | None:
            if x is None:
                return None
            x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            return x.flatten(0, 1).contiguous()

        *tensors, how, _ = inputs
        tensors = [flat(x, dim) for x, dim in zip(tensors, in_dims, strict=False)]
        # Only without the axis of vmap does a tensor say whether it requires a gradient.
        outs = _Loop.apply(*tensors, how, _gradients_asked(*tensors[:5]))
        N = len(outs[0]) // info.batch_size
        return tuple(x.unflatten(0, (info.batch_size, N)) for x in outs), (0,) * len(outs)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        raise RuntimeError('impl="torch" has no forward-mode derivative: use impl="reference"')
