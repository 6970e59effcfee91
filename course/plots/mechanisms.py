"""How the parts of a transformer work, drawn: pictures from numbers, before any code.

Each function computes what it says (finding, alt text) from what it draws.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from course.plots.drawing import Canvas, Stop, cell_text
from course.plots.parts import as_array, number
from course.plots.places import Place, Spot
from course.plots.style import Picture

WORDS = ("the", "cat", "lay", "on", "the", "mat")


# --- who reaches whom ---------------------------------------------------------------------------


def who_reaches_whom(weights: object, words: Sequence[str] = WORDS) -> Picture:
    """Mean, attention and a recurrent network as graphs over the same words.

    ``weights`` [T, T] are attention's, causal rows that sum to 1: the larger a weight, the thicker
    its arrow. Every word has a dot above it; the arrows into the last one are drawn, the way from
    the first word to it in colour. Raises ``ValueError`` for fewer than 3 words and for other
    weights.
    """
    array = as_array("weights", weights, ndim=2)
    T = len(words)
    if T < 3:
        raise ValueError(f"words: expected at least 3, got {T}")
    past = np.tri(T, dtype=bool)
    if array.shape != (T, T):
        raise ValueError(f"weights: expected shape {[T, T]}, got {list(array.shape)}")
    if (
        array[~past].any()
        or (array[past] <= 0).any()
        or not np.allclose(array.sum(1), 1, atol=1e-3)
    ):
        raise ValueError(
            "weights: expected causal rows that sum to 1, above 0 in the past and 0 in the future"
        )
    canvas = Canvas(unit=0.22)
    panel = T * _pitch(canvas, words) + 0.9
    counts = {
        "mean": _all_at_once(canvas, 0, "mean", np.full(T, 1 / T), words),
        "attention": _all_at_once(canvas, panel, "attention", array[-1], words),
        "recurrent network": _one_by_one(canvas, 2 * panel, words),
    }
    ways = ", ".join(f"{title} {count}" for title, count in counts.items())
    return canvas.picture(
        finding=f"Arrows from word 1, “{words[0]}”, to the dot of word {T}, “{words[-1]}”: {ways}.",
        alt=(
            f"Three graphs over the words {' '.join(words)}, each with a dot above every word. "
            "Mean: arrows from all words to the last dot, all equally thick. Attention: the same "
            "arrows, as thick as their weights. Recurrent network: every word has an arrow to its "
            "dot, a state, and each state one to the next. The way from the first word to the last "
            "dot is drawn in colour."
        ),
    )


def _pitch(canvas: Canvas, words: Sequence[str]) -> float:
    """From word to word in a panel, which needs room for what is written over and under it."""
    return max(13 / len(words), canvas.pitch(words, points=9))


def _all_at_once(
    canvas: Canvas, left: float, title: str, weights: np.ndarray, words: Sequence[str]
) -> int:
    """A panel in which the last dot reads all words; returns the arrows from word 1 to it."""
    row = _upright_words(canvas, left, words)
    for place in row[:-1]:
        canvas.dot((place.centre[0], 0), role="stream", radius=0.4, pale=True)
    summary = canvas.dot((row[-1].centre[0], 0), role="stream", radius=0.4)
    for word, place in enumerate(row[1:], 1):
        canvas.arrow(place.top, summary, width=_thickness(weights[word]))
    way: list[tuple[Stop, Stop]] = [(row[0].top, summary)]
    below = "equal weights" if np.ptp(weights) == 0 else "thick: large weight"
    _title(canvas, row, title, f"{below}; drawn for word {len(words)}", len(way))
    return _draw_way(canvas, way, _thickness(weights[0]))


def _one_by_one(canvas: Canvas, left: float, words: Sequence[str]) -> int:
    """A panel in which every state reads its word and the state before; returns as above."""
    row = _upright_words(canvas, left, words)
    states = [canvas.dot((place.centre[0], 0), role="state", radius=0.4) for place in row]
    for place, state in zip(row[1:], states[1:], strict=True):
        canvas.arrow(place.top, state, width=1.8)
    way: list[tuple[Stop, Stop]] = [(row[0].top, states[0]), *itertools.pairwise(states)]
    _title(canvas, row, "recurrent network", "each state needs the one before", len(way))
    return _draw_way(canvas, way, 1.8)


def _thickness(weight: float) -> float:
    return 0.9 + 5 * float(weight)


def _draw_way(canvas: Canvas, way: Sequence[tuple[Stop, Stop]], width: float) -> int:
    for one, two in way:
        canvas.arrow(one, two, role="focus", width=width)
    return len(way)


def _upright_words(canvas: Canvas, left: float, words: Sequence[str]) -> list[Place]:
    pitch = _pitch(canvas, words)
    middle = left + pitch * (len(words) - 1) / 2
    return canvas.words(words, at=(middle, 6.2), step=pitch, points=9)


def _title(canvas: Canvas, row: Sequence[Place], title: str, below: str, count: int) -> None:
    middle = (row[0].x + row[-1].right[0]) / 2
    canvas.text(title, at=(middle, -2.7), points=11, bold=True)
    way = f"word 1 to the dot of word {len(row)}: {_times(count, 'arrow')}"
    canvas.text(way, at=(middle, -1.5), points=9.5, role="focus")
    _caption(canvas, row, below)


def _caption(canvas: Canvas, row: Sequence[Place], words: str, role: str = "hidden") -> None:
    spot = ((row[0].x + row[-1].right[0]) / 2, row[0].bottom[1] + 0.8)
    canvas.text(words, at=spot, points=8.5, role=role)


# --- query, key and value -----------------------------------------------------------------------


def query_key_value(
    T: int = 5, E: int = 6, D: int = 3, Dv: int = 4, *, row: int = 2, causal: bool = True
) -> Picture:
    """From word vectors to summaries, every matrix to scale; word number ``row`` is followed.

    Raises ``ValueError`` for sizes below 1 and a ``row`` that is none of 0 … T − 1.
    """
    _require_row(row, T)
    unit = min(0.2, 9.3 / (E + 2 * max(D, Dv) + 2 * T + Dv + 18))  # as wide as a notebook at most
    canvas = Canvas(unit, T=T, E=E, D=D, Dv=Dv)
    pitch = max(E, T) + 2.9
    hidden = np.triu(np.ones((T, T), dtype=bool), 1) if causal else None
    x = canvas.matrix("$x$", "T E", at=(0, pitch), role="stream", rows=[row])
    made = {}
    for line, (name, width, role) in enumerate(
        (("q", "D", "query"), ("k", "D", "key"), ("v", "Dv", "value"))
    ):
        y = line * pitch
        learned = canvas.matrix(
            f"$W_{name}^{{\\top}}$", f"E {width}", at=Spot(x.right[0] + 3.4, y, 0), role="learned"
        )
        every = [row] if name == "q" else range(row + 1) if causal else range(T)
        spot = Spot(learned.x + max(D, Dv) + 2.6, y, 0)
        made[name] = canvas.matrix(f"${name}$", f"T {width}", at=spot, role=role, rows=every)
        turn = x.right[0] + 1.6
        stops = [(turn, pitch), (turn, y)] if line != 1 else []
        canvas.arrow(x, *stops, learned, role="stream", width=2)
        canvas.arrow(learned, made[name], role=role)
    q, k, v = made.values()
    turn = q.x + max(D, Dv) + 1.4
    scores = canvas.matrix(
        "scores", "T T", at=Spot(turn + 1.6, pitch / 2, 0), role="plain", rows=[row], hidden=hidden
    )
    _join(canvas, turn, scores, (q, "query"), (k, "key"))
    weights = canvas.matrix(
        "weights", "T T", at=scores.beside(4.4), role="plain", rows=[row], hidden=hidden
    )
    canvas.arrow(scores, weights, words="softmax")
    turn = weights.right[0] + 1.4
    summary = canvas.matrix(
        "summary", "T Dv", at=Spot(turn + 1.6, 1.5 * pitch - 1, 0), role="value", rows=[row]
    )
    _join(canvas, turn, summary, (weights, "plain"), (v, "value"))
    canvas.text("queries · keys", at=scores.below(0.5), points=8.5, role="hidden")
    canvas.text("weights · values", at=summary.below(0.5), points=8.5, role="hidden")
    seen = row + 1 if causal else T
    return canvas.picture(
        finding=(
            f"{T} words of {E} numbers give queries and keys of {D} and values of {Dv}; {T} × {T} "
            f"scores become weights, and word {row + 1} sums up {seen} values to {Dv} numbers."
        ),
        alt=(
            f"Matrices drawn to scale. x [{T}, {E}] goes through W_q [{E}, {D}], W_k [{E}, {D}] "
            f"and W_v [{E}, {Dv}], all transposed, to q, k and v. q and k give scores [{T}, {T}], "
            f"a softmax weights "
            f"[{T}, {T}]{', the future grey in both' if causal else ''}; weights and v give the "
            f"summary [{T}, {Dv}]. Row {row + 1} is dark throughout."
        ),
    )


def _join(
    canvas: Canvas, turn: float, into: Place, one: tuple[Place, str], other: tuple[Place, str]
) -> None:
    """Two matrices and the roles of their arrows, which enter a third from its left."""
    half = min(0.8, into.height / 4)
    for (place, role), y in ((one, into.left[1] - half), (other, into.left[1] + half)):
        end = (into.x - 0.2, y)
        canvas.arrow(place, (turn, place.right[1]), (turn, y), end, role=role)


def _times(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _require_row(row: int, T: int) -> None:
    if not 0 <= row < T:
        raise ValueError(f"row: expected a word's number from 0 to {T - 1}, got {row}")


# --- heads --------------------------------------------------------------------------------------


def heads_into_stream(
    H: int = 3,
    T: int = 6,
    E: int = 8,
    Dv: int = 2,
    *,
    row: int = 2,
    looks: object = None,
    words: Sequence[str] = WORDS,
) -> Picture:
    """Heads write into the stream, each through its own block of W_o; to scale, twice.

    Above, line by line, what each head has read, o [T, Dv], times its block is what it writes, and
    the writings add up. Below, the heads side by side times the whole W_o. Row number ``row`` is
    followed. With ``looks`` [H, T, T], the causal weights of each head, every line begins with
    them and the values of ``words``. Raises ``ValueError`` for sizes below 1, a ``row`` that is
    none of 0 … T − 1, another shape of ``looks`` or number of words, and for rows of weights that
    do not sum to 1 or look ahead.
    """
    _require_row(row, T)
    weights = None if looks is None else _causal_looks(looks, H, T, words)
    canvas = Canvas(0.175, T=T, E=E, Dv=Dv)
    canvas.sizes["H·Dv"] = H * Dv
    widest = canvas.pitch(words, points=8.5)
    column = 0.0 if weights is None else T + Dv + widest + 4.6
    blocks = Spot(column + Dv + 2.0, 0, 0, 0.5)
    writes: Place | None = None
    for head in range(H):
        y = head * (T + 2.0)
        first = head == 0
        if weights is not None:
            _weighted_values(canvas, weights[head], words, y, head, row)
        o = _named(canvas, f"$o^{head + 1}$", "T Dv", Spot(column, y, 0, 0.5), "value", row, first)
        spot = Spot(blocks.x, y, 0, 0.5)
        W = _named(canvas, f"$(W_o^{head + 1})^{{\\top}}$", "Dv E", spot, "learned", None, first)
        canvas.outline(W, role="value")
        canvas.text("×", at=o.beside(1.0, middle=True), points=12)
        canvas.text("=", at=W.beside(1.1, middle=True), points=12)
        if writes is not None:
            canvas.text("+", at=writes.below(1.0, middle=True), points=14)
        writes = canvas.matrix("", "T E", at=W.beside(2.2), role="stream", rows=[row], label=first)
        canvas.text(f"head {head + 1} writes", at=writes.beside(0.6), points=9)
    assert writes is not None
    y = writes.bottom[1] + 4.4 + T / 2
    left, right = writes.left[0], writes.right[0]
    line = writes.bottom[1] + 0.9
    canvas.arrow((left, line), (right, line), head=False)
    o = canvas.matrix(
        "side by side", "T H·Dv", at=Spot(column + Dv, y, 1, 0.5), role="value", rows=[row]
    )
    W = canvas.matrix("$W_o^{\\top}$", "H·Dv E", at=Spot(blocks.x, y, 0, 0.5), role="learned")
    out = canvas.matrix("update", "T E", at=W.beside(2.2), role="stream", rows=[row])
    canvas.text("×", at=o.beside(1.0, middle=True), points=12)
    canvas.text("=", at=W.beside(1.1, middle=True), points=12)
    canvas.text("the sum", at=out.beside(0.6), points=9)
    for head in range(H):
        canvas.outline(Place(o.x + head * Dv, o.y, Dv, T), role="value")
        canvas.outline(Place(W.x, W.y + head * Dv, E, Dv), role="value")
    told = ""
    if weights is not None:
        most = weights[:, row].argmax(-1).tolist()
        places = ", ".join(
            f"head {head + 1} most at “{words[place]}” ({number(weights[head, row, place], 2)})"
            for head, place in enumerate(most)
        )
        told = f"; “{words[row]}” looks with {places}"
    begins = (
        f"the causal weights [{T}, {T}], the future grey, times the values [{T}, {Dv}] give"
        if told
        else "here is"
    )
    return canvas.picture(
        finding=(
            f"{H} heads of {Dv} numbers: each writes to all {E} coordinates of the stream, and "
            f"their sum is one product with the transposed W_o, which has {H} × {Dv} = {H * Dv} "
            f"rows{told}."
        ),
        alt=(
            f"Matrices to scale. Above, for each of {H} heads: {begins} what the head has read "
            f"[{T}, {Dv}]; that times its block of the transposed W_o [{Dv}, {E}] is what it "
            f"writes [{T}, {E}], and these are added. Below, the heads side by side "
            f"[{T}, {H * Dv}] times the whole transposed W_o [{H * Dv}, {E}] is the update "
            f"[{T}, {E}]. Row {row + 1} is dark."
        ),
    )


def _causal_looks(looks: object, H: int, T: int, words: Sequence[str]) -> np.ndarray:
    """``looks`` as an array, or ``ValueError``."""
    weights = as_array("looks", looks, ndim=3)
    if weights.shape != (H, T, T) or len(words) != T:
        raise ValueError(
            f"looks: expected shape {[H, T, T]} and {T} words, got {list(weights.shape)}"
        )
    ahead = weights[:, ~np.tri(T, dtype=bool)]
    if ahead.any() or not np.allclose(weights.sum(-1), 1, atol=1e-6):
        raise ValueError("looks: expected causal rows that sum to 1")
    return weights


def _weighted_values(
    canvas: Canvas, weights: np.ndarray, words: Sequence[str], y: float, head: int, row: int
) -> None:
    """The begin of a head's line: its weights [T, T] times the values of the words."""
    hidden = ~np.tri(len(words), dtype=bool)
    spot = Spot(0, y, 0, 0.5)
    A = canvas.matrix("", "T T", at=spot, shade=weights, hidden=hidden, label=False)
    canvas.text(f"weights, head {head + 1}", at=A.above(0.3), points=9)
    canvas.outline(A.row(row))
    spot = A.beside(1.6 + canvas.pitch(words, points=8.5))
    v = _named(canvas, f"$v^{head + 1}$", "T Dv", spot, "value", None, head == 0)
    for t, word in enumerate(words):
        canvas.text(word, at=v.row(t).before(0.3), points=8.5, literal=True)
    canvas.text("×", at=A.beside(0.9, middle=True), points=12)
    canvas.text("=", at=v.beside(1.3, middle=True), points=12)


