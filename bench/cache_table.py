#!/usr/bin/env python3
"""Runs `cairn bench cache` on the built-in traces and puts its table into docs/cache_policies.md.

Usage: cache_table.py --bin build/release/bin/cairn [--requests 400] [--seed 1] [--csv FILE]
--csv FILE: takes the figures from FILE instead of running. Writes bench/results/cache_policies.csv and the
text between the two marks of the page.
"""
import argparse
import csv
import io
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "cache_policies.md"
RESULTS = ROOT / "bench" / "results" / "cache_policies.csv"
BEGIN, END = "<!-- table: bench/cache_table.py -->\n", "<!-- end of table -->"
POLICIES = ["value", "lru", "lru-type", "grid-only", "future"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default=str(ROOT / "build" / "release" / "bin" / "cairn"))
    parser.add_argument("--requests", default="400")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--csv")
    args = parser.parse_args()
    if args.csv:
        text = pathlib.Path(args.csv).read_text(encoding="utf-8")
    else:
        text = subprocess.run([args.bin, "bench", "cache", "--csv", "--requests", args.requests, "--seed", args.seed],
                              check=True, capture_output=True, text=True).stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    RESULTS.write_text(text, encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + BEGIN + table(rows) + END + after, encoding="utf-8")


def table(rows):
    lines = ["| trace | budget | " + " | ".join(POLICIES) + " | value - lru | replayed: value | replayed: lru |",
             "|---|---|" + "---|" * (len(POLICIES) + 3)]
    found = {}
    for row in rows:
        found.setdefault(row["trace"], {})[(float(row["budget_percent"]), row["policy"])] = row
    for trace, cells in found.items():
        infinite = cells[(100.0, "infinite")]
        lines.append(f"| **{trace}** | infinite: {int(infinite['bytes_max']) / 2**30:.1f} GiB "
                     f"| {100 * float(infinite['hit_rate']):.1f} | | | | | | "
                     f"{int(infinite['replayed_tokens']):,} | |")
        for budget in sorted({b for b, policy in cells if policy != "infinite"}):
            rates = {p: 100 * float(cells[(budget, p)]["hit_rate"]) for p in POLICIES}
            difference = rates["value"] - rates["lru"]
            lines.append(f"| {trace} | {budget:g} % | " + " | ".join(f"{rates[p]:.1f}" for p in POLICIES)
                         + f" | {difference:+.1f} | {int(cells[(budget, 'value')]['replayed_tokens']):,}"
                         + f" | {int(cells[(budget, 'lru')]['replayed_tokens']):,} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
