"""What each tensor of a call must be: dtype, shape, device, strides. A launch checks it before it takes addresses."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from . import _devices
from ._devices import CACHES, INPUTS, WIDE
from ._library import Invalid, WrongType
from ._types import Memory

# The strides of a tensor: the library gets all of them, all but the last, or none.
ANY, ROW, WHOLE = range(3)
_INT32, _FLOAT32, _LONG, _EIGHT_BIT = ("int32",), ("float32",), ("int32", "int64"), CACHES[2:]

# The dtypes of each field, and its strides. In place of a dtype, the name of a field stands for that field's dtype.
_FIELDS = {
    "q": (INPUTS, ROW), "k": (("q",), ROW), "v": (("k",), ROW), "o": (("q",), ROW),
    "k_cache": (("q", *_EIGHT_BIT), ROW), "v_cache": (("k_cache",), ROW),
    "lse": (_FLOAT32, ROW), "max_logits": (_FLOAT32, ROW), "entropy": (_FLOAT32, ROW),
    "cu_seqlens_q": (_INT32, ROW), "cu_seqlens_k": (_INT32, ROW), "seqused_k": (_INT32, ROW),
    "seqused_q": (_INT32, ROW),
    "cache_seqlens": (_INT32, ROW), "cache_batch_idx": (_INT32, ROW), "block_table": (_INT32, ROW),
    "rest": (_INT32, ROW), "prefix": (_INT32, ROW),
    "sinks": (_FLOAT32, ROW), "alibi_slopes": (_FLOAT32, ANY), "bias": (WIDE, ROW), "mask_bits": (("uint8",), ROW),
    # Of a float8_e4m3fn cache in an attention and in an append, and of an int8 cache.
    "descale": (_FLOAT32, ANY), "descale of heads": (_FLOAT32, ROW), "descale of keys": (_FLOAT32, WHOLE),
    "indices": (_INT32, WHOLE), "kv": (("q",), ROW), "attn_sink": (_FLOAT32, WHOLE),
    "slots": (_LONG, ROW), "positions": (_LONG, ROW),
    "rotary_cos": (("k", "float32"), ROW), "rotary_sin": (("rotary_cos",), ROW), "rotated_q": (("k",), ROW),
    "output": (WIDE, ANY), "output_lse": (_FLOAT32, ANY),
    "o of state 0": (WIDE, ANY), "o of a state": (("o of state 0",), ANY), "lse of a state": (_FLOAT32, ANY),
}
_REMEDIES = {"mask_bits": "; numpy.packbits(.., axis=-1, bitorder=\"little\") makes bits of booleans"}


class _Shape(NamedTuple):
    """The size of each dimension, and its suffix."""
    sizes: tuple[str, ...]
    suffixes: tuple[str, ...]


class _Requirement(NamedTuple):
    dtypes: tuple[str, ...]
    strides: int
    # The tensor has one of these.
    shapes: tuple[_Shape, ...]


def _shape(text: str) -> _Shape:
    names = [size.rstrip("?+") for size in text.split()]
    return _Shape(tuple(names), tuple(size[len(name):] for size, name in zip(text.split(), names)))


def _layout(shapes: dict[str, str], **dtypes: tuple[str, ...]) -> dict[str, _Requirement]:
    """Returns the requirements of one layout. A dimension is a size of the call, which the first tensor that has it
    defines; `?` also permits 1, and `+` permits more."""
    of = lambda name: (dtypes.get(name, _FIELDS[name][0]), _FIELDS[name][1])
    return {name: _Requirement(*of(name), tuple(map(_shape, text.split("|")))) for name, text in shapes.items()}


_OPTIONS = {"alibi_slopes": "heads | batch heads", "sinks": "heads", "prefix": "batch",
            "bias": "batch? heads? seqlen_q? seqlen_k", "mask_bits": "batch? heads? seqlen_q bytes+"}
_OF_ROWS = ("lse", "max_logits", "entropy")
_BSHD = {"q": "batch seqlen_q heads head_dim", "k": "batch seqlen_k heads_k head_dim",
         "v": "batch seqlen_k heads_k head_dim_v", "o": "batch seqlen_q heads head_dim_v",
         **dict.fromkeys(_OF_ROWS, "batch heads seqlen_q")}
_BHSD = {"q": "batch heads seqlen_q head_dim", "k": "batch heads_k seqlen_k head_dim",
         "v": "batch heads_k seqlen_k head_dim_v", "o": "batch heads seqlen_q head_dim_v"}
_ROWS = {"q": "total_q heads head_dim", "o": "total_q heads head_dim_v", "cu_seqlens_q": "batch+1",
         **dict.fromkeys(_OF_ROWS, "heads total_q")}
_PAGES = {"k_cache": "pages page heads_k head_dim", "v_cache": "pages page heads_k head_dim_v",
          "block_table": "batch columns", "cache_batch_idx": "batch", "cache_seqlens": "batch",
          "descale of keys": "pages page heads_k"}
_CACHE = {**_OPTIONS, **_BSHD, **_PAGES, "rest": "batch", "descale": "batch heads_k |"}

# One table for each kind of call
DENSE, BHSD = _layout({**_OPTIONS, **_BSHD}), _layout({**_OPTIONS, **_BSHD, **_BHSD})
VARLEN = _layout({**_OPTIONS, **_ROWS, "k": "total_k heads_k head_dim", "v": "total_k heads_k head_dim_v",
                  "cu_seqlens_k": "batch+1", "seqused_q": "batch", "seqused_k": "batch"})
CACHE, VARLEN_CACHE = _layout(_CACHE), _layout({**_CACHE, **_ROWS})
# FlashMLA's sinks; lists of keys of its prefill, of its decode, and of a launch
SINK = _layout({"attn_sink": "heads"})
_LISTS = {"q": "queries heads head_dim", "indices": "queries heads_k topk", "sinks": "heads"}
LISTED = _layout({**_LISTS, "kv": "keys heads_k head_dim"})
LISTED_CACHE = _layout({**_LISTS, "q": _BSHD["q"], "k_cache": "pages page heads_k head_dim",
                        "indices": "batch seqlen_q topk"}, k_cache=("q",))
LISTED_LAUNCH = _layout({**_LISTS, "k_cache": "pages page heads_k head_dim", "o": "queries heads head_dim_v",
                         "lse": "queries heads"}, k_cache=("q",))
# New keys and values of a cache, and the same as rows of tokens
_ONE_WIDTH = {**_PAGES, "v_cache": _PAGES["k_cache"]}
NEW = _layout({**_ONE_WIDTH, "q": _BSHD["q"], "k": "batch new heads_k head_dim", "v": "batch new heads_k head_dim"},
              cache_batch_idx=_LONG)
APPEND = _layout(
    {**_ONE_WIDTH, "k": "tokens heads_k head_dim", "v": "tokens heads_k head_dim", "slots": "tokens",
     "positions": "tokens", "rotary_cos": "positions columns", "rotary_sin": "positions columns",
     "q": "tokens heads head_dim", "rotated_q": "tokens heads head_dim", "descale of heads": "heads_k"},
    k=INPUTS, q=("k",), k_cache=("k", *_EIGHT_BIT))
MERGE = _layout({"output": "tokens heads head_dim", "output_lse": "heads tokens", "sinks": "heads",
                 "o of state 0": "tokens heads head_dim", "o of a state": "tokens heads head_dim",
                 "lse of a state": "heads tokens"})


def of_varlen(cu_seqlens_q: Memory) -> dict[str, int]:
    """Returns the sizes that offsets define."""
    starts = cu_seqlens_q.numel()
    return {"batch": starts - 1, "batch+1": starts}


class Call:
    """The sizes, the dtypes and the device of a call, with which its tensors must agree."""

    def __init__(self, layout: dict[str, _Requirement], device: Any, sizes: dict[str, Any] | None = None) -> None:
        self.layout, self.device = layout, device
        self.sizes: dict[str, Any] = {} if sizes is None else sizes
        self.dtypes: dict[str, Any] = {}

    def require(self, **tensors: Memory) -> None:
        """Checks tensors; None is none. A size belongs to the first tensor that has it."""
        for name, tensor in tensors.items():
            if tensor is not None:
                self.one(name, tensor, name)

    def one(self, field: str, tensor: Memory, name: str) -> None:
        """Checks a tensor as a field. Errors call it `name`."""
        dtypes, strides, shapes = self.layout[field]
        dtype, shape = tensor.dtype, tensor.shape
        self.dtypes[field] = dtype
        if _devices.name(dtype) not in dtypes and dtype not in map(self.dtypes.get, dtypes):
            wanted = (f"{_devices.name(self.dtypes[of])} (as {of})" if of in self.dtypes else of for of in dtypes)
            raise WrongType(f"{name} is {_devices.name(dtype)}; it must be {' or '.join(wanted)}; convert {name}"
                            f"{_REMEDIES.get(field, '')}")
        if tensor.device != self.device:
            raise Invalid(f"{name} is on {tensor.device}; it must be on {self.device}, as the others; move {name}")
        if not self._fits(shapes[0], shape) and not any(self._fits(other, shape) for other in shapes[1:]):
            raise _misfit(name, shape, shapes, self.sizes)
        if 0 in shape:
            raise Invalid(f"{name} {tuple(shape)}: every size must be 1 or more; leave the call out")
        if strides == ANY or tensor.is_contiguous():
            return
        if strides == WHOLE or (shape[-1] > 1 and tensor.stride()[-1] != 1):
            layout = "contiguous" if strides == WHOLE else "1 in the last dimension"
            raise Invalid(f"{name}.stride() = {tensor.stride()}: it must be {layout}; copy {name} with .contiguous()")

    def _fits(self, wanted: _Shape, shape: Any) -> bool:
        names, suffixes = wanted
        if len(names) != len(shape):
            return False
        sizes = tuple(map(self.sizes.setdefault, names, shape))
        return sizes == shape or all(n == size or suffix == "?" and n == 1 or suffix == "+" and n > size
                                     for size, suffix, n in zip(sizes, suffixes, shape))


def _misfit(name: str, shape: Any, shapes: Sequence[_Shape], sizes: dict[str, Any]) -> Invalid:
    """Returns the error of a shape, with the sizes that are known."""
    more = {"": "", "?": " or 1", "+": " or more"}

    def text(known: dict[str, Any]) -> str:
        extents = ([f"{known.get(size, size)}{more[suffix]}" for size, suffix in zip(*shape)] for shape in shapes)
        return " or ".join(f"({', '.join(of)})" for of in extents)
    return Invalid(f"{name} {tuple(shape)}: it must be {text({})}, here {text(sizes)}; slice or expand {name}")


def given(options: Mapping[str, Any], **tensors: Any) -> None:
    """Checks that `tensors`, and options that are not None, are tensors like the first one: code reads their shapes
    before a launch checks them."""
    kind = "shape"
    for name, of in (*tensors.items(), *options.items()):
        if not hasattr(of, kind) and (of is not None or name in tensors):
            like = "a tensor, or an array with device=\"sim\"" if kind == "shape" else "a tensor, as the others"
            raise WrongType(f"{name} is {of!r:.60}; it must be {like}; convert {name}")
        kind = "data_ptr" if hasattr(of, "data_ptr") else kind


def ranks(layout: dict[str, _Requirement], **tensors: Memory) -> None:
    """Checks numbers of dimensions, for code that reads shapes before a launch checks them."""
    for name, tensor in tensors.items():
        if tensor is not None and len(tensor.shape) != len(layout[name].shapes[0].sizes):
            raise _misfit(name, tensor.shape, layout[name].shapes, {})


def parts(name: str, packed: Memory, count: int, sizes: str) -> list[Any]:
    """Returns the tensors of a packed one, whose size `count` counts them."""
    names = sizes.split()
    at, shape = names.index(str(count)), tuple(getattr(packed, "shape", ()))
    if len(shape) != len(names) or shape[at] != count:
        raise Invalid(f"{name} {shape}: it must be a tensor ({', '.join(names)}); permute {name}")
    return [packed[(slice(None),) * at + (i,)] for i in range(count)]


def converted(q: Memory, sinks: Memory, prefix: Memory | int | None) -> tuple[Memory, Memory | int | None]:
    """Returns sinks and prefixes of which the library gets addresses only: contiguous, prefixes in int32 beside q."""
    if sinks is not None:
        if not hasattr(sinks, "data_ptr"):
            raise WrongType(f"sinks is {sinks!r}; it must be a tensor of float32 (heads)")
        sinks = sinks.contiguous()
    return sinks, _devices.integers(q, prefix=prefix)[0] if hasattr(prefix, "data_ptr") else prefix
