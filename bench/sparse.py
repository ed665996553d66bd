"""Times sparse MLA (a list of rows of a latent cache for each query) beside FlashMLA on the same tensors, and beside the time of its
bytes and products.

    python3 sparse.py --out sparse.json                        # decode and prefill of 16, 64 and 128 heads, lists of 2048, bf16
    python3 sparse.py --heads 128 --topk 512 2048 4096
    python3 sparse.py --heads 64 --config sparse_mla_bf16_d576_full_64x32_s4
    python3 sparse.py --latents e4m3 scaled              # latents of eight bits, beside those of 16 bits

The rows are (keys, 1, 576): the values are their first 512 columns. Each list has rows in random order. FlashMLA runs if it is
installed, on 64 heads and more. Each result is compared with float64. The L2 cache is cold. `bytes` is the time to move each row that a
list names once, the queries and the output at --gb-per-s, `products` the time of the products at --tflops.

With --latents, FerroFlash reads e4m3 with one scale, or rows of 656 bytes with their own scales (bf16 only). `ferroflash_16` and
FlashMLA's prefill then read the numbers for which these rows stand, in 16 bits. `flash_mla_fp8` is FlashMLA's decode on rows of 656
bytes.
"""
import functools
import importlib.util

import torch

import report
from ferroflash.mla import ListedLaunch
from mla import DTYPES, PAGE, SCALE, VALUES, WIDTH, conclude, labelled, measured, options, stored

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


def ferroflash(q, rows, indices, config, **of_rows):
    """Returns a call of FerroFlash, and its launch."""
    o = torch.full((*q.shape[:2], VALUES), torch.nan, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    launch = ListedLaunch(q, rows[None], o, indices, lse=lse, scale=SCALE, config=config, **of_rows)

    def call():
        launch.enqueue()
        return o
    return call, launch


def contenders(q, cache, rows, indices, of_rows, args):
    """Returns {name: call}, and FerroFlash's launch on `cache`; `of_rows` says what its rows are. `rows` are of 16 bits. Each call returns
    O as (queries, heads, 512)."""
    calls = {}
    calls["ferroflash"], launch = ferroflash(q, cache, indices, args.config, **of_rows)
    if of_rows:
        calls["ferroflash_16"], _ = ferroflash(q, rows, indices, None)
    if q.shape[1] >= 64 and q.dtype == torch.bfloat16 and importlib.util.find_spec("flash_mla") is not None:
        import flash_mla
        calls["flash_mla"] = lambda: flash_mla.flash_mla_sparse_fwd(q, rows, indices, SCALE, VALUES)[0]
        if "scaled_rows" in of_rows:
            pages, (schedule, _) = cache.view(-1, PAGE, 1, cache.shape[-1]), flash_mla.get_mla_metadata()
            calls["flash_mla_fp8"] = lambda: flash_mla.flash_mla_with_kvcache(
                q[:, None], pages, None, None, VALUES, schedule, None, SCALE, is_fp8_kvcache=True, indices=indices)[0][:, 0]
    return calls, launch


def run(queries, keys, heads, topk, dtype, latents, args, rng):
    """Returns the report's rows of one shape."""
    make = lambda *shape: torch.randn(*shape, dtype=DTYPES[dtype], device="cuda")
    q, rows = make(queries, heads, WIDTH), make(keys, 1, WIDTH)
    indices = torch.stack([torch.randperm(keys, device="cuda")[:topk] for _ in range(queries)]).int()[:, None]
    cache, rows, of_rows = stored(rows, latents)
    calls, launch = contenders(q, cache, rows, indices, of_rows, args)
    some = (q[:JUDGED], rows, indices[:JUDGED])
    want = attend(*some, torch.float64)
    error = lambda o: (o[:JUDGED].double() - want).abs().max().item()
    checks = report.judged(calls, report.within(2 * error(attend(*some, q.dtype)) + 1e-5, error))
    named = indices.unique().numel()
    row = cache.shape[-1] * cache.element_size()
    size = named * row + 2 * queries * heads * (WIDTH + VALUES) + 4 * queries * topk
    flops = 2 * queries * heads * topk * (WIDTH + VALUES)
    label = labelled(f"{dtype} h{heads} {queries}x{topk} of {keys}", latents)
    return measured(f"sparse{heads}", label, dtype, calls, checks, launch, size, flops, args, rng)


def main():
    parser = options(__doc__)
    parser.add_argument("--topk", nargs="+", type=int, default=[2048])
    args = parser.parse_args()
    todo = lambda rng: [(f"sparse{heads}", labelled(f"{dtype} h{heads} {queries}x{topk} of {keys}", latents),
                         functools.partial(run, queries, keys, heads, topk, dtype, latents, args, rng))
                        for dtype in args.dtypes for latents in args.latents for heads in args.heads for topk in args.topk
                        for queries, keys in SHAPES]
    conclude(todo, args)


if __name__ == "__main__":
    main()
