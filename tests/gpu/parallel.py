"""A command of ./ferroflash over all kernels, some of them in each of many processes, and one report of all.

    python3 parallel.py verify verify.json --all-configs
    python3 parallel.py soak soak.json --launches 100
    python3 parallel.py verify verify.json --all-configs --only decode hopper_paged   # whose names contain a TEXT

Most of such a command's time is the reference's, on one core. Kernels whose process says nothing are in the report's
`failures`, and the exit code is then 1.
"""
import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

TOGETHER = 3


def names():
    """All kernels but those that finish what others leave, and run with these."""
    said = subprocess.run(["./ferroflash", "kernels", "--json"], capture_output=True, text=True, check=True)
    kernels = json.loads(said.stdout)["kernels"]
    return [kernel["name"] for kernel in kernels if not (kernel["what"] or "").startswith("finishes")]


def some(command, kernels, options):
    """The report of some kernels, or what their process said instead."""
    configs = [word for name in kernels for word in ("--config", name)]
    said = subprocess.run(["./ferroflash", command, *configs, *options, "--json", "--device", "gpu"],
                          capture_output=True, text=True)
    try:
        return kernels, json.loads(said.stdout), said.stderr
    except json.JSONDecodeError:
        return kernels, None, said.stderr


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("command")
    ap.add_argument("out", help="JSON file")
    ap.add_argument("--only", nargs="+", metavar="TEXT", default=[""], help="kernels whose names contain one of these")
    args, options = ap.parse_known_args()
    command, out = args.command, args.out
    began, kernels = time.time(), [name for name in names() if any(text in name for text in args.only)]
    parts = [kernels[n:n + TOGETHER] for n in range(0, len(kernels), TOGETHER)]
    whole, failures = None, []
    with ThreadPoolExecutor(int(1.5 * (os.cpu_count() or 1))) as pool:
        for kernels, report, stderr in pool.map(lambda part: some(command, part, options), parts):
            if report is None or "error" in report:
                failures.append({"kernels": kernels, "said": (report or {}).get("error", stderr[-400:])})
            if report is None or "kernels" not in report:
                continue
            if whole is None:
                whole = report
            else:
                for key, value in report.items():
                    whole[key] = whole[key] + value if isinstance(value, list) else whole[key]
                whole["passed"] = whole["passed"] and report["passed"]
    whole = {**(whole or {}), "seconds": time.time() - began}
    if failures:
        whole = {**whole, "passed": False, "failures": failures}
    with open(out, "w", encoding="utf-8") as file:
        json.dump(whole, file, indent=1)
    print(f"{command}: {len(whole.get('kernels', []))} kernels, {len(failures)} failures, {whole['seconds']:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
