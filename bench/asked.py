"""Times what a caller can ask of a call beside the same call without it: largest scores, entropies, and batch invariance.

    python3 asked.py --out asked.json

A ratio is the time of the call with the request divided by the time without it: 1.03 costs 3 %. Prefill is (batch, 16 heads, 128 columns),
decode one query of 32 heads on 8 in pages of 16. Outputs that are asked for are compared with float64 by pytest python/tests. With
invariance, decode does not split by the number of blocks. The L2 cache is cold.
"""
import functools

import torch

import compare
import ferroflash
import report

LSE = {"prefill": {"return_lse": True}, "decode": {"return_softmax_lse": True}}
OUTPUTS = {"max_logits": {"return_max_logits": True}, "entropy": {"return_entropy": True},
           "max_logits_head": {"return_max_logits_head": True}}
PROMISES = {"batch": {"invariance": "batch"}, "batch_and_chunks": {"invariance": "batch_and_chunks"}}
PREFILL = [(8, 2048, True), (4, 4096, False), (2, 8192, True)]
DECODE = [(1, 8192), (16, 4096), (64, 2048), (128, 8192)]


def prefill(batch, keys, causal):
    """Returns a function of options that returns a call."""
    q, k, v = (torch.randn(batch, keys, 16, 128, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    return lambda **options: functools.partial(ferroflash.flash_attn_func, q, k, v, causal=causal, **options)


def decode(batch, keys, page=16):
    pages = batch * keys // page
    k, v = (torch.randn(pages, page, 8, 128, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    q = torch.randn(batch, 1, 32, 128, dtype=torch.bfloat16, device="cuda")
    table = torch.randperm(pages, device="cuda").int().view(batch, -1)
    lengths = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
    return lambda **options: functools.partial(ferroflash.flash_attn_with_kvcache, q, k, v, cache_seqlens=lengths, block_table=table,
                                               causal=True, **options)


def first(result):
    return result[0] if isinstance(result, tuple) else result


def run(suite, label, make, args, rng):
    """Returns the report's rows of one shape. The peer of each row is a request, the row `ferroflash` the call without any."""
    call = make()
    calls = {"ferroflash": call(), **{name: call(**options) for name, options in {"lse": LSE[suite], **OUTPUTS, **PROMISES}.items()}}
    want = first(calls["ferroflash"]()).double()
    # Two kernels may round a result to different neighbours.
    judge = report.within(2.0 ** -7 * want.abs().max().item(), lambda o: (first(o).double() - want).abs().max().item())
    checks = report.judged(calls, judge)
    row = {"suite": suite, "label": label, "dtype": "bf16", "timing": "cold"}
    return report.measured(row, calls, checks, args, rng, compare.measure, lambda us: f"{us:.1f} us without")


def main():
    args = report.options(__doc__).parse_args()
    shapes = [("prefill", f"{batch}x{keys} {'causal' if causal else 'full'}", functools.partial(prefill, batch, keys, causal))
              for batch, keys, causal in PREFILL]
    shapes += [("decode", f"{batch}x{keys}", functools.partial(decode, batch, keys)) for batch, keys in DECODE]
    report.main(lambda rng: [(suite, label, functools.partial(run, suite, label, make, args, rng)) for suite, label, make in shapes], args)


if __name__ == "__main__":
    main()
