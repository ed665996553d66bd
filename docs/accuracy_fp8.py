"""Errors of attention with products of e4m3 on Hopper against f64: FerroFlash's rules (`Precision::Fp8`), and
FlashAttention-3's rules with scales per head. Writes the tables of accuracy.md. Needs numpy only.

    python3 docs/accuracy_fp8.py            # the tables
    python3 docs/accuracy_fp8.py --write    # into accuracy.md
"""
import numpy as np

from accuracy import KINDS, e4m3, exact, inputs, tables, trimmed_mean

# Of the table of lengths.
D = 128


def add(p, v, acc):
    """Adds p v as Hopper does: sums of 32 products and the accumulator, cut to 13 bits of fraction."""
    exponent = lambda x: np.where(x == 0, -999, np.frexp(np.abs(x))[1] - 1)
    for i in range(0, p.shape[1], 32):
        a, b = p[:, i:i + 32, None], v[None, i:i + 32]
        e = np.where(a * b == 0, -999, exponent(a) + exponent(b)).max(1)
        e = np.maximum(np.maximum(e, exponent(acc)), -100)
        terms = np.trunc(np.ldexp(a * b, 13 - e[:, None])).sum(1) + np.trunc(np.ldexp(acc, 13 - e))
        acc = np.ldexp(terms, e - 13)
        m, x = np.frexp(acc)
        acc = np.ldexp(np.trunc(np.ldexp(m, 14)), x - 14)
    return acc


def rounded(x):
    scale = np.abs(x).max() / 448 or 1.0
    return e4m3(x / scale) * scale, scale


def fp8(q, k, v, rule):
    """O and LSE by `rule`: "ferroflash", "fa3" (running maximum, one level, keys with their mean)."""
    ours = rule == "ferroflash"
    mean = trimmed_mean(k) if ours else np.zeros(q.shape[1])
    # Keys of a block, and the most that the tensor core adds.
    size, most = (64, 64) if q.shape[1] > 128 else (128, 512)
    s = rounded(q)[0] @ rounded(k - mean)[0].T / np.sqrt(q.shape[1]) * np.log2(np.e)
    values, scale = rounded(v)
    values, top = values / scale, 4 if ours else 8
    o, part, total = np.zeros((len(q), v.shape[1])), np.zeros((len(q), v.shape[1])), np.zeros(len(q))
    reference, keys = np.full(len(q), -np.inf), 0
    for first in reversed(range(0, len(k), size)):
        block = slice(first, first + size)
        own = s[:, block].max(1)
        p = np.exp2(s[:, block] - reference[:, None] + top) if keys or first + size < len(k) else None
        # A lane has 16 columns of each half: columns 2t, 2t + 1 of every second group of 8.
        lanes = None if p is None else p.reshape(len(q), size // 16, 2, 4, 2).sum((1, 4)).max((1, 2))
        raises = np.ones(len(q), bool) if p is None else (lanes > 448 if ours else own > reference)
        new = np.where(raises, np.maximum(reference, own), reference)
        old = np.where(np.isinf(reference), 0, np.exp2(reference - new))
        reference = new
        p = np.exp2(s[:, block] - reference[:, None] + top)
        total, part, o = total * old + p.sum(1), part * old[:, None], o * old[:, None]
        if ours and keys == most:
            o, part, keys = o + part, np.zeros_like(part), 0
        part, keys = add(e4m3(p), values[block], part), keys + size
    lse = (np.log2(total) - top + reference) * np.log(2) + q @ mean / np.sqrt(q.shape[1])
    return (o + part) * scale / total[:, None], lse


def cell(make, rule):
    sums, worst = np.zeros(2), np.zeros(2)
    for seed in range(2):
        q, k, v = make(np.random.default_rng(seed))
        (o, lse), (want, want_lse) = fp8(q, k, v, rule), exact(q, k, v)
        sums += np.abs(o - want).sum(), np.abs(want).sum()
        worst = np.maximum(worst, [np.abs(o - want).max() / np.abs(want).max(), np.abs(lse - want_lse).max()])
    return f"{sums[0] / sums[1]:.4f}, {worst[0]:.3f}, {worst[1]:.3f}"


def kinds(d):
    rows = [f"| {kind} | " + " | ".join(cell(lambda rng: inputs(kind, d, rng), rule) for rule in ("ferroflash", "fa3"))
            + " |" for kind in KINDS]
    return "\n".join(["| inputs | FerroFlash | FlashAttention-3's rules |", "|---|---|---|", *rows])


def equal_scores(keys, rng):
    """Equal scores and positive values: errors of sums do not cancel."""
    half = lambda x: x.astype(np.float16).astype(np.float64)
    return np.zeros((2, D)), half(rng.normal(size=(keys, D))), half(np.abs(rng.normal(size=(keys, D))) + 0.2)


def needle(keys, rng):
    """Each query has one key with nine tenths of its weight."""
    q, k, v = (rng.normal(size=(n, D)) for n in (8, keys, keys))
    k[rng.choice(keys, 8, replace=False)] = q * np.sqrt(D) * np.log(9 * keys * 1.65) / (q * q).sum(1, keepdims=True)
    return [x.astype(np.float16).astype(np.float64) for x in (q, k, v)]


def lengths():
    head = ["| inputs | keys | FerroFlash | FlashAttention-3's rules |", "|---|---|---|---|"]
    cases = [("equal scores", equal_scores, n) for n in (1024, 4096, 16384, 65536)] + [("needle", needle, 16384)]
    return "\n".join(head + [
        f"| {name} | {keys} | " + " | ".join(cell(lambda rng: make(keys, rng), rule) for rule in ("ferroflash", "fa3"))
        + " |" for name, make, keys in cases])


if __name__ == "__main__":
    tables([("fp8", lambda: kinds(128)), ("fp8-d256", lambda: kinds(256)), ("fp8-lengths", lengths)])
