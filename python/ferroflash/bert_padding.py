"""FlashAttention's functions between padded and varlen tensors. Needs torch.

A mask is (batch, seqlen): True or 1 for tokens, False or 0 for padding.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def unpad_input(hidden_states: Tensor, attention_mask: Tensor,
                unused_mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Returns the tokens of hidden_states (batch, seqlen, ..) as (tokens, ..), their indices in (batch * seqlen),
    cu_seqlens in int32 (batch + 1), the longest sequence, and the tokens of each sequence in int32 (batch).

    Tokens of `unused_mask` get room, but the last result does not count them.
    """
    import torch

    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths, used = kept.sum(dim=-1, dtype=torch.int32), attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = kept.flatten().nonzero(as_tuple=False).flatten()
    starts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, starts, int(lengths.max()), used


def unpad_input_for_concatenated_sequences(
        hidden_states: Tensor, attention_mask_in_length: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Returns what unpad_input returns, without its last result, for rows that have several sequences each.

    attention_mask_in_length (batch, seqlen) are integers: the lengths of a row's sequences, then zeros.
    """
    import torch

    tokens = attention_mask_in_length.sum(dim=-1, keepdim=True)
    kept = torch.arange(attention_mask_in_length.shape[-1], device=tokens.device) < tokens
    indices = kept.flatten().nonzero(as_tuple=False).flatten()
    lengths = attention_mask_in_length[attention_mask_in_length != 0]
    starts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, starts, int(lengths.max())


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Returns tokens (tokens, ..) at their places in (batch, seqlen, ..), with zeros elsewhere."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


def index_first_axis(tensor: Tensor, indices: Tensor) -> Tensor:
    """Returns the rows `indices` of a tensor."""
    return tensor[indices]


def index_first_axis_residual(tensor: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the rows `indices` of a tensor, and the tensor: gradients of both reach it."""
    return tensor[indices], tensor


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Returns zeros of first_axis_dim rows, with `values` at the rows `indices`."""
    whole = values.new_zeros((first_axis_dim, *values.shape[1:]))
    return whole.index_put((indices,), values)
