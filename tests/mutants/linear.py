"""The fast checks of ``course.linear`` and ``course.feature_maps``, and wrong ones they must kill.

A subject holds fresh copies of both modules, ``linear`` and ``maps``. Sizes are pairwise distinct.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests import oracles
from tests.mutants import Check, Suite, fresh_module

B, H, T, D, Dv = 2, 3, 21, 4, 5
FORMS = ("parallel", "scan", "recurrent", "chunk")
OPTIONS: dict[str, dict[str, Any]] = {
    "elu": {},
    "relu": {},
    "taylor": {},
    "favor": {"features": 7},
    "cosformer": {"max_length": 600},
    "dpfp": {"nu": 2},
    "identity": {},
}
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__.replace("_", " ")] = function
    return function


def draw(*shape: int, seed: int, std: float = 1.2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return std * torch.randn(shape, generator=generator, dtype=torch.float64)


def qkv(T: int = T, S: int | None = None, **sizes: int) -> tuple[Tensor, Tensor, Tensor]:
    b, h, d = sizes.get("B", B), sizes.get("H", H), sizes.get("D", D)
    S = T if S is None else S
    return draw(b, h, T, d, seed=1), draw(b, h, S, d, seed=2), draw(b, h, S, Dv, seed=3)


def close(got: Tensor, expected: Tensor, what: object, tolerance: float = 1e-12) -> None:
    """Equal up to ``tolerance`` times the largest expected entry (or 1)."""
    assert got.shape == expected.shape, (what, got.shape, expected.shape)
    if got.numel():
        gap = (got.detach().double() - expected.detach().double()).abs().max().item()
        size = max(1.0, expected.detach().abs().max().item())
        assert gap <= tolerance * size, (what, gap, size)


def expected(name: str, q: Tensor, k: Tensor, v: Tensor, *, scale: float = 1.0, **options: Any):
    """The oracle for the maps of ``OPTIONS``; the queries are the last tokens of the keys."""
    places = torch.arange(k.shape[2]).expand(len(k), -1)
    if options.get("key_mask") is not None:
        places = (options["key_mask"].cumsum(-1) - 1).clamp(min=0)
    from course.feature_maps import get_feature_map

    weights = get_feature_map("favor", features=7).weights(q.shape[-1]) if name == "favor" else None
    sim = oracles.similarity(
        name,
        q,
        k,
        q_places=places[:, places.shape[1] - q.shape[2] :],
        k_places=places,
        weights=weights,
        max_length=600,
        nu=2,
        scale=scale,
    )
    return oracles.linear_attention(sim, v, normalize=name != "identity", **options)


def run(m: Any, name: str, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    fm = m.maps.get_feature_map(name, **OPTIONS[name])
    return m.linear.linear_attention(
        q, k, v, feature_map=fm, normalize=name != "identity", **options
    )


def steps(m: Any, name: str, q: Tensor, k: Tensor, v: Tensor, state: Any = None, **options: Any):
    fm = m.maps.get_feature_map(name, **OPTIONS[name])
    outs = []
    for t in range(q.shape[2]):
        o, state = m.linear.linear_attention_step(
            q[:, :, t],
            k[:, :, t],
            v[:, :, t],
            state,
            feature_map=fm,
            normalize=name != "identity",
            **options,
        )
        outs.append(o)
    return torch.stack(outs, 2), state


@check
def every_form_equals_the_definition(m: Any) -> None:
    q, k, v = qkv()
    for name in OPTIONS:
        for form in FORMS:
            for causal in (True, False):
                out = run(m, name, q, k, v, form=form, causal=causal, chunk_size=8)
                close(out, expected(name, q, k, v, causal=causal), (name, form, causal))


@check
def elu_is_stable(m: Any) -> None:
    for dtype, xs in (
        (torch.bfloat16, (-6.5, -12.0, -40.0, -80.0)),
        (torch.float16, (-8.5, -9.5)),
        (torch.float32, (-17.5, -40.0, -86.0)),
    ):
        for n in (1, 31, 32, 200):
            for x in xs:
                leaf = torch.full((n, 1), x, dtype=dtype, requires_grad=True)
                f = m.maps.get_feature_map("elu")(leaf)
                f.sum().backward()
                exact = math.exp(leaf[0].item())
                tolerance = 2 * torch.finfo(dtype).eps
                if dtype == torch.float16:
                    tolerance += 2.0**-24 / exact  # below 2⁻¹⁴ float16 counts in steps of 2⁻²⁴
                for got in (f, leaf.grad):
                    assert (got.double() / exact - 1).abs().max() <= tolerance, (dtype, x, n)


@check
def an_all_negative_input_has_features(m: Any) -> None:
    x = -draw(3, 5, seed=1).abs()
    for name in ("elu", "dpfp", "taylor", "favor"):
        assert m.maps.get_feature_map(name)(x).any(-1).all(), name


@check
def favor_stays_finite(m: Any) -> None:
    """Keys along a direction of W, of any length, and beside them ordinary ones."""
    for width in (4, 64):
        fm = m.maps.get_feature_map("favor", features=40, seed=3)
        w = fm.weights(width).float()
        for length in (0.5, 1.0, 3.0):
            x = (length * w)[None, None]
            f = fm(x)
            assert f.isfinite().all() and (f >= 0).all(), (width, length)
            out = m.linear.linear_attention(x, x, x, feature_map=fm)
            assert out.isfinite().all(), (width, length)


@check
def a_signed_map_has_no_denominator(m: Any) -> None:
    q, k, v = qkv()
    for form in FORMS:
        try:
            m.linear.linear_attention(q, k, v, feature_map="identity", form=form)
        except ValueError as error:
            assert "feature_map" in str(error) and "normalize" in str(error)
        else:
            raise AssertionError(f"{form}: a signed map was divided by its sum")


@check
def every_form_has_the_same_defaults(m: Any) -> None:
    full = inspect.signature(m.linear.linear_attention).parameters
    step = inspect.signature(m.linear.linear_attention_step).parameters
    for name in ("feature_map", "normalize", "scale"):
        assert full[name].default == step[name].default, name
    q, k, v = qkv()
    for form in FORMS:
        out = m.linear.linear_attention(q, k, v, form=form)
        assert isinstance(out, Tensor), (form, "a state nobody asked for")
        close(out, expected("elu", q, k, v), form)


@check
def the_step_equals_the_full_pass(m: Any) -> None:
    q, k, v = qkv()
    for name in OPTIONS:
        out, state = steps(m, name, q, k, v, scale=0.7)
        close(out, expected(name, q, k, v, scale=0.7), name)
        whole = run(m, name, q, k, v, scale=0.7, return_state=True)[1]
        for got, wanted, field in zip(state, whole, "Szt", strict=True):
            close(got, wanted, (name, field))


@check
def the_step_leaves_its_state_alone(m: Any) -> None:
    q, k, v = qkv(T=3)
    _, state = steps(m, "elu", q, k, v)
    before = [x.clone() for x in state]
    steps(m, "elu", q, k, v, state)
    m.linear.linear_attention(q, k, v, initial_state=state)
    assert all(torch.equal(a, b) for a, b in zip(before, state, strict=True)), "state was changed"


@check
def the_scale_acts_once(m: Any) -> None:
    q, k, v = qkv()
    for name in ("taylor", "favor", "elu", "identity"):
        for form in FORMS:
            out = run(m, name, q, k, v, form=form, scale=0.3)
            close(out, expected(name, q, k, v, scale=0.3), (name, form))
    fm = m.maps.get_feature_map("taylor")
    s = q @ k.mT
    close(fm(q) @ fm(k).mT, 1 + s + s * s / 2, "Taylor contains a scale of its own")


@check
def gradients_do_not_cancel(m: Any) -> None:
    """A suffix sum as total − prefix loses 1 beside 32 × 1e8."""
    T = 96
    v = torch.ones(1, 1, T, 1)
    k = torch.ones(1, 1, T, 1, requires_grad=True)
    q = torch.ones(1, 1, T, 1)
    dout = torch.ones(1, 1, T, 1)
    dout[:, :, :32] = 1e8
    for form in FORMS:
        out = m.linear.linear_attention(
            q, k, v, feature_map="identity", normalize=False, form=form, chunk_size=16
        )
        (grad,) = torch.autograd.grad(out, k, dout)
        close(grad[0, 0, -1, 0], torch.tensor(1.0), form, 1e-6)
        close(grad[0, 0, 40, 0], torch.tensor(56.0), form, 1e-6)


@check
def the_backward_pass_may_run_twice(m: Any) -> None:
    for chunk in (2, 8):  # fewer and more tokens than features
        leaves = [x.requires_grad_() for x in qkv()]
        out = run(m, "elu", *leaves, chunk_size=chunk)
        one = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
        two = torch.autograd.grad(out.sum(), leaves)
        for a, b in zip(one, two, strict=True):
            close(a, b, chunk)


@check
def small_denominators_survive(m: Any) -> None:
    """An epsilon in the denominator pulls the average of small similarities to 0."""
    v = torch.full((1, 1, 9, Dv), 3.0)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.full((1, 1, 9, D), 2.0**-13, dtype=dtype)
        for form in FORMS:
            out = m.linear.linear_attention(x, x, v.to(dtype), feature_map="relu", form=form)
            close(out, v, (dtype, form), 1e-3)


@check
def large_numerators_survive_float16(m: Any) -> None:
    q = torch.full((1, 1, 70, D), 20.0, dtype=torch.float16)
    v = torch.full((1, 1, 70, Dv), 3.0, dtype=torch.float16)
    for form in FORMS:
        out = m.linear.linear_attention(q, q, v, feature_map="taylor", form=form)
        assert (out == 3).all(), (form, out.flatten()[0])
    out, _ = m.linear.linear_attention_step(
        q[:, :, 0], q[:, :, 0], v[:, :, 0], feature_map="taylor"
    )
    assert (out == 3).all(), "step"


@check
def far_negative_inputs_still_average(m: Any) -> None:
    q, k, v = (x.float() for x in qkv())
    for form in FORMS:
        leaves = [(q - 18).requires_grad_(), (k - 18).requires_grad_(), v.requires_grad_()]
        out = m.linear.linear_attention(*leaves, form=form)
        close(out, expected("elu", *leaves), form, 1e-4)
        out.sum().backward()
        for x in leaves:
            assert x.grad is not None and x.grad.isfinite().all(), form


@check
def a_sequence_may_be_split(m: Any) -> None:
    q, k, v = qkv()
    for name in OPTIONS:
        whole = run(m, name, q, k, v)
        for form in FORMS:
            one, state = run(
                m, name, *(x[:, :, :9] for x in (q, k, v)), form=form, return_state=True
            )
            two = run(m, name, *(x[:, :, 9:] for x in (q, k, v)), form=form, initial_state=state)
            close(torch.cat([one, two], 2), whole, (name, form))


@check
def a_prefix_does_not_depend_on_the_length(m: Any) -> None:
    q, k, v = qkv(T=35)
    for name in OPTIONS:
        for form in FORMS:
            whole = run(m, name, q, k, v, form=form)
            part = run(m, name, *(x[:, :, :13] for x in (q, k, v)), form=form)
            close(part, whole[:, :, :13], (name, form))


@check
def a_row_that_sees_nothing_is_zero(m: Any) -> None:
    for normalize in (True, False):
        for form in FORMS:
            for causal in (True, False):
                leaves = [x.requires_grad_() for x in qkv()]
                mask = torch.ones(B, T, dtype=torch.bool)
                mask[0, :5] = False
                mask[1] = False
                out = m.linear.linear_attention(
                    *leaves,
                    form=form,
                    causal=causal,
                    normalize=normalize,
                    key_mask=mask,
                    chunk_size=8,
                )
                dead = out[:, :, :5] if causal else out[1:]
                assert not dead.any(), (form, causal, "not zero")
                grads = torch.autograd.grad(dead, leaves, torch.ones_like(dead))
                assert not any(g.any() for g in grads), (form, causal, "a gradient")


@check
def the_future_changes_nothing(m: Any) -> None:
    for name in OPTIONS:
        q, k, v = (x.float() for x in qkv(T=35))
        for form in FORMS:
            before = run(m, name, q, k, v, form=form, chunk_size=8)
            for t in (1, 7, 8, 20, 34):
                changed = [x.clone() for x in (q, k, v)]
                for x in changed:
                    x[:, :, t:] *= -3
                after = run(m, name, *changed, form=form, chunk_size=8)
                assert torch.equal(before[:, :, :t], after[:, :, :t]), (name, form, t)
            # Large future values must not cost the past its digits either.
            v = v.clone()
            v[:, :, 20:] *= 1e8
            after = run(m, name, q, k, v, form=form, chunk_size=8)
            assert torch.equal(before[:, :, :20], after[:, :, :20]), (name, form, "large future")


@check
def sums_are_kept_in_float32(m: Any) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        n = 3000
        q, k, v = (torch.ones(1, 1, n, d, dtype=dtype) for d in (2, 2, 3))
        for form in FORMS:
            out, state = m.linear.linear_attention(
                q, k, v, feature_map="relu", form=form, return_state=True
            )
            assert out.dtype == dtype and state.S.dtype == state.z.dtype == torch.float32
            assert (state.z == n).all() and state.S.eq(n).all(), (form, dtype, state.z)
            assert (out == 1).all(), (form, dtype)
        _, state = m.linear.linear_attention_step(
            q[:, :, 0], k[:, :, 0], v[:, :, 0], state, feature_map="relu"
        )
        assert (state.z == n + 1).all(), dtype


@check
def padding_changes_nothing(m: Any) -> None:
    dout = draw(B, H, T, Dv, seed=4)
    for name in OPTIONS:
        leaves = [x.requires_grad_() for x in qkv()]
        plain, state = run(m, name, *leaves, return_state=True)
        wanted = torch.autograd.grad(plain, leaves, dout)
        for left, right in ((6, 0), (0, 6), (2, 3)):
            mask = torch.zeros(B, left + T + right, dtype=torch.bool)
            mask[:, left : left + T] = True
            pad = (0, 0, left, right)
            for form in FORMS:
                longer = [torch.nn.functional.pad(x.detach(), pad, value=0.7) for x in leaves]
                for x in longer[1:]:
                    x[:, :, ~mask[0]] = math.nan
                longer = [x.requires_grad_() for x in longer]
                out, after = run(
                    m, name, *longer, form=form, key_mask=mask, chunk_size=8, return_state=True
                )
                close(out[:, :, left : left + T], plain, (name, form, left))
                for a, b, field in zip(after, state, "Szt", strict=True):
                    close(a, b, (name, form, left, field))
                out[:, :, left : left + T].backward(dout)
                for x, w, argument in zip(longer, wanted, "qkv", strict=True):
                    assert x.grad is not None
                    close(x.grad[:, :, left : left + T], w, (name, form, left, argument))
                    assert not x.grad[:, :, ~mask[0]].any(), (name, form, "padding has a gradient")


@check
def gradients_equal_the_definition(m: Any) -> None:
    dout = draw(B, H, T, Dv, seed=4)
    for name in OPTIONS:
        leaves = [x.requires_grad_() for x in qkv()]
        wanted = torch.autograd.grad(expected(name, *leaves), leaves, dout)
        for form in FORMS:
            got = torch.autograd.grad(run(m, name, *leaves, form=form, chunk_size=8), leaves, dout)
            for g, w, argument in zip(got, wanted, "qkv", strict=True):
                close(g, w, (name, form, argument))


# Wrong ones. Each is a copy of the modules with one part replaced.


def _fresh() -> types.SimpleNamespace:
    linear, maps = fresh_module("course.linear"), fresh_module("course.feature_maps")
    # One set of classes: the loop asks whether a map is a FeatureMap.
    linear.FeatureMap, linear.get_feature_map = maps.FeatureMap, maps.get_feature_map
    return types.SimpleNamespace(linear=linear, maps=maps)


def _mutant(change: Callable[[Any], None]) -> Callable[[], Any]:
    def make() -> Any:
        m = _fresh()
        change(m)
        return m

    return make


MUTANTS: dict[str, Callable[[], Any]] = {}


def mutant(change: Callable[[Any], None]) -> Callable[[Any], None]:
    MUTANTS[change.__name__.replace("_", " ")] = _mutant(change)
    return change


def _wrap(module: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace ``module.name`` by ``wrapper(original, *arguments)``."""
    original = getattr(module, name)
    setattr(module, name, functools.wraps(original)(functools.partial(wrapper, original)))


