"""Tests on a GPU that the functions of the package `ferroflash`, the front of all measurements, give right results.

    python3 shim.py OUT.json          # in the packed folder, on a machine with PyTorch

The program compares every case with float64 by the tolerance rule: the largest error is at most twice that of the naive
computation in the inputs' precision. If SDPA has the mask, it also compares with SDPA. It then tests equal bits in two calls,
another stream, a captured graph, threads, and requests that must be refused.
"""
import json
import sys
import threading

import torch
import torch.nn.functional as F

import ferroflash
from ferroflash import kvcache
from ferroflash.planned import CAUSAL

F16, BF16 = torch.float16, torch.bfloat16
# name, dtype, [batch, seqlen_q, seqlen_k, heads_q, heads_k, head_dim], options of flash_attn_func
CASES = [
    ("full", F16, [2, 128, 128, 4, 4, 64], {}),
    ("causal", F16, [2, 200, 200, 4, 4, 64], {"causal": True}),
    ("bf16", BF16, [2, 200, 200, 4, 4, 128], {"causal": True}),
    ("causal, fewer queries than keys", F16, [1, 77, 300, 4, 4, 64], {"causal": True}),
    ("causal, rows without a key", F16, [1, 300, 77, 4, 4, 64], {"causal": True}),
    ("grouped heads", F16, [2, 130, 130, 8, 2, 128], {"causal": True}),
    ("one head of keys", BF16, [1, 64, 512, 8, 1, 64], {}),
    ("window", F16, [1, 300, 300, 2, 2, 64], {"window_size": (37, 5)}),
    ("window, causal", F16, [1, 300, 300, 2, 2, 128], {"window_size": (50, -1), "causal": True}),
    ("softcap", F16, [1, 200, 200, 2, 2, 64], {"softcap": 5.0}),
    ("scale", F16, [1, 200, 200, 2, 2, 64], {"softmax_scale": 0.3}),
    ("alibi", F16, [2, 150, 200, 4, 2, 64], {"alibi_slopes": 2.0 ** -torch.arange(1.0, 5.0)}),
    ("alibi, causal", BF16, [2, 150, 200, 4, 2, 128], {"alibi_slopes": torch.rand(2, 4) - 0.2, "causal": True}),
    ("head dim 40", F16, [1, 100, 100, 2, 2, 40], {}),
    ("head dim 96", BF16, [1, 100, 100, 2, 2, 96], {"causal": True}),
    ("head dim 192", F16, [1, 150, 150, 2, 2, 192], {"causal": True}),
    ("head dim 256", BF16, [1, 150, 150, 2, 2, 256], {}),
    ("a workspace", F16, [1, 128, 8192, 4, 4, 64], {}),
    ("one query", F16, [3, 1, 777, 4, 4, 128], {"causal": True}),
    ("sinks", F16, [2, 150, 200, 4, 2, 64], {"sinks": torch.tensor([0.5, -1.0, 3.0, float("-inf")]), "causal": True}),
    ("sinks, window", BF16, [1, 300, 300, 2, 2, 128], {"sinks": torch.tensor([1.0, 4.0]), "window_size": (40, 0)}),
    ("sinks by a merge", F16, [1, 100, 150, 4, 4, 192], {"sinks": torch.tensor([0.5, -1.0, 3.0, 0.0])}),
    ("a kernel by its name", F16, [1, 128, 128, 2, 2, 64], {"config": "fwd_f16_d64_full_128x64"}),
    ("bias", F16, [2, 150, 200, 4, 2, 64], {"bias": torch.randn(1, 4, 150, 200).half()}),
    ("bias of each batch, bf16", BF16, [2, 150, 200, 4, 2, 128], {"bias": torch.randn(2, 4, 150, 200).bfloat16()}),
    ("bias of keys, f32", F16, [2, 77, 200, 4, 4, 64], {"bias": torch.randn(2, 1, 1, 200)}),
    ("prefix", F16, [2, 300, 300, 2, 2, 64], {"prefix": 77}),
    ("prefix of each", F16, [3, 150, 200, 2, 2, 128], {"prefix": torch.tensor([0, 60, 999], dtype=torch.int32)}),
    ("chunked", BF16, [1, 300, 400, 2, 2, 64], {"chunked": 100}),
    ("bits", F16, [2, 40, 200, 4, 4, 64], {"mask_bits": torch.randint(0, 256, (2, 1, 40, 25), dtype=torch.uint8)}),
    ("a tree", F16, [1, 8, 200, 4, 2, 128],
     {"mask_bits": torch.tensor([[[1], [3], [5], [9], [19], [37], [73], [145]]], dtype=torch.uint8)[None], "mask_keys": 8}),
]
# Valid cases that no kernel solves. A case moves to CASES with its first kernel.
WITHOUT_KERNEL = [
    ("bias of keys, f32, causal", F16, [2, 77, 200, 4, 4, 64], {"bias": torch.randn(2, 1, 1, 200), "causal": True}),
]
REFUSED = [
    ("dropout", {"dropout_p": 0.1}),
    ("alibi_slopes", {"alibi_slopes": torch.ones(4)}),
    ("softmax_scale", {"softmax_scale": 0.0}),
    ("softcap", {"softcap": -1.0}),
    ("config", {"config": "no such kernel"}),
]


