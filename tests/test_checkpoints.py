"""The file of a run: whole, of this run, readable anywhere; and a sentence for everything else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from course.checkpoints import DamagedCheckpoint, UnusableCheckpoint
from course.training import next_token_batches, train
from course.transformer import Transformer, TransformerConfig

TOKENS = torch.arange(60) % 7
CONFIG = TransformerConfig(vocab_size=7, E=12, H=4, max_length=8, dropout=0.1)


def run(path, *, model=None, steps=2, batch=2, tokens=TOKENS, **options):
    model = Transformer(CONFIG) if model is None else model
    batches = next_token_batches(tokens, batch=batch, window=8)
    return train(model, batches, steps=steps, checkpoint=path, checkpoint_every=1, **options)


@pytest.fixture
def path(tmp_path) -> Path:
    """The checkpoint of a run of one step."""
    run(tmp_path / "run.pt", steps=1)
    return tmp_path / "run.pt"


def changed(**options):
    return {"model": Transformer(replace(CONFIG, **options))}


class PyTorchs(nn.Module):
    """A model that has no configuration to look at."""

    def __init__(self, heads: int = 3, activation: str = "relu", p: float = 0.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(7, 12)
        self.layer = nn.TransformerEncoderLayer(12, heads, 8, p, activation, batch_first=True)
        self.output = nn.Linear(12, 7)
        self.calls = 0

    def forward(self, tokens):
        self.calls += 1
        return self.output(self.layer(self.tokens(tokens)))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (lambda: changed(H=2), r"config.H \(there 4, here 2\)"),
        (lambda: changed(activation="relu"), r"config.activation \(there gelu, here relu\)"),
        (lambda: changed(positions="rope"), "config.positions"),
        (lambda: changed(mixer="linear"), "config.mixer"),
        (lambda: changed(dropout=0.2), r"config.dropout \(there 0.1, here 0.2\)"),
        (lambda: changed(scale=1.0), "config.scale"),
        (lambda: changed(norm="post"), "config.norm"),
        (lambda: changed(E=16), "config.E"),
        (lambda: {"model": Transformer(CONFIG).double()}, "tensors.tokens.weight .there float32"),
        (lambda: {"tokens": TOKENS.flip(0)}, "batches.tokens"),
        (lambda: {"batch": 3}, r"batches.batch \(there 2, here 3\)"),
        (lambda: {"lr": 0.5}, r"lr \(there 0.001, here 0.5\)"),
        (lambda: {"clip": 1.0}, r"clip \(there None, here 1.0\)"),
        (lambda: {"seed": 1}, "seed"),
        (lambda: {"warmup": 1}, "warmup"),
        (lambda: {"weight_decay": 0.0}, "weight_decay"),
    ],
)
def test_the_checkpoint_of_another_run_is_named_and_changes_nothing(path, options, named) -> None:
    options = options()
    model = options.setdefault("model", Transformer(CONFIG))
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(UnusableCheckpoint, match=named) as caught:
        run(path, **options)
    assert "delete" not in str(caught.value) and "damaged" not in str(caught.value)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("options", [{"heads": 2}, {"activation": "gelu"}, {"p": 0.5}])
def test_a_model_without_configuration_is_known_by_its_modules(tmp_path, options) -> None:
    run(tmp_path / "run.pt", model=PyTorchs(), steps=1)
    with pytest.raises(UnusableCheckpoint, match="modules.layer"):
        run(tmp_path / "run.pt", model=PyTorchs(**options))
    assert run(tmp_path / "run.pt", model=PyTorchs()).steps == 2  # a counter is no setting


def test_a_function_is_known_by_its_name(path, tmp_path) -> None:
    def one(generator):
        return TOKENS[:8].view(1, 8), TOKENS[1:9].view(1, 8)

    def other(generator):
        return one(generator)

    options = dict(checkpoint=tmp_path / "own.pt")
    train(Transformer(CONFIG), one, steps=1, **options)
    assert train(Transformer(CONFIG), one, steps=2, **options).steps == 2
    with pytest.raises(UnusableCheckpoint, match=r"batches \(there .*one, here .*other\)"):
        train(Transformer(CONFIG), other, steps=2, **options)
    with pytest.raises(ValueError, match="checkpoint: expected batches to be a sampler"):
        train(Transformer(CONFIG), [], steps=2, **options)


# --- files that load ----------------------------------------------------------------------------


def test_numbers_of_numpy_are_no_obstacle(tmp_path) -> None:
    for lr in np.geomspace(1e-4, 1e-3, 2):  # a sweep as one writes it
        options = dict(
            lr=lr, seed=np.int64(3), clip=np.float32(1.0), evaluate=lambda m: np.float64(2)
        )
        run(tmp_path / f"{lr}.pt", steps=1, **options)
        assert run(tmp_path / f"{lr}.pt", steps=2, **options).steps == 2


def test_a_file_written_on_a_gpu_goes_on_without_one(tmp_path) -> None:
    path = tmp_path / "run.pt"
    with mock.patch("torch.serialization.location_tag", return_value="cuda:0"):
        run(path, steps=1)
    torch.manual_seed(0)
    assert run(path).losses == run(None).losses


def test_compiled_or_not_is_one_model(tmp_path) -> None:
    expected = run(None, steps=3).losses
    for first, second in ((True, False), (False, True)):
        path = tmp_path / f"{first}.pt"
        for compiled, steps in ((first, 1), (second, 3)):
            model = Transformer(CONFIG)
            if compiled:
                model = torch.compile(model, backend="eager")
                model.blocks[0].mixer = torch.compile(model.blocks[0].mixer, backend="eager")
            losses = run(path, model=model, steps=steps).losses
        assert losses == pytest.approx(expected, abs=1e-6)


def test_the_random_state_of_every_device_of_the_model_is_kept(tmp_path) -> None:
    """The dropout of a GPU, played by a generator of the CPU."""
    gpu = torch.device("cuda", 0)

    class OnAGpu(nn.Embedding):
        def forward(self, tokens):
            noise = torch.rand((), generator=torch.cuda.default_generators[0])
            return super().forward(tokens) * noise

    def losses(path, steps):
        stream = torch.Generator().manual_seed(steps)
        with (
            mock.patch.multiple("torch.cuda", default_generators=(stream,), init=lambda: None),
            mock.patch("course.training.devices_of", return_value=[torch.device("cpu"), gpu]),
        ):
            before = stream.get_state()
            torch.manual_seed(0)
            found = run(path, model=OnAGpu(7, 7), steps=steps).losses
            assert torch.equal(stream.get_state(), before)
        return found

    path = tmp_path / "run.pt"
    losses(path, 3)
    assert losses(path, 6) == losses(None, 6)


# --- files and places that do not ---------------------------------------------------------------


def test_a_damaged_file_says_so(path) -> None:
    whole = path.read_bytes()
    weight = torch.load(path)["model"]["tokens.weight"].numpy().tobytes()
    flipped = whole.replace(weight, weight[:-1] + bytes([weight[-1] ^ 1]))
    for damage in (whole[: len(whole) // 2], whole[:-1], b"", whole[:1], flipped):
        path.write_bytes(damage)
        with pytest.raises(DamagedCheckpoint, match=r"got .*run\.pt, which is damaged; delete it"):
            run(path)


def test_a_sound_file_of_another_kind_is_not_called_damaged(path) -> None:
    def text() -> None:
        path.write_text("hello")

    kinds = [text, lambda: np.savez(path.open("wb"), a=np.ones(2))]
    for other in ([1], {"a": 1}, {"run": 3}, nn.Linear(2, 2)):
        kinds.append(lambda other=other: torch.save(other, path))
        kinds.append(
            lambda other=other: torch.save(other, path, _use_new_zipfile_serialization=False)
        )
    for write in kinds:
        write()
        with pytest.raises(UnusableCheckpoint, match="holds something else") as caught:
            run(path)
        assert "damaged" not in str(caught.value) and "delete" not in str(caught.value)


def test_places_that_are_no_file_get_their_own_sentence(path, tmp_path, monkeypatch) -> None:
    with pytest.raises(ValueError, match="checkpoint: expected a file, got the folder"):
        run(tmp_path)
    with pytest.raises(ValueError, match="checkpoint: expected a place that can be written, got"):
        run(path / "below a file" / "run.pt")
    for name in ("touch", "mkdir", "is_dir"):
        with (
            mock.patch.object(Path, name, side_effect=PermissionError(13, "Permission denied")),
            pytest.raises(ValueError, match=r"can be written, got .*Permission denied") as caught,
        ):
            run(path)
        assert "delete" not in str(caught.value)
    with (
        mock.patch("torch.load", side_effect=PermissionError(13, "Permission denied")),
        pytest.raises(ValueError, match=r"can be read, got .*Permission denied") as caught,
    ):
        run(path)
    assert "delete" not in str(caught.value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert run("~/run.pt").steps == 2
    run("~/new/folders/run.pt")
    assert (tmp_path / "new" / "folders" / "run.pt").is_file()


def test_a_write_that_fails_leaves_the_last_good_file(path) -> None:
    before = path.read_bytes()
    with (
        mock.patch("os.replace", side_effect=OSError("no space left")),
        pytest.raises(OSError, match="no space left"),
    ):
        run(path)
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == ["run.pt"]
