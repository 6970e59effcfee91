"""Where a token stands: two tables that are added to it, two rules that act on the scores.

Without any of these attention sees a bag of tokens (notebook 02); notebook 03 derives all four.
The learned table is ``torch.nn.Embedding``: one trained vector a position, no formula.
"""

from __future__ import annotations

import math
from numbers import Integral

import torch
from torch import Tensor

from course.inputs import require_floating, require_number, require_positive, require_rank


def sinusoids(
    T: int,
    E: int,
    *,
    offset: int = 0,
    base: float = 10_000.0,
    device: torch.device | str | None = None,
) -> Tensor:
    """The fixed position vectors ``[T, E]`` (float32), to be added to the token vectors.

    Row t, columns 2i and 2i+1: ``sin(p·base^(−2i/E))`` and ``cos(p·base^(−2i/E))`` with
    ``p = offset + t``. A shift by s turns each pair by an angle that depends on s only.

    Raises ``ValueError`` if ``E`` is odd, a size is negative or ``base`` is not above 0.
    Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.5.
    """
    require_positive("T", T, minimum=0)
    _require_pairs("E", E)
    angles = _angles(_places(T, offset), E, base)
    table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).float()
    # A new tensor lies on the default device; torch.compile does not follow the question for it.
    return table.to(torch.empty(0).device if device is None else device)


def apply_rope(
    x: Tensor, *, offset: int = 0, positions: Tensor | None = None, base: float = 10_000.0
) -> Tensor:
    """Turn each pair of features of queries or keys ``[B, H, T, D]`` by an angle that grows with t.

    The pair ``(x_2i, x_2i+1)``, read as a complex number, is multiplied by
    ``exp(1j·p·base^(−2i/D))``. Turning a query by p and a key by p′ leaves a product that depends
    on ``p − p′`` only. ``p`` is ``offset + t``, or ``positions`` ``[T]`` if given. The output has
    the dtype of ``x``; the angles are computed in float64 (on the CPU, where the device of ``x``
    may have none), the turn in float32 at least.

    Raises ``ValueError`` for a wrong rank, an odd ``D`` or positions that are not ``[T]``.
    Source: Su et al., "RoFormer" (2021), equation 34.
    """
    require_rank("x", x, "B H T D")
    require_floating("x", x)
    T, D = x.shape[-2:]
    _require_pairs("D", D)
    if positions is None:
        positions = _places(T, offset)
    require_rank("positions", positions, "T")
    if len(positions) != T:
        raise ValueError(f"positions: expected [T] = [{T}], got {list(positions.shape)}")
    angles = _angles(positions, D, base)
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = (turn.to(wide).to(x.device) for turn in (angles.cos(), angles.sin()))
    even, odd = x[..., 0::2].to(wide), x[..., 1::2].to(wide)
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2).to(x.dtype)


def alibi_slopes(H: int, *, device: torch.device | str | None = None) -> Tensor:
    """One slope a head, ``[H]`` (float32): ``2^(−8h/H)`` for h = 1 … H when H is a power of two.

    Otherwise the slopes of the next smaller power of two, then every second one of the next larger.

    Raises ``ValueError`` unless ``H`` is at least 1.
    Source: Press, Smith, Lewis, "Train Short, Test Long" (2021), section 3 and its appendix.
    """
    require_positive("H", H)
    smaller = 2 ** int(math.log2(H))
    slopes = _geometric(smaller) + _geometric(2 * smaller)[0::2][: H - smaller]
    return torch.tensor(slopes, dtype=torch.float32, device=device)


def alibi_bias(
    H: int, T: int, S: int | None = None, *, device: torch.device | str | None = None
) -> Tensor:
    """The penalty ``−slope·|distance|``, ``[H, T, S]`` (float32), to be added to the scores.

    ``S`` = None means ``S = T``. The last query stands at the last key, so query t is at place
    ``S − T + t``. Hide the future with the causal mask: the penalty alone does not. Leave it in
    float32 for queries in half precision too: bfloat16 would round the penalty of 257 to 256.

    Raises ``ValueError`` if a size is negative or ``H`` is 0.
    Source: Press, Smith, Lewis, "Train Short, Test Long" (2021), section 3.
    """
    require_positive("T", T, minimum=0)
    S = T if S is None else S
    require_positive("S", S, minimum=0)
    key = torch.arange(S, dtype=torch.float32, device=device)
    query = torch.arange(S - T, S, dtype=torch.float32, device=device)
    return -alibi_slopes(H, device=device)[:, None, None] * (key - query[:, None]).abs()


def _geometric(n: int) -> list[float]:
    return [2.0 ** (-8.0 * h / n) for h in range(1, n + 1)]


def _places(T: int, offset: int) -> Tensor:
    if not isinstance(offset, Integral):
        raise ValueError(f"offset: expected a whole number, got {offset!r}")
    return torch.arange(offset, offset + T, device="cpu")


def _angles(places: Tensor, width: int, base: float) -> Tensor:
    require_number("base", base, above=0)
    # float64: at place 100,000 a float32 angle is already wrong by 0.004. Not every device has it;
    # and from meta tensors, which have no numbers, nothing can be fetched.
    if places.device.type not in ("cpu", "cuda", "meta"):
        places = places.cpu()
    wide = torch.float32 if places.is_meta else torch.float64
    pairs = torch.arange(0, width, 2, dtype=wide, device=places.device)
    return places.to(wide)[:, None] * float(base) ** (-pairs / width)


def _require_pairs(name: str, width: int) -> None:
    require_positive(name, width)
    if width % 2:
        raise ValueError(f"{name}: expected an even width (features turn in pairs), got {width}")
