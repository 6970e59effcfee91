"""Probes: look into a trained model, and reach into it while it runs.

:func:`run` keeps what a pass leaves behind: the stream before and after every block, and the maps.
The context managers change one thing of a pass (a piece of the stream, a head, a single look) for
as long as their ``with`` block lasts; :func:`run`, ``model(tokens)`` and ``attention_maps`` all see
the change. Several may be nested, or end in any order; a mean over other texts is taken when its
``with`` is entered, by the model as it is then. Afterwards the model is as it was, also after an
error. Inside, a copy of the model is refused (``RuntimeError``): it would keep the change.

Blocks and heads have the numbers of ``model.blocks`` and of a map's axis, from 0; a place in the
stream is named by how many blocks lie behind it: ``after=0`` is the embedding.

Sources: Vig et al., "Investigating Gender Bias in Language Models Using Causal Mediation Analysis"
(2020) and Meng et al., "Locating and Editing Factual Associations in GPT" (2022): patching;
Michel, Levy and Neubig, "Are Sixteen Heads Really Better than One?" (2019): heads;
nostalgebraist, "interpreting GPT: the logit lens" (2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from course.attention import MultiHeadAttention
from course.inputs import (
    require_floating,
    require_positive,
    require_rank,
    require_same,
    require_tensor,
)
from course.mixers import MeanMixer, Mixer
from course.randomness import mode_kept
from course.transformer import Transformer

#: One position, several (also as a tensor of whole numbers), or all (None).
Positions = int | Sequence[int] | Tensor | None


class Run(NamedTuple):
    """One pass: ``logits [B,T,V]``; ``streams``: after 0, 1, … L blocks, each ``[B,T,E]``;
    ``maps``: who looked at whom in each block, ``[B,H,T,T]``.
    """

    logits: Tensor
    streams: tuple[Tensor, ...]
    maps: tuple[Tensor, ...]


@torch.no_grad()
def run(model: Transformer, tokens: Tensor) -> Run:
    """A pass over ``tokens [B,T]`` by the readable path, without dropout, and all it leaves behind.

    Inside an intervention it is the changed pass. Raises ``NotImplementedError`` if a mixer has no
    weights to show, ``ValueError`` for what is no :class:`Transformer` or no tokens.
    """
    _require_model(model)
    with mode_kept(model):
        model.eval()
        streams: list[Tensor] = [model.embed(tokens)]
        maps: list[Tensor] = []
        for block in model.blocks:
            x, weights = block.with_weights(streams[-1])
            streams.append(x)
            maps.append(weights)
        return Run(model.read_out(streams[-1]), tuple(streams), tuple(maps))


@torch.no_grad()
def logit_lens(model: Transformer, streams: Sequence[Tensor]) -> Tensor:
    """What the model would say after each of ``streams``, ``[B,T,E]``: logits ``[n,B,T,V]``.

    With those of a :class:`Run` the last entry is the model's own answer. Raises ``ValueError`` for
    no stream, or one of another width.
    """
    _require_model(model)
    if not len(streams):
        raise ValueError("streams: expected at least one, got none")
    for x in streams:
        require_rank("streams", x, "B T E")
        require_same("E", {"the model": model.config.E, "streams": x.shape[2]})
    return torch.stack([model.read_out(x) for x in streams])


# ------------------------------------------------------------------------------------ the stream


@contextmanager
def patch(
    model: Transformer, stream: Tensor, *, after: int, position: Positions = None
) -> Iterator[None]:
    """Inside, the stream after ``after`` blocks is ``stream`` at ``position``, elsewhere its own.

    ``stream [B,T,E]``, or one row for all, ``[1,T,E]``, comes from another run of the same length:
    ``run(model, tokens).streams[after]``. Raises ``ValueError`` for a place that is not there or
    numbers that are not floating-point, and in the pass if the two runs differ in length, batch or
    width.
    """
    require_rank("stream", stream, "B T E")
    require_floating("stream", stream)
    chosen = _positions("position", position, stream.shape[1])

    def put(x: Tensor) -> Tensor:
        if stream.shape[1] != x.shape[1]:
            raise ValueError(
                f"stream: expected a run of the same length, T = {x.shape[1]}, "
                f"got one of T = {stream.shape[1]}"
            )
        require_same("E", {"the model": x.shape[2], "stream": stream.shape[2]})
        if len(stream) != 1:
            require_same("B", {"tokens": len(x), "stream": len(stream)})
        if stream.is_meta and not x.is_meta:
            raise ValueError("stream: expected numbers, got a meta tensor, which has none")
        x = x.clone()
        x[:, chosen] = stream[:, chosen].to(x)
        return x

    with _stream(model, after, put):
        yield


@torch.no_grad()
def patch_each(
    model: Transformer,
    tokens: Tensor,
    stream: Tensor,
    measure: Callable[[Tensor], Tensor],
    *,
    after: int,
) -> Tensor:
    """:func:`patch` at one position after the other: ``measure(logits)`` of each, ``[T, …]``.

    Raises ``ValueError`` as :func:`patch` does, for T = 0 and if ``measure`` returns no tensor.
    """
    require_rank("tokens", tokens, "B T")
    require_positive("tokens: T", tokens.shape[1])
    found = []
    for position in range(tokens.shape[1]):
        with patch(model, stream, after=after, position=position):
            found.append(measure(model(tokens)))
        require_tensor("measure", found[-1])
    return torch.stack(found)


@contextmanager
def ablate_position(
    model: Transformer, position: Positions, *, after: int, mean_over: Tensor | None = None
) -> Iterator[None]:
    """Inside, the stream after ``after`` blocks tells nothing of this text at ``position``.

    It is zero there; with ``mean_over`` (tokens ``[N,T]``) it is the mean of the streams of these
    texts at the same position. Raises ``ValueError`` as :func:`patch` does, and for no texts.
    """
    if mean_over is not None:
        _require_place(model, after)
        _require_texts(mean_over)
        mean = run(model, mean_over).streams[after].mean(0, keepdim=True)
        with patch(model, mean, after=after, position=position):
            yield
        return

    def clear(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, _positions("position", position, x.shape[1])] = 0
        return x

    with _stream(model, after, clear):
        yield


@contextmanager
def _stream(model: Transformer, after: int, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside, the stream after ``after`` blocks goes through ``change``."""
    _require_place(model, after)
    if after == 0:
        # Without an offset, which only decode gives.
        changed = {"embed": lambda embed, tokens: change(embed(tokens))}
        with _instead(model, **changed, decode=_no_decoding):
            yield
        return

    def shown(with_weights: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        y, weights = with_weights(x)
        return change(y), weights

    with (
        _instead(model, decode=_no_decoding),
        _instead(
            model.blocks[after - 1],
            forward=lambda forward, x: change(forward(x)),
            with_weights=shown,
        ),
    ):
        yield


# -------------------------------------------------------------------------------- heads and looks


@contextmanager
def ablate_head(
    model: Transformer,
    block: int,
    head: int,
    *,
    position: Positions = None,
    mean_over: Tensor | None = None,
) -> Iterator[None]:
    """Inside, one head of ``model.blocks[block]`` tells nothing of this text at ``position``.

    What it hands to W_o is zero; with ``mean_over`` (tokens ``[N,T]``) it is the mean over these
    texts, position by position. A hybrid mixer loses the head in both halves. Raises ``ValueError``
    for a block or head that is not there, a mixer without heads, no texts, and in the pass if the
    lengths differ.
    """
    mixer = _mixer(model, block)
    layers = [part for part in mixer.modules() if isinstance(part, MultiHeadAttention)]
    if not layers:
        raise ValueError(f"block: expected a mixer with heads, got {type(mixer).__name__}")
    with ExitStack() as stack:
        for layer in layers:
            _require_index("head", head, layer.H)
            mean = None if mean_over is None else _mean_of_heads(model, layer, mean_over)
            stack.enter_context(_without_head(layer, head, position, mean))
        stack.enter_context(_instead(model, decode=_no_decoding))
        yield


def _without_head(
    layer: MultiHeadAttention, head: int, position: Positions, mean: Tensor | None
) -> Any:
    """Inside, ``layer`` mixes ``head`` as zero, or as its part of ``mean [1,H,T,Dv]``."""

    def without(merge: Any, o: Tensor, form: str = "concat") -> Tensor:
        if mean is not None and mean.shape[2] != o.shape[2]:
            raise ValueError(
                f"mean_over: expected texts of the same length, T = {o.shape[2]}, "
                f"got T = {mean.shape[2]}"
            )
        chosen = _positions("position", position, o.shape[2])
        o = o.clone()
        o[:, head, chosen] = 0 if mean is None else mean[:, head, chosen].to(o)
        return merge(o, form)

    return _instead(layer, merge=without)


def _mean_of_heads(model: Transformer, layer: MultiHeadAttention, tokens: Tensor) -> Tensor:
    """What the heads hand to ``W_o``, averaged over the texts ``[N,T]``: ``[1,H,T,Dv]``."""
    _require_texts(tokens)
    found = []

    def watched(merge: Any, o: Tensor, form: str = "concat") -> Tensor:
        found.append(o.mean(0, keepdim=True))
        return merge(o, form)

    with _instead(layer, merge=watched):
        run(model, tokens)
    return found[0]


@contextmanager
def ablate_look(
    model: Transformer,
    block: int,
    query: Positions,
    key: Positions,
    *,
    head: int | None = None,
    renormalize: bool = True,
) -> Iterator[None]:
    """Inside, ``query`` gives no weight to ``key`` in ``model.blocks[block]``.

    ``head=None``: in all heads. ``renormalize``: the other weights of the row grow in proportion
    until their sum is what it was; else that part of the sum is missing. A row with nothing left
    gives zero. A hybrid mixer loses the look in both halves. Raises ``ValueError`` for a block that
    is not there, a mixer whose output is not weights times values, and in the pass for a head or
    position that is not there.
    """
    mixer = _mixer(model, block)
    parts = [part for part in mixer.modules() if _weighs(part)]
    if not parts:
        raise ValueError(
            "block: expected a mixer whose output is weights times values, "
            f"got {type(mixer).__name__}"
        )

    def without(weights: Tensor) -> Tensor:
        H, T = weights.shape[1:3]
        heads = slice(None) if head is None else _require_index("head", head, H)
        queries = _positions("query", query, T)
        row = weights[:, heads, queries]
        left = row.clone()
        left[..., _positions("key", key, T)] = 0
        if renormalize:
            before, now = row.sum(-1, keepdim=True), left.sum(-1, keepdim=True)
            left = left * torch.where(now == 0, 0, before / now)
        weights = weights.clone()
        weights[:, heads, queries] = left
        return weights

    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(_weighing(part, without))
        stack.enter_context(_instead(model, decode=_no_decoding))
        yield


def _weighs(part: nn.Module) -> bool:
    """Whether this is a mixer whose output is its weights times values."""
    own = getattr(part, "attention", None)
    return isinstance(part, MeanMixer) or (
        isinstance(part, Mixer) and isinstance(own, MultiHeadAttention)
    )


def _weighing(mixer: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Inside, ``mixer`` weighs its values with ``change(weights)``."""

    def shown(with_weights: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = change(with_weights(x)[1])
        if isinstance(mixer, MeanMixer):
            return weights[:, 0] @ x, weights
        values = mixer.attention.heads(x)[2]
        return mixer.attention.merge(weights @ values), weights

    return _instead(mixer, forward=lambda _, x: mixer.with_weights(x)[0], with_weights=shown)


# -------------------------------------------------------------------------------------- in common


@contextmanager
def _instead(owner: nn.Module, **methods: Callable[..., Any]) -> Iterator[None]:
    """Inside, ``owner`` has these methods; each is given the one whose place it takes first."""
    methods["__getstate__"] = _no_copy  # what copy, deepcopy and pickle ask for
    inside: list[dict[str, Any]] = vars(owner).setdefault("_inside", [])
    inside.append(methods)
    _rebuild(owner, methods)
    try:
        yield
    finally:
        inside[:] = [others for others in inside if others is not methods]
        _rebuild(owner, methods)
        if not inside:
            del vars(owner)["_inside"]


def _rebuild(owner: nn.Module, names: Iterable[str]) -> None:
    """Put these methods together anew, from the class's own and all interventions around."""
    own = vars(owner)
    for name in names:
        own.pop(name, None)
        for methods in own["_inside"]:
            if name in methods:
                own[name] = partial(methods[name], getattr(owner, name, None))


def _no_copy(*_: Any) -> Any:
    raise RuntimeError(
        "copy: expected a model outside of interventions: a copy made inside would keep the change"
    )


def _no_decoding(*_: Any, **__: Any) -> Any:
    raise RuntimeError(
        "decode: expected a full pass, model(tokens), inside an intervention: portions of a text "
        "have no fixed positions"
    )


def _require_model(model: Any) -> None:
    if not isinstance(model, Transformer):
        raise ValueError(f"model: expected a Transformer, got {type(model).__name__}")


def _require_place(model: Transformer, after: int) -> None:
    _require_model(model)
    _require_index("after", after, len(model.blocks) + 1)


def _require_texts(tokens: Tensor) -> None:
    """A mean over no texts would be NaN."""
    require_rank("mean_over", tokens, "N T")
    require_positive("mean_over: N", len(tokens))


def _mixer(model: Transformer, block: int) -> Mixer:
    _require_model(model)
    return model.blocks[_require_index("block", block, len(model.blocks))].mixer


def _positions(name: str, position: Positions, T: int) -> slice | list[int]:
    """As an index of the axis of ``T`` positions."""
    if position is None:
        return slice(None)
    if isinstance(position, Tensor | np.ndarray):
        position = position.tolist()
    alone = isinstance(position, str) or not isinstance(position, Iterable)
    several: Iterable[Any] = [position] if alone else position  # type: ignore[assignment]
    return [_require_index(name, one, T) for one in several]


def _require_index(name: str, value: Any, size: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) < size:
        raise ValueError(f"{name}: expected a number in 0 … {size - 1}, got {value!r}")
    return int(value)
