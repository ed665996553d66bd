"""The suites of serving.py: their shapes, tensors and contenders."""
import math
import random

import torch

import ferroflash
from ferroflash import kvcache, merge, varlen
from ferroflash.planned import CAUSAL, FULL, WINDOW
import flashinfer_calls
from serving_cases import (BACKENDS, DEVICE, DTYPES, Cache, Group, compare, enqueued, fa3, filled, integers, judge, normal, ours, prefixed, sdpa,
                           sets_of, verdict)


def keep(pairs, wanted):
    return [pair for pair in pairs if wanted is None or pair[0] in wanted]


def lengths_of(shape):
    """Returns the number of keys of each sequence."""
    draw = random.Random(9)
    if "uniform" in shape:
        return [draw.randint(*shape["uniform"]) for _ in range(shape["batch"])]
    if "log_uniform" in shape:
        low, high = shape["log_uniform"]
        return [round(low * (high / low) ** draw.random()) for _ in range(shape["batch"])]
    return [keys for count, keys in shape["sequences"] for _ in range(count)]


def decode(spec, wanted):
    """Yields sequences of equal lengths on dense, paged and e4m3 caches. The peers are cuDNN and FlashAttention-2 on dense caches."""
    hk, dim = spec["heads_k"], spec["head_dim"]
    for dtype in ("f16", "bf16"):
        for batch in spec["batch"]:
            for keys in spec["seqlen_k"]:
                # Each paged cache has a dense peer of the same layout: NHD or HND.
                pages = {f"page {page}{layout}": dense for page in spec["pages"]
                         for layout, dense in ((("", "dense NHD"), (" HND", "dense")) if page > 1 else (("", "dense NHD"),))}
                pairs = [("decode", "dense", "cudnn"), ("decode-fa2", "dense", "fa2"), ("decode-fa3", "dense NHD", "fa3")]
                pairs += [("func", "flash_attn_func", "cudnn"), ("func-cache", "flash_attn_func", "dense")]
                pairs += [("decode-paged", name, "cudnn") for name in pages if name != "page 1"]
                pairs += [("page1" if name == "page 1" else "paged", name, dense) for name, dense in pages.items()]
                if batch >= 16 and dtype == "f16":
                    pairs += [("e4m3", "e4m3", "dense"), ("e4m3", "e4m3, page 16", "page 16")]
                pairs = keep(pairs, wanted)
                if not pairs:
                    continue
                size = 4 * batch * hk * keys * dim
                sizes = {name: size for name in ["dense", "dense NHD", "cudnn", "fa2", "fa3", "flash_attn_func", *pages]}
                sizes.update({"e4m3": size // 2, "e4m3, page 16": size // 2})
                yield Group(f"B{batch} K{keys} {dtype}", pairs, sizes,
                            lambda group: fill_decode(group, spec, batch, keys, DTYPES[dtype]))


def fill_decode(group, spec, batch, keys, dtype):
    hq, hk, dim = spec["heads_q"], spec["heads_k"], spec["head_dim"]
    lengths, q = integers([keys] * batch), normal(batch, 1, hq, dim, dtype=dtype)
    make = lambda: normal(batch, hk, keys, dim, dtype=dtype).transpose(1, 2)
    dense = [Cache(make(), make()) for _ in range(sets_of(group.bytes["dense"]))]
    group.add("dense", lambda: ours(q, dense, lengths))
    dense_call = lambda cache: lambda: ferroflash.flash_attn_func(q, cache.k, cache.v)
    group.add("flash_attn_func", lambda: ([dense_call(cache) for cache in dense], judge(q, dense[-1], lengths)))
    for name, backend in BACKENDS.items():
        group.add(name, lambda: sdpa(backend, q, dense, lengths))
    group.add("dense NHD", lambda: ours(q, [cache.nhd() for cache in dense], lengths))
    group.add("fa3", lambda: fa3(q, [cache.nhd() for cache in dense], lengths))
    for page in spec["pages"]:
        group.add(f"page {page}", lambda: ours(q, [cache.paged(page) for cache in dense], lengths))
        group.add(f"page {page} HND", lambda: ours(q, [cache.paged(page, hnd=True) for cache in dense], lengths))
    group.add("e4m3", lambda: ours(q, [cache.eight_bit() for cache in dense], lengths))
    group.add("e4m3, page 16", lambda: ours(q, [cache.paged(16).eight_bit() for cache in dense], lengths))


def ragged(shapes, wanted):
    """Yields sequences of different lengths, dense and in pages of 16. The peer is the time to read the bytes."""
    pairs = keep([("ragged", "dense", None), ("ragged-paged", "page 16", None)], wanted)
    for shape in shapes if pairs else []:
        yield any_lengths({"heads_q": 32, "heads_k": 8, "head_dim": 128, **shape}, pairs)


def shapes(shapes, wanted):
    """Yields other numbers of heads, sinks, windows and softcaps, on pages of 16. FlashInfer's decoding has no sinks."""
    pairs = keep([("shapes", "page 16", None), ("shapes-flashinfer", "page 16", "flashinfer")], wanted)
    for shape in shapes if pairs else []:
        yield any_lengths(shape, pairs)


def any_lengths(shape, pairs):
    hq, hk, dim = shape["heads_q"], shape["heads_k"], shape["head_dim"]
    lengths, window = lengths_of(shape), tuple(shape.get("window", (-1, -1)))
    seen = [n if window[0] < 0 else min(n, window[0] + 1) for n in lengths]
    size = 4 * sum(seen) * hk * dim + 4 * len(lengths) * hq * dim
    sets = sets_of(size, 4 * sum(lengths) * hk * dim)

    def fill(group):
        options = {"window": window, "softcap": shape.get("softcap", 0.0)}
        if shape.get("sinks"):
            options["sinks"] = torch.randn(hq, device=DEVICE)
        on_device, q = integers(lengths), normal(len(lengths), 1, hq, dim)
        for name, page in (("dense", 0), ("page 16", 16)):
            group.add(name, lambda: ours(
                q, [filled(lengths, hk, dim, page, q.dtype) for _ in range(sets)], on_device, **options))
        options.pop("sinks", None)

        def flashinfer():
            caches = [filled(lengths, hk, dim, 16, q.dtype) for _ in range(sets)]
            calls = [flashinfer_calls.decode(q, cache, lengths, **options) for cache in caches]
            return calls, judge(q, caches[-1], on_device, **options)
        group.add("flashinfer", flashinfer)
    name = f"{shape['name']}: B{len(lengths)} H{hq}/{hk} D{dim}"
    return Group(name, pairs, dict.fromkeys(["dense", "page 16", "flashinfer"], size), fill)


def speculative(spec, wanted):
    """Yields several queries per sequence on pages. The peer has one query per sequence."""
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


def prefix(shapes, wanted):
    """Yields groups of sequences that share their first pages. The peers are FerroFlash without the groups, and FlashInfer's cascade."""
    pairs = keep([("prefix", "shared", "whole"), ("prefix-flashinfer", "shared", "flashinfer")], wanted)
    for shape in shapes if pairs else []:
        batch, groups, keys, rest = (shape[name] for name in ("batch", "groups", "prefix", "rest"))
        size = 4 * (groups * keys + batch * rest) * shape["heads_k"] * shape["head_dim"]
        name = f"{groups} x {batch // groups} on {keys} + {rest} H{shape['heads_q']}/{shape['heads_k']} D{shape['head_dim']}"
        yield Group(name, pairs, dict.fromkeys(["shared", "whole", "flashinfer"], size),
                    lambda group: fill_prefix(group, shape, size))


def fill_prefix(group, shape, size, page=16):
    batch, groups, keys, rest, hq, hk, dim = (
        shape[name] for name in ("batch", "groups", "prefix", "rest", "heads_q", "heads_k", "head_dim"))
    caches = [prefixed(groups, batch, keys, rest, hk, dim, page) for _ in range(sets_of(size))]
    q, lengths, rests = normal(batch, 1, hq, dim), integers([keys + rest] * batch), integers([rest] * batch)
    pages = keys // page
    cascade = lambda cache: flashinfer_calls.cascade(q, cache, (groups, keys, rest))
    group.add("shared", lambda: ours(q, caches, lengths, shared_prefixes=(groups, pages, rests)))
    group.add("whole", lambda: ours(q, caches, lengths))
    group.add("flashinfer", lambda: ([cascade(cache) for cache in caches], judge(q, caches[-1], lengths)))


def graph(spec, wanted):
    """Yields a graph captured for many sequences and replayed with few. The peer is a plan for exactly these few sequences."""
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


def packed(shapes, wanted):
    """Yields varlen prompts and chunks. The peers are FerroFlash on equal lengths and PyTorch's FlashAttention-2."""
    for shape in shapes:
        hq, hk, dim = shape["heads_q"], shape["heads_k"], shape["head_dim"]
        lengths = [(q, k) for count, q, k in shape["sequences"] for _ in range(count)]
        pairs = [("packed", "packed", "fa2 varlen"), ("packed-paged", "page 16", "packed"), ("packed-paged", "page 64", "packed"),
                 ("packed-portable", "page 16", "page 16, portable"), ("packed-e4m3", "page 16, e4m3", "page 16")]
        pairs += [("packed-equal", "packed", "equal")] if len(set(lengths)) == 1 else []
        pairs = keep(pairs, wanted)
        if pairs:
            # A causal square counts as half. The last query has the position of the last key.
            seen = [q * k - (q * (q - 1) // 2 if shape["causal"] else 0) for q, k in lengths]
            size = sum(4 * q * hq * dim + 4 * k * hk * dim for q, k in lengths)
            mask = "causal" if shape["causal"] else "full"
            yield Group(f"{shape['name']} H{hq}/{hk} D{dim} {mask}", pairs,
                        dict.fromkeys(["packed", "page 16", "page 64", "page 16, portable", "page 16, e4m3", "equal", "fa2 varlen"],
                                      size),
                        lambda group: fill_packed(group, shape, lengths, size), 4 * dim * hq * sum(seen))


def fill_packed(group, shape, lengths, size):
    hq, hk, dim, causal = shape["heads_q"], shape["heads_k"], shape["head_dim"], shape["causal"]
    starts_q, starts_k = ([sum(pair[i] for pair in lengths[:b]) for b in range(len(lengths) + 1)] for i in range(2))
    longest = [max(pair[i] for pair in lengths) for i in range(2)]
    ends = [integers(starts) for starts in (starts_q, starts_k)]
    sets = [(normal(starts_q[-1], hq, dim), normal(starts_k[-1], hk, dim), normal(starts_k[-1], hk, dim))
            for _ in range(sets_of(size))]
    if "page 16, e4m3" in group.names():
        # Every contender gets numbers that e4m3 has.
        sets = [(q, *(t.to(torch.float8_e4m3fn).to(t.dtype) for t in (k, v))) for q, k, v in sets]
    o = torch.empty_like(sets[0][0])
    mask = CAUSAL if causal else FULL

    def right(o):
        o, (q, k, v) = o.reshape(-1, hq, dim), sets[-1]
        errors = [(0.0 if bool(torch.isfinite(o).all()) else math.nan, 1.0)]
        for b in {0, len(lengths) - 1, lengths.index(max(lengths)), lengths.index(min(lengths))}:
            (rows, keys), i, j = lengths[b], starts_q[b], starts_k[b]
            # The check covers the first and the last rows of the first and the last head.
            for first, last in {(0, min(128, rows)), (max(0, rows - 128), rows)} if rows else ():
                end = keys - rows + last if causal else keys
                for h in {0, hq - 1}:
                    own = [t[j:j + end, h * hk // hq][:, None] for t in (k, v)]
                    errors.append(compare(o[i + first:i + last, h][:, None], q[i + first:i + last, h][:, None], *own, causal=causal))
        return verdict(errors)

    def flash(q, k, v):
        return lambda: torch.ops.aten._flash_attention_forward(q, k, v, *ends, *longest, 0.0, causal, False)[0]

    def equal(q, k, v):
        shaped = [t.view(len(lengths), -1, *t.shape[1:]) for t in (q, k, v)]
        return lambda: ferroflash.flash_attn_func(*shaped, causal=causal)

    def paged(q, k, v, page, config=None, eight_bit=False):
        columns = [-(-n // page) for _, n in lengths]
        numbers, at = torch.randperm(sum(columns), device=DEVICE).int(), 0
        pools = [torch.full((sum(columns), page, hk, dim), math.nan, dtype=q.dtype, device=DEVICE) for _ in range(2)]
        table = torch.full((len(lengths), max(columns)), 2**31 - 1, dtype=torch.int32, device=DEVICE)
        for b, count in enumerate(columns):
            table[b, :count] = numbers[at:at + count]
            at += count
            for pool, t in zip(pools, (k, v)):
                rows = torch.full((count * page, hk, dim), math.nan, dtype=q.dtype, device=DEVICE)
                rows[:lengths[b][1]] = t[starts_k[b]:starts_k[b + 1]]
                pool[table[b, :count].long()] = rows.view(-1, page, hk, dim)
        pools = [pool.to(torch.float8_e4m3fn) for pool in pools] if eight_bit else pools
        launch = kvcache.Launch(q, *pools, o, integers([n for _, n in lengths]), table=table, mask=mask,
                                cu_seqlens_q=ends[0], seqlen_q=longest[0], config=config)
        return enqueued(launch, o)
    portable = f"paged_f16_d{dim}_causal_128x{ {64: 64, 128: 48}[dim] }"
    group.add("packed", lambda: ([enqueued(varlen.Launch(*own, o, *ends, *longest, mask=mask), o) for own in sets], right))
    for page in (16, 64):
        group.add(f"page {page}", lambda: ([paged(*own, page) for own in sets], right))
    group.add("page 16, portable", lambda: ([paged(*own, 16, portable) for own in sets], right))
    group.add("page 16, e4m3", lambda: ([paged(*own, 16, eight_bit=True) for own in sets], right))
    group.add("equal", lambda: ([equal(*own) for own in sets], right))
    group.add("fa2 varlen", lambda: ([flash(*own) for own in sets], right))


def mixed(shapes, wanted):
    """Yields batches of single queries and chunks in one request, on pages of 16. The peer is one request for each kind."""
    pairs = keep([("mixed", "one request", "two requests")], wanted)
    for shape in shapes if pairs else []:
        single, chunks = ([(q, k) for count, q, k in shape[kind] for _ in range(count)] for kind in ("single", "chunks"))
        size = sum(4 * q * shape["heads_q"] * shape["head_dim"] + 4 * k * shape["heads_k"] * shape["head_dim"] for q, k in single + chunks)
        said = "".join(f" {option} {shape[option]}" for option in ("window", "softcap", "sinks") if option in shape)
        yield Group(f"{shape['name']} H{shape['heads_q']}/{shape['heads_k']} D{shape['head_dim']}{said}", pairs,
                    dict.fromkeys(["one request", "two requests"], size), lambda group: fill_mixed(group, shape, single, chunks, size))


def fill_mixed(group, shape, single, chunks, size):
    hq, hk, dim, first = shape["heads_q"], shape["heads_k"], shape["head_dim"], len(single)
    lengths = [k for _, k in single + chunks]
    starts = [sum(q for q, _ in (single + chunks)[:b]) for b in range(len(lengths) + 1)]
    caches = [filled(lengths, hk, dim, 16, torch.float16) for _ in range(sets_of(size))]
    q, on_device = normal(starts[-1], hq, dim), integers(lengths)
    o, longest = torch.empty_like(q), max(q for q, _ in chunks)
    window, softcap = tuple(shape.get("window", (-1, -1))), shape.get("softcap", 0.0)
    sinks = torch.randn(hq, device=DEVICE) if shape.get("sinks") else None
    meant = {"causal": window == (-1, -1), "window": window, "softcap": softcap, "sinks": sinks}
    own = {"mask": CAUSAL if meant["causal"] else WINDOW, "window": window, "softcap": softcap, "sinks": sinks}

    def right(o):
        errors = [(0.0 if bool(torch.isfinite(o).all()) else math.nan, 1.0)]
        for b in {0, first - 1, first, len(lengths) - 1}:
            k, v = caches[-1].sequence(b, lengths[b])
            errors.append(compare(o[starts[b]:starts[b + 1]], q[starts[b]:starts[b + 1]], k, v, **meant))
        return verdict(errors)

    def request(cache, rows, sequences, packed):
        q_own, o_own = ((t[rows] if packed else t[rows][:, None]) for t in (q, o))
        begin = [n - starts[sequences.start] for n in starts[sequences.start:sequences.stop + 1]]
        options = {"cu_seqlens_q": integers(begin), "seqlen_q": longest} if packed else {}
        return kvcache.Launch(q_own, cache.k, cache.v, o_own, on_device[sequences], table=cache.table[sequences],
                              **own, **options)

    def two(cache):
        parts = (request(cache, slice(0, first), slice(0, first), False),
                 request(cache, slice(first, starts[-1]), slice(first, len(lengths)), True))
        return lambda: ([part.enqueue() for part in parts], o)[1]
    group.add("one request", lambda: (
        [enqueued(request(cache, slice(0, starts[-1]), slice(0, len(lengths)), True), o) for cache in caches], right))
    group.add("two requests", lambda: ([two(cache) for cache in caches], right))


def append(shapes, wanted):
    """Yields appends of new tokens to a cache. The peer is PyTorch's index_put.

    With rotary embedding of K, the peer is the append alone; with rotary embedding of K and Q, the time to move the bytes.
    """
    pairs = keep([("append", "append", "index_put"), ("append-rotary", "rotary", "append"), ("append-rotary-q", "rotary q", None)], wanted)
    for shape in shapes if pairs else []:
        size = 8 * shape["tokens"] * shape["heads_k"] * shape["head_dim"]
        yield Group(f"{shape['name']} tokens", pairs, {"append": size, "index_put": size, "rotary": size, "rotary q": 3 * size},
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

    angles = torch.arange(1 << 16, device=DEVICE)[:, None] * 10000.0 ** (-torch.arange(0, dim, 2, device=DEVICE) / dim)
    positions = torch.randint(0, 1 << 16, (tokens,), device=DEVICE)

    def rotary(i, name, q):
        launch = kvcache.append(*new[i], *caches[name], slots[i],
                                rotary=(angles.cos(), angles.sin(), positions, q, q, False))
        return lambda: (launch(), slots[i])[1]

    def rotated(name):
        def judge(_):
            cos, sin = (f(angles[positions].double())[:, None] for f in (torch.cos, torch.sin))
            a, b = new[-1][0].double().chunk(2, -1)
            exact = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
            got = [t.view(rows, heads, dim)[slots[-1]] for t in caches[name]]
            error = (got[0].double() - exact).abs().max().item() if torch.equal(got[1], new[-1][1]) else math.nan
            return verdict([(error, 2.0**-10 * exact.abs().max().item())])
        return judge

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
    group.add("rotary", lambda: ([rotary(i, "rotary", None) for i in range(count)], rotated("rotary")))
    group.add("rotary q", lambda: (
        [rotary(i, "rotary q", normal(tokens, 4 * heads, dim)) for i in range(count)], rotated("rotary q")))
    group.add("index_put", lambda: ([put(i) for i in range(count)], right("index_put")))
    group.prepare = lambda: [t.fill_(math.nan) for pair in caches.values() for t in pair]


def merges(shapes, wanted):
    """Yields merges of two partial states. The peer is the time to move the bytes."""
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


# Each function gets its own part of serving.json and the requested suites, and yields groups.
GROUPS = {"decode": decode, "ragged": ragged, "shapes": shapes, "speculative": speculative, "prefix": prefix, "graph": graph,
          "packed": packed, "mixed": mixed, "append": append, "merge": merges}
