"""FlashAttention-2's functions, with its names, its order of arguments and its defaults.

Arguments behind `*` are FerroFlash's own. Every function takes torch tensors on a GPU. With `device="sim"`, it takes
numpy arrays or CPU tensors of torch, runs in the simulator, and returns arrays of the callers' kind.
"""
import functools
import math

from . import _attention, _devices, kvcache, merge
from ._library import Invalid, Unsupported
from .planned import CAUSAL, FULL, like_flash_attn, masked, sloped


def simulated(function):
    """Gives a function the argument `device`."""

    @functools.wraps(function)
    def call(*arguments, device=None, **options):
        if device is None:
            return function(*arguments, **options)
        from . import _simulator
        return _simulator.run(function, arguments, options, device)

    return call


_forward = simulated(_attention.forward)


def _refuse_dropout(dropout_p):
    if dropout_p != 0.0:
        raise Unsupported(f"dropout_p {dropout_p}: FerroFlash has no dropout; it must be 0.0")


def _through_operator(device, tensors):
    from . import _torch
    return _torch.wanted(device, *tensors)


def _like_flash_attn(lse):
    """Converts an LSE that a caller gets. Of the LSE of `return_attn_probs` there is no gradient."""
    if hasattr(lse, "masked_fill"):
        lse = lse.detach()
        return lse.masked_fill(lse == -math.inf, math.inf)
    lse[lse == -math.inf] = math.inf
    return lse


def _attend(q, k, v, starts, lengths, scores, config, bhsd, return_lse, return_attn_probs, return_max_logits, device):
    """Runs attention, and returns what FlashAttention-2 returns."""
    slopes, sinks, bias, prefix, chunked, mask_bits, mask_keys, softmax_scale, causal, window_size, softcap = scores
    is_tensor = hasattr(prefix, "shape")
    (left, right), wants_lse = window_size, return_lse or return_attn_probs
    arguments = (q, k, v, *starts, slopes, sinks, bias, prefix if is_tensor else None, mask_bits, *lengths,
                 softmax_scale, causal, left, right, softcap, None if is_tensor else prefix, chunked, mask_keys, bhsd,
                 config)
    max_logits, tracked = None, (q, k, v, slopes, sinks, bias)
    if hasattr(q, "requires_grad") and not return_max_logits and _through_operator(device, tracked):
        from . import _torch
        o, lse = _torch.attend(*arguments, device)
    else:
        if return_max_logits and hasattr(q, "requires_grad") and _through_operator(None, tracked):
            raise Unsupported("return_max_logits with gradients or torch.compile: call it without them, under "
                              "torch.no_grad()")
        o, lse, max_logits = _forward(*arguments, wants_lse, return_max_logits, device=device)
    if return_attn_probs:
        return o, _like_flash_attn(lse), None
    out = (o, *((lse,) if return_lse else ()), *((max_logits,) if return_max_logits else ()))
    return out if len(out) > 1 else o


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False, *, sinks=None, bias=None,
                    prefix=None, chunked=None, mask_bits=None, mask_keys=0, return_lse=False, return_max_logits=False,
                    config=None, bhsd=False, device=None):
    """Computes attention, with gradients of q, k, v, sinks and bias. Masks are aligned bottom-right.

    | argument | shape |
    |---|---|
    | q | (batch, seqlen_q, heads, head_dim) in float16 or bfloat16; with `bhsd` (batch, heads, seqlen_q, head_dim) |
    | k, v | (batch, seqlen_k, heads_k, head_dim); `v` may have another head_dim, which `o` then has |
    | alibi_slopes | (heads) or (batch, heads) in float32 |
    | sinks | (heads) in float32: logits that belong to no key |
    | bias | (batch or 1, heads or 1, seqlen_q or 1, seqlen_k), added to scaled scores |
    | prefix | a number of keys that every query sees beside the causal mask, or int32 (batch) |
    | chunked | positions per chunk: a query sees the keys of its chunk, causally |
    | mask_bits | uint8 (batch or 1, heads or 1, seqlen_q, bytes): bits of the last `mask_keys` keys, or of all |

    `deterministic` changes nothing: results are always the same in every bit. Dropout is refused. `config` names a
    kernel. Returns o; with return_lse or return_max_logits also (batch, heads, seqlen_q) in float32; with
    return_attn_probs (o, lse, None), as FlashAttention-2 does without dropout.
    """
    _refuse_dropout(dropout_p)
    scores = (alibi_slopes, sinks, bias, prefix, chunked, mask_bits, mask_keys, softmax_scale, causal, window_size,
              softcap)
    return _attend(q, k, v, (None, None, None), (0, 0), scores, config, bhsd, return_lse, return_attn_probs,
                   return_max_logits, device)


