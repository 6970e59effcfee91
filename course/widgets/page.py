"""The HTML around an explorer's picture: its look in a light and a dark page, its sentences."""

from __future__ import annotations

import base64
from html import escape

SENTENCE = "margin: 2px 0; line-height: 1.4; max-width: 76em;"
_ALERT = "padding: 4px 8px; border-left: 4px solid #D55E00; background: #fdf0e7; color: #22262b;"
#: The class of a field whose entry was refused and stays to be mended.
REFUSED = "course-refused"
#: A picture may shrink to so much of its width; a narrower page scrolls it.
_SMALLEST = 0.9

# A kernel that ends takes the live explorer with it. ipywidgets then sets a broken link before
# every part; one sentence says more. A dark page gets a frame and a dimmer white. "Dark picture"
# turns the lightness round and keeps the hue.
_LOOK = """
.course-explorer .jupyter-widgets-disconnected::before { content: none !important; }
.course-explorer.jupyter-widgets-disconnected::before {
  content: "The kernel is gone: run this cell again to move the picture." !important;
  font: inherit !important; color: inherit; display: block; padding: 2px 8px;
  border-left: 4px solid #D55E00; }
.course-explorer img.course-picture { display: block; height: auto; max-width: 100%;
  background: white; border-radius: 4px; }
body[data-jp-theme-light="false"] .course-explorer img.course-picture { box-sizing: content-box;
  border: 6px solid #2b3038; max-width: calc(100% - 12px); filter: brightness(0.88); }
.course-explorer .course-dark img.course-picture,
body[data-jp-theme-light="false"] .course-explorer .course-dark img.course-picture {
  border-color: #dcdcdc; filter: invert(0.93) hue-rotate(180deg); }
.course-explorer .course-refused input { outline: 2px solid #D55E00; }
.course-explorer .noUi-handle:focus-visible { outline: 3px solid #0072B2; outline-offset: 1px; }
"""
# ipywidgets gives the handle of a slider no name, and no trait of it can: the label that stands
# beside it is copied. Handles come after this line, in their own time.
_NAMES = (
    "const me = this; let tries = 0; const timer = setInterval(() => {"
    " const all = (me.closest('.course-explorer') || document).querySelectorAll('.widget-slider');"
    " for (const slider of all) {"
    "  const label = slider.querySelector('label');"
    "  for (const handle of slider.querySelectorAll('.noUi-handle'))"
    "   if (label) handle.setAttribute('aria-label', label.textContent); }"
    " if (++tries > 40) clearInterval(timer); }, 250);"
)
_DOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhf"
    "DwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


def dress() -> str:
    """The look, and the names of the handles; not seen itself."""
    return f'<style>{_LOOK}</style><img alt="" hidden src="{_DOT}" onload="{escape(_NAMES)}">'


def frame(source: str, alt: str, width: int) -> str:
    """The picture; ``alt`` is escaped already."""
    least = round(_SMALLEST * width)
    return (
        f'<img class="course-picture" alt="{alt}" src="{source}" width="{width}" '
        f'style="min-width: {least}px">'
    )


def alert(problem: str) -> str:
    """What went wrong, spoken at once; nothing where nothing did."""
    if not problem:
        return ""
    return f'<p role="alert" style="{SENTENCE} {_ALERT}">{escape(problem)}</p>'


def links(files: dict[str, bytes], name: str) -> str:
    """A link for each kind of file, which the browser saves as ``name`` with that ending."""
    kinds = {"png": "image/png", "svg": "image/svg+xml"}
    return " ".join(
        f'<a class="jupyter-widgets jupyter-button widget-button" style="margin: 0 2px" '
        f'href="data:{kinds[kind]};base64,{base64.b64encode(data).decode()}" '
        f'download="{name}.{kind}">{kind.upper()}</a>'
        for kind, data in files.items()
    )
