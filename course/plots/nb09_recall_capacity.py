"""Pictures of notebook 09: a state that is written and read, what three rules leave, its price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from course.plots.drawing import Canvas, cell_text
from course.plots.parts import (
    as_array,
    draw_matrix,
    label_tokens,
    number,
    readable_on,
    require_some,
    signed_norm,
)
from course.plots.places import Place, Spot
from course.plots.style import Picture, new_figure, styled

WIDE = 10.0  # of the largest sheet, in units


def write_and_read(keys: object, values: object, names: Sequence[str], *, ask: int = 0) -> Picture:
    """Pairs written into one matrix S = KᵀV, and what the key of pair ``ask`` reads, in numbers.

    ``keys`` [N, D], ``values`` [N, Dv]. Raises ``ValueError`` for another number of names or
    values, and for an ``ask`` that is none of 0 … N − 1.
    """
    K, V = as_array("keys", keys, ndim=2), as_array("values", values, ndim=2)
    N, D = K.shape
    _require_pairs(N, len(V), names, ask)
    S = K.T @ V
    leaks = K @ K[ask]
    reading = K[ask] @ S
    canvas = Canvas(_unit(2.4 * D + 3 * 2.4 * V.shape[1] + 18), N=N, D=D, Dv=V.shape[1])
    cell = (2.4, 1.6)
    K_ = canvas.matrix("keys", "N D", at=(0, 0), role="key", values=K, digits=None, cell=cell)
    V_ = canvas.matrix(
        "values", "N Dv", at=K_.beside(1.4), role="value", values=V, digits=None, cell=cell
    )
    for row, name in enumerate(names):
        canvas.text(name, at=K_.row(row).before(0.6), points=9.5, literal=True)
    S_ = canvas.matrix(
        "state", "D Dv", at=V_.beside(6.0), role="state", values=S, digits=None, cell=cell
    )
    canvas.arrow(V_, S_, role="state", words="write\nall pairs")
    o_ = canvas.matrix(
        "reading", "1 Dv", at=S_.beside(5.4), role="value", values=[reading], digits=None, cell=cell
    )
    canvas.arrow(S_, o_, role="query", words="read")
    q_ = canvas.matrix(
        "",
        "1 D",
        at=((S_.right[0] + o_.x) / 2, S_.bottom[1] + 2.2),
        role="query",
        values=K[ask : ask + 1],
        digits=None,
        cell=cell,
        label=False,
    )
    canvas.arrow(q_, (q_.top[0], S_.right[1] + 0.2), role="query")
    canvas.text(f"the key of {names[ask]}", at=q_.below(0.3), points=8.5, literal=True)
    _as_sum(canvas, (K_.x - 3.4, K_.bottom[1] + 5.0), leaks, V, names, reading, ask)
    parts = [f"{cell_text(leaks[j], None)} of {names[j]}’s" for j in range(N) if j != ask]
    stored, read = (f"({', '.join(cell_text(x, None) for x in row)})" for row in (V[ask], reading))
    return canvas.picture(
        finding=(
            f"Stored for {names[ask]}: {stored}. Read: {read}, which is 1 of it plus "
            f"{', '.join(parts)}."
        ),
        alt=(
            f"{N} keys [{N}, {D}] and values [{N}, {V.shape[1]}] of {', '.join(names)} are written "
            f"into one state [{D}, {V.shape[1]}]. Asked with the key of {names[ask]} it gives a "
            "reading, which is written below as a weighted sum of all values."
        ),
    )


def _as_sum(
    canvas: Canvas,
    at: tuple[float, float],
    leaks: np.ndarray,
    V: np.ndarray,
    names: Sequence[str],
    reading: np.ndarray,
    ask: int,
) -> None:
    """reading = leak · value + leak · value + …, the values that do not belong there in colour."""
    cell = (1.7, 1.4)
    x, y = at
    place = canvas.text("reading  =", at=Spot(x, y, 0, 0.5), points=10, bold=True)
    for j, leak in enumerate(leaks):
        role = "query" if j == ask else "focus" if abs(leak) > 1e-9 else "hidden"
        sign = "" if j == 0 else "+  "
        weight = f"{sign}{cell_text(leak, None)} ·"
        place = canvas.text(weight, at=place.beside(0.7), points=10, role=role)
        faded = np.full((1, V.shape[1]), role == "hidden")
        place = canvas.matrix(
            "", f"1 {V.shape[1]}", at=place.beside(0.4), role="value", values=V[j : j + 1],
            digits=None, cell=cell, label=False, hidden=faded,
        )  # fmt: skip
        canvas.text(names[j], at=place.below(0.25), points=8.5, literal=True)
    place = canvas.text("=", at=place.beside(0.6), points=12)
    canvas.matrix(
        "", f"1 {V.shape[1]}", at=place.beside(0.6), role="value", values=reading[None],
        digits=None, cell=(2.4, 1.4), label=False,
    )  # fmt: skip


def correction(
    state: object, key: object, value: object, name: str, *, beta: float = 1.0
) -> Picture:
    """One step of the delta rule in numbers: read, subtract from the new value, write the rest.

    ``state`` [D, Dv], ``key`` [D], ``value`` [Dv]. Raises ``ValueError`` for other sizes.
    """
    S = as_array("state", state, ndim=2)
    k, v = as_array("key", key, ndim=1)[None], as_array("value", value, ndim=1)[None]
    D, Dv = S.shape
    if (k.shape[1], v.shape[1]) != (D, Dv):
        raise ValueError(
            f"state: expected shape {[k.shape[1], v.shape[1]]} for this key and value, "
            f"got {[D, Dv]}"
        )
    old = k @ S
    difference = v - old
    after = S + beta * k.T @ difference
    canvas = Canvas(_unit(4 * 2.4 * Dv + 20), D=D, Dv=Dv)
    look: dict[str, Any] = {"digits": None, "cell": (2.4, 1.6)}
    before = canvas.matrix("state", "D Dv", at=(0, 0), role="state", values=S, **look)
    stored = canvas.matrix(
        "", "1 Dv", at=before.beside(6.6), role="value", values=old, label=False, **look
    )
    canvas.text("what it reads", at=stored.above(0.35), points=9)
    canvas.arrow(before, stored, role="query", words=f"1. read\nwith {name}’s key")
    fresh = canvas.matrix(
        "", "1 Dv", at=stored.below(4.0), role="value", values=v, label=False, **look
    )
    canvas.text("the new value", at=fresh.below(0.35), points=9)
    turn = stored.right[0] + 3.6
    minus = canvas.dot((turn, (stored.centre[1] + fresh.centre[1]) / 2), "−", role="focus")
    canvas.arrow(stored, (turn, stored.right[1]), minus, role="value")
    canvas.arrow(fresh, (turn, fresh.right[1]), minus, role="value")
    change = canvas.matrix(
        "", "1 Dv", at=minus.beside(2.4), role="focus", values=difference, label=False, **look
    )
    canvas.text("2. the difference", at=change.below(0.35), points=9, role="focus")
    canvas.arrow(minus, change, role="focus")
    end = canvas.matrix(
        "new state",
        "D Dv",
        at=Spot(change.right[0] + 4.2, 0, 0, 0.5),
        role="state",
        values=after,
        **look,
    )
    amount = "it" if beta == 1 else f"{cell_text(beta, None)} of it"
    corner = (end.bottom[0], change.right[1])
    canvas.arrow(change, corner, end, role="focus")
    words = f"3. write {amount}\nwith {name}’s key"
    canvas.text(words, at=Spot(corner[0] - 0.5, corner[1] + 0.5, 0.5, 0), points=8.5, role="focus")
    was, wanted, reads = (
        f"({', '.join(cell_text(float(x), None) for x in row[0])})" for row in (old, v, k @ after)
    )
    return canvas.picture(
        finding=f"{name}’s key reads {was}, the new value is {wanted}; after the write it reads "
        f"{reads}.",
        alt=(
            f"A state [{D}, {Dv}] is read with {name}’s key. The reading is subtracted from the "
            "new value, and the difference is written into the state with the same key."
        ),
    )


@styled
def leaks(matrices: Mapping[str, object], names: Sequence[str], *, columns: int = 3) -> Picture:
    """Leak matrices [N, N], title → L: row i says how much of each value stands in reading i.

    All share one scale around 0; rows of three (``columns``) stand under each other. Each title
    has the error, the root of the mean square of a row of L − I: for independent random values of
    one size with mean 0 that is how wrong a reading is. Raises ``ValueError`` for another shape.
    """
    require_some("matrices", matrices)
    arrays = {title: as_array(title, L, ndim=2) for title, L in matrices.items()}
    N = len(names)
    for title, L in arrays.items():
        if L.shape != (N, N):
            raise ValueError(f"{title}: expected shape {[N, N]}, got {list(L.shape)}")
    errors = {
        title: float(np.sqrt(((L - np.eye(N)) ** 2).sum(1).mean())) for title, L in arrays.items()
    }
    across = min(columns, len(arrays))
    down = -(-len(arrays) // across)
    figure = new_figure(3.05 * across, 3.05 * down + 0.2)
    grid = figure.subplots(down, across, squeeze=False)
    norm = signed_norm(np.concatenate([L.ravel() for L in arrays.values()]))
    for axes in grid.flat[len(arrays) :]:
        axes.axis("off")
    for place, (axes, (title, L)) in enumerate(zip(grid.flat, arrays.items(), strict=False)):
        image, printed = draw_matrix(axes, L, signed=True, digits=1 if N <= 7 else None)
        image.set_norm(norm)
        for text, value in zip(printed, L.ravel(), strict=False):
            text.set_color(readable_on(image.cmap(norm(value))))
        left = place % across == 0
        label_tokens(axes, rows=names if left else None, columns=names, upright=False)
        if not left:
            axes.set_yticks([])
        axes.set_title(f"{title}\nerror {number(errors[title], 2)}")
        axes.set(xlabel="whose value", ylabel="whose reading" if left else "")
    told = "; ".join(
        f"{title}: error ≈ {number(errors[title], 2)}, {_largest_leak(L, names)}"
        for title, L in arrays.items()
    )
    return Picture(
        figure,
        finding=f"{N} names. {told}.",
        alt=(
            f"{len(arrays)} square tables of {N} names, {', '.join(arrays)}: rows are readings, "
            "columns the values that stand in them. A perfect memory has 1 on the diagonal and 0 "
            "elsewhere."
        ),
    )


def _largest_leak(L: np.ndarray, names: Sequence[str]) -> str:
    others = np.abs(L - np.diag(np.diagonal(L)))
    reading, value = np.unravel_index(others.argmax(), L.shape)
    if others.max() < 1e-9:
        return "no leak"
    leak = number(float(L[reading, value]), 2)
    return f"largest leak ≈ {leak}, of {names[value]}’s value in {names[reading]}’s reading"


def what_is_left(
    weights: Mapping[str, object], writes: Sequence[str], readings: Sequence[str]
) -> Picture:
    """How much of each write stands in each reading, a matrix for each rule of writing.

    Rule → weights [readings, writes]. Raises ``ValueError`` for another shape.
    """
    require_some("weights", weights)
    arrays = {rule: as_array(rule, rows, ndim=2) for rule, rows in weights.items()}
    shape = (len(readings), len(writes))
    for rule, rows in arrays.items():
        if rows.shape != shape:
            raise ValueError(f"{rule}: expected shape {list(shape)}, got {list(rows.shape)}")
    canvas = Canvas(unit=0.22, R=shape[0], N=shape[1])
    place: Place | None = None
    for rule, rows in arrays.items():
        at = (0.0, 0.0) if place is None else place.beside(1.6 if place else 0)
        first = place is None
        place = canvas.matrix(
            rule, "R N", at=at, values=rows, shade=rows, digits=None, cell=(2.9, 1.7), label=False
        )
        canvas.text(rule, at=place.above(0.4), points=10.5, bold=True)
        for column, write in enumerate(writes):
            canvas.text(write, at=place.column(column).below(0.35), points=8.5, literal=True)
        canvas.text("written, in this order →", at=place.below(2.2), points=8.5)
        if first:
            canvas.text("reading of", at=Spot(place.x - 0.6, place.y - 0.4, 1, 1), points=8.5)
            for row, reading in enumerate(readings):
                canvas.text(reading, at=place.row(row).before(0.6), points=9.5, literal=True)
    told = "; ".join(
        f"{rule}: {', '.join(cell_text(float(x), None) for x in rows[0])}"
        for rule, rows in arrays.items()
    )
    return canvas.picture(
        finding=f"Weights of {', '.join(w.replace(chr(10), ' ') for w in writes)} in what "
        f"{readings[0]} reads: {told}.",
        alt=(
            f"{len(arrays)} small tables, one for each rule ({', '.join(arrays)}). A row is a "
            f"reading ({', '.join(readings)}), a column a write, a number how much of it is left."
        ),
    )


def sheets(bytes_needed: Mapping[str, float]) -> Picture:
    """Squares as large as what must be kept: label → bytes, to scale, from left to right.

    The first is what shall be kept, the others are states that keep it. Raises ``ValueError`` for
    what is not above 0.
    """
    require_some("bytes_needed", bytes_needed)
    sizes = {label: float(as_array(label, size, ndim=0)) for label, size in bytes_needed.items()}
    canvas = Canvas(unit=0.22)
    per = max(sizes.values()) / WIDE**2
    x = 0.0
    for place, (label, size) in enumerate(sizes.items()):
        role = "value" if place == 0 else "state"
        area = canvas.area("", size, Spot(x, 0, 0, 1), per=per, role=role, widest=2 * WIDE)
        written = canvas.text(f"{label}\n{_kilobytes(size)}", at=area.above(0.5), points=9.5)
        x = max(area.right[0], written.right[0]) + 5.0
    told = ", ".join(f"{label} {_kilobytes(size)}" for label, size in sizes.items())
    return canvas.picture(
        finding=f"What must be kept: {told}.".replace("\n", " "),
        alt=f"Squares to scale, side by side: {', '.join(sizes)}.".replace("\n", " "),
    )


def _kilobytes(size: float) -> str:
    return f"{number(size / 1_000, 1 if size < 100_000 else 0)} KB"


def _unit(width: float) -> float:
    """The unit in inches at which so many of them are no wider than a notebook."""
    return min(0.22, 9.2 / width)


def _require_pairs(N: int, n_values: int, names: Sequence[str], ask: int) -> None:
    if not N == n_values == len(names):
        raise ValueError(
            f"keys: expected one for each of {n_values} values and of {len(names)} names, got {N}"
        )
    if not 0 <= ask < N:
        raise ValueError(f"ask: expected a pair’s number from 0 to {N - 1}, got {ask}")
