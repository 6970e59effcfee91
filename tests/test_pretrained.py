"""Stored models: what is loaded is what was trained, and a damaged file is said to be one."""

from __future__ import annotations

import pytest
import torch

from course import cli, pretrained
from course.config import TransformerConfig
from course.pretrained.cli import RUNS
from course.tasks.text import tokenize
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
def test_each_stored_model_speaks_and_is_small(name):
    path = pretrained.FOLDER / f"{name}.safetensors"
    assert path.stat().st_size <= 2_000_000
    model, tokenizer, record = pretrained.load(name)
    assert len(record["sample"]) == 200
    experiment, label, seed = RUNS[name]
    config = record["config"]
    assert (config["experiment"], config["label"], config["seed"]) == (experiment, label, seed)
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
    assert "held-out perplexity" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["pretrained", "make", "hamlet", "--out", "x"])


def test_the_runs_exist():
    from course.experiments.configs import configs

    for experiment, label, seed in RUNS.values():
        assert any(run["label"] == label for run in configs(experiment, seed=seed))
    assert set(RUNS) == set(pretrained.NAMES)
