"""Wrong answers to the exercises of notebook 02. Every one must fail its check."""

import torch


def _head(x, W_q, W_k, W_v, *, diagonal=0, scale=1.0, axis=-1, hidden=-torch.inf):
    scores = (x @ W_q.T) @ (x @ W_k.T).T * scale
    seen = torch.ones(len(x), len(x), dtype=torch.bool).tril(diagonal)
    return scores.masked_fill(~seen, hidden).softmax(axis) @ (x @ W_v.T)


def _mask_after_softmax(x, W_q, W_k, W_v):
    return ((x @ W_q.T) @ (x @ W_k.T).T).softmax(-1).tril() @ (x @ W_v.T)


def _own_softmax(x, W_q, W_k, W_v):
    weights = ((x @ W_q.T) @ (x @ W_k.T).T).exp().tril()
    return weights / weights.sum(-1, keepdim=True) @ (x @ W_v.T)


def _in_place(x, W_q, W_k, W_v):
    x += 0.1
    return _head(x, W_q, W_k, W_v)


def _first_rows(A, r):
    W_k = A[:r].clone()
    return torch.eye(len(A), dtype=A.dtype)[:r], W_k


def _svd(A, r, *, power=0.5, transpose=False, smallest=False, V_transposed=False):
    U, s, Vt = torch.linalg.svd(A)
    if V_transposed:
        Vt = Vt.T
    part = slice(len(s) - r, None) if smallest else slice(r)
    left, right = (s[part, None] ** power) * U[:, part].T, (s[part, None] ** power) * Vt[part]
    return (right, left) if transpose else (left, right)


def _symmetric(A, r):
    return _svd((A + A.T) / 2, r)


def _eigenvectors(A, r):
    values, vectors = torch.linalg.eigh((A + A.T) / 2)
    order = values.abs().argsort(descending=True)[:r]
    return values[order, None] * vectors[:, order].T, vectors[:, order].T


def _heads(alpha, W_v, W_o, t, i, *, W_o_rows=False, swapped=False, times=None):
    H = alpha.shape[0]
    down = W_v.chunk(H)
    up = W_o.T.reshape(H, -1, len(W_o)).mT if not W_o_rows else W_o.reshape(H, len(W_o), -1)
    weights = alpha[:, i, t] if swapped else alpha[:, t, i]
    if times is not None:
        weights = times(weights)
    return sum(weights[j] * (up[j] @ down[j]) for j in range(H))


def _interleaved(alpha, W_v, W_o, t, i):
    H = alpha.shape[0]
    return sum(alpha[j, t, i] * (W_o[:, j::H] @ W_v[j::H]) for j in range(H))


def _last_head_only(alpha, W_v, W_o, t, i):
    H = alpha.shape[0]
    return alpha[-1, t, i] * (W_o.chunk(H, 1)[-1] @ W_v.chunk(H)[-1])


MUTANTS = {
    "attend": {
        "constant": lambda x, W_q, W_k, W_v: torch.ones(len(x), len(W_v)),
        "copied input": lambda x, W_q, W_k, W_v: x.clone(),
        "values only": lambda x, W_q, W_k, W_v: x @ W_v.T,
        "shape only": lambda x, W_q, W_k, W_v: torch.zeros(len(x), len(W_v)),
        "no mask": lambda x, W_q, W_k, W_v: _head(x, W_q, W_k, W_v, diagonal=len(x)),
        "off by one: sees the next": lambda x, *W: _head(x, *W, diagonal=1),
        "off by one: not itself": lambda x, *W: _head(x, *W, diagonal=-1).nan_to_num(0.0),
        "queries and keys exchanged": lambda x, W_q, W_k, W_v: _head(x, W_k, W_q, W_v),
        "tied": lambda x, W_q, W_k, W_v: _head(x, W_q, W_q, W_v),
        "scaled": lambda x, W_q, *W: _head(x, W_q, *W, scale=len(W_q) ** -0.5),
        "softmax over the queries": lambda x, *W: _head(x, *W, axis=0),
        "hidden by 0": lambda x, *W: _head(x, *W, hidden=0.0),
        "hidden by −10": lambda x, *W: _head(x, *W, hidden=-10.0),
        "hidden by −1,000": lambda x, *W: _head(x, *W, hidden=-1e3),
        "hidden by −100,000": lambda x, *W: _head(x, *W, hidden=-1e5),
        "hidden by −1e9": lambda x, *W: _head(x, *W, hidden=-1e9),
        "hidden by −1e30": lambda x, *W: _head(x, *W, hidden=-1e30),
        "mask after softmax": _mask_after_softmax,
        "no maximum taken off": _own_softmax,
        "in place": _in_place,
    },
    "low_rank_score": {
        "constant": lambda A, r: (torch.ones(r, len(A)), torch.ones(r, len(A))),
        "shape only": lambda A, r: (torch.zeros(r, len(A)), torch.zeros(r, len(A))),
        "copied input": lambda A, r: (A.clone(), torch.eye(len(A), dtype=A.dtype)),
        "first rows": _first_rows,
        "one tensor": lambda A, r: torch.stack(_svd(A, r)),
        "singular values forgotten": lambda A, r: _svd(A, r, power=0),
        "singular values twice": lambda A, r: _svd(A, r, power=1),
        "the smallest": lambda A, r: _svd(A, r, smallest=True),
        "off by one": lambda A, r: tuple(torch.cat([m, 0 * m[:1]]) for m in _svd(A, max(r - 1, 1))),
        "one rank too few": lambda A, r: tuple(
            m * (torch.arange(r) < max(r - 1, 1))[:, None] for m in _svd(A, r)
        ),
        "exchanged": lambda A, r: _svd(A, r, transpose=True),
        "V not transposed": lambda A, r: _svd(A, r, V_transposed=True),
        "symmetrised": _symmetric,
        "eigenvectors": _eigenvectors,
    },
    "effective_matrix": {
        "constant": lambda alpha, W_v, W_o, t, i: torch.eye(len(W_o)),
        "shape only": lambda alpha, W_v, W_o, t, i: torch.zeros(len(W_o), len(W_o)),
        "copied input": lambda alpha, W_v, W_o, t, i: W_v.clone(),
        "t and i exchanged": lambda *a: _heads(*a, swapped=True),
        "off by one": lambda alpha, W_v, W_o, t, i: _heads(alpha, W_v, W_o, t, max(i - 1, 0)),
        "blocks of W_o by rows": lambda *a: _heads(*a, W_o_rows=True),
        "heads interleaved": _interleaved,
        "one head": _last_head_only,
        "mean over heads": lambda alpha, *a: _heads(alpha, *a) / len(alpha),
        "weights forgotten": lambda *a: _heads(*a, times=torch.ones_like),
        "one weight for all heads": lambda *a: _heads(*a, times=lambda w: w.mean().expand_as(w)),
        "transposed": lambda *a: _heads(*a).T,
        "W_v on the left": lambda alpha, W_v, W_o, t, i: _heads(alpha, W_o.T, W_v.T, t, i),
    },
}
