"""What is counted in every notebook, beside the rules of ``gate``, and what may not be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.notebooks import claims, prose, road, sameness
from tests.notebooks.gate import Notebook, printed_lines

MINUTES = 60  # of the main road


@dataclass(frozen=True)
class Review:
    """What was counted in a notebook, and what is wrong."""

    wide: int
    booleans: int
    minutes: float
    without_source: int
    complaints: tuple[str, ...]


def review(notebook: Notebook) -> Review:
    """Hold a stored notebook to the standard."""
    wide, booleans = claims.counts(printed_lines(notebook))
    minutes = road.minutes(notebook)
    orphans = prose.without_source(notebook)
    wrong = [*road.complaints(notebook), *sameness.complaints(notebook)]
    if wide:
        wrong.append(f"{wide} bands wider than a factor of 8")
    if booleans:
        wrong.append(f"{booleans} booleans where two numbers could stand")
    if orphans:
        listed = ", ".join(f"{claim} (cell {place})" for place, claim in orphans)
        wrong.append(f"numbers in the text without a source: {listed}")
    if minutes > MINUTES:
        wrong.append(f"the main road takes {minutes:.0f} minutes, allowed are {MINUTES}")
    return Review(wide, booleans, minutes, len(orphans), tuple(wrong))


def table(reviews: Mapping[str, Review]) -> list[str]:
    """The counts of each notebook as lines of a table."""
    form = "{:34}{:>12}{:>10}{:>20}{:>16}"
    head = form.format("notebook", "wide bands", "booleans", "main road, minutes", "without source")
    return [head] + [
        form.format(name, one.wide, one.booleans, f"{one.minutes:.0f}", one.without_source)
        for name, one in reviews.items()
    ]
