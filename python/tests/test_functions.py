"""FlashAttention's functions on numpy arrays in the simulator, compared with float64.

The largest error is at most twice that of the naive computation in the inputs' precision.
"""
import inspect
import operator
import re

import ml_dtypes
import numpy as np
import pytest

import ferroflash
import ferroflash.bert_padding
from reference import attend, rotated

F16, F32, I32 = np.float16, np.float32, np.int32
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
SIM = {"device": "sim"}


def numbers(seed, shape, dtype=F16):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def tensors(sizes, dtype=F16, columns_v=None):
    batch, rows, keys, heads, heads_k, columns = sizes
    return (numbers(1, (batch, rows, heads, columns), dtype), numbers(2, (batch, keys, heads_k, columns), dtype),
            numbers(3, (batch, keys, heads_k, columns_v or columns), dtype))


def check(o, exact, naive):
    error, allowed = (np.abs(x.astype(np.float64) - exact).max() for x in (o, naive))
    # A NaN makes this comparison false.
    assert error <= 2 * allowed + 1e-5, f"{error} above 2 * {allowed}"


def check_lse(lse, exact):
    assert np.array_equal(np.isneginf(lse), np.isneginf(exact))
    finite = np.isfinite(exact)
    assert np.abs(lse[finite] - exact[finite]).max() <= 2e-3


# [batch, seqlen_q, seqlen_k, heads, heads_k, head_dim], dtype, options of flash_attn_func
DENSE = {
    "full": ([1, 40, 70, 2, 2, 64], F16, {}),
    "causal": ([2, 33, 65, 2, 1, 64], F16, {"causal": True}),
    "bf16": ([1, 33, 65, 2, 2, 128], BF16, {"causal": True}),
    "rows without a key": ([1, 70, 33, 1, 1, 64], F16, {"causal": True}),
    "window": ([1, 90, 90, 1, 1, 64], F16, {"window_size": (20, 5)}),
    "window, causal": ([1, 90, 90, 1, 1, 64], F16, {"window_size": (20, -1), "causal": True}),
    "softcap": ([1, 33, 33, 1, 1, 64], F16, {"softcap": 5.0}),
    "scale": ([1, 33, 33, 1, 1, 64], F16, {"softmax_scale": 0.3}),
    "alibi": ([2, 33, 40, 2, 2, 64], F16, {"alibi_slopes": np.array([[0.5, 0.1], [0.2, 0.3]], F32), "causal": True}),
    "sinks": ([1, 33, 40, 2, 2, 64], F16, {"sinks": np.array([0.5, 3.0], F32), "causal": True}),
    "bias": ([1, 33, 40, 2, 2, 64], F16, {"bias": numbers(7, (1, 2, 33, 40))}),
    "prefix": ([1, 60, 60, 1, 1, 64], F16, {"prefix": 20}),
    "chunked": ([1, 60, 60, 1, 1, 64], F16, {"chunked": 25}),
    "bits": ([1, 16, 40, 1, 1, 64], F16, {"mask_bits": np.random.default_rng(5).integers(0, 256, (1, 1, 16, 5), np.uint8)}),
}


def exact_options(options):
    return {"bits" if name == "mask_bits" else name: of for name, of in options.items()}


@pytest.mark.parametrize("name", DENSE)
def test_dense(name):
    sizes, dtype, options = DENSE[name]
    q, k, v = tensors(sizes, dtype)
    o, lse = ferroflash.flash_attn_func(q, k, v, return_lse=True, **options, **SIM)
    assert o.dtype == q.dtype and o.shape == q.shape
    exact, exact_lse = attend(q, k, v, **exact_options(options))
    naive = attend(*(t.astype(F16) for t in (q, k, v)), dtype=F16, **exact_options(options))[0].astype(dtype)
    check(o, exact, naive)
    check_lse(lse, exact_lse)
    again = ferroflash.flash_attn_func(q, k, v, **options, **SIM)
    assert again.tobytes() == o.tobytes()


