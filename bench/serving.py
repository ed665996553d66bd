"""Times requests of serving engines: FerroFlash and the libraries that a user would pick instead, in one process.

    python3 serving.py --only decode paged --rounds 5 --out h200.json --svg h200.svg

The script needs PyTorch. A ratio is the peer's time divided by FerroFlash's time: above 1, FerroFlash is faster. The suites, and the
peer of each:

  decode, decode-fa2          one query per sequence, dense cache; peers: cuDNN, FlashAttention-2 (both through SDPA)
  decode-fa3                  the same; peer: FlashAttention-3's flash_attn_with_kvcache, if it is installed
  func, func-cache            one query per sequence, flash_attn_func; peers: cuDNN, FerroFlash on a dense cache
  decode-paged                one query per sequence, pages of 16 and 64, NHD and HND; peer: cuDNN on a dense cache
  paged, page1                pages of 16 and 64, and of 1; peer: FerroFlash on a dense cache of the same layout
  e4m3                        an e4m3 cache; peer: FerroFlash on a 16-bit cache
  ragged, ragged-paged        unequal lengths; peer: the time to read the bytes at --bandwidth
  shapes, shapes-flashinfer   sinks, windows, other heads, pages of 16; peers: the time to read the bytes, FlashInfer without sinks
  speculative                 several queries per sequence; peer: FerroFlash with one query per sequence
  prefix, prefix-flashinfer   groups of sequences that share their first pages; peers: FerroFlash without groups, FlashInfer's cascade
  packed, packed-paged        varlen prompts; peer: FlashAttention-2. In pages of 16 and 64; peer: FerroFlash without pages
  packed-portable             varlen prompts in pages of 16, planner's kernel; peer: FerroFlash's portable kernel
  packed-equal                varlen prompts of equal lengths; peer: FerroFlash on a dense batch
  packed-e4m3                 varlen prompts on an e4m3 cache; peer: FerroFlash on a 16-bit cache
  mixed                       single queries and chunks in one request; peer: FerroFlash in two requests, one after the other
  graph                       a graph captured for many sequences, replayed with few; peer: a plan for these few
  append, append-rotary       peers: index_put; rotary embedding of K, peer: the append alone
  append-rotary-q, merge      rotary embedding of K and Q; merges of two states; peer: the time to move the bytes

Every call is part of a CUDA graph of many calls, so that launches cost every contender the same. Cold: the calls take several
sets of tensors in turn, which together exceed the L2 cache. Hot: all calls take one set. Each round visits the contenders in
another order. The time of a row is the median of its rounds. The result of a graph is compared with float64 first. A wrong result
makes the exit code 1; the run still writes everything.
"""
import argparse
import gc
import json
import math
import os
import random
import shlex
import statistics
import sys
import time
import warnings

import torch

import ferroflash
from ferroflash import kvcache
import report
import serving_cases as cases
import serving_suites as suites

warnings.filterwarnings("ignore")
SHAPES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "serving.json")
# Approximate time of one graph, in microseconds.
GRAPH_US = 1200


