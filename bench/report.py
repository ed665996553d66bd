"""Rows of compare.py as tables, figures of merit, and a plot. Options, loops and rows of scripts that time calls beside one another."""
import argparse
import json
import math
import os
import random
import statistics
import sys
import time
from html import escape

COLOURS = {"ferroflash": "#c2410c", "fa2": "#94a3b8", "cudnn": "#4d7c0f", "fa3": "#0891b2", "fa4": "#1d4ed8", "fa2_causal": "#cbd5e1",
           "base": "#fdba74"}
NAMES = {"ferroflash": "FerroFlash", "fa2": "FlashAttention-2", "cudnn": "cuDNN", "fa3": "FlashAttention-3",
         "fa4": "FlashAttention-4",
         "fa2_causal": "FA2, all causal", "base": "the base"}
# Relative differences below this number are noise.
NOISE = 0.02
# The part of the memory bus that copies of large tensors reach: 4.2 of 4.9 TB/s on an H200.
REACHED = 0.855


def bandwidth():
    """Returns the memory speed of the card in TB/s: its bus, times REACHED."""
    from triton.testing import get_dram_gbps
    return get_dram_gbps() * REACHED / 1e3


def options(text, dtypes=("bf16",), seconds=math.inf):
    """Returns the parser of the options that all these scripts have."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=dtypes, choices=["f16", "bf16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=seconds, help="measurements begin within this time")
    parser.add_argument("--out", help="JSON file to write")
    return parser


def main(todo, args, best={}, **about):
    """Seeds the random numbers, runs the work of `todo(rng)`, and ends the program."""
    import torch
    torch.manual_seed(args.seed)
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), **about}
    sys.exit(run(todo(random.Random(args.seed)), args, about, torch.cuda.empty_cache, best))


def within(tolerance, error):
    """Returns a judge for `judged`: it compares `error(result)` with the tolerance. NaN fails."""
    def judge(_, result):
        found = error(result)
        return {"error": found, "tolerance": tolerance, "passed": found <= tolerance}
    return judge


def judged(calls, judge, needed=("ferroflash",)):
    """Returns {name: judge(name, result)}. Drops calls that fail from `calls` and says why, but raises for `needed` ones."""
    verdicts = {}
    for name, call in list(calls.items()):
        try:
            verdicts[name] = judge(name, call())
        except Exception as reason:
            if name in needed:
                raise
            print(f"{name} is not available: {repr(reason)[:140]}", file=sys.stderr)
            del calls[name]
    return verdicts


def timed(calls, rounds, rng, measure):
    """Returns {name: median} and {name: [us]}. Each round measures every call once, in random order."""
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name in rng.sample(list(calls), len(calls)):
            times[name].append(measure(calls[name]))
    return {name: statistics.median(samples) for name, samples in times.items()}, times


def measured(row, calls, checks, args, rng, measure, said, entry=None, more=lambda us: {}, show=lambda us: f"{us:.1f}"):
    """Times the calls, prints a line, and returns a row for each call. `row` has the fields of all rows. `measure(call, timing)` returns
    the microseconds first. `said(us)` is the end of the line, of FerroFlash's time. `more(us)` returns more fields of a row."""
    medians, times = timed(calls, args.rounds, rng, lambda call: measure(call, row["timing"])[0])
    print(f"{row['timing']:4} {row['label']:44} " + "  ".join(f"{name} {show(us)}" for name, us in medians.items())
          + "  " + said(medians["ferroflash"])
          + "".join(f"  WRONG {name} {check}" for name, check in checks.items() if check and not check["passed"]), flush=True)
    return [{**row, "inputs": "normal", "peer": name, "us": us, "rounds_us": times[name], "ratio": us / medians["ferroflash"],
             "check": checks[name], "entry": entry if name == "ferroflash" else None, **more(us)} for name, us in medians.items()]


