"""Wrong answers to the exercises of notebook 07. Every one must fail its check."""

import numpy as np
import torch

# previous_word(T) → (Q, K)


def _features(T, *, base=10.0, key=0, query=1, width=2, grow=True, dtype=torch.float64):
    """Keys use feature t + ``key``, queries t + ``query`` (of 2), keys grow like base^t."""
    t = torch.arange(T)
    Q, K = torch.zeros(T, width, dtype=dtype), torch.zeros(T, width, dtype=dtype)
    Q[t, (t + query) % 2] = 1
    K[t, (t + key) % 2] = (torch.tensor(base, dtype=dtype) ** t) if grow else 1
    return Q, K


def _whole_numbers(T):
    t = torch.arange(T)
    K = torch.zeros(T, 2, dtype=torch.int64)
    K[t, t % 2] = 10**t
    return torch.eye(2, dtype=torch.int64)[(t + 1) % 2], K


def _one_feature(T):
    K = 10.0 ** torch.arange(T, dtype=torch.float64)[:, None]
    return torch.ones(T, 2).double(), torch.cat([K, 0 * K], 1)


def _by_length(T):
    Q, K = _features(T)
    return Q, K / 10.0**T


def _signed(T):
    """Exact with a sign: the sum of a key and minus the one before."""
    Q, K = _features(T)
    return Q, K - 1e-3


def _both_features(T):
    Q, K = _features(T)
    return torch.ones_like(Q), K


# fade_by_chunks(Q, K, V, a, size)


def _chunks(
    Q,
    K,
    V,
    a,
    size,
    *,
    handed=lambda fade: fade.prod(),
    read=True,
    write=True,
    inside=True,
    early=False,
    mask=True,
    drop_tail=False,
    replace=False,
    own=True,
):
    S, out = V.new_zeros(K.shape[1], V.shape[1]), []
    for q, k, v, fade in zip(*(x.split(size) for x in (Q, K, V, a)), strict=True):
        if drop_tail and len(q) < size and out:
            out.append(torch.zeros_like(v))
            continue
        log = fade.log().cumsum(0)[:, None]
        table = q @ k.T * (torch.exp(torch.tril(log - log.T)) if inside else 1)
        table = table.tril(0 if own else -1) if mask else table
        new = (0 if replace else handed(fade)) * S + (
            ((log[-1] - log).exp() if write else 1) * k
        ).T @ v
        out.append(table @ v + (log.exp() if read else 1) * (q @ (new if early else S)))
        S = new
    return torch.cat(out)


def _powers(Q, K, V, a, size):
    """With powers instead of differences of logarithms: 0/0 where much has faded."""
    S, out = V.new_zeros(K.shape[1], V.shape[1]), []
    for q, k, v, fade in zip(*(x.split(size) for x in (Q, K, V, a)), strict=True):
        since = fade.cumprod(0)[:, None]
        out.append((q @ k.T * (since / since.T)).tril() @ v + since * (q @ S))
        S = since[-1] * S + (since[-1] / since * k).T @ v
    return torch.cat(out)


def _token_by_token(Q, K, V, a, size):
    S, out = V.new_zeros(K.shape[1], V.shape[1]), []
    for q, k, v, fade in zip(Q, K, V, a, strict=True):
        S = fade * S + torch.outer(k, v)
        out.append(q @ S)
    return torch.stack(out)


def _write_then_fade(Q, K, V, a, size):
    S, out = V.new_zeros(K.shape[1], V.shape[1]), []
    for q, k, v, fade in zip(Q, K, V, a, strict=True):
        S = fade * (S + torch.outer(k, v))
        out.append(q @ S)
    return torch.stack(out)


def _faded_table(Q, K, V, a, size):
    log = a.log().cumsum(0)
    L = (log[:, None] - log).tril().exp().tril()
    return (L * (Q @ K.T)) @ V


# way_back(Q, K, V, G)


def _sums(K, V, *, back=False, own=True):
    """All sums of k vᵀ up to each token, or from it on: [T, C, Dv]."""
    products = K[:, :, None] * V[:, None, :]
    sums = products.flip(0).cumsum(0).flip(0) if back else products.cumsum(0)
    return sums if own else sums - products


def _back(Q, K, V, G, *, states=False, back=True, own=(True, True), total=False):
    S = _sums(K, V, back=states, own=own[0])
    R = _sums(Q, G, back=back, own=own[1])
    if total:
        S, R = S[-1:].expand_as(S), R[:1].expand_as(R)
    return (
        torch.einsum("td,tcd->tc", G, S),
        torch.einsum("td,tcd->tc", V, R),
        torch.einsum("tc,tcd->td", K, R),
    )


def _back_table(Q, K, V, G):
    scores, slopes = (Q @ K.T).tril(), (G @ V.T).tril()
    return slopes @ K, slopes.T @ Q, scores.T @ G


