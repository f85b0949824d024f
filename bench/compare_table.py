#!/usr/bin/env python3
"""Markdown tables from the CSV files that bench/compare.py writes.

    bench/compare_table.py bench/results/NAME.csv [--gop-per-token 1.0]

One row a model file: tokens a second, the ratio to the better setting of each peer, the share of the roof. A peer that was measured under several
names, as `ik_llama.cpp` and `ik_llama.cpp -rtr 1`, counts with its faster one. The share of prefill is tokens a second x --gop-per-token (twice the
weights a prompt token uses, in 1e9; attention left out) over the int8 roof, the highest of the file's runs; float types have no such share. That of decode is the
one in the file: bytes a token over the reading roof, the median of the runs beside each peer. Standard library only.
"""
import argparse, csv, statistics


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("files", nargs="+")
    p.add_argument("--gop-per-token", type=float, default=1.0)
    return p.parse_args()


def percent(values):
    values = [float(v) for v in values if v]
    return f"{100 * statistics.median(values):.0f} %" if values else ""


def share(figure, rows, roof_gops, gop_per_token):
    if figure != "prefill":
        return percent(r["decode_share"] for r in rows)
    if any(name in rows[0]["model"].lower() for name in ("f16", "f32")):
        return ""
    return percent(float(r["cairn_tps"]) * gop_per_token / roof_gops for r in rows)


def table(rows, figure, gop_per_token):
    roof_gops = max(float(r["roof_int8_gops"]) for r in rows)
    peers = list(dict.fromkeys(r["peer"].split()[0] for r in rows))
    print(f"\n| {figure} | cairn | share of the roof |" + "".join(f" {p} | ratio |" for p in peers))
    print("|---|---|---|" + "---|---|" * len(peers))
    for model in dict.fromkeys(r["model"] for r in rows):
        mine = [r for r in rows if r["model"] == model]
        line = f"| {model} | {statistics.median(float(r['cairn_tps']) for r in mine):.0f} | {share(figure, mine, roof_gops, gop_per_token)} |"
        for peer in peers:
            # The better setting: by the peer's own speed, with the ratio of that run.
            runs = sorted((r for r in mine if r["peer"].split()[0] == peer), key=lambda r: float(r["peer_tps"]))
            line += f" {float(runs[-1]['peer_tps']):.0f} | {float(runs[-1]['ratio']):.2f} |" if runs else " | |"
        print(line)


def main():
    a = arguments()
    for name in a.files:
        with open(name, newline="") as f:
            rows = list(csv.DictReader(f))
        keys = dict.fromkeys((r["level"], r["figure"], r["depth"], r["tokens"]) for r in rows)
        for level, figure, depth, tokens in keys:
            chosen = [r for r in rows if (r["level"], r["figure"], r["depth"], r["tokens"]) == (level, figure, depth, tokens)]
            print(f"\n{level}, {figure} of {tokens} at depth {depth}, {chosen[0]['threads']} threads, {chosen[0]['cpu']}, commit {chosen[0]['commit']}")
            table(chosen, figure, a.gop_per_token)


if __name__ == "__main__":
    main()
