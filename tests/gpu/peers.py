"""Runs FlashAttention's own test file, unmodified, with FerroFlash in its module's place.

    python3 peers.py test_flash_attn.py OUT.json --seconds 300      # the file: tests/ of Dao-AILab/flash-attention

Needs PyTorch, pytest and einops. Each test's parameters are drawn at random, without repetition. Parameters of features that
FerroFlash or its stand-ins lack (dropout, rotation, padding) are not drawn, but counted. A case whose forward FerroFlash refuses
is skipped, with the reason. If FerroFlash refuses only the gradients of a case, `torch.autograd.grad` returns zeros to both
sides, so that the case's assertions on gradients hold trivially and those on outputs count; the report counts these cases, with
the reason.
"""
import collections
import functools
import re
import sys
import types

import torch
import torch.nn.functional as F

import drawing
import ferroflash
from ferroflash import bert_padding

TESTS = ["test_flash_attn_varlen_output", "test_flash_attn_varlen_causal", "test_flash_attn_kvcache", "test_flash_attn_splitkv",
         "test_flash_attn_output", "test_flash_attn_causal", "test_flash_attn_varlen_qkvpacked", "test_flash_attn_qkvpacked",
         "test_flash_attn_race_condition", "test_flash_attn_bwd_overflow", "test_flash_attn_bwd_transpose",
         "test_flash_attn_bwd_varlen_overflow", "test_flash_attn_deterministic", "test_flash_attn_varlen_deterministic"]
# Parameter, values that are never drawn, reason.
LEFT_OUT = [
    ("dropout_p", lambda value: value > 0, "there is no dropout"),
    ("rotary_fraction", lambda value: value > 0, "the stand-in for flash_attn.layers.rotary rotates nothing"),
    ("has_leftpad", bool, "caches have no padding on the left"),
]


def eights(*tensors):
    """Pads columns to the next multiple of 8, as FlashAttention's front does."""
    return [t if t is None else F.pad(t, (0, -t.shape[-1] % 8)) for t in tensors]


def cut(out, columns):
    """O without the padding columns, and the other results unchanged."""
    return (out[0][..., :columns], *out[1:]) if isinstance(out, tuple) else out[..., :columns]


def on_eights(function):
    """`function` for q, k, v with any number of columns. The default scale follows from the unpadded columns."""
    def wrapped(q, k, v, *args, softmax_scale=None, **options):
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        return cut(function(*eights(q, k, v), *args, softmax_scale=scale, **options), q.shape[-1])
    return wrapped


def with_kvcache(q, k_cache, v_cache, k=None, v=None, softmax_scale=None, **options):
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    caches = eights(k_cache, v_cache)
    out = ferroflash.flash_attn_with_kvcache(eights(q)[0], *caches, *eights(k, v), softmax_scale=scale, **options)
    for theirs, own in zip((k_cache, v_cache), caches):
        if k is not None and own is not theirs:
            theirs.copy_(own[..., :theirs.shape[-1]])
    return cut(out, q.shape[-1])


def no_rotary(*_args, **_options):
    raise ferroflash.Unsupported("flash_attn.layers.rotary: the stand-in rotates nothing")


def stand_in():
    """Installs the modules that the test file imports."""
    dense, packed = on_eights(ferroflash.flash_attn_func), on_eights(ferroflash.flash_attn_varlen_func)
    contents = {
        "flash_attn": {
            "flash_attn_func": dense,
            "flash_attn_kvpacked_func": lambda q, kv, *args, **options: dense(q, *kv.unbind(-3), *args, **options),
            "flash_attn_qkvpacked_func": lambda qkv, *args, **options: dense(*qkv.unbind(-3), *args, **options),
            "flash_attn_varlen_func": packed,
            "flash_attn_varlen_kvpacked_func": lambda q, kv, *args, **options: packed(q, *kv.unbind(-3), *args, **options),
            "flash_attn_varlen_qkvpacked_func": lambda qkv, starts, longest, *args, **options: packed(
                *qkv.unbind(-3), starts, starts, longest, longest, *args, **options),
            "flash_attn_with_kvcache": with_kvcache,
        },
        "flash_attn.bert_padding": {"pad_input": bert_padding.pad_input, "unpad_input": bert_padding.unpad_input},
        "flash_attn.flash_attn_interface": {"_get_block_size_n": None, "USE_TRITON_ROCM": False},
        "flash_attn.layers": {},
        "flash_attn.layers.rotary": {"apply_rotary_emb": no_rotary},
    }
    for name, functions in contents.items():
        module = sys.modules[name] = types.ModuleType(name)
        vars(module).update(functions)


class Gradients:
    """`torch.autograd.grad`. After FerroFlash has refused a case's gradients, it returns zeros for the rest of the case."""

    def __init__(self):
        self.theirs, self.are_refused, self.refused = torch.autograd.grad, False, collections.Counter()

    def __call__(self, outputs, inputs, *gradients, **options):
        if not self.are_refused:
            try:
                return self.theirs(outputs, inputs, *gradients, **options)
            except ferroflash.Unsupported as reason:
                self.are_refused = True
                self.refused[re.sub(r"\d+", "N", str(reason))[:160]] += 1
        return tuple(torch.zeros_like(t) for t in (inputs if isinstance(inputs, (tuple, list)) else (inputs,)))

    def of_each_case(self, test):
        """Returns the test, each of whose cases begins with gradients."""
        @functools.wraps(test)
        def wrapped(**case):
            self.are_refused = False
            test(**case)
        return wrapped


def main():
    args = drawing.arguments(__doc__, "FlashAttention's tests/test_flash_attn.py", 300).parse_args()
    stand_in()
    theirs, digest = drawing.load(args.theirs)
    gradients = torch.autograd.grad = Gradients()
    rows = drawing.run_all([gradients.of_each_case(getattr(theirs, name)) for name in args.tests or TESTS], LEFT_OUT, args)
    for why, count in gradients.refused.items():
        print(f"  gradients of {count} cases refused: {why}")
    about = {"file": "test_flash_attn.py", "sha256": digest, "refused_gradients": dict(gradients.refused)}
    return drawing.finish(about, rows, args)


if __name__ == "__main__":
    sys.exit(main())
