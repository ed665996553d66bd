"""Runs the portable kernels of backward passes whose problems Hopper's kernels take on a Hopper GPU, on ragged tensors.

    for tool in memcheck racecheck synccheck; do
        compute-sanitizer --tool $tool --kernel-regex kns=bwd_ --error-exitcode 1 python3 portable_backward.py
    done

`ferroflash sanitize` runs the planner's kernels, so on an H100 it passes these over. Gradients are compared with float64.
initcheck has no place here: it watches our kernels alone, and takes what PyTorch's kernels wrote for unwritten.
"""
import itertools
import sys

import torch
import torch.nn.functional as F

import backward
from ferroflash import flash_attn_func

WIDTHS = [(32, 32), (64, 64), (96, 96), (128, 128), (192, 192), (192, 128), (256, 256)]
MASKS = {"full": {}, "causal": {"causal": True}, "window": {"window_size": (40, 7)}}
QUERIES, KEYS, HEADS, KEY_HEADS = 130, 197, 4, 2


def expected(inputs, d_o, visible):
    """The gradients of attention in the dtype of the inputs."""
    q, k, v = inputs = [x.detach().requires_grad_() for x in inputs]
    heads_first = [x.transpose(1, 2) for x in (q, *(x.repeat_interleave(HEADS // KEY_HEADS, 2) for x in (k, v)))]
    o = F.scaled_dot_product_attention(*heads_first, attn_mask=visible).transpose(1, 2)
    return torch.autograd.grad(o, inputs, d_o.to(o.dtype))


def main():
    backward.only_portable()
    torch.manual_seed(1)
    wrong = 0
    for (width, width_v), dtype, (name, mask) in itertools.product(WIDTHS, (torch.float16, torch.bfloat16), MASKS.items()):
        if width != width_v and name == "window":
            # FerroFlash has no kernel for these gradients.
            continue
        random = lambda rows, heads, columns: torch.randn(2, rows, heads, columns, device="cuda").to(dtype)
        q, k, v = random(QUERIES, HEADS, width), random(KEYS, KEY_HEADS, width), random(KEYS, KEY_HEADS, width_v)
        d_o = random(QUERIES, HEADS, width_v)
        distance = torch.arange(KEYS, device="cuda") - torch.arange(QUERIES, device="cuda")[:, None] - (KEYS - QUERIES)
        left, right = mask.get("window_size", (KEYS, 0 if mask.get("causal") else KEYS))
        visible = (distance >= -left) & (distance <= right)
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        found = torch.autograd.grad(flash_attn_func(*inputs, **mask), inputs, d_o)
        exact, naive = (expected([x.to(kind) for x in (q, k, v)], d_o, visible) for kind in (torch.float64, dtype))
        for what, ours, want, rounded in zip(("dq", "dk", "dv"), found, exact, naive):
            error, allowed = ((x.double() - want).abs().max().item() for x in (ours, rounded))
            # A NaN makes this comparison false.
            if not error <= 2 * allowed + 1e-3:
                print(f"{name}, {dtype}, {width} columns, values of {width_v}: {what} is off by {error}, allowed {allowed}")
                wrong += 1
    print(f"{wrong} wrong gradients")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
