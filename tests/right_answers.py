"""Right answers to the exercises in other styles than the printed solution's.

``BY_HAND`` are written out, one a style (a loop, NumPy, einsum, another idea). ``restyled`` makes
more from any right answer: an object that is called, one that gives NumPy arrays, lists or tuples,
one that computes in float32, one that takes nothing but float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

Function = Callable[..., Any]

# Here what comes, or what goes back, is no tensor that could be turned into something else.
NO_ARRAY = ("error text", "causal_attention")


def restyled(exercise: str, function: Function) -> Iterator[tuple[str, Function]]:
    class Base:
        def __call__(self, *arguments: Any) -> Any:
            return function(*arguments)

    class Called(Base):
        """Does not have ``__call__`` of its own."""

    if exercise != "causal_attention":  # Triton takes functions only
        yield "class", Called()
        yield "with arguments filled in", functools.partial(lambda _, *a: function(*a), None)
    if exercise not in NO_ARRAY:
        yield "NumPy", lambda *a: _each(function(*a), lambda x: x.numpy())
        yield "lists of arrays", lambda *a: _list(function(*a))
        yield "lists of numbers", lambda *a: _each(function(*a), lambda x: x.tolist())
        yield "tuples of rows", lambda *a: _each(function(*a), _rows)
        yield "float32", lambda *a: function(*(_each(x, _to_float32) for x in a))
        yield "float32 only", lambda *a: _refuses_float64(a) and function(*a)


def _to_float32(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.is_floating_point() else x


def _refuses_float64(arguments: tuple[Any, ...]) -> bool:
    """As a product of ``torch.zeros(…)`` and x does: written for float32 alone."""
    for x in arguments:
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            torch.linalg.solve(torch.eye(1), x.reshape(1, x.numel()))
    return True


def _each(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_each(x, change) for x in value)
    return change(value) if isinstance(value, torch.Tensor) else value


def _list(value: Any) -> Any:
    """Of several tensors, or of the rows of one, a list of arrays; a number as it is."""
    if isinstance(value, torch.Tensor) and not value.ndim:
        return value.numpy()
    return [x.numpy() for x in value] if isinstance(value, tuple | torch.Tensor) else value


def _rows(x: torch.Tensor) -> Any:
    return tuple(x) if x.ndim and len(x) != 1 else x


# Notebook 00


def _error_text_from_its_arguments(name, got, expected):
    from course.verify import verify

    try:
        verify(name, got, expected)
    except AssertionError as error:
        return error.args[0]
    return ""


def _neither_in_a_loop(n):
    weights = []
    for place in range(n):
        share = 0.4 / n
        if place == n - 1:
            share += 0.6
        weights.append(share)
    return weights


def _neither_numpy(n):
    return np.eye(n)[-1] / 2 + np.ones(n) / (2 * n)


def _neither_fading(n):
    """A third of an average, two thirds of weights that fade."""
    fading = torch.softmax(torch.arange(n) * 1.0, 0)
    return 0.4 / n + 0.6 * fading


def _neither_by_softmax(n):
    scores = torch.zeros(n)
    scores[-1] = math.log(n)
    return scores.softmax(0)


# Notebook 01


def _ahead_in_a_loop(model, x):
    furthest, before = 0, model(x).tolist()
    for j in range(len(x)):
        changed = x.tolist()
        changed[j] = [number * (-1) ** place + place for place, number in enumerate(changed[j], 1)]
        after = model(torch.tensor(changed, dtype=x.dtype)).tolist()
        furthest = max([furthest, *(j - t for t in range(j) if before[t] != after[t])])
    return furthest


def _ahead_numpy(model, x):
    def outputs(words):
        return model(torch.from_numpy(words)).numpy()

    x = x.numpy()
    changed = np.repeat(x[None], len(x), 0)  # [which word is another, T, E]
    changed[np.arange(len(x)), np.arange(len(x))] = x[::-1] + np.sin(np.arange(x.size)).reshape(
        x.shape
    )
    moved = np.stack([np.abs(outputs(one) - outputs(x)).max(-1) > 1e-7 for one in changed])
    j, t = np.nonzero(moved)
    return (j - t).max(initial=0)


def _ahead_by_derivatives(model, x):
    slopes = torch.autograd.functional.jacobian(model, x)  # [T, E, T, E]
    t, j = slopes.abs().amax((1, 3)).nonzero().T
    return max(0, int((j - t).max()))


def _masked_in_a_loop(scores, mask):
    out = torch.zeros_like(scores)
    for t in range(len(scores)):
        if mask[t].any():
            out[t, mask[t]] = scores[t, mask[t]].softmax(0)
    return out


def _masked_numpy(scores, mask):
    s = np.where(mask.numpy(), scores.numpy(), -np.inf)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isinf(top), 0.0, top))
    return e / np.maximum(e.sum(-1, keepdims=True), 1e-300)


def _masked_by_the_smallest_number(scores, mask):
    hidden = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return hidden.softmax(-1) * mask.any(-1, keepdim=True)


def _by_hand_in_a_loop(T):
    fading, previous = torch.zeros(T, T), torch.full((T, T), -1e4)
    for t in range(T):
        for i in range(t + 1):
            fading[t, i] = -(t - i) * math.log(2)
        previous[t, max(t - 1, 0)] = 0.0
    return fading, previous


def _by_hand_numpy(T):
    i = np.arange(T)
    with np.errstate(divide="ignore"):
        return np.log(np.exp2(np.tile(i, (T, 1)))), np.log((i == (i - 1).clip(0)[:, None]) * 1.0)


def _by_hand_einsum(T):
    one, i = torch.ones(T), torch.arange(T).float()
    distance = torch.einsum("t,s->ts", i, one) - torch.einsum("t,s->ts", one, i)
    return [-distance * math.log(2), -100 * (distance - 1) ** 2]


# Notebook 02


def _recover_pair_by_pair(head, E):
    A = torch.zeros(E, E)
    for m in range(E):
        for n in range(E):
            x = torch.zeros(3, E, dtype=torch.float64)
            x[0, m], x[1, n] = 1 / 64, 1 / 64
            _, looks, at_zeros = head(x)[0]
            A[m, n] = 64**2 * (looks / at_zeros).log()
    return A


def _recover_numpy(head, E):
    x = np.vstack([0.02 * np.eye(E), np.zeros((1, E))])
    log = np.log(np.asarray(head(x)))
    return (log[:-1, :-1] - log[:-1, -1:]) / 0.02**2


def _recover_by_doubling(head, E):
    """The score with 2e is twice the score with e: no zeros needed."""
    x = 0.01 * torch.cat([torch.eye(E), 2 * torch.eye(E)]).double()
    log = head(x)[:E].log()
    return torch.einsum("mn->mn", log[:, E:] - log[:, :E]) * 1e4


def _copy_with_complex_numbers(T):
    turn, W_q, W_k = np.exp(2j * np.pi / T), np.zeros((2, 6)), np.zeros((2, 6))
    W_k[:, 4:] = np.eye(2)
    W_q[:, 4:] = 1e4 * np.array([[turn.real, turn.imag], [-turn.imag, turn.real]])
    return [W_q, W_k, np.eye(4, 6)]


def _copy_by_turning_the_key(T):
    c, s = math.cos(2 * math.pi / T), math.sin(2 * math.pi / T)
    forward = torch.tensor([[c, -s], [s, c]])
    both = torch.zeros(2, 4), torch.zeros(2, 4)
    W_q, W_k = (torch.cat([z, 100 * M], 1) for z, M in zip(both, (torch.eye(2), forward)))  # noqa: B905
    return W_q, W_k, torch.cat([torch.eye(4), torch.zeros(4, 2)], 1)


def _copy_in_a_loop(T):
    W_q, W_k, W_v = torch.zeros(2, 6), torch.zeros(2, 6), torch.zeros(4, 6)
    for axis in range(2):
        angle = math.pi / 2 * axis
        W_k[axis, 4], W_k[axis, 5] = math.cos(angle), math.sin(angle)
        angle += 2 * math.pi / T
        W_q[axis, 4], W_q[axis, 5] = 3000 * math.cos(angle), 3000 * math.sin(angle)
    for word in range(4):
        W_v[word, word] = 1
    return W_q, W_k, W_v


def _heads_in_a_loop(x, W_q, W_k, W_v, W_o, H):
    T, D, Dv = len(x), len(W_q) // H, len(W_v) // H
    out = torch.zeros_like(x)
    for h in range(H):
        q, k = x @ W_q[h * D : (h + 1) * D].T, x @ W_k[h * D : (h + 1) * D].T
        v = x @ W_v[h * Dv : (h + 1) * Dv].T
        for t in range(T):
            weights = (k[: t + 1] @ q[t] / D**0.5).softmax(0)
            out[t] += W_o[:, h * Dv : (h + 1) * Dv] @ (weights @ v[: t + 1])
    return out


def _heads_numpy(x, W_q, W_k, W_v, W_o, H):
    x, W_q, W_k, W_v, W_o = (a.numpy() for a in (x, W_q, W_k, W_v, W_o))
    q, k, v = (np.stack(np.split(x @ W.T, H, axis=1)) for W in (W_q, W_k, W_v))
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    scores = np.where(np.tri(len(x)) > 0, scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return np.concatenate(list(e / e.sum(-1, keepdims=True) @ v), axis=1) @ W_o.T


def _heads_einsum(x, W_q, W_k, W_v, W_o, H):
    q, k, v = (torch.einsum("te,hde->htd", x, W.unflatten(0, (H, -1))) for W in (W_q, W_k, W_v))
    scores = torch.einsum("htd,hsd->hts", q, k) / math.sqrt(q.shape[-1])
    future = torch.ones(len(x), len(x)).triu(1).bool()
    weights = scores.masked_fill(future, -torch.inf).softmax(-1)
    return torch.einsum("hts,hsd,ehd->te", weights, v, W_o.unflatten(1, (H, -1)))


# Notebook 03


def _sharpen_in_a_loop(scores, tokens):
    """Newton's method: the entropy's derivative with respect to ln c is −c² times a variance."""
    row, c = scores.double().tolist(), 1.0 / float(scores.double().std())
    for _ in range(200):
        e = [math.exp(c * (x - max(row))) for x in row]
        w = [x / sum(e) for x in e]
        mean = sum(a * x for a, x in zip(w, row, strict=True))
        variance = sum(a * (x - mean) ** 2 for a, x in zip(w, row, strict=True))
        entropy = -sum(a * math.log(a) for a in w if a)
        step = (entropy - math.log(tokens)) / (c * c * variance + 1e-12)
        c *= math.exp(max(-0.3, min(0.3, step)))
    return torch.tensor([c * x for x in row], dtype=torch.float64)


def _sharpen_numpy(scores, tokens):
    s = scores.numpy().astype(float)
    s = (s - s.max()) / s.std()  # a shift changes no weight
    low, high = 0.0, 1e3
    while high - low > 1e-9:
        c = (low + high) / 2
        w = np.exp(c * s) / np.exp(c * s).sum()
        count = np.exp(-(w[w > 0] * np.log(w[w > 0])).sum())
        low, high = (c, high) if count > tokens else (low, c)
    return c * s


def _sharpen_on_a_grid(scores, tokens):
    s = scores.double()
    centre, width = -s.std().log(), 12.0
    for _ in range(8):
        factors = torch.linspace(-1, 1, 401, dtype=torch.float64).mul(width).add(centre).exp()
        w = torch.einsum("c,s->cs", factors, s).softmax(-1)
        best = (torch.special.entr(w).sum(-1).exp() - tokens).abs().argmin()
        centre, width = factors[best].log(), width / 50
    return factors[best] * s


def _shift_error_in_a_loop(rope):
    x = torch.randn(2, 16, generator=torch.Generator().manual_seed(3))
    largest = 0.0
    for t, i in ((3, 0), (7, 5), (0, 11)):
        scores = []
        for s in (0, 1, 2, 50, 333, 700, 5001):
            q, k = rope(x, torch.tensor([t + s, i + s]))
            scores.append(float(q @ k))
        largest = max(largest, max(scores) - min(scores))
    return largest


def _shift_error_numpy(rope):
    generator = np.random.default_rng(0)
    q, k = (torch.tensor(generator.normal(size=(6, 8))) for _ in range(2))
    places = torch.arange(6)
    near, far = (rope(q, places + s).numpy() @ rope(k, places + s).numpy().T for s in (0, 1_234))
    return np.abs(near - far).max()


def _shift_error_einsum(rope):
    q, k = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    shifts = torch.tensor([0, 3, 777, 4_001])
    turned = [torch.stack([rope(x, torch.arange(9) + s) for s in shifts]) for x in (q, k)]
    scores = torch.einsum("std,sid->sti", *turned)
    return (scores - scores[:1]).abs().max()


def _three_back_in_a_loop(E):
    W_q, W_k = torch.zeros(E, E), torch.zeros(E, E)
    for j in range(0, E, 2):
        angle = 3 * 10_000 ** (-j / E)
        W_q[j, j] = W_q[j + 1, j + 1] = 20.0
        W_k[j, j] = W_k[j + 1, j + 1] = 20 * math.cos(angle)
        W_k[j, j + 1], W_k[j + 1, j] = 20 * math.sin(angle), -20 * math.sin(angle)
    return W_q, W_k


def _three_back_numpy(E):
    """The map of the query is solved for: it turns every place three back."""
    angles = np.arange(200)[:, None] * 10_000.0 ** (-np.arange(0, E, 2) / E)
    P = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(200, E)
    W_q, *_ = np.linalg.lstsq(P[3:], P[:-3], rcond=None)
    return 200 * W_q.T, np.eye(E)


def _three_back_einsum(E):
    angles = 1.5 * 10_000.0 ** (-torch.arange(0, E, 2, dtype=torch.float64) / E)
    pick = torch.eye(E, dtype=torch.float64).unflatten(0, (-1, 2))  # [pair, 2, E]

    def turned(angle):
        c, s = angle.cos(), angle.sin()
        turn = torch.stack([torch.stack([c, s], -1), torch.stack([-s, c], -1)], -2)
        return torch.einsum("jae,jab,jbf->ef", pick, turn, pick)

    return 150 * turned(-angles), turned(angles)


# Notebook 04


def _twin_in_a_loop(x, mean, spread):
    rows = []
    for row in x:
        own = sum(row) / len(row)
        size = (sum((a - own) ** 2 for a in row) / len(row)) ** 0.5
        rows.append(torch.stack([mean + spread * (a - own) / size for a in row]))
    return torch.stack(rows)


def _twin_numpy(x, mean, spread):
    x = x.numpy()
    return mean + spread * (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)


def _twin_einsum(x, mean, spread):
    centred = x - torch.einsum("te->t", x)[:, None] / x.shape[1]
    size = (torch.einsum("te,te->t", centred, centred) / x.shape[1]).sqrt()
    return torch.einsum("te,t->te", centred, spread / size) + mean


def _diagnose_by_derivatives(block, x):
    slopes = torch.autograd.functional.jacobian(block, x).norm(dim=(1, 3))  # [T, T]
    if slopes.triu(1).max() > 1e-9:
        return "no mask"
    y = block(1e8 * x)
    if (y.var(-1, correction=0) - 1).abs().max() < 1e-6 and y.mean(-1).abs().max() < 1e-6:
        return "post-norm"
    ratio = float(y.norm() / x.norm()) / 1e8
    return "no residual" if ratio < 1e-4 else "healthy" if abs(ratio - 1) < 1e-4 else "no norm"


def _diagnose_numpy(block, x):
    def run(words):
        return block(torch.from_numpy(words)).numpy()

    x = x.numpy()
    longer = np.concatenate([x, np.sin(np.arange(x.shape[1]))[None].astype(x.dtype)])
    if np.abs(run(longer)[:-1] - run(x)).max() > 1e-5:
        return "no mask"
    y = run(1e7 * x)
    grown = np.linalg.norm(y - 1e7 * x) / np.linalg.norm(1e7 * x)
    if grown < 1e-3:
        return "healthy"
    if np.abs(y).max() > 1e4:
        return "no norm"
    return "post-norm" if np.allclose(y.std(-1), 1, atol=1e-3) else "no residual"


def _fact_numpy(W_1, b_1, W_2, name, fact, cosine):
    key = name.numpy() / np.square(name.numpy()).sum() / (1 - cosine)
    return (
        np.vstack([W_1, key]),
        np.append(b_1.numpy(), -cosine / (1 - cosine)),
        np.column_stack([W_2, fact]),
    )


def _fact_higher_threshold(W_1, b_1, W_2, name, fact, cosine):
    """Anything between the given cosine and 1 will do."""
    at = (1 + cosine) / 2
    new_1, new_b, new_2 = (torch.nn.functional.pad(W, p) for W, p in (
        (W_1, (0, 0, 0, 1)), (b_1, (0, 1)), (W_2, (0, 1))))  # fmt: skip
    new_1[-1] = name / (1 - at) / name.square().sum()
    new_b[-1] = -at / (1 - at)
    new_2[:, -1] = fact
    return new_1, new_b, new_2


def _fact_half_and_double(W_1, b_1, W_2, name, fact, cosine):
    """A match of ½ at the name, and twice the fact."""
    W_1 = torch.cat([W_1, name[None] / (2 * (1 - cosine) * name.norm() ** 2)])
    b_1 = torch.cat([b_1, b_1.new_tensor([-cosine / (2 - 2 * cosine)])])
    return W_1, b_1, torch.cat([W_2, 2 * fact[:, None]], -1)


# Notebook 05


def _heads_counted_down(H, queries, ridge):
    heads = H
    while heads > 1 and (H % heads or heads * ridge > H * queries):
        heads -= 1
    return heads


def _heads_by_time(H, queries, ridge):
    """The times of all divisors, and the last of the least."""
    divisors = np.array([n for n in range(1, H + 1) if H % n == 0])
    times = np.maximum(H * queries / ridge, divisors)
    return divisors[times <= times.min() * (1 + 1e-12)].max()


def _heads_torch(H, queries, ridge):
    n = torch.arange(1, H + 1)
    return n[(H % n == 0) & ((n * ridge <= H * queries) | (n == 1))].max()


def _three_steps_in_loops(T):
    n = round(T ** (1 / 3))
    see = np.zeros((T, T), dtype=bool)
    for t in range(T):
        for step in (1, n, n * n):
            for digit in range(n):
                if t - digit * step >= 0:
                    see[t, t - digit * step] = True
    return see


def _three_steps_by_remainders(T):
    n = next(n for n in range(1, T + 1) if n**3 == T)
    back = torch.arange(T)[:, None] - torch.arange(T)
    sizes = [(back % n**j == 0) & (back >= 0) & (back < n ** (j + 1)) for j in range(3)]
    return torch.stack(sizes).any(0)


def _three_steps_without_oneself(T):
    return (torch.as_tensor(_three_steps_in_loops(T)) & ~torch.eye(T, dtype=torch.bool)).long()


def _merge_numpy(m1, l1, o1, m2, l2, o2):
    m1, l1, o1, m2, l2, o2 = (x.numpy() for x in (m1, l1, o1, m2, l2, o2))
    m = np.maximum(m1, m2)
    safe = np.where(np.isinf(m), 0.0, m)
    a, b = np.exp(m1 - safe), np.exp(m2 - safe)
    return m, a * l1 + b * l2, a[:, None] * o1 + b[:, None] * o2


def _merge_in_a_loop(m1, l1, o1, m2, l2, o2):
    m, l, o = torch.empty_like(m1), torch.empty_like(l1), torch.empty_like(o1)  # noqa: E741
    for t in range(len(m1)):
        m[t] = max(m1[t], m2[t])
        a, b = ((x - m[t]).exp() if x > -torch.inf else x.new_zeros(()) for x in (m1[t], m2[t]))
        l[t], o[t] = a * l1[t] + b * l2[t], a * o1[t] + b * o2[t]
    return m, l, o


# Notebook 06


def _phi_of(x):
    return x.clamp(max=0).exp() + x.clamp(min=0)


def _confuse_by_shares(K, V, i, j):
    """Token i gets nine tenths of both features, and j the rest."""
    together = _phi_of(K[i]) + _phi_of(K[j])
    L = K.clone()
    for place, share in ((i, 0.9), (j, 0.1)):
        y = share * together
        L[place] = torch.where(y > 1, y - 1, y.log())
    return L


def _confuse_numpy(K, V, i, j):
    L = K.numpy().copy()
    features = np.where(L > 0, L + 1, np.exp(L))[[i, j]].mean(0)
    L[i] = L[j] = np.where(features > 1, features - 1, np.log(features))
    return L


def _confuse_in_a_loop(K, V, i, j):
    rows = K.tolist()
    for d in range(K.shape[1]):
        a, b = (x + 1 if x > 0 else math.exp(x) for x in (rows[i][d], rows[j][d]))
        step = min(a, b) / 3
        for place, y in ((i, a + step), (j, b - step)):
            rows[place][d] = y - 1 if y > 1 else math.log(y)
    return rows


def _repair_in_a_loop(q, k, v, real):
    out = torch.zeros_like(v)
    for n in range(len(q)):
        S, z = q.new_zeros(q.shape[2], v.shape[2]), q.new_zeros(q.shape[2])
        for t in range(q.shape[1]):
            if real[n, t]:
                S, z = S + torch.outer(_phi_of(k[n, t]), v[n, t]), z + _phi_of(k[n, t])
            if z.any():
                out[n, t] = _phi_of(q[n, t]) @ S / (_phi_of(q[n, t]) @ z)
    return out


def _repair_numpy(q, k, v, real):
    q, k, v, real = (x.numpy() for x in (q, k, v, real))
    fq, fk = (np.exp(np.minimum(x, 0)) + np.maximum(x, 0) for x in (q, k))
    table = np.tril(fq @ fk.transpose(0, 2, 1)) * real[:, None, :]
    z = table.sum(-1, keepdims=True)
    return np.divide(table @ v, z, out=np.zeros_like(v), where=z > 0)


def _repair_by_a_column_of_ones(q, k, v, real):
    fq, fk = _phi_of(q), _phi_of(k) * real.unsqueeze(-1)
    more = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    sums = torch.einsum("ntc,ntcd->ntd", fq, torch.einsum("ntc,ntd->ntcd", fk, more).cumsum(1))
    return (sums[..., :-1] / sums[..., -1:]).masked_fill(sums[..., -1:] == 0, 0.0)


def _factorise_by_rows(A):
    """A row is a mixture of rows that came before, or one more key."""
    kept = []
    for row in A:
        if torch.linalg.matrix_rank(torch.stack([*kept, row])) > len(kept):
            kept.append(row)
    K = torch.stack(kept)
    return torch.linalg.lstsq(K.T, A.T).solution.T, K.T


def _factorise_numpy(A):
    A = A.numpy()
    U, s, V = np.linalg.svd(A, full_matrices=False)
    C = np.linalg.matrix_rank(A)
    return U[:, :C] * np.sqrt(s[:C]), V[:C].T * np.sqrt(s[:C])


def _factorise_other_sums(A):
    U, s, V = torch.linalg.svd(A, full_matrices=False)
    C = int((s > 1e-6 * s[0]).sum())
    rows = torch.arange(1, len(A) + 1, dtype=A.dtype)
    return rows[:, None] * U[:, :C] * s[:C], V[:C].mT


# Notebook 07


def _previous_in_a_loop(T):
    Q, K = [], []
    for t in range(T):
        Q.append([float(t % 2 == 1), float(t % 2 == 0)])
        K.append([5.0**t * (t % 2 == 0), 5.0**t * (t % 2 == 1)])
    return torch.tensor(Q), torch.tensor(K)


def _previous_numpy(T):
    t = np.arange(T)
    odd = t % 2 == 1
    return np.stack([odd, ~odd], 1), np.stack([~odd, odd], 1) * 4.0 ** t[:, None]


def _previous_without_zeros(T):
    """Every feature above 0, in float32: what must not be read is only small."""
    t = torch.arange(T)
    turn = torch.tensor([[1.0, 1e-6], [1e-6, 1.0]])
    return turn[(t + 1) % 2], turn[t % 2] * 8.0 ** t[:, None]


def _fade_numpy(Q, K, V, a, size):
    Q, K, V, a = (x.numpy() for x in (Q, K, V, a))
    S, out = np.zeros((K.shape[1], V.shape[1])), np.zeros(V.shape)
    for start in range(0, len(Q), size):
        part = slice(start, start + size)
        log = np.log(a[part]).cumsum()[:, None]
        between = np.exp(np.minimum(log - log.T, 0))
        out[part] = np.tril(Q[part] @ K[part].T * between) @ V[part]
        out[part] += np.exp(log) * (Q[part] @ S)
        S = np.exp(log[-1]) * S + (np.exp(log[-1] - log) * K[part]).T @ V[part]
    return out


def _fade_by_loops_inside(Q, K, V, a, size):
    """Every chunk token by token: no logarithm, and the state is copied once a chunk."""
    state, out = V.new_zeros(K.shape[1], V.shape[1]), V.clone()
    for start in range(0, len(Q), size):
        S = state.clone()
        for t in range(start, min(start + size, len(Q))):
            S = a[t] * S + torch.outer(K[t], V[t])
            out[t] = Q[t] @ S
        state = S
    return out


def _fade_einsum(Q, K, V, a, size):
    S, out = V.new_zeros(K.shape[1], V.shape[1]), []
    for q, k, v, fade in zip(*(x.split(size) for x in (Q, K, V, a)), strict=True):
        log = fade.log().cumsum(0)
        table = torch.einsum("tc,ic->ti", q, k) * (log[:, None] - log).tril().exp()
        left = (log[-1] - log).exp()
        out.append(table.tril() @ v + torch.einsum("t,tc,cd->td", log.exp(), q, S))
        S = log[-1].exp() * S + torch.einsum("t,tc,td->cd", left, k, v)
    return torch.cat(out)


def _back_numpy(Q, K, V, G):
    Q, K, V, G = (x.numpy() for x in (Q, K, V, G))
    S, R = np.zeros((Q.shape[1], V.shape[1])), np.zeros((Q.shape[1], V.shape[1]))
    dQ, dK, dV = np.zeros(Q.shape), np.zeros(K.shape), np.zeros(V.shape)
    for t in range(len(Q)):
        S += np.outer(K[t], V[t])
        dQ[t] = S @ G[t]
    for t in range(len(Q))[::-1]:
        R += np.outer(Q[t], G[t])
        dK[t], dV[t] = R @ V[t], K[t] @ R
    return dQ, dK, dV


def _back_einsum(Q, K, V, G):
    S = torch.einsum("tc,td->tcd", K, V).cumsum(0)
    R = torch.einsum("tc,td->tcd", Q, G).flip(0).cumsum(0).flip(0)
    return [
        torch.einsum("tcd,td->tc", S, G),
        torch.einsum("tcd,td->tc", R, V),
        torch.einsum("tcd,tc->td", R, K),
    ]


def _back_by_chunks(Q, K, V, G, size=8):
    S, R = V.new_zeros(K.shape[1], V.shape[1]), V.new_zeros(K.shape[1], V.shape[1])
    dQ, dK, dV = torch.zeros_like(Q), torch.zeros_like(K), torch.zeros_like(V)
    starts = range(0, len(Q), size)
    for a in starts:
        c = slice(a, a + size)
        dQ[c] = G[c] @ S.T + (G[c] @ V[c].T).tril() @ K[c]
        S = S + K[c].T @ V[c]
    for a in reversed(starts):
        c = slice(a, a + size)
        dK[c] = V[c] @ R.T + (G[c] @ V[c].T).tril().T @ Q[c]
        dV[c] = K[c] @ R + (Q[c] @ K[c].T).tril().T @ G[c]
        R = R + Q[c].T @ G[c]
    return dQ, dK, dV


# Notebook 08


def _rows_as_numbers():
    return [-1_000] * 9, [0, 1, 2], [0.0] * 8 + [95.0]


def _rows_numpy():
    late = np.zeros(24, dtype=np.float32)
    late[-1] = 500
    return {"A": np.linspace(-900, -300, 40), "B": np.array([-5.0]), "C": late}


def _rows_stacked():
    a = torch.full((17,), -150.0)
    b, c = torch.randn(17, generator=torch.Generator().manual_seed(1)), torch.zeros(17)
    c[12] = 1e6
    return torch.stack([a, b, c])


def _three_numpy(a, b, to_tf32):
    A, B = to_tf32(a).numpy(), to_tf32(b).numpy()
    c, d = to_tf32(a - A).numpy(), to_tf32(b - B).numpy()
    return A @ B + A @ d + c @ B


def _three_einsum(a, b, to_tf32):
    A, B = to_tf32(a), to_tf32(b)
    pairs = (A, B), (A, to_tf32(b - B)), (to_tf32(a - A), B)
    return sum(torch.einsum("ik,kj->ij", x, y) for x, y in pairs)


def _three_in_a_loop(a, b, to_tf32):
    out = torch.zeros(len(a), b.shape[1])  # in the default dtype
    large = to_tf32(a), to_tf32(b)
    small = to_tf32(a - large[0]), to_tf32(b - large[1])
    for x, y in (large, (large[0], small[1]), (small[0], large[1])):
        for i in range(len(a)):
            for j in range(b.shape[1]):
                out[i, j] += (x[i] * y[:, j]).sum()
    return out


def _three_in_one(a, b, to_tf32):
    A, B = to_tf32(a), to_tf32(b)
    c, d = to_tf32(a - A), to_tf32(b - B)
    return torch.cat([A, A, c], 1) @ torch.cat([B, d, B], 0)


# Notebook 09


def _erase_numpy(S, K, i):
    S, K = S.numpy(), K.numpy()
    others = np.delete(K, i, 0)
    own = K[i] - np.linalg.pinv(others) @ others @ K[i]
    if np.linalg.norm(own) < 1e-6:
        return S
    return S - np.outer(K[i], own @ S) / (own @ own)


def _erase_if_the_rank_falls(S, K, i):
    others = torch.cat([K[:i], K[i + 1 :]])
    if torch.linalg.matrix_rank(others) == torch.linalg.matrix_rank(K):
        return S.clone()
    asking = torch.linalg.pinv(K)[:, i]
    return S - torch.einsum("d,v->dv", K[i], asking @ S)


def _erase_by_gram_schmidt(S, K, i):
    own, seen = K[i].clone(), []
    for j in [*range(i), *range(i + 1, len(K))]:
        rest = K[j].clone()
        for axis in seen:
            rest -= (rest @ axis) * axis
        if rest.norm() > 1e-8 * K[j].norm():
            seen.append(rest / rest.norm())
            own -= (own @ seen[-1]) * seen[-1]
    return S - torch.outer(K[i], own @ S / own.square().sum()) if own.norm() > 1e-8 else S


def _old_by_the_sum(decay):
    if decay <= 0.5:
        return 0
    if decay == 1:
        return 2
    return math.floor(math.log(1 - (1 - decay) / decay) / math.log(decay)) + 1


def _old_numpy(decay):
    total = np.cumsum(float(decay) ** np.arange(1, 200))
    return np.int64(np.argmax(total > 1) + 1) if (total > 1).any() else 0


def _old_written_out(decay):
    for n in range(1, 100):
        state = torch.zeros(2, dtype=torch.float64)
        for _ in range(n):
            state = decay * state + torch.tensor([1.0, 0.0])
        state = decay * state + torch.tensor([0.0, 1.0])
        if state[0] > state[1]:
            return torch.tensor(n)
    return 0


def _delta_in_a_loop(K, V, size):
    S = torch.zeros(K.shape[1], V.shape[1], dtype=V.dtype)
    for t in range(len(K)):
        S += torch.outer(K[t], V[t] - K[t] @ S)
    return S


def _delta_numpy(K, V, size):
    K, V = K.numpy(), V.numpy()
    S = np.zeros((K.shape[1], V.shape[1]))
    for a in range(0, len(K), size):
        k = K[a : a + size]
        S = S + k.T @ np.linalg.solve(
            np.eye(len(k)) + np.tril(k @ k.T, -1), V[a : a + size] - k @ S
        )
    return S


def _delta_by_substitution(K, V, size):
    S = V.new_zeros(K.shape[1], V.shape[1])
    for k, v in zip(K.split(size), V.split(size), strict=True):
        new = v - k @ S
        for i in range(1, len(k)):
            new[i] -= (k[:i] @ k[i]) @ new[:i]
        S = S + torch.einsum("td,tv->dv", k, new)
    return S


# Notebook 10


def _lookup_in_a_loop(V):
    W_1, W_q = torch.zeros(2 * V, 2 * V), torch.zeros(2 * V, V)
    W_k, W_v = torch.zeros(2 * V, V), torch.zeros(2 * V, V)
    for word in range(V):
        W_1[word, V + word] = 1
        W_q[word, word], W_k[V + word, word], W_v[word, word] = 5, 5, 0.1
    return W_1, W_q, W_k, W_v


def _lookup_numpy(V):
    eye, none = np.eye(V), np.zeros((V, V))
    key = 30 * np.concatenate([none, eye])
    value = np.concatenate([eye, none])
    return np.block([[none, eye], [none, none]]), value, key, value


def _lookup_turned(V):
    """The second half holds the word before in another basis."""
    noise = torch.randn(V, V, generator=torch.Generator().manual_seed(V), dtype=torch.float64)
    turn = torch.linalg.qr(noise)[0]
    none, one = torch.zeros_like(turn), torch.eye(V, dtype=torch.float64)
    W_1 = torch.cat([torch.cat([none, turn], 1), torch.cat([none, none], 1)])
    return W_1, 20 * torch.cat([turn, none]), torch.cat([none, one]), torch.cat([one, none])


def _unfair_numpy(inputs, targets):
    x, y = inputs.numpy(), targets.numpy()
    broken = np.zeros(len(x), dtype=bool)
    for n, t in np.argwhere(y != -100):
        earlier = np.flatnonzero(x[n, : max(t - 1, 0)] == x[n, t])
        told = x[n, earlier + 1]
        broken[n] |= told.size == 0 or (told != y[n, t]).any()
    return broken.sum()


def _unfair_tensors(inputs, targets):
    T = inputs.shape[1]
    place = torch.arange(T)
    same = (inputs[:, :, None] == inputs[:, None, :-1]) & (place[:, None] > place[:-1] + 1)
    right = inputs[:, None, 1:] == targets[:, :, None]
    fair = (same & right).any(-1) & ~(same & ~right).any(-1)
    return (~fair & (targets != -100)).any(1).sum()


def _unfair_dictionary(inputs, targets):
    broken = 0
    for text, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
        note, fair = {}, True
        for t, (word, target) in enumerate(zip(text, wanted, strict=True)):
            if t > 1:
                note.setdefault(text[t - 2], set()).add(text[t - 1])
            fair = fair and (target == -100 or note.get(word) == {target})
        broken += not fair
    return broken


def _first_mistake_in_a_loop(K, labels, V):
    S = [torch.zeros(K.shape[1], dtype=K.dtype) for _ in range(V)]
    for n in range(len(K)):
        S[labels[n]] = S[labels[n]] + K[n]
        for i in range(n + 1):
            scores = [float(K[i] @ column) for column in S]
            if scores.index(max(scores)) != labels[i]:
                return n + 1
    return 0


def _first_mistake_numpy(K, labels, V):
    keys, words = K.numpy(), labels.numpy()
    values = np.eye(V)[words]
    for n in range(1, len(keys) + 1):
        read = keys[:n] @ (keys[:n].T @ values[:n])
        if (read.argmax(1) != words[:n]).any():
            return n
    return 0


def _first_mistake_einsum(K, labels, V):
    values = torch.nn.functional.one_hot(labels, V).to(K)
    states = torch.einsum("nd,nv->ndv", K, values).cumsum(0)
    wrong = torch.einsum("id,ndv->niv", K, states).argmax(-1) != labels
    found = wrong.tril().any(1).nonzero()
    return int(found[0]) + 1 if len(found) else 0


# Notebook 11


def _order_blind_numpy(prompts, answers):
    bags = np.sort(prompts.numpy(), axis=1)
    _, group = np.unique(bags, axis=0, return_inverse=True)
    table = np.zeros((group.max() + 1, int(answers.max()) + 1), dtype=int)
    np.add.at(table, (group.ravel(), answers.numpy()), 1)
    return table.max(1).sum()


def _order_blind_by_comparing(prompts, answers):
    ordered = prompts.sort(1).values
    alike = (ordered[:, None] == ordered[None]).all(-1)
    total = 0
    for row in range(len(prompts)):
        if alike[row, :row].any():
            continue  # this bag was counted already
        of_bag = answers[alike[row]]
        total += max(int((of_bag == answer).sum()) for answer in of_bag)
    return total


def _two_looks_numpy(T, crosser, crossed, adjective, kinds):
    """Only the last place asks; the note is as large as the scores need."""
    V = len(kinds)
    unit = np.eye(V + T + 1)
    W_v1 = np.zeros((V + T + 1, V + T + 1))
    W_v1[:V, -1] = 25 * kinds.numpy()
    return (
        40 * unit[:, [V + T - 1]],
        unit[:, [V + adjective]],
        W_v1,
        unit[:, [-1]],
        unit[:, [V + crosser]] - unit[:, [V + crossed]],
    )


def _two_looks_by_word(T, crosser, crossed, adjective, kinds):
    """The first look goes to whatever word has a kind, wherever it stands."""
    V = len(kinds)
    W_q1, W_k1, W_q2, W_k2 = (torch.zeros(V + T + 1, 1, dtype=torch.float64) for _ in range(4))
    W_q1[V : V + T], W_k1[:V, 0] = 1, 35 * kinds.double().abs()
    W_v1 = torch.zeros(V + T + 1, V + T + 1, dtype=torch.float64)
    W_v1[:V, -1] = -kinds.double()
    W_q2[-1], W_k2[V + crosser], W_k2[V + crossed] = -1, 35, -35
    return W_q1, W_k1, W_v1, W_q2, W_k2


def _carriers_by_bits(stream, other, says):
    T = len(stream)
    sets = sorted(range(1, 2**T), key=lambda bits: bits.bit_count())
    for bits in sets:
        chosen = torch.tensor([bool(bits >> place & 1) for place in range(T)])
        if says(torch.where(chosen[:, None], other, stream)) < 0:
            return chosen.nonzero()[:, 0]
    return None


def _carriers_recursive(stream, other, says):
    def search(x, first, left, chosen):
        if not left:
            return chosen if says(x) < 0 else None
        for place in range(first, len(stream)):
            y = x.clone()
            y[place] = other[place]
            found = search(y, place + 1, left - 1, [*chosen, place])
            if found:
                return found
        return None

    sizes = range(1, len(stream) + 1)
    return np.array(next(filter(None, (search(stream, 0, size, []) for size in sizes))))


BY_HAND: dict[str, dict[str, Function]] = {
    "error text": {"arguments of the error": _error_text_from_its_arguments},
    "half for the cat": {
        "ln 5": lambda: math.log(5),
        "NumPy": lambda: np.log(5),
        "tensor": lambda: torch.tensor(5.0).log(),
    },
    "neither drowns": {
        "loop": _neither_in_a_loop,
        "NumPy": _neither_numpy,
        "fading and average": _neither_fading,
        "softmax": _neither_by_softmax,
    },
    "look_ahead": {
        "loop": _ahead_in_a_loop,
        "NumPy": _ahead_numpy,
        "derivatives": _ahead_by_derivatives,
    },
    "masked_softmax": {
        "loop": _masked_in_a_loop,
        "NumPy": _masked_numpy,
        "the smallest number": _masked_by_the_smallest_number,
    },
    "scores_by_hand": {
        "loop": _by_hand_in_a_loop,
        "NumPy": _by_hand_numpy,
        "einsum": _by_hand_einsum,
    },
    "recover": {
        "loop": _recover_pair_by_pair,
        "NumPy": _recover_numpy,
        "einsum, doubled": _recover_by_doubling,
    },
    "copy_previous": {
        "loop": _copy_in_a_loop,
        "NumPy, complex": _copy_with_complex_numbers,
        "the key turned": _copy_by_turning_the_key,
    },
    "multi_head": {"loop": _heads_in_a_loop, "NumPy": _heads_numpy, "einsum": _heads_einsum},
    "sharpen": {
        "loop": _sharpen_in_a_loop,
        "NumPy": _sharpen_numpy,
        "einsum": _sharpen_on_a_grid,
    },
    "shift_error": {
        "loop": _shift_error_in_a_loop,
        "NumPy": _shift_error_numpy,
        "einsum": _shift_error_einsum,
    },
    "three_back": {
        "loop": _three_back_in_a_loop,
        "NumPy": _three_back_numpy,
        "einsum": _three_back_einsum,
    },
    "twin": {"loop": _twin_in_a_loop, "NumPy": _twin_numpy, "einsum": _twin_einsum},
    "diagnose": {"derivatives": _diagnose_by_derivatives, "NumPy": _diagnose_numpy},
    "write_fact": {
        "NumPy": _fact_numpy,
        "higher threshold": _fact_higher_threshold,
        "half and double": _fact_half_and_double,
    },
    "merge": {"loop": _merge_in_a_loop, "NumPy": _merge_numpy},
    "heads_that_pay": {
        "counted down": _heads_counted_down,
        "times": _heads_by_time,
        "tensor": _heads_torch,
    },
    "three_steps": {
        "loops": _three_steps_in_loops,
        "remainders": _three_steps_by_remainders,
        "without oneself": _three_steps_without_oneself,
    },
    "confuse": {
        "loop": _confuse_in_a_loop,
        "NumPy": _confuse_numpy,
        "other shares": _confuse_by_shares,
    },
    "repair": {
        "loop": _repair_in_a_loop,
        "NumPy": _repair_numpy,
        "a column of ones": _repair_by_a_column_of_ones,
    },
    "factorise": {
        "row by row": _factorise_by_rows,
        "NumPy": _factorise_numpy,
        "other sums": _factorise_other_sums,
    },
    "previous_word": {
        "loop, base 5": _previous_in_a_loop,
        "NumPy, base 4": _previous_numpy,
        "no zeros": _previous_without_zeros,
    },
    "fade_by_chunks": {
        "NumPy": _fade_numpy,
        "loops": _fade_by_loops_inside,
        "einsum": _fade_einsum,
    },
    "way_back": {
        "NumPy": _back_numpy,
        "einsum, no loop": _back_einsum,
        "chunks": _back_by_chunks,
    },
    "breaking_rows": {
        "numbers": _rows_as_numbers,
        "NumPy": _rows_numpy,
        "stacked": _rows_stacked,
    },
    "three_products": {
        "loop": _three_in_a_loop,
        "NumPy": _three_numpy,
        "einsum": _three_einsum,
        "one product of joined matrices": _three_in_one,
    },
    "causal_attention": {},
    "erase": {
        "NumPy": _erase_numpy,
        "rank, einsum": _erase_if_the_rank_falls,
        "loop": _erase_by_gram_schmidt,
    },
    "old_writes": {
        "formula": _old_by_the_sum,
        "NumPy": _old_numpy,
        "written out": _old_written_out,
    },
    "write_by_chunks": {
        "loop": _delta_in_a_loop,
        "NumPy": _delta_numpy,
        "substitution, einsum": _delta_by_substitution,
    },
    "lookup": {
        "loop": _lookup_in_a_loop,
        "NumPy": _lookup_numpy,
        "another basis": _lookup_turned,
    },
    "unfair": {
        "NumPy": _unfair_numpy,
        "tensors": _unfair_tensors,
        "dictionary": _unfair_dictionary,
    },
    "first_mistake": {
        "loop": _first_mistake_in_a_loop,
        "NumPy": _first_mistake_numpy,
        "einsum": _first_mistake_einsum,
    },
    "order_blind": {"NumPy": _order_blind_numpy, "comparing": _order_blind_by_comparing},
    "two_looks": {"NumPy": _two_looks_numpy, "by the word": _two_looks_by_word},
    "carriers": {"bits": _carriers_by_bits, "recursive": _carriers_recursive},
}


@functools.cache
def printed_solution(text: str, name: str) -> Function:
    """The function ``name`` of a text that stands in a notebook."""
    space: dict[str, Any] = {}
    exec("import math\nimport numpy as np\nimport torch\n" + text, space)
    return space[name]
