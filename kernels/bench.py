"""``course bench kernels``: the kernels on a GPU, against SDPA and flash-linear-attention.

Nothing is estimated: without a GPU nothing is printed but that it was not run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from course import cost
from course.attention import softmax_attention
from course.cost import GPUS, Machine
from course.feature_maps import get_feature_map
from course.inputs import require_positive
from course.kernels import runtime
from course.linear import linear_attention, linear_attention_step
from course.measure import median_seconds
from course.state import LinearState

B, H, D, TAYLOR_D = 4, 16, 64, 16
LENGTHS = (1_024, 4_096, 16_384)
STEP_BATCH = 256
DTYPE = torch.float16
#: Calls that one measurement puts into the GPU's queue before it waits for the last one.
CALLS = 10


class Work(NamedTuple):
    """What a task must do at least: operations, and bytes between memory and chip."""

    flops: float
    nbytes: float


class Task(NamedTuple):
    """One comparison: ``contenders`` by name, the course's kernel first."""

    name: str
    work: Work
    contenders: Mapping[str, Callable[[], object]]


def refusal() -> str | None:
    """Why the bench cannot run here, or None."""
    if not torch.cuda.is_available():
        return "it needs an NVIDIA or AMD GPU that PyTorch can use, and there is none here"
    return runtime.refusal(torch.empty(0, device="cuda"))


def machine_of(device: str) -> Machine | None:
    """The data-sheet numbers for a device's name, or None if ``course.cost`` has none for it.

    Only what is certain: other forms of a chip (PCIe cards, less memory) have other numbers.
    """
    words = re.split(r"[^A-Z0-9]+", device.upper())
    if {"PCIE", "NVL"} & set(words) or ("A100" in words and "80GB" not in words):
        return None
    return next((m for m in GPUS if m.name.split()[0] in words), None)


def flash_linear_attention() -> Callable[..., Any] | None:
    """Its chunked linear attention ``(q, k, v [B,T,H,D]) → (out, state)``, if it is installed."""
    try:
        return importlib.import_module("fla.ops.linear_attn").chunk_linear_attn
    except (ImportError, AttributeError):
        return None


def attention_work(T: int, *, kind: str, backward: bool) -> Work:
    """The least that causal attention of ``B·H`` heads must do: inputs in, outputs out, once.

    ``kind``: ``softmax`` (visible half of the scores; backward 5 products for the forward 2),
    ``elu`` or ``taylor`` (the chunk form; backward twice the products of forward). Recomputation
    and what goes between two launches is the method's own affair, and not counted as useful.
    """
    width = TAYLOR_D if kind == "taylor" else D
    if kind == "softmax":
        flops = cost.softmax_flops(T, D=D, pairs=cost.visible_pairs(T, causal=True))
        factor = 3.5 if backward else 1.0
    else:
        flops = cost.chunk_flops(T, C=get_feature_map(kind).width(width), Dv=D)
        factor = 3.0 if backward else 1.0
    numbers = T * (2 * width + 2 * D)
    if backward:
        # q, k, v, the output and its gradient again; the gradients of q, k and v.
        numbers += T * (4 * width + 4 * D)
    return Work(B * H * flops * factor, B * H * numbers * DTYPE.itemsize)


def step_work() -> Work:
    """The least of one decode step for ``STEP_BATCH`` sequences of ``H`` heads."""
    heads = STEP_BATCH * H
    return Work(
        heads * cost.step_flops(C=D, Dv=D),
        heads * cost.step_traffic(D=D, Dv=D, itemsize=DTYPE.itemsize),
    )


