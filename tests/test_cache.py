"""The key/value cache: what it says is what it holds, and no step changes what came before."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor

from course.cache import KeyValueCache

B, H, D, Dv = 2, 3, 4, 6


def text(T: int, **options) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(T)
    k, v = (torch.randn(B, H, T, width, generator=generator) for width in (D, Dv))
    return k.to(**options), v.to(**options)


def held(cache: KeyValueCache) -> int:
    return sum(x.untyped_storage().nbytes() for x in (cache.k, cache.v))


def in_portions(k: Tensor, v: Tensor, portions: tuple[int, ...], keep: int | None = None):
    """Each step's keys and values together, and the cache after it."""
    cache, start = KeyValueCache.before(k, v), 0
    for portion in portions:
        new = (x[:, :, start : start + portion].clone() for x in (k, v))
        together_k, together_v, cache = cache.extend(*new, keep=keep)
        start += portion
        yield together_k, together_v, cache


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize("portions", [(1,) * 30, (9, *(1,) * 21), (3, 0, 20, 7), (30,)])
@pytest.mark.parametrize("keep", [None, 0, 1, 4, 50])
def test_a_cache_keeps_the_last_and_owns_little_more(keep, portions, differentiable) -> None:
    k, v = (x.requires_grad_(differentiable) for x in text(30))
    end, before = 0, 0
    steps = in_portions(k, v, portions, keep)
    for portion, (some_k, some_v, cache) in zip(portions, steps, strict=True):
        end += portion
        kept = end if keep is None else min(keep, end)
        assert torch.equal(some_k, k[:, :, end - portion - before : end])
        assert torch.equal(some_v, v[:, :, end - portion - before : end])
        assert torch.equal(cache.k, k[:, :, end - kept : end]) and cache.seen == end
        assert torch.equal(cache.v, v[:, :, end - kept : end])
        assert cache.nbytes() == B * H * kept * (D + Dv) * 4
        assert held(cache) <= 2 * cache.nbytes()
        before = kept


def test_a_text_is_copied_a_few_times_not_once_a_token() -> None:
    k, v = text(256)
    owners = {cache.k.untyped_storage().data_ptr() for *_, cache in in_portions(k, v, (1,) * 256)}
    assert len(owners) <= 10
    window = {c.k.untyped_storage().data_ptr() for *_, c in in_portions(k, v, (1,) * 256, keep=31)}
    assert len(window) <= 16


def test_an_old_cache_can_be_continued_twice() -> None:
    k, v = text(5)
    *_, old = list(in_portions(k, v, (3, 1, 1)))[-1]
    kept = old.k.clone()
    new_k, new_v = text(2)
    first, *_ = old.extend(new_k, new_v)
    second, *_ = old.extend(-new_k, new_v)
    assert torch.equal(old.k, kept)
    assert torch.equal(first, torch.cat([kept, new_k], 2))
    assert torch.equal(second, torch.cat([kept, -new_k], 2))


def test_gradients_reach_every_token() -> None:
    k, v = (x.requires_grad_() for x in text(7))
    some_k, some_v, _ = list(in_portions(k, v, (3, 1, 1, 2)))[-1]
    (some_k.square().sum() + some_v.square().sum()).backward()
    assert torch.equal(k.grad, 2 * k) and torch.equal(v.grad, 2 * v)


def test_a_cache_of_an_inference_mode_goes_on_outside() -> None:
    k, v = text(6)
    with torch.inference_mode():
        *_, cache = list(in_portions(k, v, (3, 1)))[-1]
    both, *_ = cache.extend(k[:, :, 4:], v[:, :, 4:])
    assert torch.equal(both, k)


@pytest.mark.parametrize("keep", [None, 3])
def test_a_saved_cache_holds_its_own_keys_and_goes_on(keep) -> None:
    k, v = text(200)
    *_, cache = list(in_portions(k, v, (1,) * 200, keep))[-1]
    for again in (pickle.loads(pickle.dumps(cache)), copy.deepcopy(cache)):
        assert torch.equal(again.k, cache.k) and again.seen == 200
        assert held(again) == cache.nbytes()
        assert torch.equal(again.extend(k, v)[0], cache.extend(k, v)[0])
    file = io.BytesIO()
    torch.save(cache, file)
    assert file.tell() < cache.nbytes() + 4_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k, v: (k[:1], v[:1]), "cache.k and the new k: .* axis B, .* 2, .* 1"),
        (lambda k, v: (k[:, :2], v[:, :2]), "cache.k and the new k: .* axis H"),
        (lambda k, v: (k[..., :3], v), "cache.k and the new k: .* axis D"),
        (lambda k, v: (k, v[..., :5]), "cache.v and the new v: .* axis D"),
        (lambda k, v: (k.bfloat16(), v), "cache.k and the new k: expected one dtype"),
        (lambda k, v: (k.to("meta"), v), "cache.k: expected the device meta, got cpu"),
    ],
)
def test_a_cache_that_does_not_fit_is_named(change, message: str) -> None:
    _, _, cache = KeyValueCache.before(*text(1)).extend(*text(3))
    with pytest.raises(ValueError, match=message):
        cache.extend(*change(*text(1)))


def test_keys_and_values_belong_together() -> None:
    k, v = text(3)
    with pytest.raises(ValueError, match="cache.k: expected 4 axes"):
        KeyValueCache(k[0], v)
    with pytest.raises(ValueError, match="cache.k and cache.v: .* axis S"):
        KeyValueCache(k, v[:, :, 1:])
    with pytest.raises(ValueError, match="cache: expected a KeyValueCache, got tuple"):
        KeyValueCache.before(k, v, (k, v))
