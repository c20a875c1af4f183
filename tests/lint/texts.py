"""The prose of the repository's files, without what only looks like prose: code, addresses, tags, names, tests.

Each piece keeps the lines that it comes from, so that a finding can name its own.
"""

import ast
import bisect
import io
import json
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path

# Characters of no text: what stands for a piece of code, which reads as one word, and for what is no word at all.
CODE, BLANK = "\ue000", "\ue001"


@dataclass(frozen=True)
class Text:
    """A paragraph, cell, description, message or comment. `masked` is as long as `shown`."""

    path: str
    shown: str
    masked: str
    starts: tuple  # where in `shown` each line of the file begins
    lines: tuple  # their numbers
    is_limited: bool  # its sentences are for users, and have a limit

    def line_of(self, at):
        return self.lines[max(0, bisect.bisect_right(self.starts, at) - 1)]


def text(path, pieces, is_limited=False, placeholders=None):
    """A Text of [(line number, words)], each of which follows the one before after a blank."""
    shown, starts, lines = "", [], []
    for number, words in pieces:
        shown += " " if shown else ""
        starts.append(len(shown))
        lines.append(number)
        shown += words
    return Text(path, shown, mask(shown, placeholders), tuple(starts), tuple(lines), is_limited)


class Paragraphs:
    """The Texts of a file, of lines that are added one after the other."""

    def __init__(self, path, is_limited=False):
        self.path, self.is_limited, self.texts, self.lines = path, is_limited, [], []

    def add(self, number, words):
        self.lines.append((number, words))

    def end(self):
        """Ends the paragraph, if one has begun."""
        if self.lines:
            self.texts.append(text(self.path, self.lines, self.is_limited))
        self.lines = []


# ---- within a line

