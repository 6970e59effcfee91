"""Pictures: what is drawn, what is said, and that the bytes never change by themselves."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import threading

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from PIL import Image

from course import plots
from course.cost import Machine
from course.plots import Picture

X = np.arange(1, 9)
TOKENS = ["the", "cat", "sat", "on", "$mat$"]
WEIGHTS = np.tril(np.ones((5, 5))) / np.arange(1, 6)[:, None]


def decode(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png))


def make_all() -> dict[str, Picture]:
    return {
        "heatmap": plots.heatmap(WEIGHTS, TOKENS, finding="rows of 1/t"),
        "heatmaps": plots.heatmaps(
            {"scores": WEIGHTS - 0.5, "weights": WEIGHTS}, TOKENS, signed=[True, False], finding="f"
        ),
        "law": plots.law_and_points(
            {"a": (X, 1 / X)},
            {"a": (X, 1.1 / X, 1 / X, 1.2 / X)},
            xlabel="x",
            ylabel="y",
            finding="f",
        ),
        "curves": plots.curves(
            {"a": (X, X), "b": (X, X**2)}, floor=("floor", 4.3), xlabel="x", ylabel="y", finding="f"
        ),
        "bars": plots.bars(
            {"none": 6.1, "mean": 24.3},
            floor=("best", 4.3),
            intervals={"mean": (20.0, 28.0)},
            xlabel="perplexity",
            finding="f",
        ),
        "roofline": plots.roofline(
            [Machine("slow", 1e13, 1e11), Machine("fast", 1e14, 1e12)],
            {"a": 1.0, "b": 1_000.0},
            finding="f",
        ),
        "traffic": plots.traffic(
            {"naive": {"q": 1, "scores": -32}, "tiled": {"q, k, v": 20, "o": -0.5}}, finding="f"
        ),
        "four forms": plots.four_forms(finding="f", T=7, chunk=3),
        "two pasts": plots.two_pasts(
            {"a": (WEIGHTS - 0.5, WEIGHTS[:3]), "b": (WEIGHTS, WEIGHTS[:3])}, finding="f"
        ),
        "tiles": plots.tiles(np.tri(10, 14, 4), 4, program=1, finding="f"),
        "clouds": plots.clouds(
            {"a": (X - 4, 2.0 * X - 5), "b": (X, X)},
            ("e^x", X, np.exp(X)),
            xlabel="x",
            ylabel="y",
            finding="f",
        ),
        "ratios": plots.ratios(
            X,
            {"a": np.outer(X / 4, [0.5, 1, 1.5]), "b": np.outer(X / 99, [1, 1])},
            {"a": 4.0, "b": np.inf},
            xlabel="x",
            ylabel="y",
            finding="f",
        ),
        "panels": plots.panels(
            {"loss": {"a": (X, X), "a, worse": (X, 2 * X)}, "spread": {"b": (X, 50.0**X)}},
            xlabel="step",
            dashed=["a, worse"],
            logy=["spread"],
            ticks=[1, 8],
            finding="f",
        ),
    }


@pytest.fixture(scope="module")
def pictures() -> dict[str, Picture]:
    return make_all()


@pytest.fixture(scope="module")
def images(pictures) -> dict[str, bytes]:
    return {name: picture.png() for name, picture in pictures.items()}


def test_a_picture_displays_as_png_with_alt_text_and_compares_as_its_finding() -> None:
    picture = plots.heatmap(WEIGHTS, TOKENS, finding="Row t is 1/t.", alt="Lower triangle.")
    data, metadata = picture._repr_mimebundle_()
    assert set(data) == {"image/png", "text/plain"}
    assert data["text/plain"] == repr(picture) == "Row t is 1/t."
    assert metadata["image/png"]["alt"] == "Lower triangle."
    width, height = decode(data["image/png"]).size
    shown = metadata["image/png"]
    assert shown["width"] * 1.5 == pytest.approx(width, abs=2)  # 144 pixels on 96
    assert shown["height"] * 1.5 == pytest.approx(height, abs=2)


@pytest.mark.parametrize("argument", ["alt", "finding"])
@pytest.mark.parametrize("text", ["", "  ", "two\nlines", None, 3])
def test_a_picture_without_words_is_refused(argument: str, text: object) -> None:
    words = {"alt": "a", "finding": "f"} | {argument: text}
    with pytest.raises(ValueError, match=f"^{argument}: expected one non-empty line"):
        Picture(Figure(), **words)


def test_every_picture_has_alt_text_of_its_own_if_none_is_given(pictures) -> None:
    for name, picture in pictures.items():
        assert len(picture.alt) > 20, name


def test_the_bytes_depend_on_nothing_but_what_is_drawn(images) -> None:
    for (name, data), again in zip(images.items(), make_all().values(), strict=True):
        assert data == again.png(), name
        kinds, place = [], 8
        while place < len(data):
            length, kind = struct.unpack(">I4s", data[place : place + 8])
            kinds.append(kind)
            place += length + 12
        assert set(kinds) == {b"IHDR", b"IDAT", b"IEND"}, name  # no date, no software, no text


def test_pictures_are_opaque_white_at_the_edge_and_all_inside(images) -> None:
    for name, data in images.items():
        image = decode(data)
        assert image.mode == "RGB"
        pixels = np.asarray(image)
        for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
            assert (edge == 255).all(), name


def test_the_course_style_ends_where_the_picture_is_made() -> None:
    before = dict(matplotlib.rcParams)
    plots.bars({"a": 1.0}, xlabel="x", finding="f").png()
    assert dict(matplotlib.rcParams) == before
    with pytest.raises(RuntimeError), plots.style():
        matplotlib.rcParams["lines.linewidth"] = 40
        raise RuntimeError
    assert dict(matplotlib.rcParams) == before


def test_styles_in_two_threads_leave_the_settings_as_they_were() -> None:
    before = dict(matplotlib.rcParams)
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with plots.style():
            inside.set()
            leave.wait(10)

    def follow() -> None:
        with plots.style():
            pass

    first, second = threading.Thread(target=hold), threading.Thread(target=follow)
    first.start()
    assert inside.wait(10)
    second.start()
    second.join(0.1)
    leave.set()
    first.join()
    second.join()
    assert dict(matplotlib.rcParams) == before


def test_a_readers_own_matplotlib_settings_do_not_show_and_stay(images) -> None:
    """Every setting that a style sheet may set, all of them changed at once."""
    theirs = {
        key: not value if isinstance(value, bool) else value * 2
        for key, value in matplotlib.rcParamsDefault.items()
        if isinstance(value, bool | float | int)
        and key.split(".")[0] in ("axes", "font", "grid", "legend", "lines", "patch", "xtick")
        and key != "axes.formatter.use_locale"
    }
    theirs |= {"image.origin": "lower", "axes.facecolor": "black", "font.family": ["serif"]}
    theirs |= {"axes.prop_cycle": matplotlib.cycler(color="rgb"), "text.color": "red"}
    with matplotlib.rc_context():
        matplotlib.rcParams.update(theirs)
        before = dict(matplotlib.rcParams)
        ours = make_all()
        for name in ("heatmaps", "law", "curves", "bars"):
            assert ours[name].png() == images[name], name
        assert dict(matplotlib.rcParams) == before


def test_no_pyplot() -> None:
    code = "import sys, course.plots, course.widgets; print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_rows_and_columns_may_be_counted_from_1() -> None:
    for first in (0, 1):
        picture = plots.heatmaps({"a": np.eye(12)}, first=first, finding="f")
        image = picture.figure.axes[0].images[0]
        assert image.get_extent() == [first - 0.5, first + 11.5, first + 11.5, first - 0.5]
    small = plots.heatmaps({"a": [[0.25, 0.5]]}, first=1, finding="f").figure.axes[0].texts
    assert [number.get_position() for number in small] == [(1, 1), (2, 1)]
    named = plots.heatmaps({"a": np.eye(2)}, ["x", "y"], first=1, finding="f").figure.axes[0]
    assert [tick.get_position()[0] for tick in named.get_xticklabels()] == [0, 1]


def test_heat_maps_side_by_side_name_their_axes() -> None:
    picture = plots.heatmaps(
        {"a": WEIGHTS, "b": WEIGHTS}, xlabel="looked at", ylabel="looks", finding="f"
    )
    named = [axes.get_xlabel() + "/" + axes.get_ylabel() for axes in picture.figure.axes]
    assert named == ["looked at/looks", "looked at/"]


def test_a_heat_map_draws_its_numbers_and_hides_what_is_masked() -> None:
    hidden = ~np.tri(5, dtype=bool)
    picture = plots.heatmap(torch.from_numpy(WEIGHTS), TOKENS, hidden=hidden, finding="f")
    axes = picture.figure.axes[0]
    drawn = axes.images[0].get_array()
    assert np.array_equal(np.isnan(np.asarray(drawn)), hidden)
    assert np.array_equal(np.asarray(drawn)[~hidden], WEIGHTS[~hidden])
    assert axes.images[0].get_clim() == (0, 1)
    texts = {tuple(map(int, t.get_position()[::-1])): t.get_text() for t in axes.texts}
    assert texts == {(t, i): f"{1 / (t + 1):.2f}" for t in range(5) for i in range(t + 1)}
    assert [t.get_text() for t in axes.get_yticklabels()] == TOKENS
    assert [t.get_text() for t in axes.get_xticklabels()] == TOKENS
    assert not any(t.get_parse_math() for t in axes.get_xticklabels())


def test_a_marked_column_is_framed_and_numbers_grow_with_the_cells() -> None:
    wide = np.full((2, 12), 0.25)
    plain = plots.heatmap(wide, digits=2, finding="f")
    large = plots.heatmap(wide, digits=2, size=9.2, mark=10, finding="f")
    (frame,) = large.figure.axes[0].patches
    assert (frame.get_x(), frame.get_y()) == (9.5, -0.5)
    assert (frame.get_width(), frame.get_height()) == (1, 2)
    assert not plain.figure.axes[0].patches and "framed" not in plain.alt
    assert large.alt.endswith("; column 11 is framed.")
    small, grown = (p.figure.axes[0].texts[0].get_fontsize() for p in (plain, large))
    assert grown == 9 and small == pytest.approx(62 / 12)


def test_signed_maps_have_zero_in_the_middle() -> None:
    picture = plots.heatmap(np.array([[-1.0, 4.0], [0.5, 0.0]]), signed=True, finding="f")
    image = picture.figure.axes[0].images[0]
    assert image.get_clim() == (-4, 4)
    assert plots.signed_norm(np.zeros((2, 2))).vmax == 1
    assert plots.signed_norm(np.array([np.nan, -3.0, -np.inf])).vmin == -3


HALVES = [[0.5, 0.0, 1.0], [0.25, 0.75, 1.0], [1.0, 0.5, 0.25]]  # exact in every dtype below
ROW = HALVES[1]

#: Every public picture, from one way to make a matrix, a row of numbers, and a number.
DRAW = {
    "heatmap": lambda m, r, n: plots.heatmap(m, hidden=m, finding="f"),
    "heatmaps": lambda m, r, n: plots.heatmaps({"a": m}, signed=True, finding="f"),
    "law": lambda m, r, n: plots.law_and_points(
        {"a": (r, r)}, {"a": (r, r, r, r)}, ticks=r, xlabel="x", ylabel="y", finding="f"
    ),
    "curves": lambda m, r, n: plots.curves(
        {"a": (r, r)}, floor=("b", n), xlabel="x", ylabel="y", finding="f"
    ),
    "bars": lambda m, r, n: plots.bars(
        {"a": n}, floor=("b", n), intervals={"a": (n, n)}, xlabel="x", finding="f"
    ),
    "panels": lambda m, r, n: plots.panels(
        {"a": {"b": (r, r)}}, logy=["a"], ticks=r, xlabel="x", finding="f"
    ),
    "clouds": lambda m, r, n: plots.clouds(
        {"a": (r, r)}, ("b", r, r), xlabel="x", ylabel="y", finding="f"
    ),
    "ratios": lambda m, r, n: plots.ratios(
        r, {"a": m}, {"a": n}, ticks=r, xlabel="x", ylabel="y", finding="f"
    ),
    "two pasts": lambda m, r, n: plots.two_pasts({"a": (m, m)}, finding="f"),
    "roofline": lambda m, r, n: plots.roofline([Machine("a", 1e9, 1e9)], {"a": n}, finding="f"),
    "traffic": lambda m, r, n: plots.traffic({"a": {"b": n}}, finding="f"),
    "tiles": lambda m, r, n: plots.tiles(m, 2, finding="f"),
}
KINDS = {
    "bfloat16": lambda x: torch.tensor(x, dtype=torch.bfloat16),
    "float8": lambda x: torch.tensor(x).to(torch.float8_e5m2),
    "a parameter": lambda x: torch.nn.Parameter(torch.tensor(x).half()),
    "sparse": lambda x: torch.tensor(x).to_sparse(),
    "conjugate": lambda x: torch.tensor(x, dtype=torch.complex64).conj().real,
    "NumPy, half": lambda x: np.array(x, np.float16)[()],  # of one number: a NumPy scalar
    "masked, nothing": lambda x: np.ma.array(x, dtype=np.float32),
    "list of tensors": lambda x: (
        [torch.tensor(y, dtype=torch.bfloat16, requires_grad=True) for y in x]
        if isinstance(x, list)
        else np.float32(x)
    ),
}


HOLDS = {
    Line2D: lambda line: line.get_xydata(),
    AxesImage: lambda image: image.get_array(),
    LineCollection: lambda lines: lines.get_segments(),
    Patch: lambda patch: (patch.get_verts(), patch.get_facecolor()),
    Text: lambda text: text.get_text(),
}


def drawn(picture: Picture) -> str:
    """All that the artists of a picture hold, in order."""
    artists = picture.figure.findobj()
    return repr([get(a) for a in artists for kind, get in HOLDS.items() if isinstance(a, kind)])


@pytest.mark.parametrize("name", DRAW)
def test_numbers_of_any_kind_are_drawn_as_the_same_numbers(name: str) -> None:
    plain = drawn(DRAW[name](HALVES, ROW, 0.5))
    for kind, make in KINDS.items():
        assert drawn(DRAW[name](make(HALVES), make(ROW), make(0.5))) == plain, kind
    assert drawn(DRAW[name](HALVES[::-1], ROW[::-1], 0.25)) != plain


@pytest.mark.parametrize("name", DRAW)
@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.tensor(x, device="meta"),
        lambda x: torch.tensor(x, dtype=torch.complex64),
        lambda x: "half",
        lambda x: None,
    ],
    ids=["meta", "complex", "text", "nothing"],
)
def test_what_is_no_number_is_named(name: str, make) -> None:
    with pytest.raises(ValueError, match=r"^\w+: expected (a tensor, array|numbers)"):
        DRAW[name](make(HALVES), make(ROW), make(0.5))


def test_a_map_that_a_mask_hides_whole_is_drawn() -> None:
    assert plots.heatmap(np.ones((3, 3)), hidden=np.ones((3, 3)), finding="f").png()
    assert plots.heatmaps({"a": [[0.5]]}, hidden=[[True]], finding="f").png()


TWO = (np.arange(2), np.arange(3))


@pytest.mark.parametrize(
    ("draw", "arguments", "message"),
    [
        ("heatmap", (np.zeros(4),), r"matrix: expected 2 axes, got shape \[4\]"),
        (
            "heatmap",
            (np.zeros((0, 3)),),
            r"matrix: expected .* one entry, got shape \[0, 3\]",
        ),
        ("heatmap", (WEIGHTS * 3,), "matrix: expected weights in 0…1, or signed=True; got .* to 3"),
        ("heatmap", (WEIGHTS, TOKENS[:4]), "tokens: expected 5 words, got 4"),
        ("heatmaps", ({"a": WEIGHTS * 3},), "a: expected weights in 0…1"),
        ("heatmaps", ({"a": WEIGHTS}, TOKENS[:4]), "tokens: expected 5 words, got 4"),
        ("heatmaps", ({},), "matrices: expected at least one entry, got none"),
        ("curves", ({"a": TWO},), "a: expected one y for each of 2 x, got 3"),
        ("law_and_points", ({"a": TWO}, {}), "a: expected one y for each of 2 x, got 3"),
        ("law_and_points", ({}, {"a": (*TWO, *TWO)}), "a: expected one y for each of 2 x, got 3"),
        ("bars", ({},), "values: expected at least one entry, got none"),
        ("panels", ({},), "groups: expected at least one entry, got none"),
        ("panels", ({"a": {}},), "a: expected at least one entry, got none"),
        ("clouds", ({"a": TWO}, ("b", X, X)), "a: expected one y for each of 2 x, got 3"),
        ("ratios", (X, {"a": WEIGHTS}, {"a": 1}), "a: expected one y for each of 8 x, got 5"),
        ("two_pasts", ({},), "pasts: expected at least one entry, got none"),
        ("roofline", ([], {}), "programs: expected at least one entry, got none"),
        ("traffic", ({},), "programs: expected at least one entry, got none"),
        ("tiles", (WEIGHTS, 0), "tile: expected a whole number of at least 1, got 0"),
    ],
)
def test_pictures_refuse_what_they_cannot_draw(draw, arguments, message) -> None:
    names = {"xlabel": "x"} if draw in ("bars", "panels") else {"xlabel": "x", "ylabel": "y"}
    options = names if draw in ("curves", "law_and_points", "clouds", "ratios") else {}
    options = names if draw in ("bars", "panels") else options
    with pytest.raises(ValueError, match=f"^{message}"):
        getattr(plots, draw)(*arguments, **options, finding="f")


def test_other_arguments_of_maps_are_named() -> None:
    for wrong, message in (
        ({"columns": TOKENS[:2]}, "columns: expected 5 words, got 2"),
        ({"hidden": np.zeros((4, 4))}, r"hidden: expected shape \[5, 5\], got \[4, 4\]"),
        ({"mark": 5}, "mark: expected a column from 0 to 4, got 5"),
        ({"mark": -1}, "mark: expected a column from 0 to 4, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            plots.heatmap(WEIGHTS, **wrong, finding="f")
    with pytest.raises(ValueError, match="signed: expected 1 of them, got 2"):
        plots.heatmaps({"a": WEIGHTS}, signed=[True, False], finding="f")
    for wrong in ({"T": 0}, {"chunk": 0}):
        with pytest.raises(ValueError, match="expected a whole number of at least 1, got 0"):
            plots.four_forms(**wrong, finding="f")


def test_the_law_is_a_line_and_the_measurement_points_with_intervals(pictures) -> None:
    axes = pictures["law"].figure.axes[0]
    law, points = axes.lines[0], axes.containers[0]
    assert np.array_equal(law.get_xydata(), np.stack([X, 1 / X], 1))
    assert law.get_linestyle() == "-"
    data, _, (bars,) = points.lines
    assert np.array_equal(data.get_xydata(), np.stack([X, 1.1 / X], 1))
    assert data.get_linestyle() == "None"
    assert np.allclose([s[:, 1] for s in bars.get_segments()], np.stack([1 / X, 1.2 / X], 1))
    assert to_rgb(law.get_color()) == to_rgb(data.get_color())  # one label, one colour
    picture = plots.law_and_points(
        {"a": (X, X)},
        {"a": (X, X)},
        names=("before", "after"),
        xlabel="x",
        ylabel="y",
        finding="f",
    )
    said = [text.get_text() for text in picture.figure.axes[0].get_legend().get_texts()]
    assert said == ["before: a", "after: a"] and "lines before" in picture.alt


def test_curves_draw_every_line_and_the_floor(pictures) -> None:
    a, b, floor = pictures["curves"].figure.axes[0].lines
    assert np.array_equal(a.get_ydata(), X)
    assert np.array_equal(b.get_ydata(), X**2)
    assert set(floor.get_ydata()) == {4.3}
    assert a.get_color() != b.get_color()


def test_arrows_point_the_way_their_bytes_move(pictures) -> None:
    left, right = pictures["traffic"].figure.axes
    assert (
        left.get_title("left") == "naive: 33 MiB" and right.get_title("left") == "tiled: 20.5 MiB"
    )
    ways = [np.sign(a.get_xy()[:, 0].mean() - 5) for a in left.patches[2:]]
    assert len(ways) == 2 and ways[0] != ways[1]


def test_tiles_are_coloured_by_what_the_mask_lets_through(pictures) -> None:
    axes = pictures["tiles"].figure.axes[0]
    squares = [p for p in axes.patches if p.get_width() == p.get_height() == 4]
    assert len(squares) == 3 * 4
    whole = [p for p in squares if p.get_facecolor()[:3] == to_rgb(plots.COLOURS[0])]
    empty = [p for p in squares if p.get_facecolor()[:3] == to_rgb(plots.HIDDEN)]
    mask = np.zeros((12, 16), dtype=bool)
    mask[:10, :14] = np.tri(10, 14, 4)
    blocks = mask.reshape(3, 4, 4, 4).swapaxes(1, 2)
    # A tile is whole when all of its tokens that exist may look.
    there = np.zeros((12, 16), dtype=bool)
    there[:10, :14] = True
    exist = there.reshape(3, 4, 4, 4).swapaxes(1, 2)
    assert len(whole) == ((blocks | ~exist).all((2, 3))).sum() == 6
    assert len(empty) == (~blocks.any((2, 3))).sum() == 3


def test_clouds_leave_out_what_a_logarithm_cannot_show(pictures) -> None:
    a, b = pictures["clouds"].figure.axes
    assert [len(axes.lines[0].get_ydata()) for axes in (a, b)] == [6, 8]
    assert a.lines[0].get_ydata().min() == 1 and a.get_yscale() == "log"
    for axes in (a, b):
        assert np.array_equal(axes.lines[1].get_ydata(), np.exp(X))


def test_ratios_have_their_spread_and_their_crossing_in_the_picture_alone(pictures) -> None:
    picture = pictures["ratios"]
    axes = picture.figure.axes[0]
    mean = axes.containers[0].lines[0]
    assert np.allclose(mean.get_ydata(), X / 4)
    bars = axes.containers[0].lines[2][0].get_segments()
    assert np.allclose([bar[:, 1] for bar in bars], np.outer(X / 4, [0.5, 1.5]))
    (mark,) = [line for line in axes.lines if line.get_marker() == "X"]
    assert (mark.get_xdata()[0], mark.get_ydata()[0]) == (4.0, 1)
    said = ["a crosses 1 at 4", "b does not cross 1 here"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == said
    assert picture.alt.endswith("for a, b.")
    assert picture.finding == "f"


def test_panels_share_colours_and_one_legend(pictures) -> None:
    figure = pictures["panels"].figure
    loss, spread = figure.axes
    plain, dashed = loss.lines
    assert np.array_equal(dashed.get_ydata(), 2 * X) and dashed.get_linestyle() == "--"
    assert plain.get_color() == dashed.get_color() != spread.lines[0].get_color()
    assert (loss.get_yscale(), spread.get_yscale()) == ("linear", "log")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "a, worse", "b"]
    assert [label.get_text() for label in loss.get_xticklabels()] == ["1", "8"]


def test_panels_name_their_vertical_axes() -> None:
    groups = {"one": {"a": (X, X)}, "two": {"a": (X, X)}}
    for given, named in (("y", ["y", ""]), (("y", "z"), ["y", "z"])):
        figure = plots.panels(groups, xlabel="x", ylabel=given, finding="f").figure
        assert [axes.get_ylabel() for axes in figure.axes] == named
    with pytest.raises(ValueError, match="ylabel: expected one or 2 of them, got 3"):
        plots.panels(groups, xlabel="x", ylabel=("x", "y", "z"), finding="f")


def test_bars_have_their_numbers(pictures) -> None:
    axes = pictures["bars"].figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [6.1, 24.3]
    assert [text.get_text() for text in axes.texts] == ["6.10", "24.30", "best: 4.30"]
    assert axes.yaxis_inverted()  # the first bar is on top


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(-0.001, 2, "0.00"), (-0.5, 1, "−0.5"), (1.005, 1, "1.0"), (0.0, 0, "0"), (-12.0, 0, "−12")],
)
def test_numbers_have_true_minus_signs_and_no_negative_zero(value, digits, text) -> None:
    assert plots.number(value, digits) == text


@pytest.mark.parametrize("name", [plots.WEIGHTS, plots.SIGNED])
def test_numbers_can_be_read_on_every_colour(name: str) -> None:
    def luminance(colour) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for place in np.linspace(0, 1, 101):
        back = plots.colour_map(name)(place)[:3]
        light, dark = sorted(
            [luminance(back), luminance(to_rgb(plots.readable_on(back)))], reverse=True
        )
        assert (light + 0.05) / (dark + 0.05) >= 3.0, place  # WCAG's bound for graphics


def test_long_words_are_cut() -> None:
    assert plots.short("incomprehensibilities") == "incomprehen…"
    assert plots.short("twelve chars") == "twelve chars"
