"""FlashMLA's functions, with its names, its order of arguments and its defaults: attention on a latent cache (MLA).

Arguments behind `*` are FerroFlash's own. With `device="sim"`, the functions take arrays, as those of `functions.py`.
"""
from __future__ import annotations

import ctypes
from typing import Any

from . import _devices, checks, kvcache
from ._library import Invalid, Unsupported, WrongType
from ._types import Array, Memory, Tensor
from .functions import operator, repeated
from .planned import CAUSAL, FULL, INVARIANCE, Planned, layout, like_flash_attn, of_rows, one_of, reuse, wanted


class ListedLaunch(Planned):
    """One attention launch of queries with lists of keys of a latent cache, on the stream that is current now.

    q is (queries, heads, head_dim), of all sequences, and o (queries, heads, head_dim_v). The cache is (pages, page,
    heads_k, head_dim); in float8_e4m3fn, `k_descale` is its scale: a float, or float32 () on the device. With
    `scaled_rows`, its rows are 656 bytes. indices, int32 (queries, heads_k, topk), are slots: page * keys per page + row. lse is (queries,
    heads).
    """

    def __init__(self, q: Memory, k_cache: Memory, o: Memory, indices: Memory, *, lse: Memory, scale: float,
                 sinks: Memory = None, config: str | None = None, invariance: str | None = None,
                 k_descale: Any = None, scaled_rows: bool = False) -> None:
        layout, sizes = (checks.SCALED_LISTED_LAUNCH, dict(checks.OF_ROW)) if scaled_rows else (checks.LISTED_LAUNCH, {})
        super().__init__(q, FULL, (-1, -1), scale, 0.0, config, checks.Call(layout, q.device, sizes))
        args = self.args
        self.kept = named = {"q": q, "k_cache": k_cache, "indices": indices, "o": o, "lse": lse, "sinks": sinks}
        self.take(**named)
        args.batch, args.heads_q, args.head_dim = q.shape
        args.seqlen_q, args.topk, args.head_dim_v = 1, indices.shape[-1], o.shape[-1]
        args.pages, args.page, args.heads_k = k_cache.shape[:3]
        args.cache_dtype = _devices.of_cache(k_cache.dtype, scaled_rows)
        kvcache.set_scales(args, (k_descale, None), "descale", self.call)
        args.invariance = one_of("invariance", invariance, INVARIANCE)
        self.strides({}, None, k=k_cache.stride(), **{name: (query, 0, head, column) for name, (query, head, column)
                                                       in (("q", q.stride()), ("o", o.stride()))})
        args.lse_strides = (ctypes.c_int64 * 2)(*lse.stride())
        self.plan_it()


# The queries of one launch of lists
QUERIES = 4096


def _listed(q: Memory, k_cache: Memory, indices: Memory, head_dim_v: int, scale: float,
            sinks: Memory, invariance: str | None = None, **rows: Any) -> tuple[Memory, Memory]:
    """Returns o (queries, heads, head_dim_v) and lse (queries, heads)."""
    sinks, device = _sinks(q, sinks), _devices.of(q)
    o, lse = q.new_empty((*q.shape[:2], head_dim_v)), of_rows(q, q.shape[:2], ("lse",))["lse"]
    for first in range(0, q.shape[0], QUERIES):
        part = (q, o, indices, lse) if q.shape[0] <= QUERIES else (t[first:first + QUERIES] for t in (q, o, indices, lse))
        _launch(device, k_cache, sinks, scale, invariance, rows, *part)
    return o, like_flash_attn(lse)


def _launch(device: Any, k_cache: Memory, sinks: Memory, scale: float, invariance: str | None, rows: dict[str, Any],
            q: Memory, o: Memory, indices: Memory, lse: Memory) -> None:
    """Runs one launch of at most QUERIES queries. `rows` says what rows of eight bits are."""
    tensors = {"q": q, "k_cache": k_cache, "indices": indices, "o": o, "lse": lse, "sinks": sinks}
    key = (ListedLaunch, *map(layout, tensors.values()), scale, invariance, *map(layout, rows.values()))
    make = lambda: ListedLaunch(q, k_cache, o, indices, lse=lse, scale=scale, sinks=sinks, invariance=invariance, **rows)
    if hasattr(rows.get("k_descale"), "data_ptr"):
        tensors["k_scales"] = rows["k_descale"]
    reuse(device, key, make, **tensors).run()


def _sinks(q: Memory, attn_sink: Memory) -> Memory:
    """Checks the sinks of q's heads under FlashMLA's name."""
    if attn_sink is not None:
        if not hasattr(attn_sink, "data_ptr"):
            raise WrongType(f"attn_sink is {attn_sink!r:.60}; it must be a tensor of float32 (heads)")
        checks.Call(checks.SINK, q.device, {"heads": q.shape[-2]}).require(attn_sink=attn_sink)
    return attn_sink