def run(todo, args, about, after, best={}):
    """Runs all (suite, label, work) in `todo` that begin within `args.seconds`. Each work returns its rows. `after` runs behind each, and
    then the rows are written to `args.out`, so that a killed script keeps them. Prints the summary, and returns the exit code: 1 if
    FerroFlash was wrong. `best` is {name: peers}: the summary has the fastest of these peers, too, under this name."""
    begun, rows = time.time(), []
    for suite, label, work in todo:
        if time.time() - begun > args.seconds:
            print(f"--seconds {args.seconds}: {label} and all after it were not measured", file=sys.stderr)
            break
        try:
            rows += work()
        except Exception as reason:
            print(f"{label}: FAILED {repr(reason)[:300]}", flush=True)
            rows.append({"suite": suite, "failed": repr(reason)[:300], "passed": False})
        after()
        write(rows, args, about, best)
    found = write(rows, args, about, best)
    print("suite                    dtype timing peer: the peer's time divided by FerroFlash's")
    for entry in found:
        print(f"{entry['suite']:24} {entry['dtype']:5} {entry['timing']:5} {entry['peer']:24} {entry['shapes']} shapes, "
              f"geomean {entry['geomean']:.2f}, lowest {entry['minimum']:.2f} ({entry['at']})")
    passed = lambda row: row["check"]["passed"] if "check" in row else row["passed"]
    return int(any(row.get("peer", "ferroflash") == "ferroflash" and not passed(row) for row in rows))


def write(rows, args, about, best):
    """Writes the rows and their summary to `args.out`, and returns the summary."""
    found = summary(rows + [row for name, peers in best.items() for row in fastest(rows, name, peers)])
    if args.out:
        command = " ".join(["python3", sys.argv[0].rpartition("/")[2], *sys.argv[1:]])
        save(args.out, {"command": command, **about, "seed": args.seed, "rows": rows, "summary": found})
    return found


def rounded(value):
    """Returns a record whose numbers have six digits: no measurement here is better than that."""
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(entry) for entry in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def save(path, record):
    """Writes a record as JSON. The file is never half written."""
    with open(path + ".part", "w") as file:
        json.dump(rounded(record), file, indent=1)
    os.replace(path + ".part", path)


def fastest(rows, name, peers):
    """Returns the row of the fastest of these peers for each measurement, under this name."""
    measured = [[group[peer] for peer in peers if peer in group] for group in groups([row for row in rows if "us" in row])]
    return [{**min(group, key=lambda row: row["us"]), "peer": name} for group in measured if group]


def groups(rows):
    """Returns the rows grouped by measurement: [{peer: row}], in the order of the measurements."""
    found = {}
    for row in rows:
        found.setdefault((row["suite"], row["label"], row["timing"]), {})[row["peer"]] = row
    return list(found.values())


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def table(rows):
    """Returns Markdown with one line per measurement. A ratio is the peer's time divided by FerroFlash's: above 1, FerroFlash is faster."""
    peers = [peer for peer in NAMES if peer != "ferroflash" and any(row["peer"] == peer for row in rows)]
    lines = ["| shape | timing | us | TFLOP/s | " + " | ".join(f"x {NAMES[p]}" for p in peers) + " | error / allowed | entry |",
             "|---" * (6 + len(peers)) + "|"]
    for group in groups(rows):
        ours = group.get("ferroflash")
        if ours is None:
            continue
        ratios = [f"{group[p]['ratio']:.2f}" if p in group else "-" for p in peers]
        check = ours.get("check")
        error = f"{check['error']:.1e} / {check['tolerance']:.1e}{'' if check['passed'] else ' WRONG'}" if check else "-"
        lines.append(f"| {ours['label']} | {ours['timing']} | {ours['us']:.1f} | {ours['tflops']:.0f} | {' | '.join(ratios)} "
                     f"| {error} | {ours['entry']} |")
    return "\n".join(lines)


def summary(rows):
    """[{suite, inputs, dtype, timing, peer, shapes, geomean, minimum, at}]: one entry per measured combination."""
    found = {}
    for row in rows:
        if "ratio" in row and row["peer"] != "ferroflash":
            key = (row["suite"], row["inputs"], row["dtype"], row["timing"], row["peer"])
            found.setdefault(key, []).append((row["ratio"], row["label"]))
    names = ("suite", "inputs", "dtype", "timing", "peer")
    return [dict(zip(names, key), shapes=len(ratios), geomean=geomean([r for r, _ in ratios]), minimum=min(ratios)[0],
                 at=min(ratios)[1]) for key, ratios in found.items()]


def slower(rows):
    """{label: ratio} of the measurements that are slower than the base by more than noise, the slowest first."""
    found = {f'{row["label"]}, {row["timing"]}': row["ratio"] for row in rows if row["peer"] == "base"}
    return {label: ratio for label, ratio in sorted(found.items(), key=lambda pair: pair[1]) if ratio < 1 - NOISE}