def test_packed_forms_equal_flash_attn_func():
    q, k, v = tensors([2, 33, 33, 2, 2, 64])
    o, packed = ferroflash.flash_attn_func(q, k, v, causal=True, **SIM), np.stack([q, k, v], 2)
    assert np.array_equal(o, ferroflash.flash_attn_qkvpacked_func(packed, causal=True, **SIM))
    assert np.array_equal(o, ferroflash.flash_attn_kvpacked_func(q, packed[:, :, 1:], causal=True, **SIM))
    bhsd = [t.transpose(0, 2, 1, 3) for t in (q, k, v)]
    assert np.array_equal(o, ferroflash.flash_attn_func_bhsd(*bhsd, causal=True, **SIM).transpose(0, 2, 1, 3))
    flat, starts = packed.reshape(66, 3, 2, 64), np.array([0, 33, 66], I32)
    varlen = ferroflash.flash_attn_varlen_qkvpacked_func(flat, starts, 33, causal=True, **SIM)
    check(varlen, *(attend(q, k, v, dtype, causal=True)[0].reshape(varlen.shape) for dtype in (np.float64, F16)))
    kv = ferroflash.flash_attn_varlen_kvpacked_func(flat[:, 0], flat[:, 1:], starts, starts, 33, 33, causal=True, **SIM)
    assert np.array_equal(varlen, kv)


def test_return_attn_probs_is_flash_attentions():
    q, k, v = tensors([1, 70, 33, 1, 1, 64])
    o, lse, probabilities = ferroflash.flash_attn_func(q, k, v, causal=True, return_attn_probs=True, **SIM)
    assert probabilities.shape == (0,) and probabilities.dtype == q.dtype
    assert np.isposinf(lse[0, 0, :37]).all() and np.isfinite(lse[0, 0, 37:]).all()
    assert not o[0, :37].any()


@pytest.mark.parametrize("used", [None, [30, 1]])
def test_varlen(used):
    starts, ends = np.array([0, 20, 50], I32), np.array([0, 40, 75], I32)
    q, k, v = numbers(1, (50, 2, 64)), numbers(2, (75, 1, 64)), numbers(3, (75, 1, 64))
    lengths = None if used is None else np.array(used, I32)
    o, lse = ferroflash.flash_attn_varlen_func(q, k, v, starts, ends, 30, 40, causal=True, seqused_k=lengths,
                                               return_lse=True, **SIM)
    for n in range(2):
        first, keys = ends[n], (ends[n + 1] - ends[n] if used is None else used[n])
        rows = slice(starts[n], starts[n + 1])
        sequence = [t[None] for t in (q[rows], k[first:first + keys], v[first:first + keys])]
        exact, exact_lse = attend(*sequence, causal=True)
        check(o[rows], exact[0], attend(*sequence, F16, causal=True)[0][0])
        check_lse(lse[:, rows], exact_lse[0])


def test_padded_queries():
    starts, used = np.array([0, 20, 50], I32), np.array([13, 99], I32)
    q, k, v = numbers(1, (50, 2, 64)), numbers(2, (75, 1, 64)), numbers(3, (75, 1, 64))
    ends = np.array([0, 40, 75], I32)
    o, lse = ferroflash.flash_attn_varlen_func(q, k, v, starts, ends, 30, 40, causal=True, seqused_q=used,
                                               return_lse=True, **SIM)
    for n, count in enumerate([13, 30]):
        rows, keys = slice(starts[n], starts[n] + count), slice(ends[n], ends[n + 1])
        sequence = [t[None] for t in (q[rows], k[keys], v[keys])]
        exact, exact_lse = attend(*sequence, causal=True)
        check(o[rows], exact[0], attend(*sequence, F16, causal=True)[0][0])
        check_lse(lse[:, rows], exact_lse[0])
    assert not o[13:20].any() and np.isneginf(lse[:, 13:20]).all()


def test_padded_queries_on_pages():
    table, starts, used = np.array([[3, 0], [1, 2]], I32), np.array([0, 4, 9], I32), np.array([2, 99], I32)
    q, pages, lengths = numbers(1, (9, 2, 64)), numbers(2, (4, 16, 2, 64)), np.array([20, 30], I32)
    ends = np.array([0, 20, 50], I32)
    o, lse = varlen(q, pages, pages, starts, ends, 5, 32, causal=True, block_table=table, seqused_q=used, return_lse=True,
                    **SIM)
    for n, count in enumerate([2, 5]):
        rows = slice(starts[n], starts[n] + count)
        keys = pages[table[n]].reshape(1, 32, 2, 64)[:, :lengths[n]]
        exact, exact_lse = attend(q[None, rows], keys, keys, causal=True)
        check(o[rows], exact[0], attend(q[None, rows], keys, keys, F16, causal=True)[0][0])
        check_lse(lse[:, rows], exact_lse[0])
    assert not o[2:4].any() and np.isneginf(lse[:, 2:4]).all()
    on_cache = kvcache(q, pages, pages, cache_seqlens=lengths, block_table=table, cu_seqlens_q=starts, max_seqlen_q=5,
                       seqused_q=used, causal=True, **SIM)
    assert np.array_equal(o, on_cache)


