"""Recorded runs of notebook 11: several seeds in one record, one model taken apart, induction."""

from __future__ import annotations

import json
import statistics

import pytest
import torch

from course import probes
from course.experiments import circuits, configs, induction, winograd
from course.experiments.runner import Progress, config_hash, run_sweep
from course.tasks.induction import accuracy, induction_score, previous_token_score
from course.tasks.winograd import DECIDING, REPAIRED, Winograd, score
from course.transformer import Transformer

MODEL = {"E": 16, "H": 2, "L": 2, "hidden": 8, "max_length": 18, "positions": "learned"}
OWN = {"nouns": ["bus", "tram", "car", "ship"], "of_crosser": ["late"], "of_crossed": ["closed"]}


def run_config(module, **more) -> dict:
    return {
        "experiment": "test",
        "label": "small",
        "run": f"{module.__name__}:execute",
        "seed": 3,
        "seeds": 2,
        "task": OWN,
        "held_out": 1,
        "model": MODEL,
        "training": {"steps": 20, "batch": 8, "lr": 1e-2},
        "evaluate_every": 10,
    } | more


def induction_config(**more) -> dict:
    task = {"seq_len": 12, "vocab_size": 7, "shortest": 2, "longest": 5}
    model = {"E": 16, "H": 2, "L": 2, "hidden": 0, "positions": "learned"}
    return run_config(induction, task=task, model=model, **more)


CONFIGS = [run_config(winograd), run_config(circuits), induction_config()]
MODULES = [winograd, circuits, induction]


@pytest.mark.parametrize(("module", "config"), list(zip(MODULES, CONFIGS, strict=True)))
def test_a_run_is_its_config(module, config):
    once, again = (module.execute(config, Progress()) for _ in range(2))
    assert once == again and json.loads(json.dumps(once, allow_nan=False)) == once
    assert once != module.execute(config | {"seed": 4}, Progress())
    assert once["curve"]["step"] == [10, 20] and len(once["curve"]["first"]) == 10
    assert module.first_losses(config, 7) == once["curve"]["first"][:7]


@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[2]])
def test_finished_seeds_are_not_repeated(config, tmp_path):
    module = winograd if config is CONFIGS[0] else induction
    expected = module.execute(config, Progress())
    checkpoint, steps = tmp_path / "checkpoint", []

    def killed(step: int) -> None:
        steps.append(step)
        if len(steps) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        module.execute(config, Progress(killed, checkpoint))
    assert steps == [5, 10, 15]  # of 20, over both seeds
    assert module.execute(config, Progress(steps.append, checkpoint)) == expected
    assert steps[3:] == [15, 20]
    checkpoint.write_bytes(b"half a checkpoint")
    assert module.execute(config, Progress(steps.append, checkpoint)) == expected
    assert steps[5:] == [5, 10, 15, 20]


def test_a_record_is_the_mean_of_its_seeds():
    outcome = winograd.execute(run_config(winograd), Progress())
    result, seeds = outcome["result"], outcome["seeds"]
    for seed, row in zip((3, 4), seeds, strict=True):
        trained = winograd.train_one(run_config(winograd), seed)
        here, there = trained.split.held_out, trained.split.reverses
        with torch.no_grad():
            found = score(trained.model(here.prompts), here)
            back = score(trained.model(there.prompts), there)
        assert row["right"] == round(found.right, 4) and row["other"] == round(found.other, 4)
        assert row["low"] == round(found.low, 4) and row["high"] == round(found.high, 4)
        assert row["reverses"] == round(back.right, 4)
        assert trained.curve["right"][-1] == round(found.right, 3)
        gap = winograd.order_gap(trained.model, trained.task, here)
        assert row["gap"] == pytest.approx(gap, rel=0.05)
        assert next(trained.model.parameters()).dtype == torch.float32
    right = [row["right"] for row in seeds]
    assert result["right"] == pytest.approx(statistics.fmean(right), abs=1e-4)
    assert (result["lowest"], result["highest"]) == (min(right), max(right))
    assert result["right + reverses"] == max(row["right"] + row["reverses"] for row in seeds)
    assert result["solved"] == sum(value >= 0.99 for value in right)
    assert [curve[-1] for curve in outcome["curve"]["right"]] == [round(r, 3) for r in right]


