"""The gate lets a good notebook pass and names each kind of fault."""

from __future__ import annotations

import base64
import copy
import io
from collections.abc import Callable
from typing import Any

import nbformat
import pytest
from matplotlib.figure import Figure

from tests.notebooks import gate
from tests.notebooks.clean import clean, strip_png_comments

Notebook = dict[str, Any]


def code(source: str, *outputs: dict[str, Any], count: int | None = 1) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "id": f"cell-{count}",
        "metadata": {},
        "source": source,
        "execution_count": count,
        "outputs": list(outputs),
    }


def stream(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


def picture(text: str = "the weights fall from 0.5 to 0.1", alt: str = "bars") -> dict[str, Any]:
    data = {"image/png": "aGk=", "text/plain": text}
    if not text:
        del data["text/plain"]
    metadata = {"image/png": {"alt": alt}} if alt else {}
    return {"output_type": "display_data", "data": data, "metadata": metadata}


def good() -> Notebook:
    """A notebook without a fault; cell 4 of the file is the one most tests change."""
    return {
        "metadata": {"kernelspec": {"name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
        "cells": [
            {"cell_type": "markdown", "id": "m", "metadata": {}, "source": "# Is it so?"},
            code("import torch\nfrom course.verify import verify", count=1),
            code("def f(x):\n    return x", count=2),
            code("verify('one', 1, 1)", stream("✓ one: exactly 1\n"), count=3),
            code("Picture(fig)", picture(), count=4),
            code("print(2)", stream("2\n"), count=5),
        ],
    }


def test_a_good_notebook_has_no_complaint() -> None:
    assert gate.complaints(good()) == []
    assert gate.coverage(good()) == (3, 3)
    assert gate.verify_lines(good()) == 1


def unexecuted(notebook: Notebook) -> None:
    notebook["cells"][3].update(execution_count=None, outputs=[])


def never_executed(notebook: Notebook) -> None:
    for cell in notebook["cells"][1:]:
        cell.update(execution_count=None, outputs=[])


def out_of_order(notebook: Notebook) -> None:
    notebook["cells"][3]["execution_count"], notebook["cells"][4]["execution_count"] = 4, 3


def starts_late(notebook: Notebook) -> None:
    for cell in notebook["cells"][1:]:
        cell["execution_count"] += 1


def missing_value(notebook: Notebook) -> None:
    notebook["cells"][5] = code("x = 2\nx + 1", count=5)


def missing_verdict(notebook: Notebook) -> None:
    notebook["cells"][3]["outputs"] = []


def traceback(notebook: Notebook) -> None:
    error = {"output_type": "error", "ename": "KeyError", "evalue": "'a'", "traceback": ["…"]}
    notebook["cells"][5]["outputs"].append(error)


def warning(notebook: Notebook) -> None:
    notebook["cells"][5]["outputs"].append(stream("UserWarning: slow", "stderr"))


def path_in_output(notebook: Notebook) -> None:
    notebook["cells"][5]["outputs"] = [stream("saved to /home/ada/course/x.png\n")]


def windows_path_in_output(notebook: Notebook) -> None:
    notebook["cells"][5]["outputs"] = [stream("saved to C:\\Users\\ada\\x.png\n")]


@pytest.mark.parametrize("text", ["C:/Users/ada/x.png", "file:///home/ada/x.png"])
def test_paths_of_other_forms_are_seen(text: str) -> None:
    assert gate.ABSOLUTE_PATH.search(f"saved to {text}")


@pytest.mark.parametrize(
    "text",
    [
        "![a][1]\n\n[1]: https://example.org/a.png",
        "![a](//example.org/a.png)",
        "<img alt='a' src=\"//example.org/a.png\">",
        "<style>@import 'https://example.org/a.css';</style>",
        '<div style="background: url(https://example.org/a.png)">',
    ],
)
def test_fetching_in_other_forms_is_seen(text: str) -> None:
    assert gate.FETCHED_HTML.search(text)


def path_in_source(notebook: Notebook) -> None:
    notebook["cells"][5]["source"] = "print(open('/tmp/x').read())"


def path_in_text(notebook: Notebook) -> None:
    notebook["cells"][0]["source"] = "Look into /Users/ada/course."


def download(notebook: Notebook) -> None:
    notebook["cells"][5]["source"] = "print(urllib.request.urlopen(address).read())"


def model_download(notebook: Notebook) -> None:
    notebook["cells"][5]["source"] = "print(GPT2.from_pretrained('gpt2'))"


def install(notebook: Notebook) -> None:
    notebook["cells"][5]["source"] = "%pip install einops\nprint(2)"


def shell(notebook: Notebook) -> None:
    notebook["cells"][5]["source"] = "!curl -O x\nprint(2)"


def fetched_picture(notebook: Notebook) -> None:
    notebook["cells"][0]["source"] = "![heads](https://example.org/heads.png)"


def fetched_script(notebook: Notebook) -> None:
    html = {"text/html": "<script src='https://example.org/a.js'>", "text/plain": "a map"}
    output = {"output_type": "display_data", "data": html, "metadata": {}}
    notebook["cells"][5]["outputs"].append(output)


def picture_only(notebook: Notebook) -> None:
    notebook["cells"][4]["outputs"] = [picture(text="")]


def picture_with_bare_repr(notebook: Notebook) -> None:
    notebook["cells"][4]["outputs"] = [picture("<Figure size 640x480 with 1 Axes>")]


def picture_without_alt(notebook: Notebook) -> None:
    notebook["cells"][4]["outputs"] = [picture(alt="")]


def live_widget(notebook: Notebook) -> None:
    view = {"model_id": "ab"}
    notebook["cells"][4]["outputs"][0]["data"]["application/vnd.jupyter.widget-view+json"] = view


def address(notebook: Notebook) -> None:
    notebook["cells"][5]["outputs"] = [stream("Linear at 0x7f3a91c04d90\n")]


def excluded_by_tag(notebook: Notebook) -> None:
    notebook["cells"][5]["metadata"] = {"tags": ["raises-exception"]}


def excluded_by_comment(notebook: Notebook) -> None:
    notebook["cells"][5]["source"] = "# NBVAL_IGNORE_OUTPUT\nprint(2)"


def stored_widget_state(notebook: Notebook) -> None:
    notebook["metadata"]["widgets"] = {"state": {}}


def stored_timing(notebook: Notebook) -> None:
    notebook["cells"][5]["metadata"] = {"execution": {"iopub.status.busy": "2026"}}


def two_bare_reprs(notebook: Notebook) -> None:
    bare = {"output_type": "execute_result", "metadata": {}, "execution_count": 6}
    box = {"text/plain": "VBox(children=(IntSlider(value=3), HTML(value='')))"}
    figure = {"text/plain": "<Figure size 640x480 with 1 Axes>"}
    notebook["cells"] += [
        code("box", bare | {"data": box}, count=6),
        code("figure", bare | {"data": figure}, count=7),
    ]


def no_code(notebook: Notebook) -> None:
    del notebook["cells"][1:]


def empty_cell(notebook: Notebook) -> None:
    notebook["cells"].append(code("  \n", count=None))


def semicolon(notebook: Notebook) -> None:
    notebook["cells"][5] = code("x = 2\nx + 1;", count=5)


def broken_code(notebook: Notebook) -> None:
    notebook["cells"][5]["source"] = "print(2"


FAULTS: list[tuple[Callable[[Notebook], None], str]] = [
    (unexecuted, "1 of 5 code cells were not executed"),
    (never_executed, "5 of 5 code cells were not executed"),
    (out_of_order, "execution counts are not 1, 2, 3"),
    (starts_late, "execution counts are not 1, 2, 3"),
    (missing_value, "cell 6 (code): no stored output"),
    (missing_verdict, "cell 4 (code): no stored output"),
    (traceback, "cell 6 (code): traceback: KeyError"),
    (warning, "cell 6 (code): wrote to stderr"),
    (path_in_output, "cell 6 (code): absolute path in the output"),
    (windows_path_in_output, "cell 6 (code): absolute path in the output"),
    (path_in_source, "cell 6 (code): absolute path /tmp/"),
    (path_in_text, "cell 1 (markdown): absolute path /Users/"),
    (download, "cell 6 (code): may download: urlopen("),
    (model_download, "cell 6 (code): may download: from_pretrained("),
    (install, "cell 6 (code): runs a shell or an installer"),
    (shell, "cell 6 (code): runs a shell or an installer"),
    (fetched_picture, "cell 1 (markdown): shows something that is fetched"),
    (fetched_script, "cell 6 (code): the output fetches something"),
    (picture_only, "cell 5 (code): a picture without a finding"),
    (picture_with_bare_repr, "cell 5 (code): a picture without a finding"),
    (picture_without_alt, "cell 5 (code): a picture without alt text"),
    (live_widget, "cell 5 (code): a live widget is stored"),
    (address, "cell 6 (code): memory address"),
    (excluded_by_tag, "cell 6 (code): marked so that its output is not compared"),
    (excluded_by_comment, "cell 6 (code): marked so that its output is not compared"),
    (stored_widget_state, "widget state is stored"),
    (stored_timing, "metadata that changes from run to run: execution"),
    (two_bare_reprs, "only 3 of 5 cells that show something"),
    (no_code, "no code cell"),
    (empty_cell, "cell 7 (code): empty"),
    (semicolon, "cell 6 (code): ends with a semicolon"),
    (broken_code, "cell 6 (code): not Python"),
]


@pytest.mark.parametrize(("spoil", "complaint"), FAULTS, ids=[f.__name__ for f, _ in FAULTS])
def test_each_fault_is_named(spoil: Callable[[Notebook], None], complaint: str) -> None:
    notebook = good()
    spoil(notebook)
    assert any(complaint in line for line in gate.complaints(notebook)), gate.complaints(notebook)


@pytest.mark.parametrize(
    "text",
    [
        "tensor([1, 2])",
        "a < b and b > c",
        "1/2 of /all/ rows",
        "[0.5, 0.5]",
        "add(key=4) = (1)",
        "",
    ],
)
def test_ordinary_text_is_no_fault(text: str) -> None:
    notebook = good()
    notebook["cells"][5]["outputs"].append(stream(text))
    assert gate.complaints(notebook) == []


def test_sources_and_outputs_may_be_lists_of_lines() -> None:
    notebook = good()
    for cell in notebook["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = output["text"].splitlines(keepends=True)
    assert gate.complaints(notebook) == []
    assert gate.verify_lines(notebook) == 1


@pytest.mark.parametrize(
    ("source", "outputs", "counted"),
    [
        ("import torch", [], (0, 0)),
        ("x: int = 3\ny = 4", [], (0, 0)),
        ("def f():\n    return 1", [], (0, 0)),
        ("x = noisy()", [stream("3\n")], (1, 1)),
        ("for i in range(3):\n    step()", [], (0, 1)),
        ("widget", [picture("Q/K tied: the weight on 'it' is 0.41")], (1, 1)),
        ("figure", [picture("<Figure size 1x1 with 1 Axes>")], (0, 1)),
        ("figure", [picture(text="")], (0, 1)),
        ("model", [stream("Box(children=(Text(value='')))")], (0, 1)),
        ("a, b", [stream("  \n")], (0, 1)),
    ],
)
def test_what_counts_as_compared(
    source: str, outputs: list[dict[str, Any]], counted: tuple[int, int]
) -> None:
    assert gate.coverage({"cells": [code(source, *outputs)]}) == counted


def test_time_budgets() -> None:
    cell = code("train()")
    assert gate.seconds_allowed(cell) == 20
    cell["metadata"]["tags"] = ["training"]
    assert gate.seconds_allowed(cell) == 40


def drawn(software: str) -> bytes:
    figure = Figure(figsize=(1, 1))
    figure.subplots().plot([1, 2])
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": software})
    return file.getvalue()


def test_pngs_lose_their_comments_and_nothing_else() -> None:
    first, second = drawn("one program"), drawn("another, with a longer name")
    assert first != second
    assert strip_png_comments(first) == strip_png_comments(second)
    assert strip_png_comments(drawn("x")).endswith(b"IEND\xaeB`\x82")
    with pytest.raises(ValueError, match="expected the bytes of a PNG"):
        strip_png_comments(b"GIF89a")


def test_cleaning_keeps_content_and_drops_what_differs_between_runs() -> None:
    raw = good()
    raw["metadata"]["language_info"] = {"name": "python", "version": "3.11.7"}
    raw["metadata"]["widgets"] = {"state": {}}
    cell = raw["cells"][5]
    cell["metadata"] = {"tags": ["training"], "execution": {"busy": "now"}, "collapsed": True}
    cell["outputs"] = [stream("a"), stream("b\n"), stream("w", "stderr"), stream("c")]
    shown = raw["cells"][4]["outputs"][0]
    shown["data"]["application/vnd.jupyter.widget-view+json"] = {"model_id": "x"}
    shown["data"]["image/png"] = base64.b64encode(drawn("p")).decode()
    shown["metadata"]["image/png"].update(width=640, needs_background="light")

    notebook = clean(nbformat.from_dict(copy.deepcopy(raw)))

    assert notebook.metadata.language_info == {"name": "python"}
    assert "widgets" not in notebook.metadata
    assert notebook.cells[5].metadata == {"tags": ["training"]}
    assert [o.text for o in notebook.cells[5].outputs] == ["ab\n", "w", "c"]
    kept = notebook.cells[4].outputs[0]
    assert set(kept.data) == {"image/png", "text/plain"}
    assert kept.metadata == {"image/png": {"alt": "bars", "width": 640}}
    assert [c.source for c in notebook.cells] == [c["source"] for c in raw["cells"]]
    assert [c.get("execution_count") for c in notebook.cells] == [None, 1, 2, 3, 4, 5]
    nbformat.validate(notebook)
