"""One run on Shakespeare: train a Transformer, follow its held-out loss, measure it at the end."""

from __future__ import annotations

import ctypes
import math
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from course.attention import attention_weights
from course.checkpoints import begun_again
from course.experiments.runner import Config, Progress
from course.mixers import SoftmaxMixer
from course.randomness import mode_kept
from course.tasks.text import Corpus, load_shakespeare
from course.training import History, next_token_batches, perplexity, train
from course.transformer import Transformer, TransformerConfig

#: Steps whose loss is stored one by one; what ``--check`` repeats.
FIRST_STEPS = 50


def execute(config: Config, progress: Progress) -> dict[str, Any]:
    """Train as ``config`` says and return ``{"curve", "result", "sample"}``.

    ``config``: ``model`` (fields of :class:`TransformerConfig` but ``vocab_size``), ``training``
    (``steps batch window lr warmup``, perhaps ``bold``: see :func:`build`), ``seed``,
    ``evaluate_every``, and optionally ``evaluation_windows`` (widths at which the trained model is
    evaluated), ``measure`` (``"scores"``: :func:`score_statistics` along the run) and
    ``curve_tokens`` (how many held-out tokens the curve is measured on; the final perplexities
    always use all).

    Curve: ``first`` (the loss of each of the first 50 steps), then lists with one entry an
    evaluation: ``step``, ``train`` (mean batch loss since the one before), ``held_out`` (nats a
    token). Sample: what :func:`sample` lets the trained model write. A run whose loss is no longer
    finite ends there; its result is ``diverged_at``, the last step that was finite, and it writes
    nothing.
    """
    reuse_freed_memory()
    corpus = load_shakespeare()
    model = build(config, corpus)
    window = config["training"]["window"]
    followed = corpus.held_out[: config.get("curve_tokens")]
    scores: list[dict[str, float]] = []
    history = History()

    def measure() -> None:
        if config.get("measure") == "scores":
            scores.append(score_statistics(model, corpus.held_out[: 8 * window], window))

    def evaluate(model: nn.Module) -> float:
        measure()
        return math.log(perplexity(model, followed, window=window))

    def watch(current: History) -> bool:
        nonlocal history  # kept here, because a run that diverges returns nothing
        history = current
        progress.report(current.steps)
        return False

    measure()
    # The scores are not in the checkpoint, so a measured run (they are short) starts again.
    checkpoint = None if config.get("measure") else progress.checkpoint
    options: dict[str, Any] = {"evaluate": evaluate, "stop": watch, "checkpoint": checkpoint}
    diverged = False
    try:
        history = begun_again(lambda: fit(model, corpus, config, **options), checkpoint)
    except (FloatingPointError, OverflowError):
        diverged = True
    curve = curve_of(history)
    if scores:
        steps = [0, *curve["step"]]
        rows = scores[: len(steps)]
        curve["scores"] = {"step": steps[: len(rows)]}
        curve["scores"] |= {name: [row[name] for row in rows] for name in rows[0]}
    result: dict[str, Any] = {"parameters": model.parameter_counts()["total"]}
    if diverged:
        return {"curve": curve, "result": result | {"diverged_at": history.steps}}
    result |= final(model, corpus, config, history)
    progress.keep(model)
    return {"curve": curve, "result": result, "sample": sample(model, corpus, window=window)}


def build(config: Config, corpus: Corpus) -> Transformer:
    """The model that a run of ``config`` starts from, its weights fixed by the config's seed.

    It is untrained, or, where ``training`` has ``bold``, has made so many steps at the full rate;
    the run then begins from those weights, with a new optimiser and the first batch again.
    """
    model = Transformer(
        TransformerConfig.from_dict({"vocab_size": corpus.vocab_size, **config["model"]}),
        seed=config["seed"],
    )
    if bold := config["training"].get("bold"):
        reckless = {**config, "training": {**config["training"], "warmup": 0}}
        fit(model, corpus, reckless, steps=bold)
    return model


def fit(model: Transformer, corpus: Corpus, config: Config, *, steps: int | None = None, **options):
    """Train ``model`` in place as ``config`` says (or only ``steps``); returns the History.

    ``options`` go to :func:`course.training.train`.
    """
    training = config["training"]
    sampler = next_token_batches(corpus.train, batch=training["batch"], window=training["window"])
    return train(
        model,
        sampler,
        steps=training["steps"] if steps is None else steps,
        lr=training["lr"],
        warmup=training["warmup"],
        seed=config["seed"],
        evaluate_every=config["evaluate_every"],
        checkpoint_every=config["evaluate_every"],
        progress=False,
        **options,
    )


def first_losses(config: Config, steps: int) -> list[float]:
    """The loss of each of the first ``steps`` steps of a run, computed again from its config."""
    corpus = load_shakespeare()
    model = build(config, corpus)
    return [round(loss, 5) for loss in fit(model, corpus, config, steps=steps).losses]


