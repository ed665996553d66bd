"""Loads the shared library, and turns its statuses into Python's errors."""
from __future__ import annotations

import ctypes
import os
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


def check(status: int) -> None:
    """Raises the error of a failed call."""
    if status != c.OK:
        raise _ERRORS.get(status, Error)(LIB.ferroflash_last_error().decode())


def entries() -> list[str]:
    """Returns the names of all compiled kernels."""
    return [LIB.ferroflash_entry_name(i).decode() for i in range(LIB.ferroflash_entry_count())]
