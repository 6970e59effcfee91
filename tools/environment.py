"""Set up the course's own environment in ``.venv`` (standard library only).

    python tools/environment.py lab     what the notebooks need
    python tools/environment.py test    the same and everything the tests need
    python tools/environment.py classroom   for teachers: nbgrader too, in .venv-classroom

Run it as often as you like: a finished set-up is recognised in well under a second and touches no
network, an unfinished or damaged one is repaired.
"""

# Down to the check of the version, every Python from 3.6 on must get; and it must be able to read
# the rest. So no `from __future__`, and what a newer Python brought comes after that check.
import os
import platform
import sys


def refusal(system, machine, version):
    """Why the course cannot run on this kind of machine, or None if it can."""
    if not (3, 11) <= version < (3, 15):
        return (
            f"This is Python {version[0]}.{version[1]}; the course needs 3.11, 3.12, 3.13 or 3.14. "
            "Install one of them and name it: make lab PYTHON=python3.12"
        )
    if system == "Darwin" and machine == "x86_64":
        return (
            "PyTorch has no current build for Macs with an Intel processor. "
            "Read the notebooks on a code host, or run them on Colab (see README.md)."
        )
    return None


def say(text, stream=None):
    """Print a line; a sign that the console does not have becomes ``?``."""
    stream = stream or sys.stdout
    encoding = getattr(stream, "encoding", None) or "ascii"
    line = f"[setup] {text}".encode(encoding, "replace").decode(encoding)
    print(line, file=stream, flush=True)


if __name__ == "__main__":
    reason = refusal(platform.system(), platform.machine(), sys.version_info[:2])
    if reason:
        say(reason, sys.stderr)
        sys.exit(1)

import csv
import hashlib
import http.client
import json
import re
import shutil
import subprocess
import threading
import tomllib
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "course-setup.json"
TIERS = {"lab": ("kernels",), "test": ("kernels", "dev"), "classroom": ("kernels", "classroom")}
# Has an environment of its own: nbgrader brings menus, which no reader's JupyterLab should get.
CLASSROOM = "classroom"
INDEX_PATIENCE_SECONDS = 5.0
# A reader's own settings of Python and pip must not reach into this environment.
FOREIGN = ("PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")


class SetupError(Exception):
    """The set-up cannot go on. The message says why and what to do."""


def requirements(tier: str) -> list[str]:
    """The requirement lines of ``pyproject.toml`` that a tier installs, own extras resolved."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = list(project["dependencies"])
    waiting = [line for extra in TIERS[tier] for line in extras[extra]]
    while waiting:
        line = waiting.pop(0)
        if line.startswith(f"{project['name']}["):
            inner = line[line.index("[") + 1 : line.index("]")]
            waiting += [entry for extra in inner.split(",") for entry in extras[extra.strip()]]
        elif line not in lines:
            lines.append(line)
    return lines


def fingerprint(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:16]


def packages_fingerprint(tier: str) -> str:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return fingerprint(sys.version, pins, *sorted(requirements(tier)))


def course_fingerprint() -> str:
    """Changes when the package must be installed again: its metadata, or the folder it lies in."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    relevant = {"project": table["project"], "setuptools": table["tool"]["setuptools"]}
    return fingerprint(str(ROOT), json.dumps(relevant, sort_keys=True))


def read_stamp() -> dict[str, str]:
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(stamp: dict[str, str]) -> None:
    """Replace the stamp in one step, so that it is never half-written."""
    draft = STAMP.with_suffix(".new")
    draft.write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")
    os.replace(draft, STAMP)


def venv_python() -> Path:
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def own_environment() -> dict[str, str]:
    """The variables for programs of the environment: no foreign folders, output in UTF-8."""
    kept = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    return kept | {"PIP_USER": "0", "PYTHONIOENCODING": "utf-8:replace", "PYTHONNOUSERSITE": "1"}


def answer(*command: str) -> tuple[bool, str]:
    """Did this command end well, and the end of what it said?"""
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=120, env=own_environment(), cwd=ROOT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
    return done.returncode == 0, said[-600:]


def works(*arguments: str) -> bool:
    """Does the environment's Python run this without an error?"""
    return answer(str(venv_python()), *arguments)[0]


