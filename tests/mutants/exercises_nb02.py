"""Wrong answers to the exercises of notebook 02. Every one must fail its check."""

import math

import torch

# recover


def _probe(head, E, *, length=1.0, zeros=True):
    x = length * torch.eye(E, dtype=torch.float64)
    return head(torch.cat([x, 0 * x[:1]]) if zeros else x)


def _differences(head, E, *, length=1.0, reference=-1, squared=True):
    log = _probe(head, E, length=length).log()
    A = log[:E, :E] - log[:E, reference][:, None]
    return A / (length**2 if squared else length)


def _centred(head, E):
    log = _probe(head, E, zeros=False).log()
    return log - log.mean(-1, keepdim=True)


def _pairwise_without_zeros(head, E):
    A = torch.zeros(E, E, dtype=torch.float64)
    eye = torch.eye(E, dtype=torch.float64)
    for m in range(E):
        for n in range(E):
            w = head(eye[[m, n]])[0]
            A[m, n] = (w[1] / w[0]).log()
    return A


# copy_previous


def _circle(T, *, back=1.0, size=2000.0, sign=1.0, words=0.0):
    turn = back * 2 * math.pi / T
    W_q, W_k, W_v = torch.zeros(2, 6), torch.zeros(2, 6), torch.eye(4, 6)
    W_q[0, 4], W_q[0, 5] = size * math.cos(turn), sign * size * math.sin(turn)
    W_q[1, 4], W_q[1, 5] = -sign * size * math.sin(turn), size * math.cos(turn)
    W_k[0, 4] = W_k[1, 5] = 1.0
    W_k[0, 0] = words
    return W_q, W_k, W_v


def _values(T, W_v):
    return *_circle(T)[:2], W_v


# multi_head


def _layer(x, W_q, W_k, W_v, W_o, H, *, split="right", merge="right", axis=-1, hidden=-torch.inf,
           scale="D", see=0):  # fmt: skip
    T = len(x)
    parts = [x @ W.T for W in (W_q, W_k, W_v)]
    if split == "right":
        parts = [y.view(T, H, -1).transpose(0, 1) for y in parts]
    elif split == "reshape":
        parts = [y.reshape(H, T, -1) for y in parts]
    elif split == "every":
        parts = [torch.stack([y[:, h::H] for h in range(H)]) for y in parts]
    q, k, v = parts
    divide = {"D": q.shape[-1] ** 0.5, "E": x.shape[1] ** 0.5, "none": 1, "D²": q.shape[-1]}[scale]
    seen = torch.ones(T, T, dtype=torch.bool).tril(see)
    scores = (q @ k.transpose(1, 2) / divide).masked_fill(~seen, hidden)
    o = scores.softmax(axis).nan_to_num(0.0) @ v
    if merge == "reshape":
        return o.reshape(T, -1) @ W_o.T
    if merge == "rows":
        return o.transpose(0, 1).reshape(T, -1) @ W_o.reshape(-1, len(W_o))
    if merge == "first":
        o[1:] = 0
    if merge == "mean":
        o = o / H
    return o.transpose(0, 1).reshape(T, -1) @ W_o.T


def _after_softmax(x, W_q, W_k, W_v, W_o, H):
    q, k, v = ((x @ W.T).view(len(x), H, -1).transpose(0, 1) for W in (W_q, W_k, W_v))
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).tril()
    return (weights @ v).transpose(0, 1).flatten(1) @ W_o.T


def _planted(*a):
    return _layer(*a, split="reshape", merge="reshape", hidden=-100.0, scale="E")


