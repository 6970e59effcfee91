"""Seeds that move the streams they are told to, and no other."""

from __future__ import annotations

from unittest import mock

import torch

from course.randomness import random_states, seeded, set_random_states

GPU = torch.device("cuda", 1)


def fake_gpus():
    """Two GPUs, played by generators of the CPU."""
    streams = tuple(torch.Generator().manual_seed(n) for n in range(2))
    return mock.patch.multiple("torch.cuda", default_generators=streams, init=lambda: None)


def test_the_cpu_starts_from_the_seed_and_goes_on_afterwards() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(5)
    first, second = torch.rand(2)
    torch.manual_seed(5)
    assert torch.rand(1) == first
    with seeded(3):
        assert torch.equal(torch.rand(2), expected)
    assert torch.rand(1) == second
    with seeded(None):
        inside = torch.rand(1)
    assert torch.rand(1) == inside


def test_named_gpus_follow_and_others_do_not() -> None:
    with fake_gpus(), mock.patch("torch.cuda.manual_seed_all") as everything:
        one, two = torch.cuda.default_generators
        before = one.get_state(), two.get_state()
        with seeded(7, [GPU, torch.device("cpu"), torch.device("meta")]):
            assert two.initial_seed() == 7 and torch.equal(one.get_state(), before[0])
            torch.rand(3, generator=two)
            states = random_states([GPU])
            expected = torch.rand(2, generator=two)
            set_random_states(states, [GPU])
            assert torch.equal(torch.rand(2, generator=two), expected)
        assert torch.equal(two.get_state(), before[1]) and torch.equal(one.get_state(), before[0])
        assert len(states) == 2 and not everything.called


def test_other_accelerators_have_one_stream() -> None:
    stream = torch.Generator().manual_seed(1)
    apple = mock.Mock(
        get_rng_state=stream.get_state,
        set_rng_state=stream.set_state,
        manual_seed=stream.manual_seed,
    )
    before = stream.get_state()
    with mock.patch("torch.get_device_module", return_value=apple):
        with seeded(4, [torch.device("mps")]):
            assert stream.initial_seed() == 4
        assert torch.equal(stream.get_state(), before)
