"""FerroFlash as an attention of transformers. A forward makes one mask for its layers, and no layer waits for the GPU."""
from __future__ import annotations

import inspect
from typing import Any

from . import functions
from ._library import Invalid, Unsupported, WrongType
from ._types import Memory


def register_with_transformers(name: str = "ferro", *, device: str | None = None) -> None:
    """Registers FerroFlash as an attention of transformers 5.4 or newer: `attn_implementation="ferro"` then selects it.

    It takes the models that have `flash_attention_2`, in float16, bfloat16 or under autocast, for inference and
    training. `device` is that of flash_attn_func: "sim" runs models on the CPU in the simulator.
    """
    if not isinstance(name, str):
        raise WrongType(f"name is {name!r:.60}; it must be a string")
    if "flash" in name:
        raise Invalid(f"name {name!r}: it must not contain \"flash\", by which transformers recognises FlashAttention; "
                      "choose another name")
    import transformers
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    if "q_offset" not in inspect.signature(sdpa_mask).parameters:
        raise Unsupported(f"transformers {transformers.__version__}: its masks have no q_offset; install 5.4 or newer")
    AttentionMaskInterface.register(name, mask)
    transformers.AttentionInterface.register(name, _Attention(device))


def mask(*, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: int = 0, attention_mask: Memory = None,
         local_size: int | None = None, allow_is_causal_skip: bool = True, allow_is_bidirectional_skip: bool = False,
         config: Any = None, **others: Any) -> Memory:
    """Returns the mask of a forward's layers: None if the layers' arguments say it, or bits, uint8 (batch or 1, 1,
    q_length, bytes)."""
    from transformers.masking_utils import sdpa_mask

    ends_together = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    is_within = local_size is None or kv_length < local_size
    # Layers know the window, but no chunk.
    is_window = local_size is not None and local_size == getattr(config, "sliding_window", None)
    is_known = (allow_is_causal_skip and ends_together and (is_within or is_window)
                or allow_is_bidirectional_skip and is_within)
    if is_known and not _has_padding(attention_mask, kv_offset, kv_length):
        return None
    return bits(sdpa_mask(q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
                          attention_mask=attention_mask, local_size=local_size, allow_is_causal_skip=False,
                          allow_is_bidirectional_skip=False, config=config, **others))


def _has_padding(attention_mask: Memory, first: int, keys: int) -> bool:
    """Returns whether a mask (batch, keys) may have padding. This waits for the GPU once for each forward."""
    if attention_mask is None:
        return False
    import torch

    from . import _torch
    unknown = _torch.sees_operators() or attention_mask.is_cuda and torch.cuda.is_current_stream_capturing()
    if unknown or attention_mask.shape[-1] < first + keys:
        return True
    return not bool(attention_mask[:, first:first + keys].all())


def bits(seen: Memory) -> Memory:
    """Returns mask_bits of booleans (batch, heads, seqlen_q, seqlen_k)."""
    import torch

    if seen.stride(0) == 0:
        seen = seen[:1]
    eights = torch.nn.functional.pad(seen, (0, -seen.shape[-1] % 8)).unflatten(-1, (-1, 8))
    return (eights << torch.arange(8, device=seen.device, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)


class _Attention:
    """The function that layers call."""

    def __init__(self, device: str | None) -> None:
        self.device = device

    def __call__(self, module: Any, query: Memory, key: Memory, value: Memory, attention_mask: Memory,
                 dropout: float = 0.0, scaling: float | None = None, sliding_window: int | None = None,
                 softcap: float | None = None, is_causal: bool | None = None, s_aux: Memory = None,
                 cu_seq_lens_q: Memory = None, cu_seq_lens_k: Memory = None, max_length_q: int | None = None,
                 max_length_k: int | None = None, **_others: Any) -> tuple[Memory, None]:
        """Computes attention of query (batch, heads, seqlen_q, head_dim): o (batch, seqlen_q, heads, head_dim), None."""
        import torch

        if query.dtype == torch.float32 and torch.is_autocast_enabled(query.device.type):
            dtype = torch.get_autocast_dtype(query.device.type)
            query, key, value = (of.to(dtype) for of in (query, key, value))
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        options: dict[str, Any] = {"dropout_p": dropout, "softmax_scale": scaling, "softcap": softcap or 0.0,
                                   "sinks": None if s_aux is None else s_aux.float(), "device": self.device}
        keys = key.shape[2] if max_length_k is None else max_length_k
        if causal and sliding_window is not None and sliding_window < keys:
            options["window_size"] = (sliding_window - 1, 0)
        if isinstance(cu_seq_lens_q, torch.Tensor) and query.shape[0] == 1:
            q, k, v = (of[0].transpose(0, 1) for of in (query, key, value))
            attend: Any = functions.flash_attn_varlen_func
            return attend(q, k, v, cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k, causal=causal,
                          **options)[None], None
        if attention_mask is None:
            options["causal"] = causal
        else:
            options.pop("window_size", None)
            if attention_mask.is_floating_point():
                options["bias"] = attention_mask[..., :keys]
            else:
                of_bits = attention_mask.dtype == torch.uint8
                options["mask_bits"] = attention_mask if of_bits else bits(attention_mask[..., :keys])
        return functions.flash_attn_func(query, key, value, bhsd=True, **options).transpose(1, 2), None
