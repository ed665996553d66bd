"""Runs FlashInfer's own tests of decoding, pages, merging and sinks, unmodified, with FerroFlash in its package's place.

    python3 flashinfer_peers.py FOLDER OUT.json --seconds 300      # the folder that has tests/ of flashinfer-ai/flashinfer

Needs PyTorch, pytest and einops. Each test's parameters are drawn at random, without repetition. Parameters of features that
FerroFlash lacks (rotary embeddings, caches of 4 bits or of e5m2) are not drawn, but counted. A case that FerroFlash refuses
is skipped, with the reason. flashinfer_shim.py says which functions run FerroFlash, and which compute expected results;
flashinfer_mla.py has the wrapper for latent caches.
"""
import inspect
import os
import re
import sys
import types

import torch

import drawing
import ferroflash
import flashinfer_mla
import flashinfer_shim as shim

# Tests with few combinations come first, because later tests get the remaining time.
FILES = ["attention/test_page.py", "attention/test_decode_prefill_lse.py", "utils/test_triton_cascade.py",
         "attention/test_non_contiguous_decode.py", "attention/test_shared_prefix_kernels.py",
         "attention/test_decode_fp8_calibration_scale.py", "attention/test_attention_sink.py",
         "attention/test_deepseek_mla.py", "attention/test_tensor_cores_decode.py", "attention/test_batch_decode_kernels.py"]
# This test draws billions of inputs on the default device of tensors.
DRAWN_ON_THE_DEVICE = "utils/test_triton_cascade.py"
# Tests that are left out: name, reason.
TESTS_LEFT_OUT = [
    (r"^test_nvfp4_|_kv_cache_nvfp4", "there are no caches of 4 bits"),
    (r"torch_compile", "it starts another process, in which FerroFlash does not replace FlashInfer"),
    (r"rejects_mismatched_q_len", "the test expects the words of FlashInfer's own refusal"),
    (r"rejects_unequal_kv_strides", "FerroFlash reads keys and values with strides of their own"),
    (r"fp8_kv_scales_are_keyword_only", "the stand-in has no latent caches of 8 bits"),
]
# Parameter, values that are never drawn, reason.
LEFT_OUT = [
    ("pos_encoding_mode", lambda value: value != "NONE", "attention rotates nothing; an append does"),
    ("dtype", lambda value: value == torch.float8_e5m2, "there are no caches of e5m2"),
    ("backend", lambda value: value == "fa3", "FerroFlash has one backend for both"),
]


class Absent:
    """A name that a test file imports and that FerroFlash lacks. A call of it is refused."""

    def __init__(self, name):
        self.name = name

    def __getattr__(self, name):
        return Absent(f"{self.name}.{name}")

    def __or__(self, _other):
        """Makes the name usable in a type annotation."""
        return self

    def __call__(self, *_args, **_options):
        raise ferroflash.Unsupported(f"{self.name}: FerroFlash has no such function")


def absent(module):
    """Stands for the attributes that the module lacks."""
    def attribute(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{module}.{name}")
    return attribute


class GPUArchitectureError(RuntimeError):
    """FerroFlash never raises this error."""


def stand_in():
    """Installs the modules that test files import."""
    own = {name: value for name, value in vars(shim).items() if getattr(value, "__module__", "") == shim.__name__}
    sinks = {"attention_sink_decl": {"fa2": "", "fa3": ""}}
    contents = {
        "flashinfer": own,
        "flashinfer.decode": own,
        "flashinfer.prefill": own,
        "flashinfer.mla": {"BatchMLAPagedAttentionWrapper": flashinfer_mla.BatchMLAPagedAttentionWrapper},
        "flashinfer.utils": {
            "GPUArchitectureError": GPUArchitectureError,
            "get_compute_capability": torch.cuda.get_device_capability,
            "has_flashinfer_jit_cache": lambda: True,
            # FerroFlash runs the tests of FlashInfer's portable kernels.
            **{f"is_sm{target}_supported": lambda device: False for target in ("90a", "100a", "110a", "120a")},
        },
        "flashinfer.jit": {},
        "flashinfer.jit.utils": {"filename_safe_dtype_map": {torch.float16: "f16", torch.bfloat16: "bf16"}},
        "flashinfer.jit.attention": {},
        "flashinfer.jit.attention.variants": sinks,
        "flashinfer.fp4_quantization": {},
        "flashinfer.quantization": {},
        "flashinfer.quantization.nvfp4_quantization_utils": {},
        "flashinfer.triton": {},
        "flashinfer.triton.cascade": {name.removeprefix("plain_"): value for name, value in vars(shim).items()
                                      if name.startswith("plain_")},
    }
    for name, values in contents.items():
        module = sys.modules[name] = types.ModuleType(name)
        vars(module).update(values, __getattr__=absent(name), __path__=[])
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)


def tests_of(theirs, wanted):
    """A file's tests, and the tests that are left out: ([test], [{test, left_out}])."""
    tests, left_out = [], []
    for name, test in inspect.getmembers(theirs, callable):
        if name.startswith("test_") and (not wanted or name in wanted):
            why = next((reason for pattern, reason in TESTS_LEFT_OUT if re.search(pattern, name)), None)
            if why is None:
                tests.append(test)
            else:
                left_out.append({"test": name, "left_out": why})
    return tests, left_out


def main():
    args = drawing.arguments(__doc__, "the folder that has FlashInfer's tests", 300).parse_args()
    stand_in()
    sys.path.append(args.theirs)
    digests, tests, left_out = {}, [], []
    for path in FILES:
        theirs, digests[path] = drawing.load(os.path.join(args.theirs, "tests", path))
        kept, without = tests_of(theirs, args.tests)
        if path == DRAWN_ON_THE_DEVICE:
            kept = [drawing.on_the_device(test) for test in kept]
        tests, left_out = tests + kept, left_out + without
    for row in left_out:
        print(f'{row["test"]:60} left out: {row["left_out"]}')
    with torch.no_grad():
        rows = drawing.run_all(tests, LEFT_OUT, args)
    return drawing.finish({"sha256": digests, "tests_left_out": left_out}, rows, args)


if __name__ == "__main__":
    sys.exit(main())
