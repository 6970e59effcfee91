"""Pictures of notebook 08: the roofline, what moves between two memories, tiles of a mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.patches import Rectangle

from course.cost import Machine
from course.inputs import require_positive
from course.plots.diagrams import bare
from course.plots.parts import as_mask, as_number, finish, require_some
from course.plots.style import COLOURS, QUIET, Picture, new_figure, styled


@styled
def roofline(
    machines: Sequence[Machine],
    programs: Mapping[str, float],
    *,
    finding: str,
    alt: str | None = None,
    size: tuple[float, float] = (7.2, 4.2),
) -> Picture:
    """What each machine can do at most, in TFLOP/s, against the operations a program does a byte.

    ``programs``: name → operations a byte, an upright line with a point on every roof.
    """
    require_some("programs", programs)
    programs = {name: as_number(name, intensity) for name, intensity in programs.items()}
    figure = new_figure(*size)
    axes = figure.subplots()
    ends = [*programs.values(), *(machine.ridge for machine in machines)]
    line = np.geomspace(min(ends) / 2, max(ends) * 3, 400)
    for machine, colour in zip(machines, COLOURS, strict=False):
        height = [machine.attainable(x) / 1e12 for x in line]
        axes.plot(line, height, color=colour, label=machine.name)
        axes.plot(
            list(programs.values()),
            [machine.attainable(x) / 1e12 for x in programs.values()],
            "o",
            color=colour,
            markeredgecolor="white",
            zorder=3,
        )
    for name, intensity in programs.items():
        axes.axvline(intensity, color=QUIET, linestyle=(0, (2, 2)), linewidth=1, zorder=1)
        axes.annotate(
            name,
            (intensity, 0.02),
            xycoords=("data", "axes fraction"),
            xytext=(-3, 0),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="bottom",
            fontsize=9,
        )
    finish(
        axes,
        [line],
        xlabel="operations a byte of main memory",
        ylabel="TFLOP/s at best",
        logx=True,
        logy=True,
    )
    axes.set_xlim(line[0], line[-1])
    axes.legend(loc="lower right", reverse=True)  # in the order of the roofs
    if alt is None:
        alt = (
            f"Rooflines of {', '.join(machine.name for machine in machines)}: a slope, then a flat "
            f"part; upright lines for {', '.join(programs)}."
        )
    return Picture(figure, alt=alt, finding=finding)


@styled
def traffic(
    programs: Mapping[str, Mapping[str, float]],
    *,
    finding: str,
    alt: str | None = None,
    levels: tuple[str, str] = ("main memory", "chip"),
    size: tuple[float, float] | None = None,
) -> Picture:
    """What moves between two levels of memory: a panel a program, an arrow a tensor.

    Values are MiB, positive into the chip and negative out of it. An arrow is as thick as what
    moves, in all panels alike; the thinnest are hairlines.
    """
    require_some("programs", programs)
    programs = {
        title: {name: as_number(name, amount) for name, amount in flows.items()}
        for title, flows in programs.items()
    }
    most = max(abs(amount) for flows in programs.values() for amount in flows.values())
    rows = max(map(len, programs.values()))
    figure = new_figure(*(size or (min(9.2, 3.4 * len(programs)), 1.0 + 0.46 * rows)))
    for axes, (title, flows) in zip(
        figure.subplots(1, len(programs), squeeze=False)[0], programs.items(), strict=True
    ):
        height = rows * 1.0
        for x, level in zip((0.0, 8.0), levels, strict=True):
            axes.add_patch(Rectangle((x, 0), 2, height, facecolor="#eef1f5", edgecolor=QUIET))
            axes.text(x + 1, height / 2, level, rotation=90, ha="center", va="center", fontsize=9)
        for row, (name, amount) in enumerate(flows.items()):
            thick = max(0.02, 0.42 * abs(amount) / most)
            start, end = (2.2, 7.8) if amount > 0 else (7.8, 2.2)
            axes.arrow(
                start,
                height - row - 0.67,
                end - start,
                0,
                width=thick,
                head_width=thick + 0.22,
                head_length=0.5,
                length_includes_head=True,
                color=COLOURS[0] if amount > 0 else COLOURS[1],
                linewidth=0,
            )
            axes.text(
                5,
                height - row - 0.25,
                f"{name}: {abs(amount):,.3g} MiB",
                ha="center",
                va="center",
                fontsize=9,
            )
        total = sum(map(abs, flows.values()))
        axes.set_title(f"{title}: {total:,.3g} MiB")
        axes.set(xlim=(-0.2, 10.2), ylim=(-0.15, height + 0.15))
        axes.axis("off")
    if alt is None:
        alt = (
            f"Between {levels[0]} and {levels[1]}, for {', '.join(programs)}: an arrow a tensor, "
            "as thick as the bytes that move."
        )
    return Picture(figure, alt=alt, finding=finding)


@styled
def tiles(
    visible: object,
    tile: int,
    *,
    finding: str,
    alt: str | None = None,
    program: int | None = None,
    size: float = 4.4,
) -> Picture:
    """Which tiles of the scores a kernel computes, from the mask ``visible`` [T, S], True = seen.

    A row of tiles is one program, ``program`` has a frame. Whole tiles are dark, partly hidden
    ones light, skipped ones empty; lanes beyond the last token are hatched.
    """
    require_positive("tile", tile)
    seen = as_mask("visible", visible)
    (T, S), figure = seen.shape, new_figure(size + 1.9, size)
    axes = figure.subplots()
    down, across = -(-T // tile), -(-S // tile)
    for i in range(down):
        for j in range(across):
            here = seen[i * tile : (i + 1) * tile, j * tile : (j + 1) * tile]
            colour = COLOURS[0] if here.all() else COLOURS[4] if here.any() else "white"
            axes.add_patch(
                Rectangle((j * tile, i * tile), tile, tile, facecolor=colour, edgecolor=QUIET, lw=1)
            )
    for x, y, wide, high in (
        (S, 0, across * tile - S, down * tile),
        (0, T, S, down * tile - T),
    ):
        axes.add_patch(
            Rectangle((x, y), wide, high, facecolor="white", alpha=0.65, edgecolor=QUIET, lw=0)
        )
        axes.add_patch(
            Rectangle((x, y), wide, high, facecolor="none", edgecolor=QUIET, lw=0, hatch="////")
        )
    if program is not None:
        axes.add_patch(
            Rectangle(
                (0, program * tile),
                across * tile,
                tile,
                facecolor="none",
                edgecolor=COLOURS[1],
                lw=2.5,
                label=f"program {program}",
            )
        )
    for label, colour in (
        ("whole", COLOURS[0]),
        ("partly hidden", COLOURS[4]),
        ("skipped", "white"),
    ):
        axes.add_patch(Rectangle((0, 0), 0, 0, facecolor=colour, edgecolor=QUIET, label=label))
    axes.add_patch(
        Rectangle((0, 0), 0, 0, facecolor="white", edgecolor=QUIET, hatch="////", label="no token")
    )
    axes.set(
        xlim=(-0.5, across * tile + 0.5),
        ylim=(down * tile + 0.5, -0.5),
        xlabel="keys",
        ylabel="queries",
        xticks=[j * tile for j in range(across)] + [S],
        yticks=[i * tile for i in range(down)] + [T],
    )
    axes.set_aspect("equal")
    bare(axes)
    figure.legend(loc="outside right upper")
    if alt is None:
        alt = (
            f"Scores of {T} queries and {S} keys cut into tiles of {tile} by {tile}: computed "
            "whole, computed and partly hidden, or skipped."
        )
    return Picture(figure, alt=alt, finding=finding)
