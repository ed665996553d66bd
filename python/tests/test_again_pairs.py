"""Pairs of calls that differ in one thing: the second call passes to the library what it passes without the first.

The second call may be a repetition of the first one (`_again.py`) if nothing that it passes depends on the difference.
"""
import contextlib
import ctypes
import random

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from test_again import F16, INT32, cache, dense, half, latents, library, slopes, varlen  # noqa: F401

from ferroflash import (_again, _backward, _torch, flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache,
                        flash_mla_with_kvcache, planned)
from ferroflash._library import LIB, c

PAIRS = 150


def used():
    return torch.tensor([3, 5], dtype=INT32)


def new():
    return {"k": half(2, 1, 2, 64), "v": half(2, 1, 2, 64)}


# A function, its tensors, and options that it takes
BASES = [
    (flash_attn_func, dense, [
        ("alibi_slopes", slopes), ("sinks", slopes), ("bias", lambda: half(1, 4, 40, 48)), ("prefix", used),
        ("mask_bits", lambda: torch.full((1, 1, 40, 6), 255, dtype=torch.uint8))]),
    (flash_attn_varlen_func, varlen, [("seqused_k", used), ("seqused_q", used), ("sinks", slopes)]),
    (flash_attn_with_kvcache, cache, [("sinks", slopes), ("alibi_slopes", slopes), ("cache_batch_idx", used)]),
    (flash_mla_with_kvcache, latents, [("attn_sink", lambda: torch.rand(16))]),
]
NAMES = {
    flash_attn_func: ["q", "k", "v"],
    flash_attn_varlen_func: ["q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"],
    flash_attn_with_kvcache: ["q", "k_cache", "v_cache"],
    flash_mla_with_kvcache: ["q", "k_cache", "block_table", "cache_seqlens", "head_dim_v"],
}
SCALARS = {
    "causal": [True, 1, 0, 1.0, None, torch.tensor(True), torch.tensor(False), "yes"],
    "window_size": [(8, 0), [8, 0], (8.0, 0), (True, 0), (-1, -1), (8, 1), (torch.tensor(8), 0), (torch.tensor(9), 0), None, 8],
    "softmax_scale": [0.5, 0.25, 1, True, None, torch.tensor(0.5), torch.tensor(0.25), float("nan"), -0.0, 2.0**-140],
    "softcap": [2.0, 2, 3.0, 0.0, -0.0, 0, torch.tensor(2.0), torch.tensor(3.0)],
    "chunked": [16, 17, 16.0, True, None, torch.tensor(16)], "prefix": [3, 4, 0, None, 3.0, torch.tensor(3)],
    "return_lse": [True, False, 1, None], "return_max_logits": [True, 1], "return_entropy": [True, 1],
    "return_max_logits_head": [True], "return_softmax_lse": [True, 1], "return_attn_probs": [True],
    "deterministic": [True, float("nan"), object()], "invariance": ["batch", "batch_and_chunks", b"batch"],
    "precision": ["fp8", "int8-f16"], "num_splits": [1, 2, 2.0, True], "split_keys": [64], "dropout_p": [0, 0.0, -0.0, 0.1],
    "max_seqlen_q": [40, 41, 40.0, torch.tensor(41)], "max_seqlen_k": [40, 64, True], "head_dim_v": [512, 256, 512.0],
    "cache_seqlens": [16, 17, True], "config": ["hopper_f16_d64_causal_128x128", "nothing"], "bhsd": [True, False],
    "is_fp8_kvcache": [True], "k_descale": [1.0, 2.0, 0.0], "mask_keys": [40, 48],
}
MODES = [contextlib.nullcontext, torch.no_grad, torch.inference_mode, torch.enable_grad]


def moved(of, columns):
    """Returns a copy whose rows have other strides, or that begins elsewhere in its memory."""
    room = torch.zeros(2 * of.numel() + 64, dtype=of.dtype)
    if columns and of.dim():
        return room[:2 * of.numel()].view(*of.shape[:-1], -1)[..., :of.shape[-1]].copy_(of)
    return room[columns or 1:][:of.numel()].view(of.shape).copy_(of)


def changed(draw, of):
    """Returns a tensor that differs from `of` in one thing, or is the same."""
    if type(of) is not torch.Tensor or of.layout != torch.strided or of.is_nested or of.is_meta:
        return of.clone()
    kinds = [
        lambda: of, lambda: of.clone(), lambda: moved(of, 0), lambda: moved(of, 2), lambda: of[:1], lambda: of[..., :-1],
        lambda: of[None], lambda: of.reshape(-1), lambda: of.transpose(0, -1), lambda: of.flip(0),
        lambda: of[:1].expand(of.shape), lambda: of.to(torch.bfloat16), lambda: of.float(), lambda: of.long(),
        lambda: torch.nn.Parameter(of, requires_grad=False), lambda: of.to("meta"), lambda: of.to_sparse(),
        lambda: of.detach().clone().requires_grad_(of.is_floating_point()), lambda: of.tolist(), lambda: None,
        lambda: of.as_subclass(Other), lambda: torch.nested.nested_tensor([row.float() for row in of]).to(of.dtype)]
    return draw.choice(kinds if of.dim() else kinds[:2])()


class Other(torch.Tensor):
    """A subclass, of which nothing is known."""