def _named(
    canvas: Canvas, name: str, shape: str, at: Spot, role: str, row: int | None, shaped: bool
) -> Place:
    """A matrix under its name; its shape stands there too in the first line only."""
    rows = [] if row is None else [row]
    place = canvas.matrix(name, shape, at=at, role=role, rows=rows, label=shaped)
    if not shaped:
        canvas.text(name, at=place.above(0.2), points=11.5, role=role)
    return place


# --- softmax ------------------------------------------------------------------------------------


def softmax_steps(
    scores: object, words: Sequence[str] = WORDS, *, hidden: Sequence[bool] | None = None
) -> Picture:
    """The three steps of one row's softmax, in numbers: hide, exponentiate, divide by the sum.

    ``scores`` [S] of one word about S words; ``hidden`` [S] is True where it may not look: there
    the score is drawn too, and −∞ in its place below. Raises ``ValueError`` if nothing is left to
    look at, or for scores beyond ±9, which have no room.
    """
    array = as_array("scores", scores, ndim=1)
    cut = np.zeros(len(array), dtype=bool) if hidden is None else np.asarray(hidden, dtype=bool)
    if not len(words) == len(array) == len(cut):
        raise ValueError(
            f"scores: expected one for each of {len(words)} words (and of {len(cut)} places hidden "
            f"or not), got {len(array)}"
        )
    if cut.all():
        raise ValueError("hidden: expected at least one word to look at, got none")
    if not (np.abs(array) <= 9).all():
        raise ValueError(f"scores: expected numbers from −9 to 9, got {array.tolist()}")
    masked = np.where(cut, -np.inf, array)
    powers = np.exp(masked)
    total = powers.sum()
    weights = powers / total

    canvas = Canvas(unit=0.22, S=len(array))
    step = max(3.2, canvas.pitch(words))
    canvas.words(words, at=(0, 0), hidden=np.flatnonzero(cut).tolist(), step=step)
    lines = [("scores", array, "hide"), ("masked", masked, "exp")]
    if not cut.any():
        lines = [("scores", array, "exp")]
    lines += [("exponentials", powers, f"÷ {number(total, 2)}"), ("weights", weights, "")]
    rows: list[Place] = []
    for line, (name, values, _) in enumerate(lines):
        rows.append(
            canvas.matrix(
                name,
                "1 S",
                at=(0, 2.5 + 3.6 * line),
                values=values[None],
                shade=weights[None] if name == "weights" else None,
                hidden=cut[None],
                cell=(step, 1.7),
                label=False,
            )
        )
        canvas.text(name, at=rows[-1].before(0.6), points=10, bold=True)
    for (upper, lower), (_, _, step_name) in zip(itertools.pairwise(rows), lines, strict=False):
        for column, gone in enumerate(cut.tolist()):
            if not gone:
                canvas.arrow(upper.cell(0, column), lower.cell(0, column))
            elif step_name == "hide":
                one, two = upper.cell(0, column), lower.cell(0, column)
                canvas.arrow(one, two, role="focus", width=2)
        spot = Spot(upper.x - 0.6, upper.bottom[1] + 0.95, 1, 0.5)
        canvas.text(step_name, at=spot, points=9.5, role="focus")
    canvas.text(f"sum = {number(total, 2)}", at=rows[-2].beside(0.6), points=10, role="focus")
    canvas.text(f"sum = {number(weights.sum(), 2)}", at=rows[-1].beside(0.6), points=10)
    most = int(weights.argmax())
    alike = int((powers == powers[most]).sum())
    who = f"“{words[most]}” has" if alike == 1 else f"{alike} words share"
    of_those = " that is not hidden" if cut.any() else ""
    gone = ", ".join(
        f"“{word}” (score {number(score, 2)})"
        for word, score in zip(itertools.compress(words, cut), array[cut], strict=True)
    )
    hides = f" Hidden: {gone}; there the score becomes −∞ and the weight 0." if gone else ""
    return canvas.picture(
        finding=(
            f"{who} the highest score{of_those}, {number(array[most], 2)}; its exponential is "
            f"{number(powers[most], 2)} of {number(total, 2)}, so its weight is "
            f"{number(weights[most], 2)}.{hides}"
        ),
        alt=(
            f"Rows of numbers for the words {' '.join(words)}: the scores; "
            f"{'the same with −∞ where a word is hidden; ' if cut.any() else ''}their "
            "exponentials; these divided by their sum, which are the weights."
        ),
    )


