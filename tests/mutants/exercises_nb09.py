"""Wrong answers to the exercises of notebook 09. Every one must fail its check."""

import torch


def _read(S, K, i):
    return S - torch.outer(K[i], K[i] @ S / (K[i] @ K[i]))


def _read_undivided(S, K, i):
    return S - torch.outer(K[i], K[i] @ S)


def _inverse(S, K, i):
    return S - torch.outer(K[i], torch.linalg.pinv(K)[:, i] @ S)


def _own(K, i):
    others = torch.cat([K[:i], K[i + 1 :]])
    return K[i] - torch.linalg.pinv(others) @ (others @ K[i])


def _no_question(S, K, i):
    own = _own(K, i)
    return S - torch.outer(K[i], own @ S / (own @ own))


def _erase(S, K, i, *, free=None, key=None, divide=True, threshold=1e-6):
    own = _own(K, i)
    free = bool(own.norm() > threshold) if free is None else free(K)
    value = own @ S / (own @ own) if divide else own @ S
    return S - torch.outer(K[i] if key is None else key(K, i, own), value) if free else S


def _all_free(K):
    return int(torch.linalg.matrix_rank(K)) == len(K)


def _few(K):
    return len(K) <= K.shape[1]


def _in_place(S, K, i):
    own = _own(K, i)
    if own.norm() > 1e-6:
        S -= torch.outer(K[i], own @ S / (own @ own))
    return S


def _zero_if_stuck(S, K, i):
    return _erase(S, K, i) if _own(K, i).norm() > 1e-6 else torch.zeros_like(S)


def _count(decay, *, first=1, strict=True, most=1_000):
    weight = 0.0
    for n in range(1, most):
        weight += decay ** (n - 1 + first)
        if weight > 1 or (not strict and weight >= 1):
            return n
    return 0


def _chunks(K, V, size, *, system=None, drop=False, first=False, read=True):
    S = V.new_zeros(K.shape[1], V.shape[1])
    for k, v in zip(K.split(size), V.split(size), strict=True):
        if drop and len(k) < size:
            break
        G = k @ k.T
        rest = v - k @ S if read else v
        if system is not None:
            rest = torch.linalg.solve(system(G, torch.eye(len(G), dtype=G.dtype)), rest)
        S = k.T @ rest if first else S + k.T @ rest
    return S


def _lower(G, one):
    return one + G.tril(-1)


def _loop(K, V, size, *, beta=1.0, flip=False):
    S = V.new_zeros(K.shape[1], V.shape[1])
    pairs = list(zip(K, V, strict=True))
    for k, v in reversed(pairs) if flip else pairs:
        S = S + beta * torch.outer(k, v - k @ S)
    return S


MUTANTS = {
    "erase": {
        "constant": lambda S, K, i: torch.zeros_like(S),
        "copied input": lambda S, K, i: S.clone(),
        "shape only": lambda S, K, i: torch.ones_like(S),
        "what the key reads": _read,
        "what the key reads, undivided": _read_undivided,
        "by the inverse, always": _inverse,
        "never asks whether": _no_question,
        "only if all are independent": lambda *a: _erase(*a, free=_all_free),
        "only if N ≤ D": lambda *a: _erase(*a, free=_few),
        "own part of the key": lambda *a: _erase(*a, key=lambda K, i, own: own),
        "not divided": lambda *a: _erase(*a, divide=False),
        "the pair before": lambda S, K, i: _erase(S, K, i - 1),
        "in place": _in_place,
        "zeros if impossible": _zero_if_stuck,
        "strict threshold": lambda *a: _erase(*a, threshold=1e6),
    },
    "old_writes": {
        "constant": lambda decay: 2,
        "never": lambda decay: 0,
        "new write does not fade": lambda decay: _count(decay, first=0),
        "as much is enough": lambda decay: _count(decay, strict=False),
        "fades twice": lambda decay: _count(decay, first=2),
        "three writes at most": lambda decay: _count(decay, most=4),
        "counts the new one": lambda decay: _count(decay) + 1,
        "first power above one half": lambda decay: int(1 / (1 - min(decay, 0.99))),
        "no limit": lambda decay: _count(max(decay, 0.51)),
        "a fraction": lambda decay: _count(decay) + 0.5,
        "minus one if impossible": lambda decay: _count(decay) or -1,
    },
    "write_by_chunks": {
        "constant": lambda K, V, size: torch.zeros(K.shape[1], V.shape[1], dtype=V.dtype),
        "copied input": lambda K, V, size: V.clone(),
        "shape only": lambda K, V, size: torch.ones(K.shape[1], V.shape[1], dtype=V.dtype),
        "planted": _chunks,
        "adds": lambda K, V, size: K.T @ V,
        "with the diagonal": lambda *a: _chunks(*a, system=lambda G, one: one + G.tril()),
        "the upper triangle": lambda *a: _chunks(*a, system=lambda G, one: one + G.triu(1)),
        "the whole table": lambda *a: _chunks(*a, system=lambda G, one: one + G),
        "minus": lambda *a: _chunks(*a, system=lambda G, one: one - G.tril(-1)),
        "last chunk dropped": lambda *a: _chunks(*a, system=_lower, drop=True),
        "only the last chunk": lambda *a: _chunks(*a, system=_lower, first=True),
        "state not read": lambda *a: _chunks(*a, system=_lower, read=False),
        "one step of the inverse": lambda *a: _chunks(
            *a, system=lambda G, one: torch.linalg.inv(one - G.tril(-1))
        ),
        "half a step": lambda *a: _loop(*a, beta=0.5),
        "backwards": lambda *a: _loop(*a, flip=True),
        "least squares": lambda K, V, size: torch.linalg.pinv(K) @ V,
        "transposed": lambda *a: _loop(*a).T,
    },
}