def cache(dtype, keys, values):
    """Returns a cache of dtype, its scales, and the numbers that it has."""
    if dtype == np.int8:
        scales = [np.abs(t.astype(F32)).max(-1) / 127 for t in (keys, values)]
        stored = [np.rint(t / scale[..., None]).astype(np.int8) for t, scale in zip((keys, values), scales)]
        return stored, scales, [(t * scale[..., None]).astype(F16) for t, scale in zip(stored, scales)]
    stored = [t.astype(dtype) for t in (keys, values)]
    return stored, [None, None], [t.astype(F16) for t in stored]


@pytest.mark.parametrize("dtype", [F16, E4M3, np.int8])
def test_pages_of_each_dtype(dtype):
    table, lengths = np.array([[3, 0, 4], [1, 2, 5]], I32), np.array([37, 20], I32)
    q, keys, values = numbers(1, (2, 1, 4, 128)), numbers(2, (6, 16, 2, 128)), numbers(3, (6, 16, 2, 128))
    (k_cache, v_cache), scales, held = cache(dtype, keys, values)
    o, lse = ferroflash.flash_attn_with_kvcache(
        q, k_cache, v_cache, cache_seqlens=lengths, block_table=table, causal=True, k_descale=scales[0],
        v_descale=scales[1], return_softmax_lse=True, **SIM)
    for n in range(2):
        k, v = (t[table[n]].reshape(1, 48, 2, 128)[:, :lengths[n]] for t in held)
        exact, exact_lse = attend(q[n:n + 1], k, v)
        check(o[n:n + 1], exact, attend(q[n:n + 1], k, v, F16)[0])
        check_lse(lse[n:n + 1], exact_lse)


def test_lists_of_pages_are_block_tables():
    """Each query has a list of pages for each key head (block top-k of MoBA and NSA), as docs/using.md says."""
    queries, heads, heads_k, pages, page, topk = 5, 4, 2, 9, 16, 3
    q, k, v = numbers(1, (queries, heads, 64)), *(numbers(n, (pages, heads_k, page, 64)) for n in (2, 3))
    lists = np.array([[np.random.default_rng(10 * i + h).permutation(pages)[:topk] for h in range(heads_k)]
                      for i in range(queries)])
    # The last page of some lists has only a few keys.
    lengths = np.full((queries, heads_k), topk * page) - np.arange(queries)[:, None] * 3
    of_head = lambda t: t.reshape(pages * heads_k, page, 1, 64)
    o = ferroflash.flash_attn_with_kvcache(
        q.reshape(queries * heads_k, 1, heads // heads_k, 64), of_head(k), of_head(v),
        cache_seqlens=lengths.reshape(-1).astype(I32),
        block_table=(lists * heads_k + np.arange(heads_k)[:, None]).reshape(-1, topk).astype(I32), **SIM)
    o = o.reshape(queries, heads, 64)
    for i in range(queries):
        for h in range(heads_k):
            of = slice(h * 2, h * 2 + 2)
            own = [t[lists[i, h], h].reshape(1, topk * page, 1, 64)[:, :lengths[i, h]] for t in (k, v)]
            one = q[None, None, i, of]
            check(o[None, None, i, of], attend(one, *own)[0], attend(one, *own, F16)[0])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("paged", [False, True])
def test_append_with_rotary(paged, interleaved):
    starts, table = np.array([5, 14], I32), np.array([[2, 0], [1, 3]], I32)
    q, k, v = tensors([2, 3, 3, 2, 2, 64])
    angles = np.random.default_rng(4).uniform(0, 6, (40, 16))
    cos, sin = np.cos(angles).astype(F32), np.sin(angles).astype(F32)
    k_cache, v_cache = numbers(5, (4, 16, 2, 64)), numbers(6, (4, 16, 2, 64))
    if not paged:
        k_cache, v_cache = (t.reshape(2, 32, 2, 64) for t in (k_cache, v_cache))
    rows = lambda t, n: t[table[n]].reshape(32, 2, 64) if paged else t[n]
    before = [[rows(t, n).copy() for n in range(2)] for t in (k_cache, v_cache)]
    o = ferroflash.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cos, sin, starts, block_table=table if paged else None, causal=True,
        rotary_interleaved=interleaved, **SIM)
    turned_q, turned_k = (rotated(t, cos, sin, starts, interleaved) for t in (q, k))
    for n in range(2):
        at = slice(starts[n], starts[n] + 3)
        before[0][n][at], before[1][n][at] = turned_k[n], v[n]
        assert np.abs(rows(k_cache, n).astype(F32) - before[0][n].astype(F32)).max() <= 4e-3
        assert np.array_equal(rows(v_cache, n), before[1][n])
        now = [t[n][None, :starts[n] + 3] for t in before]
        exact, naive = (attend(turned_q[n:n + 1], *now, dtype, causal=True)[0] for dtype in (np.float64, F16))
        check(o[n:n + 1], exact, naive)


