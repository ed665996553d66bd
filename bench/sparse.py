"""Times sparse MLA (a list of rows of a latent cache for each query) beside FlashMLA on the same tensors, and beside the time of its
bytes and products.

    python3 sparse.py --out sparse.json                        # decode and prefill of 16, 64 and 128 heads, lists of 2048, bf16
    python3 sparse.py --heads 128 --topk 512 2048 4096
    python3 sparse.py --heads 64 --config sparse_mla_bf16_d576_full_64x32_s4

The rows are (keys, 1, 576): the values are their first 512 columns. Each list has rows in random order. FlashMLA runs if it is
installed, on 64 heads and more. Each result is compared with float64. The L2 cache is cold. `bytes` is the time to move each row that a
list names once, the queries and the output at --gb-per-s, `products` the time of the products at --tflops.
"""
import functools
import importlib.util

import torch

import report
from ferroflash.mla import ListedLaunch
from mla import DTYPES, SCALE, VALUES, WIDTH, conclude, measured, options

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
    launch = ListedLaunch(q, rows[None], o, indices, lse=lse, scale=SCALE, config=args.config)

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
    error = lambda o: (o[:JUDGED].double() - want).abs().max().item()
    checks = report.judged(calls, report.within(2 * error(attend(*some, q.dtype)) + 1e-5, error))
    named = indices.unique().numel()
    size = 2 * (named * WIDTH + queries * heads * (WIDTH + VALUES)) + 4 * queries * topk
    flops = 2 * queries * heads * topk * (WIDTH + VALUES)
    label = f"{dtype} h{heads} {queries}x{topk} of {keys}"
    return measured(f"sparse{heads}", label, dtype, calls, checks, launch, size, flops, args, rng)


def main():
    parser = options(__doc__)
    parser.add_argument("--topk", nargs="+", type=int, default=[2048])
    args = parser.parse_args()
    todo = lambda rng: [(f"sparse{heads}", f"{dtype} h{heads} {queries}x{topk} of {keys}",
                         functools.partial(run, queries, keys, heads, topk, dtype, args, rng))
                        for dtype in args.dtypes for heads in args.heads for topk in args.topk for queries, keys in SHAPES]
    conclude(todo, args)


if __name__ == "__main__":
    main()
