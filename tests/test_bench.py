"""``course bench train`` compares equal models, and counts as PyTorch's own counter does."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from course.bench.train import bench_train, report, shakespeare_models, step_operations
from course.cli import main


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


def test_the_numbers_belong_together_and_are_printed():
    stream = torch.get_rng_state()
    found = bench_train(batch=2, T=16, repeats=2)
    assert torch.equal(torch.get_rng_state(), stream)
    assert found == json.loads(json.dumps(found))
    assert found["parameters"] == 478_080 - (128 - 16) * 128
    text = report(found)
    for name, row in found["contenders"].items():
        seconds = 2 * 16 / row["tokens_per_second"]
        share = found["gflop_per_step"] / seconds / found["matmul_gflops"]
        assert row["share_of_matmul_rate"] == pytest.approx(share)
        assert f"{name:28}{row['tokens_per_second']:>10,.0f}" in text
    ours = found["contenders"]["course.training.train"]
    assert ours["time_relative_to_course"] == 1.0
    assert "goal: at least 45 % of the product rate" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("train --repeats 0", "repeats: expected a whole number of at least 1, got 0"),
        ("linear --repeats -1", "repeats: expected a whole number of at least 1, got -1"),
        ("linear --threads 0", "threads: expected a whole number of at least 1, got 0"),
        ("linear --threads 100000", "threads: expected at most "),
    ],
)
def test_a_number_that_cannot_be_gets_one_sentence(capsys, words, sentence):
    assert main(["bench", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out.startswith(sentence) and out.count("\n") == 1 and err == ""
