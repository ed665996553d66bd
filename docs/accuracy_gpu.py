"""Errors of the kernels for products of eight bits on a GPU, against f64, on the inputs of accuracy.py and
accuracy_fp8.py. Writes a table of accuracy.md. Needs a GPU, PyTorch, and the package `ferroflash` on PYTHONPATH.

    python3 docs/accuracy_gpu.py            # the table
    python3 docs/accuracy_gpu.py --write    # into accuracy.md
"""
import numpy as np
import torch

import accuracy
import accuracy_fp8
import ferroflash
from accuracy import KINDS, exact, tables

PRECISIONS = {"`Int8F16`": "int8-f16", "`Fp8`": "fp8"}
# Few queries have kernels of their own, so those of the inputs repeat up to this number.
QUERIES = 128


def kind(name, d, keys):
    """Returns the inputs `name` of accuracy.py with this number of keys."""
    def make(rng):
        accuracy.KEYS = keys
        return accuracy.inputs(name, d, rng)
    return make


def cell(make, precision):
    sums, worst = np.zeros(2), np.zeros(2)
    for seed in range(2):
        q, k, v = make(np.random.default_rng(seed))
        rows = slice(len(q))
        queries = np.tile(q, (QUERIES // len(q), 1))
        tensors = [torch.from_numpy(x).to("cuda", torch.float16)[None, :, None] for x in (queries, k, v)]
        o, lse, _ = ferroflash.flash_attn_func(*tensors, precision=precision, return_attn_probs=True)
        want, want_lse = exact(q, k, v)
        o, lse = o[0, rows, 0].double().cpu().numpy(), lse[0, 0, rows].double().cpu().numpy()
        sums += np.abs(o - want).sum(), np.abs(want).sum()
        worst = np.maximum(worst, [np.abs(o - want).max() / np.abs(want).max(), np.abs(lse - want_lse).max()])
    return f"{sums[0] / sums[1]:.4f}, {worst[0]:.3f}, {worst[1]:.3f}"


def rows():
    head = ["| inputs | head dim | keys | " + " | ".join(PRECISIONS) + " |", "|---" * (3 + len(PRECISIONS)) + "|"]
    cases = [(name, d, 2048, kind(name, d, 2048)) for d in (64, 128) for name in KINDS]
    for keys in (4096, 16384, 65536):
        cases += [(name, 128, keys, kind(name, 128, keys)) for name in ("normal", "outlier channels", "growing keys")]
        cases += [("equal scores", 128, keys, lambda rng, keys=keys: accuracy_fp8.equal_scores(keys, rng))]
    cases += [("needle", 128, 16384, lambda rng: accuracy_fp8.needle(16384, rng))]
    return "\n".join(head + [
        f"| {name} | {d} | {keys} | " + " | ".join(cell(make, precision) for precision in PRECISIONS.values()) + " |"
        for name, d, keys, make in cases])


if __name__ == "__main__":
    tables([("gpu", rows)])
