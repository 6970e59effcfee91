"""Pictures of notebook 07: cache and register, a sum of products, the forms, two pasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle

from course.inputs import require_positive
from course.plots.diagrams import bare
from course.plots.drawing import Canvas, cell_text
from course.plots.parts import as_array, draw_matrix, require_some, signed_norm
from course.plots.places import Spot
from course.plots.sheet import ROLES
from course.plots.style import COLOURS, Picture, new_figure, styled

WORDS = ("the", "cat", "lay", "on", "the", "mat")


def cache_and_register(
    words: Sequence[str] = WORDS, *, D: int = 3, Dv: int = 2, moments: Sequence[int] = (1, 3, 6)
) -> Picture:
    """What is kept after so many words: above a cache that grows, below a register that does not.

    The register holds S [D, Dv] and z [D]. Raises ``ValueError`` for sizes below 1, and for
    ``moments`` that are not rising numbers of words.
    """
    rising = sorted(set(moments)) == list(moments) and len(moments) > 0
    if not rising or not (moments[0] >= 1 and moments[-1] <= len(words)):
        raise ValueError(
            f"moments: expected rising numbers from 1 to {len(words)}, got {list(moments)}"
        )
    canvas = Canvas(unit=0.22, D=D, Dv=Dv)
    pitch = D + Dv + 9.0
    floor = moments[-1] + 3.0
    for place, count in enumerate(moments):
        left = place * pitch
        keys = canvas.matrix("keys", f"{count} D", at=Spot(left, 0, 0, 0), role="key", label=False)
        values = canvas.matrix(
            "values",
            f"{count} Dv",
            at=Spot(keys.right[0] + 0.6, 0, 0, 0),
            role="value",
            label=False,
        )
        middle = left + (D + Dv + 0.6) / 2
        many = f"after {count} words" if count > 1 else "after 1 word"
        canvas.text(many, at=Spot(middle, -1.0, 0.5, 1), points=10, bold=True)
        for row, word in enumerate(words[:count]):
            spot = Spot(left - 0.5, keys.row(row).left[1], 1, 0.5)
            canvas.text(word, at=spot, points=8.5, literal=True)
        if count == moments[-1]:
            for name, table, role in (("keys", keys, "key"), ("values", values, "value")):
                canvas.text(name, at=table.below(0.4), points=9, role=role)
        held = canvas.matrix(
            "state", "D Dv", at=Spot(left + D + 0.6, floor, 0, 0), role="state", label=False
        )
        canvas.matrix("sum", "D 1", at=Spot(left, floor, 0, 0), role="state", label=False)
        for name, x in (("$z$", left + 0.5), ("$S$", held.centre[0])):
            canvas.text(name, at=Spot(x, floor + D + 0.3, 0.5, 0), points=11)
    side = -5.5
    canvas.text("cache", at=Spot(side, 0.5, 1, 0.5), points=10.5, bold=True)
    canvas.text("register", at=Spot(side, floor + D / 2, 1, 0.5), points=10.5, bold=True)
    caches = [count * (D + Dv) for count in moments]
    after, kept = (_listed(numbers) for numbers in (moments, caches))
    after += " word" if moments[-1] == 1 else " words"
    return canvas.picture(
        finding=(
            f"After {after} the cache keeps {kept} numbers, the register {D * Dv + D} each time."
        ),
        alt=(
            f"Two rows of tables after {after} of “{' '.join(words)}”. Above, the cache: a "
            f"key of {D} and a value of {Dv} numbers per word, one row more for each word. Below, "
            f"the register: a table S [{D}, {Dv}] and a column z [{D}], always of one size."
        ),
    )


def _listed(numbers: Sequence[int]) -> str:
    *some, last = map(str, numbers)
    return f"{', '.join(some)} and {last}" if some else last


def sum_of_products(keys: object, values: object, *, z: bool = False) -> Picture:
    """The state as a sum: of every token the table of its key times its value, in numbers.

    ``keys`` [T, C], ``values`` [T, Dv]. Each token is drawn as a multiplication table: its key at
    the side, its value above. ``z``: the last value is a 1, and its column of the sum is z.
    Raises ``ValueError`` for another number of values, and with ``z`` for a last value not 1.
    """
    K, V = as_array("keys", keys, ndim=2), as_array("values", values, ndim=2)
    (T, C), (n_values, Dv) = K.shape, V.shape
    if n_values != T or not T:
        raise ValueError(f"keys: expected one for each of {n_values} values, got {T}")
    if z and (V[:, -1] != 1).any():
        raise ValueError(f"values: expected 1 in the last column, got {V[:, -1].tolist()}")
    wide = (2.2, 1.6)
    total = (T + 1) * (wide[0] * (Dv + 1) + 4.6)
    canvas = Canvas(min(0.22, 9.2 / total), C=C, Dv=Dv)
    look: dict[str, Any] = {"digits": None, "cell": wide, "label": False}
    x = 0.0
    for t in range(T):
        k = canvas.matrix("", "C 1", at=Spot(x, 0, 0, 0), role="key", values=K[t : t + 1].T, **look)
        product = canvas.matrix(
            "", "C Dv", at=k.beside(0.5), role="plain", values=np.outer(K[t], V[t]), **look
        )
        v = canvas.matrix(
            "", "1 Dv", at=product.above(0.5), role="value", values=V[t : t + 1], **look
        )
        canvas.text(f"$k_{t + 1}$", at=k.below(0.3), points=11, role="key")
        canvas.text(f"$v_{t + 1}$", at=v.above(0.3), points=11, role="value")
        canvas.text(f"$k_{t + 1} v_{t + 1}^\\top$", at=product.below(0.3), points=11)
        sign = canvas.text("+" if t < T - 1 else "=", at=product.beside(1.0), points=15)
        x = sign.right[0] + 1.0
    S = K.T @ V
    held = canvas.matrix(
        "", "C Dv", at=Spot(x, 0, 0, 0), role="state", values=S,
        columns=[Dv - 1] if z else [], **look,
    )  # fmt: skip
    if z:
        canvas.text("$z$", at=held.column(Dv - 1).above(0.4), points=11, role="state")
    canvas.text("$S$", at=held.below(0.3), points=12, role="state")
    rows = "; ".join(", ".join(cell_text(float(number), None) for number in row) for row in S)
    last = f", and its last column is z = {', '.join(cell_text(float(n), None) for n in S[:, -1])}"
    return canvas.picture(
        finding=(
            f"{T} products k vᵀ, added up, leave one table of {C} × {Dv} numbers: {rows}"
            f"{last if z else ''}."
        ),
        alt=(
            f"{T} multiplication tables in a row, one per token: its key, {C} numbers, beside it, "
            f"its value, {Dv} numbers, above. Plus signs stand between them, then an equals sign "
            "and the state S, their sum."
        ),
    )


def one_sheet(keys: object, first: object, second: object) -> Picture:
    """Two caches with other values, and the one state that both leave.

    ``keys`` [T, C], ``first`` and ``second`` [T, Dv]. Raises ``ValueError`` for other numbers of
    values, and if the two states are not equal.
    """
    K = as_array("keys", keys, ndim=2)
    pasts = [as_array(name, x, ndim=2) for name, x in (("first", first), ("second", second))]
    for V in pasts:
        if V.shape != (len(K), pasts[0].shape[1]):
            raise ValueError(
                f"values: expected shape {[len(K), pasts[0].shape[1]]}, got {list(V.shape)}"
            )
    states = [K.T @ V for V in pasts]
    if not np.allclose(states[0], states[1], atol=1e-9):
        raise ValueError(
            f"second: expected the state {states[0].tolist()} again, got {states[1].tolist()}"
        )
    canvas = Canvas(unit=0.22, T=len(K), C=K.shape[1], Dv=pasts[0].shape[1])
    look: dict[str, Any] = {"digits": None, "cell": (2.2, 1.6), "label": False}
    held = canvas.matrix("", "C Dv", at=(0, 0), role="state", values=states[0], **look)
    canvas.text("one register", at=held.above(0.6), points=10, bold=True)
    canvas.text("$S$", at=held.below(0.4), points=12, role="state")
    for side, V in zip((-1, 1), pasts, strict=True):
        wide = 2.2 * (K.shape[1] + V.shape[1]) + 0.6
        left = -wide - held.width / 2 - 6.0 if side < 0 else held.width / 2 + 6.0
        k = canvas.matrix("", "T C", at=Spot(left, 0, 0, 0.5), role="key", values=K, **look)
        v = canvas.matrix("", "T Dv", at=k.beside(0.6), role="value", values=V, **look)
        name = "one cache" if side < 0 else "another cache"
        spot = Spot(left + wide / 2, k.y - 0.6, 0.5, 1)
        canvas.text(name, at=spot, points=10, bold=True)
        canvas.text("keys", at=k.below(0.4), points=9, role="key")
        canvas.text("values", at=v.below(0.4), points=9, role="value")
        canvas.arrow(v if side < 0 else k, held, role="state", words="add up", width=2)
    moved = float(np.abs(pasts[1] - pasts[0]).max())
    return canvas.picture(
        finding=(
            f"Two caches of {len(K)} keys and values, values apart by up to "
            f"{cell_text(moved, None)}, leave one register: "
            f"{'; '.join(', '.join(cell_text(float(x), None) for x in row) for row in states[0])}."
        ),
        alt=(
            f"Left and right a cache: the same {len(K)} keys, and different values. An arrow from "
            "each leads to one state S in the middle, the sum of key times value."
        ),
    )


@styled
def four_forms(*, finding: str, T: int = 9, chunk: int = 3) -> Picture:
    """What the four forms of linear attention compute and keep, for ``T`` tokens.

    A row is a token. Left in each panel the scores that are computed, right the states S that are
    kept (filled) or were overwritten (outlined).
    """
    require_positive("T", T)
    require_positive("chunk", chunk)
    figure = new_figure(9.2, 2.7)
    place = np.arange(T)
    same = place[:, None] // chunk == place // chunk
    past = place[:, None] >= place
    ends = (place + 1) % chunk == 0
    forms = {
        "parallel: a book": (past, np.zeros(T), np.zeros(T)),
        "scan: a sheet per word": (np.zeros((T, T)), np.ones(T), np.ones(T)),
        "recurrent: a story": (np.zeros((T, T)), place == T - 1, np.ones(T)),
        "chunk: chapters": (past & same, place == T - 1, ends | (place == T - 1)),
    }
    for axes, (title, (scores, kept, made)) in zip(
        figure.subplots(1, len(forms)), forms.items(), strict=True
    ):
        for row, column in np.argwhere(past):
            colour = COLOURS[0] if scores[row, column] else "#f1f3f5"
            axes.add_patch(Rectangle((column, row), 0.9, 0.9, facecolor=colour))
        for row in np.flatnonzero(made):
            fill = ROLES["state"] if kept[row] else "white"
            axes.add_patch(
                Rectangle(
                    (T + 1.05, row + 0.05),
                    0.8,
                    0.8,
                    facecolor=fill,
                    edgecolor=ROLES["state"],
                    lw=1.2,
                )
            )
        axes.set(xlim=(-0.4, T + 2.4), ylim=(T + 0.2, -0.4), title=title, yticks=[])
        axes.set_xticks([T / 2, T + 1.45], ["scores", "S"])
        axes.tick_params(length=0)
        axes.set_aspect("equal")
        bare(axes)
    figure.axes[0].set_ylabel("token")
    alt = (
        f"Four panels for {T} tokens, a row a token. Parallel: every score of the lower triangle, "
        "no state. Scan: no score, a state kept for every token. Recurrent: no score, one state, "
        f"overwritten at every token. Chunk: small triangles of {chunk} tokens on the diagonal, "
        "and one state, overwritten at the end of each."
    )
    return Picture(figure, alt=alt, finding=finding)


@styled
def two_pasts(pasts: Mapping[str, tuple[object, object]], *, finding: str) -> Picture:
    """Title → (values [T, Dv], state [C, Dv]): the values as strips, the states as numbers.

    All values share one scale, all states another; both are centred on 0.
    """
    require_some("pasts", pasts)
    values = [as_array(title, one, ndim=2).T for title, (one, _) in pasts.items()]
    states = [as_array(title, state, ndim=2) for title, (_, state) in pasts.items()]
    figure = new_figure(9.2, 1.7 * len(pasts) + 0.3)
    grid = figure.subplots(len(pasts), 2, width_ratios=[2.6, 1], squeeze=False)
    for axes, title, strip, state in zip(grid, pasts, values, states, strict=True):
        for one, matrix, everything in ((axes[0], strip, values), (axes[1], state, states)):
            digits = None if matrix is strip else 1
            image, _ = draw_matrix(one, matrix, signed=True, digits=digits)
            image.set_norm(signed_norm(np.concatenate(everything)))
            one.set_aspect("auto")
            one.set(xticks=[], yticks=[])
        axes[0].set_title(f"{title}: {strip.shape[1]} values")
        axes[1].set_title("state S")
        axes[0].set(xlabel="token", ylabel="coordinate")
        axes[1].set(xlabel="coordinate", ylabel="feature")
    alt = (
        f"For each of {', '.join(pasts)}: a coloured strip of the values over the tokens, and the "
        "state they leave as a table of numbers."
    )
    return Picture(figure, alt=alt, finding=finding)