# --- the mean -----------------------------------------------------------------------------------


def mean_as_matrix(vectors: object, words: Sequence[str] = WORDS, *, row: int = 3) -> Picture:
    """The mean of all words so far as a matrix times the stack of word vectors, in numbers.

    ``vectors`` [T, E]; row number ``row`` of the product is followed. Raises ``ValueError`` for
    another number of words, and for a ``row`` that is none of 0 … T − 1.
    """
    array = as_array("vectors", vectors, ndim=2)
    T, E = array.shape
    if len(words) != T:
        raise ValueError(f"words: expected {T}, one for each vector, got {len(words)}")
    _require_row(row, T)
    means = np.cumsum(array, 0) / np.arange(1, T + 1)[:, None]
    seen = np.tri(T, dtype=bool)
    parts = ["1", *(f"1/{t}" for t in range(2, T + 1))]
    printed = np.where(seen, np.array(parts, dtype=object)[:, None], "0")
    canvas = Canvas(unit=0.22, T=T, E=E)
    cell = (2.1, 1.6)
    A = canvas.matrix(
        "weights", "T T", at=(0, 0), values=printed, rows=[row], hidden=~seen, cell=cell
    )
    stack: dict[str, Any] = {"shape": "T E", "role": "stream", "digits": None, "cell": cell}
    x = canvas.matrix("words", at=A.beside(6.2), rows=range(row + 1), values=array, **stack)
    y = canvas.matrix("means", at=x.beside(2.6), rows=[row], values=means, **stack)
    for place, word in enumerate(words):
        canvas.text(word, at=A.row(place).before(0.6), points=9, literal=True)
        role = None if place <= row else "hidden"
        canvas.text(word, at=x.row(place).before(0.6), points=9, literal=True, role=role)
    canvas.text("×", at=A.beside(1.6, middle=True), points=14)
    canvas.text("=", at=x.beside(1.3, middle=True), points=14)
    canvas.outline(A.row(row))
    canvas.outline(y.row(row))
    result = ", ".join(cell_text(value, None) for value in means[row])
    return canvas.picture(
        finding=(
            f"Row {row + 1} has 1/{row + 1} at its first {row + 1} positions and 0 after them: "
            f"times the word vectors it gives their mean so far, ({result})."
        ),
        alt=(
            f"Three matrices to scale: the weights [{T}, {T}], with 1/t at the first t positions "
            f"of row t and the future grey, times the word vectors [{T}, {E}] of "
            f"{' '.join(words)}, gives the means [{T}, {E}]. Row {row + 1} is framed."
        ),
    )


