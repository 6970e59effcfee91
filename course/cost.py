"""What a layer costs: parameters, operations, bytes, the cache; as formulas.

One multiplication and one addition count as two operations (FLOPs). Softmax, norms and
activations are left out of the operations: they are a few per element, not E per element.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from course.inputs import require_flag, require_number, require_positive

MIB = 2**20

# --- parameters ----------------------------------------------------------------------------------


def block_parameters(E: int, *, hidden: int | None = None) -> dict[str, int]:
    """Parameters of one block by part, and their ``total``: 12E² + 13E with ``hidden`` = 4E.

    Four square matrices with biases, two feed-forward matrices with biases, two norms. Assumes
    ``H·D = H·Dv = E``. Source: Radford et al. (2019), the GPT-2 block.
    """
    require_positive("E", E)
    hidden = _hidden(E, hidden)
    parts = {
        "attention": 4 * (E * E + E),
        "feed-forward": 2 * E * hidden + hidden + E if hidden else 0,
        "norms": 4 * E if hidden else 2 * E,
    }
    return parts | {"total": sum(parts.values())}


def model_parameters(
    *,
    vocab_size: int,
    E: int,
    L: int,
    max_length: int = 0,
    hidden: int | None = None,
    tied: bool = True,
) -> dict[str, int]:
    """Parameters of a pre-norm model by part, and their ``total``.

    ``max_length``: rows of a learned position table (0 = none). An untied output has a bias.
    """
    for name, value in (("vocab_size", vocab_size), ("E", E)):
        require_positive(name, value)
    for name, value in (("L", L), ("max_length", max_length)):
        require_positive(name, value, minimum=0)
    parts = {
        "token table": vocab_size * E,
        "positions": max_length * E,
        "blocks": L * block_parameters(E, hidden=hidden)["total"],
        "last norm": 2 * E,
        "output": 0 if tied else vocab_size * E + vocab_size,
    }
    return parts | {"total": sum(parts.values())}


# --- operations ----------------------------------------------------------------------------------


def visible_pairs(
    T: int, S: int | None = None, *, causal: bool = False, window: int | None = None
) -> int:
    """How many of the ``T·S`` query–key pairs a mask lets through.

    The last query stands at the last key. ``window=w``: the last ``w`` keys with ``causal``, else
    the keys at a distance below ``w``. No mask is built: it costs ``O(T)``.
    """
    require_positive("T", T, minimum=0)
    S = T if S is None else S
    require_positive("S", S, minimum=0)
    reach = max(T, S) if window is None else window
    require_positive("window", reach, minimum=0 if window is None else 1)
    require_flag("causal", causal)
    reach = min(reach, max(T, S))
    place = np.arange(S - T, S)
    first = np.maximum(place - reach + 1, 0)
    last = place if causal else np.minimum(place + reach - 1, S - 1)
    return int(np.maximum(np.minimum(last, S - 1) - first + 1, 0).sum())


def block_flops(
    T: int, *, E: int, hidden: int | None = None, pairs: int | None = None
) -> dict[str, int]:
    """Operations of one block's forward pass over one sequence, by part, and their ``total``.

    ``projections`` 8TE² (q, k, v, output), ``attention`` 4E for each of ``pairs`` (None: T², what
    a full square costs, masked or not), ``feed-forward`` 4TE·hidden. Attention equals the rest at
    T = 6E. A backward pass costs twice the forward pass.
    """
    require_positive("E", E)
    parts = {
        "projections": 8 * T * E * E,
        "attention": 4 * E * _pairs(T, pairs),
        "feed-forward": 4 * T * E * _hidden(E, hidden),
    }
    return parts | {"total": sum(parts.values())}


def model_flops(
    T: int, *, vocab_size: int, E: int, L: int, hidden: int | None = None, pairs: int | None = None
) -> dict[str, int]:
    """Operations of a model's forward pass over one sequence of T tokens, and their ``total``."""
    require_positive("vocab_size", vocab_size)
    require_positive("L", L, minimum=0)
    block = block_flops(T, E=E, hidden=hidden, pairs=pairs)
    parts = {name: L * value for name, value in block.items() if name != "total"}
    parts["output"] = 2 * T * E * vocab_size
    return parts | {"total": sum(parts.values())}


