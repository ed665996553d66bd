"""Times FerroFlash and the libraries that a user would pick instead, on the same tensors, with the same timer, in one process.

    export PYTHONPATH=python                                   # the package, in the packed folder; or install the wheel
    python3 compare.py --only prefill headline --out h200.json --svg h200.svg

The script needs PyTorch with Triton. The peers are SDPA's flash backend (FlashAttention-2), SDPA's cuDNN backend, and
FlashAttention-3 and -4 if Python can import them.

    python3 compare.py --base ../before --peers                # peer: FerroFlash of another commit, in its packed folder
    python3 compare.py --base ../before --peers --entries      # every kernel by name, instead of the planner's choice
    python3 compare.py --serving decode ragged paged           # suites of serving.py, with its peers and its timer

  cold       triton.testing.do_bench, median: each launch is timed by CUDA events, after a flush of the L2 cache
  hot        CUDA graph of many launches, median per launch: the host's launch cost is hidden, the caches are warm
  sustained  0.5 s of launches without pauses, mean: the speed at the card's power limit

Shapes under 0.2 TFLOP are timed hot, all others cold, unless --timing says otherwise. Each round visits the contenders in
another order. The time of a row is the median of its rounds. A ratio is the peer's time divided by FerroFlash's time:
above 1, FerroFlash is faster. Results are compared with float64 first. A wrong result makes the exit code 1; the run still
writes everything.
"""
import argparse
import importlib.util
import json
import math
import os
import random
import shlex
import statistics
import subprocess
import sys
import time
import warnings

import torch
import triton
from triton.testing import do_bench, do_bench_cudagraph

import cases
import ferroflash
from ferroflash import dense
import report

warnings.filterwarnings("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
# In gpu-pack, these files are beside this script. In the repository, they are where `ferroflash bench` embeds them.
PACKED, EMBEDDED = os.path.join(HERE, "suites.json"), os.path.join(HERE, "..", "host", "cli", "src", "bench", "suites.json")
SUITES = PACKED if os.path.exists(PACKED) else EMBEDDED


def front(folder, name="ferroflash_base"):
    """Loads the package `ferroflash` of another packed folder, with its library, as one more FerroFlash in this process."""
    package = os.path.join(folder, "python", "ferroflash")
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(package, "__init__.py"), submodule_search_locations=[package])
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    # With this variable, the other module would load this FerroFlash's library.
    ours = os.environ.pop("FERROFLASH_LIBRARY", None)
    try:
        spec.loader.exec_module(module)
    finally:
        if ours is not None:
            os.environ["FERROFLASH_LIBRARY"] = ours
    return module


def clocks():
    """Returns the present SM clock, memory clock, power and temperature, from nvidia-smi; None without nvidia-smi."""
    fields = "clocks.sm,clocks.mem,power.draw,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-i", "0"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return dict(zip(fields.split(","), map(str.strip, out.split(","))))


