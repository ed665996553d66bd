"""FlashAttention-3's arguments that FlashAttention-2 lacks: which change nothing, are translated, or are refused."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _devices, checks
from ._library import Invalid, Unsupported, WrongType

# Results do not depend on how FlashAttention-3 schedules its work.
HINTS = ("num_splits", "pack_gqa", "sm_margin", "scheduler_metadata")
_WIDE = "scales need q, k and v of float8_e4m3fn; multiply {0} by it, and leave it None"
REFUSED = {
    "qv": "scores have one product; concatenate q with qv, and k with v, along head_dim; for a latent cache call "
          "flash_mla_with_kvcache",
    "q_descale": _WIDE.format("q"), "k_descale": _WIDE.format("k"), "v_descale": _WIDE.format("v"),
    "seqused_q": "only flash_attn_varlen_func takes it, and flash_attn_with_kvcache with cu_seqlens_q; slice q, and leave it "
                 "None",
    "cu_seqlens_k_new": "new keys are (batch, new, heads_k, head_dim), of one length; write keys of several lengths "
                        "into the cache before the call",
    "rotary_seqlens": "angles begin at cache_seqlens; rotate q and k before the call",
    "num_heads_q": "qkv has dimension 3 of q, k and v; slice such a tensor, and call the function of q, k and v",
}


DESCALES = ("q_descale", "k_descale", "v_descale")


def descales(q: Any, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the other options, and the scales that float8_e4m3fn q, k and v have; they are the precision of a call."""
    if _devices.name(getattr(q, "dtype", None)) != _devices.EIGHT:
        return dict(options), {}
    found = {name: options.get(name) for name in DESCALES}
    for name, of in found.items():
        if of is not None and getattr(of, "shape", ()) == ():
            raise WrongType(f"{name} is {of!r:.60}; it must be a tensor of float32 (batch, heads_k); fill one with the number")
    return {name: of for name, of in options.items() if name not in DESCALES}, found


def chunk(function: str, options: Mapping[str, object], causal: bool, chunked: int | None) -> int | None:
    """Checks FlashAttention-3's arguments, and returns the chunk: `chunked`, or `attention_chunk`."""
    if not options:
        return chunked
    for name, of in options.items():
        if name in REFUSED and of is not None:
            raise Unsupported(f"{name}: {REFUSED[name]}")
        if name not in (*REFUSED, *HINTS, "attention_chunk"):
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")
    attention_chunk = options.get("attention_chunk", 0)
    attention_chunk, = (0,) if attention_chunk is None else checks.scalars(attention_chunk=attention_chunk)
    if attention_chunk == 0:
        return chunked
    if chunked is not None:
        raise Invalid(f"attention_chunk {attention_chunk} beside chunked, its other name: leave one of them out")
    if not causal:
        raise Unsupported(f"attention_chunk {attention_chunk} without causal: a query sees no later key of its chunk; "
                          "pass causal=True")
    return attention_chunk
