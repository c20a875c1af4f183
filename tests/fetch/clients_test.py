#!/usr/bin/env python3
"""The clients of the stores themselves against the servers of our tests, and against what our agent wrote and reads.

What stands in for a hub or a store is right if the store's own client works with it. Then each client writes what
`agent fetch` reads, and reads what `agent publish` wrote. `tests/run --soak --only clients` runs this. By itself it
builds the agent, makes an environment with the clients below the cache, and starts again with its Python.
"""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from harness import DEADLINE, ROOT, Running, agent_program, content, fetch, free_port, secret, until
from runner import processes, venv

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
TOKEN, BUCKET, KEY, SECRET = "hf_right", "bucket", "test-key", "test-secret"
ACCOUNT = "devstoreaccount1"  # the emulator's own, with its key
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
FILES = {
    "model.safetensors": bytes(range(251)) * 20_000,
    "tokenizer.bin": b"x" * 10_000,
    "config.json": b"{}",
    "empty": b"",
    "lr=0.1/Größe 2": b"y" * 9_999,
}
# More than what our agent and the clients send or fetch by one request.
LARGE = {"large": bytes(range(253)) * 300_000}


def write(folder, files):
    for path, body in files.items():
        file = Path(folder, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
    return folder


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="trainingjob-clients-")
        self.addCleanup(folder.cleanup)
        self.room = Path(folder.name)

    def start(self, what, command, look, env=None):
        """Starts a server, and waits until `look` finds it."""
        with open(self.room / f"{what}.log", "w") as log:
            server = subprocess.Popen([str(word) for word in command], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log,
                                      stderr=log, env={**os.environ, **(env or {})}, start_new_session=True)

        def end():
            processes.end(server, signal.SIGKILL)  # with what it has started; it may have ended by itself
            server.wait()

        def is_there():
            self.assertIsNone(server.poll(), (self.room / f"{what}.log").read_text())
            return look()

        self.addCleanup(end)
        return server, until(what, is_there)

    def fetch(self, uri, *words, **more):
        """What `agent fetch` brings into a new cache."""
        ended = fetch(self.room, *words, uri, cache=f"cache-{time.monotonic_ns()}", **more)
        self.assertEqual(ended.code, 0, ended)
        return content(ended.result["path"])

    def publish(self, folder, to, *words):
        """The record of `agent publish`."""
        name = f"run-{time.monotonic_ns()}"
        ended = Running(self.room, agent_program(), "publish", "--from", folder, "--to", to, "--name", name,
                        *words).wait()
        self.assertEqual(ended.code, 0, ended)
        return ended.result["record"]


def rust_test(package, name):
    """The command of a unit test in Rust."""
    if folder := os.environ.get("TRAININGJOB_TEST_PROGRAMS"):
        return [Path(folder, f"lib-{package}"), "--exact", f"{name}"]
    return ["cargo", "test", "-q", "-p", package, "--lib", name, "--", "--exact"]


