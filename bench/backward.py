"""Times backward passes of FerroFlash and of the libraries that a user would pick instead, on the same tensors, in one process.

    python3 backward.py --out backward.json                    # the suite `backward` of `ferroflash bench`
    python3 backward.py --match D64 --dtypes f16 bf16

The library needs the feature `training`. The peers are SDPA's flash backend (FlashAttention-2) and SDPA's cuDNN backend, both also
with PyTorch's deterministic algorithms, and FlashAttention-4 if Python can import it. FerroFlash is always deterministic. Each call
computes the gradients of Q, K and V by `torch.autograd.grad`, after a flush of the L2 cache; the forward ran before. TFLOP/s count 5
products. A ratio is the peer's time divided by FerroFlash's time. The gradients of the first and the last key head are compared with
float64: the largest error is at most twice that of the naive gradients in the inputs' precision.
"""
import argparse
import functools
import json
import os
import random
import sys

import torch

import cases
import compare
import report
import training

HERE = os.path.dirname(os.path.abspath(__file__))
# In gpu-pack, the file is beside this script. In the repository, it is where `ferroflash bench` embeds it.
PACKED, EMBEDDED = os.path.join(HERE, "backward.json"), os.path.join(HERE, "..", "host", "cli", "src", "bench", "backward.json")
SHAPES = PACKED if os.path.exists(PACKED) else EMBEDDED
# Peers that can be deterministic, by the name of this form.
DETERMINISTIC = {"fa2_deterministic": "fa2", "cudnn_deterministic": "cudnn"}


def contenders(case, q, k, v, d_o, wanted):
    """Returns {name: call}. Each call returns the gradients of q, k and v. Libraries whose forward fails are left out."""
    forwards = cases.contenders(case, q, k, v, {DETERMINISTIC.get(name, name) for name in wanted})
    forwards["ferroflash"] = lambda: training.flash_attn_func(q, k, v, causal=case.causal, window_size=case.window, bhsd=True)
    outputs, calls = report.judged(forwards, lambda _, o: o), {}

    def call(name, deterministic=False):
        def run():
            torch.use_deterministic_algorithms(deterministic)
            try:
                return torch.autograd.grad(outputs[name], (q, k, v), d_o, retain_graph=True)
            finally:
                torch.use_deterministic_algorithms(False)
        return run

    for name in ("ferroflash", *wanted):
        plain = DETERMINISTIC.get(name, name)
        if plain in outputs:
            calls[name] = call(plain, name != plain)
    return calls


def gradients(case, q, k, v, d_o, head, kind):
    """Returns the gradients of a key head in the first or the last batch, with every step in the type `kind`."""
    batch, group = 0 if head == 0 else case.batch - 1, case.heads_q // case.heads_k
    queries = slice(head * group, (head + 1) * group)
    own_k, own_v = k[batch, head].to(kind), v[batch, head].to(kind)
    scale, dq, dk, dv = case.head_dim ** -0.5, [], torch.zeros_like(own_k), torch.zeros_like(own_v)
    first, last = case.bounds(torch.arange(case.seqlen_q, device=q.device))
    keys = torch.arange(case.seqlen_k, device=q.device)
    hidden = (keys < first[:, None]) | (keys >= last[:, None])
    for own_q, own_d in zip(q[batch, queries].to(kind), d_o[batch, queries].to(kind)):
        p = ((own_q @ own_k.T) * scale).masked_fill_(hidden, float("-inf")).softmax(-1).nan_to_num_(0.0)
        delta = (own_d * (p @ own_v)).sum(-1, keepdim=True)
        dv += p.T @ own_d
        ds = (own_d @ own_v.T).sub_(delta).mul_(p)
        dq.append((ds @ own_k) * scale)
        dk += (ds.T @ own_q) * scale
    return [torch.stack(dq), dk, dv], batch, queries


def check(case, q, k, v, d_o, found):
    """Returns {name: verdict} of the gradients {name: (dq, dk, dv)}."""
    worst = {name: {"passed": True, "error": 0.0, "tolerance": 0.0, "parts": 0.0} for name in found}
    for head in sorted({0, case.heads_k - 1}):
        exact, batch, queries = gradients(case, q, k, v, d_o, head, torch.float64)
        naive, _, _ = gradients(case, q, k, v, d_o, head, q.dtype)
        for at, (right, rounded) in enumerate(zip(exact, naive)):
            tolerance = 2 * (rounded.double() - right).abs().max().item() + 1e-5
            for name, of in found.items():
                error = (of[at][batch, queries if at == 0 else head].double() - right).abs().max().item()
                verdict = worst[name]
                # A NaN makes these comparisons false.
                verdict["passed"] &= error <= tolerance
                if not error / tolerance <= verdict["parts"]:
                    verdict.update(error=error, tolerance=tolerance, parts=error / tolerance)
    return worst


def run(case, args, rng):
    """Returns the report's rows of one shape."""
    q, k, v = (t.requires_grad_() for t in case.tensors())
    d_o = torch.randn_like(q)
    calls = contenders(case, q, k, v, d_o, args.peers)
    found = report.judged(calls, lambda _, of: of)
    with torch.no_grad():
        verdicts = check(case, q, k, v, d_o, found)
        again = all(torch.equal(*pair) for pair in zip(found["ferroflash"], calls["ferroflash"]()))
    verdicts["ferroflash"]["passed"] &= again
    del found
    medians, times = report.timed(calls, args.rounds, rng, lambda call: compare.measure(call, "cold")[0])
    flops, label = 2.5 * case.flops(), case.label()
    print(f"{label:48} " + "  ".join(f"{name} {flops / us / 1e6:.0f}" for name, us in medians.items()) + " TFLOP/s"
          + "".join(f"  WRONG {name}" for name, verdict in verdicts.items() if not verdict["passed"])
          + ("" if again else "  other bits"), flush=True)
    return [{"suite": "backward", "label": label, "inputs": "normal", "dtype": case.dtype, "timing": "cold", "peer": name, "us": us,
             "rounds_us": times[name], "ratio": us / medians["ferroflash"], "tflops": flops / us / 1e6, "check": verdicts[name]}
            for name, us in medians.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", default=SHAPES, help="JSON: {suite: [{\"backward\": shape}, ..]}")
    parser.add_argument("--match", help="run only shapes whose label contains this")
    parser.add_argument("--dtypes", nargs="*", choices=list(cases.DTYPES), help="instead of the shapes' dtypes")
    parser.add_argument("--layout", default="bshd", choices=["bhsd", "bshd"], help="memory layout of the tensors")
    parser.add_argument("--peers", nargs="*", default=["fa2", *DETERMINISTIC, "cudnn", "fa4"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="measurements begin within this time")
    parser.add_argument("--out", help="JSON file to write")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    # With deterministic algorithms, PyTorch fills new tensors, which would take time.
    torch.utils.deterministic.fill_uninitialized_memory = False
    # The naive gradients round once for each product.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    with open(args.suites) as file:
        shapes = [shape["backward"] for suite in json.load(file).values() for shape in suite]
    all_cases = [cases.Case({"causal": False, **shape, "dtype": dtype}, layout=args.layout)
                 for shape in shapes for dtype in args.dtypes or [shape.get("dtype", "f16")]]
    todo = [("backward", case.label(), functools.partial(run, case, args, rng)) for case in all_cases
            if not args.match or args.match in case.label()]
    rows = report.rows_of(todo, args.seconds, torch.cuda.empty_cache)
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    sys.exit(report.finish(rows, args, about))


if __name__ == "__main__":
    main()
