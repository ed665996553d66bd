"""Every argument of every function, with values that it does not take: the error names the argument."""
import inspect
import random

import numpy as np
import pytest

import ferroflash
from test_checks import (ARGUMENTS, CACHE, EIGHTS, F16, F32, I32, K, LATENT_Q, PAIR, Q, ROWS, SIM, STARTS, TABLE, func, kvcache,
                         mla, numbers, of, sparse, varlen)

PACKED, KV = numbers(2, 16, 3, 2, 64), numbers(2, 16, 2, 1, 64)
OF_ROWS = dict(max_seqlen_q=4, max_seqlen_k=4, cu_seqlens_q=STARTS, cu_seqlens_k=STARTS)
# Functions and arguments that are right
CALLS = [
    *ARGUMENTS.items(),
    (ferroflash.flash_attn_qkvpacked_func, dict(qkv=PACKED)),
    (ferroflash.flash_attn_kvpacked_func, dict(q=Q, kv=KV)),
    (ferroflash.flash_attn_varlen_qkvpacked_func, dict(qkv=numbers(8, 3, 1, 64), cu_seqlens=STARTS, max_seqlen=4)),
    (ferroflash.flash_attn_varlen_kvpacked_func, dict(q=ROWS, kv=numbers(8, 2, 1, 64), **OF_ROWS)),
    (ferroflash.flash_attn_func_bhsd, dict(zip("qkv", (t.swapaxes(1, 2) for t in (Q, K, K))))),
    (varlen, dict(q=ROWS, k=CACHE, v=CACHE, **OF_ROWS, block_table=TABLE)),
    (varlen, dict(q=ROWS, k=ROWS, v=ROWS, **OF_ROWS, seqused_k=of(2, 3), seqused_q=of(2, 3))),
    (kvcache, dict(ARGUMENTS[kvcache], **PAIR, causal=True, rotary_cos=numbers(64, 8, dtype=F32),
                   rotary_sin=numbers(64, 8, dtype=F32))),
    (kvcache, dict(ARGUMENTS[kvcache], **EIGHTS, k_descale=numbers(2, 1, dtype=F32), v_descale=numbers(2, 1, dtype=F32))),
    (kvcache, dict(q=ROWS, k_cache=CACHE, v_cache=CACHE, cache_seqlens=of(5, 9), cu_seqlens_q=STARTS, max_seqlen_q=4,
                   block_table=TABLE.repeat(2, 1), seqused_q=of(2, 3))),
    (mla, dict(q=LATENT_Q, k_cache=ARGUMENTS[mla]["k_cache"], block_table=None, cache_seqlens=None, head_dim_v=512,
               indices=np.zeros((2, 1, 8), I32))),
]
# No argument takes these.
WRONG = [object(), "x", b"x", [1], {}, 2.5j, lambda: 0, np.zeros((1,) * 7, F16), np.zeros((2, 2), complex), np.array(["x"]),
         np.array([None]), 2**200, -2**200, float("nan")]
# Results do not depend on these.
IGNORED = ("deterministic", "device", "tile_scheduler_metadata", "num_splits", "fa3", "options")


def wrong_tensors(array, seed):
    """Returns arrays of another dtype or shape, which no argument takes."""
    return random.Random(seed).sample([
        array.astype(np.uint32), array.astype(complex), array[None, None], array[..., None], array.astype(object),
        array[..., :0]], 3)


def mutants(function, arguments):
    names = [name for name in inspect.signature(function).parameters if name not in IGNORED]
    for at, name in enumerate(names):
        given = arguments.get(name)
        wrong = random.Random(at).sample(WRONG, 5)
        yield from ((name, of) for of in wrong + (wrong_tensors(given, at) if isinstance(given, np.ndarray) else []))


@pytest.mark.parametrize("at", range(len(CALLS)))
def test_errors_name_the_argument(at):
    function, arguments = CALLS[at]
    for name, wrong in mutants(function, arguments):
        try:
            function(**{**arguments, name: wrong}, **SIM)
        except ferroflash.Error as error:
            # Of two tensors that do not go together, an error may name the other one.
            assert type(error) is not ferroflash.Error
            assert name.removeprefix("return_") in str(error) or name in ("q", "cu_seqlens_q"), (name, wrong, error)
        else:
            pytest.fail(f"{function.__name__} takes {name}={wrong!r:.60}")
