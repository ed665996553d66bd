"""Errors of attention with products of eight bits against f64, on nine kinds of inputs: FerroFlash's rules
(`Precision::Int8F16`, `Precision::Int8Fp8`), SageAttention2's published rules, and the latter with one level of
sums. Writes the tables of accuracy.md. Needs numpy only.

    python3 docs/accuracy.py            # the tables
    python3 docs/accuracy.py --write    # into accuracy.md
"""
import pathlib
import sys

import numpy as np

KEYS, ROWS, BLOCK = 2048, 64, 64


def e4m3(x):
    """Rounds to e4m3, ties to even, and saturates at 448."""
    exponent = np.maximum(np.frexp(np.abs(x))[1] - 1, -6)
    step = np.ldexp(1.0, exponent - 3)
    return np.clip(np.rint(x / step) * step, -448, 448)


def inputs(kind, d, rng):
    q, k, v = rng.normal(size=(ROWS, d)), rng.normal(size=(KEYS, d)), rng.normal(size=(KEYS, d))
    signs = lambda n: rng.choice([-1, 1], n)
    if kind == "outlier channels":
        c = rng.choice(d, d // 16, replace=False)
        k[:, c] += rng.uniform(8, 20, d // 16) * signs(d // 16)
        k[:, rng.choice(d, d // 16, replace=False)] *= 4
        q, v = q + rng.normal(size=d) / 2, v * rng.uniform(0.3, 3, d) + rng.normal(size=d)
    if kind == "offset of keys":
        k[:, rng.choice(d, 4, replace=False)] += rng.uniform(40, 100, 4) * signs(4)
    if kind == "growing keys":
        k *= np.linspace(0.2, 6, KEYS)[:, None]
    if kind == "sink":
        u = q.mean(0)
        q = q + 8 * u / np.linalg.norm(u)
        u = q.mean(0)
        k[:4] = u / (u @ u) * np.sqrt(d) * 10 + rng.normal(size=(4, d)) / 10
        v[:4] *= 0.05
    if kind == "peaked":
        q = q * 4
    if kind == "own key":
        k[:ROWS] = q * np.sqrt(d) * np.log(KEYS) / (q * q).sum(1, keepdims=True)
    if kind == "large key":
        k[0] *= 1000
        u = k[0] / np.linalg.norm(k[0])
        q -= np.outer(q @ u + np.abs(q @ u) + 1, u)
    if kind == "equal scores":
        q, v = q * 0, np.abs(v) + 0.2
    return [x.astype(np.float16).astype(np.float64) for x in (q, k, v)]


KINDS = ["normal", "outlier channels", "offset of keys", "growing keys", "sink", "peaked", "own key",
         "large key", "equal scores"]


def exact(q, k, v):
    s = q @ k.T / np.sqrt(q.shape[1])
    most = s.max(1, keepdims=True)
    p = np.exp(s - most)
    return p @ v / p.sum(1, keepdims=True), (most + np.log(p.sum(1, keepdims=True)))[:, 0]


def integers(x, groups):
    """Rounds rows to int8; rows of one group share a scale."""
    scale = np.zeros(groups.max() + 1)
    np.maximum.at(scale, groups, np.abs(x).max(1) / 127)
    scale = np.where(scale == 0, 1, scale)[groups][:, None]
    return np.rint(x / scale) * scale


def add(p, v, acc):
    """Adds p v as Ada does: sums of 16 products and the accumulator, cut to 13 bits of fraction."""
    exponent = lambda x: np.where(x == 0, -999, np.maximum(np.frexp(np.abs(x))[1] - 1, -6))
    for i in range(0, p.shape[1], 16):
        a, b = p[:, i:i + 16, None], v[None, i:i + 16]
        e = np.where(a * b == 0, -999, exponent(a) + exponent(b)).max(1)
        e = np.maximum(np.maximum(e, np.where(acc == 0, -999, np.frexp(np.abs(acc))[1] - 1)), -100)
        terms = np.trunc(np.ldexp(a * b, 13 - e[:, None])).sum(1) + np.trunc(np.ldexp(acc, 13 - e))
        acc = np.ldexp(terms, e - 13)
        m, x = np.frexp(acc)
        acc = np.ldexp(np.trunc(np.ldexp(m, 14)), x - 14)
    return acc


def trimmed_mean(k):
    """The mean of 64 evenly spaced keys, of each eight of which the least and the largest number do not count."""
    return np.sort(k[::len(k) // 64].reshape(8, 8, -1), axis=1)[:, 1:-1].mean((0, 1))


def eight_bits(q, k, v, rule):
    """O and LSE by `rule`: "int8-f16", "int8-fp8", "sage2", or one of the latter two with " one level"."""
    d, rows, keys = q.shape[1], np.arange(len(q)), np.arange(len(k))
    ours = rule.startswith("int8")
    mean = trimmed_mean(k) if ours else k.mean(0)
    groups = rows if ours else rows // 32 * 8 + rows % 8
    key_groups = keys if ours else keys // 64 * 4 + keys % 8 // 2
    s = integers(q, groups) @ integers(k - mean, key_groups).T / np.sqrt(d) * np.log2(np.e)
    if rule == "int8-f16":
        most = s.max(1)
        p = np.exp2(s - most[:, None]).astype(np.float16).astype(np.float64)
        total = p.sum(1)
        o = (p @ v / total[:, None]).astype(np.float16).astype(np.float64)
        return o, (np.log2(total) + most) * np.log(2) + q @ mean / np.sqrt(d)
    scale = np.abs(v).reshape(-1, BLOCK, d).max((1, 2)) / 448 if ours else np.abs(v).max(0) / 448
    scale = np.repeat(scale, BLOCK)[:, None] if ours else scale[None]
    quantised, top = e4m3(v / scale), 8 if ours else np.log2(448)
    o, part, total = np.zeros((len(q), d)), np.zeros((len(q), d)), np.zeros(len(q))
    most = np.full(len(q), -np.inf)
    blocks = range(0, KEYS, BLOCK)
    for first in reversed(blocks) if ours else blocks:
        block = slice(first, first + BLOCK)
        own = s[:, block].max(1)
        new = np.maximum(most, own)
        old, most = np.exp2(most - new), new
        base = own if ours else most
        p = np.exp2(s[:, block] - base[:, None] + top)
        weight = np.exp2(base - most)
        total = total * old + weight * p.sum(1)
        factor = (weight[:, None] * scale[first]) if ours else scale
        if rule.endswith("one level"):
            part = add(e4m3(p), quantised[block], part * old[:, None])
        else:
            o = o * old[:, None] + factor * add(e4m3(p), quantised[block], np.zeros_like(o))
    o = part * scale[:1] if rule.endswith("one level") else o
    lse = (np.log2(total) - top + most) * np.log(2) + q @ mean / np.sqrt(d)
    return o / total[:, None], lse


def row(kind, d, rules):
    cells = []
    for rule in rules:
        sums, worst = np.zeros(2), np.zeros(2)
        for seed in range(2):
            q, k, v = inputs(kind, d, np.random.default_rng(seed))
            (o, lse), (want, want_lse) = eight_bits(q, k, v, rule), exact(q, k, v)
            sums += np.abs(o - want).sum(), np.abs(want).sum()
            worst = np.maximum(worst, [np.abs(o - want).max() / np.abs(want).max(), np.abs(lse - want_lse).max()])
        cells.append(f"{sums[0] / sums[1]:.4f}, {worst[0]:.3f}, {worst[1]:.3f}")
    return f"| {kind} | " + " | ".join(cells) + " |"


def table(d):
    rules = ["int8-f16", "int8-fp8", "sage2", "sage2 one level"]
    names = ["`Int8F16`", "`Int8Fp8`", "SageAttention2's rules", "the same, one level of sums"]
    head = "| inputs | " + " | ".join(names) + " |"
    return "\n".join([head, "|---" * (len(rules) + 1) + "|", *(row(kind, d, rules) for kind in KINDS)])


def tables(made):
    """Prints tables, and with --write puts each between the marks of its name in accuracy.md. `made` has names, and
    functions that make the rows."""
    page = pathlib.Path(__file__).with_name("accuracy.md")
    text = page.read_text() if "--write" in sys.argv else ""
    for name, make in made:
        rows = make()
        print(f"{name}\n{rows}", "\n")
        begin, end = f"<!-- {name} -->\n", f"<!-- {name}: end -->"
        if text:
            before, after = text.split(begin)
            text = before + begin + "\n" + rows + "\n\n" + end + after.split(end, 1)[1]
    if text:
        page.write_text(text)


if __name__ == "__main__":
    tables([("d64", lambda: table(64)), ("d128", lambda: table(128)), ("d256", lambda: table(256))])
