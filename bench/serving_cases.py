"""Contenders of serving.py on equal inputs: their caches, their calls, and the float64 judge."""
import math
import random

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ferroflash import kvcache
from ferroflash.planned import CAUSAL, FULL, WINDOW

DEVICE = "cuda"
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
# The minimum number of bytes of all sets of tensors that a contender takes in turn: several times the size of any L2 cache.
COLD = 300e6
# A set with fewer bytes than this stays in the L2 cache. Such a set is also measured hot.
HOT = 40e6
MOST_SETS = 64
# The maximum number of bytes of one contender's sets. Sets with windows then move fewer bytes than COLD.
MOST_BYTES = 24e9


class Group:
    """Contenders on equal inputs.

    `contenders` is {name: (calls, judge)}: one call per set of tensors, and a judge of the last call's output. `pairs` is
    [(suite, ours, peer)]. With peer None, the peer is the time to move the least bytes. `bytes` is {name: least bytes of a
    call}. `entries` are the names of FerroFlash's kernels. `fill` makes tensors and contenders. `prepare` runs between
    capture and replay.
    """

    def __init__(self, label, pairs, sizes, fill, flops=0):
        self.label, self.pairs, self.bytes, self.flops = label, pairs, sizes, flops
        self.contenders, self.entries, self.failed, self.prepare = {}, {}, [], lambda: None
        self.fill = lambda: fill(self)

    def names(self):
        return {name for _, *names in self.pairs for name in names if name}

    def add(self, name, make):
        """Adds the contender that `make` returns, if a pair needs it. A peer's library may be missing."""
        if name in self.names():
            try:
                self.contenders[name] = made = make()
                self.entries[name] = getattr(made[0][0], "entry", None)
            except Exception as reason:
                self.lost(name, reason)

    def lost(self, name, reason):
        self.contenders.pop(name, None)
        print(f"{self.label}: {name} is not available: {repr(reason)[:300]}", flush=True)
        if name not in PEERS:
            self.failed.append(f"{self.label}, {name}: {repr(reason)[:300]}")


