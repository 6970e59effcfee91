"""Wrong answers to the exercises of notebook 04. Every one must fail its check."""

import torch


def _centred(x):
    return x - x.mean(-1, keepdim=True)


def _normed(x, correction=0):
    return _centred(x) / x.std(-1, keepdim=True, correction=correction)


def _over_tokens(x, mean, spread):
    return mean + spread * (x - x.mean(0)) / x.std(0, correction=0)


def _over_everything(x, mean, spread):
    return mean + spread * (x - x.mean()) / x.std(correction=0)


def _twin_in_place(x, mean, spread):
    x -= x.mean(-1, keepdim=True)
    x /= x.square().mean(-1, keepdim=True).sqrt()
    return mean + spread * x


def _right_diagnosis(
    block,
    x,
    *,
    other=lambda last: torch.randn_like(last),
    factor=1e6,
    mask=True,
    middle=False,
    sizes=True,
    spread=True,
    visible=1e-6,
):
    """The right answer, less what the arguments spoil."""
    changed = x.clone()
    changed[len(x) // 2 if middle else -1] = other(x[-1])
    rows = slice(0, len(x) // 2) if middle else slice(0, -1)
    if mask and ((block(changed) - block(x))[rows].abs() > visible).any():
        return "no mask"
    y = block(factor * x)
    if not sizes:
        return "healthy"
    if y.norm() < 1e-3 * factor * x.norm():
        plain = (y.std(-1, correction=0) - 1).abs().max() < 1e-6
        return "post-norm" if plain and spread else "no residual"
    return "healthy" if (y - factor * x).norm() < 1e-3 * factor * x.norm() else "no norm"


def _last_output_only(block, x):
    changed = x.clone()
    changed[0] = torch.randn_like(x[0])
    return "no mask" if ((block(changed) - block(x))[1:].abs() > 1e-6).any() else "healthy"


def _diagnose_in_place(block, x):
    x[-1] = torch.randn_like(x[-1])
    return _right_diagnosis(block, x)


def _fact(scale=None, bias=None, column=None):
    """One unit more, with another factor of the name, bias or value."""

    def write(W_1, b_1, W_2, name, fact, cosine):
        factor = scale(name, cosine) if scale else 1 / (name @ name) / (1 - cosine)
        shift = bias(cosine) if bias else -cosine / (1 - cosine)
        value = column(fact) if column else fact
        return (
            torch.cat([W_1, (factor * name)[None]]),
            torch.cat([b_1, torch.full_like(b_1[:1], shift)]),
            torch.cat([W_2, value[:, None]], 1),
        )

    return write


def _threshold(by):
    """The line through (cosine − by, 0) and (1, 1)."""
    return _fact(
        lambda name, c: 1 / (name @ name) / (1 - c + by), lambda c: -(c - by) / (1 - c + by)
    )


def _overwrites(W_1, b_1, W_2, name, fact, cosine):
    W_1, b_1, W_2 = _fact()(W_1[:-1], b_1[:-1], W_2[:, :-1], name, fact, cosine)
    return torch.cat([W_1, W_1[:1]]), torch.cat([b_1, b_1[:1]]), torch.cat([W_2, 0 * W_2[:, :1]], 1)


def _first_instead_of_last(*given):
    W_1, b_1, W_2 = _fact()(*given)
    return W_1.roll(1, 0), b_1.roll(1), W_2.roll(1, 1)


def _replaces(W_1, b_1, W_2, name, fact, cosine):
    return _fact()(0 * W_1, b_1, W_2, name, fact, cosine)


MUTANTS = {
    "twin": {
        "constant": lambda x, mean, spread: torch.full_like(x, mean),
        "copied input": lambda x, mean, spread: x.clone(),
        "divides by E − 1": lambda x, mean, spread: mean + spread * _normed(x, 1),
        "mirrored": lambda x, mean, spread: mean - spread * _normed(x),
        "mean of x left in": lambda x, mean, spread: (
            mean + spread * x / x.std(-1, keepdim=True, correction=0)
        ),
        "spread as variance": lambda x, mean, spread: mean + spread**0.5 * _normed(x),
        "spread squared": lambda x, mean, spread: mean + spread**2 * _normed(x),
        "shift scaled too": lambda x, mean, spread: spread * (_normed(x) + mean),
        "spread ignored": lambda x, mean, spread: _centred(x) + mean,
        "own spread kept": lambda x, mean, spread: mean + spread * _centred(x),
        "mean ignored": lambda x, mean, spread: spread * _normed(x),
        "shifted only": lambda x, mean, spread: x + mean,
        "over tokens": _over_tokens,
        "over everything": _over_everything,
        "in place": _twin_in_place,
    },
    "diagnose": {
        "always healthy": lambda block, x: "healthy",
        "always no norm": lambda block, x: "no norm",
        "a number": lambda block, x: 3,
        "another word": lambda block, x: "residual missing",
        "mask never tried": lambda block, x: _right_diagnosis(block, x, mask=False),
        "adds a constant": lambda block, x: _right_diagnosis(block, x, other=lambda w: w + 1),
        "doubles the word": lambda block, x: _right_diagnosis(block, x, other=lambda w: 2 * w),
        "coarse": lambda block, x: _right_diagnosis(block, x, visible=10.0),
        "sizes never tried": lambda block, x: _right_diagnosis(block, x, sizes=False),
        "factor 1": lambda block, x: _right_diagnosis(block, x, factor=1.0),
        "spread never tried": lambda block, x: _right_diagnosis(block, x, spread=False),
        "changes the first": _last_output_only,
        "mean for spread": lambda block, x: (
            "post-norm" if block(x).mean(-1).abs().max() < 100 else "healthy"
        ),
        "in place": _diagnose_in_place,
    },
    "write_fact": {
        "nothing written": lambda W_1, b_1, W_2, *_: (W_1, b_1, W_2),
        "zeros": _fact(lambda *_: 0.0, lambda c: 0.0, torch.zeros_like),
        "name of length 1": _fact(lambda name, c: 1 / (1 - c)),
        "length not squared": _fact(lambda name, c: 1 / name.norm() / (1 - c)),
        "no threshold": _fact(lambda name, c: 1 / (name @ name), lambda c: 0.0),
        "sign of the threshold": _fact(bias=lambda c: c / (1 - c)),
        "own match not 1": _fact(lambda name, c: 1 / (name @ name), lambda c: -c),
        "always one half": _fact(lambda name, c: 2 / (name @ name), lambda c: -1.0),
        "threshold 0.05 too low": _threshold(0.05),
        "threshold 0.01 too low": _threshold(0.01),
        "fact mirrored": _fact(column=lambda fact: -fact),
        "fact of length 1": _fact(column=lambda fact: fact / fact.norm()),
        "overwrites a unit": _overwrites,
        "old units erased": _replaces,
        "written in front": _first_instead_of_last,
        "always on": _fact(lambda *_: 0.0, lambda c: 1.0),
    },
}
