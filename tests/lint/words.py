#!/usr/bin/env python3
"""Finds words that this project does not use, and sentences for users that are too long.

It reads pages, descriptions of the CRDs, help texts, string literals, alerts, dashboards, and comments of manifests,
Rust and Python. The last line is the count. The exit code is 1 if there is a finding.
"""

import argparse
import fnmatch
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import texts

ROOT = Path(__file__).resolve().parents[2]
ALLOW = Path(__file__).with_name("words.allow")
MOST_ALLOWED = 20
LIMIT = 25


@dataclass(frozen=True)
class Rule:
    name: str  # as an allow file names it
    pattern: re.Pattern
    instead: str


def rule(name, pattern, instead, flags=re.IGNORECASE):
    return Rule(name, re.compile(pattern, flags), instead)


RULES = (
    rule("go on from", r"\b(?:go(?:es|ne|ing)?|went)\s+on\s+from\b", "resume from"),
    rule("told", r"\btold\b", "reported, sent, logged or set, by meaning"),
    rule("tell of", r"\btells?\s+of\b", "report, name or show"),
    rule("come to", r"\bcomes?\s+to\b", "result in, become or reach; for a spec: the effective spec"),
    rule("mend", r"\bmend(?:s|ed|ing)?\b", "fix or correct"),
    rule("heed", r"\bheed(?:s|ed|ing|less)?\b", "follow, apply or observe"),
    rule("as ever", r"\bas\s+ever\b(?!-)", "as before, or the default applies"),
    # `some 3rd-party code` and `some 2D arrays` have no number.
    rule("some 5", r"\bsome\s+\d[\d.,]*(?:-\d+)?(?![\w-])", "about, or the exact number"),
    rule("is no number", r"(?<!there )\bis\s+no\s+(?:number|value)\b", "is NaN, is not set, or is unsupported"),
    # The acronym has capital letters.
    rule("who", r"\b[Ww]ho(?:ever)?\b", "name the subject: the operator, an administrator, a client, worker 3", 0),
    rule("nobody", r"\bnobody\b", "name the subject: no worker, no client, no person"),
    rule("somebody", r"\bsomebody\b", "name the subject: another client, a person, an administrator"),
    rule("for nothing", r"\bfor\s+nothing\b(?!\s+(?:but|else|more|other)\b)", "idle, unused, or without a result"),
    rule("anew", r"\banew\b", "again, recreated or from the start"),
)
TOO_LONG = f"{LIMIT} words"

# A sentence ends before a blank and what begins like one; what closes it (quotes, brackets, emphasis) is part of it.
BOUNDARY = re.compile(r"""[.!?]["'”’)\]\ue001]*(?P<gap>\s+)(?=["'“‘(\[\ue001]*[A-Z0-9\ue000])""")
ABBREVIATION = re.compile(r"(?:^|[\s(\ue001])(?:e\.g|i\.e|vs|cf|resp|approx|incl|[A-Z])\.$")
WORD = re.compile(r"[\w\ue000]")


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    rule: str
    word: str
    sentence: str  # all of it, for the allow file
    part: str
    instead: str

    def __str__(self):
        return f'{self.path}:{self.line}: "{self.word}": {self.part}; write instead: {self.instead}'


def sentences(masked):
    """The ranges of the sentences of a text."""
    begin = 0
    for end in BOUNDARY.finditer(masked):
        if not ABBREVIATION.search(masked[begin:end.start() + 1]):
            yield begin, end.start("gap")
            begin = end.end()
    if masked[begin:].strip():
        yield begin, len(masked)


def count_words(masked):
    """Words as a reader counts them: a piece of code is one."""
    return sum(1 for word in re.split(r"[\s\ue001]+", masked) if WORD.search(word))


