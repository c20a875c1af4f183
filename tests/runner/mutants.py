"""Faults put into the code: which of them the tests notice. tests/evidence/mutants has the commands."""

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("lifecycle", "failure", "checkpoint", "gang", "store", "plan")
BASELINE = "(none)"  # the name under which a program's run without a fault is kept


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    diff: str

    @property
    def folder(self):
        return self.file.split("/")[1]

    @property
    def old_file(self):
        """Where the file was when all crates were modules of one."""
        room = "cause" if self.folder == "failure" else self.folder
        path = self.file.split("/src/", 1)[-1]
        return f"src/{room}/{'mod.rs' if path == 'lib.rs' else path}"

    def patch(self, file):
        """The diff of a file, with a head that `git apply` understands: cargo-mutants names the change there."""
        body = self.diff.splitlines()[2:]
        return "\n".join([f"--- a/{file}", f"+++ b/{file}", *body]) + "\n"


def shuffled(listed, seed):
    """The mutants of cargo's list, in an order that follows from the seed alone."""
    found = sorted((Mutant(one["name"], one["file"], one["diff"]) for one in listed), key=lambda mutant: mutant.name)
    random.Random(seed).shuffle(found)
    return found


def users(metadata, root, folder):
    """The unit test programs of the crates that use the one in this folder, from what `cargo metadata` says.

    They are named as `runner.cargo` names them.
    """
    folders = {str(Path(package["manifest_path"]).parent): package for package in metadata["packages"]}
    found, open_ = set(), {str(Path(root, folder))}
    while open_:
        used = open_.pop()
        new = {place for place, package in folders.items()
               if any(dependency.get("path") == used for dependency in package["dependencies"])} - found
        found |= new
        open_ |= new
    return {"lib" if place == str(root) else f"lib-{target['name']}" for place in found
            for target in folders[place]["targets"] if "lib" in target["kind"]}


@dataclass
class Verdicts:
    """What is known of each mutant: (mutant, side) -> (result, by whom). Sides are unit, old and new."""

    known: dict

    @classmethod
    def of(cls, rows):
        return cls({(row["mutant"], row["side"]): (row["result"], row["by"]) for row in rows})

    def result(self, mutant, side):
        return self.known.get((mutant, side), (None, ""))[0]

    def missed(self, order):
        """The mutants that are viable and that the unit tests miss."""
        return [mutant for mutant in order
                if self.result(mutant.name, "unit") == "missed" and self.is_viable(mutant)]

    def enough(self, order, count):
        """The beginning of the order up to the mutant with which `missed` has `count`."""
        missed = self.missed(order)
        return order[:order.index(missed[count - 1]) + 1] if len(missed) >= count else order

    def is_viable(self, mutant):
        """Whether it compiles, as far as that is known."""
        return all(self.result(mutant.name, side) != "unviable" for side in ("unit", "old", "new"))

    def counts(self, order):
        """Those of them that both sides have judged."""
        return [mutant for mutant in self.missed(order) if all(
            self.result(mutant.name, side) in ("caught", "missed") for side in ("old", "new"))]

    def share(self, order, side):
        found = self.counts(order)
        return sum(self.result(mutant.name, side) == "caught" for mutant in found), len(found)


# What holds braces that are no code: comments, strings, characters. A lifetime has no second quote.
NOISE = re.compile(r"""//[^\n]*|/\*.*?\*/|\b[bc]?r(#*)".*?"\1|[bc]?"(?:\\.|[^"\\])*"|b?'(?:\\.[^'\n]*|[^\\'\n])'""",
                   re.DOTALL)
# The number of the fault that is awake in a process, read when a function first asks.
ASKED = ("let fault_awake: usize = {{ static NUMBER: ::std::sync::OnceLock<usize> = ::std::sync::OnceLock::new(); "
         "*NUMBER.get_or_init(|| ::std::fs::read_to_string({}).ok().and_then(|text| text.trim().parse().ok())"
         ".unwrap_or(0)) }};")


def bodies(text):
    """(start, end) of the bodies of Rust functions, without their braces. Those in another's body are left out."""
    code = NOISE.sub(lambda found: " " * len(found[0]), text)
    found, end = [], 0
    for head in re.finditer(r"\bfn\s+\w+", code):
        if head.start() < end:
            continue
        opened = first(code, head.end(), "{;", "([", ")]")
        if code[opened] == "{":
            end = first(code, opened + 1, "}", "{", "}")
            found.append((opened + 1, end))
    return found


def first(code, at, wanted, opening, closing):
    """Where one of the wanted characters is first, outside of what opens and closes before it."""
    depth = 0
    while depth > 0 or code[at] not in wanted:
        depth += (code[at] in opening) - (code[at] in closing)
        at += 1
    return at


def woven(text, changed, switch):
    """The code with all faults at once, each of them asleep, and where: (code, number -> lines).

    `changed` has the code with each fault alone, by its number. A function has a body for each of its faults, and runs
    the one whose number is in the file `switch`. A fault that is in no function is left out. The lines are the first
    and last of the fault's body, and of its function with what is before it.
    """
    places, faults = bodies(text), {}
    for number, other in changed.items():
        start = alike(text, other)
        rest = min(len(text), len(other)) - start
        end = len(text) - alike(text[:-rest - 1:-1], other[:-rest - 1:-1])
        for place in places:
            if place[0] <= start and end <= place[1]:
                faults.setdefault(place, {})[number] = other[place[0]:place[1] + len(other) - len(text)]
    code, lines, at = "", {}, 0
    for start, end in places:
        before = code.count("\n") + 1
        code += text[at:start]
        others = faults.get((start, end), {})
        if others:
            code += f"\n{ASKED.format(json.dumps(str(switch)))}\nmatch fault_awake {{\n"
        for number, body in others.items():
            begin = code.count("\n") + 1
            code += f"{number} => {{{body}\n}}\n"
            lines[number] = [(begin, code.count("\n"))]
        code += f"_ => {{{text[start:end]}\n}}\n}}\n" if others else text[start:end]
        for number in others:
            lines[number].append((before, code.count("\n") + 1))
        at = end
    return code + text[at:], lines


def alike(one, other):
    """How many characters at the beginning are the same."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def broken(messages, places):
    """The numbers of the faults for which the code does not compile, by cargo's messages in JSON.

    `places` has the lines of the faults by file. What is in no fault's body counts for all faults of the function, and
    what is in no such function for all of the file.
    """
    found = set()
    for line in messages.splitlines():
        message = json.loads(line).get("message") if line.startswith("{") else None
        if not isinstance(message, dict) or message.get("level") != "error":
            continue
        spans = [span for span in message["spans"] if span["file_name"] in places]
        primary = [span for span in spans if span["is_primary"]]
        hits = (hit(places, chosen, which) for which in (0, 1) for chosen in (primary, spans))
        found |= next(filter(None, hits), {number for span in spans for number in places[span["file_name"]]})
    return found


def hit(places, spans, which):
    return {number for span in spans for number, lines in places[span["file_name"]].items()
            if lines[which][0] <= span["line_start"] <= lines[which][1]}
