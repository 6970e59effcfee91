"""The loop repeats itself, resumes, reports, and minimises what it says."""

from __future__ import annotations

import itertools
import json
import math
import sys
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course import training
from course.training import History, next_token_batches, patience, perplexity, train
from course.transformer import Transformer, TransformerConfig

V = 7
CONFIG = TransformerConfig(
    vocab_size=V, E=12, H=3, hidden=20, max_length=8, positions="learned", dropout=0.2
)


def text(n: int = 400, seed: int = 0) -> Tensor:
    return torch.randint(V, (n,), generator=torch.Generator().manual_seed(seed))


def sampler():
    return next_token_batches(text(), batch=5, window=8)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Table(nn.Module):
    """A bigram model: one row of logits a token."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(V, V))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits[tokens]


# --- batches -------------------------------------------------------------------------------------


def test_batches_are_windows_of_the_text_and_the_same_one_later() -> None:
    tokens = torch.arange(20)
    sample = next_token_batches(tokens, batch=300, window=6)
    inputs, targets = sample(torch.Generator().manual_seed(0))
    assert inputs.shape == targets.shape == (300, 6)
    assert torch.equal(inputs[:, 1:], inputs[:, :-1] + 1) and torch.equal(targets, inputs + 1)
    assert set(inputs[:, 0].tolist()) == set(range(14))  # every start, the last one included
    again, _ = sample(torch.Generator().manual_seed(0))
    other, _ = sample(torch.Generator().manual_seed(1))
    assert torch.equal(inputs, again) and not torch.equal(inputs, other)


# --- the loop ------------------------------------------------------------------------------------


def test_one_step_is_adamw_on_the_mean_cross_entropy() -> None:
    ours, theirs = (Transformer(CONFIG).eval() for _ in range(2))
    for layer in ours.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    ours.blocks[0].mixer.dropout = 0.0
    inputs, targets = torch.stack([text(15), text(15, 1)]).view(2, 3, 5)
    history = train(ours, [(inputs, targets)], steps=1, lr=1e-2, weight_decay=0.1)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0.1)
    loss = F.cross_entropy(theirs(inputs).flatten(0, 1), targets.flatten())
    loss.backward()
    optimizer.step()
    assert history.losses == [pytest.approx(loss.item(), abs=1e-6)]
    assert (weights(ours) - weights(theirs)).abs().max() < 1e-5


def test_a_batch_in_pieces_gives_the_step_of_the_whole(monkeypatch) -> None:
    inputs = text(60).view(6, 10)
    targets = text(60, 1).view(6, 10)
    targets[0, :7] = targets[3] = -100  # pieces with unequal numbers of targets, one with none
    results = []
    for at_once in (1_000, 20, 1):
        monkeypatch.setattr(training, "TOKENS_AT_ONCE", at_once)
        model, calls = Table().double(), []
        model.register_forward_hook(lambda *call, calls=calls: calls.append(len(call[1][0])))
        history = train(model, itertools.repeat((inputs, targets)), steps=3, lr=0.1, clip=0.02)
        results.append((weights(model), torch.tensor(history.losses), calls[: len(calls) // 3]))
    assert [calls for _, _, calls in results] == [[6], [2, 2, 2], [1] * 6]
    for found, losses, _ in results[1:]:
        assert (found - results[0][0]).abs().max() < 1e-9  # AdamW divides by tiny gradients
        assert (losses - results[0][1]).abs().max() < 1e-6
    assert history.losses[0] == pytest.approx(math.log(V))


def test_training_finds_the_counts_of_a_bigram_chain() -> None:
    step = torch.tensor([1, 2, 3, 4, 5, 6, 0])
    chain = [0]
    noise = torch.Generator().manual_seed(0)
    for _ in range(3_000):
        follow = torch.rand((), generator=noise) < 0.75
        chain.append(
            step[chain[-1]].item() if follow else int(torch.randint(V, (), generator=noise))
        )
    tokens = torch.tensor(chain)
    counts = torch.zeros(V, V, dtype=torch.float64)
    for pair in itertools.pairwise(chain):
        counts[pair] += 1
    joint, given = counts / counts.sum(), counts / counts.sum(1, keepdim=True)
    floor = math.exp(-(joint * given.log()).sum().item())
    model = Table()
    train(model, next_token_batches(tokens, batch=16, window=32), steps=150, lr=0.1)
    found = perplexity(model, tokens, window=3_000, scored=3_000)
    assert floor - 1e-4 <= found < 1.02 * floor


def test_the_same_seed_gives_the_same_run_and_the_global_state_stays() -> None:
    torch.manual_seed(9)
    before = torch.get_rng_state()
    runs = []
    for seed in (3, 3, 4):
        model = Transformer(CONFIG)
        history = train(model, sampler(), steps=6, seed=seed)
        runs.append((history.losses, weights(model)))
    assert torch.equal(torch.get_rng_state(), before)
    assert runs[0][0] == runs[1][0] != runs[2][0]
    assert torch.equal(runs[0][1], runs[1][1])


def test_warm_up_grows_the_rate_to_lr_and_keeps_it() -> None:
    # Without decay and with a constant gradient sign, AdamW moves each weight by the rate.
    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(()))
            self.seen: list[float] = []

        def forward(self, tokens: Tensor) -> Tensor:
            self.seen.append(self.w.item())
            return torch.stack([self.w * 1e-3, -self.w * 1e-3]).expand(*tokens.shape, 2)

    model, batch = Slope(), (torch.zeros(1, 1).long(), torch.zeros(1, 1).long())
    train(model, itertools.repeat(batch), steps=7, lr=0.1, warmup=4, weight_decay=0)
    moves = [b - a for a, b in itertools.pairwise([*model.seen, model.w.item()])]
    assert moves == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1, 0.1], rel=1e-3)


def test_clipping_bounds_the_gradient() -> None:
    model = Table()
    train(model, sampler(), steps=1, clip=1e-3)
    assert model.logits.grad.norm().item() == pytest.approx(1e-3, rel=1e-3)
    free = Table()
    train(free, sampler(), steps=1)
    assert free.logits.grad.norm().item() > 2e-3


def test_evaluation_runs_in_eval_mode_without_gradient_and_at_the_end() -> None:
    model, modes = Transformer(CONFIG).eval(), []

    def evaluate(model: nn.Module) -> float:
        modes.append((model.training, torch.is_grad_enabled()))
        return 2.0

    history = train(model, sampler(), steps=5, evaluate=evaluate, evaluate_every=2)
    assert history.evaluations == [(2, 2.0), (4, 2.0), (5, 2.0)]
    assert modes == [(False, False)] * 3
    assert not model.training and history.steps == 5 and history.seconds > 0
    assert train(Table(), sampler(), steps=3, evaluate=evaluate).evaluations == [(3, 2.0)]


def test_the_model_keeps_its_mode() -> None:
    for mode, evaluate in itertools.product((True, False), (None, lambda model: 0.0)):
        model = Table().train(mode)
        train(model, sampler(), steps=1, evaluate=evaluate)
        assert model.training is mode
        perplexity(model, text(), window=8)
        assert model.training is mode


def test_a_failing_perplexity_leaves_the_mode() -> None:
    model = Table().train()
    with pytest.raises(IndexError):
        perplexity(model, text() + V, window=8)
    assert model.training


def test_stop_ends_the_run_after_an_evaluation() -> None:
    values = iter([5.0, 3.0, 4.0, 3.5, 3.2, 1.0])
    history = train(
        Table(),
        sampler(),
        steps=60,
        evaluate=lambda model: next(values),
        evaluate_every=10,
        stop=patience(2),
    )
    assert history.steps == 50 and [v for _, v in history.evaluations] == [5.0, 3.0, 4.0, 3.5, 3.2]


def test_a_run_that_stop_ended_is_stored_and_stays_ended(tmp_path) -> None:
    def run() -> History:
        return train(
            nn.Embedding(4, 4),
            next_token_batches(torch.arange(40) % 4, batch=2, window=8),
            steps=100,
            evaluate=lambda _: 1.0,
            evaluate_every=1,
            stop=patience(1),
            checkpoint=tmp_path / "run.pt",
        )

    first = run()
    assert first.steps < 100 and (tmp_path / "run.pt").is_file()
    assert run() == first


def test_each_part_of_the_model_keeps_its_mode() -> None:
    model = nn.Sequential(nn.Embedding(4, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    model[1].eval()
    batches = next_token_batches(torch.arange(40) % 4, batch=2, window=8)
    train(model, batches, steps=1, evaluate=lambda m: perplexity(m, torch.arange(20) % 4, window=4))
    assert [part.training for part in model.modules()] == [True, True, False, True]


def test_an_evaluation_that_draws_does_not_move_the_dropout() -> None:
    def losses(evaluate):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(4, 8), nn.Dropout(0.5), nn.Linear(8, 4))
        batches = next_token_batches(torch.arange(40) % 4, batch=2, window=8)
        return train(model, batches, steps=5, evaluate=evaluate, evaluate_every=1).losses

    assert losses(lambda _: torch.rand(3).sum().item()) == losses(None)


def test_history_is_plain_json() -> None:
    history = train(Table(), sampler(), steps=2, evaluate=lambda model: 1.5)
    again = json.loads(json.dumps(history.to_dict()))
    assert again["losses"] == history.losses and again["evaluations"] == [[2, 1.5]]
    assert set(again) == {"losses", "evaluations", "seconds"}


# --- going on from a checkpoint (the file itself: test_checkpoints.py) ---------------------------


def test_a_run_cut_anywhere_ends_as_if_it_had_not_been(tmp_path) -> None:
    options = dict(lr=3e-3, warmup=6, seed=2, evaluate_every=2)

    def run(steps: int, batches, **more):
        model = Transformer(CONFIG)
        history = train(
            model,
            batches,
            steps=steps,
            evaluate=lambda m: perplexity(m, text(), window=8) + torch.rand(()).item(),
            **options,
            **more,
        )
        return model, history

    class Breaking:
        """The sampler, until the power fails."""

        drawn = 0
        identity = staticmethod(sampler().identity)

        def __call__(self, generator):
            self.drawn += 1
            if self.drawn == 8:
                raise KeyboardInterrupt
            return sampler()(generator)

    whole, full = run(10, sampler())
    path = tmp_path / "deep" / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        run(10, Breaking(), checkpoint=path, checkpoint_every=3)
    assert [p.name for p in path.parent.iterdir()] == ["run.pt"]
    torch.rand(5)  # the global state of the second process is another one
    for every in (3, 10):
        resumed, rest = run(10, sampler(), checkpoint=path, checkpoint_every=every)
        assert rest.losses == full.losses and rest.evaluations == full.evaluations
        assert torch.equal(weights(resumed), weights(whole))
    with pytest.raises(ValueError, match="steps: expected at least the 10 that .* has done, got 9"):
        run(9, sampler(), checkpoint=path)


def test_a_longer_run_is_evaluated_where_an_unbroken_one_is(tmp_path) -> None:
    def run(steps: int, path=None, evaluate=lambda model: weights(model).norm().item()):
        options = dict(evaluate=evaluate, evaluate_every=5, checkpoint=path, checkpoint_every=4)
        return train(Table(), sampler(), steps=steps, **options).evaluations

    path = tmp_path / "run.pt"
    assert [step for step, _ in run(6, path)] == [5, 6]
    assert run(12, path) == run(12) == run(12, path)
    run(3, tmp_path / "silent.pt", evaluate=None)
    assert run(3, tmp_path / "silent.pt") == run(3)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_gradient_that_is_not_finite_touches_neither_weights_nor_file(tmp_path, clip) -> None:
    class Touchy(Table):
        """Finite logits; from the third call on the gradient of a square root at 0 is ∞ · 0."""

        def __init__(self) -> None:
            super().__init__()
            self.zero = nn.Parameter(torch.zeros(V))
            self.calls = 0

        def forward(self, tokens: Tensor) -> Tensor:
            self.calls += 1
            logits = super().forward(tokens)
            return logits + self.zero.square().sqrt() if self.calls == 3 else logits

    path, model = tmp_path / "run.pt", Touchy()
    with pytest.raises(FloatingPointError, match="gradient: .* nan in zero at step 3"):
        train(model, sampler(), steps=5, clip=clip, checkpoint=path, checkpoint_every=1)
    assert weights(model).isfinite().all()
    sound = Touchy()
    sound.calls = 3
    assert train(sound, sampler(), steps=5, clip=clip, checkpoint=path).steps == 5


def test_weights_beyond_the_number_range_are_not_written(tmp_path) -> None:
    path = tmp_path / "run.pt"
    with pytest.raises(FloatingPointError, match="weights: expected finite numbers after step 1"):
        train(Table(), sampler(), steps=1, lr=1e39, checkpoint=path)
    assert not path.exists()


def test_training_on_the_cpu_leaves_accelerators_alone() -> None:
    with (
        mock.patch("torch.cuda.manual_seed_all") as gpus,
        mock.patch("torch.mps.manual_seed") as mac,
    ):
        train(Table(), sampler(), steps=1)
    assert not gpus.called and not mac.called


# --- perplexity ----------------------------------------------------------------------------------


def test_perplexity_of_a_uniform_model_is_the_number_of_words() -> None:
    assert perplexity(Table(), text(), window=8) == pytest.approx(V)


def test_perplexity_scores_every_target_once_in_its_window() -> None:
    torch.manual_seed(0)
    model, tokens = Transformer(CONFIG).double(), text(60)
    model.train()
    got = perplexity(model, tokens, window=8, scored=3, skip=11, batch=4)
    assert model.training
    model.eval()
    losses = []
    target = 12
    while target + 2 < 60:
        inputs = tokens[target + 2 - 8 : target + 2][None]
        rows = model(inputs)[0, -3:].log_softmax(-1)
        losses += [-rows[i, tokens[target + i]].item() for i in range(3)]
        target += 3
    assert len(losses) == 48
    assert got == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-9)


def test_perplexity_sums_in_float64_whatever_the_model_is() -> None:
    class Flat(Table):
        def forward(self, tokens: Tensor) -> Tensor:
            return torch.zeros(*tokens.shape, V, dtype=torch.bfloat16)

    assert perplexity(Flat(), text(3_000), window=2_000, batch=1) == pytest.approx(V, rel=1e-6)


def test_the_same_targets_with_more_context() -> None:
    seen: list[list[int]] = []

    class Spy(Table):
        def forward(self, tokens: Tensor) -> Tensor:
            seen.append(tokens[:, -2:].flatten().tolist())
            return super().forward(tokens)

    tokens = text(41)
    for window in (2, 4, 8):
        perplexity(Spy(), tokens, window=window, scored=2, skip=6, batch=100)
    assert seen == [tokens[6:40].tolist()] * 3


# --- errors, the bar -----------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_names_its_step() -> None:
    class Breaks(Table):
        def forward(self, tokens: Tensor) -> Tensor:
            logits = super().forward(tokens)
            self.calls = getattr(self, "calls", 0) + 1
            return logits * math.nan if self.calls == 3 else logits

    model = Breaks()
    with pytest.raises(FloatingPointError, match="got nan at step 3; usual causes: a learning"):
        train(model, sampler(), steps=5)
    assert weights(model).isfinite().all()
    empty = (torch.zeros(1, 2).long(), torch.full((1, 2), -100))
    with pytest.raises(FloatingPointError, match="a batch without any target"):
        train(Table(), [empty], steps=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: train(Table(), sampler(), steps=-1), "steps: expected a whole number"),
        (lambda: train(Table(), [], steps=1), "batches: expected one batch a step, got only 0"),
        (
            lambda: train(Table(), (text(8).view(2, 4),) * 2, steps=1),
            "got a single tensor as a batch",
        ),
        (lambda: train(Table(), lambda g: None, steps=1), "got NoneType as a batch"),
        (lambda: train(Table(), sampler(), steps=1, evaluate_every=0), "evaluate_every: expected"),
        (lambda: train(Table(), sampler(), steps=1, checkpoint_every=0), "checkpoint_every: exp"),
        (lambda: train(Table(), sampler(), steps=1, warmup=-1), "warmup: expected a whole number"),
        (lambda: train(Table(), sampler(), steps=1, lr="fast"), "lr: expected a finite number"),
        (
            lambda: train(Table(), [(text(32).view(4, 8), text(32).view(8, 4))], steps=1),
            "targets: ",
        ),
        (lambda: train(Table(), [(text(12).view(4, 3), text(8).view(4, 2))], steps=1), "targets: "),
        (lambda: train(Table(), [(text(8).view(2, 4), torch.ones(2, 4))], steps=1), "targets: exp"),
        (lambda: next_token_batches(torch.ones(9), batch=1, window=2), "tokens: expected int64"),
        (lambda: next_token_batches(text(8), batch=1, window=8), "tokens: expected more than win"),
        (lambda: next_token_batches(text(8), batch=0, window=2), "batch: expected"),
        (lambda: perplexity(Table(), text(8), window=8), "tokens: expected more than 8 tokens"),
        (lambda: perplexity(Table(), text(), window=4, scored=5), "skip: expected"),
        (lambda: perplexity(Table(), text(), window=4, scored=2, skip=1), "skip: expected at"),
        (lambda: perplexity(Table(), text(), window=4, batch=0), "batch: expected"),
        (lambda: train(Table(), sampler(), steps=1, clip=-1), "clip: expected a finite number abo"),
        (lambda: patience(0), "evaluations: expected"),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_bar_shows_on_a_terminal_or_when_asked(monkeypatch, capsys) -> None:
    train(Table(), sampler(), steps=2)
    assert capsys.readouterr() == ("", "")
    train(Table(), sampler(), steps=2, progress=True)
    shown = capsys.readouterr()
    assert shown.out == "" and "2/2" in shown.err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    train(Table(), sampler(), steps=2, progress=False)
    assert capsys.readouterr() == ("", "")
    train(Table(), sampler(), steps=2)
    assert "2/2" in capsys.readouterr().err


def test_nothing_to_do_is_done() -> None:
    assert train(Table(), sampler(), steps=0) == History()
