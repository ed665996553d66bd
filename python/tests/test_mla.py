"""FlashMLA's functions in the simulator, against attention in float64: latent caches, and lists of their keys."""
import re

import ml_dtypes
import numpy as np
import pytest

import ferroflash
from ferroflash import _simulator, kvcache
from ferroflash import flash_mla_sparse_fwd as sparse
from ferroflash import flash_mla_with_kvcache as mla

F16, F32, I32 = np.float16, np.float32, np.int32
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
SCALE, WIDTHS, SIM = 192 ** -0.5, (576, 512), {"device": "sim"}


def numbers(seed, shape, dtype=F16):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def exact(q, rows, columns, sinks=None):
    """Attention of q (heads, head_dim) on rows (keys, head_dim) of a latent cache: o, and the LSE of each head."""
    scores = q.astype(float) @ rows.astype(float).T * SCALE
    if sinks is not None:
        scores = np.concatenate([scores, sinks[:, None].astype(float)], 1)
    most = scores.max(1, keepdims=True)
    shares = np.exp(scores - most)
    lse = most[:, 0] + np.log(shares.sum(1))
    return (shares / shares.sum(1, keepdims=True))[:, :len(rows)] @ rows[:, :columns].astype(float), lse


def check(q, rows, slots, o, lse, sinks=None, most=4e-3):
    """Checks one query, whose list has these slots, and entries that name no row."""
    slots = slots[(slots >= 0) & (slots < len(rows))]
    if len(slots) == 0 and sinks is None:
        assert not o.any() and np.isposinf(lse).all()
        return
    wanted, sums = exact(q, rows[slots], o.shape[-1], sinks)
    assert np.abs(o.astype(float) - wanted).max() <= most
    assert np.abs(lse - sums).max() <= most / 4


def lists(seed, shape, slots):
    """Lists of slots in any order, some of them twice, among entries that name no row."""
    random = np.random.default_rng(seed)
    of = random.integers(0, slots, shape).astype(I32)
    of[random.random(shape) < 0.2] = -1
    none = random.random(shape) < 0.1
    of[none] = random.choice(np.array([slots, 2 ** 31 - 1, -2 ** 31], I32), none.sum())
    return of


@pytest.mark.parametrize("sinks", [None, numbers(4, (6,), F32)])
def test_lists_of_rows(sinks):
    q, kv, indices = numbers(1, (5, 6, 576)), numbers(2, (70, 1, 576)), lists(3, (5, 1, 90), 70)
    indices[3] = -1
    o, none, lse = sparse(q, kv, indices, SCALE, attn_sink=sinks, **SIM)
    assert (o.shape, none, lse.shape, lse.dtype) == ((5, 6, 512), None, (5, 6), F32)
    for i in range(5):
        check(q[i], kv[:, 0], indices[i, 0], o[i], lse[i], sinks)


def test_a_list_for_each_latent_head():
    q, kv, indices = numbers(5, (2, 8, 288)), numbers(6, (33, 2, 288)), lists(7, (2, 2, 40), 33)
    o, _, lse = sparse(q, kv, indices, SCALE, 256, **SIM)
    for i in range(2):
        for head in range(2):
            of = slice(4 * head, 4 * head + 4)
            check(q[i, of], kv[:, head], indices[i, head], o[i, of], lse[i, of])


def test_lists_of_slots_of_pages():
    q, pages, indices = numbers(8, (2, 3, 4, 576)), numbers(9, (5, 16, 1, 576)), lists(10, (2, 3, 64), 80)
    o, lse = mla(q, pages, None, None, 512, softmax_scale=SCALE, indices=indices.astype(np.int64), **SIM)
    assert (o.shape, lse.shape) == ((2, 3, 4, 512), (2, 4, 3))
    rows = pages.reshape(80, 576)
    for b in range(2):
        for i in range(3):
            check(q[b, i], rows, indices[b, i], o[b, i], lse[b, :, i])


