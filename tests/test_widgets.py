"""What holds for every explorer: its whole grid, every control, wrong input, what is stored."""

from __future__ import annotations

import base64
import gc
import io
import statistics
import textwrap
import threading
import time
import weakref
from collections import Counter
from xml.etree import ElementTree

import ipywidgets as ipw
import matplotlib
import numpy as np
import pytest
from ipywidgets.widgets import widget as table  # its table of all widgets has no public name
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from PIL import Image

import course.widgets
from course.plots import style
from course.widgets import (
    Choice,
    CrosstalkExplorer,
    Explorer,
    RowExplorer,
    Slider,
    Switch,
    base,
)
from course.widgets import TextField as Field
from course.widgets.paint import quick_png
from course.widgets.row import LOOKS
from tests.exploring import EXPLORERS, Marks, button, handle, page, part, picture, spoken, walk


@pytest.fixture(scope="module", params=EXPLORERS, ids=lambda e: e.__name__)
def kind(request) -> type[Explorer]:
    return request.param


@pytest.fixture(scope="module")
def shared(kind) -> Explorer:
    return kind()


@pytest.fixture
def explorer(shared) -> Explorer:
    shared.reset()
    return shared


def test_every_place_of_every_control_has_arrays_and_a_sentence(kind, explorer) -> None:
    for name, control in kind.controls.items():
        for value in control.grid():
            values = explorer.values | {name: value}
            arrays = kind.compute(**values)
            names = {"scores", "weights", "mapped", "share", "perplexity"} & set(arrays)
            shown = [arrays[name] for name in names]
            assert shown and all(np.isfinite(array).all() for array in shown), (name, value)
            assert explorer.finding(values, arrays).endswith(".")
            assert "\n" not in explorer.alt(values, arrays)


def test_compute_is_pure(kind, explorer) -> None:
    first, again = kind.compute(**explorer.values), kind.compute(**explorer.values)
    for name, value in first.items():
        np.testing.assert_equal(again[name], value, err_msg=name)  # NaN is equal to NaN


def test_every_control_changes_what_is_seen_and_said(kind, explorer) -> None:
    if kind is RowExplorer:
        explorer.set_values(extra=1.0)  # or there is nothing to say about the chosen word
    start = dict(explorer.values)
    seen, said = picture(explorer), explorer.status
    for name, control in kind.controls.items():
        if name in kind.idle(start):
            continue
        other = [value for value in control.grid() if value != start[name]]
        explorer.set_values(**{name: other[-1]})
        if (picture(explorer) == seen).all():  # nor may one leave the picture
            explorer.set_values(**{name: other[0]})
        assert (picture(explorer) != seen).any(), f"{name} moves nothing in the picture"
        if explorer.status == said:  # one value may leave the sentence, not all
            explorer.set_values(**{name: other[0]})
        assert explorer.status != said, f"{name} changes no word"
        assert spoken(explorer, "status") == explorer.status
        explorer.set_values(**start)
    assert (picture(explorer) == seen).all() and explorer.status == said, "back is not the start"


def test_an_idle_control_is_greyed_out_and_changes_nothing(kind, explorer) -> None:
    idle = kind.idle(explorer.values)
    seen, said = picture(explorer), explorer.status
    for name, control in kind.controls.items():
        greyed = [w.disabled for w in walk(explorer) if named_by(w, control)]
        assert greyed and set(greyed) == {name in idle}, name
        if name in idle:
            explorer.set_values(**{name: control.grid()[-1]})
            assert (picture(explorer) == seen).all() and explorer.status == said


def named_by(widget: ipw.Widget, control) -> bool:
    """Whether the widget is a part of this control: a button and a sentence are of none."""
    words = getattr(widget, "description", "")
    return words == control.label or words.startswith(f"{control.label}, a number")


def test_artists_are_made_once(kind, explorer) -> None:
    before = {id(artist) for artist in explorer.figure.findobj()}
    for name, control in kind.controls.items():
        if not isinstance(control, Field):  # new words bring new tick labels
            explorer.set_values(**{name: control.grid()[-1]})
            explorer.reset()  # not all last values go together
    assert {id(artist) for artist in explorer.figure.findobj()} == before


