"""The files that install a release: manifests with the image by its digest, the chart, and krew's manifest."""

import json
import re
import tempfile
from pathlib import Path

from lib.host import Failure, run

from . import oci

CHART = Path("charts/trainingjob-operator")


def kubectl():
    from lib import tools

    return tools.path("kubectl") if tools.is_there("kubectl") else "kubectl"


def kustomized(source, folder, image, digest):
    """The objects of a kustomization with the image by its digest."""
    with tempfile.TemporaryDirectory(dir=source) as work:
        Path(work, "kustomization.yaml").write_text(json.dumps({
            "resources": [f"../{folder}"],
            "images": [{"name": "trainingjob-operator", "newName": image, "digest": digest}]}))
        return run(kubectl(), "kustomize", work).stdout


def with_head(text, version, lines):
    head = [f"TrainingJob operator {version}.", *lines]
    return "".join(f"# {line}\n" for line in head) + text


def images(*manifests):
    """The images that manifests name, sorted."""
    found = {name.strip("\"'") for text in manifests
             for name in re.findall(r"(?m)^\s*(?:- )?image: (\S+)$", text)}
    if not found:
        raise Failure("the manifests name no image")
    return sorted(found)


def chart(source, out, image, digest, epoch):
    """The chart as `helm package` makes it, with the published image as its default; each time the same bytes."""
    folder = source / CHART
    values = (folder / "values.yaml").read_text()
    for old, new in (("  # Nothing publishes this name: set the repository that your release was pushed to. "
                      "The chart of a release names its own.\n", ""),
                     ("  repository: trainingjob-operator\n", f"  repository: {image}\n"),
                     ('  digest: ""\n', f'  digest: "{digest}"\n')):
        if old not in values:
            raise Failure(f"{CHART}/values.yaml has no line {old!r}")
        values = values.replace(old, new)
    entries = []
    for file in sorted(files_of(folder)):
        data = values.encode() if file == Path("values.yaml") else (folder / file).read_bytes()
        entries.append((f"{folder.name}/{file}", 0o644, data))
    # Helm takes the first file for the chart's own.
    entries.sort(key=lambda entry: not entry[0].endswith("/Chart.yaml") or entry[0].count("/") > 1)
    out.write_bytes(oci.packed(entries, epoch))


def files_of(folder, below=Path()):
    """The files of the chart; links to folders are followed."""
    for path in (folder / below).iterdir():
        if path.is_dir():
            yield from files_of(folder, below / path.name)
        else:
            yield below / path.name


def krew(version, files, archives):
    """The manifest of the plugin for krew: `archives` has the SHA-256 of each by (os, architecture)."""
    platforms = [{
        "selector": {"matchLabels": {"os": system, "arch": architecture}},
        "uri": f"{files}/kubectl-trainingjob-{system}-{architecture}.tar.gz", "sha256": digest,
        "bin": "kubectl-trainingjob", "files": [{"from": "*", "to": "."}],
    } for (system, architecture), digest in sorted(archives.items())]
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin",
        "metadata": {"name": "trainingjob"},
        "spec": {
            "version": f"v{version}", "homepage": files.split("/releases/")[0],
            "shortDescription": "Run and diagnose distributed training",
            "description": "Shows why a TrainingJob waits or failed, its logs, metrics and checkpoints,\n"
                           "and stops, resumes and restarts it.\n",
            "platforms": platforms}}