def language_model(
    words: Sequence[str] = WORDS,
    *,
    weights: str = "mean",
    E: int = 4,
    V: int = 8,
    row: int = 3,
) -> Picture:
    """A language model of a table, a matrix of weights and a linear map, all to scale.

    ``weights`` are those of the "mean", or "learned" ones. ``words`` go in; word number ``row``
    (counted from 0) is followed. ``V`` words are in the vocabulary. Raises ``ValueError`` for
    other weights, sizes below 1 and a ``row`` that is none of the words.
    """
    if weights not in ("mean", "learned"):
        raise ValueError(f"weights: expected mean or learned, got {weights!r}")
    T = len(words)
    _require_row(row, T)
    learned = weights == "learned"
    canvas = Canvas(unit=0.19, T=T, E=E, V=V)
    A = canvas.matrix(
        "weights",
        "T T",
        at=Spot(0, 0, 0, 0.5),
        role="learned" if learned else "plain",
        rows=[row],
        hidden=np.triu(np.ones((T, T), dtype=bool), 1),
    )
    labels = canvas.pitch(words, points=9)
    x = canvas.matrix("words", "T E", at=A.beside(1.9 + labels), role="stream", rows=range(row + 1))
    for t, word in enumerate(words):
        role = None if t <= row else "hidden"
        canvas.text(word, at=x.row(t).before(0.4), points=9, literal=True, role=role)
    name = "summaries" if learned else "means"
    summaries = canvas.matrix(name, "T E", at=x.beside(2.2), role="stream", rows=[row])
    linear = canvas.matrix("linear map", "E V", at=summaries.beside(2.2), role="learned")
    scores = canvas.matrix("scores", "T V", at=linear.beside(2.2), role="plain", rows=[row])
    for sign, left in (("×", A), ("=", x), ("×", summaries), ("=", linear)):
        canvas.text(sign, at=left.beside(1.1, middle=True), points=14)
    table = canvas.matrix("table of vectors", "V E", at=x.below(4.6), role="learned")
    canvas.arrow((x.centre[0], x.bottom[1] + 2.3), x, role="stream")
    for place, text in (
        (A.below(0.5), "learned, the same\nfor every text" if learned else "the mean:\n1/t each"),
        (table.beside(0.8), "one row for each\nword there is"),
        (scores.below(0.5), "one score for each word\nthat may come next"),
    ):
        canvas.text(text, at=place, points=8.5, role="hidden")
    return canvas.picture(
        finding=(
            f"{T} words become {T} vectors of {E} numbers, then {T} {name}, then {T} × {V} scores: "
            f"row {row + 1} scores the word after “{words[row]}”, from "
            f"{'a learned weighted sum' if learned else 'the mean'} of {_times(row + 1, 'word')}."
        ),
        alt=(
            f"Matrices to scale. The weights{', learned,' if learned else ' of the mean'} "
            f"[{T}, {T}], the future grey, times the words [{T}, {E}] gives the {name} [{T}, {E}]; "
            f"times a learned linear map [{E}, {V}] gives the scores [{T}, {V}]. The rows for the "
            f"words {' '.join(words)} come from a learned table [{V}, {E}] below them. Row "
            f"{row + 1} is dark, and so are the words that it sums up."
        ),
    )


