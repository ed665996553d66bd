"""Times prefill with values of another width than keys beside SDPA and FlashAttention-4 on the same tensors: MLA after up-projection has keys of 192
and values of 128 columns.

    python3 widths.py --out widths.json                        # 16 and 128 heads, bf16, causal, 2048 to 16384 keys
    python3 widths.py --heads 128 --dtypes f16 bf16 --full

`padded` is FerroFlash with values padded to 192 columns, as libraries with one width must do it; its time omits the padding itself.
The L2 cache is cold. The check compares some rows of every head with float64. A ratio is the peer's time divided by FerroFlash's.
"""
import functools

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
    error = lambda o: (o.double() - want).abs().max().item()
    judge = report.within(2 * error(attend(q, k, v, rows, causal, kind)) + 1e-5, lambda o: error(o[:, rows, :, :VALUES]))
    checks = report.judged(calls, judge)
    tflops = lambda us: 2 * args.batch * heads * keys * keys * (KEYS + VALUES) / (2 if causal else 1) / us / 1e6
    label = f"{dtype} h{heads} {args.batch}x{keys} {'causal' if causal else 'full'}"
    launch, *_ = dense.prepare(q, k, v, causal=causal)
    entry = launch.describe()["entry"]
    row = {"suite": f"widths{heads}", "label": label, "dtype": dtype, "timing": "cold"}
    return report.measured(row, calls, checks, args, rng, compare.measure, lambda us: f"{tflops(us):.0f} TFLOP/s  {entry}", entry,
                           lambda us: {"tflops": tflops(us)})


def main():
    parser = report.options(__doc__)
    parser.add_argument("--heads", nargs="+", type=int, default=[16, 128])
    parser.add_argument("--seqlens", nargs="+", type=int, default=[2048, 4096, 8192, 16384])
    parser.add_argument("--full", action="store_true", help="without a causal mask")
    parser.add_argument("--batch", type=int, default=1)
    args = parser.parse_args()
    report.main(lambda rng: [(f"widths{heads}", f"{dtype} h{heads} {keys}",
                              functools.partial(run, heads, keys, not args.full, dtype, args, rng))
                             for dtype in args.dtypes for heads in args.heads for keys in args.seqlens], args)


if __name__ == "__main__":
    main()
