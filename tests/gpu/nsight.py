"""One launch of every entry under Nsight Compute: is the tensor pipe busy, are there bank conflicts, how much of
DRAM is used.

    python3 nsight.py OUT.json [--length 8192] [TEXT ..]   # in the packed folder, with PyTorch and ncu; only entries with a TEXT

Starts itself again under ncu. Each entry computes 4 x 8 heads of 2048 queries and keys, or of another length, at its head dim.
The report has the counters of that launch.
"""
import argparse
import csv
import json
import subprocess
import sys

METRICS = {
    "gpu__time_duration.sum": "us",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": "tensor_pipe_percent",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "achieved_occupancy_percent",
    "sm__inst_executed.avg.per_cycle_active": "instructions_per_cycle",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": "shared_bank_conflicts",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": "shared_wavefronts",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_percent",
}
BATCH, HEADS = 4, 8


def table():
    return json.loads(subprocess.run(["./ferroflash", "kernels", "--json"], capture_output=True, text=True, check=True).stdout)


def launch(length, texts):
    """The program under ncu: one launch per entry."""
    import torch
    import ferroflash

    for row in entries(table()):
        if texts and not any(text in row["name"] for text in texts):
            continue
        dtype = torch.float16 if row["dtype"] == "f16" else torch.bfloat16
        q, k, v = (torch.randn(BATCH, length, HEADS, row["head_dim"], device="cuda", dtype=dtype) for _ in range(3))
        window = (512, 0) if row["mask"] == "local" else (-1, -1)
        ferroflash.flash_attn_func(q, k, v, causal=row["mask"] == "causal", window_size=window, config=row["name"])
        torch.cuda.synchronize()


def entries(rows):
    rows = rows if isinstance(rows, list) else rows["kernels"]
    return [{**row, "name": row.get("name") or row.get("symbol")} for row in rows]


def main(out, length, texts):
    kernels = ["--kernel-name", "regex:^(fwd|hopper)_", "--metrics", ",".join(METRICS)]
    command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw", *kernels]
    again = [sys.executable, __file__, out, "--launch", "--length", str(length), *texts]
    done = subprocess.run([*command, *again], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(lines))[1:]  # the first row holds units
    if not rows:
        sys.exit("ncu gave nothing:\n" + done.stdout[-2000:] + done.stderr[-2000:])
    silent = [text for text in texts if not any(text in row["Kernel Name"] for row in rows)]
    if silent:
        sys.exit(f"no launch under ncu of {', '.join(silent)}: name kernels on dense tensors\n" + done.stderr[-2000:])
    number = lambda text: float(text.replace(",", "") or "nan")
    report = [{"entry": row["Kernel Name"].split("(")[0], **{name: number(row[metric]) / (1000 if name == "us" else 1) for metric, name in METRICS.items()}} for row in rows]
    wrong = [r["entry"] for r in report if (r["tensor_pipe_percent"] >= 0.1) == r["entry"].endswith("_scalar")]
    shape = {"batch": BATCH, "heads": HEADS, "length": length}
    with open(out, "w") as file:
        json.dump({"command": "python3 nsight.py", "shape": shape, "entries": report}, file, indent=1)
    for r in report:
        print(f'{r["entry"]:36} {r["us"]:9.1f} us  tensor {r["tensor_pipe_percent"]:5.1f} %  occupancy {r["achieved_occupancy_percent"]:5.1f} %  '
              f'conflicts {r["shared_bank_conflicts"]:10.0f} of {r["shared_wavefronts"]:12.0f} wavefronts  DRAM {r["dram_percent"]:4.1f} %')
    if wrong:
        sys.exit(f"tensor cores used or unused against expectation: {wrong}")


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out", help="JSON file")
    ap.add_argument("texts", nargs="*", metavar="TEXT", help="only entries whose name contains one of these texts")
    ap.add_argument("--length", type=int, default=2048, help="queries and keys per head")
    ap.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    return ap.parse_intermixed_args()


if __name__ == "__main__":
    args = arguments()
    launch(args.length, args.texts) if args.launch else main(args.out, args.length, args.texts)
