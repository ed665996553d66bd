"""A sequence's bits do not depend on its batch: one sequence alone, and among others drawn at random, must agree in every bit.

    python3 invariance.py OUT.json [--batches 200] [--seed 1]      # in the packed folder, with PyTorch

Each batch draws dtype, heads, head dim, page size, queries, chunk size, the number and lengths of the other sequences, and the
place of the sequence in the batch. All launches use the batch-invariant mode: splits of `chunk` keys.
"""
import argparse
import json
import random
import sys
import time

import torch

import ferroflash

HEADS = [(32, 8), (8, 8), (28, 4), (16, 1), (64, 8)]


def drawn(rng):
    """One random problem: its description and its numbers."""
    heads, heads_k = rng.choice(HEADS)
    return {
        "dtype": rng.choice(["float16", "bfloat16"]), "heads": heads, "heads_k": heads_k,
        "head_dim": rng.choice([64, 96, 128, 256]), "page": rng.choice([16, 32, 64]),
        "queries": rng.choice([1, 1, 1, 2, 4]), "chunk": rng.choice([128, 256, 512]), "keys": rng.randint(1, 6000),
        "others": [rng.choice([0, 1, rng.randint(1, 300), rng.randint(1, 8000)]) for _ in range(rng.randint(0, 96))],
        "seed": rng.randrange(1 << 30),
    }


def attention(case, lengths, place):
    """O and LSE of the sequence at `place`. Its inputs do not depend on the batch; other sequences have random inputs."""
    dtype, page, longest = getattr(torch, case["dtype"]), case["page"], max(lengths)
    columns = max(1, -(-longest // page))
    own = torch.Generator("cuda").manual_seed(case["seed"])
    shape = (case["heads_k"], case["head_dim"])
    draw = lambda g, *sizes: torch.randn(*sizes, generator=g, device="cuda", dtype=torch.float32).to(dtype)
    q_own = draw(own, case["queries"], case["heads"], case["head_dim"])
    k_own, v_own = (draw(own, case["keys"], *shape) for _ in range(2))
    any_ = torch.Generator("cuda").manual_seed(case["seed"] + 1 + len(lengths))
    # All other sequences share pages of random numbers.
    pages = 2 * columns + 1
    k, v = (draw(any_, pages, page, *shape) for _ in range(2))
    q = draw(any_, len(lengths), case["queries"], case["heads"], case["head_dim"])
    table = torch.arange(columns, device="cuda", dtype=torch.int32).repeat(len(lengths), 1)
    table[place] += columns
    for cache, numbers in ((k, k_own), (v, v_own)):
        flat = cache[columns:2 * columns].view(-1, *shape)
        flat[:case["keys"]] = numbers
    q[place] = q_own
    used = torch.tensor(lengths, device="cuda", dtype=torch.int32)
    o, lse = ferroflash.flash_attn_with_kvcache(q, k, v, cache_seqlens=used, block_table=table, causal=True, chunk=case["chunk"],
                                             return_softmax_lse=True)
    return o[place].clone(), lse[place].clone()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out")
    ap.add_argument("--batches", type=int, default=200)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--seconds", type=float, default=200, help="begin no further batch after this number of seconds")
    args = ap.parse_args()
    rng, began, failures, refused, done, said = random.Random(args.seed), time.monotonic(), [], [], 0, time.monotonic()
    for _ in range(args.batches):
        if time.monotonic() - began > args.seconds:
            break
        case = drawn(rng)
        others = list(case["others"])
        place = rng.randint(0, len(others))
        try:
            alone = attention(case, [case["keys"]], 0)
            among = attention(case, others[:place] + [case["keys"]] + others[place:], place)
        except ferroflash.Unsupported as reason:
            refused.append(f"{case}: {reason}")
            continue
        done += 1
        if not all(torch.equal(a.view(torch.int16 if a.element_size() == 2 else torch.int32),
                               b.view(torch.int16 if b.element_size() == 2 else torch.int32)) for a, b in zip(alone, among)):
            failures.append(case)
        if time.monotonic() - said > 10:
            said = time.monotonic()
            print(f"invariance: {done} of {args.batches}, {len(failures)} differ", file=sys.stderr, flush=True)
    passed = done >= args.batches // 2 and not failures
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump({"device": torch.cuda.get_device_name(), "seed": args.seed, "passed": passed, "batches": done,
                   "asked": args.batches, "refused": refused, "failures": failures}, file, indent=1)
    print(f"{done} of {args.batches} batches of seed {args.seed}, {len(failures)} differ, {len(refused)} refused")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
