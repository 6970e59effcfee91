"""``course doctor``: what this machine has, what is missing, and the fix for each problem.

A check is a function that returns one :class:`Finding`. :func:`examine` runs them all for the
command line, :func:`check_environment` prints the required ones for notebook 00.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import sys
import tempfile
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.version import Version

import course

DISTRIBUTION = "attention-derived"
REINSTALL = "run `make lab` again, or: pip install -c constraints.txt -e .[kernels]"
FIRST_NOTEBOOK = "00_start_here.ipynb"
SIGNS = {"ok": "✓", "note": "·", "problem": "✗"}
# A torch release works with one triton release; torch's own CUDA builds pin it, others do not.
TRITON_OF_TORCH = {(2, 13): (3, 7)}


@dataclass(frozen=True)
class Finding:
    """One result: ``note`` is worth knowing, ``problem`` keeps the course from running."""

    name: str
    state: Literal["ok", "note", "problem"]
    detail: str
    fix: str = ""

    def __str__(self) -> str:
        line = f"{SIGNS[self.state]} {self.name:<12} {self.detail}"
        return f"{line}\n{'':15}fix: {self.fix}" if self.fix else line


def check_python(
    version: tuple[int, int] = sys.version_info[:2],
    system: str = platform.system(),
    machine: str = platform.machine(),
) -> Finding:
    """Is there a PyTorch for this Python on this kind of machine?"""
    here = f"{version[0]}.{version[1]} on {system} {machine}"
    if not (3, 11) <= version < (3, 15):
        return Finding(
            "Python",
            "problem",
            f"{here}: the course needs 3.11 to 3.14",
            "install one of these and run: make lab PYTHON=python3.12",
        )
    if (system, machine) == ("Darwin", "x86_64"):
        return Finding(
            "Python",
            "problem",
            f"{here}: PyTorch has no current build for Macs with an Intel processor",
            "read the notebooks on a code host, or run them on Colab (README.md has the line)",
        )
    return Finding("Python", "ok", here)


def check_packages() -> Finding:
    """Is every package that the course needs installed, in a version it works with?"""
    try:
        wanted = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or []]
    except metadata.PackageNotFoundError:
        return Finding("packages", "problem", "the course itself is not installed", REINSTALL)
    present, wrong = [], []
    for requirement in wanted:
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} is not {requirement.specifier}")
        present.append(f"{requirement.name} {version}")
    if wrong:
        return Finding("packages", "problem", "; ".join(wrong), REINSTALL)
    return Finding("packages", "ok", ", ".join(present))


def check_torch() -> Finding:
    """Does PyTorch start, and can it multiply?"""
    try:
        import torch

        product = torch.ones(2, 3) @ torch.ones(3, 2)
    except Exception as error:  # a damaged binary raises almost anything
        return Finding("PyTorch", "problem", f"does not start: {error}", REINSTALL)
    if product.tolist() != [[3.0, 3.0], [3.0, 3.0]]:
        return Finding("PyTorch", "problem", f"1·1+1·1+1·1 gives {product.tolist()}", REINSTALL)
    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    if torch.cuda.is_available():
        device = f"{torch.cuda.get_device_name(0)} and the CPU"
    else:
        device = "the CPU (enough for every notebook)"
    return Finding(
        "PyTorch", "ok", f"runs on {device}; {threads} threads, the machine has {cores} cores"
    )


def check_triton() -> Finding:
    """Can the kernels run, interpreted or compiled? Optional: no other part needs Triton."""
    if not sys.platform.startswith("linux"):
        return Finding("Triton", "note", "there is none for this system; only the kernels need it")
    try:
        triton, torch = (_release(metadata.version(name)) for name in ("triton", "torch"))
        numpy = _release(metadata.version("numpy"))
    except metadata.PackageNotFoundError:
        return Finding(
            "Triton",
            "note",
            "not installed; only the kernels need it",
            "pip install -c constraints.txt triton",
        )
    here = f"{metadata.version('triton')} with torch {metadata.version('torch')}"
    partner = TRITON_OF_TORCH.get(torch)
    if partner not in (None, triton):
        return Finding(
            "Triton",
            "note",
            f"{here}: this torch goes with triton {partner[0]}.{partner[1]}",
            "pip install -c constraints.txt torch triton",
        )
    if triton < (3, 7) and numpy >= (2, 4):
        return Finding(
            "Triton",
            "note",
            f"{here}: cannot interpret kernels with this NumPy, only compile them",
            "pip install -c constraints.txt torch triton",
        )
    return Finding("Triton", "ok", here)


def check_versions(notebooks: str | None = None) -> Finding:
    """Do the package and the notebooks belong together?

    ``notebooks`` is the notebooks' version; by default it is read from notebook 00.
    """
    name = "versions"
    folder = notebooks_folder()
    if notebooks is None and folder is None:
        return Finding(name, "note", f"package {course.__version__}; no notebooks folder here")
    if notebooks is None and folder is not None:
        notebooks = version_of_notebooks(folder)
    if notebooks != course.__version__:
        return Finding(
            name,
            "problem",
            f"package {course.__version__}, notebooks {notebooks}: not of one version",
            "take both from one release, then " + REINSTALL,
        )
    return Finding(name, "ok", f"package and notebooks are both {notebooks}")


def check_places() -> Finding:
    """Can the course write where it has to?"""
    places = {"temporary files": Path(tempfile.gettempdir()), "your files": Path.cwd()}
    folder = notebooks_folder()
    if folder:
        places["notebooks"] = folder
    try:
        from jupyter_core.paths import jupyter_runtime_dir

        places["Jupyter"] = Path(jupyter_runtime_dir())
    except ImportError:
        pass  # check_packages says that JupyterLab is missing
    locked = [f"{use} ({place})" for use, place in places.items() if not is_writable(place)]
    if locked:
        return Finding(
            "places",
            "problem",
            f"cannot write: {', '.join(locked)}",
            "copy the course into a folder of your own, or free these for writing",
        )
    return Finding("places", "ok", f"can write {', '.join(places)}")


def check_browser() -> Finding:
    """Can JupyterLab open a page? And is there a Chromium for the browser tests?"""
    chromium = next((c for c in ("chromium", "chromium-browser") if shutil.which(c)), None)
    tests = f"; {chromium} for the browser tests" if chromium else ""
    if has_browser():
        return Finding("browser", "ok", f"JupyterLab opens by itself{tests}")
    return Finding(
        "browser",
        "note",
        f"no desktop browser to open from here{tests}",
        "`make lab` prints the address: open it in a browser on this machine",
    )


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_python,
    check_packages,
    check_torch,
    check_versions,
    check_places,
    check_triton,
    check_browser,
)


def examine() -> list[Finding]:
    """Every check's finding, in the order they are printed."""
    return [check() for check in CHECKS]


