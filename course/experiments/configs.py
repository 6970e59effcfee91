"""The declared experiments: plain data, one config a run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from course.values import require_choice

_LANGUAGE_MODEL = "course.experiments.language_model:execute"
_RECALL = "course.experiments.recall:execute"
_WINOGRAD = "course.experiments.winograd:execute"
_CIRCUITS = "course.experiments.circuits:execute"
_INDUCTION = "course.experiments.induction:execute"


def configs(name: str, *, seed: int | None = None) -> list[dict[str, Any]]:
    """The configs of experiment ``name``, of one ``seed`` or of all, in the order of its table.

    Raises ``ValueError`` for an unknown name.
    """
    require_choice("name", name, EXPERIMENTS)
    return [config for config in EXPERIMENTS[name]() if seed in (None, config["seed"])]


def _run(
    experiment: str,
    label: str,
    model: dict[str, Any],
    training: dict[str, Any],
    *,
    seed: int = 0,
    **more: Any,
) -> dict[str, Any]:
    return {
        "experiment": experiment,
        "label": label,
        "run": _LANGUAGE_MODEL,
        "seed": seed,
        "model": copy.deepcopy(model),
        "training": {"lr": 1e-3, "warmup": 0, **training},
        "evaluate_every": 250,
    } | more


def counts() -> list[dict[str, Any]]:
    """What counting predicts, the yardstick of the ladder's first rungs (row 1.6)."""
    return [
        {
            "experiment": "counts",
            "label": label,
            "run": "course.experiments.counts:execute",
            "seed": 0,
        }
        for label in ("unigrams", "bigrams")
    ]


# 16 windows a step: with 64 a rung takes four times as long, an hour for the last.
_LADDER_TRAINING = {"steps": 3000, "batch": 16, "window": 128}


def ladder() -> list[dict[str, Any]]:
    """From no context to two blocks, one part more a rung (notebooks 01, 04)."""
    rung: dict[str, Any] = {
        "E": 128,
        "L": 1,
        "H": 1,
        "max_length": 128,
        "mixer": "none",
        "positions": "none",
        "residual": False,
        "hidden": 0,
        "norm": "none",
    }
    steps: list[tuple[str, dict[str, Any]]] = [
        ("no context", {}),
        ("mean", {"mixer": "mean"}),
        ("mean + positions", {"positions": "learned"}),
        ("mean + positions + residual", {"residual": True}),
        # Learned weights replace the mean; values reach the output without W_o until heads need it.
        (
            "learned weights",
            {"mixer": "softmax", "mixer_options": {"mix_heads": False}, "residual": False},
        ),
        ("learned weights + residual", {"residual": True}),
        ("+ 4 heads", {"H": 4, "mixer_options": {"mix_heads": True}}),
        ("+ feed-forward", {"hidden": 512}),
        ("+ LayerNorm", {"norm": "pre"}),
        ("+ second block", {"L": 2}),
    ]
    rungs = []
    for label, change in steps:
        rung = rung | change
        rungs.append((label, rung))
    return [
        _run("ladder", label, rung, _LADDER_TRAINING, seed=seed)
        for seed in _SEEDS["ladder"]
        for label, rung in rungs
    ]


def ladder64() -> list[dict[str, Any]]:
    """The rungs from learned weights on, with 64 windows a step (notebook 04)."""
    runs = configs("ladder", seed=0)
    first = [run["label"] for run in runs].index("learned weights")
    return [
        run | {"experiment": "ladder64", "training": run["training"] | {"batch": 64}}
        for run in runs[first:]
    ]


def scale() -> list[dict[str, Any]]:
    """Scores divided by √D or not, at three key widths, and what becomes of them (03).

    One head, no norm before the projections, learned positions.
    """
    training = {"steps": 1500, "batch": 16, "window": 64}
    return [
        _run(
            "scale",
            f"D = {D}, {name}",
            {**_ONE_BLOCK, "H": 1, "D": D, "hidden": 0, "norm": "none", "scale": factor},
            training,
            seed=seed,
            measure="scores",
            **_SHORT_CURVE,
        )
        for seed in _SEEDS["scale"]
        for D in (32, 256, 1024)
        for name, factor in (("divided", None), ("not divided", 1.0))
    ]


def positions() -> list[dict[str, Any]]:
    """Trained at window 64, evaluated at 64, 128 and 256 (notebook 03); one block."""
    return [
        _run(
            "positions",
            scheme,
            {**_ONE_BLOCK, "positions": scheme, "max_length": 256},
            {"steps": 1500, "batch": 16, "window": 64},
            seed=seed,
            evaluation_windows=[64, 128, 256],
            **_SHORT_CURVE,
        )
        for seed in _SEEDS["positions"]
        for scheme in ("none", "learned", "sinusoidal", "rope", "alibi")
    ]


