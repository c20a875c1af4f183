#!/usr/bin/env python3
"""Stop `agent fetch` by a signal: its exit code, its lease and what the next fetch resumes from.

`tests/run stop` builds the agent and runs this.
"""

import hashlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from harness import agent_program

MIB = 1 << 20
CONTENT = os.urandom(MIB) * 40
# Two parts of the journal and a half.
FIRST = 39 * MIB
DEADLINE = 60


class Handler(BaseHTTPRequestHandler):
    """Serve one file. The first long answer stops before its end, and its connection stays open."""

    def do_GET(self):
        asked = self.headers["range"]
        start, last = map(int, asked.removeprefix("bytes=").split("-")) if asked else (0, len(CONTENT) - 1)
        body = CONTENT[start:last + 1]
        self.send_response(206 if asked else 200)
        self.send_header("accept-ranges", "bytes")
        self.send_header("content-length", str(len(body)))
        self.send_header("content-range", f"bytes {start}-{start + len(body) - 1}/{len(CONTENT)}")
        self.send_header("etag", '"one"')
        self.end_headers()
        holds = len(body) > 1 and not self.server.held
        if holds:
            self.server.held = True
            body = body[:FIRST]
        try:
            self.wfile.write(body)
            if holds:
                self.server.is_over.wait(DEADLINE)
        except OSError:
            pass

    def log_message(self, *args):
        pass


class Stop(unittest.TestCase):
    def test_signals_give_the_lease_back_and_the_next_fetch_resumes(self):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)):
            with self.subTest(signal=number.name):
                self.stop(lambda agent, number=number: agent.send_signal(number), code, number.name)

    def test_the_end_of_stdin_gives_the_lease_back(self):
        self.stop(lambda agent: agent.stdin.close(), 1, "the end of stdin")

    def stop(self, stop, code, name):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.held, server.is_over = False, threading.Event()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}/f#sha256={hashlib.sha256(CONTENT).hexdigest()}"
        try:
            with tempfile.TemporaryDirectory(prefix="trainingjob-fetch-") as folder:
                log = Path(folder) / "log"
                cache = Path(folder) / "cache"
                cache.mkdir()
                command = [agent_program(), "fetch", "--into", cache, "--termination-log", log, uri]
                with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as agent:
                    self.until(lambda: len([*cache.glob(".fetching/*.lease.*")]) == 1 and parts(cache) >= 2, agent)
                    stop(agent)
                    self.assertEqual(agent.wait(DEADLINE), code)
                    self.assertIn(f"stopped by {name}", agent.stderr.read())
                self.assertFalse(json.loads(log.read_text())["isFinal"])
                left = [path.name for path in (cache / ".fetching").iterdir()]
                self.assertEqual([".work." in name for name in left], [True], left)
                # A lease that is not given back is waited for for 60 s.
                again = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=50,
                                       check=True)
                self.assertEqual(json.loads(again.stdout)["fromNetwork"], 8 * MIB, "two parts were kept")
                self.assertEqual([*(cache / ".fetching").iterdir()], [])
        finally:
            server.is_over.set()
            server.shutdown()
            server.server_close()

    def until(self, look, agent):
        deadline = time.monotonic() + DEADLINE
        while not look():
            self.assertIsNone(agent.poll(), "the agent ended")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)


def parts(cache):
    return sum(journal.read_text().count("part") for journal in cache.glob(".fetching/*/journal.jsonl"))


if __name__ == "__main__":
    unittest.main()
