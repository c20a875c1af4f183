#!/usr/bin/env python3
"""The cache of `agent fetch` as other programs see it: no server, moving names, a killed fetcher, a full volume.

`tests/run cache` runs this with the agent of the last build.
"""

import hashlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

from harness import MIB, Server, answer, answer_file, content, fetch, secret, start_fetch, until

IS_SOAK = bool(os.environ.get("TRAININGJOB_SOAK"))
MOST_MEMORY = 256 * MIB


def git(body):
    return hashlib.sha1(f"blob {len(body)}\0".encode() + body).hexdigest()


class Hub:
    """A hub whose branch main can move. A commit is the digest of its files."""

    def __init__(self, files):
        self.commits = {}
        self.move(files)
        self.holds = threading.Event()
        self.holds.set()
        self.held_after = None
        self.server = Server(self.handle)

    def move(self, files):
        self.main = hashlib.sha1(json.dumps([[path, git(body)] for path, body in files.items()]).encode()).hexdigest()
        self.commits[self.main] = files

    def hold_after(self, count):
        """The next long answers stop after so many bytes, until the hub goes on."""
        self.held_after = count
        self.holds.clear()

    def go_on(self):
        self.holds.set()

    def handle(self, connection, request):
        parts = request.path.strip("/").split("/")
        if "revision" in parts:
            answer(connection, body=json.dumps({"sha": self.main}).encode())
        elif "tree" in parts:
            entries = [{"type": "file", "path": path, "oid": git(body), "size": len(body)}
                       for path, body in self.commits[parts[-1]].items()]
            answer(connection, body=json.dumps(entries).encode())
        else:
            self.send_file(connection, request, parts)

    def send_file(self, connection, request, parts):
        body = self.commits[parts[3]]["/".join(parts[4:])]
        first, end = request.range(len(body))
        if self.holds.is_set() or end - first <= self.held_after:
            answer_file(connection, request, body)
            return
        status = f"HTTP/1.1 {206 if 'range' in request.headers else 200} Status\r\n"
        parts = (f"content-length: {end - first}", f"content-range: bytes {first}-{end - 1}/{len(body)}")
        connection.sendall((status + "\r\n".join(parts) + "\r\n\r\n").encode() + body[first:first + self.held_after])
        until("the hub to go on", self.holds.is_set)
        connection.sendall(body[first + self.held_after:end])


