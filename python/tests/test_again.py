"""Repeated calls (`_again.py`): what they pass to the library is what the call itself would pass.

A stand-in for a GPU holds CPU tensors of torch, plans for a simulated card, and launches nothing. CI has no torch;
`pip install torch` and `python3 -m pytest python/tests` run it.
"""
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from ferroflash import (_again, _backward, _devices, _torch, flash_attn_func, flash_attn_varlen_func,
                        flash_attn_with_kvcache, flash_mla_with_kvcache, planned)
from ferroflash._library import Error, c
from stand_in import NoGpu, NoLaunch

CPU, F16, INT32 = torch.device("cpu"), torch.float16, torch.int32


class Library(NoLaunch):
    """The library, but for its launches, of which it keeps the arguments."""

    def __init__(self):
        self.launched = []

    def ferroflash_launch(self, context, plan, where, stream):
        args = c.Attention.from_buffer_copy(c.Attention.from_address(where))
        assert bool(args.workspace) == bool(args.workspace_bytes)
        args.workspace = None
        self.launched.append((plan.value, bytes(args)))
        return c.OK

    def ferroflash_backward_launch(self, context, plan, where, stream):
        args = c.Backward.from_address(where)
        forward = bytes(c.Attention.from_address(args.forward))
        self.launched.append((plan.value, bytes(args) + forward))
        return c.OK


