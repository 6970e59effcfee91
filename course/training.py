"""The one training loop of the course, its sampler, and the perplexity it is judged by."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course.inputs import require_number, require_positive, require_rank

#: A larger batch goes through the model in pieces of about this many tokens, and their gradients
#: are added: the same step, but every tensor stays small enough for the allocator to reuse it.
#: On two CPUs (one block, E = 128, V = 1,024, 64 × 128 tokens) this is a third faster.
TOKENS_AT_ONCE = 2_048

#: Draws one batch of inputs ``[B,T]`` and targets ``[B,T]`` (−100 = no target) from a generator.
Sampler = Callable[[torch.Generator], tuple[Tensor, Tensor]]


class DamagedCheckpoint(ValueError):
    """The file is no checkpoint, or only a part of one."""


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
    steps = torch.arange(window + 1)

    def sample(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(tokens) - window, (batch, 1), generator=generator)
        rows = tokens[starts + steps]
        return rows[:, :-1], rows[:, 1:]

    return sample


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
    written every ``checkpoint_every`` steps; when it exists, the run goes on from there and ends
    as if it had never stopped. ``progress``: a bar on stderr; None = only on a terminal.

    Batches must come on the model's device. ``seed`` fixes the batches and the dropout; the
    global random state and the model's mode are left as they were. Raises ``ValueError`` for a
    checkpoint of another run or model, :class:`DamagedCheckpoint` for a file that is none, and
    ``FloatingPointError`` when the loss is not finite, naming the step.
    """
    require_positive("steps", steps, minimum=0)
    require_positive("warmup", warmup, minimum=0)
    require_positive("checkpoint_every", checkpoint_every)
    if evaluate_every is not None:
        require_positive("evaluate_every", evaluate_every)
    if clip is not None:
        require_number("clip", clip, above=0)
    run = _Run(
        model, batches, lr=lr, weight_decay=weight_decay, warmup=warmup, clip=clip, seed=seed
    )
    was_training = model.training
    with torch.random.fork_rng(devices=_gpus(model)):
        torch.manual_seed(seed)
        if checkpoint is not None:
            run.load(Path(checkpoint))
        try:
            for _ in _bar(run.history, steps, progress):
                run.step()
                done = run.history.steps
                if evaluate is not None and (
                    done == steps or (evaluate_every and done % evaluate_every == 0)
                ):
                    run.evaluate(evaluate)
                    if stop is not None and stop(run.history):
                        break
                if checkpoint is not None and done % checkpoint_every == 0:
                    run.save(Path(checkpoint))
        finally:
            model.train(was_training)
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
    was_training = model.training
    model.eval()
    total = 0.0
    try:
        for rows in starts.split(batch):
            inputs = tokens[rows[:, None] + torch.arange(window)]
            targets = tokens[rows[:, None] + torch.arange(1, window + 1)]
            logits = model(inputs)[:, -scored:]
            total += _cross_entropy(logits, targets[:, -scored:], "sum").item()
    finally:
        model.train(was_training)
    return math.exp(total / (len(starts) * scored))


def _cross_entropy(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction=reduction)


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
        self.model, self.batches, self.clip = model, batches, clip
        self.setup = {"lr": lr, "weight_decay": weight_decay, "warmup": warmup, "clip": clip}
        self.setup["seed"] = seed
        self.iterator = None if callable(batches) else iter(batches)
        self.generator = torch.Generator().manual_seed(seed)
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=lr, weight_decay=weight_decay, fused=True
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / warmup) if warmup else 1.0
        )
        self.history = History()

    def step(self) -> None:
        started = time.perf_counter()
        inputs, targets = self._next()
        self.model.train()
        self.optimizer.zero_grad()
        value = self._add_gradients(inputs, targets)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        if not math.isfinite(value):
            raise FloatingPointError(
                f"loss: expected a finite number, got {value} at step {self.history.steps + 1}; "
                "usual causes: a learning rate that is too large, a batch without any target, "
                "or a softmax row with nothing to look at"
            )
        self.optimizer.step()
        self.schedule.step()
        self.history.losses.append(value)
        self.history.seconds += time.perf_counter() - started

    def _add_gradients(self, inputs: Tensor, targets: Tensor) -> float:
        """Add the gradient of the mean loss of one batch, piece by piece; return that loss."""
        rows = max(1, TOKENS_AT_ONCE // max(1, targets.shape[-1]))
        scored = (targets != -100).sum()
        total = torch.zeros((), device=targets.device)
        for some, wanted in zip(inputs.split(rows), targets.split(rows), strict=True):
            loss = _cross_entropy(self.model(some), wanted, "sum") / scored
            loss.backward()
            total += loss.detach()
        return total.item()

    def evaluate(self, evaluate: Callable[[nn.Module], float]) -> None:
        self.model.eval()
        with torch.no_grad():
            self.history.evaluations.append((self.history.steps, float(evaluate(self.model))))

    def save(self, path: Path) -> None:
        state = {
            "setup": self.setup,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "batches": self.generator.get_state(),
            "dropout": torch.get_rng_state(),
            "history": self.history.to_dict(),
        }
        # Written beside and renamed: a run killed while writing leaves the last good file.
        part = path.with_name(path.name + f".{os.getpid()}.part")
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, part)
        os.replace(part, path)

    def load(self, path: Path) -> None:
        if self.iterator is not None:
            raise ValueError("checkpoint: expected batches to be a sampler, got an iterable")
        if not path.exists():
            return
        try:
            state = torch.load(path, weights_only=True)
            setup, sizes = state["setup"], {name: x.shape for name, x in state["model"].items()}
        except Exception as error:  # a file that is cut or of another kind raises almost anything
            raise DamagedCheckpoint(
                f"checkpoint: expected a file that train() wrote, got {path}, which is damaged or "
                f"of another kind ({type(error).__name__}); delete it or choose another"
            ) from error
        if setup != self.setup:
            raise ValueError(
                f"checkpoint: expected a run with {self.setup}, got one with {setup}; "
                "delete the file or choose another"
            )
        if sizes != {name: x.shape for name, x in self.model.state_dict().items()}:
            raise ValueError(
                f"checkpoint: expected the parameters of this model, got those of another in "
                f"{path}; delete the file or choose another"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.generator.set_state(state["batches"])
        torch.set_rng_state(state["dropout"])
        self.history = History(**state["history"])

    def _next(self) -> tuple[Tensor, Tensor]:
        if self.iterator is None:
            assert callable(self.batches)
            return self.batches(self.generator)
        try:
            return next(self.iterator)
        except StopIteration:
            raise ValueError(
                f"batches: expected one batch a step, got only {self.history.steps}"
            ) from None


def _gpus(model: nn.Module) -> list[torch.device]:
    return list({p.device for p in model.parameters() if p.device.type == "cuda"})


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
