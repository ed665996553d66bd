"""Times backward passes with windows, scores, sinks and other masks of FerroFlash beside flex_attention's (torch.compile, Triton).

    python3 backward_variants.py --out backward-variants.json  # bf16, head dims 64 and 128, 4096 keys
    python3 backward_variants.py --only window softcap --seqlens 8192 --dtypes f16 bf16
    python3 backward_variants.py --whole                       # the forward and the backward pass of one call

The variants and flex_attention's calls are those of variants.py; `window` sees 1024 keys. flex_attention's masks and functions are a
user's. Block masks are made before. With sinks, each call computes their gradient, too. A bias gets no gradient. Add
`fa4` to --peers for FlashAttention-4, which takes windows, softcap and sinks. The options and the timer are those of backward.py. The
check runs autograd in float64 on flex_attention's functions, for the first and the last key head, and for all sinks.
"""
import itertools

import torch
import torch._functorch.config

import cases
import gradients
import ferroflash
import variants

# FlashAttention-4's names of arguments.
FA4 = {"causal": "causal", "window_size": "window_size", "softcap": "softcap", "sinks": "learnable_sink"}
# Backward passes run again on one graph, so none may overwrite the forward's tensors.
torch._functorch.config.donated_buffer = False


def window():
    return variants.Variant("window", dict(causal=True, window_size=(1023, 0)), mask=lambda b, h, q, k: (q >= k) & (q - k < 1024))


def forwards(v, q, k, values):
    """Returns {name: call}. Each call returns O as (batch, heads, seqlen, head_dim)."""
    calls = variants.contenders(v, q, k, values, False)
    calls["ferroflash"] = lambda: ferroflash.flash_attn_func(q, k, values, bhsd=True, **v.args)
    if v.documents is not None:
        calls["ferroflash"] = variants.packed(v, q, k, values, ferroflash.flash_attn_varlen_func)
    elif cases.fa4 is not None and v.args.keys() <= FA4.keys():
        rows = [t.transpose(1, 2) for t in (q, k, values)]
        options = {FA4[name]: of for name, of in v.args.items()}
        calls["fa4"] = lambda: cases.fa4_output(*rows, **options).transpose(1, 2)
        calls["fa4_deterministic"] = lambda: cases.fa4_output(*rows, **options, deterministic=True).transpose(1, 2)
    return calls


def references(v, q, k, values, d_o):
    """Yields what gradients.check reads: the first key head of the first batch, the last of the last, and all sinks."""
    (batches, heads, n, _), group = q.shape, q.shape[1] // k.shape[1]
    rows = torch.arange(n, device=q.device)

    def of(kind, batch, head, inputs):
        """Returns the gradients of `inputs` by one query head, with every step in the type `kind`."""
        own = [t[batch:batch + 1].detach().to(kind).requires_grad_() for t in (q, k, values)]
        o = variants.attend(v, *own, 0, head, rows, kind)
        return torch.autograd.grad(o, own if inputs is None else inputs, d_o[batch, head].to(kind))

    for batch, head in sorted({(0, 0), (batches - 1, heads // group - 1)}):
        queries = range(head * group, (head + 1) * group)

        def summed(kind):
            found = [of(kind, batch, at, None) for at in queries]
            dq = torch.stack([dq[0, at] for at, (dq, _, _) in zip(queries, found)])
            return dq, sum(dk[0, head] for _, dk, _ in found), sum(dv[0, head] for _, _, dv in found)
        yield (*map(summed, (torch.float64, q.dtype)),
               lambda found: (found[0][batch, queries[0]:queries[-1] + 1], found[1][batch, head], found[2][batch, head]))
    if v.sinks is not None:
        total = lambda kind: sum(of(kind, *at, v.sinks)[0].double() for at in itertools.product(range(batches), range(heads)))
        yield (total(torch.float64),), (total(q.dtype),), lambda found: found[3:]


def run(make, keys, dim, dtype, args, rng):
    """Returns the report's rows of one variant on one shape."""
    v = make()
    heads, kv_heads = v.heads
    make = lambda heads: torch.randn(args.batch, keys, heads, dim, dtype=cases.DTYPES[dtype], device="cuda").transpose(1, 2)
    q, k, values = (make(heads).requires_grad_() for heads in (heads, kv_heads, kv_heads))
    d_o, inputs = make(heads), (q, k, values) if v.sinks is None else (q, k, values, v.sinks.requires_grad_())
    calls = gradients.calls(forwards(v, q, k, values), inputs, d_o, args)
    label = f"{v.name} {dtype} b{args.batch} h{heads}/{kv_heads} s{keys} d{dim}"
    return gradients.measured(calls, v.name, label, dtype, references(v, q, k, values, d_o), None, args, rng)


def main():
    parser = gradients.options(__doc__, ["flex", *variants.BACKENDS])
    parser.add_argument("--only", nargs="+", help="names of variants", default=[
        "window", "softcap", "sinks", "sinks_window", "alibi", "documents", "prefix", "chunked", "bias"])
    parser.add_argument("--dims", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--seqlens", nargs="+", type=int, default=[4096])
    parser.add_argument("--batch", type=int, default=4)
    args = parser.parse_args()
    todo = []
    for name, dtype, keys, dim in itertools.product(args.only, args.dtypes or ["bf16"], args.seqlens, args.dims):
        def work(rng, name=name, of=(keys, dim, dtype)):
            makes = {"window": window, **variants.variants(args.batch, 16, of[0], of[1], cases.DTYPES[of[2]], "cuda")}
            return run(makes[name], *of, args, rng)
        todo.append((name, f"{name} {dtype} {keys} {dim}", work))
    gradients.run(todo, args)


if __name__ == "__main__":
    main()
