"""Start JupyterLab on the reader's own copies, for this machine only, with no call to the outside.

    .venv/bin/python tools/lab.py [--port 8888] [--check]

The course's notebooks stay as they are. The reader works on copies in ``my-notebooks``, which git
does not see: an update of the course renews the copies that nobody changed, and lies beside others.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

try:
    from jupyter_core.paths import jupyter_config_dir, jupyter_runtime_dir

    from course.doctor import FIRST_NOTEBOOK, OWN_COPIES, has_browser, is_writable
except ImportError as error:
    raise SystemExit(
        f"[lab] the course is not installed here, or something else is in its place ({error}): "
        "run `make lab` again"
    ) from None

ROOT = Path(__file__).resolve().parent.parent
FIRST = f"{OWN_COPIES}/{FIRST_NOTEBOOK}"
EDITIONS = ".editions.json"
# Without this JupyterLab asks every new reader whether it may fetch its news.
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
    }
}
MAX_THREADS = 4


# ------------------------------------------------------------------------------- the copies


def written(notebook: bytes) -> str | None:
    """A digest of what a reader writes (cells, not what running them shows); None if damaged."""
    try:
        cells = [
            (cell["cell_type"], "".join(cell["source"]), cell.get("attachments"))
            for cell in json.loads(notebook)["cells"]
        ]
    except (ValueError, KeyError, TypeError):
        return None
    # Running the last cell adds an empty one.
    kept = [cell for cell in cells if cell[1].strip()]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Edition:
    """A state of a notebook: what is written in it, and the whole with its outputs (digests)."""

    text: str | None
    whole: str

    @classmethod
    def of(cls, file: Path) -> Edition | None:
        """The state of a file, None if there is none."""
        if not file.exists():
            return None
        content = file.read_bytes()
        return cls(written(content), hashlib.sha256(content).hexdigest())


def renew_copies(course: Path, own: Path) -> list[str]:
    """Bring the copies in ``own`` up to the notebooks in ``course``; what there is to say about it.

    A copy in which nobody wrote follows the course. One in which somebody did stays as it is, and
    the new edition is put beside it, once. A copy that was deleted is made anew. Nothing else is
    touched.
    """
    own.mkdir(exist_ok=True)
    editions, said = _read_editions(own / EDITIONS), []
    for source in sorted(course.glob("[0-9][0-9]_*.ipynb")):
        copy, new = own / source.name, Edition.of(source)
        base, mine = editions.get(copy.name), Edition.of(copy)
        assert new is not None
        if mine is None or mine == base != new or (base and mine.text == base.text != new.text):
            _write(copy, source.read_bytes())
            if mine is not None:
                said.append(f"{copy.name}: renewed")
        elif new.text != mine.text and (base is None or new.text != base.text):
            beside = _beside(copy, editions)
            _write(beside, source.read_bytes())
            editions[beside.name] = new
            said.append(f"{copy.name}: you changed it, so it stays; the new one is {beside.name}")
        editions[copy.name] = new
    kept = {name: [edition.text, edition.whole] for name, edition in editions.items()}
    _write(own / EDITIONS, json.dumps(kept, indent=1).encode())
    return said


def _beside(copy: Path, editions: dict[str, Edition]) -> Path:
    """A name for a new edition: free, or that of an earlier one in which nobody wrote."""
    number = 1
    while True:
        place = copy.with_stem(f"{copy.stem} (new edition{f' {number}' if number > 1 else ''})")
        mine, base = Edition.of(place), editions.get(place.name)
        if mine is None or (base and mine.text == base.text):
            return place
        number += 1


def _read_editions(file: Path) -> dict[str, Edition]:
    """For each copy, the edition of the course that it was made from."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        return {name: Edition(text, whole) for name, (text, whole) in kept.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write(path: Path, content: bytes) -> None:
    """Replace a file in one step, so that it is never half-written."""
    draft = path.with_name(f".{path.name}.new")
    draft.write_bytes(content)
    os.replace(draft, path)


# ------------------------------------------------------------------------------- the server


