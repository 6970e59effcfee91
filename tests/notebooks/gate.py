"""What a stored notebook must satisfy, as pure functions: notebook JSON in, complaints out.

``complaints`` looks only at what is stored. Whether the outputs are still what the code prints is
found by running the notebook (nbval, see ``plugin.py``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

Notebook = dict[str, Any]
Cell = dict[str, Any]
Output = dict[str, Any]

MIN_COMPARED = 0.8
CELL_SECONDS = 20.0
TRAINING_SECONDS = 40.0
NOTEBOOK_SECONDS = 90.0
MAX_BYTES = 5_000_000

PICTURES = ("image/png", "image/jpeg", "image/svg+xml")
FOLDED = "jp-MarkdownHeadingCollapsed"  # JupyterLab's key for a heading whose cells are hidden
SPEAKING = {"print", "verify", "show", "show_source", "check", "display"}
FETCHING = re.compile(
    r"\b(urlopen|urlretrieve|from_pretrained|hf_hub_download|snapshot_download|load_dataset"
    r"|load_state_dict_from_url|download_url_to_file"
    r"|requests\.\w+|httpx\.\w+|pooch\.\w+|hub\.load|wget\.\w+)\s*\("
)
SHELL = re.compile(r"^\s*(!|%%?(?:pip|conda|sh|bash|system|script|cmd)\b)", re.MULTILINE)
FETCHED_HTML = re.compile(
    # Markdown pictures, in place or by reference; HTML elements; style sheets.
    r"!\[[^\]]*\]\(\s*(?:https?:|//)|<(?:img|script|iframe|link|video|audio)\b[^>]*(?:\bhttps?:|"
    r"[\"'=]//)|^\s*\[[^\]]+\]:\s*\S+\.(?:png|jpe?g|gif|svg)\b|@import\b|"
    r"\burl\(\s*[\"']?(?:https?:)?//",
    re.IGNORECASE | re.MULTILINE,
)
ABSOLUTE_PATH = re.compile(
    r"(?<![\w.:/~<-])/(?:home|root|Users|tmp|var|usr|opt|etc|mnt|private|work|content|srv)/"
    r"|\b[A-Za-z]:[\\/]{1,2}(?:Users|Windows|Temp|Program)|\bfile:///"
)
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
BARE_REPR = re.compile(r"<[\w.]+(?: [^>]*)?>|[A-Z]\w*\([^()]*=.*\)", re.DOTALL)
EXCLUDING_TAGS = {"raises-exception", "nbval-skip", "nbval-ignore-output", "nbval-raises-exception"}
EXCLUDING_COMMENT = re.compile(r"^\s*#+\s*(NBVAL_|PYTEST_VALIDATE)", re.MULTILINE)


def text_of(value: str | list[str]) -> str:
    """The text of a multi-line field, which the notebook format may store as a list of lines."""
    return value if isinstance(value, str) else "".join(value)


def source_of(cell: Cell) -> str:
    return text_of(cell["source"])


def code_cells(notebook: Notebook) -> list[Cell]:
    return [c for c in notebook["cells"] if c["cell_type"] == "code" and source_of(c).strip()]


def seconds_allowed(cell: Cell) -> float:
    """The time budget of a cell: 20 s, or 40 s with the tag ``training``."""
    training = "training" in cell.get("metadata", {}).get("tags", [])
    return TRAINING_SECONDS if training else CELL_SECONDS


def kept_metadata(cell: Cell) -> dict[str, Any]:
    """Metadata of a cell that are stored beside its tags: a detour is folded, in JupyterLab."""
    detour = "detour" in cell.get("metadata", {}).get("tags", [])
    return {FOLDED: True} if detour and cell["cell_type"] == "markdown" else {}


def output_text(output: Output) -> str:
    """The text of one output that a rerun is compared with; empty if there is none."""
    if output["output_type"] == "stream":
        return text_of(output["text"])
    return text_of(output.get("data", {}).get("text/plain", ""))


def is_compared(cell: Cell) -> bool:
    """Is at least one stored text neither empty nor the bare repr of an object?"""
    texts = (output_text(output).strip() for output in cell["outputs"])
    return any(text and not BARE_REPR.fullmatch(text) for text in texts)


def shows_something(cell: Cell) -> bool:
    """Everything but cells that only import, define or assign, and print nothing by it."""
    silent = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
    if cell["outputs"]:
        return True
    try:
        body = _parse(cell).body
    except SyntaxError:
        return True
    return not all(isinstance(statement, silent) or _is_docstring(statement) for statement in body)


def coverage(notebook: Notebook) -> tuple[int, int]:
    """(cells whose text is compared, cells that show something)."""
    showing = [cell for cell in code_cells(notebook) if shows_something(cell)]
    return sum(map(is_compared, showing)), len(showing)


def printed_lines(notebook: Notebook) -> list[str]:
    """Every line of text that the code cells print."""
    texts = (output_text(o) for cell in code_cells(notebook) for o in cell["outputs"])
    return [line for text in texts for line in text.splitlines()]


def verify_lines(notebook: Notebook) -> int:
    """The number of printed verdicts."""
    return sum(line.startswith("✓ ") for line in printed_lines(notebook))


def complaints(notebook: Notebook) -> list[str]:
    """Everything that is wrong with a stored notebook, one line each; empty if it may stay."""
    found = [*_about_counts(notebook), *_about_metadata(notebook)]
    for place, cell in enumerate(notebook["cells"], 1):
        kind = cell["cell_type"]
        about = _about_code if kind == "code" else _about_text
        found += [f"cell {place} ({kind}): {what}" for what in about(cell)]
    compared, showing = coverage(notebook)
    if compared < MIN_COMPARED * showing:
        found.append(
            f"only {compared} of {showing} cells that show something have a text that is compared"
        )
    return found


def _about_counts(notebook: Notebook) -> Iterator[str]:
    counts = [cell["execution_count"] for cell in code_cells(notebook)]
    if not counts:
        yield "no code cell"
    if None in counts:
        yield f"{counts.count(None)} of {len(counts)} code cells were not executed"
    elif counts != list(range(1, len(counts) + 1)):
        yield f"execution counts are not 1, 2, 3 … in order: {counts}"


def _about_metadata(notebook: Notebook) -> Iterator[str]:
    if "widgets" in notebook["metadata"]:
        yield "widget state is stored in the notebook"
    for cell in notebook["cells"]:
        extra = sorted(set(cell.get("metadata", {})) - {"tags", *kept_metadata(cell)})
        if extra:
            yield f"metadata that changes from run to run: {', '.join(extra)}"
            return


def _about_text(cell: Cell) -> Iterator[str]:
    source = source_of(cell)
    if FETCHED_HTML.search(source):
        yield "shows something that is fetched from the network"
    if ABSOLUTE_PATH.search(source):
        yield f"absolute path {_excerpt(ABSOLUTE_PATH, source)}"


def _about_code(cell: Cell) -> Iterator[str]:
    source = source_of(cell)
    if not source.strip():
        yield "empty"
        return
    try:
        tree = _parse(cell)
    except SyntaxError as error:
        yield f"not Python: {error.msg}"
        return
    excluding = EXCLUDING_TAGS.intersection(cell.get("metadata", {}).get("tags", []))
    if excluding or EXCLUDING_COMMENT.search(source):
        yield "marked so that its output is not compared"
    if SHELL.search(source):
        yield "runs a shell or an installer"
    if FETCHING.search(source):
        yield f"may download: {_excerpt(FETCHING, source)}"
    if ABSOLUTE_PATH.search(source):
        yield f"absolute path {_excerpt(ABSOLUTE_PATH, source)}"
    if source.rstrip().endswith(";"):
        # IPython looks the semicolon up in its history, which nbval does not keep.
        yield "ends with a semicolon: it hides the value from the reader, not from the comparison"
    if not cell["outputs"] and cell["execution_count"] is not None and _must_show(tree):
        yield "no stored output, although it shows a value"
    for output in cell["outputs"]:
        yield from _about_output(output)


def _about_output(output: Output) -> Iterator[str]:
    if output["output_type"] == "error":
        yield f"traceback: {output.get('ename')}: {output.get('evalue')}"
        return
    if output.get("name") == "stderr":
        yield f"wrote to stderr: {text_of(output['text'])[:80]!r}"
    data = output.get("data", {})
    if "application/vnd.jupyter.widget-view+json" in data:
        yield "a live widget is stored: only its picture and its finding may be"
    pictures = [kind for kind in PICTURES if kind in data]
    finding = output_text(output).strip()
    if pictures and (not finding or BARE_REPR.fullmatch(finding)):
        yield "a picture without a finding in words (text/plain)"
    for kind in pictures:
        if not output.get("metadata", {}).get(kind, {}).get("alt", "").strip():
            yield "a picture without alt text"
    texts = [output_text(output), text_of(data.get("text/html", ""))]
    for text in texts:
        if ABSOLUTE_PATH.search(text):
            yield f"absolute path in the output: {_excerpt(ABSOLUTE_PATH, text)}"
        if ADDRESS.search(text):
            yield f"memory address in the output: {_excerpt(ADDRESS, text)}"
        if FETCHED_HTML.search(text):
            yield "the output fetches something from the network"


def _parse(cell: Cell) -> ast.Module:
    lines = source_of(cell).splitlines()
    return ast.parse("\n".join("pass" if line.startswith(("%", "!")) else line for line in lines))


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and statement.value.value is Ellipsis
    )


def _must_show(tree: ast.Module) -> bool:
    """Does the cell end in a value, or call a function that always prints?"""
    for statement in tree.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and getattr(call.func, "id", None) in SPEAKING:
            return True
    last = tree.body[-1] if tree.body else None
    return isinstance(last, ast.Expr) and not isinstance(last.value, ast.Call | ast.Constant)


def _excerpt(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    assert match is not None
    return text[match.start() : match.start() + 40].split("\n")[0]
