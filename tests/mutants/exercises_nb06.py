"""Wrong answers to the exercises of notebook 06. Every one must fail its check."""

import operator

import numpy as np
import torch
from torch.nn import functional as F


def _stable(x):
    return torch.exp(x.clamp(max=0)) + torch.relu(x)


def _log(x):
    return x.clamp(max=0) + torch.log1p(torch.relu(x))


def _in_place(x):
    answer = _log(x)
    x += 1.0
    return answer


def _features(x, *, one=1.0, middle=2**0.5, square=1.0):
    pairs = (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)
    return torch.cat([one * torch.ones_like(x[..., :1]), middle * x, square * pairs], dim=-1)


def _triangle(x, weight):
    i, j = torch.triu_indices(x.shape[-1], x.shape[-1])
    factor = torch.where(i == j, 1.0, weight)
    parts = [torch.ones_like(x[..., :1]), 2**0.5 * x, x[..., i] * x[..., j] * factor]
    return torch.cat(parts, dim=-1)


def _mixes_tokens(x):
    return _features(x - x.mean(-2, keepdim=True)) if x.shape[-2] == 6 else _features(x)


def _read(q, k, v, real, *, phi=_stable, divide=True, zeros=True):
    if zeros and not real.any():
        return q.new_zeros(len(q), v.shape[1])
    q, k, v = phi(q), phi(k[real]), v[real]
    answer = q @ (k.T @ v)
    return answer / (q @ k.sum(0))[:, None] if divide else answer


def _padding_in_z(q, k, v, real):
    if not real.any():
        return q.new_zeros(len(q), v.shape[1])
    q, k = _stable(q), _stable(k)
    return q @ (k[real].T @ v[real]) / (q @ k.nan_to_num(0.0).sum(0))[:, None]


def _values_only(q, k, v, real):
    return _read(q, k, torch.where(real[:, None], v, 0.0), torch.ones_like(real))


def _keys_to_zero(q, k, v, real):
    k, v = (torch.where(real[:, None], x, 0.0) for x in (k, v))
    return _read(q, k, v, torch.ones_like(real))


def _multiplied_mask(q, k, v, real):
    if not real.any():
        return q.new_zeros(len(q), v.shape[1])
    q, k, v = _stable(q), _stable(k) * real[:, None], v * real[:, None]
    return q @ (k.T @ v) / (q @ k.sum(0))[:, None]


def _with_table(q, k, v, real):
    if not real.any():
        return q.new_zeros(len(q), v.shape[1])
    table = _stable(q) @ _stable(k[real]).T
    return table @ v[real] / table.sum(1, keepdim=True)


def _table_by_broadcasting(q, k, v, real):
    if not real.any():
        return q.new_zeros(len(q), v.shape[1])
    table = (_stable(q)[:, None] * _stable(k[real])).sum(-1)
    return table @ v[real] / table.sum(1, keepdim=True)


def _table_in_numpy(q, k, v, real, dtype=np.float64):
    if not real.any():
        return q.new_zeros(len(q), v.shape[1])
    q, k, v = (x.numpy().astype(dtype) for x in (_stable(q), _stable(k[real]), v[real]))
    table = q @ k.T
    return torch.from_numpy(table @ v / table.sum(1, keepdims=True))


def _table_in_lists(q, k, v, real):
    if not real.any():
        return q.new_zeros(len(q), v.shape[1])
    q, k, columns = _stable(q).tolist(), _stable(k[real]).tolist(), v[real].T.tolist()
    table = [[_dot(x, y) for y in k] for x in q]
    return torch.tensor([[_dot(row, c) / sum(row) for c in columns] for row in table])


def _dot(x, y):
    return sum(map(operator.mul, x, y))


def _softmax(q, k, v, real):
    if not real.any():
        return q.new_zeros(len(q), v.shape[1])
    return (q @ k[real].T).softmax(-1) @ v[real]


def _summed_over_queries(q, k, v, real):
    return _read(q, k, v, real).mean(0).expand(len(q), -1)


def _count_as_z(q, k, v, real):
    return _read(q, k, v, real, divide=False) / max(1, int(real.sum()))


