"""Times prefill with values of another width than keys beside SDPA and FlashAttention-4 on the same tensors: MLA after up-projection has keys of 192
and values of 128 columns.

    python3 widths.py --out widths.json                        # 16 and 128 heads, bf16, causal, 2048 to 16384 keys
    python3 widths.py --heads 128 --dtypes f16 bf16 --full

`padded` is FerroFlash with values padded to 192 columns, as libraries with one width must do it; its time omits the padding itself.
The L2 cache is cold. The check compares some rows of every head with float64. A ratio is the peer's time divided by FerroFlash's.
"""
import argparse
import functools
import random
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import cases
import compare
import ferroflash
from ferroflash import dense
import report

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
KEYS, VALUES = 192, 128
BACKENDS = {"sdpa_cudnn": SDPBackend.CUDNN_ATTENTION, "sdpa_flash": SDPBackend.FLASH_ATTENTION}


def attend(q, k, v, rows, causal, kind):
    """Computes attention of some rows, with every step in the type `kind`."""
    s = torch.einsum("bqhd,bkhd->bhqk", q[:, rows].to(kind), k.to(kind)) * KEYS ** -0.5
    if causal:
        s = s.masked_fill(torch.arange(k.shape[1], device=q.device)[None, :] > rows[:, None], -torch.inf)
    return torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v.to(kind))


def contenders(q, k, v, causal):
    """Returns {name: call}. Each call returns O as (batch, queries, heads, columns)."""
    wide = F.pad(v, (0, KEYS - VALUES))
    qs, ks, vs = (x.transpose(1, 2) for x in (q, k, v))
    calls = {"ferroflash": lambda: ferroflash.flash_attn_func(q, k, v, causal=causal),
             "padded": lambda: ferroflash.flash_attn_func(q, k, wide, causal=causal)}
    for name, backend in BACKENDS.items():
        def call(backend=backend):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(qs, ks, vs, is_causal=causal).transpose(1, 2)
        calls[name] = call
    if cases.fa4 is not None:
        calls["fa4"] = lambda: cases.fa4_output(q, k, v, causal=causal)
    return calls


def run(heads, keys, causal, dtype, args, rng):
    """Returns the report's rows of one shape."""
    kind = DTYPES[dtype]
    tensor = lambda columns: torch.randn(args.batch, keys, heads, columns, dtype=kind, device="cuda")
    q, k, v = tensor(KEYS), tensor(KEYS), tensor(VALUES)
    calls = contenders(q, k, v, causal)
    rows = torch.tensor([0, 1, keys // 2, keys - 1], device="cuda")
    want = attend(q, k, v, rows, causal, torch.float64)
    tolerance = 2 * (attend(q, k, v, rows, causal, kind).double() - want).abs().max().item() + 1e-5
    errors = report.judged(calls, lambda _, o: (o[:, rows, :, :VALUES].double() - want).abs().max().item())
    medians, times = report.timed(calls, args.rounds, rng, lambda call: compare.measure(call, "cold")[0])
    flops = 2 * args.batch * heads * keys * keys * (KEYS + VALUES) / (2 if causal else 1)
    label = f"{dtype} h{heads} {args.batch}x{keys} {'causal' if causal else 'full'}"
    launch, *_ = dense.prepare(q, k, v, causal=causal)
    entry = launch.describe()["entry"]
    bad = [name for name, error in errors.items() if not error <= tolerance]
    print(f"{label:28} " + "  ".join(f"{name} {t:.1f}" for name, t in medians.items())
          + f" us  {flops / medians['ferroflash'] / 1e6:.0f} TFLOP/s  {entry}" + (f"  WRONG {bad}" if bad else ""), flush=True)
    return [{"suite": f"widths{heads}", "label": label, "inputs": "normal", "dtype": dtype, "timing": "cold", "peer": name, "us": us,
             "rounds_us": times[name], "ratio": us / medians["ferroflash"], "tflops": flops / us / 1e6, "passed": name not in bad,
             "error": errors[name], "tolerance": tolerance, "entry": entry if name == "ferroflash" else None}
            for name, us in medians.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", nargs="+", type=int, default=[16, 128])
    parser.add_argument("--seqlens", nargs="+", type=int, default=[2048, 4096, 8192, 16384])
    parser.add_argument("--dtypes", nargs="+", default=["bf16"], choices=DTYPES)
    parser.add_argument("--full", action="store_true", help="without a causal mask")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="measurements begin within this time")
    parser.add_argument("--out", help="JSON file to write")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    todo = [(f"widths{heads}", f"{dtype} h{heads} {keys}", functools.partial(run, heads, keys, not args.full, dtype, args, rng))
            for dtype in args.dtypes for heads in args.heads for keys in args.seqlens]
    sys.exit(report.run(todo, args, {"device": torch.cuda.get_device_name(), "torch": torch.__version__}, torch.cuda.empty_cache))


if __name__ == "__main__":
    main()
