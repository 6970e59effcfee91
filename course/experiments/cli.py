"""The command ``course experiments list | run | table``."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from course.experiments.configs import EXPERIMENTS, configs
from course.experiments.results import RESULTS, load, table
from course.experiments.runner import ENGINES, RunFailed, run_sweep

#: Relative difference of a repeated loss that still counts as the same run. On the machine that
#: recorded it the losses are equal; another processor adds in another order.
TOLERANCE = 1e-3
CHECKED_STEPS = 10
_READING = (
    "train, held_out, best, …: perplexities, lower is better; accuracy, right, up to d tokens "
    "back, of N pairs, …: shares answered, higher is better; lowest, highest, solved: over the "
    "seeds of one run; ±: spread over seeds"
)


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add ``course experiments``."""
    parser = subparsers.add_parser(
        "experiments",
        help="list, repeat and tabulate the recorded experiments",
        description="The recorded experiments. What the notebooks show is stored in the package "
        "and is never overwritten: your own runs go to the folder `experiments` of the course's "
        "cache, or to --out.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="{list,run,table}")
    actions.add_parser("list", help="the experiments and what is stored").set_defaults(run=_list)

    run = actions.add_parser(
        "run",
        help="run what is not stored yet; start it again and it goes on",
        description="Run an experiment's configs that are not stored yet in the output folder. "
        "Interrupt it whenever you like: the same command goes on. Several of these commands may "
        "work on one folder.",
    )
    run.add_argument("name", choices=EXPERIMENTS)
    run.add_argument("--jobs", type=_count, default=1, help="runs at a time (default 1)")
    run.add_argument("--engine", choices=ENGINES, default="local", help="default: local")
    run.add_argument(
        "--scheduler",
        help="address of a Dask scheduler (default: a cluster of --jobs workers here)",
    )
    run.add_argument("--out", type=Path, help="folder of the results")
    run.add_argument(
        "--check",
        action="store_true",
        help=f"instead of running: repeat the first {CHECKED_STEPS} steps of one stored run of the "
        f"package (or of --out) and compare each loss, tolerance {TOLERANCE:g} relative",
    )
    run.add_argument(
        "--all", action="store_true", help="with --check: every stored run, not only the shortest"
    )
    run.set_defaults(run=_run)

    show = actions.add_parser("table", help="the stored results of one experiment")
    show.add_argument("name", choices=EXPERIMENTS)
    show.add_argument("--out", type=Path, help="folder of the results (default: the package's)")
    show.set_defaults(run=_table)


def own_folder() -> Path:
    """Where a user's own runs go when ``--out`` names no other place."""
    from course.tasks.text import cache_folder

    return cache_folder() / "experiments"


def _list(arguments: argparse.Namespace) -> int:
    try:
        next(own_folder().iterdir(), None)
    except FileNotFoundError:
        pass  # nothing was run yet
    except OSError as error:
        print(f"your own runs in {own_folder()} cannot be read ({error.strerror})")
    for name, declare in EXPERIMENTS.items():
        summary = (declare.__doc__ or "").splitlines()[0]
        stored, own = len(load(name)), len(load(name, own_folder()))
        print(
            f"{name:10} {stored} of {len(configs(name))} runs stored, {own} of your own: {summary}"
        )
    return 0


def _run(arguments: argparse.Namespace) -> int:
    if arguments.check:
        return _check(arguments)
    folder = arguments.out or own_folder()
    print(f"results go to {folder}")
    try:
        records = run_sweep(
            configs(arguments.name),
            folder,
            jobs=arguments.jobs,
            engine=arguments.engine,
            scheduler=arguments.scheduler,
        )
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        return 130
    except (RunFailed, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(table(records), _READING, sep="\n")
    return 0


def _table(arguments: argparse.Namespace) -> int:
    print(table(load(arguments.name, arguments.out)), _READING, sep="\n")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from course.tasks.text import TextUnavailable, WrongText

    stored = load(arguments.name, arguments.out or RESULTS)
    if not stored:
        print(f"{arguments.name}: nothing is stored to be checked")
        return 1
    if not arguments.all:
        stored = [min(stored, key=lambda record: record["seconds"])]
    wrong = 0
    for record in stored:
        label, expected = record["config"]["label"], record["curve"]["first"][:CHECKED_STEPS]
        try:
            # The module that ran it can also run its beginning again.
            module = import_module(record["config"]["run"].partition(":")[0])
            got = module.first_losses(record["config"], len(expected))
        except (TextUnavailable, WrongText) as error:
            print(error)
            return 1
        apart = max(abs(g - e) / e for g, e in zip(got, expected, strict=True))
        same = apart <= TOLERANCE
        wrong += not same
        print(
            f"{'✓' if same else '✗'} {arguments.name}, {label}, seed {record['config']['seed']}: "
            f"{len(expected)} losses, largest relative difference {apart:.1e} "
            f"({'within' if same else 'above'} {TOLERANCE:g})"
        )
    return 1 if wrong else 0


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return value
