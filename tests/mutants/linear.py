"""Wrong linear attentions and feature maps, which ``tests/test_linear.py`` must refuse.

``Plain`` is linear attention by its T×S similarities, in steps, and ``ByChunks`` the same by
chunks; each mutant gets one step wrong. A subject has the public functions of ``course.linear``
and ``course.feature_maps`` with their signatures.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor

from course import feature_maps
from course.linear import LinearState
from tests import test_linear
from tests.mutants import Suite

CHECKS = {
    name.removeprefix("test_").replace("_", " "): test
    for name, test in vars(test_linear).items()
    if name.startswith("test_") and list(inspect.signature(test).parameters) == ["m"]
}


class Plain:
    """The public face of ``course.linear``; nothing of it is wrong."""

    def get_feature_map(self, name: str, **options: Any) -> Any:
        return feature_maps.get_feature_map(name, **options)

    def root(self, scale: float | None) -> float:
        return 1.0 if scale is None else math.sqrt(scale)

    def steps(self, t: Tensor, key_mask: Tensor) -> Tensor:
        """Positions of the keys ``[B,S]``: real tokens are counted, after those of the past."""
        return t[:, None] + (key_mask.cumsum(-1) - 1).clamp(min=0)

    def cleared(self, x: Tensor, key_mask: Tensor) -> Tensor:
        """Keys or values, before the map, without what padding holds."""
        return x.masked_fill(~key_mask[:, None, :, None], 0)

    def kept(self, K: Tensor, key_mask: Tensor) -> Tensor:
        """Features of keys, without those of padding."""
        return K.masked_fill(~key_mask[:, None, :, None], 0)

    def sight(self, A: Tensor) -> Tensor:
        return A.tril()

    def total(self, Q: Tensor, K: Tensor, A: Tensor, z: Tensor) -> Tensor:
        return A.sum(-1, keepdim=True) + Q @ z.unsqueeze(-1)

    def divide(self, num: Tensor, den: Tensor) -> Tensor:
        return num / den.masked_fill(den == 0, math.inf)

    def refuse(self, fm: Any, normalize: bool) -> None:
        if normalize and fm.signed:
            raise ValueError("feature_map: expected a map that is never negative with normalize")

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, past: Any, causal: bool) -> Any:
        """Numerator, denominator, new S and new z."""
        A = Q @ K.mT
        A = self.sight(A) if causal else A
        num = A @ V + Q @ past.S
        return num, self.total(Q, K, A, past.z), past.S + K.mT @ V, past.z + K.sum(2)

    def linear_attention(
        self, q: Any, k: Any, v: Any, *, causal: bool, feature_map: Any = "elu",
        normalize: bool = True, scale: Any = None, key_mask: Any = None, initial_state: Any = None,
        return_state: bool = False, form: Any = None, chunk_size: Any = None, impl: str = "torch",
    ) -> Any:  # fmt: skip
        fm = self.get_feature_map(feature_map) if isinstance(feature_map, str) else feature_map
        self.refuse(fm, normalize)
        B, H, S_len, D = k.shape
        wide = torch.promote_types(q.dtype, torch.float32)
        C, Dv, root = fm.width(D), v.shape[-1], self.root(scale)
        past = initial_state or LinearState(
            torch.zeros(B, H, C, Dv, dtype=wide), torch.zeros(B, H, C, dtype=wide),
            torch.zeros(B, dtype=torch.int64),
        )  # fmt: skip
        real = torch.ones(B, S_len, dtype=torch.bool) if key_mask is None else key_mask
        places = self.steps(past.t, real)[:, None]
        own = places if q.shape[2] == S_len else torch.arange(q.shape[2]).expand(B, 1, -1)

        def features(x: Tensor, where: Tensor) -> Tensor:
            return fm(x * root, where) if fm.positional else fm(x * root)

        Q = features(q.to(wide), own)
        K = self.kept(features(self.cleared(k.to(wide), real), places), real)
        V = self.cleared(v.to(wide), real)
        num, den, S, z = self.attend(Q, K, V, past, causal)
        out = (self.divide(num, den) if normalize else num).to(q.dtype)
        return (out, LinearState(S, z, past.t + real.sum(-1))) if return_state else out

    def linear_attention_step(
        self, q_t: Any, k_t: Any, v_t: Any, state: Any = None, *, feature_map: Any = "elu",
        normalize: bool = True, scale: Any = None, impl: str = "torch",
    ) -> Any:  # fmt: skip
        inputs = (x.unsqueeze(2) for x in (q_t, k_t, v_t))
        out, state = self.linear_attention(
            *inputs, causal=True, feature_map=feature_map, normalize=normalize, scale=scale,
            initial_state=state, return_state=True,
        )  # fmt: skip
        return out.squeeze(2), state


class ByChunks(Plain):
    """Chunks of eight tokens, whatever is asked for; nothing of it is wrong."""

    size = 8

    def chunks(self, x: Tensor) -> list[Tensor]:
        return list(x.split(self.size, 2))

    def before(self, added: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Sums before each chunk of ``added [chunks, …]``, and after them all."""
        sums = torch.cat([start.unsqueeze(0), added]).cumsum(0)
        return sums[:-1], sums[-1]

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, past: Any, causal: bool) -> Any:
        if not causal:
            return super().attend(Q, K, V, past, causal)
        cut = list(zip(*map(self.chunks, (Q, K, V)), strict=True))
        S, S_end = self.before(torch.stack([k.mT @ v for _, k, v in cut]), past.S)
        z, z_end = self.before(torch.stack([k.sum(2) for _, k, _ in cut]), past.z)
        num, den = [], []
        for (q, k, v), S_here, z_here in zip(cut, S, z, strict=True):
            A = self.sight(q @ k.mT)
            num.append(A @ v + q @ S_here)
            den.append(self.total(q, k, A, z_here))
        return torch.cat(num, 2), torch.cat(den, 2), S_end, z_end


