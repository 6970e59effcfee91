"""Pictures of notebook 08: memories of a GPU, programs in time, the roofline, tiles of a mask."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course.cost import Machine
from course.inputs import require_positive
from course.plots.diagrams import bare
from course.plots.drawing import Canvas, cell_text
from course.plots.parts import as_array, as_mask, as_number, finish, number, require_some
from course.plots.places import Place, Spot
from course.plots.style import COLOURS, HIDDEN, QUIET, Picture, new_figure, styled


def memory_levels(
    main: str = "80 GB",
    cache: str = "50 MB",
    shared: str = "228 KB",
    registers: str = "256 KB",
    *,
    multiprocessors: int = 132,
) -> Picture:
    """The memories of a GPU, and the way of one tile of keys from the largest to the arithmetic.

    The sizes are words; they are an H100's (NVIDIA, "H100 Tensor Core GPU Architecture", 2022).
    """
    require_positive("multiprocessors", multiprocessors)
    canvas = Canvas(unit=0.21, T=8, S=2, D=4)
    keys = canvas.matrix("keys", "T D", at=(0, 0), role="key", rows=[5, 6])
    output = canvas.matrix("output", "T D", at=keys.below(3.4), role="value", rows=[1, 2])
    there, back = (keys.row(5).bottom[1], output.row(1).bottom[1])
    top = keys.y - 6.6
    whole = canvas.frame([keys, output], pad=1.2)
    canvas.text("main memory", at=Spot(whole.centre[0], top, down=0), points=10, bold=True)
    canvas.text(main, at=Spot(whole.centre[0], top + 1.4, down=0), points=9.5)
    copies: list[Place] = []
    names = ("second-level cache", cache), ("shared memory", shared), ("registers", registers)
    for place, (name, size) in enumerate(names):
        x = keys.right[0] + 7.4 + 9.4 * place
        tile = canvas.matrix("", "S D", at=(x, there), role="key", rows=[0, 1], label=False)
        copies.append(tile)
        canvas.text(name, at=Spot(x, top, down=0), points=10, bold=True)
        canvas.text(size, at=Spot(x, top + 1.4, down=0), points=9.5)
    units = canvas.box("tensor\ncores", at=Spot(copies[-1].right[0] + 2.6, there, 0))
    chain = [*copies, units]
    canvas.arrow((keys.right[0] + 0.2, there), copies[0], role="key", width=2.4)
    for one, two in itertools.pairwise(chain):
        canvas.arrow(one, two, role="key", width=2.4)
    last = copies[-1].centre[0]
    sums = canvas.matrix("", "S D", at=(last, back), role="value", rows=[0, 1], label=False)
    canvas.text("finished sums", at=sums.below(0.5), points=9, role="value")
    canvas.arrow(units, (units.centre[0], back), sums, role="value", width=2.4)
    canvas.arrow(sums, (output.right[0] + 0.2, back), role="value", width=2.4)
    left, right = copies[1].x - 2.0, units.right[0] + 0.7
    inside = Place(left, whole.y, right - left, whole.height)
    canvas.frame([inside], f"one of {multiprocessors} multiprocessors", pad=0.0, below=True)
    return canvas.picture(
        finding=(
            f"A tile of keys goes from main memory ({main}) through the second-level cache "
            f"({cache}) into shared memory ({shared}) and registers ({registers}) of one of "
            f"{multiprocessors} multiprocessors; only the finished sums go back."
        ),
        alt=(
            f"Boxes from left to right: main memory, {main}, with all keys and the output; the "
            f"second-level cache, {cache}; inside one of {multiprocessors} multiprocessors shared "
            f"memory, {shared}, registers, {registers}, and tensor cores. Three rows of the keys "
            "are copied from box to box; sums go from the registers back to the output."
        ),
    )


def in_time(
    lanes: Mapping[str, Sequence[tuple[str, float, str]]],
    *,
    unit: str,
    ticks: Sequence[float],
    finding: str,
    alt: str | None = None,
    length: float = 30.0,
) -> Picture:
    """What runs when: a lane for each program or multiprocessor, to scale from time 0.

    A lane is a list of (words, duration, role), one after the other; role "hidden" is waiting.
    Raises ``ValueError`` for durations that are not above 0.
    """
    require_some("lanes", lanes)
    lengths = {}
    for name, spans in lanes.items():
        if not spans or not all(duration > 0 for _, duration, _ in spans):
            raise ValueError(f"{name}: expected durations above 0, got {list(spans)}")
        lengths[name] = sum(duration for _, duration, _ in spans)
    canvas = Canvas(unit=0.2)
    until = max(*lengths.values(), *ticks)
    line = canvas.timeline(
        until, at=(0, 0), length=length, words=unit, ticks=ticks, lanes=list(lanes)
    )
    for name, spans in lanes.items():
        start = 0.0
        for words, duration, role in spans:
            canvas.span(line, name, words, start, min(start + duration, until), role=role)
            start += duration
    if alt is None:
        told = "; ".join(
            f"{name}: "
            + ", then ".join(f"{words or 'one'} {number(d, 1)}" for words, d, _ in spans)
            for name, spans in lanes.items()
        )
        alt = f"A time axis in {unit} with a lane each. {told}."
    return canvas.picture(finding=finding, alt=alt)


def row_in_tiles(scores: object, tile: int = 4, *, values: object = None) -> Picture:
    """One row's softmax tile by tile: what is carried, m and ℓ, and what rescales the old sum.

    ``scores`` [S], whole tiles of them. ``values`` [S], one number a key: then o = Σ e^(s−m) v is
    carried, too. Raises ``ValueError`` for a length that is no multiple.
    """
    array = as_array("scores", scores, ndim=1)
    require_positive("tile", tile)
    if not len(array) or len(array) % tile:
        raise ValueError(f"scores: expected whole tiles of {tile}, got {len(array)} scores")
    weighed = None if values is None else as_array("values", values, ndim=1)
    if weighed is not None and len(weighed) != len(array):
        raise ValueError(f"values: expected one for each of {len(array)}, got {len(weighed)}")
    canvas = Canvas(unit=0.22, N=tile)
    m, total, output, changed = -np.inf, 0.0, 0.0, 0
    cell = (2.5, 1.6)
    pitch = tile * cell[0] + 3.4
    before: Place | None = None
    for place, part in enumerate(array.reshape(-1, tile)):
        x = place * pitch
        new = max(m, part.max())
        powers = np.exp(part - new)
        rescale = float(np.exp(m - new))
        fresh = powers.sum()
        total = total * rescale + fresh
        lines = [(part, "scores"), (powers, "$e^{s-m}$")]
        if weighed is not None:
            here = weighed[place * tile : (place + 1) * tile]
            output = output * rescale + powers @ here
            lines.append((here, "values"))
        for line, (cells, name) in enumerate(lines):
            row = canvas.matrix(
                "",
                "1 N",
                at=(x, 3.4 * line),
                role="value" if line == 2 else "plain",
                values=cells[None],
                shade=powers[None] if line == 1 else None,
                cell=cell,
                digits=2 if line == 1 else 1,
                label=False,
            )
            if place == 0:
                canvas.text(name, at=row.before(0.8), points=10, bold=line != 1)
        canvas.text(f"tile {place + 1}", at=(x, -2.0), points=10, bold=True)
        words = f"m = {cell_text(new, 1)}"
        what = "old sum" if weighed is None else "old sums"
        old = "" if place == 0 else f"{what} × {number(rescale, 2)}\n"
        sums = f"ℓ = {number(total, 2)}"
        if weighed is not None:
            sums += f"\no = {number(output, 2)}"
        below = 3.4 * len(lines) + (0.8 if weighed is None else 1.3)
        carried = canvas.box(f"{words}\n{old}{sums}", at=(x, below), role="state", points=10)
        if before is not None:
            canvas.arrow(before, carried, role="state", width=2)
            changed += rescale < 1
        before = carried
        m = new
    return canvas.picture(
        finding=(
            f"{len(array)} scores in tiles of {tile}: in {changed} of {len(array) // tile - 1} "
            f"later tiles the maximum grows and the old sum is rescaled; at the end "
            f"m = {cell_text(m, 1)} and ℓ = {number(total, 2)}"
            + (
                "."
                if weighed is None
                else f", o = {number(output, 2)}, and o/ℓ = {number(output / total, 2)}."
            )
        ),
        alt=(
            f"Tiles of {tile} scores from left to right, below each the exponentials of its scores "
            "minus the largest so far, and a box with that maximum m, the factor that the old sum "
            "is multiplied by, and the sum ℓ"
            + (
                "; an arrow leads from box to box."
                if weighed is None
                else ", and o, the sum of the values with these weights; below the exponentials "
                "stand the values; an arrow leads from box to box."
            )
        ),
    )


@styled
def roofline(
    machines: Sequence[Machine],
    programs: Mapping[str, float | tuple[float, float]],
    *,
    finding: str,
    alt: str | None = None,
    size: tuple[float, float] = (7.8, 4.6),
) -> Picture:
    """What each machine can do at most, in TFLOP/s, against operations per byte of main memory.

    ``programs``: name → operations per byte, a point on every roof; or two such numbers, without a
    cache and with a perfect one: a hollow and a full point on every roof, with a band between.
    """
    require_some("programs", programs)
    ends = {name: as_array(name, value).ravel() for name, value in programs.items()}
    for name, pair in ends.items():
        if not (len(pair) in (1, 2) and (np.diff(pair) >= 0).all() and (pair > 0).all()):
            raise ValueError(
                f"{name}: expected one number above 0, or two rising, got {programs[name]!r}"
            )
    figure = new_figure(*size)
    axes = figure.subplots()
    marks = [*np.concatenate(list(ends.values())), *(machine.ridge for machine in machines)]
    line = np.geomspace(min(marks) / 2, max(marks) * 3, 400)
    for machine, colour in zip(machines, COLOURS, strict=False):
        axes.plot(line, [machine.attainable(x) / 1e12 for x in line], color=colour)
        axes.annotate(
            machine.name,
            (line[-1], machine.flops / 1e12),
            xytext=(4, 0),
            textcoords="offset points",
            color=colour,
            va="center",
            fontsize=9,
        )
        for pair in ends.values():
            for place, x in enumerate(pair):
                full = place == len(pair) - 1
                axes.plot(
                    [x],
                    [machine.attainable(x) / 1e12],
                    "o",
                    color=colour if full else "white",
                    markeredgecolor="white" if full else colour,
                    markeredgewidth=1.0 if full else 1.6,
                    zorder=3,
                )
    for place, (name, pair) in enumerate(sorted(ends.items(), key=lambda item: item[1][0])):
        _name_program(axes, name, pair, machines, above=place % 2 == 1)
    finish(
        axes,
        [line],
        xlabel="operations per byte of main memory",
        ylabel="TFLOP/s at best",
        logx=True,
        logy=True,
    )
    axes.set_xlim(line[0], line[-1])
    axes.set_ylim(axes.get_ylim()[0], 4 * max(machine.flops for machine in machines) / 1e12)
    if alt is None:
        two = ", ".join(name for name, pair in ends.items() if len(pair) == 2)
        alt = (
            f"Rooflines of {', '.join(machine.name for machine in machines)}: a slope, then a flat "
            f"part; on each a point for {', '.join(programs)}"
            + (f", and for {two} two, a hollow and a full one." if two else ".")
        )
    return Picture(figure, alt=alt, finding=finding)


def _name_program(
    axes: Axes, name: str, pair: np.ndarray, machines: Sequence[Machine], *, above: bool
) -> None:
    """The name of a program beside its highest or its lowest point; a band between its two."""
    for x, words in zip(pair, ("",) if len(pair) == 1 else ("no", "perfect"), strict=True):
        axes.axvline(x, color=QUIET, linestyle=(0, (2, 2)), linewidth=1, zorder=1)
        heights = [machine.attainable(x) / 1e12 for machine in machines]
        axes.annotate(
            f"{name},\n{words} cache" if words else name,
            (x, max(heights) if above else min(heights)),
            xytext=(-5, 6) if above else (6, -6),
            textcoords="offset points",
            ha="right" if above else "left",
            va="bottom" if above else "top",
            fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.5},
        )
    if len(pair) == 2:
        axes.axvspan(*pair, color=QUIET, alpha=0.12, linewidth=0, zorder=0)


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
    ones light, skipped ones grey; lanes beyond the last token are hatched.
    """
    require_positive("tile", tile)
    seen = as_mask("visible", visible)
    (T, S), figure = seen.shape, new_figure(size + 1.9, size)
    axes = figure.subplots()
    down, across = -(-T // tile), -(-S // tile)
    for i in range(down):
        for j in range(across):
            here = seen[i * tile : (i + 1) * tile, j * tile : (j + 1) * tile]
            colour = COLOURS[0] if here.all() else COLOURS[4] if here.any() else HIDDEN
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
        ("skipped", HIDDEN),
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
