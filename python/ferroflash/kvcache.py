"""Attention on KV caches, and the append of new keys and values."""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from . import _devices, checks, planned
from ._library import LIB, Invalid, Unsupported, c
from ._library import check as succeed
from ._types import Memory, Window
from .planned import FULL, HEAD, Planned, layout


def is_tensor(x: Memory) -> bool:
    """Returns whether this is a tensor and not a number."""
    return hasattr(x, "data_ptr")


def check(q: Memory, k_cache: Memory, v_cache: Memory, k: Memory, v: Memory, cu_seqlens_q: Memory,
          max_seqlen_q: int | None, causal: bool, window_size: Window, cos: Memory, sin: Memory,
          leftpad: Memory, seqused_q: Memory, block_table: Memory, cache_batch_idx: Memory) -> None:
    """Checks which arguments of flash_attn_with_kvcache go together."""
    if block_table is not None and cache_batch_idx is not None:
        raise Unsupported("cache_batch_idx beside block_table: a row of the table names the pages of a sequence; leave "
                          "cache_batch_idx out, and pass block_table[cache_batch_idx]")
    if (k is None) != (v is None):
        raise Invalid("k and v belong together: pass both, or neither")
    if leftpad is not None:
        raise Unsupported("cache_leftpad: FerroFlash has no padding on the left; it must be None; move the keys to the "
                          "start of their rows, or use block_table")
    if (cos is None) != (sin is None):
        raise Invalid("rotary_cos and rotary_sin belong together: pass both, or neither")
    if cos is not None:
        if k is None:
            raise Invalid("rotary_cos without k: the call rotates new keys on their way into the cache; pass k and v")
        if q.shape[1] != k.shape[1]:
            raise Unsupported(f"rotary_cos with {q.shape[1]} queries and {k.shape[1]} new keys: the numbers must be "
                              "equal; rotate q and k first")
        # FlashAttention then rotates all queries by the position of the first.
        if q.shape[1] > 1 and not causal and tuple(window_size) == (-1, -1):
            raise Unsupported("rotary_cos with several queries and neither causal nor window_size: rotate q and k first")
    if k_cache.shape[:3] != v_cache.shape[:3]:
        raise Invalid(f"v_cache {tuple(v_cache.shape)}: it needs k_cache's pages, page size and heads, "
                      f"{tuple(k_cache.shape[:3])}")
    if k is not None and (k_cache.stride() != v_cache.stride() or k_cache.shape != v_cache.shape):
        raise Unsupported(f"k, v with v_cache of strides {v_cache.stride()}: an append needs k_cache's shape and strides")
    if cu_seqlens_q is not None and max_seqlen_q is None:
        raise Invalid("max_seqlen_q None beside cu_seqlens_q: it must be at least the length of the longest sequence; pass it")
    if (cu_seqlens_q is None) != (max_seqlen_q is None) or len(q.shape) != (4 if cu_seqlens_q is None else 3):
        raise Invalid(f"q {tuple(q.shape)}: packed queries are (rows, heads, head_dim), with cu_seqlens_q and "
                      "max_seqlen_q")
    if seqused_q is not None and cu_seqlens_q is None:
        raise Invalid("seqused_q without cu_seqlens_q: it counts the used rows of varlen queries; slice q, or pass "
                      "cu_seqlens_q")
    if cu_seqlens_q is not None and k is not None:
        raise Unsupported("k, v beside cu_seqlens_q: append new keys and values first")


def descales(k_cache: Memory, k: Memory, scales: tuple[Any, Any]) -> tuple[Any, Any]:
    """Returns the scales of a cache in float32."""
    _devices.code(k_cache.dtype, "k_cache", _devices.CACHES)
    if _devices.name(k_cache.dtype) == "int8":
        return scales
    scales = tuple(scale.float() if is_tensor(scale) else scale for scale in scales)
    tensors = [scale for scale in scales if is_tensor(scale)]
    if len(tensors) == 2 and scales[0].stride() != scales[1].stride():
        raise Invalid(f"k_descale and v_descale must have equal strides, not {scales[0].stride()} and "
                      f"{scales[1].stride()}")
    if tensors and k is not None:
        raise Unsupported("k, v beside k_descale or v_descale of each sequence: append new keys and values first")
    return scales


