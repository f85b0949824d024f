#!/usr/bin/env python3
"""Speed of cairn beside a peer on the same model file, in one run: the two alternate, and ratios of medians are printed with their spread.

    bench/compare.py --model M.gguf --cairn build/release/bin/cairn --llama-bench PATH/llama-bench [--threads 2] [--repeat 5]
                     [--prefill 512] [--decode 16] [--depth 4096] [--cpu-level avx2] [--realtime] [--csv bench/results/NAME.csv]
                     [--batch 8 --batched-bench PATH/llama-batched-bench] [--sweep-bench PATH/llama-sweep-bench]

`--llama-bench` is llama.cpp's or ik_llama.cpp's tool, built natively by you (its system info is printed, so that a build without this
machine's instructions shows). `--realtime` runs both sides under `chrt -f 10`: for machines that other work shares. A figure counts only as a
ratio inside one run. `--depth` measures after that many tokens (the peer with flash attention); ik_llama.cpp's llama-bench has no such flag, its
llama-sweep-bench is read instead (`--sweep-bench`). `--batch` adds the decode of that many sequences at once. Standard library only.
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
    p.add_argument("--depth", type=int, default=0, help="tokens in the state before the measured ones")
    p.add_argument("--batch", type=int, default=1, help="sequences that decode at once, as a third figure")
    p.add_argument("--batched-bench", help="the peer's llama-batched-bench, for --batch")
    p.add_argument("--sweep-bench", help="the peer's llama-sweep-bench, for --depth where its llama-bench cannot")
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
               "--depth", str(a.depth), "--context-length", str(max(256, a.depth + a.prefill + a.decode + 64)), "--batch", str(a.batch),
               "--branch", "0", "--repeat", "1", "--json"]
    if a.cpu_level:
        command += ["--cpu-level", a.cpu_level]
    return json.loads(run(a, command).stdout)


def run_peer(a):
    """figure -> tokens a second, and what the peer says of itself"""
    if a.sweep_bench:
        figures, info = run_sweep(a), {}
    else:
        depth = ["-d", str(a.depth), "-fa", "1"] if a.depth else []
        command = shlex.split(a.llama_bench) + ["-m", a.model, "-t", str(a.threads), "-p", str(a.prefill), "-n", str(a.decode), "-r", "1", "-o", "json"]
        done = run(a, command + depth)
        rows = json.loads(done.stdout[done.stdout.index("["):])
        figures = {("prefill" if r["n_gen"] == 0 else "decode"): r["avg_ts"] for r in rows}
        info = rows[0]
    if a.batch > 1:
        figures["batched decode"] = run_batched(a)
    return figures, info


def run_batched(a):
    """llama-batched-bench: the column S_TG of its one row"""
    context = a.batch * (16 + a.decode) + 512
    done = run(a, shlex.split(a.batched_bench) + ["-m", a.model, "-t", str(a.threads), "-c", str(context), "-npp", "16", "-ntg", str(a.decode), "-npl", str(a.batch)])
    rows = table_rows(done.stdout, "S_TG t/s")
    return float(rows[-1]["S_TG t/s"])


def run_sweep(a):
    """llama-sweep-bench: its row at the depth"""
    done = run(a, shlex.split(a.sweep_bench) + ["-m", a.model, "-t", str(a.threads), "-c", str(a.depth + a.prefill), "-ub", str(a.prefill), "-fa", "1"])
    rows = [r for r in table_rows(done.stdout, "S_PP t/s") if int(r["N_KV"]) == a.depth]
    if not rows:
        sys.exit(f"sweep-bench has no row at depth {a.depth}; take a multiple of {a.prefill}")
    return {"prefill": float(rows[0]["S_PP t/s"]), "decode": float(rows[0]["S_TG t/s"])}


def table_rows(text, column):
    """rows of a |-table as dictionaries, the header being the line that names `column`"""
    header, rows = None, []
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if column in cells:
            header = cells
        elif header and len(cells) == len(header) and re.match(r"^\d", cells[0]):
            rows.append(dict(zip(header, cells)))
    return rows


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
    ours, peers, info, roof = {}, {}, {}, []
    for i in range(a.repeat):
        c = run_cairn(a)
        roof.append(c["roof"])
        figures, info = run_peer(a)
        mine = {"prefill": c["prefill_tps"], "decode": c["decode_tps"], "batched decode": c.get("batch_decode_tps")}
        for k, v in figures.items():
            ours.setdefault(k, []).append(mine[k])
            peers.setdefault(k, []).append(v)
        print(f"run {i + 1}: " + ", ".join(f"{k} cairn {mine[k]:.1f}, {a.peer_name} {v:.1f}" for k, v in figures.items()), flush=True)
    if info:
        print(f"peer: {info.get('cpu_info', '')} build {info.get('build_commit', '')}, backend {info.get('backends', '')}")
    report(a, c, ours, peers, roof)


def report(a, c, ours, peers, roof):
    read = statistics.median(r["read_gbps"] for r in roof)
    int8 = statistics.median(r["int8_gops"] for r in roof)
    rows = []
    for k in ours:
        m, p = statistics.median(ours[k]), statistics.median(peers[k])
        share = m * c["bytes_per_token"] / (read * 1e9) if k == "decode" else 0
        line = f"{k}: cairn {m:.1f} (spread {100 * spread(ours[k]):.0f} %), {a.peer_name} {p:.1f} (spread {100 * spread(peers[k]):.0f} %): ratio {m / p:.2f}"
        print(line + (f"; {100 * share:.0f} % of {read:.1f} GB/s" if share else ""))
        tokens = {"prefill": a.prefill, "decode": a.decode, "batched decode": a.batch * a.decode}[k]
        rows.append([commit(), cpu_model(), c["cpu_level"], a.threads, os.path.basename(a.model), a.peer_name, k + (f" x {a.batch}" if k == "batched decode" else ""),
                     a.depth, tokens, len(ours[k]), f"{m:.2f}", f"{spread(ours[k]):.3f}", f"{p:.2f}", f"{spread(peers[k]):.3f}", f"{m / p:.3f}", f"{int8:.0f}",
                     f"{read:.1f}", f"{share:.3f}" if share else ""])
    if a.csv:
        new = not os.path.exists(a.csv)
        with open(a.csv, "a", newline="") as f:
            w = csv.writer(f)
            if new:
                w.writerow("commit cpu level threads model peer figure depth tokens runs cairn_tps cairn_spread peer_tps peer_spread ratio roof_int8_gops "
                           "roof_read_gbps decode_share".split())
            w.writerows(rows)


main()
