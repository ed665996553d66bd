"""What the package checks before the library gets addresses: on arrays, and on tensors of simulated cards."""
import re

import ml_dtypes
import numpy as np
import pytest

import ferroflash
from ferroflash import _attention, _simulator, planned
from ferroflash import flash_attn_func as func
from ferroflash import flash_attn_varlen_func as varlen
from ferroflash import flash_attn_with_kvcache as kvcache
from ferroflash import flash_mla_sparse_fwd as sparse
from ferroflash import flash_mla_with_kvcache as mla
from ferroflash import merge_attn_states as merge

F16, F32, I32, I64, U8 = np.float16, np.float32, np.int32, np.int64, np.uint8
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
SIM = {"device": "sim"}
HERE, THERE = _simulator.card("sim"), _simulator.card("sim:a100")


def numbers(*shape, dtype=F16):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def of(*values):
    return np.array(values, I32)


def there(array, card=HERE):
    """Returns an array in a card's memory."""
    raw = np.ascontiguousarray(array).view({1: U8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[array.itemsize])
    return _simulator.Tensor.uploaded(card, raw, array.dtype.name)


class Strided(_simulator.Tensor):
    """A vector as every second element of memory, between other numbers."""

    def __init__(self, vector):
        self.own = there(np.stack([vector, vector + 1], 1))
        self.device, self.dtype, self.address, self.vector = HERE, self.own.dtype, self.own.address, vector
        self.shape, self._raw = vector.shape, there(vector)._raw

    def stride(self):
        return (2,)

    def is_contiguous(self):
        return False

    def contiguous(self):
        return there(self.vector)

    def to(self, device=None, dtype=None):
        return self


Q, K = numbers(2, 16, 2, 64), numbers(2, 16, 1, 64)
ROWS, STARTS = numbers(8, 1, 64), of(0, 4, 8)
Q1, CACHE = numbers(2, 1, 2, 64), numbers(4, 32, 1, 64)
NEW, LENGTHS, TABLE = numbers(2, 1, 1, 64), of(5, 9), np.array([[0], [1]], I32)
EIGHT = CACHE.astype(E4M3)
LATENT, LATENT_Q = numbers(4, 64, 1, 576), numbers(2, 1, 16, 576)
O, LSE = numbers(4, 2, 64), numbers(2, 4, dtype=F32)
ARGUMENTS = {
    func: dict(q=Q, k=K, v=K),
    varlen: dict(q=ROWS, k=ROWS, v=ROWS, cu_seqlens_q=STARTS, cu_seqlens_k=STARTS, max_seqlen_q=4,
                 max_seqlen_k=4),
    kvcache: dict(q=Q1, k_cache=CACHE, v_cache=CACHE, cache_seqlens=LENGTHS),
    mla: dict(q=LATENT_Q, k_cache=LATENT, block_table=TABLE, cache_seqlens=LENGTHS, head_dim_v=512),
    sparse: dict(q=LATENT_Q[:, 0], kv=LATENT[0], indices=np.zeros((2, 1, 8), I32), sm_scale=0.1),
    merge: dict(output=O, prefix_output=O, prefix_lse=LSE, suffix_output=O, suffix_lse=LSE),
}
BIAS = numbers(2, 1, 16, 16)
PAIR = dict(k=NEW, v=NEW)
EIGHTS = dict(k_cache=EIGHT, v_cache=EIGHT)

# The function, its arguments in place of those above, the words of the error
SHAPES = [
    (func, dict(k=K[:1]), "k (1, 16, 1, 64): it must be (batch, seqlen_k, heads_k, head_dim), here (2, 16, 1, 64)"),
    (func, dict(v=K[:, :8]), "v (2, 8, 1, 64)"),
    (func, dict(k=K[..., :32]), "k (2, 16, 1, 32)"),
    (func, dict(q=Q[0]), "q (16, 2, 64): it must be (batch, seqlen_q, heads, head_dim); slice"),
    (func, dict(q=Q[0, 0, 0]), "q (64,): it must be (batch, seqlen_q, heads, head_dim)"),
    (varlen, dict(q=ROWS[0, 0]), "q (64,): it must be (total_q, heads, head_dim)"),
    (varlen, dict(max_seqlen_q=0), "max_seqlen_q 0: it must be at least 4"),
    (func, dict(prefix=of(3)), "prefix (1,): it must be (batch), here (2)"),
    (func, dict(sinks=numbers(1, dtype=F32)), "sinks (1,)"),
    (func, dict(alibi_slopes=numbers(1, 2, dtype=F32)), "alibi_slopes (1, 2): it must be (heads) or (batch, heads)"),
    (func, dict(bias=BIAS[..., :8]), "bias (2, 1, 16, 8)"),
    (func, dict(bias=BIAS[..., :1]), "bias (2, 1, 16, 1)"),
    (func, dict(bias=BIAS[:, :, :8]), "bias (2, 1, 8, 16)"),
    (func, dict(mask_bits=np.zeros((1, 1, 16, 1), U8)), "mask_bits (1, 1, 16, 1)"),
    (func, dict(mask_bits=np.zeros((1, 1, 16, 1), U8), mask_keys=9), "bytes or more), here (2 or 1, 2 or 1, 16, 2 or more)"),
    (func, dict(mask_bits=np.zeros((1, 1, 1, 2), U8)), "mask_bits (1, 1, 1, 2)"),
    (func, dict(mask_bits=np.zeros((1, 3, 16, 2), U8)), "mask_bits (1, 3, 16, 2)"),
    (func, dict(k=K[:, :0], v=K[:, :0]), "k (2, 0, 1, 64): every size must be 1 or more"),
    (kvcache, dict(**PAIR, block_table=TABLE[:, :0]), "block_table (2, 0): every size must be 1 or more"),
    (kvcache, dict(cu_seqlens_q=np.array(3, I32), max_seqlen_q=1), "cu_seqlens_q (): it must be (batch+1)"),
    (varlen, dict(k=numbers(8, 1, 128), v=numbers(8, 1, 128)), "k (8, 1, 128)"),
    (varlen, dict(v=ROWS[:4]), "v (4, 1, 64)"),
    (varlen, dict(cu_seqlens_k=of(0, 8)), "cu_seqlens_k (2,): it must be (batch+1), here (3)"),
    (varlen, dict(seqused_k=of(4)), "seqused_k (1,)"),
    (varlen, dict(prefix=of(3)), "prefix (1,)"),
    (kvcache, dict(cache_seqlens=of(5, 9, 9)), "cache_seqlens (3,)"),
    (kvcache, dict(cache_batch_idx=of(0, 1, 2)), "cache_batch_idx (3,)"),
    (kvcache, dict(block_table=np.zeros((3, 1), I32)), "block_table (3, 1)"),
    (kvcache, dict(block_table=of(0, 1)), "block_table (2,)"),
    (kvcache, dict(k_cache=numbers(4, 32, 1, 128)), "k_cache (4, 32, 1, 128)"),
    (kvcache, dict(k=NEW), "k and v belong together"),
    (kvcache, dict(k=numbers(2, 1, 2, 64), v=numbers(2, 1, 2, 64)), "k (2, 1, 2, 64)"),
    (kvcache, dict(k=numbers(2, 1, 1, 32), v=numbers(2, 1, 1, 32)), "k (2, 1, 1, 32)"),
    (kvcache, dict(k=NEW, v=numbers(2, 2, 1, 64)), "v (2, 2, 1, 64)"),
    (kvcache, dict(**PAIR, block_table=np.zeros((3, 1), I32)), "block_table (3, 1)"),
    (kvcache, dict(**EIGHTS, k_descale=numbers(2, dtype=F32)), "k_descale (2,): it must be (batch, heads_k) or ()"),
    (kvcache, dict(**EIGHTS, v_descale=numbers(1, dtype=F32)), "v_descale (1,)"),
    (kvcache, dict(k_cache=CACHE.view(np.int8)[..., :64], v_cache=CACHE.view(np.int8)[..., :64], k_descale=LSE,
                   v_descale=LSE), "k_descale (2, 4)"),
    (kvcache, dict(block_table=TABLE, shared_prefixes=(1, 1, of(3))), "rest (1,)"),
    (mla, dict(block_table=TABLE[:1]), "block_table (1, 1)"),
    (mla, dict(cache_seqlens=of(5)), "cache_seqlens (1,)"),
    (mla, dict(q=LATENT_Q[..., :512]), "k_cache (4, 64, 1, 576)"),
    (mla, dict(q=LATENT_Q[0]), "q (1, 16, 576)"),
    (merge, dict(suffix_output=O[:2]), "suffix_output (2, 2, 64)"),
    (merge, dict(suffix_lse=LSE.T), "suffix_lse (4, 2): it must be (heads, tokens), here (2, 4)"),
    (merge, dict(output_lse=LSE[:, :2]), "output_lse (2, 2)"),
    (merge, dict(sinks=numbers(3, dtype=F32)), "sinks (3,)"),
]
DTYPES = [
    (func, dict(q=Q.astype(F32)), "q is float32"),
    (func, dict(v=K.astype(BF16)), "v is bfloat16; it must be float16 (as k); convert v"),
    (func, dict(mask_bits=np.ones((1, 1, 16, 16), bool)), "numpy.packbits"),
    (func, dict(bias=BIAS.astype(I32)), "bias is int32; it must be float16 or bfloat16 or float32"),
    (func, dict(sinks=numbers(2)), "sinks is float16"),
    (func, dict(q=Q.astype(">f2")), "q is >f2"),
    (func, dict(v=K.astype(complex)), "v is complex128; it must be one of"),
    (varlen, dict(seqused_k=np.array(["a", "b"])), "seqused_k is str32; it must be one of"),
    (kvcache, dict(k_cache=CACHE.astype(float)), "k_cache is float64; it must be float16"),
    (varlen, dict(cu_seqlens_q=STARTS.astype(float)), "cu_seqlens_q is float64; it must be a tensor of int32 or int64"),
    (func, dict(q=Q.astype(float)), "q is float64; it must be float16 or bfloat16 or float8_e4m3fn"),
    (func, dict(sinks=np.zeros(2)), "sinks is float64; it must be float32"),
    (func, dict(sinks=F32(1)), "sinks is np.float32(1.0); it must be a tensor"),
    (func, dict(bias=np.int64(3)), "bias is np.int64(3); it must be a tensor"),
    (varlen, dict(k=CACHE, v=CACHE, block_table=TABLE, seqused_k=numbers(2)), "seqused_k is float16"),
    (kvcache, dict(page_table=3), "page_table is 3"),
    (varlen, dict(cu_seqlens_q=None), "cu_seqlens_q is None; it must be a tensor of int32 (batch + 1)"),
    (varlen, dict(cu_seqlens_k=None), "cu_seqlens_k is None; it must be a tensor of int32 (batch + 1)"),
    (func, dict(prefix=numbers(2)), "prefix is float16; it must be a tensor of int32 or int64"),
    (varlen, dict(cu_seqlens_q=STARTS.astype(F32)), "cu_seqlens_q is float32; it must be a tensor of int32 or int64"),
    (varlen, dict(cu_seqlens_k=8), "cu_seqlens_k is 8; it must be a tensor"),
    (kvcache, dict(cache_seqlens=np.ones(2, bool)), "cache_seqlens is bool"),
    (varlen, dict(k=ROWS.astype(BF16)), "k is bfloat16; it must be float16 (as q)"),
    (kvcache, dict(v_cache=CACHE.astype(BF16)), "v_cache is bfloat16; it must be float16 (as k_cache)"),
    (kvcache, dict(q=Q1.astype(BF16)), "k_cache is float16; it must be bfloat16 (as q) or float8_e4m3fn or int8"),
    (kvcache, dict(k=NEW, v=NEW.astype(F32)), "v is float32"),
    (kvcache, dict(k=NEW.astype(BF16), v=NEW.astype(BF16)), "k is bfloat16"),
    (kvcache, dict(**PAIR, rotary_cos=numbers(8, 8, dtype=F32), rotary_sin=numbers(8, 8)), "rotary_sin is float16"),
    (merge, dict(suffix_output=O.astype(F32)), "suffix_output is float32; it must be float16 (as prefix_output)"),
    (merge, dict(suffix_lse=LSE.astype(F16)), "suffix_lse is float16"),
    (merge, dict(sinks=numbers(2)), "sinks is float16; it must be float32"),
    (func, dict(k=None), "k is None; it must be a tensor"),
    (func, dict(v=[1.0]), "v is [1.0]; it must be a tensor"),
    (func, dict(bias=[[1.0]]), "bias is [[1.0]]; it must be a tensor"),
    (func, dict(prefix=[3, 5]), "prefix is [3, 5]; it must be a tensor"),
    (varlen, dict(alibi_slopes=[0.5]), "alibi_slopes is [0.5]; it must be a tensor"),
    (varlen, dict(cu_seqlens_q=[0, 8]), "cu_seqlens_q is [0, 8]; it must be a tensor"),
    (kvcache, dict(k_cache=None), "k_cache is None; it must be a tensor"),
    (kvcache, dict(mask_bits=[1]), "mask_bits is [1]; it must be a tensor"),
    (mla, dict(k_cache=None), "k_cache is None; it must be a tensor"),
    (sparse, dict(kv=None), "kv is None; it must be a tensor"),
    (merge, dict(prefix_lse=None), "prefix_lse is None; it must be a tensor"),
]


@pytest.mark.parametrize("kind, function, changed, words", [
    (kind, *case) for kind, cases in ((ferroflash.Invalid, SHAPES), (ferroflash.WrongType, DTYPES)) for case in cases])
def test_refusals(kind, function, changed, words):
    with pytest.raises(kind, match=re.escape(words)):
        function(**{**ARGUMENTS[function], **changed}, **SIM)


# Each tensor of these calls is once on another card than the others. Offsets and lengths go to q's GPU.
MOVED = [
    (func, dict(sinks=numbers(2, dtype=F32)), ["k", "v", "sinks"]),
    (func, dict(alibi_slopes=numbers(2, dtype=F32), causal=True), ["alibi_slopes"]),
    (func, dict(bias=BIAS), ["bias"]),
    (func, dict(mask_bits=np.zeros((1, 1, 16, 2), U8)), ["mask_bits"]),
    (varlen, {}, ["k", "v"]),
    (kvcache, dict(**PAIR), ["k_cache", "v_cache", "k", "v"]),
    (kvcache, dict(**EIGHTS, k_descale=numbers(2, 1, dtype=F32), v_descale=numbers(2, 1, dtype=F32)), ["k_descale"]),
    (mla, {}, ["k_cache"]),
    (sparse, dict(attn_sink=numbers(16, dtype=F32)), ["kv", "attn_sink"]),
    (merge, dict(output_lse=LSE, sinks=numbers(2, dtype=F32)),
     ["prefix_output", "prefix_lse", "suffix_output", "suffix_lse", "output_lse", "sinks"]),
]


@pytest.mark.parametrize("remembered", [False, True])
@pytest.mark.parametrize("function, changed, name", [(*case[:2], name) for case in MOVED for name in case[2]])
def test_a_tensor_on_another_card(function, changed, name, remembered):
    planned.launches().clear()
    arguments = {**ARGUMENTS[function], **changed}
    on = lambda card: {n: there(t, card if n == name else HERE) if isinstance(t, np.ndarray) else t
                       for n, t in arguments.items()}
    if remembered:
        function(**on(HERE))
    with pytest.raises(ferroflash.Invalid, match="is on sim:a100; it must be on sim:l4"):
        function(**on(THERE))


@pytest.mark.parametrize("function, changed", [case[:2] for case in MOVED if case[0] is not merge])
def test_a_second_call_reads_its_own_tensors(function, changed):
    # An append would change the cache of the next call.
    of_first = {**ARGUMENTS[function], **{name: of for name, of in changed.items() if name not in PAIR}}
    second = {name: of if not isinstance(of, np.ndarray) or of.dtype.kind != "f" else of * of.dtype.type(0.5)
              for name, of in of_first.items()}
    results = lambda out: out if isinstance(out, tuple) else (out,)
    planned.launches().clear()
    alone = results(function(**second, **SIM))
    planned.launches().clear()
    function(**of_first, **SIM)
    assert all(map(np.array_equal, alone, results(function(**second, **SIM))))
    assert len(planned.launches()) == 1


def attention(tensors, starts=None, used=None, sinks=None, prefix=None):
    """Returns o and the gradients of q, k and v."""
    q, k, v, d_o = map(there, tensors)
    options = (q, k, v, starts, starts, used, None, sinks, None, prefix, None, 8, 8, None, True, -1, -1, 0.0, None,
               None, 0, False)
    o, lse = _attention.forward(*options, None)
    gradients = _attention.backward(there(tensors[3]), None, o, lse, *options, False, False)
    return [t.raw() for t in (o, *gradients[:3])]


VECTORS = {
    "cu_seqlens_q": ([ROWS] * 4, lambda t, v: attention(t, starts=v), of(0, 3, 8)),
    "seqused_k": ([ROWS] * 4, lambda t, v: attention(t, starts=there(STARTS), used=v), of(2, 1)),
    "sinks": ([Q, K, K, Q], lambda t, v: attention(t, sinks=v), np.array([0.5, 3], F32)),
    "prefix": ([Q, K, K, Q], lambda t, v: attention(t, prefix=v), of(3, 9)),
    "sinks of a cache": ([Q1, CACHE, CACHE], lambda t, v: [
        kvcache(*map(there, t), cache_seqlens=there(LENGTHS), sinks=v).raw()], np.array([0.5, 3], F32)),
    "sinks of a merge": ([O, LSE], lambda t, v: [merged(*map(there, t), v)], np.array([0.5, 3], F32)),
}


def merged(o, lse, sinks):
    output = o.new_empty(o.shape)
    merge(output, o, lse, o, lse, sinks=sinks)
    return output.raw()


@pytest.mark.parametrize("name", VECTORS)
def test_strided_vectors(name):
    tensors, call, vector = VECTORS[name]
    assert all(map(np.array_equal, call(tensors, there(vector)), call(tensors, Strided(vector))))


def test_prefixes_of_other_integers():
    for lengths in ([12, 3], [2, 15]):
        narrow, wide, short = (func(Q, K, K, prefix=np.array(lengths, dtype), **SIM) for dtype in (I32, I64, np.int16))
        assert np.array_equal(narrow, wide) and np.array_equal(narrow, short)


def test_rest_in_int64():
    table, pages = np.array([[0, 1, 2], [0, 1, 3]], I32), numbers(4, 16, 2, 128)
    run = lambda dtype: kvcache(numbers(2, 1, 4, 128), pages, pages, cache_seqlens=of(40, 36), block_table=table,
                                shared_prefixes=(1, 2, np.array([8, 4], dtype)), **SIM)
    assert np.array_equal(run(I32), run(I64))
    with pytest.raises(ferroflash.Invalid, match="rest"):
        ferroflash.kvcache.Launch(*map(there, (Q1, CACHE, CACHE, Q1, LENGTHS)), table=there(TABLE),
                                  shared_prefixes=(1, 1, Strided(of(1, 2))))


def test_scales_of_two_numbers_are_not_those_of_four():
    scales = np.array([[2], [5]], F32)
    o = kvcache(**{**ARGUMENTS[kvcache], **EIGHTS}, v_descale=scales, **SIM)
    plain = kvcache(**{**ARGUMENTS[kvcache], **EIGHTS}, **SIM)
    assert np.allclose(o, plain * scales[:, :, None, None], rtol=2e-3)
    one = kvcache(**{**ARGUMENTS[kvcache], **EIGHTS}, v_descale=np.array(2, F32), **SIM)
    assert np.allclose(one, plain * 2, rtol=2e-3)


def test_launches_are_bounded_and_keep_no_workspace(monkeypatch):
    launches = planned.launches()
    launches.clear()
    monkeypatch.setattr(planned, "KEPT", 2)
    given = [numbers(1, rows, 1, 64) for rows in (2048, 2304, 2560)]
    # The splits of a query need a workspace.
    run = lambda k: func(k[:, :1], k, k, **SIM)
    first = run(given[0])
    for k in (given[1], given[0], given[2]):
        run(k)
    assert sorted(launch.args.seqlen_k for launch in launches.values()) == [2048, 2560]
    assert all(launch.args.workspace_bytes and launch.workspace is None for launch in launches.values())
    assert np.array_equal(first, run(given[0]))


def test_a_launch_under_capture_is_neither_kept_nor_an_earlier_one(monkeypatch):
    planned.launches().clear()
    monkeypatch.setattr(_simulator.Card, "capturing", lambda self: True)
    o = func(Q, K, K, **SIM)
    assert not planned.launches()
    monkeypatch.undo()
    assert np.array_equal(o, func(Q, K, K, **SIM)) and len(planned.launches()) == 1
    (eager,), used = planned.launches().values(), []
    monkeypatch.setattr(_simulator.Card, "capturing", lambda self: True)
    monkeypatch.setattr(planned.Planned, "run", lambda launch: used.append(launch))
    func(Q, K, K, **SIM)
    assert used[0] is not eager and list(planned.launches().values()) == [eager]


@pytest.mark.parametrize("function", [func, varlen, kvcache, mla, sparse])
def test_a_launch_that_fails_keeps_no_tensors(function, monkeypatch):
    planned.launches().clear()
    monkeypatch.setattr(planned.Planned, "enqueue", lambda launch: planned.check(3))
    with pytest.raises(ferroflash.Error):
        function(**ARGUMENTS[function], **SIM)
    (launch,) = planned.launches().values()
    assert launch.kept is None and launch.workspace is None


def test_the_place_of_a_bias_selects_the_plan(monkeypatch):
    planned.launches().clear()
    numbers_of_bias, calls = there(BIAS.reshape(-1)), []
    for elements in (0, 2, 8, 10):
        bias = _simulator.Tensor(HERE, there(BIAS)._raw, "float16", of=numbers_of_bias)
        bias.address += 2 * elements
        monkeypatch.setattr(planned.Planned, "run", lambda launch: calls.append(launch))
        func(*map(there, (Q, K, K)), bias=bias)
    assert calls[0] is calls[2] and calls[1] is calls[3] and calls[0] is not calls[1]


def test_integers_beyond_int32_name_nothing():
    """Their low 32 bits would be slots of the cache."""
    far = np.array([[[0, 2 ** 32, 1, 2 ** 32 + 1, -2 ** 32]]], I64)
    near = np.array([[[0, -1, 1, -1, -1]]], I32)
    run = lambda indices: sparse(LATENT_Q[:1, 0], LATENT[0], indices, 0.1, **SIM)[0]
    assert np.array_equal(run(far), run(near)) and not np.array_equal(run(far), run(np.abs(near)))


def test_more_queries_than_a_launch_of_lists_takes(monkeypatch):
    q, lists = numbers(5, 4, 576), np.arange(15, dtype=I32).reshape(5, 1, 3)
    run = lambda: sparse(q, LATENT[0], lists, 0.1, **SIM)
    o, _, lse = run()
    monkeypatch.setattr(ferroflash.mla, "QUERIES", 2)
    parts = run()
    assert np.array_equal(o, parts[0]) and np.array_equal(lse, parts[2])


def test_values_of_all_columns_of_listed_rows():
    rows = LATENT[0, :, :, :256]
    wide, _, _ = sparse(LATENT_Q[:, 0, :, :256], rows, np.zeros((2, 1, 8), I32) + 3, 0.1, 256, **SIM)
    assert np.abs(wide - rows[3]).max() <= 1e-3


def test_a_latent_cache_is_not_one_of_keys_and_values():
    planned.launches().clear()
    q, rows = there(LATENT_Q[..., :128]), there(LATENT[..., :128])
    values = _simulator.Tensor(HERE, rows._raw, "float16", of=rows)
    run = lambda v: kvcache(q, rows, v, cache_seqlens=there(LENGTHS)).raw()
    assert np.array_equal(run(values), run(there(LATENT[..., :128]))) and len(planned.launches()) == 2


@pytest.mark.parametrize("call", [
    lambda: ferroflash.flash_attn_qkvpacked_func(numbers(1, 8, 4, 3, 64), **SIM),
    lambda: ferroflash.flash_attn_qkvpacked_func(numbers(8, 3, 64), **SIM),
    lambda: ferroflash.flash_attn_kvpacked_func(numbers(1, 8, 4, 64), numbers(1, 8, 4, 2, 64), **SIM),
    lambda: ferroflash.flash_attn_varlen_qkvpacked_func(numbers(8, 4, 3, 64), np.array([0, 8], I32), 8, **SIM),
    lambda: ferroflash.flash_attn_varlen_func(*[numbers(8, 4, 64)] * 3, *[np.array([[0, 8]], I32)] * 2, 8, 8, **SIM),
])
def test_sizes_at_the_wrong_place(call):
    with pytest.raises(ferroflash.Error, match="must be"):
        call()
