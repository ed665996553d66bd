"""Attention on varlen sequences: tensors (rows of all sequences, heads, head_dim) and offsets on the device."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _devices, checks, planned
from ._types import Memory
from .dense import output
from .planned import FULL, HEAD, Planned, layout, masked


class Launch(Planned):
    """One varlen attention launch on fixed tensors, on the stream that is current now.

    q and o are (rows of all sequences, heads, head_dim), k and v likewise, lse is (heads, rows); `cu_seqlens_q`,
    `cu_seqlens_k` and `seqused_k` are int32 on the device. `checks.py` has the shapes.
    """

    def __init__(self, q: Memory, k: Memory, v: Memory, o: Memory, cu_seqlens_q: Memory, cu_seqlens_k: Memory,
                 max_seqlen_q: int, max_seqlen_k: int, *, lse: Memory = None, seqused_k: Memory = None,
                 mask: int = FULL, window: tuple[int, int] = (-1, -1), scale: float | None = None,
                 softcap: float = 0.0, config: str | None = None, alibi_slopes: Memory = None,
                 max_logits: Memory = None, entropy: Memory = None, max_logits_head: Memory = None, plans: bool = True, **extras: Any) -> None:
        sizes = {**checks.of_varlen(cu_seqlens_q), "seqlen_q": max_seqlen_q, "seqlen_k": max_seqlen_k}
        super().__init__(q, mask, window, scale, softcap, config, checks.Call(checks.VARLEN, q.device, sizes),
                         _devices.DENSE)
        args, rows = self.args, {"lse": lse, "max_logits": max_logits, "entropy": entropy, HEAD: max_logits_head}
        tensors = {"q": q, "k": k, "v": v, "o": o, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k,
                   "seqused_k": seqused_k, "alibi_slopes": alibi_slopes, **rows}
        self.take(**tensors)
        args.batch, args.seqlen_q, args.seqlen_k = cu_seqlens_q.shape[0] - 1, max_seqlen_q, max_seqlen_k
        args.total_q, args.heads_q, args.head_dim = q.shape
        args.total_k, args.heads_k, args.head_dim_v = k.shape[0], k.shape[1], v.shape[2]
        self.strides(rows, alibi_slopes, q=q.stride(), k=k.stride(), v=v.stride(), o=o.stride())
        self.extras(**extras)
        # Without a plan, it is the forward of a backward pass, which lends it other tensors in each call.
        if plans:
            self.kept = (tensors, extras)
            self.plan_it()


def prepare(q: Memory, k: Memory, v: Memory, cu_seqlens_q: Memory, cu_seqlens_k: Memory, max_seqlen_q: int,
            max_seqlen_k: int, *, softmax_scale: float | None = None, causal: bool = False,
            window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Memory = None,
            seqused_k: Memory = None, config: str | None = None, rows: Sequence[str] = (),
            **extras: Any) -> tuple[Launch, Memory, dict[str, Memory]]:
    """Allocates o and outputs of rows, and finds or makes the launch on the current stream: (launch, o, outputs)."""
    checks.ranks(checks.VARLEN, q=q, k=k, v=v)
    checks.of_sequences(q, k, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_k)
    o, outputs = output(q, v), planned.of_rows(q, (q.shape[1], q.shape[0]), rows)
    starts, ends, used = _devices.integers(q, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_k=seqused_k)
    mask, window = masked(causal, window_size)
    inputs = {"q": q, "k": k, "v": v, "cu_seqlens_q": starts, "cu_seqlens_k": ends, "seqused_k": used,
              "alibi_slopes": alibi_slopes}
    tensors = {name: of for name, of in extras.items() if hasattr(of, "data_ptr")}
    key = (Launch, max_seqlen_q, max_seqlen_k, softmax_scale, mask, window, softcap, config, *rows,
           *map(layout, inputs.values()), planned.layouts(extras))
    make = lambda: Launch(q, k, v, o, starts, ends, max_seqlen_q, max_seqlen_k, seqused_k=used, mask=mask,
                          window=window, scale=softmax_scale, softcap=softcap, config=config,
                          alibi_slopes=alibi_slopes, **outputs, **extras)
    return planned.reuse(_devices.of(q), key, make, **inputs, o=o, **outputs, **tensors), o, outputs
