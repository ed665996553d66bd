"""Shapes as tensors, the calls of each contender on them, and the float64 check of results."""
import math
import re
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import ferroflash

try:
    from flash_attn.cute.interface import flash_attn_func as fa4
except Exception as reason:  # flash_attn is not installed, or its compiler is missing
    fa4 = None
    print("fa4 is absent:", repr(reason)[:160], file=sys.stderr)

try:
    from flash_attn_interface import flash_attn_func as fa3
except Exception as reason:  # FlashAttention-3 is not installed
    fa3 = None
    print("fa3 is absent:", repr(reason)[:160], file=sys.stderr)

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
# The factor by which the normal numbers in keys are multiplied, by kind of inputs.
INPUTS = {
    "normal": lambda keys: torch.ones(keys),
    "x4": lambda keys: torch.full((keys,), 4.0),
    "ramp": lambda keys: torch.linspace(1.0, 30.0, keys),
}


def fa4_output(q, k, v, **options):
    """Calls FlashAttention-4 on (batch, seqlen, heads, head_dim), and returns O alone: some versions return the LSE, too."""
    out = fa4(q, k, v, **options)
    return out[0] if isinstance(out, tuple) else out


def fa4_call(case, q, k, v, **options):
    """Returns a call of FlashAttention-4, which takes contiguous tensors (batch, seqlen, heads, head_dim)."""
    qc, kc, vc = (t.transpose(1, 2).contiguous() for t in (q, k, v))
    window = tuple(side if side >= 0 else None for side in case.window)
    return lambda: fa4_output(qc, kc, vc, causal=case.causal, window_size=window, **options).transpose(1, 2)


def fa3_call(case, q, k, v):
    """Returns a call of FlashAttention-3, which takes contiguous tensors (batch, seqlen, heads, head_dim)."""
    rows = [t.transpose(1, 2).contiguous() for t in (q, k, v)]

    def call():
        out = fa3(*rows, causal=case.causal, window_size=case.window)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)
    return call


class Case:
    """One shape with one dtype and one kind of input. Tensors are (batch, heads, seqlen, head_dim) views of either memory layout."""

    def __init__(self, shape, dtype="f16", inputs="normal", layout="bhsd"):
        self.shape, self.inputs, self.layout = shape, inputs, layout
        self.dtype = shape.get("dtype", dtype)
        self.causal, self.window = shape["causal"], tuple(shape.get("window", (-1, -1)))
        self.config = shape.get("config")
        for name in ("batch", "heads_q", "heads_k", "seqlen_q", "seqlen_k", "head_dim"):
            setattr(self, name, shape[name])
        self.head_dim_v = shape.get("head_dim_v", self.head_dim)

    def label(self):
        heads = self.heads_q if self.heads_q == self.heads_k else f"{self.heads_q}/{self.heads_k}"
        rows = self.seqlen_q if self.seqlen_q == self.seqlen_k else f"{self.seqlen_q}/{self.seqlen_k}"
        columns = self.head_dim if self.head_dim == self.head_dim_v else f"{self.head_dim}/{self.head_dim_v}"
        mask = "causal" if self.causal else f"window {self.window[0]},{self.window[1]}" if self.window != (-1, -1) else "full"
        rest = [self.dtype] + [word for word in (self.inputs, self.layout) if word not in ("normal", "bhsd")]
        rest += ["packed"] if self.shape.get("packed") else []
        rest += [self.config] if self.config else []
        return f"B{self.batch} H{heads} S{rows} D{columns} {mask} {' '.join(rest)}"

    def bounds(self, rows):
        """Returns the first key that each of these queries sees, and one past the last key."""
        position = rows + (self.seqlen_k - self.seqlen_q)
        left, right = self.window
        first = position - left if left >= 0 else torch.zeros_like(position)
        right = 0 if self.causal else right
        last = position + right + 1 if right >= 0 else torch.full_like(position, self.seqlen_k)
        return first.clamp(min=0), last.clamp(max=self.seqlen_k)

    def flops(self):
        """Returns the operations: 2 per query, visible key and column of K and V. By convention, a causal square counts as half of the full square."""
        if self.causal and self.seqlen_q == self.seqlen_k:
            pairs = self.seqlen_q * self.seqlen_k / 2
        else:
            first, last = self.bounds(torch.arange(self.seqlen_q))
            pairs = int((last - first).clamp(min=0).sum())
        return 2 * self.batch * self.heads_q * pairs * (self.head_dim + self.head_dim_v)

    def backward_flops(self):
        """Returns the operations of a backward pass: three products of K's columns and two of V's."""
        return self.flops() * (3 * self.head_dim + 2 * self.head_dim_v) / (self.head_dim + self.head_dim_v)

    def least_bytes(self):
        rows = self.heads_q * self.seqlen_q + self.heads_k * self.seqlen_k
        return 2 * self.batch * rows * (self.head_dim + self.head_dim_v)

    def normal(self, heads, rows, columns):
        """Returns normal numbers as (batch, heads, rows, columns), in the memory layout."""
        make = lambda *sizes: torch.randn(self.batch, *sizes, columns, device="cuda", dtype=DTYPES[self.dtype])
        return make(rows, heads).transpose(1, 2) if self.layout == "bshd" else make(heads, rows)

    def tensors(self):
        dtype = DTYPES[self.dtype]
        if self.shape.get("packed"):
            qkv = torch.randn(self.batch, self.seqlen_q, 3, self.heads_q, self.head_dim, device="cuda", dtype=dtype)
            q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
        else:
            q = self.normal(self.heads_q, self.seqlen_q, self.head_dim)
            k, v = (self.normal(self.heads_k, self.seqlen_k, columns) for columns in (self.head_dim, self.head_dim_v))
        k.mul_(INPUTS[self.inputs](self.seqlen_k).to(k.device, dtype)[:, None])
        return q, k, v


