"""Products of eight bits, in the simulator."""
import ml_dtypes
import numpy as np
import pytest

import ferroflash

SIM, HOPPER, E4M3 = {"device": "sim"}, {"device": "sim:h200"}, ml_dtypes.float8_e4m3fn


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


@pytest.mark.parametrize("precision, most", [("int8-f16", 0.03), ("int8-fp8", 0.05)])
def test_products_of_eight_bits_are_within_their_error_class(precision, most):
    q, k, v = numbers(1, 1, 20, 2, 64), numbers(2, 1, 90, 1, 64), numbers(3, 1, 90, 1, 64)
    o, lse = ferroflash.flash_attn_func(q, k, v, precision=precision, return_lse=True, **SIM)
    scores = np.einsum("bqhd,bkd->bhqk", q.astype(float), k[:, :, 0].astype(float)) / 8
    p = np.exp(scores - scores.max(-1, keepdims=True))
    exact = np.einsum("bhqk,bkd->bqhd", p / p.sum(-1, keepdims=True), v[:, :, 0].astype(float))
    assert 0 < np.abs(o - exact).sum() <= most * np.abs(exact).sum()
    assert not np.array_equal(o, ferroflash.flash_attn_func(q, k, v, **SIM))


def test_a_precision_that_the_card_lacks_is_refused():
    q = numbers(1, 1, 4, 1, 64)
    with pytest.raises(ferroflash.Unsupported, match="precision fp8 on NVIDIA L4"):
        ferroflash.flash_attn_func(q, q, q, precision="fp8", **SIM)


@pytest.mark.parametrize("precision", ["int8-f16", "int8-fp8", "fp8"])
def test_errors_call_a_precision_by_its_name(precision):
    q = numbers(1, 1, 4, 1, 64)
    with pytest.raises(ferroflash.Unsupported, match=f"precision {precision} on chunked 2"):
        ferroflash.flash_attn_func(q, q, q, chunked=2, precision=precision, **SIM)


def attention(q, k, v):
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", p / p.sum(-1, keepdims=True), v)


