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
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from course import plots
from course.cost import Machine
from course.plots import Picture

X = np.arange(1, 9)
TOKENS = ["the", "cat", "sat", "on", "$mat$"]
WEIGHTS = np.tril(np.ones((5, 5))) / np.arange(1, 6)[:, None]


def decode(picture: Picture) -> Image.Image:
    return Image.open(io.BytesIO(picture.png()))


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


def test_a_picture_displays_as_png_with_alt_text_and_compares_as_its_finding() -> None:
    picture = plots.heatmap(WEIGHTS, TOKENS, finding="Row t is 1/t.", alt="Lower triangle.")
    data, metadata = picture._repr_mimebundle_()
    assert set(data) == {"image/png", "text/plain"}
    assert data["text/plain"] == repr(picture) == "Row t is 1/t."
    assert metadata["image/png"]["alt"] == "Lower triangle."
    width, height = decode(picture).size
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


def test_the_bytes_depend_on_nothing_but_what_is_drawn(pictures) -> None:
    for (name, first), second in zip(pictures.items(), make_all().values(), strict=True):
        data = first.png()
        assert data == second.png(), name
        kinds, place = [], 8
        while place < len(data):
            length, kind = struct.unpack(">I4s", data[place : place + 8])
            kinds.append(kind)
            place += length + 12
        assert set(kinds) == {b"IHDR", b"IDAT", b"IEND"}, name  # no date, no software, no text


def test_pictures_are_opaque_and_white_at_the_edge(pictures) -> None:
    for picture in pictures.values():
        image = decode(picture)
        assert image.mode == "RGB"
        assert image.getpixel((0, 0)) == image.getpixel((image.width - 1, 0)) == (255, 255, 255)


def test_nothing_is_drawn_outside_the_picture(pictures) -> None:
    for name, picture in pictures.items():
        pixels = np.asarray(decode(picture))
        for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
            assert (edge == 255).all(), name


def test_the_course_style_ends_where_the_picture_is_made() -> None:
    before = dict(matplotlib.rcParams)
    make_all()["bars"].png()
    assert dict(matplotlib.rcParams) == before
    with pytest.raises(RuntimeError), plots.style():
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


def test_a_readers_own_matplotlib_settings_do_not_show() -> None:
    plain = plots.heatmap(WEIGHTS, TOKENS, finding="f").png()
    with matplotlib.rc_context({"font.size": 22, "axes.facecolor": "black", "text.color": "red"}):
        assert plots.heatmap(WEIGHTS, TOKENS, finding="f").png() == plain


def test_no_pyplot() -> None:
    code = "import sys, course.plots, course.widgets; print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


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


def test_signed_maps_have_zero_in_the_middle() -> None:
    picture = plots.heatmap(np.array([[-1.0, 4.0], [0.5, 0.0]]), signed=True, finding="f")
    image = picture.figure.axes[0].images[0]
    assert image.get_clim() == (-4, 4)
    assert plots.signed_norm(np.zeros((2, 2))).vmax == 1
    assert plots.signed_norm(np.array([np.nan, -3.0, -np.inf])).vmin == -3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"matrix": np.zeros(4)}, r"matrix: expected 2 axes, got shape \[4\]"),
        ({"matrix": WEIGHTS * 3}, "matrix: expected weights in 0…1, or signed=True; got .* to 3"),
        ({"matrix": WEIGHTS, "tokens": TOKENS[:4]}, "tokens: expected 5 words, got 4"),
        ({"matrix": WEIGHTS[:, :3], "columns": TOKENS}, "columns: expected 3 words, got 5"),
    ],
)
def test_heat_maps_refuse_what_they_cannot_draw(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        plots.heatmap(**arguments, finding="f")


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


def test_curves_draw_every_line_and_the_floor(pictures) -> None:
    a, b, floor = pictures["curves"].figure.axes[0].lines
    assert np.array_equal(a.get_ydata(), X)
    assert np.array_equal(b.get_ydata(), X**2)
    assert set(floor.get_ydata()) == {4.3}
    assert a.get_color() != b.get_color()


def test_a_roof_is_what_its_machine_attains(pictures) -> None:
    axes = pictures["roofline"].figure.axes[0]
    points = [line for line in axes.lines if line.get_marker() == "o"]
    assert [list(line.get_ydata()) for line in points] == [[0.1, 10.0], [1.0, 100.0]]
    for line in axes.lines[0:4:2]:
        assert max(line.get_ydata()) in (10.0, 100.0)


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
    empty = [p for p in squares if p.get_facecolor()[:3] == to_rgb("white")]
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