def clear_venv() -> None:
    """Take away what lies at ``.venv``; through a link only what is an environment or nothing."""
    if VENV.is_symlink():
        target = Path(os.path.realpath(VENV))
        if not target.is_dir():
            raise SetupError(f".venv is a link to {target}, which is no folder: make it, or unlink")
        if any(target.iterdir()) and not (target / "pyvenv.cfg").is_file():
            raise SetupError(
                f".venv is a link to {target}, where other files lie: remove the link .venv, or "
                "let it point to an empty folder"
            )
        for inside in target.iterdir():
            if inside.is_dir() and not inside.is_symlink():
                shutil.rmtree(inside)
            else:
                inside.unlink()
    elif VENV.is_dir():
        shutil.rmtree(VENV)
    else:
        VENV.unlink(missing_ok=True)


def make_venv() -> None:
    """A ``.venv`` of this very Python with a pip that starts; a broken one is replaced."""
    this_python = f"import sys; raise SystemExit(sys.version != {sys.version!r})"
    if works("-c", this_python) and works("-m", "pip", "--version"):
        return
    if os.pathsep in str(VENV):
        raise SetupError(
            f"Python makes no environment in a folder with {os.pathsep!r} in its path: move the "
            f"course out of {ROOT}"
        )
    if VENV.exists() or VENV.is_symlink():
        say(f"the environment in {VENV.name} is unfinished or of another Python: making it anew")
        clear_venv()
    say(f"making the environment {VENV.name} with Python {platform.python_version()}")
    made, said = answer(sys.executable, "-m", "venv", str(VENV))
    if not made:
        clear_venv()
        raise SetupError(
            "Python could not make a virtual environment. On Debian and Ubuntu the part that does "
            f"it is a package of its own:\n    sudo apt install python3-venv\nPython said: {said}"
        )


def progress(lines: Iterable[str]) -> Iterator[str]:
    """The few lines of pip's log that tell a reader how far it is."""
    collected = 0
    for line in lines:
        fetched = re.match(r"\s*Downloading (\S+) \((\d[\d.]*) MB\)\s*$", line)
        if line.startswith("Collecting "):
            collected += 1
            if collected % 25 == 0:
                yield f"{collected} packages looked up, the latest is {line.split()[1]}"
        elif fetched and float(fetched[2]) >= 10:
            yield f"fetching {fetched[1].rsplit('/', 1)[-1].split('-')[0]} ({fetched[2]} MB)"
        elif line.startswith("Installing collected packages"):
            count = line.count(",") + 1
            yield f"unpacking {count} package{'s' * (count > 1)}"


def pip(*arguments: str) -> None:
    command = [str(venv_python()), "-m", "pip", "--disable-pip-version-check", *arguments]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=own_environment(),
        stdout=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    ) as running:
        assert running.stdout is not None
        for line in progress(running.stdout):
            say(line)
    if running.returncode != 0:
        raise SetupError(
            "pip stopped, its own message is above. Without a network connection the first set-up "
            "is not possible: connect once and run the same command again, it goes on from here."
        )


def pip_install(*arguments: str) -> None:
    pip("install", "--progress-bar=off", "-c", "constraints.txt", *arguments)


def answers(address: str) -> bool:
    """Does this address give an answer within seconds? Any kind of nonsense does not."""
    found = []

    def ask() -> None:
        try:
            urllib.request.urlopen(address, timeout=INDEX_PATIENCE_SECONDS).close()
            found.append(True)
        except (OSError, ValueError, http.client.HTTPException):
            pass

    # In a thread: looking a name up, and a server that sends a byte a second, know no time limit.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(INDEX_PATIENCE_SECONDS)
    return bool(found)