def test_varlen_on_pages():
    table, starts, ends = np.array([[3, 0], [1, 2]], I32), np.array([0, 2, 5], I32), np.array([0, 20, 50], I32)
    q, k_cache, v_cache = numbers(1, (5, 2, 64)), numbers(2, (4, 16, 2, 64)), numbers(3, (4, 16, 2, 64))
    o = ferroflash.flash_attn_varlen_func(q, k_cache, v_cache, starts, ends, 3, 32, causal=True, block_table=table, **SIM)
    for n in range(2):
        rows, keys = slice(starts[n], starts[n + 1]), ends[n + 1] - ends[n]
        k, v = (t[table[n]].reshape(1, 32, 2, 64)[:, :keys] for t in (k_cache, v_cache))
        exact, naive = (attend(q[None, rows], k, v, dtype, causal=True)[0][0] for dtype in (np.float64, F16))
        check(o[rows], exact, naive)


def test_a_shared_prefix():
    table = np.array([[0, 1, 2], [0, 1, 3]], I32)
    q, k_cache, v_cache = numbers(1, (2, 1, 4, 128)), numbers(2, (4, 16, 2, 128)), numbers(3, (4, 16, 2, 128))
    lengths, rest = np.array([40, 36], I32), np.array([8, 4], I32)
    o = ferroflash.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths, block_table=table,
                                           shared_prefixes=(1, 2, rest), **SIM)
    for n in range(2):
        k, v = (t[table[n]].reshape(1, 48, 2, 128)[:, :lengths[n]] for t in (k_cache, v_cache))
        check(o[n:n + 1], attend(q[n:n + 1], k, v)[0], attend(q[n:n + 1], k, v, F16)[0])


def test_merge():
    q, k, v = tensors([1, 10, 60, 2, 2, 64])
    parts = [attend(q, k[:, at], v[:, at]) for at in (slice(0, 25), slice(25, 60))]
    (a, lse_a), (b, lse_b) = ((o[0].astype(F16), lse[0].astype(F32)) for o, lse in parts)
    out, lse = np.empty_like(a), np.empty_like(lse_a)
    ferroflash.merge_attn_states(out, a, lse_a, b, lse_b, lse, **SIM)
    exact, exact_lse = attend(q, k, v)
    check(out, exact[0], attend(q, k, v, F16)[0][0])
    check_lse(lse, exact_lse[0])