def tasks(device: str) -> list[Task]:
    """Every comparison, with its tensors on ``device``."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=DTYPE)

    found = []
    for T in LENGTHS:
        q, k, v, dout = (draw(B, H, T, D) for _ in range(4))
        narrow = [draw(B, H, T, TAYLOR_D) for _ in range(2)]
        for kind, inputs in (
            ("softmax", (q, k, v)),
            ("elu", (q, k, v)),
            ("taylor", (*narrow, v)),
        ):
            for backward in (False, True):
                name = f"{kind}, {'forward and backward' if backward else 'forward'}, T = {T:,}"
                contenders = {
                    who: _both(call, inputs, dout) if backward else _forward(call, inputs)
                    for who, call in rivals(kind).items()
                }
                found.append(
                    Task(name, attention_work(T, kind=kind, backward=backward), contenders)
                )
    state = LinearState(
        torch.randn(STEP_BATCH, H, D, D, device=device),
        torch.rand(STEP_BATCH, H, D, device=device),
        torch.zeros(STEP_BATCH, dtype=torch.int64, device=device),
    )
    q_t, k_t, v_t = (draw(STEP_BATCH, H, D) for _ in range(3))

    def step(impl: str) -> Callable[[], object]:
        return lambda: linear_attention_step(q_t, k_t, v_t, state, impl=impl)

    found.append(
        Task(
            f"elu, decode step, {STEP_BATCH} sequences",
            step_work(),
            {"course, triton": step("triton"), "course, torch": step("torch")},
        )
    )
    return found


def rivals(kind: str) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    if kind == "softmax":
        return {
            "course, triton": lambda q, k, v: softmax_attention(
                q, k, v, causal=True, impl="triton"
            ),
            "SDPA": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        }

    def ours(impl: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        return lambda q, k, v: linear_attention(
            q, k, v, causal=True, feature_map=kind, scale=q.shape[-1] ** -0.5, impl=impl
        )

    rivals = {"course, triton": ours("triton"), "course, torch": ours("torch")}
    theirs = flash_linear_attention()
    if theirs is not None:
        phi = get_feature_map(kind)

        def fla(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            root = q.shape[-1] ** -0.25
            rows = (x.transpose(1, 2).contiguous() for x in (phi(q * root), phi(k * root), v))
            return theirs(*rows, scale=1.0)[0].transpose(1, 2)

        rivals["flash-linear-attention, map in torch"] = fla
    return rivals


def _forward(
    call: Callable[[Tensor, Tensor, Tensor], Tensor], inputs: tuple[Tensor, ...]
) -> Callable[[], object]:
    return lambda: call(*inputs)


def _both(
    call: Callable[[Tensor, Tensor, Tensor], Tensor], inputs: tuple[Tensor, ...], dout: Tensor
) -> Callable[[], object]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    return lambda: torch.autograd.grad(call(*leaves), leaves, dout)


def measure(
    task: Task, machine: Machine | None, *, repeats: int, wait: Callable[[], None]
) -> list[dict[str, Any]]:
    """One row for each contender: seconds a call, rates, share of the roofline, relative time.

    ``wait`` returns when the device has nothing left to do. A contender that cannot run here gets
    a row with ``error``. The share is the least time that ``machine`` needs for the work, divided
    by the time measured; None without ``machine``.
    """
    runnable, rows = {}, []
    for name, call in task.contenders.items():
        try:
            call()
            wait()
        except Exception as error:  # a rival's own limits; the course's kernel must run
            if name.startswith("course, triton"):
                raise
            rows.append({"task": task.name, "contender": name, "error": _first_line(error)})
        else:
            runnable[name] = _queue(call, wait)
    seconds = {name: value / CALLS for name, value in median_seconds(runnable, repeats).items()}
    first = next(iter(seconds.values()))
    least = None if machine is None else machine.seconds(*task.work)
    return [
        *(
            {
                "task": task.name,
                "contender": name,
                "seconds": value,
                "tflops": task.work.flops / value / 1e12,
                "gigabytes_per_second": task.work.nbytes / value / 1e9,
                "share_of_roofline": None if least is None else least / value,
                "time_relative_to_course": value / first,
            }
            for name, value in seconds.items()
        ),
        *rows,
    ]


def _queue(call: Callable[[], object], wait: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(CALLS):
            call()
        wait()

    return run


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text, one block a task."""
    lines, task = [], None
    for row in rows:
        if row["task"] != task:
            task = row["task"]
            lines += [
                "",
                f"{task:44}{'ms':>9}{'TFLOP/s':>10}{'GB/s':>8}{'roofline':>10}{'time':>8}",
            ]
        if "error" in row:
            lines.append(f"  {row['contender']:42}not run: {row['error']}")
            continue
        share = row["share_of_roofline"]
        lines.append(
            f"  {row['contender']:42}{1e3 * row['seconds']:>9.3f}{row['tflops']:>10.1f}"
            f"{row['gigabytes_per_second']:>8,.0f}{'—' if share is None else f'{share:.0%}':>10}"
            f"{row['time_relative_to_course']:>8.2f}"
        )
    return "\n".join(lines)


def bench_kernels(*, repeats: int = 15) -> dict[str, Any]:
    """All measurements on the GPU that is here: plain JSON types.

    Raises ``ValueError`` for ``repeats`` below 1, ``RuntimeError`` with the reason where there is
    no GPU or the kernels cannot run on it.
    """
    require_positive("repeats", repeats)
    reason = refusal()
    if reason:
        raise RuntimeError(reason)
    device = torch.cuda.get_device_name()
    machine = machine_of(device)
    rows: list[dict[str, Any]] = []
    for task in tasks("cuda"):
        rows += measure(task, machine, repeats=repeats, wait=torch.cuda.synchronize)
    return {
        "device": device,
        "data_sheet": None if machine is None else machine.name,
        "flash_linear_attention": flash_linear_attention() is not None,
        "repeats": repeats,
        "rows": rows,
    }


def command(arguments: argparse.Namespace) -> int:
    """Run ``course bench kernels``; returns the exit status."""
    try:
        found = bench_kernels(repeats=arguments.repeats)
    except (ValueError, RuntimeError) as error:
        if arguments.json:
            print(json.dumps({"not_run": str(error)}))
        else:
            print(f"course bench kernels was not run: {error}")
        return 2
    if arguments.json:
        print(json.dumps(found))
        return 0
    sheet = found["data_sheet"]
    print(
        f"{found['device']}; medians of {found['repeats']}, B = {B}, H = {H}, head width {D} "
        f"(Taylor: {TAYLOR_D}), float16"
    )
    print(
        f"roofline: the numbers of {sheet}, for the least work of each task"
        if sheet
        else "roofline: course.cost has no data-sheet numbers for this GPU"
    )
    if not found["flash_linear_attention"]:
        print("flash-linear-attention is not installed: not compared")
    print(table(found["rows"]))
    return 0
