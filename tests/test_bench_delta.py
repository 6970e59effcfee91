"""``course bench delta``: one problem by chunks and as a loop; the numbers belong together."""

from __future__ import annotations

import json

import pytest
import torch

from course.bench import delta as bench
from course.cli import main
from tests.drawing import close


def test_chunks_and_loop_compute_the_same():
    found = {name: run() for name, run in bench.contenders(2, 3, 70, 5).items()}
    close(found["chunks, forward"], found["loop, forward"], "output", 1e-5)
    assert found["chunks, forward"].shape == (2, 3, 70, 5)
    one, two = (found[f"{name}, forward and backward"] for name in ("chunks", "loop"))
    assert len(one) == len(two) == 4 and all(g.any() for g in one)
    for got, wanted in zip(one, two, strict=True):
        close(got, wanted, "gradient", 1e-5)
    assert len(found["additive, forward and backward"]) == 3


def test_every_goal_has_its_value_and_its_line():
    stream = torch.get_rng_state()
    found = bench.bench_delta(repeats=1, shrink=64)
    assert torch.equal(torch.get_rng_state(), stream)
    assert found == json.loads(json.dumps(found))
    assert set(found["goals"]) == set(bench.GOALS)
    *groups, tokens = found["seconds"].values()
    assert len(groups) == 1 + len(bench.SIZES)
    loop, chunks = (groups[0][f"{name}, forward and backward"] for name in ("loop", "chunks"))
    assert found["goals"]["loop_to_chunks"]["value"] == loop / chunks
    late = tokens["T = 256"] / tokens["T = 16"]
    assert found["goals"]["late_to_early_token"]["value"] == late
    text = bench.report(found)
    for name, goal in found["goals"].items():
        label, sign, bound = bench.GOALS[name]
        reached = goal["value"] <= bound if sign == "≤" else goal["value"] >= bound
        assert goal["reached"] == reached
        (line,) = [line for line in text.splitlines() if line.startswith(label)]
        assert line.endswith("reached" if reached else "missed")
    assert ("A missed goal" in text) == ("missed" in text)


@pytest.mark.parametrize("argument", ["repeats", "shrink"])
def test_sizes_below_one_are_refused(argument):
    with pytest.raises(ValueError, match=f"{argument}: expected a whole number"):
        bench.bench_delta(**{argument: 0})


def test_the_command_prints_json_or_refuses(capsys, monkeypatch):
    found = bench.bench_delta(repeats=1, shrink=256)
    monkeypatch.setattr(bench, "bench_delta", lambda repeats: found | {"repeats": repeats})
    assert main(["bench", "delta", "--json", "--repeats", "3", "--threads", "1"]) == 0
    assert json.loads(capsys.readouterr().out) == found | {"repeats": 3, "threads": 1}
    assert main(["bench", "delta"]) == 0
    assert "one head, T = 4,096, both passes" in capsys.readouterr().out
    assert main(["bench", "delta", "--threads", "0"]) == 2
    assert "threads: expected a whole number" in capsys.readouterr().out
