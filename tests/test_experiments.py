"""The runner (once each, resumed, shared, distributed), one language-model run, what is stored."""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest
import torch

from course.experiments import (
    EXPERIMENTS,
    RESULTS,
    configs,
    counts,
    induction,
    language_model,
    load,
    recall,
    table,
    winograd,
)
from course.experiments.runner import (
    Progress,
    RunFailed,
    config_hash,
    execute,
    machine,
    read_record,
    result_path,
    run_one,
    run_sweep,
    write_record,
)
from course.tasks import text
from course.tasks.text import TextUnavailable, WrongText, find_text, tokenize
from course.training import History, perplexity
from course.transformer import Transformer, TransformerConfig

# One run squares a number; it notes each start, and fails, stops or dies the first time if told to.
TASK = """
import os, time
from pathlib import Path

def execute(config, progress):
    notes = Path(os.environ["RUN_NOTES"])
    with open(notes / "starts", "a") as file:
        file.write(f"{config['number']}\\n")
    marker = notes / f"misbehaved-{config['number']}"
    if config["first"] != "fine" and not marker.exists():
        marker.touch()
        if config["first"] == "die":
            os._exit(1)
        raise {"fail": OSError("no disk"), "stop": KeyboardInterrupt()}[config["first"]]
    time.sleep(config["pause"])
    progress.report(1)
    return {"curve": {"step": [1]}, "result": {"square": config["number"] ** 2}}
"""


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path of this and of every child process, with the task in it."""
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "squares_task.py").write_text(TASK)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("RUN_NOTES", str(folder))
    yield folder
    sys.modules.pop("squares_task", None)


def starts(notes: Path) -> Counter[int]:
    return Counter(int(line) for line in (notes / "starts").read_text().split())


def square(number: int, *, first: str = "fine", pause: float = 0.0) -> dict:
    return {
        "experiment": "squares",
        "label": f"square of {number}",
        "run": "squares_task:execute",
        "seed": 0,
        "number": number,
        "first": first,
        "pause": pause,
    }


def answers(records: list[dict]) -> list[int]:
    return [record["result"]["square"] for record in records]


# ------------------------------------------------------------------------------ one file a run


def test_the_hash_is_that_of_the_content_not_of_its_order():
    config = square(3)
    assert config_hash(config) == config_hash(dict(reversed(config.items())))
    assert len({config_hash(square(n, pause=p)) for n in range(9) for p in (0.0, 0.5)}) == 18


@pytest.mark.parametrize("value", [(1, 2), {1: "a"}, math.nan, {1}, Path("x")])
def test_a_config_that_json_would_change_is_refused(value):
    with pytest.raises(ValueError, match="config: expected"):
        config_hash(square(3) | {"more": value})


def test_damage_of_any_kind_is_seen(tmp_path):
    config = square(3)
    path = result_path(tmp_path, config)
    assert read_record(path) is None
    record = {"config": config, "result": {"square": 9}}
    write_record(path, record)
    assert read_record(path, config) == record
    whole = path.read_bytes()
    for end in range(len(whole) - 1):
        path.write_bytes(whole[:end])
        assert read_record(path) is None
    for other in (
        whole.replace(b"9", b"8"),
        b"[1]",
        b"\xff\xfe",
        b'{"checksum": null}',
        b"null",
        b"[" * 99_999,
    ):
        path.write_bytes(other)
        assert read_record(path) is None
    path.write_bytes(whole)
    assert read_record(path, square(4)) is None
    elsewhere = result_path(tmp_path, square(4))
    elsewhere.write_bytes(whole)
    assert read_record(elsewhere) is None


def test_a_record_is_found_again_whatever_its_keys(tmp_path):
    path = result_path(tmp_path, square(3))
    write_record(path, {"config": square(3), "result": {n: n for n in (64, 128, 9)}})
    assert read_record(path)["result"] == {"64": 64, "128": 128, "9": 9}


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = result_path(tmp_path, square(3))
    write_record(path, {"config": square(3), "result": 9})
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_record(path, {"config": square(3), "result": 10})
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


# -------------------------------------------------------------------------------------- sweeps


def test_a_finished_run_is_never_repeated(notes, tmp_path):
    sweep = [square(n) for n in (4, 2, 3)]
    assert answers(run_sweep(sweep, tmp_path, quiet=True)) == [16, 4, 9]
    assert answers(run_sweep([*sweep, square(5)], tmp_path, quiet=True)) == [16, 4, 9, 25]
    assert starts(notes) == {4: 1, 2: 1, 3: 1, 5: 1}
    assert {p.suffix for p in (tmp_path / "squares" / ".work").iterdir()} == {".lock"}


def test_a_run_finished_between_look_and_lock_is_not_repeated(notes, tmp_path, monkeypatch):
    done = run_one(square(3), tmp_path)
    looks = []

    def too_early(path, config=None):
        looks.append(path)
        return None if len(looks) == 1 else read_record(path, config)

    monkeypatch.setattr("course.experiments.runner.read_record", too_early)
    assert run_one(square(3), tmp_path) == done
    assert starts(notes) == {3: 1}


def test_a_damaged_result_is_made_again(notes, tmp_path):
    sweep = [square(n) for n in (2, 3)]
    run_sweep(sweep, tmp_path, quiet=True)
    path = result_path(tmp_path, sweep[1])
    path.write_bytes(path.read_bytes()[:-40])
    assert answers(run_sweep(sweep, tmp_path, quiet=True)) == [4, 9]
    assert starts(notes) == {2: 1, 3: 2}


def test_an_interrupted_sweep_goes_on_where_it_stopped(notes, tmp_path):
    sweep = [square(2), square(3, first="stop"), square(4)]
    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, tmp_path, quiet=True)
    assert starts(notes) == {2: 1, 3: 1}
    assert answers(run_sweep(sweep, tmp_path, quiet=True)) == [4, 9, 16]
    assert starts(notes) == {2: 1, 3: 2, 4: 1}


def test_a_failing_run_is_named_and_stops_no_other(notes, tmp_path):
    sweep = [square(2, first="fail"), square(3)]
    with pytest.raises(RunFailed, match=r"1 of 2 runs failed.*\nsquare of 2: OSError: no disk"):
        run_sweep(sweep, tmp_path, quiet=True)
    assert read_record(result_path(tmp_path, sweep[1])) is not None
    assert answers(run_sweep(sweep, tmp_path, quiet=True)) == [4, 9]


def test_a_run_that_names_no_function_is_refused(tmp_path):
    for name in ("nowhere:execute", "course.training:nothing", "no colon"):
        with pytest.raises(ValueError, match="run: expected 'module:function'"):
            run_one(square(3) | {"run": name}, tmp_path)


def test_a_held_run_is_left_to_its_holder(notes, tmp_path):
    child = sweep_in_a_child(tmp_path, [square(3, pause=30)])
    wait_for(lambda: (notes / "starts").exists())
    try:
        assert run_one(square(3, pause=30), tmp_path) is None
    finally:
        child.kill()
        child.wait()
    # The lock died with its process: the next sweep takes the run over.
    quick = square(3, pause=30)
    (notes / "squares_task.py").write_text(TASK.replace("time.sleep", "bool"))
    assert run_one(quick, tmp_path)["result"] == {"square": 9}


def test_two_processes_share_one_folder(notes, tmp_path):
    sweep = [square(n, pause=0.05) for n in range(12)]
    children = [sweep_in_a_child(tmp_path, sweep) for _ in range(2)]
    for child in children:
        assert child.wait(timeout=60) == 0
    assert answers(run_sweep(sweep, tmp_path, quiet=True)) == [n**2 for n in range(12)]
    assert starts(notes) == dict.fromkeys(range(12), 1)


def sweep_in_a_child(folder: Path, sweep: list[dict]) -> subprocess.Popen:
    code = (
        "import json, sys; from pathlib import Path\n"
        "from course.experiments.runner import run_sweep\n"
        "run_sweep(json.loads(sys.argv[2]), Path(sys.argv[1]), quiet=True)"
    )
    return subprocess.Popen([sys.executable, "-c", code, str(folder), json.dumps(sweep)])


def wait_for(condition, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def test_several_jobs_at_a_time(notes, tmp_path):
    sweep = [square(n, pause=0.02) for n in range(5)]
    assert answers(run_sweep(sweep, tmp_path, jobs=2, quiet=True)) == [0, 1, 4, 9, 16]
    assert starts(notes) == dict.fromkeys(range(5), 1)


@pytest.mark.slow
def test_dask_loses_nothing_with_a_worker(notes, tmp_path):
    pytest.importorskip("distributed")
    sweep = [square(n, pause=0.02, first="die" if n == 3 else "fine") for n in range(8)]
    records = run_sweep(sweep, tmp_path, jobs=2, engine="dask", quiet=True)
    assert answers(records) == [n**2 for n in range(8)]
    assert [record["config"] for record in records] == sweep
    assert starts(notes)[3] >= 2  # it did die, and was started again


@pytest.mark.parametrize(
    ("option", "message"),
    [({"engine": "cloud"}, "engine: expected one of local, dask"), ({"jobs": 0}, "jobs: expected")],
)
def test_bad_options_are_named(tmp_path, option, message):
    with pytest.raises(ValueError, match=message):
        run_sweep([square(2)], tmp_path, **option)


def test_the_bar_ends_full_and_says_the_time_left(notes, tmp_path, capsys):
    run_sweep([square(n) for n in (2, 3)], tmp_path)
    last = capsys.readouterr().err.split("\r")[-1]
    assert "100%" in last and "left" in last


def test_the_machine_is_described_without_names_of_places():
    text = json.dumps(machine())
    assert {"processor", "threads", "torch", "python"} <= machine().keys()
    assert (
        platform.node() not in text and os.sep + "home" not in text and str(Path.home()) not in text
    )


# -------------------------------------------------------------------------- a language-model run

MODEL = {"E": 16, "L": 1, "H": 2, "max_length": 32, "positions": "learned"}
TRAINING = {"steps": 40, "batch": 3, "window": 8, "lr": 1e-3, "warmup": 0}


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    words = torch.randint(0, 60, (6000,), generator=torch.Generator().manual_seed(0)).tolist()
    small = tokenize(" ".join(f"w{word}" for word in words), 280)
    monkeypatch.setattr(language_model, "load_shakespeare", lambda: small)
    return small


def run_config(*, model: dict | None = None, training: dict | None = None, **more) -> dict:
    return {
        "experiment": "test",
        "label": "small",
        "run": "course.experiments.language_model:execute",
        "seed": 1,
        "model": MODEL | (model or {}),
        "training": TRAINING | (training or {}),
        "evaluate_every": 10,
    } | more


def test_a_run_is_its_config(corpus):
    once, again = (language_model.execute(run_config(), Progress()) for _ in range(2))
    assert once == again
    assert once != language_model.execute(run_config(seed=2), Progress())
    curve, result = once["curve"], once["result"]
    assert curve["step"] == [10, 20, 30, 40] and len(curve["first"]) == 40
    assert curve["train"][0] == pytest.approx(sum(curve["first"][:10]) / 10, abs=1e-4)
    assert result["held_out"] == pytest.approx(math.exp(curve["held_out"][-1]), rel=1e-3)
    assert result["best"] == pytest.approx(math.exp(min(curve["held_out"])), rel=1e-3)
    assert language_model.first_losses(run_config(), 7) == curve["first"][:7]


def test_a_killed_run_goes_on_from_its_checkpoint(corpus, tmp_path):
    config = run_config()
    expected = language_model.execute(config, Progress())

    def killed(step: int) -> None:
        if step == 30:
            raise KeyboardInterrupt

    steps: list[int] = []
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(KeyboardInterrupt):
        language_model.execute(config, Progress(killed, checkpoint))
    assert language_model.execute(config, Progress(steps.append, checkpoint)) == expected
    assert steps == [30, 40]  # the checkpoint of step 20
    # Killed after the last step, before the record was written: nothing is left to train.
    assert language_model.execute(config, Progress(steps.append, checkpoint)) == expected
    assert steps == [30, 40]
    checkpoint.write_bytes(b"half a checkpoint")
    assert language_model.execute(config, Progress(steps.append, checkpoint)) == expected
    assert steps == [30, 40, 10, 20, 30, 40]


def test_bold_steps_come_first_at_the_full_rate_and_then_the_run_begins_anew(corpus):
    config = run_config(training={"warmup": 20, "bold": 3})
    cold = run_config(training={"warmup": 0})
    by_hand = language_model.build(cold, corpus)
    language_model.fit(by_hand, corpus, cold, steps=3)
    started = language_model.build(config, corpus)
    for ours, theirs in zip(started.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    # From there all is as in the run without them: the warm-up, the optimiser, the batches.
    warm = run_config(training={"warmup": 20})
    losses = language_model.fit(by_hand, corpus, warm).losses
    curve = language_model.execute(config, Progress())["curve"]
    assert curve["first"] == [round(loss, 5) for loss in losses]
    assert curve["step"] == [10, 20, 30, 40]  # bold steps are not counted
    assert language_model.first_losses(config, 7) == curve["first"][:7]


def test_the_train_perplexity_is_that_of_the_last_train_tokens(corpus):
    config = run_config(curve_tokens=100)
    model = language_model.build(config, corpus)
    found = language_model.final(model, corpus, config, History())
    tail = corpus.train[-len(corpus.held_out) :]
    assert found["train"] == round(perplexity(model, tail, window=8), 3)
    assert found["train"] != found["held_out"]


def test_a_run_that_diverges_is_a_result(corpus):
    config = run_config(model={"norm": "none"}, training={"lr": 1e18})
    result = language_model.execute(config, Progress())["result"]
    assert result.keys() == {"parameters", "diverged_at"}
    assert result["diverged_at"] < 40
    json.dumps(result, allow_nan=False)


def test_a_trained_model_writes_a_sample(corpus):
    outcome = language_model.execute(run_config(), Progress())
    assert len(outcome["sample"]) == 200
    assert "sample" not in language_model.execute(
        run_config(model={"norm": "none"}, training={"lr": 1e18}), Progress()
    )
    model, seen = language_model.build(run_config(), corpus).train(), []
    model.register_forward_pre_hook(lambda _, tokens: seen.append(tokens[0].shape[1]))
    text = language_model.sample(model, corpus, window=8, characters=50)
    assert text == language_model.sample(model, corpus, window=8, characters=50)
    assert text != language_model.sample(model, corpus, window=8, characters=50, seed=1)
    assert len(text) == 50 and seen[0] == 1 and max(seen) == 8
    assert model.training


def test_the_same_targets_are_scored_at_every_width(corpus):
    # A model without context cannot gain from more of it: equal targets, equal perplexity.
    config = run_config(
        model={"mixer": "none", "positions": "none"}, evaluation_windows=[8, 16, 32]
    )
    result = language_model.execute(config, Progress())["result"]
    assert len({result[f"same targets {width}"] for width in (8, 16, 32)}) == 1


def test_a_short_curve_still_ends_on_all_held_out_tokens(corpus):
    full = language_model.execute(run_config(), Progress())
    short = language_model.execute(run_config(curve_tokens=64), Progress())
    assert short["result"]["held_out"] == full["result"]["held_out"]
    assert short["curve"]["held_out"] != full["curve"]["held_out"]
    assert "best" not in short["result"]


def test_score_statistics_of_known_weights(corpus):
    model = language_model.build(run_config(), corpus)
    layer = model.blocks[0].mixer.attention
    torch.nn.init.zeros_(layer.W_q.weight)
    torch.nn.init.zeros_(layer.W_q.bias)
    flat = language_model.score_statistics(model, corpus.held_out[:64], 16)
    entropy = sum(math.log(t + 1) for t in range(8, 16)) / 8
    assert flat == {"std": 0.0, "entropy": pytest.approx(entropy, abs=1e-3), "saturated": 0.0}
    # A huge bias on queries makes the scores a function of the key alone, far apart.
    torch.nn.init.constant_(layer.W_q.bias, 1e6)
    sharp = language_model.score_statistics(model, corpus.held_out[:64], 16)
    assert sharp["std"] > 1e5 and sharp["saturated"] > 0.99 and sharp["entropy"] < 0.05


def test_the_spread_is_that_of_what_enters_the_softmax(corpus):
    model = language_model.build(run_config(model={"H": 1, "D": 5}), corpus)
    tokens = corpus.held_out[:64].reshape(-1, 16)
    x = model.blocks[0].mixer_norm(model.embed(tokens))
    q = x @ model.blocks[0].mixer.attention.W_q.weight.T + model.blocks[0].mixer.attention.W_q.bias
    k = x @ model.blocks[0].mixer.attention.W_k.weight.T + model.blocks[0].mixer.attention.W_k.bias
    scores = [
        (q[b, t] @ k[b, s] / 5**0.5).item()
        for b in range(4)
        for t in range(8, 16)
        for s in range(t + 1)
    ]
    expected = torch.tensor(scores).std().item()
    found = language_model.score_statistics(model, corpus.held_out[:64], 16)
    assert found["std"] == pytest.approx(expected, abs=1e-4)


# ---------------------------------------------------------------------------- what is stored

STORED = [record for name in EXPERIMENTS for record in load(name)]
NAMES = [f"{r['config']['experiment']}: {r['config']['label']}" for r in STORED]


# Runs that take hours and are still being recorded: notebooks do not read them yet.
AWAITED = configs("ladder64")


def test_every_declared_run_is_stored_and_nothing_else():
    declared = {result_path(RESULTS, config) for name in EXPERIMENTS for config in configs(name)}
    awaited = {result_path(RESULTS, config) for config in AWAITED}
    stored = set(RESULTS.rglob("*.json"))
    assert declared - awaited <= stored <= declared
    assert len(STORED) == len(stored)


def test_ladder64_is_the_upper_ladder_with_larger_batches():
    plain = {config["label"]: config for config in configs("ladder", seed=0)}
    large = configs("ladder64")
    assert [config["label"] for config in large] == list(plain)[4:]
    for config in large:
        same = plain[config["label"]]
        assert config["training"] == same["training"] | {"batch": 64}
        assert config["model"] == same["model"] and config["experiment"] == "ladder64"


def test_one_seed_of_an_experiment():
    assert [c["seed"] for c in configs("norms", seed=1)] == [1] * 5
    assert load("norms", seed=1) == [r for r in load("norms") if r["config"]["seed"] == 1]


@pytest.mark.parametrize("record", STORED, ids=NAMES)
def test_a_stored_run_is_whole_small_and_says_where_it_ran(record):
    path = result_path(RESULTS, record["config"])
    assert path.stat().st_size < 10_000
    assert {"date", "seconds", "machine", "curve", "result"} <= record.keys()
    assert platform.node() not in path.read_text() and "/" not in record["machine"]["processor"]
    assert record["result"]["parameters"] == parameters(record["config"])


def parameters(config: dict) -> int:
    if config["experiment"] == "counts":
        return {"unigrams": 1024, "bigrams": 1024 * 1024}[config["label"]]
    if config["experiment"] in ("winograd", "circuits"):
        return winograd.parameters(config)
    if "task" in config:
        module = induction if config["experiment"] == "induction" else recall
        return module.build(config).parameter_counts()["total"]
    model = TransformerConfig.from_dict({"vocab_size": 1024, **config["model"]})
    return Transformer(model).parameter_counts()["total"]


def test_parameters_of_the_rungs():
    rungs = configs("ladder", seed=0)
    counts = [parameters(config) for config in rungs]
    rises = [after - before for before, after in itertools.pairwise(counts)]
    by_label = dict(zip([c["label"] for c in rungs][1:], rises, strict=True))
    assert by_label["+ 4 heads"] == 16_512 and by_label["+ LayerNorm"] == 768
    assert by_label["mean"] == by_label["learned weights + residual"] == 0


def test_counts_are_what_counting_gives(monkeypatch, corpus):
    monkeypatch.setattr(counts, "load_shakespeare", lambda: corpus)
    for config, measure in zip(
        configs("counts"), (text.unigram_perplexity, text.bigram_perplexity), strict=True
    ):
        found = execute(config, Progress())
        assert found["result"]["held_out"] == pytest.approx(measure(corpus), abs=1e-3)
        assert counts.first_losses(config, 10) == found["curve"]["first"]


def test_the_table_shows_means_and_spread_over_seeds():
    records = [
        {"config": {"label": "a"}, "date": "2026-01-02", "result": {"parameters": 1234, "train": x}}
        for x in (2.0, 3.0, 4.0)
    ]
    records.append({"config": {"label": "b"}, "date": "2026-01-01", "result": {"parameters": 5}})
    lines = table(records).splitlines()
    assert lines[1].split() == ["a", "1,234", "3", "±", "1", "3"]
    wide = [
        record | {"result": {"steps": x}} for record, x in zip(records, (100, 340), strict=False)
    ]
    assert "220 ± 170" in table(wide)
    assert lines[2].split() == ["b", "5", "–", "1"]
    assert lines[3] == "recorded 2026-01-01 to 2026-01-02"
    assert table([]) == "nothing is stored"


def test_a_wide_table_comes_in_parts_that_fit_a_page():
    result = {f"a long column {i}": i for i in range(12)}
    records = [
        {"config": {"label": label}, "date": "2026-01-01", "result": result}
        for label in ("first", "the second of two")
    ]
    *lines, _ = table(records).splitlines()
    assert max(map(len, lines)) <= 120 and len(lines) % 3 == 0 and len(lines) > 3
    parts = [lines[i : i + 3] for i in range(0, len(lines), 3)]
    assert all(part[1].startswith("first ") for part in parts)
    assert all(part[2].startswith("the second of two ") for part in parts)
    titles = " ".join(part[0] for part in parts)
    assert [titles.count(f"a long column {i} ") for i in range(10)] == [1] * 10
    shown = [cell for part in parts for cell in part[1].split()[1:]]
    assert shown == [*map(str, range(12)), "1"]


def test_unknown_names_are_refused():
    for function in (load, configs):
        with pytest.raises(ValueError, match="name: expected one of counts, ladder"):
            function("leader")


# ------------------------------------------------------------------------------- the command


@pytest.fixture
def course(monkeypatch, tmp_path, capsys):
    from course.cli import main

    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))

    def call(*arguments: str) -> tuple[int, str]:
        try:
            status = main(["experiments", *arguments])
        except SystemExit as stop:
            status = int(stop.code or 0)
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return call


def test_list_and_table(course):
    status, text = course("list")
    assert status == 0 and all(name in text for name in EXPERIMENTS)
    assert "cannot be read" not in text
    with mock.patch.object(Path, "iterdir", side_effect=PermissionError(13, "Permission denied")):
        status, text = course("list")
    assert status == 0 and "cannot be read (Permission denied)" in text and "ladder" in text


def test_a_place_that_may_not_be_looked_at_has_no_run(notes, tmp_path, capsys):
    denied = PermissionError(13, "Permission denied")
    with mock.patch.object(Path, "is_file", side_effect=denied):  # the bar asks how far each run is
        run_sweep([square(2)], tmp_path)
    assert read_record(result_path(tmp_path, square(2))) is not None


def test_own_runs_leave_the_package_alone(course, corpus, monkeypatch, tmp_path):
    monkeypatch.setitem(EXPERIMENTS, "ladder", lambda: [run_config()])
    before = {path: path.stat().st_mtime_ns for path in RESULTS.rglob("*.json")}
    status, text = course("run", "ladder")
    assert status == 0 and str(tmp_path / "cache" / "experiments") in text and "small" in text
    assert course("run", "ladder", "--out", str(tmp_path / "mine"))[0] == 0
    assert len(list((tmp_path / "mine").rglob("*.json"))) == 1
    assert {path: path.stat().st_mtime_ns for path in RESULTS.rglob("*.json")} == before


def test_check_repeats_a_stored_run_and_sees_a_false_one(course, corpus, monkeypatch, tmp_path):
    monkeypatch.setitem(EXPERIMENTS, "ladder", lambda: [run_config()])
    course("run", "ladder", "--out", str(tmp_path))
    status, text = course("run", "ladder", "--check", "--out", str(tmp_path))
    assert status == 0 and text.startswith("✓ ladder, small, seed 1: 10 losses")
    path = result_path(tmp_path, run_config())
    record = read_record(path)
    record["curve"]["first"][4] *= 1.002
    write_record(path, record)
    status, text = course("run", "ladder", "--check", "--out", str(tmp_path))
    assert status == 1 and text.startswith("✗") and "2.0e-03 (above 0.001)" in text


def test_check_without_the_text_says_what_to_do(course, monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    status, text = course("run", "ladder", "--check")
    assert status == 1 and "COURSE_DATA names the folder" in text


@pytest.mark.parametrize("jobs", ["0", "two", "-1"])
def test_jobs_must_be_a_number(course, jobs):
    status, text = course("run", "ladder", "--jobs", jobs)
    assert status == 2 and "expected a whole number of at least 1" in text


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if load(name)])
def test_what_is_stored_can_be_repeated_here(course, name):
    try:
        if "task" not in configs(name)[0] and find_text() is None:  # the others make their data
            pytest.skip("Tiny Shakespeare is not on this machine: run `course data fetch`")
    except (TextUnavailable, WrongText) as missing:
        pytest.skip(str(missing))
    status, text = course("run", name, "--check")
    assert status == 0, text