def _back_numpy(Q, K, V, G):
    Q, K, V, G = (x.numpy() for x in (Q, K, V, G))
    scores, slopes = np.tril(Q @ K.T), np.tril(G @ V.T)
    return slopes @ K, slopes.T @ Q, scores.T @ G


def _cancelled(Q, K, V, G):
    """From the end as total − sum so far, less the token itself."""
    R = (Q[:, :, None] * G[:, None, :]).cumsum(0)
    R = R[-1] - R
    dQ, _, _ = _back(Q, K, V, G)
    return dQ, torch.einsum("td,tcd->tc", V, R), torch.einsum("tc,tcd->td", K, R)


MUTANTS = {
    "previous_word": {
        "constant": lambda T: (torch.ones(T, 2), torch.ones(T, 2)),
        "zeros": lambda T: (torch.zeros(T, 2), torch.zeros(T, 2)),
        "random": lambda T: tuple(torch.rand(2, T, 2, generator=torch.Generator().manual_seed(0))),
        "reads itself": lambda T: _features(T, query=0),
        "does not grow": lambda T: _features(T, grow=False),
        "grows too slowly": lambda T: _features(T, base=3.0),
        "shrinks": lambda T: _features(T, base=0.1),
        "one feature for all": _one_feature,
        "asks for both": _both_features,
        "knows the length": _by_length,
        "a negative feature": _signed,
        "whole numbers that run over": _whole_numbers,
        "beyond float16": lambda T: _features(T, dtype=torch.float16),
        "beyond float32": lambda T: _features(T, base=1e3, dtype=torch.float32),
        "three features": lambda T: _features(T, width=3),
        "keys alone": lambda T: _features(T)[1],
        "exchanged": lambda T: _features(T)[::-1],
    },
    "fade_by_chunks": {
        "constant": lambda Q, K, V, a, size: V * 0,
        "copied input": lambda Q, K, V, a, size: V.clone(),
        "as printed": lambda *x: _chunks(*x, handed=lambda fade: fade[-1]),
        "state does not fade": lambda *x: _chunks(*x, handed=lambda fade: 1),
        "fades by the first a": lambda *x: _chunks(*x, handed=lambda fade: fade[0]),
        "fades by the mean a": lambda *x: _chunks(*x, handed=lambda fade: fade.mean() ** len(fade)),
        "last a missing": lambda *x: _chunks(*x, handed=lambda fade: fade[:-1].prod()),
        "reading does not fade": lambda *x: _chunks(*x, read=False),
        "writing does not fade": lambda *x: _chunks(*x, write=False),
        "nothing fades inside": lambda *x: _chunks(*x, inside=False),
        "nothing fades": lambda Q, K, V, a, size: _chunks(Q, K, V, torch.ones_like(a), size),
        "state too early": lambda *x: _chunks(*x, early=True),
        "future inside a chunk": lambda *x: _chunks(*x, mask=False),
        "itself hidden": lambda *x: _chunks(*x, own=False),
        "last chunk dropped": lambda *x: _chunks(*x, drop_tail=True),
        "only the last chunk handed on": lambda *x: _chunks(*x, replace=True),
        "powers": _powers,
        "written, then faded": _write_then_fade,
        "the whole table": _faded_table,
        "token by token": _token_by_token,
        "always chunks of 8": lambda Q, K, V, a, size: _chunks(Q, K, V, a, 8),
        "in float16": lambda *x: _chunks(*x).half(),
    },
    "way_back": {
        "constant": lambda Q, K, V, G: (Q * 0, K * 0, V * 0),
        "copied input": lambda Q, K, V, G: (Q.clone(), K.clone(), V.clone()),
        "shape only": lambda Q, K, V, G: tuple(map(torch.ones_like, (Q, K, V))),
        "from the beginning": lambda *x: _back(*x, back=False),
        "queries from the end": lambda *x: _back(*x, states=True),
        "no mask": lambda *x: _back(*x, total=True),
        "itself missing": lambda *x: _back(*x, own=(False, False)),
        "own query missing": lambda *x: _back(*x, own=(True, False)),
        "own key missing": lambda *x: _back(*x, own=(False, True)),
        "total minus the sum so far": _cancelled,
        "wrong sign": lambda *x: tuple(-g for g in _back(*x)),
        "G not used": lambda Q, K, V, G: _back(Q, K, V, torch.ones_like(G)),
        "Q and K exchanged": lambda Q, K, V, G: _back(K, Q, V, G),
        "V and G exchanged": lambda Q, K, V, G: _back(Q, K, G, V),
        "means": lambda Q, K, V, G: tuple(g / len(Q) for g in _back(Q, K, V, G)),
        "order of the answers": lambda *x: _back(*x)[::-1],
        "dQ and dK exchanged": lambda *x: (_back(*x)[1], _back(*x)[0], _back(*x)[2]),
        "dQ alone": lambda *x: _back(*x)[0],
        "the table": _back_table,
        "the table in NumPy": _back_numpy,
        "in float16": lambda *x: tuple(g.half() for g in _back(*x)),
    },
}
