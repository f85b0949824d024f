#!/usr/bin/env python3
"""Mixed load with random disconnects on a running server: errors that nobody asked for, replies that change, memory, gauges.

    build/release/bin/cairn serve --port 8080 --prompt-cache-bytes 64MiB &
    bench/soak.py --url http://127.0.0.1:8080 --pid $! --minutes 30 --clients 16
    bench/soak.py ... --clients 64 --solo --budget 1610612736     against solo runs, under `cairn serve --memory-budget 1536MiB`

Every client draws from one pool of prompts (chats, raw prompts, edits of them), plain or streamed, and leaves a share of the streams at a
random moment; some requests are wrong on purpose and must be answered 400. A greedy reply must equal the first reply to the same prompt,
whoever asks and whatever is cached. Bounded in time and clients; standard library only. Exit 1 if anything is off.
"""
import argparse, http.client, json, random, re, socket, statistics, sys, threading, time

WORDS = "hut trail lake pass summit ridge valley river bridge cabin lodge beds code water dogs opens closes snow rain wind sun night early late".split()


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--url", default="http://127.0.0.1:8080")
    p.add_argument("--pid", type=int, help="of the server, to watch its memory")
    p.add_argument("--minutes", type=float, default=30)
    p.add_argument("--clients", type=int, default=16)
    p.add_argument("--disconnect", type=float, default=0.2, help="share of streams that are left")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--solo", action="store_true", help="first ask every prompt alone, uncached: replies must equal these")
    p.add_argument("--budget", type=int, help="bytes of --memory-budget: resident memory must stay below")
    return p.parse_args()


class Pool:
    """Prompts that come again, and the first reply to each."""

    def __init__(self, seed):
        rng = random.Random(seed)
        text = lambda n: " ".join(rng.choice(WORDS) for _ in range(n))
        self.bodies = []
        for i in range(60):
            facts = [f"- Hut {k} has {rng.randrange(5, 99)} beds." for k in range(rng.randrange(3, 60))]
            messages = [{"role": "system", "content": "Here is what you know:\n" + "\n".join(facts)}]
            for _ in range(rng.randrange(1, 4)):
                messages += [{"role": "user", "content": f"How many beds has Hut {rng.randrange(3)}?"}, {"role": "assistant", "content": "I will look."}]
            self.bodies.append(("/v1/chat/completions", {"messages": messages[:-1]}))
        for i in range(40):
            prompt = text(rng.randrange(5, 700))
            self.bodies.append(("/v1/completions", {"prompt": prompt}))
            words = prompt.split()
            words[rng.randrange(len(words))] = "changed"
            self.bodies.append(("/v1/completions", {"prompt": " ".join(words)}))
        self.replies, self.lock = {}, threading.Lock()

    def check(self, index, tokens_max, reply):
        """None, or what differs from the first reply to the same request."""
        with self.lock:
            first = self.replies.setdefault((index, tokens_max), reply)
        return None if first == reply else f"prompt {index}: {reply!r}, first {first!r}"


LENGTHS = [4, 16, 48]
WRONG = [("/v1/chat/completions", {"messages": "x"}), ("/v1/completions", {"prompt": 5}), ("/v1/completions", {"prompt": "x", "temperature": "hot"}),
         ("/v1/chat/completions", {"messages": []}), ("/v1/completions", {"prompt": "x", "n": 3})]


