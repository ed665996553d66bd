"""What each argument of a call must be. Of a tensor: dtype, shape, device, strides, which a launch checks before it takes
addresses. Of a number, a flag or a name: type and range."""
from __future__ import annotations

import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from . import _devices
from ._devices import CACHES, EIGHT, INPUTS, WIDE
from ._devices import DENSE as TENSORS
from ._library import Error, Invalid, WrongType
from ._types import Memory

# The strides of a tensor: the library gets all of them, all but the last, or none.
ANY, ROW, WHOLE = range(3)
_INT32, _FLOAT32, _LONG, _EIGHT_BIT = ("int32",), ("float32",), ("int32", "int64"), CACHES[2:]

# The dtypes of each field, and its strides. In place of a dtype, the name of a field stands for that field's dtype.
_FIELDS = {
    "q": (INPUTS, ROW), "k": (("q",), ROW), "v": (("k",), ROW), "o": (("q",), ROW),
    "k_cache": (("q", *_EIGHT_BIT), ROW), "v_cache": (("k_cache",), ROW),
    "lse": (_FLOAT32, ROW), "max_logits": (_FLOAT32, ROW), "entropy": (_FLOAT32, ROW),
    "max_logits_head": (_FLOAT32, WHOLE),
    "cu_seqlens_q": (_INT32, ROW), "cu_seqlens_k": (_INT32, ROW), "seqused_k": (_INT32, ROW),
    "seqused_q": (_INT32, ROW),
    "cache_seqlens": (_INT32, ROW), "cache_batch_idx": (_INT32, ROW), "block_table": (_INT32, ROW),
    "rest": (_INT32, ROW), "prefix": (_INT32, ROW),
    "sinks": (_FLOAT32, ROW), "alibi_slopes": (_FLOAT32, ANY), "bias": (WIDE, ROW), "mask_bits": (("uint8",), ROW),
    # Of a float8_e4m3fn cache in an attention and in an append, and of an int8 cache.
    "descale": (_FLOAT32, ANY), "descale of heads": (_FLOAT32, ROW), "descale of keys": (_FLOAT32, WHOLE),
    # Of float8_e4m3fn tensors
    "q_descale": (_FLOAT32, ANY), "k_descale": (_FLOAT32, ANY), "v_descale": (_FLOAT32, ANY),
    "indices": (_INT32, WHOLE), "kv": (("q",), ROW), "attn_sink": (_FLOAT32, WHOLE),
    "slots": (_LONG, ROW), "positions": (_LONG, ROW),
    "rotary_cos": (("k", "float32"), ROW), "rotary_sin": (("rotary_cos",), ROW), "rotated_q": (("k",), ROW),
    "output": (WIDE, ANY), "output_lse": (_FLOAT32, ANY),
    "o of state 0": (WIDE, ANY), "o of a state": (("o of state 0",), ANY), "lse of a state": (_FLOAT32, ANY),
}
_REMEDIES = {"mask_bits": "; numpy.packbits(.., axis=-1, bitorder=\"little\") makes bits of booleans"}


# The largest number of an int32 and of a float32
_INT32_MAX, _FLOAT32_MAX = 2**31 - 1, (2 - 2**-23) * 2.0**127
_REQUIRED = object()


class _Scalar(NamedTuple):
    """A number, a flag or a name."""
    kind: type
    text: str
    least: float = 0
    most: float = _INT32_MAX
    # What None stands for
    none: Any = _REQUIRED


