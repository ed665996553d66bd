"""FlashAttention-2's functions, with its names, its order of arguments and its defaults.

Arguments behind `*` are FerroFlash's own. Every function takes torch tensors on a GPU. With `device="sim"`, it takes
numpy arrays or CPU tensors of torch, runs in the simulator, and returns arrays of the callers' kind.
"""
from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from . import _attention, _devices, _fa3, checks, kvcache, merge
from ._library import Invalid, Unsupported
from ._types import Array, Memory, Tensor, Window
from .planned import is_empty, masked, of_no_rows, wanted

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._types import Hopper, HopperCache

_Function = TypeVar("_Function", bound=Callable[..., Any])


def simulated(function: _Function, is_operator: bool = False) -> _Function:
    """Runs a function in the simulator if its argument `device` names a card. `is_operator` says that `_operators.py` has
    the function as an operator of torch, without gradients."""

    def run(arguments: Any, options: Any, device: str | None) -> Any:
        if device is None:
            return function(*arguments, **options)
        from . import _simulator
        return _simulator.run(function, arguments, options, device)

    @functools.wraps(function)
    def call(*arguments: Any, device: str | None = None, **options: Any) -> Any:
        if is_operator and hasattr(arguments[0] if arguments else next(iter(options.values()), None), "requires_grad"):
            from . import _torch
            # torch.compile, modes and transforms see the calls of operators only.
            if _torch.sees_operators():
                from . import _operators
                return _operators.call(function.__name__, arguments, options, device)
            tracked = _torch.all_tracked(*arguments, *options.values())
            if tracked:
                return _torch.without_gradients(function.__name__, tracked, lambda: run(arguments, options, device))
        return run(arguments, options, device)

    return cast(_Function, call)


operator = functools.partial(simulated, is_operator=True)


