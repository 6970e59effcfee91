"""Runs a notebook's code cells as Jupyter does, magics included, without a kernel."""

from __future__ import annotations

from typing import Any


def plain_shell() -> Any:
    """An IPython shell without a terminal, a window system or a history."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Shell(InteractiveShell):
        def enable_gui(self, gui: str | None = None) -> None:
            """``%matplotlib inline`` asks for one: there is none."""

    settings = Config()
    settings.HistoryManager.enabled = False
    settings.InteractiveShell.cache_size = 0
    return Shell.instance(config=settings)
