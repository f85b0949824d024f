#!/usr/bin/env python3
"""Speed of cairn beside a peer on the same model file, in one run: the two alternate, and ratios of medians are printed with their spread.

    bench/compare.py --model M.gguf --cairn build/release/bin/cairn --llama-bench PATH/llama-bench [--threads 2] [--repeat 5]
                     [--prefill 512] [--decode 16] [--cpu-level avx2] [--realtime] [--csv bench/results/NAME.csv]

`--llama-bench` is llama.cpp's or ik_llama.cpp's tool, built natively by you (its system info is printed, so that a build without this
machine's instructions shows). `--realtime` runs both sides under `chrt -f 10`: for machines that other work shares. A figure counts only as a
ratio inside one run. Standard library only.
"""
import argparse, csv, json, os, platform, re, shlex, statistics, subprocess, sys


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", required=True)
    p.add_argument("--cairn", default="build/release/bin/cairn")
    p.add_argument("--llama-bench", required=True, help="the peer's bench command; may carry flags, e.g. 'llama-bench -rtr 1'")
    p.add_argument("--peer-name", default="llama.cpp")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--repeat", type=int, default=5)
    p.add_argument("--prefill", type=int, default=512)
    p.add_argument("--decode", type=int, default=16)
    p.add_argument("--cpu-level", help="force cairn's level")
    p.add_argument("--realtime", action="store_true")
    p.add_argument("--csv", help="append one row a figure here")
    return p.parse_args()


def run(a, command):
    prefix = ["chrt", "-f", "10"] if a.realtime else []
    done = subprocess.run(prefix + command, capture_output=True, text=True, timeout=3600)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done


def run_cairn(a):
    command = [a.cairn, "bench", "--model", a.model, "--threads", str(a.threads), "--prefill", str(a.prefill), "--decode", str(a.decode),
               "--batch", "1", "--branch", "0", "--repeat", "1", "--json"]
    if a.cpu_level:
        command += ["--cpu-level", a.cpu_level]
    return json.loads(run(a, command).stdout)


def run_peer(a):
    command = shlex.split(a.llama_bench) + ["-m", a.model, "-t", str(a.threads), "-p", str(a.prefill), "-n", str(a.decode), "-r", "1", "-o", "json"]
    done = run(a, command)
    rows = json.loads(done.stdout[done.stdout.index("["):])
    figures = {("prefill" if r["n_gen"] == 0 else "decode"): r["avg_ts"] for r in rows}
    return figures, rows[0]


def cpu_model():
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def commit():
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=os.path.dirname(os.path.abspath(__file__)))
    return done.stdout.strip() or "unknown"


def spread(values):
    return (max(values) - min(values)) / statistics.median(values)


def main():
    a = arguments()
    ours, peers, info, roof = {"prefill": [], "decode": []}, {"prefill": [], "decode": []}, {}, []
    for i in range(a.repeat):
        c = run_cairn(a)
        ours["prefill"].append(c["prefill_tps"])
        ours["decode"].append(c["decode_tps"])
        roof.append(c["roof"])
        figures, info = run_peer(a)
        for k, v in figures.items():
            peers[k].append(v)
        print(f"run {i + 1}: cairn {c['prefill_tps']:.0f} / {c['decode_tps']:.1f}, {a.peer_name} {figures['prefill']:.0f} / {figures['decode']:.1f} tokens/s", flush=True)
    print(f"peer: {info.get('cpu_info', '')} build {info.get('build_commit', '')}, backend {info.get('backends', '')}")
    read = statistics.median(r["read_gbps"] for r in roof)
    int8 = statistics.median(r["int8_gops"] for r in roof)
    rows = []
    for k in ("prefill", "decode"):
        m, p = statistics.median(ours[k]), statistics.median(peers[k])
        line = f"{k}: cairn {m:.1f} (spread {100 * spread(ours[k]):.0f} %), {a.peer_name} {p:.1f} (spread {100 * spread(peers[k]):.0f} %): ratio {m / p:.2f}"
        if k == "decode":
            line += f"; {100 * m * c['bytes_per_token'] / (read * 1e9):.0f} % of {read:.1f} GB/s"
        print(line)
        rows.append([commit(), cpu_model(), c["cpu_level"], a.threads, os.path.basename(a.model), a.peer_name, k,
                     a.prefill if k == "prefill" else a.decode, f"{m:.2f}", f"{spread(ours[k]):.3f}", f"{p:.2f}", f"{spread(peers[k]):.3f}",
                     f"{m / p:.3f}", f"{int8:.0f}", f"{read:.1f}"])
    if a.csv:
        new = not os.path.exists(a.csv)
        with open(a.csv, "a", newline="") as f:
            w = csv.writer(f)
            if new:
                w.writerow("commit cpu level threads model peer figure tokens cairn_tps cairn_spread peer_tps peer_spread ratio roof_int8_gops roof_read_gbps".split())
            w.writerows(rows)


main()