def set_scales(args: Any, scales: tuple[Any, Any], field: str, call: checks.Call) -> None:
    """Checks the scales of keys and of values as a field of `call`, and sets them. An int8 cache has one per key."""
    is_int8 = args.cache_dtype == c.INT8
    for name, scale in zip("kv", scales):
        if is_tensor(scale):
            call.one("descale of keys" if is_int8 else field, scale, f"{name}_descale")
            setattr(args, f"{name}_scales", scale.data_ptr())
        elif is_int8:
            raise Invalid(f"{name}_descale {scale}: an int8 cache needs a tensor, float32 (pages, page, heads_k)")
        elif scale is not None:
            setattr(args, f"{name}_scale", checks.scalar(f"{name}_descale", scale))


class Launch(Planned):
    """One attention launch on a cache of fixed tensors, on the stream that is current now.

    q and o are (batch, seqlen_q, heads, head_dim). The cache is (pages, page, heads_k, head_dim); without `table`,
    page b belongs to sequence b. Lengths, table and rows are int32 on the device, with contiguous columns. With
    `cu_seqlens_q`, q and o are (rows of all sequences, heads, head_dim), lse is (heads, rows), and `seqlen_q` bounds
    the queries of a sequence. `scales` are the factors of keys and of values in a float8_e4m3fn cache: a float, or
    float32 (batch, heads_k) on the device. In an int8 cache they are float32 (pages, page, heads_k). `share` is
    another launch on the same stream; this launch uses its workspace if that is large enough.
    `shared_prefixes` is (groups, pages, rest): the sequences of each group share their first pages, and rest, int32
    on the device, has the keys of each sequence behind these pages. Padding sequences, too, need at least the keys
    of these pages.
    Without `v_cache`, `k_cache` is a latent cache (MLA): the values are its first columns, as many as o has. With
    `scaled_rows`, its rows are 656 bytes for 576 columns.
    `v_cache` may have another head_dim than `k_cache`, and other strides.
    """

    def __init__(self, q: Memory, k_cache: Memory, v_cache: Memory, o: Memory, lengths: Memory, *, lse: Memory = None,
                 table: Memory = None, rows: Memory = None, sinks: Memory = None, mask: int = FULL,
                 window: tuple[int, int] = (-1, -1), scale: float | None = None, softcap: float = 0.0,
                 splits: int = 0, split_keys: int = 0, config: str | None = None, share: Planned | None = None,
                 cu_seqlens_q: Memory = None, seqlen_q: int | None = None, scales: tuple[Any, Any] = (None, None),
                 alibi_slopes: Memory = None, shared_prefixes: tuple[int, int, Memory] | None = None,
                 max_logits: Memory = None, entropy: Memory = None, max_logits_head: Memory = None,
                 scaled_rows: bool = False, **extras: Any) -> None:
        layout, sizes = (checks.SCALED_CACHE, dict(checks.OF_ROW)) if scaled_rows else (checks.CACHE, dict[str, Any]())
        if cu_seqlens_q is not None:
            layout, sizes = checks.VARLEN_CACHE, {**checks.of_varlen(cu_seqlens_q), "seqlen_q": seqlen_q}
        super().__init__(q, mask, window, scale, softcap, config, checks.Call(layout, q.device, sizes))
        outputs = {"lse": lse, "max_logits": max_logits, "entropy": entropy, HEAD: max_logits_head}
        named = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "o": o, "block_table": table,
                 "cache_batch_idx": rows, "cache_seqlens": lengths, "cu_seqlens_q": cu_seqlens_q,
                 "alibi_slopes": alibi_slopes, **outputs}
        if shared_prefixes is not None:
            self.args.prefix_groups, self.args.prefix_pages, named["rest"] = shared_prefixes
        extras["sinks"] = sinks
        self.kept, args = (named, scales, extras), self.args
        self.take(**named)
        args.batch, (args.heads_q, args.head_dim) = lengths.shape[0], q.shape[-2:]
        if cu_seqlens_q is None:
            args.seqlen_q = q.shape[1]
        else:
            args.seqlen_q, args.total_q = seqlen_q, q.shape[0]
        args.pages, args.page, args.heads_k = k_cache.shape[:3]
        args.head_dim_v = o.shape[-1]
        if table is not None:
            args.columns, args.table_stride = table.shape[1], table.stride()[0]
        self.strides(outputs, alibi_slopes, q=q.stride(), o=o.stride(), k=k_cache.stride(),
                     v=(k_cache if v_cache is None else v_cache).stride())
        args.cache_dtype = _devices.of_cache(k_cache.dtype, scaled_rows)
        set_scales(args, scales, "descale", self.call)
        for of in scales:
            # Strides of 0 mean contiguous scales of an int8 cache.
            if is_tensor(of) and args.cache_dtype != c.INT8:
                args.scales_strides = (ctypes.c_int64 * 2)(*of.stride())
        args.splits, args.split_keys = splits, split_keys
        self.call.sizes["seqlen_k"] = args.page * (1 if table is None else args.columns)
        self.extras(**extras)
        self.plan_it(share)


