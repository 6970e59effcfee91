"""Pictures of notebook 05: three prices over the length, what is kept, who shares keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course.inputs import require_positive
from course.plots.drawing import Canvas
from course.plots.parts import as_array, require_some
from course.plots.places import Place, Spot
from course.plots.style import Picture

LARGEST = 10.0  # side of the largest square, in units of the canvas


def prices(mebibytes: Mapping[str, Sequence[float]], lengths: Sequence[int]) -> Picture:
    """What must be stored, as squares to scale: a row a thing, a column a length of the text.

    What grows with the length is coloured. ``mebibytes``: name → one amount for each of
    ``lengths``. Raises ``ValueError`` for amounts that are not above 0, and for a row of another
    length.
    """
    require_some("mebibytes", mebibytes)
    rows = {name: as_array(name, amounts, ndim=1) for name, amounts in mebibytes.items()}
    for name, row in rows.items():
        if len(row) != len(lengths) or not len(row) or not (row > 0).all():
            raise ValueError(
                f"{name}: expected {len(lengths)} amounts above 0, one a length, got {row.tolist()}"
            )
    canvas = Canvas(unit=0.2)
    per = max(row.max() for row in rows.values()) / LARGEST**2
    sides = {name: (row / per) ** 0.5 for name, row in rows.items()}
    widths = [max(6.5, *(side[place] for side in sides.values())) for place in range(len(lengths))]
    lefts = [sum(widths[:place]) + 2.0 * place for place in range(len(lengths))]
    for x, width, length in zip(lefts, widths, lengths, strict=True):
        canvas.text(f"{length:,} tokens", at=(x + width / 2, 0), points=10, bold=True)
    y = 1.5
    for name, row in rows.items():
        y += max(1.2, *sides[name])
        role = "plain" if row.min() == row.max() else "focus"
        canvas.text(name, at=Spot(-1.0, y - 0.6, 1, 0.5), points=10, bold=True)
        for x, width, amount in zip(lefts, widths, row, strict=True):
            square = canvas.area("", amount, Spot(x + width / 2, y, 0.5, 1), per=per, role=role)
            canvas.text(_size(amount), at=square.below(0.3), points=9)
        y += 2.6
    flat = {name.replace("\n", " "): row for name, row in rows.items()}
    told = "; ".join(
        f"{name} {', '.join(_size(amount) for amount in row)}" for name, row in flat.items()
    )
    return canvas.picture(
        finding=f"At {', '.join(f'{T:,}' for T in lengths)} tokens: {told}.",
        alt=(
            f"A table of squares to scale, a row each for {', '.join(flat)}, a column for each "
            f"length of the text. {told}."
        ),
    )


def cache_and_state(tokens: Sequence[int] = (2, 4, 8), *, D: int = 4, C: int = 4) -> Picture:
    """A cache that grows beside a state that does not, and a state with a row for every token.

    After each number of ``tokens``: keys and values [t, D] each, a state [C, D], and a state
    [t, D]. Raises ``ValueError`` for sizes below 1 and for no tokens.
    """
    for name, count in (("D", D), ("C", C), *(("tokens", t) for t in tokens)):
        require_positive(name, count)
    if not tokens:
        raise ValueError("tokens: expected at least one number of tokens, got none")
    canvas = Canvas(unit=0.17, D=D, C=C)
    pitch = 2 * D + 6.5
    most = max(tokens)
    tops = 3.2, 3.2 + most + 5.0, 3.2 + most + C + 10.0
    names = "cache:\nkeys and values", "state of\nfixed size", "state with a row\nfor every token"
    for name, top, high in zip(names, tops, (most, C, most), strict=True):
        canvas.text(name, at=Spot(-2.0, top + high / 2, 1, 0.5), points=10, bold=True)
    for place, t in enumerate(tokens):
        x, size = pitch * place, str(t)
        canvas.text(
            f"after {t} token{'s' if t > 1 else ''}", at=(x + D + 0.5, 0), points=10, bold=True
        )
        key = canvas.matrix("", f"{size} D", at=Spot(x, tops[0], 0, 0), role="key", label=False)
        value = canvas.matrix("", f"{size} D", at=key.beside(1.0), role="value", label=False)
        _count(canvas, 2 * t * D, Place(key.x, key.y, value.right[0] - key.x, key.height))
        for top, rows in ((tops[1], "C"), (tops[2], size)):
            at = Spot(x + D + 0.5, top, 0.5, 0)
            state = canvas.matrix("", f"{rows} D", at=at, role="state", label=False)
            _count(canvas, (C if rows == "C" else t) * D, state)
    kept, exact = (", ".join(str(n * t * D) for t in tokens) for n in (2, 1))
    times = ", ".join(map(str, tokens))
    return canvas.picture(
        finding=(
            f"After {times} tokens a cache holds {kept} numbers, a state of {C} × {D} always "
            f"{C * D}, a state with a row for every token {exact}."
        ),
        alt=(
            f"Three rows of matrices to scale, after {times} tokens. The cache gets a row of keys "
            "and a row of values with every token; the state of fixed size stays as it is; the "
            "state with a row for every token grows as the cache does."
        ),
    )


def shared_heads(H: int = 4, groups: int = 2, *, D: int = 3, latent: int = 5) -> Picture:
    """Multi-head, grouped, multi-query and latent attention: what one token leaves in the cache.

    ``H`` query heads, keys and values of width ``D`` each, a latent vector of ``latent`` numbers.
    Raises ``ValueError`` for sizes below 1 and for ``groups`` that do not divide ``H``.
    """
    for name, size in (("H", H), ("groups", groups), ("D", D), ("latent", latent)):
        require_positive(name, size)
    if H % groups:
        raise ValueError(f"groups: expected a divisor of {H}, got {groups}")
    canvas = Canvas(unit=0.18, D=D, C=latent)
    down, cell = 2.2, 0.8
    kinds = {"multi-head": H, "grouped": groups, "multi-query": 1, "latent": 0}
    wide = cell * max(2 * D, latent)
    kept = {}
    for place, (kind, heads) in enumerate(kinds.items()):
        x = place * (wide + 7.4)
        canvas.text(kind, at=(x + (wide + 4.0) / 2, -2.4), points=10.5, bold=True)
        queries = [
            canvas.box(f"$q_{h + 1}$", at=(x, down * h), role="query", size=(1.7, 1.5))
            for h in range(H)
        ]
        each = H // max(heads, 1)
        for head in range(max(heads, 1)):
            middle = down * (head * each + (each - 1) / 2)
            at = Spot(x + 4.2, middle, 0, 0.5)
            if heads:
                first = canvas.matrix("", "1 D", at=at, role="key", cell=cell, label=False)
                canvas.matrix("", "1 D", at=first.beside(0), role="value", cell=cell, label=False)
            else:
                first = canvas.matrix("", "1 C", at=at, role="state", cell=cell, label=False)
            for query in queries[head * each : (head + 1) * each]:
                canvas.arrow(first.left, query, role="key" if heads else "state", width=1.2)
        kept[kind] = 2 * D * heads if heads else latent
        words = f"{kept[kind]} numbers per token"
        canvas.text(words, at=(x + (wide + 4.0) / 2, down * H), points=9.5)
    told = ", ".join(f"{kind} {numbers}" for kind, numbers in kept.items())
    return canvas.picture(
        finding=f"{H} query heads. Numbers kept per token: {told}.",
        alt=(
            f"Four panels, each with {H} queries and what is kept of one token. Multi-head: a key "
            f"and a value for each query head. Grouped: {groups} of them, each for "
            f"{H // groups} query heads. Multi-query: one for all. Latent: one vector, from which "
            "each head makes its own key and value."
        ),
    )


def _count(canvas: Canvas, numbers: int, thing: Place) -> None:
    canvas.text(f"{numbers} numbers", at=thing.below(0.4), points=9)


def _size(mebibytes: float) -> str:
    if mebibytes >= 1_000:
        return f"{mebibytes / 1_024:,.3g} GiB"
    return f"{mebibytes:,.3g} MiB"