def curve_of(history: History, measured: str = "held_out") -> dict[str, Any]:
    """What is stored of a History: the first losses, and a row an evaluation of ``measured``."""
    steps = [step for step, _ in history.evaluations]
    return {
        "first": [round(loss, 5) for loss in history.losses[:FIRST_STEPS]],
        "step": steps,
        "train": [
            round(sum(history.losses[a:b]) / (b - a), 4)
            for a, b in zip([0, *steps], steps, strict=False)
        ],
        measured: [_finite(value, 4) for _, value in history.evaluations],
    }


def final(
    model: Transformer, corpus: Corpus, config: Config, history: History
) -> dict[str, float | int]:
    """Perplexities of the trained model.

    ``train``: on the last train tokens, as many as are held out. ``best`` (where the curve uses
    all held-out tokens): the least held-out perplexity of the curve, after ``best_step`` steps.
    """
    window = config["training"]["window"]
    held_out, seen = corpus.held_out, corpus.train[-len(corpus.held_out) :]
    found: dict[str, float | int] = {
        "train": perplexity(model, seen, window=window),
        "held_out": perplexity(model, held_out, window=window),
    }
    if "curve_tokens" not in config:
        found["best_step"], loss = min(history.evaluations, key=lambda row: row[1])
        found["best"] = math.exp(loss)
    widths = config.get("evaluation_windows", [])
    for width in widths:
        # More context for the SAME targets: only the last `window` tokens of each width count.
        found[f"same targets {width}"] = perplexity(
            model, held_out, window=width, scored=window, skip=max(widths) - window
        )
    for width in widths:
        found[f"plain {width}"] = perplexity(model, held_out, window=width)
    return {
        name: value if isinstance(value, int) else round(value, 3) for name, value in found.items()
    }


@torch.no_grad()
def sample(
    model: Transformer, corpus: Corpus, *, window: int, characters: int = 200, seed: int = 0
) -> str:
    """``characters`` that the trained model writes after a line break, at temperature 1.

    It sees the last ``window`` tokens at each step, as many as it was trained on.
    """
    tokenizer = corpus.tokenizer()
    generator = torch.Generator().manual_seed(seed)
    start = tokenizer.encode("\n").ids
    tokens = torch.tensor([start])
    with mode_kept(model):
        model.eval()
        while len(text := tokenizer.decode(tokens[0, len(start) :].tolist())) < characters:
            chances = model(tokens[:, -window:])[:, -1].softmax(-1)
            new = torch.multinomial(chances, 1, generator=generator)
            tokens = torch.cat([tokens, new], dim=1)
    return text[:characters]


@torch.no_grad()
def score_statistics(model: Transformer, tokens: Tensor, window: int) -> dict[str, float]:
    """How hard the softmax is, over ``tokens [N]`` in windows, averaged over attention blocks.

    ``std``: of the scores that enter the softmax (after the scale); ``entropy``: mean, in nats, of
    a row of weights; ``saturated``: share of rows with a weight above 0.99. Rows of the second half
    of the window only, so that a row has something to choose from.
    """
    inputs: list[tuple[SoftmaxMixer, Tensor]] = []
    hooks = [
        module.register_forward_pre_hook(lambda mixer, args: inputs.append((mixer, args[0])))
        for module in model.modules()
        if isinstance(module, SoftmaxMixer)
    ]
    try:
        model(tokens[: len(tokens) // window * window].reshape(-1, window))
    finally:
        for hook in hooks:
            hook.remove()
    rows = []
    for mixer, x in inputs:
        q, k, _ = mixer.attention.heads(x)
        scale = q.shape[-1] ** -0.5 if mixer.scale is None else mixer.scale
        visible = torch.ones(window, window, dtype=torch.bool).tril()[window // 2 :]
        scores = scale * (q @ k.transpose(-2, -1))[..., window // 2 :, :]
        weights = attention_weights(q, k, causal=True, scale=scale)[..., window // 2 :, :]
        rows.append(
            (
                scores[..., visible].std(),
                torch.special.entr(weights).sum(-1).mean(),
                (weights.amax(-1) > 0.99).float().mean(),
            )
        )
    means = torch.tensor(rows).mean(0).tolist()
    return dict(zip(("std", "entropy", "saturated"), (_finite(m, 4) for m in means), strict=True))


def _finite(value: float, digits: int) -> Any:
    return round(value, digits) if math.isfinite(value) else None


def reuse_freed_memory() -> None:
    """Tell the C library (glibc) to keep what is freed; elsewhere nothing happens.

    The logits of a batch are 33 MB. By default so large a block is given back to the system after
    use and each step pays for fresh pages: a third of the time of the smallest models.
    """
    m_trim_threshold, m_mmap_max = -1, -4
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, 2**31 - 1)
