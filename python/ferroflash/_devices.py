"""The devices on which tensors are: a GPU through torch, or a simulated card. Imports neither torch nor numpy."""
from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

from ._library import LIB, Invalid, WrongType, c, check
from ._types import Memory

_CODES = {"float16": c.F16, "bfloat16": c.BF16, "float8_e4m3fn": c.E4M3, "int8": c.INT8, "float32": c.F32}
_INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
_names: dict[Any, str] = {}


def name(dtype: Any) -> str:
    """Returns the name of a dtype of torch or of a simulated card: "float16", "int32", .."""
    # torch.compile cannot trace a table that has numpy's dtypes as keys.
    if hasattr(dtype, "kind"):
        return dtype.name
    try:
        return _names[dtype]
    except KeyError:
        return _names.setdefault(dtype, str(dtype).rpartition(".")[2])


def code(dtype: Any, what: str, allowed: Sequence[str]) -> int:
    """Returns the library's number of a dtype. `allowed` has names."""
    found = name(dtype)
    if found not in allowed:
        raise WrongType(f"{what} is {found}; it must be {' or '.join(allowed)}; convert {what}")
    return _CODES[found]


def of_cache(dtype: Any, scaled_rows: bool) -> int:
    """Returns the library's number of a cache's dtype. Rows with scales of their own have bytes."""
    return c.E4M3_SCALED if scaled_rows else code(dtype, "k_cache", CACHES)


EIGHT = "float8_e4m3fn"
INPUTS = ("float16", "bfloat16")
# Of q, k and v in tensors of equal lengths
DENSE = (*INPUTS, EIGHT)
CACHES = (*DENSE, "int8")
WIDE = (*INPUTS, "float32")


class Cuda:
    """A GPU of torch."""

    def __init__(self, device: Any) -> None:
        import torch

        self.torch, self.device, self.index = torch, device, device.index
        self._raw_stream = torch._C._cuda_getCurrentRawStream
        self._is_capturing = torch.cuda.is_current_stream_capturing
        self._counters: dict[Any, list[Memory]] = {}
        self._lock = threading.Lock()
        self.context = ctypes.c_void_p()
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()
            check(LIB.ferroflash_context_create(ctypes.byref(self.context)))

    def stream(self) -> int:
        """Returns the CUstream that is current now."""
        return self._raw_stream(self.index)

    def dtype(self, name: str) -> Any:
        """Returns torch's dtype of this name."""
        return getattr(self.torch, name)

    def capturing(self) -> bool:
        """Returns whether a graph captures the stream of this GPU that is current now."""
        if self.torch.cuda.current_device() == self.index:
            return self._is_capturing()
        with self.torch.cuda.device(self.index):
            return self._is_capturing()

    def empty(self, count: int) -> Any:
        """Returns bytes of memory."""
        return self.torch.empty(count, dtype=self.torch.uint8, device=self.device)

    def empty_like(self, tensor: Memory) -> Any:
        """Returns memory of a tensor's layout."""
        return self.torch.empty_like(tensor)

    def zeros_like(self, tensor: Memory) -> Any:
        """Returns zeros of a tensor's layout."""
        return self.torch.zeros_like(tensor)

    def arange(self, count: int) -> Any:
        """Returns the first numbers."""
        return self.torch.arange(count, device=self.device)

    def slots(self, starts: Memory, new: int, page: int, block_table: Memory, rows: Memory) -> tuple[Memory, Memory]:
        """Returns positions and slots of `new` keys behind the first `starts` keys of each sequence: (batch * new)
        in int64. A slot is -1 if the cache has no row for it."""
        # Each operation launches a kernel.
        torch, at = self.torch, starts[:, None].long()
        if new > 1:
            at = at + self.arange(new)
        column = at // page
        # The cache has no row for a position in another column.
        own = column.clamp(0, 0 if block_table is None else block_table.shape[1] - 1)
        number = rows[:, None] if block_table is None else block_table.gather(1, own)
        slots = torch.where(column == own, torch.add(at, number - column, alpha=page), -1)
        return at.reshape(-1), slots.reshape(-1)

    def counters(self, stream: Any, count: int) -> Any:
        """Returns the counters of a stream. Every launch leaves zeros in them. If a launch needs more
        counters, older launches keep the smaller buffer.

        A graph under capture gets other counters from its memory pool, and sets them to zero in each replay.
        """
        torch = self.torch
        make = lambda: torch.zeros(count, dtype=torch.uint8, device=self.device)
        if self.capturing():
            return make()
        with self._lock:
            kept = self._counters.setdefault(stream, [])
            if not kept or kept[-1].numel() < count:
                kept.append(make())
            return kept[-1]