# The struct's names of a launch's arguments
_NAMES = {"table": "block_table", "rows": "cache_batch_idx"}


def attend(q: Memory, k_cache: Memory, v_cache: Memory, lengths: Memory, head_dim_v: int, outputs: Sequence[str], *,
           scales: tuple[Any, Any] = (None, None), shared_prefixes: tuple[int, int, Memory] | None = None,
           **options: Any) -> tuple[Memory, ...]:
    """Runs attention on the current stream. Returns o, and the outputs of rows with these names; the LSE of a row
    without a key is +inf."""
    o, rows = q.new_empty((*q.shape[:-1], head_dim_v)), q.shape[:-3] + (q.shape[-2], q.shape[-3])
    of_rows = planned.of_rows(q, rows, outputs)
    shared, rest = (shared_prefixes[:2], shared_prefixes[2]) if shared_prefixes else (None, None)
    tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "o": o, "cache_seqlens": lengths, "rest": rest, **of_rows,
               **{_NAMES.get(name, name): of for name, of in options.items() if is_tensor(of)},
               **{f"{name}_scales": of for name, of in zip("kv", scales) if is_tensor(of)}}
    # Values in the keys' memory are those of a latent cache.
    is_latent = v_cache is not None and v_cache.data_ptr() == k_cache.data_ptr()
    key = (Launch, *map(layout, (q, k_cache, v_cache, lengths, rest, *scales)), is_latent, head_dim_v, *outputs, shared,
           planned.layouts(options))
    make = lambda: Launch(q, k_cache, v_cache, o, lengths, scales=scales, shared_prefixes=shared_prefixes, **of_rows,
                          **options)
    planned.reuse(_devices.of(q), key, make, **tensors).run()
    if "lse" in of_rows:
        planned.like_flash_attn(of_rows["lse"])
    return o, *of_rows.values()


def _rotate(args: Any, cos: Memory, sin: Memory, positions: Memory, q: Memory, rotated: Memory,
            interleaved: bool, *, call: checks.Call) -> None:
    """Sets the rotation of an append: cos and sin (rows, columns / 2), positions (tokens), q (tokens, heads,
    head_dim)."""
    call.require(rotary_cos=cos, rotary_sin=sin, positions=positions, q=q, rotated_q=rotated)
    if cos.stride() != sin.stride():
        raise Invalid(f"rotary_sin.stride() = {sin.stride()}: it must be that of rotary_cos, {cos.stride()}; copy both "
                      "with .contiguous()")
    args.rotary_cos, args.rotary_sin, args.positions = cos.data_ptr(), sin.data_ptr(), positions.data_ptr()
    args.rotary_rows, args.rotary_dims, args.rotary_stride = cos.shape[0], 2 * cos.shape[1], cos.stride()[0]
    # A table may be wider than the tokens.
    args.rotary_dtype = _devices.code(cos.dtype, "rotary_cos", _devices.WIDE)
    args.rotary_style = c.ROTARY_INTERLEAVED if interleaved else c.ROTARY_HALVES
    args.wide_positions = int(_devices.name(positions.dtype) == "int64")
    if q is not None:
        args.q, args.rotated_q, args.heads_q = q.data_ptr(), rotated.data_ptr(), q.shape[1]
        args.q_strides, args.rotated_q_strides = ((ctypes.c_int64 * 2)(*t.stride()[:2]) for t in (q, rotated))


