"""Bad input: a clear error with a true status, and the next request is answered."""
import json
import resource
import socket
import time
import unittest

from harness import Server, Stream, http_request, read_reply, read_to_end, readable

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}


def with_message(**fields):
    return {**HELLO, "messages": [fields]}


class BadInput(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-body-bytes", "1MiB")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def tearDown(self):
        self.assertEqual(self.server.chat().status, 200)

    def assert_error(self, reply, status, code=None, param=None):
        self.assertEqual(reply.status, status, reply.body[:300])
        self.assertTrue(reply.error["message"])
        self.assertEqual(set(reply.error) & {"message", "type", "param", "code"}, {"message", "type", "param", "code"})
        if code:
            self.assertEqual(reply.error["code"], code)
        if param:
            self.assertEqual(reply.error["param"], param)

    def test_json_that_is_none(self):
        for body in (b"", b"   ", b"[]", b'"x"', b"5", b"null", b'{"messages": [{"role": "user"', b"{]", b"\xff\xfe",
                     b'{"messages":[{"role":"user","content":"\xff\x80"}]}', b'{"a":1e999999}', b'{"a":nan}',
                     b'{"messages":[{"role":"user","content":"x"}]} trailing', b'{"messages":[{"role":"user","content":"x"}]}\0 trailing'):
            self.assert_error(self.server.post(CHAT, body), 400)

    def test_json_that_is_monstrous(self):
        deep = b'{"messages":' + b"[" * 50000 + b"]" * 50000 + b"}"
        keys = b"{" + b",".join(b'"k%d":1' % i for i in range(60000)) + b"}"
        values = b'{"messages":[' + b"1," * 500000 + b"1]}"
        objects = b'{"prompt":"x","metadata":[' + b",".join([b"{" + b",".join(b'"%d":1' % i for i in range(4000)) + b"}"] * 24) + b"]}"
        for body in (deep, keys, values, objects):
            self.assert_error(self.server.post(CHAT, body), 400)

    def test_wrong_types_and_absurd_values(self):
        cases = {
            "messages": [..., "x", [], ["x"], 5, {}, [{"content": "x"}], [{"role": 5, "content": "x"}],
                         [{"role": "wizard", "content": "x"}], [{"role": "user", "content": 5}],
                         [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]],
            "temperature": ["hot", -1, 1e9], "top_p": [-0.1, 2, "x"], "max_tokens": ["ten", -5, 1.5, [1]],
            "stop": [5, [5], {"a": 1}, ["x"] * 129, ["x" * 33000] * 2], "seed": ["x", -2, 1.5], "n": [2, "x"], "stream": ["yes", 1],
            "logprobs": ["x"], "top_logprobs": [21, -1], "logit_bias": [[5], {"x": 1}, {"999999": 1}, {"1": "x"}, {"1": True}, {"1": 1000}],
            "tools": ["x", {}], "stop_token_ids": ["x", [-1]], "stream_options": [5], "cache_prompt": ["x"],
            "response_format": [{"type": "json_object"}], "tool_choice": ["required"], "chat_template_kwargs": [5],
            "priority": ["x", 1.5, 100000], "repetition_penalty": [-1, 1e-9, "x"], "top_k": ["x", -5], "min_tokens": [-1, "x"],
            "repetition_context_size": [-2, "x"], "cache_salt": [5, "s" * 1025], "xtc_probability": [-0.1, 2],
            "use_beam_search": [True], "bad_words": [["x"]], "prompt_logprobs": [0, 1], "truncate_prompt_tokens": [5],
            "n_probs": [3], "t_max_predict_ms": [50], "typical_p": [0.9], "mirostat": [2], "grammar": ["root ::= x"],
        }
        for name, values in cases.items():
            for value in values:
                body = {k: v for k, v in {**HELLO, name: value}.items() if v is not ...}
                with self.subTest(**{name: str(value)[:40]}):
                    self.assert_error(self.server.post(CHAT, body), 400)
                    self.assert_error(self.server.post(CHAT, {**body, "stream": True} if name != "stream" else body), 400)

    def test_fields_that_would_change_the_result_are_refused(self):
        for name, other, neutral in (
                ("response_format", {"type": "json_object"}, {"type": "text"}), ("json_schema", {"type": "object"}, {}),
                ("grammar", "root ::= x", ""), ("guided_json", {"type": "object"}, None), ("regex", "a+", None),
                ("functions", [{"name": "f"}], []), ("function_call", {"name": "f"}, "auto"), ("n", 2, 1), ("best_of", 2, 1),
                ("suffix", "x", ""), ("bad_words", ["x"], []), ("allowed_token_ids", [5], []), ("chat_template", "{{ 'x' }}", ""),
                ("documents", [{"text": "x"}], []), ("prompt_logprobs", 1, None), ("truncate_prompt_tokens", 5, -1),
                ("use_beam_search", True, False), ("include_stop_str_in_output", True, False), ("skip_special_tokens", False, True),
                ("n_probs", 3, 0), ("t_max_predict_ms", 5, -1), ("top_n_sigma", 1, -1), ("typical_p", 0.5, 1),
                ("mirostat", 1, 0), ("continue_final_message", True, False), ("modalities", ["text", "audio"], ["text"])):
            with self.subTest(name):
                self.assert_error(self.server.post(CHAT, {**HELLO, name: other}), 400, "unsupported", name)
                self.assertEqual(self.server.post(CHAT, {**HELLO, name: neutral}).status, 200)

    def test_completion_prompts(self):
        for prompt in (..., 5, [], ["a", "b"], [1.5], [-1], [10 ** 9], {"a": 1}, ""):
            body = {k: v for k, v in {"prompt": prompt, "max_tokens": 2}.items() if v is not ...}
            with self.subTest(prompt=str(prompt)):
                self.assert_error(self.server.post(COMPLETIONS, body), 400)
        self.assert_error(self.server.complete("a", best_of=2), 400)
        self.assert_error(self.server.complete("a", suffix="x"), 400)

    def test_lenient_input(self):
        for fields in ({"max_completion_tokens": 3}, {"stop": None}, {"max_tokens": 2 ** 63}, {"max_tokens": 10 ** 30},
                       {"stop": [f"\nname{i}:" for i in range(100)]}, {"n": 1}, {"user": "u", "unknown": [1, {"a": 2}]},
                       {"tools": None, "temperature": None, "logprobs": None}, {"model": "any/thing"}, {"seed": -1},
                       {"use_beam_search": False, "bad_words": [], "n_probs": 0, "t_max_predict_ms": -1, "grammar": ""},
                       {"messages": [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}]},
                       {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
                       {"messages": [{"role": "user", "content": "hi"},
                                     {"role": "assistant", "content": None, "tool_calls": [
                                         {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]},
                                     {"role": "tool", "tool_call_id": "c", "content": "out"}]},
                       {"messages": [{"role": "user", "content": "hi"},
                                     {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}]},
                                     {"role": "tool", "tool_call_id": "c", "content": "out"}]}):
            self.assertEqual(self.server.post(CHAT, {**HELLO, **fields}).status, 200, fields)
        reply = self.server.post(CHAT, json.dumps(HELLO).encode(), headers={"Content-Type": "text/plain"})
        self.assertEqual(reply.status, 200)

    def test_a_prompt_longer_than_the_context(self):
        for stream in (False, True):
            reply = self.server.complete([5] * 5000, stream=stream)
            self.assert_error(reply, 400, "context_length_exceeded")
            self.assertEqual((reply.error["n_prompt_tokens"], reply.error["n_ctx"]), (5000, 4096))
            self.assertIn("request (5000 tokens) exceeds the available context size (4096 tokens)",
                          reply.error["message"])

    def test_odd_text(self):
        for text in ("a" * 6000, "\n" * 6000, " " * 6000, "\U0001f98a" * 500, "a\0b", "e" + "\u0301" * 3000, "",
                     "<|im_start|>system\n<|im_end|>"):
            self.assertIn(self.server.chat(text, max_tokens=1).status, (200, 400))

    def test_routes_and_methods(self):
        self.assert_error(self.server.get("/v1/nothing"), 404)
        self.assert_error(self.server.get("/%00%ff/../x"), 404)
        wrong = self.server.get(CHAT)
        self.assert_error(wrong, 405)
        self.assertIn("POST", wrong.headers["allow"])
        self.assert_error(self.server.request("PATCH", "/v1/cache"), 405)
        self.assert_error(self.server.request("BREW", "/health"), 405)
        for path in ("/v1/messages", "/v1/responses", "/slots/0?action=save"):
            self.assert_error(self.server.post(path, {}), 501, "unsupported")
        self.assert_error(self.server.get("/v1/models/none"), 404)
        self.assertEqual(self.server.get("/v1/models/Trailguide").status, 200)

    def test_tokenize_and_friends_check_too(self):
        for path in ("/tokenize", "/detokenize", "/apply-template", "/v1/cache/explain"):
            for body in (b"", b"[]", b"{", {"content": 5, "tokens": 5, "messages": 5, "prompt": 5}):
                self.assert_error(self.server.post(path, body), 400)
        self.assert_error(self.server.post("/detokenize", {"tokens": [10 ** 9]}), 400)
        pieces = self.server.post("/tokenize", {"content": "Hello hut", "with_pieces": True}).json["tokens"]
        self.assertEqual("".join(p["piece"] for p in pieces), "Hello hut")
        prompt = self.server.post("/apply-template", HELLO).json["prompt"]
        self.assertIn("<|im_start|>user\nHello!", prompt)


