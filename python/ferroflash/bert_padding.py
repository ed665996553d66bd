"""FlashAttention's functions between padded and varlen tensors. Needs torch.

A mask is (batch, seqlen): True or 1 for tokens, False or 0 for padding.
"""


def unpad_input(hidden_states, attention_mask, unused_mask=None):
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


def pad_input(hidden_states, indices, batch, seqlen):
    """Returns tokens (tokens, ..) at their places in (batch, seqlen, ..), with zeros elsewhere."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


def index_first_axis(tensor, indices):
    """Returns the rows `indices` of a tensor."""
    return tensor[indices]


def index_put_first_axis(values, indices, first_axis_dim):
    """Returns zeros of first_axis_dim rows, with `values` at the rows `indices`."""
    whole = values.new_zeros((first_axis_dim, *values.shape[1:]))
    return whole.index_put((indices,), values)
