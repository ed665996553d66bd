"""A request in the library's struct, its plan and its scratch memory."""
from __future__ import annotations

import contextlib
import ctypes
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from . import _devices, checks
from ._library import LIB, Invalid, Unsupported, c, check
from ._types import Memory

# Names of the functions' arguments, and of the struct's fields where these differ
_FIELDS = {"k_cache": "k", "v_cache": "v", "cache_seqlens": "seqused_k", "rest": "rest_lengths",
           "prefix": "prefix_lengths"}

_Launch = TypeVar("_Launch", bound="Planned")
FULL, CAUSAL, WINDOW, PREFIX, CHUNKED, BITS = (
    c.MASK_FULL, c.MASK_CAUSAL, c.MASK_WINDOW, c.MASK_PREFIX, c.MASK_CHUNKED, c.MASK_BITS)


def padded(strides: Sequence[int], count: int) -> Any:
    """Returns strides for the structs, with zeros before them."""
    return (ctypes.c_int64 * count)(*([0] * (count - len(strides)) + list(strides)))


def masked(causal: bool, window_size: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    """Returns the mask and the window for FlashAttention's arguments, of which -1 means no bound."""
    left, right = window_size
    right = 0 if causal else right
    return CAUSAL if causal and left < 0 else WINDOW if left >= 0 or right >= 0 else FULL, (left, right)


def like_flash_attn(lse: Memory) -> Memory:
    """Converts the LSE of rows without a key to +inf, as FlashAttention-2 returns it. FerroFlash returns -inf,
    the logarithm of 0."""
    took(lse)
    return lse.masked_fill_(lse.isneginf(), math.inf)


# The output that has one number per head
HEAD = "max_logits_head"


def wanted(return_lse: bool, return_max_logits: bool, return_entropy: bool,
           return_max_logits_head: bool) -> tuple[str, ...]:
    """Returns the names of outputs beside o, in the order in which functions return them."""
    asked = {"lse": return_lse, "max_logits": return_max_logits, "entropy": return_entropy, HEAD: return_max_logits_head}
    return tuple(name for name, is_asked in asked.items() if is_asked)


def of_rows(q: Memory, shape: Sequence[int], rows: Sequence[str]) -> dict[str, Memory]:
    """Allocates outputs of rows, whose `shape` is (.., heads, rows), and that of heads."""
    float32 = _devices.of(q).dtype("float32")
    return {name: q.new_empty(shape[-2:-1] if name == HEAD else shape, dtype=float32) for name in rows}


def of_no_rows(q: Memory, shape: Sequence[int], rows: Sequence[str]) -> list[Memory]:
    """Returns the outputs of a call without queries. The largest score of a head is then -inf."""
    device = _devices.of(q)
    return [q.new_full(shape[-2:-1], -math.inf, dtype=device.dtype("float32")) if name == HEAD else of
            for name, of in of_rows(q, shape, rows).items()]


# Launches that a thread keeps. Lengths of prompts change at every call.
KEPT = 256


class _Local(threading.local):
    """The launches that a thread has prepared, the last one last, and the steps of its current call."""

    def __init__(self) -> None:
        self.launches: dict[Any, Any] = {}
        self.steps: list[Any] | None = None


_local = _Local()


def launches() -> dict[Any, Any]:
    """Returns the launches that this thread keeps."""
    return _local.launches


@contextlib.contextmanager
def steps() -> Iterator[list[Any]]:
    """Collects the steps of a call, for `_again.py`."""
    outer, _local.steps = _local.steps, []
    try:
        yield _local.steps
    finally:
        if outer is not None:
            outer += _local.steps
        _local.steps = outer


def took(*step: Any) -> None:
    """Tells the current call that it took a step: (launch, its tensors), (an LSE that became FlashAttention's,), or (a
    differentiated function, its arguments, its results)."""
    if _local.steps is not None:
        _local.steps.append(step)


def layout(value: Any) -> Any:
    """Returns an argument without its address: calls of equal layouts share one plan."""
    return (value.dtype, value.device, value.shape, value.stride()) if hasattr(value, "data_ptr") else value


def layouts(options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns arguments without addresses. Kernels that read a bias by TMA need an aligned address."""
    bias = options.get("bias")
    return (*((name, layout(of)) for name, of in options.items()), bias is not None and bias.data_ptr() % 16)


def reuse(device: Any, key: Any, make: Callable[[], _Launch], **tensors: Memory) -> _Launch:
    """Returns a thread's launch of an earlier call with this key, on other tensors, or what `make` returns. The key has
    all that the plan depends on. Launches of two streams may run concurrently, so each stream has its own."""
    kept, key, captured = launches(), (device, device.stream(), key), device.capturing()
    # A graph's launch has counters and a workspace in the graph's memory.
    launch: _Launch | None = None if captured else kept.pop(key, None)
    if launch is None:
        launch = make()
        launch.kept = tensors
        if captured:
            return launch
        if len(kept) >= KEPT:
            del kept[next(iter(kept))]
    else:
        launch.point(**tensors)
        launch.kept = tensors
        launch.lend()
    kept[key] = launch
    took(launch, tensors)
    return launch


def is_empty(q: Memory, cu_seqlens_q: Memory = None, bhsd: bool = False) -> bool:
    """Returns whether there is no query, so that a call launches nothing."""
    if cu_seqlens_q is not None:
        return bool(q.shape[0] == 0 or tuple(cu_seqlens_q.shape) == (1,))
    return 0 in (*q.shape[:1], *q.shape[2:3]) if bhsd else 0 in q.shape[:2]


def one_of(name: str, of: str | None, known: Mapping[str | None, int]) -> int:
    """Returns the library's number of a name."""
    if of not in known:
        raise Invalid(f"{name} {of!r:.60}: it must be {', '.join(map(repr, [*known][:-1]))} or {[*known][-1]!r}")
    return known[of]


INVARIANCE = {None: c.INVARIANCE_NONE, "batch": c.INVARIANCE_BATCH, "batch_and_chunks": c.INVARIANCE_BATCH_AND_CHUNKS}

PRECISION = {None: c.PRECISION_INPUTS, "int8-f16": c.PRECISION_INT8_F16, "int8-fp8": c.PRECISION_INT8_FP8,
             "fp8": c.PRECISION_FP8}


class Planned:
    """One request on the stream that is current now: its arguments, its plan, its scratch memory. It belongs to
    one thread."""

    device: Any
    context: ctypes.c_void_p
    stream: Any
    args: Any
    where: int
    call: checks.Call
    workspace: Memory
    counted: Memory
    plan: ctypes.c_void_p
    # Tensors of the next enqueue
    kept: Any

    def __init__(self, q: Memory, mask: int, window: tuple[int, int], scale: float | None, softcap: float,
                 config: str | None, call: checks.Call, dtypes: Sequence[str] = _devices.INPUTS) -> None:
        self.device, self.call, self.workspace, self.kept = _devices.of(q), call, None, None
        self.context, self.stream = self.device.context, self.device.stream()
        args: Any = c.Attention(size=ctypes.sizeof(c.Attention))
        self.args, self.where = args, ctypes.addressof(args)
        args.dtype = _devices.code(q.dtype, "q", dtypes)
        args.mask, (args.window_left, args.window_right) = mask, window
        # In a struct, 0 means the library's default.
        args.scale, args.softcap = 0.0 if scale is None else scale, softcap
        args.config = config.encode() if config else None

    def point(self, **tensors: Memory) -> None:
        """Sets the addresses of tensors."""
        for name, tensor in tensors.items():
            setattr(*self.place(name), None if tensor is None else tensor.data_ptr())

    def place(self, name: str) -> tuple[Any, str]:
        """Returns the struct and the field of a tensor."""
        return self.args, _FIELDS.get(name, name)

    def take(self, **tensors: Memory) -> None:
        """Checks tensors, and sets their addresses."""
        self.call.require(**tensors)
        self.point(**tensors)

    def strides(self, rows: Mapping[str, Memory], slopes: Memory, **tensors: Sequence[int]) -> None:
        """Sets the strides of tensors, aligned at the last dimension, of outputs of rows, and of ALiBi slopes, (heads)
        or (batch, heads)."""
        for name, strides in tensors.items():
            setattr(self.args, f"{name}_strides", padded(strides, 4))
        for name, of in rows.items():
            if of is not None and name != HEAD:
                setattr(self.args, f"{name}_strides", padded(of.stride()[:-1], 2))
        if slopes is not None:
            self.args.alibi_strides = padded(slopes.stride(), 2)

    def extras(self, sinks: Memory = None, bias: Memory = None, prefix: Memory | int | None = None,
               chunked: int | None = None, mask_bits: Memory = None, mask_keys: int = 0,
               invariance: str | None = None, seqused_q: Memory = None,
               precision: str | None = None, q_descale: Memory = None, k_descale: Memory = None,
               v_descale: Memory = None) -> None:
        """Sets sinks, a bias, masks, invariance, precision, used queries and scales, after the tensors of which `checks.py`
        takes the sizes.

        `prefix` is a number of keys that every query sees, or their numbers. `chunked` is the number of positions per
        chunk. `mask_bits` has bits of the last `mask_keys` keys, or of all.
        """
        args = self.args
        args.invariance = one_of("invariance", invariance, INVARIANCE)
        args.precision = one_of("precision", precision, PRECISION)
        self.call.sizes["bytes"] = -(-(mask_keys or self.call.sizes["seqlen_k"]) // 8)
        lengths, number = (prefix, 0) if hasattr(prefix, "data_ptr") else (None, prefix)
        shared = lambda t: (ctypes.c_int64 * 3)(
            *(0 if n == 1 else stride for n, stride in zip(t.shape[:3], t.stride())))
        self.take(sinks=sinks, bias=bias, prefix=lengths, mask_bits=mask_bits, seqused_q=seqused_q)
        for name, scales in {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}.items():
            if scales is not None:
                self.take(**{name: scales})
                setattr(args, f"{name}_strides", padded(scales.stride(), 2))
        if bias is not None:
            args.bias_dtype = _devices.code(bias.dtype, "bias", _devices.WIDE)
            args.bias_strides = shared(bias)
        if mask_keys and mask_bits is None:
            raise Invalid(f"mask_keys {mask_keys} without mask_bits: it counts the keys of their rows; leave it 0, or pass "
                          "mask_bits")
        self._check_masks(prefix=prefix, chunked=chunked, mask_bits=mask_bits)
        if prefix is not None:
            args.mask, args.mask_length = PREFIX, number
        if chunked is not None:
            args.mask, args.mask_length = CHUNKED, chunked
        if mask_bits is not None:
            args.mask, args.mask_bits_strides, args.mask_bits_keys = BITS, shared(mask_bits), mask_keys
            if mask_bits.shape[2] == 1:
                # A stride of 0 would make queries share a row.
                args.mask_bits_strides[2] = mask_bits.shape[3]

    def _check_masks(self, **masks: Any) -> None:
        """A request has one mask. Prefix and chunked are causal themselves."""
        names = [name for name, of in masks.items() if of is not None]
        if len(names) > 1:
            raise Unsupported(f"{' and '.join(names)}: a call has one mask; pass one of them, or mask_bits for both")
        if names and self.args.mask == WINDOW:
            raise Unsupported(f"{names[0]} beside window_size ({self.args.window_left}, {self.args.window_right}): a "
                              "call has one mask; leave window_size (-1, -1), or pass mask_bits for both")
        if names == ["mask_bits"] and self.args.mask == CAUSAL:
            raise Unsupported("mask_bits beside causal: a call has one mask; clear the bits of later keys, and leave "
                              "causal False")

    def plan_it(self, share: Planned | None = None) -> None:
        """Allocates scratch memory, plans, and loads the kernels. `share` is another launch on the same stream;
        this launch uses the other launch's workspace if that is large enough."""
        args, room, counted = self.args, ctypes.c_uint64(), ctypes.c_uint64()
        check(LIB.ferroflash_scratch_size(self.context, self.where, ctypes.byref(room), ctypes.byref(counted)))
        args.workspace_bytes, self.workspace = room.value, share.workspace if share else None
        if self.workspace is not None and self.workspace.numel() < room.value:
            self.workspace = None
        self.lend()
        if counted.value:
            self.counted = self.device.counters(self.stream, counted.value)
            args.counters, args.counters_bytes = self.counted.data_ptr(), counted.value
        plan = ctypes.c_void_p()
        check(LIB.ferroflash_plan_create(self.context, self.where, ctypes.byref(plan)))
        self.plan = plan
        weakref.finalize(self, LIB.ferroflash_plan_destroy, plan)
        # The kernel must be compiled before the launch, because a graph may capture the launch.
        check(LIB.ferroflash_load(self.context, plan))

    def lend(self) -> None:
        """Sets the workspace, which may be new."""
        if self.args.workspace_bytes:
            self.workspace = self.device.empty(self.args.workspace_bytes) if self.workspace is None else self.workspace
            self.args.workspace = self.workspace.data_ptr()

    def release(self) -> None:
        """Drops the tensors, and returns the workspace to the allocator, which gives it to later work of the same stream
        only."""
        self.kept = self.workspace = self.args.workspace = None

    def run(self) -> None:
        """Launches the kernels on the stream, and drops the tensors, also of a launch that fails."""
        try:
            self.enqueue()
        finally:
            self.release()

    def again(self) -> None:
        """Runs the kernels once more, on tensors whose addresses are set."""
        self.lend()
        self.run()

    def enqueue(self) -> None:
        """Launches the kernels on the stream."""
        check(LIB.ferroflash_launch(self.context, self.plan, self.where, self.stream))

    def describe(self) -> dict[str, Any]:
        """Returns the planner's choice: entry, reason, grid, threads, shared memory."""
        info = c.PlanInfo(size=ctypes.sizeof(c.PlanInfo))
        check(LIB.ferroflash_plan_describe(self.plan, ctypes.byref(info)))
        return {"entry": info.entry.decode(), "reason": info.reason.decode(), "grid": list(info.grid),
                "threads": info.block[0], "smem_bytes": info.smem_bytes}
