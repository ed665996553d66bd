"""The functions on CPU tensors of torch in the simulator: gradients, torch.compile, errors.

CI has no torch, whose wheel has gigabytes. `pip install torch` and `python3 -m pytest python/tests` run it.
"""
import re
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import ferroflash
import ferroflash._torch
from ferroflash import _devices, bert_padding, flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

SIM = {"device": "sim"}
F16, F32, F64 = torch.float16, torch.float32, torch.float64
EAGER = {"fullgraph": True, "backend": "aot_eager"}


def numbers(seed, *shape, dtype=F16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tensors(batch, rows, keys, heads, heads_k, dim, dim_v=None):
    return (numbers(1, batch, rows, heads, dim), numbers(2, batch, keys, heads_k, dim),
            numbers(3, batch, keys, heads_k, dim_v or dim))


def attend(q, k, v, sinks=None, bias=None, causal=False):
    """Returns o and the LSE (batch, heads, rows), with every step in the dtype of q."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
    rows, keys = scores.shape[2:]
    if bias is not None:
        scores = scores + bias.to(q.dtype)
    if causal:
        later = torch.arange(keys)[None, :] > torch.arange(rows)[:, None] + keys - rows
        scores = scores.masked_fill(later, -torch.inf)
    if sinks is not None:
        logits = sinks.to(q.dtype).reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, logits], 3)
    return (scores.softmax(3)[..., :keys] @ v).transpose(1, 2), scores.logsumexp(3)


def gradients(call, inputs, d_o, d_lse):
    """Returns o, and the gradients of the inputs for gradients of o and of the LSE."""
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    o, lse = call(*inputs)
    outputs = {o: d_o} if d_lse is None else {o: d_o, lse: d_lse}
    return [o.detach(), *torch.autograd.grad([*outputs], inputs, [d.to(out.dtype) for out, d in outputs.items()])]


def check(ours, exact, naive):
    for found, want, rounded in zip(ours, exact, naive):
        error, allowed = ((t.to(F64) - want).abs().max().item() for t in (found, rounded))
        # A NaN makes this comparison false.
        assert error <= 2 * allowed + 2e-3, f"{error} above 2 * {allowed}"


# [batch, rows, keys, heads, heads_k, head_dim], names of inputs beside q, k and v, causal
GRADIENTS = {
    "full": ([1, 40, 70, 2, 2, 64], [], False),
    "causal, GQA": ([2, 33, 65, 4, 2, 64], [], True),
    "sinks": ([1, 33, 40, 2, 2, 64], ["sinks"], True),
    "bias": ([1, 33, 40, 2, 2, 64], ["bias"], False),
}
# The functions' names, and the call of each
FORMS = {
    "flash_attn_func": lambda q, k, v, **o: flash_attn_func(q, k, v, **o),
    "flash_attn_func_bhsd": lambda q, k, v, **o: swapped(
        ferroflash.flash_attn_func_bhsd(*(t.transpose(1, 2) for t in (q, k, v)), **o)),
    "flash_attn_kvpacked_func": lambda q, k, v, **o: ferroflash.flash_attn_kvpacked_func(q, torch.stack([k, v], 2), **o),
    "flash_attn_varlen_func": lambda q, k, v, **o: unflattened(flash_attn_varlen_func(
        *(t.flatten(0, 1) for t in (q, k, v)), *(starts(t) for t in (q, k)), q.shape[1], k.shape[1], **o), q),
}


def swapped(out):
    return out[0].transpose(1, 2), out[1]


def starts(t):
    return torch.arange(t.shape[0] + 1, dtype=torch.int32) * t.shape[1]


def unflattened(out, q):
    return out[0].unflatten(0, q.shape[:2]), out[1].unflatten(1, q.shape[:2]).transpose(0, 1)


@pytest.mark.parametrize("with_lse", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name, form, with_lse):
    sizes, extras, causal = GRADIENTS[name]
    if "varlen" in form and "bias" in extras:
        sizes = [1, *sizes[1:]]
    inputs, (batch, rows, keys, heads) = list(tensors(*sizes)), sizes[:4]
    inputs += [{"sinks": numbers(4, heads, dtype=F32), "bias": numbers(5, 1, heads, rows, keys)}[n] for n in extras]
    d_o, d_lse = numbers(6, batch, rows, heads, sizes[5]), numbers(7, batch, heads, rows, dtype=F32) if with_lse else None

    def run(call, dtype=None, **options):
        cast = lambda t: t if dtype is None else t.to(dtype)
        return gradients(lambda q, k, v, *more: call(*map(cast, (q, k, v)), causal=causal, **options,
                                                     **dict(zip(extras, map(cast, more)))), inputs, d_o, d_lse)

    ours = run(FORMS[form], return_lse=True, **SIM)
    check(ours, run(attend, F64), run(attend))
    assert all(torch.equal(a, b) for a, b in zip(ours, run(FORMS[form], return_lse=True, **SIM)))


# Tensors, and options of flash_attn_func or flash_attn_varlen_func
OPERATORS = {
    "dense": (tensors(1, 33, 40, 2, 2, 64), {"causal": True}),
    "narrow v": (tensors(1, 33, 40, 2, 2, 128, 64), {}),
    "bhsd": ([t.transpose(1, 2) for t in tensors(1, 33, 40, 2, 2, 64)], {"bhsd": True}),
    "bias": (tensors(1, 33, 40, 2, 2, 64), {"bias": numbers(5, 1, 1, 33, 40)}),
    "varlen": ([t[0] for t in tensors(1, 33, 40, 2, 2, 64)], {
        "cu_seqlens_q": torch.tensor([0, 20, 33], dtype=torch.int32), "max_seqlen_q": 20,
        "cu_seqlens_k": torch.tensor([0, 15, 40], dtype=torch.int32), "max_seqlen_k": 25}),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_compile_equals_eager(name, grad):
    given, options = OPERATORS[name]
    function = flash_attn_varlen_func if "max_seqlen_q" in options else flash_attn_func
    call = lambda q, k, v: function(q, k, v, return_lse=True, **options, **SIM)
    answers = []
    torch._dynamo.reset()
    for run in (call, torch.compile(call, **EAGER)):
        inputs = [t.clone().requires_grad_(grad) for t in given]
        o, lse = run(*inputs)
        assert o.requires_grad == lse.requires_grad == grad
        answers.append([o, lse, *(torch.autograd.grad((o.float().sum() + lse.sum()), inputs) if grad else ())])
    for eager, compiled in zip(*answers):
        assert torch.equal(eager, compiled) and eager.stride() == compiled.stride()


def test_compile_takes_integers_for_numbers():
    torch._dynamo.reset()
    given = tensors(1, 33, 40, 2, 2, 64)
    call = lambda q, k, v: flash_attn_func(q, k, v, 0, 1, 1, [20, -1], 5, attention_chunk=0, **SIM)
    assert torch.equal(torch.compile(call, **EAGER)(*given), call(*given))


def test_compile_with_dynamic_shapes():
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v: flash_attn_func(q, k, v, causal=True, **SIM), dynamic=True, **EAGER)
    for rows in (33, 48, 70):
        given = tensors(1, rows, rows, 2, 2, 64)
        assert torch.equal(compiled(*given), flash_attn_func(*given, causal=True, **SIM))


def arguments(name):
    """Returns the operator's arguments."""
    given, of = OPERATORS[name][0], OPERATORS[name][1].get
    return [*given, of("cu_seqlens_q"), of("cu_seqlens_k"), None, None, None, of("bias"), None, None, of("max_seqlen_q", 0),
            of("max_seqlen_k", 0), None, of("causal", False), -1, -1, 0.0, None, None, 0, of("bhsd", False), None, "sim"]


@pytest.mark.parametrize("name", OPERATORS)
def test_the_operator_passes_opcheck(name):
    call = [t.clone().requires_grad_() if at < 3 else t for at, t in enumerate(arguments(name))]
    torch.library.opcheck(torch.ops.ferroflash.attention.default, call)


@pytest.mark.parametrize("name", OPERATORS)
def test_fake_kernels_have_the_layout_of_results(name):
    call, mode = arguments(name), torch._subclasses.FakeTensorMode()
    there = lambda tensors: [mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for t in tensors]
    layout = lambda tensors: [(t.shape, t.stride(), t.dtype) for t in tensors]
    o, lse = torch.ops.ferroflash.attention(*call)
    backward = [torch.ones_like(o), None, o, lse, *call, False, call[8] is not None]
    gradients = torch.ops.ferroflash.attention_backward(*backward)
    with mode:
        assert layout([o, lse]) == layout(torch.ops.ferroflash.attention(*there(call)))
        assert layout(gradients) == layout(torch.ops.ferroflash.attention_backward(*there(backward)))


def test_compiled_calls_keep_the_strides_of_eager_calls():
    for name in ("attention", "attention_backward"):
        assert torch.Tag.needs_fixed_stride_order in getattr(torch.ops.ferroflash, name).default.tags


def test_no_grad_keeps_nothing():
    given = [t.requires_grad_() for t in tensors(1, 16, 16, 2, 2, 64)]
    with torch.no_grad():
        assert not flash_attn_func(*given, **SIM).requires_grad


def test_return_attn_probs_is_flash_attentions():
    q, k, v = (t.requires_grad_() for t in tensors(1, 40, 33, 2, 2, 64))
    o, lse, probabilities = flash_attn_func(q, k, v, causal=True, return_attn_probs=True, **SIM)
    assert o.requires_grad and not lse.requires_grad and lse.isposinf().sum() == 2 * 7
    assert probabilities.shape == (0,) and probabilities.dtype == F16 and not probabilities.requires_grad


def test_strides_do_not_change_results():
    given = tensors(1, 33, 40, 2, 2, 64)
    o = flash_attn_func(*given, **SIM)
    columns = [t.transpose(1, 3).contiguous().transpose(1, 3) for t in given]
    assert columns[0].stride(-1) != 1 and torch.equal(o, flash_attn_func(*columns, **SIM))
    expanded = [given[0], *(t[:, :, :1].expand_as(t) for t in given[1:])]
    assert torch.equal(flash_attn_func(*expanded, **SIM), flash_attn_func(*map(torch.clone, expanded), **SIM))


def test_an_append_writes_the_callers_cache():
    k_cache, v_cache = torch.zeros(1, 32, 2, 64, dtype=F16), torch.zeros(1, 32, 2, 64, dtype=F16)
    q, k, v = tensors(1, 3, 3, 2, 2, 64)
    lengths = torch.tensor([5], dtype=torch.int32)
    o = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True, **SIM)
    assert torch.equal(k_cache[:, 5:8], k) and torch.equal(v_cache[:, 5:8], v) and not k_cache[:, 8:].any()
    exact, naive = (attend(*(t.to(dtype) for t in (q, k_cache[:, :8], v_cache[:, :8])), causal=True)[:1]
                    for dtype in (F64, F16))
    check([o], exact, naive)


