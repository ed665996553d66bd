"""Times attention with products of eight bits beside FlashAttention-3 and cuDNN on the same e4m3 tensors, and beside 16 bits.

    python3 eight_bits.py --out eight-bits-peers.json            # 16k tokens: D = 128 full and causal, D = 64, 256, windows of 1024
    python3 eight_bits.py --only bias --out eight-bits-bias.json # the bias of equal scores, 2k to 64k keys

`ferroflash` has e4m3 tensors with FlashAttention-3's descales, as fa3 and cudnn_fp8 have; `quantised` has bf16 tensors and precision
"fp8", so its time includes the quantiser; `bf16` is FerroFlash without eight bits. cuDNN writes O in e4m3 on Hopper. The L2 cache is cold.
Results are compared with float64 of the tensors that a call has. `bias` is the mean of (o - want) / want for equal scores and
positive values: one level of e4m3 sums loses a part of each addend that is small beside the sum. FlashAttention-3 runs if Python finds
`flash_attn_interface`, cuDNN if it finds `cudnn`.
"""
import functools

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import compare
from ferroflash import dense
import report

E4M3, LARGEST = torch.float8_e4m3fn, 448.0
FULL = (-1, -1)
# batch, keys, heads, head dim, causal, window
SHAPES = {
    "full": [(batch, 16384 // batch, 16, 128, False, FULL) for batch in (8, 4, 2, 1)],
    "causal": [(batch, 16384 // batch, 16, 128, True, FULL) for batch in (8, 4, 2, 1)],
    "D64": [(batch, 16384 // batch, 32, 64, causal, FULL) for causal in (False, True) for batch in (4, 1)],
    "D256": [(batch, 16384 // batch, 8, 256, causal, FULL) for causal in (False, True) for batch in (4, 1)],
    "window": [(2, 8192, 16, 128, False, (1023, 0)), (2, 8192, 32, 64, False, (1023, 0))],
}
# A call is wrong if the sum of its errors exceeds this part of the sum of its results.
TOLERANCE = 0.06


def quantised(x):
    """Returns x in e4m3, and the factor of the whole tensor."""
    factor = x.float().abs().max() / LARGEST
    return (x.float() / factor).to(E4M3), factor


def planned(q, k, v, **options):
    """Returns a call of FerroFlash whose plan is made before, so that the host is as fast as the other libraries' bindings."""
    launch, o, _ = dense.prepare(q, k, v, **options)

    def call():
        launch.enqueue()
        return o
    return call


def cudnn_fp8(q, k, v, factors, causal, window):
    """Returns a call of cuDNN on (batch, seqlen, heads, head_dim) in e4m3. O is e4m3, times the factor that the result has."""
    import cudnn
    if window != FULL:
        raise ValueError("causal masks only")
    graph_of = cudnn.data_type
    graph = cudnn.pygraph(io_data_type=graph_of.FP8_E4M3, intermediate_data_type=graph_of.FLOAT, compute_data_type=graph_of.FLOAT)
    tensors = [graph.tensor(name=name, dim=list(x.transpose(1, 2).shape), stride=list(x.transpose(1, 2).stride()),
                            data_type=graph_of.FP8_E4M3) for name, x in zip("qkv", (q, k, v))]
    names = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
    scales = [graph.tensor(name=name, dim=[1] * 4, stride=[1] * 4, data_type=graph_of.FLOAT) for name in names]
    # Weights of a softmax are at most 1, and results at most the largest value.
    numbers = [*map(float, factors), 1 / LARGEST, LARGEST, 1 / float(factors[2])]
    o, _, *largest = graph.sdpa_fp8(q=tensors[0], k=tensors[1], v=tensors[2], **dict(zip(names, scales)), generate_stats=False,
                                    attn_scale=q.shape[-1] ** -0.5, use_causal_mask=causal, name="sdpa")
    out = torch.empty(q.shape, dtype=E4M3, device="cuda").transpose(1, 2)
    o.set_output(True).set_dim(list(out.shape)).set_stride(list(out.stride())).set_data_type(graph_of.FP8_E4M3)
    for each in largest:
        each.set_output(True).set_dim([1] * 4).set_stride([1] * 4).set_data_type(graph_of.FLOAT)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(graph.get_workspace_size(), dtype=torch.uint8, device="cuda")
    number = lambda x=0.0: torch.full((1, 1, 1, 1), x, dtype=torch.float32, device="cuda")
    pack = {**dict(zip(tensors, (x.transpose(1, 2) for x in (q, k, v)))), **dict(zip(scales, map(number, numbers))), o: out,
            **{each: number() for each in largest}}
    handle = cudnn.create_handle()

    def call():
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(pack, workspace, handle=handle)
        return out.transpose(1, 2)

    call.factor = float(factors[2])
    return call


def fa3(q, k, v, causal, window, **descales):
    """Returns a call of FlashAttention-3."""
    import flash_attn_interface

    def call():
        out = flash_attn_interface.flash_attn_func(q, k, v, causal=causal, window_size=window, **descales)
        return out[0] if isinstance(out, tuple) else out
    return call


def sdpa(q, k, v, causal, window):
    if window != FULL:
        raise ValueError("causal masks only")

    def call():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal).transpose(1, 2)
    return call


def contenders(q, k, v, causal, window=FULL):
    """Returns {name: call}, and {name: the tensors that this call has, in float32}. Calls return (batch, queries, heads, head_dim)."""
    eights = [quantised(x) for x in (q, k, v)]
    e, factors = [x for x, _ in eights], [factor for _, factor in eights]
    of_head = [torch.full((q.shape[0], x.shape[2]), float(factor), device="cuda") for x, factor in eights]
    descales = dict(zip(("q_descale", "k_descale", "v_descale"), of_head))
    eight = [x.float() * factor for x, factor in eights]
    calls, tensors, masked = {}, {}, {"causal": causal, "window_size": window}

    def add(name, make, of):
        try:
            calls[name], tensors[name] = make(), of
        except Exception as reason:
            print(f"{name} is not available: {repr(reason)[:200]}")
    add("ferroflash", lambda: planned(*e, **masked, **descales), eight)
    add("quantised", lambda: planned(q, k, v, **masked, precision="fp8"), (q, k, v))
    add("bf16", lambda: planned(q, k, v, **masked), (q, k, v))
    add("fa3_fp8", lambda: fa3(*e, causal, window, **descales), eight)
    add("fa3_bf16", lambda: fa3(q, k, v, causal, window), (q, k, v))
    add("cudnn_fp8", lambda: cudnn_fp8(*e, factors, causal, window), eight)
    add("cudnn_bf16", lambda: sdpa(q, k, v, causal, window), (q, k, v))
    return calls, tensors


def result(call, o, rows):
    return o[:, rows].float().double() * getattr(call, "factor", 1.0)


def exact(q, k, v, rows, causal, window=FULL):
    """Computes float64 attention of some rows of every head."""
    keys, last = torch.arange(k.shape[1], device="cuda")[None, :], rows[:, None]
    out = torch.empty(q.shape[0], len(rows), *q.shape[2:], dtype=torch.float64, device="cuda")
    for b in range(q.shape[0]):
        s = torch.einsum("qhd,khd->hqk", q[b, rows].double(), k[b].double()) * q.shape[-1] ** -0.5
        if causal or window != FULL:
            s = s.masked_fill((keys > last) | (keys < last - (window[0] if window != FULL else k.shape[1])), -torch.inf)
        out[b] = torch.einsum("hqk,khd->qhd", s.softmax(-1), v[b].double())
    return out


def speed(suite, label, batch, keys, heads, width, causal, window, args, rng):
    """Returns the report's rows of one shape."""
    q, k, v = (torch.randn(batch, keys, heads, width, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    calls, tensors = contenders(q, k, v, causal, window)
    rows = torch.tensor([0, 1, keys // 2, keys - 1], device="cuda")

    def judge(name, o):
        want = exact(*tensors[name], rows, causal, window)
        found = ((result(calls[name], o, rows) - want).abs().sum() / want.abs().sum()).item()
        return {"error": found, "tolerance": TOLERANCE, "passed": found <= TOLERANCE}
    checks = report.judged(calls, judge, ("ferroflash", "quantised", "bf16"))
    seen = keys * keys / (2 if causal else 1) if window == FULL else keys * (window[0] + 1)
    tflops = lambda us: 4 * batch * heads * seen * width / us / 1e6
    row = {"suite": suite, "label": label, "dtype": "e4m3", "timing": "cold"}
    show = lambda us: f"{us:.1f} us {tflops(us):.0f}"
    found = report.measured(row, calls, checks, args, rng, compare.measure, lambda us: f"{tflops(us):.0f} TFLOP/s", None,
                            lambda us: {"tflops": tflops(us)}, show)
    print("     errors " + "  ".join(f"{name} {check['error']:.4f}" for name, check in checks.items()), flush=True)
    for name in ("ferroflash", "quantised"):
        parts(name, calls[name], 3 * q.numel() * 3)
    return found


def parts(name, call, size):
    """Prints the time of each kernel of a call, and the time to move the bytes of quantising once."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        for _ in range(10):
            call()
        torch.cuda.synchronize()
    times = {e.key: e.device_time_total / 10 for e in found.key_averages() if e.device_time_total > 0 and "_" in e.key}
    own = ("fp8", "quantise", "lay")
    print(f"     {name}: bytes {size / report.bandwidth() / 1e6:.1f} us  "
          + "  ".join(f"{kernel} {us:.1f}" for kernel, us in times.items() if any(word in kernel for word in own)), flush=True)


def bias(keys, args, rng):
    """Returns the bias of each call for equal scores, with D = 128."""
    q = torch.zeros(1, 128, 4, 128, dtype=torch.bfloat16, device="cuda")
    k = torch.randn(1, keys, 4, 128, dtype=torch.bfloat16, device="cuda")
    q[..., 0] = 1e-3
    v = (torch.randn(1, keys, 4, 128, device="cuda").abs() + 0.2).bfloat16()
    calls, tensors = contenders(q, k, v, False)
    rows, found = torch.arange(128, device="cuda"), []
    for name, call in calls.items():
        try:
            want = exact(*tensors[name], rows, False)
            part = ((result(call, call(), rows) - want) / want).mean().item()
        except Exception as reason:
            print(f"{name}: {repr(reason)[:140]}")
            continue
        found.append({"suite": "bias", "label": f"{keys}", "peer": name, "bias": part, "passed": abs(part) <= 1e-3})
    print(f"bias {keys}: " + "  ".join(f"{row['peer']} {100 * row['bias']:+.3f} %" for row in found), flush=True)
    return found


def main():
    parser = report.options(__doc__)
    parser.add_argument("--only", nargs="+", default=[*SHAPES, "bias"], choices=[*SHAPES, "bias"])
    args = parser.parse_args()
    name = lambda batch, keys, width, causal: f"{batch}x{keys} D{width}{' causal' if causal else ''}"
    speeds = [(suite, name(batch, keys, width, causal), batch, keys, heads, width, causal, window)
              for suite in SHAPES if suite in args.only for batch, keys, heads, width, causal, window in SHAPES[suite]]
    report.main(lambda rng: [(suite, label, functools.partial(speed, suite, label, *shape, args, rng)) for suite, label, *shape in speeds]
                + [("bias", f"{keys}", functools.partial(bias, keys, args, rng))
                   for keys in (2048, 8192, 16384, 65536) if "bias" in args.only], args)


if __name__ == "__main__":
    main()
