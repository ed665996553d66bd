"""Simulated cards: numpy arrays and CPU tensors of torch in a simulated GPU's memory. Needs numpy."""
from __future__ import annotations

import ctypes
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import _devices, checks
from ._library import LIB, Invalid, WrongType, check
from ._types import Memory

# The card of device="sim". Its kernels are the portable ones, which run on every GPU.
CARD = "l4"
_RAW = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_BYTES = {"float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "int8": 1, "uint8": 1, "bool": 1, "float32": 4, "int16": 2,
          "int32": 4, "int64": 8}
# No function takes the others: the check of an argument then says what it must be.
_SIZES = {**_BYTES, "float8_e5m2": 1, "uint16": 2, "uint32": 4, "float64": 8, "uint64": 8}


def _numpy(dtype: str) -> Any:
    """Returns numpy's dtype of this name. bfloat16 and float8 are those of the package ml_dtypes."""
    if dtype.startswith(("bfloat16", "float8")):
        import ml_dtypes
        return np.dtype(getattr(ml_dtypes, dtype))
    return np.dtype(dtype)


class Card:
    """A simulated card: a device like `_devices.Cuda`."""

    def __init__(self, card: str) -> None:
        self.context, self.name = ctypes.c_void_p(), card
        check(LIB.ferroflash_context_create_simulator(card.encode(), ctypes.byref(self.context)))

    def __str__(self) -> str:
        return f"sim:{self.name}"

    def stream(self) -> Any:
        """Returns no stream: a launch has run when it returns."""
        return None

    def dtype(self, name: str) -> str:
        """Returns the dtype of this name."""
        return name

    def capturing(self) -> bool:
        """Returns whether a graph captures launches."""
        return False

    def empty(self, count: int) -> Tensor:
        """Returns bytes of memory."""
        return Tensor(self, np.empty(count, np.uint8), "uint8")

    def counters(self, stream: Any, count: int) -> Tensor:
        """Returns counters for one launch."""
        return self.zeros((count,), "uint8")

    def zeros(self, shape: Sequence[int], dtype: str) -> Tensor:
        """Returns a tensor of zeros."""
        return Tensor.uploaded(self, np.zeros(shape, _RAW[_SIZES[dtype]]), dtype)

    def empty_like(self, tensor: Memory) -> Tensor:
        """Returns memory of a tensor's shape."""
        return tensor.new_empty(tensor.shape)

    def zeros_like(self, tensor: Memory) -> Tensor:
        """Returns zeros of a tensor's shape."""
        return self.zeros(tensor.shape, tensor.dtype)

    def arange(self, count: int) -> Tensor:
        """Returns the first numbers."""
        return Tensor.uploaded(self, np.arange(count).view(np.uint64), "int64")

    def slots(self, starts: Memory, new: int, page: int, block_table: Memory, rows: Memory) -> tuple[Tensor, Tensor]:
        """Returns positions and slots of new keys; see `_devices.Cuda.slots`."""
        at = starts.integers()[:, None] + np.arange(new)[None, :]
        if block_table is None:
            slots = np.where(at < page, rows.integers()[:, None] * page + at, -1)
        else:
            columns = block_table.shape[1]
            number = np.take_along_axis(block_table.integers(), np.minimum(at // page, columns - 1), 1)
            slots = np.where(at < columns * page, number * page + at % page, -1)
        of = lambda numbers: Tensor.uploaded(self, numbers.reshape(-1).view(np.uint64), "int64")
        return of(at), of(slots)


class Tensor:
    """A contiguous array in a card's memory, with those methods of torch's tensors that this package calls."""

    def __init__(self, card: Card, raw: Any, dtype: str, of: Tensor | None = None) -> None:
        self.device, self.dtype, self.shape = card, dtype, tuple(raw.shape)
        self._raw, self._of, self.address = raw, of, 0
        if of is not None:
            self.address = of.address
            return
        # Kernels read rows of odd 16-bit elements in words.
        address, size = ctypes.c_uint64(), raw.nbytes + 16
        check(LIB.ferroflash_simulator_allocate(card.context, size, ctypes.byref(address)))
        self.address = address.value
        weakref.finalize(self, LIB.ferroflash_simulator_free, card.context, self.address)

    @classmethod
    def uploaded(cls, card: Card, raw: Any, dtype: str) -> Tensor:
        """Returns a tensor with these numbers."""
        tensor = cls(card, np.ascontiguousarray(raw).reshape(raw.shape), dtype)
        return tensor._upload()

    def _upload(self) -> Tensor:
        if self._raw.size:
            check(LIB.ferroflash_simulator_write(self.device.context, self.address, self._raw.ctypes.data,
                                                 self._raw.nbytes))
        return self

    def raw(self) -> Any:
        """Returns a copy of the tensor's bytes, as unsigned integers of its shape."""
        copy = np.empty(self.shape, self._raw.dtype)
        if copy.size:
            check(LIB.ferroflash_simulator_read(self.device.context, self.address, copy.ctypes.data, copy.nbytes))
        return copy

    def integers(self) -> Any:
        """Returns the numbers of an integer tensor."""
        return self.raw().view(np.dtype(self.dtype)).astype(np.int64)

    def data_ptr(self) -> int:
        return self.address

    def stride(self) -> tuple[int, ...]:
        strides, count = [], 1
        for extent in reversed(self.shape):
            strides.append(count)
            count *= extent
        return tuple(reversed(strides))

    def numel(self) -> int:
        return self._raw.size

    def is_contiguous(self) -> bool:
        return True

    def contiguous(self) -> Tensor:
        return self

    def new_empty(self, shape: Sequence[int], dtype: str | None = None) -> Tensor:
        dtype = dtype or self.dtype
        return Tensor(self.device, np.empty(shape, _RAW[_SIZES[dtype]]), dtype)

    def new_full(self, shape: Sequence[int], number: Any, dtype: str) -> Tensor:
        return self._like(np.full(shape, number, np.dtype(dtype)), dtype)

    def _like(self, numbers: Any, dtype: str) -> Tensor:
        return Tensor.uploaded(self.device, numbers.view(_RAW[numbers.itemsize]), dtype)

    def reshape(self, *shape: Any) -> Tensor:
        return Tensor(self.device, self._raw.reshape(shape), self.dtype, of=self)

    def transpose(self, one: int, other: int) -> Tensor:
        return Tensor.uploaded(self.device, np.ascontiguousarray(self.raw().swapaxes(one, other)), self.dtype)

    def to(self, device: Any = None, dtype: str | None = None) -> Tensor:
        if dtype is None or dtype == self.dtype:
            return self
        return self._like(self.raw().view(_numpy(self.dtype)).astype(_numpy(dtype)), dtype)

    def clamp(self, least: int, most: int) -> Tensor:
        return self._like(self.integers().clip(least, most).astype(self.dtype), self.dtype)

    def float(self) -> Tensor:
        return self.to(dtype="float32")

    def isneginf(self) -> Any:
        return np.isneginf(self.raw().view(np.float32))

    def isposinf(self) -> Any:
        return np.isposinf(self.raw().view(np.float32))

    def masked_fill_(self, where: Any, number: Any) -> Tensor:
        numbers = self.raw().view(np.float32)
        numbers[where] = number
        self._raw = numbers.view(np.uint32)
        return self._upload()

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, slice):
            part = Tensor(self.device, self._raw[index], self.dtype, of=self)
            part.address += index.indices(self.shape[0])[0] * self.stride()[0] * self._raw.itemsize
            return part
        return Tensor.uploaded(self.device, self.raw()[index], self.dtype)

    def __add__(self, number: Any) -> Tensor:
        return self._like((self.integers() + number).astype(self.dtype), self.dtype)

    def __sub__(self, other: Any) -> Tensor:
        return self._like((self.integers() - other.integers()).astype(self.dtype), self.dtype)


_cards: dict[str, Card] = {}
_lock = threading.Lock()


def card(device: Any) -> Card:
    """Returns the card of device="sim", or of device="sim:h200" and the like."""
    kind, _, name = str(device).partition(":")
    if kind != "sim":
        raise Invalid(f"device {device!r}: it must be \"sim\" or \"sim:\" and a card, such as \"sim:h200\"; without "
                      "device, torch tensors run on their GPU")
    with _lock:
        if (name or CARD) not in _cards:
            _cards[name or CARD] = Card(name or CARD)
        return _cards[name or CARD]


def _share(one: Any, other: Any) -> bool:
    try:
        return bool(np.shares_memory(one, other, max_work=100_000))  # type: ignore[arg-type]
    except RuntimeError:
        # numpy gives up at some combinations of strides.
        return False


class _Numpy:
    """Arrays of numpy. bfloat16 and float8_e4m3fn are those of the package ml_dtypes."""

    @staticmethod
    def raw(array: Memory) -> Any:
        return np.ascontiguousarray(array).view(_RAW[array.itemsize]).reshape(array.shape)

    @staticmethod
    def dtype(array: Memory) -> str:
        return array.dtype.name if array.dtype.isnative else array.dtype.str

    @staticmethod
    def back(raw: Any, dtype: str) -> Any:
        return raw.view(_numpy(dtype))

    @staticmethod
    def write(array: Memory, raw: Any) -> None:
        array[...] = raw.view(array.dtype)

    @staticmethod
    def shares(one: Memory, other: Memory) -> bool:
        return isinstance(other, np.ndarray) and _share(one, other)


class _Torch:
    """CPU tensors of torch."""

    @staticmethod
    def raw(tensor: Memory) -> Any:
        import torch
        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        flat = tensor.detach().contiguous().view(integers[tensor.element_size()]).numpy()
        return flat.view(_RAW[tensor.element_size()])

    @staticmethod
    def dtype(tensor: Memory) -> str:
        return _devices.name(tensor.dtype)

    @staticmethod
    def back(raw: Any, dtype: str) -> Any:
        import torch
        integers = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}
        return torch.from_numpy(raw.view(integers[raw.itemsize])).view(getattr(torch, dtype))

    @staticmethod
    def write(tensor: Memory, raw: Any) -> None:
        tensor.detach().copy_(_Torch.back(raw, _devices.name(tensor.dtype)))

    @staticmethod
    def shares(one: Memory, other: Memory) -> bool:
        return not isinstance(other, np.ndarray) and _share(_Torch.raw(one), _Torch.raw(other))