def _edit(module: Any, line: str, other: str) -> None:
    """Run the module again with one line changed."""
    source = inspect.getsource(module)
    assert source.count(line) == 1, line
    kept = module.FeatureMap, module.get_feature_map
    exec(compile(source.replace(line, other), module.__file__, "exec"), module.__dict__)
    module.FeatureMap, module.get_feature_map = kept


def _map(m: Any, name: str, **methods: Callable[..., Any]) -> None:
    """A feature map with other methods; the fast paths fall back to its forward."""
    base = m.maps._MAPS[name]
    plain = {"write": m.maps.FeatureMap.write, "pullback": m.maps.FeatureMap.pullback}
    m.maps._MAPS[name] = type(name, (base,), plain | methods)


@mutant
def z_as_an_elementwise_cumsum(m: Any) -> None:
    def parallel(fq: Tensor, fk: Tensor, v: Tensor, past: Any) -> Any:
        num, _, S, z = m.linear._quadratic(fq, fk, v, past, causal=True)
        before = (fq * past.z.unsqueeze(2)).sum(-1)
        return num, lambda: (fq * fk).sum(-1).cumsum(-1) + before, S, z

    m.linear._CAUSAL["parallel"] = parallel


@mutant
def padding_left_in_z(m: Any) -> None:
    def features(original: Any, fm: Any, x: Tensor, positions: Any, key_mask: Any) -> Tensor:
        return original(fm, x, positions, None)  # v is 0 there, so S is right

    _wrap(m.linear, "_features", features)