class Timed:
    """A contender, captured in a graph of several calls."""

    def __init__(self, calls, expected_us):
        # A graph knows only addresses, so the tensors and workspaces of its calls must live as long as the graph.
        self.calls = calls
        # The first call may load kernels and choose algorithms.
        for call in calls:
            call()
        torch.cuda.synchronize()
        turns = math.ceil(max(4, GRAPH_US / max(4.0, expected_us)) / len(calls))
        self.count, self.graph = turns * len(calls), torch.cuda.CUDAGraph()
        # torch.cuda.graph would collect garbage and empty the cache for each graph, which takes seconds in total.
        self.graph.capture_begin()
        try:
            for _ in range(turns):
                for call in calls:
                    self.output = call()
        finally:
            self.graph.capture_end()

    def right(self, judge):
        """Returns the verdict of `judge` on the output of a replay."""
        if self.output.is_floating_point():
            self.output.fill_(math.nan)
        self.graph.replay()
        torch.cuda.synchronize()
        return judge(self.output)

    def us(self, replays=3):
        """Returns the microseconds of one call: the median of replays."""
        times, events = [], [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self.graph.replay()
        for _ in range(replays):
            events[0].record()
            self.graph.replay()
            events[1].record()
            events[1].synchronize()
            times.append(events[0].elapsed_time(events[1]) * 1e3 / self.count)
        return statistics.median(times)


def run(group, args, rng):
    """Returns the report's rows of one group."""
    timed = {}
    for name, (calls, _) in list(group.contenders.items()):
        size = group.bytes[name]
        # This assumes at most half of an H200's throughput.
        expected_us = max(size / args.bandwidth / 1e6, group.flops / 400e6)
        try:
            timed[name, "cold"] = Timed(calls, expected_us)
            if size < cases.HOT and len(calls) > 1:
                timed[name, "hot"] = Timed(calls[:1], expected_us)
        except Exception as reason:
            group.lost(name, reason)
    group.prepare()
    verdicts = {name: timed[name, "cold"].right(judge) for name, (_, judge) in group.contenders.items()}
    times = {key: [] for key in timed}
    for _ in range(args.rounds):
        for key in rng.sample(list(timed), len(timed)):
            times[key].append(timed[key].us())
    rows = []
    for suite, name, peer in group.pairs:
        for timing in ("cold", "hot"):
            floor = group.bytes[name] / args.bandwidth / 1e6
            if (name, timing) not in times or (peer is None and timing == "hot") or (peer and (peer, timing) not in times):
                continue
            us, theirs = (statistics.median(times[key]) if key else floor
                          for key in ((name, timing), peer and (peer, timing)))
            rows.append({"suite": suite, "label": f"{group.label}, {name}", "timing": timing, "us": us, "peer": peer or "bytes",
                         "peer_us": theirs, "ratio": theirs / us, "tb_per_s": group.bytes[name] / us / 1e6,
                         "rounds_us": times[name, timing], "check": verdicts[name],
                         "peer_check": verdicts.get(peer), "entry": group.entries.get(name)})
            rows[-1]["tflops"] = group.flops / us / 1e6
            speed = f"{rows[-1]['tflops']:.0f} TFLOP/s" if group.flops else f"{rows[-1]['tb_per_s']:.2f} TB/s"
            bad = "" if verdicts[name]["passed"] else "  WRONG " + json.dumps(verdicts[name])
            print(f"{suite:13} {timing:4} {group.label + ', ' + name:44} {us:8.2f} {peer or 'bytes':10} {theirs:8.2f} us  "
                  f"x{theirs / us:.3f}  {speed}{bad}", flush=True)
    return rows


def host_us(calls=200, repeats=20):
    """Returns the host's microseconds of one call, without waiting for the GPU: {what: median}."""
    keys, batch = 1024, 8
    cache, lengths = cases.filled([keys] * batch, 8, 128, 16, torch.float16), cases.integers([keys] * batch)
    q = cases.normal(batch, 1, 32, 128)
    launch = kvcache.Launch(q, cache.k, cache.v, torch.empty_like(q), lengths, table=cache.table)
    (sdpa,), _ = cases.sdpa(cases.BACKENDS["cudnn"], q, [cases.Cache(cases.normal(batch, keys, 8, 128),
                                                                 cases.normal(batch, keys, 8, 128))], lengths)
    plan_too, no_plan = ferroflash.LIB.ferroflash_attention, (launch.context, launch.where, launch.stream)
    planned, arguments = ferroflash.LIB.ferroflash_launch, (launch.context, launch.plan, launch.where, launch.stream)
    work = {
        "an empty call through ctypes": ferroflash.LIB.ferroflash_abi_version,
        "ferroflash_launch through ctypes": lambda: planned(*arguments),
        "ferroflash_attention (plan and launch) through ctypes": lambda: plan_too(*no_plan),
        "flash_attn_with_kvcache of the package, outputs allocated": lambda: ferroflash.flash_attn_with_kvcache(
            q, cache.k, cache.v, cache_seqlens=lengths, block_table=cache.table),
        "SDPA, cuDNN's backend, a dense cache": sdpa,
    }
    found = {}
    for what, call in work.items():
        times = []
        for _ in range(repeats):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            times.append((time.perf_counter() - start) / calls * 1e6)
        found[what] = statistics.median(times)
    torch.cuda.synchronize()
    return found


def summary(rows, targets):
    """Returns [{suite, timing, peer, shapes, geomean, minimum, at, target}], one entry per suite and peer."""
    found = {}
    for row in rows:
        found.setdefault((row["suite"], row["timing"], row["peer"]), []).append((row["ratio"], row["label"]))
    return [{"suite": suite, "timing": timing, "peer": peer, "shapes": len(ratios),
             "geomean": report.geomean([ratio for ratio, _ in ratios]), "minimum": min(ratios)[0], "at": min(ratios)[1],
             "target": targets.get(suite) if timing == "cold" else None}
            for (suite, timing, peer), ratios in found.items()]


def arguments(argv):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--shapes", default=SHAPES, help="JSON file with the shapes, like serving.json")
    ap.add_argument("--only", nargs="*", help="suites to run, instead of all")
    ap.add_argument("--match", help="run only groups whose label contains this")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--seconds", type=float, default=math.inf, help="begin no further group after this number of seconds; the report lists the rest")
    ap.add_argument("--bandwidth", type=float, help="memory speed in TB/s, for the time that the bytes need [default: the card's]")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--no-overhead", action="store_true", help="do not measure the host time of a launch")
    ap.add_argument("--out", help="JSON file")
    ap.add_argument("--svg", help="plot")
    return ap.parse_args(argv)


def main(argv=None):
    args = arguments(argv)
    torch.cuda.set_stream(torch.cuda.Stream())
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    args.bandwidth = args.bandwidth or report.bandwidth()
    with open(args.shapes) as file:
        shapes = json.load(file)
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
             "ferroflash": ferroflash.LIB.ferroflash_version().decode(), "command": shlex.join(sys.argv),
             "date": time.strftime("%Y-%m-%d %H:%M:%S %Z"), "bandwidth": args.bandwidth}
    print(json.dumps(about), flush=True)
    rows, failed, left_out, start = [], [], [], time.monotonic()
    for part, groups in suites.GROUPS.items():
        for group in groups(shapes[part], args.only):
            if args.match and args.match not in group.label:
                continue
            if time.monotonic() - start > args.seconds:
                left_out.append(group.label)
                continue
            try:
                group.fill()
                rows += run(group, args, rng)
            except Exception as reason:
                group.lost("all", reason)
            failed += group.failed
            del group
            # A group refers to itself, so only a collection frees its tensors.
            gc.collect()
            torch.cuda.empty_cache()
    entries = summary(rows, shapes["targets"])
    print()
    for e in entries:
        met = "" if e["target"] is None else f"  target {e['target']}: {'met' if e['minimum'] >= e['target'] else 'MISSED'}"
        print(f"{e['suite']:13} {e['timing']:4} x {e['peer']:10} {e['shapes']:3} shapes  geomean {e['geomean']:.3f}  lowest "
              f"{e['minimum']:.3f} ({e['at']}){met}")
    overhead = None if args.no_overhead else host_us()
    for what, us in (overhead or {}).items():
        print(f"host: {what}: {us:.2f} us")
    wrong = [row["label"] for row in rows if not row["check"]["passed"]]
    if args.out:
        report.save(args.out, {**about, "summary": entries, "host_us": overhead, "wrong": wrong, "failed": failed,
                               "left_out": left_out, "rows": rows})
    if args.svg:
        with open(args.svg, "w") as file:
            file.write(report.ratios_svg(rows, f"Serving: the peer's time divided by FerroFlash's, {about['device']}"))
    if left_out:
        print("left out: " + "; ".join(left_out), file=sys.stderr)
    if wrong or failed:
        print("WRONG: " + "; ".join(sorted(set(wrong)) + failed), file=sys.stderr)
    return 1 if wrong or failed else 0


if __name__ == "__main__":
    sys.exit(main())
