"""What importing the package does, and FerroFlash under the name flash_attn."""
import subprocess
import sys

import pytest

import ferroflash

CASES = {
    "no framework is imported": "import sys, ferroflash; assert not {'torch', 'numpy'} & set(sys.modules)",
    "flash_attn": """
import importlib.metadata, importlib.util, ferroflash
ferroflash.install_as_flash_attn()
ferroflash.install_as_flash_attn()
assert importlib.metadata.version("flash_attn") == importlib.metadata.version("flash-attn") == "2.8.3"
assert importlib.util.find_spec("flash_attn") is not None
assert "flash_attn" in importlib.metadata.packages_distributions()["flash_attn"]
from flash_attn import __version__, flash_attn_func, flash_attn_varlen_func
from flash_attn.flash_attn_interface import flash_attn_with_kvcache
from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
assert flash_attn_func is ferroflash.flash_attn_func and __version__ == "2.8.3"
try:
    importlib.metadata.version("no-such-package")
    raise SystemExit("a package that is not there has a version")
except importlib.metadata.PackageNotFoundError:
    pass
""",
    "flash_attn was imported before": """
import sys, types, ferroflash
sys.modules["flash_attn"] = types.ModuleType("flash_attn")
try:
    ferroflash.install_as_flash_attn()
    raise SystemExit("not refused")
except RuntimeError as error:
    assert "before" in str(error)
""",
    "another flash_attn is installed": """
import importlib.metadata, os, sys, tempfile
with tempfile.TemporaryDirectory() as folder:
    os.makedirs(f"{folder}/flash_attn-2.0.0.dist-info")
    with open(f"{folder}/flash_attn-2.0.0.dist-info/METADATA", "w") as file:
        file.write("Metadata-Version: 2.1\\nName: flash_attn\\nVersion: 2.0.0\\n")
    sys.path.insert(0, folder)
    assert importlib.metadata.version("flash_attn") == "2.0.0"
    import ferroflash
    ferroflash.install_as_flash_attn()
    assert importlib.metadata.version("flash_attn") == "2.8.3"
""",
    "no library": """
import os
os.environ["FERROFLASH_LIBRARY"] = "nowhere.so"
try:
    import ferroflash
    raise SystemExit("not refused")
except ImportError as error:
    assert "nowhere.so" in str(error) and "cargo xtask wheel" in str(error)
""",
}


@pytest.mark.parametrize("name", CASES)
def test_in_a_new_process(name):
    subprocess.run([sys.executable, "-c", CASES[name]], check=True)


def test_names_of_an_attention_are_strings():
    with pytest.raises(TypeError, match="name is 7; it must be a string"):
        ferroflash.register_with_transformers(7)


def test_transformers_would_take_some_names_for_flash_attention():
    with pytest.raises(ferroflash.Invalid, match="name 'ferroflash': it must not contain \"flash\""):
        ferroflash.register_with_transformers("ferroflash")