@mutant
def padding_left_in_z_of_chunks(m: Any) -> None:
    def mapped(original: Any, x: Tensor, real: Any, *rest: Any) -> Any:
        return original(x, None, *rest)

    _wrap(m.linear, "_mapped", mapped)


@mutant
def padding_zeroed_after_the_map_only(m: Any) -> None:
    """Forward is right; the map's gradient at a NaN is NaN."""
    _edit(m.linear, "work_k, work_v = work_k.masked_fill(hidden, 0), work_v", "work_v = work_v")


@mutant
def elu_plus_one_as_written(m: Any) -> None:
    _map(m, "elu", forward=lambda self, x: torch.nn.functional.elu(x) + 1)


@mutant
def a_key_maximum_over_the_sequence(m: Any) -> None:
    base = m.maps._MAPS["favor"].forward

    def forward(self: Any, x: Tensor) -> Tensor:
        return base(self, x) / base(self, x).amax(dim=(-1, -2), keepdim=True)

    _map(m, "favor", forward=forward)


@mutant
def no_key_stabiliser(m: Any) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        w = self.weights(x.shape[-1]).to(x.dtype)
        exponent = x @ w.T - x.square().sum(-1, keepdim=True) / 2
        return exponent.exp() / math.sqrt(self.features)

    _map(m, "favor", forward=forward)