def fields(struct):
    """Returns the fields of a struct, arrays as tuples, without memory that launches have themselves."""
    own = ("workspace", "counters", "config", "forward")
    return {name: tuple(of) if isinstance(of := getattr(struct, name), ctypes.Array) else of for name, _ in struct._fields_
            if name not in own}


def described(plan):
    info = c.PlanInfo(size=ctypes.sizeof(c.PlanInfo))
    assert LIB.ferroflash_plan_describe(ctypes.c_void_p(plan), ctypes.byref(info)) == c.OK
    return info.entry, list(info.grid), list(info.block), info.smem_bytes


def judged(launch, streams):
    """Returns a launch that refuses the addresses that the library refuses, although plans do not depend on them. It adds its
    streams to a list."""

    def judges(context, plan, where, stream):
        again = ctypes.c_void_p()
        status = LIB.ferroflash_plan_create(context, where, ctypes.byref(again))
        if status != c.OK:
            return status
        LIB.ferroflash_plan_destroy(again)
        streams.append(stream)
        return launch(context, plan, where, stream)

    return judges


def addresses(values, what):
    """Returns what the addresses of tensors are."""
    found = {}
    for at, of in enumerate(values):
        with contextlib.suppress(AttributeError, RuntimeError):
            found[of.data_ptr()] = (what, at)
    return found


def outcome(library, function, arguments, mode, before):
    """Returns what a call passes to the library, and its results without their numbers; or its error. `before` are
    tensors of earlier calls; the results become some of them."""
    library.launched.clear()
    library.streams.clear()
    with mode():
        try:
            out = function(**arguments)
        except Exception as error:  # noqa: BLE001
            return type(error), str(error)
    results = out if isinstance(out, tuple) else (out,)
    places = {**addresses(before, "of an earlier call"), **addresses(arguments.values(), "argument"),
              **addresses(results, "result")}
    before += results
    # Addresses that remain are of tensors that the call makes.
    passed = [(described(plan), {name: places.get(of, of if of < 2**32 else "new") if type(of) is int else of
                                 for name, of in fields(c.Attention.from_buffer_copy(struct)).items()})
              for plan, struct in library.launched]
    kinds = [None if of is None else (of.shape, of.stride(), of.dtype, of.requires_grad, of.is_inference(), type(of.grad_fn))
             for of in results]
    return type(out), kinds, passed, library.streams.copy()


def forget():
    for kept in (_again._local.calls, planned.launches(), _backward._local.planned):
        kept.clear()


def made(function, inputs):
    positional, given = inputs()
    return {**dict(zip(NAMES[function], positional)), **given}


def mutated(draw, arguments, options):
    """Returns arguments that differ in one thing."""
    names = [name for name in SCALARS if draw.random() < 0.5] + [*arguments] * 2
    if "v_cache" in arguments and draw.random() < 0.1:
        # The values of a latent cache are its keys.
        return {**arguments, "v_cache": arguments["k_cache"]}
    name = draw.choice(names)
    of = arguments.get(name)
    if isinstance(of, torch.Tensor):
        others = [other for other in arguments.values() if isinstance(other, torch.Tensor)]
        return {**arguments, name: draw.choice(others) if draw.random() < 0.2 else changed(draw, of)}
    if draw.random() < 0.2:
        name, make = draw.choice(options)
        return {**arguments, name: make()}
    return {**arguments, name: draw.choice(SCALARS.get(name, [None]))}


@pytest.mark.parametrize("seed", range(12))
def test_the_second_of_two_calls_passes_what_it_passes_alone(library, monkeypatch, seed):
    def attend(*arguments):
        out = _torch._Eager.apply(*arguments)
        planned.took(_torch._Eager.apply, arguments, out)
        return out

    monkeypatch.setattr(_torch, "attend", attend)
    library.streams = []
    monkeypatch.setattr(library, "ferroflash_launch", judged(library.ferroflash_launch, library.streams),
                        raising=False)
    draw, repeated = random.Random(seed), 0
    for _ in range(PAIRS):
        function, inputs, options = draw.choice(BASES)
        one = made(function, inputs)
        if draw.random() < 0.7:
            name, make = draw.choice(options)
            one[name] = make()
        for _ in range(draw.choice([0, 0, 1, 2])):
            one = mutated(draw, one, options)
        if draw.random() < 0.3:
            one = {name: of.detach().requires_grad_() if name in ("q", "k", "v") and isinstance(of, torch.Tensor)
                   and of.is_floating_point() and type(of) is torch.Tensor else of for name, of in one.items()}
        other = mutated(draw, one, options) if draw.random() < 0.8 else dict(one)
        modes = [draw.choice(MODES) if draw.random() < 0.3 else MODES[0] for _ in range(2)]
        numbers = [draw.choice([0, 0, 0, 1]) for _ in range(2)]
        forget()
        library.gpu.number = numbers[0]
        before = [*one.values()]
        outcome(library, function, one, modes[0], before)
        library.gpu.number, count = numbers[1], len(_again._local.calls)
        found = outcome(library, function, other, modes[1], before)
        repeated += count > 0 and len(_again._local.calls) == count
        forget()
        alone = outcome(library, function, other, modes[1], before)
        assert found == alone, (function.__name__, one, other)
    assert repeated > PAIRS / 10