class Hub(Case):
    def hubs(self):
        """The URLs of the hub that `crates/fetch` is tested with, open and gated; and its files."""
        file = self.room / "hubs"
        server, _ = self.start("hubs", rust_test("fetch", "tests::hubs_for_another_client"), file.exists,
                               {"FETCH_TEST_HUBS": str(file)})

        def end():
            file.unlink(missing_ok=True)
            server.wait(DEADLINE)

        self.addCleanup(end)
        return (*file.read_text().split(), content(file.with_suffix(".files")))

    def client(self, endpoint, script, *arguments, **env):
        """Runs a script with the hub's client, whose settings are read once in a process; returns what it prints."""
        env = {"HF_ENDPOINT": endpoint, "HF_HOME": str(self.room / "home"), "HF_HUB_DISABLE_XET": "1",
               "HF_HUB_DISABLE_TELEMETRY": "1", **env}
        command = [sys.executable, "-c", f"import sys, json\nfrom huggingface_hub import *\n{script}", *arguments]
        done = subprocess.run([str(word) for word in command], env={**os.environ, **env}, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=DEADLINE, check=False)
        return done.returncode, done.stdout.strip(), done.stderr

    def printed(self, *words, **env):
        code, out, err = self.client(*words, **env)
        self.assertEqual(code, 0, err)
        return out

    def test_downloads_gates_and_offline_mode(self):
        is_open, gated, files = self.hubs()
        path = self.printed(is_open, "print(hf_hub_download('a/b', 'folder/a b.txt'))")
        self.assertEqual(Path(path).read_bytes(), files["folder/a b.txt"])
        snapshot = self.printed(is_open, "print(snapshot_download('a/b'))")
        self.assertEqual(content(snapshot), files)
        listed = json.loads(self.printed(is_open, "print(json.dumps(list_repo_files('a/b')))"))
        self.assertEqual(sorted(listed), sorted(files))
        code, _, err = self.client(is_open, "hf_hub_download('a/b', 'none')")
        self.assertTrue(code and "EntryNotFoundError" in err, err)
        code, _, err = self.client(is_open, "hf_hub_download('a/b', 'config.json', revision='none')")
        self.assertTrue(code and "RevisionNotFoundError" in err, err)
        # Our agent reads the same from the same hub.
        self.assertEqual(self.fetch("hf://a/b", "--endpoint", is_open, "--any-weights"), files)

        code, _, err = self.client(gated, "snapshot_download('a/b')", HF_HOME=str(self.room / "other"))
        self.assertTrue(code and "GatedRepoError" in err, err)
        path = self.printed(gated, "print(snapshot_download('a/b'))", HF_TOKEN=TOKEN, HF_HOME=str(self.room / "other"))
        self.assertEqual(content(path), files)
        denied = fetch(self.room, "--endpoint", gated, "hf://a/b")
        self.assertEqual(denied.code, 2, denied)
        self.assertIn(f"accept it at {gated}/a/b", denied.stderr)
        token = secret(self.room, HF_TOKEN=TOKEN)
        self.assertEqual(self.fetch("hf://a/b", "--endpoint", gated, "--any-weights", "--credentials", token), files)

        # Offline, and with a hub that is not there.
        offline = {"HF_HUB_OFFLINE": "1"}
        self.assertEqual(self.printed("http://127.0.0.1:1", "print(snapshot_download('a/b'))", **offline), snapshot)
        code, _, err = self.client("http://127.0.0.1:1", "snapshot_download('a/c')", **offline)
        self.assertTrue(code, err)

    def test_what_one_side_uploads_the_other_downloads(self):
        url = self.room / "hub.url"
        server, _ = self.start("publish-hub", rust_test("publish", "hub_tests::a_hub_for_another_client"),
                               lambda: url.exists() and url.read_text(), {"PUBLISH_TEST_HUB": str(url)})
        self.addCleanup(url.unlink, missing_ok=True)
        endpoint = url.read_text()
        source = write(self.room / "source", FILES)
        token = {"HF_TOKEN": TOKEN}
        self.printed(endpoint, """
api = HfApi()
for _ in range(2):
    api.create_repo("team/digits", private=True, exist_ok=True)
api.create_branch("team/digits", branch="runs/1")
first = api.upload_folder(repo_id="team/digits", folder_path=sys.argv[1])
again = api.upload_folder(repo_id="team/digits", folder_path=sys.argv[1], commit_message="again")
assert first.oid != again.oid
found = {entry.path: entry for entry in api.list_repo_tree("team/digits", recursive=True)}
assert found["tokenizer.bin"].lfs.size == 10_000 and found["config.json"].lfs is None, found
""", source, **token)
        keys = ("--endpoint", endpoint, "--credentials", secret(self.room, HF_TOKEN=TOKEN))
        fetched = self.fetch("hf://team/digits", *keys, "--any-weights")
        fetched.pop(".gitattributes")
        self.assertEqual(fetched, FILES)

        record = self.publish(source, "hf://team/digits@runs%2F2", *keys)
        path = self.printed(endpoint, "print(snapshot_download('team/digits', revision='runs/2'))", **token)
        found = content(path)
        self.assertEqual({path: found.get(path) for path in FILES}, FILES)
        commit = self.printed(endpoint, "print(HfApi().model_info('team/digits', revision='runs/2').sha)", **token)
        self.assertEqual(commit, record["revision"])
        pinned = self.fetch(f"hf://team/digits@{commit}", *keys, "--any-weights")
        self.assertEqual(pinned, found)

        url.unlink()
        self.assertEqual(server.wait(DEADLINE), 0)
        stored = content(url.with_suffix(".files"))
        self.assertEqual({path: stored.get(path) for path in FILES}, FILES)
        lines = url.with_suffix(".log").read_text().splitlines()
        kinds = ("POST /api/repos/create", "/branch/", "/preupload/", "/info/lfs/objects/batch", "PUT /storage/",
                 "POST /storage/", "/verify", "/commit/")
        for kind in kinds:
            self.assertTrue(any(kind in line for line in lines), kind)
        # Five parts of the large file and one of the other: what is there is sent by neither client again.
        self.assertEqual(sum(line.startswith("PUT /storage/") for line in lines), 6)


