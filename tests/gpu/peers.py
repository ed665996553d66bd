"""Runs FlashAttention's own test file, unmodified, with FerroFlash in its module's place.

    python3 peers.py test_flash_attn.py OUT.json --seconds 300      # the file: tests/ of Dao-AILab/flash-attention

Needs PyTorch, pytest and einops. Each test's parameters are drawn at random, without repetition. There are no gradients
here: `torch.autograd.grad` gives zeros to both sides, so that what a test says of them holds emptily, and what it says of
outputs and caches counts. What there is not (dropout, ALiBi, rotary embeddings, padding on the left) is not drawn, and
counted; what is refused when it is called is skipped with the reason.
"""
import argparse
import collections
import contextlib
import hashlib
import importlib.util
import itertools
import json
import os
import random
import re
import sys
import time
import traceback
import types

import pytest
import torch
import torch.nn.functional as F

import ferroflash
import kvcache
import varlen

TESTS = ["test_flash_attn_varlen_output", "test_flash_attn_varlen_causal", "test_flash_attn_kvcache", "test_flash_attn_splitkv",
         "test_flash_attn_output", "test_flash_attn_causal", "test_flash_attn_varlen_qkvpacked"]
# Parameter, its values that are not drawn, why.
LEFT_OUT = [
    ("dropout_p", lambda value: value > 0, "there is no dropout"),
    ("rotary_fraction", lambda value: value > 0, "there are no rotary embeddings"),
    ("has_leftpad", bool, "caches have no padding on the left"),
]


def eights(*tensors):
    """Columns to the next multiple of 8, as FlashAttention's own front does."""
    return [t if t is None else F.pad(t, (0, -t.shape[-1] % 8)) for t in tensors]


def cut(out, columns):
    """O without the columns that were added, with whatever stands behind it."""
    return (out[0][..., :columns], *out[1:]) if isinstance(out, tuple) else out[..., :columns]


def on_eights(function):
    """`function` of q, k, v of any number of columns, and a default scale that is theirs."""
    def wrapped(q, k, v, *args, softmax_scale=None, **options):
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        return cut(function(*eights(q, k, v), *args, softmax_scale=scale, **options), q.shape[-1])
    return wrapped


def with_kvcache(q, k_cache, v_cache, k=None, v=None, softmax_scale=None, **options):
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    caches = eights(k_cache, v_cache)
    out = kvcache.flash_attn_with_kvcache(eights(q)[0], *caches, *eights(k, v), softmax_scale=scale, **options)
    for theirs, own in zip((k_cache, v_cache), caches):
        if k is not None and own is not theirs:
            theirs.copy_(own[..., :theirs.shape[-1]])
    return cut(out, q.shape[-1])


def no_rotary(*_args, **_options):
    raise ferroflash.Unsupported("rotary: there are no rotary embeddings")


def unpad_input(hidden_states, attention_mask):
    """Rows that the mask keeps, their numbers, where sequences begin, the longest one's rows, rows of each."""
    lengths = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = attention_mask.flatten().nonzero().flatten()
    starts = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[indices], indices, starts, int(lengths.max()), lengths


def pad_input(hidden_states, indices, batch, seqlen):
    """The rows where they were, zeros elsewhere."""
    out = torch.zeros(batch * seqlen, *hidden_states.shape[1:], dtype=hidden_states.dtype, device=hidden_states.device)
    out[indices] = hidden_states
    return out.view(batch, seqlen, *hidden_states.shape[1:])


def stand_in():
    """The modules that the test file imports."""
    dense, packed = on_eights(ferroflash.flash_attn_func), on_eights(varlen.flash_attn_varlen_func)
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
        "flash_attn.bert_padding": {"pad_input": pad_input, "unpad_input": unpad_input},
        "flash_attn.flash_attn_interface": {"_get_block_size_n": None, "USE_TRITON_ROCM": False},
        "flash_attn.layers": {},
        "flash_attn.layers.rotary": {"apply_rotary_emb": no_rotary},
    }
    for name, functions in contents.items():
        module = sys.modules[name] = types.ModuleType(name)
        vars(module).update(functions)


