"""Calls that repeat an earlier one: they run its launch on their own tensors, without its checks and its plan.

A call's key has all that checks and plans depend on: types and values of numbers; of tensors the dtype, device, shape,
strides and alignment; the stream. Tensors of such a call have different addresses, so none depends on which are equal.
"""
from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from . import _devices, _torch, planned
from ._types import Memory

_TENSORS = (torch.Tensor, torch.nn.Parameter)
_PLAIN = (int, float, bool, str, type(None))


class _Local(threading.local):
    """The calls that a thread may repeat, the last one last."""

    def __init__(self) -> None:
        self.calls: dict[Any, _Launched | _Applied] = {}


_local = _Local()


class _Launched:
    """A launch, the places of its tensors among those of a call, and the layouts of the call's results."""

    def __init__(self, launch: Any, inputs: list[tuple[str, int]], results: list[tuple[str, Memory] | None], is_tuple: bool,
                 lse: int | None) -> None:
        self.launch, self.is_tuple, self.lse = launch, is_tuple, lse
        self.inputs = [(*launch.place(name), at) for name, at in inputs]
        self.results = [None if of is None else (*launch.place(of[0]), of[1].shape, of[1].stride(), of[1].dtype, of[1].device)
                        for of in results]

    def again(self, _tensors: list[Memory], addresses: list[int]) -> Any:
        """Runs the launch on tensors at these addresses, and returns the call's results."""
        out: list[Memory] = []
        for args, name, at in self.inputs:
            setattr(args, name, addresses[at])
        for result in self.results:
            of = None
            if result is not None:
                args, name, shape, strides, dtype, device = result
                of = torch.empty_strided(shape, strides, dtype=dtype, device=device)
                setattr(args, name, of.data_ptr())
            out.append(of)
        self.launch.again()
        if self.lse is not None:
            planned.like_flash_attn(out[self.lse])
        return tuple(out) if self.is_tuple else out[0]


class _Applied:
    """A differentiated function, its arguments without tensors, and the places of the tensors among those of a call."""

    def __init__(self, apply: Callable[..., Any], arguments: list[Any], places: list[tuple[int, int]], is_tuple: bool) -> None:
        self.apply, self.arguments, self.places, self.is_tuple = apply, arguments, places, is_tuple

    def again(self, tensors: list[Memory], _addresses: list[int]) -> Any:
        """Applies the function to these tensors."""
        arguments = self.arguments.copy()
        for at, place in self.places:
            arguments[at] = tensors[place]
        out = self.apply(*arguments)
        return out if self.is_tuple else out[0]


def _describe(values: Iterable[Any], key: list[Any], tensors: list[Memory], addresses: list[int], tracks: bool) -> bool:
    """Adds what a call depends on to its key, and its tensors. Returns whether the call may be repeated."""
    for of in values:
        kind = type(of)
        if kind in _PLAIN:
            key += (kind, of)
        elif kind in _TENSORS:
            address = of.data_ptr()
            key += (of.dtype, of.device, of.shape, of.stride(), address % 16, tracks and of.requires_grad)
            tensors.append(of)
            addresses.append(address)
        elif kind is tuple or kind is list:
            key += (kind, len(of))
            if not _describe(of, key, tensors, addresses, tracks):
                return False
        else:
            return False
    return True


def call(function: Callable[..., Any], q: Memory, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Calls a function, or repeats an earlier call of it. `q` is one of its tensors."""
    # torch.compile, modes and transforms see no addresses. A graph's launch has memory of the graph.
    on = None if _torch.sees_operators() else _devices.gpu(q)
    if on is None or on.capturing():
        return function(*arguments, **options)
    key: list[Any] = [function, on.stream(), *options]
    tensors: list[Memory] = []
    addresses: list[int] = []
    values, tracks = (*arguments, *options.values()), torch.is_grad_enabled()
    try:
        can = _describe(values, key, tensors, addresses, tracks) and len(set(addresses)) == len(addresses)
    except RuntimeError:
        # A sparse tensor has no strides. The function says so.
        can = False
    if not can:
        return function(*arguments, **options)
    of_key = tuple(key)
    known = _local.calls.pop(of_key, None)
    if known is not None:
        _local.calls[of_key] = known
        return known.again(tensors, addresses)
    with planned.steps() as steps:
        out = function(*arguments, **options)
    made = _applied(steps, tensors, out) if any(of.requires_grad for of in tensors) and tracks else _launched(
        steps, tensors, out)
    if made is not None:
        if len(_local.calls) >= planned.KEPT:
            del _local.calls[next(iter(_local.calls))]
        _local.calls[of_key] = made
    return out


def _launched(steps: list[Any], tensors: list[Memory], out: Any) -> _Launched | None:
    """Returns what repeats a call of these steps, if it was one launch on the call's own tensors, none of which it
    converted, and on its results, which are whole allocations."""
    if [len(step) for step in steps] not in ([2], [2, 1]):
        return None
    (launch, fields), *others = steps
    of_lse = others[0] if others else ()
    results = out if isinstance(out, tuple) else (out,)
    names = {id(of): name for name, of in fields.items() if of is not None}
    inputs = [(names.pop(id(of), ""), at) for at, of in enumerate(tensors)]
    written = [None if of is None else (names.pop(id(of), ""), of) for of in results]
    lse = next((at for at, of in enumerate(results) if of_lse and of is of_lse[0]), None)
    is_known = not names and all(name for name, _ in inputs) and all(of is None or of[0] for of in written)
    is_whole = all(of is None or of[1].untyped_storage().nbytes() == of[1].numel() * of[1].element_size() for of in written)
    if not (is_known and is_whole) or of_lse and lse is None:
        return None
    return _Launched(launch, inputs, written, isinstance(out, tuple), lse)


def _applied(steps: list[Any], tensors: list[Memory], out: Any) -> _Applied | None:
    """Returns what repeats a call whose last step was a differentiated function of the call's own tensors."""
    if not steps or len(steps[-1]) != 3:
        return None
    apply, arguments, results = steps[-1]
    own = {id(of): place for place, of in enumerate(tensors)}
    places = [(at, own.get(id(of), -1)) for at, of in enumerate(arguments) if isinstance(of, torch.Tensor)]
    is_tuple = isinstance(out, tuple)
    is_whole = len(out) == len(results) and all(map(operator.is_, out, results)) if is_tuple else out is results[0]
    if not is_whole or len(places) != len(tensors) or any(place < 0 for _, place in places):
        return None
    return _Applied(apply, [None if isinstance(of, torch.Tensor) else of for of in arguments], places, is_tuple)