@mutant
def the_last_ragged_chunk_is_dropped(m: Any) -> None:
    class Plan(m.linear._Plan):
        def cut(self, x: Tensor | None) -> list[Any]:
            self.tiles = [tile for tile in self.tiles if tile.first < max(1, self.whole)]
            return super().cut(x)[: len(self.tiles)]

    m.linear._Plan = Plan


@mutant
def the_step_changes_its_state(m: Any) -> None:
    def step(original: Any, q: Tensor, k: Tensor, v: Tensor, state: Any = None, **o: Any) -> Any:
        out, new = original(q, k, v, state, **o)
        if state is None:
            return out, new
        for old, fresh in zip(state, new, strict=True):
            old.copy_(fresh)
        return out, state

    _wrap(m.linear, "linear_attention_step", step)


@mutant
def a_full_pass_changes_its_state(m: Any) -> None:
    def attention(original: Any, *a: Any, **o: Any) -> Any:
        state = o.get("initial_state")
        result = original(*a, **o)
        if state is not None:
            state.t.add_(1)
        return result

    _wrap(m.linear, "linear_attention", attention)


@mutant
def the_scale_acts_twice(m: Any) -> None:
    m.linear._root = lambda scale: float(scale)


@mutant
def the_scale_is_forgotten(m: Any) -> None:
    m.linear._root = lambda scale: 1.0


