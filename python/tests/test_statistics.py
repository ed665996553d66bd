"""Largest scores and entropies of rows, and largest scores of heads, in the simulator."""
import numpy as np
import pytest

import ferroflash
from test_functions import F32, I32, SIM, func, kvcache, numbers, tensors, varlen


def statistics(q, k, scale=0.125):
    """Each row's largest score and its entropy: (heads, rows), of q (rows, heads, ..) and k (keys, heads_k, ..)."""
    scores = np.einsum("qhd,khd->hqk", *(t.astype(np.float64) for t in (q, k.repeat(q.shape[1] // k.shape[1], 1)))) * scale
    weights = np.exp(scores - scores.max(2, keepdims=True))
    weights /= weights.sum(2, keepdims=True)
    return scores.max(2), -(weights * np.log(weights)).sum(2)


def check_statistics(found, q, k, **options):
    for of, exact in zip(found, statistics(q, k, **options)):
        assert np.abs(of - exact).max() <= 1e-3


STATISTICS = {"return_max_logits": True, "return_entropy": True, **SIM}


def test_statistics_of_tensors():
    q, k, v = tensors([1, 33, 40, 2, 2, 64])
    starts, ends = np.array([0, 20, 33], I32), np.array([0, 0, 40], I32)
    _, lse, *dense = ferroflash.flash_attn_func(q, k, v, return_lse=True, **STATISTICS)
    _, *varlen = ferroflash.flash_attn_varlen_func(q[0], k[0], v[0], starts, ends, 20, 40, **STATISTICS)
    check_statistics([of[0] for of in dense], q[0], k[0])
    check_statistics([of[:, 20:] for of in varlen], q[0, 20:], k[0])
    # The first sequence has no key.
    assert np.isneginf(varlen[0][:, :20]).all() and not varlen[1][:, :20].any() and np.isfinite(lse).all()


@pytest.mark.parametrize("paged", [False, True])
def test_statistics_of_caches(paged):
    table, lengths = np.array([[3, 0, 4], [1, 2, 5]], I32), np.array([37, 20], I32)
    q, keys = numbers(1, (2, 1, 4, 64)), numbers(2, (6, 16, 2, 64))
    held = keys[table].reshape(2, 48, 2, 64)
    cache = (keys, keys) if paged else (held, held)
    _, lse, *found = ferroflash.flash_attn_with_kvcache(
        q, *cache, cache_seqlens=lengths, block_table=table if paged else None, return_softmax_lse=True, **STATISTICS)
    for n in range(2):
        check_statistics([of[n] for of in found], q[n], held[n, :lengths[n]])
    rows = ferroflash.flash_attn_varlen_func(
        q[:, 0], keys, keys, np.array([0, 1, 2], I32), np.array([0, 37, 57], I32), 1, 48, block_table=table, **STATISTICS)
    assert len(rows) == 3 and all(np.array_equal(a[..., 0].T, b) for a, b in zip(found, rows[1:]))


def test_statistics_of_latent_caches():
    q, pages, lengths = numbers(1, (2, 1, 4, 288)), numbers(2, (2, 32, 1, 288)), np.array([20, 9], I32)
    _, _, *found, of_heads = ferroflash.flash_mla_with_kvcache(
        q, pages, np.array([[0], [1]], I32), lengths, 256, softmax_scale=0.1, return_max_logits_head=True, **STATISTICS)
    for n in range(2):
        check_statistics([of[n] for of in found], q[n], pages[n, :lengths[n]], scale=0.1)
    assert np.array_equal(of_heads, found[0].max((0, 2)))


def test_the_largest_score_of_a_head():
    """FerroFlash finds it with the largest scores of the rows, and without them."""
    q, k, v = tensors([2, 33, 40, 2, 1, 64])
    o, most, of_heads = func(q, k, v, return_max_logits=True, return_max_logits_head=True, **SIM)
    assert of_heads.dtype == F32 and np.array_equal(of_heads, most.max((0, 2)))
    alone, found = func(q, k, v, return_max_logits_head=True, **SIM)
    assert np.array_equal(o, alone) and np.array_equal(of_heads, found)
    starts, ends = np.array([0, 33, 66], I32), np.array([0, 40, 80], I32)
    flat = [t.reshape(-1, *t.shape[2:]) for t in (q, k, v)]
    _, found = varlen(*flat, starts, ends, 33, 40, return_max_logits_head=True, **SIM)
    assert np.abs(of_heads - found).max() <= 1e-3
    _, found = kvcache(q, k, v, return_max_logits_head=True, **SIM)
    assert np.abs(of_heads - found).max() <= 1e-3
    _, found = func(q[:0], k[:0], v[:0], return_max_logits_head=True, **SIM)
    assert found.shape == (2,) and np.isneginf(found).all()
