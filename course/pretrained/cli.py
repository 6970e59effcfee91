"""The command ``course pretrained list | make``."""

from __future__ import annotations

import argparse
from pathlib import Path

#: The run whose model is kept under each name: experiment, label, seed.
RUNS = {"shakespeare": ("ladder", "+ second block", 1)}


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
        help="train a model again and store it (ten minutes or more)",
        description="Repeat the run of which the model was kept, and store the model in a folder "
        "of yours. It needs the text of the run: course data fetch.",
    )
    make.add_argument("name", choices=RUNS)
    make.add_argument("--out", type=Path, required=True, help="folder for NAME.safetensors")
    make.set_defaults(run=_make)


def _list(arguments: argparse.Namespace) -> int:
    from course.pretrained import load

    for name, (experiment, label, seed) in RUNS.items():
        model, _, record = load(name)
        held_out = record["result"]["held_out"]
        print(f"{name}: {experiment}, {label}, seed {seed}; held-out perplexity {held_out:.1f}")
        print(f"  {model.parameter_counts()['total']:,} parameters, recorded {record['date']}")
        print("  it writes: " + record["sample"].replace("\n", "\n  | "))
    return 0


def _make(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from course.experiments.configs import configs
    from course.experiments.runner import Progress, record_of
    from course.pretrained import store
    from course.tasks.text import TextUnavailable, WrongText, load_shakespeare

    experiment, label, seed = RUNS[arguments.name]
    config = next(run for run in configs(experiment, seed=seed) if run["label"] == label)
    path = arguments.out / f"{arguments.name}.safetensors"
    models: list = []
    try:
        tokenizer = load_shakespeare().tokenizer_json
        with tqdm(total=config["training"]["steps"], unit="step") as bar:

            def report(step: int) -> None:
                bar.update(step - bar.n)

            record = record_of(config, Progress(report, keep=models.append))
    except (TextUnavailable, WrongText) as error:
        print(error)
        return 1
    store(path, models[0], tokenizer, record)
    print(f"{path}: held-out perplexity {record['result']['held_out']}, {record['seconds']:.0f} s")
    return 0
