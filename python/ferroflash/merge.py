"""Merges partial states of attention."""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from . import _devices, checks
from ._library import LIB, c, check
from ._types import Memory

NATURAL, BASE_TWO = c.LSE_NATURAL, c.LSE_BASE_TWO


def prepare(output: Memory, states: Sequence[tuple[Memory, Memory]], output_lse: Memory = None, sinks: Memory = None,
            unit: int = NATURAL) -> Callable[[], None]:
    """Returns a call that enqueues the merge of `states` [(o, lse), ..] into output, on the stream that is current
    now.

    o and output are (tokens, heads, head_dim). lse is (heads, tokens) in float32, with logarithms to base `unit`.
    output and output_lse may be the memory of a state.
    """
    device = _devices.of(output, "output")
    context, stream, call = device.context, device.stream(), checks.Call(checks.MERGE, output.device)
    call.require(output=output, output_lse=output_lse, sinks=sinks)
    for n, (o, lse) in enumerate(states):
        call.one("o of a state" if n else "o of state 0", o, f"o of state {n}")
        call.one("lse of a state", lse, f"lse of state {n}")
    o_strides = lambda t: (ctypes.c_int64 * 4)(0, *t.stride())
    lse_strides = lambda t: (ctypes.c_int64 * 3)(0, *t.stride())
    array = (c.State * len(states))(*(c.State(o.data_ptr(), lse.data_ptr(), o_strides(o), lse_strides(lse))
                                      for o, lse in states))
    args: Any = c.Merge(size=ctypes.sizeof(c.Merge), state_size=ctypes.sizeof(c.State), states=ctypes.addressof(array),
                   count=len(states), batch=1)
    args.seqlen, args.heads, args.head_dim = output.shape
    args.o, args.o_strides = output.data_ptr(), o_strides(output)
    if output_lse is not None:
        args.lse, args.lse_strides = output_lse.data_ptr(), lse_strides(output_lse)
    args.sinks = None if sinks is None else sinks.data_ptr()
    args.states_dtype = _devices.code(states[0][0].dtype, "o of a state", _devices.WIDE)
    args.dtype = _devices.code(output.dtype, "output", _devices.WIDE)
    args.states_lse_unit = args.lse_unit = unit
    kept = (output, states, output_lse, sinks, array)

    def enqueue(_kept: Any = kept) -> None:
        check(LIB.ferroflash_merge(context, ctypes.addressof(args), stream))

    return enqueue
