"""Times MLA decoding on a latent cache beside FlashMLA, FlashInfer, flex_attention and SDPA on the same tensors, and beside the time of
its bytes.

    python3 mla.py --out mla.json                              # 16, 64 and 128 heads, bf16
    python3 mla.py --heads 128 --queries 1 2 --dtypes f16 bf16
    python3 mla.py --heads 64 128 --config mla_bf16_d576_causal_64x32_s4    # the portable kernel
    python3 mla.py --heads 64 128 --base ../before ../between --peers flash_mla    # peers: FerroFlash of other commits
    python3 mla.py --latents e4m3 scaled                    # latents of eight bits, beside those of 16 bits

The cache is (pages, 64, 1, 576): the values are the first 512 columns of the keys. FerroFlash, FlashMLA and FlashInfer read pages in
random order through a block table. FlashMLA and FlashInfer run if they are installed. flex_attention and SDPA have no pages: they read
a dense cache (sequences, 1, keys, 576), which helps them. Each result is compared with float64. The L2 cache is cold. `bytes` is the time to move the cache, queries and output at --gb-per-s. `products` is
the time of the products at --tflops, the highest throughput of mma.sync.

With --latents, FerroFlash reads e4m3 with one scale, or rows of 656 bytes with their own scales (bf16 only). `ferroflash_16` and the
other libraries then read the numbers for which these rows stand, in 16 bits. The times of eight bits have no other peer: FlashMLA has
such rows on Hopper for lists only (sparse.py).
"""
import functools
import importlib.util
import os

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

import compare
from ferroflash import kvcache
from ferroflash.planned import CAUSAL
import flashinfer_calls
import report

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
WIDTH, VALUES, PAGE, SCALE = 576, 512, 64, 192 ** -0.5
BACKENDS = {"sdpa_cudnn": SDPBackend.CUDNN_ATTENTION, "sdpa_math": SDPBackend.MATH}
PEERS = ["flash_mla", "flashinfer", "flex", *BACKENDS]
LATENTS = ["16", "e4m3", "scaled"]
# The scale of normal numbers in e4m3
EIGHT = 1 / 64
SHAPES = [(1, 1024), (16, 1024), (128, 1024), (8, 4096), (32, 4096), (16, 8192), (128, 8192), (1, 32768), (8, 32768)]


def exact(q, cache):
    """Computes float64 attention of q (batch, queries, heads, 576) on (batch, keys, 576), causal and aligned bottom-right."""
    out = torch.empty(*q.shape[:3], VALUES, dtype=torch.float64, device=q.device)
    queries, keys = q.shape[1], cache.shape[1]
    for b in range(q.shape[0]):
        k = cache[b].double()
        s = torch.einsum("qhd,kd->hqk", q[b].double(), k) * SCALE
        later = torch.arange(keys, device=q.device)[None, :] > torch.arange(queries, device=q.device)[:, None] + keys - queries
        out[b] = torch.einsum("hqk,kd->qhd", s.masked_fill(later, -torch.inf).softmax(-1), k[:, :VALUES])
    return out


def naive(q, cache):
    """Computes the same attention, with every step rounded to the type of q."""
    out = torch.empty(*q.shape[:3], VALUES, dtype=q.dtype, device=q.device)
    queries, keys = q.shape[1], cache.shape[1]
    later = torch.arange(keys, device=q.device)[None, :] > torch.arange(queries, device=q.device)[:, None] + keys - queries
    for b in range(q.shape[0]):
        s = torch.einsum("qhd,kd->hqk", q[b], cache[b]) * SCALE
        out[b] = torch.einsum("hqk,kd->qhd", s.masked_fill(later, -torch.inf).softmax(-1), cache[b][:, :VALUES])
    return out


