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

from course import __version__

COMMANDS = {
    "doctor": ("course.doctor", "look at this machine: what works, what does not, and the fix"),
    "data": ("course.tasks.cli", "get the text that the recorded experiments use"),
    "experiments": ("course.experiments.cli", "list, run and tabulate the recorded experiments"),
    "assignments": ("course.assignments.cli", "hand out, check and grade the assignments"),
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
        else:
            subparsers.add_parser(name, help=summary)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # ✓ on a console that has no such sign
            stream.reconfigure(errors="replace")
    command = next((a for a in arguments if not a.startswith("-")), None)
    try:
        parser = build_parser(command)
        parsed = parser.parse_args(arguments)
        if not hasattr(parsed, "run"):
            parser.print_help()
            return 2
        status = int(parsed.run(parsed) or 0)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `course … | head`: nobody reads on, also not what exit would flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ImportError, OSError, ValueError) as error:
        # A package that does not start, a place that cannot be read or written, a full disk, a
        # value that cannot be: all of them say what came and where. Anything else is a fault of
        # the course and shows its traceback.
        print(f"course {command}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
