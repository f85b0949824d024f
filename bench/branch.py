#!/usr/bin/env python3
"""The case cairn exists for, beside llama-server: a long prompt, then the same prompt changed near its end. Tokens computed and seconds of both.

    bench/branch.py --model M.gguf --cairn build/release/bin/cairn [--llama-server PATH/llama-server] [--tokens 32000] [--changed 30000]
                    [--vocab 150000] [--realtime] [--csv FILE]

Each server is started alone, with its default flags but for threads and context length, gets both prompts as token arrays, and is stopped. For
cairn the changed prompt is also asked with the cache off, and the replies (text and the best five logprobs of 8 tokens) must be equal.
Standard library only.
"""
import argparse, csv, os, random, sys, time

from server_process import ServerProcess


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", required=True)
    p.add_argument("--cairn", default="build/release/bin/cairn")
    p.add_argument("--llama-server")
    p.add_argument("--tokens", type=int, default=32000)
    p.add_argument("--changed", type=int, default=30000)
    p.add_argument("--vocab", type=int, default=150000, help="token ids are drawn below this")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--realtime", action="store_true", help="run the servers under chrt -f 10")
    p.add_argument("--csv")
    return p.parse_args()


def ask(server, prompt, **fields):
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 5, "ignore_eos": True, **fields}
    start = time.time()
    return server.post("/v1/completions", body, timeout=7200), time.time() - start


def measure(name, command, realtime, prompt, changed, rows):
    with ServerProcess(command, realtime) as server:
        cold, seconds = ask(server, prompt)
        t = cold["timings"]
        rows.append([name, "cold", t["prompt_n"], round(t["prompt_ms"] / 1e3, 2), round(seconds, 2), "", cold.get("cairn", {}).get("restore_point", "")])
        branch, seconds = ask(server, changed)
        t, equal = branch["timings"], ""
        if "cairn" in branch:
            again, _ = ask(server, changed, cache_prompt=False)
            signature = lambda r: (r["choices"][0]["text"], r["choices"][0]["logprobs"]["content"])
            equal = "equal" if signature(branch) == signature(again) else "DIFFERENT"
        rows.append([name, "branch", t["prompt_n"], round(t["prompt_ms"] / 1e3, 2), round(seconds, 2), equal, branch.get("cairn", {}).get("restore_point", "")])
    for row in rows[-2:]:
        print("{:<14} {:<7} computed {:>6} tokens in {:>8} s (reply after {} s) {} {}".format(*row[:5], row[5], f"restore point {row[6]}" if row[6] != "" else ""), flush=True)


def main():
    a = arguments()
    rng = random.Random(5)
    prompt = [rng.randrange(3, a.vocab) for _ in range(a.tokens)]
    changed = list(prompt)
    changed[a.changed] = 3 + (changed[a.changed] + 7) % (a.vocab - 3)
    rows, context = [], str(a.tokens + 1024)
    measure("cairn", [a.cairn, "serve", "--model", a.model, "--threads", str(a.threads), "--context-length", context],
            a.realtime, prompt, changed, rows)
    if a.llama_server:
        measure("llama-server", [a.llama_server, "-m", a.model, "-t", str(a.threads), "-c", context], a.realtime, prompt, changed, rows)
    if a.csv:
        new = not os.path.exists(a.csv)
        with open(a.csv, "a", newline="") as f:
            w = csv.writer(f)
            if new:
                w.writerow("model engine prompt computed_tokens prompt_seconds reply_seconds equal restore_point".split())
            w.writerows([[os.path.basename(a.model)] + r for r in rows])
    if any(r[5] == "DIFFERENT" for r in rows):
        sys.exit(1)


main()
