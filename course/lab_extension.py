"""A JupyterLab server extension: a saved notebook holds pictures, not dead widgets.

An explorer leaves a live view and its picture in one output. JupyterLab shows the view where it
knows that type, and in a notebook opened again, without the kernel that held the widget, it says
"model not found" and never looks at the picture beside it. So what goes to the file is the picture
alone; the open notebook keeps its live view. Loads nothing: the server imports this module.
"""

from __future__ import annotations

from typing import Any

VIEW = "application/vnd.jupyter.widget-view+json"


def keep_pictures(model: dict[str, Any], **_: object) -> None:
    """Take the widget view out of each output that has a picture too: a pre-save hook."""
    if model.get("type") != "notebook" or not model.get("content"):
        return
    for cell in model["content"].get("cells", ()):
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                data.pop(VIEW, None)


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "course.lab_extension"}]


def _load_jupyter_server_extension(server: Any) -> None:
    server.contents_manager.register_pre_save_hook(keep_pictures)