CODE_SPAN = re.compile(r"(?<![`\\])(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
TAG = re.compile(r"</?[A-Za-z][^<>]*>")
LINK_TARGET = re.compile(r"(?<=\])\((?:[^()\s]|\([^()]*\))*(?:\s+\"[^\"]*\")?\)")
REFERENCE = re.compile(r"(?<=\])\[[^\]]*\]")
ADDRESS = re.compile(r"<?\b[a-z][a-z0-9+.-]*://[^\s)>\ue000]+>?")
# `host.example.com` and `spec.numWorkers` without their signs of code.
DOTTED = re.compile(r"\b[A-Za-z][\w/-]+(?:\.[A-Za-z][\w/-]+)+")
# What Grafana, Prometheus and Rust replace.
TEMPLATE = re.compile(r"\{\{.*?\}\}", re.DOTALL)
FORMAT = re.compile(r"\{[A-Za-z0-9_.:#?<>^$*+]*\}")


def mask(words, placeholders=None):
    """The same text, as long, with code as CODE, and markup and addresses as BLANK."""

    def fill(pattern, character):
        nonlocal words
        words = pattern.sub(lambda found: character * len(found.group()), words)

    fill(CODE_SPAN, CODE)
    if placeholders:
        fill(placeholders, CODE)
    fill(ADDRESS, CODE)
    fill(DOTTED, CODE)
    fill(TAG, BLANK)
    fill(LINK_TARGET, BLANK)
    fill(REFERENCE, BLANK)
    return words.replace("*", BLANK)


# ---- Markdown

FENCE = re.compile(r"^\s*(?:(?:[-*+]|\d+[.)])\s+)?(`{3,}|~{3,})(.*)$")
HEADING = re.compile(r"^ {0,3}#{1,6}(\s|$)")
UNDERLINE = re.compile(r"^ {0,3}(=+|-{2,})\s*$")
ITEM = re.compile(r"^\s*(?:[-*+]|\d{1,9}[.)])\s+(.*)$")
QUOTE = re.compile(r"^ {0,3}(?:> ?)+")
DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s")
SEPARATOR = re.compile(r"^[\s|:-]+$")


def markdown(path, source):
    """The paragraphs, items, cells and headings of a page. Headings have no limit."""
    return Page(path).read(source.splitlines())


class Page:
    def __init__(self, path):
        self.path, self.found, self.block = path, [], []
        self.in_list = False

    def read(self, lines):
        lines = list(enumerate(lines, 1))
        if lines and lines[0][1].strip() == "---":
            end = next((at for at, line in lines[1:] if line.strip() in ("---", "...")), None)
            lines = lines[end or 0:]
        fence, in_comment, after_blank = None, False, True
        for number, raw in lines:
            line = raw.expandtabs(4)
            if fence:
                closes = re.match(rf"^[\s>]*{re.escape(fence[0])}{{{len(fence)},}}\s*$", line)
                fence = None if closes else fence
                continue
            line, in_comment = without_comments(line, in_comment)
            line = QUOTE.sub("", line)
            if (opened := FENCE.match(line)) and (opened[1][0] == "~" or "`" not in opened[2]):
                self.end()
                fence = opened[1]
                continue
            if not line.strip():
                self.end()
                after_blank = True
                continue
            self.take(number, line, after_blank)
            after_blank = False
        self.end()
        return self.found

    def take(self, number, line, after_blank):
        indent = len(line) - len(line.lstrip())
        if after_blank and indent == 0 and not ITEM.match(line):
            self.in_list = False
        if after_blank and indent >= 4 and not self.in_list:
            return  # a block of code
        if HEADING.match(line):
            self.end()
            self.block = [(number, line.strip().strip("#").strip())]
            self.end(is_limited=False)
        elif UNDERLINE.match(line):
            self.end(is_limited=False)
        elif line.lstrip().startswith("|"):
            self.end()
            if not SEPARATOR.match(line):
                for cell in cells(line):
                    self.found.append(text(self.path, [(number, cell)], is_limited=True))
        elif item := ITEM.match(line):
            self.end()
            self.in_list = True
            self.block = [(number, item[1].strip())]
        elif not DEFINITION.match(line) or self.block:
            self.block.append((number, line.strip()))

    def end(self, is_limited=True):
        if self.block:
            self.found.append(text(self.path, self.block, is_limited))
        self.block = []


def without_comments(line, in_comment):
    """The line without comments of HTML, and whether one goes on after it. One within code is none."""
    if in_comment:
        end = line.find("-->")
        return ("", True) if end < 0 else without_comments(line[end + 3:], False)
    at = line.find("<!--")
    if at < 0 or line.count("`", 0, at) % 2:
        return line, False
    rest, still = without_comments(line[at + 4:], True)
    return line[:at] + rest, still


def cells(row):
    """The cells of a row of a table; `\\|` is no border."""
    found = re.split(r"(?<!\\)\|", row.strip().strip("|"))
    return [cell.strip() for cell in found if cell.strip()]


# ---- YAML and JSON

KEY = re.compile(r"^(?P<indent>\s*(?:- )?)(?P<key>[A-Za-z]+):\s+(?P<value>\S.*)$")
PARENT = re.compile(r"^(?P<indent>\s*(?:- )?)(?P<key>[A-Za-z-]+):\s*$")
BLOCK = re.compile(r"^[|>][+-]?\d?[+-]?\s*(#.*)?$")
IN_QUOTES = {'"': re.compile(r'"(?:[^"\\]|\\.)*"?'), "'": re.compile(r"'(?:[^']|'')*'?")}


def yaml_values(path, source, keys, foreign=()):
    """The texts that these keys have: plain, quoted, or a block.

    Not of descriptions further below a key of `foreign`: the types of its entries are another project's.
    """
    lines, found, at, above = source.splitlines(), [], 0, []
    while at < len(lines):
        if parent := PARENT.match(lines[at]):
            above = [*(one for one in above if one[0] < len(parent["indent"])), (len(parent["indent"]), parent["key"])]
        begun = KEY.match(lines[at])
        at += 1
        if not begun or begun["key"] not in keys:
            continue
        parents = [key for indent, key in above if indent < len(begun["indent"])]
        if begun["key"] == "description" and any(key in foreign for key in parents[:-1]):
            continue
        indent, value = len(begun["indent"]), begun["value"]
        pieces = [] if BLOCK.match(value) else [(at, value.strip("'\""))]
        while at < len(lines) and (not lines[at].strip() or len(lines[at]) - len(lines[at].lstrip()) > indent):
            if not lines[at].strip() and pieces:  # a paragraph ends
                found.append(text(path, pieces, is_limited=True, placeholders=TEMPLATE))
                pieces = []
            elif lines[at].strip():
                pieces.append((at + 1, lines[at].strip().rstrip("'\"")))
            at += 1
        if pieces and begun["key"] == "message":
            # `OBJECT: WHAT IS WRONG; WHAT TO DO`: each part is a sentence.
            pieces = [(number, part) for number, words in pieces for part in re.split(r"(?<=[:;])\s+", words)]
            found += [text(path, [piece], is_limited=True) for piece in pieces]
        elif pieces:
            found.append(text(path, pieces, is_limited=True, placeholders=TEMPLATE))
    return found


def yaml_comments(path, source, is_limited=False):
    """Paragraphs of comments. What is indented within a comment is a command or an example."""
    found, inside = Paragraphs(path, is_limited), None

    for number, line in enumerate(source.splitlines(), 1):
        indent = len(line) - len(line.lstrip())
        if inside is not None and (not line.strip() or indent > inside):
            found.end()
            continue  # of a block, where # is what the program makes of it
        inside = None
        code, comment = split_comment(line)
        if code.strip():
            found.end()
            if re.search(r"(?:^|[:-]\s+)[|>][+-]?\d?[+-]?$", code.rstrip()):
                inside = indent
        if comment is None or not comment.strip() or re.match(r"\s{2,}|!", comment):
            found.end()
            continue
        found.add(number, comment.strip())
        if code.strip():
            found.end()
    found.end()
    return found.texts


def split_comment(line):
    """A line of YAML before its comment, and the comment without its sign; None if there is none."""
    at = 0
    while at < len(line):
        if line[at] == "#" and (at == 0 or line[at - 1].isspace()):
            return line[:at], line[at + 1:]
        quoted = IN_QUOTES.get(line[at])
        # A quote within a word, as in `it's`, begins nothing.
        if quoted and (at == 0 or line[at - 1] in " [{,:("):
            at = quoted.match(line, at).end()
        else:
            at += 1
    return line, None


JSON_VALUE = re.compile(r'^\s*"(title|description|content|name)":\s*("(?:[^"\\]|\\.)*"),?\s*$')


def json_values(path, source):
    """Titles, descriptions and texts of dashboards, whose files have a value a line."""
    found = []
    for number, line in enumerate(source.splitlines(), 1):
        if value := JSON_VALUE.match(line):
            is_limited = value[1] in ("description", "content")
            found.append(text(path, [(number, json.loads(value[2]))], is_limited, TEMPLATE))
    return found


# ---- snapshots

def snapshot(path, source):
    """The lines of a snapshot of insta without its head."""
    lines = list(enumerate(source.splitlines(), 1))
    if lines and lines[0][1] == "---":
        end = next((at for at, line in lines[1:] if line == "---"), 0)
        lines = lines[end:]
    return [text(path, [(number, line.strip())]) for number, line in lines if line.strip()]


# ---- Rust

RUST = re.compile(
    r"""
      (?P<comment>//[^\n]*|/\*)
    | (?P<raw>(?:br|cr|r)(?P<hashes>\#*)")
    | (?P<string>(?:b|c)?")
    | (?P<char>b?'(?:\\(?:x[0-9A-Fa-f]{2}|u\{[0-9A-Fa-f_]+\}|.)|[^\\'\n])')
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    """,
    re.VERBOSE,
)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
TEST_ITEM = re.compile(r"#!?\[cfg\((?:test\b|all\([^\]]*\btest\b)[^\]]*\)\]")
ATTRIBUTE = re.compile(r"#!?\[")
# Attributes whose strings people read: clap's, and messages of errors.
SHOWN = re.compile(r"#\[(?:command|arg|value|group|clap|error)\b")
PATTERN = re.compile(r"\(\?|\\[bdswBDSWpP]")
DERIVES = re.compile(r"#\[derive\([^\]]*\b(?:Parser|Subcommand|Args|ValueEnum)\b[^\]]*\)\]")


class Rust:
    """A source: its string literals, and `code`, in which these and comments are blanks."""

    def __init__(self, source):
        self.source, self.strings, self.docs, self.comments = source, [], [], []
        code, at = list(source), 0

        def blank(start, end):
            code[start:end] = ["\n" if character == "\n" else " " for character in source[start:end]]

        while found := RUST.search(source, at):
            start, at = found.start(), found.end()
            if found["comment"]:
                at = self.end_of_comment(start)
                if line := re.match(r"///?!?", source[start:at]):
                    self.comments.append((start, source[start + line.end():at]))
                if re.match(r"///(?!/)", source[start:at]):
                    self.docs.append((start, source[start + 3:at]))
                blank(start, at)
            elif found["raw"]:
                close = '"' + found["hashes"]
                end = source.find(close, at)
                end = len(source) if end < 0 else end
                self.strings.append((start, [(at + place, one) for place, one in enumerate(source[at:end])], True))
                at = min(len(source), end + len(close))
                blank(start, at)
            elif found["string"]:
                value, at = self.unescaped(at)
                self.strings.append((start, value, False))
                blank(start, at)
            elif found["char"]:
                blank(start, at)
        self.code = "".join(code)
        self.newlines = [place for place, character in enumerate(source) if character == "\n"]

    def end_of_comment(self, at):
        if self.source.startswith("//", at):
            end = self.source.find("\n", at)
            return len(self.source) if end < 0 else end
        depth = 0
        for sign in re.finditer(r"/\*|\*/", self.source[at:]):
            depth += 1 if sign.group() == "/*" else -1
            if depth == 0:
                return at + sign.end()
        return len(self.source)

    def unescaped(self, at):
        """[(place, character)] of a string that begins here, and where it has ended."""
        found, source = [], self.source
        while at < len(source) and source[at] != '"':
            if source[at] != "\\":
                found.append((at, source[at]))
                at += 1
            elif more := re.compile(r"\\\n\s*").match(source, at):
                at = more.end()
            elif more := re.compile(r"\\(?:x[0-9A-Fa-f]{2}|u\{[^}]*\})").match(source, at):
                found.append((at, CODE))
                at = more.end()
            else:
                found.append((at, ESCAPES.get(source[at + 1:at + 2], source[at + 1:at + 2])))
                at += 2
        return found, at + 1

    def line(self, at):
        return bisect.bisect_left(self.newlines, at) + 1

    def end_of_item(self, at):
        """Where the item has ended that begins behind an attribute."""
        depth = 0
        for sign in re.finditer(r"[{}();\[\]]", self.code[at:]):
            if sign.group() in "({[":
                depth += 1
            elif sign.group() in ")}]":
                depth -= 1
                if depth == 0 and sign.group() == "}":
                    return at + sign.end()
            elif depth == 0:
                return at + sign.end()
        return len(self.code)

    def end_of_attribute(self, at):
        depth = 0
        for sign in re.finditer(r"[\[\]]", self.code[at:]):
            depth += 1 if sign.group() == "[" else -1
            if depth == 0:
                return at + sign.end()
        return len(self.code)

    def tests(self):
        """The ranges of what is compiled for tests alone."""
        if any(found.group().startswith("#!") for found in TEST_ITEM.finditer(self.code)):
            return [(0, len(self.code))]
        return [(found.start(), self.end_of_item(found.end())) for found in TEST_ITEM.finditer(self.code)]

    def test_modules(self):
        """The names of modules in other files that are compiled for tests alone."""
        found = []
        for start, end in self.tests():
            if named := re.search(r"\bmod\s+(\w+)\s*;\s*$", self.code[start:end]):
                found.append(named[1])
        return found

    def left_out(self):
        attributes = [found.start() for found in ATTRIBUTE.finditer(self.code)]
        silent = [(at, self.end_of_attribute(at)) for at in attributes if not SHOWN.match(self.code, at)]
        return [*self.tests(), *silent]


def rust_strings(path, source):
    """The literals that are sentences or parts of them: words with blanks, no patterns, none of tests."""
    rust = Rust(source)
    left_out, found = rust.left_out(), []
    for start, value, is_raw in rust.strings:
        if any(begin <= start < end for begin, end in left_out):
            continue
        words = "".join(character for _, character in value)
        if not re.search(r"[A-Za-z]", words) or not re.search(r"\s", words) or (is_raw and PATTERN.search(words)):
            continue
        starts, lines = [], []
        for place, (at, _) in enumerate(value):
            if not lines or rust.line(at) != lines[-1]:
                starts.append(place)
                lines.append(rust.line(at))
        found.append(Text(path, words, mask(words, FORMAT), tuple(starts), tuple(lines), False))
    return found


def rust_help(path, source):
    """What `--help` prints: the doc comments of what clap reads, a paragraph each."""
    rust = Rust(source)
    if not DERIVES.search(rust.code):
        return []
    tests, found, last = rust.tests(), Paragraphs(path, is_limited=True), None
    items = [(found.start(), rust.end_of_item(found.end())) for found in DERIVES.finditer(rust.code)]

    for start, words in rust.docs:
        if any(begin <= start < stop for begin, stop in tests):
            continue
        # Above the item, with other attributes between, or within it.
        above = [begin for begin, _ in items if start < begin and not re.search(r"[;{}]", rust.code[start:begin])]
        if not above and not any(begin <= start < stop for begin, stop in items):
            continue
        number = rust.line(start)
        if last is not None and number != last + 1:
            found.end()
        last = number
        if words.strip():
            found.add(number, words.strip())
        else:
            found.end()
    found.end()
    return found.texts


def rust_comments(path, source):
    """Paragraphs of `//`, `///` and `//!`, tests' too. What is fenced in them is code."""
    rust, found, last, is_fenced = Rust(source), Paragraphs(path), None, False

    for start, words in rust.comments:
        number = rust.line(start)
        if last is not None and number != last + 1:
            found.end()
            is_fenced = False
        last = number
        if words.strip().startswith("```"):
            is_fenced = not is_fenced
        if is_fenced or not words.strip() or words.strip().startswith("```"):
            found.end()
        else:
            found.add(number, words.strip())
    found.end()
    return found.texts


def python_comments(path, source):
    """Comments, line after line, and docstrings by their paragraphs."""
    found, last = Paragraphs(path), None

    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            number, words = token.start[0], token.string.lstrip("#").strip()
            if number - 1 != last:
                found.end()
            last = number
            if words:
                found.add(number, words)
            else:
                found.end()
    found.end()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
                ast.get_docstring(node, clean=False)):
            docstring = node.body[0].value
            lines = docstring.value.splitlines()
            for number, line in enumerate([*lines, ""], docstring.lineno):
                if line.strip():
                    found.add(number, line.strip())
                else:
                    found.end()
    return found.texts


def test_files(folder):
    """The Rust files below a folder that only tests compile."""
    found = set()
    for path in sorted(Path(folder).rglob("*.rs")):
        if path.name in ("tests.rs", "testing.rs") or "tests" in path.relative_to(folder).parts[:-1]:
            found.add(path)
            continue
        beside = path.parent if path.stem in ("lib", "main", "mod") else path.with_suffix("")
        for name in Rust(path.read_text(errors="replace")).test_modules():
            found |= {beside / f"{name}.rs", *(beside / name).rglob("*.rs")}
    return found
