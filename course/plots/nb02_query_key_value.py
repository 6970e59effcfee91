"""Pictures of notebook 02: one reading, what each part is for, own terms, heads, the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from course.plots.drawing import Canvas, cell_text
from course.plots.mechanisms import WORDS
from course.plots.parts import as_array, draw_matrix, number, readable_on, require_some, signed_norm
from course.plots.places import Place, Spot
from course.plots.style import INK, SIGNED, Picture, new_figure, styled

AT = 1.2  # where the two readers and the two words of the conflict lie


def one_reading(
    words: Sequence[str] = WORDS,
    *,
    query: object,
    keys: object,
    values: object,
    reader: int = 2,
    offered: str = "keys",
    given: str = "values",
) -> Picture:
    """What one word reads, in numbers: query · keys, softmax, weights · values.

    ``query`` [D] of word number ``reader``, which sees the words up to itself; ``keys`` [T, D] and
    ``values`` [T, Dv] of all. ``offered`` and ``given`` say in a word what keys and values mean.
    Raises ``ValueError`` for other sizes and a ``reader`` that is none of the words.
    """
    q = as_array("query", query, ndim=1)
    K, V = as_array("keys", keys, ndim=2), as_array("values", values, ndim=2)
    T = len(words)
    if K.shape != (T, len(q)) or len(V) != T:
        raise ValueError(
            f"keys: expected shape {[T, len(q)]} and {T} values, "
            f"got {list(K.shape)} and {len(V)} values"
        )
    if not 0 <= reader < T:
        raise ValueError(f"reader: expected a word's number from 0 to {T - 1}, got {reader}")
    gone = np.arange(T) > reader
    scores = K @ q
    powers = np.where(gone, 0.0, np.exp(scores - scores[~gone].max()))
    weights = powers / powers.sum()
    reading = weights @ V

    canvas = Canvas(unit=0.22, T=T, D=len(q), Dv=V.shape[1])
    step = max(3.2, canvas.pitch(words))
    hidden = np.flatnonzero(gone).tolist()
    row = canvas.words(words, at=(0, 0), hidden=hidden, step=step)
    canvas.outline(row[reader])
    look: dict[str, Any] = {"digits": None, "cell": (step, 1.6), "label": False}
    y = 2.2
    lines: dict[str, Place] = {}
    for name, array, role in (
        (offered, K.T, "key"),
        ("scores", scores[None], "plain"),
        ("weights", weights[None], "plain"),
        (given, V.T, "value"),
    ):
        shape = f"{len(array)} T"
        shade = weights[None] if name == "weights" else None
        lines[name] = canvas.matrix(
            name,
            shape,
            at=Spot(0, y, 0.5, 0),
            role=role,
            values=np.round(array, 2),
            shade=shade,
            hidden=np.broadcast_to(gone, array.shape),
            **look,
        )
        canvas.text(name, at=lines[name].before(0.7), points=10, bold=True)
        y = lines[name].bottom[1] + 2.0
    between = zip(list(lines.values())[:2], list(lines.values())[1:3], strict=True)
    for upper, lower in between:
        for column in np.flatnonzero(~gone).tolist():
            canvas.arrow(upper.column(column), lower.column(column))
    ends = list(lines.values())
    aside = ends[0].right[0] + 1.4
    spot = Spot(aside, ends[0].right[1], 0, 0.5)
    asked = canvas.matrix(
        "query", "D 1", at=spot, role="query", values=q[:, None], digits=None, cell=1.9, label=False
    )
    canvas.text(f"query of “{words[reader]}”", at=asked.beside(0.6), points=10, role="query")
    for place, said in (
        (ends[1], "query · key"),
        (ends[2], f"softmax: they sum to {number(weights.sum(), 0)}"),
    ):
        canvas.text(said, at=place.beside(1.4), points=9.5, role="focus")
    spot = Spot(aside, ends[3].right[1], 0, 0.5)
    canvas.text("=", at=(aside - 0.7, ends[3].right[1]), points=12)
    got = canvas.matrix(
        "reading",
        "Dv 1",
        at=spot,
        role="value",
        values=np.round(reading, 2)[:, None],
        rows=range(V.shape[1]),
        digits=None,
        cell=(2.4, 1.6),
        label=False,
    )
    canvas.text("weights · values", at=got.beside(0.6), points=9.5, role="focus")
    best = int(weights.argmax())
    told = ", ".join(cell_text(x, None) for x in reading)
    return canvas.picture(
        finding=(
            f"“{words[reader]}” sees {reader + 1} {'words' if reader else 'word'}; "
            f"“{words[best]}” has the largest score, {cell_text(scores[best], None)}, and the "
            f"weight {number(weights[best], 2)}; "
            f"what is read is {told}."
        ),
        alt=(
            f"Rows of numbers under the words {' '.join(words)}, the words after "
            f"“{words[reader]}” grey: keys, scores, weights, values. The query of "
            f"“{words[reader]}” times each key is a score, the softmax makes weights of the "
            "scores, and the values, weighted, add up to what is read."
        ),
    )


NEEDS = (
    ("different positions get different updates", "the weight depends on the reader", "query"),
    ("different words count differently", "the weight depends on the word read", "key"),
    ("something is carried from word to word", "each source hands over a message", "value"),
    ("nothing is lost where there is nothing to do", "the update is added", "skip"),
)


def unit(words: Sequence[str] = WORDS, *, reader: int = 2) -> Picture:
    """One position as a unit that edits its own stream, and what each of its parts is for.

    ``reader``, from 0, is the unit that is drawn; the words before it are its sources. Raises
    ``ValueError`` unless it has one at least and is one of the words.
    """
    if not 1 <= reader < len(words):
        raise ValueError(f"reader: expected a number from 1 to {len(words) - 1}, got {reader}")
    canvas = Canvas(unit=0.22)
    sources = words[:reader]
    wide = canvas.pitch(words) + 0.4
    stream = canvas.words([words[reader]], at=(0, 0), step=wide)[0]
    left = stream.right[0] + 2.4
    tap = canvas.dot((left, 0), role="stream", radius=0.22)
    compare = canvas.box("compare,\nsoftmax", at=(left, -4.6), size=(5.2, 2.4), points=9)
    mix = canvas.box("weighted\nsum", at=(left + 12.6, -4.6), size=(5.2, 2.4), points=9)
    plus = canvas.dot((mix.centre[0], 0), "+", role="stream")
    end = plus.right[0] + 7.0
    canvas.arrow(stream, plus, role="stream", width=4)
    canvas.arrow(plus, (end, 0), role="stream", width=4)
    canvas.text("stream", at=Spot(end + 0.5, 0, 0, 0.5), points=9, role="stream")
    canvas.arrow(tap, compare, role="query", words="query", side="left")
    canvas.arrow(compare, mix, words="weights")
    canvas.arrow(mix, plus, role="value", words="update")
    for line, word in enumerate(sources):
        y = -9.0 - 2.2 * (reader - 1 - line)
        place = canvas.words([word], at=(0, y), step=wide)[0]
        canvas.arrow(place.right, (end - 1.0, y), role="stream", width=2, head=False)
        canvas.text("…", at=Spot(end - 0.7, y, 0, 0.5), points=12, role="stream")
        for box, role in ((compare, "key"), (mix, "value")):
            x = box.x + box.width * (line + 1) / (reader + 1)
            canvas.dot((x, y), role="stream", radius=0.18)
            canvas.arrow((x, y), (x, box.top[1] - 0.15), role=role)
    for box, said, role in ((compare, "keys", "key"), (mix, "values", "value")):
        x = box.x + box.width * reader / (reader + 1) + 0.5  # beside the last arrow
        canvas.text(said, at=Spot(x, -7.2, 0, 0.5), points=9, role=role)
    first = (-1.2, 14.4 + 2.6)  # where the boxes of the two columns begin
    top = 2.6
    canvas.text("needed", at=Spot(first[0], top, 0, 0.5), points=10, bold=True)
    canvas.text("hence required", at=Spot(first[1], top, 0, 0.5), points=10, bold=True)
    for line, (need, required, part) in enumerate(NEEDS):
        y = top + 2.0 + 2.1 * line
        role = "stream" if part == "skip" else part
        one = canvas.box(need, at=Spot(first[0], y, 0, 0.5), size=(15.4, 1.5), points=9)
        other = canvas.box(
            required, at=Spot(first[1], y, 0, 0.5), role=role, size=(12.4, 1.5), points=9
        )
        canvas.arrow(one, other)
        canvas.text(part, at=other.beside(0.6), points=10, bold=True, role=role)
    return canvas.picture(
        finding=(
            f"The unit of “{words[reader]}” reads {len(sources)} other "
            f"{'stream' if len(sources) == 1 else 'streams'} and adds one update to its own; "
            f"{len(NEEDS)} needs require {', '.join(part for *_, part in NEEDS)}."
        ),
        alt=(
            f"Left, the stream of {words[reader]} as a thick line; its query goes up to a box that "
            f"compares it with the keys of {' and '.join(sources)}; the weights go to a weighted "
            "sum of their values, and this update is added to the stream. Below, a list of what is "
            "needed, each with an arrow to what is hence required."
        ),
    )


@styled
def anova(tables: Mapping[str, object]) -> Picture:
    """Each table [M, N] as mean + own term of the row + own term of the column + interaction.

    All parts of one table share one scale around 0. Raises ``ValueError`` for a table that is
    constant, or larger than 5 in either direction, where the numbers have no room.
    """
    require_some("tables", tables)
    arrays = {title: as_array(title, table, ndim=2) for title, table in tables.items()}
    figure = new_figure(9.2, 2.25 * len(arrays) + 0.1)
    grid = figure.subplots(len(arrays), 5, squeeze=False)
    shares = {}
    for line, (title, table) in zip(grid, arrays.items(), strict=True):
        if max(table.shape) > 5 or np.ptp(table) == 0:
            raise ValueError(f"{title}: expected at most 5 × 5 numbers, not all equal")
        mean = table.mean()
        rows, columns = table.mean(1, keepdims=True) - mean, table.mean(0, keepdims=True) - mean
        rest = table - mean - rows - columns
        shares[title] = (rest**2).mean() / ((table - mean) ** 2).mean()
        parts = {
            f"{title}": table,
            "= mean": np.full_like(table, mean),
            "+ own of a": np.broadcast_to(rows, table.shape),
            "+ own of b": np.broadcast_to(columns, table.shape),
            f"+ interaction, {number(100 * shares[title], 0)} %": rest,
        }
        norm = signed_norm(table)
        for axes, (name, part) in zip(line, parts.items(), strict=True):
            shown = np.where(np.abs(part) < 1e-6 * np.ptp(table), 0.0, part)  # rounding
            empty = not shown.any()
            image, printed = draw_matrix(axes, shown, signed=True, digits=None if empty else 1)
            image.set_norm(norm)
            if empty:  # one large 0 is seen at once, sixteen small ones have to be read
                middle = (np.array(shown.shape) - 1) / 2
                axes.text(middle[1], middle[0], "0", ha="center", va="center", fontsize=16)
            for text, value in zip(printed, shown.ravel(), strict=not empty):
                text.set(color=readable_on(image.cmap(norm(value))), fontsize=8)
            axes.set(xticks=[], yticks=[])
            axes.set_title(name, fontsize=9.5)
            axes.set_xlabel("b →", fontsize=9)
        line[0].set_ylabel("← a", fontsize=9)
    told = ", ".join(f"{title} {number(100 * share, 0)} %" for title, share in shares.items())
    return Picture(
        figure,
        finding=f"Share of the variance that is interaction: {told}.",
        alt=(
            f"For each of {', '.join(arrays)} five small tables, a down and b across: the function "
            "is the sum of its mean, a term of a alone, a term of b alone, and the interaction. "
            "Red is above 0, blue below."
        ),
    )


@styled
def conflict(functions: Mapping[str, Any]) -> Picture:
    """Two readers want opposite things of the same two words: which score allows it?

    Title → f(a, b) on arrays, a of the reader, b of the word that is read. Reader 1 (a = 1.2) wants
    the right word, reader 2 (a = −1.2) the left one. Raises ``ValueError`` for no function.
    """
    require_some("functions", functions)
    figure = new_figure(4.3 * len(functions), 3.9)
    grid = figure.subplots(1, len(functions), squeeze=False)[0]
    b, a = np.meshgrid(np.linspace(-2, 2, 81), np.linspace(-2, 2, 81))
    served = {}
    for axes, (title, function) in zip(grid, functions.items(), strict=True):
        heights = as_array(title, function(a, b), ndim=2)
        norm = signed_norm(heights)
        axes.contourf(b, a, heights, levels=17, cmap=SIGNED, norm=norm, alpha=0.75)
        axes.contour(b, a, heights, levels=17, colors=INK, linewidths=0.5, alpha=0.4)
        served[title] = 0
        for reader, side in ((1, 1), (2, -1)):
            at = side * AT
            wanted, other = (float(function(np.float64(at), np.float64(x))) for x in (at, -at))
            gets = wanted > other + 1e-9
            served[title] += gets
            axes.annotate(
                "",
                (0.82 * at, at),
                (-0.82 * at, at),
                arrowprops={
                    "arrowstyle": "-|>",
                    "linewidth": 2.2,
                    "mutation_scale": 16,
                    "color": INK,
                    "linestyle": "-" if gets else (0, (3, 2)),
                },
            )
            said = f"reader {reader}: {'gets' if gets else 'does not get'} it"
            axes.text(0, at + 0.3, said, ha="center", fontsize=9, bbox=_LABEL)
            for x, score in ((at, wanted), (-at, other)):
                axes.plot([x], [at], "o", color=INK, markersize=5)
                axes.text(x, at - 0.42, number(score, 1), ha="center", fontsize=8.5, bbox=_LABEL)
        axes.set(title=title, xlabel="b, of the word that is read", ylabel="a, of the reader")
        axes.set(xlim=(-2, 2), ylim=(-2, 2), aspect="equal")
    told = "; ".join(f"{title}: {count} of 2" for title, count in served.items())
    return Picture(
        figure,
        finding=f"Readers that score the word they want higher than the other one: {told}.",
        alt=(
            f"{len(functions)} contour maps of a score over b, across, and a, upwards: "
            f"{', '.join(functions)}. Reader 1 above wants the word on the right, reader 2 below "
            "the word on the left; an arrow from the unwanted to the wanted word is solid where "
            "the score rises along it, dashed where it does not. The scores stand at the points."
        ),
    )


_LABEL = {"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.85}


def two_factors(E: int = 8, D: int = 2) -> Picture:
    """The score of a pair through one matrix A, and A as a product of two thin ones; to scale.

    Raises ``ValueError`` for sizes below 1.
    """
    canvas = Canvas(min(0.22, 8.8 / (3 * E + 2 * D + 16)), E=E, D=D)
    x = canvas.matrix("$x_t$", "1 E", at=Spot(0, 0, 0, 0.5), role="stream", rows=[0])
    A = canvas.matrix("$A$", "E E", at=x.beside(1.8), role="learned")
    y = canvas.matrix("$x_i$", "E 1", at=A.beside(1.8), role="stream", rows=range(E))
    s = canvas.matrix("score", "1 1", at=y.beside(2.4), rows=[0], label=False)
    canvas.text("score", at=s.below(0.4), points=9.5)
    canvas.text("=", at=y.beside(1.2, middle=True), points=14)
    W_q = canvas.matrix("$W_q^{\\top}$", "E D", at=s.beside(7.4), role="learned")
    W_k = canvas.matrix("$W_k$", "D E", at=W_q.beside(1.8), role="learned")
    canvas.text("$A$  =", at=W_q.before(0.9), points=12)
    q = canvas.text(
        "$x_t^{\\top} W_q^{\\top}$ is the query", at=W_q.below(0.6), points=9.5, role="query"
    )
    canvas.text(
        "$W_k\\, x_i$ is the key", at=Spot(W_k.centre[0], q.y, 0.5, 0), points=9.5, role="key"
    )
    return canvas.picture(
        finding=(
            f"A has {E} × {E} = {E * E} numbers; its two factors have "
            f"{E} × {D} + {D} × {E} = {2 * E * D}."
        ),
        alt=(
            f"To scale: the row x_t [1, {E}] times A [{E}, {E}] times the column x_i [{E}, 1] is "
            f"one score; A is the product of W_q transposed [{E}, {D}] and W_k [{D}, {E}]."
        ),
    )


def cache_step(words: Sequence[str] = WORDS, *, D: int = 3, Dv: int = 2, t: int = 4) -> Picture:
    """One step of writing: word number ``t`` makes q, k, v; k and v join those that were kept.

    Raises ``ValueError`` for sizes below 1 and a ``t`` that is none of the words.
    """
    if not 0 <= t < len(words):
        raise ValueError(f"t: expected a word's number from 0 to {len(words) - 1}, got {t}")
    kept = t + 1
    canvas = Canvas(unit=0.22, T=kept, D=D, Dv=Dv)
    between = canvas.pitch(words[:kept], points=9) + 0.6
    keys = canvas.matrix("keys", "T D", at=Spot(0, 0, 0, 0), role="key", rows=[t])
    spot = Spot(D + between, 0, 0, 0)
    values = canvas.matrix("values", "T Dv", at=spot, role="value", rows=[t])
    for row, word in enumerate(words[:kept]):
        spot = Spot(D + between / 2, keys.row(row).left[1], 0.5, 0.5)
        tone = None if row == t else "hidden"
        canvas.text(word, at=spot, points=9, literal=True, role=tone)
    canvas.frame([keys, values], "kept: the cache", pad=1.0)
    y = kept + 4.0  # of what the new word makes
    asks = -max(D, 3.0) - 3.6
    made = {}
    for name, width, role, x in (
        ("q", "D", "query", asks),
        ("k", "D", "key", keys.bottom[0]),
        ("v", "Dv", "value", values.bottom[0]),
    ):
        one = canvas.matrix(f"${name}$", f"1 {width}", at=(x, y), role=role, rows=[0], label=False)
        canvas.text(f"${name}$", at=one.beside(0.4), points=11.5, role=role)
        made[name] = one
    for name, store, role in (("k", keys, "key"), ("v", values, "value")):
        canvas.arrow(made[name], store.row(t), role=role)
        spot = Spot(store.bottom[0] + 0.4, y - 1.6, 0, 0.5)
        canvas.text("append", at=spot, points=9, role=role)
    middle = keys.left[1]
    canvas.arrow(made["q"], (asks, middle), (keys.x - 0.2, middle), role="query")
    spot = Spot(asks - 0.4, middle, 1, 0.5)
    canvas.text("compare with\nall keys", at=spot, points=9, role="query")
    new = canvas.words([words[t]], at=(keys.bottom[0], y + 3.4))[0]
    canvas.text("new word", at=new.below(0.4), points=9)
    turn = y + 1.9
    canvas.arrow(new, made["k"], role="stream", width=2)
    for name in ("q", "v"):
        x = made[name].bottom[0]
        end = (x, made[name].bottom[1] + 0.15)
        canvas.arrow(new, (keys.bottom[0], turn), (x, turn), end, role="stream", width=2)
    spot = values.beside(7.0)
    out = canvas.matrix("output", "1 Dv", at=spot, role="value", rows=[0])
    canvas.arrow(values, out, role="value", words="weighted sum")
    before = f"; the rows of {' '.join(words[:t])} are kept from before" if t else ""
    return canvas.picture(
        finding=(
            f"Step {kept}: “{words[t]}” adds one key of {D} and one value of {Dv}; kept are "
            f"{kept} × ({D} + {Dv}) = {kept * (D + Dv)} numbers a head."
        ),
        alt=(
            f"The new word {words[t]} makes a query [1, {D}], a key [1, {D}] and a value "
            f"[1, {Dv}]. "
            f"Key and value become row {kept} of the cache of keys [{kept}, {D}] and values "
            f"[{kept}, {Dv}]{before}. The query is compared with all keys, and the weighted "
            "sum of the values is the output."
        ),
    )
