#!/usr/bin/env python3
"""A release of the programs of this build: its files agree, it is made twice, and a registry serves what it names.

`tests/run release` runs this. The programs are those of the tests, so nothing is compiled. What needs a cluster is in
tests/release/stranger.
"""

import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "devcluster"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "release"))

from lib import shipping
from parts import manifests, programs, where
from runner import cargo

ROOT = Path(__file__).resolve().parents[2]
VERSION = json.loads(subprocess.run(["cargo", "metadata", "--no-deps", "--format-version", "1", "--offline"], cwd=ROOT,
                                    check=True, capture_output=True, text=True).stdout)["packages"][0]["version"]
PLUGIN = "kubectl-trainingjob"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Release(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.room = Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="trainingjob-release-")))
        cls.port = free_port()
        cls.place = f"localhost:{cls.port}/ml/trainingjob-operator"
        native, built = cls.room / "programs" / "amd64", cargo.own_programs(ROOT)
        native.mkdir(parents=True)
        for name in ("operator", "agent", PLUGIN):
            subprocess.run(["strip", "-o", native / name, built / name], check=True)
        # Programs of another architecture are never run here: the same bytes stand for them.
        other = cls.room / "programs" / "arm64"
        shutil.copytree(native, other)
        plugins = cls.room / "plugins"
        plugins.mkdir()
        (plugins / f"{PLUGIN}-darwin-arm64.tar.gz").write_bytes(b"made on a Mac")
        cls.out = cls.room / "out"
        made = subprocess.run([ROOT / "release" / "make", "--programs", cls.room / "programs", "--plugins", plugins,
                               "--publish", cls.place, "--out", cls.out], capture_output=True, text=True, check=False)
        if made.returncode:
            raise AssertionError(made.stderr[-3000:])
        cls.said = made.stderr
        cls.image = f"{cls.place}/operator"
        cls.digest = (cls.out / "images.txt").read_text().strip().removeprefix(f"{cls.image}@")

    def blobs(self):
        with tarfile.open(self.out / "image.tar") as tar:
            files = {entry.name: tar.extractfile(entry).read() for entry in tar if entry.isfile()}
        for name, data in files.items():
            if name.startswith("blobs/"):
                self.assertEqual(sha256(data), name.rpartition("/")[2])
        return files

    def test_it_is_made_twice_and_has_all_its_files(self):
        self.assertIn("made twice with the same bytes", self.said)
        names = {file.name for file in self.out.iterdir()}
        self.assertEqual(names, {
            "LICENSE", "LICENSES.txt", "SHA256SUMS", "crds.yaml", "image.tar", "images.txt", "install.yaml",
            f"{PLUGIN}-darwin-arm64.tar.gz", f"{PLUGIN}-linux-amd64.tar.gz", f"{PLUGIN}-linux-arm64.tar.gz",
            "sbom.cdx.json", f"trainingjob-operator-{VERSION}.tgz", "trainingjob.yaml"})
        subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=self.out, check=True)
        listed = [line.split()[1] for line in (self.out / "SHA256SUMS").read_text().splitlines()]
        self.assertEqual(listed, sorted(names - {"SHA256SUMS"}))

    def test_one_index_has_both_architectures_and_the_files_of_the_image(self):
        files = self.blobs()
        [top] = json.loads(files["index.json"])["manifests"]
        self.assertEqual(top["digest"], self.digest)

        def blob(descriptor):
            return files[f"blobs/{descriptor['digest'].replace(':', '/')}"]

        index = json.loads(blob(top))
        self.assertEqual([image["platform"]["architecture"] for image in index["manifests"]], ["amd64", "arm64"])
        for image in index["manifests"]:
            manifest = json.loads(blob(image))
            config = json.loads(blob(manifest["config"]))
            self.assertEqual(config["architecture"], image["platform"]["architecture"])
            self.assertEqual((config["config"]["Entrypoint"], config["config"]["User"]), (["/operator"], "65532:65532"))
            [layer] = manifest["layers"]
            path = self.room / "layer.tar.gz"
            path.write_bytes(blob(layer))
            with tarfile.open(path) as tar:
                entries = {entry.name: (oct(entry.mode), entry.uid, entry.isdir()) for entry in tar}
            self.assertEqual(entries["operator"], ("0o755", 0, False))
            self.assertEqual(entries["agent"], ("0o755", 0, False))
            self.assertEqual(entries["state"], ("0o1777", 0, True))
            self.assertIn("python/sitecustomize.py", entries)
            self.assertIn("LICENSES.txt", entries)

    def test_manifests_and_chart_name_the_image_by_its_digest(self):
        image = f"{self.image}@{self.digest}"
        install = (self.out / "install.yaml").read_text()
        self.assertEqual(manifests.images(install), [image])
        helm = subprocess.run([shipping.helm(), "template", "any", self.out / f"trainingjob-operator-{VERSION}.tgz",
                               "--namespace", "trainingjob-system"], check=True, capture_output=True, text=True).stdout
        self.assertEqual(manifests.images(helm), [image])
        # Every CRD, by whichever file.
        for text in (install, (self.out / "crds.yaml").read_text(), helm):
            self.assertEqual(text.count("kind: CustomResourceDefinition\n"),
                             len(list((ROOT / "crds").glob("*.yaml"))) - 1)
        self.assertNotIn("kind: Namespace\n", install)

    def test_the_plugin_and_what_krew_says_of_it(self):
        krew = json.loads((self.out / "trainingjob.yaml").read_text())
        found = {}
        for platform in krew["spec"]["platforms"]:
            labels, file = platform["selector"]["matchLabels"], platform["uri"].rpartition("/")[2]
            found[labels["os"], labels["arch"]] = file
            self.assertEqual(platform["sha256"], sha256((self.out / file).read_bytes()))
            self.assertTrue(platform["uri"].startswith(f"https://{self.place}/releases/download/v{VERSION}/"))
        self.assertEqual(sorted(found), [("darwin", "arm64"), ("linux", "amd64"), ("linux", "arm64")])
        with tarfile.open(self.out / found["linux", "amd64"]) as tar:
            self.assertEqual(tar.getnames(), [PLUGIN, "LICENSE", "LICENSES.txt"])
            tar.extract(PLUGIN, self.room, filter="data")
        said = subprocess.run([self.room / PLUGIN, "--version"], check=True, capture_output=True, text=True).stdout
        self.assertIn(VERSION, said)

    def test_the_bill_and_the_licences_have_each_crate_that_is_linked(self):
        bill = json.loads((self.out / "sbom.cdx.json").read_text())
        self.assertEqual((bill["bomFormat"], bill["specVersion"]), ("CycloneDX", "1.5"))
        found = {component["name"]: component for component in bill["components"]}
        for name in ("kube-client", "ring", "zstd-sys", "glibc", "rust-std", "agent"):
            self.assertIn(name, found)
        # Of tests, of build scripts and of procedural macros nothing is linked.
        for name in ("insta", "proptest", "cc", "serde_derive", "stateright"):
            self.assertNotIn(name, found)
        licences = (self.out / "LICENSES.txt").read_text()
        for component in bill["components"]:
            self.assertTrue(component["licenses"][0]["expression"], component)
            self.assertIn(component["name"], licences)
        self.assertIn("Permission is hereby granted, free of charge", licences)

    def test_a_registry_serves_what_the_release_names(self):
        with self.registry():
            env = {**os.environ, "PLAIN_HTTP": "1", "HELM": str(shipping.helm()), "HOME": str(self.room)}
            done = subprocess.run([ROOT / "release" / "publish", self.out], env=env, capture_output=True, text=True,
                                  check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            for reference in (VERSION, self.digest):
                with self.asks(f"ml/trainingjob-operator/operator/manifests/{reference}") as answer:
                    body = answer.read()
                self.assertEqual(f"sha256:{sha256(body)}", self.digest)
            for image in json.loads(body)["manifests"]:
                with self.asks(f"ml/trainingjob-operator/operator/manifests/{image['digest']}") as answer:
                    self.assertEqual(answer.status, 200)
            pulled = subprocess.run([shipping.helm(), "pull", f"oci://{self.place}/charts/trainingjob-operator",
                                     "--version", VERSION, "--plain-http", "--destination", self.room], env=env,
                                    capture_output=True, text=True, check=False)
            self.assertEqual(pulled.returncode, 0, pulled.stderr)
            name = f"trainingjob-operator-{VERSION}.tgz"
            self.assertEqual((self.room / name).read_bytes(), (self.out / name).read_bytes())

    @contextlib.contextmanager
    def registry(self):
        shipping.skopeo()
        with serve_registry(self.room, self.port):
            yield

    def asks(self, path):
        accepts = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json"
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v2/{path}", headers={"Accept": accepts})
        return urllib.request.urlopen(request, timeout=30)


class Programs(unittest.TestCase):
    def test_another_root_is_entered_by_programs_that_are_found(self):
        for name in ("sh", "mount", "chroot", "unshare"):
            self.assertTrue(shutil.which(name, path=programs.PATH), name)


class Where(unittest.TestCase):
    def test_one_variable_says_where_everything_is_published(self):
        github = where.published("1.2.3", "github.com/owner/trainingjob-operator")
        self.assertEqual(github.image, "ghcr.io/owner/trainingjob-operator/operator")
        self.assertEqual(github.chart, "oci://ghcr.io/owner/trainingjob-operator/charts")
        self.assertEqual(github.files, "https://github.com/owner/trainingjob-operator/releases/download/v1.2.3")
        own = where.published("1.2.3", "registry.example.com:5000/ml/tj/")
        self.assertEqual(own.image, "registry.example.com:5000/ml/tj/operator")
        for wrong in ("https://example.com/ml", "example.com", "example.com/ML"):
            with self.assertRaisesRegex(ValueError, "write HOST/PATH"):
                where.published("1.2.3", wrong)


@contextlib.contextmanager
def serve_registry(room, port, prefix=()):
    """A registry on loopback, without TLS, as long as the block runs."""
    config = room / "registry.yml"
    config.write_text(f"version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {room}/registry\n"
                      f"http:\n  addr: 127.0.0.1:{port}\nlog:\n  level: warn\n")
    with open(room / "registry.log", "w") as log:
        server = subprocess.Popen([*prefix, shipping.registry(), "serve", config], stdin=subprocess.DEVNULL, stdout=log,
                                  stderr=log)
        try:
            deadline = time.monotonic() + 60
            probe = [*prefix, sys.executable, "-c",
                     f"import urllib.request as u; u.urlopen('http://127.0.0.1:{port}/v2/', timeout=5)"]
            while subprocess.run(probe, capture_output=True, check=False).returncode:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"no registry: {(room / 'registry.log').read_text()[-2000:]}")
                time.sleep(0.2)
            yield
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    unittest.main()
