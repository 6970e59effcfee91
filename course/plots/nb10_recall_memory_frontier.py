"""Pictures of notebook 10: the task, two layers that solve it, what is kept, the frontier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from course.inputs import require_positive
from course.plots.drawing import Canvas
from course.plots.parts import as_array, require_some
from course.plots.places import Spot
from course.plots.style import COLOURS, INK, QUIET, Picture, new_figure, styled

BYTES = 4  # of a number in float32
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "*", "h")


def recall_task(words: Sequence[str], asked: Sequence[int]) -> Picture:
    """A text of pairs and questions: each of the places ``asked`` (from 0), and where it is told.

    The answer stands behind the last earlier place of the same word. Raises ``ValueError`` for an
    asked word that is new, and for a question at the end, which has no answer behind it.
    """
    words = [str(word) for word in words]
    told = {int(place): _last_earlier(words, int(place)) for place in asked}
    if not told:
        raise ValueError("asked: expected at least one place, got none")
    canvas = Canvas(unit=0.22)
    step = canvas.pitch(words, points=9) - 0.25
    wide, high = step - 0.25, 1.6
    roles = ["plain"] * len(words)
    for place, earlier in told.items():
        roles[earlier], roles[earlier + 1], roles[place], roles[place + 1] = (
            ("key", "value", "query", "value")
        )  # fmt: skip
    boxes = [
        canvas.box(
            word,
            (place * step, 0),
            role=role,
            size=(wide, high),
            points=9,
            literal=True,
            dashed=place - 1 in told,
        )
        for place, (word, role) in enumerate(zip(words, roles, strict=True))
    ]
    for number, (place, earlier) in enumerate(sorted(told.items(), key=lambda pair: -pair[1])):
        height = -2.2 - 1.5 * number
        start, end = boxes[earlier + 1].top, boxes[place + 1].top
        canvas.arrow(start, (start[0], height), (end[0], height), end, role="value", width=1.7)
    for place, earlier in told.items():
        canvas.text("told", at=boxes[earlier].below(0.35), points=8.5, role="key")
        canvas.text("asked", at=boxes[place].below(0.35), points=8.5, role="query")
    gaps = [place - earlier for place, earlier in told.items()]
    answers = ", ".join(f"{words[place]} → {words[earlier + 1]}" for place, earlier in told.items())
    return canvas.picture(
        finding=(
            f"{len(told)} questions in {len(words)} words: {answers}. Each answer was told "
            f"{min(gaps)} to {max(gaps)} words before."
        ),
        alt=(
            f"The text {' '.join(words)}, a box a word. Pairs come first, names in vermilion and "
            "orders in green; later each name is asked, in blue, and an arrow leads from the order "
            "told before to the place behind the question, where it must be given."
        ),
    )


def _last_earlier(words: Sequence[str], place: int) -> int:
    if not 0 <= place < len(words) - 1:
        raise ValueError(f"asked: expected places from 0 to {len(words) - 2}, got {place}")
    earlier = [t for t in range(place) if words[t] == words[place]]
    if not earlier:
        raise ValueError(
            f"asked: expected words that stood before, got a new one, {words[place]!r}"
        )
    return earlier[-1]


def two_layer_lookup(
    words: Sequence[str] = ("anna", "tea", "bruno", "milk", "well", "bruno"),
) -> Picture:
    """How two layers recall what followed the last of ``words`` before: a shift, then a match.

    Raises ``ValueError`` if that word is new.
    """
    words = [str(word) for word in words]
    T = len(words)
    found = _last_earlier([*words, ""], T - 1) + 1
    canvas = Canvas(unit=0.22)
    step = max(5.2, canvas.pitch(words))
    size = (step - 1.6, 1.6)
    own, before = [], []
    for t, word in enumerate(words):
        role = "query" if t == T - 1 else "value"
        x = t * step
        canvas.box(word, (x, 0), role="query" if t == T - 1 else "plain", size=size, literal=True)
        own.append(canvas.box(word, (x, 5.4), role=role, size=size, literal=True))
        earlier = words[t - 1] if t else ""
        before.append(canvas.box(earlier, (x, 7.0), role="key", size=size, literal=True))
        canvas.arrow((x, 0.95), (x, 4.45), role="stream")
        if t:
            role, width = ("focus", 2.4) if t == found else ("stream", 1.4)
            canvas.arrow((x - step + 0.9, 0.95), (x - 1.1, 4.45), role=role, width=width)
    asking, match, low = before[-1].bottom, before[found].bottom, before[0].bottom[1] + 0.2
    canvas.arrow(
        (asking[0], low),
        (asking[0], low + 1.9),
        (match[0] + 0.9, low + 1.9),
        (match[0] + 0.9, low),
        role="query",
        width=2.4,
        words=f"who stands behind “{words[-1]}”?",
        side="above",
    )
    answer = canvas.box(
        words[found], (T * step, 6.2), role="value", size=size, literal=True, dashed=True
    )
    canvas.arrow(
        (match[0] - 0.9, low),
        (match[0] - 0.9, low + 3.6),
        (answer.bottom[0], low + 3.6),
        answer,
        role="value",
        width=2.4,
        words="the own word of that place",
        side="above",
    )
    left = -size[0] / 2 - 0.8
    for y, label in ((0, "words"), (5.4, "own word"), (7.0, "word before")):
        canvas.text(label, at=Spot(left, y, 1, 0.5), points=9)
    canvas.text("layer one:\na shift", at=Spot(left, 2.75, 1, 0.5), points=9.5, bold=True)
    canvas.text("layer two:\na match", at=Spot(left, low + 2.3, 1, 0.5), points=9.5, bold=True)
    return canvas.picture(
        finding=(
            f"Layer one puts “{words[found - 1]}” beside “{words[found]}”; in layer two "
            f"“{words[-1]}” looks for itself among the words before, finds place {found + 1} of "
            f"{T}, and takes the word there: “{words[found]}”."
        ),
        alt=(
            f"Three rows for the words {' '.join(words)}: the words; and, after layer one, for "
            "each place its own word and, below it, the word before, which an arrow brings there "
            f"from one place to the left. From the last place an arrow looks for {words[-1]} among "
            f"the words before and finds it under {words[found]}; from there an arrow leads to the "
            "answer."
        ),
    )


def what_is_carried(
    lengths: Sequence[int] = (40, 160), *, D: int = 16, Dv: int = 64, C: int = 64
) -> Picture:
    """A cache of keys and values, and a state with its sum z, to scale after each of ``lengths``.

    Keys have width ``D``, values ``Dv``; the state is [C, Dv]. Raises ``ValueError`` for sizes
    below 1.
    """
    for name, size in {"D": D, "Dv": Dv, "C": C, "lengths": min(lengths, default=0)}.items():
        require_positive(name, size)
    canvas = Canvas(unit=0.22)
    cell, x = 0.085, 0.0
    state = BYTES * C * (Dv + 1)
    told = []
    for T in lengths:
        cache = BYTES * T * (D + Dv)
        told.append(f"after {T} tokens the cache {cache:,} bytes, the state {state:,}")
        at = Spot(x, 0, 0, 0)
        keys = canvas.matrix("", f"{T} {D}", at=at, role="key", cell=cell, label=False)
        at = Spot(keys.right[0] + 0.25, 0, 0, 0)
        values = canvas.matrix("", f"{T} {Dv}", at=at, role="value", cell=cell, label=False)
        at = Spot(values.right[0] + 2.6, 0, 0, 0)
        S = canvas.matrix("", f"{C} {Dv}", at=at, role="state", cell=cell, label=False)
        at = Spot(S.right[0] + 0.25, 0, 0, 0)
        z = canvas.matrix("", f"{C} 1", at=at, role="state", cell=(3 * cell, cell), label=False)
        middle = (keys.x + z.right[0]) / 2
        canvas.text(f"after {T} tokens", at=(middle, -4.0), points=10.5, bold=True)
        _heading(canvas, (keys.x + values.right[0]) / 2, "cache", cache, cache <= state)
        _heading(canvas, (S.x + z.right[0]) / 2, "state", state, state < cache)
        x = z.right[0] + 3.6
    for place, name, role in ((keys, "k", "key"), (values, "v", "value")):
        canvas.text(f"${name}$", at=place.below(0.3), points=10, role=role)
    canvas.text("$S$", at=S.below(0.3), points=10, role="state")
    canvas.text("$z$", at=z.below(0.3), points=10, role="state")
    return canvas.picture(
        finding=f"To scale, 4 bytes a number: {'; '.join(told)}.",
        alt=(
            f"Tables to scale, cell for cell, after {' and '.join(map(str, lengths))} tokens. The "
            f"cache has a row of {D} + {Dv} numbers for each token and grows downwards; the state, "
            f"{C} rows of {Dv} + 1 numbers, stays as it is."
        ),
    )


def _heading(canvas: Canvas, x: float, name: str, size: int, smaller: bool) -> None:
    canvas.text(name, at=(x, -2.4), points=9.5)
    canvas.text(f"{size:,} bytes", at=(x, -1.1), points=9, role="focus" if smaller else None)


def reach(windows: Sequence[int] = (3, 4), *, T: int = 9) -> Picture:
    """Which of ``T`` places the last one can see through layers that look at so many each.

    A layer of window w (a convolution of width w) sees itself and the w − 1 places before it.
    Raises ``ValueError`` for sizes below 1 and for a reach that ends before the first place.
    """
    require_positive("T", T)
    for window in windows:
        require_positive("windows", window)
    far = sum(windows) - len(windows)
    if not windows or far >= T:
        raise ValueError(f"windows: expected a reach below T = {T}, got {list(windows)}")
    canvas = Canvas(unit=0.22)
    across, down = 2.2, 3.6
    seen = {T - 1}
    sees = [seen]
    for window in reversed(windows):
        seen = {t - back for t in seen for back in range(window) if t >= back}
        sees.append(seen)
    rows = list(reversed(sees))  # the inputs first, drawn at the bottom
    layers = [
        [
            canvas.dot(
                (across * t, -down * layer),
                role="stream" if t in reached else "hidden",
                radius=0.36,
            )
            for t in range(T)
        ]
        for layer, reached in enumerate(rows)
    ]
    for layer, window in enumerate(windows):
        for t in rows[layer + 1]:
            for back in range(window):
                if t >= back:
                    edge = t - back == min(rows[layer]) and t == min(rows[layer + 1])
                    canvas.arrow(
                        layers[layer][t - back],
                        layers[layer + 1][t],
                        role="focus" if edge else "stream",
                        width=2.2 if edge else 1.0,
                    )
        name = f"layer {layer + 1}:\n{window} places"
        middle = Spot(-1.2, -down * (layer + 0.5), 1, 0.5)
        canvas.text(name, at=middle, points=9)
    for t in range(T):
        label = "now" if t == T - 1 else f"−{T - 1 - t}"
        role = "hidden" if t not in rows[0] else None
        canvas.text(label, at=layers[0][t].below(0.4), points=8.5, role=role)
    parts = " + ".join(str(window - 1) for window in windows)
    return canvas.picture(
        finding=(
            f"Windows of {' and '.join(map(str, windows))} reach {parts} = {far} places back; "
            f"{T - 1 - far} of {T} places are out of sight."
        ),
        alt=(
            f"{len(rows)} rows of {T} dots. Arrows lead from the places in the lowest row up to "
            "the last place in the highest. Dots that no arrow leaves are grey: the farthest that "
            f"is reached lies {far} places back."
        ),
    )


@styled
def frontier(
    groups: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
    *,
    sizes: Mapping[str, Sequence[float]] | None = None,
    levels: Mapping[str, float] | None = None,
    enough: float = 0.9,
    size: tuple[float, float] = (9.2, 4.3),
) -> Picture:
    """Accuracy against state bytes: title → mixer → points (bytes, mean, least, most).

    Each mixer has one mark and one colour in all panels. ``sizes``: name → bytes in each panel, an
    upright line; ``levels``: name → accuracy, a line across. The finding says what the smallest
    state with an accuracy of ``enough`` is in each panel. Raises ``ValueError`` for no points, for
    more mixers than there are marks, for accuracies outside 0…1, and for another number of sizes.
    """
    require_some("groups", groups)
    mixers = list(dict.fromkeys(mixer for panel in groups.values() for mixer in panel))
    if len(mixers) > len(MARKERS):
        raise ValueError(f"groups: expected at most {len(MARKERS)} mixers, got {len(mixers)}")
    looks = {
        mixer: (MARKERS[place], (*COLOURS, INK, QUIET, "#882255", "#8C6D1F")[place])
        for place, mixer in enumerate(mixers)
    }
    upright = {name: as_array(name, bytes_) for name, bytes_ in (sizes or {}).items()}
    for name, bytes_ in upright.items():
        if bytes_.shape != (len(groups),):
            raise ValueError(f"{name}: expected {len(groups)} sizes, got shape {bytes_.shape}")
    figure = new_figure(*size)
    told: list[str] = []
    handles: dict[str, Line2D] = {}
    panels = figure.subplots(1, len(groups), sharex=True, sharey=True, squeeze=False)[0]
    for number, (axes, (title, panel)) in enumerate(zip(panels, groups.items(), strict=True)):
        require_some(title, panel)
        best: tuple[float, str, float] | None = None
        for mixer, rows in panel.items():
            points = as_array(mixer, rows, ndim=2)
            if points.shape[1] != 4 or (points[:, 1:] < 0).any() or (points[:, 1:] > 1).any():
                raise ValueError(
                    f"{mixer}: expected rows of bytes and three accuracies from 0 to 1, "
                    f"got {points.tolist()}"
                )
            points = points[points[:, 0].argsort()]
            handles[mixer] = _marks(axes, points, *looks[mixer])
            for place, mean in points[:, :2]:
                if mean >= enough and (best is None or place < best[0]):
                    best = place, mixer, mean
        told.append(
            f"{title}: none of {sum(map(len, panel.values()))} reaches {enough:g}"
            if best is None
            else f"{title}: {best[1]}, ≈ {best[0]:,.0f} bytes (≈ {best[2]:.2f})"
        )
        axes.set_title(title)
        _lines(axes, {name: float(x[number]) for name, x in upright.items()}, levels or {})
    panels[0].set_ylabel("share of questions answered right")
    columns = len(handles) if len(handles) < 7 else -(-len(handles) // 2)  # at most two rows
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)
    return Picture(
        figure,
        finding=f"The smallest state that answers {enough:g} of the questions. {'; '.join(told)}.",
        alt=(
            f"{len(groups)} charts of the share answered right against the bytes of the state, on "
            f"a logarithmic axis: {', '.join(groups)}. Marks for {', '.join(mixers)}, one mixer's "
            "sizes joined by a line. "
            + " ".join(f"Upright line: {name}." for name in sizes or {})
            + " ".join(f"Line across: {name}." for name in levels or {})
        ).strip(),
    )


def _marks(axes: Axes, points: np.ndarray, marker: str, colour: str) -> Line2D:
    x, mean, low, high = points.T
    (line,) = axes.plot(
        x,
        mean,
        color=colour,
        marker=marker,
        markersize=9.5 if marker == "*" else 7.5,
        markeredgecolor="white",
        markeredgewidth=0.8,
        linewidth=1.1,
        zorder=3,
    )
    spread = high > low
    axes.vlines(x[spread], low[spread], high[spread], color=colour, linewidth=1.6, zorder=2)
    return line


def _lines(axes: Axes, sizes: Mapping[str, float], levels: Mapping[str, float]) -> None:
    least = axes.dataLim.x0
    axes.set_xscale("log")
    axes.set(ylim=(-0.03, 1.06), yticks=np.linspace(0, 1, 6))
    for name, where in sizes.items():
        axes.axvline(where, color=INK, linestyle=(0, (5, 3)), linewidth=1.2, zorder=1)
        axes.annotate(
            name,
            (where, 0.99),
            xycoords=("data", "axes fraction"),
            xytext=(4 if where < least else -4, 0),
            textcoords="offset points",
            rotation=90,
            ha="left" if where < least else "right",
            va="top",
            fontsize=8.5,
        )
    # Names of levels stand right of the first upright line, so that it does not cross them.
    first = min(sizes.values(), default=least)
    for name, height in levels.items():
        axes.axhline(height, color=QUIET, linestyle=(0, (2, 2)), linewidth=1.1, zorder=1)
        axes.annotate(
            name,
            (min(first, least), height),
            xytext=(20, 2),
            textcoords="offset points",
            va="bottom",
            fontsize=8.5,
            color=QUIET,
        )
    low, high = axes.get_xlim()
    ticks = [10.0**n for n in range(1, 8) if low <= 10.0**n <= high]
    names = {1: "10 B", 2: "100 B", 3: "1 KB", 4: "10 KB", 5: "100 KB", 6: "1 MB", 7: "10 MB"}
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(lambda x, _: names[round(np.log10(x))])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(True)
    axes.set_xlabel("bytes carried after the last token")
