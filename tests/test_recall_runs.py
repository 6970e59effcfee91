"""A recorded run on MQAR: its config fixes it, it stops when solved, and what it stores is so."""

from __future__ import annotations

import json
import math

import pytest

from course.experiments import configs, recall
from course.experiments.language_model import curve_of
from course.experiments.runner import Progress, config_hash, run_sweep
from course.tasks.mqar import accuracy, distances, make_mqar, predictions, vocabulary
from course.training import History
from course.transformer import Transformer

MODEL = {"E": 20, "L": 2, "H": 1, "hidden": 0, "mixer": ["conv", "softmax"]}
TRAINING = {"steps": 40, "batch": 4, "halvings": 1, "lr": 1e-2, "warmup": 0}


def run_config(*, model: dict | None = None, training: dict | None = None, **more) -> dict:
    return {
        "experiment": "test",
        "label": "small",
        "run": "course.experiments.recall:execute",
        "seed": 1,
        "task": {"seq_len": 24, "n_pairs": 4, "vocab_size": 16},
        "model": MODEL | (model or {}),
        "training": TRAINING | (training or {}),
        "evaluate_every": 10,
    } | more


def test_a_run_is_its_config():
    once, again = (recall.execute(run_config(), Progress()) for _ in range(2))
    assert once == again
    assert once != recall.execute(run_config(seed=2), Progress())
    curve, result = once["curve"], once["result"]
    assert curve["step"] == [10, 20, 30, 40] and len(curve["first"]) == 40
    # Followed on the first examples alone, of four queries each.
    followed = [value * recall.FOLLOWED * 4 for value in curve["accuracy"]]
    assert followed == pytest.approx([round(count) for count in followed], abs=0.02)
    assert curve["train"][0] == pytest.approx(sum(curve["first"][:10]) / 10, abs=1e-4)
    assert result["steps"] == 40 and 0 < result["accuracy"] < 1
    assert recall.first_losses(run_config(), 7) == curve["first"][:7]


def test_every_number_of_the_training_counts():
    plain = recall.first_losses(run_config(), 4)
    for name, value in {"batch": 5, "halvings": 0, "lr": 2e-2, "warmup": 3}.items():
        assert recall.first_losses(run_config(training={name: value}), 4) != plain, name
    one, again, other = (
        recall.build(run_config(seed=seed)).output.weight.sum().item() for seed in (1, 1, 2)
    )
    assert one == again != other


def test_a_killed_run_goes_on_from_its_checkpoint(tmp_path):
    expected = recall.execute(run_config(), Progress())

    def killed(step: int) -> None:
        if step == 30:
            raise KeyboardInterrupt

    steps: list[int] = []
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        recall.execute(run_config(), Progress(killed, checkpoint))
    assert recall.execute(run_config(), Progress(steps.append, checkpoint)) == expected
    assert steps == [30, 40]
    # Killed after the last step, before the record was written: nothing is left to train.
    assert recall.execute(run_config(), Progress(steps.append, checkpoint)) == expected
    assert steps == [30, 40]
    checkpoint.write_bytes(b"half a checkpoint")
    assert recall.execute(run_config(), Progress(steps.append, checkpoint)) == expected


def test_a_solved_run_is_ended_and_a_kept_model_is_what_was_measured():
    kept: list[Transformer] = []
    config = run_config(training={"steps": 2_000, "batch": 16}, evaluate_every=20, reach=5)
    outcome = recall.execute(config, Progress(keep=kept.append))
    curve, result = outcome["curve"], outcome["result"]
    assert result["steps"] == curve["step"][-1] < 2_000
    assert curve["accuracy"][-1] >= recall.SOLVED > max(curve["accuracy"][:-1])
    inputs, targets = recall.held_out(config)
    assert inputs.shape == (recall.MEASURED, 24)
    predicted, gap = predictions(kept[0], inputs), distances(inputs, targets)
    for name, among in (
        ("accuracy", None),
        ("up to 16", gap <= 16),
        ("up to 32", gap > 16),
        ("beyond reach", gap > 6),
    ):
        assert result[name] == round(accuracy(predicted, targets, among), 4), name
    fewer = make_mqar(
        recall.MEASURED, seq_len=12, n_pairs=2, vocab_size=16, seed=recall.HELD_OUT_SEED
    )
    assert result["2 pairs"] == round(accuracy(predictions(kept[0], fewer[0]), fewer[1]), 4)
    assert result["state_bytes"] == sum(kept[0].state_bytes(24)) == 2 * 20 * 4 + 24 * 40 * 4


def test_a_window_guesses_beyond_its_reach():
    """Trained with half its pairs out of sight it is right there once in six values."""
    config = run_config(
        model={"mixer": "window", "mixer_options": {"window": 4}, "positions": "learned"},
        training={"steps": 300, "batch": 16},
        evaluate_every=100,
        reach=6,
    )
    result = recall.execute(config, Progress())["result"]
    inputs, targets = recall.held_out(config)
    blind = (distances(inputs, targets) - 1 > 6).sum().item()
    chance = 1 / len(vocabulary(16).values)
    assert blind > 900
    assert abs(result["beyond reach"] - chance) < 4 * math.sqrt(chance * (1 - chance) / blind)


def test_a_run_that_diverges_is_a_result():
    config = run_config(model={"norm": "none"}, training={"lr": 1e18})
    result = recall.execute(config, Progress())["result"]
    assert result.keys() == {"parameters", "state_bytes", "diverged_at"}
    assert result["diverged_at"] < 40
    json.dumps(result, allow_nan=False)


def test_a_curve_has_a_row_an_evaluation():
    history = History(losses=[3.0, 1.0, 2.0], evaluations=[(2, 0.25), (3, 0.5)])
    assert curve_of(history, "accuracy") == {
        "first": [3.0, 1.0, 2.0],
        "step": [2, 3],
        "train": [2.0, 2.0],
        "accuracy": [0.25, 0.5],
    }


@pytest.mark.slow
def test_dask_records_the_same(tmp_path):
    pytest.importorskip("distributed")
    sweep = [run_config(seed=seed) for seed in (1, 2)]
    here = run_sweep(sweep, tmp_path / "here", quiet=True)
    there = run_sweep(sweep, tmp_path / "there", engine="dask", jobs=2, quiet=True)
    for name in ("config", "curve", "result"):
        assert [record[name] for record in here] == [record[name] for record in there]


# ------------------------------------------------------------------------ what is declared


@pytest.mark.parametrize("name", ["recall", "frontier"])
def test_declared_runs_are_different_and_can_be_built(name):
    declared = configs(name)
    assert len({config_hash(config) for config in declared}) == len(declared) <= 120
    for config in declared:
        model, task = recall.build(config), config["task"]
        assert sum(model.state_bytes(task["seq_len"])) > 0
        widths = [
            options.get("window") or options.get("width")
            for options in config["model"]["mixer_options"]
        ]
        only_windows = {*config["model"]["mixer"]} in ({"window"}, {"conv", "window"})
        assert config.get("reach") == (sum(widths) - len(widths) if only_windows else None)


def test_rates_and_seeds_of_a_point_differ_in_nothing_else():
    points: dict[str, list[dict]] = {}
    for config in configs("frontier"):
        points.setdefault(json.dumps(config["model"]), []).append(config)
    for runs in points.values():
        assert len({run["label"].rpartition(", rate")[0] for run in runs}) == 1
        assert {run["training"]["lr"] for run in runs} >= {3e-3}
        assert len({json.dumps(run["task"]) for run in runs}) == 1