def sustained(call, seconds=0.5):
    """Returns the mean microseconds of launches without pauses between them, and the clocks during the launches."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    us = do_bench(call, warmup=5, rep=20, return_mode="median") * 1e3
    # Graphs keep Python's time out of the measurement.
    per_graph = max(1, int(2000 / us))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(per_graph):
            call()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    replays = max(1, int(seconds * 1e6 / us / per_graph))
    graph.replay()
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    meanwhile = clocks()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3 / (replays * per_graph), meanwhile


def measure(call, timing):
    """Returns the microseconds of one call, and the clocks during the calls if the timing permits to read them."""
    if timing == "sustained":
        return sustained(call)
    if timing == "hot":
        return do_bench_cudagraph(call, rep=40, return_mode="median") * 1e3, None
    return do_bench(call, warmup=10, rep=60, return_mode="median") * 1e3, None


def timings(case, wanted):
    auto = "hot" if case.flops() < 2e11 else "cold"
    return {"auto": [auto], "both": ["cold", "hot"]}.get(wanted, [wanted])


def run(suite, case, args, rng, base):
    """Returns the report's rows of one case."""
    q, k, v = case.tensors()
    calls = cases.contenders(case, q, k, v, args.peers, lse=not args.no_lse, base=base)
    verdicts, rows = {}, []
    for name, call in list(calls.items()):
        try:
            verdicts[name] = cases.check(case, q, k, v, call())
        except Exception as reason:
            if name == "ferroflash":
                raise
            print(f"{case.label()}: {name} is not available: {repr(reason)[:140]}", file=sys.stderr)
            del calls[name]
    options = {"causal": case.causal, "window_size": case.window, "rows": ("lse",), "config": case.config,
               "bhsd": True}
    launch, o, outputs = dense.prepare(q, k, v, **options)
    launch.enqueue()
    verdicts["ferroflash"] = cases.check(case, q, k, v, o, outputs["lse"])
    chosen = launch.describe()
    for timing in timings(case, args.timing):
        times, meanwhile = {name: [] for name in calls}, {}
        for _ in range(args.rounds):
            for name in rng.sample(list(calls), len(calls)):
                us, clock = measure(calls[name], timing)
                times[name].append(us)
                meanwhile[name] = clock
        ours = statistics.median(times["ferroflash"])
        for name, samples in times.items():
            us = statistics.median(samples)
            row = {**case.shape, "dtype": case.dtype, "suite": suite, "label": case.label(), "inputs": case.inputs,
                   "layout": case.layout, "timing": timing, "peer": name, "us": us, "rounds_us": samples,
                   "tflops": case.flops() / us / 1e6, "gb_per_s": case.least_bytes() / us / 1e3, "ratio": us / ours,
                   "clocks": meanwhile[name], "check": verdicts[name]}
            rows.append({**row, **chosen} if name == "ferroflash" else row)
        line = "  ".join(f"{name} {statistics.median(t):.1f}" for name, t in times.items())
        bad = "" if verdicts["ferroflash"]["passed"] else "  WRONG " + json.dumps(verdicts["ferroflash"])
        ahead = "".join(f"  x{statistics.median(times[p]) / ours:.3f} of {p}" for p in ("fa2", "base") if p in times)
        print(f"{suite:9} {timing:9} {case.label():48} {line} us{ahead}{bad}", flush=True)
    return rows


