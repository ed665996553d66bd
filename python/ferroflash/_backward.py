"""The backward pass: the gradients of q, k, v, sinks and bias, planned once per layout."""
from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from . import _devices
from ._library import LIB, c, check
from ._types import Memory
from .planned import KEPT, Planned, layout, layouts, padded, took


# The tensors that a forward lacks
_GRADIENTS = ("d_o", "d_lse", "dq", "dk", "dv", "dsinks", "dbias")


class _Local(threading.local):
    """The backward passes that a thread has planned, the last one last."""

    def __init__(self) -> None:
        self.planned: dict[Any, Backward] = {}


_local = _Local()


class Backward:
    """The backward pass of one layout on the stream that is current now: its arguments and its plan. It belongs to
    one thread."""

    def __init__(self, forward: Planned, order: tuple[int, ...], d_lse: Memory, dsinks: Memory, dbias: Memory,
                 **tensors: Memory) -> None:
        self.forward, self.context, self.stream = forward, forward.context, forward.stream
        args: Any = c.Backward(size=ctypes.sizeof(c.Backward), forward=forward.where)
        self.args, self.where = args, ctypes.addressof(args)
        for name, tensor in tensors.items():
            setattr(args, f"{name}_strides", padded([tensor.stride()[i] for i in order], 4))
        if d_lse is not None:
            args.d_lse_strides = padded(d_lse.stride()[:-1], 2)
        if dbias is not None:
            args.dbias_strides = padded(dbias.stride()[:-1], 3)
        self.point(d_lse=d_lse, dsinks=dsinks, dbias=dbias, **tensors)
        plan, info = ctypes.c_void_p(), c.PlanInfo(size=ctypes.sizeof(c.PlanInfo))
        check(LIB.ferroflash_backward_plan_create(self.context, self.where, ctypes.byref(plan)))
        weakref.finalize(self, LIB.ferroflash_plan_destroy, plan)
        check(LIB.ferroflash_plan_describe(plan, ctypes.byref(info)))
        self.plan, self.entry, args.workspace_bytes = plan, info.entry.decode(), info.workspace_bytes
        # The kernels must be compiled before the launch, because a graph may capture the launch.
        check(LIB.ferroflash_load(self.context, plan))

    def point(self, **tensors: Memory) -> None:
        """Sets the addresses of tensors."""
        for name, tensor in tensors.items():
            setattr(self.args, name, None if tensor is None else tensor.data_ptr())

    def place(self, name: str) -> tuple[Any, str]:
        """Returns the struct and the field of a tensor."""
        return (self.args, name) if name in _GRADIENTS else self.forward.place(name)

    def again(self) -> None:
        """Launches the kernels once more, on tensors whose addresses are set."""
        self.enqueue(self.forward.device.empty(self.args.workspace_bytes))

    def enqueue(self, workspace: Memory) -> None:
        """Launches the kernels on the stream."""
        self.args.workspace = workspace.data_ptr()
        check(LIB.ferroflash_backward_launch(self.context, self.plan, self.where, self.stream))


def gradients(make: Callable[[], Planned], inputs: Mapping[str, Memory], options: tuple[Any, ...],
              order: tuple[int, ...], sinks: Memory, bias: Memory, d_o: Memory, d_lse: Memory) -> tuple[Memory, ...]:
    """Returns the gradients of q, k, v, sinks and bias. `sinks` or `bias` is None if its gradient is not wanted.
    `inputs` are the tensors of the forward, `options` its other arguments, and `make` returns it without a plan;
    `order` are the dimensions of batch, row, head and column."""
    q = inputs["q"]
    device = _devices.of(q)
    # No kernel writes rows that belong to no sequence.
    empty = device.zeros_like if inputs["cu_seqlens_q"] is not None else device.empty_like
    tensors = {"d_o": d_o, "dq": empty(q), "dk": empty(inputs["k"]), "dv": empty(inputs["v"])}
    dsinks, dbias = None if sinks is None else device.empty_like(sinks), None if bias is None else rows_like(bias)
    results = {"d_lse": d_lse, "dsinks": dsinks, "dbias": dbias}
    key = (device, device.stream(), order, options, layouts(inputs),
           *(t.stride() for t in tensors.values()), *map(layout, results.values()))
    launch = _local.planned.pop(key, None)
    if launch is None:
        launch = Backward(make(), order, **results, **tensors)
        if len(_local.planned) == KEPT:
            del _local.planned[next(iter(_local.planned))]
    else:
        launch.forward.point(**inputs)
        launch.point(**results, **tensors)
    _local.planned[key] = launch
    # The allocator gives this memory to later work of the same stream only.
    launch.enqueue(device.empty(launch.args.workspace_bytes))
    if inputs["cu_seqlens_q"] is None:
        took(launch, {**inputs, **results, **tensors})
    return tensors["dq"], tensors["dk"], tensors["dv"], dsinks, dbias


def rows_like(bias: Memory) -> Memory:
    """Returns memory for the gradient of a bias. Kernels write its rows in words of 4 bytes."""
    *shape, keys = bias.shape
    return bias.new_empty((*shape, keys + keys % 2))[..., :keys]
