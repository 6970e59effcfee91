"""The command ``course pretrained list | make``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

#: The run whose model is kept under each name: experiment, label, seed.
RUNS = {"shakespeare": ("ladder", "+ second block", 1), "winograd": ("circuits", "seed 0", 0)}


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add ``course pretrained``."""
    parser = subparsers.add_parser(
        "pretrained",
        help="list the trained models, and train one again",
        description="The small trained models that come with the course.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="{list,make}")
    actions.add_parser("list", help="each model, and what it writes").set_defaults(run=_list)
    make = actions.add_parser(
        "make",
        help="train a model again and store it (winograd: a minute, shakespeare: ten or more)",
        description="Repeat the run of which the model was kept, and store the model in a folder "
        "of yours. For shakespeare it needs the text of the run: course data fetch.",
    )
    make.add_argument("name", choices=RUNS)
    make.add_argument("--out", type=Path, required=True, help="folder for NAME.safetensors")
    make.set_defaults(run=_make)


def _list(arguments: argparse.Namespace) -> int:
    from course.pretrained import load

    for name, (experiment, label, seed) in RUNS.items():
        model, _, record = load(name)
        print(f"{name}: {experiment}, {label}, seed {seed}; {_reached(record['result'])}")
        print(f"  {model.parameter_counts()['total']:,} parameters, recorded {record['date']}")
        if "sample" in record:
            print("  it writes: " + record["sample"].replace("\n", "\n  | "))
    return 0


def _make(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from course.experiments.configs import configs
    from course.experiments.runner import Progress, record_of
    from course.pretrained import store
    from course.tasks.text import TextUnavailable, WrongText

    experiment, label, seed = RUNS[arguments.name]
    config = next(run for run in configs(experiment, seed=seed) if run["label"] == label)
    path = arguments.out / f"{arguments.name}.safetensors"
    models: list = []
    try:
        tokenizer = _tokenizer_json(config)
        with tqdm(total=config["training"]["steps"], unit="step") as bar:

            def report(step: int) -> None:
                bar.update(step - bar.n)

            record = record_of(config, Progress(report, keep=models.append))
    except (TextUnavailable, WrongText) as error:
        print(error)
        return 1
    store(path, models[0], tokenizer, record)
    print(f"{path}: {_reached(record['result'])}, {record['seconds']:.0f} s")
    return 0


def _tokenizer_json(config: dict[str, Any]) -> str:
    """The words of a run, as a stored model holds them."""
    if "task" not in config:
        from course.tasks.text import load_shakespeare

        return load_shakespeare().tokenizer_json
    import json
    from dataclasses import asdict

    from course.experiments.winograd import task_of

    return json.dumps(asdict(task_of(config)))


def _reached(result: dict[str, Any]) -> str:
    if "held_out" in result:
        return f"held-out perplexity {result['held_out']:.1f}"
    return f"{100 * result['right']:.1f} % of the held-out sentences right"
