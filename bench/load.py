#!/usr/bin/env python3
"""Load time and resident memory of cairn beside llama-server on the same file.

    bench/load.py --model M.gguf --cairn build/release/bin/cairn --llama-server PATH/llama-server [--context 4096] [--repeat 3] [--csv FILE]

Seconds from the start of the process to a healthy answer, and VmRSS / RssAnon then and after a prompt of 512 tokens; medians. The file is read
once before, so that both load from the page cache. Standard library only.
"""
import argparse, csv, os, random, re, statistics

from server_process import ServerProcess


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", required=True)
    p.add_argument("--cairn", default="build/release/bin/cairn")
    p.add_argument("--llama-server", required=True)
    p.add_argument("--context", type=int, default=4096)
    p.add_argument("--vocab", type=int, default=150000, help="token ids are drawn below this")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--realtime", action="store_true", help="run the servers under chrt -f 10")
    p.add_argument("--csv")
    return p.parse_args()


def memory(pid):
    """VmRSS and RssAnon in MiB"""
    with open(f"/proc/{pid}/status") as f:
        text = f.read()
    return [int(re.search(name + r":\s+(\d+)", text)[1]) / 1024 for name in ("VmRSS", "RssAnon")]


def run(a, command):
    with ServerProcess(command, a.realtime, poll_seconds=0.01) as server:
        loaded = memory(server.process.pid)
        rng = random.Random(1)
        server.post("/v1/completions", {"prompt": [rng.randrange(3, a.vocab) for _ in range(512)], "max_tokens": 1}, timeout=600)
        return [server.healthy_seconds] + loaded + memory(server.process.pid)


def main():
    a = arguments()
    with open(a.model, "rb") as f:
        while f.read(1 << 24):
            pass
    size = os.path.getsize(a.model) / 2**20
    runs = {"cairn": [], "llama-server": []}
    for _ in range(a.repeat):
        runs["cairn"].append(run(a, [a.cairn, "serve", "--model", a.model, "--threads", str(a.threads), "--context-length", str(a.context)]))
        runs["llama-server"].append(run(a, [a.llama_server, "-m", a.model, "-t", str(a.threads), "-c", str(a.context)]))
    rows = []
    print(f"{os.path.basename(a.model)}: {size:.0f} MiB")
    for name, values in runs.items():
        m = [statistics.median(column) for column in zip(*values)]
        print(f"{name:<13} healthy after {m[0]:.2f} s; RSS {m[1]:.0f} MiB (anonymous {m[2]:.0f}), after 512 tokens {m[3]:.0f} MiB (anonymous {m[4]:.0f})")
        rows.append([os.path.basename(a.model), f"{size:.0f}", name] + [f"{v:.2f}" for v in m])
    if a.csv:
        new = not os.path.exists(a.csv)
        with open(a.csv, "a", newline="") as f:
            w = csv.writer(f)
            if new:
                w.writerow("model file_mib engine healthy_seconds loaded_rss_mib loaded_anon_mib used_rss_mib used_anon_mib".split())
            w.writerows(rows)


main()
