"""The types of arguments and results, which type checkers see. Nothing here imports torch or numpy when it runs."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Union

if TYPE_CHECKING:
    import numpy as np
    import torch

    Array = Union[torch.Tensor, np.ndarray[Any, Any]]
    # Results are tensors of the arguments' kind.
    Tensor = TypeVar("Tensor", torch.Tensor, np.ndarray[Any, Any])
else:
    Array, Tensor = Any, TypeVar("Tensor")

Window = Sequence[int]
# A tensor of a device of `_devices`: torch's, or `_simulator.Tensor`.
Memory = Any


class HopperCache(TypedDict, total=False):
    """FlashAttention-3's arguments that flash_attn_with_kvcache lacks. `_fa3.py` says what becomes of them."""

    attention_chunk: int
    pack_gqa: bool | None
    sm_margin: int
    scheduler_metadata: Any
    qv: Array | None
    q_descale: Array | None
    cu_seqlens_k_new: Array | None
    rotary_seqlens: Array | None


class Hopper(HopperCache, total=False):
    """FlashAttention-3's arguments that the other functions lack."""

    num_splits: int
    k_descale: Array | float | None
    v_descale: Array | float | None
    seqused_q: Array | None
    num_heads_q: int | None


class Varlen(Hopper, total=False):
    """Keywords that flash_attn_varlen_func's packed forms pass on."""

    sinks: Array | None
    bias: Array | None
    prefix: Array | int | None
    chunked: int | None
    mask_bits: Array | None
    mask_keys: int
    return_lse: bool
    return_max_logits: bool
    return_entropy: bool
    return_max_logits_head: bool
    config: str | None
    invariance: str | None
    device: str | None