def test_the_order_gap_is_what_exchanging_the_nouns_changes():
    trained = winograd.train_one(run_config(winograd), 3)
    wide, s = trained.model.double(), trained.split.held_out
    with torch.no_grad():
        apart = wide(s.prompts)[:, 14] - wide(trained.task.swap_nouns(s).prompts)[:, 14]
    assert winograd.order_gap(wide, trained.task, s) == apart.abs().max() > 1e-3
    blind = MODEL | {"L": 1, "positions": "none"}
    trained = winograd.train_one(run_config(winograd, model=blind), 3)
    assert winograd.order_gap(trained.model, trained.task, trained.split.held_out) < 1e-12


def test_pairs_without_a_reverse_have_no_share_of_reverses():
    places = {"nouns": ["bus", "tram", "car"], "places": ["mill", "moor"]}
    outcome = winograd.execute(run_config(winograd, task=places), Progress())
    assert "reverses" not in outcome["result"] and "reverses" not in outcome["curve"]
    assert outcome["seeds"][0].keys() == {"right", "other", "low", "high", "train"}


def test_tasks_by_name_or_by_words():
    assert winograd.task_of({"task": "repaired"}) is REPAIRED
    assert winograd.task_of({"task": OWN}) == Winograd(**OWN)
    with pytest.raises(ValueError, match="task: expected one of leaky, repaired, got 'mended'"):
        winograd.task_of({"task": "mended"})


# --------------------------------------------------------------------------- one model taken apart


@pytest.fixture(scope="module")
def apart():
    """A model on the reader's own words, and what its record says."""
    kept: list[Transformer] = []
    config = run_config(circuits, training={"steps": 150, "batch": 16, "lr": 1e-2})
    outcome = circuits.execute(config, Progress(keep=kept.append))
    task = Winograd(**OWN)
    return kept[0], task, task.split(1, seed=3).held_out, outcome["circuit"]


def test_weights_are_means_over_the_sentences_of_a_kind(apart):
    model, task, s, circuit = apart
    maps = model.attention_maps(s.prompts)
    for kind, word in enumerate(("late", "closed")):
        of_kind = s.adjective == task.vocabulary.index(word)
        for block, weights in enumerate(maps):
            row = weights[of_kind][:, :, 14]
            expected = row.mean(0), row.std(0)
            for name, values in zip(("weights", "spread"), expected, strict=True):
                found = torch.tensor(circuit[name][kind][block])
                assert found.shape == (2, 15)
                torch.testing.assert_close(found, values, atol=6e-4, rtol=0)


def test_effects_are_shares_of_the_sentences_of_a_kind(apart):
    model, task, s, circuit = apart
    late = s.adjective == task.vocabulary.index("late")

    def shares(said):
        return [round(said[kind].double().mean().item(), 3) for kind in (late, ~late)]

    def flips(logits):
        return shares(logits[:, DECIDING].argmax(-1) == s.other)

    def right(logits):
        return shares(logits[:, DECIDING].argmax(-1) == s.answer)

    other = {"nouns": task.swap_nouns(s), "adjective": task.swap_adjective(s)}
    for name, source in other.items():
        streams = probes.run(model, source.prompts).streams
        found = torch.tensor(circuit["patched"][name], dtype=torch.float64)
        assert found.shape == (2, 2, 15)
        for after in (1, 2):
            for position in (1, 6, 11, 14):
                with probes.patch(model, streams[after], after=after, position=position):
                    assert found[:, after - 1, position].tolist() == flips(model(s.prompts))
        # The control: after the last block the deciding position is all that is read.
        assert found[:, 1, 14].tolist() == flips(model(source.prompts))
        for position in range(14):
            assert found[:, 1, position].tolist() == flips(model(s.prompts))
        for group, positions in {
            "nouns": [1, 6],
            "between": [7, 8, 9, 10, 12, 13],
            "adjective, deciding": [11, 14],
            "nouns, deciding": [1, 6, 14],
            "nouns, adjective": [1, 6, 11],
            "nouns, adjective, deciding": [1, 6, 11, 14],
        }.items():
            with probes.patch(model, streams[1], after=1, position=positions):
                assert circuit["together"][name][group] == flips(model(s.prompts))
    one_head = torch.tensor(circuit["without look"]["one head"], dtype=torch.float64)
    all_heads = torch.tensor(circuit["without look"]["all heads"], dtype=torch.float64)
    assert one_head.shape == (2, 2, 2, 15) and all_heads.shape == (2, 2, 15)
    for block in range(2):
        for head in range(2):
            for name, mean_over in (("zero", None), ("mean", s.prompts)):
                table = torch.tensor(circuit["without head"][name], dtype=torch.float64)
                with probes.ablate_head(model, block, head, mean_over=mean_over):
                    assert table[:, block, head].tolist() == right(model(s.prompts))
            with probes.ablate_look(model, block, 14, 6, head=head):
                assert one_head[:, block, head, 6].tolist() == right(model(s.prompts))
        with probes.ablate_look(model, block, 14, 11):
            assert all_heads[:, block, 11].tolist() == right(model(s.prompts))


