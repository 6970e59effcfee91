"""The ``course`` command.

A subcommand lives in the module it belongs to, as ``add_parser(subparsers)``; its parser sets
``run``, a function from the parsed arguments to the exit status. Only the module of the command
that was asked for is imported, so that ``course --help`` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from course import __version__

COMMANDS = {
    "doctor": ("course.doctor", "look at this machine: what works, what does not, and the fix"),
    "data": ("course.tasks.cli", "get the text that the recorded experiments use"),
    "experiments": ("course.experiments.cli", "list, run and tabulate the recorded experiments"),
    "pretrained": ("course.pretrained.cli", "list the trained models, and train one again"),
    "kernels": ("course.kernels.cli", "compile the GPU kernels ahead of time, without a GPU"),
    "bench": ("course.bench", "measure this machine against the limits that the notebooks state"),
}


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The command line's parser, with the full subparser of ``command`` only."""
    parser = argparse.ArgumentParser(
        prog="course",
        description="Attention, derived: the command beside the notebooks.",
        epilog="'course COMMAND --help' says more about one of them.",
    )
    parser.add_argument("--version", action="version", version=f"course {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands")
    for name, (module, summary) in COMMANDS.items():
        if name == command:
            importlib.import_module(module).add_parser(subparsers)
        elif _exists(module):
            subparsers.add_parser(name, help=summary)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # ✓ on a console that has no such sign
            stream.reconfigure(errors="replace")
    command = next((a for a in arguments if not a.startswith("-")), None)
    parser = build_parser(command if command in COMMANDS and _exists(_module(command)) else None)
    parsed = parser.parse_args(arguments)
    if not hasattr(parsed, "run"):
        parser.print_help()
        return 2
    try:
        status = int(parsed.run(parsed) or 0)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `course … | head`: nobody reads on, also not what exit would flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OSError, ValueError) as error:
        # A place that cannot be read or written, a full disk, a value that cannot be: all of them
        # say what came and where. Anything else is a fault of the course and shows its traceback.
        print(f"course {command}: {error}", file=sys.stderr)
        return 1


def _module(command: str) -> str:
    return COMMANDS[command][0]


def _exists(module: str) -> bool:
    # find_spec("course.a.b") would import course.a, and whatever that imports.
    package, name = Path(__file__).parents[1], module
    if module.startswith("course.kernels."):
        # A folder of its own beside course/ in the sources, inside it once installed; importing
        # the package itself loads nothing.
        import course.kernels

        package, name = Path(course.kernels.__path__[0]), module.removeprefix("course.kernels.")
    file = package.joinpath(*name.split("."))
    return file.with_suffix(".py").is_file() or (file / "__init__.py").is_file()


if __name__ == "__main__":
    sys.exit(main())