class Stores(Case):
    def compare(self, uri, keys, put, get):
        """Both directions: `put(key, bytes)` and `get()`, key -> bytes, are by the store's own client."""
        files = {**FILES, **LARGE}
        for path, body in files.items():
            put(f"theirs/{path}", body)
        put("theirs-too/other", b"of a prefix with the same beginning")
        self.assertEqual(self.fetch(f"{uri}/theirs", *keys), files)
        if not uri.startswith("gs:"):  # its stand-in takes no uploads by the API that the agent uses
            record = self.publish(write(self.room / "source", files), f"{uri}/ours", *keys)
            below = record["uri"].removeprefix(f"{uri}/")
            ours = {key.removeprefix(f"{below}/"): body for key, body in get().items() if key.startswith(f"{below}/")}
            self.assertEqual({path: ours.get(path) for path in files}, files)
            hashes = {file["path"]: file["sha256"] for file in json.loads(ours[record_name(ours, files)])["files"]}
            self.assertEqual(hashes, {path: hashlib.sha256(body).hexdigest() for path, body in files.items()})
            self.assertEqual(self.fetch(record["uri"], *keys), ours)

    def s3(self):
        """Starts a server of S3: its URL, and a folder with the keys."""
        port = free_port()
        (self.room / "store" / BUCKET).mkdir(parents=True)
        self.start("versitygw", [tool("versitygw"), "--access", KEY, "--secret", SECRET, "--region", "us-east-1",
                                 "--quiet", "--port", f"127.0.0.1:{port}", "posix", self.room / "store"],
                   lambda: is_open(port))
        url = f"http://127.0.0.1:{port}"
        return url, secret(self.room, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, AWS_REGION="us-east-1",
                           AWS_ENDPOINT_URL=url)

    def test_mlflow(self):
        """What the operator has an agent do: publish a result, register it in MLflow, and fetch it by its digest."""
        from mlflow import MlflowClient

        _, keys = self.s3()
        port = free_port()
        tracking = f"http://127.0.0.1:{port}"
        self.start("mlflow", [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", port,
                              "--workers", "1", "--backend-store-uri", f"sqlite:///{self.room}/mlflow.db",
                              "--artifacts-destination", self.room / "artifacts"],
                   lambda: is_open(port), {"HOME": str(self.room)})
        request = {"from": str(write(self.room / "out", FILES)), "uri": f"s3://{BUCKET}/results", "name": "digits-1",
                   "credentials": str(keys), "register": {"mlflow": tracking, "model": "digits"},
                   "origin": {"job": "digits", "metrics": {"loss": 0.5}}}
        words = self.room / "words"
        for _ in range(2):  # the second one finds it
            command = [agent_program(), "outputs", "--request", json.dumps(request), "--termination-log", words]
            done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            published = json.loads(words.read_text())["published"]
            self.assertEqual(published["registeredVersion"], "1")
            self.assertEqual(published["record"]["fileCount"], len(FILES))
        version = MlflowClient(tracking_uri=tracking).get_model_version("digits", "1")
        self.assertEqual(version.source, published["record"]["uri"])
        self.assertIn(published["record"]["digest"], str(version.tags))

        named = f"{published['record']['uri']}#sha256={published['record']['digest']}"
        self.assertEqual(self.fetch(named, "--credentials", keys), FILES)
        other = named[:-1] + ("1" if named[-1] == "0" else "0")
        ended = fetch(self.room, "--credentials", keys, other, cache="other")
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("another digest", str(ended))

    def test_s3(self):
        import boto3

        url, keys = self.s3()
        client = boto3.client("s3", endpoint_url=url, aws_access_key_id=KEY, aws_secret_access_key=SECRET,
                              region_name="us-east-1")

        def get():
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
            keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
            return {key: client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}

        def put(key, body):
            file = write(self.room / "one", {"x": body}) / "x"
            client.upload_file(str(file), BUCKET, key)  # in parts if it is large

        self.compare(f"s3://{BUCKET}", ("--credentials", keys), put, get)
        with self.assertRaises(client.exceptions.ClientError):
            client.head_object(Bucket=BUCKET, Key="none")

    def test_google(self):
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        port = free_port()
        url = f"http://127.0.0.1:{port}"
        self.start("fake-gcs-server", [
            tool("fake-gcs-server"), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-log-level",
            "error", "-port", port, "-external-url", url, "-public-host", f"127.0.0.1:{port}"], lambda: is_open(port))
        client = storage.Client(project="test", credentials=AnonymousCredentials(),
                                client_options={"api_endpoint": url})
        bucket = client.create_bucket(BUCKET)
        key = {"gcs_base_url": url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        keys = secret(self.room, credentials__json=json.dumps(key))
        self.compare(f"gs://{BUCKET}", ("--credentials", keys, "--endpoint", url),
                     lambda key, body: bucket.blob(key).upload_from_string(body),
                     lambda: {blob.name: blob.download_as_bytes() for blob in client.list_blobs(BUCKET)})

    def test_azure(self):
        from azure.storage.blob import BlobServiceClient

        port = free_port()
        self.start("azurite", ["node", azurite(), "--silent", "--skipApiVersionCheck", "--disableTelemetry",
                               "--blobHost", "127.0.0.1", "--blobPort", port, "--location", self.room / "azure"],
                   lambda: is_open(port))
        url = f"http://127.0.0.1:{port}/{ACCOUNT}"
        credential = {"account_name": ACCOUNT, "account_key": ACCOUNT_KEY}
        container = BlobServiceClient(url, credential=credential).create_container(BUCKET)
        keys = secret(self.room, AZURE_STORAGE_ACCOUNT_NAME=ACCOUNT, AZURE_STORAGE_ACCOUNT_KEY=ACCOUNT_KEY)
        self.compare(f"az://{BUCKET}", ("--credentials", keys, "--endpoint", url),
                     container.upload_blob,
                     lambda: {blob.name: container.download_blob(blob.name).readall()
                              for blob in container.list_blobs()})


def record_name(ours, files):
    (name,) = set(ours) - set(files)
    return name


def tool(name):
    """A server of a store, built once per machine."""
    done = subprocess.run([ROOT / "devcluster/cluster", "tools", name], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip(), name)


def azurite():
    """Azurite, installed once per machine, where crates/testkit installs it."""
    folder = venv.CACHE / "azurite-3.35.0"
    program = folder / "node_modules/azurite/dist/src/blob/main.js"
    if not program.exists():
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder,
                        "azurite@3.35.0"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    return program


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def build():
    """The agent, and the unit tests that serve as hubs."""
    if not os.environ.get("CARGO_BUILD_BUILD_DIR"):
        done = subprocess.run([ROOT / "tests/build-dir"], stdout=subprocess.PIPE, text=True, check=True)
        os.environ["CARGO_BUILD_BUILD_DIR"] = done.stdout.strip()
    for words in (("build", "-p", "agent", "--bin", "agent"), ("test", "--no-run", "-p", "fetch", "--lib"),
                  ("test", "--no-run", "-p", "publish", "--lib")):
        subprocess.run(["cargo", words[0], "--quiet", *words[1:]], cwd=ROOT, check=True)


def main():
    if "huggingface_hub" not in sys.modules and not os.environ.get("TRAININGJOB_CLIENTS"):
        python = venv.python("clients", REQUIREMENTS)
        if not os.environ.get("TRAININGJOB_TEST_BINARIES"):
            build()
        os.execve(python, [str(python), "-B", __file__, *sys.argv[1:]], {**os.environ, "TRAININGJOB_CLIENTS": "1"})
    unittest.main()


if __name__ == "__main__":
    main()