def find_in(text):
    """The findings of a text, in its order."""
    found = []
    for begin, end in sentences(text.masked):
        masked, shown = text.masked[begin:end], text.shown[begin:end]
        sentence = " ".join(shown.split())
        for rule in RULES:
            for match in rule.pattern.finditer(masked):
                line = text.line_of(begin + match.start())
                word = " ".join(shown[match.start():match.end()].split())
                found.append(Finding(text.path, line, rule.name, word, sentence, around(shown, match), rule.instead))
        if text.is_limited and (count := count_words(masked)) > LIMIT:
            part = sentence if len(sentence) <= 70 else sentence[:70].rstrip() + " ..."
            found.append(Finding(text.path, text.line_of(begin), TOO_LONG, f"{count} words", sentence, part,
                                 f"sentences of one fact each, at most {LIMIT} words"))
    return found


def around(shown, match):
    """What stands around a match in its sentence, on one line."""
    begin, end = max(0, match.start() - 40), min(len(shown), match.end() + 40)
    part = " ".join(shown[begin:end].split())
    return f"{'... ' if begin else ''}{part}{' ...' if end < len(shown) else ''}"


# ---- what is read

ROOT_PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
GROUPS = ("docs", "crds", "help", "sources", "comments", "deploy", "examples")
# They are part of no program.
ONLY_FOR_TESTS = ("crates/testkit", "crates/fuzz")
# Fields whose entries are types of Kubernetes itself, with its descriptions: those of crates/crdgen.
OF_KUBERNETES = ("affinity", "conditions", "env", "envFrom", "imagePullSecrets", "tolerations", "volumeMounts",
                 "volumes")
GENERATED = re.compile(r"\A.{0,200}?\bMade by `", re.DOTALL)


def texts_of(root, group):
    """The texts of a group."""
    return {"docs": docs, "crds": crds, "help": helps, "sources": sources, "comments": comments, "deploy": deploy,
            "examples": examples}[group](Path(root))


def read(root, path):
    return path.relative_to(root).as_posix(), path.read_text(encoding="utf-8", errors="replace")


def pages(root):
    """Every page, and whether it is made of the CRDs."""
    paths = [root / name for name in ROOT_PAGES] + sorted((root / "docs").rglob("*.md"))
    for path in paths:
        if path.is_file():
            name, source = read(root, path)
            yield name, source, bool(GENERATED.match(source))


def docs(root):
    for name, source, is_generated in pages(root):
        if not is_generated:
            yield from texts.markdown(name, source)


def crds(root):
    """Each text once, though three CRDs have it."""
    seen = set()
    for path in sorted((root / "crds").glob("*.yaml"), reverse=True):
        for text in texts.yaml_values(*read(root, path), keys=("description", "message"), foreign=OF_KUBERNETES):
            if text.shown not in seen:
                seen.add(text.shown)
                yield text
    for name, source, is_generated in pages(root):
        if is_generated:
            yield from texts.markdown(name, source)


def source_folders(root):
    for folder in [root / "src", *sorted((root / "crates").glob("*/src"))]:
        if folder.is_dir() and folder.parent.relative_to(root).as_posix() not in ONLY_FOR_TESTS:
            yield folder


def rust_files(root):
    for folder in source_folders(root):
        for_tests = texts.test_files(folder)
        yield from (path for path in sorted(folder.rglob("*.rs")) if path not in for_tests)


def helps(root):
    for path in rust_files(root):
        yield from texts.rust_help(*read(root, path))
    for folder in source_folders(root):
        for path in sorted(folder.rglob("*.snap")):
            yield from texts.snapshot(*read(root, path))


def sources(root):
    for path in rust_files(root):
        yield from texts.rust_strings(*read(root, path))


def is_python(path):
    """Whether a file is a Python program, which may have no ending."""
    if path.suffix:
        return path.suffix == ".py"
    with path.open("rb") as file:
        return b"python" in file.readline()


def comments(root):
    for folder in ("src", "crates", "tests", "bench", "devcluster", "deploy", "examples"):
        for path in sorted(path for path in (root / folder).rglob("*") if path.is_file()):
            if path.suffix == ".rs":
                yield from texts.rust_comments(*read(root, path))
            # Those of the words themselves.
            elif is_python(path) and path.parent != Path(__file__).parent:
                yield from texts.python_comments(*read(root, path))


def deploy(root):
    for path in sorted((root / "deploy").rglob("*.yaml")):
        name, source = read(root, path)
        yield from texts.yaml_comments(name, source)
        # The form for the Prometheus operator has the texts of rules.yaml.
        if path.name != "prometheusrule.yaml":
            yield from texts.yaml_values(name, source, keys=("summary", "description"))
    for path in sorted((root / "deploy").rglob("*.json")):
        yield from texts.json_values(*read(root, path))


