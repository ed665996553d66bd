"""Times backward passes of varlen sequences of FerroFlash, FlashAttention-2 (PyTorch's operator) and FlashAttention-4, on the same tensors.

    python3 backward_varlen.py --out backward-varlen.json      # three mixes of 16384 tokens, full and causal, D 64 and 128, bf16
    python3 backward_varlen.py --match mixed --dtypes f16 bf16
    python3 backward_varlen.py --whole                         # the forward and the backward pass of one call

The options, the timer and the check are those of backward.py. The check compares the first and the last sequence.
"""
import random

import torch

import backward
import cases
import gradients
import ferroflash

if cases.fa4 is not None:
    from flash_attn.cute.interface import flash_attn_varlen_func as fa4_varlen

SHORT = random.Random(1).choices(range(64, 449), k=60)
# The lengths of sequences, 16384 tokens in each mix.
MIXES = {
    "mixed": [4099, 2047, 513, 3071, 1024, 255, 129, 1920, 769, 1535, 383, 639],
    "long": [9216, *[1024] * 6, *[256] * 4],
    "short": [16384 - sum(SHORT), *SHORT],
}
HEADS = [(16, 16, 128), (32, 32, 64), (32, 8, 128)]


def forwards(q, k, v, starts, longest, causal):
    """Returns {name: call}. Each call returns O as (rows of all sequences, heads, head_dim)."""
    ends = (starts, starts, longest, longest)
    calls = {"ferroflash": lambda: ferroflash.flash_attn_varlen_func(q, k, v, *ends, causal=causal),
             "fa2": lambda: torch.ops.aten._flash_attention_forward(q, k, v, *ends, 0.0, causal, False)[0]}
    if cases.fa4 is not None:
        def fa4(deterministic):
            out = fa4_varlen(q, k, v, cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=longest, max_seqlen_k=longest,
                             causal=causal, deterministic=deterministic)
            return out[0] if isinstance(out, tuple) else out
        calls |= {"fa4": lambda: fa4(False), "fa4_deterministic": lambda: fa4(True)}
    return calls


def references(sequences, tensors):
    """Yields what gradients.check reads, of the first and the last sequence."""
    ends = [0, *torch.tensor([case.seqlen_q for case in sequences]).cumsum(0).tolist()]
    for at in (0, len(sequences) - 1):
        own = lambda t: t[ends[at]:ends[at + 1]].transpose(0, 1).unsqueeze(0)
        for exact, naive, part in backward.references(sequences[at], *map(own, tensors)):
            yield exact, naive, lambda of: part([own(t) for t in of])


def run(mix, heads, causal, dtype, label, args, rng):
    """Returns the report's rows of one mix."""
    heads_q, heads_k, dim = heads
    sequences = [cases.Case({"batch": 1, "heads_q": heads_q, "heads_k": heads_k, "seqlen_q": length, "seqlen_k": length,
                             "head_dim": dim, "causal": causal, "dtype": dtype}) for length in MIXES[mix]]
    starts = torch.tensor([0, *MIXES[mix]], device="cuda").cumsum(0).int()
    make = lambda heads: torch.randn(sum(MIXES[mix]), heads, dim, dtype=cases.DTYPES[dtype], device="cuda")
    q, k, v = (make(heads).requires_grad_() for heads in (heads_q, heads_k, heads_k))
    d_o = make(heads_q)
    calls = gradients.calls(forwards(q, k, v, starts, max(MIXES[mix]), causal), (q, k, v), d_o, args)
    flops = sum(case.backward_flops() + (case.flops() if args.whole else 0) for case in sequences)
    return gradients.measured(calls, kind(dim), label, dtype, references(sequences, (q, k, v, d_o)), flops, args, rng)


def kind(dim):
    return f"varlen D{dim}"


def main():
    peers = ["fa2", "fa4", "fa2_deterministic", "fa4_deterministic"]
    args = gradients.options(__doc__, peers).parse_args()
    todo = []
    for dtype in args.dtypes or ["bf16"]:
        for heads in HEADS:
            for causal in (False, True):
                for mix in MIXES:
                    label = f"{mix} {len(MIXES[mix])} sequences H{heads[0]}/{heads[1]} D{heads[2]} {'causal' if causal else 'full'} {dtype}"
                    work = lambda rng, of=(mix, heads, causal, dtype, label): run(*of, args, rng)
                    todo.append((kind(heads[2]), label, work))
    gradients.run(todo, args)


if __name__ == "__main__":
    main()
