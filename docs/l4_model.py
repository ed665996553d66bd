#!/usr/bin/env python3
"""A model of forward attention on an L4, from the machine code of each entry. It computes the figures of docs/l4-model.md.

    cargo xtask ptx-stats --json > stats.json
    python3 docs/l4_model.py stats.json            # tables for the L4; for an H200, beside measurements
    python3 docs/l4_model.py stats.json --write    # the same into docs/l4-model.md

Every number that is not in stats.json is a constant below, with its source. One of them, BLOCK, is fitted to the H200's measurements; nothing
is fitted to the L4. `--hmma 32` asks what would change if the L4 accumulated in f32 at half its data-sheet rate, as GeForce cards do.
"""
import contextlib
import heapq
import io
import json
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).with_name("l4-model.md")
# Times of an H200, for portable kernels, which an L4 runs. Each run has its device, commit and command.
ROWS = PAGE.with_name("l4_rows.json")
BEST = 4  # entries that the page shows for each shape

# Cycles of one sub-core (a quarter of an SM) that a warp's instruction takes on its pipe, by SASS opcode.
# An SM's shared memory moves 128 bytes per cycle, so 512 bytes take 4 cycles. Four sub-cores share it, hence 16.
SHARED = {"LDSM": 16, "LDGSTS": 16, "LDS": 4, "STS": 4}
MUFU = 8  # 16 lanes per SM (CUDA programming guide, arithmetic throughput, 8.9 and 9.0)
# 64 lanes per SM (the table above).
HALF_RATE = {"FMNMX", "F2FP", "IADD3", "VIADD", "ISETP", "FSETP", "LOP3", "LEA", "SEL", "FSEL", "MOV", "PRMT", "SHF"}
RARE = {"FMUL", "FADD", "SHFL"}  # occur only in the branch that rescales O, which is not taken after the maximum has settled


@dataclass
class Card:
    name: str
    target: str
    sms: int
    clock: float  # GHz, boost of the data sheet
    hmma: float  # cycles of a sub-core for one m16n8k16 with f32 accumulators
    dram: float  # GB/s
    launch: float  # us: an empty launch, and the first loads


# 121 TFLOP/s of the data sheet (242 with sparsity) = 58 SMs x 4 x 2.04 GHz x 256 FLOP: 4096 FLOP take 16 cycles.
L4 = Card("L4", "sm_89", 58, 2.04, 16.0, 300, 1.5)
# 6.0 (profiler) to 6.25 (clock64) measured; 1.98 GHz is the clock before the power limit.
H200 = Card("H200", "sm_90", 132, 1.98, 6.1, 4800, 1.5)
OTHER = 0.9  # measured on the H200: cycles that any other instruction adds to a stream of HMMA
# Cycles of a block outside its main loop: parameters, Q and the first stage from memory, the first rescale, the epilogue. Fitted: with 5000,
# lengths of 512 and of 2048 and more are off by equal factors on the H200.
BLOCK = 5000
WIDEST = 256  # the largest head dim at which no two warps share rows
NAME = re.compile(r"fwd_(b?f16)_d(\d+)_(full|causal|local)_(\d+)x(\d+)(?:_k(\d))?$")