def test_a_slider_moves_its_field_and_the_field_its_slider(kind, explorer) -> None:
    for name, control in kind.controls.items():
        if not isinstance(control, Slider):
            continue
        slider = handle(explorer, control)
        field = part(explorer, ipw.Text, control.label)
        end = explorer.ends(explorer.values, explorer.arrays).get(name, control.high)
        reached = [place for place in control.grid() if place <= end]
        low, high = reached[1], reached[-2]
        slider.value = low
        assert explorer.values[name] == low and float(field.value) == low
        field.value = f"  {high} "
        assert explorer.values[name] == high and slider.value == high
        assert spoken(explorer, "alert") is None


@pytest.mark.parametrize(
    ("typed", "came"),
    [
        ("abc", "“abc”"),
        ("", "nothing"),
        ("1e9", "1000000000"),
        ("−99", "-99"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("0,5", "“0,5”"),
        ("<b>", "“<b>”"),
    ],
)
def test_a_wrong_number_gets_a_sentence_and_changes_nothing(kind, explorer, typed, came) -> None:
    start = page(explorer)
    for name, control in kind.controls.items():
        if not isinstance(control, Slider):
            continue
        field = part(explorer, ipw.Text, control.label)
        kept = field.value
        field.value = typed
        sentence = spoken(explorer, "alert")
        assert sentence.startswith(f"{control.label}: expected ") and f"got {came}." in sentence
        assert sentence.endswith(f"It stays at {kept}.")
        assert field.value == kept and explorer.values[name] == control.value
        assert spoken(explorer, "status") == explorer.status
        field.value = kept + " "  # something entered that is right: the warning goes
        assert spoken(explorer, "alert") is None
        assert page(explorer) == start  # neither picture nor words have moved


def test_numbers_of_any_kind_are_read_as_pythons_own() -> None:
    whole, scale, tied = Slider("n", 2, 1, 8), Slider("s", 1.0, 0, 2), Switch("Tied", True)
    read = [whole.read(np.int64(3)), scale.read(np.float32(0.5)), tied.read(np.False_)]
    assert read == [3, 0.5, False] and [type(x) for x in read] == [int, float, bool]


@pytest.mark.parametrize(
    ("name", "typed", "place", "answer", "step"),
    [("temperature", 1.23, 1.2, 1.2000000000000002, 1.3), ("position", 3, 3, 3, 4)],
)
def test_a_number_between_the_steps_stays_when_the_browser_answers(
    name, typed, place, answer, step
) -> None:
    explorer = RowExplorer()
    control = RowExplorer.controls[name]
    slider, field = handle(explorer, control), part(explorer, ipw.Text, control.label)
    field.value = str(typed)
    assert explorer.values[name] == typed and slider.value == place
    slider.value = answer
    assert explorer.values[name] == typed and field.value == str(typed)
    slider.value = step
    assert explorer.values[name] == step and field.value == str(step)


def test_a_logarithmic_slider_doubles_and_its_field_takes_what_lies_between() -> None:
    pairs, sharpness = Slider("N", 16, 2, 64, log=True), Slider("β", 1.0, 0.25, 4.0, log=True)
    assert pairs.grid() == [2, 4, 8, 16, 32, 64] and sharpness.grid() == [0.25, 0.5, 1, 2, 4]
    assert {type(n) for n in pairs.grid()} == {int}
    explorer = CrosstalkExplorer()
    control = CrosstalkExplorer.controls["N"]
    slider, field = handle(explorer, control), part(explorer, ipw.Text, control.label)
    assert (slider.base, slider.min, slider.max, slider.step) == (2, 1, 6, 1)
    slider.value = 8.0  # what a browser sends is never a whole number
    assert explorer.values["N"] == 8 and field.value == "8"
    field.value = "20"
    assert explorer.values["N"] == 20 and slider.value == 16  # the nearest place
    field.value = "65"
    assert spoken(explorer, "alert") == (
        "Pairs N: expected a whole number from 2 to 64, got 65. It stays at 20."
    )


def test_half_numbers_are_refused_where_whole_ones_are_wanted() -> None:
    control = Slider("Heads", 2, low=1, high=8)
    assert control.read("3") == 3 and isinstance(control.read("3"), int)
    with pytest.raises(ValueError, match="Heads: expected a whole number from 1 to 8, got 2.5"):
        control.read("2.5")


@pytest.mark.parametrize(
    ("control", "raw"),
    [
        (Choice("Mask", "a", ("a", "b")), "c"),
        (Choice("Mask", "a", ("a", "b")), None),
        (Switch("Tied", True), 1),
        (Slider("Scale", 1.0, 0, 2), np.True_),
        (Slider("Scale", 1.0, 0, 2), True),
        (Slider("Scale", 1.0, 0, 2), None),
        (Slider("Scale", 1.0, 0, 2), [1]),
        (Field("Sentence", "a", str.strip), 7),
    ],
)
def test_controls_name_themselves_when_they_refuse(control, raw) -> None:
    with pytest.raises(ValueError, match=rf"^{control.label}: expected .*got "):
        control.read(raw)


def test_unknown_names_and_wrong_first_values_are_refused(kind, explorer) -> None:
    with pytest.raises(ValueError, match="colour: expected one of the controls"):
        kind(colour=3)
    with pytest.raises(ValueError, match="colour: expected one of the controls"):
        explorer.set_values(colour=3)
    name, control = next((n, c) for n, c in kind.controls.items() if isinstance(c, Slider))
    with pytest.raises(ValueError, match=f"{control.label}: expected"):
        kind(**{name: "many"})
    start = explorer.values
    with pytest.raises(ValueError, match=f"{control.label}: expected"):
        explorer.set_values(**{name: control.high + 1})
    assert explorer.values == start


def test_the_stored_output_reads_without_a_kernel(kind, explorer, monkeypatch) -> None:
    data, metadata = explorer._repr_mimebundle_()
    assert set(data) == {"image/png", "text/plain"}
    assert data["text/plain"] == explorer.status == repr(explorer)
    assert data["image/png"] == explorer.png()
    assert metadata["image/png"]["alt"] == explorer.alt(explorer.values, explorer.arrays)

    class Shell:
        kernel = object()

    monkeypatch.setattr("IPython.get_ipython", Shell)
    data, _ = explorer._repr_mimebundle_(include=None, exclude=None)
    view = data["application/vnd.jupyter.widget-view+json"]
    assert view["model_id"] == explorer.model_id
    assert data["text/plain"] == explorer.status


def test_what_the_page_says_is_accessible_and_comes_from_nowhere_else(kind, explorer) -> None:
    button(explorer, "Save picture").click()
    reader = Marks(page(explorer))
    image, dot = sorted(
        (attributes for tag, attributes in reader.seen if tag == "img"), key=lambda a: not a["alt"]
    )
    assert image["alt"] == explorer.alt(explorer.values, explorer.arrays)
    assert dot["alt"] == "" and "hidden" in dot  # it only gives the slider handles their names
    assert [a for _, a in reader.seen if a.get("role") == "status"]
    assert {tag for tag, _ in reader.seen} <= {"img", "p", "strong", "a", "style"}
    assert "http" not in page(explorer).replace(explorer.note, "") and "url(" not in page(explorer)
    for _, attributes in reader.seen:
        for name in ("src", "href"):
            address = attributes.get(name) or "data:image/"
            assert address.startswith("data:image/")
    for widget in walk(explorer):
        assert not isinstance(widget, ipw.Output)
        if "value" in widget.keys and not isinstance(widget, ipw.HTML):
            assert widget.description.strip(), f"{type(widget).__name__} without a label"


def links(explorer: Explorer) -> dict[str, bytes]:
    """What the reader can save, by file name."""
    found = [attributes for tag, attributes in Marks(page(explorer)).seen if tag == "a"]
    return {a["download"]: base64.b64decode(a["href"].split("base64,")[1]) for a in found}


def test_the_picture_is_saved_as_png_and_svg_when_asked_for(kind, explorer) -> None:
    assert links(explorer) == {}
    button(explorer, "Save picture").click()
    raster, vector = links(explorer).items()
    words = raster[0].removesuffix("-explorer.png")
    assert words and vector[0] == f"{words}-explorer.svg"
    assert raster[1] == explorer.png() and vector[1] == explorer.svg()
    with Image.open(io.BytesIO(raster[1])) as image:
        assert (np.asarray(image) == picture(explorer)).all(-1).mean() > 1 - 1e-4
        assert image.mode == "RGB"
    tree = ElementTree.fromstring(vector[1])
    assert tree.tag.endswith("svg") and vector[1].decode().count("<path") > 20
    described = "".join(tree.itertext())
    assert explorer.title in described
    assert explorer.alt(explorer.values, explorer.arrays) in described
    chief = kind.controls[kind.chief]
    other = next(value for value in chief.grid() if value != explorer.values[kind.chief])
    explorer.set_values(**{kind.chief: other})
    assert links(explorer) == {}  # they were of another picture


def test_a_move_sends_the_picture_once(kind, explorer, monkeypatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(
        ipw.Widget, "_send", lambda self, msg, buffers=None: sent.append(repr(msg)), raising=True
    )
    chief = kind.controls[kind.chief]
    other = next(value for value in chief.grid() if value != explorer.values[kind.chief])
    explorer.set_values(**{kind.chief: other})
    assert sum(text.count("data:image/png") for text in sent) == 1
    sent.clear()
    explorer.set_values(**{kind.chief: other})
    assert not any("data:image/png" in text for text in sent)
    assert sum(map(len, sent)) < 2_000  # nothing has changed, and hardly anything is sent


def test_quick_png_holds_the_same_pixels(explorer) -> None:
    canvas = FigureCanvasAgg(explorer.figure)
    with style():
        canvas.draw()
    with Image.open(io.BytesIO(quick_png(canvas))) as image:
        image.load()
        assert image.mode == "RGB"
        assert np.array_equal(np.asarray(image), np.asarray(canvas.buffer_rgba())[..., :3])


def drawn_points(axes) -> np.ndarray:
    """Where lines and points of ``axes`` are seen, in pixels ``[N, 2]``."""
    found = [np.zeros((0, 2))]
    for line in axes.lines:
        path = line.get_path().interpolated(30 if line.get_linestyle() != "None" else 1)
        if line.get_visible() and len(path.vertices):
            found.append(line.get_transform().transform(path.vertices))
    for points in (c for c in axes.collections if isinstance(c, PathCollection)):
        found.append(points.get_offset_transform().transform(points.get_offsets()))
    return np.concatenate(found)


def test_a_legend_covers_no_curve_and_no_point(kind, explorer) -> None:
    explorer.figure.draw_without_rendering()
    legends = [(axes, axes.get_legend()) for axes in explorer.figure.axes if axes.get_legend()]
    start = explorer.values
    ends = [start] + [
        start | {name: control.grid()[end]}
        for name, control in kind.controls.items()
        for end in ((0, -1) if legends else ())
    ]
    for values in ends:
        explorer.update(kind.compute(**values))
        for axes, legend in legends:
            box, frame = legend.get_window_extent(), axes.bbox
            for x, y in drawn_points(axes):
                seen = frame.x0 <= x <= frame.x1 and frame.y0 <= y <= frame.y1
                inside = box.x0 < x < box.x1 and box.y0 < y < box.y1
                assert not (seen and inside), (values, axes.get_title("left"))
    explorer.update(explorer.arrays)


def test_the_sentence_has_two_lines_at_most(kind, explorer) -> None:
    """Of some 140 letters each, in JupyterLab on a small laptop."""
    for name, control in kind.controls.items():
        for value in control.grid():
            values = explorer.values | {name: value}
            assert len(explorer.finding(values, kind.compute(**values))) <= 270, (name, value)


def test_a_dark_picture_is_a_matter_of_the_page_alone(explorer) -> None:
    seen = page(explorer)
    dark = button(explorer, "Dark picture")
    frame = explorer._picture
    dark.value = True
    assert "course-dark" in frame._dom_classes and page(explorer) == seen
    dark.value = False
    assert "course-dark" not in frame._dom_classes
    assert "hue-rotate" in seen and 'data-jp-theme-light="false"' in seen


def test_an_alert_stands_below_the_picture_and_its_field_is_framed(kind, explorer) -> None:
    slider = next(c for c in kind.controls.values() if isinstance(c, Slider))
    part(explorer, ipw.Text, slider.label).value = "many"
    shown = page(explorer)
    assert shown.index('course-picture"') < shown.index('role="alert"')
    for control in (c for c in kind.controls.values() if isinstance(c, Field)):
        field = part(explorer, ipw.Text, control.label)
        field.value = ""
        assert spoken(explorer, "alert") and "course-refused" in field._dom_classes
        explorer.reset()
        assert "course-refused" not in field._dom_classes and field.value == control.value


def test_nothing_grows_in_200_updates_and_20_explorers(kind, monkeypatch) -> None:
    """So many of the first explorer; of the others, whose base is the same, a tenth."""
    updates, more = (200, 20) if kind is RowExplorer else (24, 2)
    monkeypatch.setattr(base, "quick_png", lambda canvas: b"")  # it keeps nothing

    def things() -> dict[str, int]:
        gc.collect()
        counts = Counter(type(x).__name__ for x in gc.get_objects())
        return {name: counts[name] for name in ("Figure", "Line2D", "Text", "FigureCanvasAgg")}

    name, chief = kind.chief, kind.controls[kind.chief]
    places = chief.grid()[:: max(1, len(chief.grid()) // 7)]
    explorer = kind()
    for value in (*places, *places):  # what is kept on purpose, is
        explorer.set_values(**{name: value})
    artists, widgets = len(explorer.figure.findobj()), len(table._instances)
    before, drawn = things(), [len(explorer._painter._front)]
    callbacks = len(explorer.figure._canvas_callbacks.callbacks)
    for turn in range(updates):
        explorer.set_values(**{name: places[turn % len(places)]})
        if turn % len(places) == len(places) - 1:
            drawn.append(len(explorer._painter._front))
    assert len(explorer.figure.findobj()) == artists and len(table._instances) == widgets
    assert things() == before and len(set(drawn[1:])) == 1
    assert len(explorer.figure._canvas_callbacks.callbacks) == callbacks
    explorer.close()
    gone, rest = len(table._instances), things()
    for _ in range(more):
        kind().close()
    assert len(table._instances) == gone and things() == rest


def test_moves_that_come_while_one_is_drawn_end_in_the_last() -> None:
    seen: list[float] = []

    class Slow(RowExplorer):
        @staticmethod
        def compute(**values):
            seen.append(values["temperature"])
            if values["temperature"] == 2.0:
                started.set()
                assert go.wait(10)
            return RowExplorer.compute(**values)

    started, go = threading.Event(), threading.Event()
    explorer = Slow()
    receive = explorer._receiver("temperature")
    first = threading.Thread(target=receive, args=(2.0,))
    first.start()
    assert started.wait(10)
    later = [threading.Thread(target=receive, args=(t,)) for t in (3.0, 4.0, 5.0)]
    for thread in later:
        before = explorer._last_move["temperature"]
        thread.start()
        while explorer._last_move["temperature"] is before:
            time.sleep(0.01)
    go.set()
    for thread in (first, *later):
        thread.join()
    assert seen == [1.0, 2.0, 5.0] and explorer.values["temperature"] == 5.0
    assert spoken(explorer, "status") == explorer.status


def test_an_error_of_its_function_is_shown_and_everything_stays(
    kind, explorer, monkeypatch
) -> None:
    def broken(**values: object) -> dict:
        raise RuntimeError("no luck")

    seen, said, values = picture(explorer), explorer.status, dict(explorer.values)
    control = next(
        c for n, c in kind.controls.items() if isinstance(c, Slider) and n not in kind.idle(values)
    )
    monkeypatch.setitem(vars(explorer), "compute", broken)
    slider = handle(explorer, control)
    place = slider.value
    slider.value = control.grid()[-1] if place == control.grid()[0] else control.grid()[0]
    alert = spoken(explorer, "alert")
    assert alert.startswith(f"This explorer failed on {control.label} = ")
    assert alert.endswith("(RuntimeError: no luck). The last good picture stays.")
    assert slider.value == place and explorer.values == values and explorer.status == said
    assert (picture(explorer) == seen).all()


def test_a_fault_in_an_explorer_is_shown_and_the_picture_stays() -> None:
    class Broken(RowExplorer):
        def update(self, arrays) -> None:
            super().update(arrays)
            if arrays["weights"].max() > 0.9:
                raise ZeroDivisionError("half a picture")

    class Unpaintable(RowExplorer):
        def update(self, arrays) -> None:
            super().update(arrays)
            axes = self.figure.axes[0]
            axes.set_title("$\\frac{$" if arrays["weights"].max() > 0.9 else "1  score")

    for kind, fault in ((Broken, "ZeroDivisionError: half a picture"), (Unpaintable, "ValueError")):
        explorer = kind()
        before = picture(explorer)
        temperature = part(explorer, ipw.FloatSlider, "Temperature")
        temperature.value = 0.1
        assert f"failed on Temperature = 0.1 ({fault}" in spoken(explorer, "alert")
        assert explorer.values["temperature"] == 1 == temperature.value
        assert (picture(explorer) != before).any(-1).mean() < 1e-4
        temperature.value = 2.0
        assert spoken(explorer, "alert") is None and (picture(explorer) != before).any()


def test_a_closed_explorer_is_freed_whole(kind) -> None:
    kind().close()  # what is made once, is
    before = len(table._instances)
    explorer = kind()
    slider = handle(explorer, next(c for c in kind.controls.values() if isinstance(c, Slider)))
    parts = [weakref.ref(w) for w in walk(explorer) if w is not explorer]
    parts += [weakref.ref(slider.layout), weakref.ref(explorer.figure)]
    said, start = explorer.status, slider.value
    explorer.close()
    explorer.close()
    slider.value = start + 1  # a message that comes late
    del slider
    gc.collect()
    assert len(table._instances) == before
    assert not [ref() for ref in parts if ref() is not None]
    assert explorer.status == repr(explorer) == said  # also as the notebook's Out[5]
    for call in (explorer.reset, explorer.png):
        with pytest.raises(RuntimeError, match=f"this {kind.__name__} was closed: make a new one"):
            call()


def test_a_readers_own_matplotlib_settings_do_not_show_and_stay() -> None:
    plain = RowExplorer()
    plain.set_values(temperature=0.1)
    theirs = {"font.size": 22, "axes.grid": True, "lines.linestyle": ":", "image.origin": "lower"}
    with matplotlib.rc_context(theirs):
        before = dict(matplotlib.rcParams)
        explorer = RowExplorer()
        part(explorer, ipw.FloatSlider, "Temperature").value = 0.1
        assert (picture(explorer) == picture(plain)).all()
        assert explorer.png() == plain.png()
        assert dict(matplotlib.rcParams) == before


def test_two_controls_moved_at_once_both_count() -> None:
    """Jupyter answers each control in a thread of its own."""

    class Slow(RowExplorer):
        @staticmethod
        def compute(**values):
            if values["pattern"] == "all equal" and values["look"] == LOOKS[0]:
                started.set()
                time.sleep(0.2)
            return RowExplorer.compute(**values)

    started = threading.Event()
    explorer = Slow()
    scores = part(explorer, ipw.Dropdown, "Scores")
    look = part(explorer, ipw.Dropdown, "May look at")
    slow = threading.Thread(target=lambda: setattr(scores, "value", "all equal"))
    slow.start()
    assert started.wait(10)
    look.value = LOOKS[2]
    slow.join()
    assert explorer.values["pattern"] == scores.value == "all equal"
    assert explorer.values["look"] == look.value == LOOKS[2]
    assert spoken(explorer, "status") == explorer.status
    assert explorer.status == RowExplorer(**explorer.values).status


def test_a_computation_may_refuse_values_that_do_not_go_together() -> None:
    class Split(RowExplorer):
        @staticmethod
        def compute(**values):
            if values["position"] == 3:
                raise ValueError("Position t: expected anything but 3, got 3.")
            return RowExplorer.compute(**values)

    explorer = Split()
    part(explorer, ipw.Text, "Position t").value = "3"
    assert spoken(explorer, "alert") == "Position t: expected anything but 3, got 3. It stays at 6."


def test_the_example_of_the_package_works() -> None:
    text = course.widgets.__doc__
    code = textwrap.dedent(text[text.index("    from course") : text.index("``DecayExplorer(")])
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    scope: dict = {"np": np}
    exec(code, scope)
    explorer = scope["DecayExplorer"](rate=0.5)
    assert explorer.status == "After 10 steps 0.00 is left."
    part(explorer, ipw.FloatSlider, "Rate").value = 0.9
    assert explorer.status == "After 10 steps 0.35 is left."
    assert explorer.alt(explorer.values, explorer.arrays).startswith("How fast")


def test_how_long_a_redraw_takes(kind, explorer, capsys) -> None:
    """Printed; the bound is the budget of 100 ms times ten, for machines that do much else."""
    control = next(c for c in kind.controls.values() if isinstance(c, Slider))
    slider = handle(explorer, control)
    seconds = []
    for value in 2 * control.grid()[:4]:
        start = time.process_time()
        slider.value = value
        seconds.append(time.process_time() - start)
    taken = statistics.median(seconds)
    with capsys.disabled():
        print(f"\n  {kind.__name__}: a redraw takes {taken * 1e3:.0f} ms of processor time")
    assert taken < 1


def test_the_quick_drawing_shows_what_the_full_one_does(kind, explorer) -> None:
    """Up to a few pixels where something moves over an axis."""

    canvas = FigureCanvasAgg(explorer.figure)
    for name, control in list(kind.controls.items())[:4]:
        for value in control.grid()[1:3]:  # the second is drawn over what the first left behind
            explorer.set_values(**{name: value})
        with style():
            canvas.draw()
        full = np.asarray(canvas.buffer_rgba())[..., :3]
        differ = (picture(explorer) != full).any(-1)
        assert differ.mean() < 1e-4, name