def flash_attn_func_bhsd(q, k, v, **options):
    """Computes flash_attn_func on tensors (batch, heads, seqlen, head_dim), PyTorch's order."""
    return flash_attn_func(q, k, v, bhsd=True, **options)


def flash_attn_qkvpacked_func(qkv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                              alibi_slopes=None, deterministic=False, return_attn_probs=False, **options):
    """Computes flash_attn_func of qkv (batch, seqlen, 3, heads, head_dim)."""
    return flash_attn_func(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], dropout_p, softmax_scale, causal, window_size,
                           softcap, alibi_slopes, deterministic, return_attn_probs, **options)


def flash_attn_kvpacked_func(q, kv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                             alibi_slopes=None, deterministic=False, return_attn_probs=False, **options):
    """Computes flash_attn_func of q and kv (batch, seqlen_k, 2, heads_k, head_dim)."""
    return flash_attn_func(q, kv[:, :, 0], kv[:, :, 1], dropout_p, softmax_scale, causal, window_size, softcap,
                           alibi_slopes, deterministic, return_attn_probs, **options)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None, *, seqused_k=None, sinks=None,
                           bias=None, prefix=None, chunked=None, mask_bits=None, mask_keys=0, return_lse=False,
                           config=None, device=None):
    """Computes attention of varlen sequences, with gradients of q, k, v, sinks and bias.

    q, k and v are (rows of all sequences, heads, head_dim); `cu_seqlens_q` and `cu_seqlens_k` are int32 (batch + 1) on
    the device. No call waits for them, and a captured graph stays valid when they change. `seqused_k` (batch) is the
    number of valid keys of each sequence. With `block_table`, k and v are a cache (pages, page, heads_k, head_dim)
    without gradients, and sequence b has cu_seqlens_k[b + 1] - cu_seqlens_k[b] keys. Rows of o that belong to no
    sequence are not written. The other arguments are flash_attn_func's.

    Returns o; with return_lse (o, lse); with return_attn_probs (o, lse, None). lse is (heads, rows) in float32. For a
    row without a key it is -inf, or with return_attn_probs +inf, as in FlashAttention-2.
    """
    _refuse_dropout(dropout_p)
    if block_table is None:
        scores = (alibi_slopes, sinks, bias, prefix, chunked, mask_bits, mask_keys, softmax_scale, causal, window_size,
                  softcap)
        return _attend(q, k, v, (cu_seqlens_q, cu_seqlens_k, seqused_k), (max_seqlen_q, max_seqlen_k), scores, config,
                       False, return_lse, return_attn_probs, False, device)
    out = flash_attn_varlen_paged(
        q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table, max_seqlen_q, return_attn_probs, device=device,
        softmax_scale=softmax_scale, causal=causal, window_size=window_size, softcap=softcap, config=config,
        alibi_slopes=alibi_slopes, sinks=sinks, bias=bias, prefix=prefix, chunked=chunked, mask_bits=mask_bits,
        mask_keys=mask_keys, return_softmax_lse=return_lse or return_attn_probs)
    return (*out, None) if return_attn_probs else out


@simulated
def flash_attn_varlen_paged(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table, max_seqlen_q, like_fa2,
                            **options):
    """Computes flash_attn_varlen_func on a cache with a block table."""
    starts, ends, used = (_devices.integers(t, q) for t in (cu_seqlens_q, cu_seqlens_k, seqused_k))
    used = ends[1:] - ends[:-1] if used is None else used
    out = flash_attn_with_kvcache(q, k, v, cache_seqlens=used, block_table=block_table, cu_seqlens_q=starts,
                                  max_seqlen_q=max_seqlen_q, **options)
    if options["return_softmax_lse"] and not like_fa2:
        out[1].masked_fill_(out[1].isposinf(), -math.inf)
    return out


def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False,
                                     window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
                                     return_attn_probs=False, **options):
    """Computes flash_attn_varlen_func of qkv (rows of all sequences, 3, heads, head_dim)."""
    return flash_attn_varlen_func(qkv[:, 0], qkv[:, 1], qkv[:, 2], cu_seqlens, cu_seqlens, max_seqlen, max_seqlen,
                                  dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                  return_attn_probs, **options)