def _rows(q: Memory, k_cache: Memory, is_fp8_kvcache: bool, k_descale: Any) -> dict[str, Any]:
    """Returns what rows of eight bits are: the scale of all, and whether they have scales of their own, in 656 bytes."""
    kind, row_bytes = _devices.name(k_cache.dtype), checks.OF_ROW["row_bytes"]
    is_eight, has_scales = kind in checks.BYTES, k_cache.shape[-1] == row_bytes
    if is_fp8_kvcache and not is_eight:
        raise WrongType(f"is_fp8_kvcache with k_cache of {kind}: k_cache must be float8_e4m3fn, or uint8 with rows of "
                        f"{row_bytes} bytes; leave is_fp8_kvcache False, or convert k_cache")
    if is_eight and has_scales and not is_fp8_kvcache:
        raise Invalid(f"is_fp8_kvcache False with k_cache {tuple(k_cache.shape)} of {kind}: it must be True for rows of "
                      f"{row_bytes} bytes, which have scales")
    of_q = _devices.name(q.dtype)
    if not has_scales and of_q in _devices.INPUTS and kind not in (of_q, _devices.EIGHT):
        remedy = f", or have rows of {row_bytes} bytes" if is_eight else ""
        raise WrongType(f"k_cache {tuple(k_cache.shape)} is {kind}; it must be {of_q} (as q) or {_devices.EIGHT}{remedy}; "
                        "convert k_cache")
    if k_descale is not None and (has_scales or not is_eight):
        raise Invalid(f"k_descale with k_cache {tuple(k_cache.shape)} of {kind}: it must be None; only float8_e4m3fn rows "
                      "without scales of their own have it")
    if hasattr(k_descale, "data_ptr"):
        k_descale = k_descale.float()
    elif k_descale is not None:
        (k_descale,) = checks.scalars(k_descale=k_descale)
    return {"k_descale": k_descale, "scaled_rows": has_scales and is_fp8_kvcache}


def _lists(q: Memory, indices: Array) -> Memory:
    """Returns lists as int32 beside q. Kernels read lists without gaps, so other lists are copied."""
    (lists,) = _devices.integers(q, indices=indices)
    return lists.contiguous()


def _refuse(remedy: str, **given: Any) -> None:
    """Refuses FlashMLA's arguments that FerroFlash lacks."""
    for name, value in given.items():
        if value is not None and value is not False and not (isinstance(value, int) and value == 0):
            raise Unsupported(f"{name}: FerroFlash's kernels of latent caches have none; {remedy}")


def get_mla_metadata(*_args: object, **_options: object) -> tuple[None, None]:
    """FlashMLA's plan. FerroFlash's kernels schedule themselves on the device, so both parts are None."""
    return None, None


