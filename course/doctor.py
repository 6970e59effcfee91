"""``course doctor``: what this machine has, what is missing, and the fix for each problem.

A check is a function that tries what it promises and returns one :class:`Finding`. :func:`examine`
runs them all for the command line, :func:`check_environment` prints the required ones for
notebook 00.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.version import Version

import course
from course.console import say

DISTRIBUTION = "attention-derived"
REINSTALL = "run `make lab` again, or: pip install -c constraints.txt -e .[kernels]"
RENAME = "rename it, or start from another folder"
VISUAL_CPP = (
    "install the Microsoft Visual C++ Redistributable (vc_redist.x64.exe, from Microsoft), then "
    "start again"
)
FIRST_NOTEBOOK = "00_start_here.ipynb"
OWN_COPIES = "my-notebooks"  # made by tools/lab.py
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
    if "torch" not in sys.modules:  # in a process of its own first: a wrong build ends its process
        said = _child("import torch")
        if said is not None:
            # On Windows, a missing runtime of C++: "OSError: [WinError 126] The specified …".
            fix = VISUAL_CPP if "WinError" in said else REINSTALL
            return Finding("PyTorch", "problem", f"does not start: {said}", fix)
    import torch

    product = torch.ones(2, 3) @ torch.ones(3, 2)
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

    ``notebooks`` is the notebooks' version; by default it is read from notebook 00, and that of the
    reader's own copy of it is looked at too.
    """
    name, package = "versions", course.__version__
    fix = (
        "take both from one release (`make lab` puts it beside your own copies), then " + REINSTALL
    )
    if notebooks is None:
        folder, own = notebooks_folder(), notebooks_folder(OWN_COPIES)
        if folder is None:
            return Finding(name, "note", f"package {package}; no notebooks folder here")
        notebooks = version_of_notebooks(folder)
        copied = version_of_notebooks(own) if own else notebooks
        if notebooks == package != copied:
            return Finding(
                name,
                "note",
                f"package and notebooks are both {package}; your copy in {OWN_COPIES} is {copied}",
                "`make lab` puts the new edition beside a copy that you changed",
            )
    if notebooks != package:
        return Finding(
            name, "problem", f"package {package}, notebooks {notebooks}: not of one version", fix
        )
    return Finding(name, "ok", f"package and notebooks are both {notebooks}")


def check_names() -> Finding:
    """Does a file of the reader's, or another package, stand before a module that is imported?"""
    owners = metadata.packages_distributions().get("course", [])
    others = [o for o in owners if o and o.lower().replace("_", "-") != DISTRIBUTION]
    if others:
        return Finding(
            "names",
            "problem",
            f"the package {others[0]} is called course too",
            f"pip uninstall {others[0]}, then " + REINSTALL,
        )
    folders = {_here(), notebooks_folder(), notebooks_folder(OWN_COPIES)} - {None}
    hidden = [str(file) for folder in folders if folder for file in shadows(folder)]
    if hidden:
        return Finding("names", "problem", f"{hidden[0]} hides a module of this name", RENAME)
    return Finding("names", "ok", "no file here hides a module")


def check_places() -> Finding:
    """Can the course write where it has to?"""
    places: dict[str, Path | None] = {"your files": _here()}
    try:
        places["temporary files"] = Path(tempfile.gettempdir())
    except OSError:  # none of the usual folders can be written
        places["temporary files"] = None
    places["notebooks"] = notebooks_folder(OWN_COPIES) or notebooks_folder()
    if places["notebooks"] is None:
        del places["notebooks"]
    try:
        from jupyter_core.paths import jupyter_runtime_dir

        places["Jupyter"] = Path(jupyter_runtime_dir())
    except ImportError:
        pass  # check_packages says that JupyterLab is missing
    locked = [
        f"{use} ({place or 'no such folder'})"
        for use, place in places.items()
        if place is None or not is_writable(place)
    ]
    if locked:
        return Finding(
            "places",
            "problem",
            f"cannot write: {', '.join(locked)}",
            "copy the course into a folder of your own, or free these for writing",
        )
    return Finding("places", "ok", f"can write {', '.join(places)}")


def check_picture() -> Finding:
    """Can a picture be drawn?"""
    said = _child(
        "from course import plots\n"
        "plots.heatmap([[1.0, 0.0], [0.5, 0.5]], finding='two rows').png()"
    )
    if said is not None:  # Matplotlib's settings and fonts fail in many ways
        backend = os.environ.get("MPLBACKEND")
        fix = f"unset MPLBACKEND (now {backend!r})" if backend else REINSTALL
        return Finding("pictures", "problem", f"cannot draw: {said}", fix)
    return Finding("pictures", "ok", "drew one")