class BadConnections(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-body-bytes", "1MiB", "--decode-concurrency", "2")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def tearDown(self):
        self.assertEqual(self.server.chat().status, 200)
        self.assertTrue(self.server.wait_idle())

    def raw(self, data):
        """The status of the answer to these bytes; the connection is then closed by the server."""
        with self.server.socket() as s:
            s.sendall(data)
            got = read_to_end(s)
        return int(got.split()[1]), got

    def test_malformed_http(self):
        for data in (b"hello\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
                     b"GET / HTTP/1.1\r\nbad header\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                     b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
                     b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
                     b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\nGET /health HTTP/1.1\r\n\r\n",
                     b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
                     b"POST / HTTP/1.1\r\nHost: x\r\nExpect: something\r\nContent-Length: 3\r\n\r\n"):
            with self.subTest(data=data[:40]):
                status, got = self.raw(data)
                self.assertEqual(status, 400)
                self.assertIn(b'"error"', got)

    def test_what_no_route_saw_is_counted(self):
        name = 'cairn_requests_total{code="400",route="other"}'
        before = self.server.metrics().get(name, 0)
        self.raw(b"hello\r\n\r\n")
        self.assertEqual(self.server.metrics()[name], before + 1)

    def test_empty_lines_before_a_request(self):
        with self.server.socket() as s:
            for _ in range(2):
                s.sendall(b"\r\n\r\n\r")
                time.sleep(0.05)
                s.sendall(b"\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                self.assertIn(b"200 OK", s.recv(65536))

    def test_a_prompt_of_megabytes_does_not_hold_up_short_ones(self):
        large = json.dumps({"prompt": "word and 123 " * 500000, "max_tokens": 1}).encode()
        with Server() as server, server.socket(120) as s:
            s.sendall(http_request("POST", "/v1/completions", large))
            begin = time.time()
            self.assertEqual(server.post("/tokenize", {"content": "a b"}).status, 200)
            short = time.time() - begin
            self.assertIn(b"context_length_exceeded", s.recv(65536))
            self.assertLess(short, time.time() - begin)

    def test_huge_headers(self):
        status, got = self.raw(b"GET / HTTP/1.1\r\nX: " + b"a" * 200000 + b"\r\n\r\n")
        self.assertEqual(status, 431)
        self.assertIn(b'"error"', got)

    def test_endless_chunk_header_and_trailer(self):
        head = b"POST " + COMPLETIONS.encode() + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        for rest in (b"5;" + b"a" * 400000, b"0\r\n" + b"T: x\r\n" * 100000):
            status, got = self.raw(head + rest)
            self.assertEqual(status, 400)
            self.assertIn(b'"error"', got)

    def test_huge_body_is_answered_while_it_is_still_sent(self):
        body = b'{"prompt":"' + b"x" * 20_000_000 + b'"}'
        reply = self.server.post(COMPLETIONS, body)
        self.assertEqual(reply.status, 413)
        self.assertIn("1048576", reply.error["message"])
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        status, _ = self.raw(b"POST " + COMPLETIONS.encode() + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                             + chunk * 40 + b"0\r\n\r\n")
        self.assertEqual(status, 413)

    def test_chunked_body_and_100_continue(self):
        body = json.dumps(HELLO).encode()
        with self.server.socket() as s, s.makefile("rb") as f:
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            for i in range(0, len(body), 7):
                s.sendall(b"%x\r\n%s\r\n" % (len(body[i:i + 7]), body[i:i + 7]))
            s.sendall(b"0\r\n\r\n")
            self.assertEqual(read_reply(f).status, 200)
            s.sendall(http_request("POST", CHAT, body, ["Expect: 100-continue"])[:-len(body)])
            self.assertEqual(read_reply(f).status, 100)
            s.sendall(body)
            self.assertEqual(read_reply(f).status, 200)

    def test_keep_alive_and_pipelining(self):
        body = json.dumps(HELLO).encode()
        with self.server.socket() as s, s.makefile("rb") as f:
            s.sendall(http_request("GET", "/health") + http_request("POST", CHAT, body) + http_request("HEAD", "/")
                      + http_request("GET", "/nothing") + http_request("POST", CHAT, body))
            self.assertEqual(read_reply(f).status, 200)
            self.assertEqual(read_reply(f).json["object"], "chat.completion")
            head = read_reply_head(f)
            self.assertEqual(head, 200)
            self.assertEqual(read_reply(f).status, 404)
            self.assertEqual(read_reply(f).json["object"], "chat.completion")
        with self.server.socket() as s:
            s.sendall(http_request("GET", "/health", headers=["Connection: close"]))
            self.assertIn(b"Connection: close", read_to_end(s))
        with self.server.socket() as s:
            s.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            self.assertIn(b"200 OK", read_to_end(s))

    def test_http_1_0_stream_has_no_chunks(self):
        body = json.dumps({**HELLO, "stream": True}).encode()
        with self.server.socket() as s:
            s.sendall(http_request("POST", CHAT, body, version="1.0"))
            got = read_to_end(s)
        head, _, rest = got.partition(b"\r\n\r\n")
        self.assertNotIn(b"chunked", head)
        self.assertTrue(rest.startswith(b"data: "))
        self.assertTrue(rest.endswith(b"data: [DONE]\n\n"))

    def test_half_closed_clients(self):
        with self.server.socket() as s:
            s.sendall(http_request("GET", "/health"))
            s.shutdown(socket.SHUT_WR)
            self.assertIn(b"200 OK", read_to_end(s))
        with self.server.socket() as s:  # a generation may be dropped: nobody may be left to read it
            s.sendall(http_request("POST", CHAT, json.dumps(HELLO).encode()))
            s.shutdown(socket.SHUT_WR)
            got = read_to_end(s)
            self.assertTrue(not got or got.startswith(b"HTTP/1.1 200"))

    def test_clients_that_leave_anywhere(self):
        whole = http_request("POST", CHAT, json.dumps({**HELLO, "max_tokens": 2000, "stream": True}).encode())
        for cut in (0, 1, 20, len(whole) // 2, len(whole) - 1, len(whole)):
            for _ in range(3):
                with self.server.socket() as s:
                    s.sendall(whole[:cut])
        self.assertTrue(self.server.wait_idle(5))

    def test_slow_requests_do_not_hold_others_up(self):
        slow = [self.server.socket() for _ in range(50)]
        for s in slow:
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Le")
        begin = time.time()
        self.assertEqual(self.server.chat().status, 200)
        self.assertLess(time.time() - begin, 5)
        for s in slow:
            s.close()

    def test_a_client_that_reads_nothing_does_not_stop_the_engine(self):
        body = {"prompt": "Hello", "max_tokens": 50, "ignore_eos": True, "logprobs": 20}
        begin = time.time()
        self.server.post(COMPLETIONS, body)
        rate = 50 / (time.time() - begin)
        count = int(min(2500, 6 * rate))  # a slow build must be done before the server gives the reader up
        body = {**body, "max_tokens": count, "stream": True}
        s = self.server.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        s.sendall(http_request("POST", COMPLETIONS, json.dumps(body).encode()))
        self.assertEqual(self.server.complete("Hi", max_tokens=4).status, 200)
        self.assertTrue(self.server.wait_idle(25))  # generated to its end into the server's memory
        got = read_until(s, b"data: [DONE]")         # and nothing of it is lost
        self.assertGreater(got.count(b"data: "), 0.9 * count)
        s.close()

    def test_who_waits_hears_a_heartbeat(self):
        with Server("--decode-concurrency", "1", "--context-length", "40960") as server:
            body = {"prompt": "Hello", "max_tokens": 40000, "ignore_eos": True, "stream": True}
            running = [Stream(server, COMPLETIONS, body) for _ in range(4)]
            begin = time.time()
            comment = next(line for line in running[-1].lines() if line.startswith(b":"))
            self.assertRegex(comment, rb"^: keepalive 0/\d+$")
            self.assertLess(time.time() - begin, 15)
            for s in running:
                s.close()
            self.assertTrue(server.wait_idle(5))

    def test_out_of_file_descriptors(self):
        with Server(preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))) as server:
            sockets = [server.socket() for _ in range(100)]
            time.sleep(0.5)
            for s in sockets:
                s.close()
            self.assertEqual(server.chat().status, 200)

    def test_more_requests_than_the_queue_takes(self):
        with Server("--decode-concurrency", "1", "--queue-limit", "2") as server:
            body = {"prompt": "Hello", "max_tokens": 3500, "ignore_eos": True, "stream": True}
            streams = [Stream(server, COMPLETIONS, body) for _ in range(6)]
            statuses = [s.status for s in streams]
            self.assertEqual(statuses.count(200), 3)
            self.assertEqual(statuses.count(429), 3)
            self.assertTrue(all("retry-after" in s.headers for s in streams if s.status == 429))
            for s in streams:
                s.close()
            self.assertTrue(server.wait_idle(5))
            self.assertEqual(server.chat().status, 200)

    def test_a_flood_of_connections(self):
        with Server() as server:
            sockets = [server.socket() for _ in range(1100)]
            refused = b""
            for s in sockets[1024:]:
                if readable(s, 2):
                    refused = refused or s.recv(4096)
            self.assertIn(b"503", refused.split(b"\r\n")[0])
            self.assertIn(b"\r\nRetry-After: 1\r\n", refused)
            for s in sockets:
                s.close()
            for _ in range(50):
                try:
                    if server.chat().status == 200:
                        return
                except OSError:
                    pass
                time.sleep(0.1)
            self.fail("no answer after the flood")


def read_reply_head(file):
    """A reply to HEAD: no body, whatever its length says."""
    status = int(file.readline().split()[1])
    while file.readline().strip():
        pass
    return status


def read_until(sock, mark, seconds=30):
    got, end = b"", time.time() + seconds
    while mark not in got[-len(mark) - 65536:] and time.time() < end:
        part = sock.recv(65536)
        if not part:
            break
        got += part
    return got


if __name__ == "__main__":
    unittest.main()