def norms() -> list[dict[str, Any]]:
    """Norm before or after each part, 12 blocks, rate 3e-3, with and without warm-up (04).

    A narrow model (E = 64) on 8 windows of 64, to keep a run at a minute or two. The last label is
    a shorter control: five steps at the full rate, then the run with warm-up, from there.
    """
    placements: list[tuple[str, str, dict[str, int]]] = [
        (f"{norm}-norm, {told}", norm, {"steps": 1000, "warmup": warmup})
        for norm in ("pre", "post")
        for warmup, told in ((0, "no warm-up"), (200, "200 steps of warm-up"))
    ]
    control = {"steps": 400, "warmup": 200, "bold": 5}
    placements.append(("post-norm, 5 bold steps, then warm-up", "post", control))
    return [
        _run(
            "norms",
            label,
            {**_ONE_BLOCK, "E": 64, "L": 12, "norm": norm},
            {"batch": 8, "window": 64, "lr": 3e-3, **training},
            seed=seed,
            **_SHORT_CURVE,
        )
        for seed in _SEEDS["norms"]
        for label, norm, training in placements
    ]


def recall() -> list[dict[str, Any]]:
    """A convolution, then one mixer: 8 pairs in 40 tokens, by map and key width (notebook 10).

    18 keys, so that no state but the two widest has a feature for each. Positions: the
    convolution's.
    """
    convolution = ("conv", {"width": 3})
    rows: list[tuple[str, str, dict[str, Any]]] = [
        ("softmax", "softmax", {}),
        *[(f"elu, D = {D}", "linear", {"key_width": D}) for D in (4, 16, 32, 64)],
        ("taylor, D = 4", "linear", {"feature_map": "taylor", "key_width": 4}),
        ("window 8", "window", {"window": 8}),
    ]
    layers = [(label, convolution, (mixer, options)) for label, mixer, options in rows]
    layers.append(("softmax, no convolution", ("none", {}), ("softmax", {})))
    return [
        _recall_run(
            "recall",
            label,
            *both,
            seed=seed,
            model={"D": 16},
            task={"seq_len": 40, "n_pairs": 8, "vocab_size": 48},
            training={"steps": 1000, "batch": 32, "halvings": 0, "lr": 6e-3, "warmup": 0},
            evaluate_every=50,
        )
        for seed in _SEEDS["recall"]
        for label, *both in layers
    ]


_Layer = tuple[str, dict[str, Any]]  # a mixer and its options


