"""FlashAttention's functions between padded and varlen tensors. Needs torch.

A mask is (batch, seqlen): True or 1 for tokens, False or 0 for padding.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._library import Invalid, WrongType

if TYPE_CHECKING:
    from torch import Tensor


def _check(**tensors: Any) -> None:
    """Checks that arguments are tensors, and masks (batch, seqlen) those of the first one."""
    import torch

    first = next(iter(tensors.values()))
    for name, of in tensors.items():
        if not isinstance(of, torch.Tensor):
            raise WrongType(f"{name} is {of!r:.60}; it must be a tensor of torch; convert {name}")
        if of.device.type == "meta" or str(of.layout) != "torch.strided":
            raise WrongType(f"{name} is on {of.device} in the layout {of.layout}; it must be a dense tensor with numbers")
        if name in ("indices", "attention_mask_in_length") and (of.is_floating_point() or of.dtype == torch.bool):
            raise WrongType(f"{name} is {of.dtype}; it must be a tensor of int64; convert {name}")
        if "mask" in name and (of.dim() != 2 or first.dim() < 2 or of.shape != first.shape[:2]):
            raise Invalid(f"{name} {tuple(of.shape)}: it must be (batch, seqlen), the first sizes of hidden_states, "
                          f"{tuple(first.shape)}; slice or expand {name}")
        if name == "indices" and of.dim() != 1:
            raise Invalid(f"indices {tuple(of.shape)}: it must have one dimension; flatten it")


def _within(indices: Any, rows: int, what: str) -> None:
    """Checks indices on the CPU. Those of a GPU would make the call wait."""
    if indices.device.type == "cpu" and indices.numel() and not -rows <= int(indices.min()) <= int(indices.max()) < rows:
        raise Invalid(f"indices from {int(indices.min())} to {int(indices.max())}: they must be below {rows}, {what}")


def _count(**numbers: Any) -> None:
    for name, of in numbers.items():
        if isinstance(of, bool) or not isinstance(of, int) or not 0 <= of < 2**63:
            raise WrongType(f"{name} is {of!r:.60}; it must be an integer from 0 to 2**63 - 1")


def unpad_input(hidden_states: Tensor, attention_mask: Tensor,
                unused_mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Returns the tokens of hidden_states (batch, seqlen, ..) as (tokens, ..), their indices in (batch * seqlen),
    cu_seqlens in int32 (batch + 1), the longest sequence, and the tokens of each sequence in int32 (batch).

    Tokens of `unused_mask` get room, but the last result does not count them.
    """
    import torch

    masks = {} if unused_mask is None else {"unused_mask": unused_mask}
    _check(hidden_states=hidden_states, attention_mask=attention_mask, **masks)
    attention_mask = attention_mask.detach()
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

    _check(hidden_states=hidden_states, attention_mask_in_length=attention_mask_in_length)
    tokens = attention_mask_in_length.sum(dim=-1, keepdim=True)
    kept = torch.arange(attention_mask_in_length.shape[-1], device=tokens.device) < tokens
    indices = kept.flatten().nonzero(as_tuple=False).flatten()
    lengths = attention_mask_in_length[attention_mask_in_length != 0]
    starts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, starts, int(lengths.max())


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Returns tokens (tokens, ..) at their places in (batch, seqlen, ..), with zeros elsewhere."""
    _count(batch=batch, seqlen=seqlen)
    _check(hidden_states=hidden_states, indices=indices)
    if hidden_states.dim() == 0 or hidden_states.shape[0] != indices.shape[0]:
        raise Invalid(f"hidden_states {tuple(hidden_states.shape)}: it must be (tokens, ..), here ({indices.shape[0]}, ..), as "
                      "indices")
    _within(indices, batch * seqlen, f"batch {batch} * seqlen {seqlen}")
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


def index_first_axis(tensor: Tensor, indices: Tensor) -> Tensor:
    """Returns the rows `indices` of a tensor."""
    _check(tensor=tensor, indices=indices)
    _within(indices, tensor.shape[0] if tensor.dim() else 0, "the rows of tensor")
    return tensor[indices]


def index_first_axis_residual(tensor: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the rows `indices` of a tensor, and the tensor: gradients of both reach it."""
    _check(tensor=tensor, indices=indices)
    return tensor[indices], tensor


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Returns zeros of first_axis_dim rows, with `values` at the rows `indices`."""
    _check(values=values, indices=indices)
    _count(first_axis_dim=first_axis_dim)
    if values.dim() == 0 or values.shape[0] != indices.shape[0]:
        raise Invalid(f"indices {tuple(indices.shape)}: there must be one for each row of values, {tuple(values.shape)}")
    _within(indices, first_axis_dim, "first_axis_dim")
    whole = values.new_zeros((first_axis_dim, *values.shape[1:]))
    return whole.index_put((indices,), values)
