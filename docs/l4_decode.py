#!/usr/bin/env python3
"""A model of decoding on an L4, from the golden figures of each entry. It computes the section "Decode" of docs/l4-model.md.

    python3 docs/l4_decode.py            # its tables
    python3 docs/l4_decode.py --write    # writes them into docs/l4-model.md

It needs no GPU and no compiler: tests/golden has the instruction counts, l4_rows.json the cold launches of one query on a dense cache of an
H200. Cards and pipes come from l4_model.py. Two constants are fitted to the H200, none to the L4.
"""
import math
import re
import sys

from l4_model import H200, HALF_RATE, L4, MUFU, OTHER, PAGE, SHARED, measured, printed, shown

GOLDEN = PAGE.parents[1] / "tests/golden/ptx-stats.txt"
LINE = re.compile(r"(decode_\S+) (sm_\d+): .* main loop (\d+): (.*)")
TILE = 16  # keys of a tile, which is one turn of the main loop
LONE = 90  # cycles that a turn takes on top where a warp has its sub-core to itself: three dependent steps of 30, as in l4_model.py
SUITE = (32, 8, 128)  # query heads, key heads, head dim of the measured suite


def tiles(card):
    """For each entry on a card: cycles of a sub-core for one tile of one warp, HMMA, other instructions, the pipes."""
    found = {}
    for line in GOLDEN.read_text().splitlines():
        m = LINE.match(line)
        if m is None or m[2] != card.target:
            continue
        words = m[4].split()
        counts = dict(zip(words[::2], map(int, words[1::2])))
        hmma, others = counts["HMMA"], int(m[3]) - counts["HMMA"]
        # All instructions of the loop, taken or not, also the branches that rescale O and that change pages.
        pipes = {
            "issue": int(m[3]),
            "alu": sum(2 * n for op, n in counts.items() if op in HALF_RATE),
            "mufu": MUFU * counts["MUFU"],
            "shared": sum(SHARED.get(op, 0) * n for op, n in counts.items()),
        }
        cycles = max(card.hmma * hmma + OTHER * others, *pipes.values()) + LONE
        found[m[1]] = cycles, hmma, others, pipes
    return found


def work(card, cycles, batch, keys, key_heads, row_blocks):
    """Microseconds of the SMs, if the splits give all SMs equal work."""
    turns = batch * key_heads * row_blocks * math.ceil(keys / TILE)
    return math.ceil(turns / (card.sms * 4)) * cycles / card.clock / 1e3


def megabytes(batch, keys, key_heads, head_dim, element):
    return batch * keys * key_heads * head_dim * 2 * element / 1e6


def fitted():
    """The constant in microseconds, and the share of the data sheet's bandwidth, that give the smallest errors of logarithms."""
    _, key_heads, head_dim = SUITE
    points = [(megabytes(b, k, key_heads, head_dim, 2), us) for _, b, k, us in measured("decode")]
    off = lambda fixed, share: sum(math.log(us / (fixed + mb * 1e3 / (share * H200.dram))) ** 2 for mb, us in points)
    return min(((f / 10, s / 100) for f in range(150) for s in range(60, 101)), key=lambda pair: off(*pair))


def held(fixed, share):
    """Every pair, and their summary."""
    print("| B,K | entry | MB | predicted us | measured us | measured/predicted |\n|---|---|---|---|---|---|")
    _, key_heads, head_dim = SUITE
    of, logs = tiles(H200), []
    for entry, b, k, us in measured("decode"):
        mb = megabytes(b, k, key_heads, head_dim, 2)
        predicted = fixed + max(mb * 1e3 / (share * H200.dram), work(H200, of[entry][0], b, k, key_heads, 1))
        logs.append(math.log(us / predicted))
        print(f"| {b},{k} | `{entry}` | {mb:.1f} | {predicted:.1f} | {us:.1f} | {us / predicted:.2f} |")
    mean = sum(logs) / len(logs)
    spread = math.sqrt(sum((x - mean) ** 2 for x in logs) / len(logs))
    return (f"fixed {fixed:.1f} us, {share:.0%} of {H200.dram} GB/s: geomean {math.exp(mean):.2f}, standard deviation {spread:.0%}, "
            f"from {math.exp(min(logs)):.2f} to {math.exp(max(logs)):.2f}, {len(logs)} pairs")


def per_tile():
    print("| entry | HMMA | others | tensor | issue | alu | mufu | shared | bytes | GB/s of all SMs |\n|---|---|---|---|---|---|---|---|---|---|")
    for name, (cycles, hmma, others, p) in tiles(L4).items():
        m = re.match(r"decode_f16_(e4m3_)?d(\d+)_\S*$", name)
        # Entries that the planner selects for some cache on this card, which has conversion instructions.
        if m is None or (m[1] and "native" not in name and m[2] != "512"):
            continue
        size = TILE * int(m[2]) * 2 * (1 if m[1] else 2)
        rate = size / cycles * 4 * L4.sms * L4.clock
        print(f"| `{name[7:]}` | {hmma} | {others} | {L4.hmma * hmma:.0f} | {p['issue']} | {p['alu']} | {p['mufu']} | {p['shared']} | {size} "
              f"| {rate:.0f} |")


# (batch, queries, keys, (query heads, key heads, head dim), bytes of an element, entry), for entries that fit the L4's 99 KiB per block.
SHAPES = [
    *((b, 1, k, SUITE, 2, "decode_f16_d128_causal_8_tiles_w4") for b in (1, 4, 8, 16, 64) for k in (2048, 8192)),
    *((b, 1, k, SUITE, 1, "decode_f16_e4m3_d128_causal_8_tiles_native") for b in (1, 4, 8, 16, 64) for k in (2048, 8192)),
    (8, 4, 8192, SUITE, 2, "decode_f16_d128_causal_16_tiles_w4"),
    (8, 8, 8192, SUITE, 2, "decode_f16_d128_causal_16_tiles_w4"),
    (8, 1, 8192, (32, 8, 64), 2, "decode_f16_d64_causal_8_tiles"),
    (8, 1, 8192, (16, 8, 256), 2, "decode_f16_d256_causal_8_tiles"),
    (8, 1, 8192, (8, 4, 512), 2, "decode_f16_d512_local_8_rows"),
]


def per_shape(fixed, share):
    print("| B, queries, K, H, D | entry | MB | work us | DRAM us | us, least..most |\n|---|---|---|---|---|---|")
    of = tiles(L4)
    for b, queries, k, (heads, key_heads, head_dim), element, entry in SHAPES:
        rows = int(re.search(r"_(\d+)_(?:tiles|rows)", entry)[1])
        blocks = math.ceil(queries * heads // key_heads / rows)
        mb = megabytes(b, k, key_heads, head_dim, element)
        dram, own = mb * 1e3 / L4.dram, work(L4, of[entry][0], b, k, key_heads, blocks)
        least, most = fixed + max(dram, own), fixed + max(dram / share, own)
        print(f"| {b},{queries},{k},{heads}/{key_heads},{head_dim} | `{entry[7:]}` | {mb:.0f} | {own:.0f} | {dram:.0f} | {least:.0f}..{most:.0f} |")


def main():
    fixed, share = fitted()
    pairs, fit = printed(lambda: held(fixed, share))
    parts = {"decode fit": f"```\n{fit}\n```", "decode pairs": pairs, "decode per tile": printed(per_tile)[0],
             "decode per shape": printed(lambda: per_shape(fixed, share))[0]}
    shown(parts)


if __name__ == "__main__":
    main()
