"""The model of the course: token and position vectors, blocks of a mixer and a feed-forward part.

A *mixer* is what moves information between positions; it is chosen by name, so that the whole
ladder from "no context" to GPT-2 is one class. Other modules add mixers with
:func:`register_mixer`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course.attention import MultiHeadAttention, attention_weights, softmax_attention
from course.inputs import (
    require_choice,
    require_flag,
    require_number,
    require_positive,
    require_rank,
    require_same,
)
from course.positions import alibi_bias, apply_rope, sinusoids

POSITIONS = ("none", "learned", "sinusoidal", "rope", "alibi")
NORMS = ("none", "pre", "post")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}


@dataclass(frozen=True)
class TransformerConfig:
    """Everything that fixes a :class:`Transformer` up to its random numbers; plain JSON types only.

    ``E`` width of the stream, ``L`` blocks, ``H`` heads, ``D`` and ``Dv`` widths of a key and a
    value (None = ``E // H``). ``max_length``: rows of the learned position table; the other
    schemes know no limit. ``mixer``: a name, or a list of ``L`` names, one a block.
    ``mixer_options``: keyword arguments of the mixer, or a list of ``L`` of them. ``positions``,
    ``norm``: see ``POSITIONS``, ``NORMS``. ``residual``: add each part's output to the stream
    (False: it replaces the stream). ``hidden``: feed-forward width (None = 4·E, 0 = no
    feed-forward part). ``tied``: the output matrix is the token table; only an untied output has
    a bias. ``scale``: factor of the scores (None = ``D**-0.5``).

    Raises ``ValueError`` that names the field, what came and what was expected.
    """

    vocab_size: int
    E: int = 128
    L: int = 1
    H: int = 4
    D: int | None = None
    Dv: int | None = None
    max_length: int = 128
    mixer: str | tuple[str, ...] = "softmax"
    mixer_options: Mapping[str, Any] | tuple[Mapping[str, Any], ...] = field(
        default_factory=dict, hash=False
    )
    positions: str = "none"
    norm: str = "pre"
    residual: bool = True
    hidden: int | None = None
    activation: str = "gelu"
    tied: bool = False
    dropout: float = 0.0
    scale: float | None = None

    def __post_init__(self) -> None:
        # JSON knows lists only; a frozen object keeps tuples.
        for name in ("mixer", "mixer_options"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("vocab_size", "E", "H", "max_length"):
            require_positive(name, getattr(self, name))
        require_positive("L", self.L, minimum=0)
        for name in ("D", "Dv"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
            elif self.E % self.H:
                raise ValueError(f"H: expected a divisor of E = {self.E}, got {self.H}")
        if self.hidden is not None:
            require_positive("hidden", self.hidden, minimum=0)
        require_choice("positions", self.positions, POSITIONS)
        require_choice("norm", self.norm, NORMS)
        require_choice("activation", self.activation, ACTIVATIONS)
        for name in ("residual", "tied"):
            require_flag(name, getattr(self, name))
        if not (isinstance(self.dropout, int | float) and 0 <= self.dropout < 1):
            raise ValueError(f"dropout: expected a number in [0, 1), got {self.dropout!r}")
        if self.scale is not None:
            require_number("scale", self.scale)
        for name, kind, meaning in (
            ("mixer", str, "a name"),
            ("mixer_options", Mapping, "a dict"),
        ):
            self._check_layers(name, kind, meaning)

    def _check_layers(self, name: str, kind: type, meaning: str) -> None:
        value = getattr(self, name)
        if isinstance(value, kind):
            return
        if not isinstance(value, tuple) or not all(isinstance(item, kind) for item in value):
            raise ValueError(f"{name}: expected {meaning} or a list of L of them, got {value!r}")
        if len(value) != self.L:
            raise ValueError(f"{name}: expected L = {self.L} entries, got {len(value)}")

    @property
    def key_width(self) -> int:
        """``D``, with the default filled in."""
        return self.E // self.H if self.D is None else self.D

    @property
    def value_width(self) -> int:
        """``Dv``, with the default filled in."""
        return self.E // self.H if self.Dv is None else self.Dv

    @property
    def hidden_width(self) -> int:
        """``hidden``, with the default filled in."""
        return 4 * self.E if self.hidden is None else self.hidden

    def layer(self, index: int) -> tuple[str, Mapping[str, Any]]:
        """Name and options of the mixer of block ``index``."""
        name = self.mixer if isinstance(self.mixer, str) else self.mixer[index]
        options = self.mixer_options
        return name, options[index] if isinstance(options, tuple) else options

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for ``json.dumps``."""
        plain = asdict(self)
        for name in ("mixer", "mixer_options"):
            if isinstance(plain[name], tuple):
                plain[name] = list(plain[name])
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TransformerConfig:
        """The inverse of :meth:`to_dict`; an unknown field is a ``ValueError``."""
        known = [f.name for f in fields(cls)]
        for name in values:
            require_choice("TransformerConfig", name, known)
        return cls(**values)


GPT2_SMALL = TransformerConfig(
    vocab_size=50_257, E=768, L=12, H=12, max_length=1_024, positions="learned", tied=True
)


class Mixer(nn.Module):
    """What moves information between positions, causally: output t depends on inputs 0 … t only.

    A mixer gives the same outputs in three ways: all at once (``forward``), with its weights
    (``with_weights``), and in portions (``decode``).
    """

    #: Position schemes that act inside this mixer (``rope``, ``alibi``).
    relative_positions: tuple[str, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        """``x [B,T,E]`` → ``[B,T,E]``."""
        raise NotImplementedError(f"{type(self).__name__} has no full pass")

    def with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output ``[B,T,E]`` by the readable path, and the weights ``[B,H,T,T]`` used in it."""
        raise NotImplementedError(f"{type(self).__name__} has no weights to show")

    def decode(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Outputs of the new tokens ``x [B,T,E]`` after those that ``state`` (None at first) holds.

        Returns a new state and leaves the given one as it was.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot decode step by step")


MixerFactory = Callable[..., Mixer]
Factory = TypeVar("Factory", bound=MixerFactory)
_MIXERS: dict[str, MixerFactory] = {}


def register_mixer(name: str) -> Callable[[Factory], Factory]:
    """Make ``factory(config, **options) -> Mixer`` available as ``mixer=name`` (a decorator)."""

    def add(factory: Factory) -> Factory:
        if _MIXERS.get(name, factory) is not factory:
            raise ValueError(f"mixer: expected a new name, got {name!r}, which is taken")
        _MIXERS[name] = factory
        return factory

    return add


def mixer_names() -> list[str]:
    """The names that ``TransformerConfig.mixer`` may have."""
    # Mixers with a recurrent state live in a module of their own that imports this one.
    if importlib.util.find_spec("course.mixers"):
        importlib.import_module("course.mixers")
    return list(_MIXERS)


def build_mixer(config: TransformerConfig, index: int) -> Mixer:
    """The mixer of block ``index``; ``ValueError`` for an unknown name or option."""
    name, options = config.layer(index)
    require_choice("mixer", name, mixer_names())
    try:
        inspect.signature(_MIXERS[name]).bind(config, **options)
    except TypeError as error:
        known = list(inspect.signature(_MIXERS[name]).parameters)[1:]
        raise ValueError(
            f"mixer_options: mixer {name!r} expected options among {known}, "
            f"got {sorted(options)} ({error})"
        ) from None
    return _MIXERS[name](config, **options)


@register_mixer("none")
class NoMixer(Mixer):
    """No context: the block has no mixing part, every position stays alone."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """``x [B,T,E]``, unchanged."""
        return x

    def with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x`` and the identity ``[B,1,T,T]``: each position looks at itself."""
        return x, torch.eye(x.shape[1]).to(x).expand(x.shape[0], 1, -1, -1)

    def decode(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """``x``, unchanged; there is no state."""
        return x, state


class MeanState(NamedTuple):
    """What the prefix mean carries: the sum ``[B,E]`` of all inputs so far, and how many."""

    total: Tensor
    seen: int


@register_mixer("mean")
class MeanMixer(Mixer):
    """The mean of all positions so far, the current one included; no parameters."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """``x [B,T,E]`` → the prefix means ``[B,T,E]``."""
        return self.decode(x, None)[0]

    def with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same by its matrix: row t of ``[B,1,T,T]`` holds ``1/(t+1)`` up to column t."""
        rows = torch.ones(x.shape[1], x.shape[1], device=x.device, dtype=x.dtype).tril()
        weights = rows / rows.sum(-1, keepdim=True)
        return weights @ x, weights.expand(x.shape[0], 1, -1, -1)

    def decode(self, x: Tensor, state: MeanState | None) -> tuple[Tensor, MeanState]:
        """Continue the running sum of ``state`` with ``x [B,T,E]``."""
        state = MeanState(torch.zeros_like(x[:, :0].sum(1)), 0) if state is None else state
        T = x.shape[1]
        totals = torch.cat([state.total.unsqueeze(1), x], dim=1).cumsum(1)
        counts = torch.arange(state.seen + 1, state.seen + T + 1, device=x.device).to(x.dtype)
        return totals[:, 1:] / counts.unsqueeze(-1), MeanState(totals[:, -1], state.seen + T)


class SoftmaxState(NamedTuple):
    """Keys ``[B,H,S,D]`` and values ``[B,H,S,Dv]`` kept, and the number of tokens ever seen."""

    k: Tensor
    v: Tensor
    seen: int


@register_mixer("softmax")
class SoftmaxMixer(Mixer):
    """Causal multi-head softmax attention; ``window=w`` looks at the last ``w`` positions only.

    ``mix_heads=False`` leaves out the output matrix W_o (then ``H·Dv`` must be ``E``);
    ``bias=False`` leaves out all biases. ``impl="triton"`` attends by the course's GPU kernel,
    which has no dropout of weights.
    """

    relative_positions = ("rope", "alibi")

    def __init__(
        self,
        config: TransformerConfig,
        *,
        window: int | None = None,
        mix_heads: bool = True,
        bias: bool = True,
        impl: str = "torch",
    ) -> None:
        super().__init__()
        require_choice("impl", impl, ("torch", "triton"))
        if impl == "triton" and config.dropout:
            raise ValueError(
                f'dropout: expected 0 with impl="triton", which has no dropout of weights, '
                f"got {config.dropout}"
            )
        self.impl = impl
        if window is not None:
            require_positive("window", window)
        self.positions, self.scale = config.positions, config.scale
        self.window, self.dropout = window, config.dropout
        self.attention = MultiHeadAttention(
            config.E, config.H, D=config.key_width, Dv=config.value_width, bias=bias
        )
        if not mix_heads:
            width = config.H * config.value_width
            require_same("E", {"H·Dv (needed for mix_heads=False)": width, "E": config.E})
            self.attention.W_o = nn.Identity()  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        """``x [B,T,E]`` → ``[B,T,E]`` through PyTorch's fused attention, or the course's."""
        q, k, v = self._heads(x, 0)
        dropout = self.dropout if self.training else 0.0
        if self.impl == "triton":
            o = self._attend(q, k, v, impl="triton")
        elif self.window is None and self.positions != "alibi":
            # Every query sees itself and T = S: none of the special rows of softmax_attention.
            o = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=self.scale, dropout_p=dropout
            )
        elif dropout:
            o = F.dropout(self._weights(q, k), dropout) @ v
        else:
            o = self._attend(q, k, v, impl="torch")
        return self.attention.merge(o)

    def with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same, without dropout, by the readable reference, and its weights ``[B,H,T,T]``."""
        q, k, v = self._heads(x, 0)
        return self.attention.merge(self._attend(q, k, v, impl="reference")), self._weights(q, k)

    def decode(self, x: Tensor, state: SoftmaxState | None) -> tuple[Tensor, SoftmaxState]:
        """Attend from ``x [B,T,E]`` to the keys in ``state`` and to the new ones."""
        seen = 0 if state is None else state.seen
        q, k, v = self._heads(x, seen)
        if state is not None:
            k, v = torch.cat([state.k, k], dim=2), torch.cat([state.v, v], dim=2)
        y = self.attention.merge(self._attend(q, k, v, impl=self.impl))
        # The next token sees itself and w − 1 older ones; what left the window is dropped.
        first = 0 if self.window is None else max(0, k.shape[2] - self.window + 1)
        return y, SoftmaxState(k[:, :, first:], v[:, :, first:], seen + x.shape[1])

    def _heads(self, x: Tensor, offset: int) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.attention.heads(x)
        if self.positions == "rope":
            q, k = apply_rope(q, offset=offset), apply_rope(k, offset=offset)
        return q, k, v

    def _bias(self, q: Tensor, k: Tensor) -> Tensor | None:
        if self.positions != "alibi":
            return None
        return alibi_bias(q.shape[1], q.shape[2], k.shape[2]).to(q)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, impl: str) -> Tensor:
        return softmax_attention(
            q,
            k,
            v,
            causal=True,
            window=self.window,
            bias=self._bias(q, k),
            scale=self.scale,
            impl=impl,
        )

    def _weights(self, q: Tensor, k: Tensor) -> Tensor:
        return attention_weights(
            q, k, causal=True, window=self.window, bias=self._bias(q, k), scale=self.scale
        )


@register_mixer("window")
def window_mixer(
    config: TransformerConfig,
    *,
    window: int = 64,
    mix_heads: bool = True,
    bias: bool = True,
    impl: str = "torch",
) -> SoftmaxMixer:
    """Softmax attention over the last ``window`` positions, the current one included."""
    return SoftmaxMixer(config, window=window, mix_heads=mix_heads, bias=bias, impl=impl)


class FeedForward(nn.Module):
    """``W_2 · activation(W_1 · x)``, alone at each position: ``[B,T,E]`` → ``[B,T,E]``."""

    def __init__(self, E: int, hidden: int, activation: str = "gelu") -> None:
        super().__init__()
        self.W_1 = nn.Linear(E, hidden)
        self.W_2 = nn.Linear(hidden, E)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        """Nothing passes between positions."""
        return self.W_2(self.activation(self.W_1(x)))


class Block(nn.Module):
    """A mixer, then a feed-forward part, each with its norm and its way into the stream.

    ``pre``: ``x + part(norm(x))``; ``post``: ``norm(x + part(x))``; ``none``: ``x + part(x)``.
    Without ``residual`` the part's output takes the place of ``x +`` it. A mixer ``none`` and
    ``hidden=0`` leave the part out, with its norm.
    Source: Vaswani et al. 2017 (post); Xiong et al., "On Layer Normalization in the Transformer
    Architecture" (2020) (pre).
    """

    def __init__(self, config: TransformerConfig, index: int = 0) -> None:
        super().__init__()
        self.norm, self.residual = config.norm, config.residual
        self.mixer = build_mixer(config, index)
        self.mixes = not isinstance(self.mixer, NoMixer)
        self.mixer_norm = _norm(config) if self.mixes else nn.Identity()
        self.feed_forward: FeedForward | None = None
        if config.hidden_width:
            self.feed_forward = FeedForward(config.E, config.hidden_width, config.activation)
            self.feed_forward_norm = _norm(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """``x [B,T,E]`` → ``[B,T,E]``."""
        if self.mixes:
            x = self._write(x, self.mixer(self._read(x, self.mixer_norm)), self.mixer_norm)
        return self._think(x)

    def with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same by the mixer's readable path, and the mixer's weights ``[B,H,T,T]``."""
        y, weights = self.mixer.with_weights(self._read(x, self.mixer_norm))
        return self._think(self._write(x, y, self.mixer_norm) if self.mixes else x), weights

    def decode(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The block on new tokens ``x [B,T,E]``; ``state`` is the mixer's."""
        y, state = self.mixer.decode(self._read(x, self.mixer_norm), state)
        return self._think(self._write(x, y, self.mixer_norm) if self.mixes else x), state

    @classmethod
    def from_torch(cls, source: nn.TransformerEncoderLayer) -> Block:
        """A causal block with the weights of PyTorch's layer (its ``norm_first`` either way).

        Raises ``ValueError`` for an activation other than GELU or ReLU, or a layer without bias.
        """
        names = [name for name, f in ACTIVATIONS.items() if f is source.activation]
        if not names or source.linear1.bias is None:
            raise ValueError(
                "source: expected nn.TransformerEncoderLayer with bias and activation F.gelu or "
                f"F.relu, got activation {source.activation!r}, "
                f"bias {source.linear1.bias is not None}"
            )
        block = cls(
            TransformerConfig(
                vocab_size=1,
                E=source.self_attn.embed_dim,
                H=source.self_attn.num_heads,
                hidden=source.linear1.out_features,
                norm="pre" if source.norm_first else "post",
                activation=names[0],
                dropout=source.dropout.p,
            )
        )
        attention = MultiHeadAttention.from_torch(source.self_attn, without_dropout=True)
        assert isinstance(block.mixer, SoftmaxMixer) and block.feed_forward is not None
        block.to(source.linear1.weight)
        block.mixer.attention.load_state_dict(attention.state_dict())
        for ours, theirs in (
            (block.feed_forward.W_1, source.linear1),
            (block.feed_forward.W_2, source.linear2),
            (block.mixer_norm, source.norm1),
            (block.feed_forward_norm, source.norm2),
        ):
            ours.load_state_dict(theirs.state_dict())
            if isinstance(ours, nn.LayerNorm):
                ours.eps = theirs.eps  # type: ignore[assignment]
        return block.train(source.training)

    def _think(self, x: Tensor) -> Tensor:
        if self.feed_forward is None:
            return x
        y = self.feed_forward(self._read(x, self.feed_forward_norm))
        return self._write(x, y, self.feed_forward_norm)

    def _read(self, x: Tensor, norm: nn.Module) -> Tensor:
        return norm(x) if self.norm == "pre" else x

    def _write(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        x = x + self.dropout(y) if self.residual else self.dropout(y)
        return norm(x) if self.norm == "post" else x


class _Blocks(nn.ModuleList):
    """A ``ModuleList`` whose items the type checker knows to be blocks."""

    def __iter__(self) -> Iterator[Block]:
        return cast("Iterator[Block]", super().__iter__())

    def __getitem__(self, index: int) -> Block:  # type: ignore[override]
        return cast(Block, super().__getitem__(index))


class Cache(NamedTuple):
    """The past of a model: tokens seen, and one state a block (keys and values, a sum, …)."""

    seen: int
    states: tuple[Any, ...]

    def nbytes(self) -> int:
        """Bytes of all tensors in the states."""
        return sum(x.numel() * x.element_size() for x in _tensors(self.states))


class Transformer(nn.Module):
    """A causal language model: tokens ``[B,T]`` → logits ``[B,T,V]`` for each next token.

    Initialisation, fixed by ``seed`` (the global random state is left alone): untied models keep
    PyTorch's defaults, tables from N(0, 1), matrices uniform in ±1/√(inputs); so the stream starts
    with unit entries and the logits near zero. In a tied model the tables are N(0, 0.02²) as in
    GPT-2, because the token table is also the output matrix. Both train at learning rates of 1e-3
    and, with a norm or a warm-up, 3e-3.

    Raises ``ValueError`` if positions ``rope`` or ``alibi`` meet no mixer that can use them.
    Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).
    """

    blocks: _Blocks

    def __init__(self, config: TransformerConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._build(config)
        usable = {name for block in self.blocks for name in block.mixer.relative_positions}
        if config.positions in ("rope", "alibi") and config.positions not in usable:
            raise ValueError(
                f"positions: expected 'none', 'learned' or 'sinusoidal' with mixer "
                f"{config.mixer!r}, which has no scores, got {config.positions!r}"
            )

    def _build(self, config: TransformerConfig) -> None:
        self.tokens = nn.Embedding(config.vocab_size, config.E)
        self.places = (
            nn.Embedding(config.max_length, config.E) if config.positions == "learned" else None
        )
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = _Blocks(Block(config, index) for index in range(config.L))
        self.last_norm = _norm(config) if config.norm == "pre" else nn.Identity()
        self.output = nn.Linear(config.E, config.vocab_size, bias=not config.tied)
        if config.tied:
            self.output.weight = self.tokens.weight
            for table in (self.tokens, self.places):
                if table is not None:
                    nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """``tokens [B,T]`` (int64) → logits ``[B,T,V]``; row t sees tokens 0 … t.

        Raises ``ValueError`` for a wrong rank or dtype, a number outside the vocabulary, or more
        positions than the learned table has.
        """
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.read_out(x)

    def embed(self, tokens: Tensor, *, offset: int = 0) -> Tensor:
        """The stream before the first block, ``[B,T,E]``; the first token stands at ``offset``."""
        _require_tokens(tokens, self.config.vocab_size)
        T = tokens.shape[1]
        x = self.tokens(tokens)
        if self.places is not None:
            if offset + T > self.config.max_length:
                raise ValueError(
                    f"tokens: expected at most max_length = {self.config.max_length} positions "
                    f"(the learned table has no more rows), got {offset + T}"
                )
            x = x + self.places.weight[offset : offset + T]
        elif self.config.positions == "sinusoidal":
            x = x + sinusoids(T, self.config.E, offset=offset).to(x)
        return self.dropout(x)

    def read_out(self, x: Tensor) -> Tensor:
        """The stream after the last block ``[B,T,E]`` → logits ``[B,T,V]``."""
        return self.output(self.last_norm(x))

    def attention_maps(self, tokens: Tensor) -> list[Tensor]:
        """Who looks at whom: one ``[B,H,T,T]`` a block, rows sum to 1, no gradient."""
        return self.forward_with_maps(tokens)[1]

    @torch.no_grad()
    def forward_with_maps(self, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits ``[B,T,V]`` by the readable path, and the maps they were computed with.

        The maps are free of dropout; the logits are if the model is in eval mode.
        """
        x, maps = self.embed(tokens), []
        for block in self.blocks:
            x, weights = block.with_weights(x)
            maps.append(weights)
        return self.read_out(x), maps

    def decode(self, tokens: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        """Logits ``[B,T,V]`` of new tokens that follow those in ``cache``, and the next cache.

        Fed in any portions, the logits are those of one full pass. The given cache is not changed.
        """
        cache = Cache(0, (None,) * self.config.L) if cache is None else cache
        require_same("L", {"cache": len(cache.states), "the model": self.config.L})
        x, states = self.embed(tokens, offset=cache.seen), []
        for block, state in zip(self.blocks, cache.states, strict=True):
            x, state = block.decode(x, state)
            states.append(state)
        return self.read_out(x), Cache(cache.seen + tokens.shape[1], tuple(states))

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        steps: int,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Continue ``tokens [B,T]``, T ≥ 1, by ``steps`` sampled tokens → ``[B, T + steps]``.

        ``temperature=0`` takes the likeliest token each time. Dropout is off.
        """
        require_rank("tokens", tokens, "B T")
        require_positive("tokens: T", tokens.shape[1])
        require_positive("steps", steps, minimum=0)
        require_number("temperature", temperature)
        if temperature < 0:
            raise ValueError(f"temperature: expected 0 or more, got {temperature}")
        was_training = self.training
        self.eval()
        try:
            new, cache = tokens, None
            for _ in range(steps):
                logits, cache = self.decode(new, cache)
                new = _choose(logits[:, -1], temperature, generator)
                tokens = torch.cat([tokens, new], dim=1)
        finally:
            self.train(was_training)
        return tokens

    def parameter_counts(self) -> dict[str, int]:
        """Numbers of parameters by part, and their ``total``; a tied output counts as 0."""
        parts: dict[str, nn.Module | None] = {
            "token table": self.tokens,
            "positions": self.places,
            "blocks": self.blocks,
            "last norm": self.last_norm,
        }
        counts = {name: _count(part) for name, part in parts.items()}
        counts["output"] = 0 if self.config.tied else _count(self.output)
        return counts | {"total": _count(self)}


def _require_tokens(tokens: Tensor, vocab_size: int) -> None:
    require_rank("tokens", tokens, "B T")
    if tokens.dtype != torch.int64:
        raise ValueError(f"tokens: expected int64, got {tokens.dtype}")
    if tokens.numel() and not tokens.is_meta:  # a meta tensor has no numbers to look at
        for extreme in (int(tokens.min()), int(tokens.max())):
            if not 0 <= extreme < vocab_size:
                raise ValueError(f"tokens: expected numbers in 0 … {vocab_size - 1}, got {extreme}")


def _norm(config: TransformerConfig) -> nn.Module:
    return nn.Identity() if config.norm == "none" else nn.LayerNorm(config.E)


def _choose(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    # Differences first: a tiny temperature would turn the logits themselves into inf − inf.
    below = (logits - logits.amax(-1, keepdim=True)) / temperature
    return torch.multinomial(below.softmax(-1), 1, generator=generator)


def _count(module: nn.Module | None) -> int:
    return 0 if module is None else sum(p.numel() for p in module.parameters())


def _tensors(states: object) -> Iterator[Tensor]:
    if isinstance(states, Tensor):
        yield states
    elif isinstance(states, tuple | list):
        for item in states:
            yield from _tensors(item)