def _kind(x: Memory, name: str) -> Any:
    if isinstance(x, np.ndarray):
        return _Numpy
    if not (type(x).__module__.split(".")[0] == "torch" and hasattr(x, "data_ptr")):
        return None
    _devices.on_cpu(name, x)
    _devices.require_dense(name, x)
    return _Torch


@functools.cache
def _names(function: Any) -> list[str]:
    """Returns the names of a function's arguments."""
    return [*inspect.signature(function).parameters]


def _write_back(changed: Sequence[tuple[str, Any, Memory, Any]]) -> None:
    """Writes arrays that a call has changed."""
    for at, (name, kind, original, _) in enumerate(changed):
        for other, _, of, _ in changed[:at]:
            if kind.shares(original, of):
                raise Invalid(f"{name} has memory of {other}, and the call writes both; copy one of them")
    for name, kind, original, after in changed:
        try:
            kind.write(original, after)
        except ValueError as error:
            raise Invalid(f"{name} cannot be written ({error}); the call writes it; copy {name}") from None


def run(function: Callable[..., Any], arguments: Any, options: Any, device: Any) -> Any:
    """Calls a function on arrays in a card's memory. Writes changed arrays back, and returns arrays of the callers'
    kind."""
    on = card(device)
    kinds: list[Any] = []
    copies: list[tuple[Any, ...]] = []

    def there(name: str, x: Memory) -> Any:
        kind = None if name in checks.SCALARS and name not in checks.OR_TENSORS else _kind(x, name)
        if kind is not None:
            dtype = kind.dtype(x)
            if dtype not in _SIZES:
                raise WrongType(f"{name} is {dtype}; it must be one of {', '.join(_BYTES)}; convert {name}")
            raw = kind.raw(x)
            tensor = Tensor.uploaded(on, raw, dtype)
            kinds.append(kind)
            copies.append((name, kind, x, np.array(raw, copy=True), tensor))
            return tensor
        return type(x)(there(name, of) for of in x) if type(x) in (tuple, list) else x

    def here(x: Memory) -> Any:
        if isinstance(x, Tensor):
            return kinds[0].back(x.raw(), x.dtype)
        return tuple(map(here, x)) if isinstance(x, tuple) else x

    names = (*_names(function), *("an argument" for _ in arguments))
    out = function(*map(there, names, arguments), **{name: there(name, x) for name, x in options.items()})
    _write_back([(name, kind, original, after) for name, kind, original, before, tensor in copies
                 if ((after := tensor.raw()) != before).any()])
    return here(out)
