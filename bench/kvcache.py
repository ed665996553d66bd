"""FlashAttention's function for caches on torch tensors, through FerroFlash's C ABI.

    from kvcache import flash_attn_with_kvcache
    o = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, block_table=table, causal=True)

Lengths and page indices stay on the device. No call waits for them, and a captured graph stays valid when they change.
"""
import ctypes

import torch

from ferroflash import (CAUSAL, DTYPES, FULL, LIB, Error, Planned, Unsupported, _check, _context, c, like_flash_attn, masked, sloped)

# A cache may have an eight-bit type.
CACHE_DTYPES = {**DTYPES, torch.float8_e4m3fn: c.E4M3, torch.int8: c.INT8}


def _token_scales(k_cache, scales):
    """Checks the scales of an int8 cache: one for each row of a head."""
    for name, scale in zip(("k_descale", "v_descale"), scales):
        want = tuple(k_cache.shape[:3])
        is_tensor = isinstance(scale, torch.Tensor)
        if not is_tensor or scale.dtype != torch.float32 or tuple(scale.shape) != want or not scale.is_contiguous():
            got = f"{scale.dtype} {tuple(scale.shape)}" if is_tensor else scale
            raise Error(f"{name} {got}: an int8 cache needs contiguous float32 {want}, (pages, page, heads_k)")


def _scale(args, scales):
    """Returns the scales of keys and of values, for the structs."""
    for name, scale in zip("kv", scales):
        if isinstance(scale, torch.Tensor):
            setattr(args, f"{name}_scales", scale.data_ptr())
        elif scale is not None:
            setattr(args, f"{name}_scale", scale)


class Launch(Planned):
    """One attention launch on a cache of fixed tensors, on the stream that is current now.

    q and o are (batch, seqlen_q, heads, head_dim). The cache is (pages, page, heads_k, head_dim); without `table`, page b
    belongs to sequence b. Lengths, table and rows are int32 on the device, with contiguous columns. With `cu_seqlens_q`, q
    and o are (rows of all sequences, heads, head_dim), lse is (heads, rows), and `seqlen_q` bounds the queries of a
    sequence. `scales` are the factors of keys and of values in a float8_e4m3fn cache: a float, or float32 (batch, heads_k)
    on the device. In an int8 cache they are float32 (pages, page, heads_k). `share` is another launch on the same stream; this
    launch uses its workspace if that is large enough.
    `shared_prefixes` is (groups, pages, rest): the sequences of each group share their first pages, and rest, int32 on the
    device, has the keys of each sequence behind these pages. Padding sequences, too, need at least the keys of these pages.
    Without `v_cache`, `k_cache` is a latent cache (MLA): the values are its first columns, as many as o has. `v_cache` may have
    another head_dim than `k_cache`, and other strides.
    """

    def __init__(self, q, k_cache, v_cache, o, lengths, *, lse=None, table=None, rows=None, sinks=None, mask=FULL,
                 window=(-1, -1), scale=None, softcap=0.0, splits=0, chunk=0, config=None, share=None, cu_seqlens_q=None,
                 seqlen_q=None, scales=(None, None), alibi_slopes=None, shared_prefixes=None, **extras):
        super().__init__(q, mask, window, scale, softcap, config)
        self.o, self.lse = o, lse
        named = {"q": q, "k": k_cache, "v": v_cache, "o": o, "lse": lse, "block_table": table, "cache_batch_idx": rows,
                 "seqused_k": lengths, "sinks": sinks, "cu_seqlens_q": cu_seqlens_q, "alibi_slopes": alibi_slopes}
        if shared_prefixes is not None:
            self.args.prefix_groups, self.args.prefix_pages, named["rest_lengths"] = shared_prefixes
        self.kept, args = (named, scales, extras), self.args
        self.point(**named)
        args.batch, (args.heads_q, args.head_dim) = lengths.shape[0], q.shape[-2:]
        if cu_seqlens_q is None:
            args.seqlen_q = q.shape[1]
        else:
            args.seqlen_q, args.total_q = seqlen_q, q.shape[0]
        args.pages, args.page, args.heads_k = k_cache.shape[:3]
        args.head_dim_v = o.shape[-1]
        if table is not None:
            args.columns, args.table_stride = table.shape[1], table.stride(0)
        self.strides(lse, alibi_slopes, q=q.stride(), o=o.stride(), k=k_cache.stride(),
                     v=(k_cache if v_cache is None else v_cache).stride())
        if k_cache.dtype == torch.int8:
            _token_scales(k_cache, scales)
        _scale(args, scales)
        for of in scales:
            # Strides of 0 mean contiguous scales of an int8 cache.
            if isinstance(of, torch.Tensor) and k_cache.dtype != torch.int8:
                args.scales_strides = (ctypes.c_int64 * 2)(*of.stride())
        args.cache_dtype, args.splits, args.chunk = CACHE_DTYPES[k_cache.dtype], splits, chunk
        self.extras(**extras)
        self.plan_it(share)