@pytest.mark.parametrize("sinks", [None, numbers(4, (6,), F32)])
def test_pages_of_sequences(sinks):
    q, pages = numbers(11, (2, 1, 6, 576)), numbers(12, (4, 16, 1, 576))
    table, lengths = np.array([[2, 0], [3, 3]], I32), np.array([20, 9], I32)
    o, lse = mla(q, pages, table, lengths, 512, softmax_scale=SCALE, attn_sink=sinks, **SIM)
    for b, keys in enumerate(lengths):
        rows = pages[table[b]].reshape(32, 576)
        check(q[b, 0], rows, np.arange(keys), o[b, 0], lse[b, :, 0], sinks)


def bytes_of(seed, count):
    """Rows of 656 bytes, and the numbers for which they stand, as kernels round them."""
    random = np.random.default_rng(seed)
    eight = random.standard_normal((count, 512)).astype(E4M3)
    scales = random.uniform(0.3, 1.5, (count, 4)).astype(F32)
    rotary = random.standard_normal((count, 64)).astype(BF16)
    rows = np.concatenate([eight.view(np.uint8), scales.view(np.uint8), rotary.view(np.uint8)], 1)
    assert rows.shape == (count, 656)
    scaled = (eight.astype(F32) * scales.repeat(128, 1)).astype(BF16)
    return rows, np.concatenate([scaled, rotary], 1).astype(float)


def e4m3(seed, shape):
    return numbers(seed, shape, E4M3)


# A bfloat16 rounds to 8 bits, a float16 to 11.
COARSE = 3e-2


@pytest.mark.parametrize("scale", [None, 0.37, np.array(0.37, F32), np.array([[0.37], [1.9]], F32)])
@pytest.mark.parametrize("dtype", [F16, BF16])
def test_pages_of_e4m3(dtype, scale):
    q, pages = numbers(13, (2, 2, 5, 576), dtype), e4m3(14, (4, 16, 1, 576))
    table, lengths = np.array([[2, 0], [3, 3]], I32), np.array([20, 9], I32)
    o, lse = mla(q, pages, table, lengths, 512, softmax_scale=SCALE, causal=True, is_fp8_kvcache=True, k_descale=scale, **SIM)
    for b, keys in enumerate(lengths):
        of = 1.0 if scale is None else np.broadcast_to(scale, (2, 1))[b, 0]
        rows = pages[table[b]].reshape(32, 576).astype(float) * of
        for i in range(2):
            check(q[b, i], rows, np.arange(keys - 1 + i), o[b, i], lse[b, :, i], most=COARSE)


@pytest.mark.parametrize("scale", [0.37, np.array([[0.37], [1.9]], F32)])
def test_values_that_are_whole_rows_of_e4m3(scale):
    q, pages = numbers(33, (2, 1, 5, 64)), e4m3(34, (4, 16, 1, 64))
    table, lengths = np.array([[2, 0], [3, 3]], I32), np.array([20, 9], I32)
    o, lse = mla(q, pages, table, lengths, 64, softmax_scale=SCALE, k_descale=scale, **SIM)
    for b, keys in enumerate(lengths):
        rows = pages[table[b]].reshape(32, 64).astype(float) * np.broadcast_to(scale, (2, 1))[b, 0]
        check(q[b, 0], rows, np.arange(keys), o[b, 0], lse[b, :, 0], most=COARSE)


@pytest.mark.parametrize("scale", [0.37, np.array(0.37, F32)])
def test_lists_of_e4m3(scale):
    q, pages, indices = numbers(15, (2, 3, 4, 576), BF16), e4m3(16, (5, 16, 1, 576)), lists(17, (2, 3, 64), 80)
    o, lse = mla(q, pages, None, None, 512, softmax_scale=SCALE, indices=indices, k_descale=scale, **SIM)
    rows = pages.reshape(80, 576).astype(float) * 0.37
    for b in range(2):
        for i in range(3):
            check(q[b, i], rows, indices[b, i], o[b, i], lse[b, :, i], most=COARSE)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, E4M3])
def test_rows_with_scales(dtype):
    stored, rows = bytes_of(18, 80)
    pages, q = stored.reshape(5, 16, 1, 656).view(dtype), numbers(19, (2, 1, 6, 576), BF16)
    given = dict(softmax_scale=SCALE, is_fp8_kvcache=True)
    table, lengths = np.array([[2, 0], [3, 3]], I32), np.array([20, 9], I32)
    o, lse = mla(q, pages, table, lengths, 512, **given, **SIM)
    for b, keys in enumerate(lengths):
        of = rows.reshape(5, 16, 576)[table[b]].reshape(32, 576)
        check(q[b, 0], of, np.arange(keys), o[b, 0], lse[b, :, 0], most=COARSE)
    indices = lists(20, (2, 1, 70), 80)
    o, lse = mla(q, pages, None, None, 512, indices=indices, **given, **SIM)
    for b in range(2):
        check(q[b, 0], rows, indices[b, 0], o[b, 0], lse[b, :, 0], most=COARSE)