def torch_index() -> str | None:
    """Where PyTorch should come from; None is pip's own configuration."""
    chosen = os.environ.get("TORCH_INDEX", "").strip()
    if chosen:
        say(f"PyTorch comes from {chosen} (TORCH_INDEX)")
        return chosen
    if platform.system() != "Linux":
        return None  # PyPI's builds for macOS and Windows are the CPU ones already
    if shutil.which("nvidia-smi"):
        say("found an NVIDIA driver: PyTorch comes with CUDA (about 3 GB to fetch)")
        return None
    cpu_index = os.environ.get("TORCH_CPU_INDEX", "").strip()
    if not answers(f"{cpu_index}/torch/"):
        say("no NVIDIA driver, but PyTorch's index of CPU builds does not answer: plain pip, which")
        say("may fetch the larger CUDA build (TORCH_INDEX=… names another index)")
        return None
    say("no NVIDIA driver: PyTorch's CPU build (about 200 MB to fetch)")
    return cpu_index


def install_torch() -> None:
    if works("-c", "import torch"):
        return
    index = torch_index()
    if index:
        pinned = next(
            line.split(";")[0].strip()
            for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
            if line.startswith("torch==")
        )
        try:
            # --no-deps: what torch itself needs comes with everything else, from the usual index.
            pip("install", "--progress-bar=off", "--no-deps", "--index-url", index, pinned)
        except SetupError:
            say(f"{index} did not deliver {pinned}: trying plain pip")


def damaged(packages: Path) -> list[str]:
    """The packages in a site-packages folder of which a file is missing or of the wrong length."""
    found = []
    for folder in sorted(packages.glob("*.dist-info")):
        try:
            with (folder / "RECORD").open(encoding="utf-8", newline="") as rows:
                files = [(packages / path, size) for path, _, size in csv.reader(rows)]
        except (OSError, ValueError):
            files = [(folder / "RECORD", "1")]
        if any(size and (not f.is_file() or f.stat().st_size != int(size)) for f, size in files):
            found.append(folder.name.split("-")[0])
    return found


def repair() -> None:
    """Install again what an interrupted set-up left half on the disk and pip takes for whole."""
    folders = [*VENV.glob("lib/python*/site-packages"), *VENV.glob("Lib/site-packages")]
    broken = [name for folder in folders for name in damaged(folder)]
    if broken:
        say(f"an earlier set-up left these unfinished, installing them again: {', '.join(broken)}")
        pip_install("--force-reinstall", "--no-deps", *broken)


def install_packages(tier: str) -> None:
    make_venv()
    STAMP.unlink(missing_ok=True)
    pip_install("setuptools")  # builds run without isolation, so that they need no network
    install_torch()
    say("installing the packages that constraints.txt pins (a few minutes the first time)")
    pip_install(*requirements(tier))
    repair()


def install_course() -> None:
    say("installing the course itself (editable)")
    pip_install("--no-deps", "--no-build-isolation", "-e", ".")


def require_torch() -> None:
    """PyTorch starts, or the reason why not."""
    started, said = answer(str(venv_python()), "-c", "import torch")
    if not started:
        cause = (
            "\nOn Windows most often the Microsoft Visual C++ Redistributable is missing: install "
            "it (vc_redist.x64.exe, from Microsoft) and run the same command again."
        )
        raise SetupError(f"PyTorch does not start: {said}{cause if os.name == 'nt' else ''}")


def choose_place(tier: str) -> None:
    """Which folder the environment of this tier is in."""
    global VENV, STAMP
    if tier == CLASSROOM:
        VENV = ROOT / ".venv-classroom"
        STAMP = VENV / "course-setup.json"


def set_up(tier: str) -> None:
    choose_place(tier)
    stamp = read_stamp()
    wanted = packages_fingerprint(tier)
    ready = stamp.get(tier) == wanted and venv_python().exists()
    if ready and stamp.get("course") == course_fingerprint():
        say(f"the environment in {VENV.name} is ready")
        return
    if not ready:
        install_packages(tier)
        stamp = {"lab": packages_fingerprint("lab"), tier: wanted}
    install_course()
    require_torch()
    write_stamp(stamp | {"course": course_fingerprint()})
    say("done")


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in TIERS:
        say(f"usage: python tools/environment.py {' | '.join(TIERS)}", sys.stderr)
        return 2
    try:
        set_up(arguments[0])
    except SetupError as error:
        say(error, sys.stderr)
        return 1
    except OSError as error:  # a read-only folder, a full disk, another user's environment
        say(f"{error.strerror or error}: {error.filename or ROOT}", sys.stderr)
        say("the course must lie in a folder of your own, with 2 GB free", sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here", sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
