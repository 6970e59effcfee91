"""What a causal layer keeps of the past: the keys and values of the tokens so far.

A decoder appends one token at a time. Copying the whole past at each step would cost T² in all, so
the keys lie in a buffer with room at its end: a step writes one row, and only when the room is used
up is a buffer twice as long filled with a copy. Over T steps that is about two copies a token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from course.inputs import autocasts, require_rank, require_same, require_same_dtype


class KeyValueCache:
    """Keys ``k [B,H,S,D]`` and values ``v [B,H,S,Dv]`` kept, and ``seen``: the tokens ever seen.

    A cache never changes: :meth:`extend` returns the next one, and the old one can be continued
    once more, another way. The newest cache of a text owns at most twice :meth:`nbytes`; older ones
    share its buffer. A saved or copied cache holds its own keys and values alone.
    """

    def __init__(self, k: Tensor, v: Tensor, seen: int | None = None) -> None:
        require_rank("cache.k", k, "B H S D")
        require_rank("cache.v", v, "B H S Dv")
        for index, axis in enumerate("BHS"):
            require_same(axis, {"cache.k": k.shape[index], "cache.v": v.shape[index]})
        self.k, self.v = k, v
        self.seen = k.shape[2] if seen is None else seen
        self._buffer: _Buffer | None = None
        self._end = 0  # where this cache ends in the buffer

    @classmethod
    def before(cls, k: Tensor, v: Tensor, cache: KeyValueCache | None = None) -> KeyValueCache:
        """What ``k`` and ``v`` are to be appended to: ``cache``, or an empty one if it is None."""
        if cache is not None and not isinstance(cache, cls):
            raise ValueError(f"cache: expected a {cls.__name__}, got {type(cache).__name__}")
        return cls(k[:, :, :0], v[:, :, :0]) if cache is None else cache

    def nbytes(self) -> int:
        """Bytes of the keys and values kept: what a copy of this cache needs."""
        return sum(x.numel() * x.element_size() for x in (self.k, self.v))

    def extend(
        self, k: Tensor, v: Tensor, *, keep: int | None = None
    ) -> tuple[Tensor, Tensor, KeyValueCache]:
        """Append ``k [B,H,T,D]`` and ``v [B,H,T,Dv]``.

        Returns keys and values of old and new tokens together, and the next cache, which keeps the
        last ``keep`` of them (None = all), in the dtype of the cache. Raises ``ValueError`` that
        names the cache where its batch, heads, widths, dtype or device are not those of the new
        tokens; under autocast a wider cache goes on.
        """
        if autocasts(k.device):
            # The new keys come in a narrow dtype; the past keeps its digits.
            k = k.to(torch.promote_types(k.dtype, self.k.dtype))
            v = v.to(torch.promote_types(v.dtype, self.v.dtype))
        self._require_fit(k, v)
        S, T = self.k.shape[2], k.shape[2]
        keep = S + T if keep is None else min(keep, S + T)
        differentiable = torch.is_grad_enabled() and any(
            x.requires_grad for x in (k, v, self.k, self.v)
        )
        buffer = self._buffer
        if differentiable or S == 0 or 2 * keep < S + T:
            # Gradients need tensors that nobody writes to later; a long portion before a short
            # window needs more room now than the cache may keep.
            if S > 0:
                k, v = torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2)
            kept_k, kept_v = (
                x if keep == S + T else x[:, :, S + T - keep :].clone() for x in (k, v)
            )
            return k, v, KeyValueCache(kept_k, kept_v, self.seen + T)
        if buffer is None or not buffer.has_room(self._end, T):
            buffer = _Buffer(self.k, self.v, capacity=2 * keep)
        buffer.append(k, v)
        next_cache = KeyValueCache(*buffer.last(keep), self.seen + T)
        next_cache._buffer, next_cache._end = buffer, buffer.used
        return *buffer.last(S + T), next_cache

    def _require_fit(self, k: Tensor, v: Tensor) -> None:
        for name, past, new in (("k", self.k, k), ("v", self.v, v)):
            names = f"cache.{name}", f"the new {name}"
            for axis, index in (("B", 0), ("H", 1), ("D", 3)):
                require_same(axis, {names[0]: past.shape[index], names[1]: new.shape[index]})
            require_same_dtype(**{names[0]: past, names[1]: new})
            if past.device != new.device:
                raise ValueError(f"{names[0]}: expected the device {new.device}, got {past.device}")

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyValueCache, (self.k.clone(), self.v.clone(), self.seen)


class _Buffer:
    """Room for ``capacity`` keys and values, of which the first ``used`` are written for good."""

    def __init__(self, k: Tensor, v: Tensor, *, capacity: int) -> None:
        B, H, _, D = k.shape
        self.k = k.new_empty(B, H, capacity, D)
        self.v = v.new_empty(B, H, capacity, v.shape[3])
        self.used = 0
        self.append(k, v)

    def has_room(self, end: int, T: int) -> bool:
        """Whether ``T`` rows can follow row ``end``: nobody went on from there before."""
        writable = torch.is_inference_mode_enabled() or not self.k.is_inference()
        return writable and self.used == end and end + T <= self.k.shape[2]

    def append(self, k: Tensor, v: Tensor) -> None:
        rows = slice(self.used, self.used + k.shape[2])
        self.k[:, :, rows], self.v[:, :, rows] = k, v
        self.used = rows.stop

    def last(self, n: int) -> tuple[Tensor, Tensor]:
        rows = slice(self.used - n, self.used)
        return self.k[:, :, rows], self.v[:, :, rows]
