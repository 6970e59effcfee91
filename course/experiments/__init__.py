"""Recorded experiments: declared configs, a resumable runner, stored results, tables.

``load("ladder")`` reads what is stored; ``course experiments run ladder`` records it.
"""

from course.experiments.configs import EXPERIMENTS, configs
from course.experiments.results import RESULTS, load, table

__all__ = ["EXPERIMENTS", "RESULTS", "configs", "load", "table"]
