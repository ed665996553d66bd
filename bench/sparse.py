"""Times sparse MLA (a list of rows of a latent cache for each query) beside FlashMLA on the same tensors, and beside the time of its
bytes and products.

    python3 sparse.py --out sparse.json                        # decode and prefill of 16, 64 and 128 heads, lists of 2048, bf16
    python3 sparse.py --heads 128 --topk 512 2048 4096
    python3 sparse.py --heads 64 --config sparse_mla_bf16_d576_full_64x32_s4

The rows are (keys, 1, 576): the values are their first 512 columns. Each list has rows in random order. FlashMLA runs if it is
installed, on 64 heads and more. Each result is compared with float64. The L2 cache is cold. `bytes` is the time to move each row that a
list names once, the queries and the output at --gb-per-s, `products` the time of the products at --tflops.
"""
import argparse
import functools
import importlib.util
import random
import sys

import torch

import compare
import report
from ferroflash import mla
from mla import DTYPES, SCALE, VALUES, WIDTH

# queries, rows of the cache
SHAPES = [(1, 32768), (16, 32768), (128, 32768), (128, 131072), (1024, 32768), (4096, 32768)]
# Queries whose results are compared with float64
JUDGED = 64


def attend(q, rows, indices, kind):
    """Computes attention of q (queries, heads, 576) with every step in `kind`."""
    out = torch.empty(*q.shape[:2], VALUES, dtype=kind, device=q.device)
    for i, of in enumerate(indices[:, 0].long()):
        k = rows[of, 0].to(kind)
        out[i] = ((q[i].to(kind) @ k.T) * SCALE).softmax(-1) @ k[:, :VALUES]
    return out


def contenders(q, rows, indices, args):
    """Returns {name: call}, and FerroFlash's launch. Each call returns O as (queries, heads, 512)."""
    o = torch.full((*q.shape[:2], VALUES), torch.nan, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    launch = mla.ListedLaunch(q, rows[None], o, indices, lse=lse, scale=SCALE, config=args.config)

    def ours():
        launch.enqueue()
        return o

    calls = {"ferroflash": ours}
    if q.shape[1] >= 64 and q.dtype == torch.bfloat16 and importlib.util.find_spec("flash_mla") is not None:
        import flash_mla
        calls["flash_mla"] = lambda: flash_mla.flash_mla_sparse_fwd(q, rows, indices, SCALE, VALUES)[0]
    return calls, launch


def run(queries, keys, heads, topk, dtype, args, rng):
    """Returns the report's rows of one shape."""
    make = lambda *shape: torch.randn(*shape, dtype=DTYPES[dtype], device="cuda")
    q, rows = make(queries, heads, WIDTH), make(keys, 1, WIDTH)
    indices = torch.stack([torch.randperm(keys, device="cuda")[:topk] for _ in range(queries)]).int()[:, None]
    calls, launch = contenders(q, rows, indices, args)
    some = (q[:JUDGED], rows, indices[:JUDGED])
    want = attend(*some, torch.float64)
    tolerance = 2 * (attend(*some, q.dtype).double() - want).abs().max().item() + 1e-5
    errors = report.judged(calls, lambda _, o: (o[:JUDGED].double() - want).abs().max().item())
    medians, times = report.timed(calls, args.rounds, rng, lambda call: compare.measure(call, "cold")[0])
    named = indices.unique().numel()
    size = 2 * (named * WIDTH + queries * heads * (WIDTH + VALUES)) + 4 * queries * topk
    flops = 2 * queries * heads * topk * (WIDTH + VALUES)
    us = medians["ferroflash"]
    floor = {"bytes": size / args.gb_per_s / 1e3, "products": flops / args.tflops / 1e6}
    label = f"{dtype} h{heads} {queries}x{topk} of {keys}"
    bad = [name for name, error in errors.items() if not error <= tolerance]
    entry = launch.describe()["entry"]
    print(f"{label:32} " + "  ".join(f"{name} {t:.1f}" for name, t in medians.items())
          + f"  bytes {floor['bytes']:.1f} products {floor['products']:.1f}  {flops / us / 1e6:.0f} TFLOP/s  {entry}"
          + f" grid {launch.describe()['grid']}" + (f"  WRONG {bad}" if bad else ""), flush=True)
    return [{"suite": f"sparse{heads}", "label": label, "inputs": "normal", "dtype": dtype, "timing": "cold", "peer": name, "us": t,
             "rounds_us": times[name], "ratio": t / us, "passed": name not in bad, "error": errors[name], "tolerance": tolerance,
             **floor, "entry": entry if name == "ferroflash" else None} for name, t in medians.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", nargs="+", type=int, default=[16, 64, 128])
    parser.add_argument("--topk", nargs="+", type=int, default=[2048])
    parser.add_argument("--dtypes", nargs="+", default=["bf16"], choices=DTYPES)
    parser.add_argument("--config", help="FerroFlash's kernel [default: the planner's choice]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gb-per-s", type=float, help="memory speed [default: the card's]")
    parser.add_argument("--tflops", type=float, default=619, help="highest throughput of mma.sync; the default is an H200's")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--out", help="JSON file to write")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    args.gb_per_s = args.gb_per_s or 1e3 * report.bandwidth()
    todo = [(f"sparse{heads}", f"{dtype} h{heads} {queries}x{topk} of {keys}",
             functools.partial(run, queries, keys, heads, topk, dtype, args, rng))
            for dtype in args.dtypes for heads in args.heads for topk in args.topk for queries, keys in SHAPES]
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "gb_per_s": args.gb_per_s, "tflops": args.tflops}
    sys.exit(report.run(todo, args, about, torch.cuda.empty_cache))


if __name__ == "__main__":
    main()
