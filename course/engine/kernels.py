"""The way to ``course.kernels``: ``impl="triton"``. What kernels have not is refused in a sentence.

Nothing of Triton is imported before it is asked for, and nothing else steps in where it cannot run.
``torch.compile`` follows an import statement, and no other way to import.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from course.feature_maps import get_feature_map
from course.state import LinearState

_WIDEST = 256  # a kernel holds whole rows of q, k and v in the fast memory of a GPU
_MAPS: dict[type[nn.Module], str] = {
    type(get_feature_map(name)): name for name in ("elu", "relu", "identity", "taylor")
}
_TAYLOR_WIDEST = 16  # a 16×16 product needs no gather of pairs, and its state fits on the chip


def softmax(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Softmax attention; ``ValueError`` for wide heads, ``RuntimeError`` if nothing can run."""
    for name, x, axis in (("q", q, "D"), ("v", v, "Dv")):
        if x.shape[-1] > _WIDEST:
            raise ValueError(
                f'{name}: expected {axis} of at most {_WIDEST} with impl="triton", '
                f"got {x.shape[-1]}"
            )
    from course.kernels import runtime

    runtime.require_runnable(q, k, v, options["mask"], options["bias"])
    from course.kernels import softmax as kernels

    return kernels.softmax_attention(q, k, v, **options)


def linear(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    feature_map: nn.Module,
    initial_state: LinearState | None,
    return_state: bool,
    key_mask: Tensor | None,
    **options: Any,
) -> Any:
    """Linear attention, causal or not."""
    stateful = return_state or initial_state is not None
    name = _name(feature_map, q.shape[-1], stateful=stateful)
    past = _ready(initial_state, q, k, v, key_mask)
    options |= {"key_mask": key_mask, "initial_state": past, "return_state": return_state}
    if name == "taylor":  # features built inside the kernel: another program, a file of its own
        from course.kernels import taylor

        return taylor.linear_attention(q, k, v, **options)
    from course.kernels import linear as kernels

    return kernels.linear_attention(q, k, v, feature_map=name, **options)


def step(
    q_t: Tensor,
    k_t: Tensor,
    v_t: Tensor,
    state: LinearState | None,
    *,
    feature_map: nn.Module,
    **options: Any,
) -> tuple[Tensor, LinearState]:
    """One token of linear attention."""
    name = _name(feature_map, q_t.shape[-1], stateful=True)
    past = _ready(state, q_t, k_t, v_t)
    from course.kernels import step as kernels

    return kernels.linear_attention_step(q_t, k_t, v_t, past, feature_map=name, **options)


def _name(fm: nn.Module, D: int, *, stateful: bool) -> str:
    """The name by which the kernels know this map; ``ValueError`` if they do not."""
    name = _MAPS.get(type(fm))
    if name is None:
        raise ValueError(
            f'feature_map: expected one of {", ".join(_MAPS.values())} with impl="triton", '
            f"got {type(fm).__name__}"
        )
    if name == "taylor":
        if D > _TAYLOR_WIDEST:
            raise ValueError(
                f"feature_map: expected taylor of keys with D of at most {_TAYLOR_WIDEST} with "
                f'impl="triton", got D = {D}'
            )
        if stateful and not fm.packed:
            # Without a state both give the same: packing changes the features, not their products.
            raise ValueError(
                "feature_map: expected taylor with packed=True where a state goes in or out with "
                'impl="triton", got packed=False'
            )
    return name


def _ready(state: LinearState | None, *tensors: Tensor | None) -> LinearState | None:
    """The state in float32, once it is clear that kernels can run; ``RuntimeError`` if not."""
    if state is not None:
        state = LinearState(state.S.float(), state.z.float(), state.t)
    from course.kernels import runtime

    runtime.require_runnable(*tensors, *(() if state is None else state))
    return state