def zeros(_outputs, inputs, *_gradients):
    """In place of gradients."""
    return tuple(torch.zeros_like(t) for t in (inputs if isinstance(inputs, (tuple, list)) else (inputs,)))


def parameters(test):
    """Every combination of a test's parameters, and which of them are left out: ([{name: value}], {reason: count})."""
    sets = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            names = [name.strip() for name in mark.args[0].split(",")]
            sets.append([dict(zip(names, value if len(names) > 1 else [value])) for value in mark.args[1]])
    kept, left_out = [], collections.Counter()
    for parts in itertools.product(*sets):
        case = {name: value for part in parts for name, value in part.items()}
        why = next((reason for name, absent, reason in LEFT_OUT if name in case and absent(case[name])), None)
        if why is None:
            kept.append(case)
        else:
            left_out[why] += 1
    return kept, dict(left_out)


def attempt(test, case):
    """What became of one case, and why: ("passed" | "skipped" | "failed", words)."""
    try:
        with torch.no_grad(), contextlib.redirect_stdout(open(os.devnull, "w")):
            test(**case)
        return "passed", ""
    except pytest.skip.Exception as reason:
        return "skipped", str(reason) or "the test's own choice"
    except (ferroflash.Unsupported, torch.cuda.OutOfMemoryError) as reason:
        return "skipped", re.sub(r"\d+", "N", str(reason))[:160]
    except Exception as reason:
        where = traceback.extract_tb(reason.__traceback__)[-1]
        return "failed", f"{where.name}:{where.lineno}: {type(reason).__name__}: {str(reason)[:300]}"


def run(test, args, until):
    """The report of one test."""
    cases, left_out = parameters(test)
    random.Random(args.seed).shuffle(cases)
    skipped, failed, counts = collections.Counter(), [], collections.Counter()
    for case in cases[:args.sample]:
        if time.monotonic() > until:
            break
        what, why = attempt(test, case)
        counts[what] += 1
        if what == "skipped":
            skipped[why] += 1
        elif what == "failed":
            failed.append({"case": {name: str(value) for name, value in case.items()}, "why": why})
            print(f"  FAILED {case}: {why}", flush=True)
    return {"test": test.__name__, "combinations": len(cases) + sum(left_out.values()), "left_out": left_out,
            "drawn": sum(counts.values()), "passed": counts["passed"], "skipped": dict(skipped), "failed": failed}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("file", help="FlashAttention's tests/test_flash_attn.py")
    ap.add_argument("out", help="JSON file")
    ap.add_argument("--tests", nargs="*", default=TESTS)
    ap.add_argument("--sample", type=int, default=500, help="cases of each test")
    ap.add_argument("--seconds", type=float, default=300, help="for all tests together, as much for each")
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    stand_in()
    spec = importlib.util.spec_from_file_location("theirs", args.file)
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    torch.autograd.grad = zeros
    tests, start = [], time.monotonic()
    for i, name in enumerate(args.tests):
        tests.append(run(getattr(theirs, name), args, start + args.seconds * (i + 1) / len(args.tests)))
        row = tests[-1]
        print(f'{name:36} {row["passed"]} passed, {sum(row["skipped"].values())} skipped, {len(row["failed"])} failed, of '
              f'{row["combinations"]} ({sum(row["left_out"].values())} left out)', flush=True)
        for why, count in row["skipped"].items():
            print(f"  {count} skipped: {why}")
    failed = sum(len(row["failed"]) for row in tests)
    with open(args.file, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    report = {"device": torch.cuda.get_device_name(), "file": os.path.basename(args.file), "sha256": digest,
              "gradients": "none: zeros on both sides", "seed": args.seed, "passed": failed == 0, "tests": tests}
    with open(args.out, "w") as file:
        json.dump(report, file, indent=1)
    passed = sum(row["passed"] for row in tests)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
