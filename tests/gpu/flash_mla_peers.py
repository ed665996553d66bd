"""Runs FlashMLA's own test files, with FerroFlash in its module's place.

    python3 flash_mla_peers.py FOLDER OUT.json --seconds 120      # the folder tests/ of deepseek-ai/FlashMLA

Needs PyTorch, Triton and pytest. The files are unmodified, and so are their tolerances. Cases are drawn at random, without
repetition; none is timed. Cases of what FerroFlash lacks (a second cache of extra keys, rows of 584 bytes) are not drawn, but
counted. A case that FerroFlash refuses is skipped, with the reason. Where FlashMLA's interface differs from FerroFlash's, the
stand-in calls FerroFlash as python/ferroflash/mla.py tells its users: it writes -1 behind `topk_length`, and computes the LSE
without sinks by a second call. FerroFlash has no `max_logits` of lists, so that comparison is left out.
"""
import dataclasses
import hashlib
import importlib
import os
import sys
import types

import pytest
import torch

import drawing
import ferroflash

# Parameter, values that are never drawn, reason.
LEFT_OUT = [
    ("case", lambda case: getattr(getattr(case, "decode", None), "extra_topk", None) is not None,
     "FerroFlash has no second cache of extra keys"),
    ("case", lambda case: getattr(case, "decode", None) is not None and case.d_qk == 512,
     "FerroFlash has no rows of 584 bytes, which latents of 512 columns have"),
]


class CasesKnown(Exception):
    """Ends a test file's program after it has listed its cases."""


def behind(indices, topk_length):
    """The lists, with -1 from each list's length on."""
    if topk_length is None:
        return indices
    lengths = topk_length.reshape(-1, *[1] * (indices.dim() - 1))
    return indices.masked_fill(torch.arange(indices.shape[-1], device=indices.device) >= lengths, -1)


def with_kvcache(*args, attn_sink=None, topk_length=None, indices=None, **options):
    indices = None if indices is None else behind(indices, topk_length)
    out, lse = ferroflash.flash_mla_with_kvcache(*args, indices=indices, attn_sink=attn_sink, **options)
    if attn_sink is not None:
        lse = ferroflash.flash_mla_with_kvcache(*args, indices=indices, **options)[1]
    return out, lse


def by_position(q, k_cache, table, lengths, head_dim_v, metadata=None, splits=None, softmax_scale=None, causal=False,
                is_fp8_kvcache=False, indices=None, attn_sink=None, extra_k_cache=None, extra_indices_in_kvcache=None,
                topk_length=None, extra_topk_length=None):
    """FlashMLA's function of caches, with the order of its arguments."""
    extra = {"extra_k_cache": extra_k_cache, "extra_indices_in_kvcache": extra_indices_in_kvcache,
             "extra_topk_length": extra_topk_length}
    return with_kvcache(q, k_cache, table, lengths, head_dim_v, metadata, splits, softmax_scale, causal, is_fp8_kvcache,
                        indices=indices, attn_sink=attn_sink, topk_length=topk_length, **extra)


def sparse_fwd(q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None):
    lists = behind(indices, topk_length)
    out, maxima, lse = ferroflash.flash_mla_sparse_fwd(q, kv, lists, sm_scale, d_v, attn_sink)
    if attn_sink is not None:
        lse = ferroflash.flash_mla_sparse_fwd(q, kv, lists, sm_scale, d_v)[2]
    return out, maxima, lse


def stand_in():
    module = sys.modules["flash_mla"] = types.ModuleType("flash_mla")
    vars(module).update(flash_mla_with_kvcache=by_position, flash_mla_sparse_fwd=sparse_fwd,
                        get_mla_metadata=ferroflash.get_mla_metadata)
    # Only the tables that the files' programs print need this package, and they are not printed here.
    for name in ("rich", "rich.console", "rich.table"):
        sys.modules.setdefault(name, types.ModuleType(name))
    compare = importlib.import_module("kernelkit")
    check = compare.check_is_allclose
    compare.check_is_allclose = lambda name, ans, *rest, **options: (
        (name == "max_logits" and ans is None) or check(name, ans, *rest, **options))


def dense_decoding(folder):
    """The file's test, its cases, and its digest."""
    theirs, digest = drawing.load(os.path.join(folder, "test_flash_mla_dense_decoding.py"))
    test, cases = theirs.test_flash_mla, []
    theirs.test_flash_mla = cases.append
    theirs.main(torch.bfloat16)
    return test, [dataclasses.replace(case, test_performance=False) for case in cases], digest


def sparse_decoding(folder):
    theirs, digest = drawing.load(os.path.join(folder, "test_flash_mla_sparse_decoding.py"))
    return lambda case: theirs.test_flash_mla(case).is_correct, [each.to_test_param() for each in theirs.gen_testcase()], digest


def sparse_prefill(folder):
    """This file lists its cases in its program, which asks for a pause between cases before it runs the first one."""
    path = os.path.join(folder, "test_flash_mla_sparse_prefill.py")
    with open(path, "rb") as file:
        source = file.read()

    def ends():
        raise CasesKnown
    importlib.import_module("lib").is_no_cooldown = ends
    space = {"__name__": "__main__"}
    try:
        exec(compile(source, path, "exec"), space)
    except CasesKnown:
        pass
    return space["run_test"], space["testcases"], hashlib.sha256(source).hexdigest()


def drawable(load, folder):
    """A test of one parameter, `case`, under the file's name, and the file's digest."""
    run, cases, digest = load(folder)

    @pytest.mark.parametrize("case", cases)
    def test(case):
        if hasattr(case, "num_runs"):
            case = dataclasses.replace(case, num_runs=0, seed=0)
        # The dense test asserts, and returns nothing.
        assert run(case) is not False, "a result differs from the file's expected result"
    test.__name__ = load.__name__
    return test, digest


def main():
    args = drawing.arguments(__doc__, "the folder tests/ of FlashMLA", 120).parse_args()
    sys.path.insert(0, args.theirs)
    stand_in()
    loads = [load for load in (dense_decoding, sparse_decoding, sparse_prefill)
             if not args.tests or load.__name__ in args.tests]
    rows, digests, args.seconds = [], {}, args.seconds / len(loads)
    for load in loads:
        # A file's program may lower the precision of its own expected results.
        torch.set_float32_matmul_precision("highest")
        test, digests[load.__name__] = drawable(load, args.theirs)
        rows += drawing.run_all([test], LEFT_OUT, args)
    return drawing.finish({"sha256": digests}, rows, args)


if __name__ == "__main__":
    sys.exit(main())
