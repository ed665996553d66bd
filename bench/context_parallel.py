"""Times PyTorch's `context_parallel` on several GPUs, and its SDPA on one, and prints JSON lines with the fields of the example `ring` of
context-parallel/. Start it with torchrun, one process per GPU:

    torchrun --nproc-per-node 2 context_parallel.py --tokens 16384 65536

The API is a prototype of PyTorch. It computes causal attention in a zigzag, as the example does.
"""
import argparse
import datetime
import json
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.attention import SDPBackend, sdpa_kernel

try:
    from torch.distributed.tensor.experimental._attention import context_parallel, set_rotate_method
except ImportError:  # later versions
    from torch.distributed.tensor.experimental._context_parallel._attention import context_parallel, set_rotate_method

HEADS, HEADS_K, HEAD_DIM = 32, 8, 128
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def attention(q, k, v):
    """The key heads are as many as the query heads, or grouped."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1])


def tensors(tokens, heads_k):
    """Returns Q, K, V and the gradient of O, [1, heads, tokens, head dim], equal on all ranks."""
    generator = torch.Generator(device="cuda").manual_seed(1)
    make = lambda heads: torch.randn(1, heads, tokens, HEAD_DIM, dtype=torch.bfloat16, device="cuda", generator=generator)
    return [make(heads) for heads in (HEADS, heads_k, heads_k, HEADS)]


def time(rounds, call):
    """Returns the mean time of a call in ms, after one that compiles and connects."""
    call()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(rounds):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / rounds


def passes(q, k, v, d_o, rounds):
    """Returns the times of the forward pass, and of both passes."""
    with torch.no_grad():
        forward = time(rounds, lambda: attention(q, k, v))
    inputs = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    return forward, time(rounds, lambda: torch.autograd.grad(attention(*inputs), inputs, d_o))


def spread(mesh, method, tokens, heads_k, rounds):
    """Returns the times on all GPUs."""
    set_rotate_method(method)
    buffers = tensors(tokens, heads_k)
    with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * 4, no_restore_buffers=set(buffers)):
        return passes(*buffers, rounds)


def check(mesh, method, tokens, heads_k):
    """Returns the largest difference of O's rows to one GPU's, and O's largest element."""
    q, k, v, _ = tensors(tokens, heads_k)
    whole = attention(q, k, v)
    set_rotate_method(method)
    buffers = [q, k, v, whole]
    with torch.no_grad(), context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * 4, no_restore_buffers=set(buffers)):
        found = attention(q, k, v)
    return (found - whole).abs().max().item(), whole.abs().max().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1 << power for power in range(14, 20)])
    parser.add_argument("--methods", nargs="+", default=["alltoall", "allgather"])
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=BACKENDS)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=60))
    mesh = init_device_mesh("cuda", (ranks,))

    def line(**fields):
        print(json.dumps({"library": "torch " + torch.__version__, "rank": rank, "ranks": ranks, **fields}), flush=True)

    for backend, method in ((backend, method) for backend in args.backends for method in args.methods):
        with sdpa_kernel(BACKENDS[backend]):
            for heads_k in (HEADS_K, HEADS):
                try:
                    worst, largest = check(mesh, method, 4096, heads_k)
                except (RuntimeError, NotImplementedError, AssertionError) as error:
                    line(check=method, backend=backend, heads_k=heads_k, error=str(error).splitlines()[0])
                    continue
                line(check=method, backend=backend, heads_k=heads_k, o=[worst, largest])
                break
            else:
                continue
            for tokens in args.tokens:
                # The rounds of the example.
                rounds = min(max(((1 << 18) // tokens) ** 2, 1), args.rounds)
                one = passes(*tensors(tokens, heads_k), rounds)
                both = spread(mesh, method, tokens, heads_k, rounds)
                for name, ms, alone in zip(("forward", "forward and backward"), both, one):
                    line(form=method, backend=backend, heads_k=heads_k, positions=tokens, ms=round(ms, 3), one_gpu_ms=round(alone, 3),
                         share_of_ideal=round(alone / ms / ranks, 4), **{"pass": name})
                torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