def drowning(counts: Sequence[int] = (1, 2, 4, 8, 16)) -> Picture:
    """How much of a mean is its newest word, and what adding the word back does; to scale.

    ``counts`` are numbers of words so far, rising. Raises ``ValueError`` for others.
    """
    if len(counts) < 2 or list(counts) != sorted(set(counts)) or counts[0] < 1:
        raise ValueError(
            f"counts: expected two or more rising numbers of words from 1 on, got {list(counts)}"
        )
    canvas = Canvas(unit=0.22)
    one = 9.0  # the length of a weight of 1
    second = one + 6.2
    for line, t in enumerate(counts):
        y = 2.0 * line
        canvas.text(_times(t, "word"), at=Spot(-0.8, y, 1, 0.5), points=9.5)
        _bar(canvas, 0, y, one, t)
        part = "1" if t == 1 else f"1/{t}"
        canvas.text(part, at=Spot(one + 0.6, y, 0, 0.5), points=9.5, role="stream")
        _bar(canvas, second, y, one, 1)
        _bar(canvas, second + one + 0.15, y, one, t)
        end = Spot(second + 2 * one + 0.75, y, 0, 0.5)
        canvas.text("2" if t == 1 else f"1 + {part}", at=end, points=9.5, role="stream")
    canvas.text("mean", at=(one / 2, -2.0), points=11, bold=True)
    canvas.text("newest word + mean", at=(second + one, -2.0), points=11, bold=True)
    below = 2.0 * len(counts) - 0.3
    canvas.text(
        "dark: weight of the newest word; pale: one part for each word before it",
        at=(second / 2 + one, below),
        points=8.5,
        role="hidden",
    )
    last = counts[-1]
    return canvas.picture(
        finding=(
            f"After {last} words the newest has the weight 1/{last} = {1 / last:.3g} in the mean, "
            f"as every other has; with the word added to the mean it has 1 + 1/{last}."
        ),
        alt=(
            f"Bars of weights for {', '.join(map(str, counts))} words. Left the mean: a bar of "
            "length 1 in equal parts, the dark part of the newest word ever shorter. Right the "
            "word plus the mean: a dark bar of length 1 stands before it at every length."
        ),
    )


