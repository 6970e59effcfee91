"""The language of drawings: things stand to scale and where they were put, nothing on a text."""

from __future__ import annotations

import inspect
import textwrap

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Circle, FancyBboxPatch, Polygon, Rectangle

from course.plots import HIDDEN, Canvas, Picture, drawing
from course.plots.places import Place, Spot
from course.plots.sheet import ROLES, readable
from tests import ink


def finish(canvas: Canvas) -> Picture:
    return canvas.picture(finding="f", alt="a")


def contrast(one: str, two: str) -> float:
    """WCAG's ratio of luminances."""
    lights = []
    for name in (one, two):
        channels = [int(name[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        lights.append(float(np.dot([0.2126, 0.7152, 0.0722], linear)))
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def test_the_ten_lines_of_the_docstring_draw_what_they_say() -> None:
    source = inspect.cleandoc(drawing.__doc__ or "").split("\n\n")[2]
    scope: dict[str, object] = {"Canvas": Canvas, "Picture": Picture}
    exec("from __future__ import annotations\n" + textwrap.dedent(source), scope)
    picture = scope["query"](T=4, E=5, D=2)  # type: ignore[operator]
    assert picture.finding == "A query has 2 numbers, made of the 5 of its word."
    assert {"$x$", "×", "$W_q$", "[E, D]", "$q$", "[T, D]"} <= set(ink.words(picture))


def test_a_matrix_has_its_cells_in_units_of_the_canvas() -> None:
    canvas = Canvas(unit=0.25, T=3, E=7)
    place = canvas.matrix("x", "T E", at=(10, 4), role="stream")
    assert (place.x, place.y, place.width, place.height) == (6.5, 2.5, 7, 3)
    assert place.cell(2, 6) == Place(12.5, 4.5, 1, 1)
    assert place.row(1) == Place(6.5, 3.5, 7, 1) and place.column(0) == Place(6.5, 2.5, 1, 3)
    picture = finish(canvas)
    picture.png()
    *cells, _frame = ink.patches(picture, Rectangle)
    assert len(cells) == 3 * 7
    pixels = 0.25 * picture.figure.dpi
    corners = picture.figure.axes[0].transData.transform([(6.5, 2.5), (13.5, 5.5)])
    assert np.abs(corners[1] - corners[0]) == pytest.approx([7 * pixels, 3 * pixels])
    assert ink.words(picture) == ["[T, E]", "x"]


def test_cells_too_small_to_be_seen_are_not_ruled() -> None:
    canvas = Canvas(N=400, D=40)
    place = canvas.matrix("Q", "N D", at=(0, 0), role="query", cell=1 / 40)
    assert (place.width, place.height) == (1, 10)
    canvas.matrix("A", "1 100", at=(9, 0), role="stream", columns=[0], cell=(0.1, 1))
    picture = finish(canvas)
    assert len(ink.patches(picture, Rectangle)) == 2  # two frames
    image = picture.figure.axes[0].images[1]
    assert image.get_extent() == pytest.approx([4, 14, 0.5, -0.5])
    colours = np.asarray(image.get_array())
    assert to_hex(colours[0, 0]) == ROLES["stream"].lower()
    assert len(np.unique(colours[0, 1:], axis=0)) == 1


def test_colours_of_cells_say_which_row_is_followed_and_what_is_hidden() -> None:
    canvas = Canvas()
    hidden = np.triu(np.ones((2, 2), dtype=bool), 1)
    canvas.matrix("A", "2 2", at=(0, 0), role="value", rows=[1], hidden=hidden)
    faces = [to_hex(cell.get_facecolor()) for cell in ink.patches(finish(canvas), Rectangle)[:4]]
    assert faces[1] == HIDDEN
    assert faces[2] == faces[3] == ROLES["value"].lower() != faces[0]


@pytest.mark.parametrize(
    ("value", "digits", "printed"),
    [
        (0.5, 2, "0.50"),
        (2.0, None, "2"),
        (-1.5, None, "−1.5"),
        (-np.inf, 2, "−∞"),
        (100, None, "100"),
    ],
)
def test_numbers_are_printed_in_their_cells(value: float, digits: int | None, printed: str) -> None:
    canvas = Canvas()
    canvas.matrix("", "1 1", at=(0, 0), values=[[value]], digits=digits, cell=3, label=False)
    assert ink.words(finish(canvas)) == [printed]


def test_shaded_cells_have_the_course_maps() -> None:
    canvas = Canvas()
    canvas.matrix("w", "1 2", at=(0, 0), shade=[[0.0, 1.0]])
    canvas.matrix("s", "1 2", at=(0, 6), shade=[[-2.0, 2.0]], signed=True)
    faces = [to_hex(cell.get_facecolor()) for cell in ink.patches(finish(canvas), Rectangle)]
    assert faces[:2] == ["#00224e", "#fee838"]
    assert faces[3:5] == ["#053061", "#67001f"]


def test_things_stand_beside_one_another() -> None:
    canvas = Canvas()
    box = canvas.box("box", at=(0, 0), size=(4, 2))
    assert canvas.box("", at=box.beside(1), size=(2, 1)) == Place(3, -0.5, 2, 1)
    assert canvas.box("", at=box.before(1), size=(2, 1)) == Place(-5, -0.5, 2, 1)
    assert canvas.box("", at=box.below(1), size=(2, 1)) == Place(-1, 2, 2, 1)
    assert canvas.box("", at=box.above(1), size=(2, 1)) == Place(-1, -3, 2, 1)
    assert canvas.dot(at=box.beside(9, middle=True), radius=1).centre == (11, 0)


def tip(canvas: Canvas) -> np.ndarray:
    return ink.patches(finish(canvas), Polygon)[0].get_path().vertices[0]


def test_arrows_run_straight_between_things_that_face_each_other() -> None:
    gap = 2.5 / 72 / 0.22
    canvas = Canvas()
    a, b = canvas.box("", at=(0, 0), size=(2, 4)), canvas.box("", at=(9, 1), size=(2, 4))
    canvas.arrow(a, b)
    assert tip(canvas) == pytest.approx([8 - gap, 0.5])
    canvas = Canvas()
    a, b = canvas.box("", at=(0, 0), size=(4, 2)), canvas.box("", at=(1, 9), size=(4, 2))
    canvas.arrow(a, (0.5, 5), b)
    assert tip(canvas) == pytest.approx([0.5, 8 - gap])
    canvas = Canvas()
    canvas.arrow((0, 0), canvas.dot((3, 4), radius=1))
    assert tip(canvas) == pytest.approx([3 - 0.6 * (1 + gap), 4 - 0.8 * (1 + gap)])


def test_a_bent_arrow_bulges_to_its_right_and_arrives() -> None:
    canvas = Canvas()
    canvas.arrow((0, 0), (10, 0), bend=2, words="bent", side="below")
    assert tip(canvas) == pytest.approx([10, 0])
    line = canvas.picture(finding="f", alt="a").figure.axes[0].patches[1].get_path().vertices
    assert line[:, 1].max() == pytest.approx(
        2, abs=0.05
    )  # y runs down: right of a way to the right


def test_areas_are_to_scale_or_marked_as_not() -> None:
    canvas = Canvas()
    small = canvas.area("16", 16, at=(0, 0), per=1, widest=12)
    wide = canvas.area("8", 8, at=(9, 0), per=1, widest=12, aspect=2)
    huge = canvas.area("huge", 1e6, at=(22, 0), per=1, widest=12)
    assert small.width * small.height == pytest.approx(16)
    assert (wide.width, wide.height) == (4, 2)
    assert huge.width == 12
    picture = finish(canvas)
    assert "(not to scale)" in ink.words(picture) and ink.words(picture).count("16") == 1
    dashed = [box.get_linestyle() != "-" for box in ink.patches(picture, FancyBboxPatch)]
    assert dashed == [False, False, True]


def test_words_that_do_not_fit_an_area_stand_beside_it() -> None:
    canvas = Canvas()
    place = canvas.area("registers", 1, at=(0, 0), per=1)
    canvas_x = {name: box.x0 for name, box in ink.boxes(finish(canvas))}
    assert place.width == 1 and canvas_x["registers"] > 0.22 * 144


def test_spans_lie_in_their_lane_from_start_to_end() -> None:
    canvas = Canvas()
    lanes = ["CPU", "GPU"]
    line = canvas.timeline(10, at=(0, 0), length=20, words="µs", ticks=[0, 5, 10], lanes=lanes)
    assert [line.x(time) for time in (0, 5, 10)] == [-10, 0, 10]
    launch = canvas.span(line, "CPU", "launch", 0, 5)
    kernel = canvas.span(line, "GPU", "kernel", 5, 7.5, role="query")
    assert (launch.x, launch.width, kernel.x, kernel.width) == (-10, 10, 0, 5)
    assert launch.y + launch.height < kernel.y < kernel.y + kernel.height < 0
    assert {"CPU", "GPU", "0", "5", "10", "µs"} <= set(ink.words(finish(canvas)))
    with pytest.raises(ValueError, match="lane: expected one of CPU, GPU, got 'TPU'"):
        canvas.span(line, "TPU", "kernel", 0, 1)
    with pytest.raises(ValueError, match="expected 0 ≤ start < end ≤ 10, got 5 and 11"):
        canvas.span(line, "GPU", "kernel", 5, 11)


def test_a_frame_holds_things_with_their_labels() -> None:
    canvas = Canvas(T=2)
    x = canvas.matrix("x", "T T", at=(0, 0))
    frame = canvas.frame([x], "a title wider than the matrix")
    assert frame.x < x.x and frame.y < x.y - 2 and frame.x + frame.width > 5
    finish(canvas)


def test_readers_words_are_drawn_as_typed_and_cut() -> None:
    canvas = Canvas()
    places = canvas.words(["$x$", "incomprehensibilities"], at=(0, 0), hidden=[1])
    assert places[0].width == places[1].width
    assert ink.words(finish(canvas)) == ["$x$", "incomprehen…"]
    with pytest.raises(ValueError, match="step: expected at least"):
        Canvas().words(["several", "words"], at=(0, 0), step=1)


def test_lines_of_letters_stand_on_one_line_whichever_they_are() -> None:
    canvas = Canvas()
    for x, word in enumerate(("nose", "lay", "Hat")):
        canvas.text(word, at=(5 * x, 0))
    assert len({text.get_position()[1] for text in ink.texts(finish(canvas))}) == 1


@pytest.mark.parametrize("role", ROLES)
def test_text_in_the_colour_of_a_role_reads_on_white(role: str) -> None:
    assert contrast(readable(role), "#ffffff") >= 4.5


def test_an_outline_lies_on_its_place_and_moves_nothing() -> None:
    canvas = Canvas()
    x = canvas.matrix("x", "3 2", at=(0, 0))
    canvas.outline(x.row(1))
    outline = ink.patches(finish(canvas), Rectangle)[-1]
    assert outline.get_bbox().bounds == (-1, -0.5, 2, 1)


def on_a_text(canvas: Canvas) -> None:
    canvas.text("one", at=(0, 0))
    canvas.text("two", at=(0.5, 0))


def arrow_on_a_text(canvas: Canvas) -> None:
    canvas.text("one", at=(0, 0))
    canvas.arrow((-3, 0), (3, 0.1))


def curve_on_a_text(canvas: Canvas) -> None:
    canvas.text("one", at=(0, 2))
    canvas.arrow((-5, 0), (5, 0), bend=2)


def edge_on_a_text(canvas: Canvas) -> None:
    canvas.text("one", at=(0, 0))
    canvas.box("", at=(2, 0), size=(4, 4))


def box_on_a_box(canvas: Canvas) -> None:
    canvas.box("", at=(0, 0), size=(4, 4))
    canvas.matrix("x", "2 2", at=(2, 0), label=False)


def arrow_under_a_box(canvas: Canvas) -> None:
    canvas.box("wall", at=(0, 0), size=(4, 4))
    canvas.arrow((-5, 0), (5, 0))


def too_wide(canvas: Canvas) -> None:
    canvas.arrow((0, 0), (60, 0))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (on_a_text, "'one' lies on 'two'"),
        (arrow_on_a_text, "room for 'one', an arrow crosses it"),
        (curve_on_a_text, "room for 'one', an arrow crosses it"),
        (edge_on_a_text, "room for 'one', an edge of the box '' runs through"),
        (box_on_a_box, "the box '' and the matrix 'x' apart"),
        (arrow_under_a_box, "every arrow in sight, one runs under the box 'wall'"),
        (too_wide, r"at most 9.5 inches of width, got 13.4; a unit of 0.15\d would do"),
        (lambda canvas: None, "expected something drawn, got an empty canvas"),
    ],
)
def test_what_would_lie_on_something_is_refused(draw, message: str) -> None:
    canvas = Canvas()
    draw(canvas)
    with pytest.raises(ValueError, match=message):
        finish(canvas)


def test_the_title_of_a_frame_stands_above_or_below_what_it_holds() -> None:
    heights = {}
    for below in (False, True):
        canvas = Canvas()
        inside = canvas.box("in", at=(2, 3))
        frame = canvas.frame([inside], "title", below=below)
        (title,) = [text for text in ink.texts(finish(canvas)) if text.get_text() == "title"]
        heights[below] = title.get_position()[1]
        assert frame.y < heights[below] < frame.y + frame.height
    assert heights[False] < inside.y and heights[True] > inside.y + inside.height


def test_a_pale_dot_has_the_pale_colour_of_its_role() -> None:
    canvas = Canvas()
    canvas.dot((0, 0), role="stream")
    canvas.dot((3, 0), role="stream", pale=True)
    full, pale = (to_hex(dot.get_facecolor()) for dot in ink.patches(finish(canvas), Circle))
    assert full == ROLES["stream"].lower()
    assert contrast(pale, "#ffffff") < contrast(full, "#ffffff")


def test_a_line_may_pass_under_a_dot_and_a_box_lie_in_a_frame() -> None:
    canvas = Canvas()
    plus = canvas.dot((0, 0), "+")
    canvas.arrow((-5, 0), (5, 0), width=4)
    canvas.frame([plus, canvas.box("in", at=(0, 3))], "frame")
    finish(canvas)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda c: c.text("small", at=(0, 0), points=7.9), "expected at least 8 pt, got 7.9"),
        (lambda c: c.box("too long a text", at=(0, 0), size=(2, 2)), "size: expected at least"),
        (lambda c: c.box("x", at=(0, 0), role="red"), "role: expected one of query, key"),
        (lambda c: c.matrix("x", "T F", at=(0, 0)), "x: expected sizes among T, got 'F'"),
        (lambda c: c.matrix("x", "T", at=(0, 0)), 'x: expected a shape of two sizes, as "T E"'),
        (
            lambda c: c.matrix("x", "T 2", at=(0, 0), shade=np.zeros((2, 3))),
            r"shade: expected the shape \[3, 2\] of x, got \[2, 3\]",
        ),
        (
            lambda c: c.matrix("x", "T 2", at=(0, 0), hidden=np.zeros(3)),
            r"hidden: expected the shape \[3, 2\] of x, got \[3\]",
        ),
        (
            lambda c: c.matrix("x", "1 1", at=(0, 0), values=[[1000.0]]),
            "x: expected cells of at least .* for '1000.00', got 1 × 1",
        ),
        (lambda c: c.arrow((0, 0)), "stops: expected two or more, got 1"),
        (lambda c: c.arrow((0, 0), (1, 0), (2, 0), bend=1), "expected two for a bent arrow, got 3"),
        (lambda c: c.arrow((0, 0), (9, 0), words="w", side="up"), "side: expected one of above"),
        (lambda c: c.frame([]), "places: expected at least one thing"),
        (lambda c: c.words([], at=(0, 0)), "words: expected at least one word, got none"),
        (lambda c: c.area("x", 0, at=(0, 0), per=1), "amount, per: expected numbers above 0"),
        (
            lambda c: c.timeline(0, at=(0, 0), length=9, words="s", ticks=[]),
            "until, length: expected above 0",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_its_reason(draw, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(Canvas(T=3))


@pytest.mark.parametrize("sizes", [{"T": 0}, {"T": 2.5}, {"unit": 0}])
def test_sizes_are_whole_and_above_0(sizes) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(sizes))}: expected"):
        Canvas(**sizes)


def test_a_spot_says_which_part_of_a_thing_lies_on_it() -> None:
    canvas = Canvas()
    assert canvas.box("", at=Spot(0, 0, 1, 0), size=(3, 2)) == Place(-3, 0, 3, 2)
