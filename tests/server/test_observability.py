"""What operators look at: log lines, the dashboard's metrics, /slots and /v1/cache under load."""
import json
import pathlib
import re
import subprocess
import unittest

import harness
from harness import Server, Stream

CHAT = "/v1/chat/completions"
LONG = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 3500, "ignore_eos": True, "stream": True}
MANUAL = pathlib.Path(__file__).resolve().parents[2] / "docs" / "server.md"
DASHBOARD = pathlib.Path(__file__).resolve().parents[2] / "docs" / "grafana" / "cairn.json"


class Logs(unittest.TestCase):
    def test_each_reply_is_one_json_line_with_the_request_id(self):
        with Server("--log-format", "json") as server:
            reply = server.chat("Hello!", max_tokens=3)
            self.assertEqual(server.post(CHAT, {"messages": []}).status, 400)
            server.get("/health")
            lines = [json.loads(line) for line in server.text().splitlines() if line.startswith("{")]
            replies = [line for line in lines if line["message"] == "[server] reply"]
            self.assertEqual([line["status"] for line in replies], [200, 400])  # /health: --log-level debug
            first = replies[0]
            self.assertEqual(first["request"], reply.headers["x-request-id"])
            self.assertEqual(first["completion"], reply.json["id"])
            self.assertEqual(first["route"], CHAT)
            self.assertEqual(first["generated"], 3)
            self.assertEqual(first["prompt_tokens"], reply.json["usage"]["prompt_tokens"])
            self.assertIn("messages", replies[1]["error"])
            for line in lines:
                self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d$")

    def test_engine_lines_carry_the_request_id(self):
        with Server("--log-format", "json", "--log-level", "debug", env={"CAIRN_TEST_FAULT": "step:12"}) as server:
            stream = Stream(server, CHAT, LONG)
            stream.read_all()
            stream.close()
            lines = [json.loads(line) for line in server.text().splitlines() if line.startswith("{")]
            for message in ("[engine] admitted", "[engine] ended by a failed step", "[server] reply"):
                about = [line["request"] for line in lines if line["message"] == message]
                self.assertEqual(about, [stream.headers["x-request-id"]], message)

    def test_text_lines_and_levels(self):
        with Server() as server:
            identity = server.chat("Hello!").headers["x-request-id"]
            self.assertRegex(server.text(), rf"\[info\] \[server\] reply request={identity} route={CHAT} status=200 ms=\d+")
        with Server("--log-level", "warning") as server:
            server.chat("Hello!")
            self.assertNotIn("reply", server.text())


class Figures(unittest.TestCase):
    def test_the_dashboard_names_only_metrics_that_exist(self):
        dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
        queries = [t["expr"] for p in dashboard["panels"] for t in p.get("targets", [])]
        self.assertGreater(len(queries), 10)
        with Server() as server:
            server.chat("Hello!")
            shown = {re.match(r"[a-zA-Z_:]+", name)[0] for name in server.metrics()}
        for query in queries:
            names = re.findall(r"\b(?:cairn_|llamacpp:)[a-z_]+", query)
            self.assertTrue(names, query)
            for name in names:
                self.assertIn(name, shown, query)

    def test_the_manual_names_what_exists_and_all_of_it(self):
        manual = MANUAL.read_text(encoding="utf-8")
        named = set(re.findall(r"`((?:cairn_|llamacpp:)[a-z_]+)`", manual))
        with Server() as server:
            server.chat("Hello!")
            families = set(re.findall(r"(?m)^# TYPE (\S+)", server.get("/metrics").body.decode()))
            self.assertEqual(named, families)
            routes = re.findall(r"`(GET|POST|DELETE) (/\S*)`", manual)
            self.assertGreater(len(routes), 20)
            for method, path in routes:
                reply = server.request(method, path.replace("{id}", "0"), None if method == "GET" else b"{}")
                known = reply.status not in (404, 405, 501) or any(w in reply.error["message"] for w in ("no node", "no model"))
                self.assertTrue(known, (method, path, reply.body))
        text = subprocess.run([harness.BINARY, "serve", "--help"], capture_output=True, text=True, check=True).stdout
        flags = set(re.findall(r"(?m)^\s+(--[a-z-]+)", text)) - {"--help"}
        self.assertGreater(len(flags), 30)
        self.assertEqual({f for f in flags if f"`{f}`" not in manual}, set())
        self.assertEqual(set(re.findall(r"`(--[a-z-]+)`", manual)) - flags, set())

    def test_histograms_slots_and_cache_under_load(self):
        with Server() as server:
            streams = [Stream(server, CHAT, dict(LONG, messages=[{"role": "user", "content": f"Hello {i}!"}]))
                       for i in range(3)]
            for stream in streams:
                stream.wait_text()
            slots = server.get("/slots").json
            self.assertEqual(sum(bool(slot["is_processing"]) for slot in slots), 3)
            figures = server.metrics()
            self.assertEqual(figures["cairn_slots_busy"], 3)
            self.assertEqual(server.get("/v1/cache").status, 200)
            for stream in streams:
                stream.close()
            self.assertTrue(server.wait_idle())
            self.assertFalse(any(slot["is_processing"] for slot in server.get("/slots").json))
            cache = server.get("/v1/cache").json
            figures = server.metrics()
            self.assertEqual(cache["checkpoints"], figures['cairn_checkpoints{tier="memory"}'])
            for name in ("ttft", "inter_token", "step", "snapshot"):
                self.assertGreater(figures[f"cairn_{name}_seconds_count"], 0, name)


if __name__ == "__main__":
    unittest.main()
