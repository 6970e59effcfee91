"""The stored form of an executed notebook: what a run yields, less what differs between runs."""

from __future__ import annotations

import base64
import struct
from typing import Any

from nbformat import NotebookNode

from tests.notebooks import gate

KEPT_METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
PICTURE_METADATA = ("alt", "width", "height")
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG_COMMENTS = {b"tEXt", b"zTXt", b"iTXt", b"tIME", b"eXIf"}


def clean(notebook: NotebookNode) -> NotebookNode:
    """Change ``notebook`` to its stored form and return it.

    Kept: sources, outputs, counts, tags, folded detours, alt texts and sizes of pictures. Dropped:
    kernel and editor metadata, timings, widget views (their picture and text stay), programs' names
    and dates inside PNGs.
    """
    notebook.metadata = NotebookNode(KEPT_METADATA)
    for cell in notebook.cells:
        tags = cell.metadata.get("tags")
        kept = gate.kept_metadata(cell)
        cell.metadata = NotebookNode({**kept, "tags": tags} if tags else {})
        cell.pop("attachments", None)
        if cell.cell_type == "code":
            cell.outputs = [_clean_output(output) for output in _merge_streams(cell.outputs)]
    return notebook


def strip_png_comments(png: bytes) -> bytes:
    """A PNG without its text and time chunks: the same picture gives the same bytes."""
    if not png.startswith(PNG_SIGNATURE):
        raise ValueError("png: expected the bytes of a PNG file, got something else")
    kept, start = [PNG_SIGNATURE], len(PNG_SIGNATURE)
    while start < len(png):
        (length,) = struct.unpack(">I", png[start : start + 4])
        end = start + 12 + length  # length, kind and checksum take four bytes each
        if png[start + 4 : start + 8] not in PNG_COMMENTS:
            kept.append(png[start:end])
        start = end
    return b"".join(kept)


def _clean_output(output: NotebookNode) -> NotebookNode:
    data: dict[str, Any] = output.get("data", {})
    data.pop(WIDGET_VIEW, None)
    if "image/png" in data:
        png = strip_png_comments(base64.b64decode(data["image/png"]))
        data["image/png"] = base64.b64encode(png).decode() + "\n"
    if "metadata" in output:
        output.metadata = NotebookNode(
            {
                kind: {key: described[key] for key in PICTURE_METADATA if key in described}
                for kind, described in output.metadata.items()
                if isinstance(described, dict)
            }
        )
    return output


def _merge_streams(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Neighbouring pieces of one stream become one: where a stream is cut depends on the clock."""
    merged: list[NotebookNode] = []
    for output in outputs:
        last = merged[-1] if merged else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            merged.append(output)
    return merged
