"""vLLM's function for partial states of attention on torch tensors, through FerroFlash's C ABI.

    from merge import merge_attn_states
    merge_attn_states(o, prefix_o, prefix_lse, suffix_o, suffix_lse)
"""
import ctypes

import torch

from ferroflash import DTYPES, LIB, _check, _context, c

STATE_DTYPES = {**DTYPES, torch.float32: c.F32}
NATURAL, BASE_TWO = c.LSE_NATURAL, c.LSE_BASE_TWO


def prepare(output, states, output_lse=None, sinks=None, unit=NATURAL):
    """Returns a call that enqueues the merge of `states` [(o, lse), ..] into output, on the stream that is current now.

    o and output are (tokens, heads, head_dim). lse is (heads, tokens) in float32, with logarithms to base `unit`. output and
    output_lse may be the memory of a state.
    """
    context, stream = _context(output.device.index), torch._C._cuda_getCurrentRawStream(output.device.index)
    o_strides = lambda t: (ctypes.c_int64 * 4)(0, *t.stride())
    lse_strides = lambda t: (ctypes.c_int64 * 3)(0, *t.stride())
    array = (c.State * len(states))(*(c.State(o.data_ptr(), lse.data_ptr(), o_strides(o), lse_strides(lse))
                                    for o, lse in states))
    args = c.Merge(size=ctypes.sizeof(c.Merge), state_size=ctypes.sizeof(c.State), states=ctypes.addressof(array), count=len(states), batch=1)
    args.seqlen, args.heads, args.head_dim = output.shape
    args.o, args.o_strides = output.data_ptr(), o_strides(output)
    if output_lse is not None:
        args.lse, args.lse_strides = output_lse.data_ptr(), lse_strides(output_lse)
    args.sinks = None if sinks is None else sinks.data_ptr()
    args.states_dtype, args.dtype = STATE_DTYPES[states[0][0].dtype], STATE_DTYPES[output.dtype]
    args.states_lse_unit = args.lse_unit = unit
    kept = (output, states, output_lse, sinks, array)
    return lambda: kept and _check(LIB.ferroflash_merge(context, ctypes.addressof(args), stream))


def merge_attn_states(output, prefix_output, prefix_lse, suffix_output, suffix_lse, output_lse=None):
    """Merges attention over a prefix's keys with attention over the other keys.

    The arguments are vLLM's, in its order: outputs (tokens, heads, head_dim), log-sum-exps (heads, tokens) in float32.
    A row without a key has an infinite log-sum-exp.
    """
    prepare(output, [(prefix_output, prefix_lse), (suffix_output, suffix_lse)], output_lse)()
