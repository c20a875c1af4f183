"""What `devcluster` says, and the network of a node; needs no cluster. `python3 -B tests/devcluster.py` runs it."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "devcluster"))

from lib import host, node, stores


class Missing(unittest.TestCase):
    """What apt-get did not bring although it ended well is named with where it was looked for."""

    def said(self, thing):
        done = subprocess.CompletedProcess([], 0, "", "")
        with (
            mock.patch.object(host, "is_root", return_value=True),
            mock.patch.object(host, "is_here", return_value=False),
            mock.patch.object(host, "run", return_value=done),
            mock.patch.object(host, "say"),
            mock.patch.object(shutil, "which", side_effect=lambda name, **_: f"/somewhere/{name}"),
            self.assertRaises(host.Failure) as raised,
        ):
            host.need({thing: "package"})
        return str(raised.exception)

    def test_a_module_is_one_of_a_certain_python(self):
        said = self.said("import ensurepip")
        self.assertIn("module ensurepip of /somewhere/python3", said)

    def test_a_command_has_nothing_to_do_with_python(self):
        said = self.said("buildah")
        self.assertIn("buildah", said)
        self.assertNotIn("python", said)

    def test_a_file_has_nothing_to_do_with_python(self):
        said = self.said("/usr/include/stdlib.h")
        self.assertIn("/usr/include/stdlib.h", said)
        self.assertNotIn("python", said)


class Unpacked(unittest.TestCase):
    """A node gets all images that it is told to have, also if its cluster has unpacked some of them before."""

    def test_each_store_has_all_of_its_images(self):
        with tempfile.TemporaryDirectory() as folder:
            cluster = SimpleNamespace(dir=Path(folder, "cluster"), snapshotter="native")
            cluster.dir.mkdir()

            def load(home, *args):
                with open(home / "containerd" / "root" / "io.containerd.content.v1.content", "a") as content:
                    content.write(f"{args[-1].name} ")

            started = mock.patch.object(
                stores.containerd, "start", side_effect=lambda _, home, *args: (home / "containerd" / "root").mkdir())
            loaded = mock.patch.object(stores.containerd, "ctr", side_effect=load)
            ended = mock.patch.multiple(stores.process, pid=mock.DEFAULT, wait_gone=mock.DEFAULT, kill=mock.DEFAULT)
            kept = mock.patch.object(stores, "cache", lambda: Path(folder))
            at = mock.patch.object(stores.tools, "folder", lambda: Path(folder, "tools"))
            with started, loaded, ended as of_process, kept, at, mock.patch.object(stores.os, "kill"):
                of_process["wait_gone"].return_value = []
                for names in (["pause", "demo"], ["pause", "demo", "more"]):
                    store = stores.make(cluster, [Path(folder, name) for name in names])
                    self.assertEqual((store / "io.containerd.content.v1.content").read_text().split(), names)


@unittest.skipUnless(host.is_root() and shutil.which("ip"), "makes a network namespace")
class Bridge(unittest.TestCase):
    """The address by which pods know their way out stays while other pods come and go."""

    def test_it_keeps_its_address(self):
        name = f"bridge-{os.getpid()}"
        cluster = SimpleNamespace(netns=name, bridge="cni", pod_net="10.66")
        ip = ["ip", "-n", name]
        subprocess.run(["ip", "netns", "add", name], check=True)
        try:
            node.make_bridge(cluster, 1)
            # Lower than any that the kernel draws, so that the bridge would take it.
            pod = ["address", "02:00:00:00:00:01", "type", "veth", "peer", "name", "inside"]
            subprocess.run([*ip, "link", "add", "pod", *pod], check=True)
            subprocess.run([*ip, "link", "set", "pod", "master", "cni1", "up"], check=True)
            told = subprocess.run([*ip, "-o", "link", "show", "cni1"], check=True, capture_output=True, text=True)
            self.assertIn("0a:58:0a:42:01:01", told.stdout)
        finally:
            subprocess.run(["ip", "netns", "del", name], check=True)


if __name__ == "__main__":
    unittest.main()
