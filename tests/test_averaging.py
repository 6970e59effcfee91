"""The prefix mean: three forms against NumPy, and what must hold for each."""

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from course.averaging import FORMS, mean_matrix, prefix_mean
from tests.drawing import draw


def by_numpy(x):
    x = x.double().numpy()
    return np.stack([x[..., : t + 1, :].mean(-2) for t in range(x.shape[-2])], -2)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(5, 3), (2, 7, 3), (2, 3, 11, 5), (1, 1), (4, 1, 6), (3, 64, 2)])
def test_each_form_is_the_mean_so_far(form, shape):
    x = draw(*shape)
    got = prefix_mean(x, form=form)
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got.numpy(), by_numpy(x), atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3), (2, 5, 0), (0, 5, 3)])
def test_empty_axes_stay_empty(form, shape):
    assert prefix_mean(torch.zeros(*shape), form=form).shape == shape


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_sums_in_float32(form, dtype):
    # A sum of ones kept in bfloat16 stops at 256, in float16 at 2,048: the mean would fall.
    x = torch.ones(4100, 1, dtype=dtype)
    got = prefix_mean(x, form=form)
    assert got.dtype == dtype
    assert (got - 1).abs().max() < 1e-2
    large = torch.full((9, 2), 3e4, dtype=dtype)  # nine of them overflow float16
    torch.testing.assert_close(prefix_mean(large, form=form), large)


@pytest.mark.parametrize("form", FORMS)
def test_the_future_does_not_matter(form):
    x = draw(2, 9, 4)
    changed = x.clone()
    changed[:, 6] += 5.0
    a, b = prefix_mean(x, form=form), prefix_mean(changed, form=form)
    assert torch.equal(a[:, :6], b[:, :6])
    assert (a[:, 6:] != b[:, 6:]).all()


@pytest.mark.parametrize("form", FORMS)
def test_gradients_and_argument_untouched(form):
    x = draw(2, 6, 3).requires_grad_()
    before = x.detach().clone()
    assert torch.autograd.gradcheck(lambda y: prefix_mean(y, form=form), x)
    assert torch.equal(x.detach(), before)


class _Asked(TorchFunctionMode):
    """The names of the functions that are called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.add(getattr(function, "__name__", "").strip("_"))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("options", "ways"),
    [
        ({"form": "loop"}, set()),
        ({"form": "matrix"}, {"matmul", "tril"}),
        ({}, {"matmul", "tril"}),
        ({"form": "softmax"}, {"matmul", "softmax"}),
    ],
)
def test_each_form_is_a_way_of_its_own(options, ways):
    """Equal results, so equal names would hide that one form is another."""
    with _Asked() as asked:
        prefix_mean(draw(5, 3), **options)
    names = {name.replace("matmul", "matmul").strip("_") for name in asked.names}
    assert names & {"matmul", "tril", "softmax"} == {way.strip("_") for way in ways}


@pytest.mark.parametrize("form", FORMS)
def test_any_device(form):
    assert prefix_mean(draw(2, 5, 3).to("meta"), form=form).is_meta
    assert mean_matrix(3, device="meta").is_meta


def test_a_matrix_of_no_size_is_refused():
    assert mean_matrix(0).shape == (0, 0)
    for size in (-1, 2.5, "3"):
        with pytest.raises(ValueError, match="T: expected a whole number of at least 0"):
            mean_matrix(size)


@pytest.mark.parametrize("form", FORMS)
def test_autocast_does_not_reach_the_sums(form):
    x = torch.ones(4100, 3)
    with torch.autocast("cpu", torch.bfloat16):
        got = prefix_mean(x, form=form)
    assert got.dtype == torch.float32 and torch.equal(got, prefix_mean(x, form=form))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_matrix_in_half_precision_counts_in_float32(dtype):
    """bfloat16 has no 257; each entry is 1/(t+1) rounded once."""
    matrix = mean_matrix(3000, dtype=dtype)
    assert matrix.dtype == dtype
    rows = matrix[:, 0].double()
    exact = 1 / torch.arange(1, 3001).double()
    assert ((rows / exact - 1).abs() <= torch.finfo(dtype).eps).all()


@pytest.mark.parametrize("form", FORMS)
def test_strided_input(form):
    x = draw(3, 5, 7).transpose(-1, -2)
    torch.testing.assert_close(
        prefix_mean(x, form=form), prefix_mean(x.contiguous(), form=form), atol=1e-14, rtol=0
    )


def test_matrix_by_hand():
    expected = torch.tensor([[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]])
    torch.testing.assert_close(mean_matrix(3), expected)
    exact = mean_matrix(50, dtype=torch.float64)
    assert exact.dtype == torch.float64 and (exact.sum(-1) - 1).abs().max() <= 1e-15


@pytest.mark.parametrize(
    ("x", "form", "words"),
    [
        (torch.zeros(3, 2), "median", "form: expected one of loop, matrix, softmax, got 'median'"),
        (torch.zeros(3), "loop", r"x: expected a tensor \[..., T, E\], got shape \[3\]"),
        (torch.zeros(3, 2).long(), "matrix", "x: expected floating-point"),
        ([[1.0]], "loop", "x: expected a tensor .* got list"),
    ],
)
def test_bad_input_is_named(x, form, words):
    with pytest.raises(ValueError, match=words):
        prefix_mean(x, form=form)