def repeated(function: _Function) -> _Function:
    """Lets a function that takes q repeat earlier calls on a GPU, whose host time is short."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        q = arguments[0] if arguments else options.get("q")
        if not hasattr(q, "requires_grad"):
            return function(*arguments, **options)
        from . import _again
        return _again.call(function, q, arguments, options)

    # The function itself
    call.__wrapped__ = getattr(function, "__wrapped__", function)
    return cast(_Function, call)


_forward: Callable[..., Any] = simulated(_attention.forward)


def _refuse_dropout(dropout_p: float) -> None:
    if not isinstance(dropout_p, numbers.Real) or dropout_p != 0.0:
        raise Unsupported(f"dropout_p {dropout_p!r:.60}: FerroFlash has no dropout; it must be 0.0")


def _through_operator(device: str | None, tensors: tuple[Any, ...]) -> bool:
    from . import _torch
    return _torch.wanted(device, *tensors)


def _refuse_gradients(*tensors: Any) -> None:
    if hasattr(tensors[0], "requires_grad"):
        from . import _torch
        if _torch.tracked(*tensors):
            raise Unsupported("block_table with q, k or v that require gradients: a KV cache has none; call it under "
                              "torch.no_grad(), or leave block_table out")


def _is_tensor(prefix: Any) -> bool:
    """Returns whether an argument that may be a number is none: a tensor, or what no function takes."""
    return prefix is not None and not isinstance(prefix, (numbers.Number, str)) and tuple(getattr(prefix, "shape", (0,))) != ()


def _replaced(lse: Any, old: float, new: float) -> Any:
    """Returns an LSE with another number for rows without a key."""
    if hasattr(lse, "masked_fill"):
        return lse.masked_fill(lse == old, new)
    lse[lse == old] = new
    return lse


def _probabilities(q: Any) -> Any:
    """Returns the probabilities that FlashAttention-2 returns without dropout: a tensor of no element."""
    empty = q[..., :0].reshape(-1)
    return empty.detach() if hasattr(empty, "detach") else empty


def _attend(q: Any, k: Any, v: Any, starts: tuple[Any, Any, Any], lengths: tuple[int, int], scores: tuple[Any, ...],
            config: str | None, bhsd: bool, rows: tuple[str, ...], return_attn_probs: bool, invariance: str | None,
            device: str | None, seqused_q: Any = None, precision: str | None = None, **descales: Any) -> Any:
    """Runs attention, and returns what FlashAttention-2 returns."""
    slopes, sinks, bias, prefix, chunked, mask_bits, mask_keys, softmax_scale, causal, window_size, softcap = scores
    is_tensor = _is_tensor(prefix)
    options = {"cu_seqlens_q": starts[0], "cu_seqlens_k": starts[1], "alibi_slopes": slopes, "sinks": sinks, "bias": bias,
               "mask_bits": mask_bits, "seqused_k": starts[2], "seqused_q": seqused_q,
               "prefix": prefix if is_tensor else None}
    checks.given(options, q=q, k=k, v=v)
    left, right = checks.window(window_size)
    # Of a common call, the host's time is short.
    is_common = chunked is config is invariance is precision is softmax_scale is None and (
        type(causal) is type(bhsd) is bool and type(softcap) is float and softcap == 0 and type(mask_keys) is int
        and mask_keys == 0)
    if not is_common:
        chunked, mask_keys, softmax_scale, causal, softcap, config, invariance, precision, bhsd = checks.scalars(
            chunked=chunked, mask_keys=mask_keys, softmax_scale=softmax_scale, causal=causal, softcap=softcap,
            config=config, invariance=invariance, precision=precision, bhsd=bhsd)
    if not is_tensor:
        prefix = checks.scalar("prefix", prefix)
    arguments = (q, k, v, *starts, slopes, sinks, bias, prefix if is_tensor else None, mask_bits, *lengths,
                 softmax_scale, causal, left, right, softcap, None if is_tensor else prefix, chunked, mask_keys, bhsd,
                 config)
    tracked = (q, k, v, slopes, sinks, bias)
    direct = {"invariance": invariance, "seqused_q": seqused_q, "precision": precision,
              "q of float8_e4m3fn": descales or None}
    needed = [f"return_{name}" for name in rows if name != "lse"]
    needed += [name for name, of in direct.items() if of is not None]
    if return_attn_probs and needed and needed[0] not in direct:
        raise Invalid(f"{needed[0]} beside return_attn_probs: FlashAttention's tuple has no place for it; pass return_lse")
    if hasattr(q, "requires_grad") and not needed and _through_operator(device, tracked):
        from . import _torch
        o, *found = _torch.attend(*arguments, device)
    else:
        if needed and hasattr(q, "requires_grad") and _through_operator(None, tracked):
            raise Unsupported(f"{needed[0]} with gradients or torch.compile: call it without them, under "
                              "torch.no_grad()")
        o, *found = _forward(*arguments, rows, invariance=invariance, seqused_q=seqused_q, precision=precision,
                             **descales, device=device)
    if return_attn_probs:
        # Of this LSE there is no gradient.
        lse = found[0].detach() if hasattr(found[0], "detach") else found[0]
        return o, _replaced(lse, -math.inf, math.inf), _probabilities(q)
    return (o, *found) if rows else o


def _outputs(return_lse: bool, return_attn_probs: bool, return_max_logits: bool, return_entropy: bool,
             return_max_logits_head: bool) -> tuple[tuple[str, ...], bool]:
    """Returns the names of outputs beside o, and whether they are FlashAttention-2's."""
    if type(return_lse) is type(return_attn_probs) is type(return_max_logits) is type(return_entropy) is type(
            return_max_logits_head) is bool:
        return (wanted(return_lse or return_attn_probs, return_max_logits, return_entropy, return_max_logits_head),
                return_attn_probs)
    lse, probs, *others = checks.scalars(
        return_lse=return_lse, return_attn_probs=return_attn_probs, return_max_logits=return_max_logits,
        return_entropy=return_entropy, return_max_logits_head=return_max_logits_head)
    return wanted(lse or probs, *others), probs


