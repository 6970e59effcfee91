"""Stored models: what is loaded is what was trained, and a damaged file is said to be one."""

from __future__ import annotations

import pytest
import torch

from course import cli, pretrained
from course.config import TransformerConfig
from course.experiments import EXPERIMENTS, load
from course.experiments.winograd import task_of
from course.pretrained.cli import RUNS
from course.tasks.text import TRAIN_SHARE, find_text, tokenize
from course.tasks.winograd import Winograd, score
from course.transformer import Transformer

RECORD = {"config": {"label": "small"}, "result": {"held_out": 3.0}, "sample": "a b"}


@pytest.fixture
def stored(tmp_path):
    """A model in a file of its own, and the model itself."""
    corpus = tokenize("to be or not to be " * 40, 300)
    model = Transformer(TransformerConfig(vocab_size=300, E=16, L=2, H=2), seed=3)
    pretrained.store(tmp_path / "shakespeare.safetensors", model, corpus.tokenizer_json, RECORD)
    return tmp_path, model, corpus


def test_what_is_loaded_is_what_was_stored(stored):
    folder, model, corpus = stored
    loaded, tokenizer, record = pretrained.load("shakespeare", folder=folder)
    tokens = torch.tensor([tokenizer.encode("to be").ids])
    assert torch.allclose(loaded(tokens), model(tokens), atol=1e-2)
    assert all(p.dtype == torch.float32 for p in loaded.parameters()) and not loaded.training
    assert record == RECORD and loaded.config == model.config
    assert tokenizer.decode(corpus.train[:9].tolist()).startswith("to be")
    assert next(model.parameters()).dtype == torch.float32, "storing changed the model"


@pytest.mark.parametrize("name", pretrained.NAMES)
def test_each_stored_model_is_small_and_that_of_its_run(name):
    path = pretrained.FOLDER / f"{name}.safetensors"
    assert path.stat().st_size <= 2_000_000
    config = pretrained.load(name).record["config"]
    assert (config["experiment"], config["label"], config["seed"]) == RUNS[name]


def test_the_stretch_that_travels_is_held_out_text():
    stretch = pretrained.held_out_text()
    assert stretch.startswith("GREMIO:") and stretch.endswith("\n") and len(stretch) == 6_462
    path = find_text()
    if path is None:
        pytest.skip("the whole text is not here")
    whole = path.read_text(encoding="utf-8")
    assert stretch in whole[int(len(whole) * TRAIN_SHARE) :]
    assert stretch[:200] not in whole[: int(len(whole) * TRAIN_SHARE)]


def test_the_winograd_model_answers_as_recorded():
    model, task, record = pretrained.load("winograd")
    assert task == task_of(record["config"])
    held_out = task.split(record["config"]["held_out"], seed=record["config"]["seed"]).held_out
    with torch.no_grad():
        found = score(model(held_out.prompts), held_out)
    assert found.right == pytest.approx(record["result"]["right"], abs=0.003) and found.right > 0.99
    # Its record is the one that is stored with the experiment, apart from the day and the machine.
    name, _, seed = RUNS["winograd"]
    (stored,) = load(name, seed=seed)
    assert stored["config"] == record["config"] and stored["result"] == record["result"]


def test_the_shakespeare_model_speaks():
    model, tokenizer, record = pretrained.load("shakespeare")
    assert len(record["sample"]) == 200
    # The loss of a text as the model itself writes it is near the recorded one, not near chance.
    tokens = torch.tensor([tokenizer.encode(record["sample"]).ids])
    loss = torch.nn.functional.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:])
    assert loss.exp() < 3 * record["result"]["held_out"]


def test_a_damaged_file_is_named(stored):
    folder, *_ = stored
    path = folder / "shakespeare.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="shakespeare.safetensors: .* damaged"):
        pretrained.load("shakespeare", folder=folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="expected the stored model"):
        pretrained.load("shakespeare", folder=folder)
    with pytest.raises(ValueError, match="name: expected one of shakespeare"):
        pretrained.load("hamlet", folder=folder)


def test_nothing_is_left_of_a_file_that_cannot_be_written(stored, tmp_path):
    _, model, corpus = stored
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError):
        pretrained.store(
            tmp_path / "x.safetensors", model, corpus.tokenizer_json, {"a": float("nan")}
        )
    assert sorted(tmp_path.iterdir()) == before


def test_the_command_lists_and_refuses(capsys):
    assert cli.main(["pretrained", "list"]) == 0
    text = capsys.readouterr().out
    assert "held-out perplexity" in text and "% of the held-out sentences right" in text
    with pytest.raises(SystemExit):
        cli.main(["pretrained", "make", "hamlet", "--out", "x"])


def test_the_command_trains_a_model_again(monkeypatch, tmp_path, capsys):
    """With a run of the reader's own words in the place of the declared one."""
    own = {"nouns": ["bus", "tram", "car"], "of_crosser": ["late"], "of_crossed": ["closed"]}
    experiment, label, seed = RUNS["winograd"]
    (run,) = (c for c in EXPERIMENTS[experiment]() if (c["label"], c["seed"]) == (label, seed))
    small = {"E": 8, "H": 2, "L": 2, "hidden": 4, "max_length": 18}
    training = {"steps": 4, "batch": 2, "lr": 1e-2}
    run |= {"task": own, "held_out": 1, "model": small, "training": training, "evaluate_every": 2}
    monkeypatch.setitem(EXPERIMENTS, experiment, lambda: [run])
    assert cli.main(["pretrained", "make", "winograd", "--out", str(tmp_path)]) == 0
    assert "of the held-out sentences right" in capsys.readouterr().out
    model, task, record = pretrained.load("winograd", folder=tmp_path)
    assert task == Winograd(**own) and record["config"] == run and model.config.E == 8
    assert model(task.encode("the bus did not")[None]).shape == (1, 4, len(task))


def test_the_runs_exist():
    from course.experiments.configs import configs

    for experiment, label, seed in RUNS.values():
        assert any(run["label"] == label for run in configs(experiment, seed=seed))
    assert set(RUNS) == set(pretrained.NAMES)
