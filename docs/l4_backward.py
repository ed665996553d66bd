#!/usr/bin/env python3
"""A model of the portable backward pass on an L4 and an A100, from the golden figures of each entry. It computes the section "Backward" of
docs/l4-model.md.

    python3 docs/l4_backward.py            # its tables
    python3 docs/l4_backward.py --write    # writes them into docs/l4-model.md

It needs no GPU and no compiler: tests/golden has the instruction counts, l4_rows.json an H200's launches. Cards, pipes and the arithmetic come
from l4_model.py; nothing is fitted here.
"""
import heapq
import json
import math
import re
from dataclasses import dataclass, field

from l4_model import BLOCK, H200, HALF_RATE, L4, MUFU, OTHER, PAGE, SHARED, Card, measured, printed, shape_name, shown, summary

GOLDEN = PAGE.parents[1] / "tests/golden/ptx-stats.txt"
SHAPES = PAGE.parents[1] / "host/cli/src/bench/backward.json"
LINE = re.compile(r"(bwd_(dkdv|dq)_(b?f16)_d(\d+)(?:x(\d+))?_(full|causal)_(\d+)x(\d+)) (sm_\d+): (\d+) registers, (\d+) bytes.* main loop (\d+): (.*)")
# 312 TFLOP/s of the data sheet = 108 SMs x 4 x 1.41 GHz x 512 FLOP: 4096 FLOP take 8 cycles. The card with 80 GB.
A100 = Card("A100", "sm_80", 108, 1.41, 8.0, 2039, 1.5)
# Bytes of shared memory per SM, and threads per SM (CUDA programming guide, compute capabilities 8.9, 8.0 and 9.0).
LIMITS = {"sm_89": (100 << 10, 1536), "sm_80": (164 << 10, 2048), "sm_90": (228 << 10, 2048)}
REGISTERS, RESERVED = 65536, 1024  # registers per SM; bytes of shared memory that the system takes of each block
KINDS = ("dkdv", "dq")  # four products: S, dP, dV, dK; three products: S, dP, dQ
SUITE = 10  # FLOP per query, key and column: five products, as `ferroflash bench` counts them