def softmax_flops(T: int, *, D: int, Dv: int | None = None, pairs: int | None = None) -> int:
    """Operations of one head of softmax attention: ``2(D + Dv)`` for each pair (None: T²)."""
    Dv = D if Dv is None else Dv
    _positive_sizes(D=D, Dv=Dv)
    return 2 * (D + Dv) * _pairs(T, pairs)


def linear_flops(T: int, *, C: int, Dv: int) -> int:
    """Operations of one head of linear attention with ``C`` features: ``4·T·C·Dv``.

    Each token writes C·Dv cells and reads C·Dv cells. Equal to :func:`softmax_flops` at
    T = 2·C·Dv/(D + Dv). Making the features is not counted.
    """
    _positive_sizes(C=C, Dv=Dv)
    require_positive("T", T, minimum=0)
    return 4 * T * C * Dv


def crossing_lengths(
    *,
    D: int,
    C: int | None = None,
    Dv: int | None = None,
    cache_itemsize: int = 4,
    state_itemsize: int = 4,
) -> dict[str, float]:
    """Lengths at which linear attention with ``C`` features (None = D) costs as much as softmax.

    ``full square``: operations, when softmax computes all T² pairs. ``half square``: operations,
    when it skips what a causal mask hides. ``memory``: the cache of T tokens weighs as much as the
    state and z. Below a length softmax is cheaper, above it linear attention. Making the features
    is not counted. One head; the number of heads cancels.
    """
    C, Dv = D if C is None else C, D if Dv is None else Dv
    sizes = {"D": D, "C": C, "Dv": Dv}
    sizes |= {"cache_itemsize": cache_itemsize, "state_itemsize": state_itemsize}
    for name, value in sizes.items():
        require_positive(name, value)
    full = linear_flops(1, C=C, Dv=Dv) / softmax_flops(1, D=D, Dv=Dv)
    token = cache_bytes_per_token(L=1, kv_heads=1, D=D, Dv=Dv, itemsize=cache_itemsize)
    return {
        "full square": full,
        "half square": 2 * full - 1,  # T(T+1)/2 pairs cost 4·T·C·Dv
        "memory": state_bytes(L=1, H=1, C=C, Dv=Dv, itemsize=state_itemsize) / token,
    }


# --- bytes ---------------------------------------------------------------------------------------


def score_bytes(T: int, S: int | None = None, *, H: int = 1, itemsize: int = 4) -> int:
    """Bytes of the score matrices of one sequence: ``H·T·S·itemsize``."""
    _positive_sizes(H=H, itemsize=itemsize)
    S = T if S is None else S
    for name, value in (("T", T), ("S", S)):
        require_positive(name, value, minimum=0)
    return H * T * S * itemsize


def cache_bytes_per_token(
    *, L: int, kv_heads: int, D: int, Dv: int | None = None, itemsize: int = 2
) -> int:
    """Bytes of keys and values that one token leaves in a cache of ``L`` layers."""
    Dv = D if Dv is None else Dv
    _positive_sizes(L=L, kv_heads=kv_heads, D=D, Dv=Dv, itemsize=itemsize)
    return L * kv_heads * (D + Dv) * itemsize


def state_bytes(*, L: int, H: int, C: int, Dv: int, itemsize: int = 4) -> int:
    """Bytes of the linear-attention states of ``L`` layers: ``C·Dv`` cells and z ``[C]`` a head."""
    _positive_sizes(L=L, H=H, C=C, Dv=Dv, itemsize=itemsize)
    return L * H * (C * Dv + C) * itemsize


