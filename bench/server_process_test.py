#!/usr/bin/env python3
"""server_process on servers of a few lines of Python. Usage: server_process_test.py"""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.error

from server_process import ServerProcess, wait_healthy

# Answers GET with 200 from the third time on, 503 before; POST /echo with what it was given, any other POST with 404.
SERVER = """
import http.server, json, signal, sys
class Handler(http.server.BaseHTTPRequestHandler):
    healths = 0
    def answer(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        Handler.healths += 1
        self.answer(200 if Handler.healths >= 3 else 503, "loading")
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = self.path == "/echo"
        self.answer(200 if known else 404, {"body": body, "arguments": sys.argv[1:], "input": sys.stdin.read(), "healths": Handler.healths})
    def log_message(self, *_):
        pass
if "--stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("hello", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class ServerProcessTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "server.py").write_text(SERVER, encoding="utf-8")
        self.command = [sys.executable, str(self.folder / "server.py")]

    def start(self, *flags, **options):
        return ServerProcess(self.command + list(flags), poll_seconds=0.02, start_seconds=300, **options)

    def test_is_healthy_once_constructed_and_ended_after_with(self):
        with self.start("--flag") as server:
            reply = server.post("/echo", {"a": [1, 2]})
            self.assertEqual(reply["body"], {"a": [1, 2]})
            self.assertEqual(reply["arguments"], ["--flag", "--port", server.url.rsplit(":", 1)[1]])
            self.assertEqual(reply["input"], "")
            self.assertGreaterEqual(reply["healths"], 3)  # more where one of them took too long
            self.assertGreater(server.healthy_seconds, 0.02)
            wait_healthy(server.url, "the same")
            with self.assertRaises(urllib.error.HTTPError):
                server.post("/nothing", {})
        self.assertEqual(server.process.returncode, -signal.SIGTERM)
        server.stop()  # once more: nothing happens

    def test_output_goes_to_the_log(self):
        with self.start(log_path=str(self.folder / "log-{port}")) as server:
            path = self.folder / ("log-" + server.url.rsplit(":", 1)[1])
            self.assertTrue(path.read_text(encoding="utf-8").startswith("hello\n"))

    def test_one_that_ignores_the_signal_is_killed(self):
        server = self.start("--stubborn")
        server.stop(seconds=0.1)
        self.assertEqual(server.process.returncode, -signal.SIGKILL)

    def test_one_that_ends_while_starting_ends_the_script(self):
        with self.assertRaisesRegex(SystemExit, "^/bin/false did not start: it ended with 1$"):
            ServerProcess(["/bin/false"], poll_seconds=0.02)

    def test_one_that_is_never_healthy_ends_the_script_and_is_ended(self):
        silent = [sys.executable, "-c", f"import os, time; open({str(self.folder / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"]
        script = f"from server_process import ServerProcess\nServerProcess({silent!r}, start_seconds=1)"
        done = self.script(script)
        self.assertEqual((done.returncode, done.stderr), (1, f"{sys.executable} did not start: not healthy after 1 s\n"))
        pid = (self.folder / "pid").read_text(encoding="utf-8") if (self.folder / "pid").exists() else ""
        if pid:  # it may have been ended before it got that far
            self.assertFalse(alive(int(pid)))

    def test_does_not_outlive_a_script_that_fails(self):
        done = self.script(f"from server_process import ServerProcess\nprint(ServerProcess({self.command!r}).process.pid, flush=True)\nraise ValueError")
        self.assertIn("ValueError", done.stderr)
        self.assertFalse(alive(int(done.stdout)))

    def test_realtime_runs_it_under_chrt(self):
        chrt = self.folder / "chrt"
        chrt.write_text('#!/bin/sh\n[ "$1 $2" = "-f 10" ] && shift 2 && exec "$@" --under-chrt\n', encoding="utf-8")
        chrt.chmod(0o755)
        path = os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", path)
        os.environ["PATH"] = f"{self.folder}:{path}"
        with self.start(realtime=True) as server:
            self.assertEqual(server.post("/echo", {})["arguments"][-1], "--under-chrt")

    def script(self, text):
        return subprocess.run([sys.executable, "-c", text], cwd=pathlib.Path(__file__).parent, capture_output=True, text=True, timeout=300)


if __name__ == "__main__":
    unittest.main()
