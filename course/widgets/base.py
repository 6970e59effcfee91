"""The base of every explorer, and the four kinds of control; see :mod:`course.widgets`."""

from __future__ import annotations

import base64
import re
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any, ClassVar

import ipywidgets as ipw
import numpy as np
from matplotlib.figure import Figure

from course.plots import CSS_PIXELS_PER_INCH, freeze, new_figure, one_line, png, style
from course.widgets.page import REFUSED, SENTENCE, alert, dress, frame, links
from course.widgets.paint import Painter, quick_png, svg

_LABEL_WIDTH = "9.2em"

# What a control calls with what the reader entered, as it came.
Receive = Callable[[object], None]


@dataclass(frozen=True)
class Slider:
    """A number from ``low`` to ``high``: a slider with a linked number field.

    The values are whole numbers if ``value`` is an ``int``. The field takes any number in the
    range, also between the steps of the slider, which then stands at the nearest. ``log``: each
    step doubles the number, and low and high are powers of 2; for quantities that stand on
    logarithmic axes.
    """

    label: str
    value: float
    low: float
    high: float
    step: float = 1
    log: bool = False

    def read(self, raw: object) -> float:
        """The number that ``raw`` (a number, or what was typed) stands for, or ``ValueError``."""
        whole = isinstance(self.value, int)
        kind = "a whole number" if whole else "a number"
        wanted = f"{self.label}: expected {kind} from {_text(self.low)} to {_text(self.high)}"
        try:
            if isinstance(raw, bool | np.bool_):
                raise ValueError
            number = float(raw.strip().replace("−", "-") if isinstance(raw, str) else raw)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            came = "nothing" if isinstance(raw, str) and not raw.strip() else _quoted(raw)
            raise ValueError(f"{wanted}, got {came}.") from None
        if not self.low <= number <= self.high or (whole and number != int(number)):
            raise ValueError(f"{wanted}, got {_text(number)}.")
        return int(number) if whole else number

    def grid(self) -> list[float]:
        """Every place the slider can stand at."""
        if self.log:
            exponents = range(round(np.log2(self.low)), round(np.log2(self.high)) + 1)
            return [self._place(2.0**exponent) for exponent in exponents]
        count = round((self.high - self.low) / self.step)
        return [self._place(self.low + i * self.step) for i in range(count + 1)]

    def _place(self, number: float) -> float:
        """The place of the slider that is nearest to ``number``."""
        if self.log:
            return self.read(2.0 ** round(np.log2(number)))
        place = self.low + round((number - self.low) / self.step) * self.step
        return self.read(round(min(place, self.high), 10))

    def _spoken(self) -> str:
        """The name of the number field."""
        return f"{self.label}, a number from {_text(self.low)} to {_text(self.high)}"

    def widgets(self, receive: Receive) -> tuple[ipw.Widget, ...]:
        if self.log:
            make, low, high = ipw.FloatLogSlider, np.log2(self.low), np.log2(self.high)
            options = {"base": 2.0}
        else:
            make = ipw.IntSlider if isinstance(self.value, int) else ipw.FloatSlider
            low, high, options = self.low, self.high, {}
        slider = make(
            value=self.value,
            min=low,
            max=high,
            step=self.step,
            description=self.label,
            readout=False,
            tooltip="The arrow keys move it; the field beside it takes a number.",
            style={"description_width": _LABEL_WIDTH},
            layout=ipw.Layout(width="21.7em", min_width="12em", flex="0 1 auto"),
            **options,
        )
        field = ipw.Text(
            value=_text(self.value),
            continuous_update=False,
            # The name that a screen reader speaks; eyes have read it before the slider.
            description=self._spoken(),
            style={"description_width": "0px"},
            layout=ipw.Layout(width="4.8em"),
        )

        # A browser answers what is shown to it with the place at which it put the slider, rounded
        # in its own way: that is no move.
        def moved(change: Mapping[str, Any]) -> None:
            place = self._place(change["new"])
            if place != self._place(change["old"]):
                receive(place)

        slider.observe(moved, names="value")
        _listen(field, receive)
        return slider, field

    def show(self, widgets: Sequence[ipw.Widget], value: Any) -> None:
        slider, field = widgets
        if not self.log:
            slider.max = self.high
        slider.value = self._place(value)
        field.description = self._spoken()
        field.value = _text(value)


