"""The functions on caches under torch.compile and modes, on CPU tensors of torch in the simulator. Needs torch."""
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import ferroflash
from torch.fx.experimental.proxy_tensor import make_fx

SIM = {"device": "sim"}
F16, F32, I32 = torch.float16, torch.float32, torch.int32


def numbers(seed, *shape, dtype=F16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def of(*values, dtype=I32):
    return torch.tensor(values, dtype=dtype)


CACHE, PAGES, TABLE, LENGTHS = numbers(1, 2, 32, 2, 64), numbers(2, 4, 16, 2, 64), of([3, 1], [0, 2]), of(9, 20)
Q, NEW = numbers(3, 2, 3, 4, 64), numbers(4, 2, 3, 2, 64)
EIGHT, FACTORS = torch.ones(2, 32, 2, 64, dtype=torch.int8), torch.full((2, 32, 2), 0.5)
ANGLES = [numbers(n, 40, 16, dtype=F32) for n in (5, 6)]
LATENTS, LATENT_Q = numbers(7, 4, 16, 1, 288), numbers(8, 2, 1, 4, 288)
O, LSE = numbers(9, 5, 2, 64), numbers(10, 2, 5, dtype=F32)
ALL = {"return_softmax_lse": True, "return_max_logits": True, "return_entropy": True}
kvcache, mla = ferroflash.flash_attn_with_kvcache, ferroflash.flash_mla_with_kvcache
# A function, and its arguments
CALLS = {
    "cache": (kvcache, [Q, CACHE, CACHE], {"cache_seqlens": LENGTHS, "causal": True}),
    "a number of keys": (kvcache, [Q, CACHE, CACHE], {"cache_seqlens": 7, "window_size": (4, 0), **ALL}),
    "pages": (kvcache, [Q, PAGES, PAGES], {"cache_seqlens": LENGTHS, "page_table": TABLE, "pack_gqa": True}),
    "varlen queries": (kvcache, [Q[0], PAGES, PAGES], {"cache_seqlens": LENGTHS, "block_table": TABLE, "max_seqlen_q": 2,
                                                       "cu_seqlens_q": of(0, 1, 3), "return_softmax_lse": True}),
    "append": (kvcache, [Q, CACHE, CACHE + 1, NEW, NEW], {"cache_seqlens": LENGTHS, "causal": True}),
    "append, rotary": (kvcache, [Q, CACHE, CACHE + 1, NEW, NEW, *ANGLES], {"cache_seqlens": LENGTHS, "causal": True}),
    "append to int8": (kvcache, [Q, EIGHT, EIGHT + 1, NEW, NEW], {
        "cache_seqlens": LENGTHS, "k_descale": FACTORS, "v_descale": FACTORS + 1}),
    "shared prefixes": (kvcache, [Q[:, :1], PAGES, PAGES], {
        "cache_seqlens": of(20, 25), "block_table": of([3, 1], [3, 2]), "shared_prefixes": (1, 1, of(4, 9))}),
    "varlen on pages": (ferroflash.flash_attn_varlen_func, [Q[0], PAGES, PAGES, of(0, 1, 3), of(0, 9, 29), 2, 32], {
        "block_table": TABLE, "return_lse": True, "causal": True}),
    "latents": (mla, [LATENT_Q, LATENTS, TABLE, LENGTHS, 256], {"causal": True, "return_entropy": True}),
    "lists of slots": (mla, [LATENT_Q, LATENTS, None, None, 256], {"indices": of([[3, 40]], [[2, -1]])}),
    "lists of rows": (ferroflash.flash_mla_sparse_fwd, [LATENT_Q[:, 0], LATENTS[0], of([[3, 4]], [[2, -1]]), 0.1, 256], {}),
    "merge": (ferroflash.merge_attn_states, [torch.zeros_like(O), O, LSE, O + 1, LSE + 1, torch.zeros_like(LSE)], {}),
}


def outcome(name, wrap):
    """Returns a call's results and the tensors that it was given, which it may have changed."""
    function, arguments, options = CALLS[name]
    copied = lambda t: t.clone() if isinstance(t, torch.Tensor) else t
    arguments, options = [*map(copied, arguments)], {key: copied(value) for key, value in options.items()}
    out = wrap(lambda *given: function(*given, **options, **SIM))(*arguments)
    tensors = [*(out if isinstance(out, tuple) else (out,)), *arguments, *options.values()]
    return [t for t in tensors if isinstance(t, torch.Tensor)]


def traced(call):
    return lambda *given: make_fx(call, tracing_mode="fake", _allow_non_fake_inputs=True)(*given)(*given)


def compiled(call):
    torch._dynamo.reset()
    return torch.compile(call, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("wrap", [compiled, traced])
@pytest.mark.parametrize("name", CALLS)
def test_traced_calls_equal_eager_calls(name, wrap):
    eager, found = outcome(name, lambda call: call), outcome(name, wrap)
    assert len(eager) == len(found)
    for a, b in zip(eager, found):
        assert torch.equal(a, b) and a.dtype == b.dtype


@pytest.mark.parametrize("name", CALLS)
def test_modes_see_the_operators(name):
    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(function.name())
            return function(*args, **(kwargs or {}))

    names = []
    with Seen():
        outcome(name, lambda call: call)
    ours = [n for n in names if n.startswith("ferroflash::")]
    assert len(ours) == 1 and ("append" in name) == ("append" in ours[0])


def test_modes_see_attention_without_gradients():
    q = numbers(1, 1, 16, 2, 64)
    graph = make_fx(lambda q: ferroflash.flash_attn_func(q, q, q, **SIM), tracing_mode="fake")(q)
    assert "ferroflash.attention" in graph.code


def test_an_unknown_keyword_is_refused():
    with torch._subclasses.FakeTensorMode() as mode, pytest.raises(TypeError, match="unexpected keyword argument 'sink'"):
        kvcache(*map(mode.from_tensor, (Q, CACHE, CACHE)), sink=None, **SIM)


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("merge", "varlen on pages")])
def test_gradients_of_functions_without_any_are_refused(name):
    function, (q, *arguments), options = CALLS[name]
    out = function(q.clone().requires_grad_(), *(of.clone() if isinstance(of, torch.Tensor) else of for of in arguments),
                   **options, **SIM)
    for of in [of for of in (out if isinstance(out, tuple) else (out,)) if of is not None]:
        with pytest.raises(ferroflash.Unsupported, match=f"a gradient of {function.__name__}: "):
            of.sum().backward(retain_graph=True)


