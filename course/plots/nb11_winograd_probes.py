"""Pictures of notebook 11: the two questions, models seed by seed, places by words, circuits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from course.inputs import require_same
from course.plots.drawing import Canvas
from course.plots.parts import as_array, draw_matrix, label_tokens, require_some
from course.plots.places import Place, Spot
from course.plots.style import COLOURS, INK, MARKERS, QUIET, Picture, new_figure, styled

# 97.5 % points of Student's t, for 1, 2, … degrees of freedom; beyond them the normal law's.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)


def who_is_it(
    words: Sequence[str], nouns: tuple[int, int], adjective: int, *, answer: int
) -> Picture:
    """The two things that must reach the last of ``words``: first the adjective, then a noun.

    ``nouns`` and ``adjective`` are places (from 0), ``answer`` is the place of the noun that is
    right. Raises ``ValueError`` for places outside the words and an answer that is no noun.
    """
    words = [str(word) for word in words]
    last = len(words) - 1
    for name, place in (("nouns", nouns[0]), ("nouns", nouns[1]), ("adjective", adjective)):
        if not 0 <= place < last:
            raise ValueError(f"{name}: expected places from 0 to {last - 1}, got {place}")
    if answer not in nouns:
        raise ValueError(f"answer: expected one of the nouns' places {list(nouns)}, got {answer}")
    canvas = Canvas(unit=0.22)
    roles = {nouns[0]: "value", nouns[1]: "value", adjective: "key", last: "query"}
    row: list[Place] = []
    x = 0.0
    for place, word in enumerate(words):
        role = roles.get(place, "plain")
        row.append(canvas.box(word, Spot(x, 0, 0, 0.5), role=role, points=9, literal=True))
        x = row[-1].right[0] + 0.3
    down = (5.0, 9.4)
    middles = [place.centre[0] for place in row]
    after = {
        place: canvas.dot((middles[place], down[0]), role=roles[place], radius=0.42)
        for place in (*nouns, last)
    }
    end = canvas.dot((middles[last], down[1]), role="query", radius=0.42)
    for place, dot in after.items():
        canvas.arrow(row[place], dot, role="stream")
    canvas.arrow(after[last], end, role="stream")
    turn = (middles[adjective], down[0])
    canvas.arrow(
        row[adjective],
        turn,
        (middles[last] - 0.6, down[0]),
        role="key",
        width=2.4,
    )
    middle = (middles[adjective] + middles[last] - 0.6) / 2
    canvas.text("which kind?", at=(middle, down[0] + 0.8), points=9, role="key")
    beside = (middles[last] - 0.6, down[1])
    below = (middles[last], down[1] + 1.9)
    for noun in nouns:
        chosen = noun == answer
        start, x = after[noun], middles[noun]
        stops = [(x, beside[1]), beside] if noun == max(nouns) else [(x, below[1]), below, end]
        canvas.arrow(
            start,
            *stops,
            role="value" if chosen else "hidden",
            width=2.4 if chosen else 1.4,
            dashed=not chosen,
        )
    level = beside[1] if answer == max(nouns) else below[1]
    canvas.text("who?", at=(middle, level - 0.75), points=9, role="value")
    box = canvas.box(words[answer], end.beside(1.0), role="value", points=9, literal=True)
    canvas.arrow(end, box, role="value")
    left = row[0].x - 0.4
    for y, label in ((down[0] / 2 + 0.3, "block 1"), (sum(down) / 2, "block 2")):
        canvas.text(label, at=Spot(left, y, 1, 0.5), points=9.5, bold=True)
    return canvas.picture(
        finding=(
            f"After “{words[last - 1]} {words[last]}” comes “{words[answer]}”: the last place must "
            f"learn of “{words[adjective]}” before it can choose between “{words[nouns[0]]}” and "
            f"“{words[nouns[1]]}”."
        ),
        alt=(
            f"The words {' '.join(words)} in a row, below them places after block 1 and after "
            f"block 2. In block 1 an arrow leads from {words[adjective]} to the last place. In "
            f"block 2 a thick arrow leads from {words[answer]} to the last place and a dashed one "
            "from the other noun."
        ),
    )


@styled
def every_seed(
    groups: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    xlabel: str,
    finding: str,
    lines: Mapping[str, float] | None = None,
    size: tuple[float, float] | None = None,
) -> Picture:
    """Models seed by seed: title → model → one share a seed, drawn as a point each.

    A bar marks the mean and a thin line its 95 % interval over seeds (Student's t). ``lines``:
    name → share, an upright line. Raises ``ValueError`` for no values and shares outside 0…1.
    """
    require_some("groups", groups)
    rows = [len(models) for models in groups.values()]
    figure = new_figure(*(size or (9.2, 0.3 * max(rows) + 1.3)))
    panels = figure.subplots(1, len(groups), sharex=True, squeeze=False)[0]
    for axes, (title, models) in zip(panels, groups.items(), strict=True):
        require_some(title, models)
        for row, (label, values) in enumerate(models.items()):
            _strip(axes, row, as_array(label, values, ndim=1), label)
        for name, where in (lines or {}).items():
            axes.axvline(where, color=QUIET, linestyle=(0, (4, 3)), linewidth=1.1, zorder=1)
            axes.annotate(
                name,
                (where, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=8.5,
                color=QUIET,
            )
        axes.set_yticks(range(len(models)), models)
        axes.set(ylim=(max(rows) - 0.4, -0.6), xlim=(-0.03, 1.03), xlabel=xlabel)
        axes.set_xticks(np.linspace(0, 1, 5))
        axes.set_title(title, pad=18 if lines else None)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
    return Picture(
        figure,
        finding=finding,
        alt=(
            f"{len(groups)} charts of {xlabel}: {', '.join(groups)}. In each a row a model with a "
            "point a seed, a bar at their mean and a thin line for its interval. "
            + "; ".join(f"{title}: {', '.join(models)}" for title, models in groups.items())
            + "."
        ),
    )


def _strip(axes: Axes, row: int, shares: np.ndarray, label: str) -> None:
    """The points of one model; points on nearly one place stand side by side."""
    if not shares.size or not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError(f"{label}: expected shares from 0 to 1, got {shares.tolist()}")
    low, high = interval(shares)
    axes.plot([low, high], [row, row], color=INK, linewidth=1.2, zorder=2)
    axes.plot([shares.mean()] * 2, [row - 0.3, row + 0.3], color=INK, linewidth=2.2, zorder=4)
    order = np.argsort(shares, kind="stable")
    offsets = np.zeros(len(shares))
    offsets[order] = [(-1, 0, 1)[place % 3] * 0.2 for place in range(len(shares))]
    axes.scatter(
        shares,
        row + offsets,
        s=20,
        color=COLOURS[0],
        alpha=0.75,
        linewidth=0,
        zorder=3,
        clip_on=False,
    )


def interval(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a mean over seeds, cut to 0…1; one value has no width."""
    array = as_array("values", values, ndim=1)
    if len(array) < 2:
        return float(array[0]), float(array[0])
    factor = _T[len(array) - 2] if len(array) - 2 < len(_T) else 1.96
    half = factor * array.std(ddof=1) / math.sqrt(len(array))
    return max(0.0, float(array.mean() - half)), min(1.0, float(array.mean() + half))


@styled
def by_word(
    maps: Mapping[str, object],
    words: Sequence[str],
    rows: Sequence[str],
    *,
    finding: str,
    ylabel: str = "",
    least: float = 0.05,
) -> Picture:
    """Heat maps [R, T] of weights or shares from 0 to 1, two a line: a column a word.

    A number is printed where it is ``least`` or more (two digits behind the point). Raises
    ``ValueError`` for another shape and for numbers outside 0…1.
    """
    require_some("maps", maps)
    arrays = {title: as_array(title, one, ndim=2) for title, one in maps.items()}
    for title, array in arrays.items():
        require_same("rows", {title: array.shape[0], "rows": len(rows)})
        require_same("columns", {title: array.shape[1], "words": len(words)})
        if not ((array >= -1e-6) & (array <= 1 + 1e-6)).all():
            raise ValueError(
                f"{title}: expected numbers from 0 to 1, got {array.min():.3g} to {array.max():.3g}"
            )
    columns = min(2, len(arrays))
    lines = -(-len(arrays) // columns)
    figure = new_figure(4.7 * columns, lines * (0.27 * len(rows) + 0.5) + 0.5)
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for place, (axes, (title, array)) in enumerate(zip(grid.flat, arrays.items(), strict=False)):
        image, _ = draw_matrix(axes, np.clip(array, 0, 1), signed=False)
        image.set_extent((-0.5, len(words) - 0.5, len(rows) - 0.5, -0.5))
        axes.set_aspect("auto")
        for (row, column), value in np.ndenumerate(array):
            if value >= least:
                text = "1" if value > 0.995 else f"{value:.2f}"[1:]
                dark = value > 0.55
                axes.text(
                    column,
                    row,
                    text,
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="#16191d" if dark else "white",
                )
        label_tokens(axes, rows=rows, columns=words, upright=False)
        axes.set_title(title)
        if place % columns == 0:
            axes.set_ylabel(ylabel)
    for axes in grid.flat[len(arrays) :]:
        axes.axis("off")
    bar = figure.colorbar(image, ax=grid, aspect=30, pad=0.015)
    bar.outline.set_visible(False)
    bar.set_ticks([0, 0.5, 1], labels=["0", "0.5", "1"])
    return Picture(
        figure,
        finding=finding,
        alt=(
            f"{len(arrays)} heat maps of numbers from 0 (dark blue) to 1 (yellow), rows "
            f"{', '.join(rows)}, columns {' '.join(words)}: {'; '.join(arrays)}."
        ),
    )


@styled
def weight_and_effect(
    looks: Mapping[str, tuple[object, object]], *, heavy: float, finding: str
) -> Picture:
    """Looks of heads: label → (mean weight, share still right without the look), a point each.

    A ring marks each look with at least ``heavy`` of the weight whose loss changes no answer at
    all (share 1). Raises ``ValueError`` for no looks and numbers outside 0…1.
    """
    require_some("looks", looks)
    figure = new_figure(6.6, 3.8)
    axes = figure.subplots()
    rings = []
    for place, (label, pair) in enumerate(looks.items()):
        weight, right = (as_array(label, one, ndim=1) for one in pair)
        require_same(label, {"weights": len(weight), "shares": len(right)})
        for array in (weight, right):
            if not ((array >= -1e-6) & (array <= 1 + 1e-6)).all():
                raise ValueError(f"{label}: expected numbers from 0 to 1, got {array.tolist()}")
        axes.scatter(
            weight,
            right,
            s=22,
            marker=MARKERS[place % len(MARKERS)],
            color=COLOURS[place % len(COLOURS)],
            alpha=0.55,
            linewidth=0,
            label=label,
            clip_on=False,
            zorder=3,
        )
        idle = (weight >= heavy) & (right == 1)
        rings.append(np.stack([weight[idle], right[idle]], 1))
    ringed = np.concatenate(rings)
    axes.scatter(
        ringed[:, 0],
        ringed[:, 1],
        s=95,
        facecolor="none",
        edgecolor=INK,
        linewidth=1.4,
        label=f"{heavy:g} or more, nothing lost",
        clip_on=False,
        zorder=4,
    )
    ticks = np.linspace(0, 1, 6)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.05), xticks=ticks, yticks=ticks)
    axes.set(xlabel="mean weight of the look", ylabel="still right without it")
    axes.grid()
    axes.legend(loc="lower left")
    return Picture(
        figure,
        finding=finding,
        alt=(
            f"Scatter plot of looks, {', '.join(looks)}: mean weight to the right, share still "
            f"right without the look upwards. {sum(map(len, rings))} points at the top right have "
            "a ring."
        ),
    )


