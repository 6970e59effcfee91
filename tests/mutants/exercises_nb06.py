"""Wrong answers to the exercises of notebook 06. Every one must fail its check."""

import torch
from torch.nn import functional as F


def _phi(x):
    return torch.exp(x.clamp(max=0)) + torch.relu(x)


def _back(y):
    return torch.where(y >= 1, y - 1, y.log())


# confuse


def _set(K, i, j, at_i, at_j):
    K = K.clone()
    K[i], K[j] = at_i, at_j
    return K


def _both(K, i, j, key):
    return _set(K, i, j, key, key)


def _mean_of_features(K, i, j):
    return (_phi(K[i]) + _phi(K[j])) / 2


def _opposite(K, V, i, j):
    return _set(K, i, j, K[i] + 0.1, K[j] - 0.1)


def _barely(K, V, i, j):
    a, b = _phi(K[i]), _phi(K[j])
    step = 1e-5 * torch.minimum(a, b)
    return _set(K, i, j, _back(a + step), _back(b - step))


def _in_place(K, V, i, j):
    K[i] = K[j] = _back(_mean_of_features(K, i, j))
    return K


def _one_feature_forgotten(K, V, i, j):
    key = _back(_mean_of_features(K, i, j))
    L = _both(K, i, j, key)
    L[i, -1] = K[i, -1] + 1
    return L


# repair


def _causal(q, k, v, real, *, phi=_phi, in_z=False, own=False, eps=0.0, axis=1, zeros=True):
    fq, fk = phi(q), phi(k)
    there = real[..., None]
    states = torch.einsum("ntc,ntd->ntcd", fk * there, v).cumsum(axis)
    if not in_z:
        fk = fk * there
    z = (fq * fk).cumsum(1) if own else fq * fk.cumsum(1)
    z = z.sum(-1, keepdim=True) + eps
    answer = torch.einsum("ntc,ntcd->ntd", fq, states) / z
    return torch.where(z > 0, answer, 0.0) if zeros else answer


def _not_causal(q, k, v, real):
    fq, fk = _phi(q), _phi(k) * real[..., None]
    z = torch.einsum("ntc,nc->nt", fq, fk.sum(1))
    register = torch.einsum("nsc,nsd->ncd", fk, v)
    return torch.einsum("ntc,ncd,nt->ntd", fq, register, 1 / z)


def _strict(q, k, v, real):
    fq, fk = _phi(q), _phi(k) * real[..., None]
    table = (fq @ fk.mT).tril(-1)
    z = table.sum(-1, keepdim=True)
    return torch.where(z > 0, table @ v / z, 0.0)


def _softmax(q, k, v, real):
    T = q.shape[1]
    hidden = ~(real[:, None, :] & torch.ones(T, T, dtype=torch.bool).tril())
    return (q @ k.mT).masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0) @ v


def _undivided(q, k, v, real):
    states = torch.einsum("ntc,ntd->ntcd", _phi(k) * real[..., None], v).cumsum(1)
    return torch.einsum("ntc,ntcd->ntd", _phi(q), states)


def _keys_made_zero(q, k, v, real):
    k, v = k * real[..., None], v * real[..., None]
    return _causal(q, k, v, torch.ones_like(real))


def _as_printed(q, k, v, real):
    """The program of the exercise, unrepaired."""
    fq, fk = F.elu(q) + 1, F.elu(k) + 1
    v = v * real[..., None]
    states = torch.einsum("ntc,ntd->ntcd", fk, v).cumsum(0)
    z = (fq * fk).cumsum(1).sum(-1, keepdim=True)
    return torch.einsum("ntc,ntcd->ntd", fq, states) / (z + 1e-6)


# factorise


def _svd(A, C=None, power=1):
    U, s, V = torch.linalg.svd(A, full_matrices=False)
    C = torch.linalg.matrix_rank(A) if C is None else C
    return U[:, :C] * s[:C] ** power, V[:C].T


