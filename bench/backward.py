"""Times backward passes of FerroFlash and of the libraries that a user would pick instead, on the same tensors, in one process.

    python3 backward.py --out backward.json                    # the suite `backward` of `ferroflash bench`
    python3 backward.py --match D64 --dtypes f16 bf16
    python3 backward.py --suites curve.json gradients.json     # 512 to 16384 keys; GQA, other head dims, windows
    python3 backward.py --whole                                # the forward and the backward pass of one call
    python3 backward.py --portable --peers fa2 fa2_deterministic

The library needs the feature `training`. The peers are SDPA's flash backend (FlashAttention-2) and SDPA's cuDNN backend, both also
with PyTorch's deterministic algorithms, and FlashAttention-4 if Python can import it, also with `deterministic=True`. FerroFlash is
always deterministic. Each call computes the gradients of Q, K and V by `torch.autograd.grad`, after a flush of the L2 cache; the
forward ran before, except with --whole. TFLOP/s count 5 products of the backward pass and 2 of the forward. A ratio is the peer's time
divided by FerroFlash's time. The gradients of the first and the last key head are compared with float64: the largest error is at most
twice that of the naive gradients in the inputs' precision. backward_variants.py has other masks and scores, backward_varlen.py varlen.
"""
import json
import os

import torch

import cases
import gradients
import ferroflash
from ferroflash import _bindings

HERE = os.path.dirname(os.path.abspath(__file__))
# In gpu-pack, the file is beside this script. In the repository, it is where `ferroflash bench` embeds it.
PACKED, EMBEDDED = os.path.join(HERE, "backward.json"), os.path.join(HERE, "..", "host", "cli", "src", "bench", "backward.json")
SHAPES = PACKED if os.path.exists(PACKED) else EMBEDDED


def forwards(case, q, k, v, wanted):
    """Returns {name: call}. Each call returns O as (batch, heads, seqlen, head_dim)."""
    calls = cases.contenders(case, q, k, v, {gradients.FLAGGED.get(name, name) for name in wanted})
    calls["ferroflash"] = lambda: ferroflash.flash_attn_func(q, k, v, causal=case.causal, window_size=case.window, bhsd=True)
    if cases.fa4 is not None:
        calls["fa4_deterministic"] = cases.fa4_call(case, q, k, v, deterministic=True)
    return calls


def only_portable():
    """Plans the later backward passes with a workspace that has no room for the sums of Hopper's kernels: portable kernels take it."""
    create = ferroflash.LIB.ferroflash_backward_plan_create

    def planned(context, where, plan):
        args = _bindings.Backward.from_address(where)
        forward = _bindings.Attention.from_address(args.forward)
        # A plan reads the size alone; the launch has other memory.
        args.workspace, args.workspace_bytes = 1 << 20, 8 * forward.batch * forward.heads_q * (forward.seqlen_q + 384)
        return create(context, where, plan)
    ferroflash.LIB.ferroflash_backward_plan_create = planned


def gradients_of(case, q, k, v, d_o, batch, head, kind):
    """Returns the gradients of a key head, with every step in the type `kind`."""
    group, own_k, own_v = case.heads_q // case.heads_k, k[batch, head].to(kind), v[batch, head].to(kind)
    queries = slice(head * group, (head + 1) * group)
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
    return torch.stack(dq), dk, dv


@torch.no_grad()
def references(case, q, k, v, d_o):
    """Yields what gradients.check reads: the first key head of the first batch, and the last of the last."""
    group = case.heads_q // case.heads_k
    for batch, head in sorted({(0, 0), (case.batch - 1, case.heads_k - 1)}):
        exact, naive = (gradients_of(case, q, k, v, d_o, batch, head, kind) for kind in (torch.float64, q.dtype))
        queries = slice(head * group, (head + 1) * group)
        yield exact, naive, lambda of: (of[0][batch, queries], of[1][batch, head], of[2][batch, head])


def run(case, args, rng):
    """Returns the report's rows of one shape."""
    q, k, v = (t.requires_grad_() for t in case.tensors())
    d_o = case.normal(case.heads_q, case.seqlen_q, case.head_dim_v)
    calls = gradients.calls(forwards(case, q, k, v, args.peers), (q, k, v), d_o, args)
    flops = case.backward_flops() + (case.flops() if args.whole else 0)
    return gradients.measured(calls, kind(case, args), case.label(), case.dtype, references(case, q, k, v, d_o), flops, args, rng)


def kind(case, args):
    """Returns the kind of a shape: rows of one kind have one summary."""
    columns = case.head_dim if case.head_dim == case.head_dim_v else f"{case.head_dim}/{case.head_dim_v}"
    return f"D{columns}" + (" window" if case.window != (-1, -1) else "") + (" portable" if args.portable else "")


def main():
    parser = gradients.options(__doc__, gradients.PEERS)
    parser.add_argument("--suites", nargs="+", default=[SHAPES], help="JSON files: {suite: [shape or {\"backward\": shape}, ..]}")
    parser.add_argument("--layout", default="bshd", choices=["bhsd", "bshd"], help="memory layout of the tensors")
    parser.add_argument("--portable", action="store_true", help="use FerroFlash's portable kernels of backward passes")
    args = parser.parse_args()
    if args.portable:
        only_portable()
    shapes = []
    for path in args.suites:
        with open(path) as file:
            shapes += [shape.get("backward", shape) for suite in json.load(file).values() for shape in suite]
    all_cases = [cases.Case({"causal": False, **shape, "dtype": dtype}, layout=args.layout)
                 for shape in shapes for dtype in args.dtypes or [shape.get("dtype", "f16")]]
    todo = [(kind(case, args), case.label(), lambda rng, case=case: run(case, args, rng)) for case in all_cases]
    gradients.run(todo, args)


if __name__ == "__main__":
    main()