@mutant
def taylor_with_a_scale_of_its_own(m: Any) -> None:
    base = m.maps._MAPS["taylor"].forward
    _map(m, "taylor", forward=lambda self, x: base(self, x * x.shape[-1] ** -0.25))


@mutant
def no_gradient_through_z(m: Any) -> None:
    _wrap(m.linear, "_divide", lambda original, num, den: original(num, den.detach()))


@mutant
def no_gradient_through_z_of_chunks(m: Any) -> None:
    _wrap(m.linear, "_dz_after", lambda original, *a: torch.zeros_like(original(*a)))


@mutant
def an_epsilon_in_the_denominator(m: Any) -> None:
    m.linear._divide = lambda num, den: num / (den + 1e-6).unsqueeze(-1)


@mutant
def the_numerator_in_float16(m: Any) -> None:
    m.linear._divide = lambda num, den: num.half().to(num) / den.unsqueeze(-1)


def _by_subtraction(m: Any, backwards: bool) -> None:
    """What comes before a chunk as the total of its tile minus what does not."""
    right = m.linear._Sums.__call__

    def call(self: Any, tile: Any, left: Tensor, right_: Tensor, carry: Tensor) -> Tensor:
        if self.reverse != backwards:
            return right(self, tile, left, right_, carry)
        added = (left.mT @ right_).view(tile.heads, tile.G, left.shape[-1], right_.shape[-1])
        total = carry.unsqueeze(1) + added.sum(1, keepdim=True)
        carry.copy_(total[:, 0])
        rest = added.cumsum(1) if backwards else added.flip(1).cumsum(1).flip(1)
        return (total - rest).flatten(0, 1)

    m.linear._Sums.__call__ = call


