"""Feature maps φ: from a query or key of width D to C numbers, so that φ(q)·φ(k) is a similarity.

Linear attention needs nothing else: any similarity of the form φ(q)·φ(k) can be re-associated.
Every map works on the last axis alone, token by token. None looks at another token, at the length
of the sequence or at its maximum, so no future can reach the past through the map.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from course.inputs import (
    require_choice,
    require_flag,
    require_floating,
    require_positive,
    without_autocast,
)


class FeatureMap(nn.Module):
    """A map ``[..., T, D] → [..., T, C]``; subclasses give ``forward`` and ``width``.

    ``signed`` says that φ(q)·φ(k) can be negative: such a map has no denominator to divide by.
    ``positional`` says that ``forward`` takes ``positions`` (whole numbers ``[..., T]``) as well.
    """

    signed = False
    positional = False

    def width(self, D: int) -> int:
        """Number of features C for inputs of width ``D``."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def require_positions(self, first: int, last: int) -> None:
        """Raise ``ValueError`` if positions from ``first`` to ``last`` are not all known to φ."""


class _Elu(FeatureMap):
    """elu(x) + 1, written so that it cannot cancel: exp(min(x, 0)) + max(x, 0).

    ``elu(x) + 1`` computes exp(x) − 1 + 1, which is 0 in bfloat16 from x = −6.25.
    Katharopoulos et al. 2020 (arXiv:2006.16236), equation 7.
    """

    def width(self, D: int) -> int:
        return D

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(x.clamp(max=0)) + torch.relu(x)


class _Relu(FeatureMap):
    """max(x, 0): the plainest map that is never negative; a token may have no feature at all."""

    def width(self, D: int) -> int:
        return D

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)


