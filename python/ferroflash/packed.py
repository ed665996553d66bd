"""The functions of `functions.py` on packed tensors: qkv, or q and kv; and on tensors in PyTorch's order."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import checks
from ._types import Array, Tensor, Window
from .functions import flash_attn_func, flash_attn_varlen_func

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._types import Varlen


def flash_attn_func_bhsd(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor | Any:
    """Computes flash_attn_func on tensors (batch, heads, seqlen, head_dim), PyTorch's order."""
    return flash_attn_func(q, k, v, bhsd=True, **options)


def flash_attn_qkvpacked_func(qkv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                              causal: bool = False, window_size: Window | None = (-1, -1), softcap: float | None = 0.0,
                              alibi_slopes: Array | None = None, deterministic: bool = False,
                              return_attn_probs: bool = False, **options: Unpack[Varlen]) -> Tensor | Any:
    """Computes flash_attn_func of qkv (batch, seqlen, 3, heads, head_dim)."""
    q, k, v = checks.parts("qkv", qkv, 3, "batch seqlen 3 heads head_dim")
    return checks.unpacked("qkv", "q, k and v", lambda: flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
        **options))


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                             causal: bool = False, window_size: Window | None = (-1, -1), softcap: float | None = 0.0,
                             alibi_slopes: Array | None = None, deterministic: bool = False,
                             return_attn_probs: bool = False, **options: Unpack[Varlen]) -> Tensor | Any:
    """Computes flash_attn_func of q and kv (batch, seqlen_k, 2, heads_k, head_dim)."""
    k, v = checks.parts("kv", kv, 2, "batch seqlen_k 2 heads_k head_dim")
    return checks.unpacked("kv", "k and v", lambda: flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
        **options))


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0,
                                     softmax_scale: float | None = None, causal: bool = False,
                                     window_size: Window | None = (-1, -1), softcap: float | None = 0.0,
                                     alibi_slopes: Array | None = None, deterministic: bool = False,
                                     return_attn_probs: bool = False, **options: Unpack[Varlen]) -> Tensor | Any:
    """Computes flash_attn_varlen_func of qkv (rows of all sequences, 3, heads, head_dim)."""
    q, k, v = checks.parts("qkv", qkv, 3, "rows 3 heads head_dim")
    names = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), "cu_seqlens")
    names |= dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), "max_seqlen")
    return checks.unpacked("qkv", "q, k and v", lambda: checks.renamed(names, lambda: flash_attn_varlen_func(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal, window_size, softcap,
        alibi_slopes, deterministic, return_attn_probs, **options)))


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                                    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                                    softmax_scale: float | None = None, causal: bool = False,
                                    window_size: Window | None = (-1, -1), softcap: float | None = 0.0,
                                    alibi_slopes: Array | None = None, deterministic: bool = False,
                                    return_attn_probs: bool = False, **options: Unpack[Varlen]) -> Tensor | Any:
    """Computes flash_attn_varlen_func of q and kv (rows of all sequences, 2, heads_k, head_dim)."""
    k, v = checks.parts("kv", kv, 2, "rows 2 heads_k head_dim")
    return checks.unpacked("kv", "k and v", lambda: flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size,
        softcap, alibi_slopes, deterministic, return_attn_probs, **options))
