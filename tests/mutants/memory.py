"""Wrong memories, which ``tests/test_memory.py`` and ``tests/test_recall.py`` must refuse.

``Plain`` writes and reads token by token and ``ByChunks`` by chunks; each mutant gets one step
wrong. A subject has the public functions of ``course.memory`` with their signatures.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor

from course import memory
from course.feature_maps import get_feature_map
from course.state import DeltaState, LinearState
from tests import test_memory, test_recall
from tests.mutants import Suite


def checks(module: Any) -> dict[str, Any]:
    return {
        name.removeprefix("test_").replace("_", " "): test
        for name, test in vars(module).items()
        if name.startswith("test_") and list(inspect.signature(test).parameters) == ["m"]
    }


class Plain:
    """The rules of ``course.memory``; nothing of them is wrong."""

    # Steps that a mutant may get wrong, on rows ``[B,H,1,·]``; ``x`` is γ or β, ``[B,H,1,1]``.

    def fade(self, S: Tensor, k: Tensor, v: Tensor, gamma: Tensor) -> Tensor:
        return gamma * S + k.mT @ v

    def fade_z(self, z: Tensor, k: Tensor, gamma: Tensor) -> Tensor:
        return gamma * z + k

    def correct(self, S: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
        return S + k.mT @ (beta * (v - k @ S))

    def quiet(self, x: Tensor, key_mask: Tensor) -> Tensor:
        """The rule's number, so that padding changes nothing."""
        return x.masked_fill(~key_mask[:, None], 0)

    def gamma(self, log_decay: Tensor) -> Tensor:
        return log_decay.exp()

    def kept(self, S: Tensor, like: Tensor) -> Tensor:
        """The state as it is carried on."""
        return S

    # Forms

    def gated(self, Q: Tensor, K: Tensor, V: Tensor, S: Tensor, z: Tensor, log: Tensor) -> Any:
        """Numerators, denominators, S and z."""
        nums, dens, z = [V[:, :, :0]], [V[:, :, :0, :1]], z.unsqueeze(2)
        for q, k, v, g in zip(*(x.split(1, 2) for x in (Q, K, V, log)), strict=True):
            S = self.kept(self.fade(S, k, v, self.gamma(g)), V)
            z = self.kept(self.fade_z(z, k, self.gamma(g)), V)
            nums.append(q @ S)
            dens.append(q @ z.mT)
        return torch.cat(nums, 2), torch.cat(dens, 2), S, z.squeeze(2)

    def delta(self, Q: Tensor, K: Tensor, V: Tensor, S: Tensor, beta: Tensor) -> Any:
        outs = [V[:, :, :0]]
        for q, k, v, b in zip(*(x.split(1, 2) for x in (Q, K, V, beta)), strict=True):
            S = self.kept(self.correct(S, k, v, b), V)
            outs.append(q @ S)
        return torch.cat(outs, 2), S

    # The public functions

    def gated_attention(
        self, q: Any, k: Any, v: Any, *, log_decay: Tensor, feature_map: Any = "elu",
        normalize: bool = True, scale: Any = None, key_mask: Any = None, initial_state: Any = None,
        return_state: bool = False, form: str = "chunk", chunk_size: Any = None,
    ) -> Any:  # fmt: skip
        fm = get_feature_map(feature_map) if isinstance(feature_map, str) else feature_map
        (B, H, T, D), Dv, dtype = k.shape, v.shape[-1], q.dtype
        wide = torch.promote_types(dtype, torch.float32)
        root = math.sqrt(1.0 if scale is None else scale)
        past = initial_state or LinearState(
            torch.zeros(B, H, fm.width(D), Dv, dtype=wide),
            torch.zeros(B, H, fm.width(D), dtype=wide), torch.zeros(B, dtype=torch.int64),
        )  # fmt: skip
        real = torch.ones(B, T, dtype=torch.bool) if key_mask is None else key_mask
        hidden = ~real[:, None, :, None]
        k, v = (x.to(wide).masked_fill(hidden, 0) for x in (k, v))
        K = fm(root * k).masked_fill(hidden, 0)
        log = self.quiet(log_decay.to(wide), real).unsqueeze(-1)
        num, den, S, z = self.gated(fm(root * q.to(wide)), K, v, past.S, past.z, log)
        out = num / den.masked_fill(den == 0, math.inf) if normalize else num
        state = LinearState(S, z, past.t + real.sum(-1))
        return (out.to(dtype), state) if return_state else out.to(dtype)

    def gated_attention_step(
        self, q_t: Any, k_t: Any, v_t: Any, state: Any = None, *, log_decay: Tensor,
        feature_map: Any = "elu", normalize: bool = True, scale: Any = None,
    ) -> Any:  # fmt: skip
        inputs = (x.unsqueeze(2) for x in (q_t, k_t, v_t))
        out, state = self.gated_attention(
            *inputs, log_decay=log_decay.unsqueeze(2), feature_map=feature_map,
            normalize=normalize, scale=scale, initial_state=state, return_state=True,
        )  # fmt: skip
        return out.squeeze(2), state

    def delta_attention(
        self, q: Any, k: Any, v: Any, *, beta: Tensor, key_mask: Any = None,
        initial_state: Any = None, return_state: bool = False, form: str = "chunk",
        chunk_size: Any = None,
    ) -> Any:  # fmt: skip
        (B, H, T, D), Dv, dtype = k.shape, v.shape[-1], q.dtype
        wide = torch.promote_types(dtype, torch.float32)
        past = initial_state or DeltaState(
            torch.zeros(B, H, D, Dv, dtype=wide), torch.zeros(B, dtype=torch.int64)
        )
        real = torch.ones(B, T, dtype=torch.bool) if key_mask is None else key_mask
        k, v = (x.to(wide).masked_fill(~real[:, None, :, None], 0) for x in (k, v))
        b = self.quiet(beta.to(wide), real).unsqueeze(-1)
        out, S = self.delta(q.to(wide), k, v, past.S, b)
        state = DeltaState(S, past.t + real.sum(-1))
        return (out.to(dtype), state) if return_state else out.to(dtype)

    def delta_attention_step(
        self, q_t: Any, k_t: Any, v_t: Any, state: Any = None, *, beta: Tensor
    ) -> Any:
        inputs = (x.unsqueeze(2) for x in (q_t, k_t, v_t))
        out, state = self.delta_attention(
            *inputs, beta=beta.unsqueeze(2), initial_state=state, return_state=True
        )
        return out.squeeze(2), state


