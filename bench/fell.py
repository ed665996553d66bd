"""Lists the rows of a report whose ratio to the same peer fell since an older report, also of another card.

    python3 fell.py OLD.json NEW.json                          # reports of serving.py, compare.py, mla.py, widths.py or variants.py
    python3 fell.py --by 0.1 OLD/serving.json ../docs/evidence/h100/serving-*.json

A ratio is the peer's time divided by FerroFlash's time, so it compares runs on different cards. Rows beside the time of bytes, and
beside FerroFlash itself, have no other library: a change may lie on either side. The exit code is the number of rows that fell.
"""
import argparse
import json
import sys


def ratios(paths):
    """Returns {(suite, label, timing, peer): ratio} of some reports."""
    found = {}
    for path in paths:
        with open(path) as file:
            rows = json.load(file).get("rows", [])
        for row in rows:
            if row.get("peer") != "ferroflash" and "ratio" in row:
                found[row.get("suite"), row["label"], row.get("timing"), row["peer"]] = row["ratio"]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="the older report")
    parser.add_argument("new", nargs="+", help="the newer reports")
    parser.add_argument("--by", type=float, default=0.05, help="least relative fall of a listed row")
    args = parser.parse_args()
    old, new = ratios([args.old]), ratios(args.new)
    both = [key for key in old if key in new]
    fallen = sorted((new[key] / old[key], key) for key in both if new[key] < (1 - args.by) * old[key])
    for change, key in fallen:
        suite, label, timing, peer = key
        print(f"{change:.2f}  {suite or ''} {label} {timing or ''}: {old[key]:.3f} of {peer}, now {new[key]:.3f}")
    print(f"{len(fallen)} of {len(both)} rows fell by more than {args.by:.0%}", file=sys.stderr)
    sys.exit(min(len(fallen), 100))


if __name__ == "__main__":
    main()