MUTANTS = {
    "confuse": {
        "constant": lambda K, V, i, j: torch.ones_like(K),
        "copied input": lambda K, V, i, j: K.clone(),
        "exchanged": lambda K, V, i, j: _set(K, i, j, K[j], K[i]),
        "all in another order": lambda K, V, i, j: K.flip(0),
        "mean of the keys": lambda K, V, i, j: _both(K, i, j, (K[i] + K[j]) / 2),
        "features for keys": lambda K, V, i, j: _both(K, i, j, _mean_of_features(K, i, j)),
        "y − 1 everywhere": lambda K, V, i, j: _both(K, i, j, _mean_of_features(K, i, j) - 1),
        "ln y everywhere": lambda K, V, i, j: _both(K, i, j, _mean_of_features(K, i, j).log()),
        "sum of the features": lambda K, V, i, j: _both(K, i, j, _back(_phi(K[i]) + _phi(K[j]))),
        "mean of the exponentials": lambda K, V, i, j: _both(
            K, i, j, ((K[i].exp() + K[j].exp()) / 2).log()
        ),
        "mean of relu": lambda K, V, i, j: _both(K, i, j, (K[i].relu() + K[j].relu()) / 2),
        "geometric mean": lambda K, V, i, j: _both(
            K, i, j, _back((_phi(K[i]) * _phi(K[j])).sqrt())
        ),
        "one token only": lambda K, V, i, j: _set(K, i, j, _back(_mean_of_features(K, i, j)), K[j]),
        "the other token only": lambda K, V, i, j: _set(
            K, i, j, K[i], _back(_mean_of_features(K, i, j))
        ),
        "key i twice": lambda K, V, i, j: _both(K, i, j, K[i]),
        "key j twice": lambda K, V, i, j: _both(K, i, j, K[j]),
        "a tenth up, a tenth down": _opposite,
        "barely moved": _barely,
        "in place": _in_place,
        "one feature forgotten": _one_feature_forgotten,
        "values returned": lambda K, V, i, j: V.clone(),
    },
    "repair": {
        "constant": lambda q, k, v, real: torch.ones_like(v),
        "copied input": lambda q, k, v, real: v.clone(),
        "as printed": _as_printed,
        "sums over the batch": lambda *a: _causal(*a, axis=0),
        "products summed": lambda *a: _causal(*a, own=True),
        "products summed, padding in z": lambda *a: _causal(*a, own=True, in_z=True),
        "padding in z": lambda *a: _causal(*a, in_z=True),
        "eps": lambda *a: _causal(*a, eps=1e-6),
        "a smaller eps": lambda *a: _causal(*a, eps=1e-8),
        "as written": lambda *a: _causal(*a, phi=lambda x: F.elu(x) + 1),
        "NaN before the first": lambda *a: _causal(*a, zeros=False),
        "mask ignored": lambda q, k, v, real: _causal(q, k, v, torch.ones_like(real)),
        "mask the wrong way round": lambda q, k, v, real: _causal(q, k, v, ~real),
        "padding made zero before the map": _keys_made_zero,
        "no mask over time": _not_causal,
        "without itself": _strict,
        "not divided": _undivided,
        "softmax": _softmax,
        "relu": lambda *a: _causal(*a, phi=torch.relu),
        "softplus": lambda *a: _causal(*a, phi=F.softplus),
        "exponential": lambda *a: _causal(*a, phi=torch.exp),
        "one sequence": lambda *a: _causal(*a)[:1],
    },
    "factorise": {
        "constant": lambda A: (torch.ones(len(A), 1), torch.ones(A.shape[1], 1)),
        "copied input": lambda A: (A, A),
        "a feature a key": lambda A: (A, torch.eye(A.shape[1], dtype=A.dtype)),
        "a feature a query": lambda A: (torch.eye(len(A), dtype=A.dtype), A.T),
        "nothing left out": lambda A: _svd(A, min(A.shape)),
        "exact zeros": lambda A: _svd(A, int((torch.linalg.svdvals(A) > 0).sum())),
        "one too many": lambda A: _svd(A, int(torch.linalg.matrix_rank(A)) % min(A.shape) + 1),
        "one too few": lambda A: _svd(A, max(1, int(torch.linalg.matrix_rank(A)) - 1)),
        "rank 1": lambda A: _svd(A, 1),
        "no singular values": lambda A: _svd(A, power=0),
        "singular values twice": lambda A: _svd(A, power=2),
        "exchanged": lambda A: _svd(A)[::-1],
        "K turned": lambda A: (_svd(A)[0], _svd(A)[1].T),
        "logarithm": lambda A: (A.log(), torch.eye(A.shape[1], dtype=A.dtype)),
        "root of the weights": lambda A: (A.sqrt(), torch.eye(A.shape[1], dtype=A.dtype)),
        "of the turned table": lambda A: _svd(A.T),
        "only Q": lambda A: _svd(A)[0],
    },
}