_FLAG, _NAME = _Scalar(bool, "True or False"), _Scalar(str, "a string or None", none=None)
_COUNT = _Scalar(int, "an integer from 0 to 2**31 - 1")
# At larger scales, the rounding of a row's largest score overflows float32's exponents.
_SCALE_MAX = 2.0**20
_SCALE = "a number above 0 and at most 2**20 (for a negative scale, negate q)"
_NUMBER = _Scalar(float, "a number that float32 has", -_FLOAT32_MAX, _FLOAT32_MAX)
SCALARS = {
    **dict.fromkeys(("causal", "bhsd", "rotary_interleaved", "is_fp8_kvcache", "return_lse", "return_softmax_lse",
                     "return_attn_probs", "return_max_logits", "return_entropy", "return_max_logits_head"), _FLAG),
    **dict.fromkeys(("config", "invariance", "precision"), _NAME),
    **dict.fromkeys(("max_seqlen_q", "max_seqlen_k", "mask_keys", "num_splits", "split_keys", "cache_seqlens", "groups",
                     "pages", "attention_chunk"), _COUNT),
    **dict.fromkeys(("head_dim_v", "d_v"), _COUNT._replace(text="an integer from 1 to 2**31 - 1", least=1)),
    **dict.fromkeys(("chunked", "prefix"), _COUNT._replace(text="an integer from 0 to 2**31 - 1, or None", none=None)),
    "window_size": _Scalar(int, "two integers (left, right) below 2**31, of which -1 is no bound", -2**63),
    "softmax_scale": _NUMBER._replace(text=_SCALE + ", or None for 1 / sqrt(head_dim)", least=2.0**-149, most=_SCALE_MAX, none=None),
    "sm_scale": _NUMBER._replace(text=_SCALE, least=2.0**-149, most=_SCALE_MAX),
    "softcap": _NUMBER._replace(text="0.0 (none) or a number above it that float32 has", least=0, none=0.0),
    # The library takes 0 for no scale.
    **dict.fromkeys(("k_descale", "v_descale"), _NUMBER._replace(text="a normal float32 above 0", least=2.0**-126)),
}
# These arguments are numbers or tensors.
OR_TENSORS = ("prefix", "cache_seqlens", "k_descale", "v_descale")
_ABSTRACT = {int: numbers.Integral, float: numbers.Real}
_SYMBOLS = ("SymInt", "SymFloat", "SymBool")


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
_OF_HEADS = {"max_logits_head": "heads"}
_BSHD = {"q": "batch seqlen_q heads head_dim", "k": "batch seqlen_k heads_k head_dim",
         "v": "batch seqlen_k heads_k head_dim_v", "o": "batch seqlen_q heads head_dim_v",
         **dict.fromkeys(_OF_ROWS, "batch heads seqlen_q"), **_OF_HEADS}
_BHSD = {"q": "batch heads seqlen_q head_dim", "k": "batch heads_k seqlen_k head_dim",
         "v": "batch heads_k seqlen_k head_dim_v", "o": "batch heads seqlen_q head_dim_v"}
_ROWS = {"q": "total_q heads head_dim", "o": "total_q heads head_dim_v", "cu_seqlens_q": "batch+1",
         **dict.fromkeys(_OF_ROWS, "heads total_q"), **_OF_HEADS, "seqused_q": "batch"}
_PAGES = {"k_cache": "pages page heads_k head_dim", "v_cache": "pages page heads_k head_dim_v",
          "block_table": "batch columns", "cache_batch_idx": "batch", "cache_seqlens": "batch",
          "descale of keys": "pages page heads_k"}
_CACHE = {**_OPTIONS, **_BSHD, **_PAGES, "rest": "batch", "descale": "batch heads_k |"}

# One table for each kind of call
_DESCALES = dict.fromkeys(("q_descale", "k_descale", "v_descale"), "batch heads_k")
_EQUAL = {**_OPTIONS, **_BSHD, **_DESCALES}
# The output of float8_e4m3fn tensors is bfloat16.
DENSE, BHSD = (_layout(shapes, q=TENSORS, o=("q", "bfloat16")) for shapes in (_EQUAL, {**_EQUAL, **_BHSD}))
VARLEN = _layout({**_OPTIONS, **_ROWS, "k": "total_k heads_k head_dim", "v": "total_k heads_k head_dim_v",
                  "cu_seqlens_k": "batch+1", "seqused_k": "batch", **_DESCALES}, q=TENSORS, o=("q", "bfloat16"))