@repeated
@operator
def flash_mla_with_kvcache(q: Tensor, k_cache: Array, block_table: Array | None, cache_seqlens: Array | None,
                           head_dim_v: int, tile_scheduler_metadata: object = None, num_splits: object = None,
                           softmax_scale: float | None = None, causal: bool = False, is_fp8_kvcache: bool = False,
                           indices: Array | None = None, attn_sink: Array | None = None,
                           extra_k_cache: Array | None = None, extra_indices_in_kvcache: Array | None = None,
                           topk_length: Array | None = None, extra_topk_length: Array | None = None, *,
                           return_max_logits: bool = False, return_entropy: bool = False,
                           return_max_logits_head: bool = False, invariance: str | None = None,
                           k_descale: Array | float | None = None, device: str | None = None) -> tuple[Any, ...]:
    """Computes MLA decode of q (batch, seqlen_q, heads, head_dim) on a latent cache (pages, page, 1, head_dim).

    The values are the first `head_dim_v` columns of the cache. The default of `softmax_scale` is FlashMLA's, head_dim
    ** -0.5; a model's is that of its keys before absorption. `attn_sink`, float32 (heads), are logits that belong to no
    key; the returned lse includes them, and FlashMLA's does not.

    With `indices`, int32 (batch, seqlen_q, topk), each query has a list of slots of the cache: page * keys per page +
    row. The list is the mask. A slot that stands twice counts twice, and the kernel skips a slot that is negative or
    beyond all pages. Lists with gaps between them are copied. block_table and cache_seqlens then are None.

    The cache has the dtype of q, or eight bits. In float8_e4m3fn, `k_descale` is the scale of its numbers: a float, or
    float32 () or, without indices, (batch, 1). With `is_fp8_kvcache`, rows of 656 bytes (uint8, int8 or float8_e4m3fn)
    are FlashMLA's: 512 float8_e4m3fn, 4 float32, each the scale of 128 of them, and 64 bfloat16. q then is bfloat16
    with 576 columns.

    Returns o (batch, seqlen_q, heads, head_dim_v), and lse, float32 (batch, heads, seqlen_q). For a row without a key,
    lse is +inf, or the sink; for a sink of +inf, it is 2.4e38. With return_max_logits or return_entropy (in nats), which lists do not
    have, the tuple goes on with each, of the shape of lse, and with return_max_logits_head with the largest score of each
    head, float32 (heads).
    """
    (head_dim_v, softmax_scale, causal, is_fp8_kvcache, return_max_logits, return_entropy, return_max_logits_head,
     invariance) = checks.scalars(
        head_dim_v=head_dim_v, softmax_scale=softmax_scale, causal=causal, is_fp8_kvcache=is_fp8_kvcache,
        return_max_logits=return_max_logits, return_entropy=return_entropy,
        return_max_logits_head=return_max_logits_head, invariance=invariance)
    checks.given({"attn_sink": attn_sink}, q=q, k_cache=k_cache)
    _refuse("put all keys into one cache", extra_k_cache=extra_k_cache,
            extra_indices_in_kvcache=extra_indices_in_kvcache, extra_topk_length=extra_topk_length)
    _refuse("write -1 over the entries that it excludes", topk_length=topk_length)
    queries: Memory = q
    checks.ranks(checks.CACHE, q=q, k_cache=k_cache)
    rows = _rows(queries, k_cache, is_fp8_kvcache, k_descale)
    # An empty row is refused later.
    scale = max(q.shape[-1], 1) ** -0.5 if softmax_scale is None else softmax_scale
    if indices is not None:
        others = {"block_table": block_table, "cache_seqlens": cache_seqlens, "causal": causal or None,
                  "return_max_logits": return_max_logits or None, "return_entropy": return_entropy or None,
                  "return_max_logits_head": return_max_logits_head or None}
        for name, value in others.items():
            if value is not None:
                raise Invalid(f"{name} beside indices: a query's list is its mask, of slots of the whole cache, and its "
                              f"launch has o and lse only; leave {name} out")
        slots = _lists(q, indices)
        lists = checks.SCALED_LISTS if rows["scaled_rows"] else checks.LISTED_CACHE
        checks.Call(lists, q.device, {"heads_k": 1, **checks.OF_ROW}).require(q=q, k_cache=k_cache, indices=slots)
        batch, seqlen_q, heads, head_dim = q.shape
        count = batch * seqlen_q
        o, lse = _listed(queries.reshape(count, heads, head_dim), k_cache, slots.reshape(count, 1, slots.shape[-1]),
                         head_dim_v, scale, attn_sink, invariance, **rows)
        return o.reshape(batch, seqlen_q, heads, head_dim_v), lse.reshape(batch, seqlen_q, heads).transpose(1, 2)
    lengths, table = _devices.integers(q, cache_seqlens=cache_seqlens, block_table=block_table)
    if lengths is None:
        raise Invalid("cache_seqlens None: it must be int32 (batch), the keys of each sequence; pass it, or indices")
    checks.ranks(checks.CACHE, block_table=table, cache_seqlens=lengths)
    full = k_cache.shape[1] * (1 if table is None else table.shape[1])
    if full:
        checks.lengths("cache_seqlens", cache_seqlens, full)
    checks.pages(k_cache, block_table, None, lengths)
    outputs = wanted(True, return_max_logits, return_entropy, return_max_logits_head)
    return kvcache.attend(queries, k_cache, None, lengths, head_dim_v, outputs, table=table, sinks=_sinks(q, attn_sink),
                          mask=CAUSAL if causal else FULL, scale=scale, invariance=invariance,
                          scales=(rows["k_descale"], None), scaled_rows=rows["scaled_rows"])


@operator
def flash_mla_sparse_fwd(q: Tensor, kv: Array, indices: Array, sm_scale: float, d_v: int = 512,
                         attn_sink: Array | None = None, topk_length: Array | None = None, indexer_topk: int = 0, *,
                         device: str | None = None) -> tuple[Tensor, None, Tensor]:
    """Computes attention of q (queries, heads, head_dim), each with a list of rows of kv (keys, heads_k, head_dim).

    `indices` are int32 (queries, heads_k, topk). A row that a list has twice counts twice, and the kernel skips an
    index that is negative or beyond all rows. Lists with gaps between them are copied. The values are the first `d_v`
    columns of kv. `attn_sink`, float32 (heads), are logits that belong to no key; the returned lse includes them, and FlashMLA's does not.

    Returns o (queries, heads, d_v), None in place of FlashMLA's max_logits, and lse, float32 (queries, heads). For a
    row without a key, lse is +inf, or the sink; for a sink of +inf, it is 2.4e38.
    """
    sm_scale, d_v = checks.scalars(sm_scale=sm_scale, d_v=d_v)
    checks.given({"attn_sink": attn_sink}, q=q, kv=kv)
    checks.needed(indices=indices)
    _refuse("write -1 over the entries that it excludes", topk_length=topk_length)
    _refuse("leave it 0", indexer_topk=indexer_topk)
    if _devices.name(kv.dtype) in checks.BYTES:
        raise WrongType(f"kv is {_devices.name(kv.dtype)}; it must be {_devices.name(q.dtype)} (as q); convert kv, or call "
                        "flash_mla_with_kvcache with indices, which takes rows of eight bits")
    slots = _lists(q, indices)
    checks.Call(checks.LISTED, q.device).require(q=q, kv=kv, indices=slots)
    keys: Memory = kv
    names = {"softmax_scale": "sm_scale", "head_dim_v": "d_v", "k_cache": "kv", "sinks": "attn_sink"}
    o, lse = checks.renamed(names, lambda: _listed(q, keys.reshape(1, *keys.shape), slots, d_v, sm_scale, attn_sink))
    return o, None, lse