@dataclass(frozen=True)
class Choice:
    """One of ``options``: a drop-down list."""

    label: str
    value: str
    options: tuple[str, ...]

    def read(self, raw: object) -> str:
        """``raw`` if it is one of the options, or ``ValueError``."""
        if raw not in self.options:
            listed = "; ".join(self.options)
            raise ValueError(f"{self.label}: expected one of: {listed}; got {_quoted(raw)}.")
        return str(raw)

    def grid(self) -> list[str]:
        """Every option."""
        return list(self.options)

    def widgets(self, receive: Receive) -> tuple[ipw.Widget, ...]:
        box = ipw.Dropdown(
            options=self.options,
            value=self.value,
            description=self.label,
            style={"description_width": _LABEL_WIDTH},
            layout=ipw.Layout(width="26.6em", max_width="98%"),
        )
        _listen(box, receive)
        return (box,)

    def show(self, widgets: Sequence[ipw.Widget], value: Any) -> None:
        widgets[0].value = value


@dataclass(frozen=True)
class Switch:
    """Yes or no: a check box."""

    label: str
    value: bool

    def read(self, raw: object) -> bool:
        """``raw`` if it is a boolean, or ``ValueError``."""
        if not isinstance(raw, bool | np.bool_):
            raise ValueError(f"{self.label}: expected True or False, got {_quoted(raw)}.")
        return bool(raw)

    def grid(self) -> list[bool]:
        """Off and on."""
        return [False, True]

    def widgets(self, receive: Receive) -> tuple[ipw.Widget, ...]:
        box = ipw.Checkbox(
            value=self.value,
            description=self.label,
            indent=False,
            layout=ipw.Layout(width="auto", margin=f"2px 2px 2px {_LABEL_WIDTH}"),
        )
        _listen(box, receive)
        return (box,)

    def show(self, widgets: Sequence[ipw.Widget], value: Any) -> None:
        widgets[0].value = value


@dataclass(frozen=True)
class TextField:
    """A line of text; ``parse`` returns it cleaned, or raises ``ValueError`` with a sentence."""

    label: str
    value: str
    parse: Callable[[str], str]
    examples: tuple[str, ...] = ()

    def read(self, raw: object) -> str:
        """The cleaned text, or ``ValueError`` that starts with the label."""
        if not isinstance(raw, str):
            raise ValueError(f"{self.label}: expected text, got {_quoted(raw)}.")
        try:
            return self.parse(raw)
        except ValueError as error:
            raise ValueError(f"{self.label}: {error}") from None

    def grid(self) -> list[str]:
        """The first text, and the examples."""
        return [self.value, *self.examples]

    def widgets(self, receive: Receive) -> tuple[ipw.Widget, ...]:
        field = ipw.Text(
            value=self.value,
            description=self.label,
            continuous_update=False,
            style={"description_width": _LABEL_WIDTH},
            layout=ipw.Layout(width="52em", max_width="98%"),
        )
        _listen(field, receive)
        return (field,)

    def show(self, widgets: Sequence[ipw.Widget], value: Any) -> None:
        widgets[0].value = value


Control = Slider | Choice | Switch | TextField


