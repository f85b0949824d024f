#!/usr/bin/env python3
"""A server under load, through the routes that OpenAI clients use, so that cairn and llama-server are measured alike.

    bench/serving.py streams    --model M.gguf --cairn build/release/bin/cairn --llama-server PATH/llama-server   streams beside a long prompt
    bench/serving.py siblings   ...                                                        many prompts with one new prefix, at once
    bench/serving.py throughput ...                                                        prefill and decode rates by number of clients

`--url NAME=http://HOST:PORT` measures a server that runs already (may be given more than once). Servers that are started are started one
after the other, alone, on a free port of 127.0.0.1, and ended afterwards. Prompts are arrays of random token ids, the same for every server;
answers are forced to one plain token (logit_bias), so that each token is one event. One JSON object a figure on standard output; `--csv FILE`
appends a row each. `--realtime` starts servers under `chrt -f 10`, for machines that other work shares. Standard library only.
"""
import argparse, csv, http.client, json, os, random, shlex, socket, statistics, sys, threading, time

from server_process import ServerProcess, wait_healthy

START_SECONDS = 600
WAIT_SECONDS = 3600


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("what", choices=["streams", "siblings", "throughput"])
    p.add_argument("--model")
    p.add_argument("--cairn", help="command; may carry flags")
    p.add_argument("--llama-server", help="command; may carry flags")
    p.add_argument("--url", action="append", default=[], help="NAME=URL of a server that runs")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--context", type=int, default=40960, help="tokens of one request")
    p.add_argument("--realtime", action="store_true")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--vocab", type=int, default=20000, help="token ids are drawn below this (2000 for the bundled model)")
    p.add_argument("--csv")
    p.add_argument("--streams", type=int, default=8)
    p.add_argument("--quiet-seconds", type=float, default=20)
    p.add_argument("--long-prompt", type=int, default=30000)
    p.add_argument("--siblings", type=int, default=16)
    p.add_argument("--shared", type=int, default=4096)
    p.add_argument("--clients", default="1,4,8,16,32")
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--generate", type=int, default=64)
    return p.parse_args()