# A table of cosines and sines may be wider than the tokens.
ANGLE_DTYPES = {**DTYPES, torch.float32: 3}


def _rotate(args, cos, sin, positions, q, rotated, interleaved):
    """Sets the rotation of an append: cos and sin (rows, columns / 2), positions (tokens), q (tokens, heads, head_dim)."""
    if cos.shape != sin.shape or cos.stride() != sin.stride() or cos.dtype != sin.dtype or cos.stride(-1) != 1:
        raise Error(f"rotary_sin {sin.dtype} {tuple(sin.shape)}: it must be like rotary_cos, {cos.dtype} {tuple(cos.shape)}")
    if cos.dtype not in ANGLE_DTYPES:
        raise Error(f"rotary_cos: {cos.dtype}; it must be float32, or the dtype of q")
    args.rotary_cos, args.rotary_sin, args.positions = cos.data_ptr(), sin.data_ptr(), positions.data_ptr()
    args.rotary_rows, args.rotary_dims, args.rotary_stride = cos.shape[0], 2 * cos.shape[1], cos.stride(0)
    args.rotary_dtype, args.rotary_style = ANGLE_DTYPES[cos.dtype], int(interleaved)
    args.wide_positions = int(positions.dtype == torch.int64)
    if q is not None:
        args.q, args.rotated_q, args.heads_q = q.data_ptr(), rotated.data_ptr(), q.shape[1]
        args.q_strides, args.rotated_q_strides = ((ctypes.c_int64 * 2)(*t.stride()[:2]) for t in (q, rotated))


def append(k, v, k_cache, v_cache, slots, scales=(None, None), rotary=None, head_dim_v=0):
    """Returns a call that writes k and v (tokens, heads, head_dim) to rows `slots` of a cache (pages, page, heads, head_dim).

    `slots` are int32 or int64: page index * keys per page + row. The kernel skips slots that the cache does not have. For a
    float8_e4m3fn cache it divides k and v by their `scales`: floats, or float32 (heads) on the device. For an int8 cache it
    writes the `scales`, float32 (pages, page, heads): each row's largest magnitude / 127. `rotary` are the
    arguments of a rotation of k, and of queries if q is not None: cos, sin, positions, q, rotated, interleaved. With `head_dim_v`, and None for v
    and v_cache, k are rows of a latent cache (MLA), whose values are the first head_dim_v columns; the other columns rotate.
    """
    context, stream = _context(k.device.index), torch._C._cuda_getCurrentRawStream(k.device.index)
    args = c.Append(size=ctypes.sizeof(c.Append))
    args.k, args.k_cache, args.slots = k.data_ptr(), k_cache.data_ptr(), slots.data_ptr()
    args.v, args.v_cache = (None if t is None else t.data_ptr() for t in (v, v_cache))
    args.head_dim_v = args.rotary_first = head_dim_v
    args.tokens, args.heads, args.head_dim = k.shape
    args.pages, args.page = k_cache.shape[:2]
    args.k_strides, args.v_strides = ((ctypes.c_int64 * 2)(*t.stride()[:2]) for t in (k, k if v is None else v))
    args.cache_strides = (ctypes.c_int64 * 3)(*k_cache.stride()[:3])
    args.dtype, args.cache_dtype = DTYPES[k.dtype], CACHE_DTYPES[k_cache.dtype]
    args.wide_slots = int(slots.dtype == torch.int64)
    if k_cache.dtype == torch.int8:
        _token_scales(k_cache, scales)
    _scale(args, scales)
    if rotary is not None:
        _rotate(args, *rotary)
    kept = (k, v, k_cache, v_cache, slots, scales, rotary)
    return lambda: kept and _check(LIB.ferroflash_append(context, ctypes.addressof(args), stream))


