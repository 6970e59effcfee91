"""The one training loop of the course, its sampler, and the perplexity it is judged by."""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course import checkpoints
from course.inputs import require_number, require_positive, require_rank, require_tensor
from course.randomness import devices_of, mode_kept, random_states, seeded, set_random_states

#: A larger batch goes through the model in pieces of about this many tokens, and their gradients
#: are added: the same step, but every tensor stays small enough for the allocator to reuse it.
#: On two CPUs (one block, E = 128, V = 1,024, 64 × 128 tokens) this is a third faster.
TOKENS_AT_ONCE = 2_048

#: Draws one batch of inputs ``[B,T]`` and targets ``[B,T]`` (−100 = no target) from a generator.
#: If it has a method ``identity()``, a checkpoint remembers what that says of the data.
Sampler = Callable[[torch.Generator], tuple[Tensor, Tensor]]


@dataclass
class History:
    """What a training run leaves: the loss of every step, the evaluations, the seconds it took."""

    losses: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def steps(self) -> int:
        """Steps done."""
        return len(self.losses)

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for ``json.dumps``."""
        return asdict(self)


def next_token_batches(tokens: Tensor, *, batch: int, window: int) -> Sampler:
    """A sampler of random windows: inputs ``[batch, window]`` and the same one token later.

    ``tokens [N]`` (int64), N > window. Windows are drawn with replacement from the generator that
    the sampler is called with, so the seed given to :func:`train` fixes the data.
    """
    require_rank("tokens", tokens, "N")
    require_positive("batch", batch)
    require_positive("window", window)
    if len(tokens) <= window:
        raise ValueError(f"tokens: expected more than window = {window} tokens, got {len(tokens)}")
    if tokens.dtype != torch.int64:
        raise ValueError(f"tokens: expected int64, got {tokens.dtype}")
    return _Windows(tokens, int(batch), int(window))


@dataclass(frozen=True)
class _Windows:
    tokens: Tensor
    batch: int
    window: int

    def __call__(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        last = len(self.tokens) - self.window
        starts = torch.randint(last, (self.batch, 1), generator=generator)
        rows = self.tokens[starts + torch.arange(self.window + 1)]
        return rows[:, :-1], rows[:, 1:]

    def identity(self) -> dict[str, Any]:
        """What a checkpoint remembers of the data: sizes and a digest of the tokens."""
        digest = hashlib.sha256(self.tokens.cpu().numpy().tobytes()).hexdigest()[:16]
        return {"tokens": digest, "batch": self.batch, "window": self.window}


def train(
    model: nn.Module,
    batches: Sampler | Iterable[tuple[Tensor, Tensor]],
    *,
    steps: int,
    lr: float = 1e-3,
    weight_decay: float = 0.01,
    warmup: int = 0,
    clip: float | None = None,
    seed: int = 0,
    evaluate: Callable[[nn.Module], float] | None = None,
    evaluate_every: int | None = None,
    stop: Callable[[History], bool] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 500,
    progress: bool | None = None,
) -> History:
    """Minimise the cross-entropy of ``model(inputs) [B,T,V]`` against the targets, with AdamW.

    ``batches``: a sampler (see :func:`next_token_batches`) or an iterable of pairs. ``warmup``:
    steps in which the rate grows linearly to ``lr``; then it stays. ``clip``: largest gradient
    norm. ``evaluate`` is called without gradient, in eval mode, every ``evaluate_every`` steps
    and after the last one. ``stop`` is asked after every evaluation. ``checkpoint``: a file
    written every ``checkpoint_every`` steps and after the last one; when it exists, the run goes on
    from there, with the same or a larger number of steps, and ends as if it had never been
    interrupted. A run that ``stop`` has ended stays ended.
    ``progress``: a bar on stderr; None = only on a terminal.

    Batches must come on the model's device. ``seed`` fixes the batches and the dropout; random
    states and the model's mode are left as they were. Raises ``ValueError`` for batches or options
    that do not fit, :class:`~course.checkpoints.UnusableCheckpoint` for the checkpoint of another
    run, model or data, and ``FloatingPointError`` when the loss or its gradient is not finite,
    naming the step, before that step changes weights or file.
    """
    require_positive("steps", steps, minimum=0)
    require_positive("warmup", warmup, minimum=0)
    require_positive("checkpoint_every", checkpoint_every)
    require_number("lr", lr)
    require_number("weight_decay", weight_decay)
    if evaluate_every is not None:
        require_positive("evaluate_every", evaluate_every)
    if clip is not None:
        require_number("clip", clip, above=0)
    # Python's own numbers, whatever came: a checkpoint holds no others.
    run = _Run(
        model,
        batches,
        lr=float(lr),
        weight_decay=float(weight_decay),
        warmup=int(warmup),
        clip=None if clip is None else float(clip),
        seed=int(seed),
    )
    path = None if checkpoint is None else checkpoints.prepare(checkpoint)

    def due(step: int) -> bool:
        return step == steps or (evaluate_every is not None and step % evaluate_every == 0)

    with mode_kept(model), seeded(run.seed, run.devices):
        if path is not None:
            run.load(path, steps)
            # What a shorter run measured at its end is no part of this one.
            run.history.evaluations = [row for row in run.history.evaluations if due(row[0])]
            if stop is not None and run.ended:
                return run.history
        for _ in _bar(run.history, steps, progress):
            run.step()
            done = run.history.steps
            if evaluate is not None and due(done):
                run.evaluate(evaluate)
                run.ended = stop is not None and bool(stop(run.history))
            if path is not None and (run.ended or done == steps or done % checkpoint_every == 0):
                run.save(path)
            if run.ended:
                break
        else:
            measured = [step for step, _ in run.history.evaluations]
            if evaluate is not None and steps and steps not in measured:
                run.evaluate(evaluate)  # a finished run that was not asked before
    return run.history


def patience(evaluations: int) -> Callable[[History], bool]:
    """A ``stop`` rule: the best evaluation is more than ``evaluations`` evaluations old."""
    require_positive("evaluations", evaluations)

    def stop(history: History) -> bool:
        values = [value for _, value in history.evaluations]
        return len(values) - 1 - values.index(min(values)) > evaluations

    return stop


@torch.no_grad()
def perplexity(
    model: nn.Module,
    tokens: Tensor,
    *,
    window: int,
    scored: int | None = None,
    skip: int | None = None,
    batch: int = 16,
) -> float:
    """``exp`` of the mean cross-entropy of the next token over ``tokens [N]``, each scored once.

    The model reads windows of ``window`` tokens and is scored on the last ``scored`` of each
    (None: on all). The first target is ``tokens[skip + 1]``; ``skip`` defaults to the fewest,
    ``window − scored``. To give the SAME targets more context, fix ``scored`` and pass the
    ``skip`` of the widest window. A last window that would not be full is left out.

    Raises ``ValueError`` if ``tokens`` does not fill one window, ``OverflowError`` if the mean is
    above 709 nats, which only a model that has diverged reaches.
    """
    require_rank("tokens", tokens, "N")
    require_positive("window", window)
    require_positive("batch", batch)
    scored = window if scored is None else scored
    require_positive("scored", scored)
    first = window - scored if skip is None else skip
    if not 0 <= window - scored <= first:
        raise ValueError(
            f"skip: expected at least window − scored = {window - scored} ≥ 0, got {first}"
        )
    starts = torch.arange(first - (window - scored), len(tokens) - window, scored)
    if len(starts) == 0:
        raise ValueError(
            f"tokens: expected more than {first + scored} tokens to fill one window, "
            f"got {len(tokens)}"
        )
    total = 0.0
    with mode_kept(model):
        model.eval()
        for rows in starts.split(batch):
            inputs = tokens[rows[:, None] + torch.arange(window)]
            targets = tokens[rows[:, None] + torch.arange(1, window + 1)]
            logits = model(inputs)[:, -scored:]
            losses = _cross_entropy(logits, targets[:, -scored:], "none")
            total += losses.cpu().double().sum().item()  # Apple's GPU has no float64
    return math.exp(total / (len(starts) * scored))


def _cross_entropy(logits: Tensor, targets: Tensor, reduction: str) -> Tensor:
    """In float32 at least, whatever the logits are."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide.flatten(0, -2), targets.flatten(), reduction=reduction)