MUTANTS = {
    "recover": {
        "constant": lambda head, E: torch.ones(E, E),
        "shape only": lambda head, E: torch.zeros(E, E),
        "identity": lambda head, E: torch.eye(E),
        "the weights": lambda head, E: _probe(head, E)[:E, :E],
        "logarithms of the weights": lambda head, E: _probe(head, E, zeros=False).log(),
        "less the first column": lambda head, E: _differences(head, E, reference=0),
        "less the mean of a row": _centred,
        "less the score with itself": _pairwise_without_zeros,
        "transposed": lambda head, E: _differences(head, E).T,
        "sign": lambda head, E: -_differences(head, E),
        "symmetric part": lambda head, E: (_differences(head, E) + _differences(head, E).T) / 2,
        "ratio without a logarithm": lambda head, E: _differences(head, E).exp(),
        "unit vectors, so strong heads overflow": _differences,
        "length not undone": lambda head, E: _differences(head, E, length=0.1, squared=False),
        "no probing": lambda head, E: head(torch.eye(E)).new_zeros(E, E),
    },
    "copy_previous": {
        "constant": lambda T: (torch.ones(2, 6), torch.ones(2, 6), torch.ones(4, 6)),
        "shape only": lambda T: (torch.zeros(2, 6), torch.zeros(2, 6), torch.zeros(4, 6)),
        "the mean": lambda T: (torch.zeros(2, 6), torch.zeros(2, 6), torch.eye(4, 6)),
        "itself": lambda T: _circle(T, back=0.0),
        "the next": lambda T: _circle(T, back=-1.0),
        "other way round": lambda T: _circle(T, sign=-1.0),
        "two back": lambda T: _circle(T, back=2.0),
        "a turn of 1 radian": lambda T: _circle(T, back=T / (2 * math.pi)),
        "small scores": lambda T: _circle(T, size=1.0),
        "enough for short texts only": lambda T: _circle(T, size=60.0),
        "asks for words too": lambda T: _circle(T, size=400.0, words=4.0),
        "positions copied too": lambda T: _values(T, torch.eye(4, 6).roll(2, 1)),
        "words and positions": lambda T: _values(T, torch.cat([torch.eye(4), torch.ones(4, 2)], 1)),
        "values doubled": lambda T: _values(T, 2 * torch.eye(4, 6)),
        "maps transposed": lambda T: tuple(W.T for W in _circle(T)),
        "queries and keys only": lambda T: _circle(T)[:2],
    },
    "multi_head": {
        "constant": lambda x, *a: torch.ones_like(x),
        "copied input": lambda x, *a: x.clone(),
        "shape only": lambda x, *a: torch.zeros_like(x),
        "the four planted bugs": _planted,
        "split by reshape": lambda *a: _layer(*a, split="reshape"),
        "merged by reshape": lambda *a: _layer(*a, merge="reshape"),
        "both by reshape": lambda *a: _layer(*a, split="reshape", merge="reshape"),
        "every H-th column": lambda *a: _layer(*a, split="every"),
        "W_o by rows": lambda *a: _layer(*a, merge="rows"),
        "one head only": lambda *a: _layer(*a, merge="first"),
        "mean over heads": lambda *a: _layer(*a, merge="mean"),
        "divided by √E": lambda *a: _layer(*a, scale="E"),
        "not divided": lambda *a: _layer(*a, scale="none"),
        "divided by D": lambda *a: _layer(*a, scale="D²"),
        "no mask": lambda *a: _layer(*a, see=1000),
        "sees the next": lambda *a: _layer(*a, see=1),
        "not itself": lambda *a: _layer(*a, see=-1),
        "softmax over the queries": lambda *a: _layer(*a, axis=-2),
        "softmax over the heads": lambda *a: _layer(*a, axis=0),
        "mask after softmax": _after_softmax,
        "hidden by 0": lambda *a: _layer(*a, hidden=0.0),
        "hidden by −100": lambda *a: _layer(*a, hidden=-100.0),
        "hidden by −100,000": lambda *a: _layer(*a, hidden=-1e5),
        "hidden by −1e9": lambda *a: _layer(*a, hidden=-1e9),
        "hidden by −1e30": lambda *a: _layer(*a, hidden=-1e30),
    },
}  # fmt: skip