def _bar(canvas: Canvas, left: float, y: float, length: float, parts: int) -> None:
    canvas.matrix(
        "",
        f"1 {parts}",
        at=Spot(left, y, 0, 0.5),
        role="stream",
        columns=[0],
        cell=(length / parts, 1.1),
        label=False,
    )


def targets_and_mask(words: Sequence[str] = WORDS, *, position: int = 2) -> Picture:
    """Targets are the inputs one position later; what a mask cuts at ``position``, from 0.

    Of the ``words`` all but the last are inputs, all but the first are targets. Raises
    ``ValueError`` for fewer than 3 words and for a position whose target is no input.
    """
    T = len(words) - 1
    if T < 2:
        raise ValueError(f"words: expected at least 3, got {len(words)}")
    if not 0 <= position < T - 1:
        raise ValueError(f"position: expected a number from 0 to {T - 2}, got {position}")
    canvas = Canvas(unit=0.22)
    panel = _pitch(canvas, words) * T + 3.2
    targets, inputs = _shifted_rows(canvas, 0, "the task", words, [])
    for name, row in {"targets": targets, "inputs": inputs}.items():
        canvas.text(name, at=row[0].before(0.7), points=9, bold=True)
    for word, target in zip(inputs, targets, strict=True):
        canvas.arrow(word, target, role="stream", width=1.6)
    _caption(canvas, inputs, "every word predicts the word after it")
    masks = {"without a mask": np.ones((T, T), dtype=bool), "with a mask": np.tri(T, dtype=bool)}
    leaks = []
    for place, (title, mask) in enumerate(masks.items(), 1):
        _one_target(canvas, panel * place, title, words, position, mask[position])
        leaks.append(int(mask.diagonal(1).sum()))
    return canvas.picture(
        finding=(
            f"The target at word {position + 1} is the input at word {position + 2}, "
            f"“{words[position + 1]}”. Positions of {T} that can read their own answer: without a "
            f"mask {leaks[0]}, with it {leaks[1]}."
        ),
        alt=(
            f"Three panels, inputs {' '.join(words[:-1])} below, targets {' '.join(words[1:])} "
            f"above. First: an arrow from every input to the target above it, the word after it. "
            f"Second, no mask: position {position + 1} reads all inputs, its own "
            "target among them. Third, with a mask: the inputs after it are grey, their arrows cut."
        ),
    )