class Server:
    """A server under measurement; started by us if `command` is given."""

    def __init__(self, name, url=None, command=None, realtime=False):
        self.name, self.process = name, None
        if command:
            self.process = ServerProcess(command, realtime, f"/tmp/bench-serving-{name}-{{port}}.log", START_SECONDS)
            url = self.process.url
        self.host = url.split("//")[1].rstrip("/")
        if not command:
            wait_healthy(f"http://{self.host}", name, seconds=START_SECONDS)
        self.token = self.plain_token()

    def plain_token(self):
        c = http.client.HTTPConnection(self.host, timeout=60)
        c.request("POST", "/tokenize", json.dumps({"content": " a"}), {"Content-Type": "application/json"})
        tokens = json.loads(c.getresponse().read())["tokens"]
        c.close()
        return tokens[-1]

    def get(self, path):
        c = http.client.HTTPConnection(self.host, timeout=60)
        c.request("GET", path)
        r = c.getresponse()
        data = r.read()
        c.close()
        return r.status, data

    def processed_tokens(self):
        """Prompt tokens computed since the start, by the server's own count."""
        for line in self.get("/metrics")[1].decode().splitlines():
            if line.startswith("llamacpp:prompt_tokens_total"):
                return float(line.rsplit(" ", 1)[1])
        return float("nan")

    def complete(self, prompt, max_tokens, stop=None):
        """The moments of the answer's tokens, streamed; ends early when `stop` is set."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True, "ignore_eos": True, "logit_bias": {str(self.token): 100}}
        c = http.client.HTTPConnection(self.host, timeout=WAIT_SECONDS)
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        times = []
        if r.status != 200:
            raise RuntimeError(f"{self.name}: status {r.status}: {r.read()[:300]!r}")
        for line in r:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"{self.name}: {event['error']}")
            if event.get("choices") and event["choices"][0].get("text"):
                times.append(time.perf_counter())
            if stop is not None and stop.is_set():
                c.sock.shutdown(socket.SHUT_RDWR)
                break
        c.close()
        return times

    def stop(self):
        if self.process:
            self.process.stop()


def servers(a, slots):
    """One after the other."""
    for given in a.url:
        name, url = given.split("=", 1)
        yield Server(name, url=url)
    if a.cairn:
        command = shlex.split(a.cairn) + ["serve", "--model", a.model, "--threads", str(a.threads), "--context-length", str(a.context),
                                          "--decode-concurrency", str(slots), "--prompt-concurrency", str(slots), "--log-level", "warning"]
        yield Server("cairn", command=command, realtime=a.realtime)
    if a.llama_server:
        command = shlex.split(a.llama_server) + ["-m", a.model, "-t", str(a.threads), "-tb", str(a.threads), "-np", str(slots), "-c", str(a.context * 2),
                                                 "-kvu", "--metrics", "--host", "127.0.0.1"]
        yield Server("llama-server", command=command, realtime=a.realtime)


def random_tokens(a, rng, count):
    return [rng.randrange(a.vocab // 20, a.vocab) for _ in range(count)]


def together(jobs):
    """Runs the functions in threads; their results in order."""
    results, errors = [None] * len(jobs), []

    def run(i):
        try:
            results[i] = jobs[i]()
        except Exception as e:
            errors.append(e)
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


def report(a, server, figures):
    row = {"what": a.what, "server": server.name, "model": os.path.basename(a.model or ""), "threads": a.threads, **figures}
    print(json.dumps(row), flush=True)
    if a.csv:
        new = not os.path.exists(a.csv)
        with open(a.csv, "a", newline="") as f:
            w = csv.DictWriter(f, fieldnames=list(row))
            if new:
                w.writeheader()
            w.writerow(row)


def gaps(times, begin, end):
    """Milliseconds between neighbouring tokens of one stream, the later one in [begin, end)."""
    return [1e3 * (b - x) for x, b in zip(times, times[1:]) if begin <= b < end]


def streams(a, server):
    rng, stop, seen = random.Random(a.seed), threading.Event(), [[] for _ in range(a.streams)]
    prompts = [random_tokens(a, rng, 64) for _ in range(a.streams)]
    long_prompt = random_tokens(a, rng, a.long_prompt)

    def stream(i):
        while not stop.is_set():
            seen[i].append(server.complete(prompts[i], 4000, stop))

    def visitor():
        time.sleep(a.quiet_seconds + 5)  # the first five seconds do not count
        sent = time.perf_counter()
        try:
            first = server.complete(long_prompt, 1)[0]
            time.sleep(2)
        finally:
            stop.set()
        return sent, first
    results = together([lambda i=i: stream(i) for i in range(a.streams)] + [visitor])
    sent, first = results[-1]
    before = [g for runs in seen for times in runs for g in gaps(times, sent - a.quiet_seconds, sent)]
    during = [g for runs in seen for times in runs for g in gaps(times, sent, first)]
    # A stream that got nothing at all while the prompt was read waited for all of it.
    during += [1e3 * (first - sent) for runs in seen if not any(sent <= t < first for times in runs for t in times)]
    report(a, server, {"streams": a.streams, "long_prompt": a.long_prompt, "quiet_p50_ms": round(quantile(before, 0.5), 1),
                       "quiet_p99_ms": round(quantile(before, 0.99), 1), "during_p50_ms": round(quantile(during, 0.5), 1),
                       "during_p99_ms": round(quantile(during, 0.99), 1), "during_max_ms": round(max(during), 1),
                       "p99_over_quiet_p50": round(quantile(during, 0.99) / quantile(before, 0.5), 2), "long_prompt_s": round(first - sent, 1)})


def siblings(a, server):
    rng = random.Random(a.seed)
    shared = random_tokens(a, rng, a.shared)
    prompts = [shared + random_tokens(a, rng, 16 + i) for i in range(a.siblings)]
    before, begin = server.processed_tokens(), time.perf_counter()
    first = [1e3 * (t[0] - begin) for t in together([lambda p=p: server.complete(p, 8) for p in prompts])]
    time.sleep(1)
    report(a, server, {"siblings": a.siblings, "shared": a.shared, "ttft_p50_ms": round(quantile(first, 0.5)), "ttft_p99_ms": round(quantile(first, 0.99)),
                       "prompt_tokens_sent": sum(map(len, prompts)), "prompt_tokens_computed": server.processed_tokens() - before})


def throughput(a, server):
    rng = random.Random(a.seed)
    for clients in map(int, a.clients.split(",")):
        prompts = [random_tokens(a, rng, a.prompt) for _ in range(clients)]
        begin = time.perf_counter()
        together([lambda p=p: server.complete(p, 1) for p in prompts])
        prefill = clients * a.prompt / (time.perf_counter() - begin)
        times = together([lambda p=p: server.complete(p[:16], a.generate) for p in prompts])
        span = max(t[-1] for t in times) - min(t[0] for t in times)
        decode = sum(len(t) - 1 for t in times) / span
        report(a, server, {"clients": clients, "prompt": a.prompt, "generate": a.generate, "prefill_tps": round(prefill, 1), "decode_tps": round(decode, 1),
                           "inter_token_p50_ms": round(statistics.median(g for t in times for g in gaps(t, 0, float("inf"))), 1)})


def main():
    a = arguments()
    if (a.cairn or a.llama_server) and not a.model:
        sys.exit("--model is wanted")
    slots = {"streams": a.streams + 1, "siblings": a.siblings, "throughput": max(map(int, a.clients.split(",")))}[a.what]
    for server in servers(a, slots):
        try:
            {"streams": streams, "siblings": siblings, "throughput": throughput}[a.what](a, server)
        finally:
            server.stop()


main()
