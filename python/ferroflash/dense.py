"""Attention on tensors (batch, seqlen, heads, head_dim), prepared once per layout."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import _devices, checks, planned
from ._types import Memory
from .planned import Planned, layout, masked


class Launch(Planned):
    """Attention on tensors. Its thread may set other tensors of the same layout."""

    def __init__(self, q: Memory, k: Memory, v: Memory, o: Memory, rows: Mapping[str, Memory], mask: int,
                 window: tuple[int, int], scale: float | None, softcap: float, config: str | None, bhsd: bool,
                 alibi_slopes: Memory = None, plans: bool = True, **extras: Any) -> None:
        super().__init__(q, mask, window, scale, softcap, config, checks.Call(shapes(bhsd), q.device), _devices.DENSE)
        self.take(q=q, k=k, v=v, o=o, alibi_slopes=alibi_slopes, **rows)
        args, (row, head) = self.args, (2, 1) if bhsd else (1, 2)
        order = (0, row, head, 3)
        args.batch, args.seqlen_q, args.heads_q, args.head_dim = (q.shape[i] for i in order)
        args.seqlen_k, args.heads_k, args.head_dim_v = k.shape[row], k.shape[head], v.shape[3]
        ordered = lambda t: [t.stride()[i] for i in order]
        self.strides(rows, alibi_slopes, q=ordered(q), k=ordered(k), v=ordered(v), o=ordered(o))
        self.extras(**extras)
        if plans:
            self.plan_it()


def output(q: Memory, v: Memory) -> Memory:
    """Allocates o, of q's memory order with v's columns."""
    if _devices.name(q.dtype) == _devices.EIGHT:
        return q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=_devices.of(q).dtype("bfloat16"))
    if v.shape[-1] != q.shape[-1]:
        return q.new_empty((*q.shape[:-1], v.shape[-1]))
    return _devices.of(q).empty_like(q)


def shapes(bhsd: bool) -> Any:
    """Returns the requirements of an order of dimensions."""
    return checks.BHSD if bhsd else checks.DENSE


def prepare(q: Memory, k: Memory, v: Memory, *, softmax_scale: float | None = None, causal: bool = False,
            window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Memory = None,
            rows: Sequence[str] = (), config: str | None = None, bhsd: bool = False,
            **extras: Any) -> tuple[Launch, Memory, dict[str, Memory]]:
    """Allocates o and outputs of rows, and finds or makes the launch on the current stream: (launch, o, outputs)."""
    checks.ranks(shapes(bhsd), q=q, k=k, v=v)
    mask, window = masked(causal, window_size)
    extras["alibi_slopes"] = alibi_slopes
    tensors = {name: of for name, of in extras.items() if hasattr(of, "data_ptr")}
    key = (Launch, *map(layout, (q, k, v)), mask, window, softmax_scale, softcap, *rows, config, bhsd,
           planned.layouts(extras))
    o = output(q, v)
    heads, queries = (q.shape[1], q.shape[2]) if bhsd else (q.shape[2], q.shape[1])
    outputs = planned.of_rows(q, (q.shape[0], heads, queries), rows)
    make = lambda: Launch(q, k, v, o, outputs, mask, window, softmax_scale, softcap, config, bhsd, **extras)
    return planned.reuse(_devices.of(q), key, make, q=q, k=k, v=v, o=o, **outputs, **tensors), o, outputs