class Client(threading.Thread):
    def __init__(self, a, pool, number, end):
        super().__init__()
        self.a, self.pool, self.end = a, pool, end
        self.rng = random.Random(f"{a.seed}/{number}")
        self.host = a.url.split("//")[1]
        self.done = self.left = self.wrong = 0
        self.problems = []

    def run(self):
        while time.time() < self.end and len(self.problems) < 20:
            try:
                self.one()
            except Exception as e:  # a refused or broken connection is a finding
                self.problems.append(f"{type(e).__name__}: {e}")

    def one(self):
        if self.rng.random() < 0.05:
            path, body = self.rng.choice(WRONG)
            status, _ = self.post(path, body)
            self.wrong += 1
            if status != 400:
                self.problems.append(f"wrong request answered {status}, wanted 400")
            return
        index = self.rng.randrange(len(self.pool.bodies))
        path, body = self.pool.bodies[index]
        tokens = self.rng.choice(LENGTHS)
        body = {**body, "max_tokens": tokens, "temperature": 0}
        if self.rng.random() < 0.1:
            body["cache_prompt"] = False
        if self.rng.random() < 0.5:
            self.stream(index, path, body, tokens)
        else:
            status, reply = self.post(path, body)
            self.judge(index, tokens, status, text_of(reply))

    def post(self, path, body):
        c = http.client.HTTPConnection(self.host, timeout=300)
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        data = r.read()
        c.close()
        return r.status, json.loads(data)

    def stream(self, index, path, body, tokens):
        c = http.client.HTTPConnection(self.host, timeout=300)
        c.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        if self.rng.random() < self.a.disconnect:
            time.sleep(self.rng.uniform(0, 0.3))
            c.sock.shutdown(socket.SHUT_RDWR)
            c.close()
            self.left += 1
            return
        r = c.getresponse()
        text, ended = "", False
        for line in r:
            if line.startswith(b"data: [DONE]"):
                ended = True
            elif line.startswith(b"data:"):
                for choice in json.loads(line[5:]).get("choices", []):
                    text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        c.close()
        self.judge(index, tokens, r.status if ended else 0, text)

    def judge(self, index, tokens, status, text):
        self.done += 1
        if status != 200:
            self.problems.append(f"status {status}")
            return
        difference = self.pool.check(index, tokens, text)
        if difference:
            self.problems.append(difference)


def text_of(reply):
    choice = (reply.get("choices") or [{}])[0]
    return choice.get("text") if "text" in choice else (choice.get("message") or {}).get("content")


def resident_kib(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1])


def gauges(url):
    c = http.client.HTTPConnection(url.split("//")[1], timeout=60)
    c.request("GET", "/metrics")
    text = c.getresponse().read().decode()
    c.close()
    wanted = ("cairn_slots_busy", "cairn_queue_length", "cairn_cache_bytes", "cairn_memory_bytes", "cairn_checkpoints")
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(wanted)}


def ask_alone(a, pool):
    client = Client(a, pool, -1, 0)
    for index, (path, body) in enumerate(pool.bodies):
        for tokens in LENGTHS:
            status, reply = client.post(path, {**body, "max_tokens": tokens, "temperature": 0, "cache_prompt": False})
            client.judge(index, tokens, status, text_of(reply))
    if client.problems:
        sys.exit(f"alone: {client.problems[:3]}")
    print(f"{client.done} solo replies", flush=True)


def main():
    a = arguments()
    before, end = gauges(a.url), time.time() + 60 * a.minutes
    pool = Pool(a.seed)
    if a.solo:
        ask_alone(a, pool)
        before, end = gauges(a.url), time.time() + 60 * a.minutes
    clients = [Client(a, pool, i, end) for i in range(a.clients)]
    for c in clients:
        c.start()
    rss = []
    while any(c.is_alive() for c in clients):
        time.sleep(min(10, max(0.2, end - time.time())))
        if a.pid:
            rss.append(resident_kib(a.pid))
    time.sleep(2)
    after = gauges(a.url)
    problems = [p for c in clients for p in c.problems]
    print(f"{sum(c.done for c in clients)} replies checked, {sum(c.left for c in clients)} streams left, {sum(c.wrong for c in clients)} wrong requests, {len(problems)} problems")
    for p in problems[:20]:
        print("  ", p[:300])
    if len(rss) >= 8:
        q = len(rss) // 4
        quarters = [statistics.median(rss[i * q:(i + 1) * q]) / 1024 for i in range(4)]
        print("resident MiB, medians of the quarters: " + ", ".join(f"{x:.1f}" for x in quarters) + f"; peak {max(rss) / 1024:.1f}")
    for k in sorted(after):
        print(f"   {k}: before {before.get(k, 0):.0f}, after {after[k]:.0f}")
    if a.budget and rss and max(rss) * 1024 > a.budget:
        problems.append("budget")
        print(f"resident memory of {max(rss) / 1024:.1f} MiB is beyond the budget of {a.budget / 2**20:.1f} MiB")
    busy = after.get("cairn_slots_busy", 0) + after.get("cairn_queue_length", 0)
    sys.exit(1 if problems or busy else 0)


main()