def test_padding():
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]])
    x = numbers(1, 2, 4, 3, 8, dtype=F32).requires_grad_()
    tokens, indices, ends, longest, used = bert_padding.unpad_input(x, mask)
    assert ends.tolist() == [0, 2, 5] and ends.dtype == used.dtype == torch.int32
    assert longest == 3 and used.tolist() == [2, 3] and indices.tolist() == [0, 1, 4, 5, 6]
    back = bert_padding.pad_input(tokens, indices, 2, 4)
    assert torch.equal(back, x * mask[:, :, None, None])
    back.sum().backward()
    assert torch.equal(x.grad, mask[:, :, None, None].expand_as(x).float())
    assert torch.equal(bert_padding.unpad_input(x, mask, 1 - mask)[0], x.flatten(0, 1))


def test_padding_of_concatenated_sequences():
    lengths, x = torch.tensor([[2, 3, 0, 0, 0, 0], [3, 2, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]]), numbers(1, 3, 6, 8)
    tokens, indices, ends, longest = bert_padding.unpad_input_for_concatenated_sequences(x, lengths)
    assert ends.tolist() == [0, 2, 5, 8, 10, 16] and ends.dtype == torch.int32 and longest == 6
    assert indices.tolist() == [*range(5), *range(6, 11), *range(12, 18)]
    assert torch.equal(tokens, x.flatten(0, 1)[indices])


