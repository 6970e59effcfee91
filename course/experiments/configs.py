"""The declared experiments: plain data, one config a run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from course.values import require_choice

_LANGUAGE_MODEL = "course.experiments.language_model:execute"


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

    A narrow model (E = 64) on 8 windows of 64, to keep a run at a minute or two.
    """
    return [
        _run(
            "norms",
            f"{norm}-norm, " + (f"{warmup} steps of warm-up" if warmup else "no warm-up"),
            {**_ONE_BLOCK, "E": 64, "L": 12, "norm": norm},
            {"steps": 1000, "batch": 8, "window": 64, "lr": 3e-3, "warmup": warmup},
            seed=seed,
            **_SHORT_CURVE,
        )
        for seed in _SEEDS["norms"]
        for norm in ("pre", "post")
        for warmup in (0, 200)
    ]


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
_SEEDS = {"ladder": (0, 1, 2), "scale": (0, 1), "positions": (0, 1), "norms": (0, 1)}

#: Every experiment by name, in the order of the course.
EXPERIMENTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "counts": counts,
    "ladder": ladder,
    "ladder64": ladder64,
    "scale": scale,
    "positions": positions,
    "norms": norms,
}