def lab_arguments(port: int) -> list[str]:
    """The command line of ``jupyter lab``."""
    arguments = [
        f"--ServerApp.root_dir={ROOT}",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        f"--LabApp.default_url=/lab/tree/{FIRST}",
        # The address is printed all the same; a warning in the terminal helps no reader.
        "--ServerApp.log_level=ERROR",
        "--LabApp.log_level=ERROR",
        "--KernelManager.transport_encryption=auto",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",  # the usual one asks the package index
        "--ServerApp.jpserver_extensions=course.lab_extension=True",  # saves pictures
    ]
    if not has_browser():
        arguments.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--allow-root")
    return arguments


def few_threads(cores: int) -> dict[str, str]:
    """Variables for kernels: several are open at a time, and each would take two threads a core.

    PyTorch's own threads (OpenMP) are what the notebooks use; NumPy multiplies nothing large.
    """
    return {"OMP_NUM_THREADS": str(min(cores, MAX_THREADS)), "OPENBLAS_NUM_THREADS": "1"}


def quiet_settings(folder: Path) -> None:
    """Write the course's defaults into an environment's JupyterLab, unless there are others."""
    lab = folder / "share" / "jupyter" / "lab"
    overrides = lab / "settings" / "overrides.json"
    # Where JupyterLab lies elsewhere, a folder made here would be taken for it.
    if (lab / "static").is_dir() and not overrides.exists():
        overrides.parent.mkdir(parents=True, exist_ok=True)
        overrides.write_text(json.dumps(SETTINGS, indent=1) + "\n", encoding="utf-8")


def answers(command: Sequence[str], port: int, patience: float = 120) -> bool:
    """Start the server, ask for its page once, and stop it: did it answer?"""
    options = ["--no-browser", "--ServerApp.port_retries=0", "--IdentityProvider.token=check"]
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    page = f"http://127.0.0.1:{port}/lab/tree/{FIRST}?token=check"
    until = time.monotonic() + patience
    with subprocess.Popen([*command, *options]) as server:
        try:
            while time.monotonic() < until and server.poll() is None:
                try:
                    with direct.open(page, timeout=10) as answer:
                        return answer.status == 200
                except urllib.error.HTTPError:
                    return False
                except OSError:  # not yet
                    time.sleep(0.3)
            return False
        finally:
            server.terminate()


def port_number(text: str) -> int:
    """The port that ``text`` names; JupyterLab would print the address of one that cannot be."""
    if not text.isdecimal() or not 1 <= int(text) <= 65_535:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 1 to 65535, got {text!r} (make lab PORT=8888)"
        )
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=port_number, default=8888)
    parser.add_argument(
        "--check",
        action="store_true",
        default=os.environ.get("COURSE_LAB_CHECK") == "1",
        help="start, ask for the page once, stop; also by COURSE_LAB_CHECK=1",
    )
    parsed = parser.parse_args(arguments)
    try:
        for line in renew_copies(ROOT / "notebooks", ROOT / OWN_COPIES):
            print(f"[lab] {line}")
        quiet_settings(Path(sys.prefix))
    except OSError as error:
        print(f"[lab] {error.strerror}: {error.filename}", file=sys.stderr)
        print("[lab] the course must lie in a folder of your own", file=sys.stderr)
        return 1
    for place in (jupyter_config_dir(), jupyter_runtime_dir()):
        if not is_writable(Path(place)):
            print(f"[lab] Jupyter cannot write {place}: is HOME your own folder?", file=sys.stderr)
            return 1
    print(f"[lab] your copies of the notebooks are in {OWN_COPIES}", flush=True)
    command = [sys.executable, "-m", "jupyterlab", *lab_arguments(parsed.port)]
    for name, value in few_threads(os.cpu_count() or 1).items():
        os.environ.setdefault(name, value)
    if parsed.check:
        answered = answers(command, parsed.port)
        print(f"[lab] JupyterLab {'answers' if answered else 'does not answer'}")
        return 0 if answered else 1
    if os.name == "nt":  # there execv gives the prompt back while the server runs
        return subprocess.run(command).returncode
    os.execv(sys.executable, command)


if __name__ == "__main__":
    sys.exit(main())
