"""What serving.py measures: tensors of each shape, what each contender does with them, and what is right."""
import math
import random

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import kvcache
import merge
from ferroflash import CAUSAL, FULL, WINDOW

DEVICE = "cuda"
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
# Sets of tensors that a contender takes in turn are more than this together, several times any L2 cache.
COLD = 300e6
# Below this a set stays in an L2 cache: then it is measured there, too.
HOT = 40e6
MOST_SETS = 64


class Group:
    """Contenders on the same numbers.

    `contenders` is {name: (calls, judge)}: a call for each set of tensors, and what says of the last one's output whether
    it is right. `pairs` is [(suite, ours, peer)], peer None for the least bytes' own time; `bytes` is {name: least bytes
    of a call}. `fill` makes tensors and contenders; `prepare` runs between capture and replay.
    """

    def __init__(self, label, pairs, sizes, fill):
        self.label, self.pairs, self.bytes = label, pairs, sizes
        self.contenders, self.failed, self.prepare = {}, [], lambda: None
        self.fill = lambda: fill(self)

    def names(self):
        return {name for _, *names in self.pairs for name in names if name}

    def add(self, name, make):
        """Adds what `make` returns where it is wanted. Peers may be missing."""
        if name in self.names():
            try:
                self.contenders[name] = make()
            except Exception as reason:
                self.lost(name, reason)

    def lost(self, name, reason):
        self.contenders.pop(name, None)
        print(f"{self.label}: {name} is not available: {repr(reason)[:300]}", flush=True)
        if name not in PEERS:
            self.failed.append(f"{self.label}, {name}: {repr(reason)[:300]}")


