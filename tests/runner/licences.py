"""Licences, bans and sources of the dependencies, by deny.toml and `cargo metadata`.

cargo-deny, which takes minutes to compile, remains for the advisories (`make audit`). A rule of deny.toml that is not
known here is a failure, so that none is silently without effect.
"""

import json
import re
import tomllib

# The default registry, as cargo's metadata and Cargo.lock name it however it is reached.
DEFAULT_REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"
KNOWN = {
    "graph": {"targets"},
    "licenses": {"allow", "private"},
    "bans": {"multiple-versions", "wildcards", "deny"},
    "sources": {"unknown-registry", "unknown-git"},
}
# The values that this file acts on, where there are others.
ONLY = {("bans", "multiple-versions"): "allow", ("bans", "wildcards"): "deny", ("sources", "unknown-registry"): "deny",
        ("sources", "unknown-git"): "deny"}


def metadata_command(rules):
    """Prints what `faults` takes: the dependencies on the targets that count."""
    targets = [word for target in rules["graph"]["targets"] for word in ("--filter-platform", target)]
    return ["cargo", "metadata", "--format-version", "1", "--locked", *targets]


def rules_of(text):
    return tomllib.loads(text)


def faults(rules, metadata):
    """A sentence for each thing that deny.toml forbids."""
    return [*unknown_rules(rules), *licence_faults(rules, metadata), *ban_faults(rules, metadata),
            *source_faults(metadata)]


def unknown_rules(rules):
    found = []
    for table, values in rules.items():
        known = KNOWN.get(table, set())
        found += [f"deny.toml: {table}.{key} is not known to tests/runner/licences.py: add it there"
                  for key in values if key not in known]
    for (table, key), value in ONLY.items():
        if rules.get(table, {}).get(key) != value:
            found.append(f"deny.toml: {table}.{key} can only be {value!r} in tests/runner/licences.py")
    return found


def used(metadata):
    """The packages that are reached from those that cargo builds by default, on the targets that count.

    The fuzzer is none of them: it is never part of anything that is handed out.
    """
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    reached, open_ = set(), list(metadata["workspace_default_members"])
    while open_:
        name = open_.pop()
        if name not in reached:
            reached.add(name)
            open_ += nodes[name]["dependencies"]
    return [package for package in metadata["packages"] if package["id"] in reached]


def licence_faults(rules, metadata):
    allowed, members, found = set(rules["licenses"]["allow"]), set(metadata["workspace_members"]), []
    ignores_private = rules["licenses"].get("private", {}).get("ignore", False)
    for package in used(metadata):
        label = f"{package['name']} {package['version']}"
        if ignores_private and package["id"] in members and package.get("publish") == []:
            continue
        expression = package.get("license")
        if not expression:
            found.append(f"{label}: it names no licence (an SPDX expression in its Cargo.toml)")
            continue
        try:
            if not is_allowed(expression, allowed):
                found.append(f"{label}: {expression} is not among licenses.allow of deny.toml")
        except ValueError as error:
            found.append(f"{label}: {expression!r} is not an SPDX expression: {error}")
    return found


def is_allowed(expression, allowed):
    """Whether an SPDX expression can be satisfied by these licences. Old crates write `/` for OR."""
    tokens = re.findall(r"[()]|[^\s()/]+|/", expression)
    at = 0

    def peek():
        return tokens[at] if at < len(tokens) else None

    def take():
        nonlocal at
        if at == len(tokens):
            raise ValueError("it ends too early")
        at += 1
        return tokens[at - 1]

    def either():
        result = both()
        while peek() in ("OR", "/"):
            take()
            other = both()
            result = result or other
        return result

    def both():
        result = one()
        while peek() == "AND":
            take()
            other = one()
            result = result and other
        return result

    def one():
        token = take()
        if token == "(":
            result = either()
            if peek() != ")":
                raise ValueError("a parenthesis is open")
            take()
            return result
        if token in ("AND", "OR", "WITH", ")", "/") or not re.fullmatch(r"[A-Za-z0-9.+:-]+", token):
            raise ValueError(f"{token!r} is no licence")
        if peek() == "WITH":
            take()
            token = f"{token} WITH {take()}"
        return token in allowed

    result = either()
    if peek() is not None:
        raise ValueError(f"{peek()!r} is left")
    return result


def ban_faults(rules, metadata):
    found = []
    banned = {ban["name"]: ban for ban in rules["bans"].get("deny", [])}
    for ban in banned.values():
        if unknown := set(ban) - {"name", "reason"}:
            found.append(f"deny.toml: bans.deny of {ban['name']}: {', '.join(sorted(unknown))} is not known to "
                         "tests/runner/licences.py")
    for package in used(metadata):
        if package["name"] in banned:
            reason = banned[package["name"]].get("reason", "no reason is given")
            found.append(f"{package['name']} {package['version']} is banned: {reason}")
    members = set(metadata["workspace_members"])
    for package in metadata["packages"]:
        for dependency in package["dependencies"] if package["id"] in members else []:
            if dependency["req"] == "*" and dependency.get("source"):
                found.append(f"{package['name']}: any version of {dependency['name']} would do (\"*\"): name one")
    return found


def source_faults(metadata):
    members = set(metadata["workspace_members"])
    found = []
    for package in used(metadata):
        source, label = package["source"], f"{package['name']} {package['version']}"
        if source is None:
            if package["id"] not in members:
                found.append(f"{label}: it comes from a folder that is not part of this workspace")
        elif source != DEFAULT_REGISTRY:
            found.append(f"{label}: it comes from {source}, not from the default registry")
    return found


def check(deny, metadata):
    """The faults, from the texts of deny.toml and of cargo's metadata."""
    return faults(rules_of(deny), json.loads(metadata))
