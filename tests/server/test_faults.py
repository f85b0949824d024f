"""Faults: what the client saw, what the server did. At the end the table of all is printed; CAIRN_FAULT_TABLE=FILE
writes it as docs/faults.md."""
import http.client
import json
import os
import resource
import signal
import socket
import threading
import time
import unittest

from harness import Server, Stream, http_request, read_to_end, readable

COMPLETIONS = "/v1/completions"
LONG = {"prompt": "A long walk", "max_tokens": 3500, "ignore_eos": True, "stream": True}
SHORT = {"prompt": "A short walk", "max_tokens": 4, "ignore_eos": True}
TABLE = []
PAGE = """# Faults

What a client sees and what the server does, made and checked by `tests/server/test_faults.py` (part of `ctest -R server`). This page is its output:

    CAIRN_FAULT_TABLE=docs/faults.md python3 tests/server/run.py --bin build/release/bin/cairn test_faults

"""


def row(fault, client, server):
    TABLE.append((fault, client, server))


def brief(error):
    return f"`{error['type']}`, code `{error['code']}`"


def last_error(stream):
    """The error that ends a stream, if one does."""
    events = list(stream.events())
    return events[-1].get("error") if events else None


class Faults(unittest.TestCase):
    def healthy(self, server):
        """Serves, says so, and has nothing left over."""
        self.assertEqual(server.get("/health").status, 200)
        self.assertTrue(server.wait_idle(30))
        self.assertEqual(server.post(COMPLETIONS, SHORT).status, 200)
        self.assertTrue(server.wait_idle())
        self.assertEqual(server.metrics()['cairn_memory_bytes{kind="live"}'], 0)

    def test_client_gone_at_any_byte(self):
        with Server() as server:
            want = server.complete("The same prompt", ignore_eos=True).json["choices"][0]["text"]
            body = json.dumps({**LONG, "prompt": "The same prompt", "max_tokens": 40}).encode()
            whole = http_request("POST", COMPLETIONS, body)
            for cut in range(len(whole) + 1):  # while it sends
                with server.socket() as s:
                    s.sendall(whole[:cut])
            for count in (1, 20, 200, 600, 1500, 4000):  # while it reads
                with server.socket() as s:
                    s.sendall(whole)
                    got = 0
                    while got < count and (part := s.recv(min(512, count - got))):
                        got += len(part)
            self.healthy(server)
            self.assertEqual(server.complete("The same prompt", ignore_eos=True).json["choices"][0]["text"], want)
        row("client gone at any byte of request or reply", "-", "ends the request within a step, keeps what was computed; gauges at 0, same answers after")

    def test_slow_clients(self):
        """Slow readers, slow-loris and half-open connections at once: each only hurts itself."""
        with Server() as server:
            begin = time.time()
            reader = server.socket(60)
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            logprobs = {**LONG, "logprobs": 20}  # some 10 MB: more than the sockets hold
            reader.sendall(http_request("POST", COMPLETIONS, json.dumps(logprobs).encode()))
            half_open = [server.socket(60) for _ in range(20)]
            loris = [server.socket(60) for _ in range(20)]
            for s in loris:
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            gone = set()
            while time.time() - begin < 33:
                at = time.time()
                self.assertEqual(server.post(COMPLETIONS, SHORT).status, 200)
                self.assertLess(time.time() - at, 20)  # nobody waits for the slow ones
                for s in loris:
                    try:
                        s.sendall(b"x")
                    except OSError:
                        gone.add(s)
                time.sleep(1)
            ends = [read_to_end(s, 10) for s in loris if s not in gone]
            self.assertLessEqual({end.split(b"\r\n")[0] for end in ends}, {b"", b"HTTP/1.1 408 Request Timeout"})
            self.assertEqual([read_to_end(s, 10) for s in half_open], [b""] * len(half_open))
            gone = 'cairn_requests_total{code="499",route="/v1/completions"}'
            self.assertTrue(server.wait_for(lambda: server.metrics().get(gone) == 1, 150))
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            got = read_to_end(reader, 60)
            self.assertTrue(got.startswith(b"HTTP/1.1 200"))
            self.assertNotIn(b"[DONE]", got)
            for s in (reader, *half_open, *loris):
                s.close()
            self.healthy(server)
        row("slow reader (takes no byte for 30 s)", "the bytes that fitted, then the connection closed",
            "never waits for it: its answer is buffered up to max tokens, its output up to 256 KiB; others are served")
        row("slow-loris (a byte a second)", "408 or closed after 30 s", "serves others meanwhile")
        row("half-open connection (no byte)", "closed after 30 s (75 s between two requests)", "serves others meanwhile")

    def test_queue_full(self):
        with Server("--decode-concurrency", "1", "--queue-limit", "2") as server:
            streams = [Stream(server, COMPLETIONS, LONG) for _ in range(3)]
            refused = server.post(COMPLETIONS, SHORT)
            self.assertEqual((refused.status, [s.status for s in streams]), (429, [200] * 3))
            self.assertGreaterEqual(int(refused.headers["retry-after"]), 1)
            self.assertTrue(refused.error["message"])
            for s in streams:
                s.close()
            self.healthy(server)
        row("queue full", f"429, Retry-After {refused.headers['retry-after']}", "runs what it took")

    def test_request_deadline(self):
        with Server("--request-timeout", "1", "--decode-concurrency", "1") as server:
            begin = time.time()
            stream = Stream(server, COMPLETIONS, {**LONG, "max_tokens": 4000})
            stream.wait_text()
            queued = server.post(COMPLETIONS, {**LONG, "stream": False, "max_tokens": 4000})
            error = last_error(stream)
            self.assertLess(time.time() - begin, 15)
            stream.close()
            if error:  # a fast machine may be done before
                self.assertEqual(error["type"], "timeout_error")
                self.assertEqual((queued.status, queued.error["type"]), (503, "timeout_error"))
                row("request deadline over", f"whole reply: {queued.status}, {brief(queued.error)}; stream: the same as its last event, then close",
                    "ends running and waiting ones, frees the slot, keeps what was computed")
            # The deadline may hit a short request too, on a busy machine.
            self.assertTrue(server.wait_for(lambda: server.post(COMPLETIONS, SHORT).status == 200, 60))
            self.assertTrue(server.wait_idle())
            self.assertEqual(server.metrics()['cairn_memory_bytes{kind="live"}'], 0)

    def test_sigterm_drains(self):
        with Server("--drain-seconds", "60") as server:
            stream = Stream(server, COMPLETIONS, {**LONG, "max_tokens": 60})
            stream.wait_text()
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            with self.assertRaises(OSError):
                server.get("/health", seconds=5)
            stream.read_all()
            self.assertTrue(stream.done)
            stream.close()
            status = server.wait()
            self.assertEqual(status, 0)
        row("SIGTERM", "running: the whole answer; new: connection refused", f"drains, exit {status}")

    def test_sigterm_and_the_drain_time_is_over(self):
        with Server("--drain-seconds", "0.2") as server:
            stream = Stream(server, COMPLETIONS, LONG)
            stream.wait_text()
            begin = time.time()
            server.process.send_signal(signal.SIGTERM)
            error = last_error(stream)
            stream.close()
            status = server.wait()
            self.assertLess(time.time() - begin, 15)
            self.assertEqual((status, error["type"]), (0, "unavailable_error"))
        row("SIGTERM, and the drain time is over", f"the answer so far, then {brief(error)}", f"cancels what runs, exit {status}")

    def test_sigint_twice(self):
        with Server("--drain-seconds", "60") as server:
            stream = Stream(server, COMPLETIONS, LONG)
            stream.wait_text()
            begin = time.time()
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.3)
            if server.process.poll() is None:
                server.process.send_signal(signal.SIGINT)
            status = server.wait()
            self.assertLess(time.time() - begin, 10)
            stream.close()
            self.assertNotEqual(status, 0)
        row("SIGINT twice", "connection closed", f"ends at once, exit {status}")

    def test_out_of_file_descriptors(self):
        with Server() as server:
            pid, keep = server.process.pid, Stream(server, COMPLETIONS, LONG)
            keep.wait_text()
            held = len(os.listdir(f"/proc/{pid}/fd"))
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (held + 3, before[1]))
            clients = [server.socket(5) for _ in range(12)]  # the kernel completes them; nobody can accept
            for s in clients:
                s.sendall(http_request("GET", "/health"))
            answered = sum(readable(s, 1) for s in clients)
            self.assertLess(answered, 12)
            self.assertEqual(next(iter(keep.events()))["object"], "text_completion")  # streams go on
            for s in clients:
                s.close()
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            keep.close()
            time.sleep(1)
            self.healthy(server)
        row("out of file descriptors", "new connections wait or are closed; streams go on", "accepts again as soon as it can")

    def test_out_of_memory(self):
        with Server("--prompt-cache-bytes", "0") as server:
            pid = server.process.pid
            self.assertEqual(server.post(COMPLETIONS, SHORT).status, 200)
            with open(f"/proc/{pid}/statm", encoding="ascii") as f:
                size = int(f.read().split()[0]) * resource.getpagesize()
            before = resource.prlimit(pid, resource.RLIMIT_AS)
            resource.prlimit(pid, resource.RLIMIT_AS, (size, before[1]))
            bodies = [json.dumps({"prompt": "word " * 3000, "max_tokens": 20, "cache_salt": str(i)}).encode() for i in range(4)]
            statuses = set()
            for body in bodies:
                try:
                    statuses.add(server.request("POST", COMPLETIONS, body, seconds=60).status)
                except OSError:
                    statuses.add("closed")
            resource.prlimit(pid, resource.RLIMIT_AS, before)
            self.assertLessEqual(statuses, {200, 400, 429, 500, 503, "closed"})
            self.assertIsNone(server.process.poll())
            self.healthy(server)
        row("no more memory from the system", "an answer from what there is, or an error", "goes on, nothing is left over")

    def test_out_of_memory_for_many(self):
        """Whole replies, streams and other routes at once, and no page more than the server has: it lives, nobody hangs."""
        prompt = {"prompt": "word " * 3000, "max_tokens": 20}
        stream = {"prompt": "a b c " * 100, "max_tokens": 60, "ignore_eos": True, "stream": True}
        asked = [(COMPLETIONS, prompt), ("/tokenize", {"content": "word " * 200000}), (COMPLETIONS, stream)]
        with Server("--prompt-cache-bytes", "0") as server:
            pid, hung = server.process.pid, []
            self.assertEqual(server.post(COMPLETIONS, SHORT).status, 200)

            def ask(path, body):
                try:
                    server.post(path, body, seconds=60)
                except TimeoutError:
                    hung.append(path)
                except (OSError, http.client.HTTPException):
                    pass  # closed

            with open(f"/proc/{pid}/statm", encoding="ascii") as f:
                size = int(f.read().split()[0]) * resource.getpagesize()
            before = resource.prlimit(pid, resource.RLIMIT_AS)
            resource.prlimit(pid, resource.RLIMIT_AS, (size, before[1]))
            threads = [threading.Thread(target=ask, args=asked[i % 3]) for i in range(9)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            resource.prlimit(pid, resource.RLIMIT_AS, before)
            self.assertIsNone(server.process.poll())
            self.assertEqual(hung, [])
            self.healthy(server)
        row("no more memory from the system, nine clients at once", "an answer, an error or a closed connection; nobody hangs",
            "goes on, nothing is left over")

    def test_an_engine_exception(self):
        with Server(env={"CAIRN_TEST_FAULT": "step:30"}) as server:
            stream = Stream(server, COMPLETIONS, LONG)
            error = last_error(stream)
            stream.close()
            self.assertEqual(error["type"], "server_error")
            self.assertEqual(server.metrics()["cairn_engine_faults_total"], 1)
            self.assertIn("ended by a failed step request=" + stream.headers["x-request-id"], server.text())
            self.healthy(server)
        with Server(env={"CAIRN_TEST_FAULT": "step:30"}) as server:
            reply = server.post(COMPLETIONS, {**LONG, "stream": False})
            self.assertEqual((reply.status, reply.error["type"]), (500, "server_error"))
        row("exception in a step of the engine", f"stream: {brief(error)} as its last event, then close; whole reply: {reply.status}",
            "ends what ran, /health 200, serves on; the fault is counted and logged with the request's id")

    def test_an_engine_that_cannot_go_on(self):
        with Server(env={"CAIRN_TEST_FAULT": "fatal:30"}) as server:
            stream = Stream(server, COMPLETIONS, LONG)
            error = last_error(stream)
            stream.close()
            self.assertEqual(error["type"], "server_error")
            status = server.wait(30)
            self.assertEqual(status, 1)
            with self.assertRaises(OSError):
                server.get("/health", seconds=5)
        row("the engine cannot recover", "an error; then connection refused", f"exit {status}")

    @classmethod
    def tearDownClass(cls):
        lines = ["| fault | the client saw | the server did |", "|---|---|---|"]
        lines += ["| " + " | ".join(cells) + " |" for cells in sorted(TABLE)]
        print("\n".join(["", *lines]))
        path = os.environ.get("CAIRN_FAULT_TABLE")
        if path:
            with open(path, "w", encoding="utf-8") as f:
                f.write(PAGE + "\n".join(lines) + "\n")


if __name__ == "__main__":
    unittest.main()