class _Taylor(FeatureMap):
    """φ(q)·φ(k) = 1 + s + s²/2 with s = q·k: the series of exp(s) up to the square, never below ½.

    The map contains no 1/√D; the ``scale`` of the attention does that, once.
    ``packed`` keeps one of the two equal products x_i·x_j: the same similarity with about half of
    the features. Arora et al. 2024 (arXiv:2402.18668), section 4.
    """

    def __init__(self, *, packed: bool = True) -> None:
        super().__init__()
        require_flag("packed", packed)
        self.packed = packed

    def width(self, D: int) -> int:
        return 1 + D + (D * (D + 1) // 2 if self.packed else D * D)

    def forward(self, x: Tensor) -> Tensor:
        D = x.shape[-1]
        if self.packed:
            i, j = torch.triu_indices(D, D, device=x.device)
            # x_i·x_j stands for itself and for x_j·x_i, so its weight is √2·(1/√2) = 1.
            weight = torch.ones_like(i, dtype=x.dtype).masked_fill_(i == j, math.sqrt(0.5))
            squares = x[..., i] * x[..., j] * weight
        else:
            squares = (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2) * math.sqrt(0.5)
        return torch.cat([torch.ones_like(x[..., :1]), x, squares], dim=-1)


@lru_cache(maxsize=32)
def _orthogonal(features: int, D: int, seed: int) -> Tensor:
    """Gaussian directions ``[features, D]``, float64, orthogonal in blocks of D; read only.

    On the CPU, whatever the default device: not every other one has float64.
    """
    options: dict[str, Any] = {
        "generator": torch.Generator("cpu").manual_seed(seed),
        "dtype": torch.float64,
        "device": "cpu",
    }
    blocks = []
    for _ in range(-(-features // D)):
        Q, R = torch.linalg.qr(torch.randn(D, D, **options))
        # The signs of R's diagonal are the algorithm's choice, not chance: without them the
        # directions are not uniform, and the estimate is biased.
        blocks.append((Q * R.diagonal().sign()).T)
    # Rows of unit length get the lengths of independent Gaussian vectors: each row is then
    # distributed as a Gaussian vector, which is what makes the estimate unbiased.
    lengths = torch.randn(features, D, **options).norm(dim=-1)
    return torch.cat(blocks)[:features] * lengths.unsqueeze(-1)


class _Favor(FeatureMap):
    """Positive random features: the mean of φ(q)·φ(k) over W is exp(q·k), times a constant of W.

    φ(x) = exp(Wx − |x|²/2 − c)/√features with orthogonal rows of W drawn from ``seed``. The
    constant c keeps the features in the range of float32. It uses wᵀx − |x|²/2 ≤ |w|²/2, so it
    depends on W alone; a maximum over keys would let the future change the past. c = 0 up to
    |w|² = 76 (D about 40), and normalised attention does not depend on c. Up to |w|² = 140 nothing
    can overflow; c stops there, because a larger one would make typical features vanish. Call the
    map once on keys of that width before ``torch.compile``.
    Choromanski et al. 2021 (arXiv:2009.14794), lemma 1 and section 2.4.
    """

    def __init__(self, *, features: int = 256, seed: int = 0) -> None:
        super().__init__()
        require_positive("features", features)
        require_positive("seed", seed, minimum=0)
        self.features, self.seed = int(features), int(seed)
        self._drawn: dict[int, Tensor] = {}

    def width(self, D: int) -> int:
        return self.features

    def weights(self, D: int) -> Tensor:
        """The random directions W ``[features, D]``, float64."""
        return self._directions(D).clone()

    def _directions(self, D: int) -> Tensor:
        # torch.compile cannot follow the drawing, but reads what one call before it has drawn.
        if D not in self._drawn:
            self._drawn[D] = _orthogonal(self.features, D, self.seed)
        return self._drawn[D]

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        w = self._directions(x.shape[-1])
        # exp(38)² times 65,536 tokens is just below the largest float32.
        c = (w.square().sum(-1).max() / 2 - 38).clamp(0, 32).to(wide).to(x.device)
        w, y = w.to(wide).to(x.device), x.to(wide)
        with without_autocast(x.device):  # an exponent in half precision is off by a factor
            exponent = y @ w.T - y.square().sum(-1, keepdim=True) / 2
            return (torch.exp(exponent - c) / math.sqrt(self.features)).to(x.dtype)


def _range(x: Tensor) -> tuple[int, int]:
    """The least and the greatest entry; (0, −1), no entry, if they cannot be had for nothing."""
    if x.numel() == 0 or x.device.type != "cpu" or torch.compiler.is_compiling():
        return 0, -1
    try:
        return int(x.amin()), int(x.amax())
    except RuntimeError:  # under torch.vmap no value can be read
        return 0, -1


class _CosFormer(FeatureMap):
    """φ(q_t)·φ(k_i) = relu(q)·relu(k)·cos(π(t − i)/2M): relu features that prefer what is near.

    M = ``max_length`` is declared once. The paper takes the length of the sequence, and then adding
    text changes the past. Positions are told by the caller, so a pass can resume, go step by step
    and leave out padding. Errors: ``ValueError`` for a position of M or more, or below 0; where
    looking at a position would make a GPU wait, or cannot be done (``torch.vmap``), its features
    are NaN instead.
    Qin et al. 2022 (arXiv:2202.08791), equations 9–10.
    """

    positional = True

    def __init__(self, *, max_length: int | None = None) -> None:
        super().__init__()
        if max_length is None:
            raise ValueError(
                "max_length: expected the longest sequence that 'cosformer' will ever meet, got "
                "None; write get_feature_map('cosformer', max_length=...)"
            )
        require_positive("max_length", max_length)
        self.max_length = max_length

    def width(self, D: int) -> int:
        return 2 * D

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        if positions is None:
            self.require_positions(0, x.shape[-2] - 1)
            positions = torch.arange(x.shape[-2], device=x.device)
        else:
            self.require_positions(*_range(positions))
        outside = (positions < 0) | (positions >= self.max_length)
        # Below π/2 an angle in float32 is exact enough.
        wide = torch.promote_types(x.dtype, torch.float32)
        angle = positions.to(wide) * (math.pi / (2 * self.max_length))
        angle = angle.masked_fill(outside, torch.nan).unsqueeze(-1)
        r = torch.relu(x)
        return torch.cat([r * angle.cos().to(x.dtype), r * angle.sin().to(x.dtype)], dim=-1)

    def require_positions(self, first: int, last: int) -> None:
        if first < 0 or last >= self.max_length:
            raise ValueError(
                f"feature_map: expected positions from 0 and below max_length = "
                f"{self.max_length}, got position {first if first < 0 else last}"
            )


class _Dpfp(FeatureMap):
    """Products of neighbours in [relu(x), relu(−x)]: sparse, deterministic, never negative.

    Both signs are kept, so an all-negative x has features too. Feature j of block i is r_j·r_{j−i}
    (indices round the circle of 2D entries), i = 1 … ``nu``. With D = 1 and nu = 1 the two entries
    are never non-zero together and every feature is 0.
    Schlag et al. 2021 (arXiv:2102.11174), equation 37.
    """

    def __init__(self, *, nu: int = 1) -> None:
        super().__init__()
        require_positive("nu", nu)
        self.nu = nu

    def width(self, D: int) -> int:
        return 2 * D * self.nu

    def forward(self, x: Tensor) -> Tensor:
        r = torch.cat([torch.relu(x), torch.relu(-x)], dim=-1)
        return torch.cat([r * r.roll(i, dims=-1) for i in range(1, self.nu + 1)], dim=-1)


class _Identity(FeatureMap):
    """φ(x) = x: the similarity is the plain score, which can be negative."""

    signed = True

    def width(self, D: int) -> int:
        return D

    def forward(self, x: Tensor) -> Tensor:
        return x


_MAPS: dict[str, type[FeatureMap]] = {
    "elu": _Elu,
    "relu": _Relu,
    "taylor": _Taylor,
    "favor": _Favor,
    "cosformer": _CosFormer,
    "dpfp": _Dpfp,
    "identity": _Identity,
}

NAMES = tuple(_MAPS)


def get_feature_map(name: str, **options: object) -> FeatureMap:
    """The feature map ``name``: a module ``[..., T, D] → [..., T, C]`` with ``.width(D)`` = C.

    Options: ``taylor`` packed=True · ``favor`` features=256, seed=0 · ``cosformer`` max_length
    (must be given) · ``dpfp`` nu=1. Errors: ``ValueError`` for an unknown name or option.
    """
    require_choice("feature_map", name, NAMES)
    try:
        return _MAPS[name](**options)
    except TypeError:
        raise ValueError(
            f"feature_map: expected options that {name!r} knows, got {', '.join(options)}"
        ) from None


def width(fm: nn.Module, D: int) -> int:
    """What ``fm.width(D)`` says, if it is a size; else ``ValueError``."""
    require_positive("D", D)
    C: int = fm.width(D)  # type: ignore[operator]
    require_positive("feature_map.width(D)", C)
    return int(C)


def features(
    fm: nn.Module, root: float, x: Tensor, positions: Tensor | None, key_mask: Tensor | None
) -> Tensor:
    """φ(root·x) ``[N, …, T, C]`` of ``x [N, …, T, D]``, with 0 where ``key_mask [N, T]`` is False.

    ``fm``: one of these maps, or any module with ``.width(D)``; ``positions`` for maps that want
    them. ``ValueError`` if what comes has another shape or dtype than the map says.
    """
    if root != 1:
        x = x * root
    f = fm(x) if positions is None else fm(x, positions)
    expected = [*x.shape[:-1], width(fm, x.shape[-1])]
    if not isinstance(f, Tensor) or list(f.shape) != expected or f.dtype != x.dtype:
        came = f"{list(f.shape)} in {f.dtype}" if isinstance(f, Tensor) else type(f).__name__
        raise ValueError(f"feature_map: expected features {expected} in {x.dtype}, got {came}")
    if key_mask is None:
        return f
    # φ(0) need not be 0: padding must leave z as well as S.
    hidden = ~key_mask.view(len(key_mask), *[1] * (f.ndim - 3), key_mask.shape[1], 1)
    return f.masked_fill(hidden, 0)


def total_variation(a: Tensor, b: Tensor) -> Tensor:
    """How far the weights ``a`` lie from ``b``: half the sum of |a − b| over the last axis.

    Both ``[..., S]``, rows that sum to 1. 0 means equal; 1, nothing in common: it is the share of
    the weight that must be moved to turn one row into the other. ``ValueError`` for other shapes.
    """
    require_floating("a", a)
    require_floating("b", b)
    if a.shape != b.shape:
        raise ValueError(f"a, b: expected equal shapes, got {list(a.shape)} and {list(b.shape)}")
    wide = torch.promote_types(a.dtype, torch.float32)
    return ((a.to(wide) - b.to(wide)).abs().sum(-1) / 2).to(a.dtype)
