"""The bench compares equal models, and counts operations as PyTorch's own counter does."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from course.bench import bench_train, shakespeare_models, step_operations
from course.cost import median_seconds


def loss_and_gradient(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor):
    loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    loss.backward()
    parts = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return loss.item(), torch.cat(parts).norm().item()


def test_the_contenders_are_one_model():
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randint(1024, (2, 3, 17), generator=generator)
    models = shakespeare_models(17)
    for model in models[1:]:  # tables, last norm and output start equal by seed
        assert torch.allclose(model(inputs), models[0](inputs), atol=2e-5)
    found = [loss_and_gradient(model, inputs, targets) for model in models]
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert found[2] == pytest.approx(found[0], rel=1e-5)


def test_operations_are_those_that_pytorch_counts():
    B, T, E = 3, 17, 128
    plain = shakespeare_models(T)[1]
    inputs = torch.randint(1024, (B, T), generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter:
        plain(inputs).sum().backward()
    hidden_half = 12 * B * E * (T * T - T * (T + 1) // 2)  # the plain model computes it too
    assert counter.get_total_flops() == step_operations(batch=B, T=T) + hidden_half


def test_every_contender_has_its_turns():
    turns: list[str] = []
    seconds = median_seconds({"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}, 3)
    assert turns == ["a", "b"] * 4 and seconds.keys() == {"a", "b"}


def test_the_numbers_belong_together():
    found = bench_train(batch=2, T=16, repeats=2)
    assert found["parameters"] == 478_080 - (128 - 16) * 128
    for row in found["contenders"].values():
        seconds = 2 * 16 / row["tokens_per_second"]
        share = found["gflop_per_step"] / seconds / found["matmul_gflops"]
        assert row["share_of_matmul_rate"] == pytest.approx(share)
    ours = found["contenders"]["course.training.train"]
    assert ours["time_relative_to_course"] == 1.0
    with pytest.raises(ValueError, match="repeats: expected"):
        bench_train(batch=2, T=16, repeats=0)


def test_the_command_prints_a_table_or_json(capsys, monkeypatch):
    from course import bench
    from course.cli import main

    small = bench_train(batch=1, T=8, repeats=1)
    monkeypatch.setattr(bench, "bench_train", lambda repeats: small | {"repeats": repeats})
    assert main(["bench", "train"]) == 0
    text = capsys.readouterr().out
    assert "of the product rate" in text and "nn.TransformerEncoderLayer" in text
    assert main(["bench", "train", "--json", "--repeats", "3"]) == 0
    assert json.loads(capsys.readouterr().out) == small | {"repeats": 3}
