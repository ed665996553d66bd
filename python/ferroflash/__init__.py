"""FlashAttention's functions on FerroFlash's kernels. docs/python.md is the guide.

    from ferroflash import flash_attn_func
    o = flash_attn_func(q, k, v, causal=True)                   # torch tensors on a GPU, float16 or bfloat16
    o = flash_attn_func(q, k, v, causal=True, device="sim")     # numpy arrays, in the simulator

Importing this package imports neither torch nor numpy.
"""
from ._compat import install_as_flash_attn
from ._library import LIB, Error, Invalid, Unsupported, WrongType, entries
from ._transformers import register_with_transformers
from .functions import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache, merge_attn_states
from .mla import flash_mla_sparse_fwd, flash_mla_with_kvcache, get_mla_metadata
from .packed import (
    flash_attn_func_bhsd, flash_attn_kvpacked_func, flash_attn_qkvpacked_func, flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func)

__version__ = LIB.ferroflash_version().decode()
__all__ = [
    "Error", "Invalid", "Unsupported", "WrongType", "entries", "flash_attn_func", "flash_attn_func_bhsd",
    "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache",
    "flash_mla_sparse_fwd", "flash_mla_with_kvcache", "get_mla_metadata", "install_as_flash_attn", "merge_attn_states",
    "register_with_transformers"]
