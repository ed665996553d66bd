"""Batch invariance: the bits of a sequence depend on its own tensors and lengths only.

    python3 invariance.py OUT.json [--batches 200] [--seed 1]      # in the packed folder, with PyTorch

Each batch draws dtype, heads, head dim, page size, mask, and the numbers of queries and keys of each sequence: single queries,
drafts and prompts. With invariance "batch", a sequence alone as equal queries must agree in every bit with itself among the
others as varlen queries. With "batch_and_chunks", its queries in drawn chunks, each among other sequences, must agree too.
"""
import argparse
import json
import random
import sys
import time

import torch

import ferroflash

HEADS = [(32, 8), (8, 8), (28, 4), (14, 2), (16, 1), (64, 8)]


def part(rng, seed):
    """Queries of a sequence, at positions first .. last, on its first `last` keys."""
    queries = rng.choice([1, 1, rng.randint(1, 6), rng.randint(5, 40), rng.randint(100, 700)])
    first = rng.choice([0, rng.randint(0, 300), rng.randint(0, 6000)])
    return {"seed": seed, "first": first, "last": first + queries}


def drawn(rng, index):
    """One random problem: its description and its numbers."""
    heads, heads_k = rng.choice(HEADS)
    return {
        "dtype": rng.choice(["float16", "bfloat16"]), "heads": heads, "heads_k": heads_k,
        "head_dim": rng.choice([64, 96, 128, 256]), "page": rng.choice([16, 32, 64]),
        "window": rng.choice([(-1, -1), (-1, -1), (255, 0)]), "cache": rng.choice([True, True, False]),
        "own": part(rng, rng.randrange(1 << 30)),
        "others": [part(rng, 7 + number) for number in range(rng.choice([0, rng.randint(1, 8), rng.randint(1, 60)]))],
        "invariance": ["batch", "batch_and_chunks"][index % 2],
    }


def rows(case, of, tensor, positions, heads):
    """The rows of a tensor at positions of a sequence. They depend on the sequence's seed only."""
    generator = torch.Generator("cuda").manual_seed(of["seed"] * 4 + tensor)
    all_ = torch.randn(of["last"], heads, case["head_dim"], generator=generator, device="cuda", dtype=torch.float32)
    return (2 * all_[positions]).to(getattr(torch, case["dtype"]))


def integers(numbers):
    return torch.tensor(numbers, device="cuda", dtype=torch.int32)


def attention(case, parts, seeds_of, varlen):
    """O and LSE of each part's queries. `seeds_of` are the whole sequences of the parts."""
    q = [rows(case, whole, 0, slice(of["first"], of["last"]), case["heads"]) for of, whole in zip(parts, seeds_of)]
    k, v = ([rows(case, whole, tensor, slice(0, of["last"]), case["heads_k"]) for of, whole in zip(parts, seeds_of)]
            for tensor in (1, 2))
    counts, keys = [len(x) for x in q], [of["last"] for of in parts]
    starts = lambda counts: integers([sum(counts[:b]) for b in range(len(counts) + 1)])
    options = {"causal": case["window"] == (-1, -1), "window_size": case["window"], "invariance": case["invariance"]}
    if not case["cache"]:
        if not varlen:
            o, lse = ferroflash.flash_attn_func(q[0][None], k[0][None], v[0][None], return_lse=True, **options)
            return [(o[0], lse[0])]
        o, lse = ferroflash.flash_attn_varlen_func(torch.cat(q), torch.cat(k), torch.cat(v), starts(counts), starts(keys),
                                                   max(counts), max(keys), return_lse=True, **options)
    else:
        page = case["page"]
        pages = [-(-n // page) for n in keys]
        columns, table, pools = max(pages), torch.zeros(len(parts), max(pages), dtype=torch.int32), []
        for which in (k, v):
            pool = torch.full((sum(pages), page, case["heads_k"], case["head_dim"]), float("nan"), device="cuda",
                              dtype=q[0].dtype)
            pools.append(pool)
        order = torch.randperm(sum(pages))
        for b, count in enumerate(pages):
            own, order = order[:count], order[count:]
            table[b, :count] = own
            for pool, which in zip(pools, (k, v)):
                whole = torch.zeros(count * page, *pool.shape[2:], device="cuda", dtype=pool.dtype)
                whole[:keys[b]] = which[b]
                pool[own.cuda()] = whole.view(count, page, *pool.shape[2:])
        if not varlen:
            o, lse = ferroflash.flash_attn_with_kvcache(q[0][None], *pools, cache_seqlens=integers(keys), block_table=table.cuda(),
                                                        return_softmax_lse=True, **options)
            return [(o[0], lse[0])]
        o, lse = ferroflash.flash_attn_with_kvcache(torch.cat(q), *pools, cache_seqlens=integers(keys), block_table=table.cuda(),
                                                    cu_seqlens_q=starts(counts), max_seqlen_q=max(counts),
                                                    return_softmax_lse=True, **options)
    return list(zip(o.split(counts), lse.split(counts, dim=1)))


def equal(a, b):
    return all(torch.equal(x.contiguous().view(torch.int16 if x.element_size() == 2 else torch.int32),
                           y.contiguous().view(torch.int16 if y.element_size() == 2 else torch.int32)) for x, y in zip(a, b))


def among(rng, case, own):
    """The result of `own`, a part of the case's sequence, at a drawn place of the drawn batch."""
    place = rng.randint(0, len(case["others"]))
    put = lambda of: case["others"][:place] + [of] + case["others"][place:]
    return attention(case, put(own), put(case["own"]), True)[place]


def differs(rng, case):
    """Whether bits of the sequence depend on anything else."""
    own = case["own"]
    (o, lse), = attention(case, [own], [own], False)
    if case["invariance"] == "batch":
        return not equal((o, lse), among(rng, case, own))
    at = own["first"]
    while at < own["last"]:
        end = rng.randint(at + 1, own["last"])
        here = slice(at - own["first"], end - own["first"])
        if not equal((o[here], lse[:, here]), among(rng, case, {**own, "first": at, "last": end})):
            return True
        at = end
    return False


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out")
    ap.add_argument("--batches", type=int, default=200)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--seconds", type=float, default=200, help="begin no further batch after this number of seconds")
    args = ap.parse_args()
    rng, began, failures, refused, done, said = random.Random(args.seed), time.monotonic(), [], [], 0, time.monotonic()
    for index in range(args.batches):
        if time.monotonic() - began > args.seconds:
            break
        case = drawn(rng, index)
        try:
            differ = differs(rng, case)
        except ferroflash.Unsupported as reason:
            refused.append(f"{case}: {reason}")
            continue
        done += 1
        if differ:
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
