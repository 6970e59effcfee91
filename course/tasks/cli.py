"""The command ``course data fetch``; the module that does the work is loaded when it is run."""

from __future__ import annotations

import argparse


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add ``course data fetch``."""
    parser = subparsers.add_parser("data", help="get the text that the recorded experiments use")
    actions = parser.add_subparsers(dest="action", required=True, metavar="{fetch}")
    fetch = actions.add_parser(
        "fetch",
        help="download Tiny Shakespeare (1.1 MB) to the cache, once",
        description="Find Tiny Shakespeare in COURSE_DATA or in the cache folder, or download it "
        "to the cache (1.1 MB, public domain), and check its SHA-256.",
    )
    fetch.set_defaults(run=_fetch_command)


def _fetch_command(arguments: argparse.Namespace) -> int:
    from course.tasks.text import TextUnavailable, WrongText, fetch_text

    try:
        path = fetch_text()
    except (TextUnavailable, WrongText) as error:
        print(error)
        return 1
    print(f"Tiny Shakespeare is in {path}")
    return 0