def test_an_operator_without_gradients_says_so():
    q, lists = LATENT_Q[:, 0].clone().requires_grad_(), of([[3, 4]], [[2, -1]])
    o, _ = torch.ops.ferroflash.flash_mla_sparse_fwd(q, LATENTS[0], lists, 0.1, 256, None, None, 0, "sim")
    with pytest.raises(ferroflash.Unsupported, match="a gradient of flash_mla_sparse_fwd: "):
        o.sum().backward()


def test_a_merge_refuses_tensors_that_require_gradients():
    function, arguments, _ = CALLS["merge"]
    with pytest.raises(ferroflash.Unsupported, match="a gradient of merge_attn_states: "):
        function(arguments[0], O.clone().requires_grad_(), *arguments[2:], **SIM)


def test_lists_with_gaps_between_them_are_copied():
    lists = of([[3, 4]], [[2, -1]])
    gaps = torch.full((*lists.shape[:-1], 5), 1, dtype=lists.dtype)[..., :lists.shape[-1]].copy_(lists)
    whole, strided = (ferroflash.flash_mla_sparse_fwd(LATENT_Q[:, 0], LATENTS[0], each, 0.1, 256, **SIM)[0]
                      for each in (lists, gaps))
    assert not gaps.is_contiguous() and torch.equal(whole, strided)