@repeated
def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                    causal: bool = False, window_size: Window | None = (-1, -1), softcap: float | None = 0.0,
                    alibi_slopes: Array | None = None, deterministic: bool = False, return_attn_probs: bool = False,
                    *, sinks: Array | None = None, bias: Array | None = None, prefix: Array | int | None = None,
                    chunked: int | None = None, mask_bits: Array | None = None, mask_keys: int = 0,
                    return_lse: bool = False, return_max_logits: bool = False, return_entropy: bool = False,
                    return_max_logits_head: bool = False, config: str | None = None, invariance: str | None = None,
                    precision: str | None = None, bhsd: bool = False, device: str | None = None, **fa3: Unpack[Hopper]) -> Tensor | Any:
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
    | mask_bits | uint8 (batch or 1, heads or 1, seqlen_q, bytes): bits of the last `mask_keys` keys, or of all; bit j is key max(n - mask_keys, 0) + j of n |

    `deterministic` changes nothing: results are always the same in every bit. With `invariance` "batch", the bits of a
    sequence do not depend on its batch; with "batch_and_chunks", nor on how its queries are divided among calls. Dropout
    is refused. `config` names a kernel. `precision` "fp8" (compute capability 9.0), "int8-fp8" (8.9, 10.0 and later) or "int8-f16"
    computes products of eight bits: less accurate, and faster in long prefill (docs/accuracy.md, limits.md), without gradients. On 9.0, q, k
    and v may be float8_e4m3fn, with FlashAttention-3's q_descale, k_descale and v_descale; o is then bfloat16. docs/python.md
    says what becomes of `fa3`, FlashAttention-3's arguments. Returns o; with return_lse, return_max_logits or
    return_entropy (in nats) a tuple of o and each, in this order, float32 (batch, heads, seqlen_q), and at its end, with
    return_max_logits_head, the largest score of each head, float32 (heads), -inf for a head without a key; with
    return_attn_probs (o, lse, a tensor without elements), as FlashAttention-2 does without dropout.
    """
    _refuse_dropout(dropout_p)
    others, descales = _fa3.descales(q, fa3)
    chunked = _fa3.chunk("flash_attn_func", others, causal, chunked)
    scores = (alibi_slopes, sinks, bias, prefix, chunked, mask_bits, mask_keys, softmax_scale, causal, window_size,
              softcap)
    rows, return_attn_probs = _outputs(return_lse, return_attn_probs, return_max_logits, return_entropy,
                                       return_max_logits_head)
    return _attend(q, k, v, (None, None, None), (0, 0), scores, config, bhsd, rows, return_attn_probs, invariance, device,
                   precision=precision, **descales)


@repeated
def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                           max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                           softmax_scale: float | None = None, causal: bool = False, window_size: Window | None = (-1, -1),
                           softcap: float | None = 0.0, alibi_slopes: Array | None = None, deterministic: bool = False,
                           return_attn_probs: bool = False, block_table: Array | None = None, *,
                           seqused_k: Array | None = None, sinks: Array | None = None, bias: Array | None = None,
                           prefix: Array | int | None = None, chunked: int | None = None,
                           mask_bits: Array | None = None, mask_keys: int = 0, return_lse: bool = False,
                           return_max_logits: bool = False, return_entropy: bool = False,
                           return_max_logits_head: bool = False, config: str | None = None,
                           invariance: str | None = None, precision: str | None = None, device: str | None = None,
                           **fa3: Unpack[Hopper]) -> Tensor | Any:
    """Computes attention of varlen sequences, with gradients of q, k, v, sinks and bias.

    q, k and v are (rows of all sequences, heads, head_dim); `cu_seqlens_q` and `cu_seqlens_k` are int32 (batch + 1) on
    the device: sequence b has the rows from cu_seqlens[b] to cu_seqlens[b + 1]. `max_seqlen_q` and `max_seqlen_k` are at
    least the lengths of the longest sequences. No call waits for the device, so it checks offsets only where the host
    has them: in the simulator, and on the CPU. Of wrong offsets on a GPU, rows of o are wrong or not written. A captured
    graph stays valid when they change. `seqused_k` (batch) is the number of valid keys of each sequence, and `seqused_q`
    (batch), without gradients, the number of its used queries: the last one aligns with the last key, and o of the rows
    behind them is 0. With `block_table`, k and v are a cache (pages, page, heads_k, head_dim) without gradients, and
    sequence b has seqused_k[b] keys, without seqused_k cu_seqlens_k[b + 1] - cu_seqlens_k[b]. Rows of o that belong to
    no sequence are not written. The other arguments are flash_attn_func's; `precision` of a cache is flash_attn_with_kvcache's.

    Returns what flash_attn_func returns; outputs of rows are (heads, rows). For a row without a key, lse and the largest
    score are -inf, or with return_attn_probs +inf, as in FlashAttention-2, and the entropy is 0.
    """
    _refuse_dropout(dropout_p)
    if block_table is not None:
        _refuse_gradients(q, k, v)
        scales = {"k_descale": fa3.pop("k_descale", None), "v_descale": fa3.pop("v_descale", None)}
        others: dict[str, Any] = {**fa3}
    else:
        others, scales = _fa3.descales(q, fa3)
    seqused_q = others.pop("seqused_q", None)
    chunked = _fa3.chunk("flash_attn_varlen_func", others, causal, chunked)
    rows, return_attn_probs = _outputs(return_lse, return_attn_probs, return_max_logits, return_entropy,
                                       return_max_logits_head)
    max_seqlen_q, max_seqlen_k = checks.scalars(max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k)
    checks.needed(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k if seqused_k is None or block_table is None else 0)
    if block_table is None:
        scores = (alibi_slopes, sinks, bias, prefix, chunked, mask_bits, mask_keys, softmax_scale, causal, window_size,
                  softcap)
        return _attend(q, k, v, (cu_seqlens_q, cu_seqlens_k, seqused_k), (max_seqlen_q, max_seqlen_k), scores, config,
                       False, rows, return_attn_probs, invariance, device, seqused_q, precision, **scales)
    out: Any = _varlen_paged(
        q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table, max_seqlen_q, return_attn_probs, device=device,
        softmax_scale=softmax_scale, causal=causal, window_size=window_size, softcap=softcap, config=config,
        alibi_slopes=alibi_slopes, sinks=sinks, bias=bias, prefix=prefix, chunked=chunked, mask_bits=mask_bits,
        mask_keys=mask_keys, invariance=invariance, precision=precision, return_softmax_lse="lse" in rows,
        return_max_logits="max_logits" in rows, return_entropy="entropy" in rows,
        return_max_logits_head="max_logits_head" in rows, seqused_q=seqused_q, **scales)
    return (*out, _probabilities(q)) if return_attn_probs else out


def _varlen_paged(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, seqused_k: Any, block_table: Any,
                  max_seqlen_q: int, like_fa2: bool, **options: Any) -> Any:
    """Computes flash_attn_varlen_func on a cache with a block table."""
    checks.given({"block_table": block_table, "seqused_k": seqused_k}, q=q)
    used, name = seqused_k, "seqused_k"
    if seqused_k is None:
        checks.given({"cu_seqlens_k": cu_seqlens_k}, q=q)
        checks.ranks(checks.VARLEN, cu_seqlens_k=cu_seqlens_k)
        checks.offsets("cu_seqlens_k", cu_seqlens_k, None, None, "k")
        used, name = cu_seqlens_k[1:] - cu_seqlens_k[:-1], "lengths of cu_seqlens_k"
    names = {"cache_seqlens": name, "k_cache": "k", "v_cache": "v"}
    out = checks.renamed(names, lambda: flash_attn_with_kvcache(
        q, k, v, cache_seqlens=used, block_table=block_table, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q, **options))
    if options["return_softmax_lse"] and not like_fa2:
        return (out[0], _replaced(out[1], math.inf, -math.inf), *out[2:])
    return out


@repeated
@operator
def flash_attn_with_kvcache(q: Tensor, k_cache: Array, v_cache: Array, k: Array | None = None, v: Array | None = None,
                            rotary_cos: Array | None = None, rotary_sin: Array | None = None,
                            cache_seqlens: Array | int | None = None, cache_batch_idx: Array | None = None,
                            cache_leftpad: Array | None = None, block_table: Array | None = None,
                            softmax_scale: float | None = None, causal: bool = False, window_size: Window | None = (-1, -1),
                            softcap: float | None = 0.0, rotary_interleaved: bool = True, alibi_slopes: Array | None = None,
                            num_splits: int = 0, return_softmax_lse: bool = False, *,
                            cu_seqlens_q: Array | None = None, max_seqlen_q: int | None = None,
                            k_descale: Array | float | None = None, v_descale: Array | float | None = None,
                            page_table: Array | None = None, sinks: Array | None = None, bias: Array | None = None,
                            prefix: Array | int | None = None, chunked: int | None = None,
                            mask_bits: Array | None = None, mask_keys: int = 0, split_keys: int = 0,
                            invariance: str | None = None, shared_prefixes: tuple[int, int, Array] | None = None,
                            return_max_logits: bool = False, return_entropy: bool = False,
                            return_max_logits_head: bool = False, seqused_q: Array | None = None,
                            precision: str | None = None, config: str | None = None, device: str | None = None,
                            **fa3: Unpack[HopperCache]) -> Tensor | Any:
    """Computes attention of q (batch, seqlen_q, heads, head_dim) on a cache. Masks are aligned bottom-right.

    The cache is (batch_cache, seqlen_cache, heads_k, head_dim), or with `block_table` (pages, page, heads_k, head_dim).
    The head_dim of v_cache may differ; o has it. The call first writes `k` and `v` (batch, new, heads_k, head_dim) after
    the `cache_seqlens` keys of each sequence. With `rotary_cos` and `rotary_sin` (positions, columns / 2), in float32 or
    the dtype of q, it rotates `k` on the way, and q: row i of a sequence by the angles of position cache_seqlens + i.
    `alibi_slopes` are (heads) or (batch, heads) in float32. `cache_leftpad` is refused.

    With `cu_seqlens_q`, q is (rows of all sequences, heads, head_dim), a sequence has at most `max_seqlen_q` queries, and
    of these, `seqused_q` (batch) are used (flash_attn_varlen_func). `k_descale` and `v_descale`, floats or (batch, heads_k), are the factors
    of a float8_e4m3fn cache. For an int8 cache they are float32 (pages, page, heads_k), without pages (batch_cache,
    seqlen_cache, heads_k): the factor of each row. The call writes the factors of the rows of `k` and `v`: largest
    magnitude / 127. `sinks` (heads) are logits that belong to no key. `split_keys` are keys per split, in place of
    `num_splits`. `shared_prefixes` is (groups, pages, rest): the sequences of a group share their first pages, and rest,
    int32 (batch), has the keys of each sequence behind them. `page_table` is FlashAttention-3's name of `block_table`.
    `precision` "fp8" (compute capability 9.0) computes products of float8_e4m3fn on a cache of it, with more than 64 rows
    (queries x query heads per key head); "int8-fp8" (8.9, 10.0 and later) those of int8 on a cache of int8. bias, prefix,
    chunked, mask_bits, mask_keys and invariance are flash_attn_func's.

    Returns o; with return_softmax_lse, return_max_logits or return_entropy (in nats) a tuple of o and each, in this
    order, float32 (batch, heads, seqlen_q), or (heads, rows) for varlen, and at its end, with return_max_logits_head, the
    largest score of each head, float32 (heads). For a row without a key, lse is +inf, as in FlashAttention-2.
    """
    chunked = _fa3.chunk("flash_attn_with_kvcache", fa3, causal, chunked)
    if page_table is not None:
        if block_table is not None:
            raise Invalid("page_table beside block_table: one is FlashAttention-3's name of the other; pass one")
        checks.given({"page_table": page_table}, q=q)
        checks.renamed({"block_table": "page_table"}, lambda: checks.ranks(checks.CACHE, block_table=page_table))
        block_table, = _devices.integers(q, page_table=page_table)
    window_size = checks.window(window_size)
    (causal, softmax_scale, softcap, rotary_interleaved, num_splits, split_keys, mask_keys, chunked, invariance, precision,
     config, return_softmax_lse, return_max_logits, return_entropy, return_max_logits_head) = checks.scalars(
        causal=causal, softmax_scale=softmax_scale, softcap=softcap, rotary_interleaved=rotary_interleaved,
        num_splits=num_splits, split_keys=split_keys, mask_keys=mask_keys, chunked=chunked, invariance=invariance,
        precision=precision, config=config, return_softmax_lse=return_softmax_lse, return_max_logits=return_max_logits,
        return_entropy=return_entropy, return_max_logits_head=return_max_logits_head)
    if max_seqlen_q is not None:
        max_seqlen_q = checks.scalar("max_seqlen_q", max_seqlen_q)
    if not _is_tensor(prefix):
        prefix = checks.scalar("prefix", prefix)
    k_descale, v_descale = (of if of is None or _is_tensor(of) or hasattr(of, "data_ptr") else checks.scalar(name, of)
                            for name, of in (("k_descale", k_descale), ("v_descale", v_descale)))
    checks.given({"k": k, "v": v, "block_table": block_table, "cu_seqlens_q": cu_seqlens_q, "alibi_slopes": alibi_slopes,
                  "sinks": sinks, "bias": bias, "mask_bits": mask_bits, "rotary_cos": rotary_cos,
                  "rotary_sin": rotary_sin, "seqused_q": seqused_q, "prefix": prefix if _is_tensor(prefix) else None,
                  "k_descale": None if isinstance(k_descale, float) else k_descale,
                  "v_descale": None if isinstance(v_descale, float) else v_descale},
                 q=q, k_cache=k_cache, v_cache=v_cache)
    layout = checks.CACHE if cu_seqlens_q is None else checks.VARLEN_CACHE
    checks.ranks(layout, k_cache=k_cache, v_cache=v_cache, block_table=block_table, k=k, v=v, cu_seqlens_q=cu_seqlens_q)
    kvcache.check(q, k_cache, v_cache, k, v, cu_seqlens_q, max_seqlen_q, causal, window_size, rotary_cos, rotary_sin,
                  cache_leftpad, seqused_q, block_table, cache_batch_idx)
    outputs: tuple[str, ...] = wanted(return_softmax_lse, return_max_logits, return_entropy, return_max_logits_head)
    # Tensors of a device, even if the caller's are arrays.
    queries: Memory = q
    if is_empty(q, cu_seqlens_q):
        if k is not None:
            raise Unsupported("k, v beside q without queries: nothing is appended then; append with at least one query")
        o = _devices.of(q).zeros_like(queries.new_empty((*q.shape[:-1], v_cache.shape[-1])))
        return (o, *of_no_rows(queries, (*q.shape[:-3], q.shape[-2], q.shape[-3]), outputs)) if outputs else o
    scales = kvcache.descales(k_cache, k, (k_descale, v_descale))
    on, batch = _devices.of(q), q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    if cu_seqlens_q is not None:
        checks.offsets("cu_seqlens_q", cu_seqlens_q, q.shape[0], max_seqlen_q, "q")
    rows, table, starts, used = _devices.integers(
        q, cache_batch_idx=cache_batch_idx, block_table=block_table, cu_seqlens_q=cu_seqlens_q, seqused_q=seqused_q)
    # Without lengths, every sequence has all keys of the cache, as in FlashAttention.
    full = k_cache.shape[1] * (1 if table is None else table.shape[1])
    lengths: Memory = (full if k is None else 0) if cache_seqlens is None else cache_seqlens
    if isinstance(lengths, (numbers.Number, str)):
        lengths = queries.new_full((batch,), checks.scalar("cache_seqlens", lengths), dtype=on.dtype("int32"))
    if full:
        checks.lengths("cache_seqlens", lengths, full - (0 if k is None else k.shape[1]))
    (lengths,) = _devices.integers(q, cache_seqlens=lengths)
    checks.ranks(layout, cache_batch_idx=rows)
    checks.pages(k_cache, block_table, cache_batch_idx, lengths)
    sinks, prefix = checks.converted(q, sinks, prefix)
    if shared_prefixes is not None:
        groups, pages, rest = checks.prefixes(shared_prefixes)
        shared_prefixes = (groups, pages, _devices.integers(q, rest=rest)[0])
    if k is not None:
        own = on.arange(batch) if rows is None and table is None else rows
        angles = None if rotary_cos is None else (rotary_cos, rotary_sin, rotary_interleaved)
        rotated = kvcache.append_after(k, v, k_cache, v_cache, lengths, table, own, scales, angles, q)
        queries = q if rotated is None else rotated
        lengths = lengths + k.shape[1]
    mask, window = masked(causal, window_size)
    out = kvcache.attend(
        queries, k_cache, v_cache, lengths, v_cache.shape[-1], outputs, table=table, rows=rows, sinks=sinks, mask=mask,
        window=window, scale=softmax_scale, softcap=softcap, splits=num_splits, split_keys=split_keys, config=config,
        cu_seqlens_q=starts, seqlen_q=max_seqlen_q, scales=scales, alibi_slopes=alibi_slopes,
        shared_prefixes=shared_prefixes, bias=bias, prefix=prefix, chunked=chunked, mask_bits=mask_bits,
        mask_keys=mask_keys, invariance=invariance, precision=precision, seqused_q=used)
    return out if outputs else out[0]


@operator
def merge_attn_states(output: Tensor, prefix_output: Array, prefix_lse: Array, suffix_output: Array,
                      suffix_lse: Array, output_lse: Array | None = None, *, sinks: Array | None = None,
                      device: str | None = None) -> None:
    """Merges attention over a prefix's keys with attention over the other keys, into `output`.

    The arguments are vLLM's, in its order: outputs (tokens, heads, head_dim), log-sum-exps (heads, tokens) in float32.
    A row without a key has an infinite log-sum-exp. `sinks` (heads) are logits that belong to no key.
    """
    checks.given({"output_lse": output_lse, "sinks": sinks}, output=output, prefix_output=prefix_output,
                 prefix_lse=prefix_lse, suffix_output=suffix_output, suffix_lse=suffix_lse)
    sinks, _ = checks.converted(output, sinks, None)
    names = {f"{of} of state {n}": f"{part}_{full}" for n, part in enumerate(("prefix", "suffix"))
             for of, full in (("o", "output"), ("lse", "lse"))}
    states = [(prefix_output, prefix_lse), (suffix_output, suffix_lse)]
    checks.renamed(names, lambda: merge.prepare(output, states, output_lse, sinks)())
