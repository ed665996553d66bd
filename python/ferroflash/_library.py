"""Loads the shared library, and turns its statuses into Python's errors."""
from __future__ import annotations

import ctypes
import os
import re
from typing import Any

from . import _bindings as c

__all__ = ["LIB", "Error", "Invalid", "Unsupported", "WrongType", "c", "check", "entries"]


class Error(RuntimeError):
    """The library or the driver failed."""


class Invalid(Error, ValueError):
    """An argument is wrong. The text names it, its value, the requirement and the remedy."""


class WrongType(Error, TypeError):
    """An argument has a dtype that the function does not take."""


class Unsupported(Error, NotImplementedError):
    """A valid request that FerroFlash does not support."""


def _find() -> str:
    """Returns the library's path: FERROFLASH_LIBRARY, or the file that the wheel carries."""
    path = os.environ.get("FERROFLASH_LIBRARY")
    path = path or os.path.join(os.path.dirname(os.path.abspath(__file__)), "libferroflash_c.so")
    if os.path.exists(path):
        return path
    raise ImportError(f"no FerroFlash library at {path}: install the wheel (`cargo xtask wheel` builds it), "
                      "or set FERROFLASH_LIBRARY to a libferroflash_c.so")


def _open() -> Any:
    lib = ctypes.CDLL(_find())
    version = lib.ferroflash_abi_version()
    if version != c.ABI_VERSION:
        raise ImportError(f"{lib._name} has ABI version {version}, this package needs {c.ABI_VERSION}: "
                          "install package and library of one version")
    for name, (result, arguments) in c.FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    structs = {"attention": c.Attention, "plan_info": c.PlanInfo, "backward": c.Backward,
               "append": c.Append, "merge": c.Merge}
    for name, struct in structs.items():
        size = getattr(lib, f"ferroflash_{name}_size")()
        if size != ctypes.sizeof(struct):
            raise ImportError(f"ferroflash_{name}_t has {size} bytes in {lib._name} and "
                              f"{ctypes.sizeof(struct)} in this package: install both of one version")
    return lib


LIB = _open()
_ERRORS = {c.INVALID: Invalid, c.UNSUPPORTED: Unsupported}
# The library's words for arguments, values and dtypes, and Python's.
_WORDS = {
    r"`?Precision::Inputs`?": "precision=None", r"`Batch`|\bBatch\b": "'batch'", r"\bBatchAndChunks\b": "'batch_and_chunks'",
    r"\bExactly\((\d+)\)": r"num_splits=\1", r"\bKeys\((\d+)\)": r"split_keys=\1", r"\bValue\((.*?)\)": r"\1",
    r"\bmask window (-?\d+),(-?\d+)": r"window_size (\1, \2)", r"\bmask (chunked|prefix) (\d+)": r"\1 \2",
    r"\bsplits of (\d+) keys\b": r"split_keys \1", r"\bleave splits out\b": "leave num_splits and split_keys 0", r"^((?:not supported|invalid):?) splits\b": r"\1 num_splits",
    r"^((?:not supported|invalid):?) scale\b": r"\1 softmax_scale", r"\bcache\.([kv])_scale: One\b": r"\1_descale: None",
    r"\bcache\.([kv])_scale\b": r"\1_descale", r"\bTokenScales \{.*?\}": "a tensor of each key's factors",
    r"\bcache\.keys\b": "k_cache", r"\bcache\.values\b": "v_cache", r"\bcache\.lengths\b": "cache_seqlens",
    r"\bcache\.rows\b": "cache_batch_idx", r"\bcache\.table\b": "block_table", r"\bcache\.max_k\b": "keys per sequence",
    r"\balibi\b": "alibi_slopes", r"\bmask\.bits\b": "mask_bits", r"\bmask\.prefix\b": "prefix",
    r"\bmask\.chunk\b": "chunked", r"\bmask bits\b": "mask_bits", r"\brotary\.(cos|sin)\b": r"rotary_\1",
    r"\bshared_prefixes\.(groups|pages)\b": r"\1 of shared_prefixes",
    r"\bshared_prefixes\.rest\.lengths\b": "rest of shared_prefixes",
    r"\.address\b": ".data_ptr()", r"\.elements\b": ".numel()", r"\.strides\b": ".stride()",
    r"`ferroflash kernels[^`]*`(, or `paged`)?": "ferroflash.entries()", r"\brequest(s?)\b": r"call\1",
    r"ask for the LSE, fill it with -inf before the launch, and add the sinks with `Merge`":
        "ask for the LSE without sinks, and call merge_attn_states(out, o, lse, zeros_like(o), full_like(lse, -inf), sinks=sinks)",
    r"`latent_scaled`": "a uint8 cache", r"; plan with `Scratch::Fastest`, and allocate the bytes that `scratch_bytes` of that plan returns": "",
    r"(?<!-)\bf16\b": "float16", r"\bbf16\b": "bfloat16", r"\bf32\b": "float32", r"\be4m3\b": "float8_e4m3fn",
}


def said(text: str) -> str:
    """Returns the library's text of an error with Python's words."""
    for word, replacement in _WORDS.items():
        text = re.sub(word, replacement, text)
    return text


def check(status: int) -> None:
    """Raises the error of a failed call."""
    if status != c.OK:
        raise _ERRORS.get(status, Error)(said(LIB.ferroflash_last_error().decode()))


def entries() -> list[str]:
    """Returns the names of all compiled kernels."""
    return [LIB.ferroflash_entry_name(i).decode() for i in range(LIB.ferroflash_entry_count())]