class Cache:
    """Keys and values (pages, page, heads, dim), with a table (batch, columns), or a page for each sequence."""

    def __init__(self, k, v, table=None):
        self.k, self.v, self.table = k, v, table

    def paged(self, page):
        """The same memory as pages that are handed out at random."""
        batch, keys = self.k.shape[:2]
        pools = [t.transpose(1, 2).reshape(-1, page, *t.shape[2:]) for t in (self.k, self.v)]
        return Cache(*pools, shuffled(pools[0].shape[0], batch, keys // page))

    def eight_bit(self):
        return Cache(*(t.to(torch.float8_e4m3fn) for t in (self.k, self.v)), self.table)

    def sequence(self, b, length):
        """Its first keys and values, (length, heads, dim)."""
        if self.table is None:
            return self.k[b, :length], self.v[b, :length]
        numbers = self.table[b, :-(-length // self.k.shape[1])].long()
        return tuple(t[numbers].flatten(0, 1)[:length] for t in (self.k, self.v))


def shuffled(pages, batch, columns):
    """Every page's number once."""
    return torch.randperm(pages, device=DEVICE).int().view(batch, columns)


def integers(values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def normal(*shape, dtype=torch.float16):
    return torch.randn(*shape, device=DEVICE, dtype=dtype)


def sets_of(size):
    return min(MOST_SETS, max(2 if size < 2e9 else 1, math.ceil(COLD / size)))


def attend(q, k, v, dtype, causal=False, window=(-1, -1), softcap=0.0, sinks=None):
    """Attention of one sequence with every step in `dtype`: (rows, heads, dim)."""
    q, k, v = (t.to(dtype).transpose(0, 1) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[0] // k.shape[0], 0) for t in (k, v))
    scores = q @ k.transpose(1, 2) * q.shape[2] ** -0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    rows, keys = scores.shape[1:]
    position = torch.arange(rows, device=q.device)[:, None] + keys - rows
    key = torch.arange(keys, device=q.device)[None, :]
    left, right = window[0], 0 if causal else window[1]
    hidden = torch.zeros(rows, keys, dtype=torch.bool, device=q.device)
    hidden |= (key < position - left) if left >= 0 else False
    hidden |= (key > position + right) if right >= 0 else False
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(dtype)[:, None, None].expand(-1, rows, 1)], dim=2)
        v = torch.cat([v, torch.zeros_like(v[:, :1])], dim=1)
    return (torch.softmax(scores, dim=-1).nan_to_num(0.0) @ v).transpose(0, 1)


def verdict(errors):
    """Of [(error, tolerance), ..]; written so that an error that is not a number fails."""
    worst = max(errors, key=lambda pair: pair[0] / pair[1] if pair[0] == pair[0] else math.inf)
    return {"passed": all(error <= tolerance for error, tolerance in errors), "error": worst[0], "tolerance": worst[1]}


def compare(o, q, k, v, **options):
    """(error, tolerance) of one sequence: at most twice the error of the naive computation in q's precision."""
    exact, naive = attend(q, k, v, torch.float64, **options), attend(q, k, v, q.dtype, **options)
    largest = lambda t: (t.double() - exact).abs().max().item()
    return largest(o), 2 * largest(naive) + 1e-5


def judge(q, cache, lengths, **options):
    """Holds o (batch, rows, heads, dim) to float64 for some sequences: the first, the last, the longest, the shortest, others."""
    lengths = lengths.tolist()
    some = {0, len(lengths) - 1, lengths.index(max(lengths)), lengths.index(min(lengths))}
    some |= set(random.Random(1).sample(range(len(lengths)), min(4, len(lengths))))

    def of(o):
        errors = [(0.0 if bool(torch.isfinite(o).all()) else math.nan, 1.0)]
        for b in some:
            if lengths[b] == 0:
                errors.append((o[b].abs().max().item(), 1e-30))
            else:
                errors.append(compare(o[b], q[b], *cache.sequence(b, lengths[b]), **options))
        return verdict(errors)
    return of


def ours(q, caches, lengths, judged=None, causal=False, window=(-1, -1), softcap=0.0, sinks=None, **options):
    """Our decode of q on each of the caches, and what says whether the last one's is right."""
    o, launches = torch.empty_like(q), []
    mask = CAUSAL if causal else FULL if window == (-1, -1) else WINDOW
    for cache in caches:
        launches.append(kvcache.Launch(
            q, cache.k, cache.v, o, lengths, table=cache.table, mask=mask, window=window, softcap=softcap, sinks=sinks,
            share=launches[0] if launches else None, **options))

    def call(launch):
        def run():
            launch.enqueue()
            return o
        return run
    meant = {"causal": causal, "window": window, "softcap": softcap, "sinks": sinks}
    return [call(launch) for launch in launches], judged or judge(q, caches[-1], lengths, **meant)


def sdpa(backend, q, caches, lengths):
    """PyTorch's function on dense caches whose sequences are all as long."""
    def call(cache):
        qt, k, v = (t.transpose(1, 2) for t in (q, cache.k, cache.v))
        gqa = q.shape[2] != k.shape[1]

        def run():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(qt, k, v, enable_gqa=gqa).transpose(1, 2)
        return run
    return [call(cache) for cache in caches], judge(q, caches[-1], lengths)


PEERS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}


def keep(pairs, wanted):
    return [pair for pair in pairs if wanted is None or pair[0] in wanted]


def decode(spec, wanted):
    """Sequences of one length: dense and paged caches, of eight bits, beside cuDNN's and FlashAttention-2's dense ones."""
    hq, hk, dim = spec["heads_q"], spec["heads_k"], spec["head_dim"]
    for dtype in ("f16", "bf16"):
        for batch in spec["batch"]:
            for keys in spec["seqlen_k"]:
                pages = [f"page {page}" for page in spec["pages"]]
                pairs = [("decode", "dense", "cudnn"), ("decode-fa2", "dense", "fa2")]
                pairs += [("decode-paged", name, "cudnn") for name in pages if name != "page 1"]
                pairs += [("page1" if name == "page 1" else "paged", name, "dense") for name in pages]
                if batch >= 16 and dtype == "f16":
                    pairs += [("e4m3", "e4m3", "dense"), ("e4m3", "e4m3, page 16", "page 16")]
                pairs = keep(pairs, wanted)
                if not pairs:
                    continue
                size = 4 * batch * hk * keys * dim
                sizes = {name: size for name in ["dense", "cudnn", "fa2"] + pages}
                sizes.update({"e4m3": size // 2, "e4m3, page 16": size // 2})
                yield Group(f"B{batch} K{keys} {dtype}", pairs, sizes,
                            lambda group: fill_decode(group, spec, batch, keys, DTYPES[dtype]))


def fill_decode(group, spec, batch, keys, dtype):
    hq, hk, dim = spec["heads_q"], spec["heads_k"], spec["head_dim"]
    lengths, q = integers([keys] * batch), normal(batch, 1, hq, dim, dtype=dtype)
    make = lambda: normal(batch, hk, keys, dim, dtype=dtype).transpose(1, 2)
    dense = [Cache(make(), make()) for _ in range(sets_of(group.bytes["dense"]))]
    group.add("dense", lambda: ours(q, dense, lengths))
    for name, backend in PEERS.items():
        group.add(name, lambda: sdpa(backend, q, dense, lengths))
    paged = {f"page {page}": page for page in spec["pages"]}
    for name, page in paged.items():
        group.add(name, lambda: ours(q, [cache.paged(page) for cache in dense], lengths))
    group.add("e4m3", lambda: ours(q, [cache.eight_bit() for cache in dense], lengths))
    group.add("e4m3, page 16", lambda: ours(q, [cache.paged(16).eight_bit() for cache in dense], lengths))


def lengths_of(shape):
    """Keys of each sequence."""
    draw = random.Random(9)
    if "uniform" in shape:
        return [draw.randint(*shape["uniform"]) for _ in range(shape["batch"])]
    if "log_uniform" in shape:
        low, high = shape["log_uniform"]
        return [round(low * (high / low) ** draw.random()) for _ in range(shape["batch"])]
    return [keys for count, keys in shape["sequences"] for _ in range(count)]


def filled(lengths, heads, dim, page, dtype):
    """A cache of these lengths; numbers where no key is are not numbers. Page 0: dense."""
    size = page or max(lengths)
    columns = [-(-n // size) for n in lengths]
    pages = sum(columns)
    k, v = (torch.full((pages, size, heads, dim), math.nan, dtype=dtype, device=DEVICE) for _ in range(2))
    table = torch.full((len(lengths), max(columns)), 2**31 - 1, dtype=torch.int32, device=DEVICE)
    order = torch.randperm(pages, device=DEVICE) if page else torch.arange(pages, device=DEVICE)
    at = 0
    for b, n in enumerate(lengths):
        own = order[at:at + columns[b]]
        at += columns[b]
        for t in (k, v):
            rows = torch.full((columns[b] * size, heads, dim), math.nan, dtype=dtype, device=DEVICE)
            rows[:n] = normal(n, heads, dim, dtype=dtype)
            t[own] = rows.view(-1, size, heads, dim)
        table[b, :columns[b]] = own.int()
    return Cache(k, v, table if page else None)


def ragged(shapes, wanted):
    """Sequences of different lengths, dense and in pages of 16, beside the time of their bytes."""
    pairs = keep([("ragged", "dense", None), ("ragged-paged", "page 16", None)], wanted)
    for shape in shapes if pairs else []:
        yield any_lengths({"heads_q": 32, "heads_k": 8, "head_dim": 128, **shape}, pairs)


def shapes(shapes, wanted):
    """Other heads, sinks, windows, softcaps, on pages of 16."""
    pairs = keep([("shapes", "page 16", None)], wanted)
    for shape in shapes if pairs else []:
        yield any_lengths(shape, pairs)


def any_lengths(shape, pairs):
    hq, hk, dim = shape["heads_q"], shape["heads_k"], shape["head_dim"]
    lengths, window = lengths_of(shape), tuple(shape.get("window", (-1, -1)))
    seen = [n if window[0] < 0 else min(n, window[0] + 1) for n in lengths]
    size = 4 * sum(seen) * hk * dim + 4 * len(lengths) * hq * dim

    def fill(group):
        options = {"window": window, "softcap": shape.get("softcap", 0.0)}
        if shape.get("sinks"):
            options["sinks"] = torch.randn(hq, device=DEVICE)
        on_device, q = integers(lengths), normal(len(lengths), 1, hq, dim)
        for name, page in (("dense", 0), ("page 16", 16)):
            group.add(name, lambda: ours(
                q, [filled(lengths, hk, dim, page, q.dtype) for _ in range(sets_of(size))], on_device, **options))
    name = f"{shape['name']}: B{len(lengths)} H{hq}/{hk} D{dim}"
    return Group(name, pairs, dict.fromkeys(["dense", "page 16"], size), fill)


def speculative(spec, wanted):
    """Several queries a sequence beside one, on pages."""
    name = "{} queries".format
    pairs = keep([("speculative", name(n), name(1)) for n in spec["queries"] if n > 1], wanted)
    for shape in spec["sequences"] if pairs else []:
        lengths = [keys for count, keys in shape for _ in range(count)]
        size = 4 * sum(lengths) * spec["heads_k"] * spec["head_dim"]
        yield Group("+".join(f"{count}x{keys}" for count, keys in shape), pairs, {name(n): size for n in spec["queries"]},
                    lambda group: fill_speculative(group, spec, lengths, name))


def fill_speculative(group, spec, lengths, name):
    hq, hk, dim = spec["heads_q"], spec["heads_k"], spec["head_dim"]
    caches = [filled(lengths, hk, dim, spec["page"], torch.float16) for _ in range(sets_of(group.bytes[name(1)]))]
    for n in spec["queries"]:
        group.add(name(n), lambda: ours(normal(len(lengths), n, hq, dim), caches, integers(lengths), causal=True))


def graph(spec, wanted):
    """A graph captured for many sequences that is replayed with few, beside a plan for these few."""
    pairs = keep([("graph", "replayed", "planned")], wanted)
    for live in spec["live"] if pairs else []:
        size = 4 * live * spec["seqlen_k"] * spec["heads_k"] * spec["head_dim"]
        yield Group(f"{live} of {spec['batch']} x {spec['seqlen_k']}", pairs, {"replayed": size, "planned": size},
                    lambda group: fill_graph(group, spec, live))


def fill_graph(group, spec, live):
    hq, hk, dim = spec["heads_q"], spec["heads_k"], spec["head_dim"]
    batch, keys = spec["batch"], spec["seqlen_k"]
    cache = filled([keys] * batch, hk, dim, 16, torch.float16)
    q, lengths = normal(batch, 1, hq, dim), integers([keys] * batch)
    step = batch // live
    few = Cache(cache.k, cache.v, cache.table[::step].contiguous())
    then = integers([keys if b % step == 0 else 0 for b in range(batch)])
    group.add("replayed", lambda: ours(q, [cache], lengths, judge(q, cache, then)))
    group.add("planned", lambda: ours(q[::step].contiguous(), [few], integers([keys] * live)))
    group.prepare = lambda: lengths.copy_(then)


def append(shapes, wanted):
    """New tokens into a cache beside PyTorch's index_put."""
    pairs = keep([("append", "append", "index_put")], wanted)
    for shape in shapes if pairs else []:
        size = 8 * shape["tokens"] * shape["heads_k"] * shape["head_dim"]
        yield Group(f"{shape['name']} tokens", pairs, {"append": size, "index_put": size},
                    lambda group: fill_append(group, shape))


def fill_append(group, shape, rows=1 << 18, page=16):
    heads, dim, tokens = shape["heads_k"], shape["head_dim"], shape["tokens"]
    count = min(sets_of(group.bytes["append"]), rows // tokens)
    slots = torch.randperm(rows, device=DEVICE)[:count * tokens].view(count, tokens)
    new = [(normal(tokens, heads, dim), normal(tokens, heads, dim)) for _ in range(count)]
    caches = {name: [torch.empty(rows // page, page, heads, dim, dtype=torch.float16, device=DEVICE) for _ in range(2)]
              for name in group.names()}

    def enqueue(i):
        launch = kvcache.append(*new[i], *caches["append"], slots[i])
        return lambda: (launch(), slots[i])[1]

    def put(i):
        def run():
            for t, own in zip(caches["index_put"], new[i]):
                t.view(rows, heads, dim).index_put_((slots[i],), own)
            return slots[i]
        return run

    def right(name):
        def judge(_):
            flat = [t.view(rows, heads, dim) for t in caches[name]]
            placed = all(torch.equal(t[slots[i]], own) for i in range(count) for t, own in zip(flat, new[i]))
            others = all(int(torch.isnan(t[:, 0, 0]).sum()) == rows - count * tokens for t in flat)
            return {"passed": placed and others, "error": 0.0, "tolerance": 0.0}
        return judge
    group.add("append", lambda: ([enqueue(i) for i in range(count)], right("append")))
    group.add("index_put", lambda: ([put(i) for i in range(count)], right("index_put")))
    group.prepare = lambda: [t.fill_(math.nan) for pair in caches.values() for t in pair]


def merges(shapes, wanted):
    """Two partial states become one, beside the time of their bytes."""
    pairs = keep([("merge", "merge", None)], wanted)
    for shape in shapes if pairs else []:
        size = (6 * shape["head_dim"] + 8) * shape["tokens"] * shape["heads_q"]
        yield Group(f"{shape['name']} tokens H{shape['heads_q']} D{shape['head_dim']}", pairs, {"merge": size},
                    lambda group: fill_merge(group, shape))


def fill_merge(group, shape):
    tokens, heads, dim = shape["tokens"], shape["heads_q"], shape["head_dim"]
    states = [[(normal(tokens, heads, dim), torch.randn(heads, tokens, device=DEVICE)) for _ in range(2)]
              for _ in range(sets_of(group.bytes["merge"]))]
    o = normal(tokens, heads, dim)

    def call(pair):
        launch = merge.prepare(o, pair)
        return lambda: (launch(), o)[1]

    def right(o):
        weights = torch.softmax(torch.stack([lse.T.double() for _, lse in states[-1]]), 0)
        exact = sum(w[..., None] * state.double() for w, (state, _) in zip(weights, states[-1]))
        return verdict([((o.double() - exact).abs().max().item(), 2.0**-10 * exact.abs().max().item())])
    group.add("merge", lambda: ([call(pair) for pair in states], right))


# Each takes its part of serving.json and the suites that are wanted, and yields groups.
GROUPS = {"decode": decode, "ragged": ragged, "shapes": shapes, "speculative": speculative, "graph": graph,
          "append": append, "merge": merges}