def host_overhead(calls=100, repeats=40):
    """Returns the host's microseconds of one call on the headline shape, without waiting for the GPU: {what: median}."""
    case = cases.Case({"batch": 1, "heads_q": 8, "heads_k": 8, "seqlen_q": 512, "seqlen_k": 512, "head_dim": 64, "causal": True})
    q, k, v = case.tensors()
    ours = cases.contenders(case, q, k, v, {})["ferroflash"]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    launch, *_ = dense.prepare(q, k, v, causal=True, bhsd=True)
    library, stream = ferroflash.LIB, launch.stream
    raw, arguments = library.ferroflash_launch, (launch.context, launch.plan, launch.where, stream)
    plan_too, no_plan = library.ferroflash_attention, (launch.context, launch.where, stream)
    work = {
        "an empty call through ctypes": library.ferroflash_abi_version,
        "ferroflash_launch through ctypes": lambda: raw(*arguments),
        "ferroflash_attention (plan and launch) through ctypes": lambda: plan_too(*no_plan),
        "flash_attn_func of the package, outputs allocated": ours,
        "SDPA, whichever backend it picks": lambda: sdpa(q, k, v, is_causal=True),
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


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--suites", default=SUITES, help="JSON: {suite: [shape, ..]}")
    ap.add_argument("--only", nargs="*", help="suites to run, instead of all")
    ap.add_argument("--match", help="run only shapes whose label contains this")
    ap.add_argument("--dtypes", nargs="*", default=["f16"], choices=list(cases.DTYPES), help="dtypes of shapes that do not name a dtype")
    ap.add_argument("--layout", default="bhsd", choices=["bhsd", "bshd"], help="memory layout of the tensors")
    ap.add_argument("--peers", nargs="*", default=["fa2", "fa2_causal", "cudnn", "fa3", "fa4"])
    ap.add_argument("--base", metavar="FOLDER", help="one more peer: the packed folder of another commit")
    ap.add_argument("--entries", action="store_true", help="a shape for every kernel of the table, instead of suites")
    ap.add_argument("--serving", nargs="*", metavar="SUITE", help="measure suites of serving.py instead (decode, ragged, paged, ..): "
                    "--match, --rounds, --seconds, --seed, --no-overhead, --out and --svg are handed on")
    ap.add_argument("--timing", default="auto", choices=["auto", "cold", "hot", "both", "sustained"])
    ap.add_argument("--sustained", action="store_const", const="sustained", dest="timing", help="short for --timing sustained")
    ap.add_argument("--growing", action="store_true", help="keys times 4, and times a ramp of 1 to 30, instead of normal keys")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--no-lse", action="store_true", help="FerroFlash writes no LSE (FlashAttention-2 always does)")
    ap.add_argument("--seconds", type=float, default=math.inf, help="begin no further shape after this number of seconds; the report lists the rest")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--no-overhead", action="store_true", help="do not measure the host time of a launch")
    ap.add_argument("--out", help="JSON file")
    ap.add_argument("--svg", help="plot")
    return ap.parse_args()


def hand_on(args):
    """Returns the arguments that serving.py gets from compare.py's arguments."""
    told = ["--rounds", args.rounds, "--seconds", args.seconds, "--seed", args.seed]
    told += ["--no-overhead"] if args.no_overhead else []
    told += [word for name in ("match", "out", "svg") if getattr(args, name) for word in (f"--{name}", getattr(args, name))]
    told += ["--only", *args.serving] if args.serving else []
    return [str(word) for word in told]


def main():
    args = arguments()
    if args.serving is not None:
        # This file's shapes have no requests on caches and no varlen sequences.
        import serving
        return serving.main(hand_on(args))
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    base = front(args.base) if args.base else None
    about = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "cudnn": torch.backends.cudnn.version(), "cuda": torch.version.cuda,
        "ferroflash": ferroflash.LIB.ferroflash_version().decode(), "fa3": cases.fa3 is not None,
        "fa4": cases.fa4 is not None,
        "base": base and base.LIB.ferroflash_version().decode(),
        "command": shlex.join(sys.argv), "date": time.strftime("%Y-%m-%d %H:%M:%S %Z"), "clocks": {"before": clocks()},
    }
    print(json.dumps(about), flush=True)
    with open(args.suites) as file:
        suites = {"entries": cases.entry_shapes(base)} if args.entries else json.load(file)
    rows, left_out, start = [], [], time.monotonic()
    for suite, shapes in suites.items():
        if args.only and suite not in args.only:
            continue
        for shape in shapes:
            dtypes = [shape["dtype"]] if "dtype" in shape else args.dtypes
            for inputs in ["x4", "ramp"] if args.growing else ["normal"]:
                for dtype in dtypes:
                    case = cases.Case(shape, dtype, inputs, args.layout)
                    if args.match and args.match not in case.label():
                        continue
                    if time.monotonic() - start > args.seconds:
                        left_out.append(case.label())
                        continue
                    rows += run(suite, case, args, rng, base)
                    torch.cuda.empty_cache()
        about["clocks"][f"after {suite}"] = clocks()
    entries, gap = report.summary(rows), report.dtype_gap(rows)
    print("\n" + report.table(rows) + "\n\n" + report.summary_table(entries))
    slower = report.slower(rows)
    for label, ratio in slower.items():
        print(f"slower than the base: {label}: x{ratio:.3f}")
    if gap:
        print(f"\nbf16 and f16 differ by at most {gap[0] * 100:.1f} % ({gap[1]})")
    overhead = None if args.no_overhead else host_overhead()
    for what, us in (overhead or {}).items():
        print(f"host: {what}: {us:.2f} us")
    wrong = [row["label"] for row in rows if row["peer"] == "ferroflash" and not row["check"]["passed"]]
    if args.out:
        report.save(args.out, {**about, "summary": entries, "bf16_gap": gap, "host_us": overhead, "wrong": wrong,
                               "slower": slower, "left_out": left_out, "rows": rows})
    if args.svg:
        with open(args.svg, "w") as file:
            file.write(report.svg(rows, f"Speed relative to FlashAttention-2, {about['device']}"))
    if left_out:
        print("left out: " + "; ".join(left_out), file=sys.stderr)
    if wrong:
        print("WRONG: " + "; ".join(sorted(set(wrong))), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
