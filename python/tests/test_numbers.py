"""Numbers, flags and names that functions take, and the numbers in tensors that the host has: offsets, lengths, pages."""
import re

import numpy as np
import pytest

import ferroflash
from test_checks import (ARGUMENTS, CACHE, EIGHTS, F16, F32, I32, K, LENGTHS, PAIR, Q, Q1, ROWS, SIM, STARTS, TABLE, func, kvcache,
                         mla, numbers, of, sparse, varlen)

# Offsets of rows of another length than their tensors have, and sizes of a sequence
OFFSETS = [
    (varlen, dict(cu_seqlens_q=of(4, 4), cu_seqlens_k=of(4, 4)), "cu_seqlens_q [4, 4]: offsets must begin with 0"),
    (varlen, dict(cu_seqlens_q=of(0, 5, 4)), "cu_seqlens_q [0, 5, 4]: offsets must begin with 0, never decrease"),
    (varlen, dict(cu_seqlens_k=of(0, 4, 9)), "and end with at most 8, the rows of k"),
    (varlen, dict(cu_seqlens_q=np.array([0, 4, 2**40])), "end with at most 8, the rows of q"),
    (varlen, dict(max_seqlen_q=3), "max_seqlen_q 3: it must be at least 4, the length of the longest sequence of cu_seqlens_q"),
    (varlen, dict(max_seqlen_k=3), "max_seqlen_k 3: it must be at least 4"),
    (varlen, dict(k=CACHE, v=CACHE, block_table=TABLE, max_seqlen_q=3), "max_seqlen_q 3: it must be at least 4"),
    (kvcache, dict(q=ROWS, cu_seqlens_q=of(3, 5, 8), max_seqlen_q=4), "cu_seqlens_q [3, 5, 8]: offsets must begin with 0"),
    (kvcache, dict(q=ROWS, cu_seqlens_q=STARTS), "max_seqlen_q None beside cu_seqlens_q"),
    (kvcache, dict(seqused_q=LENGTHS), "seqused_q without cu_seqlens_q"),
    (kvcache, dict(cache_seqlens=of(5, 33)), "cache_seqlens [5, 33]: each must be from 0 to 32, the keys of a sequence"),
    (kvcache, dict(**PAIR, cache_seqlens=of(5, 32)), "each must be from 0 to 31"),
    (varlen, dict(k=CACHE, v=CACHE, block_table=TABLE, cu_seqlens_k=of(8, 4, 0)), "cu_seqlens_k [8, 4, 0]: offsets must"),
    (varlen, dict(k=CACHE, v=CACHE, block_table=TABLE, cu_seqlens_k=of(0, 4, 99)), "lengths of cu_seqlens_k [4, 95]: each must"),
    (kvcache, dict(block_table=np.array([[0], [4]], I32)), "block_table has 4: it must be from 0 to 3, the pages of k_cache"),
    (kvcache, dict(block_table=np.array([[0], [2**40]])), f"block_table has {2**40}: it must be from 0 to 3"),
    (kvcache, dict(cache_batch_idx=of(0, -1)), "cache_batch_idx has -1: it must be from 0 to 3"),
    (mla, dict(cache_seqlens=of(5, 65)), "cache_seqlens [5, 65]: each must be from 0 to 64"),
    (mla, dict(cache_seqlens=np.array([5, 2**40])), f"cache_seqlens [5, {2**40}]: each must be from 0 to 64"),
    (mla, dict(block_table=np.array([[0], [9]], I32)), "block_table has 9: it must be from 0 to 3"),
    (func, dict(mask_keys=3), "mask_keys 3 without mask_bits"),
    (kvcache, dict(cache_seqlens=-1), "cache_seqlens -1"),
    (kvcache, dict(cache_seqlens=99), "each must be from 0 to 32"),
]
# Numbers, flags and names
SCALARS = [
    (func, dict(causal="yes"), "causal is 'yes'; it must be True or False"),
    (func, dict(causal=None), "causal is None"),
    (func, dict(causal=2), "causal is 2"),
    (func, dict(window_size=16), "window_size is 16; it must be two integers (left, right) below 2**31, of which -1 is no "
                                 "bound; pass (16, 16)"),
    (func, dict(window_size=(1, 2, 3)), "window_size is (1, 2, 3)"),
    (func, dict(window_size=(1.5, 0)), "window_size is 1.5"),
    (func, dict(softcap="5"), "softcap is '5'"),
    (func, dict(softcap=[1.0]), "softcap is [1.0]"),
    (func, dict(softmax_scale="1"), "softmax_scale is '1'"),
    (func, dict(softmax_scale=numbers(2)), "softmax_scale is array("),
    (func, dict(softmax_scale=True), "softmax_scale is True"),
    (func, dict(config=7), "config is 7; it must be a string or None"),
    (func, dict(invariance=[1]), "invariance is [1]"),
    (func, dict(precision=8), "precision is 8"),
    (func, dict(chunked=2.5), "chunked is 2.5"),
    (func, dict(prefix=2.5), "prefix is 2.5"),
    (func, dict(prefix="2"), "prefix is '2'"),
    (func, dict(mask_keys=None), "mask_keys is None"),
    (func, dict(return_lse=numbers(2)), "return_lse is array("),
    (func, dict(bhsd="q"), "bhsd is 'q'"),
    (varlen, dict(max_seqlen_q=4.0), "max_seqlen_q is 4.0"),
    (varlen, dict(max_seqlen_k=True), "max_seqlen_k is True"),
    (kvcache, dict(num_splits="2"), "num_splits is '2'"),
    (kvcache, dict(cache_seqlens=1.5), "cache_seqlens is 1.5"),
    (kvcache, dict(cache_seqlens="5"), "cache_seqlens is '5'"),
    (kvcache, dict(**EIGHTS, k_descale="1"), "k_descale is '1'"),
    (kvcache, dict(attention_chunk="1", causal=True), "attention_chunk is '1'"),
    (kvcache, dict(block_table=TABLE, shared_prefixes=3), "shared_prefixes is 3; it must be (groups, pages, rest)"),
    (kvcache, dict(rotary_cos=[1], rotary_sin=[1], **PAIR), "rotary_cos is [1]"),
    (mla, dict(head_dim_v=None), "head_dim_v is None"),
    (mla, dict(causal=numbers(2)), "causal is array("),
    (sparse, dict(sm_scale=None), "sm_scale is None"),
    (sparse, dict(d_v="512"), "d_v is '512'"),
]
RANGES = [
    (func, dict(window_size=(2**40, 0)), f"window_size {2**40}: it must be two integers (left, right) below 2**31"),
    (func, dict(softcap=-1.0), "softcap -1.0: it must be 0.0 (none) or a number above it"),
    (func, dict(softcap=1e300), "softcap 1e+300"),
    (func, dict(softmax_scale=float("nan")), "softmax_scale nan"),
    (func, dict(softmax_scale=1e39), "softmax_scale 1e+39: it must be a number above 0 and at most 2**20"),
    (sparse, dict(sm_scale=2**21), "sm_scale 2097152"),
    (func, dict(chunked=2**32 + 5), f"chunked {2**32 + 5}: it must be an integer from 0 to 2**31 - 1, or None"),
    (func, dict(prefix=2**32 + 5), f"prefix {2**32 + 5}"),
    (func, dict(mask_keys=-1), "mask_keys -1"),
    (func, dict(config="a\0b"), "it must have no zero byte"),
    (varlen, dict(max_seqlen_q=2**64 + 4), f"max_seqlen_q {2**64 + 4}"),
    (kvcache, dict(num_splits=-1), "num_splits -1"),
    (kvcache, dict(split_keys=2**32), f"split_keys {2**32}"),
    (mla, dict(head_dim_v=2**64 + 512), f"head_dim_v {2**64 + 512}"),
    (sparse, dict(sm_scale=0), "sm_scale 0: it must be a number above 0"),
    (func, dict(softmax_scale=-1.0), "for a negative scale, negate q"),
    (kvcache, dict(**EIGHTS, k_descale=0.0), "k_descale 0.0: it must be a normal float32 above 0"),
    (kvcache, dict(**EIGHTS, v_descale=1e-40), "v_descale 1e-40: it must be a normal float32 above 0"),
]