def test_an_append_of_rows_with_scales():
    """The bytes of vLLM's concat_and_cache_ds_mla: the scale of 128 columns is their largest magnitude / 448."""
    card = _simulator.card("sim")
    rows = (numbers(21, (9, 1, 576), F32) * 3).astype(BF16)
    rows[4, 0, 128:256] = 0
    slots = np.array([3, -1, 20, 31, 0, 17, 32, 2**40, 5], np.int64)
    old = np.full((2, 16, 1, 656), 0xa5, np.uint8)
    of = lambda array, dtype: _simulator.Tensor.uploaded(card, array, dtype)
    cache = of(old, "uint8")
    kvcache.append(of(rows.view(np.uint16), "bfloat16"), None, cache, None, of(slots.view(np.uint64), "int64"),
                   head_dim_v=512, scaled_rows=True)()
    wanted = old.reshape(32, 656).copy()
    for row, slot in zip(rows[:, 0], slots):
        if 0 <= slot < 32:
            blocks = row[:512].astype(F32).reshape(4, 128)
            scales = np.maximum(np.abs(blocks).max(1) / F32(448), np.finfo(F32).tiny).astype(F32)
            eight = (blocks / scales[:, None]).astype(E4M3)
            wanted[slot] = np.concatenate([eight.reshape(-1).view(np.uint8), scales.view(np.uint8), row[512:].view(np.uint8)])
    assert (cache.raw().reshape(32, 656) == wanted).all()


def test_an_append_refuses_a_scale_of_0():
    card = _simulator.card("sim")
    tokens, rows = card.zeros((3, 1, 64), "float16"), card.zeros((2, 16, 1, 64), "float8_e4m3fn")
    for scales, words in [((0.0, 1.0), "k_descale 0.0"), ((1.0, -2.0), "v_descale -2.0")]:
        with pytest.raises(ferroflash.Invalid, match=f"{words}: it must be a normal float32 above 0"):
            kvcache.append(tokens, tokens, rows, rows, card.arange(3), scales)


Q, KV, LISTS = numbers(1, (2, 4, 576)), numbers(2, (40, 1, 576)), np.zeros((2, 1, 8), I32)
Q4, PAGES, OF_PAGES = Q[:, None], KV.reshape(4, 10, 1, 576), LISTS
ROWS = dict(q=Q, kv=KV, indices=LISTS, sm_scale=SCALE)
SLOTS = dict(q=Q4, k_cache=PAGES, block_table=None, cache_seqlens=None, head_dim_v=512, softmax_scale=SCALE,
             indices=OF_PAGES)
