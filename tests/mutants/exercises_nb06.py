"""Wrong answers to the exercises of notebook 06. Every one must fail its check."""

import numpy as np
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


# backward


def _reversed(x):
    return x.flip(0).cumsum(0).flip(0)


def _gradients(q, k, v, g, *, back=_reversed, front=lambda x: x.cumsum(0)):
    written = front(torch.einsum("td,tv->tdv", k, v))
    asked = back(torch.einsum("td,tv->tdv", q, g))
    return (
        torch.einsum("tdv,tv->td", written, g),
        torch.einsum("tdv,tv->td", asked, v),
        torch.einsum("tdv,td->tv", asked, k),
    )


def _all(x):
    return x.sum(0, keepdim=True).expand_as(x)


def _exclusive(x):
    return x.cumsum(0) - x


def _by_table(q, k, v, g):
    gains, scores = (g @ v.T).tril(), (q @ k.T).tril()
    return gains @ k, gains.T @ q, scores.T @ g


def _by_table_in_numpy(*arrays):
    q, k, v, g = (x.numpy() for x in arrays)
    gains, scores = np.tril(g @ v.T), np.tril(q @ k.T)
    return gains @ k, gains.T @ q, scores.T @ g


def _by_autograd_with_a_table(q, k, v, g):
    with torch.enable_grad():
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = (leaves[0] @ leaves[1].T).tril() @ leaves[2]
        return torch.autograd.grad(out, leaves, g)


def _of_the_divided(q, k, v, g):
    with torch.enable_grad():
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        table = (_phi(leaves[0]) @ _phi(leaves[1]).T).tril()
        return torch.autograd.grad(table @ leaves[2] / table.sum(-1, keepdim=True), leaves, g)


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
    "backward": {
        "constant": lambda q, k, v, g: (
            torch.ones_like(q),
            torch.ones_like(k),
            torch.ones_like(v),
        ),
        "copied input": lambda q, k, v, g: (q.clone(), k.clone(), v.clone()),
        "from the start": lambda *a: _gradients(*a, back=lambda x: x.cumsum(0)),
        "no mask": lambda *a: _gradients(*a, back=_all, front=_all),
        "no mask for dq": lambda *a: _gradients(*a, front=_all),
        "no mask for dk and dv": lambda *a: _gradients(*a, back=_all),
        "own key missing": lambda *a: _gradients(*a, back=lambda x: _reversed(x) - x),
        "own key missing in dq": lambda *a: _gradients(*a, front=_exclusive),
        "dq in another order": lambda *a: _gradients(*a)[::-1],
        "minus": lambda *a: tuple(-x for x in _gradients(*a)),
        "g forgotten": lambda q, k, v, g: _gradients(q, k, v, torch.ones_like(g)),
        "v and g exchanged": lambda q, k, v, g: _gradients(q, k, g, v),
        "q and k exchanged": lambda q, k, v, g: _gradients(k, q, v, g),
        "total minus the sum, one late": lambda *a: _gradients(
            *a, back=lambda x: x.sum(0) - x.cumsum(0)
        ),
        "only dq": lambda *a: _gradients(*a)[0],
        "table": _by_table,
        "table in NumPy": _by_table_in_numpy,
        "autograd through a table": _by_autograd_with_a_table,
        "of the divided form": _of_the_divided,
    },
}
