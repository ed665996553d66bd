"""Times FerroFlash's masks, scores and biases beside the functions that a PyTorch user calls: flex_attention (torch.compile, Triton) and
SDPA with a bias, on the same tensors, with the same timer, in one process.

    python3 variants.py --out variants.json                    # all variants, f16, head dims 64 and 128, 1024 and 4096 keys
    python3 variants.py --only bias prefix --seqlens 8192 --dtypes f16 bf16

Each variant is written once for FerroFlash (arguments of flash_attn_func) and once for flex_attention (score_mod, mask_mod).
The float64 reference runs flex_attention's functions on index tensors, so both results are compared with one definition.
`without` is FerroFlash without the variant, which shows the price of sinks, and full attention beside block-sparse masks.
`natten`, `sparse*` and `user_*` are functions of a caller, compiled in bench/own; `built_in` is FerroFlash's own kernel.
compare.py's timers measure in shuffled rounds. A ratio is the peer's time divided by FerroFlash's. With --fa4, `flex_fa4` is
flex_attention with its FlashAttention-4 backend, which needs a GPU and a Python that FlashAttention-4 supports. After --seconds, the script ends with the rows that it has.
"""
import functools
import itertools
import math
import random
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import compare
import ferroflash
from ferroflash import dense
import own
import report

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
BACKENDS = {"sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION, "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION}
CAUSAL = lambda b, h, q, k: q >= k


class Variant:
    """One variant on tensors: FerroFlash's arguments, flex_attention's functions, and other peers."""

    def __init__(self, name, args, score=None, mask=None, sinks=None, bias=None, without=None, heads=(16, 16), queries=None,
                 documents=None, own=None, built_in=None):
        self.name, self.args, self.score, self.mask, self.sinks = name, args, score, mask, sinks
        self.bias, self.without, self.heads, self.queries, self.documents = bias, without, heads, queries, documents
        self.own, self.built_in = own, built_in