@pytest.fixture
def library(monkeypatch):
    made, gpu = Library(), NoGpu()
    monkeypatch.setattr(planned, "LIB", made)
    monkeypatch.setattr(_backward, "LIB", made)
    monkeypatch.setitem(_devices._devices, CPU, gpu)
    # Of a GPU's tensors, the host knows no numbers.
    monkeypatch.setattr(_devices, "known", lambda tensor: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    monkeypatch.setattr(_again, "_local", _again._Local())
    monkeypatch.setattr(planned, "_local", planned._Local())
    made.gpu = gpu
    return made


def half(*shape):
    return torch.randn(shape).to(F16)


def dense():
    return [half(2, 40, 4, 64), half(2, 48, 2, 64), half(2, 48, 2, 64)], {}


def varlen():
    starts = [torch.tensor([0, 30, 64], dtype=INT32) for _ in range(2)]
    return [half(64, 4, 64), half(64, 2, 64), half(64, 2, 64), *starts, 40, 40], {}


def cache():
    table = torch.arange(8, dtype=INT32).reshape(2, 4)
    return [half(2, 1, 4, 64), half(8, 16, 2, 64), half(8, 16, 2, 64)], {
        "cache_seqlens": torch.tensor([20, 60], dtype=INT32), "block_table": table}


def latents():
    return [half(2, 1, 16, 576), half(8, 64, 1, 576), torch.arange(8, dtype=INT32).reshape(2, 4),
            torch.tensor([20, 200], dtype=INT32), 512], {}


def slopes():
    return torch.rand(4)


# Each case: a function, its tensors, options, and whether a second call of it is a repetition.
CASES = [
    (flash_attn_func, dense, lambda: {}, True),
    (flash_attn_func, dense, lambda: {"causal": True}, True),
    (flash_attn_func, dense, lambda: {"window_size": (8, 0)}, True),
    (flash_attn_func, dense, lambda: {"window_size": [9, 0]}, True),
    (flash_attn_func, dense, lambda: {"softmax_scale": 0.5, "softcap": 2.0}, True),
    (flash_attn_func, dense, lambda: {"return_lse": True}, True),
    (flash_attn_func, dense, lambda: {"return_lse": True, "return_entropy": True, "return_max_logits_head": True}, True),
    (flash_attn_func, dense, lambda: {"alibi_slopes": slopes()}, True),
    (flash_attn_func, dense, lambda: {"sinks": slopes(), "causal": True}, True),
    (flash_attn_func, dense, lambda: {"bias": half(1, 4, 40, 48)}, True),
    (flash_attn_func, dense, lambda: {"prefix": 3}, True),
    (flash_attn_func, dense, lambda: {"prefix": torch.tensor([3, 5], dtype=INT32)}, True),
    (flash_attn_func, dense, lambda: {"chunked": 16}, True),
    (flash_attn_func, dense, lambda: {"mask_bits": torch.full((1, 1, 40, 6), 255, dtype=torch.uint8)}, True),
    (flash_attn_func, dense, lambda: {"precision": "fp8"}, True),
    (flash_attn_func, dense, lambda: {"invariance": "batch"}, True),
    # FlashAttention's LSE is a copy.
    (flash_attn_func, dense, lambda: {"return_attn_probs": True}, False),
    # The call converts these numbers.
    (flash_attn_func, dense, lambda: {"prefix": torch.tensor([3, 5])}, False),
    (flash_attn_varlen_func, varlen, lambda: {}, True),
    (flash_attn_varlen_func, varlen, lambda: {"causal": True, "return_lse": True}, True),
    (flash_attn_varlen_func, varlen, lambda: {"seqused_k": torch.tensor([3, 5], dtype=INT32)}, True),
    (flash_attn_with_kvcache, cache, lambda: {}, True),
    (flash_attn_with_kvcache, cache, lambda: {"causal": True, "num_splits": 2}, True),
    (flash_attn_with_kvcache, cache, lambda: {"return_softmax_lse": True, "return_max_logits": True}, True),
    (flash_attn_with_kvcache, cache, lambda: {"cache_seqlens": 40}, False),
    (flash_attn_with_kvcache, cache, lambda: {"cache_seqlens": torch.tensor([20, 60])}, False),
    (flash_mla_with_kvcache, latents, lambda: {}, True),
    (flash_mla_with_kvcache, latents, lambda: {"causal": True, "attn_sink": torch.rand(16)}, True),
]


def call(function, inputs, options):
    """Calls a function on new tensors: (what the library got, without addresses of results; results)."""
    arguments, given = inputs()
    given = {**given, **options()}
    out = function(*arguments, **given)
    return (arguments, given), out


def passed(library, results):
    """Returns what the launch passed but its workspace, with the places of results in place of their addresses."""
    plan, struct = library.launched.pop()
    assert not library.launched, "one launch"
    words = memoryview(struct).cast("Q").tolist()
    places = {of.data_ptr(): -1 - at for at, of in enumerate(results) if of is not None and of.numel()}
    return [places.get(word, word) for word in words]


def results(out):
    return out if isinstance(out, tuple) else (out,)


@pytest.mark.parametrize("function, inputs, options, repeats", CASES)
def test_a_repeated_call_passes_what_the_call_passes(library, function, inputs, options, repeats):
    call(function, inputs, options)
    library.launched.clear()
    assert bool(_again._local.calls) == repeats
    (arguments, given), again = call(function, inputs, options)
    found = passed(library, results(again))
    _again._local.calls = {}
    whole = function(*arguments, **given)
    wanted = passed(library, results(whole))
    if repeats:
        assert found == wanted
        assert [(of.shape, of.stride(), of.dtype) for of in results(again)] == [
            (of.shape, of.stride(), of.dtype) for of in results(whole)]


def test_calls_that_differ_are_not_repetitions(library):
    (q, k, v), _ = dense()
    flash_attn_func(q, k, v)
    assert len(_again._local.calls) == 1
    others = [
        lambda: flash_attn_func(q, k, v, causal=True), lambda: flash_attn_func(q, k, v, 0.0, 0.5),
        lambda: flash_attn_func(q[:1], k[:1], v[:1]), lambda: flash_attn_func(q[:, :39], k, v),
        lambda: flash_attn_func(q.to(torch.bfloat16), k.to(torch.bfloat16), v.to(torch.bfloat16)),
        lambda: flash_attn_func(q.transpose(1, 2).contiguous().transpose(1, 2), k, v)]
    for count, other in enumerate(others, 2):
        other()
        assert len(_again._local.calls) == count
    library.gpu.number = 1
    flash_attn_func(q, k, v)
    assert len(_again._local.calls) == len(others) + 2


def test_bad_calls_are_refused_after_good_ones(library):
    (q, k, v), _ = dense()
    flash_attn_func(q, k, v, causal=True)
    padded = torch.empty(q.numel() + 1, dtype=F16)[1:].view(q.shape)
    for bad in (lambda: flash_attn_func(q, k, v, causal=1.0), lambda: flash_attn_func(q, k, v, causal="yes"),
                lambda: flash_attn_func(q, k[:, :, :, :32], v, causal=True), lambda: flash_attn_func(q, k, None, causal=True),
                lambda: flash_attn_func(q.float(), k, v, causal=True), lambda: flash_attn_func(q, k.to_sparse(), v, causal=True)):
        with pytest.raises((Error, TypeError)):
            bad()
    flash_attn_func(padded, k, v, causal=True)
    # The library itself judges addresses. The stand-in launches nothing, so only the key counts here.
    assert len(_again._local.calls) == 2


def test_tensors_that_are_one_are_no_repetition(library):
    (_, k, v), _ = dense()
    flash_attn_func(k, k, v)
    assert not _again._local.calls


def test_gradients(library, monkeypatch):
    # A CPU tensor stands for a GPU's.
    def attend(*arguments):
        out = _torch._Eager.apply(*arguments)
        planned.took(_torch._Eager.apply, arguments, out)
        return out

    monkeypatch.setattr(_torch, "attend", attend)

    def step(function, inputs, options):
        arguments, given = inputs()
        for tensor in arguments[:3]:
            tensor.requires_grad_()
        out = function(*arguments, **given, **options)
        forward = library.launched.pop()[1]
        results(out)[0].backward(half(*results(out)[0].shape))
        backward = library.launched.pop()[1]
        assert not library.launched and all(of.grad.shape == of.shape for of in arguments[:3])
        return forward, backward

    for function, inputs in ((flash_attn_func, dense), (flash_attn_varlen_func, varlen)):
        _again._local.calls.clear()
        first = step(function, inputs, {"causal": True})
        count = len(_again._local.calls)
        assert count >= 2
        again = step(function, inputs, {"causal": True})
        assert len(_again._local.calls) == count
        # All but addresses: words of small numbers are equal.
        for one, other in zip(first, again):
            small = [[word for word in memoryview(of).cast("Q").tolist() if word < 2**32] for of in (one, other)]
            assert small[0] == small[1]
    with torch.no_grad():
        arguments, _ = dense()
        flash_attn_func(*arguments, causal=True)
    assert len(_again._local.calls) == count + 1


def test_a_thread_keeps_a_number_of_calls(library, monkeypatch):
    monkeypatch.setattr(planned, "KEPT", 4)
    (q, k, v), _ = dense()
    for rows in range(1, 8):
        flash_attn_func(q[:, :rows], k, v)
    assert len(_again._local.calls) == 4


def test_a_graph_captures_the_stream_of_the_tensors_gpu():
    current, captures = [0], {1}

    class Guard:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            self.before, current[0] = current[0], self.index

        def __exit__(self, *_):
            current[0] = self.before

    cuda = types.SimpleNamespace(current_device=lambda: current[0], device=Guard)
    gpus = [object.__new__(_devices.Cuda) for _ in range(3)]
    for index, gpu in enumerate(gpus):
        gpu.index, gpu.torch, gpu._is_capturing = index, types.SimpleNamespace(cuda=cuda), lambda: current[0] in captures
    for current[0] in range(3):
        assert [gpu.capturing() for gpu in gpus] == [False, True, False]
