"""Wrong answers to the exercises of notebook 01. Every one must fail its check."""

import torch


def _mean_uncounted(x):
    return x.cumsum(0)


def _mean(x):
    return x.cumsum(0) / torch.arange(1, len(x) + 1)[:, None]


def _mean_by_length(x):
    return x.cumsum(0) / len(x)


def _mean_without_present(x):
    counts = torch.arange(len(x)).clamp(min=1)[:, None]
    return (x.cumsum(0) - x) / counts


def _mean_wrong_axis(x):
    return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)


def _mean_in_place(x):
    x.cumsum_(0)
    return x / torch.arange(1, len(x) + 1)[:, None]


def _mean_of_the_rest(x):
    return (x.flip(0).cumsum(0) / torch.arange(1, len(x) + 1)[:, None]).flip(0)


def _mean_of_two(x):
    before = torch.cat([x[:1], x[:-1]])
    return (x + before) / 2


def _finite_constant(scores, mask):
    return scores.masked_fill(~mask, -1e5).softmax(-1)


def _finite_then_masked(scores, mask, hidden=-1e5):
    return scores.masked_fill(~mask, hidden).softmax(-1) * mask


def _minus_infinity_only(scores, mask):
    return scores.masked_fill(~mask, -torch.inf).softmax(-1)


def _mask_after(scores, mask):
    return scores.softmax(-1) * mask


def _scores_times_mask(scores, mask):
    return (scores * mask).softmax(-1)


def _wrong_axis(scores, mask):
    return scores.masked_fill(~mask, -torch.inf).softmax(0).nan_to_num(0.0)


def _no_maximum(scores, mask):
    weights = scores.exp() * mask
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)


def _inverted(scores, mask):
    return scores.masked_fill(mask, -torch.inf).softmax(-1).nan_to_num(0.0)


def _uniform_rows(scores, mask):
    return mask / mask.sum(-1, keepdim=True).clamp(min=1)


def _from_probabilities(logits, targets, change=lambda p: p):
    p = logits.softmax(-1)[torch.arange(len(targets)), targets]
    return (-change(p).log().mean()).exp()


def _mean_of_exponentials(logits, targets):
    loss = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    return loss.exp().mean()


def _sum_of_losses(logits, targets):
    return torch.nn.functional.cross_entropy(logits, targets, reduction="sum").exp()


def _base_two(logits, targets):
    return 2 ** torch.nn.functional.cross_entropy(logits, targets)


def _no_softmax(logits, targets):
    return (-logits[torch.arange(len(targets)), targets]).mean().exp()


def _no_exponential(logits, targets):
    return torch.nn.functional.cross_entropy(logits, targets)


def _entropy_of_the_model(logits, targets):
    p = logits.softmax(-1)
    return (-(p * p.log()).sum(-1)).mean().exp()


MUTANTS = {
    "running_mean": {
        "constant": lambda x: torch.ones_like(x),
        "copied input": lambda x: x.clone(),
        "shape only": lambda x: torch.zeros(x.shape),
        "sum, not mean": _mean_uncounted,
        "divides by T": _mean_by_length,
        "off by one": _mean_without_present,
        "wrong axis": _mean_wrong_axis,
        "in place": _mean_in_place,
        "mean of the rest": _mean_of_the_rest,
        "mean of all": lambda x: x.mean(0).expand_as(x),
        "mean of two": _mean_of_two,
        "float32": lambda x: _mean(x.float()),
        "summed in float32": lambda x: _mean(x.float()).double(),
        "rounded": lambda x: (_mean(x) * 1e6).round() / 1e6,
    },
    "masked_softmax": {
        "constant": lambda scores, mask: torch.full(scores.shape, 1 / scores.shape[-1]),
        "copied input": lambda scores, mask: scores.clone(),
        "uniform over allowed": _uniform_rows,
        "finite constant": _finite_constant,
        "NaN in an empty row": _minus_infinity_only,
        "mask after softmax": _mask_after,
        "scores times mask": _scores_times_mask,
        "wrong axis": _wrong_axis,
        "maximum not taken off": _no_maximum,
        "mask inverted": _inverted,
        "finite constant, masked again": _finite_then_masked,
        "−1e9, masked again": lambda *a: _finite_then_masked(*a, hidden=-1e9),
        "−1e30, masked again": lambda *a: _finite_then_masked(*a, hidden=-1e30),
    },
    "perplexity": {
        "constant": lambda logits, targets: torch.tensor(float(logits.shape[-1])),
        "shape only": lambda logits, targets: torch.tensor(1.0),
        "exp before mean": _mean_of_exponentials,
        "sum": _sum_of_losses,
        "base two": _base_two,
        "no log-softmax": _no_softmax,
        "no exp": _no_exponential,
        "targets ignored": _entropy_of_the_model,
        "log of softmax": _from_probabilities,
        "log of softmax + 1e-9": lambda *a: _from_probabilities(*a, lambda p: p + 1e-9),
        "log of softmax, clamped": lambda *a: _from_probabilities(*a, lambda p: p.clamp(1e-300)),
    },
}