# --------------------------------------------------------------------------------------- induction


def test_heads_are_scored_and_taken_away():
    config = induction_config(training={"steps": 60, "batch": 16, "lr": 1e-2}, seeds=1)
    model, _, curve = induction.train_one(config, 3)
    rows, found = induction.held_out(config), induction.heads(model, induction.held_out(config))
    maps = model.attention_maps(rows.inputs)
    for block, weights in enumerate(maps):
        previous, matches = previous_token_score(weights), induction_score(weights, rows.inputs)
        torch.testing.assert_close(
            torch.tensor(found["previous"][block]), previous, atol=6e-4, rtol=0
        )
        torch.testing.assert_close(
            torch.tensor(found["induction"][block]), matches, atol=6e-4, rtol=0
        )
        for head in range(2):
            with probes.ablate_head(model, block, head, mean_over=rows.inputs), torch.no_grad():
                expected = accuracy(model(rows.inputs), rows.targets)
            assert found["without"][block][head] == round(expected, 3)
    assert curve["previous"][-1] == max(found["previous"][0])
    assert curve["induction"][-1] == max(found["induction"][1])
    seed = induction.execute(config, Progress())["seeds"][0]
    assert seed["accuracy"] == curve["accuracy"][-1]
    formed = [s for s, a in zip(curve["step"], curve["accuracy"], strict=True) if a >= 0.5]
    assert seed["forms"] == (formed[0] if formed else None)


def test_a_block_without_attention_has_no_heads_to_score():
    model = {"E": 16, "H": 2, "L": 2, "hidden": 0, "mixer": ["conv", "softmax"]}
    outcome = induction.execute(induction_config() | {"model": model}, Progress())
    assert outcome["seeds"][0]["previous"][0] is None
    assert len(outcome["seeds"][0]["without"][1]) == 2
    assert outcome["curve"]["previous"] == [[None, None]] * 2


def test_the_step_is_given_when_all_seeds_have_come_so_far(monkeypatch):
    monkeypatch.setattr(induction, "FORMED", 0.0)
    result = induction.execute(induction_config(), Progress())["result"]
    assert result["forms"] == 10
    monkeypatch.setattr(induction, "FORMED", 1.1)
    assert "forms" not in induction.execute(induction_config(), Progress())["result"]


# ----------------------------------------------------------------------------- what is declared


@pytest.mark.parametrize("name", ["winograd", "circuits", "induction"])
def test_declared_runs_are_different_and_can_be_built(name):
    declared = configs(name)
    assert len({config_hash(config) for config in declared}) == len(declared)
    assert len({config["label"] for config in declared}) == len(declared)
    for config in declared:
        if name == "induction":
            assert induction.build(config).parameter_counts()["total"] > 0
        else:
            assert winograd.parameters(config) > 0
            assert ("no positions" in config["label"]) == (config["model"]["positions"] == "none")


def test_the_circuits_are_those_of_the_two_blocks_in_the_table():
    two = next(c for c in configs("winograd") if c["label"] == "repaired, two blocks")
    for config in configs("circuits"):
        for name in ("task", "held_out", "model", "training", "evaluate_every"):
            assert config[name] == two[name]
    assert [c["seed"] for c in configs("circuits")] == list(range(two["seeds"]))


@pytest.mark.slow
def test_dask_records_the_same(tmp_path):
    pytest.importorskip("distributed")
    here = run_sweep(CONFIGS, tmp_path / "here", quiet=True)
    there = run_sweep(CONFIGS, tmp_path / "there", engine="dask", jobs=2, quiet=True)
    for name in ("config", "curve", "result"):
        assert [record[name] for record in here] == [record[name] for record in there]