class Cache:
    """Keys and values (pages, page, heads, dim), with a table (batch, columns) or with one page per sequence."""

    def __init__(self, k, v, table=None):
        self.k, self.v, self.table = k, v, table

    def nhd(self):
        """Returns the memory of an HND dense cache, reinterpreted as NHD."""
        return Cache(*(t.transpose(1, 2).reshape(t.shape) for t in (self.k, self.v)))

    def paged(self, page, hnd=False):
        """Returns the same memory in pages, NHD or HND, which are assigned to sequences at random."""
        batch, keys, heads, dim = self.k.shape
        shape = (-1, heads, page, dim) if hnd else (-1, page, heads, dim)
        pools = [t.transpose(1, 2).reshape(shape) for t in (self.k, self.v)]
        pools = [t.transpose(1, 2) for t in pools] if hnd else pools
        return Cache(*pools, shuffled(pools[0].shape[0], batch, keys // page))

    def eight_bit(self):
        return Cache(*(t.to(torch.float8_e4m3fn) for t in (self.k, self.v)), self.table)

    def sequence(self, b, length):
        """Returns the valid keys and values of a sequence, (length, heads, dim)."""
        if self.table is None:
            return self.k[b, :length], self.v[b, :length]
        numbers = self.table[b, :-(-length // self.k.shape[1])].long()
        return tuple(t[numbers].flatten(0, 1)[:length] for t in (self.k, self.v))


def shuffled(pages, batch, columns):
    """Returns a random permutation of the page indices."""
    return torch.randperm(pages, device=DEVICE).int().view(batch, columns)


def filled(lengths, heads, dim, page, dtype):
    """Returns a cache of these lengths, with NaN after each sequence's keys. With a `page` of 0, the cache is dense."""
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


def prefixed(groups, batch, prefix, rest, heads, dim, page, dtype=torch.float16):
    """Returns a cache of `batch` sequences in equal groups, whose sequences share the pages of their first `prefix` keys."""
    shared, own = prefix // page, -(-rest // page)
    pages = groups * shared + batch * own
    order = torch.randperm(pages, device=DEVICE).int()
    first = order[:groups * shared].view(groups, shared).repeat_interleave(batch // groups, 0)
    table = torch.cat([first, order[groups * shared:].view(batch, own)], 1).contiguous()
    return Cache(normal(pages, page, heads, dim, dtype=dtype), normal(pages, page, heads, dim, dtype=dtype), table)


def integers(values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def normal(*shape, dtype=torch.float16):
    return torch.randn(*shape, device=DEVICE, dtype=dtype)


def sets_of(size, whole=0):
    """Returns the number of sets of tensors whose calls move `size` bytes. A set with windows has `whole` bytes, most of them unread."""
    fit = MOST_BYTES // max(size, whole)
    return int(min(MOST_SETS, max(1, fit), max(2 if size < 2e9 else 1, math.ceil(COLD / size))))


def attend(q, k, v, dtype, causal=False, window=(-1, -1), softcap=0.0, sinks=None):
    """Computes attention of one sequence with every step in `dtype`: (rows, heads, dim)."""
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
    """Returns the verdict on [(error, tolerance), ..]. A NaN makes the verdict a failure."""
    worst = max(errors, key=lambda pair: pair[0] / pair[1] if pair[0] == pair[0] else math.inf)
    return {"passed": all(error <= tolerance for error, tolerance in errors), "error": worst[0], "tolerance": worst[1]}


def compare(o, q, k, v, **options):
    """Returns (error, tolerance) of one sequence. The tolerance is twice the error of the naive computation in q's precision."""
    exact, naive = attend(q, k, v, torch.float64, **options), attend(q, k, v, q.dtype, **options)
    largest = lambda t: (t.double() - exact).abs().max().item()
    return largest(o), 2 * largest(naive) + 1e-5


def judge(q, cache, lengths, **options):
    """Compares o (batch, rows, heads, dim) with float64 for the first, last, longest, shortest and some other sequences."""
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


def enqueued(launch, o):
    """Returns a call that enqueues a launch and returns the launch's output."""
    def run():
        launch.enqueue()
        return o
    run.entry = launch.describe()["entry"]
    return run


def ours(q, caches, lengths, judged=None, causal=False, window=(-1, -1), softcap=0.0, sinks=None, **options):
    """Returns FerroFlash's decode calls of q, one per cache, and a judge of the last call's output."""
    o, launches = torch.empty_like(q), []
    mask = CAUSAL if causal else FULL if window == (-1, -1) else WINDOW
    for cache in caches:
        launches.append(kvcache.Launch(
            q, cache.k, cache.v, o, lengths, table=cache.table, mask=mask, window=window, softcap=softcap, sinks=sinks,
            share=launches[0] if launches else None, **options))

    meant = {"causal": causal, "window": window, "softcap": softcap, "sinks": sinks}
    return [enqueued(launch, o) for launch in launches], judged or judge(q, caches[-1], lengths, **meant)


def sdpa(backend, q, caches, lengths):
    """Returns calls of PyTorch's function on dense caches with equal lengths."""
    def call(cache):
        qt, k, v = (t.transpose(1, 2) for t in (q, cache.k, cache.v))
        gqa = q.shape[2] != k.shape[1]

        def run():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(qt, k, v, enable_gqa=gqa).transpose(1, 2)
        return run
    return [call(cache) for cache in caches], judge(q, caches[-1], lengths)


def fa3(q, caches, lengths):
    """Returns calls of FlashAttention-3 on caches, if it is installed."""
    from flash_attn_interface import flash_attn_with_kvcache

    def call(cache):
        def run():
            out = flash_attn_with_kvcache(q, cache.k, cache.v, cache_seqlens=lengths, page_table=cache.table)
            return out[0] if isinstance(out, tuple) else out
        return run
    return [call(cache) for cache in caches], judge(q, caches[-1], lengths)


BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}
PEERS = {*BACKENDS, "fa2 varlen", "fa3", "flashinfer"}