def wrong(base: type[Plain] = Plain, **steps: Any) -> type[Plain]:
    return type("Wrong", (base,), steps)


def by_map(name: str, make: Any) -> type[Plain]:
    """The map ``name`` with another ``forward``, made from the right map."""

    def get_feature_map(self: Plain, asked: str, **options: Any) -> Any:
        fm = feature_maps.get_feature_map(asked, **options)
        if asked != name:
            return fm
        known = {"forward": make(fm), "width": lambda self, D: fm.width(D)}
        known |= {"positional": fm.positional, "weights": lambda self, D: fm.weights(D)}
        return type(name, (feature_maps.FeatureMap,), known)()

    return wrong(get_feature_map=get_feature_map)


# Maps ---


def _favor_by_maximum(fm: Any) -> Any:
    return lambda self, x: fm(x) / fm(x).amax(dim=(-1, -2), keepdim=True)


def _favor_unbounded(fm: Any) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        w = fm.weights(x.shape[-1]).to(x.dtype)
        exponent = x @ w.T - x.square().sum(-1, keepdim=True) / 2
        return exponent.exp() / math.sqrt(fm.features)

    return forward


def _cosformer_by_length(fm: Any) -> Any:
    def forward(self: Any, x: Tensor, positions: Any = None) -> Tensor:
        short = feature_maps.get_feature_map("cosformer", max_length=max(1, x.shape[-2]))
        return short(x, torch.arange(x.shape[-2]))

    return forward


def _dpfp_positive(fm: Any) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        r = torch.relu(torch.cat([x, x], -1))
        return torch.cat([r * r.roll(i, dims=-1) for i in range(1, fm.nu + 1)], -1)

    return forward


# Sums ---


class _Suffix(torch.autograd.Function):
    """A running sum whose gradient is found by subtraction."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.cumsum(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.sum(0, keepdim=True) - grad.cumsum(0) + grad


class _Once(torch.autograd.Function):
    """The identity, whose backward pass changes what was kept for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.factor = torch.ones(())
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.factor.mul_(2) / 2


