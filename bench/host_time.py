"""The host's time of Python's calls, in microseconds: python3 bench/host_time.py [--no-gpu]

Prints the time between two calls on tensors of 64 keys, whose kernels take less, and that of PyTorch's
`scaled_dot_product_attention`. With --no-gpu, CPU tensors stand for a GPU's, and no kernel is launched: that is Python's
part of the time, which needs FERROFLASH_LIBRARY with the simulator.
"""
import sys
import time
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parents[1] / "python"), str(Path(__file__).parent / "python")]
import ferroflash
from ferroflash import _devices, planned
from stand_in import NoGpu, NoLaunch

ROUNDS, CALLS = 9, 1000


def stand_in():
    """Lets CPU tensors stand for a GPU's."""
    _devices._devices[torch.device("cpu")] = NoGpu()
    _devices.known = lambda tensor: None
    planned.LIB = NoLaunch()


def show(name, call, wait):
    """Prints the least mean of a round."""
    rounds = []
    for _ in range(ROUNDS):
        wait()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        rounds.append((time.perf_counter() - start) / CALLS)
        wait()
    print(f"{name:42} {min(rounds) * 1e6:6.1f} us", flush=True)


def main():
    torch.manual_seed(1)
    torch.set_grad_enabled(False)
    has_gpu = "--no-gpu" not in sys.argv
    device, wait = ("cuda:0", torch.cuda.synchronize) if has_gpu else ("cpu", lambda: None)
    if not has_gpu:
        stand_in()
    random = lambda *shape: torch.randn(*shape, device=device).to(torch.float16)
    numbers = lambda of: torch.tensor(of, dtype=torch.int32, device=device)
    q, k, v = (random(1, 64, 8, 64) for _ in range(3))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    if has_gpu:
        heads = [of.transpose(1, 2) for of in (q, k, v)]
        show("scaled_dot_product_attention", lambda: sdpa(*heads, is_causal=True), wait)
    show("flash_attn_func", lambda: ferroflash.flash_attn_func(q, k, v, causal=True), wait)
    starts = [numbers([0, 30, 64]) for _ in range(2)]
    rows = [of[0] for of in (q, k, v)]
    show("flash_attn_varlen_func", lambda: ferroflash.flash_attn_varlen_func(*rows, *starts, 40, 40, causal=True), wait)
    query, pages = random(4, 1, 32, 64), [random(64, 16, 8, 64) for _ in range(2)]
    table, lengths = numbers([list(range(at, at + 16)) for at in range(0, 64, 16)]), numbers([100] * 4)
    show("flash_attn_with_kvcache", lambda: ferroflash.flash_attn_with_kvcache(
        query, *pages, cache_seqlens=lengths, block_table=table, causal=True), wait)
    if not has_gpu:
        return
    d_o = torch.randn_like(q)
    with torch.enable_grad():
        for of in (q, k, v):
            of.requires_grad_()
        heads = [of.detach().transpose(1, 2).requires_grad_() for of in (q, k, v)]
        d_heads = d_o.transpose(1, 2)
        show("gradients of scaled_dot_product_attention",
             lambda: torch.autograd.grad(sdpa(*heads, is_causal=True), heads, d_heads), wait)
        show("gradients of flash_attn_func",
             lambda: torch.autograd.grad(ferroflash.flash_attn_func(q, k, v, causal=True), (q, k, v), d_o), wait)


if __name__ == "__main__":
    main()