class ByChunks(Plain):
    """Chunks of eight tokens, whatever is asked for; nothing of it is wrong."""

    size = 8

    def chunks(self, x: Tensor) -> list[Tensor]:
        return list(x.split(self.size, 2))

    def left(self, log: Tensor) -> Tensor:
        """What is left of token i at token t, ``[…, t, i]``."""
        return log.expand(*log.shape[:-1], log.shape[-2]).tril(-1).cumsum(-2).exp()

    def sight(self, A: Tensor) -> Tensor:
        return A.tril()

    def system(self, k: Tensor, b: Tensor) -> Tensor:
        return torch.eye(k.shape[-2]).to(k) + (b * (k @ k.mT)).tril(-1)

    def solved(self, system: Tensor, right: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(system, right, upper=False)

    def gated(self, Q: Tensor, K: Tensor, V: Tensor, S: Tensor, z: Tensor, log: Tensor) -> Any:
        nums, dens, z = [], [], z.unsqueeze(2)
        for q, k, v, g in zip(*map(self.chunks, (Q, K, V, log)), strict=True):
            left, since = self.left(g), g.cumsum(2).exp()
            A = self.sight(left * (q @ k.mT))
            nums.append(since * (q @ S) + A @ v)
            dens.append(since * (q @ z.mT) + A.sum(-1, keepdim=True))
            faded = left[..., -1:, :].mT * k
            S = self.kept(since[..., -1:, :] * S + faded.mT @ v, V)
            z = self.kept(since[..., -1:, :] * z + faded.sum(2, keepdim=True), V)
        return torch.cat(nums, 2), torch.cat(dens, 2), S, z.squeeze(2)

    def delta(self, Q: Tensor, K: Tensor, V: Tensor, S: Tensor, beta: Tensor) -> Any:
        outs = []
        for q, k, v, b in zip(*map(self.chunks, (Q, K, V, beta)), strict=True):
            new = self.solved(self.system(k, b), b * (v - k @ S))
            outs.append(q @ S + self.sight(q @ k.mT) @ new)
            S = self.kept(S + k.mT @ new, V)
        return torch.cat(outs, 2), S


def wrong(base: type = Plain, **steps: Any) -> Any:
    return type("Wrong", (base,), steps)


# Gated ---


def _by_difference(self: Any, log: Tensor) -> Tensor:
    since = log.cumsum(-2)
    return (since - since.mT).tril().exp()


def _by_powers(self: Any, log: Tensor) -> Tensor:
    since = log.cumsum(-2)
    return since.exp() * since.neg().exp().mT


def _ragged(self: Any, x: Tensor) -> list[Tensor]:
    pieces = list(x.split(self.size, 2))
    if len(pieces) > 1 and pieces[-1].shape[2] < self.size:
        pieces[-1] = pieces[-1] * 0
    return pieces


# Delta ---


def _first_order(self: Any, system: Tensor, right: Tensor) -> Tensor:
    return 2 * right - system @ right


def _by_doubling(self: Any, system: Tensor, right: Tensor) -> Tensor:
    """(I + L)⁻¹ = (I − L)(I + L²)(I + L⁴)…, exact on paper."""
    L = system - torch.eye(len(system[0, 0])).to(system)
    right, power = right - L @ right, L @ L
    for _ in range(6):
        right, power = right + power @ right, power @ power
    return right


def _stale(self: Any, system: Tensor, right: Tensor) -> Tensor:
    return right


def _half_gradient(self: Any, system: Tensor, right: Tensor) -> Tensor:
    return ByChunks.solved(self, system.detach(), right)


def _unit_keys(self: Any, S: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    k = torch.nn.functional.normalize(k, dim=-1)
    return Plain.correct(self, S, k, v, beta)


def _towards_values(self: Any, S: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """The error before β: writes βv, but takes away all that was read."""
    return S + k.mT @ (beta * v - k @ S)


def _narrow(self: Any, S: Tensor, like: Tensor) -> Tensor:
    return S.to(torch.bfloat16).to(S) if S.dtype == torch.float32 else S


# Leaks and errors ---


class Recall:
    """What ``course.memory`` says of reading; nothing of it is wrong."""

    def draw_keys(self, *a: Any, **o: Any) -> Tensor:
        return memory.draw_keys(*a, **o)

    def leak_matrix(self, k: Tensor, **o: Any) -> Tensor:
        return memory.leak_matrix(k, **o)

    def recall_error(self, n_pairs: int, d: int, **o: Any) -> Any:
        return memory.recall_error(n_pairs, d, **o)


def _leaks(change: Any) -> type[Recall]:
    """``change(L, K, options)`` of the right leak matrix."""

    def leak_matrix(self: Recall, k: Tensor, **o: Any) -> Tensor:
        return change(memory.leak_matrix(k, **o), k, o)

    return wrong(Recall, leak_matrix=leak_matrix)


def _other_options(function: str, **changes: Any) -> type[Recall]:
    """``function`` asked for something else: ``changes`` map an option to a function of it."""

    def asked(self: Recall, *a: Any, **o: Any) -> Any:
        return getattr(memory, function)(
            *a, **(o | {n: f(o[n]) for n, f in changes.items() if n in o})
        )

    return wrong(Recall, **{function: asked})


def _decay_from_the_end(L: Tensor, k: Tensor, o: Any) -> Tensor:
    if o["rule"] != "add":
        return L
    n = k.shape[-2]
    return memory.leak_matrix(k, rule="add") * o.get("decay", 1.0) ** torch.arange(n).to(L)


def _by_columns(L: Tensor, k: Tensor, o: Any) -> Tensor:
    if o["rule"] != "divide":
        return L
    faded = memory.leak_matrix(k, rule="add", decay=o.get("decay", 1.0))
    return faded / faded.sum(-2, keepdim=True)


def _starts_anew(L: Tensor, k: Tensor, o: Any) -> Tensor:
    return memory.leak_matrix(k, **(o | {"passes": 1}))


def _one_by_one(L: Tensor, k: Tensor, o: Any) -> Tensor:
    """Each pass corrects all pairs at once: gradient descent, not the delta rule."""
    if o["rule"] != "delta":
        return L
    G = k @ k.mT
    A = torch.zeros_like(G)
    for _ in range(o.get("passes", 1)):
        A = A + o.get("beta", 1.0) * (torch.eye(G.shape[-1]).to(G) - G @ A)
    return G @ A


def _errors(change: Any) -> type[Recall]:
    """``change(found, n, d, options)`` of the right error."""

    def recall_error(self: Recall, n: int, d: int, **o: Any) -> Any:
        return change(memory.recall_error(n, d, **o), n, d, o)

    return wrong(Recall, recall_error=recall_error)


def _interval(factor: Any) -> type[Recall]:
    def change(found: Any, n: int, d: int, o: Any) -> Any:
        half = (found.high - found.mean) * factor(n, o.get("trials", 2000))
        return found._replace(low=found.mean - half, high=found.mean + half)

    return _errors(change)


def _law(law: Any) -> type[Recall]:
    """Another law for additive writing with Gaussian keys."""

    def change(found: Any, n: int, d: int, o: Any) -> Any:
        plain = o.get("rule", "add") == "add" and o.get("keys", "gaussian") == "gaussian"
        return found._replace(law=law(found, n, d, o)) if plain and found.law is not None else found

    return _errors(change)


def _without_own(found: Any, n: int, d: int, o: Any) -> float:
    """What the pair itself has lost, forgotten."""
    gamma, age = o.get("decay", 1.0), o.get("age")
    ages = range(n) if age is None else [age]
    total = sum(gamma ** (2 * j) for j in range(n))
    return math.sqrt(sum((total - gamma ** (2 * a)) / d for a in ages) / len(ages))


def _as_if_full(found: Any, n: int, d: int, o: Any) -> Any:
    if o.get("rule") != "delta" or not found.law or o.get("keys", "gaussian") != "gaussian":
        return found
    ages = range(n) if o.get("age") is None else [o["age"]]
    square = sum(2 * (1 - (1 - 1 / d) ** age) for age in ages) / len(ages)
    return found._replace(law=math.sqrt(square))


class _Global(Recall):
    """Drawn from the global stream"""

    def recall_error(self, n_pairs: int, d: int, **o: Any) -> Any:
        seed = int(torch.randint(2**31, ()))
        return memory.recall_error(n_pairs, d, **(o | {"seed": seed}))


class _Age(Recall):
    """Age 0 is the first pair"""

    def recall_error(self, n_pairs: int, d: int, **o: Any) -> Any:
        found = memory.recall_error(n_pairs, d, **o)
        if o.get("age") is None:
            return found
        other = memory.recall_error(n_pairs, d, **(o | {"age": n_pairs - 1 - o["age"]}))
        return other._replace(law=found.law)


class _Uneven(Recall):
    """Keys of uneven length"""

    def draw_keys(self, *a: Any, **o: Any) -> Tensor:
        k = memory.draw_keys(*a, **o)
        return k * (0.9 + 0.2 * torch.arange(k.shape[-2]).to(k) / k.shape[-2]).unsqueeze(-1)


class _Cube(Recall):
    """Gaussian keys from a cube, whose corners are favoured"""

    def draw_keys(self, n_pairs: int, d: int, **o: Any) -> Tensor:
        if o.get("keys", "gaussian") != "gaussian":
            return memory.draw_keys(n_pairs, d, **o)
        generator = torch.Generator().manual_seed(o.get("seed", 0))
        k = torch.rand(o.get("trials", 1), n_pairs, d, generator=generator, dtype=torch.float64)
        return torch.nn.functional.normalize(k, dim=-1)


class _Mutates(Plain):
    """The given state is overwritten"""

    def delta_attention(self, *a: Any, initial_state: Any = None, **o: Any) -> Any:
        found = super().delta_attention(*a, initial_state=initial_state, **o)
        if initial_state is not None:
            initial_state.S.mul_(0.5)
        return found


class _Lost(Plain):
    """The given state is not read"""

    def gated_attention(self, *a: Any, initial_state: Any = None, **o: Any) -> Any:
        return super().gated_attention(*a, **o)


MUTANTS: dict[str, type[Plain]] = {
    "the decay acts on what is just written": wrong(
        fade=lambda self, S, k, v, g: g * (S + k.mT @ v)
    ),
    "z does not fade": wrong(fade_z=lambda self, z, k, g: z + k),
    "S does not fade": wrong(fade=lambda self, S, k, v, g: S + k.mT @ v),
    "the decay instead of its logarithm": wrong(gamma=lambda self, log: -log),
    "the logarithm with another sign": wrong(gamma=lambda self, log: log.neg().exp()),
    "padding fades and writes": wrong(quiet=lambda self, x, key_mask: x),
    "padding's number times 0": wrong(quiet=lambda self, x, key_mask: x * key_mask[:, None]),
    "sums in bfloat16": wrong(kept=_narrow),
    "sums of chunks in bfloat16": wrong(ByChunks, kept=_narrow),
    "a difference of two sums": wrong(ByChunks, left=_by_difference),
    "powers of the decay and of its inverse": wrong(ByChunks, left=_by_powers),
    "token i fades by its own decay": wrong(
        ByChunks,
        left=lambda self, log: log.expand(*log.shape[:-1], log.shape[-2]).tril().cumsum(-2).exp(),
    ),
    "the future is seen": wrong(ByChunks, sight=lambda self, A: A),
    "the current token is hidden": wrong(ByChunks, sight=lambda self, A: A.tril(-1)),
    "the last ragged chunk is dropped": wrong(ByChunks, chunks=_ragged),
    "nothing is corrected inside a chunk": wrong(ByChunks, solved=_stale),
    "the inverse to first order": wrong(ByChunks, solved=_first_order),
    "the inverse by doubling": wrong(ByChunks, solved=_by_doubling, size=64),
    "no gradient through the system": wrong(ByChunks, solved=_half_gradient),
    "β of the corrected token, not of the correcting": wrong(
        ByChunks,
        system=lambda self, k, b: torch.eye(k.shape[-2]).to(k) + (k @ k.mT * b.mT).tril(-1),
    ),
    "no β in the system": wrong(
        ByChunks, system=lambda self, k, b: torch.eye(k.shape[-2]).to(k) + (k @ k.mT).tril(-1)
    ),
    "the system contains its diagonal": wrong(
        ByChunks, system=lambda self, k, b: torch.eye(k.shape[-2]).to(k) + (b * (k @ k.mT)).tril()
    ),
    "keys are brought to length 1": wrong(correct=_unit_keys),
    "β does not act on what is taken away": wrong(correct=_towards_values),
    "β acts twice": wrong(
        correct=lambda self, S, k, v, b: Plain.correct(self, S, k, v, b.square())
    ),
    "added, not corrected": wrong(correct=lambda self, S, k, v, b: S + b * k.mT @ v),
}
MISREAD: dict[str, type[Recall]] = {
    "the leaks transposed": _leaks(lambda L, k, o: L.mT),
    "the leaks fade from the other end": _leaks(_decay_from_the_end),
    "the leaks divided by columns": _leaks(_by_columns),
    "each pass starts anew": _leaks(_starts_anew),
    "each pass corrects all at once": _leaks(_one_by_one),
    "the values' space instead of the pairs'": _leaks(
        lambda L, k, o: torch.eye(len(L[0])).to(L) if o["rule"] == "least_squares" else L
    ),
    "softmax without its sharpness": _other_options("leak_matrix", beta=lambda b: 1.0),
    "an interval of single readings": _interval(lambda n, trials: 1 / math.sqrt(n)),
    "an interval of single draws": _interval(lambda n, trials: math.sqrt(trials)),
    "an interval of half the width": _interval(lambda n, trials: 0.5),
    "an interval that holds in 90 of 100": _interval(lambda n, trials: 1.64 / 1.96),
    "the mean is the root of the mean square": _errors(
        lambda found, n, d, o: found._replace(
            mean=found.rms, low=found.low + found.rms - found.mean,
            high=found.high + found.rms - found.mean,
        )
    ),
    "the law with N for N − 1": _law(lambda found, n, d, o: found.law * math.sqrt(n / (n - 1))),
    "the law without what was lost": _law(_without_own),
    "the delta rule's law of a full state": _errors(_as_if_full),
    "a law for everything": _errors(
        lambda found, n, d, o: found._replace(law=found.law or math.sqrt((n - 1) / d))
    ),
    "other maps are ignored": _other_options("recall_error", feature_map=lambda fm: "identity"),
    "one-hot values are Gaussian": _other_options("recall_error", values=lambda name: "gaussian"),
    "the width of values is ignored": _other_options("recall_error", Dv=lambda Dv: 32),
    "the seed is ignored": _other_options("recall_error", seed=lambda seed: 0),
    "the cosine is that of the square": _other_options("draw_keys", cosine=lambda c: c * c),
}  # fmt: skip
MUTANTS |= {str(subject.__doc__): subject for subject in (_Mutates, _Lost)}
MISREAD |= {str(subject.__doc__): subject for subject in (_Global, _Age, _Uneven, _Cube)}


SUITES = [
    Suite("memory", Plain, MUTANTS, checks(test_memory)),
    Suite("memory by chunks", ByChunks, {}, checks(test_memory)),
    Suite("recall", Recall, MISREAD, checks(test_recall)),
]
