"""What `devcluster` says; needs no cluster. `python3 -B tests/devcluster.py` runs it."""

import shutil
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "devcluster"))

from lib import host


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


if __name__ == "__main__":
    unittest.main()
