"""What is changed for a while and put back: streams of random numbers, a model's mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def mode_kept(model: nn.Module) -> Iterator[None]:
    """Inside, ``model`` may be put into train or eval mode; afterwards each part is as it was."""
    modes = [(part, part.training) for part in model.modules()]
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def seeded(seed: int | None, devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Inside, the streams of the CPU and of ``devices`` start from ``seed`` (None: go on).

    Afterwards they are where they were. ``torch.manual_seed`` would re-seed every accelerator of
    the machine, and nothing would put those back that no one named.
    """
    streams = _streams(devices)
    before = [stream.get_state() for stream in streams]
    try:
        for stream in streams:
            if seed is not None:
                stream.manual_seed(int(seed))
        yield
    finally:
        for stream, state in zip(streams, before, strict=True):
            stream.set_state(state)


def devices_of(model: nn.Module) -> list[torch.device]:
    """The devices that the parameters of ``model`` lie on, each once, in their order."""
    return list(dict.fromkeys(p.device for p in model.parameters()))


def random_states(devices: Iterable[torch.device] = ()) -> list[Tensor]:
    """The states of the streams of the CPU and of ``devices``, in this order, as CPU tensors."""
    return [stream.get_state() for stream in _streams(devices)]


def set_random_states(states: Iterable[Tensor], devices: Iterable[torch.device] = ()) -> None:
    """Put the streams where :func:`random_states` found them; more devices than then go on."""
    for stream, state in zip(_streams(devices), states, strict=False):
        stream.set_state(state)


def _streams(devices: Iterable[torch.device]) -> list[Any]:
    streams: list[Any] = [torch.default_generator]  # the CPU's
    for device in dict.fromkeys(devices):
        if device.type == "cuda":
            torch.cuda.init()
            index = torch.cuda.current_device() if device.index is None else device.index
            streams.append(torch.cuda.default_generators[index])
        elif device.type not in ("cpu", "meta"):
            streams.append(_Module(torch.get_device_module(device)))
    return streams


class _Module:
    """The one stream of another kind of accelerator (Apple's, Intel's), as a generator."""

    def __init__(self, module: Any) -> None:
        self.get_state, self.set_state = module.get_rng_state, module.set_rng_state
        self.manual_seed = module.manual_seed
