"""A cairn server of one's own, and clients for it, from Python's standard library only."""
import contextlib
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import tempfile
import time

BINARY = None  # run.py sets it
START_SECONDS = 60
CLIENT_SECONDS = 180  # generous: a sanitizer build on a busy machine


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]


def run_cairn(*flags, env=None, seconds=30):
    """Runs a server that is expected to end by itself: (exit status, standard error)."""
    done = subprocess.run([BINARY, "serve", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds,
                          env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL)
    return done.returncode, done.stderr.decode()


class Server:
    """`cairn serve` on a free port with the bundled model; a context manager that ends it."""

    def __init__(self, *flags, env=None, threads=2, preexec=None):
        self.output = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [BINARY, "serve", "--port", "0", "--threads", str(threads), *flags], stdin=subprocess.DEVNULL,
            stdout=self.output, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}, preexec_fn=preexec)
        self.host, self.port = "127.0.0.1", None
        self.wait_ready()

    def text(self):
        self.output.seek(0)
        return self.output.read().decode("utf-8", "replace")

    def wait_ready(self):
        end = time.time() + START_SECONDS
        while time.time() < end:
            found = re.search(r"on http://[^\s]*:(\d+)", self.text())
            if found:
                self.port = int(found[1])
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        self.stop()
        raise RuntimeError("the server did not start: " + self.text())

    def stop(self, signal_number=signal.SIGTERM, seconds=30):
        """The exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        return self.wait(seconds)

    def wait(self, seconds=30):
        """The exit status of a server that was already asked to end."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            status = self.process.returncode
        self.output.close()
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.output.closed:
            self.stop(signal.SIGKILL)

    # -- clients
    def request(self, method, path, body=None, headers=None, seconds=CLIENT_SECONDS):
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=seconds)
        try:
            connection.request(method, path, data, headers or {})
            reply = connection.getresponse()
            return Reply(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body, **kw):
        return self.request("POST", path, body, **kw)

    def chat(self, content="Hello!", **fields):
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return self.post("/v1/chat/completions", {"messages": messages, "max_tokens": 8, **fields})

    def complete(self, prompt, **fields):
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": 8, **fields})

    def socket(self, seconds=20):
        return socket.create_connection((self.host, self.port), timeout=seconds)

    def stream(self, path, body, seconds=CLIENT_SECONDS):
        """(chunks, comments, saw [DONE]) of a streamed reply."""
        s = Stream(self, path, {**body, "stream": True}, seconds)
        try:
            return s.read_all()
        finally:
            s.close()

    # -- figures
    def metrics(self):
        values = {}
        for line in self.get("/metrics").body.decode().splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def busy(self):
        m = self.metrics()
        return m["cairn_slots_busy"] + m["cairn_queue_length"]

    def wait_idle(self, seconds=10):
        return self.wait_for(lambda: self.busy() == 0, seconds)

    @staticmethod
    def wait_for(condition, seconds):
        end = time.time() + seconds
        while time.time() < end:
            if condition():
                return True
            time.sleep(0.02)
        return False


class Stream:
    """A server-sent-event reply, read event by event."""

    def __init__(self, server, path, body, seconds=CLIENT_SECONDS):
        self.socket = server.socket(seconds)
        self.socket.sendall(http_request("POST", path, json.dumps(body).encode()))
        self.file = self.socket.makefile("rb")
        self.status, self.headers = read_head(self.file)
        self.comments, self.done = [], False

    def lines(self):
        """The lines of a chunked body."""
        rest = b""
        while True:
            size = int(self.file.readline() or b"0", 16)
            if size == 0:
                return
            rest += self.file.read(size)
            self.file.readline()
            *whole, rest = rest.split(b"\n")
            yield from whole

    def events(self):
        for line in self.lines():
            if line.startswith(b":"):
                self.comments.append(line)
            elif line == b"data: [DONE]":
                self.done = True
            elif line.startswith(b"data: "):
                yield json.loads(line[6:])

    def wait_text(self):
        """Reads on until the first piece of text: now the request holds a slot."""
        for chunk in self.events():
            if text_of([chunk]):
                return

    def read_all(self):
        return list(self.events()), self.comments, self.done

    def close(self):
        with contextlib.suppress(OSError):
            self.file.close()
            self.socket.close()


def http_request(method, path, body=b"", headers=(), version="1.1"):
    head = [f"{method} {path} HTTP/{version}", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def read_head(file):
    status = int(file.readline().split()[1])
    headers = {}
    while (line := file.readline().strip()):
        name, _, value = line.partition(b":")
        headers[name.decode().lower()] = value.strip().decode()
    return status, headers


def read_reply(file):
    """One reply from a connection that stays open."""
    status, headers = read_head(file)
    if status in (100, 204):
        return Reply(status, headers, b"")
    return Reply(status, headers, file.read(int(headers.get("content-length", 0))))


def readable(sock, seconds):
    poll = select.poll()  # select() takes no descriptor beyond 1023
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def read_to_end(sock, seconds=20):
    """All bytes until the other side closes; a reset counts as the end."""
    got, end = b"", time.time() + seconds
    while time.time() < end:
        if not readable(sock, max(0, end - time.time())):
            break
        try:
            part = sock.recv(65536)
        except ConnectionError:
            return got
        if not part:
            return got
        got += part
    raise TimeoutError(f"still open after {seconds} s: {got[-200:]!r}")


def text_of(chunks):
    """Content of a streamed chat or completion."""
    parts = [c["choices"][0] for c in chunks if c["choices"]]
    return "".join(p["text"] if "text" in p else p["delta"].get("content") or "" for p in parts)