#: The four places of a circuit, left to right.
_PLACES = ("X", "Y", "A", "the")
_THIN = 0.1  # smaller shares are not drawn


def circuits(panels: Mapping[str, tuple[str, Sequence[float], Sequence[float]]]) -> Picture:
    """Graphs of what is carried where: title → (meant noun, shares of the noun, of the adjective).

    The meant noun is "X" or "Y". Shares [4] belong to the places X, Y, A and the last "the" after
    block 1: how many answers change when this place is taken from a run with exchanged nouns, or
    with the other adjective. A share draws a way: from the word to the place in block 1, from the
    place to the last one in block 2, as thick as it is large. Shares below 0.1 are left out.
    Raises ``ValueError`` for another noun, and for other than four shares from 0 to 1.
    """
    require_some("panels", panels)
    canvas = Canvas(unit=0.22)
    step, wide, high, columns = 2.55, 13.0, 13.2, 3
    told = []
    for number, (title, (meant, noun, adjective)) in enumerate(panels.items()):
        if meant not in _PLACES[:2]:
            raise ValueError(f"{title}: expected X or Y as the meant noun, got {meant!r}")
        shares = [as_array(title, one, ndim=1) for one in (noun, adjective)]
        for share in shares:
            if share.shape != (4,) or not ((share >= 0) & (share <= 1)).all():
                raise ValueError(f"{title}: expected 4 shares from 0 to 1, got {share.tolist()}")
        left, top = wide * (number % columns), high * (number // columns)
        _panel(canvas, (left, top), step, title, _PLACES.index(meant), shares)
        roads = [
            f"{name} "
            + ", ".join(
                f"at {place} ≈ {s:.2f}"
                for place, s in zip(_PLACES, share, strict=True)
                if s >= _THIN
            )
            for name, share in zip((meant, "A"), shares, strict=True)
        ]
        told.append(f"{title}: {'; '.join(roads)}")
    return canvas.picture(
        finding=f"Where the answer is carried after block 1. {'. '.join(told)}.",
        alt=(
            f"{len(panels)} graphs: {', '.join(panels)}. In each the words X, Y, A and the last "
            "“the” above, their places after block 1 in the middle and the last place after block "
            "2 below. Green arrows are ways of the noun, vermilion ones of the adjective, as thick "
            "as the share of answers that changes when the place is patched; the shares stand "
            "beside the places."
        ),
    )


def _panel(
    canvas: Canvas,
    corner: tuple[float, float],
    step: float,
    title: str,
    meant: int,
    shares: Sequence[np.ndarray],
) -> None:
    left, top = corner
    rows = top, top + 4.4, top + 8.8
    words = [
        canvas.box(
            word,
            (left + step * place, rows[0]),
            points=9,
            size=(1.9, 1.4),
            role={meant: "value", 2: "key"}.get(place, "plain"),
        )
        for place, word in enumerate(_PLACES)
    ]
    canvas.text(title, at=Spot(words[0].x, rows[0] - 2.1, 0, 0.5), points=9.5, bold=True)
    end = canvas.dot((left + step * 3, rows[2]), radius=0.36, role="query")
    places = ((shares[0], meant, "value", -0.25), (shares[1], 2, "key", 0.25))
    for place in range(4):
        x = left + step * place
        here = [(*one, float(one[0][place])) for one in places if one[0][place] >= _THIN]
        if not here:
            canvas.dot((x, rows[1]), radius=0.3, role="hidden")
        tall = 1.25 * len(here) / 2
        for number, (_, source, role, aside, share) in enumerate(here):
            canvas.box(
                f"{share:.2f}",
                (x, rows[1] - tall + 1.25 * (number + 0.5)),
                role=role,
                points=8.5,
                size=(2.0, 1.15),
            )
            width = 0.8 + 2.4 * share
            above = words[source].bottom
            start, stop = (above[0] + aside, above[1] + 0.1), (x + aside, rows[1] - tall - 0.15)
            canvas.arrow(start, stop, role=role, width=width)
            start, stop = (x + aside, rows[1] + tall + 0.15), (end.centre[0] + aside, end.y - 0.1)
            canvas.arrow(start, stop, role=role, width=width)
