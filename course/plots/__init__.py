"""Pictures that state their finding: pure functions from numbers to a :class:`Picture`.

A picture is a PNG with alt text and, as plain text, one sentence with the numbers drawn. A reader
without a kernel, a screen reader and the notebook comparison all get that sentence.

``style`` has the look and the :class:`Picture`, ``charts`` what any notebook may draw, ``parts``
what charts and explorers share, ``diagrams`` boxes and arrows, and ``nb…`` the pictures that one
notebook draws.
"""

from course.plots.charts import bars, curves, heatmap, heatmaps, law_and_points, panels
from course.plots.nb06_kernel_factorisation import clouds, ratios
from course.plots.nb07_the_rnn_view import four_forms, two_pasts
from course.plots.nb08_gpu_kernels import roofline, tiles, traffic
from course.plots.parts import (
    as_array,
    colour_map,
    draw_matrix,
    label_tokens,
    number,
    readable_on,
    short,
    signed_norm,
)
from course.plots.style import (
    COLOURS,
    CSS_PIXELS_PER_INCH,
    HIDDEN,
    INK,
    MARKERS,
    QUIET,
    SIGNED,
    WEIGHTS,
    Picture,
    encode,
    freeze,
    new_figure,
    one_line,
    png,
    style,
)

__all__ = [
    "COLOURS",
    "CSS_PIXELS_PER_INCH",
    "HIDDEN",
    "INK",
    "MARKERS",
    "QUIET",
    "SIGNED",
    "WEIGHTS",
    "Picture",
    "as_array",
    "bars",
    "clouds",
    "colour_map",
    "curves",
    "draw_matrix",
    "encode",
    "four_forms",
    "freeze",
    "heatmap",
    "heatmaps",
    "label_tokens",
    "law_and_points",
    "new_figure",
    "number",
    "one_line",
    "panels",
    "png",
    "ratios",
    "readable_on",
    "roofline",
    "short",
    "signed_norm",
    "style",
    "tiles",
    "traffic",
    "two_pasts",
]