def entry_shapes(base=None):
    """Returns one shape per kernel for sequences of equal lengths. With `base`, only kernels that `base` also has count."""
    theirs = base.entries() if base else ferroflash.entries()
    shapes = []
    for name in ferroflash.entries():
        found = re.match(r"(?:fwd|hopper)_(f16|bf16)_d(\d+)_(full|causal|local)_", name)
        if found and name in theirs and not name.endswith("_packed"):
            dtype, head_dim, mask = found.groups()
            shape = {"batch": 4, "heads_q": 8, "heads_k": 8, "seqlen_q": 2048, "seqlen_k": 2048,
                     "head_dim": int(head_dim), "causal": mask == "causal", "dtype": dtype, "config": name}
            shapes.append({**shape, "window": (512, 0)} if mask == "local" else shape)
    return shapes


def contenders(case, q, k, v, wanted, lse=True, base=None):
    """Returns {name: call}. Each call returns O as (batch, heads, seqlen, head_dim).

    FlashAttention-2 always writes an LSE, so FerroFlash writes one too. `base` is the module of another FerroFlash."""

    def of(front):
        def call():
            out = front.flash_attn_func_bhsd(
                q, k, v, causal=case.causal, window_size=case.window, return_lse=lse, config=case.config)
            return out[0] if lse else out
        return call

    def sdpa(backend):
        def call():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=case.heads_q != case.heads_k)
        return call

    qt, kt, vt = (t.transpose(1, 2) for t in (q, k, v))
    left, right = (side if side >= 0 else None for side in case.window)

    def fa2_kernel():
        # The function that SDPA calls. SDPA itself cannot pass windows and the bottom-right causal mask to it.
        out = torch.ops.aten._flash_attention_forward(
            qt, kt, vt, None, None, case.seqlen_q, case.seqlen_k, 0.0, case.causal, False,
            window_size_left=left, window_size_right=right)
        return out[0].transpose(1, 2)

    square = case.seqlen_q == case.seqlen_k
    plain = case.window == (-1, -1) and (square or not case.causal)
    calls = {"ferroflash": of(ferroflash), "fa2": sdpa(SDPBackend.FLASH_ATTENTION) if plain else fa2_kernel}
    if plain:
        calls["cudnn"] = sdpa(SDPBackend.CUDNN_ATTENTION)
    elif square:
        # This is the full causal triangle, which a user pays for whose library has no windows.
        def full_causal():
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=case.heads_q != case.heads_k)
        calls["fa2_causal"] = full_causal
    if fa4 is not None:
        calls["fa4"] = fa4_call(case, q, k, v)
    if fa3 is not None:
        calls["fa3"] = fa3_call(case, q, k, v)
    calls = {name: call for name, call in calls.items() if name == "ferroflash" or name in wanted}
    return {**calls, "base": of(base)} if base else calls


def _attend(case, q, k, v, b, h, rows, dtype):
    """Computes rows of one head with every step in `dtype`. Returns O and LSE."""
    kv = h // (case.heads_q // case.heads_k)
    scores = q[b, h][rows].to(dtype) @ k[b, kv].to(dtype).T
    scores = scores * (1.0 / math.sqrt(case.head_dim))
    first, last = case.bounds(rows)
    keys = torch.arange(case.seqlen_k, device=q.device)
    scores = scores.masked_fill((keys < first[:, None]) | (keys >= last[:, None]), float("-inf"))
    return torch.softmax(scores, dim=-1) @ v[b, kv].to(dtype), torch.logsumexp(scores.double(), dim=-1)


def check(case, q, k, v, o, lse=None, most_rows=512):
    """Returns the errors on rows of the first and the last head, against float64: max|o - exact| <= 2 * max|naive - exact| + 1e-5."""
    n = case.seqlen_q
    picked = torch.arange(n) if n <= most_rows else torch.cat(
        [torch.arange(128), torch.linspace(128, n - 129, most_rows - 256).long(), torch.arange(n - 128, n)])
    rows = picked.to(q.device)
    error = naive_error = lse_error = largest = 0.0
    for b, h in {(0, 0), (case.batch - 1, case.heads_q - 1)}:
        exact, exact_lse = _attend(case, q, k, v, b, h, rows, torch.float64)
        naive, _ = _attend(case, q, k, v, b, h, rows, q.dtype)
        error = max(error, (o[b, h][rows].double() - exact).abs().max().item())
        naive_error = max(naive_error, (naive.double() - exact).abs().max().item())
        if lse is not None:
            lse_error = max(lse_error, (lse[b, h][rows].double() - exact_lse).abs().max().item())
            largest = max(largest, exact_lse.abs().max().item())
    tolerance = 2 * naive_error + 1e-5
    lse_tolerance = 1e-4 + 1e-5 * largest + ROUNDOFF[q.dtype]
    finite = bool(torch.isfinite(o).all())
    # A NaN makes this comparison false.
    passed = finite and error <= tolerance and lse_error <= lse_tolerance
    return {"passed": passed, "finite": finite, "error": error, "tolerance": tolerance, "lse_error": lse_error,
            "lse_tolerance": lse_tolerance}
