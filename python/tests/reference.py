"""Attention in numpy, with every step in one dtype."""
import numpy as np


def hidden(rows, keys, causal=False, window_size=(-1, -1), prefix=None, chunked=None, bits=None):
    """Returns which keys a query does not see: (rows, keys), or with bits (batch, heads, rows, keys)."""
    position, key = np.arange(rows)[:, None] + keys - rows, np.arange(keys)[None, :]
    left, right = window_size
    right = 0 if causal or prefix is not None or chunked else right
    out = np.zeros((rows, keys), bool)
    out |= (key < position - left) if left >= 0 else False
    out |= (key > position + right) if right >= 0 else False
    out |= (key < position // chunked * chunked) if chunked else False
    out &= key >= (prefix or 0)
    if bits is not None:
        out = np.unpackbits(bits, axis=-1, bitorder="little")[..., :keys] == 0
    return out


def attend(q, k, v, dtype=np.float64, softmax_scale=None, softcap=0.0, alibi_slopes=None, sinks=None, bias=None, **mask):
    """Returns o as (batch, rows, heads, head_dim), and the LSE as (batch, heads, rows)."""
    q, k, v = (t.astype(dtype).transpose(0, 2, 1, 3) for t in (q, k, v))
    k, v = (t.repeat(q.shape[1] // k.shape[1], 1) for t in (k, v))
    scores = q @ k.swapaxes(2, 3) * dtype(q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale)
    if softcap:
        scores = dtype(softcap) * np.tanh(scores / dtype(softcap))
    rows, keys = scores.shape[2:]
    if alibi_slopes is not None:
        distance = np.abs(np.arange(rows)[:, None] + keys - rows - np.arange(keys)[None, :])
        scores = scores - alibi_slopes.reshape(-1, q.shape[1], 1, 1) * distance
    if bias is not None:
        scores = scores + bias.astype(np.float64)
    scores = np.where(hidden(rows, keys, **mask), -np.inf, scores)
    if sinks is not None:
        logits = np.broadcast_to(sinks.reshape(1, -1, 1, 1), (*scores.shape[:3], 1))
        scores = np.concatenate([scores, logits], 3)
    most = scores.max(3, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(most), 0, most))
    total = weights.sum(3, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (most + np.log(total.astype(np.float64)))[..., 0]
    weights = (weights / np.where(total == 0, 1, total))[..., :keys]
    return (weights.astype(dtype) @ v).swapaxes(1, 2), lse


def rotated(x, cos, sin, starts, interleaved):
    """Returns x (batch, rows, heads, head_dim), whose row i is rotated by the angles of position starts + i."""
    at = starts[:, None] + np.arange(x.shape[1])[None, :]
    c, s = (table[at][:, :, None, :].astype(np.float64) for table in (cos, sin))
    half = cos.shape[1]
    a, b = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    out = x.astype(np.float64)
    out[..., a], out[..., b] = x[..., a] * c - x[..., b] * s, x[..., a] * s + x[..., b] * c
    return out.astype(x.dtype)