Q, K, V = tensors([1, 16, 16, 2, 2, 64])
CACHE = numbers(8, (1, 32, 2, 64))
func, kvcache, varlen = ferroflash.flash_attn_func, ferroflash.flash_attn_with_kvcache, ferroflash.flash_attn_varlen_func
STARTS_OF_Q = np.array([0, 16], I32)
BITS = np.zeros((1, 1, 16, 2), np.uint8)
# What the error must say, its class, the call
REFUSED = {
    "dropout_p 0.1": (NotImplementedError, lambda: func(Q, K, V, 0.1, **SIM)),
    "device=\"sim\"": (TypeError, lambda: func(Q, K, V)),
    "\"sim:h200\"": (ValueError, lambda: func(Q, K, V, device="gpu")),
    "profile": (ValueError, lambda: func(Q, K, V, device="sim:t4")),
    "q is float32": (TypeError, lambda: func(*(t.astype(F32) for t in (Q, K, V)), **SIM)),
    "k is bfloat16; it must be float16": (TypeError, lambda: func(Q, K.astype(BF16), V, **SIM)),
    "k (1, 16, 2, 32)": (ValueError, lambda: func(Q, K[:, :, :, :32], V, **SIM)),
    "heads_q": (ValueError, lambda: func(Q[:, :, :1], K, V, **SIM)),
    "alibi_slopes (3,)": (ValueError, lambda: func(Q, K, V, alibi_slopes=np.ones(3, F32), **SIM)),
    "sinks (1,)": (ValueError, lambda: func(Q, K, V, sinks=np.ones(1, F32), **SIM)),
    "bias (1, 2, 16)": (ValueError, lambda: func(Q, K, V, bias=numbers(1, (1, 2, 16)), **SIM)),
    "softmax_scale 0.0": (ValueError, lambda: func(Q, K, V, softmax_scale=0.0, **SIM)),
    "softcap": (ValueError, lambda: func(Q, K, V, softcap=-1.0, **SIM)),
    "config": (ValueError, lambda: func(Q, K, V, config="no such kernel", **SIM)),
    "cache_leftpad": (NotImplementedError, lambda: kvcache(Q, CACHE, CACHE, cache_leftpad=np.zeros(1, I32), **SIM)),
    "cache_batch_idx beside block_table": (NotImplementedError, lambda: kvcache(
        Q, CACHE, CACHE, block_table=np.zeros((1, 1), I32), cache_batch_idx=np.zeros(1, I32), **SIM)),
    "rotary_cos and rotary_sin": (ValueError, lambda: kvcache(Q, CACHE, CACHE, rotary_cos=np.ones((4, 8), F32), **SIM)),
    "cache_seqlens (1,)": (ValueError, lambda: kvcache(numbers(1, (2, 1, 2, 64)), numbers(1, (2, 32, 2, 64)),
                                                       numbers(1, (2, 32, 2, 64)), cache_seqlens=np.ones(1, I32), **SIM)),
    "chunked and mask_bits": (NotImplementedError, lambda: func(Q, K, V, chunked=5, mask_bits=BITS, **SIM)),
    "prefix beside window_size (3, -1)": (NotImplementedError, lambda: func(Q, K, V, prefix=5, window_size=(3, -1), **SIM)),
    "mask_bits beside causal": (NotImplementedError, lambda: func(Q, K, V, causal=True, mask_bits=BITS, **SIM)),
    "return_entropy beside return_attn_probs": (ValueError, lambda: func(
        Q, K, V, return_attn_probs=True, return_entropy=True, **SIM)),
    "entropy or max_logits of": (NotImplementedError, lambda: func(Q, K, V, bias=Q[..., 0, :16][:, None], return_entropy=True, **SIM)),
    "qv": (NotImplementedError, lambda: func(Q, K, V, qv=Q, **SIM)),
    "multiply q by it": (NotImplementedError, lambda: kvcache(Q, CACHE, CACHE, q_descale=np.ones((1, 2), F32), **SIM)),
    "only flash_attn_varlen_func takes it": (NotImplementedError, lambda: func(Q, K, V, seqused_q=STARTS_OF_Q, **SIM)),
    "multiply k by it": (NotImplementedError, lambda: varlen(Q[0], K[0], V[0], STARTS_OF_Q, STARTS_OF_Q, 16, 16,
                                                             k_descale=np.ones((1, 2), F32), **SIM)),
    "rotary_seqlens": (NotImplementedError, lambda: kvcache(Q, CACHE, CACHE, rotary_seqlens=np.ones(1, I32), **SIM)),
    "attention_chunk 5 without causal": (NotImplementedError, lambda: func(Q, K, V, attention_chunk=5, **SIM)),
    "attention_chunk -1": (ValueError, lambda: func(Q, K, V, causal=True, attention_chunk=-1, **SIM)),
    "page_table beside block_table": (ValueError, lambda: kvcache(Q, CACHE, CACHE, block_table=np.zeros((1, 1), I32),
                                                                  page_table=np.zeros((1, 1), I32), **SIM)),
    "k_cache is float32": (TypeError, lambda: kvcache(Q, CACHE.astype(F32), CACHE.astype(F32), **SIM)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refusals_name_the_argument(words):
    kind, call = REFUSED[words]
    with pytest.raises(kind, match=re.escape(words)) as error:
        call()
    assert isinstance(error.value, ferroflash.Error)


@pytest.mark.parametrize("call", [func, varlen, kvcache])
def test_an_unknown_keyword_is_refused(call):
    numbers_of = {func: 3, varlen: 7, kvcache: 3}[call]
    with pytest.raises(TypeError, match=f"{call.__name__}.. got an unexpected keyword argument 'sink'"):
        call(*[Q] * numbers_of, sink=None, **SIM)


# The arguments and defaults of FlashAttention 2.8.3: flash_attn_interface.py and bert_padding.py.
SCORES = ("dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
          "deterministic=False, return_attn_probs=False")
STARTS = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
SIGNATURES = {
    "flash_attn_func": f"q, k, v, {SCORES}",
    "flash_attn_qkvpacked_func": f"qkv, {SCORES}",
    "flash_attn_kvpacked_func": f"q, kv, {SCORES}",
    "flash_attn_varlen_func": f"q, k, v, {STARTS}, {SCORES}, block_table=None",
    "flash_attn_varlen_qkvpacked_func": f"qkv, cu_seqlens, max_seqlen, {SCORES}",
    "flash_attn_varlen_kvpacked_func": f"q, kv, {STARTS}, {SCORES}",
    "flash_attn_with_kvcache": "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
                               "cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, "
                               "causal=False, window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, "
                               "alibi_slopes=None, num_splits=0, return_softmax_lse=False",
    "bert_padding.unpad_input": "hidden_states, attention_mask, unused_mask=None",
    "bert_padding.unpad_input_for_concatenated_sequences": "hidden_states, attention_mask_in_length",
    "bert_padding.pad_input": "hidden_states, indices, batch, seqlen",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_are_flash_attentions(name):
    parameters = inspect.signature(operator.attrgetter(name)(ferroflash)).parameters.values()
    theirs = [p.replace(annotation=p.empty) for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
    assert ", ".join(map(str, theirs)) == SIGNATURES[name]


# FlashAttention-3's hints, and its names of other arguments
HINTS = {"pack_gqa": True, "sm_margin": 8, "scheduler_metadata": None, "attention_chunk": 0, "qv": None, "q_descale": None}


def test_hints_of_flash_attention_3_change_nothing():
    o = func(Q, K, V, causal=True, **SIM)
    assert np.array_equal(o, func(Q, K, V, causal=True, num_splits=3, k_descale=None, **HINTS, **SIM))
    assert np.array_equal(kvcache(Q, CACHE, CACHE, **SIM), kvcache(Q, CACHE, CACHE, **HINTS, **SIM))
    chunked = func(Q, K, V, chunked=5, **SIM)
    assert not np.array_equal(o, chunked)
    assert np.array_equal(chunked, func(Q, K, V, causal=True, attention_chunk=5, **SIM))


def test_page_table_is_block_table():
    pages, table, lengths = CACHE.reshape(2, 16, 2, 64), np.array([[1, 0]], I32), np.array([20], I32)
    paged = lambda **name: kvcache(Q, pages, pages, cache_seqlens=lengths, causal=True, **name, **SIM)
    assert np.array_equal(paged(block_table=table), paged(page_table=table))


def test_varlen_on_pages_takes_scales():
    table, starts = np.array([[1, 0]], I32), np.array([0, 16], I32)
    pages, factor = CACHE.reshape(2, 16, 2, 64).astype(E4M3), 0.5
    o = varlen(Q[0], pages, pages, starts, starts, 16, 16, causal=True, block_table=table, k_descale=factor,
               v_descale=factor, **SIM)
    k = pages[table[0]].reshape(1, 32, 2, 64)[:, :16].astype(F16) * F16(factor)
    check(o, attend(Q, k, k, causal=True)[0][0], attend(Q, k, k, F16, causal=True)[0][0])
