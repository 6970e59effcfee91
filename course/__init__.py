"""Attention, derived: the verified implementations that the notebooks import.

Nothing is loaded here. Import the module of the idea you want, e.g. ``course.attention``.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("attention-derived")
except PackageNotFoundError:  # a bare checkout on sys.path: the notebooks' check says what to do
    __version__ = "0+unknown"
