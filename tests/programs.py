"""What the programs of a test cluster say of themselves, once they are built.

`python3 -B tests/programs.py` runs it.
"""

import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "devcluster"))

from lib import tools


class Programs(unittest.TestCase):
    """One program has several names, and under each it is what the name says."""

    def test_each_says_its_version(self):
        kubernetes = f"Kubernetes {tools.version('kubernetes', tools.KUBERNETES)[0]}\n"
        number = {module: tools.version("kubernetes", module)[0].removeprefix("v")
                  for module in ("github.com/coredns/coredns", "go.etcd.io/etcd/server/v3")}
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"):
            self.assertEqual(self.said(name, "--version"), kubernetes, name)
        self.assertIn(number["github.com/coredns/coredns"], self.said("coredns", "-version"))
        self.assertIn(f"etcd Version: {number['go.etcd.io/etcd/server/v3']}\n", self.said("etcd", "--version"))
        plugins = self.said("coredns", "-plugins").split()
        self.assertLessEqual({"bind", "errors", "cache", "template", "kubernetes"}, set(plugins))
        self.assertLess(len(plugins), 15)

    def said(self, name, flag):
        return subprocess.run([tools.path(name), flag], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    unittest.main()