def test_a_residual_gets_both_gradients():
    x, indices = numbers(1, 4, 8, dtype=F32).requires_grad_(), torch.tensor([1, 3])
    rows, residual = bert_padding.index_first_axis_residual(x, indices)
    (rows.sum() + 2 * residual.sum()).backward()
    assert x.grad[:, 0].tolist() == [2, 3, 2, 3]


def changed(q, k, v):
    o = flash_attn_func(q, k, v, **SIM)
    with torch.no_grad():
        k.zero_()
    o.sum().backward()


def twice(q, k, v):
    (first,) = torch.autograd.grad(flash_attn_func(q, k, v, **SIM).sum(), q, create_graph=True)
    first.sum().backward()


def forward_of_gradient(q, k, v):
    o = flash_attn_func(q, k, v, **SIM)
    with torch.autograd.forward_ad.dual_level():
        o.backward(torch.autograd.forward_ad.make_dual(torch.ones_like(o), torch.ones_like(o)))


# What the error must say, its class, the call on q, k and v that require gradients
REFUSED = {
    "device=\"sim\"": (TypeError, lambda q, k, v: flash_attn_func(q.detach(), k.detach(), v.detach())),
    "q is on cpu": (TypeError, lambda q, k, v: flash_attn_func(q, k, v)),
    "call v_cache.cpu()": (ValueError, lambda q, k, v: flash_attn_with_kvcache(q, k, v.to("meta"), **SIM)),
    "call k.cpu()": (ValueError, lambda q, k, v: flash_attn_func(q, k.to("meta"), v, **SIM)),
    "call bias.cpu()": (ValueError, lambda q, k, v: flash_attn_func(q, k, v, bias=q[:, :, :, :16].to("meta"), **SIM)),
    "call cu_seqlens_k.cpu()": (ValueError, lambda q, k, v: flash_attn_varlen_func(
        q[0], k[0], v[0], starts(q), starts(q).to("meta"), 16, 16, **SIM)),
    "v is on meta; it must be on cpu, as q": (ValueError, lambda q, k, v: flash_attn_func(q, k, v.to("meta"))),
    "cu_seqlens_q is float32; it must be a tensor of int32": (TypeError, lambda q, k, v: flash_attn_varlen_func(
        q[0], k[0], v[0], starts(q).float(), starts(q), 16, 16, **SIM)),
    "seqused_k is {}": (TypeError, lambda q, k, v: flash_attn_varlen_func(
        q[0], k[0], v[0], starts(q), starts(q), 16, 16, seqused_k={}, **SIM)),
    "k has the layout torch.sparse_coo": (TypeError, lambda q, k, v: flash_attn_func(
        q.detach(), k.detach().to_sparse(), v.detach(), **SIM)),
    "indices from 0 to 9: they must be below 8, batch 2 * seqlen 4": (ValueError, lambda q, k, v: bert_padding.pad_input(
        q[0, :2], torch.tensor([0, 9]), 2, 4)),
    "hidden_states (16, 2, 64): it must be (tokens, ..), here (2, ..)": (
        ValueError, lambda q, k, v: bert_padding.pad_input(q[0], torch.tensor([0, 9]), 2, 4)),
    "attention_mask (2, 3): it must be (batch, seqlen)": (
        ValueError, lambda q, k, v: bert_padding.unpad_input(q, torch.ones(2, 3))),
    "hidden_states is 3; it must be a tensor of torch": (TypeError, lambda q, k, v: bert_padding.unpad_input(3, q)),
    "max_seqlen_q 15": (ValueError, lambda q, k, v: flash_attn_varlen_func(
        q[0], k[0], v[0], starts(q), starts(q), 15, 16, **SIM)),
    "q has the layout torch.sparse_coo": (TypeError, lambda q, k, v: flash_attn_with_kvcache(
        q.detach().to_sparse(), k.detach(), v.detach(), **SIM)),
    "q is float32": (TypeError, lambda q, k, v: flash_attn_func(q.float(), k.float(), v.float(), **SIM)),
    "k is bfloat16; it must be float16": (TypeError, lambda q, k, v: flash_attn_func(q, k.bfloat16(), v, **SIM)),
    "q is float64": (TypeError, lambda q, k, v: flash_attn_func(q.double(), k, v, **SIM)),
    "k (1, 16, 2, 32)": (ValueError, lambda q, k, v: flash_attn_func(q, k[..., :32], v, **SIM)),
    "sinks is float16": (TypeError, lambda q, k, v: flash_attn_func(q, k, v, sinks=torch.zeros(2, dtype=F16), **SIM)),
    "alibi_slopes.detach()": (NotImplementedError, lambda q, k, v: flash_attn_func(
        q, k, v, alibi_slopes=torch.ones(2, requires_grad=True), **SIM)),
    "return_max_logits with gradients": (NotImplementedError, lambda q, k, v: flash_attn_func(
        q, k, v, return_max_logits=True, **SIM)),
    "block_table with q, k or v that require": (NotImplementedError, lambda q, k, v: flash_attn_varlen_func(
        q[0], k, v, starts(q), starts(q), 16, 16, block_table=torch.zeros(1, 1, dtype=torch.int32), **SIM)),
    "a second derivative": (NotImplementedError, twice),
    "a forward-mode derivative of attention": (NotImplementedError, lambda q, k, v: torch.func.jvp(
        lambda q: flash_attn_func(q, k, v, **SIM), (q.detach(),), (q.detach(),))),
    "a forward-mode derivative of flash_attn_with_kvcache": (NotImplementedError, lambda q, k, v: torch.func.jvp(
        lambda v: flash_attn_with_kvcache(q.detach(), k.detach(), v, **SIM), (v.detach(),), (v.detach(),))),
    "a forward-mode derivative of a gradient": (NotImplementedError, forward_of_gradient),
    "torch.func.grad or torch.func.vjp of attention": (NotImplementedError, lambda q, k, v: torch.func.grad(
        lambda q: flash_attn_func(q, k.detach(), v.detach(), **SIM).float().sum())(q.detach())),
    "k is a nested tensor": (TypeError, lambda q, k, v: flash_attn_func(
        q, torch.nested.nested_tensor([k[0].float()]).half(), v, **SIM)),
    "modified by an inplace operation": (RuntimeError, changed),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refusals(words):
    kind, call = REFUSED[words]
    with pytest.raises(kind, match=re.escape(words)):
        call(*(t.requires_grad_() for t in tensors(1, 16, 16, 2, 2, 64)))


@pytest.mark.parametrize("change, words", [
    ({"d_o": lambda of: of.float()}, "d_o is float32; it must be float16 (as o)"),
    ({"d_o": lambda of: of[:, :3]}, "d_o (1, 3, 2, 64): it must be (1, 16, 2, 64), the shape of o"),
    ({"d_o": lambda of: of[0]}, "d_o (16, 2, 64): it must be (1, 16, 2, 64), the shape of o"),
    ({"d_lse": lambda of: of.half()}, "d_lse is float16; it must be float32 (as lse)"),
    ({"d_lse": lambda of: of[..., :3]}, "d_lse (1, 2, 3): it must be (1, 2, 16), the shape of lse"),
])
def test_the_operator_of_gradients_refuses_others_than_those_of_its_results(change, words):
    q, k, v = tensors(1, 16, 16, 2, 2, 64)
    others = (*[None] * 8, 0, 0, None, False, -1, -1, 0.0, None, None, 0, False, None, "sim")
    o, lse = torch.ops.ferroflash.attention(q, k, v, *others)
    d_o, d_lse = (change.get(name, lambda of: of)(of) for name, of in (("d_o", o), ("d_lse", lse)))
    torch.ops.ferroflash.attention_backward(o, lse, o, lse, q, k, v, *others, False, False)
    with pytest.raises(ferroflash.Error, match=re.escape(words)):
        torch.ops.ferroflash.attention_backward(d_o, d_lse, o, lse, q, k, v, *others, False, False)


def test_slots_of_new_keys():
    on = types.SimpleNamespace(torch=torch, arange=torch.arange)
    starts, page = torch.tensor([0, 3, 4, 7, 15, 16, -1, -9, 2**31 - 1], dtype=torch.int32), 4
    table = torch.randint(0, 1000, (len(starts), 4), dtype=torch.int32)
    rows = torch.randint(0, 1000, (len(starts),), dtype=torch.int32)
    for new in (1, 3):
        for block_table, columns in ((table, 4), (None, 1)):
            at, slots = _devices.Cuda.slots(on, starts, new, page, block_table, rows)
            assert at.tolist() == [start + i for start in starts.tolist() for i in range(new)]
            number = lambda b, column: rows[b] if block_table is None else table[b, column]
            assert slots.tolist() == [
                int(number(b, n // page)) * page + n % page if 0 <= n < columns * page else -1
                for b, start in enumerate(starts.tolist()) for n in range(start, start + new)]
