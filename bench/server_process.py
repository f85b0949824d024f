"""A server that a script here measures: started on a free port of 127.0.0.1, waited for, asked, ended. Standard library only."""
import atexit, http.client, json, os, socket, subprocess, sys, time, urllib.request

STOP_SECONDS = 60
REALTIME = ["chrt", "-f", "10"]  # for machines that other work shares
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy has no business between a script and its server


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_healthy(url, name, process=None, seconds=300, poll_seconds=0.2):
    """Returns once GET /health answers 200; ends the script if `process` ended, or it took longer than `seconds`."""
    end = time.time() + seconds
    while time.time() < end:
        if process and process.poll() is not None:
            sys.exit(f"{name} did not start: it ended with {process.returncode}")
        try:
            with OPENER.open(url + "/health", timeout=5) as reply:
                if reply.status == 200:
                    return
        except (OSError, http.client.HTTPException):  # not listening yet, or still loading
            pass
        time.sleep(poll_seconds)
    sys.exit(f"{name} did not start: not healthy after {seconds} s")


class ServerProcess:
    """`command` --port N, healthy once constructed; ended by `stop` or `with`, or when the script returns, fails or is interrupted.

    `log_path`: where its output goes, {port} standing for the port; nowhere if None. `healthy_seconds`: from the start of the process
    to the first good answer, to within `poll_seconds`.
    """

    def __init__(self, command, realtime=False, log_path=None, start_seconds=300, poll_seconds=0.2):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        with open(log_path.format(port=port) if log_path else os.devnull, "wb") as log:
            begin = time.time()
            self.process = subprocess.Popen((REALTIME if realtime else []) + command + ["--port", str(port)], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log)
        atexit.register(self.stop)
        wait_healthy(self.url, command[0], self.process, start_seconds, poll_seconds)
        self.healthy_seconds = time.time() - begin

    def post(self, path, body, timeout=1800):
        """The reply to a JSON body, as JSON; raises urllib's HTTPError for a status of 400 or more."""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with OPENER.open(request, timeout=timeout) as reply:
            return json.load(reply)

    def stop(self, seconds=STOP_SECONDS):
        atexit.unregister(self.stop)
        self.process.terminate()  # does nothing to one that has ended
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
