"""``course bench linear``: its contenders compute the same thing, and memory stays linear in T."""

from __future__ import annotations

import json

import pytest
import torch

from course import bench_linear as bench
from course.cli import main
from course.linear import linear_attention
from tests import oracles
from tests.drawing import close, draw


def test_the_contenders_are_what_they_are_called():
    q, k, v = (draw(2, 3, 32, 5, seed=s) for s in (1, 2, 3))
    ours = linear_attention(q, k, v, causal=True, feature_map="identity", normalize=False)
    close(bench.readable_chunks(q, k, v, chunk=8), ours, "readable")
    wanted = torch.as_tensor(oracles.attention(q, k, v).out)
    close(bench.naive_softmax(q, k, v), wanted, "naive")


def test_the_limit_counts_four_products():
    T, B, H, D = 16_384, bench.CHUNK_SIZE, bench.H, bench.D
    inside, states = 2 * (2 * B * D), 2 * (2 * D * D)
    assert bench.limit_operations(T) == H * T * (inside + states) == 2_147_483_648


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no peak memory on this system")
def test_peak_memory_at_65536_tokens():
    forward, both = bench._peaks()
    assert 1 <= forward <= 3, forward
    assert 5 <= both <= 8, both


def test_the_command_prints_every_goal(capsys, monkeypatch):
    monkeypatch.setattr(bench, "_peaks", lambda: (1.5, 9.0))
    monkeypatch.setattr(bench, "_steps", lambda repeats: (1e-5, 1.2e-5))
    monkeypatch.setattr(
        bench, "median_seconds", lambda contenders, repeats: dict.fromkeys(contenders, 0.02)
    )
    assert main(["bench", "linear", "--json", "--repeats", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["goals"]) == set(bench.GOALS)
    assert found["goals"]["memory_both"] == {"value": 9.0, "bound": "≤ 8", "reached": False}
    assert found["goals"]["memory_forward"]["reached"]
    assert found["goals"]["forward_to_limit"]["value"] == pytest.approx(8.0)
    assert main(["bench", "linear", "--repeats", "2"]) == 0
    text = capsys.readouterr().out
    assert all(label in text for label, _, _ in bench.GOALS.values()) and "missed" in text
    assert main(["bench", "linear", "--repeats", "0"]) == 2
    assert "repeats: expected" in capsys.readouterr().out