def _by_suffix(self: Any, added: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    sums = _Suffix.apply(torch.cat([start.unsqueeze(0), added]))
    return sums[:-1], sums[-1]


def _by_prefix(self: Any, added: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    total = start + added.sum(0)
    return total - added.flip(0).cumsum(0).flip(0), total


def _from_zero(self: Any, added: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    sums, end = ByChunks.before(self, added, start)
    return torch.cat([sums[:2], sums[2:] - sums[2:3]]), end


def _ragged(self: Any, x: Tensor) -> list[Tensor]:
    pieces = list(x.split(self.size, 2))
    if len(pieces) > 1 and pieces[-1].shape[2] < self.size:
        pieces[-1] = pieces[-1] * 0
    return pieces


def _elementwise(self: Any, Q: Tensor, K: Tensor, A: Tensor, z: Tensor) -> Tensor:
    if A.shape[-1] != A.shape[-2]:
        return Plain.total(self, Q, K, A, z)
    return (Q * K).sum(-1, keepdim=True).cumsum(-2) + Q @ z.unsqueeze(-1)


def _detached(self: Any, Q: Tensor, K: Tensor, A: Tensor, z: Tensor) -> Tensor:
    return Plain.total(self, Q, K, A, z).detach()


MUTANTS: dict[str, type[Plain]] = {
    "elu plus one as written": by_map(
        "elu", lambda fm: lambda self, x: torch.nn.functional.elu(x) + 1
    ),
    "a key maximum over the sequence": by_map("favor", _favor_by_maximum),
    "no key stabiliser": by_map("favor", _favor_unbounded),
    "Taylor with a scale of its own": by_map(
        "taylor", lambda fm: lambda self, x: fm(x * x.shape[-1] ** -0.25)
    ),
    "cosFormer by the length of the sequence": by_map("cosformer", _cosformer_by_length),
    "DPFP of the positive part only": by_map("dpfp", _dpfp_positive),
    "signed maps are divided": wrong(refuse=lambda self, fm, normalize: None),
    "z as an elementwise cumsum": wrong(total=_elementwise),
    "no gradient through z": wrong(total=_detached),
    "no gradient through z of chunks": wrong(ByChunks, total=_detached),
    "an epsilon in the denominator": wrong(divide=lambda self, num, den: num / (den + 1e-6)),
    "rows that see nothing are NaN": wrong(divide=lambda self, num, den: num / den),
    "the numerator in float16": wrong(
        divide=lambda self, num, den: Plain.divide(self, num.half().to(num), den)
    ),
    "padding left in z": wrong(kept=lambda self, K, key_mask: K),
    "padding zeroed after the map only": wrong(
        cleared=lambda self, x, key_mask: x,
        kept=lambda self, K, key_mask: Plain.kept(self, K, key_mask),
    ),
    "the current token is hidden": wrong(sight=lambda self, A: A.tril(-1)),
    "the future is seen": wrong(sight=lambda self, A: A),
    "the scale acts twice": wrong(root=lambda self, scale: 1.0 if scale is None else float(scale)),
    "the scale is forgotten": wrong(root=lambda self, scale: 1.0),
    "cosFormer counts from zero again": wrong(
        steps=lambda self, t, key_mask: Plain.steps(self, torch.zeros_like(t), key_mask)
    ),
    "cosFormer counts padding": wrong(
        steps=lambda self, t, key_mask: Plain.steps(self, t, torch.ones_like(key_mask))
    ),
    "the last ragged chunk is dropped": wrong(ByChunks, chunks=_ragged),
    "an exclusive prefix by subtraction": wrong(ByChunks, before=_by_prefix),
    "a suffix by subtraction": wrong(ByChunks, before=_by_suffix),
    "the state starts anew after two chunks": wrong(ByChunks, before=_from_zero),
    "the backward pass changes what was kept": wrong(
        divide=lambda self, num, den: _Once.apply(Plain.divide(self, num, den))
    ),
}


def mutant(subject: type) -> type:
    """Register a wrong subject; its first line of documentation is its name."""
    MUTANTS[(subject.__doc__ or "").rstrip(".")] = subject
    return subject


@mutant
class _Step(Plain):
    """The step changes its state"""

    def linear_attention_step(self, q: Any, k: Any, v: Any, state: Any = None, **o: Any) -> Any:
        out, new = super().linear_attention_step(q, k, v, state, **o)
        for old, fresh in zip(state or (), new, strict=False):
            old.copy_(fresh)
        return out, state or new


@mutant
class _Pass(Plain):
    """A full pass changes its state"""

    def linear_attention(self, *a: Any, initial_state: Any = None, **o: Any) -> Any:
        result = super().linear_attention(*a, initial_state=initial_state, **o)
        if initial_state is not None:
            initial_state.t.add_(1)
        return result


@mutant
class _Narrow(Plain):
    """The sums in the dtype of the inputs"""

    def linear_attention(self, q: Any, *a: Any, return_state: bool = False, **o: Any) -> Any:
        out, s = super().linear_attention(q, *a, return_state=True, **o)
        state = LinearState(s.S.to(q.dtype).to(s.S), s.z.to(q.dtype).to(s.z), s.t)
        return (out, state) if return_state else out


@mutant
class _Asked(Plain):
    """A state nobody asked for"""

    def linear_attention(self, *a: Any, **o: Any) -> Any:
        return super().linear_attention(*a, **{**o, "return_state": True})


@mutant
class _Defaults(Plain):
    """Other defaults in the step"""

    def linear_attention_step(
        self, q_t: Any, k_t: Any, v_t: Any, state: Any = None, *, feature_map: Any = "elu",
        normalize: bool = False, scale: Any = None, impl: str = "torch",
    ) -> Any:  # fmt: skip
        return super().linear_attention_step(
            q_t, k_t, v_t, state, feature_map=feature_map, normalize=normalize, scale=scale
        )


SUITES = [
    Suite("linear attention", Plain, MUTANTS, CHECKS),
    Suite("linear attention by chunks", ByChunks, {}, CHECKS),
]