def stored(rows, latents):
    """Returns rows (.., 576) as a cache of `latents` has them, the numbers for which they stand, in 16 bits, and the options of
    FerroFlash's launch."""
    if latents == "16":
        return rows, rows, {}
    latent, rotary = rows[..., :VALUES].float(), rows[..., VALUES:].contiguous()
    if latents == "e4m3":
        eight = (rows.float() / EIGHT).to(torch.float8_e4m3fn)
        return eight, (eight.float() * EIGHT).to(rows.dtype), {"k_descale": EIGHT}
    scales = (latent.unflatten(-1, (4, 128)).abs().amax(-1) / 448).contiguous()
    each = scales.repeat_interleave(128, -1)
    eight = (latent / each).to(torch.float8_e4m3fn)
    numbers = torch.cat([(eight.float() * each).to(rows.dtype), rotary], -1)
    return torch.cat([part.view(torch.uint8) for part in (eight, scales, rotary)], -1), numbers, {"scaled_rows": True}


def flash_mla(q, pages, table, lengths):
    """Returns a call of FlashMLA. Its first call computes the schedule, as a serving engine does once per step."""
    import flash_mla
    schedule, _ = flash_mla.get_mla_metadata()

    def call():
        return flash_mla.flash_mla_with_kvcache(q, pages, table, lengths, VALUES, schedule, None, SCALE, causal=q.shape[1] > 1)[0]
    call()
    return call


def ferroflash(of, q, pages, table, lengths, config, k_descale=None, **rows):
    """Returns a call and its launch, of the module `kvcache` of one FerroFlash."""
    o = torch.full((*q.shape[:3], VALUES), torch.nan, dtype=q.dtype, device=q.device)
    launch = of.Launch(q, pages, None, o, lengths, table=table, mask=CAUSAL, scale=SCALE, config=config,
                       scales=(k_descale, None), **rows)

    def call():
        launch.enqueue()
        return o
    return call, launch


@functools.cache
def other(folder):
    """Returns the module `kvcache` of FerroFlash in another packed folder."""
    name = "ferroflash_" + os.path.basename(os.path.normpath(folder)).replace("-", "_").replace(".", "_")
    compare.front(folder, name)
    return importlib.import_module(name + ".kvcache")


def contenders(q, cache, pages, table, lengths, dense, peers, config, rows, bases=()):
    """Returns {name: call}, and FerroFlash's launch on `cache`; `rows` says what its rows are. `pages` are of 16 bits. Each call returns
    O as (batch, queries, heads, 512)."""
    ours, launch = ferroflash(kvcache, q, cache, table, lengths, config, **rows)
    calls = {"ferroflash": ours}
    if rows:
        calls["ferroflash_16"], _ = ferroflash(kvcache, q, pages, table, lengths, None)
    for folder in bases:
        calls[os.path.basename(os.path.normpath(folder))] = ferroflash(other(folder), q, pages, table, lengths, config)[0]
    made = {"flash_mla": functools.partial(flash_mla, q, pages, table, lengths),
            "flashinfer": functools.partial(flashinfer_calls.mla, q, pages, table, lengths, SCALE, VALUES)}
    for name, make in made.items():
        if name in peers and importlib.util.find_spec(name) is not None:
            calls[name] = lambda once=functools.cache(make): once()()
    if q.shape[1] > 1:
        return calls, launch
    qs, k = q.transpose(1, 2), dense[:, None]
    v = k[..., :VALUES]
    if "flex" in peers:
        torch._dynamo.reset()
        flex = torch.compile(lambda q, k, v: flex_attention(q, k, v, scale=SCALE, enable_gqa=True), dynamic=False)
        calls["flex"] = lambda: flex(qs, k, v).transpose(1, 2)
    for name in BACKENDS.keys() & set(peers):
        def call(backend=BACKENDS[name]):
            # The query heads are rows of one head, so no backend needs grouped heads.
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, scale=SCALE)
        calls[name] = call
    return calls, launch


