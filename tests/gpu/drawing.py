"""Runs test functions of other projects, unmodified, with random parameters, and counts the results."""
import argparse
import collections
import contextlib
import functools
import hashlib
import importlib.util
import itertools
import json
import os
import random
import re
import time
import traceback

import pytest
import torch

import ferroflash


def parameters(test, absent):
    """Every combination of a test's parameters, and how many are left out: ([{name: value}], {reason: count}).

    `absent` lists (parameter, values that are never drawn, reason).
    """
    sets = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            names = [name.strip() for name in mark.args[0].split(",")]
            sets.append([dict(zip(names, value if len(names) > 1 else [value])) for value in mark.args[1]])
    kept, left_out = [], collections.Counter()
    for parts in itertools.product(*sets):
        case = {name: value for part in parts for name, value in part.items()}
        why = next((reason for name, lacking, reason in absent if name in case and lacking(case[name])), None)
        if why is None:
            kept.append(case)
        else:
            left_out[why] += 1
    return kept, dict(left_out)


def attempt(test, case):
    """The result of one case, and its reason: ("passed" | "skipped" | "failed", words)."""
    try:
        with contextlib.redirect_stdout(open(os.devnull, "w")):
            test(**case)
        return "passed", ""
    except pytest.skip.Exception as reason:
        return "skipped", str(reason) or "the test's own choice"
    except pytest.xfail.Exception as reason:
        return "skipped", f"the test expects to fail: {reason}"[:160]
    except (ferroflash.Unsupported, torch.cuda.OutOfMemoryError) as reason:
        return "skipped", re.sub(r"\d+", "N", str(reason))[:160]
    except (Exception, pytest.fail.Exception) as reason:
        where = traceback.extract_tb(reason.__traceback__)[-1]
        return "failed", f"{where.name}:{where.lineno}: {type(reason).__name__}: {str(reason)[:300]}"


def on_the_device(test):
    """`test` with the GPU as the default device of its tensors."""
    @functools.wraps(test)
    def wrapped(**case):
        with torch.device("cuda"):
            test(**case)
    return wrapped


def run(test, absent, args, until):
    """The report of one test."""
    cases, left_out = parameters(test, absent)
    random.Random(args.seed).shuffle(cases)
    skipped, failed, counts = collections.Counter(), [], collections.Counter()
    for case in cases[:args.sample]:
        if counts and time.monotonic() > until:
            break
        torch.manual_seed(args.seed)
        what, why = attempt(test, case)
        counts[what] += 1
        if what == "skipped":
            skipped[why] += 1
        elif what == "failed":
            failed.append({"case": {name: str(value) for name, value in case.items()}, "why": why})
            print(f"  FAILED {case}: {why}", flush=True)
    return {"test": test.__name__, "combinations": len(cases) + sum(left_out.values()), "left_out": left_out,
            "drawn": sum(counts.values()), "passed": counts["passed"], "skipped": dict(skipped), "failed": failed}


def run_all(tests, absent, args):
    """The reports of all tests. Each test gets an equal share of the remaining time, and runs at least one case."""
    rows, end = [], time.monotonic() + args.seconds
    for i, test in enumerate(tests):
        now = time.monotonic()
        rows.append(run(test, absent, args, now + max(end - now, 0) / (len(tests) - i)))
        row = rows[-1]
        print(f'{row["test"]:60} {row["passed"]} passed, {sum(row["skipped"].values())} skipped, {len(row["failed"])} failed, '
              f'of {row["combinations"]} ({sum(row["left_out"].values())} left out)', flush=True)
        for why, count in (*row["skipped"].items(), *row["left_out"].items()):
            print(f'  {count} {"skipped" if why in row["skipped"] else "left out"}: {why}')
    return rows


def arguments(description, what, seconds):
    """A parser of the arguments that all programs of this kind have."""
    ap = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("theirs", help=what)
    ap.add_argument("out", help="JSON file")
    ap.add_argument("--tests", nargs="*", help="names of tests; all")
    ap.add_argument("--sample", type=int, default=500, help="cases of each test")
    ap.add_argument("--seconds", type=float, default=seconds, help="time for all tests together, in equal shares")
    ap.add_argument("--seed", type=int, default=1)
    return ap


def load(path):
    """Loads a test file as a module. Also returns its digest."""
    spec = importlib.util.spec_from_file_location(os.path.basename(path).removesuffix(".py"), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with open(path, "rb") as file:
        return module, hashlib.sha256(file.read()).hexdigest()


def finish(about, rows, args):
    """Writes the report, and returns the exit code."""
    failed, passed = sum(len(row["failed"]) for row in rows), sum(row["passed"] for row in rows)
    report = {"device": torch.cuda.get_device_name(), **about, "seed": args.seed, "passed": failed == 0, "tests": rows}
    with open(args.out, "w") as file:
        json.dump(report, file, indent=1)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0
