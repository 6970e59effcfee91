"""Build the site: ``python -m book [FOLDER]``."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from sphinx.cmd.build import build_main

from book.pages import write_pages

HERE = Path(__file__).resolve().parent


def main(arguments: list[str] | None = None) -> int:
    """Render every stored notebook; 0, or 1 with Sphinx's complaints on stderr."""
    parser = argparse.ArgumentParser(prog="python -m book", description=__doc__)
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=HERE.parent / "build" / "book",
        help="where the site goes (default: build/book); what was there is replaced",
    )
    folder = parser.parse_args(arguments).folder.resolve()
    began = time.monotonic()
    print("[book 1/2] pages from the stored notebooks, explorers drawn", flush=True)
    pages, site = folder / "pages", folder / "site"
    for old in (pages, site):
        shutil.rmtree(old, ignore_errors=True)
    write_pages(pages)
    print("[book 2/2] the site", flush=True)
    status: int = build_main(
        ["-q", "-W", "--keep-going", "-b", "html", "-c", str(HERE), str(pages), str(site)]
    )
    if status == 0:
        shutil.copytree(pages / "_explorers", site / "_explorers")
        print(f"[book] {time.monotonic() - began:.0f} s; open {site / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