_devices: dict[Any, Cuda] = {}
_lock = threading.Lock()


def gpu(tensor: Memory) -> Cuda | None:
    """Returns the GPU of a tensor, if a call has met it."""
    return _devices.get(tensor.device)


def of(tensor: Memory, what: str = "q") -> Any:
    """Returns the device of a tensor, which errors call `what`."""
    device = tensor.device
    found = _devices.get(device)
    if found is not None:
        return found
    if hasattr(device, "context"):
        # A simulated card is its own device.
        return device
    if getattr(device, "type", None) != "cuda":
        raise not_on_gpu(device, what)
    with _lock:
        if device not in _devices:
            _devices[device] = Cuda(device)
        return _devices[device]


def not_on_gpu(device: Any, what: str = "q") -> WrongType:
    """Returns the error of a tensor that is not on a GPU."""
    return WrongType(f"{what} is on {device}; it must be on a GPU: move the tensors there, or pass device=\"sim\" to run "
                     "in the simulator")


def require_dense(what: str, tensor: Memory) -> None:
    """Checks the layout of a tensor of torch."""
    if getattr(tensor, "is_nested", False):
        raise nested(what)
    if str(tensor.layout) != "torch.strided":
        raise WrongType(f"{what} has the layout {tensor.layout}; it must be a dense tensor; call {what}.to_dense()")


def nested(what: str) -> WrongType:
    """Returns the error of a nested tensor."""
    return WrongType(f"{what} is a nested tensor; it must be a dense tensor; pass the rows of all sequences and their "
                     f"offsets to flash_attn_varlen_func, or call {what}.to_padded_tensor(0.0)")


def on_cpu(what: str, tensor: Memory) -> None:
    """Checks a tensor of torch for the simulator."""
    if tensor.device.type != "cpu":
        raise Invalid(f"{what} is on {tensor.device} with device=\"sim\": it must be on the CPU; call {what}.cpu(), or leave "
                      "device out")


def known(tensor: Memory) -> list[Any] | None:
    """Returns the numbers of an integer tensor that the host has, else None: of a GPU's tensor it would have to wait for
    them."""
    if not hasattr(tensor, "requires_grad"):
        of_numpy = not hasattr(tensor, "integers") and getattr(getattr(tensor, "dtype", None), "kind", "") in ("i", "u")
        is_sim = hasattr(tensor, "integers") and tensor.dtype in _INTEGERS
        return tensor.tolist() if of_numpy else tensor.integers().tolist() if is_sim else None
    from . import _torch
    # A tensor that torch.compile, a mode or a transform passes has no numbers.
    if _torch.sees_operators() or tensor.device.type != "cpu" or name(tensor.dtype) not in _INTEGERS:
        return None
    return tensor.tolist()


def integers(like: Memory, **tensors: Memory) -> list[Memory]:
    """Returns offsets, lengths or a block table as int32 beside `like`, with contiguous columns; None stays None."""
    return [None if tensor is None else _integers(what, tensor, like) for what, tensor in tensors.items()]


def require_integers(what: str, tensor: Memory) -> str:
    """Returns the dtype of offsets, lengths or a block table, which must be integers."""
    is_tensor = hasattr(tensor, "requires_grad") or hasattr(tensor, "data_ptr")
    found = name(tensor.dtype) if is_tensor else f"{tensor!r:.60}"
    if found not in _INTEGERS:
        raise WrongType(f"{what} is {found}; it must be a tensor of int32 or int64; convert {what}")
    return found


def _integers(what: str, tensor: Memory, like: Memory) -> Memory:
    if require_integers(what, tensor) != "int32" or tensor.device != like.device:
        tensor = narrowed(tensor).to(device=like.device, dtype=of(like).dtype("int32"))
    return tensor if tensor.stride()[-1:] == (1,) else tensor.contiguous()


def narrowed(tensor: Memory) -> Memory:
    """Returns integers that int32 has: a slot or a page beyond it becomes one that no cache has. No check waits for the
    device."""
    return tensor.clamp(-1, 2**31 - 1) if name(tensor.dtype) == "int64" else tensor