class Entry:
    """One entry on one card: the work of a warp for one stage of keys."""

    def __init__(self, row, siblings):
        m = NAME.match(row["entry"])
        self.name, self.dtype, self.mask, self.threads = row["entry"], m[1], m[3], row["threads"]
        self.d, self.tile_m, self.tile_n = int(m[2]), int(m[4]), int(m[5])
        keys, self.smem = int(m[6] or 1), row["dynamic_smem_bytes"]
        self.warps, self.blocks = self.threads // 32, row["blocks_per_sm"]
        w, n, d = self.tile_m * keys // 16 // self.warps, self.tile_n // 16 // keys, self.d // 16
        self.products, self.sums = 4 * w * n * d, w * n  # HMMA of S = Q K^T and O += P V; HMMA of the row sums
        step = self.products + self.sums
        self.overlapped = self.smem > (self.tile_m + 4 * self.tile_n) * self.d * 2
        # The disassembler's main loop is one or two stages. If ptxas merged loops, the full mask's code has equal counts.
        for counts in [row["main_loop"]] + [r["main_loop"] for r in siblings]:
            if counts.get("HMMA", 0) % step == 0 and counts.get("HMMA", 0) > 0:
                times = counts["HMMA"] // step
                break
        else:
            raise ValueError(f"{self.name}: no loop of {step} HMMA")
        common = {k: v / times for k, v in counts.items() if k not in RARE}
        common["MUFU"] = min(common["MUFU"], 8 * w * n)  # one exponential an element; more is the rescale, or softcap
        self.hmma, self.ldsm = step, common["LDSM"]
        self.others = sum(common.values()) - step
        self.pipes = {
            "issue": step + self.others,
            "alu": sum(2 * v for k, v in common.items() if k in HALF_RATE),
            "mufu": MUFU * common["MUFU"],
            "shared": sum(SHARED.get(k, 0) * v for k, v in common.items()),
        }

    def step(self, card):
        """Cycles of a sub-core for one warp and one stage: (least, most). Least: all pipes run in parallel. Most: every other
        instruction delays the tensor cores, as on the H200."""
        tensor, slowest = card.hmma * self.hmma, max(self.pipes.values())
        return max(tensor, slowest), max(tensor + OTHER * self.others, slowest)

    def lone(self, card):
        """`step` for a warp that has its sub-core to itself. In the sequential schedule, no product runs beside the softmax: exponentials and
        conversions take their pipes' time, and each of the three steps (maximum, exponential, conversion) has a latency of 30 cycles."""
        least, most = self.step(card)
        if not self.overlapped:
            least = max(least, card.hmma * self.hmma + max(self.pipes["mufu"], self.pipes["alu"]) + 90)
        return least, max(least, most)

    def time(self, card, shape):
        """Microseconds for a shape: (least, most), from a list schedule of its blocks, and its DRAM traffic."""
        b, hq, hk, s, causal = shape
        blocks = math.ceil(s / self.tile_m)
        steps = [math.ceil(min(s, (i + 1) * self.tile_m if causal else s) / self.tile_n) for i in range(blocks)]
        order = sorted((x for x in steps for _ in range(b * hq)), reverse=causal)
        resident = min(self.blocks, math.ceil(len(order) / card.sms))
        per_sub_core = math.ceil(self.warps / 4)
        cycles = self.lone(card) if resident * per_sub_core == 1 else self.step(card)
        times = []
        for c in cycles:
            slots = [0.0] * (card.sms * resident)
            for x in order:
                heapq.heapreplace(slots, slots[0] + BLOCK + x * c * per_sub_core * resident)
            times.append(max(slots) / card.clock / 1e3)
        dram = 2 * self.d * s * b * (2 * hq + 2 * hk) / card.dram / 1e3
        return [card.launch + max(t, dram) for t in times], dram


def flops(d, shape):
    b, hq, _, s, causal = shape
    return 4 * b * hq * s * s * d / (2 if causal else 1)


def entries(rows, card, dtype="f16"):
    rows = [r for r in rows if r["target"] == card.target and f"_{dtype}_" in r["entry"]]
    loops = {r["entry"]: r for r in rows}
    full = lambda r: [loops[n] for n in [re.sub("causal|local", "full", r["entry"])] if n in loops]
    # The planner's entries. Other entries have longer names. Above WIDEST, two warps share 16 rows, which the model omits.
    known = lambda name: (m := NAME.match(name)) and m[3] != "local" and int(m[2]) <= WIDEST
    return [Entry(r, full(r)) for r in rows if known(r["entry"])]


SUITES = [  # (head dim, (batch, query heads, key heads, length, causal)): the headline and prefill suites, D = 96 and 192 beside
    *((64, (b, 8, 8, 512, c)) for b in (1, 2) for c in (False, True)),
    *((64, (b, 32, 32, s, c)) for b, s in ((32, 512), (8, 2048), (2, 8192)) for c in (False, True)),
    *((96, (4, 16, 16, 4096, c)) for c in (False, True)),
    *((128, (b, 16, 16, s, c)) for b, s in ((32, 512), (8, 2048), (2, 8192)) for c in (False, True)),
    (128, (1, 16, 16, 16384, True)),
    (128, (2, 32, 8, 4096, True)),
    *((192, (4, 16, 16, 4096, c)) for c in (False, True)),
    *((256, (4, 8, 8, 4096, c)) for c in (False, True)),
]


def measured(kind):
    """The rows of one kind, `prefill` or `decode`, that an H200 has measured. The prefill rows of the headline shapes ran in CUDA graphs."""
    for run in json.loads(ROWS.read_text())[kind]:
        yield from run["rows"]


