"""What goes into a saved notebook: the picture of an explorer, and no view that dies."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
from jupyter_server.services.contents.filemanager import FileContentsManager

from course import lab_extension

VIEW = "application/vnd.jupyter.widget-view+json"


def notebook() -> dict:
    view = {VIEW: {"model_id": "1"}}
    explorer = view | {"image/png": "AAAA", "text/plain": "a finding"}
    bundles = [explorer, view | {"text/plain": "a slider"}, {"image/png": "BBBB"}]
    outputs = [{"output_type": "display_data", "metadata": {}, "data": data} for data in bundles]
    outputs.append({"output_type": "stream", "name": "stdout", "text": "words"})
    code = {"cell_type": "code", "execution_count": 1, "metadata": {}, "source": ""}
    words = {"cell_type": "markdown", "metadata": {}, "source": "words", "id": "b"}
    cells = [code | {"outputs": outputs, "id": "a"}, words]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def test_a_saved_notebook_has_the_picture_and_not_the_view(tmp_path) -> None:
    class Server:
        contents_manager = FileContentsManager(root_dir=str(tmp_path))

    (point,) = lab_extension._jupyter_server_extension_points()
    assert point["module"] == lab_extension.__name__
    lab_extension._load_jupyter_server_extension(Server)
    content = notebook()
    wanted = copy.deepcopy(content)
    del wanted["cells"][0]["outputs"][0]["data"][VIEW]
    model = {"type": "notebook", "format": "json", "content": content}
    Server.contents_manager.save(model, "a.ipynb")
    stored = Server.contents_manager.get("a.ipynb")["content"]
    for cell in stored["cells"]:
        cell["metadata"].pop("trusted", None)
    assert stored == wanted


@pytest.mark.parametrize("model", [{"type": "file", "content": "words"}, {"type": "directory"}])
def test_other_files_are_left_alone(model: dict) -> None:
    before = copy.deepcopy(model)
    lab_extension.keep_pictures(model=model, path="a", contents_manager=None)
    assert model == before


def test_the_server_loads_nothing_more_for_it() -> None:
    code = (
        "import sys, course.lab_extension; "
        "print({'torch', 'numpy', 'matplotlib', 'ipywidgets'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
