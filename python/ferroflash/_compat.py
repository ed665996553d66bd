"""FerroFlash under the name `flash_attn`, for programs that import FlashAttention."""
from __future__ import annotations

import importlib.machinery
import importlib.metadata
import sys
import types
from typing import Any

# The version of FlashAttention whose names and arguments this package has.
VERSION = "2.8.3"


class _Distribution(importlib.metadata.Distribution):
    """The metadata that programs ask for before they import flash_attn."""

    def read_text(self, filename: str) -> Any:
        return {"METADATA": f"Metadata-Version: 2.1\nName: flash_attn\nVersion: {VERSION}\n",
                "top_level.txt": "flash_attn\n"}.get(filename)

    def locate_file(self, path: Any) -> Any:
        return path


class _Finder:
    """Finds the metadata of flash_attn."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        return None

    @staticmethod
    def find_distributions(context: Any = importlib.metadata.DistributionFinder.Context()) -> Any:
        if context.name is None or context.name.replace("-", "_").lower() == "flash_attn":
            yield _Distribution()


def install_as_flash_attn() -> None:
    """Makes `import flash_attn` import FerroFlash, in this process. Call it before the program imports FlashAttention,
    or asks whether it is installed.

    The modules are flash_attn, flash_attn.flash_attn_interface and flash_attn.bert_padding.
    `importlib.metadata.version("flash_attn")` answers the version of FlashAttention whose names this package has.
    """
    if "flash_attn" in sys.modules:
        if getattr(sys.modules["flash_attn"], "is_ferroflash", False):
            return
        raise RuntimeError("flash_attn is imported already: call install_as_flash_attn() before anything imports it")
    from . import bert_padding, functions, packed

    interface = _module("flash_attn.flash_attn_interface", functions, packed)
    root = _module("flash_attn", functions, packed)
    root.__path__, root.__version__, root.is_ferroflash = [], VERSION, True
    root.flash_attn_interface = interface
    root.bert_padding = _module("flash_attn.bert_padding", bert_padding)
    # Before the finder of files, which may find metadata of an installed FlashAttention.
    sys.meta_path.insert(0, _Finder)


def _module(name: str, *of: Any) -> Any:
    module = types.ModuleType(name, of[0].__doc__)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    for part in of:
        module.__dict__.update({key: value for key, value in vars(part).items() if not key.startswith("_")})
    sys.modules[name] = module
    return module