EIGHT, BYTES = dict(k_cache=PAGES.astype(E4M3)), dict(q=Q4.astype(BF16), k_cache=bytes_of(1, 40)[0].reshape(4, 10, 1, 656))
INVALID, TYPE, UNSUPPORTED = ferroflash.Invalid, ferroflash.WrongType, ferroflash.Unsupported
REFUSALS = [
    (sparse, ROWS, dict(q=Q4), INVALID, "q (2, 1, 4, 576): it must be (queries, heads, head_dim)"),
    (sparse, ROWS, dict(kv=PAGES), INVALID, "kv (4, 10, 1, 576): it must be (keys, heads_k, head_dim)"),
    (sparse, ROWS, dict(kv=KV[..., :512]), INVALID, "kv (40, 1, 512)"),
    (sparse, ROWS, dict(kv=KV.astype(F32)), TYPE, "kv is float32; it must be float16 (as q)"),
    (sparse, ROWS, dict(indices=LISTS[0]), INVALID, "indices (1, 8): it must be (queries, heads_k, topk)"),
    (sparse, ROWS, dict(indices=LISTS[:1]), INVALID, "indices (1, 1, 8)"),
    (sparse, ROWS, dict(indices=LISTS[..., :0]), INVALID, "indices (2, 1, 0): every size must be 1 or more"),
    (sparse, ROWS, dict(indices=LISTS.astype(F32)), TYPE, "indices is float32; it must be a tensor of int32 or int64"),
    (sparse, ROWS, dict(attn_sink=numbers(1, (3,), F32)), INVALID, "attn_sink (3,): it must be (heads)"),
    (sparse, ROWS, dict(attn_sink=1.0), TYPE, "attn_sink is 1.0"),
    (sparse, ROWS, dict(kv=numbers(2, (70, 1, 576), E4M3)), TYPE,
     "kv is float8_e4m3fn; it must be float16 (as q); convert kv, or call flash_mla_with_kvcache with indices"),
    (sparse, ROWS, dict(sm_scale=0.0), INVALID, "sm_scale 0.0"),
    (sparse, ROWS, dict(topk_length=np.array([1, 2], I32)), UNSUPPORTED, "topk_length: .*; write -1 over"),
    (sparse, ROWS, dict(indexer_topk=512), UNSUPPORTED, "indexer_topk"),
    (mla, SLOTS, dict(q=Q), INVALID, "q (2, 4, 576): it must be (batch, seqlen_q, heads, head_dim)"),
    (mla, SLOTS, dict(k_cache=numbers(2, (4, 10, 2, 576))), INVALID, "k_cache (4, 10, 2, 576)"),
    (mla, SLOTS, dict(indices=LISTS[..., None]), INVALID, "indices (2, 1, 8, 1)"),
    (mla, SLOTS, dict(return_entropy=True), INVALID, "return_entropy beside indices"),
    (mla, SLOTS, dict(causal=True), INVALID, "causal beside indices"),
    (mla, SLOTS, dict(block_table=np.zeros((2, 1), I32)), INVALID, "block_table beside indices"),
    (mla, SLOTS, dict(cache_seqlens=np.ones(2, I32)), INVALID, "cache_seqlens beside indices"),
    (mla, SLOTS, dict(indices=None), INVALID, "cache_seqlens None"),
    (mla, SLOTS, dict(is_fp8_kvcache=True), TYPE, "is_fp8_kvcache with k_cache of float16"),
    (mla, SLOTS, dict(k_descale=0.5), INVALID, "k_descale with k_cache (4, 10, 1, 576) of float16: it must be None"),
    (mla, SLOTS, BYTES, INVALID, "is_fp8_kvcache False with k_cache (4, 10, 1, 656) of uint8: it must be True"),
    (mla, SLOTS, dict(BYTES, is_fp8_kvcache=True, k_descale=0.5), INVALID, "k_descale with k_cache (4, 10, 1, 656)"),
    (mla, SLOTS, dict(BYTES, is_fp8_kvcache=True, q=Q4), TYPE, "q is float16; it must be bfloat16"),
    (mla, SLOTS, dict(EIGHT, k_cache=PAGES.astype(np.int8)), TYPE,
     "k_cache (4, 10, 1, 576) is int8; it must be float16 (as q) or float8_e4m3fn, or have rows of 656 bytes"),
    (mla, SLOTS, dict(EIGHT, k_cache=PAGES.astype(np.uint8), is_fp8_kvcache=True), TYPE,
     "k_cache (4, 10, 1, 576) is uint8; it must be"),
    (mla, SLOTS, dict(EIGHT, k_descale=np.ones((2, 1), F32)), INVALID, "k_descale (2, 1): it must be ()"),
    (mla, SLOTS, dict(EIGHT, k_descale="1"), TYPE, "k_descale is '1'"),
    (mla, SLOTS, dict(EIGHT, k_descale=-1.0), INVALID, "k_descale"),
    (mla, SLOTS, dict(EIGHT, k_descale=0.0), INVALID, "k_descale 0.0: it must be a normal float32 above 0"),
    (mla, SLOTS, dict(extra_k_cache=PAGES), UNSUPPORTED, "extra_k_cache"),
]


@pytest.mark.parametrize("function, arguments, changed, kind, words", REFUSALS)
def test_refusals(function, arguments, changed, kind, words):
    with pytest.raises(kind, match=words if ".*" in words else re.escape(words)):
        function(**{**arguments, **changed}, **SIM)
