#!/usr/bin/env python3
"""Hostile servers against `agent fetch`: each fetch ends within three stall limits and in 256 MiB.

The servers and the agent are in a network of the test's own, whose loopback interface has public and private addresses
and that of a metadata service. `tests/run hostile` builds the agent and runs this.
"""

import ctypes
import functools
import hashlib
import json
import os
import subprocess
import tempfile
import threading
import unittest
import urllib.request
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness import DEADLINE, MIB, Server, answer, answer_file, content, fetch, secret

# Seconds.
STALL = 6
USUAL_STALL = 60
LIMITS = 3
MOST_MEMORY = 256 * MIB
COMMIT = "1" * 40
PUBLIC, PRIVATE, METADATA = "203.0.113.7", "10.9.8.7", "169.254.169.254"
INNER = (PRIVATE, "127.0.0.1", METADATA, "::1", "fd00:ec2::254")
CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
AT_ONCE = 16
IS_SOAK = bool(os.environ.get("TRAININGJOB_SOAK"))


def setUpModule():
    """Takes this thread, and all that it starts from now on, into a network and a mount namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET | CLONE_NEWNS):
        raise unittest.SkipTest(f"no namespace ({os.strerror(ctypes.get_errno())}): run it as root")
    run("mount", "--make-rprivate", "/")
    run("ip", "link", "set", "lo", "up")
    for address in (PUBLIC, PRIVATE, METADATA):
        run("ip", "address", "add", f"{address}/32", "dev", "lo")
    run("ip", "-6", "address", "add", "fd00:ec2::254/128", "dev", "lo", "nodad")
    # The resolver of the agent reads these files, and there is no other one.
    names = Path(tempfile.mkdtemp(prefix="trainingjob-names-"))
    run("mount", "-t", "tmpfs", "tmpfs", names)
    hosts = {PUBLIC: "public.test", METADATA: "metadata.test", "127.0.0.1": "loopback.test", PRIVATE: "private.test"}
    (names / "hosts").write_text("".join(f"{address} {name}\n" for address, name in hosts.items()))
    (names / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    for name in ("hosts", "resolv.conf"):
        run("mount", "--bind", names / name, f"/etc/{name}")
    unittest.addModuleCleanup(lambda: (run("umount", "/etc/hosts", "/etc/resolv.conf", names), names.rmdir()))


def run(*words):
    subprocess.run([str(word) for word in words], check=True, stdin=subprocess.DEVNULL, capture_output=True)


def sha256(body):
    return hashlib.sha256(body).hexdigest()


def git(body):
    return hashlib.sha1(f"blob {len(body)}\0".encode() + body).hexdigest()


# ---- what a server sends, whatever it is asked for

def headers(connection, _, server):
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for _ in range(1000):
        connection.sendall(b"x-some: y\r\n" * 1000)
    connection.sendall(b"content-length: 0\r\n\r\n")


def long_header(connection, _, server):
    connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
    while True:
        connection.sendall(b"x" * MIB)


def slow_header(connection, _, server):
    connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
    drip(connection, server)


def interim(connection, _, server):
    while True:
        connection.sendall(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" * 100)
        server.pause(0.01)


def silence(connection, _, server):
    server.pause(DEADLINE)


def nothing(connection, _, server):
    pass


def noise(connection, _, server):
    connection.sendall(b"\xff\x00" * 50_000)


def endless(connection, _, server, head=b""):
    connection.sendall(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n")
    while True:
        connection.sendall(b" " * MIB)


def endless_chunks(connection, _, server):
    connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        connection.sendall((b"3e8\r\n" + b" " * 1000 + b"\r\n") * 100)


def endless_extension(connection, _, server):
    connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;")
    while True:
        connection.sendall(b"x" * MIB)


def endless_trailers(connection, _, server):
    connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n")
    while True:
        connection.sendall(b"x-some: y\r\n" * 10_000)


def drip(connection, server):
    while True:
        connection.sendall(b" ")
        server.pause(0.1)


def slow_body(connection, _, server):
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    drip(connection, server)


@functools.cache
def packed():
    """8 MiB as a block of gzip that can be repeated."""
    pack = zlib.compressobj(1, zlib.DEFLATED, -15)
    return pack.compress(b" " * (8 * MIB)) + pack.flush(zlib.Z_FULL_FLUSH)


def bomb(connection, _, server):
    """Some MiB on the wire, which are 8 GiB for a client that unpacks them."""
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n\x1f\x8b\x08\0\0\0\0\0\0\xff")
    for _ in range(1000):
        connection.sendall(packed())


def redirects(connection, request, server):
    answer(connection, 302, location=f"{request.path}x")


def slow_redirects(connection, request, server):
    """Each hop alone is faster than the stall limit."""
    server.pause(0.8 * STALL)
    answer(connection, 302, location=f"{request.path}x")


def length(value):
    def send(connection, _, server):
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: " + value + b"\r\n\r\n[]")

    return send


RAW = {
    "a million headers": headers,
    "a header without end": long_header,
    "a slow header": slow_header,
    "interim answers without end": interim,
    "silence": silence,
    "nothing": nothing,
    "noise": noise,
    "a body without end": endless,
    "chunks without end": endless_chunks,
    "a chunk extension without end": endless_extension,
    "trailers without end": endless_trailers,
    "a slow body": slow_body,
    "gzip without end": functools.partial(endless, head=b"content-encoding: gzip\r\n"),
    "a gzip bomb": bomb,
    "redirects without end": redirects,
    "slow redirects": slow_redirects,
    "a length of 1 byte": length(b"1"),
    "a length of 3 bytes": length(b"3"),
    "a length of 2^64 - 1 bytes": length(b"18446744073709551615"),
    "a length of 2^70 bytes": length(b"1180591620717411303424"),
    "a negative length": length(b"-2"),
    "two lengths": length(b"2\r\ncontent-length: 3"),
}

# ---- a hub and a bucket that are right but for one thing

SMALL = b"small"


def entry(path, body=SMALL, **changed):
    return {"type": "file", "path": path, "oid": git(body), "size": len(body), **changed}


def hub(tree, file=None, revision=None):
    """A hub whose list, files or revision are what these functions send."""
    def handle(connection, request, server):
        if "/revision/" in request.path:
            if revision:
                revision(connection, request, server)
            return answer(connection, body=json.dumps({"sha": COMMIT}).encode())
        if "/tree/" in request.path:
            return tree(connection, request, server)
        return (file or nothing)(connection, request, server)

    return handle


def tree(*entries, link=None):
    body = json.dumps(entries).encode()
    return lambda connection, *_: answer(connection, body=body, link=link)


def pages(pause, send_page):
    """Answers by `send_page(connection, request, page)` with the number of the page, each after a pause."""
    lock, count = threading.Lock(), [0]

    def send(connection, request, server):
        with lock:
            count[0] += 1
            page = count[0]
        server.pause(pause)
        send_page(connection, request, page)

    return send


def endless_list(entries, pause=0.0):
    """Pages with so many entries each, without a last one."""
    def send(connection, request, page):
        body = ",".join(f'{{"type":"file","path":"{page}-{number}","oid":"","size":1}}' for number in range(entries))
        answer(connection, body=f"[{body}]".encode(), link=f'<{request.path}?page={page}>; rel="next"')

    return pages(pause, send)


def many_objects(entries, pause=0.0):
    def send(connection, _, page):
        body = "".join(f"<Contents><Key>m/{page:06}-{number:06}</Key><Size>1</Size><LastModified>"
                       "2026-10-21T07:28:00.000Z</LastModified></Contents>" for number in range(entries))
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{page}</NextContinuationToken>"
        answer(connection, body=f"<ListBucketResult>{body}{more}</ListBucketResult>".encode())

    return pages(pause, send)


def objects(keys, file=None):
    """A bucket that lists these keys, each of the small file."""
    def handle(connection, request, server):
        if "list-type" in request.query:
            listed = "".join(f"<Contents><Key>{key}</Key><Size>{len(SMALL)}</Size><ETag>one</ETag><LastModified>"
                             "2026-10-21T07:28:00.000Z</LastModified></Contents>" for key in keys)
            body = f"<ListBucketResult>{listed}<IsTruncated>false</IsTruncated></ListBucketResult>"
            return answer(connection, body=body.encode())
        return (file or nothing)(connection, request, server)

    return handle


def pauses_before(seconds, send):
    def handle(connection, request, server):
        server.pause(seconds)
        send(connection, request, server)

    return handle


def part_of(body, **changed):
    """A range with headers that are changed."""
    def send(connection, request, server):
        answer_file(connection, request, body, **changed)

    return send


def short_file(connection, request, server):
    answer(connection, body=SMALL[:2], **{"content-length": len(SMALL)})


def part_from_elsewhere(connection, request, server):
    if "range" in request.headers:
        return part_of(SMALL, **{"content-range": "bytes 0-4/5"})(connection, request, server)
    return short_file(connection, request, server)


def slow_file(connection, request, server):
    """A byte now and then, of a file that is fetched with its length known."""
    connection.sendall(f"HTTP/1.1 200 OK\r\ncontent-length: {len(LARGE)}\r\n\r\n".encode())
    drip(connection, server)


def after_redirects(connection, request, server):
    """Slow hops, and then a slow body: together they take no longer than one that is silent."""
    hop = len(request.query)
    server.pause(0.5 * STALL)
    if hop < 4:
        return answer(connection, 302, location=f"{request.path}?{'x' * (hop + 1)}")
    return slow_file(connection, request, server)


LARGE = b"large" * MIB
NAMES = ("../canary", "../../canary", "/canary", "a/../../canary", "a//b", "a\x00b", "a\nb", ".", "..", "a/./b", "",
         "x" * 300, "x/" * 3000 + "x")
HUB = {
    "a list without end": hub(endless_list(1)),
    "a list of slow pages without end": hub(endless_list(1, 0.8 * STALL)),
    "one long page of entries": hub(lambda connection, *_: answer(
        connection, body=b'[' + b'{"type":"file","path":"","oid":""},' * 230_000 + b'{}]')),
    "one long page of folders": hub(lambda connection, *_: answer(
        connection, body=b'[' + b'{"type":"","path":"","oid":""},' * 250_000 + b'{}]')),
    "brackets": hub(lambda connection, *_: answer(connection, body=b"[" * (7 * MIB))),
    "a long string": hub(lambda connection, *_: answer(connection, body=b'[{"type":"' + b"x" * (7 * MIB) + b'"}]')),
    "a list at another host": hub(tree(entry("a"), link=f"<http://{METADATA}/latest>; rel=\"next\"")),
    "a size of 2^64 - 1 bytes": hub(tree(entry("a", size=2**64 - 1), entry("b", size=2**64 - 1))),
    "a negative size": hub(tree(entry("a", size=-1))),
    "a path twice": hub(tree(entry("a"), entry("a")), part_of(SMALL)),
    "a file in the place of a folder": hub(tree(entry("a"), entry("a/b")), part_of(SMALL)),
    "a commit that is a path": hub(tree(entry("a")), revision=lambda connection, *_: answer(
        connection, body=b'{"sha": "../../../canary"}')),
    "a short file": hub(tree(entry("a")), short_file),
    "a long file": hub(tree(entry("a")), lambda connection, *_: answer(connection, body=LARGE)),
    "a file of other content": hub(tree(entry("a")), part_of(b"SMALL")),
    "a file without end and of other content": hub(tree(entry("a")), endless),
    "a slow file": hub(tree(entry("a", LARGE)), slow_file),
    "slow files": hub(tree(*(entry(f"{number}", LARGE) for number in range(64))), slow_file),
    "slow redirects to a slow file": hub(tree(entry("a", LARGE)), after_redirects),
    "steps that are each almost a stall": hub(
        pauses_before(0.9 * STALL, tree(*(entry(f"{number}") for number in range(500)))),
        pauses_before(0.9 * STALL, part_of(SMALL)), lambda _c, _r, server: server.pause(0.9 * STALL)),
    "a range from elsewhere": hub(tree(entry("a")), part_from_elsewhere),
    "a compressed file": hub(tree(entry("a")), part_of(SMALL, **{"content-encoding": "gzip"})),
    **{f"the name {name[:20]!r}": hub(tree(entry(name)), part_of(SMALL)) for name in NAMES},
}
BUCKET = {
    "a list without end": many_objects(1),
    "a list of slow pages without end": many_objects(1, 0.8 * STALL),
    "entities": lambda connection, *_: answer(connection, body=(
        b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">' + b"".join(
            f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">'.encode() for n in range(9))
        + b"]><ListBucketResult><Contents><Key>&j;</Key></Contents></ListBucketResult>")),
    "a slow object": objects(["m/a"], lambda connection, request, server: (
        connection.sendall(b"HTTP/1.1 206 OK\r\ncontent-range: bytes 0-4/5\r\ncontent-length: 5\r\netag: one\r\n\r\n"),
        server.pause(DEADLINE))),
    "an object of another length": objects(["m/a"], part_of(b"longer than it was", tag="one")),
    "an object without end": objects(["m/a"], endless),
    **{f"the key {name!r}": objects([name], part_of(SMALL, tag="one"))
       for name in ("m/../../canary", "m//b", "m/&#0;", "m/a&#10;b", "other/key", "m/./a", "m/..", "../canary")},
}
# These send all that a list may have: the soak alone has the time.
LONG = {
    "hub": {"a list of long pages without end": hub(endless_list(150_000)),
            "a list of usual pages without end": hub(endless_list(1000))},
    "store": {"a list of long pages without end": many_objects(250_000)},
}
# Redirects of a public server, whatever it is asked for.
PLACES = (f"http://{METADATA}/latest/meta-data", "http://metadata.test/x", "http://[::ffff:169.254.169.254]/",
          "http://0xa9fea9fe/", "http://2852039166/", "http://[fd00:ec2::254]/x", "http://loopback.test:80/x",
          "http://private.test/x", f"http://{PRIVATE}/x", "http://127.0.0.1/x", "http://[::1]/x", "http://0/x",
          "http://127.1/x", "//169.254.169.254/x", "file:///etc/passwd", "http://user:pw@public.test/", "http://[")


class Hostile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="trainingjob-hostile-")
        self.addCleanup(folder.cleanup)
        self.home = Path(folder.name)
        # What nothing may touch: beside the cache, at the root, and services at inner addresses.
        self.guards = [Server(lambda connection, _: answer(connection, body=b"secret"), address, 80)
                       for address in INNER]
        for guard in self.guards:
            self.addCleanup(guard.close)
            # Control: a client that asks for it reaches it.
            with urllib.request.urlopen(f"{guard.url}/", timeout=DEADLINE) as answered:
                self.assertEqual(answered.read(), b"secret")
            guard.requests.clear()
        self.most, self.cpu = (0, ""), []
        self.longest = (0.0, "")
        self.stall = STALL

    def check(self, kind, cases):
        """Runs all cases, several at a time, and compares what each may not do."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            ended = {name: pool.submit(self.fetch_from, kind, number, handler)
                     for number, (name, handler) in enumerate(cases.items())}
        for name, future in ended.items():
            with self.subTest(kind=kind, server=name):
                self.check_end(f"{kind}: {name}", *future.result())
        print(f"{kind}: {len(cases)} servers; most memory {self.most[0] / MIB:.0f} MiB ({self.most[1]}), "
              f"longest {self.longest[0]:.1f} s ({self.longest[1]}), "
              f"{sum(cpu for cpu, _ in self.cpu):.1f} CPU seconds {sorted(self.cpu)[-4:]}")

    def fetch_from(self, kind, number, handler):
        room = Path(tempfile.mkdtemp(prefix=f"{kind}-{number}-", dir=self.home))
        (room / "canary").write_text("canary")
        server = Server(None, PUBLIC)
        server.handler = lambda connection, request: handler(connection, request, server)
        with server:
            ended = fetch(room, "--stall-limit", self.stall, *source(kind, room, server.url),
                          deadline=LIMITS * self.stall + DEADLINE)
        return room, server, ended

    def check_end(self, name, room, server, ended):
        self.most = max(self.most, (ended.memory, name))
        self.longest = max(self.longest, (ended.seconds, name))
        self.cpu.append((ended.cpu, name))
        said = f"{name}: {ended}\nthe last of {len(server.requests)} requests: {server.requests[-5:]}"
        self.assertIn(ended.code, (1, 2), said)
        self.assertLess(ended.seconds, LIMITS * self.stall, said)
        self.assertLess(ended.memory, MOST_MEMORY, said)
        self.assertNotIn("panicked", ended.stderr, said)
        self.assertTrue(server.requests, said)
        own = ("cache/.fetching/", "stdout-", "stderr-", "report-", "secret/")
        left = {path for path in content(room) if not path.startswith(own)}
        self.assertEqual(left, {"canary"}, said)
        self.assertEqual((room / "canary").read_text(), "canary", said)
        asked = [(guard.address, guard.requests) for guard in self.guards if guard.requests]
        self.assertEqual(asked, [], said)

    def test_answers_of_any_bytes(self):
        for kind in ("hub", "web", "store"):
            self.check(kind, RAW)

    def test_hubs_whose_lists_and_files_are_wrong(self):
        self.check("hub", HUB)

    def test_buckets_whose_lists_and_objects_are_wrong(self):
        self.check("store", BUCKET)

    def test_slow_servers_that_move_are_waited_for(self):
        body = os.urandom(MIB)

        def send(connection, request, server):
            server.pause(0.7 * STALL)
            connection.sendall(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode())
            for first in range(0, MIB, MIB // 16):
                server.pause(0.1 * STALL)
                connection.sendall(body[first:first + MIB // 16])

        room, server, ended = self.fetch_from("hub", 0, hub(tree(entry("a", body), entry("b", body)), send))
        self.assertEqual(ended.code, 0, f"{ended} {server.requests}")
        self.assertEqual(content(ended.result["path"]), {"a": body, "b": body}, room)

    def test_redirects_to_inner_addresses(self):
        for kind in ("hub", "web", "store"):
            self.check(kind, {place: lambda connection, _r, _s, place=place: answer(connection, 302, location=place)
                              for place in PLACES})

    if IS_SOAK:
        def test_lists_of_more_files_than_are_accepted(self):
            self.stall = USUAL_STALL
            for kind, cases in LONG.items():
                for name, handler in cases.items():
                    self.check(kind, {name: handler})


def source(kind, room, url):
    """The words that name a source of this kind."""
    if kind == "hub":
        return "--endpoint", url, "hf://a/b"
    if kind == "web":
        return (f"{url}/f#sha256={sha256(SMALL)}",)
    keys = secret(room, AWS_SKIP_SIGNATURE="true", AWS_REGION="us-east-1", AWS_ENDPOINT_URL=url)
    return "--credentials", keys, "s3://bucket/m"


if __name__ == "__main__":
    unittest.main()
