"""Products of eight bits, in the simulator."""
import numpy as np
import pytest

import ferroflash

SIM = {"device": "sim"}


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def test_products_of_eight_bits_are_within_their_error_class():
    q, k, v = numbers(1, 1, 20, 2, 64), numbers(2, 1, 90, 1, 64), numbers(3, 1, 90, 1, 64)
    o, lse = ferroflash.flash_attn_func(q, k, v, precision="int8-fp8", return_lse=True, **SIM)
    scores = np.einsum("bqhd,bkd->bhqk", q.astype(float), k[:, :, 0].astype(float)) / 8
    p = np.exp(scores - scores.max(-1, keepdims=True))
    exact = np.einsum("bhqk,bkd->bqhd", p / p.sum(-1, keepdims=True), v[:, :, 0].astype(float))
    assert 0 < np.abs(o - exact).sum() <= 0.05 * np.abs(exact).sum()
    assert not np.array_equal(o, ferroflash.flash_attn_func(q, k, v, **SIM))


def test_a_precision_that_the_card_lacks_is_refused():
    q = numbers(1, 1, 4, 1, 64)
    with pytest.raises(ferroflash.Unsupported, match="precision fp8 on NVIDIA L4"):
        ferroflash.flash_attn_func(q, q, q, precision="fp8", **SIM)


def test_an_unknown_precision_is_refused():
    q = numbers(1, 1, 4, 1, 64)
    with pytest.raises(ValueError, match="precision 'fp4': it must be None, 'int8-fp8' or 'fp8'"):
        ferroflash.flash_attn_func(q, q, q, precision="fp4", **SIM)