def _one_target(
    canvas: Canvas, left: float, title: str, words: Sequence[str], position: int, seen: np.ndarray
) -> None:
    """A panel: what one position reads of the inputs, where its answer stands among them."""
    hidden = np.flatnonzero(~seen).tolist()
    targets, inputs = _shifted_rows(canvas, left, title, words, hidden)
    summary = canvas.dot((inputs[position].centre[0], 3), role="stream", radius=0.4)
    canvas.arrow(summary, targets[position], role="stream", width=2)
    answer = position + 1
    for word, source in enumerate(inputs):
        if not seen[word]:
            canvas.arrow(source.top, summary, role="hidden", dashed=True, head=False)
        elif word == answer:
            canvas.arrow(source.top, summary, role="focus", width=3)
        else:
            canvas.arrow(source.top, summary)
    canvas.outline(targets[position])
    canvas.outline(inputs[answer])
    if seen[answer]:
        _caption(canvas, inputs, "the answer is read", "focus")
    else:
        _caption(canvas, inputs, "the answer is hidden")


def _shifted_rows(
    canvas: Canvas, left: float, title: str, words: Sequence[str], hidden: Sequence[int]
) -> tuple[list[Place], list[Place]]:
    pitch = _pitch(canvas, words)
    middle = left + pitch * (len(words) - 2) / 2
    canvas.text(title, at=(middle, -2.2), points=11, bold=True)
    return (
        canvas.words(words[1:], at=(middle, 0), step=pitch, points=9),
        canvas.words(words[:-1], at=(middle, 7), step=pitch, points=9, hidden=hidden),
    )


# --- the residual stream ------------------------------------------------------------------------