def check_kernel(patience: float = 60) -> Finding:
    """Does a Jupyter kernel start, compute 1 + 1, and find this very package?

    ``patience``: seconds that it may take to start, and to answer.
    """
    name = "kernel"
    tried = {"sum": "1 + 1", "course": "__import__('course.doctor').__version__"}
    try:
        from jupyter_client.manager import start_new_kernel

        manager, client = start_new_kernel(
            startup_timeout=patience,
            cwd=str(notebooks_folder(OWN_COPIES) or notebooks_folder() or _here() or Path("/")),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            reply = client.execute("", reply=True, timeout=patience, user_expressions=tried)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
        answers = reply["content"]["user_expressions"]
        got = {
            key: answer["data"]["text/plain"] if answer["status"] == "ok" else answer["evalue"]
            for key, answer in answers.items()
        }
    except Exception as error:  # Jupyter is many programs
        return Finding(name, "problem", f"does not start: {error}", REINSTALL)
    if got != {"sum": "2", "course": repr(course.__version__)}:
        detail = f"1 + 1 gives {got['sum']}, import course gives {got['course']}"
        return Finding(name, "problem", detail, REINSTALL)
    return Finding(name, "ok", "a Jupyter kernel starts, computes, and imports the course")


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
    check_names,
    check_places,
    check_picture,
    check_kernel,
    check_triton,
    check_browser,
)


def examine() -> list[Finding]:
    """Every check's finding, in the order they are printed."""
    return list(_findings())


def _findings() -> Iterator[Finding]:
    for check in CHECKS:
        try:
            yield check()
        except Exception as error:  # a doctor that falls ill says where
            name = check.__name__.removeprefix("check_")
            yield Finding(name, "problem", f"could not be looked at: {error!r}", REINSTALL)


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
        say(str(finding) if finding.state == "problem" else f"✓ {claim}")


def notebooks_folder(name: str = "notebooks") -> Path | None:
    """The notebooks beside the reader or beside the package, or None.

    ``name``: the folder, ``"notebooks"`` or the reader's own copies, ``"my-notebooks"``.
    """
    here, beside_package = _here(), Path(course.__file__).resolve().parents[1] / name
    folders = [here / name, beside_package] if here else [beside_package]
    if here and (here.name == name or (name == "notebooks" and here.name != OWN_COPIES)):
        folders.insert(0, here)
    return next((f for f in folders if os.path.isfile(f / FIRST_NOTEBOOK)), None)


def version_of_notebooks(folder: Path) -> str | None:
    """The version that notebook 00 says it belongs to, or None if it says nothing."""
    try:
        text = (folder / FIRST_NOTEBOOK).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    stated = re.search(r'check_environment\(notebooks=\\?"([^"\\]+)\\?"\)', text)
    return stated[1] if stated else None


def shadows(folder: Path) -> list[Path]:
    """Files and folders in ``folder`` that Python would import instead of a module it needs."""
    modules = set(sys.stdlib_module_names) | {"course", "torch", "numpy", "matplotlib", "IPython"}
    package = Path(course.__file__).resolve().parent
    found = []
    try:
        for entry in sorted(folder.iterdir()):
            if entry.suffix not in ("", ".py") or entry.stem not in modules:
                continue
            # Even an empty folder stands before an editable package, and so before this one.
            hides = entry.suffix or entry.stem == "course" or (entry / "__init__.py").exists()
            if hides and (entry.suffix or entry.is_dir()) and entry.resolve() != package:
                found.append(entry)
    except OSError:
        pass  # check_places says what cannot be read
    return found


def is_writable(folder: Path) -> bool:
    """Can a file be made in ``folder``, or in the nearest folder above it that exists?"""
    try:
        while not folder.exists():
            if folder == folder.parent:  # a drive that is not there
                return False
            folder = folder.parent
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
    if _here() is None:
        say("✗ The folder that you are in was deleted: go to another one, and try again.")
        return 1
    findings = []
    for finding in _findings():  # each as soon as it is known: a kernel takes seconds
        say(str(finding))
        sys.stdout.flush()
        findings.append(finding)
    problems = sum(finding.state == "problem" for finding in findings)
    if problems:
        say(f"The course cannot run here: {problems} problem{'s' * (problems > 1)}, marked ✗.")
        return 1
    print("The course can run here.")
    return 0


def _here() -> Path | None:
    """The working folder, None if it was deleted meanwhile."""
    try:
        return Path.cwd()
    except OSError:
        return None


def _child(code: str, patience: float = 120) -> str | None:
    """None if a new Python runs ``code``, else the last line of what it said."""
    try:
        done = subprocess.run(
            # Not from the working folder: what lies there is check_names' business.
            [sys.executable, "-c", f"import sys; sys.path.remove('')\n{code}"],
            capture_output=True,
            timeout=patience,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode == 0:
        return None
    said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
    return said[-1] if said else f"its process ended with status {done.returncode}"


def _release(version: str) -> tuple[int, int]:
    parsed = Version(version)
    return parsed.major, parsed.minor