def check_environment(notebooks: str) -> None:
    """Print what the notebooks need, one line each, the same on every machine that has it.

    ``notebooks`` is the version of the notebooks. What is missing is printed with its fix.
    """
    required = {
        "Python and system are supported": check_python(),
        "every package is there, in a version that works": check_packages(),
        "PyTorch computes": check_torch(),
        "package and notebooks are of one version": check_versions(notebooks),
        "results can be saved": check_places(),
    }
    for claim, finding in required.items():
        print(finding if finding.state == "problem" else f"✓ {claim}")


def notebooks_folder() -> Path | None:
    """The notebooks beside the reader or beside the package, or None."""
    here = Path.cwd()
    beside_package = Path(course.__file__).resolve().parents[1] / "notebooks"
    for folder in (here, here / "notebooks", beside_package):
        if (folder / FIRST_NOTEBOOK).is_file():
            return folder
    return None


def version_of_notebooks(folder: Path) -> str | None:
    """The version that notebook 00 says it belongs to, or None if it says nothing."""
    text = (folder / FIRST_NOTEBOOK).read_text(encoding="utf-8")
    stated = re.search(r'check_environment\(notebooks=\\?"([^"\\]+)\\?"\)', text)
    return stated[1] if stated else None


def is_writable(folder: Path) -> bool:
    """Can a file be made in ``folder``, or in the nearest folder above it that exists?"""
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def has_browser() -> bool:
    """Is there a browser that a page can be opened in? Over SSH and in containers there is none."""
    if sys.platform.startswith("linux") and not any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    ):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add ``course doctor``."""
    parser = subparsers.add_parser(
        "doctor",
        help="look at this machine: what works, what does not, and the fix",
        description="Look at this machine. The exit status is 1 if the course cannot run on it.",
    )
    parser.set_defaults(run=_command)


def _command(_: argparse.Namespace) -> int:
    print(f"course {course.__version__}")
    findings = examine()
    for finding in findings:
        print(finding)
    problems = sum(finding.state == "problem" for finding in findings)
    if problems:
        print(f"The course cannot run here: {problems} problem{'s' * (problems > 1)}, marked ✗.")
        return 1
    print("The course can run here.")
    return 0


def _release(version: str) -> tuple[int, int]:
    parsed = Version(version)
    return parsed.major, parsed.minor
