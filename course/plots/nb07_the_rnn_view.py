"""Pictures of notebook 07: the four forms, and two pasts that leave one state."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.patches import Rectangle

from course.inputs import require_positive
from course.plots.diagrams import bare
from course.plots.parts import as_array, draw_matrix, require_some, signed_norm
from course.plots.style import COLOURS, Picture, new_figure, styled


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
        "scan: a sheet a word": (np.zeros((T, T)), np.ones(T), np.ones(T)),
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
            fill = COLOURS[1] if kept[row] else "white"
            axes.add_patch(
                Rectangle(
                    (T + 1.05, row + 0.05), 0.8, 0.8, facecolor=fill, edgecolor=COLOURS[1], lw=1.2
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
