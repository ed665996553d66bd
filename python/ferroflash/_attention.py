"""Attention and its gradients on the tensors of any device, with one list of arguments."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _backward, _devices, checks, dense, varlen
from ._types import Memory
from .planned import Planned, is_empty, masked, of_no_rows


def _extras(q: Memory, sinks: Memory, bias: Memory, prefix: Memory | int | None, mask_bits: Memory,
            prefix_keys: int | None, chunked: int | None, mask_keys: int) -> dict[str, Any]:
    sinks, prefix = checks.converted(q, sinks, prefix_keys if prefix is None else prefix)
    extras = {"sinks": sinks, "bias": bias, "prefix": prefix, "chunked": chunked, "mask_bits": mask_bits}
    extras = {name: of for name, of in extras.items() if of is not None}
    return {**extras, "mask_keys": mask_keys} if mask_keys else extras


def forward(q: Memory, k: Memory, v: Memory, cu_seqlens_q: Memory, cu_seqlens_k: Memory, seqused_k: Memory,
            alibi_slopes: Memory, sinks: Memory, bias: Memory, prefix: Memory | int | None, mask_bits: Memory,
            max_seqlen_q: int, max_seqlen_k: int, softmax_scale: float | None, causal: bool, left: int, right: int,
            softcap: float, prefix_keys: int | None, chunked: int | None, mask_keys: int, bhsd: bool,
            config: str | None, rows: Sequence[str] = ("lse",), invariance: str | None = None,
            seqused_q: Memory = None, precision: str | None = None, **descales: Memory) -> tuple[Memory, ...]:
    """Returns o and outputs of rows. With `cu_seqlens_q`, tensors are varlen. `descales` has the scales of tensors of
    float8_e4m3fn."""
    launch: dense.Launch | varlen.Launch
    if is_empty(q, cu_seqlens_q, bhsd):
        shape = q.shape[:-1] if bhsd else (*q.shape[:-3], q.shape[-2], q.shape[-3])
        return _devices.of(q).zeros_like(dense.output(q, v)), *of_no_rows(q, shape, rows)
    options = {"softmax_scale": softmax_scale, "causal": causal, "window_size": (left, right), "softcap": softcap,
               "alibi_slopes": alibi_slopes, "config": config, "rows": rows,
               **_extras(q, sinks, bias, prefix, mask_bits, prefix_keys, chunked, mask_keys)}
    if invariance is not None:
        options["invariance"] = invariance
    if seqused_q is not None:
        options["seqused_q"], = _devices.integers(q, seqused_q=seqused_q)
    if precision is not None:
        options["precision"] = precision
    options.update((name, of) for name, of in descales.items() if of is not None)
    if cu_seqlens_q is None:
        launch, o, outputs = dense.prepare(q, k, v, bhsd=bhsd, **options)
    else:
        launch, o, outputs = varlen.prepare(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
                                            seqused_k=seqused_k, **options)
    launch.run()
    return o, *outputs.values()


def backward(d_o: Memory, d_lse: Memory, o: Memory, lse: Memory, q: Memory, k: Memory, v: Memory,
             cu_seqlens_q: Memory, cu_seqlens_k: Memory, seqused_k: Memory, alibi_slopes: Memory, sinks: Memory,
             bias: Memory, prefix: Memory | int | None, mask_bits: Memory, max_seqlen_q: int, max_seqlen_k: int,
             softmax_scale: float | None, causal: bool, left: int, right: int, softcap: float,
             prefix_keys: int | None, chunked: int | None, mask_keys: int, bhsd: bool, wants_sinks: bool,
             wants_bias: bool) -> tuple[Memory, ...]:
    """Returns the gradients of q, k, v, sinks and bias, the last two None if they are not wanted."""
    if is_empty(q, cu_seqlens_q, bhsd):
        zeros = _devices.of(q).zeros_like
        return (*map(zeros, (q, k, v)), zeros(sinks) if wants_sinks else None, zeros(bias) if wants_bias else None)
    # The library gets no sizes of these.
    checks.like("d_o", d_o, "o", o)
    if d_lse is not None:
        checks.like("d_lse", d_lse, "lse", lse)
    starts, ends, used = _devices.integers(q, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_k=seqused_k)
    extras = _extras(q, sinks, bias, prefix, mask_bits, prefix_keys, chunked, mask_keys)
    inputs = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "cu_seqlens_q": starts, "cu_seqlens_k": ends,
              "seqused_k": used, "alibi_slopes": alibi_slopes,
              **{name: of for name, of in extras.items() if hasattr(of, "data_ptr")}}
    options = (max_seqlen_q, max_seqlen_k, softmax_scale, causal, left, right, softcap, prefix_keys, chunked,
               mask_keys)

    def make() -> Planned:
        mask, window = masked(causal, (left, right))
        if starts is None:
            return dense.Launch(q, k, v, o, {"lse": lse}, mask, window, softmax_scale, softcap, None, bhsd, alibi_slopes,
                                plans=False, **extras)
        return varlen.Launch(q, k, v, o, starts, ends, max_seqlen_q, max_seqlen_k, lse=lse, seqused_k=used, mask=mask,
                             window=window, scale=softmax_scale, softcap=softcap, alibi_slopes=alibi_slopes,
                             plans=False, **extras)

    order = (0, 1, 2) if starts is not None else (0, 2, 1, 3) if bhsd else (0, 1, 2, 3)
    return _backward.gradients(make, inputs, options, order, sinks if wants_sinks else None,
                               bias if wants_bias else None, d_o, d_lse)
