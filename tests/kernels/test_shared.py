"""What holds for every kernel: derivatives, transforms, torch.compile, memory, arguments, programs.

Each is called as ``course.attention`` and ``course.linear`` call it.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

pytest.importorskip("triton")

from course.attention import softmax_attention
from course.kernels import linear, runtime, shared, softmax, step, taylor
from course.linear import linear_attention, linear_attention_step
from tests.drawing import leaves, qkv
from tests.kernels.watching import names

pytestmark = pytest.mark.skipif(
    runtime.refusal(torch.zeros(1)) is not None, reason=str(runtime.refusal(torch.zeros(1)))
)


def one_token(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return linear_attention_step(q[:, :, 0], k[:, :, 0], v[:, :, 0], impl="triton")[0]


with_state = partial(linear_attention, causal=True, impl="triton", return_state=True)
KERNELS: dict[str, Callable[..., Tensor]] = {
    "softmax": partial(softmax_attention, impl="triton"),
    "linear": partial(linear_attention, causal=True, impl="triton"),
    "linear, its state": lambda *qkv: with_state(*qkv)[1].S,
    "taylor": partial(linear_attention, causal=True, feature_map="taylor", impl="triton"),
    "taylor, its state": lambda *qkv: with_state(*qkv, feature_map="taylor")[1].S,
    "step": one_token,
}
every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)


def inputs() -> list[Tensor]:
    return leaves(*qkv(5, B=1, H=1, D=3), dtype=torch.float32)


# ------------------------------------------------------------------------------- derivatives


@every_kernel
@pytest.mark.parametrize("loss", [Tensor.sum, lambda x: x.square().sum()], ids=["constant", "not"])
def test_second_derivatives_are_refused(
    kernel: Callable[..., Tensor], loss: Callable[[Tensor], Tensor]
) -> None:
    """Also where the gradient that comes in is a constant and nobody else would notice."""
    given = inputs()
    with pytest.raises(RuntimeError, match=r"first derivatives only.*create_graph.*reference"):
        torch.autograd.grad(loss(kernel(*given)), given, create_graph=True, allow_unused=True)


@every_kernel
def test_transforms_and_forward_mode_are_refused(kernel: Callable[..., Tensor]) -> None:
    q, k, v = (x.detach() for x in inputs())

    def loss(k: Tensor) -> Tensor:
        return kernel(q, k, v).sum()

    many = torch.stack([k, k])
    for call in (
        lambda: torch.func.grad(loss)(k),
        lambda: torch.func.vmap(loss)(many),
        lambda: torch.func.vmap(torch.func.grad(loss))(many),
        lambda: torch.func.jvp(loss, (k,), (k,)),
    ):
        with pytest.raises(RuntimeError, match=r'torch\.func .*use impl="reference"'):
            call()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(k, torch.ones_like(k))
        with pytest.raises(RuntimeError, match="no forward-mode derivatives"):
            loss(dual)


@every_kernel
def test_after_the_backward_pass_nothing_is_held(kernel: Callable[..., Tensor]) -> None:
    """And before it, what is held goes through the hooks for saved tensors."""
    held: list[Any] = []

    class Box:
        def __init__(self, x: Tensor) -> None:
            self.x = x
            held.append(weakref.ref(self))

    with torch.autograd.graph.saved_tensors_hooks(Box, lambda box: box.x):
        out = kernel(*inputs())
    assert held and all(box() is not None for box in held)
    out.sum().backward()
    gc.collect()
    assert out.grad_fn is not None and all(box() is None for box in held)


# ----------------------------------------------------------------------------- torch.compile

# On a GPU, PyTorch's tracer takes a launch into the graph. Here there is none: it is told that
# there is one, and the graph that it makes is looked at, not run.
TRACING = """
import json, sys
import torch, torch.utils._triton as found
found.has_triton = found.has_triton_package = lambda *a, **k: True
from course.attention import softmax_attention
from course.kernels import runtime, softmax, step
from course.linear import linear_attention, linear_attention_step
runtime.require_runnable = lambda *tensors: None
graphs = []

def backend(module, inputs):
    graphs.append([type(node.target).__name__ for node in module.graph.nodes])
    outputs = [node for node in module.graph.nodes if node.op == "output"][0].args[0]
    return lambda *a: [torch.zeros(x.meta["example_value"].shape) for x in outputs]