CACHE, VARLEN_CACHE = _layout(_CACHE), _layout({**_CACHE, **_ROWS})
# FlashMLA's sinks; lists of keys of its prefill, of its decode, and of a launch
SINK = _layout({"attn_sink": "heads"})
_LISTS = {"q": "queries heads head_dim", "indices": "queries heads_k topk", "sinks": "heads"}
LISTED = _layout({**_LISTS, "kv": "keys heads_k head_dim"})
LISTED_CACHE = _layout({**_LISTS, "q": _BSHD["q"], "k_cache": "pages page heads_k head_dim",
                        "indices": "batch seqlen_q topk"}, k_cache=("q", EIGHT))
_LISTED_LAUNCH = {**_LISTS, "k_cache": "pages page heads_k head_dim", "o": "queries heads head_dim_v",
                  "lse": "queries heads", "descale": ""}
LISTED_LAUNCH = _layout(_LISTED_LAUNCH, k_cache=("q", EIGHT))
# Latent caches whose rows have bytes: 512 float8_e4m3fn, 4 float32, 64 bfloat16
_ROW_BYTES, BYTES = {"k_cache": "pages page heads_k row_bytes"}, ("uint8", "int8", EIGHT)
OF_ROW = {"row_bytes": 656}
SCALED_CACHE, SCALED_LISTS, SCALED_LISTED_LAUNCH = (
    _layout({**of, **_ROW_BYTES}, q=("bfloat16",), k_cache=BYTES)
    for of in (_CACHE, {**_LISTS, "q": _BSHD["q"], "indices": "batch seqlen_q topk"}, _LISTED_LAUNCH))
# New keys and values of a cache, and the same as rows of tokens
_ONE_WIDTH = {**_PAGES, "v_cache": _PAGES["k_cache"]}
NEW = _layout({**_ONE_WIDTH, "q": _BSHD["q"], "k": "batch new heads_k head_dim", "v": "batch new heads_k head_dim"},
              cache_batch_idx=_LONG)
_APPEND = {**_ONE_WIDTH, **dict.fromkeys(("k", "v"), "tokens heads_k head_dim"),
           **dict.fromkeys(("slots", "positions"), "tokens"), **dict.fromkeys(("rotary_cos", "rotary_sin"), "positions columns"),
           **dict.fromkeys(("q", "rotated_q"), "tokens heads head_dim"), "descale of heads": "heads_k"}
APPEND = _layout(_APPEND, k=INPUTS, q=("k",), k_cache=("k", *_EIGHT_BIT))
SCALED_APPEND = _layout({**_APPEND, **_ROW_BYTES}, k=("bfloat16",), q=("k",), k_cache=BYTES)
MERGE = _layout({"output": "tokens heads head_dim", "output_lse": "heads tokens", "sinks": "heads",
                 "o of state 0": "tokens heads head_dim", "o of a state": "tokens heads head_dim",
                 "lse of a state": "heads tokens"})


def like(name: str, of: Memory, other: str, wanted: Memory) -> None:
    """Checks that a gradient has the dtype, the device and the shape of what it is a gradient of."""
    if of.dtype != wanted.dtype:
        raise WrongType(f"{name} is {_devices.name(of.dtype)}; it must be {_devices.name(wanted.dtype)} (as {other}); convert "
                        f"{name}")
    if of.device != wanted.device:
        raise Invalid(f"{name} is on {of.device}; it must be on {wanted.device}, as {other}; move {name}")
    if of.shape != wanted.shape:
        raise Invalid(f"{name} {tuple(of.shape)}: it must be {tuple(wanted.shape)}, the shape of {other}; expand or reshape "
                      f"{name}")


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
    here = "" if text(sizes) == text({}) else f", here {text(sizes)}"
    return Invalid(f"{name} {tuple(shape)}: it must be {text({})}{here}; slice, expand or reshape {name}")


def scalars(**arguments: Any) -> list[Any]:
    """Returns numbers, flags and names as Python's own types, if they are what the table says."""
    found = []
    for name, of in arguments.items():
        kind, _, least, most, none = SCALARS[name]
        value: Any = of
        is_exact = of is none is None or type(of) is kind and (kind is bool or kind is not str and least <= value <= most)
        found.append(of if is_exact else scalar(name, of))
    return found