@mutant
def an_exclusive_prefix_by_subtraction(m: Any) -> None:
    _by_subtraction(m, backwards=False)


@mutant
def a_suffix_by_subtraction(m: Any) -> None:
    _by_subtraction(m, backwards=True)


@mutant
def the_state_starts_anew_at_each_tile(m: Any) -> None:
    m.linear._TILE = 16
    right = m.linear._Sums.__call__

    def call(self: Any, tile: Any, left: Tensor, right_: Tensor, carry: Tensor) -> Tensor:
        if tile.first:
            carry.zero_()
        return right(self, tile, left, right_, carry)

    m.linear._Sums.__call__ = call


@mutant
def the_backward_pass_changes_what_was_kept(m: Any) -> None:
    _edit(m.linear, "start[0].clone()", "start[0]")


@mutant
def the_current_token_is_hidden(m: Any) -> None:
    def scores(original: Any, *a: Any) -> Tensor:
        return original(*a).tril_(-1)

    _wrap(m.linear, "_scores", scores)


@mutant
def cosformer_by_the_length_of_the_sequence(m: Any) -> None:
    base = m.maps._MAPS["cosformer"].forward

    def forward(self: Any, x: Tensor, positions: Tensor | None = None) -> Tensor:
        short = m.maps._MAPS["cosformer"](max_length=max(1, x.shape[-2]))
        return base(short, x, torch.arange(x.shape[-2]))

    _map(m, "cosformer", forward=forward)


@mutant
def cosformer_counts_from_zero_again(m: Any) -> None:
    def positions(original: Any, fm: Any, t: Tensor, *rest: Any) -> Any:
        return original(fm, torch.zeros_like(t), *rest)

    _wrap(m.linear, "_positions", positions)


@mutant
def cosformer_counts_padding(m: Any) -> None:
    def positions(original: Any, fm: Any, t: Tensor, key_mask: Any, *rest: Any) -> Any:
        return original(fm, t, None, *rest)

    _wrap(m.linear, "_positions", positions)


@mutant
def dpfp_of_the_positive_part_only(m: Any) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        r = torch.relu(torch.cat([x, x], -1))
        return torch.cat([r * r.roll(i, dims=-1) for i in range(1, self.nu + 1)], -1)

    _map(m, "dpfp", forward=forward)


@mutant
def the_sums_in_the_dtype_of_the_inputs(m: Any) -> None:
    def attention(original: Any, q: Tensor, *a: Any, **o: Any) -> Any:
        result = original(q, *a, **o)
        if not o.get("return_state"):
            return result
        out, s = result
        return out, type(s)(s.S.to(q.dtype).to(s.S), s.z.to(q.dtype).to(s.z), s.t)

    _wrap(m.linear, "linear_attention", attention)


@mutant
def a_state_nobody_asked_for(m: Any) -> None:
    def attention(original: Any, *a: Any, **o: Any) -> Any:
        return original(*a, **(o | {"return_state": True}))

    _wrap(m.linear, "linear_attention", attention)


@mutant
def other_defaults_in_the_step(m: Any) -> None:
    original = m.linear.linear_attention_step

    def step(
        q: Any, k: Any, v: Any, state: Any = None, *, normalize: bool = False, **o: Any
    ) -> Any:
        return original(q, k, v, state, normalize=normalize, **o)

    m.linear.linear_attention_step = step


@mutant
def signed_maps_are_divided(m: Any) -> None:
    m.maps._Identity.signed = False


@mutant
def rows_that_see_nothing_are_nan(m: Any) -> None:
    m.linear._divide = lambda num, den: num / den.unsqueeze(-1)


SUITE = Suite("linear attention", _fresh, MUTANTS, CHECKS)