@dataclass(frozen=True)
class CacheShape:
    """What a published model keeps a token: ``heads`` × (``D`` + ``Dv``) numbers a layer."""

    name: str
    kind: str
    L: int
    heads: int
    D: int
    Dv: int

    def bytes_per_token(self, itemsize: int = 2) -> int:
        """Bytes a token over all layers."""
        return cache_bytes_per_token(
            L=self.L, kv_heads=self.heads, D=self.D, Dv=self.Dv, itemsize=itemsize
        )


#: Shapes as their authors published them. Latent: one vector of 512 that serves as key and value,
#: and 64 numbers of key for the rotation, so D = 64 and Dv = 512 count what is stored.
CACHE_SHAPES = (
    CacheShape("GPT-2 small", "multi-head", L=12, heads=12, D=64, Dv=64),
    CacheShape("Llama 2 7B", "multi-head", L=32, heads=32, D=128, Dv=128),
    CacheShape("Llama 2 70B", "grouped", L=80, heads=8, D=128, Dv=128),
    CacheShape("Llama 3 8B", "grouped", L=32, heads=8, D=128, Dv=128),
    CacheShape("Falcon 7B", "multi-query", L=32, heads=1, D=64, Dv=64),
    CacheShape("DeepSeek-V2", "latent", L=60, heads=1, D=64, Dv=512),
)


def naive_traffic(T: int, *, D: int, Dv: int | None = None, itemsize: int = 2) -> int:
    """Bytes between memory and chip for one head when the T×T matrix is stored.

    Read q, k; write scores; read scores, write weights; read weights and v; write the output.
    Source: Dao et al., "FlashAttention" (2022), algorithm 0.
    """
    Dv = D if Dv is None else Dv
    _positive_sizes(D=D, Dv=Dv, itemsize=itemsize)
    require_positive("T", T, minimum=0)
    return itemsize * (2 * T * D + 4 * T * T + 2 * T * Dv)