def scalar(name: str, of: Any) -> Any:
    """Returns one number, flag or name. numpy's numbers are Python's, and so is the number of an array or a CPU tensor
    without dimensions."""
    kind, text, least, most, none = SCALARS[name]
    if of is None and none is not _REQUIRED:
        return none
    if type(of).__name__ in _SYMBOLS:
        return of
    wrong = lambda: WrongType(f"{name} is {of!r:.60}; it must be {text}; convert {name}")
    if hasattr(of, "item") and hasattr(of, "shape"):
        on = getattr(getattr(of, "device", None), "type", "cpu")
        if on != "cpu":
            raise WrongType(f"{name} is a tensor on {of.device}; it must be {text}; pass {name}.item(), which waits for the "
                            "device")
        if tuple(of.shape) != ():
            raise wrong()
        of = of.item()
    if kind is bool:
        if type(of) is bool or type(of) is int and of in (0, 1):
            return bool(of)
        raise wrong()
    if kind is str:
        if not isinstance(of, str):
            raise wrong()
        if "\0" in of:
            raise Invalid(f"{name} {of!r:.60}: it must have no zero byte")
        return of
    # torch.compile knows no abstract types.
    is_own = type(of) is kind or kind is float and type(of) is int
    if not is_own and (isinstance(of, bool) or not isinstance(of, _ABSTRACT[kind])):
        raise wrong()
    if not least <= of <= most:
        raise Invalid(f"{name} {of!r:.60}: it must be {text}")
    return kind(of)


def window(of: Any) -> tuple[int, int]:
    """Returns the sides of a window. A negative side means no bound."""
    if of is None:
        return -1, -1
    try:
        left, right = of
    except (TypeError, ValueError):
        remedy = f"; pass ({of}, {of})" if isinstance(of, int) else ""
        raise WrongType(f"window_size is {of!r:.60}; it must be {SCALARS['window_size'].text}{remedy}") from None
    left, right = (of if type(of) is int and -1 <= of <= _INT32_MAX else max(scalar("window_size", of), -1)
                   for of in (left, right))
    return left, right


def of_sequences(q: Memory, k: Memory, cu_seqlens_q: Memory, cu_seqlens_k: Memory, max_seqlen_q: int, max_seqlen_k: int,
                 seqused_k: Memory) -> None:
    """Checks the offsets of varlen tensors."""
    if getattr(cu_seqlens_q, "shape", None) == getattr(cu_seqlens_k, "shape", ()):
        offsets("cu_seqlens_q", cu_seqlens_q, q.shape[0], max_seqlen_q, "q")
        # Of the keys of a sequence, seqused_k may name fewer.
        offsets("cu_seqlens_k", cu_seqlens_k, k.shape[0], max_seqlen_k if seqused_k is None else None, "k")


def offsets(name: str, cu_seqlens: Memory, rows: int | None, longest: int | None, tensor: str) -> None:
    """Checks offsets whose numbers the host has: `tensor` has `rows` rows, and no sequence may have more than `longest`. A
    GPU's numbers are not checked, because the call would wait for them."""
    starts = _devices.known(cu_seqlens)
    if starts is None or len(cu_seqlens.shape) != 1:
        return
    shown = f"{name} {starts[:6]}{' ..' if len(starts) > 6 else ''}"
    counts = [end - start for start, end in zip(starts, starts[1:])]
    if not starts or starts[0] != 0 or any(n < 0 for n in counts) or rows is not None and starts[-1] > rows:
        end = "" if rows is None else f", and end with at most {rows}, the rows of {tensor}"
        raise Invalid(f"{shown}: offsets must begin with 0, never decrease{end}; pass cumulative sums of the lengths, behind a "
                      "0")
    most = max(counts, default=0)
    if longest is not None and most > longest:
        of = name.replace("cu_seqlens", "max_seqlen")
        raise Invalid(f"{of} {longest}: it must be at least {most}, the length of the longest sequence of {name}; pass "
                      f"{of}={most}")