def test_tensors_of_eight_bits_have_scales_of_batches_and_key_heads():
    q, k, v = (numbers(n, 2, rows, heads, 64).astype(E4M3) for n, rows, heads in [(1, 20, 4), (2, 140, 2), (3, 140, 2)])
    scales = [np.random.default_rng(n).uniform(0.5, 1.5, (2, 2)).astype(np.float32) for n in range(3)]
    options = dict(zip(["q_descale", "k_descale", "v_descale"], scales))
    o, lse = ferroflash.flash_attn_func(q, k, v, return_lse=True, **options, **HOPPER)
    assert o.dtype == ml_dtypes.bfloat16 and lse.shape == (2, 4, 20)
    of_q, of_k, of_v = (scale.repeat(2, 1)[:, None, :, None].astype(float) for scale in scales)
    wide = [np.asarray(x, float).repeat(4 // x.shape[2], 2) for x in (q, k, v)]
    exact = attention(wide[0] * of_q, wide[1] * of_k, wide[2] * of_v)
    assert 0 < np.abs(o.astype(float) - exact).sum() <= 0.05 * np.abs(exact).sum()
    plain = ferroflash.flash_attn_func(q, k, v, precision="fp8", **HOPPER)
    assert np.abs(plain.astype(float) - attention(*wide)).sum() <= 0.05 * np.abs(attention(*wide)).sum()
    assert not np.array_equal(plain, o)


def test_varlen_tensors_of_eight_bits_have_scales_of_sequences():
    q, k, v = (numbers(n, rows, heads, 64) for n, rows, heads in [(1, 20, 4), (2, 160, 2), (3, 160, 2)])
    starts = [np.array(of, np.int32) for of in ([0, 7, 20], [0, 20, 160])]
    scales = [np.random.default_rng(n).uniform(0.5, 1.5, (2, 2)).astype(np.float32) for n in range(3)]
    options = dict(zip(["q_descale", "k_descale", "v_descale"], scales))

    def error(o, eight, scales):
        errors, all = 0.0, 0.0
        for b, (rows, keys) in enumerate(zip(*([slice(*ends) for ends in zip(of, of[1:])] for of in starts))):
            wide = [(np.asarray(x.astype(E4M3) if eight else x, float)[of] * scale[b][None, :, None].astype(float).repeat(
                x.shape[1] // 2, 1)).repeat(4 // x.shape[1], 1)[None] for x, of, scale in zip((q, k, v), (rows, keys, keys), scales)]
            exact = attention(*wide)[0]
            errors, all = errors + np.abs(o[rows].astype(float) - exact).sum(), all + np.abs(exact).sum()
        return errors / all

    call = lambda *tensors, **more: ferroflash.flash_attn_varlen_func(*tensors, *starts, 13, 140, **more, **HOPPER)
    o = call(*(x.astype(E4M3) for x in (q, k, v)), **options)
    assert o.dtype == ml_dtypes.bfloat16 and 0 < error(o, True, scales) <= 0.05
    ones = [np.ones((2, 2), np.float32)] * 3
    assert 0 < error(call(q, k, v, precision="fp8"), False, ones) <= 0.1


@pytest.mark.parametrize("precision, most", [("int8-f16", 0.03), ("int8-fp8", 0.05)])
def test_sequences_have_keys_of_eight_bits_of_their_own(precision, most):
    q, k, v = numbers(1, 20, 2, 64), numbers(2, 160, 1, 64), numbers(3, 160, 1, 64)
    starts = [np.array(of, np.int32) for of in ([0, 7, 20], [0, 20, 160])]
    o = ferroflash.flash_attn_varlen_func(q, k, v, *starts, 13, 140, precision=precision, **SIM)
    for rows, keys in zip(*([slice(*ends) for ends in zip(of, of[1:])] for of in starts)):
        alone = ferroflash.flash_attn_func(q[None, rows], k[None, keys], v[None, keys], precision=precision, **SIM)
        exact = attention(q[None, rows].astype(float), *(x[None, keys].astype(float).repeat(2, 2) for x in (k, v)))
        assert 0 < np.abs(o[None, rows] - exact).sum() <= most * np.abs(exact).sum()
        assert np.abs(o[None, rows] - alone.astype(float)).max() < 0.01


def test_a_cache_of_eight_bits_has_products_of_eight_bits():
    pages, heads = 12, 2
    k, v = (numbers(n, pages, 16, heads, 64).astype(E4M3) for n in (2, 3))
    table, lengths = np.array([[7, 2, 9, 0, 4], [1, 11, 3, 5, 8]], np.int32), np.array([70, 33], np.int32)
    k_scale = np.random.default_rng(4).uniform(0.5, 1.5, (2, heads)).astype(np.float32)

    def error(o, q, b):
        kv = [np.asarray(x, float)[table[b]].reshape(-1, heads, 64)[None, :lengths[b]].repeat(2, 2) for x in (k, v)]
        exact = attention(np.asarray(q, float)[None], kv[0] * k_scale[b].astype(float).repeat(2)[:, None], 0.5 * kv[1])
        return np.abs(np.asarray(o, float) - exact[0]).sum() / np.abs(exact).sum()

    q = numbers(1, 2, 40, 4, 64)
    call = lambda **more: ferroflash.flash_attn_with_kvcache(
        q, k, v, cache_seqlens=lengths, block_table=table, k_descale=k_scale, v_descale=0.5, **more, **HOPPER)
    o = call(precision="fp8")
    assert all(0 < error(o[b], q[b], b) <= 0.1 for b in range(2)) and not np.array_equal(o, call())
    starts = np.array([0, 35, 40], np.int32)
    o, lse = ferroflash.flash_attn_varlen_func(
        q[0], k, v, starts, None, 35, 80, seqused_k=lengths, block_table=table, precision="fp8", k_descale=k_scale,
        v_descale=0.5, return_lse=True, **HOPPER)
    assert lse.shape == (4, 40) and all(0 < error(o[rows], q[0][rows], b) <= 0.1
                                        for b, rows in enumerate([slice(0, 35), slice(35, 40)]))
    with pytest.raises(ferroflash.Unsupported, match=r"precision fp8 on a KV cache with 2 rows .*precision=None"):
        ferroflash.flash_attn_with_kvcache(q[:, :1], k, v, cache_seqlens=lengths, block_table=table, precision="fp8", **HOPPER)


def test_a_cache_of_int8_has_products_of_int8():
    table, lengths = np.array([[7, 2, 9, 0, 4], [1, 11, 3, 5, 8]], np.int32), np.array([70, 33], np.int32)
    k, v = (np.random.default_rng(n).integers(-127, 128, (12, 16, 2, 64)).astype(np.int8) for n in (2, 3))
    k_scale, v_scale = (np.random.default_rng(n).uniform(0.01, 0.03, (12, 16, 2)).astype(np.float32) for n in (4, 5))
    q = numbers(1, 2, 40, 4, 64)
    call = lambda cache=(k, v), **more: ferroflash.flash_attn_with_kvcache(
        q, *cache, cache_seqlens=lengths, block_table=table, **more, **SIM)
    scales = {"k_descale": k_scale, "v_descale": v_scale}
    o = call(precision="int8-fp8", **scales)
    for b in range(2):
        kv = [(x * of[..., None].astype(float))[table[b]].reshape(-1, 2, 64)[None, :lengths[b]].repeat(2, 2)
              for x, of in ((k, k_scale), (v, v_scale))]
        exact = attention(q[b].astype(float)[None], *kv)
        assert 0 < np.abs(o[b].astype(float) - exact[0]).sum() <= 0.05 * np.abs(exact).sum()
    assert not np.array_equal(o, call(**scales))
    with pytest.raises(ferroflash.Unsupported, match="precision int8-fp8 on a KV cache of float16"):
        call((numbers(2, 12, 16, 2, 64), numbers(3, 12, 16, 2, 64)), precision="int8-fp8")


def test_tensors_of_eight_bits_are_refused_elsewhere():
    q = numbers(1, 1, 4, 1, 64).astype(E4M3)
    with pytest.raises(ferroflash.Unsupported, match="precision fp8 of float8_e4m3fn tensors on NVIDIA L4"):
        ferroflash.flash_attn_func(q, q, q, **SIM)
    scale = np.ones((1, 2), np.float32)
    with pytest.raises(ferroflash.Invalid, match="k_descale"):
        ferroflash.flash_attn_func(q, q, q, k_descale=scale, **HOPPER)
    for number in (0.5, np.float32(0.5)):
        with pytest.raises(ferroflash.WrongType, match=r"q_descale is .*0\.5.*; it must be a tensor of float32 \(batch, heads_k"):
            ferroflash.flash_attn_func(q, q, q, q_descale=number, **HOPPER)
    wide = numbers(1, 1, 4, 1, 64)
    with pytest.raises(ferroflash.Unsupported, match="q_descale: scales need q, k and v of float8_e4m3fn; .*leave it None"):
        ferroflash.flash_attn_func(wide, wide, wide, q_descale=scale, **SIM)


def test_an_unknown_precision_is_refused():
    q = numbers(1, 1, 4, 1, 64)
    with pytest.raises(ValueError, match="precision 'fp4': it must be None, 'int8-f16', 'int8-fp8' or 'fp8'"):
        ferroflash.flash_attn_func(q, q, q, precision="fp4", **SIM)
