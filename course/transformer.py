"""The model of the course: token and position vectors, blocks of a mixer and a feed-forward layer.

A token goes through :meth:`Transformer.embed`, through each :class:`Block` (a mixer, which alone
moves information between positions, then a :class:`FeedForward` layer) and through
:meth:`Transformer.read_out`. The mixer is chosen by name in the configuration, so that the whole
ladder from "no context" to GPT-2 is one class; :mod:`course.mixers` has them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from course.attention import MultiHeadAttention
from course.config import ACTIVATIONS, TransformerConfig
from course.inputs import require_number, require_positive, require_rank
from course.mixers import Mixer, NoMixer, SoftmaxMixer, build_mixer
from course.positions import sinusoids
from course.randomness import mode_kept, seeded

__all__ = ["Block", "Cache", "FeedForward", "Transformer", "TransformerConfig"]


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
    """A mixer, then a feed-forward layer, each with its norm and its way into the stream.

    ``pre``: ``x + part(norm(x))``; ``post``: ``norm(x + part(x))``; ``none``: ``x + part(x)``.
    Without ``residual`` the part's output takes the place of ``x +`` it. A mixer ``none`` and
    ``hidden=0`` leave the part out, with its norm.
    Source: Vaswani et al. 2017 (post); Xiong et al., "On Layer Normalization in the Transformer
    Architecture" (2020) (pre).
    """

    def __init__(self, config: TransformerConfig, index: int = 0) -> None:
        super().__init__()
        self.norm, self.residual = config.norm, config.residual
        self.mixer: Mixer = build_mixer(config, index)
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
        return self._feed_forward(x)

    def with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same by the mixer's readable path, and the mixer's weights ``[B,H,T,T]``."""
        y, weights = self.mixer.with_weights(self._read(x, self.mixer_norm))
        return self._feed_forward(self._write(x, y, self.mixer_norm) if self.mixes else x), weights

    def decode(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The block on new tokens ``x [B,T,E]``; ``state`` is the mixer's."""
        y, state = self.mixer.decode(self._read(x, self.mixer_norm), state)
        return self._feed_forward(self._write(x, y, self.mixer_norm) if self.mixes else x), state

    @classmethod
    def from_torch(cls, source: nn.TransformerEncoderLayer) -> Block:
        """A causal block with the weights of PyTorch's layer (its ``norm_first`` either way).

        What is frozen stays frozen. PyTorch's dropout inside the feed-forward layer has no place
        here and is left out; those of the weights and of what is written to the stream are kept.
        Raises ``ValueError`` for another module, an activation other than GELU or ReLU, a layer
        without bias, or one whose dropouts differ.
        """
        if not isinstance(source, nn.TransformerEncoderLayer):
            raise ValueError(
                f"source: expected nn.TransformerEncoderLayer, got {type(source).__name__}"
            )
        names = [name for name, f in ACTIVATIONS.items() if f is source.activation]
        dropouts = {source.self_attn.dropout, source.dropout1.p, source.dropout2.p}
        if not names or source.linear1.bias is None or len(dropouts) > 1:
            raise ValueError(
                "source: expected nn.TransformerEncoderLayer with bias, one dropout and activation "
                f"F.gelu or F.relu, got activation {source.activation!r}, "
                f"bias {source.linear1.bias is not None}, dropouts {sorted(dropouts)}"
            )
        block = cls(
            TransformerConfig(
                vocab_size=1,
                E=source.self_attn.embed_dim,
                H=source.self_attn.num_heads,
                hidden=source.linear1.out_features,
                norm="pre" if source.norm_first else "post",
                activation=names[0],
                dropout=dropouts.pop(),
            )
        )
        assert isinstance(block.mixer, SoftmaxMixer) and block.feed_forward is not None
        block.to(source.linear1.weight)
        block.mixer.attention = MultiHeadAttention.from_torch(
            source.self_attn, without_dropout=True
        )
        for ours, theirs in (
            (block.feed_forward.W_1, source.linear1),
            (block.feed_forward.W_2, source.linear2),
            (block.mixer_norm, source.norm1),
            (block.feed_forward_norm, source.norm2),
        ):
            ours.load_state_dict(theirs.state_dict())
            for name, parameter in theirs.named_parameters():
                ours.get_parameter(name).requires_grad_(parameter.requires_grad)
            if isinstance(ours, nn.LayerNorm):
                ours.eps = theirs.eps  # type: ignore[assignment]
        return block.train(source.training)

    def _feed_forward(self, x: Tensor) -> Tensor:
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
        """Bytes of all tensors in the states: what a copy of this cache needs."""
        return _nbytes(self.states)


class Transformer(nn.Module):
    """A causal language model: tokens ``[B,T]`` → logits ``[B,T,V]`` for each next token.

    Initialisation, fixed by ``seed`` (random states are left as they were): untied models keep
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
        with seeded(seed, [torch.get_default_device()]):
            self._build(config)
        usable = {name for block in self.blocks for name in block.mixer.relative_positions}
        if config.positions in ("rope", "alibi") and config.positions not in usable:
            raise ValueError(
                f"positions: expected 'none', 'learned' or 'sinusoidal' with mixer "
                f"{config.mixer!r}, which has no scores, got {config.positions!r}"
            )

    def _build(self, config: TransformerConfig) -> None:
        self.tokens = nn.Embedding(config.vocab_size, config.E)
        self.positions = (
            nn.Embedding(config.max_length, config.E) if config.positions == "learned" else None
        )
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = _Blocks(Block(config, index) for index in range(config.L))
        self.last_norm = _norm(config) if config.norm == "pre" else nn.Identity()
        self.output = nn.Linear(config.E, config.vocab_size, bias=not config.tied)
        if config.tied:
            self.output.weight = self.tokens.weight
            for table in (self.tokens, self.positions):
                if table is not None:
                    nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """``tokens [B,T]`` (int64) → logits ``[B,T,V]``; row t sees tokens 0 … t.

        Raises ``ValueError`` for a wrong rank or dtype, a number outside the vocabulary (on a GPU
        that is PyTorch's own device assertion), or more positions than the learned table has.
        """
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.read_out(x)

    def embed(self, tokens: Tensor, *, offset: int = 0) -> Tensor:
        """The stream before the first block, ``[B,T,E]``; the first token stands at ``offset``."""
        require_rank("tokens", tokens, "B T")
        if tokens.dtype != torch.int64:
            raise ValueError(f"tokens: expected int64, got {tokens.dtype}")
        T = tokens.shape[1]
        try:
            # The look-up refuses bad numbers itself: asking for the largest first would make every
            # pass wait for the device, and vmap and export cannot ask.
            x = self.tokens(tokens)
        except IndexError:
            self._require_vocabulary(tokens)
            raise
        if self.positions is not None:
            self._require_positions("tokens", offset + T)
            x = x + self.positions.weight[offset : offset + T]
        elif self.config.positions == "sinusoidal":
            x = x + sinusoids(T, self.config.E, offset=offset).to(x)
        return self.dropout(x)

    def read_out(self, x: Tensor) -> Tensor:
        """The stream after the last block ``[B,T,E]`` → logits ``[B,T,V]``."""
        return self.output(self.last_norm(x))

    def attention_maps(self, tokens: Tensor) -> list[Tensor]:
        """Who looks at whom: one ``[B,H,T,T]`` a block, no gradient.

        Rows sum to 1 where the mixer averages. A convolution has one table a channel.
        """
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

        The first portion is the prefill, later ones are often one token. Fed in any portions, the
        logits are those of one full pass. The given cache is not changed.
        Raises ``ValueError`` that names the cache if its batch, mixer, dtype or device is another.
        """
        cache = Cache(0, (None,) * self.config.L) if cache is None else cache
        if not isinstance(cache, Cache) or len(cache.states) != self.config.L:
            raise ValueError(
                f"cache: expected a Cache of L = {self.config.L} states, got "
                + (f"{len(cache.states)}" if isinstance(cache, Cache) else type(cache).__name__)
            )
        x, states = self.embed(tokens, offset=cache.seen), []
        for block, state in zip(self.blocks, cache.states, strict=True):
            x, state = block.decode(x, state)
            states.append(state)
        return self.read_out(x), Cache(cache.seen + tokens.shape[1], tuple(states))

    @torch.no_grad()
    def state_bytes(self, T: int) -> list[int]:
        """What each block carries after ``T`` tokens of one text, in bytes: those of a real cache.

        The tensors that :meth:`decode` hands on are counted, so a window counts as full or not.
        Raises ``ValueError`` for a T that the positions do not allow.
        """
        require_positive("T", T, minimum=0)
        tokens = torch.zeros(1, T, dtype=torch.int64, device=self.output.weight.device)
        with mode_kept(self):
            self.eval()  # dropout would move the stream of random numbers
            return [_nbytes(state) for state in self.decode(tokens)[1].states]

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

        ``temperature=0`` takes the likeliest token each time. Dropout is off. With learned
        positions T + steps − 1 may not exceed ``max_length``, which is said before anything is
        sampled: a model that forgot the beginning would have to read the rest anew at each step.
        To go on like that, call it again with the last tokens.
        """
        require_rank("tokens", tokens, "B T")
        require_positive("tokens: T", tokens.shape[1])
        require_positive("steps", steps, minimum=0)
        require_number("temperature", temperature)
        self._require_vocabulary(tokens)
        if self.positions is not None and steps:
            self._require_positions("tokens and steps", tokens.shape[1] + steps - 1)
        if temperature < 0:
            raise ValueError(f"temperature: expected 0 or more, got {temperature}")
        with mode_kept(self):
            self.eval()
            new, cache = tokens, None
            for _ in range(steps):
                logits, cache = self.decode(new, cache)
                new = _choose(logits[:, -1], temperature, generator)
                tokens = torch.cat([tokens, new], dim=1)
        return tokens

    def _require_vocabulary(self, tokens: Tensor) -> None:
        if tokens.numel() and not tokens.is_meta:  # a meta tensor has no numbers to look at
            for extreme in (int(tokens.min()), int(tokens.max())):
                if not 0 <= extreme < self.config.vocab_size:
                    raise ValueError(
                        f"tokens: expected numbers in 0 … {self.config.vocab_size - 1}, "
                        f"got {extreme}"
                    )

    def _require_positions(self, name: str, count: int) -> None:
        if count > self.config.max_length:
            raise ValueError(
                f"{name}: expected at most max_length = {self.config.max_length} positions "
                f"(the learned table has no more rows), got {count}"
            )

    def parameter_counts(self) -> dict[str, int]:
        """Numbers of parameters by part, and their ``total``; a tied output counts as 0."""
        parts: dict[str, nn.Module | None] = {
            "token table": self.tokens,
            "positions": self.positions,
            "blocks": self.blocks,
            "last norm": self.last_norm,
        }
        counts = {name: _count(part) for name, part in parts.items()}
        counts["output"] = 0 if self.config.tied else _count(self.output)
        return counts | {"total": _count(self)}


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


def _nbytes(state: Any) -> int:
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, tuple):
        return sum(_nbytes(item) for item in state)
    return state.nbytes() if hasattr(state, "nbytes") else 0
