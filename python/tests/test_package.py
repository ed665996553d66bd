"""What importing the package does, and FerroFlash under the name flash_attn."""
import pathlib
import re
import subprocess
import sys

import pytest

import ferroflash
from ferroflash import _library

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


# Rust's paths, values, dtypes and fields, which no Python program has
RUST = r"::|\b[A-Z]\w+\([\d.]+\)|\b(Batch|BatchAndChunks|TokenScales)\b|(?<!-)\b(f16|bf16|f32|e4m3)\b|\b(cache|mask)\.[a-jl-z]"
# Fields of requests that Python's functions do not set
OTHERS = "another plan|alignment|workspace|shared_prefixes in two passes|cache.total_k"


def test_errors_of_the_library_have_words_of_python():
    refusals = pathlib.Path(__file__).parents[2].joinpath("tests/refusals.txt").read_text()
    texts = [text for text in re.findall(r"^ +((?:invalid|not supported).*)", refusals, re.M) if not re.search(OTHERS, text)]
    assert len(texts) > 300 and any(re.search(RUST, text) for text in texts)
    assert [text for text in map(_library.said, texts) if re.search(RUST, text)] == []


@pytest.mark.parametrize("text, words", {
    "not supported: precision fp8 on NVIDIA L4: x; use `Precision::Inputs`": "use precision=None",
    "invalid cache.k_scale: One; an int8 KV cache": "invalid k_descale: None; an int8 KV cache",
    "invalid scale: NaN; it must be finite": "invalid softmax_scale: NaN; it must be finite",
    "not supported: Exactly(2) with invariance Batch: leave splits out": "num_splits=2 with invariance 'batch': leave num_splits",
    "invalid config: x; `ferroflash kernels` lists them": "ferroflash.entries() lists them",
    "invalid cache.keys.strides: [1] for f16": "invalid k_cache.stride(): [1] for float16",
}.items())
def test_words(text, words):
    assert words in _library.said(text)
