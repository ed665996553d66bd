"""Attention on tensors (batch, seqlen, heads, head_dim), prepared once per layout."""
from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from . import _devices
from ._library import Invalid, WrongType
from ._types import Memory, Window
from .planned import Planned, masked, sloped


class Launch(Planned):
    """Attention on tensors. Its thread may set other tensors of the same layout."""

    def __init__(self, q: Memory, k: Memory, v: Memory, o: Memory, lse: Memory, mask: int, window: tuple[int, int],
                 scale: float | None, softcap: float, config: str | None, bhsd: bool, slopes: Memory = None,
                 max_logits: Memory = None, plans: bool = True, **extras: Any) -> None:
        super().__init__(q, mask, window, scale, softcap, config)
        args, (row, head) = self.args, (2, 1) if bhsd else (1, 2)
        order = (0, row, head, 3)
        args.batch, args.seqlen_q, args.heads_q, args.head_dim = (q.shape[i] for i in order)
        args.seqlen_k, args.heads_k, args.head_dim_v = k.shape[row], k.shape[head], v.shape[3]
        ordered = lambda t: [t.stride()[i] for i in order]
        self.strides(lse, slopes, max_logits, q=ordered(q), k=ordered(k), v=ordered(v), o=ordered(o))
        self.point(q=q, k=k, v=v, o=o, lse=lse, alibi_slopes=slopes, max_logits=max_logits)
        self.extras(**extras)
        if plans:
            self.plan_it()


class _Local(threading.local):
    """The launches that a thread has prepared."""

    def __init__(self) -> None:
        self.launches: dict[Any, Launch] = {}


_local = _Local()


def layouts(extras: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns extras without their addresses. Launches of tensors with the same layout then share one prepared
    launch."""
    of = lambda x: (x.dtype, tuple(x.shape), x.stride()) if hasattr(x, "data_ptr") else x
    return sorted((name, str(of(x))) for name, x in extras.items())


def output(q: Memory, v: Memory) -> Memory:
    """Allocates o, of q's memory order with v's columns."""
    if v.shape[-1] != q.shape[-1]:
        return q.new_empty((*q.shape[:-1], v.shape[-1]))
    return _devices.of(q).empty_like(q)


def checked(q: Memory, k: Memory, v: Memory) -> None:
    """Checks what the library's struct cannot express."""
    if k.device != q.device or v.device != q.device:
        raise Invalid(f"q, k and v must be on one GPU; they are on {q.device}, {k.device}, {v.device}")
    if k.dtype != q.dtype or v.dtype != q.dtype:
        raise WrongType(f"q, k and v must be float16 or bfloat16, all three of one dtype; they are {q.dtype}, "
                        f"{k.dtype}, {v.dtype}")
    if len(q.shape) != 4 or len(k.shape) != 4 or len(v.shape) != 4 or v.shape[:-1] != k.shape[:-1] \
            or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise Invalid(f"shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)} do not fit together: q is "
                      "(batch, seqlen_q, heads_q, head_dim), k and v are (batch, seqlen_k, heads_k, head_dim)")


def prepare(q: Memory, k: Memory, v: Memory, *, softmax_scale: float | None = None, causal: bool = False,
            window_size: Window = (-1, -1), softcap: float = 0.0, alibi_slopes: Memory = None,
            return_lse: bool = False, return_max_logits: bool = False, config: str | None = None, bhsd: bool = False,
            **extras: Any) -> tuple[Launch, Memory, Memory, Memory]:
    """Allocates outputs and finds or makes the launch on the current stream: (launch, o, lse, max_logits)."""
    device = _devices.of(q)
    # Each stream has its own arguments and workspace, because launches of two streams may run concurrently.
    stream = device.stream()
    o = output(q, v)
    heads, rows = (q.shape[1], q.shape[2]) if bhsd else (q.shape[2], q.shape[1])
    of_rows = lambda wanted: q.new_empty((q.shape[0], heads, rows), dtype=device.dtype("float32")) if wanted else None
    lse, max_logits = of_rows(return_lse), of_rows(return_max_logits)
    mask, (left, right) = masked(causal, window_size)
    slopes = sloped(alibi_slopes, q, q.shape[0], heads)
    key = (device, stream, q.dtype, k.dtype, v.dtype, q.shape, k.shape, v.shape, q.stride(), k.stride(),
           v.stride(), o.stride(), mask, left, right, softmax_scale, softcap, return_lse, return_max_logits, config,
           bhsd, None if slopes is None else (slopes.shape, slopes.stride()), *layouts(extras))
    launch = _local.launches.get(key)
    if launch is None:
        checked(q, k, v)
        launch = Launch(q, k, v, o, lse, mask, (left, right), softmax_scale, softcap, config, bhsd, slopes, max_logits,
                        **extras)
        _local.launches[key] = launch
    launch.point(q=q, k=k, v=v, o=o, lse=lse, alibi_slopes=slopes, max_logits=max_logits)
    tensors = {name: of for name, of in extras.items() if hasattr(of, "data_ptr")}
    launch.point(**{"prefix_lengths" if name == "prefix" else name: of for name, of in tensors.items()})
    return launch, o, lse, max_logits