def lengths(name: str, tensor: Memory, most: int) -> None:
    """Checks the keys of each sequence of a cache, if the host has the numbers."""
    found = _devices.known(tensor)
    if found is not None and len(tensor.shape) == 1 and not all(0 <= n <= most for n in found):
        raise Invalid(f"{name} {found[:6]}{' ..' if len(found) > 6 else ''}: each must be from 0 to {most}, the keys of a "
                      "sequence in the cache without the new ones; allocate a larger cache")


def pages(k_cache: Memory, block_table: Memory, rows: Memory, keys: Memory) -> None:
    """Checks the pages of each sequence's keys, if the host has the numbers."""
    of_sequence = _devices.known(keys)
    count, page = k_cache.shape[:2]
    at = _devices.known(rows) if block_table is None else _devices.known(block_table)
    if of_sequence is None or at is None or len(keys.shape) != 1 or page == 0:
        return
    if block_table is None:
        name, wrong = "cache_batch_idx", [n for n in at if not 0 <= n < count]
    else:
        name, used = "block_table", [-(-n // page) for n in of_sequence]
        wrong = [n for columns, most in zip(at, used) for n in columns[:most] if not 0 <= n < count]
    if wrong:
        raise Invalid(f"{name} has {wrong[0]}: it must be from 0 to {count - 1}, the pages of k_cache, where a sequence has "
                      "keys; allocate a larger cache, or pass shorter cache_seqlens")


def renamed(names: Mapping[str, str], call: Callable[[], Any]) -> Any:
    """Returns what `call` returns. Its errors name a function's arguments: `names` are of what it calls, and the
    function's."""
    try:
        return call()
    except Error as error:
        pattern = "|".join(rf"(?<![\w.]){re.escape(name)}(?![\w])" for name in names)
        raise type(error)(re.sub(pattern, lambda found: names[found[0]], str(error))) from None


def unpacked(name: str, parts: str, call: Callable[[], Any]) -> Any:
    """Returns what `call` returns. Its errors say that `parts` are those of the packed tensor `name`."""
    try:
        return call()
    except Error as error:
        raise type(error)(f"{error} ({parts} are parts of {name})") from None


_NEEDED = {"indices": "(queries, heads_k, topk), the rows of each query's list; pass it"}
_OFFSETS = "(batch + 1), the offsets of the sequences and their end; pass cumulative sums of the lengths, behind a 0"


def needed(**tensors: Any) -> None:
    """Checks that integers are given."""
    for name, of in tensors.items():
        if of is None:
            raise WrongType(f"{name} is None; it must be a tensor of int32 {_NEEDED.get(name, _OFFSETS)}")


def prefixes(of: Any) -> tuple[int, int, Any]:
    """Returns groups, pages and the rest of shared prefixes."""
    if not isinstance(of, (tuple, list)) or len(of) != 3:
        raise WrongType(f"shared_prefixes is {of!r:.60}; it must be (groups, pages, rest), the last one a tensor of int32 "
                        "(batch)")
    groups, pages = scalars(groups=of[0], pages=of[1])
    return groups, pages, of[2]


def given(options: Mapping[str, Any], **tensors: Any) -> None:
    """Checks that `tensors`, and options that are not None, are tensors like the first one: code reads their shapes
    before a launch checks them."""
    kind = "shape"
    for name, of in (*tensors.items(), *options.items()):
        # Such a tensor may have no shape.
        if getattr(of, "is_nested", False):
            raise _devices.nested(name)
        # Numbers of numpy have a shape, but no elements that code may set.
        is_one = hasattr(of, kind) and (
            hasattr(of, "requires_grad") or hasattr(of, "data_ptr") or hasattr(of, "__setitem__"))
        if not is_one and (of is not None or name in tensors):
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
            raise WrongType(f"sinks is {sinks!r:.60}; it must be a tensor of float32 (heads)")
        sinks = sinks.contiguous()
    return sinks, _devices.integers(q, prefix=prefix)[0] if hasattr(prefix, "data_ptr") else prefix