def shape_name(d, shape):
    b, hq, hk, s, causal = shape
    return f"{b},{hq}{'' if hk == hq else f'/{hk}'},{s},{d} {'causal' if causal else 'full'}"


def per_warp(rows):
    every = entries(rows, L4)
    print("| entry | regs x threads | KiB | blocks/SM | warps/sub-core | HMMA | others | tensor | issue | alu | mufu | shared | useful | L2 B/cycle/SM |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    registers = {r["entry"]: r["registers"] for r in rows if r["target"] == L4.target}
    for e in every:
        p = e.pipes
        fits = e.blocks > 0
        rate = e.tile_n * e.d * 4 / (L4.hmma * e.hmma * e.warps / 4)
        print(f"| `{e.name[8:]}` | {registers[e.name]} x {e.threads} | {e.smem / 1024:.0f} | {e.blocks if fits else '-'} | {e.blocks * e.warps / 4:g} "
              f"| {e.hmma} | {e.others:.0f} | {L4.hmma * e.hmma:.0f} | {p['issue']:.0f} | {p['alu']:.0f} | {p['mufu']:.0f} | {p['shared']:.0f} "
              f"| {e.products / e.hmma:.1%} | {rate:.1f} |")


def per_shape(rows):
    every = entries(rows, L4)
    print("| B,H,S,D | entry, best first | us, least..most | TFLOP/s | DRAM us |\n|---|---|---|---|---|")
    for d, shape in SUITES:
        found = [(e.time(L4, shape), e) for e in every if e.d == d and e.blocks > 0 and e.mask == ("causal" if shape[4] else "full")]
        for ((least, most), dram), e in sorted(found, key=lambda x: sum(x[0][0]))[:BEST]:
            f = flops(d, shape) / 1e6
            print(f"| {shape_name(d, shape)} | `{e.name[8:]}` | {least:.1f}..{most:.1f} | {f / least:.0f}..{f / most:.0f} | {dram:.1f} |")


def against_h200(rows):
    """All pairs, and their summary."""
    print("| B,H,S,D | entry | predicted us | measured us | measured/predicted |\n|---|---|---|---|---|")
    groups = {"at most 32 heads of 512": [], "64 heads and more, or longer": []}
    by_name = {e.name: e for e in entries(rows, H200)}
    for name, d, shape, us in measured("prefill"):
        e = by_name.get(name)
        if e is None or e.blocks == 0:
            continue
        (_, most), _ = e.time(H200, shape)
        small = shape[0] * shape[1] <= 32 and shape[3] == 512
        groups[list(groups)[0 if small else 1]].append(math.log(us / most))
        print(f"| {shape_name(d, shape)} | `{name[4:]}` | {most:.1f} | {us:.1f} | {us / most:.2f} |")
    return "\n".join(summary(name, x) for name, x in groups.items())


def summary(name, x):
    mean = sum(x) / len(x)
    spread = math.sqrt(sum((y - mean) ** 2 for y in x) / len(x))
    return f"{name}: geomean {math.exp(mean):.2f}, standard deviation {spread:.0%}, from {math.exp(min(x)):.2f} to {math.exp(max(x)):.2f}, {len(x)} pairs"


def printed(make):
    """The text that a function prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        result = make()
    return out.getvalue().rstrip("\n"), result


def shown(parts):
    """Prints the parts of the page, or writes them to their places in the page."""
    if "--write" not in sys.argv:
        print("\n\n".join(parts.values()))
        return
    text = PAGE.read_text()
    for name, part in parts.items():
        start, end = f"<!-- {name} -->\n", f"\n<!-- {name}: end -->"
        before, rest = text.split(start)
        text = before + start + part + end + rest.split(end)[1]
    PAGE.write_text(text)


def main():
    stats = json.loads(Path(sys.argv[1]).read_text())
    if "--hmma" in sys.argv:
        L4.hmma = float(sys.argv[sys.argv.index("--hmma") + 1])
    pairs, fit = printed(lambda: against_h200(stats))
    parts = {"fit": f"```\n{fit}\n```", "pairs": pairs, "per warp": printed(lambda: per_warp(stats))[0], "per shape": printed(lambda: per_shape(stats))[0]}
    shown(parts)


if __name__ == "__main__":
    main()