def _recall_run(
    experiment: str,
    label: str,
    first: _Layer,
    second: _Layer,
    *,
    model: dict[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """One head, no feed-forward layers: only the mixers can carry a value to its query."""
    sizes: dict[str, Any] = {"E": 64, "L": 2, "H": 1, "D": 32, "Dv": 64, "hidden": 0, "norm": "pre"}
    layers = {"mixer": [first[0], second[0]], "mixer_options": [first[1], second[1]]}
    if second[0] == "window":  # how far back the farthest token lies that can have an influence
        reaches = {"conv": lambda o: o["width"] - 1, "window": lambda o: o["window"] - 1}
        more["reach"] = sum(reaches[mixer](options) for mixer, options in (first, second))
    return {
        "experiment": experiment,
        "label": label,
        "run": _RECALL,
        "model": copy.deepcopy(sizes | layers | model),
    } | copy.deepcopy(more)


#: Label, mixer, options; and whether the point is also measured without the convolution.
_FRONTIER: list[tuple[str, str, dict[str, Any], bool]] = [
    ("softmax", "softmax", {}, True),
    ("hybrid, taylor 16 + window 64", "hybrid", {"key_width": 16, "window": 64}, True),
    ("taylor, D = 16", "linear", {"feature_map": "taylor", "key_width": 16}, True),
    *[(f"window {w}", "window", {"window": w}, True) for w in (64, 32, 16, 8)],
    *[(f"delta, D = {D}", "delta", {"key_width": D}, D > 8) for D in (32, 16, 64, 8)],
    *[(f"elu, D = {D}", "linear", {"key_width": D}, D in (16, 64)) for D in (32, 16, 64, 8)],
    *[
        (f"taylor, D = {D}", "linear", {"feature_map": "taylor", "key_width": D}, D == 8)
        for D in (8, 4)
    ],
    *[(f"gated, D = {D}", "gated", {"key_width": D}, D in (16, 64)) for D in (32, 16, 64, 8)],
    ("hybrid, taylor 8 + window 16", "hybrid", {"key_width": 8, "window": 16}, True),
    *[
        (
            f"favor, {features} features",
            "linear",
            {"feature_map": "favor", "map_options": {"features": features}, "key_width": 16},
            features == 256,
        )
        for features in (64, 256, 16)
    ],
    *[
        (
            f"cosformer, D = {D}",
            "linear",
            {"feature_map": "cosformer", "map_options": {"max_length": 256}, "key_width": D},
            D == 32,
        )
        for D in (16, 32, 8)
    ],
    # Additive writing as it stands in the formula: keys without a map, nothing divided.
    *[
        (
            f"plain, D = {D}",
            "linear",
            {"feature_map": "identity", "normalize": False, "key_width": D},
            False,
        )
        for D in (32, 16, 64, 8)
    ],
]


def frontier() -> list[dict[str, Any]]:
    """Accuracy against state bytes: 32 pairs in 256 tokens, two blocks of a mixer (notebook 10).

    The control has a width-3 convolution for its first block. Mixers with scores get rotations for
    positions, all others a learned table: without, nothing could find the token before. In the
    control all have the table. Rates: from a pilot, in which 1e-3 was too slow; the second only for
    what the first left unsolved. Three seeds where the two halves and the hybrid are compared. One
    run more asks whether the hybrid needs its rotations.
    """
    first, second = 3e-3, 1e-2
    deciding = _FRONTIER[:4]
    hybrid = deciding[1]
    alone = [row for row in _FRONTIER if row[3]]
    # Softmax is solved by the first rate, and what a window misses lies out of its reach.
    unsolved = [row for row in _FRONTIER if row[1] not in ("softmax", "window")]
    return [
        *[_frontier_run(row, convolution=False, lr=first) for row in deciding],
        *[_frontier_run(row, convolution=True, lr=first) for row in _FRONTIER],
        *[_frontier_run(row, convolution=False, lr=first) for row in alone if row not in deciding],
        *[
            _frontier_run(row, convolution=False, lr=first, seed=seed)
            for seed in (1, 2)
            for row in deciding
        ],
        *[
            _frontier_run(row, convolution=True, lr=second)
            for row in unsolved
            if row not in deciding
        ],
        *[
            _frontier_run(row, convolution=False, lr=second)
            for row in unsolved
            if row in alone and row is not hybrid
        ],
        _frontier_run(hybrid, convolution=False, lr=first, positions="learned"),
    ]


def _frontier_run(
    row: tuple[str, str, dict[str, Any], bool],
    *,
    convolution: bool,
    lr: float,
    seed: int = 0,
    positions: str | None = None,
) -> dict[str, Any]:
    label, mixer, options, _ = row
    first = ("conv", {"width": 3}) if convolution else (mixer, options)
    scored = mixer in ("softmax", "window", "hybrid")
    if positions is not None:
        label += f", {positions} positions"
    return _recall_run(
        "frontier",
        f"{'conv + ' if convolution else ''}{label}, rate {lr:g}",
        first,
        (mixer, options),
        seed=seed,
        # With the table softmax alone needs four times the steps.
        model={"positions": positions or ("rope" if scored and not convolution else "learned")},
        # halvings: mixed lengths, as Arora et al. train. On 256 tokens alone two blocks of softmax
        # learned nothing in 3,000 steps; on these they solve the task in about 300.
        training={"steps": 2000, "batch": 8, "halvings": 4, "lr": lr, "warmup": 100},
        task={"seq_len": 256, "n_pairs": 32, "vocab_size": 128},
        evaluate_every=100,
    )


#: The models of the Winograd probes: label, what differs from one block, learning rate.
_PROBED: list[tuple[str, dict[str, Any], float]] = [
    ("mean", {"mixer": "mean", "norm": "none", "hidden": 0}, 2e-2),
    ("mean + feed-forward", {"mixer": "mean", "norm": "none"}, 1e-2),
    ("one block", {}, 2e-3),
    ("two blocks", {"L": 2}, 2e-3),
    ("normed mean + feed-forward", {"mixer": "mean"}, 1e-2),
    *[
        (label + blocks, {"mixer": mixer, "mixer_options": options, "L": L}, 2e-3)
        for L, blocks in ((1, ""), (2, ", two blocks"))
        for label, mixer, options in (
            ("linear", "linear", {}),
            ("window 10", "window", {"window": 10}),
            ("delta", "delta", {}),
            ("gated", "gated", {}),
            ("hybrid", "hybrid", {"window": 10, "key_width": 8}),
        )
    ],
]
_PROBED_BLOCK = {"E": 64, "L": 1, "H": 4, "hidden": 64, "max_length": 18, "norm": "pre"}


def winograd() -> list[dict[str, Any]]:
    """Which noun does "it" mean: every mixer on both versions of the task (notebook 11).

    Ten seeds a run; pairs held out in one order. Rates: from a pilot. A window of 10 reaches from
    "so the" back to the second noun, but not to the first.
    """
    short = [row for row in _PROBED if row[1].get("L", 1) == 1 or row[0] == "two blocks"]
    wide = ("one block, wide and long", {"hidden": 256}, 2e-3)
    bare = ("two blocks, no feed-forward", {"L": 2, "hidden": 0}, 2e-3)
    first = _PROBED[:4]
    return [
        *[_winograd_run("repaired", row, positions) for positions in _TWO for row in first],
        *[_winograd_run("leaky", row, "learned") for row in first],
        _winograd_run("repaired", bare, "learned"),
        *[_winograd_run("repaired", row, positions) for positions in _TWO for row in _PROBED[4:]],
        *[_winograd_run("leaky", row, "learned") for row in short[4:]],
        *[_winograd_run("leaky", row, "none") for row in short],
        _winograd_run("repaired", wide, "learned", steps=3000),
    ]


_TWO = ("learned", "none")


def circuits() -> list[dict[str, Any]]:
    """Two blocks on the repaired task, one seed a run, each taken apart (notebook 11)."""
    two = _PROBED[3]
    return [
        _winograd_run("repaired", two, "learned")
        | {"experiment": "circuits", "label": f"seed {seed}", "run": _CIRCUITS, "seed": seed}
        for seed in range(10)
    ]


def induction() -> list[dict[str, Any]]:
    """A text that repeats itself with a random period: who continues it, from when on (11).

    Attention only. The last run has one period for all texts: there a single layer suffices.
    """
    two = {"mixer": ["conv", "softmax"], "mixer_options": [{"width": 2}, {}], "L": 2}
    sizes = {"seq_len": 40, "vocab_size": 32}
    random, fixed = {"shortest": 6, "longest": 20}, {"shortest": 13, "longest": 13}
    rows: list[tuple[str, dict[str, Any], dict[str, int]]] = [
        ("two layers", {"L": 2}, random),
        ("one layer", {"L": 1}, random),
        ("convolution of width 2, one layer", two, random),
        ("one layer, one period for all", {"L": 1}, fixed),
    ]
    model = {"E": 64, "H": 4, "hidden": 0, "positions": "learned", "norm": "pre"}
    return [
        {
            "experiment": "induction",
            "label": label,
            "run": _INDUCTION,
            "seed": 0,
            "seeds": 10,
            "task": sizes | periods,
            "model": copy.deepcopy(model | change),
            "training": {"steps": 600, "batch": 64, "lr": 2e-3},
            "evaluate_every": 20,
        }
        for label, change, periods in rows
    ]


def _winograd_run(
    task: str, row: tuple[str, dict[str, Any], float], positions: str, *, steps: int = 1000
) -> dict[str, Any]:
    label, change, lr = row
    return {
        "experiment": "winograd",
        "label": f"{task}, {label}{', no positions' if positions == 'none' else ''}",
        "run": _WINOGRAD,
        "seed": 0,
        "seeds": 10,
        "task": task,
        "held_out": 4,
        "model": copy.deepcopy(_PROBED_BLOCK | {"positions": positions} | change),
        "training": {"steps": steps, "batch": 64, "lr": lr},
        "evaluate_every": 50,
    }


_ONE_BLOCK = {
    "E": 128,
    "L": 1,
    "H": 4,
    "max_length": 64,
    "mixer": "softmax",
    "positions": "learned",
    "norm": "pre",
}
# Short runs: the curve is measured often, on the first 8,192 held-out tokens.
_SHORT_CURVE = {"evaluate_every": 50, "curve_tokens": 8192}
_SEEDS = {
    "ladder": (0, 1, 2),
    "scale": (0, 1),
    "positions": (0, 1),
    "norms": (0, 1),
    "recall": (0, 1, 2),
}

#: Every experiment by name, in the order of the course.
EXPERIMENTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "counts": counts,
    "ladder": ladder,
    "ladder64": ladder64,
    "scale": scale,
    "positions": positions,
    "norms": norms,
    "recall": recall,
    "frontier": frontier,
    "winograd": winograd,
    "circuits": circuits,
    "induction": induction,
}
