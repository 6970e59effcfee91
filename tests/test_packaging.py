"""The package as it is installed: what importing costs, and that all its parts agree."""

from __future__ import annotations

import html
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import course
from tools import environment

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
# Modules that draw or show; everything else must not load matplotlib and the like.
DRAWING = (
    *("course.plots", "course.roadmap", "course.widgets", "course.cli", "course.doctor"),
    "course.bench.widgets",
)
HEAVY = {
    *("matplotlib", "ipywidgets", "IPython", "jupyterlab", "triton", "tokenizers", "pooch"),
    *("joblib", "dask", "distributed", "tqdm"),
}


def core_modules() -> list[str]:
    """Every module of the package that does not draw."""
    names = []
    for file in sorted(Path(course.__file__).parent.rglob("*.py")):
        parts = file.relative_to(Path(course.__file__).parent).with_suffix("").parts
        name = ".".join(("course", *(part for part in parts if part != "__init__")))
        if not name.startswith(DRAWING):
            names.append(name)
    return names


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_no_core_module_loads_a_heavy_package() -> None:
    modules = core_modules()
    assert {"course", "course.attention", "course.verify", "course.inputs"} <= set(modules)
    loaded = in_a_new_process(
        f"import sys, importlib, json, torch; before = set(sys.modules)\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    assert HEAVY.intersection(name.split(".")[0] for name in json.loads(loaded)) == set()


# Loaded when a command, an exercise or a record asks for them, not when a reader imports a form.
ON_DEMAND = ("course.assignments", "course.bench", "course.checks", "course.experiments")


def test_importing_the_package_costs_about_what_torch_costs() -> None:
    names = [name for name in core_modules() if not name.startswith(ON_DEMAND)]
    assert {"course.transformer", "course.linear", "course.training"} <= set(names)
    code = (
        "import time, importlib; start = time.process_time(); import torch\n"
        "torch_cost = time.process_time() - start\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print((time.process_time() - start) / torch_cost)"
    )
    in_a_new_process(code)  # writes the bytecode, so that compiling is not measured
    assert any(float(in_a_new_process(code)) <= 1.1 for _ in range(3))


def test_one_version_everywhere() -> None:
    stated = PROJECT["project"]["version"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert metadata.version("attention-derived") == course.__version__ == stated
    assert f"\nversion: {stated}\n" in citation
    first = (ROOT / "notebooks" / "00_start_here.ipynb").read_text(encoding="utf-8")
    assert f'check_environment(notebooks=\\"{stated}\\")' in first


def test_every_folder_with_code_is_packaged() -> None:
    mapping = PROJECT["tool"]["setuptools"]["package-dir"]
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    found = set()
    for package, folder in mapping.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            inner = init.parent.relative_to(ROOT / folder).parts
            found.add(".".join((package, *inner)))
    assert listed == found


def test_the_kernels_are_found_from_any_folder_and_load_no_triton(tmp_path: Path) -> None:
    """Editable, they lie beside ``course``; in a wheel inside it."""
    code = "import sys, course.kernels; print('triton' in sys.modules, *course.kernels.__path__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    loaded, folder = done.stdout.strip().split(" ", 1)
    assert loaded == "False"
    assert {file.name for file in Path(folder).glob("*.py")} == {
        file.name for file in (ROOT / "kernels").glob("*.py")
    }


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    parsed = [Requirement(line) for line in lines if line and not line.startswith("#")]
    found = {}
    for requirement in parsed:
        (pin,) = requirement.specifier
        assert pin.operator == "=="
        assert "+" not in pin.version, f"{requirement} names a build, not a version"
        found[canonicalize_name(requirement.name)] = pin.version
    assert len(found) == len(parsed), "a package is pinned twice"
    return found


@pytest.mark.parametrize("tier", environment.TIERS)
def test_every_requirement_is_pinned_inside_its_range(tier: str) -> None:
    pinned = pins()
    for line in [*environment.requirements(tier), "setuptools>=77"]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), line


def test_pins_of_what_depends_on_each_other() -> None:
    pinned = pins()
    assert (pinned["torch"], pinned["triton"]) == ("2.13.0", "3.7.1")


def tracked_files() -> list[Path]:
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("not a git checkout")
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listing.stdout.split("\0") if name]