def tiled_traffic(
    T: int,
    *,
    D: int,
    Dv: int | None = None,
    tile: int = 64,
    itemsize: int = 2,
    cached: bool = False,
) -> int:
    """The same when ``tile`` queries at a time meet all keys and no T×T matrix is stored.

    q is read and the output written once; k and v are read once for each tile of queries. For long
    T the traffic is that of :func:`naive_traffic` divided by 4·tile/(D + Dv): larger tiles move
    less. ``cached``: the second-level cache has what is read again, so k and v come from memory
    once. These are the two ends between which a real machine lies.
    Source: Dao, "FlashAttention-2" (2023), algorithm 1.
    """
    Dv = D if Dv is None else Dv
    _positive_sizes(D=D, Dv=Dv, tile=tile, itemsize=itemsize)
    require_positive("T", T, minimum=0)
    require_flag("cached", cached)
    readings = min(1, T) if cached else -(-T // tile)
    return itemsize * (T * (D + Dv) + readings * T * (D + Dv))


def chunk_flops(T: int, *, C: int, Dv: int, chunk: int = 64) -> int:
    """Operations of one head of the chunk form: ``2B(C + Dv) + 4·C·Dv`` a token, B = ``chunk``.

    Inside a chunk the products Q Kᵀ and A V (whole squares: a tile hides its future, and computes
    it), between chunks Q S and Kᵀ V. The last chunk is computed whole. Equal to
    :func:`linear_flops` but for the squares, which are its price for products of tiles.
    Source: Hua et al., "Transformer Quality in Linear Time" (2022), section 3.2.
    """
    _positive_sizes(C=C, Dv=Dv, chunk=chunk)
    require_positive("T", T, minimum=0)
    tokens = -(-T // chunk) * chunk
    return tokens * (2 * chunk * (C + Dv) + 4 * C * Dv)


def chunk_traffic(
    T: int, *, D: int, Dv: int, C: int | None = None, chunk: int = 64, itemsize: int = 2
) -> int:
    """Bytes between memory and chip for one head of the chunk form in two launches.

    The first reads k and v and writes, in float32, S ``[C, Dv]`` and z ``[C]`` as they are before
    each chunk; the second reads these and q, k, v of its chunk and writes the output. Features are
    made on the chip, so their width ``C`` (None: D) shows in the states alone.
    """
    C = D if C is None else C
    _positive_sizes(D=D, Dv=Dv, C=C, chunk=chunk, itemsize=itemsize)
    require_positive("T", T, minimum=0)
    states = 2 * 4 * -(-T // chunk) * C * (Dv + 1)
    return itemsize * T * (3 * D + 3 * Dv) + states


def step_flops(*, C: int, Dv: int) -> int:
    """Operations of one head for one token of the recurrence: :func:`linear_flops` for T = 1."""
    return linear_flops(1, C=C, Dv=Dv)


def step_traffic(*, D: int, Dv: int, C: int | None = None, itemsize: int = 2) -> int:
    """Bytes of that step: float32 S and z in and out, one q, k, v in, one output out."""
    C = D if C is None else C
    _positive_sizes(D=D, Dv=Dv, C=C, itemsize=itemsize)
    return 2 * 4 * C * (Dv + 1) + itemsize * (2 * D + 2 * Dv)


def tile_cycles(
    rows: int, columns: int, depth: int, *, per_cycle: int = 2_048, latency: float = 33.0
) -> float:
    """Clock cycles until a product of tiles is there, if its tensor cores have nothing else to do.

    ``[rows, depth]`` times ``[depth, columns]`` goes in ``depth / 16`` steps, of which each needs
    the sum of the one before. A step takes the ``latency`` of one 16×8×16 instruction or, if that
    is longer, the time to do all its multiplications at ``per_cycle`` a multiprocessor (A100
    1,024, H100 2,048). So n×n tiles cost the same up to n = √(latency · per_cycle / 16), then the
    price grows with n². A model, not a measurement; latency as measured by Sun et al.,
    "Dissecting Tensor Cores via Microbenchmarks" (2022).
    """
    _positive_sizes(rows=rows, columns=columns, depth=depth, per_cycle=per_cycle)
    require_number("latency", latency)
    instructions = -(-rows // 16) * -(-columns // 8)
    return -(-depth // 16) * max(latency, instructions * 16 * 8 * 16 / per_cycle)


# --- the roofline --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Machine:
    """A machine's two limits: operations per second, and bytes per second from its main memory.

    ``cache``: bytes of its second-level cache (0: not told), which no method here uses.
    """

    name: str
    flops: float
    bandwidth: float
    cache: int = 0

    @property
    def ridge(self) -> float:
        """Operations per byte from which on arithmetic is the limit."""
        return self.flops / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """Operations per second at ``intensity`` operations per byte of main memory, at best."""
        return min(self.flops, intensity * self.bandwidth)

    def seconds(self, flops: float, nbytes: float) -> float:
        """The least time for that much arithmetic and traffic, perfectly overlapped."""
        return max(flops / self.flops, nbytes / self.bandwidth)


#: Data-sheet numbers: dense 16-bit matrix products with 32-bit sums, memory bandwidth, and the
#: second-level cache.
GPUS = (
    Machine("T4", 65e12, 320e9, 4 * MIB),
    Machine("L4", 121e12, 300e9, 48 * MIB),
    Machine("A100 80GB SXM", 312e12, 2_039e9, 40 * MIB),
    Machine("H100 SXM", 989e12, 3_350e9, 50 * MIB),
    Machine("H200 SXM", 989e12, 4_800e9, 50 * MIB),
)


def _positive_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        require_positive(name, value)


def _pairs(T: int, pairs: int | None) -> int:
    require_positive("T", T, minimum=0)
    if pairs is not None:
        require_positive("pairs", pairs, minimum=0)
    return T * T if pairs is None else pairs


def _hidden(E: int, hidden: int | None) -> int:
    if hidden is not None:
        require_positive("hidden", hidden, minimum=0)
    return 4 * E if hidden is None else hidden