def append(k: Memory, v: Memory, k_cache: Memory, v_cache: Memory, slots: Memory,
           scales: tuple[Any, Any] = (None, None), rotary: tuple[Any, ...] | None = None,
           head_dim_v: int = 0, scaled_rows: bool = False) -> Callable[[], None]:
    """Returns a call that writes k and v (tokens, heads, head_dim) to rows `slots` of a cache (pages, page, heads,
    head_dim).

    `slots` are int32 or int64: page index * keys per page + row. The kernel skips slots that the cache does not
    have. For a float8_e4m3fn cache it divides k and v by their `scales`: floats, or float32 (heads) on the device.
    For an int8 cache it writes the `scales`, float32 (pages, page, heads): each row's largest magnitude / 127.
    `rotary` are the arguments of a rotation of k, and of queries if q is not None: cos, sin, positions, q, rotated,
    interleaved. With `head_dim_v`, and None for v and v_cache, k are rows of a latent cache (MLA), whose values are
    the first head_dim_v columns; the other columns rotate. With `scaled_rows`, the cache has rows of 656 bytes, uint8
    (pages, page, 1, 656), into which the kernel writes the scales, and k has 576 columns of bfloat16. It needs a GPU: in
    the simulator, flash_attn_with_kvcache appends.
    """
    device = _devices.of(k, "k")
    context, stream = device.context, device.stream()
    args: Any = c.Append(size=ctypes.sizeof(c.Append))
    call = (checks.Call(checks.SCALED_APPEND, k.device, dict(checks.OF_ROW)) if scaled_rows else
            checks.Call(checks.APPEND, k.device))
    call.require(k=k, v=v, k_cache=k_cache, v_cache=v_cache, slots=slots)
    args.k, args.k_cache, args.slots = k.data_ptr(), k_cache.data_ptr(), slots.data_ptr()
    args.v, args.v_cache = (None if t is None else t.data_ptr() for t in (v, v_cache))
    args.head_dim_v = args.rotary_first = head_dim_v
    args.tokens, args.heads, args.head_dim = k.shape
    args.pages, args.page = k_cache.shape[:2]
    args.k_strides, args.v_strides = ((ctypes.c_int64 * 2)(*t.stride()[:2]) for t in (k, k if v is None else v))
    args.cache_strides = (ctypes.c_int64 * 3)(*k_cache.stride()[:3])
    args.dtype = _devices.code(k.dtype, "k", _devices.INPUTS)
    args.cache_dtype = _devices.of_cache(k_cache.dtype, scaled_rows)
    args.wide_slots = int(_devices.name(slots.dtype) == "int64")
    set_scales(args, scales, "descale of heads", call)
    if rotary is not None:
        _rotate(args, *rotary, call=call)
    kept = (k, v, k_cache, v_cache, slots, scales, rotary)

    def enqueue(_kept: Any = kept) -> None:
        succeed(LIB.ferroflash_append(context, ctypes.addressof(args), stream))

    return enqueue


def append_after(k: Memory, v: Memory, k_cache: Memory, v_cache: Memory, starts: Memory, block_table: Memory,
                 rows: Memory, scales: tuple[Any, Any], angles: tuple[Memory, Memory, bool] | None = None,
                 q: Memory = None) -> Memory:
    """Writes k and v (batch, new, heads, head_dim) after the first `starts` keys of each sequence.

    With `angles` (cos, sin, interleaved), the call rotates k and q (batch, new, heads, head_dim), and returns the
    rotated q.
    """
    checks.Call(checks.NEW, (k if q is None else q).device).require(
        q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v, cache_seqlens=starts, block_table=block_table,
        cache_batch_idx=rows)
    _, new, heads, head_dim = k.shape
    at, slots = _devices.of(k).slots(starts, new, k_cache.shape[1], block_table, rows)
    k, v = k.reshape(-1, heads, head_dim), v.reshape(-1, heads, head_dim)
    rotary, rotated = None, None
    if angles is not None:
        cos, sin, interleaved = angles
        flat = q.reshape(-1, *q.shape[2:])
        rotated = flat.new_empty(flat.shape)
        rotary = (cos, sin, at, flat, rotated, interleaved)
    append(k, v, k_cache, v_cache, slots, scales, rotary)()
    return rotated if rotated is None else rotated.reshape(*q.shape)
