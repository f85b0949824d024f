"""The process: flags, keys, signals, health, metrics."""
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import harness
from harness import Server, Stream, run_cairn

CHAT = "/v1/chat/completions"
LONG = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 3500, "ignore_eos": True, "stream": True}


class Flags(unittest.TestCase):
    def test_wrong_ones_exit_2_with_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            broken = os.path.join(folder, "broken.gguf")
            with open(broken, "wb") as f:
                f.write(b"GGUF" + b"\xff" * 100)
            keys = os.path.join(folder, "keys.gguf")
            with open(keys, "wb") as f:
                f.write(b"GGUF\x03\0\0\0" + b"\0" * 8 + b"\xff" * 7 + b"\x0f" + b"\0" * 100)
            split = os.path.join(folder, "part.gguf")
            with open(split, "wb") as f:
                f.write(b"GGUF\x03\0\0\0" + b"\0" * 8 + b"\x01" + b"\0" * 7 + b"\x0b" + b"\0" * 7 + b"split.count" +
                        b"\x02\0\0\0\x03\0" + b"\0" * 64)
            config = os.path.join(folder, "config.toml")
            with open(config, "w", encoding="utf-8") as f:
                f.write("port = 0\nno-such-flag = 1\n")
            cases = [["--no-such-flag"], ["--port", "99999"], ["--port", "x"], ["--model", "/no/such/file"],
                     ["--model", broken, "--port", "0"], ["--model", keys, "--port", "0"],
                     ["--cache-dir", folder], ["--memory-budget", "x"], ["--memory-budget", "1MiB", "--port", "0"],
                     ["--target-inter-token-ms", "nan"], ["--prefill-step-size", "8"], ["--prefill-step-size", "often"],
                     ["--cache-policy", "x"], ["--kv-type", "x"],
                     ["--cpu-level", "x"], ["--max-body-bytes", "x"], ["--host", "no.such.host.invalid"],
                     ["--prompt-cache-bytes", "-1"], ["--api-key-file", "/no/such/file"], ["--config", config],
                     ["--config", "/no/such/file"], ["--chat-template", "/no/such/file", "--port", "0"],
                     ["--temp", "-1"], ["--context-length", "0"], ["--threads", "0"],
                     ["--api-key", ""], ["--admin-key", ""], ["--chat-template-args", "x", "--port", "0"],
                     ["--temp", "nan"], ["--drain-seconds", "nan"], ["--host", "", "--port", "0"],
                     ["--chat-template", "{% for %}", "--port", "0"],
                     ["--api-key-file", "/dev/zero"], ["--config", "/dev/zero"], ["--chat-template", "/dev/zero", "--port", "0"],
                     ["--chat-template", folder, "--port", "0"],
                     ["--api-key-file", folder], ["--config", folder], ["--max-body-bytes", "0"],
                     ["--log-format", "xml"], ["--model", split, "--port", "0"]]
            for flags in cases:
                with self.subTest(flags=flags):
                    status, text = run_cairn(*flags)
                    self.assertEqual(status, 2, text)
                    lines = [line for line in text.splitlines() if not line.startswith("[2")]  # log lines apart
                    self.assertEqual(len(lines), 1, text)

    def test_bench_in_a_context_too_short_for_it(self):
        done = subprocess.run([harness.BINARY, "bench", "--context-length", "144", "--prefill", "64", "--decode", "8", "--branch", "0"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("160 tokens are needed, but the context is 144", done.stderr)

    def test_a_model_without_a_template(self):
        golden = pathlib.Path(__file__).resolve().parent.parent / "golden" / "data" / "qwen3" / "hf"
        with tempfile.TemporaryDirectory() as folder:
            for path in golden.iterdir():
                if path.name != "tokenizer_config.json" and not path.name.startswith("chat_template"):
                    shutil.copy(path, folder)
            config = json.loads((golden / "tokenizer_config.json").read_text(encoding="utf-8"))
            config.pop("chat_template", None)
            pathlib.Path(folder, "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
            with Server("--model", folder) as server:
                self.assertIn("no chat template: chats are written as ChatML", server.text())
                rendered = server.post("/apply-template", {"messages": [{"role": "user", "content": "x"}]}).json["prompt"]
                self.assertEqual(rendered, "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n")
                self.assertEqual(server.chat("x").status, 200)
                self.assertIn("<|im_start|>", server.get("/props").json["chat_template"])
            with Server("--model", folder, "--chat-template", "{{ messages[0].content }}") as server:
                self.assertNotIn("ChatML", server.text())

    def test_auto_step_size_follows_the_layout(self):
        golden = pathlib.Path(__file__).resolve().parent.parent / "golden" / "data"
        for name, stride in (("lfm2", 256), ("qwen35-a", 2048)):
            with self.subTest(name), Server("--model", str(golden / name / "model.gguf"), "--prefill-step-size", "auto") as server:
                self.assertIn(f"every {stride} tokens", server.text())
                prompt = [5 + i % 200 for i in range(600)]
                server.complete(prompt, max_tokens=1)
                restored = server.complete(prompt[:560] + prompt[:40], max_tokens=1).json["cairn"]["restore_point"]
                self.assertEqual(restored, 512 // stride * stride)
        with Server() as server:
            self.assertIn("every 2048 tokens", server.text())

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            status, text = run_cairn("--port", str(taken.getsockname()[1]))
        self.assertEqual(status, 2)
        self.assertIn("in use", text)

    def test_environment_and_config_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
            config.write('alias = "from-file"\nmax-tokens = 3\n[serve]\nprefill-step-size = 32\n')
            config.flush()
            with Server("--config", config.name) as server:
                reply = server.chat(max_tokens=100).json
                self.assertEqual((reply["model"], reply["usage"]["completion_tokens"]), ("from-file", 3))
            with Server("--config", config.name, env={"CAIRN_ALIAS": "from-environment"}) as server:
                self.assertEqual(server.get("/v1/models").json["data"][0]["id"], "from-environment")
            with Server("--config", config.name, "--alias", "from-flag") as server:
                self.assertEqual(server.get("/v1/models").json["data"][0]["id"], "from-flag")

    def test_start_prints_a_curl_line_that_works(self):
        with Server() as server:
            line = next(x for x in server.text().splitlines() if x.strip().startswith("curl"))
            done = subprocess.run(["sh", "-c", line.replace("curl", "curl -s", 1)], capture_output=True, timeout=30,
                                  check=True)
            self.assertIn(b'"chat.completion"', done.stdout)

    def test_warning_without_key_on_an_open_address(self):
        with Server("--host", "0.0.0.0") as server:
            self.assertIn("without --api-key", server.text())
        with Server("--host", "0.0.0.0", "--api-key", "k") as server:
            self.assertNotIn("without --api-key", server.text())


class Keys(unittest.TestCase):
    def test_api_keys(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("# keys\nsk-two\n\nsk-three\n")
            file.flush()
            with Server("--api-key", "sk-one", "--api-key-file", file.name) as server:
                def status(path="/v1/models", **headers):
                    return server.get(path, headers={k.replace("_", "-"): v for k, v in headers.items()}).status
                self.assertEqual(status(), 401)
                for wrong in ("sk-", "sk-onex", "sk-on", "", "sk-one sk-two", "# keys"):
                    self.assertEqual(status(Authorization="Bearer " + wrong), 401, wrong)
                for key in ("sk-one", "sk-two", "sk-three"):
                    self.assertEqual(status(Authorization="Bearer " + key), 200)
                    self.assertEqual(status(x_api_key=key), 200)
                self.assertEqual(status("/health"), 200)
                self.assertEqual(status("/metrics"), 401)
                self.assertEqual(status("/v1/cache"), 401)
                self.assertEqual(status("/v1/cache", x_api_key="sk-two"), 200)
                refused = server.chat()
                self.assertEqual(refused.status, 401)
                self.assertTrue(refused.error["message"])

    def test_admin_key(self):
        with Server("--admin-key", "root") as server:
            self.assertEqual(server.chat().status, 200)
            self.assertEqual(server.get("/v1/cache").status, 401)
            self.assertEqual(server.get("/slots", headers={"x-api-key": "root"}).status, 200)
        with Server("--admin-key", "root", "--api-key", "user") as server:
            self.assertEqual(server.get("/v1/cache", headers={"x-api-key": "user"}).status, 401)
            self.assertEqual(server.get("/v1/cache", headers={"x-api-key": "root"}).status, 200)

    def test_other_sites_may_not_read_prompts_through_a_browser(self):
        with Server() as server:
            own = f"http://127.0.0.1:{server.port}"
            self.assertEqual(server.get("/v1/cache", headers={"Origin": own}).status, 200)
            self.assertEqual(server.get("/v1/cache", headers={"Origin": "http://evil.test"}).status, 403)
            self.assertEqual(server.get("/v1/cache", headers={"Host": "evil.test"}).status, 403)

    def test_cors(self):
        with Server("--allowed-origins", "http://a.test, http://b.test") as server:
            def origin(value):
                return server.get("/health", headers={"Origin": value}).headers.get("access-control-allow-origin")
            self.assertEqual(origin("http://b.test"), "http://b.test")
            self.assertIsNone(origin("http://c.test"))
            # Also where the request is refused before any route is looked for.
            large = server.post(CHAT, b"x", headers={"Origin": "http://b.test", "Content-Length": "999999999999"})
            self.assertEqual((large.status, large.headers.get("access-control-allow-origin")), (413, "http://b.test"))
        with Server() as server:
            reply = server.request("OPTIONS", CHAT, headers={
                "Origin": "http://x.test", "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization,x-custom"})
            self.assertEqual((reply.status, reply.body), (204, b""))
            self.assertEqual(reply.headers["access-control-allow-origin"], "*")
            self.assertIn("x-custom", reply.headers["access-control-allow-headers"])
            self.assertIn("POST", reply.headers["access-control-allow-methods"])


class Life(unittest.TestCase):
    def test_health_is_true_from_the_first_moment(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        process = subprocess.Popen([harness.BINARY, "serve", "--port", str(port)], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        try:
            seen, end = set(), time.time() + 30
            while time.time() < end and (200, "ok") not in seen:
                try:
                    with socket.create_connection(("127.0.0.1", port), timeout=5) as s:
                        s.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                        got = harness.read_to_end(s)
                    seen.add((int(got.split()[1]), got.split(b'"status":"')[1].split(b'"')[0].decode()))
                    self.assertEqual(b"Retry-After: 1" in got, b" 503 " in got)
                except ConnectionRefusedError:
                    pass
            self.assertIn((200, "ok"), seen)
            self.assertLessEqual(seen, {(200, "ok"), (503, "loading model")})
        finally:
            process.kill()
            process.wait()

    def test_sigterm_finishes_what_runs(self):
        with Server("--drain-seconds", "120") as server:
            s = Stream(server, CHAT, {**LONG, "max_tokens": 300})
            events = s.events()
            next(events)
            server.process.send_signal(signal.SIGTERM)
            chunks = list(events)
            self.assertTrue(s.done)
            self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")
            s.close()
            self.assertEqual(server.wait(), 0)

    def test_sigterm_cancels_after_the_drain_time(self):
        with Server("--drain-seconds", "0.3") as server:
            s = Stream(server, CHAT, LONG)
            events = s.events()
            next(events)
            begin = time.time()
            server.process.send_signal(signal.SIGTERM)
            last = list(events)[-1]
            self.assertIn("error", last)
            self.assertFalse(s.done)
            s.close()
            self.assertEqual(server.wait(), 0)
            self.assertLess(time.time() - begin, 5)

    def test_second_signal_ends_at_once(self):
        with Server("--drain-seconds", "100") as server:
            s = Stream(server, CHAT, LONG)
            s.wait_text()
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.3)
            begin = time.time()
            server.stop(signal.SIGINT)
            self.assertLess(time.time() - begin, 2)
            s.close()

    def test_who_read_the_log_may_go(self):
        process = subprocess.Popen([harness.BINARY, "serve", "--port", "0", "--threads", "2"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            line = b""
            while not (found := re.search(rb"on http://[^\s]*:(\d+)", line)):
                line = process.stdout.readline()
                self.assertTrue(line, "the server ended")
            process.stdout.close()
            connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=60)
            for _ in range(3):  # each writes a log line
                connection.request("POST", CHAT, json.dumps({**LONG, "stream": False, "max_tokens": 2}))
                reply = connection.getresponse()
                reply.read()
                self.assertEqual(reply.status, 200)
            connection.close()
            process.terminate()
            self.assertEqual(process.wait(30), 0)
        finally:
            process.kill()
            process.wait()

    def test_request_timeout(self):
        with Server("--request-timeout", "0.5") as server:
            reply = server.post(CHAT, {**LONG, "stream": False})
            self.assertEqual(reply.status, 503)
            self.assertEqual(reply.error["code"], "request_timeout")
            chunks, _, done = server.stream(CHAT, LONG)
            self.assertEqual(chunks[-1]["error"]["code"], "request_timeout")
            self.assertFalse(done)
            self.assertTrue(server.wait_for(lambda: server.chat().status == 200, 60))  # on a busy machine a few are late too

    def test_metrics_and_gauges_return_to_their_start(self):
        with Server() as server:
            before = server.metrics()
            for i in range(4):
                server.chat(f"Hello {i}!")
            server.get("/nothing")
            s = Stream(server, CHAT, LONG)
            s.wait_text()
            self.assertEqual(server.metrics()["cairn_slots_busy"], 1)
            s.close()
            self.assertTrue(server.wait_idle())
            after = server.metrics()
            for gauge in ("cairn_slots_busy", "cairn_queue_length", 'cairn_memory_bytes{kind="live"}'):
                self.assertEqual(after[gauge], before[gauge], gauge)
            self.assertEqual(after['cairn_requests_total{code="200",route="/v1/chat/completions"}'], 4)
            self.assertEqual(after['cairn_requests_total{code="404",route="other"}'], 1)
            self.assertEqual(after['cairn_requests_total{code="499",route="/v1/chat/completions"}'], 1)
            self.assertEqual(after["cairn_prompt_tokens_total"],
                             after["cairn_cached_tokens_total"] + after["cairn_replayed_tokens_total"])
            self.assertEqual(after["cairn_ttft_seconds_count"], 5)
            for name in ("cairn_inter_token_seconds_count", "cairn_step_seconds_count", "cairn_snapshot_seconds_count",
                         "llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total"):
                self.assertGreater(after[name], 0, name)
            self.assertEqual(sum(v for k, v in after.items() if k.startswith("cairn_cache_lookups_total")), 5)

    def test_props_models_index(self):
        with Server("--alias", "my/model") as server:
            self.assertEqual(server.get("/v1/models").json["data"][0]["id"], "my/model")
            self.assertEqual(server.get("/models").json["object"], "list")
            self.assertEqual(server.get("/v1/models/my%2Fmodel").json["id"], "my/model")
            props = server.get("/props").json
            self.assertEqual(props["default_generation_settings"]["n_ctx"], 4096)
            self.assertIn("im_start", props["chat_template"])
            self.assertEqual(server.get("/").status, 200)
            head = server.request("HEAD", "/")
            self.assertEqual((head.status, head.body), (200, b""))
            self.assertEqual(server.get("/v1/health?x=y").json["status"], "ok")


if __name__ == "__main__":
    unittest.main()
