"""Wrong answers to the exercises of notebook 07. Every one must fail its check."""

import numpy as np
import torch


def _step(S, z, q, k, v, *, first="write", divide=True, write_z=True):
    new, total = S + torch.outer(k, v), z + k if write_z else z
    read, norm = (new, total) if first == "write" else (S, z)
    o = q @ read
    return (o / (q @ norm) if divide else o), new, total


def _step_in_place(S, z, q, k, v):
    S += torch.outer(k, v)
    z += k
    return (q @ S) / (q @ z), S, z


def _step_old_z(S, z, q, k, v):
    _, new, total = _step(S, z, q, k, v)
    return (q @ new) / (q @ z).clamp_min(1e-12), new, total


def _step_elementwise_z(S, z, q, k, v):
    new, total = S + torch.outer(k, v), z + k
    return ((q / total) @ new), new, total


def _ones(V):
    return torch.cat([V, V.new_ones(len(V), 1)], 1)


def _chunk(
    Q, K, V, size, *, drop_tail=False, mask=True, early=False, carry_z=True, replace=False, skip=0
):
    V1 = _ones(V)
    S, out = V.new_zeros(K.shape[1], V1.shape[1]), [V1[:0]]
    last = len(Q) - len(Q) % size if drop_tail else len(Q)
    for a in range(0, last, size):
        q, k, v = Q[a : a + size], K[a : a + size], V1[a : a + size]
        new = k.T @ v if replace else S + k.T @ v
        inside = q @ k.T
        out.append(q @ (new if early else S) + (inside.tril(-skip) if mask else inside) @ v)
        S = new
        if not carry_z:
            S = torch.cat([S[:, :-1], torch.zeros_like(S[:, -1:])], 1)
    sums = torch.cat(out)
    done = sums[:, :-1] / sums[:, -1:]
    return torch.cat([done, torch.zeros_like(V[last:])]) if drop_tail else done


def _chunk_bare(Q, K, V, size):
    weights = (Q @ K.T).tril()
    return weights @ V


def _chunk_table(Q, K, V, size):
    weights = (Q @ K.T).tril()
    return weights @ V / weights.sum(1, keepdim=True)


def _chunk_table_in_numpy(Q, K, V, size):
    weights = np.tril(Q.numpy() @ K.numpy().T)
    return weights @ V.numpy() / weights.sum(1, keepdims=True)


def _chunk_no_empty(Q, K, V, size):
    V1 = _ones(V)
    S, out = V.new_zeros(K.shape[1], V1.shape[1]), []
    for a in range(0, len(Q), size):
        q, k, v = Q[a : a + size], K[a : a + size], V1[a : a + size]
        out.append(q @ S + (q @ k.T).tril() @ v)
        S = S + k.T @ v
    sums = torch.cat(out)
    return sums[:, :-1] / sums[:, -1:]


def _past(K, V, *, matrix=None, rank=None, columns=None, size=1.0):
    U, s, _ = torch.linalg.svd(K if matrix is None else matrix)
    rank = int((s > 1e-9 * s.max()).sum()) if rank is None else rank
    change = size * U[:, rank:].sum(1, keepdim=True).expand_as(V).clone()
    if columns is not None:
        change[:, columns:] = 0
    return V + change


def _wrong_side(K, V):
    _, s, Vh = torch.linalg.svd(K)
    hidden = Vh[len(s) :].sum(0)
    change = V.new_zeros(len(V))
    change[: min(len(V), len(hidden))] = hidden[: len(V)]
    return V + change[:, None]


def _projected(K, V):
    return K @ torch.linalg.lstsq(K, V).solution


MUTANTS = {
    "step": {
        "constant": lambda S, z, q, k, v: (v * 0, S * 0, z * 0),
        "copied input": lambda S, z, q, k, v: (v.clone(), S.clone(), z.clone()),
        "shape only": lambda S, z, q, k, v: tuple(map(torch.ones_like, (v, S, z))),
        "reads before it writes": lambda *a: _step(*a, first="read"),
        "not divided": lambda *a: _step(*a, divide=False),
        "z not written": lambda *a: _step(*a, write_z=False),
        "in place": _step_in_place,
        "divided by the old z": _step_old_z,
        "z entry by entry": _step_elementwise_z,
        "output alone": lambda *a: _step(*a)[0],
        "state not handed on": lambda S, z, q, k, v: (_step(S, z, q, k, v)[0], S, z),
        "key and query exchanged": lambda S, z, q, k, v: _step(S, z, k, q, v),
    },
    "chunk_form": {
        "constant": lambda Q, K, V, size: V * 0,
        "copied input": lambda Q, K, V, size: V.clone(),
        "shape only": lambda Q, K, V, size: torch.ones_like(V),
        "not divided": _chunk_bare,
        "the whole table": _chunk_table,
        "last chunk dropped": lambda *a: _chunk(*a, drop_tail=True),
        "future inside a chunk": lambda *a: _chunk(*a, mask=False),
        "state updated too early": lambda *a: _chunk(*a, early=True),
        "z not carried": lambda *a: _chunk(*a, carry_z=False),
        "only the last chunk carried": lambda *a: _chunk(*a, replace=True),
        "itself hidden": lambda *a: _chunk(*a, skip=1),
        "no token: stops": _chunk_no_empty,
        "table in NumPy": _chunk_table_in_numpy,
        "token by token": lambda Q, K, V, size: _chunk(Q, K, V, 1),
        "always chunks of 8": lambda Q, K, V, size: _chunk(Q, K, V, 8),
        "in float16": lambda Q, K, V, size: _chunk(Q, K, V, size).half(),
        "off by one": lambda Q, K, V, size: _chunk(Q, K, V, size).roll(1, 0),
    },
    "another_past": {
        "constant": lambda K, V: torch.zeros_like(V),
        "copied input": lambda K, V: V.clone(),
        "shape only": lambda K, V: torch.ones_like(V),
        "random": lambda K, V: V + torch.linspace(-3, 3, len(V)).to(V)[:, None],
        "reversed": lambda K, V: V.flip(0),
        "null space of K": _wrong_side,
        "what the state sees": _projected,
        "one column only": lambda K, V: _past(K, V, columns=1),
        "C instead of the rank": lambda K, V: _past(K, V, rank=K.shape[1]),
        "one direction too many": lambda K, V: _past(K, V, rank=max(0, min(K.shape) - 1)),
        "too small": lambda K, V: _past(K, V, size=1e-3),
        "last token changed": lambda K, V: torch.cat([V[:-1], V[-1:] + 2]),
    },
}
