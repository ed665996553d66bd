"""Batch invariance, and batches without queries, in the simulator."""
import numpy as np
import pytest

import ferroflash

F16, I32 = np.float16, np.int32
SIM = {"device": "sim"}
PROMISES = ["batch", "batch_and_chunks"]


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(F16)


@pytest.mark.parametrize("invariance", PROMISES)
def test_equal_and_varlen_tensors_have_equal_bits(invariance):
    q, k, v = numbers(1, 21, 2, 64), numbers(2, 40, 1, 64), numbers(3, 40, 1, 64)
    options = {"causal": True, "invariance": invariance, "return_lse": True, **SIM}
    o, lse = ferroflash.flash_attn_func(q[None], k[None], v[None], **options)
    beside = [np.concatenate([numbers(4, 3, *t.shape[1:]), t]) for t in (q, k, v)]
    of, of_lse = ferroflash.flash_attn_varlen_func(
        *beside, np.array([0, 3, 24], I32), np.array([0, 3, 43], I32), 21, 40, **options)
    assert np.array_equal(o[0], of[3:])
    assert np.array_equal(lse[0], of_lse[:, 3:])


@pytest.mark.parametrize("invariance", PROMISES)
def test_single_queries_beside_a_prompt(invariance):
    pages, table = numbers(5, 4, 16, 1, 64), np.array([[3, 1], [0, 2]], I32)
    q, lengths = numbers(6, 10, 2, 64), np.array([30, 9], I32)
    options = {"causal": True, "invariance": invariance, **SIM}
    alone = ferroflash.flash_attn_with_kvcache(
        q[:1][None], pages, pages, cache_seqlens=lengths[:1], block_table=table[:1], **options)
    among = ferroflash.flash_attn_with_kvcache(
        q, pages, pages, cache_seqlens=lengths, block_table=table, cu_seqlens_q=np.array([0, 1, 10], I32), max_seqlen_q=9,
        **options)
    assert np.array_equal(alone[0], among[:1])


def test_an_unknown_promise_is_refused():
    q = numbers(1, 1, 4, 1, 64)
    with pytest.raises(ValueError, match="invariance 'all': it must be None, 'batch' or 'batch_and_chunks'"):
        ferroflash.flash_attn_func(q, q, q, invariance="all", **SIM)


def test_batches_without_queries_launch_nothing():
    q, k = np.zeros((0, 5, 2, 64), F16), np.zeros((0, 7, 1, 64), F16)
    o, lse = ferroflash.flash_attn_func(q, k, k, return_lse=True, **SIM)
    assert (o.shape, lse.shape) == ((0, 5, 2, 64), (0, 2, 5))
    o = ferroflash.flash_attn_func(numbers(1, 2, 0, 2, 64), numbers(2, 2, 7, 1, 64), numbers(3, 2, 7, 1, 64), **SIM)
    assert o.shape == (2, 0, 2, 64)
    starts = np.array([0, 0], I32)
    o = ferroflash.flash_attn_varlen_func(q[:, 0], k[:, 0], k[:, 0], starts, starts, 0, 0, **SIM)
    assert o.shape == (0, 2, 64)
    pages = numbers(5, 4, 16, 1, 64)
    o, lse = ferroflash.flash_attn_with_kvcache(
        q, pages, pages, cache_seqlens=np.zeros(0, I32), block_table=np.zeros((0, 2), I32), return_softmax_lse=True, **SIM)
    assert (o.shape, lse.shape) == ((0, 5, 2, 64), (0, 2, 5))