class Explorer(ipw.VBox):
    """A picture over a few controls, with a status sentence, and PNG and SVG to save.

    A subclass declares ``title``, ``controls``, ``size`` (CSS inches), perhaps a ``note`` and the
    ``chief`` of the controls, and defines ``compute``, ``build``, ``update`` and ``finding``.
    Keyword arguments are the first values of the controls; ``ValueError`` on an unknown name or a
    value that the control refuses.

    Displayed in a notebook it also leaves its picture (with alt text) and its status sentence, so
    that a reader without a kernel sees both.
    """

    title: ClassVar[str]
    note: ClassVar[str] = ""  # what the reader should know before believing the picture
    controls: ClassVar[Mapping[str, Control]]
    #: The control that the notebook's question is about: the one that a page of the book can move.
    chief: ClassVar[str]
    size: ClassVar[tuple[float, float]] = (8.0, 3.4)

    def __init__(self, **values: object) -> None:
        inherited = set(vars(self))
        for name in values:
            if name not in self.controls:
                known = ", ".join(self.controls)
                raise ValueError(f"{name}: expected one of the controls {known}")
        self._first: dict[str, Any] = {
            name: control.read(values.get(name, control.value))
            for name, control in self.controls.items()
        }
        self.values: dict[str, Any] = dict(self._first)
        self.arrays: dict[str, Any] = self.compute(**self.values)
        self.status = one_line("finding", self.finding(self.values, self.arrays))
        self.problem = ""
        self._mirroring: int | None = None  # the thread that shows values: no moves of a reader
        self._refused: str | None = None
        # Jupyter handles the messages of two controls in two threads: one at a time, or the slower
        # one puts back the values from before the quicker one.
        self._turn = threading.RLock()
        self._last_move: dict[str, object] = {}  # of each control, the move that came last
        self._saved = ""  # the links to the picture, once the reader wants to save it
        with style():
            self.figure: Figure = new_figure(*self.size)
            self.build(self.figure, self.arrays)
            self.update(self.arrays)
        freeze(self.figure)
        self._painter = Painter(self.figure)
        self._page = self._draw(self.values, self.arrays)

        self._status, self._problem, self._save = ipw.HTML(), ipw.HTML(), ipw.HTML()
        # Scrolls in a narrow page: letters that shrink with their picture cannot be read.
        self._picture = ipw.HTML(layout=ipw.Layout(overflow="auto", max_width="100%"))
        self._parts: dict[str, tuple[ipw.Widget, ...]] = {}
        rows = []
        for name, control in self.controls.items():
            self._parts[name] = control.widgets(self._receiver(name))
            wraps = ipw.Layout(flex_flow="row wrap", max_width="100%")
            rows.append(ipw.HBox(self._parts[name], layout=wraps))
        self._mirror()
        buttons = self._buttons()
        # What close() takes away: all of ours but the words and numbers, and what a move that
        # comes late asks for.
        stay = {"values", "arrays", "status", "problem", "_first"}
        stay |= {"_turn", "_last_move", "_mirroring"}
        self._held = set(vars(self)) - inherited - stay
        words = [
            f"<strong>{escape(self.title)}</strong>",
            *([escape(self.note)] if self.note else ()),
        ]
        super().__init__(
            [
                ipw.HTML(dress()),
                *(ipw.HTML(f'<p style="{SENTENCE}">{text}</p>') for text in words),
                ipw.HBox(rows, layout=ipw.Layout(flex_flow="row wrap")),
                self._picture,
                self._problem,  # below the picture: a refused entry must not move it
                self._status,
                buttons,
            ]
        )
        self.add_class("course-explorer")
        self._refresh()

    def _buttons(self) -> ipw.HBox:
        reset = ipw.Button(description="Reset", tooltip="Back to the first values")
        save = ipw.Button(description="Save picture", tooltip="Offers this picture as PNG and SVG")
        dark = ipw.ToggleButton(
            description="Dark picture",
            tooltip="Dark where it is light, and light where it is dark, in scales too",
        )
        reset.on_click(lambda _: self.reset())
        save.on_click(lambda _: self._offer())
        dark.observe(lambda change: self._darken(change["new"]), names="value")
        wraps = ipw.Layout(flex_flow="row wrap", align_items="center")
        return ipw.HBox([reset, save, dark, self._save], layout=wraps)

    # What a subclass defines ------------------------------------------------------------------

    #: The arrays to draw, from the values of all controls by name: a static method, pure, no
    #: drawing, no state. Written as an attribute because each explorer has its own arguments.
    compute: ClassVar[Callable[..., dict[str, Any]]]

    @abstractmethod
    def build(self, figure: Figure, arrays: dict[str, Any]) -> None:
        """Make the axes and artists, once. The layout of this first picture is kept."""
        raise NotImplementedError

    @abstractmethod
    def update(self, arrays: dict[str, Any]) -> None:
        """Move the artists to new arrays; make none."""
        raise NotImplementedError

    @abstractmethod
    def finding(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """One line that says what the picture shows, with its numbers."""
        raise NotImplementedError

    @staticmethod
    def idle(values: Mapping[str, Any]) -> Collection[str]:
        """The controls that do nothing while the others stand as they do: shown greyed out."""
        return ()

    def ends(self, values: Mapping[str, Any], arrays: Mapping[str, Any]) -> Mapping[str, float]:
        """The highest place of a slider where what is shown now leaves less room than usual.

        Not for logarithmic sliders. A reader cannot go beyond; code may, and ``compute`` then takes
        the end.
        """
        return {}

    def alt(self, values: dict[str, Any], arrays: dict[str, Any]) -> str:
        """One line that says what is drawn; the default is the title and the finding."""
        return f"{self.title} {self.finding(values, arrays)}"

    # What a reader or a notebook does ---------------------------------------------------------

    def set_values(self, **values: object) -> None:
        """Move several controls at once; ``ValueError`` leaves everything as it was."""
        with self._turn:
            self._require_open()
            wanted = dict(self.values)
            for name, raw in values.items():
                if name not in self.controls:
                    known = ", ".join(self.controls)
                    raise ValueError(f"{name}: expected one of the controls {known}")
                wanted[name] = self.controls[name].read(raw)
            self._show(wanted, self.compute(**wanted))
            self.problem = ""
            self._mirror()
            self._refresh()

    def reset(self) -> None:
        """Back to the first values."""
        self.set_values(**self._first)

    def png(self) -> bytes:
        """The picture as it stands, as PNG bytes."""
        with self._turn:
            self._require_open()
            return png(self.figure)

    def svg(self) -> bytes:
        """The picture as it stands, as SVG; letters are outlines, as every machine has them."""
        with self._turn:
            self._require_open()
            return svg(self.figure, self.title, self.alt(self.values, self.arrays))

    def close(self) -> None:
        """Free the explorer whole: its widgets, their callbacks, the figure and the pixels.

        What it said (``status``, ``values``, ``arrays``) stays; it cannot be moved or shown again.
        """
        if self.comm is None:  # closed already, or never finished
            return
        with self._turn:
            for widget in [*_family(self)][1:]:
                widget.unobserve_all()
                widget.close()
            self.unobserve_all()
            super().close()
            self.children = ()
            for name in self._held:
                self.__dict__.pop(name, None)

    # The machinery ----------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self.comm is None:
            raise RuntimeError(f"this {type(self).__name__} was closed: make a new one")

    def _receiver(self, name: str) -> Receive:
        def receive(raw: object) -> None:
            if self._mirroring == threading.get_ident():
                return
            move = self._last_move[name] = object()
            with self._turn:
                if self.comm is None:
                    return
                # While another picture was drawn, a newer move of this control has come.
                if self._last_move[name] is move:
                    self._enter(name, raw)

        return receive

    def _offer(self) -> None:
        """Let the reader save the picture that stands there: links that go with the next move."""
        with self._turn:
            if self.comm is not None:
                self._saved = links({"png": self.png(), "svg": self.svg()}, self._file_name())
                self._refresh()

    def _darken(self, dark: bool) -> None:
        """In the browser alone: nothing is drawn or sent again."""
        with self._turn:
            if self.comm is not None:
                (self._picture.add_class if dark else self._picture.remove_class)("course-dark")

    def _enter(self, name: str, raw: object) -> None:
        """Take what the reader entered, or say in a sentence why not and keep the last values."""
        try:
            control, kept = self._as_it_stands(name)
            values = {**self.values, name: control.read(raw)}
            arrays = self.compute(**values)
        except ValueError as error:
            shown = f"“{_clip(kept, 120)}”" if isinstance(kept, str) else _text(kept)
            to_mend = isinstance(self.controls[name], TextField)
            what = "The picture" if to_mend else "It"
            self.problem = f"{str(error).rstrip('.')}. {what} stays at {shown}."
            if to_mend:  # nobody types a sentence twice because of one word
                self._mark(name)
                self._refresh()
                return
        except Exception as error:
            self.problem = self._fault(name, raw, error)
        else:
            try:
                self._show(values, arrays)
                self.problem = ""
            except Exception as error:
                self.problem = self._fault(name, raw, error)
        self._mirror()
        self._refresh()

    def _fault(self, name: str, raw: object, error: Exception) -> str:
        """What the reader must see: a widget's traceback goes to a log."""
        what = _clip(" ".join(str(error).split()), 200)
        return (
            f"This explorer failed on {self.controls[name].label} = {_clip(_text(raw))} "
            f"({type(error).__name__}: {what}). The last good picture stays."
        )

    def _show(self, values: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Say and draw ``arrays``; on an error the picture goes back to where it was."""
        status = one_line("finding", self.finding(values, arrays))
        try:
            self._page = self._draw(values, arrays)
        except Exception:
            self._painter = Painter(self.figure)  # the old one stopped half-way
            self._page = self._draw(self.values, self.arrays)
            raise
        self.values, self.arrays, self.status, self._saved = values, arrays, status, ""

    def _draw(self, values: dict[str, Any], arrays: dict[str, Any]) -> tuple[str, str]:
        """Move the artists and paint: the image's address and its alt text, as HTML has them."""
        with style():
            self.update(arrays)
            image = quick_png(self._painter.paint())
        alt = escape(one_line("alt", self.alt(values, arrays)))
        return f"data:image/png;base64,{base64.b64encode(image).decode()}", alt

    def _mirror(self) -> None:
        """Let every control show the value that holds, grey where it does nothing."""
        self._mirroring = threading.get_ident()
        idle = self.idle(self.values)
        try:
            self._mark(None)
            for name in self.controls:
                control, value = self._as_it_stands(name)
                control.show(self._parts[name], value)
                for part in self._parts[name]:
                    part.disabled = name in idle
        finally:
            self._mirroring = None

    def _as_it_stands(self, name: str) -> tuple[Control, Any]:
        """A control with the range that can be reached now, and the value that it shows."""
        control, value = self.controls[name], self.values[name]
        end = self.ends(self.values, self.arrays).get(name)
        if isinstance(control, Slider) and end is not None:
            return replace(control, high=end), min(value, end)
        return control, value

    def _mark(self, name: str | None) -> None:
        """Frame the field whose entry was refused and stays there; None: no field."""
        for refused, change in ((self._refused, "remove_class"), (name, "add_class")):
            if refused is not None:
                getattr(self._parts[refused][0], change)(REFUSED)
        self._refused = name

    def _refresh(self) -> None:
        """Send the sentences and the picture; what is as it was is not sent again."""
        self._status.value = f'<p role="status" style="{SENTENCE}">{escape(self.status)}</p>'
        self._problem.value = alert(self.problem)
        width = round(self.figure.get_size_inches()[0] * CSS_PIXELS_PER_INCH)
        self._picture.value = frame(*self._page, width)
        self._save.value = self._saved

    def _file_name(self) -> str:
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(self).__name__)
        return words.lower()

    def __repr__(self) -> str:
        return self.status

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None, **options: object
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        data: dict[str, Any] = {"image/png": self.png(), "text/plain": self.status}
        if _kernel_is_live():
            data = {**(super()._repr_mimebundle_(**options) or {}), **data}
        width, height = (round(x * CSS_PIXELS_PER_INCH) for x in self.figure.get_size_inches())
        shown = {"alt": self.alt(self.values, self.arrays), "width": width, "height": height}
        return data, {"image/png": shown}


def _family(widget: ipw.Widget) -> Iterator[ipw.Widget]:
    """A widget and all that belong to it: what it contains, their layouts and styles."""
    yield widget
    for name in widget.keys:
        value = getattr(widget, name)
        for part in value if isinstance(value, list | tuple) else (value,):
            if isinstance(part, ipw.Widget):
                yield from _family(part)


def _listen(widget: ipw.Widget, receive: Receive) -> None:
    widget.observe(lambda change: receive(change["new"]), names="value")


def _kernel_is_live() -> bool:
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def _text(value: object) -> str:
    """A value as a reader types it: 0.5, 3, words; no 0.30000000000000004 and no −0."""
    if isinstance(value, float):
        return f"{value + 0.0:.10g}"
    return str(value)


def _quoted(raw: object) -> str:
    return f"“{_clip(str(raw))}”"


def _clip(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
