"""What is linked into the programs: a bill of materials (CycloneDX), and the licences with their texts."""

import json
import re
import tomllib
import uuid
from pathlib import Path

from lib.host import run

PACKAGES = ("trainingjob-operator", "agent", "kubectl-trainingjob")
LICENCE_FILES = re.compile(r"(?i)^(licen[cs]e|copying|notice|copyright|unlicense)([-._].*)?$")
# What is linked beside crates, and is known to no lock file.
BESIDE = (
    ("glibc", "LGPL-2.1-or-later", "/usr/share/doc/libc6/copyright",
     "The C library, linked statically. The project's sources and Cargo.lock allow a new link with another version."),
    ("rust-std", "MIT OR Apache-2.0", None,
     "Rust's standard library, linked statically. Copyright the Rust project's contributors."),
    ("libgcc", "GPL-3.0-or-later WITH GCC-exception-3.1", "/usr/share/doc/libgcc-s1/copyright",
     "Support code of the compiler, linked statically; its exception permits that under any licence."),
)


def linked(source, triples):
    """(name, version) of all crates that are linked into a program on one of the targets, without build scripts and
    procedural macros."""
    found = set()
    for triple in triples:
        packages = [word for name in PACKAGES for word in ("--package", name)]
        tree = run("cargo", "tree", "--locked", "--quiet", *packages, "--target", triple, "--edges",
                   "normal,no-proc-macro", "--prefix", "none", "--no-dedupe", "--format", "{p}", cwd=source).stdout
        for line in filter(None, tree.splitlines()):
            name, version = line.split()[:2]
            found.add((name, version.removeprefix("v")))
    return sorted(found)


def details(source):
    """(name, version) -> the package as cargo knows it."""
    metadata = json.loads(run("cargo", "metadata", "--format-version", "1", "--locked", cwd=source).stdout)
    return {(package["name"], package["version"]): package for package in metadata["packages"]}


def checksums(source):
    lock = tomllib.loads((source / "Cargo.lock").read_text())
    return {(package["name"], package["version"]): package.get("checksum") for package in lock["package"]}


def cyclonedx(crates, known, sums, version, created, commit):
    """The bill as CycloneDX 1.5."""
    components = []
    for name, number in crates:
        package, ours = known[name, number], known[name, number]["source"] is None
        component = {"type": "library", "bom-ref": f"{name}@{number}", "name": name, "version": number,
                     "licenses": [{"expression": (package["license"] or "NOASSERTION").replace("/", " OR ")}]}
        if not ours:
            component["purl"] = f"pkg:cargo/{name}@{number}"
        if sums.get((name, number)):
            component["hashes"] = [{"alg": "SHA-256", "content": sums[name, number]}]
        components.append(component)
    for name, licence, _, what in BESIDE:
        components.append({"type": "library", "bom-ref": name, "name": name, "licenses": [{"expression": licence}],
                           "description": what})
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'trainingjob-operator@{version}:{commit}')}",
        "version": 1,
        "metadata": {"timestamp": created, "component": {
            "type": "application", "bom-ref": "trainingjob-operator", "name": "trainingjob-operator",
            "version": version, "licenses": [{"license": {"id": "Apache-2.0"}}]}},
        "components": components}


def licences(crates, known, source):
    """The licences of all crates and, once each, the texts that they bring."""
    rows, texts, without = [], {}, []
    for name, number in crates:
        package = known[name, number]
        rows.append(f"{name} {number}: {package['license'] or 'see its files'}")
        if package["source"] is None:
            continue
        folder = Path(package["manifest_path"]).parent
        files = sorted(path for path in folder.iterdir() if path.is_file() and LICENCE_FILES.match(path.name))
        if not files:
            without.append(f"{name} {number}: {package['license']}")
        for file in files:
            text = "\n".join(line.rstrip() for line in file.read_text(errors="replace").strip().splitlines())
            texts.setdefault(text, []).append(f"{name} {number} ({file.name})")
    for name, licence, file, what in BESIDE:
        rows.append(f"{name}: {licence}. {what}")
        if file and Path(file).exists():
            texts.setdefault(Path(file).read_text(errors="replace").strip(), []).append(name)
    ours = (source / "LICENSE").read_text().strip()
    line = "=" * 100
    parts = ["The programs of the TrainingJob operator, under the Apache License 2.0, contain these libraries.\n",
             "\n".join(rows)]
    if without:
        parts.append("\nThese crates ship no text of their licence; the texts of the same licences are below:\n\n"
                     + "\n".join(without))
    parts.append(f"\n{line}\nTrainingJob operator\n{line}\n\n{ours}")
    parts += [f"\n{line}\n" + "\n".join(users) + f"\n{line}\n\n{text}" for text, users in sorted(
        texts.items(), key=lambda item: item[1][0])]
    return "\n".join(parts) + "\n"