def attend(q, k, v):
    return softmax_attention(q, k, v, impl="triton")

def linear(q, k, v):
    return linear_attention(q, k, v, causal=True, impl="triton", return_state=True)[0]

def taylor(q, k, v):
    return linear_attention(q, k, v, causal=True, feature_map="taylor", impl="triton")

def one_token(q, k, v):
    return linear_attention_step(q[:, :, 0], k[:, :, 0], v[:, :, 0], impl="triton")[0]

for function in (attend, linear, taylor, one_token):
    for wanted in (False, True):
        torch._dynamo.reset()
        given = [torch.randn(1, 1, 5, 16).half().requires_grad_(wanted) for _ in range(3)]
        torch.compile(function, fullgraph=True, backend=backend)(*given)
print(json.dumps([sum("TritonKernelWrapper" in kind for kind in graph) for graph in graphs]))
"""


def test_compiled_kernels_are_traced_into_one_graph() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    made = subprocess.run(
        [sys.executable, "-c", TRACING], capture_output=True, text=True, env=environment
    )
    assert made.returncode == 0, made.stderr
    # Launches in the graph; where gradients are wanted they are inside one autograd operation.
    assert json.loads(made.stdout.splitlines()[-1]) == [1, 0, 2, 0, 2, 0, 1, 0]


@pytest.mark.parametrize("fullgraph", [True, False])
def test_interpreted_kernels_are_refused_by_torch_compile(fullgraph: bool) -> None:
    torch._dynamo.reset()
    attend = torch.compile(linear.linear_attention, fullgraph=fullgraph, backend="eager")
    with pytest.raises(Exception, match="into its graph, and cannot interpret any"):
        attend(*(x.detach() for x in inputs()))


# ------------------------------------------------------------------------------------- tiles


def test_blocks_are_powers_of_two_of_16_at_least() -> None:
    widths = {0: 16, 1: 16, 16: 16, 17: 32, 32: 32, 33: 64, 64: 64, 65: 128, 256: 256}
    assert {w: shared.block(w) for w in widths} == widths


def serial_scans(heads: int, D: int, Dv: int) -> dict[str, int]:
    """Programs of the launches that walk over a text in order, for one sequence."""
    q, k, v = (
        torch.empty(1, heads, 4096, n, device="meta", requires_grad=True) for n in (D, D, Dv)
    )
    with runtime.recording() as launches:
        for attend in (linear.linear_attention, taylor.linear_attention):
            if attend is linear.linear_attention or D <= shared.WIDEST_TAYLOR:
                attend(q, k, v).sum().backward()
    serial = ("linear_states", "linear_state_gradients", "taylor_sums")
    return {n: x.grid[0] for n, x in zip(names(launches), launches, strict=True) if n in serial}


def test_a_serial_scan_has_programs_for_a_whole_gpu_if_there_are_blocks() -> None:
    """An H100 has 132 multiprocessors, and one sequence of a small model eight heads."""
    assert set(serial_scans(8, 64, 64)) == {"linear_states", "linear_state_gradients"}
    for heads, D in ((8, 64), (4, 128), (2, 256), (64, 32)):
        assert min(serial_scans(heads, D, D).values()) >= 128, (heads, D)
    assert serial_scans(8, 16, 64)["taylor_sums"] >= 128
    # One head of width 64 has no more than 16 blocks of 16 × 16.
    assert set(serial_scans(1, 64, 64).values()) == {16}
    # And where heads are many, no block is cut.
    assert set(serial_scans(200, 32, 32).values()) == {200}


def test_no_axis_of_a_grid_is_longer_than_a_gpu_allows() -> None:
    """70,000 heads lie on the first axis: the others end at 65,535."""
    q = torch.empty(1, 70_000, 1, 2, device="meta", requires_grad=True)
    with runtime.recording() as launches:
        softmax.softmax_attention(q, q, q, scale=1.0).sum().backward()
        linear.linear_attention(q, q, q).sum().backward()
        taylor.linear_attention(q, q, q).sum().backward()
        token = q[:, :, 0].detach()
        step.linear_attention_step(token, token, token)
    assert len(launches) == 3 + 5 + 5 + 1
    assert all(len(x.grid) == 1 and x.grid[0] >= 70_000 for x in launches)
