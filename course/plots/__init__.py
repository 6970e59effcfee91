"""Pictures that state their finding: pure functions from numbers to a :class:`Picture`.

A picture is a PNG with alt text and, as plain text, one sentence with the numbers drawn. A reader
without a kernel, a screen reader and the notebook comparison all get that sentence.

``style`` has the look and the :class:`Picture`, ``charts`` what any notebook may draw, ``parts``
what charts and explorers share, ``diagrams`` boxes and arrows on given axes, and ``nb…`` the
pictures that one notebook draws. ``drawing`` is the language of drawings: a canvas on which
matrices are to scale. ``mechanisms`` has the pictures drawn with it.
"""

from course.plots.charts import bars, curves, heatmap, heatmaps, law_and_points, panels
from course.plots.drawing import Canvas
from course.plots.mechanisms import (
    drowning,
    heads_into_stream,
    language_model,
    mean_as_matrix,
    query_key_value,
    residual_stream,
    softmax_steps,
    targets_and_mask,
    who_reaches_whom,
)
from course.plots.nb02_query_key_value import (
    anova,
    cache_step,
    conflict,
    one_reading,
    two_factors,
    unit,
)
from course.plots.nb03_scale_and_position import clocks, penalised_row, sharpening, turning
from course.plots.nb04_the_block import (
    feed_forward_store,
    norm_on_a_circle,
    pre_and_post,
)
from course.plots.nb05_what_it_costs import cache_and_state, prices, shared_heads
from course.plots.nb06_kernel_factorisation import brackets, clouds, ratios
from course.plots.nb07_the_rnn_view import (
    cache_and_register,
    four_forms,
    one_sheet,
    sum_of_products,
    two_pasts,
)
from course.plots.nb08_gpu_kernels import (
    in_time,
    memory_levels,
    roofline,
    row_in_tiles,
    tiles,
    traffic,
)
from course.plots.nb09_recall_capacity import (
    correction,
    leaks,
    sheets,
    what_is_left,
    write_and_read,
)
from course.plots.nb10_recall_memory_frontier import (
    frontier,
    reach,
    recall_task,
    two_layer_lookup,
    what_is_carried,
)
from course.plots.nb11_winograd_probes import (
    by_word,
    circuits,
    every_seed,
    interval,
    weight_and_effect,
    who_is_it,
)
from course.plots.parts import (
    as_array,
    clear_of_ticks,
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
    "Canvas",
    "Picture",
    "anova",
    "as_array",
    "bars",
    "brackets",
    "by_word",
    "cache_and_register",
    "cache_and_state",
    "cache_step",
    "circuits",
    "clear_of_ticks",
    "clocks",
    "clouds",
    "colour_map",
    "conflict",
    "correction",
    "curves",
    "draw_matrix",
    "drowning",
    "encode",
    "every_seed",
    "feed_forward_store",
    "four_forms",
    "freeze",
    "frontier",
    "heads_into_stream",
    "heatmap",
    "heatmaps",
    "in_time",
    "interval",
    "label_tokens",
    "language_model",
    "law_and_points",
    "leaks",
    "mean_as_matrix",
    "memory_levels",
    "new_figure",
    "norm_on_a_circle",
    "number",
    "one_line",
    "one_reading",
    "one_sheet",
    "panels",
    "penalised_row",
    "png",
    "pre_and_post",
    "prices",
    "query_key_value",
    "ratios",
    "reach",
    "readable_on",
    "recall_task",
    "residual_stream",
    "roofline",
    "row_in_tiles",
    "shared_heads",
    "sharpening",
    "sheets",
    "short",
    "signed_norm",
    "softmax_steps",
    "style",
    "sum_of_products",
    "targets_and_mask",
    "tiles",
    "traffic",
    "turning",
    "two_factors",
    "two_layer_lookup",
    "two_pasts",
    "unit",
    "weight_and_effect",
    "what_is_carried",
    "what_is_left",
    "who_is_it",
    "who_reaches_whom",
    "write_and_read",
]