def tensors(dtype, sizes):
    """q, k and v as (batch, seqlen, heads, head_dim)."""
    batch, rows, keys, heads_q, heads_k, head_dim = sizes
    make = lambda length, heads: torch.randn(batch, length, heads, head_dim, device="cuda", dtype=dtype)
    return make(rows, heads_q), make(keys, heads_k), make(keys, heads_k)


def attend(q, k, v, dtype, causal=False, window_size=(-1, -1), softmax_scale=None, softcap=0.0, alibi_slopes=None,
           config=None, sinks=None, bias=None, prefix=None, chunked=None, mask_bits=None, mask_keys=0):
    """Attention with every step in `dtype`: O as (batch, seqlen, heads, head_dim), LSE as (batch, heads, seqlen)."""
    q, k, v = (t.to(dtype).transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    rows, keys = q.shape[2], k.shape[2]
    position = torch.arange(rows, device=q.device)[:, None] + keys - rows
    key = torch.arange(keys, device=q.device)[None, :]
    if alibi_slopes is not None:
        # Never rounded to `dtype`, as in FlashAttention's reference.
        wide = torch.promote_types(dtype, torch.float32)
        slopes = alibi_slopes.to(wide).reshape(-1, q.shape[1], 1, 1)
        scores = scores.to(wide) - slopes * (position - key).abs()
    if bias is not None:
        wide = torch.promote_types(dtype, torch.float32)
        scores = scores.to(wide) + bias.to(wide)
    left, right = window_size
    right = 0 if causal or prefix is not None or chunked else right
    hidden = torch.zeros(rows, keys, dtype=torch.bool, device=q.device)
    hidden |= (key < position - left) if left >= 0 else False
    hidden |= (key > position + right) if right >= 0 else False
    hidden |= (key < position // chunked * chunked) if chunked else False
    if prefix is not None:
        hidden = hidden & (key >= torch.as_tensor(prefix, device=q.device).reshape(-1, 1, 1, 1))
    if mask_bits is not None:
        first = keys - (mask_keys or keys)
        bit = (key[0] - first).clamp(min=0)
        hidden = (key >= first) & (mask_bits[..., bit // 8] >> (bit % 8).to(torch.uint8) & 1 == 0)
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        logits = sinks.to(scores.dtype).reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, logits], dim=3)
    empty = scores.isneginf().all(3, keepdim=True)
    # Without the zeros, the gradients of all keys would be NaN.
    weights = torch.softmax(scores.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)[..., :keys]
    return (weights.to(dtype) @ v).transpose(1, 2), torch.logsumexp(scores.double(), dim=-1)


def largest(difference):
    return difference.abs().max().item()


def check(name, dtype, sizes, options):
    """The verdict on one case."""
    q, k, v = tensors(dtype, sizes)
    options = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    o, lse = ferroflash.flash_attn_func(q, k, v, return_lse=True, **options)
    again = ferroflash.flash_attn_func(q, k, v, **options)
    turned = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    bhsd = ferroflash.flash_attn_func_bhsd(*turned, **options).transpose(1, 2)
    exact, exact_lse = attend(q, k, v, torch.float64, **options)
    naive, _ = attend(q, k, v, dtype, **options)
    error, tolerance = largest(o.double() - exact), 2 * largest(naive.double() - exact) + 1e-5
    seen = torch.isfinite(exact_lse)
    lse_error = largest((lse.double() - exact_lse)[seen])
    lse_tolerance = 1e-4 + 1e-5 * largest(exact_lse[seen]) + torch.finfo(dtype).eps / 2
    empty = torch.equal(lse.isneginf(), ~seen)
    row = {"name": name, "error": error, "tolerance": tolerance, "lse_error": lse_error,
           "lse_tolerance": lse_tolerance, "equal_twice": torch.equal(o, again) and torch.equal(o, bhsd)}
    if not set(options) - {"causal", "config"} and (q.shape[1] == k.shape[1] or not options.get("causal")):
        sdpa = F.scaled_dot_product_attention(
            *(t.transpose(1, 2) for t in (q, k, v)), is_causal=options.get("causal", False),
            enable_gqa=q.shape[2] != k.shape[2]).transpose(1, 2)
        row["sdpa_error"] = largest(sdpa.double() - exact)
    # The comparison fails on NaN.
    row["passed"] = row["equal_twice"] and empty and error <= tolerance and lse_error <= lse_tolerance
    return row


# The options that the backward pass has.
TRAINED = {"causal", "window_size", "softmax_scale", "softcap", "alibi_slopes", "sinks", "bias"}


def trains(options):
    """Whether a case has a backward pass. A bias with one row for all queries has none."""
    return set(options) <= TRAINED and ("bias" not in options or options["bias"].shape[2] > 1)


def judged_gradients(name, gradients, inputs, upstream, attention):
    """The verdict on the gradients of two backward passes. `attention(inputs, dtype)` returns what `upstream` has gradients of."""
    def reference(kind):
        # Sinks and biases of f32 stay wider than 16 bits.
        at = [t.detach().to(torch.promote_types(kind, t.dtype)).requires_grad_() for t in inputs]
        outputs = attention(at, kind)[:len(upstream)]
        return torch.autograd.grad(outputs, at, [d.to(out.dtype) for d, out in zip(upstream, outputs)])

    first, again = gradients
    row = {"name": f"gradients: {name}", "error": 0.0, "tolerance": 0.0, "passed": all(map(torch.equal, first, again))}
    for found, exact, naive in zip(first, reference(torch.float64), reference(inputs[0].dtype)):
        error, tolerance = largest(found.double() - exact), 2 * largest(naive.double() - exact) + 1e-5
        # The comparison fails on NaN.
        row["passed"] &= error <= tolerance
        if not error * row["tolerance"] < row["error"] * tolerance:
            row["error"], row["tolerance"] = error, tolerance
    return row


def twice(outputs, inputs, upstream):
    """The gradients of two backward passes."""
    return [torch.autograd.grad(outputs[:len(upstream)], inputs, upstream, retain_graph=True) for _ in range(2)]


def trained(name, dtype, sizes, options):
    """The verdict on the gradients of one case."""
    inputs = [t.requires_grad_() for t in tensors(dtype, sizes)]
    options = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    own = [name for name in ("sinks", "bias") if name in options]
    inputs += [options.pop(name).requires_grad_() for name in own]
    others = lambda at: dict(zip(own, at[3:]))
    o, lse = ferroflash.flash_attn_func(*inputs[:3], return_lse=True, **options, **others(inputs))
    # A row without a key has no LSE, and no gradient of one.
    upstream = [torch.randn_like(o)] + ([] if lse.isneginf().any() else [torch.randn_like(lse)])
    return judged_gradients(name, twice((o, lse), inputs, upstream), inputs, upstream,
                            lambda at, kind: attend(*at[:3], kind, **options, **others(at)))


def trained_varlen(lengths=((70, 70), (1, 130), (200, 90)), heads=(4, 2), dim=64):
    """The verdict on the gradients of varlen sequences."""
    make = lambda rows, count: torch.randn(rows, count, dim, device="cuda", dtype=F16).requires_grad_()
    starts = [[sum(pair[of] for pair in lengths[:b]) for b in range(len(lengths) + 1)] for of in (0, 1)]
    inputs = [make(starts[0][-1], heads[0]), *(make(starts[1][-1], heads[1]) for _ in range(2))]
    offsets = [torch.tensor(of, dtype=torch.int32, device="cuda") for of in starts]
    o = ferroflash.flash_attn_varlen_func(*inputs, *offsets, *map(max, zip(*lengths)), causal=True)
    upstream = [torch.randn_like(o)]

    def each(at, kind):
        rows = [[t[slice(*of[b:b + 2])][None] for t, of in zip(at, (starts[0], starts[1], starts[1]))]
                for b in range(len(lengths))]
        return [torch.cat([attend(*own, kind, causal=True)[0][0] for own in rows])]

    return judged_gradients("varlen", twice((o,), inputs, upstream), inputs, upstream, each)


def refused(word, options):
    """A request that must be refused with a message that names the fault."""
    q, k, v = tensors(F16, [1, 64, 64, 4, 4, 64])
    try:
        ferroflash.flash_attn_func(q, k, v, **options)
        said = "nothing"
    except ferroflash.Error as error:
        said = str(error)
    return {"name": f"refused: {word}", "said": said, "passed": word.split("_")[-1] in said}


def without_kernel(name, dtype, sizes, options):
    """A valid request that no kernel solves: the planner refuses it by the name of its mask or score."""
    options = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    try:
        ferroflash.flash_attn_func(*tensors(dtype, sizes), **options)
        said = "nothing"
    except ferroflash.Unsupported as error:
        said = str(error)
    word = next(word for word in ("bias", "prefix", "chunked", "mask_bits") if word in options)
    return {"name": f"without a kernel: {name}", "said": said, "passed": word.split("_")[-1] in said}


# name, [batch, seqlen_q, heads_q, heads_k, head_dim], keys per page (None: no pages), options
CACHES = [
    ("cache", [3, 1, 8, 2, 128], None, {}),
    ("cache, pages of 16", [5, 1, 8, 2, 64], 16, {}),
    ("cache, pages of 1, causal", [3, 4, 4, 2, 128], 1, {"causal": True}),
    ("cache, pages of 48, window, softcap", [3, 2, 4, 1, 128], 48, {"window_size": (60, 0), "softcap": 20.0}),
    ("cache, splits of 128 keys", [3, 1, 8, 2, 128], 16, {"split_keys": 128}),
    ("cache, two parts", [3, 1, 8, 2, 128], 16, {"num_splits": 2}),
    # Powers of two, so that the reference reads exact numbers.
    ("cache of eight bits", [3, 1, 8, 2, 128], 16, {"k_descale": 2.0**-5, "v_descale": 0.5}),
    ("prompts on a cache of eight bits", [3, 150, 8, 2, 128], 16, {"k_descale": 2.0**-5, "v_descale": 0.5, "causal": True}),
    ("prompts on eight bits, pages of 3, window, softcap", [3, 100, 8, 2, 64], 3,
     {"k_descale": 2.0**-5, "v_descale": 0.5, "window_size": (60, 0), "softcap": 20.0}),
    ("prompts on eight bits, head dim 256", [2, 80, 4, 2, 256], 16, {"k_descale": 2.0**-4, "v_descale": 2.0}),
]


def cached(name, sizes, page, options):
    """Appends two keys to a cache of ragged lengths and decodes; compares each sequence with float64."""
    batch, rows, heads, heads_k, dim = sizes
    new, most = max(rows, 2), 640
    lengths = torch.tensor([(97 * (b + 3)) % 600 for b in range(batch)], dtype=torch.int32, device="cuda")
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=F16)
    q, k, v = make(batch, rows, heads, dim), make(batch, new, heads_k, dim), make(batch, new, heads_k, dim)
    size = page or most
    columns = -(-most // size)
    pool = [make(batch * columns, size, heads_k, dim) for _ in range(2)]
    scales = [options.get("k_descale"), options.get("v_descale")]
    stored = lambda t, scale: t if scale is None else (t.float() / scale).to(torch.float8_e4m3fn)
    read = lambda t, scale: t if scale is None else (t.float() * scale).to(F16)
    pool = [stored(*pair) for pair in zip(pool, scales)]
    table = torch.randperm(batch * columns, device="cuda").reshape(batch, columns).int() if page else None
    o, lse = ferroflash.flash_attn_with_kvcache(q, *pool, k, v, cache_seqlens=lengths, block_table=table,
                                             return_softmax_lse=True, **options)
    meant = {key: options[key] for key in options if key in ("causal", "window_size", "softcap")}
    row = {"name": name, "error": 0.0, "tolerance": 0.0, "passed": True}
    for b, length in enumerate(lengths.tolist()):
        numbers = table[b].long() if page else torch.tensor([b], device="cuda")
        own = [t[numbers].reshape(-1, heads_k, dim)[None, :length + new] for t in pool]
        # The new keys are at their positions.
        placed = all(torch.equal(t[0, length:].float(), stored(fresh[b], scale).float())
                     for t, fresh, scale in zip(own, (k, v), scales))
        own = [read(*pair) for pair in zip(own, scales)]
        exact, exact_lse = attend(q[b:b + 1], *own, torch.float64, **meant)
        naive, _ = attend(q[b:b + 1], *own, F16, **meant)
        error, tolerance = largest(o[b:b + 1].double() - exact), 2 * largest(naive.double() - exact) + 1e-5
        off = largest(lse[b:b + 1].double() - exact_lse)
        row["passed"] &= placed and error <= tolerance and off <= 1e-3
        row["error"], row["tolerance"] = max((row["error"], row["tolerance"]), (error, tolerance))
    return row


# name, [batch, seqlen_q, heads_q, heads_k, head_dim], keys per page, options
INTEGERS = [
    ("int8 cache", [3, 1, 8, 2, 128], 16, {}),
    ("int8 cache, 4 queries, window, softcap", [3, 4, 8, 1, 64], 5, {"window_size": (60, 0), "softcap": 20.0}),
    ("prompts on an int8 cache", [3, 150, 8, 2, 64], 16, {"causal": True}),
]


def integer_cached(name, sizes, page, options):
    """Appends new keys to an int8 cache and attends to it; compares the new rows with torch, each sequence with float64."""
    batch, rows, heads, heads_k, dim = sizes
    lengths = torch.tensor([(97 * (b + 3)) % 600 for b in range(batch)], dtype=torch.int32, device="cuda")
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=F16)
    q, k, v = make(batch, rows, heads, dim), make(batch, rows, heads_k, dim), make(batch, rows, heads_k, dim)
    columns = -(-(600 + rows) // page)
    pages = [batch * columns, page, heads_k]
    pool = [torch.randint(-127, 128, (*pages, dim), dtype=torch.int8, device="cuda") for _ in range(2)]
    scales = [torch.rand(*pages, device="cuda") * 0.02 for _ in range(2)]
    table = torch.randperm(batch * columns, device="cuda").reshape(batch, columns).int()
    o, lse = ferroflash.flash_attn_with_kvcache(q, *pool, k, v, cache_seqlens=lengths, block_table=table, k_descale=scales[0],
                                             v_descale=scales[1], return_softmax_lse=True, **options)
    row = {"name": name, "error": 0.0, "tolerance": 0.0, "passed": True}
    for b, length in enumerate(lengths.tolist()):
        own = [t[table[b].long()].reshape(-1, *t.shape[2:])[:length + rows] for t in (*pool, *scales)]
        for new, stored, scale in zip((k, v), own[:2], own[2:]):
            # On a GPU, torch multiplies by the inverse of a number, but divides by a tensor.
            meant = new[b].float().abs().amax(-1) / torch.tensor(127.0, device="cuda")
            row["passed"] &= torch.equal(scale[length:], meant)
            row["passed"] &= torch.equal(stored[length:], (new[b].float() / meant[..., None]).round().to(torch.int8))
        keys, values = [(t.double() * scale.double()[..., None])[None] for t, scale in zip(own[:2], own[2:])]
        exact, exact_lse = attend(q[b:b + 1], keys, values, torch.float64, **options)
        naive, _ = attend(q[b:b + 1], keys, values, F16, **options)
        error = largest(o[b:b + 1].double() - exact)
        tolerance = 2 * largest(naive.double() - exact) + 1e-5
        row["passed"] &= error <= tolerance and largest(lse[b:b + 1].double() - exact_lse) <= 1e-3
        row["error"], row["tolerance"] = max((row["error"], row["tolerance"]), (error, tolerance))
    return row


# name, dtype of the cache, [(queries, keys), ..], [heads_q, heads_k, head_dim]
MIXTURE = [(1, 900), (150, 150), (0, 17), (4, 300), (70, 300)]
RAGGED = [
    ("ragged queries on eight bits", torch.float8_e4m3fn, MIXTURE, [8, 2, 128]),
    ("prompts of one length on eight bits", torch.float8_e4m3fn, [(256, 256)] * 3, [8, 8, 64]),
    ("ragged queries on an int8 cache", torch.int8, MIXTURE, [8, 2, 128]),
    ("prompts of one length on an int8 cache", torch.int8, [(200, 256)] * 3, [8, 8, 256]),
]


def ragged(name, dtype, lengths, heads):
    """Varlen queries on pages of 16 keys of eight bits; compares each sequence with float64."""
    heads_q, heads_k, dim = heads
    ends = [sum(queries for queries, _ in lengths[:b]) for b in range(len(lengths) + 1)]
    columns, scales = -(-max(keys for _, keys in lengths) // 16), (2.0**-5, 0.5)
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=F16)
    pages = [len(lengths) * columns, 16, heads_k]
    q, pool = make(ends[-1], heads_q, dim), [make(*pages, dim) for _ in range(2)]
    if dtype == torch.int8:
        scales = [torch.rand(*pages, device="cuda") * 0.02 for _ in range(2)]
        pool = [torch.randint(-127, 128, (*pages, dim), dtype=dtype, device="cuda") for _ in range(2)]
        numbers = [t.double() * scale.double()[..., None] for t, scale in zip(pool, scales)]
    else:
        pool = [(t.float() / scale).to(dtype) for t, scale in zip(pool, scales)]
        numbers = [(t.float() * scale).to(F16) for t, scale in zip(pool, scales)]
    table = torch.randperm(len(lengths) * columns, device="cuda").reshape(len(lengths), columns).int()
    integers = lambda values: torch.tensor(values, dtype=torch.int32, device="cuda")
    o, lse = ferroflash.flash_attn_with_kvcache(
        q, *pool, cache_seqlens=integers([keys for _, keys in lengths]), block_table=table, causal=True,
        cu_seqlens_q=integers(ends), max_seqlen_q=max(queries for queries, _ in lengths), k_descale=scales[0],
        v_descale=scales[1], return_softmax_lse=True)
    row = {"name": name, "error": 0.0, "tolerance": 0.0, "passed": True}
    for b, (queries, keys) in enumerate(lengths):
        if not queries:
            continue
        mine = slice(*ends[b:b + 2])
        own = [t[table[b].long()].reshape(-1, heads_k, dim)[None, :keys] for t in numbers]
        exact, exact_lse = attend(q[None, mine], *own, torch.float64, causal=True)
        naive, _ = attend(q[None, mine], *own, F16, causal=True)
        error, tolerance = largest(o[None, mine].double() - exact), 2 * largest(naive.double() - exact) + 1e-5
        row["passed"] &= error <= tolerance and largest(lse[:, mine].double() - exact_lse[0]) <= 1e-3
        row["error"], row["tolerance"] = max((row["error"], row["tolerance"]), (error, tolerance))
    return row


# name, query heads, queries, keys per page, causal
LATENTS = [
    ("latent cache", 16, 1, 16, False),
    ("latent cache, 2 queries, causal", 64, 2, 1, True),
    ("latent cache, 128 heads", 128, 1, 64, True),
]


def latent(name, heads, queries, page, causal):
    """Appends rows to a latent cache of ragged lengths and decodes; compares each sequence with float64."""
    lengths = torch.tensor([5, 600, 97], dtype=torch.int32, device="cuda")
    columns, scale = -(-600 // page), 192 ** -0.5
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=BF16)
    q, cache = make(3, queries, heads, 576), torch.full((3 * columns, page, 1, 576), float("nan"), device="cuda", dtype=BF16)
    table = torch.randperm(3 * columns, device="cuda").reshape(3, columns).int()
    row = {"name": name, "error": 0.0, "tolerance": 0.0, "passed": True}
    rows = [make(length, 1, 576) for length in lengths.tolist()]
    for b, own in enumerate(rows):
        at = torch.arange(own.shape[0], device="cuda")
        kvcache.append(own, None, cache, None, table[b].long()[at // page] * page + at % page, head_dim_v=512)()
    o, lse = ferroflash.flash_mla_with_kvcache(q, cache, table, lengths, 512, softmax_scale=scale, causal=causal)
    for b, own in enumerate(rows):
        both = (q[b:b + 1], own[None], own[None, ..., :512])
        exact, exact_lse = attend(*both, torch.float64, causal=causal, softmax_scale=scale)
        naive, _ = attend(*both, BF16, causal=causal, softmax_scale=scale)
        error, tolerance = largest(o[b:b + 1].double() - exact), 2 * largest(naive.double() - exact) + 1e-5
        row["passed"] &= error <= tolerance and largest(lse[b:b + 1].double() - exact_lse) <= 1e-2
        row["error"], row["tolerance"] = max((row["error"], row["tolerance"]), (error, tolerance))
    return row


def latent_shared():
    """32 sequences share the first 32 pages of a latent cache: one pass over them, one over the rest of each sequence."""
    batch, page, pages = 32, 64, 32
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=BF16)
    q, cache = make(batch, 2, 16, 576), make(pages + batch, page, 1, 576)
    own = torch.arange(batch, device="cuda", dtype=torch.int32)
    table = torch.cat((torch.arange(pages, device="cuda").expand(batch, -1).int(), (pages + own)[:, None]), 1)
    rest = own + 2
    outputs = []
    for shared in (None, (1, pages, rest)):
        o = torch.empty(batch, 2, 16, 512, device="cuda", dtype=BF16)
        kvcache.Launch(q, cache, None, o, pages * page + rest, table=table, mask=CAUSAL, scale=192 ** -0.5,
                       shared_prefixes=shared).enqueue()
        outputs.append(o.double())
    # Two passes round partial results.
    return 0 < largest(outputs[0] - outputs[1]) <= 1e-2


# name, [heads_q, heads_k, head_dim], [(queries, keys), ..], keys per page (None: varlen keys), options
PACKED = [
    ("packed", [4, 2, 64], [(100, 100), (1, 1), (333, 333)], None, {"causal": True}),
    ("packed, fewer queries, empty ones, no key", [4, 4, 128], [(5, 90), (0, 17), (130, 0), (64, 40)], None,
     {"causal": True}),
    ("packed, window, softcap", [2, 1, 96], [(200, 200), (30, 70)], None, {"window_size": (40, 7), "softcap": 20.0}),
    ("packed on pages", [8, 2, 128], [(1, 900), (150, 150), (70, 300), (0, 0)], 16, {"causal": True}),
    ("packed on pages of 1", [4, 4, 64], [(40, 77), (200, 200)], 1, {}),
]


def packed(name, heads, lengths, page, options):
    """Varlen sequences with varlen or paged keys; compares each sequence with float64."""
    heads_q, heads_k, dim = heads
    starts = [[sum(pair[i] for pair in lengths[:b]) for b in range(len(lengths) + 1)] for i in range(2)]
    make = lambda rows, heads: torch.randn(max(rows, 1), heads, dim, device="cuda", dtype=F16)
    q, k, v = make(starts[0][-1], heads_q), make(starts[1][-1], heads_k), make(starts[1][-1], heads_k)
    own, table = (k, v), None
    if page:
        columns = -(-max(keys for _, keys in lengths) // page)
        own = [torch.full((len(lengths) * columns, page, heads_k, dim), float("nan"), device="cuda", dtype=F16)
               for _ in range(2)]
        table = torch.randperm(len(lengths) * columns, device="cuda").reshape(len(lengths), columns).int()
        for pool, t in zip(own, (k, v)):
            for b, (_, keys) in enumerate(lengths):
                rows = torch.full((columns * page, heads_k, dim), float("nan"), device="cuda", dtype=F16)
                rows[:keys] = t[starts[1][b]:starts[1][b + 1]]
                pool[table[b].long()] = rows.view(columns, page, heads_k, dim)
    ends = [torch.tensor(values, dtype=torch.int32, device="cuda") for values in starts]
    longest = [max(pair[i] for pair in lengths) for i in range(2)]
    o, lse = ferroflash.flash_attn_varlen_func(q, *own, *ends, *longest, block_table=table, return_lse=True, **options)
    _, theirs, _ = ferroflash.flash_attn_varlen_func(q, *own, *ends, *longest, block_table=table, return_attn_probs=True,
                                                 **options)
    row = {"name": name, "error": 0.0, "tolerance": 0.0}
    row["passed"] = torch.equal(theirs, lse.masked_fill(lse.isneginf(), float("inf")))
    for b, (queries, keys) in enumerate(lengths):
        mine, those = slice(*starts[0][b:b + 2]), slice(*starts[1][b:b + 2])
        if not queries:
            continue
        if not keys:
            row["passed"] &= bool((o[mine] == 0).all()) and bool(lse[:, mine].isneginf().all())
            continue
        exact, exact_lse = attend(q[None, mine], k[None, those], v[None, those], torch.float64, **options)
        naive, _ = attend(q[None, mine], k[None, those], v[None, those], F16, **options)
        error, tolerance = largest(o[None, mine].double() - exact), 2 * largest(naive.double() - exact) + 1e-5
        seen = torch.isfinite(exact_lse[0])
        off = largest((lse[:, mine].double() - exact_lse[0])[seen])
        row["passed"] &= error <= tolerance and off <= 1e-3 and torch.equal(lse[:, mine].isneginf(), ~seen)
        row["error"], row["tolerance"] = max((row["error"], row["tolerance"]), (error, tolerance))
    return row


def on_another_stream():
    q, k, v = tensors(F16, [1, 256, 256, 4, 4, 64])
    expected = ferroflash.flash_attn_func(q, k, v)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        o = ferroflash.flash_attn_func(q, k, v)
    stream.synchronize()
    return torch.equal(o, expected)


def in_a_graph():
    q, k, v = tensors(F16, [1, 128, 8192, 4, 4, 64])
    ferroflash.flash_attn_func(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = ferroflash.flash_attn_func(q, k, v)
    q.copy_(torch.randn_like(q))
    graph.replay()
    torch.cuda.synchronize()
    return torch.equal(o, ferroflash.flash_attn_func(q, k, v))


def packed_in_a_graph():
    """A graph captured for some lengths and replayed with others gives the bits of a direct call."""
    q, k, v = (t[0] for t in tensors(F16, [1, 600, 600, 4, 2, 64]))
    lengths = lambda *values: torch.tensor(values, dtype=torch.int32, device="cuda")
    starts, other = lengths(0, 200, 400, 600), lengths(0, 37, 37, 600)
    call = lambda ends: ferroflash.flash_attn_varlen_func(q, k, v, ends, ends, 600, 600, causal=True)
    call(starts)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = call(starts)
    starts.copy_(other)
    graph.replay()
    torch.cuda.synchronize()
    return torch.equal(o, call(other))


def merged():
    """The merged results of two halves of the keys equal the result of all keys."""
    q, k, v = tensors(F16, [1, 70, 300, 4, 4, 64])
    halves = [ferroflash.flash_attn_func(q, *(t[:, part] for t in (k, v)), return_lse=True)
              for part in (slice(0, 111), slice(111, 300))]
    o = torch.full_like(q[0], float("nan"))
    ferroflash.merge_attn_states(o, *(t[0] for half in halves for t in half))
    exact, _ = attend(q, k, v, torch.float64)
    naive, _ = attend(q, k, v, F16)
    # Each half has one more rounding.
    return largest(o.double() - exact[0]) <= 3 * largest(naive.double() - exact) + 1e-5


def in_threads(count=4, calls=50):
    q, k, v = tensors(F16, [1, 256, 256, 4, 4, 64])
    expected = ferroflash.flash_attn_func(q, k, v)
    torch.cuda.synchronize()
    equal = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            outputs = [ferroflash.flash_attn_func(q, k, v) for _ in range(calls)]
            torch.cuda.current_stream().synchronize()
        equal.append(all(torch.equal(o, expected) for o in outputs))

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(equal) == count and all(equal)


def main(out):
    torch.manual_seed(1)
    rows = [check(*case) for case in CASES] + [refused(*request) for request in REFUSED]
    rows += [without_kernel(*case) for case in WITHOUT_KERNEL]
    rows += [trained(*case) for case in CASES if trains(case[3])] + [trained_varlen()]
    rows += [cached(*case) for case in CACHES] + [ragged(*case) for case in RAGGED]
    rows += [integer_cached(*case) for case in INTEGERS]
    rows += [latent(*case) for case in LATENTS] + [packed(*case) for case in PACKED]
    for name, work in (("another stream", on_another_stream), ("a graph", in_a_graph), ("threads", in_threads),
                       ("packed, in a graph, other lengths", packed_in_a_graph), ("merged", merged),
                       ("latent cache, shared pages", latent_shared)):
        rows.append({"name": name, "passed": work()})
    wrong = [row["name"] for row in rows if not row["passed"]]
    report = {"device": torch.cuda.get_device_name(), "command": "python3 shim.py", "passed": not wrong, "cases": rows}
    with open(out, "w") as file:
        json.dump(report, file, indent=1)
    for row in rows:
        errors = f' error {row["error"]:.1e} of {row["tolerance"]:.1e}' if "error" in row else ""
        print(f'{row["name"]:42} {"passed" if row["passed"] else "WRONG"}{errors}')
    if wrong:
        sys.exit("wrong: " + "; ".join(wrong))


if __name__ == "__main__":
    main(sys.argv[1])