def flash_attn_varlen_kvpacked_func(q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                                    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                                    alibi_slopes=None, deterministic=False, return_attn_probs=False, **options):
    """Computes flash_attn_varlen_func of q and kv (rows of all sequences, 2, heads_k, head_dim)."""
    return flash_attn_varlen_func(q, kv[:, 0], kv[:, 1], cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
                                  dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                  return_attn_probs, **options)


def _check_cache(q, k_cache, v_cache, k, cu_seqlens_q, max_seqlen_q, causal, window_size, cos, sin, leftpad):
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
    if k_cache.stride()[-1] != 1 or v_cache.stride()[-1] != 1:
        raise Invalid("k_cache and v_cache must have contiguous columns: stride(-1) must be 1")
    if (cu_seqlens_q is None) != (max_seqlen_q is None) or len(q.shape) != (4 if cu_seqlens_q is None else 3):
        raise Invalid(f"q {tuple(q.shape)}: packed queries are (rows, heads, head_dim), with cu_seqlens_q and "
                      "max_seqlen_q")
    if cu_seqlens_q is not None and k is not None:
        raise Unsupported("k, v beside cu_seqlens_q: append new keys and values first")


def _descales(k_cache, k, scales):
    """Returns the scales of a cache in float32."""
    if _devices.name(k_cache.dtype) == "int8":
        kvcache.token_scales(k_cache, scales)
        return scales
    scales = tuple(scale.float() if kvcache.is_tensor(scale) else scale for scale in scales)
    tensors = [scale for scale in scales if kvcache.is_tensor(scale)]
    if len(tensors) == 2 and scales[0].stride() != scales[1].stride():
        raise Invalid(f"k_descale and v_descale must have equal strides, not {scales[0].stride()} and "
                      f"{scales[1].stride()}")
    if tensors and k is not None:
        raise Unsupported("k, v beside scales of each sequence: append new keys and values first")
    return scales