class _Run:
    """One training run: its model, its optimiser, its random numbers, how far it has come."""

    def __init__(
        self,
        model: nn.Module,
        batches: Sampler | Iterable[tuple[Tensor, Tensor]],
        *,
        lr: float,
        weight_decay: float,
        warmup: int,
        clip: float | None,
        seed: int,
    ) -> None:
        self.model, self.batches, self.clip, self.seed = model, batches, clip, seed
        self.settings = {"lr": lr, "weight_decay": weight_decay, "warmup": warmup, "clip": clip}
        self.settings["seed"] = seed
        self.devices = devices_of(model)
        self.iterator = None if callable(batches) else iter(batches)
        self.generator = torch.Generator().manual_seed(seed)
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=lr, weight_decay=weight_decay, fused=True
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / warmup) if warmup else 1.0
        )
        self.history = History()
        self.ended = False  # by the caller's rule

    def step(self) -> None:
        started = time.perf_counter()
        inputs, targets = self._next()
        self.model.train()
        self.optimizer.zero_grad()
        value = self._add_gradients(inputs, targets)
        self._require_finite(value)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.schedule.step()
        self.history.losses.append(value)
        self.history.seconds += time.perf_counter() - started

    def _add_gradients(self, inputs: Tensor, targets: Tensor) -> float:
        """Add the gradient of the mean loss of one batch, piece by piece; return that loss."""
        for name, x in (("inputs", inputs), ("targets", targets)):
            require_tensor(name, x)
        if targets.dtype != torch.int64:
            raise ValueError(f"targets: expected int64, got {targets.dtype}")
        if len(inputs) != len(targets):
            raise ValueError(
                f"targets: expected one row for each of the inputs {list(inputs.shape)}, "
                f"got {list(targets.shape)}"
            )
        rows = max(1, TOKENS_AT_ONCE // max(1, targets.shape[-1]))
        scored = (targets != -100).sum()
        total = torch.zeros((), device=targets.device)
        for some, wanted in zip(inputs.split(rows), targets.split(rows), strict=True):
            logits = self.model(some)
            if logits.shape[:-1] != wanted.shape:
                raise ValueError(
                    f"targets: expected one for each row of logits, {list(logits.shape[:-1])}, "
                    f"got {list(wanted.shape)}"
                )
            loss = _cross_entropy(logits, wanted, "sum") / scored
            loss.backward()
            total += loss.detach()
        return total.item()

    def _require_finite(self, loss: float) -> None:
        """Stop before a step that would make the weights NaN."""
        step = self.history.steps + 1
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"loss: expected a finite number, got {loss} at step {step}; "
                "usual causes: a learning rate that is too large, a batch without any target, "
                "or a softmax row with nothing to look at"
            )
        gradients = {
            name: p.grad
            for name, p in self.model.named_parameters()
            if p.grad is not None and p.grad.numel()
        }
        largest = nn.utils.get_total_norm(gradients.values(), norm_type=math.inf).item()
        if not math.isfinite(largest):
            names = [name for name, g in gradients.items() if not g.isfinite().all()]
            raise FloatingPointError(
                f"gradient: expected finite numbers, got {largest} in {', '.join(names[:3])} at "
                f"step {step}, although the loss is finite; usual causes: a square root or a norm "
                "at 0, a logarithm near 0, 0 · ∞"
            )

    def evaluate(self, evaluate: Callable[[nn.Module], float]) -> None:
        """Measure without moving the run's random numbers: a resumed run measures elsewhere."""
        self.model.eval()
        with torch.no_grad(), seeded(None, self.devices):
            self.history.evaluations.append((self.history.steps, float(evaluate(self.model))))

    def save(self, path: Path) -> None:
        if not all(p.isfinite().all() for p in self.model.parameters()):
            raise FloatingPointError(
                f"weights: expected finite numbers after step {self.history.steps}; "
                "usual cause: a learning rate that is too large"
            )
        assert callable(self.batches)
        state = {
            "run": checkpoints.describe(self.model, self.batches, self.settings),
            "model": checkpoints.tensors(self.model),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "batches": self.generator.get_state(),
            "random": random_states(self.devices),
            "history": self.history.to_dict(),
            "ended": self.ended,
        }
        checkpoints.write(path, state)

    def load(self, path: Path, steps: int) -> None:
        """Go on from the file, if there is one."""
        if not callable(self.batches):
            raise ValueError("checkpoint: expected batches to be a sampler, got an iterable")
        run = checkpoints.describe(self.model, self.batches, self.settings)
        state = checkpoints.read(path, run)
        if state is None:
            return
        history = History(**state["history"])
        if history.steps > steps:
            raise ValueError(
                f"steps: expected at least the {history.steps} that {path} has done, got {steps}"
            )
        checkpoints.load_tensors(self.model, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.generator.set_state(state["batches"])
        set_random_states(state["random"], self.devices)
        self.history, self.ended = history, state["ended"]

    def _next(self) -> tuple[Tensor, Tensor]:
        if self.iterator is None:
            assert callable(self.batches)
            return _pair(self.batches(self.generator))
        try:
            return _pair(next(self.iterator))
        except StopIteration:
            raise ValueError(
                f"batches: expected one batch a step, got only {self.history.steps}"
            ) from None


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        inputs, targets = batch
        if isinstance(inputs, Tensor) and isinstance(targets, Tensor):
            return inputs, targets
    what = "a single tensor" if isinstance(batch, Tensor) else type(batch).__name__
    raise ValueError(
        "batches: expected a sampler or an iterable of pairs (inputs [B,T], targets [B,T]), "
        f"got {what} as a batch; one pair (x, y) is [(x, y)]"
    )


def _bar(history: History, steps: int, progress: bool | None) -> Iterator[int]:
    left = range(history.steps, steps)
    if not (sys.stderr.isatty() if progress is None else progress):
        yield from left
        return
    from tqdm import tqdm

    with tqdm(left, total=steps, initial=history.steps, unit="step") as bar:
        for step in bar:
            yield step
            bar.set_postfix(loss=f"{history.losses[-1]:.3f}", refresh=False)