def _append(k, v, k_cache, v_cache, starts, block_table, rows, scales, angles=None, q=None):
    """Writes k and v (batch, new, heads, head_dim) after the first `starts` keys of each sequence.

    With `angles` (cos, sin, interleaved), the call rotates k and q (batch, new, heads, head_dim), and returns the rotated q.
    """
    _, new, heads, head_dim = k.shape
    page = k_cache.shape[1]
    at = starts[:, None].long() + torch.arange(new, device=k.device)[None, :]
    if block_table is None:
        slots = torch.where(at < page, rows[:, None].long() * page + at, -1)
    else:
        columns = block_table.shape[1]
        number = block_table.long().gather(1, (at // page).clamp(max=columns - 1))
        slots = torch.where(at < columns * page, number * page + at % page, -1)
    k, v = k.reshape(-1, heads, head_dim), v.reshape(-1, heads, head_dim)
    rotary, rotated = None, None
    if angles is not None:
        cos, sin, interleaved = angles
        flat = q.reshape(-1, *q.shape[2:])
        rotated = torch.empty_like(flat, memory_format=torch.contiguous_format)
        rotary = (cos, sin, at.reshape(-1).contiguous(), flat, rotated, interleaved)
    append(k, v, k_cache, v_cache, slots.reshape(-1).contiguous(), scales, rotary)()
    return rotated if rotated is None else rotated.view(q.shape)


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
                            cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
                            window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
                            return_softmax_lse=False, *, cu_seqlens_q=None, max_seqlen_q=None, k_descale=None,
                            v_descale=None, sinks=None, chunk=0, config=None, **extras):
    """Computes attention of q (batch, seqlen_q, heads, head_dim) on a cache. Masks are aligned bottom-right.

    FlashAttention-2's arguments in its order. The cache is (batch_cache, seqlen_cache, heads_k, head_dim), or with
    `block_table` (pages, page, heads_k, head_dim). The head_dim of v_cache may differ; o has it. The call first writes `k` and `v` (batch, new, heads_k, head_dim) after
    the `cache_seqlens` keys of each sequence. With `rotary_cos` and `rotary_sin` (positions, columns / 2), in float32 or the
    dtype of q, it rotates `k` on the way, and q: row i of a sequence by the angles of position cache_seqlens + i.
    `alibi_slopes` are (heads) or (batch, heads) in float32. Padding on the left is refused.

    Three arguments are FlashAttention-3's. With `cu_seqlens_q`, q is (rows of all sequences, heads, head_dim), and a sequence
    has at most `max_seqlen_q` queries. `k_descale` and `v_descale`, floats or (batch, heads_k), are the factors of a
    float8_e4m3fn cache. For an int8 cache they are float32 (pages, page, heads_k), without pages (batch_cache, seqlen_cache,
    heads_k): the factor of each row. The call writes the factors of the rows of `k` and `v`: largest magnitude / 127. `sinks`
    are logits, one per head, that belong to no key. `chunk` makes results independent of the batch.
    `extras` are the arguments of ferroflash.Planned.extras.

    Returns o, or with return_softmax_lse (o, lse). lse is float32 (batch, heads, seqlen_q), or (heads, rows) for varlen. For a
    row without a key it is +inf, as in FlashAttention-2.
    """
    if cache_leftpad is not None:
        raise Unsupported("cache_leftpad: FerroFlash has no such option; it must be None")
    if (rotary_cos is None) != (rotary_sin is None):
        raise Error("rotary_cos and rotary_sin belong together: pass both, or neither")
    if rotary_cos is not None:
        if k is None:
            raise Error("rotary_cos without k: the call rotates new keys on their way into the cache")
        if q.shape[1] != k.shape[1]:
            raise Unsupported(f"rotary_cos with {q.shape[1]} queries and {k.shape[1]} new keys: the numbers must be equal")
        # FlashAttention then rotates all queries by the position of the first.
        if q.shape[1] > 1 and not causal and tuple(window_size) == (-1, -1):
            raise Unsupported("rotary_cos with several queries and neither causal nor window_size: rotate q and k first")
    if k_cache.shape[:3] != v_cache.shape[:3]:
        raise Error(f"v_cache {tuple(v_cache.shape)}: it needs k_cache's pages, page size and heads, {tuple(k_cache.shape[:3])}")
    if k is not None and (k_cache.stride() != v_cache.stride() or k_cache.shape != v_cache.shape):
        raise Unsupported(f"k, v with v_cache of strides {v_cache.stride()}: an append needs k_cache's shape and strides")
    if k_cache.stride(-1) != 1 or v_cache.stride(-1) != 1 or q.dtype not in DTYPES or k_cache.dtype not in CACHE_DTYPES:
        raise Error("tensors must be float16 or bfloat16 (the cache float8_e4m3fn or int8, too), columns contiguous")
    if (cu_seqlens_q is None) != (max_seqlen_q is None) or q.dim() != (4 if cu_seqlens_q is None else 3):
        raise Error(f"q {tuple(q.shape)}: packed queries are (rows, heads, head_dim), with cu_seqlens_q and max_seqlen_q")
    scales, tensors = (k_descale, v_descale), []
    if k_cache.dtype == torch.int8:
        _token_scales(k_cache, scales)
    else:
        scales = tuple(scale.float() if isinstance(scale, torch.Tensor) else scale for scale in scales)
        tensors = [scale for scale in scales if isinstance(scale, torch.Tensor)]
    if len(tensors) == 2 and scales[0].stride() != scales[1].stride():
        raise Error(f"k_descale and v_descale must have equal strides, not {scales[0].stride()} and {scales[1].stride()}")
    if tensors and k is not None:
        raise Unsupported("k, v beside scales of each sequence: append new keys and values first")
    if cu_seqlens_q is not None and k is not None:
        raise Unsupported("k, v beside cu_seqlens_q: append new keys and values first")
    device, batch = q.device, q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    integers = lambda t: None if t is None else t.to(device=device, dtype=torch.int32)
    rows, table = integers(cache_batch_idx), integers(block_table)
    rows = None if rows is None else rows.contiguous()
    # Without lengths, every sequence has all keys of the cache, as in FlashAttention.
    full = k_cache.shape[1] * (1 if table is None else table.shape[1])
    lengths = full if cache_seqlens is None and k is None else (0 if cache_seqlens is None else cache_seqlens)
    if isinstance(lengths, int):
        lengths = torch.full((batch,), lengths, dtype=torch.int32, device=device)
    slopes = sloped(alibi_slopes, q, batch, q.shape[-2])
    lengths, starts = integers(lengths).contiguous(), integers(cu_seqlens_q)
    if table is not None and table.stride(1) != 1:
        table = table.contiguous()
    for name, tensor in (("cache_seqlens", lengths), ("cache_batch_idx", rows), ("block_table", table)):
        if tensor is not None and tensor.shape[0] < batch:
            raise Error(f"{name} {tuple(tensor.shape)}: there must be one for each of {batch} sequences")
    if sinks is not None and (sinks.dtype, sinks.shape, sinks.device) != (torch.float32, q.shape[-2:-1], device):
        raise Error(f"sinks {sinks.dtype} {tuple(sinks.shape)} on {sinks.device}: they are float32 ({q.shape[-2]},), beside q")
    sinks = None if sinks is None else sinks.contiguous()
    if k is not None:
        own = torch.arange(batch, device=device) if rows is None else rows
        angles = None if rotary_cos is None else (rotary_cos, rotary_sin, rotary_interleaved)
        rotated = _append(k, v, k_cache, v_cache, lengths, table, own, scales, angles, q)
        q = q if rotated is None else rotated
        lengths = lengths + k.shape[1]

    o, lse = torch.empty(*q.shape[:-1], v_cache.shape[-1], dtype=q.dtype, device=device), None
    if return_softmax_lse:
        shape = (batch, q.shape[2], q.shape[1]) if starts is None else (q.shape[1], q.shape[0])
        lse = torch.empty(shape, dtype=torch.float32, device=device)
    mask, window = masked(causal, window_size)
    Launch(q, k_cache, v_cache, o, lengths, lse=lse, table=table, rows=rows, sinks=sinks, mask=mask, window=window,
           scale=softmax_scale, softcap=softcap, splits=num_splits, chunk=chunk, config=config, cu_seqlens_q=starts,
           seqlen_q=max_seqlen_q, scales=scales, alibi_slopes=slopes, **extras).enqueue()
    return (o, like_flash_attn(lse)) if return_softmax_lse else o


def get_mla_metadata(*_args, **_options):
    """FlashMLA's plan. FerroFlash's kernels schedule themselves on the device, so both parts are None."""
    return None, None


def flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata=None, num_splits=None,
                           softmax_scale=None, causal=False):
    """Computes MLA decode of q (batch, seqlen_q, heads, head_dim) on a latent cache (pages, page, 1, head_dim).

    FlashMLA's arguments in its order. The values are the first `head_dim_v` columns of the cache. The default of
    `softmax_scale` is FlashMLA's, head_dim ** -0.5; a model's is that of its keys before absorption. Returns o (batch,
    seqlen_q, heads, head_dim_v), and lse, float32 (batch, heads, seqlen_q). For a row without a key, lse is +inf.
    """
    o = torch.empty(*q.shape[:-1], head_dim_v, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32, device=q.device)
    Launch(q, k_cache, None, o, cache_seqlens, lse=lse, table=block_table, mask=CAUSAL if causal else FULL,
           scale=q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale).enqueue()
    return o, like_flash_attn(lse)
