"""Wrong answers to the exercises of notebook 01. Every one must fail its check."""

import math

import torch


def _ahead(change=torch.randn_like, visible=1e-9, words=slice(None), backwards=False):
    """The right answer, less what the arguments spoil."""

    def look_ahead(model, x):
        before, furthest = model(x), 0
        for j in range(len(x))[words]:
            changed = x.clone()
            changed[j] = change(x[j])
            difference = (model(changed) - before).abs().amax(-1)
            for t in range(len(x)):
                if not difference[t] <= visible:
                    furthest = max(furthest, abs(j - t) if backwards else j - t)
        return furthest

    return look_ahead


def _counts_rows(model, x):
    """How many outputs move, not how far ahead they look."""
    before, most = model(x), 0
    for j in range(len(x)):
        changed = x.clone()
        changed[j] = torch.randn_like(x[j])
        moved = (model(changed) - before).abs().amax(-1)[:j] > 1e-9
        most = max(most, int(moved.sum()))
    return most


def _changes_all_words(model, x):
    moved = (model(torch.randn_like(x)) - model(x)).abs().amax(-1) > 1e-9
    return int(moved.sum()) - 1


def _in_place(model, x):
    before, furthest = model(x).clone(), 0
    for j in range(len(x)):
        x[j] = torch.randn_like(x[j])
        moved = (model(x) - before).abs().amax(-1) > 1e-9
        furthest = max([furthest, *(j - t for t in range(j) if moved[t])])
    return furthest


def _first_coordinate(model, x):
    """Changes all of a word, and looks at one number of the outputs."""
    return _ahead()(lambda words: model(words)[:, :1], x)


def _first_leak(model, x):
    before = model(x)
    for j in range(len(x)):
        changed = x.clone()
        changed[j] = torch.randn_like(x[j])
        for t in range(j):
            if (model(changed) - before)[t].abs().max() > 1e-9:
                return j - t
    return 0


def _largest_of_all(scores, mask):
    """The maximum of hidden scores, too, is taken off."""
    e = (scores - scores.amax(-1, keepdim=True)).exp() * mask
    return e / e.sum(-1, keepdim=True).clamp(min=1e-300)


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


def _causal(scores):
    future = torch.ones_like(scores).triu(1).bool()
    return scores.masked_fill(future, -torch.inf)


def _fading(T, of=lambda i: i * math.log(2)):
    return of(torch.arange(T, dtype=torch.float64)).expand(T, T)


def _previous(T, score=50.0, back=1):
    return score * torch.ones(T, T, dtype=torch.float64).tril(-back).triu(-back)


def _nothing_for_row_1(T):
    previous = torch.full((T, T), -torch.inf)
    previous[range(1, T), range(T - 1)] = 0.0
    return _fading(T), previous


MUTANTS = {
    "look_ahead": {
        "constant": lambda model, x: 0,
        "always to the end": lambda model, x: len(x) - 1,
        "adds a constant": _ahead(change=lambda word: word + 1),
        "doubles the word": _ahead(change=lambda word: 2 * word),
        "NaN for a word": _ahead(change=lambda word: word * torch.nan),
        "the word stays": _ahead(change=lambda word: word.clone()),
        "last word only": _ahead(words=slice(-1, None)),
        "first word only": _ahead(words=slice(0, 1)),
        "every second word": _ahead(words=slice(0, None, 2)),
        "both directions": _ahead(backwards=True),
        "coarse": _ahead(visible=0.1),
        "counts rows": _counts_rows,
        "changes all words": _changes_all_words,
        "one coordinate": _first_coordinate,
        "makes the word zero": _ahead(change=torch.zeros_like),
        "the first leak": _first_leak,
        "in place": _in_place,
        "one too far": lambda model, x: _ahead()(model, x) + 1,
        "whether, not how far": lambda model, x: int(_ahead()(model, x) > 0),
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
        "1e-9 in the denominator": lambda scores, mask: (
            (e := scores.exp() * mask) / (e.sum(-1, keepdim=True) + 1e-9)
        ),
        "the largest of all taken off": _largest_of_all,
        "infinity times 0": lambda scores, mask: (scores - torch.inf * ~mask).softmax(-1),
        "logarithms": lambda *a: _minus_infinity_only(*a).log(),
        "all rows together": lambda scores, mask: (
            scores.masked_fill(~mask, -torch.inf).flatten().softmax(0).view(*scores.shape)
        ),
        "in float16": lambda scores, mask: _minus_infinity_only(scores.half(), mask),
        "finite constant, masked again": _finite_then_masked,
        "−1e9, masked again": lambda *a: _finite_then_masked(*a, hidden=-1e9),
        "−1e30, masked again": lambda *a: _finite_then_masked(*a, hidden=-1e30),
    },
    "scores_by_hand": {
        "constant": lambda T: (torch.zeros(T, T), torch.zeros(T, T)),
        "weights for scores": lambda T: (_fading(T, lambda i: 2**i), _previous(T)),
        "base e": lambda T: (_fading(T, lambda i: i), _previous(T)),
        "older is heavier": lambda T: (_fading(T, lambda i: -i * math.log(2)), _previous(T)),
        "three times": lambda T: (_fading(T, lambda i: i * math.log(3)), _previous(T)),
        "by row": lambda T: (_fading(T).T, _previous(T)),
        "mean": lambda T: (torch.zeros(T, T), _previous(T)),
        "exchanged": lambda T: (_previous(T), _fading(T)),
        "a score of 1": lambda T: (_fading(T), _previous(T, 1.0)),
        "a score of 5": lambda T: (_fading(T), _previous(T, 5.0)),
        "copies itself": lambda T: (_fading(T), _previous(T, back=0)),
        "the word after": lambda T: (_fading(T), _previous(T, back=-1)),
        "1e-9 in the logarithm": lambda T: (
            (0.5 ** torch.arange(T).flip(0).double() + 1e-9).log().expand(T, T),
            _previous(T),
        ),
        "powers of whole numbers": lambda T: (
            (2 ** torch.arange(T)).log().expand(T, T),
            _previous(T),
        ),
        "a score of 10": lambda T: (_fading(T), _previous(T, 10.0)),
        "two back": lambda T: (_fading(T), _previous(T, back=2)),
        "row 1 is empty": _nothing_for_row_1,
        "one answer": lambda T: _fading(T),
        "softmax done": lambda T: (_causal(_fading(T)).softmax(-1), _previous(T)),
    },
}