def variants(batch, heads, keys, dim, dtype, device):
    """Returns every variant, by name, as a function that makes the variant, so that only one variant's tensors exist at a time."""
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / heads) for h in range(heads)], device=device)

    def alibi():
        return Variant("alibi", dict(causal=True, alibi_slopes=slopes), lambda s, b, h, q, k: s - slopes[h] * (q - k), CAUSAL)

    def softcap():
        return Variant("softcap", dict(causal=True, softcap=20.0), lambda s, b, h, q, k: 20.0 * torch.tanh(s / 20.0), CAUSAL)

    def bias():
        of = torch.randn(1, heads, keys, keys, dtype=dtype, device=device)
        return Variant("bias", dict(bias=of), lambda s, b, h, q, k: s + of[0, h, q, k], bias=of)

    def t5():
        # T5's relative positions: FerroFlash adds them as a bias that all sequences share, flex_attention looks them up.
        table, distance = torch.randn(heads, 32, dtype=dtype, device=device), torch.arange(keys, device=device)
        near = lambda n: torch.where(n < 8, n, (8 + torch.log(n.clamp(min=1) / 8) / math.log(16) * 8).long().clamp(max=15))
        bucket = lambda n: torch.where(n < 0, 16, 0) + near(n.abs())
        of = table[:, bucket(distance[:, None] - distance)].unsqueeze(0)
        buckets = bucket(torch.arange(1 - keys, keys, device=device))
        return Variant("t5", dict(bias=of), lambda s, b, h, q, k: s + table[h, buckets[q - k + keys - 1]], bias=of)

    def documents():
        # FerroFlash takes documents as varlen sequences of unequal lengths.
        shares = torch.tensor([1, 5, 2, 8]) * keys // 16
        of = torch.repeat_interleave(torch.arange(4), shares).to(device)
        starts = torch.tensor([0, *shares.repeat(batch).cumsum(0)], dtype=torch.int32, device=device)
        return Variant("documents", dict(causal=True), mask=lambda b, h, q, k: (q >= k) & (of[q] == of[k]),
                       documents=(starts, int(shares.max())))

    def prefix():
        most = keys // 4
        return Variant("prefix", dict(prefix=most), mask=lambda b, h, q, k: (q >= k) | (k < most))

    def chunked():
        chunk = keys // 4
        return Variant("chunked", dict(chunked=chunk), mask=lambda b, h, q, k: (q >= k) & (q // chunk == k // chunk))

    def tree(rows=64):
        # Node i's parent is one of the nodes before it.
        sees, parents = torch.eye(rows, dtype=torch.bool), random.Random(1)
        for i in range(1, rows):
            sees[i] |= sees[parents.randrange(i)]
        bits = (sees.view(rows, rows // 8, 8).long() << torch.arange(8)).sum(-1).to(torch.uint8).to(device)
        sees, before = sees.to(device), keys - rows
        return Variant("tree", dict(mask_bits=bits.view(1, 1, rows, -1), mask_keys=rows), queries=rows,
                       mask=lambda b, h, q, k: (k < before) | sees[q, (k - before).clamp(0, rows - 1)])

    def sinks(name, extra, mask, score=None):
        logits = torch.randn(64, device=device)
        return lambda: Variant(name, dict(sinks=logits, **extra), score, mask, sinks=logits, without=extra, heads=(64, 8))

    def natten(radius=6):
        # Pixels at most 6 rows and columns away: NATTEN's windows of 13 x 13.
        width = {1024: 32, 4096: 64}.get(keys, 128)
        near = lambda a, b: (a - b).abs() <= radius
        return Variant("natten", {}, mask=lambda b, h, q, k: near(q // width, k // width) & near(q % width, k % width),
                       own=own.Own("natten", image=(width, radius), lists=True))

    def sparse(percent):
        def make():
            # Each tile of queries sees its own block of keys, and others at random.
            blocks = -(-keys // own.TILE)
            count, draw = max(1, round(blocks * percent / 100)), random.Random(7)
            sees = torch.zeros(blocks, blocks, dtype=torch.bool)
            for i in range(blocks):
                sees[i, [i, *draw.sample([j for j in range(blocks) if j != i], count - 1)]] = True
            sees = sees.to(device)
            return Variant(f"sparse{percent}", {}, mask=lambda b, h, q, k: sees[q // own.TILE, k // own.TILE],
                           own=own.Own("blocks", tables=own.block_lists(sees)), without={})
        return make

    def user(make, **of):
        # A function of the caller, beside FerroFlash's kernel of the request.
        def both():
            v = make()
            v.name, v.own, v.built_in = f"user_{v.name}", own.Own(v.name, **of), v.args
            return v
        return both

    window = lambda b, h, q, k: (q >= k) & (q - k < 128)
    causal = lambda: Variant("causal", dict(causal=True), mask=CAUSAL)
    users = {"user_causal": user(causal), "user_softcap": user(softcap, softcap=20.0), "user_alibi": user(alibi, tables=[slopes])}
    if dtype != torch.float16:
        users = {}  # bench/own has these kernels for f16.
    users |= {"natten": natten, **{f"sparse{percent}": sparse(percent) for percent in (10, 30, 60)}}
    if own.path() is None:
        print(f"natten, sparse and user variants are left out: {own.NAME} is not built (bench/own)", file=sys.stderr)
        users = {}
    return {**users, "alibi": alibi, "softcap": softcap, "bias": bias, "t5": t5, "documents": documents, "prefix": prefix, "chunked": chunked, "tree": tree,
            "sinks": sinks("sinks", dict(causal=True), CAUSAL),
            "sinks_window": sinks("sinks_window", dict(causal=True, window_size=(127, 0)), window),
            "sinks_window_softcap": sinks("sinks_window_softcap", dict(causal=True, window_size=(127, 0), softcap=20.0), window,
                                          lambda s, b, h, q, k: 20.0 * torch.tanh(s / 20.0))}


def attend(v, q, k, values, b, h, rows, dtype):
    """Computes rows of one head with every step in `dtype`."""
    kv = h // (q.shape[1] // k.shape[1])
    scores = (q[b, h][rows].to(dtype) @ k[b, kv].to(dtype).T) / math.sqrt(q.shape[3])
    at = torch.tensor(b, device=q.device), torch.tensor(h, device=q.device), rows[:, None], torch.arange(k.shape[2], device=q.device)[None]
    if v.score:
        scores = v.score(scores, *at).to(dtype)
    if v.mask:
        scores = scores.masked_fill(~v.mask(*at), float("-inf"))
    if v.sinks is not None:
        scores = torch.cat([scores, v.sinks[h].to(dtype).expand(len(rows), 1)], 1)
    return torch.softmax(scores, -1)[:, :k.shape[2]] @ values[b, kv].to(dtype)


def check(v, q, k, values, o):
    """Checks max|o - exact| <= 2 * max|naive - exact| + 1e-5 on rows of the first and the last head."""
    n = q.shape[2]
    rows = (torch.arange(n) if n <= 256 else torch.cat([torch.arange(64), torch.linspace(64, n - 65, 128).long(), torch.arange(n - 64, n)]))
    rows, error, naive = rows.to(q.device), 0.0, 0.0
    for b, h in {(0, 0), (q.shape[0] - 1, q.shape[1] - 1)}:
        exact = attend(v, q, k, values, b, h, rows, torch.float64)
        naive = max(naive, (attend(v, q, k, values, b, h, rows, q.dtype).double() - exact).abs().max().item())
        found = (o[b, h][rows].double() - exact).abs().max().item()
        error = found if not found <= error else error
    return {"passed": error <= 2 * naive + 1e-5, "error": error, "tolerance": 2 * naive + 1e-5}


def packed(v, q, k, values, function=ferroflash.flash_attn_varlen_func):
    """Returns a call of a varlen function on the documents of all sequences."""
    (starts, longest), (b, h, n, d) = v.documents, q.shape
    rows = [t.transpose(1, 2).reshape(b * n, -1, d) for t in (q, k, values)]

    def call():
        return function(*rows, starts, starts, longest, longest, **v.args).view(b, n, h, d).transpose(1, 2)
    return call


def contenders(v, q, k, values, fa4):
    """Returns {name: call}. Each call returns O as (batch, heads, seqlen, head_dim)."""
    ours = lambda args: lambda: ferroflash.flash_attn_func_bhsd(q, k, values, **args)
    calls = {"ferroflash": ours(v.args)}
    if v.own is not None:
        calls["ferroflash"] = v.own.call(q, k, values)
    if v.built_in is not None:
        calls["built_in"] = ours(v.built_in)
    if v.documents is not None:
        calls["ferroflash"] = packed(v, q, k, values)
    if v.without is not None:
        calls["without"] = ours(v.without)
    gqa = q.shape[1] != k.shape[1]
    blocks = create_block_mask(v.mask, None, None, q.shape[2], k.shape[2], device=q.device) if v.mask else None

    def flex(q, k, values, options=None):
        if v.sinks is None:
            return flex_attention(q, k, values, score_mod=v.score, block_mask=blocks, enable_gqa=gqa, kernel_options=options)
        o, lse = flex_attention(q, k, values, score_mod=v.score, block_mask=blocks, enable_gqa=gqa, return_lse=True, kernel_options=options)
        return (o * torch.sigmoid(lse - v.sinks[None, :, None])[..., None]).to(q.dtype)

    torch._dynamo.reset()
    if v.built_in is None:
        compiled = torch.compile(flex, dynamic=False)
        calls["flex"] = lambda: compiled(q, k, values)
        if fa4:
            other = torch.compile(flex, dynamic=False)
            calls["flex_fa4"] = lambda: other(q, k, values, {"BACKEND": "FLASH"})
    if v.bias is not None:
        def sdpa(backend):
            def call():
                with sdpa_kernel(backend):
                    return F.scaled_dot_product_attention(q, k, values, attn_mask=v.bias)
            return call
        calls.update({name: sdpa(backend) for name, backend in BACKENDS.items()})
    return calls


def run(v, batch, keys, dim, dtype, args, rng):
    """Returns the report's rows of one variant on one shape."""
    queries, (heads, kv_heads) = v.queries or keys, v.heads
    tensor = lambda h, n: torch.randn(batch, n, h, dim, dtype=DTYPES[dtype], device="cuda").transpose(1, 2)
    q, k, values = tensor(heads, queries), tensor(kv_heads, keys), tensor(kv_heads, keys)
    calls = contenders(v, q, k, values, args.fa4)
    judge = lambda name, o: check(v, q, k, values, o) if name != "without" else None
    verdicts = report.judged(calls, judge, ("ferroflash", "without"))
    timing = "hot" if 4e-12 * batch * heads * queries * keys * dim < 0.2 else "cold"
    described = v.documents is None and v.own is None
    entry = dense.prepare(q, k, values, bhsd=True, **v.args)[0].describe()["entry"] if described else None
    entry = getattr(calls["ferroflash"], "entry", entry)
    label = f"{v.name} {dtype} b{batch} h{heads}/{kv_heads} q{queries} k{keys} d{dim}"
    row = {"suite": v.name, "label": label, "dtype": dtype, "timing": timing}
    return report.measured(row, calls, verdicts, args, rng, compare.measure, lambda us: "", entry)


def todo(args, rng):
    """Yields the suite, the label and the call of each variant on each shape."""
    for dtype, keys, dim in itertools.product(args.dtypes, args.seqlens, args.dims):
        for name, make in variants(args.batch, 16, keys, dim, DTYPES[dtype], "cuda").items():
            if not (args.only and name not in args.only or dim == 128 and name.startswith("sinks") and not args.only):
                work = lambda make=make: run(make(), args.batch, keys, dim, dtype, args, rng)
                yield name, f"{name} {dtype} {keys} {dim}", work


def main():
    parser = report.options(__doc__, ["f16"], 200.0)
    parser.add_argument("--only", nargs="+", help="names of the variants to run, instead of all")
    parser.add_argument("--dims", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--seqlens", nargs="+", type=int, default=[1024, 4096])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--fa4", action="store_true", help="measure flex_attention's FlashAttention-4 backend, too")
    args = parser.parse_args()
    report.main(functools.partial(todo, args), args)


if __name__ == "__main__":
    main()
