"""Wrong interventions, which ``tests/test_probes.py`` must refuse.

Each mutant has the public functions of ``course.probes``.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course import probes
from course.transformer import Transformer
from tests import test_probes
from tests.mutants import Suite, fresh_module

CHECKS = {
    name.removeprefix("test_").replace("_", " "): test
    for name, test in vars(test_probes).items()
    if name.startswith("test_") and list(inspect.signature(test).parameters) == ["m"]
}
CHECKS |= {
    f"{name} {label}": (lambda m, test=test, given=given: test(m, **given))
    for name, test, cases in (
        (
            "a patch",
            test_probes.test_a_patch_is_the_pass_with_that_piece_exchanged,
            {
                "of the embedding": {"after": 0, "position": 0},
                "at the end": {"after": 3, "position": [1, 4]},
            },
        ),
        (
            "no position",
            test_probes.test_a_position_without_its_stream,
            {
                "zero": {"after": 1, "mean_over": None},
                "mean": {"after": 2, "mean_over": test_probes.MANY},
            },
        ),
        (
            "no head",
            test_probes.test_a_head_without_its_output,
            {
                "zero": {"block": 1, "mean_over": None, "position": None},
                "mean": {"block": 2, "mean_over": test_probes.MANY, "position": [2, 6]},
            },
        ),
        (
            "no look",
            test_probes.test_a_look_taken_away,
            {
                "in all heads": {"query": 5, "key": 2, "head": None, "renormalize": True},
                "in one head": {"query": 6, "key": [0, 3], "head": 2, "renormalize": False},
            },
        ),
        (
            "as it was",
            test_probes.test_the_model_is_as_it_was,
            {name: {"name": name} for name in ("softmax", "hybrid", "mean")},
        ),
    )
    for label, given in cases.items()
}


def instead(**changes: Any) -> Callable[[], Any]:
    """The module with other functions in the place of some."""
    public = {name: value for name, value in vars(probes).items() if not name.startswith("_")}
    return lambda: types.SimpleNamespace(**(public | changes))


def internal(name: str, wrong: Callable[..., Any]) -> Callable[[], Any]:
    """A copy of the module in which an inner function is ``wrong``."""

    def make() -> Any:
        module = fresh_module("course.probes")
        setattr(module, name, wrong)
        return module

    return make


@contextmanager
def one_block_late(model: Transformer, stream: Tensor, *, after: int, position: Any = None) -> Any:
    after = min(after + 1, len(model.blocks))
    with probes.patch(model, stream, after=after, position=position):
        yield


@contextmanager
def everywhere(model: Transformer, stream: Tensor, *, after: int, position: Any = None) -> Any:
    with probes.patch(model, stream, after=after):
        yield


@contextmanager
def added(model: Transformer, stream: Tensor, *, after: int, position: Any = None) -> Any:
    """What is patched in comes on top of what is there."""
    own = probes._stream(model, after, lambda x: x)  # noqa: F841 - the same checks

    def put(x: Tensor) -> Tensor:
        x = x.clone()
        where = slice(None) if position is None else position
        x[:, where] = x[:, where] + stream[:, where]
        return x

    with probes._stream(model, after, put):
        yield


@contextmanager
def in_place(model: Transformer, stream: Tensor, *, after: int, position: Any = None) -> Any:
    """Writes into the stream that it is given."""

    def put(x: Tensor) -> Tensor:
        where = slice(None) if position is None else position
        stream[:, where] += 0.5
        return x

    with probes._stream(model, after, put):
        yield


@contextmanager
def fast_path_only(model: Transformer, stream: Tensor, *, after: int, position: Any = None) -> Any:
    """A hook on the block, which the readable path does not call."""
    block = model.blocks[max(after - 1, 0)]

    def put(_: Any, __: Any, x: Tensor) -> Tensor:
        x = x.clone()
        where = slice(None) if position is None else position
        x[:, where] = stream[:, where]
        return x

    hook = block.register_forward_hook(put)
    try:
        yield
    finally:
        hook.remove()


def put(owner: Any, methods: dict[str, Any]) -> dict[str, Any]:
    """Put the methods in place, each given the one before it; returns what was there."""
    own = vars(owner)
    before = {name: own[name] for name in methods if name in own}
    own.update({name: partial(f, getattr(owner, name)) for name, f in methods.items()})
    return before


@contextmanager
def left_behind(owner: Any, **methods: Any) -> Iterator[None]:
    """Not put back after an error."""
    before = put(owner, methods)
    yield
    for name in methods:
        del vars(owner)[name]
    vars(owner).update(before)


@contextmanager
def forgets_what_was_around(owner: Any, **methods: Any) -> Iterator[None]:
    """An inner intervention takes the outer one with it."""
    put(owner, methods)
    try:
        yield
    finally:
        for name in methods:
            vars(owner).pop(name, None)


@contextmanager
def put_back_in_order_only(owner: Any, **methods: Any) -> Iterator[None]:
    """What was there at the beginning comes back, though it may have ended meanwhile."""
    before = put(owner, methods)
    try:
        yield
    finally:
        for name in methods:
            vars(owner).pop(name, None)
        vars(owner).update(before)


@contextmanager
def mean_of_this_text(
    model: Transformer, position: Any, *, after: int, mean_over: Tensor | None = None
) -> Any:
    """The mean is over positions of the texts, not over the texts."""
    if mean_over is None:
        with probes.ablate_position(model, position, after=after):
            yield
        return
    mean = probes.run(model, mean_over).streams[after].mean((0, 1), keepdim=True)
    with probes.patch(
        model, mean.expand(1, mean_over.shape[1], -1), after=after, position=position
    ):
        yield


@contextmanager
def next_head(model: Transformer, block: int, head: int, **options: Any) -> Any:
    H = model.config.H
    with probes.ablate_head(model, block, head if head >= H else (head + 1) % H, **options):
        yield


@contextmanager
def head_everywhere(
    model: Transformer, block: int, head: int, *, position: Any = None, mean_over: Any = None
) -> Any:
    with probes.ablate_head(model, block, head, mean_over=mean_over):
        yield


@contextmanager
def head_never_mean(
    model: Transformer, block: int, head: int, *, position: Any = None, mean_over: Any = None
) -> Any:
    with probes.ablate_head(model, block, head, position=position):
        yield


@contextmanager
def look_turned(model: Transformer, block: int, query: Any, key: Any, **options: Any) -> Any:
    """Query and key in the wrong order."""
    with probes.ablate_look(model, block, key, query, **options):
        yield


@contextmanager
def always_shared(
    model: Transformer,
    block: int,
    query: Any,
    key: Any,
    *,
    renormalize: bool = True,
    **options: Any,
) -> Any:
    with probes.ablate_look(model, block, query, key, renormalize=True, **options):
        yield


@contextmanager
def in_all_heads(
    model: Transformer, block: int, query: Any, key: Any, *, head: Any = None, **options: Any
) -> Any:
    with probes.ablate_look(model, block, query, key, **options):
        yield


@torch.no_grad()
def lens_without_norm(model: Transformer, streams: Any) -> Tensor:
    return torch.stack([model.output(x) for x in streams])


def run_in_training(model: Transformer, tokens: Tensor) -> Any:
    """Dropout stays on."""
    streams, maps = [model.embed(tokens)], []
    for block in model.blocks:
        x, weights = block.with_weights(streams[-1])
        streams.append(x.detach())
        maps.append(weights.detach())
    return probes.Run(model.read_out(streams[-1]).detach(), tuple(streams), tuple(maps))


def keeps_patches(model: Any, tokens: Tensor, stream: Tensor, measure: Any, *, after: int) -> Any:
    """From position to position more is patched."""
    found = []
    for position in range(tokens.shape[1]):
        with probes.patch(model, stream, after=after, position=list(range(position + 1))):
            found.append(measure(model(tokens)))
    return torch.stack(found)


MUTANTS = {
    "a patch comes one block late": instead(patch=one_block_late),
    "a patch is made everywhere": instead(patch=everywhere),
    "a patch is added": instead(patch=added),
    "a patch changes its source": instead(patch=in_place),
    "the readable path is not patched": instead(patch=fast_path_only),
    "after an error the model stays changed": internal("_instead", left_behind),
    "an inner context ends the outer one": internal("_instead", forgets_what_was_around),
    "a context that ends early comes back": internal("_instead", put_back_in_order_only),
    "the mean is over positions": instead(ablate_position=mean_of_this_text),
    "the next head is taken away": instead(ablate_head=next_head),
    "a head is taken away everywhere": instead(ablate_head=head_everywhere),
    "a head never gives its mean": instead(ablate_head=head_never_mean),
    "query and key are exchanged": instead(ablate_look=look_turned),
    "what is left always grows": instead(ablate_look=always_shared),
    "a look is taken from all heads": instead(ablate_look=in_all_heads),
    "the lens forgets the last norm": instead(logit_lens=lens_without_norm),
    "a run keeps the dropout": instead(run=run_in_training),
    "patches add up from place to place": instead(patch_each=keeps_patches),
}

SUITE = Suite("probes", instead(), MUTANTS, CHECKS)
