"""``course bench train``: one training step against the machine's matrix-multiply rate."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course.config import TransformerConfig
from course.cost import model_flops, visible_pairs
from course.inputs import require_positive
from course.measure import median_seconds
from course.randomness import seeded
from course.training import next_token_batches, train
from course.transformer import Block, Transformer

GOAL = 45  # percent of the product rate
_E, _H, _V = 128, 4, 1024


class PlainModel(nn.Module):
    """A one-block pre-norm model as one writes it down first: a loop over heads, the mask, softmax.

    Holds the parameters of the ``Transformer`` it is given and computes the same logits.
    """

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        self.source = source

    def forward(self, tokens: Tensor) -> Tensor:
        """``tokens [B,T]`` → logits ``[B,T,V]``."""
        model: Any = self.source
        (block,) = model.blocks
        attention, T = block.mixer.attention, tokens.shape[1]
        x = model.tokens(tokens) + model.positions.weight[:T]
        stream = block.mixer_norm(x)
        q, k, v = attention.W_q(stream), attention.W_k(stream), attention.W_v(stream)
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        outputs = []
        for head in range(attention.H):
            part = slice(head * attention.D, (head + 1) * attention.D)
            scores = q[..., part] @ k[..., part].transpose(-2, -1) / attention.D**0.5
            weights = scores.masked_fill(future, -torch.inf).softmax(-1)
            outputs.append(weights @ v[..., part])
        x = x + attention.W_o(torch.cat(outputs, dim=-1))
        return model.output(model.last_norm(x + block.feed_forward(block.feed_forward_norm(x))))


class EncoderLayerModel(nn.Module):
    """The same model around ``nn.TransformerEncoderLayer``, whose weights ``source`` must have."""

    def __init__(self, source: nn.Module, layer: nn.TransformerEncoderLayer) -> None:
        super().__init__()
        self.source, self.layer = source, layer

    def forward(self, tokens: Tensor) -> Tensor:
        """``tokens [B,T]`` → logits ``[B,T,V]``."""
        model: Any = self.source
        T = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(T)
        x = model.tokens(tokens) + model.positions.weight[:T]
        return model.output(model.last_norm(self.layer(x, src_mask=mask, is_causal=True)))


def shakespeare_models(T: int = 128) -> tuple[nn.Module, PlainModel, EncoderLayerModel]:
    """The one-block model by the course, plainly, and by PyTorch's layer; equal weights."""
    config = TransformerConfig(_V, E=_E, L=1, H=_H, max_length=T, positions="learned")
    models = [Transformer(config) for _ in range(3)]
    layer = nn.TransformerEncoderLayer(
        _E, _H, 4 * _E, dropout=0.0, activation=F.gelu, batch_first=True, norm_first=True
    )
    for model in models:
        model.blocks[0] = Block.from_torch(layer)
    return models[0], PlainModel(models[1]), EncoderLayerModel(models[2], layer)


def step_operations(*, batch: int, T: int) -> int:
    """Multiplications and additions in the matrix products of one step, forward and backward.

    A product of the backward pass costs as much as its forward one, and there are two of them. Of
    the scores only the visible half is counted.
    """
    pairs = visible_pairs(T, causal=True)
    return 3 * batch * model_flops(T, vocab_size=_V, E=_E, L=1, pairs=pairs)["total"]


def bench_train(*, batch: int = 64, T: int = 128, repeats: int = 7) -> dict[str, Any]:
    """Tokens a second, share of the matrix-multiply rate, and time relative to the course's loop.

    Plain JSON types. Raises ``ValueError`` for sizes below 1.
    """
    for name, value in (("batch", batch), ("T", T), ("repeats", repeats)):
        require_positive(name, value)
    with seeded(0):
        text = torch.randint(_V, (50 * T + 1,))
        a, b = torch.randn(2, 1024, 1024)
        ours, plain, layer = shakespeare_models(T)
    sampler = next_token_batches(text, batch=batch, window=T)

    def plain_step(model: nn.Module) -> Callable[[], None]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        generator = torch.Generator().manual_seed(0)

        def step() -> None:
            inputs, targets = sampler(generator)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
            optimizer.step()

        return step

    seconds = median_seconds(
        {
            "product": lambda: [a @ b for _ in range(8)],
            "course.training.train": lambda: train(ours, sampler, steps=1, progress=False),
            "plain loop": plain_step(plain),
            "nn.TransformerEncoderLayer": plain_step(layer),
        },
        repeats,
    )
    rate = 8 * 2 * 1024**3 / seconds.pop("product")
    operations = step_operations(batch=batch, T=T)
    return {
        "threads": torch.get_num_threads(),
        "matmul_gflops": rate / 1e9,
        "batch": batch,
        "T": T,
        "parameters": sum(p.numel() for p in ours.parameters()),
        "gflop_per_step": operations / 1e9,
        "contenders": {
            name: {
                "tokens_per_second": batch * T / value,
                "share_of_matmul_rate": operations / value / rate,
                "time_relative_to_course": value / seconds["course.training.train"],
            }
            for name, value in seconds.items()
        },
    }


def report(found: dict[str, Any]) -> str:
    """What :func:`bench_train` found, as a table."""
    lines = [
        f"this machine: {found['matmul_gflops']:.0f} GFLOP/s in a float32 product of two "
        f"1,024 × 1,024 matrices, {found['threads']} thread(s)",
        f"one block, E = {_E}, H = {_H}, V = {_V:,}, batch {found['batch']} × {found['T']} tokens: "
        f"{found['parameters']:,} parameters, {found['gflop_per_step']:.1f} GFLOP a step",
        "",
        f"{'':28}{'tokens/s':>10}{'of the product rate':>22}{'time':>8}",
    ]
    for name, row in found["contenders"].items():
        lines.append(
            f"{name:28}{row['tokens_per_second']:>10,.0f}{row['share_of_matmul_rate']:>22.0%}"
            f"{row['time_relative_to_course']:>8.2f}"
        )
    share = found["contenders"]["course.training.train"]["share_of_matmul_rate"]
    verdict = "reached" if 100 * share >= GOAL else "missed"
    return "\n".join([*lines, "", f"goal: at least {GOAL} % of the product rate: {verdict}"])


def command(arguments: argparse.Namespace) -> int:
    """Run ``course bench train``; returns the exit status."""
    try:
        found = bench_train(repeats=arguments.repeats)
    except ValueError as error:
        print(error)
        return 2
    print(json.dumps(found) if arguments.json else report(found))
    return 0
