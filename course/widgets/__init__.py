"""Explorers: one picture, a few controls, and a sentence that says what the picture shows.

A new explorer is a pure function from control values to arrays, and a drawing of those arrays:

    from course.widgets import Explorer, Slider

    class DecayExplorer(Explorer):
        title = "How fast does a power fall?"
        controls = {"rate": Slider("Rate", 0.9, low=0.0, high=1.0, step=0.01)}

        @staticmethod
        def compute(*, rate):  # pure: tests call it over the grid of values
            return {"t": np.arange(21), "y": rate ** np.arange(21)}

        def build(self, figure, arrays):  # once: make the artists
            axes = figure.subplots()
            axes.set(xlim=(0, 20), ylim=(0, 1), xlabel="step t", ylabel="rateᵗ")
            (self.line,) = axes.plot(arrays["t"], arrays["y"])

        def update(self, arrays):  # after every change: move them
            self.line.set_data(arrays["t"], arrays["y"])

        def finding(self, values, arrays):
            return f"After 10 steps {arrays['y'][10]:.2f} is left."

``DecayExplorer(rate=0.5)`` starts elsewhere; ``explorer.set_values(rate=0.2)`` moves it from code;
``explorer.values``, ``explorer.arrays`` and ``explorer.status`` say where it stands. A
``ValueError`` raised by ``compute`` is shown to the reader as its sentence, and the last good
picture stays.
"""

from course.widgets.attention import AttentionExplorer
from course.widgets.base import Choice, Explorer, Slider, Switch, TextField
from course.widgets.block import BlockExplorer
from course.widgets.chunk import ChunkExplorer
from course.widgets.cost import CostExplorer
from course.widgets.crosstalk import CrosstalkExplorer
from course.widgets.feature_maps import FeatureMapExplorer
from course.widgets.positions import PositionExplorer
from course.widgets.probe import ProbeExplorer
from course.widgets.register import RegisterExplorer
from course.widgets.roofline import RooflineExplorer
from course.widgets.row import RowExplorer
from course.widgets.scale import ScaleExplorer

__all__ = [
    "AttentionExplorer",
    "BlockExplorer",
    "Choice",
    "ChunkExplorer",
    "CostExplorer",
    "CrosstalkExplorer",
    "Explorer",
    "FeatureMapExplorer",
    "PositionExplorer",
    "ProbeExplorer",
    "RegisterExplorer",
    "RooflineExplorer",
    "RowExplorer",
    "ScaleExplorer",
    "Slider",
    "Switch",
    "TextField",
]
