#!/usr/bin/env python3
"""The predictions of the L4 model (l4_model.py, l4_decode.py, l4_backward.py) for the shapes that `ferroflash bench` measures. `ferroflash report`
shows an L4's measurements beside them.

    cargo xtask ptx-stats --json > target/ptx-stats.json
    python3 docs/l4_predict.py           # writes host/cli/src/report/l4.json
    python3 docs/l4_predict.py --check   # fails where that file is of other figures or shapes

Of each shape of each suite, in the suite's order: microseconds by kernel, [least, most]; of a backward pass, by the kernel of dK and dV. Empty where the model says nothing: windows,
lengths of queries and keys that differ, lengths that are drawn, prompts on a cache.
"""
import json
import math
import re
import sys

import l4_backward
from l4_decode import GOLDEN, TILE, fitted, megabytes, tiles
from l4_model import L4, PAGE, WIDEST, entries

ROOT = PAGE.parents[1]
STATS = ROOT / "target/ptx-stats.json"
SUITES = [ROOT / "host/cli/src/bench" / name for name in ("suites.json", "serving.json", "backward.json")]
OUT = ROOT / "host/cli/src/report/l4.json"
BLOCK = 99 << 10  # bytes of shared memory that a block of an L4 has at most
SMEM = re.compile(r"(decode_\S+) sm_89: .* (\d+) bytes of shared memory")
DECODE = re.compile(r"decode_(b?f16)_(e4m3_)?d(\d+)_(causal|local)_(\d+)_")


def rounded(least, most):
    return [float(f"{x:.4g}") for x in (least, most)]


def forward(shape, every):
    """A forward shape on each entry of the smallest head dim that holds it."""
    head_dim, same = shape["head_dim"], shape["seqlen_q"] == shape["seqlen_k"]
    held = min((e.d for e in every if e.d >= head_dim), default=WIDEST + 1)
    if "window" in shape or not same or held > WIDEST:
        return {}
    causal = shape.get("causal", False)
    problem = (shape["batch"], shape["heads_q"], shape["heads_k"], shape["seqlen_q"], causal)
    of = [e for e in every if e.d == held and e.blocks > 0 and e.mask == ("causal" if causal else "full")]
    return {e.name: rounded(*e.time(L4, problem)[0]) for e in of}


def decoding(shape, kernels, fixed, share):
    """A shape of few queries on a cache, on each kernel for its types and head dim."""
    sequences, head_dim = shape["sequences"], shape["head_dim"]
    if not isinstance(sequences, list) or max(q for _, q, _ in sequences) > 8 or "shared" in shape or "latent" in shape:
        return {}
    dtype, eight = shape.get("dtype", "f16"), "kv_dtype" in shape
    group, window, found = shape["heads_q"] // shape["heads_k"], shape.get("window"), {}
    seen = lambda keys: min(keys, window[0] + 1) if window else keys
    for name, (cycles, *_) in kernels.items():
        m = DECODE.match(name)
        if m is None or (m[1], bool(m[2]), int(m[3])) != (dtype, eight, head_dim):
            continue
        turns = sum(n * shape["heads_k"] * math.ceil(q * group / int(m[5])) * math.ceil(seen(keys) / TILE) for n, q, keys in sequences)
        own = math.ceil(turns / (L4.sms * 4)) * cycles / L4.clock / 1e3
        dram = sum(megabytes(n, seen(keys), shape["heads_k"], head_dim, 1 if eight else 2) for n, _, keys in sequences) * 1e3 / L4.dram
        found[name] = rounded(fixed + max(dram, own), fixed + max(dram / share, own))
    return found


def backward(shape, kernels):
    """A backward pass without a window, on the portable kernels."""
    if "window" in shape or shape["seqlen_q"] != shape["seqlen_k"]:
        return {}
    problem = (shape["batch"], shape["heads_q"], shape["heads_k"], shape["seqlen_q"], shape["causal"])
    parts, _ = l4_backward.times(kernels, shape["head_dim"], problem, shape["dtype"])
    columns, mask = (shape["head_dim"],) * 2, "causal" if shape["causal"] else "full"
    return {kernels["dkdv", shape["dtype"], columns, mask].name: rounded(*l4_backward.total(parts))}


def predicted(shape, every, kernels, gradients, constants):
    if "backward" in shape:
        return backward(shape["backward"], gradients)
    if "seqlen_q" in shape:
        return forward(shape, every[shape.get("dtype", "f16")])
    return decoding(shape, kernels, *constants) if "page" in shape else {}


def main():
    stats, table = json.loads(STATS.read_text()), {}
    every = {dtype: entries(stats, L4, dtype) for dtype in ("f16", "bf16")}
    fits = {m[1] for m in map(SMEM.match, GOLDEN.read_text().splitlines()) if m and int(m[2]) <= BLOCK}
    kernels, gradients, constants = {name: tile for name, tile in tiles(L4).items() if name in fits}, l4_backward.entries(L4), fitted()
    for suite, shapes in (item for path in SUITES for item in json.loads(path.read_text()).items()):
        table[suite] = [predicted(shape, every, kernels, gradients, constants) for shape in shapes]
    text = "{\n" + ",\n".join(f'"{suite}": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]" for suite, rows in table.items()) + "\n}\n"
    if "--check" not in sys.argv:
        OUT.write_text(text)
        print(f"{OUT.relative_to(ROOT)}: {sum(map(bool, sum(table.values(), [])))} of {sum(map(len, table.values()))} shapes")
    elif OUT.read_text() != text:
        sys.exit(f"{OUT.relative_to(ROOT)} differs from the model: run python3 docs/l4_predict.py")


if __name__ == "__main__":
    main()