@pytest.mark.parametrize("kind, function, changed, words", [
    (kind, *case) for kind, cases in ((ferroflash.Invalid, OFFSETS + RANGES), (ferroflash.WrongType, SCALARS)) for case in cases])
def test_refusals(kind, function, changed, words):
    with pytest.raises(kind, match=re.escape(words)):
        function(**{**ARGUMENTS[function], **changed}, **SIM)


def test_numbers_of_numpy():
    plain = func(Q, K, K, 0.0, 0.5, True, (3, 0), 5.0, **SIM)
    assert np.array_equal(plain, func(Q, K, K, F32(0), F32(0.5), np.True_, np.array([3, 0]), np.array(5.0), **SIM))
    assert np.array_equal(plain, func(Q, K, K, 0, F16(0.5), 1, [np.int64(3), 0], 5, **SIM))
    assert np.array_equal(func(Q, K, K, **SIM), func(Q, K, K, softcap=None, window_size=None, **SIM))
    rows = {**ARGUMENTS[varlen], "max_seqlen_q": np.int64(4), "max_seqlen_k": np.array(4)}
    assert np.array_equal(varlen(**rows, **SIM), varlen(**ARGUMENTS[varlen], **SIM))
    assert np.array_equal(kvcache(Q1, CACHE, CACHE, cache_seqlens=np.int64(5), **SIM),
                          kvcache(Q1, CACHE, CACHE, cache_seqlens=5, **SIM))
    assert np.array_equal(func(Q, K, K, prefix=np.int64(5), **SIM), func(Q, K, K, prefix=5, **SIM))