class Cache(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="trainingjob-cache-")
        self.addCleanup(folder.cleanup)
        self.room = Path(folder.name)

    def hub(self, files):
        hub = Hub(files)
        self.addCleanup(hub.server.close)
        self.addCleanup(hub.go_on)
        return hub

    def fetched(self, *words, **more):
        ended = fetch(self.room, *words, **more)
        self.assertEqual(ended.code, 0, ended)
        return ended.result

    def test_names_move_and_the_cache_serves_without_a_server(self):
        old, new = {"config.json": b"{}", "sub/x": b"old" * MIB}, {"config.json": b"[]"}
        hub = self.hub(old)
        words = ("--endpoint", hub.server.url, "--stall-limit", 1, "hf://a/b")
        first = self.fetched(*words)
        self.assertEqual(content(first["path"]), old)
        self.assertEqual(self.fetched(*words)["fromNetwork"], 0)
        hub.move(new)
        second = self.fetched(*words)
        self.assertEqual((content(second["path"]), content(first["path"])), (new, old))
        hub.server.close()
        asked = len(hub.server.requests)
        for result, files in ((first, old), (second, new)):
            again = self.fetched("--revision", result["revision"], *words)
            self.assertEqual((again["fromNetwork"], again["path"]), (0, result["path"]))
            by_commit = self.fetched(*words[:-1], f"hf://a/b@{result['revision']}")
            self.assertEqual((by_commit["fromNetwork"], content(by_commit["path"])), (0, files))
        ended = fetch(self.room, *words)
        self.assertEqual(ended.code, 1, "a server that is off may come back")
        self.assertEqual(len(hub.server.requests), asked)

    def test_another_fetcher_takes_over_from_one_that_is_killed(self):
        files = {"large": os.urandom(MIB) * 40, "small": b"small"}
        hub = self.hub(files)
        hub.hold_after(39 * MIB)
        words = ("--endpoint", hub.server.url, "--json", "hf://a/b")
        first = start_fetch(self.room, *words)
        until("two parts and a file", lambda: self.journal().count("part") >= 2 and "done" in self.journal())
        second = start_fetch(self.room, *words)
        until("the second one to wait", lambda: '"stage":"waiting"' in second.err.read_text())
        requests = len(hub.server.requests)
        os.kill(first.pid, signal.SIGKILL)
        self.assertEqual(first.wait().code, -signal.SIGKILL)
        hub.go_on()
        ended = second.wait()
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(content(ended.result["path"]), files)
        self.assertEqual(ended.result["fromNetwork"], 8 * MIB, ended)
        asked = [request.path for request in hub.server.requests[requests:]]
        self.assertFalse([path for path in asked if path.endswith("small")], asked)
        self.assertEqual([*(self.room / "cache/.fetching").iterdir()], [])

    def journal(self):
        return "".join(file.read_text() for file in self.room.glob("cache/.fetching/*/journal.jsonl"))

    def test_a_volume_that_fills_up_meanwhile_is_named_and_resumed(self):
        files = {"large": os.urandom(MIB) * 40}
        hub = self.hub(files)
        volume = self.volume("64m")
        hub.hold_after(20 * MIB)
        words = ("--endpoint", hub.server.url, "--termination-log", self.room / "log", "hf://a/b")
        running = start_fetch(self.room, *words, cache="volume/cache")
        until("the first part", lambda: any("part" in file.read_text()
                                            for file in volume.glob("cache/.fetching/*/journal.jsonl")))
        with open(volume / "other", "wb") as other, self.assertRaises(OSError):
            while True:
                other.write(bytes(MIB))
                other.flush()
        hub.go_on()
        ended = running.wait()
        self.assertEqual(ended.code, 1, ended)
        self.assertIn("No space left on device", ended.stderr)
        self.assertIn("free space on the volume of the cache, or enlarge it", ended.stderr)
        self.assertFalse(json.loads((self.room / "log").read_text())["isFinal"])
        # Not enough yet, which is noticed before the first byte.
        asked = len(hub.server.requests)
        ended = fetch(self.room, *words, cache="volume/cache")
        self.assertEqual((ended.code, "the volume has" in ended.stderr), (1, True), ended)
        self.assertFalse([request for request in hub.server.requests[asked:] if "resolve" in request.path])
        (volume / "other").unlink()
        ended = fetch(self.room, *words, cache="volume/cache")
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(ended.result["fromNetwork"], 24 * MIB, "the first part was kept")
        self.assertEqual(content(ended.result["path"]), files)
        self.assertEqual([*(volume / "cache/.fetching").iterdir()], [])

    def test_links_in_the_cache_lead_nowhere(self):
        files = {"config.json": b"{}", "sub/large": os.urandom(MIB) * 40}
        hub = self.hub(files)
        words = ("--endpoint", hub.server.url, "hf://a/b")
        outside = self.room / "outside"
        outside.mkdir()
        (outside / "canary").write_text("{}")

        def check(what):
            self.assertEqual(content(outside), {"canary": b"{}"}, what)

        # In the place of the folder for what is being fetched.
        cache = self.room / "linked"
        cache.mkdir()
        (cache / ".fetching").symlink_to(outside)
        ended = fetch(self.room, *words, cache="linked")
        self.assertNotEqual(ended.code, 0, ended)
        check(ended)
        # In the place of a folder and of the journal of a fetch that was stopped.
        for name in ("data/sub", "data/config.json", "journal.jsonl"):
            hub.hold_after(20 * MIB)
            running = start_fetch(self.room, *words, cache=f"stopped-{name.replace('/', '-')}")
            cache = Path(running.cache)
            until("a part", lambda cache=cache: any("part" in file.read_text()
                                                    for file in cache.glob(".fetching/*/journal.jsonl")))
            os.kill(running.pid, signal.SIGTERM)
            self.assertEqual(running.wait().code, 143)
            hub.go_on()
            (place,) = cache.glob(f".fetching/*/{name}")
            place.rename(cache / "moved")
            place.symlink_to(outside if name == "data/sub" else outside / "canary")
            ended = fetch(self.room, *words, cache=cache.name)
            check(ended)
            self.assertNotIn("panicked", ended.stderr)
        # In the place of a file and of the whole of what was fetched.
        first = self.fetched(*words)
        for place, target in ((Path(first["path"], "config.json"), outside / "canary"), (Path(first["path"]), outside),
                              (Path(first["path"]).parent, outside)):
            place.rename(self.room / f"old-{place.name}")
            place.symlink_to(target)
            ended = fetch(self.room, *words)
            check(ended)
            self.assertEqual(ended.code, 0, ended)
            self.assertEqual(content(ended.result["path"]), files)
            self.assertFalse(Path(ended.result["path"]).is_symlink())

    def volume(self, size):
        """A file system of the test's own."""
        place = self.room / "volume"
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], check=True)
        self.addCleanup(subprocess.run, ["umount", place], check=True)
        return place

    if IS_SOAK:
        def test_a_million_keys_take_bounded_memory(self):
            count = 1_000_000
            bucket = Server(lambda connection, request: page(connection, request, count))
            self.addCleanup(bucket.close)
            volume = self.volume("8g,nr_inodes=3m")
            keys = secret(self.room, AWS_SKIP_SIGNATURE="true", AWS_REGION="x", AWS_ENDPOINT_URL=bucket.url)
            words = ("--credentials", keys, "--json", "s3://bucket/m")
            running = start_fetch(self.room, *words, cache="volume/cache")
            self.watch(running, count // 2)
            os.kill(running.pid, signal.SIGTERM)
            first = running.wait()
            self.assertEqual(first.code, 143, first)
            second = fetch(self.room, *words, cache="volume/cache", deadline=1800)
            self.assertEqual((second.code, second.result["files"]), (0, count), second)
            third = fetch(self.room, *words, "--verify", cache="volume/cache", deadline=1800)
            self.assertEqual((third.code, third.result["fromNetwork"]), (0, 0), third)
            self.assertTrue(volume.exists())
            for what, ended in (("first", first), ("resumed", second), ("verified", third)):
                print(f"1,000,000 keys, {what}: {ended.memory / MIB:.0f} MiB, {ended.seconds:.0f} s, "
                      f"{ended.cpu:.0f} CPU seconds")
                self.assertLess(ended.memory, MOST_MEMORY)

        def watch(self, running, files):
            def has_fetched():
                lines = [line for line in running.err.read_text().splitlines() if '"fetching"' in line]
                return lines and json.loads(lines[-1])["files"] >= files

            until(f"{files} files", has_fetched, deadline=1800)


def page(connection, request, count):
    """A thousand empty objects of as many as there are."""
    token = [part for part in request.query.split("&") if part.startswith("continuation-token=")]
    first = int(token[0].partition("=")[2]) if token else 0
    end = min(first + 1000, count)
    rest = ("<Size>0</Size><ETag>&quot;d41d8cd98f00b204e9800998ecf8427e&quot;</ETag>"
            "<LastModified>2026-10-21T07:28:00.000Z</LastModified></Contents>")
    listed = "".join(f"<Contents><Key>m/{number // 1000:04}/{number:07}.bin</Key>{rest}"
                     for number in range(first, end))
    more = f"<NextContinuationToken>{end}</NextContinuationToken><IsTruncated>true</IsTruncated>" if end < count else ""
    answer(connection, body=f"<ListBucketResult>{listed}{more}</ListBucketResult>".encode())


if __name__ == "__main__":
    unittest.main()