@dataclass
class Entry:
    """One entry on one card: the work of a warp for one stage."""

    card: Card
    name: str
    kind: str
    dtype: str
    d: int
    d_v: int
    mask: str
    tile_m: int
    tile_n: int
    registers: int
    smem: int
    hmma: int
    others: int
    pipes: dict = field(repr=False)

    @property
    def warps(self):
        """A block's products of one stage, over those of a warp."""
        columns = 2 * self.d + 2 * self.d_v if self.kind == "dkdv" else 2 * self.d + self.d_v
        return self.tile_m // 16 * (self.tile_n // 8) * (columns // 16) // self.hmma

    @property
    def blocks(self):
        """Blocks per SM. Registers are allocated for warps, in units of 8 per thread."""
        smem, threads = LIMITS[self.card.target]
        of_registers = REGISTERS // (math.ceil(self.registers / 8) * 8 * self.warps * 32)
        return min(of_registers, smem // (self.smem + RESERVED), threads // (self.warps * 32))

    def step(self, lone):
        """Cycles of a sub-core for one warp and one stage, (least, most), as in l4_model.py. With `lone`, a warp has its sub-core to itself."""
        tensor, slowest = self.card.hmma * self.hmma, max(self.pipes.values())
        least, most = max(tensor, slowest), max(tensor + OTHER * self.others, slowest)
        if lone:
            least = max(least, tensor + max(self.pipes["mufu"], self.pipes["alu"]) + 90)
        return least, max(least, most)

    def time(self, shape):
        """Microseconds for a shape, (least, most), without DRAM: a list schedule of its blocks."""
        b, hq, hk, s, causal = shape
        of_keys = self.kind == "dkdv"
        steps = []
        for i in range(math.ceil(s / self.tile_m)):
            first, end = i * self.tile_m, min(s, (i + 1) * self.tile_m)
            seen = (0, s) if not causal else (first, s) if of_keys else (0, end)
            steps.append(math.ceil(seen[1] / self.tile_n) - seen[0] // self.tile_n)
        turns, heads = (hq // hk, hk) if of_keys else (1, hq)
        order = sorted((x * turns for x in steps for _ in range(b * heads)), reverse=causal)
        resident, per_sub_core = min(self.blocks, math.ceil(len(order) / self.card.sms)), math.ceil(self.warps / 4)
        times = []
        for c in self.step(resident * per_sub_core == 1):
            slots = [0.0] * (self.card.sms * resident)
            for x in order:
                heapq.heapreplace(slots, slots[0] + BLOCK + x * c * per_sub_core * resident)
            times.append(max(slots) / self.card.clock / 1e3)
        return times


def entries(card):
    """The portable kernels of a card without parameters of masks and scores, by kind, dtype, columns and mask."""
    found = {}
    for m in filter(None, map(LINE.match, GOLDEN.read_text().splitlines())):
        if m[9] != card.target:
            continue
        counts = dict(zip(m[13].split()[::2], map(int, m[13].split()[1::2])))
        pipes = {
            "issue": int(m[12]),
            "alu": sum(2 * n for op, n in counts.items() if op in HALF_RATE),
            "mufu": MUFU * counts["MUFU"],
            "shared": sum(SHARED.get(op, 0) * n for op, n in counts.items()),
        }
        d, d_v, hmma = int(m[4]), int(m[5] or m[4]), counts["HMMA"]
        e = Entry(card, m[1], m[2], m[3], d, d_v, m[6], int(m[7]), int(m[8]), int(m[10]), int(m[11]), hmma, int(m[12]) - hmma, pipes)
        found[e.kind, e.dtype, (d, d_v), e.mask] = e
    return found


def megabytes(d, shape):
    """MB that delta, dK and dV, and dQ move between DRAM and the SMs: each tensor once, and 12, 8 and 8 bytes per query beside them."""
    b, hq, hk, s, _ = shape
    q, k, beside = 2 * d * s * b * hq / 1e6, 2 * d * s * b * hk / 1e6, s * b * hq / 1e6
    return [2 * q + 12 * beside, 2 * q + 4 * k + 8 * beside, 3 * q + 2 * k + 8 * beside]


def times(of, d, shape, dtype="f16"):
    """Microseconds, (least, most), of delta, of dK and dV, and of dQ; and of their DRAM traffic."""
    both = [of[kind, dtype, (d, d), "causal" if shape[4] else "full"] for kind in KINDS]
    card = both[0].card
    drams = [mb * 1e3 / card.dram for mb in megabytes(d, shape)]
    own = [(0.0, 0.0), *(e.time(shape) for e in both)]
    return [[card.launch + max(t, dram) for t in kernel] for kernel, dram in zip(own, drams)], drams


def total(parts):
    return [sum(part[i] for part in parts) for i in (0, 1)]


def flops(d, shape):
    b, hq, _, s, causal = shape
    return SUITE * b * hq * s * s * d / (2 if causal else 1)


def shapes():
    """The shapes of `ferroflash bench --suite backward` without a window: name, head dim and shape."""
    for of in (row["backward"] for row in json.loads(SHAPES.read_text())["backward"]):
        if "window" not in of:
            yield of["head_dim"], (of["batch"], of["heads_q"], of["heads_k"], of["seqlen_q"], of["causal"])


def against_h200():
    """All pairs, and their summary."""
    print("| B,H,S,D | delta us | dK, dV us | dQ us | predicted us | measured us | measured/predicted |\n|---|---|---|---|---|---|---|")
    of, logs = entries(H200), []
    for d, shape, rate in measured("backward"):
        parts, _ = times(of, d, shape)
        (_, most), us = total(parts), flops(d, shape) / rate / 1e6
        logs.append(math.log(us / most))
        print(f"| {shape_name(d, shape)} | {' | '.join(f'{t:.0f}' for _, t in parts)} | {most:.0f} | {us:.0f} | {us / most:.2f} |")
    return summary("three launches", logs)


def per_stage():
    print("| entry | regs x threads | KiB | HMMA | others | issue | alu | mufu | shared | L4: blocks/SM, tensor, least..most | A100 |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    a100 = entries(A100)
    for key, e in entries(L4).items():
        if e.dtype != "f16":
            continue
        of_card = [f"{x.blocks}, {x.card.hmma * x.hmma:.0f}, {'..'.join(f'{c:.0f}' for c in x.step(x.blocks * x.warps <= 4))}" for x in (e, a100[key])]
        pipes = " | ".join(f"{e.pipes[pipe]:.0f}" for pipe in ("issue", "alu", "mufu", "shared"))
        print(f"| `{e.name[4:]}` | {e.registers} x {e.warps * 32} | {e.smem / 1024:.0f} | {e.hmma} | {e.others} | {pipes} | {' | '.join(of_card)} |")


def per_shape():
    print("| B,H,S,D | card | delta us | dK, dV us | dQ us | DRAM us | us, least..most | TFLOP/s |\n|---|---|---|---|---|---|---|---|")
    every = [entries(card) for card in (L4, A100)]
    for d, shape in shapes():
        for of in every:
            parts, drams = times(of, d, shape)
            (least, most), f = total(parts), flops(d, shape) / 1e6
            card = next(iter(of.values())).card
            kernels = " | ".join(f"{t:.0f}" for _, t in parts)
            print(f"| {shape_name(d, shape)} | {card.name} | {kernels} | {sum(drams):.0f} | {least:.0f}..{most:.0f} | {f / least:.0f}..{f / most:.0f} |")


def main():
    pairs, fit = printed(against_h200)
    shown({"backward fit": f"```\n{fit}\n```", "backward pairs": pairs, "backward per stage": printed(per_stage)[0],
           "backward per shape": printed(per_shape)[0]})


if __name__ == "__main__":
    main()