def residual_stream(
    mixer: str = "attention",
    *,
    blocks: int = 1,
    feed_forward: bool = True,
    norm: str = "pre",
    words: Sequence[str] = ("the", "cat", "lay"),
) -> Picture:
    """The residual stream of the last of ``words`` through the blocks that read it and add to it.

    A block is a ``mixer`` ("attention", "mean", …), which also reads the streams of earlier words,
    and a feed-forward part, which does not. ``norm`` as in ``TransformerConfig``: "pre" (what a
    part reads, and the end), "post" (the stream after each sum), "none". Raises ``ValueError`` for
    another norm, more than 2 blocks (with "post" 1), and fewer than 2 words.
    """
    if norm not in ("pre", "post", "none"):
        raise ValueError(f"norm: expected pre, post or none, got {norm!r}")
    if blocks not in (1, 2) or (blocks == 2 and norm == "post"):
        room = "1, more has no room here" if norm == "post" else "1 or 2"
        raise ValueError(f"blocks: expected {room}, got {blocks}")
    if len(words) < 2:
        raise ValueError(f"words: expected at least 2, got {len(words)}")
    canvas = Canvas(unit=0.22 if blocks == 1 else 0.19)
    parts = [mixer, *(["feed-forward"] if feed_forward else [])]
    high = 5.4 if norm == "pre" else 2.9  # how far the parts lie above the stream
    stream = canvas.words(words[-1:], at=(0, 0))  # the boxes on it, from left to right
    x = stream[0].right[0] + 2.9
    readers, added = [], 0
    for block in range(blocks):
        inside: list[Place] = []
        for part in parts:
            box, plus = _reads_and_adds(canvas, part, x, high, norm == "pre")
            x, added = plus.right[0] + 2.0, added + 1
            inside += [box, plus]
            if norm == "post":
                stream.append(canvas.box("norm", at=plus.beside(1.0), points=9))
                inside.append(stream[-1])
                x = stream[-1].right[0] + 2.4
            if part == mixer:
                readers.append(box)
        title = f"block {block + 1}" if blocks > 1 else "block"
        canvas.frame(inside, title, pad=0.8, below=True)
        x += 1.6
    canvas.text("stream", at=(x + 0.4, 0.9), points=9, role="stream")
    x += 2.6
    if norm == "pre":
        stream.append(canvas.box("norm", at=Spot(x, 0, 0, 0.5), points=9))
        x = stream[-1].right[0] + 1.5
    stream.append(canvas.box("next\nword", at=Spot(x, 0, 0, 0.5), role="learned"))
    for one, two in itertools.pairwise(stream):
        canvas.arrow(one, two, role="stream", width=4.0)
    _other_streams(canvas, high, stream[-1].x, words[:-1], readers)
    normed = {
        "pre": " through a norm, and there is one more at the end",
        "post": ", and a norm rescales the line after each sum",
        "none": "",
    }
    return canvas.picture(
        finding=(
            f"The stream of “{words[-1]}” takes up {_times(added, 'update')}; only the {mixer} "
            f"reads the {_times(len(words) - 1, 'word')} before it."
        ),
        alt=(
            f"A thick line runs from the word {words[-1]} to the next word. "
            f"{_times(blocks, 'block')} with {' and '.join(parts)}: a part reads from the line and "
            f"adds what it makes to the line{normed[norm]}. Above lie the thinner lines of "
            f"{' and '.join(words[:-1])}, which the {mixer} reads too."
        ),
    )


def _reads_and_adds(
    canvas: Canvas, part: str, x: float, high: float, normed: bool
) -> tuple[Place, Place]:
    """A part that taps the stream at ``x``; returns its box and the sum behind it."""
    source = canvas.dot((x, 0), role="stream", radius=0.22)
    if normed:
        norm = canvas.box("norm", at=(x, 2.7 - high), points=9)
        canvas.arrow(source, norm, role="stream")
        source = norm
    box = canvas.box(part, at=Spot(x - 1.4, -high, 0, 0.5))
    canvas.arrow(source, box, role="stream")
    plus = canvas.dot((box.right[0] + 1.3, 0), "+", role="stream")
    canvas.arrow(box, (plus.centre[0], -high), plus, role="stream")
    return box, plus


def _other_streams(
    canvas: Canvas, high: float, until: float, words: Sequence[str], readers: Sequence[Place]
) -> None:
    """The streams of earlier words, the first on top, read by the mixers below them."""
    for line, word in enumerate(words, 1):
        place = canvas.words([word], at=(0, -high - 3.0 - 1.9 * (len(words) - line)))[0]
        y = place.right[1]
        canvas.text("…", at=Spot(until, y, 0, 0.5), points=12, role="stream")
        canvas.arrow(place.right, (until - 0.3, y), role="stream", width=2, head=False)
        for reader in readers:
            x = reader.x + reader.width * line / (len(words) + 1)
            canvas.dot((x, y), role="stream", radius=0.18)
            canvas.arrow((x, y), (x, reader.top[1] - 0.15), role="stream")