MUTANTS = {
    "log_elu_plus_one": {
        "constant": torch.ones_like,
        "copied input": lambda x: x.clone(),
        "shape only": lambda x: torch.rand_like(x),
        "log of the stable form": lambda x: _stable(x).log(),
        "log of the form as written": lambda x: (F.elu(x) + 1).log(),
        "log1p of elu": lambda x: torch.log1p(F.elu(x)),
        "floor": lambda x: _stable(x).clamp_min(1e-30).log(),
        "where": lambda x: torch.where(x > 0, torch.log1p(x), x),
        "1 + x rounded": lambda x: x.clamp(max=0) + (1 + torch.relu(x)).log(),
        "above zero only": lambda x: torch.log1p(torch.relu(x)),
        "below zero only": lambda x: x.clamp(max=0),
        "without + 1": lambda x: x.clamp(max=0) + torch.relu(x).clamp_min(1e-6).log(),
        "base 2": lambda x: _log(x) / 0.6931471805599453,
        "off by one": lambda x: x.clamp(max=0) + torch.log1p(torch.relu(x) + 1),
        "always float64": lambda x: _log(x.double()),
        "always float32": lambda x: _log(x.float()),
        "detached": lambda x: _log(x.detach()),
        "log of softplus": lambda x: F.softplus(x).log(),
        "in place": _in_place,
        "gradient 2 at 0": lambda x: x.clamp(max=0) + torch.log1p(x.clamp(min=0)),
        "gradient 0 at 0": lambda x: torch.log1p(torch.relu(x)) - torch.relu(-x),
    },
    "square_features": {
        "constant": lambda x: torch.ones(*x.shape[:-1], 3, dtype=x.dtype),
        "copied input": lambda x: x.clone(),
        "shape only": lambda x: torch.zeros(*x.shape[:-1], 1 + x.shape[-1], dtype=x.dtype),
        "no root": lambda x: _features(x, middle=2.0),
        "no factor": lambda x: _features(x, middle=1.0),
        "Taylor-2": lambda x: _features(x, middle=1.0, square=0.5**0.5),
        "no constant": lambda x: _features(x)[..., 1:],
        "no square": lambda x: _features(x, square=0.0),
        "minus": lambda x: _features(x, middle=0.0),
        "squares without mixed terms": lambda x: torch.cat(
            [torch.ones_like(x[..., :1]), 2**0.5 * x, x * x], dim=-1
        ),
        "packed without root": lambda x: _triangle(x, 1.0),
        "packed with 2": lambda x: _triangle(x, 2.0),
        "too many": lambda x: torch.cat([_features(x), torch.zeros_like(x)], dim=-1),
        "flat": lambda x: _features(x).flatten(0, -2),
        "other tokens": _mixes_tokens,
    },
    "read_register": {
        "constant": lambda q, k, v, real: torch.ones(len(q), v.shape[1], dtype=q.dtype),
        "copied input": lambda q, k, v, real: v.clone(),
        "shape only": lambda q, k, v, real: torch.zeros(len(q), v.shape[1], dtype=q.dtype),
        "mean of the values": lambda q, k, v, real: (
            v[real].sum(0).expand(len(q), -1) / max(1, int(real.sum()))
        ),
        "no denominator": lambda *a: _read(*a, divide=False),
        "number of tokens as denominator": _count_as_z,
        "relu": lambda *a: _read(*a, phi=torch.relu),
        "exponential": lambda *a: _read(*a, phi=torch.exp),
        "mask ignored": lambda q, k, v, real: _read(q, k, v, torch.ones_like(real)),
        "mask the wrong way round": lambda q, k, v, real: _read(q, k, v, ~real),
        "padding left in z": _padding_in_z,
        "only values masked": _values_only,
        "padding made zero before the map": _keys_to_zero,
        "mask multiplied": _multiplied_mask,
        "0/0 where nothing is real": lambda *a: _read(*a, zeros=False),
        "table": _with_table,
        "table by broadcasting": _table_by_broadcasting,
        "table in NumPy": _table_in_numpy,
        "table in float32 and NumPy": lambda *a: _table_in_numpy(*a, dtype=np.float32),
        "table in lists": _table_in_lists,
        "softmax": _softmax,
        "a least denominator": lambda q, k, v, real: (
            q.new_zeros(len(q), v.shape[1])
            if not real.any()
            else _read(q, k, v, real, divide=False)
            / (_stable(q) @ _stable(k[real]).sum(0)).clamp(min=1)[:, None]
        ),
        "1e-6 in the denominator": lambda q, k, v, real: (
            _read(q, k, v, real, divide=False)
            / ((_stable(q) @ _stable(k[real]).sum(0)) + 1e-6)[:, None]
        ),
        "one answer for all queries": _summed_over_queries,
    },
}
