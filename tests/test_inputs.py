"""Each check of an argument accepts what is right and says what is wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from course.inputs import (
    require_bool,
    require_broadcast,
    require_choice,
    require_flag,
    require_floating,
    require_key_mask,
    require_number,
    require_positive,
    require_rank,
    require_same,
    require_same_device,
    require_same_dtype,
    require_tensor,
)

x = torch.zeros(2, 3, 5)
yes = torch.ones(2, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    "call",
    [
        lambda: require_tensor("x", x),
        lambda: require_rank("x", x, "B T E"),
        lambda: require_rank("x", torch.tensor(1.0), ""),
        lambda: require_same("D", {"q": 3, "k": 3, "v": 3}),
        lambda: require_broadcast("m", yes, (2, 3), "T S"),
        lambda: require_broadcast("m", yes[:1], (7, 2, 3), "B T S"),
        lambda: require_broadcast("m", torch.tensor(True), (2, 3), "T S"),
        lambda: require_broadcast("m", torch.ones(1, 3), (0, 3), "T S"),
        lambda: require_bool("m", yes, "True = may look"),
        lambda: require_number("scale", -0.5),
        lambda: require_number("scale", np.float32(2), above=1),
        lambda: require_number("scale", 10**400 // 10**399, above=0),
        lambda: require_flag("causal", False),
        lambda: require_flag("causal", np.bool_(True)),
        lambda: require_number("scale", np.float64(0.5)),
        lambda: require_number("scale", np.int64(2), above=1),
        lambda: require_key_mask(yes, torch.ones(2, 5, 3, 4)),
        lambda: require_choice("impl", "torch", ("reference", "torch")),
        lambda: require_choice("impl", "torch", {"reference": 1, "torch": 2}),
        lambda: require_positive("H", 1),
        lambda: require_positive("H", np.int64(4)),
        lambda: require_positive("T", 0, minimum=0),
        lambda: require_floating("x", x.half()),
        lambda: require_same_dtype(q=x, k=x),
        lambda: require_same_device(q=x, k=x.double()),
    ],
)
def test_accepts_what_is_right(call):
    assert call() is None


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: require_tensor("x", [1]), "x: expected a tensor, got list"),
        (lambda: require_tensor("x", None, "B T"), "x: expected a tensor [B T], got NoneType"),
        (
            lambda: require_rank("q", x, "B H T D"),
            "q: expected 4 axes [B H T D], got 3 with shape [2, 3, 5]",
        ),
        (
            lambda: require_rank("q", np.zeros(3), "B H T D"),
            "q: expected a tensor [B H T D], got ndarray",
        ),
        (
            lambda: require_same("H", {"q": 3, "k": 4}),
            "q and k: expected equal sizes on axis H, got q has 3, k has 4",
        ),
        (
            lambda: require_broadcast("mask", yes, (3, 2), "T S"),
            "mask: expected a shape that broadcasts to [T S] = [3, 2], got [2, 3]",
        ),
        # A mask must not enlarge what it is put on.
        (
            lambda: require_broadcast("mask", yes, (1, 3), "T S"),
            "mask: expected a shape that broadcasts to [T S] = [1, 3], got [2, 3]",
        ),
        (
            lambda: require_broadcast("mask", torch.ones(4, 2, 3), (2, 3), "T S"),
            "mask: expected a shape that broadcasts to [T S] = [2, 3], got [4, 2, 3]",
        ),
        (
            lambda: require_broadcast("mask", torch.ones(0, 3), (1, 3), "T S"),
            "mask: expected a shape that broadcasts to [T S] = [1, 3], got [0, 3]",
        ),
        (
            lambda: require_broadcast("mask", [True], (1, 3), "T S"),
            "mask: expected a tensor [T S], got list",
        ),
        (
            lambda: require_bool("mask", yes.long(), "True = may look"),
            "mask: expected a boolean tensor (True = may look), got torch.int64",
        ),
        (
            lambda: require_bool("mask", np.array([True]), ""),
            "mask: expected a tensor, got ndarray",
        ),
        (
            lambda: require_choice("impl", "fast", ("reference", "torch")),
            "impl: expected one of reference, torch, got 'fast'",
        ),
        (
            lambda: require_choice("impl", [], {"reference": 1, "torch": 2}),
            "impl: expected one of reference, torch, got []",
        ),
        (
            lambda: require_choice("impl", np.array(["fast", "torch"]), ("reference", "torch")),
            "impl: expected one of reference, torch, got array(['fast', 'torch'], dtype='<U5')",
        ),
        (
            lambda: require_number("scale", 10**318),
            f"scale: expected a finite number, got {10**318}",
        ),
        (lambda: require_positive("H", 0), "H: expected a whole number of at least 1, got 0"),
        (
            lambda: require_positive("T", -1, minimum=0),
            "T: expected a whole number of at least 0, got -1",
        ),
        (lambda: require_positive("H", 2.0), "H: expected a whole number of at least 1, got 2.0"),
        (lambda: require_positive("H", True), "H: expected a whole number of at least 1, got True"),
        (lambda: require_positive("H", "4"), "H: expected a whole number of at least 1, got '4'"),
        (
            lambda: require_positive("H", float("nan")),
            "H: expected a whole number of at least 1, got nan",
        ),
        (
            lambda: require_floating("x", torch.ones(2, dtype=torch.int32)),
            "x: expected floating-point numbers, got torch.int32",
        ),
        (lambda: require_floating("x", 1.0), "x: expected a tensor, got float"),
        (
            lambda: require_same_dtype(q=x, k=x.double()),
            "q and k: expected one dtype, got q has torch.float32, k has torch.float64",
        ),
        (
            lambda: require_same_device(q=x, k=x.to("meta")),
            "q and k: expected one device, got q on cpu, k on meta",
        ),
    ],
)
def test_says_what_came_and_what_was_expected(call, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        call()