def examples(root):
    for path in sorted((root / "examples").glob("*.yaml")):
        yield from texts.yaml_comments(*read(root, path), is_limited=True)


# ---- what is allowed

@dataclass
class Allowed:
    """A line of the allow file: `PATH GLOB | RULE OR TEXT | REASON`."""

    line: int
    glob: str
    what: str
    reason: str
    used: int = field(default=0)

    def covers(self, finding):
        if not fnmatch.fnmatchcase(finding.path, self.glob):
            return False
        return self.what == finding.rule or (self.what not in RULE_NAMES and self.has(finding))

    def has(self, finding):
        """Whether the text is in the sentence, around the word that was found."""
        if finding.rule == TOO_LONG:
            return self.what in finding.sentence
        return finding.word in self.what and self.what in finding.sentence


RULE_NAMES = {TOO_LONG, *(one.name for one in RULES)}


def read_allowed(source, name="tests/lint/words.allow"):
    """The entries of an allow file, and what is wrong with it."""
    entries, wrong = [], []
    for number, line in enumerate(source.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [part.strip() for part in line.split(" | ")]
        if len(fields) != 3 or not all(fields):
            wrong.append(f"{name}:{number}: an entry is `PATH GLOB | RULE OR TEXT | REASON`")
        else:
            entries.append(Allowed(number, *fields))
    if len(entries) > MOST_ALLOWED:
        wrong.append(f"{name}: {len(entries)} entries; at most {MOST_ALLOWED} are allowed: correct texts instead")
    return entries, wrong


def unused(entries, read_paths, name="tests/lint/words.allow"):
    """A sentence for each entry that no finding needed, of those whose files were read."""
    return [f"{name}:{entry.line}: this entry allows nothing that is there: remove it" for entry in entries
            if not entry.used and any(fnmatch.fnmatchcase(path, entry.glob) for path in read_paths)]


@dataclass
class Result:
    findings: dict  # group -> findings
    wrong: list

    @property
    def count(self):
        return sum(map(len, self.findings.values())) + len(self.wrong)


def check(root, groups=GROUPS, only_paths=(), allow=None):
    """Reads the groups; with `only_paths` only files whose names begin so."""
    entries, wrong = read_allowed(ALLOW.read_text() if allow is None else allow)
    findings, read_paths = {}, set()
    for group in groups:
        kept = findings[group] = []
        for text in texts_of(root, group):
            if only_paths and not text.path.startswith(tuple(only_paths)):
                continue
            read_paths.add(text.path)
            for finding in find_in(text):
                covering = [entry for entry in entries if entry.covers(finding)]
                for entry in covering:
                    entry.used += 1
                if not covering:
                    kept.append(finding)
    if not only_paths:
        # An entry whose files are in no group at all is wrong, too, which only a whole run can see.
        is_whole = set(groups) == set(GROUPS)
        wrong += unused(entries, read_paths)
        wrong += [f"tests/lint/words.allow:{entry.line}: no file is called {entry.glob}" for entry in entries
                  if is_whole and not any(fnmatch.fnmatchcase(path, entry.glob) for path in read_paths)]
    return Result(findings, wrong)


def main():
    made = argparse.ArgumentParser(prog="tests/lint/words.py", description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--only", metavar="GROUP", action="append", choices=GROUPS,
                      help=f"check this group alone (repeatable): {', '.join(GROUPS)}")
    made.add_argument("paths", nargs="*", metavar="PATH", help="check only files whose paths begin with this")
    args = made.parse_args()
    result = check(ROOT, args.only or GROUPS, args.paths)
    for findings in result.findings.values():
        for finding in findings:
            print(finding)
    for sentence in result.wrong:
        print(sentence)
    by_group = ", ".join(f"{group} {len(findings)}" for group, findings in result.findings.items())
    print(f"{by_group}: {result.count} findings")
    return 1 if result.count else 0


if __name__ == "__main__":
    sys.exit(main())