def summary_table(entries):
    lines = ["| suite | inputs | dtype | timing | against | shapes | geomean | minimum | at |", "|---" * 9 + "|"]
    for e in entries:
        lines.append(f"| {e['suite']} | {e['inputs']} | {e['dtype']} | {e['timing']} | {NAMES[e['peer']]} | {e['shapes']} "
                     f"| {e['geomean']:.3f} | {e['minimum']:.3f} | {e['at']} |")
    return "\n".join(lines)


def dtype_gap(rows):
    """Largest |bf16 / f16 - 1| of FerroFlash's times over shapes measured in both dtypes: (gap, label), or None."""
    ours = {(r["suite"], r["label"], r["timing"]): r["us"] for r in rows if r["peer"] == "ferroflash"}
    gaps = []
    for (suite, label, timing), us in ours.items():
        other = ours.get((suite, label.replace(" f16", " bf16"), timing))
        if " f16" in label and other is not None:
            gaps.append((abs(other / us - 1), label))
    return max(gaps, default=None)


def svg(rows, title):
    """Bars of speed relative to FlashAttention-2, one block of bars per measurement."""
    blocks = [group for group in groups(rows) if "fa2" in group and "ferroflash" in group]
    present = [peer for peer in COLOURS if any(peer in group for group in blocks)]
    bar, gap, left, width = 9, 9, 330, 520
    speeds = [{p: group["fa2"]["us"] / group[p]["us"] for p in present if p in group} for group in blocks]
    longest = max([1.5] + [max(s.values()) for s in speeds])
    scale = width / longest
    height = 70 + sum(len(s) * bar + gap for s in speeds)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 60}" height="{height}" font-family="sans-serif" font-size="10">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="10" y="18" font-size="13">{escape(title)}</text>']
    x = 10
    for peer in present:
        out.append(f'<rect x="{x}" y="28" width="9" height="9" fill="{COLOURS[peer]}"/><text x="{x + 13}" y="36">{NAMES[peer]}</text>')
        x += 120
    mark = 0.5
    while mark <= longest:
        at = left + mark * scale
        out.append(f'<line x1="{at:.1f}" y1="48" x2="{at:.1f}" y2="{height - 8}" stroke="{"#475569" if mark == 1 else "#e2e8f0"}"/>')
        out.append(f'<text x="{at:.1f}" y="46" text-anchor="middle">{mark:g}x</text>')
        mark += 0.5
    y = 56
    for group, speed in zip(blocks, speeds):
        ours = group["ferroflash"]
        out.append(f'<text x="{left - 6}" y="{y + len(speed) * bar / 2 + 3:.1f}" text-anchor="end">{escape(ours["label"])}, {ours["timing"]}</text>')
        for peer, value in speed.items():
            out.append(f'<rect x="{left}" y="{y}" width="{value * scale:.1f}" height="{bar - 1}" fill="{COLOURS[peer]}"/>')
            out.append(f'<text x="{left + value * scale + 3:.1f}" y="{y + bar - 2}" font-size="8">{value:.2f}</text>')
            y += bar
        y += gap
    return "\n".join(out + ["</svg>", ""])


def ratios_svg(rows, title):
    """Returns a plot with a bar for the ratio of each row of serving.py. The vertical line marks 1."""
    bar, left, width = 12, 430, 420
    longest = max([1.5] + [row["ratio"] for row in rows])
    height, scale = 40 + bar * len(rows), width / longest
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 40}" height="{height}" font-family="sans-serif" font-size="9">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="10" y="18" font-size="13">{escape(title)}</text>']
    for i, row in enumerate(rows):
        y, label = 30 + bar * i, f"{row['suite']}: {row['label']} x {row['peer']}, {row['timing']}"
        out.append(f'<text x="{left - 6}" y="{y + 8}" text-anchor="end">{escape(label)}</text>')
        out.append(f'<rect x="{left}" y="{y}" width="{row["ratio"] * scale:.1f}" height="{bar - 2}" fill="{COLOURS["ferroflash"]}"/>')
        out.append(f'<text x="{left + row["ratio"] * scale + 3:.1f}" y="{y + 8}">{row["ratio"]:.2f}</text>')
    out.append(f'<line x1="{left + scale:.1f}" y1="24" x2="{left + scale:.1f}" y2="{height - 8}" stroke="#475569"/>')
    return "\n".join(out + ["</svg>", ""])
