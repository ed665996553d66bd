"""Gives the wheel the tag of the library that it carries."""
import os
import re

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Hook(BuildHookInterface):
    """Hatchling calls it before it writes the wheel."""

    def initialize(self, version, build_data):
        path = os.path.join(self.root, "ferroflash", "libferroflash_c.so")
        if version == "editable":
            return
        if not os.path.exists(path):
            raise RuntimeError(f"{path} is missing: run `cargo xtask wheel`")
        with open(path, "rb") as file:
            library = file.read()
        # The newest symbol version of glibc that the library names.
        glibc = max(int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", library))
        # e_machine of the ELF header.
        machine = {62: "x86_64", 183: "aarch64"}[int.from_bytes(library[18:20], "little")]
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_{glibc}_{machine}"