@simulated
def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
                            cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
                            window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
                            return_softmax_lse=False, *, cu_seqlens_q=None, max_seqlen_q=None, k_descale=None,
                            v_descale=None, sinks=None, chunk=0, shared_prefixes=None, config=None, **extras):
    """Computes attention of q (batch, seqlen_q, heads, head_dim) on a cache. Masks are aligned bottom-right.

    The cache is (batch_cache, seqlen_cache, heads_k, head_dim), or with `block_table` (pages, page, heads_k, head_dim).
    The head_dim of v_cache may differ; o has it. The call first writes `k` and `v` (batch, new, heads_k, head_dim) after
    the `cache_seqlens` keys of each sequence. With `rotary_cos` and `rotary_sin` (positions, columns / 2), in float32 or
    the dtype of q, it rotates `k` on the way, and q: row i of a sequence by the angles of position cache_seqlens + i.
    `alibi_slopes` are (heads) or (batch, heads) in float32. `cache_leftpad` is refused.

    Three arguments are FlashAttention-3's. With `cu_seqlens_q`, q is (rows of all sequences, heads, head_dim), and a
    sequence has at most `max_seqlen_q` queries. `k_descale` and `v_descale`, floats or (batch, heads_k), are the factors
    of a float8_e4m3fn cache. For an int8 cache they are float32 (pages, page, heads_k), without pages (batch_cache,
    seqlen_cache, heads_k): the factor of each row. The call writes the factors of the rows of `k` and `v`: largest
    magnitude / 127. `sinks` (heads) are logits that belong to no key. `chunk`, keys per split, makes results independent
    of the batch. `shared_prefixes` is (groups, pages, rest): the sequences of a group share their first pages, and rest,
    int32 (batch), has the keys of each sequence behind them. `extras` are bias, prefix, chunked, mask_bits and mask_keys
    of flash_attn_func.

    Returns o, or with return_softmax_lse (o, lse). lse is float32 (batch, heads, seqlen_q), or (heads, rows) for varlen.
    For a row without a key it is +inf, as in FlashAttention-2.
    """
    _check_cache(q, k_cache, v_cache, k, cu_seqlens_q, max_seqlen_q, causal, window_size, rotary_cos, rotary_sin,
                 cache_leftpad)
    scales = _descales(k_cache, k, (k_descale, v_descale))
    device, batch = _devices.of(q), q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    int32, float32 = device.dtype("int32"), device.dtype("float32")
    rows, table, starts = (_devices.integers(t, q) for t in (cache_batch_idx, block_table, cu_seqlens_q))
    # Without lengths, every sequence has all keys of the cache, as in FlashAttention.
    full = k_cache.shape[1] * (1 if table is None else table.shape[1])
    lengths = (full if k is None else 0) if cache_seqlens is None else cache_seqlens
    lengths = q.new_full((batch,), lengths, dtype=int32) if isinstance(lengths, int) else _devices.integers(lengths, q)
    slopes = sloped(alibi_slopes, q, batch, q.shape[-2])
    for name, tensor in (("cache_seqlens", lengths), ("cache_batch_idx", rows), ("block_table", table)):
        if tensor is not None and tensor.shape[0] < batch:
            raise Invalid(f"{name} {tuple(tensor.shape)}: there must be one for each of {batch} sequences")
    if sinks is not None:
        if _devices.name(sinks.dtype) != "float32" or tuple(sinks.shape) != (q.shape[-2],) or sinks.device != q.device:
            raise Invalid(f"sinks {sinks.dtype} {tuple(sinks.shape)} on {sinks.device}: they are float32 "
                          f"({q.shape[-2]},), beside q")
        sinks = sinks.contiguous()
    if k is not None:
        own = device.arange(batch) if rows is None else rows
        angles = None if rotary_cos is None else (rotary_cos, rotary_sin, rotary_interleaved)
        rotated = kvcache.append_after(k, v, k_cache, v_cache, lengths, table, own, scales, angles, q)
        q = q if rotated is None else rotated
        lengths = lengths + k.shape[1]

    o, lse = q.new_empty((*q.shape[:-1], v_cache.shape[-1])), None
    if return_softmax_lse:
        shape = (batch, q.shape[2], q.shape[1]) if starts is None else (q.shape[1], q.shape[0])
        lse = q.new_empty(shape, dtype=float32)
    mask, window = masked(causal, window_size)
    # Without extras of flash_attn_varlen_func that are None.
    extras = {name: of for name, of in extras.items() if of is not None}
    kvcache.Launch(q, k_cache, v_cache, o, lengths, lse=lse, table=table, rows=rows, sinks=sinks, mask=mask,
                    window=window, scale=softmax_scale, softcap=softcap, splits=num_splits, chunk=chunk, config=config,
                    cu_seqlens_q=starts, seqlen_q=max_seqlen_q, scales=scales, alibi_slopes=slopes,
                    shared_prefixes=shared_prefixes, **extras).enqueue()
    return (o, like_flash_attn(lse)) if return_softmax_lse else o


def get_mla_metadata(*_args, **_options):
    """FlashMLA's plan. FerroFlash's kernels schedule themselves on the device, so both parts are None."""
    return None, None


@simulated
def flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata=None,
                           num_splits=None, softmax_scale=None, causal=False):
    """Computes MLA decode of q (batch, seqlen_q, heads, head_dim) on a latent cache (pages, page, 1, head_dim).

    FlashMLA's arguments in its order. The values are the first `head_dim_v` columns of the cache. The default of
    `softmax_scale` is FlashMLA's, head_dim ** -0.5; a model's is that of its keys before absorption. Returns o (batch,
    seqlen_q, heads, head_dim_v), and lse, float32 (batch, heads, seqlen_q). For a row without a key, lse is +inf.
    """
    o = q.new_empty((*q.shape[:-1], head_dim_v))
    lse = q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=_devices.of(q).dtype("float32"))
    kvcache.Launch(q, k_cache, None, o, _devices.integers(cache_seqlens, q), lse=lse,
                    table=_devices.integers(block_table, q), mask=CAUSAL if causal else FULL,
                    scale=q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale).enqueue()
    return o, like_flash_attn(lse)


@simulated
def merge_attn_states(output, prefix_output, prefix_lse, suffix_output, suffix_lse, output_lse=None, *, sinks=None):
    """Merges attention over a prefix's keys with attention over the other keys, into `output`.

    The arguments are vLLM's, in its order: outputs (tokens, heads, head_dim), log-sum-exps (heads, tokens) in float32.
    A row without a key has an infinite log-sum-exp. `sinks` (heads) are logits that belong to no key.
    """
    merge.prepare(output, [(prefix_output, prefix_lse), (suffix_output, suffix_lse)], output_lse, sinks)()
