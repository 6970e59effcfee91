"""How far each notebook has been brought up, and what follows from it.

What every notebook must satisfy is in ``gate``. Here stand the rules that were made when some
notebooks were written already: for those that are not yet brought up a break is a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.notebooks import claims, prose, road, sameness
from tests.notebooks.gate import Notebook, printed_lines

MINUTES = 60  # of the main road


@dataclass(frozen=True)
class Standard:
    """The most wide bands and booleans that a notebook may have, and whether it is brought up."""

    wide: int = 0
    booleans: int = 0
    brought_up: bool = True


# The numbers may only go down. A notebook that is not listed here is held to the whole standard.
STANDARDS = {
}


@dataclass(frozen=True)
class Review:
    """What was counted in a notebook, what is wrong, and what will be when it is brought up."""

    wide: int
    booleans: int
    minutes: float
    without_source: int
    complaints: tuple[str, ...]
    warnings: tuple[str, ...]


def review(name: str, notebook: Notebook) -> Review:
    """Hold a stored notebook (``name`` without .ipynb) to its standard."""
    standard = STANDARDS.get(name, Standard())
    wide, booleans = claims.counts(printed_lines(notebook))
    minutes = road.minutes(notebook)
    orphans = prose.without_source(notebook)
    wrong = [*road.complaints(notebook), *sameness.complaints(notebook)]
    warnings: list[str] = []
    for count, ceiling, what in (
        (wide, standard.wide, "bands wider than a factor of 8"),
        (booleans, standard.booleans, "booleans where two numbers could stand"),
    ):
        if count > ceiling:
            wrong.append(f"{count} {what}, allowed are {ceiling} (standards.py)")
        elif count < ceiling:
            warnings.append(f"only {count} {what}: lower the ceiling of {ceiling} in standards.py")
    unfinished: list[str] = []
    if orphans:
        listed = ", ".join(f"{claim} (cell {place})" for place, claim in orphans)
        unfinished.append(f"numbers in the text without a source: {listed}")
    if minutes > MINUTES:
        unfinished.append(f"the main road takes {minutes:.0f} minutes, allowed are {MINUTES}")
    if standard.brought_up:
        wrong += unfinished
    else:
        warnings += unfinished
    return Review(wide, booleans, minutes, len(orphans), tuple(wrong), tuple(warnings))


def table(reviews: Mapping[str, Review]) -> list[str]:
    """The counts of each notebook as lines of a table, then the warnings."""
    form = "{:34}{:>12}{:>10}{:>20}{:>16}"
    lines = [
        form.format("notebook", "wide bands", "booleans", "main road, minutes", "without source")
    ]
    for name, counted in reviews.items():
        minutes = f"{counted.minutes:.0f}"
        row = (name, counted.wide, counted.booleans, minutes, counted.without_source)
        lines.append(form.format(*row))
    return lines + [
        f"{name}: {warning}" for name, counted in reviews.items() for warning in counted.warnings
    ]
