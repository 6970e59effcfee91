"""``course bench kernels``: without a GPU it claims nothing; its tables, by a clock of its own."""

from __future__ import annotations

import json

import pytest
import torch

from course.cli import main
from course.cost import GPUS, Machine
from course.feature_maps import get_feature_map
from course.kernels import bench

WORK = bench.Work(flops=2e9, nbytes=4e6)
MACHINE = Machine("a chip", flops=1e12, bandwidth=1e12)


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by what the contenders say they cost."""
    now = [0.0]
    monkeypatch.setattr("torch.utils.benchmark.timer", lambda: now[0])

    def costs(seconds):
        def call():
            now[0] += seconds

        return call

    return costs


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it would measure")
def test_without_a_gpu_it_was_not_run(capsys):
    assert main(["bench", "kernels"]) == 2
    printed = capsys.readouterr().out
    assert printed.startswith("course bench kernels was not run: it needs an NVIDIA or AMD GPU")
    assert not any(unit in printed for unit in ("ms", "GB/s", "TFLOP"))
    assert main(["bench", "kernels", "--json"]) == 2
    assert set(json.loads(capsys.readouterr().out)) == {"not_run"}


def test_bad_repeats_are_answered_with_a_sentence(capsys):
    assert main(["bench", "kernels", "--repeats", "0"]) == 2
    assert "repeats: expected a whole number of at least 1, got 0" in capsys.readouterr().out


def test_rates_share_and_relative_time(clock):
    waited = []
    task = bench.Task(
        "softmax, forward", WORK, {"course, triton": clock(0.004), "SDPA": clock(0.002)}
    )
    ours, sdpa = bench.measure(task, MACHINE, repeats=3, wait=lambda: waited.append(1))
    assert ours["seconds"] == pytest.approx(0.004) and sdpa["seconds"] == pytest.approx(0.002)
    assert ours["tflops"] == pytest.approx(0.5) and sdpa["tflops"] == pytest.approx(1.0)
    assert ours["gigabytes_per_second"] == pytest.approx(1.0)
    # 2e9 operations at 1e12 a second are the limit: 2 ms.
    assert ours["share_of_roofline"] == pytest.approx(0.5)
    assert sdpa["share_of_roofline"] == pytest.approx(1.0)
    assert sdpa["time_relative_to_course"] == pytest.approx(0.5)
    # Each contender once to see that it runs, then once not counted and three times measured.
    assert len(waited) == 2 * (1 + 4)


def test_where_memory_is_the_limit_the_share_is_of_bandwidth(clock):
    task = bench.Task("step", bench.Work(1.0, 4e9), {"course, triton": clock(0.008)})
    (row,) = bench.measure(task, MACHINE, repeats=1, wait=lambda: None)
    assert row["share_of_roofline"] == pytest.approx(0.5)
    (row,) = bench.measure(task, None, repeats=1, wait=lambda: None)
    assert row["share_of_roofline"] is None
    assert "—" in bench.table([row])


def test_a_rival_that_cannot_run_is_named_and_ours_may_not_fail(clock):
    def broken():
        raise TypeError("no head of 64\nand more")

    task = bench.Task("elu", WORK, {"course, triton": clock(0.001), "another": broken})
    ours, other = bench.measure(task, None, repeats=1, wait=lambda: None)
    assert other == {"task": "elu", "contender": "another", "error": "TypeError: no head of 64"}
    printed = bench.table([ours, other])
    assert "not run: TypeError: no head of 64" in printed
    task = bench.Task("elu", WORK, {"course, triton": broken, "another": clock(0.001)})
    with pytest.raises(TypeError):
        bench.measure(task, None, repeats=1, wait=lambda: None)


def test_the_table_and_the_json(capsys, monkeypatch, clock):
    def tasks(device):
        assert device == "cuda"
        return [bench.Task("elu, T = 64", WORK, {"course, triton": clock(0.004)})]

    monkeypatch.setattr(bench, "refusal", lambda: None)
    monkeypatch.setattr(bench, "tasks", tasks)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(bench, "flash_linear_attention", lambda: None)
    assert main(["bench", "kernels", "--repeats", "2"]) == 0
    printed = capsys.readouterr().out
    assert "NVIDIA H200; medians of 2" in printed and "the numbers of H200 SXM" in printed
    assert "flash-linear-attention is not installed: not compared" in printed
    line = next(text for text in printed.splitlines() if "course, triton" in text)
    assert line.split()[-5:-2] == ["4.000", "0.5", "1"] and line.split()[-1] == "1.00"
    assert main(["bench", "kernels", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["device"] == "NVIDIA H200" and len(found["rows"]) == 1


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA A100-SXM4-40GB", None),
        ("NVIDIA A100 80GB PCIe", None),
        ("NVIDIA L40S", None),
        ("AMD Instinct MI300X", None),
    ],
)
def test_a_roofline_only_for_a_chip_whose_numbers_are_known(device, name):
    found = bench.machine_of(device)
    assert (found and found.name) == name
    assert found is None or found in GPUS


def test_the_least_work_of_attention():
    heads, T, D, d = bench.B * bench.H, 128, bench.D, bench.TAYLOR_D
    forward = bench.attention_work(T, kind="softmax", backward=False)
    assert forward == (heads * 4 * D * T * (T + 1) // 2, heads * 4 * T * D * 2)
    both = bench.attention_work(T, kind="softmax", backward=True)
    assert both == (3.5 * forward.flops, 3 * forward.nbytes)
    elu = bench.attention_work(T, kind="elu", backward=False)
    assert elu == (heads * T * (2 * 64 * 2 * D + 4 * D * D), forward.nbytes)
    taylor = bench.attention_work(T, kind="taylor", backward=False)
    C = get_feature_map("taylor").width(d)
    assert taylor == (heads * T * (2 * 64 * (C + D) + 4 * C * D), heads * T * (2 * d + 2 * D) * 2)
    assert bench.attention_work(T, kind="elu", backward=True).flops == 3 * elu.flops


def test_the_contenders_compute_the_same(monkeypatch):
    """On the CPU: all that needs no GPU, and the arguments that another library is called with."""

    def stand_in(q, k, v, scale):
        assert q.shape[1] == 10 and scale == 1.0
        weights = torch.einsum("bthd,bshd->bhts", q, k).tril()
        out = torch.einsum("bhts,bshd->bthd", weights / weights.sum(-1, keepdim=True), v)
        return out, None

    monkeypatch.setattr(bench, "flash_linear_attention", lambda: stand_in)
    q, k, v = (
        torch.randn(2, 3, 10, 6, generator=torch.Generator().manual_seed(s)) for s in (1, 2, 3)
    )
    for kind in ("elu", "taylor"):
        rivals = bench.rivals(kind)
        assert list(rivals) == [
            "course, triton",
            "course, torch",
            "flash-linear-attention, map in torch",
        ]
        ours, theirs = (rivals[name](q, k, v) for name in list(rivals)[1:])
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    assert list(bench.rivals("softmax")) == ["course, triton", "SDPA"]
