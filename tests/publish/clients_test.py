#!/usr/bin/env python3
"""Compare the hub that stands in for the real one in crates/publish with the hub's own Python client.

What the client uploads must arrive there, by the requests that `agent publish` sends too. It is run by hand, with the
Python of an environment that has huggingface_hub: PYTHON tests/publish/clients_test.py
"""

import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOON = 300  # seconds, with the compiler
FILES = {
    "model.safetensors": bytes(range(251)) * 20_000,
    "tokenizer.bin": b"x" * 10_000,
    "config.json": b"{}",
    "empty": b"",
    "lr=0.1/Größe 2": b"y" * 9_999,
}


def until(what, check):
    end = time.monotonic() + SOON
    while not (found := check()):
        if time.monotonic() > end:
            raise AssertionError(f"waited for {what} in vain")
        time.sleep(0.05)
    return found


class Clients(unittest.TestCase):
    def test_the_hubs_own_client_uploads_a_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            room = Path(folder)
            url, source = room / "hub.url", room / "source"
            for path, content in FILES.items():
                (source / path).parent.mkdir(parents=True, exist_ok=True)
                (source / path).write_bytes(content)
            command = ["cargo", "test", "-q", "-p", "publish", "--lib", "a_hub_for_another_client"]
            server = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PUBLISH_TEST_HUB": str(url)})
            try:
                endpoint = until("the hub", lambda: url.exists() and url.read_text())
                os.environ.update(HF_ENDPOINT=endpoint, HF_HUB_DISABLE_XET="1", HF_HOME=str(room / "home"))
                from huggingface_hub import HfApi

                api = HfApi(endpoint=endpoint, token="hf_right")
                for _ in range(2):
                    api.create_repo("team/digits", private=True, exist_ok=True)
                api.create_branch("team/digits", branch="runs/1")
                first = api.upload_folder(repo_id="team/digits", folder_path=source)
                again = api.upload_folder(repo_id="team/digits", folder_path=source, commit_message="again")
                self.assertNotEqual(first.oid, again.oid)
                found = {entry.path: entry for entry in api.list_repo_tree("team/digits", recursive=True)}
                self.assertEqual(found["tokenizer.bin"].lfs.size, 10_000)
                self.assertIsNone(found["config.json"].lfs)
            finally:
                url.unlink(missing_ok=True)
                server.wait(SOON)
            self.assertEqual(server.returncode, 0)
            stored = url.with_suffix(".files")
            for path, content in FILES.items():
                self.assertEqual((stored / path).read_bytes(), content, path)
            lines = url.with_suffix(".log").read_text().splitlines()
            kinds = ("POST /api/repos/create", "/branch/", "/preupload/", "/info/lfs/objects/batch", "PUT /storage/",
                     "POST /storage/", "/verify", "/commit/")
            for kind in kinds:
                self.assertTrue(any(kind in line for line in lines), kind)
            # Five of the large file and one of the other, once.
            self.assertEqual(sum(line.startswith("PUT /storage/") for line in lines), 6)


if __name__ == "__main__":
    sys.exit(unittest.main())
