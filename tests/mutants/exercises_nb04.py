"""Wrong answers to the exercises of notebook 04. Every one must fail its check."""

import torch


def _unbiased(x, eps):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + eps).sqrt()


def _eps_outside(x, eps):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True).sqrt() + eps)


def _no_mean(x, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def _no_root(x, eps):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps)


def _over_tokens(x, eps):
    centred = x - x.mean(0, keepdim=True)
    return centred / (centred.square().mean(0, keepdim=True) + eps).sqrt()


def _over_everything(x, eps):
    centred = x - x.mean()
    return centred / (centred.square().mean() + eps).sqrt()


def _variance_of_all(x, eps):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean() + eps).sqrt()


def _norm_in_place(x, eps):
    x -= x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def _post_norm(x, attend, think, norm_1, norm_2):
    x = norm_1(x + attend(x))
    return norm_2(x + think(x))


def _no_residual(x, attend, think, norm_1, norm_2):
    return think(norm_2(attend(norm_1(x))))


def _parallel(x, attend, think, norm_1, norm_2):
    return x + attend(norm_1(x)) + think(norm_2(x))


def _second_adds_to_the_input(x, attend, think, norm_1, norm_2):
    return x + think(norm_2(x + attend(norm_1(x))))


def _one_norm(x, attend, think, norm_1, norm_2):
    x = x + attend(norm_1(x))
    return x + think(norm_1(x))


def _norms_exchanged(x, attend, think, norm_1, norm_2):
    x = x + attend(norm_2(x))
    return x + think(norm_1(x))


def _parts_exchanged(x, attend, think, norm_1, norm_2):
    x = x + think(norm_2(x))
    return x + attend(norm_1(x))


def _no_norm(x, attend, think, norm_1, norm_2):
    x = x + attend(x)
    return x + think(x)


def _norm_on_the_stream(x, attend, think, norm_1, norm_2):
    x = norm_1(x)
    x = norm_2(x + attend(x))
    return x + think(x)


def _no_second_part(x, attend, think, norm_1, norm_2):
    return x + attend(norm_1(x))


def _threshold(x, names, facts, at):
    return torch.relu((x @ names.T - at) / (1 - at)) @ facts


def _no_threshold(x, names, facts):
    return torch.relu(x @ names.T) @ facts


def _threshold_not_scaled(x, names, facts):
    return torch.relu(x @ names.T - 0.5) @ facts


def _attention_instead(x, names, facts):
    return (50 * x @ names.T).softmax(-1) @ facts


def _nearest(x, names, facts):
    return facts[(x @ names.T).argmax(-1)]


def _absolute(x, names, facts):
    return torch.relu(2 * (x @ names.T).abs() - 1) @ facts


def _sign_of_the_threshold(x, names, facts):
    return torch.relu(2 * x @ names.T + 1) @ facts


def _no_relu(x, names, facts):
    return (2 * x @ names.T - 1) @ facts


def _shared_maximum(x, names, facts):
    match = torch.relu(2 * x @ names.T - 1)
    return match.amax(0, keepdim=True).expand_as(match) @ facts


def _least_squares(x, names, facts):
    return x @ torch.linalg.pinv(names) @ facts


MUTANTS = {
    "layer_norm": {
        "constant": lambda x, eps: torch.zeros_like(x),
        "copied input": lambda x, eps: x.clone(),
        "shape only": lambda x, eps: torch.ones(x.shape),
        "mean only": lambda x, eps: x - x.mean(-1, keepdim=True),
        "divides by E − 1": _unbiased,
        "eps outside the root": _eps_outside,
        "no eps": lambda x, eps: torch.nn.functional.layer_norm(x, x.shape[-1:], eps=0.0),
        "RMSNorm": _no_mean,
        "no root": _no_root,
        "over tokens": _over_tokens,
        "over everything": _over_everything,
        "one variance for all": _variance_of_all,
        "in place": _norm_in_place,
    },
    "pre_norm_block": {
        "constant": lambda x, *parts: torch.zeros_like(x),
        "copied input": lambda x, *parts: x.clone(),
        "post-norm": _post_norm,
        "no residual": _no_residual,
        "parallel parts": _parallel,
        "second adds to the input": _second_adds_to_the_input,
        "one norm for both": _one_norm,
        "norms exchanged": _norms_exchanged,
        "parts exchanged": _parts_exchanged,
        "no norm": _no_norm,
        "norm on the stream": _norm_on_the_stream,
        "second part missing": _no_second_part,
    },
    "recall": {
        "constant": lambda x, names, facts: torch.zeros(len(x), facts.shape[1]),
        "shape only": lambda x, names, facts: torch.ones(len(x), facts.shape[1]),
        "first fact for all": lambda x, names, facts: facts[:1].expand(len(x), -1),
        "no threshold": _no_threshold,
        "threshold without factor 2": _threshold_not_scaled,
        "softmax": _attention_instead,
        "nearest name": _nearest,
        "absolute value": _absolute,
        "threshold with the wrong sign": _sign_of_the_threshold,
        "no relu": _no_relu,
        "rows share a match": _shared_maximum,
        "least squares": _least_squares,
        "threshold at 0.45": lambda *a: _threshold(*a, 0.45),
        "threshold at 0.49": lambda *a: _threshold(*a, 0.49),
    },
}