def judged(calls, q, dense):
    """Returns the verdict of each call."""
    want = exact(q, dense)
    error = lambda o: (o.double() - want).abs().max().item()
    return report.judged(calls, report.within(2 * error(naive(q, dense)) + 1e-5, error))


def labelled(label, latents):
    """Returns the label of a shape on a cache of `latents`."""
    return label if latents == "16" else f"{label} on {latents}"


def options(text):
    """Returns the parser of the options that the scripts of MLA have."""
    parser = report.options(text)
    parser.add_argument("--heads", nargs="+", type=int, default=[16, 64, 128])
    parser.add_argument("--latents", nargs="+", default=LATENTS[:1], choices=LATENTS, help="what the rows are")
    parser.add_argument("--config", help="FerroFlash's kernel [default: the planner's choice]")
    parser.add_argument("--gb-per-s", type=float, help="memory speed [default: the card's]")
    parser.add_argument("--tflops", type=float, default=619, help="highest throughput of mma.sync; the default is an H200's")
    return parser


def conclude(todo, args):
    """Runs the work of `todo(rng)`, and ends the program."""
    args.gb_per_s = args.gb_per_s or 1e3 * report.bandwidth()
    report.main(todo, args, gb_per_s=args.gb_per_s, tflops=args.tflops)


def measured(suite, label, dtype, calls, checks, launch, size, flops, args, rng):
    """Times the calls with a cold L2 cache, beside the times of `size` bytes and of the products, and returns the report's rows."""
    floor = {"bytes": size / args.gb_per_s / 1e3, "products": flops / args.tflops / 1e6}
    of = launch.describe()
    said = lambda us: (f"bytes {floor['bytes']:.1f} products {floor['products']:.1f}  {size / us / 1e3:.0f} GB/s "
                       f"{flops / us / 1e6:.0f} TFLOP/s  {of['entry']} grid {of['grid']}")
    row = {"suite": suite + (f", {args.config}" if args.config else ""), "label": label, "dtype": dtype, "timing": "cold"}
    return report.measured(row, calls, checks, args, rng, compare.measure, said, of["entry"], lambda us: floor)


def run(batch, keys, heads, queries, dtype, latents, args, rng):
    """Returns the report's rows of one shape."""
    kind, columns = DTYPES[dtype], keys // PAGE
    q = torch.randn(batch, queries, heads, WIDTH, dtype=kind, device="cuda")
    pages = torch.randn(batch * columns, PAGE, 1, WIDTH, dtype=kind, device="cuda")
    cache, pages, rows = stored(pages, latents)
    table = torch.randperm(batch * columns, device="cuda").int().reshape(batch, columns)
    lengths = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
    dense = pages[table.long()].reshape(batch, keys, WIDTH)
    calls, launch = contenders(q, cache, pages, table, lengths, dense, args.peers, args.config, rows, args.base)
    size = batch * (keys * cache.shape[-1] * cache.element_size() + 2 * queries * heads * (WIDTH + VALUES))
    flops = 2 * batch * heads * queries * keys * (WIDTH + VALUES)
    label = labelled(f"{dtype} h{heads} q{queries} {batch}x{keys}", latents)
    return measured(f"mla{heads}", label, dtype, calls, judged(calls, q, dense), launch, size, flops, args, rng)


def main():
    parser = options(__doc__)
    parser.add_argument("--queries", nargs="+", type=int, default=[1])
    parser.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS)
    parser.add_argument("--base", nargs="*", default=[], metavar="FOLDER", help="more peers: packed folders of other commits")
    args = parser.parse_args()
    todo = lambda rng: [(f"mla{heads}", labelled(f"{dtype} h{heads} q{queries} {batch}x{keys}", latents),
                         functools.partial(run, batch, keys, heads, queries, dtype, latents, args, rng))
                        for dtype in args.dtypes for latents in args.latents for heads in args.heads for queries in args.queries
                        for batch, keys in SHAPES]
    conclude(todo, args)


if __name__ == "__main__":
    main()