def test_no_package_registry_is_named() -> None:
    """pip and its configuration decide where packages come from; only PyTorch's index is named."""
    hosts = re.compile(
        "|".join(("pypi" + r"\.org", "python" + r"hosted\.org", "anaconda" + r"\.org"))
    )
    named = []
    for path in tracked_files():
        if path.is_file() and hosts.search(path.read_text(encoding="utf-8", errors="ignore")):
            named.append(path.name)
    assert named == []


def test_no_large_file() -> None:
    assert [p.name for p in tracked_files() if p.is_file() and p.stat().st_size > 5_000_000] == []


def test_the_readme_maps_exactly_the_notebooks_that_exist() -> None:
    assert re.findall(r"\(notebooks/(\d\d_\w+\.ipynb)\)", README) == [p.name for p in NOTEBOOKS]


def test_the_course_picture_knows_the_last_notebook() -> None:
    first = NOTEBOOKS[0].read_text(encoding="utf-8")
    (stated,) = re.findall(r"course_picture\(last=(\d+)\)", first)
    assert int(stated) == int(NOTEBOOKS[-1].name[:2])


def readme_lines() -> set[str]:
    """Every line of a block of commands in the README, without its comment."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return {line.split("  #")[0].strip() for block in blocks for line in block.splitlines()}


def test_the_workflow_runs_the_lines_of_the_readme_on_three_systems() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8"))
    jobs = workflow["jobs"].values()
    systems = {job["runs-on"] for job in jobs} | {
        name for job in jobs for name in job.get("strategy", {}).get("matrix", {}).get("os", ())
    }
    for system in ("ubuntu", "macos", "windows"):
        assert any(name.startswith(system) for name in systems)
    steps = [step for job in jobs for step in job["steps"]]
    lines = readme_lines()
    lines |= {line.replace(".venv/bin/python", r".venv\Scripts\python") for line in lines}
    runs = [step["run"] for step in steps if "run" in step]
    assert {"make lab", "make test"} < set(runs) <= lines
    used = [step["uses"] for step in steps if "uses" in step]
    assert used and all(re.fullmatch(r"[\w/-]+@v\d+\.\d+\.\d+", action) for action in used)


def test_the_hooks_run_what_the_environment_has() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    (local,) = config["repos"]
    assert local["repo"] == "local"  # any other is fetched
    for hook in local["hooks"]:
        python, module, name, *_ = hook["entry"].split()
        assert (python, module, hook["language"]) == (".venv/bin/python", "-m", "system")
        assert importlib.util.find_spec(name)


def test_the_changelog_knows_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)
    assert versions[0] == "Unreleased" and versions[1] == PROJECT["project"]["version"]


def test_files_that_are_named_exist() -> None:
    for file in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / file).read_text(encoding="utf-8")
        for name in re.findall(r"\]\((?!http)([\w./-]+)", text):
            assert (ROOT / name).exists(), f"{file} names {name}"


def test_a_notebook_exported_as_the_readme_says_keeps_its_descriptions() -> None:
    exporter = pytest.importorskip("nbconvert").HTMLExporter(template_name="classic")
    assert any("-m nbconvert --to html --template classic" in line for line in readme_lines())
    page, _ = exporter.from_filename(str(NOTEBOOKS[0]))
    notebook = json.loads(NOTEBOOKS[0].read_text(encoding="utf-8"))
    alts = [
        output["metadata"]["image/png"]["alt"]
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]
    assert alts and all(html.escape(alt, quote=False)[:40] in page for alt in alts)


@pytest.mark.slow
def test_a_wheel_holds_every_module_and_the_command(tmp_path: Path) -> None:
    copy = tmp_path / "source"
    shutil.copytree(
        ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", "build", "*.egg-info", ".*cache")
    )
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", str(tmp_path), str(copy)], check=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for package, folder in PROJECT["tool"]["setuptools"]["package-dir"].items():
        for file in (ROOT / folder).rglob("*.py"):
            inside = Path(*package.split("."), file.relative_to(ROOT / folder))
            assert inside.as_posix() in names
    for result in (ROOT / "course" / "experiments" / "results").rglob("*.json"):
        assert result.relative_to(ROOT).as_posix() in names
    assert not [name for name in names if name.startswith(("tests/", "tools/", "notebooks/"))]
    assert any(name.endswith("licenses/LICENSE") for name in names)
